//! Reports of `kubeairunway check` for clusters with one fault. Each folder below `tests/faults` is a case: a healthy cluster,
//! built from the product's own manifests, and the changes of the case.
//! `UPDATE_CASES=1 cargo test -p runway-doctor --test faults` writes the results: review them before you commit.
//!
//! | file | content |
//! |---|---|
//! | `fault.yaml` | objects: merged into those of the same name, or added; `gone: true` removes one, `patch` is a JSON patch |
//! | `namespaces` | namespaces of the installation, if it is not for all |
//! | `names` | the id of the check that must report it, with its remedy, on the first screen |
//! | `expected` | the whole report |

#![allow(clippy::unwrap_used, clippy::panic, reason = "a test that cannot run should fail")]

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::LazyLock;
use std::time::{Duration, Instant};

use jiff::{SignedDuration, Timestamp};
use runway_api::labels;
use runway_client::documents::Documents;
use runway_client::text::Look;
use runway_doctor::check::report::{self, Format};
use runway_doctor::check::{self, Judgement, Level, Observed};
use runway_golden::Case;
use runway_manifests::{self as manifests, Release};
use runway_operator::webhook::certificates::{Authorities, Lifetimes};
use serde_json::{Value, json};

/// Lines of a terminal of the default size.
const SCREEN: usize = 25;

#[test]
fn each_fault_is_named_with_its_remedy_on_the_first_screen() {
    runway_golden::check(&folder(), 30, run);
}

#[test]
fn a_healthy_cluster_has_no_findings() {
    for namespaces in ["", "default,team-b"] {
        let judged = judge(&well(namespaces));
        let outcomes = || judged.iter().flat_map(|group| &group.checks);
        let bad: Vec<_> = outcomes().filter(|c| c.level > Level::Skipped).collect();
        assert!(bad.is_empty(), "{bad:#?}");
        let asked = outcomes().filter(|c| c.level == Level::Ok).count();
        assert!(asked >= 40, "only {asked} checks were asked");
    }
}

/// A chart installs the controllers of all providers, and most clusters have one operator or none.
#[test]
fn a_provider_that_no_model_names_needs_no_operator() {
    let mut objects = well("");
    let dynamo = without_operator("dynamo");
    objects.push(dynamo.clone());
    let judged = judge(&objects);
    assert!(!check::failed(&judged), "{judged:#?}");
    let report = report::write(&judged, Format::Text, Look::default()).unwrap();
    assert!(
        report.starts_with("√ no problems: 0 failed, 0 with warnings"),
        "{report}"
    );
    let note =
        "- Provider dynamo: not used: the operator is not installed, and no ModelDeployment names the provider\n";
    assert!(report.contains(note), "{report}");

    let is_error = |objects: &[Value]| {
        let judged = judge(objects);
        let mut outcomes = judged.iter().flat_map(|group| &group.checks);
        outcomes.any(|o| o.check == "provider-crd" && o.level == Level::Error)
    };
    let mut named = objects.clone();
    let model = named.iter_mut().find(|o| o["kind"] == "ModelDeployment").unwrap();
    model["spec"]["provider"] = json!({ "name": "dynamo" });
    assert!(is_error(&named));
    // Without another provider, no model can be served.
    objects.retain(|o| o["kind"] != "ModelDeployment" && key(o)[2] != "kaito");
    assert!(is_error(&objects));
}

#[test]
fn observation_can_be_written_and_read_again() {
    let observed = observed(&well(""));
    let again = self::observed(&observed.documents());
    assert_eq!(check::judge(&observed, false), check::judge(&again, false));
}

#[test]
fn json_has_the_level_and_junit_has_all_checks() {
    let judged = judge(&with(&folder().join("provider-silent")));
    let json: Value = serde_json::from_str(&report::write(&judged, Format::Json, Look::default()).unwrap()).unwrap();
    assert_eq!(json["level"], "error");
    let junit = report::write(&judged, Format::Junit, Look::default()).unwrap();
    assert!(
        junit.contains(r#"<failure message="provider controllers send heartbeats">"#),
        "{junit}"
    );
    let checks: usize = judged.iter().map(|group| group.checks.len()).sum();
    assert_eq!(junit.matches("<testcase").count(), checks);
}

/// Users do not notice the time of the checks, even with a thousand models.
#[test]
fn a_thousand_models_are_judged_at_once() {
    let mut objects = well("");
    let model = objects.iter().find(|o| o["kind"] == "ModelDeployment").unwrap().clone();
    for number in 0..1000 {
        let mut another = model.clone();
        another["metadata"]["name"] = json!(format!("gemma-{number}"));
        objects.push(another);
    }
    let observed = observed(&objects);
    let start = Instant::now();
    let judged = check::judge(&observed, false);
    // A debug build on a busy machine.
    assert!(start.elapsed() < Duration::from_secs(10), "{:?}", start.elapsed());
    assert!(!check::failed(&judged));
}

fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/faults")
}

