//! Waits until a model serves, and connects to its engine.

use std::sync::Arc;
use std::time::Duration;

use runway_operator::services::ServicePort;
use runway_operator::store::Change;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::{Instant, sleep, timeout_at};
use tokio_util::sync::CancellationToken;

use crate::engine::{self, Connection, Engines};
use crate::metrics::{Counted, Metrics};
use crate::model::{Model, State};
use crate::models::Models;
use crate::names::Names;
use crate::refused::Refused;
use crate::scale::Scaler;
use crate::table::{Key, NotOne, key};

/// Pause before the second attempt to connect; it doubles with each.
const PAUSE: Duration = Duration::from_millis(50);
/// Longest pause between two attempts.
const LONGEST_PAUSE: Duration = Duration::from_secs(1);

/// Connects requests to engines, and holds those whose model does not serve yet.
pub struct Serving {
    /// All models.
    pub models: Models,
    /// Connections.
    pub engines: Engines,
    /// Names at the engines.
    pub names: Names,
    /// Wakes models.
    pub scaler: Arc<Scaler>,
    /// Metrics.
    pub metrics: Arc<Metrics>,
    /// Places of held requests.
    pub held: Arc<Semaphore>,
    /// Longest time for which a request is held.
    pub longest_hold: Duration,
    /// Cancelled shortly before the process ends: requests are not held any longer.
    pub closing: CancellationToken,
}

/// A connection to the engine of a model.
pub struct Ready {
    /// The connection.
    pub connection: Connection,
    /// Name of the model at the engine.
    pub name: String,
}

/// Next step of a request.
enum Next {
    /// Connect to the engine.
    Open(Arc<Model>, ServicePort),
    /// Wait for news of the model, because of this.
    Wait(String),
}

/// A held request, until it is dropped.
struct Hold {
    _place: OwnedSemaphorePermit,
    _counted: Counted,
}

impl Serving {
    /// Connects to the engine of a model. If it does not serve, the request is held, and a model that is scaled to zero is woken.
    ///
    /// # Errors
    /// The model is gone or has failed, does not serve in time, or too many requests are held.
    pub async fn connect(&self, model: &Model) -> Result<Ready, Refused> {
        let key = key(model);
        let deadline = Instant::now() + self.longest_hold;
        let mut news = self.models.watch(&key);
        let (mut hold, mut pause) = (None, PAUSE);
        loop {
            let (model, at) = match self.next(&key)? {
                Next::Open(model, at) => (model, at),
                Next::Wait(obstacle) => {
                    self.hold(&mut hold)?;
                    tokio::select! {
                        changed = timeout_at(deadline, news.changed()) => {
                            changed.map_err(|_| self.late(&key, &obstacle))?;
                        }
                        () = self.closing.cancelled() => return Err(closing()),
                    }
                    continue;
                }
            };
            let obstacle = match Box::pin(self.open(&model, &at)).await {
                Ok(ready) => return Ok(ready),
                Err(error) => error.to_string(),
            };
            // Nothing has been sent. A Service without a ready pod refuses connections.
            self.hold(&mut hold)?;
            if Instant::now() + pause > deadline {
                return Err(self.late(&key, &obstacle));
            }
            tokio::select! {
                () = sleep(pause) => pause = LONGEST_PAUSE.min(pause * 2),
                () = self.closing.cancelled() => return Err(closing()),
            }
        }
    }

    /// Drops what is known about a model that is gone, or awake.
    pub fn changed(&self, change: &Change<'_, Arc<Model>>) {
        if change.gone {
            self.names.forget(&change.kept.uid);
        }
        if change.gone || change.kept.state != State::Asleep {
            self.scaler.forget(&key(change.kept));
        }
    }

    /// The next step of a request, by the state of its model.
    fn next(&self, key: &Key) -> Result<Next, Refused> {
        let Some(model) = self.models.get(key) else {
            return Err(NotOne::None(format!("{}/{}", key.0, key.1)).into());
        };
        match &model.state {
            State::Serving(at) => {
                let at = at.clone();
                Ok(Next::Open(model, at))
            }
            State::Starting(message) => Ok(Next::Wait(message.clone())),
            State::Failed(message) => Err(Refused::not_serving(format!(
                "model '{0}' has failed: {message}; see: kubeairunway why {1} -n {2}",
                model.full_name(),
                model.name,
                model.namespace
            ))),
            State::Asleep => {
                self.scaler.wake(key).map_err(|error| {
                    Refused::not_serving(format!(
                        "model '{}' is scaled to zero and cannot be woken: {error}; set spec.scaling.replicas to 1",
                        model.full_name()
                    ))
                })?;
                Ok(Next::Wait("it is scaled to zero, and is being woken".to_owned()))
            }
        }
    }

    async fn open(&self, model: &Model, at: &ServicePort) -> Result<Ready, engine::Error> {
        let name = self.names.of(model, at, &self.engines).await?;
        let connection = self.engines.connect(at).await?;
        Ok(Ready { connection, name })
    }

    /// Takes a place, unless the request has one.
    fn hold(&self, hold: &mut Option<Hold>) -> Result<(), Refused> {
        if hold.is_none() {
            let place = Arc::clone(&self.held).try_acquire_owned();
            let place = place.map_err(|_| Refused::busy("too many requests wait for models that start; try again"))?;
            *hold = Some(Hold {
                _place: place,
                _counted: self.metrics.hold(),
            });
        }
        Ok(())
    }

    fn late(&self, key: &Key, obstacle: &str) -> Refused {
        let seconds = self.longest_hold.as_secs();
        Refused::not_serving(format!(
            "model '{}/{}' did not serve within {seconds} seconds: {obstacle}; try again, or see: kubeairunway why {1} -n {0}",
            key.0, key.1
        ))
    }
}

fn closing() -> Refused {
    Refused::unavailable("the router shuts down; try again")
}
