//! `kubeairunway diff` for AsyncActors and LlamaStackDistributions: their operators' own plans are asked what must exist, given what
//! the cluster holds and how the operators were started; the server, by dry run, what that would change.

use std::sync::Arc;

use jiff::Timestamp;
use k8s_openapi::api::apps::v1::Deployment;
use k8s_openapi::api::core::v1::{ConfigMap, Container, EnvVar};
use kube::core::{ApiResource, DynamicObject, TypeMeta};
use kube::{Api, ResourceExt};
use runway_api::labels::{self, llama_stack};
use runway_api::{AsyncActor, LlamaStackDistribution, Name, Namespace};
use runway_asya_operator as asya;
use runway_asya_operator::object::{Found, Key, Objects};
use runway_asya_operator::queue::QueueState;
use runway_asya_operator::transports::Transports;
use runway_llama_stack_operator as stack;
use runway_llama_stack_operator::observe::Child;
use runway_manifests::{NAMESPACE, Release, TRANSPORTS, components};
use runway_operator::plan::{Apply, Delete};

use crate::live::cluster::{self, Cluster};
use crate::live::diff::{Diff, dynamic, tried, tried_as_written};
use crate::target::{Kind, Target};
use crate::view::change::{Action, Change};

/// Changes that the operator would make for an existing AsyncActor.
///
/// # Errors
/// A name is invalid, or the cluster rejects a read or the dry run.
pub async fn of_actor(cluster: &Cluster, actor: AsyncActor, now: Timestamp) -> Result<Diff, cluster::Error> {
    actor_diff(cluster, actor, Vec::new(), now).await
}

/// Changes that the operator would make for an existing LlamaStackDistribution.
///
/// # Errors
/// A name is invalid, or the cluster rejects a read or the dry run.
pub async fn of_distribution(
    cluster: &Cluster,
    llsd: LlamaStackDistribution,
    now: Timestamp,
) -> Result<Diff, cluster::Error> {
    distribution_diff(cluster, llsd, Vec::new(), now).await
}

/// Changes if an AsyncActor was applied: in itself, and in the objects of its operator.
///
/// # Errors
/// A name is invalid, or the cluster rejects a read or the dry run.
pub async fn of_new_actor(cluster: &Cluster, written: &DynamicObject, now: Timestamp) -> Result<Diff, cluster::Error> {
    let (live, then) = tried_as_written::<AsyncActor>(cluster, written).await?;
    let change = changed(live.as_ref().map(dynamic).as_ref(), dynamic(&then));
    actor_diff(cluster, then, vec![change], now).await
}

/// Changes if a LlamaStackDistribution was applied.
///
/// # Errors
/// A name is invalid, or the cluster rejects a read or the dry run.
pub async fn of_new_distribution(
    cluster: &Cluster,
    written: &DynamicObject,
    now: Timestamp,
) -> Result<Diff, cluster::Error> {
    let (live, then) = tried_as_written::<LlamaStackDistribution>(cluster, written).await?;
    let change = changed(live.as_ref().map(dynamic).as_ref(), dynamic(&then));
    distribution_diff(cluster, then, vec![change], now).await
}

fn changed(live: Option<&DynamicObject>, then: DynamicObject) -> Change {
    Change {
        action: Action::between(live, &then),
        object: then,
    }
}

async fn actor_diff(
    cluster: &Cluster,
    actor: AsyncActor,
    mut changes: Vec<Change>,
    now: Timestamp,
) -> Result<Diff, cluster::Error> {
    let mut notes = Vec::new();
    let (namespace, name) = cluster::place(&actor)?;
    let container = container(cluster, labels::ASYA_MANAGER, &mut notes).await?;
    let args: asya::Args = arguments(&container)?;
    let target = Target {
        kind: Kind::AsyncActor,
        name,
    };
    let others: Vec<AsyncActor> = cluster.typed(&namespace).await?;
    let others = others.iter().filter(|other| target.name != other.name_any().as_str());
    let seen = asya::observe::Observed {
        objects: seen_by_actor(cluster, &actor).await?,
        pods: pods(cluster, &target, &namespace).await?,
        rivals: others.filter_map(asya::rivals::Rival::of).map(Arc::new).collect(),
        // Whether the broker has it, only the operator can ask.
        queue: QueueState::Ready { drift: None },
        transports: Arc::new(transports(cluster, &args.actors.transports, &mut notes).await?),
        tenant: None,
        is_last: false,
        settings: Arc::new(args.settings()),
        now,
        actor: Arc::new(actor),
    };
    let plan = asya::plan::plan(&seen).kube;
    let is_new = seen.actor.uid().is_none();
    changes.extend(all_tried(cluster, &plan.apply, labels::ASYA_MANAGER, is_new).await?);
    for edit in &plan.edit {
        notes.push(format!(
            "{}/{} would be changed by {}",
            edit.resource.kind, edit.name, edit.patch
        ));
    }
    let said = plan.status.as_ref().and_then(|status| status["message"].as_str());
    if let (true, Some(said)) = (plan.apply.is_empty() && plan.edit.is_empty(), said) {
        notes.push(format!("nothing is created: {said}"));
    }
    Ok(diff(&target, namespace, changes, &plan.delete, notes))
}

