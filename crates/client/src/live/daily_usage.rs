//! Use of models by day, from the ConfigMap of the model router.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::ConfigMap;
use kube::Api;
use runway_api::daily_usage::CONFIG_MAP;

use super::cluster::{self, Cluster};

/// The use cannot be read.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The router is not installed there.
    #[error(
        "namespace '{0}' has no ConfigMap '{CONFIG_MAP}', in which the model router keeps the use: install the router, or select its namespace"
    )]
    NoRouter(String),
    /// The cluster rejects the request.
    #[error(transparent)]
    Cluster(#[from] cluster::Error),
}

/// Days of the router in this namespace.
///
/// # Errors
/// The router is not installed, or the user may not get the ConfigMap.
pub async fn days(cluster: &Cluster, router: &str) -> Result<BTreeMap<String, String>, Error> {
    let maps: Api<ConfigMap> = Api::namespaced(cluster.client(), router);
    match maps.get(CONFIG_MAP).await {
        Ok(map) => Ok(map.data.unwrap_or_default()),
        Err(kube::Error::Api(status)) if status.is_not_found() => Err(Error::NoRouter(router.to_owned())),
        Err(error) => {
            let doing = format!("get ConfigMap '{CONFIG_MAP}' in namespace '{router}'");
            Err(cluster.explain(error, doing, "ConfigMap").into())
        }
    }
}
