//! Models behind a Gateway of the Gateway API: what the routes controller writes becomes the configuration of a real Envoy, which sends
//! requests to llama-server in pods of a real node. The endpoint pickers are the reference picker of the inference extension and the
//! model router. The Gateway's controller is a simulator (`runway_testbed::gateway`). Run by `cargo xtask test --lane gateway`.

use std::collections::BTreeSet;
use std::fs;
use std::net::SocketAddr;
use std::time::Instant;

use anyhow::{Context as _, Result, ensure};
use axum::http::Method;
use k8s_openapi::api::core::v1::{Pod, Service};
use k8s_openapi::api::discovery::v1::EndpointSlice;
use kube::Api;
use kube::api::{DeleteParams, ListParams, Patch, PatchParams};
use kube::core::DynamicObject;
use runway_api::condition::{Conditions as _, GATEWAY_READY};
use runway_api::{ModelDeployment, labels};
use runway_manifests as manifests;
use runway_operator::object::Kind;
use runway_product_testbed::{Bed, NAMESPACE, Running, Upstream};
use runway_provider_direct::Direct;
use runway_router::routes::kinds::{HEADER, HTTP_ROUTE, INFERENCE_POOL};
use runway_testbed::engine::{CHAT, LlamaServer, MODEL, MODELS, SENTENCE, chat_request, pieces};
use runway_testbed::gateway::{CLASS, Gateway, UPSTREAM};
use runway_testbed::reference_picker::ReferencePicker;
use runway_testbed::traffic::client::{Answer, Begun, request};
use runway_testbed::traffic::{Load, load};
use runway_testbed::{Node, PATIENCE, eventually, free_port, python, say};
use serde_json::{Value, json};
use tokio::net::TcpStream;

/// Name of the model, which two namespaces have.
const NAME: &str = "hello";
/// The other namespace.
const OTHER: &str = "team-b";
/// Name of the other model at the Gateway, once it has one.
const OTHER_NAME: &str = "team-b-hello";
/// Namespace and name of the Gateway.
const GATEWAY: [&str; 2] = ["infra", "models"];
/// Label of a namespace whose routes the listener allows.
const SHARED: &str = "shared-gateway";
/// Port of the Services of endpoint pickers, the default of the routes controller.
const PICKER_PORT: u16 = 9002;
/// Service of the reference picker of the model.
const REFERENCE: &str = "hello-epp";
/// Metric of the reference picker, by pod.
const CHOICES: &str = "inference_extension_scheduler_attempts_total{";
/// Service of the router as endpoint picker.
const ROUTER: &str = "kubeairunway-gateway-picker";

/// One node for everything, because starting it takes longer than each of these checks.
#[tokio::test(flavor = "multi_thread")]
#[ignore = "run by cargo xtask test --lane gateway"]
async fn requests_through_a_gateway_reach_models() -> Result<()> {
    const WHAT: &str = "models behind a Gateway";
    if !tokio::task::spawn_blocking(|| python::has_venv(WHAT)).await? {
        return Ok(());
    }
    let Some(engine) = LlamaServer::for_node(WHAT).await? else {
        return Ok(());
    };
    let stage = Stage::start(engine).await?;
    let routes = stage.routes(&[]).await?;
    stage.listener_decides_which_namespaces_have_routes().await?;
    stage.requests_reach_the_service().await?;
    stage.requests_without_a_route_are_refused().await?;
    stage.second_model_of_a_name_gets_its_own().await?;
    stage.scaled_to_zero_is_unavailable().await?;
    stage.rollout_fails_no_request("Service").await?;
    routes.stop().await;

    let routes = stage.routes(&["--endpoint-picker={name}-epp"]).await?;
    let reference = stage.pool_follows_its_picker().await?;
    stage.reference_picker_chooses_the_pod(&reference).await?;
    stage.rollout_fails_no_request("reference picker").await?;
    stage.gateway_chooses_the_pod_without_a_picker(reference).await?;
    routes.stop().await;

    let picker = format!("--endpoint-picker={ROUTER}");
    stage.services_of_the_router().await?;
    let first = stage.router().await?;
    let _routes = stage.routes(&[&picker]).await?;
    stage.router_chooses_the_pod().await?;
    stage.rollout_fails_no_request("router as picker").await?;
    let _next = stage.restart_of_the_router_fails_no_request(first).await?;
    stage.deletion_frees_the_name().await?;
    // The simulator needs the API server.
    let Stage { bed, gateway, .. } = stage;
    drop(gateway);
    bed.cluster.stop().await
}

