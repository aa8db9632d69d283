//! Chooses the replica of a model that gets a request: by the requests in flight at each, and by the prompts that each has seen.
//!
//! An engine keeps the work on a prompt for a while, and a request whose prompt begins in the same way skips that part. So a
//! request goes to the replica that has seen the longest beginning of its prompt, unless that replica has more than its share of
//! the requests in flight ("consistent hashing with bounded loads", Mirrokni et al., 2016); otherwise to the replica with the
//! fewest. A replica that is new gets a growing share, and one that fails gets none for a while.
//!
//! Each router counts its own requests. Several routers choose well together because each spreads its own.

use std::collections::HashMap;
use std::fmt;
use std::net::SocketAddr;
use std::num::NonZeroUsize;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use lru::LruCache;
use parking_lot::Mutex;
use prometheus_client::encoding::EncodeLabelValue;
use runway_api::choice::{self, Version};
use runway_operator::services::ServicePort;
use tokio::time::Instant;

use crate::prompt::Prompt;

/// Requests in flight that a replica may have whatever the others have: an engine works on several at once.
const ALWAYS: f64 = 4.0;
/// Largest share of the requests in flight for a replica that is chosen for its prompts, relative to an even share.
const LARGEST_SHARE: f64 = 1.25;
/// Time in which the share of a new replica grows from the least to an even one.
const SLOW_START: Duration = Duration::from_secs(30);
/// Share of a replica that is just ready, relative to an even one.
const LEAST_SHARE: f64 = 0.1;
/// Failed responses in a row after which a replica gets no requests for a while.
const FAILURES: u32 = 5;
/// First time without requests after failures. It doubles with each.
const EJECTED: Duration = Duration::from_secs(1);
/// Longest time without requests after failures.
const LONGEST_EJECTED: Duration = Duration::from_secs(30);
/// Blocks of prompts that are remembered for each replica: as 2 MiB of text, which is more than most engines keep.
const BLOCKS: NonZeroUsize = NonZeroUsize::new(8192).unwrap();
/// Blocks that are remembered for all replicas of all models: about 64 MiB.
const ALL_BLOCKS: usize = 1 << 20;
/// Time after which a Service without requests is forgotten.
const FORGOTTEN: Duration = Duration::from_mins(10);

/// A replica of a model.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Replica {
    /// Name of the pod.
    pub pod: Arc<str>,
    /// Address of the API.
    pub address: SocketAddr,
}

/// Replicas behind a Service.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Replicas {
    /// Those that are ready.
    pub all: Vec<Replica>,
    /// They are engines. Otherwise they are frontends of an upstream that chooses the engine by prompts itself.
    pub are_engines: bool,
}

/// Chooses replicas. Cheap to clone.
#[derive(Clone, Debug, Default)]
pub struct Balancer(Arc<Shared>);

#[derive(Debug, Default)]
struct Shared {
    services: Mutex<HashMap<ServicePort, Arc<Mutex<Service>>>>,
    blocks: Arc<AtomicUsize>,
}

/// The replicas of a Service, and what is known about each.
#[derive(Debug)]
struct Service {
    known: Vec<Known>,
    /// Choices so far: of equal replicas, each has its turn.
    turn: usize,
    used: Instant,
}

#[derive(Debug)]
struct Known {
    replica: Replica,
    in_flight: u32,
    /// Time since which it is ready, if others were before.
    new_since: Option<Instant>,
    failures: u32,
    ejected_until: Option<Instant>,
    seen: Seen,
}

/// A chosen replica. It has one request more in flight until this is dropped.
#[derive(Debug)]
pub struct Chosen {
    /// Address of the API.
    pub address: SocketAddr,
    /// The choice, for people.
    pub decision: Decision,
    service: Arc<Mutex<Service>>,
}

/// A choice, and what led to it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Decision {
    /// Name of the chosen pod.
    pub pod: Arc<str>,
    /// Deciding criterion.
    pub reason: Reason,
    /// Blocks of the prompt, of 256 bytes each.
    pub blocks: usize,
    /// First blocks of the prompt that the pod has seen.
    pub matched: usize,
    /// Requests in flight at the pod, without this one.
    pub in_flight: u32,
    /// Replicas that were ready.
    pub replicas: usize,
}

/// Criterion that decides a choice.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, EncodeLabelValue)]
#[allow(non_camel_case_types, reason = "the label value is the name")]
pub enum Reason {
    /// It is the only replica.
    only,
    /// It has seen the longest beginning of the prompt.
    prefix,
    /// It has the fewest requests in flight, and no replica has seen the beginning of the prompt.
    load,
    /// It has the fewest requests in flight, because those that have seen the beginning of the prompt have too many.
    busy,
}

