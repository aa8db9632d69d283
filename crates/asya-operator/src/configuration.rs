//! The transports that the operator works with: a mounted ConfigMap comes, and changes, under a running operator.

use std::io::ErrorKind;
use std::sync::{Arc, PoisonError, RwLock};
use std::time::Duration;

use crate::transports::{Error, Transports};

/// How often the file is looked at. Local, so nobody else notices.
const LOOK: Duration = Duration::from_secs(5);

/// What is configured now.
pub(crate) struct Configuration {
    source: String,
    now: RwLock<Arc<Transports>>,
}

impl Configuration {
    /// Reads the value of `ASYA_TRANSPORT_CONFIG`. A file that is not there yet holds no transport; one that cannot be used is an error.
    pub(crate) fn load(source: &str) -> Result<Self, Error> {
        Ok(Self {
            source: source.to_owned(),
            now: RwLock::new(Arc::new(read(source)?)),
        })
    }

    pub(crate) fn now(&self) -> Arc<Transports> {
        self.now.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Tells `changed` of every change. What cannot be used is told in the log, once, and changes nothing.
    pub(crate) async fn follow(&self, changed: impl Fn(&Transports)) {
        let mut told = None;
        loop {
            tokio::time::sleep(LOOK).await;
            match read(&self.source) {
                Ok(new) if new == *self.now() => told = None,
                Ok(new) => {
                    let names: Vec<&str> = new.iter().map(|(name, _)| name).collect();
                    tracing::info!(transports = names.join(", "), "transports changed");
                    let new = Arc::new(new);
                    *self.now.write().unwrap_or_else(PoisonError::into_inner) = new.clone();
                    changed(&new);
                    told = None;
                }
                Err(error) => {
                    let text = error.to_string();
                    if told.as_ref() != Some(&text) {
                        tracing::error!(
                            error = text,
                            "cannot use the new transports; the previous ones stay in use"
                        );
                        told = Some(text);
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
