//! Rules of the repository that the compiler does not check.

use std::collections::BTreeSet;
use std::fs;
use std::path::PathBuf;

use anyhow::{Context, Result, bail, ensure};
use regex::Regex;
use runway_dev_support::{files, shell};
use serde_json::Value;

use crate::{book, circles, links, style, workflows};

/// Crates of the workspace that each crate may depend on: binaries -> controllers -> provider/operator -> api (ARCHITECTURE.md).
const MAY_USE: &[(&str, &[&str])] = &[
    ("runway-api", &[]),
    ("runway-engines", &["runway-provider", "runway-provider-*"]),
    ("runway-http", &[]),
    ("runway-operator", &["runway-api", "runway-http"]),
    ("runway-callers", &["runway-operator"]),
    ("runway-provider", &["runway-api", "runway-operator"]),
    ("runway-core", &["runway-api", "runway-http", "runway-operator"]),
    ("runway-llama-stack-operator", &["runway-api", "runway-operator"]),
    ("runway-llama-stack-kit", &["runway-api", "runway-llama-stack-operator"]),
    (
        "runway-provider-*",
        &["runway-api", "runway-operator", "runway-provider"],
    ),
    ("runway-sqs", &[]),
    ("runway-asya-transport", &["runway-sqs"]),
    (
        "runway-asya-sidecar",
        &["runway-asya-transport", "runway-http", "runway-sqs"],
    ),
    (
        "runway-asya-operator",
        &["runway-api", "runway-asya-transport", "runway-operator", "runway-sqs"],
    ),
    (
        "runway-asya-gateway",
        &[
            "runway-api",
            "runway-asya-transport",
            "runway-callers",
            "runway-http",
            "runway-operator",
            "runway-sqs",
        ],
    ),
    (
        "runway-router",
        &["runway-api", "runway-callers", "runway-http", "runway-operator"],
    ),
    (
        "runway-manifests",
        &[
            "runway-api",
            "runway-asya-operator",
            "runway-callers",
            "runway-core",
            "runway-engines",
            "runway-router",
            "runway-llama-stack-operator",
            "runway-operator",
            "runway-provider",
            "runway-provider-*",
        ],
    ),
    ("runway-fit", &["runway-api", "runway-operator", "runway-provider"]),
    (
        "runway-client",
        &[
            "runway-api",
            "runway-asya-operator",
            "runway-callers",
            "runway-core",
            "runway-engines",
            "runway-fit",
            "runway-llama-stack-operator",
            "runway-manifests",
            "runway-operator",
            "runway-provider",
        ],
    ),
    (
        "runway-doctor",
        &[
            "runway-api",
            "runway-asya-operator",
            "runway-client",
            "runway-core",
            "runway-manifests",
            "runway-operator",
            "runway-provider",
            "runway-router",
        ],
    ),
    (
        "runway-web",
        &[
            "runway-api",
            "runway-callers",
            "runway-client",
            "runway-core",
            "runway-engines",
            "runway-fit",
            "runway-http",
            "runway-manifests",
            "runway-operator",
            "runway-provider",
        ],
    ),
    ("runway-testbed", &["runway-dev-support", "runway-sqs"]),
    ("runway-asya-testbed", &["runway-sqs", "runway-testbed"]),
    ("runway-upstream-simulator", &["runway-http"]),
    ("runway-dev-support", &[]),
    ("xtask", &["runway-dev-support"]),
];

/// Crates that api must not depend on, so that its types are cheap to use.
const NOT_IN_API: [&str; 3] = ["tokio", "kube-client", "hyper"];

