//! Messages during whose call the runtime died. They return to the queue, and brokers do not count deliveries reliably.

use std::collections::VecDeque;

use parking_lot::Mutex;
use sha2::{Digest as _, Sha256};

/// Largest number of messages to remember. The oldest is forgotten first.
const MOST: usize = 1024;

/// Digest of a message.
pub type Key = [u8; 32];

/// Number of crashes by message.
#[derive(Debug, Default)]
pub struct Crashes(Mutex<VecDeque<(Key, u32)>>);

impl Crashes {
    /// Number of calls with this message during which the runtime died.
    pub fn of(&self, body: &[u8]) -> u32 {
        let known = self.0.lock();
        // Almost always empty, so the digest is not computed.
        if known.is_empty() {
            return 0;
        }
        let key = key(body);
        known
            .iter()
            .find(|(other, _)| *other == key)
            .map_or(0, |(_, count)| *count)
    }

    /// Remembers the number of crashes of a message; 0 forgets it.
    pub fn set(&self, body: &[u8], count: u32) {
        let mut known = self.0.lock();
        if known.is_empty() && count == 0 {
            return;
        }
        let key = key(body);
        known.retain(|(other, _)| *other != key);
        if count > 0 {
            known.push_back((key, count));
            let surplus = known.len().saturating_sub(MOST);
            known.drain(..surplus);
        }
    }
}

/// Digest of a message.
pub fn key(body: &[u8]) -> Key {
    Sha256::digest(body).into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn crashes_are_remembered_by_message_until_they_are_forgotten() {
        let crashes = Crashes::default();
        assert_eq!(crashes.of(b"a"), 0);
        crashes.set(b"a", 1);
        crashes.set(b"a", 2);
        assert_eq!((crashes.of(b"a"), crashes.of(b"b")), (2, 0));
        crashes.set(b"a", 0);
        assert_eq!((crashes.of(b"a"), crashes.0.lock().len()), (0, 0));
    }

    #[test]
    fn oldest_message_is_forgotten_first() {
        let crashes = Crashes::default();
        for number in 0..=MOST {
            crashes.set(&number.to_be_bytes(), 1);
        }
        assert_eq!(crashes.of(&0_usize.to_be_bytes()), 0);
        assert_eq!(crashes.of(&1_usize.to_be_bytes()), 1);
        assert_eq!(crashes.0.lock().len(), MOST);
    }
}
