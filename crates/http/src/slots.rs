//! The open connections, and the choice of the one that makes room for a new one.
//!
//! A connection is at work from the last byte of a request to the first of its response. Any other makes room: the one that
//! has been waiting longest among those of the client with the most connections. So a client that opens connections and says
//! nothing, or sends a request a byte at a time, closes its own ones.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::net::{IpAddr, Ipv6Addr};
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};

use parking_lot::{Mutex, MutexGuard};
use tokio_util::sync::CancellationToken;

/// The open connections of a server.
#[derive(Debug)]
pub(crate) struct Slots {
    most: usize,
    open: Mutex<Open>,
}

/// Connections by client, in the order in which they make room. A change costs about the same however many there are, because clients
/// open and close connections faster than a server could search all of them.
#[derive(Debug, Default)]
struct Open {
    all: usize,
    clients: HashMap<IpAddr, Connections>,
    /// Clients with a waiting connection. The last one makes room.
    order: BTreeSet<Rank>,
    /// Counts the moments at which a connection began to wait.
    moments: u64,
}

/// Number of a client's connections, the moment since which one of them waits, and the client.
type Rank = (usize, Reverse<u64>, IpAddr);

/// Connections of a client.
#[derive(Debug, Default)]
struct Connections {
    all: usize,
    /// Those that wait, by the moment at which they began to.
    waiting: BTreeMap<u64, Arc<Slot>>,
}

/// An open connection.
#[derive(Debug)]
pub(crate) struct Slot {
    pub(crate) client: IpAddr,
    state: Mutex<State>,
    /// Cancelled when the connection has to make room.
    pub(crate) closed: CancellationToken,
}

/// State of a connection.
#[derive(Debug, Default)]
struct State {
    /// Requests that are being worked on.
    working: usize,
    waiting_since: u64,
}

impl Slots {
    pub(crate) fn new(most: usize) -> Self {
        Self {
            most,
            open: Mutex::default(),
        }
    }

    /// A place for a new connection; `None` if all connections are at work.
    pub(crate) fn admit(self: &Arc<Self>, client: IpAddr) -> Option<Place> {
        let mut open = self.open.lock();
        if open.all >= self.most {
            let (_, _, client) = *open.order.last()?;
            open.change(client, Connections::make_room);
        }
        let slot = Arc::new(Slot {
            client: network(client),
            state: Mutex::default(),
            closed: CancellationToken::new(),
        });
        open.change(slot.client, |connections| connections.all += 1);
        open.wait(&slot, &mut slot.state.lock());
        Some(Place {
            slots: Arc::clone(self),
            slot,
        })
    }
}

impl Open {
    /// Changes the connections of a client.
    fn change(&mut self, client: IpAddr, change: impl FnOnce(&mut Connections)) {
        let connections = self.clients.entry(client).or_default();
        if let Some(rank) = connections.rank(client) {
            self.order.remove(&rank);
        }
        self.all -= connections.all;
        change(connections);
        self.all += connections.all;
        if let Some(rank) = connections.rank(client) {
            self.order.insert(rank);
        }
        if connections.all == 0 {
            self.clients.remove(&client);
        }
    }

    /// A connection waits from now on.
    fn wait(&mut self, slot: &Arc<Slot>, state: &mut State) {
        state.waiting_since = self.moments;
        self.moments += 1;
        let waiting = (state.waiting_since, Arc::clone(slot));
        self.change(slot.client, |connections| connections.waiting.extend([waiting]));
    }
}

impl Connections {
    fn rank(&self, client: IpAddr) -> Option<Rank> {
        let (since, _) = self.waiting.first_key_value()?;
        Some((self.all, Reverse(*since), client))
    }

    /// Closes the connection that has waited longest.
    fn make_room(&mut self) {
        if let Some((_, slot)) = self.waiting.pop_first() {
            self.all -= 1;
            slot.closed.cancel();
        }
    }
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

    /// The open connections and the state of this one, unless it has made room.
    fn open(&self) -> Option<(MutexGuard<'_, Open>, MutexGuard<'_, State>)> {
        let open = self.slots.open.lock();
        (!self.slot.closed.is_cancelled()).then(|| (open, self.slot.state.lock()))
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let Some((mut open, state)) = self.open() else { return };
        open.change(self.slot.client, |connections| {
            connections.waiting.remove(&state.waiting_since);
            connections.all -= 1;
        });
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
        if began.is_ok()
            && let Some((mut open, mut state)) = self.place.open()
        {
            state.working += 1;
            open.change(self.place.slot.client, |connections| {
                connections.waiting.remove(&state.waiting_since);
            });
        }
    }

    /// The response begins.
    pub(crate) fn ends(&self) {
        if self.stage.swap(Self::DONE, Ordering::Relaxed) == Self::WORKING
            && let Some((mut open, mut state)) = self.place.open()
        {
            state.working -= 1;
            if state.working == 0 {
                open.wait(&self.place.slot, &mut state);
            }
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
    use std::collections::VecDeque;
    use std::time::{Duration, Instant};

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
        assert_eq!(slots.open.lock().all, 2);
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

    /// Time that a server with at most so many connections, all of them taken, needs for a new one that makes the oldest leave.
    fn time_of_admission(most: usize) -> Duration {
        let slots = Arc::new(Slots::new(most));
        let mut places: VecDeque<_> = (0..most).filter_map(|_| slots.admit(ATTACKER)).collect();
        let begun = Instant::now();
        for _ in 0..2000 {
            places.push_back(slots.admit(ATTACKER).unwrap());
            assert!(places.pop_front().is_some_and(|place| is_closed(&place)));
        }
        begun.elapsed()
    }

    #[test]
    fn admission_costs_about_the_same_with_two_hundred_times_the_connections() {
        let fastest = |most| (0..5).map(|_| time_of_admission(most)).min().unwrap();
        let (few, many) = (fastest(100), fastest(20_000));
        assert!(many < 20 * few, "{few:?} with 100 connections, {many:?} with 20,000");
    }

    #[test]
    fn addresses_of_one_host_are_one_client() {
        let network = |text: &str| network(text.parse().unwrap());
        assert_eq!(network("2001:db8::1"), network("2001:db8::ffff:1"));
        assert_ne!(network("2001:db8::1"), network("2001:db8:0:1::1"));
        assert_eq!(network("::ffff:10.0.0.1"), network("10.0.0.1"));
    }
}
