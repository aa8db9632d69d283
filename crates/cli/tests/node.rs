//! Installation on a real node, from our own images: pods become ready, a real engine answers through them, the end of a leader
//! does not interrupt requests, and the uninstallation leaves no objects.
#![allow(clippy::print_stdout, reason = "how long it took is worth reading")]

mod common;

use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use common::{PATIENCE, expect, inventory, nothing_stays, run, spawn, text};
use http::Request;
use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::api::core::v1::{Pod, Secret, Service};
use kube::api::{DeleteParams, ListParams, PostParams};
use kube::client::Body;
use kube::{Api, Client, Config, ResourceExt};
use runway_api::model_deployment::Phase;
use runway_api::{ModelDeployment, labels};
use runway_manifests::{NAMESPACE, Release, console};
use runway_testbed::engine::{LlamaServer, SENTENCE};
use runway_testbed::{Node, Options, eventually, node, programs};
use serde_json::{Value, json};
use tokio::io::{AsyncBufReadExt, BufReader};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn ready_pods_from_our_own_images_serve_an_example_and_go_without_a_trace() -> Result<()> {
    const WHAT: &str = "installing on a real node";
    let Some(engine) = LlamaServer::for_node(WHAT).await? else {
        return Ok(());
    };
    let programs = programs::build(false).await?;
    let node = Node::start(Options::default()).await?;
    node.import_image(&engine.image.archive).await?;
    let (admin, client) = (node.admin()?, node.admin_client().await?);
    let before = inventory(&client).await?;

    without_room_the_end_says_what_the_scheduler_says(&node, &admin).await?;
    without_images_the_end_says_what_the_kubelet_says(&admin).await?;
    installed(&node, &programs, &admin).await?;
    an_example_runs(&node, &client).await?;
    expect(&run(&admin, &["top", "hello"]).await?, 0, "hello  1/1   llama.cpp  0")?;
    expect(&run(&admin, &["provider", "list"]).await?, 0, "direct    v")?;
    proxy_leads_a_local_program_to_the_model(&admin).await?;
    a_leader_that_ends_hands_over_and_one_that_is_killed_is_followed(&node, &client).await?;
    expect(
        &run(&admin, &["controller", "status"]).await?,
        0,
        "direct-provider          v",
    )?;

    the_console_serves_who_signs_in(&node, &programs, &admin).await?;

    let out = run(&admin, &["controller", "uninstall", "--yes"]).await?;
    expect(&out, 1, "1 ModelDeployment exists: default/hello")?;
    let all = ["controller", "uninstall", "--yes", "--delete-models", "--crds"];
    let out = run(&admin, &all).await?;
    expect(&out, 0, "deleted 1 of 1 ModelDeployments")?;
    expect(&out, 0, "all objects deleted")?;
    nothing_stays(&client, &before).await?;
    node.stop().await
}

async fn without_room_the_end_says_what_the_scheduler_says(node: &Node, admin: &Path) -> Result<()> {
    kubectl(node, &["cordon", node::NODE_NAME]).await?;
    eventually(PATIENCE, async || {
        let out = run(admin, &["controller", "install", "--yes", "--timeout", "2s"]).await?;
        expect(
            &out,
            1,
            "Unschedulable: 0/1 nodes are available: 1 node(s) were unschedulable",
        )
    })
    .await?;
    kubectl(node, &["uncordon", node::NODE_NAME]).await
}

async fn without_images_the_end_says_what_the_kubelet_says(admin: &Path) -> Result<()> {
    // How soon the kubelet gives up depends on how fast the registry is not found.
    eventually(PATIENCE, async || {
        let out = run(admin, &["controller", "install", "--yes", "--timeout", "5s"]).await?;
        expect(
            &out,
            1,
            "timed out after 5s waiting for pods to become ready: Deployment/kubeairunway-controller: pod kubeairunway-controller-",
        )?;
        let said = text(&out);
        ensure!(
            said.contains("ImagePullBackOff") || said.contains("ErrImagePull"),
            "{said}"
        );
        expect(&out, 1, "ghcr.io/kubeairunway/kubeairunway-controller")
    })
    .await
}

async fn installed(node: &Node, programs: &Path, admin: &Path) -> Result<()> {
    let release = Release::default();
    for name in [labels::CORE_MANAGER, "direct-provider"] {
        let image = format!("{}/{name}:{}", release.registry, release.tag);
        node.import_program(&image, &programs.join(name), &[]).await?;
    }
    // The kubelet waits longer and longer for an image; for a new pod it does not.
    pods(&node.admin_client().await?)
        .delete_collection(&DeleteParams::default(), &ListParams::default())
        .await?;
    let out = run(admin, &["controller", "install", "--yes"]).await?;
    expect(&out, 0, "Deployment/kubeairunway-controller: ready, 2 of 2 pods")?;
    let out = run(admin, &["provider", "install", "direct", "--yes"]).await?;
    expect(&out, 0, "Deployment/direct-provider: ready, 1 of 1 pods")
}

