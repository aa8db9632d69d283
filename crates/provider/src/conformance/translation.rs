//! R13 to R18, R29 and R30: the translation.

use std::collections::BTreeSet;

use runway_api::model_deployment::Phase;
use runway_api::provider_config::{OverrideKey, OverrideType};
use runway_api::{condition, labels};
use serde_json::{Value, json};

use super::fields;
use super::trial::{Trial, condition_of, merge, message, phase, said};
use super::{RuleResult, ensure};
use crate::contract::{Refusal, Translation};

/// Number of repetitions of the same request.
const TIMES: usize = 8;

/// Both directions are pure: no clock, no randomness, no hash map order.
pub(super) fn r13_the_same_request_gives_the_same_translation(trial: &Trial) -> RuleResult {
    let refused = trial.samples.refused.iter().map(|(_, patch)| patch.clone());
    for patch in trial.variants().into_iter().chain(refused) {
        let request = trial.request(&patch)?;
        let first = trial.translate(&request);
        for _ in 1..TIMES {
            ensure!(
                trial.translate(&request) == first,
                "{patch} is translated differently from call to call"
            );
        }
    }
    let mut cluster = trial.made()?;
    let request = trial.request(&json!({}))?;
    for edit in [trial.samples.ready, trial.samples.failed] {
        cluster.upstream_says(edit);
        for stored in cluster.upstream_objects() {
            let first = trial.provider.read_status(&request, &stored.object);
            for _ in 1..TIMES {
                let again = trial.provider.read_status(&request, &stored.object);
                ensure!(
                    again == first,
                    "the same status is read differently from call to call: {first:?}, {again:?}"
                );
            }
        }
    }
    Ok(())
}

/// A refusal names the cause, creates nothing, and changes no existing object.
pub(super) fn r14_what_cannot_be_served_is_refused_with_the_way_out(trial: &Trial) -> RuleResult {
    ensure!(
        !trial.samples.refused.is_empty(),
        "samples: give at least one that is refused"
    );
    for (text, patch) in &trial.samples.refused {
        let mut cluster = trial.fresh(patch)?;
        cluster.settle()?;
        ensure!(
            cluster.objects.is_empty(),
            "{patch} is to be refused, and makes something"
        );
        is_reported(patch, text, &cluster)?;
        ensure!(
            cluster.heard().contains(&"ProviderIncompatible"),
            "{patch} is refused without an Event"
        );
        trial.change(&mut cluster, &json!({}))?;
        cluster.settle()?;
        ensure!(
            !cluster.objects.is_empty(),
            "{patch} was put right, and nothing is made: {}",
            said(&cluster)
        );

        let mut running = trial.running()?;
        let before = running.objects.clone();
        trial.change(&mut running, patch)?;
        running.settle()?;
        ensure!(
            running.objects == before,
            "{patch} is refused, and what was there is changed"
        );
        is_reported(patch, text, &running)?;
    }
    Ok(())
}

fn is_reported(patch: &Value, text: &str, cluster: &super::cluster::Cluster) -> RuleResult {
    ensure!(
        phase(cluster) == Some(Phase::Failed) && message(cluster).contains(text),
        "{patch} is to be refused with '{text}', and the status is {}",
        said(cluster)
    );
    for (type_, status) in [
        (condition::PROVIDER_COMPATIBLE, "False"),
        (condition::READY, "False"),
        (condition::STALLED, "True"),
    ] {
        let found = condition_of(cluster, type_);
        ensure!(
            found.starts_with(status),
            "{patch} is refused, and the condition {type_} is '{found}'"
        );
    }
    Ok(())
}

/// Each field of the spec changes the objects, is reported as ignored, or is refused.
pub(super) fn r15_no_field_is_dropped_without_a_word(trial: &Trial) -> RuleResult {
    for patch in trial.variants() {
        let request = trial.request(&patch)?;
        let Ok(plain) = trial.translate(&request) else { continue };
        let spec = json!(trial.md(&patch)?.spec);
        // The loop reports volumes that are not mounted. A source only takes away, and there may be nothing to take.
        let is_tried = |path: &str| path != "model.source" && !path.starts_with("model.storage.");
        for field in fields::ALL {
            if !is_tried(field.path) || !field.is_translated() || !field.applies_to(&spec) {
                continue;
            }
            let mut with = spec.clone();
            field.set(&mut with);
            let mut both = patch.clone();
            merge(&mut both, &json!({ "spec": with }));
            let asked = trial.request(&both)?;
            let changed = asked != request;
            let outcome = trial.translate(&asked);
            ensure!(
                !changed || outcome.as_ref() != Ok(&plain),
                "with {patch}, spec.{} changes nothing and is not in Translation::ignored",
                field.path
            );
            if let Ok(Translation { ignored, .. }) = outcome {
                ensure!(
                    ignored.iter().all(|text| !text.trim().is_empty()),
                    "with {patch}, spec.{} is ignored without a text",
                    field.path
                );
            }
        }
    }
    for patch in trial.variants() {
        let Ok(translation) = trial.translate(&trial.request(&patch)?) else {
            continue;
        };
        let mut cluster = trial.fresh(&patch)?;
        cluster.settle()?;
        let noted = condition_of(&cluster, condition::FIELDS_IGNORED);
        ensure!(
            noted.is_empty() == translation.ignored.is_empty(),
            "{patch} ignores {:?}, and the condition FieldsIgnored is '{noted}'",
            translation.ignored
        );
    }
    Ok(())
}

