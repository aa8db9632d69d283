//! Use by day, with a real API server: routers add to one ConfigMap.

mod support;

use anyhow::{Context as _, Result, ensure};
use k8s_openapi::api::core::v1::ConfigMap;
use kube::Api;
use runway_api::daily_usage::{self, CONFIG_MAP, Day};
use runway_testbed::traffic::{NAMESPACE, ROUTER};
use serde_json::json;
use support::{Engine, KEY, World};

const NAMES: [&str; 2] = ["one", "two"];
const REQUESTS: u64 = 10;

#[tokio::test(flavor = "multi_thread")]
async fn routers_that_end_have_written_all_requests_of_each_tenant() -> Result<()> {
    let world = World::start().await?;
    let map =
        json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": CONFIG_MAP, "namespace": NAMESPACE}});
    world.apply(map).await?;
    let rule = serde_json::to_value([runway_router::daily::access_in_namespace()])?;
    world
        .role("usage", &rule, &json!({"kind": "User", "name": ROUTER}))
        .await?;
    let token = world.token("shop", Some(&["one", "two"])).await?;
    let engine = Engine::start("engine").await?;
    for name in NAMES {
        world.model(NAMESPACE, name, name, 1).await?;
        world.serves(NAMESPACE, name, engine.port).await?;
    }
    let namespace = format!("--tls-namespace={NAMESPACE}");
    let start = async || world.router(&["--plain-http", &namespace]).await?.ready().await;
    let routers = [start().await?, start().await?];
    for router in &routers {
        for (credential, model) in [(KEY, "one"), (&token, "two")] {
            for _ in 0..REQUESTS {
                ensure!(router.chat(credential, model).await?.status == 200);
            }
        }
        ensure!(router.chat(KEY, "absent").await?.status == 404);
    }
    for router in &routers {
        router.shutdown.cancel();
    }
    for router in routers {
        router.ended().await?;
    }
    let maps: Api<ConfigMap> = Api::namespaced(world.admin.clone(), NAMESPACE);
    let data = maps.get(CONFIG_MAP).await?.data.context("no use is written")?;
    // Two, if the test runs at midnight.
    let mut sum = Day::new();
    for (user, used) in data.values().flat_map(|text| daily_usage::read(text).0) {
        sum.entry(user).or_default().add(used);
    }
    let seen: Vec<(String, String, u64)> = sum
        .into_iter()
        .map(|(user, used)| (user.model, user.tenant, used.requests))
        .collect();
    let expected = [("one", "key:shop"), ("two", "namespace:default")]
        .map(|(model, tenant)| (model.to_owned(), tenant.to_owned(), 2 * REQUESTS));
    ensure!(seen == expected, "{seen:?}");
    Ok(())
}
