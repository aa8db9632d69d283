//! Detection of installed upstream schemas: by served version, and by a fingerprint of the fields that a provider writes and
//! reads, from the live CRD.

use std::collections::BTreeMap;

use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::core::ApiResource;
use runway_api::InferenceProviderConfig;
use runway_operator::object::Kind;
use runway_operator::{crd, json};
use semver::Version;

/// An upstream kind and the schemas that a provider knows.
#[derive(Clone, Debug)]
pub struct Upstream {
    /// The kind.
    pub kind: Kind,
    /// Known schemas, newest first.
    pub schemas: &'static [Schema],
}

/// A schema that a provider supports.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Schema {
    /// API version, such as `v1beta1`.
    pub version: &'static str,
    /// Fields that the provider writes or reads, as dotted paths with their types (`string`, `integer`, `object`, `array`,
    /// `any`). `[]` stands for the items of a list, `{}` for the values of a map: `inference.template`,
    /// `status.conditions[].type`.
    pub fields: &'static [(&'static str, &'static str)],
}

/// State of an upstream kind in the cluster.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum State {
    /// The CRD is not installed.
    Missing,
    /// The CRD is installed, but no known schema fits.
    Unknown {
        /// Served versions, the storage version first.
        served: Vec<String>,
        /// Differences from the newest known schema.
        problems: Vec<String>,
    },
    /// The CRD is installed with a known schema.
    Known {
        /// API version in use, such as `v1beta1`.
        version: String,
        /// Fingerprint of the fields that are written and read.
        hash: String,
    },
}

/// States of the upstream kinds of a provider, and the release of its operator.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Installed {
    states: BTreeMap<Kind, State>,
    release: Option<Version>,
}

impl Installed {
    /// Collects the states of kinds.
    pub fn new(states: impl IntoIterator<Item = (Kind, State)>) -> Self {
        Self {
            states: states.into_iter().collect(),
            release: None,
        }
    }

    /// Adds the release of the upstream operator, if it is known.
    #[must_use]
    pub fn with_release(self, release: Option<Version>) -> Self {
        Self { release, ..self }
    }

    /// Adds the release of the upstream operator from the status of a registration.
    #[must_use]
    pub fn registered(self, registration: Option<&InferenceProviderConfig>) -> Self {
        let status = registration.and_then(|registration| registration.status.as_ref());
        let release = status.and_then(|status| status.upstream_release.as_ref()?.parse().ok());
        self.with_release(release)
    }

    /// Release of the upstream operator, if its Deployment shows one.
    pub fn release(&self) -> Option<&Version> {
        self.release.as_ref()
    }

    /// The newest known schema of every kind: the assumption if nothing is known about a cluster.
    pub fn newest(upstreams: &[Upstream]) -> Self {
        Self::new(upstreams.iter().filter_map(|upstream| {
            let schema = upstream.schemas.first()?;
            let fields: BTreeMap<_, _> = schema.fields.iter().copied().collect();
            Some((
                upstream.kind,
                State::Known {
                    version: schema.version.to_owned(),
                    hash: json::hash(&fields),
                },
            ))
        }))
    }

    /// State of a kind.
    pub fn state(&self, kind: Kind) -> State {
        self.states
            .get(&kind)
            .cloned()
            .unwrap_or_else(|| if kind.is_built_in() { built_in() } else { State::Missing })
    }

    /// Version in use, if the kind is installed with a known schema.
    pub fn version(&self, kind: Kind) -> Option<String> {
        match self.state(kind) {
            State::Known { version, .. } => Some(version),
            _ => None,
        }
    }

    /// Version for reading and deleting objects of a kind, even if its schema is unknown.
    pub fn visible_version(&self, kind: Kind) -> Option<String> {
        match self.state(kind) {
            State::Known { version, .. } => Some(version),
            State::Unknown { served, .. } => served.into_iter().next(),
            State::Missing => None,
        }
    }

