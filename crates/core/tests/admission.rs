//! Admission with a real API server: certificates, the CA bundle, rotation, and steady state.

use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use futures::future::join_all;
use jiff::SignedDuration;
use k8s_openapi::ByteString;
use k8s_openapi::api::admissionregistration::v1::{MutatingWebhookConfiguration, ValidatingWebhookConfiguration};
use k8s_openapi::api::core::v1::Secret;
use k8s_openapi::api::rbac::v1::{ClusterRole, ClusterRoleBinding};
use kube::api::{Patch, PatchParams, PostParams};
use kube::{Api, Client, CustomResourceExt, ResourceExt};
use runway_api::{InferenceProviderConfig, ModelDeployment, labels};
use runway_core::admission::{handlers, manifests};
use runway_core::providers::Providers;
use runway_operator::clock;
use runway_operator::scope::Namespaces;
use runway_operator::webhook::certificates::Authorities;
use runway_operator::webhook::{Authority, Endpoint, Lifetimes, Settings, Target, keep_bundle};
use runway_testbed::{ControlPlane, Options, PATIENCE, eventually};
use serde_json::{Value, json};
use tokio::net::TcpListener;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

const SECRET: &str = "webhook-authority";

/// Webhooks of a controller, reduced to what this test needs.
struct Webhooks {
    endpoint: Endpoint,
    bundle: watch::Receiver<Option<String>>,
    shutdown: CancellationToken,
}

impl Webhooks {
    async fn start(client: Client, lifetimes: Lifetimes) -> Result<Self> {
        let listener = TcpListener::bind("127.0.0.1:0").await?;
        let endpoint = Endpoint::Url(format!("https://{}", listener.local_addr()?));
        let settings = Settings {
            namespace: "default".to_owned(),
            secret: SECRET.to_owned(),
            names: vec!["127.0.0.1".to_owned()],
            field_manager: labels::CORE_MANAGER.to_owned(),
            lifetimes,
            clock: clock::now,
        };
        let authority = Authority::new(client.clone(), settings);
        let (tls, bundle, shutdown) = (authority.tls()?, authority.bundle(), CancellationToken::new());
        let target = |configuration: &str, webhook: &str, path: &str| Target {
            configuration: configuration.to_owned(),
            webhooks: vec![(webhook.to_owned(), path.to_owned())],
            endpoint: endpoint.clone(),
            field_manager: labels::CORE_MANAGER.to_owned(),
        };
        let mutating = target(
            manifests::MUTATING_CONFIGURATION,
            manifests::MUTATING_WEBHOOK,
            handlers::MUTATE_PATH,
        );
        let validating = target(
            manifests::VALIDATING_CONFIGURATION,
            manifests::VALIDATING_WEBHOOK,
            handlers::VALIDATE_PATH,
        );

        tokio::spawn(keep_bundle::<MutatingWebhookConfiguration>(
            client.clone(),
            mutating,
            bundle.clone(),
            shutdown.clone(),
        ));
        tokio::spawn(keep_bundle::<ValidatingWebhookConfiguration>(
            client,
            validating,
            bundle.clone(),
            shutdown.clone(),
        ));
        tokio::spawn(authority.run(shutdown.clone()));
        let providers = Arc::new(Providers::default());
        tokio::spawn(runway_http::serve(
            listener,
            Some(tls),
            handlers::router(
                move || providers.clone(),
                Namespaces::default(),
                runway_operator::trace::Traces::default(),
            ),
            runway_http::Limits::WEBHOOK,
            shutdown.clone(),
        ));
        Ok(Self {
            endpoint,
            bundle,
            shutdown,
        })
    }
}

impl Drop for Webhooks {
    fn drop(&mut self) {
        self.shutdown.cancel();
    }
}

async fn control_plane() -> Result<ControlPlane> {
    let crds = vec![ModelDeployment::crd(), InferenceProviderConfig::crd()];
    ControlPlane::start(Options {
        crds,
        ..Options::default()
    })
    .await
}

/// A client with exactly the permissions that the webhooks need.
async fn webhooks_client(cluster: &ControlPlane, user: &str) -> Result<Client> {
    let configurations = ["mutatingwebhookconfigurations", "validatingwebhookconfigurations"];
    let names = [manifests::MUTATING_CONFIGURATION, manifests::VALIDATING_CONFIGURATION];
    let role: ClusterRole = serde_json::from_value(json!({
        "metadata": {"name": user},
        "rules": [
            {"apiGroups": [""], "resources": ["secrets"], "verbs": ["create"]},
            {"apiGroups": [""], "resources": ["secrets"], "resourceNames": [SECRET], "verbs": ["list", "watch", "patch"]},
            {"apiGroups": ["admissionregistration.k8s.io"], "resources": configurations, "resourceNames": names, "verbs": ["list", "watch", "patch"]},
        ],
    }))?;
    let binding: ClusterRoleBinding = serde_json::from_value(json!({
        "metadata": {"name": user},
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": user},
        "subjects": [{"apiGroup": "rbac.authorization.k8s.io", "kind": "User", "name": user}],
    }))?;
    let admin = cluster.admin_client().await?;
    Api::all(admin.clone()).create(&PostParams::default(), &role).await?;
    Api::all(admin).create(&PostParams::default(), &binding).await?;
    cluster.client(user, &[]).await
}

