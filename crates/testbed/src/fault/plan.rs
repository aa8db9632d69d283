//! The faults, and which write or event gets one. Pure.

use std::fmt;
use std::str::FromStr;

/// Fault of a write.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Cut {
    /// The connection ends before the server has the request.
    Before,
    /// The server has carried out the request; the connection ends instead of its response.
    After,
    /// The controller is killed before the server has the request.
    KillBefore,
    /// The controller is killed after the server has carried out the request.
    KillAfter,
    /// 409 instead of the request: the object has been modified.
    Conflict,
    /// 429 instead of the request, to be repeated after a second.
    TooMany,
    /// 500 instead of the request.
    Error,
    /// 504 instead of the request.
    Timeout,
}

impl Cut {
    /// Every fault of a write.
    pub const ALL: [Self; 8] = [
        Self::Before,
        Self::After,
        Self::KillBefore,
        Self::KillAfter,
        Self::Conflict,
        Self::TooMany,
        Self::Error,
        Self::Timeout,
    ];

    /// Whether the server carries out the request.
    pub fn commits(self) -> bool {
        matches!(self, Self::After | Self::KillAfter)
    }

    /// Whether the controller is killed.
    pub fn kills(self) -> bool {
        matches!(self, Self::KillBefore | Self::KillAfter)
    }

    /// Status code, reason and message that the controller gets; none if its connection ends.
    pub fn refusal(self) -> Option<(u16, &'static str, &'static str)> {
        Some(match self {
            Self::Before | Self::After | Self::KillBefore | Self::KillAfter => return None,
            Self::Conflict => (
                409,
                "Conflict",
                "Operation cannot be fulfilled: the object has been modified",
            ),
            Self::TooMany => (429, "TooManyRequests", "the server has received too many requests"),
            Self::Error => (500, "InternalError", "etcdserver: leader changed"),
            Self::Timeout => (504, "Timeout", "etcdserver: request timed out"),
        })
    }
}

impl fmt::Display for Cut {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Before => "before",
            Self::After => "after",
            Self::KillBefore => "kill-before",
            Self::KillAfter => "kill-after",
            Self::Conflict => "409",
            Self::TooMany => "429",
            Self::Error => "500",
            Self::Timeout => "504",
        })
    }
}

impl FromStr for Cut {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let found = Self::ALL.into_iter().find(|cut| cut.to_string() == text);
        found.ok_or_else(|| {
            let known = Self::ALL.map(|cut| cut.to_string()).join(", ");
            format!("unknown fault `{text}`: use one of {known}")
        })
    }
}

/// Fault of an event of a watch. Events keep their order, as Kubernetes promises.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Bend {
    /// The event, and those after it, come later: the controller's cache is stale.
    Hold,
    /// The connection ends before the event.
    Drop,
    /// An error 410 in place of the event, after which the client lists again.
    Expire,
}

impl Bend {
    /// Every fault of an event.
    pub const ALL: [Self; 3] = [Self::Hold, Self::Drop, Self::Expire];
}

impl fmt::Display for Bend {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Hold => "hold",
            Self::Drop => "drop",
            Self::Expire => "410",
        })
    }
}

/// Decides the faults of one proxy.
#[derive(Clone, Copy, Debug, Default)]
pub enum Plan {
    /// No faults.
    #[default]
    Calm,
    /// One fault.
    At {
        /// Number of the write, from 1.
        write: u64,
        /// Fault of that write.
        cut: Cut,
    },
    /// Faults of writes and events by seed.
    Seeded {
        /// Seed of both.
        seed: u64,
        /// Number of the last write and of the last event that can have a fault.
        last: u64,
    },
}

impl Plan {
    /// Fault of the write with this number.
    pub fn cut(&self, write: u64) -> Option<Cut> {
        match *self {
            Self::At { write: chosen, cut } if write == chosen => Some(cut),
            Self::Seeded { seed, last } if write <= last => fault(seed, write, &Cut::ALL),
            _ => None,
        }
    }

    /// Fault of the event with this number.
    pub fn bend(&self, event: u64) -> Option<Bend> {
        match *self {
            Self::Seeded { seed, last } if event <= last => fault(!seed, event, &Bend::ALL),
            _ => None,
        }
    }
}

/// One in so many writes or events has a fault.
const ONE_IN: u64 = 4;

/// Fault number `n` of a seed: most numbers have none.
pub fn fault<T: Copy>(seed: u64, n: u64, kinds: &[T]) -> Option<T> {
    let random = number(seed, n);
    let kind = usize::try_from((random / ONE_IN) % kinds.len() as u64).ok()?;
    random.is_multiple_of(ONE_IN).then(|| kinds[kind])
}

/// Random number `n` of a seed.
pub fn number(seed: u64, n: u64) -> u64 {
    mixed(mixed(seed).wrapping_add(n))
}

/// The finalizer of `SplitMix64`: adjacent numbers have unrelated results.
pub(crate) fn mixed(number: u64) -> u64 {
    let mut z = number.wrapping_add(0x9e37_79b9_7f4a_7c15);
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_seed_replays_its_faults() {
        let faults = |seed| -> Vec<_> { (1..=12).map(|n| fault(seed, n, &Cut::ALL)).collect() };
        let names = |seed| {
            faults(seed)
                .into_iter()
                .flatten()
                .map(|c| c.to_string())
                .collect::<Vec<_>>()
        };
        assert_eq!(names(1), ["kill-after", "after"]);
        assert_ne!(faults(1), faults(2));
    }

    #[test]
    fn every_kind_comes_and_three_in_four_have_none() {
        let faults: Vec<_> = (0..4000).map(|n| fault(7, n, &Cut::ALL)).collect();
        assert!((900..1100).contains(&faults.iter().flatten().count()));
        for cut in Cut::ALL {
            assert!(faults.contains(&Some(cut)), "{cut}");
            assert_eq!(cut.to_string().parse(), Ok(cut));
        }
    }

    #[test]
    fn a_plan_of_one_write_has_one_fault_and_a_seeded_one_ends() {
        let once = Plan::At {
            write: 3,
            cut: Cut::After,
        };
        assert_eq!((1..9).filter_map(|n| once.cut(n)).collect::<Vec<_>>(), [Cut::After]);
        assert!((1..99).all(|n| once.bend(n).is_none()));
        let seeded = Plan::Seeded { seed: 1, last: 50 };
        assert!((1..=50).any(|n| seeded.cut(n).is_some()) && (1..=50).any(|n| seeded.bend(n).is_some()));
        assert!((51..999).all(|n| seeded.cut(n).is_none() && seeded.bend(n).is_none()));
    }
}
