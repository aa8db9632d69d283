//! Generated files: made from code, committed, checked.

use std::fs;
use std::path::Path;

use anyhow::{Context, Result, bail};
use kube::core::DynamicObject;
use runway_cli::manifests::{self, Identity, NAMESPACE};
use runway_operator::webhook::Endpoint;
use serde::Serialize;

use crate::shell::root;

/// How to treat generated files.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// Write nothing; fail if a file is not current.
    #[arg(long)]
    check: bool,
}

impl Args {
    /// Only a check.
    pub(crate) fn check() -> Self {
        Self { check: true }
    }
}

const HEADER: &str = "# Made by `cargo xtask gen` from the code. Do not edit.\n";

pub(crate) fn run(args: &Args) -> Result<()> {
    let mut stale = Vec::new();
    for (path, content) in files()? {
        let full = root().join(&path);
        if fs::read_to_string(&full).is_ok_and(|there| there == content) {
            continue;
        }
        if args.check {
            stale.push(path);
        } else {
            fs::create_dir_all(full.parent().unwrap_or_else(|| Path::new(".")))?;
            fs::write(&full, content).with_context(|| format!("cannot write {path}"))?;
            println!("wrote {path}");
        }
    }
    if !stale.is_empty() {
        bail!(
            "not current: {}. Run `cargo xtask gen` and commit the result",
            stale.join(", ")
        );
    }
    Ok(())
}

/// Every generated file, with its content.
fn files() -> Result<Vec<(String, String)>> {
    let mut files = Vec::new();
    for crd in manifests::crds() {
        let name = crd.metadata.name.clone().unwrap_or_default();
        files.push((format!("deploy/crds/{name}.yaml"), document(&[crd])?));
    }
    let endpoint = Endpoint::Service {
        namespace: NAMESPACE.to_owned(),
        name: "kubeairunway-webhook".to_owned(),
        port: 443,
    };
    let objects = manifests::objects(&endpoint, Identity::ServiceAccount);
    let of = |kinds: &[&str]| -> Vec<&DynamicObject> {
        objects
            .iter()
            .filter(|o| {
                o.types
                    .as_ref()
                    .is_some_and(|t| kinds.iter().any(|k| t.kind.contains(k)))
            })
            .collect()
    };
    files.push(("deploy/namespace.yaml".to_owned(), document(&of(&["Namespace"]))?));
    files.push(("deploy/rbac.yaml".to_owned(), document(&of(&["Role"]))?));
    files.push(("deploy/webhooks.yaml".to_owned(), document(&of(&["Webhook"]))?));
    Ok(files)
}

fn document(objects: &[impl Serialize]) -> Result<String> {
    let documents: Result<Vec<String>> = objects
        .iter()
        .map(|object| Ok(serde_saphyr::to_string(&serde_json::to_value(object)?)?))
        .collect();
    Ok(format!("{HEADER}{}", documents?.join("---\n")))
}
