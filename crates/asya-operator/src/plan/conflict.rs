//! Conflicts with other writers that remove the containers from a target.
//!
//! `status.binding.lost` ensures that each loss is counted once. The containers are restored after a wait that doubles with each
//! loss. After [`MOST`] losses they are not restored any more. The count is reset if the containers stay for an hour, or if the
//! actor or the object in workloadRef gets a new generation.

use std::time::Duration;

use jiff::{SignedDuration, Timestamp};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use runway_api::async_actor::AsyncActorStatus;
use runway_operator::json;

use super::part::Conflicts;

/// Losses after which the containers are restored.
pub(super) const MOST: i32 = 5;
/// Longest wait, without jitter.
const LONGEST_WAIT: Duration = Duration::from_mins(5);
/// Time without a loss after which the count is reset.
const QUIET: SignedDuration = SignedDuration::from_hours(1);

/// Next step for an object that should hold the containers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Verdict {
    /// The containers are there, unchanged.
    Intact,
    /// Add, change or restore the containers.
    Apply,
    /// The containers were removed since the last look.
    Lost {
        /// Time until they are restored.
        wait: Duration,
    },
    /// The containers were removed earlier.
    Waiting {
        /// Time until they are restored.
        wait: Duration,
    },
    /// The containers were removed too often.
    Stopped {
        /// Whether the limit was exceeded just now.
        now: bool,
    },
}

/// Observed state of the object.
#[derive(Clone, Copy, Debug)]
pub(super) struct Sight<'a> {
    /// The containers are there, and the operator owns their fields.
    pub(super) intact: bool,
    /// The operator added these containers to this object in an earlier reconcile.
    pub(super) was_put_in: bool,
    /// The actor, or the object in workloadRef, has a new generation.
    pub(super) new_chance: bool,
    /// Wait after the first loss.
    pub(super) first_wait: Duration,
    /// Uid of the actor, for the jitter.
    pub(super) uid: &'a str,
    /// Current time.
    pub(super) now: Timestamp,
}

/// The verdict, and what the status remembers of it.
#[derive(Clone, Debug)]
pub(super) struct Judged {
    pub(super) verdict: Verdict,
    pub(super) conflicts: Conflicts,
    /// Whether the containers are missing, and that is counted already.
    pub(super) lost: bool,
}

pub(super) fn judge(sight: &Sight<'_>, before: &AsyncActorStatus) -> Judged {
    let (mut count, mut last_time) = if sight.new_chance {
        (0, None)
    } else {
        (before.conflict_count.unwrap_or(0), before.last_conflict_time.clone())
    };
    let since = last_time
        .as_ref()
        .map_or(SignedDuration::MAX, |last| sight.now.duration_since(last.0));
    let was_lost = before.binding.as_ref().and_then(|b| b.lost).unwrap_or(false) && !sight.new_chance;
    let verdict = if count > MOST {
        Verdict::Stopped { now: false }
    } else if sight.intact {
        if since >= QUIET {
            (count, last_time) = (0, None);
        }
        Verdict::Intact
    } else if was_lost {
        match left(wait(sight, count), since) {
            Duration::ZERO => Verdict::Apply,
            wait => Verdict::Waiting { wait },
        }
    } else if sight.was_put_in && !sight.new_chance {
        count = if since >= QUIET { 1 } else { count + 1 };
        last_time = Some(Time(sight.now));
        if count > MOST {
            Verdict::Stopped { now: true }
        } else {
            Verdict::Lost {
                wait: wait(sight, count),
            }
        }
    } else {
        Verdict::Apply
    };
    Judged {
        lost: matches!(verdict, Verdict::Lost { .. } | Verdict::Waiting { .. }),
        verdict,
        conflicts: Conflicts { count, last_time },
    }
}

/// Time until the count of conflicts is reset. A further conflict restarts it.
pub(super) fn forgotten_in(conflicts: &Conflicts, now: Timestamp) -> Option<Duration> {
    let last = conflicts.last_time.as_ref()?;
    Some(left(QUIET.unsigned_abs(), now.duration_since(last.0)))
}

fn left(wait: Duration, since: SignedDuration) -> Duration {
    wait.saturating_sub(Duration::try_from(since).unwrap_or_default())
}

