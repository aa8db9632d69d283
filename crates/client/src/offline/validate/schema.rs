//! Validation against the schema of a CRD, as in the API server: types, unknown fields, bounds, keys of list entries.
//! Then the rules of each place. Everything is found at once.

use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::{
    JSONSchemaProps, JSONSchemaPropsOrArray, JSONSchemaPropsOrBool,
};
use regex::Regex;
use serde_json::{Map, Value};

use super::finding::{By, Finding};
use super::memo::Memo;
use super::rules;
use crate::target::{closest, did_you_mean};

/// Longest part of a user's text that a message repeats, in characters.
const MAX_QUOTE: usize = 60;

/// Compiled patterns.
static PATTERNS: Memo<Regex> = Memo::new();

/// Everything that is wrong with `object`, whose defaults are filled in already.
pub(super) fn check(schema: &JSONSchemaProps, object: &Value) -> Vec<Finding> {
    let mut found = Vec::new();
    value(schema, object, "", &mut found);
    found
}

/// Sets defaults of the schema, as the API server does before validation.
pub(super) fn fill_in(schema: &JSONSchemaProps, written: &mut Value) {
    match written {
        Value::Object(fields) => {
            for (name, field) in schema.properties.iter().flatten() {
                let absent = fields.get(name).is_none_or(|v| v.is_null() && !is_nullable(field));
                if let (true, Some(default)) = (absent, &field.default) {
                    fields.insert(name.clone(), default.0.clone());
                }
            }
            for (name, value) in fields {
                if let Some(inner) = field_schema(schema, name) {
                    fill_in(inner, value);
                }
            }
        }
        Value::Array(entries) => {
            if let Some(JSONSchemaPropsOrArray::Schema(entry)) = &schema.items {
                for value in entries {
                    fill_in(entry, value);
                }
            }
        }
        _ => {}
    }
}

/// The schema of a field, also of one that the user names.
fn field_schema<'a>(schema: &'a JSONSchemaProps, name: &str) -> Option<&'a JSONSchemaProps> {
    let named = schema.properties.as_ref().and_then(|fields| fields.get(name));
    named.or(match &schema.additional_properties {
        Some(JSONSchemaPropsOrBool::Schema(any)) => Some(any),
        _ => None,
    })
}

fn value(schema: &JSONSchemaProps, value: &Value, path: &str, found: &mut Vec<Finding>) {
    let before = found.len();
    if value.is_null() && is_nullable(schema) {
        return;
    }
    if let Some(wrong) = wrong_type(schema, value) {
        return say(found, path, wrong);
    }
    match value {
        Value::Object(fields) => object(schema, fields, path, found),
        Value::Array(entries) => list(schema, entries, path, found),
        Value::String(given) => text(schema, given, path, found),
        Value::Number(given) => number(schema, given.as_f64().unwrap_or(f64::NAN), path, found),
        _ => {}
    }
    one_of(schema, value, path, found);
    let whole = found[before..].iter().all(|finding| finding.by == By::Rule);
    found.extend(rules::broken(schema, value, path, whole));
}

fn say(found: &mut Vec<Finding>, path: &str, message: impl Into<String>) {
    found.push(Finding::error(By::Schema, path, message));
}

fn is_nullable(schema: &JSONSchemaProps) -> bool {
    schema.nullable == Some(true)
}

/// Actual and required type, if they differ.
fn wrong_type(schema: &JSONSchemaProps, value: &Value) -> Option<String> {
    if schema.x_kubernetes_int_or_string == Some(true) {
        let fits = value.is_string() || is_whole(value);
        return (!fits).then(|| format!("must be an integer or a string, not {}", described(value)));
    }
    let (fits, wanted) = match schema.type_.as_deref()? {
        "object" => (value.is_object(), "an object with fields below it"),
        "array" => (value.is_array(), "a list: begin each entry with '- '"),
        "string" => (value.is_string(), "a string"),
        "boolean" => (value.is_boolean(), "true or false"),
        "integer" => (is_whole(value), "an integer"),
        "number" => (value.is_number(), "a number"),
        _ => return None,
    };
    if fits {
        return None;
    }
    let remedy = match (schema.type_.as_deref(), value) {
        (_, Value::Null) => ": set a value, or remove the field",
        (Some("string"), Value::Bool(_) | Value::Number(_)) => ": quote it",
        (Some("boolean"), Value::String(text)) if text.parse::<bool>().is_ok() => ": remove the quotes",
        (Some("integer" | "number"), Value::String(text)) if text.parse::<f64>().is_ok() => ": remove the quotes",
        _ => "",
    };
    Some(format!("must be {wanted}, not {}{remedy}", described(value)))
}

/// `1.0` is whole: JSON does not tell the two apart.
fn is_whole(value: &Value) -> bool {
    value.is_i64() || value.is_u64() || value.as_f64().is_some_and(|number| number.fract() == 0.0)
}

fn described(value: &Value) -> String {
    match value {
        Value::Null => "empty".to_owned(),
        Value::Bool(_) | Value::Number(_) => value.to_string(),
        Value::String(text) => format!("the string '{}'", quote(text)),
        Value::Array(_) => "a list".to_owned(),
        Value::Object(_) => "an object".to_owned(),
    }
}

