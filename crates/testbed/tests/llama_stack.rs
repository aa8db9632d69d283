//! The life of a LlamaStackDistribution on a real API server. There is no node: the tests play the kubelet where they must,
//! by writing the status of pods.
#![allow(clippy::too_many_lines, reason = "a life is a story")]

use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use k8s_openapi::ByteString;
use k8s_openapi::api::apps::v1::Deployment;
use k8s_openapi::api::core::v1::{ConfigMap, PersistentVolumeClaim, Pod, Service, ServiceAccount};
use kube::api::{DeleteParams, ListParams, Patch, PatchParams, PostParams};
use kube::core::{ApiResource, DynamicObject};
use kube::{Api, ResourceExt};
use runway_api::condition::{self, Conditions};
use runway_api::labels::llama_stack as labels;
use runway_api::llama_stack_distribution::{DistributionPhase, LlamaStackDistributionStatus, ProviderPhase};
use runway_api::{LlamaStackDistribution, ModelDeployment};
use runway_client::cluster::Cluster;
use runway_client::source::Source;
use runway_client::tree::Row;
use runway_client::{diff, operated};
use runway_operator::clock;
use runway_product_testbed::{Bed, NAMESPACE, PATIENCE, Upstream};
use runway_testbed::{audit, eventually};
use serde_json::{Value, json};

/// A user's view.
struct User {
    bed: Bed,
}

impl User {
    async fn new() -> Result<Self> {
        Ok(Self {
            bed: Bed::start_with(Upstream::None, false).await?,
        })
    }

    fn all<K>(&self) -> Api<K>
    where
        K: kube::Resource<Scope = k8s_openapi::NamespaceResourceScope>,
        K::DynamicType: Default,
    {
        Api::namespaced(self.bed.admin.clone(), NAMESPACE)
    }

    async fn create(&self, name: &str, spec: Value) -> Result<()> {
        let object = json!({
            "apiVersion": "llamastack.io/v1alpha1",
            "kind": "LlamaStackDistribution",
            "metadata": { "name": name, "namespace": NAMESPACE },
            "spec": spec,
        });
        let api: Api<DynamicObject> = Api::namespaced_with(
            self.bed.admin.clone(),
            NAMESPACE,
            &ApiResource::erase::<LlamaStackDistribution>(&()),
        );
        api.create(&PostParams::default(), &serde_json::from_value(object)?)
            .await?;
        Ok(())
    }

    async fn patch(&self, name: &str, patch: Value) -> Result<()> {
        let api = self.all::<LlamaStackDistribution>();
        api.patch(name, &PatchParams::default(), &Patch::Merge(patch)).await?;
        Ok(())
    }

    async fn status(
        &self,
        name: &str,
        what: &str,
        wanted: impl Fn(&LlamaStackDistributionStatus) -> bool,
    ) -> Result<LlamaStackDistributionStatus> {
        eventually(PATIENCE, async || {
            let llsd = self.all::<LlamaStackDistribution>().get(name).await?;
            match llsd.status {
                Some(status) if wanted(&status) => Ok(status),
                status => bail!("{name} is not {what}: {}", serde_json::to_string_pretty(&status)?),
            }
        })
        .await
    }

    async fn deployment(&self, name: &str, what: &str, wanted: impl Fn(&Deployment) -> bool) -> Result<Deployment> {
        eventually(PATIENCE, async || {
            let deployment = self.all::<Deployment>().get(name).await?;
            ensure!(wanted(&deployment), "the Deployment is not {what}");
            Ok(deployment)
        })
        .await
    }

    /// The pod of the present template.
    async fn pod(&self, name: &str) -> Result<Pod> {
        eventually(PATIENCE, async || {
            let template = annotation(&self.all::<Deployment>().get(name).await?, labels::TEMPLATE);
            let pods = self
                .all::<Pod>()
                .list(&ListParams::default().labels(&format!("{}={name}", labels::INSTANCE)))
                .await?;
            pods.items
                .into_iter()
                .find(|p| p.annotations().get(labels::TEMPLATE) == template.as_ref())
                .context("no pod of the present template")
        })
        .await
    }

