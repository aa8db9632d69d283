//! Replica counts of objects since the start of their watch, for the small charts.

use std::collections::BTreeMap;

use jiff::Timestamp;
use parking_lot::Mutex;

use crate::moment::Moment;

/// Changes that are kept of an object; the oldest make room.
const MOST: usize = 200;
/// The width of a chart, in its own units.
const WIDTH: f64 = 600.0;
/// Height.
const HEIGHT: f64 = 60.0;

/// The replicas of an object.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Replicas {
    /// Ready replicas.
    pub ready: i32,
    /// Desired replicas.
    pub desired: i32,
}

/// The replicas of an object from a moment on.
pub type Step = (Timestamp, Replicas);

/// Replica counts of all objects of a kind, by namespace and name.
#[derive(Debug, Default)]
pub struct Histories(Mutex<BTreeMap<(String, String), Vec<Step>>>);

impl Histories {
    /// Keeps what an object has now, if that is new.
    pub fn note(&self, namespace: String, name: String, now: Timestamp, replicas: Replicas) {
        let mut all = self.0.lock();
        let steps = all.entry((namespace, name)).or_default();
        if steps.last().is_some_and(|(_, last)| *last == replicas) {
            return;
        }
        if steps.len() == MOST {
            steps.remove(0);
        }
        steps.push((now, replicas));
    }

    /// An object is gone.
    pub fn forget(&self, namespace: String, name: String) {
        let mut all = self.0.lock();
        all.remove(&(namespace, name));
    }

    /// The steps of an object, the oldest first.
    pub fn of(&self, namespace: &str, name: &str) -> Vec<Step> {
        let all = self.0.lock();
        all.get(&(namespace.to_owned(), name.to_owned()))
            .cloned()
            .unwrap_or_default()
    }
}

/// Steps as two lines, from the first step until now.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Chart {
    /// Corners of the line of those that serve, as SVG has it.
    pub ready: String,
    /// Points of the line of desired replicas.
    pub desired: String,
    /// Largest count in the chart.
    pub most: i32,
    /// Current counts.
    pub last: Replicas,
    /// Start of the chart.
    pub since: Moment,
}

impl Chart {
    /// `None` if nothing was seen yet.
    pub fn new(steps: &[Step], now: Timestamp) -> Option<Self> {
        let ((first, _), (_, last)) = (*steps.first()?, *steps.last()?);
        let most = steps.iter().map(|(_, r)| r.ready.max(r.desired)).max()?.max(1);
        let line = |of: fn(&Replicas) -> i32| line(steps, first, now, most, of);
        Some(Self {
            ready: line(|r| r.ready),
            desired: line(|r| r.desired),
            most,
            last,
            since: Moment::new(first, now),
        })
    }
}

/// Points of a step line.
fn line(steps: &[Step], first: Timestamp, now: Timestamp, most: i32, of: fn(&Replicas) -> i32) -> String {
    let seconds = |at: Timestamp| at.duration_since(first).as_secs_f64();
    let all = seconds(now).max(1.0);
    let x = |at: Timestamp| (seconds(at) / all * WIDTH).clamp(0.0, WIDTH);
    let y = |replicas: &Replicas| HEIGHT - f64::from(of(replicas)) / f64::from(most) * HEIGHT;
    let ends = steps.iter().skip(1).map(|(at, _)| *at).chain([now.max(first)]);
    let corners = steps.iter().zip(ends).map(|((at, replicas), end)| {
        let y = y(replicas);
        format!(
            "{:.1},{y:.1} {:.1},{y:.1}",
            x(*at),
            if end == first { WIDTH } else { x(end) }
        )
    });
    corners.collect::<Vec<_>>().join(" ")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(second: i64) -> Timestamp {
        Timestamp::from_second(second).unwrap()
    }

    #[test]
    fn only_what_is_new_is_kept_and_a_line_goes_level_from_step_to_step() {
        let histories = Histories::default();
        let name = || ("default".to_owned(), "a".to_owned());
        for (second, ready) in [(0, 0), (5, 0), (10, 1), (20, 2)] {
            histories.note(name().0, name().1, at(second), Replicas { ready, desired: 2 });
        }
        let steps = histories.of("default", "a");
        assert_eq!(steps.iter().map(|(_, r)| r.ready).collect::<Vec<_>>(), [0, 1, 2]);
        let chart = Chart::new(&steps, at(40)).unwrap();
        assert_eq!(
            chart.ready,
            "0.0,60.0 150.0,60.0 150.0,30.0 300.0,30.0 300.0,0.0 600.0,0.0"
        );
        assert_eq!((chart.most, chart.since.ago.as_str()), (2, "40s"));
        histories.forget(name().0, name().1);
        assert_eq!(Chart::new(&histories.of("default", "a"), at(40)), None);
    }

    #[test]
    fn what_was_seen_just_now_is_a_whole_line() {
        let steps = [(at(0), Replicas { ready: 0, desired: 0 })];
        assert_eq!(Chart::new(&steps, at(0)).unwrap().ready, "0.0,60.0 600.0,60.0");
    }
}
