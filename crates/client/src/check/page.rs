//! `docs/checks.md`, made from the table of checks.

use std::fmt::Write;

use super::{Asked, GROUPS};

/// Where the page is.
pub const PATH: &str = "docs/checks.md";

const INTRODUCTION: &str = "<!-- Made by `cargo xtask gen` from the code. Do not edit. -->
# What `kubeairunway check` asks

`kubeairunway check` reads a cluster once and says what is not as it should be: what is wrong, why, and what to do, the worst
first. Nothing is changed; one ModelDeployment is tried with a dry run. It takes about fifty requests, however many objects there are.

```text
kubeairunway check                  all namespaces that you may see
kubeairunway check -n team-a        only this one
kubeairunway check --pre            before an installation: can it work here?
kubeairunway check --wait=5m        again until nothing is wrong
kubeairunway check -o wide          every check and every finding; also: json, junit
kubeairunway check -f bundle        what a support bundle holds, without the cluster
```

| mark | what it means | exit code |
|---|---|---|
| √ | as it should be | 0 |
| - | not asked: there is nothing to ask, or you may not read it | 0 |
| ‼ | it works, and somebody should know this | 0 |
| × | it does not work | 1 |

Wrong usage ends with 2. The ids below are stable.
";

/// The page.
pub fn page() -> String {
    let mut page = INTRODUCTION.to_owned();
    for group in GROUPS {
        let when = match group.asked {
            Asked::Before => " (`--pre`)",
            Asked::Always | Asked::After => "",
        };
        // Writing to a text does not fail.
        let _ = write!(page, "\n## {}{when}\n", group.title);
        for check in group.checks {
            let _ = write!(
                page,
                "\n### {}\n**{}.** {}\n\nIf not: {}\n",
                check.id,
                capital(check.title),
                check.looks_at,
                check.remedy
            );
        }
    }
    page
}

fn capital(text: &str) -> String {
    let mut letters = text.chars();
    letters
        .next()
        .map_or_else(String::new, |first| first.to_uppercase().chain(letters).collect())
}
