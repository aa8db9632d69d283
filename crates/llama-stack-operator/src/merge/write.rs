//! Values as YAML text that YAML 1.1 and 1.2 read alike: strings in double quotes, collections in flow style.

use std::fmt::Write;

use granit_parser::ScalarStyle;

use super::yaml::{Document, Kind, NodeId};

/// Largest value with expanded aliases, in bytes. A larger one is an alias bomb.
const MAX_BYTES: usize = 1 << 20;

/// A value grows beyond every use when its aliases are written out, or contains itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct TooLarge;

/// A string in double quotes. What is not printable is escaped: PyYAML refuses it, or takes it for a line break.
pub(super) fn quoted(text: &str) -> String {
    let mut out = String::with_capacity(text.len() + 2);
    out.push('"');
    for c in text.chars() {
        match c {
            '"' | '\\' => out.extend(['\\', c]),
            '\n' => out.push_str("\\n"),
            '\t' => out.push_str("\\t"),
            ' '..='~' => out.push(c),
            '\u{a0}'..='\u{2027}' | '\u{202a}'..='\u{d7ff}' | '\u{e000}'..='\u{fefe}' | '\u{ff00}'..='\u{fffd}' => {
                out.push(c);
            }
            '\u{10000}'.. => {
                let _ = write!(out, "\\U{:08x}", u32::from(c));
            }
            _ => {
                let _ = write!(out, "\\u{:04x}", u32::from(c));
            }
        }
    }
    out.push('"');
    out
}

/// A node of another document in flow style, aliases written out.
pub(super) fn flow(document: &Document<'_>, node: NodeId) -> Result<String, TooLarge> {
    let mut out = String::new();
    write_flow(document, node, &mut out, 0)?;
    Ok(out)
}

fn write_flow(document: &Document<'_>, id: NodeId, out: &mut String, depth: usize) -> Result<(), TooLarge> {
    // The parser stops at 255 levels; more can only come from an alias to an ancestor.
    if depth > 300 || out.len() > MAX_BYTES {
        return Err(TooLarge);
    }
    if let Some(tag) = document.tag(id) {
        out.push_str(tag);
        out.push(' ');
    }
    match &document.node(id).kind {
        Kind::Scalar(text, ScalarStyle::Plain) if is_safe_in_flow(text) => out.push_str(&number_of_1_1(text)),
        Kind::Scalar(text, ScalarStyle::Plain) if text.is_empty() => out.push_str("null"),
        Kind::Scalar(text, _) => out.push_str(&quoted(text)),
        Kind::Sequence(_) => {
            out.push('[');
            for (index, item) in document.items(id).iter().enumerate() {
                out.push_str(if index == 0 { "" } else { ", " });
                write_flow(document, *item, out, depth + 1)?;
            }
            out.push(']');
        }
        Kind::Mapping(_) | Kind::Alias(_) => {
            out.push('{');
            for (index, (key, value)) in document.entries(id).enumerate() {
                out.push_str(if index == 0 { "" } else { ", " });
                write_flow(document, key, out, depth + 1)?;
                out.push_str(": ");
                write_flow(document, value, out, depth + 1)?;
            }
            out.push('}');
        }
    }
    Ok(())
}

/// A plain scalar of these characters means the same between brackets. Any other is text in YAML 1.1, so quotes change
/// nothing: no number, truth value, null or date has another character in it.
fn is_safe_in_flow(text: &str) -> bool {
    let safe = |c: char| c.is_ascii_alphanumeric() || "+-._~:/<= ".contains(c);
    let first = text.chars().next();
    first.is_some_and(|c| c.is_ascii_alphanumeric() || "+-.~<=".contains(c))
        && text.chars().all(safe)
        && !text.starts_with("- ")
        && text != "-"
        && !text.ends_with(':')
}

/// JSON writes numbers as `1e3`, which is text to YAML 1.1: there a float has a point, and its exponent a sign.
fn number_of_1_1(text: &str) -> String {
    let Some((mantissa, exponent)) = text.split_once(['e', 'E']) else {
        return text.to_owned();
    };
    let digits = |text: &str| !text.is_empty() && text.chars().all(|c| c.is_ascii_digit());
    let unsigned = mantissa.strip_prefix('-').unwrap_or(mantissa);
    let (whole, fraction) = unsigned.split_once('.').unwrap_or((unsigned, "0"));
    let bare = exponent.strip_prefix(['+', '-']).unwrap_or(exponent);
    if !digits(whole) || !digits(fraction) || !digits(bare) {
        return text.to_owned();
    }
    let minus = if mantissa.starts_with('-') { "-" } else { "" };
    let sign = if exponent.starts_with('-') { '-' } else { '+' };
    format!("{minus}{whole}.{fraction}e{sign}{bare}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn strings_are_quoted_so_that_both_generations_of_yaml_read_them_alike() {
        assert_eq!(quoted("pa$$w0rd $(HOME)"), r#""pa$$w0rd $(HOME)""#);
        assert_eq!(quoted("a\"b\\c\n\té"), r#""a\"b\\c\n\té""#);
        assert_eq!(
            quoted("\u{7f}\u{85}\u{2028}\u{feff}\u{0}"),
            r#""\u007f\u0085\u2028\ufeff\u0000""#
        );
        assert_eq!(quoted("😀"), r#""\U0001f600""#);
    }

    #[test]
    fn scalars_keep_what_they_mean_between_brackets() {
        let text = concat!(
            "{\"a\": 1e3, \"b\": -2.5E-7, \"c\": \"1e3\", \"d\": 12345678901234567890123, \"e\": true, \"f\": null,\n",
            " \"g\": {}, \"h\": [], \"i\": \"${env.X:=y}\", \"j\": \"yes\", \"k\": \"012\"}"
        );
        let document = Document::parse(text).unwrap();
        let written = flow(&document, document.root().unwrap()).unwrap();
        assert_eq!(
            written,
            concat!(
                r#"{"a": 1.0e+3, "b": -2.5e-7, "c": "1e3", "d": 12345678901234567890123, "e": true, "f": null, "#,
                r#""g": {}, "h": [], "i": "${env.X:=y}", "j": "yes", "k": "012"}"#
            )
        );
    }

    #[test]
    fn plain_text_of_hand_written_yaml_is_quoted_where_brackets_would_change_it() {
        let document = Document::parse("a: ${env.X:=y}\nb: 12:30:45\nc: yes\nd: x, y\ne:\nf: !!str 12\n").unwrap();
        assert_eq!(
            flow(&document, document.root().unwrap()).unwrap(),
            r#"{a: "${env.X:=y}", b: 12:30:45, c: yes, d: "x, y", e: null, f: !!str 12}"#
        );
    }

    #[test]
    fn bombs_and_rings_are_refused() {
        let mut bomb = "a0: &a0 [x, x, x, x, x, x, x, x, x]\n".to_owned();
        for level in 1..9 {
            let below = format!("*a{}, ", level - 1).repeat(9);
            writeln!(bomb, "a{level}: &a{level} [{below}]").unwrap();
        }
        for text in [bomb.as_str(), "&a [*a]", "&a {b: *a}"] {
            let document = Document::parse(text).unwrap();
            assert_eq!(flow(&document, document.root().unwrap()), Err(TooLarge));
        }
    }
}
