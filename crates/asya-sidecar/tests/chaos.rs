//! No message is lost if sidecars, runtimes and the broker are killed, cut off or hang. `cargo xtask bench asya --chaos` runs the full size.

use runway_testbed::chaos::{self, ChaosOptions};
use runway_testbed::{RabbitMq, RabbitMqOptions};

mod support;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_message_is_lost_when_processes_are_killed_or_hang() -> anyhow::Result<()> {
    let mut rabbit = RabbitMq::start(RabbitMqOptions::default()).await?;
    let programs = support::programs(support::runtime(&[]));
    let options = ChaosOptions {
        envelopes: 5_000,
        faults: 20,
        prefetch: 20,
        seed: 0x5eed,
    };
    let report = chaos::run(&mut rabbit, &programs, options, |_, _| {}).await?;
    rabbit.stop().await;

    println!("{report:?}");
    assert!(report.lost.is_empty(), "lost: {:?}", report.lost);
    assert!(report.duplicates <= report.duplicates_allowed, "{report:?}");
    assert_eq!(report.failed, 0, "{report:?}");
    assert!(report.faults.iter().all(|count| *count > 0), "{report:?}");
    assert_eq!(report.faults.iter().sum::<usize>(), options.faults);
    Ok(())
}
