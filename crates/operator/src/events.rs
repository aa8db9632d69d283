//! Events: sent in the background, and dropped if too many are waiting.

use k8s_openapi::api::core::v1::ObjectReference;
use kube::Client;
use kube::runtime::events::{Event, EventType, Recorder, Reporter};
use tokio::sync::mpsc;

use crate::json;
use crate::plan::Note;

/// Maximum length of an Event's note, in bytes.
const MAX_NOTE: usize = 1024;
/// Maximum number of Events that wait to be sent; more are dropped.
const QUEUE: usize = 1024;

/// Number of Events after which a new recorder is created. A recorder keeps all sent Events for six minutes, to fold repeats
/// into a series, and searches all of them each time.
const REMEMBERED: usize = 256;

/// Sends Events in the background. Cheap to clone.
#[derive(Clone, Debug)]
pub struct Events {
    queue: mpsc::Sender<(ObjectReference, Note)>,
}

impl Events {
    /// Starts to send as `controller`.
    pub fn start(client: Client, controller: &str) -> Self {
        let (queue, mut waiting) = mpsc::channel::<(ObjectReference, Note)>(QUEUE);
        let reporter = Reporter {
            controller: controller.to_owned(),
            instance: None,
        };
        tokio::spawn(async move {
            loop {
                let recorder = Recorder::new(client.clone(), reporter.clone());
                for _ in 0..REMEMBERED {
                    let Some((object, note)) = waiting.recv().await else {
                        return;
                    };
                    if let Err(error) = recorder.publish(&event(note), &object).await {
                        tracing::debug!(%error, "event not recorded");
                    }
                }
            }
        });
        Self { queue }
    }

    /// Sends an Event about an object.
    pub fn say(&self, object: ObjectReference, note: Note) {
        tracing::info!(
            object = object.name,
            namespace = object.namespace,
            reason = note.reason,
            "{}",
            note.message
        );
        if self.queue.try_send((object, note)).is_err() {
            tracing::debug!("event dropped: too many are waiting");
        }
    }
}

fn event(note: Note) -> Event {
    let mut message = note.message;
    if message.len() > MAX_NOTE {
        message.truncate(message.floor_char_boundary(MAX_NOTE - '…'.len_utf8()));
        message.push('…');
    }
    Event {
        type_: if note.warning {
            EventType::Warning
        } else {
            EventType::Normal
        },
        reason: note.reason.to_owned(),
        note: Some(message.clone()),
        // The recorder folds Events with the same action into the first, whatever their message; therefore the message is part
        // of the action.
        action: format!("{}/{}", note.reason, json::hash(&message)),
        secondary: None,
    }
}
