//! The spec of an actor, parsed into narrow types, so that building objects from it cannot fail. Pure.

use k8s_openapi::api::core::v1::EnvVar;
use kube::ResourceExt;
use runway_api::async_actor::{
    AskedStrategy, HandlerMode, OnConflict, ProxyPods, PullPolicy, RESERVED_VARIABLES, RUNTIME_ENV, Retry, Runtime,
    Scaling, WorkloadKind, WorkloadRef, messages,
};
use runway_api::{AsyncActor, name};
use runway_operator::address::{Address, check_url};
use runway_operator::json;
use serde_json::{Map, Value};

use crate::formula;

/// Name of the container that receives and sends messages.
pub const SIDECAR: &str = "asya-sidecar";
/// Name of the container that runs the handler.
pub const RUNTIME: &str = "asya-runtime";

/// Default of `timeout.startup`. A handler that fails ends its container itself, so this only bounds one that hangs.
const STARTUP: i32 = 30 * 60;

/// Largest pod template, in bytes of JSON. It is stored again in the workload, and both are kept in memory.
const MAX_TEMPLATE: usize = 256 * 1024;

/// Parsed spec of an actor.
#[derive(Clone, Debug)]
pub struct Request {
    /// Name of the actor.
    pub name: String,
    /// Namespace of the actor.
    pub namespace: String,
    /// Uid of the actor; empty offline.
    pub uid: String,
    /// Name of the transport.
    pub transport: String,
    /// Longest time for one message, in seconds.
    pub processing: i32,
    /// Messages that a pod processes at the same time, if it is not 1.
    pub concurrency: Option<i32>,
    /// Further attempts after errors.
    pub retry: Retry,
    /// Longest start of the handler, in seconds.
    pub startup: i32,
    /// Scaling, if it is on.
    pub scaling: Option<Scaling>,
    /// Whether its queue has an alias.
    pub has_alias: bool,
    /// Workload of the actor.
    pub work: Work,
}

/// Workload of an actor.
#[derive(Clone, Debug)]
#[expect(clippy::large_enum_variant, reason = "one at a time, and short-lived")]
pub enum Work {
    /// A workload that the actor owns.
    Standalone(Standalone),
    /// A binding to a workload with another owner.
    Bound(Bound),
}

/// A workload that the actor owns.
#[derive(Clone, Debug)]
pub struct Standalone {
    /// Deployment or StatefulSet.
    pub kind: WorkloadKind,
    /// Replicas if scaling is off.
    pub replicas: i32,
    /// Python executable that runs the handler.
    pub python: String,
    /// Termination grace period, in seconds.
    pub grace: i32,
    /// Pod template of the user.
    pub template: Map<String, Value>,
}

/// A binding.
#[derive(Clone, Debug)]
pub struct Bound {
    /// Reference to the target.
    pub reference: WorkloadRef,
    /// Image and handler of the runtime.
    pub runtime: Runtime,
    /// Strategy that the user chose.
    pub strategy: AskedStrategy,
    /// Reaction to repeated conflicts about the target's pods.
    pub on_conflict: OnConflict,
    /// Whether the target of a proxy is scaled along with the proxy.
    pub scale_target: bool,
    /// Settings of the pods of a proxy.
    pub proxy: ProxyPods,
}

impl Request {
    /// Parses the spec of an actor.
    ///
    /// # Errors
    /// All violations, if the spec is invalid.
    pub fn new(actor: &AsyncActor) -> Result<Self, Vec<String>> {
        let wrong = violations(actor);
        let spec = &actor.spec;
        let work = match (&spec.workload, &spec.workload_ref, &spec.runtime) {
            _ if !wrong.is_empty() => return Err(wrong),
            (Some(workload), None, _) => Work::Standalone(Standalone {
                kind: workload.kind.unwrap_or_default(),
                replicas: workload.replicas.unwrap_or(1),
                python: workload.python_executable.clone().unwrap_or_else(python),
                grace: spec
                    .timeout
                    .as_ref()
                    .and_then(|t| t.graceful_shutdown)
                    .unwrap_or_else(|| spec.processing_seconds().saturating_add(30)),
                template: workload.template.clone(),
            }),
            (None, Some(reference), Some(runtime)) => Work::Bound(Bound {
                reference: reference.clone(),
                runtime: runtime.clone(),
                strategy: spec.strategy(),
                on_conflict: spec.on_conflict(),
                proxy: spec.binding.as_ref().and_then(|b| b.proxy.clone()).unwrap_or_default(),
                scale_target: spec.binding.as_ref().and_then(|b| b.scale_target).unwrap_or(false),
            }),
            _ => return Err(vec![messages::XOR.to_owned()]),
        };
        Ok(Self {
            name: actor.name_any(),
            namespace: actor.namespace().unwrap_or_default(),
            uid: actor.uid().unwrap_or_default(),
            transport: spec.transport.clone(),
            processing: spec.processing_seconds(),
            concurrency: spec.concurrency.filter(|count| *count > 1),
            retry: spec.retry.clone().unwrap_or_default(),
            startup: spec.timeout.as_ref().and_then(|t| t.startup).unwrap_or(STARTUP),
            scaling: spec.scaling_on().cloned(),
            has_alias: spec.queue_alias.is_some(),
            work,
        })
    }

