//! Types for settings of an installation that several providers share, and the reason why settings are invalid.
//!
//! Settings are `spec.settings` of the provider's InferenceProviderConfig. Administrators own them; the provider reads them as a
//! type of its own ([`crate::contract::Settings`]), and predictions read the same.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::time::Duration;

use runway_api::model_deployment::ModelSource;
use runway_api::{Name, condition, syntax};
use schemars::JsonSchema;
use serde::de::Error as _;
use serde::{Deserialize, Deserializer};
use serde_json::{Map, Value, json};

use crate::request::Request;

/// Longest message about a value, in bytes. Parsers quote the value.
const MAX_MESSAGE: usize = 1024;

/// A setting that a provider does not accept.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("spec.settings{}{path}: {message}", if path.is_empty() { "" } else { "." })]
pub struct InvalidSettings {
    /// Path below `spec.settings`, such as `images.vllm`; empty for the settings as a whole.
    pub path: String,
    /// The value that was found, and what is allowed.
    pub message: String,
}

impl From<serde_path_to_error::Error<serde_json::Error>> for InvalidSettings {
    fn from(error: serde_path_to_error::Error<serde_json::Error>) -> Self {
        let path = error.path().to_string();
        Self {
            path: if path == "." { String::new() } else { path },
            message: condition::shorten(error.inner().to_string(), MAX_MESSAGE),
        }
    }
}

/// Settings that the loop reads for every provider, beside the provider's own.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub(crate) struct CommonSettings {
    /// Seconds in which a model has to answer the request that it is sent after its rollout, from 1 to 3600. The limit doubles with
    /// each attempt, up to an hour. Default: 10.
    #[schemars(range(min = 1, max = 3600))]
    answer_timeout_seconds: AnswerTimeout,
}

impl CommonSettings {
    /// Takes the common settings out of those of an installation.
    pub(crate) fn split(settings: Option<&Map<String, Value>>) -> Result<(Self, Map<String, Value>), InvalidSettings> {
        let known = Self::properties();
        let (common, own) = settings
            .into_iter()
            .flatten()
            .map(|(key, value)| (key.clone(), value.clone()))
            .partition::<Vec<_>, _>(|(key, _)| known.contains_key(key));
        let common = Value::Object(common.into_iter().collect());
        Ok((serde_path_to_error::deserialize(&common)?, own.into_iter().collect()))
    }

    /// JSON schemas of the settings, by name.
    pub(crate) fn properties() -> Map<String, Value> {
        let schema = schemars::generate::SchemaSettings::openapi3()
            .with(|settings| settings.inline_subschemas = true)
            .into_generator()
            .into_root_schema_for::<Self>();
        let properties = schema.get("properties").and_then(Value::as_object);
        properties.cloned().unwrap_or_default()
    }

    /// Time limit of the first request to a model after its rollout.
    pub(crate) fn answer_timeout(&self) -> Duration {
        Duration::from_secs(u64::from(self.answer_timeout_seconds.0))
    }
}

/// A number of seconds from 1 to 3600.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(try_from = "u16")]
#[schemars(with = "u16")]
struct AnswerTimeout(u16);

impl Default for AnswerTimeout {
    fn default() -> Self {
        Self(10)
    }
}

impl TryFrom<u16> for AnswerTimeout {
    type Error = String;

    fn try_from(seconds: u16) -> Result<Self, String> {
        match seconds {
            1..=3600 => Ok(Self(seconds)),
            _ => Err(format!("{seconds} is not a number of seconds from 1 to 3600")),
        }
    }
}

/// Reference of an image, such as `registry.example.com/team/vllm:v1`.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(try_from = "String")]
#[schemars(with = "String")]
pub struct Image(String);

impl TryFrom<String> for Image {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        let (name, _) = text.split_once('@').unwrap_or((&text, ""));
        let is_reference = !name.is_empty()
            && text.len() <= 512
            && !name.starts_with(['/', ':'])
            && text
                .chars()
                .all(|c| c.is_ascii_alphanumeric() || matches!(c, '.' | '_' | '-' | '/' | ':' | '@'));
        if is_reference {
            Ok(Self(text))
        } else {
            Err(format!(
                "'{text}' is not an image, such as registry.example.com/team/vllm:v1"
            ))
        }
    }
}

