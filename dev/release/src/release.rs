//! `release`: the files of a release beside the images.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail, ensure};
use flate2::{Compression, GzBuilder};
use runway_dev_release::krew;
use runway_dev_support::shell;
use runway_manifests::component::{REGISTRY, TAG};
use sha2::{Digest, Sha256};

/// Checksums of all files, in the format of `sha256sum`.
const SUMS: &str = "SHA256SUMS";

/// Images by digest, as the release workflow lists them.
const IMAGES: &str = "images.txt";
/// Empty value of the chart for digests of images.
const NO_DIGESTS: &str = "\n  digests: {}\n";

/// Step of a release.
#[derive(clap::Args)]
pub(crate) struct Args {
    #[command(subcommand)]
    step: Step,
}

#[derive(clap::Subcommand)]
enum Step {
    /// Fail unless a tag names the version of this checkout.
    Check {
        /// Tag, such as v0.1.0
        tag: String,
    },
    /// Pack the command for one platform.
    Archive {
        /// Platform, such as linux-amd64
        platform: String,
        /// Program to pack
        #[arg(long, default_value = "target/dist/kubeairunway")]
        program: PathBuf,
        /// Folder of the archive
        #[arg(long, default_value = "target/release-files")]
        out: PathBuf,
    },
    /// Copy the chart, with the digests of the images of this release.
    Chart {
        /// Images by digest, one per line, such as REGISTRY/NAME:TAG@sha256:DIGEST
        #[arg(long, default_value = "target/release-files/images.txt")]
        images: PathBuf,
        /// Folder of the copy
        #[arg(long, default_value = "target/chart/kubeairunway")]
        out: PathBuf,
    },
    /// Add install.yaml, with the digests in images.txt, and the krew manifest to the archives of all platforms, and write SHA256SUMS.
    Files {
        /// Folder with the archives
        #[arg(long, default_value = "target/release-files")]
        out: PathBuf,
    },
}

pub(crate) fn run(args: &Args) -> Result<()> {
    match &args.step {
        Step::Check { tag } => check(tag),
        Step::Archive { platform, program, out } => {
            ensure!(
                krew::PLATFORMS.contains(&platform.as_str()),
                "unknown platform '{platform}': use one of {}",
                krew::PLATFORMS.join(", ")
            );
            let root = shell::root();
            let path = archive(platform, &root.join(program), &root.join(out))?;
            println!("{}", path.display());
            Ok(())
        }
        Step::Chart { images, out } => {
            let root = shell::root();
            chart(&read_digests(&root.join(images))?, &root.join(out))
        }
        Step::Files { out } => files(&shell::root().join(out)),
    }
}

/// A release whose tag differs from the version would refer to images that do not exist.
fn check(tag: &str) -> Result<()> {
    if tag != TAG {
        bail!("tag '{tag}' is not the version of this checkout: set it in Cargo.toml, or tag {TAG}");
    }
    let changes = fs::read_to_string(shell::root().join("CHANGELOG.md")).context("cannot read CHANGELOG.md")?;
    let heading = format!("## {}", TAG.trim_start_matches('v'));
    ensure!(
        changes.lines().any(|line| line.starts_with(&heading)),
        "CHANGELOG.md has no section '{heading}': rename the section Unreleased"
    );
    ensure!(
        !changes.lines().any(|line| line == "## Unreleased"),
        "CHANGELOG.md has unreleased changes: raise the version in Cargo.toml and rename the section Unreleased to it"
    );
    Ok(())
}

/// Packs a program and the license. The same program gives the same bytes.
fn archive(platform: &str, program: &Path, out: &Path) -> Result<PathBuf> {
    fs::create_dir_all(out).with_context(|| format!("cannot create {}", out.display()))?;
    let path = out.join(krew::archive(platform));
    let file = File::create(&path).with_context(|| format!("cannot write {}", path.display()))?;
    let mut tar = tar::Builder::new(GzBuilder::new().mtime(0).write(file, Compression::best()));
    let license = shell::root().join("LICENSE");
    for (from, name, mode) in [(program, krew::PROGRAM, 0o755), (license.as_path(), "LICENSE", 0o644)] {
        let content = fs::read(from).with_context(|| format!("cannot read {}", from.display()))?;
        let mut header = tar::Header::new_ustar();
        header.set_size(content.len() as u64);
        header.set_mode(mode);
        tar.append_data(&mut header, name, content.as_slice())?;
    }
    tar.into_inner()?.finish()?;
    Ok(path)
}

