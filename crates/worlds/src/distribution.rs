//! Observed state of one LlamaStackDistribution, without a cluster.

use std::collections::BTreeMap;
use std::sync::Arc;

use jiff::Timestamp;
use k8s_openapi::api::core::v1::{ConfigMap, Pod};
use kube::ResourceExt;
use kube::core::DynamicObject;
use runway_api::LlamaStackDistribution;
use runway_api::llama_stack_distribution::ProviderInfo;
use runway_api::model_deployment::Endpoint;
use runway_llama_stack_operator::kinds::{self, Kind};
use runway_llama_stack_operator::observe::{Answer, Child, Observed, ServerInfo};
use runway_llama_stack_operator::plan::plan;
use runway_llama_stack_operator::settings::{POD_USER, Settings};
use runway_operator::plan::{Plan, Step};
use serde::Deserialize;
use serde_json::{Value, json};

/// Input of a case in addition to the LlamaStackDistribution.
#[derive(Clone, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
#[expect(clippy::struct_excessive_bools, reason = "fields of a file that people write")]
pub struct Given {
    /// The time.
    #[serde(default = "noon")]
    pub now: Timestamp,
    /// Everything the spec asks for has been made, and the status was written.
    #[serde(default)]
    pub deployed: bool,
    /// Status of the Deployment, its observed generation filled in.
    pub deployment: Option<Value>,
    /// Status of pods of the present template; `template: old` makes one of an earlier one.
    #[serde(default)]
    pub pods: Vec<Value>,
    /// Merged into live objects: by kind and name.
    #[serde(default)]
    pub live: BTreeMap<String, Value>,
    /// Data of ConfigMaps, by name.
    #[serde(default)]
    pub config_maps: BTreeMap<String, BTreeMap<String, String>>,
    /// ModelDeployments by name, with the port of their endpoint.
    #[serde(default)]
    pub models: BTreeMap<String, Option<i32>>,
    /// Answer of the server.
    pub server: Option<Server>,
    /// Reason why the server did not answer.
    pub silent: Option<String>,
    /// The operator does not know its own image.
    #[serde(default)]
    pub without_image: bool,
    /// The cluster gives each namespace users of its own, as OpenShift does.
    #[serde(default)]
    pub assigns_users: bool,
    /// NetworkPolicies for all.
    #[serde(default)]
    pub network_policies: bool,
}

/// Answer of a server.
#[derive(Clone, Deserialize)]
pub struct Server {
    version: String,
    /// None if the server requires authentication.
    #[serde(default)]
    providers: Option<Vec<ProviderInfo>>,
}

fn noon() -> Timestamp {
    "2026-11-21T12:00:00Z".parse().unwrap()
}

/// A LlamaStackDistribution and all there is for it.
pub struct World {
    /// The LlamaStackDistribution.
    pub llsd: LlamaStackDistribution,
    /// Input in addition to it.
    pub given: Given,
    /// Objects that the operator created.
    pub live: BTreeMap<(Kind, String), DynamicObject>,
}

impl World {
    /// The world of a case. With `deployed`, the first plan has been carried out.
    pub fn new(mut llsd: LlamaStackDistribution, given: Given) -> Self {
        llsd.metadata.namespace.get_or_insert_with(|| "default".to_owned());
        llsd.metadata.generation.get_or_insert(1);
        llsd.metadata.uid.get_or_insert_with(|| "uid-of-llsd".to_owned());
        let mut world = Self {
            llsd,
            given,
            live: BTreeMap::new(),
        };
        if world.given.deployed {
            let before = world.observed_with(None, &[]);
            let first = plan(&before);
            world.carry_out(&first);
            for ((kind, name), object) in &mut world.live {
                if let Some(more) = world.given.live.get(&format!("{} {name}", kind.kind)) {
                    merge(&mut object.data, more);
                }
            }
        }
        world
    }

    /// Input of the next plan.
    pub fn observed(&self) -> Observed {
        self.observed_with(self.given.deployment.as_ref(), &self.given.pods)
    }

    fn observed_with(&self, deployment: Option<&Value>, pods: &[Value]) -> Observed {
        let given = &self.given;
        let mut live = self.live.clone();
        let mut template = String::new();
        for ((kind, _), object) in &mut live {
            if *kind == kinds::DEPLOYMENT {
                let annotations = &object.data["spec"]["template"]["metadata"]["annotations"];
                annotations["llamastack.io/template"]
                    .as_str()
                    .unwrap_or_default()
                    .clone_into(&mut template);
                let mut status = deployment.cloned().unwrap_or_else(|| json!({}));
                if status["observedGeneration"].is_null() {
                    status["observedGeneration"] = json!(1);
                }
                merge(&mut status, &object.data["status"]);
                object.data["status"] = status;
                object.metadata.generation = Some(1);
            }
        }
        Observed {
            llsd: Arc::new(self.llsd.clone()),
            settings: Arc::new(self.settings()),
            children: live
                .into_iter()
                .map(|((kind, _), object)| Child {
                    kind,
                    object: Arc::new(object),
                })
                .collect(),
            pods: pods
                .iter()
                .enumerate()
                .map(|(index, pod)| Arc::new(self.pod(index, pod, &template)))
                .collect(),
            config_maps: given
                .config_maps
                .iter()
                .map(|(name, data)| (name.clone(), Arc::new(config_map(name, data))))
                .collect(),
            model_deployments: given
                .models
                .iter()
                .map(|(name, port)| (name.clone(), port.map(|port| endpoint(name, port))))
                .collect(),
            server: match (&given.server, &given.silent) {
                (Some(server), _) => Some(Arc::new(Answer::Said(ServerInfo {
                    version: server.version.clone(),
                    providers: server.providers.clone(),
                }))),
                (None, Some(why)) => Some(Arc::new(Answer::Silent(why.clone()))),
                (None, None) => None,
            },
            now: given.now,
        }
    }

