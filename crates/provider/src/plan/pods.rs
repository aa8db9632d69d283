//! Reason and message of Ready for pods that are not ready: the object, the cause, the next step.

use std::cmp::Reverse;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use kube::ResourceExt;
use runway_api::ProviderReason;
use runway_api::condition::shorten;
use runway_operator::kubelet::{self, Cause, Failing, Failure, Unready};

use super::census;
use crate::contract::{CLAIM, Component, Provider};
use crate::model_pods::ModelPod;
use crate::observe::Observed;
use crate::volumes::{self, VolumeSource};

/// Longest part of a container's last message, in bytes.
const LAST_WORDS: usize = 400;

/// Reason why pods do not serve.
pub(super) struct Obstacle {
    pub(super) reason: ProviderReason,
    /// Message for the user.
    pub(super) message: String,
    /// Whether waiting does not help, because the kubelet restarts the container again and again.
    pub(super) lasting: bool,
}

/// The obstacle of the newest rollout. Pods of an earlier rollout may fail for a reason that is already fixed. Pods that have ended come
/// last: their replacements are closer to the cause. `components`: those of the translation, if there is one.
pub(super) fn obstacle(provider: &dyn Provider, seen: &Observed, components: &[Component]) -> Option<Obstacle> {
    let unready = |pod: &'_ ModelPod| pod.unready.clone().map(|unready| (pod.clone(), unready));
    let mut pods: Vec<(ModelPod, Box<Unready>)> = census::of_model(provider, seen).filter_map(unready).collect();
    pods.retain(|(_, pod)| {
        pod.ended
            .is_none_or(|ended| kubelet::may_explain(ended, conditions(seen), seen.now))
    });
    let newest = pods.iter().max_by_key(|(_, pod)| pod.created)?.1.revision.clone();
    pods.retain(|(_, pod)| pod.revision == newest);
    pods.sort_by_key(|(_, pod)| (pod.ended.is_some(), Reverse(pod.created)));
    pods.into_iter().find_map(|(pod, unready)| {
        // The spec is not to blame for what the pod was not asked to run.
        let outdated = census::difference(components, &pod).map(|found| census::outdated(provider, &pod, &found));
        of_pod(seen, &unready, outdated)
    })
}

fn conditions(seen: &Observed) -> &[Condition] {
    seen.md.status.as_ref().map_or(&[], |status| &status.conditions)
}

fn of_pod(seen: &Observed, pod: &Unready, outdated: Option<String>) -> Option<Obstacle> {
    let name = &pod.pod;
    let passing = |reason, message| Obstacle {
        reason,
        message,
        lasting: false,
    };
    match &pod.cause {
        Cause::Starting => None,
        Cause::Unschedulable(said) => Some(passing(
            ProviderReason::Unschedulable,
            format!(
                "Pod '{name}' cannot be scheduled: {}. {}",
                scheduler_words(said),
                room(seen, said)
            ),
        )),
        Cause::Gated(said) => Some(passing(
            ProviderReason::SchedulingGated,
            format!("Pod '{name}' waits for {said}"),
        )),
        Cause::Ended { reason, message } => Some(passing(
            if reason == "Evicted" {
                ProviderReason::Evicted
            } else {
                ProviderReason::PodFailed
            },
            format!(
                "Pod '{name}' failed: {}. See: kubectl describe pod {name} -n {}",
                ended_words(reason, message),
                namespace(seen)
            ),
        )),
        Cause::Container(failing) => Some(of_container(seen, name, failing, outdated)),
    }
}

