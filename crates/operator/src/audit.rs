//! Audit log of a server: one line of JSON for each request that acts. `docs/operate/audit-log.md` describes the fields.
//!
//! A program wraps its router in [`Audit::layer`]. While a request is processed, functions of this module describe it: who acts
//! ([`user`]) on which object ([`object`]). They need no value that is passed along, because a request is one task. A line is
//! written when the response begins, or when the client leaves before that; with [`until_end`], when the response ends. It has no
//! field for content: neither payloads nor credentials can get into it, and each field has a bounded length.
//!
//! Lines are written by a thread of its own. A request never waits for it: if the queue is full, its line is dropped and counted.

use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::{MetadataExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, sync_channel};
use std::thread;
use std::time::{Duration, Instant};

use axum::Router;
use axum::extract::{Request, State};
use axum::middleware::{Next, from_fn_with_state};
use axum::response::Response;
use http::{HeaderName, Method, StatusCode};
use parking_lot::Mutex;
use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeLabelSet};
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use runway_api::condition::shorten;
use runway_http::refusal::Code;
use serde::Serialize;

use crate::metrics::{Metric, Metrics};
use crate::{clock, trace};

/// Lines that wait to be written.
const QUEUE: usize = 4096;
/// Longest value of a field, in bytes: a user name or a name of an object.
const LONGEST: usize = 256;
/// Interval at which a file is checked for rotation.
const ROTATION: Duration = Duration::from_secs(5);
/// Time for the remaining lines at the end.
const SHUTDOWN_GRACE: Duration = Duration::from_secs(2);
/// Status of a request whose client left before the response.
const CLIENT_LEFT: u16 = 499;

/// Lines that are lost.
const DROPPED: Metric = Metric {
    name: "kubeairunway_audit_lines_dropped_total",
    kind: "counter",
    labels: &["reason"],
    help: "Lines of the audit log that were not written. reason is queue_full (the file or stdout is too slow) or write_failed",
};

/// Metrics of a server with an audit log.
pub const METRICS: [Metric; 1] = [DROPPED];

/// Arguments of the audit log.
#[derive(Clone, Debug, Default, clap::Args)]
pub struct AuditArgs {
    /// File for the audit log, one JSON object for each request that acts; - for stdout. If omitted, no log is written
    #[arg(long, value_name = "FILE", env = "KUBEAIRUNWAY_AUDIT_LOG")]
    pub audit_log: Option<PathBuf>,
}

/// The file of an audit log cannot be used.
#[derive(Debug, thiserror::Error)]
#[error("cannot open the audit log {}: choose a writable file with --audit-log, or - for stdout", path.display())]
pub struct Error {
    path: PathBuf,
    source: io::Error,
}

/// Action and object of a request, as far as its method and path show them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Operation {
    /// Action, such as `infer`.
    pub action: &'static str,
    /// Kind of the object.
    pub kind: &'static str,
    /// Namespace of the object, or empty.
    pub namespace: String,
    /// Name of the object, or empty.
    pub name: String,
}

/// Describes a request. `None` for requests that only read; they are logged if the caller is refused.
pub type Describe = fn(&Method, &str) -> Option<Operation>;

/// The audit log of a program. Cheap to clone.
#[derive(Clone, Debug)]
pub struct Audit {
    program: &'static str,
    describe: Describe,
    log: Arc<Log>,
}

impl Audit {
    /// Opens the log of a program, and adds its metrics.
    ///
    /// # Errors
    /// The file cannot be opened.
    pub fn open(
        args: &AuditArgs,
        program: &'static str,
        describe: Describe,
        metrics: &Metrics,
    ) -> Result<Option<Self>, Error> {
        let Some(path) = &args.audit_log else {
            return Ok(None);
        };
        let failed = |source| Error {
            path: path.clone(),
            source,
        };
        let target = Target::open(path).map_err(failed)?;
        let log = Log::start(target).map_err(failed)?;
        metrics.collect(Scrape(log.dropped.clone()));
        Ok(Some(Self {
            program,
            describe,
            log: Arc::new(log),
        }))
    }

    /// Writes a line for each request of a router that acts.
    pub fn layer(audit: Option<Self>, router: Router) -> Router {
        match audit {
            Some(audit) => router.layer(from_fn_with_state(audit, follow)),
            None => router,
        }
    }
}

