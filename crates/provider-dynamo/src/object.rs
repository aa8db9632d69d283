//! JSON objects without empty fields.

use serde::Serialize;
use serde_json::{Map, Value, json};

/// Fields of an object, none of them empty: what is not asked for is not written.
#[derive(Debug, Default, Serialize)]
pub(crate) struct Fields(Map<String, Value>);

pub(crate) fn fields() -> Fields {
    Fields::default()
}

impl Fields {
    /// Adds a field, unless the value is null, an empty list or an empty object. Zero is a value.
    pub(crate) fn with(mut self, name: &str, value: impl Serialize) -> Self {
        let value = json!(value);
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
