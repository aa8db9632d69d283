//! Stage of an object. Pure: maps behavior and age to stage and waiting time.

use std::time::Duration;

use super::Behavior;

/// Content of the upstream status.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Stage {
    /// No node yet.
    Pending,
    /// A node, but the model is still loading.
    Loading,
    /// The model answers.
    Ready,
    /// It is reported as ready, but its pods crash.
    Crashing,
    /// It is reported as ready, but its first pod is gone.
    Headless,
    /// It answered once.
    Unready,
    /// It will never answer.
    Failed,
}

/// Condition of a simulated pod.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum PodState {
    /// Its containers run, and are not ready.
    Starting,
    Ready,
    /// Its first container was killed for lack of memory again and again.
    Crashing,
    /// A Secret that it needs is missing.
    SecretMissing,
}

impl PodState {
    /// State of the pods of an object at a stage; `None` before there are any.
    pub(super) fn at(behavior: Behavior, stage: Stage) -> Option<Self> {
        match stage {
            _ if behavior == Behavior::SecretMissing => Some(Self::SecretMissing),
            Stage::Pending => None,
            Stage::Loading | Stage::Failed => Some(Self::Starting),
            Stage::Ready | Stage::Headless => Some(Self::Ready),
            Stage::Crashing | Stage::Unready => Some(Self::Crashing),
        }
    }
}

/// The stage at this age, and how long until the next one. No stage at all: say nothing.
pub(super) fn stage(behavior: Behavior, ready_after: Duration, age: Duration) -> (Option<Stage>, Option<Duration>) {
    let plan = plan(behavior, ready_after);
    let reached = plan
        .iter()
        .rev()
        .find(|(start, _)| *start <= age)
        .map(|(_, stage)| *stage);
    let next = plan
        .iter()
        .find(|(start, _)| *start > age)
        .map(|(start, _)| start.saturating_sub(age));
    (reached, next)
}

/// Age at which an object has its result, whatever becomes of it later. `None`: it never has one.
pub(super) fn result_after(behavior: Behavior, ready_after: Duration) -> Option<Duration> {
    let plan = plan(behavior, ready_after);
    let result = plan
        .iter()
        .find(|(_, stage)| matches!(stage, Stage::Ready | Stage::Failed));
    result.map(|(start, _)| *start)
}

fn plan(behavior: Behavior, ready: Duration) -> Vec<(Duration, Stage)> {
    let start = [(Duration::ZERO, Stage::Pending), (ready / 2, Stage::Loading)];
    match behavior {
        Behavior::Ready | Behavior::StuckDelete => [&start[..], &[(ready, Stage::Ready)]].concat(),
        Behavior::Slow => plan(Behavior::Ready, ready * 10),
        Behavior::Stall => Vec::new(),
        Behavior::Fail => [&start[..], &[(ready, Stage::Failed)]].concat(),
        Behavior::Flap => [&start[..], &[(ready, Stage::Ready), (ready * 2, Stage::Unready)]].concat(),
        Behavior::Crash => [&start[..], &[(ready, Stage::Ready), (ready * 2, Stage::Crashing)]].concat(),
        Behavior::LostHead => [&start[..], &[(ready, Stage::Ready), (ready * 2, Stage::Headless)]].concat(),
        Behavior::SecretMissing => start.to_vec(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    #[test]
    fn ready_comes_in_three_steps_and_stays() {
        let at = |age| stage(Behavior::Ready, SECOND * 2, age);
        assert_eq!(at(Duration::ZERO), (Some(Stage::Pending), Some(SECOND)));
        assert_eq!(at(SECOND), (Some(Stage::Loading), Some(SECOND)));
        assert_eq!(at(SECOND * 2), (Some(Stage::Ready), None));
        assert_eq!(at(SECOND * 1000), (Some(Stage::Ready), None));
    }

    #[test]
    fn at_once_means_ready_at_first_sight() {
        assert_eq!(
            stage(Behavior::Ready, Duration::ZERO, Duration::ZERO),
            (Some(Stage::Ready), None)
        );
    }

    #[test]
    fn flap_ends_unready_and_stall_says_nothing() {
        assert_eq!(stage(Behavior::Flap, SECOND, SECOND * 2), (Some(Stage::Unready), None));
        assert_eq!(stage(Behavior::Stall, SECOND, SECOND * 2), (None, None));
    }

    #[test]
    fn result_of_a_flapping_object_is_its_first_ready() {
        assert_eq!(result_after(Behavior::Flap, SECOND), Some(SECOND));
        assert_eq!(result_after(Behavior::Fail, SECOND), Some(SECOND));
        assert_eq!(result_after(Behavior::Slow, SECOND), Some(SECOND * 10));
        assert_eq!(result_after(Behavior::Stall, SECOND), None);
        assert_eq!(result_after(Behavior::SecretMissing, SECOND), None);
    }

    #[test]
    fn slow_takes_ten_times_as_long() {
        assert_eq!(stage(Behavior::Slow, SECOND, SECOND * 9).0, Some(Stage::Loading));
        assert_eq!(stage(Behavior::Slow, SECOND, SECOND * 10).0, Some(Stage::Ready));
    }
}
