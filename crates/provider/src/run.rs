//! Starts a provider: caches, then registration and the controller.

use std::convert::Infallible;
use std::process::ExitCode;
use std::sync::Arc;

use futures::{Stream, StreamExt, stream};
use kube::runtime::controller::Controller;
use kube::runtime::reflector;
use runway_api::{ModelDeployment, labels};
use runway_operator::apply::Executor;
use runway_operator::controller::{self, Waits, unpacked};
use runway_operator::events::Events;
use runway_operator::packed::Packed;
use runway_operator::process::{self, ControllerArgs, Process};
use runway_operator::watch::{key, mapped, ready_when_listed, reflect, subject};
use tokio::sync::watch;
use tokio::task::JoinSet;

use crate::answers::Answers;
use crate::caches::Caches;
use crate::contract::Provider;
use crate::observe::Context;
use crate::plan;
use crate::probe::ProbeDecision;
use crate::reconcile::reconcile;
use crate::register::keep_registered;

/// Arguments of every provider's controller.
#[derive(Clone, Debug, clap::Args)]
pub struct ProviderArgs {
    #[command(flatten)]
    process: ControllerArgs,
    /// Send each model one request after a rollout, and set Ready only when it has answered. With false, Ready is True as soon
    /// as the pods are ready
    #[arg(long, value_name = "BOOL", default_value_t = true, action = clap::ArgAction::Set)]
    verify_endpoints: bool,
}

/// Main function of a provider's controller.
pub async fn main(provider: impl Provider, args: &ProviderArgs) -> ExitCode {
    let name = provider.name();
    process::controller(&labels::provider_manager(name), name, &args.process, async |process| {
        run(provider, process, args.verify_endpoints).await;
        Ok::<_, Infallible>(())
    })
    .await
}

/// Runs a provider until the process shuts down. A standby replica watches as the leader does, so that it can take over at once.
/// With `verify_endpoints`, Ready is True only after the model has answered a request.
pub async fn run(provider: impl Provider, process: Process, verify_endpoints: bool) {
    let client = process.client.clone();
    let provider: Arc<dyn Provider> = Arc::new(provider);
    let manager = labels::provider_manager(provider.name());
    let events = Events::start(client.clone(), &manager);
    let executor = Executor::new(client.clone(), manager, labels::FINALIZER, events)
        .traced(process.traces.clone())
        .within(&process.namespaces);

    let (wake, woken) = controller::wake();
    let woken_by_answers = wake.clone();
    let caches = Caches::new(&process, provider.clone(), wake, executor.children.clone());
    let services = verify_endpoints.then(|| process.services.clone());
    let answers = Answers::new(services, move |namespace, name| woken_by_answers.call(namespace, name));
    let upstream_listed = process.health.waits_for("the lists of upstream objects");
    let deployments_listed = process.health.waits_for("the list of ModelDeployments");
    let mut tasks = JoinSet::new();
    tokio::select! {
        () = caches.start(&mut tasks) => upstream_listed.done(),
        () = process.shutdown.cancelled() => return process.leadership.step_down().await,
    }
    let registered = process.health.supervise(
        "registration",
        process.shutdown.clone(),
        keep_registered(process.clone(), provider.clone(), caches.clone()),
    );

    let (store, writer) = reflector::store();
    let of = provider.clone();
    let deployments = executor.watch().filter_map(move |event| {
        let keep = |packed: Packed<ModelDeployment>| {
            let least = plan::least(of.as_ref(), packed.unpack().ok()?);
            Some(Packed::from(least).delivered())
        };
        std::future::ready(mapped(event, keep))
    });
    let deployments = reflect(deployments, writer);
    let forgetful = answers.clone();
    let deployments = ready_when_listed(deployments, deployments_listed).filter_map(move |event| {
        let reported = subject(event).map(|(md, gone)| {
            if gone {
                let (namespace, name) = key(&md);
                forgetful.carry_out(&namespace, &name, ProbeDecision::Forget);
            }
            Ok(md)
        });
        std::future::ready(reported)
    });
    let changes = stream::select_all([
        changes(caches.installed_changes()).boxed(),
        changes(caches.settings_changes()).boxed(),
        changes(caches.outages()).boxed(),
        changes(caches.pods_changes()).boxed(),
        changes(caches.releases()).boxed(),
    ]);
    let controller = Controller::for_stream(deployments, store)
        .reconcile_on(woken)
        .reconcile_all_on(changes);
    let context = Arc::new(Context {
        caches,
        executor,
        answers,
    });
    controller::run(controller, &process, Waits::ForApiServer, context, unpacked(reconcile)).await;
    // Waits for the last status; a panic in it is ignored.
    let _ = registered.await;
    process.leadership.step_down().await;
}

/// A message for each change.
fn changes<T: Send + Sync + 'static>(of: watch::Receiver<T>) -> impl Stream<Item = ()> + Send {
    stream::unfold(of, |mut of| async move {
        of.changed().await.ok()?;
        Some(((), of))
    })
}
