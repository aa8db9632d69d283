//! The upstream CRDs: the real ones where they can be had, else minimal ones of our own.

use std::{fs, path::Path};

use anyhow::{Context, Result, bail, ensure};
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::{
    Api, Client, ResourceExt,
    api::{ListParams, Patch, PatchParams},
    core::{ApiResource, DynamicObject, GroupVersionKind},
    runtime::{conditions, wait::await_condition},
};

use crate::{PATIENCE, SELF, binaries, eventually, say};

/// The file of KAITO's Workspace CRD.
pub const KAITO_WORKSPACES: &str = "kaito.sh_workspaces.yaml";
/// The file of KAITO's InferenceSet CRD.
pub const KAITO_INFERENCE_SETS: &str = "kaito.sh_inferencesets.yaml";

/// The file of Dynamo's DynamoGraphDeployment CRD with v1alpha1 alone, as released until early 2026.
pub const DYNAMO_V1ALPHA1: &str = "nvidia.com_dynamographdeployments.2026-02.yaml";
/// The file of the same CRD with v1beta1, which is stored. Everything in v1alpha1, and everything stored in it, needs the
/// conversion webhook of Dynamo's operator; v1beta1 alone does not. See the module `conversion` of the upstream simulator.
pub const DYNAMO_V1BETA1: &str = "nvidia.com_dynamographdeployments.2026-08.yaml";
/// The file of Dynamo's DynamoWorkerMetadata CRD, in which its pods publish what they serve.
pub const DYNAMO_WORKERS: &str = "nvidia.com_dynamoworkermetadatas.yaml";
/// The file of KubeRay's RayService CRD.
pub const KUBERAY_SERVICES: &str = "ray.io_rayservices.yaml";
/// The file of KubeRay's RayCluster CRD.
pub const KUBERAY_CLUSTERS: &str = "ray.io_rayclusters.yaml";

/// The file of KEDA's ScaledObject CRD.
pub const KEDA_SCALED_OBJECTS: &str = "keda.sh_scaledobjects.yaml";
/// The file of KEDA's TriggerAuthentication CRD.
pub const KEDA_TRIGGER_AUTHENTICATIONS: &str = "keda.sh_triggerauthentications.yaml";
/// The file of KServe's InferenceService CRD.
pub const KSERVE_INFERENCE_SERVICES: &str = "serving.kserve.io_inferenceservices.yaml";

/// Paths of the real CRDs, relative to this crate.
const REAL: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../../shared/crds");

/// Ours have the fields that a translator writes and the status, and nothing else.
const MINIMAL: [(&str, &str); 5] = [
    (KAITO_WORKSPACES, include_str!("../crds/kaito.sh_workspaces.yaml")),
    (
        KAITO_INFERENCE_SETS,
        include_str!("../crds/kaito.sh_inferencesets.yaml"),
    ),
    (
        DYNAMO_V1ALPHA1,
        include_str!("../crds/nvidia.com_dynamographdeployments.2026-02.yaml"),
    ),
    (
        DYNAMO_V1BETA1,
        include_str!("../crds/nvidia.com_dynamographdeployments.2026-08.yaml"),
    ),
    (KUBERAY_SERVICES, include_str!("../crds/ray.io_rayservices.yaml")),
];

/// CRDs that no provider writes: those of the AsyncActor's targets, and those that the upstream simulator creates.
const NEIGHBORS: [(&str, &str); 5] = [
    (
        DYNAMO_WORKERS,
        include_str!("../crds/nvidia.com_dynamoworkermetadatas.yaml"),
    ),
    (KUBERAY_CLUSTERS, include_str!("../crds/ray.io_rayclusters.yaml")),
    (KEDA_SCALED_OBJECTS, include_str!("../crds/keda.sh_scaledobjects.yaml")),
    (
        KEDA_TRIGGER_AUTHENTICATIONS,
        include_str!("../crds/keda.sh_triggerauthentications.yaml"),
    ),
    (
        KSERVE_INFERENCE_SERVICES,
        include_str!("../crds/serving.kserve.io_inferenceservices.yaml"),
    ),
];

/// Loads CRDs by file name, such as [`KAITO_WORKSPACES`].
pub fn upstream_crds(names: &[&str]) -> Result<Vec<CustomResourceDefinition>> {
    names.iter().map(|name| upstream_crd(name)).collect()
}

