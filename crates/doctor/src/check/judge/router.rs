//! The model router: the administrator's limits, and canaries.

use kube::ResourceExt as _;
use runway_api::{ModelDeployment, labels};
use runway_manifests::NAMESPACE;
use runway_manifests::router::{LIMITS, LIMITS_FILE};
use runway_router::limits::Rules;

use super::shared::unless_none;
use crate::check::{Check, Finding, Judged, Observed};

pub(super) const CHECKS: &[Check] = &[
    Check {
        id: "router-limits",
        title: "limits of the model router are valid",
        looks_at: "Each rule in the ConfigMap kubeairunway-router-limits. The router skips a rule that is not valid.",
        remedy: "kubectl -n kubeairunway-system edit configmap kubeairunway-router-limits",
        judge: Some(limits),
    },
    Check {
        id: "router-canaries",
        title: "each canary gets requests",
        looks_at: "Annotations of canaries: the model exists and is not a canary itself, the weight is a number up to 100, and all weights of a model add up to 100 at most.",
        remedy: "correct the annotations kubeairunway.ai/canary-for and kubeairunway.ai/canary-weight, or delete the canary",
        judge: Some(canaries),
    },
];

fn limits(observed: &Observed) -> Judged {
    let maps = observed.configmaps()?;
    let found = maps.iter().find(|map| map.name_any() == LIMITS);
    unless_none(&Vec::from_iter(found), "limits of the model router")?;
    let data = found.and_then(|map| map.data.as_ref());
    let subject = format!("ConfigMap {NAMESPACE}/{LIMITS}");
    let Some(text) = data.and_then(|data| data.get(LIMITS_FILE)) else {
        return Ok(vec![Finding::error(
            subject,
            format!("has no key {LIMITS_FILE}: there are no limits"),
        )]);
    };
    Ok(match Rules::read(text) {
        Err(error) => vec![Finding::error(subject, format!("cannot be read: {error}"))],
        Ok(rules) => {
            let skipped = rules.skipped.into_iter();
            let finding = |(place, invalid)| Finding::error(subject.clone(), format!("limits[{place}]: {invalid}"));
            skipped.map(finding).collect()
        }
    })
}

fn canaries(observed: &Observed) -> Judged {
    let models = observed.models()?;
    let canaries = models
        .iter()
        .filter_map(|md| Some((md, labels::canary_for(&md.metadata)?)));
    let canaries: Vec<(&ModelDeployment, &str)> = canaries.collect();
    unless_none(&canaries, "canaries")?;
    let weight = |md: &ModelDeployment| u32::from(labels::canary_weight(&md.metadata));
    let all = |namespace: Option<String>, name: &str| -> u32 {
        let same = canaries
            .iter()
            .filter(|(md, of)| md.namespace() == namespace && *of == name);
        same.map(|(md, _)| weight(md)).sum()
    };
    let obstacle = |(canary, name): &(&ModelDeployment, &str)| {
        let is_it = |md: &&ModelDeployment| md.namespace() == canary.namespace() && md.name_any() == *name;
        let written = canary.annotations().get(labels::CANARY_WEIGHT);
        match models.iter().find(is_it) {
            None => Some(format!(
                "a canary of '{name}', which does not exist: it gets no requests"
            )),
            Some(md) if labels::canary_for(&md.metadata).is_some() => Some(format!(
                "a canary of '{name}', which is a canary itself: it gets no requests"
            )),
            Some(_) if weight(canary) == 0 && written.is_some_and(|written| written != "0") => {
                Some("the weight is not a number from 0 to 100: it gets no requests".to_owned())
            }
            Some(_) if all(canary.namespace(), name) > 100 => Some(format!(
                "the weights of the canaries of '{name}' add up to more than 100 %"
            )),
            Some(_) => None,
        }
    };
    let found = canaries.iter().filter_map(|one| {
        let subject = format!(
            "ModelDeployment {}/{}",
            one.0.namespace().unwrap_or_default(),
            one.0.name_any()
        );
        Some(Finding::warning(subject, obstacle(one)?))
    });
    Ok(found.collect())
}
