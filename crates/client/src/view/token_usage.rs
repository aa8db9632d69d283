//! `kubeairunway usage`: tokens and requests by day, model and tenant, as the model router counted them. Pure.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};

use comfy_table::{Cell, CellAlignment};
use jiff::Span;
use jiff::civil::Date;
use runway_api::daily_usage::{self, Used, User};
use runway_api::{Name, Namespace};
use serde::Serialize;

use crate::text;

/// Property of which each value has a row.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, clap::ValueEnum)]
pub enum By {
    /// Day (UTC)
    Day,
    /// Namespace and name of the ModelDeployment
    Model,
    /// Namespace of the callers' ServiceAccounts, other user, or key
    Tenant,
}

/// Use that is selected, and its rows.
#[derive(Clone, Debug, Default)]
pub struct Query {
    /// Properties of which each value has a row.
    pub by: BTreeSet<By>,
    /// First day.
    pub since: Date,
    /// Last day.
    pub until: Date,
    /// Namespace of the models; all if `None`.
    pub namespace: Option<Namespace>,
    /// Name of the models; all if `None`.
    pub model: Option<Name>,
}

/// Use by one value of each property.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Row {
    /// Day.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub day: Option<String>,
    /// Namespace of the model.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub namespace: Option<String>,
    /// Name of the model.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub model: Option<String>,
    /// Tenant.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tenant: Option<String>,
    /// Use.
    #[serde(flatten)]
    pub used: Used,
}

/// Use of the days of the router's ConfigMap, and the lines in it that are not the router's.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Report {
    /// By day, then by tokens: most first.
    pub rows: Vec<Row>,
    /// Lines that cannot be read.
    pub skipped: usize,
}

/// The first of so many days.
pub fn first_day(last: Date, days: i64) -> Date {
    last.saturating_sub(Span::new().days(days - 1))
}

/// Selects and adds up the use of the days of the ConfigMap.
pub fn report(days: &BTreeMap<String, String>, query: &Query) -> Report {
    let mut sums: BTreeMap<(Option<String>, User), Used> = BTreeMap::new();
    let mut skipped = 0;
    let is_selected = |name: &str| {
        name.parse()
            .is_ok_and(|day: Date| (query.since..=query.until).contains(&day))
    };
    for (name, text) in days.iter().filter(|(name, _)| is_selected(name)) {
        let (day, unread) = daily_usage::read(text);
        skipped += unread;
        for (user, used) in day.into_iter().filter(|(user, _)| query.selects(user)) {
            let day = query.by.contains(&By::Day).then(|| name.clone());
            sums.entry((day, query.part(user))).or_default().add(used);
        }
    }
    let mut rows: Vec<Row> = sums
        .into_iter()
        .map(|((day, user), used)| {
            let has = |by: By, value: String| query.by.contains(&by).then_some(value);
            Row {
                day,
                namespace: has(By::Model, user.namespace),
                model: has(By::Model, user.model),
                tenant: has(By::Tenant, user.tenant),
                used,
            }
        })
        .collect();
    rows.sort_by(|a, b| (&a.day, Reverse(a.used.tokens())).cmp(&(&b.day, Reverse(b.used.tokens()))));
    Report { rows, skipped }
}

impl Query {
    fn selects(&self, user: &User) -> bool {
        self.namespace
            .as_ref()
            .is_none_or(|namespace| user.namespace == **namespace)
            && self.model.as_ref().is_none_or(|model| user.model == **model)
    }

    /// The properties of a user that have rows.
    fn part(&self, user: User) -> User {
        let has = |by: By, value: String| if self.by.contains(&by) { value } else { String::new() };
        User {
            namespace: has(By::Model, user.namespace),
            model: has(By::Model, user.model),
            tenant: has(By::Tenant, user.tenant),
        }
    }

    /// Columns of the properties.
    pub fn properties(&self) -> Vec<&'static str> {
        let columns: [(By, &[&str]); 3] = [
            (By::Day, &["DAY"]),
            (By::Model, &["NAMESPACE", "MODEL"]),
            (By::Tenant, &["TENANT"]),
        ];
        let has = columns.into_iter().filter(|(by, _)| self.by.contains(by));
        has.flat_map(|(_, names)| names.iter().copied()).collect()
    }
}

/// Columns of the numbers.
pub const NUMBERS: [&str; 4] = ["REQUESTS", "INPUT", "OUTPUT", "ESTIMATED"];

