//! Permissions: controllers have exactly those that they use, counted in the audit log; users have those of their role.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use axum::http::Method;
use k8s_openapi::api::core::v1::{ConfigMap, PersistentVolumeClaim, Secret, Service};
use k8s_openapi::api::rbac::v1::PolicyRule;
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::api::{DeleteParams, ListParams, Patch, PatchParams, PostParams};
use kube::core::{ApiResource, DynamicObject};
use kube::{Api, Client, CustomResourceExt, Resource, ResourceExt};
use runway_api::async_actor::{RUNTIME_INJECTED, WORKLOAD_READY};
use runway_api::condition::{self, Conditions};
use runway_api::{AsyncActor, InferenceProviderConfig, LlamaStackDistribution, ModelDeployment, labels};
use runway_asya_operator::names::BROKER_SECRET;
use runway_asya_operator::object::CONFIG_MAP;
use runway_asya_operator::targets::{
    BENTO_DEPLOYMENT, DEPLOYMENT, INFERENCE_SERVICE, KNOWN, MODEL_DEPLOYMENT, SELDON_SERVER, STATEFUL_SET,
};
use runway_llama_stack_operator::kinds;
use runway_manifests::permissions::{Guarded, KINDS};
use runway_manifests::{self as manifests, Component, Release, WEBHOOK_SECRET, confinement};
use runway_operator::access::{by_scope, rule};
use runway_operator::autoscaler::{HORIZONTAL_POD_AUTOSCALER, SCALED_OBJECT};
use runway_operator::lease::{Election, Leadership, LeaseArgs};
use runway_operator::object::Kind;
use runway_product_testbed::*;
use runway_provider_direct::Direct;
use runway_provider_dynamo::Dynamo;
use runway_provider_kaito::{INFERENCE_SET, Kaito, WORKSPACE};
use runway_provider_kuberay::KubeRay;
use runway_router::routes::kinds::{GATEWAY, HTTP_ROUTE};
use runway_testbed::audit::Request;
use runway_testbed::engine::MODELS;
use runway_testbed::traffic::{Begun, client};
use runway_testbed::{RabbitMq, RabbitMqOptions, apply, crds, eventually, tokens};
use serde_json::{Value, json};
use tokio_util::sync::CancellationToken;

/// Asked for by the API server itself, in clusters that enforce it for owner references: no request of its own.
const ASKED_BY_THE_SERVER: [&str; 3] = [
    "update asya.sh/asyncactors/finalizers",
    "update kubeairunway.ai/modeldeployments/finalizers",
    "update llamastack.io/llamastackdistributions/finalizers",
];

/// For requests to endpoints, which controllers of this test do not send.
const FOR_ENDPOINTS: [&str; 2] = ["get /services", "list discovery.k8s.io/endpointslices"];

#[tokio::test]
async fn controllers_may_do_what_they_do_and_nothing_else() -> Result<()> {
    let bed = Bed::start_with(Upstream::All, true).await?;
    let log = bed.cluster.audit().await?;
    let mark = log.mark().await?;
    {
        let _core = bed.core_led_by(led(&bed, labels::CORE_MANAGER).await?).await?;
        let kaito = led(&bed, "kaito-provider").await?;
        let dynamo = led(&bed, "dynamo-provider").await?;
        let kuberay = led(&bed, "kuberay-provider").await?;
        let direct = led(&bed, "direct-provider").await?;
        let _kaito = bed.provider_led_by(Kaito::default(), kaito).await?;
        let _dynamo = bed.provider_led_by(Dynamo::default(), dynamo).await?;
        let _kuberay = bed.provider_led_by(KubeRay::default(), kuberay).await?;
        let _direct = bed.provider_led_by(Direct::default(), direct).await?;
        let _simulator = bed.simulator().await?;
        bed.admission_is_up().await?;
        live(&bed).await?;
    }
    let requests = log.since(mark).await?;
    let mut complaints = Vec::new();
    // The operators of the other systems have tests of their own below.
    let ours = |name: &str| name == labels::CORE_MANAGER || name.ends_with("-provider");
    for component in manifests::components().into_iter().filter(|c| ours(&c.name)) {
        complaints.extend(judge(&component, &requests));
    }
    ensure!(complaints.is_empty(), "{}", complaints.join("\n"));
    Ok(())
}

/// Namespaces of a namespaced installation.
const WATCHED: &str = "default,team-b";
/// A namespace that it does not contain.
const ELSEWHERE: &str = "elsewhere";

/// The life of all models with Roles in two namespaces, and a ClusterRole for objects without a namespace.
#[tokio::test]
async fn controllers_of_a_namespaced_installation_need_no_right_elsewhere_and_touch_nothing_there() -> Result<()> {
    let bed = Bed::start_within(WATCHED, Upstream::All, true).await?;
    bed.apply(&json!({ "apiVersion": "v1", "kind": "Namespace", "metadata": { "name": ELSEWHERE } }))
        .await?;
    let log = bed.cluster.audit().await?;
    let mark = log.mark().await?;
    let others: Api<ModelDeployment> = Api::namespaced(bed.admin.clone(), ELSEWHERE);
    let untouched = {
        let _core = bed.core_led_by(led(&bed, labels::CORE_MANAGER).await?).await?;
        let _kaito = bed.provider(Kaito::default()).await?;
        let _dynamo = bed.provider(Dynamo::default()).await?;
        let _kuberay = bed.provider(KubeRay::default()).await?;
        let _direct = bed.provider(Direct::default()).await?;
        let _simulator = bed.simulator().await?;
        bed.admission_is_up().await?;
        let mut object = vllm("model", "direct");
        object["metadata"]["namespace"] = json!(ELSEWHERE);
        let untouched = others
            .create(&PostParams::default(), &serde_json::from_value(object)?)
            .await?;
        live(&bed).await?;
        let mut object = idle("second");
        object["metadata"]["namespace"] = json!("team-b");
        bed.apply(&object).await?;
        let second: Api<ModelDeployment> = Api::namespaced(bed.admin.clone(), "team-b");
        eventually(PATIENCE, async || {
            let status = second.get("second").await?.status.unwrap_or_default();
            ensure!(status.conditions.is_true(condition::RESOURCE_CREATED), "{status:?}");
            Ok(())
        })
        .await?;
        untouched
    };
    ensure!(untouched.finalizers().is_empty(), "{untouched:?}");
    let after = others.get("model").await?;
    ensure!(after.resource_version() == untouched.resource_version(), "{after:?}");

    let complaints = beyond_installation(&log.since(mark).await?);
    ensure!(complaints.is_empty(), "{}", complaints.join("\n"));
    Ok(())
}

/// The operators, the routes controller and the router with Roles in two namespaces. Each does its work in one of them.
#[tokio::test]
async fn operators_and_routers_of_a_namespaced_installation_need_no_right_elsewhere_and_touch_nothing_there()
-> Result<()> {
    let bed = Bed::start_within(WATCHED, Upstream::None, false).await?;
    install_crds_of_actors(&bed).await?;
    for crd in crds::gateway_api().await? {
        crds::install_crd(&bed.admin, crd).await?;
    }
    bed.apply(&json!({ "apiVersion": "v1", "kind": "Namespace", "metadata": { "name": ELSEWHERE } }))
        .await?;
    let mut others = Vec::new();
    for (kind, spec) in purpose() {
        let mut object = plain(kind, "untouched");
        json_patch::merge(&mut object["spec"], &spec);
        object["metadata"]["namespace"] = json!(ELSEWHERE);
        others.push(bed.apply(&object).await?);
    }
    let log = bed.cluster.audit().await?;
    let mark = log.mark().await?;
    llama_stack_works(&bed).await?;
    asya_works(&bed).await?;
    routes_work(&bed).await?;
    router_works(&bed).await?;

    for object in others {
        let api = apply::api_of(&bed.admin, &object).await?;
        let after = api.get(&object.name_any()).await?;
        ensure!(after.resource_version() == object.resource_version(), "{after:?}");
    }
    let requests = log.since(mark).await?;
    let mut complaints = beyond_installation(&requests);
    for name in [
        labels::llama_stack::MANAGER,
        labels::ASYA_MANAGER,
        labels::GATEWAY_MANAGER,
        labels::ROUTER_MANAGER,
    ] {
        let own: Vec<_> = requests.iter().filter(|request| request.user == name).collect();
        ensure_seen(name, &own, &mut complaints);
    }
    ensure!(complaints.is_empty(), "{}", complaints.join("\n"));
    Ok(())
}

