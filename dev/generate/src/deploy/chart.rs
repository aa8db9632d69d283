//! The Helm chart: the same objects as `deploy/install.yaml`, with the places that differ from cluster to cluster left open.
//!
//! A place is left open by a mark in the object, which YAML writes as a string; the mark and its quotes then become Helm's
//! braces.

use anyhow::{Context, Result, ensure};
use kube::ResourceExt as _;
use kube::core::DynamicObject;
use runway_cli::install::kinds;
use runway_client::manifests::{
    AGGREGATE, Component, Identity, NAMESPACE, PERMISSION_POLICY, Release, component, confinement, console, gateway,
    pods, router, routes,
};
use runway_dev_release::yaml::{HEADER, document};
use runway_operator::scope::FLAG;
use serde_json::{Map, Value, json};

const FOLDER: &str = "deploy/charts/kubeairunway";
/// Path of the console's values.
const CONSOLE_VALUES: &str = ".Values.console";
/// Path of the gateway's values.
const GATEWAY_VALUES: &str = ".Values.asyaGateway";
/// Path of the model router's values.
const ROUTER_VALUES: &str = ".Values.gateway";
/// Path of the routes controller's values.
const ROUTES_VALUES: &str = ".Values.gatewayRoutes";
/// Whether it impersonates.
const IMPERSONATES: &str = ".Values.console.impersonate.enabled";
/// Arguments for the audit log.
const AUDIT: &str = r#"(ternary list (list (printf "--audit-log=%s" .Values.auditLog)) (empty .Values.auditLog))"#;
/// Whether the cluster has ValidatingAdmissionPolicies.
const HAS_POLICIES: &str = "(semverCompare \">=1.30.0-0\" .Capabilities.KubeVersion.Version)";
/// Path of the namespaces that controllers watch.
const WATCHED: &str = ".Values.watchNamespaces";
/// A namespace in place of each of these.
const EACH: &str = "each-watched-namespace";
/// Begin of a mark: nothing that objects hold.
const OPEN: char = '⟦';
/// End of a mark.
const CLOSE: char = '⟧';

const NOTES: &str = "\
KubeAIRunway is installed. See what it is made of:

  kubeairunway controller status
  kubeairunway provider list

The providers' own operators (KAITO, Dynamo, KubeRay) are installed with their own charts. The provider direct needs none.
";

const CONSOLE: &str = "\
The web console, where users sign in. It has one pod, since sessions are in its memory
# args: further settings of `kubeairunway ui --login`, as --oidc-issuer=https://id.example.com
# impersonate: call the cluster in the name of users; without lists, the pod's account may impersonate anybody";

const GATEWAY: &str = "\
The front door of Asya (docs/how-to/asya-gateway.md). It has one pod, since its jobs are on a volume
# args: settings of `asya-gateway`, as --callback-host=hooks.example.com";

const ROUTER: &str = "\
The model router (docs/how-to/gateway.md): one OpenAI-compatible address for all models
# args: settings of `kubeairunway-gateway`, as --longest-hold=10m";

const ROUTES: &str = "\
The controller of HTTPRoutes (docs/how-to/gateway.md#a-gateway-of-the-cluster): models at a Gateway of the cluster
# args: settings of `kubeairunway-gateway-routes`, with --gateway=NAMESPACE/NAME";

const PROVIDERS: &str = "\
The controllers of the built-in providers
# settings: spec.settings of the provider's InferenceProviderConfig (docs/operate/install.md lists them), as a hook that requires Helm 4,
# since the provider creates the object; while empty, the settings in the cluster are kept";

/// Server-side apply of the settings alone. Any deletion policy but the default, which would delete the registration first.
const SETTINGS: &str = "\
{{- with VALUES.settings }}
---
apiVersion: kubeairunway.ai/v1alpha1
kind: InferenceProviderConfig
metadata:
  annotations:
    helm.sh/hook: post-install,post-upgrade
    helm.sh/hook-delete-policy: hook-failed
  name: NAME
