//! Constants of default images, from the table of versions.

use std::collections::BTreeMap;

use anyhow::{Context as _, Result};
use runway_dev_support::versions::{Image, PATH, Versions};

/// Every file of constants, with its content.
pub(crate) fn files() -> Result<Vec<(String, String)>> {
    let versions = Versions::read()?;
    let mut files = BTreeMap::new();
    for (name, image) in &versions.images {
        let text = files
            .entry(image.constants.clone())
            .or_insert_with(|| format!("//! Default images. Made by `cargo xtask gen` from `{PATH}`. Do not edit.\n"));
        text.push_str(&constant(name, image)?);
    }
    Ok(files.into_iter().collect())
}

fn constant(name: &str, image: &Image) -> Result<String> {
    let constant = name.replace('-', "_").to_uppercase();
    let definition = match &image.tag {
        Some(tag) => format!("{constant}: &str = \"{}\"", tag.replace("{version}", &image.version)),
        None => format!("{constant}: [u32; 3] = {:?}", numbers(&image.version)?),
    };
    Ok(format!("\n/// {}.\npub(crate) const {definition};\n", image.title))
}

/// Major, minor and patch.
fn numbers(version: &str) -> Result<[u32; 3]> {
    let parts: Result<Vec<u32>, _> = version.split('.').map(str::parse).collect();
    let parts = parts.with_context(|| format!("{PATH}: `{version}` is not a version such as 1.2.3"))?;
    parts
        .try_into()
        .ok()
        .with_context(|| format!("{PATH}: `{version}` is not a version such as 1.2.3"))
}
