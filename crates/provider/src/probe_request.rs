//! Sends the request that shows whether a model answers, in the OpenAI API of vLLM, SGLang, TensorRT-LLM, llama-server, Dynamo
//! and Ray Serve.

use http::StatusCode;
use runway_api::condition::shorten;
use runway_operator::services::{self, Response, Services};
use serde_json::{Value, json};

use crate::probe::Probe;

const MODELS: &str = "/v1/models";
const CHAT: &str = "/v1/chat/completions";
const COMPLETIONS: &str = "/v1/completions";

/// Longest part of a response in a message, in bytes.
const SHOWN: usize = 300;
/// Most model names in a message.
const NAMES_SHOWN: usize = 5;

/// Reason why a model has not answered.
#[derive(Debug, PartialEq, Eq)]
pub struct Error {
    /// Whether a retry may succeed.
    pub may_pass: bool,
    /// The request and the response.
    pub message: String,
}

/// Result of one request.
#[derive(Debug, PartialEq, Eq)]
enum Reply {
    /// The request succeeded.
    Served(Value),
    /// The engine does not support this path, or not for this model.
    NotOffered(Error),
    /// The server requires credentials, which the provider does not have. The server is available.
    Guarded,
    /// The request failed.
    Failed(Error),
}

/// Requests the list of models, and one token if the engine generates text.
///
/// # Errors
///
/// The first request that failed, with the response.
pub async fn ask(services: &Services, probe: &Probe) -> Result<(), Error> {
    let at = &probe.at;
    let services = &services.with_patience(probe.patience);
    let models = reply(at, "GET", MODELS, services.get(at, MODELS).await);
    let model = match models {
        Reply::Served(models) => listed(probe, &models)?,
        Reply::Guarded => return Ok(()),
        Reply::NotOffered(_) if !probe.generates => return Ok(()),
        Reply::NotOffered(failure) | Reply::Failed(failure) => return Err(failure),
    };
    if !probe.generates {
        return Ok(());
    }
    let model = model.unwrap_or_default();
    let chat = json!({"model": model, "messages": [{"role": "user", "content": "Hi"}], "max_tokens": 1});
    let completion = json!({"model": model, "prompt": "Hi", "max_tokens": 1});
    for (path, body) in [(CHAT, chat), (COMPLETIONS, completion)] {
        match reply(at, "POST", path, services.post(at, path, &body).await) {
            Reply::Served(completion) if has_choice(&completion) => return Ok(()),
            Reply::Served(other) => {
                return Err(final_failure(
                    at,
                    "POST",
                    path,
                    &format!("not a completion: {}", shown(&other.to_string())),
                ));
            }
            Reply::Guarded => return Ok(()),
            // The model supports neither chat nor completion, such as an embedding model.
            Reply::NotOffered(_) => {}
            Reply::Failed(failure) => return Err(failure),
        }
    }
    Ok(())
}

/// Name for the next request: the expected one, or the first of the list.
fn listed(probe: &Probe, models: &Value) -> Result<Option<String>, Error> {
    let names: Vec<&str> = models["data"]
        .as_array()
        .into_iter()
        .flatten()
        .filter_map(|model| model["id"].as_str())
        .collect();
    match &probe.model {
        Some(wanted) if names.contains(&wanted.as_str()) => Ok(Some(wanted.clone())),
        Some(wanted) => {
            let others = match names.as_slice() {
                [] => "no model".to_owned(),
                some => some
                    .iter()
                    .take(NAMES_SHOWN)
                    .map(|name| format!("'{}'", shown(name)))
                    .collect::<Vec<_>>()
                    .join(", "),
            };
            Err(Error {
                // A frontend lists a model once its first worker is registered.
                may_pass: true,
                message: format!("{}: GET {MODELS} lists {others}, not '{wanted}'", probe.at),
            })
        }
        None => Ok(names.first().map(|name| (*name).to_owned())),
    }
}

