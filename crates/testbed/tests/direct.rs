//! The direct provider on a real API server and controller manager. No kubelet runs: a test plays it where pods are
//! ready.

use anyhow::{Context, Result, ensure};
use clap::Parser;
use k8s_openapi::api::core::v1::{Namespace, PersistentVolumeClaim, Pod};
use kube::api::{ListParams, Patch, PatchParams, PostParams};
use kube::{Api, ResourceExt};
use runway_api::ModelDeployment;
use runway_api::condition::{self, Conditions};
use runway_api::labels;
use runway_api::model_deployment::Phase;
use runway_cli::args::CommandLine;
use runway_cli::commands;
use runway_client::text::Look;
use runway_product_testbed::{Bed, NAMESPACE, PATIENCE, Upstream, gemma};
use runway_provider::{Installed, Provider, Request};
use runway_provider_direct::{DEPLOYMENT, Direct, SERVICE};
use runway_provider_dynamo::Dynamo;
use runway_provider_kaito::Kaito;
use runway_provider_kuberay::KubeRay;
use runway_testbed::eventually;
use serde_json::{Value, json};

/// Every field is set, amounts in forms that the server changes.
fn everything(name: &str) -> Value {
    let mut object = gemma(name);
    object["spec"] = json!({
        "provider": { "name": "direct", "overrides": { "rollout": "Surge", "serviceType": "NodePort" } },
        "model": { "id": "Org/Model", "servedName": "model" },
        "engine": { "type": "vllm", "contextLength": 8192, "trustRemoteCode": true, "args": { "max-num-seqs": "8" } },
        "scaling": { "replicas": 0 },
        "resources": { "gpu": { "count": 2 }, "memory": "1024Mi", "cpu": "0.5" },
        "env": [{ "name": "A", "value": "b" }, { "name": "IP", "valueFrom": { "fieldRef": { "fieldPath": "status.podIP" } } }],
        "podTemplate": { "metadata": { "labels": { "team": "a" }, "annotations": { "note": "b" } } },
        "secrets": { "huggingFaceToken": "hf-token" },
        "nodeSelector": { "pool": "gpu" },
        "tolerations": [{ "key": "nvidia.com/gpu", "operator": "Exists" }],
    });
    object
}

fn cpu(name: &str, replicas: i32) -> Value {
    let mut object = gemma(name);
    object["spec"] = json!({
        "provider": { "name": "direct" }, "model": { "id": "Org/Model" }, "engine": { "type": "llamacpp" },
        "scaling": { "replicas": replicas }, "resources": { "memory": "1Gi", "cpu": "1" },
    });
    object
}

#[tokio::test]
async fn defaults_of_the_server_are_not_drift() -> Result<()> {
    let bed = Bed::start_with(Upstream::None, true).await?;
    let _core = bed.core().await?;
    let _direct = bed.provider(Direct::default()).await?;
    bed.admission_is_up().await?;
    bed.create(everything("quiet")).await?;
    bed.running("quiet").await?;
    bed.foreign_labels_are_no_drift("quiet", [DEPLOYMENT, SERVICE], "direct-provider")
        .await
}

#[tokio::test]
async fn a_service_account_that_is_no_longer_named_is_removed() -> Result<()> {
    let bed = Bed::start_with(Upstream::None, true).await?;
    let _core = bed.core().await?;
    let _direct = bed.provider(Direct::default()).await?;
    bed.admission_is_up().await?;
    let mut named = cpu("named", 0);
    named["spec"]["serviceAccountName"] = json!("reader");
    bed.create(named).await?;
    let has = async |account: Option<&str>| {
        eventually(PATIENCE, async || {
            let deployment = bed.upstream(DEPLOYMENT, "v1").get("named").await?;
            let pods = &deployment.data["spec"]["template"]["spec"];
            let found = [&pods["serviceAccountName"], &pods["serviceAccount"]].map(Value::as_str);
            ensure!(found == [account; 2], "not {account:?}, but {found:?}");
            Ok(())
        })
        .await
    };
    has(Some("reader")).await?;
    bed.patch("named", json!({ "spec": { "serviceAccountName": null } }))
        .await?;
    has(None).await
}

