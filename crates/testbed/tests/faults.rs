//! `kubeairunway check` on a real API server: faults are seeded one after the other, and each is named with its remedy on the
//! first screen. What cannot be seeded here (no kubelet runs) is in the golden cases of `runway-client`.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a test that cannot run should fail")]

use std::collections::BTreeSet;
use std::path::Path;

use anyhow::{Context, Result, ensure};
use clap::Parser;
use jiff::{SignedDuration, Timestamp};
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::Api;
use kube::api::{DeleteParams, Patch, PatchParams};
use kube::core::{ApiResource, DynamicObject, GroupVersionKind};
use runway_cli::answer::Answer;
use runway_cli::args::CommandLine;
use runway_cli::commands;
use runway_client::documents::{Document, Documents};
use runway_client::text::Look;
use runway_client::validate::{By, Finding, Verdict, Weight, validate};
use runway_manifests::{self as manifests, Release};
use runway_operator::clock;
use runway_operator::scope::Namespaces;
use runway_operator::webhook::certificates::{Authorities, Lifetimes};
use runway_product_testbed::{Bed, NAMESPACE, PATIENCE, gemma, gemma_simulated, simulated, vllm};
use runway_testbed::{audit, crds, eventually};
use serde_json::{Value, json};

/// Lines of a terminal of default size.
const SCREEN: usize = 25;

#[tokio::test]
async fn each_seeded_fault_is_named() -> Result<()> {
    let bed = Bed::start().await?;
    let core = bed.core().await?;
    let _kaito = bed.kaito().await?;
    let simulator = bed.simulator().await?;
    bed.admission_is_up().await?;
    bed.create(gemma("well")).await?;
    bed.running("well").await?;

    models(&bed).await?;
    pods(&bed).await?;
    providers(&bed).await?;
    others(&bed).await?;
    another_schema(&bed).await?;
    controllers(&bed).await?;
    users(&bed).await?;

    // The operator upstream goes, our controller for it stays.
    drop(simulator);
    bed.create(gemma("waits")).await?;
    bed.status("waits", "handed over", |s| {
        s.provider.as_ref().is_some_and(|p| p.resource_name.is_some())
    })
    .await?;
    named_later(&bed, "provider-operator", SignedDuration::from_secs(150)).await?;
    bed.delete("waits").await?;

    admission(&bed, core).await?;
    Box::pin(kinds(&bed)).await
}

async fn models(bed: &Bed) -> Result<()> {
    // There is no node from the beginning.
    named(bed, "nodes-ready").await?;
    bed.create(simulated(vllm("large", "kaito"), "stall")).await?;
    named(bed, "nodes-gpu").await?;
    bed.delete("large").await?;
    bed.gone("large").await?;

    let mut paused = gemma_simulated("paused", "stall");
    paused["metadata"]["annotations"] = json!({ runway_api::labels::PAUSED: "true" });
    bed.create(paused).await?;
    named(bed, "model-paused").await?;
    bed.delete("paused").await?;

    bed.apply(
        &json!({ "apiVersion": "kaito.sh/v1beta1", "kind": "InferenceSet", "metadata": { "name": "taken" },
        "spec": { "labelSelector": {}, "template": { "inference": {}, "resource": {} } } }),
    )
    .await?;
    bed.create(gemma("taken")).await?;
    named(bed, "model-upstream").await?;
    bed.delete("taken").await?;
    bed.gone("taken").await?;
    bed.inference_sets().delete("taken", &DeleteParams::default()).await?;

    bed.create(gemma_simulated("fails", "fail")).await?;
    named(bed, "model-ready").await?;
    bed.delete("fails").await?;
    bed.gone("fails").await?;

    // A finalizer of another owner, seven minutes later.
    let mut held = gemma("held");
    held["metadata"]["finalizers"] = json!(["example.com/billing"]);
    bed.create(held).await?;
    bed.delete("held").await?;
    named_later(bed, "model-deleted", SignedDuration::from_mins(7)).await?;
    bed.patch("held", json!({ "metadata": { "finalizers": null } })).await?;
    bed.gone("held").await
}

