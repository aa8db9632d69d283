//! JSON objects built from moved values. `json!` copies every value, so that an object built level by level would be copied once
//! per level.

use serde_json::{Map, Value};

/// Fields of an object without empty values: what a user does not request is not written.
#[derive(Debug, Default)]
pub struct Fields(Map<String, Value>);

/// An empty object.
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
