//! One pass over a parsed rule: names, functions, and worst-case cost.
//!
//! The model is the static cost of CEL in Kubernetes: every node costs one step, loops multiply, and copies, comparisons and
//! searches cost by size. Sizes are upper bounds too: those of the input follow from the limits of [`Input`](super::Input),
//! those of results from the operands. Lists and strings that double in each step are therefore detected.

use std::mem;

use cel::common::ast::{CallExpr, ComprehensionExpr, EntryExpr, Expr, LiteralValue, operators};
use cel::parser::Expression;

use super::functions::{self, KEY, MATCHES, ORDERED};
use super::input::{BYTES_PER_WEIGHT, MAX_ENTRIES, MAX_STRING, MAX_WEIGHT};
use super::pattern::{self, Pattern};
use super::{MAX_COST, RuleError, shortened};

/// Steps of one iteration of a loop besides its body: binding the variable.
const ROUND: u64 = 4;
/// Steps of a call: collecting its arguments and looking up its overload.
const CALL: u64 = 4;
/// Steps of copying and dropping a value, per unit of its weight: maps are rebuilt.
const COPY: u64 = 2;
/// Steps of matching a pattern, per unit of the text's weight: one lookup per byte for any pattern.
const MATCH: u64 = 2;

/// A rule that passed, ready to run.
pub(super) struct Checked {
    /// Estimated worst case, in steps.
    pub(super) cost: u64,
    /// Patterns of `matches`, by the index in the rewritten rule.
    pub(super) patterns: Vec<Pattern>,
}

/// Checks a rule, and rewrites its loops and pattern matches to our own functions.
pub(super) fn check(program: &mut Expression) -> Result<Checked, RuleError> {
    let mut checker = Checker {
        scopes: vec![("spec".to_owned(), Shape::INPUT), ("metadata".to_owned(), Shape::INPUT)],
        patterns: Vec::new(),
        patterns_cost: 0,
        budget: pattern::Budget::default(),
    };
    // A pattern is compiled once, even in a loop.
    let evaluation = checker.estimate(program)?.cost;
    let cost = evaluation.saturating_add(checker.patterns_cost);
    if cost > MAX_COST {
        return Err(RuleError::TooExpensive { estimated: cost });
    }
    Ok(Checked {
        cost,
        patterns: checker.patterns,
    })
}

/// Upper bounds of a value.
#[derive(Clone, Copy)]
struct Shape {
    /// Entries of its longest list or map.
    entries: u64,
    /// Weight of its longest text.
    text: u64,
    /// Total weight: the cost of copying or comparing it.
    weight: u64,
}

impl Shape {
    const SCALAR: Self = Self {
        entries: 0,
        text: 1,
        weight: 1,
    };
    const INPUT: Self = Self {
        entries: MAX_ENTRIES as u64,
        text: 1 + MAX_STRING as u64 / BYTES_PER_WEIGHT,
        weight: MAX_WEIGHT,
    };

    fn string(bytes: usize) -> Self {
        let weight = 1 + bytes as u64 / BYTES_PER_WEIGHT;
        Self {
            entries: 0,
            text: weight,
            weight,
        }
    }

    /// Bounds of a value that is one or the other.
    fn or(self, other: Self) -> Self {
        Self {
            entries: self.entries.max(other.entries),
            text: self.text.max(other.text),
            weight: self.weight.max(other.weight),
        }
    }

    /// Bounds of a concatenation.
    fn and(self, other: Self) -> Self {
        Self {
            entries: self.entries.saturating_add(other.entries),
            text: self.text.saturating_add(other.text),
            weight: self.weight.saturating_add(other.weight),
        }
    }

    /// Bounds of a list or map of these values.
    fn collection(items: &[Self]) -> Self {
        let whole = Self {
            entries: items.len() as u64,
            text: 0,
            weight: 1,
        };
        items.iter().fold(whole, |whole, item| Self {
            weight: whole.weight.saturating_add(item.weight),
            ..whole.or(*item)
        })
    }

    /// Bounds of one element in a loop over all of them. The average element weighs `weight / entries`; since all costs are
    /// linear in the weight, the sum over the loop is correct.
    fn element(self) -> Self {
        Self {
            weight: self.weight.div_ceil(self.entries.max(1)),
            ..self
        }
    }

    /// Weight of the value if it is a text.
    fn as_text(self) -> u64 {
        self.text.min(self.weight)
    }
}

struct Estimate {
    cost: u64,
    shape: Shape,
}

impl Estimate {
    fn new(cost: u64, shape: Shape) -> Self {
        Self { cost, shape }
    }
}

struct Checker {
    /// Names in scope, innermost last.
    scopes: Vec<(String, Shape)>,
    patterns: Vec<Pattern>,
    /// Steps of compiling the patterns.
    patterns_cost: u64,
    /// Remaining budget for patterns.
    budget: pattern::Budget,
}

