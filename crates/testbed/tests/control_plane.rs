//! A whole control plane: it starts, counts, restarts, lives on when asked to, and leaves nothing behind.

use anyhow::{Context, Result, ensure};
use k8s_openapi::api::{
    authentication::v1::SelfSubjectReview,
    core::v1::{ConfigMap, Namespace},
};
use kube::{
    Api, Client,
    api::{ListParams, PostParams},
};
use runway_testbed::{
    ControlPlane, Options,
    audit::{self, Count},
};

#[tokio::test]
async fn counts_exactly_the_requests_of_one_client() -> Result<()> {
    let mut cluster = ControlPlane::start(Options::default()).await?;
    let client = cluster.client("somebody", &["system:masters", "second-group"]).await?;
    ensure!(
        groups(&client).await?.contains(&"second-group".to_owned()),
        "a certificate holds both groups"
    );
    let log = cluster.audit().await?;

    let maps: Api<ConfigMap> = Api::namespaced(client.clone(), "default");
    let mark = log.mark().await?;
    let mut map = ConfigMap::default();
    map.metadata.name = Some("a".to_owned());
    maps.create(&PostParams::default(), &map).await?;
    for _ in 0..7 {
        maps.get("a").await?;
    }
    maps.list(&ListParams::default()).await?;
    let requests = log.since(mark).await?;
    let mine = audit::of_user(&requests, "somebody");
    assert_eq!(
        Count::of(&mine),
        Count {
            read: 8,
            write: 1,
            watch: 0
        }
    );
    assert_eq!(
        audit::by_object(&mine)[&("default".to_owned(), "a".to_owned())].total(),
        8
    );
    assert_eq!(audit::by_resource(&mine)["configmaps"].total(), 9);
    let mark = log.mark().await?;
    assert!(
        audit::of_user(&log.since(mark).await?, "somebody").is_empty(),
        "nothing was asked since"
    );

    let mark = log.mark().await?;
    cluster.restart_apiserver().await?;
    maps.get("a")
        .await
        .context("what was written before the restart is there after it")?;
    let requests = audit::of_user(&log.since(mark).await?, "somebody");
    assert_eq!(
        Count::of(&requests).total(),
        1,
        "the log continues after a restart: {requests:?}"
    );

    let dir = cluster.dir.clone();
    cluster.stop().await?;
    ensure!(!dir.exists(), "the temporary folder is gone");
    Ok(())
}

#[tokio::test]
async fn a_detached_control_plane_lives_until_it_is_stopped() -> Result<()> {
    let folder = tempfile::tempdir()?;
    let options = Options {
        dir: Some(folder.path().to_owned()),
        ..Options::default()
    };
    let dir = ControlPlane::start(options).await?.detach().dir;

    let cluster = runway_testbed::Cluster::open(&dir)?;
    let namespaces: Api<Namespace> = Api::all(cluster.admin_client().await?);
    namespaces
        .get("default")
        .await
        .context("it keeps running without its owner")?;
    let output = cluster
        .kubectl()?
        .args(["get", "namespaces", "-o", "name"])
        .output()
        .await?;
    ensure!(
        String::from_utf8_lossy(&output.stdout).contains("namespace/default"),
        "kubectl sees it: {output:?}"
    );

    ControlPlane::stop_detached(&dir).await?;
    ensure!(namespaces.get("default").await.is_err(), "it is gone");
    ControlPlane::stop_detached(&dir)
        .await
        .context("stopping twice does no harm")
}

async fn groups(client: &Client) -> Result<Vec<String>> {
    let reviews: Api<SelfSubjectReview> = Api::all(client.clone());
    let review = reviews
        .create(&PostParams::default(), &SelfSubjectReview::default())
        .await?;
    let user = review.status.and_then(|status| status.user_info);
    Ok(user.and_then(|user| user.groups).unwrap_or_default())
}
