//! `asya`: messages, dead letters and jobs of AsyncActors, through asya-gateway.

use std::time::Duration;

use clap::{Args, Subcommand};
use http::HeaderName;
use jiff::SignedDuration;
use kube::ResourceExt as _;
use runway_api::{AsyncActor, Name, Namespace};
use runway_client::asya_gateway::AsyaGateway;
use runway_client::cluster::Cluster;
use runway_client::diagnostic::{Diagnostic, Level};
use runway_client::messages::{self, Job};
use runway_client::proxied::{ASYA_GATEWAY, Place, Proxied, Question};
use runway_client::target::name_of;
use runway_client::text::{self, Format};
use runway_operator::client::ClientArgs;
use runway_operator::clock;
use serde_json::Value;
use tokio::time::Instant;

use super::Error;
use crate::answer::{self, Answer};
use crate::terminal::Terminal;

/// Longest wait that one request to the gateway asks for.
const LONGEST_WAIT: Duration = Duration::from_mins(1);

/// Subcommands of `asya`.
#[derive(Debug, Subcommand)]
pub enum AsyaCommand {
    /// Show numbers of messages: waiting, running, dead
    ///
    /// Requires permission to get asyncactors/queue, and to list AsyncActors unless NAME is given. A number that the broker does not
    /// report is shown as -.
    Queue(QueueArgs),
    /// List, show, redrive or delete dead letters
    #[command(subcommand)]
    Dlq(DlqCommand),
    /// Submit a job to an actor, and print its ID or its result
    ///
    /// The payload is JSON. Requires permission to create asyncactors/messages.
    Send(SendArgs),
    /// Print the result of a job
    ///
    /// Only the user who submitted a job can read it.
    Result(ResultArgs),
}

/// Subcommands of `asya dlq`.
#[derive(Debug, Subcommand)]
pub enum DlqCommand {
    /// List dead letters of an actor
    ///
    /// Requires permission to get asyncactors/dlq.
    List(ListArgs),
    /// Print a dead letter with its headers
    ///
    /// Requires permission to get asyncactors/dlq.
    Show(ShowArgs),
    /// Send dead letters to the queue of their actor again
    ///
    /// A dead letter is deleted after the broker has confirmed its message. If the command or the gateway is interrupted, one message
    /// can be in both queues. Requires permission to update asyncactors/dlq.
    Redrive(ChooseArgs),
    /// Delete dead letters
    ///
    /// Requires permission to delete asyncactors/dlq.
    Drop(DropArgs),
}

/// The gateway, and the namespace of the actors.
#[derive(Debug, Args)]
pub struct GatewayArgs {
    /// Namespace; the namespace of the kubeconfig's current context if omitted
    #[arg(short, long)]
    pub namespace: Option<Namespace>,
    /// Service of asya-gateway
    #[arg(long, value_name = "NAMESPACE/SERVICE", default_value = ASYA_GATEWAY.place)]
    pub gateway: Place,
    /// Token for asya-gateway; the token of the kubeconfig's user if omitted
    #[arg(long, value_name = "TOKEN", env = "ASYA_GATEWAY_TOKEN", hide_env_values = true)]
    pub token: Option<String>,
}

/// Arguments of `asya queue`.
#[derive(Debug, Args)]
pub struct QueueArgs {
    /// Name of the AsyncActor; all of the namespace if omitted
    #[arg(value_parser = name_of::<AsyncActor>)]
    pub name: Option<Name>,
    /// The gateway.
    #[command(flatten)]
    pub gateway: GatewayArgs,
    /// Output format
    #[arg(short, long, value_enum)]
    pub output: Option<Format>,
}

/// Arguments of `asya dlq list`.
#[derive(Debug, Args)]
pub struct ListArgs {
    /// Name of the AsyncActor
    #[arg(value_parser = name_of::<AsyncActor>)]
    pub name: Name,
    /// Maximum number of dead letters
    #[arg(long, value_name = "N", default_value_t = 100, value_parser = clap::value_parser!(u32).range(1..=1000))]
    pub limit: u32,
    /// The gateway.
    #[command(flatten)]
    pub gateway: GatewayArgs,
    /// Output format
    #[arg(short, long, value_enum)]
    pub output: Option<Format>,
}