impl Checker {
    fn estimate(&mut self, expression: &mut Expression) -> Result<Estimate, RuleError> {
        match &mut expression.expr {
            Expr::Literal(literal) => Ok(Estimate::new(1, literal_shape(literal))),
            Expr::Ident(name) => self.name(name),
            Expr::Select(select) => {
                let operand = self.estimate(&mut select.operand)?;
                let shape = if select.test { Shape::SCALAR } else { operand.shape };
                Ok(Estimate::new(operand.cost.saturating_add(1), shape))
            }
            Expr::List(list) => {
                let items = self.estimate_all(list.elements.iter_mut())?;
                Ok(collect(items))
            }
            Expr::Map(map) => {
                let mut items = Vec::with_capacity(map.entries.len() * 2);
                for entry in &mut map.entries {
                    let EntryExpr::MapEntry(entry) = &mut entry.expr else {
                        return Err(RuleError::Unsupported {
                            construct: "a message literal",
                        });
                    };
                    items.push(self.estimate(&mut entry.key)?);
                    items.push(self.estimate(&mut entry.value)?);
                }
                Ok(collect(items))
            }
            Expr::Call(call) => self.call(call),
            Expr::Comprehension(comprehension) => self.comprehension(comprehension),
            Expr::Struct(_) => Err(RuleError::Unsupported {
                construct: "a message literal",
            }),
            Expr::Unspecified => Err(RuleError::Unsupported {
                construct: "an empty expression",
            }),
        }
    }

    fn estimate_all<'e>(
        &mut self,
        expressions: impl Iterator<Item = &'e mut Expression>,
    ) -> Result<Vec<Estimate>, RuleError> {
        expressions.map(|expression| self.estimate(expression)).collect()
    }

    fn name(&self, name: &str) -> Result<Estimate, RuleError> {
        let found = self.scopes.iter().rev().find(|(known, _)| known == name);
        let (_, shape) = found.ok_or_else(|| RuleError::UnknownName { name: shortened(name) })?;
        Ok(Estimate::new(1, *shape))
    }

    fn call(&mut self, call: &mut CallExpr) -> Result<Estimate, RuleError> {
        if !is_operator(&call.func_name) {
            return self.function(call);
        }
        let operands = self.estimate_all(call.args.iter_mut())?;
        let cost = total_cost(&operands);
        let shapes: Vec<Shape> = operands.into_iter().map(|operand| operand.shape).collect();
        let (extra, shape) = match (call.func_name.as_str(), shapes.as_slice()) {
            (operators::CONDITIONAL, [_, yes, no]) => (0, yes.or(*no)),
            (operators::ADD, [left, right]) => (failure(&[*left, *right]), left.and(*right)),
            (operators::SUBSTRACT | operators::MULTIPLY | operators::DIVIDE | operators::MODULO, [left, right]) => {
                (failure(&[*left, *right]), Shape::SCALAR)
            }
            (operators::EQUALS | operators::NOT_EQUALS, [left, right]) => {
                (left.weight.min(right.weight), Shape::SCALAR)
            }
            // The right operand is evaluated only if the left one is a number or a text.
            (
                operators::LESS | operators::LESS_EQUALS | operators::GREATER | operators::GREATER_EQUALS,
                [left, right],
            ) => (left.as_text().saturating_add(failure(&[*right])), Shape::SCALAR),
            (operators::IN, [item, list]) => {
                let comparisons = list
                    .entries
                    .saturating_mul(item.weight)
                    .min(list.weight.saturating_add(list.entries));
                (failure(&[*item]).saturating_add(comparisons), Shape::SCALAR)
            }
            (operators::INDEX, [container, _]) => {
                call.args.iter_mut().skip(1).for_each(check_key);
                (CALL, *container)
            }
            _ => (0, Shape::SCALAR),
        };
        Ok(Estimate::new(cost.saturating_add(extra).saturating_add(1), shape))
    }

    fn function(&mut self, call: &mut CallExpr) -> Result<Estimate, RuleError> {
        if !functions::is_callable(&call.func_name, call.target.is_some(), call.args.len()) {
            return Err(unknown_function(call));
        }
        let operands = self.estimate_all(call.target.as_deref_mut().into_iter().chain(call.args.iter_mut()))?;
        let cost = total_cost(&operands).saturating_add(CALL);
        let text = operands
            .iter()
            .fold(0, |sum: u64, operand| sum.saturating_add(operand.shape.as_text()));
        Ok(match call.func_name.as_str() {
            "string" => {
                // The longest number has 309 digits.
                let text = text.max(Shape::string(309).text);
                let shape = Shape {
                    entries: 0,
                    text,
                    weight: text,
                };
                Estimate::new(cost.saturating_add(text), shape)
            }
            "matches" => {
                self.patterns_cost += self.compile_pattern(call)?;
                Estimate::new(cost.saturating_add(text.saturating_mul(MATCH)), Shape::SCALAR)
            }
            _ => Estimate::new(cost.saturating_add(text), Shape::SCALAR),
        })
    }

    /// Compiles the pattern of a `matches`, replaces it with its index, and returns the steps it took.
    fn compile_pattern(&mut self, call: &mut CallExpr) -> Result<u64, RuleError> {
        let text = call.target.take().map(|text| *text);
        let mut arguments: Vec<Expression> = text.into_iter().chain(mem::take(&mut call.args)).collect();
        let Some(Expression { expr, .. }) = arguments.last_mut() else {
            return Err(unknown_function(call));
        };
        let Expr::Literal(LiteralValue::String(pattern)) = &*expr else {
            return Err(pattern::refused(
                "it must be a string in the rule, such as x.matches('^a'), so that it can be checked once",
            ));
        };
        let index = self.patterns.len() as u64;
        let (pattern, steps) = self.budget.compile(pattern.inner())?;
        self.patterns.push(pattern);
        *expr = Expr::Literal(LiteralValue::UInt(index.into()));
        MATCHES.clone_into(&mut call.func_name);
        call.args = arguments;
        Ok(steps)
    }

    fn comprehension(&mut self, comprehension: &mut ComprehensionExpr) -> Result<Estimate, RuleError> {
        let range = self.estimate(&mut comprehension.iter_range)?;
        put_in_order(&mut comprehension.iter_range);
        let rounds = range.shape.entries;
        let item = range.shape.element();
        let before = self.estimate(&mut comprehension.accu_init)?;
        // `map` and `filter` append in place, the others keep a bool or a number: the accumulator is never copied.
        let appends = matches!(comprehension.accu_init.expr, Expr::List(_));

        let outer = self.scopes.len();
        self.scopes.push((comprehension.iter_var.clone(), item));
        self.scopes.push((comprehension.accu_var.clone(), Shape::SCALAR));
        let condition = self.estimate(&mut comprehension.loop_cond)?;
        let step = self.estimate(&mut comprehension.loop_step)?;
        let after = self.estimate(&mut comprehension.result)?;
        self.scopes.truncate(outer);

        let round = [ROUND, item.weight, condition.cost, step.cost]
            .into_iter()
            .fold(0, u64::saturating_add);
        let ordering = CALL.saturating_add(rounds.saturating_mul(2));
        let cost = [
            range.cost,
            ordering,
            before.cost,
            rounds.saturating_mul(round),
            after.cost,
            1,
        ]
        .into_iter()
        .fold(0, u64::saturating_add);
        let shape = if appends {
            Shape {
                entries: rounds.max(step.shape.entries),
                text: step.shape.text,
                weight: rounds.saturating_mul(step.shape.weight).saturating_add(1),
            }
        } else {
            Shape::SCALAR
        };
        Ok(Estimate::new(cost, shape))
    }
}

