//! Recent values of objects, for the charts: replicas, rollouts and failures since the start of a watch, at most an hour.

use std::collections::BTreeMap;

use jiff::{SignedDuration, Timestamp};
use parking_lot::Mutex;
use runway_client::text;

/// Period that charts show.
pub const PERIOD: SignedDuration = SignedDuration::from_hours(1);
/// Changes that are kept of an object; the oldest make room.
const MOST: usize = 200;
/// Marks that the legend names.
const MOST_IN_LEGEND: usize = 2;
/// Shortest period of a chart, so that the first values are not a single point.
const SHORTEST: SignedDuration = SignedDuration::from_secs(60);
/// Left, right, top and bottom of the values in a chart, in its own units.
const LEFT: f64 = 38.0;
const RIGHT: f64 = 352.0;
const TOP: f64 = 12.0;
const BOTTOM: f64 = 100.0;

/// The replicas of an object.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Replicas {
    /// Ready replicas.
    pub ready: i32,
    /// Desired replicas.
    pub desired: i32,
}

/// State of an object whose changes are marked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct State {
    /// Generation of its spec.
    pub generation: Option<i64>,
    /// Whether it has failed.
    pub failed: bool,
}

/// Mark in a chart.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mark {
    /// The spec changed.
    Rollout,
    /// The object failed.
    Failure,
}

/// Replicas and marks of an object, the oldest first.
#[derive(Clone, Debug, Default)]
pub struct History {
    /// Replicas, each from a moment on.
    pub steps: Vec<(Timestamp, Replicas)>,
    /// Marks.
    pub marks: Vec<(Timestamp, Mark)>,
    state: Option<State>,
}

/// Histories of all objects of a kind, by namespace and name.
#[derive(Debug, Default)]
pub struct Histories(Mutex<BTreeMap<(String, String), History>>);

impl Histories {
    /// Keeps what is new of an object.
    pub fn note(&self, namespace: String, name: String, now: Timestamp, replicas: Option<Replicas>, state: State) {
        let mut all = self.0.lock();
        let history = all.entry((namespace, name)).or_default();
        let before = history.state.replace(state);
        if let Some(before) = before.filter(|before| *before != state) {
            if before.generation != state.generation {
                push(&mut history.marks, (now, Mark::Rollout));
            }
            if state.failed && !before.failed {
                push(&mut history.marks, (now, Mark::Failure));
            }
        }
        if let Some(replicas) = replicas.filter(|new| history.steps.last().is_none_or(|(_, last)| last != new)) {
            push(&mut history.steps, (now, replicas));
        }
    }

    /// An object is gone.
    pub fn forget(&self, namespace: String, name: String) {
        let mut all = self.0.lock();
        all.remove(&(namespace, name));
    }

    /// The history of an object.
    pub fn of(&self, namespace: &str, name: &str) -> Option<History> {
        let all = self.0.lock();
        all.get(&(namespace.to_owned(), name.to_owned())).cloned()
    }
}

fn push<T>(all: &mut Vec<T>, new: T) {
    if all.len() == MOST {
        all.remove(0);
    }
    all.push(new);
}

/// Values over time. A value that is absent interrupts the line.
#[derive(Clone, Debug, PartialEq)]
pub struct Series {
    /// CSS class of the line.
    pub class: &'static str,
    /// Name.
    pub name: &'static str,
    /// Values, the oldest first.
    pub values: Vec<(Timestamp, Option<f64>)>,
    /// Whether a value lasts until the next one.
    pub is_step: bool,
}

impl Series {
    /// Values that are shown. A step lasts until the next one.
    fn in_period(&self, start: Timestamp, now: Timestamp) -> impl Iterator<Item = f64> {
        let shown = move |n: usize| self.end(n, now) >= start;
        self.values
            .iter()
            .enumerate()
            .filter(move |(n, _)| shown(*n))
            .filter_map(|(_, (_, value))| *value)
    }

    /// Time until which a value is shown.
    fn end(&self, n: usize, now: Timestamp) -> Timestamp {
        let at = if self.is_step { n + 1 } else { n };
        self.values.get(at).map_or(now, |(at, _)| *at)
    }
}

