//! The scenarios.
#![allow(clippy::too_many_lines, reason = "lists")]
#![allow(clippy::needless_pass_by_value, reason = "steps read better without references")]

use runway_api::labels;
use runway_provider_dynamo::DYNAMO_GRAPH_DEPLOYMENT;
use runway_provider_kaito::INFERENCE_SET;
use runway_provider_kuberay::RAY_SERVICE;
use serde_json::{Value, json};

use crate::controllers::Who::{self, Asya, Core, Direct, Dynamo, Kaito, KubeRay, LlamaStack};
use crate::scenario::Step::{Create, Delete, Patch, Theirs, Until};
use crate::scenario::Until::{self as State, Gone, Is, Reported, There};
use crate::scenario::{ACTOR, MODEL, STACK, Scenario, Step, actor, config_map, distribution, service};
use crate::state::{CLAIM, CONFIG_MAP, DEPLOYMENT, SCALED_OBJECT, SERVICE, STATEFUL_SET};
use runway_product_testbed::{gemma, simulated, vllm};

const READY: State = Is("Ready", "True");
const ASLEEP: State = Is("Ready", "ScaledToZero");

/// Every scenario.
pub(crate) fn scenarios() -> Vec<Scenario> {
    let mut all = models();
    all.extend(handovers());
    all.extend(actors());
    all.extend(stacks());
    all
}

fn scenario(name: &'static str, controllers: &'static [Who], steps: impl Into<Vec<Step>>) -> Scenario {
    Scenario {
        name,
        controllers,
        steps: steps.into(),
        tries_again: false,
    }
}

/// A model that has to become ready, and what happens then.
fn served(name: &'static str, controllers: &'static [Who], model: Value, then: impl Into<Vec<Step>>) -> Scenario {
    let steps = vec![Create(MODEL, model), Until(MODEL, "m", READY)];
    scenario(name, controllers, and(steps, then))
}

/// A model without replicas, which has to fall asleep, and what happens then. For the direct provider: no pod runs here, so a model
/// with replicas would never be ready.
fn asleep(name: &'static str, controllers: &'static [Who], model: Value, then: impl Into<Vec<Step>>) -> Scenario {
    let steps = vec![Create(MODEL, model), Until(MODEL, "m", ASLEEP)];
    scenario(name, controllers, and(steps, then))
}

fn and(mut steps: Vec<Step>, more: impl Into<Vec<Step>>) -> Vec<Step> {
    steps.extend(more.into());
    steps
}

/// Changes the spec of the model.
fn change(spec: Value) -> Step {
    Patch(MODEL, "m", json!({ "spec": spec }))
}

fn annotate(key: &str, value: Value) -> Step {
    Patch(MODEL, "m", json!({ "metadata": { "annotations": { key: value } } }))
}

fn with(mut object: Value, pointer: &str, value: Value) -> Value {
    let (parent, key) = pointer.rsplit_once('/').unwrap_or_default();
    if let Some(parent) = object.pointer_mut(parent) {
        parent[key] = value;
    }
    object
}

fn replicas(count: u32) -> Value {
    json!({ "scaling": { "replicas": count } })
}

fn args(count: &str) -> Value {
    json!({ "engine": { "args": { "max-num-seqs": count } } })
}

/// A model whose arguments are in a ConfigMap.
fn with_args() -> Value {
    with(vllm("m", "kaito"), "/spec/engine/args", json!({ "max-num-seqs": "64" }))
}

/// A model without replicas.
fn direct() -> Value {
    with(vllm("m", "direct"), "/spec/scaling", json!({ "replicas": 0 }))
}

