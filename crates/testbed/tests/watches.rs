//! Watches that do not show the present: of an API server that has lost etcd, and after etcd was restored from a backup.

use std::time::Duration;

use anyhow::{Result, ensure};
use k8s_openapi::api::admissionregistration::v1::ValidatingWebhookConfiguration;
use k8s_openapi::api::core::v1::ConfigMap;
use kube::api::{Patch, PatchParams, PostParams};
use kube::client::Body;
use kube::{Api, Client, ResourceExt};
use runway_api::labels;
use runway_product_testbed::{Bed, NAMESPACE, PATIENCE, Running, Upstream, gemma};
use runway_provider_kaito::Kaito;
use runway_testbed::{Cluster, Proxy, audit, eventually};
use serde_json::json;

/// Writes after the backup, more than follow the restore: versions of the first time would come again otherwise.
const LATER: usize = 500;
/// Longer than a controller counts on a write that its watch does not show.
const STALE: Duration = Duration::from_secs(15);
/// Name of the configuration of the validating webhooks.
const VALIDATING: &str = "kubeairunway-validating";
/// Most writes of an object in that time.
const MOST: usize = 10;

#[tokio::test]
async fn data_restored_from_a_backup_are_read_again() -> Result<()> {
    let mut bed = Bed::start().await?;
    let _controllers = (bed.core().await?, bed.kaito().await?);
    for name in ["changed", "deleted"] {
        create(&bed, name, 1).await?;
    }
    let folder = tempfile::tempdir()?;
    let backup = folder.path().join("etcd");
    bed.cluster.back_up(&backup).await?;

    scale(&bed, "changed", 3).await?;
    create(&bed, "lost", 1).await?;
    bed.delete("deleted").await?;
    bed.gone("deleted").await?;
    let maps: Api<ConfigMap> = Api::namespaced(bed.admin.clone(), NAMESPACE);
    for number in 0..LATER {
        let map = json!({ "apiVersion": "v1", "kind": "ConfigMap",
            "metadata": { "name": "number" }, "data": { "number": number.to_string() } });
        maps.patch("number", &PatchParams::apply("test"), &Patch::Apply(map))
            .await?;
    }
    bed.cluster.restore(&backup).await?;

    is_deployed(&bed, "changed", 1).await?;
    is_deployed(&bed, "deleted", 1).await?;
    ensure!(bed.deployments().get_opt("lost").await?.is_none(), "the backup has it");
    scale(&bed, "changed", 2).await?;
    create(&bed, "lost", 2).await?;
    bed.delete("deleted").await?;
    bed.gone("deleted").await?;
    bed.inference_set_gone("deleted").await?;
    ca_bundle_is_restored(&bed).await
}

/// Removes the CA bundle of the validating webhooks, and waits until the core has written it again.
async fn ca_bundle_is_restored(bed: &Bed) -> Result<()> {
    let configurations: Api<ValidatingWebhookConfiguration> = Api::all(bed.admin.clone());
    let mut without = configurations.get(VALIDATING).await?;
    for webhook in without.webhooks.iter_mut().flatten() {
        webhook.client_config.ca_bundle = None;
    }
    configurations
        .replace(VALIDATING, &PostParams::default(), &without)
        .await?;
    eventually(PATIENCE, async || {
        let webhooks = configurations.get(VALIDATING).await?.webhooks.unwrap_or_default();
        let is_trusted = webhooks.iter().all(|webhook| webhook.client_config.ca_bundle.is_some());
        ensure!(is_trusted, "the webhooks have no CA bundle");
        Ok(())
    })
    .await
}