async fn distribution_diff(
    cluster: &Cluster,
    llsd: LlamaStackDistribution,
    mut changes: Vec<Change>,
    now: Timestamp,
) -> Result<Diff, cluster::Error> {
    let mut notes = Vec::new();
    let (namespace, name) = cluster::place(&llsd)?;
    let container = container(cluster, llama_stack::MANAGER, &mut notes).await?;
    let args: stack::RunArgs = arguments(&container)?;
    let assigns_users = stack::assigns_users(&cluster.client()).await;
    let assigns_users = assigns_users.map_err(|e| cluster.explain(e, "list API groups".to_owned(), "API groups"))?;
    let mut children = Vec::new();
    for (kind, name) in stack::kinds::children(&name) {
        let object = read(cluster, &kind.resource(), &namespace, &name.parse()?).await?;
        children.extend(object.map(|object| Child {
            kind,
            object: Arc::new(object),
        }));
    }
    let mut config_maps = std::collections::BTreeMap::new();
    for name in stack::references::config_maps(&llsd) {
        let api: Api<ConfigMap> = Api::namespaced(cluster.client(), &namespace);
        let found = api.get_opt(&name.parse::<Name>()?).await;
        let found = found.map_err(|e| cluster.explain(e, format!("read ConfigMap '{name}'"), "ConfigMap"))?;
        config_maps.extend(found.map(|found| (name, Arc::new(found))));
    }
    let mut model_deployments = std::collections::BTreeMap::new();
    for name in stack::references::model_deployments(&llsd) {
        match cluster.deployment(&namespace, &name.parse()?).await {
            Ok(md) => drop(model_deployments.insert(name, md.status.and_then(|status| status.endpoint))),
            Err(cluster::Error::NotFound { .. } | cluster::Error::NotInstalled { .. }) => {}
            Err(error) => return Err(error),
        }
    }
    let target = Target {
        kind: Kind::LlamaStackDistribution,
        name,
    };
    let seen = stack::observe::Observed {
        settings: Arc::new(stack::settings::Settings {
            operator_namespace: Some(NAMESPACE.to_owned()),
            ..args.settings_with(container.image, assigns_users)
        }),
        children,
        pods: pods(cluster, &target, &namespace).await?,
        config_maps,
        model_deployments,
        // It says nothing of what must exist.
        server: None,
        now,
        llsd: Arc::new(llsd),
    };
    let plan = stack::plan::plan(&seen);
    let is_new = seen.llsd.uid().is_none();
    changes.extend(all_tried(cluster, &plan.apply, llama_stack::MANAGER, is_new).await?);
    let said = plan.status.as_ref().and_then(|status| status["message"].as_str());
    if let (true, Some(said)) = (plan.apply.is_empty(), said) {
        notes.push(format!("nothing is created: {said}"));
    }
    Ok(diff(&target, namespace, changes, &plan.delete, notes))
}

async fn all_tried(
    cluster: &Cluster,
    all: &[Apply],
    manager: &str,
    is_new: bool,
) -> Result<Vec<Change>, cluster::Error> {
    let mut changes = Vec::new();
    for apply in all {
        changes.push(tried(cluster, apply, manager, is_new).await?);
    }
    Ok(changes)
}

fn diff(target: &Target, namespace: Namespace, changes: Vec<Change>, deletes: &[Delete], notes: Vec<String>) -> Diff {
    Diff {
        kind: target.kind.as_str(),
        name: target.name.to_string(),
        namespace: namespace.into(),
        provider: None,
        changes,
        deletes: deletes
            .iter()
            .map(|d| format!("{}/{}", d.resource.kind, d.name))
            .collect(),
        notes,
    }
}

