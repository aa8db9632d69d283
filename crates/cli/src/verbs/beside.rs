//! ModelDeployments beside another one that the model router gives its requests to: stand-ins and canaries.

use kube::api::{ObjectMeta, PostParams};
use kube::{Api, Resource as _, ResourceExt as _};
use runway_api::ModelDeployment;
use runway_api::model_deployment::Gateway;
use runway_client::cluster::Cluster;
use runway_client::diff::MANAGER;

/// ModelDeployment with the same spec, without autoscaling and without a route at a Gateway, with this suffix to its name and these
/// annotations. The first one owns it.
pub fn beside<const N: usize>(md: &ModelDeployment, suffix: &str, annotations: [(&str, String); N]) -> ModelDeployment {
    let mut spec = md.spec.clone();
    spec.gateway = Some(Gateway {
        enabled: Some(false),
        ..Gateway::default()
    });
    if let Some(scaling) = &mut spec.scaling {
        scaling.autoscaling = None;
    }
    let mut other = ModelDeployment::new(&format!("{}{suffix}", md.name_any()), spec);
    other.metadata = ObjectMeta {
        namespace: md.namespace(),
        labels: md.metadata.labels.clone(),
        annotations: Some(annotations.map(|(name, value)| (name.to_owned(), value)).into()),
        owner_references: md.owner_ref(&()).map(|owner| vec![owner]),
        ..other.metadata
    };
    other
}

/// Creates it.
///
/// # Errors
/// The API server rejects it, such as one whose name is taken.
pub async fn create(other: &ModelDeployment, cluster: &Cluster) -> kube::Result<ModelDeployment> {
    let params = PostParams {
        field_manager: Some(MANAGER.to_owned()),
        ..PostParams::default()
    };
    let api: Api<ModelDeployment> = Api::namespaced(cluster.client(), &other.namespace().unwrap_or_default());
    api.create(&params, other).await
}
