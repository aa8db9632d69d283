//! Dashboards, alerts and documents name metrics that exist; every alert has a runbook, and a test that Prometheus runs.

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::process::Command;

use anyhow::{Context, Result, ensure};
use runway_engines::ENGINES;
use runway_operator::metrics::Metric;
use runway_provider::engine::Metrics;
use runway_testbed::binaries;
use serde_json::Value;

fn root() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../..")
}

fn read(path: &str) -> Result<String> {
    std::fs::read_to_string(root().join(path)).with_context(|| format!("{path} is missing"))
}

fn yaml(path: &str) -> Result<Value> {
    Ok(serde_saphyr::from_str(&read(path)?)?)
}

fn metrics() -> impl Iterator<Item = Metric> {
    runway_operator::metrics::METRICS
        .into_iter()
        .chain(runway_core::metrics::METRICS)
}

/// Beginnings of the names of our metrics.
const FAMILIES: [&str; 3] = ["kubeairunway_", "asya_actor_", "asya_gateway_"];

/// Metrics of Asya and of the model router: names and kinds. They are read from the reference, which is generated from the
/// programs.
fn of_other_programs() -> Result<Vec<(String, String)>> {
    let reference = read("docs/reference/metrics.md")?;
    let rows = reference.lines().filter_map(|line| {
        let mut cells = line.split('|').map(|cell| cell.trim().trim_matches('`').to_owned());
        Some((cells.nth(1)?, cells.next()?))
    });
    let of_others = |name: &str| {
        ["asya_", "kubeairunway_gateway_"]
            .iter()
            .any(|family| name.starts_with(family))
    };
    Ok(rows.filter(|(name, _)| of_others(name)).collect())
}

/// Every word of a text that looks like one of our metrics.
fn mentioned(text: &str) -> BTreeSet<&str> {
    text.split(|c: char| !c.is_ascii_alphanumeric() && c != '_')
        .filter(|word| FAMILIES.iter().any(|family| word.starts_with(family)))
        .collect()
}

/// The rules of a file.
fn rules(path: &str) -> Result<Vec<Value>> {
    let groups = yaml(path)?["spec"]["groups"].as_array().context("no groups")?.clone();
    Ok(groups
        .iter()
        .flat_map(|group| group["rules"].as_array().cloned().unwrap_or_default())
        .collect())
}

fn alerts() -> Result<Vec<Value>> {
    rules("deploy/monitoring/rules.yaml")
}

/// Names of the series that rules record for the engines of each model.
fn recorded() -> Result<BTreeSet<String>> {
    let rules = rules("deploy/monitoring/engines.yaml")?;
    let names = rules.iter().filter_map(|rule| rule["record"].as_str());
    Ok(names.map(str::to_owned).collect())
}

/// Every word of a text that looks like a recorded series of the engines.
fn of_models(text: &str) -> BTreeSet<&str> {
    text.split(|c: char| !c.is_ascii_alphanumeric() && !"_:".contains(c))
        .filter(|word| word.starts_with("modeldeployment") && word.contains(':'))
        .collect()
}

#[test]
fn every_metric_that_is_named_exists() -> Result<()> {
    let mut known = BTreeSet::new();
    let ours = metrics().map(|metric| (metric.name.to_owned(), metric.kind.to_owned()));
    for (name, kind) in ours.chain(of_other_programs()?) {
        if kind == "histogram" {
            known.extend(["bucket", "count", "sum"].map(|part| format!("{name}_{part}")));
        }
        known.insert(name);
    }
    ensure!(
        known.contains("asya_gateway_jobs_pending") && known.contains("asya_actor_runtime_hung"),
        "the reference lacks the metrics of Asya"
    );
    ensure!(
        known.contains("kubeairunway_gateway_held_requests_limit"),
        "the reference lacks the metrics of the model router"
    );
    for file in [
        "deploy/monitoring/rules.yaml",
        "deploy/monitoring/dashboard.json",
        "docs/operate/observability.md",
        "docs/operate/runbooks.md",
    ] {
        let text = read(file)?;
        let unknown: Vec<_> = mentioned(&text)
            .into_iter()
            .filter(|name| !known.contains(*name))
            .collect();
        ensure!(
            unknown.is_empty(),
            "{file} refers to {unknown:?}, which no program serves"
        );
        ensure!(!mentioned(&text).is_empty(), "{file} speaks of no metric");
    }
    Ok(())
}

/// The mapping of names is in one place, from which the rules are generated.
#[test]
fn rules_of_engines_read_every_engine() -> Result<()> {
    let text = read("deploy/monitoring/engines.yaml")?;
    let names = |metrics: Metrics| {
        let some = [metrics.running, metrics.waiting, metrics.tokens];
        let names = some.into_iter().chain(metrics.kv_cache.iter().copied());
        names.chain(metrics.first_token).collect::<Vec<_>>()
    };
    for name in ENGINES.iter().flat_map(|engine| names(engine.metrics)) {
        ensure!(text.contains(name), "no rule reads {name}");
    }
    Ok(())
}

