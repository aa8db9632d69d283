//! The jobs and their results, in one file. A thread writes it: what was requested while it wrote is one transaction, so the
//! disk is asked to keep data once for many jobs. An answer is given when the disk has it.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use bytes::Bytes;
use redb::{Database, ReadableDatabase as _, ReadableTable, Table, TableDefinition, WriteTransaction};
use tokio::sync::{mpsc, oneshot};

use crate::job::{Id, Item, Job, Key, State};

/// Jobs, as JSON.
const JOBS: TableDefinition<u128, &[u8]> = TableDefinition::new("jobs");
/// Results by job and suffix of the child: whether it failed, then the payload.
const RESULTS: TableDefinition<(u128, &str), &[u8]> = TableDefinition::new("results");
/// Pending jobs by their deadline.
const DUE: TableDefinition<(i64, u128), ()> = TableDefinition::new("due");
/// Finished jobs by the time of their end.
const KEPT: TableDefinition<(i64, u128), ()> = TableDefinition::new("kept");
/// Jobs by their idempotency key.
const KEYS: TableDefinition<&str, u128> = TableDefinition::new("keys");
/// Finished jobs whose URL has not been called, by the time of the next attempt.
const CALLS: TableDefinition<(i64, u128), ()> = TableDefinition::new("calls");

/// Pages of the file that are kept in memory, in bytes.
const CACHE: usize = 8 * 1024 * 1024;
/// Most requests in one transaction.
const BATCH: usize = 512;
/// Most requests that wait for the thread.
const WAITING: usize = 4096;
/// Most children of a job whose results are kept.
const MOST_CHILDREN: u32 = 1000;
/// Most children of a job that are counted. One of a job with more items ends at its deadline.
const MOST_COUNTED: u32 = 100_000;
/// Most jobs that one sweep ends or removes.
const SWEEP: usize = 1000;

/// Capacity of the store.
#[derive(Clone, Copy, Debug)]
pub struct Capacity {
    /// Largest number of jobs.
    pub jobs: u64,
    /// Largest number of bytes of all results. Beyond it, the oldest finished jobs are removed.
    pub bytes: u64,
    /// Time for which a finished job is kept.
    pub retention: Duration,
}

/// Failure of the store.
#[derive(Clone, Debug, thiserror::Error)]
pub enum Error {
    /// The file cannot be opened.
    #[error("cannot open the store {}: {source}; choose another file with --store", path.display())]
    Open {
        /// Path of the file.
        path: PathBuf,
        /// Cause.
        source: Arc<redb::Error>,
    },
    /// Reading or writing failed.
    #[error("the store failed: {0}")]
    Failed(#[source] Arc<redb::Error>),
    /// The thread has ended after a failure.
    #[error("the store is closed after a failure")]
    Closed,
    /// There are too many jobs.
    #[error("too many jobs: at most {0} are kept, and none of them is finished; try again later")]
    Full(u64),
}

macro_rules! failed {
    ($($error:ty),*) => {$(
        impl From<$error> for Error {
            fn from(error: $error) -> Self {
                Self::Failed(Arc::new(error.into()))
            }
        }
    )*};
}
failed!(
    redb::TransactionError,
    redb::TableError,
    redb::StorageError,
    redb::CommitError
);

/// Result of an item.
#[derive(Clone, Debug)]
pub struct Outcome {
    /// Whether it is an error.
    pub failed: bool,
    /// JSON.
    pub payload: Bytes,
}

/// Whether a result was stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stored {
    /// It is new.
    New,
    /// The item has a result already, or the job was cancelled.
    Duplicate,
    /// There is no such job.
    Unknown,
    /// It is that of a child, and is only counted: the job has too many children, or pending jobs have too many results.
    NoRoom,
}

/// Job of a submission.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Accepted {
    /// It is new.
    New,
    /// An earlier submission had the same idempotency key.
    Known(Id, Key),
}

/// Jobs that a sweep has changed.
#[derive(Debug, Default)]
pub struct Swept {
    /// Jobs that ended at their deadline.
    pub ended: Vec<Id>,
    /// Number of removed jobs.
    pub removed: u64,
}

enum Request {
    Accept(Id, Job, oneshot::Sender<Result<Accepted, Error>>),
    Sent(Id, oneshot::Sender<Result<(), Error>>),
    Forget(Id, oneshot::Sender<Result<(), Error>>),
    Finish(Id, String, u32, Outcome, i64, oneshot::Sender<Result<Stored, Error>>),
    Cancel(Id, i64, oneshot::Sender<Result<State, Error>>),
    /// The URL of a job was called, or is to be called again at this time.
    Called(Id, i64, Option<i64>),
    Sweep(i64, Duration, oneshot::Sender<Result<Swept, Error>>),
}

/// Answers that wait for the commit.
type Answer = Box<dyn FnOnce(Result<(), Error>) + Send>;

/// Answers with this, if the commit succeeds.
fn then<T: Send + 'static>(answer: oneshot::Sender<Result<T, Error>>, done: Result<T, Error>) -> Answer {
    Box::new(move |written| {
        let _ = answer.send(written.and(done));
    })
}