/// A request with the default image of its engine, if it has none. A model in an image needs an image of its own.
pub fn with_image<'a>(request: &'a Request, default: Option<&Image>) -> Cow<'a, Request> {
    let image = default.filter(|_| request.image.is_none() && request.source == ModelSource::Huggingface);
    match image {
        None => Cow::Borrowed(request),
        Some(image) => Cow::Owned(Request {
            image: Some(image.0.clone()),
            ..request.clone()
        }),
    }
}

/// Registry with copies of public images, such as `registry.example.com/mirror`. It replaces the registry in the name of a
/// default image: `ghcr.io/org/name:tag` becomes `registry.example.com/mirror/org/name:tag`.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(try_from = "String")]
#[schemars(with = "String")]
pub struct Mirror(String);

impl Mirror {
    /// A default image, or its copy if there is a mirror.
    pub fn of_default<'a>(mirror: Option<&Self>, image: &'a str) -> Cow<'a, str> {
        mirror.map_or(Cow::Borrowed(image), |mirror| mirror.of(image).into())
    }

    /// The copy of an image. An image without a registry is on Docker Hub, where one without an organization is in `library`.
    pub fn of(&self, image: &str) -> String {
        let path = match image.split_once('/') {
            Some((host, path)) if host.contains(['.', ':']) || host == "localhost" => path.to_owned(),
            Some(_) => image.to_owned(),
            None => format!("library/{image}"),
        };
        format!("{}/{path}", self.0)
    }
}

impl TryFrom<String> for Mirror {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        let is_prefix = !text.is_empty()
            && text.len() <= 255
            && !text.contains("//")
            && !text.starts_with('/')
            && !text.ends_with('/')
            && text
                .chars()
                .all(|c| c.is_ascii_alphanumeric() || matches!(c, '.' | '_' | '-' | '/' | ':'));
        if is_prefix {
            Ok(Self(text))
        } else {
            Err(format!(
                "'{text}' is not a registry, such as registry.example.com/mirror, without a scheme and a slash at the end"
            ))
        }
    }
}

/// Labels of the nodes on which models run. In both lists, labels in `spec.nodeSelector` of a ModelDeployment take precedence.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct NodeLabels {
    /// Labels of the nodes for pods with GPUs, such as `nvidia.com/gpu.present: "true"`. None by default.
    #[serde(deserialize_with = "labels")]
    pub gpu: BTreeMap<String, String>,
    /// Labels of the nodes for pods without GPUs. None by default.
    #[serde(deserialize_with = "labels")]
    pub cpu: BTreeMap<String, String>,
}

impl NodeLabels {
    /// Node selector of a pod with GPUs or without: these labels, and the given ones, which take precedence.
    pub fn selector(&self, gpu: bool, given: &BTreeMap<String, String>) -> BTreeMap<String, String> {
        let mut all = if gpu { self.gpu.clone() } else { self.cpu.clone() };
        all.extend(given.clone());
        all
    }
}

fn labels<'de, D: Deserializer<'de>>(deserializer: D) -> Result<BTreeMap<String, String>, D::Error> {
    let given = BTreeMap::<String, String>::deserialize(deserializer)?;
    let wrong = given
        .iter()
        .find(|(key, value)| !syntax::is_key(key) || !syntax::is_label_value(value));
    match wrong {
        None => Ok(given),
        Some((key, value)) => Err(D::Error::custom(format!(
            "'{key}: {value}' is not a label, such as nvidia.com/gpu.present: \"true\""
        ))),
    }
}

/// Names of Secrets with credentials for registries, as in a pod's `imagePullSecrets`. They must exist in the namespace of each
/// model.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(transparent)]
#[schemars(with = "Vec<String>")]
pub struct PullSecrets(Vec<Name>);

impl PullSecrets {
    /// As in a pod's spec.
    pub fn references(&self) -> Vec<Value> {
        self.0.iter().map(|name| json!({"name": name.as_str()})).collect()
    }
}
