//! `kubeairunway endpoint`: where a model or a Llama Stack server answers, or in which queue an actor takes its messages, and how to
//! ask. Pure.

use std::fmt;

use kube::ResourceExt;
use runway_api::async_actor::TRANSPORT_READY;
use runway_api::condition::Conditions;
use runway_api::llama_stack_distribution::DistributionPhase;
use runway_api::model_deployment::ModelSource;
use runway_api::{AsyncActor, LlamaStackDistribution, ModelDeployment, Name, Namespace, ServingState};
use runway_asya_operator::names;
use serde::Serialize;
use serde_json::{Value, json};

use crate::text;

/// Endpoint of a model.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Access {
    /// The ModelDeployment.
    pub name: String,
    /// Namespace.
    pub namespace: Namespace,
    /// Name of the model in API requests; absent if the image sets it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub model: Option<String>,
    /// Whether it is serving, according to the status.
    pub serves: bool,
    /// The Service.
    pub service: Name,
    /// Port.
    pub port: i32,
    /// Base of the OpenAI API, inside the cluster.
    pub url: String,
    /// Brings it to this machine.
    pub port_forward: String,
    /// Asks it, once it is on this machine.
    pub curl: String,
    /// Path of the Service proxy at the API server.
    pub proxy_path: String,
}

/// Endpoint of a ModelDeployment; `None` if the status has none, or one that is not a valid Service name.
pub fn access(md: &ModelDeployment) -> Option<Access> {
    let status = md.status.as_ref()?;
    let endpoint = status.endpoint.as_ref()?;
    let (service, port) = (endpoint.service.as_deref()?.parse().ok()?, endpoint.port?);
    let (name, namespace) = (md.name_any(), namespace(md)?);
    let (local, port_forward) = forwarded(&namespace, &service, port);
    let model = model_name(md);
    Some(Access {
        url: format!("http://{service}.{namespace}.svc:{port}/v1"),
        port_forward,
        curl: curl(local, model.as_deref()),
        proxy_path: proxy_path("http", &namespace, &service, port),
        serves: md.serving_state() == ServingState::Ready,
        name,
        namespace,
        model,
        service,
        port,
    })
}

/// The port on this machine, and the command that brings a Service there.
fn forwarded(namespace: &Namespace, service: &Name, port: i32) -> (i32, String) {
    // Low ports are not for everybody.
    let local = if port < 1024 { 8000 + port } else { port };
    let command = format!("kubectl port-forward -n {namespace} service/{service} {local}:{port}");
    (local, command)
}

/// Namespace of an object; `default` if it has none, as in a file.
fn namespace(object: &impl ResourceExt) -> Option<Namespace> {
    object
        .namespace()
        .map_or_else(|| Some(Namespace::default()), |n| n.try_into().ok())
}

/// Path at which the API server passes requests on to a Service.
pub(crate) fn proxy_path(scheme: &str, namespace: &Namespace, service: &Name, port: impl fmt::Display) -> String {
    format!("/api/v1/namespaces/{namespace}/services/{scheme}:{service}:{port}/proxy")
}

fn model_name(md: &ModelDeployment) -> Option<String> {
    if md.spec.source() == ModelSource::Custom {
        return None;
    }
    let given = md.spec.model.served_name.clone().filter(|name| !name.is_empty());
    given.or_else(|| Some(md.spec.model_id()?.rsplit('/').next()?.to_owned()))
}

fn curl(port: i32, model: Option<&str>) -> String {
    let body = serde_json::json!({
        "model": model.unwrap_or("NAME"),
        "messages": [{ "role": "user", "content": "Hello" }],
    });
    // A quote in a name must not end the argument.
    let body = body.to_string().replace('\'', r"'\''");
    format!("curl http://localhost:{port}/v1/chat/completions -H 'Content-Type: application/json' -d '{body}'")
}

/// On a screen.
pub fn screen(access: &Access) -> String {
    let model = access.model.as_deref().unwrap_or("set by the image (see /v1/models)");
    let mut lines = vec![
        ("URL", access.url.clone()),
        ("Model", model.to_owned()),
        ("Forward", access.port_forward.clone()),
        ("Ask", access.curl.clone()),
        (
            "Or",
            format!("kubeairunway chat {} -n {} 'Hello'", access.name, access.namespace),
        ),
    ];
    if !access.serves {
        lines.push(("Note", "not serving yet: run kubeairunway status".to_owned()));
    }
    aligned(&lines)
}

/// Endpoint of a Llama Stack server.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Server {
    /// The LlamaStackDistribution.
    pub name: String,
    /// Namespace.
    pub namespace: Namespace,
    /// Whether it is serving, according to the status.
    pub serves: bool,
    /// The Service.
    pub service: Name,
    /// Port.
    pub port: i32,
    /// Base of the API, inside the cluster.
    pub url: String,
    /// External URL, if the server is exposed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub route: Option<String>,
    /// Brings it to this machine.
    pub port_forward: String,
    /// Asks it, once it is on this machine.
    pub curl: String,
    /// Path of the Service proxy at the API server.
    pub proxy_path: String,
}

