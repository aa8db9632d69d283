//! Objects that belong to an object: found by owners, selectors and the API group of its upstream.

use std::collections::BTreeSet;
use std::sync::Arc;

use futures::future::{join, join_all};
use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::OwnerReference;
use kube::api::ListParams;
use kube::core::{ApiResource, DynamicObject, GroupVersionKind, TypeMeta};
use kube::discovery::{self, Scope, verbs};
use kube::{Api, ResourceExt};
use runway_api::Namespace;
use runway_operator::telemetry::chain;
use serde_json::json;

use super::cluster::{Cluster, built_in};
use super::error::Error;
use crate::offline::documents::typed;
use crate::view::tree::Belongings;

/// Objects to look up around an object.
pub(crate) struct Around<'a> {
    /// Namespace.
    pub(crate) namespace: &'a str,
    /// Known objects, whose owners and siblings are looked up.
    pub(crate) roots: &'a [Arc<DynamicObject>],
    /// Additional kinds, with list parameters.
    pub(crate) more: Vec<(ApiResource, ListParams)>,
    /// Selectors of pods.
    pub(crate) pods: Vec<String>,
    /// A Service.
    pub(crate) service: Option<String>,
}

/// The objects, or a message in `missing`. A kind that is not installed has no objects.
fn or_missing(list: Result<Vec<DynamicObject>, Error>, missing: &mut Vec<String>) -> Vec<DynamicObject> {
    list.unwrap_or_else(|error| {
        if !matches!(error, Error::NotInstalled { .. }) {
            missing.push(chain(&error));
        }
        Vec::new()
    })
}

/// Kinds at the root of a chain.
const OURS: [&str; 3] = ["ModelDeployment", "AsyncActor", "LlamaStackDistribution"];

/// Longest chain of owners.
const MOST_GENERATIONS: usize = 8;

impl Cluster {
    /// Objects that may belong to an object: workloads of its namespace, objects of its upstream's group, its Service with addresses,
    /// its pods, and their owners, as far as the user may read them; the others are listed as missing.
    pub(crate) async fn belongings(&self, around: &Around<'_>) -> Belongings {
        match around.namespace.parse::<Namespace>() {
            Ok(namespace) => self.belongings_in(&namespace, around).await,
            Err(invalid) => Belongings {
                missing: vec![invalid.to_string()],
                ..Belongings::default()
            },
        }
    }

    async fn belongings_in(&self, namespace: &Namespace, around: &Around<'_>) -> Belongings {
        let mut wanted: Vec<(ApiResource, ListParams)> = [
            ("apps", "Deployment", "deployments"),
            ("apps", "ReplicaSet", "replicasets"),
            ("apps", "StatefulSet", "statefulsets"),
            ("batch", "Job", "jobs"),
        ]
        .into_iter()
        .map(|(group, kind, plural)| (built_in(group, "v1", kind, plural), ListParams::default()))
        .collect();
        for root in around.roots {
            let siblings = self.siblings(root).await;
            wanted.extend(siblings.into_iter().map(|kind| (kind, ListParams::default())));
        }
        wanted.extend(around.more.iter().cloned());
        if let Some(name) = &around.service {
            let named = ListParams::default().fields(&format!("metadata.name={name}"));
            let of = ListParams::default().labels(&format!("kubernetes.io/service-name={name}"));
            wanted.push((built_in("", "v1", "Service", "services"), named));
            let slices = built_in("discovery.k8s.io", "v1", "EndpointSlice", "endpointslices");
            wanted.push((slices, of));
        }
        let pod = built_in("", "v1", "Pod", "pods");
        let pods = around.pods.iter().map(|selector| {
            let labelled = ListParams::default().labels(selector);
            self.list(&pod, namespace, labelled)
        });
        let lists = wanted
            .iter()
            .map(|(kind, params)| self.list(kind, namespace, params.clone()));
        let (lists, pods) = join(join_all(lists), join_all(pods)).await;

        let mut found = Belongings::default();
        let mut all: Vec<DynamicObject> = Vec::new();
        for list in lists {
            all.extend(or_missing(list, &mut found.missing));
        }
        for list in pods {
            let more = or_missing(list, &mut found.missing).into_iter();
            found
                .pods
                .extend(more.filter_map(|object| typed::<Pod>(&json!(object)).ok()));
        }
        found.pods.sort_by_key(ResourceExt::name_any);
        found.pods.dedup_by_key(|pod| pod.uid());
        self.add_owners(namespace, around.roots, &found.pods, &mut all).await;
        found.objects = around.roots.to_vec();
        let known: BTreeSet<Option<String>> = found.objects.iter().map(|o| o.uid()).collect();
        let new = all.into_iter().filter(|o| !known.contains(&o.uid()));
        found.objects.extend(new.map(Arc::new));
        found
    }

