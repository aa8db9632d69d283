//! The page of upstream versions: for each schema that a provider knows, its fingerprint and the releases that have it.

use std::fmt::Write;

use anyhow::{Result, ensure};
use runway_manifests as manifests;
use runway_provider::{Installed, State, Upstream};

/// Path of the page.
pub(crate) const PATH: &str = "docs/reference/versions.md";

const INTRODUCTION: &str = "<!-- Made by `cargo xtask gen` from the code. Do not edit. -->
# Upstream versions

A provider recognizes an upstream by the schema of its CRDs, not by its release: by the API version and a fingerprint of the
fields that it writes and reads. A release that is not listed works if its fingerprint is; one that changes only other fields has
the same fingerprint. To see those of a cluster:

```console
kubectl get inferenceproviderconfigs -o custom-columns=NAME:.metadata.name,VERSION:.status.upstreamCRDVersion,FINGERPRINT:.status.upstreamSchemaHash
```

With a schema that is not listed, `ProviderCompatible` is False with the reason `UnknownUpstreamSchema`; models that run keep
running. The column *tested* names the CRD with which the tests run: *real* is the CRD of that release, without its operator.
[Test coverage](../project/tested.md) says what else is real.
";

/// Releases with a schema of an upstream kind, in the order of the provider's schemas.
struct Releases {
    kind: &'static str,
    schemas: &'static [(&'static str, &'static str)],
}

/// Read in the CRDs of the tagged releases: `config/crd/bases` of kaito-project/kaito, `ray-operator/config/crd/bases` of
/// ray-project/kuberay. Dynamo has no tags with CRDs that could be read; its two are of the named months.
const RELEASES: [Releases; 4] = [
    Releases {
        kind: "Workspace",
        schemas: &[("KAITO 0.9 to 0.12", "real (0.12)")],
    },
    Releases {
        kind: "InferenceSet",
        schemas: &[
            ("KAITO 0.11 and 0.12", "real (0.12)"),
            (
                "KAITO 0.8 to 0.10, with the feature gate enableInferenceSetController",
                "golden cases",
            ),
        ],
    },
    Releases {
        kind: "DynamoGraphDeployment",
        schemas: &[
            ("Dynamo with v1beta1, August 2026", "real (August 2026)"),
            ("the first releases of Dynamo with v1beta1", "golden cases"),
            ("Dynamo with v1alpha1 only, until early 2026", "real (February 2026)"),
        ],
    },
    Releases {
        kind: "RayService",
        schemas: &[
            ("KubeRay 1.7", "real (1.7)"),
            ("KubeRay 1.3 to 1.6", "golden cases"),
            ("KubeRay 1.1 and 1.2", "golden cases"),
        ],
    },
];

/// The page. Fails if a schema has no releases.
pub(crate) fn page() -> Result<String> {
    let mut page = INTRODUCTION.to_owned();
    for provider in manifests::built_in_providers() {
        let upstreams: Vec<Upstream> = provider.upstreams();
        if upstreams.iter().all(|upstream| upstream.kind.is_built_in()) {
            continue;
        }
        write!(
            page,
            "\n## {}\n\n| kind | API version | fingerprint | releases | tested |\n|---|---|---|---|---|\n",
            provider.title()
        )?;
        for upstream in upstreams {
            page.push_str(&rows(&upstream)?);
        }
    }
    Ok(page)
}

fn rows(upstream: &Upstream) -> Result<String> {
    let kind = upstream.kind.kind;
    let releases = RELEASES.iter().find(|releases| releases.kind == kind);
    let releases = releases.map_or(&[][..], |releases| releases.schemas);
    ensure!(
        releases.len() == upstream.schemas.len(),
        "{kind} has {} schemas and {} entries in dev/generate/src/docs/versions.rs",
        upstream.schemas.len(),
        releases.len()
    );
    let mut rows = String::new();
    for (schema, (releases, tested)) in upstream.schemas.iter().zip(releases) {
        let only = Upstream {
            schemas: std::slice::from_ref(schema),
            ..upstream.clone()
        };
        let State::Known { version, hash } = Installed::newest(&[only]).state(upstream.kind) else {
            continue;
        };
        writeln!(rows, "| {kind} | {version} | `{hash}` | {releases} | {tested} |")?;
    }
    Ok(rows)
}
