//! `up`: a control plane, everything of ours on it, and six models coming up on three providers. `down` ends it.

use std::io::{IsTerminal, Write};
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use kube::core::{DynamicObject, GroupVersionKind};
use kube::{Api, Client, ResourceExt, discovery};
use runway_api::condition::Conditions;
use runway_api::model_deployment::Phase;
use runway_api::{ModelDeployment, condition, labels};
use runway_cli::manifests::Identity;
use runway_operator::client::ClientArgs;
use runway_testbed::{ControlPlane, Options, crds};

use crate::cluster::{self, Programs};
use crate::shell;

/// How to bring it up.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// Exit when the models run (0) or do not in time (1), and clean up.
    #[arg(long)]
    once: bool,
    /// Use this cluster instead of starting a control plane. Its admission webhooks are left out: it cannot reach this machine.
    #[arg(long, value_name = "FILE")]
    kubeconfig: Option<PathBuf>,
    /// How long the upstream simulator takes to make a model ready.
    #[arg(long, value_name = "SECONDS", default_value_t = 3.0)]
    ready_after: f64,
    /// How long to wait for the models to run.
    #[arg(long, value_name = "SECONDS", default_value_t = 120)]
    patience: u64,
}

/// The model whose upstream object is shown at the end: the design's example 2.
const SHOWN: &str = "gemma-cpu";
const EXAMPLES: [&str; 6] = [
    "gemma-cpu",
    "llama-8b",
    "phi-4-mini",
    "qwen-replicas",
    "llama-70b-pd",
    "qwen-kuberay",
];
/// How often the table is drawn again.
const REDRAW: Duration = Duration::from_millis(500);

pub(crate) async fn run(args: Args) -> Result<()> {
    step("building the programs");
    let programs = Programs::build(false)?;
    match args.kubeconfig.clone() {
        Some(kubeconfig) => on_a_cluster(&args, &programs, kubeconfig).await,
        None => on_our_own(&args, &programs).await,
    }
}

/// Ends what an earlier `up` left running.
pub(crate) async fn down() -> Result<()> {
    let folder = folder();
    if !folder.exists() {
        println!("nothing is up");
        return Ok(());
    }
    ControlPlane::stop_detached(&folder).await?;
    std::fs::remove_dir_all(&folder).with_context(|| format!("cannot remove {}", folder.display()))?;
    println!("all down");
    Ok(())
}

/// Where a control plane that stays up lives.
fn folder() -> PathBuf {
    shell::root().join("target").join("up")
}

async fn on_our_own(args: &Args, programs: &Programs) -> Result<()> {
    if !args.once && folder().exists() {
        step("stopping what an earlier `up` left running");
        down().await?;
    }
    step(
        "starting etcd, kube-apiserver and kube-controller-manager (built once with Go on first use: about 6 minutes)",
    );
    let upstream = cluster::upstream_crds()?;
    let options = Options {
        keep: !args.once,
        dir: (!args.once).then(folder),
        crds: upstream,
    };
    let mut control_plane = ControlPlane::start(options).await?;
    let client = control_plane.admin_client().await?;
    let port = cluster::free_port()?;
    step("installing CRDs, roles and webhooks");
    cluster::install(&client, Some(&format!("https://127.0.0.1:{port}")), Identity::User).await?;
    let providers = cluster::providers();
    step(
        "starting kubeairunway-controller, a controller for each provider, and the upstream simulator in place of their operators",
    );
    cluster::start_controllers(
        &mut control_plane,
        programs,
        &providers,
        port,
        Duration::from_secs_f64(args.ready_after),
    )?;

    let kubeconfig = control_plane.admin()?;
    let outcome = watch_models(args, programs, &client, &kubeconfig).await;
    if args.once {
        if outcome.is_err() {
            show_logs(&control_plane.dir);
        }
        control_plane.stop().await?;
    } else {
        let left_up = control_plane.detach();
        println!(
            "\nEverything stays up. To use it, and to end it:\n\n  export KUBECONFIG={}\n  cargo xtask down",
            kubeconfig.display()
        );
        println!("\nLogs are in {}", left_up.dir.display());
    }
    outcome
}

/// Controllers as children of ours, against a cluster that is there. They end with us.
async fn on_a_cluster(args: &Args, programs: &Programs, kubeconfig: PathBuf) -> Result<()> {
    let client = ClientArgs {
        kubeconfig: Some(kubeconfig.clone()),
        context: None,
    }
    .client()
    .await?;
    step("installing CRDs and roles (no webhooks: the cluster cannot reach this machine)");
    cluster::install(&client, None, Identity::User).await?;
    let mut children = vec![child(
        programs,
        "kubeairunway-controller",
        &kubeconfig,
        &["--webhook-address", "127.0.0.1:0"],
    )?];
    for provider in cluster::providers() {
        children.push(child(programs, &labels::provider_manager(provider), &kubeconfig, &[])?);
    }
    let has_operators = discovery::pinned_kind(&client, &GroupVersionKind::gvk("kaito.sh", "v1beta1", "Workspace"))
        .await
        .is_ok();
    if !has_operators {
        step("KAITO is not installed: CRDs and the upstream simulator stand in for the operators");
        for crd in cluster::upstream_crds()? {
            crds::install_crd(&client, crd).await?;
        }
        children.push(child(programs, cluster::SIMULATOR, &kubeconfig, &[])?);
    }
    let outcome = watch_models(args, programs, &client, &kubeconfig).await;
    if outcome.is_ok() && !args.once {
        println!("\nThe controllers run until Ctrl-C.");
        tokio::signal::ctrl_c().await?;
    }
    for mut child in children {
        child.kill().await?;
    }
    outcome
}