/// The product with a node and a Gateway.
struct Stage {
    bed: Bed<Node>,
    engine: LlamaServer,
    gateway: Gateway,
    certificate: tempfile::TempDir,
    start: Instant,
    _controllers: [Running; 2],
}

impl Stage {
    async fn start(engine: LlamaServer) -> Result<Self> {
        let start = Instant::now();
        let bed = Bed::start_with_node(Upstream::None).await?;
        bed.cluster.import_image(&engine.image.archive).await?;
        Gateway::install_crds(&bed.admin).await?;
        let controllers = [bed.core().await?, bed.asking_provider(Direct::default()).await?];
        bed.admission_is_up().await?;
        for namespace in [GATEWAY[0], OTHER] {
            bed.apply(&json!({ "apiVersion": "v1", "kind": "Namespace", "metadata": { "name": namespace } }))
                .await?;
        }
        let allowed = json!({ "from": "Selector", "selector": { "matchLabels": { SHARED: "true" } } });
        bed.apply(&json!({
            "apiVersion": "gateway.networking.k8s.io/v1", "kind": "Gateway",
            "metadata": { "namespace": GATEWAY[0], "name": GATEWAY[1] },
            "spec": { "gatewayClassName": CLASS, "listeners": [{
                "name": "http", "protocol": "HTTP", "port": free_port()?, "allowedRoutes": { "namespaces": allowed },
            }] },
        }))
        .await?;
        let stage = Self {
            gateway: Gateway::start(&bed.cluster, GATEWAY[0], GATEWAY[1]).await?,
            bed,
            engine,
            certificate: certificate()?,
            start,
            _controllers: controllers,
        };
        stage.done("a node, the core, the provider, and Envoy");
        Ok(stage)
    }

    /// The routes controller with these arguments.
    async fn routes(&self, args: &[&str]) -> Result<Running> {
        let gateway = format!("--gateway={}", GATEWAY.join("/"));
        self.bed.routes(&[&[gateway.as_str()], args].concat()).await
    }

    async fn listener_decides_which_namespaces_have_routes(&self) -> Result<()> {
        self.create(NAMESPACE, 2).await?;
        let message = self.is(NAMESPACE, "RouteNotAccepted").await?;
        ensure!(message.contains("allow routes from namespace 'default'"), "{message}");
        ensure!(self.models(NAME).await?.status == 404);
        for namespace in [NAMESPACE, OTHER] {
            let labels = json!({ SHARED: "true" });
            let metadata = json!({ "name": namespace, "labels": labels });
            self.bed
                .apply(&json!({ "apiVersion": "v1", "kind": "Namespace", "metadata": metadata }))
                .await?;
        }
        self.is(NAMESPACE, "RouteAccepted").await?;
        self.done("a route is refused, and accepted when the listener allows its namespace");
        Ok(())
    }

    async fn requests_reach_the_service(&self) -> Result<()> {
        let status = self.model(NAMESPACE).await?.status.unwrap_or_default();
        let gateway = status.gateway.context("no status.gateway")?;
        let address = self.gateway.address;
        ensure!(gateway.endpoint == Some(address.ip().to_string()), "{gateway:?}");
        ensure!(gateway.model_name.as_deref() == Some(NAME), "{gateway:?}");
        self.is_answered(NAME).await?;
        self.lists(NAME, NAMESPACE).await?;
        self.pods_are_ready(&self.engine.image.name).await?;
        let used = self.upstreams(NAME, 20).await?;
        ensure!(used.len() == 2, "of two pods, {used:?} have answered");
        self.done("a Service: whole and streamed answers, from both pods");
        Ok(())
    }

