//! Use of models by day, in a ConfigMap that all routers add to.
//!
//! Each router writes its part every minute if there is any, and at its end; a router that is killed loses at most the last minute.
//! The ConfigMap is created with the router. It keeps as many days as fit.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use k8s_openapi::api::core::v1::ConfigMap;
use k8s_openapi::api::rbac::v1::PolicyRule;
use kube::api::PostParams;
use kube::{Api, Client};
use parking_lot::Mutex;
use runway_api::condition::shorten;
use runway_api::daily_usage::{self, CONFIG_MAP, Day, Used, User};
use runway_api::labels;
use runway_operator::access::{named, rule};
use runway_operator::clock;
use runway_operator::telemetry::chain;
use tokio::time::sleep;

use crate::model::Model;
use crate::rights::Who;
use crate::usage::Usage;

/// Interval of writes.
const WRITTEN_EVERY: Duration = Duration::from_mins(1);
/// Days that are kept, if they fit.
const MOST_DAYS: usize = 62;
/// Most bytes of all days: a ConfigMap has at most 1 MiB.
const MOST_BYTES: usize = 900 * 1024;
/// Most lines of a day.
const MOST_LINES: usize = 4_000;
/// Longest name of a tenant, in bytes.
const LONGEST_TENANT: usize = 100;
/// Attempts to write while other routers write, too.
const ATTEMPTS: usize = 5;

/// Days by their name, such as `2026-11-29`.
type Days = BTreeMap<String, Day>;

/// Counts the use, and writes it from time to time.
pub struct Daily {
    maps: Api<ConfigMap>,
    unwritten: Mutex<Days>,
    /// The last write failed, which was logged.
    fails: AtomicBool,
}

