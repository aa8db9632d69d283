//! The same objects by every way of installing: `deploy/install.yaml`, kustomize, Helm, and the command itself. Helm and
//! kustomize are the real ones.

mod common;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, ensure};
use k8s_openapi::api::admissionregistration::v1::ValidatingAdmissionPolicy;
use k8s_openapi::api::authorization::v1::{ResourceAttributes, SubjectAccessReview, SubjectAccessReviewSpec};
use k8s_openapi::api::rbac::v1::ClusterRole;
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::api::{Patch, PatchParams, PostParams};
use kube::core::DynamicObject;
use kube::{Api, Client, ResourceExt};
use runway_cli::install::kinds;
use runway_manifests::{self as manifests, AGGREGATE, Release, component};
use runway_testbed::apply::api_of;
use runway_testbed::binaries::{self, Binaries};
use runway_testbed::{ControlPlane, Options, PATIENCE, eventually};
use serde_json::{Value, json};

fn deploy() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../deploy")
}

type Objects = BTreeMap<String, Value>;

const DIGEST: &str = "sha256:0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef";

/// The objects of a text, each once.
fn objects(yaml: &str) -> Result<Objects> {
    let mut found = Objects::new();
    let mut documents = runway_client::documents::Documents::default();
    documents.take_in_text("rendered", yaml);
    ensure!(documents.errors.is_empty(), "{:?}", documents.errors);
    for document in documents.found {
        let object: DynamicObject = serde_json::from_value(document.value)?;
        let id = format!("{} {}", object.namespace().unwrap_or_default(), kinds::id(&object));
        let before = found.insert(id.clone(), numbers(serde_json::to_value(&object)?));
        ensure!(before.is_none(), "{id} is there twice");
    }
    Ok(found)
}

/// `10000.0` and `10000` are one number; kustomize and Helm write the second.
fn numbers(value: Value) -> Value {
    match value {
        Value::Number(n) => match n.as_f64() {
            #[expect(clippy::cast_possible_truncation, reason = "compared with what it came from")]
            Some(float) if n.is_f64() && float.fract().abs() < f64::EPSILON => Value::from(float as i64),
            _ => Value::Number(n),
        },
        Value::Array(all) => all.into_iter().map(numbers).collect(),
        Value::Object(map) => map.into_iter().map(|(key, value)| (key, numbers(value))).collect(),
        other => other,
    }
}

fn of_the_command(release: &Release) -> Result<Objects> {
    let all: Vec<DynamicObject> = manifests::components()
        .iter()
        .flat_map(|c| c.objects(release))
        .collect();
    objects(&runway_client::text::documents(
        &all,
        runway_client::text::Format::Yaml,
    )?)
}

fn run(program: &Path, args: &[&str]) -> Result<String> {
    let scratch = tempfile::tempdir()?;
    let output = Command::new(program)
        .args(args)
        // No plugins or settings of the current user.
        .env("HOME", scratch.path())
        .current_dir(deploy())
        .output()
        .with_context(|| format!("cannot run {}", program.display()))?;
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    ensure!(
        output.status.success(),
        "{} {args:?} failed:\n{text}{}",
        program.display(),
        String::from_utf8_lossy(&output.stderr)
    );
    Ok(text)
}

/// The chart as both major versions of Helm render it.
fn template(more: &[&str]) -> Result<Objects> {
    let args = [
        "template",
        "kubeairunway",
        "charts/kubeairunway",
        "--namespace",
        manifests::NAMESPACE,
    ];
    let [older, newer] = binaries::helm()?.map(|helm| objects(&run(&helm, &[&args, more].concat())?));
    let (older, newer) = (older?, newer?);
    same("Helm 3", &older, &newer)?;
    Ok(newer)
}

/// Labels that the chart adds to those of the other ways.
const OF_HELM: [&str; 5] = [
    "app.kubernetes.io/instance",
    "app.kubernetes.io/managed-by",
    "app.kubernetes.io/part-of",
    "app.kubernetes.io/version",
    "helm.sh/chart",
];

