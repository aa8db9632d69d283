//! `up`: a control plane and a node, everything of ours on it, and a model that answers. Where there can be no node: six models
//! coming up on the upstream simulator. `down` ends it.

use std::io::{IsTerminal, Write};
use std::ops::{Deref, DerefMut};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use kube::core::{DynamicObject, GroupVersionKind};
use kube::{Api, Client, ResourceExt, discovery};
use runway_api::condition::Conditions;
use runway_api::model_deployment::Phase;
use runway_api::{ModelDeployment, condition, labels};
use runway_dev_cluster::{self as cluster, Programs, answer};
use runway_dev_support::{shell, step};
use runway_manifests::Identity;
use runway_operator::client::ClientArgs;
use runway_testbed::engine::LlamaServer;
use runway_testbed::{Cluster, ControlPlane, EXAMPLES, Node, Options, crds, node};

use crate::demo::Demo;

/// Options of `up`.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// Exit when the models run (0) or do not in time (1), and clean up.
    #[arg(long)]
    once: bool,
    /// Use this cluster instead of starting a control plane. Admission webhooks are skipped, because the cluster cannot reach this machine.
    #[arg(long, value_name = "FILE")]
    kubeconfig: Option<PathBuf>,
    /// Fail where there can be no real node. Without this, models then come up on the upstream simulator.
    #[arg(long, conflicts_with = "kubeconfig")]
    node: bool,
    /// Bring models up on the upstream simulator, also where there can be a node.
    #[arg(long, conflicts_with_all = ["node", "demo"])]
    simulated: bool,
    /// Show this on the node, instead of a model that answers.
    #[arg(long, conflicts_with = "kubeconfig")]
    demo: Option<Demo>,
    /// Time until the upstream simulator reports a model as ready.
    #[arg(long, value_name = "SECONDS", default_value_t = 3.0)]
    ready_after: f64,
    /// Time to wait for the models.
    #[arg(long, value_name = "SECONDS", default_value_t = runway_testbed::PATIENCE.as_secs())]
    patience: u64,
}

/// The model whose upstream object is shown at the end: the design's example 2.
const SHOWN: &str = "gemma-cpu";
/// Interval between updates of the table.
const REDRAW: Duration = Duration::from_millis(500);

pub(crate) async fn run(args: Args) -> Result<()> {
    step("building the programs");
    let programs = Programs::build(false).await?;
    match args.kubeconfig.clone() {
        Some(kubeconfig) => on_a_cluster(&args, &programs, kubeconfig).await,
        None => on_our_own(&args, &programs).await,
    }
}

/// Ends what an earlier `up` left running.
pub(crate) async fn down() -> Result<()> {
    let folder = folder();
    let swept = tokio::task::spawn_blocking(node::sweep).await??;
    if !folder.exists() {
        println!(
            "{}",
            if swept == 0 {
                "nothing is up"
            } else {
                "nothing is up; what crashed nodes left is gone"
            }
        );
        return Ok(());
    }
    node::stop_detached(&folder).await?;
    std::fs::remove_dir_all(&folder).with_context(|| format!("cannot remove {}", folder.display()))?;
    println!("all down");
    Ok(())
}

/// Folder of a control plane that keeps running.
fn folder() -> PathBuf {
    shell::root().join("target").join("up")
}

