//! Manifests of the product, generated from code. `cargo xtask gen` writes them to `deploy/`, `kubeairunway controller install`
//! applies them, and the test bed applies those that controllers outside a cluster need.
//!
//! | module | content |
//! |---|---|
//! | [`component`] | a program of the product, and the list of its objects |
//! | `authority` | HTTPS for callers, with a certificate authority of the program |
//! | [`pods`] | Deployment, Services, PodDisruptionBudget, NetworkPolicy of a component |
//! | [`engines`] | the optional PodMonitors for the engines of models |
//! | [`roles`] | permissions of controllers and users |
//! | [`console`] | the optional web console |
//! | [`gateway`] | the optional front door of Asya |
//! | [`router`] | the optional model router |
//! | [`routes`] | the optional controller of HTTPRoutes at a Gateway |
//! | [`models`] | the optional NetworkPolicies for the pods of models |
//! | [`permissions`] | the ValidatingAdmissionPolicies that require permissions of users for single fields |
//! | [`confinement`] | the ValidatingAdmissionPolicy that keeps controllers out of the namespaces of the cluster |
//! | [`policy`] | the optional ValidatingAdmissionPolicies, which restrict providers to users |
//!
//! Add a new program of the product as a [`Component`] to [`components`].

mod authority;
pub mod component;
pub mod confinement;
pub mod console;
pub mod engines;
pub mod gateway;
mod metadata;
pub mod models;
mod objects;
pub mod permissions;
pub mod pods;
pub mod policy;
pub mod roles;
pub mod router;
pub mod routes;

use std::sync::Arc;

use k8s_openapi::api::apps::v1::Deployment;
use k8s_openapi::api::core::v1::Namespace;
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::core::{DynamicObject, ObjectMeta};
use kube::{CustomResourceExt, ResourceExt};
use runway_api::{AsyncActor, InferenceProviderConfig, LlamaStackDistribution, ModelDeployment, labels};
use runway_core::admission::manifests::{mutating, validating};
use runway_operator::scope::Namespaces;
use runway_operator::webhook::Endpoint;
use runway_provider::Provider;
use serde_json::Value;

pub use component::{Claim, Component, Content, Folder, Origin, Port, Release};
pub use metadata::{
    AGGREGATE, COMPONENT_LABEL, NAMESPACE, OLDEST_KUBERNETES, PERMISSION_POLICY, TRANSPORTS, WEBHOOK_SECRET,
    WEBHOOK_SERVICE,
};
use metadata::{labelled, object, ours};
pub use roles::Identity;

/// Port of the core's webhooks.
const WEBHOOK_PORT: u16 = 9443;

/// The CRD of every kind of the product.
pub fn all_crds() -> Vec<CustomResourceDefinition> {
    crds().into_iter().chain(asya().crds).collect()
}

/// The CRDs that every installation has.
pub fn crds() -> [CustomResourceDefinition; 3] {
    [
        ModelDeployment::crd(),
        InferenceProviderConfig::crd(),
        LlamaStackDistribution::crd(),
    ]
    .map(|crd| kept(crd, labels::CORE_MANAGER))
}

/// A CRD as it is installed.
fn kept(mut crd: CustomResourceDefinition, component: &str) -> CustomResourceDefinition {
    crd.labels_mut().extend(ours(component));
    // Helm would take every object of its kind away with the chart.
    crd.annotations_mut()
        .insert("helm.sh/resource-policy".to_owned(), "keep".to_owned());
    crd
}

/// The providers that come with the product, without settings of an installation.
pub fn built_in_providers() -> Vec<Arc<dyn Provider>> {
    vec![
        Arc::new(runway_provider_kaito::Kaito::default()),
        Arc::new(runway_provider_dynamo::Dynamo::default()),
        Arc::new(runway_provider_kuberay::KubeRay::default()),
        Arc::new(runway_provider_direct::Direct::default()),
    ]
}

/// Every program of the product, also those that are there only for those who ask for them.
pub fn all_components() -> Vec<Component> {
    components().into_iter().chain(on_request()).collect()
}

/// Every program that an installation of everything has, the core first.
pub fn components() -> Vec<Component> {
    [core()].into_iter().chain(beside_core()).collect()
}

/// The providers and operators.
fn beside_core() -> Vec<Component> {
    let providers = built_in_providers();
    let providers = providers.iter().map(|p| provider(p.as_ref()));
    providers.chain([asya(), llama_stack()]).collect()
}

/// Programs that are installed on request only.
fn on_request() -> [Component; 4] {
    [
        console::console(&[]),
        gateway::gateway(),
        router::router(),
        routes::routes(),
    ]
}