async fn follow(State(audit): State<Audit>, request: Request, next: Next) -> Response {
    let operation = (audit.describe)(request.method(), request.uri().path());
    let traceparent = request.headers().get(TRACEPARENT).and_then(|value| value.to_str().ok());
    let entry = Entry {
        is_read: operation.is_none(),
        trace_id: traceparent.and_then(trace::id).unwrap_or_default(),
        operation: operation.unwrap_or_else(|| Operation {
            action: "read",
            ..Operation::default()
        }),
        ..Entry::default()
    };
    let pending = Pending {
        log: Arc::clone(&audit.log),
        program: audit.program,
        begun: Instant::now(),
        entry: Arc::new(Mutex::new(entry)),
    };
    let mut unanswered = Unanswered(Some(pending.clone()));
    let response = ENTRY.scope(Arc::clone(&pending.entry), next.run(request)).await;
    unanswered.0 = None;
    let code = response.extensions().get::<Code>().map(|code| code.0);
    pending.end(response.status(), code);
    response
}

const TRACEPARENT: HeaderName = HeaderName::from_static("traceparent");

tokio::task_local! {
    static ENTRY: Arc<Mutex<Entry>>;
}

/// Description of a request that is being processed.
#[derive(Clone, Debug, Default)]
struct Entry {
    is_read: bool,
    user: String,
    credential: &'static str,
    operation: Operation,
    job: String,
    trace_id: String,
    served: Option<Served>,
    /// The line is written at the end of the response, by a [`UntilEnd`].
    is_late: bool,
    /// The begun response, for that line.
    begun: Option<Begun>,
}

/// The response to a request, when it has ended.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Served {
    /// End of the response, such as `complete`.
    pub end: &'static str,
    /// Tokens of the prompt.
    pub input_tokens: u64,
    /// Tokens of the response.
    pub output_tokens: u64,
    /// The engine did not report the tokens.
    #[serde(skip_serializing_if = "is_false")]
    pub estimated: bool,
}

#[allow(clippy::trivially_copy_pass_by_ref, reason = "serde passes a reference")]
fn is_false(value: &bool) -> bool {
    !value
}

/// A response that has begun and whose line is not written yet.
#[derive(Clone, Debug)]
struct Begun {
    pending: Pending,
    status: u16,
    reason: String,
}

/// The line of a request, which is written when this is dropped, if the response has begun by then.
#[derive(Debug)]
pub struct UntilEnd(Arc<Mutex<Entry>>);

/// Writes the line of this request at the end of its response, when the result is dropped. `None` without an audit log.
pub fn until_end() -> Option<UntilEnd> {
    let late = ENTRY.try_with(|entry| {
        entry.lock().is_late = true;
        UntilEnd(Arc::clone(entry))
    });
    late.ok()
}

impl UntilEnd {
    /// Writes the line with this response.
    pub fn ended(self, served: Served) {
        self.0.lock().served = Some(served);
    }
}

impl Drop for UntilEnd {
    fn drop(&mut self) {
        let begun = {
            let mut entry = self.0.lock();
            entry.is_late = false;
            entry.begun.take()
        };
        if let Some(begun) = begun {
            begun.pending.write(begun.status, &begun.reason);
        }
    }
}

fn describe(change: impl FnOnce(&mut Entry)) {
    // Without an audit log, or outside a request, there is none.
    let _ = ENTRY.try_with(|entry| change(&mut entry.lock()));
}

/// Names the authenticated user of this request, and how the user was authenticated: `token`, `key` or `session`.
pub fn user(credential: &'static str, name: &str) {
    describe(|entry| {
        entry.credential = credential;
        entry.user = bounded(name);
    });
}

/// Names the object of this request.
pub fn object(kind: &'static str, namespace: &str, name: &str) {
    describe(|entry| {
        entry.operation.kind = kind;
        entry.operation.namespace = bounded(namespace);
        entry.operation.name = bounded(name);
    });
}

/// Names the action of this request, if method and path do not tell.
pub fn action(action: &'static str) {
    describe(|entry| {
        entry.operation.action = action;
        entry.is_read = false;
    });
}

