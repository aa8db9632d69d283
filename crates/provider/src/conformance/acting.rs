//! R8 to R11: when a provider acts.

use runway_api::model_deployment::Phase;
use runway_api::{condition, labels};
use serde_json::json;

use super::cluster::Cluster;
use super::trial::{Trial, annotate, condition_of, delete, phase, reject, said};
use super::{RuleResult, ensure};

/// Only `status.provider.name` counts; the core evaluates the user's request.
pub(super) fn r8_it_acts_only_when_chosen(trial: &Trial) -> RuleResult {
    for chosen in [None, Some(""), Some("another")] {
        let mut cluster = trial.fresh(&json!({"spec": {"provider": {"name": trial.provider.name()}}}))?;
        if let Some(provider) = cluster.md.status.as_mut().and_then(|s| s.provider.as_mut()) {
            provider.name = chosen.map(str::to_owned);
        }
        does_nothing(&cluster, &format!("with status.provider.name {chosen:?}"))?;
        delete(&mut cluster);
        does_nothing(
            &cluster,
            &format!("being deleted, with status.provider.name {chosen:?}"),
        )?;
    }
    Ok(())
}

/// A generation that the core has not accepted is not acted upon.
pub(super) fn r9_it_acts_only_on_a_validated_generation(trial: &Trial) -> RuleResult {
    for (status, generation) in [
        ("True", Some(0)),
        ("True", None),
        ("False", Some(0)),
        ("Unknown", Some(1)),
    ] {
        let mut cluster = trial.fresh(&json!({}))?;
        let conditions = cluster.md.status.as_mut().map(|s| &mut s.conditions);
        for validated in conditions.into_iter().flatten() {
            status.clone_into(&mut validated.status);
            validated.observed_generation = generation;
        }
        does_nothing(
            &cluster,
            &format!("with Validated {status} of generation {generation:?}"),
        )?;
    }
    let mut cluster = trial.fresh(&json!({}))?;
    if let Some(status) = &mut cluster.md.status {
        status.conditions.clear();
    }
    does_nothing(&cluster, "without the condition Validated")?;

    let mut cluster = trial.running()?;
    let (_, patch) = trial.samples.identity.first().ok_or("samples: identity is empty")?;
    trial.change(&mut cluster, patch)?;
    if let Some(status) = &mut cluster.md.status {
        status.conditions.retain(|c| c.type_ != condition::VALIDATED);
    }
    does_nothing(&cluster, "for a change that is not validated")?;

    let (objects, before) = (cluster.objects.clone(), cluster.md.status.clone().unwrap_or_default());
    reject(&mut cluster.md);
    cluster.settle()?;
    ensure!(cluster.objects == objects, "it acts on a change that is rejected");
    let status = cluster.md.status.clone().unwrap_or_default();
    let found = (
        condition_of(&cluster, condition::READY),
        condition_of(&cluster, condition::STALLED),
    );
    ensure!(
        found.0 == "False ValidationFailed"
            && found.1 == "True ValidationFailed"
            && status.observed_generation == cluster.md.metadata.generation,
        "expected Ready False and Stalled True of the rejected generation, with the reason ValidationFailed, found {found:?} of {:?}",
        status.observed_generation
    );
    let ready = status.replicas.and_then(|replicas| replicas.ready);
    ensure!(
        status.endpoint == before.endpoint && ready.is_some_and(|ready| ready > 0),
        "a change was rejected, and the status of the model that serves lost its endpoint or its ready replicas: {ready:?}"
    );
    Ok(())
}

/// Pause stops every change except deletion.
pub(super) fn r10_pause_stops_everything_but_deletion(trial: &Trial) -> RuleResult {
    let mut fresh = trial.fresh(&json!({}))?;
    annotate(&mut fresh, labels::PAUSED, Some("true"));
    does_nothing(&fresh, "paused from the beginning")?;
    annotate(&mut fresh, labels::PAUSED, Some("false"));
    fresh.settle()?;
    ensure!(
        !fresh.objects.is_empty(),
        "an annotation of \"false\" is taken for a pause"
    );

    let mut cluster = trial.running()?;
    annotate(&mut cluster, labels::PAUSED, Some("true"));
    for stored in &mut cluster.objects {
        stored.object["metadata"]["labels"] = json!({});
    }
    does_nothing(&cluster, "paused, with drift")?;
    for (field, patch) in &trial.samples.identity {
        trial.change(&mut cluster, patch)?;
        does_nothing(&cluster, &format!("paused, with {field} changed"))?;
    }
    delete(&mut cluster);
    cluster.settle()?;
    cluster.upstream_lets_go();
    cluster.settle()?;
    ensure!(
        cluster.gone,
        "paused, and its deletion does not end: {}",
        said(&cluster)
    );
    Ok(())
}

/// A dry run writes the plan to the status and nothing else; afterwards the plan is carried out as announced.
pub(super) fn r11_a_dry_run_makes_nothing(trial: &Trial) -> RuleResult {
    let mut cluster = trial.fresh(&json!({}))?;
    annotate(&mut cluster, labels::DRY_RUN, Some("true"));
    cluster.settle()?;
    ensure!(cluster.objects.is_empty(), "a dry run made {:?}", cluster.writes);
    ensure!(
        phase(&cluster) == Some(Phase::Pending) && condition_of(&cluster, condition::READY) == "False DryRun",
        "a dry run says {}",
        said(&cluster)
    );
    let announced = plan_of(&cluster);
    annotate(&mut cluster, labels::DRY_RUN, None);
    cluster.settle()?;
    ensure!(
        plan_of(&cluster).is_empty(),
        "status.plan stays after it was carried out"
    );
    let made: Vec<_> = cluster
        .objects
        .iter()
        .map(|o| (o.kind.kind.to_owned(), o.name().to_owned()))
        .collect();
    ensure!(made == announced, "announced {announced:?}, and made {made:?}");

    let mut running = trial.running()?;
    annotate(&mut running, labels::DRY_RUN, Some("true"));
    let before = running.objects.clone();
    for patch in trial.variants() {
        trial.change(&mut running, &patch)?;
        running.settle()?;
        ensure!(running.objects == before, "a dry run of {patch} changed what was there");
    }
    Ok(())
}

fn plan_of(cluster: &Cluster) -> Vec<(String, String)> {
    let plan = cluster
        .md
        .status
        .as_ref()
        .and_then(|s| s.plan.clone())
        .unwrap_or_default();
    let text = |value: &serde_json::Value| value.as_str().unwrap_or_default().to_owned();
    plan.objects
        .iter()
        .map(|o| (text(&o["kind"]), text(&o["metadata"]["name"])))
        .collect()
}

fn does_nothing(cluster: &Cluster, when: &str) -> RuleResult {
    let plan = cluster.plan();
    ensure!(plan.is_silent() && plan.apply.is_empty(), "{when} it acts: {plan:?}");
    Ok(())
}