/// Unknown keys cause a warning, wrong types fail with the path, and every documented key has an effect.
pub(super) fn r16_overrides_are_an_allow_list(trial: &Trial) -> RuleResult {
    let plain = trial
        .translate(&trial.request(&json!({}))?)
        .map_err(|refusal| format!("samples: {refusal}"))?;
    let unknown = overrides("probeUnknown.key", &json!(1));
    let mut cluster = trial.fresh(&unknown)?;
    cluster.settle()?;
    ensure!(
        condition_of(&cluster, condition::OVERRIDES_IGNORED) == "True UnknownKeys"
            && cluster.heard().contains(&"OverridesIgnored"),
        "an unknown override is ignored without a word"
    );
    let same = trial.translate(&trial.request(&unknown)?);
    ensure!(
        same.as_ref() == Ok(&plain),
        "an override that is not registered changes the translation"
    );

    for OverrideKey { path, kind, .. } in trial.provider.registration().overrides.unwrap_or_default() {
        let (right, wrong) = match kind {
            OverrideType::String => (vec![json!("probe")], json!(7)),
            OverrideType::Integer => (vec![json!(7)], json!("seven")),
            OverrideType::Boolean => (vec![json!(true), json!(false)], json!("yes")),
            OverrideType::StringMap => (vec![json!({"probe": "1"})], json!({"probe": 1})),
        };
        let mut has_effect = false;
        for value in right {
            has_effect |= trial.translate(&trial.request(&overrides(&path, &value))?) != Ok(plain.clone());
        }
        ensure!(has_effect, "the override {path} is registered and does nothing");
        let mut cluster = trial.fresh(&overrides(&path, &wrong))?;
        cluster.settle()?;
        ensure!(
            condition_of(&cluster, condition::PROVIDER_COMPATIBLE) == "False InvalidOverrides"
                && message(&cluster).contains(&path)
                && cluster.objects.is_empty(),
            "{path}: {wrong} has the wrong type, and the status is {}",
            said(&cluster)
        );
    }
    Ok(())
}

/// A patch that sets one override by its dotted path.
fn overrides(path: &str, value: &Value) -> Value {
    let nested = path.rsplit('.').fold(value.clone(), |inner, key| json!({key: inner}));
    json!({"spec": {"provider": {"overrides": nested}}})
}

/// An object that is not listed is not watched, and would be neither reverted nor deleted.
pub(super) fn r17_children_lists_every_object(trial: &Trial) -> RuleResult {
    for (request, translation) in trial.translations()? {
        let children = trial.provider.children(&request.name);
        ensure!(
            children == trial.provider.children(&request.name),
            "children() differs from call to call"
        );
        let mut seen = BTreeSet::new();
        for object in &translation.objects {
            ensure!(
                children.iter().any(|c| c.kind == object.kind && c.name == object.name),
                "children() does not list {} '{}', which translate() makes",
                object.kind.kind,
                object.name
            );
            ensure!(
                seen.insert((object.kind, &object.name)),
                "{} '{}' is made twice",
                object.kind.kind,
                object.name
            );
        }
        let upstreams = trial.provider.upstreams();
        for upstream in &upstreams {
            ensure!(
                children.iter().any(|c| c.kind == upstream.kind),
                "children() has no {}",
                upstream.kind.kind
            );
        }
        let main = translation.objects.last().map(|o| o.kind);
        ensure!(
            upstreams.iter().any(|u| Some(u.kind) == main),
            "the last object, whose status is read, is {main:?}, which is not in upstreams()"
        );
    }
    Ok(())
}