/// Compares what the chart holds with the objects of the command, but for labels and Jobs of Helm.
fn same_but_for_helm(what: &str, rendered: &Objects, wanted: &Objects) -> Result<()> {
    let mut rendered = rendered.clone();
    rendered.retain(|id, _| !id.contains("kubeairunway-uninstall-guard"));
    for (id, object) in &mut rendered {
        let wanted = wanted.get(id).unwrap_or(&Value::Null);
        for labels in ["/metadata/labels", "/spec/template/metadata/labels"] {
            let Some(found) = object.pointer_mut(labels).and_then(Value::as_object_mut) else {
                continue;
            };
            for label in OF_HELM {
                let added = found.get(label).cloned();
                ensure!(added.is_some(), "{what}: {id} lacks the label {label}");
                if wanted.pointer(labels).is_none_or(|wanted| wanted.get(label).is_none()) {
                    found.remove(label);
                }
            }
        }
    }
    same(what, &rendered, wanted)
}

fn same(what: &str, found: &Objects, wanted: &Objects) -> Result<()> {
    ensure!(
        found.keys().eq(wanted.keys()),
        "{what}: {:?} instead of {:?}",
        found.keys(),
        wanted.keys()
    );
    for (id, object) in wanted {
        ensure!(
            found.get(id) == Some(object),
            "{what}: {id} is\n{:#}\nnot\n{object:#}",
            found[id]
        );
    }
    Ok(())
}

#[test]
fn one_yaml_file_and_kustomize_hold_what_the_command_applies() -> Result<()> {
    let wanted = of_the_command(&Release::default())?;
    let install = std::fs::read_to_string(deploy().join("install.yaml"))?;
    same("install.yaml", &objects(&install)?, &wanted)?;

    let kubectl = Binaries::ensure()?.kubectl;
    same(
        "kustomize",
        &objects(&run(&kubectl, &["kustomize", "kustomize"])?)?,
        &wanted,
    )?;
    let everything = Release {
        policy: true,
        monitoring: true,
        engine_monitoring: true,
        ..Release::default()
    };
    let mut added = objects(&run(&kubectl, &["kustomize", "kustomize"])?)?;
    added.extend(objects(&run(&kubectl, &["kustomize", "kustomize/provider-policy"])?)?);
    added.extend(objects(&run(&kubectl, &["kustomize", "kustomize/monitoring"])?)?);
    added.extend(objects(&run(&kubectl, &["kustomize", "kustomize/engine-monitoring"])?)?);
    same("kustomize with everything", &added, &of_the_command(&everything)?)
}

#[test]
fn the_chart_lints_and_holds_what_the_command_applies() -> Result<()> {
    for helm in binaries::helm()? {
        let linted = run(&helm, &["lint", "--strict", "charts/kubeairunway"])?;
        ensure!(linted.contains("1 chart(s) linted, 0 chart(s) failed"), "{linted}");
    }

    let wanted = of_the_command(&Release::default())?;
    same_but_for_helm("chart", &template(&["--set", "namespace.create=true"])?, &wanted)?;
    // The chart does not create the namespace of the release by default.
    let mut without = wanted.clone();
    without.retain(|id, _| !id.contains("Namespace/"));
    same_but_for_helm("chart as it is", &template(&[])?, &without)?;

    let chosen = Release {
        registry: "registry.example.org/ai".to_owned(),
        tag: "1.0".to_owned(),
        monitoring: true,
        engine_monitoring: true,
        policy: true,
        permissions: false,
        ..Release::default()
    };
    let set = "namespace.create=true,image.registry=registry.example.org/ai,monitoring.enabled=true,\
               monitoring.engines=true,policy.enabled=true,policy.permissions=false";
    let rendered = template(&["--set", set, "--set-string", "image.tag=1.0"])?;
    same_but_for_helm("chart with everything", &rendered, &of_the_command(&chosen)?)
}

