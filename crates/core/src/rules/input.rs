//! Input of a rule: spec and metadata, converted to CEL values once.

use std::collections::HashMap;

use cel::common::types::{CelBool, CelDouble, CelInt, CelList, CelMap, CelMapKey, CelNull, CelString, CelUInt};
use cel::common::value::{CowVal, Val};
use cel::context::VariableResolver;
use serde_json::Value as Json;

/// Maximum entries of one list or object.
pub(super) const MAX_ENTRIES: usize = 100;
/// Maximum length of a string, in bytes.
pub(super) const MAX_STRING: usize = 4096;
/// Maximum weight of the spec, and of the metadata: one per value, and one more per [`BYTES_PER_WEIGHT`] bytes of its text and
/// of its key.
pub(super) const MAX_WEIGHT: u64 = 2048;
/// Bytes of text with the weight of one value.
pub(super) const BYTES_PER_WEIGHT: u64 = 32;
/// Maximum nesting of values. CEL compares, copies and drops them recursively.
const MAX_NESTING: usize = 16;

/// The input is larger than the cost estimate of rules assumes.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "{path} has {found}, rules can be evaluated with at most {allowed}; set spec.provider.name to select a provider without rules"
)]
pub struct InputTooLarge {
    /// Path of the value, such as `spec.env`.
    pub path: String,
    /// Description of the value.
    pub found: String,
    /// Limit that it exceeds.
    pub allowed: usize,
}

/// Data for the evaluation of rules. Built once per ModelDeployment, read by all rules.
#[derive(Debug)]
pub struct Input(Result<Variables, InputTooLarge>);

/// Names that a rule can read.
#[derive(Debug)]
pub(super) struct Variables {
    spec: Box<dyn Val>,
    metadata: Box<dyn Val>,
}

impl Input {
    /// Converts the normalized spec, and the metadata that a rule may read: `name`, `namespace`, `labels`.
    ///
    /// Lists and objects of more than 100 entries, strings of more than 4096 bytes, more than 16
    /// levels, or about 2000 values in all make every evaluation fail with [`InputTooLarge`].
    pub fn new(spec: &Json, metadata: &Json) -> Self {
        Self(Variables::new(spec, metadata))
    }

    pub(super) fn variables(&self) -> Result<&Variables, InputTooLarge> {
        self.0.as_ref().map_err(Clone::clone)
    }
}

impl Variables {
    fn new(spec: &Json, metadata: &Json) -> Result<Self, InputTooLarge> {
        Ok(Self {
            spec: convert("spec", spec)?,
            metadata: convert("metadata", metadata)?,
        })
    }
}

/// Passes references to the values: adding them to a context would copy them for each evaluation.
impl VariableResolver for Variables {
    fn resolve<'b>(&'b self, variable: &str) -> Option<CowVal<'b, 'b>> {
        match variable {
            "spec" => Some(CowVal::Borrowed(self.spec.as_ref())),
            "metadata" => Some(CowVal::Borrowed(self.metadata.as_ref())),
            _ => None,
        }
    }
}

fn convert(root: &'static str, json: &Json) -> Result<Box<dyn Val>, InputTooLarge> {
    let mut converter = Converter {
        path: vec![root.to_owned()],
        weight: 0,
    };
    converter.value(json)
}

struct Converter {
    path: Vec<String>,
    weight: u64,
}

impl Converter {
    fn value(&mut self, json: &Json) -> Result<Box<dyn Val>, InputTooLarge> {
        self.weigh(1)?;
        Ok(match json {
            Json::Null => Box::new(CelNull),
            Json::Bool(value) => Box::new(CelBool::from(*value)),
            Json::Number(number) => match (number.as_i64(), number.as_u64()) {
                (Some(value), _) => Box::new(CelInt::from(value)),
                (None, Some(value)) => Box::new(CelUInt::from(value)),
                (None, None) => Box::new(CelDouble::from(number.as_f64().unwrap_or(f64::NAN))),
            },
            Json::String(text) => Box::new(CelString::from(self.text(text)?)),
            Json::Array(items) => {
                self.entries(items.len())?;
                let items = items
                    .iter()
                    .enumerate()
                    .map(|(i, item)| self.nested(i.to_string(), item));
                Box::new(CelList::from(items.collect::<Result<Vec<_>, _>>()?))
            }
            Json::Object(fields) => {
                self.entries(fields.len())?;
                let mut map = HashMap::with_capacity(fields.len());
                for (key, field) in fields {
                    let value = self.nested(key.clone(), field)?;
                    map.insert(CelMapKey::String(CelString::from(self.text(key)?)), value);
                }
                Box::new(CelMap::from(map))
            }
        })
    }

    fn nested(&mut self, key: String, json: &Json) -> Result<Box<dyn Val>, InputTooLarge> {
        if self.path.len() > MAX_NESTING {
            return Err(self.too_large("deeper levels".to_owned(), MAX_NESTING));
        }
        self.path.push(key);
        let value = self.value(json)?;
        self.path.pop();
        Ok(value)
    }

    fn text(&mut self, text: &str) -> Result<String, InputTooLarge> {
        if text.len() > MAX_STRING {
            return Err(self.too_large(format!("a text of {} bytes", text.len()), MAX_STRING));
        }
        self.weigh(text.len() as u64 / BYTES_PER_WEIGHT)?;
        Ok(text.to_owned())
    }

    fn entries(&self, count: usize) -> Result<(), InputTooLarge> {
        if count > MAX_ENTRIES {
            return Err(self.too_large(format!("{count} entries"), MAX_ENTRIES));
        }
        Ok(())
    }

    fn weigh(&mut self, weight: u64) -> Result<(), InputTooLarge> {
        self.weight += weight;
        if self.weight > MAX_WEIGHT {
            let error = InputTooLarge {
                path: self.path[..1].join("."),
                found: format!(
                    "{} values, text counted as one per {BYTES_PER_WEIGHT} bytes,",
                    self.weight
                ),
                allowed: usize::try_from(MAX_WEIGHT).unwrap_or(usize::MAX),
            };
            return Err(error);
        }
        Ok(())
    }

    fn too_large(&self, found: String, allowed: usize) -> InputTooLarge {
        InputTooLarge {
            path: super::shortened(&self.path.join(".")),
            found,
            allowed,
        }
    }
}
