//! `fuzz`: libFuzzer on the targets of `fuzz/`, with the stable compiler and nothing to install but a C++ compiler.
//!
//! The passes that libFuzzer needs are part of every rustc; cargo-fuzz adds AddressSanitizer, which a program without `unsafe` does
//! not need, and which only a nightly compiler has. What is built and found stays in `target/fuzz`.

use std::collections::VecDeque;
use std::ffi::OsString;
use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::thread;

use anyhow::{Context, Result, bail};
use parking_lot::Mutex;
use runway_dev_support::shell;

/// Seconds for each target with `--quick`.
const QUICK: u32 = 30;
/// An input that takes longer is a finding. The instrumented build is some times slower than a release build.
const TIMEOUT_SECONDS: u32 = 5;
/// A target that needs more memory is a finding.
const MEMORY_MIB: u32 = 2048;
const MAX_LENGTH: u32 = 16 * 1024;
/// Compiler flags that report coverage to libFuzzer.
const INSTRUMENTATION: [&str; 5] = [
    "-Cpasses=sancov-module",
    "-Cllvm-args=-sanitizer-coverage-level=4",
    "-Cllvm-args=-sanitizer-coverage-inline-8bit-counters",
    "-Cllvm-args=-sanitizer-coverage-pc-table",
    "-Cllvm-args=-sanitizer-coverage-trace-compares",
];

/// Targets and duration.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// 30 seconds for each target; the default.
    #[arg(long, conflicts_with = "seconds")]
    quick: bool,
    /// Seconds for each target.
    #[arg(long, value_name = "N")]
    seconds: Option<u32>,
    /// Only this target; repeatable. All of them are in fuzz/README.md.
    #[arg(long, value_name = "NAME")]
    target: Vec<String>,
    /// Targets that run at the same time, each on one core.
    #[arg(long, value_name = "N", default_value_t = 1)]
    jobs: usize,
}

/// Result of a target.
struct Outcome {
    target: String,
    runs: String,
    runs_per_second: String,
    corpus: usize,
    /// Inputs that break its promise.
    findings: Vec<PathBuf>,
    failed: bool,
}

pub(crate) fn run(args: &Args) -> Result<()> {
    let targets = chosen(args)?;
    let programs = build(&targets)?;
    let seconds = args.seconds.unwrap_or(QUICK);
    let outcomes = side_by_side(targets, args.jobs, |target| fuzz(target, &programs, seconds))?;
    print(&outcomes);
    for outcome in outcomes.iter().filter(|outcome| outcome.failed) {
        explain(outcome, &programs);
    }
    match outcomes.iter().filter(|outcome| outcome.failed).count() {
        0 => Ok(()),
        failed => bail!("{failed} of {} targets failed", outcomes.len()),
    }
}

fn chosen(args: &Args) -> Result<Vec<String>> {
    let mut all = Vec::new();
    for entry in fs::read_dir(folder().join("targets")).context("cannot list fuzz/targets")? {
        all.extend(
            entry?
                .path()
                .file_stem()
                .map(|stem| stem.to_string_lossy().into_owned()),
        );
    }
    all.sort();
    if let Some(unknown) = args.target.iter().find(|name| !all.contains(name)) {
        bail!("unknown target '{unknown}': choose from {}", all.join(", "));
    }
    all.retain(|name| args.target.is_empty() || args.target.contains(name));
    Ok(all)
}

/// Builds the programs, and returns the folder they are in.
fn build(targets: &[String]) -> Result<PathBuf> {
    let host = host()?;
    let mut cargo = shell::cargo();
    cargo
        .args([
            "build",
            "--locked",
            "--package",
            "runway-fuzz",
            "--features",
            "libfuzzer",
            "--profile",
            "fuzz",
        ])
        // With a target, build scripts and macros are not instrumented.
        .args(["--target", &host, "--target-dir"])
        .arg(built())
        .env("RUSTFLAGS", INSTRUMENTATION.join(" "))
        .env("CARGO_INCREMENTAL", "0")
        .current_dir(shell::root());
    for target in targets {
        cargo.args(["--bin", target]);
    }
    if !cargo.status().context("cannot run cargo")?.success() {
        bail!("the fuzz targets do not build: libFuzzer needs a C++ compiler such as g++");
    }
    Ok(built().join(host).join("fuzz"))
}

/// The platform that rustc builds for.
fn host() -> Result<String> {
    let version = shell::output("rustc", &["-vV"])?;
    let host = version.lines().find_map(|line| line.strip_prefix("host: "));
    Ok(host.context("rustc -vV names no host")?.to_owned())
}

/// Runs some at the same time; the outcomes come in the order of the targets.
fn side_by_side(
    targets: Vec<String>,
    jobs: usize,
    run: impl Fn(&str) -> Result<Outcome> + Sync,
) -> Result<Vec<Outcome>> {
    let queue = Mutex::new(VecDeque::from(targets));
    let next = || queue.lock().pop_front();
    let outcomes = Mutex::new(Vec::new());
    thread::scope(|scope| {
        for _ in 0..jobs.max(1) {
            scope.spawn(|| {
                while let Some(target) = next() {
                    println!("▸ {target}");
                    let outcome = run(&target);
                    outcomes.lock().push(outcome);
                }
            });
        }
    });
    let outcomes = outcomes.into_inner();
    let mut outcomes: Vec<Outcome> = outcomes.into_iter().collect::<Result<_>>()?;
    outcomes.sort_by(|a, b| a.target.cmp(&b.target));
    Ok(outcomes)
}

