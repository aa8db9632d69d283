//! Changes of single fields of an object, from its schema: valid, boundary and invalid values, of every field.

use serde_json::{Map, Value, json};

/// Strings for fields with a format of their own. Each is invalid for most fields, which is a test as well.
const STRINGS: [&str; 10] = [
    "a",
    "1",
    "16Gi",
    "250m",
    "/data",
    "registry.example/image:2",
    "http://example.com/",
    "X_Y",
    "not valid: \u{1f}",
    "$(UNKNOWN)",
];
/// Longer lists and texts are not tried: the API server limits the size of a request.
const LONGEST: u64 = 40_000;

/// Every change of one field of `object`, as merge patches.
///
/// `schema` is an `OpenAPI` schema of a CRD. A list or an object that is not in `object` gets what its schema requires besides
/// the field. For each field without fields of its own, there are the values and limits that the schema names, a value beyond each
/// limit, a value of another type, and `null`, which removes it.
pub fn changes(schema: &Value, object: &Value) -> Vec<Value> {
    values(schema, Some(object))
        .into_iter()
        .filter(|change| change.as_object().is_some_and(|fields| !fields.is_empty()))
        .collect()
}

/// Values to try for a field. `now` is what the object has there.
fn values(schema: &Value, now: Option<&Value>) -> Vec<Value> {
    let mut values = match schema {
        _ if schema["properties"].is_object() => objects(schema, now),
        _ if schema["additionalProperties"].is_object() => maps(schema),
        _ if schema["items"].is_object() => lists(schema),
        _ if schema["x-kubernetes-int-or-string"] == true => [json!(0), json!(-1), json!("50%"), json!(true)]
            .into_iter()
            .chain(strings(schema))
            .collect(),
        _ => match schema["type"].as_str() {
            Some("string") => strings(schema),
            Some("integer" | "number") => numbers(schema),
            Some("boolean") => vec![json!(true), json!(false), json!("yes")],
            _ => vec![json!({}), json!({ "a": { "b": 1 } }), json!("text")],
        },
    };
    values.push(Value::Null);
    values
}

fn objects(schema: &Value, now: Option<&Value>) -> Vec<Value> {
    let now = now.filter(|now| now.is_object());
    // A merge patch keeps the other fields of an object that is there.
    let required = if now.is_some() { Map::new() } else { required(schema) };
    let fields = schema["properties"].as_object().into_iter().flatten();
    let mut objects: Vec<Value> = fields
        .flat_map(|(name, field)| {
            let now = now.and_then(|now| now.get(name));
            let required = &required;
            values(field, now).into_iter().map(move |value| {
                let mut object = required.clone();
                object.insert(name.clone(), value);
                Value::Object(object)
            })
        })
        .collect();
    objects.extend([json!({}), json!("text")]);
    objects
}

fn maps(schema: &Value) -> Vec<Value> {
    let of_values = values(&schema["additionalProperties"], None);
    let mut maps: Vec<Value> = of_values.into_iter().map(|value| json!({ "key": value })).collect();
    let value = sample(&schema["additionalProperties"]);
    maps.extend([
        json!({}),
        json!({ "": value }),
        json!({ "Not a key!": value }),
        json!([]),
    ]);
    if let Some(most) = limit(schema, "maxProperties") {
        let many = |count: u64| (0..count).map(|n| (format!("key{n}"), value.clone())).collect();
        maps.extend([Value::Object(many(most)), Value::Object(many(most + 1))]);
    }
    maps
}

fn lists(schema: &Value) -> Vec<Value> {
    let items = values(&schema["items"], None);
    let mut lists: Vec<Value> = items.into_iter().map(|item| json!([item])).collect();
    let item = sample(&schema["items"]);
    lists.extend([json!([]), json!([item, item]), json!({})]);
    if let Some(most) = limit(schema, "maxItems") {
        lists.extend([most, most + 1].map(|count| (0..count).map(|_| item.clone()).collect()));
    }
    lists
}

