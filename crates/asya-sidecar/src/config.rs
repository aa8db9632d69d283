//! Settings: environment variables, each of which is an option too. Names are those of the public Asya, if it has the setting.

use std::ffi::OsString;
use std::fmt;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use amq_protocol::uri::{AMQPAuthority, AMQPQueryString, AMQPScheme, AMQPUri, AMQPUserInfo};
use clap::Parser as _;
use clap::builder::{BoolishValueParser, NonEmptyStringValueParser};
use clap::error::{ContextKind, ContextValue};
use tracing_subscriber::filter::Targets;

use crate::plan::{Actor, Policy};
use crate::runtime::Address;
use crate::transport::queues::{Pair, Queues};
use crate::transport::{rabbitmq, sqs};

/// Passes messages from the queue of an actor to its handler runtime, and the results to the next actor.
#[derive(Clone, Debug, clap::Parser)]
#[command(name = "asya-sidecar", version)]
#[expect(clippy::struct_excessive_bools, reason = "each is a variable of its own")]
pub struct Config {
    /// Name of the actor in routes.
    #[arg(long, env = "ASYA_ACTOR_NAME", value_name = "ASYA_ACTOR_NAME", value_parser = actor_name)]
    pub actor_name: String,
    /// Namespace of the actor, part of the name of its queue. If empty, queues are named as in the public Asya.
    #[arg(long, env = "ASYA_NAMESPACE", value_name = "ASYA_NAMESPACE")]
    pub namespace: Option<String>,
    /// Also receive from `asya-NAME`, the queue of the actor in the public Asya v0.1, and send to such queues: to those of actors that
    /// have no other, and to those of the end actors if they exist. Without a namespace this has no effect.
    #[arg(long, env = "ASYA_QUEUE_ALIAS", value_name = "ASYA_QUEUE_ALIAS", default_value = "false",
        num_args = 0..=1, default_missing_value = "true", value_parser = BoolishValueParser::new())]
    pub queue_alias: bool,
    /// Actor that gets finished messages.
    #[arg(
        long,
        env = "ASYA_ACTOR_HAPPY_END",
        value_name = "ASYA_ACTOR_HAPPY_END",
        default_value = "happy-end"
    )]
    pub actor_happy_end: String,
    /// Actor that gets failed messages.
    #[arg(
        long,
        env = "ASYA_ACTOR_ERROR_END",
        value_name = "ASYA_ACTOR_ERROR_END",
        default_value = "error-end"
    )]
    pub actor_error_end: String,
    /// This actor is happy-end or error-end: it accepts every message and sends none.
    #[arg(long, env = "ASYA_IS_END_ACTOR", value_name = "ASYA_IS_END_ACTOR", default_value = "false",
        num_args = 0..=1, default_missing_value = "true", value_parser = BoolishValueParser::new())]
    pub is_end_actor: bool,

    /// Folder of the runtime's socket.
    #[arg(
        long,
        env = "ASYA_SOCKET_DIR",
        value_name = "ASYA_SOCKET_DIR",
        default_value = "/var/run/asya"
    )]
    pub socket_dir: PathBuf,
    /// Socket of the runtime; `@NAME` is an abstract socket. Takes precedence over the folder.
    #[arg(long, env = "ASYA_SOCKET", value_name = "ASYA_SOCKET", value_parser = NonEmptyStringValueParser::new())]
    pub socket: Option<String>,
    /// Timeout of one call, such as `300s` or `5m`.
    #[arg(long, env = "ASYA_RUNTIME_TIMEOUT", value_name = "ASYA_RUNTIME_TIMEOUT", default_value = "5m", value_parser = duration)]
    pub runtime_timeout: Duration,
    /// Longest wait for the runtime at the start.
    #[arg(long, env = "ASYA_RUNTIME_READY_TIMEOUT", value_name = "ASYA_RUNTIME_READY_TIMEOUT", default_value = "5m", value_parser = duration)]
    pub runtime_ready_timeout: Duration,
    /// Connections to the runtime, which is the number of concurrent messages. The order of messages is kept only with 1. A smaller
    /// prefetch count is raised to it.
    #[arg(long, env = "ASYA_RUNTIME_CONCURRENCY", value_name = "ASYA_RUNTIME_CONCURRENCY", default_value = "1",
        value_parser = clap::value_parser!(u16).range(1..=1024))]
    pub runtime_concurrency: u16,
    /// Attempts per message if the runtime dies during the call.
    #[arg(long, env = "ASYA_RUNTIME_MAX_CRASHES", value_name = "ASYA_RUNTIME_MAX_CRASHES", default_value = "3",
        value_parser = clap::value_parser!(u32).range(1..))]
    pub runtime_max_crashes: u32,
    /// Largest message and largest response, in bytes.
    #[arg(long, env = "ASYA_MAX_FRAME_BYTES", value_name = "ASYA_MAX_FRAME_BYTES", default_value = "67108864",
        value_parser = clap::value_parser!(u32).range(1024..=2_147_483_647))]
    pub max_frame_bytes: u32,

    /// Attempts per message if the handler reports an error. 1 means no retry.
    #[arg(long, env = "ASYA_RETRY_MAX_ATTEMPTS", value_name = "ASYA_RETRY_MAX_ATTEMPTS", default_value = "1",
        value_parser = clap::value_parser!(u32).range(1..))]
    pub retry_max_attempts: u32,
    /// Pause before the second attempt. It doubles with each further one.
    #[arg(long, env = "ASYA_RETRY_BACKOFF", value_name = "ASYA_RETRY_BACKOFF", default_value = "1s", value_parser = duration)]
    pub retry_backoff: Duration,
    /// Longest pause between attempts.
    #[arg(long, env = "ASYA_RETRY_MAX_BACKOFF", value_name = "ASYA_RETRY_MAX_BACKOFF", default_value = "30s", value_parser = duration)]
    pub retry_max_backoff: Duration,
    /// Largest number of deliveries of a message, if the broker counts them (quorum queues, SQS). 0 means no limit. With a prefetch count
    /// above the concurrency it is at least 2, because the first delivery can have waited for others.
    #[arg(
        long,
        env = "ASYA_MAX_DELIVERIES",
        value_name = "ASYA_MAX_DELIVERIES",
        default_value = "20"
    )]
    pub max_deliveries: u32,
    /// Time after SIGTERM in which messages in progress can finish before they are returned to the queue.
    #[arg(long, env = "ASYA_DRAIN_TIMEOUT", value_name = "ASYA_DRAIN_TIMEOUT", default_value = "25s", value_parser = duration)]
    pub drain_timeout: Duration,

    /// URL of the gateway that gets reports of progress, such as `http://asya-gateway-progress.kubeairunway-system`.
    #[arg(long, env = "ASYA_GATEWAY_URL", value_name = "ASYA_GATEWAY_URL")]
    pub gateway_url: Option<String>,

    /// Message broker.
    #[arg(
        long,
        env = "ASYA_TRANSPORT",
        value_name = "ASYA_TRANSPORT",
        default_value = "rabbitmq"
    )]
    pub transport: BrokerKind,
    /// Create the actor's queue and its dead-letter queue if they do not exist.
    #[arg(long, env = "ASYA_QUEUE_AUTO_CREATE", value_name = "ASYA_QUEUE_AUTO_CREATE", default_value = "true",
        action = clap::ArgAction::Set, value_parser = BoolishValueParser::new())]
    pub queue_auto_create: bool,
    /// Options of RabbitMQ.
    #[command(flatten)]
    pub rabbitmq: RabbitMqArgs,
    /// Options of SQS.
    #[command(flatten)]
    pub sqs: SqsArgs,

    /// Address of `/metrics`, `/healthz` and `/readyz`; `:8080` means all interfaces.
    #[arg(long, env = "ASYA_METRICS_ADDR", value_name = "ASYA_METRICS_ADDR", default_value = ":8080", value_parser = listen_address)]
    pub metrics_addr: SocketAddr,
    /// Serve metrics and probes.
    #[arg(long, env = "ASYA_METRICS_ENABLED", value_name = "ASYA_METRICS_ENABLED", default_value = "true",
        action = clap::ArgAction::Set, value_parser = BoolishValueParser::new())]
    pub metrics_enabled: bool,
    /// Prefix of the names of metrics.
    #[arg(
        long,
        env = "ASYA_METRICS_NAMESPACE",
        value_name = "ASYA_METRICS_NAMESPACE",
        default_value = "asya_actor"
    )]
    pub metrics_namespace: String,
    /// Log level: `error`, `warn`, `info`, `debug` or `trace`. Payloads are never logged.
    #[arg(long, env = "ASYA_LOG_LEVEL", value_name = "ASYA_LOG_LEVEL", default_value = "info", value_parser = log_level)]
    pub log_level: Targets,
    /// Log as JSON, one object per line.
    #[arg(long, env = "ASYA_LOG_JSON", value_name = "ASYA_LOG_JSON", default_value = "false",
        num_args = 0..=1, default_missing_value = "true", value_parser = BoolishValueParser::new())]
    pub log_json: bool,
}

