//! `images`: an OCI archive for each program of ours, without a container engine.
//!
//! An image is the program with the shared libraries it is linked to, taken from this machine: a statically linked
//! glibc cannot be trusted with names. No shell, nothing to write to, user 65532. The same sources, compiler and
//! libraries give the same digest in whatever folder they are built; `--check` shows it. Beside each archive lies the image's
//! bill of materials.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use runway_dev_support::shell;
use runway_manifests as manifests;
use runway_manifests::component::{REGISTRY, TAG};
use runway_testbed::images;

use crate::sbom;

/// Images to build, and the folder to write to.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// Only these. Default: all.
    names: Vec<String>,
    /// Folder of the archives, NAME.tar, and of their bills of materials, NAME.cdx.json
    #[arg(long, value_name = "DIR", default_value = "target/images")]
    out: PathBuf,
    /// Build everything twice, the second time from a copy of the sources in another folder, and fail if a digest differs.
    #[arg(long)]
    check: bool,
}

/// A program that becomes an image of the same name.
struct Program {
    name: String,
    package: String,
    description: String,
    /// Further paths of the program, beside `/NAME`.
    links: &'static [&'static str],
}

fn programs() -> Vec<Program> {
    let providers = manifests::built_in_providers();
    let providers = providers.iter().map(|provider| {
        let (name, title) = (provider.name(), provider.title());
        program(
            &format!("{name}-provider"),
            &format!("runway-provider-{name}"),
            &format!("Provider of kubeairunway for {title}"),
        )
    });
    let others = [
        program(
            "kubeairunway-controller",
            "runway-core",
            "Admission and placement of ModelDeployments",
        ),
        program("asya-operator", "runway-asya-operator", "Operator of AsyncActors"),
        program(
            "asya-sidecar",
            "runway-asya-sidecar",
            "From a queue to a handler and on: beside every handler of an AsyncActor",
        ),
        program(
            "asya-gateway",
            "runway-asya-gateway",
            "The front door of Asya: jobs for AsyncActors over HTTP",
        ),
        program(
            "kubeairunway-gateway",
            "runway-router",
            "The model router: one address for all models of a cluster",
        ),
        program(
            "kubeairunway-gateway-routes",
            "runway-router",
            "Controller of HTTPRoutes: models at a Gateway of the cluster",
        ),
        Program {
            // Init containers of servers call it by the name that it has in other operators' images.
            links: &["/manager"],
            ..program(
                "llama-stack-operator",
                "runway-llama-stack-operator",
                "Operator of Llama Stack distributions",
            )
        },
        program(
            "kubeairunway",
            "runway-cli",
            "The command line of kubeairunway, and its web console",
        ),
        program(
            "deployment-provider",
            "deployment-provider",
            "Example of a third-party provider of kubeairunway",
        ),
    ];
    providers.chain(others).collect()
}

fn program(name: &str, package: &str, description: &str) -> Program {
    Program {
        name: name.to_owned(),
        package: package.to_owned(),
        description: description.to_owned(),
        links: &[],
    }
}

pub(crate) fn run(args: &Args) -> Result<()> {
    let programs = chosen(&args.names)?;
    let out = shell::root().join(&args.out);
    let images = build(&shell::root(), &programs, &out)?;
    for (name, image) in &images {
        let megabytes = fs::metadata(&image.archive)?.len() / 1_000_000;
        println!(
            "{}  {}  {megabytes} MB  {}",
            image_name(name),
            image.digest,
            image.archive.display()
        );
        println!("    bill of materials: {}", image.bill.display());
    }
    if args.check {
        check(&programs, &images)?;
        println!("built twice in different folders: the same digests");
    }
    Ok(())
}

struct Built {
    archive: PathBuf,
    digest: String,
    /// Its bill of materials, a CycloneDX document.
    bill: PathBuf,
}

/// Builds the programs of the checkout `root`, and writes their archives into `out`.
fn build(root: &Path, programs: &[Program], out: &Path) -> Result<BTreeMap<String, Built>> {
    let target = out.join("build");
    let mut cargo = runway_testbed::programs::cargo();
    cargo
        .args(["build", "--profile", "dist", "--locked", "--target-dir"])
        .arg(&target)
        .args(programs.iter().flat_map(|program| ["-p", &program.package]))
        .current_dir(root)
        .env("CARGO_ENCODED_RUSTFLAGS", remapped(root)?);
    if !cargo.status().context("cannot run cargo")?.success() {
        bail!("`cargo build --profile dist` failed in {}", root.display());
    }
    programs
        .iter()
        .map(|program| {
            let built = pack(program, &target.join("dist").join(&program.name), out)?;
            Ok((program.name.clone(), built))
        })
        .collect()
}