fn has_choice(completion: &Value) -> bool {
    completion["choices"]
        .as_array()
        .is_some_and(|choices| !choices.is_empty())
}

fn reply(at: &impl std::fmt::Display, method: &str, path: &str, outcome: Result<Response, services::Error>) -> Reply {
    let failure = |may_pass, what: &str| Error {
        may_pass,
        message: format!("{at}: {method} {path}: {what}"),
    };
    let response = match outcome {
        Ok(response) => response,
        Err(error @ services::Error::Late(_)) => {
            let hint = "the next attempt has twice the time (setting answerTimeoutSeconds of the provider)";
            return Reply::Failed(failure(false, &format!("{error}; {hint}")));
        }
        Err(error) => return Reply::Failed(failure(matches!(error, services::Error::Broken(_)), &error.to_string())),
    };
    let status = response.status;
    let words = words(&response.body);
    let said = if words.is_empty() {
        status.to_string()
    } else {
        format!("{status}: {words}")
    };
    match status {
        // Response of the API server: the Service is missing, has no ready pod, or may not be reached.
        _ if is_of_api_server(&response.body) => Reply::Failed(failure(true, &said)),
        StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN => Reply::Guarded,
        StatusCode::BAD_REQUEST
        | StatusCode::NOT_FOUND
        | StatusCode::METHOD_NOT_ALLOWED
        | StatusCode::UNPROCESSABLE_ENTITY
        | StatusCode::NOT_IMPLEMENTED => Reply::NotOffered(failure(false, &said)),
        StatusCode::BAD_GATEWAY | StatusCode::SERVICE_UNAVAILABLE | StatusCode::GATEWAY_TIMEOUT => {
            Reply::Failed(failure(true, &said))
        }
        _ if status.is_redirection() => Reply::Failed(failure(false, &format!("{status}: redirects are not followed"))),
        _ if !status.is_success() => Reply::Failed(failure(false, &said)),
        _ => match serde_json::from_slice(&response.body) {
            Ok(value) => Reply::Served(value),
            Err(_) => Reply::Failed(failure(false, &format!("{status}, but the body is not JSON: {words}"))),
        },
    }
}

fn final_failure(at: &impl std::fmt::Display, method: &str, path: &str, what: &str) -> Error {
    Error {
        may_pass: false,
        message: format!("{at}: {method} {path}: {what}"),
    }
}

/// Whether the response comes from the API server instead of the Service.
fn is_of_api_server(body: &[u8]) -> bool {
    serde_json::from_slice::<Value>(body).is_ok_and(|body| body["kind"] == "Status" && body["apiVersion"] == "v1")
}

/// Error message of a response in the format of the engines or the API server, or the start of the body.
fn words(body: &[u8]) -> String {
    let parsed: Value = serde_json::from_slice(body).unwrap_or_default();
    let message = [&parsed["error"]["message"], &parsed["message"], &parsed["error"]]
        .into_iter()
        .find_map(Value::as_str)
        .map_or_else(
            || String::from_utf8_lossy(&body[..body.len().min(SHOWN)]).into_owned(),
            str::to_owned,
        );
    shown(&message)
}