fn of_container(seen: &Observed, pod: &str, failing: &Failing, outdated: Option<String>) -> Obstacle {
    let container = container(failing);
    let (reason, message) = match &failing.failure {
        Failure::Image(said) => (
            ProviderReason::ImagePullFailed,
            format!(
                "Pod '{pod}': image '{}' of {container} cannot be pulled: {}. {}",
                failing.image,
                registry_words(said, &failing.image),
                outdated.unwrap_or_else(|| pull(seen, said)),
            ),
        ),
        Failure::Start(said) => of_start(seen, pod, &container, said),
        Failure::OutOfMemory => (
            ProviderReason::OOMKilled,
            out_of_memory(pod, &container, failing.memory_limit.as_deref()),
        ),
        Failure::Exit { code, message } => (
            ProviderReason::CrashLoopBackOff,
            exited(seen, pod, failing, *code, message, outdated),
        ),
    };
    Obstacle {
        reason,
        message,
        lasting: failing.repeated && !matches!(failing.failure, Failure::Image(_)),
    }
}

fn container(failing: &Failing) -> String {
    let kind = if failing.init { "init container" } else { "container" };
    format!("{kind} '{}'", failing.name)
}

fn out_of_memory(pod: &str, container: &str, limit: Option<&str>) -> String {
    let (limit, step) = match limit {
        Some(limit) => (format!(" (limit {limit})"), "Raise spec.resources.memory"),
        None => (String::new(), "Set spec.resources.memory to what the model needs"),
    };
    format!(
        "Pod '{pod}': {container} ran out of memory{limit} and was killed. {step}, or lower what the model needs, such as spec.engine.contextLength"
    )
}

fn exited(seen: &Observed, pod: &str, failing: &Failing, code: i32, message: &str, outdated: Option<String>) -> String {
    let (name, namespace) = (seen.md.name_any(), namespace(seen));
    let signal = signal(code).map_or_else(String::new, |signal| format!(" ({signal})"));
    let words = last_words(message);
    let step = if was_killed(code) && message.is_empty() {
        format!(
            "It was killed from outside, such as after failed liveness probes or for lack of memory on the node: kubectl describe pod {pod} -n {namespace}; logs"
        )
    } else if failing.init {
        "Logs".to_owned()
    } else if let Some(outdated) = outdated {
        format!("{outdated}; logs")
    } else {
        "Check spec.engine.args, spec.image and spec.env; logs".to_owned()
    };
    format!(
        "Pod '{pod}': {container} exited with code {code}{signal}{words}. {step}: kubeairunway logs {name} -n {namespace} --previous",
        container = container(failing),
    )
}

/// Signal that ended a process, by the exit code of the container runtime.
fn signal(code: i32) -> Option<&'static str> {
    Some(match code {
        132 => "SIGILL",
        134 => "SIGABRT",
        135 => "SIGBUS",
        137 => "SIGKILL",
        139 => "SIGSEGV",
        143 => "SIGTERM",
        _ => return None,
    })
}

/// Whether the signal comes from outside the process.
fn was_killed(code: i32) -> bool {
    matches!(signal(code), Some("SIGKILL" | "SIGTERM"))
}

/// Reason and message for a container that cannot be created or started, usually because an object that it needs is missing.
fn of_start(seen: &Observed, pod: &str, container: &str, said: &str) -> (ProviderReason, String) {
    let namespace = namespace(seen);
    if let Some(name) = missing("secret", said) {
        return (
            ProviderReason::SecretNotFound,
            format!(
                "Secret '{name}' not found in namespace '{namespace}': pod '{pod}' waits for it. Create it, or correct the name in spec.secrets or spec.env"
            ),
        );
    }
    if let Some(name) = missing("configmap", said) {
        return (
            ProviderReason::ConfigMapNotFound,
            format!(
                "ConfigMap '{name}' not found in namespace '{namespace}': pod '{pod}' waits for it. Create it, or correct the name in spec.env"
            ),
        );
    }
    if let Some((key, kind, name)) = missing_key(said) {
        let reason = match kind {
            "Secret" => ProviderReason::SecretKeyNotFound,
            _ => ProviderReason::ConfigMapKeyNotFound,
        };
        return (
            reason,
            format!(
                "{kind} '{name}' in namespace '{namespace}' has no key '{key}': pod '{pod}' waits for it. Add the key, or correct the name in spec.env"
            ),
        );
    }
    let step = if lacks_program(said) {
        "Check that spec.image contains the engine's program, for the CPU architecture of the nodes".to_owned()
    } else {
        format!("See: kubectl describe pod {pod} -n {namespace}")
    };
    let was_created = said.contains("unable to start container process") || lacks_program(said);
    (
        if was_created {
            ProviderReason::ContainerStartFailed
        } else {
            ProviderReason::ContainerConfigError
        },
        format!(
            "Pod '{pod}': {container} cannot be started: {}. {step}",
            runtime_words(said)
        ),
    )
}

