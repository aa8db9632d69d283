//! Real Llama Stack servers from PyPI, as an environment on this machine and as an image; and what provider images stand on.

use std::{
    fs,
    io::{ErrorKind, Read as _, Write as _},
    net::{TcpStream, ToSocketAddrs as _},
    path::{Path, PathBuf},
    process::Command,
    time::{Duration, Instant},
};

use anyhow::{Context, Result, ensure};
use serde_json::{Value, json};
use sha2::{Digest as _, Sha256};

use crate::{
    PATIENCE,
    cache::{cache_folder, hold},
    images::{Config, Image, Layered, Rootfs, busybox_files, write_all},
    process::output,
    python::{PYTHON, interpreter},
    say,
};

/// A release of llama-stack, with requirements beside its own that make it usable.
#[derive(Clone, Copy, Debug)]
pub struct Release {
    /// Name on PyPI.
    pub package: &'static str,
    /// Version, such as `0.2.20`.
    pub version: &'static str,
    /// For pip.
    pub with: &'static [&'static str],
}

/// The newest, with an `mcp` that it can import: it does not exclude 2.x.
pub const NEWEST: Release = Release {
    package: "llama-stack",
    version: "0.7.3",
    with: &["mcp<2"],
};
/// One of the oldest that the API of today's providers runs on; it does not exclude a newer llama-stack-api either.
pub const OLDER: Release = Release {
    package: "llama-stack",
    version: "0.4.7",
    with: &["llama-stack-api==0.4.7", "mcp<2"],
};

/// The same project under its later name.
pub const OGX: Release = Release {
    package: "ogx",
    version: "1.5.0",
    with: &[],
};

/// Path of Python's library in images.
pub(crate) const PYTHON_LIBRARY: &str = "/usr/local/lib/python3.12";
/// Copies what an image needs of Python's library, and compiles it. Compiled files usually carry the time of their source,
/// which an image has not.
const COPY_LIBRARY: &str = include_str!("llama_stack/copy_library.py");
/// Configuration of the distribution in the image.
const DISTRIBUTION: &str = include_str!("llama_stack/distribution.yaml");
/// Name of that distribution.
const DISTRIBUTION_NAME: &str = "testbed";
/// Changes with what is made here, so that nothing old is taken from the cache.
const RECIPE: &str = "1";

/// The Python of a virtual environment with `release`, installed once on this machine.
pub fn environment(release: Release) -> Result<PathBuf> {
    let python = interpreter()?;
    let Release { package, version, with } = release;
    let what = format!("{package}-{version}");
    let folder = cache_folder()?.join(&what);
    let _lock = hold(&what)?;
    let program = folder.join("bin/python");
    let complete = folder.join("complete");
    let recipe = json!({package: version, "with": with, "recipe": RECIPE}).to_string();
    if fs::read_to_string(&complete).is_ok_and(|made| made == recipe) {
        return Ok(program);
    }
    say(&format!("Installing {package} {version} from PyPI"));
    if folder.exists() {
        fs::remove_dir_all(&folder)?;
    }
    run(Command::new(python).args(["-m", "venv"]).arg(&folder))?;
    let pip = [
        "-m",
        "pip",
        "install",
        "--quiet",
        "--disable-pip-version-check",
        "--no-compile",
    ];
    run(Command::new(&program)
        .args(pip)
        .arg(format!("{package}=={version}"))
        .args(with))?;
    // By hash and unchecked, so that they are valid in an image as well. Of `oci` nothing is wanted. It fails for files that
    // are no Python, which some packages have; what is not compiled now is compiled when it is imported.
    Command::new(&program)
        .args([
            "-m",
            "compileall",
            "-qq",
            "-j",
            "0",
            "--invalidation-mode",
            "unchecked-hash",
            "-x",
            "/oci/",
        ])
        .arg(site_packages(&folder)?)
        .output()?;
    fs::write(complete, recipe)?;
    Ok(program)
}

/// An image with `release` and a distribution without active providers. Its configuration is inside the Python package, as in the
/// public images. Built once on this machine.
pub fn distribution(release: Release) -> Result<Image> {
    let environment = environment(release)?;
    let library = library()?;
    let mut hash = Sha256::new();
    for part in [
        RECIPE,
        DISTRIBUTION,
        &library.display().to_string(),
        &format!("{release:?}"),
    ] {
        hash.update(part);
    }
    let fingerprint = &hex::encode(hash.finalize())[..12];
    let image = Image {
        name: format!("testbed.local/llama-stack:{}", release.version),
        archive: cache_folder()?
            .join("images")
            .join(format!("llama-stack-{}-{fingerprint}.tar", release.version)),
    };
    // A minute of work: one process does it.
    let _lock = hold(&format!("llama-stack-{}-image", release.version))?;
    if !image.archive.is_file() {
        say(&format!("Making the image {}", image.name));
        let base = python_files()?;
        let folder = environment.parent().and_then(Path::parent).context("no environment")?;
        let server = server_files(folder)?;
        let config = Config {
            entrypoint: vec!["llama".to_owned(), "stack".to_owned(), "run".to_owned()],
            args: vec![DISTRIBUTION_NAME.to_owned()],
            env: [
                environment_variables(),
                vec![format!("DISTRO_NAME={DISTRIBUTION_NAME}")],
            ]
            .concat(),
            ..Config::default()
        };
        let layered = Layered {
            name: image.name.clone(),
            config,
            layers: vec![&base, &server],
        };
        write_all(&[layered], &image.archive)?;
    }
    Ok(image)
}

