//! A form becomes a ModelDeployment, and its faults find their fields.
//!
//! One table says what the form has: each field is known by its path, which is also its name in the form and what the
//! validation calls it. What the form does not have stays in the object as it is.

use std::collections::BTreeMap;

use kube::core::response::Status;
use runway_api::name::{Invalid, Name, Namespace};
use runway_core::admission::Violation;
use serde_json::{Map, Value, json};

/// The fields of a form as they were sent.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Pairs(Vec<(String, String)>);

impl Pairs {
    /// Parses the body of a form.
    pub fn parse(body: &[u8]) -> Self {
        Self(form_urlencoded::parse(body).into_owned().collect())
    }

    /// Replaces a field that was sent.
    pub fn set(&mut self, name: &str, value: String) {
        if let Some((_, old)) = self.0.iter_mut().find(|(n, _)| n == name) {
            *old = value;
        }
    }

    /// A field, if it was sent.
    pub fn get(&self, name: &str) -> Option<&str> {
        self.0.iter().find(|(n, _)| n == name).map(|(_, value)| value.as_str())
    }
}

/// Type of a field.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Holds {
    /// A text.
    Text,
    /// A whole number.
    Number,
    /// Yes or no.
    Flag,
    /// One of these; the first means omitted.
    Choice(&'static [&'static str]),
    /// Lines of NAME=VALUE that are a map.
    Map,
    /// YAML of anything.
    Yaml,
}

/// A field of the form.
#[derive(Clone, Copy, Debug)]
pub struct Field {
    /// Path in the object.
    pub path: &'static str,
    /// Label.
    pub label: &'static str,
    /// Hint.
    pub hint: &'static str,
    /// Type.
    pub holds: Holds,
    /// Whether it is required.
    pub required: bool,
}

/// Fields that belong together.
pub struct Group {
    /// Title.
    pub title: &'static str,
    /// Whether the group is expanded.
    pub open: bool,
    /// The fields.
    pub fields: &'static [Field],
}

const fn field(path: &'static str, label: &'static str, holds: Holds, hint: &'static str) -> Field {
    Field {
        path,
        label,
        hint,
        holds,
        required: false,
    }
}

const fn required(path: &'static str, label: &'static str, holds: Holds, hint: &'static str) -> Field {
    Field {
        path,
        label,
        hint,
        holds,
        required: true,
    }
}

/// The namespace and name, for a new one.
pub const IDENTITY: &[Field] = &[
    required("metadata.namespace", "Namespace", Holds::Text, "an existing namespace"),
    field("metadata.name", "Name", Holds::Text, "default: derived from the model"),
];

/// Fields of a ModelDeployment. The model comes first; what follows from it is folded.
pub const GROUPS: &[Group] = &[
    Group {
        title: "Model",
        open: true,
        fields: &[field(
            "spec.model.id",
            "Model",
            Holds::Text,
            "ID or address on Hugging Face, such as org/model",
        )],
    },
    Group {
        title: "Engine, provider and image",
        open: false,
        fields: &[
            field(
                "spec.engine.type",
                "Engine",
                Holds::Text,
                "vllm, sglang, trtllm, llamacpp, or a provider-specific engine; default for a new model: derived",
            ),
            field(
                "spec.provider.name",
                "Provider",
                Holds::Text,
                "default: selected by capabilities and rules",
            ),
            field(
                "spec.model.source",
                "Source",
                Holds::Choice(&["", "huggingface", "custom"]),
                "custom: the image contains the model",
            ),
            field("spec.image", "Image", Holds::Text, "default: the provider's image"),
            field(
                "spec.model.servedName",
                "Served model name",
                Holds::Text,
                "default: the last part of the model ID",
            ),
        ],
    },
    Group {
        title: "Replicas and resources",
        open: false,
        fields: &[
            field("spec.scaling.replicas", "Replicas", Holds::Number, "default: 1"),
            field(
                "spec.resources.gpu.count",
                "GPUs per replica",
                Holds::Number,
                "0 for none; default for a new model: derived",
            ),
            field(
                "spec.resources.gpu.type",
                "GPU resource name",
                Holds::Text,
                "default: nvidia.com/gpu",
            ),
            field("spec.resources.memory", "Memory", Holds::Text, "such as 32Gi"),
            field("spec.resources.cpu", "CPUs", Holds::Text, "such as 4 or 500m"),
            field(
                "spec.serving.mode",
                "Mode",
                Holds::Choice(&["", "aggregated", "disaggregated"]),
                "disaggregated: separate workers for prefill and decode",
            ),
        ],
    },
    Group {
        title: "Prefill and decode (disaggregated mode)",
        open: false,
        fields: &[
            field("spec.scaling.prefill.replicas", "Prefill workers", Holds::Number, ""),
            field("spec.scaling.prefill.gpu.count", "GPUs per worker", Holds::Number, ""),
            field("spec.scaling.prefill.memory", "Memory per worker", Holds::Text, ""),
            field("spec.scaling.decode.replicas", "Decode workers", Holds::Number, ""),
            field("spec.scaling.decode.gpu.count", "GPUs per worker", Holds::Number, ""),
            field("spec.scaling.decode.memory", "Memory per worker", Holds::Text, ""),
        ],
    },
    Group {
        title: "Advanced",
        open: false,
        fields: &[
            field(
                "spec.secrets.huggingFaceToken",
                "Secret with the Hugging Face token",
                Holds::Text,
                "name of the Secret, not the token",
            ),
            field(
                "spec.engine.contextLength",
                "Context length (tokens)",
                Holds::Number,
                "",
            ),
            field(
                "spec.engine.trustRemoteCode",
                "Trust remote code of the model",
                Holds::Flag,
                "",
            ),
            field(
                "spec.engine.args",
                "Engine arguments",
                Holds::Map,
                "one per line, such as max-num-seqs=64",
            ),
            field(
                "spec.nodeSelector",
                "Node selector",
                Holds::Map,
                "one per line: key=value",
            ),
            field("spec.env", "Environment", Holds::Yaml, "YAML list of name and value"),
            field("spec.tolerations", "Tolerations", Holds::Yaml, "YAML list"),
            field(
                "spec.provider.overrides",
                "Overrides",
                Holds::Yaml,
                "YAML, provider-specific settings",
            ),
        ],
    },
];

