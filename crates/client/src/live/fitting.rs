//! `kubeairunway deploy --check-fit`: reads nodes, pods and devices of a cluster, asks the API server for the final form of the
//! planned pods, and passes it all to [`runway_fit`]. Nothing is written.

use std::fmt::Debug;

use jiff::Timestamp;
use k8s_openapi::api::core::v1::{Node, Pod, ResourceQuota};
use k8s_openapi::api::resource::v1::{DeviceClass, ResourceSlice};
use kube::api::{ListParams, PostParams};
use kube::core::DynamicObject;
use kube::{Api, Client, ResourceExt};
use runway_api::{ModelDeployment, Phase};
use runway_fit::{self as fit, Devices, Group, Planned, Report, Seen};
use runway_manifests::built_in_providers;
use runway_operator::telemetry::chain;
use serde::de::DeserializeOwned;

use super::cluster::{self, Cluster};
use super::diff;

/// Objects in one response.
const CHUNK: u32 = 500;
/// Most objects of a kind that are read.
const MOST: usize = 200_000;
/// Pods that use nothing are not read.
const NOT_TERMINATED: &str = "status.phase!=Succeeded,status.phase!=Failed";

/// Failure to check whether a deployment fits.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The plan cannot be computed, or the cluster does not respond.
    #[error(transparent)]
    Cluster(#[from] cluster::Error),
    /// The user may not read all nodes or pods.
    #[error(
        "cannot check whether the pods fit: not allowed to list {plural} in all namespaces; ask an administrator for a ClusterRoleBinding to a ClusterRole with this rule: apiGroups [\"\"], resources [nodes, pods], verbs [list] ({message})"
    )]
    Forbidden {
        /// Resource, in the plural.
        plural: &'static str,
        /// Message of the server.
        message: String,
    },
    /// The cluster has more objects than are read.
    #[error(
        "cannot check whether the pods fit: the cluster has more than {MOST} {plural}, which is the limit of this check"
    )]
    TooMany {
        /// Resource, in the plural.
        plural: &'static str,
    },
}

/// Checks a ModelDeployment as if it was applied. Admission runs, but nothing is written.
///
/// # Errors
/// The cluster cannot be reached or rejects a request, or the user may not list nodes and pods.
pub async fn of_new(cluster: &Cluster, written: &DynamicObject, now: Timestamp) -> Result<Report, Error> {
    let (_, then) = diff::tried_as_written::<ModelDeployment>(cluster, written).await?;
    of(cluster, then, now).await
}

/// Checks a ModelDeployment that has passed admission.
///
/// # Errors
/// The cluster cannot be reached or rejects a request, or the user may not list nodes and pods.
pub async fn of(cluster: &Cluster, md: ModelDeployment, now: Timestamp) -> Result<Report, Error> {
    let (namespace, _) = cluster::place(&md).map_err(cluster::Error::from)?;
    // The notes are about schemas, which the plan's message explains.
    let planned = Box::pin(diff::planned(cluster, md, now, &mut Vec::new())).await?;
    let md = planned.md;
    let provider = md.selected_provider().map(str::to_owned);
    let objects: Vec<&DynamicObject> = planned.apply.iter().map(|apply| &apply.object).collect();
    let groups = fit::groups(&objects, &namespace);
    let mut found = read(cluster).await?;
    let pods: Api<Pod> = Api::namespaced(cluster.client(), &namespace);
    let mut planned = Vec::new();
    for group in groups {
        let seen = dry_run(&pods, &group).await;
        planned.push(Planned { group, seen });
    }
    let quotas: Api<ResourceQuota> = Api::namespaced(cluster.client(), &namespace);
    if planned.iter().any(|planned| planned.group.replicas > 1)
        && let Ok(quotas) = quotas.list(&ListParams::default()).await
    {
        let names = quotas.items.iter().map(ResourceExt::name_any);
        let note = |name| format!("ResourceQuota '{name}' was checked for one pod, not for all replicas");
        found.notes.extend(names.map(note));
    }
    let instead = without_pods(&md, provider.as_deref());
    Ok(fit::report(&md, provider, &planned, Some(instead), &found))
}

/// Reason for which no pods are planned.
fn without_pods(md: &ModelDeployment, provider: Option<&str>) -> String {
    let status = md.status.clone().unwrap_or_default();
    match (provider, status.phase, status.message) {
        (Some(name), ..) if !built_in_providers().iter().any(|p| p.name() == name) => {
            format!("provider '{name}' is not built in: its pods are not known")
        }
        (_, Some(phase @ (Phase::Pending | Phase::Failed)), Some(message)) => {
            format!("no pods are planned: {}: {message}", phase.as_str())
        }
        _ => "no pods are planned".to_owned(),
    }
}

