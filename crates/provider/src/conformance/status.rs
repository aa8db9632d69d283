//! R26 to R28, R31, R32, R36 and R37: the status.

use std::collections::BTreeSet;

use jiff::SignedDuration;
use runway_api::condition::{self, Conditions, Owner};
use runway_api::model_deployment::Phase;
use runway_api::{ModelDeploymentStatus, labels};
use serde_json::{Value, json};

use super::cluster::Cluster;
use super::trial::{Trial, annotate, condition_of, delete, message, minutes, phase, said};
use super::{RuleResult, ensure, pods};
use crate::observe::{Answer, Verification};
use crate::plan::{self, Decision};
use crate::probe::{Probe, ProbeDecision};

/// The status has no field of the core, always has a phase, `Ready` and the generation, and survives a round trip.
pub(super) fn r26_the_status_is_the_providers_part_and_complete(trial: &Trial) -> RuleResult {
    let cluster = tour(trial)?;
    for written in &cluster.statuses {
        let status: ModelDeploymentStatus = serde_json::from_value(written.clone())
            .map_err(|error| format!("a status cannot be read back: {error}"))?;
        let again = serde_json::to_value(&status).unwrap_or_default();
        ensure!(
            again == *written,
            "a status reads back as another: {written} as {again}"
        );
        for core in ["name", "selectedReason", "candidates"] {
            ensure!(
                written["provider"][core].is_null(),
                "status.provider.{core} is the core's, and was written"
            );
        }
        ensure!(
            status.phase.is_some() && status.message.as_ref().is_some_and(|m| !m.is_empty()),
            "a status without phase or message: {written}"
        );
        ensure!(
            status.observed_generation.is_some(),
            "a status that does not say which generation it speaks of"
        );
        ensure!(
            status.conditions.get_condition(condition::READY).is_some(),
            "a status without the condition Ready: {written}"
        );
        ensure!(
            status.has_provider_part(),
            "a status that does not show that the provider wrote it, by a condition of its own or the name of its object: {written}"
        );
        let mut types = BTreeSet::new();
        for c in &status.conditions {
            ensure!(
                matches!(condition::owner(&c.type_), Some(Owner::Provider | Owner::Shared)),
                "the condition {} is not the provider's",
                c.type_
            );
            ensure!(types.insert(&c.type_), "the condition {} is there twice", c.type_);
            ensure!(
                is_camel_case(&c.reason),
                "the condition {} has the reason '{}', which is not CamelCase",
                c.type_,
                c.reason
            );
            ensure!(!c.message.is_empty(), "the condition {} has no message", c.type_);
            ensure!(
                c.observed_generation == status.observed_generation,
                "the condition {} speaks of another generation than the status",
                c.type_
            );
        }
    }
    let before = trial.running()?;
    let mut later = before.clone();
    later.pass(minutes(60));
    trial.change(&mut later, &json!({"spec": {"engine": {"args": {"probe-flag": "7"}}}}))?;
    later.settle()?;
    for c in later.md.conditions() {
        let previous = before.md.conditions().get_condition(&c.type_);
        let moved = previous.is_some_and(|p| p.status == c.status && p.last_transition_time != c.last_transition_time);
        ensure!(
            !moved || c.type_ == condition::VALIDATED,
            "the condition {} has not changed, and its time moved",
            c.type_
        );
    }
    Ok(())
}

/// Passes through as many states as possible.
fn tour<'a>(trial: &Trial<'a>) -> Result<Cluster<'a>, String> {
    let samples = trial.samples;
    let mut cluster = trial.fresh(&json!({}))?;
    annotate(&mut cluster, labels::DRY_RUN, Some("true"));
    cluster.settle()?;
    annotate(&mut cluster, labels::DRY_RUN, None);
    cluster.settle()?;
    for edit in [samples.ready, samples.failed, samples.ready] {
        cluster.upstream_says(edit);
        cluster.pass(minutes(1));
        cluster.settle()?;
    }
    let refused = samples.refused.iter().map(|(_, patch)| patch);
    let named = samples
        .identity
        .iter()
        .chain(&samples.recreates)
        .map(|(_, patch)| patch);
    for patch in samples.updates.iter().chain(named).chain(refused) {
        trial.change(&mut cluster, patch)?;
        cluster.settle()?;
        cluster.upstream_lets_go();
        cluster.pass(minutes(10));
        cluster.settle()?;
    }
    delete(&mut cluster);
    cluster.settle()?;
    Ok(cluster)
}

fn is_camel_case(reason: &str) -> bool {
    reason.starts_with(|c: char| c.is_ascii_uppercase()) && reason.chars().all(|c| c.is_ascii_alphanumeric())
}