/// Requests of the product's programs that were refused, or that concern other namespaces than those of the installation.
fn beyond_installation(requests: &[Request]) -> Vec<String> {
    let names: BTreeSet<String> = manifests::all_components().into_iter().map(|c| c.name).collect();
    let places: Vec<&str> = WATCHED.split(',').chain(["", manifests::NAMESPACE]).collect();
    let own = requests
        .iter()
        .filter(|request| names.contains(&request.user) && !request.resource.is_empty());
    own.filter(|request| {
        let kind = rule(&request.group, &[&request.resource], &["list"]);
        let is_everywhere = request.namespace.is_empty() && by_scope(&[kind]).0.is_empty();
        request.code == 403 || is_everywhere || !places.contains(&request.namespace.as_str())
    })
    .map(|request| format!("{request:?}"))
    .collect()
}

/// A model gets a route at the Gateway, and loses it.
async fn routes_work(bed: &Bed) -> Result<()> {
    let gateway = json!({ "apiVersion": GATEWAY.resource().api_version, "kind": GATEWAY.kind,
        "metadata": { "name": "models", "namespace": NAMESPACE },
        "spec": { "gatewayClassName": "simulated", "listeners": [{ "name": "http", "protocol": "HTTP", "port": 80 }] } });
    bed.apply(&gateway).await?;
    let _routes = bed
        .routes(&["--gateway=default/models", "--endpoint-picker={name}-epp"])
        .await?;
    bed.create(gemma("routed")).await?;
    let status = json!({ "status": { "endpoint": { "service": "routed", "port": 8000 }, "replicas": { "ready": 1 } } });
    bed.deployments()
        .patch_status("routed", &PatchParams::default(), &Patch::Merge(&status))
        .await?;
    let routes = bed.upstream(HTTP_ROUTE, HTTP_ROUTE.version);
    eventually(PATIENCE, async || Ok(routes.get("routed").await?)).await?;
    bed.patch("routed", json!({ "spec": { "gateway": { "enabled": false } } }))
        .await?;
    eventually(PATIENCE, async || {
        ensure!(routes.get_opt("routed").await?.is_none(), "the route is still there");
        Ok(())
    })
    .await
}

/// A user lists a model that sleeps, and a request wakes it.
async fn router_works(bed: &Bed) -> Result<()> {
    let mut sleeping = gemma("sleeping");
    sleeping["spec"]["scaling"]["replicas"] = json!(0);
    bed.create(sleeping).await?;
    let account = json!({ "apiVersion": "v1", "kind": "ServiceAccount", "metadata": { "name": "caller", "namespace": NAMESPACE } });
    bed.apply(&account).await?;
    let reads = json!([{ "apiGroups": ["kubeairunway.ai"], "resources": ["modeldeployments"], "verbs": ["get"] }]);
    let role = json!({ "apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRole", "metadata": { "name": "models" }, "rules": reads });
    bed.apply(&role).await?;
    bind(bed, "system:serviceaccount:default:caller", "models", Some(NAMESPACE)).await?;
    let token = tokens::token(&bed.admin, NAMESPACE, "caller", &[runway_router::AUDIENCE]).await?;

    let (_router, address) = bed.router().await?;
    eventually(PATIENCE, async || {
        let request = client::request(Method::GET, MODELS, &token, "")?;
        let listed = Begun::send(address, request).await?.whole().await?;
        ensure!(listed.text.contains("sleeping"), "{}", listed.text);
        Ok(())
    })
    .await?;
    let request = client::chat(&token, &json!({ "model": "default/sleeping", "messages": [] }))?;
    let held = tokio::spawn(Begun::send(address, request));
    eventually(PATIENCE, async || {
        let replicas = bed
            .deployments()
            .get_scale("sleeping")
            .await?
            .spec
            .and_then(|spec| spec.replicas);
        ensure!(replicas == Some(1), "{replicas:?} replicas");
        Ok(())
    })
    .await?;
    held.abort();
    Ok(())
}

/// Whatever their roles allow, the accounts of controllers write nothing in namespaces of the cluster, and in their own namespace
/// only the objects that their Role names.
#[tokio::test]
async fn accounts_of_controllers_write_nothing_in_namespaces_of_the_cluster() -> Result<()> {
    let bed = Bed::start_with(Upstream::None, false).await?;
    for object in manifests::components()
        .iter()
        .flat_map(|c| c.objects(&Release::default()))
    {
        let kind = object.types.as_ref().map(|t| t.kind.as_str()).unwrap_or_default();
        let is_policy = object.name_any() == confinement::POLICY;
        if is_policy || kind.contains("Role") {
            bed.apply(&serde_json::to_value(&object)?).await?;
        }
    }
    for namespace in ["kube-system", manifests::NAMESPACE] {
        bed.apply(&json!({ "apiVersion": "v1", "kind": "ConfigMap", "metadata": { "name": "config", "namespace": namespace } }))
            .await?;
    }
    let account = async |name: &str| {
        let user = format!("system:serviceaccount:{}:{name}", manifests::NAMESPACE);
        bed.cluster.client(&user, &[]).await
    };
    let config =
        json!({ "apiVersion": "v1", "kind": "ConfigMap", "metadata": { "name": "config" }, "data": { "a": "b" } });
    let workload =
        json!({ "apiVersion": "apps/v1", "kind": "Deployment", "metadata": { "name": "model" }, "spec": model_pods() });
    let lease =
        |name: &str| json!({ "apiVersion": "coordination.k8s.io/v1", "kind": "Lease", "metadata": { "name": name } });
    let secret = |name: &str| json!({ "apiVersion": "v1", "kind": "Secret", "metadata": { "name": name } });
    // The policy takes a moment to be in force.
    let direct = account("direct-provider").await?;
    eventually(PATIENCE, async || {
        refused(&tried(&direct, &workload, "kube-system").await)
    })
    .await?;
    for (name, object) in [
        ("direct-provider", &workload),
        ("asya-operator", &workload),
        ("llama-stack-operator", &workload),
        ("asya-operator", &config),
        ("kaito-provider", &config),
        ("llama-stack-operator", &config),
    ] {
        let client = account(name).await?;
        for namespace in ["kube-system", "kube-public", manifests::NAMESPACE] {
            refused(&tried(&client, object, namespace).await).with_context(|| format!("{name} in {namespace}"))?;
        }
        tried(&client, object, NAMESPACE)
            .await
            .with_context(|| name.to_owned())?;
    }
    // In their own namespace, accounts write what is theirs.
    let core = account(labels::CORE_MANAGER).await?;
    created(&core, &lease(labels::CORE_MANAGER)).await?;
    tried(&core, &secret(WEBHOOK_SECRET), manifests::NAMESPACE).await?;
    refused(&created(&core, &lease("direct-provider")).await)?;
    // The Role itself bounds the names of Secrets.
    let other = tried(&core, &secret("token"), manifests::NAMESPACE).await;
    ensure!(other.is_err_and(|error| format!("{error:#}").contains("secrets \"token\" is forbidden")));
    // A status is reported everywhere, and the accounts of others are not concerned.
    let mut model = gemma("model");
    model["metadata"]["namespace"] = json!("kube-system");
    bed.apply(&model).await?;
    let models: Api<ModelDeployment> = Api::namespaced(core, "kube-system");
    let message = Patch::Merge(json!({ "status": { "message": "reported" } }));
    models.patch_status("model", &PatchParams::default(), &message).await?;
    tried(&bed.admin, &workload, "kube-system").await
}

