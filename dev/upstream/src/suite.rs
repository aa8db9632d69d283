//! The tests of a provider against its real upstream, in the order of a model's life.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use k8s_openapi::api::core::v1::{Namespace, Node};
use kube::api::{DeleteParams, ListParams, Patch, PatchParams, PostParams};
use kube::core::DynamicObject;
use kube::{Api, Client, ResourceExt};
use runway_api::condition::{self, Conditions};
use runway_api::model_deployment::{DEFAULT_GPU, ServingMode};
use runway_api::{InferenceProviderConfig, ModelDeployment, ModelDeploymentStatus, ProviderReason, labels};
use runway_dev_support::step;
use runway_provider::Provider;
use runway_provider::upstream::{api_resource, crd_name};
use runway_testbed::eventually;
use serde_json::{Value, json};

use super::report::{Case, Report, Verdict};

/// Name of the model that is served.
const SERVED: &str = "served";
/// An image of llama.cpp's server that runs without a GPU.
const CPU_IMAGE: &str = "ghcr.io/ggml-org/llama.cpp:server";
/// A small model that it loads.
const CPU_MODEL: &str = "ggml-org/gemma-3-270m-it-GGUF";

/// The tested provider, and its cluster.
pub(super) struct Suite {
    pub(super) client: Client,
    pub(super) provider: Arc<dyn Provider>,
    pub(super) namespace: String,
    /// The model to serve, instead of the built-in one.
    pub(super) model: Option<ModelDeployment>,
    pub(super) patience: Duration,
}

/// Reason why something cannot be tested, if that is the result.
type Tested = Result<Option<String>>;

impl Suite {
    /// Runs all tests.
    pub(super) async fn run(&self) -> Result<Report> {
        let mut report = Report {
            provider: self.provider.name().to_owned(),
            kubernetes: self.client.apiserver_version().await?.git_version,
            upstream: Vec::new(),
            cases: Vec::new(),
        };
        self.tests(&mut report).await?;
        let namespaces: Api<Namespace> = Api::all(self.client.clone());
        namespaces.delete(&self.namespace, &DeleteParams::default()).await?;
        Ok(report)
    }

    async fn tests(&self, report: &mut Report) -> Result<()> {
        let registered = record(report, "the provider registers and is ready", self.registers()).await;
        report.upstream = self.upstream_versions().await?;
        if !registered {
            return Ok(());
        }
        for (what, spec) in self.specs() {
            let name = format!("accepts {what}");
            record(report, &name, self.accepts(spec)).await;
        }
        let (spec, gpus) = self.served();
        let allocatable = self.gpus().await?;
        let lacking = |replicas: i64| {
            let needed = gpus * replicas;
            (needed > allocatable)
                .then(|| format!("{needed} {DEFAULT_GPU} are needed, and the nodes of the cluster have {allocatable}"))
        };
        let serves = attempt(report, "serves a model", lacking(1), self.serves(&spec)).await;
        let obstacle = || lacking(1).or_else(|| (!serves).then(|| "the model does not serve".to_owned()));
        let drift = "reverts a change of its upstream object";
        attempt(report, drift, obstacle(), self.reverts_drift()).await;
        attempt(report, "rolls out a changed environment", obstacle(), self.rolls_out()).await;
        let scale = "scales to 2 replicas and back, at the same endpoint";
        attempt(report, scale, obstacle().or_else(|| lacking(2)), self.scales()).await;
        record(report, "deletes everything", self.deletes()).await;
        Ok(())
    }

    /// Creates the namespace of the models, which [`Self::run`] deletes.
    pub(super) async fn make_namespace(&self) -> Result<()> {
        let namespaces: Api<Namespace> = Api::all(self.client.clone());
        let namespace = serde_json::from_value(json!({"metadata": {"name": self.namespace}}))?;
        let created = namespaces.create(&PostParams::default(), &namespace).await;
        created.with_context(|| {
            let name = &self.namespace;
            format!("cannot create namespace '{name}': if an earlier run left it, delete it, or set --namespace")
        })?;
        Ok(())
    }

