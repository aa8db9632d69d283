//! The table of changes: what a change of each field does to the upstream object, the pods, requests and the endpoint, for each
//! provider. `changes/PROVIDER.yaml` holds what was seen; the user guide's table is generated from it (`cargo xtask gen`).
//! `UPDATE_CASES=1` writes what is seen.
//!
//! KAITO (played by the upstream simulator) and direct run real pods with a real engine. KubeRay (the simulator) builds clusters
//! without pods. Of Dynamo only the object can be seen.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Deref;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use futures::{StreamExt, TryStreamExt};
use k8s_openapi::api::core::v1::Pod;
use kube::api::{DynamicObject, ListParams};
use kube::runtime::{WatchStreamExt, watcher};
use kube::{Api, ResourceExt};
use parking_lot::Mutex;
use runway_api::condition::{self, Conditions};
use runway_api::{ModelDeployment, labels};
use runway_operator::client::ClientArgs;
use runway_operator::services::{ServicePort, Services};
use runway_product_testbed::{Bed, NAMESPACE, Upstream, vllm};
use runway_provider::Kind;
use runway_provider_direct::{DEPLOYMENT, Direct};
use runway_provider_dynamo::{DYNAMO_GRAPH_DEPLOYMENT, Dynamo};
use runway_provider_kaito::{INFERENCE_SET, Kaito};
use runway_provider_kuberay::{KubeRay, RAY_SERVICE};
use runway_testbed::engine::{LlamaServer, MODEL};
use runway_testbed::{ControlPlane, PATIENCE, crds, eventually};
use runway_upstream_simulator::{self as simulator, Simulator};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use tokio_util::task::AbortOnDropHandle;

/// Attempts of a request, 300 ms apart, before the model counts as interrupted. A pod that ends may break a connection.
const ATTEMPTS: usize = 4;

/// Effect of a change.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Row {
    change: String,
    /// The upstream object: `kept` or `recreated`.
    object: String,
    /// Pods, or Ray clusters, if the object is kept: `kept`, `added`, `removed`, `replaced`, or `beside` if the old cluster stays
    /// until the new one serves.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pods: Option<String>,
    /// `answered` at all times, or `interrupted`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    requests: Option<String>,
    /// Phases, from the change to the end.
    phases: Vec<String>,
}

