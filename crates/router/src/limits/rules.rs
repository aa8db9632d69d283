//! Rules of limits, from a file of the administrator. Pure.

use std::collections::BTreeSet;
use std::sync::Arc;

use runway_api::condition::shorten;
use serde::Deserialize;
use serde_json::Value;

use crate::model::Model;
use crate::pattern::{self, Pattern};
use crate::rights::Who;
use crate::table::Key;

/// Most rules of a file.
const MOST: usize = 256;
/// Longest part of a rule in a message, in bytes, and longest message of a parser.
const LONGEST_SHOWN: usize = 100;
const LONGEST_MESSAGE: usize = 300;
/// Longest name of a rule, in bytes: it is a label of metrics.
const LONGEST_NAME: usize = 63;

/// A limit for some callers of some models, or another model for them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rule {
    /// Name of the rule.
    pub name: Arc<str>,
    /// Unit that has the limit.
    pub per: Unit,
    /// Requests a minute.
    pub requests_per_minute: Option<u64>,
    /// Tokens a minute, of prompts and responses.
    pub tokens_per_minute: Option<u64>,
    /// Tokens a day, which begins at midnight UTC.
    pub tokens_per_day: Option<u64>,
    /// Requests in flight.
    pub requests_in_flight: Option<u64>,
    /// Requests beyond the limit are counted, and not refused.
    pub dry_run: bool,
    /// Model that gets the requests while theirs does not serve.
    pub fallback: Option<Key>,
    selects: Selects,
}

/// Unit that has a limit of its own.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Unit {
    /// The ServiceAccounts of a namespace, another user, or a key.
    #[default]
    Tenant,
    /// A user or a key.
    Caller,
    /// All callers together.
    All,
}

/// Callers and models of a rule. Empty lists do not restrict.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Selects {
    namespaces: Vec<String>,
    groups: Vec<String>,
    users: Vec<String>,
    keys: Vec<String>,
    models: Vec<Pattern>,
}

