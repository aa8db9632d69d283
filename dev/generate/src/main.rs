//! `gen`: generated files, written from code, committed, and compared by the tests.
#![allow(clippy::print_stdout, reason = "this is a command line tool")]

mod constants;
mod deploy;
mod docs;

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;
use std::process::ExitCode;

use anyhow::{Context, Result, bail};
use clap::Parser;
use kube::core::DynamicObject;
use runway_cli::install::kinds;
use runway_dev_release::krew;
use runway_dev_release::yaml::documents;
use runway_dev_support::shell::root;
use runway_doctor::check::page;
use runway_manifests::{self as manifests, Component, Release};

use deploy::{argocd, chart, kustomize, monitoring};
use docs::{api, changes, command, images, metrics, permissions, reference, settings, shapes, status, versions};

/// Development tasks of this repository.
#[derive(Parser)]
#[command(name = "cargo xtask", bin_name = "cargo xtask")]
enum Command {
    /// Regenerate files, or check that they are current.
    Gen(Args),
}

/// Mode.
#[derive(clap::Args)]
struct Args {
    /// Write nothing; fail if a file is not current.
    #[arg(long)]
    check: bool,
}

fn main() -> ExitCode {
    let Command::Gen(args) = Command::parse();
    runway_dev_support::ended(run(&args))
}

fn run(args: &Args) -> Result<()> {
    let files = files()?;
    let mut stale = left_over(&files)?;
    if !args.check {
        for path in stale.drain(..) {
            fs::remove_file(root().join(&path)).with_context(|| format!("cannot remove {path}"))?;
            println!("removed {path}");
        }
    }
    for (path, content) in files {
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

/// Files in folders of generated pages that are generated no longer, such as that of a verb that was removed.
fn left_over(files: &[(String, String)]) -> Result<Vec<String>> {
    let mut left = Vec::new();
    for folder in docs::FOLDERS {
        for entry in fs::read_dir(root().join(folder)).into_iter().flatten() {
            let path = format!("{folder}/{}", entry?.file_name().to_string_lossy());
            if !files.iter().any(|(known, _)| *known == path) {
                left.push(path);
            }
        }
    }
    Ok(left)
}

/// Every generated file, with its content.
fn files() -> Result<Vec<(String, String)>> {
    let mut files = constants::files()?;
    let components = manifests::components();
    for crd in components.iter().flat_map(|c| &c.crds) {
        let name = crd.metadata.name.clone().unwrap_or_default();
        files.push((format!("deploy/crds/{name}.yaml"), documents(&[crd])?));
    }
    files.push(("deploy/install.yaml".to_owned(), install(&components)?));
    files.extend(kustomize(&components)?);
    files.extend(chart::files(&manifests::all_components())?);
    files.push((argocd::PATH.to_owned(), argocd::config_map()?));
    files.push((krew::PATH.to_owned(), krew::template()?));
    files.extend(api::pages()?);
    files.extend(reference::pages()?);
    files.push((settings::PATH.to_owned(), settings::page()?));
    files.extend(status::pages()?);
    files.push((versions::PATH.to_owned(), versions::page()?));
    files.push((shapes::PATH.to_owned(), shapes::page()?));
    files.push((changes::PATH.to_owned(), changes::page()?));
    files.push((images::PATH.to_owned(), images::page()?));
    files.push((metrics::PATH.to_owned(), metrics::page()));
    files.push((permissions::PATH.to_owned(), permissions::page()?));
    files.extend(monitoring::files()?);
    files.push((page::PATH.to_owned(), page::page()));
    files.extend(command::pages());
    Ok(files)
}

/// Everything in one file, for `kubectl apply`.
fn install(components: &[Component]) -> Result<String> {
    let release = Release::default();
    let all: Vec<DynamicObject> = components.iter().flat_map(|c| c.objects(&release)).collect();
    documents(&all)
}

/// A base for each component, those together that everybody has, and beside them what is optional.
fn kustomize(components: &[Component]) -> Result<Vec<(String, String)>> {
    let release = Release::default();
    let monitored = Release {
        monitoring: true,
        ..release.clone()
    };
    let of_engines = Release {
        engine_monitoring: true,
        ..release.clone()
    };
    let guarded = Release {
        policy: true,
        ..release.clone()
    };
    let bases: Vec<&str> = components.iter().map(|c| c.name.as_str()).collect();
    let mut files = vec![kustomization("", &bases)?];
    files.extend(kustomize::files(components)?);
    let every = manifests::all_components();
    let mut folders: Vec<(&str, Vec<DynamicObject>)> =
        every.iter().map(|c| (c.name.as_str(), c.objects(&release))).collect();
    folders.push(("monitoring", added(components, &release, &monitored)));
    folders.push(("engine-monitoring", added(components, &release, &of_engines)));
    folders.push(("provider-policy", added(components, &release, &guarded)));
    folders.push(("monitoring-rules", monitoring::rules()?));
    folders.push(("dashboards", monitoring::dashboards()?));
    folders.push(("model-network-policy", manifests::models::network_policies()));
    for (name, objects) in folders {
        files.push(kustomization(&format!("{name}/"), &["objects.yaml"])?);
        files.push((format!("deploy/kustomize/{name}/objects.yaml"), documents(&objects)?));
    }
    Ok(files)
}

/// Objects that a release has with one choice and lacks with another.
fn added(components: &[Component], without: &Release, with: &Release) -> Vec<DynamicObject> {
    let known: BTreeSet<String> = components
        .iter()
        .flat_map(|c| c.objects(without))
        .map(|o| kinds::id(&o))
        .collect();
    let all = components.iter().flat_map(|c| c.objects(with));
    all.filter(|object| !known.contains(&kinds::id(object))).collect()
}

fn kustomization(folder: &str, resources: &[&str]) -> Result<(String, String)> {
    let object = serde_json::json!({
        "apiVersion": "kustomize.config.k8s.io/v1beta1",
        "kind": "Kustomization",
        "resources": resources,
    });
    Ok((
        format!("deploy/kustomize/{folder}kustomization.yaml"),
        documents(&[object])?,
    ))
}

#[test]
fn arguments_are_consistent_and_those_in_the_documentation_are_accepted() -> Result<()> {
    runway_dev_support::snippets::check(<Command as clap::CommandFactory>::command())
}
