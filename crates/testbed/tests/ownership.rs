//! Objects that are not ours but have the name of one that is needed: they stay as they are while our object is created,
//! changed and deleted, and the status says what is in the way.
#![allow(clippy::too_many_lines, reason = "a life is a story")]

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use k8s_openapi::api::core::v1::ConfigMap;
use kube::api::{DeleteParams, Patch, PatchParams, PostParams, ValidationDirective};
use kube::client::Body;
use kube::core::{ApiResource, DynamicObject, GroupVersionKind};
use kube::{Api, Client, ResourceExt};
use runway_api::LlamaStackDistribution;
use runway_api::condition::{self, Conditions};
use runway_api::labels::llama_stack as labels;
use runway_operator::apply::guarded;
use runway_operator::plan::{Admission, Apply};
use runway_product_testbed::{Bed, NAMESPACE, PATIENCE, Upstream, vllm};
use runway_testbed::{audit, eventually};
use serde_json::{Value, json};

const MANAGER: &str = "guard-test";

/// Foundation of the guard of an apply: a resource version that no object has keeps the server from changing an object and
/// not from creating one, and a uid keeps it from touching another object.
#[tokio::test]
async fn the_server_creates_or_changes_only_what_a_guarded_apply_means() -> Result<()> {
    let bed = Bed::start_with(Upstream::Kaito, false).await?;
    for object in [
        config_map("x"),
        claim("x"),
        service("x"),
        deployment("x"),
        json!({ "apiVersion": "kaito.sh/v1beta1", "kind": "Workspace", "metadata": { "name": "x", "namespace": NAMESPACE },
            "resource": { "labelSelector": { "matchLabels": { "a": "b" } } }, "inference": { "preset": { "name": "phi-4" } } }),
    ] {
        let guard = Guarded::new(&bed, &object)?;
        let kind = guard.apply.resource.kind.clone();
        for dry_run in [true, false] {
            guard
                .send(None, dry_run)
                .await
                .with_context(|| format!("create {kind}"))?;
        }
        let made = guard.api.get("x").await?;
        let managers = made
            .managed_fields()
            .iter()
            .filter(|m| m.manager.as_deref() == Some(MANAGER));
        let operations: Vec<_> = managers.map(|m| m.operation.as_deref().unwrap_or_default()).collect();
        ensure!(operations == ["Apply"], "{kind}: {operations:?}");
        let before = likeness(&made);
        for dry_run in [true, false] {
            refused(
                guard.send(None, dry_run).await,
                &[409],
                &format!("{kind} is there already"),
            )?;
            let other = Some("00000000-0000-0000-0000-000000000000");
            refused(guard.send(other, dry_run).await, &[422], &format!("another {kind}"))?;
            guard.send(made.uid().as_deref(), dry_run).await?;
        }
        ensure!(likeness(&guard.api.get("x").await?) == before, "{kind} was changed");
        guard
            .api
            .delete("x", &DeleteParams::background().grace_period(0))
            .await?;
        eventually(PATIENCE, async || {
            ensure!(guard.api.get_opt("x").await?.is_none());
            Ok(())
        })
        .await?;
        refused(
            guard.send(made.uid().as_deref(), false).await,
            &[409],
            &format!("a {kind} that is gone"),
        )?;
        ensure!(guard.api.get_opt("x").await?.is_none(), "{kind} was created again");
    }
    Ok(())
}

struct Guarded {
    api: Api<DynamicObject>,
    apply: Apply,
}

impl Guarded {
    fn new(bed: &Bed, object: &Value) -> Result<Self> {
        Ok(Self {
            api: api(bed, object)?,
            apply: Apply {
                resource: resource(object)?,
                object: serde_json::from_value(object.clone())?,
                live: None,
                force: true,
                admission: Admission::Together,
                unchanged: false,
                note: None,
            },
        })
    }

