//! Any bytes as what a broker sends, from its first frame on: signing in and consuming end when the bytes do, without a panic; what
//! is delivered is what was sent, without headers that are the broker's.

use std::io::Cursor;
use std::sync::LazyLock;

use runway_asya_sidecar::transport::rabbitmq::{Config, deliveries_over};

static CONFIG: LazyLock<Config> = LazyLock::new(|| Config::of_script(0));

pub fn run(data: &[u8]) {
    let stream = tokio::io::join(Cursor::new(data.to_vec()), tokio::io::sink());
    for delivery in crate::wait(deliveries_over(stream, &CONFIG)) {
        assert!(delivery.body.len() <= data.len());
        assert!(delivery.unreadable.is_none() || delivery.headers.is_empty());
        assert!(delivery.headers.iter().all(|(name, _)| !name.starts_with("x-")));
        assert_ne!(delivery.deliveries, Some(0), "this delivery counts");
    }
}
