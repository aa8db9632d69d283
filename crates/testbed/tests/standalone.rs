//! The output of `kubeairunway render --standalone` is accepted by a real API server, without any controller.

use std::collections::BTreeSet;
use std::ffi::OsString;
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail, ensure};
use clap::Parser;
use k8s_openapi::api::core::v1::Namespace;
use kube::api::{Patch, PatchParams, ValidationDirective};
use kube::core::DynamicObject;
use kube::{Api, Client, ResourceExt};
use runway_api::labels::{self, llama_stack};
use runway_cli::args::{Command, CommandLine};
use runway_cli::verbs::offline;
use runway_testbed::{ControlPlane, Options, apply, crds};
use serde_json::{Value, json};

/// Text that no object may contain.
const MARKS: [&str; 5] = [
    "ownerReferences",
    labels::APPLIED_HASH,
    labels::MADE_FOR,
    labels::MANAGED_BY,
    llama_stack::APPLIED_HASH,
];

#[tokio::test(flavor = "multi_thread")]
async fn standalone_objects_are_accepted_with_strict_validation() -> Result<()> {
    let upstreams = [
        crds::KAITO_WORKSPACES,
        crds::KAITO_INFERENCE_SETS,
        crds::KUBERAY_SERVICES,
        crds::DYNAMO_V1BETA1,
        crds::KEDA_SCALED_OBJECTS,
        crds::KEDA_TRIGGER_AUTHENTICATIONS,
    ];
    let crds = crds::upstream_crds(&upstreams)?;
    let cluster = ControlPlane::start(Options {
        crds,
        ..Options::default()
    })
    .await?;
    let client = cluster.admin_client().await?;
    let (mut kinds, mut failed) = (BTreeSet::new(), Vec::new());
    for (name, manifest) in manifests()? {
        for object in rendered(&manifest).with_context(|| name.clone())? {
            let text = serde_json::to_string(&object)?;
            let marks: Vec<_> = MARKS.iter().filter(|mark| text.contains(*mark)).collect();
            ensure!(marks.is_empty(), "{name}: {marks:?} in {text}");
            kinds.extend(object.types.as_ref().map(|types| types.kind.clone()));
            if let Err(error) = try_out(&client, &object).await {
                failed.push(format!("{name}: {error:#}"));
            }
        }
    }
    ensure!(failed.is_empty(), "{}", failed.join("\n"));
    for kind in [
        "ConfigMap",
        "Deployment",
        "DynamoGraphDeployment",
        "HorizontalPodAutoscaler",
        "InferenceSet",
        "Ingress",
        "PersistentVolumeClaim",
        "PodDisruptionBudget",
        "RayService",
        "ScaledObject",
        "Service",
        "ServiceAccount",
        "StatefulSet",
        "TriggerAuthentication",
        "Workspace",
    ] {
        ensure!(kinds.contains(kind), "no {kind} in {kinds:?}");
    }
    Ok(())
}

/// Applies an object as kubectl does with `--server-side --validate=strict --dry-run=server`.
async fn try_out(client: &Client, object: &DynamicObject) -> Result<()> {
    let namespace = json!({"metadata": {"name": object.namespace().context("no namespace")?}});
    let namespace: Namespace = serde_json::from_value(namespace)?;
    let params = PatchParams::apply("kubectl").force();
    Api::<Namespace>::all(client.clone())
        .patch(&namespace.name_any(), &params, &Patch::Apply(&namespace))
        .await?;
    let params = PatchParams {
        dry_run: true,
        field_validation: Some(ValidationDirective::Strict),
        ..PatchParams::apply("kubectl")
    };
    let api = apply::api_of(client, object).await?;
    let applied = api.patch(&object.name_any(), &params, &Patch::Apply(object)).await;
    applied.with_context(|| format!("{:?} {}", object.types, object.name_any()))?;
    Ok(())
}

/// Objects that the command renders from a manifest. There are none if the manifest is rejected.
fn rendered(manifest: &str) -> Result<Vec<DynamicObject>> {
    let transports = root().join("crates/cli/tests/render/actor-bind/transports.json");
    let words = [
        "kubeairunway",
        "render",
        "--standalone",
        "-o",
        "json",
        "-f",
        "-",
        "--transport-config",
    ];
    let words = words.map(OsString::from).into_iter().chain([transports.into()]);
    let Command::Render(args) = CommandLine::try_parse_from(words)?.command else {
        bail!("another command");
    };
    let answer = offline::render(&args, &mut manifest.as_bytes())?;
    if answer.data.trim().is_empty() {
        return Ok(Vec::new());
    }
    let data: Value = serde_json::from_str(&answer.data)?;
    let items = data["items"].as_array().cloned().unwrap_or_else(|| vec![data]);
    Ok(items
        .into_iter()
        .map(serde_json::from_value)
        .collect::<Result<_, _>>()?)
}

/// Examples, and the manifests of tests of all providers and operators, by name.
fn manifests() -> Result<Vec<(String, String)>> {
    let mut found = Vec::new();
    for (folder, file) in [
        ("deploy/examples", ""),
        ("deploy/examples/llama-stack", ""),
        ("deploy/examples/asya", ""),
        ("crates/cli/tests/render/actor-model-deployment", ""),
        ("crates/cli/tests/render/autoscaler", ""),
        ("crates/cli/tests/render/distribution", ""),
        ("crates/llama-stack-operator/tests/plan", "llsd.yaml"),
        ("crates/asya-operator/tests/plan", "actor.yaml"),
    ] {
        for path in files(&root().join(folder), file)? {
            found.push((path.display().to_string(), fs::read_to_string(&path)?));
        }
    }
    for provider in ["direct", "dynamo", "kaito", "kuberay"] {
        let folder = root().join(format!("crates/provider-{provider}/tests/cases"));
        for path in files(&folder, "input.yaml")? {
            let mut manifest: Value = serde_saphyr::from_str(&fs::read_to_string(&path)?)?;
            manifest["spec"]["provider"]["name"] = provider.into();
            found.push((path.display().to_string(), manifest.to_string()));
        }
    }
    Ok(found)
}

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

/// The files of this name in the folders of a folder; the YAML files of the folder itself if the name is empty.
fn files(folder: &Path, name: &str) -> Result<Vec<PathBuf>> {
    let mut found = Vec::new();
    for entry in fs::read_dir(folder)? {
        let path = if name.is_empty() {
            entry?.path()
        } else {
            entry?.path().join(name)
        };
        if path.is_file() && path.extension().is_some_and(|extension| extension == "yaml") {
            found.push(path);
        }
    }
    found.sort();
    Ok(found)
}
