//! Starts a provider: caches first, then registration and the controller.

use std::sync::Arc;

use futures::channel::mpsc;
use futures::{StreamExt, stream};
use kube::runtime::controller::Controller;
use kube::runtime::reflector;
use kube::runtime::watcher;
use kube::{Api, Client, ResourceExt};
use runway_api::{ModelDeployment, labels};
use runway_operator::apply::Executor;
use runway_operator::controller;
use runway_operator::events::Events;
use runway_operator::watch::{reflect, subject};
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use crate::caches::Caches;
use crate::contract::Provider;
use crate::reconcile::{Context, reconcile};
use crate::register::keep_registered;

/// Runs a provider until `shutdown`.
pub async fn run(provider: impl Provider, client: Client, shutdown: CancellationToken) {
    let provider: Arc<dyn Provider> = Arc::new(provider);
    let manager = labels::provider_manager(provider.name());
    let events = Events::start(client.clone(), &manager);
    let executor = Arc::new(Executor::new(client.clone(), manager, labels::FINALIZER, events));

    let (wake, woken) = mpsc::unbounded();
    let forget = executor.clone();
    let caches = Caches::new(client.clone(), provider.pod_labels(), wake, move |kind, object| {
        forget
            .children
            .gone(kind.kind, &object.namespace().unwrap_or_default(), &object.name_any());
    });
    let mut tasks = JoinSet::new();
    tokio::select! {
        () = caches.start(provider.as_ref(), &mut tasks) => {}
        () = shutdown.cancelled() => return,
    }
    let registered = tokio::spawn(keep_registered(
        client.clone(),
        provider.clone(),
        caches.clone(),
        shutdown.clone(),
    ));

    let (store, writer) = reflector::store();
    let deployments = reflect::<ModelDeployment>(Api::all(client), watcher::Config::default(), writer)
        .filter_map(|event| async move { subject(&event).map(|(md, _)| Ok(md.clone())) });
    let upstream_changes = stream::unfold(caches.installed_changes(), |mut changes| async move {
        changes.changed().await.ok()?;
        Some(((), changes))
    });
    let controller = Controller::for_stream(deployments, store)
        .reconcile_on(woken)
        .reconcile_all_on(upstream_changes);
    let context = Arc::new(Context {
        provider,
        caches,
        executor,
    });
    controller::run(controller, shutdown, context, reconcile).await;
    // The goodbye is worth waiting for; a panic in it is not.
    let _ = registered.await;
}