/// Applies an object to a namespace by a dry run.
async fn tried(client: &Client, object: &Value, namespace: &str) -> Result<()> {
    let mut object: DynamicObject = serde_json::from_value(object.clone())?;
    object.metadata.namespace = Some(namespace.to_owned());
    let dry = PatchParams {
        dry_run: true,
        ..PatchParams::apply("test").force()
    };
    let api = apply::api_of(client, &object).await?;
    api.patch(&object.name_any(), &dry, &Patch::Apply(&object)).await?;
    Ok(())
}

/// Creates an object in the namespace of the controllers by a dry run.
async fn created(client: &Client, object: &Value) -> Result<()> {
    let mut object: DynamicObject = serde_json::from_value(object.clone())?;
    object.metadata.namespace = Some(manifests::NAMESPACE.to_owned());
    let dry = PostParams {
        dry_run: true,
        ..PostParams::default()
    };
    apply::api_of(client, &object).await?.create(&dry, &object).await?;
    Ok(())
}

/// Whether the policy on controllers refused a write.
fn refused(tried: &Result<()>) -> Result<()> {
    match tried.as_ref().map_err(|error| format!("{error:#}")) {
        Err(error) if error.contains("of KubeAIRunway may not write") => Ok(()),
        other => bail!("not refused by the policy: {other:?}"),
    }
}

#[tokio::test]
async fn the_llama_stack_operator_may_do_what_it_does_and_nothing_else() -> Result<()> {
    let bed = Bed::start_with(Upstream::None, false).await?;
    let log = bed.cluster.audit().await?;
    let mark = log.mark().await?;
    llama_stack_works(&bed).await?;
    let complaints = judge(&manifests::llama_stack(), &log.since(mark).await?);
    ensure!(complaints.is_empty(), "{}", complaints.join("\n"));
    Ok(())
}

/// The Llama Stack operator during the life of a LlamaStackDistribution.
async fn llama_stack_works(bed: &Bed) -> Result<()> {
    let pod = json!({ "apiVersion": "v1", "kind": "Pod", "metadata": { "name": "operator", "namespace": manifests::NAMESPACE },
        "spec": {
            "securityContext": { "runAsNonRoot": true, "runAsUser": 1, "seccompProfile": { "type": "RuntimeDefault" } },
            "containers": [{ "name": "manager", "image": "registry.example/own:1",
                "securityContext": { "allowPrivilegeEscalation": false, "capabilities": { "drop": ["ALL"] } } }],
        } });
    eventually(PATIENCE, async || bed.apply(&pod).await).await?;
    let leadership = led(bed, labels::llama_stack::MANAGER).await?;
    let _operator = bed.llama_stack_led_by(leadership, "operator").await?;
    distributions_live(bed).await
}

/// Everything that may be made for a LlamaStackDistribution comes and goes.
async fn distributions_live(bed: &Bed) -> Result<()> {
    bed.create(gemma("model")).await?;
    let config = json!({ "apiVersion": "v1", "kind": "ConfigMap", "metadata": { "name": "config", "namespace": NAMESPACE },
        "data": { "run.yaml": "version: 2", "ca-bundle.crt": rcgen::generate_simple_self_signed(["a".to_owned()])?.cert.pem() } });
    bed.apply(&config).await?;
    let distribution = json!({ "image": "registry.example/distribution:1" });
    let providers = json!({ "inference": [{ "providerId": "echo", "image": "registry.example/echo:1" }] });
    let full = json!({
        "replicas": 2,
        "network": { "exposeRoute": true, "allowedFrom": { "namespaces": ["*"] } },
        "server": {
            "distribution": distribution, "externalProviders": providers,
            "userConfig": { "configMapName": "config" }, "tlsConfig": { "caBundle": { "configMapName": "config" } },
            "storage": { "size": "1Gi" }, "autoscaling": { "maxReplicas": 3 },
        },
    });
    let plain =
        json!({ "server": { "distribution": distribution, "podOverrides": { "serviceAccountName": "other" } } });
    let api: Api<LlamaStackDistribution> = Api::namespaced(bed.admin.clone(), NAMESPACE);
    for spec in [&full, &plain, &full] {
        let object = json!({ "apiVersion": "llamastack.io/v1alpha1", "kind": "LlamaStackDistribution",
            "metadata": { "name": "stack", "namespace": NAMESPACE }, "spec": spec });
        bed.apply(&object).await?;
        let generation = api.get("stack").await?.metadata.generation;
        let names: BTreeSet<String> = [
            "stack-sa",
            "stack-scripts",
            "stack-network-policy",
            "stack-ingress",
            "stack-pdb",
            "stack-hpa",
            "stack-ca-bundle",
        ]
        .map(str::to_owned)
        .into();
        let wanted = if spec == &plain { BTreeSet::new() } else { names };
        eventually(PATIENCE, async || {
            let status = api.get("stack").await?.status.unwrap_or_default();
            ensure!(status.observed_generation == generation, "{status:?}");
            let mut there = BTreeSet::new();
            for kind in kinds::ALL
                .into_iter()
                .filter(|kind| ![kinds::CLAIM, kinds::SERVICE, kinds::DEPLOYMENT].contains(kind))
            {
                let api: Api<DynamicObject> = Api::namespaced_with(bed.admin.clone(), NAMESPACE, &kind.resource());
                let all = api.list_metadata(&ListParams::default()).await?.items;
                there.extend(
                    all.iter()
                        .map(ResourceExt::name_any)
                        .filter(|name| name.starts_with("stack-")),
                );
            }
            ensure!(there == wanted, "{there:?}: {:?}", status.message);
            Ok(())
        })
        .await?;
    }
    // The same twice, so that the second Event is folded into the first.
    let services: Api<Service> = Api::namespaced(bed.admin.clone(), NAMESPACE);
    for _ in 0..2 {
        let edit = Patch::Merge(json!({ "spec": { "selector": { "app": "edited" } } }));
        services.patch("stack-service", &PatchParams::default(), &edit).await?;
        eventually(PATIENCE, async || {
            let selector = services.get("stack-service").await?.spec.and_then(|s| s.selector);
            ensure!(selector.is_some_and(|s| s["app"] != "edited"), "not reverted");
            Ok(())
        })
        .await?;
    }
    api.delete("stack", &DeleteParams::background()).await?;
    // Events are sent in the background.
    tokio::time::sleep(Duration::from_secs(2)).await;
    Ok(())
}

#[tokio::test]
async fn the_asya_operator_may_do_what_it_does_and_nothing_else() -> Result<()> {
    let bed = Bed::start_with(Upstream::None, false).await?;
    install_crds_of_actors(&bed).await?;
    let log = bed.cluster.audit().await?;
    let mark = log.mark().await?;
    asya_works(&bed).await?;
    let complaints = judge(&manifests::asya(), &log.since(mark).await?);
    ensure!(complaints.is_empty(), "{}", complaints.join("\n"));
    Ok(())
}

/// The CRDs of AsyncActors, KEDA and all kinds that an actor can bind.
async fn install_crds_of_actors(bed: &Bed) -> Result<()> {
    let mut crds = crds::upstream_crds(&[crds::KEDA_SCALED_OBJECTS, crds::KEDA_TRIGGER_AUTHENTICATIONS])?;
    let foreign = KNOWN
        .iter()
        .filter(|kind| !kind.is_built_in() && **kind != MODEL_DEPLOYMENT);
    for kind in foreign {
        crds.push(open_crd(*kind)?);
    }
    crds.push(AsyncActor::crd());
    for crd in crds {
        crds::install_crd(&bed.admin, crd).await?;
    }
    Ok(())
}

