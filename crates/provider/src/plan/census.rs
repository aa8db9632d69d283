//! Counts the pods of a model: which of them run the desired containers, and what is missing until the model serves.

use kube::ResourceExt;
use runway_api::ProviderReason;

use super::prepare::Prepared;
use crate::contract::{Component, Controller, Provider, Reading};
use crate::model_pods::{Difference, ModelPod};
use crate::observe::Observed;

/// The pods of a model.
pub(super) struct Census {
    /// Replicas whose pods are ready, also those of an earlier spec.
    pub(super) ready: i32,
    /// Pods that exist and have not failed.
    pub(super) existing: usize,
    /// The first reason why the pods do not serve the current spec.
    pub(super) gap: Option<Gap>,
}

/// Reason why the pods of a model do not serve the current spec.
pub(super) struct Gap {
    pub(super) reason: ProviderReason,
    /// Message for the user.
    pub(super) message: String,
    /// Whether too few pods are ready, so that one that is not may say why.
    pub(super) is_shortage: bool,
}

/// Counts the pods; `None` if they are not known, such as in a preview.
pub(super) fn census(
    provider: &dyn Provider,
    seen: &Observed,
    prepared: &Prepared,
    reading: &Reading,
) -> Option<Census> {
    let pods = seen.pods.as_ref()?;
    let name = seen.md.name_any();
    let (ours, foreign): (Vec<_>, Vec<_>) = pods
        .iter()
        .filter(|pod| pod.has(&reading.current))
        .partition(|pod| provider.owns_pod(&name, pod.controller.as_ref()));
    let components = components(prepared);
    let mut census = Census {
        ready: 0,
        existing: of_model(provider, seen).filter(|pod| !pod.has_ended()).count(),
        gap: None,
    };
    let mut gaps = Gaps::default();
    for component in &components {
        let of_component = |pod: &&&ModelPod| pod.has(&component.labels);
        let (mut ready, mut current) = (0, 0);
        for pod in ours.iter().filter(of_component).filter(|pod| pod.is_ready()) {
            ready += 1;
            match component.container.as_ref().and_then(|wanted| pod.difference(wanted)) {
                None => current += 1,
                Some(difference) => gaps.outdated.push(Gap {
                    reason: ProviderReason::PodsOutdated,
                    message: outdated(provider, pod, &difference),
                    is_shortage: false,
                }),
            }
        }
        let counted = match component.pods {
            // None is desired, and some still serve.
            0 => ready,
            pods => {
                i32::try_from(i64::from(ready) * i64::from(component.replicas) / i64::from(pods)).unwrap_or(i32::MAX)
            }
        };
        census.ready += if component.ready_when_loaded {
            counted
        } else {
            counted.min(reading.ready.max(0))
        };
        if current < component.pods {
            gaps.short.push(short(component, current));
        }
        if component.serves {
            let strangers = foreign.iter().filter(of_component).filter(|pod| pod.is_ready());
            gaps.foreign.extend(strangers.map(|pod| stranger(&name, pod)));
        }
    }
    census.gap = gaps.first();
    Some(census)
}

/// The pods that were created for the ModelDeployment, as far as they are known.
pub(super) fn of_model<'a>(provider: &dyn Provider, seen: &'a Observed) -> impl Iterator<Item = &'a ModelPod> {
    let name = seen.md.name_any();
    let pods = seen.pods.iter().flatten();
    pods.filter(move |pod| provider.owns_pod(&name, pod.controller.as_ref()))
}

/// `reported` ready replicas, or fewer if fewer pods are ready; for an object whose translation is not known.
pub(super) fn at_most_ready(provider: &dyn Provider, seen: &Observed, reported: i32) -> i32 {
    let reported = reported.max(0);
    if seen.pods.is_none() {
        return reported;
    }
    let ready = of_model(provider, seen).filter(|pod| pod.is_ready()).count();
    reported.min(i32::try_from(ready).unwrap_or(i32::MAX))
}

/// Whether no pod is known that is not ready.
pub(super) fn all_ready(provider: &dyn Provider, seen: &Observed) -> bool {
    of_model(provider, seen).all(|pod| pod.is_ready() || pod.has_ended())
}

/// The first difference of a pod from the containers of the components that it may belong to.
pub(super) fn difference(components: &[Component], pod: &ModelPod) -> Option<Difference> {
    let component = components.iter().find(|component| pod.has(&component.labels))?;
    pod.difference(component.container.as_ref()?)
}

#[derive(Default)]
struct Gaps {
    outdated: Vec<Gap>,
    short: Vec<Gap>,
    foreign: Vec<Gap>,
}

impl Gaps {
    fn first(self) -> Option<Gap> {
        self.outdated.into_iter().chain(self.short).chain(self.foreign).next()
    }
}

/// The components of a translation, or the one of which every pod is a replica.
fn components(prepared: &Prepared) -> Vec<Component> {
    if !prepared.translation.components.is_empty() {
        return prepared.translation.components.clone();
    }
    let replicas = prepared.translation.replicas;
    vec![Component {
        pods: replicas,
        replicas,
        serves: true,
        ready_when_loaded: true,
        ..Component::default()
    }]
}

fn short(component: &Component, ready: i32) -> Gap {
    let of_component = match component.name.as_str() {
        "" => String::new(),
        name => format!(" of {name}"),
    };
    Gap {
        reason: ProviderReason::PodsNotReady,
        message: format!("{ready} of {} pods{of_component} are ready", component.pods),
        is_shortage: true,
    }
}

/// The pod's difference from its desired container, with the remedy.
pub(super) fn outdated(provider: &dyn Provider, pod: &ModelPod, difference: &Difference) -> String {
    let difference = match difference {
        Difference::Container(name) => format!("has no container '{name}'"),
        Difference::Image { runs, wanted } => format!("runs image '{runs}' in place of '{wanted}'"),
        Difference::Command => "runs another command than requested".to_owned(),
        Difference::Args => "runs with other arguments than requested".to_owned(),
        Difference::Variable(name) => format!("runs without the requested value of variable {name}"),
    };
    let remedy = match pod
        .controller
        .as_ref()
        .map(|controller| provider.replaceable(controller))
    {
        Some(object) => format!("delete {}, which {} creates again", named(&object), provider.title()),
        None => "delete the pod".to_owned(),
    };
    format!(
        "Pod '{}' {difference}. If it is not replaced within minutes, {remedy}",
        pod.name
    )
}

fn stranger(deployment: &str, pod: &ModelPod) -> Gap {
    let controller = match &pod.controller {
        Some(controller) => format!("is controlled by {}", named(controller)),
        None => "has no controller".to_owned(),
    };
    Gap {
        reason: ProviderReason::ForeignPod,
        message: format!(
            "Pod '{}' has the labels of ModelDeployment '{deployment}', but {controller}: requests to the model may reach it. Remove these labels from it, or delete it",
            pod.name
        ),
        is_shortage: false,
    }
}

/// A controller of pods in messages.
fn named(controller: &Controller) -> String {
    format!("{} '{}'", controller.kind, controller.name)
}
