//! Memory usage of the web console, as the program that runs in the cluster, with a real API server.
#![cfg(target_os = "linux")]

use std::net::SocketAddr;
use std::process::Stdio;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use k8s_openapi::api::core::v1::ServiceAccount;
use k8s_openapi::api::rbac::v1::{ClusterRole, ClusterRoleBinding};
use kube::api::PostParams;
use kube::{Api, Client};
use runway_api::ModelDeployment;
use runway_manifests as manifests;
use runway_testbed::tokens::token;
use runway_testbed::{ControlPlane, Options, PATIENCE, eventually};
use serde::de::DeserializeOwned;
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::process::{Child, Command};

/// Largest memory usage of the console, in KiB.
const MOST: u64 = 128 * 1024;
const MODELS: usize = 300;
/// Bytes of each object.
const SIZE: usize = 25_000;

#[tokio::test(flavor = "multi_thread")]
async fn forty_sessions_of_one_user_and_a_thousand_of_many_stay_under_128_mib() -> Result<()> {
    let cluster = ControlPlane::start(Options {
        crds: manifests::crds().into(),
        ..Options::default()
    })
    .await?;
    let client = cluster.admin_client().await?;
    fill(&client).await?;
    let console = Console::start(&cluster).await?;

    let tokens = tokens(&client, "viewer-0", 40).await?;
    let mut streams = Vec::new();
    for token in &tokens {
        let cookie = console.sign_in(token).await?;
        console.reads(&cookie).await?;
        streams.push(console.send("GET", "/live", &cookie, "").await?);
    }
    let of_one = console.most_memory()?;
    println!(
        "40 sessions of one user, {MODELS} objects of {SIZE} bytes: {} MiB",
        of_one / 1024
    );
    ensure!(of_one < MOST, "{of_one} KiB");

    // 24 users more, 40 sessions each: there is no room for what all of them see.
    for user in 1..25 {
        let tokens = self::tokens(&client, &format!("viewer-{user}"), 4).await?;
        for session in 0..40 {
            let cookie = console.sign_in(&tokens[session % tokens.len()]).await?;
            if session % 10 == 0 {
                console.reads(&cookie).await?;
            }
        }
    }
    let of_many = console.most_memory()?;
    println!("1,000 sessions of 25 users: {} MiB", of_many / 1024);
    ensure!(of_many < MOST, "{of_many} KiB");
    Ok(())
}

/// Models that do not get smaller by compression, and a group that may see them.
async fn fill(client: &Client) -> Result<()> {
    let models: Api<ModelDeployment> = Api::namespaced(client.clone(), "default");
    let mut seed = 1_u64;
    let mut noise = |length: usize| -> String {
        let mut next = || {
            seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            char::from(b'!' + u8::try_from((seed >> 33) % 90).unwrap_or_default())
        };
        (0..length).map(|_| next()).collect()
    };
    for index in 0..MODELS {
        let value = json!({"apiVersion": "kubeairunway.ai/v1alpha1", "kind": "ModelDeployment",
            "metadata": {"name": format!("model-{index}"), "annotations": {"example.org/note": noise(SIZE / 2)}},
            "spec": {"model": {"id": "org/a"}, "engine": {"type": "vllm"},
                "env": [{"name": "NOISE", "value": noise(SIZE / 2)}]}});
        create(&models, value).await?;
    }
    let rules = json!([{"apiGroups": ["kubeairunway.ai"], "resources": ["*"], "verbs": ["get", "list", "watch"]}]);
    create::<ClusterRole>(
        &Api::all(client.clone()),
        json!({"metadata": {"name": "viewers"}, "rules": rules}),
    )
    .await?;
    let group = "rbac.authorization.k8s.io";
    let binding = json!({"metadata": {"name": "viewers"},
        "roleRef": {"apiGroup": group, "kind": "ClusterRole", "name": "viewers"},
        "subjects": [{"kind": "Group", "apiGroup": group, "name": "system:serviceaccounts:default"}]});
    create::<ClusterRoleBinding>(&Api::all(client.clone()), binding).await
}