/// Marks this request as one that only reads.
pub fn only_reads() {
    describe(|entry| entry.is_read = true);
}

/// Names the job that this request creates.
pub fn job(id: &str) {
    describe(|entry| entry.job = bounded(id));
}

/// Names the trace of this request.
pub fn trace_id(id: String) {
    describe(|entry| entry.trace_id = id);
}

/// A value of a field: of bounded length, and without control characters.
pub fn bounded(text: &str) -> String {
    let text: String = text
        .chars()
        .take(LONGEST)
        .map(|c| if c.is_control() { '\u{fffd}' } else { c })
        .collect();
    shorten(text, LONGEST)
}

/// A request whose line is not written yet.
#[derive(Clone, Debug)]
struct Pending {
    log: Arc<Log>,
    program: &'static str,
    begun: Instant,
    entry: Arc<Mutex<Entry>>,
}

/// A request without a response. Dropping it means that the client has left.
struct Unanswered(Option<Pending>);

impl Pending {
    fn end(self, status: StatusCode, code: Option<&'static str>) {
        let reason = || {
            status
                .canonical_reason()
                .unwrap_or("unknown")
                .to_ascii_lowercase()
                .replace(' ', "_")
        };
        let reason = match code {
            Some(code) => code.to_owned(),
            None if status.as_u16() >= 400 => reason(),
            None => String::new(),
        };
        let status = status.as_u16();
        {
            let mut entry = self.entry.lock();
            if entry.is_late {
                entry.begun = Some(Begun {
                    pending: self.clone(),
                    status,
                    reason,
                });
                return;
            }
        }
        self.write(status, &reason);
    }

    fn write(&self, status: u16, reason: &str) {
        let entry = self.entry.lock().clone();
        if !entry.is_read || matches!(status, 401 | 403) {
            let line = Line::new(self.program, &entry, status, reason, self.begun.elapsed());
            self.log.write(&line);
        }
    }
}

impl Drop for Unanswered {
    fn drop(&mut self) {
        if let Some(pending) = self.0.take() {
            pending.write(CLIENT_LEFT, "client_closed_request");
        }
    }
}

/// A line of the log.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct Line<'a> {
    time: String,
    program: &'static str,
    #[serde(skip_serializing_if = "str::is_empty")]
    user: &'a str,
    #[serde(skip_serializing_if = "str::is_empty")]
    credential: &'static str,
    /// Namespace of the ServiceAccount that acts.
    #[serde(skip_serializing_if = "str::is_empty")]
    tenant: &'a str,
    action: &'static str,
    #[serde(skip_serializing_if = "str::is_empty")]
    kind: &'static str,
    #[serde(skip_serializing_if = "str::is_empty")]
    namespace: &'a str,
    #[serde(skip_serializing_if = "str::is_empty")]
    name: &'a str,
    #[serde(skip_serializing_if = "str::is_empty")]
    job: &'a str,
    result: &'static str,
    status: u16,
    #[serde(skip_serializing_if = "str::is_empty")]
    reason: &'a str,
    duration_ms: u64,
    #[serde(skip_serializing_if = "str::is_empty")]
    trace_id: &'a str,
    #[serde(flatten)]
    served: Option<&'a Served>,
}

/// Namespace of a ServiceAccount, by the name of its user.
pub fn namespace_of_account(user: &str) -> Option<&str> {
    let account = user.strip_prefix("system:serviceaccount:")?;
    account.split_once(':').map(|(namespace, _)| namespace)
}