/// A change to try: its name, and its patch of the spec.
type Change = (&'static str, Value);

#[tokio::test(flavor = "multi_thread")]
async fn changes_with_real_pods_do_what_the_table_says() -> Result<()> {
    const WHAT: &str = "the table of changes with real pods";
    let Some(engine) = LlamaServer::for_node(WHAT).await? else {
        return Ok(());
    };
    let bed = Bed::start_with_node(Upstream::Kaito).await?;
    for archive in [&engine.image.archive, &engine.next.archive] {
        bed.cluster.import_image(archive).await?;
    }
    let _core = bed.core().await?;
    let _direct = bed.asking_provider(Direct::default()).await?;
    let _kaito = bed.asking_provider(Kaito::default()).await?;
    let _simulator = bed.simulator_with_workloads().await?;
    bed.admission_is_up().await?;

    let args = ClientArgs {
        kubeconfig: Some(bed.cluster.kubeconfig("asker", &["system:masters"])?),
        context: None,
    };
    let services = Services::of(&args.config().await?)?;
    let changes = |next: &str| -> [Change; 10] {
        [
            (
                "`engine.args`, `contextLength`",
                json!({"engine": {"args": {"ctx-size": "512"}}}),
            ),
            ("`image`", json!({ "image": next })),
            ("`env`", json!({"env": [{"name": "A", "value": "b"}]})),
            ("`resources`", json!({"resources": {"memory": "300Mi"}})),
            (
                "`podTemplate.metadata`",
                json!({"podTemplate": {"metadata": {"annotations": {"a": "b"}}}}),
            ),
            ("`model.id`", json!({"model": {"id": "another/model"}})),
            ("`scaling.replicas`, up", json!({"scaling": {"replicas": 2}})),
            ("`scaling.replicas`, down", json!({"scaling": {"replicas": 1}})),
            ("`scaling.replicas`, to 0", json!({"scaling": {"replicas": 0}})),
            ("`scaling.replicas`, from 0", json!({"scaling": {"replicas": 1}})),
        ]
    };
    for (provider, kind) in [("kaito", INFERENCE_SET), ("direct", DEPLOYMENT)] {
        let name = format!("on-{provider}");
        let mut object = vllm(&name, provider);
        object["spec"] = json!({
            "provider": { "name": provider },
            "model": { "source": "custom", "id": "some/model" },
            "engine": { "type": "llamacpp", "args": { "model": MODEL, "alias": "m", "threads": "1" } },
            "image": engine.image.name,
            "resources": { "memory": "256Mi", "cpu": "10m" },
        });
        if provider == "kaito" {
            // Without model.source huggingface the image decides where it listens.
            object["spec"]["engine"]["args"]["host"] = json!("0.0.0.0");
            object["spec"]["engine"]["args"]["port"] = json!("5000");
        }
        let trial = Trial::start(&bed, name, kind, Some(&services), object).await?;
        let mut rows = Vec::new();
        for (change, patch) in changes(&engine.next.name) {
            rows.push(
                trial
                    .change(change, patch)
                    .await
                    .with_context(|| format!("{provider}: {change}"))?,
            );
        }
        trial.end().await?;
        compare(provider, &rows)?;
    }
    bed.cluster.stop().await
}

#[tokio::test]
async fn changes_of_upstream_objects_are_what_the_table_says() -> Result<()> {
    let bed = Bed::start_with(Upstream::All, true).await?;
    for crd in crds::upstream_crds(&[crds::KUBERAY_CLUSTERS])? {
        crds::install_crd(&bed.admin, crd).await?;
    }
    let _core = bed.core().await?;
    let _dynamo = bed.provider(Dynamo::default()).await?;
    let _kuberay = bed.provider(KubeRay::default()).await?;
    let client = bed.cluster.client("upstream-simulator", &["system:masters"]).await?;
    let config = simulator::Config {
        workloads: true,
        ready_after: Duration::from_millis(500),
        ..simulator::Config::default()
    };
    let _simulator = Simulator::start(client, config);
    bed.admission_is_up().await?;

    let changes: [Change; 9] = [
        (
            "`engine.args`, `contextLength`",
            json!({"engine": {"contextLength": 4096}}),
        ),
        ("`image`", json!({"image": "registry.example/engine:2"})),
        ("`env`", json!({"env": [{"name": "A", "value": "b"}]})),
        ("`resources`", json!({"resources": {"memory": "20Gi"}})),
        (
            "`podTemplate.metadata`",
            json!({"podTemplate": {"metadata": {"annotations": {"a": "b"}}}}),
        ),
        ("`model.id`", json!({"model": {"id": "another/model"}})),
        ("`scaling.replicas`, up", json!({"scaling": {"replicas": 2}})),
        ("`scaling.replicas`, down", json!({"scaling": {"replicas": 1}})),
        (
            "`serving.mode`",
            json!({"serving": {"mode": "disaggregated"}, "resources": null, "scaling": {"replicas": null,
            "prefill": {"replicas": 1, "gpu": {"count": 1}, "memory": "16Gi"},
            "decode": {"replicas": 1, "gpu": {"count": 1}, "memory": "16Gi"}}}),
        ),
    ];
    for (provider, kind) in [("dynamo", DYNAMO_GRAPH_DEPLOYMENT), ("kuberay", RAY_SERVICE)] {
        let name = format!("on-{provider}");
        let trial = Trial::start(&bed, name.clone(), kind, None, vllm(&name, provider)).await?;
        let mut rows = Vec::new();
        for (change, patch) in changes.clone() {
            rows.push(
                trial
                    .change(change, patch)
                    .await
                    .with_context(|| format!("{provider}: {change}"))?,
            );
        }
        trial.end().await?;
        compare(provider, &rows)?;
    }
    Ok(())
}

/// Compares what was seen with the committed table.
fn compare(provider: &str, seen: &[Row]) -> Result<()> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("tests/changes/{provider}.yaml"));
    let text = serde_saphyr::to_string(&seen)?;
    if std::env::var_os("UPDATE_CASES").is_some() {
        std::fs::write(&path, text)?;
        return Ok(());
    }
    let expected: Vec<Row> = serde_saphyr::from_str(&std::fs::read_to_string(&path)?)?;
    ensure!(
        expected == seen,
        "{} has other rows; UPDATE_CASES=1 and cargo xtask gen write these:\n{text}",
        path.display()
    );
    Ok(())
}

