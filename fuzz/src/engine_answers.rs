//! Any bytes as the answers of a model's endpoint: asking it ends without a panic, and what is said of it is one line of bounded
//! length. The stream of a chat is read line by line.
//!
//! The input is four parts with a NUL between: the statuses of three answers, and their bodies.

use std::collections::VecDeque;
use std::convert::Infallible;
use std::sync::{Arc, Mutex};

use bytes::Bytes;
use http::{Request, Response, StatusCode};
use http_body_util::Full;
use kube::Client;
use kube::client::Body;
use runway_client::chat::{self, Part};
use runway_operator::services::{ServicePort, Services};
use runway_provider::probe::Probe;
use runway_provider::probe_request::ask;

/// A message is shown in a status, beside others.
const MAX_MESSAGE: usize = 4096;

pub fn run(data: &[u8]) {
    let [statuses, bodies @ ..] = crate::parts::<4>(data);
    let statuses = String::from_utf8_lossy(statuses);
    let mut statuses = statuses
        .split(' ')
        .map(|status| status.parse().unwrap_or(StatusCode::OK));
    let answers: VecDeque<_> = bodies
        .iter()
        .map(|body| answer(statuses.next().unwrap_or(StatusCode::OK), body))
        .collect();
    for model in [Some("llama"), None] {
        if let Err(failure) = crate::wait(ask(&services(answers.clone()), &question(model))) {
            assert!(failure.message.len() <= MAX_MESSAGE, "{} bytes", failure.message.len());
            assert!(!failure.message.contains(char::is_control), "{:?}", failure.message);
        }
    }
    for line in bodies.iter().filter_map(|body| crate::text(body)).flat_map(str::lines) {
        let parts = chat::parts(line).unwrap_or_default();
        assert!(!parts.contains(&Part::Text(String::new())), "{line}");
    }
}

fn answer(status: StatusCode, body: &[u8]) -> (StatusCode, Bytes) {
    (status, Bytes::copy_from_slice(body))
}

/// The Service, which is read before each request.
const SERVICE: &str = r#"{"spec":{"clusterIP":"10.0.0.7","selector":{"app":"llama"}}}"#;

/// Services that answer in this order; then they break off.
fn services(answers: VecDeque<(StatusCode, Bytes)>) -> Services {
    let answers = Arc::new(Mutex::new(answers));
    let service = tower::service_fn(move |request: Request<Body>| {
        let is_of_engine = request.uri().path().contains("/proxy/");
        let answer = is_of_engine.then(|| answers.lock().unwrap().pop_front());
        let (status, body) = answer.map_or_else(|| (StatusCode::OK, SERVICE.into()), Option::unwrap_or_default);
        let mut response = Response::new(Full::new(body));
        *response.status_mut() = status;
        async { Ok::<_, Infallible>(response) }
    });
    // The client starts a task.
    crate::wait(async { Services::by_proxy(Client::new(service, "default")) })
}

fn question(model: Option<&str>) -> Probe {
    Probe {
        id: "1#1".to_owned(),
        about: "1".to_owned(),
        attempt: 1,
        patience: runway_operator::services::PATIENCE,
        at: ServicePort {
            namespace: "default".parse().unwrap(),
            service: "llama".parse().unwrap(),
            port: 80,
        },
        model: model.map(str::to_owned),
        generates: true,
    }
}
