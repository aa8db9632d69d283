//! Starts the core controller: the registry first, then the controller.

use std::sync::Arc;

use futures::StreamExt;
use kube::runtime::controller::Controller;
use kube::runtime::{reflector, watcher};
use kube::{Api, Client};
use runway_api::{ModelDeployment, labels};
use runway_operator::apply::Executor;
use runway_operator::controller;
use runway_operator::events::Events;
use runway_operator::watch::{reflect, subject};
use tokio_util::sync::CancellationToken;

use crate::reconcile::{Context, reconcile};
use crate::registry::Registry;

/// Runs the core controller until `shutdown`.
pub async fn run(client: Client, registry: Arc<Registry>, selector_enabled: bool, shutdown: CancellationToken) {
    let (listed, all_seen) = tokio::sync::oneshot::channel();
    let changes = registry.changes();
    let _registry_task =
        tokio_util::task::AbortOnDropHandle::new(tokio::spawn(registry.clone().follow(client.clone(), listed)));
    tokio::select! {
        _ = all_seen => {}
        () = shutdown.cancelled() => return,
    }
    let (store, writer) = reflector::store();
    let deployments = reflect::<ModelDeployment>(Api::all(client.clone()), watcher::Config::default(), writer)
        .filter_map(|event| async move { subject(&event).map(|(md, _)| Ok(md.clone())) });
    let events = Events::start(client.clone(), labels::CORE_MANAGER);
    let executor = Executor::new(client, labels::CORE_MANAGER, labels::FINALIZER, events);
    let context = Arc::new(Context {
        registry,
        selector_enabled,
        executor,
    });
    let controller = Controller::for_stream(deployments, store).reconcile_all_on(changes);
    controller::run(controller, shutdown, context, reconcile).await;
}
