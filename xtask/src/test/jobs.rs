//! Jobs that run in parallel: each test program, the tests in the documentation, and other checks that take long.

use std::collections::BTreeSet;
use std::path::Path;
use std::process::{Command, Stdio};

use anyhow::{Context, Result, bail};
use runway_dev_support::shell;
use serde::Deserialize;

use crate::lane::Lane;

/// Files whose tests start real nodes. KEDA is built last, so what needs it comes last.
const NODES: [&str; 12] = [
    "crates/llama-stack-operator/tests/node.rs",
    "crates/testbed/tests/answers.rs",
    "crates/testbed/tests/changes.rs",
    "crates/testbed/tests/console.rs",
    "crates/testbed/tests/node.rs",
    "crates/testbed/tests/engine.rs",
    "crates/testbed/tests/neighbors.rs",
    "crates/testbed/tests/ready/main.rs",
    "crates/testbed/tests/router.rs",
    "crates/upstream-simulator/tests/workloads.rs",
    "crates/cli/tests/node.rs",
    "crates/testbed/tests/asya.rs",
];

/// A command to run.
pub(crate) struct Job {
    /// The file of its tests, or what it does.
    pub(crate) name: String,
    pub(crate) command: Command,
    /// Its place among those that start real nodes, if it does.
    pub(crate) node: Option<usize>,
}

/// Choice of tests.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Selection<'a> {
    All,
    /// Those whose file contains one of these texts.
    Only(&'a [String]),
    /// Those beside the code that they test: they need no control plane.
    OfUnits,
    /// Those of an optional lane, which are ignored otherwise.
    Lane(Lane),
}

/// Message of cargo about a build product.
#[derive(Deserialize)]
struct Message {
    manifest_path: Option<String>,
    target: Option<Target>,
    profile: Option<Profile>,
    executable: Option<String>,
}

#[derive(Deserialize)]
struct Metadata {
    packages: Vec<Package>,
}

#[derive(Deserialize)]
struct Package {
    targets: Vec<Target>,
}

#[derive(Deserialize)]
struct Target {
    kind: Vec<String>,
    name: String,
    src_path: String,
    test: bool,
    #[serde(default, rename = "required-features")]
    required_features: Vec<String>,
}

#[derive(Deserialize)]
struct Profile {
    test: bool,
}

/// Compiles the tests; a job for each program, tests of a control plane first: they wait, and the others can use that.
pub(crate) fn tests(selection: Selection<'_>) -> Result<Vec<Job>> {
    let mut cargo = shell::cargo();
    cargo.args(["test", "--no-run", "--workspace", "--locked", "--quiet"]);
    cargo.args(["--message-format", "json-render-diagnostics"]);
    match selection {
        Selection::All => &mut cargo,
        Selection::Only(texts) => cargo.args(targets(texts)?),
        Selection::OfUnits => cargo.args(["--lib", "--bins"]),
        Selection::Lane(lane) => cargo.args(targets(&texts(lane))?),
    };
    let output = cargo
        .current_dir(shell::root())
        .stderr(Stdio::inherit())
        .output()
        .context("cannot run cargo")?;
    if !output.status.success() {
        bail!("the tests do not compile");
    }
    let mut jobs = Vec::new();
    for line in String::from_utf8(output.stdout)?.lines() {
        jobs.extend(test(serde_json::from_str(line)?)?);
    }
    if let Selection::Lane(lane) = selection {
        let tests = lane.tests();
        jobs.retain(|job| tests.files().any(|file| file == job.name));
        for job in &mut jobs {
            job.command.envs(tests.variable);
            if tests.own.contains(&job.name.as_str()) {
                job.command.arg("--ignored");
            }
        }
    }
    if let Selection::Only(texts) = selection {
        jobs.retain(|job| is_chosen(&job.name, texts));
    }
    jobs.sort_by_key(|job| !job.name.contains("testbed/tests"));
    known(selection, &jobs)?;
    Ok(jobs)
}

