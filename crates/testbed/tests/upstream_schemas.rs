//! Every built-in provider knows the schema of its upstreams: of the real CRDs, and of our own minimal ones.

use anyhow::{Result, ensure};
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use runway_manifests::built_in_providers;
use runway_provider::upstream::{Installed, Schema, State, Upstream, crd_name, detect};
use runway_testbed::crds::{self, minimal_crds};

fn newest(upstream: &Upstream, schema: &'static Schema) -> State {
    let only = Upstream {
        schemas: std::slice::from_ref(schema),
        ..upstream.clone()
    };
    Installed::newest(&[only]).state(upstream.kind)
}

fn known(name: &str, crd: &CustomResourceDefinition) -> Result<Vec<(Upstream, State)>> {
    let mut found = Vec::new();
    for provider in built_in_providers() {
        for upstream in provider.upstreams() {
            if crd.metadata.name.as_deref() == Some(&crd_name(upstream.kind)) {
                let state = detect(&upstream, Some(crd));
                ensure!(
                    matches!(state, State::Known { .. }),
                    "{} does not know {name}: {state:?}",
                    provider.name()
                );
                found.push((upstream, state));
            }
        }
    }
    ensure!(!found.is_empty(), "no provider asks for {name}");
    Ok(found)
}

#[test]
fn of_the_minimal_crds() -> Result<()> {
    minimal_crds()?
        .iter()
        .try_for_each(|(name, crd)| known(name, crd).map(drop))
}

#[test]
fn of_the_real_crds() -> Result<()> {
    for (name, minimal) in minimal_crds()? {
        // Says loudly where the real one is not to be had.
        for crd in crds::upstream_crds(&[name])? {
            let found = known(name, &crd)?;
            // Ours leave the types of some fields open.
            for (upstream, state) in found.iter().filter(|_| crd != minimal) {
                // Those of docs/reference/versions.md.
                let schemas = upstream.schemas.iter();
                let listed: Vec<State> = schemas.map(|schema| newest(upstream, schema)).collect();
                ensure!(listed.contains(state), "{name}: {state:?} is not in {listed:?}");
            }
        }
    }
    Ok(())
}