/// Whether the image lacks the program, or has it for another CPU architecture (runc, `libcontainer`).
fn lacks_program(said: &str) -> bool {
    [
        "executable file not found",
        "no such file or directory",
        "exec format error",
    ]
    .iter()
    .any(|sign| said.contains(sign))
}

/// Message of the container runtime without its call chain.
fn runtime_words(said: &str) -> &str {
    let said = said.trim_end_matches('.');
    ["container init: ", "container process: "]
        .iter()
        .find_map(|call| Some(said.rsplit_once(call)?.1))
        .unwrap_or(said)
}

/// Key, kind and name from `couldn't find key KEY in Secret NAMESPACE/NAME` (kubernetes `pkg/kubelet/kubelet_pods.go`).
fn missing_key(said: &str) -> Option<(&str, &str, &str)> {
    let (key, object) = said.strip_prefix("couldn't find key ")?.split_once(" in ")?;
    let (kind, place) = object.split_once(' ')?;
    let (_, name) = place.split_once('/')?;
    Some((key, kind, name))
}

/// Name from the kubelet's message `secret "NAME" not found`. Secrets themselves are never read.
fn missing<'a>(kind: &str, said: &'a str) -> Option<&'a str> {
    said.strip_prefix(kind)?
        .strip_prefix(" \"")?
        .strip_suffix("\" not found")
}

/// Message of the scheduler without the part about preemption.
fn scheduler_words(said: &str) -> &str {
    let nodes = said.split_once(" preemption: ").map_or(said, |(nodes, _)| nodes);
    nodes.trim_end_matches(['.', ','])
}

/// Next step for an unschedulable pod, by the scheduler's message.
fn room(seen: &Observed, said: &str) -> String {
    let step = if said.contains("ReadWriteOncePod") {
        let replicas = seen.md.spec.scaling.as_ref().and_then(|scaling| scaling.replicas);
        if replicas.is_some_and(|replicas| replicas > 1) {
            "Use a claim with another access mode in spec.model.storage.volumes, or set scaling.replicas to 1"
        } else {
            "Another pod uses the claim: wait until that pod has ended or delete it, or use a claim with another access mode in spec.model.storage.volumes"
        }
    } else if said.contains("volume node affinity") {
        "A volume can be used on other nodes only: use a claim with access mode ReadWriteMany in spec.model.storage.volumes, or make room on those nodes"
    } else if said.to_lowercase().contains("persistentvolumeclaim") {
        return unbound(seen);
    } else if said.contains("Insufficient") {
        "Add a node with sufficient resources, or request less in spec.resources"
    } else if said.contains("were unschedulable") {
        "A node is cordoned: allow pods on it again with kubectl uncordon, or add a node"
    } else if said.contains("taint") {
        "Add the taint to spec.tolerations, or remove it from a node"
    } else {
        "Check spec.nodeSelector against the labels of the nodes: kubectl get nodes --show-labels"
    };
    step.to_owned()
}