    /// Pod status as a kubelet writes it.
    async fn kubelet_says(&self, pod: &Pod, status: Value) -> Result<()> {
        let api = self.all::<Pod>();
        let patch = Patch::Merge(json!({ "status": status }));
        api.patch_status(&pod.name_any(), &PatchParams::default(), &patch)
            .await?;
        Ok(())
    }

    /// Everything in the pod went well.
    async fn pod_is_ready(&self, pod: &Pod) -> Result<()> {
        let spec = pod.spec.clone().unwrap_or_default();
        let since = "2026-11-21T10:00:00Z";
        let container = |name: &str, state: Value| json!({ "name": name, "image": "x", "imageID": "", "ready": true, "restartCount": 0, "state": state });
        let inits: Vec<Value> = spec
            .init_containers
            .iter()
            .flatten()
            .map(|c| container(&c.name, json!({ "terminated": { "exitCode": 0 } })))
            .collect();
        let servers: Vec<Value> = spec
            .containers
            .iter()
            .map(|c| container(&c.name, json!({ "running": {} })))
            .collect();
        self.kubelet_says(
            pod,
            json!({
                "phase": "Running",
                "conditions": [{ "type": "Ready", "status": "True", "lastTransitionTime": since }],
                "initContainerStatuses": inits,
                "containerStatuses": servers,
            }),
        )
        .await
    }
}

fn annotation(deployment: &Deployment, key: &str) -> Option<String> {
    let template = &deployment.spec.as_ref()?.template;
    template.metadata.as_ref()?.annotations.as_ref()?.get(key).cloned()
}

fn init_images(deployment: &Deployment) -> Vec<String> {
    let spec = deployment.spec.as_ref().and_then(|s| s.template.spec.as_ref());
    let containers = spec.and_then(|s| s.init_containers.clone()).unwrap_or_default();
    containers.into_iter().filter_map(|c| c.image).collect()
}

fn echo(image: &str) -> Value {
    json!({
        "server": {
            "distribution": { "image": "registry.example/distribution:1" },
            "externalProviders": { "inference": [{ "providerId": "echo", "image": image, "config": { "prefix": "$$ $(HOME)" } }] },
        },
    })
}