impl<'a> Line<'a> {
    fn new(program: &'static str, entry: &'a Entry, status: u16, reason: &'a str, took: Duration) -> Self {
        Self {
            time: format!("{:.6}", clock::exact()),
            program,
            user: &entry.user,
            credential: entry.credential,
            tenant: namespace_of_account(&entry.user).unwrap_or_default(),
            action: entry.operation.action,
            kind: entry.operation.kind,
            namespace: &entry.operation.namespace,
            name: &entry.operation.name,
            job: &entry.job,
            result: match status {
                ..400 => "allowed",
                CLIENT_LEFT | 500.. => "failed",
                _ => "refused",
            },
            status,
            reason,
            duration_ms: u64::try_from(took.as_millis()).unwrap_or(u64::MAX),
            trace_id: &entry.trace_id,
            served: entry.served.as_ref(),
        }
    }
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Reason {
    reason: &'static str,
}

type Dropped = Family<Reason, Counter>;

const QUEUE_FULL: Reason = Reason { reason: "queue_full" };
const WRITE_FAILED: Reason = Reason { reason: "write_failed" };

#[derive(Debug)]
struct Scrape(Dropped);

impl Collector for Scrape {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> std::fmt::Result {
        DROPPED.encode(&mut encoder, &self.0)
    }
}

/// The queue to the thread that writes.
#[derive(Debug)]
struct Log {
    lines: Option<SyncSender<Vec<u8>>>,
    dropped: Dropped,
    /// Closed when all lines are written.
    written: Mutex<Receiver<()>>,
}

impl Log {
    fn start(target: Target) -> io::Result<Self> {
        let dropped = Dropped::default();
        for reason in [QUEUE_FULL, WRITE_FAILED] {
            drop(dropped.get_or_create(&reason));
        }
        let (lines, queue) = sync_channel(QUEUE);
        let (ended, written) = sync_channel::<()>(0);
        let counted = dropped.clone();
        thread::Builder::new().name("audit-log".to_owned()).spawn(move || {
            target.write_all(&queue, &counted);
            drop(ended);
        })?;
        Ok(Self {
            lines: Some(lines),
            dropped,
            written: Mutex::new(written),
        })
    }

    fn write(&self, line: &Line<'_>) {
        let Ok(mut text) = serde_json::to_vec(line) else { return };
        text.push(b'\n');
        if self.lines.as_ref().is_none_or(|lines| lines.try_send(text).is_err()) {
            self.dropped.get_or_create(&QUEUE_FULL).inc();
        }
    }
}

impl Drop for Log {
    fn drop(&mut self) {
        self.lines = None;
        let _ = self.written.lock().recv_timeout(SHUTDOWN_GRACE);
    }
}

/// Destination of the lines.
enum Target {
    Stdout,
    File {
        path: PathBuf,
        file: File,
        checked: Instant,
    },
}

impl Target {
    fn open(path: &Path) -> io::Result<Self> {
        if path == Path::new("-") {
            return Ok(Self::Stdout);
        }
        Ok(Self::File {
            path: path.to_owned(),
            file: append(path)?,
            checked: Instant::now(),
        })
    }

    fn write_all(mut self, queue: &Receiver<Vec<u8>>, dropped: &Dropped) {
        let mut fails = false;
        loop {
            let line = match queue.recv_timeout(ROTATION) {
                Ok(line) => line,
                Err(RecvTimeoutError::Timeout) => continue,
                Err(RecvTimeoutError::Disconnected) => return,
            };
            // As many as there are, in one write.
            let (mut lines, mut number) = (line, 1);
            while let Ok(more) = queue.try_recv() {
                lines.extend(more);
                number += 1;
                if lines.len() > 64 * 1024 {
                    break;
                }
            }
            let written = self.write(&lines);
            if let Err(error) = &written {
                dropped.get_or_create(&WRITE_FAILED).inc_by(number);
                if !fails {
                    tracing::error!(%error, "cannot write the audit log");
                }
            }
            fails = written.is_err();
        }
    }

    fn write(&mut self, lines: &[u8]) -> io::Result<()> {
        match self {
            Self::Stdout => {
                let mut stdout = io::stdout().lock();
                stdout.write_all(lines)?;
                stdout.flush()
            }
            Self::File { path, file, checked } => {
                if checked.elapsed() >= ROTATION {
                    *checked = Instant::now();
                    if is_rotated(path, file) {
                        *file = append(path)?;
                    }
                }
                file.write_all(lines)
            }
        }
    }
}

/// Whether the path leads to another file, or to none.
fn is_rotated(path: &Path, file: &File) -> bool {
    let id = |metadata: &std::fs::Metadata| (metadata.dev(), metadata.ino());
    let (now, open) = (std::fs::metadata(path), file.metadata());
    match (now, open) {
        (Ok(now), Ok(open)) => id(&now) != id(&open),
        (now, _) => now.is_err(),
    }
}

fn append(path: &Path) -> io::Result<File> {
    OpenOptions::new().create(true).append(true).mode(0o600).open(path)
}

#[cfg(test)]
mod tests {
    use axum::body::Body;
    use axum::routing::{get, post};
    use serde_json::{Value, json};
    use tower::ServiceExt as _;