    async fn requests_without_a_route_are_refused(&self) -> Result<()> {
        for name in [
            None,
            Some("unknown"),
            Some("Hello"),
            Some("hello "),
            Some("default/hello"),
        ] {
            let answer = self
                .send(Method::POST, CHAT, name, &chat_request(NAME, "Hello"))
                .await?;
            // Spaces around the value of a header are no part of it.
            let expected = if name == Some("hello ") { 200 } else { 404 };
            ensure!(answer.status == expected, "{name:?}: {answer:?}");
            ensure!((expected == 200) == upstream(&answer).is_some(), "{answer:?}");
        }
        for (path, status) in [
            ("/", 404),
            ("/metrics", 404),
            ("/health", 404),
            ("/v1beta/models", 404),
            ("/v1/../metrics", 404),
            ("/v1/%2e%2e/metrics", 404),
            ("/v1/..//metrics", 404),
            ("/v1/..%2fmetrics", 307),
        ] {
            let answer = self.get(path, NAME).await?;
            ensure!(
                answer.status == status && upstream(&answer).is_none(),
                "{path}: {answer:?}"
            );
        }
        self.done("other names and paths get 404 from Envoy");
        Ok(())
    }

    async fn second_model_of_a_name_gets_its_own(&self) -> Result<()> {
        self.create(OTHER, 1).await?;
        let message = self.is(OTHER, "ModelNameTaken").await?;
        ensure!(
            message.contains("of another namespace") && message.contains(OTHER_NAME),
            "{message}"
        );
        for _ in 0..4 {
            self.lists(NAME, NAMESPACE).await?;
        }
        self.patch(OTHER, json!({ "spec": { "gateway": { "modelName": OTHER_NAME } } }))
            .await?;
        self.is(OTHER, "RouteAccepted").await?;
        self.lists(OTHER_NAME, OTHER).await?;
        self.lists(NAME, NAMESPACE).await?;
        self.done("of two models with one name, the older has it, and the other answers by another");
        Ok(())
    }

    async fn scaled_to_zero_is_unavailable(&self) -> Result<()> {
        let replicas = |count: u32| json!({ "spec": { "scaling": { "replicas": count } } });
        self.patch(OTHER, replicas(0)).await?;
        eventually(PATIENCE, async || {
            let answer = self.models(OTHER_NAME).await?;
            ensure!(answer.status == 503, "{answer:?}");
            Ok(())
        })
        .await?;
        self.is(OTHER, "RouteAccepted").await?;
        self.patch(OTHER, replicas(1)).await?;
        self.eventually_lists(OTHER_NAME, OTHER).await?;
        self.done("a model that is scaled to zero gets 503, and answers when it is scaled up");
        Ok(())
    }

    /// Replaces all pods, and the first ones again, while requests arrive.
    async fn rollout_fails_no_request(&self, by: &str) -> Result<()> {
        let load = Load::begin(&[self.way()]);
        for image in [&self.engine.next.name, &self.engine.image.name] {
            self.patch(NAMESPACE, json!({ "spec": { "image": image } })).await?;
            self.pods_are_ready(image).await?;
            load.is_answered().await?;
        }
        self.no_failure(load, &format!("{by}: two rollouts of two pods")).await
    }

    /// Switches the route from the Service to a pool whose picker comes later, while requests arrive.
    async fn pool_follows_its_picker(&self) -> Result<ReferencePicker> {
        let load = Load::begin(&[self.way()]);
        let message = self.is(NAMESPACE, "RouteNotResolved").await?;
        ensure!(message.contains("Create Service 'hello-epp'"), "{message}");
        load.is_answered().await?;
        let port = free_port()?;
        self.service(NAMESPACE, REFERENCE, port).await?;
        let reference = ReferencePicker::for_pool(&self.bed.cluster, NAMESPACE, NAME, port).await?;
        let message = self.is(NAMESPACE, "RouteAccepted").await?;
        ensure!(!message.contains("endpoint picker reads"), "{message}");
        eventually(PATIENCE, async || {
            let metrics = reference.metrics().await?;
            let ready = "inference_pool_ready_pods{name=\"hello\"} 2";
            ensure!(metrics.contains(ready), "the picker does not know two ready pods");
            Ok(())
        })
        .await?;
        load.is_answered().await?;
        self.no_failure(load, "a route moves from its Service to a pool")
            .await?;
        self.is(OTHER, "RouteNotResolved").await?;
        Ok(reference)
    }