/// Installs the configurations. With `Fail`, a webhook that does not respond is noticed.
async fn install(admin: &Client, endpoint: &Endpoint) -> Result<()> {
    let (mut mutating, mut validating) = (manifests::mutating(endpoint), manifests::validating(endpoint));
    mutating
        .webhooks
        .iter_mut()
        .flatten()
        .for_each(|webhook| webhook.failure_policy = Some("Fail".to_owned()));
    validating
        .webhooks
        .iter_mut()
        .flatten()
        .for_each(|webhook| webhook.failure_policy = Some("Fail".to_owned()));
    Api::all(admin.clone())
        .create(&PostParams::default(), &mutating)
        .await?;
    Api::all(admin.clone())
        .create(&PostParams::default(), &validating)
        .await?;
    Ok(())
}

/// The result of a dry-run request for a deployment.
async fn admit(client: &Client, spec: Value) -> kube::Result<ModelDeployment> {
    let spec = serde_json::from_value(spec).map_err(kube::Error::SerdeError)?;
    let parameters = PostParams {
        dry_run: true,
        ..PostParams::default()
    };
    Api::default_namespaced(client.clone())
        .create(&parameters, &ModelDeployment::new("m", spec))
        .await
}

fn good() -> Value {
    json!({"model": {"id": "org/model"}, "engine": {"type": "vllm"}, "resources": {"gpu": {"count": 1}}})
}

