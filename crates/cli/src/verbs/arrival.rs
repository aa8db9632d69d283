//! Waiting until a ModelDeployment runs on a provider.

use std::time::Duration;

use runway_api::{ModelDeployment, Phase};
use runway_client::diagnostic::one_line;
use runway_client::text;

use super::Error;
use crate::patience::Patience;
use crate::terminal::Terminal;

/// Outcome of a wait.
pub enum Arrival {
    /// It runs. Also one that is scaled to zero.
    Running,
    /// It has failed, with this message of its status.
    Failed(String),
    /// It does neither in time. With the last message.
    Late(String),
}

impl Arrival {
    /// Reason why it does not run; `None` if it does.
    pub fn obstacle(self, timeout: Duration) -> Option<String> {
        match self {
            Self::Running => None,
            Self::Failed(message) => Some(one_line(&message)),
            Self::Late(message) => {
                let (after, message) = (text::age(timeout), one_line(&message));
                Some(format!("it is not Running after {after}: {message}"))
            }
        }
    }
}

/// Waits until the ModelDeployment runs on provider `to` with its current spec, or has failed, and reports progress, each line after
/// `label`.
///
/// # Errors
/// The ModelDeployment cannot be read.
pub async fn arrival(
    read: impl AsyncFn() -> Result<ModelDeployment, Error>,
    to: &str,
    timeout: Duration,
    label: impl Fn(&ModelDeployment) -> String,
    terminal: &mut Terminal<'_>,
) -> Result<Arrival, Error> {
    let mut patience = Patience::of(timeout);
    loop {
        let md = read().await?;
        let status = md.status.clone().unwrap_or_default();
        let message = status.message.unwrap_or_default();
        let phase = status.phase.map_or("no phase", Phase::as_str);
        let line = format!("{}: {phase} {}", label(&md), one_line(&message));
        patience.say(line.trim_end(), terminal);
        let arrived = md.selected_provider() == Some(to) && status.observed_generation == md.metadata.generation;
        match status.phase {
            _ if arrived && md.serving_state().is_as_desired() => return Ok(Arrival::Running),
            Some(Phase::Failed) if arrived => return Ok(Arrival::Failed(message)),
            _ if patience.lasts().await => {}
            _ => return Ok(Arrival::Late(message)),
        }
    }
}
