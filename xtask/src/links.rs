//! Links between Markdown pages, and from code to pages: their files and headings exist.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;

use anyhow::{Context, Result, ensure};
use regex::Regex;
use runway_dev_support::{files, shell};

/// A page with what links need.
pub(crate) struct Page {
    pub(crate) links: Vec<Link>,
    anchors: BTreeSet<String>,
}

/// A link in a page.
pub(crate) struct Link {
    /// Line number, from 1.
    pub(crate) line: usize,
    /// As written, such as `install.md#images`.
    pub(crate) target: String,
}

impl Page {
    /// Reads a page by its path in the repository.
    pub(crate) fn read(path: &str) -> Result<Self> {
        let text = fs::read_to_string(shell::root().join(path)).with_context(|| format!("cannot read {path}"))?;
        Self::of(&text)
    }

    fn of(text: &str) -> Result<Self> {
        let link = Regex::new(r#"\]\(([^)\s]+)\)|(?:src|srcset|href)="([^"]+)""#)?;
        let code = Regex::new("`[^`]*`")?;
        let (mut links, mut anchors) = (Vec::new(), BTreeSet::new());
        let mut seen: BTreeMap<String, usize> = BTreeMap::new();
        for (number, line) in prose(text) {
            if let Some(heading) = line.strip_prefix('#') {
                let anchor = anchor(heading.trim_start_matches('#'));
                let count = seen.entry(anchor.clone()).or_default();
                anchors.insert(if *count == 0 {
                    anchor
                } else {
                    format!("{anchor}-{count}")
                });
                *count += 1;
            }
            for found in link.captures_iter(&code.replace_all(line, "")) {
                let target = found
                    .get(1)
                    .or_else(|| found.get(2))
                    .map_or("", |target| target.as_str());
                links.push(Link {
                    line: number,
                    target: target.to_owned(),
                });
            }
        }
        Ok(Self { links, anchors })
    }
}

/// Lines outside of fenced blocks, with their numbers.
pub(crate) fn prose(text: &str) -> impl Iterator<Item = (usize, &str)> {
    let mut fenced = false;
    (1..).zip(text.lines()).filter(move |(_, line)| {
        let fence = line.trim_start().starts_with("```");
        fenced ^= fence;
        !fenced && !fence
    })
}

/// Anchor of a heading, as the forge and mdBook derive it.
fn anchor(heading: &str) -> String {
    let kept = heading.trim().chars().filter_map(|c| match c {
        ' ' => Some('-'),
        c if c.is_alphanumeric() || "-_".contains(c) => Some(c.to_ascii_lowercase()),
        _ => None,
    });
    kept.collect()
}

/// Path in the repository of a link without its anchor.
pub(crate) fn resolve(page: &str, target: &str) -> String {
    let target = target.split('#').next().unwrap_or_default();
    if target.is_empty() {
        return page.to_owned();
    }
    let mut parts: Vec<&str> = page.split('/').collect();
    parts.pop();
    for part in target.split('/') {
        match part {
            "" | "." => {}
            ".." => drop(parts.pop()),
            part => parts.push(part),
        }
    }
    parts.join("/")
}

/// Links that lead nowhere.
pub(crate) fn broken() -> Result<Vec<String>> {
    let mut pages = BTreeMap::new();
    for path in files::markdown()? {
        pages.insert(path.clone(), Page::read(&path)?);
    }
    ensure!(pages.len() > 20, "git lists no pages");
    let mut broken = Vec::new();
    for (path, page) in &pages {
        for Link { line, target } in &page.links {
            let external = target.contains("://") || target.starts_with("mailto:");
            if !external && let Some(problem) = problem(&pages, &resolve(path, target), target) {
                broken.push(format!("{path}:{line}: {problem}"));
            }
        }
    }
    broken.extend(missing_paths(pages.keys())?);
    // Remedies, alerts and comments that name a page.
    let named = Regex::new(r"\bdocs/[A-Za-z0-9_/.-]+\.md(#[a-z0-9_-]+)?")?;
    for path in files::listed(&["*.rs", "*.py", "*.yaml", "*.yml"])? {
        // Corpora of fuzzers hold any bytes.
        let text = fs::read(shell::root().join(&path))?;
        for (line, text) in (1..).zip(String::from_utf8_lossy(&text).lines()) {
            for found in named.find_iter(text).filter(|found| is_ours(&text[..found.start()])) {
                let target = found.as_str();
                if let Some(problem) = problem(&pages, target.split('#').next().unwrap_or_default(), target) {
                    broken.push(format!("{path}:{line}: {problem}"));
                }
            }
        }
    }
    Ok(broken)
}

/// Paths of the repository in inline code that do not exist. The changelog names paths of its time.
fn missing_paths<'a>(pages: impl Iterator<Item = &'a String>) -> Result<Vec<String>> {
    let path = Regex::new(r"`((?:crates|deploy|dev|docs|examples|fuzz|python|xtask|\.github)/[A-Za-z0-9_./-]+)`")?;
    let mut missing = Vec::new();
    for page in pages.filter(|page| *page != "CHANGELOG.md") {
        let text = fs::read_to_string(shell::root().join(page))?;
        for (line, text) in prose(&text) {
            for found in path.captures_iter(text) {
                // NAME stands for a name.
                let named = &found[1];
                if !named.contains("NAME") && !shell::root().join(named).exists() {
                    missing.push(format!("{page}:{line}: {named} does not exist"));
                }
            }
        }
    }
    Ok(missing)
}

