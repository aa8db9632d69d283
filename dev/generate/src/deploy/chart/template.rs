//! Templates: the objects of a component, each behind its condition.

use std::slice;

use anyhow::{Context, Result};
use kube::ResourceExt as _;
use kube::core::DynamicObject;
use runway_cli::install::kinds;
use runway_dev_release::yaml::HEADER;
use runway_manifests::{
    AGGREGATE, Component, Identity, NAMESPACE, PERMISSION_POLICY, Release, confinement, console, gateway, pods, router,
};
use runway_operator::scope::FLAG;
use serde_json::{Value, json};

use super::marks::{control, ensure_unmarked, lines, mark, optional};
use super::{is_single, key, marks, provider, values};
use crate::deploy::monitoring;

/// Whether the console impersonates.
const IMPERSONATES: &str = "$.Values.console.impersonate.enabled";
/// Arguments for the audit log.
const AUDIT: &str = r#"(ternary list (list (printf "--audit-log=%s" $.Values.auditLog)) (empty $.Values.auditLog))"#;
/// Whether the cluster has ValidatingAdmissionPolicies.
const HAS_POLICIES: &str = "semverCompare \">=1.30.0-0\" $.Capabilities.KubeVersion.Version";
/// Path of the namespaces that controllers watch.
const WATCHED: &str = "$.Values.watchNamespaces";
/// A namespace in place of each of these.
const EACH: &str = "each-watched-namespace";
/// Label with the version of a program.
const VERSION: &str = "app.kubernetes.io/version";

/// Path of a component's values.
pub(super) fn path(component: &Component) -> String {
    match provider(component) {
        Some(name) => format!("$.Values.providers.{name}"),
        None => format!("$.Values.{}", key(component)),
    }
}

/// Beginning of a template: variables with the labels of all objects, and with the values for the pods of a component, which are those
/// of all components and its own.
pub(super) fn beginning(component: Option<&Component>) -> String {
    let mut text = format!("{HEADER}{{{{- $labels := include \"kubeairunway.labels\" . | fromYaml }}}}\n");
    if let Some(component) = component {
        let keys: Vec<String> = values::pod_keys().iter().map(|key| format!("\"{key}\"")).collect();
        let (keys, own) = (keys.join(" "), path(component));
        text.extend([
            "{{- $own := mergeOverwrite (deepCopy (pick .Values ",
            &keys,
            ")) (deepCopy ",
            &own,
            ") }}\n",
        ]);
    }
    text
}

/// The objects of a component.
pub(super) fn of_component(component: &Component) -> Result<String> {
    let all = Release {
        monitoring: true,
        engine_monitoring: true,
        policy: true,
        ..Release::default()
    };
    let objects = if component.name == console::NAME {
        console::console(&["--impersonate".to_owned()]).objects(&all)
    } else {
        component.objects(&all)
    };
    let enabled = format!("{}.enabled", path(component));
    let mut text = beginning(Some(component));
    for object in &objects {
        ensure_unmarked(object)?;
        let mut conditions = conditions(component, object);
        if !is_for_all(object) {
            conditions.insert(0, enabled.clone());
        }
        text.push_str(&behind(&conditions, object, &of_object(component, object)?));
    }
    text.push_str(&in_watched_namespaces(component, &[enabled])?);
    Ok(text)
}

/// Alerts, rules and dashboards.
pub(super) fn monitoring() -> Result<String> {
    let mut text = beginning(None);
    for (condition, objects) in [
        ("rules", monitoring::rules()?),
        ("dashboards", monitoring::dashboards()?),
    ] {
        let condition = format!("$.Values.monitoring.{condition}");
        for object in objects {
            text.push_str(&behind(slice::from_ref(&condition), &object, &opened(&object, None)?));
        }
    }
    Ok(text)
}

/// A template with its conditions, of which one is the part of the installation that has the object.
pub(super) fn behind(conditions: &[String], object: &DynamicObject, template: &str) -> String {
    let part = match object.namespace() {
        Some(_) => "$.Values.objects.namespaced",
        None => "$.Values.objects.cluster",
    };
    let mut text = format!("{{{{- if and {part}");
    for condition in conditions {
        let is_plain = !condition.contains(' ');
        text.extend(if is_plain {
            [" ", condition, ""]
        } else {
            [" (", condition, ")"]
        });
    }
    format!("{text} }}}}\n---\n{template}{{{{- end }}}}\n")
}