impl Row {
    /// Values of the properties.
    pub fn properties(&self) -> Vec<&str> {
        let all = [&self.day, &self.namespace, &self.model, &self.tenant];
        all.into_iter().filter_map(Option::as_deref).collect()
    }

    /// Values of the numbers.
    pub fn numbers(&self) -> [u64; 4] {
        let Used {
            requests,
            input_tokens,
            output_tokens,
            estimated_tokens,
        } = self.used;
        [requests, input_tokens, output_tokens, estimated_tokens]
    }
}

/// A table for people.
pub fn table(rows: &[Row], query: &Query) -> String {
    let header: Vec<&str> = query.properties().into_iter().chain(NUMBERS).collect();
    let mut table = text::table(&header);
    for row in rows {
        // The use of those without a line of their own has no model.
        let words = row
            .properties()
            .into_iter()
            .map(|word| Cell::new(if word.is_empty() { "-" } else { word }));
        let numbers = row
            .numbers()
            .map(|number| Cell::new(number).set_alignment(CellAlignment::Right));
        table.add_row(words.chain(numbers));
    }
    text::aligned(&table)
}

/// Comma-separated values (RFC 4180), with a header.
pub fn csv(rows: &[Row], query: &Query) -> String {
    let header: Vec<String> = query
        .properties()
        .into_iter()
        .chain(NUMBERS)
        .map(str::to_lowercase)
        .collect();
    let lines = rows.iter().map(|row| {
        let words = row.properties().into_iter().map(str::to_owned);
        words.chain(row.numbers().map(|number| number.to_string())).collect()
    });
    let quoted = |value: &String| {
        if value.contains([',', '"', '\n', '\r']) {
            format!("\"{}\"", value.replace('"', "\"\""))
        } else {
            value.clone()
        }
    };
    let line = |values: Vec<String>| values.iter().map(quoted).collect::<Vec<_>>().join(",") + "\r\n";
    std::iter::once(header).chain(lines).map(line).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn days() -> BTreeMap<String, String> {
        let days = [
            ("2026-11-27", "[\"a\",\"one\",\"namespace:shop\",9,900,90,0]\n"),
            (
                "2026-11-28",
                "[\"a\",\"one\",\"namespace:shop\",1,10,5,0]\n[\"a\",\"one\",\"user:cn=\\\"x\\\",o=y\",2,20,10,30]\nbroken\n",
            ),
            (
                "2026-11-29",
                "[\"b\",\"two\",\"namespace:shop\",4,40,0,0]\n[\"\",\"\",\"others\",1,1,1,0]\n",
            ),
            ("note", "[\"a\",\"one\",\"key:k\",1,1,1,0]"),
        ];
        days.map(|(day, text)| (day.to_owned(), text.to_owned())).into()
    }

    fn query(by: &[By]) -> Query {
        Query {
            by: by.iter().copied().collect(),
            since: "2026-11-28".parse().unwrap(),
            until: "2026-11-29".parse().unwrap(),
            namespace: None,
            model: None,
        }
    }

    #[test]
    fn use_is_added_up_by_model() {
        let query = query(&[By::Model]);
        let report = report(&days(), &query);
        assert_eq!(report.skipped, 1);
        assert_eq!(
            table(&report.rows, &query),
            "NAMESPACE  MODEL  REQUESTS  INPUT  OUTPUT  ESTIMATED\n\
             a          one           3     30      15         30\n\
             b          two           4     40       0          0\n\
             -          -             1      1       1          0\n"
        );
    }

    #[test]
    fn use_of_a_namespace_is_written_as_csv_by_day_and_tenant() {
        let query = Query {
            namespace: Some("a".parse().unwrap()),
            ..query(&[By::Tenant, By::Day])
        };
        assert_eq!(
            csv(&report(&days(), &query).rows, &query),
            "day,tenant,requests,input,output,estimated\r\n\
             2026-11-28,\"user:cn=\"\"x\"\",o=y\",2,20,10,30\r\n\
             2026-11-28,namespace:shop,1,10,5,0\r\n"
        );
    }

    #[test]
    fn rows_of_one_model_have_their_properties_only() {
        let query = Query {
            model: Some("two".parse().unwrap()),
            ..query(&[])
        };
        let rows = report(&days(), &query).rows;
        assert_eq!(
            serde_json::to_value(&rows).unwrap(),
            serde_json::json!([{"requests": 4, "inputTokens": 40, "outputTokens": 0, "estimatedTokens": 0}])
        );
    }
}