#[tokio::test]
async fn create_fail_mend_serve_and_delete() -> Result<()> {
    let user = User::new().await?;
    let _operator = user.bed.llama_stack().await?;
    user.create("stack", echo("registry.example/echo:1")).await?;

    // Everything is made and owned; one init container for each step.
    let deployment = user.deployment("stack", "there", |_| true).await?;
    ensure!(
        init_images(&deployment)
            == [
                "registry.example/echo:1",
                "registry.example/distribution:1",
                "registry.example/operator:1"
            ],
        "{:?}",
        init_images(&deployment)
    );
    for owned in [
        user.all::<ServiceAccount>().get("stack-sa").await?.metadata,
        user.all::<ConfigMap>().get("stack-scripts").await?.metadata,
        user.all::<Service>().get("stack-service").await?.metadata,
        deployment.metadata.clone(),
    ] {
        let owners = owned.owner_references.unwrap_or_default();
        ensure!(owners.iter().any(|o| o.kind == "LlamaStackDistribution"), "{owners:?}");
    }
    user.bed.event("stack", "ResourceCreated").await?;
    let status = user
        .status("stack", "starting", |s| {
            s.phase == Some(DistributionPhase::Initializing)
        })
        .await?;
    ensure!(status.observed_generation == Some(1) && status.external_providers.len() == 1);

    // The kubelet cannot have the image: the status says which, where and what to do.
    let pod = user.pod("stack").await?;
    let waiting = json!({ "waiting": { "reason": "ImagePullBackOff", "message": "Back-off pulling image: ErrImagePull: no such host" } });
    user.kubelet_says(
        &pod,
        json!({ "initContainerStatuses": [
            { "name": "external-provider-echo", "image": "x", "imageID": "", "ready": false, "restartCount": 0, "state": waiting },
        ] }),
    )
    .await?;
    let failed = user
        .status("stack", "failed", |s| s.phase == Some(DistributionPhase::Failed))
        .await?;
    let provider = failed.external_providers.first().context("no provider")?;
    ensure!(provider.phase == ProviderPhase::Failed && provider.reason.as_deref() == Some("ImagePullFailed"));
    let message = provider.message.clone().unwrap_or_default();
    ensure!(
        message.contains("Failed to pull provider image registry.example/echo:1") && message.contains("no such host"),
        "{message}"
    );
    ensure!(
        provider
            .resolution
            .as_deref()
            .unwrap_or_default()
            .contains("imagePullSecrets")
    );
    user.bed.event("stack", "ImagePullFailed").await?;

    // Another image: a new pod. It becomes ready, and so does everything.
    let images = json!([{ "providerId": "echo", "image": "registry.example/echo:2" }]);
    user.patch(
        "stack",
        json!({ "spec": { "server": { "externalProviders": { "inference": images } } } }),
    )
    .await?;
    user.deployment("stack", "up to date", |d| {
        init_images(d).first().map(String::as_str) == Some("registry.example/echo:2")
    })
    .await?;
    user.pod_is_ready(&user.pod("stack").await?).await?;
    let ready = user
        .status("stack", "ready", |s| s.conditions.is_true(condition::READY))
        .await?;
    ensure!(ready.phase == Some(DistributionPhase::Ready) && ready.observed_generation == Some(2));
    ensure!(
        ready.external_providers.first().map(|p| p.phase) == Some(ProviderPhase::Ready),
        "{ready:?}"
    );
    ensure!(ready.available_replicas == Some(1));

    // Without providers there is nothing left of them.
    user.patch("stack", json!({ "spec": { "server": { "externalProviders": null } } }))
        .await?;
    user.deployment("stack", "plain", |d| init_images(d).is_empty()).await?;
    eventually(PATIENCE, async || {
        ensure!(user.all::<ConfigMap>().get_opt("stack-scripts").await?.is_none());
        Ok(())
    })
    .await?;

    // Storage: the strategy follows, there and back.
    user.patch(
        "stack",
        json!({ "spec": { "server": { "storage": { "size": "1024Mi" } } } }),
    )
    .await?;
    let strategy = |d: &Deployment| d.spec.as_ref()?.strategy.as_ref()?.type_.clone();
    user.deployment("stack", "recreated", |d| strategy(d).as_deref() == Some("Recreate"))
        .await?;
    ensure!(
        user.all::<PersistentVolumeClaim>()
            .get_opt("stack-pvc")
            .await?
            .is_some()
    );
    user.patch("stack", json!({ "spec": { "server": { "storage": null } } }))
        .await?;
    user.deployment("stack", "rolling", |d| strategy(d).as_deref() == Some("RollingUpdate"))
        .await?;

    // Direct edits are reverted.
    let edit = Patch::Merge(json!({ "spec": { "selector": { "app": "evil" } } }));
    user.all::<Service>()
        .patch("stack-service", &PatchParams::default(), &edit)
        .await?;
    eventually(PATIENCE, async || {
        let service = user.all::<Service>().get("stack-service").await?;
        let selector = service.spec.and_then(|s| s.selector).unwrap_or_default();
        ensure!(
            selector.get("app").map(String::as_str) == Some("llama-stack"),
            "{selector:?}"
        );
        Ok(())
    })
    .await?;
    user.bed.event("stack", "DriftDetected").await?;

    let all = user.all::<LlamaStackDistribution>();
    all.delete("stack", &DeleteParams::background()).await?;
    eventually(PATIENCE, async || {
        ensure!(user.all::<Deployment>().get_opt("stack").await?.is_none());
        ensure!(user.all::<Service>().get_opt("stack-service").await?.is_none());
        ensure!(user.all::<ServiceAccount>().get_opt("stack-sa").await?.is_none());
        Ok(())
    })
    .await
}

