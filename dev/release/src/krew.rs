//! Manifest of the kubectl plugin for krew.

use anyhow::Result;
use runway_manifests::component::TAG;
use serde_json::{Value, json};

use crate::yaml::{HEADER, document};

/// Path of the template. `cargo xtask release` writes the manifest with the checksums of the archives.
pub const PATH: &str = "deploy/krew/kubeairunway.yaml";
/// Platforms with an archive, as `OS-ARCH`.
pub const PLATFORMS: [&str; 4] = ["linux-amd64", "linux-arm64", "darwin-amd64", "darwin-arm64"];
/// Program in the archive. krew finds it as `kubectl kubeairunway`.
pub const PROGRAM: &str = "kubectl-kubeairunway";

const HOMEPAGE: &str = "https://github.com/kubeairunway/kubeairunway";
/// At most 50 characters, without a period: krew's rule.
const SUMMARY: &str = "Deploy and inspect AI models and actors";
const DESCRIPTION: &str = "\
Deploys ModelDeployments, AsyncActors and LlamaStackDistributions, shows their state and what they are waiting for, and installs
the control plane of KubeAIRunway.
";

/// Name of the archive for a platform.
pub fn archive(platform: &str) -> String {
    format!("kubeairunway-{platform}.tar.gz")
}

/// The manifest with a checksum of zeros for each platform.
pub fn template() -> Result<String> {
    manifest(PLATFORMS.map(|platform| (platform, "0".repeat(64))))
}

/// The manifest for archives with these checksums (SHA-256, hexadecimal).
pub fn manifest(sums: impl IntoIterator<Item = (&'static str, String)>) -> Result<String> {
    let platforms: Vec<Value> = sums
        .into_iter()
        .map(|(platform, sum)| {
            let (os, arch) = platform.split_once('-').unwrap_or((platform, ""));
            json!({
                "selector": { "matchLabels": { "os": os, "arch": arch } },
                "uri": format!("{HOMEPAGE}/releases/download/{TAG}/{}", archive(platform)),
                "sha256": sum,
                "bin": PROGRAM,
                "files": [{ "from": PROGRAM, "to": "." }, { "from": "LICENSE", "to": "." }],
            })
        })
        .collect();
    let manifest = json!({
        "apiVersion": "krew.googlecontainertools.github.com/v1alpha2",
        "kind": "Plugin",
        "metadata": { "name": "kubeairunway" },
        "spec": {
            "version": TAG,
            "homepage": HOMEPAGE,
            "shortDescription": SUMMARY,
            "description": DESCRIPTION,
            "platforms": platforms,
        },
    });
    Ok(format!("{HEADER}{}", document(&manifest)?))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// As krew's own validation and naming guide require.
    #[test]
    fn krew_accepts_the_manifest() {
        let manifest: Value = serde_saphyr::from_str(&template().unwrap()).unwrap();
        let spec = &manifest["spec"];
        assert!(spec["version"].as_str().unwrap().starts_with('v'));
        assert!(SUMMARY.len() <= 50 && !SUMMARY.ends_with('.'));
        for platform in spec["platforms"].as_array().unwrap() {
            assert_eq!(platform["sha256"].as_str().unwrap().len(), 64);
            let files = platform["files"].as_array().unwrap();
            assert!(
                files
                    .iter()
                    .any(|file| file["from"] == platform["bin"] && file["to"] == ".")
            );
            assert!(files.iter().any(|file| file["from"] == "LICENSE"));
        }
    }
}
