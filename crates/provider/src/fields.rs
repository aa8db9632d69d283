//! JSON objects of moved values. `json!` copies every value that it is given, so an object built level by level with it is
//! copied once for each level.

use serde_json::{Map, Value};

/// Fields of an object, none of them empty: what is not asked for is not written.
#[derive(Debug, Default)]
pub struct Fields(Map<String, Value>);

/// No fields yet.
pub fn fields() -> Fields {
    Fields::default()
}

impl Fields {
    /// Adds a field, unless the value is null, an empty list or an empty object. Zero is a value.
    #[must_use]
    pub fn with(mut self, name: &str, value: impl Into<Value>) -> Self {
        let value = value.into();
        let is_empty = match &value {
            Value::Null => true,
            Value::Array(entries) => entries.is_empty(),
            Value::Object(fields) => fields.is_empty(),
            _ => false,
        };
        if !is_empty {
            self.0.insert(name.to_owned(), value);
        }
        self
    }
}

impl From<Fields> for Value {
    fn from(fields: Fields) -> Self {
        Self::Object(fields.0)
    }
}