    async fn reference_picker_chooses_the_pod(&self, picker: &ReferencePicker) -> Result<()> {
        self.is_answered(NAME).await?;
        // The picker takes the pod that has seen the prompt.
        for topic in ["rivers", "mountains", "roads"] {
            let prompt = format!("A long question about {topic}. ").repeat(100);
            let mut used = BTreeSet::new();
            for _ in 0..6 {
                let answer = self.chat(NAME, &prompt).await?;
                used.extend(upstream(&answer));
            }
            ensure!(used.len() == 1, "{topic}: {used:?}");
        }
        let metrics = picker.metrics().await?;
        let choices = metrics.lines().filter(|line| line.starts_with(CHOICES));
        let counts = choices.filter_map(|line| line.rsplit(' ').next()?.parse::<u32>().ok());
        let chosen: u32 = counts.sum();
        ensure!(chosen >= 20, "the picker has chosen for {chosen} requests only");
        self.lists(NAME, NAMESPACE).await?;
        self.done("the reference picker: whole and streamed answers, and one pod for each prompt");
        Ok(())
    }

    /// `failureMode: FailOpen`. Envoy chooses the pod itself for requests without a body. It fails the others if the connection to the
    /// picker is refused, since it has sent the body by then, and answers them if it knows no address of the picker.
    async fn gateway_chooses_the_pod_without_a_picker(&self, picker: ReferencePicker) -> Result<()> {
        drop(picker);
        self.fails_chats_only().await.context("the picker has ended")?;
        self.slices().delete(REFERENCE, &DeleteParams::default()).await?;
        self.fails_chats_only().await.context("the Service has no endpoint")?;
        let services: Api<Service> = Api::namespaced(self.bed.admin.clone(), NAMESPACE);
        services.delete(REFERENCE, &DeleteParams::default()).await?;
        self.bed
            .apply(&json!({
                "apiVersion": "v1", "kind": "Service", "metadata": { "name": REFERENCE, "namespace": NAMESPACE },
                "spec": { "clusterIP": "None", "ports": [{ "name": "grpc", "port": PICKER_PORT }] },
            }))
            .await?;
        eventually(PATIENCE, async || self.is_answered(NAME).await).await?;
        let load = Load::begin(&[self.way()]);
        load.is_answered().await?;
        self.no_failure(load, "a headless Service without an endpoint of the picker")
            .await
    }

    async fn fails_chats_only(&self) -> Result<()> {
        eventually(PATIENCE, async || {
            let request = chat_request(NAME, "Hello");
            let answer = self.send(Method::POST, CHAT, Some(NAME), &request).await?;
            ensure!(answer.status == 500 && upstream(&answer).is_none(), "{answer:?}");
            Ok(())
        })
        .await?;
        self.lists(NAME, NAMESPACE).await
    }

    /// Services by which pools refer to the router.
    async fn services_of_the_router(&self) -> Result<()> {
        self.bed
            .apply(&json!({ "apiVersion": "v1", "kind": "Namespace", "metadata": { "name": manifests::NAMESPACE } }))
            .await?;
        for namespace in [NAMESPACE, OTHER] {
            let name = format!("{ROUTER}.{}.svc.cluster.local", manifests::NAMESPACE);
            self.bed
                .apply(&json!({
                    "apiVersion": "v1", "kind": "Service", "metadata": { "name": ROUTER, "namespace": namespace },
                    "spec": {
                        "type": "ExternalName", "externalName": name,
                        "ports": [{ "name": "grpc", "port": PICKER_PORT }],
                    },
                }))
                .await?;
        }
        Ok(())
    }

