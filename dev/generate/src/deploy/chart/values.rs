//! The values of the chart: one table, from which `values.yaml`, `values.schema.json` and the reference page are written.
//!
//! To add a value, add it to [`table`], or to [`of_pods`] if each component can set it, and use it in `template.rs`.

use std::fmt::Write as _;

use anyhow::Result;
use k8s_openapi::api::core::v1::{Affinity, EnvVar, LocalObjectReference, Toleration, TopologySpreadConstraint};
use k8s_openapi::api::networking::v1::NetworkPolicyPeer;
use runway_dev_release::yaml::{HEADER, document};
use runway_manifests::{Component, component, console, gateway, pods, router, routes};
use schemars::JsonSchema;
use schemars::generate::SchemaSettings;
use serde_json::{Map, Value, json};

use crate::deploy::monitoring;

const INTRODUCTION: &str = "\
<!-- Made by `cargo xtask gen` from the code. Do not edit. -->
# Helm values

Values of the chart `kubeairunway`. Helm refuses unknown values and wrong types, and names the path: `values.schema.json` of the
chart describes all of them.
";

const OVERRIDES: &str = "
Each component can set these values for its own pods, such as `gateway.nodeSelector` or `providers.kaito.tolerations`. A map is merged
with that of all components; any other value replaces it, unless it is empty. `image` of a component has the fields `registry`,
`repository`, `tag`, `digest` and `pullPolicy`.
";

/// A value or a group of values.
pub(super) struct Field {
    /// Key.
    pub(super) name: String,
    /// Meaning, as comment and description.
    pub(super) about: String,
    /// Content.
    pub(super) kind: Kind,
}

/// Content of a [`Field`].
pub(super) enum Kind {
    /// Values below.
    Group(Vec<Field>),
    /// A value with its JSON schema, and its default if `values.yaml` contains it.
    Value { default: Option<Value>, schema: Value },
}

fn field(name: &str, about: &str, kind: Kind) -> Field {
    Field {
        name: name.to_owned(),
        about: about.to_owned(),
        kind,
    }
}

fn group(name: &str, about: &str, fields: Vec<Field>) -> Field {
    field(name, about, Kind::Group(fields))
}

fn value(name: &str, default: impl Into<Value>, schema: Value, about: &str) -> Field {
    let default = Some(default.into());
    field(name, about, Kind::Value { default, schema })
}

fn flag(name: &str, default: bool, about: &str) -> Field {
    value(name, default, json!({ "type": "boolean" }), about)
}

fn text(name: &str, default: &str, about: &str) -> Field {
    value(name, default, json!({ "type": "string" }), about)
}

fn list(name: &str, item: &Value, about: &str) -> Field {
    value(name, json!([]), json!({ "type": "array", "items": item }), about)
}

fn texts(name: &str, about: &str) -> Field {
    list(name, &json!({ "type": "string", "minLength": 1 }), about)
}

/// A map with any keys and these values.
fn map(name: &str, values: &Value, about: &str) -> Field {
    let schema = json!({ "type": "object", "additionalProperties": values });
    value(name, json!({}), schema, about)
}

/// Labels beside those that the chart sets itself.
fn labels(name: &str, about: &str) -> Field {
    let own = r"^(app\.kubernetes\.io/(component|instance|managed-by|name|part-of|version)|helm\.sh/chart|kubeairunway\.ai/managed-by)$";
    let schema = json!({
        "type": "object",
        "patternProperties": { own: false },
        "additionalProperties": { "type": "string" },
    });
    value(name, json!({}), schema, about)
}

fn digest() -> Value {
    json!({ "type": "string", "pattern": "^(sha256:[0-9a-f]{64})?$" })
}

fn pull_policy() -> Field {
    let schema = json!({ "type": "string", "enum": ["Always", "IfNotPresent", "Never"] });
    value("pullPolicy", "IfNotPresent", schema, "When the image is pulled")
}

/// The schema of a type of Kubernetes, without unknown fields.
fn kubernetes<T: JsonSchema>() -> Value {
    let settings = SchemaSettings::draft07().with(|settings| settings.inline_subschemas = true);
    let mut schema = settings.into_generator().into_root_schema_for::<T>().to_value();
    only_known_fields(&mut schema);
    schema
}