/// The use cannot be written.
#[derive(Debug, thiserror::Error)]
enum Error {
    /// The API server refuses.
    #[error(transparent)]
    Cluster(#[from] kube::Error),
    /// A line cannot be written.
    #[error(transparent)]
    Line(#[from] serde_json::Error),
}

/// Permissions in the namespace of the router.
pub fn access_in_namespace() -> PolicyRule {
    named(rule("", &["configmaps"], &["get", "update"]), &[CONFIG_MAP])
}

impl Daily {
    /// Keeps the use in this namespace.
    pub fn new(client: Client, namespace: &str) -> Self {
        Self {
            maps: Api::namespaced(client, namespace),
            unwritten: Mutex::default(),
            fails: AtomicBool::new(false),
        }
    }

    /// Counts a request that an engine answered.
    pub fn count(&self, model: &Model, who: &Who, usage: Usage, estimated: bool) {
        let user = User {
            namespace: model.namespace.to_string(),
            model: model.name.to_string(),
            tenant: shorten(who.tenant().to_string(), LONGEST_TENANT),
        };
        let mut counted = Used {
            requests: 1,
            input_tokens: usage.input,
            output_tokens: usage.output,
            estimated_tokens: 0,
        };
        if estimated {
            counted.estimated_tokens = counted.tokens();
        }
        let mut days = self.unwritten.lock();
        let today = daily_usage::day(clock::now()).to_string();
        add(days.entry(today).or_default(), user, counted);
    }

    /// Writes from time to time.
    pub async fn follow(self: Arc<Self>) {
        loop {
            sleep(WRITTEN_EVERY).await;
            self.write().await;
        }
    }

    /// Writes all that is not written yet. What cannot be written is kept for the next time.
    pub async fn write(&self) {
        let unwritten = std::mem::take(&mut *self.unwritten.lock());
        if unwritten.is_empty() {
            return;
        }
        let written = add_to(&self.maps, &unwritten).await;
        let fails = self.fails.swap(written.is_err(), Ordering::Relaxed);
        if let Err(error) = written {
            if !fails {
                tracing::warn!(
                    configmap = CONFIG_MAP,
                    error = chain(&error),
                    "cannot write the use of models by day: it is kept until it can be written; create the ConfigMap, or update the manifests of the router"
                );
            }
            let mut kept = self.unwritten.lock();
            merge(&mut kept, unwritten);
            // An unwritten day before yesterday is not missed more than memory is.
            while kept.len() > 2 {
                kept.pop_first();
            }
        }
    }
}

/// Adds days to those of the ConfigMap, unless another writes at the same time too often.
async fn add_to(maps: &Api<ConfigMap>, more: &Days) -> Result<(), Error> {
    let params = PostParams {
        field_manager: Some(labels::ROUTER_MANAGER.to_owned()),
        ..PostParams::default()
    };
    for attempt in 1.. {
        let mut map = maps.get(CONFIG_MAP).await?;
        map.data = Some(added(map.data.unwrap_or_default(), more)?);
        match maps.replace(CONFIG_MAP, &params, &map).await {
            Err(kube::Error::Api(status)) if status.is_conflict() && attempt < ATTEMPTS => {}
            written => return Ok(written.map(drop)?),
        }
    }
    Ok(())
}

/// The data of the ConfigMap with more days. The oldest days are removed until all fit.
fn added(data: BTreeMap<String, String>, more: &Days) -> Result<BTreeMap<String, String>, serde_json::Error> {
    let mut data = data;
    for (name, more) in more {
        let (mut day, _) = daily_usage::read(data.get(name).map_or("", String::as_str));
        add_all(&mut day, more.clone());
        let mut text = daily_usage::write(&day)?;
        while text.len() > MOST_BYTES {
            fold(&mut day);
            text = daily_usage::write(&day)?;
        }
        data.insert(name.clone(), text);
    }
    let size = |data: &BTreeMap<String, String>| data.iter().map(|(name, text)| name.len() + text.len()).sum::<usize>();
    while data.len() > MOST_DAYS || (data.len() > 1 && size(&data) > MOST_BYTES) {
        data.pop_first();
    }
    Ok(data)
}

fn merge(days: &mut Days, more: Days) {
    for (name, more) in more {
        add_all(days.entry(name).or_default(), more);
    }
}

fn add_all(day: &mut Day, more: Day) {
    for (user, used) in more {
        add(day, user, used);
    }
}

/// Adds to the line of a user, or to that of the others if there are too many.
fn add(day: &mut Day, user: User, more: Used) {
    let has_place = day.len() < MOST_LINES || day.contains_key(&user);
    let user = if has_place { user } else { User::others() };
    day.entry(user).or_default().add(more);
}

/// Adds the half of the lines with the fewest tokens to that of the others.
fn fold(day: &mut Day) {
    let mut tokens: Vec<u64> = day.values().map(|used| used.tokens()).collect();
    tokens.sort_unstable();
    let median = tokens[tokens.len() / 2];
    let mut others = Used::default();
    day.retain(|_, used| {
        let is_small = used.tokens() <= median;
        if is_small {
            others.add(*used);
        }
        !is_small
    });
    day.insert(User::others(), others);
}

#[cfg(test)]
mod tests {
    use std::convert::Infallible;

    use axum::http::{Method, Request, Response, StatusCode};
    use http_body_util::BodyExt as _;
    use kube::client::Body;
    use serde_json::{Value, json};

    use super::*;
    use crate::keys::KeyHolder;

    fn user(number: usize) -> User {
        User {
            namespace: "team-a".to_owned(),
            model: format!("model-{number}"),
            tenant: "key:".to_owned() + &"x".repeat(LONGEST_TENANT),
        }
    }

    fn used(tokens: u64) -> Used {
        Used {
            requests: 1,
            input_tokens: tokens,
            ..Used::default()
        }
    }

    fn tokens(data: &BTreeMap<String, String>) -> u64 {
        let days = data.values().map(|text| daily_usage::read(text).0);
        days.flat_map(Day::into_values).map(Used::tokens).sum()
    }

    /// Writes to an API server that has this ConfigMap, and answers writes with this status.
    fn daily(status: StatusCode, map: Arc<Mutex<Value>>) -> Daily {
        let server = tower::service_fn(move |request: Request<Body>| {
            let map = Arc::clone(&map);
            async move {
                if request.method() == Method::GET {
                    return Ok::<_, Infallible>(Response::new(Body::from(map.lock().to_string().into_bytes())));
                }
                let body = request.into_body().collect().await.unwrap().to_bytes();
                if status.is_success() {
                    *map.lock() = serde_json::from_slice(&body).unwrap();
                }
                let mut response = Response::new(Body::from(body));
                *response.status_mut() = status;
                Ok(response)
            }
        });
        Daily::new(Client::new(server, "default"), "default")
    }

    #[tokio::test]
    async fn use_is_written_once_and_kept_until_it_can_be_written() {
        let map = Arc::new(Mutex::new(
            json!({"metadata": {"name": CONFIG_MAP}, "data": {"2000-01-01": ""}}),
        ));
        let (model, key) = (
            Model::asleep("a/one", "llama"),
            Who::Key(Arc::new(KeyHolder::named("shop"))),
        );
        let refused = daily(StatusCode::FORBIDDEN, Arc::clone(&map));
        refused.count(&model, &key, Usage { input: 7, output: 3 }, false);
        refused.write().await;
        assert_eq!(refused.unwritten.lock().len(), 1);
        let daily = daily(StatusCode::OK, Arc::clone(&map));
        merge(&mut daily.unwritten.lock(), refused.unwritten.lock().clone());
        daily.write().await;
        daily.write().await;
        let data: BTreeMap<String, String> = serde_json::from_value(map.lock()["data"].clone()).unwrap();
        assert_eq!((data.len(), tokens(&data)), (2, 10));
    }

    #[tokio::test]
    async fn requests_of_a_tenant_are_added_by_day_and_model() {
        let daily = daily(StatusCode::OK, Arc::default());
        let (model, key) = (
            Model::asleep("a/one", "llama"),
            Who::Key(Arc::new(KeyHolder::named("shop"))),
        );
        daily.count(&model, &key, Usage { input: 7, output: 3 }, false);
        daily.count(&model, &key, Usage { input: 5, output: 0 }, true);
        let days = daily.unwritten.lock();
        let texts: Vec<String> = days.values().map(|day| daily_usage::write(day).unwrap()).collect();
        assert_eq!(texts, ["[\"a\",\"one\",\"key:shop\",2,12,3,5]\n"]);
    }

    #[test]
    fn days_of_several_routers_add_up() {
        let more = Days::from([("2026-11-29".to_owned(), Day::from([(user(1), used(5))]))]);
        let data = added(added(BTreeMap::new(), &more).unwrap(), &more).unwrap();
        assert_eq!((data.len(), tokens(&data)), (1, 10));
        let next = Days::from([("2026-11-30".to_owned(), Day::from([(user(1), used(5))]))]);
        assert_eq!(added(data, &next).unwrap().len(), 2);
    }

    #[test]
    fn oldest_days_are_removed_and_small_lines_are_added_together() {
        let many = |first: u64| -> Day {
            (0..MOST_LINES + 500)
                .map(|number| (user(number), used(first)))
                .collect()
        };
        let mut data = BTreeMap::new();
        for number in 10..20 {
            data = added(data, &Days::from([(format!("2026-11-{number}"), many(1))])).unwrap();
        }
        let size: usize = data.values().map(String::len).sum();
        assert!(size <= MOST_BYTES, "{size}");
        assert!(data.contains_key("2026-11-19") && !data.contains_key("2026-11-10"));
        let (last, skipped) = daily_usage::read(&data["2026-11-19"]);
        assert_eq!(skipped, 0);
        assert!(last.contains_key(&User::others()));
        let sum: u64 = last.values().map(|used| used.tokens()).sum();
        assert_eq!(sum, MOST_LINES as u64 + 500, "nothing of the day is lost");
        let days =
            (0..MOST_DAYS as u64 + 5).map(|number| (format!("day-{number:03}"), Day::from([(user(1), used(1))])));
        assert_eq!(added(BTreeMap::new(), &days.collect()).unwrap().len(), MOST_DAYS);
    }
}
