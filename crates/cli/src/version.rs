//! `version`: versions of this command and in the cluster.

use clap::Args;
use k8s_openapi::api::apps::v1::Deployment;
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::{Api, ResourceExt};
use runway_client::cluster::{self, Cluster};
use runway_client::components;
use runway_client::diagnostic::{Diagnostic, Level};
use runway_client::text::Format;
use runway_client::text::{aligned, table};
use runway_manifests as manifests;
use runway_operator::client::ClientArgs;
use serde::Serialize;

use crate::answer::{Answer, Error};
use crate::install::report;
use runway_client::text;

/// Arguments of `version`.
#[derive(Debug, Args)]
pub struct VersionArgs {
    /// Show only the version of this command, without contacting a cluster
    #[arg(long = "client")]
    pub client_only: bool,
    /// Output format; text for people if omitted
    #[arg(short, long, value_enum)]
    pub output: Option<Format>,
}

/// Versions of the command and in the cluster.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct Versions {
    /// This command.
    client: &'static str,
    /// Versions in the cluster; absent with `--client`, or if the cluster does not respond.
    #[serde(flatten, skip_serializing_if = "Option::is_none")]
    cluster: Option<InCluster>,
}

#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct InCluster {
    /// Version of Kubernetes.
    kubernetes: String,
    controllers: Vec<Controller>,
    crds: Vec<Crd>,
}

#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct Controller {
    name: String,
    /// Version by its label.
    version: String,
    /// Image.
    image: String,
}

#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct Crd {
    name: String,
    /// The versions it is served in.
    served: Vec<String>,
    /// The version it is stored in.
    stored: String,
}

/// The versions of all there is; a cluster that cannot be read leaves that of the command.
///
/// # Errors
/// The result cannot be written.
pub async fn version(args: &VersionArgs, client: &ClientArgs) -> Result<Answer, Error> {
    let mut versions = Versions {
        client: env!("CARGO_PKG_VERSION"),
        cluster: None,
    };
    let mut talk = Vec::new();
    if !args.client_only {
        match in_cluster(client).await {
            Ok(found) => {
                talk.extend(found.controllers.iter().filter_map(apart));
                versions.cluster = Some(found);
            }
            // The version of the command is known without a cluster.
            Err(error) => talk.push(Diagnostic {
                level: Level::Note,
                ..Diagnostic::error(&error)
            }),
        }
    }
    let data = match args.output {
        Some(format) => text::documents(std::slice::from_ref(&versions), format)?,
        None => screen(&versions),
    };
    Ok(Answer {
        data,
        talk,
        ..Answer::default()
    })
}

async fn in_cluster(client: &ClientArgs) -> Result<InCluster, cluster::Error> {
    let cluster = Cluster::connect(client).await?;
    let failed = |error, doing: &str| cluster.explain(error, doing.to_owned(), "it");
    let server = cluster.client().apiserver_version().await;
    let server = server.map_err(|e| failed(e, "read the server's version"))?;
    let deployments = components::deployments(&cluster).await?;
    let crds = Api::<CustomResourceDefinition>::all(cluster.client());
    let mut found = Vec::new();
    for known in manifests::all_crds() {
        let crd = crds.get_opt(&known.name_any()).await;
        found.extend(crd.map_err(|e| failed(e, "read CustomResourceDefinitions"))?);
    }
    Ok(InCluster {
        kubernetes: server.git_version,
        controllers: deployments.iter().map(controller).collect(),
        crds: found.iter().map(crd).collect(),
    })
}

fn controller(deployment: &Deployment) -> Controller {
    let pod = deployment.spec.as_ref().and_then(|spec| spec.template.spec.as_ref());
    let image = pod.and_then(|pod| pod.containers.first()?.image.clone());
    Controller {
        name: deployment.name_any(),
        version: report::version(deployment),
        image: image.unwrap_or_default(),
    }
}

fn crd(crd: &CustomResourceDefinition) -> Crd {
    let versions = &crd.spec.versions;
    let stored = versions.iter().find(|version| version.storage);
    Crd {
        name: crd.name_any(),
        served: versions.iter().filter(|v| v.served).map(|v| v.name.clone()).collect(),
        stored: stored.map(|version| version.name.clone()).unwrap_or_default(),
    }
}

/// A controller of another version than the command.
fn apart(controller: &Controller) -> Option<Diagnostic> {
    let own = env!("CARGO_PKG_VERSION");
    let differs = controller.version.trim_start_matches('v') != own;
    let text = format!(
        "version {} differs from this command ({own}): to upgrade, run: kubeairunway controller upgrade",
        controller.version
    );
    differs.then(|| Diagnostic::about(Level::Warning, controller.name.clone(), text))
}

fn screen(versions: &Versions) -> String {
    let mut rows = table(&["COMPONENT", "VERSION", "SOURCE"]);
    rows.add_row(vec!["kubeairunway", versions.client, "this command"]);
    if let Some(cluster) = &versions.cluster {
        rows.add_row(vec!["Kubernetes", &cluster.kubernetes, "the cluster"]);
        for controller in &cluster.controllers {
            rows.add_row(vec![&controller.name, &controller.version, &controller.image]);
        }
        for crd in &cluster.crds {
            rows.add_row(vec![
                &crd.name,
                &crd.served.join(", "),
                &format!("stored as {}", crd.stored),
            ]);
        }
    }
    aligned(&rows)
}