spec:
  settings: {{ toJson . }}
{{- end }}
";

fn console_values(component: &Component) -> Value {
    json!({
        "enabled": false,
        "publicUrl": console::DEFAULT_URL,
        "args": [],
        "impersonate": { "enabled": false, "users": [], "groups": [] },
        "resources": pods::resources(component),
    })
}

/// Every file of the chart.
pub(crate) fn files(components: &[Component]) -> Result<Vec<(String, String)>> {
    let mut files = vec![
        (format!("{FOLDER}/Chart.yaml"), chart()?),
        (format!("{FOLDER}/values.yaml"), values(components)?),
        (format!("{FOLDER}/templates/NOTES.txt"), NOTES.to_owned()),
    ];
    for component in components {
        let path = format!("{FOLDER}/templates/{}.yaml", component.name);
        files.push((path, template(component)?));
    }
    Ok(files)
}

fn chart() -> Result<String> {
    let version = component::TAG.trim_start_matches('v');
    let chart = json!({
        "apiVersion": "v2",
        "name": "kubeairunway",
        "description": "One control plane for AI serving on Kubernetes",
        "type": "application",
        "version": version,
        "appVersion": component::TAG,
        "kubeVersion": ">=1.26.0-0",
    });
    Ok(format!("{HEADER}{}", document(&chart)?))
}

/// Values with their defaults, which equal `deploy/install.yaml`.
fn values(components: &[Component]) -> Result<String> {
    let mut text = HEADER.to_owned();
    let mut add = |comment: &str, value: Value| -> Result<()> {
        text.extend(["\n# ", comment, "\n", &document(&value)?]);
        Ok(())
    };
    add(
        "Where the images are; an empty tag is the chart's appVersion, with the digests of that release",
        json!({ "image": { "registry": component::REGISTRY, "tag": "", "digests": {}, "pullPolicy": "IfNotPresent" } }),
    )?;
    add(
        "Audit log of router, gateway of Asya and console (docs/operate/audit-log.md): - for stdout, or a file; empty for none",
        json!({ "auditLog": "" }),
    )?;
    add(
        "Names of Secrets with credentials for the registry, each as {name: …}",
        json!({ "imagePullSecrets": [] }),
    )?;
    add(
        "Namespace with Pod Security labels. Helm cannot make the namespace it installs into: use --create-namespace, or set this for `helm template`",
        json!({ "namespace": { "create": false } }),
    )?;
    add(
        "CRDs stay when the chart is uninstalled",
        json!({ "crds": { "install": true } }),
    )?;
    add(
        "Namespaces that controllers watch: they get Roles in these instead of permissions everywhere; all if empty (docs/operate/install.md)",
        json!({ "watchNamespaces": [] }),
    )?;
    add(
        "Objects of a release: those without a namespace, which only an administrator of the cluster may create, and those in namespaces",
        json!({ "objects": { "cluster": true, "namespaced": true } }),
    )?;
    add(
        "Whether the roles of users are aggregated to Kubernetes' own roles view, edit and admin",
        json!({ "roles": { "aggregate": true } }),
    )?;
    add(
        "Controllers may not write in kube-* and in their own namespace (ValidatingAdmissionPolicy, Kubernetes 1.30)",
        json!({ "confinement": { "enabled": true } }),
    )?;
    add(
        "ValidatingAdmissionPolicies (Kubernetes 1.30). enabled: only users who may create the upstream objects of a provider may use it\n\
         # permissions: fields such as serviceAccountName require a permission of the user (docs/operate/threat-model.md)",
        json!({ "policy": { "enabled": false, "permissions": true } }),
    )?;
    add(
        "For the Prometheus operator: ServiceMonitors for the controllers, and PodMonitors for the engines of all models",
        json!({ "monitoring": { "enabled": false, "engines": false } }),
    )?;
    add(
        "NetworkPolicies: from where metrics may be read, and the console, the gateway of Asya and the model router be reached (peers as in a NetworkPolicy; an empty list: from anywhere)",
        json!({ "networkPolicy": { "metricsFrom": pods::metrics_from(), "consoleFrom": pods::console_from(), "gatewayFrom": pods::gateway_from(), "modelsFrom": pods::models_from() } }),
    )?;
    let mut providers = Map::new();
    for component in components {
        let settings = json!({ "replicas": component.replicas, "resources": pods::resources(component) });
        if component.name == console::NAME {
            add(CONSOLE, json!({ key(component): console_values(component) }))?;
            continue;
        }
        if component.name == gateway::NAME {
            let values = json!({ "enabled": false, "args": [], "resources": pods::resources(component) });
            add(GATEWAY, json!({ key(component): values }))?;
            continue;
        }
        let comment = match component.name.as_str() {
            router::NAME => Some(ROUTER),
            routes::NAME => Some(ROUTES),
            _ => None,
        };
        if let Some(comment) = comment {
            let mut values = settings;
            values["enabled"] = json!(false);
            values["args"] = json!([]);
            add(comment, json!({ key(component): values }))?;
            continue;
        }
        match provider(component) {
            Some(name) => {
                let mut settings = settings;
                settings["enabled"] = json!(true);
                settings["settings"] = json!({});
                providers.insert(name.to_owned(), settings);
            }
            None => add(
                &format!("The pods of {}", component.name),
                json!({ key(component): settings }),
            )?,
        }
    }
    add(PROVIDERS, json!({ "providers": providers }))?;
    Ok(text)
}