/// Options of cargo for the test programs whose file contains one of the texts. They choose by name, so others of the same name are
/// compiled, too. With the features of the whole workspace: what has been compiled for all tests serves for one of them.
fn targets(texts: &[String]) -> Result<BTreeSet<String>> {
    let metadata = shell::output("cargo", &["metadata", "--format-version", "1", "--locked", "--no-deps"])?;
    let metadata: Metadata = serde_json::from_str(&metadata)?;
    let mut options = BTreeSet::new();
    for target in metadata.packages.into_iter().flat_map(|package| package.targets) {
        let path = Path::new(&target.src_path).strip_prefix(shell::root())?;
        if target.test && target.required_features.is_empty() && is_chosen(&path.display().to_string(), texts) {
            options.insert(match target.kind.first().map(String::as_str) {
                Some(kind @ ("test" | "bin")) => format!("--{kind}={}", target.name),
                _ => "--lib".to_owned(),
            });
        }
    }
    if options.is_empty() {
        bail!(
            "no file of tests has {} in its path: they are called like crates/testbed/tests/lifecycle.rs",
            texts.join(" or ")
        );
    }
    Ok(options)
}

fn texts(lane: Lane) -> Vec<String> {
    lane.tests().files().map(str::to_owned).collect()
}

/// Whether the path of a file contains one of the texts.
fn is_chosen(path: &str, texts: &[String]) -> bool {
    texts.iter().any(|text| path.contains(text))
}

/// Runs as `cargo test` would run it.
fn test(message: Message) -> Result<Option<Job>> {
    let (Some(target), Some(program), Some(manifest)) = (message.target, message.executable, message.manifest_path)
    else {
        return Ok(None);
    };
    if !message.profile.is_some_and(|profile| profile.test) {
        return Ok(None);
    }
    let package = Path::new(&manifest).parent().context("a package has a folder")?;
    let name = Path::new(&target.src_path)
        .strip_prefix(shell::root())?
        .display()
        .to_string();
    let mut command = Command::new(program);
    command
        .args(["--test-threads", "2"])
        .current_dir(package)
        .env("CARGO_MANIFEST_DIR", package);
    Ok(Some(Job {
        node: NODES.iter().position(|file| *file == name),
        name,
        command,
    }))
}

/// A renamed file would start its node beside the others, or leave a lane without tests.
fn known(selection: Selection<'_>, jobs: &[Job]) -> Result<()> {
    let missing = |file: &str| !jobs.iter().any(|job| job.name == file);
    let wanted = match selection {
        Selection::All => NODES.to_vec(),
        Selection::Only(_) | Selection::OfUnits => Vec::new(),
        Selection::Lane(lane) => lane.tests().files().collect(),
    };
    match wanted.into_iter().find(|file| missing(file)) {
        Some(file) => bail!("there is no {file}: correct the lists in xtask/src/test/jobs.rs and xtask/src/lane.rs"),
        None => Ok(()),
    }
}

/// Jobs that are not test programs.
pub(crate) fn others() -> Result<Vec<Job>> {
    let ourselves = || Ok::<_, anyhow::Error>(Command::new(std::env::current_exe()?));
    Ok(vec![
        other(
            "tests in the documentation",
            shell::cargo(),
            &["test", "--doc", "--workspace", "--locked"],
        ),
        other("cargo xtask up --once", ourselves()?, &["up", "--once"]),
        other("cargo xtask python", ourselves()?, &["python"]),
        other(
            "documentation",
            strict_docs(),
            &["doc", "--quiet", "--workspace", "--no-deps", "--locked"],
        ),
    ])
}

/// Cargo with warnings of rustdoc as errors. Bare URLs are allowed: doc comments of arguments become help, where `<…>` would show.
fn strict_docs() -> Command {
    let mut cargo = shell::cargo();
    cargo.env("RUSTDOCFLAGS", "-D warnings -A rustdoc::bare_urls");
    cargo
}

fn other(name: &str, mut command: Command, args: &[&str]) -> Job {
    command.args(args).current_dir(shell::root());
    Job {
        name: name.to_owned(),
        command,
        node: None,
    }
}
