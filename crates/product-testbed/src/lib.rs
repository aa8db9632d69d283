//! A control plane with our CRDs, roles and webhooks, and the controllers in the process of the test, which starts and kills
//! them. Every controller has the client certificate and the role that it would have in a cluster.
//!
//! | module | content |
//! |---|---|
//! | [`engine`] | models of real engines |
//! | [`program`] | built programs as processes |
//! | [`served`] | a console and its users |
#![allow(
    clippy::missing_errors_doc,
    clippy::missing_panics_doc,
    reason = "every step of a test can fail, and its message says what did"
)]

pub mod engine;
pub mod program;
pub mod served;

use std::net::SocketAddr;
use std::ops::Deref;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use axum::http::Request;
use k8s_openapi::api::core::v1::Secret;
use k8s_openapi::api::events::v1::Event;
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::api::{DeleteParams, ListParams, Patch, PatchParams, PostParams};
use kube::core::{ApiResource, DynamicObject, GroupVersionKind, Status, TypeMeta};
use kube::{Api, Client, Resource};
use runway_api::condition::{self, Conditions};
use runway_api::model_deployment::Phase;
use runway_api::{InferenceProviderConfig, ModelDeployment, ModelDeploymentStatus, labels};
use runway_core::Registry;
use runway_core::serve::WebhookArgs;
use runway_llama_stack_operator::RunArgs;
use runway_llama_stack_operator::settings::Settings;
use runway_manifests::{self as manifests, Component, Identity, router, routes};
use runway_operator::client::ClientArgs;
use runway_operator::lease::Leadership;
use runway_operator::process::Process;
use runway_operator::scope::Namespaces;
use runway_operator::services::Services;
use runway_operator::trace::Traces;
use runway_operator::webhook::Endpoint;
use runway_provider::Provider;
use runway_provider_kaito::Kaito;
pub use runway_testbed::PATIENCE;
use runway_testbed::{ControlPlane, Node, Options, audit, crds, eventually};
use runway_upstream_simulator::{self as simulator, Simulator};
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject;
use serde_json::{Value, json};
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

/// The namespace of the tests' objects.
pub const NAMESPACE: &str = "default";

/// A control plane, with a node or without, and who is known to it.
pub struct Bed<C = Box<ControlPlane>> {
    /// The control plane.
    pub cluster: C,
    /// Client of an administrator.
    pub admin: Client,
    webhook_port: u16,
    /// Namespaces that controllers watch, and in which they have their permissions.
    namespaces: Namespaces,
}

/// A controller that runs in this process. Dropping it is a kill: nothing is said goodbye to.
pub struct Running {
    task: JoinHandle<()>,
    shutdown: CancellationToken,
}

impl Running {
    fn spawn(shutdown: CancellationToken, body: impl Future<Output = ()> + Send + 'static) -> Self {
        Self {
            task: tokio::spawn(body),
            shutdown,
        }
    }

    /// An orderly end, as on SIGTERM.
    pub async fn stop(mut self) {
        self.shutdown.cancel();
        let _ = (&mut self.task).await;
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        self.shutdown.cancel();
        self.task.abort();
    }
}

/// CRDs in the cluster beside our own.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Upstream {
    /// KAITO's CRDs.
    Kaito,
    /// A KAITO without InferenceSets.
    Workspaces,
    /// The CRDs of all built-in providers.
    All,
    /// The CRDs of all built-in providers, of AsyncActors and of KEDA.
    Everything,
    /// Nothing.
    None,
}

impl Upstream {
    /// Our CRDs and its own.
    fn crds(self) -> Result<Vec<CustomResourceDefinition>> {
        let mut all: Vec<_> = manifests::crds().into();
        if self != Self::None {
            all.extend(crds::upstream_crds(&[crds::KAITO_WORKSPACES])?);
        }
        if matches!(self, Self::Kaito | Self::All | Self::Everything) {
            all.extend(crds::upstream_crds(&[crds::KAITO_INFERENCE_SETS])?);
        }
        if matches!(self, Self::All | Self::Everything) {
            all.extend(crds::upstream_crds(&[crds::DYNAMO_V1BETA1, crds::KUBERAY_SERVICES])?);
        }
        if self == Self::Everything {
            all.extend(manifests::asya().crds);
            all.extend(crds::upstream_crds(&[
                crds::KEDA_SCALED_OBJECTS,
                crds::KEDA_TRIGGER_AUTHENTICATIONS,
            ])?);
        }
        Ok(all)
    }
}

