//! Pods of simulated operators whose images do not run here: objects with a status, which no kubelet runs and no scheduler places.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::Pod;
use kube::{
    Api, ResourceExt,
    api::{DeleteParams, DynamicObject, ListParams, Patch},
};
use serde_json::{Value, json};

use super::{
    engine::{Simulation, hash, secret_name},
    timeline::PodState,
};

/// On each simulated pod: the uid of the object that it is of.
const OF: &str = "simulator.kubeairunway.ai/of";
/// The scheduler that is named in the pods, so that none places them.
const SCHEDULER: &str = "upstream-simulator";

/// A pod as it is to be.
pub(super) struct SimulatedPod {
    pub(super) name: String,
    pub(super) labels: BTreeMap<String, String>,
    /// The template from which it is made; what its containers run is kept.
    pub(super) template: Value,
    pub(super) state: PodState,
    /// Whether the operator replaces the pod when its template has changed.
    pub(super) rolls_out: bool,
}

impl SimulatedPod {
    /// A pod with the labels of its template and others.
    pub(super) fn new(name: String, template: &Value, labels: &[(&str, &str)], state: PodState) -> Self {
        let of_template = template["metadata"]["labels"].as_object().into_iter().flatten();
        let of_template = of_template.filter_map(|(key, value)| Some((key.clone(), value.as_str()?.to_owned())));
        let more = labels
            .iter()
            .map(|(key, value)| ((*key).to_owned(), (*value).to_owned()));
        Self {
            name,
            labels: of_template.chain(more).collect(),
            template: template.clone(),
            state,
            rolls_out: true,
        }
    }

    fn containers(&self) -> Value {
        let containers = self.template["spec"]["containers"].as_array();
        let containers: Vec<Value> = containers
            .into_iter()
            .flatten()
            .map(|container| {
                let mut kept = json!({
                    "name": container["name"].as_str().unwrap_or("main"),
                    "image": container["image"].as_str().unwrap_or("model-server"),
                });
                for field in ["command", "args", "env"] {
                    if !container[field].is_null() {
                        kept[field] = container[field].clone();
                    }
                }
                kept
            })
            .collect();
        match containers.as_slice() {
            [] => json!([{"name": "main", "image": "model-server"}]),
            some => json!(some),
        }
    }

    fn status(&self, owner: &DynamicObject) -> Value {
        let waiting = |reason: &str, message: &str| json!({"waiting": {"reason": reason, "message": message}});
        let running = json!({"running": {"startedAt": "2026-01-01T00:00:00Z"}});
        let missing = || {
            let secret = secret_name(&owner.data).unwrap_or("hf-token");
            waiting("CreateContainerConfigError", &format!("secret \"{secret}\" not found"))
        };
        let (phase, state, restarts) = match self.state {
            PodState::Starting | PodState::Ready => ("Running", running, 0),
            PodState::Crashing => (
                "Running",
                waiting("CrashLoopBackOff", "back-off 5m0s restarting failed container"),
                12,
            ),
            PodState::SecretMissing => ("Pending", missing(), 0),
        };
        let is_ready = self.state == PodState::Ready;
        let last =
            (self.state == PodState::Crashing).then(|| json!({"terminated": {"exitCode": 137, "reason": "OOMKilled"}}));
        let containers = self.containers();
        let statuses = containers.as_array().into_iter().flatten().map(|container| {
            let mut status = json!({
                "name": container["name"], "image": container["image"], "imageID": "",
                "ready": is_ready, "restartCount": restarts, "state": state,
            });
            if let Some(last) = &last {
                status["lastState"] = last.clone();
            }
            status
        });
        let ready = if is_ready { "True" } else { "False" };
        json!({
            "phase": phase,
            "conditions": [{"type": "Ready", "status": ready}, {"type": "ContainersReady", "status": ready}],
            "containerStatuses": statuses.collect::<Vec<_>>(),
        })
    }
}

