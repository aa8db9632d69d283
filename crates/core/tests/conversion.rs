//! A second version of the API: the API server converts with our webhook in both directions, and objects move from one storage
//! version to the other.

use anyhow::{Context, Result, ensure};
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::api::{ListParams, Patch, PatchParams, PostParams};
use kube::core::{ApiResource, DynamicObject};
use kube::{Api, Client, CustomResourceExt, ResourceExt};
use runway_api::{ModelDeployment, labels};
use runway_core::conversion::{self, CONVERT_PATH};
use runway_operator::clock;
use runway_operator::webhook::bundle::CONVERSION;
use runway_operator::webhook::{Authority, Endpoint, Lifetimes, Settings, Target, keep_bundle};
use runway_testbed::{ControlPlane, Options, PATIENCE, eventually};
use serde_json::{Value, json};
use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;

/// The CRD with a v1beta1 of the same schema, without a conversion webhook yet.
fn two_versions(stored: &str) -> Result<CustomResourceDefinition> {
    let mut crd = serde_json::to_value(ModelDeployment::crd())?;
    let mut beta = crd["spec"]["versions"][0].clone();
    beta["name"] = json!("v1beta1");
    let versions = crd["spec"]["versions"].as_array_mut().context("no versions")?;
    versions.push(beta);
    for version in versions {
        version["storage"] = json!(version["name"] == stored);
    }
    let nowhere =
        json!({ "clientConfig": { "url": "https://127.0.0.1:1/convert" }, "conversionReviewVersions": ["v1"] });
    crd["spec"]["conversion"] = json!({ "strategy": "Webhook", "webhook": nowhere });
    Ok(serde_json::from_value(crd)?)
}

fn models(client: &Client, version: &str) -> Api<DynamicObject> {
    let mut resource = ApiResource::erase::<ModelDeployment>(&());
    version.clone_into(&mut resource.version);
    resource.api_version = format!("kubeairunway.ai/{version}");
    Api::namespaced_with(client.clone(), "default", &resource)
}

fn model(name: &str, version: &str) -> Result<DynamicObject> {
    Ok(serde_json::from_value(json!({
        "apiVersion": format!("kubeairunway.ai/{version}"), "kind": "ModelDeployment", "metadata": { "name": name },
        "spec": { "model": { "id": "a/b" }, "engine": { "type": "vllm", "args": { "seed": "0" } }, "scaling": { "replicas": 0 } },
    }))?)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_second_version_is_served_and_converted() -> Result<()> {
    let crds = vec![two_versions("v1alpha1")?];
    let cluster = ControlPlane::start(Options {
        crds,
        ..Options::default()
    })
    .await?;
    let admin = cluster.admin_client().await?;
    let _shutdown = serve_conversion(admin.clone()).await?.drop_guard();

    // Our webhook is registered in the CRD, and every object is available in every version.
    let (alpha, beta) = (models(&admin, "v1alpha1"), models(&admin, "v1beta1"));
    eventually(PATIENCE, async || {
        beta.create(
            &PostParams {
                dry_run: true,
                ..PostParams::default()
            },
            &model("probe", "v1beta1")?,
        )
        .await?;
        Ok(())
    })
    .await?;
    alpha.create(&PostParams::default(), &model("old", "v1alpha1")?).await?;
    beta.create(&PostParams::default(), &model("new", "v1beta1")?).await?;
    for name in ["old", "new"] {
        let (as_alpha, as_beta) = (alpha.get(name).await?, beta.get(name).await?);
        ensure!(
            as_alpha
                .types
                .as_ref()
                .is_some_and(|t| t.api_version == "kubeairunway.ai/v1alpha1")
        );
        ensure!(
            as_beta
                .types
                .as_ref()
                .is_some_and(|t| t.api_version == "kubeairunway.ai/v1beta1")
        );
        ensure!(as_alpha.data == as_beta.data && as_alpha.uid() == as_beta.uid());
        ensure!(as_beta.data["spec"]["scaling"]["replicas"] == 0, "{}", as_beta.data);
    }
    // Clients of the old version are not affected, and a write in one version is visible in the other.
    let grow = json!({ "spec": { "scaling": { "replicas": 2 } } });
    beta.patch("old", &PatchParams::default(), &Patch::Merge(grow)).await?;
    let typed: Api<ModelDeployment> = Api::default_namespaced(admin.clone());
    let seen = typed.get("old").await?.spec.scaling.and_then(|s| s.replicas);
    ensure!(seen == Some(2), "{seen:?}");

    // The storage version changes; objects in the old one are still served, and a write moves them.
    let api: Api<CustomResourceDefinition> = Api::all(admin.clone());
    let versions: Value = serde_json::to_value(two_versions("v1beta1")?.spec.versions)?;
    let patch = Patch::Merge(json!({ "spec": { "versions": versions } }));
    let name = ModelDeployment::crd_name();
    api.patch(name, &PatchParams::default(), &patch).await?;
    eventually(PATIENCE, async || {
        let stored = api
            .get(name)
            .await?
            .status
            .and_then(|s| s.stored_versions)
            .unwrap_or_default();
        ensure!(stored == ["v1alpha1", "v1beta1"], "{stored:?}");
        ensure!(alpha.list(&ListParams::default()).await?.items.len() == 2);
        Ok(())
    })
    .await?;
    for name in ["old", "new"] {
        let touched = Patch::Merge(json!({ "metadata": { "annotations": { "touched": "true" } } }));
        beta.patch(name, &PatchParams::default(), &touched).await?;
    }
    let moved = Patch::Merge(json!({ "status": { "storedVersions": ["v1beta1"] } }));
    api.patch_status(name, &PatchParams::default(), &moved).await?;
    ensure!(alpha.get("old").await?.data["spec"]["scaling"]["replicas"] == 2);
    Ok(())
}

/// The conversion webhook as the core serves it, and the task that registers it in the CRD.
async fn serve_conversion(client: Client) -> Result<CancellationToken> {
    let listener = TcpListener::bind("127.0.0.1:0").await?;
    let endpoint = Endpoint::Url(format!("https://{}", listener.local_addr()?));
    let authority = Authority::new(
        client.clone(),
        Settings {
            namespace: "default".to_owned(),
            secret: "authority".to_owned(),
            names: vec!["127.0.0.1".to_owned()],
            field_manager: labels::CORE_MANAGER.to_owned(),
            lifetimes: Lifetimes::default(),
            clock: clock::now,
        },
    );
    let (tls, bundle, shutdown) = (authority.tls()?, authority.bundle(), CancellationToken::new());
    let target = Target {
        configuration: conversion::crd_name().to_owned(),
        webhooks: vec![(CONVERSION.to_owned(), CONVERT_PATH.to_owned())],
        endpoint,
        field_manager: labels::CORE_MANAGER.to_owned(),
    };
    tokio::spawn(keep_bundle::<CustomResourceDefinition>(
        client,
        target,
        bundle,
        shutdown.clone(),
    ));
    tokio::spawn(authority.run(shutdown.clone()));
    let router = runway_operator::webhook::conversion::router(CONVERT_PATH, conversion::convert);
    tokio::spawn(runway_http::serve(
        listener,
        Some(tls),
        router,
        runway_http::Limits::WEBHOOK,
        shutdown.clone(),
    ));
    Ok(shutdown)
}
