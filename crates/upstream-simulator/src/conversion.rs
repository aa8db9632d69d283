//! Plays the conversion webhook of Dynamo's operator, for upgrades from the releases with v1alpha1 alone.
//!
//! Without it an upgrade cannot be played: with the strategy None, server-side apply in v1beta1 to an object that the
//! same manager applied in v1alpha1 fails ("failed to prune fields … .spec.components: field not declared in schema").
//!
//! Source: ai-dynamo/dynamo deploy/operator/api/v1alpha1, `*_conversion.go`, as of pull request 9082 (2026-05): a worker of
//! the subtype prefill or decode is a component of that type (`sharedComponentTypeToHub`), and such a component is a worker
//! of that subtype again (`sharedComponentTypeFromHub`). Before, both stayed workers in v1beta1. Converted is what a translator writes, and the
//! status. Simplified: what v1alpha1 says beside the container (`resources`, `envs`, `envFromSecret`, `volumeMounts`) is
//! part of the container in v1beta1 and stays so on the way back; upstream remembers it in annotations.

use std::path::Path;

use anyhow::{Context as _, Result};
use axum::{Json, Router, routing::post};
use k8s_openapi::{
    ByteString,
    apiextensions_apiserver::pkg::apis::apiextensions::v1::{
        CustomResourceConversion, CustomResourceDefinition, WebhookClientConfig, WebhookConversion,
    },
};
use runway_http::{Limits, Tls};
use serde_json::{Map, Value, json};
use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;

use super::Task;

/// A running conversion webhook. Dropping it is the death of the operator: conversions fail.
pub struct ConversionWebhook {
    client_config: WebhookClientConfig,
    _server: Task,
}

impl ConversionWebhook {
    /// Starts serving on this machine, with the certificate of a cluster, in this folder: the cluster trusts it.
    ///
    /// # Errors
    ///
    /// A file cannot be read, or no port is free.
    pub async fn start(pki: &Path) -> Result<Self> {
        let read =
            |file: &str| std::fs::read(pki.join(file)).with_context(|| format!("no {file} in {}", pki.display()));
        // The API server's own certificate is one for this machine.
        let tls = Tls::from_pem(&read("apiserver.crt")?, &read("apiserver.key")?)?;
        let listener = TcpListener::bind(("127.0.0.1", 0)).await?;
        let client_config = WebhookClientConfig {
            ca_bundle: Some(ByteString(read("ca.crt")?)),
            url: Some(format!("https://{}/convert", listener.local_addr()?)),
            ..WebhookClientConfig::default()
        };
        let router = Router::new().route("/convert", post(async |Json(review): Json<Value>| Json(answer(review))));
        let never = CancellationToken::new();
        let server = Task::spawn(runway_http::serve(listener, Some(tls), router, Limits::WEBHOOK, never));
        Ok(Self {
            client_config,
            _server: server,
        })
    }

    /// The CRD with this webhook in place of the one that it names; for Dynamo in v1beta1.
    #[must_use]
    pub fn converting(&self, mut crd: CustomResourceDefinition) -> CustomResourceDefinition {
        crd.spec.conversion = Some(CustomResourceConversion {
            strategy: "Webhook".to_owned(),
            webhook: Some(WebhookConversion {
                client_config: Some(self.client_config.clone()),
                conversion_review_versions: vec!["v1".to_owned()],
            }),
        });
        crd
    }
}

fn answer(mut review: Value) -> Value {
    let wanted = review["request"]["desiredAPIVersion"].take();
    let mut objects = review["request"]["objects"].take();
    for object in objects.as_array_mut().into_iter().flatten() {
        // Parts of objects are converted too, and a Go type always has metadata.
        if object["metadata"].is_null() {
            object["metadata"] = json!({});
        }
        if object["apiVersion"] != wanted {
            convert(object, wanted == "nvidia.com/v1beta1");
            object["apiVersion"] = wanted.clone();
        }
    }
    json!({
        "apiVersion": review["apiVersion"],
        "kind": review["kind"],
        "response": {
            "uid": review["request"]["uid"],
            "convertedObjects": objects,
            "result": {"status": "Success"},
        },
    })
}

fn convert(object: &mut Value, to_v1beta1: bool) {
    let names = [("services", "components"), ("envs", "env")];
    let names = names.map(|(old, new)| if to_v1beta1 { (old, new) } else { (new, old) });
    for part in ["spec", "status"] {
        let Some(part) = object.get_mut(part) else {
            continue;
        };
        for (from, to) in names {
            let value = take(part, from);
            put(part, to, value);
        }
    }
    let components = names[0].1;
    if let Some(spec) = object.get_mut("spec") {
        let converted = match take(spec, components) {
            Value::Object(services) => services.into_iter().map(|(name, s)| component(&name, s)).collect(),
            Value::Array(components) => components.into_iter().map(service).collect::<Map<_, _>>().into(),
            other => other,
        };
        put(spec, components, converted);
    }
    // One name in v1alpha1, and a list of them in both.
    let statuses = object.get_mut("status").and_then(|status| status.get_mut(components));
    for (_, status) in statuses.and_then(Value::as_object_mut).into_iter().flatten() {
        if to_v1beta1 {
            take(status, "componentName");
        } else {
            status["componentName"] = status["componentNames"][0].clone();
        }
    }
}

