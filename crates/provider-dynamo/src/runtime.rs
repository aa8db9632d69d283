//! Dynamo's runtime: images, version, and flags that differ between versions.
//!
//! One image contains the engine and Dynamo's worker for it; its tag is Dynamo's version. The flags of the engines themselves
//! are the same in these releases.

use std::fmt;
use std::str::FromStr;

use runway_provider::settings::Mirror;
use schemars::JsonSchema;
use serde::Deserialize;

use crate::role::Role;
use crate::schema::Shape;
use crate::versions;

/// A version of Dynamo's runtime, such as 1.3.1.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Deserialize, JsonSchema)]
#[serde(try_from = "String")]
#[schemars(with = "String")]
pub struct RuntimeVersion {
    major: u32,
    minor: u32,
    patch: u32,
}

/// The text is not a version.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("'{0}' is not a version of Dynamo, such as 1.3.1")]
pub struct NotAVersion(String);

/// The version of these numbers.
pub(crate) const fn v(major: u32, minor: u32, patch: u32) -> RuntimeVersion {
    RuntimeVersion { major, minor, patch }
}

/// Default version, unless the user or the administrator sets one, or the operator's Deployment shows its release.
pub(crate) fn default_version(shape: Shape) -> RuntimeVersion {
    match shape {
        // The last release before 1.0, of the same time as operators that have only v1alpha1 (CRD of 2026-02).
        Shape::V1Alpha1 => v(0, 9, 1),
        Shape::V1Beta1 => {
            let [major, minor, patch] = versions::DYNAMO;
            v(major, minor, patch)
        }
    }
}

/// Runtime of all components of a deployment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Runtime {
    pub(crate) image: String,
    pub(crate) version: RuntimeVersion,
    pub(crate) reported_by: ReportedBy,
    /// User of the image, if it is known.
    pub(crate) user: Option<i64>,
}

/// Origin of the version.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ReportedBy {
    /// The tag of the image, which Dynamo reads as well.
    Tag,
    /// The tag of the image, which Dynamo does not read: 0.7.0.post1, or a tag with a digest.
    TagInOurReading,
    /// Not known.
    Assumption,
}

impl Runtime {
    /// The runtime in the user's image, or in Dynamo's or its copy.
    pub(crate) fn of(
        image: Option<&str>,
        repository: &str,
        otherwise: RuntimeVersion,
        mirror: Option<&Mirror>,
    ) -> Self {
        let Some(image) = image else {
            let image = format!("nvcr.io/nvidia/ai-dynamo/{repository}:{otherwise}");
            return Self {
                image: Mirror::of_default(mirror, &image).into_owned(),
                version: otherwise,
                reported_by: ReportedBy::Tag,
                user: user(otherwise),
            };
        };
        let (version, reported_by) = match version_of(image) {
            Some((version, reported_by)) => (version, reported_by),
            None => (otherwise, ReportedBy::Assumption),
        };
        Self {
            image: image.to_owned(),
            version,
            reported_by,
            user: None,
        }
    }
}

/// User of Dynamo's images, if it is the same in all images of the version (Dynamo `container/templates/*_runtime.Dockerfile`, which
/// create the user `dynamo` and check its number).
fn user(version: RuntimeVersion) -> Option<i64> {
    (version >= v(0, 9, 0)).then_some(1000)
}

/// The version in an image's tag: the digits at its beginning. Dynamo itself requires semver for the rest, and no digest (Dynamo
/// `deploy/operator/internal/webhook/validation/shared_helpers.go`, runtimeVersionOverrideRequired).
fn version_of(image: &str) -> Option<(RuntimeVersion, ReportedBy)> {
    let (reference, digest) = image.split_once('@').map_or((image, None), |(r, d)| (r, Some(d)));
    let (_, tag) = reference.rsplit('/').next()?.split_once(':')?;
    let numbers = tag.strip_prefix('v').unwrap_or(tag);
    let end = numbers
        .find(|c: char| !c.is_ascii_digit() && c != '.')
        .unwrap_or(numbers.len());
    let (numbers, rest) = numbers.split_at(end);
    let version = numbers.trim_end_matches('.').parse().ok()?;
    let is_semver = !numbers.ends_with('.') && (rest.is_empty() || rest.starts_with(['-', '+']));
    let reported_by = if is_semver && digest.is_none() {
        ReportedBy::Tag
    } else {
        ReportedBy::TagInOurReading
    };
    Some((version, reported_by))
}

