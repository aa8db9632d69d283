//! The pod template: the five phases of a start as containers.
//!
//! Providers are installed one after another, each in its own image; the distribution's configuration is extracted; the two
//! are merged by our own image; then the server's container checks what was installed, and starts.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::Pod;
use kube::ResourceExt;
use runway_api::labels::llama_stack as labels;
use runway_api::llama_stack_distribution::{PodOverrides, Quantity, Resources, Storage};
use runway_operator::{json, quantity};
use serde::Serialize;
use serde_json::{Map, Value, json};

use super::request::{Provider, Request};
use crate::kinds;
use crate::merge::Transport;
use crate::pod::{CHECK_PROVIDERS, CRD_CONFIG_VARIABLE, FIND_PYTHON, START_SERVER};
use crate::settings::Settings;
use crate::validate::given;

/// The init container that finds the distribution's configuration.
pub(super) const EXTRACT: &str = "extract-distribution-config";
/// The init container that merges configurations.
pub(super) const MERGE: &str = "merge-config";

// Paths of the specification.
pub(super) const PACKAGES: &str = "/opt/llama-stack/external-providers/python-packages";
const EXTERNAL_PROVIDERS: &str = "/opt/llama-stack/external-providers";
const PROVIDER_CACHE: &str = "/opt/llama-stack/provider-cache";
const BASE_CONFIG: &str = "/opt/llama-stack/base-config";
const CONFIG: &str = "/opt/llama-stack/config";
const MERGED_RUN_YAML: &str = "/opt/llama-stack/config/run.yaml";
/// Mount path of our scripts in init containers.
const SCRIPTS: &str = "/opt/llama-stack/scripts";
/// Mount path of the user's ConfigMap, as in the public operator.
const USER_CONFIG: &str = "/etc/llama-stack";
/// Mount path of the CA bundle, as in the public operator.
const CA_BUNDLE: &str = "/etc/ssl/certs/ca-bundle";
/// The file in it.
pub(super) const CA_BUNDLE_KEY: &str = "ca-bundle.crt";

/// Environment variables by which a server finds its configuration: while we merge it, they are ours.
pub(super) const CONFIG_ENV: [&str; 3] = ["LLAMA_STACK_CONFIG", "RUN_CONFIG_PATH", "OGX_CONFIG"];

/// Labels in the selector of the Deployment. They can never change.
pub(super) fn selector(name: &str) -> Value {
    json!({ labels::APP: labels::APP_VALUE, labels::INSTANCE: name })
}

/// The pod template.
pub(super) fn template(request: &Request, settings: &Settings, scripts_hash: Option<&str>) -> Value {
    let mut annotations = BTreeMap::new();
    let mut note = |key: &str, hash: Option<&str>| {
        if let Some(hash) = hash {
            annotations.insert(key.to_owned(), hash.to_owned());
        }
    };
    note(
        labels::USER_CONFIG_HASH,
        request.user_config.as_ref().map(|u| u.hash.as_str()),
    );
    note(
        labels::CA_BUNDLE_HASH,
        request.ca_bundle.as_ref().map(|b| b.hash.as_str()),
    );
    note(labels::SCRIPTS_HASH, scripts_hash);
    let mut template = json!({
        "metadata": {
            "labels": {
                labels::APP: labels::APP_VALUE,
                labels::INSTANCE: request.name,
                labels::MANAGED_BY: labels::MANAGER,
                labels::PART_OF: labels::APP_VALUE,
            },
            "annotations": annotations,
        },
        "spec": pod(request, settings),
    });
    let hash = json::hash(&template);
    template["metadata"]["annotations"][labels::TEMPLATE] = hash.into();
    template
}