/// No kubelet runs: what it would say of the pods is written by hand.
async fn pods(bed: &Bed) -> Result<()> {
    bed.create(gemma_simulated("starts", "stall")).await?;
    let waiting = |reason: &str, message: &str| {
        json!({ "phase": "Pending", "containerStatuses": [{ "name": "model", "image": "runner:typo", "imageID": "", "ready": false,
            "restartCount": 0, "state": { "waiting": { "reason": reason, "message": message } } }] })
    };
    let unscheduled = json!({ "phase": "Pending", "conditions": [{ "type": "PodScheduled", "status": "False",
        "reason": "Unschedulable", "message": "0/1 nodes are available: 1 Insufficient memory." }] });
    let faults = [
        (
            waiting("CreateContainerConfigError", "secret \"hf-token\" not found"),
            "create secret generic hf-token",
        ),
        (
            waiting("ErrImagePull", "failed to pull runner:typo"),
            "the image runner:typo exists",
        ),
        (
            waiting("CrashLoopBackOff", "back-off 5m0s"),
            "logs starts-0 -c model --previous",
        ),
        (unscheduled, "reduce spec.resources"),
    ];
    for (status, remedy) in faults {
        bed.apply(&json!({ "apiVersion": "v1", "kind": "Pod",
            "metadata": { "name": "starts-0", "namespace": NAMESPACE, "labels": { runway_api::labels::DEPLOYMENT: "starts" } },
            "spec": { "schedulerName": "nobody", "containers": [{ "name": "model", "image": "runner:typo" }] } }))
            .await?;
        let api: Api<k8s_openapi::api::core::v1::Pod> = Api::namespaced(bed.admin.clone(), NAMESPACE);
        api.patch_status(
            "starts-0",
            &PatchParams::default(),
            &Patch::Merge(json!({ "status": status })),
        )
        .await?;
        let screen = named(bed, "model-pods").await?;
        ensure!(screen.contains(remedy), "{remedy} is not said:\n{screen}");
        api.delete("starts-0", &DeleteParams::default().grace_period(0)).await?;
    }
    bed.delete("starts").await?;
    bed.gone("starts").await?;

    // A quota that is used up, for real.
    bed.apply(
        &json!({ "apiVersion": "v1", "kind": "ResourceQuota", "metadata": { "name": "none", "namespace": NAMESPACE },
        "spec": { "hard": { "pods": "0" } } }),
    )
    .await?;
    bed.create(gemma_simulated("fifth", "stall")).await?;
    bed.apply(
        &json!({ "apiVersion": "apps/v1", "kind": "Deployment", "metadata": { "name": "fifth", "namespace": NAMESPACE },
        "spec": { "selector": { "matchLabels": { "a": "b" } }, "template": { "metadata": { "labels": { "a": "b" } },
            "spec": { "containers": [{ "name": "model", "image": "runner" }] } } } }),
    )
    .await?;
    let screen = named(bed, "model-pods").await?;
    ensure!(screen.contains("exceeded quota"), "{screen}");
    delete(bed, "", "v1", "ResourceQuota", Some(NAMESPACE), "none").await?;
    delete(bed, "apps", "v1", "Deployment", Some(NAMESPACE), "fifth").await?;
    bed.delete("fifth").await?;
    bed.gone("fifth").await
}

async fn providers(bed: &Bed) -> Result<()> {
    bed.apply(&json!({ "apiVersion": "kubeairunway.ai/v1alpha1", "kind": "InferenceProviderConfig",
        "metadata": { "name": "another" },
        "spec": { "capabilities": { "engines": ["custom"], "servingModes": ["aggregated"], "cpuSupport": true }, "selectionRules": [{ "condition": "spec.engine.type ==", "priority": 1 }] } }))
        .await?;
    named(bed, "provider-rules").await?;
    named(bed, "provider-heartbeat").await?;
    let mut custom = gemma("custom");
    custom["spec"]["engine"] = json!({ "type": "custom" });
    eventually(PATIENCE, async || bed.create(custom.clone()).await).await?;
    named(bed, "model-provider").await?;
    bed.delete("custom").await?;
    bed.gone("custom").await?;
    delete(
        bed,
        "kubeairunway.ai",
        "v1alpha1",
        "InferenceProviderConfig",
        None,
        "another",
    )
    .await
}

