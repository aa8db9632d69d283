//! Files for other programs: the workflows of the forge, and the health scripts of Argo CD, each judged by that program itself.

use std::collections::BTreeMap;
use std::fmt::Write;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, ensure};
use runway_api::condition;
use runway_api::llama_stack_distribution::DistributionPhase;
use runway_api::tone::Tone;
use runway_api::{AsyncActorStatus, LlamaStackDistributionStatus, ModelDeploymentStatus};
use runway_testbed::binaries;
use serde_json::{Value, json};

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

#[test]
fn actionlint_accepts_the_workflows() -> Result<()> {
    let mut workflows = Vec::new();
    for entry in fs::read_dir(root().join(".github/workflows"))? {
        workflows.push(entry?.path());
    }
    ensure!(!workflows.is_empty(), "there are no workflows");
    // Without the linters of other languages, which a machine may have or not.
    let output = Command::new(binaries::actionlint()?)
        .args(["-no-color", "-shellcheck=", "-pyflakes="])
        .args(&workflows)
        .output()
        .context("cannot run actionlint")?;
    ensure!(output.status.success(), "{}", String::from_utf8_lossy(&output.stdout));
    Ok(())
}

/// An object and the health that Argo CD should show.
struct Case {
    name: String,
    object: Value,
    health: &'static str,
}

fn health_of(tone: Tone) -> &'static str {
    match tone {
        Tone::Current => "Healthy",
        Tone::InProgress | Tone::Terminating | Tone::Unknown => "Progressing",
        Tone::Paused => "Suspended",
        Tone::Failed => "Degraded",
    }
}

/// The statuses that controllers write in golden plans, with their tones.
fn golden(folder: &str, tone: impl Fn(&Value) -> Result<Tone>) -> Result<Vec<Case>> {
    let mut cases = Vec::new();
    for entry in fs::read_dir(root().join(folder)).with_context(|| format!("cannot read {folder}"))? {
        let path = entry?.path().join("plan.yaml");
        let Ok(text) = fs::read_to_string(&path) else { continue };
        let status: Value = serde_saphyr::from_str(&status_of(&text)).with_context(|| path.display().to_string())?;
        if !status.is_object() {
            continue;
        }
        let paused = status["conditions"].as_array().is_some_and(|all| {
            all.iter()
                .any(|c| c["type"] == condition::PAUSED && c["status"] == "True")
        });
        let tone = if paused { Tone::Paused } else { tone(&status)? };
        cases.push(Case {
            name: path.display().to_string(),
            object: json!({ "metadata": { "generation": status["observedGeneration"] }, "status": status }),
            health: health_of(tone),
        });
    }
    Ok(cases)
}

/// The section `status` of a golden plan; other sections need not be YAML.
fn status_of(plan: &str) -> String {
    let lines = plan.lines().skip_while(|line| *line != "status:").skip(1);
    lines
        .take_while(|line| line.starts_with(' '))
        .flat_map(|line| [line, "\n"])
        .collect()
}

/// Cases of every kind: no status yet, and a spec that no controller has seen.
fn unseen(status: &Value) -> Vec<Case> {
    let case = |name: &str, object: Value| Case {
        name: name.to_owned(),
        object,
        health: "Progressing",
    };
    let mut seen = status.clone();
    seen["observedGeneration"] = json!(1);
    vec![
        case("without a status", json!({ "metadata": { "generation": 1 } })),
        case(
            "a new generation",
            json!({ "metadata": { "generation": 2 }, "status": seen }),
        ),
    ]
}

/// Runs a script for each object as Argo CD does: with the object as `obj`, without the libraries for files and processes.
fn judge(script: &str, cases: &[Case]) -> Result<()> {
    let script = fs::read_to_string(root().join("deploy/argocd").join(script).join("health.lua"))?;
    let mut program = format!("local function health()\n{script}\nend\n");
    program.push_str(
        "local env = { ipairs = ipairs, pairs = pairs, string = string, table = table, tostring = tostring }\n",
    );
    program.push_str("setfenv(health, env)\n");
    for case in cases {
        writeln!(
            program,
            "env.obj = {}\nr = health()\nprint(r.status)",
            lua(&case.object)
        )?;
        program.push_str("assert(r.message == nil or type(r.message) == 'string')\n");
    }
    let folder = tempfile::tempdir()?;
    let path = folder.path().join("cases.lua");
    fs::write(&path, program)?;
    let output = Command::new(binaries::lua()?)
        .arg(&path)
        .output()
        .context("cannot run Lua")?;
    let reported = String::from_utf8(output.stdout)?;
    ensure!(
        output.status.success(),
        "{}{reported}",
        String::from_utf8_lossy(&output.stderr)
    );
    let reported: Vec<&str> = reported.lines().collect();
    ensure!(
        reported.len() == cases.len(),
        "{} answers to {} objects",
        reported.len(),
        cases.len()
    );
    for (case, health) in cases.iter().zip(reported) {
        ensure!(health == case.health, "{}: {health}, not {}", case.name, case.health);
    }
    Ok(())
}

