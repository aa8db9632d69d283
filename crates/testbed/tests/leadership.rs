//! Two replicas: one acts, the other takes over when it ends, and nothing breaks when both act.

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use k8s_openapi::api::coordination::v1::Lease;
use kube::api::{DeleteParams, Patch, PatchParams};
use kube::{Api, ResourceExt};
use runway_manifests as manifests;
use runway_operator::lease::{Election, Leadership, LeaseArgs};
use runway_product_testbed::*;
use runway_testbed::{audit, eventually};
use serde_json::json;
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

/// The Lease of these tests, in seconds.
const DURATION: u16 = 5;
const LEASE: Duration = Duration::from_secs(DURATION as u64);
/// Identity of the tests' candidates: the core, with its role.
const NAME: &str = "kubeairunway-controller";

fn args(identity: &str) -> LeaseArgs {
    LeaseArgs {
        leader_elect: true,
        lease_duration: DURATION,
        lease_namespace: manifests::NAMESPACE.to_owned(),
        lease_identity: identity.to_owned(),
    }
}

/// A candidate that runs in this process.
struct Candidate {
    leadership: Leadership,
    task: JoinHandle<()>,
}

impl Candidate {
    async fn start(bed: &Bed, identity: &str) -> Result<Self> {
        let client = bed.cluster.client(NAME, &[]).await?;
        let (election, leadership) = Election::new(client, &args(identity), NAME);
        let task = tokio::spawn(election.run(CancellationToken::new()));
        Ok(Self { leadership, task })
    }

    async fn leads(&self, limit: Duration) -> Result<()> {
        tokio::time::timeout(limit, self.leadership.gained())
            .await
            .context("it does not lead")
    }
}

fn leases(bed: &Bed) -> Api<Lease> {
    Api::namespaced(bed.admin.clone(), manifests::NAMESPACE)
}

#[tokio::test]
async fn one_replica_leads_and_the_next_continues() -> Result<()> {
    let bed = Bed::start_with(Upstream::None, false).await?;
    let first = Candidate::start(&bed, "first").await?;
    first.leads(PATIENCE).await?;
    let second = Candidate::start(&bed, "second").await?;

    // Who stands by asks nothing.
    let log = bed.cluster.audit().await?;
    let mark = log.mark().await?;
    tokio::time::sleep(LEASE * 2).await;
    let requests: Vec<_> = log.since(mark).await?.into_iter().filter(|r| r.user == NAME).collect();
    let verbs: BTreeSet<_> = requests.iter().map(|r| r.verb.clone()).collect();
    ensure!(first.leadership.is_leading() && !second.leadership.is_leading());
    ensure!(
        verbs
            .iter()
            .all(|verb| verb == "patch" || verb == "watch" || verb == "list"),
        "{verbs:?}"
    );
    let renewals = requests.iter().filter(|r| r.verb == "patch").count();
    ensure!((3..=8).contains(&renewals), "{renewals} renewals");

    // An orderly end: at once.
    let start = Instant::now();
    first.leadership.step_down().await;
    ensure!(!first.leadership.is_leading());
    second.leads(PATIENCE).await?;
    let took = start.elapsed();
    println!("handed over after {took:?}");
    ensure!(took < LEASE, "handed over after {took:?}: the Lease ran out");

    // A kill: after the duration of the Lease, and not before it has run out for the one who held it.
    let third = Candidate::start(&bed, "third").await?;
    let sure = tokio::time::timeout(Duration::from_secs(1), third.leadership.gained()).await;
    ensure!(sure.is_err(), "two lead");
    let start = Instant::now();
    second.task.abort();
    second.leadership.lost().await;
    ensure!(!third.leadership.is_leading(), "two lead");
    third.leads(PATIENCE).await?;
    let took = start.elapsed();
    println!("taken over after {took:?}");
    ensure!(took < LEASE * 3, "taken over after {took:?}");
    let lease = leases(&bed).get(NAME).await?;
    let writers: BTreeSet<_> = lease
        .managed_fields()
        .iter()
        .map(|entry| entry.manager.as_deref())
        .collect();
    ensure!(writers == BTreeSet::from([Some(NAME)]), "{writers:?}");
    let spec = lease.spec.unwrap_or_default();
    ensure!(spec.holder_identity.is_some_and(|holder| holder.starts_with("third_")));
    ensure!(spec.lease_transitions == Some(2), "{:?}", spec.lease_transitions);
    Ok(())
}

