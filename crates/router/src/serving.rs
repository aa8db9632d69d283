//! Waits until a model serves, and connects to its engine.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use runway_api::EventReason;
use runway_api::choice::{Choice, Version};
use runway_operator::clock;
use runway_operator::events::Events;
use runway_operator::plan::Note;
use runway_operator::services::ServicePort;
use runway_operator::store::Change;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::{Instant, sleep, timeout_at};
use tokio_util::sync::CancellationToken;

use crate::balance::Chosen;
use crate::canaries::{Canaries, Responded};
use crate::engine::{self, Connection, Engines};
use crate::metrics::{Counted, CountedForModel, Metrics};
use crate::model::{Model, State};
use crate::models::Models;
use crate::names::Names;
use crate::prompt::Prompt;
use crate::refused::Refused;
use crate::scale::{AGAIN, Scaler};
use crate::table::{self, Key, NotOne};

/// Pause before the second attempt to connect; it doubles with each.
const PAUSE: Duration = Duration::from_millis(50);
/// Longest pause between two attempts.
const LONGEST_PAUSE: Duration = Duration::from_secs(1);

/// Versions of a model that may get a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Versions {
    /// The model and its canaries.
    All,
    /// The model, without its canaries.
    Stable,
}

/// Connects requests to engines, and holds those whose model does not serve yet.
pub struct Serving {
    /// All models.
    pub models: Models,
    /// Connections.
    pub engines: Engines,
    /// Names at the engines.
    pub names: Names,
    /// Canaries that may get requests.
    pub canaries: Canaries,
    /// Reports canaries that are stopped.
    pub events: Events,
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

/// The model of a request, and others that may answer it.
#[derive(Clone, Copy, Debug)]
pub struct Wanted<'a> {
    /// The model.
    pub model: &'a Model,
    /// Versions that may answer.
    pub versions: Versions,
    /// Gets the request while none of them serves.
    pub fallback: Option<&'a Model>,
}

/// A connection to the engine of a model.
pub struct Ready {
    /// The connection.
    pub connection: Connection,
    /// The model that the engine serves: the requested one, its stand-in, its canary, or its fallback.
    pub model: Arc<Model>,
    /// Name of the model at the engine.
    pub name: String,
}

/// A replica for a request that another program sends.
pub struct Picked {
    /// The replica. It has the request in flight until this is dropped.
    pub chosen: Chosen,
    /// The model that the engine serves: the requested one, its stand-in, or its canary.
    pub model: Arc<Model>,
    /// Name of the model at the engine.
    pub name: String,
}

/// Next step of a request.
enum Next {
    /// Connect to the first of these engines that accepts.
    Open(Vec<(Arc<Model>, ServicePort)>),
    /// Wait for news of the model, because of this.
    Wait(String),
}

/// A held request, until it is dropped.
struct Hold {
    _place: OwnedSemaphorePermit,
    _counted: (Counted, CountedForModel),
}