#[test]
fn an_installation_for_namespaces_is_the_same_by_every_way() -> Result<()> {
    let release = Release {
        namespaces: "team-a,team-b".parse()?,
        aggregation: false,
        ..Release::default()
    };
    let wanted = of_the_command(&release)?;
    let set = [
        "--set",
        "namespace.create=true,watchNamespaces={team-a,team-b},roles.aggregate=false",
    ];
    same_but_for_helm("chart", &template(&set)?, &wanted)?;
    // Two releases: one by an administrator of the cluster.
    let part = |which: &str| template(&[&set[..], &["--set", which]].concat());
    let (cluster, namespaced) = (part("objects.namespaced=false")?, part("objects.cluster=false")?);
    ensure!(cluster.keys().all(|id| id.starts_with(' ')) && !namespaced.keys().any(|id| id.starts_with(' ')));
    let both: Objects = cluster.into_iter().chain(namespaced).collect();
    same_but_for_helm("chart in two steps", &both, &wanted)?;

    let kubectl = Binaries::ensure()?.kubectl;
    let aggregated = Release {
        aggregation: true,
        ..release
    };
    let overlay = objects(&run(&kubectl, &["kustomize", "kustomize-namespaced"])?)?;
    same("kustomize", &overlay, &of_the_command(&aggregated)?)?;

    let folder = tempfile::tempdir_in(deploy())?;
    let kustomization = json!({ "apiVersion": "kustomize.config.k8s.io/v1beta1", "kind": "Kustomization",
        "resources": ["../kustomize"], "components": ["../kustomize/no-aggregation"] });
    std::fs::write(folder.path().join("kustomization.yaml"), kustomization.to_string())?;
    let path = folder.path().to_str().context("not UTF-8")?;
    let standard = Release {
        aggregation: false,
        ..Release::default()
    };
    same(
        "kustomize without aggregation",
        &objects(&run(&kubectl, &["kustomize", path])?)?,
        &of_the_command(&standard)?,
    )
}

#[test]
fn the_chart_holds_the_console_that_the_command_installs_for_those_who_ask() -> Result<()> {
    let release = Release::default();
    let mut wanted = of_the_command(&release)?;
    wanted.retain(|id, _| !id.contains("Namespace/"));
    let bare = wanted.clone();
    let with = |settings: &[&str]| -> Result<Objects> {
        let settings: Vec<String> = settings.iter().map(ToString::to_string).collect();
        let console = manifests::console::console(&settings).objects(&release);
        let text = runway_client::text::documents(&console, runway_client::text::Format::Yaml)?;
        let mut all = bare.clone();
        all.extend(objects(&text)?);
        Ok(all)
    };
    same_but_for_helm("chart", &template(&["--set", "console.enabled=true"])?, &with(&[])?)?;

    let url = "console.enabled=true,console.publicUrl=https://c.example";
    let reported = [
        "--public-url=https://c.example",
        "--oidc-issuer=https://id.example",
        "--oidc-client-id=c",
    ];
    let args = "console.extraArgs={--oidc-issuer=https://id.example,--oidc-client-id=c}";
    same_but_for_helm(
        "chart with an issuer",
        &template(&["--set", url, "--set", args])?,
        &with(&reported)?,
    )?;

    let impersonating =
        "console.impersonate.enabled=true,console.impersonate.users={jane},console.impersonate.groups={a,b}";
    let rendered = template(&["--set", url, "--set", args, "--set", impersonating])?;
    let more = ["--impersonate", "--impersonate-users=jane", "--impersonate-groups=a,b"];
    same_but_for_helm(
        "chart that impersonates",
        &rendered,
        &with(&[&reported[..], &more].concat())?,
    )
}

