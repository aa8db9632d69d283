//! Pods that are not ready, with what keeps them. Ready ones are not remembered.

use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};

use k8s_openapi::api::core::v1::Pod;
use kube::ResourceExt;
use kube::runtime::watcher::Event;
use runway_operator::kubelet::{Unready, unready};

/// Pods that are not ready, by the ModelDeployment that a label names.
#[derive(Debug)]
pub(crate) struct UnreadyPods {
    label: &'static str,
    unready: Mutex<HashMap<PodKey, (String, Unready)>>,
}

/// Namespace and name.
type PodKey = (String, String);

impl UnreadyPods {
    /// For pods that carry the name of their ModelDeployment in `label`.
    pub(crate) fn new(label: &'static str) -> Self {
        Self {
            label,
            unready: Mutex::default(),
        }
    }

    /// The label that pods carry.
    pub(crate) fn label(&self) -> &'static str {
        self.label
    }

    /// Takes in a watch event; returns namespace and name of the ModelDeployment if what is known of its pods changed.
    pub(crate) fn take_in(&self, event: &Event<Pod>) -> Option<(String, String)> {
        let (pod, gone) = match event {
            Event::Apply(pod) | Event::InitApply(pod) => (pod, false),
            Event::Delete(pod) => (pod, true),
            Event::Init => {
                self.lock().clear();
                return None;
            }
            Event::InitDone => return None,
        };
        let deployment = pod.labels().get(self.label)?.clone();
        let namespace = pod.namespace().unwrap_or_default();
        let key = (namespace.clone(), pod.name_any());
        let now = if gone { None } else { unready(pod) };
        let mut all = self.lock();
        let before = all.remove(&key).map(|(_, before)| before);
        let changed = before != now;
        if let Some(now) = now {
            all.insert(key, (deployment.clone(), now));
        }
        changed.then_some((namespace, deployment))
    }

    /// The pods of a ModelDeployment that are not ready, by name.
    pub(crate) fn of(&self, namespace: &str, deployment: &str) -> Vec<Unready> {
        let all = self.lock();
        let mut found: Vec<Unready> = all
            .iter()
            .filter(|((ns, _), (name, _))| ns == namespace && name == deployment)
            .map(|(_, (_, unready))| unready.clone())
            .collect();
        found.sort_by(|a, b| a.pod.cmp(&b.pod));
        found
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, HashMap<PodKey, (String, Unready)>> {
        self.unready.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
