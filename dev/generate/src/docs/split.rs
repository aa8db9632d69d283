//! A long page as a folder of pages, one for each group of its sections, so that a reader finds and loads only what is needed.

use std::fmt::Write;

/// Start of a generated page.
const GENERATED: &str = "<!-- Made by `cargo xtask gen` from the code. Do not edit. -->\n";

/// Pages of a folder: `README.md` with the introduction and links, and a page for each group of sections (`## `), with headings one
/// level higher. `group` has the name of a section's page, without extension; a section without one stays in `README.md`.
pub(crate) fn pages(folder: &str, page: &str, group: impl Fn(&str) -> Option<String>) -> Vec<(String, String)> {
    let mut parts = page.split("\n## ");
    let mut index = parts.next().unwrap_or_default().to_owned();
    let mut pages: Vec<(String, String)> = Vec::new();
    let mut links = String::new();
    for part in parts {
        let title = part.lines().next().unwrap_or_default();
        // Writing to a String does not fail.
        let Some(name) = group(title) else {
            let _ = write!(index, "\n## {part}");
            continue;
        };
        if let Some((_, page)) = pages.iter_mut().find(|(known, _)| *known == name) {
            let _ = write!(page, "\n## {part}");
        } else {
            let summary = summary(part).map_or_else(String::new, |text| format!(": {text}"));
            let _ = writeln!(links, "- [{title}]({name}.md){summary}");
            let part = part.replace("\n### ", "\n## ");
            pages.push((name, format!("{GENERATED}# {part}")));
        }
    }
    let _ = write!(index, "\n## Pages\n\n{links}");
    let paths = pages
        .into_iter()
        .map(|(name, page)| (format!("{folder}/{name}.md"), page));
    let mut all: Vec<_> = paths
        .map(|(path, page)| (path, format!("{}\n", page.trim_end())))
        .collect();
    all.push((format!("{folder}/README.md"), index));
    all
}

/// First line of the output of a section that begins with one.
fn summary(part: &str) -> Option<&str> {
    let (_, output) = part.split_once("\n\n```text\n")?;
    output.lines().next()
}

/// Name of a file for a title.
pub(crate) fn file_name(title: &str) -> String {
    title.to_lowercase().replace(' ', "-").replace(':', "")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sections_become_pages_with_links() {
        let page = "# Title\n\nText.\n\n## `x a`\n\n```text\nDo a\n```\n\n## `x a b`\n\nMore.\n\n## Rest\n\nEnd.\n";
        let group = |title: &str| title.strip_prefix("`x ").map(|verb| verb[..1].to_owned());
        let pages = pages("f", page, group);
        let expected = [
            (
                "f/a.md",
                format!("{GENERATED}# `x a`\n\n```text\nDo a\n```\n\n## `x a b`\n\nMore.\n"),
            ),
            (
                "f/README.md",
                "# Title\n\nText.\n\n## Rest\n\nEnd.\n\n## Pages\n\n- [`x a`](a.md): Do a\n".to_owned(),
            ),
        ];
        let expected = expected.map(|(path, text)| (path.to_owned(), text));
        assert_eq!(pages, expected);
    }
}