#[tokio::test]
async fn the_api_server_refuses_what_makes_no_sense() -> Result<()> {
    let user = User::new().await?;
    let with = |server: Value| {
        let mut all = json!({ "distribution": { "name": "starter" } });
        for (key, value) in server.as_object().cloned().unwrap_or_default() {
            all[key] = value;
        }
        json!({ "server": all })
    };
    let provider = |id: &str, image: &str| json!({ "providerId": id, "image": image });
    let long = "a".repeat(46);
    for (name, spec, reported) in [
        (
            "both",
            with(json!({ "distribution": { "name": "a", "image": "b" } })),
            "Only one of name or image",
        ),
        ("neither", with(json!({ "distribution": {} })), "needs a name"),
        (
            "replicas",
            json!({ "replicas": -1, "server": { "distribution": { "name": "a" } } }),
            "greater than or equal to 0",
        ),
        (
            "port",
            with(json!({ "containerSpec": { "port": 70000 } })),
            "less than or equal to 65535",
        ),
        (
            "budget",
            with(json!({ "podDisruptionBudget": { "minAvailable": 1, "maxUnavailable": 1 } })),
            "not both",
        ),
        (
            "scaling",
            with(json!({ "autoscaling": { "minReplicas": 3, "maxReplicas": 2 } })),
            "must not be larger",
        ),
        ("workers", with(json!({ "workers": 0 })), "greater than or equal to 1"),
        (
            "quantity",
            with(json!({ "storage": { "size": "much" } })),
            "storage.size",
        ),
        (
            "mount",
            with(json!({ "storage": { "mountPath": "data" } })),
            "absolute path",
        ),
        (
            "label",
            json!({ "network": { "allowedFrom": { "labels": ["team=a"] } }, "server": { "distribution": { "name": "a" } } }),
            "without a value",
        ),
        (
            "keys",
            with(json!({ "tlsConfig": { "caBundle": { "configMapName": "a", "configMapKeys": ["../x"] } } })),
            "configMapKeys",
        ),
        (
            "long-id",
            with(json!({ "externalProviders": { "inference": [provider(&long, "a")] } })),
            "may not be more than 45 bytes",
        ),
        (
            "bad-id",
            with(json!({ "externalProviders": { "inference": [provider("Echo_1", "a")] } })),
            "lower case letters",
        ),
        (
            "no-image",
            with(json!({ "externalProviders": { "inference": [{ "providerId": "a" }] } })),
            "image: Required value",
        ),
        (
            "blank-image",
            with(json!({ "externalProviders": { "inference": [provider("a", "x y")] } })),
            "must not contain spaces",
        ),
        (
            "policy",
            with(
                json!({ "externalProviders": { "safety": [{ "providerId": "a", "image": "b", "imagePullPolicy": "Often" }] } }),
            ),
            "Unsupported value",
        ),
        (
            "twice",
            with(json!({ "externalProviders": { "inference": [provider("a", "one"), provider("a", "two")] } })),
            "'a' (inference, image one) and 'a' (inference, image two)",
        ),
        (
            "across",
            with(
                json!({ "externalProviders": { "inference": [provider("a", "one")], "vectorIo": [provider("b", "three"), provider("a", "two")] } }),
            ),
            "'a' (inference, image one) and 'a' (vectorIo, image two)",
        ),
        ("Upper", with(json!({})), "metadata.name"),
        ("1digit", with(json!({})), "beginning with a letter"),
        (&"n".repeat(56), with(json!({})), "at most 55"),
    ] {
        match user.create(name, spec).await {
            Ok(()) => bail!("{name} was accepted"),
            Err(error) => ensure!(format!("{error:#}").contains(reported), "{name}: {error:#}"),
        }
    }
    // What only looks strange is taken: numbers as quantities, the most providers, every list full.
    let full: Vec<Value> = (0..16).map(|n| provider(&format!("p{n}"), &"i".repeat(512))).collect();
    user.create("full", with(json!({ "externalProviders": { "inference": full }, "containerSpec": { "resources": { "limits": { "cpu": 4 } } } })))
        .await?;
    Ok(())
}

