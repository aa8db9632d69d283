//! `logs`: what the pods of an object write, one after the other, or all at once while they write it.

use clap::Args;
use jiff::SignedDuration;
use runway_api::name::{Container, Name, Namespace};
use std::cell::RefCell;

use futures::future::join_all;
use futures::{AsyncBufRead, AsyncBufReadExt, pin_mut};
use k8s_openapi::api::core::v1::Pod;
use kube::api::LogParams;
use kube::{Api, ResourceExt};
use runway_client::cluster::Cluster;
use runway_client::diagnostic::{Diagnostic, Level};
use runway_client::pods;
use runway_client::target::{Target, closest, did_you_mean};
use runway_operator::telemetry::chain;

use super::Error;
use crate::answer::Answer;
use crate::terminal::{Terminal, print};

/// Arguments of `logs`.
#[derive(Debug, Args)]
#[expect(clippy::struct_excessive_bools, reason = "each is a switch of the command line")]
pub struct LogsArgs {
    /// Name of the ModelDeployment, or KIND/NAME
    #[arg(value_name = "NAME")]
    pub target: Target,
    /// Namespace; the namespace of the kubeconfig's current context if omitted
    #[arg(short, long)]
    pub namespace: Option<Namespace>,
    /// Name of a single pod
    #[arg(long)]
    pub pod: Option<Name>,
    /// Container; if omitted, the main container, or the init container that blocks it
    #[arg(short, long)]
    pub container: Option<Container>,
    /// All containers
    #[arg(long, conflicts_with = "container")]
    pub all_containers: bool,
    /// Stream the logs
    #[arg(short, long)]
    pub follow: bool,
    /// Print the logs of the previous instance of the container
    #[arg(short, long)]
    pub previous: bool,
    /// Number of recent lines to print
    #[arg(long, value_name = "LINES")]
    pub tail: Option<i64>,
    /// Print only logs newer than this, such as 90s or 2h
    #[arg(long, value_name = "TIME")]
    pub since: Option<SignedDuration>,
    /// Include timestamps
    #[arg(long)]
    pub timestamps: bool,
}

/// A container whose log is read.
struct Voice {
    pod: String,
    container: String,
    /// Prefix of each line.
    prefix: String,
    /// Reason why it may have no output.
    trouble: Option<String>,
}

/// Writes logs to stdout as they come.
///
/// # Errors
/// The pod or container does not exist.
pub async fn logs(args: &LogsArgs, cluster: &Cluster, terminal: &mut Terminal<'_>) -> Result<Answer, Error> {
    let namespace = args.namespace.as_ref().unwrap_or(&cluster.namespace);
    let mut pods = cluster.pods_of(&args.target, namespace).await?;
    if pods.is_empty() {
        return Err(Error::NoPods {
            see: format!("tree {} -n {namespace}", name(&args.target)),
            target: args.target.clone(),
        });
    }
    if let Some(wanted) = &args.pod {
        let known: Vec<String> = pods.iter().map(ResourceExt::name_any).collect();
        pods.retain(|pod| *wanted == pod.name_any().as_str());
        if pods.is_empty() {
            return Err(Error::NoSuchPod {
                target: args.target.clone(),
                pod: wanted.to_string(),
                hint: did_you_mean(closest(wanted, known.iter().map(String::as_str)).as_deref()),
                known: known.join(", "),
            });
        }
    }
    let voices = voices(&pods, args)?;
    let api: Api<Pod> = Api::namespaced(cluster.client(), namespace);
    let said = RefCell::new(Vec::new());
    if args.follow {
        for voice in &voices {
            if let Some(trouble) = &voice.trouble {
                terminal.say(&format!("Pod/{}: {trouble}", voice.pod));
            }
        }
        join_all(voices.iter().map(|voice| listen(&api, voice, args, &said))).await;
    } else {
        for voice in &voices {
            if !listen(&api, voice, args, &said).await {
                break;
            }
        }
    }
    let talk = said.into_inner();
    Ok(Answer {
        failed: talk.iter().any(|d: &Diagnostic| d.level == Level::Error),
        talk,
        ..Answer::default()
    })
}

/// The target as an argument of other verbs.
fn name(target: &Target) -> String {
    match target.kind {
        runway_client::target::Kind::ModelDeployment => target.name.to_string(),
        kind => format!("{}/{}", kind.as_str().to_lowercase(), target.name),
    }
}

/// Containers to read. If there are several, each line has a prefix.
fn voices(pods: &[Pod], args: &LogsArgs) -> Result<Vec<Voice>, Error> {
    let mut voices = Vec::new();
    for pod in pods {
        let chosen = pods::containers(pod, args.container.as_deref(), args.all_containers);
        let chosen = chosen.map_err(|unknown| Error::Usage(unknown.to_string()))?;
        voices.extend(chosen.into_iter().map(|container| Voice {
            pod: pod.name_any(),
            prefix: String::new(),
            container,
            trouble: pods::trouble(pod).map(|trouble| trouble.to_string()),
        }));
    }
    if voices.len() > 1 {
        for voice in &mut voices {
            voice.prefix = format!("[{}/{}] ", voice.pod, voice.container);
        }
    }
    Ok(voices)
}

/// Prints a log. False if stdout is closed.
async fn listen(api: &Api<Pod>, voice: &Voice, args: &LogsArgs, said: &RefCell<Vec<Diagnostic>>) -> bool {
    let params = LogParams {
        container: Some(voice.container.clone()),
        follow: args.follow,
        previous: args.previous,
        tail_lines: args.tail,
        since_seconds: args.since.map(|since| since.as_secs().max(1)),
        timestamps: args.timestamps,
        ..LogParams::default()
    };
    let about = |text: String| Diagnostic::about(Level::Error, format!("Pod/{}", voice.pod), text);
    match api.log_stream(&voice.pod, &params).await {
        Ok(stream) => match copy(stream, &voice.prefix).await {
            Ok(Heard::Nothing) => {
                if let Some(trouble) = &voice.trouble {
                    let text = format!("no output yet: {trouble}");
                    let note = Diagnostic::about(Level::Note, format!("Pod/{}", voice.pod), text);
                    said.borrow_mut().push(note);
                }
                true
            }
            Ok(Heard::Lines) => true,
            Ok(Heard::Enough) => false,
            Err(error) => {
                said.borrow_mut()
                    .push(about(format!("the log stream ended early: {error}")));
                true
            }
        },
        Err(error) => {
            let reason = chain(&error);
            let text = match (&error, &voice.trouble) {
                (kube::Error::Api(_), Some(trouble)) => format!("{reason} ({trouble})"),
                _ => reason,
            };
            said.borrow_mut().push(about(text));
            true
        }
    }
}

/// Result of printing a log.
enum Heard {
    /// The log is empty.
    Nothing,
    /// The log was printed.
    Lines,
    /// Stdout is closed.
    Enough,
}

/// Line by line, as they come.
async fn copy(stream: impl AsyncBufRead, prefix: &str) -> std::io::Result<Heard> {
    pin_mut!(stream);
    let mut heard = Heard::Nothing;
    loop {
        let mut line = prefix.as_bytes().to_vec();
        if stream.read_until(b'\n', &mut line).await? == 0 {
            return Ok(heard);
        }
        heard = Heard::Lines;
        if !line.ends_with(b"\n") {
            line.push(b'\n');
        }
        if !print(&line) {
            return Ok(Heard::Enough);
        }
    }
}