/// A service of v1alpha1 as a component of v1beta1.
pub(super) fn component(name: &str, mut service: Value) -> Value {
    let mut component = json!({"name": name});
    let kind = take(&mut service, "componentType");
    let role = take(&mut service, "subComponentType");
    let is_role = kind == "worker" && (role == "prefill" || role == "decode");
    put(&mut component, "type", if is_role { role } else { kind });
    for field in ["replicas", "multinode"] {
        put(&mut component, field, take(&mut service, field));
    }

    let mut pod_spec = take(&mut service, "extraPodSpec");
    let mut main = take(&mut pod_spec, "mainContainer");
    if main.is_null() {
        main = json!({});
    }
    main["name"] = json!("main");
    if let Some(secret) = take(&mut service, "envFromSecret").as_str() {
        main["envFrom"] = json!([{"secretRef": {"name": secret}}]);
    }
    put(&mut main, "env", take(&mut service, "envs"));
    put(&mut main, "resources", resources(take(&mut service, "resources")));
    let mounts = take(&mut service, "volumeMounts");
    let mounts = mounts.as_array().into_iter().flatten();
    let mounts: Vec<_> = mounts
        .map(|mount| json!({"name": mount["name"], "mountPath": mount["mountPoint"]}))
        .collect();
    if !mounts.is_empty() {
        main["volumeMounts"] = mounts.into();
    }

    let mut containers = vec![main];
    if let Value::Array(others) = take(&mut pod_spec, "containers") {
        containers.extend(others);
    }
    if pod_spec.is_null() {
        pod_spec = json!({});
    }
    pod_spec["containers"] = containers.into();
    component["podTemplate"] = json!({ "spec": pod_spec });
    put(
        &mut component["podTemplate"],
        "metadata",
        take(&mut service, "extraPodMetadata"),
    );
    component
}

/// A component of v1beta1 as a service of v1alpha1, with its name.
fn service(mut component: Value) -> (String, Value) {
    let name = component["name"].as_str().unwrap_or_default().to_owned();
    let mut service = json!({});
    let kind = take(&mut component, "type");
    if kind == "prefill" || kind == "decode" {
        service["componentType"] = json!("worker");
        service["subComponentType"] = kind;
    } else {
        put(&mut service, "componentType", kind);
    }
    for field in ["replicas", "multinode"] {
        put(&mut service, field, take(&mut component, field));
    }

    let mut template = take(&mut component, "podTemplate");
    put(&mut service, "extraPodMetadata", take(&mut template, "metadata"));
    let mut pod_spec = take(&mut template, "spec");
    if let Value::Array(containers) = take(&mut pod_spec, "containers") {
        let (main, others): (Vec<_>, Vec<_>) = containers.into_iter().partition(|c| c["name"] == "main");
        put(
            &mut pod_spec,
            "mainContainer",
            main.into_iter().next().unwrap_or_default(),
        );
        if !others.is_empty() {
            pod_spec["containers"] = others.into();
        }
    }
    put(&mut service, "extraPodSpec", pod_spec);
    (name, service)
}

/// `gpu` becomes the resource that `gpuType` names, and `custom` ones stand beside the others.
fn resources(mut resources: Value) -> Value {
    for (_, amounts) in resources.as_object_mut().into_iter().flatten() {
        let kind = take(amounts, "gpuType");
        let gpus = take(amounts, "gpu");
        put(amounts, kind.as_str().unwrap_or("nvidia.com/gpu"), gpus);
        if let Value::Object(custom) = take(amounts, "custom") {
            for (name, amount) in custom {
                put(amounts, &name, amount);
            }
        }
    }
    resources
}

fn take(value: &mut Value, field: &str) -> Value {
    value
        .as_object_mut()
        .and_then(|fields| fields.remove(field))
        .unwrap_or_default()
}

fn put(value: &mut Value, field: &str, content: Value) {
    if !content.is_null() {
        value[field] = content;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_service_becomes_a_component_and_a_service_again() {
        let mut object = json!({"apiVersion": "nvidia.com/v1alpha1", "metadata": {"name": "g"}, "spec": {"services": {
            "Worker": {
                "componentType": "worker",
                "subComponentType": "decode",
                "replicas": 2,
                "envFromSecret": "token",
                "resources": {"limits": {"gpu": "1", "memory": "32Gi"}},
                "extraPodSpec": {"mainContainer": {"image": "i"}, "nodeSelector": {"a": "b"}},
            },
        }}});
        convert(&mut object, true);
        let container = json!({
            "name": "main",
            "image": "i",
            "envFrom": [{"secretRef": {"name": "token"}}],
            "resources": {"limits": {"nvidia.com/gpu": "1", "memory": "32Gi"}},
        });
        assert_eq!(
            object["spec"]["components"],
            json!([{
                "name": "Worker",
                "type": "decode",
                "replicas": 2,
                "podTemplate": {"spec": {"containers": [container], "nodeSelector": {"a": "b"}}},
            }])
        );

        convert(&mut object, false);
        let worker = &object["spec"]["services"]["Worker"];
        assert_eq!(worker["componentType"], "worker");
        assert_eq!(worker["subComponentType"], "decode");
        assert_eq!(worker["extraPodSpec"]["mainContainer"], container);
        assert!(object.get("status").is_none(), "{object}");
    }
}