    async fn registers(&self) -> Tested {
        let configs: Api<InferenceProviderConfig> = Api::all(self.client.clone());
        eventually(self.patience, async || {
            let status = configs.get(self.provider.name()).await?.status.unwrap_or_default();
            let obstacles: Vec<_> = status.conditions.iter().filter(|c| c.status == "False").collect();
            ensure!(
                status.ready == Some(true) && status.last_heartbeat.is_some(),
                "not ready: {obstacles:?}"
            );
            // The webhooks see a registration a moment after the API server.
            let dry_run = PostParams {
                dry_run: true,
                ..PostParams::default()
            };
            if let Err(kube::Error::Api(refusal)) = self.create(SERVED, self.served().0, &dry_run).await {
                let mut causes = refusal.details.iter().flat_map(|details| &details.causes);
                ensure!(
                    causes.all(|cause| cause.field != "spec.provider.name"),
                    "{}",
                    refusal.message
                );
            }
            Ok(None)
        })
        .await
    }

    async fn upstream_versions(&self) -> Result<Vec<String>> {
        let configs: Api<InferenceProviderConfig> = Api::all(self.client.clone());
        let config = configs.get_opt(self.provider.name()).await?;
        let status = config.and_then(|config| config.status).unwrap_or_default();
        let kinds = self
            .provider
            .upstreams()
            .into_iter()
            .map(|upstream| crd_name(upstream.kind));
        let kinds = kinds.collect::<Vec<_>>().join(", ");
        Ok(vec![format!(
            "{kinds}: version {}, schema {}",
            status.upstream_crd_version.as_deref().unwrap_or("unknown"),
            status.upstream_schema_hash.as_deref().unwrap_or("unknown")
        )])
    }

    /// GPUs that the nodes of the cluster have.
    async fn gpus(&self) -> Result<i64> {
        let nodes: Api<Node> = Api::all(self.client.clone());
        let nodes = nodes.list(&ListParams::default()).await?.items.into_iter();
        let allocatable = nodes.filter_map(|node| node.status?.allocatable?.remove(DEFAULT_GPU));
        Ok(allocatable.filter_map(|amount| amount.0.parse::<i64>().ok()).sum())
    }

    /// A spec for each engine and mode of the provider, small and with many fields.
    fn specs(&self) -> Vec<(String, Value)> {
        let capabilities = self.provider.registration().capabilities;
        let mut specs = Vec::new();
        for engine in capabilities.engine_names() {
            let Some(support) = capabilities.for_engine(engine) else {
                continue;
            };
            for mode in support.serving_modes {
                let spec = self.spec(engine, mode);
                let what = format!("{engine}, {}", mode.as_str());
                specs.push((format!("{what}, with many fields"), with_many_fields(spec.clone())));
                specs.push((what, spec));
            }
        }
        specs.reverse();
        specs
    }

    fn spec(&self, engine: &str, mode: ServingMode) -> Value {
        let mut spec = json!({
            "provider": { "name": self.provider.name() },
            "model": { "id": if engine == "llamacpp" { CPU_MODEL } else { "Qwen/Qwen3-0.6B" } },
            "engine": { "type": engine },
        });
        let worker = json!({ "gpu": { "count": 1 }, "memory": "16Gi" });
        match mode {
            ServingMode::Disaggregated => {
                spec["serving"] = json!({ "mode": mode.as_str() });
                spec["scaling"] = json!({ "prefill": worker, "decode": worker });
            }
            ServingMode::Aggregated if engine == "llamacpp" => {
                spec["image"] = json!(CPU_IMAGE);
                spec["resources"] = json!({ "memory": "2Gi" });
            }
            ServingMode::Aggregated => spec["resources"] = worker,
        }
        spec
    }

    /// The spec to serve, and the GPUs of one replica: without GPUs where the provider can.
    fn served(&self) -> (Value, i64) {
        if let Some(model) = &self.model {
            let mut spec = json!(model.spec);
            spec["provider"]["name"] = json!(self.provider.name());
            return (spec, i64::from(model.spec.gpu_count()));
        }
        let capabilities = self.provider.registration().capabilities;
        let without_gpu = capabilities.for_engine("llamacpp").is_some_and(|support| support.cpu);
        if without_gpu {
            (self.spec("llamacpp", ServingMode::Aggregated), 0)
        } else {
            (self.spec("vllm", ServingMode::Aggregated), 1)
        }
    }

