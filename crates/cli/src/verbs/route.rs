//! `route`: the replica that the model router would choose for a prompt, and why.

use std::collections::BTreeMap;
use std::fs;
use std::path::PathBuf;

use clap::Args;
use runway_api::choice::{Choice, Version};
use runway_api::{ModelDeployment, Name, Namespace};
use runway_client::cluster::Cluster;
use runway_client::proxied::{Place, Proxied, ROUTER};
use runway_client::router;
use runway_client::target::name_of;
use runway_client::text::{self, Format};
use runway_operator::client::ClientArgs;
use serde_json::value::{RawValue, to_raw_value};

use super::Error;
use crate::answer::{self, Answer};

/// Arguments of `route`.
#[derive(Debug, Args)]
pub struct RouteArgs {
    /// Name of the ModelDeployment
    #[arg(value_parser = name_of::<ModelDeployment>)]
    pub name: Name,
    /// Namespace; the namespace of the kubeconfig's current context if omitted
    #[arg(short, long)]
    pub namespace: Option<Namespace>,
    /// Prompt, as one message of a user
    #[arg(long, value_name = "TEXT", default_value = "", hide_default_value = true)]
    pub prompt: String,
    /// File with the body of a chat, as a client sends it, instead of a prompt
    #[arg(long, value_name = "FILE", conflicts_with = "prompt")]
    pub body: Option<PathBuf>,
    /// Service of the model router
    #[arg(long, value_name = "NAMESPACE/SERVICE", default_value = ROUTER.place)]
    pub router: Place,
    /// Token for the model router; the token of the kubeconfig's user if omitted
    #[arg(
        long,
        value_name = "TOKEN",
        env = "KUBEAIRUNWAY_ROUTER_TOKEN",
        hide_env_values = true
    )]
    pub token: Option<String>,
    /// Output format; a table if omitted
    #[arg(short, long, value_enum)]
    pub output: Option<Format>,
}

/// Asks the router.
///
/// # Errors
/// The router cannot be reached, or the user may not see the replicas of the model.
pub async fn route(args: &RouteArgs, client: &ClientArgs, cluster: &Cluster) -> Result<Answer, answer::Error> {
    let namespace = args.namespace.as_ref().unwrap_or(&cluster.namespace);
    let model = format!("{namespace}/{}", args.name);
    let body = match &args.body {
        Some(file) => {
            let unread = |reason: String| Error::Usage(format!("cannot read --body {}: {reason}", file.display()));
            let text = fs::read(file).map_err(|error| unread(error.to_string()))?;
            named(&text, &model).map_err(|error| unread(format!("it is not a JSON object: {error}")))?
        }
        None => router::chat(&model, &args.prompt).map_err(text::Error::from)?,
    };
    let proxied = Proxied::of(&ROUTER, cluster, client, &args.router, args.token.as_deref()).await;
    let asked = router::explain(&proxied.map_err(Error::from)?, &model, body).await;
    let choice = asked.map_err(Error::from)?;
    let data = match args.output {
        Some(format) => text::documents(&[choice], format)?,
        None => shown(&choice),
    };
    Ok(Answer::new(data, Vec::new()))
}

/// The body with this name of the model. Its other fields keep their text, by which the router recognizes prompts.
fn named(body: &[u8], model: &str) -> Result<Vec<u8>, serde_json::Error> {
    let mut body: BTreeMap<String, Box<RawValue>> = serde_json::from_slice(body)?;
    body.insert("model".to_owned(), to_raw_value(model)?);
    serde_json::to_vec(&body)
}

/// A paragraph for each version, with a table of its replicas.
fn shown(choice: &Choice) -> String {
    let shown: Vec<String> = choice.versions.iter().map(version).collect();
    shown.join("\n")
}

fn version(version: &Version) -> String {
    let Version {
        name,
        weight,
        obstacle,
        blocks,
        reason,
        replicas,
    } = version;
    if !obstacle.is_empty() {
        return format!("{name} gets no requests: {obstacle}\n");
    }
    let why = match reason.as_str() {
        "only" => "to its only ready pod",
        "prefix" => "to the pod that has seen the longest beginning of the prompt",
        "load" => "to the pod with the fewest requests; none has seen the prompt",
        "busy" => "to the pod with the fewest requests; those that have seen the prompt have too many",
        _ => "to no pod: none is ready",
    };
    let mut table = text::table(&["", "POD", "STATE", "IN-FLIGHT", "SEEN"]);
    for replica in replicas {
        table.add_row([
            if replica.chosen { "*" } else { "" }.to_owned(),
            replica.pod.clone(),
            replica.state.clone(),
            replica.in_flight.to_string(),
            format!("{}/{blocks}", replica.seen),
        ]);
    }
    format!(
        "{name} gets {weight} % of the requests: {why}\n{}",
        text::aligned(&table)
    )
}

#[cfg(test)]
mod tests {
    use runway_api::choice::Replica;

    use super::*;

    #[test]
    fn each_version_shows_its_replicas_and_the_reason() {
        let replica = |pod: &str, seen, chosen| Replica {
            pod: pod.to_owned(),
            in_flight: 3,
            seen,
            state: "ready".to_owned(),
            chosen,
        };
        let choice = Choice {
            model: "team/gemma".to_owned(),
            versions: vec![
                Version {
                    name: "gemma".to_owned(),
                    weight: 90,
                    blocks: 16,
                    reason: "prefix".to_owned(),
                    replicas: vec![replica("gemma-a", 0, false), replica("gemma-b", 12, true)],
                    ..Version::default()
                },
                Version {
                    name: "gemma-canary".to_owned(),
                    weight: 10,
                    obstacle: "it starts".to_owned(),
                    ..Version::default()
                },
            ],
        };
        assert_eq!(
            shown(&choice),
            "gemma gets 90 % of the requests: to the pod that has seen the longest beginning of the prompt\n   \
             POD      STATE  IN-FLIGHT  SEEN\n   gemma-a  ready  3          0/16\n*  gemma-b  ready  3          12/16\n\n\
             gemma-canary gets no requests: it starts\n"
        );
    }

    #[test]
    fn body_of_a_client_keeps_its_fields() {
        let body = named(br#"{"model": "x", "messages": []}"#, "team/gemma").unwrap();
        assert_eq!(body, br#"{"messages":[],"model":"team/gemma"}"#);
        let body = named(
            br#"{"messages": [{"role": "user",  "content": "\u0041"}]}"#,
            "team/gemma",
        )
        .unwrap();
        let expected = br#"{"messages":[{"role": "user",  "content": "\u0041"}],"model":"team/gemma"}"#;
        assert_eq!(body, expected, "the text of its messages");
        assert!(named(b"[]", "team/gemma").is_err());
    }
}
