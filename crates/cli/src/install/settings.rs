//! Settings of an installation: `--set` and `--settings` of `provider install`.

use std::path::Path;
use std::sync::Arc;

use kube::core::DynamicObject;
use kube::{Api, Resource};
use runway_api::InferenceProviderConfig;
use runway_provider::{Configured, Provider};
use serde_json::{Map, Value, json};

use super::Error;
use super::args::SettingsArgs;
use super::survey::Survey;

/// The part of a provider's InferenceProviderConfig that the settings change; `None` if none are given. Without it an
/// installation keeps the settings that are there.
///
/// # Errors
/// The cluster or a file cannot be read, or the provider does not accept the settings.
pub(super) async fn registration(
    args: &SettingsArgs,
    provider: Arc<dyn Provider>,
    survey: &Survey<'_>,
) -> Result<Option<DynamicObject>, Error> {
    if args.is_empty() {
        return Ok(None);
    }
    let name = provider.name();
    let mut settings = match &args.file {
        Some(file) => read(file)?,
        None => live(survey, name).await?,
    };
    let schema = provider
        .settings()
        .map(|settings| settings.schema().as_value().clone())
        .unwrap_or_default();
    for (path, text) in &args.set {
        set(&mut settings, &schema, &steps(path), text);
    }
    if let Some(invalid) = Configured::new(provider, Some(&settings)).invalid {
        return Err(Error::ProviderSettings {
            name: name.to_owned(),
            invalid,
        });
    }
    let object = json!({
        "apiVersion": InferenceProviderConfig::api_version(&()),
        "kind": InferenceProviderConfig::kind(&()),
        "metadata": { "name": name },
        "spec": { "settings": settings },
    });
    let object = serde_json::from_value(object).map_err(|error| Error::File(error.to_string()))?;
    Ok(Some(object))
}

/// The settings in the cluster.
async fn live(survey: &Survey<'_>, name: &str) -> Result<Map<String, Value>, Error> {
    let api: Api<InferenceProviderConfig> = Api::all(survey.client());
    let found = api.get_opt(name).await;
    let found = found.map_err(|e| survey.failed(e, format!("read InferenceProviderConfig/{name}")))?;
    Ok(found.and_then(|config| config.spec.settings).unwrap_or_default())
}

fn read(file: &Path) -> Result<Map<String, Value>, Error> {
    let shown = file.display();
    let text = std::fs::read_to_string(file).map_err(|error| Error::File(format!("cannot read {shown}: {error}")))?;
    serde_saphyr::from_str(&text).map_err(|error| Error::File(format!("cannot parse settings in {shown}: {error}")))
}

/// Steps of a path, such as `nodeLabels.gpu.nvidia\.com/gpu\.present`: a backslash before a dot makes it a part of the name.
fn steps(path: &str) -> Vec<String> {
    let mut steps = vec![String::new()];
    let mut characters = path.chars().peekable();
    while let Some(character) = characters.next() {
        match (character, steps.last_mut()) {
            ('\\', Some(step)) if characters.peek() == Some(&'.') => step.extend(characters.next()),
            ('.', _) => steps.push(String::new()),
            (_, Some(step)) => step.push(character),
            (_, None) => {}
        }
    }
    steps
}

/// Sets a value. `null` removes it. Where the schema has a string, the text is the value; elsewhere it is YAML.
fn set(settings: &mut Map<String, Value>, schema: &Value, path: &[String], text: &str) {
    let Some((first, rest)) = path.split_first() else {
        return;
    };
    let schema = match &schema["properties"][first] {
        Value::Null => &schema["additionalProperties"],
        known => known,
    };
    if !rest.is_empty() {
        let inner = settings.entry(first).or_insert_with(|| json!({}));
        if !inner.is_object() {
            *inner = json!({});
        }
        if let Some(inner) = inner.as_object_mut() {
            set(inner, schema, rest, text);
        }
        return;
    }
    if text == "null" {
        settings.remove(first);
        return;
    }
    let value = serde_saphyr::from_str(text)
        .ok()
        .filter(|_| !is_text(schema))
        .unwrap_or_else(|| text.into());
    settings.insert(first.clone(), value);
}

fn is_text(schema: &Value) -> bool {
    match &schema["type"] {
        Value::Array(types) => types.iter().any(|known| known == "string"),
        known => known == "string",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn after(mut settings: Value, set_to: &[(&str, &str)]) -> Value {
        let provider = runway_provider_kaito::Kaito::default();
        let schema = provider.settings().unwrap().schema().as_value().clone();
        let given = settings.as_object_mut().unwrap();
        for (path, text) in set_to {
            set(given, &schema, &steps(path), text);
        }
        settings
    }

    #[test]
    fn values_have_the_types_of_the_schema() {
        assert_eq!(
            after(
                json!({"images": {"vllm": "a:1"}}),
                &[
                    ("nodeProvisioning", "Auto"),
                    ("images.llamacpp", "b:2"),
                    (r"nodeLabels.gpu.nvidia\.com/gpu\.present", "true"),
                    ("imagePullSecrets", "[one, two]"),
                ],
            ),
            json!({
                "images": {"vllm": "a:1", "llamacpp": "b:2"},
                "nodeProvisioning": "Auto",
                "nodeLabels": {"gpu": {"nvidia.com/gpu.present": "true"}},
                "imagePullSecrets": ["one", "two"],
            })
        );
    }

    #[test]
    fn null_removes_a_setting() {
        assert_eq!(
            after(json!({"images": {"vllm": "a:1"}}), &[("images.vllm", "null")]),
            json!({"images": {}})
        );
    }
}