    /// The upstream accepts the objects: its schema, and its webhooks.
    async fn accepts(&self, spec: Value) -> Tested {
        if let Err(error) = self.create("accepted", spec, &PostParams::default()).await {
            return self.unless_rejected(error);
        }
        let accepted = eventually(self.patience, async || {
            let status = self.status("accepted").await?;
            let conditions = &status.conditions;
            let refused = |type_| {
                conditions
                    .when_false(type_)
                    .map(|c| (c.reason.clone(), c.message.clone()))
            };
            if let Some((reason, message)) = refused(condition::PROVIDER_COMPATIBLE) {
                // The provider says why it does not pass something on, which is not a failure of the upstream.
                let is_documented = reason == ProviderReason::Incompatible.as_str();
                return Ok(if is_documented { Ok(Some(message)) } else { Err(message) });
            }
            match refused(condition::RESOURCE_CREATED) {
                Some((reason, message)) if reason != ProviderReason::Creating.as_str() => return Ok(Err(message)),
                _ => {}
            }
            ensure!(
                conditions.is_true(condition::RESOURCE_CREATED),
                "nothing is created: {status:?}"
            );
            Ok(Ok(None))
        })
        .await;
        self.delete("accepted").await?;
        accepted?.map_err(anyhow::Error::msg)
    }

    async fn serves(&self, spec: &Value) -> Tested {
        self.create(SERVED, spec.clone(), &PostParams::default()).await?;
        self.ready(1).await?;
        Ok(None)
    }

    /// A label that the provider's controller sets is removed from the main object.
    async fn reverts_drift(&self) -> Tested {
        let objects = self.objects().await?;
        let (api, object) = objects.first().context("there is no upstream object")?;
        let patch = json!({ "metadata": { "labels": { labels::PROVIDER: null } } });
        let (name, params) = (object.name_any(), PatchParams::default());
        api.patch(&name, &params, &Patch::Merge(&patch)).await?;
        eventually(self.patience, async || {
            let live = api.get(&name).await?;
            ensure!(
                live.labels().contains_key(labels::PROVIDER),
                "the label is not restored"
            );
            Ok(None)
        })
        .await
    }

    async fn rolls_out(&self) -> Tested {
        self.change(json!({ "env": [{ "name": "UPSTREAM_TEST", "value": "2" }] }))
            .await
    }

    async fn scales(&self) -> Tested {
        let before = self.status(SERVED).await?.endpoint;
        for replicas in [2, 1] {
            if let Some(reason) = self.change(json!({ "scaling": { "replicas": replicas } })).await? {
                return Ok(Some(reason));
            }
            let endpoint = self.ready(replicas).await?.endpoint;
            ensure!(
                endpoint == before,
                "{replicas} replicas: {endpoint:?} instead of {before:?}"
            );
        }
        Ok(None)
    }

    /// The model is deleted, with every object that was created for it.
    async fn deletes(&self) -> Tested {
        let objects = self.objects().await?;
        self.delete(SERVED).await?;
        eventually(self.patience, async || {
            for (api, object) in &objects {
                let left = api.get_opt(&object.name_any()).await?;
                ensure!(left.is_none(), "{} is still there", object.name_any());
            }
            Ok(None)
        })
        .await
    }

    /// Changes the spec of the served model, and waits until this generation serves.
    async fn change(&self, spec: Value) -> Tested {
        let params = PatchParams::default();
        let patch = Patch::Merge(json!({ "spec": spec }));
        if let Err(error) = self.models().patch(SERVED, &params, &patch).await {
            return self.unless_rejected(error);
        }
        eventually(self.patience, async || {
            let md = self.models().get(SERVED).await?;
            let status = md.status.clone().unwrap_or_default();
            ensure!(
                status.observed_generation == md.metadata.generation,
                "not observed: {status:?}"
            );
            if let Some(c) = status.conditions.when_false(condition::PROVIDER_COMPATIBLE) {
                return Ok(Some(c.message.clone()));
            }
            ensure!(is_ready(&md), "not ready: {status:?}");
            Ok(None)
        })
        .await
    }

