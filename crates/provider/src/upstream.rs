//! Which upstream schemas are installed: found by served version and by a fingerprint of the fields a translator writes
//! and reads, taken from the live CRD.

use std::collections::BTreeMap;

use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::core::ApiResource;
use runway_operator::{crd, json};

use crate::contract::Kind;

/// An upstream kind and the schemas of it that a provider knows, newest first.
#[derive(Clone, Debug)]
pub struct Upstream {
    /// The kind.
    pub kind: Kind,
    /// The schemas, newest first.
    pub schemas: &'static [Schema],
}

/// A schema that a translator is written for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Schema {
    /// API version, as `v1beta1`.
    pub version: &'static str,
    /// Every field the translator writes or reads, as a dotted path, with its type (`string`, `integer`, `object`, `array`,
    /// `any`). `[]` steps into a list, `{}` into a map: `inference.template`, `status.conditions[].type`.
    pub fields: &'static [(&'static str, &'static str)],
}

/// What is known of one upstream kind in the cluster.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum State {
    /// The CRD is not installed.
    Missing,
    /// Installed, but no known schema fits.
    Unknown {
        /// The versions that are served, the storage version first.
        served: Vec<String>,
        /// What does not fit, for the newest schema known.
        problems: Vec<String>,
    },
    /// Installed with a schema that a translator is written for.
    Known {
        /// API version in use, as `v1beta1`.
        version: String,
        /// Fingerprint of the fields written and read.
        hash: String,
    },
}

/// What is installed of every kind that a provider makes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Installed(BTreeMap<Kind, State>);

impl Installed {
    /// From states.
    pub fn new(states: impl IntoIterator<Item = (Kind, State)>) -> Self {
        Self(states.into_iter().collect())
    }

    /// The newest schema known of every kind: what holds when nothing is known of a cluster.
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

    /// What is known of a kind.
    pub fn state(&self, kind: Kind) -> State {
        self.0
            .get(&kind)
            .cloned()
            .unwrap_or_else(|| if kind.is_built_in() { built_in() } else { State::Missing })
    }

    /// The version in use, if the kind is installed with a known schema.
    pub fn version(&self, kind: Kind) -> Option<String> {
        match self.state(kind) {
            State::Known { version, .. } => Some(version),
            _ => None,
        }
    }

    /// The version by which objects of a kind can be seen and deleted, also where no translator knows its schema.
    pub fn visible_version(&self, kind: Kind) -> Option<String> {
        match self.state(kind) {
            State::Known { version, .. } => Some(version),
            State::Unknown { served, .. } => served.into_iter().next(),
            State::Missing => None,
        }
    }

    /// Where the kind lives in the API, if it can be used.
    pub fn resource(&self, kind: Kind) -> Option<ApiResource> {
        Some(kind.resource_in(&self.version(kind)?))
    }
}

/// The state of a kind that Kubernetes itself brings.
pub fn built_in() -> State {
    State::Known {
        version: "v1".to_owned(),
        hash: String::new(),
    }
}

/// Where a kind lives in the API.
pub fn api_resource(kind: Kind, version: &str) -> ApiResource {
    kind.resource_in(version)
}

/// Name of a kind's CRD.
pub fn crd_name(kind: Kind) -> String {
    kind.crd_name()
}

/// Finds the schema of an upstream in its live CRD: the first known one that is served and fits, the storage version
/// before others, since a write in any other version needs the upstream's conversion webhook.
pub fn detect(upstream: &Upstream, crd: Option<&CustomResourceDefinition>) -> State {
    detect_in(upstream, crd.map(crd::Spec::from).as_ref())
}

/// The same in what a controller keeps of a CRD.
pub(crate) fn detect_in(upstream: &Upstream, crd: Option<&crd::Spec>) -> State {
    if upstream.kind.is_built_in() {
        return built_in();
    }
    let Some(crd) = crd else { return State::Missing };
    let mut served: Vec<_> = crd.versions.iter().filter(|v| v.served).collect();
    served.sort_by_key(|version| !version.storage);
    let stored_first = upstream.schemas.iter().flat_map(|schema| {
        served
            .iter()
            .filter(move |v| v.name == schema.version)
            .map(move |v| (schema, *v))
    });
    let mut candidates: Vec<_> = stored_first.collect();
    candidates.sort_by_key(|(_, version)| !version.storage);

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

/// Enough to know what is wrong; a schema of another kind misses everything.
fn a_few(mut problems: Vec<String>) -> Vec<String> {
    const SHOWN: usize = 3;
    let more = problems.len().saturating_sub(SHOWN);
    problems.truncate(SHOWN);
    if more > 0 {
        problems.push(format!("and {more} more"));
    }
    problems
}

/// The hash of the fields a translator writes and reads, or what does not fit.
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

/// The type of the field at a path; below a field that keeps unknown fields, anything goes.
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
