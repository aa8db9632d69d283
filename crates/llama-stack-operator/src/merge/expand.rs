//! Writes a document without aliases and merge keys, for the rare base whose providers share nodes. Comments are
//! lost; scalars stay as they were written.

use granit_parser::ScalarStyle;

use super::Problem;
use super::write::quoted;
use super::yaml::{Document, Kind, NodeId};

/// Largest expanded document, in bytes. A larger one is an alias bomb.
const MAX_BYTES: usize = 4 << 20;

pub(super) fn expand(document: &Document<'_>) -> Result<String, Problem> {
    let mut out = String::new();
    match document.root().filter(|root| !document.is_null(*root)) {
        Some(root) if collection(document, root) => block(document, root, 0, &mut out)?,
        Some(root) => out.push_str(&inline(document, root)),
        None => {}
    }
    Ok(out)
}

/// Whether a node takes lines of its own.
fn collection(document: &Document<'_>, id: NodeId) -> bool {
    !document.items(id).is_empty() || document.entries(id).next().is_some()
}

fn block(document: &Document<'_>, id: NodeId, indent: usize, out: &mut String) -> Result<(), Problem> {
    // The parser stops at 255 levels; more can only come from an alias to an ancestor.
    if indent > 2 * 300 {
        return Err(Problem::at(document, id, "an alias contains itself".to_owned()));
    }
    for item in document.items(id) {
        out.extend([&" ".repeat(indent), "-"]);
        value(document, *item, indent, out)?;
        limited(document, *item, out)?;
    }
    for (key, content) in entries(document, id) {
        if collection(document, key) {
            return Err(Problem::at(document, key, "a key must be a scalar".to_owned()));
        }
        out.extend([&" ".repeat(indent), &inline(document, key), ":"]);
        value(document, content, indent, out)?;
        limited(document, content, out)?;
    }
    Ok(())
}

fn limited(document: &Document<'_>, id: NodeId, out: &str) -> Result<(), Problem> {
    if out.len() <= MAX_BYTES {
        return Ok(());
    }
    let reason = format!("its aliases grow beyond {MAX_BYTES} bytes when they are written out");
    Err(Problem::at(document, id, reason))
}

/// Writes the value after a dash or a colon.
fn value(document: &Document<'_>, id: NodeId, indent: usize, out: &mut String) -> Result<(), Problem> {
    if !collection(document, id) {
        let text = inline(document, id);
        out.extend([if text.is_empty() { "" } else { " " }, &text, "\n"]);
        return Ok(());
    }
    let mut lines = String::new();
    block(document, id, indent + 2, &mut lines)?;
    let in_list = out.ends_with('-');
    match document.tag(id) {
        Some(tag) => out.extend([" ", tag, "\n", &lines]),
        // `- key: value`, with the keys below each other.
        None if in_list => out.extend([" ", lines.trim_start()]),
        None => out.extend(["\n", &lines]),
    }
    Ok(())
}

/// A scalar, or a collection with nothing in it.
fn inline(document: &Document<'_>, id: NodeId) -> String {
    let node = document.node(id);
    let raw = document.text.get(node.content..node.end).unwrap_or_default();
    let text = match &node.kind {
        Kind::Sequence(_) => "[]".to_owned(),
        Kind::Mapping(_) | Kind::Alias(_) => "{}".to_owned(),
        Kind::Scalar(text, ScalarStyle::Literal | ScalarStyle::Folded) => quoted(text),
        Kind::Scalar(text, _) if raw.contains('\n') => quoted(text),
        Kind::Scalar(..) => raw.to_owned(),
    };
    match document.tag(id) {
        Some(tag) if text.is_empty() => tag.to_owned(),
        Some(tag) => format!("{tag} {text}"),
        None => text,
    }
}

/// Entries of a mapping with its merge keys resolved as PyYAML does: own keys win, then the first source.
fn entries(document: &Document<'_>, id: NodeId) -> Vec<(NodeId, NodeId)> {
    let mut all: Vec<(NodeId, NodeId)> = document
        .entries(id)
        .filter(|(key, _)| !document.is_merge_key(*key))
        .collect();
    for source in document.merged(id) {
        for (key, value) in document.entries(source).filter(|(key, _)| !document.is_merge_key(*key)) {
            let taken = all
                .iter()
                .any(|(other, _)| document.scalar(*other) == document.scalar(key));
            if !taken {
                all.push((key, value));
            }
        }
    }
    all
}