/// Kinds whose operators do not run here.
async fn others(bed: &Bed) -> Result<()> {
    let minutes = SignedDuration::from_secs(100);
    bed.apply(&json!({ "apiVersion": "llamastack.io/v1alpha1", "kind": "LlamaStackDistribution",
        "metadata": { "name": "alone", "namespace": NAMESPACE }, "spec": { "server": { "distribution": { "name": "starter" } } } }))
        .await?;
    named_later(bed, "llama-observed", minutes).await?;
    delete(
        bed,
        "llamastack.io",
        "v1alpha1",
        "LlamaStackDistribution",
        Some(NAMESPACE),
        "alone",
    )
    .await?;

    for crd in manifests::asya().crds {
        bed.apply(&serde_json::to_value(crd)?).await?;
    }
    let actor = json!({ "apiVersion": "asya.sh/v1alpha1", "kind": "AsyncActor", "metadata": { "name": "alone", "namespace": NAMESPACE },
        "spec": { "transport": "rabbitmq", "runtime": { "image": "runtime", "handler": "a.b" }, "workloadRef": { "apiVersion": "apps/v1", "kind": "Deployment", "name": "worker" },
            "scaling": { "enabled": true } } });
    eventually(PATIENCE, async || bed.apply(&actor).await).await?;
    named_later(bed, "actor-observed", minutes).await?;
    named(bed, "keda-installed").await?;
    delete(bed, "asya.sh", "v1alpha1", "AsyncActor", Some(NAMESPACE), "alone").await
}

/// A schema of ours that is not this version's.
async fn another_schema(bed: &Bed) -> Result<()> {
    let all: Api<CustomResourceDefinition> = Api::all(bed.admin.clone());
    let words = json!([{ "op": "replace", "path": "/spec/versions/0/schema/openAPIV3Schema/description", "value": "Another." }]);
    let words: json_patch::Patch = serde_json::from_value(words)?;
    all.patch(
        "llamastackdistributions.llamastack.io",
        &PatchParams::default(),
        &Patch::<()>::Json(words),
    )
    .await?;
    named(bed, "crd-current").await?;
    for crd in manifests::crds() {
        bed.apply(&serde_json::to_value(crd)?).await?;
    }
    Ok(())
}

/// Deployments as installed; no kubelet runs their pods.
async fn controllers(bed: &Bed) -> Result<()> {
    named(bed, "core-installed").await?;
    let component = manifests::provider(&runway_provider_kaito::Kaito::default());
    for object in component.objects(&Release::default()) {
        bed.apply(&serde_json::to_value(object)?).await?;
    }
    named(bed, "controllers-ready").await?;
    bed.apply(&json!({ "apiVersion": "coordination.k8s.io/v1", "kind": "Lease",
        "metadata": { "name": "kaito-provider", "namespace": manifests::NAMESPACE },
        "spec": { "holderIdentity": "kaito-provider-dead_1", "leaseDurationSeconds": 5, "renewTime": "2026-01-01T00:00:00.000000Z" } }))
        .await?;
    named(bed, "controllers-lease").await?;
    delete(
        bed,
        "coordination.k8s.io",
        "v1",
        "Lease",
        Some(manifests::NAMESPACE),
        "kaito-provider",
    )
    .await?;

    let binding = "kaito-provider";
    delete(
        bed,
        "rbac.authorization.k8s.io",
        "v1",
        "ClusterRoleBinding",
        None,
        binding,
    )
    .await?;
    named(bed, "controllers-roles").await?;
    // Back to what the bed needs: its controllers are users.
    for object in component.roles(manifests::Identity::User, &Namespaces::default()) {
        bed.apply(&serde_json::to_value(object)?).await?;
    }
    delete(
        bed,
        "apps",
        "v1",
        "Deployment",
        Some(manifests::NAMESPACE),
        "kaito-provider",
    )
    .await
}

