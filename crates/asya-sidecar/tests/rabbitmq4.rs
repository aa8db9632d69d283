//! Sidecars on a cluster of three nodes of RabbitMQ 4: quorum queues under kills, partitions and alarms of nodes. Only
//! `cargo xtask test --lane rabbitmq4` runs these tests.

#![allow(clippy::print_stdout, reason = "the figures are of use when the test passes, too")]

use anyhow::Result;
use runway_asya_testbed::chaos::{self, ChaosOptions, Fault};
use runway_testbed::RabbitMqCluster;

mod support;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "run by cargo xtask test --lane rabbitmq4"]
async fn no_message_is_lost_in_a_cluster_under_faults() -> Result<()> {
    let Some(mut cluster) = RabbitMqCluster::start("a cluster of RabbitMQ 4 under faults").await? else {
        return Ok(());
    };
    let options = ChaosOptions {
        envelopes: 100_000,
        faults: 22,
        prefetch: 20,
        seed: 0x5eed,
    };
    let programs = support::programs(support::runtime(&[]));
    let report = chaos::on_rabbitmq_cluster(&mut cluster, &programs, options, |_, _| {}).await?;
    println!("{report:?}");
    report.check()?;
    for fault in [Fault::Broker, Fault::Partition, Fault::Alarm] {
        assert!(report.faults.get(&fault) > Some(&1), "{report:?}");
    }
    Ok(())
}
