//! Child processes that never outlive their parent, even one that dies by SIGKILL.
//!
//! Each component runs under a few lines of shell that read the parent's pipe: the word `stop` ends the component
//! in order, the word `keep` lets it live on, and the end of the pipe, which comes however the parent ends, kills it and
//! the processes it has started in its group.

use std::{
    fs::{self, File},
    io::Write as _,
    os::unix::process::CommandExt as _,
    path::{Path, PathBuf},
    process::{Child, ChildStdin, Command, ExitStatus, Stdio},
    time::{Duration, Instant},
};

use anyhow::{Context, Result, bail};

const WATCHDOG: &str = r#"
trap '' INT HUP
pid_file=$1 scratch=$2
shift 2
exec 3<&0
"$@" </dev/null 3<&- &
pid=$!
echo "$pid" >"$pid_file"
(
    while read -r word <&3; do
        case $word in
            stop) kill -TERM "$pid" ;;
            keep) exit ;;
        esac
    done
    rm -f "$pid_file"
    # The shell waits for the component and ends after it, so that its ports are free then. It also ends this part, unless that
    # ignores it.
    trap '' TERM
    kill -KILL "$pid"
    while kill -0 "$pid"; do sleep 0.01; done
    if [ -n "$scratch" ]; then rm -rf "$scratch"; fi
    kill -KILL 0
) 2>/dev/null &
watch=$!
exec 3<&-
wait "$pid"
code=$?
rm -f "$pid_file"
if [ -z "$scratch" ]; then kill "$watch" 2>/dev/null; fi
exit "$code"
"#;

/// Command, and the paths of its log and data.
pub struct Component {
    pub(crate) name: String,
    pub(crate) program: PathBuf,
    pub(crate) args: Vec<String>,
    /// Gets `NAME.log` and `NAME.pid`.
    pub dir: PathBuf,
    /// Removed when the parent ends: memory-backed data that no later process would find.
    pub(crate) scratch: Option<PathBuf>,
}

impl Component {
    /// File of its output.
    pub fn log(&self) -> PathBuf {
        self.dir.join(format!("{}.log", self.name))
    }

    /// Error of the process, with the end of its log.
    pub(crate) fn complain(&self, problem: &str) -> anyhow::Error {
        let log = self.log();
        anyhow::anyhow!(
            "{} {problem}; the end of its log, {}:\n{}",
            self.name,
            log.display(),
            crate::last_lines(&log, 15)
        )
    }

    /// Starts it.
    pub fn spawn(&self) -> Result<Process> {
        let log = File::options().create(true).append(true).open(self.log())?;
        let mut child = Command::new("sh")
            .args(["-c", WATCHDOG, &self.name])
            .arg(pid_file(&self.dir, &self.name))
            .arg(self.scratch.as_deref().unwrap_or_else(|| Path::new("")))
            .arg(&self.program)
            .args(&self.args)
            .stdin(Stdio::piped())
            .stdout(log.try_clone()?)
            .stderr(log)
            // A group of its own: Ctrl-C reaches us first, and we end the component.
            .process_group(0)
            .spawn()
            .with_context(|| format!("cannot start {}", self.name))?;
        let pipe = child.stdin.take();
        Ok(Process { child, pipe })
    }
}

/// A component with variables of its own. `env` becomes the program, so the process id stays that of the component.
pub fn with_environment<'a>(
    name: &str,
    dir: &Path,
    variables: impl Iterator<Item = (&'a str, &'a str)>,
    command: &[String],
) -> Component {
    let mut args: Vec<String> = variables.map(|(name, value)| format!("{name}={value}")).collect();
    args.extend_from_slice(command);
    Component {
        name: name.to_owned(),
        program: "env".into(),
        args,
        dir: dir.to_owned(),
        scratch: None,
    }
}

/// A running component. Dropping it kills the component and waits for its end.
pub struct Process {
    child: Child,
    pipe: Option<ChildStdin>,
}