/// A value as a literal of Lua. An absent value is omitted, as in Argo CD.
fn lua(value: &Value) -> String {
    let text = |text: &str| {
        let escaped: Vec<String> = text.bytes().map(|byte| format!("\\{byte:03}")).collect();
        format!("\"{}\"", escaped.concat())
    };
    match value {
        Value::Null => "nil".to_owned(),
        Value::Bool(_) | Value::Number(_) => value.to_string(),
        Value::String(string) => text(string),
        Value::Array(items) => format!("{{{}}}", items.iter().map(lua).collect::<Vec<_>>().join(",")),
        Value::Object(fields) => {
            let fields = fields
                .iter()
                .map(|(name, value)| format!("[{}]={}", text(name), lua(value)));
            format!("{{{}}}", fields.collect::<Vec<_>>().join(","))
        }
    }
}

/// Number of cases per health. A kind whose cases were all alike would test nothing.
fn variety(cases: &[Case]) -> BTreeMap<&'static str, usize> {
    let mut counts = BTreeMap::new();
    for case in cases {
        *counts.entry(case.health).or_default() += 1;
    }
    counts
}

#[test]
fn argo_cd_shows_the_health_of_a_model_deployment() -> Result<()> {
    let tone = |status: &Value| {
        let status: ModelDeploymentStatus = serde_json::from_value(status.clone())?;
        Ok(status.phase.map_or(Tone::Unknown, runway_api::Phase::tone))
    };
    let mut cases = golden("crates/core/tests/plan", tone)?;
    cases.extend(golden("crates/provider/tests/plan", tone)?);
    cases.extend(unseen(&json!({ "phase": "Running" })));
    ensure!(variety(&cases).len() == 4, "{:?}", variety(&cases));
    judge("kubeairunway.ai/ModelDeployment", &cases)
}

#[test]
fn argo_cd_shows_the_health_of_an_async_actor() -> Result<()> {
    let tone = |status: &Value| Ok(serde_json::from_value::<AsyncActorStatus>(status.clone())?.tone());
    let mut cases = golden("crates/asya-operator/tests/plan", tone)?;
    for state in runway_api::async_actor::ActorState::ALL {
        let status = json!({ "status": state.as_str(), "conditions": [{ "type": "Ready", "status": "False" }] });
        // A paused actor has the condition as well.
        if state.tone() != Tone::Current && state.tone() != Tone::Paused {
            let object = json!({ "metadata": {}, "status": status });
            cases.push(Case {
                name: state.to_string(),
                object,
                health: health_of(state.tone()),
            });
        }
    }
    cases.extend(unseen(
        &json!({ "status": "Running", "conditions": [{ "type": "Ready", "status": "True" }] }),
    ));
    ensure!(variety(&cases).len() == 4, "{:?}", variety(&cases));
    judge("asya.sh/AsyncActor", &cases)
}

#[test]
fn argo_cd_shows_the_health_of_a_llama_stack_distribution() -> Result<()> {
    let tone = |status: &Value| {
        let status: LlamaStackDistributionStatus = serde_json::from_value(status.clone())?;
        Ok(status.phase.map_or(Tone::Unknown, DistributionPhase::tone))
    };
    let mut cases = golden("crates/llama-stack-operator/tests/plan", tone)?;
    cases.extend(unseen(&json!({ "phase": "Ready" })));
    ensure!(variety(&cases).len() == 4, "{:?}", variety(&cases));
    judge("llamastack.io/LlamaStackDistribution", &cases)
}

#[test]
fn argo_cd_shows_the_health_of_a_provider() -> Result<()> {
    let config = |name: &str, conditions: Value, ready: bool, health| Case {
        name: name.to_owned(),
        object: json!({ "metadata": {}, "status": { "ready": ready, "conditions": conditions } }),
        health,
    };
    let upstream = |status: &str, reason: &str| json!({ "type": condition::UPSTREAM_READY, "status": status, "reason": reason, "message": "m" });
    let rules =
        |status: &str| json!({ "type": condition::RULES_VALID, "status": status, "reason": "r", "message": "m" });
    let cases = [
        config(
            "ready",
            json!([upstream("True", "SchemaKnown"), rules("True")]),
            true,
            "Healthy",
        ),
        config(
            "no CRD",
            json!([upstream("False", "CRDNotInstalled"), rules("True")]),
            false,
            "Progressing",
        ),
        config(
            "unknown schema",
            json!([rules("True"), upstream("False", "UnknownUpstreamSchema")]),
            false,
            "Degraded",
        ),
        config(
            "a bad rule",
            json!([upstream("True", "SchemaKnown"), rules("False")]),
            true,
            "Degraded",
        ),
        config(
            "invalid settings",
            json!([
                upstream("True", "SchemaKnown"),
                json!({ "type": condition::SETTINGS_VALID, "status": "False", "reason": "SettingsRejected", "message": "m" })
            ]),
            false,
            "Degraded",
        ),
        config("registered", json!([]), false, "Progressing"),
        Case {
            name: "no status".to_owned(),
            object: json!({ "metadata": {} }),
            health: "Progressing",
        },
    ];
    judge("kubeairunway.ai/InferenceProviderConfig", &cases)
}
