//! The names of the objects that a LlamaStackDistribution refers to, in its own namespace.

use std::collections::BTreeSet;

use runway_api::LlamaStackDistribution;

/// ConfigMaps: the configuration and CA bundles.
pub fn config_maps(llsd: &LlamaStackDistribution) -> BTreeSet<String> {
    let server = &llsd.spec.server;
    let user_config = server.user_config.iter().map(|u| &u.config_map_name);
    let ca_bundle = server.tls_config.iter().flat_map(|t| &t.ca_bundle);
    user_config
        .chain(ca_bundle.map(|b| &b.config_map_name))
        .filter(|name| !name.is_empty())
        .cloned()
        .collect()
}

/// ModelDeployments, by `config.modelDeploymentRef` of its external providers.
pub fn model_deployments(llsd: &LlamaStackDistribution) -> BTreeSet<String> {
    llsd.external_providers()
        .into_iter()
        .filter_map(|(_, provider)| {
            provider
                .config
                .as_ref()?
                .get("modelDeploymentRef")?
                .get("name")?
                .as_str()
        })
        .map(str::to_owned)
        .collect()
}