impl Bed {
    /// Our CRDs, roles and webhooks, and KAITO's CRDs.
    pub async fn start() -> Result<Self> {
        Self::start_with(Upstream::Kaito, true).await
    }

    /// Our CRDs and roles, these CRDs, and webhooks if desired.
    pub async fn start_with(upstream: Upstream, webhooks: bool) -> Result<Self> {
        Self::start_trusting(upstream, webhooks, Vec::new()).await
    }

    /// The API server gets further arguments.
    pub async fn start_trusting(upstream: Upstream, webhooks: bool, apiserver_args: Vec<String>) -> Result<Self> {
        let cluster = ControlPlane::start(Options {
            crds: upstream.crds()?,
            apiserver_args,
            ..Options::default()
        })
        .await?;
        Self::on(Box::new(cluster), webhooks, Namespaces::default()).await
    }

    /// An installation for these namespaces, which are created.
    pub async fn start_within(namespaces: &str, upstream: Upstream, webhooks: bool) -> Result<Self> {
        let cluster = ControlPlane::start(Options {
            crds: upstream.crds()?,
            ..Options::default()
        })
        .await?;
        Self::on(Box::new(cluster), webhooks, namespaces.parse()?).await
    }
}

impl Bed<Node> {
    /// The same with a node, on which pods run.
    pub async fn start_with_node(upstream: Upstream) -> Result<Self> {
        let node = Node::start(Options {
            crds: upstream.crds()?,
            ..Options::default()
        })
        .await?;
        Self::on(node, true, Namespaces::default()).await
    }
}

impl<C: Deref<Target = ControlPlane>> Bed<C> {
    /// On a control plane that has the CRDs.
    async fn on(cluster: C, webhooks: bool, namespaces: Namespaces) -> Result<Self> {
        let admin = cluster.client("test-admin", &["system:masters"]).await?;
        let webhook_port = runway_testbed::free_port()?;
        let bed = Self {
            cluster,
            admin,
            webhook_port,
            namespaces,
        };
        for namespace in bed.namespaces.names() {
            bed.apply(&json!({ "apiVersion": "v1", "kind": "Namespace", "metadata": { "name": namespace } }))
                .await?;
        }
        let endpoint = Endpoint::Url(format!("https://127.0.0.1:{webhook_port}"));
        let mut objects = manifests::objects(&endpoint, Identity::User, &bed.namespaces);
        objects.extend(manifests::provider_roles(
            &deployment_provider::DeploymentProvider,
            Identity::User,
        ));
        for object in objects {
            let kind = object.types.as_ref().map(|t| t.kind.clone()).unwrap_or_default();
            if webhooks || !kind.ends_with("WebhookConfiguration") {
                bed.apply(&serde_json::to_value(&object)?).await?;
            }
        }
        Ok(bed)
    }

    /// Creates the roles of a component on request, which runs beside the cluster.
    pub async fn grant(&self, component: &Component) -> Result<()> {
        for role in component.roles(Identity::User, &self.namespaces) {
            self.apply(&serde_json::to_value(&role)?).await?;
        }
        Ok(())
    }

    /// Address of the core's webhooks for the API server, on 127.0.0.1.
    pub fn webhook_port(&self) -> u16 {
        self.webhook_port
    }

    /// The core controller with its admission server.
    pub async fn core(&self) -> Result<Running> {
        self.core_with(true).await
    }

    /// The core controller, with the built-in selector or without.
    pub async fn core_with(&self, selector_enabled: bool) -> Result<Running> {
        self.core_on(self.webhook_port, alone, selector_enabled).await
    }