impl Serving {
    /// Connects to the engine of a model, or of the canary that gets this request. If none serves, the request is held, and a model
    /// that is scaled to zero is woken.
    ///
    /// # Errors
    /// The model is gone or has failed, does not serve in time, or too many requests are held.
    pub async fn connect(&self, wanted: Wanted<'_>, prompt: &Prompt) -> Result<Ready, Refused> {
        let Wanted {
            model,
            versions,
            fallback,
        } = wanted;
        let key = table::key(model);
        let number = self.number(model, versions);
        let deadline = Instant::now() + self.longest_hold;
        let mut news = self.models.watch(&key);
        let (mut hold, mut pause) = (None, PAUSE);
        loop {
            let fallback = fallback.and_then(|fallback| self.models.serving(&table::key(fallback)));
            let engines: Vec<_> = match (self.next(&key, number), fallback) {
                (Ok(Next::Open(engines)), fallback) => engines.into_iter().chain(fallback).collect(),
                (_, Some(fallback)) => vec![fallback],
                (Err(refused), None) => return Err(refused),
                (Ok(Next::Wait(obstacle)), None) => {
                    self.hold(&mut hold, model)?;
                    // Without news, a model may sleep again that was awake while the watch was interrupted.
                    let until = deadline.min(Instant::now() + AGAIN);
                    tokio::select! {
                        changed = timeout_at(until, news.changed()) => if changed.is_err() && until == deadline {
                            return Err(self.late(&key, &obstacle));
                        },
                        () = self.closing.cancelled() => return Err(closing()),
                    }
                    continue;
                }
            };
            let mut obstacle = String::new();
            for (model, at) in &engines {
                match Box::pin(self.open(model, at, prompt)).await {
                    Ok(ready) => return Ok(ready),
                    // Not of the stand-in: it comes before its model.
                    Err(error @ engine::Error::NotPods(..)) if key == table::key(model) => {
                        return Err(Refused::not_serving(error.to_string()));
                    }
                    Err(error) => obstacle = error.to_string(),
                }
            }
            // Nothing has been sent. A Service without a ready pod refuses connections.
            self.hold(&mut hold, model)?;
            if Instant::now() + pause > deadline {
                return Err(self.late(&key, &obstacle));
            }
            tokio::select! {
                () = sleep(pause) => pause = LONGEST_PAUSE.min(pause * 2),
                // Such as another endpoint, or a replica that is ready.
                () = news.changed() => pause = PAUSE,
                () = self.closing.cancelled() => return Err(closing()),
            }
        }
    }

    /// Explains which replica a request would go to. Nothing is woken or sent.
    pub fn explain(&self, model: &Arc<Model>, prompt: &Prompt) -> Choice {
        let mut weight = 100;
        let mut versions = Vec::new();
        for canary in self.models.canaries(model) {
            let given = u32::from(canary.weight());
            let is_stopped = !self.canaries.may_serve(&canary);
            let mut version = self.explain_version(&canary, given, prompt);
            if is_stopped {
                "the router has stopped it: see its Events".clone_into(&mut version.obstacle);
            }
            if version.obstacle.is_empty() {
                weight = u32::saturating_sub(weight, given);
            }
            versions.push(version);
        }
        let stand_in = self.models.serving_stand_in(model);
        versions.extend(stand_in.map(|(other, _)| self.explain_version(&other, std::mem::take(&mut weight), prompt)));
        versions.insert(0, self.explain_version(model, weight, prompt));
        Choice {
            model: model.full_name(),
            versions,
        }
    }

    fn explain_version(&self, model: &Model, weight: u32, prompt: &Prompt) -> Version {
        let explained = match &model.state {
            State::Serving(at) => self.engines.explain(at, prompt).map_err(|error| error.to_string()),
            State::Asleep => Err("it is scaled to zero: a request wakes it".to_owned()),
            State::Starting(message) | State::Failed(message) => Err(message.clone()),
        };
        let version = explained.unwrap_or_else(|obstacle| Version {
            obstacle,
            ..Version::default()
        });
        Version {
            name: model.name.to_string(),
            weight,
            ..version
        }
    }

    /// Chooses the replica for a request that another program sends, by the state of the model now. No model is woken.
    ///
    /// # Errors
    /// The model does not serve, or no replica may be chosen.
    pub async fn pick(
        &self,
        model: &Arc<Model>,
        prompt: &Prompt,
        may_be_chosen: impl Fn(SocketAddr) -> bool,
    ) -> Result<Picked, Refused> {
        let name = model.full_name();
        let mut obstacle = match &model.state {
            State::Serving(_) => String::new(),
            State::Starting(message) => format!("model '{name}' does not serve yet: {message}; try again"),
            State::Failed(message) => failed(model, message),
            State::Asleep => format!("model '{name}' is scaled to zero: set spec.scaling.replicas to 1"),
        };
        for (by, at) in self.engines(model, self.number(model, Versions::All)) {
            let picked = async {
                let name = self.names.of(&by, &at, &self.engines).await?;
                let chosen = self.engines.pick(&at, prompt, &may_be_chosen)?;
                Ok::<_, engine::Error>((chosen, name))
            };
            match Box::pin(picked).await {
                Ok((chosen, name)) => {
                    return Ok(Picked {
                        chosen,
                        model: by,
                        name,
                    });
                }
                Err(error) => obstacle = format!("model '{name}' has no replica for the request: {error}; try again"),
            }
        }
        Err(Refused::not_serving(obstacle))
    }

