//! The one place that writes.
//!
//! | module | what |
//! |---|---|
//! | `self` | the order in which a plan is carried out |
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
use crate::plan::{Apply, Finalizer, Note, Plan, Rehearsal};
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
        // Guarded writes that follow refer to the object with its finalizer.
        let with_finalizer = match plan.finalizer {
            Finalizer::Add => self.set_finalizer(owner, true).await?,
            _ => None,
        };
        let owner = with_finalizer.as_ref().unwrap_or(owner);
        let (alone, together): (Vec<&Apply>, Vec<&Apply>) =
            plan.apply.iter().filter(|o| !o.unchanged).partition(|o| o.alone);
        if plan.status_first {
            self.rehearse(&together, plan.rehearsal).await?;
            self.own_status(owner, plan, span).await?;
        }
        for delete in &plan.delete {
            let name = || format!("delete {}", delete.resource.kind);
            within(span, name, self.delete(delete)).await?;
        }
        if !plan.status_first {
            self.rehearse(&together, plan.rehearsal).await?;
        }
        self.apply_all(owner, &together, span).await?;
        for edit in &plan.edit {
            let name = || format!("edit {}", edit.resource.kind);
            within(span, name, self.edit(owner, edit)).await?;
        }
        self.rehearse(&alone, Rehearsal::AllButFirst).await?;
        self.apply_all(owner, &alone, span).await?;
        let after_other = match &plan.status_of {
            Some(of) => self.status(owner, &of.manager, &of.status, of.guarded).await?,
            None => None,
        };
        if !plan.status_first {
            self.own_status(after_other.as_ref().unwrap_or(owner), plan, span)
                .await?;
        }
        for note in &plan.events {
            self.events.say(owner.object_ref(&()), note.clone());
        }
        if plan.finalizer == Finalizer::Remove {
            self.set_finalizer(owner, false).await?;
        }
        Ok(())
    }

    async fn own_status(&self, owner: &K, plan: &Plan, span: Option<&Recording>) -> Result<(), Error> {
        let Some(status) = &plan.status else { return Ok(()) };
        let why = || {
            plan.events
                .first()
                .map_or_else(|| "status".to_owned(), |note| format!("status: {}", note.reason))
        };
        within(
            span,
            why,
            self.status(owner, &self.manager, status, plan.status_guarded),
        )
        .await?;
        if self.traces.is_on() && becomes_ready(owner, status) {
            self.traces.since_creation(owner.meta(), "Ready");
        }
        Ok(())
    }

    /// Sends changed objects as a dry run.
    async fn rehearse(&self, changed: &[&Apply], rehearsal: Rehearsal) -> Result<(), Error> {
        let sent = match rehearsal {
            Rehearsal::None => &[],
            Rehearsal::AllButFirst => changed.get(1..).unwrap_or_default(),
            Rehearsal::All => changed,
        };
        for object in sent {
            match self.send(object, true).await {
                // Only a rejection by the API server itself counts.
                Err(error) if !object.rehearsed && error.may_be_for_want_of_another() => {}
                other => drop(other?),
            }
        }
        Ok(())
    }

    /// Applies the changed objects, in order.
    async fn apply_all(&self, owner: &K, changed: &[&Apply], span: Option<&Recording>) -> Result<(), Error> {
        let mut news = Vec::new();
        let mut outcome = Ok(());
        for object in changed {
            let name = || format!("apply {}", object.resource.kind);
            match within(span, name, self.send(object, false)).await {
                Ok(answer) => {
                    self.children.wrote(&object.resource.kind, answer);
                    add(&mut news, object.note.as_ref());
                }
                Err(error) => {
                    outcome = Err(error);
                    break;
                }
            }
        }
        for note in news {
            self.events.say(owner.object_ref(&()), note);
        }
        outcome
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

/// One write, as a span of its own.
async fn within<T>(
    span: Option<&Recording>,
    name: impl FnOnce() -> String,
    write: impl Future<Output = Result<T, Error>>,
) -> Result<T, Error> {
    let mut step = span.and_then(|span| span.within(name()));
    let done = write.await;
    if let (Some(step), Err(error)) = (&mut step, &done) {
        step.failed(error);
    }
    done
}

/// Whether the condition Ready is true in the new status and was not before.
fn becomes_ready(owner: &impl Serialize, status: &Value) -> bool {
    let ready = |status: &Value| object::condition(status, "Ready").is_some_and(|c| c.is_true());
    ready(status) && !serde_json::to_value(owner).is_ok_and(|owner| ready(&owner["status"]))
}
