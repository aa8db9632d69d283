//! Metrics of the engines of models that a session looks at, kept for an hour.
//!
//! Reading starts with the first page about a model, with the credential of the session, and ends a while after the last one.

use std::collections::{BTreeMap, VecDeque};
use std::slice;
use std::sync::Arc;
use std::time::{Duration, Instant};

use jiff::Timestamp;
use kube::ResourceExt;
use parking_lot::Mutex;
use runway_api::ModelDeployment;
use runway_client::cluster::Cluster;
use runway_client::top::Top;
use runway_client::usage;
use runway_engines::Usage;
use runway_operator::clock;
use tokio::sync::watch as latest;
use tokio_util::task::AbortOnDropHandle;

use crate::history::PERIOD;

/// Interval of two values.
pub const STEP: Duration = Duration::from_secs(15);
/// Reading ends so long after the last page about a model.
const IDLE: Duration = Duration::from_mins(15);
/// Longest wait of a page for the first value.
const FIRST: Duration = Duration::from_secs(15);
/// Most models of a session that are read. The one that was not looked at for the longest time makes room.
const MOST: usize = 20;

/// Values of a model.
#[derive(Clone, Debug, Default)]
pub struct Values {
    /// Values of all engines together, the oldest first; absent if no engine was read.
    pub all: VecDeque<(Timestamp, Option<Usage>)>,
    /// The last reading of each pod.
    pub last: Option<Top>,
}

impl Values {
    fn add(&mut self, now: Timestamp, top: Top) {
        self.all.push_back((now, top.usage));
        while self.all.front().is_some_and(|(at, _)| now.duration_since(*at) > PERIOD) {
            self.all.pop_front();
        }
        self.last = Some(top);
    }
}

/// A model that is read.
struct Read {
    uid: Option<String>,
    visited: Arc<Mutex<(Instant, Arc<ModelDeployment>)>>,
    values: latest::Sender<Values>,
    task: AbortOnDropHandle<()>,
}

/// The models that are read, by namespace and name.
#[derive(Default)]
pub struct Gauges(Mutex<BTreeMap<(String, String), Read>>);

impl Gauges {
    /// Values of a model, which are read from now on. Waits for the first.
    pub async fn of(&self, cluster: &Arc<Cluster>, md: &Arc<ModelDeployment>) -> Values {
        let mut values = self.read(cluster, md);
        let first = values.wait_for(|values| values.last.is_some());
        match tokio::time::timeout(FIRST, first).await {
            Ok(Ok(values)) => values.clone(),
            _ => Values::default(),
        }
    }

    /// Starts or continues to read a model.
    fn read(&self, cluster: &Arc<Cluster>, md: &Arc<ModelDeployment>) -> latest::Receiver<Values> {
        let key = (md.namespace().unwrap_or_default(), md.name_any());
        let mut all = self.0.lock();
        // Values of a predecessor of that name are not those of the model.
        let mut read = all.remove(&key).filter(|read| read.uid == md.uid());
        if let Some(read) = &mut read {
            *read.visited.lock() = (Instant::now(), md.clone());
            if read.task.is_finished() {
                read.task = start(cluster, &read.visited, &read.values);
            }
        }
        let read = read.unwrap_or_else(|| {
            let visited = Arc::new(Mutex::new((Instant::now(), md.clone())));
            let values = latest::channel(Values::default()).0;
            Read {
                uid: md.uid(),
                task: start(cluster, &visited, &values),
                visited,
                values,
            }
        });
        if all.len() >= MOST {
            let idlest = all.iter().min_by_key(|(_, read)| read.visited.lock().0);
            if let Some(key) = idlest.map(|(key, _)| key.clone()) {
                all.remove(&key);
            }
        }
        let values = read.values.subscribe();
        all.insert(key, read);
        values
    }
}

fn start(
    cluster: &Arc<Cluster>,
    visited: &Arc<Mutex<(Instant, Arc<ModelDeployment>)>>,
    values: &latest::Sender<Values>,
) -> AbortOnDropHandle<()> {
    let (cluster, visited, values) = (cluster.clone(), visited.clone(), values.clone());
    AbortOnDropHandle::new(tokio::spawn(async move {
        let mut interval = usage::INTERVAL;
        loop {
            let (last, md) = visited.lock().clone();
            if last.elapsed() > IDLE {
                return;
            }
            let next = tokio::time::Instant::now() + interval;
            if let Some(top) = usage::of(&cluster, slice::from_ref(md.as_ref()), interval).await.pop() {
                values.send_modify(|values| values.add(clock::now(), top));
            }
            // Without an engine the reading takes no time.
            tokio::time::sleep_until(next).await;
            interval = STEP;
        }
    }))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_are_kept_for_an_hour() {
        let mut values = Values::default();
        for minute in 0..90 {
            let at = Timestamp::from_second(minute * 60).unwrap();
            values.add(at, Top::new("default".to_owned(), "a".to_owned(), Vec::new()));
        }
        let first = values.all.front().map(|(at, _)| at.as_second());
        assert_eq!((first, values.all.len()), (Some(29 * 60), 61));
    }
}
