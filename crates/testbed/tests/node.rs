//! A real node: pods run, find each other and the API server, are reached from the host, and nothing stays behind.

use std::{
    path::{Path, PathBuf},
    process::{Command, Stdio},
};

use anyhow::{Context, Result, ensure};
use k8s_openapi::api::{apps::v1::Deployment, core::v1::Pod};
use kube::{
    Api, Client,
    api::{DynamicObject, ListParams, PostParams},
};
use runway_testbed::apply::api_of;
use runway_testbed::{Node, Options, PATIENCE, eventually, images, node};
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

/// One node for everything, because starting it takes longer than each of these checks.
#[tokio::test(flavor = "multi_thread")]
async fn pods_run_on_a_real_node() -> Result<()> {
    if node::skip("pods on a real node") {
        return Ok(());
    }
    let node = Node::start(Options::default()).await?;
    let client = node.client("somebody", &["system:masters"]).await?;
    let image = images::busybox()?;
    node.import_image(&image.archive).await?;

    for object in web(&image.name) {
        create(&client, object).await?;
    }
    let deployments: Api<Deployment> = Api::namespaced(client.clone(), "default");
    eventually(PATIENCE, async || {
        let status = deployments.get("web").await?.status.unwrap_or_default();
        ensure!(status.available_replicas == Some(2), "{}", events(&node).await?);
        Ok(())
    })
    .await
    .context("two replicas become available")?;

    let pods: Api<Pod> = Api::namespaced(client.clone(), "default");
    let pod = pods.list(&ListParams::default().labels("app=web")).await?.items[0].clone();
    let pod = pod.metadata.name.context("a pod has a name")?;

    let logs = kubectl(&node, &["logs", &pod]).await?;
    ensure!(logs.contains("started by the init container"), "{logs}");
    let user = exec(&node, &pod, "id -u").await?;
    ensure!(user == "65532", "the image's user: {user}");
    let token = exec(
        &node,
        &pod,
        "cut -d . -f 1 /var/run/secrets/kubernetes.io/serviceaccount/token | head -c 5",
    )
    .await?;
    ensure!(token.starts_with("eyJ"), "a ServiceAccount token is a JWT: {token}");
    let written = exec(&node, &pod, "echo x >/root-is-read-only 2>&1 || echo refused").await?;
    ensure!(written.contains("refused"), "{written}");

    for name in ["web", "web.default", "web.default.svc.cluster.local"] {
        let page = exec(&node, &pod, &format!("wget -q -O - http://{name}/page")).await?;
        ensure!(page == "hello", "{name}: {page}");
    }
    let nowhere = exec(&node, &pod, "nslookup missing.example.org 2>&1 || true").await?;
    ensure!(nowhere.contains("NXDOMAIN"), "{nowhere}");
    let api = exec(
        &node,
        &pod,
        r"printf 'GET / HTTP/1.0\r\n\r\n' | nc kubernetes.default 443",
    )
    .await?;
    ensure!(api.contains("HTTPS server"), "the API server by its service: {api}");

    let listener = tokio::net::TcpListener::bind((node.network().host(), 0)).await?;
    let port = listener.local_addr()?.port();
    let script = format!("nc {} {port} </dev/null", node.network().host());
    let greet = async {
        let (mut connection, _) = listener.accept().await?;
        Ok(connection.write_all(b"hello from the host").await?)
    };
    let (greeted, greeting): (Result<()>, _) = tokio::join!(greet, exec(&node, &pod, &script));
    greeted?;
    ensure!(
        greeting? == "hello from the host",
        "a pod reaches what listens on the host"
    );

    let service: Value = serde_json::from_str(&kubectl(&node, &["get", "service", "web", "-o", "json"]).await?)?;
    let service = service["spec"]["clusterIP"].as_str().context("a ClusterIP")?;
    let page = get(service, 80, "/page").await?;
    ensure!(page.ends_with("hello\n"), "the host reaches a service: {page}");

    python_runs_as_any_user(&node, &client).await?;

    the_host_keeps_its_address(&node).await?;

    let dir = node.dir.clone();
    node.stop().await?;
    ensure!(!dir.exists(), "the folder goes with the node");
    Ok(())
}

/// The kernel takes a node's network away with it; controllers on the host still need the API server to end in order.
async fn the_host_keeps_its_address(node: &Node) -> Result<()> {
    let first = node.first_process().to_string();
    output(Command::new("kill").args(["-KILL", &first]))?;
    eventually(PATIENCE, async || {
        let routes = output(Command::new("ip").args(["route"]))?;
        ensure!(
            !routes.contains(&node.network().pods()),
            "the node's network is still there"
        );
        Ok(())
    })
    .await?;
    let client = node.admin_client().await?;
    tokio::time::timeout(PATIENCE, client.apiserver_version())
        .await
        .context("the API server does not answer without its node")??;
    Ok(())
}