#[test]
fn the_charts_values_do_what_they_say() -> Result<()> {
    let pods = "controller.replicas=1,providers.kaito.replicas=2,providers.dynamo.enabled=false,providers.kuberay.enabled=false,\
                providers.direct.enabled=false";
    let rendered = template(&[
        "--set",
        pods,
        "--set",
        "controller.resources.limits.memory=1Gi,imagePullSecrets[0].name=pull",
    ])?;
    let find = |id: &str| rendered.get(&format!("{} {id}", manifests::NAMESPACE));
    ensure!(find("PodDisruptionBudget/kubeairunway-controller").is_none());
    ensure!(
        !rendered
            .keys()
            .any(|id| ["dynamo", "kuberay", "direct"].iter().any(|name| id.contains(name)))
    );
    let core = find("Deployment/kubeairunway-controller").context("no core")?;
    let pod = &core["spec"]["template"]["spec"];
    ensure!(core["spec"]["replicas"] == 1 && pod["imagePullSecrets"][0]["name"] == "pull");
    ensure!(pod["containers"][0]["resources"]["limits"]["memory"] == "1Gi");
    ensure!(find("Deployment/kaito-provider").context("no kaito")?["spec"]["replicas"] == 2);

    // Settings of a provider, applied by a Job.
    let id = "Job/kubeairunway-settings";
    ensure!(find(id).is_none(), "a Job without settings");
    let set =
        "providers.kaito.settings.nodeProvisioning=Auto,providers.kaito.settings.instanceTypes.cpu=Standard_D8s_v5";
    let rendered = template(&["--set", set])?;
    let job = rendered
        .get(&format!("{} {id}", manifests::NAMESPACE))
        .context("no settings")?;
    ensure!(
        job["spec"]["template"]["spec"]["containers"][0]["args"]
            == json!([
                "apply-settings",
                r#"kaito={"instanceTypes":{"cpu":"Standard_D8s_v5"},"nodeProvisioning":"Auto"}"#
            ]),
        "{job:#}"
    );
    ensure!(job["metadata"]["annotations"]["helm.sh/hook"] == "post-install,post-upgrade");

    // Digests of a release, unless another tag is set; and the audit log of the three servers.
    let digest = DIGEST;
    let digests = ["kubeairunway-gateway", "asya-sidecar"].map(|name| format!("image.digests.{name}={digest}"));
    let enabled = "gateway.enabled=true,asyaGateway.enabled=true,console.enabled=true,auditLog=-";
    let set = format!("{},{enabled}", digests.join(","));
    let rendered = template(&["--set", &set])?;
    let container = |rendered: &Objects, name: &str| {
        let deployment = rendered.get(&format!("{} Deployment/{name}", manifests::NAMESPACE));
        let container = deployment.map(|deployment| deployment["spec"]["template"]["spec"]["containers"][0].clone());
        container.with_context(|| format!("no {name}"))
    };
    for name in ["kubeairunway-gateway", "asya-gateway", "kubeairunway-console"] {
        let args = container(&rendered, name)?["args"].clone();
        ensure!(
            args.as_array()
                .is_some_and(|args| args.contains(&json!("--audit-log=-"))),
            "{name}: {args}"
        );
    }
    let image = |name: &str| format!("{}/{name}:{}", component::REGISTRY, component::TAG);
    let router = container(&rendered, "kubeairunway-gateway")?;
    ensure!(
        router["image"] == format!("{}@{digest}", image("kubeairunway-gateway")),
        "{router:#}"
    );
    let operator = container(&rendered, "asya-operator")?;
    ensure!(operator["image"] == image("asya-operator"), "{operator:#}");
    ensure!(
        operator
            .to_string()
            .contains(&format!("{}@{digest}", image("asya-sidecar"))),
        "{operator:#}"
    );
    let rendered = template(&["--set", &set, "--set", "image.tag=v9"])?;
    let router = container(&rendered, "kubeairunway-gateway")?;
    ensure!(
        router["image"] == format!("{}/kubeairunway-gateway:v9", component::REGISTRY),
        "{router:#}"
    );

    // In another namespace nothing stays behind in ours.
    for helm in binaries::helm()? {
        let everything = "monitoring.rules=true,monitoring.dashboards=true,gateway.enabled=true";
        let args = [
            "template",
            "x",
            "charts/kubeairunway",
            "--namespace",
            "ai-platform",
            "--set",
            everything,
        ];
        let elsewhere = run(&helm, &args)?;
        ensure!(
            !elsewhere.contains(manifests::NAMESPACE),
            "some object names {}",
            manifests::NAMESPACE
        );
    }
    Ok(())
}