fn run(case: &mut Case) {
    let report = report::write(&judge(&with(case.folder())), Format::Text, Look::default()).unwrap();
    let named = case.text("names");
    let named = named.trim();
    let screen: Vec<&str> = report.lines().take(SCREEN).collect();
    let at = screen.iter().position(|line| line.ends_with(&format!("[{named}]")));
    let is_remedy = |line: &&str| line.strip_prefix("    → ").is_some_and(|remedy| remedy.len() > 5);
    if !at.is_some_and(|at| screen[at..].iter().any(is_remedy)) {
        case.problem(&format!("{named} with a remedy is not on the first screen:\n{report}"));
    }
    case.compare("expected", Some(findings(&report)));
}

/// The report without what says that checks passed or were skipped: a new check does not change the other cases.
fn findings(report: &str) -> String {
    let lines = report.lines().filter(|line| !line.starts_with(['√', '-']));
    let lines = lines.map(|line| match line.rsplit_once(", ") {
        Some((findings, passed)) if passed.ends_with(" passed") => findings.to_owned(),
        _ => line.to_owned(),
    });
    lines.map(|line| line + "\n").collect()
}

fn judge(objects: &[Value]) -> Vec<Judgement> {
    check::judge(&observed(objects), false)
}

fn observed(objects: &[Value]) -> Observed {
    let mut documents = Documents::default();
    let list = json!({ "apiVersion": "v1", "kind": "List", "items": objects });
    documents.take_in_text("state.json", &list.to_string());
    let (observed, said) = Observed::from_documents(documents);
    assert!(said.is_empty(), "{said:?}");
    observed
}

/// The cluster with what a case changes in it.
fn with(case: &Path) -> Vec<Value> {
    let text = fs::read_to_string(case.join("fault.yaml")).unwrap_or_else(|e| panic!("{}: {e}", case.display()));
    let more_than_a_year = SignedDuration::from_hours(24 * 380);
    let text = text
        .replace(
            "${EXPIRED}",
            base64(&authority(now() - more_than_a_year)).as_str().unwrap(),
        )
        .replace("${ANOTHER}", base64(&authority(now())).as_str().unwrap());
    let mut documents = Documents::default();
    documents.take_in_text("fault.yaml", &text);
    assert!(
        documents.errors.is_empty(),
        "{}: {:?}",
        case.display(),
        documents.errors
    );
    let namespaces = fs::read_to_string(case.join("namespaces")).unwrap_or_default();
    let mut objects = well(namespaces.trim());
    for change in documents.found.into_iter().map(|document| document.value) {
        let there = objects.iter().position(|object| key(object) == key(&change));
        match (there, change.get("gone"), change.get("patch")) {
            (Some(at), Some(_), _) => {
                objects.remove(at);
            }
            (Some(at), None, Some(patch)) => {
                let patch: json_patch::Patch = serde_json::from_value(patch.clone()).unwrap();
                json_patch::patch(&mut objects[at], &patch).unwrap();
            }
            (Some(at), None, None) => json_patch::merge(&mut objects[at], &change),
            (None, None, None) => objects.push(change),
            _ => panic!("{}: there is no {:?}", case.display(), key(&change)),
        }
    }
    objects
}

fn key(object: &Value) -> [&str; 3] {
    ["/kind", "/metadata/namespace", "/metadata/name"]
        .map(|path| object.pointer(path).and_then(Value::as_str).unwrap_or_default())
}

/// The time of all cases.
fn now() -> Timestamp {
    "2026-11-21T10:00:00Z".parse().unwrap()
}

/// The bundle of an authority that was made then.
fn authority(made: Timestamp) -> String {
    let made_by = Authorities::first("kubeairunway", made, Lifetimes::default()).unwrap();
    made_by.bundle(made)
}

fn base64(text: &str) -> Value {
    json!(k8s_openapi::ByteString(text.as_bytes().to_vec()))
}

/// A cluster in which all is well: the core, KAITO's provider, the operators of Asya and Llama Stack, a node, one of each kind.
/// Its controllers watch these namespaces; all if the text is empty.
fn well(namespaces: &str) -> Vec<Value> {
    static WELL: LazyLock<Vec<Value>> = LazyLock::new(|| make_well(""));
    if namespaces.is_empty() {
        return WELL.clone();
    }
    make_well(namespaces)
}

