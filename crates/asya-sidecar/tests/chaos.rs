//! No message is lost if processes are killed at random points. `cargo xtask bench asya --chaos` runs the full size.

use runway_testbed::chaos::{self, ChaosOptions};
use runway_testbed::{RabbitMq, RabbitMqOptions};

mod support;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_message_is_lost_when_processes_are_killed() -> anyhow::Result<()> {
    let rabbit = RabbitMq::start(RabbitMqOptions::default()).await?;
    let programs = support::programs(support::runtime(&[]));
    let options = ChaosOptions {
        envelopes: 5_000,
        kills: 20,
        prefetch: 20,
        seed: 0x5eed,
    };
    let report = chaos::run(&rabbit, &programs, options, |_, _| {}).await?;
    rabbit.stop().await;

    println!("{report:?}");
    assert!(report.lost.is_empty(), "lost: {:?}", report.lost);
    assert!(report.duplicates <= report.duplicates_allowed, "{report:?}");
    assert_eq!(report.failed, 0, "{report:?}");
    assert_eq!(report.kills.iter().sum::<usize>(), options.kills);
    Ok(())
}
