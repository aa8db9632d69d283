//! Samples of models, and what they add up to.

use std::fmt::Write as _;
use std::sync::Arc;
use std::time::{Duration, Instant};

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use kube::Api;
use parking_lot::Mutex;
use runway_api::ModelDeployment;
use runway_api::condition::{self, Conditions};
use tokio_util::task::AbortOnDropHandle;

use runway_product_testbed::storm_setting;

/// Time between two samples.
const STEP: Duration = Duration::from_millis(200);
/// Time that a status has after its cause is in the API server: in a campaign, and in tests, which share the machine with others.
const GRACE: Duration = Duration::from_secs(1);
const GRACE_IN_TESTS: Duration = Duration::from_secs(10);

/// Decides whether a model serves its current generation.
pub(crate) trait Truth: Clone + Send + Sync + 'static {
    fn serves(&self, md: &ModelDeployment) -> impl Future<Output = bool> + Send;
}

/// Results of the samples of one shape.
#[derive(Clone, Debug, Default)]
pub(crate) struct Row {
    shape: &'static str,
    changes: u32,
    samples: u32,
    false_ready: u32,
    /// Time in which models served and were not Ready.
    not_ready: Duration,
    longest_not_ready: Duration,
    violations: Vec<String>,
}

/// All rows.
#[derive(Debug, Default)]
pub(crate) struct League(Vec<Row>);

impl League {
    pub(crate) fn add(&mut self, shape: &'static str, changes: u32, samples: &Samples) {
        self.0.push(Row {
            shape,
            changes,
            ..samples.0.lock().clone()
        });
    }

    pub(crate) fn false_ready(&self) -> u32 {
        self.0.iter().map(|row| row.false_ready).sum()
    }

    pub(crate) fn violations(&self) -> String {
        let all = self.0.iter().flat_map(|row| &row.violations);
        all.take(20).map(String::as_str).collect::<Vec<_>>().join("\n")
    }

    /// The table of docs/project/reliability.md.
    pub(crate) fn table(&self) -> String {
        let mut table =
            "| shape | changes and faults | samples | false Ready, samples | false Ready, seconds per 1,000 changes | \
                         NotReady while it serves, seconds per change | longest |\n|---|---|---|---|---|---|---|\n"
                .to_owned();
        for row in &self.0 {
            let changes = f64::from(row.changes.max(1));
            let false_seconds = f64::from(row.false_ready) * STEP.as_secs_f64() * 1000.0 / changes;
            let _ = writeln!(
                table,
                "| {} | {} | {} | {} | {false_seconds:.1} | {:.2} | {:.1} s |",
                row.shape,
                row.changes,
                row.samples,
                row.false_ready,
                row.not_ready.as_secs_f64() / changes,
                row.longest_not_ready.as_secs_f64(),
            );
        }
        table
    }
}

/// The samples of one shape. Cheap to clone.
#[derive(Clone, Debug, Default)]
pub(crate) struct Samples(Arc<Mutex<Row>>);

impl Samples {
    /// Samples a model until the handle drops.
    pub(crate) fn follow(
        &self,
        models: Api<ModelDeployment>,
        name: String,
        truth: impl Truth,
    ) -> AbortOnDropHandle<()> {
        let samples = self.clone();
        AbortOnDropHandle::new(tokio::spawn(async move {
            let mut view = View::default();
            let mut ticks = tokio::time::interval(STEP);
            loop {
                ticks.tick().await;
                let at = Instant::now();
                let Ok(md) = models.get(&name).await else {
                    view = View::default();
                    continue;
                };
                let serves = truth.serves(&md).await;
                samples.take(&name, &md, (serves, at), &mut view);
            }
        }))
    }

    /// `serves`: the truth, and the time at which the model was read before.
    fn take(&self, name: &str, md: &ModelDeployment, (serves, at): (bool, Instant), view: &mut View) {
        let ready = is_ready(md);
        let mut row = self.0.lock();
        row.samples += 1;
        let generation = md.metadata.generation;
        if view.generation != generation || view.serves != serves {
            view.generation = generation;
            view.serves = serves;
            view.since = Some(at);
        }
        let age = view.since.map_or(Duration::ZERO, |since| at.duration_since(since));
        // Between two samples a model may serve, and the next change may take its pods while this sample is taken.
        let contradicts = ready && !serves;
        let did_before = std::mem::replace(&mut view.contradicts, contradicts);
        if contradicts && did_before && age > grace() {
            row.false_ready += 1;
            let said = md
                .conditions()
                .get_condition(condition::READY)
                .map(|c: &Condition| c.message.clone());
            row.violations.push(format!(
                "{name}, generation {generation:?}: Ready for {:.1} s without a pod that serves: {said:?}",
                age.as_secs_f64()
            ));
        }
        if serves && !ready {
            row.not_ready += STEP;
            row.longest_not_ready = row.longest_not_ready.max(age);
        }
    }
}

fn grace() -> Duration {
    match storm_setting("READY") {
        Some(_) => GRACE,
        None => GRACE_IN_TESTS,
    }
}

/// State of a model in the last sample, and the time of the first sample with it.
#[derive(Default)]
struct View {
    generation: Option<i64>,
    serves: bool,
    since: Option<Instant>,
    /// Ready was True, and no pod served.
    contradicts: bool,
}

/// Whether Ready is True for the current generation.
pub(crate) fn is_ready(md: &ModelDeployment) -> bool {
    let ready = md.conditions().when_true(condition::READY);
    ready.is_some_and(|c| c.observed_generation == md.metadata.generation)
}
