//! Use of models by day, as the model router keeps it in the ConfigMap [`CONFIG_MAP`]: a key for each day (UTC), such as
//! `2026-11-29`, and under it a line for each model and tenant, which is a JSON array: namespace, model, tenant, requests, tokens of
//! prompts, tokens of responses, and how many of both are estimated.

use std::collections::BTreeMap;

use jiff::Timestamp;
use jiff::civil::Date;
use jiff::tz::TimeZone;
use serde::{Deserialize, Serialize};

/// Name of the ConfigMap, in the namespace of the router.
pub const CONFIG_MAP: &str = "kubeairunway-router-usage";

/// Tenant of the line that has the use of all that have no line of their own. Its namespace and model are empty.
pub const OTHERS: &str = "others";

/// A model, and a tenant that uses it.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct User {
    /// Namespace of the ModelDeployment.
    pub namespace: String,
    /// Name of the ModelDeployment.
    pub model: String,
    /// Tenant: `namespace:NAME` for ServiceAccounts, `user:NAME` or `key:NAME`.
    pub tenant: String,
}

impl User {
    /// The one that has the use of all that have no line of their own.
    pub fn others() -> Self {
        Self {
            tenant: OTHERS.to_owned(),
            ..Self::default()
        }
    }
}

/// Use within a time.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Used {
    /// Requests that an engine answered.
    pub requests: u64,
    /// Tokens of prompts.
    pub input_tokens: u64,
    /// Tokens of responses.
    pub output_tokens: u64,
    /// Tokens of both that the engine did not report: the router estimated them.
    pub estimated_tokens: u64,
}

impl Used {
    /// Adds more.
    pub fn add(&mut self, more: Self) {
        let all = [
            (&mut self.requests, more.requests),
            (&mut self.input_tokens, more.input_tokens),
            (&mut self.output_tokens, more.output_tokens),
            (&mut self.estimated_tokens, more.estimated_tokens),
        ];
        for (sum, more) in all {
            *sum = sum.saturating_add(more);
        }
    }

    /// Tokens of prompts and responses.
    pub fn tokens(self) -> u64 {
        self.input_tokens.saturating_add(self.output_tokens)
    }
}

/// Use of a day.
pub type Day = BTreeMap<User, Used>;

/// The day of a time (UTC).
pub fn day(time: Timestamp) -> Date {
    time.to_zoned(TimeZone::UTC).date()
}

/// A line, as it is written.
#[derive(Serialize, Deserialize)]
struct Line(String, String, String, u64, u64, u64, u64);

/// Reads a day. Lines that are not valid are skipped and counted: they were not written by the router.
pub fn read(text: &str) -> (Day, usize) {
    let mut day = Day::new();
    let mut skipped = 0;
    for line in text.lines().filter(|line| !line.is_empty()) {
        let Ok(Line(namespace, model, tenant, requests, input_tokens, output_tokens, estimated_tokens)) =
            serde_json::from_str(line)
        else {
            skipped += 1;
            continue;
        };
        let user = User {
            namespace,
            model,
            tenant,
        };
        let counted = Used {
            requests,
            input_tokens,
            output_tokens,
            estimated_tokens,
        };
        day.entry(user).or_default().add(counted);
    }
    (day, skipped)
}

/// Writes a day.
///
/// # Errors
/// Never for text and numbers; the library could refuse other values.
pub fn write(day: &Day) -> Result<String, serde_json::Error> {
    let mut text = String::new();
    for (user, used) in day {
        let line = Line(
            user.namespace.clone(),
            user.model.clone(),
            user.tenant.clone(),
            used.requests,
            used.input_tokens,
            used.output_tokens,
            used.estimated_tokens,
        );
        text.push_str(&serde_json::to_string(&line)?);
        text.push('\n');
    }
    Ok(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn day_is_read_as_it_was_written() {
        let user = |tenant: &str| User {
            namespace: "team-a".to_owned(),
            model: "gemma".to_owned(),
            tenant: tenant.to_owned(),
        };
        let counted = Used {
            requests: 1,
            input_tokens: 2,
            output_tokens: 3,
            estimated_tokens: 5,
        };
        let day = Day::from([(user("user:cn=\"a\",\no=b"), counted), (user("key:shop"), counted)]);
        let text = write(&day).unwrap();
        assert_eq!(text.lines().next(), Some(r#"["team-a","gemma","key:shop",1,2,3,5]"#));
        assert_eq!(read(&text), (day, 0));
    }

    #[test]
    fn days_are_those_of_utc() {
        let time: Timestamp = "2026-11-29T23:59:59-01:00".parse().unwrap();
        assert_eq!(day(time).to_string(), "2026-11-30");
    }

    #[test]
    fn lines_of_others_are_skipped_and_equal_ones_are_added() {
        let line = r#"["a","b","c",1,2,3,0]"#;
        let text = format!("{line}\nnot a line\n[]\n[\"a\",\"b\",\"c\",-1,2,3,0]\n\n{line}\n");
        let (day, skipped) = read(&text);
        assert_eq!(skipped, 3);
        assert_eq!(day.values().map(|used| used.tokens()).collect::<Vec<_>>(), [10]);
        let most = format!("[\"a\",\"b\",\"c\",{0},{0},{0},{0}]", u64::MAX);
        let (day, _) = read(&format!("{most}\n{most}"));
        assert!(day.values().all(|used| used.tokens() == u64::MAX));
    }
}