impl Process {
    /// Exit status, if it has ended.
    pub fn ended(&mut self) -> Option<ExitStatus> {
        self.child.try_wait().ok().flatten()
    }

    /// Ends the component in order; kills it when that takes longer than `patience`.
    pub async fn stop(mut self, patience: Duration) {
        self.say("stop");
        let start = Instant::now();
        while self.ended().is_none() && start.elapsed() < patience {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }

    /// Kills the component, as a crash would: its data stays.
    pub(crate) async fn crash(mut self, component: &Component) -> Result<()> {
        self.keep();
        let pid =
            recorded_pid(&component.dir, &component.name).with_context(|| format!("{} has ended", component.name))?;
        signal("-KILL", &[pid])?;
        while self.ended().is_none() {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        Ok(())
    }

    /// Lets the component outlive us.
    pub(crate) fn keep(&mut self) {
        self.say("keep");
    }

    fn say(&mut self, word: &str) {
        // A closed pipe means that the component is gone already.
        let _ = self.pipe.as_mut().map(|pipe| writeln!(pipe, "{word}"));
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        drop(self.pipe.take());
        let _ = self.child.wait();
    }
}

/// Kept components are not waited for: see [`Process::keep`].
pub(crate) fn release(mut process: Process) {
    process.keep();
    std::mem::forget(process);
}

/// Ends a kept component by its recorded process id, if that id still belongs to it.
pub(crate) async fn stop_recorded(dir: &Path, name: &str) -> Result<()> {
    let file = pid_file(dir, name);
    let Ok(pid) = fs::read_to_string(&file) else {
        return Ok(());
    };
    let pid = pid.trim();
    let start = Instant::now();
    let mut signal = "-TERM";
    while belongs(pid, dir).await {
        shell(&format!("kill {signal} {pid}")).await?;
        tokio::time::sleep(Duration::from_millis(50)).await;
        if start.elapsed() > Duration::from_secs(20) {
            signal = "-KILL";
        }
    }
    let _ = fs::remove_file(file);
    Ok(())
}

/// Process ids are reused: only a command line that names our folder is one of ours.
async fn belongs(pid: &str, dir: &Path) -> bool {
    pid.parse::<u32>().is_ok()
        && shell(&format!(
            "ps -o args= -p {pid} 2>/dev/null || tr '\\0' ' ' </proc/{pid}/cmdline"
        ))
        .await
        .is_ok_and(|args| args.contains(&*dir.to_string_lossy()))
}

/// Signals go through the shell because the standard library cannot send them.
async fn shell(script: &str) -> Result<String> {
    let output = tokio::process::Command::new("sh")
        .args(["-c", script])
        .output()
        .await
        .context("cannot run `sh`")?;
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}

fn pid_file(dir: &Path, name: &str) -> PathBuf {
    dir.join(format!("{name}.pid"))
}

/// The process id of a component that runs.
pub fn recorded_pid(dir: &Path, name: &str) -> Option<u32> {
    fs::read_to_string(pid_file(dir, name)).ok()?.trim().parse().ok()
}

/// Sends a signal, such as `-STOP`, to processes.
pub fn signal(signal: &str, pids: &[u32]) -> Result<()> {
    let pids = pids.iter().map(u32::to_string);
    output(Command::new("kill").arg(signal).args(pids)).map(drop)
}

/// Resident memory of a process, in KiB.
#[derive(Clone, Copy, Debug)]
pub struct Memory {
    /// Now.
    pub now: usize,
    /// The most so far.
    pub peak: usize,
}

/// Memory of a process, by its id.
pub fn memory(pid: u32) -> Result<Memory> {
    let file = format!("/proc/{pid}/status");
    let status = fs::read_to_string(&file).with_context(|| format!("process {pid} has ended"))?;
    let field = |key: &str| -> Result<usize> {
        let line = status.lines().find_map(|line| line.strip_prefix(key));
        let kib = line.and_then(|line| line.trim_start_matches(':').split_whitespace().next()?.parse().ok());
        kib.with_context(|| format!("no {key} in {file}"))
    };
    Ok(Memory {
        now: field("VmRSS")?,
        peak: field("VmHWM")?,
    })
}

/// A child of a process, by its id.
pub(crate) fn child_of(parent: u32) -> Option<u32> {
    let processes = fs::read_dir("/proc").ok()?.flatten();
    let mut ids = processes.filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok());
    ids.find(|id| parent_of(*id) == Some(parent))
}

/// A process and all that it has started, and those in turn, by their ids.
pub fn tree(root: u32) -> Vec<u32> {
    let processes = fs::read_dir("/proc").into_iter().flatten().flatten();
    let ids = processes.filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok());
    let parents: Vec<_> = ids.filter_map(|id| Some((id, parent_of(id)?))).collect();
    let mut tree = vec![root];
    let mut next = 0;
    while let Some(&parent) = tree.get(next) {
        let children = parents.iter().filter(|(_, of)| *of == parent);
        tree.extend(children.map(|(id, _)| id));
        next += 1;
    }
    tree
}