fn pack(program: &Program, binary: &Path, out: &Path) -> Result<Built> {
    let (rootfs, mut config) = images::of_program(binary, program.links)?;
    config.labels = [
        ("title", program.name.as_str()),
        ("description", &program.description),
        ("version", TAG),
        ("licenses", "Apache-2.0"),
    ]
    .map(|(key, value)| (format!("org.opencontainers.image.{key}"), value.to_owned()))
    .into();
    let archive = out.join(format!("{}.tar", program.name));
    let digest = config.write(&image_name(&program.name), &rootfs, &archive)?;
    let bill = out.join(format!("{}.cdx.json", program.name));
    let content = sbom::bill(&program.name, &program.package, &rootfs)?;
    fs::write(&bill, format!("{content:#}\n")).with_context(|| format!("cannot write {}", bill.display()))?;
    Ok(Built { archive, digest, bill })
}

/// Paths of this machine must not be in a program: they differ from one checkout to the next.
fn remapped(root: &Path) -> Result<OsString> {
    let cargo_home = std::env::home_dir().context("no home folder")?.join(".cargo");
    let sysroot = shell::output("rustc", &["--print", "sysroot"])?;
    let places = [
        (root, "/source"),
        (cargo_home.as_path(), "/cargo"),
        (Path::new(sysroot.trim()), "/rust"),
    ];
    let flags = places.map(|(from, to)| format!("--remap-path-prefix={}={to}", from.display()));
    Ok(flags.join("\x1f").into())
}

/// The same digests again, from a copy of what git knows of, in another place.
fn check(programs: &[Program], images: &BTreeMap<String, Built>) -> Result<()> {
    let folder = shell::root().join("target").join("images-again");
    let copy = folder.join("sources");
    let _ = fs::remove_dir_all(&copy);
    for path in shell::output("git", &["ls-files"])?.lines() {
        let (from, to) = (shell::root().join(path), copy.join(path));
        // Deleted, and not yet committed.
        if from.exists() {
            fs::create_dir_all(to.parent().context("a file is in a folder")?)?;
            fs::copy(&from, &to).with_context(|| format!("cannot copy {path}"))?;
        }
    }
    let again = build(&copy, programs, &folder)?;
    let differing: Vec<&str> = images
        .iter()
        .filter(|(name, image)| again.get(*name).is_none_or(|other| other.digest != image.digest))
        .map(|(name, _)| name.as_str())
        .collect();
    if !differing.is_empty() {
        bail!(
            "built twice, these images differ: {}; compare target/images and target/images-again",
            differing.join(", ")
        );
    }
    fs::remove_dir_all(&folder).context("cannot remove the second build")
}

fn chosen(names: &[String]) -> Result<Vec<Program>> {
    let mut programs = programs();
    let known: Vec<String> = programs.iter().map(|program| program.name.clone()).collect();
    if let Some(unknown) = names.iter().find(|name| !known.contains(name)) {
        bail!("unknown image '{unknown}': use one of {}", known.join(", "));
    }
    programs.retain(|program| names.is_empty() || names.contains(&program.name));
    Ok(programs)
}

fn image_name(name: &str) -> String {
    format!("{REGISTRY}/{name}:{TAG}")
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Highest number of crates that the program of a package may link. A new dependency that exceeds this is a decision: cut another, or raise
    /// the number and say why in the commit.
    const BUDGETS: [(&str, usize); 7] = [
        // kube brings kubeconfigs (28 crates), cel an ANTLR runtime (8).
        ("runway-core", 200),
        ("runway-llama-stack-operator", 191),
        // Cargo.lock holds idna_adapter 1.0, which rejects host names outside ASCII: 1.2 brings ICU (15 crates).
        ("runway-asya-sidecar", 137),
        ("runway-asya-gateway", 228),
        // HTTP/2 for the endpoint picker brings h2, fnv and indexmap; the client of Valkey brings 12, for its own parser and names.
        ("runway-router", 210),
        // lapin's TLS brings a key store of PKCS #12 (45 crates) without a switch, and roots for machines that have none.
        ("runway-asya-operator", 266),
        // It links the operators and the model router, for the permissions that it installs; the check of Llama Stack providers
        // installs into a temporary directory (tempfile, 3 crates); answers of chats are read by sse-stream (1 crate).
        ("runway-cli", 323),
    ];

    #[test]
    fn programs_link_no_more_crates_than_their_budget() -> Result<()> {
        // semver compares releases of upstream operators (1 crate).
        let providers = manifests::built_in_providers();
        let providers = providers
            .iter()
            .map(|provider| (format!("runway-provider-{}", provider.name()), 194));
        let others = BUDGETS.map(|(package, budget)| (package.to_owned(), budget));
        for (package, budget) in providers.chain(others) {
            let linked = sbom::linked(&package)?;
            assert!(
                linked.len() <= budget,
                "{package} links {} crates, its budget is {budget}: see `cargo tree -p {package} -e normal,no-proc-macro`",
                linked.len()
            );
        }
        Ok(())
    }

    #[test]
    fn every_program_that_is_installed_has_an_image() {
        let names: Vec<String> = programs().into_iter().map(|program| program.name).collect();
        let components = runway_manifests::all_components();
        let missing: Vec<&str> = components
            .iter()
            .map(|component| component.program.as_str())
            .chain(["asya-sidecar"])
            .filter(|name| !names.iter().any(|known| known == name))
            .collect();
        assert_eq!(missing, Vec::<&str>::new());
    }
}
