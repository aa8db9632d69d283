//! The current transports. They come from a mounted ConfigMap, which can be created and changed while the operator runs.

use std::io::ErrorKind;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::RwLock;

use crate::transports::{Error, Transports};

/// Interval of reads of the file, which is local.
const LOOK: Duration = Duration::from_secs(5);

/// Current transports.
pub(crate) struct Configuration {
    source: String,
    now: RwLock<Arc<Transports>>,
}

impl Configuration {
    /// Reads the value of `ASYA_TRANSPORT_CONFIG`. A file that does not exist yet means no transports; an invalid one is an error.
    pub(crate) fn load(source: &str) -> Result<Self, Error> {
        Ok(Self {
            source: source.to_owned(),
            now: RwLock::new(Arc::new(read(source)?)),
        })
    }

    pub(crate) fn now(&self) -> Arc<Transports> {
        self.now.read().clone()
    }

    /// Calls `changed` after every change. Invalid transports are logged once and not used.
    pub(crate) async fn follow(&self, changed: impl Fn(&Transports)) {
        let mut reported = None;
        loop {
            tokio::time::sleep(LOOK).await;
            match read(&self.source) {
                Ok(new) if new == *self.now() => reported = None,
                Ok(new) => {
                    let names: Vec<&str> = new.iter().map(|(name, _)| name).collect();
                    tracing::info!(transports = names.join(", "), "transports changed");
                    let new = Arc::new(new);
                    *self.now.write() = new.clone();
                    changed(&new);
                    reported = None;
                }
                Err(error) => {
                    let text = error.to_string();
                    if reported.as_ref() != Some(&text) {
                        tracing::error!(
                            error = text,
                            "cannot use the new transports; the previous ones stay in use"
                        );
                        reported = Some(text);
                    }
                }
            }
        }
    }
}

fn read(source: &str) -> Result<Transports, Error> {
    match Transports::load(source) {
        Err(Error::File { source, .. }) if source.kind() == ErrorKind::NotFound => Ok(Transports::default()),
        other => other,
    }
}
