//! Bounded HTTP requests to Services of the cluster: no redirects, a time limit, a size limit.
//!
//! Inside a cluster, requests go to the addresses of the Service; outside, through the API server's Service proxy. A Service that
//! does not lead to pods of its namespace gets none: see [`destination`].

use std::fmt;
use std::net::SocketAddr;
use std::time::Duration;

use bytes::Bytes;
use http::{Method, Request, StatusCode};
use http_body_util::{BodyExt, Full, Limited};
use hyper_util::client::legacy;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::TokioExecutor;
use k8s_openapi::api::core::v1::Service;
use k8s_openapi::api::discovery::v1::EndpointSlice;
use k8s_openapi::api::rbac::v1::PolicyRule;
use kube::api::ListParams;
use kube::{Api, Config};
use runway_api::{Name, Namespace};
use serde_json::Value;

use crate::access::rule;
use crate::client;
use crate::destination::{self, Destination, NotPods, Slice};
use crate::telemetry::chain;

/// Default time limit from the request to the last byte of its response.
pub const PATIENCE: Duration = Duration::from_secs(10);
/// Maximum size of a response, in bytes.
pub const MAX_RESPONSE: usize = 64 * 1024;

/// Sends requests to Services. Cheap to clone.
#[derive(Clone)]
pub struct Services {
    /// Client for the API server.
    client: kube::Client,
    route: Route,
    patience: Duration,
}

#[derive(Clone)]
enum Route {
    Direct(Box<legacy::Client<HttpConnector, Full<Bytes>>>),
    ServiceProxy,
}

/// A port of a Service.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct ServicePort {
    /// Namespace of the Service.
    pub namespace: Namespace,
    /// Name of the Service.
    pub service: Name,
    /// The Service's port.
    pub port: u16,
}

/// A complete response.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Response {
    /// Status code.
    pub status: StatusCode,
    /// Body.
    pub body: Bytes,
}

/// Reason why there is no response.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The Service or the API server cannot be reached, or the connection broke.
    #[error("{}", .0)]
    Broken(String),
    /// The response timed out.
    #[error("no response within {} seconds", .0.as_secs())]
    Late(Duration),
    /// The response is too large.
    #[error("the response is longer than {} KiB", MAX_RESPONSE / 1024)]
    TooLong,
    /// The Service does not lead to pods of its namespace.
    #[error(transparent)]
    NotPods(#[from] NotPods),
}

impl Services {
    /// Requests to the addresses of Services in a pod of the cluster, otherwise through the API server.
    ///
    /// # Errors
    /// The configuration is not supported.
    pub fn of(config: &Config) -> Result<Self, client::Error> {
        let is_in_cluster = client::is_in_cluster(config);
        let mut config = config.clone();
        // A 503 of the Service is a response; kube would repeat the request for up to a minute.
        config.default_retry = false;
        let client = kube::Client::try_from(config).map_err(|error| client::Error::Client(Box::new(error)))?;
        let services = if is_in_cluster { Self::direct } else { Self::by_proxy };
        Ok(services(client))
    }

    /// Requests through the API server's Service proxy.
    pub fn by_proxy(client: kube::Client) -> Self {
        Self {
            client,
            route: Route::ServiceProxy,
            patience: PATIENCE,
        }
    }

    /// The same with another time limit for each request.
    #[must_use]
    pub fn with_patience(&self, patience: Duration) -> Self {
        Self {
            patience,
            ..self.clone()
        }
    }

    /// Requests to the addresses of Services.
    fn direct(client: kube::Client) -> Self {
        let mut connector = HttpConnector::new();
        connector.set_connect_timeout(Some(PATIENCE));
        // Requests are rare: no connection is kept.
        let direct = legacy::Client::builder(TokioExecutor::new())
            .pool_max_idle_per_host(0)
            .build(connector);
        Self {
            client,
            route: Route::Direct(Box::new(direct)),
            patience: PATIENCE,
        }
    }

    /// Sends a GET request for `path`.
    ///
    /// # Errors
    /// No response in time, a broken connection, or a response that is too large. A status such as 500 is a response.
    pub async fn get(&self, at: &ServicePort, path: &str) -> Result<Response, Error> {
        self.send(at, Method::GET, path, Bytes::new()).await
    }

