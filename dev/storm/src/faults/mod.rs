//! `storm --installed`: faults of a cluster that the product must survive, on a real node, with the product in pods as users install
//! it, and with clients that ask a model all the time.
//!
//! The faults are those of opendatahub-io/operator-chaos (site/docs/failure-modes at edb1c04), under its names, except for
//! ClientFault, which the rest of the campaign does at every write; and faults of what the cluster itself consists of.

mod inject;
mod list;

use std::fmt::Write as _;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use clap::builder::PossibleValuesParser;
use futures::future::LocalBoxFuture;
use k8s_openapi::api::apps::v1::Deployment;
use kube::Api;
use kube::api::{DeleteParams, PostParams};
use runway_api::ModelDeployment;
use runway_api::labels::CORE_MANAGER;
use runway_dev_cluster::installed::Installed;
use runway_dev_support::{record, step};
use runway_testbed::traffic::load::{Load, Seen};
use runway_testbed::{PATIENCE, eventually};
use serde_json::{Value, json};

use list::FAULTS;

const PROVIDER: &str = "direct";
/// Deployments of the controllers.
const CONTROLLERS: [&str; 2] = [CORE_MANAGER, "direct-provider"];

/// Faults of the installed product.
#[derive(clap::Args)]
pub(super) struct Options {
    /// Inject faults, such as killed pods, revoked rights and outages, into the product on a real node.
    #[arg(long, conflicts_with_all = ["all", "scenario", "states", "seed", "changes", "walk"])]
    pub(super) installed: bool,
    /// With --installed: only the fault of this name, such as PodKill.
    #[arg(long, value_name = "NAME", requires = "installed", conflicts_with = "docs")]
    #[arg(value_parser = PossibleValuesParser::new(FAULTS.iter().map(|fault| fault.name)))]
    fault: Option<String>,
    /// With --installed: write the table into docs/project/reliability.md, in place of that of the run before.
    #[arg(long, requires = "installed")]
    docs: bool,
    /// With --installed: run a development build.
    #[arg(long, requires = "installed")]
    unoptimised: bool,
}

/// A fault to inject.
struct Fault {
    name: &'static str,
    effect: &'static str,
    /// The fault concerns what the requests need.
    requests_may_fail: bool,
    /// Injects it, and takes it back if no controller does that.
    inject: for<'a> fn(&'a mut Campaign) -> LocalBoxFuture<'a, Result<()>>,
}

/// A fault, and what followed.
struct Row {
    fault: &'static Fault,
    seen: Seen,
    /// Time until everything worked again after the fault was over, or what did not.
    recovered: Result<Duration, String>,
}

/// Injects one fault after the other. Fails at the end if any was not survived.
pub(super) async fn run(options: &Options) -> Result<()> {
    let installed = Installed::start("storm --installed", !options.unoptimised, &[], &[PROVIDER]).await?;
    installed.deploy(PROVIDER).await?;
    let load = Load::begin(&[installed.at_service()]);
    load.is_answered().await?;
    let mut campaign = Campaign {
        installed,
        load,
        rows: Vec::new(),
    };
    campaign.works().await.context("before any fault")?;
    let is_chosen = |fault: &&Fault| options.fault.as_ref().is_none_or(|name| name == fault.name);
    for fault in FAULTS.iter().filter(is_chosen) {
        campaign.inject(fault).await;
    }
    let Campaign { installed, rows, .. } = campaign;
    installed.node.stop().await?;
    let table = table(&rows);
    println!("\n{table}");
    if options.docs {
        record::write_down(record::RELIABILITY, "storm --installed --docs", &table)?;
    }
    let failed: Vec<String> = rows.iter().filter_map(Row::failure).collect();
    ensure!(failed.is_empty(), "{}", failed.join("\n"));
    Ok(())
}

struct Campaign {
    installed: Installed,
    load: Load,
    rows: Vec<Row>,
}

impl Campaign {
    /// Injects a fault; then everything must work, and no request may have failed.
    async fn inject(&mut self, fault: &'static Fault) {
        let Fault { name, effect, .. } = fault;
        step(&format!("{name}: {effect}"));
        self.load.take();
        let recovered = async {
            (fault.inject)(self).await?;
            let begun = Instant::now();
            self.works().await?;
            self.load.is_answered().await?;
            Ok::<_, anyhow::Error>(begun.elapsed())
        };
        let recovered = recovered.await.map_err(|error| format!("{error:#}"));
        let seen = self.load.take().pop().map(|(_, seen)| seen).unwrap_or_default();
        match &recovered {
            Ok(time) => step(&format!(
                "{name}: {:.1} s, {} failed",
                time.as_secs_f64(),
                seen.failed.len()
            )),
            Err(error) => step(&format!("{name}: {error}")),
        }
        self.rows.push(Row { fault, seen, recovered });
    }