/// The provider supplies the body; the loop adds the metadata that marks the object as ours.
pub(super) fn r18_objects_carry_labels_annotations_and_owner(trial: &Trial) -> RuleResult {
    for (_, translation) in trial.translations()? {
        for object in &translation.objects {
            let what = format!("{} '{}'", object.kind.kind, object.name);
            for field in ["apiVersion", "kind", "metadata", "status"] {
                ensure!(
                    object.body.get(field).is_none(),
                    "{what}: '{field}' is not the body's to say"
                );
            }
            ensure!(object.body.is_object(), "the body of {what} is not an object");
            let reserved = object.annotations.keys().find(|key| key.starts_with(labels::PREFIX));
            ensure!(
                reserved.is_none(),
                "{what} sets the annotation {reserved:?}: that prefix is not the provider's"
            );
            let installed = trial.installed().version(object.kind);
            ensure!(
                object.kind.is_built_in() || installed.as_deref() == Some(object.version.as_str()),
                "{what} is made as {}, and {installed:?} is installed",
                object.version
            );
        }
    }
    let mut cluster = trial
        .fresh(&json!({"metadata": {"labels": {"kubeairunway.ai/team": "a", labels::QUEUE: "gpus", "other": "b"}}}))?;
    cluster.settle()?;
    let namespace = cluster.md.metadata.namespace.clone();
    for stored in &cluster.objects {
        let what = format!("{} '{}'", stored.kind.kind, stored.name());
        let metadata = &stored.object["metadata"];
        let name = cluster.md.metadata.name.clone().unwrap_or_default();
        for (label, value) in [
            (labels::MANAGED_BY, labels::MANAGED_BY_VALUE),
            (labels::DEPLOYMENT, name.as_str()),
            (labels::PROVIDER, trial.provider.name()),
            ("kubeairunway.ai/team", "a"),
            (labels::QUEUE, "gpus"),
        ] {
            ensure!(
                metadata["labels"][label] == value,
                "{what} has {label} = {}",
                metadata["labels"][label]
            );
        }
        ensure!(
            metadata["labels"]["other"].is_null(),
            "{what} carries a label of the user's without our prefix"
        );
        ensure!(
            metadata["namespace"] == json!(namespace),
            "{what} is not in the namespace of its ModelDeployment"
        );
        let owner = &metadata["ownerReferences"][0];
        ensure!(
            owner["uid"] == "md-uid" && owner["controller"] == true && owner["blockOwnerDeletion"] == true,
            "{what} has the owner {owner}"
        );
        for annotation in [labels::MADE_FOR, labels::APPLIED_HASH] {
            ensure!(
                stored.annotation(annotation).is_some(),
                "{what} lacks the annotation {annotation}"
            );
        }
    }
    Ok(())
}

/// Routers and frontends do not count as replicas; an absent number is one, and zero is none.
pub(super) fn r29_only_workers_count_and_zero_stays_zero(trial: &Trial) -> RuleResult {
    for (request, translation) in trial.translations()? {
        let (asked, noted) = (request.topology.replicas(), translation.replicas);
        ensure!(
            asked == noted,
            "the spec requests {asked} workers, and the translation counts {noted}"
        );
    }
    for (replicas, wanted) in [(Value::Null, 1), (json!(0), 0)] {
        let patch =
            json!({"spec": {"serving": null, "scaling": {"replicas": replicas, "prefill": null, "decode": null}}});
        match trial.request(&patch).map(|request| trial.translate(&request)) {
            Ok(Ok(translation)) => ensure!(
                translation.replicas == wanted,
                "scaling.replicas: {replicas} becomes {} replicas",
                translation.replicas
            ),
            Ok(Err(Refusal { message, .. })) => ensure!(
                !message.is_empty(),
                "scaling.replicas: {replicas} is refused without a text"
            ),
            Err(_) => {}
        }
    }
    let cluster = trial.running()?;
    let replicas = cluster
        .md
        .status
        .as_ref()
        .and_then(|s| s.replicas.clone())
        .unwrap_or_default();
    ensure!(
        replicas.desired.is_some() && replicas.ready == replicas.desired,
        "all of it serves, and status.replicas is {replicas:?}"
    );
    Ok(())
}

/// A Service in the namespace with a port. If the provider creates the Service, it has that port.
pub(super) fn r30_the_endpoint_is_a_service_and_a_port(trial: &Trial) -> RuleResult {
    for (_, translation) in trial.translations()? {
        if let Some(label) = translation.pod_label {
            ensure!(
                trial.provider.pod_labels().contains(&label),
                "pod_label {label} is not in pod_labels()"
            );
        }
        let Some(endpoint) = &translation.endpoint else {
            continue;
        };
        let (service, port) = (
            endpoint.service.as_deref().unwrap_or_default(),
            endpoint.port.unwrap_or_default(),
        );
        ensure!(
            runway_api::name::is_label(service),
            "the endpoint's Service is '{service}', which is not a valid name of a Service"
        );
        ensure!((1..=65535).contains(&port), "the endpoint's port is {port}");
        let made = translation
            .objects
            .iter()
            .find(|o| o.kind.kind == "Service" && o.name == service);
        let ports = made.and_then(|o| o.body["spec"]["ports"].as_array());
        ensure!(
            ports.is_none_or(|ports| ports.iter().any(|p| p["port"] == port)),
            "the endpoint says port {port}, which Service '{service}' does not have"
        );
    }
    Ok(())
}