async fn create<K>(api: &Api<K>, value: Value) -> Result<()>
where
    K: kube::Resource + Clone + std::fmt::Debug + DeserializeOwned + serde::Serialize,
{
    let object: K = serde_json::from_value(value)?;
    api.create(&PostParams::default(), &object).await?;
    Ok(())
}

/// Tokens of a new ServiceAccount.
async fn tokens(client: &Client, name: &str, number: usize) -> Result<Vec<String>> {
    let accounts: Api<ServiceAccount> = Api::namespaced(client.clone(), "default");
    create(&accounts, json!({"metadata": {"name": name}})).await?;
    let mut tokens = Vec::new();
    for _ in 0..number {
        tokens.push(token(client, "default", name, &[]).await?);
    }
    Ok(tokens)
}

/// The program, serving.
struct Console {
    at: SocketAddr,
    program: Child,
}

impl Console {
    async fn start(cluster: &ControlPlane) -> Result<Self> {
        // Free a moment ago.
        let at = std::net::TcpListener::bind("127.0.0.1:0")?.local_addr()?;
        let program = Command::new(env!("CARGO_BIN_EXE_kubeairunway"))
            .arg("--kubeconfig")
            .arg(cluster.admin()?)
            .args(["ui", "--login", "--address", &at.to_string(), "--public-url"])
            .arg(format!("http://{at}"))
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .kill_on_drop(true)
            .spawn()?;
        let console = Self { at, program };
        eventually(PATIENCE, async || {
            let health = console.ask("GET", "/healthz", "", "").await?;
            ensure!(health.starts_with("HTTP/1.1 200"), "{health}");
            Ok(())
        })
        .await?;
        Ok(console)
    }

    async fn send(&self, method: &str, path: &str, cookie: &str, body: &str) -> Result<TcpStream> {
        let (at, length) = (self.at, body.len());
        let mut socket = TcpStream::connect(at).await?;
        let request = format!(
            "{method} {path} HTTP/1.1\r\nhost: {at}\r\norigin: http://{at}\r\ncookie: {cookie}\r\nconnection: close\r\n\
             content-type: application/x-www-form-urlencoded\r\ncontent-length: {length}\r\n\r\n{body}"
        );
        socket.write_all(request.as_bytes()).await?;
        Ok(socket)
    }

    async fn ask(&self, method: &str, path: &str, cookie: &str, body: &str) -> Result<String> {
        let mut answer = String::new();
        let mut socket = self.send(method, path, cookie, body).await?;
        tokio::time::timeout(Duration::from_secs(30), socket.read_to_string(&mut answer)).await??;
        Ok(answer)
    }

    async fn sign_in(&self, token: &str) -> Result<String> {
        let answer = self.ask("POST", "/login", "", &format!("token={token}")).await?;
        let (_, cookie) = answer.split_once("set-cookie: ").with_context(|| answer.clone())?;
        Ok(cookie.split(';').next().unwrap_or_default().to_owned())
    }

    /// Reads the pages that show every model, and one of them.
    async fn reads(&self, cookie: &str) -> Result<()> {
        for (path, shown) in [
            ("/", "default/model-"),
            ("/deployments", "/deployments/default/model-0"),
            ("/deployments/default/model-7/yaml", "example.org/note"),
        ] {
            // A list that takes longer than 5 seconds is shown by a later request.
            eventually(PATIENCE, async || {
                let page = self.ask("GET", path, cookie, "").await?;
                ensure!(page.contains(shown), "{path}: {page}");
                Ok(())
            })
            .await?;
        }
        Ok(())
    }

    /// The most memory that was ever resident, in KiB.
    fn most_memory(&self) -> Result<u64> {
        let id = self.program.id().context("the program has ended")?;
        let status = std::fs::read_to_string(format!("/proc/{id}/status"))?;
        let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"));
        let number = line
            .and_then(|line| line.split_whitespace().next())
            .context("no VmHWM")?;
        Ok(number.parse()?)
    }
}