fn strings(schema: &Value) -> Vec<Value> {
    let mut strings = vec![json!(""), json!(7)];
    if let Some(names) = schema["enum"].as_array() {
        strings.extend(names.iter().cloned());
    }
    strings.extend(STRINGS.map(|text| json!(text)));
    if let Some(longest) = limit(schema, "maxLength") {
        let text = |length: u64| (0..length).map(|_| 'a').collect::<String>();
        strings.extend([longest, longest + 1].map(|length| json!(text(length))));
    }
    strings
}

fn numbers(schema: &Value) -> Vec<Value> {
    let (least, most) = (bound(schema, "minimum"), bound(schema, "maximum"));
    let mut numbers: Vec<i64> = [least, most, least.map(|n| n - 1), most.map(|n| n + 1), Some(2)]
        .into_iter()
        .flatten()
        .collect();
    if least.is_none() {
        numbers.extend([0, -1]);
    }
    if most.is_none() {
        numbers.extend([i64::from(i32::MAX), i64::MAX]);
    }
    numbers.into_iter().map(|n| json!(n)).chain([json!("two")]).collect()
}

/// Bounds of CRDs are written as floating-point numbers.
fn bound(schema: &Value, name: &str) -> Option<i64> {
    format!("{:.0}", schema[name].as_f64()?).parse().ok()
}

fn limit(schema: &Value, name: &str) -> Option<u64> {
    schema[name].as_u64().filter(|limit| *limit < LONGEST)
}

/// A value with nothing but what the schema requires.
fn sample(schema: &Value) -> Value {
    let named = schema["enum"].as_array().and_then(|names| names.first());
    match schema["type"].as_str() {
        _ if named.is_some() => named.cloned().unwrap_or_default(),
        _ if schema["x-kubernetes-int-or-string"] == true => json!(1),
        Some("string") => json!("a"),
        Some("integer" | "number") => json!(bound(schema, "minimum").unwrap_or(1)),
        Some("boolean") => json!(true),
        Some("array") => json!([]),
        _ => Value::Object(required(schema)),
    }
}

fn required(schema: &Value) -> Map<String, Value> {
    let names = schema["required"].as_array().into_iter().flatten();
    names
        .filter_map(Value::as_str)
        .map(|name| (name.to_owned(), sample(&schema["properties"][name])))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_field_gets_valid_boundary_and_invalid_values() {
        let schema = json!({ "type": "object", "properties": {
            "kind": { "type": "string", "enum": ["One", "Two"] },
            "count": { "type": "integer", "minimum": 1, "maximum": 9 },
            "storage": { "type": "object", "required": ["size"], "properties": {
                "size": { "type": "string" }, "class": { "type": "string", "maxLength": 3 } } },
            "items": { "type": "array", "maxItems": 2, "items": { "type": "object", "required": ["name"], "properties": {
                "name": { "type": "string" }, "on": { "type": "boolean" } } } } } });
        let absent = changes(&schema, &json!({ "kind": "One" }));
        for expected in [
            json!({ "kind": "Two" }),
            json!({ "kind": 7 }),
            json!({ "kind": null }),
            json!({ "count": 0 }),
            json!({ "count": 9 }),
            json!({ "count": 10 }),
            json!({ "storage": { "size": "a", "class": "aaa" } }),
            json!({ "storage": { "size": "a", "class": "aaaa" } }),
            json!({ "items": [{ "name": "a", "on": false }] }),
            json!({ "items": [{ "name": "a" }, { "name": "a" }, { "name": "a" }] }),
        ] {
            assert!(absent.contains(&expected), "{expected} is missing");
        }
        let present = changes(&schema, &json!({ "storage": { "size": "2Gi" } }));
        assert!(present.contains(&json!({ "storage": { "class": "aaa" } })));
        assert!(!present.contains(&json!({ "storage": { "size": "a", "class": "aaa" } })));
    }
}
