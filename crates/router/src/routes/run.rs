//! Starts the routes controller.

use std::future::ready;
use std::sync::Arc;

use futures::StreamExt as _;
use kube::runtime::controller::Controller;
use kube::runtime::reflector;
use runway_api::labels;
use runway_operator::apply::Executor;
use runway_operator::controller::{self, Waits, unpacked};
use runway_operator::events::Events;
use runway_operator::process::Process;
use runway_operator::watch::{ready_when_listed, reflect, subject};
use tokio::task::JoinSet;

use super::caches::Caches;
use super::observe::Context;
use super::reconcile::reconcile;
use super::settings::Settings;

/// Runs the routes controller until the process shuts down. A standby replica watches as the leader does, to take over at once.
pub async fn run(process: Process, settings: Settings) {
    match settings.gateways.as_slice() {
        [] if settings.delete => tracing::info!("deleting everything that was created for a Gateway"),
        [] => tracing::warn!("no --gateway: nothing is created, changed or deleted; set --gateway=NAMESPACE/NAME"),
        [gateway] => tracing::info!(%gateway, "creating routes"),
        _ => tracing::warn!("several --gateway: no routes are created or changed; use one"),
    }
    let client = process.client.clone();
    let deployments_listed = process.health.waits_for("the list of ModelDeployments");
    let routes_listed = process.health.waits_for("the lists of HTTPRoutes and InferencePools");
    let events = Events::start(client.clone(), labels::GATEWAY_MANAGER);
    let executor = Executor::new(client.clone(), labels::GATEWAY_MANAGER, labels::FINALIZER, events)
        .traced(process.traces.clone())
        .within(&process.namespaces);
    let (wake, woken) = controller::wake();
    let settings = Arc::new(settings);
    let caches = Caches::new(&process, settings.clone(), wake, executor.children.clone());
    let mut tasks = JoinSet::new();
    tokio::select! {
        () = caches.start(&mut tasks) => routes_listed.done(),
        () = process.shutdown.cancelled() => return process.leadership.step_down().await,
    }
    let (store, writer) = reflector::store();
    let deployments = reflect(executor.watch(), writer);
    let known = caches.clone();
    let deployments = ready_when_listed(deployments, deployments_listed).filter_map(move |event| {
        let subject = subject(event);
        if let Some((md, is_gone)) = &subject {
            known.take_in(md, *is_gone);
        }
        ready(subject.map(|(md, _)| Ok(md)))
    });
    let controller = Controller::for_stream(deployments, store)
        .reconcile_all_on(caches.changes())
        .reconcile_on(woken);
    let context = Arc::new(Context {
        settings,
        caches,
        executor,
    });
    controller::run(controller, &process, Waits::ForApiServer, context, unpacked(reconcile)).await;
    process.leadership.step_down().await;
}
