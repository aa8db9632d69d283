//! No message is lost if sidecars, runtimes and the broker are killed, cut off or hang, if targets are down, and if
//! messages cannot be finished. `cargo xtask bench asya --chaos` runs the full size.

#![allow(clippy::print_stdout, reason = "the figures are of use when the test passes, too")]

use anyhow::Result;
use runway_asya_testbed::chaos::{self, ChaosOptions, ChaosReport};
use runway_testbed::{RabbitMq, RabbitMqOptions, Sqs, sqs};

mod support;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_message_is_lost_on_rabbitmq_under_faults() -> Result<()> {
    let options = ChaosOptions {
        envelopes: 5_000,
        faults: 20,
        prefetch: 8,
        seed: 0x5eed,
    };
    let mut rabbit = RabbitMq::start(RabbitMqOptions::default()).await?;
    let programs = support::programs(support::runtime(&[]));
    let report = chaos::on_rabbitmq(&mut rabbit, &programs, options, |_, _| {}).await?;
    rabbit.stop().await;
    check(&report, options)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_message_is_lost_on_sqs_under_faults() -> Result<()> {
    if sqs::skip("the sidecar on SQS under faults") {
        return Ok(());
    }
    let options = ChaosOptions {
        envelopes: 200,
        faults: 12,
        prefetch: 10,
        seed: 0x5eed,
    };
    let server = Sqs::start().await?;
    let programs = support::programs(support::runtime(&[]));
    let report = chaos::on_sqs(&server, &programs, options, |_, _| {}).await?;
    check(&report, options)
}

fn check(report: &ChaosReport, options: ChaosOptions) -> Result<()> {
    println!("{report:?}");
    report.check()?;
    assert!(report.faults.values().all(|count| *count > 0), "{report:?}");
    assert_eq!(report.faults.values().sum::<usize>(), options.faults);
    let mut reasons = report.failed.keys();
    assert!(
        reasons.any(|reason| reason != "routing_error"),
        "the limit of deliveries was not exceeded"
    );
    Ok(())
}
