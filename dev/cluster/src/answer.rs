//! A model that answers: the product, a real engine in a real pod, and its streamed completion.

use std::io::Write;
use std::path::Path;
use std::process::Stdio;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use kube::{Api, Client};
use runway_api::condition::{self, Conditions};
use runway_api::{InferenceProviderConfig, ModelDeployment};
use runway_dev_support::{shell, step};
use runway_manifests::Identity;
use runway_testbed::engine::{LlamaServer, SENTENCE};
use runway_testbed::{Node, PATIENCE, eventually};
use tokio::io::AsyncReadExt;

use crate::{self as cluster, Programs};

/// Attempts of a chat.
const CHATS: u32 = 4;
/// The model that is deployed.
const EXAMPLE: &str = "deploy/examples/test-bed/hello.yaml";
/// The provider that serves where no upstream operator is installed.
const PROVIDER: &str = "direct";
const QUESTION: &str = "Are you there?";

/// Deploys the model with the product's own programs, and chats with it. `engine` is on the machine already.
pub async fn show(
    node: &mut Node,
    programs: &Programs,
    kubeconfig: &Path,
    engine: &LlamaServer,
    patience: Duration,
) -> Result<()> {
    step("loading the engine's image onto the node");
    node.import_image(&engine.image.archive).await?;
    let client = node.admin_client().await?;
    install(node, programs, &client).await?;

    println!("\n$ kubectl apply -f {EXAMPLE}\n\n{}", example()?.trim_end());
    let object = serde_saphyr::from_str(&example()?).with_context(|| format!("cannot read {EXAMPLE}"))?;
    let applied = Instant::now();
    let name = cluster::apply(&client, &object)
        .await?
        .metadata
        .name
        .unwrap_or_default();
    ready(&client, &name, patience).await?;

    println!("\n$ kubeairunway get");
    print!("{}", kubeairunway(programs, kubeconfig, &["get"]).await?);
    println!("\n$ kubeairunway chat {name} '{QUESTION}'");
    let (answer, first) = answered(programs, kubeconfig, &name, applied).await?;
    ensure!(
        answer.trim() == SENTENCE,
        "the engine answers '{}', not '{SENTENCE}'",
        answer.trim()
    );
    println!(
        "\nFirst token {:.1} seconds after the ModelDeployment was applied.",
        first.as_secs_f64()
    );
    println!("\nNext: kubeairunway chat {name}, kubeairunway status {name}, or the console's chat.");
    Ok(())
}

/// The core and every provider. Without an upstream operator only `direct` can serve, and it is chosen.
pub async fn install(node: &mut Node, programs: &Programs, client: &Client) -> Result<()> {
    let port = runway_testbed::free_port()?;
    step(
        "installing CRDs, roles and webhooks, and starting kubeairunway-controller and a controller for each provider",
    );
    cluster::install(client, Some(&format!("https://127.0.0.1:{port}")), Identity::User).await?;
    cluster::start_core(node, programs, port)?;
    for provider in cluster::providers() {
        cluster::start_provider(node, programs, provider, &[])?;
    }
    let configs: Api<InferenceProviderConfig> = Api::all(client.clone());
    eventually(PATIENCE, async || {
        let config = configs
            .get(PROVIDER)
            .await
            .with_context(|| format!("{PROVIDER} has not registered"))?;
        let status = config.status.unwrap_or_default();
        ensure!(
            status.ready == Some(true) && status.conditions.is_true(condition::RULES_VALID),
            "{PROVIDER} is not ready"
        );
        Ok(())
    })
    .await
}

fn example() -> Result<String> {
    std::fs::read_to_string(shell::root().join(EXAMPLE)).with_context(|| format!("cannot read {EXAMPLE}"))
}

/// Waits for Ready, and shows each new message on the way.
async fn ready(client: &Client, name: &str, patience: Duration) -> Result<()> {
    let models: Api<ModelDeployment> = Api::default_namespaced(client.clone());
    let start = Instant::now();
    let mut reported = String::new();
    println!();
    loop {
        let status = models.get(name).await?.status.unwrap_or_default();
        let message = status.message.unwrap_or_default();
        if !message.is_empty() && message != reported {
            println!(
                "{:>5.1} s  {}: {message}",
                start.elapsed().as_secs_f64(),
                status.phase.map_or("", |p| p.as_str())
            );
            reported = message;
        }
        if status.conditions.is_true(condition::READY) {
            return Ok(());
        }
        if start.elapsed() > patience {
            bail!("{name} is not ready after {} seconds: {reported}", patience.as_secs());
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

async fn kubeairunway(programs: &Programs, kubeconfig: &Path, args: &[&str]) -> Result<String> {
    let output = command(programs, kubeconfig, args).output().await?;
    ensure!(
        output.status.success(),
        "kubeairunway {} failed: {}",
        args.join(" "),
        String::from_utf8_lossy(&output.stderr)
    );
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}

/// The command, with this kubeconfig.
pub fn command(programs: &Programs, kubeconfig: &Path, args: &[&str]) -> tokio::process::Command {
    let mut command = tokio::process::Command::new(programs.path("kubeairunway"));
    command.args(args).arg("--kubeconfig").arg(kubeconfig);
    command
}

/// The answer of the first chat that ends in order. One in a hundred does not, see `Endpoint::streamed` of the test bed.
async fn answered(programs: &Programs, kubeconfig: &Path, name: &str, applied: Instant) -> Result<(String, Duration)> {
    for _ in 1..CHATS {
        match chat(programs, kubeconfig, name, applied).await {
            Err(error) => println!("\n{error:#}: once more"),
            answer => return answer,
        }
    }
    chat(programs, kubeconfig, name, applied).await
}

/// The answer as it streams, and when its first token came.
async fn chat(programs: &Programs, kubeconfig: &Path, name: &str, applied: Instant) -> Result<(String, Duration)> {
    let mut child = command(programs, kubeconfig, &["chat", name, QUESTION])
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .kill_on_drop(true)
        .spawn()
        .context("cannot start kubeairunway chat")?;
    let mut stdout = child.stdout.take().context("kubeairunway chat has no output")?;
    let (mut answer, mut first, mut buffer) = (Vec::new(), None, [0; 256]);
    loop {
        let read = stdout.read(&mut buffer).await?;
        if read == 0 {
            break;
        }
        first.get_or_insert_with(|| applied.elapsed());
        answer.extend_from_slice(&buffer[..read]);
        std::io::stdout().write_all(&buffer[..read])?;
        std::io::stdout().flush()?;
    }
    ensure!(child.wait().await?.success(), "kubeairunway chat failed");
    let first = first.context("the model answered nothing")?;
    Ok((String::from_utf8_lossy(&answer).into_owned(), first))
}
