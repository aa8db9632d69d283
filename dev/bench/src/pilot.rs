//! One ModelDeployment by our own controllers: how long it takes alone, and what they write, taken from its managed
//! fields. The bare client writes the same for every object.

use std::pin::pin;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use futures::TryStreamExt;
use kube::ResourceExt;
use kube::api::{DeleteParams, DynamicObject, PostParams};
use kube::runtime::watcher::{Config, Event, watcher};
use runway_api::labels;
use runway_testbed::eventually;
use serde_json::{Map, Value, json};

use super::mix::{LINES, Line, deployments};
use super::stage::Stage;
use super::watching::is_running;

const PATIENCE: Duration = Duration::from_mins(1);

/// A ModelDeployment from its creation to Running.
pub(super) struct Flight {
    /// Duration.
    pub(super) time: Duration,
    /// Each version that the watch has shown.
    versions: Vec<DynamicObject>,
}

/// Requests of the bare client for one ModelDeployment.
pub(super) struct Script {
    /// The model.
    pub(super) line: &'static Line,
    /// The ModelDeployment as admission leaves it.
    pub(super) create: DynamicObject,
    /// Subsequent requests, in order.
    pub(super) writes: Vec<Write>,
}

/// A server-side apply.
pub(super) struct Write {
    /// Field manager of the write.
    pub(super) manager: String,
    /// Part of the object.
    pub(super) target: Target,
    /// The body, without the uid of its owner.
    pub(super) body: Value,
}

/// Part of an object that a write concerns.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Target {
    /// The status of the ModelDeployment.
    Status,
    /// The upstream object.
    Upstream,
}

impl Script {
    /// The same for another name.
    pub(super) fn renamed(&self, name: &str) -> Result<Self> {
        let rename = |value: &Value| serde_json::from_str(&value.to_string().replace(self.line.pilot, name));
        let writes = self.writes.iter().map(|write| {
            Ok(Write {
                manager: write.manager.clone(),
                target: write.target,
                body: rename(&write.body)?,
            })
        });
        Ok(Self {
            line: self.line,
            create: serde_json::from_value(rename(&serde_json::to_value(&self.create)?)?)?,
            writes: writes.collect::<Result<_>>()?,
        })
    }
}

impl Write {
    /// For the object that was created.
    pub(super) fn fill_in(&mut self, uid: &str) {
        match self.target {
            Target::Status => self.body["metadata"]["uid"] = json!(uid),
            Target::Upstream => self.body["metadata"]["ownerReferences"][0]["uid"] = json!(uid),
        }
    }
}

/// Starts our controllers, sees what they write for a ModelDeployment of each line, and ends them.
pub(super) async fn record(stage: &mut Stage<'_>) -> Result<Vec<Script>> {
    stage.start_ours().await?;
    let mut scripts = Vec::new();
    for line in &LINES {
        let flight = fly(stage, line).await?;
        let upstream = line.upstream(&stage.user).get(line.pilot).await?;
        land(stage, line).await?;
        scripts.push(script(line, &flight.versions, &upstream)?);
    }
    stage.end_ours().await?;
    Ok(scripts)
}

/// Creates the pilot and waits until it is Running.
pub(super) async fn fly(stage: &Stage<'_>, line: &Line) -> Result<Flight> {
    let api = deployments(&stage.user);
    let only = Config::default().fields(&format!("metadata.name={}", line.pilot));
    let mut events = pin!(watcher(api.clone(), only));
    while !matches!(events.try_next().await?, Some(Event::InitDone)) {}

    let start = Instant::now();
    api.create(&PostParams::default(), &line.model(line.pilot)?).await?;
    let mut versions = Vec::new();
    let until_running = async {
        while let Some(event) = events.try_next().await? {
            if let Event::Apply(version) = event {
                versions.push(version);
                if versions.last().is_some_and(is_running) {
                    return Ok(());
                }
            }
        }
        bail!("the watch has ended")
    };
    tokio::time::timeout(PATIENCE, until_running)
        .await
        .with_context(|| format!("the pilot {} does not run after a minute", line.pilot))??;
    Ok(Flight {
        time: start.elapsed(),
        versions,
    })
}