    use super::*;
    use crate::lease::Leadership;

    fn describe(method: &Method, path: &str) -> Option<Operation> {
        (method == Method::POST).then(|| Operation {
            action: "infer",
            kind: "ModelDeployment",
            namespace: String::new(),
            name: path.trim_start_matches('/').to_owned(),
        })
    }

    fn open(path: &Path) -> Audit {
        let args = AuditArgs {
            audit_log: Some(path.to_owned()),
        };
        let metrics = Metrics::new("", Leadership::always());
        Audit::open(&args, "test", describe, &metrics).unwrap().unwrap()
    }

    fn router(audit: &Audit) -> Router {
        let router = Router::new()
            .route(
                "/named",
                post(async || {
                    user("token", "system:serviceaccount:team-a:bot");
                    object("ModelDeployment", "team-a", "llama");
                    "secret answer"
                }),
            )
            .route("/read", get(async || "data"))
            .route(
                "/refused",
                get(async || StatusCode::FORBIDDEN).post(async || StatusCode::BAD_GATEWAY),
            )
            .route("/long", post(async || user("token", &"\u{1}ä".repeat(10_000))))
            .route(
                "/stream",
                post(async || {
                    let line = until_end();
                    Body::from_stream(futures::stream::once(async move {
                        if let Some(line) = line {
                            line.ended(Served {
                                end: "complete",
                                input_tokens: 7,
                                output_tokens: 3,
                                estimated: false,
                            });
                        }
                        Ok::<_, io::Error>("answer")
                    }))
                }),
            )
            .route("/never", post(async || std::future::pending::<()>().await))
            .route(
                "/coded",
                post(async || runway_http::refusal::openai(StatusCode::TOO_MANY_REQUESTS, "too_many_requests", "no")),
            );
        Audit::layer(Some(audit.clone()), router)
    }

    async fn ask(router: &Router, method: &str, path: &str) {
        let request = Request::builder()
            .method(method)
            .uri(path)
            .header("authorization", "Bearer bearer-token")
            .header("traceparent", "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01");
        router
            .clone()
            .oneshot(request.body(Body::from("a prompt")).unwrap())
            .await
            .unwrap();
    }

    /// All lines, without time and duration. Ends the log.
    fn lines(audit: Audit, path: &Path) -> Vec<Value> {
        drop(audit);
        let text = std::fs::read_to_string(path).unwrap();
        for content in ["prompt", "answer", "bearer-token"] {
            assert!(!text.contains(content), "{text}");
        }
        let lines = text.lines().map(|line| serde_json::from_str::<Value>(line).unwrap());
        lines
            .map(|mut line| {
                let fields = line.as_object_mut().unwrap();
                let time = fields.remove("time").unwrap();
                assert!(time.as_str().unwrap().parse::<jiff::Timestamp>().is_ok(), "{time}");
                assert!(fields.remove("durationMs").unwrap().is_u64());
                line
            })
            .collect()
    }

    #[tokio::test]
    async fn each_request_that_acts_has_one_line() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("audit.log");
        let audit = open(&path);
        let router = router(&audit);
        for (method, path) in [
            ("POST", "/named"),
            ("GET", "/read"),
            ("GET", "/refused"),
            ("POST", "/coded"),
            ("POST", "/refused"),
        ] {
            ask(&router, method, path).await;
        }
        drop(router);
        let trace = "0af7651916cd43dd8448eb211c80319c";
        assert_eq!(
            lines(audit, &path),
            [
                json!({"program": "test", "user": "system:serviceaccount:team-a:bot", "credential": "token", "tenant": "team-a",
                    "action": "infer", "kind": "ModelDeployment", "namespace": "team-a", "name": "llama",
                    "result": "allowed", "status": 200, "traceId": trace}),
                json!({"program": "test", "action": "read", "result": "refused", "status": 403, "reason": "forbidden",
                    "traceId": trace}),
                json!({"program": "test", "action": "infer", "kind": "ModelDeployment", "name": "coded",
                    "result": "refused", "status": 429, "reason": "too_many_requests", "traceId": trace}),
                json!({"program": "test", "action": "infer", "kind": "ModelDeployment", "name": "refused",
                    "result": "failed", "status": 502, "reason": "bad_gateway", "traceId": trace}),
            ]
        );
        let mode = std::fs::metadata(&path).unwrap().mode();
        assert_eq!(mode & 0o777, 0o600);
    }