/// The parent of a process.
fn parent_of(id: u32) -> Option<u32> {
    // After the name, which may contain anything: the state, then the parent.
    let stat = fs::read_to_string(format!("/proc/{id}/stat")).ok()?;
    let (_, fields) = stat.rsplit_once(')')?;
    fields.split_whitespace().nth(1)?.parse().ok()
}

/// The names of all components recorded in `dir`.
pub(crate) fn recorded(dir: &Path) -> Result<Vec<String>> {
    let entries = fs::read_dir(dir).with_context(|| format!("cannot read {}", dir.display()))?;
    let names = entries
        .flatten()
        .filter_map(|entry| Some(entry.file_name().to_str()?.strip_suffix(".pid")?.to_owned()));
    Ok(names.collect())
}

/// Runs a program to its end, and returns what it says; fails with what it complains of.
pub(crate) fn output(command: &mut Command) -> Result<String> {
    let output = command.output().with_context(|| format!("cannot run {command:?}"))?;
    if !output.status.success() {
        bail!("{command:?} failed: {}", String::from_utf8_lossy(&output.stderr));
    }
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}

/// Whether this process runs as root.
pub(crate) fn is_root() -> bool {
    fs::read_to_string("/proc/self/status").is_ok_and(|status| {
        status
            .lines()
            .filter_map(|line| line.strip_prefix("Uid:"))
            .any(|ids| ids.split_whitespace().nth(1) == Some("0"))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_dropped_component_takes_its_own_processes_with_it() {
        let folder = tempfile::tempdir().unwrap();
        let child_pid = folder.path().join("child");
        // As servers do that start workers, which outlive a killed server.
        let script = format!(
            "sleep 1000 & echo $! >{0}.new; mv {0}.new {0}; wait",
            child_pid.display()
        );
        let component = Component {
            name: "server".to_owned(),
            program: "sh".into(),
            args: vec!["-c".to_owned(), script],
            dir: folder.path().to_owned(),
            scratch: None,
        };
        let process = component.spawn().unwrap();
        wait_until(|| child_pid.is_file());
        let child = fs::read_to_string(child_pid).unwrap();
        let runs =
            || fs::read_to_string(format!("/proc/{}/stat", child.trim())).is_ok_and(|stat| !stat.contains(") Z "));
        assert!(runs());
        let server = recorded_pid(folder.path(), "server").unwrap();
        assert!(tree(server).contains(&child.trim().parse().unwrap()));
        drop(process);
        wait_until(|| !runs());
        assert_eq!(recorded(folder.path()).unwrap(), Vec::<String>::new());
    }

    fn wait_until(condition: impl Fn() -> bool) {
        let start = Instant::now();
        while !condition() {
            assert!(start.elapsed() < Duration::from_mins(1), "still not so after a minute");
            std::thread::sleep(Duration::from_millis(10));
        }
    }
}