fn models() -> Vec<Scenario> {
    const KAITO: &[Who] = &[Core, Kaito];
    const DIRECT: &[Who] = &[Core, Direct];
    const DYNAMO: &[Who] = &[Core, Dynamo];
    const KUBERAY: &[Who] = &[Core, KubeRay];
    let deleted = || [Delete(MODEL, "m"), Until(MODEL, "m", Gone)];
    let edit = json!({ "metadata": { "labels": { labels::PROVIDER: "edited" } } });
    vec![
        served("kaito-create", KAITO, gemma("m"), []),
        served("kaito-create-with-args", KAITO, with_args(), []),
        served(
            "kaito-change-args",
            KAITO,
            with_args(),
            [change(args("32")), Until(MODEL, "m", READY)],
        ),
        served(
            "kaito-remove-args",
            KAITO,
            with_args(),
            [
                change(json!({ "engine": { "args": null } })),
                Until(CONFIG_MAP, "m-inference-config", Gone),
                Until(MODEL, "m", READY),
            ],
        ),
        served(
            "kaito-scale",
            KAITO,
            gemma("m"),
            [change(replicas(3)), Until(MODEL, "m", READY)],
        ),
        served(
            "kaito-scale-to-zero",
            KAITO,
            gemma("m"),
            [change(replicas(0)), Until(MODEL, "m", ASLEEP)],
        ),
        served(
            "kaito-immutable-change",
            KAITO,
            gemma("m"),
            [
                change(json!({ "resources": { "memory": "20Gi" } })),
                Until(MODEL, "m", READY),
            ],
        ),
        served(
            "kaito-identity-change",
            KAITO,
            gemma("m"),
            [
                change(json!({ "model": { "id": "google/another-gguf" } })),
                Until(MODEL, "m", READY),
            ],
        ),
        served(
            "kaito-identity-change-and-back",
            KAITO,
            gemma("m"),
            [
                change(json!({ "model": { "id": "google/another-gguf" } })),
                change(json!({ "model": { "id": "google/gemma-3-1b-it-qat-q8_0-gguf" } })),
                Until(MODEL, "m", READY),
            ],
        ),
        served("kaito-delete", KAITO, with_args(), deleted()),
        scenario(
            "kaito-delete-early",
            KAITO,
            [
                Create(MODEL, with_args()),
                Until(MODEL, "m", Is("ProviderSelected", "True")),
                Delete(MODEL, "m"),
                Until(MODEL, "m", Gone),
            ],
        ),
        served(
            "kaito-recreate",
            KAITO,
            gemma("m"),
            [
                Delete(MODEL, "m"),
                Until(MODEL, "m", Gone),
                Create(MODEL, gemma("m")),
                Until(MODEL, "m", READY),
            ],
        ),
        served(
            "kaito-delete-while-paused",
            KAITO,
            gemma("m"),
            [
                annotate(labels::PAUSED, json!("true")),
                Until(MODEL, "m", Is("Paused", "True")),
                Delete(MODEL, "m"),
                Until(MODEL, "m", Gone),
            ],
        ),
        served(
            "kaito-pause-and-go-on",
            KAITO,
            gemma("m"),
            [
                annotate(labels::PAUSED, json!("true")),
                Until(MODEL, "m", Is("Paused", "True")),
                change(replicas(2)),
                annotate(labels::PAUSED, Value::Null),
                Until(MODEL, "m", READY),
            ],
        ),
        served(
            "kaito-child-edited",
            KAITO,
            gemma("m"),
            [Patch(INFERENCE_SET, "m", edit.clone())],
        ),
        served(
            "kaito-child-deleted",
            KAITO,
            gemma("m"),
            [Delete(INFERENCE_SET, "m"), Until(MODEL, "m", READY)],
        ),
        scenario(
            "kaito-upstream-fails",
            KAITO,
            [
                Create(MODEL, simulated(gemma("m"), "fail")),
                Until(MODEL, "m", Is("Ready", "False")),
            ],
        ),
        scenario(
            "kaito-name-taken",
            KAITO,
            [
                Theirs(CONFIG_MAP, config_map("m-inference-config")),
                Create(MODEL, with_args()),
                Until(MODEL, "m", Is("Ready", "NameTaken")),
            ],
        )
        .trying_again(),
        scenario(
            "kaito-name-freed",
            KAITO,
            [
                Create(CONFIG_MAP, config_map("m-inference-config")),
                Create(MODEL, with_args()),
                Until(MODEL, "m", Is("Ready", "NameTaken")),
                Delete(CONFIG_MAP, "m-inference-config"),
                Until(MODEL, "m", READY),
            ],
        ),
        scenario(
            "kaito-dry-run-then-real",
            KAITO,
            [
                Create(
                    MODEL,
                    with(gemma("m"), "/metadata/annotations", json!({ labels::DRY_RUN: "true" })),
                ),
                Until(MODEL, "m", Is("DryRun", "True")),
                annotate(labels::DRY_RUN, Value::Null),
                Until(MODEL, "m", READY),
            ],
        ),
        scenario(
            "invalid-then-valid",
            KAITO,
            [
                Create(
                    MODEL,
                    with(vllm("m", "kaito"), "/spec/resources", json!({ "gpu": { "count": 0 } })),
                ),
                Until(MODEL, "m", Is("Validated", "False")),
                change(json!({ "resources": { "gpu": { "count": 1 } } })),
                Until(MODEL, "m", READY),
            ],
        ),
        scenario(
            "no-provider-then-delete",
            &[Core],
            [
                Create(MODEL, vllm("m", "unregistered")),
                Until(MODEL, "m", Is("Validated", "False")),
                Delete(MODEL, "m"),
                Until(MODEL, "m", Gone),
            ],
        ),
        asleep("direct-create", DIRECT, direct(), []),
        scenario(
            "direct-create-with-replicas",
            DIRECT,
            [
                Create(MODEL, vllm("m", "direct")),
                Until(DEPLOYMENT, "m", There),
                Until(MODEL, "m", Is("ResourceCreated", "True")),
            ],
        ),
        asleep(
            "direct-change-image",
            DIRECT,
            direct(),
            [
                change(json!({ "image": "registry.example/vllm:2" })),
                Until(MODEL, "m", ASLEEP),
            ],
        ),
        asleep(
            "direct-child-deleted",
            DIRECT,
            direct(),
            [Delete(SERVICE, "m"), Until(SERVICE, "m", There)],
        ),
        asleep("direct-delete", DIRECT, direct(), deleted()),
        scenario(
            "direct-name-taken",
            DIRECT,
            [
                Theirs(SERVICE, service("m")),
                Create(MODEL, direct()),
                Until(MODEL, "m", Is("Ready", "NameTaken")),
            ],
        )
        .trying_again(),
        asleep(
            "direct-claim",
            DIRECT,
            with(direct(), "/spec/model/storage", storage()),
            [
                Until(CLAIM, "m-cache", There),
                change(json!({ "model": { "storage": null } })),
                Until(MODEL, "m", ASLEEP),
            ],
        ),
        served("dynamo-create", DYNAMO, vllm("m", "dynamo"), []),
        served(
            "dynamo-scale",
            DYNAMO,
            vllm("m", "dynamo"),
            [change(replicas(2)), Until(MODEL, "m", READY)],
        ),
        served(
            "dynamo-child-deleted",
            DYNAMO,
            vllm("m", "dynamo"),
            [Delete(DYNAMO_GRAPH_DEPLOYMENT, "m"), Until(MODEL, "m", READY)],
        ),
        served("dynamo-delete", DYNAMO, vllm("m", "dynamo"), deleted()),
        served("kuberay-create", KUBERAY, vllm("m", "kuberay"), []),
        served(
            "kuberay-change-args",
            KUBERAY,
            vllm("m", "kuberay"),
            [change(args("32")), Until(MODEL, "m", READY)],
        ),
        served(
            "kuberay-child-edited",
            KUBERAY,
            vllm("m", "kuberay"),
            [Patch(RAY_SERVICE, "m", edit)],
        ),
        served("kuberay-delete", KUBERAY, vllm("m", "kuberay"), deleted()),
    ]
}