    /// The reason why a spec cannot be tested, if admission rejected it for the provider; otherwise the error.
    fn unless_rejected(&self, error: kube::Error) -> Tested {
        match rejected_for(&error, self.provider.name()) {
            Some(reason) => Ok(Some(reason)),
            None => Err(error.into()),
        }
    }

    /// Waits until the served model is ready with so many replicas.
    async fn ready(&self, replicas: i32) -> Result<ModelDeploymentStatus> {
        eventually(self.patience, async || {
            let md = self.models().get(SERVED).await?;
            let status = md.status.clone().unwrap_or_default();
            let ready = status.replicas.as_ref().and_then(|replicas| replicas.ready);
            ensure!(is_ready(&md) && ready == Some(replicas), "not ready: {status:?}");
            Ok(status)
        })
        .await
    }

    /// The existing objects of the served model, the main one first.
    async fn objects(&self) -> Result<Vec<(Api<DynamicObject>, DynamicObject)>> {
        let main = self.status(SERVED).await.ok().and_then(|status| status.provider);
        let main = main.and_then(|provider| provider.resource_kind);
        let served: BTreeMap<_, _> = self
            .provider
            .upstreams()
            .into_iter()
            .map(|u| (u.kind, u.schemas))
            .collect();
        let mut found = Vec::new();
        for child in self.provider.children(SERVED) {
            let schemas = served.get(&child.kind).copied().unwrap_or_default();
            let versions = schemas.iter().map(|schema| schema.version);
            let built_in = schemas.is_empty().then_some(child.kind.version);
            for version in versions.chain(built_in) {
                let resource = api_resource(child.kind, version);
                let api: Api<DynamicObject> = Api::namespaced_with(self.client.clone(), &self.namespace, &resource);
                if let Some(object) = api.get_opt(&child.name).await? {
                    found.push((main.as_deref() != Some(child.kind.kind), api, object));
                    break;
                }
            }
        }
        found.sort_by_key(|(is_auxiliary, ..)| *is_auxiliary);
        Ok(found.into_iter().map(|(_, api, object)| (api, object)).collect())
    }

    fn models(&self) -> Api<ModelDeployment> {
        Api::namespaced(self.client.clone(), &self.namespace)
    }

    async fn status(&self, name: &str) -> Result<ModelDeploymentStatus> {
        Ok(self.models().get(name).await?.status.unwrap_or_default())
    }

    async fn create(&self, name: &str, spec: Value, params: &PostParams) -> Result<(), kube::Error> {
        let model = json!({
            "apiVersion": "kubeairunway.ai/v1alpha1", "kind": "ModelDeployment", "metadata": { "name": name }, "spec": spec,
        });
        let model = serde_json::from_value(model).map_err(kube::Error::SerdeError)?;
        self.models().create(params, &model).await.map(|_| ())
    }

    async fn delete(&self, name: &str) -> Result<()> {
        match self.models().delete(name, &DeleteParams::default()).await {
            Ok(_) => {}
            Err(kube::Error::Api(status)) if status.is_not_found() => return Ok(()),
            Err(error) => return Err(error.into()),
        }
        eventually(self.patience, async || match self.models().get_opt(name).await? {
            None => Ok(()),
            Some(md) => bail!("{name} is still there: {:?}", md.status),
        })
        .await
    }
}

/// The message of our webhook about a spec that the registration of this provider does not support (`core::admission`): a violation
/// of its capabilities, or of its rules, which concern the spec as a whole. Any other rejection is a failure.
fn rejected_for(error: &kube::Error, provider: &str) -> Option<String> {
    let kube::Error::Api(status) = error else { return None };
    let (_, message) = status.message.split_once("denied the request: ")?;
    let of_capabilities = format!("provider '{provider}' ");
    let causes = &status.details.as_ref()?.causes;
    let is_of_provider = causes
        .iter()
        .all(|cause| cause.field == "spec" || cause.message.starts_with(&of_capabilities));
    (is_of_provider && !causes.is_empty()).then(|| message.to_owned())
}

