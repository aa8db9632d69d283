//! Recurring forms that `docs/project/style.md` replaces: in pages, and in the comments, texts and names of code.

use std::fmt::Write;
use std::fs;
use std::path::Path;

use anyhow::{Context, Result};
use regex::Regex;
use runway_dev_support::{files, shell};

use crate::links;

/// Page that lists the forms.
const STYLE: &str = "docs/project/style.md";

/// Code in all languages.
const CODE: [&str; 3] = ["*.rs", "*.py", "*.js"];
/// Code that has the forms themselves.
const FORMS_OF: &str = "xtask/src/style.rs";

/// Pages that are generated from code, which is checked, and the page that quotes the forms.
const NOT_CHECKED: &[&str] = &[
    STYLE,
    "docs/reference/api/",
    "docs/reference/checks.md",
    "docs/reference/command/",
    "docs/reference/fields/",
    "docs/reference/metrics.md",
    "docs/reference/provider-contract.md",
    "docs/reference/settings.md",
    "docs/reference/versions.md",
];

/// Forms in running text, with the remedy.
const FORMS: &[(&str, &str)] = &[
    (
        r"(?i)\b(?:somebody|someone|nobody|anybody|whoever)\b",
        "name the actor, such as 'another field manager' or 'no controller'",
    ),
    (
        r"(?i)\bwho(?:m)? is to\b|\bwhom\b",
        "name the object, such as 'objects to requeue'",
    ),
    (r"(?i)\b(?:told|tells)\b", "write 'reported', 'shows' or 'returns'"),
    (
        r"(?i)\b(?:goes|went|going) on\b|\bgo on by\b|\bcomes? back\b",
        "write 'continues' or 'is restored'",
    ),
    (
        r"(?i)\b(?:is|are|was|were|as) asked for\b",
        "write 'desired', 'requested' or 'requires'",
    ),
    (r"(?i)\bis left out\b|\bare left out\b", "write 'skipped' or 'omitted'"),
    (r"(?i)\bput back\b|\bputs it back\b", "write 'reverted' or 'restored'"),
    (
        r"(?i)\bplease\b|\bsomething went wrong\b",
        "state what failed, why, and what to do",
    ),
    (r"(?i)\b(?:a lot|pretty much)\b", "state a number or a condition"),
    (
        r"(?i)\b(?:colour|behaviour|licence|honour|favour|neighbour|catalogue|recognis|optimis|serialis|normalis|initialis|summaris)",
        "use US spelling",
    ),
];

/// Declared names, whose words are checked like text.
const NAME: &str = r"\b(?:fn|struct|enum|trait|type|mod|const|static|let(?: mut)?|def|class|function) (\w+)";
/// Start of a doc comment or heading that names a question instead of a thing.
const QUESTION: &str = r"^(?:What|Who|Whom|Whose|Where|Why|How|Which)\b";
/// Form with an exception, which an expression without look-behind cannot state.
const NO_THING: &str = r"(?i)(\w+)'? is no ([a-z]+)";
/// Comments that only repeat a name.
const REPEATED: &str = r"^Its [a-z]+\.$";

/// What is wrong, and where.
#[derive(Debug)]
struct Finding {
    place: String,
    text: String,
}

