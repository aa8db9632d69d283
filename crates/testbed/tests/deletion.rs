//! Deletion ends, whatever is missing: {CRD missing, operator dead, provider dead, webhook down, paused} for each provider.
//!
//! Deletion without any controller ends after five minutes with an Event. That depends on time, so it is tested with the
//! pure plan: `r25` of the conformance suite for each provider, and of `contract.rs` for the core.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a test that cannot run should fail")]

use std::time::Duration;

use anyhow::{Result, bail, ensure};
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::api::DeleteParams;
use kube::{Api, ResourceExt};
use runway_api::model_deployment::Phase;
use runway_api::{ModelDeployment, labels};
use runway_manifests as manifests;
use runway_product_testbed::{Bed, PATIENCE, Running, Upstream, vllm};
use runway_provider::upstream::crd_name;
use runway_testbed::eventually;
use serde_json::json;

const PROVIDERS: [&str; 4] = ["kaito", "dynamo", "kuberay", "direct"];
/// Those whose operator puts a finalizer on its object; KubeRay's puts none on a RayService, which goes at once.
const WITH_FINALIZER: [&str; 2] = ["kaito", "dynamo"];

#[tokio::test]
async fn in_every_state_for_every_provider() -> Result<()> {
    let bed = Bed::start_with(Upstream::All, true).await?;
    let core = bed.core().await?;
    let mut providers = start_providers(&bed).await?;
    let simulator = bed.simulator().await?;
    bed.admission_is_up().await?;
    for state in [
        "paused",
        "webhook-down",
        "operator-dead",
        "provider-dead",
        "crd-missing",
    ] {
        for provider in PROVIDERS {
            let mut model = vllm(&name(provider, state), provider);
            // There are no nodes, so pods of its own would never be ready.
            if provider == "direct" {
                model["spec"]["scaling"]["replicas"] = json!(0);
            }
            bed.create(model).await?;
        }
        for provider in PROVIDERS {
            bed.running(&name(provider, state)).await?;
        }
    }

    // Pause never blocks it.
    for provider in PROVIDERS {
        let pause = json!({ "metadata": { "annotations": { labels::PAUSED: "true" } } });
        bed.patch(&name(provider, "paused"), pause).await?;
    }
    all_deleted_and_gone(&bed, "paused").await?;

    // The core is dead, and with it the webhook that the API server would ask.
    drop(core);
    all_deleted_and_gone(&bed, "webhook-down").await?;
    let _core = bed.core().await?;
    bed.admission_is_up().await?;

    // The operators are down: while they hold their object, the deletion waits, reports for what, and completes when they restart.
    drop(simulator);
    delete_all(&bed, "operator-dead").await?;
    for provider in WITH_FINALIZER {
        waits(&bed, &name(provider, "operator-dead")).await?;
    }
    let simulator = bed.simulator().await?;
    all_gone(&bed, "operator-dead").await?;

    // The providers are dead: nothing is given up before its time, and they take up where they were.
    providers.clear();
    delete_all(&bed, "provider-dead").await?;
    tokio::time::sleep(Duration::from_secs(2)).await;
    for provider in PROVIDERS {
        ensure!(
            bed.deployments()
                .get(&name(provider, "provider-dead"))
                .await?
                .has_finalizer()
        );
    }
    let _providers = start_providers(&bed).await?;
    all_gone(&bed, "provider-dead").await?;

    // The CRDs go, with everything in them and with the operators.
    let crds: Api<CustomResourceDefinition> = Api::all(bed.admin.clone());
    let upstreams: Vec<String> = upstream_kinds().into_iter().map(crd_name).collect();
    for crd in &upstreams {
        crds.delete(crd, &DeleteParams::default()).await?;
    }
    for crd in &upstreams {
        eventually(PATIENCE, async || {
            ensure!(crds.get_opt(crd).await?.is_none(), "{crd} is still there");
            Ok(())
        })
        .await?;
    }
    drop(simulator);
    all_deleted_and_gone(&bed, "crd-missing").await
}

async fn start_providers(bed: &Bed) -> Result<Vec<Running>> {
    Ok(vec![
        bed.kaito().await?,
        bed.provider(runway_provider_dynamo::Dynamo::default()).await?,
        bed.provider(runway_provider_kuberay::KubeRay::default()).await?,
        bed.provider(runway_provider_direct::Direct::default()).await?,
    ])
}

fn name(provider: &str, state: &str) -> String {
    format!("{provider}-{state}")
}

/// The upstream kinds of all providers, each with a CRD of its own.
fn upstream_kinds() -> Vec<runway_provider::Kind> {
    let providers = manifests::built_in_providers();
    let kinds = providers.iter().flat_map(|p| p.upstreams()).map(|u| u.kind);
    kinds.filter(|kind| !kind.is_built_in()).collect()
}

async fn delete_all(bed: &Bed, state: &str) -> Result<()> {
    for provider in PROVIDERS {
        bed.delete(&name(provider, state)).await?;
    }
    Ok(())
}

/// Gone, and nothing of it is left upstream.
async fn all_gone(bed: &Bed, state: &str) -> Result<()> {
    for provider in PROVIDERS {
        bed.gone(&name(provider, state)).await?;
    }
    for provider in manifests::built_in_providers() {
        for upstream in provider.upstreams() {
            let version = upstream.schemas.first().map_or("v1", |s| s.version);
            let name = name(provider.name(), state);
            // An error says that the CRD is gone, and everything of its kind with it.
            if let Ok(Some(left)) = bed.upstream(upstream.kind, version).get_opt(&name).await {
                bail!("{} '{name}' is orphaned: {left:?}", upstream.kind.kind);
            }
        }
    }
    Ok(())
}

async fn all_deleted_and_gone(bed: &Bed, state: &str) -> Result<()> {
    delete_all(bed, state).await?;
    all_gone(bed, state).await
}

/// It says which object it waits for.
async fn waits(bed: &Bed, name: &str) -> Result<ModelDeployment> {
    let quoted = format!("'{name}'");
    let md = bed
        .status(name, "waiting for its object", |s| {
            s.phase == Some(Phase::Terminating) && s.message.as_deref().is_some_and(|m| m.contains(&quoted))
        })
        .await?;
    ensure!(md.has_finalizer(), "{} is held until its object is gone", md.name_any());
    Ok(md)
}