/// The text as one short line without control characters: an engine may send anything.
fn shown(text: &str) -> String {
    let line: Vec<&str> = text
        .split(|c: char| c.is_whitespace() || c.is_control())
        .filter(|word| !word.is_empty())
        .collect();
    shorten(line.join(" "), SHOWN)
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::time::Duration;

    use kube::Config;
    use runway_api::Namespace;
    use runway_operator::client::install_crypto;
    use runway_operator::services::ServicePort;
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    use tokio::net::{TcpListener, TcpStream};

    use super::*;

    const CHOICE: &str = r#"{"choices":[{"message":{"content":"Hello"}}]}"#;
    const SERVICE: &str = r#"{"metadata":{"name":"llama"},"spec":{"clusterIP":"10.0.0.7","selector":{"app":"llama"}}}"#;
    const LISTED: &str = r#"{"data":[{"id":"llama"}]}"#;

    fn ok(body: &str) -> String {
        response("200 OK", body)
    }

    fn response(status: &str, body: &str) -> String {
        format!(
            "HTTP/1.1 {status}\r\ncontent-length: {}\r\nconnection: close\r\n\r\n{body}",
            body.len()
        )
    }

    /// Server that responds by path, and the result of asking it.
    async fn outcome(
        model: Option<&str>,
        answer: impl Fn(&str) -> Option<String> + Send + Sync + 'static,
    ) -> Result<(), Error> {
        outcome_at(SERVICE, model, answer).await
    }

    /// The same behind this Service.
    async fn outcome_at(
        service: &'static str,
        model: Option<&str>,
        answer: impl Fn(&str) -> Option<String> + Send + Sync + 'static,
    ) -> Result<(), Error> {
        install_crypto();
        let answer = move |path: &str| {
            if path.is_empty() {
                Some(ok(service))
            } else {
                answer(path)
            }
        };
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let answer = Arc::new(answer);
        let server = tokio::spawn(async move {
            while let Ok((socket, _)) = listener.accept().await {
                tokio::spawn(serve(socket, answer.clone()));
            }
        });
        let config = Config::new(format!("http://{address}").parse().unwrap());
        let services = Services::of(&config).unwrap();
        let probe = Probe {
            id: "1#1".to_owned(),
            about: "1".to_owned(),
            attempt: 1,
            patience: services::PATIENCE,
            at: ServicePort {
                namespace: Namespace::default(),
                service: "llama".parse().unwrap(),
                port: 80,
            },
            model: model.map(str::to_owned),
            generates: true,
        };
        let outcome = ask(&services, &probe).await;
        server.abort();
        outcome
    }

    /// A timeout counts as no response. The path is empty for the Service itself, which is read first.
    async fn serve(mut socket: TcpStream, answer: Arc<impl Fn(&str) -> Option<String>>) {
        let mut request = Vec::new();
        while !request.windows(4).any(|end| end == b"\r\n\r\n")
            && socket.read_buf(&mut request).await.is_ok_and(|n| n > 0)
        {}
        let text = String::from_utf8_lossy(&request).into_owned();
        let path = text
            .split_whitespace()
            .nth(1)
            .and_then(|url| url.split_once("/proxy"))
            .map_or("", |(_, path)| path);
        match answer(path) {
            Some(answer) => {
                let _ = socket.write_all(answer.as_bytes()).await;
            }
            None => tokio::time::sleep(Duration::from_mins(1)).await,
        }
    }

    #[tokio::test]
    async fn a_model_that_chats_or_completes_has_answered() {
        let chats = |path: &str| Some(ok(if path == MODELS { LISTED } else { CHOICE }));
        assert_eq!(outcome(Some("llama"), chats).await, Ok(()));
        assert_eq!(outcome(None, chats).await, Ok(()));
        let completes = |path: &str| match path {
            MODELS => Some(ok(LISTED)),
            COMPLETIONS => Some(ok(r#"{"choices":[{"text":"a"}]}"#)),
            _ => Some(response("404 Not Found", "")),
        };
        assert_eq!(outcome(Some("llama"), completes).await, Ok(()));
        let embeds = |path: &str| {
            Some(if path == MODELS {
                ok(LISTED)
            } else {
                response("400 Bad Request", r#"{"error":{"message":"not supported"}}"#)
            })
        };
        assert_eq!(
            outcome(Some("llama"), embeds).await,
            Ok(()),
            "an embedding model lists itself, and no more"
        );
        let guarded = |path: &str| {
            Some(if path == MODELS {
                ok(LISTED)
            } else {
                response("401 Unauthorized", "")
            })
        };
        assert_eq!(
            outcome(Some("llama"), guarded).await,
            Ok(()),
            "an engine with an API key"
        );
    }

    #[tokio::test]
    async fn no_request_is_sent_to_a_service_that_leads_elsewhere() {
        for (service, field) in [
            (
                r#"{"spec":{"type":"ExternalName","externalName":"llama.team-b.svc"}}"#,
                "spec.type is ExternalName",
            ),
            (r#"{"spec":{"clusterIP":"10.0.0.7"}}"#, "spec.selector is empty"),
        ] {
            let called = |path: &str| panic!("{path} is requested");
            let failure = outcome_at(service, None, called).await.unwrap_err();
            let start = format!("Service 'llama' port 80: GET /v1/models: {field}");
            assert!(failure.message.starts_with(&start), "{}", failure.message);
            assert!(!failure.may_pass);
        }
    }

    #[tokio::test]
    async fn a_failed_request_is_reported_with_the_response() {
        type Hostile = Box<dyn Fn(&str) -> Option<String> + Send + Sync>;
        let completion = |answer: &'static str| -> Hostile {
            Box::new(move |path| Some(if path == MODELS { ok(LISTED) } else { answer.to_owned() }))
        };
        let always = |answer: String| -> Hostile { Box::new(move |_| Some(answer.clone())) };
        let table: [(Hostile, bool, &str); 11] = [
            (
                always(ok(r#"{"data":[{"id":"other"}]}"#)),
                true,
                "GET /v1/models lists 'other', not 'llama'",
            ),
            (always(ok(r#"{"data":[]}"#)), true, "lists no model, not 'llama'"),
            (
                always(response("404 Not Found", "")),
                false,
                "GET /v1/models: 404 Not Found",
            ),
            (
                completion(
                    "HTTP/1.1 500 Internal Server Error\r\ncontent-length: 36\r\nconnection: close\r\n\r\n{\"error\":{\"message\":\"CUDA\\n error\"}}",
                ),
                false,
                "POST /v1/chat/completions: 500 Internal Server Error: CUDA error",
            ),
            (
                always(response("302 Found", "")),
                false,
                "302 Found: redirects are not followed",
            ),
            (
                completion("HTTP/1.1 200 OK\r\ncontent-length: 2\r\nconnection: close\r\n\r\n{}"),
                false,
                "not a completion: {}",
            ),
            (
                always(ok("<html>hello</html>")),
                false,
                "the body is not JSON: <html>hello</html>",
            ),
            (
                always(ok(&"x".repeat(1024 * 1024))),
                false,
                "the response is longer than 64 KiB",
            ),
            (
                always(response(
                    "503 Service Unavailable",
                    r#"{"error":{"message":"Loading model"}}"#,
                )),
                true,
                "503 Service Unavailable: Loading model",
            ),
            (
                always(response(
                    "404 Not Found",
                    r#"{"kind":"Status","apiVersion":"v1","message":"services \"llama\" not found"}"#,
                )),
                true,
                "404 Not Found: services \"llama\" not found",
            ),
            (
                always(response(
                    "403 Forbidden",
                    r#"{"kind":"Status","apiVersion":"v1","message":"services \"http:llama:80\" is forbidden"}"#,
                )),
                true,
                "is forbidden",
            ),
        ];
        for (engine, may_pass, text) in table {
            let failure = outcome(Some("llama"), engine).await.unwrap_err();
            assert!(failure.message.contains(text), "{}", failure.message);
            assert!(
                failure.message.starts_with("Service 'llama' port 80: "),
                "{}",
                failure.message
            );
            assert_eq!(failure.may_pass, may_pass, "{text}");
        }
        let closes = outcome(Some("llama"), |_| Some(String::new())).await.unwrap_err();
        assert!(closes.may_pass, "{}", closes.message);
    }

    #[tokio::test(start_paused = true)]
    async fn a_request_to_a_hanging_engine_times_out() {
        let failure = outcome(Some("llama"), |_| None).await.unwrap_err();
        assert!(
            failure
                .message
                .contains("no response within 10 seconds; the next attempt has twice the time"),
            "{}",
            failure.message
        );
    }
}
