//! One pass over the text of a rule, before the parser sees it.
//!
//! The parser, the evaluator and the destructor of a parsed rule all recurse along nesting and
//! along chains such as `a + b + c`. So the pass computes an upper bound of the depth of the tree
//! that the parser will build, bracket by bracket. It knows just enough of CEL for that: strings,
//! comments, brackets and operators.

use super::{MAX_COMPREHENSIONS, MAX_DEPTH, MAX_LENGTH, RuleError};

const COMPREHENSIONS: [&str; 6] = ["all", "exists", "exists_one", "existsOne", "map", "filter"];

/// Checks length, characters, strings, brackets and nesting, and returns an upper bound of the depth of the parsed rule. Linear
/// in the length of the rule, constant if it is too long.
pub(super) fn scan(source: &str) -> Result<u32, RuleError> {
    if source.len() > MAX_LENGTH {
        return Err(RuleError::TooLong { length: source.len() });
    }
    let mut scanner = Scanner {
        source,
        at: 0,
        groups: vec![Group::new(None, false)],
    };
    while let Some(byte) = scanner.peek(0) {
        scanner.token(byte)?;
    }
    scanner.finish()
}

/// The text between two brackets, or the whole rule.
///
/// Whether commas separate its elements, and `&&`, `||`, `?` and `:` the terms of an element.
struct Group {
    /// The closing bracket, and the position of the opening one.
    close: Option<(u8, usize)>,
    comprehension: bool,
    /// Depth of the deepest complete element.
    depth: u32,
    /// Depth of the deepest complete term of the current element.
    terms: u32,
    /// Number of `?` in the current element: each nests the rest.
    branches: u32,
    /// Number of `&&` and `||` in the current element: the parser balances them.
    joints: u32,
    /// Number of other operators in the current term: in the worst case a chain.
    operators: u32,
    /// Depth of the deepest group in the current term.
    inner: u32,
}

impl Group {
    fn new(close: Option<(u8, usize)>, comprehension: bool) -> Self {
        Self {
            close,
            comprehension,
            depth: 0,
            terms: 0,
            branches: 0,
            joints: 0,
            operators: 0,
            inner: 0,
        }
    }

    fn end_term(&mut self) {
        self.terms = self.terms.max(1 + self.operators + self.inner);
        self.operators = 0;
        self.inner = 0;
    }

    fn end_element(&mut self) {
        self.end_term();
        let levels_of_joints = 2 * (u32::BITS - self.joints.leading_zeros());
        self.depth = self.depth.max(self.terms + self.branches + levels_of_joints);
        self.terms = 0;
        self.branches = 0;
        self.joints = 0;
    }
}

struct Scanner<'a> {
    source: &'a str,
    at: usize,
    /// Never empty: the first group is the whole rule.
    groups: Vec<Group>,
}

impl<'a> Scanner<'a> {
    fn token(&mut self, byte: u8) -> Result<(), RuleError> {
        match byte {
            b' ' | b'\t' | b'\n' | b'\r' | 0x0b | 0x0c => self.at += 1,
            b'/' if self.peek(1) == Some(b'/') => self.comment(),
            b'\'' | b'"' => self.string(byte, false)?,
            b'(' => self.open(b')', false)?,
            b'[' => self.open(b']', false)?,
            b'{' => self.open(b'}', false)?,
            b')' | b']' | b'}' => self.close(byte)?,
            b',' => self.separator(1, Group::end_element),
            b':' => self.separator(1, Group::end_term),
            b'?' => self.separator(1, |group| {
                group.end_term();
                group.branches += 1;
            }),
            b'&' | b'|' if self.peek(1) == Some(byte) => self.separator(2, |group| {
                group.end_term();
                group.joints += 1;
            }),
            b'=' | b'!' | b'<' | b'>' if self.peek(1) == Some(b'=') => self.operator(2),
            b'!' | b'<' | b'>' | b'+' | b'-' | b'*' | b'/' | b'%' | b'.' => self.operator(1),
            b'_' | b'0'..=b'9' | b'a'..=b'z' | b'A'..=b'Z' => self.word()?,
            _ => {
                return Err(self.error(self.at, format!("unexpected character {}", self.character())));
            }
        }
        Ok(())
    }

    fn finish(mut self) -> Result<u32, RuleError> {
        let whole = self.group();
        whole.end_element();
        let (depth, close) = (whole.depth, whole.close);
        match close {
            Some((close, opened)) => Err(self.error(
                opened,
                format!("this bracket is not closed, `{}` is missing", close as char),
            )),
            None if depth > MAX_DEPTH => Err(RuleError::TooDeep { depth }),
            None => Ok(depth),
        }
    }

