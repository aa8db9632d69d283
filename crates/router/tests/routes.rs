//! The routes controller on a real API server with the real CRDs of the Gateway API. No controller of a Gateway runs: the test
//! writes the status of Gateways, HTTPRoutes and InferencePools in its place (simulated).

mod support;

use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use clap::Parser;
use kube::api::{DeleteParams, Patch, PatchParams};
use kube::core::DynamicObject;
use kube::{Api, ResourceExt as _};
use runway_api::condition::{Conditions as _, GATEWAY_READY};
use runway_api::labels::GATEWAY_MANAGER;
use runway_operator::object::Kind;
use runway_operator::process::Process;
use runway_router::routes::kinds::{GATEWAY, HEADER, HTTP_ROUTE, INFERENCE_POOL};
use runway_router::routes::{self, Args};
use runway_testbed::{PATIENCE, audit, crds, eventually};
use serde_json::{Value, json};
use support::World;
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

const ADDRESS: &str = "192.0.2.7";

/// A routes controller in this process. Dropping it kills it.
struct Controller {
    shutdown: CancellationToken,
    task: JoinHandle<()>,
}

impl Drop for Controller {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl Controller {
    async fn start(world: &World, args: &[&str]) -> Result<Self> {
        #[derive(Parser)]
        struct Command {
            #[command(flatten)]
            args: Args,
        }
        let args = Command::try_parse_from(["routes"].iter().chain(args))?.args;
        let shutdown = CancellationToken::new();
        let process = Process::alone(world.cluster.client(GATEWAY_MANAGER, &[]).await?, shutdown.clone());
        let task = tokio::spawn(routes::run(process, args.into()));
        Ok(Self { shutdown, task })
    }

    async fn stop(mut self) -> Result<()> {
        self.shutdown.cancel();
        Ok((&mut self.task).await?)
    }
}

/// Objects beside models, for the tests to read and write.
struct Bed(World);

impl Bed {
    /// A cluster without the Gateway API, and the permissions of the controller.
    async fn start() -> Result<Self> {
        let world = World::start().await?;
        let rules = serde_json::to_value(routes::access())?;
        let subject = json!({ "kind": "User", "name": GATEWAY_MANAGER });
        world.role(GATEWAY_MANAGER, &rules, &subject).await?;
        Ok(Self(world))
    }

    async fn install(&self, kinds: &[Kind]) -> Result<()> {
        for crd in crds::gateway_api().await? {
            if kinds.iter().any(|kind| kind.crd_name() == crd.name_any()) {
                crds::install_crd(&self.0.admin, crd).await?;
            }
        }
        Ok(())
    }

    fn api(&self, kind: Kind, namespace: &str) -> Api<DynamicObject> {
        Api::namespaced_with(self.0.admin.clone(), namespace, &kind.resource())
    }

    async fn gateway(&self, name: &str) -> Result<()> {
        self.0
            .apply(json!({
                "apiVersion": "gateway.networking.k8s.io/v1", "kind": "Gateway",
                "metadata": { "name": name, "namespace": "default" },
                "spec": {
                    "gatewayClassName": "simulated",
                    "listeners": [{ "name": "http", "protocol": "HTTP", "port": 80 }],
                },
            }))
            .await
    }

    /// Simulated: the Gateway has an address.
    async fn gateway_is_programmed(&self, name: &str) -> Result<()> {
        let status = json!({
            "addresses": [{ "type": "IPAddress", "value": ADDRESS }],
            "conditions": [said("Accepted", true, "Accepted", ""), said("Programmed", true, "Programmed", "")],
        });
        self.write(GATEWAY, "default", name, status).await
    }

    /// Simulated: the controller of the Gateway answers to a route or a pool.
    async fn answer(&self, kind: Kind, namespace: &str, name: &str, conditions: Value) -> Result<()> {
        let parent = json!({ "group": GATEWAY.group, "kind": "Gateway", "namespace": "default", "name": "models" });
        let status = json!({ "parents": [{
            "parentRef": parent, "controllerName": "example.com/simulated", "conditions": conditions,
        }] });
        self.write(kind, namespace, name, status).await
    }

