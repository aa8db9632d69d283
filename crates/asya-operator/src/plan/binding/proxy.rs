//! The strategy Proxy: a Deployment with the two containers calls the target.

use runway_api::ActorReason;
use runway_api::async_actor::{BindingStatus, RUNTIME_INJECTED, Strategy};
use runway_api::condition::yes;
use serde_json::{Value, json};

use super::holder::Addition;
use crate::names;
use crate::object::Key;
use crate::observe::Observed;
use crate::plan::containers::{self, Meeting, Place};
use crate::plan::part::{Outcome, Part};
use crate::plan::surroundings::Surroundings;
use crate::plan::{objects, pods, scaling, standalone};
use crate::request::{Bound, Request};
use crate::targets::{self, DEPLOYMENT, Resolved, Way};
use crate::transports::Transport;

/// A binding whose target and transport are known.
#[derive(Clone, Copy)]
pub(super) struct Binding<'a> {
    pub(super) seen: &'a Observed,
    pub(super) request: &'a Request,
    pub(super) bound: &'a Bound,
    pub(super) transport: &'a Transport,
}

impl Binding<'_> {
    /// The two containers, the runtime first. `grace` is the seconds that their pod has to end, if the operator sets them.
    fn pair(&self, url: &str, grace: Option<i32>, pod: Surroundings) -> [Value; 2] {
        let sidecar = self.seen.actor.spec.sidecar.as_ref();
        let place = Place {
            meeting: Meeting::Abstract,
            grace,
            pod,
        };
        [
            containers::bound_runtime(self.request, &self.bound.runtime, url, pod),
            containers::sidecar(self.request, sidecar, self.transport, &self.seen.settings, place),
        ]
    }

    /// The two containers and their volumes, for the pods of a target.
    pub(super) fn addition(&self, url: &str, pod: Surroundings) -> Addition {
        Addition {
            pair: self.pair(url, None, pod),
            volumes: self.volumes(),
        }
    }

    /// The volumes of the two containers.
    pub(super) fn volumes(&self) -> Vec<Value> {
        containers::credentials(self.transport).into_iter().collect()
    }

    /// The status of the binding before anything is put into the target.
    pub(super) fn status(&self, strategy: Strategy, holder: Option<&Key>) -> BindingStatus {
        // Each conflict gives the holder a new generation. Only the object above it can show that its user changed something.
        let above = targets::source(&self.bound.reference).filter(|source| Some(source) != holder);
        BindingStatus {
            strategy: Some(strategy),
            source_generation: above.and_then(|source| self.seen.live(&source)?.metadata.generation),
            ..BindingStatus::default()
        }
    }
}

/// `status.fallback` is set if the target was bound in place before, and lost the containers too often.
pub(super) fn plan(binding: &Binding<'_>, resolved: &Resolved, status: &BindingStatus) -> Outcome {
    let Binding {
        seen,
        request,
        bound,
        transport,
    } = *binding;
    let key = Key::new(DEPLOYMENT, names::proxy(&request.name));
    let outcome = |parts: Vec<Part>| Outcome {
        shown: Some(key.clone()),
        binding: Some(status.clone()),
        parts,
        ..Outcome::default()
    };
    if let Some(taken) = objects::taken(seen, &key, RUNTIME_INJECTED) {
        return outcome(vec![taken]);
    }
    let grace = request.processing.saturating_add(30);
    let reason = match status.fallback {
        Some(true) => ActorReason::ConflictFallback,
        _ => ActorReason::ProxyCreated,
    };
    let template = containers::without_empty(json!({
        "metadata": {"labels": objects::common_labels(&request.name)},
        "spec": {
            "automountServiceAccountToken": false,
            "serviceAccountName": bound.proxy.service_account_name,
            "imagePullSecrets": bound.proxy.image_pull_secrets,
            "nodeSelector": bound.proxy.node_selector,
            "tolerations": bound.proxy.tolerations,
            "terminationGracePeriodSeconds": grace,
            "containers": binding.pair(&resolved.url, Some(grace), Surroundings::OWN),
            "volumes": binding.volumes(),
        },
    }));
    let body = standalone::workload_body(seen, request, &key, &template, 1);
    let well = yes(
        RUNTIME_INJECTED,
        reason,
        format!("{key} calls {} at {}", resolved.target, resolved.url),
    );
    let own = Part {
        children: vec![(key.clone(), objects::owned(seen, &key, body))],
        ..pods::of_workload(seen, request, &key).part(seen, RUNTIME_INJECTED, &key, well)
    };
    let (scaled, scaling) = scaling::plan(seen, request, transport, &key, true);
    let target = match &resolved.way {
        Way::Proxy {
            scale_target: Some(target),
        } if bound.scale_target => scaling::plan_target(seen, request, transport, target),
        _ => Part::default(),
    };
    Outcome {
        workload_ref: Some(objects::reference(seen, &key)),
        scaled,
        ..outcome(vec![own, scaling, target])
    }
}
