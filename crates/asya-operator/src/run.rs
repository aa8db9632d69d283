//! Starts the operator: caches first, then the controller.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

use futures::StreamExt;
use kube::Api;
use kube::runtime::controller::Controller;
use kube::runtime::reflector::Store;
use kube::runtime::{reflector, watcher};
use runway_api::{AsyncActor, labels};
use runway_operator::apply::Executor;
use runway_operator::controller::{self, Waits, Wake};
use runway_operator::events::Events;
use runway_operator::process::Process;
use runway_operator::watch::{key, ready_when_listed, reflect, subject, watched};
use tokio::task::JoinSet;

use crate::caches::Caches;
use crate::configuration::Configuration;
use crate::observe::Context;
use crate::queues::{Id, Keeper};
use crate::reconcile::{Args, reconcile};
use crate::transports::{self, Transports};

/// Runs the operator until the process shuts down. A standby replica keeps its caches filled, so that it can take over at once.
///
/// # Errors
/// If the transports cannot be read.
pub async fn run(process: Process, args: Args) -> Result<(), transports::Error> {
    let configuration = Arc::new(Configuration::load(&args.actors.transport_config)?);
    let client = process.client.clone();
    let events = Events::start(client.clone(), labels::ASYA_MANAGER);
    let executor = Executor::new(client.clone(), labels::ASYA_MANAGER, labels::ASYA_FINALIZER, events)
        .traced(process.traces.clone());
    let (wake, woken) = controller::wake();
    let caches = Caches::new(client.clone(), wake.clone(), executor.children.clone());
    let queues = Arc::new(Keeper::new(&configuration.now(), &args.secrets_dir));

    let targets_listed = process.health.waits_for("the lists of targets");
    let actors_listed = process.health.waits_for("the list of AsyncActors");
    let mut tasks = JoinSet::new();
    tokio::select! {
        () = caches.start(&mut tasks) => targets_listed.done(),
        () = process.shutdown.cancelled() => {
            process.leadership.step_down().await;
            return Ok(());
        }
    }
    let woken_by_queues = wake.clone();
    tasks.spawn(
        queues
            .clone()
            .watch(move |(namespace, name)| woken_by_queues.call(namespace, name)),
    );

    let (store, writer) = reflector::store();
    let actors = reflect(
        watched::<AsyncActor>(Api::all(client), watcher::Config::default()),
        writer,
    );
    tasks.spawn(follow(configuration.clone(), queues.clone(), wake, store.clone()));
    let rivals = Rivals::new(caches.clone(), queues.clone());
    let actors = ready_when_listed(actors, actors_listed).filter_map(move |event| {
        let actor = subject(event).map(|(actor, gone)| {
            rivals.hear(&actor, gone);
            Ok(actor)
        });
        std::future::ready(actor)
    });
    let context = Arc::new(Context {
        caches,
        actors: store.clone(),
        queues,
        configuration,
        settings: Arc::new(args.settings()),
        executor,
    });
    let controller = Controller::for_stream(actors, store).reconcile_on(woken);
    controller::run(controller, &process, Waits::ForOthersToo, context, reconcile).await;
    process.leadership.step_down().await;
    Ok(())
}

/// Requeues all actors when the transports change.
async fn follow(
    configuration: Arc<Configuration>,
    queues: Arc<Keeper>,
    wake: Wake<AsyncActor>,
    actors: Store<AsyncActor>,
) {
    let changed = |transports: &Transports| {
        queues.configure(transports);
        for actor in actors.state() {
            let (namespace, name) = key(actor.as_ref());
            wake.call(&namespace, &name);
        }
    };
    configuration.follow(changed).await;
}

/// Requeues actors when another actor with the same target changes.
struct Rivals {
    caches: Arc<Caches>,
    queues: Arc<Keeper>,
    generations: Mutex<HashMap<Id, Option<i64>>>,
}

impl Rivals {
    fn new(caches: Arc<Caches>, queues: Arc<Keeper>) -> Self {
        Self {
            caches,
            queues,
            generations: Mutex::default(),
        }
    }

    fn hear(&self, actor: &AsyncActor, gone: bool) {
        let id = key(actor);
        let mut known = self.generations.lock().unwrap_or_else(PoisonError::into_inner);
        let changed = if gone {
            known.remove(&id).is_some()
        } else {
            // A deletion is a new generation.
            known.insert(id.clone(), actor.metadata.generation) != Some(actor.metadata.generation)
        };
        drop(known);
        if changed {
            self.caches.wake_rivals(&id);
        }
        if gone {
            self.caches.forget(&id);
            self.queues.forget(&id);
        }
    }
}
