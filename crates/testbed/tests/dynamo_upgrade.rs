//! An upgrade of Dynamo under a disaggregated ModelDeployment: made as v1alpha1, stored and converted as v1beta1, written
//! again by the provider. Dynamo is the upstream simulator; its conversion and its refusals are those of the new release.

use anyhow::{Context, Result, ensure};
use kube::ResourceExt;
use runway_api::condition::{self, Conditions};
use runway_api::model_deployment::Phase;
use runway_product_testbed::{Bed, Upstream, vllm};
use runway_provider_dynamo::{DYNAMO_GRAPH_DEPLOYMENT, Dynamo};
use runway_testbed::{PATIENCE, crds, eventually};
use runway_upstream_simulator::{conversion::ConversionWebhook, dynamo};
use serde_json::{Value, json};

#[tokio::test]
async fn a_disaggregated_graph_survives_an_upgrade_of_dynamo() -> Result<()> {
    let bed = Bed::start_with(Upstream::None, true).await?;
    for crd in crds::upstream_crds(&[crds::DYNAMO_V1ALPHA1])? {
        crds::install_crd(&bed.admin, crd).await?;
    }
    let _core = bed.core().await?;
    bed.admission_is_up().await?;
    let _simulator = bed.simulator().await?;
    let _dynamo = bed.provider(Dynamo::default()).await?;
    bed.create(disaggregated("pd")).await?;
    bed.running("pd").await?;
    let made = bed.upstream(DYNAMO_GRAPH_DEPLOYMENT, "v1alpha1").get("pd").await?;

    let webhook = ConversionWebhook::start(&bed.cluster.pki()).await?;
    for crd in crds::upstream_crds(&[crds::DYNAMO_V1BETA1])? {
        crds::install_crd(&bed.admin, dynamo::with_immutable_types(webhook.converting(crd))).await?;
    }
    let graphs = bed.upstream(DYNAMO_GRAPH_DEPLOYMENT, "v1beta1");
    bed.patch("pd", json!({"spec": {"scaling": {"decode": {"replicas": 2}}}}))
        .await?;
    let graph = eventually(PATIENCE, async || {
        let graph = graphs.get("pd").await?;
        ensure!(
            component(&graph.data, "VllmDecodeWorker")?["replicas"] == 2,
            "not written: {:?}",
            bed.deployments().get("pd").await?.status
        );
        Ok(graph)
    })
    .await?;
    assert_eq!(component(&graph.data, "VllmDecodeWorker")?["type"], "decode");
    assert_eq!(component(&graph.data, "VllmPrefillWorker")?["type"], "prefill");
    assert_eq!(graph.uid(), made.uid(), "not recreated");
    bed.status("pd", "Running again", |status| {
        status.phase == Some(Phase::Running)
            && status.observed_generation == Some(2)
            && status.conditions.is_true(condition::READY)
    })
    .await?;
    bed.cluster.stop().await
}

fn disaggregated(name: &str) -> Value {
    let mut object = vllm(name, "dynamo");
    object["spec"]["serving"] = json!({"mode": "disaggregated"});
    object["spec"]["resources"] = Value::Null;
    object["spec"]["scaling"] = json!({
        "prefill": {"replicas": 1, "gpu": {"count": 1}, "memory": "16Gi"},
        "decode": {"replicas": 1, "gpu": {"count": 1}, "memory": "16Gi"},
    });
    object
}

fn component<'a>(graph: &'a Value, name: &str) -> Result<&'a Value> {
    let components = graph["spec"]["components"].as_array().context("no components")?;
    let found = components.iter().find(|component| component["name"] == name);
    found.with_context(|| format!("no component {name}: {components:?}"))
}