/// Digests of images, by the name of their program.
type Digests = BTreeMap<String, String>;

fn read_digests(path: &Path) -> Result<Digests> {
    let text = fs::read_to_string(path).with_context(|| format!("cannot read {}", path.display()))?;
    text.lines().map(digest).collect()
}

/// Program and digest of `REGISTRY/NAME:TAG@sha256:DIGEST`.
fn digest(line: &str) -> Result<(String, String)> {
    let parsed = || {
        let (image, digest) = line.split_once('@')?;
        let (_, name) = image.strip_suffix(TAG)?.strip_suffix(':')?.rsplit_once('/')?;
        let hex = digest.strip_prefix("sha256:")?;
        let is_digest = hex.len() == 64 && hex.bytes().all(|b| b.is_ascii_hexdigit());
        is_digest.then(|| (name.to_owned(), digest.to_owned()))
    };
    parsed().with_context(|| format!("{IMAGES}: '{line}' is not an image of {TAG} with its digest"))
}

/// Manifests with each of our images by digest, beside its tag.
fn pinned(manifests: &str, digests: &Digests) -> Result<String> {
    let ours = format!("{REGISTRY}/");
    let lines = manifests.lines().map(|line| {
        let Some((_, image)) = line.split_once(&ours) else {
            return Ok(format!("{line}\n"));
        };
        let name = image.strip_suffix(TAG).and_then(|name| name.strip_suffix(':'));
        let digest = name.and_then(|name| digests.get(name));
        let digest = digest.with_context(|| format!("{IMAGES} has no digest of {ours}{image}"))?;
        Ok(format!("{line}@{digest}\n"))
    });
    lines.collect()
}

/// Copies the chart, with the digests in its values.
fn chart(digests: &Digests, out: &Path) -> Result<()> {
    let from = shell::root().join("deploy/charts/kubeairunway");
    fs::create_dir_all(out.join("templates")).with_context(|| format!("cannot create {}", out.display()))?;
    for folder in ["", "templates"] {
        for entry in fs::read_dir(from.join(folder))? {
            let entry = entry?;
            if entry.file_type()?.is_file() {
                fs::copy(entry.path(), out.join(folder).join(entry.file_name()))?;
            }
        }
    }
    let path = out.join("values.yaml");
    let values = fs::read_to_string(&path)?;
    ensure!(
        values.contains(NO_DIGESTS),
        "values.yaml of the chart has no empty image.digests"
    );
    let map = serde_json::to_string(digests)?;
    fs::write(&path, values.replace(NO_DIGESTS, &format!("\n  digests: {map}\n")))?;
    Ok(())
}

fn files(out: &Path) -> Result<()> {
    let mut sums = Vec::new();
    for platform in krew::PLATFORMS {
        sums.push((platform, sum(&out.join(krew::archive(platform)))?));
    }
    fs::write(out.join("kubeairunway.krew.yaml"), krew::manifest(sums)?)?;
    let manifest = fs::read_to_string(shell::root().join("deploy/install.yaml")).context("cannot read install.yaml")?;
    let manifest = pinned(&manifest, &read_digests(&out.join(IMAGES))?)?;
    fs::write(out.join("install.yaml"), manifest).context("cannot write install.yaml")?;
    let mut all = BTreeMap::new();
    for entry in fs::read_dir(out)? {
        let entry = entry?;
        let name = entry.file_name().to_string_lossy().into_owned();
        if entry.file_type()?.is_file() && name != SUMS {
            all.insert(name, sum(&entry.path())?);
        }
    }
    let lines: Vec<String> = all.iter().map(|(name, sum)| format!("{sum}  {name}")).collect();
    let text = format!("{}\n", lines.join("\n"));
    print!("{text}");
    fs::write(out.join(SUMS), text).with_context(|| format!("cannot write {SUMS}"))
}

fn sum(path: &Path) -> Result<String> {
    let content = fs::read(path).with_context(|| format!("cannot read {}", path.display()))?;
    Ok(hex::encode(Sha256::digest(content)))
}

#[cfg(test)]
mod tests {
    use std::io::Read;

    use flate2::read::GzDecoder;

    use super::*;

    const DIGEST: &str = "sha256:0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef";

