//! Patterns of `matches`, compiled to tables, so that a search costs one lookup per byte.
//!
//! The engines of the `regex` crate need a time proportional to the size of the pattern times the length of the text: some
//! milliseconds for 4 KiB. A table of all states does not, but it may be large and slow to build. Both are bounded in advance,
//! for all patterns of one rule together.

use regex_automata::dfa::dense::{self, DFA};
use regex_automata::dfa::{Automaton, StartKind};
use regex_automata::nfa::thompson::{self, NFA, WhichCaptures};
use regex_automata::util::syntax;
use regex_automata::{Anchored, Input};

use super::{MAX_COST, MAX_PATTERN_BYTES, RuleError, shortened};

/// Maximum size of the tables of all patterns of one rule, in bytes.
pub const MAX_TABLE_BYTES: usize = 64 << 10;
/// Maximum size of a pattern before its table is built, in bytes.
const NFA_BYTES: usize = 16 << 10;
/// Maximum nesting of brackets in a pattern.
const NESTING: u32 = 32;
/// Maximum steps for building tables, since the steps of one table are not known in advance.
const ATTEMPTS: [u64; 5] = [64, 256, 1024, 4096, 16_384];
/// Cost of one step of building a table: bytes of the state sets, times the byte classes that each of them is followed for.
const WORK_PER_STEP: u64 = 40;

/// A compiled pattern.
pub(super) struct Pattern(DFA<Vec<u32>>);

impl Pattern {
    /// Whether `text` contains a match. As in RE2, `\w`, `\d` and `\b` match ASCII only; `.` matches one byte.
    pub(super) fn is_match(&self, text: &str) -> bool {
        let input = Input::new(text).anchored(Anchored::No).earliest(true);
        // A table fails only on configured stop bytes, and there are none.
        self.0.try_search_fwd(&input).is_ok_and(|found| found.is_some())
    }
}

/// Remaining budget for the patterns of one rule.
pub(super) struct Budget {
    source: usize,
    table: usize,
    steps: u64,
}

impl Default for Budget {
    fn default() -> Self {
        Self {
            source: MAX_PATTERN_BYTES,
            table: MAX_TABLE_BYTES,
            steps: MAX_COST,
        }
    }
}

impl Budget {
    /// Compiles a pattern, and returns the steps that it took, or the exceeded limit.
    pub(super) fn compile(&mut self, source: &str) -> Result<(Pattern, u64), RuleError> {
        self.source = self.source.checked_sub(source.len()).ok_or_else(|| {
            refused(format!(
                "with `{}`, the patterns of the rule have more than the {MAX_PATTERN_BYTES} bytes that are allowed; split the rule",
                shortened(source)
            ))
        })?;
        let nfa = nfa(source)?;
        for steps in ATTEMPTS.into_iter().take_while(|steps| *steps <= self.steps) {
            match table(&nfa, self.table, steps) {
                Ok(table) => {
                    self.steps -= steps;
                    self.table = self.table.saturating_sub(table.memory_usage());
                    return Ok((Pattern(table), steps));
                }
                Err(error) if error.is_size_limit_exceeded() => {}
                Err(error) => return Err(refused(format!("`{}`: {error}", shortened(source)))),
            }
        }
        Err(self.exceeded(source))
    }

    fn exceeded(&self, source: &str) -> RuleError {
        let steps = ATTEMPTS.into_iter().rev().find(|steps| *steps <= self.steps);
        refused(format!(
            "`{}` is too expensive: to search with it costs more than {} steps and {} bytes beforehand, all patterns of a rule may cost \
             {MAX_COST} steps and {MAX_TABLE_BYTES} bytes; use fewer and smaller repetitions, or start the pattern with ^",
            shortened(source),
            steps.unwrap_or_default(),
            self.table,
        ))
    }
}

fn nfa(source: &str) -> Result<NFA, RuleError> {
    thompson::Compiler::new()
        .syntax(syntax::Config::new().unicode(false).utf8(false).nest_limit(NESTING))
        .configure(
            thompson::Config::new()
                .utf8(false)
                .nfa_size_limit(Some(NFA_BYTES))
                .which_captures(WhichCaptures::None),
        )
        .build(source)
        .map_err(|error| refused(reason(source, &error)))
}

fn table(nfa: &NFA, bytes: usize, steps: u64) -> Result<DFA<Vec<u32>>, Box<dense::BuildError>> {
    let work = usize::try_from(steps * WORK_PER_STEP).unwrap_or(usize::MAX);
    let limits = dense::Config::new()
        .start_kind(StartKind::Unanchored)
        .accelerate(false)
        .dfa_size_limit(Some(bytes))
        .determinize_size_limit(Some(work / nfa.byte_classes().alphabet_len()));
    dense::Builder::new()
        .configure(limits)
        .build_from_nfa(nfa)
        .map_err(Box::new)
}

/// Reason why a pattern does not compile: the last line of the parser's message. The lines before show the pattern.
fn reason(source: &str, error: &thompson::BuildError) -> String {
    if error.size_limit().is_some() {
        return format!(
            "`{}` is too expensive: it takes more than the {NFA_BYTES} bytes that are allowed when compiled; use fewer and smaller repetitions",
            shortened(source)
        );
    }
    let cause = std::error::Error::source(error).map_or_else(|| error.to_string(), ToString::to_string);
    shortened(cause.lines().last().unwrap_or_default().trim_start_matches("error: "))
}

/// The error for a pattern.
pub(super) fn refused(reason: impl Into<String>) -> RuleError {
    RuleError::Pattern { reason: reason.into() }
}