    /// The core controller as a replica that leads on request.
    pub async fn core_led_by(&self, leadership: Leadership) -> Result<Running> {
        self.core_on(self.webhook_port, led_by(leadership), true).await
    }

    /// The core controller, whose requests go through another client.
    pub async fn core_through(&self, through: impl FnOnce(Client) -> Client) -> Result<Running> {
        let process = |client, shutdown| alone(through(client), shutdown);
        self.core_on(self.webhook_port, process, true).await
    }

    /// The core controller, which reports where its time goes.
    pub async fn core_traced(&self, traces: Traces) -> Result<Running> {
        self.core_on(self.webhook_port, traced(traces), true).await
    }

    /// Another replica, which the API server does not ask: behind a Service it could be asked.
    pub async fn second_core(&self, leadership: Leadership) -> Result<(Running, u16)> {
        let port = runway_testbed::free_port()?;
        Ok((self.core_on(port, led_by(leadership), true).await?, port))
    }

    async fn core_on(
        &self,
        port: u16,
        process: impl FnOnce(Client, CancellationToken) -> Process,
        selector_enabled: bool,
    ) -> Result<Running> {
        let client = self.cluster.client(labels::CORE_MANAGER, &[]).await?;
        let shutdown = CancellationToken::new();
        let process = self.within(process(client, shutdown.clone()));
        let registry = Arc::new(Registry::default());
        let args = WebhookArgs {
            webhook_address: ([127, 0, 0, 1], port).into(),
            webhook_url: Some(format!("https://127.0.0.1:{}", self.webhook_port)),
            webhook_service: "unused".to_owned(),
            webhook_namespace: manifests::NAMESPACE.to_owned(),
            webhook_secret: manifests::WEBHOOK_SECRET.to_owned(),
        };
        // A killed predecessor may hold the port for a moment.
        let admission = eventually(PATIENCE, async || {
            Ok(runway_core::serve::admission(&process, &args, registry.clone()).await?)
        })
        .await?;
        Ok(Running::spawn(shutdown, async move {
            runway_core::run(process, registry, selector_enabled).await;
            let _ = admission.await;
        }))
    }

    /// A process that watches the namespaces of this installation.
    fn within(&self, process: Process) -> Process {
        Process {
            namespaces: self.namespaces.clone(),
            ..process
        }
    }

    /// The Llama Stack operator.
    pub async fn llama_stack(&self) -> Result<Running> {
        self.llama_stack_through(|client| client).await
    }

    /// The Llama Stack operator, whose requests go through another client.
    pub async fn llama_stack_through(&self, through: impl FnOnce(Client) -> Client) -> Result<Running> {
        let client = through(self.cluster.client(labels::llama_stack::MANAGER, &[]).await?);
        Ok(self.llama_stack_as(client, llama_stack_settings("registry.example/operator:1"), alone))
    }

    /// The Llama Stack operator with an image that a node can run.
    pub async fn llama_stack_of(&self, image: &str) -> Result<Running> {
        let client = self.cluster.client(labels::llama_stack::MANAGER, &[]).await?;
        Ok(self.llama_stack_as(client, llama_stack_settings(image), alone))
    }

    /// The Llama Stack operator as a replica that leads on request, and that finds its image in its own pod.
    pub async fn llama_stack_led_by(&self, leadership: Leadership, own_pod: &str) -> Result<Running> {
        let client = self.cluster.client(labels::llama_stack::MANAGER, &[]).await?;
        let own_pod = [
            "--pod-name",
            own_pod,
            "--pod-namespace",
            manifests::NAMESPACE,
            "--container-name",
            "manager",
        ];
        let args: RunArgs = parsed(own_pod.map(str::to_owned))?;
        let settings = args.settings(&client).await;
        Ok(self.llama_stack_as(client, settings, led_by(leadership)))
    }

    fn llama_stack_as(
        &self,
        client: Client,
        settings: Settings,
        process: impl FnOnce(Client, CancellationToken) -> Process,
    ) -> Running {
        let shutdown = CancellationToken::new();
        let process = self.within(process(client, shutdown.clone()));
        Running::spawn(shutdown, runway_llama_stack_operator::run(process, settings))
    }

