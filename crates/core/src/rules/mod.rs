//! CEL rules by users: `selectionRules[].condition` and `validationRules[].rule`.
//!
//! A rule comes from a user and runs inside the controller, so it is bounded before it can do
//! harm. The `cel` crate has no limits of its own: deep nesting overflows the stack and aborts
//! the process, and a short rule can run for seconds. Hence three gates, each cheaper than what
//! it guards:
//!
//! 1. `scan` reads the text once: length, characters, brackets, nesting. It guards the parser.
//! 2. `check` walks the parsed rule: names, functions, patterns, worst-case cost. It guards the
//!    evaluation.
//! 3. [`Input`] refuses data larger than the cost estimate assumed. It guards the estimate.
//!
//! A rule that passes all three takes less than 5 ms from text to result in a release build. [`Budget`] limits the rules of one
//! provider to less than 50 ms in total.

mod check;
mod functions;
mod input;
mod pattern;
mod scan;
#[cfg(test)]
mod tests;

use std::fmt;
use std::sync::Arc;

use cel::common::types::CelBool;
use cel::parser::{Expression, PrattParser};
use cel::{ExecutionError, Value};
use runway_api::condition::shorten;

pub use input::{Input, InputTooLarge};
pub use pattern::MAX_TABLE_BYTES;

/// Longest rule, in bytes.
pub const MAX_LENGTH: usize = 4096;
/// Maximum nesting: brackets, and operators that build on each other. `&&`, `||` and lists add no depth per term.
///
/// The evaluator needs up to 40 KiB of stack per level in a debug build and 2 KiB in a release
/// build; this leaves room on the 2 MiB of a worker thread in both.
pub const MAX_DEPTH: u32 = 32;
/// Maximum nesting of `all`, `exists`, `exists_one`, `map` and `filter`.
pub const MAX_COMPREHENSIONS: u32 = 2;
/// Highest estimated cost, patterns included. One unit is one step of the evaluator or one value copied, about 100 ns in a
/// release build: 2.5 ms in all.
pub const MAX_COST: u64 = 25_000;
/// Highest estimated cost of all rules of one provider: 25 ms.
pub const MAX_COST_OF_ALL: u64 = 10 * MAX_COST;
/// Maximum size of all patterns of `matches()` in one rule, in bytes.
pub const MAX_PATTERN_BYTES: usize = 256;

/// Reason why a rule does not compile. The messages are for the author of the rule.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum RuleError {
    /// Longer than [`MAX_LENGTH`].
    #[error("the rule is {length} bytes long, {MAX_LENGTH} are allowed; split it into several rules")]
    TooLong {
        /// Length of the rule in bytes.
        length: usize,
    },
    /// The text is not CEL.
    #[error("line {line}, column {column}: {reason}")]
    Syntax {
        /// Line, from 1.
        line: usize,
        /// Column in bytes, from 1.
        column: usize,
        /// Description of the syntax error.
        reason: String,
    },
    /// Nested more deeply than [`MAX_DEPTH`].
    #[error(
        "the rule is nested {depth} levels deep, {MAX_DEPTH} are allowed; use fewer brackets, or join shorter terms with && and ||"
    )]
    TooDeep {
        /// Depth at which the rule was rejected.
        depth: u32,
    },
    /// Comprehensions nested more deeply than [`MAX_COMPREHENSIONS`].
    #[error("all, exists, exists_one, map and filter are nested {depth} deep, {MAX_COMPREHENSIONS} are allowed")]
    TooManyLoops {
        /// Depth at which the rule was rejected.
        depth: u32,
    },
    /// A name that is neither an input nor the variable of a comprehension.
    #[error("unknown name `{name}`; a rule can read `spec` and `metadata`")]
    UnknownName {
        /// The name as written.
        name: String,
    },
    /// A function that does not exist, or not with these arguments.
    #[error("no function `{call}`; there are {}", functions::SIGNATURES)]
    UnknownFunction {
        /// The call in short, such as `x.lower()`.
        call: String,
    },
    /// A construct that is not supported.
    #[error("{construct} cannot be used in a rule")]
    Unsupported {
        /// The construct.
        construct: &'static str,
    },
    /// The pattern of `matches()` is not supported.
    #[error("pattern of matches(): {reason}")]
    Pattern {
        /// The reason and the remedy.
        reason: String,
    },
    /// Estimated to cost more than [`MAX_COST`].
    #[error(
        "the rule could cost {estimated} steps, {MAX_COST} are allowed; loop over shorter lists, do not put one loop inside another, or name a field instead of comparing or copying a whole object"
    )]
    TooExpensive {
        /// Estimated worst case, in steps.
        estimated: u64,
    },
    /// Estimated to cost more than the remainder of [`MAX_COST_OF_ALL`].
    #[error(
        "the rule could cost {estimated} steps, the rules before it leave {left} of the {MAX_COST_OF_ALL} that all rules of a provider may cost; make the rules cheaper or fewer"
    )]
    NothingLeft {
        /// Estimated worst case, in steps.
        estimated: u64,
        /// Remainder of the limit.
        left: u64,
    },
}

