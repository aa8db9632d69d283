//! The chart in a cluster, with both major versions of Helm: settings, uninstallation, adoption. There is no node: the test runs what the
//! pods of Jobs would run, with the permissions of their accounts.

use std::path::PathBuf;
use std::process::Output;

use anyhow::{Context, Result, ensure};
use clap::Parser;
use k8s_openapi::api::apps::v1::Deployment;
use k8s_openapi::api::core::v1::{Namespace, Pod};
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::api::{DeleteParams, ListParams, Patch, PatchParams, PostParams};
use kube::config::{AuthInfo, KubeConfigOptions, Kubeconfig};
use kube::{Api, Client, Config, ResourceExt};
use runway_api::{AsyncActor, InferenceProviderConfig, ModelDeployment, labels};
use runway_core::task::Task;
use runway_operator::scope::ScopeArgs;
use runway_testbed::{ControlPlane, Options, PATIENCE, binaries, eventually, tokens};
use serde_json::{Value, json};

const CHART: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../deploy/charts/kubeairunway");
/// Namespace of the first release: not the default one.
const NAMESPACE: &str = "ai-platform";
const CRD: &str = "modeldeployments.kubeairunway.ai";

/// Arguments of a pod of a Job.
#[derive(Parser)]
struct Arguments {
    #[command(flatten)]
    scope: ScopeArgs,
    #[command(subcommand)]
    task: Task,
}

struct Stage {
    helm: PathBuf,
    home: tempfile::TempDir,
    kubeconfig: PathBuf,
    client: Client,
}

impl Stage {
    /// Runs Helm, and the pods of Jobs meanwhile. Returns the output, and the messages of failed pods.
    async fn helm(&self, args: &[&str]) -> Result<(Output, Vec<String>)> {
        let helm = tokio::process::Command::new(&self.helm)
            .args(args)
            .env("HOME", self.home.path())
            .env("KUBECONFIG", &self.kubeconfig)
            .kill_on_drop(true)
            .output();
        let mut messages = Vec::new();
        let output = tokio::select! {
            output = helm => output?,
            failed = self.run_pods(&mut messages) => return Err(failed.err().context("pods no longer run")?),
        };
        Ok((output, messages))
    }

    /// Runs Helm, which succeeds.
    async fn done(&self, args: &[&str]) -> Result<()> {
        let (output, messages) = self.helm(args).await?;
        let error = String::from_utf8_lossy(&output.stderr);
        ensure!(output.status.success(), "helm {args:?}: {error} {messages:?}");
        Ok(())
    }

    async fn run_pods(&self, messages: &mut Vec<String>) -> Result<()> {
        let pods: Api<Pod> = Api::all(self.client.clone());
        loop {
            for pod in pods.list(&ListParams::default().labels("job-name")).await? {
                let phase = pod.status.as_ref().and_then(|status| status.phase.as_deref());
                if phase != Some("Pending") || pod.metadata.deletion_timestamp.is_some() {
                    continue;
                }
                let result = self.run_pod(&pod).await?;
                let phase = if result.is_ok() { "Succeeded" } else { "Failed" };
                messages.extend(result.err());
                let status = json!({ "status": { "phase": phase } });
                let here: Api<Pod> = Api::namespaced(self.client.clone(), &pod.namespace().unwrap_or_default());
                here.patch_status(&pod.name_any(), &PatchParams::default(), &Patch::Merge(status))
                    .await?;
            }
            tokio::time::sleep(std::time::Duration::from_millis(200)).await;
        }
    }

    /// Acts as the program of a pod, with its ServiceAccount.
    async fn run_pod(&self, pod: &Pod) -> Result<Result<(), String>> {
        let spec = pod.spec.as_ref().context("no spec")?;
        let account = spec.service_account_name.as_deref().context("no account")?;
        let namespace = pod.namespace().unwrap_or_default();
        let token = tokens::token(&self.client, &namespace, account, &[]).await?;
        let kubeconfig = Kubeconfig::read_from(&self.kubeconfig)?;
        let mut config = Config::from_custom_kubeconfig(kubeconfig, &KubeConfigOptions::default()).await?;
        config.auth_info = AuthInfo {
            token: Some(token.into()),
            ..AuthInfo::default()
        };
        let args = spec.containers[0].args.iter().flatten().cloned();
        let args = Arguments::try_parse_from(["task".to_owned()].into_iter().chain(args))?;
        let client = Client::try_from(config)?;
        let result = args.task.run(&client, &args.scope.watch_namespaces).await;
        Ok(result.map_err(|error| error.to_string()))
    }