/// The Asya operator during the life of actors.
async fn asya_works(bed: &Bed) -> Result<()> {
    // A namespace has a Secret if it has a user of its own at the broker.
    let options = RabbitMqOptions {
        management: true,
        ..RabbitMqOptions::default()
    };
    let rabbit = RabbitMq::start(options).await?;
    let secrets = tempfile::tempdir()?;
    std::fs::create_dir(secrets.path().join("rabbitmq"))?;
    for (key, text) in [("password", "guest"), ("key", "0123456789abcdef0123456789abcdef")] {
        std::fs::write(secrets.path().join("rabbitmq").join(key), text)?;
    }
    let (host, port) = rabbit.address();
    let of = |key: &str| json!({ "name": "rabbitmq", "key": key });
    let transports = json!({ "transports": { "rabbitmq": { "type": "rabbitmq", "config": {
        "host": host, "port": port, "managementPort": rabbit.management_port(), "passwordSecretRef": of("password"),
        "tenants": { "username": "guest", "passwordSecretRef": of("password"), "keySecretRef": of("key") } } } } });
    let leadership = led(bed, labels::ASYA_MANAGER).await?;
    let args = runway_asya_operator::Args {
        disable_queue_management: false,
        secrets: runway_asya_operator::SecretsArgs {
            secrets_dir: secrets.path().to_owned(),
        },
        ..asya_args(&transports.to_string())
    };
    let _operator = bed.asya_led_by(leadership, args).await?;
    actors_live(bed).await
}

/// A CRD of this kind that takes everything: what its operator makes of it does not matter here.
fn open_crd(kind: Kind) -> Result<CustomResourceDefinition> {
    let version = json!({ "name": kind.version, "served": true, "storage": true, "schema": { "openAPIV3Schema": {
        "type": "object", "x-kubernetes-preserve-unknown-fields": true } } });
    let crd = json!({ "apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition",
        "metadata": { "name": format!("{}.{}", kind.plural, kind.group) },
        "spec": { "group": kind.group, "scope": "Namespaced", "versions": [version],
            "names": { "kind": kind.kind, "plural": kind.plural, "singular": kind.kind.to_lowercase() } } });
    Ok(serde_json::from_value(crd)?)
}

/// Everything that may be done for an AsyncActor is done, and undone.
async fn actors_live(bed: &Bed) -> Result<()> {
    let api: Api<AsyncActor> = Api::namespaced(bed.admin.clone(), NAMESPACE);
    // Applied, and carried out.
    let actor = async |name: &str, spec: Value| -> Result<()> {
        bed.apply(&json!({ "apiVersion": "asya.sh/v1alpha1", "kind": "AsyncActor",
            "metadata": { "name": name, "namespace": NAMESPACE }, "spec": spec }))
            .await?;
        eventually(PATIENCE, async || {
            let live = api.get(name).await?;
            let status = live.status.unwrap_or_default();
            let done = [RUNTIME_INJECTED, WORKLOAD_READY]
                .iter()
                .any(|c| status.conditions.is_true(c));
            ensure!(
                status.observed_generation == live.metadata.generation && done,
                "{name}: {:?}",
                status.message
            );
            Ok(())
        })
        .await
    };
    let bound = |target: &Value, strategy: &str, scaling: bool| {
        json!({ "transport": "rabbitmq", "binding": { "strategy": strategy }, "scaling": { "enabled": scaling },
            "workloadRef": { "apiVersion": target["apiVersion"], "kind": target["kind"], "name": target["metadata"]["name"] },
            "runtime": { "image": "registry.example/adapter:1", "handler": "a.b", "targetURL": "http://model" } })
    };
    // Every kind of target is called, and those that can be are bound in place.
    let mut names = BTreeSet::new();
    for kind in KNOWN {
        let target = target(kind);
        let made = bed.apply(&target).await?;
        if let Some(workload) = workload_of(kind, &made)? {
            bed.apply(&workload).await?;
        }
        let name = kind.plural.to_owned();
        actor(&name, bound(&target, "Proxy", false)).await?;
        let in_place = match kind {
            DEPLOYMENT | STATEFUL_SET => "TemplatePatch",
            INFERENCE_SERVICE => "ParentSpec",
            _ => "Proxy",
        };
        actor(&name, bound(&target, in_place, kind == DEPLOYMENT)).await?;
        names.insert(name);
    }
    // Workloads of its own, of one kind and the other, scaled and not.
    let own = |kind: &str, scaling: bool| {
        json!({ "transport": "rabbitmq", "scaling": { "enabled": scaling, "maxReplicas": 3 }, "workload": { "kind": kind,
            "template": { "spec": { "containers": [{ "name": "asya-runtime", "image": "registry.example/own:1" }] } } } })
    };
    for spec in [
        own("Deployment", true),
        own("StatefulSet", false),
        own("Deployment", true),
    ] {
        actor("own", spec).await?;
    }
    names.insert("own".to_owned());
    // The same twice, so that the second Event is folded into the first.
    let edited = |path: &str| {
        if path == "data" {
            json!({ "data": { "username": "edited" } })
        } else {
            json!({ "spec": { "template": { "spec": { "terminationGracePeriodSeconds": 7 } } } })
        }
    };
    for _ in 0..2 {
        for (kind, name, path) in [(DEPLOYMENT, "own", "spec"), (CONFIG_MAP, "own-trigger-auth", "data")] {
            let children: Api<DynamicObject> = Api::namespaced_with(bed.admin.clone(), NAMESPACE, &kind.resource());
            let before = eventually(PATIENCE, async || Ok(children.get(name).await?)).await?;
            children
                .patch(name, &PatchParams::default(), &Patch::Merge(edited(path)))
                .await?;
            eventually(PATIENCE, async || {
                let now = children.get(name).await?;
                ensure!(
                    now.data[path] == before.data[path],
                    "{name} is not reverted: {}",
                    now.data[path]
                );
                Ok(())
            })
            .await?;
        }
    }
    for name in &names {
        api.delete(name, &DeleteParams::background()).await?;
    }
    eventually(PATIENCE, async || {
        let left = api.list_metadata(&ListParams::default()).await?.items;
        ensure!(
            left.is_empty(),
            "{:?}",
            left.iter().map(ResourceExt::name_any).collect::<Vec<_>>()
        );
        Ok(())
    })
    .await?;
    // Events are sent in the background.
    tokio::time::sleep(Duration::from_secs(2)).await;
    Ok(())
}

/// Something to bind to.
fn target(kind: Kind) -> Value {
    let spec = match kind {
        DEPLOYMENT | STATEFUL_SET => model_pods(),
        MODEL_DEPLOYMENT => gemma("model")["spec"].clone(),
        _ => json!({ "predictor": { "model": { "modelFormat": { "name": "sklearn" } } } }),
    };
    json!({ "apiVersion": kind.resource().api_version, "kind": kind.kind,
        "metadata": { "name": format!("model-{}", kind.plural), "namespace": NAMESPACE }, "spec": spec })
}

/// The workload that the target's own controller would create, and that is bound instead of the target.
fn workload_of(target: Kind, made: &DynamicObject) -> Result<Option<Value>> {
    let (kind, suffix) = match target {
        WORKSPACE | SELDON_SERVER => (STATEFUL_SET, ""),
        BENTO_DEPLOYMENT => (DEPLOYMENT, ""),
        INFERENCE_SERVICE => (DEPLOYMENT, "-predictor"),
        _ => return Ok(None),
    };
    let owner = made.controller_owner_ref(&target.resource()).context("a uid")?;
    Ok(Some(
        json!({ "apiVersion": kind.resource().api_version, "kind": kind.kind,
        "metadata": { "name": format!("{}{suffix}", made.name_any()), "namespace": NAMESPACE, "ownerReferences": [owner] }, "spec": model_pods() }),
    ))
}

/// Spec of a workload without pods.
fn model_pods() -> Value {
    json!({ "replicas": 0, "selector": { "matchLabels": { "app": "model" } },
        "template": { "metadata": { "labels": { "app": "model" } },
            "spec": { "containers": [{ "name": "model", "image": "registry.example/model:1", "ports": [{ "containerPort": 80 }] }] } } })
}