fn pod(request: &Request, settings: &Settings) -> Value {
    let overrides = request.overrides();
    let mut pod = json!({
        "serviceAccountName": request.service_account,
        "securityContext": security_context(overrides, settings),
        "containers": [server(request)],
        "volumes": volumes(request, settings),
    });
    if !request.providers.is_empty() {
        pod["initContainers"] = init_containers(request).into();
    }
    if let Some(seconds) = overrides.termination_grace_period_seconds {
        pod["terminationGracePeriodSeconds"] = seconds.into();
    }
    if let Some(constraints) = spread(request) {
        pod["topologySpreadConstraints"] = constraints;
    }
    if let Some(own) = &overrides.affinity {
        pod["affinity"] = pruned(own);
    } else if request.replicas > 1 && request.server().topology_spread_constraints.is_empty() {
        pod["affinity"] = json!({ "podAntiAffinity": { "preferredDuringSchedulingIgnoredDuringExecution": [{
            "weight": 100,
            "podAffinityTerm": {
                "labelSelector": { "matchLabels": selector(&request.name) },
                "topologyKey": "kubernetes.io/hostname",
            },
        }] } });
    }
    if !overrides.node_selector.is_empty() {
        pod["nodeSelector"] = json!(overrides.node_selector);
    }
    if !overrides.tolerations.is_empty() {
        pod["tolerations"] = pruned(&overrides.tolerations);
    }
    if !overrides.image_pull_secrets.is_empty() {
        pod["imagePullSecrets"] = pruned(&overrides.image_pull_secrets);
    }
    let names = [
        ("priorityClassName", &overrides.priority_class_name),
        ("runtimeClassName", &overrides.runtime_class_name),
    ];
    for (field, name) in names {
        if let Some(name) = given(name.as_ref()) {
            pod[field] = name.into();
        }
    }
    pod
}

/// The security context of pods. The default meets the Pod Security Standard `restricted`; volumes are shared by group.
fn security_context(overrides: &PodOverrides, settings: &Settings) -> Value {
    if let Some(own) = &overrides.security_context {
        return pruned(own);
    }
    let mut context = json!({ "runAsNonRoot": true, "seccompProfile": { "type": "RuntimeDefault" } });
    if let Some(user) = settings.pod_user {
        context["runAsUser"] = user.into();
        context["fsGroup"] = user.into();
    }
    context
}

fn spread(request: &Request) -> Option<Value> {
    let own = &request.server().topology_spread_constraints;
    if !own.is_empty() {
        return Some(pruned(own));
    }
    let over = |key: &str| {
        json!({
            "maxSkew": 1,
            "topologyKey": key,
            "whenUnsatisfiable": "ScheduleAnyway",
            "labelSelector": { "matchLabels": selector(&request.name) },
        })
    };
    (request.replicas > 1).then(|| {
        json!([
            over("topology.kubernetes.io/region"),
            over("topology.kubernetes.io/zone"),
            over("kubernetes.io/hostname"),
        ])
    })
}

fn init_containers(request: &Request) -> Vec<Value> {
    let mut containers: Vec<Value> = request.providers.iter().map(|p| install(request, p)).collect();
    if request.user_config.is_none() {
        containers.push(extract(request));
    }
    containers.push(merge(request));
    containers
}

/// Phase 1: one for each provider, in its own image.
fn install(request: &Request, provider: &Provider) -> Value {
    let mut env = vec![
        json!({ "name": CRD_CONFIG_VARIABLE, "value": provider.crd_config }),
        json!({ "name": "HOME", "value": "/tmp" }),
    ];
    let mut mounts = vec![
        mount("external-providers", EXTERNAL_PROVIDERS, false),
        mount("scripts", SCRIPTS, true),
    ];
    if request.overrides().provider_cache_claim.is_some() {
        env.push(json!({ "name": "LLS_PROVIDER_CACHE", "value": PROVIDER_CACHE }));
        mounts.push(mount("provider-cache", PROVIDER_CACHE, false));
    }
    json!({
        "name": provider.container,
        "image": provider.image,
        "imagePullPolicy": provider.pull_policy.as_str(),
        // No shell: an image may have none.
        "command": ["python3", format!("{SCRIPTS}/install_provider.py")],
        "env": env,
        "volumeMounts": mounts,
        // About 100 MB for ten dependencies; large wheels need more while they are unpacked.
        "resources": init_resources(request, [("cpu", "100m"), ("memory", "256Mi")], "1Gi"),
        "securityContext": restricted(),
        "terminationMessagePolicy": "FallbackToLogsOnError",
    })
}

