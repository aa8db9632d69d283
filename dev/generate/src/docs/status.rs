//! Reference of the status: every phase, condition, reason and Event of the project's kinds, with its meaning and remedy. All of
//! them are declared in `runway_api`, with these texts.

use std::fmt::Write;

use anyhow::Result;
use runway_api::async_actor::{self, ActorState};
use runway_api::condition::{self, ConditionType, Owner, Presence};
use runway_api::llama_stack_distribution::{DistributionPhase, ProviderPhase};
use runway_api::reason::{self, EXTERNAL_PROVIDER, Explained, Status};
use runway_api::{EventReason, Phase, RegistrationReason, UpstreamReason};

use super::split;

/// Folder of the pages.
pub(crate) const FOLDER: &str = "docs/reference/status";

const INTRODUCTION: &str = "<!-- Made by `cargo xtask gen` from the code. Do not edit. -->
# Status reference

Every phase, condition, reason and Event that the controllers write, with its meaning and what to do about it. `kubeairunway why KIND/NAME`
shows the conditions of one object and what it is waiting for; `kubeairunway check` examines a whole cluster
([checks](../checks.md)). The message of a condition names the field, object or value that a row cannot know.

- `Ready` is always present. Use it in `kubectl wait --for=condition=Ready`.
- `Stalled` is present only while the controllers cannot continue without a change by a user. Its reason is that of `Ready`.
- Other conditions that report something unusual are present only while they are true.
- Reasons are part of the API: tools may compare them. Messages may change.
";

const UPSTREAM: &str = "While no pod reports an obstacle, the provider passes on the reason of the upstream object, with a capital first letter. It may be any reason of the upstream operator; these occur most often.";

const EXTERNAL_PROVIDERS: &str = "`status.externalProviders[].reason`, while a provider is not installed. `Ready` and `Stalled` of the distribution have the same reason: the first failure decides.";

const EVENTS: &str = "
## Events

Each Event reports one change, once. `kubeairunway events KIND/NAME` lists those of an object and of the objects created for it. An
Event about a condition that changed has the reason of the condition, and is listed there; the others are:

| reason | type | objects | meaning and what to do |
|---|---|---|---|
";