    /// Starts a router as endpoint picker, to which its Service leads from now on.
    async fn router(&self) -> Result<Running> {
        let port = free_port()?;
        let host = self.bed.cluster.network().host();
        let [certificate, key] = ["tls.crt", "tls.key"].map(|name| self.certificate.path().join(name));
        let args = [
            format!("--endpoint-picker-address={}", SocketAddr::from((host, port))),
            format!("--tls-certificate={}", certificate.display()),
            format!("--tls-key={}", key.display()),
        ];
        let (router, _) = self.bed.router_with(&args).await?;
        eventually(PATIENCE, async || Ok(TcpStream::connect((host, port)).await?)).await?;
        self.service(manifests::NAMESPACE, ROUTER, port).await?;
        Ok(router)
    }

    /// Another router takes over, and then the first one ends in order, as in a rollout of the router.
    async fn restart_of_the_router_fails_no_request(&self, router: Running) -> Result<Running> {
        let load = Load::begin(&[self.way()]);
        load.is_answered().await?;
        let next = self.router().await?;
        load.is_answered().await?;
        router.stop().await;
        load.is_answered().await?;
        self.no_failure(load, "the router is replaced").await?;
        Ok(next)
    }

    async fn router_chooses_the_pod(&self) -> Result<()> {
        let names = [(NAMESPACE, NAME), (OTHER, OTHER_NAME)];
        for (namespace, name) in names {
            self.is(namespace, "RouteAccepted").await?;
            eventually(PATIENCE, async || {
                // Only the router refuses it in this form.
                let answer = self.send(Method::POST, "/v1/unknown", Some(name), &json!({})).await?;
                answer.refused(404, "not_found", "POST /v1/chat/completions")
            })
            .await?;
            self.is_answered(name).await?;
            self.answers_as(name, namespace).await?;
            let listed = self.models(name).await?;
            listed.refused(404, "not_found", "no such path: use POST /v1/chat/completions")?;
        }
        let prompt = "A long question about the sea. ".repeat(100);
        let mut used = BTreeSet::new();
        for _ in 0..6 {
            used.extend(upstream(&self.chat(NAME, &prompt).await?));
        }
        ensure!(used.len() == 1, "{used:?}");
        self.done("the router: answers of both models, refusals, one pod for each prompt");
        Ok(())
    }

    async fn deletion_frees_the_name(&self) -> Result<()> {
        self.bed.delete(NAME).await?;
        self.bed.gone(NAME).await?;
        for kind in [HTTP_ROUTE, INFERENCE_POOL] {
            eventually(PATIENCE, async || {
                let left = self.objects(kind).get_opt(NAME).await?;
                ensure!(left.is_none(), "{} is left", kind.kind);
                Ok(())
            })
            .await?;
        }
        self.has_no_route(NAME).await?;
        self.answers_as(OTHER_NAME, OTHER).await?;
        self.patch(OTHER, json!({ "spec": { "gateway": null } })).await?;
        eventually(PATIENCE, async || self.answers_as(NAME, OTHER).await).await?;
        self.has_no_route(OTHER_NAME).await?;
        self.deployments(OTHER)
            .delete(NAME, &DeleteParams::background())
            .await?;
        self.has_no_route(NAME).await?;
        self.done("deleted models get 404, and their name is free");
        Ok(())
    }

    /// Creates the model of a namespace.
    async fn create(&self, namespace: &str, replicas: u32) -> Result<()> {
        let mut model = json!({
            "apiVersion": "kubeairunway.ai/v1alpha1", "kind": "ModelDeployment",
            "metadata": { "name": NAME, "namespace": namespace },
            "spec": {
                "provider": { "name": "direct" },
                "model": { "source": "custom" },
                "engine": { "type": "llamacpp", "args": { "model": MODEL, "alias": alias(namespace), "threads": "1" } },
                "image": self.engine.image.name,
                "scaling": { "replicas": replicas },
                "resources": { "memory": "256Mi", "cpu": "10m" },
            },
        });
        if namespace == NAMESPACE {
            let labels = json!({ "inference.networking.k8s.io/engine-type": "llamacpp" });
            model["spec"]["podTemplate"] = json!({ "metadata": { "labels": labels } });
        }
        self.bed.apply(&model).await?;
        Ok(())
    }

