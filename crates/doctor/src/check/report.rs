//! Output formats of `check`. Problems come first, so that they are on the first screen.

use runway_client::text::{self, Look, Mood};
use serde_json::json;

use super::{Judgement, Level, Outcome};

/// Most findings per check, without `-o wide`.
const SHOWN: usize = 3;

/// Output format.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum)]
pub enum Format {
    /// Text, problems first
    #[default]
    Text,
    /// Text with all checks and all findings
    Wide,
    /// JSON
    Json,
    /// JUnit XML for CI, one test case per check
    Junit,
}

/// The report.
///
/// # Errors
/// The JSON cannot be written.
pub fn write(all: &[Judgement], format: Format, look: Look) -> Result<String, serde_json::Error> {
    Ok(match format {
        Format::Text => screen(all, look),
        Format::Wide => wide(all, look),
        Format::Json => serde_json::to_string_pretty(&json!({ "level": level(all), "groups": all }))? + "\n",
        Format::Junit => junit(all),
    })
}

fn level(all: &[Judgement]) -> Level {
    // What was skipped is not worse than what is well.
    match all.iter().map(Judgement::level).max() {
        Some(Level::Skipped) | None => Level::Ok,
        Some(level) => level,
    }
}

/// Mark of a level, the same as in linkerd.
fn mark(level: Level, look: Look) -> String {
    match level {
        Level::Ok => look.paint(Mood::Good, "√"),
        Level::Skipped => "-".to_owned(),
        Level::Warning => look.paint(Mood::Open, "‼"),
        Level::Error => look.paint(Mood::Bad, "×"),
    }
}

fn screen(all: &[Judgement], look: Look) -> String {
    let mut lines = vec![summary(all, look), String::new()];
    for wanted in [Level::Error, Level::Warning] {
        let outcomes = all.iter().flat_map(|group| &group.checks);
        for outcome in outcomes.filter(|o| o.level == wanted) {
            lines.extend(explained(outcome, SHOWN, look));
        }
    }
    let passed = all
        .iter()
        .flat_map(|group| &group.checks)
        .filter(|o| o.level == Level::Ok);
    for note in passed.flat_map(|outcome| &outcome.findings) {
        let (subject, text) = (text::cell(&note.subject), text::cell(&note.text));
        lines.push(look.faint(&format!("- {subject}: {text}")));
    }
    if lines.len() > 2 {
        lines.push(String::new());
    }
    for group in all {
        let count = |level: Level| group.checks.iter().filter(|c| c.level == level).count();
        let counts = [
            (count(Level::Error), "failed"),
            (count(Level::Warning), "with warnings"),
            (count(Level::Ok), "passed"),
            (count(Level::Skipped), "skipped"),
        ];
        let counts: Vec<String> = counts
            .iter()
            .filter(|(count, _)| *count > 0)
            .map(|(count, word)| format!("{count} {word}"))
            .collect();
        let worst = group.level();
        lines.push(format!("{} {}: {}", mark(worst, look), group.title, counts.join(", ")));
    }
    text::lines(lines.into_iter())
}

fn summary(all: &[Judgement], look: Look) -> String {
    let count = |level: Level| all.iter().flat_map(|g| &g.checks).filter(|c| c.level == level).count();
    let (errors, warnings, passed) = (count(Level::Error), count(Level::Warning), count(Level::Ok));
    let words = match (errors, warnings) {
        (0, 0) => look.paint(Mood::Good, "no problems"),
        (0, _) => look.paint(Mood::Open, "no errors"),
        _ => look.paint(Mood::Bad, "problems found"),
    };
    format!(
        "{} {words}: {errors} failed, {warnings} with warnings, {passed} passed",
        mark(level(all), look)
    )
}

/// A check that has something to say.
fn explained(outcome: &Outcome, shown: usize, look: Look) -> Vec<String> {
    let mut lines = vec![format!(
        "{} {} [{}]",
        mark(outcome.level, look),
        look.strong(outcome.title),
        outcome.check
    )];
    if let Some(why) = &outcome.skipped {
        lines.push(format!("    {}", text::cell(why)));
    }
    for finding in outcome.findings.iter().take(shown) {
        lines.push(format!(
            "    {}: {}",
            text::cell(&finding.subject),
            text::cell(&finding.text)
        ));
        lines.push(format!("    → {}", text::cell(&finding.remedy)));
    }
    let more = outcome.findings.len().saturating_sub(shown);
    if more > 0 {
        lines.push(format!("    and {more} more (use -o wide to show all)"));
    }
    if outcome.level > Level::Skipped {
        lines.push(format!("    see {}", outcome.documentation));
    }
    lines
}

fn wide(all: &[Judgement], look: Look) -> String {
    let mut lines = Vec::new();
    for group in all {
        lines.push(look.strong(group.title));
        lines.push("-".repeat(group.title.chars().count()));
        for outcome in &group.checks {
            lines.extend(explained(outcome, usize::MAX, look));
        }
        lines.push(String::new());
    }
    lines.push(summary(all, look));
    text::lines(lines.into_iter())
}

fn junit(all: &[Judgement]) -> String {
    let count = |group: &Judgement, level: Level| group.checks.iter().filter(|c| c.level == level).count();
    let mut lines = vec![
        r#"<?xml version="1.0" encoding="UTF-8"?>"#.to_owned(),
        r#"<testsuites name="kubeairunway check">"#.to_owned(),
    ];
    for group in all {
        lines.push(format!(
            r#"  <testsuite name="{}" tests="{}" failures="{}" skipped="{}">"#,
            escaped(group.group),
            group.checks.len(),
            count(group, Level::Error),
            count(group, Level::Skipped)
        ));
        for outcome in &group.checks {
            let (id, title) = (escaped(outcome.check), escaped(outcome.title));
            let case = format!(
                r#"    <testcase classname="{}" name="{id}: {title}""#,
                escaped(group.group)
            );
            let said: Vec<String> = outcome
                .findings
                .iter()
                .map(|f| escaped(&format!("{}: {} → {}", f.subject, f.text, f.remedy)))
                .collect();
            let said = said.join("\n");
            lines.push(match outcome.level {
                Level::Ok => format!("{case}/>"),
                Level::Skipped => format!(
                    r#"{case}><skipped message="{}"/></testcase>"#,
                    escaped(outcome.skipped.as_deref().unwrap_or_default())
                ),
                Level::Warning => format!("{case}><system-out>{said}</system-out></testcase>"),
                Level::Error => format!(r#"{case}><failure message="{title}">{said}</failure></testcase>"#),
            });
        }
        lines.push("  </testsuite>".to_owned());
    }
    lines.push("</testsuites>".to_owned());
    text::lines(lines.into_iter())
}

/// Escapes text for XML.
fn escaped(text: &str) -> String {
    let mut out = String::new();
    for c in text::cell(text).chars() {
        match c {
            '<' => out.push_str("&lt;"),
            '>' => out.push_str("&gt;"),
            '&' => out.push_str("&amp;"),
            '"' => out.push_str("&quot;"),
            c => out.push(c),
        }
    }
    out
}