fn upstream_crd(name: &str) -> Result<CustomResourceDefinition> {
    let path = Path::new(REAL).join(name);
    let text = match fs::read_to_string(&path) {
        Ok(text) => text,
        Err(error) => {
            let own = MINIMAL.iter().chain(&NEIGHBORS).find(|(known, _)| *known == name);
            let Some((_, minimal)) = own else {
                bail!(
                    "the CRD {} cannot be read ({error}), and the test bed has none of its own by that name",
                    path.display()
                );
            };
            say(&format!(
                "WARNING: the real CRD {} cannot be read ({error}): the test bed's own minimal one is used, \
                 which accepts more and proves less",
                path.display()
            ));
            (*minimal).to_owned()
        }
    };
    serde_saphyr::from_str(&text).with_context(|| format!("{name} is not a CustomResourceDefinition"))
}

/// Our own minimal CRDs, by file name: what a checkout without the real ones works with.
pub fn minimal_crds() -> Result<Vec<(&'static str, CustomResourceDefinition)>> {
    let parsed = MINIMAL
        .iter()
        .map(|(name, text)| Ok((*name, serde_saphyr::from_str(text).with_context(|| *name)?)));
    parsed.collect()
}

/// The real CRDs of the Gateway API (Gateways and HTTPRoutes) and of its inference extension. They are downloaded as Go modules
/// once. No controller of a Gateway acts on them.
pub async fn gateway_api() -> Result<Vec<CustomResourceDefinition>> {
    let texts = tokio::task::spawn_blocking(binaries::gateway_api).await??;
    let parsed = |text: &String| serde_saphyr::from_str(text).context("not a CustomResourceDefinition");
    texts.iter().map(parsed).collect()
}

/// Installs or updates a CRD and waits until the API server serves it.
pub async fn install_crd(client: &Client, mut crd: CustomResourceDefinition) -> Result<()> {
    let name = crd.name_any();
    // Server-side apply refuses an object that was read from a server.
    crd.metadata.managed_fields = None;
    crd.metadata.resource_version = None;
    crd.status = None;

    let api: Api<CustomResourceDefinition> = Api::all(client.clone());
    let params = PatchParams::apply(SELF).force();
    api.patch(&name, &params, &Patch::Apply(&crd))
        .await
        .with_context(|| format!("cannot install the CRD {name}"))?;
    let established = await_condition(api, &name, conditions::is_crd_established());
    tokio::time::timeout(PATIENCE, established)
        .await
        .with_context(|| format!("the CRD {name} is installed but not served after {PATIENCE:?}"))??;
    versions_are_served(client, &crd).await
}

/// Waits for the versions of a CRD. One that is added to an established CRD is served a moment later.
async fn versions_are_served(client: &Client, crd: &CustomResourceDefinition) -> Result<()> {
    let names = &crd.spec.names;
    for version in crd.spec.versions.iter().filter(|version| version.served) {
        let kind = GroupVersionKind::gvk(&crd.spec.group, &version.name, &names.kind);
        let resource = ApiResource::from_gvk_with_plural(&kind, &names.plural);
        let objects: Api<DynamicObject> = Api::all_with(client.clone(), &resource);
        eventually(PATIENCE, async || {
            // Any other answer comes from the version, such as that of a conversion webhook which is not there yet.
            let listed = objects.list_metadata(&ListParams::default().limit(1)).await;
            let is_missing = matches!(&listed, Err(kube::Error::Api(status)) if status.code == 404);
            ensure!(
                !is_missing,
                "{} of {} are not served",
                names.plural,
                resource.api_version
            );
            Ok(())
        })
        .await?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{ControlPlane, Options};

    #[tokio::test]
    async fn our_own_crds_are_served() -> Result<()> {
        let cluster = ControlPlane::start(Options::default()).await?;
        let client = cluster.admin_client().await?;
        for (name, crd) in minimal_crds()? {
            install_crd(&client, crd).await.with_context(|| name)?;
        }
        cluster.stop().await
    }

    #[test]
    fn missing_crd_is_named() {
        let error = upstream_crds(&["example.org_things.yaml"]).unwrap_err();
        assert!(error.to_string().contains("example.org_things.yaml"), "{error}");
    }
}