/// Each change is written once; afterwards, and after a restart, nothing is.
pub(super) fn r27_one_write_per_change_and_silence_at_rest(trial: &Trial) -> RuleResult {
    let mut cluster = trial.fresh(&json!({}))?;
    once(&mut cluster, "creation")?;
    for (what, edit) in [
        ("ready", trial.samples.ready),
        ("failed", trial.samples.failed),
        ("ready again", trial.samples.ready),
    ] {
        cluster.upstream_says(edit);
        let writes = once(&mut cluster, what)?;
        ensure!(
            writes == ["write the status"],
            "the upstream says something new ({what}), and these are written: {writes:?}"
        );
    }
    for patch in &trial.samples.updates {
        trial.change(&mut cluster, patch)?;
        once(&mut cluster, &patch.to_string())?;
    }
    let mut rest = trial.running()?;
    rest.pass(minutes(600));
    for stored in &mut rest.objects {
        let metadata = &mut stored.object["metadata"];
        metadata["labels"]["of-the-upstream"] = json!("x");
        metadata["annotations"]["of-the-upstream"] = json!("x");
        metadata["finalizers"] = json!(["of-the-upstream"]);
        metadata["resourceVersion"] = json!("77");
    }
    let plan = rest.plan();
    ensure!(plan.is_silent(), "at rest it writes: {plan:?}");
    ensure!(
        plan.look_again.is_none(),
        "at rest it looks again in {:?}",
        plan.look_again
    );
    Ok(())
}

/// Settles, with at most one write of each kind.
fn once(cluster: &mut Cluster, what: &str) -> Result<Vec<String>, String> {
    cluster.writes.clear();
    cluster.settle()?;
    let distinct: BTreeSet<&String> = cluster.writes.iter().collect();
    ensure!(
        distinct.len() == cluster.writes.len(),
        "{what}: the same is written more than once: {:?}",
        cluster.writes
    );
    Ok(cluster.writes.clone())
}

/// The upstream's states are translated in both directions, without guesses.
pub(super) fn r28_ready_is_running_and_failed_is_failed(trial: &Trial) -> RuleResult {
    let samples = trial.samples;
    let mut cluster = trial.made()?;
    ensure!(
        matches!(phase(&cluster), Some(Phase::Pending | Phase::Deploying)),
        "the upstream has said nothing, and the status is {}",
        said(&cluster)
    );
    for garbage in [
        json!({}),
        json!(null),
        json!("up"),
        json!({"conditions": [null, 1, {}], "state": 7, "replicas": "x"}),
    ] {
        let request = trial.request(&json!({}))?;
        for stored in cluster.upstream_objects() {
            let mut object = stored.object.clone();
            object["status"].clone_from(&garbage);
            let read = trial.provider.read_status(&request, &object).phase;
            ensure!(
                matches!(read, Phase::Pending | Phase::Deploying),
                "a status of {garbage} is read as {}",
                read.as_str()
            );
        }
    }
    trial.becomes_ready(&mut cluster)?;
    ensure!(
        condition_of(&cluster, condition::READY) == "True DeploymentReady",
        "it serves, and Ready is '{}'",
        condition_of(&cluster, condition::READY)
    );
    cluster.heard();
    cluster.upstream_says(samples.failed);
    cluster.settle()?;
    ensure!(
        phase(&cluster) == Some(Phase::Failed) && message(&cluster).contains(samples.failure),
        "it has failed with '{}', and the status is {}",
        samples.failure,
        said(&cluster)
    );
    ensure!(
        condition_of(&cluster, condition::READY).starts_with("False")
            && condition_of(&cluster, condition::STALLED).starts_with("True"),
        "it has failed, and Ready is '{}', Stalled is '{}'",
        condition_of(&cluster, condition::READY),
        condition_of(&cluster, condition::STALLED)
    );
    ensure!(
        cluster.heard() == ["ProviderError"],
        "it has failed, and there is no Event ProviderError"
    );
    trial.becomes_ready(&mut cluster)?;
    ensure!(
        condition_of(&cluster, condition::STALLED).is_empty(),
        "it serves again, and Stalled is still there"
    );
    Ok(())
}

/// Work in progress without any report.
pub(super) fn r31_silent_upstream_is_reported_after_five_minutes(trial: &Trial) -> RuleResult {
    let mut cluster = trial.made()?;
    cluster.heard();
    cluster.pass(minutes(5) - SignedDuration::from_secs(1));
    cluster.settle()?;
    ensure!(
        condition_of(&cluster, condition::STALE_STATUS).is_empty(),
        "StaleStatus before five minutes are over"
    );
    let again = cluster.plan().look_again.map(|wait| wait.as_secs());
    ensure!(
        again == Some(1),
        "one second before the upstream counts as silent it wants to look again in {again:?} seconds"
    );
    cluster.pass(SignedDuration::from_secs(1));
    cluster.settle()?;
    ensure!(
        condition_of(&cluster, condition::STALE_STATUS).starts_with("True") && cluster.heard() == ["StaleStatus"],
        "the upstream has said nothing for five minutes, and the status is {}",
        said(&cluster)
    );
    trial.becomes_ready(&mut cluster)?;
    ensure!(
        condition_of(&cluster, condition::STALE_STATUS).is_empty(),
        "it serves, and StaleStatus is still there"
    );
    Ok(())
}