    /// A Service that leads to a port of this machine.
    async fn service(&self, namespace: &str, name: &str, port: u16) -> Result<()> {
        let host = self.bed.cluster.network().host();
        let objects = [
            json!({
                "apiVersion": "v1", "kind": "Service", "metadata": { "name": name, "namespace": namespace },
                "spec": { "ports": [{ "name": "grpc", "port": PICKER_PORT }] },
            }),
            json!({
                "apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice",
                "metadata": { "name": name, "namespace": namespace, "labels": { "kubernetes.io/service-name": name } },
                "addressType": "IPv4", "endpoints": [{ "addresses": [host] }],
                "ports": [{ "name": "grpc", "port": port }],
            }),
        ];
        for object in objects {
            self.bed.apply(&object).await?;
        }
        Ok(())
    }

    /// Waits for this reason of the condition, and returns its message.
    async fn is(&self, namespace: &str, reason: &str) -> Result<String> {
        let found = eventually(PATIENCE, async || {
            let status = self.model(namespace).await?.status.unwrap_or_default();
            let found = status.conditions.get_condition(GATEWAY_READY).context("no condition")?;
            ensure!(found.reason == reason, "{}: {}", found.reason, found.message);
            Ok(found.message.clone())
        });
        found.await.with_context(|| format!("{namespace} is not {reason}"))
    }

    /// Waits until the model has two ready pods of this image, and no others.
    async fn pods_are_ready(&self, image: &str) -> Result<()> {
        let pods: Api<Pod> = Api::namespaced(self.bed.admin.clone(), NAMESPACE);
        let of_model = ListParams::default().labels(&format!("{}={NAME}", labels::DEPLOYMENT));
        eventually(PATIENCE, async || {
            let pods = pods.list(&of_model).await?.items;
            let are_ready = pods.iter().all(|pod| is_ready_with(pod, image));
            ensure!(
                pods.len() == 2 && are_ready,
                "{} pods are not two of {image}",
                pods.len()
            );
            Ok(())
        })
        .await
    }

    /// Ends the requests, and checks that none has failed.
    async fn no_failure(&self, load: Load, what: &str) -> Result<()> {
        for (_, seen) in load.end().await? {
            ensure!(seen.failed.is_empty() && seen.answered > 0, "{what}: {seen:#?}");
            self.done(&format!(
                "{what}: {} requests were answered, none failed",
                seen.answered
            ));
        }
        Ok(())
    }

    fn way(&self) -> load::Way {
        load::Way {
            name: "Gateway",
            to: load::Address::Socket(self.gateway.address),
            token: String::new(),
            model: alias(NAMESPACE),
            headers: vec![(HEADER, NAME.to_owned())],
        }
    }

    /// Checks a whole and a streamed chat.
    async fn is_answered(&self, name: &str) -> Result<()> {
        let answer = self.chat(name, "Hello").await?;
        ensure!(
            answer.json()["choices"][0]["message"]["content"] == SENTENCE,
            "{answer:?}"
        );
        let mut request = chat_request(NAME, "Hello");
        request["stream"] = json!(true);
        let streamed = self.send(Method::POST, CHAT, Some(name), &request).await?;
        ensure!(
            streamed.text.matches("\"content\"").count() >= pieces().len(),
            "{streamed:?}"
        );
        ensure!(streamed.text.trim_end().ends_with("data: [DONE]"), "{streamed:?}");
        Ok(())
    }

    /// Checks that the router gives a chat the name of the model at the engine of this namespace.
    async fn answers_as(&self, name: &str, namespace: &str) -> Result<()> {
        let request = chat_request("any name", "Hello");
        let answer = self.send(Method::POST, CHAT, Some(name), &request).await?;
        ensure!(answer.json()["model"] == alias(namespace), "{answer:?}");
        Ok(())
    }

    /// Waits until Envoy itself refuses requests for a name.
    async fn has_no_route(&self, name: &str) -> Result<()> {
        eventually(PATIENCE, async || {
            let answer = self.models(name).await?;
            ensure!(answer.status == 404 && answer.text.is_empty(), "{answer:?}");
            Ok(())
        })
        .await
    }