    /// Images of a release, in the registry of a fork.
    fn images() -> String {
        let manifests = fs::read_to_string(shell::root().join("deploy/install.yaml")).unwrap();
        let ours = format!("{REGISTRY}/");
        let names = manifests
            .lines()
            .filter_map(|line| line.split_once(&ours)?.1.split(':').next());
        let images = names.map(|name| format!("ghcr.io/fork/{name}:{TAG}@{DIGEST}"));
        images.chain([String::new()]).collect::<Vec<_>>().join("\n")
    }

    #[test]
    fn manifests_and_chart_name_images_by_digest() -> Result<()> {
        let out = tempfile::tempdir()?;
        let list = out.path().join(IMAGES);
        fs::write(&list, images())?;
        let digests = read_digests(&list)?;
        let manifests = fs::read_to_string(shell::root().join("deploy/install.yaml"))?;
        let text = pinned(&manifests, &digests)?;
        let ours = format!("{REGISTRY}/");
        let named: Vec<_> = text.lines().filter(|line| line.contains(&ours)).collect();
        assert!(
            !named.is_empty() && named.iter().all(|line| line.ends_with(&format!(":{TAG}@{DIGEST}"))),
            "{named:?}"
        );
        assert_eq!(text.replace(&format!("@{DIGEST}"), ""), manifests);

        chart(&digests, out.path())?;
        let values: serde_json::Value = serde_saphyr::from_str(&fs::read_to_string(out.path().join("values.yaml"))?)?;
        assert_eq!(values["image"]["digests"]["kubeairunway-controller"], DIGEST);
        assert!(out.path().join("templates/kubeairunway-controller.yaml").exists());
        Ok(())
    }

    #[test]
    fn image_without_a_digest_ends_the_release() {
        let error = pinned(&format!("image: {REGISTRY}/asya-operator:{TAG}"), &Digests::new()).unwrap_err();
        assert!(error.to_string().contains("asya-operator"), "{error}");
        for bad in [
            "",
            "ghcr.io/a/b:v0.0.0@sha256:0",
            &format!("ghcr.io/a/b:{TAG}"),
            &format!("ghcr.io/a/b:{TAG}@sha256:0"),
        ] {
            assert!(digest(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn archives_hold_the_program_that_the_manifest_names_and_checksums_match() -> Result<()> {
        let out = tempfile::tempdir()?;
        let program = out.path().join("program");
        fs::write(&program, "#!/bin/sh\n")?;
        for platform in krew::PLATFORMS {
            archive(platform, &program, out.path())?;
        }
        fs::remove_file(&program)?;
        fs::write(out.path().join(IMAGES), images())?;
        files(out.path())?;

        let read = |name: &str| fs::read_to_string(out.path().join(name));
        let manifest: serde_json::Value = serde_saphyr::from_str(&read("kubeairunway.krew.yaml")?)?;
        let sums = read(SUMS)?;
        for platform in manifest["spec"]["platforms"].as_array().context("no platforms")? {
            let uri = platform["uri"].as_str().unwrap_or_default();
            let name = uri.rsplit('/').next().unwrap_or_default();
            assert!(sums.contains(&format!("{}  {name}", platform["sha256"].as_str().unwrap_or_default())));
            let mut files = tar::Archive::new(GzDecoder::new(File::open(out.path().join(name))?));
            let mut first = files.entries()?.next().context("an empty archive")??;
            assert_eq!(
                Some(first.path()?.display().to_string().as_str()),
                platform["bin"].as_str()
            );
            let mut content = String::new();
            first.read_to_string(&mut content)?;
            assert_eq!((content.as_str(), first.header().mode()?), ("#!/bin/sh\n", 0o755));
        }
        let checked = std::process::Command::new("sha256sum")
            .args(["--check", "--strict", "--quiet", SUMS])
            .current_dir(out.path())
            .status()?;
        assert!(checked.success());
        assert!(sums.contains("install.yaml"));
        Ok(())
    }

    #[test]
    fn the_same_program_gives_the_same_archive() -> Result<()> {
        let (one, two) = (tempfile::tempdir()?, tempfile::tempdir()?);
        let program = one.path().join("program");
        fs::write(&program, "x")?;
        let first = archive("linux-amd64", &program, one.path())?;
        let second = archive("linux-amd64", &program, two.path())?;
        assert_eq!(fs::read(first)?, fs::read(second)?);
        Ok(())
    }

    #[test]
    fn a_tag_of_another_version_is_refused() {
        let refused = check("v0.0.0").unwrap_err().to_string();
        assert!(refused.contains(TAG), "{refused}");
    }
}