/// A line of a chart.
#[derive(Clone, Debug, PartialEq)]
pub struct Line {
    /// CSS class.
    pub class: &'static str,
    /// Name.
    pub name: &'static str,
    /// Last value, as text.
    pub last: String,
    /// Points of each uninterrupted part, as in SVG.
    pub parts: Vec<String>,
}

/// A mark, as drawn.
#[derive(Clone, Debug, PartialEq)]
pub struct Drawn {
    /// CSS class.
    pub class: &'static str,
    /// Position.
    pub x: String,
    /// Text.
    pub text: String,
}

/// A chart with axes.
#[derive(Clone, Debug, PartialEq)]
pub struct Chart {
    /// Title.
    pub title: &'static str,
    /// Lines.
    pub lines: Vec<Line>,
    /// Highest value on the axis, as text.
    pub most: String,
    /// Half of it.
    pub half: String,
    /// Age of the left end.
    pub from: String,
    /// Marks of rollouts and failures.
    pub marks: Vec<Drawn>,
}

impl Chart {
    /// A chart of these values until `now`. `None` if there are none.
    pub fn new(
        title: &'static str,
        series: &[Series],
        marks: &[(Timestamp, Mark)],
        write: fn(f64) -> String,
        now: Timestamp,
    ) -> Option<Self> {
        let all = || series.iter().flat_map(|series| &series.values);
        let first = all().filter(|(_, value)| value.is_some()).map(|(at, _)| *at).min()?;
        let start = first
            .max(now.checked_sub(PERIOD).ok()?)
            .min(now.checked_sub(SHORTEST).ok()?);
        let shown = series.iter().flat_map(|series| series.in_period(start, now));
        let most = shown.fold(0.0, f64::max);
        let most = if most > 0.0 { most } else { 1.0 };
        let axes = Axes { start, now, most };
        let lines = series.iter().map(|series| axes.line(series, write)).collect();
        let shown = marks.iter().filter(|(at, _)| *at >= start);
        Some(Self {
            title,
            lines,
            most: write(most),
            half: write(most / 2.0),
            from: text::since(start, now),
            marks: shown.map(|mark| axes.mark(*mark)).collect(),
        })
    }

    /// Replicas of an object. `None` if nothing was seen yet.
    pub fn of_replicas(history: &History, now: Timestamp) -> Option<Self> {
        let series = |class, name, of: fn(&Replicas) -> i32| Series {
            class,
            name,
            values: history
                .steps
                .iter()
                .map(|(at, r)| (*at, Some(f64::from(of(r)))))
                .collect(),
            is_step: true,
        };
        let all = [
            series("wanted", "desired", |r| r.desired),
            series("ready", "ready", |r| r.ready),
        ];
        let chart = Self::new("Replicas", &all, &history.marks, count, now)?;
        // There are no halves of replicas.
        let half = if chart.half.contains('.') {
            String::new()
        } else {
            chart.half
        };
        Some(Self { half, ..chart })
    }

    /// The last marks, for the legend.
    pub fn recent(&self) -> impl Iterator<Item = &Drawn> {
        self.marks.iter().rev().take(MOST_IN_LEGEND)
    }

    /// Values at the end, in a sentence.
    pub fn summary(&self) -> String {
        let last: Vec<String> = self
            .lines
            .iter()
            .map(|line| format!("{} {}", line.last, line.name))
            .collect();
        format!(
            "{}: {}; at most {} in {}",
            self.title,
            last.join(", "),
            self.most,
            self.from
        )
    }
}

/// A number as short text.
pub fn count(value: f64) -> String {
    if value.fract() == 0.0 {
        format!("{value:.0}")
    } else {
        format!("{value:.1}")
    }
}

struct Axes {
    start: Timestamp,
    now: Timestamp,
    most: f64,
}

impl Axes {
    fn x(&self, at: Timestamp) -> f64 {
        let all = self.now.duration_since(self.start).as_secs_f64().max(1.0);
        (LEFT + at.duration_since(self.start).as_secs_f64() / all * (RIGHT - LEFT)).clamp(LEFT, RIGHT)
    }

    fn y(&self, value: f64) -> f64 {
        BOTTOM - value / self.most * (BOTTOM - TOP)
    }

