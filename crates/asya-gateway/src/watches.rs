//! Requests that wait for news of a job. Only jobs that somebody waits for are in memory.

use std::collections::BTreeMap;
use std::sync::Arc;

use parking_lot::Mutex;
use tokio::sync::watch;

use crate::job::Id;

/// Those who wait, by job. Cheap to clone.
#[derive(Clone, Default)]
pub struct Watches(Arc<Mutex<BTreeMap<Id, watch::Sender<u64>>>>);

/// News of a job.
pub struct Watch {
    id: Id,
    news: Option<watch::Receiver<u64>>,
    all: Watches,
}

impl Watches {
    /// Waits for news of a job from now on.
    #[must_use]
    pub fn watch(&self, id: Id) -> Watch {
        let mut all = self.0.lock();
        let sender = all.entry(id).or_insert_with(|| watch::Sender::new(0));
        Watch {
            id,
            news: Some(sender.subscribe()),
            all: self.clone(),
        }
    }

    /// Wakes those who wait for this job.
    pub fn wake(&self, id: Id) {
        if let Some(sender) = self.0.lock().get(&id) {
            sender.send_modify(|number| *number += 1);
        }
    }
}

impl Watch {
    /// Waits for news.
    pub async fn changed(&mut self) {
        match &mut self.news {
            Some(news) => drop(news.changed().await),
            None => std::future::pending().await,
        }
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        let mut all = self.all.0.lock();
        self.news = None;
        if all.get(&self.id).is_some_and(|sender| sender.receiver_count() == 0) {
            all.remove(&self.id);
        }
    }
}

#[cfg(test)]
mod tests {
    use futures::FutureExt as _;

    use super::*;

    #[tokio::test]
    async fn waiting_requests_are_woken_and_leave_nothing_behind() {
        let all = Watches::default();
        let (mut first, mut second, other) = (all.watch(Id(1)), all.watch(Id(1)), all.watch(Id(2)));
        assert_eq!(first.changed().now_or_never(), None);
        all.wake(Id(1));
        assert_eq!(first.changed().now_or_never(), Some(()));
        assert_eq!(second.changed().now_or_never(), Some(()));
        drop((first, other));
        assert_eq!(all.0.lock().len(), 1);
        drop(second);
        assert!(all.0.lock().is_empty());
    }
}