#[tokio::test]
async fn running_means_that_only_pods_of_the_latest_spec_serve() -> Result<()> {
    let bed = Bed::start_with(Upstream::None, true).await?;
    let _core = bed.core().await?;
    let _direct = bed.provider(Direct::default()).await?;
    bed.admission_is_up().await?;
    bed.create(cpu("rolled", 2)).await?;
    serve(&bed, "rolled", 2, "server-b").await?;
    bed.running("rolled").await?;

    bed.patch("rolled", json!({ "spec": { "image": "llama:2" } })).await?;
    bed.status("rolled", "rolling out", |s| {
        s.phase == Some(Phase::Deploying)
            && s.message
                .as_deref()
                .is_some_and(|m| m.contains("1 of 2 replicas updated"))
    })
    .await?;
    serve(&bed, "rolled", 1, "llama:2").await?;
    serve(&bed, "rolled", 2, "llama:2").await?;
    bed.running("rolled").await?;
    let left = pods(&bed, "rolled").await?;
    ensure!(
        left.len() == 2 && left.iter().all(|pod| image(pod) == "llama:2"),
        "Running, and the pods are {left:?}"
    );

    bed.patch("rolled", json!({ "spec": { "scaling": { "replicas": 0 } } }))
        .await?;
    bed.status("rolled", "scaled to zero", |s| {
        let ready = s.conditions.get_condition(condition::READY);
        ready.is_some_and(|c| c.status == "False" && c.reason == "ScaledToZero")
    })
    .await?;
    ensure!(
        pods(&bed, "rolled").await?.is_empty(),
        "scaled to zero, and there are pods"
    );
    Ok(())
}

/// The real HorizontalPodAutoscaler asks the `scale` subresource. Nothing measures pods here, so its lower bound decides.
#[tokio::test]
async fn an_autoscaler_scales_the_model() -> Result<()> {
    let bed = Bed::start_with(Upstream::None, true).await?;
    let _core = bed.core().await?;
    let _direct = bed.provider(Direct::default()).await?;
    bed.admission_is_up().await?;
    bed.create(cpu("scaled", 1)).await?;
    serve(&bed, "scaled", 1, "server-b").await?;
    bed.running("scaled").await?;
    bed.apply(&json!({
        "apiVersion": "autoscaling/v2", "kind": "HorizontalPodAutoscaler",
        "metadata": { "name": "scaled", "namespace": NAMESPACE },
        "spec": {
            "scaleTargetRef": { "apiVersion": "kubeairunway.ai/v1alpha1", "kind": "ModelDeployment", "name": "scaled" },
            "minReplicas": 3, "maxReplicas": 4,
            "metrics": [{ "type": "Resource", "resource": { "name": "cpu", "target": { "type": "Utilization", "averageUtilization": 80 } } }],
        },
    }))
    .await?;
    let md = bed
        .status("scaled", "scaled", |s| {
            s.replicas.as_ref().is_some_and(|r| r.desired == Some(3))
        })
        .await?;
    ensure!(
        md.spec.scaling.and_then(|s| s.replicas) == Some(3),
        "the HPA writes spec.scaling.replicas"
    );
    serve(&bed, "scaled", 3, "server-b").await?;
    bed.running("scaled").await?;
    Ok(())
}

