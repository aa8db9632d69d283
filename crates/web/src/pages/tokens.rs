//! Use of all models by model, tenant and day, as the model router counted it; also as CSV. Read with the user's credential.

use std::collections::BTreeSet;

use askama::Template;
use axum::extract::Query as Asked;
use axum::http::StatusCode;
use axum::http::header::{CONTENT_DISPOSITION, CONTENT_TYPE};
use axum::response::{IntoResponse as _, Response};
use jiff::Timestamp;
use jiff::civil::Date;
use runway_api::daily_usage::day;
use runway_client::daily_usage::{self, Error};
use runway_client::token_usage::{By, NUMBERS, Query, Report, csv, first_day, report};
use runway_manifests::NAMESPACE;
use runway_operator::clock;
use runway_operator::telemetry::chain;
use serde::Deserialize;

use super::actions;
use crate::guard::Asker;
use crate::page::Shell;
use crate::refusal;
use crate::sessions::Session;

/// Rows of a page; all are in the CSV file.
const ROWS: usize = 500;
/// Numbers of days to choose from; the first is the default.
const DAYS: [i64; 4] = [30, 1, 7, 62];
/// Properties to choose from: value, label and properties; the first is the default.
const PROPERTIES: [(&str, &str, &[By]); 5] = [
    ("model-tenant", "model and tenant", &[By::Model, By::Tenant]),
    ("model", "model", &[By::Model]),
    ("tenant", "tenant", &[By::Tenant]),
    ("day", "day", &[By::Day]),
    ("all", "day, model and tenant", &[By::Day, By::Model, By::Tenant]),
];

/// Filter of the page.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub struct Filter {
    days: i64,
    by: String,
    namespace: String,
}

struct Row {
    properties: Vec<String>,
    numbers: [String; 4],
}

#[derive(Template)]
#[template(path = "tokens.html")]
struct Page {
    shell: Shell,
    filter: Filter,
    since: Date,
    until: Date,
    columns: Vec<&'static str>,
    numbers: [&'static str; 4],
    rows: Vec<Row>,
    all: usize,
    skipped: usize,
    namespaces: BTreeSet<String>,
    /// Query of the CSV file.
    csv: String,
    /// Reason why the use is not known.
    trouble: Option<String>,
}

/// The page.
pub async fn show(Asker(session): Asker, Asked(filter): Asked<Filter>) -> Response {
    let filter = filter.corrected();
    let query = filter.query(clock::now());
    let shell = Shell::new(&session, "usage", "Usage");
    let (report, namespaces, trouble) = match read(&session, &query).await {
        Ok((report, namespaces)) => (report, namespaces, None),
        Err(error) => (Report::default(), BTreeSet::new(), Some(chain(&error))),
    };
    let all = report.rows.len();
    let rows = report.rows.iter().take(ROWS).map(|row| Row {
        properties: row.properties().into_iter().map(str::to_owned).collect(),
        numbers: row.numbers().map(grouped),
    });
    refusal::html(&Page {
        shell,
        since: query.since,
        until: query.until,
        columns: query.properties(),
        numbers: NUMBERS,
        rows: rows.collect(),
        all,
        skipped: report.skipped,
        namespaces,
        csv: filter.text(),
        filter,
        trouble,
    })
}

/// The rows as CSV.
pub async fn file(Asker(session): Asker, Asked(filter): Asked<Filter>) -> Response {
    let query = filter.corrected().query(clock::now());
    match read(&session, &query).await {
        Ok((report, _)) => {
            let name = format!("attachment; filename=\"usage-{}-{}.csv\"", query.since, query.until);
            let headers = [
                (CONTENT_TYPE, "text/csv; charset=utf-8".to_owned()),
                (CONTENT_DISPOSITION, name),
            ];
            (headers, csv(&report.rows, &query)).into_response()
        }
        Err(error) => {
            let status = match &error {
                Error::NoRouter(_) => StatusCode::NOT_FOUND,
                Error::Cluster(cause) => actions::status(cause),
            };
            refusal::refuse(status, &chain(&error))
        }
    }
}

/// The use, and the namespaces to choose from.
async fn read(session: &Session, query: &Query) -> Result<(Report, BTreeSet<String>), Error> {
    let days = daily_usage::days(&session.view.cluster(), NAMESPACE).await?;
    let all = Query {
        by: [By::Model].into(),
        namespace: None,
        ..query.clone()
    };
    let namespaces = report(&days, &all).rows.into_iter().filter_map(|row| row.namespace);
    Ok((
        report(&days, query),
        namespaces.filter(|name| !name.is_empty()).collect(),
    ))
}

impl Filter {
    /// With values that can be chosen.
    fn corrected(mut self) -> Self {
        if !DAYS.contains(&self.days) {
            self.days = DAYS[0];
        }
        if !PROPERTIES.iter().any(|(value, ..)| *value == self.by) {
            PROPERTIES[0].0.clone_into(&mut self.by);
        }
        self
    }

    fn query(&self, now: Timestamp) -> Query {
        let until = day(now);
        let by = PROPERTIES.iter().filter(|(value, ..)| *value == self.by);
        Query {
            by: by.flat_map(|(_, _, by)| by.iter().copied()).collect(),
            since: first_day(until, self.days),
            until,
            namespace: self.namespace.parse().ok(),
            model: None,
        }
    }

    fn text(&self) -> String {
        let mut query = form_urlencoded::Serializer::new(String::new());
        query.append_pair("days", &self.days.to_string());
        query.append_pair("by", &self.by);
        query.append_pair("namespace", &self.namespace);
        query.finish()
    }
}

/// A number with a comma between thousands.
fn grouped(number: u64) -> String {
    let digits = number.to_string();
    let mut text = String::new();
    for (place, digit) in digits.chars().enumerate() {
        if place > 0 && (digits.len() - place).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_have_commas_between_thousands() {
        assert_eq!(
            [0, 999, 1000, 1_234_567].map(grouped),
            ["0", "999", "1,000", "1,234,567"]
        );
    }

    #[test]
    fn filter_of_others_is_the_default() {
        let filter = Filter {
            days: 1_000_000,
            by: "<script>".to_owned(),
            namespace: "../x".to_owned(),
        };
        let query = filter.corrected().query("2026-11-29T23:00:00Z".parse().unwrap());
        assert_eq!(query.by, [By::Model, By::Tenant].into());
        assert_eq!(
            (query.since.to_string(), query.namespace),
            ("2026-10-31".to_owned(), None)
        );
    }
}
