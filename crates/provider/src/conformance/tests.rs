//! The suite against a minimal correct provider, and against variants that break one rule each.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicUsize, Ordering};

use runway_api::InferenceProviderConfigSpec;
use runway_api::model_deployment::{Endpoint, Phase, PodSettings, ServingMode};
use runway_api::provider_config::{Capabilities, OverrideKey, OverrideType};
use serde_json::{Value, json};

use super::{Samples, check};
use crate::contract::{CONFIG_MAP, ChildRef, Kind, Object, Provider, Reading, Refusal, Translation};
use crate::request::{Request, Topology};
use crate::upstream::{Installed, Schema, Upstream};

const TOY: Kind = Kind::new("toys.example", "v1", "Toy", "toys");
const TOYS: [Schema; 1] = [Schema {
    version: "v1",
    fields: &[
        ("spec.replicas", "integer"),
        ("spec.everything", "any"),
        ("status.ready", "integer"),
    ],
}];

/// Defect of a toy provider.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Flaw {
    #[default]
    None,
    BadName,
    EngineNotRegistered,
    UndeclaredField,
    Counts,
    ReadsByCounting,
    RefusesInSilence,
    DropsEnv,
    DropsPodFields,
    DropsOverride,
    TakesAnyOverride,
    ForgetsAChild,
    SetsStatus,
    UsesOurPrefix,
    RecreatesForReplicas,
    ForgetsImmutable,
    CountsOneMore,
    BadEndpoint,
    SmallReason,
    NoFailure,
    GuessesReady,
    NeverSpeaks,
    EmptyMap,
    Panics,
}

struct Toy {
    flaw: Flaw,
    calls: AtomicUsize,
}

impl Toy {
    fn with(flaw: Flaw) -> Self {
        Self {
            flaw,
            calls: AtomicUsize::new(0),
        }
    }

    fn has(&self, flaw: Flaw) -> bool {
        self.flaw == flaw
    }

    fn object(&self, kind: Kind, name: &str, body: Value, immutable: BTreeMap<String, Value>) -> Object {
        let ours = self
            .has(Flaw::UsesOurPrefix)
            .then(|| ("kubeairunway.ai/mine".to_owned(), "x".to_owned()));
        Object {
            kind,
            version: "v1".to_owned(),
            name: name.to_owned(),
            annotations: ours.into_iter().collect(),
            body,
            immutable,
            not_rolled_out: BTreeMap::new(),
            reset: BTreeMap::new(),
        }
    }
}