/// Nodes, pods and devices.
async fn read(cluster: &Cluster) -> Result<fit::ClusterObjects, Error> {
    let nodes: Vec<Node> = listed(cluster, "nodes", "", |node| node).await?;
    let pods: Vec<Pod> = listed(cluster, "pods", NOT_TERMINATED, fit::slim).await?;
    let slices = all::<ResourceSlice>(cluster.client()).await;
    let classes = all::<DeviceClass>(cluster.client()).await;
    let mut remarks = Vec::new();
    let devices = match (slices, classes) {
        (Ok(slices), Ok(classes)) => Devices::new(&slices, &classes),
        // Kubernetes before 1.34 has no extended resources by DRA.
        (Err(kube::Error::Api(status)), _) | (_, Err(kube::Error::Api(status))) if status.code == 404 => {
            Devices::default()
        }
        (Err(error), _) | (_, Err(error)) => {
            let url = "resourceslices and deviceclasses of resource.k8s.io";
            remarks.push(format!(
                "devices offered by DRA are not considered: cannot list {url}: {}",
                chain(&error)
            ));
            Devices::unread()
        }
    };
    Ok(fit::ClusterObjects {
        nodes,
        pods,
        devices,
        notes: remarks,
    })
}

/// Lists objects of all namespaces in chunks, at most [`MOST`].
async fn listed<K>(cluster: &Cluster, plural: &'static str, fields: &str, keep: fn(K) -> K) -> Result<Vec<K>, Error>
where
    K: kube::Resource<DynamicType = ()> + Clone + Debug + DeserializeOwned,
{
    let api: Api<K> = Api::all(cluster.client());
    let mut params = ListParams::default().limit(CHUNK).fields(fields);
    let mut all = Vec::new();
    loop {
        let chunk = match api.list(&params).await {
            Ok(chunk) => chunk,
            Err(kube::Error::Api(status)) if status.is_forbidden() => {
                let message = status.message;
                return Err(Error::Forbidden { plural, message });
            }
            Err(error) => return Err(cluster.explain(error, format!("list {plural}"), "them").into()),
        };
        all.extend(chunk.items.into_iter().map(keep));
        if all.len() > MOST {
            return Err(Error::TooMany { plural });
        }
        match chunk.metadata.continue_.filter(|token| !token.is_empty()) {
            Some(token) => params = params.continue_token(&token),
            None => return Ok(all),
        }
    }
}

/// All objects of a kind with few large objects.
async fn all<K>(client: Client) -> kube::Result<Vec<K>>
where
    K: kube::Resource<DynamicType = ()> + Clone + Debug + DeserializeOwned,
{
    let api: Api<K> = Api::all(client);
    let mut params = ListParams::default().limit(CHUNK);
    let mut all = Vec::new();
    loop {
        let chunk = api.list(&params).await?;
        all.extend(chunk.items);
        match chunk.metadata.continue_.filter(|token| !token.is_empty()) {
            Some(token) if all.len() < MOST => params = params.continue_token(&token),
            _ => return Ok(all),
        }
    }
}

/// The final form of a pod: defaults, LimitRanges, RuntimeClass, webhooks. With the user's permissions.
async fn dry_run(pods: &Api<Pod>, group: &Group) -> Seen {
    if group.operator.is_some() || !group.opaque.is_empty() {
        return Seen::NotTried("the pods are not final".to_owned());
    }
    let mut pod = group.pod.clone();
    pod.metadata.generate_name = Some("check-fit-".to_owned());
    let params = PostParams {
        dry_run: true,
        field_manager: None,
    };
    match pods.create(&params, &pod).await {
        Ok(pod) => Seen::Complete(Box::new(pod)),
        Err(kube::Error::Api(status)) if is_rejection(status.code, &status.message) => Seen::Rejected(status.message),
        Err(error) => Seen::NotTried(format!(
            "no dry run of the pods, so that LimitRanges and webhooks are not considered: {}",
            chain(&error)
        )),
    }
}

/// Whether a response is about the pod, and not about the permission to ask.
fn is_rejection(code: u16, message: &str) -> bool {
    match code {
        403 => !message.starts_with("pods is forbidden: User "),
        404 | 422 => true,
        _ => message.contains("denied the request"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rejections_of_pods_differ_from_missing_permissions() {
        let missing =
            r#"pods is forbidden: User "eve" cannot create resource "pods" in API group "" in the namespace "a""#;
        let quota = r#"pods "check-fit-x" is forbidden: exceeded quota: gpus, requested: requests.nvidia.com/gpu=2"#;
        let webhook = r#"admission webhook "a.example.org" denied the request: no"#;
        let dry_run = r#"admission webhook "a.example.org" does not support dry run"#;
        for (code, message, expected) in [
            (403, missing, false),
            (403, quota, true),
            (400, webhook, true),
            (400, dry_run, false),
            (422, "Pod \"x\" is invalid", true),
            (500, "internal error", false),
        ] {
            assert_eq!(is_rejection(code, message), expected, "{message}");
        }
    }
}
