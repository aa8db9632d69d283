//! ModelDeployments from the samples, as the core hands them over, and clusters with them.

use std::collections::BTreeMap;

use jiff::SignedDuration;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use runway_api::condition::{self, Conditions, Draft, no, yes};
use runway_api::model_deployment::{Phase, ProviderStatus};
use runway_api::{CoreReason, ModelDeployment, ModelDeploymentStatus, labels};
use serde_json::{Value, json};

use super::cluster::Cluster;
use super::{RuleResult, Samples, ensure};
use crate::contract::{Provider, Refusal, Translation};
use crate::request::Request;
use crate::upstream::Installed;

/// One run of the suite.
pub(super) struct Trial<'a> {
    pub(super) provider: &'a dyn Provider,
    pub(super) samples: &'a Samples,
}

impl<'a> Trial<'a> {
    /// Patches of the served sample that the provider may have to translate, the empty one first.
    pub(super) fn variants(&self) -> Vec<Value> {
        let samples = self.samples;
        let named = samples
            .identity
            .iter()
            .chain(&samples.recreates)
            .map(|(_, patch)| patch);
        std::iter::once(&json!({}))
            .chain(named)
            .chain(&samples.updates)
            .cloned()
            .collect()
    }

    /// Variants that the provider supports, with their translations.
    pub(super) fn translations(&self) -> Result<Vec<(Request, Translation)>, String> {
        let mut all = Vec::new();
        for patch in self.variants() {
            let request = self.request(&patch)?;
            match self.translate(&request) {
                Ok(translation) => all.push((request, translation)),
                Err(refusal) if patch == json!({}) => {
                    return Err(format!("samples: the served one is refused: {refusal}"));
                }
                Err(_) => {}
            }
        }
        Ok(all)
    }

    pub(super) fn installed(&self) -> Installed {
        Installed::newest(
            &self
                .provider
                .upstreams()
                .into_iter()
                .filter(|u| !u.kind.is_built_in())
                .collect::<Vec<_>>(),
        )
    }

    pub(super) fn translate(&self, request: &Request) -> Result<Translation, Refusal> {
        self.provider.translate(request, &self.installed())
    }

    /// The request for a patch of the served sample.
    pub(super) fn request(&self, patch: &Value) -> Result<Request, String> {
        Request::try_from(&self.md(patch)?)
            .map_err(|invalid| format!("samples: {patch} is not a valid request: {invalid}"))
    }

    /// A patch of the served sample, as the core hands it over.
    pub(super) fn md(&self, patch: &Value) -> Result<ModelDeployment, String> {
        let mut document = self.samples.served.clone();
        merge(&mut document, patch);
        let mut md: ModelDeployment = serde_json::from_value(document)
            .map_err(|error| format!("samples: {patch} gives no ModelDeployment: {error}"))?;
        ensure!(
            md.metadata.name.is_some(),
            "samples: the served ModelDeployment has no name"
        );
        md.metadata.namespace.get_or_insert_with(|| "default".to_owned());
        md.metadata.uid = Some("md-uid".to_owned());
        md.metadata.generation = Some(1);
        md.metadata.resource_version = Some("1".to_owned());
        md.metadata.finalizers = Some(vec![labels::FINALIZER.to_owned()]);
        md.status = Some(ModelDeploymentStatus {
            provider: Some(ProviderStatus {
                name: Some(self.provider.name().to_owned()),
                selected_reason: Some("explicit provider selection".to_owned()),
                ..ProviderStatus::default()
            }),
            ..ModelDeploymentStatus::default()
        });
        validate(&mut md);
        Ok(md)
    }

