//! Resources of Envoy, in files that it follows: the listener, its routes, the clusters, and the endpoints of each cluster.
//!
//! A cluster is written before the routes that lead to it, and removed after them.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context as _, Result};
use serde_json::{Value, json};
use tokio::time::{sleep, timeout};

use super::translate::{Cluster, Route, Wanted};
use super::{Place, UPSTREAM};
use crate::PATIENCE;
use crate::envoy::{DESTINATION, EXT_PROC, FULL_DUPLEX, at, extension, http2, processing_mode, protocol, router, tls};
use crate::traffic::client::get;

const CLUSTERS: &str = "clusters";
const LISTENERS: &str = "listeners";
const ROUTES: &str = "routes";
/// Cluster without endpoints, for the filter of a route that has no picker.
const NO_PICKER: &str = "no-picker";

/// Files of Envoy's resources.
pub(super) struct Files {
    folder: PathBuf,
    admin: SocketAddr,
    /// Content of each file, by its name.
    written: BTreeMap<String, String>,
    /// Clusters to which routes may lead.
    clusters: BTreeMap<String, Value>,
}

impl Files {
    pub(super) fn new(folder: &Path, admin: SocketAddr) -> Self {
        Self {
            folder: folder.to_owned(),
            admin,
            written: BTreeMap::new(),
            clusters: BTreeMap::new(),
        }
    }

    /// Configuration of Envoy that leads to the files.
    pub(super) fn bootstrap(&self) -> Value {
        json!({
            "node": { "id": "gateway", "cluster": "gateway" },
            "admin": { "address": at(self.admin) },
            "dynamic_resources": { "lds_config": self.source(LISTENERS), "cds_config": self.source(CLUSTERS) },
            "static_resources": { "clusters": [{
                "name": NO_PICKER, "type": "STATIC", "typed_extension_protocol_options": http2(),
            }] },
        })
    }

    /// Writes everything before Envoy starts.
    pub(super) fn begin(&mut self, wanted: &Wanted, place: &Place) -> Result<()> {
        self.write_clusters(wanted, place)?;
        self.write(ROUTES, &[routes(&wanted.routes)])?;
        let listener = self.listener(SocketAddr::from((place.host, wanted.port)));
        self.write(LISTENERS, &[listener])
    }

    /// Writes what has changed, and waits until Envoy has the clusters before routes lead to them.
    pub(super) async fn update(&mut self, wanted: &Wanted, place: &Place) -> Result<()> {
        self.write_clusters(wanted, place)?;
        let routes = routes(&wanted.routes);
        if self.written.get(ROUTES) != Some(&response(std::slice::from_ref(&routes))) {
            let names = wanted.clusters.keys().map(|name| format!("{name}::"));
            let known = self.knows(names.collect());
            timeout(PATIENCE, known)
                .await
                .context("Envoy does not load a cluster")??;
            self.write(ROUTES, &[routes])?;
        }
        Ok(())
    }

    /// Waits until Envoy shows all of these texts among its clusters.
    async fn knows(&self, names: Vec<String>) -> Result<()> {
        loop {
            let known = get(self.admin, "/clusters").await?;
            if names.iter().all(|name| known.contains(name)) {
                return Ok(());
            }
            sleep(Duration::from_millis(20)).await;
        }
    }

    /// Writes the endpoints of all clusters, and the clusters: those without a route stay for one more round.
    fn write_clusters(&mut self, wanted: &Wanted, place: &Place) -> Result<()> {
        let mut clusters = BTreeMap::new();
        for (name, cluster) in &wanted.clusters {
            if let Cluster::Pods { addresses, .. } = cluster {
                self.write(name, &[endpoints(name, addresses)])?;
            }
            clusters.insert(name.clone(), self.cluster(name, cluster, place));
        }
        let mut all = std::mem::replace(&mut self.clusters, clusters.clone());
        all.extend(clusters);
        self.write(CLUSTERS, &all.into_values().collect::<Vec<_>>())
    }

    /// Replaces a file at once, if its content has changed.
    fn write(&mut self, name: &str, resources: &[Value]) -> Result<()> {
        let text = response(resources);
        if self.written.get(name) == Some(&text) {
            return Ok(());
        }
        let path = self.path(name);
        let next = path.with_extension("next");
        fs::write(&next, &text).with_context(|| format!("cannot write {}", next.display()))?;
        fs::rename(&next, &path).with_context(|| format!("cannot replace {}", path.display()))?;
        self.written.insert(name.to_owned(), text);
        Ok(())
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.join(format!("{name}.json"))
    }

    fn source(&self, name: &str) -> Value {
        json!({ "resource_api_version": "V3", "path_config_source": { "path": self.path(name) } })
    }

    /// The listener. Paths are normalized before they are matched, as in implementations.
    fn listener(&self, address: SocketAddr) -> Value {
        // Routes that have a picker turn this filter on.
        let picking = json!({ "name": EXT_PROC, "disabled": true, "typed_config": {
            "@type": extension("filters.http.ext_proc.v3.ExternalProcessor"),
            "grpc_service": { "envoy_grpc": { "cluster_name": NO_PICKER } },
            "processing_mode": processing_mode(FULL_DUPLEX, FULL_DUPLEX),
            "message_timeout": "5s",
        } });
        let manager = json!({
            "@type": extension("filters.network.http_connection_manager.v3.HttpConnectionManager"),
            "stat_prefix": "http",
            "normalize_path": true,
            "merge_slashes": true,
            "path_with_escaped_slashes_action": "UNESCAPE_AND_REDIRECT",
            "rds": { "route_config_name": ROUTES, "config_source": self.source(ROUTES) },
            "http_filters": [picking, router()],
        });
        let filter = json!({ "name": "envoy.filters.network.http_connection_manager", "typed_config": manager });
        json!({
            "@type": config("listener.v3.Listener"), "name": "http",
            "address": at(address), "filter_chains": [{ "filters": [filter] }],
        })
    }

