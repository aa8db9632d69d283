//! Names in KEDA's `scalingModifiers.formula`, an expression of the language Expr. Pure.

/// Words of the language that are no names (language definition of expr-lang/expr).
const WORDS: [&str; 14] = [
    "and",
    "contains",
    "else",
    "endsWith",
    "false",
    "if",
    "in",
    "let",
    "matches",
    "nil",
    "not",
    "or",
    "startsWith",
    "true",
];

/// Names of values in a formula: no functions, members, variables, words of the language or texts.
pub(crate) fn names(formula: &str) -> Vec<&str> {
    let is_part = |c: char| c.is_ascii_alphanumeric() || c == '_';
    let (mut found, mut variables) = (Vec::new(), Vec::new());
    let mut rest = formula;
    let (mut before, mut word) = (None, "");
    while let Some(first) = rest.chars().next() {
        if first == '"' || first == '\'' || first == '`' {
            let end = rest[1..].find(first).map_or(rest.len(), |end| end + 2);
            rest = &rest[end..];
            before = Some(first);
        } else if is_part(first) {
            let end = rest.find(|c| !is_part(c)).unwrap_or(rest.len());
            let (name, after) = rest.split_at(end);
            let is_function = after.trim_start().starts_with('(');
            let is_value = !first.is_ascii_digit() && before != Some('.') && !is_function;
            if word == "let" {
                variables.push(name);
            } else if is_value && !WORDS.contains(&name) {
                found.push(name);
            }
            word = name;
            rest = after;
            before = name.chars().last();
        } else {
            if !first.is_whitespace() {
                before = Some(first);
            }
            rest = &rest[first.len_utf8()..];
        }
    }
    found.retain(|name| !variables.contains(name));
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_of_a_formula_are_found() {
        for (formula, expected) in [
            ("queue", vec!["queue"]),
            ("queue + alias * 2.5", vec!["queue", "alias"]),
            ("max([queue, 1])", vec!["queue"]),
            (
                "queue > 10 and not (alias == 0) ? queue : 1",
                vec!["queue", "alias", "queue"],
            ),
            ("messages / 2", vec!["messages"]),
            ("count ([queue], # > 1)", vec!["queue"]),
            ("'text' == \"other\" ? 1 : 1e3", vec![]),
            ("let twice = queue * 2; twice + 1", vec!["queue"]),
            ("'open", vec![]),
            ("", vec![]),
        ] {
            assert_eq!(names(formula), expected, "{formula}");
        }
    }
}
