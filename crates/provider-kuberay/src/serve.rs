//! The Serve config: the application that Ray Serve runs (Ray `serve/schema.py`, ServeDeploySchema).

use runway_provider::Request;
use runway_provider::fields::fields;
use serde_json::{Value, json};

use crate::cluster::{DECODE, PREFILL};
use crate::compatible::{Accepted, Model, Part, Parts};

pub(crate) fn config(request: &Request, accepted: &Accepted) -> Value {
    let llm = |part: &Part, resource: Option<&str>| llm_config(&request.name, &accepted.model, part, resource);
    let (builder, args, deployments) = match &accepted.parts {
        Parts::Aggregated(part) => (
            "ray.serve.llm:build_openai_app",
            fields().with("llm_configs", [llm(part, None)]),
            vec![scaled("LLMServer", &request.name, part)],
        ),
        Parts::Disaggregated { prefill, decode } => (
            "ray.serve.llm:build_pd_openai_app",
            fields()
                .with("prefill_config", llm(prefill, Some(PREFILL)))
                .with("decode_config", llm(decode, Some(DECODE))),
            vec![
                scaled("Prefill", &request.name, prefill),
                scaled("Decode", &request.name, decode),
            ],
        ),
    };
    let application = fields()
        .with("name", "llm")
        .with("route_prefix", "/")
        .with("import_path", builder)
        .with("args", args)
        .with("deployments", deployments);
    fields().with("applications", [Value::from(application)]).into()
}

/// Ray `llm_config.py`, LLMConfig. A change of it reloads the model, so that the number of replicas is set elsewhere: the 1 here
/// only selects a fixed number, without which Ray Serve would scale by load.
fn llm_config(name: &str, model: &Model, part: &Part, resource: Option<&str>) -> Value {
    let mut deployment = json!({"name": name, "num_replicas": 1});
    if let Some(resource) = resource {
        deployment["ray_actor_options"] = json!({"resources": {resource: 1}});
    }
    fields()
        .with(
            "model_loading_config",
            json!({"model_id": model.name, "model_source": model.source}),
        )
        .with("engine_kwargs", part.arguments.clone())
        .with("deployment_config", deployment)
        .into()
}

/// Options that take effect without reloading the model (Ray `serve/_private/deploy_utils.py`, get_app_code_version). The
/// builders prefix the name in `deployment_config`. Zero replicas are not supported here: see `spec.suspend`.
fn scaled(prefix: &str, name: &str, part: &Part) -> Value {
    json!({"name": format!("{prefix}:{name}"), "num_replicas": part.worker.replicas.max(1)})
}
