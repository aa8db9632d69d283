//! Results of commands in pages of the documentation, each between two lines of its own.

use anyhow::{Context, Result};

use crate::shell;

/// Page of measurements.
pub const PERFORMANCE: &str = "docs/project/performance.md";
/// Page of campaigns with faults.
pub const RELIABILITY: &str = "docs/project/reliability.md";
/// Line after the results of a command.
const END: &str = "<!-- So far. -->\n";

/// Options of a benchmark whose results are in the documentation.
#[derive(clap::Args)]
pub struct Options {
    /// Write the results into the documentation, in place of those of the run before.
    #[arg(long)]
    docs: bool,
    /// Build without optimization, to try the benchmark itself. The figures are not meaningful.
    #[arg(long, conflicts_with = "docs")]
    unoptimised: bool,
}

impl Options {
    /// Whether the programs are built as for a release.
    pub fn is_release(&self) -> bool {
        !self.unoptimised
    }

    /// Puts the results of a command into a page, with `--docs`.
    pub fn write_down(&self, page: &str, command: &str, results: &str) -> Result<()> {
        if self.docs {
            write_down(page, command, results)?;
        }
        Ok(())
    }
}

/// Puts the results of a command, such as `bench zero --docs`, into a page, with the day and the machine.
pub fn write_down(page: &str, command: &str, results: &str) -> Result<()> {
    let path = shell::root().join(page);
    let text = std::fs::read_to_string(&path).with_context(|| format!("cannot read {page}"))?;
    let cores = std::thread::available_parallelism()?;
    let today = jiff::Zoned::now().date();
    let text = between_marks(&text, command, &format!("{today}, {cores} cores.\n\n{results}"))?;
    std::fs::write(&path, text).with_context(|| format!("cannot write {page}"))
}

/// Line before the results of a command.
fn begin(command: &str) -> String {
    format!("<!-- Made by `cargo xtask {command}`. Do not edit. -->\n")
}

fn between_marks(page: &str, command: &str, text: &str) -> Result<String> {
    let begin = begin(command);
    let (before, rest) = page.split_once(&begin).context("the page has no place for results")?;
    let (_, after) = rest
        .split_once(END)
        .context("the page does not say where the results end")?;
    Ok(format!("{before}{begin}{text}{END}{after}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn results_go_between_their_marks_and_nowhere_else() {
        let (one, other) = (begin("one"), begin("other"));
        let page = |text: &str| format!("before\n{one}old\n{END}between\n{other}{text}\n{END}after\n");
        assert_eq!(between_marks(&page("old"), "other", "new\n").unwrap(), page("new"));
        assert!(between_marks("nothing", "one", "new").is_err());
        for (page, command) in [
            (PERFORMANCE, "bench --docs"),
            (PERFORMANCE, "bench router --docs"),
            (PERFORMANCE, "bench contenders --docs"),
            (PERFORMANCE, "bench tokens --docs"),
            (PERFORMANCE, "bench traffic --docs"),
            (PERFORMANCE, "bench zero --docs"),
            (RELIABILITY, "storm --all"),
            (RELIABILITY, "storm --seeds"),
            (RELIABILITY, "storm --installed --docs"),
            (RELIABILITY, "storm --leaders"),
            (RELIABILITY, "storm --outages"),
            (RELIABILITY, "storm --ready"),
            (RELIABILITY, "bench soak --docs"),
        ] {
            let text = std::fs::read_to_string(shell::root().join(page)).unwrap();
            assert!(between_marks(&text, command, "new\n").is_ok(), "{command}");
        }
    }
}