async fn pods(
    cluster: &Cluster,
    target: &Target,
    namespace: &Namespace,
) -> Result<Vec<Arc<k8s_openapi::api::core::v1::Pod>>, cluster::Error> {
    let pods = cluster.pods_of(target, namespace).await?;
    Ok(pods.into_iter().map(Arc::new).collect())
}

/// Objects that the plan of an actor requests; one may lead to the next.
async fn seen_by_actor(cluster: &Cluster, actor: &AsyncActor) -> Result<Objects, cluster::Error> {
    let (namespace, _) = cluster::place(actor)?;
    let mut found = Objects::new();
    loop {
        let missing = asya::needs::missing(actor, &found);
        if missing.is_empty() {
            return Ok(found);
        }
        for key in missing {
            let state = seen(cluster, &key, &namespace).await?;
            found.insert(key, state);
        }
    }
}

async fn seen(cluster: &Cluster, key: &Key, namespace: &Namespace) -> Result<Found, cluster::Error> {
    let kind = key.kind;
    let version = if kind.is_built_in() {
        Some(kind.version.to_owned())
    } else {
        let crd = cluster.crd(&format!("{}.{}", kind.plural, kind.group)).await?;
        crd.and_then(|crd| served(&crd.spec.versions, kind.version))
    };
    let Some(version) = version else {
        return Ok(Found::NotInstalled);
    };
    let object = read(cluster, &kind.resource_in(&version), namespace, &key.name.parse()?).await?;
    Ok(match object {
        Some(object) => Found::Here {
            version,
            object: Arc::new(object),
        },
        None => Found::Absent { version },
    })
}

/// The version that the operator speaks, or else the one that is stored.
fn served(
    versions: &[k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinitionVersion],
    known: &str,
) -> Option<String> {
    let ours = versions.iter().find(|v| v.served && v.name == known);
    let found = ours.or_else(|| versions.iter().find(|v| v.served && v.storage))?;
    Some(found.name.clone())
}

async fn read(
    cluster: &Cluster,
    resource: &ApiResource,
    namespace: &Namespace,
    name: &Name,
) -> Result<Option<DynamicObject>, cluster::Error> {
    let api: Api<DynamicObject> = Api::namespaced_with(cluster.client(), namespace, resource);
    let found = api.get_opt(name).await;
    let found = found.map_err(|e| cluster.explain(e, format!("read {} '{name}'", resource.kind), "it"))?;
    Ok(found.map(|mut object| {
        object.types.get_or_insert_with(|| TypeMeta {
            api_version: resource.api_version.clone(),
            kind: resource.kind.clone(),
        });
        object
    }))
}

/// The transports that the operator of actors was given.
async fn transports(
    cluster: &Cluster,
    given: &asya::TransportArgs,
    notes: &mut Vec<String>,
) -> Result<Transports, cluster::Error> {
    let text = if given.transport_config.trim_start().starts_with('{') {
        given.transport_config.clone()
    } else {
        let api: Api<ConfigMap> = Api::namespaced(cluster.client(), NAMESPACE);
        let doing = || format!("read ConfigMap '{TRANSPORTS}' in namespace '{NAMESPACE}'");
        let found = api.get_opt(TRANSPORTS).await;
        let found = found.map_err(|e| cluster.explain(e, doing(), "ConfigMap"))?;
        let data = found.and_then(|found| found.data).unwrap_or_default();
        data.into_values().next().unwrap_or_default()
    };
    Ok(Transports::load(&text).unwrap_or_else(|error| {
        let why = runway_operator::telemetry::chain(&error);
        notes.push(format!("the transports of the operator cannot be used: {why}"));
        Transports::default()
    }))
}

/// Container of an installed operator, or else the one that this version would install.
async fn container(cluster: &Cluster, name: &str, notes: &mut Vec<String>) -> Result<Container, cluster::Error> {
    let api: Api<Deployment> = Api::namespaced(cluster.client(), NAMESPACE);
    let doing = || format!("read Deployment '{name}' in namespace '{NAMESPACE}'");
    let found = api.get_opt(name).await;
    let found = found.map_err(|e| cluster.explain(e, doing(), "Deployment"))?;
    let pod = found.and_then(|found| found.spec?.template.spec);
    let container = pod.and_then(|pod| pod.containers.into_iter().next());
    Ok(container.unwrap_or_else(|| {
        notes.push(format!(
            "{name} is not installed in namespace '{NAMESPACE}': the changes below are those that this version would make"
        ));
        let (release, components) = (Release::default(), components());
        let images = components.iter().filter(|c| c.name == name).flat_map(|c| &c.images);
        let variables = images.map(|(variable, image)| EnvVar {
            name: (*variable).to_owned(),
            value: Some(release.image(image)),
            ..EnvVar::default()
        });
        Container {
            name: name.to_owned(),
            image: Some(release.image(name)),
            env: Some(variables.collect()),
            ..Container::default()
        }
    }))
}