impl TryFrom<String> for RuntimeVersion {
    type Error = NotAVersion;

    fn try_from(text: String) -> Result<Self, NotAVersion> {
        text.parse()
    }
}

impl FromStr for RuntimeVersion {
    type Err = NotAVersion;

    fn from_str(text: &str) -> Result<Self, NotAVersion> {
        let parts: Vec<u32> = text
            .split('.')
            .map(str::parse)
            .collect::<Result<_, _>>()
            .map_err(|_| NotAVersion(text.to_owned()))?;
        match parts[..] {
            // Format of runtimeVersionOverride.
            [major, minor, patch] if parts.iter().all(|part| *part < 10_000) => Ok(v(major, minor, patch)),
            _ => Err(NotAVersion(text.to_owned())),
        }
    }
}

impl fmt::Display for RuntimeVersion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}.{}", self.major, self.minor, self.patch)
    }
}

/// Flags with their values; an empty value stands for a flag without one.
pub(crate) type FlagList = &'static [(&'static str, &'static str)];

/// Dynamo's own flags of one engine's worker, since a release.
pub(crate) struct Release {
    since: RuntimeVersion,
    prefill: FlagList,
    decode: FlagList,
    /// For prefill and aggregated workers behind a router that uses their KV caches. Decode workers publish nothing: the router
    /// does not use their caches (Dynamo `docs/components/router/disaggregated-serving`).
    kv_events: FlagList,
}

/// Flags for the role of a worker, and those by which it publishes its KV cache, if the router uses it.
pub(crate) fn worker_flags(
    releases: Releases,
    version: RuntimeVersion,
    role: Role,
    publishes: bool,
) -> impl Iterator<Item = (&'static str, &'static str)> {
    let release = release(releases, version);
    let (of_role, events): (FlagList, FlagList) = match role {
        Role::Frontend => (&[], &[]),
        Role::Worker => (&[], release.kv_events),
        Role::Prefill => (release.prefill, release.kv_events),
        Role::Decode => (release.decode, &[]),
    };
    of_role.iter().chain(events.iter().filter(move |_| publishes)).copied()
}

fn release((newer, oldest): Releases, version: RuntimeVersion) -> &'static Release {
    newer.iter().find(|release| release.since <= version).unwrap_or(oldest)
}

/// Newest first, and the oldest one.
pub(crate) type Releases = (&'static [Release], &'static Release);

const NIXL: (&str, &str) = (
    "kv-transfer-config",
    r#"{"kv_connector":"NixlConnector","kv_role":"kv_both"}"#,
);

/// 1.0.0 added `--disaggregation-mode` (pull request 6483; the earlier flags were removed in 1.4.0, 12089), removed the default
/// connector (6450) and no longer sends KV events by default (6404).
pub(crate) const VLLM: Releases = (
    &[Release {
        since: v(1, 0, 0),
        prefill: &[("disaggregation-mode", "prefill"), NIXL],
        decode: &[("disaggregation-mode", "decode"), NIXL],
        kv_events: &[(
            "kv-events-config",
            r#"{"publisher":"zmq","topic":"kv-events","endpoint":"tcp://*:20080","enable_kv_cache_events":true}"#,
        )],
    }],
    &Release {
        since: v(0, 0, 0),
        prefill: &[("is-prefill-worker", "")],
        decode: &[("is-decode-worker", "")],
        kv_events: &[],
    },
);