impl fmt::Display for Decision {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            pod,
            reason,
            blocks,
            matched,
            in_flight,
            replicas,
        } = self;
        let reason = format!("{reason:?}");
        write!(
            f,
            "pod={pod}; reason={reason}; seen={matched}/{blocks}; in-flight={in_flight}; replicas={replicas}"
        )
    }
}

impl Reason {
    /// All reasons.
    pub const ALL: [Self; 4] = [Self::only, Self::prefix, Self::load, Self::busy];
}

/// A replica at the time of a choice.
#[derive(Clone, Copy, Debug)]
struct Candidate {
    index: usize,
    in_flight: f64,
    /// Share of the requests relative to that of a replica that is not new.
    share: f64,
    matched: usize,
}

impl Candidate {
    /// Order by load: the time that one more request would wait.
    fn load(&self) -> f64 {
        (self.in_flight + 1.0) / self.share
    }
}

impl Balancer {
    /// Chooses one of the replicas of a Service, except those that were tried. `None` if no other is left.
    pub fn choose(
        &self,
        at: &ServicePort,
        replicas: Replicas,
        prompt: &Prompt,
        tried: &[SocketAddr],
        now: Instant,
    ) -> Option<Chosen> {
        let shared = self.service(at, now);
        let mut service = shared.lock();
        service.used = now;
        let blocks = if replicas.are_engines { prompt.blocks() } else { &[] };
        service.update(replicas.all, &self.0.blocks, now);
        service.turn = service.turn.wrapping_add(1);
        let (index, reason, matched) = service.best(blocks, tried, now)?;
        let count = service.known.len();
        let known = &mut service.known[index];
        let decision = Decision {
            pod: Arc::clone(&known.replica.pod),
            reason,
            blocks: blocks.len(),
            matched,
            in_flight: known.in_flight,
            replicas: count,
        };
        known.in_flight += 1;
        known.seen.see(blocks);
        let address = known.replica.address;
        drop(service);
        Some(Chosen {
            address,
            decision,
            service: shared,
        })
    }

    /// Explains the choice for a prompt, without choosing.
    pub fn explain(&self, at: &ServicePort, replicas: Replicas, prompt: &Prompt, now: Instant) -> Version {
        let shared = self.service(at, now);
        let mut service = shared.lock();
        let blocks = if replicas.are_engines { prompt.blocks() } else { &[] };
        service.update(replicas.all, &self.0.blocks, now);
        let best = service.best(blocks, &[], now);
        let replicas = service.known.iter().enumerate().map(|(index, known)| choice::Replica {
            pod: known.replica.pod.to_string(),
            in_flight: known.in_flight,
            seen: known.seen.matched(blocks),
            state: known.state(now).to_owned(),
            chosen: best.is_some_and(|(best, ..)| best == index),
        });
        Version {
            blocks: blocks.len(),
            reason: best.map(|(_, reason, _)| format!("{reason:?}")).unwrap_or_default(),
            replicas: replicas.collect(),
            ..Version::default()
        }
    }

    fn service(&self, at: &ServicePort, now: Instant) -> Arc<Mutex<Service>> {
        let mut services = self.0.services.lock();
        if let Some(service) = services.get(at) {
            return Arc::clone(service);
        }
        services
            .retain(|_, service| Arc::strong_count(service) > 1 || now.duration_since(service.lock().used) < FORGOTTEN);
        let service = Service {
            known: Vec::new(),
            turn: 0,
            used: now,
        };
        Arc::clone(
            services
                .entry(at.clone())
                .or_insert_with(|| Arc::new(Mutex::new(service))),
        )
    }
}

#[cfg(test)]
impl Balancer {
    /// Failures in a row of the replica at an address.
    pub(crate) fn failures(&self, at: &ServicePort, address: SocketAddr) -> u32 {
        let service = self.service(at, Instant::now());
        let service = service.lock();
        let known = service.known.iter().find(|known| known.replica.address == address);
        known.map_or(0, |known| known.failures)
    }
}