/// A leader that had a rival from the first moment: one of the two must look at the Lease again.
async fn led(bed: &Bed, name: &str) -> Result<Leadership> {
    let args = LeaseArgs {
        leader_elect: true,
        lease_duration: 3,
        lease_namespace: manifests::NAMESPACE.to_owned(),
        lease_identity: "test".to_owned(),
    };
    let log = bed.cluster.audit().await?;
    for _ in 0..20 {
        let mark = log.mark().await?;
        let client = bed.cluster.client(name, &[]).await?;
        let (election, leadership) = Election::new(client.clone(), &args, name);
        let (rival, rivals) = Election::new(client, &args, name);
        tokio::spawn(rival.run(CancellationToken::new()));
        tokio::spawn(election.run(CancellationToken::new()));
        eventually(PATIENCE, async || {
            ensure!(
                leadership.is_leading() || rivals.is_leading(),
                "no replica leads {name}"
            );
            Ok(())
        })
        .await?;
        rivals.step_down().await;
        tokio::time::timeout(PATIENCE, leadership.gained())
            .await
            .context("the rival does not give way")?;
        if log
            .since(mark)
            .await?
            .iter()
            .any(|r| r.user == name && r.resource == "leases" && r.verb == "get")
        {
            return Ok(leadership);
        }
        leadership.step_down().await;
        let leases: Api<k8s_openapi::api::coordination::v1::Lease> =
            Api::namespaced(bed.admin.clone(), manifests::NAMESPACE);
        leases.delete(name, &DeleteParams::default()).await?;
    }
    bail!("two candidates for {name} never met")
}

/// Everything that happens to ModelDeployments, at each provider.
async fn live(bed: &Bed) -> Result<()> {
    let mut flags = vllm("flags", "kaito");
    flags["spec"]["model"]["id"] = json!("meta-llama/Llama-3.1-8B-Instruct");
    flags["spec"]["engine"]["args"] = json!({ "enforce-eager": "" });
    let mut set = gemma("set");
    set["spec"]["scaling"]["replicas"] = json!(2);
    for object in [
        gemma("plain"),
        gemma(LONG),
        flags,
        set,
        vllm("graph", "dynamo"),
        vllm("ray", "kuberay"),
        idle("direct"),
    ] {
        bed.create(object).await?;
    }
    for name in ["plain", LONG, "flags", "set", "graph", "ray", "direct"] {
        bed.running(name).await?;
    }

    // Drift, and the same once more: the second Event is folded into the first.
    for _ in 0..2 {
        for (kind, api) in children(bed) {
            for child in api
                .list_metadata(&ListParams::default().labels(labels::DEPLOYMENT))
                .await?
                .items
            {
                let edit = json!({ "metadata": { "labels": { labels::MODEL_SOURCE: null } } });
                let name = child.name_any();
                api.patch(&name, &PatchParams::default(), &Patch::Merge(edit)).await?;
                eventually(PATIENCE, async || {
                    let live = api.get_metadata(&name).await?;
                    ensure!(
                        live.labels().contains_key(labels::MODEL_SOURCE),
                        "{kind} {name} is not reverted"
                    );
                    Ok(())
                })
                .await?;
            }
        }
    }

    // Pause, an update, and from one provider to another and back.
    let paused = |value: Value| json!({ "metadata": { "annotations": { labels::PAUSED: value } } });
    bed.patch("plain", paused(json!("true"))).await?;
    bed.patch("plain", paused(Value::Null)).await?;
    bed.patch("plain", json!({ "spec": { "resources": { "memory": "20Gi" } } }))
        .await?;
    for provider in ["kaito", "kuberay", "kaito", "kuberay"] {
        bed.patch(
            "flags",
            json!({ "spec": { "provider": { "name": provider }, "engine": { "args": null } } }),
        )
        .await?;
        bed.status("flags", "handed over", |s| {
            s.provider
                .as_ref()
                .is_some_and(|p| p.name.as_deref() == Some(provider) && p.resource_name.is_some())
        })
        .await?;
    }

    // A claim of each provider comes and goes.
    let claims: Api<PersistentVolumeClaim> = Api::namespaced(bed.admin.clone(), NAMESPACE);
    let volume = json!({ "volumes": [{ "name": "data", "size": "1Gi", "mountPath": "/data" }] });
    for storage in [volume, Value::Null] {
        for name in ["plain", "graph", "ray", "direct"] {
            bed.patch(name, json!({ "spec": { "model": { "storage": storage } } }))
                .await?;
            eventually(PATIENCE, async || {
                let is_there = claims.get_opt(&format!("{name}-data")).await?.is_some();
                ensure!(
                    is_there != storage.is_null(),
                    "the claim of {name} is there: {is_there}"
                );
                Ok(())
            })
            .await?;
        }
    }

    autoscalers_come_and_go(bed).await?;

    certificates_are_made_again(bed).await?;

    // No provider owns it yet, so the core removes its finalizer.
    let mut nobodys = gemma("nobodys");
    nobodys["metadata"]["annotations"] = json!({ labels::PAUSED: "true" });
    bed.create(nobodys).await?;
    bed.status("nobodys", "paused", |s| s.conditions.is_true(condition::PAUSED))
        .await?;
    for name in ["nobodys", "plain", LONG, "flags", "set", "graph", "ray", "direct"] {
        bed.delete(name).await?;
        bed.gone(name).await?;
    }
    // Events are sent in the background.
    tokio::time::sleep(Duration::from_secs(2)).await;
    Ok(())
}

/// Removes half of the certificates, and waits until they are complete again.
async fn certificates_are_made_again(bed: &Bed) -> Result<()> {
    let secrets: Api<Secret> = Api::namespaced(bed.admin.clone(), manifests::NAMESPACE);
    let half = json!({ "data": { "ca.key": null } });
    secrets
        .patch(WEBHOOK_SECRET, &PatchParams::default(), &Patch::Merge(half))
        .await?;
    eventually(PATIENCE, async || {
        let data = secrets.get(WEBHOOK_SECRET).await?.data.unwrap_or_default();
        ensure!(data.contains_key("ca.key"), "the authority is still without its key");
        Ok(())
    })
    .await
}

/// Lets an autoscaler of each kind come and go.
async fn autoscalers_come_and_go(bed: &Bed) -> Result<()> {
    for crd in crds::upstream_crds(&[crds::KEDA_SCALED_OBJECTS])? {
        crds::install_crd(&bed.admin, crd).await?;
    }
    let load = json!({ "minReplicas": 1, "maxReplicas": 2, "requestsInFlight": 8, "trigger": null });
    let trigger = json!({ "type": "cron", "metadata": {
        "timezone": "UTC", "start": "0 8 * * *", "end": "0 18 * * *", "desiredReplicas": "2" } });
    let clock = json!({ "requestsInFlight": null, "trigger": trigger });
    for (autoscaling, kind) in [
        (load, Some(HORIZONTAL_POD_AUTOSCALER)),
        (clock, Some(SCALED_OBJECT)),
        (Value::Null, None),
    ] {
        bed.patch(
            "direct",
            json!({ "spec": { "scaling": { "autoscaling": autoscaling } } }),
        )
        .await?;
        for each in [HORIZONTAL_POD_AUTOSCALER, SCALED_OBJECT] {
            let api = bed.upstream(each, each.version);
            eventually(PATIENCE, async || {
                let is_there = api.get_opt("direct").await?.is_some();
                ensure!(
                    is_there == (kind == Some(each)),
                    "the {} is there: {is_there}",
                    each.kind
                );
                Ok(())
            })
            .await?;
        }
    }
    Ok(())
}

/// A model of the direct provider that needs no node.
fn idle(name: &str) -> Value {
    let mut object = vllm(name, "direct");
    object["spec"]["scaling"]["replicas"] = json!(0);
    object
}

fn children(bed: &Bed) -> Vec<(&'static str, Api<DynamicObject>)> {
    let built_in = |kind: kube::core::ApiResource| Api::namespaced_with(bed.admin.clone(), NAMESPACE, &kind);
    vec![
        ("Workspace", bed.upstream(WORKSPACE, "v1beta1")),
        ("InferenceSet", bed.upstream(INFERENCE_SET, "v1beta1")),
        ("Service", built_in(ApiResource::erase::<Service>(&()))),
        ("ConfigMap", built_in(ApiResource::erase::<ConfigMap>(&()))),
        (
            "DynamoGraphDeployment",
            bed.upstream(runway_provider_dynamo::DYNAMO_GRAPH_DEPLOYMENT, "v1beta1"),
        ),
        ("RayService", bed.upstream(runway_provider_kuberay::RAY_SERVICE, "v1")),
        ("Deployment", bed.upstream(runway_provider_direct::DEPLOYMENT, "v1")),
    ]
}

