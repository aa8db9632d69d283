//! Starts the core controller: the registry first, then the controller.

use std::future::ready;
use std::sync::Arc;

use futures::StreamExt;
use kube::runtime::controller::Controller;
use kube::runtime::reflector;
use runway_api::labels;
use runway_operator::apply::Executor;
use runway_operator::controller::{self, Waits, unpacked};
use runway_operator::events::Events;
use runway_operator::process::Process;
use runway_operator::watch::{ready_when_listed, reflect, subject};
use tokio::task::JoinSet;
use tokio_util::task::AbortOnDropHandle;

use crate::caches::Caches;
use crate::metrics::Deployments;
use crate::observe::Context;
use crate::reconcile::reconcile;
use crate::registry::Registry;

/// Runs the core controller until the process shuts down. A standby replica watches as the leader does: it needs the registered
/// providers for admission, and the ModelDeployments to take over at once.
pub async fn run(process: Process, registry: Arc<Registry>, selector_enabled: bool) {
    let client = process.client.clone();
    let (listed, all_seen) = tokio::sync::oneshot::channel();
    let changes = registry.changes();
    let _registry_task = AbortOnDropHandle::new(process.health.supervise(
        "the watch of InferenceProviderConfigs",
        process.shutdown.clone(),
        registry.clone().follow(process.clone(), listed),
    ));
    let deployments_listed = process.health.waits_for("the list of ModelDeployments");
    let autoscalers_listed = process.health.waits_for("the lists of autoscalers");
    let events = Events::start(client.clone(), labels::CORE_MANAGER);
    let executor = Executor::new(client.clone(), labels::CORE_MANAGER, labels::FINALIZER, events)
        .traced(process.traces.clone())
        .within(&process.namespaces);
    let (wake, woken) = controller::wake();
    let caches = Caches::new(&process, wake, executor.children.clone());
    let mut tasks = JoinSet::new();
    tokio::select! {
        _ = async { tokio::join!(all_seen, caches.start(&mut tasks)) } => autoscalers_listed.done(),
        () = process.shutdown.cancelled() => return process.leadership.step_down().await,
    }
    let (store, writer) = reflector::store();
    let deployments = reflect(executor.watch(), writer);
    let deployments = ready_when_listed(deployments, deployments_listed)
        .filter_map(|event| ready(subject(event).map(|(md, _)| Ok(md))));
    process
        .metrics
        .collect(Deployments::new(store.clone(), process.leadership.clone()));
    let controller = Controller::for_stream(deployments, store)
        .reconcile_all_on(changes)
        .reconcile_all_on(caches.keda_changes())
        .reconcile_on(woken);
    let context = Arc::new(Context {
        registry,
        selector_enabled,
        caches,
        executor,
    });
    controller::run(controller, &process, Waits::ForApiServer, context, unpacked(reconcile)).await;
    process.leadership.step_down().await;
}
