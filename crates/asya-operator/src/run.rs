//! Starts the operator: caches first, then the controller.

use std::future::ready;
use std::sync::Arc;

use futures::StreamExt;
use kube::runtime::controller::Controller;
use kube::runtime::reflector::{self, Store};
use runway_api::{AsyncActor, labels};
use runway_operator::apply::Executor;
use runway_operator::controller::{self, Waits, Wake, unpacked};
use runway_operator::events::Events;
use runway_operator::packed::Packed;
use runway_operator::process::Process;
use runway_operator::watch::{key, ready_when_listed, reflect, subject};
use tokio::task::JoinSet;

use crate::caches::Caches;
use crate::configuration::Configuration;
use crate::observe::Context;
use crate::queues::Keeper;
use crate::reconcile::{Args, reconcile};
use crate::transports::{self, Transports};

/// Runs the operator until the process shuts down. A standby replica keeps its caches filled, so that it can take over at once.
///
/// # Errors
/// If the transports cannot be read.
pub async fn run(process: Process, args: Args) -> Result<(), transports::Error> {
    let configuration = Arc::new(Configuration::load(&args.actors.transports.transport_config)?);
    let client = process.client.clone();
    let events = Events::start(client.clone(), labels::ASYA_MANAGER);
    let executor = Executor::new(client.clone(), labels::ASYA_MANAGER, labels::ASYA_FINALIZER, events)
        .traced(process.traces.clone())
        .within(&process.namespaces);
    let (wake, woken) = controller::wake();
    let caches = Caches::new(&process, wake.clone(), executor.children.clone());
    let queues = Arc::new(Keeper::new(&configuration.now(), &args.secrets.secrets_dir));

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
    let actors = reflect(executor.watch(), writer);
    tasks.spawn(follow(configuration.clone(), queues.clone(), wake, store.clone()));
    let context = Arc::new(Context {
        caches,
        rivals: Arc::default(),
        queues,
        configuration,
        settings: Arc::new(args.settings()),
        executor,
    });
    let reported = context.clone();
    let actors = ready_when_listed(actors, actors_listed).filter_map(move |event| {
        let actor = subject(event).map(|(actor, gone)| {
            report(&reported, &actor, gone);
            Ok(actor)
        });
        ready(actor)
    });
    let controller = Controller::for_stream(actors, store).reconcile_on(woken);
    controller::run(controller, &process, Waits::ForOthersToo, context, unpacked(reconcile)).await;
    process.leadership.step_down().await;
    Ok(())
}

/// Requeues all actors when the transports change.
async fn follow(
    configuration: Arc<Configuration>,
    queues: Arc<Keeper>,
    wake: Wake<Packed<AsyncActor>>,
    actors: Store<Packed<AsyncActor>>,
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

/// Requeues the actors with the same target when the spec of an actor changes, and forgets actors that are gone.
fn report(context: &Context, actor: &Packed<AsyncActor>, gone: bool) {
    let id = key(actor);
    let changed = if gone {
        context.queues.forget(&id);
        context.rivals.forget(&id)
    } else {
        // The reconcile reports the error of an object that cannot be unpacked.
        actor.unpack().is_ok_and(|actor| context.rivals.record(&actor))
    };
    if changed {
        context.caches.wake_rivals(&id);
    }
    if gone {
        context.caches.forget(&id);
    }
}