fn only_known_fields(schema: &mut Value) {
    match schema {
        Value::Object(fields) => {
            if fields.get("type").is_some() {
                for annotation in ["$schema", "title", "description", "format"] {
                    fields.remove(annotation);
                }
            }
            if fields.contains_key("properties") && !fields.contains_key("additionalProperties") {
                fields.insert("additionalProperties".to_owned(), json!(false));
            }
            fields.values_mut().for_each(only_known_fields);
        }
        Value::Array(all) => all.iter_mut().for_each(only_known_fields),
        _ => {}
    }
}

/// All values, in the order of `values.yaml`.
pub(super) fn table(components: &[Component]) -> Vec<Field> {
    let mut all = of_cluster();
    all.splice(0..0, of_pods());
    let (mut providers, mut others) = (Vec::new(), Vec::new());
    for component in components {
        match super::provider(component) {
            Some(name) => providers.push(of_component(component, name)),
            None => others.push(of_component(component, &super::key(component))),
        }
    }
    all.extend(others);
    all.push(group(
        "providers",
        "The controllers of the built-in providers",
        providers,
    ));
    all
}

/// Names of the values for pods, which each component can set for itself.
pub(super) fn pod_keys() -> Vec<String> {
    of_pods().into_iter().map(|field| field.name).collect()
}

/// Values for the pods of all components.
fn of_pods() -> Vec<Field> {
    vec![
        group(
            "image",
            "Images",
            vec![
                text("registry", component::REGISTRY, "Registry and path of the images"),
                text(
                    "tag",
                    "",
                    "Tag; if empty, the chart's appVersion with the digests of that release",
                ),
                pull_policy(),
                map("digests", &digest(), "Digests of a release by the name of the image"),
            ],
        ),
        list(
            "imagePullSecrets",
            &kubernetes::<LocalObjectReference>(),
            "Secrets with credentials for the registry, each as {name: …}",
        ),
        labels("podLabels", "Additional labels of pods"),
        map("podAnnotations", &json!({ "type": "string" }), "Annotations of pods"),
        map(
            "serviceAccountAnnotations",
            &json!({ "type": "string" }),
            "Annotations of ServiceAccounts, such as the role of a cloud",
        ),
        map(
            "nodeSelector",
            &json!({ "type": "string" }),
            "Labels that the nodes of the pods must have",
        ),
        list("tolerations", &kubernetes::<Toleration>(), "Taints that pods tolerate"),
        value(
            "affinity",
            json!({}),
            kubernetes::<Affinity>(),
            "Affinity of pods to nodes and other pods",
        ),
        value(
            "topologySpreadConstraints",
            json!([{ "maxSkew": 1, "topologyKey": "kubernetes.io/hostname", "whenUnsatisfiable": "ScheduleAnyway" }]),
            json!({ "type": "array", "items": kubernetes::<TopologySpreadConstraint>() }),
            "Spread of pods over nodes; a constraint without labelSelector counts the pods of the same component",
        ),
        text("priorityClassName", "", "PriorityClass of pods"),
        list(
            "extraEnv",
            &kubernetes::<EnvVar>(),
            "Additional environment variables, such as HTTPS_PROXY",
        ),
    ]
}