/// Folders and files whose code must be pure: the same plan runs in production, in `render` and in tests. A `*` in the name of a
/// crate stands for several.
const PURE: &[&str] = &[
    "crates/operator/src/kubelet.rs",
    "crates/provider/src/engine",
    "crates/provider/src/flags.rs",
    "crates/provider/src/plan",
    "crates/provider/src/request.rs",
    "crates/core/src/plan",
    "crates/core/src/selection.rs",
    "crates/core/src/admission/validate.rs",
    "crates/core/src/conversion.rs",
    "crates/manifests/src",
    "crates/client/src/offline/deploy.rs",
    "crates/client/src/target.rs",
    "crates/client/src/view",
    "crates/engines/src",
    "crates/fit/src",
    "crates/provider-*/src",
    "crates/asya-operator/src/plan",
    "crates/asya-operator/src/request.rs",
    "crates/asya-operator/src/formula.rs",
    "crates/asya-operator/src/ports.rs",
    "crates/asya-operator/src/targets.rs",
    "crates/asya-operator/src/names.rs",
    "crates/asya-operator/src/needs.rs",
    "crates/asya-operator/src/object.rs",
    "crates/asya-operator/src/queue.rs",
    "crates/llama-stack-operator/src/merge",
    "crates/asya-sidecar/src/plan.rs",
    "crates/asya-sidecar/src/envelope.rs",
    "crates/asya-gateway/src/job.rs",
    "crates/asya-gateway/src/submission.rs",
    "crates/router/src/requested.rs",
    "crates/router/src/model.rs",
    "crates/router/src/routes/claims.rs",
    "crates/router/src/routes/kinds.rs",
    "crates/router/src/routes/plan",
    "crates/router/src/routes/pods.rs",
    "crates/router/src/table.rs",
    "crates/llama-stack-operator/src/plan",
    "crates/llama-stack-operator/src/validate.rs",
];

/// Forbidden text in pure code, with the reason.
const IMPURE: [(&str, &str); 8] = [
    ("async ", "a plan does not wait"),
    (".await", "a plan does not wait"),
    ("kube::Client", "a plan sends no requests"),
    ("Api::", "a plan sends no requests"),
    ("clock::now", "time comes in as a value"),
    ("Timestamp::now", "time comes in as a value"),
    ("std::env", "configuration comes in as a value"),
    ("HashMap", "its order is random: use BTreeMap"),
];

/// The pages of the console.
const PAGES: &[&str] = &[
    "crates/web/src/page.rs",
    "crates/web/src/pages",
    "crates/client/src/view/tree",
];

/// Forbidden text in pages, with the reason.
const NOT_ON_PAGES: [(&str, &str); 2] = [
    (
        ":?}",
        "people read the words of the API (as_str), not the names of enum variants",
    ),
    (
        ":#?}",
        "people read the words of the API (as_str), not the names of enum variants",
    ),
];

pub(crate) fn run() -> Result<()> {
    let mut complaints = Vec::new();
    let metadata: Value = serde_json::from_str(&shell::output(
        "cargo",
        &["metadata", "--format-version", "1", "--locked"],
    )?)?;
    complaints.extend(dependency_direction(&metadata));
    complaints.extend(foreign_crates(&metadata)?);
    complaints.extend(compiled_twice()?);
    complaints.extend(pure_code()?);
    complaints.extend(unbounded_text()?);
    complaints.extend(module_docs()?);
    complaints.extend(threats()?);
    complaints.extend(links::broken()?);
    complaints.extend(style::complaints()?);
    complaints.extend(circles::complaints()?);
    complaints.extend(book::missing()?);
    complaints.extend(workflows::complaints()?);
    if complaints.is_empty() {
        println!("tidy: no findings");
        return Ok(());
    }
    bail!("untidy:\n  {}", complaints.join("\n  "))
}

fn dependency_direction(metadata: &Value) -> Vec<String> {
    let packages = metadata["packages"].as_array().cloned().unwrap_or_default();
    let mut complaints = Vec::new();
    for package in &packages {
        let name = package["name"].as_str().unwrap_or_default();
        let Some((_, allowed)) = MAY_USE.iter().find(|(pattern, _)| matches_pattern(pattern, name)) else {
            continue;
        };
        for dependency in package["dependencies"].as_array().into_iter().flatten() {
            let used = dependency["name"].as_str().unwrap_or_default();
            let for_tests = dependency["kind"] == "dev";
            if used.starts_with("runway-")
                && !for_tests
                && !allowed.iter().any(|pattern| matches_pattern(pattern, used))
            {
                complaints.push(format!("{name} must not depend on {used}"));
            }
        }
    }
    complaints
}

fn matches_pattern(pattern: &str, name: &str) -> bool {
    match pattern.strip_suffix('*') {
        Some(prefix) => name.starts_with(prefix),
        None => pattern == name,
    }
}