    /// A cluster with a new ModelDeployment.
    pub(super) fn fresh(&self, patch: &Value) -> Result<Cluster<'a>, String> {
        Ok(Cluster::new(self.provider, self.md(patch)?, self.installed()))
    }

    /// A cluster with all objects, before the upstream has reported anything.
    pub(super) fn made(&self) -> Result<Cluster<'a>, String> {
        let mut cluster = self.fresh(&json!({}))?;
        cluster.settle()?;
        ensure!(
            !cluster.upstream_objects().is_empty(),
            "nothing was made for the served sample: {}",
            said(&cluster)
        );
        Ok(cluster)
    }

    /// A cluster with a model that serves.
    pub(super) fn running(&self) -> Result<Cluster<'a>, String> {
        let mut cluster = self.made()?;
        self.becomes_ready(&mut cluster)?;
        cluster.heard();
        Ok(cluster)
    }

    /// The upstream becomes ready, and the provider observes it.
    pub(super) fn becomes_ready(&self, cluster: &mut Cluster) -> RuleResult {
        cluster.upstream_says(self.samples.ready);
        cluster.settle()?;
        ensure!(
            phase(cluster) == Some(Phase::Running),
            "the upstream object is ready, and yet the status is {}",
            said(cluster)
        );
        Ok(())
    }

    /// The user changes the spec, and the core accepts it.
    pub(super) fn change(&self, cluster: &mut Cluster, patch: &Value) -> RuleResult {
        let changed = self.md(patch)?;
        cluster.md.spec = changed.spec;
        cluster.md.metadata.generation = cluster.md.metadata.generation.map(|g| g + 1);
        validate(&mut cluster.md);
        Ok(())
    }
}

/// The core accepts the current generation.
pub(super) fn validate(md: &mut ModelDeployment) {
    decide(md, yes(condition::VALIDATED, "SpecValid", "Schema validation passed"));
}

/// The core rejects the current generation.
pub(super) fn reject(md: &mut ModelDeployment) {
    let invalid = no(
        condition::VALIDATED,
        CoreReason::ValidationFailed,
        "engine.type is required",
    );
    decide(md, invalid);
}

fn decide(md: &mut ModelDeployment, validated: Draft) {
    let at = jiff::Timestamp::constant(1_767_225_600, 0);
    let decided = condition::settle(vec![validated], &[], md.metadata.generation, at);
    let status = md.status.get_or_insert_default();
    status.conditions.retain(|c| c.type_ != condition::VALIDATED);
    status.conditions.extend(decided);
}

/// The user deletes the ModelDeployment.
pub(super) fn delete(cluster: &mut Cluster) {
    cluster.md.metadata.deletion_timestamp = Some(Time(cluster.now));
}

/// The user sets an annotation.
pub(super) fn annotate(cluster: &mut Cluster, key: &str, value: Option<&str>) {
    let annotations = cluster.md.metadata.annotations.get_or_insert_with(BTreeMap::new);
    match value {
        Some(value) => annotations.insert(key.to_owned(), value.to_owned()),
        None => annotations.remove(key),
    };
}

pub(super) fn minutes(minutes: i64) -> SignedDuration {
    SignedDuration::from_mins(minutes)
}

pub(super) fn phase(cluster: &Cluster) -> Option<Phase> {
    cluster.md.status.as_ref()?.phase
}

pub(super) fn message<'c>(cluster: &'c Cluster) -> &'c str {
    cluster
        .md
        .status
        .as_ref()
        .and_then(|s| s.message.as_deref())
        .unwrap_or_default()
}

/// Status and reason of a condition, such as `False UnknownUpstreamSchema`; empty if it is absent.
pub(super) fn condition_of(cluster: &Cluster, type_: &str) -> String {
    cluster
        .md
        .conditions()
        .get_condition(type_)
        .map(|c| format!("{} {}", c.status, c.reason))
        .unwrap_or_default()
}

/// Summary of the status, for the reason of a broken rule.
pub(super) fn said(cluster: &Cluster) -> String {
    format!("{:?}: {}", phase(cluster), message(cluster))
}

/// A JSON merge patch.
pub(super) fn merge(base: &mut Value, patch: &Value) {
    let Value::Object(patch) = patch else {
        base.clone_from(patch);
        return;
    };
    if !base.is_object() {
        *base = json!({});
    }
    for (key, value) in patch {
        if value.is_null() {
            if let Some(fields) = base.as_object_mut() {
                fields.remove(key);
            }
        } else {
            merge(&mut base[key.as_str()], value);
        }
    }
}