async fn on_our_own(args: &Args, programs: &Programs) -> Result<()> {
    if !args.once && folder().exists() {
        step("stopping what an earlier `up` left running");
        down().await?;
    }
    let shown = Shown::of(args).await?;
    step(
        "starting etcd, kube-apiserver and kube-controller-manager (built once with Go on first use: about 6 minutes)",
    );
    let options = Options {
        keep: !args.once,
        dir: (!args.once).then(folder),
        // On a node nothing is simulated: no upstream operator is installed.
        crds: if matches!(shown, Shown::Simulated) {
            cluster::upstream_crds()?
        } else {
            Vec::new()
        },
        ..Options::default()
    };
    let mut started = Started::start(options, !matches!(shown, Shown::Simulated)).await?;
    let kubeconfig = started.admin()?;
    let console = cluster::start_console(&mut started, programs, &kubeconfig).await?;
    step(&format!("the web console, to watch it all: {console}"));
    let outcome = show(args, programs, &shown, &mut started, &kubeconfig).await;
    if args.once {
        if outcome.is_err() {
            show_logs(&started.dir);
        }
        started.stop().await?;
    } else {
        let left_up = started.detach()?;
        let command = programs.path("kubeairunway");
        println!(
            "\nEverything stays up. To look at it in a browser, to use it in a terminal, and to end it:\n\n  {console}\n  export KUBECONFIG={} PATH={}:$PATH\n  cargo xtask down",
            kubeconfig.display(),
            command.parent().unwrap_or(&command).display()
        );
        println!("\nLogs are in {}", left_up.dir.display());
    }
    outcome
}

/// Columns of the table.
enum Shown {
    /// A model that answers, on a node.
    Answer(Box<LlamaServer>),
    /// Another system, on a node.
    Demo(Demo),
    /// Models on the upstream simulator, without a node.
    Simulated,
}

impl Shown {
    /// A node, where there can be one; what is missing is said in one line.
    async fn of(args: &Args) -> Result<Self> {
        if args.simulated {
            return Ok(Self::Simulated);
        }
        let is_wanted = args.node || args.demo.is_some();
        if let Some(reason) = node::unavailable() {
            ensure!(!is_wanted, "{reason}");
            step(&format!(
                "no real engine answers here, because {reason}: models come up on the upstream simulator"
            ));
            return Ok(Self::Simulated);
        }
        if let Some(demo) = args.demo {
            return Ok(Self::Demo(demo));
        }
        step("fetching llama-server from Debian's packages (once for this machine)");
        let engine = tokio::task::spawn_blocking(|| LlamaServer::prepare("a model that answers")).await??;
        match engine {
            Some(engine) => Ok(Self::Answer(Box::new(engine))),
            None if args.node => bail!("llama-server cannot be had on this machine"),
            None => Ok(Self::Simulated),
        }
    }
}

async fn show(args: &Args, programs: &Programs, shown: &Shown, started: &mut Started, kubeconfig: &Path) -> Result<()> {
    match (shown, &mut *started) {
        (Shown::Answer(engine), Started::Node(node)) => {
            answer::show(node, programs, kubeconfig, engine, Duration::from_secs(args.patience)).await
        }
        (Shown::Demo(demo), Started::Node(node)) => {
            step("installing CRDs and roles");
            cluster::install(&node.admin_client().await?, None, Identity::User).await?;
            demo.show(node, programs).await
        }
        _ => bring_up_models(args, programs, started, kubeconfig).await,
    }
}

/// Everything of ours beside the control plane, and the models.
async fn bring_up_models(
    args: &Args,
    programs: &Programs,
    control_plane: &mut Started,
    kubeconfig: &Path,
) -> Result<()> {
    let client = control_plane.admin_client().await?;
    let port = runway_testbed::free_port()?;
    step("installing CRDs, roles and webhooks");
    cluster::install(&client, Some(&format!("https://127.0.0.1:{port}")), Identity::User).await?;
    step(
        "starting kubeairunway-controller, a controller for each provider, and the upstream simulator in place of their operators",
    );
    cluster::start_controllers(
        control_plane,
        programs,
        &cluster::providers(),
        port,
        Duration::from_secs_f64(args.ready_after),
    )?;
    watch_models(args, programs, &client, kubeconfig).await
}

/// With a node or without.
enum Started {
    ControlPlane(Box<ControlPlane>),
    Node(Box<Node>),
}

