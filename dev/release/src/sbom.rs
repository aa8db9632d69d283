//! Software bills of materials: one CycloneDX document for each image, beside its archive.
//!
//! An image holds one program and shared libraries, so its bill lists the crates that are linked into the program and the
//! distribution's packages that the libraries come from. It has no time and no serial number: the same image has the same bill.

use std::collections::BTreeSet;
use std::fs;
use std::io;
use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result, bail};
use runway_dev_support::shell;
use runway_testbed::images::Rootfs;
use serde_json::{Value, json};
use sha2::{Digest as _, Sha256};

/// The release of CycloneDX that the documents follow.
const SPECIFICATION: &str = "1.6";
/// Separator of the fields in a line of `cargo tree`. License expressions do not contain it.
const SEPARATOR: char = '|';

/// A crate that is linked into a program.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Crate {
    pub(crate) name: String,
    version: String,
    /// An SPDX expression; empty if the crate names none.
    license: String,
}

/// The crates that are linked into the programs of `package`, sorted: neither build scripts nor procedural macros.
pub(crate) fn linked(package: &str) -> Result<BTreeSet<Crate>> {
    let format = format!("{{p}}{SEPARATOR}{{l}}");
    let edges = "normal,no-proc-macro";
    let arguments = [
        "tree", "--locked", "-p", package, "-e", edges, "--prefix", "none", "--format", &format,
    ];
    shell::output("cargo", &arguments)?
        .lines()
        .filter(|line| !line.is_empty())
        .map(|line| read(line).with_context(|| format!("cannot read the line of `cargo tree`: {line}")))
        .collect()
}

/// `NAME vVERSION [(PATH)]|LICENSE [(*)]`
fn read(line: &str) -> Option<Crate> {
    let (package, license) = line.split_once(SEPARATOR)?;
    let mut words = package.split(' ');
    Some(Crate {
        name: words.next()?.to_owned(),
        version: words.next()?.strip_prefix('v')?.to_owned(),
        license: license.trim_end_matches("(*)").trim().to_owned(),
    })
}

/// The bill of an image that holds the program `name` of `package`, and the files `rootfs`.
pub(crate) fn bill(name: &str, package: &str, rootfs: &Rootfs) -> Result<Value> {
    let linked = linked(package)?;
    let own = linked
        .iter()
        .find(|linked| linked.name == package)
        .with_context(|| format!("`cargo tree` does not list {package} itself"))?;
    let mut components: Vec<Value> = linked.iter().filter(|linked| *linked != own).map(of_crate).collect();
    for (inside, source) in rootfs.files().filter(|(inside, _)| !inside.ends_with(name)) {
        components.push(of_library(inside, source)?);
    }
    Ok(json!({
        "bomFormat": "CycloneDX",
        "specVersion": SPECIFICATION,
        "version": 1,
        "metadata": { "component": {
            "type": "application",
            "bom-ref": name,
            "name": name,
            "version": own.version,
            "licenses": licenses(&own.license),
        } },
        "components": components,
    }))
}

fn of_crate(linked: &Crate) -> Value {
    let purl = format!("pkg:cargo/{}@{}", linked.name, linked.version.replace('+', "%2B"));
    json!({
        "type": "library",
        "bom-ref": purl,
        "name": linked.name,
        "version": linked.version,
        "licenses": licenses(&linked.license),
        "purl": purl,
    })
}

fn licenses(expression: &str) -> Value {
    match expression {
        "" => json!([]),
        // The older way of writing a choice, which crates.io still accepts.
        expression => json!([{ "expression": expression.replace('/', " OR ") }]),
    }
}

/// A file that was taken from this machine, with the Debian package it belongs to.
fn of_library(inside: &Path, source: &Path) -> Result<Value> {
    let name = inside.display().to_string();
    let mut component = json!({
        "type": "file",
        "bom-ref": name,
        "name": name,
        "hashes": [{ "alg": "SHA-256", "content": sha256(source)? }],
    });
    if let Some(purl) = debian_package(source)? {
        component["purl"] = json!(purl);
    }
    Ok(component)
}

fn sha256(path: &Path) -> Result<String> {
    let content = fs::read(path).with_context(|| format!("cannot read {}", path.display()))?;
    Ok(hex::encode(Sha256::digest(content)))
}

/// The package URL of the Debian package that installed `path`. `None` on machines without dpkg, and for files that no package
/// installed.
fn debian_package(path: &Path) -> Result<Option<String>> {
    // With `/usr` merged, dpkg knows a library by one of two paths.
    let unmerged = path.strip_prefix("/usr").map(|rest| Path::new("/").join(rest));
    for path in [Ok(path.to_owned()), unmerged].into_iter().flatten() {
        let Some(owner) = dpkg(&["-S", &path.display().to_string()])? else {
            continue;
        };
        let Some((package, _)) = owner.split_once(": ") else {
            bail!("cannot read the answer of `dpkg-query -S {}`: {owner}", path.display());
        };
        return dpkg(&[
            "-W",
            "-f",
            "pkg:deb/debian/${Package}@${Version}?arch=${Architecture}",
            package,
        ]);
    }
    Ok(None)
}

/// Output of dpkg-query; `None` if it is not installed or finds nothing.
fn dpkg(arguments: &[&str]) -> Result<Option<String>> {
    let output = match Command::new("dpkg-query").args(arguments).output() {
        Ok(output) => output,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(error).context("cannot run `dpkg-query`"),
    };
    Ok(output
        .status
        .success()
        .then(|| String::from_utf8_lossy(&output.stdout).into_owned()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_of_cargo_tree_is_read() {
        let read = |line| read(line).map(|c| (c.name, c.version, c.license));
        let expected = |name: &str, version: &str, license: &str| Some((name.into(), version.into(), license.into()));
        assert_eq!(
            read("ring v0.17.14|Apache-2.0 AND ISC (*)"),
            expected("ring", "0.17.14", "Apache-2.0 AND ISC")
        );
        assert_eq!(
            read("runway-core v0.1.0 (/a folder/core)|Apache-2.0"),
            expected("runway-core", "0.1.0", "Apache-2.0")
        );
        assert_eq!(read("unlicensed v1.0.0|"), expected("unlicensed", "1.0.0", ""));
        assert_eq!(read("no separator"), None);
    }

    #[test]
    fn a_bill_lists_what_is_linked_and_nothing_of_the_build() -> Result<()> {
        let mut rootfs = Rootfs::minimal();
        rootfs.file("/lib/some.so", shell::root().join("LICENSE"), 0o644)?;
        let bill = bill("asya-sidecar", "runway-asya-sidecar", &rootfs)?;
        assert_eq!(bill["metadata"]["component"]["name"], "asya-sidecar");
        let components = bill["components"].as_array().context("no components")?;
        let names: Vec<&str> = components.iter().filter_map(|c| c["name"].as_str()).collect();
        for linked in ["tokio", "rustls", "runway-sqs", "/lib/some.so"] {
            assert!(names.contains(&linked), "{linked} is missing");
        }
        for other in ["serde_derive", "proptest", "kube", "runway-asya-sidecar"] {
            assert!(!names.contains(&other), "{other} is not in the image");
        }
        let tokio = components.iter().find(|c| c["name"] == "tokio").context("no tokio")?;
        assert!(
            tokio["purl"]
                .as_str()
                .is_some_and(|purl| purl.starts_with("pkg:cargo/tokio@1."))
        );
        assert_eq!(tokio["licenses"][0]["expression"], "MIT");
        Ok(())
    }
}
