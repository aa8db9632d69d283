//! Small images that tests use, made once for the machine from what Debian has.

use std::{
    fs,
    path::{Path, PathBuf},
    process::Command,
};

use anyhow::{Context, Result, bail};
use sha2::{Digest as _, Sha256};

use super::{Config, Rootfs};
use crate::{cache::cache_folder, packages, process::output};

const PAUSE: &str = include_str!("pause.c");
/// Changes with every change below, so that no cached archive is an old one.
const RECIPE: &str = "1";
const BUSYBOX_PROGRAM: &str = "/bin/busybox";
const PYTHON_PROGRAM: &str = "/usr/bin/python3";

/// An image in an archive.
#[derive(Clone, Debug)]
pub struct Image {
    /// Reference in a pod, with `imagePullPolicy: IfNotPresent` or `Never`.
    pub name: String,
    /// Its OCI archive.
    pub archive: PathBuf,
}

/// `pause`: waits for a signal to end. Every pod has one.
pub fn pause() -> Result<Image> {
    made_once("pause", PAUSE.as_bytes(), |name, archive| {
        packages::ensure(&packages::NODE)?;
        let folder = tempfile::tempdir()?;
        let (source, program) = (folder.path().join("pause.c"), folder.path().join("pause"));
        fs::write(&source, PAUSE)?;
        let output = Command::new("gcc")
            .args(["-static", "-Os", "-s", "-o"])
            .args([&program, &source])
            .output()
            .context("cannot run gcc")?;
        if !output.status.success() {
            bail!("gcc failed: {}", String::from_utf8_lossy(&output.stderr));
        }
        let mut rootfs = Rootfs::empty();
        rootfs.file("/pause", program, 0o755)?;
        let config = Config {
            entrypoint: vec!["/pause".to_owned()],
            ..Config::default()
        };
        config.write(name, &rootfs, archive)
    })
}

/// A shell and the small tools of Debian's busybox (`sh`, `nslookup`, `wget`, `nc`, `httpd`, …), which can resolve names.
pub fn busybox() -> Result<Image> {
    packages::ensure(&packages::BUSYBOX)?;
    made_once("busybox", &fs::read(BUSYBOX_PROGRAM)?, |name, archive| {
        let mut rootfs = busybox_files()?;
        rootfs.add_libraries()?;
        let config = Config {
            args: vec!["sh".to_owned()],
            env: vec!["PATH=/bin".to_owned()],
            ..Config::default()
        };
        config.write(name, &rootfs, archive)
    })
}

/// The files of [`busybox`] without libraries, for images that want a shell as well.
pub fn busybox_files() -> Result<Rootfs> {
    packages::ensure(&packages::BUSYBOX)?;
    let mut rootfs = Rootfs::minimal();
    rootfs.file("/bin/busybox", BUSYBOX_PROGRAM, 0o755)?;
    for applet in output(Command::new(BUSYBOX_PROGRAM).arg("--list"))?.lines() {
        if applet != "busybox" {
            rootfs.link(format!("/bin/{applet}"), "busybox");
        }
    }
    Ok(rootfs)
}

/// Debian's Python 3 with its standard library, and busybox. Works as any user and with a read-only root.
pub fn python() -> Result<Image> {
    packages::ensure(&packages::PYTHON)?;
    made_once("python", &fs::read(PYTHON_PROGRAM)?, |name, archive| {
        let mut rootfs = python_files()?;
        rootfs.add_libraries()?;
        python_config().write(name, &rootfs, archive)
    })
}

/// The files of [`python`] without libraries: add a program, then [`Rootfs::add_libraries`], and use the same settings.
pub fn python_files() -> Result<Rootfs> {
    packages::ensure(&packages::PYTHON)?;
    let mut rootfs = busybox_files()?;
    let program = fs::canonicalize(PYTHON_PROGRAM)?;
    let name = program
        .file_name()
        .and_then(|name| name.to_str())
        .context("Python has no name")?;
    // Compiled files carry the time of their source, which an image has not.
    let leave_out = |path: &Path| {
        let skipped = ["__pycache__", "test", "idlelib", "tkinter", "lib2to3", "ensurepip"];
        path.components()
            .any(|part| skipped.iter().any(|skipped| part.as_os_str() == *skipped))
    };
    rootfs
        .file(Path::new("/usr/bin").join(name), &program, 0o755)?
        .link("/usr/bin/python3", name)
        .link("/usr/bin/python", name)
        .tree(
            Path::new("/usr/lib").join(name),
            Path::new("/usr/lib").join(name),
            &leave_out,
        )?;
    Ok(rootfs)
}

/// [`python`] with asya-runtime and its adapters, as they are in this checkout.
pub fn asya_runtime() -> Result<Image> {
    const INSIDE: &str = "/opt/asya-runtime";
    let package = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../python/asya-runtime/src");
    let mut origin = fs::read(PYTHON_PROGRAM)?;
    for folder in ["asya_runtime", "asya_runtime/adapters"] {
        let mut files: Vec<PathBuf> = fs::read_dir(package.join(folder))?
            .map(|entry| Ok(entry?.path()))
            .collect::<Result<_>>()?;
        files.retain(|path| path.extension().is_some_and(|extension| extension == "py"));
        files.sort();
        for file in files {
            origin.extend(fs::read(file)?);
        }
    }
    made_once("asya-runtime", &origin, |name, archive| {
        let mut rootfs = python_files()?;
        let leave_out = |path: &Path| path.components().any(|part| part.as_os_str() == "__pycache__");
        rootfs.tree(INSIDE, &package, &leave_out)?.add_libraries()?;
        let mut config = python_config();
        config.env.push(format!("PYTHONPATH={INSIDE}"));
        config.write(name, &rootfs, archive)
    })
}

fn python_config() -> Config {
    Config {
        entrypoint: vec!["/usr/bin/python3".to_owned()],
        env: vec![
            "PATH=/usr/bin:/bin".to_owned(),
            "LANG=C.UTF-8".to_owned(),
            "PYTHONUNBUFFERED=1".to_owned(),
            "HOME=/tmp".to_owned(),
        ],
        ..Config::default()
    }
}

/// The image in the cache, made by `make` if it is not there. `origin` decides whether a cached one is still right.
pub(crate) fn made_once(name: &str, origin: &[u8], make: impl FnOnce(&str, &Path) -> Result<String>) -> Result<Image> {
    let mut hash = Sha256::new();
    hash.update(RECIPE);
    hash.update(origin);
    let fingerprint = &hex::encode(hash.finalize())[..12];
    let image = Image {
        name: format!("testbed.local/{name}:1"),
        archive: cache_folder()?.join("images").join(format!("{name}-{fingerprint}.tar")),
    };
    if !image.archive.is_file() {
        make(&image.name, &image.archive).with_context(|| format!("cannot make the image {}", image.name))?;
    }
    Ok(image)
}
