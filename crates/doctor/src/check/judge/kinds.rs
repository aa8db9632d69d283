//! Our CRDs.

use std::collections::BTreeMap;

use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::ResourceExt;
use runway_api::labels;

use super::shared::{COMPONENTS, each, unless_none};
use crate::check::{Check, Finding, Observed};
use crate::check::{Judged, Skip};

const INSTALL: &str = "kubeairunway controller install";
const UPGRADE: &str = "kubeairunway controller upgrade";

pub(super) const CHECKS: &[Check] = &[
    Check {
        id: "crd-installed",
        title: "CRDs are installed",
        looks_at: "The CustomResourceDefinitions of all installed components exist. Without them, no objects of these kinds can be created.",
        remedy: INSTALL,
        judge: Some(installed),
    },
    Check {
        id: "crd-established",
        title: "CRDs are established",
        looks_at: "The conditions Established and NamesAccepted of each CRD are True.",
        remedy: "kubectl get crd -o wide; another CRD may use the same names",
        judge: Some(established),
    },
    Check {
        id: "crd-current",
        title: "CRDs have the schema of this version",
        looks_at: "The schema of each served version equals the schema that this command contains.",
        remedy: UPGRADE,
        judge: Some(current),
    },
    Check {
        id: "crd-stored",
        title: "stored versions are served",
        looks_at: "All status.storedVersions of each CRD are in spec.versions. Objects stored in any other version cannot be read.",
        remedy: "restore the stored version: run kubeairunway controller upgrade of the release that created the objects",
        judge: Some(stored),
    },
    Check {
        id: "crd-terminating",
        title: "no CRD is being deleted",
        looks_at: "No CRD has a deletion timestamp. Objects of such a CRD are deleted, and new ones are rejected.",
        remedy: "kubectl get crd NAME -o yaml shows the blocking finalizer; install again after the deletion",
        judge: Some(terminating),
    },
];

/// The CRDs of the core, and of the other components that are installed.
fn wanted(observed: &Observed) -> BTreeMap<String, &'static CustomResourceDefinition> {
    let deployments = observed.deployments().unwrap_or_default();
    COMPONENTS
        .iter()
        .filter(|c| c.name == labels::CORE_MANAGER || deployments.iter().any(|d| d.name_any() == c.name))
        .flat_map(|c| &c.crds)
        .map(|crd| (crd.name_any(), crd))
        .collect()
}

fn subject(name: &str) -> String {
    format!("CustomResourceDefinition {name}")
}

fn installed(observed: &Observed) -> Judged {
    let there = observed.crds()?;
    let missing = wanted(observed)
        .into_keys()
        .filter(|name| there.iter().all(|crd| crd.name_any() != *name));
    Ok(missing
        .map(|name| Finding::error(subject(&name), "not installed"))
        .collect())
}

/// Installed CRDs, each with the CRD of this version.
fn both(observed: &Observed) -> Result<Vec<(&CustomResourceDefinition, &'static CustomResourceDefinition)>, Skip> {
    let mut wanted = wanted(observed);
    let there = observed.crds()?;
    let both: Vec<_> = there
        .iter()
        .filter_map(|crd| Some((crd, wanted.remove(&crd.name_any())?)))
        .collect();
    unless_none(&both, "CRDs of this product")?;
    Ok(both)
}

fn established(observed: &Observed) -> Judged {
    let find = |(crd, _): &(&CustomResourceDefinition, _)| {
        let conditions = crd
            .status
            .as_ref()
            .and_then(|s| s.conditions.clone())
            .unwrap_or_default();
        let bad = conditions
            .iter()
            .find(|c| ["NamesAccepted", "Established"].contains(&c.type_.as_str()) && c.status != "True");
        let established = conditions.iter().any(|c| c.type_ == "Established");
        match bad {
            Some(c) => Some(format!(
                "{} is {}: {}",
                c.type_,
                c.status,
                c.message.clone().unwrap_or_default()
            )),
            None if established => None,
            None => Some("not established yet".to_owned()),
        }
        .map(|text| Finding::error(subject(&crd.name_any()), text))
    };
    Ok(each(&both(observed)?, find))
}

fn current(observed: &Observed) -> Judged {
    let find = |(there, wanted): &(&CustomResourceDefinition, &CustomResourceDefinition)| {
        let differs = wanted.spec.versions.iter().find(|version| {
            let found = there.spec.versions.iter().find(|v| v.name == version.name);
            found.is_none_or(|found| !found.served || found.schema != version.schema)
        })?;
        let text = format!(
            "the schema of {} differs from this version ({})",
            differs.name,
            env!("CARGO_PKG_VERSION")
        );
        Some(Finding::warning(subject(&there.name_any()), text))
    };
    Ok(each(&both(observed)?, find))
}

fn stored(observed: &Observed) -> Judged {
    let find = |(crd, _): &(&CustomResourceDefinition, _)| {
        let stored = crd.status.as_ref()?.stored_versions.as_ref()?;
        let lost = stored
            .iter()
            .find(|stored| crd.spec.versions.iter().all(|v| v.name != **stored))?;
        Some(Finding::error(
            subject(&crd.name_any()),
            format!("status.storedVersions contains {lost}, which spec.versions does not serve"),
        ))
    };
    Ok(each(&both(observed)?, find))
}

fn terminating(observed: &Observed) -> Judged {
    let find = |(crd, _): &(&CustomResourceDefinition, _)| {
        crd.metadata.deletion_timestamp.as_ref()?;
        Some(Finding::error(
            subject(&crd.name_any()),
            "being deleted, including its objects",
        ))
    };
    Ok(each(&both(observed)?, find))
}