/// Phase 2: the distribution's own configuration. Only a distribution that the spec names has a name to look for, since every
/// release of the Python package contains the configurations of all of them.
fn extract(request: &Request) -> Value {
    let mut env = Vec::new();
    if let Some(name) = &request.distribution {
        env.push(json!({ "name": "LLS_DISTRIBUTION_NAME", "value": name }));
    }
    // The image's entrypoint would read it from there as well.
    let mut own = request.server().container_spec.iter().flat_map(|c| &c.env);
    env.extend(own.rfind(|v| v.name == "DISTRO_NAME").map(pruned));
    let mut container = json!({
        "name": EXTRACT,
        "image": request.image,
        "imagePullPolicy": pull_policy(&request.image),
        "command": ["/bin/sh", format!("{SCRIPTS}/extract_config.sh")],
        "volumeMounts": [
            mount("base-config", BASE_CONFIG, false),
            mount("scripts", SCRIPTS, true),
        ],
        "resources": init_resources(request, [("cpu", "50m"), ("memory", "64Mi")], "256Mi"),
        "securityContext": restricted(),
        "terminationMessagePolicy": "FallbackToLogsOnError",
    });
    if !env.is_empty() {
        container["env"] = env.into();
    }
    container
}

/// Phase 3: our own image.
fn merge(request: &Request) -> Value {
    json!({
        "name": MERGE,
        "image": request.operator_image,
        "imagePullPolicy": "IfNotPresent",
        "command": ["/manager", "merge-config"],
        "workingDir": "/workspace",
        "volumeMounts": [
            mount("external-providers", EXTERNAL_PROVIDERS, true),
            mount("base-config", BASE_CONFIG, true),
            mount("merged-config", CONFIG, false),
        ],
        "resources": init_resources(request, [("cpu", "10m"), ("memory", "32Mi")], "128Mi"),
        "securityContext": restricted(),
        "terminationMessagePolicy": "FallbackToLogsOnError",
    })
}

/// Phases 4 and 5.
fn server(request: &Request) -> Value {
    let own = request.server().container_spec.clone().unwrap_or_default();
    let mut container = json!({
        "name": request.container,
        "image": request.image,
        "imagePullPolicy": pull_policy(&request.image),
        "ports": [{ "name": "http", "containerPort": request.port, "protocol": "TCP" }],
        "env": env(request),
        "resources": resources(request, own.resources.as_ref()),
        "volumeMounts": mounts(request),
        "securityContext": restricted(),
        "terminationMessagePolicy": "FallbackToLogsOnError",
        "startupProbe": health(request, STARTUP_PERIOD, 5, (request.startup_seconds() + STARTUP_PERIOD - 1) / STARTUP_PERIOD),
        // A server that is busy ingesting may not answer for a while; taking it out of service for that makes it flap. And
        // there is no liveness probe: a restart would lose the work.
        "readinessProbe": request.overrides().readiness_probe.as_ref().map_or_else(|| health(request, 10, 10, 6), pruned),
    });
    if let Some(own) = &request.overrides().liveness_probe {
        container["livenessProbe"] = pruned(own);
    }
    if !own.env_from.is_empty() {
        container["envFrom"] = pruned(&own.env_from);
    }
    if request.has_own_command() {
        if !own.command.is_empty() {
            container["command"] = own.command.into();
        }
        if !own.args.is_empty() {
            container["args"] = own.args.into();
        }
    } else if !request.providers.is_empty() {
        container["command"] = json!(["/bin/sh", "-c", format!("{FIND_PYTHON}{CHECK_PROVIDERS}{START_SERVER}")]);
    } else if request.user_config.is_some() {
        container["command"] = json!(["/bin/sh", "-c", format!("{FIND_PYTHON}{START_SERVER}")]);
    }
    container
}

