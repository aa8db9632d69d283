//! The table of versions of parts from outside, `versions.toml`.

use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::fs;
use std::path::Path;

use anyhow::{Context as _, Result, bail, ensure};
use serde::Deserialize;

use crate::shell::root;

/// Path of the table.
pub const PATH: &str = "versions.toml";

/// The table.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Versions {
    /// Minor releases that a version may be older than the newest.
    pub behind: u64,
    /// Default images by name.
    pub images: BTreeMap<String, Image>,
    /// Parts of tests by name.
    pub parts: BTreeMap<String, Part>,
}

/// A default image.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub struct Image {
    /// Name of the program.
    pub title: String,
    /// Its release, such as `1.2.0`.
    pub version: String,
    /// Image with `{version}` in its tag. None if the code composes it of more than the version.
    pub tag: Option<String>,
    /// Path of the file with the constant.
    pub constants: String,
    /// Registry that lists its releases, such as `pypi:vllm`.
    pub registry: Option<String>,
    /// Part that runs a release of the same program.
    pub shown_by: Option<String>,
}

/// A part of tests, whose version is in files that pin it.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Part {
    /// Name in its registry: a Go module, or a package of PyPI or npm.
    pub package: String,
    /// Whether its registry lists its releases; true by default.
    pub listed: Option<bool>,
    /// Reason why it is not raised.
    pub held: Option<String>,
    /// Paths of the files that pin it: `go.mod`, `package.json` or a file of requirements.
    pub pins: Vec<String>,
}

/// Registry of packages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Registry {
    /// Modules of Go.
    Go,
    /// Packages of Node.js.
    Npm,
    /// Packages of Python.
    PyPi,
}

impl Versions {
    /// Reads the table.
    pub fn read() -> Result<Self> {
        let text = fs::read_to_string(root().join(PATH)).with_context(|| format!("cannot read {PATH}"))?;
        toml::from_str(&text).with_context(|| format!("cannot read {PATH}"))
    }

    /// Version of the part that shows a release of the image's program, if there is one.
    pub fn shown(&self, image: &Image) -> Result<Option<String>> {
        let Some(name) = &image.shown_by else {
            return Ok(None);
        };
        let part = self.parts.get(name);
        part.with_context(|| format!("{PATH}: no part is called {name}"))?
            .version()
            .map(Some)
    }
}

impl Image {
    /// The registry and the name of the package in it. None if releases are not listed.
    pub fn listed(&self) -> Result<Option<(Registry, &str)>> {
        let Some(registry) = &self.registry else {
            return Ok(None);
        };
        match registry.split_once(':') {
            Some(("pypi", package)) => Ok(Some((Registry::PyPi, package))),
            Some(("npm", package)) => Ok(Some((Registry::Npm, package))),
            Some(("go", package)) => Ok(Some((Registry::Go, package))),
            _ => bail!("{PATH}: `{registry}` is not a registry: write pypi:NAME, npm:NAME or go:MODULE"),
        }
    }
}

impl Part {
    /// The registry and the name of the package in it. None if releases are not listed.
    pub fn listed(&self) -> Option<(Registry, &str)> {
        (self.listed != Some(false)).then(|| (self.registry(), self.package.as_str()))
    }

    /// Registry of the package, by the name of the first file that pins it.
    fn registry(&self) -> Registry {
        let extension = self.pins.first().map(Path::new).and_then(Path::extension);
        match extension.and_then(OsStr::to_str) {
            Some("mod") => Registry::Go,
            Some("json") => Registry::Npm,
            _ => Registry::PyPi,
        }
    }

    /// The pinned version. An error if files differ.
    pub fn version(&self) -> Result<String> {
        let mut versions = Vec::new();
        for path in &self.pins {
            let text = fs::read_to_string(root().join(path)).with_context(|| format!("cannot read {path}"))?;
            let version = pinned(&text, self.registry(), &self.package);
            let version = version.with_context(|| format!("{path} does not pin {}", self.package))?;
            versions.push(version.to_owned());
        }
        versions.dedup();
        ensure!(
            versions.len() == 1,
            "{} has the versions {} in {}: pin one of them in all",
            self.package,
            versions.join(" and "),
            self.pins.join(" and ")
        );
        versions.pop().with_context(|| format!("no file pins {}", self.package))
    }
}

/// Version of a package in the text of a file that pins it, such as a `go.mod`.
pub fn pinned<'a>(text: &'a str, registry: Registry, package: &str) -> Option<&'a str> {
    let of_line = |line: &'a str| match registry {
        Registry::Go => {
            let mut words = line.trim_start_matches("require ").split_whitespace();
            (words.next() == Some(package)).then(|| words.next()).flatten()
        }
        Registry::Npm => {
            let (name, version) = line.split_once(':')?;
            let unquoted = |part: &'a str| part.trim().trim_end_matches(',').trim_matches('"');
            (unquoted(name) == package).then(|| unquoted(version))
        }
        Registry::PyPi => {
            let (name, version) = line.split_once("==")?;
            let end = version
                .find(|c: char| c.is_whitespace() || c == ';')
                .unwrap_or(version.len());
            (name == package).then(|| &version[..end])
        }
    };
    text.lines().map(str::trim).find_map(of_line)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pins_of_each_registry_are_read() {
        let go = "module a\n\nrequire (\n\texample.com/b v1.2.0 // indirect\n\texample.com/bc v0.1.0\n)\n";
        assert_eq!(pinned(go, Registry::Go, "example.com/bc"), Some("v0.1.0"));
        let pypi = "a-b==1.0.0\nb==2.0.1 ; python_version > '3' --hash=sha256:0\n";
        assert_eq!(pinned(pypi, Registry::PyPi, "b"), Some("2.0.1"));
        let npm = "{ \"dependencies\": {\n    \"@a/b\": \"1.14.0\",\n    \"b\": \"6.49.0\"\n} }";
        assert_eq!(pinned(npm, Registry::Npm, "b"), Some("6.49.0"));
        assert_eq!(pinned(npm, Registry::Npm, "c"), None);
    }

    #[test]
    fn table_names_files_and_parts_that_exist() -> Result<()> {
        let versions = Versions::read()?;
        for part in versions.parts.values() {
            part.version()?;
        }
        for image in versions.images.values() {
            image.listed()?;
            versions.shown(image)?;
        }
        Ok(())
    }
}