fn object(schema: &JSONSchemaProps, fields: &Map<String, Value>, path: &str, found: &mut Vec<Finding>) {
    for name in schema
        .required
        .iter()
        .flatten()
        .filter(|name| !fields.contains_key(*name))
    {
        let about = field_schema(schema, name).and_then(|field| field.description.as_deref());
        let about = about.map_or_else(String::new, |text| format!(" ({})", first_sentence(text)));
        say(found, &join(path, name), format!("is required: add it{about}"));
    }
    let open = schema.x_kubernetes_preserve_unknown_fields == Some(true);
    for (name, inner) in fields {
        let at = join(path, name);
        match field_schema(schema, name) {
            Some(known) => value(known, inner, &at, found),
            None if open => {}
            None => say(found, &at, unknown(schema, name)),
        }
    }
    let most = schema.max_properties.unwrap_or(i64::MAX);
    if count(fields.len()) > most {
        say(
            found,
            path,
            format!("has {} entries: at most {most} are allowed", fields.len()),
        );
    }
}

fn unknown(schema: &JSONSchemaProps, name: &str) -> String {
    let known: Vec<&str> = schema
        .properties
        .iter()
        .flatten()
        .map(|(name, _)| name.as_str())
        .collect();
    match closest(name, known.iter().copied()) {
        Some(alike) => format!("is an unknown field: did you mean '{alike}'?"),
        None if known.is_empty() => "is an unknown field: remove it".to_owned(),
        None => format!("is an unknown field: remove it (fields: {})", known.join(", ")),
    }
}

fn list(schema: &JSONSchemaProps, entries: &[Value], path: &str, found: &mut Vec<Finding>) {
    let (least, most) = (schema.min_items.unwrap_or(0), schema.max_items.unwrap_or(i64::MAX));
    if count(entries.len()) < least {
        say(
            found,
            path,
            format!("has {} entries: at least {least} are required", entries.len()),
        );
    }
    if count(entries.len()) > most {
        say(
            found,
            path,
            format!("has {} entries: at most {most} are allowed", entries.len()),
        );
    }
    if let Some(JSONSchemaPropsOrArray::Schema(entry)) = &schema.items {
        for (index, inner) in entries.iter().enumerate() {
            value(entry, inner, &format!("{path}[{index}]"), found);
        }
    }
    let keys: Vec<&str> = schema
        .x_kubernetes_list_map_keys
        .iter()
        .flatten()
        .map(String::as_str)
        .collect();
    if keys.is_empty() {
        return;
    }
    // A missing name is already reported.
    let named = |entry: &Value| {
        keys.iter()
            .map(|key| entry.get(key).cloned())
            .collect::<Option<Vec<_>>>()
    };
    for (index, entry) in entries.iter().enumerate() {
        let Some(name) = named(entry) else { continue };
        if let Some(first) = entries[..index]
            .iter()
            .position(|earlier| named(earlier).as_ref() == Some(&name))
        {
            let message = format!("has the same {} as [{first}]: keep one of the two", keys.join(" and "));
            say(found, &format!("{path}[{index}]"), message);
        }
    }
}

fn text(schema: &JSONSchemaProps, text: &str, path: &str, found: &mut Vec<Finding>) {
    let length = count(text.chars().count());
    let (least, most) = (schema.min_length.unwrap_or(0), schema.max_length.unwrap_or(i64::MAX));
    if length == 0 && least > 0 {
        say(found, path, "must not be empty");
    } else if length < least {
        say(
            found,
            path,
            format!("has {length} characters: at least {least} are required"),
        );
    }
    if length > most {
        say(
            found,
            path,
            format!("has {length} characters: at most {most} are allowed"),
        );
    }
    let broken = |pattern: &&str| {
        PATTERNS
            .get(pattern, Regex::new)
            .is_ok_and(|regex| !regex.is_match(text))
    };
    if let Some(written) = schema.pattern.as_deref().filter(broken) {
        say(found, path, format!("'{}' does not match {written}", quote(text)));
    }
}

fn number(schema: &JSONSchemaProps, number: f64, path: &str, found: &mut Vec<Finding>) {
    if let Some(least) = schema.minimum.filter(|least| number < *least) {
        say(found, path, format!("must be at least {least}, not {number}"));
    }
    if let Some(most) = schema.maximum.filter(|most| number > *most) {
        say(found, path, format!("must be at most {most}, not {number}"));
    }
}

fn one_of(schema: &JSONSchemaProps, value: &Value, path: &str, found: &mut Vec<Finding>) {
    let Some(allowed) = &schema.enum_ else { return };
    if allowed.iter().any(|allowed| allowed.0 == *value) {
        return;
    }
    let names: Vec<&str> = allowed.iter().filter_map(|allowed| allowed.0.as_str()).collect();
    let meant = value.as_str().and_then(|given| closest(given, names.iter().copied()));
    let meant = did_you_mean(meant.as_deref());
    say(
        found,
        path,
        format!("must be one of {}, not {}{meant}", names.join(", "), described(value)),
    );
}

/// Path of a field. A name with special characters is written in brackets.
pub(super) fn join(path: &str, name: &str) -> String {
    match path {
        _ if name.contains(['.', '/', '[']) => format!("{path}[{name}]"),
        "" => name.to_owned(),
        path => format!("{path}.{name}"),
    }
}

fn first_sentence(text: &str) -> String {
    let line = text.split_whitespace().collect::<Vec<_>>().join(" ");
    line.split_once(". ")
        .map_or(line.as_str(), |(first, _)| first)
        .trim_end_matches('.')
        .to_owned()
}

fn quote(text: &str) -> String {
    match text.char_indices().nth(MAX_QUOTE) {
        Some((end, _)) => format!("{}…", &text[..end]),
        None => text.to_owned(),
    }
}

fn count(length: usize) -> i64 {
    i64::try_from(length).unwrap_or(i64::MAX)
}