/// Operators with unsupported operands copy them into the error, and `||` or `exists` may ignore such an error. This costs twice
/// as much as a copy, and more than any success.
fn failure(operands: &[Shape]) -> u64 {
    operands.iter().fold(0, |sum: u64, operand| {
        sum.saturating_add(operand.weight.saturating_mul(2))
    })
}

/// A list literal is sorted; any other value may be a map.
fn put_in_order(range: &mut Expression) {
    if !matches!(range.expr, Expr::List(_)) {
        wrap(range, ORDERED);
    }
}

/// A literal key has a supported type; any other may be a fraction, and the error for that copies the list.
fn check_key(key: &mut Expression) {
    if !matches!(key.expr, Expr::Literal(LiteralValue::Int(_) | LiteralValue::String(_))) {
        wrap(key, KEY);
    }
}

/// Wraps an expression in a call of one of our functions.
fn wrap(expression: &mut Expression, function: &str) {
    let inner = mem::take(expression);
    *expression = Expression {
        id: inner.id,
        expr: Expr::Call(CallExpr {
            func_name: function.to_owned(),
            target: None,
            args: vec![inner],
        }),
    };
}

fn collect(items: Vec<Estimate>) -> Estimate {
    let cost = total_cost(&items);
    let shapes: Vec<Shape> = items.into_iter().map(|item| item.shape).collect();
    let shape = Shape::collection(&shapes);
    Estimate::new(cost.saturating_add(shape.weight.saturating_mul(COPY)), shape)
}

fn total_cost(items: &[Estimate]) -> u64 {
    items.iter().fold(0, |sum: u64, item| sum.saturating_add(item.cost))
}

fn literal_shape(literal: &LiteralValue) -> Shape {
    match literal {
        LiteralValue::String(text) => Shape::string(text.inner().len()),
        LiteralValue::Bytes(bytes) => Shape::string(bytes.inner().len()),
        _ => Shape::SCALAR,
    }
}

/// The parser's names of operators, which no rule can use.
fn is_operator(name: &str) -> bool {
    !name.starts_with(|first: char| first.is_ascii_alphabetic() || first == '.') && !is_identifier(name)
}

fn is_identifier(name: &str) -> bool {
    name.chars().all(|c| c.is_ascii_alphanumeric() || c == '_')
}

fn unknown_function(call: &CallExpr) -> RuleError {
    let target = if call.target.is_some() { "x." } else { "" };
    let arguments = vec!["…"; call.args.len().min(4)].join(", ");
    RuleError::UnknownFunction {
        call: shortened(&format!("{target}{}({arguments})", call.func_name)),
    }
}