/// Numbers of the store, for metrics and limits.
#[derive(Debug, Default)]
pub struct Counts {
    /// Jobs.
    pub jobs: AtomicU64,
    /// Jobs without a result.
    pub pending: AtomicU64,
    /// Bytes of results.
    pub bytes: AtomicU64,
}

/// The store. Cheap to clone.
#[derive(Clone)]
pub struct Store {
    database: Arc<Database>,
    requests: mpsc::Sender<Request>,
    most: u64,
    retention: Duration,
    /// Numbers after the last commit.
    pub counts: Arc<Counts>,
}

impl Store {
    /// Opens the file, or creates it, and starts the thread.
    ///
    /// # Errors
    /// If the file cannot be opened.
    pub fn open(path: &Path, limits: Capacity) -> Result<Self, Error> {
        let failed = |source: redb::Error| Error::Open {
            path: path.to_owned(),
            source: Arc::new(source),
        };
        let mut builder = Database::builder();
        builder.set_cache_size(CACHE);
        let database = builder.create(path).map_err(|error| failed(error.into()))?;
        let totals = Totals::read(&database)?;
        let counts = Arc::new(Counts::default());
        totals.report(&counts);
        let database = Arc::new(database);
        let (requests, waiting) = mpsc::channel(WAITING);
        let writer = Writer {
            database: Arc::clone(&database),
            limits,
            totals,
            counts: Arc::clone(&counts),
        };
        std::thread::Builder::new()
            .name("store".to_owned())
            .spawn(move || writer.run(waiting))
            .map_err(|error| failed(redb::Error::Io(error)))?;
        Ok(Self {
            database,
            requests,
            most: limits.jobs,
            retention: limits.retention,
            counts,
        })
    }

    /// Checks that there is room for a job, or a finished one to remove.
    ///
    /// # Errors
    /// If there is none.
    pub fn room(&self) -> Result<(), Error> {
        if self.counts.pending.load(Ordering::Relaxed) < self.most {
            Ok(())
        } else {
            Err(Error::Full(self.most))
        }
    }

    /// Stores a job that was submitted, unless an earlier one has its idempotency key. A job that was not sent gives up its key.
    ///
    /// # Errors
    /// If there are too many, or the store fails.
    pub async fn accept(&self, id: Id, job: Job) -> Result<Accepted, Error> {
        self.ask(|answer| Request::Accept(id, job, answer)).await
    }

    /// Records that the broker has confirmed the message of a job with an idempotency key.
    ///
    /// # Errors
    /// If the store fails.
    pub async fn sent(&self, id: Id) -> Result<(), Error> {
        self.ask(|answer| Request::Sent(id, answer)).await
    }

    /// Removes a job that was not sent.
    ///
    /// # Errors
    /// If the store fails.
    pub async fn forget(&self, id: Id) -> Result<(), Error> {
        self.ask(|answer| Request::Forget(id, answer)).await
    }

    /// Stores the result of an item, at this time. `items` is the number of items into which it was split, including itself. The job ends
    /// with the result of its last item.
    ///
    /// # Errors
    /// If the store fails.
    pub async fn finish(&self, item: &Item, items: u32, outcome: Outcome, now: i64) -> Result<Stored, Error> {
        let (id, suffix) = (item.job, item.suffix.clone());
        self.ask(|answer| Request::Finish(id, suffix, items, outcome, now, answer))
            .await
    }

    /// Cancels a pending job. Returns the state of the job afterwards.
    ///
    /// # Errors
    /// If the store fails.
    pub async fn cancel(&self, id: Id, now: i64) -> Result<State, Error> {
        self.ask(|answer| Request::Cancel(id, now, answer)).await
    }

    /// Records that the URL of a job was called, or when it is to be called again.
    pub async fn called(&self, id: Id, since: i64, again: Option<i64>) {
        let _ = self.requests.send(Request::Called(id, since, again)).await;
    }

    /// Ends jobs whose deadline passed more than `grace` ago, and removes those that were kept long enough.
    ///
    /// # Errors
    /// If the store fails.
    pub async fn sweep(&self, now: i64, grace: Duration) -> Result<Swept, Error> {
        // Nothing is written at rest.
        if !self.is_due(now, grace)? {
            return Ok(Swept::default());
        }
        self.ask(|answer| Request::Sweep(now, grace, answer)).await
    }

    fn is_due(&self, now: i64, grace: Duration) -> Result<bool, Error> {
        let read = self.database.begin_read()?;
        let (late, old) = (before(now, grace), before(now, self.retention));
        let due = first(&read.open_table(DUE)?, late, 1)?;
        let kept = first(&read.open_table(KEPT)?, old, 1)?;
        Ok(!due.is_empty() || !kept.is_empty())
    }

    /// Waits until the thread has ended, after a failure.
    pub async fn closed(&self) {
        self.requests.closed().await;
    }

    /// Whether the thread has ended.
    pub fn is_closed(&self) -> bool {
        self.requests.is_closed()
    }

    async fn ask<T>(&self, request: impl FnOnce(oneshot::Sender<Result<T, Error>>) -> Request) -> Result<T, Error> {
        let (answer, answered) = oneshot::channel();
        self.requests.send(request(answer)).await.map_err(|_| Error::Closed)?;
        answered.await.unwrap_or(Err(Error::Closed))
    }