    /// Whether the actor is bound to a workload with another owner.
    pub fn is_bound(&self) -> bool {
        matches!(self.work, Work::Bound(_))
    }
}

/// Default Python executable.
pub fn python() -> String {
    "python3".to_owned()
}

/// Pull policy in the notation of Kubernetes.
pub fn policy(policy: PullPolicy) -> &'static str {
    match policy {
        PullPolicy::Always => "Always",
        PullPolicy::IfNotPresent => "IfNotPresent",
        PullPolicy::Never => "Never",
    }
}

/// Handler mode in the notation of the runtime.
pub fn mode(mode: HandlerMode) -> &'static str {
    match mode {
        HandlerMode::Payload => "payload",
        HandlerMode::Envelope => "envelope",
    }
}

/// All violations of a spec: those of the CRD's validation rules, with the same messages, and those that the rules cannot check.
#[expect(clippy::too_many_lines, reason = "a list of checks, each one line")]
pub fn violations(actor: &AsyncActor) -> Vec<String> {
    let spec = &actor.spec;
    let mut wrong = Vec::new();
    let mut say = |bad: bool, text: &str| {
        if bad {
            wrong.push(text.to_owned());
        }
    };
    say(!is_name(&actor.name_any()), messages::NAME);
    say(
        spec.transport.is_empty(),
        "spec.transport is required: name a transport of the operator, such as rabbitmq",
    );
    say(spec.workload.is_some() == spec.workload_ref.is_some(), messages::XOR);
    say(
        spec.workload_ref.is_some() && spec.runtime.is_none(),
        messages::RUNTIME_MISSING,
    );
    say(
        spec.workload_ref.is_none() && spec.runtime.is_some(),
        messages::RUNTIME_MISPLACED,
    );
    say(
        spec.workload_ref.is_none() && spec.binding.is_some(),
        messages::BINDING_MISPLACED,
    );
    if let Some(workload) = &spec.workload {
        let containers = named(&workload.template, "containers");
        let init = named(&workload.template, "initContainers");
        let runtimes = containers.iter().filter(|(name, _)| *name == RUNTIME).count();
        say(runtimes != 1, messages::ONE_RUNTIME);
        say(
            containers.iter().any(|(name, _)| *name == SIDECAR),
            messages::NO_SIDECAR,
        );
        say(
            init.iter().any(|(name, _)| [SIDECAR, RUNTIME].contains(name)),
            messages::NO_INIT,
        );
        let commanded = |(name, body): &(&str, &Value)| *name == RUNTIME && body.get("command").is_some();
        say(containers.iter().any(commanded), messages::NO_COMMAND);
        let own = containers.iter().filter(|(name, _)| *name == RUNTIME);
        let set = own.flat_map(|(_, body)| body["env"].as_array().into_iter().flatten());
        for name in reserved(set.filter_map(|variable| variable["name"].as_str())) {
            say(true, &messages::reserved(RUNTIME_ENV, name));
        }
        let size = json::size(&workload.template);
        say(
            size > MAX_TEMPLATE,
            &format!(
                "workload.template is {} KiB of JSON, and at most {} KiB are accepted: put large values into a ConfigMap",
                size.div_ceil(1024),
                MAX_TEMPLATE / 1024
            ),
        );
        say(
            workload.replicas.is_some_and(|n| n < 0),
            "workload.replicas must not be negative",
        );
    }
    if let Some(reference) = &spec.workload_ref {
        say(reference.namespace.is_some(), messages::NAMESPACE);
        say(
            reference.name.is_empty(),
            "workloadRef.name is required: the name of the target",
        );
        say(
            reference.kind.is_empty(),
            "workloadRef.kind is required, such as Deployment",
        );
        say(
            reference.api_version.is_empty(),
            "workloadRef.apiVersion is required, such as apps/v1",
        );
    }
    if let Some(runtime) = &spec.runtime {
        say(
            runtime.image.is_empty(),
            "runtime.image is required: the image with the handler",
        );
        say(!is_python_path(&runtime.handler), messages::HANDLER);
        match runtime.target_url.as_deref().map(check_url) {
            Some(Err(Address::NoUrl)) => say(true, messages::URL),
            Some(Err(Address::Hidden)) => say(true, messages::URL_HIDDEN),
            _ => {}
        }
        for name in reserved(names_of(&runtime.env)) {
            say(true, &messages::reserved("runtime.env", name));
        }
    }
    if let Some(sidecar) = &spec.sidecar {
        for name in reserved(names_of(&sidecar.env)) {
            say(true, &messages::reserved("sidecar.env", name));
        }
    }
    if let Some(timeout) = &spec.timeout {
        say(
            timeout.processing.is_some_and(|n| n < 1),
            "timeout.processing must be at least 1 second",
        );
        say(
            timeout.startup.is_some_and(|n| n < 1),
            "timeout.startup must be at least 1 second",
        );
        say(
            timeout.graceful_shutdown.is_some_and(|n| n < 0),
            "timeout.gracefulShutdown must not be negative",
        );
    }
    say(
        spec.concurrency.is_some_and(|n| !(1..=1024).contains(&n)),
        "concurrency must be a number from 1 to 1024",
    );
    say(
        spec.retry
            .as_ref()
            .is_some_and(|retry| retry.attempts.is_some_and(|n| n < 1)),
        "retry.attempts must be at least 1",
    );
    if let Some(scaling) = &spec.scaling {
        say(
            scaling.min_replicas.is_some() && scaling.min_replica_count.is_some(),
            messages::MIN_TWICE,
        );
        say(
            scaling.max_replicas.is_some() && scaling.max_replica_count.is_some(),
            messages::MAX_TWICE,
        );
        say(scaling.min().unwrap_or(0) > scaling.max(), messages::MIN_ABOVE_MAX);
        say(
            scaling.min().is_some_and(|n| n < 0),
            "scaling.minReplicas must not be negative",
        );
        say(scaling.max() < 1, "scaling.maxReplicas must be at least 1");
        say(
            scaling.queue_length.is_some_and(|n| n < 1),
            "scaling.queueLength must be at least 1",
        );
        say(
            scaling.polling_interval.is_some_and(|n| n < 1),
            "scaling.pollingInterval must be at least 1 second",
        );
        say(
            scaling.cooldown_period.is_some_and(|n| n < 0),
            "scaling.cooldownPeriod must not be negative",
        );
        if let Some(advanced) = &scaling.advanced {
            let modified =
                advanced.target.is_some() || advanced.activation_target.is_some() || advanced.metric_type.is_some();
            say(modified && advanced.formula.is_none(), messages::FORMULA);
            say(
                advanced.formula.is_some() && advanced.target.is_none(),
                messages::FORMULA_TARGET,
            );
            for name in advanced.formula.as_deref().into_iter().flat_map(formula::names) {
                let is_trigger = name == "queue" || name == "alias" && spec.queue_alias.is_some();
                say(!is_trigger, &messages::formula_name(name));
            }
            let counts_alias = advanced
                .formula
                .as_ref()
                .is_none_or(|formula| formula.contains("alias"));
            say(spec.queue_alias.is_some() && !counts_alias, messages::FORMULA_ALIAS);
        }
    }
    wrong
}

