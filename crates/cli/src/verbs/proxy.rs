//! `proxy`: an OpenAI address on this machine for SDKs and tools, which leads to a model through the API server.

use std::net::Ipv4Addr;
use std::time::Duration;

use axum::Router;
use axum::body::{Body, to_bytes};
use axum::extract::{Request, State};
use axum::http::header::{ACCEPT, AUTHORIZATION, CONTENT_TYPE};
use axum::http::{HeaderMap, StatusCode, Uri};
use axum::response::Response;
use clap::Args;
use kube::Client;
use runway_api::{LlamaStackDistribution, Namespace};
use runway_client::cluster::Cluster;
use runway_client::endpoint;
use runway_client::target::{Kind, Target};
use runway_http::Limits;
use runway_http::refusal::openai;
use runway_operator::shutdown;
use runway_operator::telemetry::chain;
use runway_web::crypto::{random_key, same};
use tokio::net::TcpListener;

use super::Error;
use crate::answer::Answer;
use crate::terminal::{Terminal, print};

/// A request may contain images and audio. Interrupted, the proxy does not wait for answers.
const LIMITS: Limits = Limits {
    body: 64 * 1024 * 1024,
    drain: Duration::ZERO,
    ..Limits::GATEWAY
};

/// Arguments of `proxy`.
#[derive(Debug, Args)]
pub struct ProxyArgs {
    /// Name of the ModelDeployment, or llsd/NAME
    #[arg(value_name = "NAME")]
    pub target: Target,
    /// Namespace; the namespace of the kubeconfig's current context if omitted
    #[arg(short, long)]
    pub namespace: Option<Namespace>,
    /// Port on this machine; an unused one if omitted
    #[arg(long, default_value_t = 0, hide_default_value = true)]
    pub port: u16,
}

/// Serves until it is interrupted.
///
/// # Errors
/// The target has no endpoint, or the port is in use.
pub async fn proxy(args: &ProxyArgs, cluster: &Cluster, terminal: &mut Terminal<'_>) -> Result<Answer, Error> {
    let namespace = args.namespace.as_ref().unwrap_or(&cluster.namespace);
    let (path, serves) = path(cluster, namespace, &args.target).await?;
    if !serves {
        terminal.say(&format!("note: {} is not ready and may not answer", args.target));
    }
    let failed = |error: &dyn std::fmt::Display| Error::Proxy(error.to_string());
    let key = random_key().map_err(|e| failed(&e))?;
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, args.port)).await;
    let listener = listener.map_err(|e| failed(&format!("cannot listen at port {}: {e}", args.port)))?;
    let address = listener.local_addr().map_err(|e| failed(&e))?;
    let line = format!("export OPENAI_BASE_URL=http://{address}/v1 OPENAI_API_KEY={key}\n");
    terminal.say(&format!(
        "Serving {}. Run the line below in the shell of your program; press Ctrl-C to stop.",
        args.target
    ));
    if print(line.as_bytes()) {
        let app = app(cluster.client(), path, key);
        runway_http::serve(listener, None, app, LIMITS, shutdown::on_signal()).await;
    }
    Ok(Answer::default())
}

/// Path of the target's Service proxy at the API server, and whether it serves.
async fn path(cluster: &Cluster, namespace: &Namespace, target: &Target) -> Result<(String, bool), Error> {
    match target.kind {
        Kind::ModelDeployment => {
            let md = cluster.deployment(namespace, &target.name).await?;
            let access = endpoint::access(&md).ok_or_else(|| Error::no_endpoint(&md))?;
            Ok((access.proxy_path, access.serves))
        }
        Kind::LlamaStackDistribution => {
            let llsd: LlamaStackDistribution = cluster.one(namespace, &target.name).await?;
            let server = endpoint::server(&llsd).ok_or_else(|| Error::no_server(&llsd))?;
            Ok((server.proxy_path, server.serves))
        }
        Kind::AsyncActor | Kind::InferenceProviderConfig => Err(Error::Usage(format!(
            "cannot serve {target}: use a ModelDeployment (NAME) or a LlamaStackDistribution (llsd/NAME)"
        ))),
    }
}

#[derive(Clone)]
struct Proxied {
    client: Client,
    path: String,
    key: String,
}

/// Other users of the machine, and pages in a browser, do not have the key.
fn app(client: Client, path: String, key: String) -> Router {
    Router::new()
        .fallback(forward)
        .with_state(Proxied { client, path, key })
}