/// The kubelet's message is sufficient: no Secret is read.
pub(super) fn r32_missing_secret_is_reported(trial: &Trial) -> RuleResult {
    let mut cluster = trial.made()?;
    cluster.heard();
    cluster.pods = Some(vec![pods::pod(
        trial,
        "model-0",
        &json!({ "phase": "Pending", "containerStatuses": [{
        "name": "model", "image": "model:1", "imageID": "", "ready": false, "restartCount": 0,
        "state": { "waiting": { "reason": "CreateContainerConfigError", "message": "secret \"hf-token\" not found" } },
    }] }),
    )?]);
    cluster.settle()?;
    let text = "Secret 'hf-token' not found in namespace";
    ensure!(
        message(&cluster).contains(text),
        "a Secret is missing, and the status is {}",
        said(&cluster)
    );
    ensure!(
        cluster.heard() == ["SecretNotFound"],
        "a Secret is missing, and there is no Event SecretNotFound"
    );
    cluster.pods = None;
    trial.becomes_ready(&mut cluster)?;
    ensure!(
        !message(&cluster).contains(text),
        "it serves, and the status still speaks of the Secret"
    );
    let read: Vec<Value> = crate::access(trial.provider)
        .iter()
        .filter(|rule| rule.resources.iter().flatten().any(|r| r == "secrets" || r == "*"))
        .map(|rule| json!(rule.verbs))
        .collect();
    ensure!(read.is_empty(), "the provider's role reads Secrets: {read:?}");
    Ok(())
}

/// One request per rollout; the response decides.
pub(super) fn r36_ready_is_true_only_after_an_answer(trial: &Trial) -> RuleResult {
    let mut cluster = trial.made()?;
    cluster.verification = Verification::On(None);
    cluster.upstream_says(trial.samples.ready);
    cluster.settle()?;
    ensure!(
        condition_of(&cluster, condition::READY).starts_with("False"),
        "the model has not answered, and the status is {}",
        said(&cluster)
    );
    let asked = asked(trial, &cluster)?;
    ensure!(
        cluster
            .md
            .status
            .as_ref()
            .and_then(|s| s.endpoint.as_ref())
            .is_some_and(|e| {
                e.service.as_deref() == Some(&asked.at.service) && e.port == Some(i32::from(asked.at.port))
            }),
        "it asks {}, which is not status.endpoint",
        asked.at
    );
    let answer = |outcome, at| {
        let (about, attempt) = (asked.about.clone(), asked.attempt);
        Verification::On(Some(Answer {
            about,
            outcome,
            at,
            attempt,
        }))
    };
    cluster.verification = answer(Err("500 Internal Server Error".to_owned()), cluster.now);
    cluster.settle()?;
    ensure!(
        condition_of(&cluster, condition::READY).starts_with("False")
            && message(&cluster).contains("500 Internal Server Error"),
        "the model answers with an error, and the status is {}",
        said(&cluster)
    );
    cluster.verification = answer(Ok(()), cluster.now);
    cluster.settle()?;
    ensure!(
        condition_of(&cluster, condition::READY).starts_with("True"),
        "the model has answered, and the status is {}",
        said(&cluster)
    );
    cluster.verification = Verification::On(None);
    let Decision { plan, probe } = plan::decide(trial.provider, &cluster.observe());
    ensure!(
        plan.is_silent() && probe == ProbeDecision::Forget,
        "the model has answered, and at rest it is asked again"
    );
    Ok(())
}

/// The next request.
fn asked(trial: &Trial, cluster: &Cluster) -> Result<Probe, String> {
    match plan::decide(trial.provider, &cluster.observe()).probe {
        ProbeDecision::Send(probe) => Ok(probe),
        other => Err(format!(
            "the upstream object is ready, and the model is not asked: {other:?}"
        )),
    }
}

/// A crash loop, after which the upstream has reported nothing for an hour.
pub(super) fn r37_pods_say_why_a_model_does_not_serve(trial: &Trial) -> RuleResult {
    let mut cluster = trial.made()?;
    cluster.heard();
    cluster.pods = Some(vec![pods::pod(
        trial,
        "model-0",
        &json!({ "phase": "Running", "containerStatuses": [{
        "name": "model", "image": "model:1", "imageID": "", "ready": false, "restartCount": 3,
        "state": { "waiting": { "reason": "CrashLoopBackOff", "message": "back-off 5m0s" } },
        "lastState": { "terminated": { "exitCode": 2, "reason": "Error", "message": "error: unknown flag --tpyo" } },
    }] }),
    )?]);
    cluster.pass(minutes(60));
    cluster.settle()?;
    for part in ["model-0", "code 2", "unknown flag --tpyo", "spec.engine.args"] {
        ensure!(
            message(&cluster).contains(part),
            "a container crashes, and the status does not say '{part}': {}",
            said(&cluster)
        );
    }
    ensure!(
        phase(&cluster) == Some(Phase::Failed) && condition_of(&cluster, condition::STALE_STATUS).is_empty(),
        "a container crashes again and again, and the status is {}",
        said(&cluster)
    );
    ensure!(
        cluster.heard() == ["CrashLoopBackOff"],
        "a container crashes, and there is no Event CrashLoopBackOff"
    );
    cluster.pods = None;
    trial.becomes_ready(&mut cluster)
}
