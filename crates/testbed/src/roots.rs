//! Debian packages that this machine's release does not have: fetched from Debian sid and unpacked into a root of their own.
//!
//! apt runs with lists, state, cache and sources of its own, so the machine's packages and sources stay as they are, and root
//! is not needed. The mirror and proxy are the machine's, and Debian's signatures are checked with the machine's keyring.

use std::{
    fs,
    path::{Path, PathBuf},
    process::{Command, Stdio},
};

use anyhow::{Context, Result, bail};

use crate::{
    cache::{cache_folder, hold},
    process::output,
    say,
};

const SUITE: &str = "sid";
const KEYRING: &str = "/usr/share/keyrings/debian-archive-keyring.gpg";
/// Debian's top-level folders are links; no package depends on the one that contains them.
const LINKS: [(&str, &str); 4] = [
    ("bin", "usr/bin"),
    ("sbin", "usr/sbin"),
    ("lib", "usr/lib"),
    ("lib64", "usr/lib64"),
];
/// Changes with every change below, so that no cached root is an old one.
const RECIPE: &str = "1";

/// A package with all that it depends on, unpacked.
#[derive(Clone)]
pub(crate) struct Root {
    /// Path on this machine.
    pub(crate) folder: PathBuf,
    /// `NAME VERSION` on a line each.
    pub(crate) packages: String,
}

impl Root {
    /// Folder of the libraries.
    pub(crate) fn libraries(&self) -> Result<PathBuf> {
        entry(&self.folder.join("usr/lib"), "-linux-gnu")
    }

    /// Command of a program, such as `/usr/bin/NAME`, without a change of root: the loader of the root finds its libraries, also those
    /// in these folders below [`Self::libraries`].
    pub(crate) fn command(&self, program: &str, folders: &[&str]) -> Result<Vec<String>> {
        let libraries = self.libraries()?;
        let text = |path: &Path| path.display().to_string();
        let loader = text(&entry(&libraries, "ld-linux")?);
        let all = folders.iter().map(|folder| text(&libraries.join(folder)));
        let search: Vec<String> = [text(&libraries)].into_iter().chain(all).collect();
        let program = format!("{}{program}", text(&self.folder));
        Ok(vec![loader, "--library-path".to_owned(), search.join(":"), program])
    }

    /// Command of a program, such as `/usr/bin/NAME`, for which this root is the root directory: for programs that start others.
    /// It sees the machine's processes, devices, settings and temporary files. Only root can run it.
    pub(crate) fn command_inside(&self, program: &str) -> Vec<String> {
        let (root, temporary) = (self.folder.display(), std::env::temp_dir());
        let enter = ["unshare", "--mount", "--propagation", "private", "sh", "-c", ENTER];
        let arguments = [&root.to_string(), &temporary.display().to_string(), program].map(str::to_owned);
        enter.map(str::to_owned).into_iter().chain(arguments).collect()
    }
}

/// Mounts what a program needs below a root ($0), with the folder of temporary files ($1), and becomes that program. Its process id
/// stays the same.
const ENTER: &str = r#"
set -e
root=$0
for folder in /proc /dev /etc "$1"; do
    mkdir -p "$root$folder"
    mount --rbind "$folder" "$root$folder"
done
shift
exec chroot "$root" "$@"
"#;

/// Whether there is a root.
pub(crate) enum Outcome {
    Ready(Root),
    /// Reason why it is not available on this machine.
    Unavailable(String),
}

impl Outcome {
    /// The root. If it is not available, `what` is skipped, which is said past the test harness.
    pub(crate) fn or_skip(self, what: &str) -> Option<Root> {
        match self {
            Self::Ready(root) => Some(root),
            Self::Unavailable(reason) => {
                say(&format!("SKIPPED: {what}, because {reason}"));
                None
            }
        }
    }
}

/// A root with these packages from Debian sid, made once for the machine and named after the first. Blocking; says what it does.
///
/// # Errors
///
/// The mirror does not answer, a signature is wrong, or a package cannot be unpacked.
pub(crate) fn with_packages(packages: &[&str]) -> Result<Outcome> {
    let package = packages.first().context("a root has a package")?;
    let folder = cache_folder()?.join(format!("{SUITE}-{package}-{RECIPE}"));
    if let Some(root) = made(&folder) {
        return Ok(Outcome::Ready(root));
    }
    // Updating apt's lists can remove what another apt has just downloaded, also with lists of its own.
    let _lock = hold("packages")?;
    if let Some(root) = made(&folder) {
        return Ok(Outcome::Ready(root));
    }
    let mirror = match mirror() {
        Ok(mirror) => mirror,
        Err(reason) => return Ok(Outcome::Unavailable(reason)),
    };
    say(&format!(
        "Fetching {package} from Debian {SUITE} with what it depends on, once"
    ));
    let unfinished = tempfile::tempdir_in(cache_folder()?)?;
    let apt = Apt::new(unfinished.path(), &mirror)?;
    apt.run(&["update", "--error-on=any"])?;
    if let Err(error) = apt.install("--simulate", packages) {
        let reason = format!("Debian {SUITE} cannot give {package} to this machine: {error:#}");
        return Ok(Outcome::Unavailable(reason));
    }
    apt.install("--download-only", packages)?;
    let packages = unpack(&apt.archives(), &unfinished.path().join("root"))?;
    fs::write(unfinished.path().join("root.packages"), packages)?;
    fs::remove_dir_all(apt.folder)?;
    let _ = fs::remove_dir_all(&folder);
    fs::rename(unfinished.keep(), &folder)?;
    made(&folder).map(Outcome::Ready).context("a root was made and is gone")
}