    /// A job.
    ///
    /// # Errors
    /// If the store fails.
    pub fn job(&self, id: Id) -> Result<Option<Job>, Error> {
        let read = self.database.begin_read()?;
        let jobs = read.open_table(JOBS)?;
        Ok(jobs.get(id.0)?.and_then(|bytes| parse(bytes.value())))
    }

    /// Size of the result of an item.
    ///
    /// # Errors
    /// If the store fails.
    pub fn size(&self, item: &Item) -> Result<usize, Error> {
        let read = self.database.begin_read()?;
        let results = read.open_table(RESULTS)?;
        let found = results.get((item.job.0, item.suffix.as_str()))?;
        Ok(found.map_or(0, |bytes| bytes.value().len()))
    }

    /// The result of an item. Its payload is empty if the store had no room for it.
    ///
    /// # Errors
    /// If the store fails.
    pub fn result(&self, item: &Item) -> Result<Option<Outcome>, Error> {
        let read = self.database.begin_read()?;
        let results = read.open_table(RESULTS)?;
        let found = results.get((item.job.0, item.suffix.as_str()))?;
        Ok(found.and_then(|bytes| {
            let (failed, payload) = bytes.value().split_first()?;
            Some(Outcome {
                failed: *failed != 0,
                payload: Bytes::copy_from_slice(payload),
            })
        }))
    }

    /// Suffixes of the children of a job that have a result, at most 1,000.
    ///
    /// # Errors
    /// If the store fails.
    pub fn children(&self, id: Id) -> Result<Vec<String>, Error> {
        let read = self.database.begin_read()?;
        let results = read.open_table(RESULTS)?;
        let mut all = suffixes(&results, id)?;
        all.retain(|suffix| !suffix.is_empty());
        all.truncate(MOST_CHILDREN as usize);
        Ok(all)
    }

    /// Finished jobs whose URL is to be called by now, the oldest first, with the time at which each was due.
    ///
    /// # Errors
    /// If the store fails.
    pub fn calls(&self, now: i64, most: usize) -> Result<Vec<(i64, Id)>, Error> {
        let read = self.database.begin_read()?;
        let calls = read.open_table(CALLS)?;
        first(&calls, now, most)
    }
}

/// Numbers of the file.
#[derive(Clone, Copy, Debug, Default)]
struct Totals {
    jobs: u64,
    pending: u64,
    bytes: u64,
}

impl Totals {
    fn read(database: &Database) -> Result<Self, Error> {
        let write = database.begin_write()?;
        let mut totals = Self::default();
        {
            let tables = Tables::open(&write)?;
            for entry in tables.jobs.iter()? {
                let (_, bytes) = entry?;
                let Some(job) = parse(bytes.value()) else { continue };
                totals.jobs += 1;
                totals.pending += u64::from(job.state == State::Pending);
                totals.bytes += job.bytes;
            }
        }
        write.commit()?;
        Ok(totals)
    }

    fn report(self, counts: &Counts) {
        counts.jobs.store(self.jobs, Ordering::Relaxed);
        counts.pending.store(self.pending, Ordering::Relaxed);
        counts.bytes.store(self.bytes, Ordering::Relaxed);
    }
}

struct Tables<'a> {
    jobs: Table<'a, u128, &'static [u8]>,
    results: Table<'a, (u128, &'static str), &'static [u8]>,
    due: Table<'a, (i64, u128), ()>,
    kept: Table<'a, (i64, u128), ()>,
    calls: Table<'a, (i64, u128), ()>,
    keys: Table<'a, &'static str, u128>,
}

impl<'a> Tables<'a> {
    fn open(write: &'a WriteTransaction) -> Result<Self, Error> {
        Ok(Self {
            jobs: write.open_table(JOBS)?,
            results: write.open_table(RESULTS)?,
            due: write.open_table(DUE)?,
            kept: write.open_table(KEPT)?,
            calls: write.open_table(CALLS)?,
            keys: write.open_table(KEYS)?,
        })
    }

    fn job(&self, id: Id) -> Result<Option<Job>, Error> {
        Ok(self.jobs.get(id.0)?.and_then(|bytes| parse(bytes.value())))
    }

    fn put(&mut self, id: Id, job: &Job) -> Result<(), Error> {
        let bytes = serde_json::to_vec(job).unwrap_or_default();
        self.jobs.insert(id.0, bytes.as_slice())?;
        Ok(())
    }
}

/// The thread that writes.
struct Writer {
    database: Arc<Database>,
    limits: Capacity,
    totals: Totals,
    counts: Arc<Counts>,
}

impl Writer {
    fn run(mut self, mut waiting: mpsc::Receiver<Request>) {
        while let Some(first) = waiting.blocking_recv() {
            let mut batch = vec![first];
            while batch.len() < BATCH
                && let Ok(next) = waiting.try_recv()
            {
                batch.push(next);
            }
            let mut answers = Vec::with_capacity(batch.len());
            let written = self.write(batch, &mut answers);
            if written.is_ok() {
                self.totals.report(&self.counts);
            }
            for answer in answers {
                answer(written.clone());
            }
            if let Err(error) = written {
                // What is in the file is unknown; it is read again at the next start.
                tracing::error!("{error}");
                return;
            }
        }
    }

