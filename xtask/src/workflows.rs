//! Rules for `.github`: what a workflow runs is named by digest, so that a moved tag does not change it.

use std::fs;
use std::path::Path;

use anyhow::{Context, Result};
use runway_dev_support::shell;

/// Complaints about the files of `.github`.
pub(crate) fn complaints() -> Result<Vec<String>> {
    let mut complaints = Vec::new();
    for folder in [".github", ".github/workflows"] {
        let entries = fs::read_dir(shell::root().join(folder)).with_context(|| format!("cannot list {folder}"))?;
        for entry in entries {
            let path = entry?.path();
            if path.is_file() {
                let text = fs::read_to_string(&path).with_context(|| format!("cannot read {}", path.display()))?;
                let name = Path::new(folder).join(path.file_name().unwrap_or_default());
                complaints.extend(of_file(&text).map(|complaint| format!("{}:{complaint}", name.display())));
            }
        }
    }
    complaints.sort();
    Ok(complaints)
}

fn of_file(text: &str) -> impl Iterator<Item = String> {
    let lines = text.lines().enumerate();
    let of_lines = lines.filter_map(|(number, line)| {
        let line = line.trim();
        let complaint = if line.starts_with('#') {
            None
        } else {
            uses(line).or_else(|| piped(line))
        };
        complaint.map(|complaint| format!("{}: {complaint}", number + 1))
    });
    of_lines.collect::<Vec<_>>().into_iter()
}

/// An action of others that is not named as `OWNER/NAME@COMMIT # vX.Y.Z`.
fn uses(line: &str) -> Option<String> {
    let action = line.trim_start_matches("- ").strip_prefix("uses:")?.trim();
    if action.starts_with("./") {
        return None;
    }
    let (name, comment) = action.split_once(" # ").unwrap_or((action, ""));
    let (_, commit) = name.split_once('@').unwrap_or_default();
    let is_commit = commit.len() == 40 && commit.bytes().all(|b| matches!(b, b'0'..=b'9' | b'a'..=b'f'));
    let numbers: Vec<&str> = comment.strip_prefix('v').unwrap_or_default().split('.').collect();
    let is_version = numbers.len() == 3 && numbers.iter().all(|number| number.parse::<u32>().is_ok());
    let fault = if !is_commit {
        "a tag can be moved: name the action by commit"
    } else if !is_version {
        "add the version of the commit as a comment, such as # v1.2.3"
    } else {
        return None;
    };
    Some(format!("`{action}`: {fault}"))
}

/// A download that is run without a check.
fn piped(line: &str) -> Option<String> {
    let downloads = ["curl ", "wget "].iter().any(|program| line.contains(program));
    let mut stages = line.split('|').skip(1);
    let is_run = stages.any(|stage| {
        let program = stage.trim_start().trim_start_matches("sudo ");
        let program = program.split_whitespace().next().unwrap_or_default();
        ["sh", "bash", "python", "python3"].contains(&program.rsplit('/').next().unwrap_or_default())
    });
    (downloads && is_run).then(|| format!("`{line}`: check a download by its digest before it is run"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn workflows_run_nothing_that_can_be_moved() -> Result<()> {
        assert_eq!(complaints()?, Vec::<String>::new());
        Ok(())
    }

    #[test]
    fn nightly_workflow_checks_known_vulnerabilities() -> Result<()> {
        let nightly = fs::read_to_string(shell::root().join(".github/workflows/nightly.yml"))?;
        assert!(nightly.contains("schedule:") && nightly.contains("cargo deny check advisories"));
        Ok(())
    }

    #[test]
    fn actions_by_tag_and_unchecked_downloads_are_found() {
        let commit = "0123456789abcdef0123456789abcdef01234567";
        let fault = |line: &str| of_file(line).next().is_some();
        for bad in [
            "- uses: a/b@v4".to_owned(),
            "  uses: a/b@main # v4.0.0".to_owned(),
            format!("- uses: a/b@{commit}"),
            format!("- uses: a/b@{commit} # v4"),
            format!("- uses: a/b@{} # v4.0.0", &commit[1..]),
            "- run: curl -sSf https://sh.example.com | sh -s -- -y".to_owned(),
            "wget -qO- https://example.com | sudo bash".to_owned(),
        ] {
            assert!(fault(&bad), "{bad}");
        }
        for good in [
            format!("- uses: a/b@{commit} # v4.0.0"),
            "uses: ./.github/workflows/test.yml".to_owned(),
            "# curl https://example.com | sh".to_owned(),
            "curl -sSf -o file https://example.com".to_owned(),
            "echo \"$digest  file\" | sha256sum --check".to_owned(),
        ] {
            assert!(!fault(&good), "{good}");
        }
    }
}