/// Message brokers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum BrokerKind {
    /// RabbitMQ.
    #[value(name = "rabbitmq")]
    RabbitMq,
    /// Amazon SQS. Credentials come from the sources of the AWS SDKs.
    #[value(name = "sqs")]
    Sqs,
}

/// Options of RabbitMQ.
#[derive(Clone, clap::Args)]
pub struct RabbitMqArgs {
    /// URL `amqp[s]://user:password@host:port/vhost`. Takes precedence over host, port, user, password and virtual host.
    #[arg(
        long,
        env = "ASYA_RABBITMQ_URL",
        value_name = "ASYA_RABBITMQ_URL",
        hide_env_values = true,
        value_parser = amqp_url
    )]
    pub rabbitmq_url: Option<AMQPUri>,
    /// Host.
    #[arg(
        long,
        env = "ASYA_RABBITMQ_HOST",
        value_name = "ASYA_RABBITMQ_HOST",
        default_value = "localhost"
    )]
    pub rabbitmq_host: String,
    /// Port.
    #[arg(
        long,
        env = "ASYA_RABBITMQ_PORT",
        value_name = "ASYA_RABBITMQ_PORT",
        default_value = "5672"
    )]
    pub rabbitmq_port: u16,
    /// User.
    #[arg(
        long,
        env = "ASYA_RABBITMQ_USERNAME",
        value_name = "ASYA_RABBITMQ_USERNAME",
        default_value = "guest"
    )]
    pub rabbitmq_username: String,
    /// Password.
    #[arg(
        long,
        env = "ASYA_RABBITMQ_PASSWORD",
        value_name = "ASYA_RABBITMQ_PASSWORD",
        default_value = "guest",
        hide_env_values = true
    )]
    pub rabbitmq_password: String,
    /// File with the password, which is read for each connection. Takes precedence over the password and that in the URL.
    #[arg(
        long,
        env = "ASYA_RABBITMQ_PASSWORD_FILE",
        value_name = "ASYA_RABBITMQ_PASSWORD_FILE"
    )]
    pub rabbitmq_password_file: Option<PathBuf>,
    /// Connect with TLS. A URL `amqps://…` does too.
    #[arg(long, env = "ASYA_RABBITMQ_TLS", value_name = "ASYA_RABBITMQ_TLS", default_value = "false",
        num_args = 0..=1, default_missing_value = "true", value_parser = BoolishValueParser::new())]
    pub rabbitmq_tls: bool,
    /// Certificate authorities of the broker: the path of a file in PEM format, which is read for each connection, or its content.
    /// If empty, those of the system.
    #[arg(long, env = "ASYA_RABBITMQ_CA", value_name = "ASYA_RABBITMQ_CA", default_value = "")]
    pub rabbitmq_ca: String,
    /// Virtual host.
    #[arg(
        long,
        env = "ASYA_RABBITMQ_VHOST",
        value_name = "ASYA_RABBITMQ_VHOST",
        default_value = "/"
    )]
    pub rabbitmq_vhost: String,
    /// Topic exchange that the queue is bound to, for publishers that do not know its name. If empty, none.
    #[arg(
        long,
        env = "ASYA_RABBITMQ_EXCHANGE",
        value_name = "ASYA_RABBITMQ_EXCHANGE",
        default_value = "asya"
    )]
    pub rabbitmq_exchange: String,
    /// Direct exchange through which messages are published to queues of the namespace, for a user who may use no other; those to reply
    /// queues are published through `asya_reply`, with the name of the user. If empty, the default exchange, and no name.
    #[arg(
        long,
        env = "ASYA_RABBITMQ_PUBLISH_EXCHANGE",
        value_name = "ASYA_RABBITMQ_PUBLISH_EXCHANGE",
        default_value = ""
    )]
    pub rabbitmq_publish_exchange: String,
    /// Topic exchange that gets a copy of every sent message, with the name of the queue as routing key. If empty, none. Copies are
    /// not confirmed and can be lost.
    #[arg(
        long,
        env = "ASYA_RABBITMQ_TAP_EXCHANGE",
        value_name = "ASYA_RABBITMQ_TAP_EXCHANGE",
        default_value = ""
    )]
    pub rabbitmq_tap_exchange: String,
    /// Prefetch count. Higher values are faster with quick handlers, but keep messages from other replicas if handlers are slow.
    #[arg(long, env = "ASYA_RABBITMQ_PREFETCH", value_name = "ASYA_RABBITMQ_PREFETCH", default_value = "1",
        value_parser = clap::value_parser!(u16).range(1..))]
    pub rabbitmq_prefetch: u16,
}