/// A model that is changed.
struct Trial<'a, C> {
    bed: &'a Bed<C>,
    name: String,
    kind: Kind,
    services: Option<&'a Services>,
    statuses: Arc<Mutex<Vec<Status>>>,
    _watch: AbortOnDropHandle<()>,
}

/// Part of a status.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Status {
    phase: String,
    service: Option<String>,
}

/// Objects that exist at a time.
#[derive(Debug)]
struct Sight {
    object: Option<String>,
    /// Pods or Ray clusters that are not being deleted, by uid, with whether they serve.
    units: BTreeMap<String, bool>,
    going: usize,
    answers: bool,
}

impl<'a, C: Deref<Target = ControlPlane>> Trial<'a, C> {
    async fn start(
        bed: &'a Bed<C>,
        name: String,
        kind: Kind,
        services: Option<&'a Services>,
        object: Value,
    ) -> Result<Self> {
        let statuses = Arc::new(Mutex::new(Vec::new()));
        let only = watcher::Config::default().fields(&format!("metadata.name={name}"));
        let mut events = watcher(bed.deployments(), only)
            .default_backoff()
            .applied_objects()
            .boxed();
        let seen = statuses.clone();
        let watch = tokio::spawn(async move {
            while let Ok(Some(md)) = events.try_next().await {
                seen.lock().extend(status(&md));
            }
        });
        let trial = Self {
            bed,
            name,
            kind,
            services,
            statuses,
            _watch: AbortOnDropHandle::new(watch),
        };
        trial.bed.create(object).await?;
        trial.settled(1).await?;
        Ok(trial)
    }

    async fn change(&self, change: &str, patch: Value) -> Result<Row> {
        let before = self.sight().await?;
        let endpoint = self.last_status().await?.service;
        self.statuses.lock().clear();
        let md = self.bed.patch(&self.name, json!({ "spec": patch })).await?;
        let generation = md.metadata.generation.unwrap_or_default();
        let replicas = md
            .spec
            .scaling
            .as_ref()
            .and_then(|scaling| scaling.replicas)
            .unwrap_or(1);

        let (mut answered, mut beside) = (true, false);
        let start = Instant::now();
        let after = loop {
            ensure!(
                start.elapsed() < PATIENCE,
                "not settled: {:?}",
                self.last_status().await?
            );
            let is_settled = self.is_settled(generation).await?;
            let sight = self.sight().await?;
            answered &= sight.answers;
            let old_serves = sight.units.iter().any(|(uid, _)| before.units.contains_key(uid));
            let new_serves = sight
                .units
                .iter()
                .any(|(uid, serves)| *serves && !before.units.contains_key(uid));
            beside |= self.kind == RAY_SERVICE && old_serves && new_serves;
            if is_settled && sight.going == 0 && self.is_whole(&sight, replicas) {
                break sight;
            }
        };
        let is_kept = after.object == before.object;
        let row = Row {
            change: change.to_owned(),
            object: if after.object == before.object {
                "kept"
            } else {
                "recreated"
            }
            .to_owned(),
            pods: (self.has_units() && is_kept).then(|| units(&before, &after, beside).to_owned()),
            requests: (self.services.is_some() && replicas > 0 && !before.units.is_empty())
                .then(|| if answered { "answered" } else { "interrupted" }.to_owned()),
            phases: self.phases(),
        };
        let statuses = self.statuses.lock().clone();
        let moved = statuses.iter().find(|s| s.service.is_some() && s.service != endpoint);
        ensure!(moved.is_none(), "the endpoint moved from {endpoint:?} to {moved:?}");
        Ok(row)
    }

    async fn end(self) -> Result<()> {
        self.bed.delete(&self.name).await?;
        self.bed.gone(&self.name).await
    }

    fn has_units(&self) -> bool {
        self.kind != DYNAMO_GRAPH_DEPLOYMENT
    }

    /// Whether as many units serve as are desired. A Ray cluster that was replaced stays for a minute.
    fn is_whole(&self, sight: &Sight, replicas: i32) -> bool {
        let serving = sight.units.values().filter(|serves| **serves).count();
        self.services.is_none() || (serving == sight.units.len() && i32::try_from(serving) == Ok(replicas))
    }

