//! Pods that are not ready, as the reason and the message of Ready: the object, the cause, the next step.

use runway_api::condition::shorten;
use runway_operator::kubelet::{Cause, Failing, Failure, Unready};

use crate::observe::Observed;
use kube::ResourceExt;

/// So many bytes of a container's last words are shown.
const LAST_WORDS: usize = 400;

/// Why pods do not serve.
pub(super) struct Obstacle {
    /// CamelCase, for Ready.
    pub(super) reason: &'static str,
    /// For people.
    pub(super) message: String,
    /// Whether waiting longer will not help: the kubelet starts the container again and again.
    pub(super) lasting: bool,
}

/// The obstacle of the newest rollout: pods that an earlier one left behind may fail for a reason that is mended already.
pub(super) fn obstacle(seen: &Observed) -> Option<Obstacle> {
    let newest = seen.unready.iter().max_by_key(|pod| pod.created)?;
    let mut pods: Vec<&Unready> = seen
        .unready
        .iter()
        .filter(|pod| pod.revision == newest.revision)
        .collect();
    pods.sort_by_key(|pod| std::cmp::Reverse(pod.created));
    pods.into_iter().find_map(|pod| of_pod(seen, pod))
}

fn of_pod(seen: &Observed, pod: &Unready) -> Option<Obstacle> {
    let name = &pod.pod;
    let passing = |reason, message| Obstacle {
        reason,
        message,
        lasting: false,
    };
    match &pod.cause {
        Cause::Starting => None,
        Cause::Unschedulable(said) => Some(passing(
            "Unschedulable",
            format!(
                "Pod '{name}' cannot be scheduled: {}. {}",
                said.trim_end_matches('.'),
                room(said)
            ),
        )),
        Cause::Ended { reason, message } => Some(passing(
            if reason == "Evicted" { "Evicted" } else { "PodFailed" },
            format!(
                "Pod '{name}' was ended by the kubelet: {reason}: {}. See: kubectl describe pod {name} -n {}",
                message.trim_end_matches('.'),
                namespace(seen)
            ),
        )),
        Cause::Container(failing) => Some(of_container(seen, name, failing)),
    }
}

fn of_container(seen: &Observed, pod: &str, failing: &Failing) -> Obstacle {
    let container = format!(
        "{} '{}'",
        if failing.init { "init container" } else { "container" },
        failing.name
    );
    let (reason, message) = match &failing.failure {
        Failure::Image(said) => (
            "ImagePullFailed",
            format!(
                "Pod '{pod}': image '{}' of {container} cannot be pulled: {}. Check the name of the image in spec.image, and that the node may pull it",
                failing.image,
                registry_words(said, &failing.image),
            ),
        ),
        Failure::Start(said) => of_start(seen, pod, &container, said),
        Failure::OutOfMemory => {
            let limit = failing
                .memory_limit
                .as_ref()
                .map_or_else(String::new, |limit| format!(" (limit {limit})"));
            (
                "OOMKilled",
                format!(
                    "Pod '{pod}': {container} ran out of memory{limit} and was killed. Raise spec.resources.memory, or lower what the model needs, such as spec.engine.contextLength"
                ),
            )
        }
        Failure::Exit { code, message } => (
            "CrashLoopBackOff",
            format!(
                "Pod '{pod}': {container} exited with code {code}{}. Check spec.engine.args, spec.image and spec.env; logs: kubeairunway logs {} -n {} --previous",
                last_words(message),
                seen.md.name_any(),
                namespace(seen),
            ),
        ),
    };
    Obstacle {
        reason,
        message,
        lasting: failing.repeated && !matches!(failing.failure, Failure::Image(_)),
    }
}

/// A container that the kubelet cannot create: mostly for something that a user has to create first.
fn of_start(seen: &Observed, pod: &str, container: &str, said: &str) -> (&'static str, String) {
    let namespace = namespace(seen);
    if let Some(name) = missing("secret", said) {
        return (
            "SecretNotFound",
            format!(
                "Secret '{name}' not found in namespace '{namespace}': pod '{pod}' waits for it. Create it, or correct the name in spec.secrets or spec.env"
            ),
        );
    }
    if let Some(name) = missing("configmap", said) {
        return (
            "ConfigMapNotFound",
            format!(
                "ConfigMap '{name}' not found in namespace '{namespace}': pod '{pod}' waits for it. Create it, or correct the name in spec.env"
            ),
        );
    }
    if let Some((_, cause)) = said.split_once("unable to start container process: ") {
        let cause = cause.trim_start_matches("error during container init: ");
        return (
            "ContainerStartFailed",
            format!(
                "Pod '{pod}': {container} cannot be started: {}. Check that the image in spec.image runs the engine",
                cause.trim_end_matches('.')
            ),
        );
    }
    (
        "ContainerConfigError",
        format!(
            "Pod '{pod}': {container} cannot be created: {}. See: kubectl describe pod {pod} -n {namespace}",
            said.trim_end_matches('.')
        ),
    )
}

/// The kubelet says `secret "NAME" not found`; that is all we know of Secrets, and all we want to.
fn missing<'a>(kind: &str, said: &'a str) -> Option<&'a str> {
    said.strip_prefix(kind)?
        .strip_prefix(" \"")?
        .strip_suffix("\" not found")
}

/// The next step for a pod that no node takes, by the scheduler's words.
fn room(said: &str) -> &'static str {
    if said.contains("persistentvolumeclaim") {
        "Create the PersistentVolumeClaim, or see why it is not bound: kubectl get pvc"
    } else if said.contains("Insufficient") {
        "Add a node with room for it, or ask for less in spec.resources"
    } else if said.contains("taint") {
        "Add the taint to spec.tolerations, or remove it from a node"
    } else {
        "Check spec.nodeSelector against the labels of the nodes: kubectl get nodes --show-labels"
    }
}

/// What the registry said, without what the runtime puts around it.
fn registry_words(said: &str, image: &str) -> String {
    let said = said.trim_end_matches('.');
    let said = said
        .rsplit_once(&format!("\"{image}\": "))
        .map_or(said, |(_, cause)| cause);
    let said = said.rsplit_once("desc = ").map_or(said, |(_, cause)| cause);
    shorten(said.to_owned(), LAST_WORDS)
}

/// The lines that tell why a program ended: the first and the last that speak of an error, or the last one.
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
    let told: Vec<&str> = lines
        .iter()
        .copied()
        .filter(|line| {
            let line = line.to_lowercase();
            SIGNS.iter().any(|sign| line.contains(sign))
        })
        .collect();
    let words = match told.as_slice() {
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

/// A line without its time, which differs with every restart and would be news each time.
fn untimed(line: &str) -> &str {
    line.trim_start_matches(|c: char| !c.is_alphabetic()).trim_end()
}

fn namespace(seen: &Observed) -> String {
    seen.md.namespace().unwrap_or_default()
}