/// Every field that is a part of the spec.
pub fn fields() -> impl Iterator<Item = &'static Field> {
    GROUPS.iter().flat_map(|group| group.fields)
}

/// Errors by field path.
pub type Faults = BTreeMap<String, String>;

/// Writes the values of a form into an object. Empty values are removed from the object.
pub fn fill(object: &mut Value, form: &Pairs, fields: impl Iterator<Item = &'static Field>) -> Faults {
    let mut faults = Faults::new();
    for field in fields {
        match read(field, form.get(field.path).unwrap_or_default().trim()) {
            Ok(value) => put(object, field.path, value),
            Err(fault) => {
                faults.insert(field.path.to_owned(), fault);
            }
        }
    }
    faults
}

fn read(field: &Field, text: &str) -> Result<Option<Value>, String> {
    if text.is_empty() {
        return Ok(None);
    }
    Ok(Some(match field.holds {
        Holds::Text | Holds::Choice(_) => json!(text),
        Holds::Number => json!(text.parse::<i64>().map_err(|_| format!("'{text}' is not an integer"))?),
        Holds::Flag => json!(true),
        Holds::Map => Value::Object(map(text)?),
        Holds::Yaml => serde_saphyr::from_str(text).map_err(|e| format!("invalid YAML: {e}"))?,
    }))
}

fn map(text: &str) -> Result<Map<String, Value>, String> {
    let lines = text.lines().map(str::trim).filter(|line| !line.is_empty());
    lines
        .map(|line| {
            let (name, value) = line.split_once('=').unwrap_or((line, ""));
            let name = name.trim();
            if name.is_empty() {
                return Err(format!("'{line}' has no key before the ="));
            }
            Ok((name.to_owned(), json!(value.trim())))
        })
        .collect()
}

/// Sets a value by its path, or removes it and parents that become empty.
pub fn put(object: &mut Value, path: &str, value: Option<Value>) {
    let (first, rest) = path
        .split_once('.')
        .map_or((path, None), |(first, rest)| (first, Some(rest)));
    let Some(map) = object.as_object_mut() else { return };
    match (rest, value) {
        (None, Some(value)) => {
            map.insert(first.to_owned(), value);
        }
        (None, None) => {
            map.remove(first);
        }
        (Some(rest), Some(value)) => {
            let inner = map.entry(first).or_insert_with(|| json!({}));
            if !inner.is_object() {
                *inner = json!({});
            }
            put(inner, rest, Some(value));
        }
        (Some(rest), None) => {
            let Some(inner) = map.get_mut(first) else { return };
            put(inner, rest, None);
            if inner.as_object().is_some_and(Map::is_empty) && path != "spec" {
                map.remove(first);
            }
        }
    }
}

/// Validates a name or a namespace, depending on `path`.
///
/// # Errors
/// The text is not a valid name.
pub fn check_name(path: &str, text: &str) -> Result<(), Invalid> {
    match path {
        "metadata.namespace" => text.parse::<Namespace>().map(drop),
        _ => text.parse::<Name>().map(drop),
    }
}

/// Puts an empty object where there is none, by a JSON pointer.
pub fn keep(object: &mut Value, pointer: &str) {
    let (above, name) = pointer.rsplit_once('/').unwrap_or_default();
    if let Some(map) = object.pointer_mut(above).and_then(Value::as_object_mut) {
        map.entry(name).or_insert_with(|| json!({}));
    }
}