async fn an_example_runs(node: &Node, client: &Client) -> Result<()> {
    let models: Api<ModelDeployment> = Api::default_namespaced(client.clone());
    // Admission answers from the pods, through their Service.
    let broken: ModelDeployment = serde_json::from_value(json!({ "metadata": { "name": "broken" },
        "spec": { "model": { "id": "a/b" }, "engine": { "type": "vllm" } } }))?;
    let dry_run = PostParams {
        dry_run: true,
        ..PostParams::default()
    };
    eventually(PATIENCE, async || {
        let answer = models.create(&dry_run, &broken).await;
        let said = answer.err().context("it was let through")?.to_string();
        ensure!(said.contains("vLLM engine requires GPU"), "{said}");
        Ok(())
    })
    .await?;
    let example = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../deploy/examples/test-bed/hello.yaml");
    kubectl(node, &["apply", "-f", &example.display().to_string()]).await?;
    let md = models.get("hello").await?;
    ensure!(md.finalizers() == [labels::FINALIZER], "the webhook adds the finalizer");
    // The provider asks the model by cluster DNS, from its pod.
    runs(&models, "hello").await
}

async fn runs(models: &Api<ModelDeployment>, name: &str) -> Result<()> {
    eventually(PATIENCE, async || {
        let status = models.get(name).await?.status.unwrap_or_default();
        ensure!(
            status.phase == Some(Phase::Running),
            "{:?}: {:?}",
            status.phase,
            status.message
        );
        Ok(())
    })
    .await
}

async fn proxy_leads_a_local_program_to_the_model(admin: &Path) -> Result<()> {
    let mut proxy = spawn(admin, &["proxy", "hello"])?;
    let out = proxy.stdout.take().context("no stdout")?;
    let line = BufReader::new(out).lines().next_line().await?;
    let line = line.context("no line to export")?;
    let settings = line.strip_prefix("export OPENAI_BASE_URL=").context(line.clone())?;
    let (url, key) = settings.split_once("/v1 OPENAI_API_KEY=").context(line.clone())?;
    let openai = Client::try_from(Config::new(url.parse()?))?;
    let question = json!({ "messages": [{ "role": "user", "content": "Hello" }] }).to_string();
    let ask = |key: &str| {
        Request::post("/v1/chat/completions")
            .header("authorization", format!("Bearer {key}"))
            .header("content-type", "application/json")
            .body(question.clone().into_bytes())
    };
    let answer: Value = serde_json::from_str(&openai.request_text(ask(key)?).await?)?;
    ensure!(answer["choices"][0]["message"]["content"] == SENTENCE, "{answer}");
    let refused = openai.send(ask("guessed")?.map(Body::from)).await?;
    ensure!(refused.status() == 401, "{refused:?}");
    Ok(())
}

/// A pod that receives SIGTERM releases its Lease. After SIGKILL, the Lease must expire.
async fn a_leader_that_ends_hands_over_and_one_that_is_killed_is_followed(node: &Node, client: &Client) -> Result<()> {
    let pods = pods(client);
    let first = leader(client).await?;
    let start = Instant::now();
    pods.delete(pod(&first)?, &DeleteParams::default()).await?;
    let second = next_leader(client, &first).await?;
    let handed_over = start.elapsed();
    ensure!(
        handed_over < LEASE,
        "handed over after {handed_over:?}: the Lease ran out"
    );

    let killed_pod = pod(&second)?;
    let container = eventually(PATIENCE, async || node::running(&pods.get(killed_pod).await?)).await?;
    let start = Instant::now();
    node.kill(&container).await?;
    let third = next_leader(client, &second).await?;
    let taken_over = start.elapsed();
    ensure!(taken_over < LEASE * 3, "taken over after {taken_over:?}");
    println!("{first} handed over to {second} in {handed_over:?}; after its kill {third} took over in {taken_over:?}");

    eventually(PATIENCE, async || {
        let killed = pods.get(killed_pod).await?;
        let restarts = node::restarts(&killed);
        ensure!(restarts == 1, "{restarts} restarts of the one that was killed");
        node::running(&killed).map(drop)
    })
    .await
}