/// The reserved ones of these environment variables.
fn reserved<'a>(names: impl Iterator<Item = &'a str>) -> impl Iterator<Item = &'a str> {
    names.filter(|name| RESERVED_VARIABLES.contains(name))
}

fn names_of(env: &[EnvVar]) -> impl Iterator<Item = &str> {
    env.iter().map(|variable| variable.name.as_str())
}

fn named<'a>(template: &'a Map<String, Value>, list: &str) -> Vec<(&'a str, &'a Value)> {
    let containers = template
        .get("spec")
        .and_then(|spec| spec.get(list))
        .and_then(Value::as_array);
    containers
        .into_iter()
        .flatten()
        .map(|c| (c["name"].as_str().unwrap_or_default(), c))
        .collect()
}

/// Whether a name is an RFC 1035 label, because Services get it.
fn is_name(name: &str) -> bool {
    name::is_label(name) && name.starts_with(|c: char| c.is_ascii_lowercase())
}

fn is_python_path(path: &str) -> bool {
    let identifier = |part: &str| {
        part.starts_with(|c: char| c.is_ascii_alphabetic() || c == '_')
            && part.chars().all(|c| c.is_ascii_alphanumeric() || c == '_')
    };
    path.contains('.') && path.split('.').all(identifier)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reserved_variable_is_rejected_wherever_a_container_of_the_operator_gets_it() {
        let wrong = |spec: serde_json::Value| {
            let actor = serde_json::json!({"apiVersion": "asya.sh/v1alpha1", "kind": "AsyncActor", "metadata": {"name": "a"}, "spec": spec});
            violations(&serde_json::from_value(actor).unwrap())
        };
        for name in RESERVED_VARIABLES {
            let env =
                serde_json::json!([{"name": "ASYA_LOG_LEVEL", "value": "debug"}, {"name": name, "value": "payments"}]);
            let template = serde_json::json!({"spec": {"containers": [{"name": RUNTIME, "image": "i"}, {"name": "other", "env": env}]}});
            let mut own = template.clone();
            own["spec"]["containers"][0]["env"] = env.clone();
            let standalone =
                |template| serde_json::json!({"transport": "rabbitmq", "workload": {"template": template}});
            assert_eq!(wrong(standalone(template.clone())), Vec::<String>::new());
            assert_eq!(wrong(standalone(own)), [messages::reserved(RUNTIME_ENV, name)]);
            let mut sidecar = standalone(template);
            sidecar["sidecar"] = serde_json::json!({"env": env});
            assert_eq!(wrong(sidecar), [messages::reserved("sidecar.env", name)]);
            let bound = serde_json::json!({
                "transport": "rabbitmq", "runtime": {"image": "i", "handler": "a.b", "env": env},
                "workloadRef": {"apiVersion": "apps/v1", "kind": "Deployment", "name": "x"},
            });
            assert_eq!(wrong(bound), [messages::reserved("runtime.env", name)]);
        }
    }

    #[test]
    fn names_in_a_formula_are_those_of_triggers() {
        let wrong = |formula: &str, alias: Option<&str>| {
            let template = serde_json::json!({"spec": {"containers": [{"name": RUNTIME, "image": "i"}]}});
            let scaling = serde_json::json!({"advanced": {"formula": formula, "target": "5"}});
            let spec = serde_json::json!({"transport": "rabbitmq", "workload": {"template": template}, "scaling": scaling, "queueAlias": alias});
            let actor = serde_json::json!({"apiVersion": "asya.sh/v1alpha1", "kind": "AsyncActor", "metadata": {"name": "a"}, "spec": spec});
            violations(&serde_json::from_value(actor).unwrap())
        };
        assert_eq!(wrong("queue * 2", None), Vec::<String>::new());
        assert_eq!(wrong("queue + alias", Some("AsyaV01")), Vec::<String>::new());
        assert_eq!(wrong("queue + alias", None), [messages::formula_name("alias")]);
        assert_eq!(wrong("rabbitmq / 2", None), [messages::formula_name("rabbitmq")]);
    }

    #[test]
    fn too_large_template_is_rejected_with_its_size() {
        let wrong = |length: usize| {
            let containers = serde_json::json!([{"name": RUNTIME, "image": "i", "args": ["x".repeat(length)]}]);
            let template = serde_json::json!({"spec": {"containers": containers}});
            let spec = serde_json::json!({"transport": "rabbitmq", "workload": {"template": template}});
            let actor = serde_json::json!({"apiVersion": "asya.sh/v1alpha1", "kind": "AsyncActor", "metadata": {"name": "a"}, "spec": spec});
            violations(&serde_json::from_value(actor).unwrap())
        };
        assert_eq!(wrong(250 * 1024), Vec::<String>::new());
        assert_eq!(
            wrong(300 * 1024),
            [
                "workload.template is 301 KiB of JSON, and at most 256 KiB are accepted: put large values into a ConfigMap"
            ]
        );
    }
}
