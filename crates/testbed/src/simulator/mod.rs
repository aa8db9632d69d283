//! The **upstream simulator**: plays the controllers of upstream operators on a real API server.
//!
//! The operators themselves cannot be had from package registries. Their CRDs are real, the API server is real, and what
//! the simulator writes is what the real controllers write; no model runs. It is named *upstream simulator*
//! wherever it shows, so that nobody takes its Ready for a model that answers.
//!
//! Like the real ones it is driven by watches, reads from caches and is silent when nothing changes.

pub mod kaito;
mod timeline;

use std::{fmt, future::Future, str::FromStr, time::Duration};

use jiff::Timestamp;
use kube::{
    Api, Client, ResourceExt,
    api::{DynamicObject, Patch, PatchParams},
};
use tokio::task::{AbortHandle, JoinHandle};

/// On an upstream object, or on its InferenceSet: what shall become of it. See [`Behaviour`].
pub const LABEL: &str = "kubeairunway.ai/simulate";

/// How the simulator plays.
#[derive(Clone, Debug)]
pub struct Config {
    /// From first sight of an object to its Ready.
    pub ready_after: Duration,
    /// For objects without the label.
    pub behaviour: Behaviour,
    /// Puts the operator's finalizer on its objects, as the real one does: while the simulator is dead, nothing that
    /// it has seen can be deleted.
    pub finalizer: bool,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            ready_after: Duration::from_secs(1),
            behaviour: Behaviour::Ready,
            finalizer: true,
        }
    }
}

/// What becomes of an object; the value of [`LABEL`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Behaviour {
    /// `ready`: Ready after the configured time.
    Ready,
    /// `slow`: Ready after ten times that.
    Slow,
    /// `stall`: no status, ever, and no finalizer: an operator that does not see it.
    Stall,
    /// `fail`: a terminal failure with a message.
    Fail,
    /// `flap`: Ready, and then, for good, not ready with a message.
    Flap,
    /// `secret-missing`: a pod that waits for a Secret that is not there.
    SecretMissing,
    /// `stuck-delete`: Ready, but its deletion never ends.
    StuckDelete,
}

const BEHAVIOURS: [(&str, Behaviour); 7] = [
    ("ready", Behaviour::Ready),
    ("slow", Behaviour::Slow),
    ("stall", Behaviour::Stall),
    ("fail", Behaviour::Fail),
    ("flap", Behaviour::Flap),
    ("secret-missing", Behaviour::SecretMissing),
    ("stuck-delete", Behaviour::StuckDelete),
];

impl FromStr for Behaviour {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let found = BEHAVIOURS.iter().find(|(name, _)| *name == text);
        found.map(|(_, behaviour)| *behaviour).ok_or_else(|| {
            let known: Vec<_> = BEHAVIOURS.iter().map(|(name, _)| *name).collect();
            format!("unknown behaviour `{text}`; known: {}", known.join(", "))
        })
    }
}

impl fmt::Display for Behaviour {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let found = BEHAVIOURS.iter().find(|(_, behaviour)| behaviour == self);
        f.write_str(found.map_or("", |(name, _)| name))
    }
}

/// A running simulator. Dropping it is the death of the upstream operator: no orderly end, nothing cleaned up.
pub struct Simulator(#[expect(dead_code, reason = "held for its drop")] Task);

impl Simulator {
    /// Starts playing with this client's identity. CRDs may come and go while it runs.
    pub fn start(client: Client, config: Config) -> Self {
        Self(Task::spawn(kaito::run(client, config)))
    }
}

/// A task that ends when this drops.
struct Task(AbortHandle);

impl Task {
    fn spawn(future: impl Future<Output = ()> + Send + 'static) -> Self {
        let handle: JoinHandle<()> = tokio::spawn(future);
        Self(handle.abort_handle())
    }
}

impl Drop for Task {
    fn drop(&mut self) {
        self.0.abort();
    }
}

/// A mistyped label must not look like success: it stalls, and says so.
fn behaviour(object: &DynamicObject, config: &Config) -> Behaviour {
    match object.labels().get(LABEL).map(|value| value.parse()) {
        None => config.behaviour,
        Some(Ok(behaviour)) => behaviour,
        Some(Err(error)) => {
            crate::say(&format!(
                "upstream simulator: {} stalls, its label {LABEL} is wrong: {error}",
                object.name_any()
            ));
            Behaviour::Stall
        }
    }
}

/// Replaces the finalizers, unless the object has changed meanwhile; its next event brings another try.
async fn set_finalizers(
    api: &Api<DynamicObject>,
    object: &DynamicObject,
    finalizers: &[String],
    manager: &str,
) -> kube::Result<()> {
    let metadata = serde_json::json!({"finalizers": finalizers, "resourceVersion": object.resource_version()});
    let patch = Patch::Merge(serde_json::json!({ "metadata": metadata }));
    api.patch(&object.name_any(), &params(manager), &patch).await.map(drop)
}

/// Writes the status if it says something new; transition times move only with the status of their condition.
async fn set_status(
    api: &Api<DynamicObject>,
    object: &DynamicObject,
    mut status: serde_json::Value,
    manager: &str,
) -> kube::Result<()> {
    let current = object.data.get("status").unwrap_or(&serde_json::Value::Null);
    let now = now().strftime("%Y-%m-%dT%H:%M:%SZ").to_string();
    for condition in status["conditions"].as_array_mut().into_iter().flatten() {
        let before = current["conditions"]
            .as_array()
            .into_iter()
            .flatten()
            .find(|c| c["type"] == condition["type"]);
        let unmoved = before.filter(|c| c["status"] == condition["status"]);
        condition["lastTransitionTime"] =
            unmoved.map_or_else(|| now.clone().into(), |c| c["lastTransitionTime"].clone());
    }
    let news = status
        .as_object()
        .into_iter()
        .flatten()
        .any(|(field, value)| &current[field] != value);
    if news {
        let patch = Patch::Merge(serde_json::json!({ "status": status }));
        api.patch_status(&object.name_any(), &params(manager), &patch).await?;
    }
    Ok(())
}

fn params(manager: &str) -> PatchParams {
    PatchParams {
        field_manager: Some(manager.to_owned()),
        ..PatchParams::default()
    }
}

#[expect(
    clippy::disallowed_methods,
    reason = "the simulator is an edge: it plays a foreign program with a clock of its own"
)]
fn now() -> Timestamp {
    Timestamp::now()
}