/// Values that are not about a single component.
fn of_cluster() -> Vec<Field> {
    vec![
        labels("commonLabels", "Additional labels of all objects and pods"),
        text(
            "auditLog",
            "",
            "Audit log of router, gateway of Asya and console (docs/operate/audit-log.md): - for stdout, or a file; empty for none",
        ),
        group(
            "namespace",
            "The namespace of the release",
            vec![flag(
                "create",
                false,
                "Create it with Pod Security labels. Helm cannot create the namespace that it installs into: use --create-namespace, or set this for `helm template`",
            )],
        ),
        group(
            "crds",
            "CustomResourceDefinitions. They are kept when the release is uninstalled",
            vec![flag("install", true, "Install and upgrade them")],
        ),
        texts(
            "watchNamespaces",
            "Namespaces that controllers watch: they get Roles in these instead of permissions everywhere; all if empty (docs/operate/install.md)",
        ),
        group(
            "objects",
            "Parts of an installation, for two releases by different administrators",
            vec![
                flag(
                    "cluster",
                    true,
                    "Objects without a namespace, which only an administrator of the cluster may create",
                ),
                flag("namespaced", true, "Objects in namespaces"),
            ],
        ),
        group(
            "roles",
            "The roles of users",
            vec![flag(
                "aggregate",
                true,
                "Aggregate them to Kubernetes' own roles view, edit and admin",
            )],
        ),
        group(
            "confinement",
            "Confinement of controllers (docs/operate/install.md#confinement-of-controllers)",
            vec![flag(
                "enabled",
                true,
                "Refuse their writes in kube-* and in their own namespace (ValidatingAdmissionPolicy, Kubernetes 1.30)",
            )],
        ),
        group(
            "policy",
            "ValidatingAdmissionPolicies for users (Kubernetes 1.30)",
            vec![
                flag(
                    "enabled",
                    false,
                    "Restrict each provider to users who may create its upstream objects",
                ),
                flag(
                    "permissions",
                    true,
                    "Require a permission of the user for fields such as serviceAccountName (docs/operate/threat-model.md)",
                ),
            ],
        ),
        group(
            "uninstallGuard",
            "A Job before the release is uninstalled, or an upgrade switches controllers off",
            vec![flag(
                "enabled",
                true,
                "Refuse to uninstall while ModelDeployments or AsyncActors exist whose deletion only the controllers complete",
            )],
        ),
        monitoring_values(),
        network_policy(),
        map(
            "global",
            &json!({}),
            "Values of a parent chart for all of its charts; not used by this one",
        ),
    ]
}

fn monitoring_values() -> Field {
    group(
        "monitoring",
        "Objects for the Prometheus operator and for Grafana",
        vec![
            flag("enabled", false, "ServiceMonitors for the components"),
            flag("engines", false, "PodMonitors for the engines of all models"),
            flag("rules", false, "PrometheusRules with alerts and recorded series"),
            flag("dashboards", false, "ConfigMaps with dashboards for Grafana's sidecar"),
            labels(
                "labels",
                "Additional labels of monitors and rules, by which your Prometheus selects them, such as release: kube-prometheus-stack",
            ),
            value(
                "dashboardLabels",
                monitoring::dashboard_labels(),
                json!({ "type": "object", "additionalProperties": { "type": "string" } }),
                "Labels by which Grafana's sidecar finds dashboards",
            ),
        ],
    )
}

fn network_policy() -> Field {
    let peers = json!({ "type": "array", "items": kubernetes::<NetworkPolicyPeer>() });
    let from = |name: &str, default: Value, about: &str| value(name, default, peers.clone(), about);
    group(
        "networkPolicy",
        "Allowed clients, as peers of a NetworkPolicy; an empty list admits all",
        vec![
            from("metricsFrom", pods::metrics_from(), "Clients of metrics"),
            from("consoleFrom", pods::console_from(), "Clients of the console"),
            from("gatewayFrom", pods::gateway_from(), "Clients of the gateway of Asya"),
            from("modelsFrom", pods::models_from(), "Clients of the model router"),
        ],
    )
}

/// Values of a component.
fn of_component(component: &Component, key: &str) -> Field {
    let is_on_request = super::is_on_request(component);
    let mut fields = vec![flag(
        "enabled",
        !is_on_request,
        if is_on_request {
            "Install it"
        } else {
            "Install its controller"
        },
    )];
    if !super::is_single(component) {
        fields.push(value(
            "replicas",
            component.replicas,
            json!({ "type": "integer", "minimum": 0 }),
            "Number of pods",
        ));
    }
    let quantities = json!({ "type": "object", "additionalProperties": { "type": ["string", "number"] } });
    let resources = json!({
        "type": "object",
        "properties": { "limits": quantities, "requests": quantities },
        "additionalProperties": false,
    });
    fields.push(value(
        "resources",
        pods::resources(component),
        resources,
        "Resources of a pod",
    ));
    fields.push(texts(
        "extraArgs",
        &format!("Additional arguments of {}", arguments(component)),
    ));
    fields.extend(special(component));
    fields.extend(of_pods().into_iter().map(overridden));
    group(key, &about(component), fields)
}

