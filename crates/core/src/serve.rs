//! Starts the admission server: certificates, the server, and the CA bundle in the webhook configurations.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::http::Uri;
use k8s_openapi::api::admissionregistration::v1::{MutatingWebhookConfiguration, ValidatingWebhookConfiguration};
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use runway_api::labels;
use runway_http::Limits;
use runway_operator::clock;
use runway_operator::process::Process;
use runway_operator::webhook::bundle::CONVERSION;
use runway_operator::webhook::{self, Authority, Endpoint, Lifetimes, Settings, Target, keep_bundle};
use tokio::net::TcpListener;
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

use crate::admission::handlers::{self, MUTATE_PATH, VALIDATE_PATH};
use crate::admission::manifests::{
    MUTATING_CONFIGURATION, MUTATING_WEBHOOK, VALIDATING_CONFIGURATION, VALIDATING_WEBHOOK,
};
use crate::conversion::{self, CONVERT_PATH};
use crate::registry::Registry;

/// Address of the admission server, and how the API server reaches it.
#[derive(Clone, Debug, clap::Args)]
pub struct WebhookArgs {
    /// Address to serve admission on
    #[arg(long, value_name = "ADDRESS", default_value = "0.0.0.0:9443")]
    pub webhook_address: SocketAddr,
    /// URL of the admission server for a controller outside the cluster. Without it, the API server uses the Service
    #[arg(long, value_name = "URL")]
    pub webhook_url: Option<String>,
    /// Service of the admission server
    #[arg(long, value_name = "NAME", default_value = "kubeairunway-webhook")]
    pub webhook_service: String,
    /// Namespace of the Service and of the Secret with the certificate authority
    #[arg(
        long,
        value_name = "NAMESPACE",
        default_value = labels::SYSTEM_NAMESPACE,
        env = "POD_NAMESPACE"
    )]
    pub webhook_namespace: String,
    /// Secret with the certificate authority; the only Secret that this controller reads
    #[arg(long, value_name = "NAME", default_value = "kubeairunway-webhook-ca")]
    pub webhook_secret: String,
}

/// Reason why admission cannot be served.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The address is in use or does not belong to this host.
    #[error("cannot serve admission on {address}: choose another with --webhook-address")]
    Listen {
        /// Requested address.
        address: SocketAddr,
        /// Error of the operating system.
        source: std::io::Error,
    },
    /// TLS cannot be configured.
    #[error("cannot set up TLS for admission")]
    Tls(#[from] rustls::Error),
}

impl WebhookArgs {
    fn endpoint(&self) -> Endpoint {
        match &self.webhook_url {
            Some(url) => Endpoint::Url(url.clone()),
            None => Endpoint::Service {
                namespace: self.webhook_namespace.clone(),
                name: self.webhook_service.clone(),
                port: 443,
            },
        }
    }

    /// Host names by which the API server connects.
    fn names(&self) -> Vec<String> {
        if let Some(url) = &self.webhook_url {
            return vec![host(url)];
        }
        let service = format!("{}.{}.svc", self.webhook_service, self.webhook_namespace);
        vec![format!("{service}.cluster.local"), service]
    }
}

/// The host of a URL, without the brackets of an IPv6 address.
fn host(url: &str) -> String {
    let uri: Option<Uri> = url.parse().ok();
    let host = uri.as_ref().and_then(Uri::host).unwrap_or(url);
    host.trim_matches(['[', ']']).to_owned()
}

/// Time that a terminating replica continues to respond if the API server connects through a Service: endpoints are updated with
/// a delay.
const LAME_DUCK: Duration = Duration::from_secs(5);