impl Simulation {
    /// Makes the pods of an object what they are to be: missing ones are created, changed ones replaced, others deleted.
    pub(super) async fn keep_pods(&self, owner: &DynamicObject, wanted: Vec<SimulatedPod>) -> kube::Result<()> {
        let uid = owner.uid().unwrap_or_default();
        let mut known = self.known_pods(owner, &uid).await?;
        let changed = self.change_pods(owner, &uid, &mut known, &wanted).await;
        self.pods.lock().insert(uid, known);
        changed
    }

    /// `known` is right after each write, also if the next one fails.
    async fn change_pods(
        &self,
        owner: &DynamicObject,
        uid: &str,
        known: &mut BTreeMap<String, (String, Option<PodState>)>,
        wanted: &[SimulatedPod],
    ) -> kube::Result<()> {
        let api: Api<Pod> = self.namespaced(owner);
        let is_wanted = |name: &String| wanted.iter().any(|pod| pod.name == *name);
        let surplus: Vec<String> = known.keys().filter(|name| !is_wanted(name)).cloned().collect();
        for name in surplus {
            remove(&api, &name).await?;
            known.remove(&name);
        }
        for pod in wanted {
            let template = hash(&pod.containers().to_string());
            if let Some((made_from, _)) = known.get(&pod.name)
                && pod.rolls_out
                && *made_from != template
            {
                remove(&api, &pod.name).await?;
                known.remove(&pod.name);
            }
            if !known.contains_key(&pod.name) {
                self.create(&api, owner, uid, pod).await?;
                known.insert(pod.name.clone(), (template, None));
            }
            let state = known.get(&pod.name).and_then(|(_, state)| *state);
            // A pod that is ready does not start again.
            if state == Some(pod.state) || (state, pod.state) == (Some(PodState::Ready), PodState::Starting) {
                continue;
            }
            let status =
                json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": pod.name}, "status": pod.status(owner)});
            let written = api
                .patch_status(&pod.name, &self.apply_params(), &Patch::Apply(&status))
                .await;
            if written.is_err() {
                // It may have been deleted: the next reconcile creates it again.
                known.remove(&pod.name);
            }
            written?;
            if let Some((_, state)) = known.get_mut(&pod.name) {
                *state = Some(pod.state);
            }
        }
        Ok(())
    }

    async fn create(&self, api: &Api<Pod>, owner: &DynamicObject, uid: &str, pod: &SimulatedPod) -> kube::Result<()> {
        let mut labels = pod.labels.clone();
        labels.insert(OF.to_owned(), uid.to_owned());
        let manifest = json!({
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {"name": pod.name, "labels": labels, "ownerReferences": [self.owner_reference(owner)]},
            "spec": {
                "containers": pod.containers(),
                "schedulerName": SCHEDULER,
                "terminationGracePeriodSeconds": 0,
                "automountServiceAccountToken": false,
            },
        });
        api.patch(&pod.name, &self.apply_params(), &Patch::Apply(&manifest))
            .await
            .map(drop)
    }

    /// The pods made for an object; those that an earlier process made are looked up once, and replaced.
    async fn known_pods(
        &self,
        owner: &DynamicObject,
        uid: &str,
    ) -> kube::Result<BTreeMap<String, (String, Option<PodState>)>> {
        if let Some(known) = self.pods.lock().get(uid) {
            return Ok(known.clone());
        }
        if owner.data["status"].is_null() {
            return Ok(BTreeMap::new());
        }
        let api: Api<Pod> = self.namespaced(owner);
        let ours = ListParams::default().labels(&format!("{OF}={uid}"));
        let found = api.list(&ours).await?;
        let containers = |pod: &Pod| {
            let template = json!({"spec": pod.spec});
            let pod = SimulatedPod::new(pod.name_any(), &template, &[], PodState::Starting);
            hash(&pod.containers().to_string())
        };
        Ok(found
            .iter()
            .map(|pod| (pod.name_any(), (containers(pod), None)))
            .collect())
    }
}

/// A pod that no node runs is gone at once.
async fn remove(api: &Api<Pod>, name: &str) -> kube::Result<()> {
    match api.delete(name, &DeleteParams::default().grace_period(0)).await {
        Err(kube::Error::Api(status)) if status.code == 404 => Ok(()),
        deleted => deleted.map(drop),
    }
}
