//! The one place that writes.
//!
//! | module | what |
//! |---|---|
//! | `self` | the steps of a plan |
//! | `executor` | writer of a controller |
//! | `write` | single writes and their guards |
//! | `error` | failed writes |

mod error;
mod executor;
#[cfg(test)]
mod tests;
mod write;

use std::time::Duration;

use serde::Serialize;
use serde_json::Value;

use crate::echo;
use crate::object;
use crate::plan::{Admission, Note, Plan, Step};
use crate::trace::Recording;

pub use error::Error;
pub use executor::{Executor, Owner};
pub(crate) use write::NO_VERSION;
pub use write::guarded;

impl<K: Owner> Executor<K> {
    /// Carries out a plan, in order, stopping at the first write that fails.
    ///
    /// # Errors
    /// A write failed, or an object with a planned name has another owner.
    pub async fn execute(&self, owner: &K, plan: &Plan) -> Result<(), Error> {
        let mut span = (!plan.is_silent())
            .then(|| {
                self.traces
                    .about(owner.meta(), format!("reconcile by {}", self.manager))
            })
            .flatten();
        let done = self.carry_out(owner, plan, span.as_ref()).await;
        if let Some(span) = &mut span {
            for note in &plan.events {
                span.event(note.reason, &note.message);
            }
            if let Err(error) = &done {
                span.failed(error);
            }
        }
        done
    }

    async fn carry_out(&self, owner: &K, plan: &Plan, span: Option<&Recording>) -> Result<(), Error> {
        // Guarded writes refer to the owner as our own writes left it.
        let mut latest: Option<K> = None;
        let mut news = Vec::new();
        for step in plan.steps() {
            let owner = latest.as_ref().unwrap_or(owner);
            if !matches!(step, Step::Apply(_)) {
                self.say(owner, news.drain(..));
            }
            let mut span = span.and_then(|span| span.within(span_of(step, plan)?));
            match self.step(owner, step, &mut news).await {
                Ok(written) => latest = written.or(latest),
                Err(error) => {
                    if let Some(span) = &mut span {
                        span.failed(&error);
                    }
                    self.say(owner, news);
                    return Err(error);
                }
            }
        }
        self.say(latest.as_ref().unwrap_or(owner), news);
        Ok(())
    }

    /// Sends one request. Returns the owner if it was written; `news` takes the Events of applied objects.
    async fn step(&self, owner: &K, step: Step<'_>, news: &mut Vec<Note>) -> Result<Option<K>, Error> {
        match step {
            Step::AddFinalizer => return self.set_finalizer(owner, true).await,
            Step::RemoveFinalizer => return self.set_finalizer(owner, false).await,
            Step::StatusOf(of) => return self.status(owner, &of.manager, &of.status, of.guarded).await,
            Step::Status { fields, guarded } => return self.own_status(owner, fields, guarded).await,
            Step::DryRun(object) => match self.send(object, true).await {
                // Only a rejection by the API server itself counts.
                Err(error) if object.admission == Admission::NeedsOthers && error.may_be_for_want_of_another() => {}
                sent => drop(sent?),
            },
            Step::Trial(trial) => match self.send(&trial.object, true).await {
                Err(error) if !error.counts(trial.counts) => {}
                sent => drop(sent?),
            },
            Step::Delete(delete) => self.delete(delete).await?,
            Step::Apply(object) => {
                let answer = self.send(object, false).await?;
                self.children.wrote(&object.resource.kind, answer);
                add(news, object.note.as_ref());
            }
            Step::Edit(edit) => self.edit(owner, edit).await?,
            Step::Event(note) => self.events.say(owner.object_ref(&()), note.clone()),
        }
        Ok(None)
    }

    fn say(&self, owner: &K, news: impl IntoIterator<Item = Note>) {
        for note in news {
            self.events.say(owner.object_ref(&()), note);
        }
    }

    async fn own_status(&self, owner: &K, status: &Value, guarded: bool) -> Result<Option<K>, Error> {
        let written = self.status(owner, &self.manager, status, guarded).await?;
        if self.traces.is_on() && becomes_ready(owner, status) {
            self.traces.since_creation(owner.meta(), "Ready");
        }
        Ok(written)
    }

    /// Time after which deletions of a plan are sent again if the watch has not shown them by then, such as after a restore of etcd
    /// from a backup.
    pub(crate) fn resend_after(&self, plan: &Plan) -> Option<Duration> {
        let is_any = plan
            .delete
            .iter()
            .any(|delete| self.deletions.is_under_way(&delete.uid));
        is_any.then_some(echo::LIFE)
    }
}

/// Adds a note. Notes with the same type and reason become one Event.
fn add(news: &mut Vec<Note>, note: Option<&Note>) {
    let Some(note) = note else { return };
    let reported = news
        .iter_mut()
        .find(|n| (n.warning, n.reason) == (note.warning, note.reason));
    match reported {
        Some(reported) if reported.message.split("; ").any(|message| message == note.message) => {}
        Some(reported) => reported.message = format!("{}; {}", reported.message, note.message),
        None => news.push(note.clone()),
    }
}

/// Name of the span of a write. Other requests are a part of the reconcile's span.
fn span_of(step: Step<'_>, plan: &Plan) -> Option<String> {
    Some(match step {
        Step::Delete(delete) => format!("delete {}", delete.resource.kind),
        Step::Apply(apply) => format!("apply {}", apply.resource.kind),
        Step::Edit(edit) => format!("edit {}", edit.resource.kind),
        Step::Status { .. } => match plan.events.first() {
            Some(note) => format!("status: {}", note.reason),
            None => "status".to_owned(),
        },
        _ => return None,
    })
}

/// Whether the condition Ready is true in the new status and was not before.
fn becomes_ready(owner: &impl Serialize, status: &Value) -> bool {
    let ready = |status: &Value| object::condition(status, "Ready").is_some_and(|c| c.is_true());
    ready(status) && !serde_json::to_value(owner).is_ok_and(|owner| ready(&owner["status"]))
}
