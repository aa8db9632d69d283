//! Others who take out what was put into their object: seen exactly, waited for, and given in to.
//!
//! A loss is counted once: `status.binding.lost` remembers that it was. What was put in is put back after a wait that doubles;
//! above [`MOST`] losses it is left to the other. The count starts again when what was put in has stayed for an hour, or when the
//! actor, or the object that it names, has a new generation.

use std::time::Duration;

use jiff::{SignedDuration, Timestamp};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use runway_api::async_actor::AsyncActorStatus;
use runway_operator::json;

use super::part::Conflicts;

/// So many losses are answered; the next one is not.
pub(super) const MOST: i32 = 5;
/// The longest.
const LONGEST_WAIT: Duration = Duration::from_mins(5);
/// What stays so long is accepted.
const QUIET: SignedDuration = SignedDuration::from_hours(1);

/// What is to be done about an object that holds, or should hold, what is ours.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Verdict {
    /// It is as it should be.
    Intact,
    /// It is put in: for the first time, or changed, or again.
    Apply,
    /// It was taken out just now.
    Lost {
        /// How long until it is put back.
        wait: Duration,
    },
    /// It was taken out, and is put back later.
    Waiting {
        /// How long until then.
        wait: Duration,
    },
    /// It was taken out too often.
    Stopped {
        /// Whether that is news.
        now: bool,
    },
}

/// What is seen of the object.
#[derive(Clone, Copy, Debug)]
pub(super) struct Sight<'a> {
    /// Everything we want is there and ours.
    pub(super) intact: bool,
    /// The very same was put into this very object before.
    pub(super) was_put_in: bool,
    /// The spec of the actor, or of the object it names, is another one than before.
    pub(super) new_chance: bool,
    /// The wait after the first loss.
    pub(super) first_wait: Duration,
    /// The actor's uid: waits differ from actor to actor.
    pub(super) uid: &'a str,
    /// The time.
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

/// How long until a count that stays where it is would be forgotten.
pub(super) fn forgotten_in(conflicts: &Conflicts, now: Timestamp) -> Option<Duration> {
    let last = conflicts.last_time.as_ref()?;
    Some(left(QUIET.unsigned_abs(), now.duration_since(last.0)))
}

fn left(wait: Duration, since: SignedDuration) -> Duration {
    wait.saturating_sub(Duration::try_from(since).unwrap_or_default())
}

/// The wait after so many losses: doubled each time, with up to a quarter more, by the uid, so that actors do not march in step.
fn wait(sight: &Sight<'_>, count: i32) -> Duration {
    let doublings = u32::try_from(count.saturating_sub(1)).unwrap_or(0).min(16);
    let wait = sight.first_wait.saturating_mul(1 << doublings).min(LONGEST_WAIT);
    let digits = json::hash(&(sight.uid, count));
    let share = u32::from_str_radix(&digits[..4], 16).unwrap_or(0);
    // Whole seconds: that is what a status can tell.
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
    fn a_loss_is_counted_once_and_answered_after_a_wait() {
        let (verdict, status) = judged(&sight(false, 100), &AsyncActorStatus::default());
        let Verdict::Lost { wait } = verdict else {
            panic!("{verdict:?}")
        };
        assert_eq!(status.conflict_count, Some(1));
        let (verdict, again) = judged(&sight(false, 101), &status);
        assert!(matches!(verdict, Verdict::Waiting { .. }), "{verdict:?}");
        assert_eq!(again, status, "the same loss");
        let later = 100 + i64::try_from(wait.as_secs()).unwrap();
        let (verdict, put_back) = judged(&sight(false, later), &again);
        assert_eq!(verdict, Verdict::Apply);
        assert_eq!(
            (put_back.conflict_count, put_back.binding.clone().unwrap().lost),
            (Some(1), None)
        );
        let (_, second) = judged(&sight(false, later + 1), &put_back);
        assert_eq!(second.conflict_count, Some(2));
    }

    #[test]
    fn above_five_it_is_left_and_only_a_new_generation_helps() {
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
    fn a_quiet_hour_is_forgotten() {
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
