//! Settings of an installation on a real API server: they are there before the providers, predictions read them, a change applies
//! without a restart, and invalid ones change nothing.

mod support;

use std::collections::BTreeMap;

use anyhow::{Context, Result, ensure};
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::api::{ListParams, Patch, PatchParams};
use kube::core::DynamicObject;
use kube::{Api, ResourceExt};
use runway_api::condition::{self, Conditions};
use runway_api::model_deployment::Phase;
use runway_client::render::{Planned, plans};
use runway_client::state::State;
use runway_operator::{clock, json};
use runway_provider::Kind;
use runway_provider_direct::{DEPLOYMENT, Direct};
use runway_provider_dynamo::{DYNAMO_GRAPH_DEPLOYMENT, Dynamo};
use runway_provider_kaito::{Kaito, WORKSPACE};
use runway_provider_kuberay::{KubeRay, RAY_SERVICE};
use runway_testbed::{PATIENCE, eventually};
use serde_json::{Value, json};
use support::{Bed, Upstream, vllm};

/// A registration with settings only, as an administrator applies it before the provider runs.
fn registration(provider: &str, settings: &Value) -> Value {
    json!({
        "apiVersion": "kubeairunway.ai/v1alpha1", "kind": "InferenceProviderConfig",
        "metadata": { "name": provider },
        "spec": { "settings": settings },
    })
}