/// Options of SQS.
#[derive(Clone, Debug, clap::Args)]
pub struct SqsArgs {
    /// AWS region.
    #[arg(
        long,
        env = "ASYA_AWS_REGION",
        value_name = "ASYA_AWS_REGION",
        default_value = "us-east-1"
    )]
    pub aws_region: String,
    /// URL of another server than AWS, such as `http://elasticmq:9324`.
    #[arg(long, env = "ASYA_SQS_ENDPOINT", value_name = "ASYA_SQS_ENDPOINT")]
    pub sqs_endpoint: Option<String>,
    /// File with the access key id. It is read for each request. Credentials in the environment (`AWS_ACCESS_KEY_ID`) take precedence.
    #[arg(
        long,
        env = "ASYA_AWS_ACCESS_KEY_ID_FILE",
        value_name = "ASYA_AWS_ACCESS_KEY_ID_FILE",
        requires = "aws_secret_access_key_file"
    )]
    pub aws_access_key_id_file: Option<PathBuf>,
    /// File with the secret access key.
    #[arg(
        long,
        env = "ASYA_AWS_SECRET_ACCESS_KEY_FILE",
        value_name = "ASYA_AWS_SECRET_ACCESS_KEY_FILE",
        requires = "aws_access_key_id_file"
    )]
    pub aws_secret_access_key_file: Option<PathBuf>,
    /// Visibility timeout in seconds, renewed while a message is in progress. 0 means twice ASYA_RUNTIME_TIMEOUT.
    #[arg(long, env = "ASYA_SQS_VISIBILITY_TIMEOUT", value_name = "ASYA_SQS_VISIBILITY_TIMEOUT", default_value = "0",
        value_parser = clap::value_parser!(u32).range(0..=43_200))]
    pub sqs_visibility_timeout: u32,
    /// Time of one long poll in seconds.
    #[arg(long, env = "ASYA_SQS_WAIT_TIME_SECONDS", value_name = "ASYA_SQS_WAIT_TIME_SECONDS", default_value = "20",
        value_parser = clap::value_parser!(u32).range(0..=20))]
    pub sqs_wait_time_seconds: u32,
    /// Largest number of received messages. Higher values are faster with quick handlers, but keep messages from other replicas if
    /// handlers are slow.
    #[arg(long, env = "ASYA_SQS_PREFETCH", value_name = "ASYA_SQS_PREFETCH", default_value = "1",
        value_parser = clap::value_parser!(u16).range(1..))]
    pub sqs_prefetch: u16,
}