/// The name of the provider whose controller this is.
fn provider(component: &Component) -> Option<&str> {
    component.name.strip_suffix("-provider")
}

/// Name of a component's values, if it is no provider: `kubeairunway-controller` is `controller`.
fn key(component: &Component) -> String {
    let name = component.name.trim_start_matches("kubeairunway-");
    let mut words = name.split('-');
    let first = words.next().unwrap_or_default().to_owned();
    words.fold(first, |key, word| {
        let mut letters = word.chars();
        let head: String = letters.next().into_iter().flat_map(char::to_uppercase).collect();
        format!("{key}{head}{}", letters.as_str())
    })
}

/// A component's objects with everything optional, each behind its condition.
fn template(component: &Component) -> Result<String> {
    let values = match provider(component) {
        Some(name) => format!(".Values.providers.{name}"),
        None => format!(".Values.{}", key(component)),
    };
    let all = Release {
        monitoring: true,
        engine_monitoring: true,
        policy: true,
        ..Release::default()
    };
    let policies: Vec<String> = component.policy.iter().map(kinds::id).collect();
    let permissions: Vec<String> = component.permissions.iter().map(kinds::id).collect();
    let is_console = component.name == console::NAME;
    let on_request = [console::NAME, gateway::NAME, router::NAME, routes::NAME];
    let is_optional = on_request.contains(&component.name.as_str()) || provider(component).is_some();
    let mut text = HEADER.to_owned();
    if is_optional {
        text.extend(["{{- if ", &values, ".enabled }}\n"]);
    }
    let objects = if is_console {
        console::console(&["--impersonate".to_owned()]).objects(&all)
    } else {
        component.objects(&all)
    };
    for object in objects {
        let condition = match kinds::kind(&object) {
            "Namespace" => Some(".Values.namespace.create".to_owned()),
            "CustomResourceDefinition" => Some(".Values.crds.install".to_owned()),
            "ServiceMonitor" => Some(".Values.monitoring.enabled".to_owned()),
            "PodMonitor" => Some(".Values.monitoring.engines".to_owned()),
            "ClusterRole" | "ClusterRoleBinding" if is_console => Some(IMPERSONATES.to_owned()),
            "PodDisruptionBudget" => Some(format!("gt (int {values}.replicas) 1")),
            _ if object.name_any() == confinement::POLICY => {
                Some(format!("and .Values.confinement.enabled {HAS_POLICIES}"))
            }
            _ if policies.contains(&kinds::id(&object)) => Some(".Values.policy.enabled".to_owned()),
            _ if permissions.contains(&kinds::id(&object)) => {
                Some(format!("and .Values.policy.permissions {HAS_POLICIES}"))
            }
            _ => None,
        };
        let is_limited =
            component.watches && kinds::kind(&object) == "ClusterRole" && object.name_any() == component.name;
        let mut body = opened(&object, component, &values)?;
        if is_limited {
            let limited = limited(component, |role| {
                role.namespace().is_none() && role.types == object.types
            });
            let limited = opened(limited.first().context("no ClusterRole")?, component, &values)?;
            body = format!("{{{{- if {WATCHED} }}}}\n{limited}{{{{- else }}}}\n{body}{{{{- end }}}}\n");
        }
        let is_wanted = if object.namespace().is_some() {
            "namespaced"
        } else {
            "cluster"
        };
        let is_wanted = format!(".Values.objects.{is_wanted}");
        let condition = match condition {
            Some(condition) => format!("and {is_wanted} ({condition})"),
            None => is_wanted,
        };
        text.extend(["{{- if ", &condition, " }}\n---\n", &body, "{{- end }}\n"]);
    }
    let roles = limited(component, |role| role.namespace().as_deref() == Some(EACH));
    if !roles.is_empty() {
        text.extend(["{{- if .Values.objects.namespaced }}\n{{- range ", WATCHED, " }}\n"]);
        for role in roles {
            let body = opened(&role, component, &values)?;
            // The dot is a namespace here.
            let body = body
                .replace("{{ .Release", "{{ $.Release")
                .replace(EACH, "{{ . | quote }}");
            text.extend(["---\n", &body]);
        }
        text.push_str("{{- end }}\n{{- end }}\n");
    }
    if let Some(name) = provider(component) {
        text.push_str(&SETTINGS.replace("VALUES", &values).replace("NAME", name));
    }
    if is_optional {
        text.push_str("{{- end }}\n");
    }
    Ok(text)
}