/// The AsyncActor operator.
pub fn asya() -> Component {
    let (policy, binding) = runway_asya_operator::policy::policy();
    let (variables, folders) = transports();
    Component {
        images: vec![("ASYA_SIDECAR_IMAGE", "asya-sidecar")],
        variables,
        folders,
        access: runway_asya_operator::access(),
        access_in_namespace: runway_asya_operator::access_in_namespace(),
        crds: vec![kept(AsyncActor::crd(), labels::ASYA_MANAGER)],
        // Not by choice: without it, who may make AsyncActors may change every workload of the namespace.
        extra: [object(&policy), object(&binding)]
            .map(|object| labelled(object, labels::ASYA_MANAGER))
            .into(),
        ..Component::new(labels::ASYA_MANAGER)
    }
}

/// Variables and folders with the transports of Asya.
fn transports() -> (Vec<(&'static str, String)>, Vec<Folder>) {
    let (transports, secrets) = ("/etc/asya", "/var/run/secrets/asya");
    let variables = vec![
        ("ASYA_TRANSPORT_CONFIG", format!("{transports}/transports.json")),
        ("ASYA_SECRETS_DIR", secrets.to_owned()),
    ];
    let folders = vec![
        Folder {
            name: "transports",
            path: transports.to_owned(),
            content: Content::ConfigMap(TRANSPORTS),
        },
        Folder {
            name: "secrets",
            path: format!("{secrets}/{TRANSPORTS}"),
            content: Content::Secret(TRANSPORTS),
        },
    ];
    (variables, folders)
}

/// The core controller, with the objects that all components need.
pub fn core() -> Component {
    let endpoint = Endpoint::Service {
        namespace: NAMESPACE.to_owned(),
        name: WEBHOOK_SERVICE.to_owned(),
        port: 443,
    };
    let webhooks = [object(&mutating(&endpoint)), object(&validating(&endpoint))];
    let mut core = Component {
        // Both pods serve admission, so that one can stop without an interruption.
        replicas: 2,
        ports: vec![Port {
            name: "webhook",
            number: WEBHOOK_PORT,
            service: (WEBHOOK_SERVICE.to_owned(), 443),
            https: false,
            from: Origin::Anywhere,
        }],
        access: runway_core::access(),
        access_in_namespace: runway_core::access_in_namespace(WEBHOOK_SECRET),
        first: vec![object(&namespace())],
        crds: crds().into(),
        extra: roles::of_users()
            .into_iter()
            .chain(webhooks.map(|webhook| labelled(webhook, labels::CORE_MANAGER)))
            .collect(),
        pod_monitors: engines::pod_monitors(),
        ..Component::new(labels::CORE_MANAGER)
    };
    let others: Vec<Component> = beside_core().into_iter().chain(on_request()).collect();
    let confinement = confinement::policy([&core].into_iter().chain(&others));
    core.extra.extend(confinement);
    core
}

/// A provider's controller.
pub fn provider(provider: &dyn Provider) -> Component {
    Component {
        access: runway_provider::access(provider),
        access_in_namespace: runway_provider::access_in_namespace(provider),
        access_from_outside: runway_provider::access_from_outside(),
        policy: policy::of_provider(provider),
        ..Component::new(&labels::provider_manager(provider.name()))
    }
}

/// The Llama Stack operator.
pub fn llama_stack() -> Component {
    let name = labels::llama_stack::MANAGER;
    Component {
        args: vec!["run".to_owned(), format!("--container-name={name}")],
        access: runway_llama_stack_operator::access(),
        access_in_namespace: runway_llama_stack_operator::access_in_namespace(),
        ..Component::new(name)
    }
}

/// The roles of a provider's controller.
pub fn provider_roles(provider: &dyn Provider, identity: Identity) -> Vec<DynamicObject> {
    self::provider(provider).roles(identity, &Namespaces::default())
}

/// Objects for controllers outside of the cluster that watch these namespaces: all but CRDs and pods, in apply order.
pub fn objects(endpoint: &Endpoint, identity: Identity, namespaces: &Namespaces) -> Vec<DynamicObject> {
    let mut all = vec![object(&namespace())];
    all.extend(
        components()
            .iter()
            .flat_map(|component| component.roles(identity, namespaces)),
    );
    all.extend([object(&mutating(endpoint)), object(&validating(endpoint))]);
    all
}

/// Takes out what an older API server does not know and can do without: matchConditions of webhooks, which came with 1.28 and
/// only spare calls that the webhooks would let through, and admission policies, which came with 1.30. Returns whether it took out
/// policies.
pub fn fit(objects: &mut Vec<DynamicObject>, minor: u32) -> bool {
    if minor < 28 {
        for webhook in objects
            .iter_mut()
            .filter_map(|o| o.data.get_mut("webhooks"))
            .filter_map(Value::as_array_mut)
            .flatten()
        {
            if let Some(webhook) = webhook.as_object_mut() {
                webhook.remove("matchConditions");
            }
        }
    }
    let before = objects.len();
    if minor < policy::OLDEST_KUBERNETES {
        objects.retain(|o| {
            let kind = o.types.as_ref().map_or("", |types| types.kind.as_str());
            !kind.starts_with("ValidatingAdmissionPolicy")
        });
    }
    objects.len() < before
}

/// Namespaces that an installed component watches, by the arguments of its container.
pub fn watched_by(deployment: &Deployment) -> Namespaces {
    let pod = deployment.spec.as_ref().and_then(|spec| spec.template.spec.as_ref());
    let container = pod.and_then(|pod| pod.containers.first());
    let args = container.and_then(|container| container.args.as_deref());
    Namespaces::in_arguments(args.unwrap_or_default())
}

fn namespace() -> Namespace {
    let mut labels = ours(labels::CORE_MANAGER);
    labels.extend(
        ["enforce", "warn", "audit"]
            .map(|mode| (format!("pod-security.kubernetes.io/{mode}"), "restricted".to_owned())),
    );
    Namespace {
        metadata: ObjectMeta {
            name: Some(NAMESPACE.to_owned()),
            labels: Some(labels),
            ..ObjectMeta::default()
        },
        ..Namespace::default()
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn an_older_server_gets_what_it_knows() {
        let with = |objects: &[DynamicObject]| serde_json::to_string(objects).unwrap().contains("matchConditions");
        let mut objects = core().objects(&Release::default());
        let all = objects.len();
        assert!(!fit(&mut objects, 30));
        assert_eq!(objects.len(), all);
        assert!(fit(&mut objects, 28));
        assert!(with(&objects));
        assert!(!fit(&mut objects, 27));
        assert!(!with(&objects));
        // The policies on the controllers and on users, and their bindings.
        assert_eq!(objects.len(), all - 4);
    }

    #[test]
    fn roles_in_namespaces_hold_the_rules_of_the_cluster_role() {
        let limited = Release {
            namespaces: "team-a,team-b".parse().unwrap(),
            ..Release::default()
        };
        let rules = |objects: &[DynamicObject], kind: &str, namespace: Option<&str>| -> BTreeSet<String> {
            let of_kind = objects
                .iter()
                .filter(|o| o.types.as_ref().is_some_and(|t| t.kind == kind));
            let here = of_kind.filter(|o| o.namespace().as_deref() == namespace);
            let rules = here.filter_map(|o| o.data["rules"].as_array()).flatten();
            let resources = rules.flat_map(|rule| {
                let resources = rule["resources"].as_array().into_iter().flatten();
                resources.map(move |resource| format!("{}{resource}{}", rule["apiGroups"], rule["verbs"]))
            });
            resources.collect()
        };
        for component in all_components().iter().filter(|c| c.watches) {
            // The roles of users are the same.
            let of = |release: &Release| component.roles(Identity::ServiceAccount, &release.namespaces);
            let (everywhere, within) = (of(&Release::default()), of(&limited));
            let mut both = rules(&within, "ClusterRole", None);
            assert!(!both.is_empty(), "{}", component.name);
            let team_a = rules(&within, "Role", Some("team-a"));
            assert_eq!(team_a, rules(&within, "Role", Some("team-b")));
            assert!(both.is_disjoint(&team_a), "{}", component.name);
            both.extend(team_a);
            assert_eq!(both, rules(&everywhere, "ClusterRole", None), "{}", component.name);
            let deployment = pods::deployment(component, &limited).data.to_string();
            assert!(
                deployment.contains("--watch-namespaces=team-a,team-b"),
                "{}",
                component.name
            );
        }
    }

    #[test]
    fn choices_of_an_installation_change_roles_and_webhooks() {
        let shown = |release: &Release| serde_json::to_string(&core().objects(release)).unwrap();
        let standard = shown(&Release::default());
        assert!(standard.contains(r#"aggregate-to-edit":"true"#) && !standard.contains(r#""values":["team-a"]"#));
        let other = shown(&Release {
            aggregation: false,
            namespaces: "team-a".parse().unwrap(),
            ..Release::default()
        });
        assert!(other.contains(r#"aggregate-to-edit":"false"#) && !other.contains(r#"aggregate-to-edit":"true"#));
        assert_eq!(
            other.matches(r#""values":["team-a"]"#).count(),
            2,
            "one for each webhook"
        );
    }

    #[test]
    fn no_two_objects_are_one() {
        let release = Release {
            monitoring: true,
            engine_monitoring: true,
            policy: true,
            ..Release::default()
        };
        let mut names: Vec<_> = all_components()
            .iter()
            .flat_map(|c| c.objects(&release))
            .map(|o| (o.types.clone().unwrap_or_default().kind, o.name_any()))
            .collect();
        names.sort();
        let before = names.len();
        names.dedup();
        assert_eq!(names.len(), before);
    }
}