    /// The AsyncActor operator as a replica that leads on request. Queues are left to sidecars: no broker runs here.
    pub async fn asya_led_by(&self, leadership: Leadership, args: runway_asya_operator::Args) -> Result<Running> {
        let client = self.cluster.client(labels::ASYA_MANAGER, &[]).await?;
        let shutdown = CancellationToken::new();
        let process = self.within(led_by(leadership)(client, shutdown.clone()));
        Ok(Running::spawn(shutdown, async move {
            let ended = runway_asya_operator::run(process, args).await;
            assert!(ended.is_ok(), "{ended:?}");
        }))
    }

    /// The model router for the namespaces of this installation, and its address.
    pub async fn router(&self) -> Result<(Running, SocketAddr)> {
        self.router_with(&[]).await
    }

    /// The model router with further arguments, and its address.
    pub async fn router_with(&self, args: &[String]) -> Result<(Running, SocketAddr)> {
        self.grant(&router::router()).await?;
        let address: SocketAddr = ([127, 0, 0, 1], runway_testbed::free_port()?).into();
        let usual = [
            Some(format!("--address={address}")),
            Some("--keys-dir=/nowhere".to_owned()),
            self.namespaces.argument(),
        ];
        let args: runway_router::Args = parsed(usual.into_iter().flatten().chain(args.iter().cloned()))?;
        let client = self.cluster.client(labels::ROUTER_MANAGER, &[]).await?;
        let shutdown = CancellationToken::new();
        let process = self.within(alone(client, shutdown.clone()));
        let running = Running::spawn(shutdown, async move {
            let ended = runway_router::run(process, args).await;
            assert!(ended.is_ok(), "{ended:?}");
        });
        Ok((running, address))
    }

    /// The routes controller with these arguments.
    pub async fn routes(&self, args: &[&str]) -> Result<Running> {
        self.grant(&routes::routes()).await?;
        let args: runway_router::routes::Args = parsed(args.iter().map(ToString::to_string))?;
        let client = self.cluster.client(labels::GATEWAY_MANAGER, &[]).await?;
        let shutdown = CancellationToken::new();
        let process = self.within(alone(client, shutdown.clone()));
        Ok(Running::spawn(
            shutdown,
            runway_router::routes::run(process, args.into()),
        ))
    }

    /// The KAITO provider.
    pub async fn kaito(&self) -> Result<Running> {
        self.provider(Kaito::default()).await
    }

    /// The KAITO provider as a replica that leads on request.
    pub async fn kaito_led_by(&self, leadership: Leadership) -> Result<Running> {
        self.provider_as(Kaito::default(), led_by(leadership)).await
    }

    /// The KAITO provider, which reports where its time goes.
    pub async fn kaito_traced(&self, traces: Traces) -> Result<Running> {
        self.provider_as(Kaito::default(), traced(traces)).await
    }

    /// Any provider.
    pub async fn provider(&self, provider: impl Provider) -> Result<Running> {
        self.provider_as(provider, alone).await
    }

    /// Any provider, whose requests go through another client.
    pub async fn provider_through(
        &self,
        provider: impl Provider,
        through: impl FnOnce(Client) -> Client,
    ) -> Result<Running> {
        self.provider_as(provider, |client, shutdown| alone(through(client), shutdown))
            .await
    }

    /// Any provider as a replica that leads on request.
    pub async fn provider_led_by(&self, provider: impl Provider, leadership: Leadership) -> Result<Running> {
        self.provider_as(provider, led_by(leadership)).await
    }

    async fn provider_as(
        &self,
        provider: impl Provider,
        process: impl FnOnce(Client, CancellationToken) -> Process,
    ) -> Result<Running> {
        let client = self
            .cluster
            .client(&labels::provider_manager(provider.name()), &[])
            .await?;
        let shutdown = CancellationToken::new();
        let process = self.within(process(client, shutdown.clone()));
        // No pod runs here, so no endpoint could answer.
        self.run_provider(provider, process, shutdown, false).await
    }