/// Differences between the permissions and the requests of a component.
fn judge(component: &Component, requests: &[Request]) -> Vec<String> {
    let name = &component.name;
    let own: Vec<&Request> = requests
        .iter()
        .filter(|r| r.user == *name && !r.resource.is_empty())
        .collect();
    let mut used: BTreeSet<String> = BTreeSet::new();
    let mut complaints = Vec::new();
    for request in &own {
        if request.code == 403 {
            complaints.push(format!("{name} was refused: {} {}", request.verb, called(request)));
        }
        // An apply that made an object needed both rights.
        let verbs = if (request.verb.as_str(), request.code) == ("patch", 201) {
            vec!["patch", "create"]
        } else {
            vec![request.verb.as_str()]
        };
        for verb in verbs {
            used.insert(format!("{verb} {}", called(request)));
            used.insert(format!("{verb} {} {}", called(request), request.name));
        }
    }
    let rules = component.access.iter().chain(&component.access_in_namespace);
    let granted: BTreeSet<String> = rules.flat_map(expand).collect();
    let surplus = granted
        .difference(&used)
        .filter(|right| !ASKED_BY_THE_SERVER.contains(&right.as_str()))
        .filter(|right| !FOR_ENDPOINTS.contains(&right.as_str()));
    complaints.extend(surplus.map(|right| format!("{name} may, and never does: {right}")));
    ensure_seen(name, &own, &mut complaints);
    complaints
}

fn ensure_seen(name: &str, own: &[&Request], complaints: &mut Vec<String>) {
    if own.is_empty() {
        complaints.push(format!("{name} asked for nothing at all"));
    }
}

fn called(request: &Request) -> String {
    let subresource = if request.subresource.is_empty() {
        String::new()
    } else {
        format!("/{}", request.subresource)
    };
    format!("{}/{}{subresource}", request.group, request.resource)
}

/// Each single right of a rule, as `VERB GROUP/RESOURCE NAME`.
fn expand(rule: &PolicyRule) -> Vec<String> {
    let one = [String::new()];
    let mut rights = Vec::new();
    for group in rule.api_groups.iter().flatten() {
        for resource in rule.resources.iter().flatten() {
            for verb in &rule.verbs {
                for name in rule.resource_names.as_deref().unwrap_or(&one) {
                    rights.push(format!("{verb} {group}/{resource} {name}").trim_end().to_owned());
                }
            }
        }
    }
    rights
}

#[test]
fn no_rule_is_a_wildcard_and_secrets_are_read_by_name() {
    for component in manifests::all_components() {
        let authority = format!("{}-ca", component.name);
        for rule in component.access.iter().chain(&component.access_in_namespace) {
            let text = format!("{}: {rule:?}", component.name);
            for right in expand(rule) {
                assert!(!right.contains('*'), "{text}");
            }
            let secrets = rule.resources.iter().flatten().any(|r| r == "secrets");
            let names = rule.resource_names.iter().flatten();
            let mut names = names.map(String::as_str).peekable();
            let own = [WEBHOOK_SECRET, BROKER_SECRET, &authority];
            let by_name = names.peek().is_some() && names.all(|name| own.contains(&name));
            assert!(!secrets || by_name, "{text}");
        }
    }
}

#[tokio::test]
async fn users_may_do_what_their_role_says() -> Result<()> {
    let bed = Bed::start_with(Upstream::None, false).await?;
    for object in manifests::core().objects(&Release::default()) {
        if object.name_any().starts_with("kubeairunway-")
            && object.types.as_ref().is_some_and(|t| t.kind == "ClusterRole")
        {
            bed.apply(&serde_json::to_value(&object)?).await?;
        }
    }
    for (user, role) in [("reader", "view"), ("editor", "edit"), ("boss", "admin")] {
        bind(&bed, user, role, Some(NAMESPACE)).await?;
    }
    bind(&bed, "chief", "admin", None).await?;
    bed.create(gemma("model")).await?;

    let mut found = BTreeMap::new();
    for user in ["reader", "editor", "boss", "chief", "nobody"] {
        let client = bed.cluster.client(user, &[]).await?;
        // Kubernetes adds up its roles in the background.
        eventually(PATIENCE, async || {
            let seen = may(&client).await?;
            let want = wanted(user);
            ensure!(seen == want, "{user} may {seen:?}, and should {want:?}");
            Ok(())
        })
        .await?;
        found.insert(user, wanted(user));
    }
    ensure!(found.len() == 5);
    Ok(())
}

/// Read, create, scale, delete a ModelDeployment; read and change an InferenceProviderConfig; write a status; read and delete a
/// LlamaStackDistribution, and write its status.
fn wanted(user: &str) -> [bool; 10] {
    match user {
        "reader" => [true, false, false, false, false, false, false, true, false, false],
        "editor" | "boss" => [true, true, true, true, false, false, false, true, true, false],
        "chief" => [true, true, true, true, true, true, false, true, true, false],
        _ => [false; 10],
    }
}

async fn may(client: &Client) -> Result<[bool; 10]> {
    let llsds: Api<LlamaStackDistribution> = Api::namespaced(client.clone(), NAMESPACE);
    let models: Api<ModelDeployment> = Api::namespaced(client.clone(), NAMESPACE);
    let configs: Api<InferenceProviderConfig> = Api::all(client.clone());
    let dry = PatchParams {
        dry_run: true,
        ..PatchParams::default()
    };
    let post = PostParams {
        dry_run: true,
        ..PostParams::default()
    };
    let scale = Patch::Merge(json!({ "spec": { "replicas": 3 } }));
    let status = Patch::Merge(json!({ "status": { "phase": "Running" } }));
    let spec = Patch::Merge(json!({ "spec": {} }));
    Ok([
        allowed(models.get("model").await)?,
        allowed(models.create(&post, &serde_json::from_value(gemma("other"))?).await)?,
        allowed(models.patch_scale("model", &dry, &scale).await)?,
        allowed(
            models
                .delete(
                    "model",
                    &DeleteParams {
                        dry_run: true,
                        ..DeleteParams::default()
                    },
                )
                .await,
        )?,
        allowed(configs.list(&ListParams::default()).await)?,
        allowed(configs.patch("absent", &dry, &spec).await)?,
        allowed(models.patch_status("model", &dry, &status).await)?,
        allowed(llsds.list(&ListParams::default()).await)?,
        allowed(llsds.delete("absent", &DeleteParams::default()).await)?,
        allowed(llsds.patch_status("absent", &dry, &status).await)?,
    ])
}

/// Whether it was not a matter of rights.
fn allowed<T>(answer: kube::Result<T>) -> Result<bool> {
    match answer {
        Ok(_) => Ok(true),
        Err(kube::Error::Api(status)) if status.is_forbidden() => Ok(false),
        Err(kube::Error::Api(status)) if status.is_not_found() => Ok(true),
        Err(error) => Err(error.into()),
    }
}

async fn bind(bed: &Bed, user: &str, role: &str, namespace: Option<&str>) -> Result<()> {
    let kind = if namespace.is_some() {
        "RoleBinding"
    } else {
        "ClusterRoleBinding"
    };
    let object = json!({ "apiVersion": "rbac.authorization.k8s.io/v1", "kind": kind,
        "metadata": { "name": format!("{user}-{role}"), "namespace": namespace },
        "roleRef": { "apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": role },
        "subjects": [{ "kind": "User", "name": user, "apiGroup": "rbac.authorization.k8s.io" }] });
    bed.apply(&object).await?;
    Ok(())
}