/// The ready Python image finds its libraries, a shell and names, with a read-only root.
async fn python_runs_as_any_user(node: &Node, client: &Client) -> Result<()> {
    let image = tokio::task::spawn_blocking(images::python).await??;
    node.import_image(&image.archive).await?;
    let script = "import hashlib, json, os, socket, sqlite3, ssl, subprocess\n\
        print(os.getuid(), socket.gethostbyname('web'), subprocess.getoutput('echo from a shell'))";
    let mut object = pod("python", &image.name);
    object["spec"]["restartPolicy"] = "Never".into();
    object["spec"]["containers"][0]["command"] = json!(["python3", "-c", script]);
    object["spec"]["containers"][0]["securityContext"] = json!({"runAsUser": 12345, "readOnlyRootFilesystem": true});
    create(client, object).await?;
    let pods: Api<Pod> = Api::namespaced(client.clone(), "default");
    let phase = eventually(PATIENCE, async || {
        let phase = pods.get("python").await?.status.unwrap_or_default().phase;
        ensure!(
            ["Succeeded", "Failed"].map(Some).contains(&phase.as_deref()),
            "{}",
            events(node).await?
        );
        Ok(phase)
    })
    .await?;
    let logs = kubectl(node, &["logs", "python"]).await?;
    ensure!(phase.as_deref() == Some("Succeeded"), "{logs}");
    ensure!(
        logs.starts_with(&format!("12345 10.{}.", node.network().api_service().octets()[1]))
            && logs.trim_end().ends_with("from a shell"),
        "{logs}"
    );
    Ok(())
}

/// Another process starts a node and dies of SIGKILL.
#[tokio::test(flavor = "multi_thread")]
async fn a_crash_leaves_nothing_behind() -> Result<()> {
    if node::skip("cleaning up after a crash") {
        return Ok(());
    }
    tokio::task::spawn_blocking(node::prepare).await??;
    let reported = tempfile::NamedTempFile::new()?;
    let mut victim = Command::new(std::env::current_exe()?)
        .args(["--ignored", "--exact", "a_victim_of_a_crash", "--nocapture"])
        .env("VICTIM_TELLS", reported.path())
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .spawn()?;
    let traces = eventually(PATIENCE, async || {
        let text = std::fs::read_to_string(reported.path())?;
        let traces: Traces = serde_json::from_str(&text).context("the victim has not started its node")?;
        Ok(traces)
    })
    .await?;
    for (trace, is_there) in traces.look()? {
        ensure!(is_there, "there is no {trace} while the node runs");
    }

    victim.kill()?;
    victim.wait()?;
    eventually(PATIENCE, async || {
        ensure!(
            !Path::new(&traces.first_process).exists(),
            "the node's processes live on"
        );
        Ok(())
    })
    .await?;
    tokio::task::spawn_blocking(node::sweep).await??;
    for (trace, is_there) in traces.look()? {
        ensure!(!is_there, "{trace} is left behind");
    }
    Ok(())
}

/// Places to search for what a node created.
#[derive(serde::Serialize, serde::Deserialize)]
struct Traces {
    dir: PathBuf,
    host: String,
    first_process: String,
    pods: String,
    services: String,
    cgroup: String,
}

impl Traces {
    fn look(&self) -> Result<Vec<(String, bool)>> {
        let routes = output(Command::new("ip").args(["route"]))?;
        let addresses = output(Command::new("ip").args(["address"]))?;
        let mounts = std::fs::read_to_string("/proc/self/mountinfo")?;
        let cgroups = mounts
            .lines()
            .filter_map(|line| line.split_once(" - ").filter(|(_, kind)| kind.starts_with("cgroup")))
            .filter_map(|(place, _)| place.split(' ').nth(4))
            .map(|root| Path::new(root).join(&self.cgroup));
        let mut found = vec![
            (format!("folder {}", self.dir.display()), self.dir.exists()),
            (format!("address {}", self.host), addresses.contains(&self.host)),
            (format!("route to {}", self.pods), routes.contains(&self.pods)),
            (format!("route to {}", self.services), routes.contains(&self.services)),
            (
                format!("process {}", self.first_process),
                Path::new(&self.first_process).exists(),
            ),
        ];
        found.extend(cgroups.map(|path| (format!("cgroup {}", path.display()), path.exists())));
        Ok(found)
    }
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "only a_crash_leaves_nothing_behind starts it, to kill it"]
async fn a_victim_of_a_crash() -> Result<()> {
    let node = Node::start(Options::default()).await?;
    let image = images::busybox()?;
    node.import_image(&image.archive).await?;
    let client = node.admin_client().await?;
    create(&client, pod("victim", &image.name)).await?;
    let pods: Api<Pod> = Api::namespaced(client, "default");
    eventually(PATIENCE, async || {
        let status = pods.get("victim").await?.status.unwrap_or_default();
        ensure!(status.phase.as_deref() == Some("Running"), "{}", events(&node).await?);
        Ok(())
    })
    .await?;
    let host = node.network().host();
    let traces = Traces {
        dir: node.dir.clone(),
        host: format!("inet {host}/"),
        first_process: format!("/proc/{}", node.first_process()),
        pods: node.network().pods(),
        services: node.network().services(),
        cgroup: format!("runway-testbed-{}", host.octets()[2]),
    };
    #[expect(clippy::disallowed_methods, reason = "a test harness passes no arguments on")]
    std::fs::write(std::env::var("VICTIM_TELLS")?, serde_json::to_string(&traces)?)?;
    std::future::pending().await
}