    /// Any provider, which asks endpoints: for clusters with a node.
    pub async fn asking_provider(&self, provider: impl Provider) -> Result<Running> {
        let kubeconfig = self
            .cluster
            .kubeconfig(&labels::provider_manager(provider.name()), &[])?;
        let args = ClientArgs {
            kubeconfig: Some(kubeconfig),
            context: None,
        };
        let shutdown = CancellationToken::new();
        let process = Process {
            services: Services::of(&args.config().await?)?,
            ..Process::alone(args.client().await?, shutdown.clone())
        };
        self.run_provider(provider, process, shutdown, true).await
    }

    async fn run_provider(
        &self,
        provider: impl Provider,
        process: Process,
        shutdown: CancellationToken,
        verify_endpoints: bool,
    ) -> Result<Running> {
        let name = provider.name();
        let running = Running::spawn(shutdown, runway_provider::run(provider, process, verify_endpoints));
        let configs: Api<InferenceProviderConfig> = Api::all(self.admin.clone());
        eventually(PATIENCE, async || {
            let status = configs.get(name).await?.status.unwrap_or_default();
            if status.last_heartbeat.is_none() {
                bail!("{name} has not registered");
            }
            Ok(())
        })
        .await?;
        Ok(running)
    }

    /// The upstream simulator that plays KAITO's operator.
    pub async fn simulator(&self) -> Result<Simulator> {
        self.simulator_as(simulator::Config {
            ready_after: Duration::from_millis(300),
            ..simulator::Config::default()
        })
        .await
    }

    /// The upstream simulator, which creates the workloads of KAITO.
    pub async fn simulator_with_workloads(&self) -> Result<Simulator> {
        self.simulator_as(simulator::Config {
            workloads: true,
            ..simulator::Config::default()
        })
        .await
    }

    async fn simulator_as(&self, config: simulator::Config) -> Result<Simulator> {
        let client = self
            .cluster
            .client("kaito-upstream-simulator", &["system:masters"])
            .await?;
        Ok(Simulator::start(client, config))
    }

    /// Waits until admission answers: a spec without an engine is refused.
    pub async fn admission_is_up(&self) -> Result<()> {
        let broken = json!({"apiVersion": "kubeairunway.ai/v1alpha1", "kind": "ModelDeployment",
            "metadata": {"name": "probe", "namespace": NAMESPACE}, "spec": {"model": {"id": "a/b"}}});
        eventually(PATIENCE, async || match self.create_dry(&broken).await {
            Err(error) if format!("{error:#}").contains("engine.type is required") => Ok(()),
            other => bail!("admission does not answer yet: {other:?}"),
        })
        .await
    }