    #[tokio::test]
    async fn request_whose_client_leaves_has_a_line() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("audit.log");
        let audit = open(&path);
        let left = tokio::time::timeout(Duration::from_millis(50), ask(&router(&audit), "POST", "/never")).await;
        assert!(left.is_err());
        let lines = lines(audit, &path);
        assert_eq!(
            (&lines[0]["status"], &lines[0]["result"]),
            (&json!(499), &json!("failed"))
        );
    }

    #[tokio::test]
    async fn line_of_a_stream_has_its_tokens_and_is_written_at_its_end() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("audit.log");
        let audit = open(&path);
        let router = router(&audit);
        let request = || {
            Request::builder()
                .method("POST")
                .uri("/stream")
                .body(Body::empty())
                .unwrap()
        };
        let whole = router.clone().oneshot(request()).await.unwrap();
        let left = router.clone().oneshot(request()).await.unwrap();
        assert_eq!(std::fs::read_to_string(&path).unwrap(), "");
        axum::body::to_bytes(whole.into_body(), 100).await.unwrap();
        drop((left, router));
        let stream = json!({"program": "test", "action": "infer", "kind": "ModelDeployment", "name": "stream",
            "result": "allowed", "status": 200});
        let mut served = stream.clone();
        for (field, value) in [
            ("end", json!("complete")),
            ("inputTokens", json!(7)),
            ("outputTokens", json!(3)),
        ] {
            served[field] = value;
        }
        assert_eq!(lines(audit, &path), [served, stream]);
    }

    #[tokio::test]
    async fn fields_are_bounded() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("audit.log");
        let audit = open(&path);
        ask(&router(&audit), "POST", "/long").await;
        let lines = lines(audit, &path);
        let user = lines[0]["user"].as_str().unwrap();
        assert!(user.len() <= LONGEST && user.starts_with("\u{fffd}ä"), "{user}");
    }

    #[tokio::test]
    async fn renamed_file_is_opened_again() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("audit.log");
        let Target::File { file, .. } = Target::open(&path).unwrap() else {
            unreachable!("a path is a file")
        };
        assert!(!is_rotated(&path, &file));
        std::fs::rename(&path, folder.path().join("audit.log.1")).unwrap();
        assert!(is_rotated(&path, &file));
        drop(append(&path).unwrap());
        assert!(is_rotated(&path, &file));
    }

    #[test]
    fn lines_beyond_the_queue_are_dropped_and_counted() {
        // A pipe that is never read takes 64 KiB.
        let (reader, writer) = std::io::pipe().unwrap();
        let target = Target::File {
            path: "/dev/null".into(),
            file: File::from(std::os::fd::OwnedFd::from(writer)),
            checked: Instant::now() + Duration::from_hours(1),
        };
        let log = Log::start(target).unwrap();
        let entry = Entry::default();
        let begun = Instant::now();
        for _ in 0..3 * QUEUE {
            log.write(&Line::new("test", &entry, 200, "", Duration::ZERO));
        }
        assert!(begun.elapsed() < Duration::from_secs(5), "a request waits for the log");
        assert!(log.dropped.get_or_create(&QUEUE_FULL).get() > 0);
        drop(reader);
    }

    #[test]
    fn failed_writes_are_counted() {
        let (reader, writer) = std::io::pipe().unwrap();
        drop(reader);
        let target = Target::File {
            path: "/dev/null".into(),
            file: File::from(std::os::fd::OwnedFd::from(writer)),
            checked: Instant::now() + Duration::from_hours(1),
        };
        let log = Log::start(target).unwrap();
        let dropped = log.dropped.clone();
        log.write(&Line::new("test", &Entry::default(), 200, "", Duration::ZERO));
        drop(log);
        assert_eq!(dropped.get_or_create(&WRITE_FAILED).get(), 1);
    }
}