fn make_well(namespaces: &str) -> Vec<Value> {
    let release = Release {
        namespaces: namespaces.parse().unwrap(),
        ..Release::default()
    };
    let bundle = authority(now() - SignedDuration::from_hours(24));
    let mut objects = vec![facts(&bundle)];
    for component in manifests::components() {
        if ["dynamo-provider", "kuberay-provider", "direct-provider"].contains(&component.name.as_str()) {
            continue;
        }
        let made = component.objects(&release).into_iter();
        objects.extend(made.map(|object| serde_json::to_value(object).unwrap()));
        objects.extend(running(&component.name));
    }
    for object in &mut objects {
        settle(object, &bundle);
    }
    objects.extend(upstream_crds());
    objects.extend(neighbors());
    objects.push(registration("kaito"));
    objects.extend(one_of_each());
    objects
}

fn facts(bundle: &str) -> Value {
    json!({
        "apiVersion": "check.kubeairunway.ai/v1", "kind": "Observation", "metadata": { "name": "check" },
        "facts": {
            "now": now(), "url": "https://cluster.example", "version": "v1.36.3",
            "may": ["create modeldeployments.kubeairunway.ai in namespace 'default'"],
            "admission": "answers", "authority": bundle, "unread": { "ServiceMonitor": "notInstalled" },
        },
    })
}

/// The pod of a controller, and its Lease.
fn running(component: &str) -> [Value; 2] {
    let pod = format!("{component}-5f7d-abcde");
    [
        json!({
            "apiVersion": "v1", "kind": "Pod",
            "metadata": { "name": pod, "namespace": manifests::NAMESPACE, "labels": { manifests::COMPONENT_LABEL: component } },
            "spec": { "containers": [] },
            "status": { "phase": "Running", "conditions": [{ "type": "Ready", "status": "True" }] },
        }),
        json!({
            "apiVersion": "coordination.k8s.io/v1", "kind": "Lease",
            "metadata": { "name": component, "namespace": manifests::NAMESPACE },
            "spec": { "holderIdentity": format!("{pod}_1a2b"), "leaseDurationSeconds": 5, "renewTime": "2026-11-21T09:59:59.000000Z" },
        }),
    ]
}

/// Adds the fields that a cluster sets in an applied object.
fn settle(object: &mut Value, bundle: &str) {
    match object["kind"].as_str().unwrap_or_default() {
        "CustomResourceDefinition" => serve(object),
        "Deployment" => {
            let replicas = object["spec"]["replicas"].clone();
            object["metadata"]["generation"] = json!(1);
            object["status"] = json!({ "observedGeneration": 1, "replicas": replicas, "availableReplicas": replicas });
        }
        "MutatingWebhookConfiguration" | "ValidatingWebhookConfiguration" => {
            for webhook in object["webhooks"].as_array_mut().unwrap() {
                webhook["clientConfig"]["caBundle"] = base64(bundle);
            }
        }
        _ => {}
    }
}

fn serve(crd: &mut Value) {
    let version = crd["spec"]["versions"][0]["name"].clone();
    crd["status"] = json!({
        "conditions": [condition("NamesAccepted", "NoConflicts"), condition("Established", "InitialNamesAccepted")],
        "acceptedNames": crd["spec"]["names"], "storedVersions": [version],
    });
}

/// The CRDs of KAITO and KEDA, as they publish them.
fn upstream_crds() -> [Value; 4] {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../testbed/crds");
    [
        "kaito.sh_workspaces.yaml",
        "kaito.sh_inferencesets.yaml",
        "keda.sh_scaledobjects.yaml",
        "keda.sh_triggerauthentications.yaml",
    ]
    .map(|file| {
        let text = fs::read_to_string(folder.join(file)).unwrap();
        let mut crd: Value = serde_saphyr::from_str(&text).unwrap();
        serve(&mut crd);
        crd
    })
}