    /// Asks the admission server of a replica directly, trusting the authority that all replicas share.
    pub async fn ask_admission(&self, port: u16) -> Result<String> {
        let secrets: Api<Secret> = Api::namespaced(self.admin.clone(), manifests::NAMESPACE);
        let authority = secrets.get(manifests::WEBHOOK_SECRET).await?.data.unwrap_or_default();
        let pem = &authority.get("ca.crt").context("no ca.crt")?.0;
        let trusted: Vec<_> = CertificateDer::pem_slice_iter(pem).collect::<Result<_, _>>()?;
        let mut config = kube::Config::new(format!("https://127.0.0.1:{port}").parse()?);
        config.root_cert = Some(trusted.iter().map(|der| der.to_vec()).collect());
        let review = json!({ "apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "request": {
            "uid": "1", "operation": "CREATE", "name": "probe", "namespace": NAMESPACE,
            "kind": { "group": "kubeairunway.ai", "version": "v1alpha1", "kind": "ModelDeployment" },
            "resource": { "group": "kubeairunway.ai", "version": "v1alpha1", "resource": "modeldeployments" },
            "userInfo": {},
            "object": gemma("probe"),
        } });
        let request = Request::post("/validate").header("content-type", "application/json");
        let answer: Value = Client::try_from(config)?
            .request(request.body(serde_json::to_vec(&review)?)?)
            .await?;
        Ok(answer["response"].to_string())
    }

    /// Asks the server, as `kubectl apply` of something new would, what it has against an object; nothing is stored.
    pub async fn refusal(&self, object: &Value) -> Result<Option<Box<Status>>> {
        let types: TypeMeta = serde_json::from_value(object.clone())?;
        let resource = ApiResource::from_gvk(&GroupVersionKind::try_from(&types)?);
        let mut object = object.clone();
        let namespace = (types.kind != "InferenceProviderConfig").then_some(NAMESPACE);
        object["metadata"]["namespace"] = json!(namespace);
        let url = DynamicObject::url_path(&resource, namespace);
        let request = Request::post(format!("{url}?dryRun=All&fieldValidation=Strict"))
            .header("content-type", "application/json")
            .body(object.to_string().into_bytes())?;
        match self.admin.request::<Value>(request).await {
            Ok(_) => Ok(None),
            Err(kube::Error::Api(status)) => Ok(Some(status)),
            Err(other) => Err(other.into()),
        }
    }

    async fn create_dry(&self, object: &Value) -> Result<()> {
        let params = PostParams {
            dry_run: true,
            ..PostParams::default()
        };
        self.deployments()
            .create(&params, &serde_json::from_value(object.clone())?)
            .await?;
        Ok(())
    }

    /// ModelDeployments.
    pub fn deployments(&self) -> Api<ModelDeployment> {
        Api::namespaced(self.admin.clone(), NAMESPACE)
    }

    /// InferenceProviderConfigs.
    pub fn configs(&self) -> Api<InferenceProviderConfig> {
        Api::all(self.admin.clone())
    }

    /// Creates a ModelDeployment as a user would.
    pub async fn create(&self, object: Value) -> Result<ModelDeployment> {
        let md: DynamicObject = serde_json::from_value(object)?;
        let api: Api<DynamicObject> = Api::namespaced_with(
            self.admin.clone(),
            NAMESPACE,
            &ApiResource::erase::<ModelDeployment>(&()),
        );
        let created = api.create(&PostParams::default(), &md).await?;
        Ok(serde_json::from_value(serde_json::to_value(created)?)?)
    }

    /// Changes a ModelDeployment as `kubectl patch --type merge` would.
    pub async fn patch(&self, name: &str, patch: Value) -> Result<ModelDeployment> {
        Ok(self
            .deployments()
            .patch(name, &PatchParams::default(), &Patch::Merge(patch))
            .await?)
    }

    /// Deletes a ModelDeployment.
    pub async fn delete(&self, name: &str) -> Result<()> {
        self.deployments().delete(name, &DeleteParams::background()).await?;
        Ok(())
    }

    /// Waits until the status is as wanted; shows it when it is not.
    pub async fn status(
        &self,
        name: &str,
        what: &str,
        wanted: impl Fn(&ModelDeploymentStatus) -> bool,
    ) -> Result<ModelDeployment> {
        eventually(PATIENCE, async || {
            let md = self.deployments().get(name).await?;
            match &md.status {
                Some(status) if wanted(status) => Ok(md),
                status => bail!("{name} is not {what}: {}", serde_json::to_string_pretty(status)?),
            }
        })
        .await
    }

    /// Waits until it serves.
    pub async fn running(&self, name: &str) -> Result<ModelDeployment> {
        self.status(name, "Running", |s| {
            let asleep = s
                .conditions
                .get_condition(condition::READY)
                .is_some_and(|c| c.reason == "ScaledToZero");
            s.phase == Some(Phase::Running) && (asleep || s.conditions.is_true(condition::READY))
        })
        .await
    }

    /// Waits until it is gone.
    pub async fn gone(&self, name: &str) -> Result<()> {
        eventually(PATIENCE, async || match self.deployments().get_opt(name).await? {
            None => Ok(()),
            Some(md) => bail!("{name} is still there: {}", serde_json::to_string_pretty(&md)?),
        })
        .await
    }

    /// Upstream objects of one kind.
    pub fn upstream(&self, kind: runway_provider::Kind, version: &str) -> Api<DynamicObject> {
        Api::namespaced_with(
            self.admin.clone(),
            NAMESPACE,
            &runway_provider::upstream::api_resource(kind, version),
        )
    }

    /// Workspaces of KAITO.
    pub fn workspaces(&self) -> Api<DynamicObject> {
        self.upstream(runway_provider_kaito::WORKSPACE, "v1beta1")
    }

    /// InferenceSets of KAITO.
    pub fn inference_sets(&self) -> Api<DynamicObject> {
        self.upstream(runway_provider_kaito::INFERENCE_SET, "v1beta1")
    }

    /// Waits until there is no InferenceSet of this name.
    pub async fn inference_set_gone(&self, name: &str) -> Result<()> {
        eventually(PATIENCE, async || match self.inference_sets().get_opt(name).await? {
            None => Ok(()),
            Some(_) => bail!("InferenceSet {name} is still there"),
        })
        .await
    }

    /// Reasons of the Events about an object, sorted.
    pub async fn event_reasons(&self, name: &str) -> Result<Vec<String>> {
        let events: Api<Event> = Api::namespaced(self.admin.clone(), NAMESPACE);
        let about = |e: &Event| e.regarding.as_ref().is_some_and(|r| r.name.as_deref() == Some(name));
        let mut reasons: Vec<String> = events
            .list(&ListParams::default())
            .await?
            .items
            .into_iter()
            .filter(about)
            .filter_map(|e| e.reason)
            .collect();
        reasons.sort();
        Ok(reasons)
    }

    /// Waits for an Event, and returns its note.
    pub async fn event(&self, name: &str, reason: &str) -> Result<String> {
        self.event_with(name, reason, "").await
    }

    /// The same, of one that contains a text.
    pub async fn event_with(&self, name: &str, reason: &str, text: &str) -> Result<String> {
        let events: Api<Event> = Api::namespaced(self.admin.clone(), NAMESPACE);
        eventually(PATIENCE, async || {
            let all = events.list(&ListParams::default()).await?.items;
            let found = all.into_iter().find(|e| {
                e.reason.as_deref() == Some(reason)
                    && e.note.as_ref().is_some_and(|note| note.contains(text))
                    && e.regarding.as_ref().is_some_and(|r| r.name.as_deref() == Some(name))
            });
            found
                .and_then(|e| e.note)
                .with_context(|| format!("no Event {reason} about {name} with '{text}'"))
        })
        .await
    }

    /// Labels of another client on objects of a model's name wake their provider, which finds no drift: it sends no request and
    /// writes no Event.
    pub async fn foreign_labels_are_no_drift(
        &self,
        name: &str,
        kinds: [runway_provider::Kind; 2],
        provider: &str,
    ) -> Result<()> {
        // What the provider still writes about its own rollout ends.
        tokio::time::sleep(Duration::from_secs(2)).await;
        let mark = self.cluster.audit().await?.mark().await?;
        for kind in kinds {
            let labels = json!({ "metadata": { "labels": { "of": "another" } } });
            self.upstream(kind, "v1")
                .patch(name, &PatchParams::default(), &Patch::Merge(&labels))
                .await?;
        }
        tokio::time::sleep(Duration::from_secs(3)).await;
        let requests = self.cluster.audit().await?.since(mark).await?;
        let loud: Vec<_> = audit::of_user(&requests, provider)
            .into_iter()
            .filter(|r| r.resource != "inferenceproviderconfigs" && r.class() != audit::Class::Watch)
            .collect();
        ensure!(loud.is_empty(), "{loud:?}");
        let reasons = self.event_reasons(name).await?;
        ensure!(!reasons.contains(&"DriftDetected".to_owned()), "{reasons:?}");
        Ok(())
    }

    /// Applies any object by force.
    pub async fn apply(&self, object: &Value) -> Result<DynamicObject> {
        runway_testbed::apply::apply(&self.admin, &serde_json::from_value(object.clone())?, "test").await
    }
}