/// Runs one target. New inputs go to `target/fuzz/corpus`; the committed ones are read only.
fn fuzz(target: &str, programs: &Path, seconds: u32) -> Result<Outcome> {
    let found = built().join("findings").join(target);
    let grown = built().join("corpus").join(target);
    for folder in [&found, &grown] {
        fs::create_dir_all(folder).with_context(|| format!("cannot make {}", folder.display()))?;
    }
    let log_path = built().join(format!("{target}.log"));
    let log = File::create(&log_path).with_context(|| format!("cannot write {}", log_path.display()))?;
    let before = files(&found)?;
    let status = Command::new(programs.join(target))
        .args([&grown, &folder().join("corpus").join(target)])
        .args(options(target, &found, seconds))
        .current_dir(shell::root())
        .stdout(log.try_clone()?)
        .stderr(log)
        .status()
        .with_context(|| format!("cannot run {target}"))?;
    let said = String::from_utf8_lossy(&fs::read(&log_path)?).into_owned();
    let mut findings = files(&found)?;
    findings.retain(|file| !before.contains(file));
    Ok(Outcome {
        target: target.to_owned(),
        runs: statistic(&said, "number_of_executed_units"),
        runs_per_second: statistic(&said, "average_exec_per_sec"),
        corpus: files(&grown)?.len() + files(&folder().join("corpus").join(target))?.len(),
        failed: !status.success(),
        findings,
    })
}

fn options(target: &str, found: &Path, seconds: u32) -> Vec<OsString> {
    let mut options = vec![
        format!("-max_total_time={seconds}").into(),
        format!("-timeout={TIMEOUT_SECONDS}").into(),
        format!("-rss_limit_mb={MEMORY_MIB}").into(),
        format!("-max_len={MAX_LENGTH}").into(),
        "-print_final_stats=1".into(),
        prefixed("-artifact_prefix=", &found.join("")),
    ];
    let dictionaries = [target, "objects"].map(|name| folder().join("dict").join(format!("{name}.dict")));
    let dictionary = dictionaries.iter().find(|file| file.is_file());
    options.extend(dictionary.map(|file| prefixed("-dict=", file)));
    options
}

fn prefixed(option: &str, path: &Path) -> OsString {
    let mut whole = OsString::from(option);
    whole.push(path);
    whole
}

/// A line such as `stat::average_exec_per_sec:     1063` of libFuzzer's output. It prints none when it ends with a finding.
fn statistic(said: &str, name: &str) -> String {
    let prefix = format!("stat::{name}:");
    let found = said.lines().find_map(|line| line.strip_prefix(&prefix));
    found.map_or_else(|| "-".to_owned(), |value| value.trim().to_owned())
}

fn files(folder: &Path) -> Result<Vec<PathBuf>> {
    let entries = fs::read_dir(folder).with_context(|| format!("cannot list {}", folder.display()))?;
    entries.map(|entry| Ok(entry?.path())).collect()
}

fn print(outcomes: &[Outcome]) {
    println!(
        "\n{:<20}{:>12}{:>10}{:>10}{:>10}",
        "target", "runs", "runs/s", "corpus", "findings"
    );
    for outcome in outcomes {
        println!(
            "{:<20}{:>12}{:>10}{:>10}{:>10}",
            outcome.target,
            outcome.runs,
            outcome.runs_per_second,
            outcome.corpus,
            outcome.findings.len()
        );
    }
}

fn explain(outcome: &Outcome, programs: &Path) {
    let log = built().join(format!("{}.log", outcome.target));
    println!("\nFAILED: {}, see {}", outcome.target, log.display());
    for finding in &outcome.findings {
        let program = programs.join(&outcome.target);
        println!("reproduce: {} {}", program.display(), finding.display());
    }
    println!(
        "As a file of fuzz/corpus/{}, it fails `cargo test -p runway-fuzz`, too.",
        outcome.target
    );
}

fn folder() -> PathBuf {
    shell::root().join("fuzz")
}

/// Folder of files that are not committed.
fn built() -> PathBuf {
    shell::root().join("target/fuzz")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn statistics_are_read_from_the_last_lines() {
        let said =
            "Done 10 runs in 1 second(s)\nstat::number_of_executed_units: 10\nstat::average_exec_per_sec:     5\n";
        assert_eq!(statistic(said, "number_of_executed_units"), "10");
        assert_eq!(statistic(said, "average_exec_per_sec"), "5");
        assert_eq!(
            statistic("==1== ERROR: libFuzzer: deadly signal", "average_exec_per_sec"),
            "-"
        );
    }

    #[test]
    fn a_target_that_does_not_exist_is_named() {
        let args = Args {
            quick: false,
            seconds: None,
            target: vec!["merge".to_owned(), "nothing".to_owned()],
            jobs: 1,
        };
        let said = chosen(&args).unwrap_err().to_string();
        assert!(
            said.starts_with("unknown target 'nothing': choose from addresses, admission_review, "),
            "{said}"
        );
    }
}