/// The same in all releases (Dynamo `examples/backends/sglang/deploy`, `disagg.yaml` and `agg_router.yaml`). Prefill and decode
/// must have pages of the same size; the router counts in pages, and SGLang's default is one token per page.
pub(crate) const SGLANG: Releases = (
    &[],
    &Release {
        since: v(0, 0, 0),
        prefill: &[
            ("disaggregation-mode", "prefill"),
            ("disaggregation-transfer-backend", "nixl"),
            ("disaggregation-bootstrap-port", "12345"),
            ("host", "0.0.0.0"),
            ("page-size", "16"),
            ("skip-tokenizer-init", ""),
        ],
        decode: &[
            ("disaggregation-mode", "decode"),
            ("disaggregation-transfer-backend", "nixl"),
            ("disaggregation-bootstrap-port", "12345"),
            ("host", "0.0.0.0"),
            ("page-size", "16"),
            ("skip-tokenizer-init", ""),
        ],
        kv_events: &[
            (
                "kv-events-config",
                r#"{"publisher":"zmq","topic":"kv-events","endpoint":"tcp://*:5557"}"#,
            ),
            ("page-size", "16"),
        ],
    },
);

const TRT_PREFILL: FlagList = &[
    ("disaggregation-mode", "prefill"),
    (ENGINE_OPTIONS, TRT_PREFILL_OPTIONS),
];
const TRT_DECODE: FlagList = &[("disaggregation-mode", "decode"), (ENGINE_OPTIONS, TRT_DECODE_OPTIONS)];

/// As in Dynamo's `examples/backends/trtllm/engine_configs/qwen3/prefill.yaml` and `decode.yaml`: without a transceiver
/// TensorRT-LLM cannot transfer a cache, and its overlap scheduler does not work in prefill workers.
const TRT_PREFILL_OPTIONS: &str =
    r#"{"cache_transceiver_config":{"backend":"DEFAULT"},"disable_overlap_scheduler":true}"#;
const TRT_DECODE_OPTIONS: &str = r#"{"cache_transceiver_config":{"backend":"DEFAULT"}}"#;

/// The flag of dynamo.trtllm for TensorRT-LLM's own options, as JSON.
pub(crate) const ENGINE_OPTIONS: &str = "override-engine-args";

/// 1.3.0 renamed the flag for KV events (Dynamo `docs/components/router`, the table of backends).
pub(crate) const TRT_LLM: Releases = (
    &[Release {
        since: v(1, 3, 0),
        prefill: TRT_PREFILL,
        decode: TRT_DECODE,
        kv_events: &[("publish-kv-events", "")],
    }],
    &Release {
        since: v(0, 0, 0),
        prefill: TRT_PREFILL,
        decode: TRT_DECODE,
        kv_events: &[("publish-events-and-metrics", "")],
    },
);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_version_is_read_from_the_tag() {
        for (image, expected) in [
            (
                "nvcr.io/nvidia/ai-dynamo/vllm-runtime:1.3.1",
                Some((v(1, 3, 1), ReportedBy::Tag)),
            ),
            ("vllm-runtime:v0.9.1", Some((v(0, 9, 1), ReportedBy::Tag))),
            ("vllm-runtime:1.0.0-cuda13", Some((v(1, 0, 0), ReportedBy::Tag))),
            (
                "vllm-runtime:0.7.0.post1",
                Some((v(0, 7, 0), ReportedBy::TagInOurReading)),
            ),
            (
                "host:5000/vllm-runtime:1.2.0@sha256:00",
                Some((v(1, 2, 0), ReportedBy::TagInOurReading)),
            ),
            ("host:5000/vllm-runtime", None),
            ("vllm-runtime:latest", None),
            ("vllm-runtime:1.3", None),
            ("vllm-runtime:20261121", None),
            ("vllm-runtime:1.3.99999999999", None),
            ("vllm-runtime@sha256:00", None),
            ("", None),
        ] {
            assert_eq!(version_of(image), expected, "{image}");
        }
    }

    #[test]
    fn a_version_is_what_dynamo_takes_as_one() {
        for text in ["1.3.1", "0.0.0", "9999.9999.9999"] {
            assert_eq!(text.parse::<RuntimeVersion>().unwrap().to_string(), text);
        }
        for text in ["", "1", "1.3", "1.3.1.2", "1.3.x", "1..1", "-1.0.0", "10000.0.0"] {
            assert_eq!(text.parse::<RuntimeVersion>(), Err(NotAVersion(text.to_owned())));
        }
    }
}