    async fn send(&self, live: Option<&str>, dry_run: bool) -> Result<DynamicObject, kube::Error> {
        let params = PatchParams {
            dry_run,
            field_validation: Some(ValidationDirective::Strict),
            ..PatchParams::apply(MANAGER).force()
        };
        let apply = Apply {
            live: live.map(str::to_owned),
            ..self.apply.clone()
        };
        self.api.patch("x", &params, &Patch::Apply(&guarded(&apply))).await
    }
}

fn refused(answer: Result<DynamicObject, kube::Error>, codes: &[u16], what: &str) -> Result<()> {
    match answer {
        Err(kube::Error::Api(status)) if codes.contains(&status.code) => Ok(()),
        other => bail!("{what}: {other:?}"),
    }
}

#[tokio::test]
async fn a_provider_leaves_a_foreign_config_map_alone() -> Result<()> {
    let bed = Bed::start().await?;
    let _core = bed.core().await?;
    let _kaito = bed.kaito().await?;
    let _simulator = bed.simulator().await?;
    bed.admission_is_up().await?;
    let maps: Api<ConfigMap> = Api::namespaced(bed.admin.clone(), NAMESPACE);
    let theirs = create(&bed, &config_map("llama-inference-config")).await?;
    let mut model = vllm("llama", "kaito");
    model["spec"]["engine"]["args"] = json!({ "max-num-seqs": "64" });
    bed.create(model).await?;

    let is_taken = |generation: i64| {
        move |s: &runway_api::ModelDeploymentStatus| {
            let ready = s.conditions.get_condition(condition::READY);
            s.observed_generation == Some(generation) && ready.is_some_and(|c| c.reason == "NameTaken")
        }
    };
    let status = bed
        .status("llama", "NameTaken", is_taken(1))
        .await?
        .status
        .unwrap_or_default();
    let message = status.message.unwrap_or_default();
    ensure!(
        message.contains("ConfigMap 'llama-inference-config'") && message.contains("managed by 'kubectl-create'"),
        "{message}"
    );
    ensure!(
        bed.event("llama", "ProviderError")
            .await?
            .contains("llama-inference-config")
    );
    ensure!(
        bed.inference_sets().get_opt("llama").await?.is_none(),
        "something was half made"
    );

    // It is tried again, and not in a hot loop.
    let audit = bed.cluster.audit().await?;
    let mark = audit.mark().await?;
    tokio::time::sleep(Duration::from_secs(5)).await;
    let requests = audit::of_user(&audit.since(mark).await?, "kaito-provider");
    let tries = requests
        .iter()
        .filter(|r| r.resource == "configmaps" && r.verb == "patch")
        .count();
    ensure!(tries <= 5, "{tries} tries in 5 seconds");

    bed.patch(
        "llama",
        json!({ "spec": { "engine": { "args": { "max-num-seqs": "32" } } } }),
    )
    .await?;
    bed.status("llama", "NameTaken", is_taken(2)).await?;
    bed.delete("llama").await?;
    bed.gone("llama").await?;
    unchanged(&bed, &theirs).await?;

    // Without it the model is made, with no help from the user.
    let mut model = vllm("llama", "kaito");
    model["spec"]["engine"]["args"] = json!({ "max-num-seqs": "64" });
    bed.create(model).await?;
    bed.status("llama", "NameTaken", is_taken(1)).await?;
    maps.delete("llama-inference-config", &DeleteParams::default()).await?;
    bed.running("llama").await?;
    ensure!(maps.get("llama-inference-config").await?.owner_references().len() == 1);
    bed.delete("llama").await?;
    bed.gone("llama").await
}

