//! Every built-in provider knows the schema of its upstreams: of the real CRDs, and of our own minimal ones.

use anyhow::{Result, ensure};
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use runway_client::manifests::built_in_providers;
use runway_provider::upstream::{State, crd_name, detect};
use runway_testbed::crds::{self, minimal_crds};

fn known(name: &str, crd: &CustomResourceDefinition) -> Result<()> {
    let mut asked = false;
    for provider in built_in_providers() {
        for upstream in provider.upstreams() {
            if crd.metadata.name.as_deref() == Some(&crd_name(upstream.kind)) {
                asked = true;
                let state = detect(&upstream, Some(crd));
                ensure!(
                    matches!(state, State::Known { .. }),
                    "{} does not know {name}: {state:?}",
                    provider.name()
                );
            }
        }
    }
    ensure!(asked, "no provider asks for {name}");
    Ok(())
}

#[test]
fn of_the_minimal_crds() -> Result<()> {
    minimal_crds()?.iter().try_for_each(|(name, crd)| known(name, crd))
}

#[test]
fn of_the_real_crds() -> Result<()> {
    for (name, _) in minimal_crds()? {
        // Says loudly where the real one is not to be had.
        crds::upstream_crds(&[name])?
            .iter()
            .try_for_each(|crd| known(name, crd))?;
    }
    Ok(())
}