fn made(folder: &Path) -> Option<Root> {
    Some(Root {
        packages: fs::read_to_string(folder.join("root.packages")).ok()?,
        folder: folder.join("root"),
    })
}

/// Source of Debian packages of this machine, or the reason why it has none.
fn mirror() -> Result<String, String> {
    if !Path::new(KEYRING).is_file() {
        return Err(format!("this is not Debian: there is no {KEYRING}"));
    }
    let sources = output(Command::new("apt-get").args([
        "indextargets",
        "--format",
        "$(LABEL)|$(REPO_URI)",
        "Identifier: Packages",
    ]))
    .map_err(|error| format!("this is not Debian: {error:#}"))?;
    let mirrors: Vec<(&str, &str)> = sources.lines().filter_map(|line| line.split_once('|')).collect();
    // The label comes with the lists, which a fresh machine has not.
    let labelled = mirrors.iter().find(|(label, _)| *label == "Debian");
    labelled
        .or_else(|| mirrors.iter().find(|(_, uri)| uri.ends_with("/debian/")))
        .map(|(_, uri)| (*uri).to_owned())
        .ok_or_else(|| "apt's sources on this machine name no mirror of Debian".to_owned())
}

/// apt with a folder of its own, for which no package is installed.
struct Apt {
    folder: PathBuf,
}

impl Apt {
    fn new(parent: &Path, mirror: &str) -> Result<Self> {
        let folder = parent.join("apt");
        for sub in ["lists/partial", "cache/archives/partial"] {
            fs::create_dir_all(folder.join(sub))?;
        }
        fs::write(folder.join("status"), "")?;
        fs::write(
            folder.join("debian.sources"),
            format!(
                "Types: deb\nURIs: {mirror}\nSuites: {SUITE}\nComponents: main\nTargets: Packages\nSigned-By: {KEYRING}\n"
            ),
        )?;
        Ok(Self { folder })
    }

    fn archives(&self) -> PathBuf {
        self.folder.join("cache/archives")
    }

    fn install(&self, option: &str, packages: &[&str]) -> Result<()> {
        self.run(&[&["install", option], packages].concat())
    }

    fn run(&self, args: &[&str]) -> Result<()> {
        let own = [
            ("Dir::State", ""),
            ("Dir::State::status", "status"),
            ("Dir::Cache", "cache"),
            ("Dir::Etc::sourcelist", "debian.sources"),
        ];
        let paths = own.map(|(setting, path)| format!("{setting}={}", self.folder.join(path).display()));
        let settings = [
            "Dir::Etc::sourceparts=/dev/null",
            "Dir::Etc::preferences=/dev/null",
            "Dir::Etc::preferencesparts=/dev/null",
            "Acquire::Languages=none",
            "APT::Install-Recommends=false",
            // The user to which root's apt changes for downloads may not write to a folder of root's.
            "APT::Sandbox::User=",
        ];
        let settings = paths.iter().map(String::as_str).chain(settings);
        let mut command = Command::new("apt-get");
        command.args(["--quiet", "--yes"]).args(args);
        for setting in settings {
            command.args(["-o", setting]);
        }
        command.env("DEBIAN_FRONTEND", "noninteractive").stdin(Stdio::null());
        let output = command.output().context("cannot run apt-get")?;
        if !output.status.success() {
            bail!(
                "`apt-get {}` failed: {}",
                args.join(" "),
                String::from_utf8_lossy(&output.stderr).trim()
            );
        }
        Ok(())
    }
}

/// Unpacks all packages in `archives` into the new folder `root`, and lists them.
fn unpack(archives: &Path, root: &Path) -> Result<String> {
    fs::create_dir(root)?;
    for (link, target) in LINKS {
        fs::create_dir_all(root.join(target))?;
        std::os::unix::fs::symlink(target, root.join(link))?;
    }
    let entries = fs::read_dir(archives)?.map(|entry| Ok(entry?.path()));
    let mut packages: Vec<PathBuf> = entries.collect::<Result<_>>()?;
    packages.retain(|path| path.extension().is_some_and(|extension| extension == "deb"));
    packages.sort();
    let mut list = String::new();
    for package in packages {
        output(Command::new("dpkg-deb").arg("--extract").args([&package, root]))?;
        list += &output(
            Command::new("dpkg-deb")
                .args(["--show", "--showformat=${Package} ${Version}\\n"])
                .arg(&package),
        )?;
    }
    Ok(list)
}

/// The entry of `folder` whose name contains `part`.
pub(crate) fn entry(folder: &Path, part: &str) -> Result<PathBuf> {
    let entries = fs::read_dir(folder).with_context(|| format!("cannot read {}", folder.display()))?;
    entries
        .flatten()
        .map(|entry| entry.path())
        .find(|path| {
            path.file_name()
                .is_some_and(|name| name.to_string_lossy().contains(part))
        })
        .with_context(|| format!("{} has no entry with `{part}` in its name", folder.display()))
}