/// Arguments of the AsyncActor operator. Queues are left to sidecars.
pub fn asya_args(transports: &str) -> runway_asya_operator::Args {
    runway_asya_operator::Args {
        actors: runway_asya_operator::ActorArgs {
            transports: runway_asya_operator::TransportArgs {
                transport_config: transports.to_owned(),
            },
            sidecar_image: "registry.example/asya-sidecar:1".to_owned(),
        },
        gateway_url: None,
        disable_queue_management: true,
        conflict_wait: 1,
        secrets: runway_asya_operator::SecretsArgs {
            secrets_dir: "/nowhere".into(),
        },
    }
}

/// Settings of the Llama Stack operator, whose image the pods use.
pub fn llama_stack_settings(image: &str) -> Settings {
    Settings {
        operator_image: Some(image.to_owned()),
        operator_namespace: Some(manifests::NAMESPACE.to_owned()),
        ..Settings::default()
    }
}

/// Arguments of a program.
fn parsed<T: clap::Args>(args: impl IntoIterator<Item = String>) -> Result<T> {
    #[derive(clap::Parser)]
    struct Program<T: clap::Args> {
        #[command(flatten)]
        args: T,
    }
    let args = std::iter::once(String::from("program")).chain(args);
    Ok(<Program<T> as clap::Parser>::try_parse_from(args)?.args)
}

