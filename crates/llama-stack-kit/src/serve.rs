//! Providers in a real server: its start as in a pod, and a request that a provider answers.

use std::fs;
use std::net::TcpListener;
use std::path::Path;
use std::process::Stdio;
use std::time::{Duration, Instant};

use runway_llama_stack_operator::pod::{FIND_PYTHON, START_SERVER};
use runway_llama_stack_operator::requests::{self, Requests};
use serde_json::{Value, json};
use tokio::process::{Child, Command};

use super::check::{Check, Checked, Distribution, Volumes, check, ids};
use super::error::Error;

/// Time between two requests to a server that starts.
const PAUSE: Duration = Duration::from_millis(200);
/// Timeout of the answer of a provider.
const ANSWER: Duration = Duration::from_mins(5);
/// Lines of the log of a server that a message contains.
const LOG_LINES: usize = 40;

/// Input of [`serve`].
#[derive(Clone, Debug)]
pub struct Serve {
    /// The providers, and the distribution with its Python.
    pub check: Check,
    /// Prompt.
    pub message: String,
    /// Model that answers; the first one of the first inference provider if omitted.
    pub model: Option<String>,
    /// Time until the server must be healthy.
    pub patience: Duration,
}

/// Checks providers, starts the server with them, asks it for its providers, and sends a chat completion.
///
/// # Errors
/// A file or program cannot be used. What a pod or the server would report is in the result.
pub async fn serve(input: &Serve) -> Result<Checked, Error> {
    let Distribution::Python(python) = &input.check.distribution else {
        return Err(Error::NoDistribution);
    };
    let mut checked = check(&input.check)?;
    if checked.failure.is_some() {
        return Ok(checked);
    }
    let log = input.check.volumes.join("server.log");
    let mut server = Server::start(input, python, &log)?;
    match answers(input, &mut server).await {
        Ok(lines) => checked.lines.extend(lines),
        Err(Failure { title, why }) => {
            let text = fs::read_to_string(&log).unwrap_or_default();
            let skipped = text.lines().count().saturating_sub(LOG_LINES);
            let last: Vec<&str> = text.lines().skip(skipped).collect();
            checked.failure = Some(format!(
                "ERROR: {title}\n\nReason: {why}\n\nLast lines of its log:\n{}",
                last.join("\n")
            ));
        }
    }
    Ok(checked)
}

/// A request or a server that failed.
struct Failure {
    title: &'static str,
    why: String,
}

/// A server on this machine, which ends with this value.
struct Server {
    process: Child,
    url: String,
    requests: Requests,
}

impl Server {
    /// Starts the server with the script of a pod.
    fn start(input: &Serve, python: &Path, log: &Path) -> Result<Self, Error> {
        let volumes = Volumes::new(&input.check.volumes)?;
        let failed = |source| Error::File {
            path: log.to_owned(),
            source,
        };
        let listener = TcpListener::bind("127.0.0.1:0").and_then(|listener| listener.local_addr());
        let port = listener.map_err(failed)?.port();
        let file = fs::File::create(log).map_err(failed)?;
        let commands = std::path::absolute(python).map_err(failed)?;
        let own = commands.parent().map(Path::to_owned);
        let inherited = std::env::var_os("PATH").unwrap_or_default();
        let path = own.into_iter().chain(std::env::split_paths(&inherited));
        let process = Command::new("/bin/sh")
            .args(["-c", &format!("{FIND_PYTHON}{START_SERVER}")])
            .env("PATH", std::env::join_paths(path).unwrap_or(inherited))
            .env("PYTHONPATH", volumes.packages())
            .env("LLAMA_STACK_CONFIG", volumes.run_yaml())
            .env("LLS_PORT", port.to_string())
            .env_remove("LLS_WORKERS")
            .stdin(Stdio::null())
            .stdout(file.try_clone().map_err(failed)?)
            .stderr(file)
            .kill_on_drop(true)
            .spawn()
            .map_err(|source| Error::Program {
                program: "/bin/sh".into(),
                option: "distribution-python",
                source,
            })?;
        Ok(Self {
            process,
            url: format!("http://127.0.0.1:{port}"),
            requests: Requests::default(),
        })
    }