/// Deletes the pilot and waits until it is gone.
pub(super) async fn land(stage: &Stage<'_>, line: &Line) -> Result<()> {
    let api = deployments(&stage.user);
    api.delete(line.pilot, &DeleteParams::default()).await?;
    eventually(PATIENCE, async || {
        ensure!(
            api.get_metadata_opt(line.pilot).await?.is_none(),
            "the pilot does not go"
        );
        Ok(())
    })
    .await
}

/// The four writes: chosen, made, Deploying, Running.
fn script(line: &'static Line, versions: &[DynamicObject], upstream: &DynamicObject) -> Result<Script> {
    let (core, provider) = (labels::CORE_MANAGER, line.controller);
    let (Some(first), Some(last)) = (versions.first(), versions.last()) else {
        bail!("the pilot was not seen");
    };
    let status_by = |manager: &str, version: &DynamicObject| -> Option<Write> {
        let mut body = applied(version, manager, "status")?;
        body["metadata"] = json!({ "name": line.pilot });
        Some(Write {
            manager: manager.to_owned(),
            target: Target::Status,
            body,
        })
    };
    let mut made =
        applied(upstream, provider, "").with_context(|| format!("{provider} has not made the upstream object"))?;
    made["metadata"]["name"] = json!(line.pilot);
    let writes = [
        versions.iter().rev().find_map(|v| status_by(core, v)),
        Some(Write {
            manager: provider.to_owned(),
            target: Target::Upstream,
            body: made,
        }),
        versions.iter().find_map(|v| status_by(provider, v)),
        status_by(provider, last),
    ];
    let writes: Vec<Write> = writes.into_iter().flatten().collect();
    ensure!(
        writes.len() == 4,
        "the pilot's status does not name both controllers as writers"
    );

    let mut create = line.model(line.pilot)?;
    create.metadata.finalizers.clone_from(&first.metadata.finalizers);
    create.data["spec"] = first.data["spec"].clone();
    Ok(Script { line, create, writes })
}

/// Fields that a field manager has applied to an object or to its subresource.
pub(super) fn applied(object: &DynamicObject, manager: &str, subresource: &str) -> Option<Value> {
    let entry = object.managed_fields().iter().find(|entry| {
        entry.manager.as_deref() == Some(manager) && entry.subresource.as_deref().unwrap_or_default() == subresource
    })?;
    let fields = entry.fields_v1.as_ref()?.0.as_object()?;
    let mut body = owned(&serde_json::to_value(object).ok()?, fields);
    let types = object.types.as_ref()?;
    body["apiVersion"] = json!(types.api_version);
    body["kind"] = json!(types.kind);
    Some(body)
}

/// The part of a value that these managed fields name: `f:` is a field, `k:` an item of a list by its keys.
fn owned(value: &Value, fields: &Map<String, Value>) -> Value {
    let inside = |value: &Value, fields: &Value| fields.as_object().map(|fields| owned(value, fields));
    match value {
        Value::Object(object) if !fields.is_empty() => fields
            .iter()
            .filter_map(|(key, below)| {
                let name = key.strip_prefix("f:")?;
                Some((name.to_owned(), inside(object.get(name)?, below)?))
            })
            .collect(),
        Value::Array(items) if !fields.is_empty() => fields
            .iter()
            .filter_map(|(key, below)| {
                let keys: Map<String, Value> = serde_json::from_str(key.strip_prefix("k:")?).ok()?;
                let item = items
                    .iter()
                    .find(|item| keys.iter().all(|(name, value)| &item[name] == value))?;
                inside(item, below)
            })
            .collect(),
        whole => whole.clone(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn managed_fields_choose_what_was_applied() {
        let value = json!({ "a": 1, "b": { "c": [1, 2] }, "list": [{ "type": "x", "v": 1 }, { "type": "y", "v": 2 }] });
        let fields =
            json!({ "f:b": { "f:c": {} }, "f:list": { "k:{\"type\":\"y\"}": { ".": {}, "f:type": {}, "f:v": {} } } });
        let chosen = owned(&value, fields.as_object().unwrap());
        assert_eq!(
            chosen,
            json!({ "b": { "c": [1, 2] }, "list": [{ "type": "y", "v": 2 }] })
        );
    }
}