    fn group(&mut self) -> &mut Group {
        // The first group is never closed, so that the default is never used.
        if self.groups.is_empty() {
            self.groups.push(Group::new(None, false));
        }
        let last = self.groups.len() - 1;
        &mut self.groups[last]
    }

    fn separator(&mut self, length: usize, end: impl FnOnce(&mut Group)) {
        self.at += length;
        end(self.group());
    }

    fn operator(&mut self, length: usize) {
        self.at += length;
        self.group().operators += 1;
    }

    fn open(&mut self, close: u8, comprehension: bool) -> Result<(), RuleError> {
        self.group().operators += 1;
        self.groups.push(Group::new(Some((close, self.at)), comprehension));
        self.at += 1;
        let loops = self.groups.iter().filter(|group| group.comprehension).count();
        let loops = u32::try_from(loops).unwrap_or(u32::MAX);
        if loops > MAX_COMPREHENSIONS {
            return Err(RuleError::TooManyLoops { depth: loops });
        }
        let depth = u32::try_from(self.groups.len()).unwrap_or(u32::MAX);
        if depth > MAX_DEPTH {
            Err(RuleError::TooDeep { depth })
        } else {
            Ok(())
        }
    }

    fn close(&mut self, byte: u8) -> Result<(), RuleError> {
        let group = self.group();
        group.end_element();
        let depth = group.depth;
        if group.close.is_none_or(|(close, _)| close != byte) {
            return Err(self.error(self.at, format!("`{}` closes a bracket that is not open", byte as char)));
        }
        self.groups.pop();
        let outer = self.group();
        outer.inner = outer.inner.max(depth);
        self.at += 1;
        Ok(())
    }

    /// A name, a keyword, a number, or the prefix of a string.
    fn word(&mut self) -> Result<(), RuleError> {
        let word = self.take_word();
        let number = word.starts_with(|first: char| first.is_ascii_digit());
        match self.peek(0) {
            // A decimal point is not a field selection.
            Some(b'.') if number && self.peek(1).is_some_and(|next| next.is_ascii_digit()) => {
                self.at += 1;
            }
            Some(quote @ (b'\'' | b'"')) => {
                let raw = matches!(word, "r" | "R" | "br" | "bR" | "Br" | "BR" | "rb" | "rB" | "Rb" | "RB");
                self.string(quote, raw)?;
            }
            _ if word == "in" => self.group().operators += 1,
            _ if COMPREHENSIONS.contains(&word) => {
                // The macros add operators around their argument.
                self.group().operators += 2;
                self.skip_blanks();
                if self.peek(0) == Some(b'(') {
                    self.open(b')', true)?;
                }
            }
            _ => {}
        }
        Ok(())
    }

    fn take_word(&mut self) -> &'a str {
        let rest = &self.source[self.at..];
        let end = rest
            .find(|c: char| !c.is_ascii_alphanumeric() && c != '_')
            .unwrap_or(rest.len());
        self.at += end;
        &rest[..end]
    }

    fn skip_blanks(&mut self) {
        loop {
            match self.peek(0) {
                Some(b' ' | b'\t' | b'\n' | b'\r' | 0x0b | 0x0c) => self.at += 1,
                Some(b'/') if self.peek(1) == Some(b'/') => self.comment(),
                _ => return,
            }
        }
    }

    fn comment(&mut self) {
        let rest = &self.source[self.at..];
        self.at += rest.find('\n').map_or(rest.len(), |end| end + 1);
    }

    /// A string in either quote, single or triple, raw or with escapes.
    fn string(&mut self, quote: u8, raw: bool) -> Result<(), RuleError> {
        let start = self.at;
        let triple = self.peek(1) == Some(quote) && self.peek(2) == Some(quote);
        let width = if triple { 3 } else { 1 };
        self.at += width;
        while let Some(byte) = self.peek(0) {
            if byte == b'\\' && !raw {
                self.at += 2;
            } else if (0..width).all(|ahead| self.peek(ahead) == Some(quote)) {
                self.at += width;
                return Ok(());
            } else {
                self.at += 1;
            }
        }
        Err(self.error(start, "this string is not closed".to_owned()))
    }

    fn peek(&self, ahead: usize) -> Option<u8> {
        self.source.as_bytes().get(self.at + ahead).copied()
    }

    fn character(&self) -> String {
        let found = self.source.get(self.at..).and_then(|rest| rest.chars().next());
        found.map_or_else(String::new, |c| format!("`{}`", c.escape_default()))
    }

    fn error(&self, at: usize, reason: String) -> RuleError {
        let before = self.source.get(..at).unwrap_or_default();
        let line = before.matches('\n').count() + 1;
        let column = before.len() - before.rfind('\n').map_or(0, |newline| newline + 1) + 1;
        RuleError::Syntax { line, column, reason }
    }
}