fn storage() -> Value {
    json!({ "volumes": [{ "name": "cache", "purpose": "modelCache", "size": "1Gi" }] })
}

fn handovers() -> Vec<Scenario> {
    let to = |provider: &str| change(json!({ "provider": { "name": provider } }));
    vec![
        served(
            "handover-kaito-to-kuberay",
            &[Core, Kaito, KubeRay],
            vllm("m", "kaito"),
            [to("kuberay"), Until(RAY_SERVICE, "m", There), Until(MODEL, "m", READY)],
        ),
        served(
            "handover-kuberay-to-dynamo",
            &[Core, KubeRay, Dynamo],
            vllm("m", "kuberay"),
            [
                to("dynamo"),
                Until(DYNAMO_GRAPH_DEPLOYMENT, "m", There),
                Until(MODEL, "m", READY),
            ],
        ),
        asleep(
            "handover-direct-to-kaito",
            &[Core, Direct, Kaito],
            direct(),
            [to("kaito"), Until(INFERENCE_SET, "m", There), Until(MODEL, "m", ASLEEP)],
        ),
        served(
            "handover-there-and-back",
            &[Core, Kaito, Direct],
            vllm("m", "kaito"),
            [
                to("direct"),
                to("kaito"),
                Until(INFERENCE_SET, "m", There),
                Until(MODEL, "m", READY),
            ],
        ),
        scenario(
            "handover-while-created",
            &[Core, Kaito, KubeRay],
            [
                Create(MODEL, vllm("m", "kaito")),
                Until(INFERENCE_SET, "m", There),
                to("kuberay"),
                Until(RAY_SERVICE, "m", There),
                Until(MODEL, "m", READY),
            ],
        ),
        served(
            "handover-then-delete",
            &[Core, Kaito, KubeRay],
            with_args(),
            [to("kuberay"), Delete(MODEL, "m"), Until(MODEL, "m", Gone)],
        ),
    ]
}