impl Service {
    /// Takes in the replicas that are ready now.
    fn update(&mut self, replicas: Vec<Replica>, all_blocks: &Arc<AtomicUsize>, now: Instant) {
        if self.known.iter().map(|known| &known.replica).eq(&replicas) {
            return;
        }
        let new_since = (!self.known.is_empty()).then_some(now);
        let before = self.known.drain(..).map(|known| (known.replica.address, known));
        let mut before: HashMap<SocketAddr, Known> = before.collect();
        let known = replicas.into_iter().map(|replica| {
            let known = before.remove(&replica.address).filter(|known| known.replica == replica);
            known.unwrap_or_else(|| Known {
                replica,
                in_flight: 0,
                new_since,
                failures: 0,
                ejected_until: None,
                seen: Seen::new(all_blocks),
            })
        });
        self.known = known.collect();
    }

    /// The best replica, the reason, and the blocks that it has seen.
    fn best(&self, blocks: &[u64], tried: &[SocketAddr], now: Instant) -> Option<(usize, Reason, usize)> {
        let candidates = |is_candidate: fn(&Known, Instant) -> bool| -> Vec<Candidate> {
            let known = self.known.iter().enumerate();
            let left = known.filter(|(_, known)| !tried.contains(&known.replica.address) && is_candidate(known, now));
            left.map(|(index, known)| known.candidate(index, blocks, now)).collect()
        };
        let mut candidates = match candidates(Known::is_healthy) {
            // Without a healthy one, each is tried: the failures may be those of all requests.
            healthy if healthy.is_empty() => candidates(|_, _| true),
            healthy => healthy,
        };
        let turn = self.turn.checked_rem(candidates.len())?;
        candidates.rotate_left(turn);
        let best = choose(&candidates);
        best.map(|(best, reason)| (best.index, reason, best.matched))
    }
}

/// The best of these candidates: the first of equal ones.
fn choose(candidates: &[Candidate]) -> Option<(Candidate, Reason)> {
    let least = |a: &&Candidate, b: &&Candidate| a.load().total_cmp(&b.load());
    if let [only] = candidates {
        return Some((*only, Reason::only));
    }
    let all = candidates.iter().map(|one| one.in_flight).sum::<f64>() + 1.0;
    let shares: f64 = candidates.iter().map(|one| one.share).sum();
    let may_be_chosen = |one: &&Candidate| {
        let most = (LARGEST_SHARE * all * one.share / shares).ceil();
        one.matched > 0 && one.in_flight < most.max(ALWAYS * one.share)
    };
    let longest = candidates.iter().filter(may_be_chosen).map(|one| one.matched).max();
    if let Some(longest) = longest {
        let with_it = candidates.iter().filter(may_be_chosen);
        let best = with_it.filter(|one| one.matched == longest).min_by(least)?;
        return Some((*best, Reason::prefix));
    }
    let best = candidates.iter().min_by(least)?;
    let has_match = candidates.iter().any(|one| one.matched > 0);
    Some((*best, if has_match { Reason::busy } else { Reason::load }))
}

impl Chosen {
    /// The replica has answered.
    pub fn succeeded(&self) {
        self.with(|known| {
            known.failures = 0;
            known.ejected_until = None;
        });
    }

    /// The replica has failed, as it does for some requests. After several in a row, it gets no requests for a while.
    pub fn failed(&self, now: Instant) {
        self.with(|known| {
            known.failures = known.failures.saturating_add(1);
            if known.failures >= FAILURES {
                known.eject(known.failures - FAILURES, now);
            }
        });
    }

    /// The replica accepts no connection: it gets no requests for a while.
    pub fn refused(&self, now: Instant) {
        self.with(|known| {
            known.eject(known.failures, now);
            known.failures = known.failures.saturating_add(1);
        });
    }

    /// Changes what is known about the replica, unless it is gone.
    fn with(&self, change: impl FnOnce(&mut Known)) {
        let mut service = self.service.lock();
        let is_chosen = |known: &&mut Known| known.replica.address == self.address;
        if let Some(known) = service.known.iter_mut().find(is_chosen) {
            change(known);
        }
    }
}

impl Drop for Chosen {
    fn drop(&mut self) {
        self.with(|known| known.in_flight = known.in_flight.saturating_sub(1));
    }
}

impl Known {
    fn is_healthy(&self, now: Instant) -> bool {
        self.ejected_until.is_none_or(|until| until <= now)
    }