#[tokio::test]
async fn with_the_policy_only_those_use_a_provider_who_may_make_its_objects() -> Result<()> {
    let bed = Bed::start_with(Upstream::All, false).await?;
    let release = Release {
        policy: true,
        ..Release::default()
    };
    for object in manifests::components().iter().flat_map(|c| c.objects(&release)) {
        let kind = object.types.as_ref().map(|t| t.kind.as_str()).unwrap_or_default();
        let of_users = kind == "ClusterRole" && object.name_any().starts_with("kubeairunway-");
        if of_users || kind.starts_with("ValidatingAdmissionPolicy") {
            bed.apply(&serde_json::to_value(&object)?).await?;
        }
    }
    bind(&bed, "jane", "edit", Some(NAMESPACE)).await?;
    let role = json!({ "apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRole", "metadata": { "name": "workspaces" },
        "rules": [{ "apiGroups": ["kaito.sh"], "resources": ["workspaces", "inferencesets"], "verbs": ["create"] }] });
    bed.apply(&role).await?;
    bind(&bed, "jane", "workspaces", Some(NAMESPACE)).await?;
    let jane = bed.cluster.client("jane", &[]).await?;
    let models: Api<ModelDeployment> = Api::namespaced(jane, NAMESPACE);
    let post = PostParams::default();
    let named =
        |name: &str, provider: &str| -> Result<ModelDeployment> { Ok(serde_json::from_value(vllm(name, provider))?) };
    let refusal = async |object: &ModelDeployment| -> Result<String> {
        match models
            .create(
                &PostParams {
                    dry_run: true,
                    ..PostParams::default()
                },
                object,
            )
            .await
        {
            Err(kube::Error::Api(status)) if status.code == 403 => Ok(status.message),
            Err(error) => Err(error.into()),
            Ok(_) => bail!("{} was let through", object.name_any()),
        }
    };

    // The policies take a moment to be in force.
    let said = eventually(PATIENCE, async || refusal(&named("other", "dynamo")?).await).await?;
    ensure!(
        said.contains("spec.provider.name: provider dynamo creates dynamographdeployments.nvidia.com, which you may not create in namespace default: ask an administrator for permission"),
        "{said}"
    );
    eventually(PATIENCE, async || refusal(&named("other", "kuberay")?).await).await?;
    // Who may edit a namespace may make Deployments in it.
    models.create(&post, &named("by-direct", "direct")?).await?;
    eventually(PATIENCE, async || {
        Ok(models.create(&post, &named("mine", "kaito")?).await?)
    })
    .await?;
    // A third party's provider has a policy of its own, or none.
    models.create(&post, &named("acme", "acme")?).await?;

    // Without a name any of them may be selected, whatever a status contains that no controller has written yet.
    let mut any = vllm("any", "kaito");
    any["spec"].as_object_mut().context("no spec")?.remove("provider");
    any["status"] = json!({ "provider": { "name": "kaito" } });
    let said = refusal(&serde_json::from_value(any.clone())?).await?;
    ensure!(
        said.contains("without a name, provider dynamo may be selected, and it creates"),
        "{said}"
    );
    ensure!(said.contains("set a provider that you may use"), "{said}");

    // What was chosen for it counts from then on.
    bed.create(any).await?;
    let grow = Patch::Merge(json!({ "spec": { "scaling": { "replicas": 3 } } }));
    let grown = models.patch("any", &PatchParams::default(), &grow).await;
    ensure!(
        matches!(grown, Err(kube::Error::Api(ref status)) if status.code == 403),
        "{grown:?}"
    );
    let chosen = Patch::Merge(json!({ "status": { "provider": { "name": "kaito" } } }));
    bed.deployments()
        .patch_status("any", &PatchParams::default(), &chosen)
        .await?;
    models.patch("any", &PatchParams::default(), &grow).await?;
    let mv = Patch::Merge(json!({ "spec": { "provider": { "name": "dynamo" } } }));
    let moved = models.patch("any", &PatchParams::default(), &mv).await;
    ensure!(
        matches!(moved, Err(kube::Error::Api(ref status)) if status.code == 403),
        "{moved:?}"
    );

    // Of another owner: its labels may be changed, and it may be deleted.
    bed.create(vllm("theirs", "dynamo")).await?;
    let label = Patch::Merge(json!({ "metadata": { "labels": { "a": "b" } } }));
    models.patch("theirs", &PatchParams::default(), &label).await?;
    models.delete("theirs", &DeleteParams::default()).await?;
    bed.create(vllm("admins", "dynamo")).await?;
    Ok(())
}

#[tokio::test]
async fn fields_beyond_the_purpose_of_a_kind_require_a_permission() -> Result<()> {
    let bed = Bed::start_with(Upstream::Everything, false).await?;
    let policies: BTreeSet<String> = KINDS.iter().map(Guarded::policy_name).collect();
    for object in manifests::components().iter().flat_map(|c| &c.permissions) {
        ensure!(policies.contains(&object.name_any()));
        bed.apply(&serde_json::to_value(object)?).await?;
    }
    let kinds: Vec<Value> = KINDS
        .iter()
        .map(|kind| {
            let resource = resource_of(kind.kind);
            json!({ "apiGroups": [resource.group], "resources": [resource.plural], "verbs": ["create", "get", "patch", "update"] })
        })
        .collect();
    let role = |name: &str, rules: &Value| json!({ "apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRole", "metadata": { "name": name }, "rules": rules });
    bed.apply(&role("our-kinds", &json!(kinds))).await?;
    bind(&bed, "jane", "our-kinds", Some(NAMESPACE)).await?;
    let jane = bed.cluster.client("jane", &[]).await?;
    // For each permission, a user who has only this one.
    let mut permitted = BTreeMap::new();
    let fields = || {
        KINDS
            .iter()
            .flat_map(|kind| kind.fields.iter().map(|field| (kind.kind, field)))
    };
    for (_, field) in fields() {
        let permission = field.permission.name();
        if permitted.contains_key(&permission) {
            continue;
        }
        let (verb, resource) = permission.split_once(' ').context("no verb")?;
        let (plural, group) = resource.split_once('.').unwrap_or((resource, ""));
        let user = format!("may-{verb}-{plural}");
        let rules = json!([{ "apiGroups": [group], "resources": [plural], "verbs": [verb] }]);
        bed.apply(&role(&user, &rules)).await?;
        let is_namespaced = field.permission.check(NAMESPACE).contains(" -n ");
        bind(&bed, &user, "our-kinds", Some(NAMESPACE)).await?;
        bind(&bed, &user, &user, is_namespaced.then_some(NAMESPACE)).await?;
        permitted.insert(permission.clone(), bed.cluster.client(&user, &[]).await?);
    }

    let examples = beyond();
    ensure!(examples.len() == fields().count(), "a field has no example");
    for (number, ((kind, field), (spec, change))) in fields().zip(examples).enumerate() {
        let (path, permission) = (field.path(), field.permission.name());
        let mut object = plain(kind, &format!("test-{number}"));
        json_patch::merge(&mut object["spec"], &spec);
        let pointer = format!("/{}", path.replace('.', "/"));
        ensure!(object.pointer(&pointer).is_some(), "{path} is not in its example");
        let in_namespace = |client: &Client| Api::namespaced_with(client.clone(), NAMESPACE, &resource_of(kind));
        let (poor, rich): (Api<DynamicObject>, Api<DynamicObject>) =
            (in_namespace(&jane), in_namespace(&permitted[&permission]));
        let object: DynamicObject = serde_json::from_value(object)?;
        let post = PostParams {
            dry_run: true,
            ..PostParams::default()
        };
        let dry = PatchParams {
            dry_run: true,
            ..PatchParams::default()
        };
        // Policies and roles take a moment to be in force.
        let said = eventually(PATIENCE, async || refused_for(poor.create(&post, &object).await, &path)).await?;
        let place = if field.permission.check("").contains(" -n ") {
            "namespace default"
        } else {
            "the cluster"
        };
        ensure!(
            said.contains(&format!(
                "{path}: you may not {permission} in {place}, which is required for {}: ",
                field.effect
            )),
            "{said}"
        );
        ensure!(said.contains("or ask an administrator for this permission"), "{said}");
        eventually(PATIENCE, async || Ok(rich.create(&post, &object).await?))
            .await
            .with_context(|| format!("{path} with {permission}"))?;

        // An administrator's object: others change what else there is, and cannot change the field.
        in_namespace(&bed.admin).create(&PostParams::default(), &object).await?;
        let name = object.name_any();
        let mut beside = json!({ "metadata": { "labels": { "a": "b" }, "finalizers": ["example.com/a"] } });
        beside["spec"] = plain(kind, "")["spec"].clone();
        json_patch::merge(&mut beside["spec"], &other_field(kind));
        poor.patch(&name, &dry, &Patch::Merge(&beside))
            .await
            .with_context(|| format!("{path} unchanged"))?;
        let change = Patch::Merge(json!({ "spec": change }));
        refused_for(poor.patch(&name, &dry, &change).await, &path)?;
        rich.patch(&name, &dry, &change)
            .await
            .with_context(|| format!("{path} changed with {permission}"))?;
    }

    // The purpose of a kind requires nothing else.
    for (kind, spec) in purpose() {
        let mut object = plain(kind, "free");
        json_patch::merge(&mut object["spec"], &spec);
        let api: Api<DynamicObject> = Api::namespaced_with(jane.clone(), NAMESPACE, &resource_of(kind));
        api.create(&PostParams::default(), &serde_json::from_value(object)?)
            .await
            .with_context(|| format!("the purpose of {kind}"))?;
    }
    Ok(())
}

