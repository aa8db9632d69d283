//! `bench llama-stack`: LlamaStackDistributions by our operator, beside the same writes by a bare client on the same control
//! plane, in the order A B B A. No kubelet runs: an object counts as done when its pods exist. Then the operator's own steps in a
//! pod, without one.

mod pod;

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use futures::{StreamExt, TryStreamExt, stream};
use jiff::Timestamp;
use kube::api::{ApiResource, DeleteParams, DynamicObject, ListParams, Patch, PatchParams, PostParams};
use kube::{Api, Client, ResourceExt};
use runway_api::LlamaStackDistribution;
use runway_api::labels::llama_stack as labels;
use runway_dev_cluster::{self as cluster, Programs};
use runway_llama_stack_operator::kinds;
use runway_manifests::Identity;
use runway_testbed::audit::{Class, Request};
use runway_testbed::{ControlPlane, Options, eventually};
use serde_json::{Value, json};

use super::measure::{RequestCounts, as_number, quantile, seconds, silent};
use super::mix::{PREFIX, names};
use super::pilot::applied;
use super::stage::CONCURRENCY;

/// Number of objects.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// LlamaStackDistributions in each run.
    #[arg(long, default_value_t = 100)]
    objects: usize,
    /// Number of rounds. The order is reversed in every round.
    #[arg(long, default_value_t = 2)]
    rounds: usize,
    /// Build without optimization, to try the benchmark itself. The figures are not meaningful.
    #[arg(long)]
    pub(super) unoptimised: bool,
}

const NAMESPACE: &str = "default";
const BARE: &str = "bare-client";
/// Its writes are the script of the bare client.
const PILOT: &str = "pilot";
const PATIENCE: Duration = Duration::from_mins(3);
const QUIET: Duration = Duration::from_secs(20);

/// Result of a run.
struct Figures {
    /// From the answer to the first create to the answer to the last object, in seconds.
    made: f64,
    /// To the answer to the last status, which for the operator is the one that reports the pods.
    reported: f64,
    /// For each object.
    writes: f64,
    reads: f64,
}

pub(crate) async fn run(args: &Args) -> Result<()> {
    super::step("building the programs");
    let programs = Programs::build(!args.unoptimised).await?;
    super::step("starting etcd, kube-apiserver and kube-controller-manager");
    let mut control_plane = ControlPlane::start(Options::default()).await?;
    let outcome = compare(&mut control_plane, &programs, args).await;
    control_plane.stop().await?;
    outcome?;
    super::step("installing and merging, as in a pod");
    let operator = programs.path(labels::MANAGER);
    tokio::task::spawn_blocking(move || pod::print(&operator)).await?
}

async fn compare(control_plane: &mut ControlPlane, programs: &Programs, args: &Args) -> Result<()> {
    let admin = control_plane.admin_client().await?;
    cluster::install(&admin, None, Identity::User).await?;
    start_operator(control_plane, programs)?;
    let script = record(&admin).await?;
    let (mut ours, mut bare) = (Vec::new(), Vec::new());
    let mut at_rest = 0;
    for round in 0..args.rounds {
        let mut order = [labels::MANAGER, BARE];
        if round % 2 == 0 {
            order.reverse();
        }
        for contender in order {
            super::step(&format!(
                "{} LlamaStackDistributions, round {}: {contender}",
                args.objects,
                round + 1
            ));
            if cluster::pid(control_plane, labels::MANAGER).is_some() {
                cluster::end(control_plane, &[labels::MANAGER]).await?;
            }
            if contender == BARE {
                let client = control_plane.client(BARE, &["system:masters"]).await?;
                bare.push(measure(control_plane, &admin, args.objects, BARE, Some((&client, &script))).await?);
            } else {
                start_operator(control_plane, programs)?;
                ours.push(measure(control_plane, &admin, args.objects, contender, None).await?);
                at_rest += rest(control_plane).await?;
            }
            sweep(&admin).await?;
        }
    }
    print(args, &bare, &ours, at_rest);
    Ok(())
}

fn start_operator(control_plane: &mut ControlPlane, programs: &Programs) -> Result<()> {
    let kubeconfig = cluster::kubeconfig(control_plane, labels::MANAGER, &[])?;
    control_plane.run(
        labels::MANAGER,
        programs.path(labels::MANAGER),
        &[
            "run",
            "--kubeconfig",
            &kubeconfig,
            "--operator-image",
            "registry.example/operator:1",
            cluster::ALONE[0],
            cluster::ALONE[1],
        ],
    )
}

