//! Inference engines: a real llama-server, and one that misbehaves on demand.
//!
//! llama-server is Debian sid's, unpacked into a root of its own. Its model is one whose weights are set by hand: it answers
//! [`SENTENCE`] token by token and stops, whatever it is asked. So a test compares whole answers, and a lost or doubled chunk shows.
//!
//! ```no_run
//! # async fn example(node: runway_testbed::Node) -> anyhow::Result<()> {
//! use runway_testbed::engine::{LlamaServer, MODEL};
//!
//! let Some(engine) = LlamaServer::prepare("chat on a node")? else {
//!     return Ok(());
//! };
//! node.import_image(&engine.image.archive).await?;
//! // Pods of `engine.image.name` with these arguments answer on port 8000.
//! let args = ["-m", MODEL, "--alias", "tiny", "--host", "0.0.0.0", "--port", "8000", "--metrics"];
//! # Ok(())
//! # }
//! ```

mod endpoint;
mod gguf;
mod hostile;
mod model;

use std::{
    fs,
    net::{Ipv4Addr, SocketAddr},
    path::{Path, PathBuf},
    time::Duration,
};

use anyhow::{Context, Result, ensure};
use axum::http::{HeaderValue, Request, header};
use kube::client::Body;
use kube::{Client, Config as ClientConfig};
use tempfile::TempDir;

use crate::{
    PATIENCE,
    control_plane::{free_ports, wait_within},
    images::{Config, Image, Layered, Rootfs, made_once, write_all},
    node,
    process::{Component, Process, with_environment},
    roots::{self, Root, entry},
};

pub use endpoint::{CHAT, Endpoint, MODELS, chat_request};
pub use hostile::{Hostility, hostile};
pub use model::{SENTENCE, pieces};

/// Path of the model in the image.
pub const MODEL: &str = "/models/one-sentence.gguf";
/// A file in the image that is not a model, for tests of that error.
pub const NOT_A_MODEL: &str = "/models/not-a-model.gguf";

const PACKAGE: &str = "llama.cpp-tools";
const PROGRAM: &str = "/usr/bin/llama-server";
/// Changes with what is made here, so that nothing old is taken from the cache.
const RECIPE: &str = "1";

/// A real llama-server with its model.
pub struct LlamaServer {
    /// `testbed.local/llama-server:1`, with [`MODEL`] and [`NOT_A_MODEL`]. Runs as any user and with a read-only root.
    pub image: Image,
    /// The same files as `testbed.local/llama-server:2`, with another digest: for rollouts. It is in the same archive.
    pub next: Image,
    root: Root,
}

impl LlamaServer {
    /// Fetches the packages and makes the images, once for the machine. Blocking.
    ///
    /// `None` where this machine cannot have it: `SKIPPED: what, because …` is printed past the test harness.
    ///
    /// # Errors
    ///
    /// The mirror does not answer, a signature is wrong, or the image cannot be written.
    pub fn prepare(what: &str) -> Result<Option<Self>> {
        let root = roots::with_packages(&[PACKAGE])?.or_skip(what);
        root.map(Self::from_root).transpose()
    }

    /// Same as [`Self::prepare`], for a test that also needs a node.
    ///
    /// # Errors
    ///
    /// Those of [`Self::prepare`].
    pub async fn for_node(what: &'static str) -> Result<Option<Self>> {
        if node::skip(what) {
            return Ok(None);
        }
        tokio::task::spawn_blocking(move || Self::prepare(what)).await?
    }

    /// Debian's packages in its root, `NAME VERSION` on a line each.
    pub fn packages(&self) -> &str {
        &self.root.packages
    }

    /// Starts it on this machine, outside of any node, and waits until it is healthy. It serves its model as `alias`; `args`
    /// come after its own, so that they win.
    ///
    /// # Errors
    ///
    /// It ends instead of becoming healthy; the message has the end of its log.
    pub async fn start(&self, alias: &str, args: &[&str]) -> Result<Running> {
        let folder = tempfile::Builder::new().prefix("testbed-llama-server-").tempdir()?;
        let model = folder.path().join("one-sentence.gguf");
        fs::write(&model, model::one_sentence())?;
        let [port] = free_ports()?;
        let mut command = self.command()?;
        command.extend(["-m".to_owned(), model.display().to_string()]);
        let (address, port_text) = (Ipv4Addr::LOCALHOST.to_string(), port.to_string());
        let flags = ["--alias", alias, "--host", &address, "--port", &port_text];
        command.extend(flags.iter().chain(args).map(|&arg| arg.to_owned()));
        let home = folder.path().display().to_string();
        let variables = [("HOME", home.as_str())].into_iter();
        let component = with_environment("llama-server", folder.path(), variables, &command);
        Running::start(component, folder, port).await
    }

