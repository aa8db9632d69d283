//! vLLM with one of KAITO's presets: the model's ID, and flags in a ConfigMap.

use std::collections::BTreeMap;
use std::fmt::Write;

use runway_provider::engine::{Flags, VLLM};
use runway_provider::flags::values;
use runway_provider::{CONFIG_MAP, Object, Request};
use serde_json::{Value, json};

use crate::compatible::Accepted;
use crate::flags;
use crate::objects::Inference;

/// Name of the ConfigMap with the engine flags of a ModelDeployment.
pub(crate) fn config_map_name(name: &str) -> String {
    format!("{name}-inference-config")
}

pub(crate) fn inference(request: &Request, accepted: &Accepted, model: &str) -> Inference {
    let flags = flags::of(request, accepted);
    let config_map = (!flags.values.is_empty()).then(|| config_map(request, &flags));
    let mut preset = json!({"name": model});
    if let Some(secret) = &request.token_secret {
        // The Secret's key must be HF_TOKEN (KAITO workspace_validation.go, InferenceSpec.validateCreate).
        preset["presetOptions"] = json!({"modelAccessSecret": secret});
    }
    let mut spec = json!({"preset": preset});
    if let Some(config_map) = &config_map {
        spec["config"] = json!(config_map.name);
    }
    Inference {
        spec,
        config_map,
        immutable: BTreeMap::from([
            ("secrets.huggingFaceToken".to_owned(), json!(request.token_secret)),
            // KAITO reads the file when a server starts, and does not restart servers after a change.
            ("engine flags".to_owned(), json!(flags.values)),
        ]),
        settings: BTreeMap::new(),
        model_name: Some(flags.served_name(&VLLM).unwrap_or_else(|| name_for_clients(model))),
        ignored: ignored(request, accepted, model)
            .into_iter()
            .chain(flags.ignored)
            .collect(),
    }
}

/// Settings without effect on a preset, each with the reason.
fn ignored(request: &Request, accepted: &Accepted, model: &str) -> Vec<String> {
    let mut ignored = Vec::new();
    if request.served_name_given {
        ignored.push(format!(
            "model.servedName is ignored: KAITO sets the names of its presets; clients must send '{}'",
            name_for_clients(model)
        ));
    }
    if let Some(gpu) = accepted.worker.gpu.as_ref().filter(|gpu| gpu.count > 1) {
        ignored.push(format!(
            "resources.gpu.count: {} is ignored beyond asking for GPUs: KAITO's presets take as many as KAITO estimates for the model; \
             tensor-parallel-size in engine.args sets how many vLLM uses",
            gpu.count
        ));
    }
    for (field, given) in [
        ("resources.memory", &accepted.worker.memory),
        ("resources.cpu", &accepted.worker.cpu),
    ] {
        if let Some(given) = given {
            ignored.push(format!(
                "{field}: {given} is ignored: KAITO sets the resources of its presets' pods"
            ));
        }
    }
    for (field, given) in [
        ("labels", &request.pod_labels),
        ("annotations", &request.pod_annotations),
    ] {
        if !given.is_empty() {
            let keys: Vec<_> = given.keys().map(String::as_str).collect();
            ignored.push(format!(
                "podTemplate.metadata.{field} ({}) are ignored: KAITO creates the pods of its presets; set spec.image to use your own container",
                keys.join(", ")
            ));
        }
    }
    ignored
}

/// Served name of a preset: the last part of the ID in lower case.
fn name_for_clients(model: &str) -> String {
    model.rsplit('/').next().unwrap_or(model).to_lowercase()
}

fn config_map(request: &Request, flags: &Flags) -> Object {
    Object {
        kind: CONFIG_MAP,
        version: "v1".to_owned(),
        name: config_map_name(&request.name),
        annotations: BTreeMap::new(),
        body: json!({"data": {"inference_config.yaml": config_file(flags)}}),
        immutable: BTreeMap::new(),
        not_rolled_out: BTreeMap::new(),
        reset: BTreeMap::new(),
    }
}

/// KAITO turns every entry of the section `vllm` into two arguments, `--KEY` and the value as Python prints it
/// (`presets/workspace/inference/vllm/inference_api.py`, KAITOArgumentParser.parse_args). Therefore
/// - texts stay texts: a quoted "08" or "{...}" arrives unchanged, a list or a map would not;
/// - a flag without a value is its own value, `--enforce-eager --enforce-eager`: the second has no effect. With `true`, the word
///   True would be left over, and vLLM does not start with two of them.
fn config_file(flags: &Flags) -> String {
    let mut text = "# KAITO passes each entry as two arguments: a flag without a value therefore stands for itself twice.\nvllm:\n".to_owned();
    for (key, given) in &flags.values {
        // Several values are refused.
        let value = match values(key, given).first() {
            Some(value) => scalar(value),
            None => quoted(&format!("--{key}")),
        };
        // Writing to a String cannot fail.
        let _ = writeln!(text, "  {}: {value}", mapping_key(key));
    }
    text
}

/// An unquoted number if Python prints it unchanged; otherwise a quoted text.
fn scalar(value: &str) -> String {
    let is_plain = value.parse::<i64>().is_ok_and(|n| n.to_string() == value)
        || (value.contains('.') && value.parse::<f64>().is_ok_and(|n| n.to_string() == value));
    if is_plain { value.to_owned() } else { quoted(value) }
}

/// A key that YAML could parse as another type is quoted.
fn mapping_key(key: &str) -> String {
    const WORDS: [&str; 9] = ["y", "n", "yes", "no", "on", "off", "true", "false", "null"];
    let is_plain = key.starts_with(|c: char| c.is_ascii_alphabetic())
        && key.bytes().all(|b| b.is_ascii_alphanumeric() || b"-_.".contains(&b))
        && !WORDS.contains(&key.to_ascii_lowercase().as_str());
    if is_plain { key.to_owned() } else { quoted(key) }
}

/// JSON strings are double-quoted YAML scalars, except for characters that YAML does not print or treats as a line break.
fn quoted(text: &str) -> String {
    let is_printable = |c: char| {
        !matches!(
            c,
            '\u{7f}'..='\u{9f}' | '\u{2028}' | '\u{2029}' | '\u{feff}' | '\u{fffe}' | '\u{ffff}'
        )
    };
    let json = Value::from(text).to_string();
    json.chars().fold(String::new(), |mut quoted, c| {
        if is_printable(c) {
            quoted.push(c);
        } else {
            // Writing to a String cannot fail.
            let _ = write!(quoted, "\\u{:04x}", u32::from(c));
        }
        quoted
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn any_key_and_value_are_read_back_as_they_were_given() {
        let texts = [
            "max-num-seqs",
            "a: b",
            "a #b",
            "a\nb: c",
            "- a",
            "a:",
            "yes",
            "No",
            "08",
            "1e3",
            "\"",
            "'",
            "{a",
            "[a",
            "a\tb",
            "*a",
            "&a",
            "!a",
            "%a",
            "@a",
            "`a",
            "? a",
            "| a",
            "ä",
            "\u{7f}",
            "\u{85}",
            "\u{2028}",
            "~",
            "<<",
            "a\\n",
        ];
        for text in texts {
            let values = [(text.to_owned(), text.to_owned())].into_iter().collect();
            let flags = Flags {
                values,
                ..Flags::default()
            };
            let file = config_file(&flags);
            let read: Value = serde_saphyr::from_str(&file).unwrap();
            assert_eq!(read, json!({ "vllm": { text: text } }), "{file}");
        }
    }
}
