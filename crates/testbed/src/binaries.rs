//! The Kubernetes programs themselves: found where the user says, or built from source once and kept.

use std::{
    fmt::Write as _,
    fs::{self, File},
    path::{Path, PathBuf},
    process::{Command, Stdio},
    time::{Duration, Instant},
};

use anyhow::{Context, Result, bail};
use indicatif::{ProgressBar, ProgressStyle};
use sha2::{Digest, Sha256};

use crate::say;

const KUBERNETES: Module = Module {
    name: "kubernetes",
    go_mod: include_str!("../kubernetes/go.mod"),
    go_sum: include_str!("../kubernetes/go.sum"),
};
const ETCD: Module = Module {
    name: "etcd",
    go_mod: include_str!("../etcd/go.mod"),
    go_sum: include_str!("../etcd/go.sum"),
};

/// In build order: the quick one first, so that a broken toolchain shows at once.
const PROGRAMS: [Program; 4] = [
    Program {
        name: "etcd",
        package: "go.etcd.io/etcd/server/v3",
        module: &ETCD,
    },
    Program {
        name: "kube-apiserver",
        package: "k8s.io/kubernetes/cmd/kube-apiserver",
        module: &KUBERNETES,
    },
    Program {
        name: "kube-controller-manager",
        package: "k8s.io/kubernetes/cmd/kube-controller-manager",
        module: &KUBERNETES,
    },
    Program {
        name: "kubectl",
        package: "k8s.io/kubernetes/cmd/kubectl",
        module: &KUBERNETES,
    },
];

/// Without the version stamp an apiserver says "v0.0.0" and refuses to start.
const LDFLAGS: &str = "-s -w \
    -X k8s.io/component-base/version.gitVersion=v1.36.3 \
    -X k8s.io/component-base/version.gitMajor=1 \
    -X k8s.io/component-base/version.gitMinor=36";
const FLAGS: [&str; 4] = ["-trimpath", "-buildvcs=false", "-ldflags", LDFLAGS];

struct Module {
    name: &'static str,
    go_mod: &'static str,
    go_sum: &'static str,
}

struct Program {
    name: &'static str,
    package: &'static str,
    module: &'static Module,
}

/// Where the programs of a control plane are.
#[derive(Clone, Debug)]
pub struct Binaries {
    /// The etcd server.
    pub etcd: PathBuf,
    /// The API server.
    pub kube_apiserver: PathBuf,
    /// Garbage collection, default service accounts, namespaces, Deployments.
    pub kube_controller_manager: PathBuf,
    /// The command line client.
    pub kubectl: PathBuf,
}

impl Binaries {
    /// Finds the programs, building the missing ones. Blocking, and minutes long the first time: progress goes to stderr.
    ///
    /// `KUBEBUILDER_ASSETS` names a folder to take them from. What is not there (it has no controller manager)
    /// comes from the cache, a folder named after the hash of everything that decides the outcome.
    pub fn ensure() -> Result<Self> {
        let assets = environment("KUBEBUILDER_ASSETS").map(PathBuf::from);
        let found = |name: &str| {
            assets
                .as_ref()
                .map(|folder| folder.join(name))
                .filter(|path| path.is_file())
        };

        let cache = cache_folder()?;
        let missing: Vec<_> = PROGRAMS.iter().filter(|p| found(p.name).is_none()).collect();
        build_missing(&cache, &missing)?;

        let path = |name: &str| found(name).unwrap_or_else(|| cache.join(name));
        Ok(Self {
            etcd: path("etcd"),
            kube_apiserver: path("kube-apiserver"),
            kube_controller_manager: path("kube-controller-manager"),
            kubectl: path("kubectl"),
        })
    }
}

fn build_missing(cache: &Path, wanted: &[&Program]) -> Result<()> {
    let is_missing = |program: &&&Program| !cache.join(program.name).is_file();
    if !wanted.iter().any(|program| is_missing(&program)) {
        return Ok(());
    }

    fs::create_dir_all(cache).with_context(|| {
        format!(
            "cannot create the cache folder {}; set XDG_CACHE_HOME to a folder that can be written",
            cache.display()
        )
    })?;
    let _lock = lock(cache)?;

    // Asked again under the lock: another process may have built them meanwhile.
    let todo: Vec<_> = wanted.iter().filter(is_missing).collect();
    if todo.is_empty() {
        return Ok(());
    }
    check_go()?;
    say(&format!(
        "Building Kubernetes from source, once (5 to 7 minutes on two cores); it is kept in {}",
        cache.display()
    ));
    for (index, program) in todo.iter().enumerate() {
        build(
            cache,
            program,
            &format!("[{}/{}] {}", index + 1, todo.len(), program.name),
        )?;
    }
    Ok(())
}

