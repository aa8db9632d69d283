//! The threat model's table of fields that require a permission, from `runway_manifests::permissions`.

use std::fmt::Write;
use std::fs;

use anyhow::{Context, Result};
use runway_dev_support::shell::root;
use runway_manifests::permissions::KINDS;

/// Path of the page that has the table.
pub(crate) const PATH: &str = "docs/operate/threat-model.md";

const BEGIN: &str = "<!-- Made by `cargo xtask gen` from crates/manifests/src/permissions.rs. Do not edit. -->\n";
const END: &str = "<!-- End of the generated table. -->\n";

/// The page with the current table.
pub(crate) fn page() -> Result<String> {
    let page = fs::read_to_string(root().join(PATH))?;
    let (before, rest) = page
        .split_once(BEGIN)
        .context("docs/operate/threat-model.md has no table of permissions")?;
    let (_, after) = rest
        .split_once(END)
        .context("the table of permissions in docs/operate/threat-model.md has no end")?;
    Ok(format!("{before}{BEGIN}\n{}\n{END}{after}", table()?))
}

fn table() -> Result<String> {
    let mut text = "| kind | field | permission of the user | required for |\n|---|---|---|---|\n".to_owned();
    for kind in &KINDS {
        for field in kind.fields {
            writeln!(
                text,
                "| {} | `{}` | `{}` | {} |",
                kind.kind,
                field.path(),
                field.permission.check("NAMESPACE"),
                field.effect
            )?;
        }
    }
    Ok(text)
}