/// Reason why a compiled rule has no result for an input. The messages are for the author of the rule.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum EvalError {
    /// The input is too large.
    #[error(transparent)]
    Input(#[from] InputTooLarge),
    /// The result is not a bool.
    #[error("the rule gives {found}, it must give true or false")]
    NotBool {
        /// Type of the result.
        found: String,
    },
    /// A field that does not exist; `has()` checks for it.
    #[error("no such key: {key}; test it with has() first")]
    NoSuchKey {
        /// The missing key.
        key: String,
    },
    /// An operation that is not possible with the given values.
    #[error("{reason}")]
    Failed {
        /// The operation that failed.
        reason: String,
    },
}

/// A compiled rule. Clones share one program.
#[derive(Clone)]
pub struct Rule(Arc<Compiled>);

struct Compiled {
    source: String,
    program: Expression,
    patterns: Arc<[pattern::Pattern]>,
    cost: u64,
}

impl Rule {
    /// Compiles a rule.
    ///
    /// # Errors
    ///
    /// The reason and the position, if the rule is not CEL or exceeds a limit.
    pub fn compile(source: &str) -> Result<Self, RuleError> {
        scan::scan(source)?;
        let mut program = parse(source)?;
        let checked = check::check(&mut program)?;
        Ok(Self(Arc::new(Compiled {
            source: source.to_owned(),
            program,
            patterns: checked.patterns.into(),
            cost: checked.cost,
        })))
    }

    /// The rule as written.
    pub fn source(&self) -> &str {
        &self.0.source
    }

    /// Estimated worst-case cost in steps, at most [`MAX_COST`].
    pub fn cost(&self) -> u64 {
        self.0.cost
    }

    /// Whether the rule is true for `input`. The same rule and input always have the same result.
    ///
    /// # Errors
    ///
    /// The reason, if the rule cannot be evaluated on this input.
    pub fn evaluate(&self, input: &Input) -> Result<bool, EvalError> {
        let variables = input.variables()?;
        let context = functions::context(variables, &self.0.patterns);
        let result = Value::resolve_val(&self.0.program, &context).map_err(EvalError::from)?;
        result
            .downcast_ref::<CelBool>()
            .map(|answer| *answer.inner())
            .ok_or_else(|| EvalError::NotBool {
                found: with_article(result.get_type().name()),
            })
    }
}

/// Remaining cost for the rules of one provider. Rules are compiled in order: one that exceeds the remainder is rejected, and
/// later rules can still use it.
#[derive(Debug)]
pub struct Budget {
    left: u64,
}

impl Default for Budget {
    fn default() -> Self {
        Self { left: MAX_COST_OF_ALL }
    }
}

impl Budget {
    /// Compiles a rule and subtracts its cost. Parsing costs one step per byte, also for a rule that is rejected.
    ///
    /// # Errors
    ///
    /// As [`Rule::compile`], or the rule exceeds the remaining cost.
    pub fn compile(&mut self, source: &str) -> Result<Rule, RuleError> {
        self.spend(source.len() as u64)?;
        let rule = Rule::compile(source).inspect_err(|error| self.charge_refused(error))?;
        self.spend(rule.cost())?;
        Ok(rule)
    }