/// Next step for claims that are missing or not bound, with the first that was created for a volume and is not bound.
fn unbound(seen: &Observed) -> String {
    let mut pending = volumes::of(&seen.md).filter_map(|volume| {
        let claim = volume.new_claim()?;
        let live = seen.child(CLAIM, &claim.name)?;
        (live.data["status"]["phase"] == "Pending").then(|| {
            let class = claim.storage_class.as_ref().map_or_else(
                || "the default storage class".to_owned(),
                |class| format!("storage class '{class}'"),
            );
            let cause = format!("kubectl describe pvc {} -n {}", claim.name, namespace(seen));
            format!(
                "{} of {} is not bound: check that {class} exists and can create the volume, or change {}: {cause}",
                CLAIM.named(&claim.name),
                volume.field("size"),
                volume.field("storageClassName"),
            )
        })
    });
    let missing = || {
        let namespace = namespace(seen);
        format!("Create the PersistentVolumeClaim, or see why it is not bound: kubectl get pvc -n {namespace}")
    };
    pending.next().unwrap_or_else(missing)
}

/// Text for a pod that failed as a whole. Some reasons have no message.
fn ended_words(reason: &str, message: &str) -> String {
    match message.trim().trim_end_matches('.') {
        "" => reason.to_owned(),
        message => format!("{reason}: {message}"),
    }
}

/// Next step for an image that cannot be pulled, by the registry's message: the image of a volume, that of the user, or the
/// provider's default, which an administrator configures.
fn pull(seen: &Observed, said: &str) -> String {
    let refused = ["unauthorized", "forbidden", "denied"];
    let is_refused = refused.iter().any(|sign| said.to_lowercase().contains(sign));
    let of_volume = volumes::of(&seen.md)
        .find(|volume| matches!(volume.source, VolumeSource::Image(_)) && volume.is_named_in(said));
    let of_user = seen.md.spec.image.as_ref().is_some_and(|image| !image.is_empty());
    let field = match of_volume {
        Some(volume) => volume.field("image"),
        None if of_user => "spec.image".to_owned(),
        None => {
            let provider = seen.md.selected_provider().unwrap_or_default();
            let secrets = if is_refused { "imagePullSecrets, " } else { "" };
            return format!(
                "It is a default image of provider '{provider}': set spec.image, or have {secrets}images and registryMirror corrected in spec.settings of InferenceProviderConfig '{provider}'"
            );
        }
    };
    if is_refused {
        format!("Set spec.imagePullSecrets for this registry, or correct the name in {field}")
    } else {
        format!("Check the name of the image in {field}, and that the node may pull it")
    }
}

/// Message of the registry without the runtime's prefix.
fn registry_words(said: &str, image: &str) -> String {
    let said = said.trim_end_matches('.');
    let said = said
        .rsplit_once(&format!("{image}\": "))
        .map_or(said, |(_, cause)| cause);
    let said = said.rsplit_once("desc = ").map_or(said, |(_, cause)| cause);
    let said = said.strip_prefix(&format!("{image}: ")).unwrap_or(said);
    shorten(said.to_owned(), LAST_WORDS)
}

/// Lines that explain why a process ended: the first and the last that mention an error, or the last line.
fn last_words(message: &str) -> String {
    const SIGNS: [&str; 8] = [
        "error",
        "failed",
        "exception",
        "unrecognized",
        "invalid",
        "cannot",
        "not found",
        "no such",
    ];
    let lines: Vec<&str> = message.lines().map(untimed).filter(|line| !line.is_empty()).collect();
    let reported: Vec<&str> = lines
        .iter()
        .copied()
        .filter(|line| {
            let line = line.to_lowercase();
            SIGNS.iter().any(|sign| line.contains(sign))
        })
        .collect();
    let words = match reported.as_slice() {
        [] => lines.last().copied().unwrap_or_default().to_owned(),
        [one] => (*one).to_owned(),
        [first, .., last] if first == last => (*first).to_owned(),
        [first, .., last] => format!("{first} … {last}"),
    };
    if words.is_empty() {
        return " and left no message".to_owned();
    }
    format!(": {}", shorten(words, LAST_WORDS).trim_end_matches('.'))
}

/// The line without its timestamp, which would change the status with every restart.
fn untimed(line: &str) -> &str {
    line.trim_start_matches(|c: char| !c.is_alphabetic()).trim_end()
}

fn namespace(seen: &Observed) -> String {
    seen.md.namespace().unwrap_or_default()
}