#[test]
fn series_of_engines_that_are_named_are_recorded_and_shown() -> Result<()> {
    let recorded = recorded()?;
    ensure!(recorded.len() == 5, "{recorded:?}");
    let named =
        |file| -> Result<BTreeSet<String>> { Ok(of_models(&read(file)?).into_iter().map(str::to_owned).collect()) };
    let (alerted, shown) = (named("deploy/monitoring/rules.yaml")?, named(ENGINE_DASHBOARD)?);
    ensure!(!alerted.is_empty(), "no alert reads a series of engines");
    ensure!(
        alerted.is_subset(&recorded),
        "{:?} is not recorded",
        &alerted - &recorded
    );
    ensure!(shown == recorded, "shown: {shown:?}, recorded: {recorded:?}");
    Ok(())
}

/// Panels of a dashboard, of which each has an ID of its own and queries that `is_ours` accepts.
fn panels(path: &str, is_ours: impl Fn(&str) -> bool) -> Result<Vec<Value>> {
    let dashboard: Value = serde_json::from_str(&read(path)?)?;
    let panels = dashboard["panels"].as_array().context("no panels")?.clone();
    let ids: BTreeSet<_> = panels.iter().map(|panel| panel["id"].to_string()).collect();
    ensure!(ids.len() == panels.len(), "two panels of {path} have one id");
    for panel in &panels {
        let queries = panel["targets"].as_array().context("a panel without queries")?;
        for query in queries {
            let query = query["expr"].as_str().unwrap_or_default();
            ensure!(is_ours(query), "{} of {path} asks for nothing of ours", panel["title"]);
        }
    }
    Ok(panels)
}

const ENGINE_DASHBOARD: &str = "deploy/monitoring/engines.json";

#[test]
fn dashboards_are_complete() -> Result<()> {
    panels(ENGINE_DASHBOARD, |query| !of_models(query).is_empty())?;
    let panels = panels("deploy/monitoring/dashboard.json", |query| !mentioned(query).is_empty())?;
    // What the design counts is seen somewhere.
    let text = Value::from(panels).to_string();
    for metric in metrics() {
        ensure!(text.contains(metric.name), "no panel shows {}", metric.name);
    }
    Ok(())
}

/// Address of the runbooks: alerts are read outside of the repository.
const RUNBOOKS: &str = "https://github.com/kubeairunway/kubeairunway/blob/main/docs/operate/runbooks.md";

#[test]
fn every_alert_has_a_runbook() -> Result<()> {
    let (_, page) = RUNBOOKS.split_once("/blob/main/").context("no path")?;
    let runbooks = read(page)?;
    let mut sections: BTreeSet<&str> = runbooks.lines().filter_map(|line| line.strip_prefix("## ")).collect();
    for alert in alerts()? {
        let name = alert["alert"].as_str().context("an alert without a name")?;
        ensure!(sections.remove(name), "{name} has no runbook");
        let url = alert["annotations"]["runbook_url"].as_str().unwrap_or_default();
        ensure!(
            url == format!("{RUNBOOKS}#{}", name.to_lowercase()),
            "{name} points to {url}"
        );
    }
    ensure!(sections.is_empty(), "runbooks without an alert: {sections:?}");
    Ok(())
}

/// Each alert fires when it is to fire and not before, with the words and labels that people see.
#[test]
fn alerts_fire_when_they_should_in_prometheus() -> Result<()> {
    let Some(promtool) = binaries::promtool("alerts in Prometheus")? else {
        return Ok(());
    };
    let folder = tempfile::tempdir()?;
    // Prometheus knows the groups, the operator of Prometheus their wrapping.
    for file in ["rules.yaml", "engines.yaml"] {
        let rules = yaml(&format!("deploy/monitoring/{file}"))?["spec"].clone();
        std::fs::write(folder.path().join(file), serde_json::to_string(&rules)?)?;
    }
    std::fs::write(folder.path().join("rules.test.yaml"), read(RULE_TESTS)?)?;
    for command in [
        &["check", "rules", "rules.yaml", "engines.yaml"][..],
        &["test", "rules", "rules.test.yaml"],
    ] {
        let output = Command::new(&promtool).args(command).current_dir(&folder).output()?;
        ensure!(
            output.status.success(),
            "promtool {}: {}{}",
            command.join(" "),
            String::from_utf8_lossy(&output.stdout),
            String::from_utf8_lossy(&output.stderr)
        );
    }
    Ok(())
}

const RULE_TESTS: &str = "crates/testbed/tests/alerts/rules.test.yaml";

/// Both ways: that it fires, and that it does not.
#[test]
fn every_alert_is_tested() -> Result<()> {
    let mut fires = BTreeSet::new();
    let mut rests = BTreeSet::new();
    for test in yaml(RULE_TESTS)?["tests"].as_array().context("no tests")? {
        for alert in test["alert_rule_test"].as_array().context("a test of nothing")? {
            let name = alert["alertname"].as_str().unwrap_or_default().to_owned();
            let expected = alert["exp_alerts"].as_array().is_some_and(|alerts| !alerts.is_empty());
            if expected { &mut fires } else { &mut rests }.insert(name);
        }
    }
    let all: BTreeSet<String> = alerts()?
        .iter()
        .filter_map(|alert| alert["alert"].as_str().map(str::to_owned))
        .collect();
    ensure!(fires == all, "without a test that it fires: {:?}", &all - &fires);
    ensure!(rests == all, "without a test that it keeps quiet: {:?}", &all - &rests);
    Ok(())
}