    async fn settings(&self) -> Result<Value> {
        let configs: Api<InferenceProviderConfig> = Api::all(self.client.clone());
        Ok(json!(configs.get("direct").await?.spec.settings))
    }

    /// Release that a CRD belongs to.
    async fn owner(&self) -> Result<String> {
        let crds: Api<CustomResourceDefinition> = Api::all(self.client.clone());
        let crd = crds.get(CRD).await?;
        Ok(crd
            .annotations()
            .get("meta.helm.sh/release-name")
            .cloned()
            .unwrap_or_default())
    }

    async fn deployments(&self, namespace: &str) -> Result<usize> {
        let all: Api<Deployment> = Api::namespaced(self.client.clone(), namespace);
        Ok(all.list(&ListParams::default()).await?.items.len())
    }
}

/// A stage with each major version of Helm.
async fn with_each_helm(run: impl AsyncFn(&Stage) -> Result<()>) -> Result<()> {
    for (helm, version) in binaries::helm()?.into_iter().zip(["Helm 3", "Helm 4"]) {
        let cluster = ControlPlane::start(Options::default()).await?;
        let stage = Stage {
            helm,
            home: tempfile::tempdir()?,
            kubeconfig: cluster.admin()?,
            client: cluster.admin_client().await?,
        };
        // The pods of Jobs comply with Pod Security.
        let restricted = json!({ "metadata": { "name": NAMESPACE,
            "labels": { "pod-security.kubernetes.io/enforce": "restricted" } } });
        let restricted: Namespace = serde_json::from_value(restricted)?;
        Api::all(stage.client.clone())
            .create(&PostParams::default(), &restricted)
            .await?;
        Box::pin(run(&stage)).await.context(version)?;
        cluster.stop().await?;
    }
    Ok(())
}

#[tokio::test]
async fn the_chart_applies_settings_and_keeps_the_registration() -> Result<()> {
    with_each_helm(async |stage| {
        let helm = async |verb: &str, set: &str| {
            stage.done(&[verb, "runway", CHART, "-n", NAMESPACE, "--create-namespace", "--set", set]).await
        };
        let mirror = |mirror: &str| format!("providers.direct.settings.registryMirror={mirror}.example.com");
        let applied = async |mirror: &str| -> Result<()> {
            let settings = stage.settings().await?;
            ensure!(settings == json!({ "registryMirror": format!("{mirror}.example.com") }), "{mirror}: {settings}");
            Ok(())
        };
        helm("install", &mirror("first")).await?;
        applied("first").await?;
        // The provider registers.
        let registration = json!({
            "apiVersion": "kubeairunway.ai/v1alpha1", "kind": "InferenceProviderConfig", "metadata": { "name": "direct" },
            "spec": { "capabilities": { "engines": ["vllm"] } },
        });
        let configs: Api<InferenceProviderConfig> = Api::all(stage.client.clone());
        let provider = PatchParams::apply("direct-provider");
        configs.patch("direct", &provider, &Patch::Apply(registration)).await?;
        for set in ["second", "second", "third"] {
            helm("upgrade", &mirror(set)).await?;
            applied(set).await?;
        }
        helm("upgrade", "controller.replicas=1").await?;
        applied("third").await.context("not kept")?;
        let capabilities = configs.get("direct").await?.spec.capabilities;
        ensure!(capabilities.engines == ["vllm"], "the registration is gone: {capabilities:?}");
        Ok(())
    })
    .await
}