/// Pull policy of the distribution's containers, which must run the same image. As Kubernetes' default: a tag that moves, or none
/// at all, is pulled each time.
fn pull_policy(image: &str) -> &'static str {
    if moves(image) { "Always" } else { "IfNotPresent" }
}

/// Whether an image is named without a digest and by the tag `latest`, or by none.
fn moves(image: &str) -> bool {
    let last = image.rsplit('/').next().unwrap_or_default();
    !last.contains('@') && (!last.contains(':') || last.ends_with(":latest"))
}

/// Images of the spec that another release may replace under the same name.
pub(super) fn moving_images<'a>(request: &'a Request) -> Vec<&'a str> {
    let own = request.distribution.is_none().then_some(request.image.as_str());
    let providers = request.providers.iter().map(|p| p.image.as_str());
    own.into_iter().chain(providers).filter(|image| moves(image)).collect()
}

/// Seconds between two probes of a server that starts.
const STARTUP_PERIOD: i32 = 5;

fn health(request: &Request, period: i32, timeout: i32, attempts: i32) -> Value {
    let mut probe = json!({
        "periodSeconds": period,
        "timeoutSeconds": timeout,
        "failureThreshold": attempts,
    });
    let path = json!({ "path": "/v1/health", "port": "http" });
    match request.transport {
        Transport::Plain => probe["httpGet"] = path,
        Transport::Tls => {
            probe["httpGet"] = path;
            probe["httpGet"]["scheme"] = "HTTPS".into();
        }
        // The kubelet has no certificate for clients.
        Transport::MutualTls => probe["tcpSocket"] = json!({ "port": "http" }),
    }
    probe
}

fn resources(request: &Request, own: Option<&Resources>) -> Value {
    let workers = request.server().workers.unwrap_or(1).to_string();
    with_defaults(own, [("cpu", &workers), ("memory", "1Gi")], None)
}

fn init_resources(request: &Request, requests: [(&str, &str); 2], memory_limit: &str) -> Value {
    with_defaults(
        request.overrides().init_resources.as_ref(),
        requests,
        Some(memory_limit),
    )
}

/// A request by default is never above a limit, and a limit by default never below a request.
fn with_defaults(own: Option<&Resources>, default_requests: [(&str, &str); 2], memory_limit: Option<&str>) -> Value {
    let own = own.cloned().unwrap_or_default();
    let amounts = |given: &BTreeMap<String, Quantity>| -> BTreeMap<String, String> {
        given
            .iter()
            .map(|(name, amount)| (name.clone(), quantity::canonical(&amount.to_string())))
            .collect()
    };
    let mut limits = amounts(&own.limits);
    let mut requests = amounts(&own.requests);
    if let (Some(default), false) = (memory_limit, limits.contains_key("memory")) {
        let larger = requests
            .get("memory")
            .filter(|request| quantity::is_less(default, request) == Some(true));
        limits.insert(
            "memory".to_owned(),
            larger.cloned().unwrap_or_else(|| default.to_owned()),
        );
    }
    for (name, default) in default_requests {
        let smaller = limits
            .get(name)
            .filter(|limit| quantity::is_less(limit, default) == Some(true));
        let amount = smaller.cloned().unwrap_or_else(|| default.to_owned());
        requests.entry(name.to_owned()).or_insert(amount);
    }
    let mut all = json!({ "requests": requests });
    if !limits.is_empty() {
        all["limits"] = json!(limits);
    }
    if !own.claims.is_empty() {
        all["claims"] = pruned(&own.claims);
    }
    all
}

