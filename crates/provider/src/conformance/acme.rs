//! A minimal provider for tests that uses every part of the contract.

use std::collections::BTreeMap;

use crate::volumes::Volume;
use crate::{
    CONFIG_MAP, ChildRef, Installed, Kind, Object, Provider, Reading, Refusal, Request, Schema, Translation, Upstream,
};
use runway_api::InferenceProviderConfigSpec;
use runway_api::model_deployment::{Endpoint, Phase, ServingMode};
use runway_api::provider_config::{Capabilities, OverrideKey, OverrideType};
use serde_json::{Value, json};

/// Serves one replica. Its model and zone cannot be changed.
pub const SERVER: Kind = Kind::new("acme.example", "v1", "ModelServer", "modelservers");
/// Serves several replicas.
pub const FLEET: Kind = Kind::new("acme.example", "v1", "ModelFleet", "modelfleets");

const SERVER_SCHEMAS: &[Schema] = &[
    Schema {
        version: "v2",
        fields: &[
            ("spec.model.id", "string"),
            ("spec.zone", "string"),
            ("spec.flagsFrom", "string"),
            ("spec.env", "array"),
            ("spec.env[].name", "string"),
            ("status.state", "string"),
        ],
    },
    Schema {
        version: "v1",
        fields: &[("spec.modelId", "string"), ("status.state", "string")],
    },
];
const FLEET_SCHEMAS: &[Schema] = &[Schema {
    version: "v2",
    fields: &[
        ("spec.size", "integer"),
        ("spec.model.id", "string"),
        ("status.ready", "integer"),
    ],
}];

/// Acme, or a provider with another name and its own kinds.
#[derive(Clone, Copy, Debug)]
pub struct Acme(pub &'static str);

impl Acme {
    /// Kind of a model with one replica.
    pub fn server(self) -> Kind {
        self.own(SERVER)
    }

    /// Kind of a model with several replicas.
    pub fn fleet(self) -> Kind {
        self.own(FLEET)
    }

    fn own(self, kind: Kind) -> Kind {
        let group = if self.0 == "acme" { kind.group } else { "zenith.example" };
        Kind { group, ..kind }
    }
}

impl Provider for Acme {
    fn name(&self) -> &'static str {
        self.0
    }

    fn version(&self) -> String {
        format!("{}-provider:v1.0.0", self.0)
    }

    fn registration(&self) -> InferenceProviderConfigSpec {
        let key = |path: &str, kind| OverrideKey {
            path: path.to_owned(),
            kind,
            description: None,
        };
        InferenceProviderConfigSpec {
            capabilities: Capabilities {
                engines: vec!["vllm".to_owned(), "llamacpp".to_owned()],
                serving_modes: vec![ServingMode::Aggregated],
                cpu_support: true,
                gpu_support: true,
                per_engine: Vec::new(),
            },
            overrides: Some(vec![
                key("zone", OverrideType::String),
                key("cache.size", OverrideType::Integer),
            ]),
            ..InferenceProviderConfigSpec::default()
        }
    }

    fn upstreams(&self) -> Vec<Upstream> {
        vec![
            Upstream {
                kind: self.server(),
                schemas: SERVER_SCHEMAS,
            },
            Upstream {
                kind: self.fleet(),
                schemas: FLEET_SCHEMAS,
            },
        ]
    }

    fn children(&self, name: &str) -> Vec<ChildRef> {
        let child = |kind, name: &str| ChildRef {
            kind,
            name: name.to_owned(),
        };
        vec![
            child(self.server(), name),
            child(self.fleet(), name),
            child(CONFIG_MAP, &format!("{name}-flags")),
        ]
    }

    fn translate(&self, request: &Request, installed: &Installed) -> Result<Translation, Refusal> {
        if request.engine == "sglang" {
            return Err(Refusal::incompatible("Acme does not support sglang engine"));
        }
        let replicas = request.topology.replicas();
        let kind = if replicas == 1 { self.server() } else { self.fleet() };
        let Some(version) = installed.version(kind) else {
            return Err(Refusal::incompatible(format!(
                "scaling.replicas: {replicas} needs a {}, which is not installed: install it, or ask for 1 replica",
                kind.kind
            )));
        };
        let mut objects = Vec::new();
        if !request.args.is_empty() {
            objects.push(object(
                CONFIG_MAP,
                "v1".to_owned(),
                format!("{}-flags", request.name),
                json!({ "data": request.args }),
            ));
        }
        objects.push(main_object(request, kind, version, replicas));
        let ignored = (!request.pod_annotations.is_empty())
            .then(|| "podTemplate.metadata.annotations are ignored: Acme makes its pods itself".to_owned());
        Ok(Translation {
            objects,
            ignored: ignored.into_iter().collect(),
            scaling_limit: None,
            endpoint: Some(Endpoint {
                service: Some(request.name.clone()),
                port: Some(80),
            }),
            model_name: request.served_name.clone(),
            components: Vec::new(),
            replicas,
            pod_label: Some(runway_api::labels::DEPLOYMENT),
        })
    }

    fn read_status(&self, request: &Request, object: &Value) -> Reading {
        let status = &object["status"];
        let count = status["ready"]
            .as_i64()
            .map_or(0, |n| i32::try_from(n).unwrap_or(i32::MAX));
        let time = |field: &str| status[field].as_str().and_then(|text| text.parse().ok());
        let last_change = time("updatedAt");
        let (phase, reason, ready) = match status["state"].as_str() {
            None => {
                return Reading {
                    last_change,
                    ..Reading::silent()
                };
            }
            Some("Ready") => (Phase::Running, "Ready", count.max(request.topology.replicas())),
            Some("Broken") => (Phase::Failed, "ServerBroken", count),
            Some("Queued") => (Phase::Pending, "WaitingForNodes", count),
            Some(_) => (Phase::Deploying, "Deploying", count),
        };
        Reading {
            phase,
            reason: reason.to_owned(),
            message: status["message"].as_str().unwrap_or_default().to_owned(),
            ready,
            available: ready,
            last_change,
            settled_at: time("settledAt"),
            ..Reading::silent()
        }
    }
}

fn main_object(request: &Request, kind: Kind, version: String, replicas: i32) -> Object {
    let zone = request.overrides.get("zone").and_then(Value::as_str);
    let mut spec = if version == "v1" {
        json!({ "modelId": request.model_id })
    } else {
        json!({ "model": { "id": request.model_id }, "env": request.env })
    };
    if let Some(zone) = zone {
        spec["zone"] = zone.into();
    }
    if !request.args.is_empty() {
        spec["flagsFrom"] = format!("{}-flags", request.name).into();
    }
    // A fleet has no volumes.
    if kind.kind == FLEET.kind {
        spec["size"] = replicas.into();
    } else if !request.volumes.is_empty() {
        spec["volumes"] = request.volumes.iter().map(Volume::source).collect();
    }
    Object {
        immutable: zone.map(|zone| ("zone".to_owned(), zone.into())).into_iter().collect(),
        not_rolled_out: BTreeMap::new(),
        reset: BTreeMap::new(),
        ..object(kind, version, request.name.clone(), json!({ "spec": spec }))
    }
}

fn object(kind: Kind, version: String, name: String, body: Value) -> Object {
    Object {
        kind,
        version,
        name,
        annotations: BTreeMap::new(),
        body,
        immutable: BTreeMap::new(),
        not_rolled_out: BTreeMap::new(),
        reset: BTreeMap::new(),
    }
}