/// Arguments of an operator, from the flags and variables of its container. Flags that this version does not know are skipped;
/// the environment of this process does not count.
fn arguments<A: clap::Args>(container: &Container) -> Result<A, cluster::Error> {
    let command = A::augment_args(clap::Command::new("operator").no_binary_name(true));
    let words: Vec<&String> = container.command.iter().chain(&container.args).flatten().collect();
    let mut given: Vec<String> = Vec::new();
    for arg in command.get_arguments() {
        let Some(long) = arg.get_long() else { continue };
        let before = given.len();
        for (index, word) in words.iter().enumerate() {
            match word.strip_prefix("--").and_then(|flag| flag.strip_prefix(long)) {
                Some(value) if value.starts_with('=') => given.push((*word).clone()),
                Some("") => {
                    let value = words.get(index + 1).filter(|next| !next.starts_with("--"));
                    given.extend([word].into_iter().chain(value).map(|word| (*word).clone()));
                }
                _ => {}
            }
        }
        let mut variables = container.env.iter().flatten();
        let variable = arg
            .get_env()
            .and_then(|name| variables.find(|v| name == v.name.as_str()));
        if let (true, Some(value)) = (given.len() == before, variable.and_then(|v| v.value.as_ref())) {
            given.push(format!("--{long}={value}"));
        }
    }
    // No variable has the empty name.
    let command = command.mut_args(|arg| if arg.get_env().is_some() { arg.env("") } else { arg });
    let matches = command.try_get_matches_from(given);
    let parsed = matches.and_then(|matches| A::from_arg_matches(&matches));
    parsed.map_err(|error| cluster::Error::Arguments {
        operator: container.name.clone(),
        source: Box::new(error),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn settings_of_an_operator_are_read_from_its_container() {
        let container = Container {
            image: Some("registry.example/operator:1".to_owned()),
            args: Some(
                [
                    "--network-policies",
                    "--distribution-image=starter=a:1",
                    "--distribution-image",
                    "mine=b:2",
                    "--cluster-domain=example.local",
                    "--flag-of-another-version=1",
                    "--pod-user",
                    "none",
                ]
                .map(str::to_owned)
                .into(),
            ),
            ..Container::default()
        };
        let args: stack::RunArgs = arguments(&container).unwrap();
        let settings = args.settings_with(container.image, false);
        assert_eq!(settings.pod_user, None);
        assert_eq!(settings.operator_image.as_deref(), Some("registry.example/operator:1"));
        assert!(settings.network_policies);
        assert_eq!(settings.cluster_domain, "example.local");
        assert_eq!(settings.provider_volume_size, "2Gi");
        assert_eq!(
            (&settings.distributions["starter"], &settings.distributions["mine"]),
            (&"a:1".to_owned(), &"b:2".to_owned())
        );
    }

    #[test]
    fn flags_of_an_operator_take_precedence_over_variables() {
        let variable = |name: &str, value: &str| EnvVar {
            name: name.to_owned(),
            value: Some(value.to_owned()),
            ..EnvVar::default()
        };
        let container = Container {
            args: Some(
                ["--conflict-wait=9", "--sidecar-image", "a:1"]
                    .map(str::to_owned)
                    .into(),
            ),
            env: Some(vec![
                variable("ASYA_SIDECAR_IMAGE", "b:2"),
                variable("ASYA_GATEWAY_URL", "http://gateway"),
                variable("ASYA_DISABLE_QUEUE_MANAGEMENT", "true"),
            ]),
            ..Container::default()
        };
        let settings = arguments::<asya::Args>(&container).unwrap().settings();
        assert_eq!(settings.conflict_wait, std::time::Duration::from_secs(9));
        assert_eq!(settings.sidecar_image, "a:1");
        assert_eq!(settings.gateway_url.as_deref(), Some("http://gateway"));
        assert!(!settings.manages_queues);
        let wrong = Container {
            args: Some(vec!["--conflict-wait=soon".to_owned()]),
            ..Container::default()
        };
        assert!(arguments::<asya::Args>(&wrong).is_err());
    }
}