/// Error of both major versions of Helm for a value.
fn refusal(set: &str) -> Result<String> {
    let args = ["template", "x", "charts/kubeairunway", "--set", set];
    let errors = binaries::helm()?.map(|helm| run(&helm, &args).err().map(|error| error.to_string()));
    let errors: Option<Vec<String>> = errors.into_iter().collect();
    Ok(errors.with_context(|| format!("{set} is rendered"))?.join("\n"))
}

#[test]
fn typos_and_wrong_types_in_values_are_refused_with_their_path() -> Result<()> {
    for (set, reason) in [
        (
            "controller.replicas=abc",
            "'/controller/replicas': got string, want integer",
        ),
        (
            "controller.replicas=-1",
            "'/controller/replicas': minimum: got -1, want 0",
        ),
        (
            "contoller.replicas=1",
            "'': additional properties 'contoller' not allowed",
        ),
        (
            "gateway.args={--x}",
            "'/gateway': additional properties 'args' not allowed",
        ),
        (
            "asyaOperator.enabled=no",
            "'/asyaOperator/enabled': got string, want boolean",
        ),
        (
            "tolerations[0].keyy=gpu",
            "'/tolerations/0': additional properties 'keyy' not allowed",
        ),
        (
            "providers.kaito.tolerations[0].keyy=gpu",
            "'/providers/kaito/tolerations/0': additional properties 'keyy' not allowed",
        ),
        (
            "providers.kaito.settings.nodeProvisionin=Auto",
            "'/providers/kaito/settings': additional properties 'nodeProvisionin' not allowed",
        ),
        (
            "providers.direct.settings.answerTimeoutSeconds=0",
            "'/providers/direct/settings/answerTimeoutSeconds': minimum: got 0, want 1",
        ),
        (
            "controller.image.digest=sha256:abc",
            "'/controller/image/digest': 'sha256:abc' does not match",
        ),
        (
            "image.pullPolicy=Sometimes",
            "'/image/pullPolicy': value must be one of 'Always', 'IfNotPresent', 'Never'",
        ),
        (
            r"commonLabels.helm\.sh/chart=x",
            "'/commonLabels/helm.sh~1chart': false schema",
        ),
        ("watchNamespaces=team-a", "'/watchNamespaces': got string, want array"),
    ] {
        let error = refusal(set)?;
        let count = error.matches(reason).count();
        ensure!(count == 2, "{set}: {error}");
    }
    Ok(())
}

/// Cases of `tests/chart`: objects whose IDs contain a line of `shown`, rendered with `values.yaml`.
#[test]
fn chart_renders_values_as_expected() {
    let cases = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/chart");
    runway_golden::check(&cases, 2, |case| {
        let values = format!("--values={}", case.file("values.yaml").display());
        let shown = case.text("shown");
        let rendered = template(&[&values]).and_then(|rendered| {
            let wanted = |id: &String| shown.lines().any(|part| id.contains(part));
            let objects: Vec<_> = rendered
                .into_iter()
                .filter(|(id, _)| wanted(id))
                .map(|(_, object)| object)
                .collect();
            Ok(runway_client::text::documents(
                &objects,
                runway_client::text::Format::Yaml,
            )?)
        });
        match rendered {
            Ok(text) => case.compare("rendered.yaml", Some(text)),
            Err(error) => case.problem(&format!("{error:#}")),
        }
    });
}