/// Serves admission in every replica until the process shuts down. The task ends after the last response.
///
/// # Errors
///
/// The address cannot be used, or TLS cannot be configured.
pub async fn admission(
    process: &Process,
    args: &WebhookArgs,
    registry: Arc<Registry>,
) -> Result<JoinHandle<()>, Error> {
    let address = args.webhook_address;
    let listener = TcpListener::bind(address)
        .await
        .map_err(|source| Error::Listen { address, source })?;
    let authority = Authority::new(
        process.client.clone(),
        Settings {
            namespace: args.webhook_namespace.clone(),
            secret: args.webhook_secret.clone(),
            names: args.names(),
            field_manager: labels::CORE_MANAGER.to_owned(),
            lifetimes: Lifetimes::default(),
            clock: clock::now,
        },
    );
    let tls = authority.tls()?;
    keep_current(process, args, authority);

    let (router, limits) = served(handlers::router(
        move || registry.current(),
        process.namespaces.clone(),
        process.traces.clone(),
    ));
    let shutdown = process.shutdown.clone();
    let end = CancellationToken::new();
    let (behind_service, last_request) = (args.webhook_url.is_none(), end.clone());
    tokio::spawn(async move {
        shutdown.cancelled().await;
        if behind_service {
            tokio::time::sleep(LAME_DUCK).await;
        }
        end.cancel();
    });
    Ok(process
        .health
        .supervise("the admission server", process.shutdown.clone(), async move {
            runway_http::serve(listener, Some(tls), router, limits, last_request).await;
        }))
}

/// Router for admission, and for conversion if the CRD has several versions.
fn served(admission: Router) -> (Router, Limits) {
    if !conversion::is_needed() {
        return (admission, Limits::WEBHOOK);
    }
    let converts = webhook::conversion::router(CONVERT_PATH, conversion::convert);
    let limits = Limits {
        body: webhook::conversion::MAX_BODY,
        // Timeout of the API server for a conversion.
        request: Some(Duration::from_secs(30)),
        ..Limits::WEBHOOK
    };
    (admission.merge(converts), limits)
}

/// Keeps the certificates and the CA bundle in both webhook configurations current. Replicas share the authority and write the
/// same.
fn keep_current(process: &Process, args: &WebhookArgs, authority: Authority) {
    let Process {
        client,
        shutdown,
        health,
        ..
    } = process;
    let bundle = authority.bundle();
    let target = |configuration: &str, webhook: &str, path: &str| Target {
        configuration: configuration.to_owned(),
        webhooks: vec![(webhook.to_owned(), path.to_owned())],
        endpoint: args.endpoint(),
        field_manager: labels::CORE_MANAGER.to_owned(),
    };
    let mutating = target(MUTATING_CONFIGURATION, MUTATING_WEBHOOK, MUTATE_PATH);
    let validating = target(VALIDATING_CONFIGURATION, VALIDATING_WEBHOOK, VALIDATE_PATH);
    health.supervise(
        "the keeper of the mutating webhook",
        shutdown.clone(),
        keep_bundle::<MutatingWebhookConfiguration>(client.clone(), mutating, bundle.clone(), shutdown.clone()),
    );
    health.supervise(
        "the keeper of the validating webhook",
        shutdown.clone(),
        keep_bundle::<ValidatingWebhookConfiguration>(client.clone(), validating, bundle.clone(), shutdown.clone()),
    );
    if conversion::is_needed() {
        let crd = target(conversion::crd_name(), CONVERSION, CONVERT_PATH);
        health.supervise(
            "the keeper of the conversion webhook",
            shutdown.clone(),
            keep_bundle::<CustomResourceDefinition>(client.clone(), crd, bundle.clone(), shutdown.clone()),
        );
    }
    let refused = authority.refused();
    health.ready_unless(move || refused().map(|why| format!("the certificate of the admission server: {why}")));
    health.supervise(
        "the keeper of the webhook's certificates",
        shutdown.clone(),
        authority.run(shutdown.clone()),
    );
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn conversion_is_served_only_while_the_crd_has_versions_to_convert_between() {
        use tower::ServiceExt as _;
        assert!(
            !conversion::is_needed(),
            "then it is served, and this test has to ask for it"
        );
        let request = axum::http::Request::post(CONVERT_PATH)
            .body(axum::body::Body::from("{}"))
            .unwrap();
        let answer = served(Router::new()).0.oneshot(request).await.unwrap();
        assert_eq!(answer.status(), axum::http::StatusCode::NOT_FOUND);
    }

    #[test]
    fn the_certificate_is_for_the_host_of_the_url() {
        assert_eq!(host("https://127.0.0.1:9443"), "127.0.0.1");
        assert_eq!(host("https://[::1]:9443/x"), "::1");
        assert_eq!(host("https://runway.example.org"), "runway.example.org");
    }
}
