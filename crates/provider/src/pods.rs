//! What keeps pods from starting, as the kubelet reports it. Only pods that wait are remembered.

use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};

use k8s_openapi::api::core::v1::Pod;
use kube::ResourceExt;
use kube::runtime::watcher::Event;

use crate::observe::Waiting;

/// Pods that wait, with what they wait for.
#[derive(Debug)]
pub(crate) struct WaitingPods {
    label: &'static str,
    waiting: Mutex<HashMap<PodKey, (String, Vec<Waiting>)>>,
}

/// Namespace and name.
type PodKey = (String, String);

impl WaitingPods {
    /// For pods that carry the name of their deployment in `label`.
    pub(crate) fn new(label: &'static str) -> Self {
        Self {
            label,
            waiting: Mutex::default(),
        }
    }

    /// The label that pods carry.
    pub(crate) fn label(&self) -> &'static str {
        self.label
    }

    /// Takes in a watch event; returns namespace and name of the deployment whose pods changed their mind.
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
        let now = if gone { Vec::new() } else { waiting(pod) };
        let mut all = self.lock();
        let before = all.remove(&key).map(|(_, before)| before).unwrap_or_default();
        let changed = before != now;
        if !now.is_empty() {
            all.insert(key, (deployment.clone(), now));
        }
        changed.then_some((namespace, deployment))
    }

    /// What the pods of a deployment wait for.
    pub(crate) fn of(&self, namespace: &str, deployment: &str) -> Vec<Waiting> {
        let all = self.lock();
        let mut found: Vec<_> = all
            .iter()
            .filter(|((ns, _), (name, _))| ns == namespace && name == deployment)
            .collect();
        found.sort_by_key(|(key, _)| (*key).clone());
        found
            .into_iter()
            .flat_map(|(_, (_, waiting))| waiting.clone())
            .collect()
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, HashMap<PodKey, (String, Vec<Waiting>)>> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// What the containers of a pod wait for.
pub fn waiting(pod: &Pod) -> Vec<Waiting> {
    let Some(status) = &pod.status else { return Vec::new() };
    let containers = status
        .init_container_statuses
        .iter()
        .flatten()
        .chain(status.container_statuses.iter().flatten());
    containers
        .filter_map(|c| c.state.as_ref()?.waiting.as_ref())
        .map(|w| Waiting {
            reason: w.reason.clone().unwrap_or_default(),
            message: w.message.clone().unwrap_or_default(),
        })
        .filter(|w| !w.message.is_empty())
        .collect()
}
