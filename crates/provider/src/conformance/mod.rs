//! Conformance suite: the rules of `docs/reference/provider-contract.md` that need no API server, run against any provider.
//!
//! The author of a provider supplies [`Samples`]: ModelDeployments, and edits that make an upstream object look ready or failed.
//! [`check`] simulates a cluster in memory, carries out the loop's plans, and checks the rules. Each rule is a function with the
//! rule's number. The test of a provider is one call:
//!
//! ```ignore
//! #[test]
//! fn keeps_the_contract() -> Result<(), runway_provider::conformance::Report> {
//!     conformance::check(&MyProvider, &samples()).map(drop)
//! }
//! ```

pub mod acme;
mod acting;
pub mod cases;
mod cluster;
pub mod fields;
mod life;
mod pods;
mod registration;
pub mod schema;
mod settings;
mod status;
#[cfg(test)]
mod tests;
mod translation;
mod trial;

use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};

use serde_json::Value;

use crate::contract::Provider;
use trial::Trial;

/// Test data of a provider for the suite. Patches are JSON merge patches (RFC 7386) of [`served`](Self::served).
#[derive(Clone, Debug)]
pub struct Samples {
    /// A ModelDeployment that the provider supports.
    pub served: Value,
    /// For each identity field (`model.id`, `model.source`, `engine.type`, `serving.mode`), a patch that changes it. The
    /// provider may refuse some of them, but not all.
    pub identity: Vec<(&'static str, Value)>,
    /// Patches that update the existing objects without replacing the main one.
    pub updates: Vec<Value>,
    /// Patches that replace the main object because the upstream does not allow the change, each with a part of the expected
    /// message.
    pub recreates: Vec<(&'static str, Value)>,
    /// Patches that the provider refuses, each with a part of the expected message.
    pub refused: Vec<(&'static str, Value)>,
    /// Edits an upstream object (complete, with kind and metadata) so that it looks ready.
    pub ready: fn(&mut Value),
    /// Edits an upstream object so that it looks permanently failed.
    pub failed: fn(&mut Value),
    /// A part of the upstream's message after a failure.
    pub failure: &'static str,
}

/// Results of the rules, displayed one per line.
#[derive(Clone, PartialEq, Eq)]
pub struct Report {
    provider: &'static str,
    outcomes: Vec<Outcome>,
}

/// Result of one rule.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Outcome {
    /// Name of the rule's function, such as `r12_drift_is_reverted`.
    pub rule: &'static str,
    /// Reason why the rule is broken; `None` if it holds.
    pub broken: Option<String>,
}

/// Runs all rules.
///
/// # Errors
///
/// The report, if a rule is broken.
pub fn check(provider: &dyn Provider, samples: &Samples) -> Result<Report, Report> {
    let trial = Trial { provider, samples };
    let outcomes = RULES
        .iter()
        .map(|(rule, holds)| Outcome {
            rule,
            broken: catch_unwind(AssertUnwindSafe(|| holds(&trial)))
                .unwrap_or_else(|_| Err("the provider panicked: see above".to_owned()))
                .err(),
        })
        .collect();
    let report = Report {
        provider: provider.name(),
        outcomes,
    };
    if report.broken().next().is_none() {
        Ok(report)
    } else {
        Err(report)
    }
}

impl Report {
    /// Results of all rules.
    pub fn outcomes(&self) -> &[Outcome] {
        &self.outcomes
    }

    /// Results of the broken rules.
    pub fn broken(&self) -> impl Iterator<Item = &Outcome> {
        self.outcomes.iter().filter(|o| o.broken.is_some())
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(
            f,
            "provider '{}', contract {}:",
            self.provider,
            crate::contract::VERSION
        )?;
        for outcome in &self.outcomes {
            match &outcome.broken {
                None => writeln!(f, "  holds   {}", outcome.rule)?,
                Some(why) => writeln!(f, "  BROKEN  {}: {why}", outcome.rule)?,
            }
        }
        Ok(())
    }
}

/// The same as `Display`: a test that returns the report prints it like this.
impl fmt::Debug for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{self}")
    }
}

impl std::error::Error for Report {}

/// `Err` with the reason if the rule is broken.
type RuleResult = Result<(), String>;

/// Checks a rule for a provider.
type Rule = fn(&Trial) -> RuleResult;

/// Rules with the names of their functions.
macro_rules! rules {
    ($($module:ident :: $rule:ident),* $(,)?) => { [$((stringify!($rule), $module::$rule)),*] };
}

/// All rules, in the order of the document.
const RULES: [(&str, Rule); 39] = rules![
    registration::r1_the_name_fits_where_it_is_written,
    registration::r2_the_registration_covers_what_is_served,
    registration::r6_missing_or_unknown_upstream_is_reported,
    registration::r7_every_field_written_is_declared,
    acting::r8_it_acts_only_when_chosen,
    acting::r9_it_acts_only_on_a_validated_generation,
    acting::r10_pause_stops_everything_but_deletion,
    acting::r11_a_dry_run_makes_nothing,
    life::r12_drift_is_reverted,
    translation::r13_the_same_request_gives_the_same_translation,
    translation::r14_what_cannot_be_served_is_refused_with_the_way_out,
    translation::r15_no_field_is_dropped_without_a_word,
    translation::r16_overrides_are_an_allow_list,
    translation::r17_children_lists_every_object,
    translation::r18_objects_carry_labels_annotations_and_owner,
    life::r19_foreign_objects_are_never_touched,
    life::r20_a_crash_between_two_writes_changes_nothing,
    life::r21_config_changes_are_made_in_place,
    life::r22_a_recreated_object_goes_before_the_new_one_comes,
    life::r23_hand_over_ends_with_a_cleared_status,
    life::r24_what_another_provider_serves_now_is_deleted,
    life::r25_deletion_always_ends,
    status::r26_the_status_is_the_providers_part_and_complete,
    status::r27_one_write_per_change_and_silence_at_rest,
    status::r28_ready_is_running_and_failed_is_failed,
    translation::r29_only_workers_count_and_zero_stays_zero,
    translation::r30_the_endpoint_is_a_service_and_a_port,
    status::r31_silent_upstream_is_reported_after_five_minutes,
    status::r32_missing_secret_is_reported,
    registration::r35_the_role_names_what_is_used,
    status::r36_ready_is_true_only_after_an_answer,
    status::r37_pods_say_why_a_model_does_not_serve,
    settings::r38_an_unknown_setting_is_rejected,
    settings::r38_invalid_settings_change_no_model,
    pods::r39_ready_needs_ready_pods_at_all_times,
    pods::r39_every_component_is_rolled_out,
    pods::r39_pods_that_run_something_else_do_not_count,
    pods::r39_pods_of_other_owners_do_not_count,
    pods::r39_scaled_to_zero_means_that_no_pod_runs,
];

/// Ends a rule with a reason, unless the condition holds.
macro_rules! ensure {
    ($condition:expr, $($reason:tt)+) => {
        if !$condition {
            return Err(format!($($reason)+));
        }
    };
}
use ensure;