/// Whether an object of the core is there for all components: it does not depend on the core's controller.
fn is_for_all(object: &DynamicObject) -> bool {
    let is_role_of_users = object.labels().keys().any(|label| label.starts_with(AGGREGATE));
    let is_crd_of_core = kinds::kind(object) == "CustomResourceDefinition" && !object.name_any().ends_with("asya.sh");
    let is_for_models = ["Namespace", "PodMonitor"].contains(&kinds::kind(object));
    is_role_of_users || is_crd_of_core || is_for_models || object.name_any() == confinement::POLICY
}

fn conditions(component: &Component, object: &DynamicObject) -> Vec<String> {
    let id = kinds::id(object);
    let is_in = |all: &[DynamicObject]| all.iter().any(|one| kinds::id(one) == id);
    let conditions: &[&str] = match kinds::kind(object) {
        "Namespace" => &["$.Values.namespace.create"],
        "CustomResourceDefinition" => &["$.Values.crds.install"],
        "ServiceMonitor" => &["$.Values.monitoring.enabled"],
        "PodMonitor" => &["$.Values.monitoring.engines"],
        "ClusterRole" | "ClusterRoleBinding" if component.name == console::NAME => &[IMPERSONATES],
        "PodDisruptionBudget" => return vec![format!("gt (int {}.replicas) 1", path(component))],
        _ if object.name_any() == confinement::POLICY => &["$.Values.confinement.enabled", HAS_POLICIES],
        _ if is_in(&component.policy) => &["$.Values.policy.enabled"],
        _ if is_in(&component.permissions) => &["$.Values.policy.permissions", HAS_POLICIES],
        _ => &[],
    };
    conditions.iter().map(|condition| (*condition).to_owned()).collect()
}

/// The template of an object. The ClusterRole of a component that watches is smaller where it watches some namespaces only.
pub(super) fn of_object(component: &Component, object: &DynamicObject) -> Result<String> {
    let body = opened(object, Some(component))?;
    let is_limited =
        component.watches && kinds::kind(object).starts_with("ClusterRole") && object.name_any() == component.name;
    if !is_limited {
        return Ok(body);
    }
    let limited = limited(component, |role| {
        role.namespace().is_none() && role.types == object.types
    });
    let limited = limited.first().map(|role| opened(role, Some(component))).transpose()?;
    Ok(match limited {
        Some(limited) if limited == body => body,
        Some(limited) => format!("{{{{- if {WATCHED} }}}}\n{limited}{{{{- else }}}}\n{body}{{{{- end }}}}\n"),
        None => format!("{{{{- if not {WATCHED} }}}}\n{body}{{{{- end }}}}\n"),
    })
}

/// Roles and bindings of a component in each of the namespaces that it watches.
pub(super) fn in_watched_namespaces(component: &Component, conditions: &[String]) -> Result<String> {
    let roles = limited(component, |role| role.namespace().as_deref() == Some(EACH));
    let Some(first) = roles.first() else {
        return Ok(String::new());
    };
    let bodies: Vec<String> = roles
        .iter()
        .map(|role| opened(role, Some(component)))
        .collect::<Result<_>>()?;
    let bodies = bodies.join("---\n").replace(EACH, "{{ . | quote }}");
    let text = behind(conditions, first, &bodies);
    Ok(text.replacen("\n---\n", &format!("\n{{{{- range {WATCHED} }}}}\n---\n"), 1) + "{{- end }}\n")
}

/// Roles and bindings of a component that watches some namespaces only.
fn limited(component: &Component, is_wanted: impl Fn(&DynamicObject) -> bool) -> Vec<DynamicObject> {
    let namespaces = EACH.parse().unwrap_or_default();
    let roles = component.roles(Identity::ServiceAccount, &namespaces);
    roles.into_iter().filter(is_wanted).collect()
}

