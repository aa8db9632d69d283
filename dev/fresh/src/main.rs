//! `fresh`: what is newer than the versions of `versions.toml`, by its registry. Only the named packages are requested.
#![allow(clippy::print_stdout, reason = "this is a command line tool")]

mod age;
mod registry;

use std::process::ExitCode;

use anyhow::{Result, bail};
use clap::Parser;
use runway_dev_support::ended;
use runway_dev_support::versions::{PATH, Versions};

use age::Age;

/// Development tasks of this repository.
#[derive(Parser)]
#[command(name = "cargo xtask", bin_name = "cargo xtask")]
enum Command {
    /// Show what is newer than the versions of `versions.toml`.
    Fresh(Args),
}

#[derive(clap::Args)]
struct Args {
    /// Fail if a version is older than the table permits, or if a registry does not answer.
    #[arg(long)]
    check: bool,
}

/// A line of the report.
struct Row {
    name: String,
    version: String,
    /// The newest release, or the reason why it is not known. None if releases are not listed.
    newest: Option<Result<String>>,
    /// Release of the same program in a lane.
    shown: Option<String>,
    /// Reason why it is not raised.
    held: Option<String>,
}

fn main() -> ExitCode {
    let Command::Fresh(args) = Command::parse();
    ended(run(&args))
}

fn run(args: &Args) -> Result<()> {
    let versions = Versions::read()?;
    let rows = rows(&versions)?;
    println!("{:<22} {:<12} {:<12} STATE", "PART", "VERSION", "NEWEST");
    let mut problems = 0;
    for row in &rows {
        let (state, is_problem) = state(row, versions.behind);
        let newest = row
            .newest
            .as_ref()
            .and_then(|newest| newest.as_deref().ok())
            .unwrap_or("-");
        println!("{:<22} {:<12} {:<12} {state}", row.name, row.version, newest);
        problems += usize::from(is_problem);
    }
    if args.check && problems > 0 {
        bail!(
            "{problems} versions are too old or could not be compared: raise them in {PATH} or in the files that pin them"
        );
    }
    Ok(())
}

fn rows(versions: &Versions) -> Result<Vec<Row>> {
    let mut rows = Vec::new();
    for (name, image) in &versions.images {
        rows.push(Row {
            name: format!("image {name}"),
            version: image.version.clone(),
            newest: image
                .listed()?
                .map(|(registry, package)| registry::newest(registry, package)),
            shown: versions.shown(image)?,
            held: None,
        });
    }
    for (name, part) in &versions.parts {
        rows.push(Row {
            name: name.clone(),
            version: part.version()?,
            newest: part
                .listed()
                .map(|(registry, package)| registry::newest(registry, package)),
            shown: None,
            held: part.held.clone(),
        });
    }
    Ok(rows)
}

/// State of a version in words, and whether it is a problem.
fn state(row: &Row, limit: u64) -> (String, bool) {
    if let Some(shown) = &row.shown {
        let age = Age::of(&row.version, shown);
        if age.exceeds(limit) {
            return (format!("too old: {age} behind {shown}, which a lane runs"), true);
        }
    }
    match &row.newest {
        None => ("releases are not listed".to_owned(), false),
        Some(Err(error)) => (format!("SKIPPED: {error:#}"), true),
        Some(Ok(newest)) => match (Age::of(&row.version, newest), &row.held) {
            (Age::Current, _) => ("current".to_owned(), false),
            (age, Some(reason)) => (format!("{age} behind, held: {reason}"), false),
            (age, None) if age.exceeds(limit) => (
                format!("too old: {age} behind, at most {limit} minor releases permitted"),
                true,
            ),
            (age, None) => (format!("{age} behind"), false),
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(newest: Option<Result<String>>, shown: Option<&str>) -> Row {
        Row {
            name: "a".to_owned(),
            version: "1.4.0".to_owned(),
            newest,
            shown: shown.map(str::to_owned),
            held: None,
        }
    }

    #[test]
    fn old_versions_and_silent_registries_are_problems() {
        let newest = |version: &str| Some(Ok(version.to_owned()));
        assert!(!state(&row(newest("1.7.0"), None), 3).1);
        assert!(state(&row(newest("1.8.0"), None), 3).1);
        assert!(state(&row(newest("1.4.0"), Some("1.8.0")), 3).1);
        assert!(!state(&row(None, None), 3).1);
        let mut held = row(newest("2.0.0"), None);
        held.held = Some("2 needs more".to_owned());
        assert_eq!(
            state(&held, 3),
            ("1 major release behind, held: 2 needs more".to_owned(), false)
        );
        let (text, is_problem) = state(&row(Some(Err(anyhow::anyhow!("no answer"))), None), 3);
        assert!(is_problem && text == "SKIPPED: no answer");
    }

    #[test]
    fn default_images_are_close_to_the_lanes() -> Result<()> {
        let versions = Versions::read()?;
        for (name, image) in &versions.images {
            let Some(shown) = versions.shown(image)? else {
                continue;
            };
            let age = Age::of(&image.version, &shown);
            assert!(
                !age.exceeds(versions.behind),
                "the image of {name} is {age} behind its lane"
            );
        }
        Ok(())
    }
}
