//! Formatting: documents as YAML or JSON, durations, colors, tables.

use std::io;
use std::time::Duration;

use clap::builder::styling::{AnsiColor, Style};
use comfy_table::{ContentArrangement, Table, presets};
use jiff::Timestamp;
use runway_api::Tone;
use serde::Serialize;
use terminal_size::Width;

/// Format of documents.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum)]
pub enum Format {
    /// YAML, documents separated by ---
    #[default]
    Yaml,
    /// JSON; several documents as one List
    Json,
}

/// A document that cannot be written.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// YAML cannot be written.
    #[error("cannot write YAML")]
    Yaml(#[from] serde_saphyr::ser_error::Error),
    /// JSON cannot be written.
    #[error("cannot write JSON")]
    Json(#[from] serde_json::Error),
}

/// Writes documents as kubectl does: separated by `---` in YAML; in JSON a single object, or the items of a List.
///
/// # Errors
/// An object cannot be serialized.
pub fn documents<T: Serialize>(all: &[T], format: Format) -> Result<String, Error> {
    match (format, all) {
        (_, []) => Ok(String::new()),
        (Format::Yaml, all) => Ok(all.iter().map(yaml).collect::<Result<Vec<_>, _>>()?.join("---\n")),
        (Format::Json, [one]) => Ok(serde_json::to_string_pretty(one)? + "\n"),
        (Format::Json, all) => list(all, format),
    }
}

/// Writes the answer to a question for many: in JSON a List, whatever their number.
///
/// # Errors
/// An object cannot be serialized.
pub fn list<T: Serialize>(all: &[T], format: Format) -> Result<String, Error> {
    match format {
        Format::Yaml => documents(all, format),
        Format::Json => Ok(serde_json::to_string_pretty(&List::new(all))? + "\n"),
    }
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct List<'a, T> {
    api_version: &'static str,
    kind: &'static str,
    items: &'a [T],
}

impl<'a, T> List<'a, T> {
    fn new(items: &'a [T]) -> Self {
        Self {
            api_version: "v1",
            kind: "List",
            items,
        }
    }
}

fn yaml(document: &impl Serialize) -> Result<String, Error> {
    let options = serde_saphyr::ser_options! {
        // Long texts stay on one line: what is read is what is sent.
        folded_wrap_chars: usize::MAX,
    };
    let mut text = String::new();
    serde_saphyr::to_fmt_writer_with_options(&mut text, document, options)?;
    if !text.ends_with('\n') {
        text.push('\n');
    }
    Ok(text)
}

/// A span of time as kubectl writes it: exact while it is short, two units at most.
pub fn age(span: Duration) -> String {
    let seconds = span.as_secs();
    let (minutes, hours, days) = (seconds / 60, seconds / 3600, seconds / 86400);
    let two = |big: u64, big_unit: &str, small: u64, small_unit: &str| {
        if small == 0 {
            format!("{big}{big_unit}")
        } else {
            format!("{big}{big_unit}{small}{small_unit}")
        }
    };
    match seconds {
        0..120 => format!("{seconds}s"),
        120..600 => two(minutes, "m", seconds % 60, "s"),
        600..10_800 => format!("{minutes}m"),
        10_800..28_800 => two(hours, "h", minutes % 60, "m"),
        28_800..172_800 => format!("{hours}h"),
        172_800..691_200 => two(days, "d", hours % 24, "h"),
        _ if days < 730 => format!("{days}d"),
        _ => two(days / 365, "y", days % 365, "d"),
    }
}

/// The time that has passed, as [`age`]; a time to come counts as now.
pub fn since(then: Timestamp, now: Timestamp) -> String {
    age(Duration::try_from(now.duration_since(then)).unwrap_or_default())
}

/// A table without lines, as kubectl makes them. On a terminal, long cells are wrapped within their columns; a pipe or a file gets
/// one line for each row.
pub fn table(header: &[&str]) -> Table {
    let terminal = terminal_size::terminal_size_of(io::stdout());
    table_of_width(header, terminal.map(|(Width(columns), _)| columns))
}

fn table_of_width(header: &[&str], columns: Option<u16>) -> Table {
    let mut table = Table::new();
    table.load_style(presets::NOTHING).set_header(header);
    if let Some(columns) = columns {
        table
            .set_content_arrangement(ContentArrangement::Dynamic)
            .set_width(columns);
    }
    table
}

/// The text of a table, without blanks at the edges.
pub fn aligned(table: &Table) -> String {
    lines(
        table
            .lines()
            .map(|line| line.strip_prefix(' ').unwrap_or(&line).trim_end().to_owned()),
    )
}

/// Lines as one text.
pub fn lines(all: impl Iterator<Item = String>) -> String {
    all.flat_map(|line| [line, "\n".to_owned()]).collect()
}

/// A text that fits into a table: one line, nothing that a terminal acts on.
pub fn cell(text: &str) -> String {
    crate::diagnostic::one_line(text)
}

/// Whether text is colored. Colors add no information.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Look {
    /// Whether the output is a terminal: colors, and marks instead of words.
    pub terminal: bool,
}