#[tokio::test]
async fn named_objects_are_followed() -> Result<()> {
    let user = User::new().await?;
    let _operator = user.bed.llama_stack().await?;
    let config =
        json!({ "server": { "distribution": { "name": "starter" }, "userConfig": { "configMapName": "config" } } });
    user.create("configured", config).await?;
    let waits = user
        .status("configured", "waiting", |s| s.phase == Some(DistributionPhase::Pending))
        .await?;
    ensure!(
        waits
            .message
            .unwrap_or_default()
            .contains("ConfigMap 'config' does not exist")
    );

    // The ConfigMap comes, and is noticed. Its content counts, and nothing else of it.
    let config_maps = user.all::<ConfigMap>();
    let of = |text: &str| -> Result<ConfigMap> {
        Ok(serde_json::from_value(
            json!({ "metadata": { "name": "config" }, "data": { "run.yaml": text } }),
        )?)
    };
    config_maps.create(&PostParams::default(), &of("version: 2")?).await?;
    let first = user.deployment("configured", "there", |_| true).await?;
    let hash = |d: &Deployment| annotation(d, labels::USER_CONFIG_HASH);
    let label = Patch::Merge(json!({ "metadata": { "labels": { "a": "b" } } }));
    config_maps.patch("config", &PatchParams::default(), &label).await?;
    let data = Patch::Merge(json!({ "data": { "run.yaml": "version: 2 # changed" } }));
    config_maps.patch("config", &PatchParams::default(), &data).await?;
    let second = user
        .deployment("configured", "rolled", |d| hash(d) != hash(&first))
        .await?;
    ensure!(
        second.metadata.generation == Some(2),
        "one change, one roll: {:?}",
        second.metadata.generation
    );

    // A ModelDeployment's endpoint goes into the provider's configuration, and is followed.
    let mut spec = echo("registry.example/vllm:1");
    spec["server"]["externalProviders"]["inference"][0]["config"] =
        json!({ "modelDeploymentRef": { "name": "gemma" } });
    user.create("remote", spec).await?;
    user.status("remote", "waiting", |s| {
        s.message
            .as_deref()
            .unwrap_or_default()
            .contains("ModelDeployment 'gemma' does not exist")
    })
    .await?;
    user.bed.create(runway_product_testbed::gemma("gemma")).await?;
    let models = user.all::<ModelDeployment>();
    for port in [80, 81] {
        let status = Patch::Merge(json!({ "status": { "endpoint": { "service": "gemma", "port": port } } }));
        models.patch_status("gemma", &PatchParams::default(), &status).await?;
        let url = format!("http://gemma.{NAMESPACE}.svc.cluster.local:{port}/v1");
        user.deployment("remote", "up to date", |d| {
            given_config(d).is_some_and(|c| c["config"]["url"] == json!(url))
        })
        .await?;
    }
    Ok(())
}

/// Environment of the first provider's container.
fn given_config(deployment: &Deployment) -> Option<Value> {
    let spec = deployment.spec.as_ref()?.template.spec.as_ref()?;
    let env = spec.init_containers.as_ref()?.first()?.env.as_ref()?;
    let value = env.iter().find(|v| v.name == "LLS_CRD_CONFIG")?.value.clone()?;
    let ByteString(bytes) = serde_json::from_value(json!(value)).ok()?;
    serde_json::from_slice(&bytes).ok()
}