#[tokio::test]
async fn uninstallation_waits_for_models_and_another_release_adopts_what_stays() -> Result<()> {
    with_each_helm(async |stage| {
        stage.done(&["install", "runway", CHART, "-n", NAMESPACE]).await?;
        let team: Namespace = serde_json::from_value(json!({ "metadata": { "name": "team-a" } }))?;
        Api::all(stage.client.clone()).create(&PostParams::default(), &team).await?;
        let models: Api<ModelDeployment> = Api::namespaced(stage.client.clone(), "team-a");
        let model = serde_json::from_value(json!({
            "apiVersion": "kubeairunway.ai/v1alpha1", "kind": "ModelDeployment",
            "metadata": { "name": "gemma", "finalizers": [labels::FINALIZER] },
            "spec": { "model": { "id": "google/gemma-3-1b-it", "source": "huggingface" }, "engine": { "type": "llamacpp" } },
        }))?;
        models.create(&PostParams::default(), &model).await?;
        let actors: Api<AsyncActor> = Api::namespaced(stage.client.clone(), "team-a");
        let actor = serde_json::from_value(json!({
            "apiVersion": "asya.sh/v1alpha1", "kind": "AsyncActor",
            "metadata": { "name": "scale", "finalizers": [labels::ASYA_FINALIZER] },
            "spec": { "transport": "rabbitmq", "workload": { "template": { "spec": { "containers": [
                { "name": "asya-runtime", "image": "handlers:1" },
            ] } } } },
        }))?;
        actors.create(&PostParams::default(), &actor).await?;

        // Nothing is deleted.
        let before = stage.deployments(NAMESPACE).await?;
        let (output, messages) = stage.helm(&["uninstall", "runway", "-n", NAMESPACE]).await?;
        ensure!(!output.status.success() && stage.deployments(NAMESPACE).await? == before, "{output:?}");
        let message = messages.first().context("no message")?;
        for part in [
            "would leave 2 objects",
            "ModelDeployment team-a/gemma, AsyncActor team-a/scale",
            "`kubectl delete modeldeployments,asyncactors --all --all-namespaces`",
            "Helm's `--no-hooks`",
        ] {
            ensure!(message.contains(part), "{message}");
        }
        // Helm records the attempt; until a rollback to the same revision it refuses upgrades.
        stage.done(&["rollback", "runway", "1", "-n", NAMESPACE]).await?;
        stage.done(&["upgrade", "runway", CHART, "-n", NAMESPACE]).await?;

        // An upgrade that switches a controller off is checked for its kind.
        let off = ["upgrade", "runway", CHART, "-n", NAMESPACE, "--set", "asyaOperator.enabled=false"];
        let (output, messages) = stage.helm(&off).await?;
        ensure!(!output.status.success() && stage.deployments(NAMESPACE).await? == before, "{output:?}");
        let message = messages.first().with_context(|| format!("{output:?}"))?;
        ensure!(message.contains("1 object whose") && message.contains("AsyncActor team-a/scale;"), "{message}");
        stage.done(&[&off[..], &["--no-hooks"]].concat()).await?;
        ensure!(stage.deployments(NAMESPACE).await? == before - 1, "asya-operator is not switched off");
        // Without the operator in the release, the next upgrades do not check actors.
        stage.done(&off).await?;
        stage.done(&["upgrade", "runway", CHART, "-n", NAMESPACE, "--reset-values"]).await?;

        // The controllers complete the deletion.
        models.delete("gemma", &DeleteParams::default()).await?;
        let free = json!({ "metadata": { "finalizers": null } });
        models.patch("gemma", &PatchParams::default(), &Patch::Merge(&free)).await?;
        let (output, messages) = stage.helm(&["uninstall", "runway", "-n", NAMESPACE]).await?;
        let message = messages.first().context("no message")?;
        ensure!(!output.status.success() && message.contains("1 object whose"), "{message}");
        actors.delete("scale", &DeleteParams::default()).await?;
        actors.patch("scale", &PatchParams::default(), &Patch::Merge(&free)).await?;
        stage.done(&["uninstall", "runway", "-n", NAMESPACE]).await?;
        ensure!(stage.owner().await? == "runway", "CRDs do not stay");
        eventually(PATIENCE, async || {
            ensure!(stage.deployments(NAMESPACE).await? == 0);
            Ok(())
        })
        .await?;

        // The same release finds its CRDs again; another one takes them over on request.
        let again = ["install", "runway", CHART, "-n", NAMESPACE];
        stage.done(&again).await?;
        stage.done(&["uninstall", "runway", "-n", NAMESPACE]).await?;
        let other = ["install", "models", CHART, "-n", "elsewhere", "--create-namespace"];
        let (output, _) = stage.helm(&other).await?;
        let error = String::from_utf8_lossy(&output.stderr);
        ensure!(!output.status.success() && error.contains("invalid ownership metadata"), "{error}");
        stage.done(&[&other[..], &["--take-ownership"]].concat()).await?;
        ensure!(stage.owner().await? == "models" && stage.deployments("elsewhere").await? == before);
        stage.done(&["upgrade", "models", CHART, "-n", "elsewhere"]).await
    })
    .await
}