    /// The controllers run; the model serves as its spec says; a new model gets its objects and goes again; an invalid one is
    /// rejected by the webhook.
    async fn works(&self) -> Result<()> {
        self.installed.rolled_out(&CONTROLLERS).await?;
        self.installed.settled().await?;
        self.rejects().await?;
        self.asleep("probe").await?;
        self.deleted("probe").await
    }

    async fn rejects(&self) -> Result<()> {
        let invalid = invalid("invalid")?;
        let dry_run = PostParams {
            dry_run: true,
            ..PostParams::default()
        };
        eventually(PATIENCE, async || {
            match self.installed.models().create(&dry_run, &invalid).await {
                Err(kube::Error::Api(answer)) if answer.message.contains("denied the request") => Ok(()),
                answer => bail!("an invalid model is not rejected by the webhook: {answer:?}"),
            }
        })
        .await
    }

    /// A model without replicas.
    fn sleeper(&self, name: &str) -> Result<ModelDeployment> {
        let spec = json!({
            "provider": { "name": PROVIDER }, "model": { "source": "custom" }, "engine": { "type": "llamacpp" },
            "image": self.installed.engine.image.name, "scaling": { "replicas": 0 },
        });
        model(name, &spec)
    }

    /// Creates a model without replicas, and waits for its Deployment and its status.
    async fn asleep(&self, name: &str) -> Result<()> {
        let (models, model) = (self.installed.models(), self.sleeper(name)?);
        eventually(PATIENCE, async || {
            models
                .create(&PostParams::default(), &model)
                .await
                .map(drop)
                .context(name.to_owned())
        })
        .await?;
        let deployments: Api<Deployment> = Api::default_namespaced(self.installed.client());
        eventually(PATIENCE, async || {
            deployments.get(name).await?;
            let now = models.get(name).await?;
            let seen = now.status.as_ref().and_then(|status| status.observed_generation);
            ensure!(
                seen == now.metadata.generation,
                "the status of {name} is of generation {seen:?}"
            );
            Ok(())
        })
        .await
    }

    async fn deleted(&self, name: &str) -> Result<()> {
        self.installed.models().delete(name, &DeleteParams::default()).await?;
        self.is_gone(name).await
    }

    async fn is_gone(&self, name: &str) -> Result<()> {
        let deployments: Api<Deployment> = Api::default_namespaced(self.installed.client());
        eventually(PATIENCE, async || {
            let left = self.installed.models().get_opt(name).await?;
            ensure!(
                left.is_none(),
                "{name} is still there: {:?}",
                left.and_then(|md| md.status)
            );
            ensure!(
                deployments.get_opt(name).await?.is_none(),
                "Deployment {name} is still there"
            );
            Ok(())
        })
        .await
    }
}

impl Row {
    /// Message about a fault that was not survived.
    fn failure(&self) -> Option<String> {
        let (name, failed) = (self.fault.name, &self.seen.failed);
        match (&self.recovered, failed.first()) {
            (Err(error), _) => Some(format!("{name}: {error}")),
            (Ok(_), Some(request)) if !self.fault.requests_may_fail => {
                Some(format!("{name}: {} requests failed: {request}", failed.len()))
            }
            (Ok(_), _) => None,
        }
    }
}

fn model(name: &str, spec: &Value) -> Result<ModelDeployment> {
    let object = json!({
        "apiVersion": "kubeairunway.ai/v1alpha1", "kind": "ModelDeployment", "metadata": { "name": name }, "spec": spec,
    });
    Ok(serde_json::from_value(object)?)
}

/// A model that the webhook rejects, and the schema does not.
fn invalid(name: &str) -> Result<ModelDeployment> {
    model(
        name,
        &json!({ "model": { "source": "huggingface" }, "engine": { "type": "vllm" } }),
    )
}

fn table(rows: &[Row]) -> String {
    let mut text =
        "| fault | effect | requests of the model that failed | works again after, s |\n|---|---|--:|--:|\n".to_owned();
    for Row { fault, seen, recovered } in rows {
        let failed = seen.failed.len();
        let all = seen.answered + failed;
        let time = recovered
            .as_ref()
            .map_or_else(|_| "not".to_owned(), |time| format!("{:.1}", time.as_secs_f64()));
        let Fault { name, effect, .. } = fault;
        // Writing to a String does not fail.
        let _ = writeln!(text, "| {name} | {effect} | {failed} of {all} | {time} |");
    }
    text
}