    async fn write(&self, kind: Kind, namespace: &str, name: &str, status: Value) -> Result<()> {
        let patch = Patch::Merge(json!({ "status": status }));
        self.api(kind, namespace)
            .patch_status(name, &PatchParams::default(), &patch)
            .await?;
        Ok(())
    }

    async fn model(&self, namespace: &str, name: &str, served: &str) -> Result<()> {
        self.0.model(namespace, name, served, 1).await?;
        self.0.serves(namespace, name, 8000).await
    }

    async fn patch(&self, namespace: &str, name: &str, patch: Value) -> Result<()> {
        let models = self.0.models(namespace);
        models
            .patch(name, &PatchParams::default(), &Patch::Merge(patch))
            .await?;
        Ok(())
    }

    /// Waits for this reason of the condition, and returns its message.
    async fn is(&self, namespace: &str, name: &str, reason: &str) -> Result<String> {
        eventually(PATIENCE, async || {
            let status = self.0.models(namespace).get(name).await?.status.unwrap_or_default();
            let found = status.conditions.get_condition(GATEWAY_READY).context("no condition")?;
            ensure!(found.reason == reason, "{}: {}", found.reason, found.message);
            let is_ready = ["RouteAccepted", "RoutedToService"].contains(&reason);
            ensure!((found.status == "True") == is_ready, "{found:?}");
            ensure!(status.gateway.is_some() == is_ready, "{:?}", status.gateway);
            Ok(found.message.clone())
        })
        .await
        .with_context(|| format!("{namespace}/{name} is not {reason}"))
    }

    async fn exists(&self, kind: Kind, namespace: &str, name: &str, expected: bool) -> Result<Option<DynamicObject>> {
        eventually(PATIENCE, async || {
            let found = self.api(kind, namespace).get_opt(name).await?;
            ensure!(found.is_some() == expected, "{} '{name}': {found:?}", kind.kind);
            Ok(found)
        })
        .await
    }

    async fn route(&self, namespace: &str, name: &str) -> Result<DynamicObject> {
        self.exists(HTTP_ROUTE, namespace, name, true).await?.context("exists")
    }

