//! How long people wait for the command: `cargo bench -p runway-cli --bench command`.
//!
//! Owed: `--help` under 10 ms, and a list of 1,000 ModelDeployments under 150 ms after the connection is there.
#![allow(missing_docs, clippy::expect_used, reason = "a bench that cannot run should fail")]

use std::process::Command;

use criterion::{Criterion, criterion_group, criterion_main};
use kube::Api;
use kube::api::PostParams;
use runway_api::ModelDeployment;
use runway_client::cluster::Cluster;
use runway_client::{get, manifests};
use runway_operator::client::ClientArgs;
use runway_testbed::{ControlPlane, Options};
use serde_json::json;

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

criterion_group!(benches, help, list);
criterion_main!(benches);