/// Examples of arguments.
fn arguments(component: &Component) -> &'static str {
    match component.name.as_str() {
        console::NAME => "`kubeairunway ui --login`, such as --oidc-issuer=https://id.example.com",
        gateway::NAME => "`asya-gateway`, such as --callback-host=hooks.example.com",
        router::NAME => "`kubeairunway-gateway`, such as --longest-hold=10m",
        routes::NAME => "`kubeairunway-gateway-routes`, such as --gateway=NAMESPACE/NAME, which is required",
        _ => "the controller",
    }
}

fn about(component: &Component) -> String {
    match component.name.as_str() {
        console::NAME => {
            "The web console, where users sign in. It has one pod, since sessions are in its memory".to_owned()
        }
        gateway::NAME => {
            "The front door of Asya (docs/how-to/asya-gateway.md). It has one pod, since its jobs are on a volume"
                .to_owned()
        }
        router::NAME => {
            "The model router (docs/how-to/router.md): one OpenAI-compatible address for all models".to_owned()
        }
        routes::NAME => {
            "The controller of HTTPRoutes (docs/how-to/gateway.md): models at a Gateway of the cluster".to_owned()
        }
        name => format!("{name} and its pods"),
    }
}

/// Values that only this component has.
fn special(component: &Component) -> Vec<Field> {
    if component.name == console::NAME {
        return vec![
            text("publicUrl", console::DEFAULT_URL, "The address for browsers"),
            group(
                "impersonate",
                "Calls to the cluster in the name of users",
                vec![
                    flag("enabled", false, "Whether it impersonates the signed-in user"),
                    texts("users", "Users that it may impersonate; any if both lists are empty"),
                    texts("groups", "Groups that it may impersonate"),
                ],
            ),
        ];
    }
    let Some(name) = super::provider(component) else {
        return Vec::new();
    };
    let about = "spec.settings of its InferenceProviderConfig (docs/reference/settings.md); a Job applies them. While empty, the settings in the cluster are kept";
    let schema = json!({ "$ref": format!("#/definitions/settings.{name}") });
    vec![value("settings", json!({}), schema, about)]
}

/// A value for the pods of all components, as a component can set it: not in `values.yaml`.
fn overridden(field: Field) -> Field {
    let schema = if field.name == "image" {
        let text = json!({ "type": "string" });
        json!({
            "type": "object",
            "properties": {
                "registry": text,
                "repository": text,
                "tag": text,
                "digest": digest(),
                "pullPolicy": schema(&pull_policy()),
            },
            "additionalProperties": false,
        })
    } else {
        json!({ "$ref": format!("#/definitions/{}", field.name) })
    };
    Field {
        kind: Kind::Value { default: None, schema },
        ..field
    }
}

/// JSON schema of a field.
fn schema(field: &Field) -> Value {
    let mut schema = match &field.kind {
        Kind::Group(fields) => closed(fields),
        Kind::Value { schema, .. } => schema.clone(),
    };
    if schema.get("$ref").is_none() {
        schema["description"] = json!(field.about);
    }
    schema
}

/// Schema of an object with these fields and no others.
fn closed(fields: &[Field]) -> Value {
    let properties: Map<_, _> = fields.iter().map(|f| (f.name.clone(), schema(f))).collect();
    json!({ "type": "object", "properties": properties, "additionalProperties": false })
}

/// `values.schema.json`.
pub(super) fn json_schema(table: &[Field]) -> Value {
    let mut all = closed(table);
    let mut definitions = Map::new();
    for Field { name, .. } in of_pods().iter().filter(|field| field.name != "image") {
        definitions.insert(name.clone(), all["properties"][name].take());
        all["properties"][name] = json!({ "$ref": format!("#/definitions/{name}") });
    }
    definitions.extend(settings());
    all["$schema"] = json!("http://json-schema.org/draft-07/schema#");
    all["title"] = json!("Values of the chart kubeairunway");
    all["definitions"] = Value::Object(definitions);
    // For a parent chart, which can install this one on a condition.
    all["properties"]["enabled"] = json!({ "type": "boolean", "description": "For the condition of a parent chart" });
    all
}

