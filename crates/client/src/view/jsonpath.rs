//! kubectl's JSONPath templates: text with expressions in braces.
//! <https://kubernetes.io/docs/reference/kubectl/jsonpath/>

use std::str::FromStr;

use jsonpath_rust::JsonPath;
use serde_json::Value;

/// A template, such as `{.status.phase}` or `{range .items[*]}{.metadata.name}{"\n"}{end}`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Template(Vec<Part>);

#[derive(Clone, Debug, PartialEq, Eq)]
enum Part {
    Text(String),
    /// An expression, as RFC 9535 writes it.
    Path(String),
    /// A template for each value of an expression.
    Range(String, Vec<Self>),
}

/// A text that is not a template.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A brace is not closed.
    #[error("missing }} after '{{{0}'")]
    Open(String),
    /// A range is not closed.
    #[error("missing {{end}} after {{range {0}}}")]
    Range(String),
    /// There is no range to end.
    #[error("{{end}} without {{range}}")]
    End,
    /// The path cannot be evaluated.
    #[error("invalid path '{0}': use paths such as .metadata.name or .items[*].status.phase")]
    Path(String),
}

impl FromStr for Template {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self, Error> {
        // A path alone needs no braces.
        if text.starts_with('.') && !text.contains('{') {
            return Ok(Self(vec![Part::Path(path(text)?)]));
        }
        // The template, and a frame for each range that is open.
        let mut frames = vec![(String::new(), Vec::new())];
        let mut rest = text;
        while let Some((before, after)) = rest.split_once('{') {
            let end = closing(after).ok_or_else(|| Error::Open(after.to_owned()))?;
            let (expression, following) = (after[..end].trim(), &after[end + 1..]);
            push(&mut frames, Part::Text(before.to_owned()));
            if let Some(literal) = literal(expression) {
                push(&mut frames, Part::Text(literal));
            } else if let Some(given) = expression.strip_prefix("range ") {
                frames.push((path(given.trim())?, Vec::new()));
            } else if expression == "end" {
                let frame = frames.pop().filter(|_| !frames.is_empty());
                let (path, parts) = frame.ok_or(Error::End)?;
                push(&mut frames, Part::Range(path, parts));
            } else {
                push(&mut frames, Part::Path(path(expression)?));
            }
            rest = following;
        }
        push(&mut frames, Part::Text(rest.to_owned()));
        let last = frames.pop().unwrap_or_default();
        if frames.is_empty() {
            Ok(Self(last.1))
        } else {
            Err(Error::Range(last.0))
        }
    }
}

fn push(frames: &mut [(String, Vec<Part>)], part: Part) {
    if let Some((_, parts)) = frames.last_mut() {
        parts.push(part);
    }
}

/// Position of the brace that ends an expression, outside of quotes.
fn closing(text: &str) -> Option<usize> {
    let mut quote = None;
    for (index, c) in text.char_indices() {
        match (quote, c) {
            (None, '}') => return Some(index),
            (None, '"' | '\'') => quote = Some(c),
            (Some(open), c) if open == c => quote = None,
            _ => {}
        }
    }
    None
}

/// The text of a literal in quotes.
fn literal(expression: &str) -> Option<String> {
    let quote = expression.chars().next().filter(|c| "\"'".contains(*c))?;
    let inner = expression.strip_prefix(quote)?.strip_suffix(quote)?;
    Some(inner.replace("\\n", "\n").replace("\\t", "\t"))
}

/// kubectl's path as one of RFC 9535: `.metadata.annotations.a\.b/c` is `$['metadata']['annotations']['a.b/c']`.
fn path(given: &str) -> Result<String, Error> {
    let mut out = String::from("$");
    let mut rest = given.trim_start_matches(['$', '@']);
    while !rest.is_empty() {
        if let Some(inner) = rest.strip_prefix('[') {
            let end = bracket(inner).ok_or_else(|| Error::Path(given.to_owned()))?;
            out.push_str(&rest[..end + 2]);
            rest = &inner[end + 1..];
            continue;
        }
        if let Some(after) = rest.strip_prefix("..") {
            out.push_str("..");
            rest = after;
        } else {
            rest = rest.strip_prefix('.').unwrap_or(rest);
        }
        let (name, after) = name(rest);
        match name.as_str() {
            "" => {}
            "*" => out.push_str("[*]"),
            name => {
                let name = name.replace('\\', "\\\\").replace('\'', "\\'");
                out.extend(["['", name.as_str(), "']"]);
            }
        }
        rest = after;
    }
    match Value::Null.query(&out) {
        Ok(_) => Ok(out),
        Err(_) => Err(Error::Path(given.to_owned())),
    }
}