/// A path as JSON has it.
pub fn pointer(path: &str) -> String {
    format!("/{}", path.replace('.', "/"))
}

/// Value of a field as text for the form.
pub fn shown(object: &Value, field: &Field) -> String {
    match (object.pointer(&pointer(field.path)), field.holds) {
        (None | Some(Value::Null), _) => String::new(),
        (Some(Value::Bool(flag)), Holds::Flag) => {
            if *flag {
                "true".to_owned()
            } else {
                String::new()
            }
        }
        (Some(Value::String(text)), _) => text.clone(),
        (Some(Value::Object(map)), Holds::Map) => map
            .iter()
            .map(|(name, value)| format!("{name}={}", value.as_str().unwrap_or_default()))
            .collect::<Vec<_>>()
            .join("\n"),
        (Some(value), Holds::Yaml) => serde_saphyr::to_string(value).unwrap_or_default(),
        (Some(value), _) => value.to_string(),
    }
}

/// Violations as faults of their fields.
pub fn placed(violations: &[Violation]) -> Faults {
    let mut faults = Faults::new();
    for violation in violations {
        mark(&mut faults, &violation.field, &violation.message);
    }
    faults
}

/// Assigns causes of a rejection to fields. False if the API server names no field.
pub fn place_status(status: &Status, faults: &mut Faults) -> bool {
    let details = status.details.as_ref();
    let causes = details.map(|d| d.causes.as_slice()).unwrap_or_default();
    for cause in causes.iter().filter(|cause| !cause.field.is_empty()) {
        mark(faults, &cause.field, &cause.message);
    }
    if status.reason == "AlreadyExists" {
        mark(faults, "metadata.name", "a ModelDeployment of this name already exists");
    }
    if let Some(missing) = details.filter(|d| status.reason == "NotFound" && d.kind == "namespaces") {
        let text = format!("namespace '{}' does not exist", missing.name);
        mark(faults, "metadata.namespace", &text);
    }
    !faults.is_empty()
}

/// A fault of the field at a path, or of the one that holds it, or of the first below it; of the whole form, if there is none.
/// Returns the path of that field.
pub fn mark(faults: &mut Faults, path: &str, message: &str) -> &'static str {
    let all = || IDENTITY.iter().chain(fields());
    // A fault within a map or list is a fault of the field that holds it; one of a whole object is the first of its fields.
    let holder = all().filter(|f| {
        path == f.path || path.starts_with(&format!("{}.", f.path)) || path.starts_with(&format!("{}[", f.path))
    });
    let below = all().find(|f| !path.is_empty() && f.path.starts_with(&format!("{path}.")));
    let home = holder.max_by_key(|f| f.path.len()).or(below).map_or("", |f| f.path);
    let said = faults.entry(home.to_owned()).or_default();
    if !said.contains(message) {
        if !said.is_empty() {
            said.push_str("; ");
        }
        said.push_str(message);
    }
    home
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_form_writes_what_it_has_and_leaves_the_rest() {
        let form = Pairs::parse(b"spec.model.id=org%2Fa&spec.engine.type=vllm&spec.scaling.replicas=0&spec.engine.args=a=1%0Ab&spec.resources.gpu.count=x");
        let mut object =
            json!({"spec": {"model": {"id": "old", "servedName": "gone"}, "podTemplate": {"metadata": {}}}});
        let faults = fill(&mut object, &form, fields());
        assert_eq!(faults.into_keys().collect::<Vec<_>>(), ["spec.resources.gpu.count"]);
        let expected = json!({"spec": {
            "model": {"id": "org/a"},
            "engine": {"type": "vllm", "args": {"a": "1", "b": ""}},
            "scaling": {"replicas": 0},
            "podTemplate": {"metadata": {}},
        }});
        assert_eq!(object, expected);
    }

    #[test]
    fn shown_values_are_the_sent_values() {
        let object = json!({"spec": {"scaling": {"replicas": 0}, "engine": {"args": {"a": "1", "b": ""}, "trustRemoteCode": true}, "env": [{"name": "A", "value": "b"}]}});
        let pairs = fields().map(|f| (f.path.to_owned(), shown(&object, f))).collect();
        let mut again = json!({});
        assert_eq!(fill(&mut again, &Pairs(pairs), fields()), Faults::new());
        assert_eq!(again, object);
    }

    #[test]
    fn every_fault_finds_a_field() {
        let mut faults = Faults::new();
        for path in [
            "spec.model.id",
            "spec.env[0].name",
            "spec.engine.args.x",
            "spec.scaling.prefill",
            "spec.podTemplate",
        ] {
            mark(&mut faults, path, "wrong");
        }
        let homes: Vec<&str> = faults.keys().map(String::as_str).collect();
        assert_eq!(
            homes,
            [
                "",
                "spec.engine.args",
                "spec.env",
                "spec.model.id",
                "spec.scaling.prefill.replicas"
            ]
        );
    }
}