#[tokio::test]
async fn a_lease_that_is_lost_ends_the_work() -> Result<()> {
    let bed = Bed::start_with(Upstream::None, false).await?;
    let ours = Candidate::start(&bed, "ours").await?;
    ours.leads(PATIENCE).await?;
    let work = ours.leadership.clone();
    let broken_off = tokio::spawn(async move { work.while_leading(std::future::pending::<()>()).await });

    // A holder that promises to renew it every hour, and has ended.
    let theirs = json!({ "spec": { "holderIdentity": "a-dead-pod", "leaseDurationSeconds": 1 } });
    leases(&bed)
        .patch(NAME, &PatchParams::default(), &Patch::Merge(theirs))
        .await?;
    let outcome = tokio::time::timeout(PATIENCE, broken_off)
        .await
        .context("the work continues")??;
    ensure!(outcome.is_none());
    // It runs out like any other.
    ours.leads(PATIENCE).await?;

    // Deleted: the first candidate creates it again.
    leases(&bed).delete(NAME, &DeleteParams::default()).await?;
    eventually(PATIENCE, async || {
        let lease = leases(&bed).get(NAME).await?;
        let holder = lease.spec.and_then(|spec| spec.holder_identity);
        ensure!(holder.is_some_and(|holder| holder.starts_with("ours_")));
        ensure!(ours.leadership.is_leading());
        Ok(())
    })
    .await?;

    // The API server is down: no replica can be sure to lead.
    bed.cluster.client(NAME, &[]).await?;
    ours.task.abort();
    ours.leadership.lost().await;
    ensure!(!ours.leadership.is_leading());
    Ok(())
}