    /// Sends a POST request with a JSON document to `path`.
    ///
    /// # Errors
    /// Same as [`get`](Self::get).
    pub async fn post(&self, at: &ServicePort, path: &str, body: &Value) -> Result<Response, Error> {
        self.send(at, Method::POST, path, body.to_string().into()).await
    }

    async fn send(&self, at: &ServicePort, method: Method, path: &str, body: Bytes) -> Result<Response, Error> {
        tokio::time::timeout(self.patience, self.exchange(at, method, path, body))
            .await
            .unwrap_or(Err(Error::Late(self.patience)))
    }

    async fn exchange(&self, at: &ServicePort, method: Method, path: &str, body: Bytes) -> Result<Response, Error> {
        let addresses = self.addresses(at).await?;
        match &self.route {
            Route::Direct(client) => {
                let address = addresses
                    .first()
                    .ok_or_else(|| Error::Broken("it has no ready pod".to_owned()))?;
                let mut request = request(method, &format!("http://{address}{path}"), Full::new(body))?;
                let host = http::HeaderValue::from_str(&at.host()).map_err(|error| broken(&error))?;
                request.headers_mut().insert(http::header::HOST, host);
                let response = client.request(request).await;
                read(response.map_err(|error| broken(&error))?).await
            }
            Route::ServiceProxy => {
                let url = format!(
                    "/api/v1/namespaces/{}/services/http:{}:{}/proxy{path}",
                    at.namespace, at.service, at.port
                );
                let response = self.client.send(request(method, &url, body.into())?).await;
                read(response.map_err(|error| broken(&error))?).await
            }
        }
    }

    /// The addresses that a request may go to.
    async fn addresses(&self, at: &ServicePort) -> Result<Vec<SocketAddr>, Error> {
        let services: Api<Service> = Api::namespaced(self.client.clone(), &at.namespace);
        let service = services.get(&at.service).await.map_err(of_api_server)?;
        let addresses = match Destination::of(&service)? {
            Destination::ClusterIp(address) => vec![address],
            Destination::Pods => {
                let slices: Api<EndpointSlice> = Api::namespaced(self.client.clone(), &at.namespace);
                let of_service = ListParams::default().labels(&format!("{}={}", destination::SERVICE_NAME, at.service));
                let slices = slices.list(&of_service).await.map_err(of_api_server)?;
                let slices: Vec<Slice> = slices.iter().map(Slice::of).collect::<Result<_, _>>()?;
                let pods = slices.iter().flat_map(|slice| &slice.pods);
                pods.map(|pod| pod.address).collect()
            }
        };
        Ok(destination::at_port(addresses, at.port))
    }
}

/// Permissions to find the addresses of Services.
pub fn access() -> Vec<PolicyRule> {
    vec![
        rule("", &["services"], &["get"]),
        rule("discovery.k8s.io", &["endpointslices"], &["list"]),
    ]
}

impl ServicePort {
    /// Host of requests, as the DNS of the cluster names it.
    pub fn host(&self) -> String {
        format!("{}.{}.svc:{}", self.service, self.namespace, self.port)
    }
}

impl fmt::Display for ServicePort {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Service '{}' port {}", self.service, self.port)
    }
}

fn request<B>(method: Method, url: &str, body: B) -> Result<Request<B>, Error> {
    Request::builder()
        .method(method)
        .uri(url)
        .header(http::header::CONTENT_TYPE, "application/json")
        .body(body)
        .map_err(|error| broken(&error))
}

async fn read<B>(response: http::Response<B>) -> Result<Response, Error>
where
    B: http_body::Body<Data = Bytes>,
    B::Error: Into<Box<dyn std::error::Error + Send + Sync>>,
{
    let status = response.status();
    let collected = Limited::new(response.into_body(), MAX_RESPONSE).collect().await;
    let body = collected.map_err(|error| match error.downcast_ref::<http_body_util::LengthLimitError>() {
        Some(_) => Error::TooLong,
        None => broken(error.as_ref()),
    })?;
    Ok(Response {
        status,
        body: body.to_bytes(),
    })
}

fn broken(error: &(dyn std::error::Error + 'static)) -> Error {
    Error::Broken(chain(error))
}

fn of_api_server(error: kube::Error) -> Error {
    match error {
        kube::Error::Api(status) => Error::Broken(status.message),
        other => broken(&other),
    }
}