    fn from_root(root: Root) -> Result<Self> {
        let model = model::one_sentence();
        let origin = [RECIPE.as_bytes(), root.packages.as_bytes(), &model].concat();
        let image = made_once("llama-server", &origin, |name, archive| {
            write_images([name, &next(name)], &root.folder, &model, archive)
        })?;
        let next = Image {
            name: next(&image.name),
            archive: image.archive.clone(),
        };
        Ok(Self { image, next, root })
    }

    /// ggml looks for the libraries of the processor in the working folder.
    fn command(&self) -> Result<Vec<String>> {
        let processors = entry(&self.root.libraries()?.join("ggml"), "backends")?;
        let folder = ["env", "-C", &processors.display().to_string()].map(str::to_owned);
        let command = self.root.command(PROGRAM, &["llama"])?;
        Ok(folder.into_iter().chain(command).collect())
    }
}

/// An engine on this machine. Dropping it ends it.
pub struct Running {
    _process: Process,
    _folder: TempDir,
    log: PathBuf,
    port: u16,
}

impl Running {
    async fn start(component: Component, folder: TempDir, port: u16) -> Result<Self> {
        Self::start_within(PATIENCE, component, folder, port).await
    }

    pub(crate) async fn start_within(
        patience: Duration,
        component: Component,
        folder: TempDir,
        port: u16,
    ) -> Result<Self> {
        crate::install_crypto_provider();
        let mut process = component.spawn()?;
        let client = client(port)?;
        wait_within(patience, &mut process, &component, async || is_healthy(&client).await).await?;
        Ok(Self {
            _process: process,
            _folder: folder,
            log: component.log(),
            port,
        })
    }

    /// `http://127.0.0.1:PORT`.
    pub fn url(&self) -> String {
        format!("http://{}:{}", Ipv4Addr::LOCALHOST, self.port)
    }

    /// Address at which it listens, on this machine.
    pub fn address(&self) -> SocketAddr {
        (Ipv4Addr::LOCALHOST, self.port).into()
    }

    /// An HTTP client for it: kube's, whose [`Client::send`] speaks to any server.
    pub fn client(&self) -> Result<Client> {
        client(self.port)
    }

    /// Its log file, removed when it is dropped.
    pub fn log(&self) -> PathBuf {
        self.log.clone()
    }
}

fn client(port: u16) -> Result<Client> {
    let url = format!("http://{}:{port}", Ipv4Addr::LOCALHOST).parse()?;
    let mut config = ClientConfig::new(url);
    // llama-server (Debian's llama.cpp 0.7.0) closes the connection after a stream although it announces `Keep-Alive`.
    config
        .headers
        .push((header::CONNECTION, HeaderValue::from_static("close")));
    Ok(Client::try_from(config)?)
}

async fn is_healthy(client: &Client) -> bool {
    let Ok(request) = Request::get("/health").body(Body::empty()) else {
        return false;
    };
    client
        .send(request)
        .await
        .is_ok_and(|response| response.status().is_success())
}

/// `testbed.local/llama-server:1` becomes `testbed.local/llama-server:2`.
fn next(name: &str) -> String {
    name.trim_end_matches(":1").to_owned() + ":2"
}

/// Writes images that differ in their names and in a label.
fn write_images(names: [&str; 2], root: &Path, model: &[u8], archive: &Path) -> Result<String> {
    let folder = tempfile::tempdir()?;
    let model_file = folder.path().join("model");
    fs::write(&model_file, model)?;
    let mut files = Rootfs::minimal();
    // Most of the small files, and nothing reads them.
    let leave_out = |path: &Path| {
        ["share/doc", "share/man", "share/locale"]
            .iter()
            .any(|skipped| path.starts_with(skipped))
    };
    files.tree("/usr", root.join("usr"), &leave_out)?;
    for link in ["bin", "lib", "lib64"] {
        files.link(format!("/{link}"), format!("usr/{link}"));
    }
    files
        .file(MODEL, &model_file, 0o644)?
        .text(NOT_A_MODEL, "This is a text.\n");
    let images = names.map(|name| Layered {
        name: name.to_owned(),
        config: Config {
            entrypoint: vec![PROGRAM.to_owned()],
            env: vec!["PATH=/usr/bin".to_owned(), "HOME=/tmp".to_owned()],
            labels: vec![("org.opencontainers.image.ref.name".to_owned(), name.to_owned())],
            ..Config::default()
        },
        layers: vec![&files],
    });
    let digests = write_all(&images, archive)?;
    ensure!(digests[0] != digests[1], "two images have one digest");
    digests.into_iter().next().context("an image has a digest")
}

/// Checks that an engine exports these metrics. A counter may be named without `_total`.
pub fn exports<'a>(metrics: &str, names: impl IntoIterator<Item = &'a str>) -> Result<()> {
    for name in names {
        let is_it = |line: &str| {
            let rest = line.strip_prefix(name);
            let rest = rest.map(|rest| rest.strip_prefix("_total").unwrap_or(rest));
            rest.is_some_and(|rest| rest.starts_with([' ', '{']))
        };
        ensure!(metrics.lines().any(is_it), "no {name} in\n{metrics}");
    }
    Ok(())
}