#[tokio::test]
async fn pod_security_admits_baseline_and_messages_of_restricted_are_reported() -> Result<()> {
    let bed = Bed::start_with(Upstream::None, true).await?;
    let _core = bed.core().await?;
    let _direct = bed.provider(Direct::default()).await?;
    bed.admission_is_up().await?;
    enforce(&bed, "baseline").await?;
    bed.create(cpu("baseline", 1)).await?;
    serve(&bed, "baseline", 1, "server-b").await?;
    bed.running("baseline").await?;

    enforce(&bed, "restricted").await?;
    bed.create(cpu("restricted", 1)).await?;
    bed.status("restricted", "refused by Pod Security", |s| {
        s.phase == Some(Phase::Failed)
            && s.message
                .as_deref()
                .is_some_and(|m| m.contains("violates PodSecurity") && m.contains("runAsNonRoot"))
    })
    .await?;
    let mut other = cpu("other-user", 1);
    other["spec"]["podTemplate"] = json!({ "spec": { "securityContext": { "runAsUser": 1000 } } });
    bed.create(other).await?;
    serve(&bed, "other-user", 1, "server-b").await?;
    bed.running("other-user").await?;
    Ok(())
}

/// The pods of the other providers, as their upstream operators read them: with the default image, whose user is known, and with
/// an image and a user of the ModelDeployment.
#[tokio::test]
async fn restricted_admits_the_pods_of_other_providers_if_the_user_of_the_image_is_known() -> Result<()> {
    let bed = Bed::start_with(Upstream::None, false).await?;
    enforce(&bed, "restricted").await?;
    let given = json!({ "spec": {
        "model": { "id": "Org/Model" }, "engine": { "type": "vllm" }, "resources": { "gpu": { "count": 1 } },
    } });
    let mut of_user = given.clone();
    of_user["spec"]["image"] = json!("registry.example/vllm:1");
    let mut as_user = of_user.clone();
    as_user["spec"]["podTemplate"] = json!({ "spec": { "securityContext": { "runAsUser": 2000 } } });

    let (kaito, dynamo, kuberay) = (Kaito::default(), Dynamo::default(), KubeRay::default());
    let providers: [&dyn Provider; 3] = [&kaito, &dynamo, &kuberay];
    for (provider, fields, admitted) in [
        (providers[1], &given, true),
        (providers[2], &given, true),
        (providers[0], &of_user, false),
        (providers[1], &of_user, false),
        (providers[2], &of_user, false),
        (providers[0], &as_user, true),
        (providers[1], &as_user, true),
        (providers[2], &as_user, true),
    ] {
        let mut deployment = gemma("model");
        deployment["spec"] = fields["spec"].clone();
        let request = Request::try_from(&serde_json::from_value::<ModelDeployment>(deployment)?)?;
        let translation = provider.translate(&request, &Installed::newest(&provider.upstreams()))?;
        let specs: Vec<Value> = translation.objects.iter().flat_map(|o| pod_specs(&o.body)).collect();
        ensure!(!specs.is_empty(), "{translation:?}");
        for spec in specs {
            let refusal = dry_run(&bed, &spec).await.err().map(|error| error.to_string());
            let is_expected = match &refusal {
                None => admitted,
                Some(refusal) => {
                    !admitted && refusal.contains("runAsNonRoot") && !refusal.contains("allowPrivilegeEscalation")
                }
            };
            ensure!(is_expected, "{}: {refusal:?}: {spec}", provider.name());
        }
    }
    Ok(())
}

/// Specs of pods in the object of an upstream, with the containers that its operator adds.
fn pod_specs(value: &Value) -> Vec<Value> {
    match value {
        Value::Array(items) => items.iter().flat_map(pod_specs).collect(),
        Value::Object(fields) if fields.contains_key("containers") => vec![value.clone()],
        Value::Object(fields) => {
            let autoscaler = fields.get("autoscalerOptions").map(|options| {
                let context = &options["securityContext"];
                json!({ "containers": [{ "name": "autoscaler", "image": "ray", "securityContext": context }] })
            });
            fields.values().flat_map(pod_specs).chain(autoscaler).collect()
        }
        _ => Vec::new(),
    }
}

async fn dry_run(bed: &Bed, spec: &Value) -> Result<Pod> {
    let pod = serde_json::from_value(json!({ "metadata": { "generateName": "model-" }, "spec": spec }))?;
    let options = PostParams {
        dry_run: true,
        ..PostParams::default()
    };
    Ok(Api::namespaced(bed.admin.clone(), NAMESPACE)
        .create(&options, &pod)
        .await?)
}

