//! `book`: the documentation site.
//!
//! `docs/SUMMARY.md` is the table of contents. The pages keep their places in the repository, so that links work on the forge and in
//! the book alike; links to files that are not pages lead to the forge.

use std::collections::BTreeSet;
use std::fmt::Write;
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail, ensure};
use regex::{Captures, Regex};
use runway_dev_support::{files, shell};

use crate::links::{self, Page};

/// Version of mdBook, built from crates.io into `target/tools`. Takes a minute of processor time, once.
const MDBOOK: &str = "0.5.4";
/// Table of contents.
pub(crate) const SUMMARY: &str = "docs/SUMMARY.md";
/// Start of links to files that are not pages.
const FORGE: &str = "https://github.com/kubeairunway/kubeairunway/blob/main";

/// Builds the book into `target/book/html`.
pub(crate) fn run() -> Result<()> {
    let mdbook = mdbook()?;
    let book = shell::root().join("target/book");
    let _ = fs::remove_dir_all(&book);
    lay_out(&book)?;
    let html = book.join("html");
    let [mdbook, from, to] = [&mdbook, &book, &html].map(|path| path.display().to_string());
    shell::run(&mdbook, &["build", &from, "--dest-dir", &to])?;
    let broken = broken(&html, &html)?;
    ensure!(
        broken.is_empty(),
        "links in the book lead nowhere:\n  {}",
        broken.join("\n  ")
    );
    println!("{}", html.join("index.html").display());
    Ok(())
}

/// Links of the built pages in a folder to files that do not exist.
fn broken(html: &Path, folder: &Path) -> Result<Vec<String>> {
    let link = Regex::new(r##"(?:href|src|srcset)="([^"#:]+)(?:#[^"]*)?""##)?;
    let mut broken = Vec::new();
    for entry in fs::read_dir(folder)? {
        let path = entry?.path();
        if path.is_dir() {
            broken.extend(self::broken(html, &path)?);
        } else if path.extension().is_some_and(|extension| extension == "html") && !path.ends_with("404.html") {
            let text = fs::read_to_string(&path)?;
            // The frame with the table of contents has links relative to the top.
            let base = if path.ends_with("toc.html") { html } else { folder };
            let targets = link.captures_iter(&text).map(|found| found[1].to_owned());
            let missing = targets.filter(|target| !base.join(target).exists());
            broken.extend(missing.map(|target| format!("{}: {target}", path.display())));
        }
    }
    Ok(broken)
}

fn mdbook() -> Result<PathBuf> {
    let tools = shell::root().join("target/tools").join(format!("mdbook-{MDBOOK}"));
    let program = tools.join("bin/mdbook");
    if !program.is_file() {
        let folder = tools.display().to_string();
        let install = [
            "install",
            "mdbook",
            "--locked",
            "--no-default-features",
            "--features",
            "search",
        ];
        shell::run(
            "cargo",
            &[&install, ["--version", MDBOOK, "--root", &folder].as_slice()].concat(),
        )?;
    }
    Ok(program)
}

/// Copies pages and pictures to `src`, as in the repository, with the table of contents at the top.
fn lay_out(book: &Path) -> Result<()> {
    let root = shell::root();
    let pages = in_book()?;
    let source = book.join("src");
    let write = |path: &str, content: &[u8]| -> Result<()> {
        let to = source.join(path);
        fs::create_dir_all(to.parent().context("a file is in a folder")?)?;
        fs::write(&to, content).with_context(|| format!("cannot write {}", to.display()))
    };
    for path in &pages {
        let text = fs::read_to_string(root.join(path)).with_context(|| format!("cannot read {path}"))?;
        write(path, outward(path, &text, &pages)?.as_bytes())?;
    }
    for picture in fs::read_dir(root.join("docs/pictures"))? {
        let picture = picture?;
        let name = picture.file_name().to_string_lossy().into_owned();
        write(&format!("docs/pictures/{name}"), &fs::read(picture.path())?)?;
    }
    let summary = fs::read_to_string(root.join(SUMMARY))?;
    let link = Regex::new(r"\]\(([^)]+)\)")?;
    let summary = link.replace_all(&summary, |found: &Captures<'_>| {
        let path = links::resolve(SUMMARY, &found[1]);
        format!("]({path})")
    });
    let mut chapters = String::new();
    for line in summary.lines() {
        let path = line.rsplit_once("](").and_then(|(_, path)| path.strip_suffix(')'));
        writeln!(chapters, "{line}\n{}", below(path.unwrap_or_default())?)?;
    }
    write("SUMMARY.md", chapters.as_bytes())?;
    fs::copy(root.join("book.toml"), book.join("book.toml")).context("cannot copy book.toml")?;
    Ok(())
}