/// The message of a refusal by an admission policy.
fn refused_for<T>(answer: kube::Result<T>, path: &str) -> Result<String> {
    match answer {
        Err(kube::Error::Api(status)) if status.code == 403 && status.message.contains(path) => Ok(status.message),
        Err(error) => Err(error).context(path.to_owned()),
        Ok(_) => bail!("{path} was let through"),
    }
}

/// API resource of one of our kinds.
fn resource_of(kind: &str) -> ApiResource {
    match kind {
        "ModelDeployment" => ApiResource::erase::<ModelDeployment>(&()),
        "AsyncActor" => ApiResource::erase::<AsyncActor>(&()),
        _ => ApiResource::erase::<LlamaStackDistribution>(&()),
    }
}

/// An object of a kind that requires nothing beyond its purpose. An AsyncActor has no workload yet.
fn plain(kind: &str, name: &str) -> Value {
    let spec = match kind {
        "ModelDeployment" => gemma("")["spec"].clone(),
        "AsyncActor" => json!({ "transport": "rabbitmq" }),
        _ => json!({ "server": { "distribution": { "image": "registry.example/distribution:1" } } }),
    };
    json!({ "apiVersion": resource_of(kind).api_version, "kind": kind, "metadata": { "name": name, "namespace": NAMESPACE }, "spec": spec })
}

/// A change that requires no permission.
fn other_field(kind: &str) -> Value {
    match kind {
        "ModelDeployment" => json!({ "image": "registry.example/other:1" }),
        "AsyncActor" => json!({ "timeout": { "processing": 7 } }),
        _ => json!({ "replicas": 3 }),
    }
}

/// For each field that requires a permission, in the order of the table: a spec with it, and a change of it.
fn beyond() -> Vec<(Value, Value)> {
    let pods = |image: &str| json!({ "spec": { "containers": [{ "name": "asya-runtime", "image": image }] } });
    let bound = |account: &str| {
        json!({ "workloadRef": { "apiVersion": "apps/v1", "kind": "Deployment", "name": "a" },
            "runtime": { "image": "registry.example/adapter:1", "handler": "a.b" },
            "binding": { "strategy": "Proxy", "proxy": { "serviceAccountName": account } } })
    };
    let trigger = |address: &str| {
        json!({ "scaling": { "autoscaling": { "maxReplicas": 3, "trigger": { "type": "prometheus",
            "metadata": { "serverAddress": address }, "authenticationRef": { "name": "others" } } } } })
    };
    let of_pods = |settings: Value| json!({ "podTemplate": { "spec": settings } });
    let app_armor = |profile: &str| json!({ "podTemplate": { "metadata": { "annotations": { "container.apparmor.security.beta.kubernetes.io/model": profile } } } });
    let unconfined = json!({ "securityContext": { "seccompProfile": { "type": "Unconfined" } } });
    let sysctls = json!({ "securityContext": { "sysctls": [{ "name": "kernel.shm_rmid_forced", "value": "1" }] } });
    let network = |network: Value| json!({ "network": network });
    let server = |settings: Value| json!({ "server": { "podOverrides": settings } });
    let snippet = |text: &str| {
        network(json!({ "ingress": { "annotations": { "nginx.ingress.kubernetes.io/server-snippet": text } } }))
    };
    let host_path = |path: &str| server(json!({ "volumes": [{ "name": "node", "hostPath": { "path": path } }] }));
    let probe = |probe: &str, host: &str| server(json!({ probe: { "httpGet": { "host": host, "port": 80 } } }));
    vec![
        // ModelDeployment
        (
            json!({ "provider": { "overrides": { "serviceType": "LoadBalancer" } } }),
            json!({ "provider": { "overrides": { "serviceType": "NodePort" } } }),
        ),
        (
            json!({ "serviceAccountName": "one" }),
            json!({ "serviceAccountName": "two" }),
        ),
        (
            of_pods(json!({ "priorityClassName": "one" })),
            of_pods(json!({ "priorityClassName": "two" })),
        ),
        (of_pods(unconfined.clone()), of_pods(sysctls.clone())),
        (app_armor("unconfined"), app_armor("localhost/a")),
        // Another address would get the credentials.
        (trigger("http://one"), trigger("http://two")),
        // AsyncActor
        (
            json!({ "workload": { "template": pods("registry.example/one:1") } }),
            json!({ "workload": { "template": pods("registry.example/two:1") } }),
        ),
        (
            json!({ "workload": { "kind": "StatefulSet", "template": pods("registry.example/one:1") } }),
            json!({ "workload": { "template": pods("registry.example/two:1") } }),
        ),
        (bound("one"), bound("two")),
        // LlamaStackDistribution
        (
            network(json!({ "exposeRoute": true })),
            network(json!({ "ingress": { "host": "other.example.com" } })),
        ),
        (snippet("one"), snippet("two")),
        (
            network(json!({ "allowedFrom": { "namespaces": ["one"] } })),
            network(json!({ "allowedFrom": { "labels": ["two"] } })),
        ),
        (
            server(json!({ "serviceAccountName": "one" })),
            server(json!({ "serviceAccountName": "two" })),
        ),
        (
            server(json!({ "priorityClassName": "one" })),
            server(json!({ "priorityClassName": "two" })),
        ),
        (server(unconfined), server(sysctls)),
        (host_path("/"), host_path("/etc")),
        (probe("readinessProbe", "10.0.0.1"), probe("readinessProbe", "10.0.0.2")),
        (probe("livenessProbe", "10.0.0.1"), probe("livenessProbe", "10.0.0.2")),
    ]
}

/// Specs that use the same fields without going beyond the purpose of their kind.
fn purpose() -> [(&'static str, Value); 3] {
    [
        (
            "ModelDeployment",
            json!({
                "provider": { "overrides": { "serviceType": "ClusterIP" } }, "serviceAccountName": "default",
                "podTemplate": { "metadata": { "annotations": { "example.com/a": "b" } },
                    "spec": { "securityContext": { "runAsUser": 1000, "seccompProfile": { "type": "RuntimeDefault" } } } },
                "scaling": { "autoscaling": { "maxReplicas": 3, "trigger": { "type": "prometheus", "metadata": { "query": "up" } } } },
            }),
        ),
        (
            "AsyncActor",
            json!({
                "workloadRef": { "apiVersion": "apps/v1", "kind": "Deployment", "name": "a" },
                "runtime": { "image": "registry.example/adapter:1", "handler": "a.b" }, "binding": { "proxy": {} },
            }),
        ),
        (
            "LlamaStackDistribution",
            json!({
                "network": { "exposeRoute": false, "allowedFrom": {},
                    "ingress": { "annotations": { "cert-manager.io/cluster-issuer": "a" } } },
                "server": { "podOverrides": {
                    "volumes": [{ "name": "config", "configMap": { "name": "a" } }], "securityContext": { "runAsUser": 1000 },
                    "readinessProbe": { "httpGet": { "path": "/v1/health", "port": 8321 } },
                } },
            }),
        ),
    ]
}