/// A claim goes with its ModelDeployment, or stays for the next one of this name. Nothing is bound here, so the API server refuses
/// a change of the size.
#[tokio::test]
async fn claims_are_created_for_volumes() -> Result<()> {
    let bed = Bed::start_with(Upstream::None, true).await?;
    let _core = bed.core().await?;
    let _direct = bed.provider(Direct::default()).await?;
    bed.admission_is_up().await?;
    let claims: Api<PersistentVolumeClaim> = Api::namespaced(bed.admin.clone(), NAMESPACE);
    let with = |name: &str, volumes: Value| {
        let mut object = cpu(name, 1);
        object["spec"]["model"]["storage"] = json!({ "volumes": volumes });
        object
    };
    for (volume, complaint) in [
        (
            json!({ "claimName": "models", "size": "1Gi" }),
            "a volume has either claimName",
        ),
        (json!({}), "a volume has either claimName"),
        (json!({ "size": "0Gi" }), "size must be a quantity greater than zero"),
        (json!({ "size": "much" }), "size must be a quantity greater than zero"),
        (json!({ "size": "1Gi", "readOnly": true }), "remove readOnly"),
        (
            json!({ "claimName": "models", "retain": true }),
            "set size, or remove them",
        ),
        (json!({ "size": "1Gi", "accessMode": "ReadOnlyMany" }), "accessMode"),
    ] {
        let mut volume = volume;
        volume["name"] = json!("models");
        volume["mountPath"] = json!("/models");
        let refused = bed.refusal(&with("refused", json!([volume]))).await?;
        let said = refused.map(|status| status.message).unwrap_or_default();
        ensure!(said.contains(complaint), "{volume}: {said}");
    }

    let models = json!({ "name": "models", "purpose": "modelCache", "size": "1024Mi" });
    let kept =
        json!({ "name": "kept", "mountPath": "/kept", "size": "1Gi", "accessMode": "ReadWriteMany", "retain": true });
    bed.create(with("stored", json!([models, kept]))).await?;
    serve(&bed, "stored", 1, "server-b").await?;
    let md = bed.running("stored").await?;
    let created = claims.get("stored-models").await?;
    ensure!(
        created
            .owner_references()
            .iter()
            .map(|owner| &owner.uid)
            .eq(md.uid().iter()),
        "stored-models belongs to {:?}",
        created.owner_references()
    );
    let retained = claims.get("stored-kept").await?;
    ensure!(
        retained.owner_references().is_empty(),
        "a retained claim would be deleted with its owner"
    );

    let grown = json!([{ "name": "models", "purpose": "modelCache", "size": "2Gi" }, kept]);
    bed.patch(
        "stored",
        json!({ "spec": { "model": { "storage": { "volumes": grown } } } }),
    )
    .await?;
    bed.status("stored", "refused by the API server", |s| {
        s.phase == Some(Phase::Failed)
            && s.message
                .as_deref()
                .is_some_and(|m| m.contains("PersistentVolumeClaim 'stored-models' was refused") && m.contains("bound"))
    })
    .await?;
    // A claim goes with its volume.
    bed.patch(
        "stored",
        json!({ "spec": { "model": { "storage": { "volumes": [kept] } } } }),
    )
    .await?;
    gone(&claims, "stored-models").await?;
    // A retained one stays.
    bed.patch(
        "stored",
        json!({ "spec": { "model": { "storage": { "volumes": [models] } } } }),
    )
    .await?;
    eventually(PATIENCE, async || Ok(claims.get("stored-models").await?)).await?;
    ensure!(claims.get("stored-kept").await?.uid() == retained.uid());

    bed.delete("stored").await?;
    bed.gone("stored").await?;
    gone(&claims, "stored-models").await?;
    ensure!(claims.get("stored-kept").await?.uid() == retained.uid());
    let mut released = kept.clone();
    released["retain"] = json!(false);
    bed.create(with("stored", json!([released]))).await?;
    let again = eventually(PATIENCE, async || {
        let claim = claims.get("stored-kept").await?;
        ensure!(!claim.owner_references().is_empty(), "it has no owner yet");
        Ok(claim)
    })
    .await?;
    ensure!(again.uid() == retained.uid(), "the retained claim is not used again");
    Ok(())
}

