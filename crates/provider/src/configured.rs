//! A provider as an installation configures it: the same in its controller and in predictions.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use serde_json::{Map, Value};

use crate::contract::Provider;
use crate::settings::{CommonSettings, InvalidSettings};

/// Maximum size of all settings as JSON, in bytes.
const MAX_SIZE: usize = 64 * 1024;

/// A provider as an installation configures it.
#[derive(Clone)]
pub struct Configured {
    /// The provider with the settings of the installation; without any if they are invalid.
    pub provider: Arc<dyn Provider>,
    /// The reason why the settings are not used.
    pub invalid: Option<InvalidSettings>,
    /// Time limit of the first request to a model after its rollout.
    pub answer_timeout: Duration,
}

impl Configured {
    /// A provider with `spec.settings` of its InferenceProviderConfig.
    pub fn new(provider: Arc<dyn Provider>, settings: Option<&Map<String, Value>>) -> Self {
        match configure(provider.as_ref(), settings) {
            Ok((configured, common)) => Self {
                provider: configured.unwrap_or(provider),
                invalid: None,
                answer_timeout: common.answer_timeout(),
            },
            Err(invalid) => Self {
                provider,
                invalid: Some(invalid),
                answer_timeout: CommonSettings::default().answer_timeout(),
            },
        }
    }
}

impl fmt::Debug for Configured {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Configured")
            .field("provider", &self.provider.name())
            .field("invalid", &self.invalid)
            .field("answer_timeout", &self.answer_timeout)
            .finish()
    }
}

/// The provider with these settings; `None` if there are none of its own. Common settings are returned beside it.
pub(crate) fn configure(
    provider: &dyn Provider,
    settings: Option<&Map<String, Value>>,
) -> Result<(Option<Arc<dyn Provider>>, CommonSettings), InvalidSettings> {
    let (common, given) = CommonSettings::split(settings)?;
    if given.is_empty() {
        return Ok((None, common));
    }
    let Some(known) = provider.settings() else {
        return Err(InvalidSettings {
            path: given.keys().next().cloned().unwrap_or_default(),
            message: format!("unknown setting: provider '{}' has no settings", provider.name()),
        });
    };
    let value = Value::Object(given);
    let size = value.to_string().len();
    if size > MAX_SIZE {
        return Err(InvalidSettings {
            path: String::new(),
            message: format!("{size} bytes of JSON, but at most {MAX_SIZE} are allowed"),
        });
    }
    Ok((Some(known.configure(&value)?), common))
}