fn is_ready(md: &ModelDeployment) -> bool {
    let ready = md.conditions().when_true(condition::READY);
    ready.is_some_and(|c| c.observed_generation == md.metadata.generation)
}

/// Fields that providers write in different places of their objects.
fn with_many_fields(mut spec: Value) -> Value {
    spec["model"]["servedName"] = json!("upstream-test");
    spec["model"]["storage"] =
        json!({ "volumes": [{ "name": "cache", "purpose": "modelCache", "claimName": "upstream-test" }] });
    spec["engine"]["contextLength"] = json!(2048);
    spec["env"] = json!([{ "name": "UPSTREAM_TEST", "value": "1" }]);
    spec["podTemplate"] = json!({
        "metadata": { "labels": { "upstream-test": "a" }, "annotations": { "example.com/upstream-test": "a" } },
        "spec": { "priorityClassName": "system-node-critical", "securityContext": { "fsGroup": 1000 }, "shmSize": "1Gi" },
    });
    spec["nodeSelector"] = json!({ "upstream-test": "a" });
    spec["tolerations"] = json!([{ "key": "upstream-test", "operator": "Exists" }]);
    spec["imagePullSecrets"] = json!([{ "name": "upstream-test" }]);
    spec["serviceAccountName"] = json!("default");
    spec["secrets"] = json!({ "huggingFaceToken": "upstream-test" });
    spec
}

/// Runs a test unless there is an obstacle; whether it passed.
async fn attempt(
    report: &mut Report,
    name: &str,
    obstacle: Option<String>,
    test: impl Future<Output = Tested>,
) -> bool {
    match obstacle {
        Some(reason) => record(report, name, async { Ok(Some(reason)) }).await,
        None => record(report, name, test).await,
    }
}

/// Runs a test and records its result; whether it passed.
async fn record(report: &mut Report, name: &str, test: impl Future<Output = Tested>) -> bool {
    step(name);
    let started = Instant::now();
    let verdict = match test.await {
        Ok(None) => Verdict::Passed,
        Ok(Some(reason)) => Verdict::Skipped(reason),
        Err(error) => Verdict::Failed(format!("{error:#}")),
    };
    let passed = matches!(verdict, Verdict::Passed);
    report.cases.push(Case {
        name: name.to_owned(),
        verdict,
        took: started.elapsed(),
    });
    passed
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rejection_by_the_registration_of_the_provider_is_not_a_failure() {
        let denied = "admission webhook \"validation.kubeairunway.ai\" denied the request: ";
        let rejected = |message: &str, causes: Value| {
            let status = json!({
                "status": "Failure", "reason": "Invalid", "code": 422, "message": message, "details": { "causes": causes },
            });
            let error = kube::Error::Api(Box::new(serde_json::from_value(status).unwrap()));
            rejected_for(&error, "kaito")
        };
        let cause =
            |field: &str, message: &str| json!({ "reason": "FieldValueInvalid", "field": field, "message": message });

        let rule = "KAITO presets accept no env: set spec.image";
        let found = rejected(&format!("{denied}{rule}"), json!([cause("spec", rule)]));
        assert_eq!(found.as_deref(), Some(rule));
        let gap = "provider 'kaito' does not support sglang: change spec.engine.type";
        let found = rejected(&format!("{denied}{gap}"), json!([cause("spec.engine.type", gap)]));
        assert_eq!(found.as_deref(), Some(gap));

        let mistake = "engine.type is required";
        let causes = json!([cause("spec", rule), cause("spec.engine.type", mistake)]);
        assert_eq!(rejected(&format!("{denied}{rule}; {mistake}"), causes), None);
        assert_eq!(rejected(&format!("{denied}quota exceeded"), json!([])), None);
        let of_schema = "ModelDeployment.kubeairunway.ai \"accepted\" is invalid: spec.image: Too long";
        assert_eq!(rejected(of_schema, json!([cause("spec", "Too long")])), None);
    }
}
