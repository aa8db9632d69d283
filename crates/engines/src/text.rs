//! The text format of Prometheus and of OpenMetrics, as far as names and values go: comments, labels, timestamps and exemplars are
//! skipped, and so are lines that are not samples.

/// A sample.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Sample<'a> {
    /// Name, with its suffix such as `_total` or `_bucket`.
    pub name: &'a str,
    /// Value. It may be infinite or not a number.
    pub value: f64,
}

/// The samples of a text, in its order.
pub fn samples(text: &str) -> impl Iterator<Item = Sample<'_>> {
    text.lines().filter_map(sample)
}

fn sample(line: &str) -> Option<Sample<'_>> {
    let line = line.trim_start();
    let end = line.find(['{', ' ', '\t'])?;
    let (name, rest) = line.split_at(end);
    let is_name = name.starts_with(|c: char| c.is_ascii_alphabetic() || c == '_' || c == ':');
    let rest = match rest.strip_prefix('{') {
        Some(labels) => after_labels(labels)?,
        None => rest,
    };
    let value = rest.split_ascii_whitespace().next()?.parse().ok()?;
    is_name.then_some(Sample { name, value })
}

/// Text after the closing brace. Values of labels are quoted, and may contain braces and escaped quotes.
fn after_labels(labels: &str) -> Option<&str> {
    let (mut quoted, mut escaped) = (false, false);
    let end = labels.bytes().position(|byte| match byte {
        _ if escaped => {
            escaped = false;
            false
        }
        b'\\' if quoted => {
            escaped = true;
            false
        }
        b'"' => {
            quoted = !quoted;
            false
        }
        byte => byte == b'}' && !quoted,
    })?;
    labels.get(end + 1..)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn all(text: &str) -> Vec<(&str, f64)> {
        samples(text).map(|sample| (sample.name, sample.value)).collect()
    }

    #[test]
    fn labels_timestamps_and_exemplars_are_skipped() {
        let text = concat!(
            "# HELP a b 3\n",
            "a 1\n",
            "a:b{} 2.5e3 1795635373000\n",
            "a_bucket{le=\"+Inf\",m=\"x } y\\\" 7\\\\\"} 4 # {trace=\"1\"} 0.5\n",
            "a_max +Inf\n",
            "  indented\t7\n",
        );
        let inf = f64::INFINITY;
        let wanted = [
            ("a", 1.0),
            ("a:b", 2500.0),
            ("a_bucket", 4.0),
            ("a_max", inf),
            ("indented", 7.0),
        ];
        assert_eq!(all(text), wanted);
    }

    #[test]
    fn lines_that_are_not_samples_are_skipped() {
        for line in [
            "",
            "a",
            "a{b=\"c\" 1",
            "a one",
            "1 2",
            "{} 1",
            "# EOF",
            "<html> 1</html>",
        ] {
            assert_eq!(all(line), [], "{line}");
        }
    }

    proptest! {
        #[test]
        fn any_text_is_read(text in "[a:{}\"\\\\ 1\n=\u{e9}]{0,80}") {
            let _ = all(&text);
        }

        #[test]
        fn any_label_value_is_skipped(value in ".{0,40}") {
            let escaped = value.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n").replace('\r', "");
            // A line ends at any line break.
            prop_assume!(escaped.lines().count() <= 1);
            let line = format!("m{{a=\"{escaped}\"}} 5");
            prop_assert_eq!(all(&line), [("m", 5.0)]);
        }
    }
}