#[test]
fn each_component_can_be_switched_off() -> Result<()> {
    let all = ["controller", "asyaOperator", "llamaStackOperator"]
        .into_iter()
        .map(str::to_owned);
    let providers = manifests::built_in_providers();
    let all = all.chain(
        providers
            .iter()
            .map(|provider| format!("providers.{}", provider.name())),
    );
    let off: Vec<String> = all.map(|component| format!("{component}.enabled=false")).collect();
    let rendered = template(&[
        "--set",
        &off.join(","),
        "--set",
        "policy.enabled=true,monitoring.enabled=true",
    ])?;
    let left: Vec<&str> = rendered.keys().map(|id| id.trim_start()).collect();
    for kind in [
        "Deployment/",
        "Service/",
        "WebhookConfiguration/",
        "ServiceMonitor/",
        "RoleBinding/",
    ] {
        let found: Vec<_> = left
            .iter()
            .filter(|id| id.contains(kind) && !id.contains("uninstall-guard"))
            .collect();
        ensure!(found.is_empty(), "{found:?}");
    }
    ensure!(
        left.contains(&"CustomResourceDefinition/modeldeployments.kubeairunway.ai"),
        "{left:?}"
    );
    Ok(())
}

#[tokio::test]
async fn kustomize_installs_into_any_namespace() -> Result<()> {
    let rendered = run(
        &Binaries::ensure()?.kubectl,
        &["kustomize", "kustomize-other-namespace"],
    )?;
    let wanted = serde_json::to_string(&of_the_command(&Release::default())?)?;
    let wanted: Objects = serde_json::from_str(&wanted.replace(manifests::NAMESPACE, "ai-platform"))?;
    let found = objects(&rendered)?.into_iter().map(|(id, mut object)| {
        // kustomize does not know that policies have no namespace. The API server drops it, see below.
        if !id.contains(" ValidatingAdmissionPolicy") {
            return (id, object);
        }
        if let Some(metadata) = object["metadata"].as_object_mut() {
            metadata.remove("namespace");
        }
        (id.trim_start_matches("ai-platform").to_owned(), object)
    });
    same("kustomize", &found.collect(), &wanted)?;
    let folder = "kustomize-other-namespace/model-network-policy";
    let rendered = run(&Binaries::ensure()?.kubectl, &["kustomize", folder])?;
    let format = runway_client::text::Format::Yaml;
    let wanted = runway_client::text::documents(&manifests::models::network_policies(), format)?;
    let wanted = objects(&wanted.replace(manifests::NAMESPACE, "ai-platform"))?;
    same("kustomize", &objects(&rendered)?, &wanted)?;

    let cluster = ControlPlane::start(Options::default()).await?;
    let overlay = deploy().join("kustomize-other-namespace");
    let mut kubectl = cluster.kubectl()?;
    let output = kubectl
        .args(["apply", "--server-side", "-k"])
        .arg(overlay)
        .output()
        .await?;
    ensure!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let policies: Api<ValidatingAdmissionPolicy> = Api::all(cluster.admin_client().await?);
    let policy = policies.get(manifests::confinement::POLICY).await?;
    ensure!(policy.namespace().is_none());
    let status = common::run(&cluster.admin()?, &["controller", "status"]).await?;
    common::expect(&status, 1, "ai-platform/kubeairunway-controller")?;
    cluster.stop().await
}

#[test]
fn alerts_and_dashboards_are_in_the_chart_and_in_kustomize() -> Result<()> {
    let labels = r"monitoring.labels.release=prometheus,monitoring.dashboardLabels.grafana_dashboard=yes";
    let rendered = template(&[
        "--set",
        "monitoring.rules=true,monitoring.dashboards=true",
        "--set",
        labels,
    ])?;
    let kubectl = Binaries::ensure()?.kubectl;
    for (folder, kind, label, value) in [
        ("monitoring-rules", "PrometheusRule", "release", "prometheus"),
        ("dashboards", "ConfigMap", "grafana_dashboard", "yes"),
    ] {
        let wanted = objects(&run(&kubectl, &["kustomize", &format!("kustomize/{folder}")])?)?;
        ensure!(wanted.len() == 2, "{:?}", wanted.keys());
        for (id, wanted) in wanted {
            let found = rendered.get(&id).with_context(|| format!("the chart lacks {id}"))?;
            ensure!(
                found["kind"] == kind && found["metadata"]["labels"][label] == value,
                "{found:#}"
            );
            for content in ["spec", "data"] {
                ensure!(found.get(content) == wanted.get(content), "{id}: another {content}");
            }
        }
    }
    Ok(())
}

