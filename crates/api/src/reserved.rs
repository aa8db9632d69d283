//! Environment variables of an AsyncActor that the operator sets.

/// Environment variables that the operator sets: the identity of an actor, its broker, and what its two containers must agree on. An
/// actor with another identity would receive the messages of others.
pub const RESERVED_VARIABLES: [&str; 25] = [
    "ASYA_ACTOR_ERROR_END",
    "ASYA_ACTOR_HAPPY_END",
    "ASYA_ACTOR_NAME",
    "ASYA_AWS_REGION",
    "ASYA_GATEWAY_URL",
    "ASYA_IS_END_ACTOR",
    "ASYA_NAMESPACE",
    "ASYA_QUEUE_ALIAS",
    "ASYA_QUEUE_AUTO_CREATE",
    "ASYA_RABBITMQ_CA",
    "ASYA_RABBITMQ_EXCHANGE",
    "ASYA_RABBITMQ_HOST",
    "ASYA_RABBITMQ_PASSWORD",
    "ASYA_RABBITMQ_PASSWORD_FILE",
    "ASYA_RABBITMQ_PORT",
    "ASYA_RABBITMQ_PUBLISH_EXCHANGE",
    "ASYA_RABBITMQ_TLS",
    "ASYA_RABBITMQ_URL",
    "ASYA_RABBITMQ_USERNAME",
    "ASYA_RABBITMQ_VHOST",
    "ASYA_RUNTIME_CONCURRENCY",
    "ASYA_SOCKET",
    "ASYA_SOCKET_DIR",
    "ASYA_SQS_ENDPOINT",
    "ASYA_TRANSPORT",
];

/// Field of the variables of asya-runtime in a pod template.
pub const RUNTIME_ENV: &str = "workload.template.spec.containers: env of asya-runtime";

/// Admission message: a reserved environment variable is set.
pub fn refusal(field: &str, name: &str) -> String {
    format!("{field}: {name} is reserved, because the operator sets it from the actor and its transport: remove it")
}
