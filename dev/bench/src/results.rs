//! Figures of both contenders, by round.

use std::collections::BTreeMap;

use super::measure::Figures;

/// A contender.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Contender {
    /// The writes and nothing else.
    Bare,
    /// Our controllers.
    Ours,
}

impl Contender {
    /// For people.
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Bare => "bare client",
            Self::Ours => "ours",
        }
    }
}

/// All rounds with one number of objects.
pub(super) struct Results {
    count: usize,
    rounds: BTreeMap<Contender, Vec<Figures>>,
}

impl Results {
    /// None yet.
    pub(super) fn new(count: usize) -> Self {
        Self {
            count,
            rounds: BTreeMap::new(),
        }
    }

    /// One more.
    pub(super) fn add(&mut self, contender: Contender, figures: Figures) {
        self.rounds.entry(contender).or_default().push(figures);
    }

    /// Number of objects.
    pub(super) fn count(&self) -> usize {
        self.count
    }

    /// Figures of each round.
    pub(super) fn rounds_of(&self, contender: Contender) -> &[Figures] {
        self.rounds.get(&contender).map_or(&[], Vec::as_slice)
    }

    /// The middle of all rounds.
    pub(super) fn median(&self, contender: Contender, key: &str) -> Option<f64> {
        let mut values: Vec<f64> = self
            .rounds_of(contender)
            .iter()
            .filter_map(|f| f.get(key).copied())
            .collect();
        values.sort_by(f64::total_cmp);
        let middle = values.len() / 2;
        match values.len() {
            0 => None,
            odd if odd % 2 == 1 => values.get(middle).copied(),
            _ => Some(f64::midpoint(*values.get(middle - 1)?, *values.get(middle)?)),
        }
    }
}
