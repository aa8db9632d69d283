//! `docs/reference/checks.md`, made from the table of checks.

use std::fmt::Write;

use super::{GROUPS, Phase};

/// Path of the page.
pub const PATH: &str = "docs/reference/checks.md";

const INTRODUCTION: &str = "<!-- Made by `cargo xtask gen` from the code. Do not edit. -->
# Checks of `kubeairunway check`

`kubeairunway check` reads a cluster once and reports problems with their causes and remedies, errors first. It changes nothing;
it submits one ModelDeployment as a dry run. It sends about 50 requests, regardless of the number of objects.

```text
kubeairunway check                  all namespaces that you may read
kubeairunway check -n team-a        one namespace
kubeairunway check --pre            before an installation: can the control plane be installed?
kubeairunway check --wait=5m        repeat until there are no errors
kubeairunway check -o wide          all checks and all findings; also: json, junit
kubeairunway check -f bundle        the objects of a support bundle, without a cluster
```

| mark | meaning | exit code |
|---|---|---|
| √ | passed | 0 |
| - | skipped: nothing to check, or you may not read it | 0 |
| ‼ | warning: it works, but needs attention | 0 |
| × | error: something does not work | 1 |

The exit code for wrong usage is 2. The IDs below are stable.
";

/// The page.
pub fn page() -> String {
    let mut page = INTRODUCTION.to_owned();
    for group in GROUPS {
        let when = match group.phase {
            Phase::Before => " (`--pre`)",
            Phase::Always | Phase::After => "",
        };
        // Writing to a text does not fail.
        let _ = write!(page, "\n## {}{when}\n", group.title);
        for check in group.checks {
            let _ = write!(
                page,
                "\n### {}\n**{}.** {}\n\nRemedy: {}\n",
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