    async fn get(&self, path: &str) -> Result<Value, requests::Failure> {
        self.requests.get(&format!("{}{path}", self.url)).await
    }

    async fn is_healthy(&mut self, patience: Duration) -> Result<(), Failure> {
        let start = Instant::now();
        loop {
            let Err(why) = self.get("/v1/health").await else {
                return Ok(());
            };
            if let Ok(Some(status)) = self.process.try_wait() {
                return Err(Failure {
                    title: "The server terminated",
                    why: status.to_string(),
                });
            }
            if start.elapsed() > patience {
                return Err(Failure {
                    title: "The server is not healthy in time",
                    why: why.to_string(),
                });
            }
            tokio::time::sleep(PAUSE).await;
        }
    }
}

/// The state of the server, its providers, and the answer of one of them.
async fn answers(input: &Serve, server: &mut Server) -> Result<Vec<String>, Failure> {
    let failure = |title| {
        move |why: requests::Failure| Failure {
            title,
            why: why.to_string(),
        }
    };
    server.is_healthy(input.patience).await?;
    let version = server.get("/v1/version").await.unwrap_or_default();
    let mut lines = vec![format!(
        "server {}: healthy",
        version["version"].as_str().unwrap_or("?")
    )];

    let listed = server
        .get("/v1/providers")
        .await
        .map_err(failure("The server does not list its providers"))?;
    let mut asked = None;
    for id in ids(&input.check.providers) {
        let own = listed["data"]
            .as_array()
            .into_iter()
            .flatten()
            .find(|p| p["provider_id"] == id.as_str());
        let Some(own) = own else {
            return Err(Failure {
                title: "The server does not list a provider",
                why: format!("/v1/providers has no provider_id '{id}'"),
            });
        };
        let text = |field: &str| own[field].as_str().unwrap_or("?").to_owned();
        lines.push(format!("provider {id}: {}, {}", text("api"), text("provider_type")));
        if own["api"] == "inference" && asked.is_none() {
            asked = Some(id);
        }
    }
    let model = match (&input.model, asked) {
        (Some(model), _) => model.clone(),
        (None, Some(id)) => {
            let models = server
                .get("/v1/models")
                .await
                .map_err(failure("The server does not list its models"))?;
            first_model(&models, &id).ok_or_else(|| Failure {
                title: "A provider has no model",
                why: format!(
                    "/v1/models has no model of '{id}'; if the provider does not list its models, set --model"
                ),
            })?
        }
        (None, None) => {
            lines.push("chat: skipped, since none of the providers is for inference and --model is not set".to_owned());
            return Ok(lines);
        }
    };
    let body = json!({ "model": model, "messages": [{ "role": "user", "content": input.message }] });
    let url = format!("{}/v1/chat/completions", server.url);
    let answer: Result<Value, requests::Failure> = server.requests.post(&url, &body, ANSWER).await;
    let answer = answer.map_err(failure("The provider does not answer"))?;
    let said = answer["choices"][0]["message"]["content"]
        .as_str()
        .ok_or_else(|| Failure {
            title: "The provider does not answer",
            why: format!("the chat completion has no text: {answer}"),
        })?;
    lines.push(format!("question to {model}: {}", input.message));
    lines.push(format!("answer: {said}"));
    Ok(lines)
}

/// Identifier of the first model of a provider, in `/v1/models`.
fn first_model(models: &Value, provider: &str) -> Option<String> {
    let of_provider = |model: &&Value| {
        let id = model["id"]
            .as_str()
            .or_else(|| model["identifier"].as_str())
            .unwrap_or_default();
        let owner = model["custom_metadata"]["provider_id"]
            .as_str()
            .or_else(|| model["provider_id"].as_str());
        owner == Some(provider) || id.split_once('/').is_some_and(|(owner, _)| owner == provider)
    };
    let model = models["data"].as_array()?.iter().find(of_provider)?;
    model["id"]
        .as_str()
        .or_else(|| model["identifier"].as_str())
        .map(str::to_owned)
}
