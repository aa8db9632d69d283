//! Record of the resources that a node uses on this machine, so that they are released however its owner ends.
//!
//! Processes, mounts and the node's network live in namespaces of the node's first process and end with it. What
//! outlives it is here: cgroups, the cable's end on the host, and folders.

use std::{
    fs::{self, File},
    io::ErrorKind,
    path::{Path, PathBuf},
    process::Command,
    thread::sleep,
    time::{Duration, Instant},
};

use anyhow::{Context, Result, bail};
use serde::{Deserialize, Serialize};

use super::Network;
use crate::say;

/// Removed by a reboot, as the recorded resources are.
const RECORDS: &str = "/run/runway-testbed";
const PATIENCE: Duration = Duration::from_secs(20);
/// CPU weight of a node's pods, all together, in multiples of the kernel's default.
const POD_WEIGHT: u32 = 8;

/// One node's share of the machine. Dropping it ends the node and takes everything back.
pub(crate) struct Claim {
    record: Record,
}

#[derive(Clone, Serialize, Deserialize)]
struct Record {
    network: Network,
    cgroup: String,
    /// Process that uses the node, unless it is kept.
    owner: Identity,
    /// The node's first process.
    first: Option<Identity>,
    /// Lives on without its owner.
    kept: bool,
    /// Goes with the node.
    folder: Option<PathBuf>,
    /// Goes when the owner died without tidying up.
    temporary: Option<PathBuf>,
    path: PathBuf,
}

/// A process: ids come again, with another start time.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
struct Identity {
    pid: u32,
    start: String,
}

impl Claim {
    /// Takes back what dead owners left, then claims what is free.
    pub(crate) fn take() -> Result<Self> {
        let _lock = lock()?;
        sweep_locked()?;
        let taken: Vec<PathBuf> = records()?.into_iter().map(|record| record.path).collect();
        for index in 0..Network::MOST {
            let path = Path::new(RECORDS).join(format!("{index}.json"));
            let network = Network::new(index);
            if taken.contains(&path) || !network.is_free()? {
                continue;
            }
            let record = Record {
                network,
                cgroup: format!("runway-testbed-{index}"),
                owner: Identity::of(std::process::id()).context("we do not exist")?,
                first: None,
                kept: false,
                folder: None,
                temporary: None,
                path,
            };
            record.write()?;
            // From here on the record makes sure that nothing is forgotten.
            let claim = Self { record };
            claim.record.network.lay()?;
            claim.record.make_cgroups()?;
            return Ok(claim);
        }
        bail!(
            "{} nodes run on this machine already, or their addresses (10.213.0.0/16) are in use",
            Network::MOST
        )
    }

    pub(crate) fn network(&self) -> &Network {
        &self.record.network
    }

    /// The path of the node's cgroup in each hierarchy.
    pub(crate) fn cgroup(&self) -> String {
        format!("/{}", self.record.cgroup)
    }

    /// `folder` goes with the node; `temporary` goes when we die before we can tidy up.
    pub(crate) fn folders(&mut self, folder: &Path, temporary: Option<&Path>) -> Result<()> {
        self.record.folder = Some(folder.to_owned());
        self.record.temporary = temporary.map(Path::to_owned);
        self.record.write()
    }

    /// The node's first process, by its id on the host.
    pub(crate) fn first_process(&mut self, pid: u32) -> Result<()> {
        self.record.first = Some(Identity::of(pid).context("the node's first process has ended")?);
        self.record.write()
    }

    /// The claim of the kept node whose folder is in `dir`, if there is one.
    pub(crate) fn kept_in(dir: &Path) -> Result<Option<Self>> {
        let _lock = lock()?;
        let mut records = records()?.into_iter();
        let record =
            records.find(|record| record.kept && record.folder.as_ref().is_some_and(|folder| folder.starts_with(dir)));
        Ok(record.map(|record| Self { record }))
    }

    /// Ends the node's processes, and so its mounts and its network. The host keeps its address until [`Self::end`].
    pub(crate) fn end_processes(&self) -> Result<()> {
        self.record.end_processes()
    }

    /// Ends the node, also one that is kept.
    pub(crate) fn end(mut self) -> Result<()> {
        // Dropping has nothing left to do, whatever comes out.
        self.record.kept = true;
        self.record.release()
    }

    /// From now on the node needs no owner.
    pub(crate) fn keep(&mut self) -> Result<()> {
        self.record.kept = true;
        self.record.write()
    }
}

impl Drop for Claim {
    fn drop(&mut self) {
        if self.record.kept {
            return;
        }
        if let Err(error) = self.record.release() {
            say(&format!(
                "cannot end a node wholly, the next start tries again: {error:#}"
            ));
        }
    }
}

/// Takes back what dead owners left. Returns how many nodes that were.
pub(crate) fn sweep() -> Result<usize> {
    let _lock = lock()?;
    sweep_locked()
}

fn sweep_locked() -> Result<usize> {
    let mut swept = 0;
    for record in records()?.into_iter().filter(|record| !record.is_in_use()) {
        say(&format!(
            "taking back what is left of the node {} of process {}, which has ended",
            record.cgroup, record.owner.pid
        ));
        record.release()?;
        if let Some(folder) = &record.temporary {
            remove_folder(folder)?;
        }
        swept += 1;
    }
    Ok(swept)
}

fn lock() -> Result<File> {
    fs::create_dir_all(RECORDS).with_context(|| format!("cannot create {RECORDS}"))?;
    let file = File::create(Path::new(RECORDS).join("lock")).context("cannot create the lock file of nodes")?;
    file.lock().context("cannot lock the record of nodes")?;
    Ok(file)
}