impl Provider for Toy {
    fn name(&self) -> &'static str {
        if self.has(Flaw::BadName) { "Toy Provider" } else { "toy" }
    }

    fn version(&self) -> String {
        format!("{}-provider:v1", self.name())
    }

    fn registration(&self) -> InferenceProviderConfigSpec {
        InferenceProviderConfigSpec {
            capabilities: Capabilities {
                engines: if self.has(Flaw::EngineNotRegistered) {
                    Vec::new()
                } else {
                    vec!["custom".to_owned(), "vllm".to_owned()]
                },
                serving_modes: vec![ServingMode::Aggregated],
                cpu_support: true,
                gpu_support: true,
                per_engine: Vec::new(),
            },
            overrides: Some(vec![OverrideKey {
                path: "paint.color".to_owned(),
                kind: OverrideType::String,
                description: None,
            }]),
            ..InferenceProviderConfigSpec::default()
        }
    }

    fn upstreams(&self) -> Vec<Upstream> {
        vec![Upstream {
            kind: TOY,
            schemas: &TOYS,
        }]
    }

    fn children(&self, name: &str) -> Vec<ChildRef> {
        let kinds = if self.has(Flaw::ForgetsAChild) {
            vec![TOY]
        } else {
            vec![CONFIG_MAP, TOY]
        };
        kinds
            .into_iter()
            .map(|kind| ChildRef {
                kind,
                name: name.to_owned(),
            })
            .collect()
    }

    fn translate(&self, request: &Request, _: &Installed) -> Result<Translation, Refusal> {
        let Topology::Aggregated(worker) = &request.topology else {
            let text = if self.has(Flaw::RefusesInSilence) {
                ""
            } else {
                "toys are not disaggregated: use mode aggregated"
            };
            return Err(Refusal::incompatible(text));
        };
        assert!(!(self.has(Flaw::Panics) && worker.replicas == 0), "none of it");
        let mut asked = request.clone();
        asked.present.clear();
        if !self.has(Flaw::TakesAnyOverride) {
            let color = request.overrides.get("paint").and_then(|p| p.get("color")).cloned();
            asked.overrides = color
                .filter(|_| !self.has(Flaw::DropsOverride))
                .map(|c| ("color".to_owned(), c))
                .into_iter()
                .collect();
        }
        if self.has(Flaw::DropsEnv) {
            asked.env.clear();
        }
        if self.has(Flaw::DropsPodFields) {
            asked.pods = PodSettings::default();
        }
        let mut spec = json!({"replicas": worker.replicas, "everything": format!("{asked:?}")});
        if self.has(Flaw::UndeclaredField) {
            spec["wheels"] = json!(4);
        }
        if self.has(Flaw::Counts) {
            spec["everything"] = json!(self.calls.fetch_add(1, Ordering::Relaxed));
        }
        let mut body = json!({"spec": spec});
        if self.has(Flaw::SetsStatus) {
            body["status"] = json!({"ready": 1});
        }
        let mut immutable = BTreeMap::new();
        if self.has(Flaw::RecreatesForReplicas) {
            immutable.insert("replicas".to_owned(), json!(worker.replicas));
        }
        if !self.has(Flaw::ForgetsImmutable) {
            immutable.insert("nodeSelector".to_owned(), json!(request.node_selector));
        }
        let settings = if self.has(Flaw::EmptyMap) {
            json!({"data": {"a": "b"}, "labels": {}})
        } else {
            json!({"data": {"a": "b"}})
        };
        Ok(Translation {
            objects: vec![
                self.object(CONFIG_MAP, &request.name, settings, BTreeMap::new()),
                self.object(TOY, &request.name, body, immutable),
            ],
            ignored: Vec::new(),
            scaling_limit: None,
            endpoint: Some(Endpoint {
                service: Some(request.name.clone()),
                port: Some(if self.has(Flaw::BadEndpoint) { 0 } else { 80 }),
            }),
            model_name: request.served_name.clone(),
            components: Vec::new(),
            replicas: worker.replicas + i32::from(self.has(Flaw::CountsOneMore)),
            pod_label: None,
        })
    }

    fn read_status(&self, _: &Request, object: &Value) -> Reading {
        if self.has(Flaw::NeverSpeaks) {
            return Reading::silent();
        }
        let failure = object["status"]["broken"]
            .as_str()
            .filter(|_| !self.has(Flaw::NoFailure));
        let ready = object["status"]["ready"].as_i64().and_then(|n| i32::try_from(n).ok());
        let phase = match (failure, ready) {
            (Some(_), _) => Phase::Failed,
            (None, Some(_)) => Phase::Running,
            (None, None) if self.has(Flaw::GuessesReady) => Phase::Running,
            (None, None) => return Reading::silent(),
        };
        let calls = self.calls.fetch_add(1, Ordering::Relaxed);
        Reading {
            phase,
            reason: if self.has(Flaw::SmallReason) {
                "toy is broken"
            } else {
                "ToySays"
            }
            .to_owned(),
            message: if self.has(Flaw::ReadsByCounting) {
                calls.to_string()
            } else {
                failure.unwrap_or_default().to_owned()
            },
            ready: ready.unwrap_or_default(),
            available: ready.unwrap_or_default(),
            ..Reading::silent()
        }
    }
}

fn samples() -> Samples {
    let disaggregated =
        json!({"spec": {"serving": {"mode": "disaggregated"}, "scaling": {"prefill": {}, "decode": {}}}});
    Samples {
        served: json!({
            "metadata": {"name": "bear"},
            "spec": {"model": {"id": "a/b"}, "engine": {"type": "custom"}},
        }),
        identity: vec![
            ("model.id", json!({"spec": {"model": {"id": "a/c"}}})),
            (
                "model.source",
                json!({"spec": {"model": {"id": null, "source": "custom"}}}),
            ),
            ("engine.type", json!({"spec": {"engine": {"type": "vllm"}}})),
            ("serving.mode", disaggregated.clone()),
        ],
        updates: vec![json!({"spec": {"scaling": {"replicas": 2}}})],
        recreates: vec![("nodeSelector", json!({"spec": {"nodeSelector": {"a": "b"}}}))],
        refused: vec![("toys are not disaggregated", disaggregated)],
        ready: |toy| toy["status"] = json!({"ready": toy["spec"]["replicas"]}),
        failed: |toy| toy["status"] = json!({"broken": "lost an eye"}),
        failure: "lost an eye",
    }
}

#[test]
fn a_provider_that_keeps_the_rules_passes() {
    let report = check(&Toy::with(Flaw::None), &samples()).unwrap();
    assert_eq!(report.broken().count(), 0);
    assert!(report.outcomes().len() >= 30);
}