/// A Deployment to bind to.
fn target() -> Value {
    json!({ "apiVersion": "apps/v1", "kind": "Deployment", "metadata": { "name": "target" },
        "spec": { "replicas": 0, "selector": { "matchLabels": { "app": "model" } }, "template": {
            "metadata": { "labels": { "app": "model" } },
            "spec": { "containers": [{ "name": "model", "image": "model:1", "ports": [{ "containerPort": 8000 }] }] } } } })
}

/// An actor that is bound to it.
fn bound(name: &str) -> Value {
    json!({ "apiVersion": "asya.sh/v1alpha1", "kind": "AsyncActor", "metadata": { "name": name }, "spec": {
        "transport": "rabbitmq", "workloadRef": { "apiVersion": "apps/v1", "kind": "Deployment", "name": "target" },
        "runtime": { "image": "registry.example/adapter:1", "handler": "a.b" } } })
}

fn actors() -> Vec<Scenario> {
    const ASYA: &[Who] = &[Asya];
    const INJECTED: State = Is("RuntimeInjected", "True");
    let scaled = || {
        with(
            actor("a"),
            "/spec/scaling",
            json!({ "enabled": true, "maxReplicas": 3 }),
        )
    };
    let own = || {
        [
            Create(ACTOR, actor("a")),
            Until(DEPLOYMENT, "a", There),
            Until(ACTOR, "a", Reported),
        ]
    };
    let binds = || {
        [
            Theirs(DEPLOYMENT, target()),
            Create(ACTOR, bound("a")),
            Until(ACTOR, "a", INJECTED),
        ]
    };
    let image = json!([{ "name": "asya-runtime", "image": "registry.example/own:2" }]);
    let change = |spec: Value| Patch(ACTOR, "a", json!({ "spec": spec }));
    let deleted = || vec![Delete(ACTOR, "a"), Until(ACTOR, "a", Gone)];
    vec![
        scenario("actor-create", ASYA, own()),
        scenario(
            "actor-create-asleep",
            ASYA,
            [
                Create(ACTOR, with(actor("a"), "/spec/workload/replicas", json!(0))),
                Until(DEPLOYMENT, "a", There),
                Until(ACTOR, "a", Reported),
            ],
        ),
        scenario(
            "actor-change-image",
            ASYA,
            and(
                own().into(),
                vec![
                    change(json!({ "workload": { "template": { "spec": { "containers": image } } } })),
                    Until(ACTOR, "a", Reported),
                ],
            ),
        ),
        scenario(
            "actor-to-stateful-set",
            ASYA,
            and(
                own().into(),
                vec![
                    change(json!({ "workload": { "kind": "StatefulSet" } })),
                    Until(DEPLOYMENT, "a", Gone),
                    Until(STATEFUL_SET, "a", There),
                ],
            ),
        ),
        scenario("actor-delete", ASYA, and(own().into(), deleted())),
        scenario(
            "actor-scaled",
            ASYA,
            [
                Create(ACTOR, scaled()),
                Until(SCALED_OBJECT, "asya-a", There),
                Until(ACTOR, "a", Reported),
            ],
        ),
        scenario(
            "actor-scaling-off",
            ASYA,
            [
                Create(ACTOR, scaled()),
                Until(SCALED_OBJECT, "asya-a", There),
                change(json!({ "scaling": { "enabled": false } })),
                Until(SCALED_OBJECT, "asya-a", Gone),
            ],
        ),
        scenario(
            "actor-name-taken",
            ASYA,
            [
                Theirs(DEPLOYMENT, with(target(), "/metadata/name", json!("a"))),
                Create(ACTOR, actor("a")),
                Until(ACTOR, "a", Reported),
            ],
        )
        .trying_again(),
        scenario(
            "actor-child-edited",
            ASYA,
            and(
                own().into(),
                // Of a template that is restored at once, the Deployment's controller may see nothing.
                vec![Patch(
                    DEPLOYMENT,
                    "a",
                    json!({ "metadata": { "labels": { "asya.sh/actor": "another" } } }),
                )],
            ),
        ),
        scenario("bind", ASYA, binds()),
        scenario("bind-and-release", ASYA, and(binds().into(), deleted())),
        scenario(
            "bind-change-handler",
            ASYA,
            and(
                binds().into(),
                vec![
                    change(json!({ "runtime": { "handler": "c.d" } })),
                    Until(ACTOR, "a", INJECTED),
                ],
            ),
        ),
        scenario("bind-create", ASYA, binds()),
        scenario(
            "bind-before-target",
            ASYA,
            [
                Create(ACTOR, bound("a")),
                Until(ACTOR, "a", Reported),
                Theirs(DEPLOYMENT, target()),
                Until(ACTOR, "a", INJECTED),
            ],
        ),
        scenario(
            "bind-target-deleted",
            ASYA,
            [
                Create(DEPLOYMENT, target()),
                Create(ACTOR, bound("a")),
                Until(ACTOR, "a", INJECTED),
                Delete(DEPLOYMENT, "target"),
                Until(ACTOR, "a", Is("RuntimeInjected", "False")),
            ],
        ),
        scenario(
            "bind-rival-takes-over",
            ASYA,
            and(
                binds().into(),
                vec![
                    Create(ACTOR, bound("b")),
                    Until(ACTOR, "b", Reported),
                    Delete(ACTOR, "a"),
                    Until(ACTOR, "a", Gone),
                    Until(ACTOR, "b", INJECTED),
                ],
            ),
        ),
        scenario(
            "bind-to-calls",
            ASYA,
            and(
                binds().into(),
                vec![
                    change(json!({ "binding": { "strategy": "Proxy" }, "runtime": { "targetURL": "http://model" } })),
                    Until(DEPLOYMENT, "a-asya", There),
                ],
            ),
        ),
        scenario(
            "bind-scaled",
            ASYA,
            [
                Theirs(DEPLOYMENT, target()),
                Create(ACTOR, with(bound("a"), "/spec/scaling", json!({ "enabled": true }))),
                Until(ACTOR, "a", INJECTED),
                Delete(ACTOR, "a"),
                Until(ACTOR, "a", Gone),
            ],
        ),
    ]
}