async fn bundles(admin: &Client) -> Result<[Option<ByteString>; 2]> {
    let mutating: MutatingWebhookConfiguration = Api::all(admin.clone()).get(manifests::MUTATING_CONFIGURATION).await?;
    let validating: ValidatingWebhookConfiguration =
        Api::all(admin.clone()).get(manifests::VALIDATING_CONFIGURATION).await?;
    Ok([
        mutating
            .webhooks
            .and_then(|mut webhooks| webhooks.remove(0).client_config.ca_bundle),
        validating
            .webhooks
            .and_then(|mut webhooks| webhooks.remove(0).client_config.ca_bundle),
    ])
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn webhooks_are_called_and_configurations_are_stable_at_rest() -> Result<()> {
    let cluster = control_plane().await?;
    let admin = cluster.admin_client().await?;
    let webhooks = Webhooks::start(webhooks_client(&cluster, "webhooks").await?, Lifetimes::default()).await?;

    // The configurations are created after the controller, without a bundle.
    install(&admin, &webhooks.endpoint).await?;
    let admitted = eventually(PATIENCE, async || Ok(admit(&admin, good()).await?)).await?;
    assert_eq!(admitted.finalizers(), [labels::FINALIZER]);
    assert_eq!(admitted.spec.scaling.and_then(|scaling| scaling.replicas), Some(1));
    assert_eq!(
        admitted.spec.resources.and_then(|r| r.gpu?.kind).as_deref(),
        Some("nvidia.com/gpu")
    );

    // A rejection keeps its fields up to the user.
    let bad = json!({"model": {}, "engine": {"type": "vllm"}});
    let Err(kube::Error::Api(status)) = admit(&admin, bad).await else {
        panic!("must be refused")
    };
    assert!(status.message.ends_with(
        "denied the request: model.id is required when source is huggingface; vLLM engine requires GPU (set resources.gpu.count > 0)"
    ), "{}", status.message);
    let fields: Vec<_> = status
        .details
        .iter()
        .flat_map(|d| &d.causes)
        .map(|cause| cause.field.as_str())
        .collect();
    assert_eq!(
        (status.code, status.reason.as_str(), fields),
        (422, "Invalid", vec!["spec.model.id", "spec.resources.gpu.count"])
    );

    // A second replica uses the same authority.
    let mut other = Webhooks::start(webhooks_client(&cluster, "replica").await?, Lifetimes::default()).await?;
    let theirs = other.bundle.wait_for(Option::is_some).await?.clone();
    assert_eq!(theirs, *webhooks.bundle.borrow());
    drop(other);

    // Another writer replaces the bundle: it is restored.
    eventually(PATIENCE, async || {
        let wanted = webhooks.bundle.borrow().clone().map(|pem| ByteString(pem.into_bytes()));
        ensure!(
            bundles(&admin).await? == [wanted.clone(), wanted],
            "a bundle is not ours"
        );
        Ok(())
    })
    .await?;
    let mine = bundles(&admin).await?;
    let overwrite = json!([{"op": "replace", "path": "/webhooks/0/clientConfig/caBundle", "value": ByteString(b"-----BEGIN CERTIFICATE-----\n".to_vec())}]);
    let overwrite = Patch::Json::<()>(serde_json::from_value(overwrite)?);
    let configurations: Api<MutatingWebhookConfiguration> = Api::all(admin.clone());
    let overwritten = configurations
        .patch(manifests::MUTATING_CONFIGURATION, &PatchParams::default(), &overwrite)
        .await;
    // Some API servers validate the bundle and reject an invalid one: a valid one without our authority works as well.
    if overwritten.is_err() {
        let empty = json!([{"op": "remove", "path": "/webhooks/0/clientConfig/caBundle"}]);
        let empty = Patch::Json::<()>(serde_json::from_value(empty)?);
        configurations
            .patch(manifests::MUTATING_CONFIGURATION, &PatchParams::default(), &empty)
            .await?;
    }
    eventually(PATIENCE, async || {
        ensure!(bundles(&admin).await? == mine, "still overwritten");
        Ok(())
    })
    .await?;

    // In steady state nothing is sent.
    tokio::time::sleep(Duration::from_secs(2)).await;
    let audit = cluster.audit().await?;
    let mark = audit.mark().await?;
    tokio::time::sleep(Duration::from_secs(5)).await;
    let requests = audit.since(mark).await?;
    let ours: Vec<_> = requests.iter().filter(|request| request.user == "webhooks").collect();
    assert!(ours.is_empty(), "{ours:?}");
    Ok(())
}

/// Objects that are admitted at the same time while certificates rotate.
const AT_ONCE: usize = 8;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn certificate_rotation_does_not_interrupt_admission() -> Result<()> {
    let cluster = control_plane().await?;
    let admin = cluster.admin_client().await?;
    // A new authority every 8 seconds, which signs 2 seconds later.
    let lifetimes = Lifetimes {
        authority: Duration::from_secs(12),
        leaf: Duration::from_secs(5),
    };
    let webhooks = Webhooks::start(webhooks_client(&cluster, "webhooks").await?, lifetimes).await?;
    install(&admin, &webhooks.endpoint).await?;
    eventually(PATIENCE, async || Ok(admit(&admin, good()).await?)).await?;

    let mut bundle = webhooks.bundle.clone();
    let mut changes = 0;
    let start = Instant::now();
    while start.elapsed() < Duration::from_secs(28) {
        let at_once = (0..AT_ONCE).map(|_| admit(&admin, good()));
        for admitted in join_all(at_once).await {
            let admitted = admitted.with_context(|| format!("after {:?}", start.elapsed()))?;
            assert_eq!(admitted.finalizers(), [labels::FINALIZER]);
        }
        if bundle.has_changed()? {
            bundle.mark_unchanged();
            changes += 1;
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    // Each rotation changes the bundle twice: an authority is added, later one is removed.
    assert!(changes >= 5, "{changes} changes");
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn replicas_that_start_at_once_agree_and_a_broken_secret_heals() -> Result<()> {
    let cluster = control_plane().await?;
    let mut replicas = Vec::new();
    for number in 0..4 {
        let client = webhooks_client(&cluster, &format!("replica-{number}")).await?;
        replicas.push(Webhooks::start(client, Lifetimes::default()).await?);
    }
    let secrets: Api<Secret> = Api::default_namespaced(cluster.admin_client().await?);
    let agreed = async || -> Result<ByteString> {
        let stored = secrets
            .get(SECRET)
            .await?
            .data
            .unwrap_or_default()
            .remove("ca.crt")
            .context("no authority")?;
        for replica in &replicas {
            let bundle = replica.bundle.borrow().clone().context("no bundle")?;
            ensure!(bundle.as_bytes() == stored.0, "replicas differ");
        }
        Ok(stored)
    };
    let first = eventually(PATIENCE, &agreed).await?;

    secrets
        .patch(
            SECRET,
            &PatchParams::default(),
            &Patch::Merge(json!({"data": {"ca.crt": "bm9uc2Vuc2U="}})),
        )
        .await?;
    let second = eventually(PATIENCE, async || {
        let stored = agreed().await?;
        ensure!(stored != first, "not healed");
        Ok(stored)
    })
    .await?;

    // A part of the Secret is missing, or its authority expired while no replica was running.
    let half = Patch::Merge(json!({"data": {"ca.key": null}}));
    secrets.patch(SECRET, &PatchParams::default(), &half).await?;
    let third = eventually(PATIENCE, async || {
        let stored = agreed().await?;
        ensure!(stored != second, "not whole again");
        Ok(stored)
    })
    .await?;
    let long_ago = clock::now() - SignedDuration::from_hours(24 * 400);
    let expired = Authorities::first("expired", long_ago, Lifetimes::default())?.data();
    let expired = Patch::Merge(json!({ "data": expired }));
    let written = secrets.patch(SECRET, &PatchParams::default(), &expired).await?;
    let expired = written.data.unwrap_or_default().remove("ca.crt");
    eventually(PATIENCE, async || {
        let stored = agreed().await?;
        ensure!(stored != third && Some(&stored) != expired.as_ref(), "not renewed");
        Ok(())
    })
    .await?;

    secrets.delete(SECRET, &kube::api::DeleteParams::default()).await?;
    eventually(PATIENCE, async || {
        ensure!(agreed().await? != second, "not made again");
        Ok(())
    })
    .await?;
    Ok(())
}