/// A web server, restricted, with what most pods have: init container, volumes, probes, limits.
fn web(image: &str) -> [Value; 3] {
    let labels = json!({"app": "web"});
    let restricted = json!({
        "allowPrivilegeEscalation": false,
        "readOnlyRootFilesystem": true,
        "runAsNonRoot": true,
        "capabilities": {"drop": ["ALL"]},
        "seccompProfile": {"type": "RuntimeDefault"},
    });
    let probe = json!({"httpGet": {"path": "/page", "port": 8080}, "periodSeconds": 1});
    let volume = json!([{"name": "pages", "mountPath": "/pages"}]);
    [
        json!({"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": "web"}}),
        json!({
            "apiVersion": "v1",
            "kind": "Service",
            "metadata": {"name": "web"},
            "spec": {"selector": labels, "ports": [{"port": 80, "targetPort": 8080}]},
        }),
        json!({
            "apiVersion": "apps/v1",
            "kind": "Deployment",
            "metadata": {"name": "web"},
            "spec": {
                "replicas": 2,
                "selector": {"matchLabels": labels},
                "template": {
                    "metadata": {"labels": labels},
                    "spec": {
                        "serviceAccountName": "web",
                        "initContainers": [{
                            "name": "init",
                            "image": image,
                            "command": ["sh", "-c", "echo hello >/pages/page"],
                            "securityContext": restricted,
                            "volumeMounts": volume,
                        }],
                        "containers": [{
                            "name": "web",
                            "image": image,
                            "command": ["sh", "-c", "test -s /pages/page && echo started by the init container && exec httpd -f -p 8080 -h /pages"],
                            "securityContext": restricted,
                            "volumeMounts": volume,
                            "readinessProbe": probe,
                            "livenessProbe": probe,
                            "resources": {"requests": {"cpu": "10m"}, "limits": {"memory": "64Mi", "cpu": "500m"}},
                        }],
                        "volumes": [{"name": "pages", "emptyDir": {"sizeLimit": "1Mi"}}],
                        "terminationGracePeriodSeconds": 1,
                    },
                },
            },
        }),
    ]
}

fn pod(name: &str, image: &str) -> Value {
    json!({
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name},
        "spec": {"containers": [{"name": "main", "image": image, "command": ["sleep", "1000000"]}]},
    })
}

async fn create(client: &Client, object: Value) -> Result<()> {
    let object: DynamicObject = serde_json::from_value(object)?;
    let api = api_of(client, &object).await?;
    // The default ServiceAccount may come a moment later than the node.
    eventually(PATIENCE, async || {
        Ok(api.create(&PostParams::default(), &object).await?)
    })
    .await?;
    Ok(())
}

async fn exec(node: &Node, pod: &str, script: &str) -> Result<String> {
    let text = kubectl(node, &["exec", pod, "--", "sh", "-c", script]).await?;
    Ok(text.trim().to_owned())
}

async fn kubectl(node: &Node, args: &[&str]) -> Result<String> {
    let mut command = node.kubectl()?;
    command.args(args).kill_on_drop(true);
    let output = tokio::time::timeout(PATIENCE, command.output())
        .await
        .with_context(|| format!("kubectl {} does not end", args.join(" ")))??;
    ensure!(
        output.status.success(),
        "kubectl {}: {}{}",
        args.join(" "),
        String::from_utf8_lossy(&output.stdout),
        String::from_utf8_lossy(&output.stderr)
    );
    Ok(String::from_utf8(output.stdout)?)
}

/// State of the cluster, for an error message.
async fn events(node: &Node) -> Result<String> {
    kubectl(node, &["get", "events,pods", "--all-namespaces"]).await
}

async fn get(host: &str, port: u16, path: &str) -> Result<String> {
    let mut stream = tokio::net::TcpStream::connect((host, port)).await?;
    stream
        .write_all(format!("GET {path} HTTP/1.0\r\nHost: {host}\r\n\r\n").as_bytes())
        .await?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer).await?;
    Ok(answer)
}

fn output(command: &mut Command) -> Result<String> {
    Ok(String::from_utf8(command.output()?.stdout)?)
}
