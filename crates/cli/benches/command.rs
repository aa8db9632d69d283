//! Benchmark of the time until the command answers: `cargo bench -p runway-cli --bench command`.
//!
//! Targets: `--help` under 10 ms, a list of 1,000 ModelDeployments under 150 ms after the connection is established, and the
//! console's first page under 100 ms from its server.
#![allow(missing_docs, clippy::expect_used, reason = "a bench that cannot run should fail")]

use std::process::Command;

use anyhow::Context as _;
use criterion::{Criterion, criterion_group, criterion_main};
use http::Request;
use kube::api::PostParams;
use kube::client::Body;
use kube::{Api, Client, Config};
use runway_api::ModelDeployment;
use runway_client::cluster::Cluster;
use runway_client::get;
use runway_manifests as manifests;
use runway_operator::audit::AuditArgs;
use runway_operator::client::ClientArgs;
use runway_testbed::{ControlPlane, Options};
use runway_web::server::{self, Console};
use serde_json::json;
use tokio_util::sync::CancellationToken;

const MODELS: usize = 1000;

/// The whole process, from its start to its end.
fn help(criterion: &mut Criterion) {
    criterion.bench_function("--help", |bencher| {
        bencher.iter(|| {
            let help = Command::new(env!("CARGO_BIN_EXE_kubeairunway")).arg("--help").output();
            assert!(help.expect("it starts").status.success());
        });
    });
}

/// The list and its table, on a connection that is there.
fn list(criterion: &mut Criterion) {
    let runtime = tokio::runtime::Runtime::new().expect("a runtime");
    let (_control_plane, cluster) = runtime.block_on(filled()).expect("a cluster with models");
    criterion.bench_function("get -A of 1,000", |bencher| {
        bencher.iter(|| {
            let found = runtime.block_on(cluster.deployments(None)).expect("they can be listed");
            assert_eq!(found.len(), MODELS);
            let options = get::Options {
                namespaces: true,
                wide: false,
            };
            get::table(&found, runway_operator::clock::now(), options)
        });
    });
}

/// Pages of the console, whole, as a browser that has signed in gets them.
fn pages(criterion: &mut Criterion) {
    let runtime = tokio::runtime::Runtime::new().expect("a runtime");
    let (control_plane, _) = runtime.block_on(filled()).expect("a cluster with models");
    let (browser, cookie) = runtime.block_on(served(&control_plane)).expect("a console");
    for path in ["/", "/deployments"] {
        criterion.bench_function(&format!("console, {path} of 1,000"), |bencher| {
            bencher.iter(|| {
                let request = Request::get(path).header("cookie", &cookie).body(Vec::new());
                let page = runtime.block_on(browser.request_text(request.expect("a request")));
                assert!(page.expect("a page").contains("model-"));
            });
        });
    }
}

/// A console that is served until the process ends, and a browser that is in.
async fn served(control_plane: &ControlPlane) -> anyhow::Result<(Client, String)> {
    let options = server::Options {
        address: "127.0.0.1:0".parse()?,
        login: None,
        audit: AuditArgs::default(),
    };
    let client = ClientArgs {
        kubeconfig: Some(control_plane.admin()?),
        context: None,
    };
    let console = Console::bind(&options, &client, CancellationToken::new()).await?;
    let (site, key) = console.url.split_once("/?").context("an address without a key")?;
    let (browser, enter) = (Client::try_from(Config::new(site.parse()?))?, format!("/?{key}"));
    tokio::spawn(console.serve());
    let entered = browser.send(Request::get(enter).body(Body::empty())?).await?;
    let cookie = entered.headers().get("set-cookie").context("no cookie")?.to_str()?;
    Ok((browser, cookie.split(';').next().unwrap_or_default().to_owned()))
}

async fn filled() -> anyhow::Result<(ControlPlane, Cluster)> {
    let control_plane = ControlPlane::start(Options {
        crds: manifests::crds().into(),
        ..Options::default()
    })
    .await?;
    let cluster = Cluster::connect(&ClientArgs {
        kubeconfig: Some(control_plane.admin()?),
        context: None,
    })
    .await?;
    let api: Api<ModelDeployment> = Api::namespaced(cluster.client(), "default");
    for number in 0..MODELS {
        let md = serde_json::from_value(json!({ "metadata": { "name": format!("model-{number}") },
            "spec": { "model": { "id": "org/a" }, "engine": { "type": "llamacpp" } } }))?;
        api.create(&PostParams::default(), &md).await?;
    }
    Ok((control_plane, cluster))
}

criterion_group!(benches, help, list, pages);
criterion_main!(benches);