/// Objects of the cluster and of other products.
fn neighbors() -> [Value; 5] {
    [
        json!({
            "apiVersion": "v1", "kind": "Node", "metadata": { "name": "node-1" },
            "status": {
                "conditions": [{ "type": "Ready", "status": "True" }],
                "allocatable": { "cpu": "32", "memory": "64Gi", "nvidia.com/gpu": "2" },
            },
        }),
        json!({
            "apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice", "addressType": "IPv4",
            "metadata": { "name": "kubeairunway-webhook-1", "namespace": manifests::NAMESPACE,
                "labels": { "kubernetes.io/service-name": manifests::WEBHOOK_SERVICE } },
            "endpoints": [{ "addresses": ["10.0.0.1"], "conditions": { "ready": true } }],
        }),
        json!({
            "apiVersion": "apps/v1", "kind": "Deployment",
            "metadata": { "name": "kaito-workspace", "namespace": "kaito-workspace", "labels": { "app.kubernetes.io/name": "workspace" } },
            "spec": { "selector": {}, "template": {} }, "status": { "availableReplicas": 1 },
        }),
        json!({
            "apiVersion": "apiregistration.k8s.io/v1", "kind": "APIService",
            "metadata": { "name": "v1beta1.external.metrics.k8s.io" },
            "status": { "conditions": [{ "type": "Available", "status": "True" }] },
        }),
        json!({
            "apiVersion": "storage.k8s.io/v1", "kind": "StorageClass", "provisioner": "local",
            "metadata": { "name": "standard", "annotations": { "storageclass.kubernetes.io/is-default-class": "true" } },
        }),
    ]
}

/// A provider as it registers itself.
fn registration(name: &str) -> Value {
    let providers = manifests::built_in_providers();
    let provider = providers.iter().find(|provider| provider.name() == name).unwrap();
    json!({
        "apiVersion": "kubeairunway.ai/v1alpha1", "kind": "InferenceProviderConfig", "metadata": { "name": name },
        "spec": provider.registration(),
        "status": {
            "ready": true, "version": format!("{name}-provider:v0.1.0"), "lastHeartbeat": "2026-11-21T09:59:30Z",
            "conditions": [condition("UpstreamReady", "SchemaKnown"), condition("RulesValid", "RulesValid")],
        },
    })
}

/// A provider whose operator is not installed.
fn without_operator(name: &str) -> Value {
    let mut config = registration(name);
    config["status"]["ready"] = json!(false);
    let ready = &mut config["status"]["conditions"][0];
    *ready = condition("UpstreamReady", "CRDNotInstalled");
    ready["status"] = json!("False");
    config
}

fn condition(type_: &str, reason: &str) -> Value {
    json!({ "type": type_, "status": "True", "reason": reason, "message": "", "lastTransitionTime": "2026-11-21T09:00:00Z" })
}

/// A ModelDeployment, an AsyncActor and a LlamaStackDistribution that serve.
fn one_of_each() -> [Value; 4] {
    let meta = |name: &str| json!({ "name": name, "namespace": "default", "generation": 1, "creationTimestamp": "2026-11-21T09:00:00Z" });
    let model = json!({
        "apiVersion": "kubeairunway.ai/v1alpha1", "kind": "ModelDeployment", "metadata": meta("gemma"),
        "spec": {
            "model": { "id": "google/gemma-3-1b-it-qat-q8_0-gguf" }, "engine": { "type": "llamacpp" },
            "resources": { "memory": "16Gi", "cpu": "8" },
        },
        "status": {
            "phase": "Running", "observedGeneration": 1,
            "provider": { "name": "kaito", "resourceKind": "Workspace", "resourceName": "gemma" },
            "conditions": [
                condition("Validated", "ValidationPassed"), condition("ProviderSelected", "AutoSelected"),
                condition("ProviderCompatible", "CompatibilityVerified"), condition("ResourceCreated", "ResourceCreated"),
                condition("Ready", "DeploymentReady"),
            ],
        },
    });
    let pod = json!({
        "apiVersion": "v1", "kind": "Pod",
        "metadata": { "name": "gemma-0", "namespace": "default", "labels": { labels::DEPLOYMENT: "gemma" },
            "creationTimestamp": "2026-11-21T09:00:00Z" },
        "spec": { "containers": [] },
        "status": { "phase": "Running", "conditions": [{ "type": "Ready", "status": "True" }] },
    });
    let actor = json!({
        "apiVersion": "asya.sh/v1alpha1", "kind": "AsyncActor", "metadata": meta("summarize"),
        "spec": { "transport": "rabbitmq", "workloadRef": { "apiVersion": "apps/v1", "kind": "Deployment", "name": "worker" },
            "scaling": { "enabled": true } },
        "status": { "status": "Running", "conditions": [
            condition("TargetResolved", "Resolved"), condition("RuntimeInjected", "Injected"),
            condition("TransportReady", "QueueReady"), condition("ScalingReady", "ScaledObjectReady"), condition("Ready", "Running"),
        ] },
    });
    let stack = json!({
        "apiVersion": "llamastack.io/v1alpha1", "kind": "LlamaStackDistribution", "metadata": meta("stack"),
        "spec": { "server": { "distribution": { "name": "starter" } } },
        "status": { "phase": "Ready", "conditions": [condition("Ready", "Ready")] },
    });
    [model, pod, actor, stack]
}