/// Wait after this number of losses: doubled each time, with a jitter of up to a quarter, derived from the uid.
fn wait(sight: &Sight<'_>, count: i32) -> Duration {
    let doublings = u32::try_from(count.saturating_sub(1)).unwrap_or(0).min(16);
    let wait = sight.first_wait.saturating_mul(1 << doublings).min(LONGEST_WAIT);
    let digits = json::hash(&(sight.uid, count));
    let share = u32::from_str_radix(&digits[..4], 16).unwrap_or(0);
    // Whole seconds, the resolution of times in the status.
    let jitter = wait.as_secs() * u64::from(share) / 4 / 0x1_0000;
    wait + Duration::from_secs(jitter)
}

#[cfg(test)]
mod tests {
    use runway_api::async_actor::BindingStatus;

    use super::*;

    fn at(second: i64) -> Timestamp {
        Timestamp::from_second(second).unwrap()
    }

    fn sight(intact: bool, now: i64) -> Sight<'static> {
        Sight {
            intact,
            was_put_in: true,
            new_chance: false,
            first_wait: Duration::from_secs(5),
            uid: "u",
            now: at(now),
        }
    }

    fn judged(sight: &Sight<'_>, before: &AsyncActorStatus) -> (Verdict, AsyncActorStatus) {
        let Judged {
            verdict,
            conflicts,
            lost,
        } = judge(sight, before);
        let status = AsyncActorStatus {
            conflict_count: (conflicts.count > 0).then_some(conflicts.count),
            last_conflict_time: conflicts.last_time,
            binding: Some(BindingStatus {
                lost: lost.then_some(true),
                ..BindingStatus::default()
            }),
            ..AsyncActorStatus::default()
        };
        (verdict, status)
    }

    #[test]
    fn loss_is_counted_once_and_reverted_after_a_wait() {
        let (verdict, status) = judged(&sight(false, 100), &AsyncActorStatus::default());
        let Verdict::Lost { wait } = verdict else {
            panic!("{verdict:?}")
        };
        assert_eq!(status.conflict_count, Some(1));
        let (verdict, again) = judged(&sight(false, 101), &status);
        assert!(matches!(verdict, Verdict::Waiting { .. }), "{verdict:?}");
        assert_eq!(again, status, "the same loss");
        let later = 100 + i64::try_from(wait.as_secs()).unwrap();
        let (verdict, reverted) = judged(&sight(false, later), &again);
        assert_eq!(verdict, Verdict::Apply);
        assert_eq!(
            (reverted.conflict_count, reverted.binding.clone().unwrap().lost),
            (Some(1), None)
        );
        let (_, second) = judged(&sight(false, later + 1), &reverted);
        assert_eq!(second.conflict_count, Some(2));
    }

    #[test]
    fn more_than_five_losses_stop_until_a_new_generation() {
        let mut status = AsyncActorStatus::default();
        let mut now = 0;
        for _ in 0..MOST {
            status = judged(&sight(false, now), &status).1;
            now += 1000;
            status = judged(&sight(false, now), &status).1;
        }
        let (verdict, stopped) = judged(&sight(false, now), &status);
        assert_eq!(
            (verdict, stopped.conflict_count),
            (Verdict::Stopped { now: true }, Some(6))
        );
        let (verdict, _) = judged(&sight(true, now + 100_000), &stopped);
        assert_eq!(verdict, Verdict::Stopped { now: false });
        let chance = Sight {
            new_chance: true,
            ..sight(false, now)
        };
        let (verdict, fresh) = judged(&chance, &stopped);
        assert_eq!((verdict, fresh.conflict_count), (Verdict::Apply, None));
    }

    #[test]
    fn count_is_reset_after_an_hour_without_loss() {
        let (_, status) = judged(&sight(false, 0), &AsyncActorStatus::default());
        assert_eq!(judged(&sight(true, 3599), &status).1.conflict_count, Some(1));
        assert_eq!(judged(&sight(true, 3600), &status).1.conflict_count, None);
    }

    #[test]
    fn waits_double_within_bounds() {
        for count in 1..40 {
            let wait = wait(&sight(false, 0), count);
            assert!(
                wait >= Duration::from_secs(5) && wait <= LONGEST_WAIT + LONGEST_WAIT / 4,
                "{count}: {wait:?}"
            );
        }
        assert!((20..=25).contains(&wait(&sight(false, 0), 3).as_secs()));
    }
}
