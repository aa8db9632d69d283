//! Removes secrets from objects and texts: pure. Rather too much than too little.
//!
//! It takes two passes. The first redacts what is secret by its place or its shape, and remembers it: values of environment
//! variables, values behind names and flags such as `--api-key`, logins in URLs, keys and tokens. The second redacts what was
//! remembered wherever else it occurs, also encoded.
//!
//! | module | content |
//! |---|---|
//! | `shapes` | names and texts that look like secrets |
//! | `encoded` | base64, percent encoding and hexadecimal digits |
//! | `known` | values that were found, and where else they occur |

mod encoded;
mod known;
mod shapes;
#[cfg(test)]
mod tests;

use runway_client::text as format;
use serde_json::{Map, Value};

use known::Known;

/// Replaces a secret.
pub const REDACTED: &str = "(redacted)";
/// Replacement for a text that is too long to be examined.
const TOO_LONG: &str = "(redacted: too long)";
/// Longest text that is judged, in bytes.
const MAX_TEXT: usize = 8 << 20;
/// Longest text that is parsed as a document, in bytes.
const MAX_DOCUMENT: usize = 256 << 10;
/// Texts within texts, such as JSON in base64 in YAML.
const MAX_DEPTH: u8 = 4;

/// Fields that repeat an object: removed wherever they are.
const COPIES: [&str; 2] = ["managedFields", "kubectl.kubernetes.io/last-applied-configuration"];
/// Fields with the contents of a Secret or a ConfigMap.
const CONTENTS: [&str; 3] = ["data", "stringData", "binaryData"];
/// Fields whose values are no secrets: without names, reasons and images a bundle is of no use.
const PUBLIC: [&str; 12] = [
    "name",
    "namespace",
    "kind",
    "apiVersion",
    "image",
    "imageID",
    "phase",
    "reason",
    "type",
    "nodeName",
    "id",
    "storageClassName",
];

/// Redacts objects and texts, which are those of one bundle.
pub fn all<'a>(objects: impl IntoIterator<Item = &'a mut Value>, texts: impl IntoIterator<Item = &'a mut String>) {
    let mut objects: Vec<&mut Value> = objects.into_iter().collect();
    let mut texts: Vec<&mut String> = texts.into_iter().collect();
    let mut redactor = Redactor::default();
    for object in &mut objects {
        redactor.object(object);
    }
    for text in &mut texts {
        **text = redactor.text(text);
    }
    redactor.known.seal();
    for object in &mut objects {
        redactor.again(object);
    }
    for text in &mut texts {
        **text = redactor.text(text);
    }
}

/// Removes secrets, and remembers them.
#[derive(Debug, Default)]
struct Redactor {
    known: Known,
    /// Number of redactions.
    removed: usize,
    depth: u8,
}

impl Redactor {
    /// First pass over an object. A schema describes fields and holds no values.
    fn object(&mut self, object: &mut Value) {
        if object["kind"] == "CustomResourceDefinition" {
            if let Some(meta) = object.get_mut("metadata") {
                self.value(meta);
            }
        } else {
            self.value(object);
        }
    }

    /// Second pass over an object: what is known by now.
    fn again(&mut self, object: &mut Value) {
        match object {
            Value::String(text) => *text = self.string(text),
            Value::Array(items) => items.iter_mut().for_each(|item| self.again(item)),
            Value::Object(fields)
                if fields
                    .get("kind")
                    .is_some_and(|kind| kind == "CustomResourceDefinition") =>
            {
                fields.get_mut("metadata").into_iter().for_each(|meta| self.again(meta));
            }
            Value::Object(fields) => fields.values_mut().for_each(|field| self.again(field)),
            _ => {}
        }
    }

    fn value(&mut self, at: &mut Value) {
        match at {
            Value::String(text) => *text = self.string(text),
            Value::Array(items) => self.list(items),
            Value::Object(fields) => self.fields(fields),
            _ => {}
        }
    }

    fn fields(&mut self, fields: &mut Map<String, Value>) {
        fields.retain(|name, _| !COPIES.contains(&name.as_str()));
        if fields
            .get("kind")
            .is_some_and(|kind| kind == "Secret" || kind == "ConfigMap")
        {
            fields.retain(|name, _| !CONTENTS.contains(&name.as_str()));
        }
        // An environment variable, a header of a probe or a parameter, wherever it is.
        let is_variable = fields.get("name").is_some_and(Value::is_string);
        for (name, field) in fields.iter_mut() {
            if PUBLIC.contains(&name.as_str())
                && let Some(text) = field.as_str()
            {
                self.known.is_public(text);
            }
            match name.as_str() {
                "value" if is_variable => self.take(field, false),
                name if shapes::is_environment(name) => self.environment(field),
                name if shapes::is_secretive(name) => self.blacken(field),
                _ => self.value(field),
            }
        }
    }

    /// Arguments: the one behind a flag is its value.
    fn list(&mut self, items: &mut [Value]) {
        let mut is_value = false;
        for item in items {
            let is_flag = item.as_str().is_some_and(shapes::is_secret_flag);
            if is_value && item.is_string() && !is_flag {
                self.take(item, true);
            } else {
                self.value(item);
            }
            is_value = is_flag;
        }
    }