    fn cluster(&self, name: &str, cluster: &Cluster, place: &Place) -> Value {
        let mut value = match cluster {
            Cluster::Pods { is_pool, .. } => json!({
                "type": "EDS", "eds_cluster_config": { "eds_config": self.source(name) },
                "typed_extension_protocol_options": one_request_each(),
                "load_balancing_policy": if *is_pool { chosen() } else { in_turn() },
            }),
            Cluster::Picker { name: host, port } => json!({
                "type": "STRICT_DNS", "dns_lookup_family": "V4_ONLY",
                "typed_dns_resolver_config": {
                    "name": "envoy.network.dns_resolver.cares",
                    "typed_config": {
                        "@type": extension("network.dns_resolver.cares.v3.CaresDnsResolverConfig"),
                        "resolvers": [at(SocketAddr::V4(place.dns))],
                    },
                },
                "typed_extension_protocol_options": http2(),
                "transport_socket": tls(),
                "load_assignment": { "cluster_name": name, "endpoints": [{ "lb_endpoints": [{ "endpoint": { "address": {
                    "socket_address": { "address": host, "port_value": port },
                } } }] }] },
            }),
        };
        value["@type"] = config("cluster.v3.Cluster").into();
        value["name"] = name.into();
        value["connect_timeout"] = "2s".into();
        value
    }
}

/// Options of a cluster whose connections are not used again: llama-server closes them after a stream, at a moment when Envoy may send
/// the next request.
fn one_request_each() -> Value {
    protocol(json!({
        "common_http_protocol_options": { "max_requests_per_connection": 1 },
        "explicit_http_config": { "http_protocol_options": {} },
    }))
}

fn config(name: &str) -> String {
    format!("type.googleapis.com/envoy.config.{name}")
}

fn response(resources: &[Value]) -> String {
    json!({ "resources": resources }).to_string()
}

/// All requests that match no route get 404 from Envoy itself.
fn routes(routes: &[Route]) -> Value {
    let header = json!({ "key": UPSTREAM, "value": "%UPSTREAM_HOST%" });
    let routes: Vec<Value> = routes.iter().map(route).collect();
    json!({
        "@type": config("route.v3.RouteConfiguration"), "name": ROUTES,
        "virtual_hosts": [{ "name": "all", "domains": ["*"], "routes": routes }],
        "response_headers_to_add": [{ "header": header }],
    })
}

fn route(route: &Route) -> Value {
    let headers = route.headers.iter();
    let headers: Vec<Value> = headers
        .map(|(name, value)| json!({ "name": name, "string_match": { "exact": value } }))
        .collect();
    let prefix = route.prefix.trim_end_matches('/');
    let mut found = if prefix.is_empty() {
        json!({ "prefix": "/" })
    } else {
        json!({ "path_separated_prefix": prefix })
    };
    found["headers"] = headers.into();
    if route.backends.iter().all(|(_, weight)| *weight == 0) {
        return json!({ "match": found, "direct_response": { "status": 500 } });
    }
    let backends = route.backends.iter();
    let backends: Vec<Value> = backends
        .map(|(name, weight)| json!({ "name": name, "weight": weight }))
        .collect();
    let mut action = json!({ "weighted_clusters": { "clusters": backends } });
    if let Some(timeout) = &route.timeout {
        action["timeout"] = timeout.as_str().into();
    }
    let mut value = json!({ "match": found, "route": action });
    if let Some(picker) = &route.picker {
        value["typed_per_filter_config"] = json!({ EXT_PROC: {
            "@type": extension("filters.http.ext_proc.v3.ExtProcPerRoute"),
            "overrides": {
                "grpc_service": { "envoy_grpc": { "cluster_name": picker.cluster } },
                "failure_mode_allow": picker.fails_open,
            },
        } });
    }
    value
}

fn endpoints(name: &str, addresses: &BTreeSet<SocketAddr>) -> Value {
    let endpoint = |address: &SocketAddr| json!({ "endpoint": { "address": at(*address) } });
    let endpoints: Vec<Value> = addresses.iter().map(endpoint).collect();
    json!({
        "@type": config("endpoint.v3.ClusterLoadAssignment"), "cluster_name": name,
        "endpoints": [{ "lb_endpoints": endpoints }],
    })
}

fn in_turn() -> Value {
    policy("round_robin", "round_robin.v3.RoundRobin", json!({}))
}

/// The endpoint that the picker has chosen, if it is one of the cluster.
fn chosen() -> Value {
    let settings = json!({ "override_host_sources": [{ "header": DESTINATION }], "fallback_policy": in_turn() });
    policy("override_host", "override_host.v3.OverrideHost", settings)
}

fn policy(name: &str, type_: &str, mut settings: Value) -> Value {
    settings["@type"] = extension(&format!("load_balancing_policies.{type_}")).into();
    json!({ "policies": [{ "typed_extension_config": {
        "name": format!("envoy.load_balancing_policies.{name}"), "typed_config": settings,
    } }] })
}