#[tokio::test]
async fn objects_of_others_are_not_changed() -> Result<()> {
    let user = User::new().await?;
    let _operator = user.bed.llama_stack().await?;
    let claim = json!({
        "metadata": { "name": "stack-pvc" },
        "spec": { "accessModes": ["ReadWriteOnce"], "resources": { "requests": { "storage": "1Gi" } } },
    });
    let claims = user.all::<PersistentVolumeClaim>();
    claims
        .create(&PostParams::default(), &serde_json::from_value(claim)?)
        .await?;
    user.create(
        "stack",
        json!({ "server": { "distribution": { "name": "starter" }, "storage": { "size": "1Gi" } } }),
    )
    .await?;
    let status = user
        .status("stack", "failed", |s| s.phase == Some(DistributionPhase::Failed))
        .await?;
    let message = status.message.unwrap_or_default();
    ensure!(
        message.contains("PersistentVolumeClaim 'stack-pvc' exists and was not created for"),
        "{message}"
    );
    ensure!(claims.get("stack-pvc").await?.owner_references().is_empty());
    Ok(())
}

#[tokio::test]
async fn object_without_our_label_is_still_ours() -> Result<()> {
    let user = User::new().await?;
    let _operator = user.bed.llama_stack().await?;
    user.create("stack", json!({ "server": { "distribution": { "name": "starter" } } }))
        .await?;
    user.deployment("stack", "there", |_| true).await?;
    // Without the label it is in none of the operator's watches, and the field has got another owner.
    let edit = json!({ "metadata": { "labels": { labels::MANAGED_BY: null } }, "spec": { "replicas": 3 } });
    user.all::<Deployment>()
        .patch("stack", &PatchParams::default(), &Patch::Merge(edit))
        .await?;
    user.deployment("stack", "as it was", |d| {
        d.labels().contains_key(labels::MANAGED_BY) && d.spec.as_ref().is_some_and(|spec| spec.replicas == Some(1))
    })
    .await?;
    Ok(())
}

#[tokio::test]
async fn paused_object_is_not_changed_until_it_is_resumed() -> Result<()> {
    let user = User::new().await?;
    let _operator = user.bed.llama_stack().await?;
    user.create("stack", json!({ "server": { "distribution": { "name": "starter" } } }))
        .await?;
    user.deployment("stack", "there", |_| true).await?;
    let pause = |value: Value| json!({ "metadata": { "annotations": { labels::PAUSED: value } } });
    user.patch("stack", pause(json!("true"))).await?;
    user.patch("stack", json!({ "spec": { "replicas": 2 } })).await?;
    // It has seen the wish, and says only that it is paused.
    let looked = |s: &LlamaStackDistributionStatus| {
        let paused = s.conditions.get_condition(condition::PAUSED);
        paused.is_some_and(|c| c.status == "True" && c.observed_generation == Some(2))
    };
    user.status("stack", "paused", looked).await?;
    let replicas = |d: &Deployment| d.spec.as_ref().and_then(|spec| spec.replicas);
    ensure!(replicas(&user.all::<Deployment>().get("stack").await?) == Some(1));

    user.patch("stack", pause(Value::Null)).await?;
    user.deployment("stack", "as wanted", |d| replicas(d) == Some(2))
        .await?;
    user.status("stack", "resumed", |s| !s.conditions.is_true(condition::PAUSED))
        .await?;
    Ok(())
}