fn child(programs: &Programs, name: &str, kubeconfig: &Path, args: &[&str]) -> Result<tokio::process::Child> {
    tokio::process::Command::new(programs.path(name))
        .arg("--kubeconfig")
        .arg(kubeconfig)
        .args(args)
        .stderr(Stdio::null())
        .kill_on_drop(true)
        .spawn()
        .with_context(|| format!("cannot start {name}"))
}

/// Applies the examples and draws the table until all of them run.
async fn watch_models(args: &Args, programs: &Programs, client: &Client, kubeconfig: &Path) -> Result<()> {
    ready_to_admit(client).await?;
    step("applying deploy/examples");
    for name in EXAMPLES {
        let path = shell::root().join("deploy/examples").join(format!("{name}.yaml"));
        let text = std::fs::read_to_string(&path).with_context(|| format!("cannot read {}", path.display()))?;
        let object: DynamicObject =
            serde_saphyr::from_str(&text).with_context(|| format!("{} is no object", path.display()))?;
        cluster::apply(client, &object).await?;
    }
    let deployments: Api<ModelDeployment> = Api::namespaced(client.clone(), "default");
    let start = Instant::now();
    let mut screen = Screen::default();
    loop {
        let all = deployments.list(&kube::api::ListParams::default()).await?.items;
        let ours: Vec<&ModelDeployment> = all
            .iter()
            .filter(|md| EXAMPLES.contains(&md.name_any().as_str()))
            .collect();
        screen.draw(&table(programs, kubeconfig).await?)?;
        if ours.len() == EXAMPLES.len() && ours.iter().all(|md| is_running(md)) {
            break;
        }
        if start.elapsed() > Duration::from_secs(args.patience) {
            let waiting: Vec<String> = ours
                .iter()
                .filter(|md| !is_running(md))
                .map(|md| md.name_any())
                .collect();
            bail!("not running after {} seconds: {}", args.patience, waiting.join(", "));
        }
        tokio::time::sleep(REDRAW).await;
    }
    show_workspace(client).await?;
    println!(
        "\nAll models run, {:.1} seconds after they were applied.",
        start.elapsed().as_secs_f64()
    );
    Ok(())
}

/// Waits until the providers are registered: models applied earlier would come up too, but on whoever was first.
async fn ready_to_admit(client: &Client) -> Result<()> {
    let configs: Api<runway_api::InferenceProviderConfig> = Api::all(client.clone());
    runway_testbed::eventually(Duration::from_mins(1), async || {
        for provider in cluster::providers() {
            let config = configs
                .get(provider)
                .await
                .with_context(|| format!("{provider} has not registered"))?;
            let status = config.status.unwrap_or_default();
            if status.ready != Some(true) || !status.conditions.is_true(condition::RULES_VALID) {
                bail!("{provider} is not ready");
            }
        }
        Ok(())
    })
    .await
}

fn is_running(md: &ModelDeployment) -> bool {
    md.status.as_ref().is_some_and(|s| s.phase == Some(Phase::Running)) && md.conditions().is_true(condition::READY)
}

/// What the product's own command shows.
async fn table(programs: &Programs, kubeconfig: &Path) -> Result<String> {
    let output = tokio::process::Command::new(programs.path("kubeairunway"))
        .args(["get", "--all-namespaces", "--kubeconfig"])
        .arg(kubeconfig)
        .output()
        .await?;
    if !output.status.success() {
        bail!("kubeairunway get failed: {}", String::from_utf8_lossy(&output.stderr));
    }
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}

async fn show_workspace(client: &Client) -> Result<()> {
    let (resource, _) =
        discovery::pinned_kind(client, &GroupVersionKind::gvk("kaito.sh", "v1beta1", "Workspace")).await?;
    let workspaces: Api<DynamicObject> = Api::namespaced_with(client.clone(), "default", &resource);
    let mut workspace = workspaces
        .get(SHOWN)
        .await
        .with_context(|| format!("no Workspace '{SHOWN}'"))?;
    workspace.metadata.managed_fields = None;
    println!(
        "\nThe KAITO Workspace of '{SHOWN}':\n\n{}",
        serde_saphyr::to_string(&serde_json::to_value(workspace)?)?
    );
    Ok(())
}

/// Draws in place on a terminal, and only what is new elsewhere.
#[derive(Default)]
struct Screen {
    last: String,
}

impl Screen {
    fn draw(&mut self, text: &str) -> Result<()> {
        let mut out = std::io::stdout().lock();
        let is_news = if out.is_terminal() {
            self.last != text
        } else {
            without_age(&self.last) != without_age(text)
        };
        if !is_news {
            return Ok(());
        }
        if out.is_terminal() && !self.last.is_empty() {
            write!(out, "\x1b[{}A\x1b[J", self.last.lines().count())?;
        }
        writeln!(out, "{}", text.trim_end())?;
        out.flush()?;
        text.clone_into(&mut self.last);
        Ok(())
    }
}

/// The table without its last column, which changes every second.
fn without_age(table: &str) -> Vec<&str> {
    table
        .lines()
        .map(|line| line.trim_end().rsplit_once(' ').map_or(line, |(rest, _)| rest))
        .collect()
}

fn step(text: &str) {
    eprintln!("▸ {text}");
}

fn show_logs(dir: &Path) {
    let providers = cluster::providers().into_iter().map(labels::provider_manager);
    let names = [labels::CORE_MANAGER, cluster::SIMULATOR]
        .map(str::to_owned)
        .into_iter()
        .chain(providers);
    for name in names {
        let text = std::fs::read_to_string(dir.join(format!("{name}.log"))).unwrap_or_default();
        let lines: Vec<&str> = text.lines().collect();
        eprintln!(
            "--- the end of {name}.log\n{}",
            lines[lines.len().saturating_sub(20)..].join("\n")
        );
    }
}