    /// One transaction. Requests whose work failed are answered by dropping them.
    fn write(&mut self, batch: Vec<Request>, answers: &mut Vec<Answer>) -> Result<(), Error> {
        let write = self.database.begin_write()?;
        {
            let mut tables = Tables::open(&write)?;
            for request in batch {
                self.apply(&mut tables, request, answers)?;
            }
        }
        write.commit()?;
        Ok(())
    }

    fn apply(&mut self, tables: &mut Tables<'_>, request: Request, answers: &mut Vec<Answer>) -> Result<(), Error> {
        match request {
            Request::Accept(id, job, answer) => {
                let done = self.accept(tables, id, &job)?;
                answers.push(then(answer, done));
            }
            Request::Sent(id, answer) => {
                if let Some(mut job) = tables.job(id)?
                    && let Some(key) = &mut job.key
                {
                    key.is_sent = true;
                    tables.put(id, &job)?;
                }
                answers.push(then(answer, Ok(())));
            }
            Request::Forget(id, answer) => {
                self.remove(tables, id)?;
                answers.push(then(answer, Ok(())));
            }
            Request::Finish(id, suffix, items, outcome, now, answer) => {
                let done = self.finish(tables, id, &suffix, items, &outcome, now)?;
                answers.push(then(answer, Ok(done)));
            }
            Request::Cancel(id, now, answer) => {
                let done = match tables.job(id)? {
                    Some(mut job) if job.state == State::Pending => {
                        self.end(tables, id, &mut job, State::Cancelled, now)?;
                        State::Cancelled
                    }
                    Some(job) => job.state,
                    None => State::Cancelled,
                };
                answers.push(then(answer, Ok(done)));
            }
            Request::Called(id, since, again) => {
                tables.calls.remove((since, id.0))?;
                if let Some(mut job) = tables.job(id)? {
                    match again {
                        Some(at) => {
                            job.attempts += 1;
                            tables.calls.insert((at, id.0), ())?;
                        }
                        None => job.callback = None,
                    }
                    tables.put(id, &job)?;
                }
            }
            Request::Sweep(now, grace, answer) => {
                let done = self.sweep(tables, now, grace)?;
                answers.push(then(answer, Ok(done)));
            }
        }
        Ok(())
    }

    fn accept(&mut self, tables: &mut Tables<'_>, id: Id, job: &Job) -> Result<Result<Accepted, Error>, Error> {
        if let Some(key) = &job.key {
            let known = tables.keys.get(key.name.as_str())?.map(|id| Id(id.value()));
            if let Some(known) = known
                && let Some(earlier) = tables.job(known)?
                && let Some(key) = earlier.key
            {
                if key.is_sent || earlier.state != State::Pending {
                    return Ok(Ok(Accepted::Known(known, key)));
                }
                // The gateway was killed before it had an answer of the broker.
                self.remove(tables, known)?;
            }
        }
        if self.totals.jobs >= self.limits.jobs && !self.remove_oldest(tables)? {
            return Ok(Err(Error::Full(self.limits.jobs)));
        }
        tables.put(id, job)?;
        tables.due.insert((job.deadline, id.0), ())?;
        if let Some(key) = &job.key {
            tables.keys.insert(key.name.as_str(), id.0)?;
        }
        self.totals.jobs += 1;
        self.totals.pending += 1;
        Ok(Ok(Accepted::New))
    }

    fn finish(
        &mut self,
        tables: &mut Tables<'_>,
        id: Id,
        suffix: &str,
        items: u32,
        outcome: &Outcome,
        now: i64,
    ) -> Result<Stored, Error> {
        let Some(job) = tables.job(id)? else {
            return Ok(Stored::Unknown);
        };
        let is_child = !suffix.is_empty();
        let is_known = tables.results.get((id.0, suffix))?.is_some();
        let is_wanted = if is_child {
            job.state != State::Cancelled && job.children < MOST_COUNTED
        } else {
            job.state == State::Pending
        };
        if is_known || !is_wanted {
            return Ok(Stored::Duplicate);
        }
        let mut stored = [&[u8::from(outcome.failed)], outcome.payload.as_ref()].concat();
        let has_room = self.make_room(tables, stored.len() as u64)?;
        // A pending job cannot be removed, so it always gets its own result, and then ends.
        let is_kept = !is_child || has_room && job.children < MOST_CHILDREN;
        if !is_kept {
            stored.truncate(1);
        }
        let Some(mut job) = tables.job(id)? else {
            return Ok(Stored::Unknown);
        };
        tables.results.insert((id.0, suffix), stored.as_slice())?;
        job.bytes += stored.len() as u64;
        self.totals.bytes += stored.len() as u64;
        job.children += u32::from(is_child);
        job.failures += u32::from(outcome.failed);
        job.items = job.items.saturating_add(items.saturating_sub(1));
        if job.state == State::Pending && is_whole(tables, id, &job)? {
            let state = match job.failures {
                0 => State::Succeeded,
                _ => State::Failed,
            };
            self.end(tables, id, &mut job, state, now)?;
        } else {
            tables.put(id, &job)?;
        }
        Ok(if is_kept { Stored::New } else { Stored::NoRoom })
    }

