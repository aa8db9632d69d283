//! The real KubeRay operator, and an image with the real Ray and Ray Serve. The model is a **stand-in**: no engine runs.
//!
//! The operator is built from its Go module and runs inside a [`Node`], whose DNS it needs to find the heads of its clusters. The
//! image has Ray from PyPI, and in place of `ray.serve.llm` a stand-in with the same entry point `build_openai_app`: it refuses
//! unknown arguments, answers [`SENTENCE`], and with engine arguments of its own ([`LOAD_SECONDS`], [`FAILURE`]) it loads slowly or
//! fails. Head, workers, autoscaler, Serve's controller and its proxies are Ray's own.
//!
//! Only `cargo xtask test --lane ray` uses it: 400 MB of disk for Ray, as much for its image, and 3 GB of memory for two clusters.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context as _, Result};
use runway_dev_support::versions::{Registry, pinned};
use serde_json::{Value, json};
use sha2::{Digest as _, Sha256};

use crate::images::{Config, Image, Layered, Rootfs, made_once};
use crate::llama_stack::{PYTHON_LIBRARY, provider_base, provider_config};
use crate::python::PYTHON;
use crate::{Node, binaries, cache, crds, node, packages, python, say};

/// Answer of the stand-in to every chat.
pub const SENTENCE: &str = "Hello from a stand-in: this text went through Ray Serve, and no engine wrote it.";

/// Name of the model in [`spec`].
pub const MODEL: &str = "friendly";

/// Engine argument of the stand-in: seconds until the model is loaded.
pub const LOAD_SECONDS: &str = "stand-in-load-seconds";

/// Engine argument of the stand-in: message with which loading fails.
pub const FAILURE: &str = "stand-in-failure";

const REQUIREMENTS: &str = include_str!("../ray/requirements.txt");
const STAND_IN: &str = include_str!("ray/stand_in.py");
/// Changes with what is made here, so that nothing old is taken from the cache.
const RECIPE: &str = "2";
/// Parts of Ray that serving does not import, and programs of packages.
const UNUSED: [&str; 6] = ["ray/jars", "ray/rllib", "ray/tests", "ray/cpp", "virtualenv", "bin"];
/// `ray` of the package starts Python by the path that it had when it was installed.
const RAY: &str = "#!/bin/sh\nexec python3 -m ray.scripts.scripts \"$@\"\n";
/// Name of the operator's process.
const OPERATOR: &str = "kuberay-operator";

/// Builds the operator and makes the image, and returns whether this machine can have them (see [`image`]). Blocking.
///
/// # Errors
///
/// Go is missing, pip fails, or the image cannot be written.
pub fn prepare(what: &str) -> Result<bool> {
    let is_available = image(what)?.is_some();
    if is_available {
        binaries::kuberay()?;
    }
    Ok(is_available)
}

/// Installs KubeRay: CRDs of its own release, and its operator inside the node. Makes `image` available, and gives the node the
/// GPUs that a device plugin would report. Everything ends with the node.
///
/// # Errors
///
/// The operator cannot be built or started, or the API server refuses a CRD.
pub async fn install(node: &mut Node, image: &Image) -> Result<()> {
    let kuberay = tokio::task::spawn_blocking(binaries::kuberay).await??;
    let client = node.test_bed_client().await?;
    for plural in ["rayclusters", "rayservices", "rayjobs"] {
        let file = kuberay.manifests.join(format!("crd/bases/ray.io_{plural}.yaml"));
        let text = fs::read_to_string(&file).with_context(|| file.display().to_string())?;
        crds::install_crd(&client, serde_saphyr::from_str(&text)?).await?;
    }
    node.import_image(&image.archive).await?;
    node.offer_gpus(8).await?;
    let kubeconfig = node.kubeconfig(OPERATOR, &["system:masters"])?;
    let command = [
        kuberay.operator.display().to_string(),
        format!("--kubeconfig={}", kubeconfig.display()),
        "--enable-leader-election=false".to_owned(),
        "--metrics-addr=0".to_owned(),
    ];
    node.run_inside(OPERATOR, command.into())
}