    /// Location of the kind in the API, if it can be used.
    pub fn resource(&self, kind: Kind) -> Option<ApiResource> {
        Some(kind.resource_in(&self.version(kind)?))
    }
}

/// State of a built-in kind.
pub fn built_in() -> State {
    State::Known {
        version: "v1".to_owned(),
        hash: String::new(),
    }
}

/// Location of a kind in the API.
pub fn api_resource(kind: Kind, version: &str) -> ApiResource {
    kind.resource_in(version)
}

/// Name of a kind's CRD.
pub fn crd_name(kind: Kind) -> String {
    kind.crd_name()
}

/// Finds the schema of an upstream in its live CRD: the newest known one that is served and fits. Without a conversion webhook,
/// the storage version comes first, since writes in other versions lose the fields that it lacks.
pub fn detect(upstream: &Upstream, crd: Option<&CustomResourceDefinition>) -> State {
    detect_in(upstream, crd.map(crd::Spec::from).as_ref())
}

/// Same as [`detect`], for the parts of a CRD that a controller keeps.
pub(crate) fn detect_in(upstream: &Upstream, crd: Option<&crd::Spec>) -> State {
    if upstream.kind.is_built_in() {
        return built_in();
    }
    let Some(crd) = crd else { return State::Missing };
    let mut served: Vec<_> = crd.versions.iter().filter(|v| v.served).collect();
    served.sort_by_key(|version| !version.storage);
    let newest_first = upstream.schemas.iter().flat_map(|schema| {
        served
            .iter()
            .filter(move |v| v.name == schema.version)
            .map(move |v| (schema, *v))
    });
    let mut candidates: Vec<_> = newest_first.collect();
    candidates.sort_by_key(|(_, version)| !(version.storage || crd.has_conversion_webhook()));

    let mut problems = Vec::new();
    for (schema, version) in candidates {
        match fingerprint(schema, version) {
            Ok(hash) => {
                return State::Known {
                    version: version.name.clone(),
                    hash,
                };
            }
            Err(misfits) if problems.is_empty() => problems = a_few(misfits),
            Err(_) => {}
        }
    }
    State::Unknown {
        served: served.iter().map(|v| v.name.clone()).collect(),
        problems,
    }
}

/// The first few problems. A schema of another kind would lack every field.
fn a_few(mut problems: Vec<String>) -> Vec<String> {
    const SHOWN: usize = 3;
    let more = problems.len().saturating_sub(SHOWN);
    problems.truncate(SHOWN);
    if more > 0 {
        problems.push(format!("and {more} more"));
    }
    problems
}

/// Hash of the fields that are written and read, or the differences.
fn fingerprint(schema: &Schema, version: &crd::Version) -> Result<String, Vec<String>> {
    let root = version.root();
    let mut found = BTreeMap::new();
    let mut misfits = Vec::new();
    for (path, wanted) in schema.fields {
        match root.and_then(|root| type_at(root, path)) {
            Some(kind) if kind == *wanted || *wanted == "any" || kind == "any" => {
                found.insert(*path, kind);
            }
            Some(kind) => misfits.push(format!("{path} is of type {kind}, expected {wanted}")),
            None => misfits.push(format!("{path} does not exist")),
        }
    }
    if misfits.is_empty() {
        Ok(json::hash(&found))
    } else {
        Err(misfits)
    }
}

/// Type of the field at a path. Below a field that preserves unknown fields, every path exists.
fn type_at<'a>(root: &'a crd::Field, path: &str) -> Option<&'a str> {
    let mut at = root;
    for step in path.split('.') {
        if at.is_open() {
            return Some("any");
        }
        let name = step.trim_end_matches("[]").trim_end_matches("{}");
        at = at.field(name)?;
        if step.ends_with("[]") {
            at = at.items()?;
        } else if step.ends_with("{}") {
            at = at.values()?;
        }
    }
    Some(at.kind().unwrap_or("any"))
}