/// Severity, as a color.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mood {
    /// No problem.
    Good,
    /// In progress, or a warning.
    Open,
    /// Wrong.
    Bad,
}

impl From<Tone> for Mood {
    fn from(tone: Tone) -> Self {
        match tone {
            Tone::Current => Self::Good,
            Tone::Failed => Self::Bad,
            Tone::InProgress | Tone::Terminating | Tone::Paused | Tone::Unknown => Self::Open,
        }
    }
}

impl Look {
    /// Text in the color of its mood.
    pub fn paint(self, mood: Mood, text: &str) -> String {
        if !self.terminal {
            return text.to_owned();
        }
        let color = match mood {
            Mood::Good => AnsiColor::Green,
            Mood::Open => AnsiColor::Yellow,
            Mood::Bad => AnsiColor::Red,
        };
        let style: Style = color.on_default();
        format!("{style}{text}{style:#}")
    }

    /// Dimmed text.
    pub fn faint(self, text: &str) -> String {
        if !self.terminal {
            return text.to_owned();
        }
        let style = Style::new().dimmed();
        format!("{style}{text}{style:#}")
    }

    /// Bold text.
    pub fn strong(self, text: &str) -> String {
        if !self.terminal {
            return text.to_owned();
        }
        let style = Style::new().bold();
        format!("{style}{text}{style:#}")
    }
}

/// Replaces control characters, so that an answer cannot control the terminal.
pub fn visible(text: &str) -> String {
    text.chars()
        .map(|c| {
            if c.is_control() && c != '\n' && c != '\t' {
                '\u{fffd}'
            } else {
                c
            }
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ages_are_short() {
        let cases = [
            (0, "0s"),
            (119, "119s"),
            (300, "5m"),
            (301, "5m1s"),
            (3600, "60m"),
            (10_860, "3h1m"),
            (90_000, "25h"),
            (180_000, "2d2h"),
            (864_000, "10d"),
            (70_000_000, "2y80d"),
        ];
        for (seconds, text) in cases {
            assert_eq!(age(Duration::from_secs(seconds)), text);
        }
    }

    #[test]
    fn long_cells_are_wrapped_on_a_terminal_only() {
        let message = "cannot pull image registry.example/vllm:0.18: the registry requires credentials; add a Secret of type \
                       kubernetes.io/dockerconfigjson and name it in spec.imagePullSecrets";
        let screen = |columns| {
            let mut table = table_of_width(&["NAME", "PHASE", "MESSAGE"], columns);
            table.add_row(["gemma", "Failed", message]);
            aligned(&table)
        };
        assert_eq!(screen(None).lines().count(), 2);
        for columns in [60, 80, 200] {
            let shown = screen(Some(columns));
            assert!(
                shown.lines().all(|line| line.chars().count() <= usize::from(columns)),
                "{shown}"
            );
            let cell = |line: &str| line.chars().skip(shown.find("MESSAGE").unwrap()).collect::<String>();
            let words: Vec<String> = shown.lines().skip(1).map(|line| cell(line).trim().to_owned()).collect();
            assert_eq!(words.join(" "), message, "{shown}");
        }
    }

    #[test]
    fn yaml_reads_back_as_it_was() {
        let hard = serde_json::json!({"a": "yes", "b": "two\nlines\n", "c": "{\"k\": 1}", "d": "0777", "e": {}, "f": [], "g": "x ".repeat(90)});
        let text = documents(std::slice::from_ref(&hard), Format::Yaml).unwrap();
        let read: serde_json::Value = serde_saphyr::from_str(&text).unwrap();
        assert_eq!(read, hard);
    }
}