async fn users(bed: &Bed) -> Result<()> {
    let stranger = bed.cluster.kubeconfig("stranger", &[])?;
    let screen = named_by(&stranger, "rights-read", &[]).await?;
    ensure!(screen.contains("is forbidden"), "{screen}");
    named_by(&stranger, "rights-deploy", &[]).await?;
    named_by(&stranger, "pre-rights", &["--pre"]).await?;

    let mut admin: Value = serde_saphyr::from_str(&std::fs::read_to_string(bed.cluster.admin()?)?)?;
    admin["clusters"][0]["cluster"]["server"] = json!("https://127.0.0.1:1");
    let nowhere = bed.cluster.dir.join("nowhere.kubeconfig");
    std::fs::write(&nowhere, admin.to_string())?;
    named_by(&nowhere, "api-reachable", &[]).await?;
    Ok(())
}

async fn admission(bed: &Bed, core: runway_product_testbed::Running) -> Result<()> {
    // No controller repairs the faults from here on.
    drop(core);
    named(bed, "webhook-answers").await?;
    let another = Authorities::first("another", clock::now(), Lifetimes::default())?;
    let bundle = json!(k8s_openapi::ByteString(another.bundle(clock::now()).into_bytes()));
    let change =
        |path: &str, value: Value| json!([{ "op": "replace", "path": format!("/webhooks/0/{path}"), "value": value }]);
    patch(bed, change("clientConfig/caBundle", bundle)).await?;
    named(bed, "webhook-ca").await?;
    patch(bed, change("failurePolicy", json!("Fail"))).await?;
    named(bed, "webhook-policy").await?;
    delete(
        bed,
        "admissionregistration.k8s.io",
        "v1",
        "ValidatingWebhookConfiguration",
        None,
        "kubeairunway-validating",
    )
    .await?;
    named(bed, "webhook-installed").await?;
    Ok(())
}

async fn kinds(bed: &Bed) -> Result<()> {
    let all: Api<CustomResourceDefinition> = Api::all(bed.admin.clone());
    let workspaces = crds::upstream_crds(&[crds::KAITO_WORKSPACES])?.remove(0);
    let mut unknown = serde_json::to_value(&workspaces)?;
    for version in unknown["spec"]["versions"].as_array_mut().context("no versions")? {
        version["schema"]["openAPIV3Schema"]["properties"]["inference"] = json!({ "type": "string" });
    }
    bed.apply(&unknown).await?;
    named(bed, "provider-schema").await?;
    // No controller removes the finalizers from here on, so these stay.
    all.delete("workspaces.kaito.sh", &DeleteParams::default()).await?;
    named(bed, "provider-crd").await?;
    all.delete("modeldeployments.kubeairunway.ai", &DeleteParams::default())
        .await?;
    named(bed, "crd-terminating").await?;
    all.delete("llamastackdistributions.llamastack.io", &DeleteParams::default())
        .await?;
    named(bed, "crd-installed").await?;
    Ok(())
}

/// The number of requests does not grow with the number of objects.
#[tokio::test]
async fn a_thousand_objects_take_no_more_requests() -> Result<()> {
    let bed = Bed::start_with(runway_product_testbed::Upstream::Kaito, false).await?;
    let requests = async || -> Result<usize> {
        let audit = bed.cluster.audit().await?;
        let mark = audit.mark().await?;
        let config = bed.cluster.kubeconfig("checker", &["system:masters"])?;
        let start = std::time::Instant::now();
        check(&config, &[]).await?;
        println!("check took {:?}", start.elapsed());
        Ok(audit::of_user(&audit.since(mark).await?, "checker").len())
    };
    let few = requests().await?;
    for number in 0..1000 {
        bed.create(gemma(&format!("model-{number}"))).await?;
    }
    let many = requests().await?;
    println!("{few} requests, {many} with 1,000 ModelDeployments");
    ensure!(few == many, "{few} requests, and {many} with 1,000 ModelDeployments");
    ensure!(many < 70, "{many} requests");
    listed_in_chunks(&bed).await
}