#[tokio::test]
async fn replica_continues_where_the_other_stopped() -> Result<()> {
    const OBJECTS: usize = 20;
    let bed = Bed::start().await?;
    let _simulator = bed.simulator().await?;
    let first = Pair::start(&bed, "first", 0).await?;
    bed.admission_is_up().await?;
    let second = Pair::start(&bed, "second", 1).await?;
    ensure!(first.core_leads.is_leading() && !second.core_leads.is_leading());

    // Both serve admission, under the same authority.
    let answer = eventually(PATIENCE, async || bed.ask_admission(second.port).await).await?;
    ensure!(answer.contains(r#""allowed":true"#), "{answer}");

    let heartbeat = bed.configs().get("kaito").await?.status.unwrap_or_default();
    for index in 0..OBJECTS {
        bed.create(gemma(&format!("gemma-{index}"))).await?;
    }
    // In the middle of it.
    let start = Instant::now();
    let (core_leads, kaito_leads) = (second.core_leads.clone(), second.kaito_leads.clone());
    let next = tokio::spawn(async move {
        tokio::join!(core_leads.gained(), kaito_leads.gained());
        start.elapsed()
    });
    first.stop().await;
    let took = tokio::time::timeout(PATIENCE, next)
        .await
        .context("no replica takes over")??;
    println!("both controllers handed over after {took:?}");
    ensure!(took < LEASE, "handed over after {took:?}: a Lease ran out");
    for index in 0..OBJECTS {
        bed.running(&format!("gemma-{index}")).await?;
    }
    ensure!(
        bed.inference_sets()
            .list(&kube::api::ListParams::default())
            .await?
            .items
            .len()
            == OBJECTS
    );
    // No status says that the provider is gone.
    let status = bed.configs().get("kaito").await?.status.unwrap_or_default();
    ensure!(
        status.ready == heartbeat.ready && status.conditions == heartbeat.conditions,
        "{status:?}"
    );
    second.stop().await;
    Ok(())
}

#[tokio::test]
async fn two_leaders_by_force_do_no_harm() -> Result<()> {
    const OBJECTS: usize = 30;
    let bed = Bed::start().await?;
    let _simulator = bed.simulator().await?;
    let (_core, _kaito) = (bed.core().await?, bed.kaito().await?);
    bed.admission_is_up().await?;
    let (_second_core, _second_kaito) = (bed.second_core(Leadership::always()).await?, bed.kaito().await?);

    let log = bed.cluster.audit().await?;
    let mark = log.mark().await?;
    for index in 0..OBJECTS {
        bed.create(gemma(&format!("gemma-{index}"))).await?;
    }
    for index in 0..OBJECTS {
        bed.running(&format!("gemma-{index}")).await?;
    }
    // One upstream object each, made once.
    let made = log.since(mark).await?;
    let sets = bed
        .inference_sets()
        .list(&kube::api::ListParams::default())
        .await?
        .items;
    ensure!(sets.len() == OBJECTS, "{} InferenceSets", sets.len());
    let created = made
        .iter()
        .filter(|r| r.resource == "inferencesets" && r.subresource.is_empty() && r.code == 201 && !r.dry_run)
        .count();
    ensure!(created == OBJECTS, "{created} InferenceSets were made");
    ensure!(made.iter().all(|r| r.resource != "inferencesets" || r.verb != "delete"));

    // Then silence: no replica corrects the other.
    tokio::time::sleep(Duration::from_secs(7)).await;
    let mark = log.mark().await?;
    let generations: Vec<_> = sets.iter().map(|w| w.metadata.generation).collect();
    tokio::time::sleep(Duration::from_secs(8)).await;
    let writes: Vec<_> = log
        .since(mark)
        .await?
        .into_iter()
        .filter(|r| r.user == NAME || r.user == "kaito-provider")
        .filter(|r| r.resource != "inferenceproviderconfigs" && audit::Count::of(std::slice::from_ref(r)).write > 0)
        .collect();
    ensure!(writes.is_empty(), "{writes:#?}");
    let after = bed
        .inference_sets()
        .list(&kube::api::ListParams::default())
        .await?
        .items;
    ensure!(after.iter().map(|w| w.metadata.generation).collect::<Vec<_>>() == generations);

    // They go as quietly, all of them.
    for index in 0..OBJECTS {
        bed.delete(&format!("gemma-{index}")).await?;
    }
    for index in 0..OBJECTS {
        bed.gone(&format!("gemma-{index}")).await?;
    }
    ensure!(
        bed.inference_sets()
            .list(&kube::api::ListParams::default())
            .await?
            .items
            .iter()
            .all(|w| w.name_any().is_empty())
    );
    Ok(())
}

/// A core and a KAITO provider, as one replica of each.
struct Pair {
    core: Running,
    kaito: Running,
    /// Of the admission server of one that the API server does not ask.
    port: u16,
    core_leads: Leadership,
    kaito_leads: Leadership,
}

impl Pair {
    /// The first one serves admission where the API server looks for it.
    async fn start(bed: &Bed, identity: &str, index: usize) -> Result<Self> {
        let core_leads = elect(bed, identity, NAME).await?;
        let kaito_leads = elect(bed, identity, "kaito-provider").await?;
        let (core, port) = if index == 0 {
            core_leads.gained().await;
            (bed.core_led_by(core_leads.clone()).await?, 0)
        } else {
            bed.second_core(core_leads.clone()).await?
        };
        let kaito = bed.kaito_led_by(kaito_leads.clone()).await?;
        Ok(Self {
            core,
            kaito,
            port,
            core_leads,
            kaito_leads,
        })
    }

    /// An orderly end of both, at once.
    async fn stop(self) {
        tokio::join!(self.core.stop(), self.kaito.stop());
    }
}

async fn elect(bed: &Bed, identity: &str, name: &str) -> Result<Leadership> {
    let client = bed.cluster.client(name, &[]).await?;
    let (election, leadership) = Election::new(client, &args(identity), name);
    tokio::spawn(election.run(CancellationToken::new()));
    Ok(leadership)
}