/// Roles and bindings of a component that watches some namespaces only.
fn limited(component: &Component, is_wanted: impl Fn(&DynamicObject) -> bool) -> Vec<DynamicObject> {
    let namespaces = EACH.parse().unwrap_or_default();
    let roles = component.roles(Identity::ServiceAccount, &namespaces);
    roles.into_iter().filter(is_wanted).collect()
}

/// An object as Helm reads it.
fn opened(object: &DynamicObject, component: &Component, values: &str) -> Result<String> {
    let mut value = serde_json::to_value(object)?;
    let before = value.to_string();
    ensure!(
        !before.contains(OPEN) && !before.contains(CLOSE),
        "{} holds a mark",
        kinds::id(object)
    );
    let shape = || format!("{} has another shape", kinds::id(object));
    if kinds::kind(object) == "Deployment" {
        open_deployment(&mut value, component, values).with_context(shape)?;
    }
    if kinds::kind(object) == "NetworkPolicy" {
        open_network_policy(&mut value).with_context(shape)?;
    }
    if values == GATEWAY_VALUES && kinds::kind(object) == "Deployment" {
        value["spec"]["replicas"] = json!(1);
    }
    let labels = value.pointer_mut("/metadata/labels").and_then(Value::as_object_mut);
    for (label, wanted) in labels.into_iter().flatten() {
        if label.starts_with(AGGREGATE) {
            *wanted = json!(mark(".Values.roles.aggregate | quote"));
        }
    }
    if let Some(choice) = value
        .pointer_mut("/metadata/annotations")
        .and_then(|annotations| annotations.get_mut(PERMISSION_POLICY))
    {
        *choice = json!(mark(".Values.policy.permissions | quote"));
    }
    let webhooks = value.get_mut("webhooks").and_then(Value::as_array_mut);
    for webhook in webhooks.into_iter().flatten() {
        let named = format!("dict \"key\" \"kubernetes.io/metadata.name\" \"operator\" \"In\" \"values\" {WATCHED}");
        let selector = format!("ternary (dict) (dict \"matchExpressions\" (list ({named}))) (empty {WATCHED})");
        webhook["namespaceSelector"] = json!(mark(&format!("toJson ({selector})")));
    }
    if values == CONSOLE_VALUES {
        open_console(&mut value, kinds::kind(object)).with_context(shape)?;
    }
    let yaml = document(&value)?;
    // Braces of ours are none of Helm's.
    let yaml = yaml.replace("{{", &mark("\"{{\""));
    let yaml = yaml.replace(NAMESPACE, &mark(".Release.Namespace"));
    Ok(braces(&yaml))
}