    fn line(&self, series: &Series, write: fn(f64) -> String) -> Line {
        let last = series.values.last().and_then(|(_, value)| *value);
        let mut parts: Vec<String> = Vec::new();
        let mut is_open = false;
        for (n, (at, value)) in series.values.iter().enumerate() {
            let end = series.end(n, self.now);
            let Some(y) = value.filter(|_| end >= self.start).map(|value| self.y(value)) else {
                is_open = false;
                continue;
            };
            let mut points = format!("{:.1},{y:.1}", self.x(*at));
            if series.is_step {
                points = format!("{points} {:.1},{y:.1}", self.x(end));
            }
            match parts.last_mut().filter(|_| is_open) {
                Some(part) => *part = format!("{part} {points}"),
                None => parts.push(points),
            }
            is_open = true;
        }
        Line {
            class: series.class,
            name: series.name,
            last: last.map_or_else(|| "–".to_owned(), write),
            parts,
        }
    }

    fn mark(&self, (at, mark): (Timestamp, Mark)) -> Drawn {
        let (class, what) = match mark {
            Mark::Rollout => ("rollout", "Spec changed"),
            Mark::Failure => ("failure", "Failed"),
        };
        Drawn {
            class,
            x: format!("{:.1}", self.x(at)),
            text: format!("{what} {} ago", text::since(at, self.now)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(second: i64) -> Timestamp {
        Timestamp::from_second(second).unwrap()
    }

    fn state(generation: i64, failed: bool) -> State {
        State {
            generation: Some(generation),
            failed,
        }
    }

    #[test]
    fn changes_are_kept_and_lines_are_level_from_step_to_step() {
        let histories = Histories::default();
        let name = || ("default".to_owned(), "a".to_owned());
        for (second, ready, state) in [
            (0, 0, state(1, false)),
            (5, 0, state(1, false)),
            (10, 1, state(2, false)),
            (50, 2, state(2, true)),
        ] {
            let replicas = Some(Replicas { ready, desired: 2 });
            histories.note(name().0, name().1, at(second), replicas, state);
        }
        let history = histories.of("default", "a").unwrap();
        assert_eq!(
            history.steps.iter().map(|(_, r)| r.ready).collect::<Vec<_>>(),
            [0, 1, 2]
        );
        assert_eq!(history.marks, [(at(10), Mark::Rollout), (at(50), Mark::Failure)]);
        let chart = Chart::of_replicas(&history, at(100)).unwrap();
        assert_eq!(
            chart.lines[1].parts,
            ["38.0,100.0 69.4,100.0 69.4,56.0 195.0,56.0 195.0,12.0 352.0,12.0"]
        );
        assert_eq!(
            (chart.most.as_str(), chart.half.as_str(), chart.from.as_str()),
            ("2", "1", "100s")
        );
        let marks: Vec<_> = chart.marks.iter().map(|mark| (mark.class, mark.x.as_str())).collect();
        assert_eq!(marks, [("rollout", "69.4"), ("failure", "195.0")]);
        assert_eq!(chart.summary(), "Replicas: 2 desired, 2 ready; at most 2 in 100s");
        histories.forget(name().0, name().1);
        assert!(histories.of("default", "a").is_none());
    }

    #[test]
    fn absent_values_interrupt_a_line_and_old_ones_leave_the_chart() {
        let values = vec![
            (at(0), Some(9.0)),
            (at(7200), Some(1.0)),
            (at(7215), None),
            (at(7230), Some(2.0)),
            (at(7245), Some(4.0)),
        ];
        let series = |values| {
            vec![Series {
                class: "ready",
                name: "tokens/s",
                values,
                is_step: false,
            }]
        };
        let chart = Chart::new("Tokens", &series(values), &[(at(1), Mark::Failure)], count, at(7260)).unwrap();
        assert_eq!(chart.lines[0].parts.len(), 2, "{chart:?}");
        assert_eq!((chart.from.as_str(), chart.most.as_str()), ("60m", "4"));
        assert!(chart.marks.is_empty());
        assert!(Chart::new("Tokens", &series(vec![(at(0), None)]), &[], count, at(1)).is_none());
        let zero = Chart::new("Tokens", &series(vec![(at(0), Some(0.0))]), &[], count, at(0)).unwrap();
        assert_eq!(zero.lines[0].parts, ["352.0,100.0"]);
    }
}
