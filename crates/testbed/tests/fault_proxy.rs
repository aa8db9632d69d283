//! The proxy with faults, with a client of kube and a real API server.

use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use anyhow::{Context, Result, bail, ensure};
use futures::{StreamExt, TryStreamExt};
use k8s_openapi::api::core::v1::{ConfigMap, Namespace};
use kube::api::{ListParams, PostParams};
use kube::runtime::{WatchStreamExt, watcher};
use kube::{Api, Client, ResourceExt};
use runway_testbed::fault::{Cut, FaultProxy, Plan};
use runway_testbed::{ControlPlane, Options};
use serde_json::json;

const USER: &str = "test-controller";
const OWN: &str = "own";
const OTHER: &str = "default";

struct Bed {
    proxy: FaultProxy,
    /// Through the proxy.
    client: Client,
    admin: Client,
    kills: Arc<AtomicUsize>,
    _cluster: ControlPlane,
}

impl Bed {
    async fn start() -> Result<Self> {
        let cluster = ControlPlane::start(Options::default()).await?;
        let admin = cluster.admin_client().await?;
        let binding = json!({ "apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRoleBinding",
            "metadata": { "name": USER }, "subjects": [{ "apiGroup": "rbac.authorization.k8s.io", "kind": "User", "name": USER }],
            "roleRef": { "apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "cluster-admin" } });
        runway_testbed::apply::apply(&admin, &serde_json::from_value(binding)?, "test").await?;
        let namespace = json!({ "metadata": { "name": OWN } });
        Api::<Namespace>::all(admin.clone())
            .create(&PostParams::default(), &serde_json::from_value(namespace)?)
            .await?;
        let proxy = FaultProxy::start(&cluster, USER, OWN).await?;
        let kills = Arc::new(AtomicUsize::new(0));
        let counted = kills.clone();
        proxy.on_kill(move || {
            counted.fetch_add(1, Ordering::SeqCst);
        });
        let mut config = proxy.config()?;
        config.default_retry = false;
        Ok(Self {
            client: Client::try_from(config)?,
            proxy,
            admin,
            kills,
            _cluster: cluster,
        })
    }

    async fn create(&self, namespace: &str, name: &str) -> Result<ConfigMap, kube::Error> {
        let maps: Api<ConfigMap> = Api::namespaced(self.client.clone(), namespace);
        maps.create(&PostParams::default(), &config_map(name)).await
    }

    async fn is_there(&self, name: &str) -> Result<bool> {
        let maps: Api<ConfigMap> = Api::namespaced(self.admin.clone(), OWN);
        Ok(maps.get_opt(name).await?.is_some())
    }
}

fn config_map(name: &str) -> ConfigMap {
    ConfigMap {
        metadata: kube::core::ObjectMeta {
            name: Some(name.to_owned()),
            ..Default::default()
        },
        ..ConfigMap::default()
    }
}

#[tokio::test]
async fn each_fault_does_to_a_write_what_it_says_and_to_no_other() -> Result<()> {
    let bed = Bed::start().await?;
    for (i, cut) in Cut::ALL.into_iter().enumerate() {
        // One write before it, and one after it.
        let write = 3 * i as u64 + 2;
        bed.proxy.plan(Plan::At { write, cut });
        let name = format!("cut-{cut}");
        bed.create(OWN, &format!("{name}-first")).await?;
        let answer = bed.create(OWN, &name).await;
        match (cut.refusal(), &answer) {
            (Some((code, reason, _)), Err(kube::Error::Api(status))) => {
                ensure!(status.code == code && status.reason == reason, "{cut}: {status:?}");
            }
            (None, Err(error)) if !matches!(error, kube::Error::Api(_)) => {}
            _ => bail!("{cut}: {answer:?}"),
        }
        ensure!(bed.is_there(&name).await? == cut.commits(), "{cut}");
        bed.create(OWN, &format!("{name}-last")).await?;
        let writes = bed.proxy.writes();
        ensure!(
            writes.len() as u64 == write + 1 && writes[i * 3 + 1].cut == Some(cut),
            "{writes:?}"
        );
    }
    ensure!(bed.kills.load(Ordering::SeqCst) == 2);

    // What is in no namespace, or in another one, has no number.
    let before = bed.proxy.writes().len();
    bed.create(OTHER, "theirs").await?;
    ensure!(bed.proxy.writes().len() == before);
    let all = Api::<ConfigMap>::all(bed.client.clone())
        .list(&ListParams::default())
        .await?;
    ensure!(
        !all.items.is_empty() && all.items.iter().all(|map| map.namespace().as_deref() == Some(OWN)),
        "objects of other namespaces are seen"
    );
    Ok(())
}

/// Whatever becomes of its events, a watch ends with the objects that there are.
#[tokio::test]
async fn a_watch_with_faults_shows_every_object_in_the_end() -> Result<()> {
    const OBJECTS: usize = 60;
    let bed = Bed::start().await?;
    let maps: Api<ConfigMap> = Api::all(bed.client.clone());
    let mut events = pin!(watcher(maps, watcher::Config::default()).default_backoff());
    // The first list comes without faults.
    while !matches!(
        events.try_next().await?.context("the watch ends")?,
        watcher::Event::InitDone
    ) {}
    bed.proxy.plan(Plan::Seeded { seed: 1, last: 40 });
    let own: Api<ConfigMap> = Api::namespaced(bed.admin.clone(), OWN);
    for i in 0..OBJECTS {
        own.create(&PostParams::default(), &config_map(&format!("map-{i}")))
            .await?;
    }
    let (mut seen, mut failures, mut lists) = (std::collections::BTreeSet::new(), 0, 0);
    while (0..OBJECTS).any(|i| !seen.contains(&format!("map-{i}"))) {
        match events.next().await.context("the watch ends")? {
            Ok(watcher::Event::Apply(map) | watcher::Event::InitApply(map)) => {
                seen.insert(map.name_any());
            }
            Ok(watcher::Event::Init) => lists += 1,
            Ok(_) => {}
            Err(_) => failures += 1,
        }
    }
    ensure!(!bed.proxy.bends().is_empty(), "no event had a fault");
    ensure!(
        failures > 0 && lists > 0,
        "{failures} failures, {lists} lists: no fault was seen"
    );
    Ok(())
}