/// Removes duplicate names, which server-side apply rejects. The last one counts, as in a container.
fn env(request: &Request) -> Vec<Value> {
    let with_providers = !request.providers.is_empty();
    let mut all: Vec<(String, Value)> = Vec::new();
    let mut set = |name: &str, value: Value| {
        all.retain(|(there, _)| there != name);
        all.push((name.to_owned(), value));
    };
    let text = |name: &str, value: &str| json!({ "name": name, "value": value });
    set("HF_HOME", text("HF_HOME", &request.mount_path));
    set("LLS_PORT", text("LLS_PORT", &request.port.to_string()));
    if let Some(workers) = request.server().workers {
        set("LLS_WORKERS", text("LLS_WORKERS", &workers.to_string()));
    }
    if request.ca_bundle.is_some() {
        set(
            "SSL_CERT_FILE",
            text("SSL_CERT_FILE", &format!("{CA_BUNDLE}/{CA_BUNDLE_KEY}")),
        );
    }
    if let (false, Some(config)) = (with_providers, &request.user_config) {
        set(
            "LLAMA_STACK_CONFIG",
            text("LLAMA_STACK_CONFIG", &format!("{USER_CONFIG}/{}", config.file)),
        );
    }
    let own = request.server().container_spec.iter().flat_map(|c| &c.env);
    for variable in own {
        set(&variable.name, pruned(variable));
    }
    for variable in request.providers.iter().flat_map(|p| &p.env) {
        set(variable["name"].as_str().unwrap_or_default(), variable.clone());
    }
    if with_providers {
        for name in CONFIG_ENV {
            set(name, text(name, MERGED_RUN_YAML));
        }
    }
    // A command of the user's own does not extend the image's PYTHONPATH, as ours does.
    if with_providers && request.has_own_command() {
        let path = all
            .iter()
            .find(|(name, _)| name == "PYTHONPATH")
            .map(|(_, own)| own.clone());
        all.retain(|(name, _)| name != "PYTHONPATH");
        all.extend(python_path(path));
    }
    all.into_iter().map(|(_, value)| value).collect()
}

/// The providers' packages come first; what the user gives follows.
fn python_path(own: Option<Value>) -> Vec<(String, Value)> {
    const HELPER: &str = "LLS_USER_PYTHONPATH";
    let path = |value: String| ("PYTHONPATH".to_owned(), json!({ "name": "PYTHONPATH", "value": value }));
    match own {
        None => vec![path(PACKAGES.to_owned())],
        Some(mut own) => match own.get("value").and_then(Value::as_str) {
            Some(text) => vec![path(format!("{PACKAGES}:{text}"))],
            None if own.get("valueFrom").is_some() => {
                own["name"] = HELPER.into();
                vec![(HELPER.to_owned(), own), path(format!("{PACKAGES}:$({HELPER})"))]
            }
            None => vec![path(PACKAGES.to_owned())],
        },
    }
}

fn mounts(request: &Request) -> Vec<Value> {
    let mut all = vec![mount("lls-storage", &request.mount_path, false)];
    if request.user_config.is_some() {
        all.push(mount("user-config", USER_CONFIG, true));
    }
    if request.ca_bundle.is_some() {
        all.push(mount("ca-bundle", CA_BUNDLE, true));
    }
    if !request.providers.is_empty() {
        all.push(mount("external-providers", EXTERNAL_PROVIDERS, true));
        all.push(mount("merged-config", CONFIG, true));
    }
    let own = request.server().pod_overrides.iter().flat_map(|o| &o.volume_mounts);
    all.extend(own.map(pruned));
    all
}

/// Names of the operator's volumes.
pub(super) const VOLUMES: [&str; 8] = [
    "provider-cache",
    "lls-storage",
    "user-config",
    "ca-bundle",
    "external-providers",
    "base-config",
    "merged-config",
    "scripts",
];

