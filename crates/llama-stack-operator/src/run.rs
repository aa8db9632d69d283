//! Starts the operator: caches first, then the controller.

use std::future::ready;
use std::sync::Arc;

use futures::StreamExt;
use k8s_openapi::api::core::v1::Pod;
use kube::runtime::controller::Controller;
use kube::runtime::reflector;
use kube::{Api, Client, ResourceExt};
use runway_api::labels::llama_stack as labels;
use runway_operator::apply::Executor;
use runway_operator::controller::{self, Waits, unpacked};
use runway_operator::events::Events;
use runway_operator::process::Process;
use runway_operator::watch::{ready_when_listed, reflect, subject};
use tokio::task::JoinSet;

use crate::caches::Caches;
use crate::observe::Context;
use crate::reconcile::reconcile;
use crate::settings::{POD_USER, Settings};

/// Arguments and environment of the operator.
#[derive(Clone, Debug, clap::Args)]
pub struct RunArgs {
    /// Image of the operator, which runs merge-config in pods. Default: the image of its own pod
    #[arg(long, value_name = "IMAGE", env = "OPERATOR_IMAGE")]
    operator_image: Option<String>,
    /// Image of a distribution, such as starter=registry.example/starter:1. Repeatable; replaces known names
    #[arg(long, value_name = "NAME=IMAGE", value_parser = distribution)]
    distribution_image: Vec<(String, String)>,
    /// Create a NetworkPolicy for every server, not only if spec.network.allowedFrom is set
    #[arg(long)]
    network_policies: bool,
    /// Disk space on a node for the external providers of a pod
    #[arg(long, value_name = "QUANTITY", default_value = "2Gi")]
    provider_volume_size: String,
    /// Domain of the cluster's Services.
    #[arg(long, value_name = "DOMAIN", default_value = "cluster.local")]
    cluster_domain: String,
    /// User and volume group of pods: auto, none, or a number. auto is 1001, and none on OpenShift, which assigns them
    #[arg(long, value_name = "USER", default_value = "auto", value_parser = pod_user)]
    pod_user: PodUser,
    /// Name of the operator's own pod.
    #[arg(long, value_name = "NAME", env = "POD_NAME", hide = true)]
    pod_name: Option<String>,
    /// Namespace of the operator's own pod.
    #[arg(long, value_name = "NAMESPACE", env = "POD_NAMESPACE", hide = true)]
    pod_namespace: Option<String>,
    /// Name of the operator's container in its own pod.
    #[arg(
        long,
        value_name = "NAME",
        env = "CONTAINER_NAME",
        default_value = "manager",
        hide = true
    )]
    container_name: String,
}

/// Value of --pod-user.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum PodUser {
    Auto,
    None,
    Id(i64),
}

fn pod_user(text: &str) -> Result<PodUser, String> {
    match text {
        "auto" => Ok(PodUser::Auto),
        "none" => Ok(PodUser::None),
        // The range of a user id in Kubernetes; 0 is root, which runAsNonRoot excludes.
        number => match number.parse() {
            Ok(id) if (1..=i64::from(i32::MAX)).contains(&id) => Ok(PodUser::Id(id)),
            _ => Err("expected auto, none, or a user id of at least 1".to_owned()),
        },
    }
}

/// API group of OpenShift's SecurityContextConstraints.
const OPENSHIFT: &str = "security.openshift.io";

fn distribution(text: &str) -> Result<(String, String), String> {
    match text.split_once('=') {
        Some((name, image)) if !name.is_empty() && !image.is_empty() && !image.contains(char::is_whitespace) => {
            Ok((name.to_owned(), image.to_owned()))
        }
        _ => Err("expected NAME=IMAGE, such as starter=registry.example/starter:1".to_owned()),
    }
}

/// Whether the cluster assigns users to pods, as OpenShift does.
///
/// # Errors
/// If the API groups cannot be listed.
pub async fn assigns_users(client: &Client) -> kube::Result<bool> {
    let served = client.list_api_groups().await?;
    Ok(served.groups.iter().any(|group| group.name == OPENSHIFT))
}