/// Kubernetes' own roles of users, each with the permissions of those before it.
const ROLES: [&str; 3] = ["view", "edit", "admin"];

/// A permission, and the least of [`ROLES`] that has it, if any does.
#[derive(Debug)]
struct Permission {
    attributes: ResourceAttributes,
    is_namespaced: bool,
    least: Option<usize>,
}

/// Permissions on all kinds of the product, and on their subresources.
fn permissions() -> Vec<Permission> {
    let (read, write) = (
        ["get", "list", "watch"],
        ["create", "update", "patch", "delete", "deletecollection"],
    );
    let crds = manifests::all_components()
        .into_iter()
        .flat_map(|component| component.crds);
    let mut all: Vec<_> = crds.flat_map(|crd| of_kind(&crd, &read, &write)).collect();
    let own = [
        ("queue", "get", 0),
        ("messages", "create", 1),
        ("dlq", "get", 2),
        ("dlq", "update", 2),
        ("dlq", "delete", 2),
    ];
    all.extend(own.map(|(subresource, verb, least)| Permission {
        attributes: attributes("asya.sh", "asyncactors", subresource, verb),
        is_namespaced: true,
        least: Some(least),
    }));
    all
}

fn of_kind(crd: &CustomResourceDefinition, read: &[&str], write: &[&str]) -> Vec<Permission> {
    let is_namespaced = crd.spec.scope == "Namespaced";
    let scales = crd.spec.versions.iter().any(|version| {
        let subresources = version.subresources.as_ref();
        subresources.is_some_and(|subresources| subresources.scale.is_some())
    });
    let of_writers = Some(if is_namespaced { 1 } else { 2 });
    let mut rows = Vec::new();
    rows.extend(read.iter().map(|verb| ("", *verb, Some(0))));
    rows.extend(write.iter().map(|verb| ("", *verb, of_writers)));
    rows.extend(["update", "patch"].map(|verb| ("status", verb, None)));
    rows.push(("finalizers", "update", None));
    if is_namespaced {
        rows.push(("status", "get", Some(0)));
    }
    if scales {
        rows.extend([
            ("scale", "get", Some(0)),
            ("scale", "update", Some(1)),
            ("scale", "patch", Some(1)),
        ]);
    }
    let of = |(subresource, verb, least)| Permission {
        attributes: attributes(&crd.spec.group, &crd.spec.names.plural, subresource, verb),
        is_namespaced,
        least,
    };
    rows.into_iter().map(of).collect()
}

fn attributes(group: &str, resource: &str, subresource: &str, verb: &str) -> ResourceAttributes {
    ResourceAttributes {
        group: Some(group.to_owned()),
        resource: Some(resource.to_owned()),
        subresource: Some(subresource.to_owned()),
        verb: Some(verb.to_owned()),
        ..ResourceAttributes::default()
    }
}

/// Same as `kubectl auth can-i --as USER`.
async fn may(client: &Client, user: &str, namespace: Option<&str>, attributes: &ResourceAttributes) -> Result<bool> {
    let review = SubjectAccessReview {
        spec: SubjectAccessReviewSpec {
            user: Some(user.to_owned()),
            resource_attributes: Some(ResourceAttributes {
                namespace: namespace.map(str::to_owned),
                ..attributes.clone()
            }),
            ..SubjectAccessReviewSpec::default()
        },
        ..SubjectAccessReview::default()
    };
    let answer = Api::all(client.clone()).create(&PostParams::default(), &review).await?;
    Ok(answer.status.is_some_and(|status| status.allowed))
}