    /// Requests of the controller during some seconds without a change.
    async fn requests_at_rest(&self) -> Result<Vec<String>> {
        tokio::time::sleep(Duration::from_secs(2)).await;
        let mark = self.0.cluster.audit().await?.mark().await?;
        tokio::time::sleep(Duration::from_secs(5)).await;
        let requests = self.0.cluster.audit().await?.since(mark).await?;
        let own = requests.into_iter().filter(|request| request.user == GATEWAY_MANAGER);
        // The API server ends each watch after some minutes, and the controller begins it again.
        let own = own.filter(|request| request.class() != audit::Class::Watch);
        Ok(own.map(|request| format!("{request:?}")).collect())
    }
}

fn said(type_: &str, holds: bool, reason: &str, message: &str) -> Value {
    json!({
        "type": type_, "status": if holds { "True" } else { "False" }, "reason": reason, "message": message,
        "lastTransitionTime": "2026-01-01T00:00:00Z",
    })
}

fn accepted() -> Value {
    json!([
        said("Accepted", true, "Accepted", ""),
        said("ResolvedRefs", true, "ResolvedRefs", "")
    ])
}

#[tokio::test(flavor = "multi_thread")]
async fn models_are_reached_through_the_gateway() -> Result<()> {
    let bed = Bed::start().await?;
    let controller = Controller::start(&bed.0, &["--gateway=default/models"]).await?;
    bed.model("a", "one", "llama").await?;

    crds_that_are_installed_later_are_used(&bed).await?;
    refusal_and_acceptance_are_reported(&bed).await?;
    direct_edits_are_reverted(&bed).await?;
    ensure!(bed.requests_at_rest().await? == [""; 0], "requests at rest");

    route_stays_while_the_model_does_not_serve(&bed).await?;
    two_models_cannot_have_one_name(&bed).await?;
    routes_of_others_are_left_alone(&bed).await?;
    route_of_the_user_is_checked(&bed).await?;
    disabled_models_have_no_route(&bed).await?;
    ensure!(bed.requests_at_rest().await? == [""; 0], "requests at rest");

    deletion_needs_no_controller(&bed, controller).await
}

async fn crds_that_are_installed_later_are_used(bed: &Bed) -> Result<()> {
    let message = bed.is("a", "one", "GatewayAPINotInstalled").await?;
    ensure!(message.contains("httproutes.gateway.networking.k8s.io"), "{message}");
    bed.install(&[GATEWAY, HTTP_ROUTE]).await?;
    let message = bed.is("a", "one", "GatewayNotFound").await?;
    ensure!(message.contains("'default/models'"), "{message}");
    bed.gateway("models").await
}

async fn refusal_and_acceptance_are_reported(bed: &Bed) -> Result<()> {
    let route = bed.route("a", "one").await?;
    let owner = &route.owner_references()[0];
    ensure!(
        owner.kind == "ModelDeployment" && owner.name == "one" && owner.controller == Some(true),
        "{owner:?}"
    );
    let rule = &route.data["spec"]["rules"][0];
    let header = json!({ "type": "Exact", "name": HEADER, "value": "llama" });
    ensure!(rule["matches"][0]["headers"] == json!([header]), "{rule:#}");
    ensure!(
        rule["backendRefs"][0]["name"] == "one" && rule["backendRefs"][0]["port"] == 8000,
        "{rule:#}"
    );
    ensure!(
        route.data["spec"]["parentRefs"][0]["namespace"] == "default",
        "{:#}",
        route.data["spec"]
    );

    // The Gateway has no address and says nothing.
    bed.is("a", "one", "GatewayNotReady").await?;
    bed.gateway_is_programmed("models").await?;
    bed.is("a", "one", "RoutePending").await?;

    let refused = said("Accepted", false, "NotAllowedByListeners", "no listener allows it");
    bed.answer(HTTP_ROUTE, "a", "one", json!([refused])).await?;
    let message = bed.is("a", "one", "RouteNotAccepted").await?;
    ensure!(
        message.contains("no listener allows it") && message.contains("allowedRoutes"),
        "{message}"
    );

    let unresolved = json!([
        said("Accepted", true, "Accepted", ""),
        said("ResolvedRefs", false, "BackendNotFound", "Service one not found"),
    ]);
    bed.answer(HTTP_ROUTE, "a", "one", unresolved).await?;
    let message = bed.is("a", "one", "RouteNotResolved").await?;
    ensure!(message.contains("Service one not found"), "{message}");

    bed.answer(HTTP_ROUTE, "a", "one", accepted()).await?;
    bed.is("a", "one", "RouteAccepted").await?;
    let status = bed.0.models("a").get("one").await?.status.unwrap_or_default();
    let gateway = status.gateway.context("status.gateway")?;
    ensure!(gateway.endpoint.as_deref() == Some(ADDRESS), "{gateway:?}");
    ensure!(gateway.model_name.as_deref() == Some("llama"), "{gateway:?}");
    status_has_its_own_field_manager(bed).await
}

async fn status_has_its_own_field_manager(bed: &Bed) -> Result<()> {
    let md = bed.0.models("a").get("one").await?;
    let entries = md.managed_fields().iter();
    let own: Vec<_> = entries
        .filter(|entry| entry.manager.as_deref() == Some(GATEWAY_MANAGER))
        .collect();
    ensure!(
        own.len() == 1 && own[0].operation.as_deref() == Some("Apply"),
        "{own:?}"
    );
    let fields = serde_json::to_value(&own[0].fields_v1)?;
    let names = |value: &Value| {
        value
            .as_object()
            .map(|fields| fields.keys().cloned().collect::<Vec<_>>())
    };
    ensure!(names(&fields) == Some(vec!["f:status".to_owned()]), "{fields:#}");
    let status = names(&fields["f:status"]).unwrap_or_default();
    ensure!(status == ["f:conditions", "f:gateway"], "{fields:#}");
    Ok(())
}

async fn direct_edits_are_reverted(bed: &Bed) -> Result<()> {
    let edit = json!({ "spec": { "rules": [{ "backendRefs": [{ "name": "elsewhere", "port": 1 }] }] } });
    let routes = bed.api(HTTP_ROUTE, "a");
    let edited = routes
        .patch("one", &PatchParams::default(), &Patch::Merge(edit))
        .await?;
    let generation = edited.metadata.generation;
    eventually(PATIENCE, async || {
        let route = routes.get("one").await?;
        let backend = &route.data["spec"]["rules"][0]["backendRefs"][0];
        ensure!(
            backend["name"] == "one" && route.metadata.generation > generation,
            "{backend:#}"
        );
        Ok(())
    })
    .await?;
    bed.is("a", "one", "RouteAccepted").await?;
    Ok(())
}

async fn route_stays_while_the_model_does_not_serve(bed: &Bed) -> Result<()> {
    let uid = bed.route("a", "one").await?.uid();
    bed.0.status("a", "one", json!({ "replicas": { "ready": 0 } })).await?;
    bed.0.model("a", "two", "gemma", 1).await?;
    bed.is("a", "two", "ModelNotServing").await?;
    bed.exists(HTTP_ROUTE, "a", "two", false).await?;
    ensure!(bed.route("a", "one").await?.uid() == uid, "the route was replaced");
    bed.is("a", "one", "RouteAccepted").await?;
    bed.0.serves("a", "two", 8000).await?;
    bed.route("a", "two").await?;
    Ok(())
}

async fn two_models_cannot_have_one_name(bed: &Bed) -> Result<()> {
    bed.model("b", "one", "llama").await?;
    let message = bed.is("b", "one", "ModelNameTaken").await?;
    ensure!(
        message.contains("another namespace") && !message.contains("'one'"),
        "{message}"
    );
    bed.exists(HTTP_ROUTE, "b", "one", false).await?;
    let own = json!({ "spec": { "gateway": { "modelName": "llama-of-b" } } });
    bed.patch("b", "one", own).await?;
    let route = bed.route("b", "one").await?;
    let header = &route.data["spec"]["rules"][0]["matches"][0]["headers"][0];
    ensure!(header["value"] == "llama-of-b", "{header:#}");
    bed.is("b", "one", "RoutePending").await?;
    Ok(())
}

async fn routes_of_others_are_left_alone(bed: &Bed) -> Result<()> {
    let foreign = json!({
        "apiVersion": "gateway.networking.k8s.io/v1", "kind": "HTTPRoute",
        "metadata": { "name": "three", "namespace": "a" },
        "spec": { "parentRefs": [{ "name": "models", "namespace": "default" }],
            "rules": [{ "backendRefs": [{ "name": "shop", "port": 80 }] }] },
    });
    bed.0.apply(foreign).await?;
    let before = bed.route("a", "three").await?;
    bed.model("a", "three", "qwen").await?;
    let message = bed.is("a", "three", "NameTaken").await?;
    ensure!(
        message.contains("HTTPRoute 'three'") && message.contains("httpRouteRef"),
        "{message}"
    );
    bed.patch("a", "three", json!({ "spec": { "gateway": { "enabled": false } } }))
        .await?;
    eventually(PATIENCE, async || {
        let status = bed.0.models("a").get("three").await?.status.unwrap_or_default();
        ensure!(
            status.conditions.get_condition(GATEWAY_READY).is_none(),
            "{:?}",
            status.conditions
        );
        Ok(())
    })
    .await?;
    let after = bed.route("a", "three").await?;
    ensure!(after.resource_version() == before.resource_version(), "{after:?}");
    Ok(())
}

/// The foreign route of the test before becomes the user's own route for the model.
async fn route_of_the_user_is_checked(bed: &Bed) -> Result<()> {
    let refer = |name: &str| json!({ "spec": { "gateway": { "enabled": true, "httpRouteRef": name } } });
    bed.patch("a", "three", refer("mine")).await?;
    bed.is("a", "three", "RouteNotFound").await?;
    bed.patch("a", "three", refer("three")).await?;
    let message = bed.is("a", "three", "RouteWithoutModel").await?;
    ensure!(message.contains("Service 'three'"), "{message}");
    let backend = json!({ "spec": { "rules": [{ "backendRefs": [{ "name": "three", "port": 8000 }] }] } });
    let routes = bed.api(HTTP_ROUTE, "a");
    routes
        .patch("three", &PatchParams::default(), &Patch::Merge(backend))
        .await?;
    bed.is("a", "three", "RoutePending").await?;
    bed.answer(HTTP_ROUTE, "a", "three", accepted()).await?;
    bed.is("a", "three", "RouteAccepted").await?;
    Ok(())
}

async fn disabled_models_have_no_route(bed: &Bed) -> Result<()> {
    bed.patch("a", "two", json!({ "spec": { "gateway": { "enabled": false } } }))
        .await?;
    bed.exists(HTTP_ROUTE, "a", "two", false).await?;
    // A deleted model has none, too.
    bed.0.models("b").delete("one", &DeleteParams::default()).await?;
    bed.exists(HTTP_ROUTE, "b", "one", false).await?;
    Ok(())
}

/// The garbage collector of the real controller manager deletes the route of a deleted model.
async fn deletion_needs_no_controller(bed: &Bed, controller: Controller) -> Result<()> {
    controller.stop().await?;
    bed.route("a", "one").await?;
    bed.0.models("a").delete("one", &DeleteParams::default()).await?;
    bed.exists(HTTP_ROUTE, "a", "one", false).await?;
    Ok(())
}

/// The manifests of docs/how-to/gateway.md: the Gateway of the administrator, and the model of a user.
#[tokio::test(flavor = "multi_thread")]
async fn example_of_the_page_works() -> Result<()> {
    const PAGE: &str = include_str!("../../../docs/how-to/gateway.md");
    let bed = Bed::start().await?;
    bed.install(&[GATEWAY, HTTP_ROUTE]).await?;
    bed.0
        .apply(json!({ "apiVersion": "v1", "kind": "Namespace", "metadata": { "name": "infra" } }))
        .await?;
    let (_, section) = PAGE.split_once("# A Gateway of the cluster").context("the section")?;
    let blocks = section.split("```yaml\n").skip(1);
    let blocks: Vec<&str> = blocks.filter_map(|block| block.split("```").next()).collect();
    ensure!(blocks.len() == 3, "{blocks:?}");
    for block in blocks {
        bed.0.apply(serde_saphyr::from_str(block)?).await?;
    }
    let _controller = Controller::start(&bed.0, &["--gateway=infra/models"]).await?;
    bed.is("default", "qwen", "ModelNotServing").await?;
    bed.0.serves("default", "qwen", 8000).await?;
    let status = json!({ "addresses": [{ "type": "IPAddress", "value": ADDRESS }] });
    bed.write(GATEWAY, "infra", "models", status).await?;
    bed.route("default", "qwen").await?;
    let status = json!({ "parents": [{
        "parentRef": { "namespace": "infra", "name": "models" }, "controllerName": "example.com/simulated",
        "conditions": accepted(),
    }] });
    bed.write(HTTP_ROUTE, "default", "qwen", status).await?;
    bed.is("default", "qwen", "RouteAccepted").await?;
    let status = bed.0.models("default").get("qwen").await?.status.unwrap_or_default();
    // The page shows the same.
    let shown = serde_json::to_string(&status.gateway)?;
    ensure!(section.contains(&shown), "{shown}");
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn pools_are_created_where_pods_can_be_selected() -> Result<()> {
    let bed = Bed::start().await?;
    bed.install(&[GATEWAY, HTTP_ROUTE]).await?;
    bed.gateway("models").await?;
    bed.gateway_is_programmed("models").await?;
    let args = ["--gateway=default/models", "--endpoint-picker={name}-epp"];
    let controller = Controller::start(&bed.0, &args).await?;
    for name in ["one", "two"] {
        bed.model("a", name, name).await?;
        bed.0
            .status("a", name, json!({ "selector": format!("app={name}") }))
            .await?;
    }
    // The Service of a provider for one of them.
    let service = json!({
        "apiVersion": "v1", "kind": "Service",
        "metadata": { "name": "one", "namespace": "a", "labels": {
            "kubeairunway.ai/managed-by": "kubeairunway", "kubeairunway.ai/deployment": "one" } },
        "spec": { "selector": { "app": "one" }, "ports": [{ "name": "http", "port": 8000, "targetPort": 5000 }] },
    });
    bed.0.apply(service).await?;

    bed.route("a", "one").await?;
    bed.answer(HTTP_ROUTE, "a", "one", accepted()).await?;
    let message = bed.is("a", "one", "RoutedToService").await?;
    ensure!(
        message.contains("inferencepools.inference.networking.k8s.io"),
        "{message}"
    );

    // Its CRD is installed later.
    bed.install(&[INFERENCE_POOL]).await?;
    let pool = bed.exists(INFERENCE_POOL, "a", "one", true).await?.context("exists")?;
    let spec = &pool.data["spec"];
    ensure!(spec["selector"]["matchLabels"] == json!({ "app": "one" }), "{spec:#}");
    ensure!(spec["targetPorts"] == json!([{ "number": 5000 }]), "{spec:#}");
    let picker = &spec["endpointPickerRef"];
    ensure!(
        picker["name"] == "one-epp" && picker["port"]["number"] == 9002,
        "{picker:#}"
    );
    let leads_to = async |kind: &str| {
        eventually(PATIENCE, async || {
            let route = bed.route("a", "one").await?;
            let backend = &route.data["spec"]["rules"][0]["backendRefs"][0];
            ensure!(backend["kind"] == kind, "{backend:#}");
            Ok(())
        })
        .await
    };
    leads_to("InferencePool").await?;
    bed.is("a", "one", "RouteAccepted").await?;

    let missing = said("ResolvedRefs", false, "InvalidExtensionRef", "no Service one-epp");
    let conditions = json!([said("Accepted", true, "Accepted", ""), missing]);
    bed.answer(INFERENCE_POOL, "a", "one", conditions).await?;
    let message = bed.is("a", "one", "RouteNotResolved").await?;
    ensure!(message.contains("Create Service 'one-epp'"), "{message}");
    bed.answer(INFERENCE_POOL, "a", "one", accepted()).await?;
    bed.is("a", "one", "RouteAccepted").await?;

    // The other model has no Service that selects its pods.
    bed.answer(HTTP_ROUTE, "a", "two", accepted()).await?;
    let message = bed.is("a", "two", "RoutedToService").await?;
    ensure!(message.contains("Service 'two' does not select"), "{message}");
    bed.exists(INFERENCE_POOL, "a", "two", false).await?;
    ensure!(bed.requests_at_rest().await? == [""; 0], "requests at rest");
    controller.stop().await?;

    // Without the picker, the route leads to the Service again, and only then is the pool deleted.
    let controller = Controller::start(&bed.0, &["--gateway=default/models"]).await?;
    leads_to("Service").await?;
    bed.exists(INFERENCE_POOL, "a", "one", false).await?;
    controller.stop().await?;

    // Several Gateways are reported, and change nothing.
    let controller = Controller::start(&bed.0, &["--gateway=default/models", "--gateway=default/other"]).await?;
    let message = bed.is("a", "one", "GatewayAmbiguous").await?;
    ensure!(message.contains("'default/models', 'default/other'"), "{message}");
    bed.route("a", "one").await?;
    controller.stop().await?;

    // Without a Gateway, nothing changes.
    let mark = bed.0.cluster.audit().await?.mark().await?;
    let controller = Controller::start(&bed.0, &[]).await?;
    tokio::time::sleep(Duration::from_secs(3)).await;
    controller.stop().await?;
    let requests = bed.0.cluster.audit().await?.since(mark).await?;
    let writes = requests
        .iter()
        .filter(|r| r.user == GATEWAY_MANAGER && r.class() == audit::Class::Write);
    ensure!(writes.count() == 0, "{requests:?}");

    // On request, nothing remains.
    let _controller = Controller::start(&bed.0, &["--delete-routes"]).await?;
    for name in ["one", "two"] {
        bed.exists(HTTP_ROUTE, "a", name, false).await?;
        eventually(PATIENCE, async || {
            let status = bed.0.models("a").get(name).await?.status.unwrap_or_default();
            ensure!(status.gateway.is_none(), "{:?}", status.gateway);
            ensure!(
                status.conditions.get_condition(GATEWAY_READY).is_none(),
                "{:?}",
                status.conditions
            );
            Ok(())
        })
        .await?;
    }
    ensure!(bed.requests_at_rest().await? == [""; 0], "requests at rest");
    Ok(())
}