/// Omits the password.
impl fmt::Debug for RabbitMqArgs {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut shown = formatter.debug_struct("RabbitMqArgs");
        match &self.rabbitmq_url {
            Some(uri) => shown
                .field("host", &uri.authority.host)
                .field("port", &uri.authority.port),
            None => shown
                .field("host", &self.rabbitmq_host)
                .field("port", &self.rabbitmq_port),
        };
        shown.field("exchange", &self.rabbitmq_exchange).finish_non_exhaustive()
    }
}

impl Config {
    /// Reads the options.
    ///
    /// # Errors
    /// If an option is invalid. The message does not contain the URL of RabbitMQ, which can contain a password.
    pub fn read(line: impl IntoIterator<Item = OsString>) -> Result<Self, clap::Error> {
        Self::try_parse_from(line).map_err(|mut error| {
            let about = error.get(ContextKind::InvalidArg).map(ToString::to_string);
            if about.is_some_and(|argument| argument.contains("rabbitmq-url")) {
                error.insert(ContextKind::InvalidValue, ContextValue::String("(redacted)".to_owned()));
            }
            error
        })
    }

    /// Names of this actor and of the end actors.
    pub fn actor(&self) -> Actor {
        Actor {
            name: self.actor_name.clone(),
            happy_end: self.actor_happy_end.clone(),
            error_end: self.actor_error_end.clone(),
            is_end: self.is_end_actor,
        }
    }