    /// Rejecting a rule as too expensive costs as much as the most expensive rule.
    fn charge_refused(&mut self, error: &RuleError) {
        if matches!(error, RuleError::Pattern { .. } | RuleError::TooExpensive { .. }) {
            self.left = self.left.saturating_sub(MAX_COST);
        }
    }

    fn spend(&mut self, estimated: u64) -> Result<(), RuleError> {
        let left = self.left;
        self.left = left
            .checked_sub(estimated)
            .ok_or(RuleError::NothingLeft { estimated, left })?;
        Ok(())
    }
}

impl fmt::Debug for Rule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Rule").field(&self.0.source).finish()
    }
}

/// Rules are equal if their texts are equal.
impl PartialEq for Rule {
    fn eq(&self, other: &Self) -> bool {
        self.0.source == other.0.source
    }
}

impl Eq for Rule {}

/// Parses with the hand-written parser of the `cel` crate: the default, generated one needs 90
/// KiB of stack per bracket in a debug build and 5 µs per token, and its caches grow with what it
/// has seen.
fn parse(source: &str) -> Result<Expression, RuleError> {
    PrattParser::new()
        .error_recovery_limit(0)
        .parse(source)
        .map_err(|errors| syntax_error(source, &errors))
}

fn syntax_error(source: &str, errors: &cel::ParseErrors) -> RuleError {
    let first = errors.errors.iter().find(|error| error.pos.0 > 0);
    let (line, column) = first.map_or((1, 1), |error| error.pos);
    let reason = first.map_or("this is not a CEL expression", |error| error.msg.trim());
    RuleError::Syntax {
        line: usize::try_from(line).unwrap_or(1),
        column: usize::try_from(column).unwrap_or(1),
        reason: if source.trim().is_empty() {
            "the rule is empty".to_owned()
        } else {
            shortened(reason)
        },
    }
}

/// Contains only types and keys: values have no bounded length, and the order of a map's entries is random.
impl From<ExecutionError> for EvalError {
    fn from(error: ExecutionError) -> Self {
        let reason = match error {
            ExecutionError::NoSuchKey(key) => {
                return Self::NoSuchKey { key: shortened(&key) };
            }
            ExecutionError::NoSuchOverload(error) => {
                let types = error.argument_types().join(" and ");
                match error.function() {
                    functions::ORDERED => format!("a {types} cannot be looped over"),
                    functions::KEY => format!("a {types} cannot be an index or a key"),
                    "_._" | "_[_]" => format!(
                        "a {} has no fields or elements",
                        error.argument_types().first().map_or("value", String::as_str)
                    ),
                    name => format!("`{}` does not work on {types}", name.trim_matches(['_', '@'])),
                }
            }
            ExecutionError::UnsupportedBinaryOperator(name, left, right) => {
                format!("`{name}` does not work on {} and {}", left.type_of(), right.type_of())
            }
            ExecutionError::ValuesNotComparable(left, right) => {
                format!("{} and {} cannot be compared", left.type_of(), right.type_of())
            }
            ExecutionError::UnexpectedType { want, .. } => match want.as_str() {
                "Arc<String>" => "matches() needs a string to search".to_owned(),
                want => format!("a value is not of the type {want}"),
            },
            ExecutionError::FunctionError { function, message } => format!("{function}: {message}"),
            ExecutionError::DivisionByZero(_) | ExecutionError::RemainderByZero(_) => "division by zero".to_owned(),
            ExecutionError::Overflow(name, ..) => format!("`{name}` overflows"),
            ExecutionError::IndexOutOfBounds(_) => "index out of bounds".to_owned(),
            ExecutionError::UnsupportedKeyType(_) => "a map key must be a string, number or bool".to_owned(),
            ExecutionError::DuplicateKey(_) => "a map literal repeats a key".to_owned(),
            _ => "the rule cannot be evaluated on this input".to_owned(),
        };
        Self::Failed {
            reason: shortened(&reason),
        }
    }
}

/// A reason for a condition, of bounded length: it may repeat keys and literals of the rule.
fn shortened(text: &str) -> String {
    const LONGEST: usize = 200;
    shorten(text.to_owned(), LONGEST)
}

fn with_article(type_name: &str) -> String {
    let article = if type_name.starts_with(['a', 'e', 'i', 'o']) {
        "an"
    } else {
        "a"
    };
    format!("{article} {type_name}")
}