/// The compiled forms.
struct Style {
    forms: Vec<(Regex, &'static str)>,
    question: Regex,
    no_thing: Regex,
    repeated: Regex,
    code: Regex,
    literal: Regex,
    name: Regex,
    hump: Regex,
}

/// Findings in pages, and in the comments and texts of code.
pub(crate) fn complaints() -> Result<Vec<String>> {
    let style = Style::new()?;
    let mut findings = Vec::new();
    for path in files::markdown()? {
        if !NOT_CHECKED.iter().any(|start| path.starts_with(start)) {
            let text = fs::read_to_string(shell::root().join(&path)).with_context(|| format!("cannot read {path}"))?;
            findings.extend(style.page(&path, &text));
        }
    }
    for path in files::listed(&CODE)?.iter().filter(|path| *path != FORMS_OF) {
        let text = fs::read_to_string(shell::root().join(path)).with_context(|| format!("cannot read {path}"))?;
        findings.extend(style.code(path, &text));
    }
    Ok(findings.iter().map(Finding::whole).collect())
}

impl Finding {
    fn whole(&self) -> String {
        format!("{}: {}", self.place, self.text)
    }
}

impl Style {
    fn new() -> Result<Self> {
        let forms = FORMS.iter().map(|(form, remedy)| Ok((Regex::new(form)?, *remedy)));
        Ok(Self {
            forms: forms.collect::<Result<_>>()?,
            question: Regex::new(QUESTION)?,
            no_thing: Regex::new(NO_THING)?,
            repeated: Regex::new(REPEATED)?,
            code: Regex::new(r"`[^`]*`|https?://\S+|\{[^}]*\}|--[a-z-]+")?,
            literal: Regex::new(r#""((?:[^"\\]|\\.)*)""#)?,
            name: Regex::new(NAME)?,
            hump: Regex::new(r"([a-z0-9])([A-Z])")?,
        })
    }

    /// Findings in running text, as remedies.
    fn text(&self, text: &str) -> Vec<String> {
        let text = self.code.replace_all(text, "x");
        let mut found = self.forms_in(&text);
        for words in self.no_thing.captures_iter(&text) {
            let usual = ["there", "longer", "it"]
                .iter()
                .any(|word| words[1].eq_ignore_ascii_case(word));
            if !usual && !["longer", "more", "need", "different", "reason"].contains(&&words[2]) {
                found.push(format!("'{}': write 'is not a'", &words[0]));
            }
        }
        found
    }

    fn forms_in(&self, text: &str) -> Vec<String> {
        let found = self
            .forms
            .iter()
            .filter_map(|(form, remedy)| Some((form.find(text)?, remedy)));
        found
            .map(|(words, remedy)| format!("'{}': {remedy}", words.as_str()))
            .collect()
    }

    fn page(&self, path: &str, text: &str) -> Vec<Finding> {
        let mut findings = Vec::new();
        for (number, line) in links::prose(text) {
            let mut add = |text: String| {
                findings.push(Finding {
                    place: format!("{path}:{number}"),
                    text,
                });
            };
            let heading = line.starts_with('#').then(|| line.trim_start_matches('#').trim());
            if let Some(heading) = heading
                && (heading.ends_with('?') || self.question.is_match(heading))
            {
                add(format!("'{heading}': a heading is a task or a noun"));
            }
            self.text(line).into_iter().for_each(&mut add);
        }
        findings
    }

    /// Findings in the words of a name. Names of tests are sentences, and begin with what they are about.
    fn name(&self, name: &str, is_test: bool) -> Vec<String> {
        let words = self.hump.replace_all(name, "$1 $2").replace('_', " ").to_lowercase();
        let words = words.trim_start_matches("test ");
        let mut found = if is_test {
            self.text(words)
        } else {
            self.forms_in(words)
        };
        if is_test && self.question.is_match(&capitalized(words)) {
            found.push(format!("'{name}': begin the name of a test with a noun"));
        }
        found
    }

    /// Findings in comments, string literals and declared names.
    fn code(&self, path: &str, text: &str) -> Vec<Finding> {
        let mut findings = Vec::new();
        let (mut in_doc, mut follows_test) = (false, false);
        let comment = if Path::new(path).extension().is_some_and(|end| end == "py") {
            "#"
        } else {
            "//"
        };
        for (number, line) in (1..).zip(text.lines()) {
            let mut add = |text: String| {
                findings.push(Finding {
                    place: format!("{path}:{number}"),
                    text,
                });
            };
            let line = line.trim();
            let doc = line
                .strip_prefix("///")
                .or_else(|| line.strip_prefix("//!"))
                .map(str::trim);
            if let Some(doc) = doc.filter(|_| !in_doc) {
                if self.question.is_match(doc) {
                    add(format!("'{doc}': start a doc comment with a noun or a verb"));
                }
                if self.repeated.is_match(doc) {
                    add(format!("'{doc}': delete a comment that repeats the name"));
                }
            }
            in_doc = doc.is_some();
            let is_after_test = follows_test;
            follows_test = line.starts_with("#[test]")
                || line.starts_with("#[tokio::test")
                || (follows_test && line.starts_with("#["));
            let mut spoken = doc
                .or_else(|| line.strip_prefix(comment))
                .unwrap_or_default()
                .to_owned();
            if doc.is_none() && !line.starts_with(comment) {
                for name in self.name.captures_iter(line) {
                    let is_test = is_after_test || name[1].starts_with("test_");
                    self.name(&name[1], is_test).into_iter().for_each(&mut add);
                }
                for literal in self
                    .literal
                    .captures_iter(line)
                    .filter(|literal| literal[1].contains(' '))
                {
                    // Writing to a text does not fail.
                    let _ = writeln!(spoken, "{}", &literal[1]);
                }
            }
            self.text(&spoken).into_iter().for_each(&mut add);
        }
        findings
    }
}

fn capitalized(words: &str) -> String {
    let mut letters = words.chars();
    letters
        .next()
        .map_or_else(String::new, |first| first.to_uppercase().chain(letters).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn forms_are_found_in_comments_texts_and_pages() {
        let style = Style::new().unwrap();
        let code = "/// What is left.\n/// What is more.\nfn a() {\n    say(\"'{x}' is no name\"); // somebody\n    let reported = \"told\";\n}\n";
        let found: Vec<String> = style.code("a.rs", code).iter().map(Finding::whole).collect();
        assert_eq!(found.len(), 2, "{found:?}");
        assert!(
            found[0].starts_with("a.rs:1: ") && found[1].starts_with("a.rs:4: "),
            "{found:?}"
        );
        let page = "# Why is it slow?\n`somebody` there is no x\n```\nsomebody\n```\nIt goes on.\n";
        let found: Vec<String> = style.page("a.md", page).iter().map(Finding::whole).collect();
        assert_eq!(found.len(), 2, "{found:?}");
    }

    #[test]
    fn names_in_every_language_are_read() {
        let style = Style::new().unwrap();
        let found = |path: &str, code: &str| style.code(path, code).len();
        assert_eq!(found("a.rs", "#[test]\nfn what_is_no_name_is_refused() {}\n"), 2);
        assert_eq!(
            found("a.rs", "fn what_is_no_name() {}\nstruct ToldBy;\nlet behaviour = 1;\n"),
            2
        );
        assert_eq!(
            found("a.py", "# somebody\ndef test_who_tells():\n    x = 'told off'\n"),
            3
        );
        assert_eq!(found("a.js", "// nobody\nconst colour = 1;\n"), 2);
    }

    #[test]
    fn plain_text_has_no_findings() {
        let style = Style::new().unwrap();
        for text in [
            "There is no provider",
            "It is no longer present",
            "Requested by the user",
            "see https://please.example",
        ] {
            assert!(style.text(text).is_empty(), "{text}");
        }
    }
}