    /// Limits and retries.
    pub fn policy(&self) -> Policy {
        Policy {
            timeout: self.runtime_timeout,
            max_bytes: usize::try_from(self.max_frame_bytes).unwrap_or(usize::MAX),
            max_attempts: self.retry_max_attempts,
            max_crashes: self.runtime_max_crashes,
            max_deliveries: self.most_deliveries(),
            backoff: self.retry_backoff,
            max_backoff: self.retry_max_backoff,
        }
    }

    /// Largest number of deliveries. The first one can have waited for others until the sidecar ended, so alone it proves no attempt.
    fn most_deliveries(&self) -> u32 {
        let can_wait = match self.transport {
            BrokerKind::RabbitMq => self.rabbitmq.rabbitmq_prefetch > self.runtime_concurrency,
            BrokerKind::Sqs => self.sqs.sqs_prefetch > self.runtime_concurrency,
        };
        if can_wait && self.max_deliveries == 1 {
            return 2;
        }
        self.max_deliveries
    }

    /// Names of queues.
    pub fn queues(&self) -> Queues {
        Queues::new(self.namespace(), &self.actor_name)
    }

    fn namespace(&self) -> Option<&str> {
        self.namespace.as_deref().filter(|namespace| !namespace.is_empty())
    }

    /// Whether queues also have the names of the public Asya v0.1.
    pub fn has_alias(&self) -> bool {
        self.queue_alias && self.namespace().is_some()
    }

    /// Settings that receive one message at a time from the alias of the queue, and copy none to the tap.
    fn of_alias(&self) -> Option<Self> {
        let mut alias = self.has_alias().then(|| self.clone())?;
        alias.namespace = None;
        alias.runtime_concurrency = 1;
        alias.rabbitmq.rabbitmq_prefetch = 1;
        alias.rabbitmq.rabbitmq_tap_exchange.clear();
        alias.sqs.sqs_prefetch = 1;
        Some(alias)
    }

    /// Address of the runtime.
    pub fn runtime_address(&self) -> Address {
        match &self.socket {
            Some(socket) => Address::parse(socket),
            None => Address::in_folder(&self.socket_dir),
        }
    }

    /// Queues of the ends of routes that this sidecar creates. That of its own actor is none of them.
    fn ends(&self, queues: &Queues) -> Vec<Pair> {
        let ends = [&self.actor_happy_end, &self.actor_error_end].into_iter();
        let others = ends.filter(|end| self.queue_auto_create && **end != self.actor_name);
        others.map(|end| queues.pair(end)).collect()
    }