#[tokio::test]
async fn a_distribution_leaves_foreign_objects_alone_when_a_lookup_fails() -> Result<()> {
    let bed = Bed::start_with(Upstream::None, false).await?;
    let failures = Arc::new(AtomicUsize::new(0));
    let _operator = bed
        .llama_stack_through(|client| failing_lookups(client, failures.clone()))
        .await?;

    for (name, object) in [
        ("claimed", claim("claimed-pvc")),
        ("deployed", deployment("deployed")),
        ("served", service("served-service")),
    ] {
        let theirs = create(&bed, &object).await?;
        let lookups = failures.load(Ordering::SeqCst);
        create(&bed, &distribution(name)).await?;
        let message = taken(&bed, name, 1).await?;
        let named = format!(
            "{} '{}'",
            theirs.types.clone().unwrap_or_default().kind,
            theirs.name_any()
        );
        ensure!(
            message.contains(&named) && message.contains("managed by 'kubectl-create'"),
            "{message}"
        );
        ensure!(failures.load(Ordering::SeqCst) > lookups, "no lookup failed");
        unchanged(&bed, &theirs).await?;

        let changed = json!({ "spec": { "server": { "containerSpec": { "port": 9000 } } } });
        distributions(&bed)
            .patch(name, &PatchParams::default(), &Patch::Merge(changed))
            .await?;
        taken(&bed, name, 2).await?;

        // What was made is deleted with the owner, and nothing else.
        distributions(&bed).delete(name, &DeleteParams::background()).await?;
        let account =
            json!({ "apiVersion": "v1", "kind": "ServiceAccount", "metadata": { "name": format!("{name}-sa") } });
        eventually(PATIENCE, async || {
            ensure!(api(&bed, &account)?.get_opt(&format!("{name}-sa")).await?.is_none());
            Ok(())
        })
        .await?;
        unchanged(&bed, &theirs).await?;
    }
    Ok(())
}

#[tokio::test]
async fn distribution_adopts_its_own_object_without_labels_and_continues_when_a_name_is_free() -> Result<()> {
    let bed = Bed::start_with(Upstream::None, false).await?;
    let _operator = bed.llama_stack().await?;
    let theirs = create(&bed, &claim("stack-pvc")).await?;
    create(&bed, &distribution("stack")).await?;
    taken(&bed, "stack", 1).await?;
    let claims = api(&bed, &claim("stack-pvc"))?;
    claims.delete("stack-pvc", &DeleteParams::background()).await?;
    let services = api(&bed, &service("stack-service"))?;
    let made = eventually(PATIENCE, async || Ok(services.get("stack-service").await?)).await?;
    ensure!(claims.get("stack-pvc").await?.uid() != theirs.uid());

    let labels = json!({ "metadata": { "labels": { labels::MANAGED_BY: null } } });
    services
        .patch("stack-service", &PatchParams::default(), &Patch::Merge(labels))
        .await?;
    eventually(PATIENCE, async || {
        let live = services.get("stack-service").await?;
        ensure!(live.labels().get(labels::MANAGED_BY).map(String::as_str) == Some(labels::MANAGER));
        ensure!(live.uid() == made.uid());
        Ok(())
    })
    .await
}

/// Waits until the status says that a name is taken, and returns the message.
async fn taken(bed: &Bed, name: &str, generation: i64) -> Result<String> {
    eventually(PATIENCE, async || {
        let status = distributions(bed).get(name).await?.status.unwrap_or_default();
        let ready = status.conditions.get_condition(condition::READY).cloned();
        match ready.filter(|c| c.reason == "NameTaken") {
            Some(ready) if status.observed_generation == Some(generation) => Ok(ready.message),
            _ => bail!("{name}: {}", serde_json::to_string_pretty(&status)?),
        }
    })
    .await
}

/// A client whose first lookup of each object by name is answered with 500.
fn failing_lookups(inner: Client, failures: Arc<AtomicUsize>) -> Client {
    let seen = Arc::new(std::sync::Mutex::new(std::collections::HashSet::new()));
    let namespace = inner.default_namespace().to_owned();
    let service = tower::service_fn(move |request: axum::http::Request<Body>| {
        let (inner, seen, failures) = (inner.clone(), seen.clone(), failures.clone());
        async move {
            let uri = request.uri().to_string();
            let is_lookup = uri.contains("fieldSelector=metadata.name") && !uri.contains("watch=");
            if is_lookup && seen.lock().is_ok_and(|mut seen| seen.insert(uri)) {
                failures.fetch_add(1, Ordering::SeqCst);
                let status = json!({ "kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure",
                    "message": "etcdserver: request timed out", "reason": "InternalError", "code": 500 });
                let mut answer = axum::http::Response::new(Body::from(status.to_string().into_bytes()));
                *answer.status_mut() = axum::http::StatusCode::INTERNAL_SERVER_ERROR;
                return Ok::<_, kube::Error>(answer);
            }
            inner.send(request).await
        }
    });
    Client::new(service, namespace)
}