    /// Ends a pending job.
    fn end(&mut self, tables: &mut Tables<'_>, id: Id, job: &mut Job, state: State, now: i64) -> Result<(), Error> {
        tables.due.remove((job.deadline, id.0))?;
        job.state = state;
        job.finished = Some(now);
        tables.kept.insert((now, id.0), ())?;
        if state == State::Cancelled {
            job.callback = None;
        } else if job.callback.is_some() {
            tables.calls.insert((now, id.0), ())?;
        }
        self.totals.pending = self.totals.pending.saturating_sub(1);
        tables.put(id, job)
    }

    fn sweep(&mut self, tables: &mut Tables<'_>, now: i64, grace: Duration) -> Result<Swept, Error> {
        let mut swept = Swept::default();
        let late = before(now, grace);
        for (deadline, id) in first(&tables.due, late, SWEEP)? {
            tables.due.remove((deadline, id.0))?;
            let Some(mut job) = tables.job(id)? else { continue };
            // The job itself can have its result, and not all of its children.
            if tables.results.get((id.0, ""))?.is_none() {
                let error = r#"{"error":"no_result","details":{"message":"no result arrived by the deadline"}}"#;
                let payload = [b"\x01", error.as_bytes()].concat();
                tables.results.insert((id.0, ""), payload.as_slice())?;
                job.bytes += payload.len() as u64;
                self.totals.bytes += payload.len() as u64;
            }
            self.end(tables, id, &mut job, State::Failed, now)?;
            swept.ended.push(id);
        }
        let old = before(now, self.limits.retention);
        for (finished, id) in first(&tables.kept, old, SWEEP)? {
            tables.kept.remove((finished, id.0))?;
            self.remove(tables, id)?;
            swept.removed += 1;
        }
        Ok(swept)
    }

    /// Removes the oldest finished jobs until there is room for this many bytes of results. Returns whether there is.
    fn make_room(&mut self, tables: &mut Tables<'_>, bytes: u64) -> Result<bool, Error> {
        loop {
            let has_room = self.totals.bytes + bytes <= self.limits.bytes;
            if has_room || !self.remove_oldest(tables)? {
                return Ok(has_room);
            }
        }
    }

    fn remove_oldest(&mut self, tables: &mut Tables<'_>) -> Result<bool, Error> {
        let oldest = tables.kept.pop_first()?.map(|(key, _)| key.value().1);
        let Some(id) = oldest else { return Ok(false) };
        self.remove(tables, Id(id))?;
        Ok(true)
    }

    fn remove(&mut self, tables: &mut Tables<'_>, id: Id) -> Result<(), Error> {
        let job = tables.job(id)?;
        tables.jobs.remove(id.0)?;
        tables.results.retain_in((id.0, "")..=(id.0, "~"), |_, _| false)?;
        let Some(job) = job else { return Ok(()) };
        tables.due.remove((job.deadline, id.0))?;
        if let Some(finished) = job.finished {
            tables.kept.remove((finished, id.0))?;
        }
        if let Some(key) = &job.key {
            tables.keys.remove(key.name.as_str())?;
        }
        self.totals.jobs = self.totals.jobs.saturating_sub(1);
        let pending = u64::from(job.state == State::Pending);
        self.totals.pending = self.totals.pending.saturating_sub(pending);
        self.totals.bytes = self.totals.bytes.saturating_sub(job.bytes);
        Ok(())
    }
}

/// The first jobs of an index, up to this time.
fn first(index: &impl ReadableTable<(i64, u128), ()>, until: i64, most: usize) -> Result<Vec<(i64, Id)>, Error> {
    let range = index.range((i64::MIN, 0)..=(until, u128::MAX))?;
    let keys = range.take(most).map(|entry| {
        let (at, id) = entry?.0.value();
        Ok((at, Id(id)))
    });
    keys.collect()
}

/// Whether all items of a job have a result. Each result reveals the number of its children, so it is known if the parents of all have one.
fn is_whole(tables: &Tables<'_>, id: Id, job: &Job) -> Result<bool, Error> {
    if tables.results.get((id.0, ""))?.is_none() {
        return Ok(false);
    }
    // Sidecars of earlier versions do not report the number of items.
    if job.items == 1 {
        return Ok(true);
    }
    if job.children + 1 != job.items {
        return Ok(false);
    }
    let arrived: BTreeSet<String> = suffixes(&tables.results, id)?.into_iter().collect();
    let has_parent = |suffix: &String| arrived.contains(suffix.rsplit_once('-').map_or("", |(parent, _)| parent));
    Ok(arrived.iter().all(has_parent))
}

