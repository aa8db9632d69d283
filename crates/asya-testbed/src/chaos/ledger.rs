//! The oracle: which messages came out how often, which failed for which reason, and how many may.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    time::Duration,
};

use anyhow::{Result, ensure};

use super::Fault;

/// Reason of a failed message: the code of an error envelope, or that of the broker for a dead letter.
pub type Reason = &'static str;

/// Result of the run.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ChaosReport {
    /// Numbers that neither came out nor failed.
    pub lost: Vec<u64>,
    /// Messages that came out once more than they should.
    pub duplicates: usize,
    /// At most so many duplicates are allowed: what can be in flight at each fault.
    pub duplicates_allowed: usize,
    /// Messages that ended at error-end or in a dead-letter queue, by reason.
    pub failed: BTreeMap<String, usize>,
    /// At most so many may fail for a reason.
    pub failed_allowed: BTreeMap<Reason, usize>,
    /// Number of faults.
    pub faults: BTreeMap<Fault, usize>,
    /// From the first message in to the last one out.
    pub took: Duration,
}

impl ChaosReport {
    /// Checks that no message is lost, and that duplicates and failures are explained by the faults.
    pub fn check(&self) -> Result<()> {
        ensure!(self.lost.is_empty(), "messages were lost: {:?}", self.lost);
        ensure!(
            self.duplicates <= self.duplicates_allowed,
            "{} duplicates, and at most {} were in flight",
            self.duplicates,
            self.duplicates_allowed
        );
        for (reason, count) in &self.failed {
            let allowed = self.failed_allowed.get(reason.as_str()).copied().unwrap_or_default();
            ensure!(
                *count <= allowed,
                "{count} messages failed with '{reason}', and at most {allowed} may"
            );
        }
        Ok(())
    }
}

/// Messages that have come out so far.
#[derive(Debug, Default)]
pub struct Ledger {
    /// Number of messages that were sent, or are still to be sent.
    sent: u64,
    /// Count of each number.
    seen: HashMap<u64, usize>,
    /// Numbers that have failed, with the reasons.
    failures: BTreeSet<(u64, String)>,
    report: ChaosReport,
}

impl Ledger {
    /// Expects so many messages, with faults of these kinds.
    pub fn new(envelopes: usize, mix: &[Fault]) -> Self {
        let faults = mix.iter().map(|fault| (*fault, 0)).collect();
        Self {
            sent: u64::try_from(envelopes).unwrap_or(u64::MAX),
            report: ChaosReport {
                faults,
                ..ChaosReport::default()
            },
            ..Self::default()
        }
    }

    /// Number of a further message.
    pub fn further(&mut self) -> u64 {
        self.sent += 1;
        self.sent - 1
    }

    /// Counts a message at the end of its route.
    pub fn arrived(&mut self, number: u64) {
        *self.seen.entry(number).or_default() += 1;
    }

    /// Counts a message at error-end or in a dead-letter queue.
    pub fn failed(&mut self, number: u64, reason: &str) {
        self.arrived(number);
        // A duplicate of a failed message is a duplicate.
        if self.failures.insert((number, reason.to_owned())) {
            *self.report.failed.entry(reason.to_owned()).or_default() += 1;
        }
    }

    /// Number of messages that were seen at least once.
    pub fn distinct(&self) -> usize {
        self.seen.len()
    }

    /// Whether every message was seen.
    pub fn is_complete(&self) -> bool {
        u64::try_from(self.distinct()).is_ok_and(|seen| seen >= self.sent)
    }

    /// Counts a fault that concerns messages in flight.
    pub fn allow(&mut self, fault: Fault, in_flight: usize) {
        *self.report.faults.entry(fault).or_default() += 1;
        self.allow_duplicates(in_flight);
    }

    /// Allows further duplicates.
    pub fn allow_duplicates(&mut self, count: usize) {
        self.report.duplicates_allowed += count;
    }

    /// Allows so many failures for each reason of a fault.
    pub fn allow_failures(&mut self, fault: Fault, count: usize) {
        for reason in fault.reasons() {
            *self.report.failed_allowed.entry(reason).or_default() += count;
        }
    }

    /// Number of messages that have failed for a reason of this fault.
    pub fn failures(&self, fault: Fault) -> usize {
        let failed = fault
            .reasons()
            .iter()
            .filter_map(|reason| self.report.failed.get(*reason));
        failed.sum()
    }

    /// The result.
    pub fn report(self, took: Duration) -> ChaosReport {
        let copies: usize = self.seen.values().sum();
        ChaosReport {
            lost: (0..self.sent)
                .filter(|number| !self.seen.contains_key(number))
                .collect(),
            duplicates: copies - self.seen.len(),
            took,
            ..self.report
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn reported(ledger: Ledger) -> String {
        ledger
            .report(Duration::ZERO)
            .check()
            .map_or_else(|error| error.to_string(), |()| "well".to_owned())
    }

    #[test]
    fn lost_messages_are_reported() {
        let mut ledger = Ledger::new(2, &[]);
        let further = ledger.further();
        ledger.arrived(0);
        ledger.arrived(further);
        assert!(!ledger.is_complete());
        assert_eq!(reported(ledger), "messages were lost: [1]");
    }

    #[test]
    fn duplicates_and_failures_are_limited_by_the_faults() {
        let ledger = |faults: &[Fault]| {
            let mut ledger = Ledger::new(2, &[Fault::Tap]);
            for fault in faults {
                ledger.allow(*fault, 1);
                ledger.allow_failures(*fault, 1);
            }
            ledger.arrived(0);
            ledger.arrived(0);
            ledger.failed(1, "routing_error");
            assert!(ledger.is_complete());
            reported(ledger)
        };
        assert_eq!(ledger(&[]), "1 duplicates, and at most 0 were in flight");
        let reason = "1 messages failed with 'routing_error', and at most 0 may";
        assert_eq!(ledger(&[Fault::Limit]), reason);
        assert_eq!(ledger(&[Fault::Tap]), "well");
    }
}