/// The first name of a path, and the rest. A backslash makes a dot a part of the name.
fn name(path: &str) -> (String, &str) {
    let (mut name, mut characters) = (String::new(), path.char_indices());
    while let Some((index, c)) = characters.next() {
        match c {
            '.' | '[' => return (name, &path[index..]),
            '\\' => name.extend(characters.next().map(|(_, c)| c)),
            c => name.push(c),
        }
    }
    (name, "")
}

/// Position of the bracket that closes one that is open, outside of quotes.
fn bracket(text: &str) -> Option<usize> {
    let (mut depth, mut quote) = (0, None);
    for (index, c) in text.char_indices() {
        match (quote, c) {
            (None, ']') if depth == 0 => return Some(index),
            (None, ']') => depth -= 1,
            (None, '[') => depth += 1,
            (None, '"' | '\'') => quote = Some(c),
            (Some(open), c) if open == c => quote = None,
            _ => {}
        }
    }
    None
}

impl Template {
    /// The text for an object. A path without a value is empty.
    pub fn fill(&self, object: &Value) -> String {
        filled(&self.0, object)
    }
}

fn filled(parts: &[Part], object: &Value) -> String {
    let values = |path: &String| object.query(path).unwrap_or_default();
    let each = parts.iter().map(|part| match part {
        Part::Text(text) => text.clone(),
        Part::Path(path) => values(path).into_iter().map(shown).collect::<Vec<_>>().join(" "),
        Part::Range(path, parts) => values(path).into_iter().map(|value| filled(parts, value)).collect(),
    });
    each.collect()
}

fn shown(value: &Value) -> String {
    value.as_str().map_or_else(|| value.to_string(), str::to_owned)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn templates_give_the_text_that_kubectl_gives() {
        let list = json!({ "items": [
            { "metadata": { "name": "a", "annotations": { "kubeairunway.ai/paused": "true" } },
              "status": { "phase": "Running", "replicas": { "ready": 1 },
                "conditions": [{ "type": "Validated", "status": "True" }, { "type": "Ready", "status": "False" }] } },
            { "metadata": { "name": "b" }, "status": {} },
        ] });
        let first = &list["items"][0];
        for (template, object, text) in [
            ("{.status.phase}", first, "Running"),
            (".status.phase", first, "Running"),
            ("{$.status.replicas}", first, r#"{"ready":1}"#),
            ("phase: {.status.phase}{'\\n'}", first, "phase: Running\n"),
            (r"{.metadata.annotations.kubeairunway\.ai/paused}", first, "true"),
            ("{.metadata.annotations['kubeairunway.ai/paused']}", first, "true"),
            (r#"{.status.conditions[?(@.type=="Ready")].status}"#, first, "False"),
            ("{.status.conditions[-1].type}", first, "Ready"),
            ("{.items[*].metadata.name}", &list, "a b"),
            ("{..name}", &list, "a b"),
            (
                r#"{range .items[*]}{.metadata.name}={.status.phase}{"\n"}{end}"#,
                &list,
                "a=Running\nb=\n",
            ),
            ("{.absent}", first, ""),
            ("", first, ""),
        ] {
            let parsed: Template = template.parse().unwrap();
            assert_eq!(parsed.fill(object), text, "{template}");
        }
    }

    #[test]
    fn an_invalid_template_is_refused() {
        for (template, said) in [
            ("{.a", "missing } after '{.a'"),
            ("{range .items[*]}{.a}", "missing {end} after {range $['items'][*]}"),
            ("{.a}{end}", "{end} without {range}"),
            ("{.a[}", "invalid path '.a['"),
            ("{.a[?(]}", "invalid path '.a[?(]'"),
        ] {
            let error = template.parse::<Template>().unwrap_err().to_string();
            assert!(error.starts_with(said), "{template}: {error}");
        }
    }
}