/// The controller manager binds the claims. Nothing resizes volumes here: the request is what counts.
#[tokio::test]
async fn a_claim_grows_if_its_class_allows_it() -> Result<()> {
    let bed = Bed::start_with(Upstream::None, true).await?;
    let _core = bed.core().await?;
    let _direct = bed.provider(Direct::default()).await?;
    bed.admission_is_up().await?;
    let claims: Api<PersistentVolumeClaim> = Api::namespaced(bed.admin.clone(), NAMESPACE);
    let volumes = |class: &str, size: &str| json!({ "volumes": [{ "name": "models", "mountPath": "/models", "size": size, "storageClassName": class }] });
    for (class, grows) in [("grows", true), ("fixed", false)] {
        let claim = format!("{class}-models");
        bed.apply(&json!({
            "apiVersion": "storage.k8s.io/v1", "kind": "StorageClass", "metadata": { "name": class },
            "provisioner": "example.com/none", "allowVolumeExpansion": grows,
        }))
        .await?;
        bed.apply(&json!({
            "apiVersion": "v1", "kind": "PersistentVolume", "metadata": { "name": class },
            "spec": {
                "capacity": { "storage": "5Gi" }, "accessModes": ["ReadWriteOnce"], "storageClassName": class,
                "hostPath": { "path": "/nowhere" }, "claimRef": { "namespace": NAMESPACE, "name": claim },
            },
        }))
        .await?;
        let mut object = cpu(class, 1);
        object["spec"]["model"]["storage"] = volumes(class, "1Gi");
        bed.create(object).await?;
        eventually(PATIENCE, async || {
            let phase = claims.get(&claim).await?.status.and_then(|status| status.phase);
            ensure!(phase.as_deref() == Some("Bound"), "{claim} is {phase:?}");
            Ok(())
        })
        .await?;
        serve(&bed, class, 1, "server-b").await?;
        bed.running(class).await?;
        let grown = json!({ "spec": { "model": { "storage": volumes(class, "2Gi") } } });
        bed.patch(class, grown).await?;
    }
    eventually(PATIENCE, async || {
        let spec = json!(claims.get("grows-models").await?.spec);
        ensure!(spec["resources"]["requests"]["storage"] == "2Gi", "{spec}");
        Ok(())
    })
    .await?;
    bed.running("grows").await?;

    let md = bed
        .status("fixed", "refused by the API server", |s| s.phase == Some(Phase::Failed))
        .await?;
    let message = md.status.and_then(|status| status.message).unwrap_or_default();
    for text in [
        "'fixed-models' was refused",
        "support resize",
        "spec.model.storage.volumes",
    ] {
        ensure!(message.contains(text), "no '{text}' in: {message}");
    }
    ensure!(
        pods(&bed, "fixed").await?.len() == 1,
        "the model does not serve any more"
    );
    let undone = json!({ "spec": { "model": { "storage": volumes("fixed", "1Gi") } } });
    bed.patch("fixed", undone).await?;
    bed.running("fixed").await?;
    bed.cluster.stop().await
}