fn mark(expression: &str) -> String {
    format!("{OPEN}{expression}{CLOSE}")
}

/// The image of a program, as the values say.
fn image(program: &str) -> String {
    let (registry, tag) = (".Values.image.registry", "default .Chart.AppVersion .Values.image.tag");
    let digest = format!("with and (not .Values.image.tag) (get .Values.image.digests \"{program}\")");
    let digest = format!("{}@{}{}", mark(&digest), mark("."), mark("end"));
    format!("{}/{program}:{}{digest}", mark(registry), mark(tag))
}

/// The program whose image of a release this is.
fn release_image<'a>(release: &Release, image: &'a str) -> Option<&'a str> {
    let name = image.strip_prefix(&release.registry)?.strip_prefix('/')?;
    name.strip_suffix(&release.tag)?.strip_suffix(':')
}

/// From where ports are reached, where it is not from anywhere.
fn open_network_policy(value: &mut Value) -> Option<()> {
    for rule in value.pointer_mut("/spec/ingress")?.as_array_mut()? {
        let name = match rule.get("from") {
            None => continue,
            Some(from) if *from == pods::metrics_from() => "metricsFrom",
            Some(from) if *from == pods::console_from() => "consoleFrom",
            Some(from) if *from == pods::gateway_from() => "gatewayFrom",
            Some(from) if *from == pods::models_from() => "modelsFrom",
            Some(_) => return None,
        };
        rule["from"] = json!(mark(&format!("toJson .Values.networkPolicy.{name}")));
    }
    Some(())
}

/// Arguments of a component's container, with the namespaces that it watches.
fn arguments(component: &Component, own: &[Value], values: &str) -> String {
    let own: Vec<String> = own.iter().map(Value::to_string).collect();
    let mut lists = vec![format!("(list {})", own.join(" "))];
    if [GATEWAY_VALUES, ROUTER_VALUES, ROUTES_VALUES].contains(&values) {
        lists.push(format!("{values}.args"));
    }
    if [GATEWAY_VALUES, ROUTER_VALUES].contains(&values) {
        lists.push(AUDIT.to_owned());
    }
    if component.watches {
        let scope = format!("(list (printf \"{FLAG}=%s\" (join \",\" {WATCHED})))");
        lists.push(format!("(ternary list {scope} (empty {WATCHED}))"));
    }
    // Without elements, concat gives null.
    mark(&format!("toJson (default list (concat {}))", lists.join(" ")))
}

