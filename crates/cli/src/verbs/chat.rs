//! `chat`: a talk with a model through the API server's proxy, so that no port has to be forwarded. Words are shown as they
//! come: the answer on stdout, reasoning and calls of tools on stderr.

use clap::Args;
use runway_api::name::{Name, Namespace};
use std::io::{self, IsTerminal};

use futures::{TryStreamExt, pin_mut};
use runway_api::{ModelDeployment, Phase};
use runway_client::chat::{Message, Options, Part};
use runway_client::cluster::Cluster;
use runway_client::endpoint;
use runway_client::talk::Talk;
use runway_client::target::name_of;
use runway_client::text::{Look, visible};

use super::Error;
use crate::answer::Answer;
use crate::terminal::{Terminal, print};

/// Arguments of `chat`.
#[derive(Debug, Args)]
pub struct ChatArgs {
    /// Name of the ModelDeployment
    #[arg(value_parser = name_of::<ModelDeployment>)]
    pub name: Name,
    /// Prompt; read from standard input if omitted, or an interactive chat on a terminal
    pub prompt: Option<String>,
    /// Namespace; the namespace of the kubeconfig's current context if omitted
    #[arg(short, long)]
    pub namespace: Option<Namespace>,
    /// System prompt
    #[arg(long, value_name = "TEXT")]
    pub system: Option<String>,
    /// Name of the model in API requests; requested from the server if omitted
    #[arg(long)]
    pub model: Option<String>,
    /// Maximum tokens per answer
    #[arg(long, value_name = "NUMBER")]
    pub max_tokens: Option<u32>,
    /// Sampling temperature; 0 is deterministic
    #[arg(long, value_name = "NUMBER")]
    pub temperature: Option<f64>,
}

/// Sends one prompt, or on a terminal chats until the end of the input. `look` is that of stderr.
///
/// # Errors
/// The model has no endpoint, cannot be reached, or rejects the request.
pub async fn chat(
    args: &ChatArgs,
    cluster: &Cluster,
    terminal: &mut Terminal<'_>,
    look: Look,
) -> Result<Answer, Error> {
    let namespace = args.namespace.as_ref().unwrap_or(&cluster.namespace);
    let md = cluster.deployment(namespace, &args.name).await?;
    let access = endpoint::access(&md).ok_or_else(|| Error::no_endpoint(&md))?;
    if !access.serves {
        let phase = md.status.as_ref().and_then(|status| status.phase);
        let phase = phase.map_or("without status", Phase::as_str);
        terminal.say(&format!("note: {} is {phase} and may not answer", args.name));
    }
    let talk = Talk::begin(cluster, access, args.model.clone()).await?;
    let options = Options {
        max_tokens: args.max_tokens,
        temperature: args.temperature,
    };
    let system = args.system.iter().map(|text| message("system", text));
    let mut messages: Vec<Message> = system.collect();
    if let Some(prompt) = &args.prompt {
        messages.push(message("user", prompt));
        answer(&talk, &messages, &options, terminal, look).await?;
    } else if io::stdin().is_terminal() {
        terminal.say(&format!(
            "Chatting with {}; an empty line or Ctrl-D ends the chat",
            talk.model
        ));
        while let Some(line) = terminal.line("> ").filter(|line| !line.is_empty()) {
            messages.push(message("user", &line));
            let Some(answer) = answer(&talk, &messages, &options, terminal, look).await? else {
                break;
            };
            messages.push(message("assistant", &answer));
        }
    } else {
        let mut prompt = String::new();
        let read = terminal.stdin.read_to_string(&mut prompt);
        read.map_err(|e| Error::Usage(format!("cannot read the prompt from standard input: {e}")))?;
        messages.push(message("user", prompt.trim_end()));
        answer(&talk, &messages, &options, terminal, look).await?;
    }
    Ok(Answer::default())
}

/// Streams an answer to stdout and returns it; `None` if stdout is closed.
async fn answer(
    talk: &Talk<'_>,
    messages: &[Message],
    options: &Options,
    terminal: &mut Terminal<'_>,
    look: Look,
) -> Result<Option<String>, Error> {
    let parts = talk.answer(messages, options).await?;
    pin_mut!(parts);
    let (mut answer, mut notes) = (String::new(), Vec::new());
    // Whether the last words are on stderr.
    let mut aside = false;
    while let Some(part) = parts.try_next().await? {
        match part {
            Part::Text(text) => {
                if std::mem::take(&mut aside) {
                    terminal.say("");
                }
                answer.push_str(&text);
                if !print(visible(&text).as_bytes()) {
                    return Ok(None);
                }
            }
            Part::Reasoning(text) | Part::ToolCall(text) => {
                if !std::mem::replace(&mut aside, true) && !answer.is_empty() {
                    terminal.say("");
                }
                terminal.write(&look.faint(&visible(&text)));
            }
            Part::Note(note) => notes.push(note),
        }
    }
    if aside {
        terminal.say("");
    }
    let printed = answer.is_empty() || print(b"\n");
    for note in notes {
        terminal.say(&format!("note: {}", visible(&note)));
    }
    Ok(printed.then_some(answer))
}

fn message(role: &'static str, content: &str) -> Message {
    Message {
        role,
        content: content.to_owned(),
    }
}
