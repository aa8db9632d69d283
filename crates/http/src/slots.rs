//! The open connections, and the choice of the one that makes room for a new one.
//!
//! A connection is at work from the last byte of a request to the first of its response. Any other makes room: the one that
//! has been waiting longest among those of the client with the most connections. So a client that opens connections and says
//! nothing, or sends a request a byte at a time, closes its own ones.

use std::collections::HashMap;
use std::net::{IpAddr, Ipv6Addr};
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, AtomicU64, AtomicUsize, Ordering};

use parking_lot::Mutex;
use tokio_util::sync::CancellationToken;

/// The open connections of a server.
#[derive(Debug)]
pub(crate) struct Slots {
    most: usize,
    open: Mutex<Vec<Arc<Slot>>>,
    /// Counts the moments at which a connection began to wait.
    moments: AtomicU64,
}

/// An open connection.
#[derive(Debug)]
pub(crate) struct Slot {
    pub(crate) client: IpAddr,
    /// Requests that are being worked on.
    working: AtomicUsize,
    waiting_since: AtomicU64,
    /// Cancelled when the connection has to make room.
    pub(crate) closed: CancellationToken,
}

impl Slots {
    pub(crate) fn new(most: usize) -> Self {
        Self {
            most,
            open: Mutex::default(),
            moments: AtomicU64::default(),
        }
    }

    /// A place for a new connection; `None` if all connections are at work.
    pub(crate) fn admit(self: &Arc<Self>, client: IpAddr) -> Option<Place> {
        let mut open = self.open.lock();
        if open.len() >= self.most {
            let victim = victim(&open)?;
            open.swap_remove(victim).closed.cancel();
        }
        let slot = Arc::new(Slot {
            client: network(client),
            working: AtomicUsize::default(),
            waiting_since: AtomicU64::new(self.now()),
            closed: CancellationToken::new(),
        });
        open.push(Arc::clone(&slot));
        Some(Place {
            slots: Arc::clone(self),
            slot,
        })
    }

    fn now(&self) -> u64 {
        self.moments.fetch_add(1, Ordering::Relaxed)
    }
}

/// The place of the connection that makes room.
fn victim(open: &[Arc<Slot>]) -> Option<usize> {
    let mut of_client: HashMap<IpAddr, usize> = HashMap::new();
    for slot in open {
        *of_client.entry(slot.client).or_default() += 1;
    }
    let waiting = open
        .iter()
        .enumerate()
        .filter(|(_, slot)| slot.working.load(Ordering::Relaxed) == 0);
    let order = |slot: &Slot| {
        let others = of_client.get(&slot.client).copied().unwrap_or_default();
        (others, u64::MAX - slot.waiting_since.load(Ordering::Relaxed))
    };
    waiting.max_by_key(|(_, slot)| order(slot)).map(|(place, _)| place)
}

/// One client: an address of IPv4, or the 64 bits of IPv6 that a host has for itself.
fn network(address: IpAddr) -> IpAddr {
    match address.to_canonical() {
        IpAddr::V4(v4) => IpAddr::V4(v4),
        IpAddr::V6(v6) => IpAddr::V6(Ipv6Addr::from_bits(v6.to_bits() >> 64 << 64)),
    }
}

/// A connection's place among the open ones, until it is dropped.
#[derive(Debug)]
pub(crate) struct Place {
    slots: Arc<Slots>,
    pub(crate) slot: Arc<Slot>,
}

impl Place {
    /// A request that is being received.
    pub(crate) fn request(self: &Arc<Self>) -> Work {
        Work {
            place: Arc::clone(self),
            stage: AtomicU8::new(Work::RECEIVING),
        }
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        self.slots.open.lock().retain(|slot| !Arc::ptr_eq(slot, &self.slot));
    }
}

/// A request, until its response begins or the client disconnects.
#[derive(Debug)]
pub(crate) struct Work {
    place: Arc<Place>,
    stage: AtomicU8,
}

impl Work {
    const RECEIVING: u8 = 0;
    const WORKING: u8 = 1;
    const DONE: u8 = 2;

    /// The request is complete: its connection no longer makes room.
    pub(crate) fn begins(&self) {
        let order = Ordering::Relaxed;
        let began = self
            .stage
            .compare_exchange(Self::RECEIVING, Self::WORKING, order, order);
        if began.is_ok() {
            self.place.slot.working.fetch_add(1, order);
        }
    }

    /// The response begins.
    pub(crate) fn ends(&self) {
        if self.stage.swap(Self::DONE, Ordering::Relaxed) == Self::WORKING {
            let slot = &self.place.slot;
            slot.waiting_since.store(self.place.slots.now(), Ordering::Relaxed);
            slot.working.fetch_sub(1, Ordering::Relaxed);
        }
    }
}

impl Drop for Work {
    fn drop(&mut self) {
        self.ends();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ATTACKER: IpAddr = IpAddr::V4(std::net::Ipv4Addr::new(10, 0, 0, 1));
    const OTHER: IpAddr = IpAddr::V4(std::net::Ipv4Addr::new(10, 0, 0, 2));

    fn is_closed(place: &Place) -> bool {
        place.slot.closed.is_cancelled()
    }

    #[test]
    fn the_connection_that_waits_longest_makes_room() {
        let slots = Arc::new(Slots::new(2));
        let first = Arc::new(slots.admit(OTHER).unwrap());
        let second = slots.admit(OTHER).unwrap();
        let request = first.request();
        request.begins();
        request.ends();
        let third = slots.admit(OTHER).unwrap();
        assert!(is_closed(&second) && !is_closed(&first) && !is_closed(&third));
        drop(second);
        assert_eq!(slots.open.lock().len(), 2);
    }

    #[test]
    fn a_client_with_many_connections_closes_its_own() {
        let slots = Arc::new(Slots::new(4));
        let old = slots.admit(OTHER).unwrap();
        let many: Vec<_> = (0..100).map(|_| slots.admit(ATTACKER).unwrap()).collect();
        assert!(!is_closed(&old));
        assert_eq!(many.iter().filter(|place| !is_closed(place)).count(), 3);
        assert!(slots.admit(OTHER).is_some() && !is_closed(&old));
    }

    #[test]
    fn connections_at_work_stay_and_the_new_one_is_refused() {
        let slots = Arc::new(Slots::new(1));
        let place = Arc::new(slots.admit(OTHER).unwrap());
        let request = place.request();
        request.begins();
        assert!(slots.admit(OTHER).is_none());
        request.ends();
        assert!(slots.admit(OTHER).is_some() && is_closed(&place));
    }

    #[test]
    fn addresses_of_one_host_are_one_client() {
        let network = |text: &str| network(text.parse().unwrap());
        assert_eq!(network("2001:db8::1"), network("2001:db8::ffff:1"));
        assert_ne!(network("2001:db8::1"), network("2001:db8:0:1::1"));
        assert_eq!(network("::ffff:10.0.0.1"), network("10.0.0.1"));
    }
}