    /// Compares the response of a model, or of its canary, with those of the other.
    pub fn compare(&self, requested: &Model, by: &Model, failed: bool, first_byte: Duration) {
        let is_fallback = by.canary.is_none() && by.stands_in_for.is_none() && by.uid != requested.uid;
        if is_fallback {
            return;
        }
        let by_canary = by.canary.is_some();
        let canaries = if by_canary {
            Vec::from_iter(self.models.get(&table::key(by)))
        } else {
            self.models.canaries(requested)
        };
        let minute = u64::try_from(clock::now().as_second()).unwrap_or_default() / 60;
        let responded = Responded {
            by_canary,
            failed,
            first_byte,
        };
        for canary in canaries {
            let reason = self.canaries.count(&canary, responded, minute);
            self.metrics.canary_stopped(&canary, !self.canaries.may_serve(&canary));
            if let Some(reason) = reason {
                let message = format!(
                    "Stopped at a weight of {} %: {reason}. It gets no more requests until its spec or weight changes",
                    canary.weight()
                );
                self.events
                    .say(canary.reference(), Note::new(EventReason::CanaryStopped, message));
            }
        }
    }

    /// Drops what is known about a model that is gone, or awake.
    pub fn changed(&self, change: &Change<'_, Arc<Model>>) {
        if change.gone {
            self.names.forget(&change.kept.uid);
            self.canaries.forget(&table::key(change.kept));
        }
        if change.gone || change.kept.state != State::Asleep {
            self.scaler.forget(&table::key(change.kept));
        }
    }

