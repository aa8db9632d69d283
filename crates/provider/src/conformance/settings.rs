//! R38: settings of the installation.

use runway_api::condition;
use runway_api::model_deployment::Phase;
use serde_json::{Map, Value, json};

use super::trial::{Trial, condition_of, phase, said};
use super::{RuleResult, ensure};
use crate::configured::configure;
use crate::settings::InvalidSettings;

/// A name that no provider uses.
const UNKNOWN: &str = "noProviderHasThisSetting";

/// An unknown setting is rejected with its name, and administrators find every setting described.
pub(super) fn r38_an_unknown_setting_is_rejected(trial: &Trial) -> RuleResult {
    ensure!(
        trial.provider.registration().settings.is_none(),
        "registration() has settings, which administrators own"
    );
    let given = Map::from_iter([(UNKNOWN.to_owned(), json!(true))]);
    match configure(trial.provider, Some(&given)) {
        Ok(_) => return Err(format!("the unknown setting {UNKNOWN} is accepted")),
        Err(invalid) => ensure!(
            invalid.to_string().contains(UNKNOWN),
            "the setting {UNKNOWN} is rejected without its name: {invalid}"
        ),
    }
    let Some(settings) = trial.provider.settings() else {
        return Ok(());
    };
    undescribed(settings.schema().as_value(), "spec.settings")
        .map_or(Ok(()), |path| Err(format!("{path} has no description")))
}

/// The first setting without a description.
fn undescribed(schema: &Value, path: &str) -> Option<String> {
    let properties = schema["properties"].as_object().into_iter().flatten();
    properties.into_iter().find_map(|(name, inner)| {
        let path = format!("{path}.{name}");
        if inner["description"].as_str().is_none_or(str::is_empty) {
            return Some(path);
        }
        undescribed(inner, &path)
    })
}

/// With invalid settings, models that run are left alone, and new ones wait until the settings are valid.
pub(super) fn r38_invalid_settings_change_no_model(trial: &Trial) -> RuleResult {
    let invalid = InvalidSettings {
        path: UNKNOWN.to_owned(),
        message: "unknown setting".to_owned(),
    };
    let mut running = trial.running()?;
    running.invalid_settings = Some(invalid.clone());
    let before = running.objects.clone();
    running.settle()?;
    ensure!(running.objects == before, "objects of a running model changed");
    let reported = (
        condition_of(&running, condition::PROVIDER_COMPATIBLE),
        condition_of(&running, condition::READY),
    );
    ensure!(
        reported.0 == "False SettingsInvalid" && reported.1.starts_with("True "),
        "expected ProviderCompatible False SettingsInvalid and Ready True for a running model, found {reported:?}"
    );
    let mut fresh = trial.fresh(&json!({}))?;
    fresh.invalid_settings = Some(invalid);
    fresh.settle()?;
    ensure!(fresh.objects.is_empty(), "something was created with invalid settings");
    ensure!(
        phase(&fresh) == Some(Phase::Pending) && said(&fresh).contains(UNKNOWN),
        "expected phase Pending and the name of the setting, found {}",
        said(&fresh)
    );
    fresh.invalid_settings = None;
    fresh.settle()?;
    ensure!(
        !fresh.objects.is_empty(),
        "the settings became valid, and nothing was created: {}",
        said(&fresh)
    );
    Ok(())
}