fn distributions(bed: &Bed) -> Api<LlamaStackDistribution> {
    Api::namespaced(bed.admin.clone(), NAMESPACE)
}

fn distribution(name: &str) -> Value {
    json!({ "apiVersion": "llamastack.io/v1alpha1", "kind": "LlamaStackDistribution", "metadata": { "name": name, "namespace": NAMESPACE },
        "spec": { "server": { "distribution": { "name": "starter" }, "storage": { "size": "1Gi" } } } })
}

fn config_map(name: &str) -> Value {
    json!({ "apiVersion": "v1", "kind": "ConfigMap", "metadata": { "name": name, "namespace": NAMESPACE }, "data": { "theirs": "1" } })
}

fn claim(name: &str) -> Value {
    json!({ "apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": { "name": name, "namespace": NAMESPACE },
        "spec": { "accessModes": ["ReadWriteOnce"], "resources": { "requests": { "storage": "1Gi" } } } })
}

fn service(name: &str) -> Value {
    json!({ "apiVersion": "v1", "kind": "Service", "metadata": { "name": name, "namespace": NAMESPACE },
        "spec": { "selector": { "app": "theirs" }, "ports": [{ "name": "http", "port": 80 }] } })
}

fn deployment(name: &str) -> Value {
    json!({ "apiVersion": "apps/v1", "kind": "Deployment", "metadata": { "name": name, "namespace": NAMESPACE },
        "spec": { "replicas": 0, "selector": { "matchLabels": { "app": "theirs" } }, "template": { "metadata": { "labels": { "app": "theirs" } },
            "spec": { "containers": [{ "name": "web", "image": "web" }] } } } })
}

fn resource(object: &Value) -> Result<ApiResource> {
    let types: kube::core::TypeMeta = serde_json::from_value(object.clone())?;
    Ok(ApiResource::from_gvk(&GroupVersionKind::try_from(&types)?))
}

fn api(bed: &Bed, object: &Value) -> Result<Api<DynamicObject>> {
    Ok(Api::namespaced_with(bed.admin.clone(), NAMESPACE, &resource(object)?))
}

async fn create(bed: &Bed, object: &Value) -> Result<DynamicObject> {
    let sent: DynamicObject = serde_json::from_value(object.clone())?;
    let params = PostParams {
        field_manager: Some("kubectl-create".to_owned()),
        ..PostParams::default()
    };
    let mut made = api(bed, object)?.create(&params, &sent).await?;
    made.types = sent.types;
    Ok(made)
}

/// Whether an object is as it was made, and is not being deleted.
async fn unchanged(bed: &Bed, before: &DynamicObject) -> Result<()> {
    let resource = ApiResource::from_gvk(&GroupVersionKind::try_from(&before.types.clone().unwrap_or_default())?);
    let api: Api<DynamicObject> = Api::namespaced_with(bed.admin.clone(), NAMESPACE, &resource);
    let live = api.get(&before.name_any()).await?;
    ensure!(
        likeness(&live) == likeness(before),
        "{:#}\nwas\n{:#}",
        likeness(&live),
        likeness(before)
    );
    Ok(())
}

/// An object as users see it, without the fields of the server and of Kubernetes' controllers.
fn likeness(object: &DynamicObject) -> Value {
    let mut annotations = object.annotations().clone();
    annotations.remove("deployment.kubernetes.io/revision");
    let mut data = object.data.clone();
    if let Some(fields) = data.as_object_mut() {
        fields.remove("status");
    }
    json!({ "uid": object.uid(), "labels": object.labels(), "annotations": annotations, "owners": object.owner_references(),
        "finalizers": object.finalizers(), "deletion": object.metadata.deletion_timestamp, "data": data })
}