/// A list is as many requests as it has chunks of 500. Another one asks for the controller, as nothing has reconciled the objects.
async fn listed_in_chunks(bed: &Bed) -> Result<()> {
    let audit = bed.cluster.audit().await?;
    let mark = audit.mark().await?;
    let kubeconfig = bed
        .cluster
        .kubeconfig("lister", &["system:masters"])?
        .display()
        .to_string();
    let line = ["kubeairunway", "--kubeconfig", &kubeconfig, "get", "-A"];
    let line = CommandLine::try_parse_from(line)?;
    let answer = Box::pin(commands::run(&line, &mut std::io::empty(), Look::default())).await?;
    ensure!(answer.data.lines().count() == 1001, "{}", answer.data);
    let asked = audit::of_user(&audit.since(mark).await?, "lister").len();
    ensure!(asked == 3, "{asked} requests for 1,000 ModelDeployments");
    Ok(())
}

/// `--wait` repeats the checks until nothing is wrong, or until its time is over.
#[tokio::test]
async fn a_check_that_waits_ends_when_the_fault_is_gone() -> Result<()> {
    let bed = Bed::start().await?;
    let newcomer = bed.cluster.kubeconfig("newcomer", &[])?;
    let answer = check(&newcomer, &["--pre", "--wait=1s"]).await?;
    ensure!(answer.failed, "nothing is wrong:\n{}", answer.data);
    ensure!(answer.data.contains("[pre-rights]"), "{}", answer.data);

    let audit = bed.cluster.audit().await?;
    let mark = audit.mark().await?;
    let granted = async {
        eventually(PATIENCE, async || {
            let asked = audit::of_user(&audit.since(mark).await?, "newcomer").len();
            ensure!(asked > 0, "it has not looked yet");
            Ok(())
        })
        .await?;
        bed.apply(
            &json!({ "apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRoleBinding", "metadata": { "name": "newcomer" },
            "roleRef": { "apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "cluster-admin" },
            "subjects": [{ "apiGroup": "rbac.authorization.k8s.io", "kind": "User", "name": "newcomer" }] }),
        )
        .await?;
        a_node_is_ready(&bed).await
    };
    let (answer, granted) = tokio::join!(check(&newcomer, &["--pre", "--wait=3m"]), granted);
    granted?;
    let answer = answer?;
    ensure!(!answer.failed, "{}", answer.data);
    Ok(())
}

/// No kubelet runs: what it would say is written by hand.
async fn a_node_is_ready(bed: &Bed) -> Result<()> {
    bed.apply(&json!({ "apiVersion": "v1", "kind": "Node", "metadata": { "name": "node" } }))
        .await?;
    let ready = json!({ "status": { "conditions": [{ "type": "Ready", "status": "True" }] } });
    let nodes: Api<k8s_openapi::api::core::v1::Node> = Api::all(bed.admin.clone());
    nodes
        .patch_status("node", &PatchParams::default(), &Patch::Merge(ready))
        .await?;
    Ok(())
}

/// Offline and on the server: the same manifests are refused, at the same fields.
#[tokio::test]
async fn server_says_the_same_as_validate_offline() -> Result<()> {
    let bed = Bed::start().await?;
    let _core = bed.core().await?;
    let _kaito = bed.kaito().await?;
    bed.admission_is_up().await?;
    for crd in manifests::asya().crds {
        bed.apply(&serde_json::to_value(crd)?).await?;
    }
    // A kind, or a provider, may be known a moment later.
    eventually(PATIENCE, async || {
        let apart = disagreements(&bed, "good").await?;
        ensure!(apart.is_empty(), "{}", apart.join("\n"));
        Ok(())
    })
    .await?;
    let mut apart = Vec::new();
    for case in ["deployment", "rules", "admission", "actor", "distribution"] {
        apart.extend(disagreements(&bed, case).await?);
    }
    ensure!(apart.is_empty(), "{}", apart.join("\n"));
    // The rules of a provider count for manifests as soon as it is registered.
    for registration in documents("provider")?.found.iter().filter(|d| d.name() == "mine") {
        bed.apply(&registration.value).await?;
    }
    eventually(PATIENCE, async || {
        let apart = disagreements(&bed, "provider").await?;
        ensure!(apart.is_empty(), "{}", apart.join("\n"));
        Ok(())
    })
    .await
}

/// The documents of a case of `validate`.
fn documents(case: &str) -> Result<Documents> {
    let file = format!("{}/../cli/tests/validate/{case}/input.yaml", env!("CARGO_MANIFEST_DIR"));
    let mut documents = Documents::default();
    documents.take_in_text(case, &std::fs::read_to_string(file)?);
    Ok(documents)
}

/// Cases of `validate` that the server judges differently.
async fn disagreements(bed: &Bed, case: &str) -> Result<Vec<String>> {
    let documents = documents(case)?;
    let written = documents.found.clone();
    let judged = validate(documents, clock::now()).documents;
    ensure!(written.len() == judged.len(), "{case} has documents of others");
    let mut apart = Vec::new();
    for (document, verdict) in written.iter().zip(&judged) {
        if let Err(error) = agree(bed, document, verdict).await {
            apart.push(error.to_string());
        }
    }
    Ok(apart)
}

/// The server stops at the first stage with an error; offline validation reports the same errors for that stage.
async fn agree(bed: &Bed, document: &Document, verdict: &Verdict) -> Result<()> {
    let about = format!("{} of {}", document.subject(), document.origin);
    // One that is there already was let in.
    let said = bed.refusal(&document.value).await?;
    let said = said.filter(|status| status.reason != "AlreadyExists");
    ensure!(
        verdict.valid == said.is_none(),
        "{about}: valid offline: {}, the server: {said:?}",
        verdict.valid
    );
    let Some(status) = said else { return Ok(()) };
    let errors: Vec<&Finding> = verdict.findings.iter().filter(|f| f.level == Weight::Error).collect();
    let unknown = |finding: &&&Finding| finding.message.starts_with("is an unknown field");
    let fields = |found: Vec<&&Finding>| found.into_iter().map(|f| f.field.clone()).collect::<BTreeSet<_>>();
    let strict: BTreeSet<String> = status
        .message
        .split("unknown field \"")
        .skip(1)
        .filter_map(|rest| Some(rest.split_once('"')?.0.to_owned()))
        .collect();
    if !strict.is_empty() {
        let offline = fields(errors.iter().filter(unknown).collect());
        ensure!(
            offline == strict,
            "{about}: unknown fields {offline:?}, the server says {strict:?}"
        );
        return Ok(());
    }
    let causes = status.details.map(|details| details.causes).unwrap_or_default();
    // Beside what is wrong, the server says that it stopped there, and what its scale subresource stumbled over.
    let about_it = causes
        .into_iter()
        .filter(|cause| !cause.message.contains("rules were not checked") && !cause.field.starts_with('.'));
    let server: BTreeSet<String> = about_it.map(|c| c.field.replace("<nil>", "")).collect();
    let first = [By::Schema, By::Rule, By::Admission]
        .into_iter()
        .find(|by| errors.iter().any(|f| f.by == *by));
    let offline = fields(errors.iter().filter(|f| Some(f.by) == first).collect());
    ensure!(
        server.is_empty() || offline == server,
        "{about}: wrong at {offline:?}, the server says {server:?}: {}",
        status.message
    );
    Ok(())
}

/// Puts secrets wherever a user might put one; the archive must not contain any of them.
#[tokio::test]
async fn a_support_bundle_holds_no_secret() -> Result<()> {
    let bed = Bed::start().await?;
    let _core = bed.core().await?;
    let _kaito = bed.kaito().await?;
    let _simulator = bed.simulator().await?;
    bed.admission_is_up().await?;
    let hidden = json!({ "env": [{ "name": "HF_TOKEN", "value": "CANARY" }] }).to_string();
    let annotations = json!({
        "kubectl.kubernetes.io/last-applied-configuration": hidden, "example.com/copy": hidden,
        "example.com/password": "CANARY", "example.com/link": "https://u:CANARY@host/path?sig=CANARY",
    });
    let env = json!([
        { "name": "API_KEY", "value": "CANARY" }, { "name": "LINK", "value": "https://host/?x=CANARY" },
        { "name": "AUTH", "value": "Bearer CANARY" }, { "name": "PLAIN", "value": "hf_CANARYCANARY" },
    ]);
    let mut model = gemma("model");
    model["metadata"]["annotations"] = annotations.clone();
    model["spec"]["env"] = env.clone();
    model["spec"]["engine"]["args"] = json!({ "api-key": "CANARY" });
    bed.create(model).await?;
    bed.running("model").await?;
    for object in [
        json!({ "apiVersion": "v1", "kind": "Secret", "metadata": { "name": "hf", "namespace": NAMESPACE }, "stringData": { "a": "CANARY" } }),
        json!({ "apiVersion": "v1", "kind": "ConfigMap", "metadata": { "name": "c", "namespace": NAMESPACE }, "data": { "a": "CANARY" } }),
        json!({ "apiVersion": "v1", "kind": "Pod",
            "metadata": { "name": "model-0", "namespace": NAMESPACE, "labels": { runway_api::labels::DEPLOYMENT: "model" }, "annotations": annotations },
            "spec": { "schedulerName": "nobody", "containers": [{ "name": "model", "image": "runner", "env": env,
                "command": ["sh", "-c", "serve --token CANARY"], "args": ["--api-key", "CANARY", "--password=CANARY"] }] } }),
        json!({ "apiVersion": "v1", "kind": "Event", "metadata": { "name": "model.1", "namespace": NAMESPACE },
            "involvedObject": { "kind": "ModelDeployment", "name": "model", "namespace": NAMESPACE }, "type": "Warning",
            "reason": "FailedCreate", "message": "GET https://user:CANARY@hub/model?signature=CANARY: 403, token=CANARY" }),
        json!({ "apiVersion": "llamastack.io/v1alpha1", "kind": "LlamaStackDistribution",
            "metadata": { "name": "stack", "namespace": NAMESPACE, "annotations": annotations },
            "spec": { "server": { "distribution": { "name": "starter" }, "containerSpec": { "env": env } } } }),
    ] {
        bed.apply(&object).await?;
    }
    let file = bed.cluster.dir.join("bundle.tar.gz");
    let kubeconfig = bed.cluster.admin()?.display().to_string();
    let line = [
        "kubeairunway",
        "--kubeconfig",
        &kubeconfig,
        "support-bundle",
        "-o",
        &file.display().to_string(),
    ];
    let answer = commands::run(
        &CommandLine::try_parse_from(line)?,
        &mut std::io::empty(),
        Look::default(),
    )
    .await?;
    ensure!(
        answer.data.contains("Secrets and ConfigMaps: never read"),
        "{}",
        answer.data
    );

    let unpacked = bed.cluster.dir.join("unpacked");
    tar::Archive::new(flate2::read::GzDecoder::new(std::fs::File::open(&file)?)).unpack(&unpacked)?;
    let folder = std::fs::read_dir(&unpacked)?
        .next()
        .context("an empty archive")??
        .path();
    let mut all = String::new();
    for file in files(&folder)? {
        let text = std::fs::read_to_string(&file)?;
        let at = text.lines().find(|line| line.contains("CANARY"));
        ensure!(at.is_none(), "{}: {at:?}", file.display());
        all.push_str(&text);
    }
    let admin: Value = serde_saphyr::from_str(&std::fs::read_to_string(bed.cluster.admin()?)?)?;
    let key = admin.pointer("/users/0/user/client-key-data").and_then(Value::as_str);
    ensure!(
        !all.contains(key.context("no key")?),
        "the key of the kubeconfig is in the archive"
    );
    for kept in [
        "kind: ModelDeployment",
        "kind: InferenceSet",
        "kind: Pod",
        "FailedCreate",
        "redacted",
        "403",
    ] {
        ensure!(all.contains(kept), "{kept} is not in the archive");
    }
    // The archive is as good as the cluster.
    let objects = folder.join("objects").display().to_string();
    let line = ["kubeairunway", "check", "-f", &objects];
    let answer = commands::run(
        &CommandLine::try_parse_from(line)?,
        &mut std::io::empty(),
        Look::default(),
    )
    .await?;
    ensure!(answer.talk.is_empty(), "{:?}", answer.talk);
    ensure!(answer.data.contains("[nodes-ready]"), "{}", answer.data);
    Ok(())
}

fn files(folder: &Path) -> Result<Vec<std::path::PathBuf>> {
    let mut found = Vec::new();
    for entry in std::fs::read_dir(folder)? {
        let path = entry?.path();
        if path.is_dir() {
            found.extend(files(&path)?);
        } else {
            found.push(path);
        }
    }
    Ok(found)
}

/// Waits until a check names a fault with its remedy on the first screen.
async fn named(bed: &Bed, id: &str) -> Result<String> {
    named_by(&bed.cluster.admin()?, id, &[]).await
}

async fn named_later(bed: &Bed, id: &str, later: SignedDuration) -> Result<String> {
    let then: Timestamp = clock::now() + later;
    named_by(&bed.cluster.admin()?, id, &["--now", &then.to_string()]).await
}

async fn named_by(kubeconfig: &Path, id: &str, args: &[&str]) -> Result<String> {
    let screen = eventually(PATIENCE, async || {
        let said = check(kubeconfig, args).await?.data;
        let screen: Vec<&str> = said.lines().take(SCREEN).collect();
        let at = screen.iter().position(|line| line.ends_with(&format!("[{id}]")));
        let at = at.with_context(|| format!("{id} is not on the first screen:\n{said}"))?;
        ensure!(
            screen[at..].iter().any(|line| line.starts_with("    → ")),
            "{id} has no remedy:\n{said}"
        );
        Ok(screen.join("\n"))
    })
    .await?;
    Ok(screen)
}

async fn check(kubeconfig: &Path, args: &[&str]) -> Result<Answer> {
    let kubeconfig = kubeconfig.display().to_string();
    let line = ["kubeairunway", "--kubeconfig", &kubeconfig, "check"];
    let line = CommandLine::try_parse_from(line.iter().chain(args))?;
    Ok(Box::pin(commands::run(&line, &mut std::io::empty(), Look::default())).await?)
}

async fn patch(bed: &Bed, operations: Value) -> Result<()> {
    let api: Api<DynamicObject> = Api::all_with(
        bed.admin.clone(),
        &resource("admissionregistration.k8s.io", "v1", "ValidatingWebhookConfiguration"),
    );
    let operations: json_patch::Patch = serde_json::from_value(operations)?;
    api.patch(
        "kubeairunway-validating",
        &PatchParams::default(),
        &Patch::<()>::Json(operations),
    )
    .await?;
    Ok(())
}

fn resource(group: &str, version: &str, kind: &str) -> ApiResource {
    ApiResource::from_gvk(&GroupVersionKind::gvk(group, version, kind))
}

async fn delete(bed: &Bed, group: &str, version: &str, kind: &str, namespace: Option<&str>, name: &str) -> Result<()> {
    let resource = resource(group, version, kind);
    let api: Api<DynamicObject> = match namespace {
        Some(namespace) => Api::namespaced_with(bed.admin.clone(), namespace, &resource),
        None => Api::all_with(bed.admin.clone(), &resource),
    };
    api.delete(name, &DeleteParams::background()).await?;
    Ok(())
}