/// A distribution that is created, and what happens then.
fn stack(name: &'static str, distribution: Value, then: impl Into<Vec<Step>>) -> Scenario {
    let steps = vec![
        Create(STACK, distribution),
        Until(DEPLOYMENT, "s", There),
        Until(STACK, "s", Reported),
    ];
    scenario(name, &[LlamaStack], and(steps, then))
}

/// Changes the spec of the distribution, and waits until the status reports it.
fn changed(spec: Value) -> [Step; 2] {
    [Patch(STACK, "s", json!({ "spec": spec })), Until(STACK, "s", Reported)]
}

/// The list of external providers with one, which is installed when the pod starts.
fn provider(image: &str) -> Value {
    json!({ "inference": [{ "providerId": "echo", "image": image }] })
}

fn stacks() -> Vec<Scenario> {
    const FIRST: &str = "registry.example/echo:1";
    const SECOND: &str = "registry.example/echo:2";
    let plain = || distribution("s");
    let stored = || with(plain(), "/spec/server/storage", json!({ "size": "1Gi" }));
    let extended = || with(plain(), "/spec/server/externalProviders", provider(FIRST));
    let network = json!({ "exposeRoute": true, "allowedFrom": { "namespaces": ["web"] } });
    let connected = || with(plain(), "/spec/network", network.clone());
    let autoscaling = json!({ "maxReplicas": 5, "targetCPUUtilizationPercentage": 70 });
    let providers = |providers: Value| changed(json!({ "server": { "externalProviders": providers } }));
    let image = json!({ "name": null, "image": "registry.example/distribution:2" });
    vec![
        stack("stack-create", plain(), []),
        stack("stack-create-with-storage", stored(), []),
        stack("stack-create-with-network", connected(), []),
        stack("stack-network-off", connected(), changed(json!({ "network": null }))),
        stack("stack-provider-install", plain(), providers(provider(FIRST))),
        stack("stack-provider-upgrade", extended(), providers(provider(SECOND))),
        stack("stack-provider-remove", extended(), providers(Value::Null)),
        stack(
            "stack-upgrade",
            stored(),
            changed(json!({ "server": { "distribution": image } })),
        ),
        stack("stack-scale", plain(), changed(json!({ "replicas": 2 }))),
        stack(
            "stack-autoscaled",
            with(plain(), "/spec/server/autoscaling", autoscaling),
            [],
        ),
        scenario(
            "stack-name-taken",
            &[LlamaStack],
            [
                Theirs(SERVICE, service("s-service")),
                Create(STACK, plain()),
                Until(STACK, "s", Reported),
            ],
        )
        .trying_again(),
        stack(
            "stack-child-deleted",
            plain(),
            [Delete(SERVICE, "s-service"), Until(SERVICE, "s-service", There)],
        ),
        stack("stack-delete", stored(), [Delete(STACK, "s"), Until(STACK, "s", Gone)]),
    ]
}
