//! Failures of an actor's pods, and their remedies, from the pod status that the kubelet writes.

use std::time::Duration;

use jiff::Timestamp;
use k8s_openapi::api::core::v1::{ContainerStatus, Pod};
use kube::ResourceExt;
use runway_api::async_actor::ActorState;
use runway_api::condition::Draft as Condition;
use runway_operator::kubelet::{self, Failure, Stage};
use runway_operator::object;

use super::part::Part;
use crate::object::Key;
use crate::observe::Observed;
use crate::request::{RUNTIME, Request, SIDECAR, Work};

/// Time for which a restarted container must run before it counts as working, because a crash loop looks ready in between.
const BELIEVED_AFTER: Duration = Duration::from_mins(1);

/// Exit codes of asya-runtime for a handler that cannot be loaded, and for an invalid setting (see its README).
const EXIT_HANDLER: i32 = 3;
const EXIT_SETTINGS: i32 = 2;

/// Failure of pods.
struct Trouble {
    /// State of the actor, as the public Asya names it.
    word: ActorState,
    /// Cause and remedy.
    message: String,
}

/// Reasons of the conditions `WorkloadReady` and `RuntimeInjected` for failures of pods.
pub const WORDS: [ActorState; 6] = [
    ActorState::PendingResources,
    ActorState::ImagePullError,
    ActorState::ConfigError,
    ActorState::RuntimeError,
    ActorState::SidecarError,
    ActorState::WorkloadError,
];

/// State of the pods of an actor.
#[derive(Default)]
pub(super) struct Health {
    trouble: Option<Trouble>,
    /// Failure of some pods, while others work.
    warning: Option<String>,
    look_again: Option<Duration>,
}

impl Health {
    /// The part with the condition `well` or, if there is a failure, a condition of the given type that reports it for `key`.
    pub(super) fn part(self, seen: &Observed, type_: &'static str, key: &Key, well: Condition) -> Part {
        let said = match self.trouble {
            Some(Trouble { word, message }) => Part::fails(seen, type_, word.as_str(), format!("{key}: {message}")),
            None => Part::says(well),
        };
        Part {
            warnings: self.warning.into_iter().collect(),
            look_again: self.look_again,
            ..said
        }
    }
}

/// State of a workload that the actor owns: whether pods can be created, whether they work, whether they become ready in time.
pub(super) fn of_workload(seen: &Observed, request: &Request, key: &Key) -> Health {
    let Some(live) = seen.live(key) else {
        return Health::default();
    };
    let trouble = |condition: object::Condition| Trouble {
        word: ActorState::WorkloadError,
        message: format!("{} ({})", condition.message, condition.reason),
    };
    if let Some(failure) = kubelet::replica_failure(&live.data) {
        return Health {
            trouble: Some(trouble(failure)),
            ..Health::default()
        };
    }
    let health = judge(seen, request, true);
    let progress = object::condition(&live.data["status"], "Progressing");
    let stuck = progress.filter(object::Condition::is_false).map(trouble);
    Health {
        trouble: health.trouble.or(stuck),
        ..health
    }
}

/// State of the two containers in pods of a target, and whether its pods can be created. The other containers are their owner's
/// responsibility.
pub(super) fn of_target(seen: &Observed, request: &Request, workload: &Key) -> Health {
    let health = judge(seen, request, false);
    let failure = seen
        .live(workload)
        .and_then(|live| kubelet::replica_failure(&live.data));
    let refused = failure.map(|failure| Trouble {
        word: ActorState::WorkloadError,
        message: format!(
            "its pods cannot be created: {} ({}){}",
            failure.message,
            failure.reason,
            remedy(failure.message)
        ),
    });
    Health {
        trouble: refused.or(health.trouble),
        ..health
    }
}

/// Remedy for pods that the API server refuses, if it is known.
pub(super) fn remedy(refusal: &str) -> &'static str {
    if refusal.contains("PodSecurity") {
        ". Set spec.runtime.securityContext as the other containers of the target have it, or binding.strategy to Proxy"
    } else if refusal.contains("quota") {
        ". Set spec.runtime.resources and spec.sidecar.resources within the quota, or increase it"
    } else {
        ""
    }
}

/// The first failure, starting with the newest pod.
fn judge(seen: &Observed, request: &Request, own: bool) -> Health {
    let mut pods: Vec<&Pod> = seen
        .pods
        .iter()
        .map(AsRef::as_ref)
        .filter(|pod| pod.metadata.deletion_timestamp.is_none() && !kubelet::has_ended(pod))
        .collect();
    pods.sort_by_key(|pod| (pod.metadata.creation_timestamp.as_ref().map(|t| t.0), pod.name_any()));
    let reader = Reader { seen, request, own };
    let (mut trouble, mut others_work, mut look_again) = (None, false, None);
    for pod in pods.into_iter().rev() {
        let read = reader.read(pod, &mut look_again);
        others_work |= read.is_none() && kubelet::is_ready(pod);
        trouble = trouble.or(read);
    }
    let (trouble, warning) = match trouble {
        Some(Trouble { message, .. }) if others_work => (None, Some(message)),
        trouble => (trouble, None),
    };
    Health {
        trouble,
        warning,
        look_again,
    }
}

struct Reader<'a> {
    seen: &'a Observed,
    request: &'a Request,
    own: bool,
}