    /// The next step of a request, by the state of its model.
    fn next(&self, key: &Key, number: Option<u8>) -> Result<Next, Refused> {
        let Some(model) = self.models.get(key) else {
            return Err(NotOne::None(format!("{}/{}", key.0, key.1)).into());
        };
        let engines = self.engines(&model, number);
        match &model.state {
            State::Serving(_) => Ok(Next::Open(engines)),
            _ if !engines.is_empty() => Ok(Next::Open(engines)),
            State::Starting(message) => Ok(Next::Wait(message.clone())),
            State::Failed(message) => Err(Refused::not_serving(failed(&model, message))),
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

    /// The number of a request for a model that has canaries, if they may get it.
    fn number(&self, model: &Model, versions: Versions) -> Option<u8> {
        let has_canaries = versions == Versions::All && !self.models.canaries(model).is_empty();
        has_canaries.then(|| self.canaries.number(&table::key(model)))
    }

    /// The engines that may get a request of this number for a model: of its stand-in, of its canary, and its own.
    fn engines(&self, model: &Arc<Model>, number: Option<u8>) -> Vec<(Arc<Model>, ServicePort)> {
        let canary = |number| {
            let may_serve = |canary: &Model| self.canaries.may_serve(canary);
            self.models.serving_canary(model, number, may_serve)
        };
        let mut engines = Vec::from_iter(self.models.serving_stand_in(model));
        engines.extend(number.and_then(canary));
        match &model.state {
            State::Serving(at) => engines.push((Arc::clone(model), at.clone())),
            // Requests for a version that does not serve are better answered by its canary than not at all.
            State::Starting(_) | State::Failed(_) if engines.is_empty() => {
                engines.extend(number.and_then(|_| canary(0)));
            }
            _ => {}
        }
        engines
    }

    async fn open(&self, model: &Arc<Model>, at: &ServicePort, prompt: &Prompt) -> Result<Ready, engine::Error> {
        let name = self.names.of(model, at, &self.engines).await?;
        let connection = self.engines.connect(at, prompt).await?;
        Ok(Ready {
            connection,
            model: Arc::clone(model),
            name,
        })
    }

    /// Takes a place, unless the request has one.
    fn hold(&self, hold: &mut Option<Hold>, model: &Model) -> Result<(), Refused> {
        if hold.is_none() {
            let place = Arc::clone(&self.held).try_acquire_owned();
            let place = place.map_err(|_| Refused::busy("too many requests wait for models that start; try again"))?;
            *hold = Some(Hold {
                _place: place,
                _counted: self.metrics.hold(model),
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

fn failed(model: &Model, message: &str) -> String {
    let Model { namespace, name, .. } = model;
    format!(
        "model '{}' has failed: {message}; see: kubeairunway why {name} -n {namespace}",
        model.full_name()
    )
}

fn closing() -> Refused {
    Refused::unavailable("the router shuts down; try again")
}

#[cfg(test)]
mod tests {
    use std::convert::Infallible;
    use std::sync::atomic::{AtomicUsize, Ordering};

    use axum::http::{Method, Request, Response};
    use kube::Client;
    use kube::client::Body;
    use runway_operator::health::Health;
    use runway_operator::scope::Namespaces;
    use serde_json::{Value, json};

    use super::*;
    use crate::engine::loopback;

    /// A cluster whose only model sleeps whatever is written. Its watch says nothing. Counts the writes.
    fn cluster(writes: &Arc<AtomicUsize>) -> Client {
        let writes = Arc::clone(writes);
        let server = tower::service_fn(move |request: Request<Body>| {
            let writes = Arc::clone(&writes);
            async move {
                if request.uri().query().unwrap_or_default().contains("watch=true") {
                    std::future::pending::<()>().await;
                }
                let answer = if request.uri().path().ends_with("/scale") {
                    writes.fetch_add(usize::from(request.method() == Method::PUT), Ordering::SeqCst);
                    scale()
                } else {
                    json!({
                        "apiVersion": "kubeairunway.ai/v1alpha1", "kind": "ModelDeploymentList",
                        "metadata": { "resourceVersion": "1" }, "items": [model()],
                    })
                };
                Ok::<_, Infallible>(Response::new(Body::from(answer.to_string().into_bytes())))
            }
        });
        Client::new(server, "default")
    }

    fn model() -> Value {
        json!({
            "apiVersion": "kubeairunway.ai/v1alpha1", "kind": "ModelDeployment",
            "metadata": { "name": "gemma", "namespace": "team", "uid": "1", "generation": 1, "resourceVersion": "1" },
            "spec": { "model": { "id": "org/gemma" }, "scaling": { "replicas": 0 } },
        })
    }

    fn scale() -> Value {
        json!({
            "apiVersion": "autoscaling/v1", "kind": "Scale",
            "metadata": { "name": "gemma", "namespace": "team", "resourceVersion": "1" },
            "spec": { "replicas": 0 },
        })
    }

    #[tokio::test(start_paused = true)]
    async fn held_request_wakes_a_model_again_that_still_sleeps_without_events() {
        let (writes, models) = (Arc::default(), Models::default());
        let metrics = Arc::new(Metrics::new(1));
        let client = cluster(&writes);
        tokio::spawn({
            let (models, client) = (models.clone(), client.clone());
            models.follow(
                client,
                Namespaces::default(),
                Health::default().waits_for("the list"),
                |_| {},
            )
        });
        while !models.are_known() {
            sleep(Duration::from_millis(1)).await;
        }
        let serving = Serving {
            events: Events::start(client.clone(), "kubeairunway-gateway"),
            scaler: Scaler::new(client, models.clone(), Arc::clone(&metrics)),
            models,
            engines: Engines::new(loopback()),
            names: Names::default(),
            canaries: Canaries::default(),
            metrics,
            held: Arc::new(Semaphore::new(1)),
            longest_hold: AGAIN * 5 / 2,
            closing: CancellationToken::new(),
        };
        let asleep = serving.models.all().remove(0);
        let wanted = Wanted {
            model: &asleep,
            versions: Versions::All,
            fallback: None,
        };
        let begun = Instant::now();
        let refused = format!("{:?}", serving.connect(wanted, &Prompt::default()).await.err());
        assert!(refused.contains("is being woken"), "{refused}");
        assert!(begun.elapsed() >= serving.longest_hold);
        assert_eq!(writes.load(Ordering::SeqCst), 3);
    }
}