async fn forward(State(proxied): State<Proxied>, request: Request) -> Response {
    let (head, body) = request.into_parts();
    if !key(&head.headers).is_some_and(|given| same(given, &proxied.key)) {
        let text = "wrong API key: set OPENAI_API_KEY as kubeairunway proxy printed it";
        return openai(StatusCode::UNAUTHORIZED, "invalid_api_key", text);
    }
    let Some(path) = below_v1(&head.uri) else {
        return openai(
            StatusCode::NOT_FOUND,
            "unknown_path",
            "only paths below /v1/ are served",
        );
    };
    let mut forwarded = axum::http::Request::builder()
        .method(head.method)
        .uri(format!("{}{path}", proxied.path));
    // The API server acts on others, such as Impersonate-User.
    for name in [ACCEPT, CONTENT_TYPE] {
        if let Some(value) = head.headers.get(&name) {
            forwarded = forwarded.header(name, value);
        }
    }
    let unavailable = |text: String| openai(StatusCode::BAD_GATEWAY, "unavailable", &text);
    let body = match to_bytes(body, LIMITS.body).await {
        Ok(body) => body.to_vec(),
        Err(error) => {
            let text = format!("cannot read the body of the request: {}", chain(&error));
            return openai(StatusCode::PAYLOAD_TOO_LARGE, "body_too_large", &text);
        }
    };
    let forwarded = match forwarded.body(body.into()) {
        Ok(forwarded) => forwarded,
        Err(error) => return unavailable(chain(&error)),
    };
    match proxied.client.send(forwarded).await {
        Ok(answer) => {
            let (head, body) = answer.into_parts();
            let mut response = Response::new(Body::new(body));
            *response.status_mut() = head.status;
            if let Some(value) = head.headers.get(CONTENT_TYPE) {
                response.headers_mut().insert(CONTENT_TYPE, value.clone());
            }
            response
        }
        Err(error) => unavailable(chain(&error)),
    }
}

/// The key of a request, as SDKs of OpenAI and Anthropic send it.
fn key(headers: &HeaderMap) -> Option<&str> {
    let bearer = headers.get(AUTHORIZATION).and_then(|value| value.to_str().ok());
    let bearer = bearer.and_then(|value| value.strip_prefix("Bearer "));
    bearer.or_else(|| headers.get("x-api-key")?.to_str().ok())
}

/// Path and query of a request of the API. Others could lead out of the proxied Service.
fn below_v1(uri: &Uri) -> Option<&str> {
    let mut parts = uri.path().strip_prefix("/v1/")?.split('/');
    let is_plain = |part: &str| !part.starts_with('.') && !part.contains(['%', '\\', ';']);
    parts
        .all(is_plain)
        .then(|| uri.path_and_query().map_or("", |all| all.as_str()))
}

#[cfg(test)]
mod tests {
    use std::sync::{Arc, Mutex};

    use tower::ServiceExt as _;

    use super::*;

    #[tokio::test]
    async fn requests_with_the_key_reach_the_service_without_credentials() {
        let asked = Arc::<Mutex<Vec<String>>>::default();
        let seen = asked.clone();
        let server = tower::service_fn(move |request: axum::http::Request<kube::client::Body>| {
            let headers: Vec<&str> = request.headers().keys().map(http::HeaderName::as_str).collect();
            let line = format!("{} {} {}", request.method(), request.uri(), headers.join(","));
            seen.lock().unwrap().push(line);
            let body = kube::client::Body::from(b"data: hello".to_vec());
            let answer = axum::http::Response::builder()
                .status(418)
                .header(CONTENT_TYPE, "text/event-stream");
            std::future::ready(Ok::<_, std::convert::Infallible>(answer.body(body).unwrap()))
        });
        let app = app(
            Client::new(server, "default"),
            "/base/proxy".to_owned(),
            "secret".to_owned(),
        );
        let send = async |path: &str, header: (&str, &str)| {
            let request = Request::post(path)
                .header(header.0, header.1)
                .header(CONTENT_TYPE, "application/json")
                .header("Impersonate-User", "admin")
                .body(Body::from("{}"))
                .unwrap();
            app.clone().oneshot(request).await.unwrap()
        };
        let bearer = ("authorization", "Bearer secret");
        let answer = send("/v1/chat/completions?a=b", bearer).await;
        assert_eq!(answer.status(), 418);
        assert_eq!(answer.headers()[CONTENT_TYPE], "text/event-stream");
        let body = axum::body::to_bytes(answer.into_body(), 100).await.unwrap();
        assert_eq!(body, "data: hello");
        assert_eq!(send("/v1/messages", ("x-api-key", "secret")).await.status(), 418);
        for header in [("x-api-key", "other"), ("authorization", "Bearer "), ("accept", "*/*")] {
            assert_eq!(send("/v1/models", header).await.status(), 401, "{header:?}");
        }
        for path in [
            "/",
            "/metrics",
            "/v1",
            "/v1/../metrics",
            "/v1/%2e%2e/x",
            "/v1/a/../../x",
        ] {
            assert_eq!(send(path, bearer).await.status(), 404, "{path}");
        }
        assert_eq!(
            *asked.lock().unwrap(),
            [
                "POST /base/proxy/v1/chat/completions?a=b content-type",
                "POST /base/proxy/v1/messages content-type"
            ]
        );
    }
}