    fn phases(&self) -> Vec<String> {
        let statuses = self.statuses.lock();
        let mut phases: Vec<String> = statuses.iter().map(|status| status.phase.clone()).collect();
        phases.dedup();
        phases
    }

    async fn last_status(&self) -> Result<Status> {
        let md = self.bed.deployments().get(&self.name).await?;
        status(&md).context("no status")
    }

    async fn settled(&self, generation: i64) -> Result<()> {
        eventually(PATIENCE, async || {
            ensure!(self.is_settled(generation).await?, "{} is not settled", self.name);
            Ok(())
        })
        .await
    }

    /// Whether the model serves this generation, or is scaled to zero in it.
    async fn is_settled(&self, generation: i64) -> Result<bool> {
        let md = self.bed.deployments().get(&self.name).await?;
        Ok(md.conditions().get_condition(condition::READY).is_some_and(|ready| {
            ready.observed_generation == Some(generation) && (ready.status == "True" || ready.reason == "ScaledToZero")
        }))
    }

    async fn sight(&self) -> Result<Sight> {
        let objects = self.bed.upstream(self.kind, self.kind.version);
        let object = objects.get_opt(&self.name).await?.and_then(|object| object.uid());
        let (mut units, mut going) = (BTreeMap::new(), 0);
        if self.services.is_some() {
            let pods: Api<Pod> = Api::namespaced(self.bed.admin.clone(), NAMESPACE);
            let ours = ListParams::default().labels(&format!("{}={}", labels::DEPLOYMENT, self.name));
            for pod in pods.list(&ours).await?.items {
                if pod.metadata.deletion_timestamp.is_some() {
                    going += 1;
                } else {
                    units.insert(pod.uid().unwrap_or_default(), is_ready(&pod));
                }
            }
        } else if self.kind == RAY_SERVICE {
            let clusters = self
                .bed
                .upstream(Kind::new("ray.io", "v1", "RayCluster", "rayclusters"), "v1");
            let mine = ListParams::default().labels(&format!("{}={}", simulator::kuberay::ORIGIN, self.name));
            let serving = objects
                .get_opt(&self.name)
                .await?
                .and_then(|service| active_cluster(&service));
            for cluster in clusters.list(&mine).await?.items {
                let serves = serving.as_deref() == Some(cluster.name_any().as_str());
                units.insert(cluster.uid().unwrap_or_default(), serves);
            }
        }
        Ok(Sight {
            object,
            units,
            going,
            answers: self.answers().await,
        })
    }

    async fn answers(&self) -> bool {
        let Some(services) = self.services else { return true };
        let at = ServicePort {
            namespace: NAMESPACE.parse().unwrap_or_else(|_| unreachable!("a constant")),
            service: self.name.parse().unwrap_or_else(|_| unreachable!("a constant")),
            port: 80,
        };
        for _ in 0..ATTEMPTS {
            if services
                .get(&at, "/v1/models")
                .await
                .is_ok_and(|response| response.status.is_success())
            {
                return true;
            }
            tokio::time::sleep(Duration::from_millis(300)).await;
        }
        false
    }
}

fn status(md: &ModelDeployment) -> Option<Status> {
    let status = md.status.as_ref()?;
    Some(Status {
        phase: status.phase?.to_string(),
        service: status.endpoint.as_ref().and_then(|endpoint| endpoint.service.clone()),
    })
}

/// Effect on pods or clusters.
fn units(before: &Sight, after: &Sight, beside: bool) -> &'static str {
    let serving = |sight: &Sight| -> BTreeSet<String> {
        let serving = sight.units.iter().filter(|(_, serves)| **serves);
        serving.map(|(uid, _)| uid.clone()).collect()
    };
    let (old, new) = (serving(before), serving(after));
    if old == new {
        "kept"
    } else if old.is_subset(&new) {
        "added"
    } else if new.is_subset(&old) {
        "removed"
    } else if beside {
        "beside"
    } else {
        "replaced"
    }
}

fn is_ready(pod: &Pod) -> bool {
    let conditions = pod.status.as_ref().and_then(|status| status.conditions.as_ref());
    conditions
        .into_iter()
        .flatten()
        .any(|c| c.type_ == "Ready" && c.status == "True")
}

fn active_cluster(service: &DynamicObject) -> Option<String> {
    let name = service.data["status"]["activeServiceStatus"]["rayClusterName"].as_str()?;
    (!name.is_empty()).then(|| name.to_owned())
}