/// An object as a template.
fn opened(object: &DynamicObject, component: Option<&Component>) -> Result<String> {
    let mut value = serde_json::to_value(object)?;
    open(&mut value, component).with_context(|| format!("{} has another shape", kinds::id(object)))?;
    Ok(marks::template(&value)?.replace(NAMESPACE, "{{ $.Release.Namespace }}"))
}

/// Opens the places of an object that differ.
fn open(value: &mut Value, component: Option<&Component>) -> Option<()> {
    let kind = value["kind"].as_str()?.to_owned();
    open_labels(value, &kind)?;
    if let Some(choice) = value
        .pointer_mut("/metadata/annotations")
        .and_then(|all| all.get_mut(PERMISSION_POLICY))
    {
        *choice = json!(mark("$.Values.policy.permissions | quote"));
    }
    let webhooks = value.get_mut("webhooks").and_then(Value::as_array_mut);
    for webhook in webhooks.into_iter().flatten() {
        let named = format!("dict \"key\" \"kubernetes.io/metadata.name\" \"operator\" \"In\" \"values\" {WATCHED}");
        let selector = format!("ternary (dict) (dict \"matchExpressions\" (list ({named}))) (empty {WATCHED})");
        webhook["namespaceSelector"] = json!(mark(&format!("toJson ({selector})")));
    }
    match (kind.as_str(), component) {
        ("Deployment", Some(component)) => open_deployment(value, component)?,
        ("Job", Some(component)) => open_pod(value.pointer_mut("/spec/template")?, component)?,
        ("ServiceAccount", Some(_)) => {
            value["metadata"]["annotations"] = json!(optional("$own.serviceAccountAnnotations"));
        }
        ("ClusterRole", Some(component)) if component.name == console::NAME => {
            for (rule, list) in value["rules"].as_array_mut()?.iter_mut().zip(["users", "groups"]) {
                rule["resourceNames"] = json!(mark(&format!("toJson $.Values.console.impersonate.{list}")));
            }
        }
        ("NetworkPolicy", _) => open_network_policy(value)?,
        _ => {}
    }
    Some(())
}

/// Adds the labels of the release.
fn open_labels(value: &mut Value, kind: &str) -> Option<()> {
    let labels = value.pointer_mut("/metadata/labels")?.as_object_mut()?;
    for (label, wanted) in labels.iter_mut() {
        if label.starts_with(AGGREGATE) {
            *wanted = json!(mark("$.Values.roles.aggregate | quote"));
        }
    }
    labels.insert(VERSION.to_owned(), json!(mark("$.Chart.AppVersion | quote")));
    for (label, _) in monitoring::dashboard_labels().as_object().into_iter().flatten() {
        labels.remove(label);
    }
    let all = match kind {
        "ServiceMonitor" | "PodMonitor" | "PrometheusRule" => {
            "mergeOverwrite (deepCopy $.Values.monitoring.labels) $labels"
        }
        "ConfigMap" => "mergeOverwrite (deepCopy $.Values.monitoring.dashboardLabels) $labels",
        _ => "$labels",
    };
    labels.insert(lines(all), Value::Null);
    Some(())
}

/// The allowed clients of ports, unless all are.
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
        rule["from"] = json!(mark(&format!("toJson $.Values.networkPolicy.{name}")));
    }
    Some(())
}

fn open_deployment(value: &mut Value, component: &Component) -> Option<()> {
    value["metadata"]["labels"][VERSION] = json!(version());
    value["spec"]["replicas"] = if is_single(component) {
        json!(1)
    } else {
        json!(mark(&format!("{}.replicas", path(component))))
    };
    let template = value.pointer_mut("/spec/template")?;
    open_pod(template, component)?;
    let pod = template.get_mut("spec")?;
    let own = pod["containers"][0]["args"].as_array()?.clone();
    pod["containers"][0]["args"] = json!(arguments(component, &own));
    pod["containers"][0]["resources"] = json!(mark(&format!("toJson {}.resources", path(component))));
    if component.name == console::NAME {
        // The token is for impersonation only.
        let sources = pod["volumes"]
            .as_array_mut()?
            .last_mut()?
            .pointer_mut("/projected/sources")?;
        let sources = sources.as_array_mut()?;
        let token = sources
            .iter()
            .position(|source| source.get("serviceAccountToken").is_some())?;
        sources.insert(token + 1, json!(control("end")));
        sources.insert(token, json!(control(&format!("if {IMPERSONATES}"))));
    }
    Some(())
}