/// A word with its meaning and remedy.
type Row = (&'static str, &'static str, &'static str);

/// A kind with a status.
struct Kind {
    name: &'static str,
    /// Field of the word that summarizes the status, and the words.
    words: Option<(&'static str, Vec<Row>)>,
    conditions: &'static [ConditionType],
    reasons: &'static [&'static [Explained]],
    /// Sections below the conditions: title, text, name of the first column, rows.
    notes: Vec<(&'static str, &'static str, Vec<Row>)>,
}

fn kinds() -> [Kind; 4] {
    let phases = Phase::ALL.iter().map(|p| (p.as_str(), p.meaning(), p.remedy()));
    let states = ActorState::ALL.iter().map(|s| (s.as_str(), s.meaning(), s.remedy()));
    let distribution = DistributionPhase::ALL.iter();
    let distribution = distribution.map(|p| (p.as_str(), p.meaning(), p.remedy()));
    let provider = ProviderPhase::ALL.iter();
    let provider = provider.map(|p| (p.as_str(), p.meaning(), p.remedy()));
    let row = |r: &Explained| (r.reason, r.meaning, r.remedy);
    let upstream = UpstreamReason::EXPLAINED.iter().map(row);
    let external = reason::LLAMA_STACK_DISTRIBUTION.iter().copied().flatten();
    let external = external.filter(|r| r.condition == EXTERNAL_PROVIDER).map(row);
    [
        Kind {
            name: "ModelDeployment",
            words: Some(("phase", phases.collect())),
            conditions: condition::MODEL_DEPLOYMENT,
            reasons: reason::MODEL_DEPLOYMENT,
            notes: vec![("Ready reasons from upstream operators", UPSTREAM, upstream.collect())],
        },
        Kind {
            name: "InferenceProviderConfig",
            words: None,
            conditions: condition::INFERENCE_PROVIDER_CONFIG,
            reasons: &[RegistrationReason::EXPLAINED],
            notes: Vec::new(),
        },
        Kind {
            name: "AsyncActor",
            words: Some(("status", states.collect())),
            conditions: async_actor::CONDITIONS,
            reasons: reason::ASYNC_ACTOR,
            notes: Vec::new(),
        },
        Kind {
            name: "LlamaStackDistribution",
            words: Some(("phase", distribution.collect())),
            conditions: condition::LLAMA_STACK_DISTRIBUTION,
            reasons: reason::LLAMA_STACK_DISTRIBUTION,
            notes: vec![
                (
                    "External provider phase",
                    "`status.externalProviders[].phase`.",
                    provider.collect(),
                ),
                ("External provider reason", EXTERNAL_PROVIDERS, external.collect()),
            ],
        },
    ]
}

/// A page for each kind, and one for Events.
///
/// # Errors
///
/// If they cannot be formatted.
pub(crate) fn pages() -> Result<Vec<(String, String)>> {
    Ok(split::pages(FOLDER, &page()?, |title| Some(split::file_name(title))))
}

fn page() -> Result<String> {
    let mut page = INTRODUCTION.to_owned();
    for kind in kinds() {
        kind.write(&mut page)?;
    }
    page.push_str(EVENTS);
    for event in EventReason::ALL {
        let (severity, kinds, meaning) = (event.severity(), event.kinds(), cell(event.meaning()));
        writeln!(page, "| `{event}` | {severity} | {kinds} | {meaning} |")?;
    }
    Ok(page)
}

impl Kind {
    fn write(&self, page: &mut String) -> Result<()> {
        let name = self.name;
        write!(page, "\n## {name}\n")?;
        if let Some((field, words)) = &self.words {
            let text = format!("`status.{field}`. Not present before a controller has seen the object.");
            section(page, &format!("{name} {field}"), &text, field, words)?;
        }
        // Conditions that report something unusual come last.
        let (usual, unusual): (Vec<_>, Vec<_>) = self
            .conditions
            .iter()
            .partition(|condition| condition.presence != Presence::WhileTrue);
        for condition in usual.into_iter().chain(unusual) {
            self.write_condition(condition, page)?;
        }
        for (title, text, rows) in &self.notes {
            section(page, title, text, "reason", rows)?;
        }
        Ok(())
    }

    fn write_condition(&self, condition: &ConditionType, page: &mut String) -> Result<()> {
        let writer = match condition.owner {
            Owner::Core => " Written by the core.",
            Owner::Provider => " Written by the provider.",
            Owner::Shared => " Written by the core until a provider is selected, then by the provider.",
            Owner::Gateway => " Written by the routes controller.",
            Owner::Operator => "",
        };
        let present = match condition.presence {
            Presence::Always => "Always present".to_owned(),
            Presence::WhileTrue => "Present only while true".to_owned(),
            Presence::If(when) => format!("Present {when}"),
        };
        let (kind, type_, meaning) = (self.name, condition.name, condition.meaning);
        write!(page, "\n### {kind} condition {type_}\n\n{meaning}{writer} {present}.\n")?;
        let reasons = self.reasons.iter().copied().flatten();
        for (index, row) in reasons.filter(|row| row.condition == type_).enumerate() {
            if index == 0 {
                write!(
                    page,
                    "\n| reason | status | meaning | what to do |\n|---|---|---|---|\n"
                )?;
            }
            let status = match row.status {
                Status::True => "True",
                Status::False => "False",
                Status::Either => "True or False",
            };
            let (reason, meaning, remedy) = (row.reason, cell(row.meaning), row.remedy);
            writeln!(page, "| `{reason}` | {status} | {meaning} | {remedy} |")?;
        }
        Ok(())
    }
}

fn section(page: &mut String, title: &str, text: &str, column: &str, rows: &[Row]) -> Result<()> {
    write!(
        page,
        "\n### {title}\n\n{text}\n\n| {column} | meaning | what to do |\n|---|---|---|\n"
    )?;
    for (word, meaning, remedy) in rows {
        writeln!(page, "| `{word}` | {} | {remedy} |", cell(meaning))?;
    }
    Ok(())
}

/// A sentence in a cell of a table, without its last period.
fn cell(sentence: &str) -> &str {
    sentence.trim_end_matches('.')
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;
    use std::fs;

    use regex::Regex;
    use runway_api::async_actor::RUNTIME_INJECTED;
    use runway_dev_support::{files, shell};

    use super::*;

    /// Conditions that repeat reasons of others.
    const REPEAT: [&str; 3] = [condition::READY, condition::STALLED, RUNTIME_INJECTED];

    impl Kind {
        fn explains(&self, type_: &str, reason: &str) -> bool {
            let mut rows = self.reasons.iter().copied().flatten();
            let words = self.words.iter().flat_map(|(_, words)| words);
            let mut repeated = words.chain(self.notes.iter().flat_map(|(_, _, rows)| rows));
            rows.any(|row| row.reason == reason && (row.condition == type_ || REPEAT.contains(&type_)))
                || REPEAT.contains(&type_) && repeated.any(|(word, ..)| *word == reason)
        }
    }

    #[test]
    fn page_explains_the_reasons_of_all_golden_plans() {
        let written = Regex::new(r#"type: "?(\w+)"?\n +status: "(?:True|False)"\n +reason: "?(\w+)"?\n"#).unwrap();
        let [deployment, _, actor, distribution] = kinds();
        let crates = [
            ("core", deployment),
            ("asya-operator", actor),
            ("llama-stack-operator", distribution),
        ];
        for (name, kind) in crates {
            let mut found = 0;
            for case in fs::read_dir(shell::root().join("crates").join(name).join("tests/plan")).unwrap() {
                let plan = fs::read_to_string(case.unwrap().path().join("plan.yaml")).unwrap_or_default();
                for condition in written.captures_iter(&plan) {
                    let (type_, reason) = (&condition[1], &condition[2]);
                    assert!(
                        kind.explains(type_, reason),
                        "{}: no row for {type_} {reason}",
                        kind.name
                    );
                    found += 1;
                }
            }
            assert!(found > 20, "{name}: {found}");
        }
    }

    #[test]
    fn each_reason_of_our_own_is_written_by_a_crate() {
        let files = files::rust_files(&shell::root().join("crates")).unwrap();
        let sources = files.iter().filter(|file| !file.ends_with("api/src/reason.rs"));
        let source: String = sources.map(|file| fs::read_to_string(file).unwrap()).collect();
        let words: HashSet<&str> = source.split(|c: char| !c.is_alphanumeric()).collect();
        let explained = kinds().into_iter().flat_map(|kind| kind.reasons.concat());
        let reasons = explained.map(|row| row.reason);
        for reason in reasons.chain(EventReason::ALL.iter().map(|event| event.as_str())) {
            assert!(words.contains(reason), "no code writes the reason {reason}");
        }
    }

    #[test]
    fn a_condition_type_has_one_section_per_kind() {
        for kind in kinds() {
            let mut types: Vec<&str> = kind.conditions.iter().map(|c| c.name).collect();
            let all = types.len();
            types.sort_unstable();
            types.dedup();
            assert_eq!(all, types.len(), "{}", kind.name);
            for row in kind.reasons.iter().copied().flatten() {
                let known = types.contains(&row.condition) || row.condition == EXTERNAL_PROVIDER;
                assert!(known, "{}: no section for {row:?}", kind.name);
            }
        }
    }
}