/// Lines of the table of contents for the pages of a folder, below its own page.
fn below(page: &str) -> Result<String> {
    let mut lines = String::new();
    for path in in_folder(page)? {
        let text = fs::read_to_string(shell::root().join(&path))?;
        let title = text.lines().find_map(|line| line.strip_prefix("# ")).unwrap_or(&path);
        writeln!(lines, "  - [{title}]({path})")?;
    }
    Ok(lines)
}

/// Other pages in the folder of a page `README.md` below `docs`, in order of their names.
fn in_folder(page: &str) -> Result<BTreeSet<String>> {
    let mut pages = BTreeSet::new();
    if let Some(folder) = page
        .strip_suffix("/README.md")
        .filter(|folder| folder.starts_with("docs/"))
    {
        for entry in fs::read_dir(shell::root().join(folder))? {
            let name = entry?.file_name().to_string_lossy().into_owned();
            if name != "README.md" {
                pages.insert(format!("{folder}/{name}"));
            }
        }
    }
    Ok(pages)
}

/// The text of a page with links to what is not in the book as links to the forge.
fn outward(page: &str, text: &str, pages: &BTreeSet<String>) -> Result<String> {
    let link = Regex::new(r"\]\(([^)#:\s]+)(#[^)\s]*)?\)")?;
    let replaced = link.replace_all(text, |found: &Captures<'_>| {
        let path = links::resolve(page, &found[1]);
        if pages.contains(&path) || path.starts_with("docs/pictures/") {
            // mdBook makes the index of a folder of its README.md, and leaves links to it as they are.
            return found[0].replace("README.md", "index.md");
        }
        format!("]({FORGE}/{path}{})", found.get(2).map_or("", |anchor| anchor.as_str()))
    });
    Ok(replaced.into_owned())
}

/// Paths of the pages in the book: those in the table of contents, and those in the folders of its pages `README.md`.
fn in_book() -> Result<BTreeSet<String>> {
    let summary = Page::read(SUMMARY)?;
    let mut pages = BTreeSet::new();
    for link in &summary.links {
        let page = links::resolve(SUMMARY, &link.target);
        let in_folder = in_folder(&page)?;
        if !pages.insert(page) {
            bail!("{SUMMARY}:{}: {} is listed twice", link.line, link.target);
        }
        pages.extend(in_folder);
    }
    Ok(pages)
}

/// Pages under `docs` that the table of contents lacks.
pub(crate) fn missing() -> Result<Vec<String>> {
    let pages = in_book()?;
    ensure!(pages.len() > 20, "{SUMMARY} has no links");
    let all = files::markdown()?;
    let missing = all
        .iter()
        .filter(|path| path.starts_with("docs/") && *path != SUMMARY && !pages.contains(*path));
    Ok(missing.map(|path| format!("{SUMMARY}: {path} is missing")).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn folders_of_pages_are_chapters_below_their_own_page() {
        let records = in_folder("docs/project/adr/README.md").unwrap();
        assert!(records.len() > 30 && !records.contains("docs/project/adr/README.md"));
        assert!(in_folder("README.md").unwrap().is_empty());
        assert!(in_folder("docs/project/style.md").unwrap().is_empty());
    }

    #[test]
    fn links_out_of_the_book_lead_to_the_forge() {
        let pages = BTreeSet::from(["README.md".to_owned(), "guide/a.md".to_owned()]);
        let text = "[a](a.md#b) [r](../README.md) [p](../docs/pictures/x.png) [e](../deploy/examples) [w](https://example.com/x) [h](#here)";
        let reported = outward("guide/a.md", text, &pages).unwrap();
        assert_eq!(
            reported,
            format!(
                "[a](a.md#b) [r](../index.md) [p](../docs/pictures/x.png) [e]({FORGE}/deploy/examples) [w](https://example.com/x) [h](#here)"
            )
        );
    }
}