/// A policy of the cluster, as a webhook of an upstream operator, rejects a change.
#[tokio::test]
async fn rejection_of_admission_is_quoted_and_the_model_keeps_serving() -> Result<()> {
    let bed = Bed::start_with(Upstream::None, true).await?;
    let _core = bed.core().await?;
    let _direct = bed.provider(Direct::default()).await?;
    bed.admission_is_up().await?;
    bed.create(cpu("serving", 1)).await?;
    serve(&bed, "serving", 1, "server-b").await?;
    bed.running("serving").await?;
    bed.apply(&json!({
        "apiVersion": "admissionregistration.k8s.io/v1", "kind": "ValidatingAdmissionPolicy", "metadata": { "name": "registries" },
        "spec": {
            "matchConstraints": { "resourceRules": [
                { "apiGroups": ["apps"], "apiVersions": ["v1"], "operations": ["CREATE", "UPDATE"], "resources": ["deployments"] },
            ] },
            "validations": [{
                "expression": "object.spec.template.spec.containers.all(c, !c.image.startsWith('elsewhere.example/'))",
                "message": "images of elsewhere.example are not allowed",
            }],
        },
    }))
    .await?;
    bed.apply(&json!({
        "apiVersion": "admissionregistration.k8s.io/v1", "kind": "ValidatingAdmissionPolicyBinding", "metadata": { "name": "registries" },
        "spec": { "policyName": "registries", "validationActions": ["Deny"] },
    }))
    .await?;
    // The policy applies a moment after it was created.
    let mut probe = json!(bed.upstream(DEPLOYMENT, "v1").get("serving").await?);
    probe["metadata"] = json!({ "name": "probe", "namespace": NAMESPACE });
    probe["spec"]["template"]["spec"]["containers"][0]["image"] = json!("elsewhere.example/llama:1");
    eventually(PATIENCE, async || {
        ensure!(bed.refusal(&probe).await?.is_some(), "the policy does not apply yet");
        Ok(())
    })
    .await?;

    bed.patch("serving", json!({ "spec": { "image": "elsewhere.example/llama:1" } }))
        .await?;
    let md = bed
        .status("serving", "rejected", |s| s.phase == Some(Phase::Failed))
        .await?;
    let message = md.status.and_then(|status| status.message).unwrap_or_default();
    for text in [
        "Deployment 'serving' was refused",
        "images of elsewhere.example are not allowed",
    ] {
        ensure!(message.contains(text), "no '{text}' in: {message}");
    }
    let left = pods(&bed, "serving").await?;
    ensure!(left.len() == 1 && image(&left[0]).contains("server-b"), "{left:?}");
    bed.patch("serving", json!({ "spec": { "image": null } })).await?;
    bed.running("serving").await?;
    bed.cluster.stop().await
}

/// The next provider mounts the claim of the previous one, and retains it if that is wanted later.
#[tokio::test]
async fn a_claim_survives_a_handover() -> Result<()> {
    let bed = Bed::start().await?;
    let _core = bed.core().await?;
    let _direct = bed.provider(Direct::default()).await?;
    let _kaito = bed.kaito().await?;
    bed.admission_is_up().await?;
    let claims: Api<PersistentVolumeClaim> = Api::namespaced(bed.admin.clone(), NAMESPACE);
    let mut object = gemma("moved");
    object["spec"]["provider"] = json!({ "name": "direct" });
    object["spec"]["model"]["storage"] =
        json!({ "volumes": [{ "name": "models", "mountPath": "/models", "size": "1Gi" }] });
    bed.create(object).await?;
    let created = eventually(PATIENCE, async || Ok(claims.get("moved-models").await?)).await?;

    // What will happen to the claim is shown before.
    let shown = diff(&bed, "moved", json!({ "spec": { "provider": { "name": "kaito" } } })).await?;
    ensure!(!shown.contains("delete  PersistentVolumeClaim"), "{shown}");
    bed.patch("moved", json!({ "spec": { "provider": { "name": "kaito" } } }))
        .await?;
    eventually(PATIENCE, async || Ok(bed.inference_sets().get("moved").await?)).await?;
    let kept = eventually(PATIENCE, async || {
        let claim = claims.get("moved-models").await?;
        ensure!(claim.labels()[labels::PROVIDER] == "kaito", "{:?}", claim.labels());
        Ok(claim)
    })
    .await?;
    ensure!(kept.uid() == created.uid(), "the claim was recreated: its data is lost");

    let volumes = json!([{ "name": "models", "mountPath": "/models", "size": "1Gi", "retain": true }]);
    let retained = json!({ "spec": { "model": { "storage": { "volumes": volumes } } } });
    let shown = diff(&bed, "moved", retained.clone()).await?;
    ensure!(shown.contains("PersistentVolumeClaim/moved-models"), "{shown}");
    bed.patch("moved", retained).await?;
    eventually(PATIENCE, async || {
        let owners = claims.get("moved-models").await?.owner_references().to_vec();
        ensure!(owners.is_empty(), "it would be deleted with {owners:?}");
        Ok(())
    })
    .await?;
    bed.delete("moved").await?;
    bed.gone("moved").await?;
    ensure!(claims.get("moved-models").await?.uid() == created.uid());
    bed.cluster.stop().await
}

