//! Circles of `use` between the files of a crate: none of them can be read, moved or tested without the others.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;

use anyhow::Result;
use regex::Regex;
use runway_dev_support::{files, shell};

/// Path of a module below the root of its crate; empty for the root.
type Module = Vec<String>;

/// Circles of `use` in the crates, the development programs and xtask.
pub(crate) fn complaints() -> Result<Vec<String>> {
    let mut crates = vec!["xtask".to_owned()];
    for folder in ["crates", "dev"] {
        for entry in fs::read_dir(shell::root().join(folder))? {
            crates.push(format!("{folder}/{}", entry?.file_name().display()));
        }
    }
    crates.sort();
    let mut complaints = Vec::new();
    for name in crates {
        let source = shell::root().join(&name).join("src");
        let mut files = Vec::new();
        for file in files::rust_files(&source)? {
            files.push((module(file.strip_prefix(&source)?), fs::read_to_string(&file)?));
        }
        complaints.extend(circles(&files)?.iter().map(|circle| {
            format!(
                "{name}: circle of `use`: {}: move what they share below both",
                circle.join(", ")
            )
        }));
    }
    Ok(complaints)
}

/// Module of a file, by its path below `src`.
fn module(file: &std::path::Path) -> Module {
    let path = file.with_extension("");
    let mut module: Module = path.iter().map(|part| part.to_string_lossy().into_owned()).collect();
    module.pop_if(|last| ["lib", "main", "mod"].contains(&last.as_str()));
    module
}

/// Groups of modules that use each other, directly or through others. A parent may use its submodules, and they may use what they
/// have in common from it: of the two directions, one counts at a time.
fn circles(files: &[(Module, String)]) -> Result<BTreeSet<Vec<String>>> {
    let forms = Forms::new()?;
    let modules: BTreeSet<&[String]> = files.iter().map(|(module, _)| module.as_slice()).collect();
    let mut uses: BTreeMap<&[String], BTreeSet<&[String]>> = BTreeMap::new();
    for (module, code) in files {
        for path in forms.paths(code) {
            let path = resolved(module, &path);
            let longest = (0..=path.len()).rev().find_map(|end| modules.get(path.get(..end)?));
            let other = longest.filter(|other| **other != module.as_slice());
            uses.entry(module).or_default().extend(other);
        }
    }
    let mut found = among(&modules, uses.clone(), |module, other| other.starts_with(module));
    found.extend(among(&modules, uses, <[String]>::starts_with));
    Ok(found)
}

/// Groups of modules that use each other, without some of the uses.
fn among<'a>(
    modules: &BTreeSet<&'a [String]>,
    mut uses: BTreeMap<&'a [String], BTreeSet<&'a [String]>>,
    is_ignored: fn(&[String], &[String]) -> bool,
) -> BTreeSet<Vec<String>> {
    for (module, others) in &mut uses {
        others.retain(|other| !is_ignored(module, other));
    }
    let reached: BTreeMap<_, _> = modules.iter().map(|module| (*module, reached(&uses, module))).collect();
    let mut found = BTreeSet::new();
    for (module, of_module) in &reached {
        let back = |other: &&&[String]| reached.get(*other).is_some_and(|all| all.contains(module));
        let circle: Vec<String> = of_module.iter().filter(back).map(|module| module.join("::")).collect();
        if !circle.is_empty() {
            found.insert(circle);
        }
    }
    found
}

/// Modules that `module` uses, directly or through others.
fn reached<'a>(uses: &BTreeMap<&'a [String], BTreeSet<&'a [String]>>, module: &'a [String]) -> BTreeSet<&'a [String]> {
    let mut reached = BTreeSet::new();
    let mut next = vec![module];
    while let Some(module) = next.pop() {
        next.extend(
            uses.get(module)
                .into_iter()
                .flatten()
                .filter(|used| reached.insert(**used)),
        );
    }
    reached
}

/// A path that starts with `crate` or `super`, from the root of the crate.
fn resolved(module: &[String], path: &str) -> Module {
    let mut base = module.to_vec();
    for part in path.split("::") {
        match part {
            "" => {}
            "crate" => base.clear(),
            "super" => drop(base.pop()),
            part => base.push(part.to_owned()),
        }
    }
    base
}

/// Compiled expressions.
struct Forms {
    /// Comments and new names.
    ignored: Regex,
    token: Regex,
}

impl Forms {
    fn new() -> Result<Self> {
        Ok(Self {
            ignored: Regex::new(r"//.*| as \w+")?,
            token: Regex::new(r"\w+(?:::\w+)*(?:::)?|[^\w\s]")?,
        })
    }

    /// Paths that start with `crate` or `super`, with the groups of `use` expanded, without those in unit tests.
    fn paths(&self, code: &str) -> Vec<String> {
        let code = code.split("#[cfg(test)]\nmod tests {").next().unwrap_or_default();
        let code = self.ignored.replace_all(code, "");
        let mut groups: Vec<String> = Vec::new();
        let mut open = String::new();
        let mut paths = Vec::new();
        for token in self.token.find_iter(&code) {
            let before = std::mem::take(&mut open);
            match token.as_str() {
                "{" if !before.is_empty() => groups.push(before),
                "}" => drop(groups.pop()),
                "*" => paths.push(before),
                token if token.starts_with(|c: char| c.is_alphanumeric() || c == '_') => {
                    let path = format!("{}{token}", groups.last().map_or("", String::as_str));
                    if path.ends_with("::") {
                        open = path;
                    } else {
                        paths.push(path);
                    }
                }
                _ => {}
            }
        }
        paths.retain(|path| path.starts_with("crate::") || path.starts_with("super::"));
        paths
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(files: &[(&str, &str)]) -> Vec<Vec<String>> {
        let files: Vec<_> = files
            .iter()
            .map(|(path, code)| (module(path.as_ref()), (*code).to_owned()))
            .collect();
        circles(&files).unwrap().into_iter().collect()
    }

    #[test]
    fn circles_are_found_through_groups_paths_and_other_files() {
        let files = [
            ("lib.rs", "mod a;\nmod b;\nmod c;\nuse crate::a::A;"),
            ("a/mod.rs", "use crate::{\n    b::{self, B as Other},\n    X,\n};"),
            ("a/part.rs", "use super::A;"),
            ("b.rs", "fn f() -> Vec::<u8> { super::c::C }"),
            ("c.rs", "use crate::a::*;"),
        ];
        assert_eq!(found(&files), [["a", "b", "c"]]);
    }

    #[test]
    fn circles_through_submodules_are_found() {
        let files = [
            ("main.rs", "mod demo;\nmod up;"),
            (
                "demo/mod.rs",
                "mod asya;\npub fn show() { self::asya::show() }\nuse crate::demo::asya::A;",
            ),
            ("demo/asya.rs", "use crate::up::step;"),
            ("up.rs", "use crate::demo::show;"),
        ];
        assert_eq!(found(&files), [["demo", "demo::asya", "up"]]);
    }

    #[test]
    fn submodules_comments_and_unit_tests_are_no_circle() {
        let files = [
            ("a/mod.rs", "mod part;\nuse crate::a::part::P;"),
            ("a/part.rs", "use super::A; // crate::b"),
            ("b.rs", "use crate::a::{part::P as Q};"),
            (
                "c.rs",
                "use crate::b::B;\n#[cfg(test)]\nmod tests {\n    use crate::d::D;\n}",
            ),
            ("d.rs", "use crate::c::C;"),
        ];
        assert!(found(&files).is_empty());
    }
}