#[tokio::test]
async fn watches_of_an_api_server_without_etcd_do_no_harm() -> Result<()> {
    let mut bed = Bed::start_with(Upstream::Kaito, false).await?;
    let etcd = Proxy::start(bed.cluster.etcd()).await?;
    let second = bed.cluster.start_second_apiserver(etcd.address()).await?;
    let controllers = (core(&bed, &second).await?, kaito(&bed, &second).await?);
    create(&bed, "deleted", 1).await?;

    etcd.fail();
    bed.create(gemma("unseen")).await?;
    bed.delete("deleted").await?;
    drop(controllers);
    // Each lists the present of the first server when it starts, and then watches the past of the second.
    bed.create(gemma("listed")).await?;
    let registered = kaito(&bed, &second).await?;
    eventually(PATIENCE, async || {
        let status = bed.configs().get("kaito").await?.status.unwrap_or_default();
        ensure!(status.ready == Some(true), "it is not ready");
        Ok(())
    })
    .await?;
    let _core = core(&bed, &second).await?;
    bed.status("listed", "selected", |status| {
        let provider = status.provider.as_ref();
        provider.is_some_and(|provider| provider.name.is_some())
    })
    .await?;
    drop(registered);
    let _kaito = kaito(&bed, &second).await?;
    bed.patch("listed", json!({ "spec": { "scaling": { "replicas": 2 } } }))
        .await?;
    let log = bed.cluster.audit().await?;
    let mark = log.mark().await?;
    tokio::time::sleep(STALE).await;
    let requests = log.since(mark).await?;
    for user in [labels::CORE_MANAGER.to_owned(), labels::provider_manager("kaito")] {
        for ((_, name), count) in audit::by_object(&audit::of_user(&requests, &user)) {
            println!("{user}: {count} of '{name}'");
            ensure!(count.write <= MOST, "{user} sent {count} of '{name}' in {STALE:?}");
        }
    }

    etcd.recover();
    is_deployed(&bed, "listed", 2).await?;
    is_deployed(&bed, "unseen", 1).await?;
    bed.gone("deleted").await
}

/// Starts the core. Its watches go to the second API server, its other requests to the first.
async fn core(bed: &Bed, second: &Cluster) -> Result<Running> {
    let watches = second.client(labels::CORE_MANAGER, &[]).await?;
    bed.core_through(|client| split(client, watches)).await
}

/// Starts the KAITO provider, connected to both API servers as the core is.
async fn kaito(bed: &Bed, second: &Cluster) -> Result<Running> {
    let watches = second.client(&labels::provider_manager("kaito"), &[]).await?;
    bed.provider_through(Kaito::default(), |client| split(client, watches))
        .await
}

/// A client whose watches have a server of their own.
fn split(client: Client, watches: Client) -> Client {
    let namespace = client.default_namespace().to_owned();
    let service = tower::service_fn(move |request: axum::http::Request<Body>| {
        let is_watch = request.uri().query().is_some_and(|query| query.contains("watch=true"));
        let server = if is_watch { watches.clone() } else { client.clone() };
        async move { server.send(request).await }
    });
    Client::new(service, namespace)
}

/// Creates a model, and waits for its object.
async fn create(bed: &Bed, name: &str, replicas: u32) -> Result<()> {
    let mut object = gemma(name);
    object["spec"]["scaling"]["replicas"] = json!(replicas);
    bed.create(object).await?;
    is_deployed(bed, name, replicas).await
}

/// Changes the number of replicas, and waits for it.
async fn scale(bed: &Bed, name: &str, replicas: u32) -> Result<()> {
    bed.patch(name, json!({ "spec": { "scaling": { "replicas": replicas } } }))
        .await?;
    is_deployed(bed, name, replicas).await
}

/// Waits until the model's InferenceSet has this number of replicas, and the status is of the current spec.
async fn is_deployed(bed: &Bed, name: &str, replicas: u32) -> Result<()> {
    eventually(PATIENCE, async || {
        let model = bed.deployments().get(name).await?;
        let set = bed.inference_sets().get(name).await?;
        let owner = set.owner_references().first().map(|owner| owner.uid.clone());
        ensure!(owner == model.uid(), "the InferenceSet {name} belongs to another model");
        let found = &set.data["spec"]["replicas"];
        ensure!(*found == json!(replicas), "{name} has {found} replicas, not {replicas}");
        let status = model.status.unwrap_or_default();
        ensure!(
            status.observed_generation == model.metadata.generation,
            "{name}: {}",
            serde_json::to_string_pretty(&status)?
        );
        Ok(())
    })
    .await
}