/// A process of its own, that always leads.
fn alone(client: Client, shutdown: CancellationToken) -> Process {
    Process::alone(client, shutdown)
}

fn led_by(leadership: Leadership) -> impl FnOnce(Client, CancellationToken) -> Process {
    |client, shutdown| Process {
        leadership,
        ..Process::alone(client, shutdown)
    }
}

fn traced(traces: Traces) -> impl FnOnce(Client, CancellationToken) -> Process {
    |client, shutdown| Process {
        traces,
        ..Process::alone(client, shutdown)
    }
}

/// A variable that `cargo xtask storm` sets.
#[allow(clippy::disallowed_methods, reason = "a test has no arguments")]
pub fn storm_setting(name: &str) -> Option<String> {
    std::env::var(format!("RUNWAY_STORM_{name}")).ok()
}

/// Prints a table, and writes it to the file that `cargo xtask storm` reads.
#[allow(clippy::print_stdout, reason = "the figures are of use when the test passes, too")]
pub fn report(table: &str) -> Result<()> {
    println!("{table}");
    storm_setting("REPORT").map_or(Ok(()), |file| {
        std::fs::write(&file, table).with_context(|| format!("cannot write {file}"))
    })
}

/// A name that a Workspace of KAITO can have, and an InferenceSet cannot.
pub const LONG: &str = "a-name-of-forty-seven-characters-for-a-workspac";

/// The design's example 2, under another name.
pub fn gemma(name: &str) -> Value {
    json!({
        "apiVersion": ModelDeployment::api_version(&()),
        "kind": ModelDeployment::kind(&()),
        "metadata": { "name": name, "namespace": NAMESPACE },
        "spec": {
            "model": { "id": "google/gemma-3-1b-it-qat-q8_0-gguf", "source": "huggingface" },
            "engine": { "type": "llamacpp" },
            "serving": { "mode": "aggregated" },
            "scaling": { "replicas": 1 },
            "resources": { "gpu": { "count": 0 }, "memory": "16Gi", "cpu": "8" },
            "image": "ghcr.io/sozercan/llama-cpp-runner:latest",
        }
    })
}

/// The same, with labels that the upstream simulator obeys.
pub fn gemma_simulated(name: &str, behavior: &str) -> Value {
    simulated(gemma(name), behavior)
}

/// With labels that the upstream simulator obeys.
pub fn simulated(mut object: Value, behavior: &str) -> Value {
    object["metadata"]["labels"] = json!({ simulator::LABEL: behavior });
    object
}

/// vLLM on one GPU, served by the provider named.
pub fn vllm(name: &str, provider: &str) -> Value {
    let mut object = gemma(name);
    object["spec"]["engine"] = json!({ "type": "vllm" });
    object["spec"]["model"] = json!({ "id": "Qwen/Qwen3-8B" });
    object["spec"]["resources"] = json!({ "gpu": { "count": 1 } });
    object["spec"]["provider"] = json!({ "name": provider });
    if let Some(spec) = object["spec"].as_object_mut() {
        spec.remove("image");
    }
    object
}