impl Started {
    async fn start(options: Options, with_node: bool) -> Result<Self> {
        if with_node {
            step("and a node: containerd, kubelet, kube-proxy, CoreDNS (built once as well: about 4 minutes)");
            return Ok(Self::Node(Box::new(Node::start(options).await?)));
        }
        Ok(Self::ControlPlane(Box::new(ControlPlane::start(options).await?)))
    }

    async fn stop(self) -> Result<()> {
        match self {
            Self::ControlPlane(control_plane) => control_plane.stop().await,
            Self::Node(node) => node.stop().await,
        }
    }

    fn detach(self) -> Result<Cluster> {
        match self {
            Self::ControlPlane(control_plane) => Ok(control_plane.detach()),
            Self::Node(node) => node.detach(),
        }
    }
}

impl Deref for Started {
    type Target = ControlPlane;

    fn deref(&self) -> &ControlPlane {
        match self {
            Self::ControlPlane(control_plane) => control_plane,
            Self::Node(node) => node,
        }
    }
}

impl DerefMut for Started {
    fn deref_mut(&mut self) -> &mut ControlPlane {
        match self {
            Self::ControlPlane(control_plane) => control_plane,
            Self::Node(node) => node,
        }
    }
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
    let mut children = vec![cluster::child(
        programs,
        "kubeairunway-controller",
        &kubeconfig,
        &["--webhook-address", "127.0.0.1:0"],
    )?];
    for provider in cluster::providers() {
        children.push(cluster::child(
            programs,
            &labels::provider_manager(provider),
            &kubeconfig,
            &["--verify-endpoints=false"],
        )?);
    }
    let has_operators = discovery::pinned_kind(&client, &GroupVersionKind::gvk("kaito.sh", "v1beta1", "Workspace"))
        .await
        .is_ok();
    if !has_operators {
        step("KAITO is not installed: CRDs and the upstream simulator stand in for the operators");
        for crd in cluster::upstream_crds()? {
            crds::install_crd(&client, crd).await?;
        }
        children.push(cluster::child(programs, cluster::SIMULATOR, &kubeconfig, &[])?);
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

/// Applies the examples and draws the table until all of them run.
async fn watch_models(args: &Args, programs: &Programs, client: &Client, kubeconfig: &Path) -> Result<()> {
    ready_to_admit(client).await?;
    step("applying deploy/examples");
    for name in EXAMPLES {
        let path = shell::root().join("deploy/examples").join(format!("{name}.yaml"));
        let text = std::fs::read_to_string(&path).with_context(|| format!("cannot read {}", path.display()))?;
        let object: DynamicObject =
            serde_saphyr::from_str(&text).with_context(|| format!("{} is not a Kubernetes object", path.display()))?;
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
    show_upstream(client).await?;
    println!(
        "\nAll models run, {:.1} seconds after they were applied.",
        start.elapsed().as_secs_f64()
    );
    Ok(())
}

/// Waits until the providers are registered: models applied earlier would be assigned to the first provider that registers.
async fn ready_to_admit(client: &Client) -> Result<()> {
    let configs: Api<runway_api::InferenceProviderConfig> = Api::all(client.clone());
    runway_testbed::eventually(runway_testbed::PATIENCE, async || {
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

/// Output of the product's own command.
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

async fn show_upstream(client: &Client) -> Result<()> {
    let (resource, _) =
        discovery::pinned_kind(client, &GroupVersionKind::gvk("kaito.sh", "v1beta1", "InferenceSet")).await?;
    let sets: Api<DynamicObject> = Api::namespaced_with(client.clone(), "default", &resource);
    let mut set = sets
        .get(SHOWN)
        .await
        .with_context(|| format!("no InferenceSet '{SHOWN}'"))?;
    set.metadata.managed_fields = None;
    println!(
        "\nThe KAITO InferenceSet of '{SHOWN}':\n\n{}",
        serde_saphyr::to_string(&serde_json::to_value(set)?)?
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