/// Spec of a ModelDeployment of `image` with this context length, and resources that a small machine has.
pub fn spec(image: &str, length: i64) -> Value {
    json!({
        "provider": {
            "name": "kuberay",
            "overrides": {"head": {"resources": {"cpu": "50m", "memory": "2Gi"}}},
        },
        "model": {"id": "Org/Model", "servedName": MODEL},
        "engine": {"type": "vllm", "contextLength": length},
        "image": image,
        "resources": {"gpu": {"count": 1}, "memory": "2Gi", "cpu": "50m"},
    })
}

/// The image with Ray and the stand-in, such as `testbed.local/ray-llm:2.60.0-py312`. Made once for the machine. Blocking.
///
/// `None` where this machine cannot have it: `SKIPPED: what, because …` is printed past the test harness.
///
/// # Errors
///
/// pip fails, or the image cannot be written.
pub fn image(what: &str) -> Result<Option<Image>> {
    if node::skip(what) {
        return Ok(None);
    }
    if let Some(reason) = python::obstacle("Ray") {
        say(&format!("SKIPPED: {what}, because {reason}"));
        return Ok(None);
    }
    let origin = [RECIPE, REQUIREMENTS, STAND_IN, SENTENCE].concat();
    let name = format!(
        "testbed.local/ray-llm:{}-py{}",
        pinned(REQUIREMENTS, Registry::PyPi, "ray").context("ray is not pinned")?,
        PYTHON.replace('.', "")
    );
    let _lock = cache::hold("ray-image")?;
    let image = made_once("ray-llm", &Sha256::digest(origin), |_, archive| write(&name, archive))?;
    Ok(Some(Image { name, ..image }))
}

fn write(name: &str, archive: &Path) -> Result<String> {
    say(&format!("Making the image {name}"));
    let (base, ray) = (provider_base()?, files(&site()?)?);
    let image = Layered {
        name: name.to_owned(),
        config: Config {
            entrypoint: Vec::new(),
            env: [provider_config().env, vec!["RAY_USAGE_STATS_ENABLED=0".to_owned()]].concat(),
            ..provider_config()
        },
        layers: vec![&base, &ray],
    };
    image.write(archive)
}

/// Ray's packages, installed once on this machine.
fn site() -> Result<PathBuf> {
    let content = [RECIPE, REQUIREMENTS].concat();
    let folder = cache::once("ray", &content, |folder| {
        say("Installing Ray from PyPI, once: 150 MB to fetch, 400 MB of disk");
        let packages = python::packages_for_image(REQUIREMENTS, folder)?;
        // By hash and unchecked, so that they are valid in an image, whose files have no time. It fails for templates of code.
        let compile = ["-m", "compileall", "-qq", "--invalidation-mode", "unchecked-hash"];
        Command::new(python::interpreter()?)
            .args(compile)
            .arg(packages)
            .output()?;
        Ok(())
    })?;
    Ok(python::packages_in(&folder))
}

/// Ray with the stand-in, and the programs that KubeRay 1.6.0 starts beside it: the shell (`controllers/ray/utils/util.go`,
/// GetContainerCommand), and wget in the probes of workers (`utils/constant.go`, BaseWgetHealthCommand).
fn files(site: &Path) -> Result<Rootfs> {
    packages::ensure(&packages::WGET)?;
    let inside = format!("{PYTHON_LIBRARY}/site-packages");
    let llm = format!("{inside}/ray/serve/llm");
    let leave_out =
        |path: &Path| UNUSED.iter().any(|unused| path == Path::new(unused)) || path.starts_with("ray/serve/llm");
    let mut rootfs = Rootfs::empty();
    rootfs
        .tree(&inside, site, &leave_out)?
        .text(format!("{llm}/__init__.py"), STAND_IN)
        .text(format!("{llm}/sentence.txt"), SENTENCE)
        .script("/usr/local/bin/ray", RAY)
        .file("/bin/bash", "/bin/bash", 0o755)?
        .file("/usr/local/bin/wget", "/usr/bin/wget", 0o755)?
        .add_libraries()?;
    Ok(rootfs)
}