    /// As [`choice::Replica::state`] has it.
    fn state(&self, now: Instant) -> &'static str {
        let is_new = self
            .new_since
            .is_some_and(|since| now.duration_since(since) < SLOW_START);
        match (self.is_healthy(now), is_new) {
            (false, _) => "failing",
            (true, true) => "new",
            (true, false) => "ready",
        }
    }

    fn candidate(&self, index: usize, blocks: &[u64], now: Instant) -> Candidate {
        let share = self.new_since.map_or(1.0, |since| {
            let age = now.duration_since(since).as_secs_f64() / SLOW_START.as_secs_f64();
            age.clamp(LEAST_SHARE, 1.0)
        });
        Candidate {
            index,
            in_flight: self.in_flight.into(),
            share,
            matched: self.seen.matched(blocks),
        }
    }

    fn eject(&mut self, times: u32, now: Instant) {
        let doubled = EJECTED.saturating_mul(1 << times.min(10));
        self.ejected_until = Some(now + doubled.min(LONGEST_EJECTED));
    }
}

/// Blocks of prompts that a replica has seen, the least recent of which are forgotten.
#[derive(Debug)]
struct Seen {
    blocks: LruCache<u64, ()>,
    all: Arc<AtomicUsize>,
}

impl Seen {
    fn new(all: &Arc<AtomicUsize>) -> Self {
        Self {
            blocks: LruCache::unbounded(),
            all: Arc::clone(all),
        }
    }

    /// The number of first blocks that have been seen. Each block stands for all before it, and those before it are forgotten later.
    fn matched(&self, blocks: &[u64]) -> usize {
        blocks.partition_point(|block| self.blocks.contains(block))
    }

    fn see(&mut self, blocks: &[u64]) {
        // The first block last, so that it is forgotten last.
        for block in blocks.iter().rev() {
            if self.blocks.put(*block, ()).is_some() {
                continue;
            }
            let is_full = self.blocks.len() > BLOCKS.get() || self.all.load(Ordering::Relaxed) >= ALL_BLOCKS;
            if is_full {
                self.blocks.pop_lru();
            } else {
                self.all.fetch_add(1, Ordering::Relaxed);
            }
        }
    }
}

