//! `--wait`: until something is ready, or gone. Each change is said, so that a wait is never silent.

use std::time::Duration;

use kube::ResourceExt;
use kube::core::DynamicObject;
use runway_api::Namespace;
use runway_client::cluster::Cluster;
use runway_client::diagnostic::one_line;
use runway_client::status::{self, Standing};
use runway_client::target::Target;
use runway_client::text;

use super::Error;
use crate::patience::Patience;
use crate::terminal::Terminal;

/// Waits until an object of any kind is ready.
///
/// # Errors
/// The object fails, or the timeout expires.
pub async fn until_ready(
    cluster: &Cluster,
    namespace: &Namespace,
    target: &Target,
    timeout: Duration,
    terminal: &mut Terminal<'_>,
) -> Result<(), Error> {
    let mut patience = Patience::of(timeout);
    loop {
        let object = cluster.get(target, namespace).await?;
        let (standing, line) = status::standing(&object);
        patience.say(&format!("{target}: {}", one_line(&line)), terminal);
        match standing {
            Standing::Ready => return Ok(()),
            Standing::Failed(message) => {
                return Err(Error::Failed {
                    target: target.clone(),
                    message,
                });
            }
            Standing::Open if patience.lasts().await => {}
            Standing::Open => return Err(late(target, "ready", timeout, patience.last())),
        }
    }
}

/// Waits until an object is deleted, and reports progress.
///
/// # Errors
/// The timeout expires, or the cluster cannot be read.
pub async fn until_gone(
    cluster: &Cluster,
    namespace: &Namespace,
    target: &Target,
    uid: &str,
    timeout: Duration,
    terminal: &mut Terminal<'_>,
) -> Result<(), Error> {
    let mut patience = Patience::of(timeout);
    loop {
        let found = cluster.find(target, namespace).await?;
        // Another one of the same name is not the one that was deleted.
        let Some(object) = found.filter(|object| object.uid().as_deref() == Some(uid)) else {
            terminal.say(&format!("{target}: deleted"));
            return Ok(());
        };
        patience.say(&format!("{target}: {}", one_line(&keeps(&object))), terminal);
        if !patience.lasts().await {
            return Err(late(target, "deleted", timeout, patience.last()));
        }
    }
}

/// Text for the cause that delays the deletion.
fn keeps(object: &DynamicObject) -> String {
    let made = &object.data["status"]["provider"];
    let upstream = match (made["resourceKind"].as_str(), made["resourceName"].as_str()) {
        (Some(kind), Some(name)) => format!("waiting for {kind}/{name} to be deleted"),
        _ => "waiting for its controller to clean up".to_owned(),
    };
    let finalizers = object.finalizers().join(", ");
    if finalizers.is_empty() {
        "waiting for the API server".to_owned()
    } else {
        format!("{upstream} (finalizer {finalizers})")
    }
}

fn late(target: &Target, wanted: &'static str, timeout: Duration, last: &str) -> Error {
    Error::NotInTime {
        target: target.clone(),
        wanted,
        after: text::age(timeout),
        last: last.to_owned(),
    }
}