/// `kubeairunway diff` of a ModelDeployment with a change.
async fn diff(bed: &Bed, name: &str, change: Value) -> Result<String> {
    let mut changed = json!(bed.deployments().get(name).await?);
    json_patch::merge(&mut changed, &change);
    let manifest = json!({
        "apiVersion": "kubeairunway.ai/v1alpha1", "kind": "ModelDeployment",
        "metadata": { "name": name, "namespace": NAMESPACE }, "spec": changed["spec"],
    });
    let kubeconfig = bed.cluster.admin()?.display().to_string();
    let line = CommandLine::try_parse_from(["kubeairunway", "--kubeconfig", &kubeconfig, "diff", "-f", "-"])?;
    let answer = commands::run(&line, &mut manifest.to_string().as_bytes(), Look::default()).await?;
    ensure!(!answer.failed, "{answer:?}");
    Ok(answer.data)
}

async fn gone(claims: &Api<PersistentVolumeClaim>, name: &str) -> Result<()> {
    eventually(PATIENCE, async || {
        ensure!(claims.get_opt(name).await?.is_none(), "claim {name} exists");
        Ok(())
    })
    .await
}

async fn enforce(bed: &Bed, level: &str) -> Result<()> {
    let label = json!({ "metadata": { "labels": { "pod-security.kubernetes.io/enforce": level } } });
    Api::<Namespace>::all(bed.admin.clone())
        .patch(NAMESPACE, &PatchParams::default(), &Patch::Merge(&label))
        .await?;
    Ok(())
}

/// Plays the kubelet: waits for so many pods with an image of this tag, and makes them ready.
async fn serve(bed: &Bed, name: &str, count: usize, tag: &str) -> Result<()> {
    let api: Api<Pod> = Api::namespaced(bed.admin.clone(), NAMESPACE);
    eventually(PATIENCE, async || {
        let mut found = pods(bed, name).await?;
        found.retain(|pod| image(pod).contains(tag));
        ensure!(found.len() >= count, "{} of {count} pods with {tag}", found.len());
        for pod in found {
            let ready = json!({ "status": { "phase": "Running", "conditions": [
                { "type": "Ready", "status": "True", "lastTransitionTime": "2026-01-01T00:00:00Z" },
            ] } });
            api.patch_status(&pod.name_any(), &PatchParams::default(), &Patch::Merge(&ready))
                .await
                .context("the pod goes")?;
        }
        Ok(())
    })
    .await
}

/// The pods of a model that are not ending.
async fn pods(bed: &Bed, name: &str) -> Result<Vec<Pod>> {
    let of_it = ListParams::default().labels(&format!("{}={name}", labels::DEPLOYMENT));
    let mut found = Api::<Pod>::namespaced(bed.admin.clone(), NAMESPACE)
        .list(&of_it)
        .await?
        .items;
    found.retain(|pod| pod.metadata.deletion_timestamp.is_none());
    Ok(found)
}

fn image(pod: &Pod) -> String {
    let containers = pod.spec.iter().flat_map(|spec| &spec.containers);
    containers.filter_map(|container| container.image.clone()).collect()
}