    /// Settings of RabbitMQ.
    pub fn rabbitmq(&self) -> rabbitmq::Config {
        let args = &self.rabbitmq;
        let uri = args.rabbitmq_url.clone().unwrap_or_else(|| AMQPUri {
            scheme: if args.rabbitmq_tls {
                AMQPScheme::AMQPS
            } else {
                AMQPScheme::AMQP
            },
            authority: AMQPAuthority {
                userinfo: AMQPUserInfo {
                    username: args.rabbitmq_username.clone(),
                    password: args.rabbitmq_password.clone(),
                },
                host: args.rabbitmq_host.clone(),
                port: args.rabbitmq_port,
            },
            vhost: args.rabbitmq_vhost.clone(),
            query: AMQPQueryString::default(),
        });
        let queues = self.queues();
        let queue = queues.of(&self.actor_name);
        // The public gateway publishes with the bare name, which would reach the actors with this name in all namespaces.
        let extra_keys = if self.namespace().is_none() {
            vec![self.actor_name.clone()]
        } else {
            Vec::new()
        };
        let ends = self.ends(&queues);
        rabbitmq::Config {
            uri,
            password_file: args.rabbitmq_password_file.clone(),
            authorities: args.rabbitmq_ca.clone(),
            exchange: args.rabbitmq_exchange.clone(),
            exchange_kind: rabbitmq::ExchangeKind::Topic,
            publish_exchange: Some(args.rabbitmq_publish_exchange.clone()).filter(|exchange| !exchange.is_empty()),
            tap_exchange: args.rabbitmq_tap_exchange.clone(),
            queue,
            dead_letter: queues.dead_letter,
            extra_keys,
            program: "asya-sidecar",
            prefetch: args.rabbitmq_prefetch.max(self.runtime_concurrency),
            at_once: self.runtime_concurrency,
            create_queues: self.queue_auto_create,
            ends,
            // The public Asya, whose queues have no namespace, declares them as classic.
            quorum: self.namespace().is_some(),
            largest: None,
        }
    }

    /// Settings of RabbitMQ for the alias of the queue.
    pub fn rabbitmq_alias(&self) -> Option<rabbitmq::Config> {
        Some(rabbitmq::Config {
            dead_letter: self.queues().dead_letter,
            ends: Vec::new(),
            ..self.of_alias()?.rabbitmq()
        })
    }

    /// Settings of SQS for the alias of the queue.
    pub fn sqs_alias(&self) -> Option<sqs::Config> {
        Some(sqs::Config {
            dead_letter: self.queues().dead_letter,
            ends: Vec::new(),
            ..self.of_alias()?.sqs()
        })
    }

    /// Settings of SQS.
    pub fn sqs(&self) -> sqs::Config {
        let args = &self.sqs;
        let queues = self.queues();
        let visibility = match args.sqs_visibility_timeout {
            0 => self.runtime_timeout.saturating_mul(2),
            seconds => Duration::from_secs(seconds.into()),
        };
        sqs::Config {
            settings: runway_sqs::Settings {
                region: args.aws_region.clone(),
                endpoint: args.sqs_endpoint.clone(),
                credentials: args.credentials(),
            },
            queue: queues.of(&self.actor_name),
            ends: self.ends(&queues),
            dead_letter: queues.dead_letter,
            prefetch: args.sqs_prefetch.max(self.runtime_concurrency),
            at_once: self.runtime_concurrency,
            wait: Duration::from_secs(args.sqs_wait_time_seconds.into()),
            visibility: visibility.clamp(Duration::from_secs(1), sqs::LONGEST_VISIBILITY),
            create_queues: self.queue_auto_create,
        }
    }
}

impl SqsArgs {
    fn credentials(&self) -> runway_sqs::Credentials {
        match (&self.aws_access_key_id_file, &self.aws_secret_access_key_file) {
            (Some(id), Some(key)) => runway_sqs::Credentials::Files {
                id: id.clone(),
                key: key.clone(),
            },
            _ => runway_sqs::Credentials::Found,
        }
    }
}

fn actor_name(text: &str) -> Result<String, &'static str> {
    let is_name = |c: char| c.is_ascii_alphanumeric() || c == '-' || c == '_' || c == '.';
    if text.is_empty() || text.len() > 200 || !text.chars().all(is_name) {
        return Err("use 1 to 200 letters, digits, `-`, `_` or `.`");
    }
    Ok(text.to_owned())
}

/// Parses a log level, including `WARNING` of Python and Go.
fn log_level(text: &str) -> Result<Targets, &'static str> {
    let lower = text.to_ascii_lowercase().replace("warning", "warn");
    lower
        .parse()
        .map_err(|_| "use `error`, `warn`, `info`, `debug` or `trace`")
}

/// Parses a duration in Go's notation, which the operator uses.
fn duration(text: &str) -> Result<Duration, &'static str> {
    const HINT: &str = "use a duration above 0, such as `300s`, `5m` or `1m30s`";
    let parsed: jiff::SignedDuration = text.parse().map_err(|_| HINT)?;
    Duration::try_from(parsed)
        .ok()
        .filter(|duration| !duration.is_zero())
        .ok_or(HINT)
}