/// Reason why a rule is skipped.
#[derive(Debug, thiserror::Error)]
pub enum Invalid {
    /// It is not written as one.
    #[error("{0}")]
    NotARule(String),
    /// The name cannot be used.
    #[error("name '{0}': use at most {LONGEST_NAME} lowercase letters, digits and '-'")]
    Name(String),
    /// Two rules have the same name.
    #[error("name '{0}': an earlier rule has this name, too")]
    Twice(String),
    /// It limits nothing.
    #[error("no limit: set requestsPerMinute, tokensPerMinute, tokensPerDay, requestsInFlight or fallback")]
    NoLimit,
    /// The other model is not written as one.
    #[error("fallback '{0}': use NAMESPACE/NAME")]
    Fallback(String),
    /// A model is not written as one.
    #[error("match.models: {0}")]
    Model(#[from] pattern::Invalid),
    /// There are too many.
    #[error("only the first {MOST} rules are used")]
    TooMany,
}

/// The file is not a list of rules.
#[derive(Debug, thiserror::Error)]
#[error("expected an object with the list `limits`: {0}")]
pub struct NotAFile(String);

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct File {
    #[serde(default)]
    limits: Vec<Value>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
struct Written {
    name: String,
    #[serde(default)]
    r#match: Match,
    #[serde(default)]
    per: Unit,
    requests_per_minute: Option<u64>,
    tokens_per_minute: Option<u64>,
    tokens_per_day: Option<u64>,
    requests_in_flight: Option<u64>,
    #[serde(default)]
    dry_run: bool,
    fallback: Option<String>,
}

#[derive(Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
struct Match {
    namespaces: Vec<String>,
    groups: Vec<String>,
    users: Vec<String>,
    keys: Vec<String>,
    models: Vec<String>,
}

/// Rules of a file, and those that are skipped: each by its place, with the reason.
#[derive(Debug, Default)]
pub struct Rules {
    /// Rules in force.
    pub rules: Vec<Rule>,
    /// Rules that are not valid.
    pub skipped: Vec<(usize, Invalid)>,
}

impl Rules {
    /// Reads the text of a file: YAML or JSON.
    ///
    /// # Errors
    /// It is not a list of rules. Single rules that are not valid are skipped.
    pub fn read(text: &str) -> Result<Self, NotAFile> {
        let file: File = serde_saphyr::from_str(text).map_err(|error| NotAFile(short(&error)))?;
        let mut read = Self::default();
        let mut names = BTreeSet::new();
        for (place, rule) in file.limits.into_iter().enumerate() {
            let rule = if read.rules.len() < MOST {
                Rule::read(rule)
            } else {
                Err(Invalid::TooMany)
            };
            match rule {
                Ok(rule) if !names.insert(Arc::clone(&rule.name)) => {
                    read.skipped.push((place, Invalid::Twice(rule.name.to_string())));
                }
                Ok(rule) => read.rules.push(rule),
                Err(invalid) => read.skipped.push((place, invalid)),
            }
        }
        Ok(read)
    }
}

/// The first line of an error of a parser, which may repeat what it has read.
fn short(error: &impl ToString) -> String {
    let text = error.to_string();
    shorten(text.lines().next().unwrap_or_default().to_owned(), LONGEST_MESSAGE)
}

impl Rule {
    fn read(rule: Value) -> Result<Self, Invalid> {
        let Written {
            name,
            r#match,
            per,
            requests_per_minute,
            tokens_per_minute,
            tokens_per_day,
            requests_in_flight,
            dry_run,
            fallback,
        } = serde_json::from_value(rule).map_err(|error| Invalid::NotARule(short(&error)))?;
        let is_allowed = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-';
        if name.is_empty() || name.len() > LONGEST_NAME || !name.bytes().all(is_allowed) {
            return Err(Invalid::Name(shorten(name, LONGEST_SHOWN)));
        }
        let limits = [
            requests_per_minute,
            tokens_per_minute,
            tokens_per_day,
            requests_in_flight,
        ];
        if limits.iter().all(Option::is_none) && fallback.is_none() {
            return Err(Invalid::NoLimit);
        }
        let full_name = |text: &String| {
            let (namespace, name) = text.split_once('/')?;
            Some((namespace.parse().ok()?, name.parse().ok()?))
        };
        let fallback =
            fallback.map(|text| full_name(&text).ok_or_else(|| Invalid::Fallback(shorten(text, LONGEST_SHOWN))));
        let models = r#match.models.iter().map(|model| model.parse());
        Ok(Self {
            name: name.into(),
            per,
            requests_per_minute,
            tokens_per_minute,
            tokens_per_day,
            requests_in_flight,
            dry_run,
            fallback: fallback.transpose()?,
            selects: Selects {
                models: models.collect::<Result<_, _>>()?,
                namespaces: r#match.namespaces,
                groups: r#match.groups,
                users: r#match.users,
                keys: r#match.keys,
            },
        })
    }

    /// Whether the limit is one of a caller and a model.
    pub fn selects(&self, who: &Who, model: &Model) -> bool {
        self.selects.caller(who)
            && (self.selects.models.is_empty() || self.selects.models.iter().any(|one| one.matches(model)))
    }

    /// Whether it limits anything by itself: a rule may only name a fallback.
    pub fn is_limit(&self) -> bool {
        self.is_shared() || self.requests_in_flight.is_some()
    }

    /// Whether it limits what routers can share: all but requests in flight.
    pub fn is_shared(&self) -> bool {
        let shared = [self.requests_per_minute, self.tokens_per_minute, self.tokens_per_day];
        shared.iter().any(Option::is_some)
    }

    /// The rule with its limit of requests in flight alone.
    #[must_use]
    pub fn in_flight(self) -> Self {
        Self {
            requests_per_minute: None,
            tokens_per_minute: None,
            tokens_per_day: None,
            ..self
        }
    }

    /// The share of one of several routers, rounded up, so that a limit above 0 allows something.
    #[must_use]
    pub fn shared_by(self, routers: u64) -> Self {
        let share = |limit: Option<u64>| limit.map(|limit| limit.div_ceil(routers));
        Self {
            requests_per_minute: share(self.requests_per_minute),
            tokens_per_minute: share(self.tokens_per_minute),
            tokens_per_day: share(self.tokens_per_day),
            requests_in_flight: share(self.requests_in_flight),
            ..self
        }
    }

    /// The unit of a caller that has the limit.
    pub fn unit(&self, who: &Who) -> Arc<str> {
        match self.per {
            Unit::Tenant => (&who.tenant()).into(),
            Unit::Caller => format!("{}:{}", who.class(), who.name()).into(),
            Unit::All => "".into(),
        }
    }
}

impl Selects {
    fn caller(&self, who: &Who) -> bool {
        let Self {
            namespaces,
            groups,
            users,
            keys,
            ..
        } = self;
        if [namespaces, groups, users, keys].into_iter().all(Vec::is_empty) {
            return true;
        }
        match who {
            Who::Key(holder) => keys.contains(&holder.name),
            Who::Cluster(caller) => {
                let of_namespace = caller.tenant.namespace();
                of_namespace.is_some_and(|namespace| namespaces.iter().any(|one| one == namespace))
                    || users.contains(&caller.user)
                    || groups.iter().any(|group| caller.is_in(group))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::keys::KeyHolder;

    fn key(name: &str) -> Who {
        Who::Key(Arc::new(KeyHolder::named(name)))
    }

    fn skipped(rule: &str) -> String {
        let rules = Rules::read(&format!("limits: [{rule}]")).unwrap();
        assert!(rules.rules.is_empty(), "{rules:?}");
        rules.skipped[0].1.to_string()
    }

    #[test]
    fn rule_selects_callers_and_models() {
        let text = "
limits:
- name: shop
  match: {keys: [shop], models: [team-a/gemma, team-b/*]}
  requestsPerMinute: 60
- name: everybody
  per: all
  tokensPerDay: 1000000
  dryRun: true
";
        let rules = Rules::read(text).unwrap();
        let [shop, all] = rules.rules.as_slice() else {
            panic!("{rules:?}")
        };
        let [gemma, other, llama] =
            ["team-a/gemma", "team-a/other", "team-b/llama"].map(|name| Model::asleep(name, "any"));
        assert!(shop.selects(&key("shop"), &gemma) && shop.selects(&key("shop"), &llama));
        assert!(!shop.selects(&key("shop"), &other) && !shop.selects(&key("other"), &gemma));
        assert!(all.selects(&key("other"), &other) && all.dry_run);
        assert_eq!((&*shop.unit(&key("shop")), &*all.unit(&key("shop"))), ("key:shop", ""));
    }

    #[test]
    fn rule_that_is_not_valid_is_skipped_with_its_reason() {
        for (rule, reason) in [
            ("{name: a}", "no limit: set requestsPerMinute"),
            ("{name: a, fallback: gemma}", "fallback 'gemma': use NAMESPACE/NAME"),
            ("{requestsPerMinute: 1}", "missing field `name`"),
            ("{name: A, requestsPerMinute: 1}", "name 'A': use at most 63"),
            ("{name: a, requestsPerMinute: -1}", "invalid value: integer `-1`"),
            ("{name: a, requestsPerHour: 1}", "unknown field `requestsPerHour`"),
            (
                "{name: a, requestsPerMinute: 1, match: {models: [gemma]}}",
                "match.models: invalid model 'gemma'",
            ),
            ("{name: a, requestsPerMinute: 1, per: team}", "unknown variant `team`"),
            ("7", "invalid type: integer `7`"),
        ] {
            let skipped = skipped(rule);
            assert!(skipped.starts_with(reason), "{rule}: {skipped}");
        }
        let twice = Rules::read("limits: [{name: a, tokensPerDay: 0}, {name: a, tokensPerDay: 1}]").unwrap();
        assert_eq!((twice.rules.len(), twice.skipped.len(), twice.skipped[0].0), (1, 1, 1));
    }

    #[test]
    fn file_without_a_list_is_refused_and_an_empty_one_has_no_rules() {
        assert!(Rules::read("[]").is_err());
        assert!(Rules::read("limit: []").is_err());
        assert!(Rules::read("limits: {").is_err());
        assert!(Rules::read("limits: []").unwrap().rules.is_empty());
        let many: String = (0..MOST + 5).fold("limits:\n".to_owned(), |text, n| {
            text + &format!("- {{name: r{n}, tokensPerDay: 1}}\n")
        });
        let many = Rules::read(&many).unwrap();
        assert_eq!((many.rules.len(), many.skipped.len()), (MOST, 5));
    }
}