/// Schemas of the settings of providers.
fn settings() -> impl Iterator<Item = (String, Value)> {
    let providers = runway_manifests::built_in_providers().into_iter();
    providers.filter_map(|provider| {
        let mut schema = provider.settings()?.schema().as_value().clone();
        only_known_fields(&mut schema);
        Some((format!("settings.{}", provider.name()), schema))
    })
}

/// `values.yaml`.
pub(super) fn yaml(table: &[Field]) -> Result<String> {
    let mut text = HEADER.to_owned();
    for field in table {
        text.push('\n');
        write(&mut text, field, "")?;
    }
    Ok(text)
}

fn write(text: &mut String, field: &Field, indent: &str) -> Result<()> {
    let Field { name, about, kind } = field;
    match kind {
        Kind::Group(fields) => {
            writeln!(text, "{indent}# {about}\n{indent}{name}:")?;
            let inner = format!("{indent}  ");
            fields.iter().try_for_each(|field| write(text, field, &inner))
        }
        Kind::Value { default: None, .. } => Ok(()),
        Kind::Value {
            default: Some(default), ..
        } => {
            writeln!(text, "{indent}# {about}")?;
            let yaml = document(&json!({ name: default }))?;
            yaml.lines().try_for_each(|line| Ok(writeln!(text, "{indent}{line}")?))
        }
    }
}

/// The reference page.
pub(super) fn page(table: &[Field]) -> Result<String> {
    let mut page = INTRODUCTION.to_owned();
    let is_of_pods = |field: &&Field| pod_keys().contains(&field.name);
    heading(&mut page, "Pods of all components", table.iter().filter(is_of_pods))?;
    page.push_str(OVERRIDES);
    let (components, rest): (Vec<&Field>, Vec<&Field>) = table
        .iter()
        .filter(|field| !is_of_pods(field))
        .partition(|field| is_component(field));
    heading(&mut page, "Installation", rest.into_iter())?;
    heading(&mut page, "Components", components.into_iter())?;
    Ok(page)
}

/// Whether a field is a component, or a group of them.
fn is_component(field: &Field) -> bool {
    let Kind::Group(fields) = &field.kind else { return false };
    fields
        .iter()
        .any(|field| field.name == "resources" || is_component(field))
}

fn heading<'a>(page: &mut String, title: &str, fields: impl Iterator<Item = &'a Field>) -> Result<()> {
    writeln!(
        page,
        "\n## {title}\n\n| value | type | default | meaning |\n|---|---|---|---|"
    )?;
    fields.into_iter().try_for_each(|field| rows(page, field, ""))
}

fn rows(page: &mut String, field: &Field, above: &str) -> Result<()> {
    let path = format!("{above}{}", field.name);
    let about = field.about.replace('|', "\\|");
    match &field.kind {
        Kind::Group(fields) => {
            if is_component(field) {
                writeln!(page, "| `{path}` | | | {about} |")?;
            }
            let above = format!("{path}.");
            fields.iter().try_for_each(|field| rows(page, field, &above))
        }
        Kind::Value { default: None, .. } => Ok(()),
        Kind::Value {
            default: Some(default),
            schema,
        } => Ok(writeln!(
            page,
            "| `{path}` | {} | `{default}` | {about} |",
            shape(schema)
        )?),
    }
}

/// Type of a value in words.
fn shape(schema: &Value) -> String {
    if let Some(values) = schema["enum"].as_array() {
        let values: Vec<_> = values
            .iter()
            .filter_map(Value::as_str)
            .map(|v| format!("`{v}`"))
            .collect();
        return values.join(", ");
    }
    match schema["type"].as_str() {
        Some("array") => "list".to_owned(),
        Some("object") | None => "map".to_owned(),
        Some(plain) => plain.to_owned(),
    }
}
