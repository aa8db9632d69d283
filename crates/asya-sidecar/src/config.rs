//! The environment variables, each an option too. The names are the public Asya's where it has one.

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
use crate::queues::Queues;
use crate::runtime::Address;
use crate::transport::{rabbitmq, sqs};

/// Takes messages from the queue of one actor to its handler runtime and on to the next actor.
#[derive(Clone, Debug, clap::Parser)]
#[command(name = "asya-sidecar", version)]
#[expect(clippy::struct_excessive_bools, reason = "each is a variable of its own")]
pub struct Config {
    /// Name of the actor, as routes have it.
    #[arg(long, env = "ASYA_ACTOR_NAME", value_name = "ASYA_ACTOR_NAME", value_parser = actor_name)]
    pub actor_name: String,
    /// Namespace of the actor; part of its queue's name. Without it queues are named as in the public Asya.
    #[arg(long, env = "ASYA_NAMESPACE", value_name = "ASYA_NAMESPACE")]
    pub namespace: Option<String>,
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
    /// This actor is happy-end or error-end: it takes every message and sends none on.
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
    /// The runtime's socket itself; `@NAME` is an abstract one. Wins over the folder.
    #[arg(long, env = "ASYA_SOCKET", value_name = "ASYA_SOCKET", value_parser = NonEmptyStringValueParser::new())]
    pub socket: Option<String>,
    /// Longest time of one call, as in `300s` or `5m`.
    #[arg(long, env = "ASYA_RUNTIME_TIMEOUT", value_name = "ASYA_RUNTIME_TIMEOUT", default_value = "5m", value_parser = duration)]
    pub runtime_timeout: Duration,
    /// How long to wait for the runtime at the start.
    #[arg(long, env = "ASYA_RUNTIME_READY_TIMEOUT", value_name = "ASYA_RUNTIME_READY_TIMEOUT", default_value = "5m", value_parser = duration)]
    pub runtime_ready_timeout: Duration,
    /// Connections to the runtime: messages it gets at the same time.
    #[arg(long, env = "ASYA_RUNTIME_CONCURRENCY", value_name = "ASYA_RUNTIME_CONCURRENCY", default_value = "1",
        value_parser = clap::value_parser!(u16).range(1..=1024))]
    pub runtime_concurrency: u16,
    /// How often a message is handled when the runtime dies of it.
    #[arg(long, env = "ASYA_RUNTIME_MAX_CRASHES", value_name = "ASYA_RUNTIME_MAX_CRASHES", default_value = "3",
        value_parser = clap::value_parser!(u32).range(1..))]
    pub runtime_max_crashes: u32,
    /// Largest message and largest answer, in bytes.
    #[arg(long, env = "ASYA_MAX_FRAME_BYTES", value_name = "ASYA_MAX_FRAME_BYTES", default_value = "67108864",
        value_parser = clap::value_parser!(u32).range(1024..=2_147_483_647))]
    pub max_frame_bytes: u32,

    /// How often a message is handled when the handler reports an error. 1 is no retry.
    #[arg(long, env = "ASYA_RETRY_MAX_ATTEMPTS", value_name = "ASYA_RETRY_MAX_ATTEMPTS", default_value = "1",
        value_parser = clap::value_parser!(u32).range(1..))]
    pub retry_max_attempts: u32,
    /// Pause before the second attempt; it doubles.
    #[arg(long, env = "ASYA_RETRY_BACKOFF", value_name = "ASYA_RETRY_BACKOFF", default_value = "1s", value_parser = duration)]
    pub retry_backoff: Duration,
    /// Longest pause between attempts.
    #[arg(long, env = "ASYA_RETRY_MAX_BACKOFF", value_name = "ASYA_RETRY_MAX_BACKOFF", default_value = "30s", value_parser = duration)]
    pub retry_max_backoff: Duration,
    /// How often the broker may deliver a message, where it counts (quorum queues, SQS). 0 is without end.
    #[arg(
        long,
        env = "ASYA_MAX_DELIVERIES",
        value_name = "ASYA_MAX_DELIVERIES",
        default_value = "20"
    )]
    pub max_deliveries: u32,
    /// At SIGTERM: how long messages under way may take before they go back to the queue.
    #[arg(long, env = "ASYA_DRAIN_TIMEOUT", value_name = "ASYA_DRAIN_TIMEOUT", default_value = "25s", value_parser = duration)]
    pub drain_timeout: Duration,

    /// Which broker.
    #[arg(
        long,
        env = "ASYA_TRANSPORT",
        value_name = "ASYA_TRANSPORT",
        default_value = "rabbitmq"
    )]
    pub transport: Kind,
    /// Make our queue and its dead-letter queue when they are missing.
    #[arg(long, env = "ASYA_QUEUE_AUTO_CREATE", value_name = "ASYA_QUEUE_AUTO_CREATE", default_value = "true",
        action = clap::ArgAction::Set, value_parser = BoolishValueParser::new())]
    pub queue_auto_create: bool,
    /// Options of RabbitMQ.
    #[command(flatten)]
    pub rabbitmq: RabbitMqArgs,
    /// Options of SQS.
    #[command(flatten)]
    pub sqs: SqsArgs,

    /// Where `/metrics`, `/healthz` and `/readyz` are served; `:8080` is every address.
    #[arg(long, env = "ASYA_METRICS_ADDR", value_name = "ASYA_METRICS_ADDR", default_value = ":8080", value_parser = listen_address)]
    pub metrics_addr: SocketAddr,
    /// Serve metrics and probes at all.
    #[arg(long, env = "ASYA_METRICS_ENABLED", value_name = "ASYA_METRICS_ENABLED", default_value = "true",
        action = clap::ArgAction::Set, value_parser = BoolishValueParser::new())]
    pub metrics_enabled: bool,
    /// What the names of metrics begin with.
    #[arg(
        long,
        env = "ASYA_METRICS_NAMESPACE",
        value_name = "ASYA_METRICS_NAMESPACE",
        default_value = "asya_actor"
    )]
    pub metrics_namespace: String,
    /// What to log: `error`, `warn`, `info`, `debug` or `trace`. Payloads are never logged.
    #[arg(long, env = "ASYA_LOG_LEVEL", value_name = "ASYA_LOG_LEVEL", default_value = "info", value_parser = log_level)]
    pub log_level: Targets,
    /// Log as JSON, one object a line.
    #[arg(long, env = "ASYA_LOG_JSON", value_name = "ASYA_LOG_JSON", default_value = "false",
        num_args = 0..=1, default_missing_value = "true", value_parser = BoolishValueParser::new())]
    pub log_json: bool,
}