    fn settings(&self) -> Settings {
        Settings {
            operator_image: (!self.given.without_image).then(|| "registry.example/operator:1".to_owned()),
            operator_version: "1.0.0".to_owned(),
            operator_namespace: Some("kubeairunway-system".to_owned()),
            network_policies: self.given.network_policies,
            pod_user: (!self.given.assigns_users).then_some(POD_USER),
            ..Settings::default()
        }
    }

    fn pod(&self, index: usize, pod: &Value, template: &str) -> Pod {
        let mut pod = pod.clone();
        let old = pod["template"] == "old";
        let mut whole = json!({
            "metadata": {
                "name": format!("{}-{index}", self.llsd.name_any()),
                "namespace": "default",
                "uid": format!("uid-of-pod-{index}"),
                "creationTimestamp": format!("2026-11-21T11:00:{index:02}Z"),
                "annotations": { "llamastack.io/template": if old { "old" } else { template } },
            },
        });
        if let Some(map) = pod.as_object_mut() {
            map.remove("template");
        }
        // The API server adds the pull Secrets of the ServiceAccount.
        if let Some(Value::Array(names)) = pod.as_object_mut().and_then(|pod| pod.remove("imagePullSecrets")) {
            let secrets: Vec<Value> = names.iter().map(|name| json!({ "name": name })).collect();
            whole["spec"] = json!({ "containers": [], "imagePullSecrets": secrets });
        }
        whole["status"] = pod;
        serde_json::from_value(whole).unwrap()
    }

    /// Does what the executor does.
    pub fn carry_out(&mut self, plan: &Plan) {
        for step in plan.steps() {
            match step {
                Step::Delete(delete) => {
                    let is_other = |live: &DynamicObject| live.metadata.uid.as_deref() != Some(&delete.uid);
                    self.live.retain(|_, live| is_other(live));
                }
                Step::Apply(apply) => {
                    let kind = kinds::ALL.into_iter().find(|k| k.kind == apply.resource.kind).unwrap();
                    let name = apply.object.name_any();
                    let mut object = apply.object.clone();
                    object.metadata.uid = Some(format!("uid-of-{}-{name}", kind.plural));
                    self.live.insert((kind, name), object);
                }
                Step::Status { fields, .. } => {
                    self.llsd.status = Some(serde_json::from_value(fields.clone()).unwrap());
                }
                _ => {}
            }
        }
    }
}

fn merge(into: &mut Value, from: &Value) {
    match (into, from) {
        (Value::Object(into), Value::Object(from)) => {
            for (key, value) in from {
                merge(into.entry(key).or_insert(Value::Null), value);
            }
        }
        (_, Value::Null) => {}
        (into, from) => into.clone_from(from),
    }
}

fn config_map(name: &str, data: &BTreeMap<String, String>) -> ConfigMap {
    let mut config_map = ConfigMap {
        data: Some(data.clone()),
        ..ConfigMap::default()
    };
    config_map.metadata.name = Some(name.to_owned());
    config_map
}

fn endpoint(name: &str, port: i32) -> Endpoint {
    serde_json::from_value(json!({ "service": name, "port": port })).unwrap()
}

/// Scripts that are omitted from displayed plans.
const SCRIPTS: [&str; 2] = ["install_provider.py", "extract_config.sh"];

/// Displays a plan without the scripts, which are long.
pub fn reported(plan: &Plan) -> String {
    let mut plan = plan.clone();
    for apply in &mut plan.apply {
        if let Some(data) = apply.object.data.get_mut("data").and_then(Value::as_object_mut) {
            for (key, value) in data {
                if SCRIPTS.contains(&key.as_str()) {
                    *value = "…".into();
                }
            }
        }
        // Hashes change with every word of a script.
        hide_hashes(&mut apply.object.data);
        if let Some(annotations) = &mut apply.object.metadata.annotations {
            annotations.retain(|key, _| key != "llamastack.io/applied-hash");
        }
    }
    runway_golden::reported::plan(&plan)
}

fn hide_hashes(value: &mut Value) {
    match value {
        Value::Object(map) => {
            for (key, value) in map {
                if key == "llamastack.io/template" || key == "configmap.hash/scripts" {
                    *value = "…".into();
                } else {
                    hide_hashes(value);
                }
            }
        }
        Value::Array(list) => list.iter_mut().for_each(hide_hashes),
        _ => {}
    }
}