#[tokio::test]
async fn the_operator_says_what_it_would_change_and_the_chain_is_shown() -> Result<()> {
    let user = User::new().await?;
    let operator = user.bed.llama_stack().await?;
    user.create("stack", json!({"server": {"distribution": {"name": "starter"}}}))
        .await?;
    user.deployment("stack", "there", |_| true).await?;
    let cluster = Cluster::of(user.bed.admin.clone(), "the test's", NAMESPACE.parse()?);
    let distributions = user.all::<LlamaStackDistribution>();
    let asked = async || {
        Ok::<_, anyhow::Error>(
            operated::of_distribution(&cluster, distributions.get("stack").await?, clock::now()).await?,
        )
    };
    eventually(PATIENCE, async || {
        let diff = asked().await?;
        ensure!(diff.is_empty() && diff.changes.len() > 2, "{diff:?}");
        Ok(())
    })
    .await?;

    // No controller reverts it.
    operator.stop().await;
    let more = json!({"spec": {"replicas": 3}});
    user.all::<Deployment>()
        .patch("stack", &PatchParams::default(), &Patch::Merge(&more))
        .await?;
    let diff = asked().await?;
    let shown = diff::screen(&diff);
    ensure!(
        shown.contains("Deployment/stack") && shown.contains("spec.replicas: 3 → 1"),
        "{shown}"
    );

    // What is not applied yet is tried first, then what would be made of it.
    let written = json!({"apiVersion": "llamastack.io/v1alpha1", "kind": "LlamaStackDistribution", "metadata": {"name": "stack"},
        "spec": {"replicas": 2, "server": {"distribution": {"name": "starter"}}}});
    let tried = operated::of_new_distribution(&cluster, &serde_json::from_value(written)?, clock::now()).await?;
    let shown = diff::screen(&tried);
    ensure!(shown.contains("spec.replicas: 3 → 2"), "{shown}");
    ensure!(
        distributions.get("stack").await?.spec.replicas != Some(2),
        "a look has changed it"
    );

    let tree = Source::from(cluster)
        .tree_of_distribution(&distributions.get("stack").await?)
        .await;
    let objects: Vec<String> = tree.rows().iter().map(Row::object).collect();
    for object in [
        "LlamaStackDistribution/stack",
        "Deployment/stack",
        "Service/stack-service",
    ] {
        ensure!(
            objects.iter().any(|there| there == object),
            "{object} is not in {objects:?}"
        );
    }
    ensure!(tree.missing.is_empty() && tree.broken.is_some(), "{tree:?}");
    Ok(())
}

#[tokio::test]
async fn few_writes_then_silence_also_after_a_restart() -> Result<()> {
    const OBJECTS: usize = 100;
    let user = User::new().await?;
    let operator = user.bed.llama_stack().await?;
    let mark = user.bed.cluster.audit().await?.mark().await?;
    for index in 0..OBJECTS {
        user.create(&format!("stack-{index}"), echo("registry.example/echo:1"))
            .await?;
    }
    for index in 0..OBJECTS {
        user.status(&format!("stack-{index}"), "starting", |s| {
            s.phase == Some(DistributionPhase::Initializing)
        })
        .await?;
        user.pod(&format!("stack-{index}")).await?;
    }
    tokio::time::sleep(Duration::from_secs(5)).await;
    let ours = |requests: Vec<audit::Request>| -> Vec<audit::Request> {
        requests
            .into_iter()
            .filter(|r| r.user == labels::MANAGER && r.name.starts_with("stack-") && r.resource != "events")
            .collect()
    };
    let all = user.bed.cluster.audit().await?.since(mark).await?;
    let made = ours(all);
    let count = audit::Count::of(&made);
    println!("{OBJECTS} distributions: {} writes, {} reads", count.write, count.read);
    for (key, n) in audit::count_by(&made, |r| {
        (r.verb.clone(), r.resource.clone(), r.subresource.clone(), r.code)
    }) {
        println!("  {key:?}: {n:?}");
    }
    ensure!(count.write <= 8 * OBJECTS, "{} writes", count.write);
    ensure!(count.read <= 2 * OBJECTS, "{} reads", count.read);

    let mark = user.bed.cluster.audit().await?.mark().await?;
    tokio::time::sleep(Duration::from_secs(30)).await;
    let quiet = user.bed.cluster.audit().await?.since(mark).await?;
    let quiet: Vec<_> = quiet
        .iter()
        .filter(|r| r.user == labels::MANAGER && r.verb != "watch")
        .collect();
    ensure!(quiet.is_empty(), "at rest: {quiet:?}");

    let mark = user.bed.cluster.audit().await?.mark().await?;
    drop(operator);
    let _operator = user.bed.llama_stack().await?;
    tokio::time::sleep(Duration::from_secs(10)).await;
    let after = ours(user.bed.cluster.audit().await?.since(mark).await?);
    ensure!(after.is_empty(), "after a restart: {:?}", after.first());

    Ok(())
}