impl RunArgs {
    /// The settings. Reads the operator's own pod once if the image is not given.
    pub async fn settings(&self, client: &Client) -> Settings {
        let own_image = match self.operator_image {
            Some(_) => None,
            None => self.own_image(client).await,
        };
        let assigns_users = self.pod_user == PodUser::Auto
            && assigns_users(client).await.unwrap_or_else(|error| {
                tracing::warn!(%error, "cannot list API groups, so pods get the user of clusters other than OpenShift: set --pod-user");
                false
            });
        let settings = self.settings_with(own_image, assigns_users);
        if settings.operator_image.is_none() {
            tracing::warn!(
                "the operator's own image is not known, so external providers are refused: set POD_NAME, POD_NAMESPACE and CONTAINER_NAME, or --operator-image"
            );
        }
        settings
    }

    /// The settings of an operator that runs this image, in a cluster that assigns users to pods or does not.
    pub fn settings_with(&self, own_image: Option<String>, assigns_users: bool) -> Settings {
        let mut settings = Settings {
            operator_image: self.operator_image.clone().or(own_image),
            operator_namespace: self.pod_namespace.clone(),
            network_policies: self.network_policies,
            provider_volume_size: self.provider_volume_size.clone(),
            cluster_domain: self.cluster_domain.clone(),
            pod_user: match self.pod_user {
                PodUser::Id(id) => Some(id),
                PodUser::None => None,
                PodUser::Auto => (!assigns_users).then_some(POD_USER),
            },
            ..Settings::default()
        };
        settings.distributions.extend(self.distribution_image.iter().cloned());
        settings
    }

    async fn own_image(&self, client: &Client) -> Option<String> {
        let (name, namespace) = (self.pod_name.as_ref()?, self.pod_namespace.as_ref()?);
        let pods: Api<Pod> = Api::namespaced(client.clone(), namespace);
        let pod = pods
            .get(name)
            .await
            .inspect_err(|error| tracing::warn!(%error, "cannot read the operator's own pod"))
            .ok()?;
        let containers = pod.spec?.containers;
        let own = containers.into_iter().find(|c| c.name == self.container_name)?;
        own.image
    }
}

/// Runs the operator until the process shuts down. A standby replica keeps its caches filled, so that it can take over at once.
pub async fn run(process: Process, settings: Settings) {
    let client = process.client.clone();
    let events = Events::start(client.clone(), labels::MANAGER);
    // No finalizer: everything is owned.
    let executor = Executor::new(client.clone(), labels::MANAGER, "", events).within(&process.namespaces);

    let (wake, woken) = controller::wake();
    let (store, writer) = reflector::store();
    let caches = Caches::new(&process, wake, executor.children.clone(), store.clone());
    let objects_listed = process.health.waits_for("the lists of our objects");
    let llsds_listed = process.health.waits_for("the list of LlamaStackDistributions");
    let mut tasks = JoinSet::new();
    tokio::select! {
        () = caches.start(&mut tasks) => objects_listed.done(),
        () = process.shutdown.cancelled() => return process.leadership.step_down().await,
    }
    let llsds = reflect(executor.watch(), writer);
    let forgetful = caches.clone();
    let llsds = ready_when_listed(llsds, llsds_listed).filter_map(move |event| {
        let reported = subject(event).map(|(llsd, gone)| {
            if gone {
                forgetful.forget(&llsd.namespace().unwrap_or_default(), &llsd.name_any());
            }
            Ok(llsd)
        });
        ready(reported)
    });
    let controller = Controller::for_stream(llsds, store).reconcile_on(woken);
    let context = Arc::new(Context {
        settings: Arc::new(settings),
        caches,
        executor,
    });
    controller::run(controller, &process, Waits::ForOthersToo, context, unpacked(reconcile)).await;
    process.leadership.step_down().await;
}