/// Each user has the permissions of their role on each kind; without aggregation, none.
async fn roles_hold(client: &Client, is_aggregated: bool) -> Result<()> {
    for permission in permissions() {
        let attributes = &permission.attributes;
        for (rank, role) in ROLES.iter().enumerate() {
            let wanted = is_aggregated && permission.least.is_some_and(|least| least <= rank);
            let in_namespace = wanted && permission.is_namespaced;
            let namespace = permission.is_namespaced.then_some("default");
            let elsewhere = permission.is_namespaced.then_some("elsewhere");
            for (user, namespace, wanted) in [
                ("team", namespace, in_namespace),
                ("team", elsewhere, false),
                ("cluster", elsewhere, wanted),
            ] {
                let found = may(client, &format!("{role}-of-{user}"), namespace, attributes).await?;
                ensure!(
                    found == wanted,
                    "{role} of {user} in {namespace:?}: {found} for {permission:?}"
                );
            }
        }
    }
    Ok(())
}

/// Users with Kubernetes' own roles in a namespace, and in the cluster.
async fn bind_roles(client: &Client) -> Result<()> {
    let group = "rbac.authorization.k8s.io";
    for role in ROLES {
        for (user, kind, namespace) in [
            ("team", "RoleBinding", Some("default")),
            ("cluster", "ClusterRoleBinding", None),
        ] {
            let name = format!("{role}-of-{user}");
            let binding = json!({ "apiVersion": format!("{group}/v1"), "kind": kind,
                "metadata": { "name": name, "namespace": namespace },
                "roleRef": { "apiGroup": group, "kind": "ClusterRole", "name": role },
                "subjects": [{ "kind": "User", "name": name, "apiGroup": group }] });
            let binding: DynamicObject = serde_json::from_value(binding)?;
            api_of(client, &binding)
                .await?
                .create(&PostParams::default(), &binding)
                .await?;
        }
    }
    Ok(())
}

#[tokio::test]
async fn roles_of_kubernetes_contain_our_kinds_by_every_way() -> Result<()> {
    let cluster = ControlPlane::start(Options::default()).await?;
    let client = cluster.admin_client().await?;
    bind_roles(&client).await?;
    let kubectl = Binaries::ensure()?.kubectl;
    let unaggregated = Release {
        aggregation: false,
        ..Release::default()
    };
    // Each takes the permissions of the one before away, or grants them again.
    let ways = [
        ("the command", of_the_command(&Release::default())?, true),
        ("the command without aggregation", of_the_command(&unaggregated)?, false),
        (
            "install.yaml",
            objects(&std::fs::read_to_string(deploy().join("install.yaml"))?)?,
            true,
        ),
        (
            "the chart without aggregation",
            template(&["--set", "roles.aggregate=false"])?,
            false,
        ),
        ("the chart", template(&[])?, true),
        ("the command without aggregation", of_the_command(&unaggregated)?, false),
        (
            "kustomize",
            objects(&run(&kubectl, &["kustomize", "kustomize"])?)?,
            true,
        ),
    ];
    let roles: Api<ClusterRole> = Api::all(client.clone());
    for (way, objects, is_aggregated) in ways {
        for object in objects.values().filter(|object| object["kind"] == "ClusterRole") {
            let role: ClusterRole = serde_json::from_value(object.clone())?;
            if role.labels().keys().any(|label| label.starts_with(AGGREGATE)) {
                let manager = PatchParams::apply("test").force();
                roles.patch(&role.name_any(), &manager, &Patch::Apply(object)).await?;
            }
        }
        // Kubernetes adds up its roles in the background.
        eventually(PATIENCE, async || roles_hold(&client, is_aggregated).await)
            .await
            .context(way)?;
    }
    cluster.stop().await
}