    /// Checks that the engine of this namespace lists its model for a name at the Gateway.
    async fn lists(&self, name: &str, namespace: &str) -> Result<()> {
        let answer = self.models(name).await?;
        ensure!(
            answer.status == 200 && answer.json()["data"][0]["id"] == alias(namespace),
            "{answer:?}"
        );
        Ok(())
    }

    async fn eventually_lists(&self, name: &str, namespace: &str) -> Result<()> {
        eventually(PATIENCE, async || self.lists(name, namespace).await).await
    }

    async fn models(&self, name: &str) -> Result<Answer> {
        self.get(MODELS, name).await
    }

    /// Pods that have answered so many chats.
    async fn upstreams(&self, name: &str, chats: usize) -> Result<BTreeSet<SocketAddr>> {
        let mut used = BTreeSet::new();
        for _ in 0..chats {
            used.extend(upstream(&self.chat(name, "Hello").await?));
        }
        Ok(used)
    }

    async fn chat(&self, name: &str, prompt: &str) -> Result<Answer> {
        let answer = self
            .send(Method::POST, CHAT, Some(name), &chat_request(NAME, prompt))
            .await?;
        ensure!(answer.status == 200 && upstream(&answer).is_some(), "{answer:?}");
        Ok(answer)
    }

    async fn get(&self, path: &str, name: &str) -> Result<Answer> {
        self.send(Method::GET, path, Some(name), &Value::Null).await
    }

    async fn send(&self, method: Method, path: &str, name: Option<&str>, body: &Value) -> Result<Answer> {
        let body = if body.is_null() {
            String::new()
        } else {
            body.to_string()
        };
        let mut request = request(method, path, "", body)?;
        request
            .headers_mut()
            .insert("content-type", "application/json".parse()?);
        if let Some(name) = name {
            request.headers_mut().insert(HEADER, name.parse()?);
        }
        Begun::send(self.gateway.address, request).await?.whole().await
    }

    async fn model(&self, namespace: &str) -> Result<ModelDeployment> {
        Ok(self.deployments(namespace).get(NAME).await?)
    }

    async fn patch(&self, namespace: &str, patch: Value) -> Result<()> {
        let models = self.deployments(namespace);
        models
            .patch(NAME, &PatchParams::default(), &Patch::Merge(patch))
            .await?;
        Ok(())
    }

    fn deployments(&self, namespace: &str) -> Api<ModelDeployment> {
        Api::namespaced(self.bed.admin.clone(), namespace)
    }

    fn slices(&self) -> Api<EndpointSlice> {
        Api::namespaced(self.bed.admin.clone(), NAMESPACE)
    }

    fn objects(&self, kind: Kind) -> Api<DynamicObject> {
        Api::namespaced_with(self.bed.admin.clone(), NAMESPACE, &kind.resource())
    }

    fn done(&self, what: &str) {
        say(&format!("{:>4} s: {what}", self.start.elapsed().as_secs()));
    }
}

/// Name of a namespace's model at its engine.
fn alias(namespace: &str) -> String {
    format!("of-{namespace}")
}

/// The pod that has answered; `None` if Envoy did.
fn upstream(answer: &Answer) -> Option<SocketAddr> {
    answer.headers.get(UPSTREAM)?.to_str().ok()?.parse().ok()
}

fn is_ready_with(pod: &Pod, image: &str) -> bool {
    let containers = pod.spec.iter().flat_map(|spec| &spec.containers);
    let conditions = pod.status.iter().flat_map(|status| status.conditions.iter().flatten());
    pod.metadata.deletion_timestamp.is_none()
        && containers
            .into_iter()
            .all(|container| container.image.as_deref() == Some(image))
        && conditions.into_iter().any(|c| c.type_ == "Ready" && c.status == "True")
}

/// Folder with a certificate of the router, which Envoy does not verify.
fn certificate() -> Result<tempfile::TempDir> {
    let folder = tempfile::tempdir()?;
    let made = rcgen::generate_simple_self_signed([ROUTER.to_owned()])?;
    fs::write(folder.path().join("tls.crt"), made.cert.pem())?;
    fs::write(folder.path().join("tls.key"), made.signing_key.serialize_pem())?;
    Ok(folder)
}