/// The brokers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Kind {
    /// RabbitMQ.
    #[value(name = "rabbitmq")]
    RabbitMq,
    /// Amazon SQS. Credentials are found as AWS' own clients find them.
    #[value(name = "sqs")]
    Sqs,
}

/// Options of RabbitMQ.
#[derive(Clone, clap::Args)]
pub struct RabbitMqArgs {
    /// Everything in one: `amqp[s]://user:password@host:port/vhost`. Wins over the parts.
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
    /// Virtual host.
    #[arg(
        long,
        env = "ASYA_RABBITMQ_VHOST",
        value_name = "ASYA_RABBITMQ_VHOST",
        default_value = "/"
    )]
    pub rabbitmq_vhost: String,
    /// Topic exchange everything is published to; empty is the default exchange.
    #[arg(
        long,
        env = "ASYA_RABBITMQ_EXCHANGE",
        value_name = "ASYA_RABBITMQ_EXCHANGE",
        default_value = "asya"
    )]
    pub rabbitmq_exchange: String,
    /// Messages taken ahead. More is faster with quick handlers; with slow ones it keeps work from other replicas.
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
    /// Another server than AWS, such as `http://elasticmq:9324`.
    #[arg(long, env = "ASYA_SQS_ENDPOINT", value_name = "ASYA_SQS_ENDPOINT")]
    pub sqs_endpoint: Option<String>,
    /// Seconds a message stays hidden after its sidecar has died; while one works on it, it stays hidden. 0 is twice ASYA_RUNTIME_TIMEOUT.
    #[arg(long, env = "ASYA_SQS_VISIBILITY_TIMEOUT", value_name = "ASYA_SQS_VISIBILITY_TIMEOUT", default_value = "0",
        value_parser = clap::value_parser!(u32).range(0..=43_200))]
    pub sqs_visibility_timeout: u32,
    /// Seconds one request waits for messages.
    #[arg(long, env = "ASYA_SQS_WAIT_TIME_SECONDS", value_name = "ASYA_SQS_WAIT_TIME_SECONDS", default_value = "20",
        value_parser = clap::value_parser!(u32).range(0..=20))]
    pub sqs_wait_time_seconds: u32,
    /// Messages held at a time. More is faster with quick handlers; with slow ones it keeps work from other replicas.
    #[arg(long, env = "ASYA_SQS_PREFETCH", value_name = "ASYA_SQS_PREFETCH", default_value = "1",
        value_parser = clap::value_parser!(u16).range(1..))]
    pub sqs_prefetch: u16,
}

