//! Helpers for tests of the installation.
#![allow(dead_code, unreachable_pub, reason = "each test file uses its own part")]

use std::collections::BTreeSet;
use std::path::Path;
use std::process::{Output, Stdio};

use anyhow::{Context, Result, ensure};
use kube::api::ListParams;
use kube::core::DynamicObject;
use kube::discovery::{Discovery, verbs};
use kube::{Api, Client, ResourceExt};
pub use runway_testbed::PATIENCE;
use runway_testbed::eventually;
use tokio::io::AsyncWriteExt;
use tokio::process::{Child, Command};

/// Every object in the cluster, by kind, namespace and name, without those that the control plane creates for itself.
pub async fn inventory(client: &Client) -> Result<BTreeSet<String>> {
    // The API server lists a group a moment before it serves it.
    let discovery = eventually(PATIENCE, async || Ok(Discovery::new(client.clone()).run().await?)).await?;
    let mut all = BTreeSet::new();
    for group in discovery.groups() {
        for (resource, capabilities) in group.recommended_resources() {
            if !capabilities.supports_operation(verbs::LIST) || ["Event", "Lease"].contains(&resource.kind.as_str()) {
                continue;
            }
            let api: Api<DynamicObject> = Api::all_with(client.clone(), &resource);
            let Ok(found) = api.list_metadata(&ListParams::default()).await else {
                continue;
            };
            all.extend(found.items.iter().map(|object| {
                format!(
                    "{} {}/{}",
                    resource.kind,
                    object.namespace().unwrap_or_default(),
                    object.name_any()
                )
            }));
        }
    }
    ensure!(all.len() > 50, "an inventory of {} objects", all.len());
    Ok(all)
}

/// Waits until the cluster holds what it held before, and nothing else.
pub async fn nothing_stays(client: &Client, before: &BTreeSet<String>) -> Result<()> {
    eventually(PATIENCE, async || {
        let after = inventory(client).await?;
        let differing: Vec<_> = after.symmetric_difference(before).collect();
        ensure!(differing.is_empty(), "{differing:?}");
        Ok(())
    })
    .await
}

pub async fn run(kubeconfig: &Path, args: &[&str]) -> Result<Output> {
    run_with(kubeconfig, args, "").await
}

pub async fn run_with(kubeconfig: &Path, args: &[&str], input: &str) -> Result<Output> {
    let mut child = spawn(kubeconfig, args)?;
    let mut stdin = child.stdin.take().context("no stdin")?;
    // A command that does not prompt does not read its input.
    let _ = stdin.write_all(input.as_bytes()).await;
    drop(stdin);
    Ok(child.wait_with_output().await?)
}

/// Starts the command, which is killed with its handle.
pub fn spawn(kubeconfig: &Path, args: &[&str]) -> Result<Child> {
    Ok(Command::new(env!("CARGO_BIN_EXE_kubeairunway"))
        .arg("--kubeconfig")
        .arg(kubeconfig)
        .args(args)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .kill_on_drop(true)
        .spawn()?)
}

pub fn text(output: &Output) -> String {
    String::from_utf8_lossy(&[output.stdout.as_slice(), output.stderr.as_slice()].concat()).into_owned()
}

pub fn expect(output: &Output, code: i32, wanted: &str) -> Result<()> {
    let said = text(output);
    ensure!(
        output.status.code() == Some(code),
        "exit code {:?}, not {code}:\n{said}",
        output.status.code()
    );
    ensure!(said.contains(wanted), "not said: {wanted}\n{said}");
    Ok(())
}
