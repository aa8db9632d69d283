//! Limits that two routers share, with a real API server and a real Valkey.

mod support;

use anyhow::{Context as _, Result, ensure};
use axum::http::StatusCode;
use runway_testbed::traffic::{Answer, NAMESPACE};
use runway_testbed::{PATIENCE, Valkey, eventually};
use support::{Engine, KEY, Router, World};

/// Requests a minute: so many that the limit frees less than one while the test runs.
const LIMIT: u64 = 12;
const LIMITS: &str = "
limits:
- {name: all, requestsPerMinute: 12}
- {name: watched, requestsPerMinute: 1, dryRun: true}
- {name: tokens, match: {models: [a/two]}, tokensPerDay: 1}
";

/// Requests of both routers in turn, until one is refused.
async fn until_refused(routers: &[Router], model: &str) -> Result<(u64, Answer)> {
    let (mut answered, mut in_turn) = (0, routers.iter().cycle());
    loop {
        let router = in_turn.next().context("a router")?;
        let answer = router.chat(KEY, model).await?;
        if answer.status != StatusCode::OK {
            return Ok((answered, answer));
        }
        answered += 1;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn routers_share_a_limit_and_count_alone_while_the_counters_are_away() -> Result<()> {
    let (world, valkey) = tokio::join!(World::start(), Valkey::start("limits that routers share"));
    let (world, Some(mut valkey)) = (world?, valkey?) else {
        return Ok(());
    };
    let engine = Engine::start("engine").await?;
    for name in ["one", "two"] {
        world.model(NAMESPACE, name, name, 1).await?;
        world.serves(NAMESPACE, name, engine.port).await?;
    }
    let folder = tempfile::tempdir()?;
    let file = folder.path().join("limits.yaml");
    std::fs::write(&file, LIMITS)?;
    let limits = format!("--limits={}", file.display());
    let counters = format!("--counters={}", valkey.url());
    let args = ["--plain-http", &limits, &counters, "--routers=2"];
    let start = async || world.router(&args).await?.ready().await;
    let routers = [start().await?, start().await?];

    let (answered, refused) = until_refused(&routers, "one").await?;
    ensure!(answered == LIMIT, "{answered}: {refused:?}");
    ensure!(refused.status == StatusCode::TOO_MANY_REQUESTS, "{refused:?}");
    ensure!(
        refused
            .text
            .contains("limit 'all' of key:shop is reached, 12 requests a minute"),
        "{refused:?}"
    );
    ensure!(
        refused.headers["retry-after"].to_str()?.parse::<u64>()? <= 5,
        "{refused:?}"
    );
    ensure!(refused.headers["x-ratelimit-limit-requests"] == "12", "{refused:?}");
    let text = routers.each_ref().map(|router| router.metrics.text()).concat();
    ensure!(
        text.contains(r#"rule="watched",quantity="requests_per_minute",dry_run="true""#),
        "{text}"
    );
    ensure!(text.contains("limit_counters_away_total 0"), "{text}");

    // Without the counters, each has its half.
    valkey.kill();
    let (answered, refused) = until_refused(&routers, "one").await?;
    ensure!((LIMIT..=LIMIT + 2).contains(&answered), "{answered}: {refused:?}");
    ensure!(routers[0].metrics.text().contains("limited_requests_total"));

    // Back again, without what was counted before.
    valkey.restart().await?;
    eventually(PATIENCE, async || {
        let answer = routers[0].chat(KEY, "one").await?;
        ensure!(answer.status == StatusCode::OK, "{answer:?}");
        Ok(())
    })
    .await?;

    // Tokens count when the response has ended, for both.
    ensure!(routers[0].chat(KEY, "two").await?.status == StatusCode::OK);
    eventually(PATIENCE, async || {
        let refused = routers[1].chat(KEY, "two").await?;
        ensure!(
            refused.text.contains("limit 'tokens' of key:shop is reached"),
            "{refused:?}"
        );
        Ok(())
    })
    .await?;
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn url_of_other_servers_is_refused() -> Result<()> {
    let world = World::start().await?;
    let router = world.router(&["--plain-http", "--counters=http://localhost"]).await?;
    let error = format!(
        "{:#}",
        router.ended().await.err().unwrap_or_else(|| anyhow::anyhow!("it runs"))
    );
    ensure!(error.contains("invalid --counters: use redis://"), "{error}");
    Ok(())
}
