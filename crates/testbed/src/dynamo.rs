//! Dynamo's real frontend, KV router and mocker from PyPI, as an image for a node.
//!
//! Dynamo's workers need an engine, and the engines need GPUs. In the image, a **stand-in** has the names of the workers
//! (`dynamo.vllm`, `dynamo.sglang`, `dynamo.trtllm`): it takes the arguments that a provider writes, refuses all others, and starts
//! Dynamo's own mocker, which registers, is routed to, and hands over KV caches as an engine does. Its answers are random words. Only
//! `cargo xtask test --lane dynamo` uses it.

use std::{
    path::{Path, PathBuf},
    process::Command,
};

use anyhow::{Context, Result, ensure};
use runway_dev_support::versions::{Registry, pinned};

use crate::{
    cache::{hold, once},
    images::{Config, Image, Layered, Rootfs, made_once},
    llama_stack::{PYTHON_LIBRARY, provider_base, provider_config},
    node,
    process::output,
    python, say,
};

/// ID of the model in the image. It is in the cache of the Hugging Face Hub there, and nothing is fetched.
pub const MODEL: &str = "testbed/words";
/// Part of each word in an answer.
pub const WORD: &str = "word-1";

const REQUIREMENTS: &str = include_str!("../dynamo/requirements.txt");
const WRITE_MODEL: &str = include_str!("dynamo/write_model.py");
const STAND_IN: &str = include_str!("dynamo/stand_in.py");
/// Module of the stand-in.
const STAND_IN_MODULE: &str = "testbed_stand_in";
const ENGINES: [&str; 3] = ["vllm", "sglang", "trtllm"];
/// Environment variable and path of Hugging Face's cache in the image.
const HUB: &str = "/opt/huggingface";
/// Name of the only revision of the model.
const REVISION: &str = "0000000000000000000000000000000000000001";
/// Changes with what is made here, so that nothing old is taken from the cache.
const RECIPE: &str = "1";

/// The packages on this machine, and the image.
pub struct Dynamo {
    packages: PathBuf,
    image: Image,
}

impl Dynamo {
    /// Installs the packages and makes the image, once for the machine. Blocking, for a minute the first time.
    ///
    /// `None` where this machine cannot have it: `SKIPPED: what, because …` is printed past the test harness.
    ///
    /// # Errors
    ///
    /// pip fails, or the image cannot be written.
    pub fn prepare(what: &str) -> Result<Option<Self>> {
        if node::skip(what) {
            return Ok(None);
        }
        if let Some(reason) = python::obstacle("Dynamo") {
            say(&format!("SKIPPED: {what}, because {reason}"));
            return Ok(None);
        }
        let packages = packages()?;
        let model = model()?;
        let image = image(&packages, &model)?;
        Ok(Some(Self { packages, image }))
    }

    /// The image with frontend, mocker, stand-ins and the model.
    pub fn image(&self) -> &Image {
        &self.image
    }

    /// The mocker's arguments, separated by spaces, that the stand-in for `engine` makes of a worker's.
    ///
    /// # Errors
    ///
    /// The stand-in refuses the arguments; the message has its reason.
    pub fn stand_in(&self, engine: &str, arguments: &[&str]) -> Result<String> {
        let script = format!("{STAND_IN}\nprint(*mocker_arguments({engine:?}, sys.argv[1:]))");
        let mut command = Command::new(python::interpreter()?);
        command.env("PYTHONPATH", &self.packages).args(["-c", &script]);
        output(command.args(arguments))
    }
}

fn packages() -> Result<PathBuf> {
    let folder = once("dynamo", REQUIREMENTS, |folder| {
        say("Installing Dynamo from PyPI, once: 100 MB to fetch, 270 MB of disk, and as much for its image");
        python::packages_for_image(REQUIREMENTS, folder)?;
        Ok(())
    })?;
    Ok(python::packages_in(&folder))
}

fn model() -> Result<PathBuf> {
    once("dynamo-model", WRITE_MODEL, |folder| {
        output(
            Command::new(python::interpreter()?)
                .args(["-c", WRITE_MODEL])
                .arg(folder),
        )?;
        Ok(())
    })
}

fn image(packages: &Path, model: &Path) -> Result<Image> {
    let origin = [RECIPE, REQUIREMENTS, WRITE_MODEL, STAND_IN].concat();
    let release = pinned(REQUIREMENTS, Registry::PyPi, "ai-dynamo").context("ai-dynamo is not pinned")?;
    let name = format!("testbed.local/dynamo-stand-in:{release}");
    let _lock = hold("dynamo-image")?;
    let image = made_once("dynamo-stand-in", origin.as_bytes(), |_, archive| {
        say(&format!("Making the image {name}"));
        let (base, files) = (provider_base()?, files(packages, model)?);
        let mut config = Config {
            entrypoint: Vec::new(),
            args: vec!["python3".to_owned()],
            ..provider_config()
        };
        config
            .env
            .extend([format!("HF_HOME={HUB}"), "HF_HUB_OFFLINE=1".to_owned()]);
        let layered = Layered {
            name: name.clone(),
            config,
            layers: vec![&base, &files],
        };
        layered.write(archive)
    })?;
    Ok(Image { name, ..image })
}

/// Packages, with the stand-in in place of the workers, and the model.
fn files(packages: &Path, model: &Path) -> Result<Rootfs> {
    let site_packages = Path::new(PYTHON_LIBRARY).join("site-packages");
    let is_worker = |path: &Path| ENGINES.iter().any(|engine| path == Path::new("dynamo").join(engine));
    let mut rootfs = Rootfs::empty();
    rootfs
        .tree(&site_packages, packages, &is_worker)?
        .text(site_packages.join(format!("{STAND_IN_MODULE}.py")), STAND_IN);
    for engine in ENGINES {
        let module = site_packages.join("dynamo").join(engine);
        let start = format!("from {STAND_IN_MODULE} import main\n\nmain({engine:?})\n");
        rootfs
            .text(module.join("__init__.py"), "")
            .text(module.join("__main__.py"), start);
    }
    let hub = Path::new(HUB)
        .join("hub")
        .join(format!("models--{}", MODEL.replace('/', "--")));
    rootfs.text(hub.join("refs/main"), REVISION);
    let is_mark = |path: &Path| path == Path::new("complete");
    rootfs.tree(hub.join("snapshots").join(REVISION), model, &is_mark)?;
    ensure!(
        rootfs.files().any(|(path, _)| path.ends_with("tokenizer.json")),
        "the model has no tokenizer"
    );
    rootfs.add_libraries()?;
    Ok(rootfs)
}
