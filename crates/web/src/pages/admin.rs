//! The control plane: versions, leaders, readiness.

use askama::Template;
use axum::response::Response;
use jiff::Timestamp;
use k8s_openapi::api::apps::v1::Deployment;
use k8s_openapi::api::coordination::v1::Lease;
use kube::api::ListParams;
use kube::{Api, ResourceExt};
use runway_manifests::NAMESPACE;
use runway_operator::clock;
use runway_operator::telemetry::chain;

use crate::guard::Asker;
use crate::moment::Moment;
use crate::page::Shell;
use crate::refusal;

struct Program {
    name: String,
    image: String,
    mood: &'static str,
    ready: String,
}

struct Leader {
    name: String,
    holder: String,
    renewed: Option<Moment>,
}

#[derive(Template)]
#[template(path = "admin.html")]
struct Admin {
    shell: Shell,
    version: &'static str,
    kubernetes: String,
    namespace: &'static str,
    programs: Result<Vec<Program>, String>,
    leaders: Result<Vec<Leader>, String>,
}

/// The page.
pub async fn show(Asker(session): Asker) -> Response {
    let view = &session.view;
    let cluster = view.cluster();
    let deployments: Api<Deployment> = Api::namespaced(view.client(), NAMESPACE);
    let leases: Api<Lease> = Api::namespaced(view.client(), NAMESPACE);
    let params = ListParams::default();
    let client = view.client();
    let (deployments, leases, version) = tokio::join!(
        deployments.list(&params),
        leases.list(&params),
        client.apiserver_version()
    );
    let why =
        |error, what: &str| chain(&cluster.explain(error, format!("list {what} in namespace '{NAMESPACE}'"), "it"));
    let now = clock::now();
    refusal::html(&Admin {
        shell: Shell::new(&session, "admin", "Control plane"),
        version: env!("CARGO_PKG_VERSION"),
        kubernetes: version.map_or_else(|e| chain(&e), |v| v.git_version),
        namespace: NAMESPACE,
        programs: deployments
            .map(|l| l.items.iter().map(program).collect())
            .map_err(|e| why(e, "Deployments")),
        leaders: leases
            .map(|l| l.items.iter().map(|lease| leader(lease, now)).collect())
            .map_err(|e| why(e, "Leases")),
    })
}

fn program(deployment: &Deployment) -> Program {
    let wanted = deployment.spec.as_ref().and_then(|s| s.replicas).unwrap_or(1);
    let ready = deployment.status.as_ref().and_then(|s| s.ready_replicas).unwrap_or(0);
    let pods = deployment.spec.as_ref().and_then(|s| s.template.spec.as_ref());
    let image = pods.and_then(|p| p.containers.first()).and_then(|c| c.image.clone());
    Program {
        name: deployment.name_any(),
        image: image.unwrap_or_default(),
        mood: if ready >= wanted { "good" } else { "bad" },
        ready: format!("{ready}/{wanted} ready"),
    }
}

fn leader(lease: &Lease, now: Timestamp) -> Leader {
    let spec = lease.spec.clone().unwrap_or_default();
    Leader {
        name: lease.name_any(),
        holder: spec.holder_identity.unwrap_or_else(|| "nobody".to_owned()),
        renewed: spec.renew_time.map(|t| Moment::new(t.0, now)),
    }
}