/// In a pod, with a certificate of its own: who has a token sees what that token may see.
async fn the_console_serves_who_signs_in(node: &Node, programs: &Path, admin: &Path) -> Result<()> {
    const HOST: &str = "console.test";
    let release = Release::default();
    let image = format!("{}/{}:{}", release.registry, console::PROGRAM, release.tag);
    node.import_program(&image, &programs.join(console::PROGRAM), &[])
        .await?;
    let certificate = rcgen::generate_simple_self_signed([HOST.to_owned()])?;
    let (pem, key) = (certificate.cert.pem(), certificate.signing_key.serialize_pem());
    let (_, secret, folder) = console::SECRETS[0];
    let client = node.admin_client().await?;
    let secrets: Api<Secret> = Api::namespaced(client.clone(), NAMESPACE);
    let secret = json!({ "metadata": { "name": secret }, "stringData": { "tls.crt": pem, "tls.key": key } });
    let secret = secrets
        .create(&PostParams::default(), &serde_json::from_value(secret)?)
        .await?;

    let settings = [
        format!("--public-url=https://{HOST}"),
        format!("--tls-cert={folder}/tls.crt"),
        format!("--tls-key={folder}/tls.key"),
    ];
    let mut args = vec!["console", "install", "--yes", "--"];
    args.extend(settings.iter().map(String::as_str));
    expect(
        &run(admin, &args).await?,
        0,
        "Deployment/kubeairunway-console: ready, 1 of 1 pods",
    )?;

    let services: Api<Service> = Api::namespaced(client, NAMESPACE);
    let address = services.get(console::NAME).await?.spec.and_then(|spec| spec.cluster_ip);
    let mut browser = Config::new(format!("https://{}:80", address.context("no address")?).parse()?);
    browser.root_cert = Some(vec![certificate.cert.der().to_vec()]);
    browser.tls_server_name = Some(HOST.to_owned());
    let browser = Client::try_from(browser)?;
    let asked = |method: &str, path: &str| Request::builder().method(method).uri(path).header("host", HOST);

    // kube-proxy learns of a Service a moment later.
    let stranger = eventually(PATIENCE, async || {
        Ok(browser.send(asked("GET", "/deployments").body(Body::empty())?).await?)
    })
    .await?;
    ensure!(
        stranger.headers().get("location").is_some_and(|to| to == "/login"),
        "{stranger:?}"
    );
    let viewer = ["create", "serviceaccount", "viewer", "-n", "default"];
    kubectl(node, &viewer).await?;
    let may = ["--clusterrole=kubeairunway-view", "--serviceaccount=default:viewer"];
    kubectl(
        node,
        &[&["create", "clusterrolebinding", "viewer"], may.as_slice()].concat(),
    )
    .await?;
    let token = node
        .kubectl()?
        .args(["create", "token", "viewer", "-n", "default"])
        .output()
        .await?;
    let form = format!("token={}", String::from_utf8(token.stdout)?.trim());
    let login = asked("POST", "/login")
        .header("origin", format!("https://{HOST}"))
        .header("content-type", "application/x-www-form-urlencoded");
    let entered = browser.send(login.body(form.into_bytes().into())?).await?;
    let cookie = entered
        .headers()
        .get("set-cookie")
        .with_context(|| format!("{entered:?}"))?
        .to_str()?;
    ensure!(cookie.contains("Secure") && cookie.contains("HttpOnly"), "{cookie}");
    let cookie = cookie.split(';').next().unwrap_or_default();
    let page = asked("GET", "/deployments").header("cookie", cookie).body(Vec::new())?;
    let page = browser.request_text(page).await?;
    ensure!(page.contains("/deployments/default/hello"), "{page}");

    expect(
        &run(admin, &["console", "uninstall", "--yes"]).await?,
        0,
        "all objects deleted",
    )?;
    secrets.delete(&secret.name_any(), &DeleteParams::default()).await?;
    kubectl(node, &["delete", "clusterrolebinding", "viewer"]).await?;
    kubectl(node, &["delete", "serviceaccount", "viewer", "-n", "default"]).await
}

/// Duration of a Lease without renewal: the default of `--lease-duration`.
const LEASE: Duration = Duration::from_secs(5);

async fn next_leader(client: &Client, former: &str) -> Result<String> {
    eventually(PATIENCE, async || {
        let leader = leader(client).await?;
        ensure!(leader != former, "it is still {former}");
        Ok(leader)
    })
    .await
}

/// Holder of the core's Lease: a pod's name, and a suffix for the process.
async fn leader(client: &Client) -> Result<String> {
    let leases: Api<Lease> = Api::namespaced(client.clone(), NAMESPACE);
    let lease = leases.get(labels::CORE_MANAGER).await?;
    let holder = lease.spec.and_then(|spec| spec.holder_identity).unwrap_or_default();
    ensure!(!holder.is_empty(), "the Lease has no holder");
    Ok(holder)
}

async fn kubectl(node: &Node, args: &[&str]) -> Result<()> {
    let done = node.kubectl()?.args(args).output().await?;
    ensure!(done.status.success(), "{}", String::from_utf8_lossy(&done.stderr));
    Ok(())
}

fn pod(holder: &str) -> Result<&str> {
    Ok(holder.rsplit_once('_').context("a holder without a pod")?.0)
}

fn pods(client: &Client) -> Api<Pod> {
    Api::namespaced(client.clone(), NAMESPACE)
}