/// Parses a URL. The parser's own message contains the URL, which can contain a password.
fn amqp_url(text: &str) -> Result<AMQPUri, &'static str> {
    text.parse()
        .map_err(|_| "use the form `amqp://USER:PASSWORD@HOST:PORT/VHOST`")
}

/// Parses an address, including Go's notation `:8080` for all interfaces.
fn listen_address(text: &str) -> Result<SocketAddr, String> {
    let whole = if text.starts_with(':') {
        format!("0.0.0.0{text}")
    } else {
        text.to_owned()
    };
    whole
        .parse()
        .map_err(|_| "use an address such as `:8080` or `127.0.0.1:8080`".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn config(options: &[&str]) -> Config {
        let line = ["asya-sidecar", "--actor-name", "embed"].iter().chain(options);
        Config::read(line.map(OsString::from)).unwrap()
    }

    #[test]
    fn queue_without_namespace_is_bound_by_the_name_of_the_actor() {
        for options in [&[][..], &["--namespace", ""]] {
            let rabbit = config(options).rabbitmq();
            assert_eq!(
                (&*rabbit.queue, rabbit.extra_keys),
                ("asya-embed", vec!["embed".to_owned()])
            );
        }
        let rabbit = config(&["--namespace", "shop"]).rabbitmq();
        assert_eq!((&*rabbit.queue, rabbit.extra_keys), ("asya-shop_embed", Vec::new()));
    }

    #[test]
    fn keys_of_sqs_are_read_from_files_if_both_are_named() {
        let files = [
            "--aws-access-key-id-file",
            "/id",
            "--aws-secret-access-key-file",
            "/key",
        ];
        assert_eq!(
            config(&files).sqs().settings.credentials,
            runway_sqs::Credentials::Files {
                id: "/id".into(),
                key: "/key".into()
            }
        );
        assert_eq!(config(&[]).sqs().settings.credentials, runway_sqs::Credentials::Found);
        let one = [
            "asya-sidecar",
            "--actor-name",
            "embed",
            "--aws-access-key-id-file",
            "/id",
        ];
        assert!(Config::read(one.map(OsString::from)).is_err());
    }

    #[test]
    fn alias_is_the_queue_of_the_public_asya_with_the_dead_letters_of_the_actor() {
        let settings = [
            "--queue-alias",
            "--runtime-concurrency",
            "8",
            "--rabbitmq-tap-exchange",
            "tap",
        ];
        let alias = |namespace| config(&[&settings[..], &["--namespace", namespace]].concat());
        let rabbit = alias("shop").rabbitmq_alias().unwrap();
        assert_eq!(
            (&*rabbit.queue, rabbit.extra_keys),
            ("asya-embed", vec!["embed".to_owned()])
        );
        assert_eq!(
            (&*rabbit.dead_letter, &*rabbit.tap_exchange),
            ("asya-shop_embed_dlq", "")
        );
        let sqs = alias("shop").sqs_alias().unwrap();
        assert_eq!((&*sqs.queue, &*sqs.dead_letter), ("asya-embed", "asya-shop_embed_dlq"));
        assert_eq!((rabbit.prefetch, sqs.prefetch), (1, 1));
        // The queue has this name itself.
        assert!(!alias("").has_alias() && alias("").rabbitmq_alias().is_none());
        assert!(config(&["--namespace", "shop"]).rabbitmq_alias().is_none());
    }

    #[test]
    fn debug_output_has_no_password() {
        let line = |url: &str| ["asya-sidecar", "--actor-name", "a", "--rabbitmq-url", url].map(OsString::from);
        for wrong in [
            "amqp://app:hunter22@rabbit:port/",
            "http://app:hunter22@rabbit/",
            "app:hunter22@rabbit",
        ] {
            let error = Config::read(line(wrong)).unwrap_err();
            let said = format!("{error} {error:?}");
            assert!(said.contains("--rabbitmq-url"), "{said}");
            assert!(!error.to_string().contains("hunter22"), "{error}");
        }
        let config = Config::read(line("amqp://app:hunter22@rabbit:5672/")).unwrap();
        let shown = format!("{config:?} {:?}", config.rabbitmq());
        assert!(shown.contains("rabbit") && !shown.contains("hunter22"), "{shown}");
    }
}