fn records() -> Result<Vec<Record>> {
    let mut records = Vec::new();
    for entry in fs::read_dir(RECORDS)?.flatten() {
        let path = entry.path();
        if path.extension().is_some_and(|extension| extension == "json")
            && let Ok(text) = fs::read_to_string(&path)
        {
            let record = serde_json::from_str(&text).with_context(|| {
                format!(
                    "{} is damaged: remove it and the resources that it lists",
                    path.display()
                )
            })?;
            records.push(record);
        }
    }
    Ok(records)
}

impl Record {
    /// Whole or not at all: a reader may come at any time.
    fn write(&self) -> Result<()> {
        let unfinished = self.path.with_extension("unfinished");
        fs::write(&unfinished, serde_json::to_string(self)?)?;
        fs::rename(unfinished, &self.path).context("cannot record a node")
    }

    fn is_in_use(&self) -> bool {
        if self.kept {
            self.first.as_ref().is_some_and(Identity::lives)
        } else {
            self.owner.lives()
        }
    }

    /// Ends the node and removes what it had; the record last, so that a failure is tried again.
    fn release(&self) -> Result<()> {
        self.end_processes()?;
        for cgroup in self.cgroups()? {
            remove_cgroup(&cgroup)?;
        }
        self.network.remove();
        if let Some(folder) = &self.folder {
            remove_folder(folder)?;
        }
        fs::remove_file(&self.path).or_else(|error| match error.kind() {
            ErrorKind::NotFound => Ok(()),
            _ => Err(error.into()),
        })
    }

    /// The kernel ends every process of the node with its first one. Those in its cgroups are named as well, in
    /// case the record was written too late.
    fn end_processes(&self) -> Result<()> {
        let start = Instant::now();
        loop {
            let mut pids: Vec<String> = self
                .first
                .iter()
                .filter(|first| first.lives())
                .map(|first| first.pid.to_string())
                .collect();
            for cgroup in self.cgroups()? {
                collect_processes(&cgroup, &mut pids);
            }
            if pids.is_empty() {
                return Ok(());
            }
            if start.elapsed() > PATIENCE {
                bail!("processes of the node {} do not end: {}", self.cgroup, pids.join(" "));
            }
            let _ = Command::new("kill").arg("-KILL").args(&pids).output();
            sleep(Duration::from_millis(20));
        }
    }

    fn make_cgroups(&self) -> Result<()> {
        for cgroup in self.cgroups()? {
            fs::create_dir_all(&cgroup).with_context(|| format!("cannot create the cgroup {}", cgroup.display()))?;
            // Each session of processes beside the node weighs as much as a cgroup does by default, and so would all pods together.
            for (file, default) in [("cpu.shares", 1024), ("cpu.weight", 100)] {
                let file = cgroup.join(file);
                if file.exists() {
                    fs::write(&file, (POD_WEIGHT * default).to_string())
                        .with_context(|| format!("cannot write {}", file.display()))?;
                }
            }
        }
        Ok(())
    }

    /// One for each hierarchy: a single one with version 2, many with version 1.
    fn cgroups(&self) -> Result<Vec<PathBuf>> {
        let mounts = fs::read_to_string("/proc/self/mountinfo").context("cannot read the table of mounts")?;
        let roots = mounts.lines().filter_map(|line| {
            let (place, kind) = line.split_once(" - ")?;
            kind.starts_with("cgroup").then(|| place.split(' ').nth(4)).flatten()
        });
        Ok(roots.map(|root| Path::new(root).join(&self.cgroup)).collect())
    }
}

impl Identity {
    fn of(pid: u32) -> Option<Self> {
        let text = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
        // After the name, which may contain anything: state is field 3 of the manual page, start time field 22.
        let mut fields = text.rsplit_once(')')?.1.split_whitespace();
        let is_zombie = fields.next()? == "Z";
        let start = fields.nth(18)?.to_owned();
        (!is_zombie).then_some(Self { pid, start })
    }

    fn lives(&self) -> bool {
        Self::of(self.pid).as_ref() == Some(self)
    }
}

fn collect_processes(cgroup: &Path, pids: &mut Vec<String>) {
    let text = fs::read_to_string(cgroup.join("cgroup.procs")).unwrap_or_default();
    pids.extend(text.lines().map(str::to_owned));
    for child in children(cgroup) {
        collect_processes(&child, pids);
    }
}

fn remove_cgroup(cgroup: &Path) -> Result<()> {
    for child in children(cgroup) {
        remove_cgroup(&child)?;
    }
    let start = Instant::now();
    loop {
        match fs::remove_dir(cgroup) {
            Ok(()) => return Ok(()),
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(()),
            // The last process has ended, and the kernel is not yet done with it.
            Err(error) if start.elapsed() > PATIENCE => {
                return Err(error).with_context(|| format!("cannot remove the cgroup {}", cgroup.display()));
            }
            Err(_) => sleep(Duration::from_millis(20)),
        }
    }
}

fn children(folder: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    entries
        .filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_dir()))
        .map(|entry| entry.path())
        .collect()
}

fn remove_folder(folder: &Path) -> Result<()> {
    let start = Instant::now();
    loop {
        match fs::remove_dir_all(folder) {
            Ok(()) => return Ok(()),
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(()),
            // Its mounts went with the last process, a moment ago.
            Err(error) if start.elapsed() > PATIENCE => {
                return Err(error).with_context(|| format!("cannot remove {}", folder.display()));
            }
            Err(_) => sleep(Duration::from_millis(50)),
        }
    }
}
