//! Requests that wait for news of something, such as a job or a model. Only what a request waits for is in memory.

use std::borrow::Borrow;
use std::collections::BTreeMap;
use std::sync::Arc;

use parking_lot::Mutex;
use tokio::sync::watch;

/// Waiting requests, by what they wait for. Cheap to clone.
#[derive(Clone)]
pub struct Watches<K>(Arc<Mutex<Waiting<K>>>);

type Waiting<K> = BTreeMap<K, watch::Sender<u64>>;

/// News of one thing.
pub struct Watch<K: Ord> {
    key: K,
    news: Option<watch::Receiver<u64>>,
    all: Watches<K>,
}

impl<K> Default for Watches<K> {
    fn default() -> Self {
        Self(Arc::default())
    }
}

impl<K: Clone + Ord> Watches<K> {
    /// Waits for news from now on.
    #[must_use]
    pub fn watch(&self, key: K) -> Watch<K> {
        let mut all = self.0.lock();
        let sender = all.entry(key.clone()).or_insert_with(|| watch::Sender::new(0));
        Watch {
            key,
            news: Some(sender.subscribe()),
            all: self.clone(),
        }
    }
}

impl<K: Ord> Watches<K> {
    /// Wakes the requests that wait for this.
    pub fn wake<Q: Ord + ?Sized>(&self, key: &Q)
    where
        K: Borrow<Q>,
    {
        if let Some(sender) = self.0.lock().get(key) {
            sender.send_modify(|number| *number += 1);
        }
    }
}

impl<K: Ord> Watch<K> {
    /// Waits for news.
    pub async fn changed(&mut self) {
        match &mut self.news {
            Some(news) => drop(news.changed().await),
            None => std::future::pending().await,
        }
    }
}

impl<K: Ord> Drop for Watch<K> {
    fn drop(&mut self) {
        let mut all = self.all.0.lock();
        self.news = None;
        if all.get(&self.key).is_some_and(|sender| sender.receiver_count() == 0) {
            all.remove(&self.key);
        }
    }
}

#[cfg(test)]
mod tests {
    use futures::FutureExt as _;

    use super::*;

    #[tokio::test]
    async fn waiting_requests_are_woken_and_leave_nothing_behind() {
        let all = Watches::<u32>::default();
        let (mut first, mut second, other) = (all.watch(1), all.watch(1), all.watch(2));
        assert_eq!(first.changed().now_or_never(), None);
        all.wake(&1);
        assert_eq!(first.changed().now_or_never(), Some(()));
        assert_eq!(second.changed().now_or_never(), Some(()));
        drop((first, other));
        assert_eq!(all.0.lock().len(), 1);
        drop(second);
        assert!(all.0.lock().is_empty());
    }
}