/// Base of provider images: Python with pip, a shell, and no Llama Stack.
pub fn provider_base() -> Result<Rootfs> {
    python_files()
}

/// Writes one provider image: `files`, which have `/lls-provider`, upon [`provider_base`].
pub fn provider_image(name: &str, files: &Rootfs, archive: &Path) -> Result<()> {
    let base = provider_base()?;
    let image = Layered {
        name: name.to_owned(),
        config: provider_config(),
        layers: vec![&base, files],
    };
    write_all(&[image], archive).map(|_| ())
}

/// Default start configuration of containers of a provider image.
pub fn provider_config() -> Config {
    Config {
        entrypoint: vec!["python3".to_owned()],
        env: environment_variables(),
        ..Config::default()
    }
}

/// Time after which another connection is tried.
const CONNECTS_WITHIN: Duration = Duration::from_secs(5);

/// Asks a server at `address` (host and port), and returns the status and what it says. Blocking.
pub fn request(address: &str, method: &str, path: &str, body: Option<&Value>) -> Result<(u16, Value)> {
    let mut stream = connect(address).with_context(|| format!("no answer at {address}"))?;
    // Even on a busy machine.
    stream.set_read_timeout(Some(Duration::from_mins(2)))?;
    let body = body.map(Value::to_string).unwrap_or_default();
    write!(
        stream,
        "{method} {path} HTTP/1.0\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: {}\r\n\r\n{body}",
        body.len()
    )?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer)?;
    let (head, body) = answer.split_once("\r\n\r\n").context("no HTTP")?;
    let status = head.split(' ').nth(1).context("no status")?.parse()?;
    Ok((status, serde_json::from_str(body).with_context(|| answer.clone())?))
}

/// Connects, again if nothing answers: packets to a Service that kube-proxy does not know yet are lost, and those of the same connection
/// after them.
fn connect(address: &str) -> Result<TcpStream> {
    let (mut addresses, start) = (address.to_socket_addrs()?, Instant::now());
    let address = addresses.next().context("no address")?;
    loop {
        match TcpStream::connect_timeout(&address, CONNECTS_WITHIN) {
            Err(error) if error.kind() == ErrorKind::TimedOut && start.elapsed() < PATIENCE => {}
            other => return Ok(other?),
        }
    }
}

fn environment_variables() -> Vec<String> {
    [
        "PATH=/usr/local/bin:/bin",
        "LANG=C.UTF-8",
        "PYTHONUNBUFFERED=1",
        "HOME=/tmp",
    ]
    .map(str::to_owned)
    .into()
}

/// Python with its library and pip.
fn python_files() -> Result<Rootfs> {
    let program = fs::canonicalize(interpreter()?)?;
    let name = format!("python{PYTHON}");
    let mut rootfs = busybox_files()?;
    rootfs
        .file(format!("/usr/local/bin/{name}"), program, 0o755)?
        .link("/usr/local/bin/python3", &name)
        .tree(PYTHON_LIBRARY, library()?, &|_| false)?
        .add_libraries()?;
    Ok(rootfs)
}

/// llama-stack with everything it needs, and its commands.
fn server_files(environment: &Path) -> Result<Rootfs> {
    let site_packages = site_packages(environment)?;
    let mut rootfs = Rootfs::empty();
    // Half a gigabyte that only remote::oci would import. pip is there already.
    let leave_out = |path: &Path| ["oci", "pip"].iter().any(|package| path == Path::new(package));
    rootfs
        .tree(format!("{PYTHON_LIBRARY}/site-packages"), &site_packages, &leave_out)?
        .script(
            "/usr/local/bin/llama",
            "#!/bin/sh\nexec python3 -m llama_stack.cli.llama \"$@\"\n",
        )
        .script("/usr/local/bin/uvicorn", "#!/bin/sh\nexec python3 -m uvicorn \"$@\"\n")
        .text(
            format!("{PYTHON_LIBRARY}/site-packages/llama_stack/distributions/{DISTRIBUTION_NAME}/config.yaml"),
            DISTRIBUTION,
        )
        .add_libraries()?;
    Ok(rootfs)
}

/// Python's library as it is in images, copied and compiled once.
fn library() -> Result<PathBuf> {
    let program = interpreter()?;
    let version = output(
        Command::new(&program).args(["-c", "import sys, pip; print(sys.version, sys.prefix, pip.__version__)"]),
    )?;
    let mut hash = Sha256::new();
    for part in [RECIPE, COPY_LIBRARY, &version] {
        hash.update(part);
    }
    let what = format!("python-{}", &hex::encode(hash.finalize())[..12]);
    let folder = cache_folder()?.join(&what);
    let _lock = hold(&what)?;
    if !folder.is_dir() {
        let unfinished = tempfile::tempdir_in(cache_folder()?)?;
        let library = unfinished.path().join("library");
        run(Command::new(&program).args(["-c", COPY_LIBRARY]).arg(&library))?;
        fs::rename(library, &folder)?;
    }
    Ok(folder)
}

fn site_packages(environment: &Path) -> Result<PathBuf> {
    let folder = environment.join(format!("lib/python{PYTHON}/site-packages"));
    ensure!(folder.is_dir(), "there is no {}", folder.display());
    Ok(folder)
}

fn run(command: &mut Command) -> Result<()> {
    output(command).map(|_| ())
}
