//! On a real node, from real images: the operator and its init container, llama-stack from PyPI, and provider images of ours.
//! What works is asked through the Service; what does not is read from the status, as a user would.

#![allow(
    clippy::print_stdout,
    clippy::too_many_lines,
    reason = "a long scenario that prints its progress"
)]

mod pod;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::Instant;

use anyhow::{Context, Result, bail, ensure};
use k8s_openapi::api::apps::v1::Deployment;
use k8s_openapi::api::core::v1::{ConfigMap, Namespace, Secret, Service};
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::api::{DeleteParams, Patch, PatchParams, PostParams};
use kube::{Api, Client, CustomResourceExt};
use pod::images;
use runway_api::LlamaStackDistribution;
use runway_api::condition::{self, Conditions};
use runway_api::llama_stack_distribution::{DistributionPhase, LlamaStackDistributionStatus, ProviderPhase};
use runway_llama_stack_kit as provider_kit;
use runway_manifests::{self as manifests, Release};
use runway_testbed::images::{Layered, Rootfs, write_all};
use runway_testbed::llama_stack::{self, NEWEST, OLDER};
use runway_testbed::{Node, Options, PATIENCE, eventually, node, python};
use serde_json::{Value, json};

/// Contents of the provider images: folders of `images.py`.
const PROVIDERS: [&str; 14] = [
    "echo-2",
    "second",
    "third",
    "fourth",
    "no-spec",
    "empty-packages",
    "unclosed",
    "broken-wheel",
    "no-dependency",
    "missing-import",
    "foreign-arch",
    "dies",
    "hangs",
    "talks",
];
/// Python, and nothing of Llama Stack.
const BARE: &str = "testbed.local/bare:1";
/// The one that is mended in the end.
const MENDED: &str = "wrong-config";
/// No Python.
const NO_PYTHON: &str = "testbed.local/no-python:1";
/// An image of [`REGISTRY`].
const FORBIDDEN: &str = "127.0.0.1:5000/private/echo:1";
/// A simulator of a registry that refuses every request.
const REGISTRY: &str = "
from http.server import BaseHTTPRequestHandler, HTTPServer
class Refusal(BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(401)
        self.send_header('WWW-Authenticate', 'Basic realm=\"private\"')
        self.send_header('Content-Length', '0')
        self.end_headers()
    do_HEAD = do_GET
HTTPServer(('127.0.0.1', 5000), Refusal).serve_forever()
";
/// Prints the most memory that the operator had, in KiB.
const PEAK: &str = "
for process in /proc/[0-9]*; do
    tr '\\0' ' ' <$process/cmdline | grep -q '[r]un --container-name=' && sed -n 's/^VmHWM:[^0-9]*\\([0-9]*\\) kB/\\1/p' $process/status
done
true
";

/// One node for everything, because starting it and its images takes longer than each of these.
#[tokio::test(flavor = "multi_thread")]
async fn providers_from_images_serve_on_a_real_node_or_say_why_not() -> Result<()> {
    if node::skip("Llama Stack on a real node") {
        return Ok(());
    }
    let servers = tokio::task::spawn_blocking(|| [NEWEST, OLDER].map(pod::llama_stack)).await?;
    if servers.iter().any(Option::is_none) {
        return Ok(());
    }
    let clock = Clock(Instant::now());
    let cluster = Cluster::start().await?;
    clock.report("node, images and operator");
    // In groups: everything at once would take so much from the operator that it loses its Lease.
    served_with_the_distributions_own_configuration(&cluster).await?;
    clock.report("three providers answer on the newest server");
    let (installing, starting) = failures()
        .into_iter()
        .partition::<Vec<_>, _>(Failure::is_before_the_server);
    reported_in_the_status(&cluster, &installing).await?;
    clock.report("what fails before the server starts");
    // Failing servers start again and again: few at a time, so that they leave each other the processor.
    for few in starting.chunks(2) {
        reported_in_the_status(&cluster, few).await?;
    }
    clock.report("what fails when the server starts");
    a_failed_start_is_mended_by_a_change(&cluster).await?;
    served_with_a_users_configuration(&cluster).await?;
    clock.report("mended, and a user's own configuration");
    served_by_an_older_server(&cluster).await?;
    clock.report("an older server");
    an_answer_of_any_size_leaves_the_operator_small(&cluster).await?;
    clock.report("a server that answers with megabytes");
    without_a_right_to_pull_the_old_version_serves_on(&cluster).await?;
    clock.report("no right to pull a new version");
    another_image_is_another_pod(&cluster).await?;
    clock.report("another image is another pod");
    duplicates_are_reported_where_the_api_server_admits_them(&cluster).await?;
    cluster.node.stop().await
}

struct Clock(Instant);

impl Clock {
    /// Prints the time since the start.
    fn report(&self, what: &str) {
        println!("{:6.1} s  {what}", self.0.elapsed().as_secs_f64());
    }
}

/// A node with the operator, as it is installed, and all images.
struct Cluster {
    node: Node,
    client: Client,
    /// Names of the distributions' images.
    newest: String,
    older: String,
}

impl Cluster {
    async fn start() -> Result<Self> {
        let node = Node::start(Options {
            crds: manifests::crds().into(),
            ..Options::default()
        })
        .await?;
        let client = node.client("somebody", &["system:masters"]).await?;

        // The pods must meet the strictest of the Pod Security Standards, as the API server judges it.
        let restricted = json!({ "metadata": { "labels": { "pod-security.kubernetes.io/enforce": "restricted" } } });
        Api::<Namespace>::all(client.clone())
            .patch("default", &PatchParams::default(), &Patch::Merge(restricted))
            .await?;

        let component = manifests::llama_stack();
        let release = Release::default();
        let image = format!("{}/{}:{}", release.registry, component.name, release.tag);
        let operator = Path::new(env!("CARGO_BIN_EXE_llama-stack-operator"));
        node.import_program(&image, operator, &["/manager"]).await?;
        let busy = json!({ "spec": { "template": { "spec": { "containers": [
            // Of a machine that has more to do than it can.
            { "name": component.name, "resources": { "requests": { "cpu": "500m" } } },
        ] } } } });
        for object in manifests::core().first.into_iter().chain(component.objects(&release)) {
            runway_testbed::apply::apply(&client, &object, "test").await?;
        }
        let deployments: Api<Deployment> = Api::namespaced(client.clone(), manifests::NAMESPACE);
        deployments
            .patch(&component.name, &PatchParams::default(), &Patch::Strategic(busy))
            .await?;

        let folder = node.dir.clone();
        let made = tokio::task::spawn_blocking(move || {
            let providers = folder.join("providers.tar");
            provider_images(&providers)?;
            anyhow::Ok((
                providers,
                example_image(&folder)?,
                llama_stack::distribution(NEWEST)?,
                llama_stack::distribution(OLDER)?,
            ))
        });
        let (providers, example, newest, older) = made.await??;
        for archive in [&providers, &example, &newest.archive, &older.archive] {
            node.import_image(archive).await?;
        }
        Ok(Self {
            node,
            client,
            newest: newest.name,
            older: older.name,
        })
    }

    fn llsds(&self) -> Api<LlamaStackDistribution> {
        Api::default_namespaced(self.client.clone())
    }

    /// A LlamaStackDistribution with inference providers. Small, so that many of them fit on the node.
    async fn create(&self, name: &str, image: &str, providers: &[(&str, &str, Value)], more: Value) -> Result<()> {
        let providers: Vec<Value> = providers
            .iter()
            .map(|(id, image, config)| json!({ "providerId": id, "image": provider(image), "config": config }))
            .collect();
        let mut server = json!({
            "distribution": { "image": image },
            "containerSpec": { "resources": { "requests": { "cpu": "50m", "memory": "128Mi" } } },
            "externalProviders": { "inference": providers },
        });
        for (key, value) in more.as_object().into_iter().flatten() {
            server[key] = value.clone();
        }
        let llsd = json!({
            "apiVersion": "llamastack.io/v1alpha1", "kind": "LlamaStackDistribution",
            "metadata": { "name": name },
            "spec": { "server": server },
        });
        self.llsds()
            .create(&PostParams::default(), &serde_json::from_value(llsd)?)
            .await
            .with_context(|| name.to_owned())?;
        Ok(())
    }

    async fn status(
        &self,
        name: &str,
        wanted: impl Fn(&LlamaStackDistributionStatus) -> bool,
    ) -> Result<LlamaStackDistributionStatus> {
        let status = eventually(PATIENCE, async || {
            let status = self.llsds().get(name).await?.status.unwrap_or_default();
            ensure!(wanted(&status), "{}", serde_json::to_string_pretty(&status)?);
            Ok(status)
        });
        match status.await {
            Ok(status) => Ok(status),
            Err(error) => bail!("{name}: {error:#}\n{}", self.kubectl(&["get", "pods,events"]).await?),
        }
    }

    async fn kubectl(&self, args: &[&str]) -> Result<String> {
        let output = self.node.kubectl()?.args(args).output().await?;
        let said = String::from_utf8_lossy(&output.stdout).into_owned();
        ensure!(
            output.status.success(),
            "kubectl {args:?}: {said}{}",
            String::from_utf8_lossy(&output.stderr)
        );
        Ok(said)
    }

    /// Most memory that the operator had, in KiB.
    async fn peak_of_the_operator(&self) -> Result<u64> {
        let output = self.node.command("sh").args(["-c", PEAK]).output().await?;
        let said = String::from_utf8_lossy(&output.stdout).into_owned();
        let peak = said.lines().next().and_then(|line| line.parse().ok());
        peak.with_context(|| format!("no process of the operator: {output:?}"))
    }

    /// As a user waits for it.
    async fn wait_until_ready(&self, name: &str) -> Result<LlamaStackDistributionStatus> {
        let llsd = format!("llsd/{name}");
        let timeout = format!("--timeout={}s", PATIENCE.as_secs());
        let waited = self.kubectl(&["wait", "--for=condition=Ready", &llsd, &timeout]).await;
        if let Err(error) = waited {
            let said = self.kubectl(&["describe", &llsd]).await?;
            let log = self
                .kubectl(&["logs", &format!("deployment/{name}"), "--all-containers", "--tail=40"])
                .await;
            bail!("{error:#}\n{said}\n{log:?}");
        }
        // The server is asked once it is ready.
        self.status(name, |s| {
            s.distribution_config.as_ref().is_some_and(|d| !d.providers.is_empty())
        })
        .await
    }

    async fn request(&self, name: &str, method: &str, path: &str, body: Option<Value>) -> Result<(u16, Value)> {
        let services: Api<Service> = Api::default_namespaced(self.client.clone());
        let service = services.get(&format!("{name}-service")).await?.spec.unwrap_or_default();
        let address = format!("{}:8321", service.cluster_ip.context("no ClusterIP")?);
        let (method, path) = (method.to_owned(), path.to_owned());
        tokio::task::spawn_blocking(move || llama_stack::request(&address, &method, &path, body.as_ref())).await?
    }

    /// Ids of the inference providers that the server itself lists.
    async fn listed(&self, name: &str) -> Result<Vec<String>> {
        let (_, providers) = self.request(name, "GET", "/v1/providers", None).await?;
        let of_inference = providers["data"]
            .as_array()
            .context("no list")?
            .iter()
            .filter(|p| p["api"] == "inference");
        Ok(of_inference
            .filter_map(|p| Some(p["provider_id"].as_str()?.to_owned()))
            .collect())
    }

    /// Answer of a provider through the Service.
    async fn answer(&self, name: &str, model: &str) -> Result<String> {
        let question = json!({ "model": model, "messages": [{ "role": "user", "content": "hello" }] });
        let (status, completion) = self
            .request(name, "POST", "/v1/chat/completions", Some(question))
            .await?;
        let said = completion["choices"][0]["message"]["content"].as_str();
        Ok(said.with_context(|| format!("{status}: {completion}"))?.to_owned())
    }
}

/// An unconditional provider that an external one replaces, and no `apis`.
const USER_CONFIG: &str = r#"version: 2
image_name: mine
providers:
  inference:
  - provider_id: vllm   # replaced
    provider_type: remote::vllm
    config: {base_url: "http://nobody.example.com/v1"}
storage:
  backends:
    kv_default: {type: kv_sqlite, db_path: /tmp/kv.db}
    sql_default: {type: sql_sqlite, db_path: /tmp/sql.db}
  stores:
    metadata: {backend: kv_default, namespace: registry}
    inference: {backend: sql_default, table_name: inference}
    conversations: {backend: sql_default, table_name: conversations}
    prompts: {backend: kv_default, namespace: prompts}
"#;

/// Name of the image that is made of a folder, or of any other image.
fn provider(image: &str) -> String {
    if image.contains('/') {
        return image.to_owned();
    }
    format!("testbed.local/provider-{image}:1")
}

/// The image of the example, as `kubeairunway llama-stack provider build` builds it on [`BARE`].
fn example_image(folder: &Path) -> Result<PathBuf> {
    let (base, archive) = (folder.join("base.tar"), folder.join("echo.tar"));
    llama_stack::provider_config().write(BARE, &llama_stack::provider_base()?, &base)?;
    provider_kit::build(&provider_kit::Build {
        sources: Path::new(env!("CARGO_MANIFEST_DIR")).join("../../deploy/examples/llama-stack-provider"),
        python: python::interpreter()?,
        base,
        image: provider("echo"),
        archive: archive.clone(),
        work: folder.join("echo"),
    })?;
    Ok(archive)
}

/// All other provider images in one archive: they share what they stand on.
fn provider_images(archive: &Path) -> Result<()> {
    let base = llama_stack::provider_base()?;
    let shell = {
        let mut rootfs = runway_testbed::images::busybox_files()?;
        rootfs.add_libraries()?;
        rootfs
    };
    let mut layers = BTreeMap::new();
    for name in PROVIDERS {
        let mut rootfs = Rootfs::empty();
        rootfs.tree("/lls-provider", images().join(name).join("lls-provider"), &|_| false)?;
        layers.insert(name, rootfs);
    }
    let image = |name: String, layers: Vec<_>| Layered {
        name,
        config: llama_stack::provider_config(),
        layers,
    };
    let mut all = vec![
        image(BARE.to_owned(), vec![&base]),
        image(NO_PYTHON.to_owned(), vec![&shell]),
    ];
    all.extend(
        layers
            .iter()
            .map(|(name, rootfs)| image(provider(name), vec![&base, rootfs])),
    );
    write_all(&all, archive)?;
    Ok(())
}

/// An invalid distribution, and the expected status.
struct Failure {
    name: &'static str,
    providers: Vec<(&'static str, &'static str)>,
    distribution: Option<&'static str>,
    more: Value,
    /// Provider that the status names; `None` if it names none.
    about: Option<&'static str>,
    reason: &'static str,
    /// Parts of the message.
    said: Vec<String>,
    /// Part of the resolution.
    way_out: &'static str,
}

impl Failure {
    /// An init container fails.
    fn is_before_the_server(&self) -> bool {
        ![
            "ValidationFailed",
            "ArchitectureMismatch",
            "ConfigInvalid",
            "ServerFailed",
        ]
        .contains(&self.reason)
    }
}

/// A provider that cannot work, alone in its distribution.
fn alone(
    name: &'static str,
    image: &'static str,
    reason: &'static str,
    said: &[&str],
    way_out: &'static str,
) -> Failure {
    let said = said.iter().map(|s| (*s).to_owned()).collect();
    Failure {
        name,
        providers: vec![(name, image)],
        distribution: None,
        more: json!({}),
        about: Some(name),
        reason,
        said,
        way_out,
    }
}

/// The failures of the specification's third user story, and others like them.
fn failures() -> Vec<Failure> {
    let conflict = alone(
        "conflict",
        "fourth",
        "DependencyConflict",
        &["lls-dep==2.0.0", "1.0.0", "installed-packages.txt"],
        "compatible dependency versions",
    );
    let misplaced = json!({ "safety": [{ "providerId": "misplaced", "image": provider("echo") }] });
    let mismatch = alone(
        "misplaced",
        "echo",
        "ApiMismatch",
        &["declares api=inference", "placed under externalProviders.safety"],
        "Move the provider to externalProviders.inference",
    );
    vec![
        alone(
            "no-metadata",
            "no-spec",
            "MetadataMissing",
            &[
                "Missing /lls-provider/lls-provider-spec.yaml in image",
                "external-provider-no-metadata",
            ],
            "Add it to the provider image",
        ),
        Failure {
            providers: vec![("first", "second"), ("conflict", "fourth")],
            ..conflict
        },
        Failure {
            providers: Vec::new(),
            more: json!({ "externalProviders": misplaced }),
            ..mismatch
        },
        alone(
            "no-image",
            "127.0.0.1:1/absent/nothing:1",
            "ImagePullFailed",
            &["Failed to pull provider image 127.0.0.1:1/absent/nothing:1"],
            "imagePullSecrets",
        ),
        alone(
            "no-yaml",
            "unclosed",
            "MetadataInvalid",
            &["YAML parse error", "line "],
            "Correct",
        ),
        alone("no-wheel", "broken-wheel", "InstallFailed", &["pip failed"], "wheel"),
        Failure {
            distribution: Some(BARE),
            about: None,
            ..alone(
                "no-run-yaml",
                "echo",
                "NoBaseConfig",
                &["No run.yaml found in distribution image", "/opt/app-root/run.yaml"],
                "user ConfigMap",
            )
        },
        alone(
            "no-packages",
            "empty-packages",
            "PackagesMissing",
            &["No wheels in"],
            "pip wheel",
        ),
        alone(
            "no-python",
            NO_PYTHON,
            "NoPython",
            &["has no python3"],
            "python3 and pip",
        ),
        alone(
            "not-bundled",
            "no-dependency",
            "InstallFailed",
            &["lls-nowhere"],
            "Add a wheel of it",
        ),
        alone(
            "no-module",
            "missing-import",
            "ValidationFailed",
            &["No module named 'lls_not_there'"],
            "",
        ),
        alone(
            "wrong-machine",
            "foreign-arch",
            "ArchitectureMismatch",
            &["architecture mismatch"],
            "",
        ),
        alone(
            "dies",
            "dies",
            "ServerFailed",
            &["The server ended in the code of provider 'dies'", "the model is gone"],
            "Check the log",
        ),
        Failure {
            more: json!({ "podOverrides": { "startupTimeoutSeconds": 30, "terminationGracePeriodSeconds": 1 } }),
            about: None,
            ..alone("never-serves", "hangs", "ServerFailed", &[], "startupTimeoutSeconds")
        },
        Failure {
            more: json!({ "externalProviders": { "inference": [
                { "providerId": "wrong-config", "image": provider("echo"), "config": { "prefix": { "a": 1 } } },
            ] } }),
            ..alone(
                "wrong-config",
                "echo",
                "ConfigInvalid",
                &["Field: config.prefix", "Input should be a valid string"],
                "spec.server.externalProviders.inference",
            )
        },
    ]
}

async fn served_with_the_distributions_own_configuration(cluster: &Cluster) -> Result<()> {
    let providers = [
        (
            "my-echo",
            "echo",
            json!({ "prefix": "one: ", "api_token": "pa$$w0rd $(HOME)" }),
        ),
        ("second", "second", json!({ "prefix": "two: " })),
        // Bundles another version of what the second needs, and can do with the same.
        ("third", "third", json!({})),
    ];
    cluster.create("stack", &cluster.newest, &providers, json!({})).await?;
    let status = cluster.wait_until_ready("stack").await?;
    ensure!(cluster.listed("stack").await? == ["my-echo", "second", "third"]);
    ensure!(cluster.answer("stack", "my-echo/echo-1").await? == "one: hello");
    // The installation kept what was there first.
    ensure!(cluster.answer("stack", "second/echo-1").await? == "two: hello, with 1.0.0");
    ensure!(cluster.answer("stack", "third/echo-1").await? == "hello, with 1.0.0");

    // What the running server said of itself is in the status.
    ensure!(status.phase == Some(DistributionPhase::Ready));
    ensure!(
        status
            .external_providers
            .iter()
            .all(|p| p.phase == ProviderPhase::Ready),
        "{status:?}"
    );
    let version = status.version.and_then(|v| v.llama_stack_server_version);
    ensure!(version.as_deref() == Some(NEWEST.version), "{version:?}");
    let listed = status.distribution_config.unwrap_or_default().providers;
    let own = listed
        .iter()
        .find(|p| p.provider_id == "my-echo")
        .context("my-echo is not in the status")?;
    ensure!(
        own.provider_type == "inline::lls-echo" && own.api == "inference",
        "{own:?}"
    );
    let table = cluster.kubectl(&["get", "llsd", "stack"]).await?;
    ensure!(table.contains("Ready") && table.contains(NEWEST.version), "{table}");
    Ok(())
}

async fn served_with_a_users_configuration(cluster: &Cluster) -> Result<()> {
    let config = json!({ "metadata": { "name": "run-yaml" }, "data": { "run.yaml": USER_CONFIG } });
    Api::<ConfigMap>::default_namespaced(cluster.client.clone())
        .create(&PostParams::default(), &serde_json::from_value(config)?)
        .await?;
    // A value that comes from a Secret, which does not exist yet.
    let from_secret = json!({ "valueFrom": { "secretKeyRef": { "name": "words", "key": "prefix" } } });
    let instead = [("vllm", "echo", json!({ "prefix": from_secret }))];
    // As on OpenShift: a user that no image has.
    let user = json!({
        "runAsNonRoot": true, "runAsUser": 1_000_660_000, "fsGroup": 1_000_660_000, "seccompProfile": { "type": "RuntimeDefault" },
    });
    let user_config = json!({
        "userConfig": { "configMapName": "run-yaml" },
        "podOverrides": { "securityContext": user },
    });
    cluster
        .create("configured", &cluster.newest, &instead, user_config)
        .await?;
    let failed = cluster
        .status("configured", |s| {
            s.external_providers
                .first()
                .is_some_and(|p| p.phase == ProviderPhase::Failed)
        })
        .await?;
    let provider = failed.external_providers.first().context("no provider")?;
    let message = provider.message.clone().unwrap_or_default();
    ensure!(
        provider.reason.as_deref() == Some("StartFailed") && message.contains("secret \"words\" not found"),
        "{provider:?}"
    );
    let secret = json!({ "metadata": { "name": "words" }, "stringData": { "prefix": "not vllm: " } });
    Api::<Secret>::default_namespaced(cluster.client.clone())
        .create(&PostParams::default(), &serde_json::from_value(secret)?)
        .await?;
    let status = cluster.wait_until_ready("configured").await?;
    let objects = cluster
        .kubectl(&["get", "llsd,deployment,configmap,pod", "-o", "json"])
        .await?;
    ensure!(!objects.contains("not vllm: "), "the value is in an object");
    ensure!(cluster.listed("configured").await? == ["vllm"]);
    ensure!(cluster.answer("configured", "vllm/echo-1").await? == "not vllm: hello");
    let reported = status.conditions.iter().find(|c| c.type_ == "ProviderOverrides");
    let reported = reported.context("no condition ProviderOverrides")?;
    ensure!(
        reported
            .message
            .contains("'vllm' overrides base provider in API 'inference'"),
        "{reported:?}"
    );
    Ok(())
}

async fn served_by_an_older_server(cluster: &Cluster) -> Result<()> {
    let providers = [("my-echo", "echo", json!({ "prefix": "old: " }))];
    cluster.create("older", &cluster.older, &providers, json!({})).await?;
    let status = cluster.wait_until_ready("older").await?;
    ensure!(cluster.answer("older", "my-echo/echo-1").await? == "old: hello");
    let version = status.version.and_then(|v| v.llama_stack_server_version);
    ensure!(version.as_deref() == Some(OLDER.version), "{version:?}");
    Ok(())
}

async fn reported_in_the_status(cluster: &Cluster, failures: &[Failure]) -> Result<()> {
    for failure in failures {
        let providers: Vec<(&str, &str, Value)> = failure
            .providers
            .iter()
            .map(|(id, image)| (*id, *image, json!({})))
            .collect();
        let image = failure.distribution.unwrap_or(&cluster.newest);
        cluster
            .create(failure.name, image, &providers, failure.more.clone())
            .await?;
    }
    let mut wrong = Vec::new();
    for failure in failures {
        if let Err(error) = is_reported(cluster, failure).await {
            wrong.push(format!("{}: {error:#}", failure.name));
        }
        // It is tried again and again, which takes from the others.
        if failure.name != MENDED {
            cluster
                .llsds()
                .delete(failure.name, &DeleteParams::background())
                .await?;
        }
    }
    ensure!(wrong.is_empty(), "{}", wrong.join("\n\n"));
    Ok(())
}

async fn is_reported(cluster: &Cluster, failure: &Failure) -> Result<()> {
    let status = cluster
        .status(failure.name, |s| s.phase == Some(DistributionPhase::Failed))
        .await?;
    let reported = reason(&status, failure);
    ensure!(
        reported.as_deref() == Some(failure.reason),
        "the reason is {reported:?}: {:?}",
        status.message
    );
    ensure!(!status.conditions.is_true(condition::READY));
    let (message, way_out) = match failure.about {
        None => {
            let whole = status.message.clone().unwrap_or_default();
            (whole.clone(), whole)
        }
        Some(id) => {
            let provider = status
                .external_providers
                .iter()
                .find(|p| p.provider_id == id)
                .context("not there")?;
            ensure!(provider.phase == ProviderPhase::Failed);
            let way_out = provider.resolution.clone().context("no resolution")?;
            (provider.message.clone().unwrap_or_default(), way_out)
        }
    };
    println!("--- {} ({})\n{message}\n→ {way_out}", failure.name, failure.reason);
    for said in &failure.said {
        ensure!(message.contains(said), "no {said:?} in: {message}");
    }
    if let Some(id) = failure.about {
        let named = [format!("'{id}'"), format!("Provider: {id}\n")];
        ensure!(named.iter().any(|id| message.contains(id)), "whose failure? {message}");
        ensure!(message.contains("mage: "), "no image in: {message}");
    }
    ensure!(!way_out.is_empty() && way_out.contains(failure.way_out), "{way_out}");
    Ok(())
}

/// The reason of the provider that a failure is about, or of the whole.
fn reason(status: &LlamaStackDistributionStatus, failure: &Failure) -> Option<String> {
    match failure.about {
        Some(id) => status
            .external_providers
            .iter()
            .find(|p| p.provider_id == id)?
            .reason
            .clone(),
        None => Some(
            status
                .conditions
                .iter()
                .find(|c| c.type_ == condition::READY)?
                .reason
                .clone(),
        ),
    }
}

/// Its provider's state makes the answer to `/v1/providers` larger than what the operator reads.
async fn an_answer_of_any_size_leaves_the_operator_small(cluster: &Cluster) -> Result<()> {
    let before = cluster.peak_of_the_operator().await?;
    let providers = [("talks", "talks", json!({}))];
    cluster.create("talks", &cluster.newest, &providers, json!({})).await?;
    let status = cluster
        .status("talks", |s| {
            let health = s.conditions.get_condition("HealthCheck");
            health.is_some_and(|health| health.reason == "NoAnswer")
        })
        .await?;
    let health = status.conditions.get_condition("HealthCheck").context("no condition")?;
    ensure!(
        health
            .message
            .contains("/v1/providers answered with more than 4194304 bytes"),
        "{health:?}"
    );
    ensure!(status.phase == Some(DistributionPhase::Ready), "{status:?}");
    ensure!(cluster.answer("talks", "talks/echo-1").await? == "hello");
    let after = cluster.peak_of_the_operator().await?;
    println!("the operator had at most {before} KiB before, and {after} KiB after");
    ensure!(after < before + (24 << 10), "{before} KiB before, {after} KiB after");
    cluster.llsds().delete("talks", &DeleteParams::background()).await?;
    Ok(())
}

async fn without_a_right_to_pull_the_old_version_serves_on(cluster: &Cluster) -> Result<()> {
    let _registry = cluster
        .node
        .command("python3")
        .args(["-c", REGISTRY])
        .kill_on_drop(true)
        .spawn()?;
    replace_image(cluster, FORBIDDEN).await?;
    let status = cluster
        .status("stack", |s| s.phase == Some(DistributionPhase::Failed))
        .await?;
    let [failed, second, ..] = status.external_providers.as_slice() else {
        bail!("{status:?}");
    };
    let (message, way_out) = (&failed.message, &failed.resolution);
    println!("--- no right to pull\n{message:?}\n→ {way_out:?}");
    ensure!(
        failed.phase == ProviderPhase::Failed && failed.reason.as_deref() == Some("ImagePullFailed"),
        "{failed:?}"
    );
    ensure!(second.phase != ProviderPhase::Failed, "{second:?}");
    let contains = |text: &Option<String>, wanted: &str| text.as_ref().is_some_and(|text| text.contains(wanted));
    ensure!(
        contains(message, FORBIDDEN) && contains(message, "'my-echo'"),
        "{message:?}"
    );
    ensure!(
        contains(way_out, "whether 127.0.0.1:5000 requires credentials"),
        "{way_out:?}"
    );
    ensure!(contains(&status.message, "Servers that still serve: 1"), "{status:?}");
    ensure!(cluster.answer("stack", "my-echo/echo-1").await? == "one: hello");
    Ok(())
}

/// Gives the first provider of `stack` another image; returns the generation.
async fn replace_image(cluster: &Cluster, image: &str) -> Result<Option<i64>> {
    let patch =
        json!([{ "op": "replace", "path": "/spec/server/externalProviders/inference/0/image", "value": image }]);
    let patch: Patch<()> = Patch::Json(serde_json::from_value(patch)?);
    let patched = cluster.llsds().patch("stack", &PatchParams::default(), &patch).await?;
    Ok(patched.metadata.generation)
}

async fn another_image_is_another_pod(cluster: &Cluster) -> Result<()> {
    let generation = replace_image(cluster, &provider("echo-2")).await?;
    eventually(PATIENCE, async || {
        let answer = cluster.answer("stack", "my-echo/echo-1").await?;
        ensure!(answer == "one: hello, by 2.0.0", "{answer}");
        Ok(())
    })
    .await?;
    let status = cluster
        .status("stack", |s| {
            s.conditions.is_true(condition::READY) && s.observed_generation == generation
        })
        .await?;
    ensure!(
        status
            .external_providers
            .first()
            .is_some_and(|p| p.image == provider("echo-2"))
    );
    Ok(())
}

async fn a_failed_start_is_mended_by_a_change(cluster: &Cluster) -> Result<()> {
    let config = "/spec/server/externalProviders/inference/0/config";
    let patch = json!([{ "op": "replace", "path": config, "value": { "prefix": "mended: " } }]);
    let patch: Patch<()> = Patch::Json(serde_json::from_value(patch)?);
    cluster
        .llsds()
        .patch("wrong-config", &PatchParams::default(), &patch)
        .await?;
    cluster.wait_until_ready("wrong-config").await?;
    ensure!(cluster.answer("wrong-config", "wrong-config/echo-1").await? == "mended: hello");
    Ok(())
}

/// An API server that evaluates no rules, as an old one: the operator looks as well.
async fn duplicates_are_reported_where_the_api_server_admits_them(cluster: &Cluster) -> Result<()> {
    let twice = [("same", "echo", json!({})), ("same", "echo-2", json!({}))];
    let refused = cluster.create("twice", &cluster.newest, &twice, json!({})).await;
    let refused = format!("{:#}", refused.err().context("the API server takes duplicates")?);
    for image in [provider("echo"), provider("echo-2")] {
        ensure!(refused.contains(&image), "{refused}");
    }
    let crds: Api<CustomResourceDefinition> = Api::all(cluster.client.clone());
    let mut crd = json!(crds.get(LlamaStackDistribution::crd_name()).await?);
    without_rules(&mut crd);
    crds.replace(
        LlamaStackDistribution::crd_name(),
        &PostParams::default(),
        &serde_json::from_value(crd)?,
    )
    .await?;
    eventually(PATIENCE, async || {
        cluster.create("twice", &cluster.newest, &twice, json!({})).await
    })
    .await?;
    let status = cluster
        .status("twice", |s| s.phase == Some(DistributionPhase::Failed))
        .await?;
    let said = status.message.unwrap_or_default();
    for wanted in ["same", &provider("echo"), &provider("echo-2")] {
        ensure!(said.contains(wanted), "{said}");
    }
    ensure!(
        status.conditions.iter().any(|c| c.reason == "DuplicateProviderId"),
        "{:?}",
        status.conditions
    );
    Ok(())
}

fn without_rules(value: &mut Value) {
    if let Some(map) = value.as_object_mut() {
        map.remove("x-kubernetes-validations");
        map.values_mut().for_each(without_rules);
    } else if let Some(list) = value.as_array_mut() {
        list.iter_mut().for_each(without_rules);
    }
}