fn open_deployment(value: &mut Value, component: &Component, values: &str) -> Option<()> {
    for labels in ["/metadata/labels", "/spec/template/metadata/labels"] {
        value.pointer_mut(labels)?["app.kubernetes.io/version"] =
            json!(mark("default .Chart.AppVersion .Values.image.tag | quote"));
    }
    value["spec"]["replicas"] = json!(mark(&format!("{values}.replicas")));
    let pod = value.pointer_mut("/spec/template/spec")?;
    let container = pod.pointer_mut("/containers/0")?;
    let program = release_image(&Release::default(), container["image"].as_str()?)?.to_owned();
    container["image"] = json!(image(&program));
    // Some start other programs of this release.
    let release = Release::default();
    for variable in container
        .get_mut("env")
        .and_then(Value::as_array_mut)
        .into_iter()
        .flatten()
    {
        let other = release_image(&release, variable["value"].as_str().unwrap_or_default()).map(image);
        if let Some(other) = other {
            variable["value"] = json!(other);
        }
    }
    let own = container["args"].as_array()?.clone();
    container["args"] = json!(arguments(component, &own, values));
    container["imagePullPolicy"] = json!(mark(".Values.image.pullPolicy"));
    container["resources"] = json!(mark(&format!("toJson {values}.resources")));
    // Left out by Helm when it is empty, as it is in every other form; by way of $, since `with` makes the dot another.
    pod["imagePullSecrets"] = json!(mark("toJson $.Values.imagePullSecrets"));
    Some(())
}

/// Opens the places of the console that differ: its address, and impersonation.
fn open_console(value: &mut Value, kind: &str) -> Option<()> {
    match kind {
        "Deployment" => {
            value["spec"]["replicas"] = json!(1);
            let pod = value.pointer_mut("/spec/template/spec")?;
            let own: Vec<String> = console::own_arguments().iter().map(|arg| format!("{arg:?}")).collect();
            let impersonate = ["users", "groups"].map(|list| {
                format!("(printf \"--impersonate-{list}=%s\" (join \",\" {CONSOLE_VALUES}.impersonate.{list}))")
            });
            pod["containers"][0]["args"] = json!(mark(&format!(
                "toJson (concat (list {} (printf \"--public-url=%s\" {CONSOLE_VALUES}.publicUrl)) {CONSOLE_VALUES}.args \
                 (ternary (list \"--impersonate\" {}) list {IMPERSONATES}) {AUDIT})",
                own.join(" "),
                impersonate.join(" "),
            )));
            let sources = pod["volumes"]
                .as_array_mut()?
                .last_mut()?
                .pointer_mut("/projected/sources")?;
            let sources = sources.as_array_mut()?;
            let token = sources
                .iter()
                .position(|source| source.get("serviceAccountToken").is_some())?;
            sources.insert(token + 1, json!(mark("- end")));
            sources.insert(token, json!(mark(&format!("- if {IMPERSONATES}"))));
        }
        "ClusterRole" => {
            for (rule, list) in value["rules"].as_array_mut()?.iter_mut().zip(["users", "groups"]) {
                rule["resourceNames"] = json!(mark(&format!("toJson {CONSOLE_VALUES}.impersonate.{list}")));
            }
        }
        _ => {}
    }
    Some(())
}

/// Marks, and the quotes around a value that begins with one, become braces.
fn braces(yaml: &str) -> String {
    let mut text = String::new();
    for line in yaml.lines() {
        let line = match line.split_once(": ") {
            Some((key, value)) if value.trim_matches('"').starts_with(OPEN) => {
                let bare = value
                    .strip_prefix('"')
                    .and_then(|v| v.strip_suffix('"'))
                    .unwrap_or(value);
                format!("{key}: {}", bare.replace("\\\"", "\""))
            }
            // An item that is a condition is none.
            _ => match line
                .trim()
                .strip_prefix("- ")
                .map(|item| item.trim_matches(['"', '\'']))
            {
                Some(item) if item.starts_with("⟦- ") => item.replace("⟦- ", "{{- "),
                _ => line.to_owned(),
            },
        };
        // Not the fields of this name in CRDs.
        if line.trim_start().starts_with("imagePullSecrets:") && line.contains("$.Values.imagePullSecrets") {
            text.extend(["{{- with .Values.imagePullSecrets }}\n", &line, "\n{{- end }}\n"]);
        } else {
            text.push_str(&line);
            text.push('\n');
        }
    }
    text.replace(OPEN, "{{ ").replace(CLOSE, " }}")
}