    /// Other kinds of the upstream's API group, as a RayService makes RayClusters.
    async fn siblings(&self, upstream: &DynamicObject) -> Vec<ApiResource> {
        let types = upstream.types.as_ref();
        let Some((group, _)) = types.and_then(|types| types.api_version.split_once('/')) else {
            return Vec::new();
        };
        if !group.contains('.') {
            return Vec::new();
        }
        // Without discovery there is less to see; the pods' owners are found in any case.
        let Ok(group) = discovery::group(&self.client(), group).await else {
            return Vec::new();
        };
        group
            .recommended_resources()
            .into_iter()
            .filter(|(_, capabilities)| {
                capabilities.scope == Scope::Namespaced && capabilities.supports_operation(verbs::LIST)
            })
            .map(|(resource, _)| resource)
            .collect()
    }

    /// Owners of what was found that were not found themselves, up to the upstream object, whatever their kind.
    async fn add_owners(
        &self,
        namespace: &Namespace,
        roots: &[Arc<DynamicObject>],
        pods: &[Pod],
        all: &mut Vec<DynamicObject>,
    ) {
        let mut open: Vec<OwnerReference> = pods.iter().flat_map(|pod| pod.owner_references().to_vec()).collect();
        let mut known: BTreeSet<String> = all.iter().filter_map(ResourceExt::uid).collect();
        known.extend(roots.iter().filter_map(|root| root.uid()));
        for _ in 0..MOST_GENERATIONS {
            let above: Vec<OwnerReference> = open
                .iter()
                .flat_map(|owner| all.iter().filter(|o| o.uid().as_deref() == Some(&owner.uid)))
                .flat_map(|o| o.owner_references().to_vec())
                .collect();
            let mut next = above;
            for owner in open {
                if !known.insert(owner.uid.clone()) || OURS.contains(&owner.kind.as_str()) {
                    continue;
                }
                let (group, version) = owner.api_version.rsplit_once('/').unwrap_or(("", &owner.api_version));
                let gvk = GroupVersionKind::gvk(group, version, &owner.kind);
                let Ok(name) = owner.name.parse() else { continue };
                if let Ok(Some(object)) = self.object(&gvk, namespace, &name).await {
                    next.extend(object.owner_references().to_vec());
                    all.push(object);
                }
            }
            next.retain(|owner| {
                !known.contains(&owner.uid) || all.iter().any(|o| o.uid().as_deref() == Some(&owner.uid))
            });
            if next.is_empty() {
                return;
            }
            open = next;
        }
    }

    async fn list(
        &self,
        resource: &ApiResource,
        namespace: &Namespace,
        params: ListParams,
    ) -> Result<Vec<DynamicObject>, Error> {
        let api: Api<DynamicObject> = Api::namespaced_with(self.client(), namespace, resource);
        let list = api.list(&params).await;
        let list = list.map_err(|e| {
            let doing = format!("list {} in namespace '{namespace}'", resource.plural);
            self.explain(e, doing, "it")
        })?;
        let types = TypeMeta {
            api_version: resource.api_version.clone(),
            kind: resource.kind.clone(),
        };
        // The items of a list do not say what they are.
        Ok(list
            .items
            .into_iter()
            .map(|object| DynamicObject {
                types: Some(types.clone()),
                ..object
            })
            .collect())
    }
}