/// Arguments of `asya dlq show`.
#[derive(Debug, Args)]
pub struct ShowArgs {
    /// Name of the AsyncActor
    #[arg(value_parser = name_of::<AsyncActor>)]
    pub name: Name,
    /// ID of the dead letter
    pub id: String,
    /// The gateway.
    #[command(flatten)]
    pub gateway: GatewayArgs,
    /// Output format
    #[arg(short, long, value_enum, default_value = "json")]
    pub output: Format,
}

/// Arguments of `asya dlq redrive`.
#[derive(Debug, Args)]
pub struct ChooseArgs {
    /// Name of the AsyncActor
    #[arg(value_parser = name_of::<AsyncActor>)]
    pub name: Name,
    /// IDs of the dead letters
    #[arg(value_name = "ID", required_unless_present = "all", conflicts_with = "all")]
    pub ids: Vec<String>,
    /// Select all dead letters that are in the queue now
    #[arg(long)]
    pub all: bool,
    /// The gateway.
    #[command(flatten)]
    pub gateway: GatewayArgs,
}

/// Arguments of `asya dlq drop`.
#[derive(Debug, Args)]
pub struct DropArgs {
    /// Dead letters.
    #[command(flatten)]
    pub chosen: ChooseArgs,
    /// Skip the confirmation
    #[arg(short, long)]
    pub yes: bool,
}

/// Arguments of `asya send`.
#[derive(Debug, Args)]
pub struct SendArgs {
    /// Name of the AsyncActor
    #[arg(value_parser = name_of::<AsyncActor>)]
    pub name: Name,
    /// Payload as JSON; read from standard input if omitted
    pub payload: Option<String>,
    /// Further actors of the route, separated by commas
    #[arg(long, value_name = "NAME", value_delimiter = ',')]
    pub route: Vec<Name>,
    /// Time that the actors have, such as 90s or 2h; the gateway's default if omitted
    #[arg(long, value_name = "TIME")]
    pub timeout: Option<SignedDuration>,
    /// Wait this long for the result, such as 30s, and print it
    #[arg(long, value_name = "TIME")]
    pub wait: Option<SignedDuration>,
    /// The gateway.
    #[command(flatten)]
    pub gateway: GatewayArgs,
}

/// Arguments of `asya result`.
#[derive(Debug, Args)]
pub struct ResultArgs {
    /// ID of the job
    pub id: String,
    /// Wait this long for the result, such as 30s
    #[arg(long, value_name = "TIME")]
    pub wait: Option<SignedDuration>,
    /// The gateway.
    #[command(flatten)]
    pub gateway: GatewayArgs,
    /// Output format of the whole job; only its result if omitted
    #[arg(short, long, value_enum)]
    pub output: Option<Format>,
}

/// Runs a subcommand.
///
/// # Errors
/// The gateway cannot be reached or rejects the request, or the job has failed or no result.
pub async fn asya(
    command: &AsyaCommand,
    client: &ClientArgs,
    cluster: &Cluster,
    terminal: &mut Terminal<'_>,
) -> Result<Answer, answer::Error> {
    let args = match command {
        AsyaCommand::Queue(args) => &args.gateway,
        AsyaCommand::Dlq(DlqCommand::List(args)) => &args.gateway,
        AsyaCommand::Dlq(DlqCommand::Show(args)) => &args.gateway,
        AsyaCommand::Dlq(DlqCommand::Redrive(args)) => &args.gateway,
        AsyaCommand::Dlq(DlqCommand::Drop(args)) => &args.chosen.gateway,
        AsyaCommand::Send(args) => &args.gateway,
        AsyaCommand::Result(args) => &args.gateway,
    };
    let gateway = Proxied::of(&ASYA_GATEWAY, cluster, client, &args.gateway, args.token.as_deref())
        .await
        .map_err(Error::from)?;
    let here = Here {
        namespace: args.namespace.as_ref().unwrap_or(&cluster.namespace),
        cluster,
        gateway: AsyaGateway(gateway),
    };
    match command {
        AsyaCommand::Queue(args) => here.queue(args).await,
        AsyaCommand::Dlq(DlqCommand::List(args)) => here.list(args).await,
        AsyaCommand::Dlq(DlqCommand::Show(args)) => here.show(args).await,
        AsyaCommand::Dlq(DlqCommand::Redrive(args)) => Ok(here.process(args, "redrive", "redriven").await?),
        AsyaCommand::Dlq(DlqCommand::Drop(args)) => {
            let of = match args.chosen.ids.len() {
                0 => "all dead letters".to_owned(),
                count => counted(count as u64),
            };
            if !args.yes && !terminal.ask(&format!("Delete {of} of actor '{}'?", args.chosen.name)) {
                return Err(Error::NotConfirmed.into());
            }
            Ok(here.process(&args.chosen, "drop", "deleted").await?)
        }
        AsyaCommand::Send(args) => Ok(here.send(args, terminal).await?),
        AsyaCommand::Result(args) => here.result(args).await,
    }
}