impl Reader<'_> {
    fn read(&self, pod: &Pod, look_again: &mut Option<Duration>) -> Option<Trouble> {
        if let Some(said) = kubelet::unschedulable(pod) {
            return Some(Trouble {
                word: ActorState::PendingResources,
                message: format!(
                    "no node accepts the pod: {said}. Add a node with enough free resources, or reduce the requests"
                ),
            });
        }
        if let Some(said) = kubelet::gated(pod) {
            return Some(Trouble {
                word: ActorState::PendingResources,
                message: format!("a pod waits for {said}"),
            });
        }
        let status = pod.status.as_ref()?;
        let first = status.init_container_statuses.iter().flatten().map(|c| (c, false));
        let then = status.container_statuses.iter().flatten().map(|c| (c, true));
        let mut failed: Vec<(&ContainerStatus, Failure)> = first
            .chain(then)
            .filter(|(c, _)| self.own || [RUNTIME, SIDECAR].contains(&&*c.name))
            .filter_map(|(c, serves)| Some((c, failure(c, serves, self.seen.now, look_again)?)))
            .collect();
        // A container with a termination message reports the cause; others may fail in consequence.
        failed.sort_by_key(|(_, failure)| matches!(failure, Failure::Exit { message, .. } if message.is_empty()));
        let (container, failure) = failed.first()?;
        Some(self.announce(container, failure))
    }

    fn announce(&self, container: &ContainerStatus, failure: &Failure) -> Trouble {
        let name = &*container.name;
        let its_own = match name {
            RUNTIME => ActorState::RuntimeError,
            SIDECAR => ActorState::SidecarError,
            _ => ActorState::WorkloadError,
        };
        let (word, message) = match failure {
            Failure::Image(said) => (
                ActorState::ImagePullError,
                format!(
                    "cannot pull image '{}' of {name}: {said}. Check {}, and the imagePullSecrets of the pod",
                    container.image,
                    self.field(name, "image")
                ),
            ),
            Failure::Start(said) => match absent(said) {
                Some(what) => (
                    ActorState::ConfigError,
                    format!(
                        "cannot start {name}: {said}. Create {what} in namespace '{}'",
                        self.request.namespace
                    ),
                ),
                None if said.contains("runAsNonRoot") => (
                    its_own,
                    format!(
                        "cannot start {name}: {said}. Set a USER in its image, by number, or {}",
                        self.field(name, "securityContext.runAsUser")
                    ),
                ),
                None => (
                    its_own,
                    format!("cannot start {name}: {said}. Check {}", self.field(name, "image")),
                ),
            },
            Failure::OutOfMemory => (
                its_own,
                format!(
                    "{name} exceeded its memory limit: increase {}",
                    self.field(name, "resources.limits.memory")
                ),
            ),
            Failure::Exit { code, message } => (its_own, self.exit(name, *code, message)),
        };
        Trouble { word, message }
    }

    fn exit(&self, name: &str, code: i32, said: &str) -> String {
        let log = format!(
            "kubectl -n {} logs -l {}={} -c {name} --previous",
            self.request.namespace,
            runway_api::labels::ASYA_ACTOR,
            self.request.name
        );
        // Our programs report the cause in the first line, Python in the last line of its traceback.
        let said = match said.strip_prefix(&format!("{name}: ")) {
            Some(own) => own.lines().next(),
            None => said.lines().rfind(|line| !line.trim().is_empty()),
        };
        let said = said.map_or_else(String::new, |line| format!(": {}", line.trim()));
        match (name, code) {
            (RUNTIME, EXIT_HANDLER) => format!(
                "cannot load the handler{said}. Correct {} or the image; print the logs with: {log}",
                self.handler()
            ),
            (RUNTIME, EXIT_SETTINGS) => {
                format!("invalid setting of {name}{said}. Correct {}", self.field(name, "env"))
            }
            _ => format!("{name} exited with code {code}{said}. Print its logs with: {log}"),
        }
    }

    fn handler(&self) -> &'static str {
        match self.request.work {
            Work::Standalone(_) => "the variable ASYA_HANDLER of asya-runtime in spec.workload.template",
            Work::Bound(_) => "spec.runtime.handler",
        }
    }

    /// The field of the actor that sets this property of a container.
    fn field(&self, name: &str, what: &str) -> String {
        match (name, &self.request.work) {
            (SIDECAR, _) => format!("spec.sidecar.{what}"),
            (RUNTIME, Work::Bound(_)) => format!("spec.runtime.{what}"),
            _ => format!("{what} of {name} in spec.workload.template"),
        }
    }
}

/// Failure of a container, if any.
fn failure(
    container: &ContainerStatus,
    serves: bool,
    now: Timestamp,
    look_again: &mut Option<Duration>,
) -> Option<Failure> {
    let running = container.state.as_ref().and_then(|s| s.running.as_ref());
    let since = running.and_then(|r| r.started_at.as_ref()).map(|t| t.0);
    let ran = since.map(|since| Duration::try_from(now.duration_since(since)).unwrap_or_default());
    let believed = ran.is_none_or(|ran| ran >= BELIEVED_AFTER);
    if container.ready && believed {
        return None;
    }
    let Stage::Failed(failure) = kubelet::stage(container, serves) else {
        return None;
    };
    if let Some(ran) = ran.filter(|_| container.ready) {
        let wait = BELIEVED_AFTER.saturating_sub(ran);
        *look_again = Some(look_again.map_or(wait, |before| before.min(wait)));
    }
    Some(failure)
}

/// The missing Secret or ConfigMap, from the kubelet's message.
fn absent(said: &str) -> Option<String> {
    let named = |kind: &str, title: &str| {
        let (name, rest) = said.split_once(&format!("{kind} \""))?.1.split_once('"')?;
        rest.trim_start()
            .starts_with("not found")
            .then(|| format!("{title} '{name}'"))
    };
    let key = || said.starts_with("couldn't find key").then(|| "this key".to_owned());
    named("secret", "Secret")
        .or_else(|| named("configmap", "ConfigMap"))
        .or_else(key)
}