/// A distribution with an external provider.
fn distribution(name: &str) -> Result<LlamaStackDistribution> {
    let providers = json!({ "inference": [{ "providerId": "echo", "image": "registry.example/echo:1", "config": { "prefix": "> " } }] });
    let object = json!({
        "apiVersion": "llamastack.io/v1alpha1",
        "kind": "LlamaStackDistribution",
        "metadata": { "name": name },
        "spec": { "server": { "distribution": { "image": "registry.example/distribution:1" }, "externalProviders": providers } },
    });
    Ok(serde_json::from_value(object)?)
}

fn distributions(client: &Client) -> Api<DynamicObject> {
    Api::namespaced_with(
        client.clone(),
        NAMESPACE,
        &ApiResource::erase::<LlamaStackDistribution>(&()),
    )
}

/// Objects that the operator applied for one distribution, in order, followed by its status.
async fn record(admin: &Client) -> Result<Vec<(ApiResource, Value)>> {
    let typed: Api<LlamaStackDistribution> = Api::namespaced(admin.clone(), NAMESPACE);
    typed.create(&PostParams::default(), &distribution(PILOT)?).await?;
    let done = eventually(PATIENCE, async || {
        let pilot = distributions(admin).get(PILOT).await?;
        ensure!(
            pilot.data["status"]["phase"] == "Initializing",
            "the pilot does not start: {}",
            pilot.data["status"]
        );
        Ok(pilot)
    })
    .await?;
    let mut script = Vec::new();
    for (kind, name) in kinds::children(PILOT) {
        let resource = kind.resource();
        let api: Api<DynamicObject> = Api::namespaced_with(admin.clone(), NAMESPACE, &resource);
        if let Some(mut object) = api.get_opt(&name).await? {
            object.types = Some(kube::core::TypeMeta {
                api_version: resource.api_version.clone(),
                kind: resource.kind.clone(),
            });
            let body =
                applied(&object, labels::MANAGER, "").with_context(|| format!("{name} is not the operator's"))?;
            script.push((resource, named(body, &name)));
        }
    }
    let status = applied(&done, labels::MANAGER, "status").context("the operator wrote no status")?;
    script.push((ApiResource::erase::<LlamaStackDistribution>(&()), named(status, PILOT)));
    sweep(admin).await?;
    Ok(script)
}

fn named(mut body: Value, name: &str) -> Value {
    body["metadata"]["name"] = json!(name);
    body
}

/// Creates this many, and reads off the audit log what the contender did until nothing more came.
async fn measure(
    control_plane: &ControlPlane,
    admin: &Client,
    count: usize,
    contender: &str,
    bare: Option<(&Client, &[(ApiResource, Value)])>,
) -> Result<Figures> {
    let audit = control_plane.audit().await?;
    let mark = audit.mark().await?;
    let typed: Api<LlamaStackDistribution> = Api::namespaced(admin.clone(), NAMESPACE);
    stream::iter(names(count).map(Ok::<_, anyhow::Error>))
        .try_for_each_concurrent(CONCURRENCY, async |name| {
            let created = typed.create(&PostParams::default(), &distribution(&name)?).await?;
            match bare {
                Some((client, script)) => play(client, script, &created).await,
                None => Ok(()),
            }
        })
        .await?;
    eventually(PATIENCE, async || {
        let all = typed.list(&ListParams::default()).await?;
        let begun = |stack: &&LlamaStackDistribution| stack.status.as_ref().is_some_and(|s| s.phase.is_some());
        let begun = all.iter().filter(begun).count();
        ensure!(begun == count, "{begun} of {count} have a status");
        Ok(())
    })
    .await?;
    silent(control_plane, &[contender], PATIENCE).await?;

    let requests = audit.since(mark).await?;
    let is_create = |r: &&Request| r.verb == "create" && r.resource == "llamastackdistributions";
    let is_write = |r: &&Request| r.user == contender && r.class() == Class::Write && r.name.starts_with(PREFIX);
    let is_object = |r: &&Request| r.resource != "llamastackdistributions";
    let begin = requests.iter().filter(is_create).map(|r| r.completed).min();
    let begin = begin.context("nothing was created")?;
    let until = |last: Option<Timestamp>| last.map(|end| seconds(end.duration_since(begin).unsigned_abs()));
    let writes = || requests.iter().filter(is_write);
    let asked = RequestCounts::by(&[contender], &requests);
    Ok(Figures {
        made: until(writes().filter(is_object).map(|r| r.completed).max()).context("no object was made")?,
        reported: until(writes().map(|r| r.completed).max()).context("nothing was written")?,
        writes: as_number(asked.writes) / as_number(count),
        reads: as_number(asked.reads) / as_number(count),
    })
}

