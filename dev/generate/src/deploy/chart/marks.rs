//! Marks: places of an object that the chart leaves open.
//!
//! A mark is a text in the object. Once the object is YAML, the mark and its quotes become an action of Helm's templates.

use anyhow::{Result, ensure};
use kube::core::DynamicObject;
use runway_cli::install::kinds;
use runway_dev_release::yaml::document;
use serde_json::Value;

/// Begin of a mark: nothing that objects hold.
const OPEN: char = '⟦';
/// End of a mark.
const CLOSE: char = '⟧';
/// In place of braces in an object, which are not Helm's.
const BRACES: &str = "⟪";

/// The result of an expression, as a part of a text or as a whole value.
pub(super) fn mark(expression: &str) -> String {
    format!("{OPEN}{expression}{CLOSE}")
}

/// A value as JSON. Its field is omitted if it is empty.
pub(super) fn optional(expression: &str) -> String {
    mark(&format!("?{expression}"))
}

/// Items of a list or entries of a map, beside others; the key or item of the mark is replaced by them.
pub(super) fn lines(expression: &str) -> String {
    mark(&format!("+{expression}"))
}

/// A condition around items of a list, such as `- if X`; it is an item itself.
pub(super) fn control(action: &str) -> String {
    mark(&format!("- {action}"))
}

/// Fails for an object that contains the characters of marks.
pub(super) fn ensure_unmarked(object: &DynamicObject) -> Result<()> {
    let text = serde_json::to_string(object)?;
    ensure!(
        ![OPEN, CLOSE].iter().any(|mark| text.contains(*mark)) && !text.contains(BRACES),
        "{} holds a mark",
        kinds::id(object)
    );
    Ok(())
}

/// A marked object as a template.
pub(super) fn template(object: &Value) -> Result<String> {
    let yaml = document(object)?.replace("{{", BRACES);
    let lines: String = yaml.lines().map(|line| opened(line) + "\n").collect();
    let text = lines.replace(OPEN, "{{ ").replace(CLOSE, " }}");
    Ok(text.replace(BRACES, r#"{{ "{{" }}"#))
}

fn opened(line: &str) -> String {
    let bare = line.trim_start();
    let indent = line.len() - bare.len();
    let unquoted = |text: &str| text.trim_matches(['"', '\'']).replace("\\\"", "\"");
    if let Some(item) = bare.strip_prefix("- ").map(unquoted) {
        if let Some(action) = marked(&item, '-') {
            return format!("{{{{- {} }}}}", action.trim());
        }
        if let Some(items) = marked(&item, '+') {
            return spread(items, indent);
        }
    }
    let Some((key, value)) = line.split_once(": ") else {
        return line.to_owned();
    };
    if let Some(entries) = marked(&unquoted(key.trim_start()), '+') {
        return spread(entries, indent);
    }
    let value = unquoted(value);
    if let Some(expression) = marked(&value, '?') {
        return format!("{{{{- with {expression} }}}}\n{key}: {{{{ toJson . }}}}\n{{{{- end }}}}");
    }
    if value.starts_with(OPEN) {
        return format!("{key}: {value}");
    }
    line.to_owned()
}

/// The expression of a mark of this kind, if it is all of a text.
fn marked(text: &str, kind: char) -> Option<&str> {
    text.strip_prefix(OPEN)?.strip_prefix(kind)?.strip_suffix(CLOSE)
}

fn spread(expression: &str, indent: usize) -> String {
    format!("{{{{- with {expression} }}}}{{{{ toYaml . | nindent {indent} }}}}{{{{ end }}}}")
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn marks_become_actions() -> Result<()> {
        let object = json!({
            "env": [{ "name": "A" }, lines("$own.extraEnv")],
            "image": mark("include \"image\" ."),
            "labels": { "a": "b", lines("$labels"): null },
            "legend": "{{instance}} of all",
            "nodeSelector": optional("$own.nodeSelector"),
            "sources": [control("if .x"), { "token": 1 }, control("end")],
            "url": format!("https://{}.example", mark(".name")),
        });
        let expected = "\
env:
- name: A
{{- with $own.extraEnv }}{{ toYaml . | nindent 0 }}{{ end }}
image: {{ include \"image\" . }}
labels:
  a: b
{{- with $labels }}{{ toYaml . | nindent 2 }}{{ end }}
legend: \"{{ \"{{\" }}instance}} of all\"
{{- with $own.nodeSelector }}
nodeSelector: {{ toJson . }}
{{- end }}
sources:
{{- if .x }}
- token: 1
{{- end }}
url: https://{{ .name }}.example
";
        assert_eq!(template(&object)?, expected);
        Ok(())
    }
}
