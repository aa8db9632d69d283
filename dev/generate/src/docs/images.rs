//! The list of images, from the manifests and from rendered models: what a mirror needs.

use std::collections::BTreeSet;
use std::fmt::Write;

use anyhow::{Result, ensure};
use runway_dev_release::yaml::documents;
use runway_manifests::component::REGISTRY;
use runway_manifests::{self as manifests, Release};

use super::reference;

/// Path of the page.
pub(crate) const PATH: &str = "docs/reference/images.md";

const INTRODUCTION: &str = "<!-- Made by `cargo xtask gen` from the code. Do not edit. -->
# Images

Images that an installation and its models pull by default. [Air gap](../how-to/air-gap.md) describes how to mirror them.

## Control plane

The optional ones are named as such. `asya-sidecar` runs in the pods of actors.

| image | component |
|---|---|
";

const ENGINES: &str = "
## Models

`spec.image` of a ModelDeployment, `images` and `registryMirror` in the [settings](settings.md) of a provider replace them. Dynamo's
images have the release of Dynamo's operator; the tag here is the default if that is unknown. KAITO's presets pull the images of KAITO.

| image | provider and engine |
|---|---|
";

/// The page.
pub(crate) fn page() -> Result<String> {
    let mut page = INTRODUCTION.to_owned();
    let ours = format!("{REGISTRY}/");
    let installed: Vec<String> = manifests::components()
        .into_iter()
        .map(|component| component.name)
        .collect();
    let mut listed = BTreeSet::new();
    for component in manifests::all_components() {
        let text = documents(&component.objects(&Release::default()))?;
        let words = text.split(|c: char| c.is_whitespace() || "\"'=,".contains(c));
        for found in words.filter(|word| word.starts_with(&ours)).map(str::to_owned) {
            let optional = if installed.contains(&component.name) {
                ""
            } else {
                " (optional)"
            };
            if listed.insert(found.clone()) {
                writeln!(page, "| `{found}` | {}{optional} |", component.name)?;
            }
        }
    }
    ensure!(listed.len() > 5, "the manifests name {} images only", listed.len());
    page.push_str(ENGINES);
    for (image, users) in reference::images() {
        let users: Vec<String> = users.into_iter().collect();
        writeln!(page, "| `{image}` | {} |", users.join("; "))?;
    }
    Ok(page)
}
