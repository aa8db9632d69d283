//! Settings of an installation on a real API server: they are there before the providers, predictions read them, a change applies
//! without a restart, and invalid ones change nothing.

use std::collections::BTreeMap;
use std::sync::Arc;

use anyhow::{Context, Result, ensure};
use clap::Parser;
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::api::{ListParams, Patch, PatchParams};
use kube::core::DynamicObject;
use kube::{Api, ResourceExt};
use runway_api::condition::{self, Conditions};
use runway_api::model_deployment::Phase;
use runway_cli::args::CommandLine;
use runway_cli::commands;
use runway_client::documents::Documents;
use runway_client::render::{Options, Planned, Show, plans, render};
use runway_client::state::State;
use runway_client::text::Look;
use runway_core::providers::Providers;
use runway_operator::{clock, json};
use runway_product_testbed::{Bed, NAMESPACE, Upstream, vllm};
use runway_provider::Kind;
use runway_provider_direct::{DEPLOYMENT, Direct};
use runway_provider_dynamo::{DYNAMO_GRAPH_DEPLOYMENT, Dynamo};
use runway_provider_kaito::{INFERENCE_SET, Kaito};
use runway_provider_kuberay::{KubeRay, RAY_SERVICE};
use runway_testbed::{PATIENCE, eventually};
use serde_json::{Value, json};

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
            INFERENCE_SET,
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

/// The predictions for a ModelDeployment before its objects exist, by their users: `diff` and `deploy`, the preview of the
/// console, which knows the providers only, and `render` with the registrations as files.
async fn predicted(bed: &Bed, name: &str) -> Result<Vec<(&'static str, DynamicObject)>> {
    let crds: Api<CustomResourceDefinition> = Api::all(bed.admin.clone());
    let crds = crds.list(&ListParams::default()).await?;
    let configs = bed.configs().list(&ListParams::default()).await?.items;
    let md = bed.deployments().get(name).await?;
    let last = |planned: Planned| Some(planned.apply.last()?.object.clone());

    let of_cluster = State::of(configs.clone(), crds, []);
    let providers = Providers::compile(configs.iter().cloned().map(Arc::new), &Providers::default());
    let of_console = State::with_providers(Arc::new(providers));
    let mut documents = Documents::default();
    documents.take_in_text("model", &json!(md).to_string());
    for config in &configs {
        documents.take_in_text("registration", &json!(config).to_string());
    }
    let (show, now) = (Show::Objects, clock::now());
    let rendered = render(documents, &Options { show, now });
    let predictions = [
        ("diff", last(plans(md.clone(), &of_cluster, now)?)),
        ("console", last(plans(md, &of_console, now)?)),
        ("render", rendered.documents.last().cloned()),
    ];
    let complete = predictions.into_iter().map(|(by, object)| {
        Ok((
            by,
            object.with_context(|| format!("{by} predicts nothing: {:?}", rendered.diagnostics))?,
        ))
    });
    complete.collect()
}

/// Output of `kubeairunway diff` for an existing ModelDeployment.
async fn differences(bed: &Bed, name: &str) -> Result<String> {
    let kubeconfig = bed.cluster.admin()?.display().to_string();
    let line = [
        "kubeairunway",
        "--kubeconfig",
        &kubeconfig,
        "diff",
        name,
        "-n",
        NAMESPACE,
    ];
    let line = CommandLine::try_parse_from(line)?;
    let answer = commands::run(&line, &mut std::io::empty(), Look::default()).await?;
    Ok(answer.data)
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
        for (by, main) in predicted(&bed, &name).await? {
            ensure!(
                main.name_any() == live.name_any() && json::contains(&live.data, &main.data),
                "{provider}: {by} predicted {:#}, created {:#}",
                main.data,
                live.data
            );
        }
        let shown = eventually(PATIENCE, async || {
            let shown = differences(&bed, &name).await?;
            ensure!(!shown.contains("create  ") && !shown.contains("change  "), "{shown}");
            Ok(shown)
        })
        .await?;
        ensure!(shown.contains("unchanged: "), "{shown}");
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