/// Opens what the values for pods set.
fn open_pod(template: &mut Value, component: &Component) -> Option<()> {
    let labels = template.pointer_mut("/metadata/labels")?.as_object_mut()?;
    labels.insert(VERSION.to_owned(), json!(version()));
    labels.insert(lines("mergeOverwrite (deepCopy $own.podLabels) $labels"), Value::Null);
    template["metadata"]["annotations"] = json!(optional("$own.podAnnotations"));
    let pod = template.get_mut("spec")?;
    let container = pod.pointer_mut("/containers/0")?;
    let program = release_image(container["image"].as_str()?)?.to_owned();
    container["image"] = json!(image(&program, "$own.image"));
    container["imagePullPolicy"] = json!(mark("$own.image.pullPolicy"));
    let environment = container["env"].as_array_mut()?;
    for variable in &mut *environment {
        // Programs that it starts are of the same release.
        if let Some(other) = variable["value"].as_str().and_then(release_image) {
            variable["value"] = json!(image(other, "$.Values.image"));
        }
    }
    environment.push(json!(lines("$own.extraEnv")));
    let name = &component.name;
    let spread = format!("dict \"constraints\" $own.topologySpreadConstraints \"component\" \"{name}\"");
    let spread = format!("(include \"kubeairunway.spread\" ({spread}) | fromJsonArray)");
    pod["topologySpreadConstraints"] = json!(optional(&spread));
    for name in [
        "affinity",
        "imagePullSecrets",
        "nodeSelector",
        "priorityClassName",
        "tolerations",
    ] {
        pod[name] = json!(optional(&format!("$own.{name}")));
    }
    Some(())
}

/// Label with the version of the pods.
fn version() -> String {
    mark("default $.Chart.AppVersion $own.image.tag | quote")
}

/// The image of a program by the values at a path.
fn image(program: &str, values: &str) -> String {
    let given = format!("dict \"image\" {values} \"program\" \"{program}\" \"release\" $.Chart.AppVersion");
    mark(&format!("include \"kubeairunway.image\" ({given})"))
}

/// The program whose image of a release this is.
fn release_image(image: &str) -> Option<&str> {
    let release = Release::default();
    let name = image.strip_prefix(&release.registry)?.strip_prefix('/')?;
    name.strip_suffix(&release.tag)?.strip_suffix(':')
}

/// Arguments of a component's container.
fn arguments(component: &Component, own: &[Value]) -> String {
    let values = path(component);
    let mut lists = if component.name == console::NAME {
        let own: Vec<String> = console::own_arguments().iter().map(|arg| format!("{arg:?}")).collect();
        let flags = ["users", "groups"]
            .map(|list| format!("(printf \"--impersonate-{list}=%s\" (join \",\" {values}.impersonate.{list}))"));
        vec![
            format!(
                "(list {} (printf \"--public-url=%s\" {values}.publicUrl))",
                own.join(" ")
            ),
            format!("{values}.extraArgs"),
            format!(
                "(ternary (list \"--impersonate\" {}) list {IMPERSONATES})",
                flags.join(" ")
            ),
        ]
    } else {
        let own: Vec<String> = own.iter().map(Value::to_string).collect();
        vec![format!("(list {})", own.join(" ")), format!("{values}.extraArgs")]
    };
    if [console::NAME, gateway::NAME, router::NAME].contains(&component.name.as_str()) {
        lists.push(AUDIT.to_owned());
    }
    lists.extend(component.watches.then(scope));
    // Without elements, concat gives null.
    mark(&format!("toJson (default list (concat {}))", lists.join(" ")))
}

/// List with the argument that limits a process to namespaces.
pub(super) fn scope() -> String {
    let flag = format!("(list (printf \"{FLAG}=%s\" (join \",\" {WATCHED})))");
    format!("(ternary list {flag} (empty {WATCHED}))")
}