    /// Environment variables: a list of names with values, a map, `NAME=value`, or one of these as a text.
    fn environment(&mut self, at: &mut Value) {
        match at {
            Value::Array(items) => items.iter_mut().for_each(|item| self.variable(item)),
            Value::Object(fields) => {
                for (name, field) in fields.iter_mut() {
                    match field {
                        Value::Object(_) | Value::Array(_) if name == "valueFrom" || shapes::is_reference(name) => {
                            self.value(field);
                        }
                        Value::Object(_) | Value::Array(_) => self.environment(field),
                        _ if shapes::is_reference(name) => self.value(field),
                        _ => self.take(field, shapes::is_secretive(name)),
                    }
                }
            }
            Value::String(text) => match document(text) {
                Some(mut parsed) => {
                    self.environment(&mut parsed);
                    *text = write(&parsed, text);
                }
                None => self.take(at, false),
            },
            _ => self.take(at, false),
        }
    }

    fn variable(&mut self, item: &mut Value) {
        match item {
            // The value is redacted, the reference is kept.
            Value::Object(fields) if fields.contains_key("name") => {
                let is_secret = fields["name"].as_str().is_some_and(shapes::is_secretive);
                for (name, field) in fields.iter_mut() {
                    match name.as_str() {
                        "name" => {}
                        "value" => self.take(field, is_secret),
                        _ => self.value(field),
                    }
                }
            }
            Value::String(text) => {
                if let Some((name, value)) = text.split_once('=') {
                    self.known.remember(value, shapes::is_secretive(name));
                    self.removed += 1;
                    *text = format!("{name}={REDACTED}");
                } else {
                    self.take(item, false);
                }
            }
            item => self.environment(item),
        }
    }

    /// Redacts what is behind a name that promises a secret, but for references to one.
    fn blacken(&mut self, at: &mut Value) {
        match at {
            Value::String(_) | Value::Number(_) => self.take(at, true),
            Value::Array(items) => items.iter_mut().for_each(|item| self.blacken(item)),
            Value::Object(fields) => {
                for (name, field) in fields.iter_mut() {
                    if name == "valueFrom" || shapes::is_reference(name) {
                        self.value(field);
                    } else {
                        self.blacken(field);
                    }
                }
            }
            _ => {}
        }
    }

    /// Redacts a value and remembers it; `certain` if it is a secret without doubt.
    fn take(&mut self, at: &mut Value, certain: bool) {
        match at {
            Value::Null => return,
            Value::String(text) if text == REDACTED => return,
            Value::String(text) => {
                self.known.remember(text, certain);
                // For the secrets within: a login in a URL, keys in a document.
                self.string(text);
            }
            Value::Array(items) => items.iter_mut().for_each(|item| self.take(item, certain)),
            Value::Object(fields) => fields.values_mut().for_each(|field| self.take(field, certain)),
            Value::Number(_) | Value::Bool(_) => self.known.remember(&at.to_string(), certain),
        }
        if !at.is_array() && !at.is_object() {
            *at = REDACTED.into();
            self.removed += 1;
        }
    }

    /// A text of an object, which may be a document itself.
    fn string(&mut self, text: &str) -> String {
        if self.depth >= MAX_DEPTH {
            self.removed += 1;
            return REDACTED.to_owned();
        }
        let Some(mut parsed) = document(text) else {
            return self.text(text);
        };
        let before = self.removed;
        self.depth += 1;
        if self.known.is_sealed() {
            self.again(&mut parsed);
        } else {
            self.object(&mut parsed);
        }
        self.depth -= 1;
        // Comments are no part of what is parsed.
        if self.removed == before {
            return self.text(text);
        }
        write(&parsed, text)
    }

    /// Redacts a text that is not a document.
    fn text(&mut self, text: &str) -> String {
        if text.len() > MAX_TEXT {
            self.removed += 1;
            return TOO_LONG.to_owned();
        }
        let text = self.known.replace(text, &mut self.removed);
        let text = shapes::replace(&text, |value, certain| {
            self.removed += 1;
            if certain {
                self.known.remember(value, true);
            }
        });
        self.encoded(&text)
    }
}

/// A text as JSON or YAML, if it is an object or a list.
fn document(text: &str) -> Option<Value> {
    let is_json = text.starts_with(['{', '[']);
    if text.len() > MAX_DOCUMENT || !(is_json || text.trim_end().contains('\n')) {
        return None;
    }
    let parsed = if is_json { serde_json::from_str(text).ok() } else { None };
    let parsed: Value = parsed.or_else(|| serde_saphyr::from_str(text).ok())?;
    (parsed.is_object() || parsed.is_array()).then_some(parsed)
}

/// Writes a document as it was written: in JSON or YAML.
fn write(document: &Value, before: &str) -> String {
    if before.starts_with(['{', '[']) {
        return document.to_string();
    }
    format::documents(&[document], format::Format::Yaml).unwrap_or_else(|_| REDACTED.to_owned())
}