/// One builder at a time, across processes. The lock ends with the file handle, so a killed builder leaves none behind.
fn lock(cache: &Path) -> Result<File> {
    let file = File::create(cache.join("lock")).context("cannot create the lock file of the cache folder")?;
    if file.try_lock().is_err() {
        say("Another process is building the Kubernetes binaries; waiting for it");
        file.lock().context("cannot lock the cache folder")?;
    }
    Ok(file)
}

fn check_go() -> Result<()> {
    let go = Command::new("go")
        .arg("version")
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .status();
    match go {
        Ok(status) if status.success() => Ok(()),
        _ => bail!(
            "the command `go` is missing, and without it the test bed cannot build Kubernetes: \
             install Go 1.26 or later, or set KUBEBUILDER_ASSETS to a folder with etcd, kube-apiserver, \
             kube-controller-manager and kubectl"
        ),
    }
}

/// Builds under another name and renames at the end, so that a file in the cache is always a whole one.
fn build(cache: &Path, program: &Program, label: &str) -> Result<()> {
    let source = cache.join("src").join(program.module.name);
    fs::create_dir_all(&source)?;
    fs::write(source.join("go.mod"), program.module.go_mod)?;
    fs::write(source.join("go.sum"), program.module.go_sum)?;

    let unfinished = cache.join(format!("{}.unfinished", program.name));
    let log_path = cache.join(format!("{}.build.log", program.name));
    let log = File::create(&log_path)?;
    let mut child = Command::new("go")
        .arg("build")
        .args(FLAGS)
        .arg("-o")
        .args([&unfinished])
        .arg(program.package)
        .current_dir(&source)
        .env("CGO_ENABLED", "0")
        .env("GOWORK", "off")
        .env("GOFLAGS", "-mod=readonly")
        .stdin(Stdio::null())
        .stdout(log.try_clone()?)
        .stderr(log)
        .spawn()
        .context("cannot run `go build`")?;

    let progress = Progress::start(label);
    let status = loop {
        if let Some(status) = child.try_wait()? {
            break status;
        }
        std::thread::sleep(Duration::from_millis(200));
        progress.tick();
    };
    if !status.success() {
        progress.end("failed");
        bail!(
            "`go build {}` failed ({status}); its last lines, all of them in {}:\n{}",
            program.package,
            log_path.display(),
            crate::last_lines(&log_path, 20)
        );
    }
    fs::rename(&unfinished, cache.join(program.name))?;
    progress.end("built");
    Ok(())
}

/// A spinner on a terminal; elsewhere a line at the start, at the end, and every half minute between.
struct Progress {
    label: String,
    start: Instant,
    bar: ProgressBar,
    said: std::cell::Cell<u64>,
}

impl Progress {
    fn start(label: &str) -> Self {
        let style = ProgressStyle::with_template("{spinner} {msg} {elapsed}")
            .unwrap_or_else(|_| ProgressStyle::default_spinner());
        let bar = ProgressBar::new_spinner()
            .with_style(style)
            .with_message(format!("building {label}"));
        if bar.is_hidden() {
            say(&format!("building {label}"));
        }
        Self {
            label: label.to_owned(),
            start: Instant::now(),
            bar,
            said: std::cell::Cell::new(0),
        }
    }

    fn tick(&self) {
        self.bar.tick();
        let half_minutes = self.start.elapsed().as_secs() / 30;
        if self.bar.is_hidden() && half_minutes > self.said.replace(half_minutes) {
            say(&format!("building {}, {} s", self.label, half_minutes * 30));
        }
    }

    fn end(&self, outcome: &str) {
        self.bar.finish_and_clear();
        say(&format!(
            "{outcome} {} in {} s",
            self.label,
            self.start.elapsed().as_secs()
        ));
    }
}

/// Outside the checkout, so that every checkout shares it; named so that any change of pins or flags builds anew.
fn cache_folder() -> Result<PathBuf> {
    let base = environment("XDG_CACHE_HOME")
        .map(PathBuf::from)
        .or_else(|| std::env::home_dir().map(|home| home.join(".cache")))
        .context("no home folder, so there is no place to keep the Kubernetes binaries: set XDG_CACHE_HOME")?;
    Ok(base.join("kubeairunway-testbed").join(fingerprint()))
}

fn fingerprint() -> String {
    let mut hash = Sha256::new();
    for module in [&KUBERNETES, &ETCD] {
        hash.update(module.go_mod);
        hash.update(module.go_sum);
    }
    for flag in FLAGS {
        hash.update(flag);
    }
    let hex = hash.finalize().iter().fold(String::new(), |mut hex, byte| {
        let _ = write!(hex, "{byte:02x}");
        hex
    });
    hex[..12].to_owned()
}

#[expect(
    clippy::disallowed_methods,
    reason = "these variables are how every Kubernetes test tool is told where its programs are; tests have no arguments"
)]
fn environment(name: &str) -> Option<String> {
    std::env::var(name).ok().filter(|value| !value.is_empty())
}