/// Licenses that deny.toml does not allow, crates that it bans, and forbidden dependencies of api.
fn foreign_crates(metadata: &Value) -> Result<Vec<String>> {
    let deny = fs::read_to_string(shell::root().join("deny.toml")).context("deny.toml is missing")?;
    let linked = linked_crates()?;
    let banned = Regex::new(r#"\{ crate = "([^"]+)", reason = "([^"]+)" \}"#)?;
    let banned: Vec<_> = banned.captures_iter(&deny).map(|found| found.extract().1).collect();
    ensure!(
        !banned.is_empty(),
        "deny.toml bans no crates in lines such as `{{ crate = \"NAME\", reason = \"TEXT\" }}`"
    );
    let mut complaints: Vec<String> = banned
        .iter()
        .filter(|[name, _]| linked.contains(*name))
        .map(|[name, reason]| format!("{name} is linked: {reason}"))
        .collect();
    for package in metadata["packages"].as_array().into_iter().flatten() {
        let name = package["name"].as_str().unwrap_or_default();
        let license = package["license"].as_str().unwrap_or("none");
        if linked.contains(name) && !license_is_allowed(license, &deny) {
            complaints.push(format!("{name}: license {license} is not allowed by deny.toml"));
        }
    }
    let api = shell::output(
        "cargo",
        &[
            "tree",
            "-p",
            "runway-api",
            "-e",
            "normal",
            "--prefix",
            "none",
            "-f",
            "{p}",
            "--locked",
        ],
    )?;
    let api: BTreeSet<&str> = api.lines().filter_map(|line| line.split(' ').next()).collect();
    complaints.extend(
        NOT_IN_API
            .iter()
            .filter(|name| api.contains(**name))
            .map(|name| format!("runway-api must not depend on {name}")),
    );
    Ok(complaints)
}

fn linked_crates() -> Result<BTreeSet<String>> {
    let tree = shell::output(
        "cargo",
        &[
            "tree",
            "--workspace",
            "-e",
            "normal",
            "--prefix",
            "none",
            "-f",
            "{p}",
            "--locked",
        ],
    )?;
    Ok(tree
        .lines()
        .filter_map(|line| line.split(' ').next())
        .map(str::to_owned)
        .collect())
}

/// Crates that programs of the workspace have with other features than its tests: these, and all that stands on them, would be
/// compiled once for each.
fn compiled_twice() -> Result<Vec<String>> {
    let of_programs = features(&["--workspace", "-e", "no-dev"])?;
    let of_tests = features(&["--workspace", "-e", "normal,build,dev"])?;
    let complaint =
        |line: &String| format!("tests have other features of this crate, see dev/cluster/Cargo.toml: {line}");
    Ok(of_programs.difference(&of_tests).map(complaint).collect())
}

/// Each crate with its version and its features.
fn features(args: &[&str]) -> Result<BTreeSet<String>> {
    let common = ["tree", "--prefix", "none", "-f", "{p} {f}", "--locked"];
    let tree = shell::output("cargo", &[&common, args].concat())?;
    // A star stands where what is below has been shown before.
    let crates = tree.lines().map(|line| line.trim_end_matches("(*)").trim_end());
    Ok(crates.map(str::to_owned).collect())
}

/// An expression such as `MIT OR Apache-2.0` or `(A OR B) AND C`: every AND needs one of its ORs.
fn license_is_allowed(expression: &str, deny: &str) -> bool {
    let plain = expression.replace(['(', ')'], " ").replace('/', " OR ");
    plain.split(" AND ").all(|part| {
        part.split(" OR ")
            .any(|name| deny.contains(&format!("\"{}\"", name.trim())))
    })
}

fn pure_code() -> Result<Vec<String>> {
    Ok([
        without(PURE, &IMPURE, "pure code")?,
        without(PAGES, &NOT_ON_PAGES, "a page")?,
    ]
    .concat())
}

/// Lines that bound a text by a precision of Debug, which limits only the digits of numbers and durations.
fn unbounded_text() -> Result<Vec<String>> {
    let debug_with_length = Regex::new(r"\{[^{}]*:[^{}]*\.(?:\d\d+|\w+\$|\*)#?\?\}")?;
    let mut complaints = Vec::new();
    for file in files::listed(&["*.rs"])? {
        let text = fs::read_to_string(shell::root().join(&file)).with_context(|| format!("cannot read {file}"))?;
        let code = text
            .lines()
            .enumerate()
            .filter(|(_, line)| !line.trim_start().starts_with("//"));
        let found = code.filter(|(_, line)| debug_with_length.is_match(line));
        complaints.extend(found.map(|(index, _)| {
            let line = index + 1;
            format!("{file}:{line}: a precision of `?` does not limit strings: cut the text, as `runway_api::name::shown` does")
        }));
    }
    Ok(complaints)
}

/// Paths of a place: those of all crates whose name matches, and at least one.
fn expanded(place: &str) -> Result<Vec<PathBuf>> {
    let root = shell::root();
    let Some((pattern, rest)) = place.split_once("*/") else {
        return Ok(vec![root.join(place)]);
    };
    let (folder, prefix) = pattern.rsplit_once('/').context("a pattern has a folder")?;
    let mut paths = Vec::new();
    for entry in fs::read_dir(root.join(folder)).with_context(|| format!("cannot read {folder}"))? {
        let entry = entry?;
        if entry.file_name().to_string_lossy().starts_with(prefix) {
            paths.push(entry.path().join(rest));
        }
    }
    ensure!(!paths.is_empty(), "nothing matches {place}");
    Ok(paths)
}

/// Occurrences of forbidden text in code, except in tests.
fn without(places: &[&str], words: &[(&str, &str)], what: &str) -> Result<Vec<String>> {
    let mut complaints = Vec::new();
    for place in places
        .iter()
        .map(|place| expanded(place))
        .collect::<Result<Vec<_>>>()?
        .concat()
    {
        for file in files::rust_files(&place)? {
            if file.ends_with("main.rs") {
                continue;
            }
            let text = fs::read_to_string(&file)?;
            let code = text.split("#[cfg(test)]").next().unwrap_or_default();
            for (number, line) in code
                .lines()
                .enumerate()
                .filter(|(_, line)| !line.trim_start().starts_with("//"))
            {
                for (word, reason) in words.iter().filter(|(word, _)| line.contains(word)) {
                    complaints.push(format!(
                        "{}:{}: `{}` in {what}: {reason}",
                        files::shown(&file),
                        number + 1,
                        word.trim()
                    ));
                }
            }
        }
    }
    Ok(complaints)
}

/// Modules without a description at the top.
fn module_docs() -> Result<Vec<String>> {
    let mut complaints = Vec::new();
    for place in ["crates", "dev", "xtask", "examples", "fuzz"] {
        for file in files::rust_files(&shell::root().join(place))? {
            if !fs::read_to_string(&file)?.starts_with("//!") {
                complaints.push(format!(
                    "{}: start the module with a //! line that describes it",
                    files::shown(&file)
                ));
            }
        }
    }
    Ok(complaints)
}

/// Claims of the pages of threats that the repository does not support: a test that does not exist, or a threat that has neither a
/// test nor a reason why it is accepted.
fn threats() -> Result<Vec<String>> {
    const PAGES: [&str; 2] = ["docs/operate/threats-access.md", "docs/operate/threats-availability.md"];
    let mut wrong = Vec::new();
    for name in PAGES {
        let page = fs::read_to_string(shell::root().join(name)).with_context(|| format!("cannot read {name}"))?;
        ensure!(page.contains("\n| threat |"), "{name} has no threats");
        for row in page.lines().filter(|line| line.starts_with("| ")) {
            let cells: Vec<&str> = row.split('|').map(str::trim).collect();
            let [_, threat, defence, tests, _] = cells.as_slice() else {
                wrong.push(format!("{name}: not three cells: {row}"));
                continue;
            };
            if *threat == "threat" {
                continue;
            }
            if tests.is_empty() && !defence.starts_with("Accepted: ") {
                wrong.push(format!("{name}: neither a test nor a reason to accept it: {threat}"));
            }
            for test in tests.split(", ").filter(|test| !test.is_empty()) {
                if !test_exists(test.trim_matches('`')) {
                    wrong.push(format!("{name}: there is no test {test}"));
                }
            }
        }
    }
    Ok(wrong)
}

/// Whether `FILE::NAME` is a function in that file.
fn test_exists(test: &str) -> bool {
    let Some((file, name)) = test.rsplit_once("::") else {
        return false;
    };
    fs::read_to_string(shell::root().join(file)).is_ok_and(|code| code.contains(&format!("fn {name}(")))
}