/// Without the password.
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
    /// When an option is wrong. A URL of RabbitMQ is not repeated: it may hold a password.
    pub fn read(line: impl IntoIterator<Item = OsString>) -> Result<Self, clap::Error> {
        Self::try_parse_from(line).map_err(|mut error| {
            let about = error.get(ContextKind::InvalidArg).map(ToString::to_string);
            if about.is_some_and(|argument| argument.contains("rabbitmq-url")) {
                error.insert(ContextKind::InvalidValue, ContextValue::String("(redacted)".to_owned()));
            }
            error
        })
    }

    /// Who we are.
    pub fn actor(&self) -> Actor {
        Actor {
            name: self.actor_name.clone(),
            happy_end: self.actor_happy_end.clone(),
            error_end: self.actor_error_end.clone(),
            is_end: self.is_end_actor,
        }
    }

    /// What is allowed.
    pub fn policy(&self) -> Policy {
        Policy {
            timeout: self.runtime_timeout,
            max_bytes: usize::try_from(self.max_frame_bytes).unwrap_or(usize::MAX),
            max_attempts: self.retry_max_attempts,
            max_crashes: self.runtime_max_crashes,
            max_deliveries: self.max_deliveries,
            backoff: self.retry_backoff,
            max_backoff: self.retry_max_backoff,
        }
    }

    /// Names of queues.
    pub fn queues(&self) -> Queues {
        let namespace = self.namespace.as_deref().filter(|namespace| !namespace.is_empty());
        Queues::new(namespace, &self.actor_name)
    }

    /// Where the runtime is.
    pub fn runtime_address(&self) -> Address {
        match &self.socket {
            Some(socket) => Address::parse(socket),
            None => Address::in_folder(&self.socket_dir),
        }
    }

    /// How to reach RabbitMQ.
    pub fn rabbitmq(&self) -> rabbitmq::Config {
        let args = &self.rabbitmq;
        let uri = args.rabbitmq_url.clone().unwrap_or_else(|| AMQPUri {
            scheme: AMQPScheme::AMQP,
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
        // The public gateway publishes with the bare name. Among namespaces that would reach all actors of the name.
        let extra_keys = if self.namespace.is_none() {
            vec![self.actor_name.clone()]
        } else {
            Vec::new()
        };
        rabbitmq::Config {
            uri,
            exchange: args.rabbitmq_exchange.clone(),
            queue,
            dead_letter: queues.dead_letter,
            extra_keys,
            prefetch: args.rabbitmq_prefetch,
            create_queues: self.queue_auto_create,
        }
    }

    /// How to reach SQS.
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
                credentials: runway_sqs::Credentials::Found,
            },
            queue: queues.of(&self.actor_name),
            dead_letter: queues.dead_letter,
            prefetch: args.sqs_prefetch,
            wait: Duration::from_secs(args.sqs_wait_time_seconds.into()),
            visibility: visibility.clamp(Duration::from_secs(1), LONGEST_VISIBILITY),
            create_queues: self.queue_auto_create,
        }
    }
}

/// SQS keeps nothing hidden for longer: 12 hours.
const LONGEST_VISIBILITY: Duration = Duration::from_hours(12);

fn actor_name(text: &str) -> Result<String, &'static str> {
    let is_name = |c: char| c.is_ascii_alphanumeric() || c == '-' || c == '_' || c == '.';
    if text.is_empty() || text.len() > 200 || !text.chars().all(is_name) {
        return Err("an actor's name has 1 to 200 letters, digits, `-`, `_` or `.`");
    }
    Ok(text.to_owned())
}

/// Python and Go write `WARNING` where Rust has `warn`.
fn log_level(text: &str) -> Result<Targets, &'static str> {
    let lower = text.to_ascii_lowercase().replace("warning", "warn");
    lower
        .parse()
        .map_err(|_| "a level is wanted: `error`, `warn`, `info`, `debug` or `trace`")
}

/// As Go writes durations, which is how the operator does.
fn duration(text: &str) -> Result<Duration, &'static str> {
    const HINT: &str = "a duration above 0 is wanted, as in `300s`, `5m` or `1m30s`";
    let parsed: jiff::SignedDuration = text.parse().map_err(|_| HINT)?;
    Duration::try_from(parsed)
        .ok()
        .filter(|duration| !duration.is_zero())
        .ok_or(HINT)
}

/// The parser's own message repeats the URL, which may hold a password.
fn amqp_url(text: &str) -> Result<AMQPUri, &'static str> {
    text.parse()
        .map_err(|_| "the URL must have the form `amqp://USER:PASSWORD@HOST:PORT/VHOST`")
}

/// `:8080` is how Go writes every address.
fn listen_address(text: &str) -> Result<SocketAddr, String> {
    let whole = if text.starts_with(':') {
        format!("0.0.0.0{text}")
    } else {
        text.to_owned()
    };
    whole
        .parse()
        .map_err(|_| "an address is wanted, as in `:8080` or `127.0.0.1:8080`".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_password_is_not_shown() {
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