/// Suffixes of the items of a job that have a result.
fn suffixes(results: &impl ReadableTable<(u128, &'static str), &'static [u8]>, id: Id) -> Result<Vec<String>, Error> {
    let range = results.range((id.0, "")..=(id.0, "~"))?;
    range.map(|entry| Ok(entry?.0.value().1.to_owned())).collect()
}

fn parse(bytes: &[u8]) -> Option<Job> {
    serde_json::from_slice(bytes).ok()
}

/// The time this long before another.
fn before(time: i64, duration: Duration) -> i64 {
    time.saturating_sub(i64::try_from(duration.as_millis()).unwrap_or(i64::MAX))
}

#[cfg(test)]
mod tests {
    use super::*;

    const HOUR: i64 = 3_600_000;

    fn limits() -> Capacity {
        Capacity {
            jobs: 3,
            bytes: 1000,
            retention: Duration::from_hours(1),
        }
    }

    fn job(deadline: i64) -> Job {
        Job::example(deadline)
    }

    fn keyed(name: &str) -> Job {
        let key = Key {
            name: name.to_owned(),
            request: String::new(),
            is_sent: false,
        };
        Job {
            key: Some(key),
            ..job(HOUR)
        }
    }

    fn outcome(payload: &str) -> Outcome {
        Outcome {
            failed: false,
            payload: Bytes::copy_from_slice(payload.as_bytes()),
        }
    }

    fn store(folder: &tempfile::TempDir) -> Store {
        Store::open(&folder.path().join("jobs.redb"), limits()).unwrap()
    }

    fn counts(store: &Store) -> (u64, u64, u64) {
        let Counts { jobs, pending, bytes } = &*store.counts;
        let [jobs, pending, bytes] = [jobs, pending, bytes].map(|count| count.load(Ordering::Relaxed));
        (jobs, pending, bytes)
    }

    #[tokio::test]
    async fn job_and_result_outlive_the_process() {
        let folder = tempfile::tempdir().unwrap();
        let item = Item::of(Id(1));
        {
            let store = store(&folder);
            store.accept(Id(1), job(HOUR)).await.unwrap();
            store.accept(Id(2), job(HOUR)).await.unwrap();
            assert_eq!(store.finish(&item, 1, outcome("17"), 5).await.unwrap(), Stored::New);
        }
        // The file is free when the thread has ended.
        let store = loop {
            match Store::open(&folder.path().join("jobs.redb"), limits()) {
                Ok(store) => break store,
                Err(_) => tokio::time::sleep(Duration::from_millis(5)).await,
            }
        };
        assert_eq!(store.job(Id(1)).unwrap().unwrap().state, State::Succeeded);
        assert_eq!(store.result(&item).unwrap().unwrap().payload, "17");
        assert_eq!(counts(&store), (2, 1, 3));
    }

    #[tokio::test]
    async fn second_result_of_an_item_is_dropped() {
        let folder = tempfile::tempdir().unwrap();
        let store = store(&folder);
        store.accept(Id(1), job(HOUR)).await.unwrap();
        let child = Item {
            job: Id(1),
            suffix: "1".to_owned(),
        };
        for (item, expected) in [
            (Item::of(Id(1)), Stored::New),
            (Item::of(Id(1)), Stored::Duplicate),
            (child.clone(), Stored::New),
            (child, Stored::Duplicate),
            (Item::of(Id(9)), Stored::Unknown),
        ] {
            assert_eq!(
                store.finish(&item, 1, outcome("1"), 5).await.unwrap(),
                expected,
                "{item}"
            );
        }
        assert_eq!(store.children(Id(1)).unwrap(), ["1"]);
    }

    #[tokio::test]
    async fn cancelled_job_gets_no_result() {
        let folder = tempfile::tempdir().unwrap();
        let store = store(&folder);
        store.accept(Id(1), job(HOUR)).await.unwrap();
        assert_eq!(store.cancel(Id(1), 5).await.unwrap(), State::Cancelled);
        let late = store.finish(&Item::of(Id(1)), 1, outcome("1"), 6).await.unwrap();
        assert_eq!((late, counts(&store)), (Stored::Duplicate, (1, 0, 0)));
        // A finished job is not cancelled.
        store.accept(Id(2), job(HOUR)).await.unwrap();
        store.finish(&Item::of(Id(2)), 1, outcome("1"), 6).await.unwrap();
        assert_eq!(store.cancel(Id(2), 7).await.unwrap(), State::Succeeded);
    }

    #[tokio::test]
    async fn store_is_bounded_by_jobs_bytes_and_time() {
        let folder = tempfile::tempdir().unwrap();
        let store = store(&folder);
        for id in 1..=3 {
            store.accept(Id(id), job(HOUR)).await.unwrap();
        }
        assert!(matches!(store.accept(Id(4), job(HOUR)).await, Err(Error::Full(3))));
        assert!(store.room().is_err());
        // A finished job makes room.
        store.finish(&Item::of(Id(1)), 1, outcome("1"), 5).await.unwrap();
        store.accept(Id(4), job(HOUR)).await.unwrap();
        assert_eq!((store.job(Id(1)).unwrap(), counts(&store)), (None, (3, 3, 0)));
        assert!(store.result(&Item::of(Id(1))).unwrap().is_none());
        // So does a finished one when the results are too large: the oldest goes.
        let large = "x".repeat(600);
        store.finish(&Item::of(Id(2)), 1, outcome(&large), 6).await.unwrap();
        store.finish(&Item::of(Id(3)), 1, outcome(&large), 7).await.unwrap();
        assert_eq!((store.job(Id(2)).unwrap(), counts(&store)), (None, (2, 1, 601)));
        // After its time.
        let swept = store.sweep(HOUR + 6, Duration::from_hours(9)).await.unwrap();
        assert_eq!((swept.removed, swept.ended.len()), (0, 0));
        let swept = store.sweep(HOUR + 7, Duration::from_hours(9)).await.unwrap();
        assert_eq!((swept.removed, counts(&store)), (1, (1, 1, 0)));
    }

    #[tokio::test]
    async fn children_of_pending_jobs_are_bounded_by_bytes() {
        let folder = tempfile::tempdir().unwrap();
        let store = store(&folder);
        store.accept(Id(1), job(HOUR)).await.unwrap();
        let large = "x".repeat(600);
        let mut stored = Vec::new();
        for suffix in ["1", "2"] {
            let (job, suffix) = (Id(1), suffix.to_owned());
            stored.push(
                store
                    .finish(&Item { job, suffix }, 1, outcome(&large), 5)
                    .await
                    .unwrap(),
            );
        }
        assert_eq!(
            (stored, counts(&store)),
            (vec![Stored::New, Stored::NoRoom], (1, 1, 602))
        );
        // The result of the job itself is kept in any case.
        let own = store.finish(&Item::of(Id(1)), 1, outcome(&large), 6).await.unwrap();
        assert_eq!((own, counts(&store)), (Stored::New, (1, 0, 1203)));
    }

    /// An item of job 1.
    fn item(suffix: &str) -> Item {
        Item {
            job: Id(1),
            suffix: suffix.to_owned(),
        }
    }

    #[tokio::test]
    async fn job_ends_with_the_last_of_its_items() {
        // Item 1 is split again by a later actor.
        let items = [("", 3), ("1", 2), ("2", 1), ("1-1", 1)];
        let orders = [[0, 1, 2, 3], [3, 2, 1, 0], [0, 2, 3, 1], [2, 3, 0, 1], [0, 3, 1, 2]];
        for (order, failing) in orders.into_iter().flat_map(|order| [(order, None), (order, Some("2"))]) {
            let folder = tempfile::tempdir().unwrap();
            let store = store(&folder);
            store.accept(Id(1), job(HOUR)).await.unwrap();
            for (position, index) in order.into_iter().enumerate() {
                let (suffix, count) = items[index];
                let outcome = Outcome {
                    failed: failing == Some(suffix),
                    payload: "null".into(),
                };
                store.finish(&item(suffix), count, outcome, 5).await.unwrap();
                let job = store.job(Id(1)).unwrap().unwrap();
                let expected = match (position, failing) {
                    (3, None) => State::Succeeded,
                    (3, Some(_)) => State::Failed,
                    _ => State::Pending,
                };
                assert_eq!(job.state, expected, "{order:?} {position}");
            }
            let job = store.job(Id(1)).unwrap().unwrap();
            assert_eq!((job.items, job.children, job.finished), (4, 3, Some(5)));
        }
    }

    #[tokio::test]
    async fn items_beyond_the_kept_ones_are_counted() {
        let folder = tempfile::tempdir().unwrap();
        let store = Store::open(
            &folder.path().join("jobs.redb"),
            Capacity {
                bytes: 1_000_000,
                ..limits()
            },
        )
        .unwrap();
        store.accept(Id(1), job(HOUR)).await.unwrap();
        store.finish(&Item::of(Id(1)), 1003, outcome("1"), 5).await.unwrap();
        let children = (1..=1002).map(|number| {
            let store = store.clone();
            async move {
                store
                    .finish(&item(&number.to_string()), 1, outcome("1"), 5)
                    .await
                    .unwrap()
            }
        });
        let stored = futures::future::join_all(children).await;
        let dropped = stored.iter().zip(1..).filter(|(stored, _)| **stored == Stored::NoRoom);
        let dropped: Vec<i32> = dropped.map(|(_, number)| number).collect();
        assert_eq!(dropped.len(), 2);
        let job = store.job(Id(1)).unwrap().unwrap();
        assert_eq!((job.state, job.children), (State::Succeeded, 1002));
        assert_eq!(store.children(Id(1)).unwrap().len(), 1000);
        assert_eq!(
            store.result(&item(&dropped[0].to_string())).unwrap().unwrap().payload,
            ""
        );
    }

    #[tokio::test]
    async fn job_without_all_its_items_fails_after_its_deadline_and_keeps_its_result() {
        let folder = tempfile::tempdir().unwrap();
        let store = store(&folder);
        store.accept(Id(1), job(HOUR)).await.unwrap();
        store.finish(&Item::of(Id(1)), 3, outcome("7"), 5).await.unwrap();
        store.finish(&item("1"), 1, outcome("8"), 5).await.unwrap();
        assert_eq!(store.sweep(HOUR + 1, Duration::ZERO).await.unwrap().ended, [Id(1)]);
        let job = store.job(Id(1)).unwrap().unwrap();
        assert_eq!((job.state, job.items, job.children), (State::Failed, 3, 1));
        assert_eq!(store.result(&Item::of(Id(1))).unwrap().unwrap().payload, "7");
    }

    #[tokio::test]
    async fn job_that_cannot_be_read_is_removed_like_others() {
        let folder = tempfile::tempdir().unwrap();
        let store = store(&folder);
        store.accept(Id(1), job(HOUR)).await.unwrap();
        let write = store.database.begin_write().unwrap();
        {
            let mut tables = Tables::open(&write).unwrap();
            for id in [7, 8] {
                tables.jobs.insert(id, b"of a newer version".as_slice()).unwrap();
            }
            tables.kept.insert((1, 7), ()).unwrap();
            tables.due.insert((1, 8), ()).unwrap();
        }
        write.commit().unwrap();
        store.sweep(5, Duration::ZERO).await.unwrap();
        // Too large: everything that is finished is removed, once.
        let large = "x".repeat(1001);
        let stored = store.finish(&Item::of(Id(1)), 1, outcome(&large), 6).await.unwrap();
        assert_eq!((stored, counts(&store)), (Stored::New, (1, 0, 1002)));
        let read = store.database.begin_read().unwrap();
        assert!(read.open_table(JOBS).unwrap().get(7).unwrap().is_none());
        assert!(read.open_table(DUE).unwrap().get((1, 8)).unwrap().is_none());
    }

    #[tokio::test]
    async fn key_leads_to_its_job_while_that_is_kept() {
        let folder = tempfile::tempdir().unwrap();
        let store = store(&folder);
        assert_eq!(store.accept(Id(1), keyed("k")).await.unwrap(), Accepted::New);
        // Not sent, so no broker or client has it: the next submission takes its place.
        assert_eq!(store.accept(Id(2), keyed("k")).await.unwrap(), Accepted::New);
        assert_eq!((store.job(Id(1)).unwrap(), counts(&store)), (None, (1, 1, 0)));
        store.sent(Id(2)).await.unwrap();
        assert_eq!(store.accept(Id(9), keyed("other")).await.unwrap(), Accepted::New);
        let known = |accepted| matches!(accepted, Accepted::Known(Id(2), _));
        assert!(known(store.accept(Id(3), keyed("k")).await.unwrap()));
        store.finish(&Item::of(Id(2)), 1, outcome("1"), 5).await.unwrap();
        assert!(known(store.accept(Id(3), keyed("k")).await.unwrap()));
        // The key goes with its job, and with one that is forgotten.
        store.sweep(2 * HOUR, Duration::from_hours(9)).await.unwrap();
        assert_eq!(store.accept(Id(4), keyed("k")).await.unwrap(), Accepted::New);
        store.forget(Id(4)).await.unwrap();
        assert_eq!(store.accept(Id(5), keyed("k")).await.unwrap(), Accepted::New);
        assert_eq!(counts(&store), (2, 2, 0));
    }

    #[tokio::test]
    async fn nothing_is_written_at_rest() {
        let folder = tempfile::tempdir().unwrap();
        let store = store(&folder);
        store.accept(Id(1), job(HOUR)).await.unwrap();
        let changed = || {
            std::fs::metadata(folder.path().join("jobs.redb"))
                .unwrap()
                .modified()
                .unwrap()
        };
        let before = changed();
        for now in 0..100 {
            store.sweep(now, Duration::from_mins(1)).await.unwrap();
        }
        assert_eq!(changed(), before);
        let swept = store.sweep(2 * HOUR, Duration::ZERO).await.unwrap();
        assert_eq!(swept.ended, [Id(1)]);
    }

    #[tokio::test]
    async fn job_without_a_result_fails_after_its_deadline() {
        let folder = tempfile::tempdir().unwrap();
        let store = store(&folder);
        store.accept(Id(1), job(HOUR)).await.unwrap();
        let grace = Duration::from_millis(10);
        assert_eq!(store.sweep(HOUR + 9, grace).await.unwrap().ended, []);
        assert_eq!(store.sweep(HOUR + 10, grace).await.unwrap().ended, [Id(1)]);
        let result = store.result(&Item::of(Id(1))).unwrap().unwrap();
        assert!(result.failed && result.payload.starts_with(b"{\"error\":\"no_result\""));
        assert_eq!(store.job(Id(1)).unwrap().unwrap().state, State::Failed);
    }

    #[tokio::test]
    async fn url_is_due_until_it_was_called() {
        let folder = tempfile::tempdir().unwrap();
        let store = store(&folder);
        let url = Some("http://x".to_owned());
        store
            .accept(
                Id(1),
                Job {
                    callback: url,
                    ..job(HOUR)
                },
            )
            .await
            .unwrap();
        assert_eq!(store.calls(HOUR, 9).unwrap(), []);
        store.finish(&Item::of(Id(1)), 1, outcome("1"), 5).await.unwrap();
        assert_eq!(store.calls(5, 9).unwrap(), [(5, Id(1))]);
        store.called(Id(1), 5, Some(50)).await;
        store.sent(Id(1)).await.unwrap();
        assert_eq!(
            (store.calls(49, 9).unwrap(), store.calls(50, 9).unwrap()),
            (vec![], vec![(50, Id(1))])
        );
        assert_eq!(store.job(Id(1)).unwrap().unwrap().attempts, 1);
        store.called(Id(1), 50, None).await;
        store.sent(Id(1)).await.unwrap();
        assert_eq!(store.calls(HOUR, 9).unwrap(), []);
    }
}