impl Drop for Seen {
    fn drop(&mut self) {
        self.all.fetch_sub(self.blocks.len(), Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;

    fn service() -> ServicePort {
        ServicePort {
            namespace: "team".parse().unwrap(),
            service: "gemma".parse().unwrap(),
            port: 8000,
        }
    }

    fn replicas(numbers: impl IntoIterator<Item = u8>) -> Replicas {
        let all = numbers.into_iter().map(|number| Replica {
            pod: format!("gemma-{number}").into(),
            address: SocketAddr::from(([10, 0, 0, number], 8000)),
        });
        Replicas {
            all: all.collect(),
            are_engines: true,
        }
    }

    /// A prompt with a block for each character.
    fn prompt(text: &str) -> Prompt {
        let text: Vec<u8> = text.bytes().flat_map(|byte| [byte; 256]).collect();
        Prompt::of("gemma", [text.as_slice()])
    }

    /// The pod that is chosen of these replicas, and the reason. The request stays in flight with the result.
    fn choose_of(balancer: &Balancer, numbers: &[u8], prompt: &Prompt, now: Instant) -> (Chosen, u8, Reason) {
        let replicas = replicas(numbers.iter().copied());
        let chosen = balancer.choose(&service(), replicas, prompt, &[], now).unwrap();
        let (pod, reason) = (&chosen.decision.pod, chosen.decision.reason);
        let number = pod.trim_start_matches("gemma-").parse().unwrap();
        (chosen, number, reason)
    }

    #[test]
    fn request_goes_to_the_replica_with_the_fewest_in_flight() {
        let (balancer, now) = (Balancer::default(), Instant::now());
        let mut held = Vec::new();
        let mut counts = BTreeMap::new();
        for _ in 0..12 {
            let (chosen, number, reason) = choose_of(&balancer, &[1, 2, 3], &Prompt::default(), now);
            assert_eq!(reason, Reason::load);
            *counts.entry(number).or_insert(0) += 1;
            held.push(chosen);
        }
        assert_eq!(counts, BTreeMap::from([(1, 4), (2, 4), (3, 4)]));
        let free = held
            .iter()
            .position(|chosen| &*chosen.decision.pod == "gemma-2")
            .unwrap();
        held.swap_remove(free);
        assert_eq!(choose_of(&balancer, &[1, 2, 3], &Prompt::default(), now).1, 2);
    }

    #[test]
    fn prompt_goes_where_its_beginning_was_seen() {
        let (balancer, now) = (Balancer::default(), Instant::now());
        let all = [1, 2, 3, 4];
        let (_, first, reason) = choose_of(&balancer, &all, &prompt("a"), now);
        assert_eq!(reason, Reason::load);
        for _ in 0..8 {
            let (chosen, number, reason) = choose_of(&balancer, &all, &prompt("ab"), now);
            assert_eq!((number, reason), (first, Reason::prefix));
            assert!(chosen.decision.matched >= 1 && chosen.decision.blocks == 2);
        }
        let (_, _, reason) = choose_of(&balancer, &all, &prompt("b"), now);
        assert_eq!(reason, Reason::load);
    }

    #[test]
    fn loaded_replica_is_not_chosen_for_its_prompts() {
        let (balancer, now) = (Balancer::default(), Instant::now());
        let mut held = Vec::new();
        let mut counts = BTreeMap::new();
        for _ in 0..64 {
            let (chosen, number, _) = choose_of(&balancer, &[1, 2, 3, 4], &prompt("same"), now);
            *counts.entry(number).or_insert(0) += 1;
            held.push(chosen);
        }
        let most = counts.values().copied().max().unwrap();
        assert!(most <= 21, "1.25 times an even share of 64 requests: {counts:?}");
        assert!(held.iter().any(|chosen| chosen.decision.reason == Reason::busy));
    }

    #[test]
    fn share_of_a_new_replica_grows() {
        let (balancer, start) = (Balancer::default(), Instant::now());
        drop(choose_of(&balancer, &[1], &Prompt::default(), start));
        let share_at = |age: Duration| {
            let now = start + age;
            let held: Vec<_> = (0..60)
                .map(|_| choose_of(&balancer, &[1, 2], &Prompt::default(), now))
                .collect();
            held.iter().filter(|(_, number, _)| *number == 2).count()
        };
        let shares = [Duration::ZERO, SLOW_START / 2, SLOW_START].map(share_at);
        assert_eq!(shares, [5, 20, 30]);
    }

    #[test]
    fn replica_that_fails_gets_no_requests_for_a_while() {
        let (balancer, start) = (Balancer::default(), Instant::now());
        let chosen_at = |now| -> Vec<u8> {
            let held: Vec<_> = (0..4)
                .map(|_| choose_of(&balancer, &[1, 2], &Prompt::default(), now))
                .collect();
            held.iter().map(|(_, number, _)| *number).collect()
        };
        let (refuses, number, _) = choose_of(&balancer, &[1, 2], &Prompt::default(), start);
        refuses.refused(start);
        drop(refuses);
        assert_eq!(chosen_at(start), [3 - number; 4]);
        assert!(chosen_at(start + EJECTED).contains(&number));
        let (fails, _, _) = choose_of(&balancer, &[1], &Prompt::default(), start);
        for _ in 0..FAILURES {
            fails.failed(start);
        }
        assert_eq!(
            choose_of(&balancer, &[1], &Prompt::default(), start).1,
            1,
            "the only one is tried"
        );
    }

    #[test]
    fn tried_replicas_are_not_chosen_again() {
        let (balancer, now) = (Balancer::default(), Instant::now());
        let mut tried = Vec::new();
        while let Some(chosen) = balancer.choose(&service(), replicas([1, 2, 3]), &Prompt::default(), &tried, now) {
            tried.push(chosen.address);
        }
        tried.sort();
        tried.dedup();
        assert_eq!(tried.len(), 3);
        assert!(
            balancer
                .choose(&service(), Replicas::default(), &Prompt::default(), &[], now)
                .is_none()
        );
    }

    #[test]
    fn frontends_are_chosen_by_load_only() {
        let (balancer, now) = (Balancer::default(), Instant::now());
        let frontends = || Replicas {
            are_engines: false,
            ..replicas([1, 2])
        };
        for _ in 0..3 {
            let chosen = balancer
                .choose(&service(), frontends(), &prompt("a"), &[], now)
                .unwrap();
            assert_eq!((chosen.decision.reason, chosen.decision.blocks), (Reason::load, 0));
        }
    }

    #[test]
    fn memory_for_prompts_is_bounded_and_freed_with_its_replica() {
        let (balancer, now) = (Balancer::default(), Instant::now());
        for number in 0..BLOCKS.get() {
            drop(choose_of(
                &balancer,
                &[1, 2],
                &prompt(&format!("{number} and more")),
                now,
            ));
        }
        let all = || balancer.0.blocks.load(Ordering::Relaxed);
        assert!(all() <= 2 * BLOCKS.get() && all() > BLOCKS.get(), "{}", all());
        drop(choose_of(&balancer, &[3], &Prompt::default(), now));
        assert_eq!(all(), 0);
    }
}