/// Endpoint of a LlamaStackDistribution; `None` if the status has none.
pub fn server(llsd: &LlamaStackDistribution) -> Option<Server> {
    let status = llsd.status.as_ref()?;
    let url = status.service_url.as_deref()?.trim_end_matches('/');
    let (host, port) = url.split_once("://")?.1.rsplit_once(':')?;
    let (service, port) = (host.split('.').next()?.parse().ok()?, port.parse().ok()?);
    let (name, namespace) = (llsd.name_any(), namespace(llsd)?);
    let (local, port_forward) = forwarded(&namespace, &service, port);
    Some(Server {
        serves: status.phase == Some(DistributionPhase::Ready),
        url: format!("{url}/v1"),
        route: status.route_url.clone().filter(|route| !route.is_empty()),
        port_forward,
        curl: format!("curl http://localhost:{local}/v1/models"),
        proxy_path: proxy_path("http", &namespace, &service, port),
        name,
        namespace,
        service,
        port,
    })
}

/// The endpoint as text.
pub fn server_screen(server: &Server) -> String {
    let mut lines = vec![("URL", server.url.clone())];
    lines.extend(server.route.clone().map(|route| ("Outside", route)));
    lines.push(("Forward", server.port_forward.clone()));
    lines.push(("Ask", server.curl.clone()));
    if !server.serves {
        let text = format!(
            "not serving yet: run kubeairunway why llsd/{} -n {}",
            server.name, server.namespace
        );
        lines.push(("Note", text));
    }
    aligned(&lines)
}

/// Queue of an actor, and how to send a message.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Queue {
    /// The AsyncActor.
    pub name: String,
    /// Namespace.
    pub namespace: String,
    /// Whether the queue exists, according to the status.
    pub serves: bool,
    /// The transport, as the operator calls it.
    pub transport: String,
    /// The queue.
    pub queue: String,
    /// A message for this actor alone.
    pub envelope: Value,
    /// Sends it, by the HTTP API of RabbitMQ.
    pub rabbitmq: String,
    /// Sends it, by the command of AWS.
    pub sqs: String,
    /// Queue of results.
    pub answers: String,
    /// Queue of errors.
    pub errors: String,
}

/// The queue of an actor.
pub fn queue(actor: &AsyncActor) -> Queue {
    let (name, namespace) = (actor.name_any(), actor.namespace().unwrap_or_default());
    let status = actor.status.clone().unwrap_or_default();
    let queue = status.queue.clone().unwrap_or_else(|| names::queue(&namespace, &name));
    let envelope = json!({
        "id": "1",
        "route": { "actors": [name], "current": 0 },
        "payload": { "messages": [{ "role": "user", "content": "Hello" }] },
    });
    let publish = json!({
        "properties": { "delivery_mode": 2, "content_type": "application/json" },
        "routing_key": queue,
        "payload": envelope.to_string(),
        "payload_encoding": "string",
    });
    Queue {
        serves: status.conditions.is_true(TRANSPORT_READY),
        transport: actor.spec.transport.clone(),
        rabbitmq: format!(
            "curl -u USER:PASSWORD http://BROKER:15672/api/exchanges/%2F/amq.default/publish -d '{publish}'"
        ),
        sqs: format!(
            "aws sqs send-message --queue-url $(aws sqs get-queue-url --queue-name {queue} --query QueueUrl --output text) --message-body '{envelope}'"
        ),
        answers: names::queue(&namespace, names::HAPPY_END),
        errors: names::queue(&namespace, names::ERROR_END),
        name,
        namespace,
        queue,
        envelope,
    }
}

/// The queue as text, with an example for the kind of transport that its name indicates.
pub fn queue_screen(queue: &Queue) -> String {
    let mut lines = vec![
        ("Queue", format!("{}, transport {}", queue.queue, queue.transport)),
        ("Message", queue.envelope.to_string()),
    ];
    if queue.transport != "sqs" {
        lines.push(("RabbitMQ", queue.rabbitmq.clone()));
    }
    if queue.transport != "rabbitmq" {
        lines.push(("SQS", queue.sqs.clone()));
    }
    lines.push(("Answers", queue.answers.clone()));
    lines.push(("Errors", queue.errors.clone()));
    if !queue.serves {
        let text = format!(
            "the queue is not ready: run kubeairunway why asya/{} -n {}",
            queue.name, queue.namespace
        );
        lines.push(("Note", text));
    }
    aligned(&lines)
}

fn aligned(lines: &[(&str, String)]) -> String {
    text::lines(
        lines
            .iter()
            .map(|(label, text)| format!("{label:<8} {}", text::cell(text))),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_cannot_leave_the_argument_of_curl() {
        let line = curl(8080, Some("it's; rm"));
        assert!(line.ends_with(r#""model":"it'\''s; rm"}'"#), "{line}");
    }
}
