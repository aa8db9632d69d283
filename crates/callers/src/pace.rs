//! Questions in one second, bounded in all and for each address. Pure.

use std::collections::VecDeque;
use std::net::IpAddr;
use std::time::Duration;

use tokio::time::Instant;

const SECOND: Duration = Duration::from_secs(1);

/// At most some questions in any second. One address has at most half of those that the others leave, so that there is always one
/// for another address.
#[derive(Debug)]
pub(crate) struct Pace {
    most: usize,
    /// Those of the last second, the oldest first.
    begun: VecDeque<(Instant, IpAddr)>,
}

impl Pace {
    pub(crate) fn new(most: usize) -> Self {
        Self {
            most,
            begun: VecDeque::new(),
        }
    }

    /// Begins a question for an address.
    ///
    /// # Errors
    /// There are too many. With the time at which that changes.
    pub(crate) fn begin(&mut self, address: IpAddr, now: Instant) -> Result<(), Instant> {
        while self.begun.front().is_some_and(|(begun, _)| *begun + SECOND <= now) {
            self.begun.pop_front();
        }
        let own = self.begun.iter().filter(|(_, of)| *of == address).count();
        let left = self.most.saturating_sub(self.begun.len() - own);
        if own < left / 2 {
            self.begun.push_back((now, address));
            return Ok(());
        }
        let oldest = self.begun.front().map_or(now, |(begun, _)| *begun);
        Err(oldest + SECOND)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn address(last: u8) -> IpAddr {
        IpAddr::from([10, 0, 0, last])
    }

    /// The number of questions that an address begins at once.
    fn begun(pace: &mut Pace, last: u8, now: Instant) -> usize {
        (0..100).filter(|_| pace.begin(address(last), now).is_ok()).count()
    }

    #[test]
    fn each_address_leaves_half_to_others_in_any_second() {
        let (mut pace, now) = (Pace::new(50), Instant::now());
        assert_eq!([1, 2, 3].map(|last| begun(&mut pace, last, now)), [25, 12, 6]);
        assert_eq!(pace.begin(address(1), now), Err(now + SECOND));
        let later = now + SECOND - Duration::from_millis(1);
        assert_eq!(begun(&mut pace, 1, later), 0);
        assert_eq!(begun(&mut pace, 1, now + SECOND), 25);
    }
}
