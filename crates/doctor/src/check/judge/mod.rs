//! The table of checks, and their judges. They read only [observed](super::Observed) data.

mod admission;
mod cluster;
mod controllers;
mod kinds;
mod models;
mod neighbors;
mod nodes;
mod others;
mod pods;
mod providers;
mod router;
mod shared;

pub(super) use cluster::DEPLOY;
pub(super) use neighbors::KEDA;
pub(super) use providers::OPERATORS;

use super::{Causes, Check, Group, Judged, Judgement, Level, Observed, Outcome, Phase, Skip};

/// URL of the documentation of all checks.
const DOCUMENTATION: &str = "https://github.com/kubeairunway/kubeairunway/blob/main/docs/reference/checks.md";

/// All checks, by group.
pub static GROUPS: &[Group] = &[
    Group {
        id: "cluster",
        title: "Cluster",
        phase: Phase::Always,
        checks: cluster::CHECKS,
        causes: None,
    },
    Group {
        id: "pre",
        title: "Before installation",
        phase: Phase::Before,
        checks: cluster::BEFORE,
        causes: None,
    },
    Group {
        id: "kinds",
        title: "CustomResourceDefinitions",
        phase: Phase::After,
        checks: kinds::CHECKS,
        causes: None,
    },
    Group {
        id: "controllers",
        title: "Controllers",
        phase: Phase::After,
        checks: controllers::CHECKS,
        causes: None,
    },
    Group {
        id: "admission",
        title: "Admission",
        phase: Phase::After,
        checks: admission::CHECKS,
        causes: None,
    },
    Group {
        id: "providers",
        title: "Providers",
        phase: Phase::After,
        checks: providers::CHECKS,
        causes: None,
    },
    Group {
        id: "nodes",
        title: "Nodes",
        phase: Phase::After,
        checks: nodes::CHECKS,
        causes: None,
    },
    Group {
        id: "models",
        title: "ModelDeployments",
        phase: Phase::After,
        checks: models::CHECKS,
        causes: Some(models::causes),
    },
    Group {
        id: "router",
        title: "Model router",
        phase: Phase::After,
        checks: router::CHECKS,
        causes: None,
    },
    Group {
        id: "actors",
        title: "AsyncActors",
        phase: Phase::After,
        checks: others::ACTORS,
        causes: Some(others::of_actors),
    },
    Group {
        id: "llama-stack",
        title: "LlamaStackDistributions",
        phase: Phase::After,
        checks: others::DISTRIBUTIONS,
        causes: Some(others::of_distributions),
    },
    Group {
        id: "neighbors",
        title: "Scaling, policies, metrics",
        phase: Phase::After,
        checks: neighbors::CHECKS,
        causes: None,
    },
];

/// Results of all checks, `before` an installation or after it.
pub fn judge(observed: &Observed, before: bool) -> Vec<Judgement> {
    let runs = |group: &&Group| match group.phase {
        Phase::Always => true,
        Phase::Before => before,
        Phase::After => !before,
    };
    GROUPS
        .iter()
        .filter(runs)
        .map(|group| {
            let causes = group.causes.map_or_else(|| Ok(Vec::new()), |judge| judge(observed));
            let judged = |check: &Check| match check.judge {
                Some(judge) => judge(observed),
                None => of_check(check.id, &causes),
            };
            Judgement {
                group: group.id,
                title: group.title,
                checks: group.checks.iter().map(|check| outcome(check, judged(check))).collect(),
            }
        })
        .collect()
}

/// Findings of one check.
fn of_check(id: &str, causes: &Causes) -> Judged {
    let all = causes.as_ref().map_err(Clone::clone)?;
    Ok(all
        .iter()
        .filter(|(check, _)| *check == id)
        .map(|(_, found)| found.clone())
        .collect())
}

fn outcome(check: &Check, judged: Judged) -> Outcome {
    let (level, skipped, mut findings) = match judged {
        Ok(findings) => (
            // Notes are no reason not to pass.
            findings
                .iter()
                .map(|f| f.level)
                .filter(|l| *l > Level::Skipped)
                .max()
                .unwrap_or(Level::Ok),
            None,
            findings,
        ),
        Err(Skip(why)) => (Level::Skipped, Some(why), Vec::new()),
    };
    // The worst first; what is equally bad stays as it was found.
    findings.sort_by_key(|finding| std::cmp::Reverse(finding.level));
    for finding in findings.iter_mut().filter(|f| f.remedy.is_empty()) {
        check.remedy.clone_into(&mut finding.remedy);
    }
    Outcome {
        check: check.id,
        title: check.title,
        level,
        skipped,
        findings,
        documentation: format!("{DOCUMENTATION}#{}", check.id),
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn every_check_has_an_id_of_its_own_and_words() {
        let all: Vec<&Check> = GROUPS.iter().flat_map(|g| g.checks).collect();
        let ids: BTreeSet<&str> = all.iter().map(|c| c.id).collect();
        assert_eq!(ids.len(), all.len());
        assert!(all.len() >= 40, "{} checks", all.len());
        for check in all {
            let words = [check.title, check.looks_at, check.remedy];
            assert!(words.iter().all(|text| text.len() > 10), "{}", check.id);
        }
    }

    #[test]
    fn every_check_has_a_judge() {
        for group in GROUPS {
            let all_of_their_own = group.checks.iter().all(|check| check.judge.is_some());
            assert_eq!(all_of_their_own, group.causes.is_none(), "{}", group.id);
        }
    }

    #[test]
    fn a_cluster_that_does_not_answer_is_one_error_and_not_fifty() {
        let mut observed = Observed::default();
        observed.facts.unreachable = Some("connection refused".to_owned());
        let errors: Vec<_> = judge(&observed, false)
            .into_iter()
            .flat_map(|g| g.checks)
            .filter(|c| c.level > Level::Skipped)
            .collect();
        assert_eq!(errors.len(), 1, "{errors:#?}");
        assert_eq!(errors[0].check, "api-reachable");
    }
}