/// For each provider: settings other than the defaults, the kind of its main object, and words that they put into it.
fn settings() -> [(&'static str, Value, Kind, &'static [&'static str]); 4] {
    let common = json!({
        "registryMirror": "registry.example.com/mirror", "imagePullSecrets": ["team-registry"],
        "nodeLabels": { "gpu": { "pool": "gpu" } },
    });
    let words = &["registry.example.com/mirror/", "team-registry", "\"pool\":\"gpu\""];
    let mut dynamo = common.clone();
    dynamo["runtimeVersion"] = json!("1.3.1");
    let kaito = json!({
        "nodeProvisioning": "Auto", "instanceTypes": { "gpu": { "nvidia.com/gpu": "Standard_NC24ads_A100_v4" } },
        "nodeLabels": { "gpu": { "pool": "gpu" } },
    });
    [
        (
            "kaito",
            kaito,
            WORKSPACE,
            &["Standard_NC24ads_A100_v4", "\"pool\":\"gpu\""],
        ),
        ("dynamo", dynamo, DYNAMO_GRAPH_DEPLOYMENT, words),
        ("kuberay", common.clone(), RAY_SERVICE, words),
        ("direct", common, DEPLOYMENT, words),
    ]
}

async fn main_object(bed: &Bed, provider: &str, kind: Kind) -> Result<DynamicObject> {
    let api = bed.upstream(kind, kind.version);
    let name = format!("on-{provider}");
    eventually(PATIENCE, async || {
        api.get_opt(&name)
            .await?
            .with_context(|| format!("{name} does not exist"))
    })
    .await
}

/// The prediction for a ModelDeployment, without the objects that exist.
async fn predicted(bed: &Bed, name: &str) -> Result<Planned> {
    let crds: Api<CustomResourceDefinition> = Api::all(bed.admin.clone());
    let state = State::held(
        bed.configs().list(&ListParams::default()).await?,
        crds.list(&ListParams::default()).await?,
        [],
    );
    Ok(plans(bed.deployments().get(name).await?, &state, clock::now())?)
}

async fn applied(bed: &Bed, provider: &str, settings: &Value) -> Result<()> {
    let administrator = PatchParams::apply("administrator").force();
    let registration = Patch::Apply(registration(provider, settings));
    bed.configs().patch(provider, &administrator, &registration).await?;
    Ok(())
}

#[tokio::test]
async fn predictions_equal_the_objects_that_controllers_create_with_settings() -> Result<()> {
    let bed = Bed::start_with(Upstream::All, true).await?;
    for (provider, settings, ..) in settings() {
        applied(&bed, provider, &settings).await?;
    }
    let _core = bed.core().await?;
    let _kaito = bed.provider(Kaito::default()).await?;
    let _dynamo = bed.provider(Dynamo::default()).await?;
    let _kuberay = bed.provider(KubeRay::default()).await?;
    let _direct = bed.provider(Direct::default()).await?;
    bed.admission_is_up().await?;
    for (provider, settings, kind, words) in settings() {
        let name = format!("on-{provider}");
        let mut deployment = vllm(&name, provider);
        deployment["spec"]["resources"]["memory"] = json!("16Gi");
        bed.create(deployment).await?;
        let live = main_object(&bed, provider, kind).await?;
        let text = live.data.to_string();
        for word in words {
            ensure!(text.contains(word), "{provider}: {word} is not in {text}");
        }
        let planned = predicted(&bed, &name).await?;
        let main = planned.apply.last().context("nothing is predicted")?;
        ensure!(
            main.object.name_any() == live.name_any() && json::contains(&live.data, &main.object.data),
            "{provider}: predicted {:#}, created {:#}",
            main.object.data,
            live.data
        );
        // The provider's registration never contains settings.
        let config = bed.configs().get(provider).await?;
        ensure!(
            config.spec.settings.as_ref().map(|s| json!(s)) == Some(settings),
            "{config:?}"
        );
        ensure!(
            !config.spec.capabilities.engines.is_empty(),
            "{provider} has not registered"
        );
        let owners: BTreeMap<_, _> = config
            .managed_fields()
            .iter()
            .map(|entry| (entry.manager.clone().unwrap_or_default(), json!(entry.fields_v1)))
            .collect();
        ensure!(
            !owners[&format!("{provider}-provider")]
                .to_string()
                .contains("f:settings"),
            "{owners:?}"
        );
    }
    bed.cluster.stop().await
}

#[tokio::test]
async fn a_change_applies_without_a_restart_and_invalid_settings_change_nothing() -> Result<()> {
    let bed = Bed::start_with(Upstream::None, true).await?;
    let _core = bed.core().await?;
    let _direct = bed.provider(Direct::default()).await?;
    bed.admission_is_up().await?;
    bed.create(vllm("on-direct", "direct")).await?;
    let before = main_object(&bed, "direct", DEPLOYMENT).await?;

    applied(&bed, "direct", &json!({ "imagePullSecrets": ["team-registry"] })).await?;
    let api = bed.upstream(DEPLOYMENT, "v1");
    let changed = eventually(PATIENCE, async || {
        let live = api.get("on-direct").await?;
        ensure!(live.data.to_string().contains("team-registry"), "not changed");
        Ok(live)
    })
    .await?;
    assert_eq!(changed.uid(), before.uid(), "changed in place");

    applied(&bed, "direct", &json!({ "images": { "vlm": "a:1" } })).await?;
    eventually(PATIENCE, async || {
        let status = bed.configs().get("direct").await?.status.unwrap_or_default();
        let condition = status
            .conditions
            .when_false(condition::SETTINGS_VALID)
            .context("settings are valid")?;
        ensure!(
            condition.message.contains("spec.settings.images.vlm: unknown field"),
            "{condition:?}"
        );
        ensure!(status.ready == Some(false), "ready with invalid settings");
        Ok(())
    })
    .await?;
    bed.status("on-direct", "reported as invalid settings", |status| {
        let compatible = status.conditions.when_false(condition::PROVIDER_COMPATIBLE);
        compatible.is_some_and(|c| c.reason == "SettingsInvalid")
    })
    .await?;
    let live = api.get("on-direct").await?;
    assert_eq!(live.metadata.generation, changed.metadata.generation, "left alone");

    applied(&bed, "direct", &json!({})).await?;
    eventually(PATIENCE, async || {
        let live = api.get("on-direct").await?;
        ensure!(!live.data.to_string().contains("team-registry"), "not changed back");
        Ok(())
    })
    .await?;
    bed.status("on-direct", "deploying", |status| {
        status.phase == Some(Phase::Deploying) && status.conditions.is_true(condition::PROVIDER_COMPATIBLE)
    })
    .await?;
    bed.cluster.stop().await
}