/// The rules that must detect each flaw. Others may too: a provider that is never ready breaks several.
#[test]
fn each_flaw_breaks_its_rule() {
    for (flaw, rule) in [
        (Flaw::BadName, "r1_"),
        (Flaw::EngineNotRegistered, "r2_"),
        (Flaw::UndeclaredField, "r7_"),
        (Flaw::Counts, "r13_"),
        (Flaw::ReadsByCounting, "r13_"),
        (Flaw::RefusesInSilence, "r14_"),
        (Flaw::DropsEnv, "r15_"),
        (Flaw::DropsPodFields, "r15_"),
        (Flaw::DropsOverride, "r16_"),
        (Flaw::TakesAnyOverride, "r16_"),
        (Flaw::ForgetsAChild, "r17_"),
        (Flaw::SetsStatus, "r18_"),
        (Flaw::UsesOurPrefix, "r18_"),
        (Flaw::RecreatesForReplicas, "r21_"),
        (Flaw::ForgetsImmutable, "r22_"),
        (Flaw::EmptyMap, "r27_"),
        (Flaw::NoFailure, "r28_"),
        (Flaw::GuessesReady, "r28_"),
        (Flaw::NeverSpeaks, "r28_"),
        (Flaw::SmallReason, "r26_"),
        (Flaw::CountsOneMore, "r29_"),
        (Flaw::Panics, "r29_"),
        (Flaw::BadEndpoint, "r30_"),
    ] {
        let report = check(&Toy::with(flaw), &samples()).unwrap_err();
        let found: Vec<_> = report.broken().map(|o| o.rule).collect();
        assert!(
            found.iter().any(|name| name.starts_with(rule)),
            "{flaw:?} must break {rule}:\n{report}"
        );
    }
}

#[test]
fn a_kind_that_is_not_installed_is_not_made() {
    let report = check(&TwoKinds, &samples()).unwrap_err();
    assert!(
        report
            .broken()
            .any(|o| o.rule.starts_with("r6_") && o.broken.as_ref().is_some_and(|why| why.contains("Doll"))),
        "{report}"
    );
}

/// Creates a second kind without checking that it is installed.
struct TwoKinds;

const DOLL: Kind = Kind::new("toys.example", "v1", "Doll", "dolls");

impl Provider for TwoKinds {
    fn name(&self) -> &'static str {
        "toy"
    }

    fn version(&self) -> String {
        "toy-provider:v1".to_owned()
    }

    fn registration(&self) -> InferenceProviderConfigSpec {
        Toy::with(Flaw::None).registration()
    }

    fn upstreams(&self) -> Vec<Upstream> {
        [TOY, DOLL].map(|kind| Upstream { kind, schemas: &TOYS }).into()
    }

    fn children(&self, name: &str) -> Vec<ChildRef> {
        [CONFIG_MAP, DOLL, TOY]
            .map(|kind| ChildRef {
                kind,
                name: name.to_owned(),
            })
            .into()
    }

    fn translate(&self, request: &Request, installed: &Installed) -> Result<Translation, Refusal> {
        let mut translation = Toy::with(Flaw::None).translate(request, installed)?;
        let mut doll = translation.objects[1].clone();
        doll.kind = DOLL;
        translation.objects.insert(1, doll);
        Ok(translation)
    }

    fn read_status(&self, request: &Request, object: &Value) -> Reading {
        Toy::with(Flaw::None).read_status(request, object)
    }
}

#[test]
fn samples_without_effect_are_refused() {
    let toy = Toy::with(Flaw::None);
    let no_identity = Samples {
        identity: Vec::new(),
        ..samples()
    };
    let no_updates = Samples {
        updates: Vec::new(),
        ..samples()
    };
    let no_refusal = Samples {
        refused: Vec::new(),
        ..samples()
    };
    let wrong_text = Samples {
        refused: vec![("something else", samples().identity[3].1.clone())],
        ..samples()
    };
    let never_ready = Samples {
        ready: |_| {},
        ..samples()
    };
    for (what, rule, samples) in [
        ("no identity", "r22_", no_identity),
        ("no updates", "r21_", no_updates),
        ("no refusal", "r14_", no_refusal),
        ("another text", "r14_", wrong_text),
        ("never ready", "r28_", never_ready),
    ] {
        let report = check(&toy, &samples).unwrap_err();
        assert!(
            report.broken().any(|o| o.rule.starts_with(rule)),
            "{what} must break {rule}:\n{report}"
        );
    }
}