fn volumes(request: &Request, settings: &Settings) -> Vec<Value> {
    let mut all = vec![match request.server().storage {
        Some(Storage { .. }) => json!({
            "name": "lls-storage",
            "persistentVolumeClaim": { "claimName": kinds::claim(&request.name) },
        }),
        None => json!({ "name": "lls-storage", "emptyDir": {} }),
    }];
    let config_map = |volume: &str, name: &str| json!({ "name": volume, "configMap": { "name": name } });
    if let Some(config) = &request.user_config {
        all.push(config_map("user-config", &config.name));
    }
    if request.ca_bundle.is_some() {
        all.push(config_map("ca-bundle", &kinds::ca_bundle(&request.name)));
    }
    if !request.providers.is_empty() {
        let size = quantity::canonical(&settings.provider_volume_size);
        all.push(json!({ "name": "external-providers", "emptyDir": { "sizeLimit": size } }));
        all.push(match &request.user_config {
            Some(config) => config_map("base-config", &config.name),
            None => json!({ "name": "base-config", "emptyDir": {} }),
        });
        if let Some(claim) = &request.overrides().provider_cache_claim {
            all.push(json!({ "name": "provider-cache", "persistentVolumeClaim": { "claimName": claim } }));
        }
        all.push(json!({ "name": "merged-config", "emptyDir": {} }));
        all.push(config_map("scripts", &kinds::scripts(&request.name)));
    }
    let own = request.server().pod_overrides.iter().flat_map(|o| &o.volumes);
    all.extend(own.map(pruned));
    all
}

fn mount(volume: &str, path: &str, read_only: bool) -> Value {
    let mut mount = json!({ "name": volume, "mountPath": path });
    if read_only {
        mount["readOnly"] = true.into();
    }
    mount
}

/// A restricted security context. It sets no user: volumes are shared by group, files by umask.
fn restricted() -> Value {
    json!({ "allowPrivilegeEscalation": false, "capabilities": { "drop": ["ALL"] } })
}

/// The value as the API server stores it, without empty strings and `false`, so that the live object compares equal.
fn pruned(value: &impl Serialize) -> Value {
    fn prune(value: Value) -> Value {
        match value {
            Value::Object(map) => map
                .into_iter()
                .filter(|(_, v)| !matches!(v, Value::Null | Value::Bool(false)) && v.as_str() != Some(""))
                .map(|(k, v)| (k, prune(v)))
                .collect::<Map<_, _>>()
                .into(),
            Value::Array(list) => list.into_iter().map(prune).collect(),
            other => other,
        }
    }
    prune(json!(value))
}

/// Names of the user's environment variables that are ignored.
pub(super) fn ignored_env(request: &Request) -> Vec<&'static str> {
    if request.providers.is_empty() {
        return Vec::new();
    }
    let own = request.server().container_spec.as_ref();
    CONFIG_ENV
        .into_iter()
        .filter(|name| own.is_some_and(|c| c.env.iter().any(|v| v.name == *name)))
        .collect()
}

/// Hash in the annotations of a template.
pub(super) fn template_hash(template: &Value) -> &str {
    template["metadata"]["annotations"][labels::TEMPLATE]
        .as_str()
        .unwrap_or_default()
}

/// Hash of the template that a pod was created from.
pub(super) fn template_of(pod: &Pod) -> &str {
    pod.annotations().get(labels::TEMPLATE).map_or("", String::as_str)
}

/// Pods of this template that are not being deleted.
pub(super) fn of_template<'a>(pods: impl IntoIterator<Item = &'a Pod>, template: &str) -> Vec<&'a Pod> {
    pods.into_iter()
        .filter(|pod| pod.metadata.deletion_timestamp.is_none() && template_of(pod) == template)
        .collect()
}

#[cfg(test)]
mod tests {
    use super::pull_policy;

    #[test]
    fn a_tag_that_moves_is_pulled_each_time() {
        for image in ["registry:5000/x", "x", "registry.example/x:latest"] {
            assert_eq!(pull_policy(image), "Always", "{image}");
        }
        for image in ["registry:5000/x:1", "x@sha256:0", "x:latest@sha256:0"] {
            assert_eq!(pull_policy(image), "IfNotPresent", "{image}");
        }
    }
}