/// Whether a path after this text is one of this repository.
fn is_ours(before: &str) -> bool {
    let foreign = before.ends_with('/') && !before.ends_with("kubeairunway/blob/main/");
    !foreign && !before.ends_with("(Dynamo `")
}

fn problem(pages: &BTreeMap<String, Page>, path: &str, target: &str) -> Option<String> {
    if !shell::root().join(path).exists() {
        return Some(format!("{target} does not exist"));
    }
    let (_, anchor) = target.split_once('#')?;
    let known = pages.get(path)?.anchors.contains(anchor);
    (!known).then(|| format!("{path} has no heading #{anchor}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn anchors_are_those_of_the_forge() {
        assert_eq!(anchor(" R2. Registration: `spec`"), "r2-registration-spec");
        let page = Page::of("# A b\n## A b\n```sh\n# no heading [x](y)\n```\n`[c](d)` [e](f.md#g)\n").unwrap();
        assert_eq!(
            page.anchors.iter().map(String::as_str).collect::<Vec<_>>(),
            ["a-b", "a-b-1"]
        );
        let links: Vec<_> = page
            .links
            .iter()
            .map(|link| (link.line, link.target.as_str()))
            .collect();
        assert_eq!(links, [(6, "f.md#g")]);
    }

    /// `NAME` stands for a name, and `*` for any.
    #[test]
    fn recipes_for_contributors_name_files_that_exist() {
        let page = fs::read_to_string(shell::root().join("CONTRIBUTING.md")).unwrap();
        let (_, recipes) = page.split_once("## Your first change").unwrap();
        let (recipes, _) = recipes.split_once("\n## ").unwrap();
        let path = Regex::new("`((?:crates|deploy|dev|docs|xtask)/[^`]*)`").unwrap();
        let paths: Vec<_> = path.captures_iter(recipes).map(|found| found[1].to_owned()).collect();
        assert!(paths.len() > 15, "{paths:?}");
        for path in paths {
            let certain = path.split(['*', '{']).next().unwrap_or_default();
            let certain = certain.replace("NAME", "kaito");
            let certain = certain.trim_end_matches("provider-");
            assert!(shell::root().join(certain).exists(), "CONTRIBUTING.md: no {path}");
        }
    }

    #[test]
    fn links_are_resolved_from_the_folder_of_their_page() {
        assert_eq!(resolve("guide/adr/README.md", "../status.md#x"), "guide/status.md");
        assert_eq!(resolve("README.md", "guide/a.md"), "guide/a.md");
        assert_eq!(resolve("guide/a.md", "#here"), "guide/a.md");
    }

    #[test]
    fn a_link_to_nowhere_is_a_problem() {
        let pages = BTreeMap::from([("README.md".to_owned(), Page::of("# One\n").unwrap())]);
        assert_eq!(problem(&pages, "README.md", "README.md#one"), None);
        assert!(problem(&pages, "README.md", "README.md#two").is_some());
        assert!(problem(&pages, "guide/nothing.md", "guide/nothing.md").is_some());
    }
}