/// The script for one distribution, each write after the one before; the status twice, as when its pods are made.
async fn play(client: &Client, script: &[(ApiResource, Value)], owner: &LlamaStackDistribution) -> Result<()> {
    let params = PatchParams::apply(BARE).force();
    let (name, uid) = (owner.name_any(), owner.uid().unwrap_or_default());
    for (resource, body) in script {
        let mut body: Value = serde_json::from_str(&body.to_string().replace(PILOT, &name))?;
        let target = body["metadata"]["name"].as_str().unwrap_or_default().to_owned();
        let api: Api<DynamicObject> = Api::namespaced_with(client.clone(), NAMESPACE, resource);
        if resource.kind == "LlamaStackDistribution" {
            let mut first = body.clone();
            first["status"]["message"] = json!("made");
            for status in [first, body] {
                api.patch_status(&target, &params, &Patch::Apply(status)).await?;
            }
        } else {
            body["metadata"]["ownerReferences"][0]["uid"] = json!(uid);
            api.patch(&target, &params, &Patch::Apply(body)).await?;
        }
    }
    Ok(())
}

/// Requests of the operator while nothing changes.
async fn rest(control_plane: &ControlPlane) -> Result<usize> {
    let audit = control_plane.audit().await?;
    let mark = audit.mark().await?;
    tokio::time::sleep(QUIET).await;
    Ok(RequestCounts::by(&[labels::MANAGER], &audit.since(mark).await?).besides_watches())
}

/// Deletes all, and waits for what the garbage collector takes away.
async fn sweep(admin: &Client) -> Result<()> {
    let all = distributions(admin);
    let names: Vec<String> = all
        .list_metadata(&ListParams::default())
        .await?
        .iter()
        .map(ResourceExt::name_any)
        .collect();
    stream::iter(names)
        .map(Ok)
        .try_for_each_concurrent(CONCURRENCY, async |name| {
            all.delete(&name, &DeleteParams::default()).await.map(|_| ())
        })
        .await?;
    let pods: Api<k8s_openapi::api::core::v1::Pod> = Api::namespaced(admin.clone(), NAMESPACE);
    eventually(PATIENCE, async || {
        let left = all.list_metadata(&ListParams::default()).await?.items.len()
            + pods.list_metadata(&ListParams::default()).await?.items.len();
        ensure!(left == 0, "{left} objects are left");
        Ok(())
    })
    .await
}

fn print(args: &Args, bare: &[Figures], ours: &[Figures], at_rest: usize) {
    let median = |figures: &[Figures], of: fn(&Figures) -> f64| {
        quantile(&figures.iter().map(of).collect::<Vec<_>>(), 0.5).unwrap_or_default()
    };
    let row = |what: &str, of: fn(&Figures) -> f64, goal: &str| {
        let (a, b) = (median(bare, of), median(ours, of));
        println!("| {what} | {a:.2} | {b:.2} | {:.2} | {goal} |", b / a);
    };
    println!(
        "| {} LlamaStackDistributions | bare client | operator | ratio | aimed at |",
        args.objects
    );
    println!("|---|--:|--:|--:|--:|");
    row(
        "from the first create to the last object, s",
        |f| f.made,
        "1.15 at most",
    );
    row("to the last status, s", |f| f.reported, "");
    row("writes per object", |f| f.writes, "");
    println!(
        "| reads per object | {:.2} | {:.2} | | |",
        median(bare, |f| f.reads),
        median(ours, |f| f.reads)
    );
    println!("| requests in {} quiet seconds | | {at_rest} | | 0 |", QUIET.as_secs());
}