/// A gateway, and the namespace of the actors.
struct Here<'a> {
    cluster: &'a Cluster,
    gateway: AsyaGateway<'a>,
    namespace: &'a Namespace,
}

impl Here<'_> {
    async fn queue(&self, args: &QueueArgs) -> Result<Answer, answer::Error> {
        let names = match &args.name {
            Some(name) => vec![name.clone()],
            None => self.actors().await?,
        };
        let mut all = Vec::new();
        for name in &names {
            all.push(self.gateway.numbers(self.namespace, name).await.map_err(Error::from)?);
        }
        let data = match args.output {
            Some(format) if args.name.is_some() => text::documents(&all, format)?,
            Some(format) => text::list(&all, format)?,
            None if all.is_empty() => String::new(),
            None => messages::numbers(&all),
        };
        let none = format!("no AsyncActors found in namespace '{}'", self.namespace);
        let talk = all.is_empty().then(|| note(none));
        Ok(Answer::new(data, talk.into_iter().collect()))
    }

    async fn actors(&self) -> Result<Vec<Name>, Error> {
        let actors: Vec<AsyncActor> = self.cluster.typed(self.namespace).await?;
        let names = actors.iter().map(|actor| actor.name_any().parse());
        Ok(names
            .collect::<Result<_, _>>()
            .map_err(runway_client::cluster::Error::from)?)
    }

    async fn list(&self, args: &ListArgs) -> Result<Answer, answer::Error> {
        let listed = self.gateway.dead_letters(self.namespace, &args.name, args.limit);
        let found = listed.await.map_err(Error::from)?;
        let data = match args.output {
            Some(format) => text::list(&found.items, format)?,
            None if found.items.is_empty() => String::new(),
            None => messages::dead_letters(&found.items, clock::now()),
        };
        let shown = found.items.len();
        let said = match found.count {
            _ if shown == 0 => Some(format!("actor '{}' has no dead letters", args.name)),
            count if count > shown as u64 => Some(format!(
                "{shown} of {count} dead letters are shown: to see more, use --limit"
            )),
            _ => None,
        };
        Ok(Answer::new(data, said.map(note).into_iter().collect()))
    }

    async fn show(&self, args: &ShowArgs) -> Result<Answer, answer::Error> {
        let letter = self.gateway.dead_letter(self.namespace, &args.name, &args.id).await;
        let data = text::documents(&[letter.map_err(Error::from)?], args.output)?;
        Ok(Answer::new(data, Vec::new()))
    }

    /// Redrives or deletes dead letters: `verb` at the gateway, `done` in the message.
    async fn process(&self, args: &ChooseArgs, verb: &str, done: &str) -> Result<Answer, Error> {
        let ids = (!args.all).then_some(args.ids.as_slice());
        let result = self.gateway.process(verb, self.namespace, &args.name, ids).await?;
        let left = result.left();
        let said = |text| Diagnostic::about(Level::Error, format!("AsyncActor/{}", args.name), text);
        let missing = result.missing.iter().map(|id| format!("dead letter '{id}' not found"));
        let left = (args.all && left > 0).then(|| {
            format!(
                "{} not {done}: larger than asya-gateway reads (--largest-result), or in use",
                counted(left)
            )
        });
        let talk = missing.chain(left).map(said).collect();
        let data = format!("{} of actor '{}' {done}\n", counted(result.processed), args.name);
        Ok(Answer::new(data, talk))
    }

    async fn send(&self, args: &SendArgs, terminal: &mut Terminal<'_>) -> Result<Answer, Error> {
        let payload = if let Some(payload) = &args.payload {
            payload.clone()
        } else {
            let mut payload = String::new();
            let read = terminal.stdin.read_to_string(&mut payload);
            read.map_err(|e| Error::Usage(format!("cannot read the payload from standard input: {e}")))?;
            payload
        };
        let mut headers = Vec::new();
        if !args.route.is_empty() {
            let route: Vec<&str> = args.route.iter().map(|name| &**name).collect();
            headers.push((HeaderName::from_static("asya-route"), route.join(",")));
        }
        if let Some(timeout) = args.timeout {
            headers.push((
                HeaderName::from_static("asya-timeout"),
                format!("{}s", timeout.as_secs()),
            ));
        }
        let question = Question {
            doing: format!("submit a job to actor '{}'", args.name),
            path: format!("/v1/{}/{}", self.namespace, args.name),
            headers: &headers,
            body: Some(payload.into_bytes()),
        };
        let (job, _): (Job, _) = self.gateway.0.ask(question).await?;
        let Some(wait) = args.wait else {
            terminal.say(&format!(
                "job submitted: to get its result, run: kubeairunway asya result {}",
                job.id
            ));
            return Ok(Answer::new(job.id + "\n", Vec::new()));
        };
        let (job, _) = self.job(&job.id, Some(wait)).await?;
        finished(&job)
    }

    async fn result(&self, args: &ResultArgs) -> Result<Answer, answer::Error> {
        let (job, text) = self.job(&args.id, args.wait).await?;
        let Some(format) = args.output else {
            return Ok(finished(&job)?);
        };
        let whole: Value = serde_json::from_str(&text).unwrap_or_default();
        Ok(Answer::new(text::documents(&[whole], format)?, Vec::new()))
    }

    /// A job, when it has ended or the time to wait is over.
    async fn job(&self, id: &str, wait: Option<SignedDuration>) -> Result<(Job, String), Error> {
        if id.is_empty() || !id.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'-') {
            return Err(Error::Usage(format!(
                "invalid job ID '{}': use letters, digits and '-'",
                text::cell(id)
            )));
        }
        let end = wait.map(|wait| Instant::now() + wait.unsigned_abs());
        loop {
            let left = end.map(|end| end.saturating_duration_since(Instant::now()).min(LONGEST_WAIT));
            let prefer = left.map(|left| (HeaderName::from_static("prefer"), format!("wait={}", left.as_secs())));
            let question = Question {
                doing: format!("read job {id}"),
                path: format!("/jobs/{id}"),
                headers: prefer.as_slice(),
                body: None,
            };
            let (job, text): (Job, _) = self.gateway.0.ask(question).await?;
            // Less than a second is not waited for.
            if job.is_final() || left.is_none_or(|left| left.as_secs() == 0) {
                return Ok((job, text));
            }
        }
    }
}

/// The result of a job that has one.
fn finished(job: &Job) -> Result<Answer, Error> {
    if !job.is_final() {
        return Err(Error::NoResult {
            id: job.id.clone(),
            status: text::cell(&job.status),
        });
    }
    if !job.has_succeeded() {
        return Err(Error::JobFailed {
            id: job.id.clone(),
            message: job.failure(),
        });
    }
    // A handler that returns nothing has the result null.
    let result = job.result.as_ref().map_or("null", |result| result.get());
    Ok(Answer::new(format!("{result}\n"), Vec::new()))
}

fn note(text: String) -> Diagnostic {
    Diagnostic {
        level: Level::Note,
        subject: None,
        text,
    }
}

fn counted(count: u64) -> String {
    let plural = if count == 1 { "" } else { "s" };
    format!("{count} dead letter{plural}")
}
