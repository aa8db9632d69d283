//! Walks without a cluster: admission, plans and status as `kubeairunway render` computes them, with the same checks.

use anyhow::{Context, Result, bail, ensure};
use jiff::{SignedDuration, Timestamp};
use runway_client::diagnostic::Level;
use runway_client::documents::Documents;
use runway_client::render::{self, Options, Show};
use runway_provider::Kind;
use serde_json::{Value, json};

use crate::scenario::{Step, Until};
use crate::state::{self, State};
use crate::walk::Walks;
use crate::world::Tried;

const NAMESPACE: &str = "walked";
/// After so many plans in a row nothing changes any more.
const PLANS: usize = 8;

/// Takes the walk of this number.
pub(crate) fn walk(walks: &Walks<'_>, number: u64) -> Result<Tried> {
    let mut cluster = Cluster::new()?;
    let mut tried = Tried::default();
    let mut before = None;
    for step in walks.walked(number).steps {
        match step {
            Step::Create(kind, object) | Step::Theirs(kind, object) => cluster.create(kind, object),
            Step::Try(kind, name, change) => {
                if before.is_none() {
                    cluster.rest()?;
                    before = Some(cluster.seen());
                }
                let outcome = cluster.change(kind, name, |object| json_patch::merge(object, &change));
                match outcome.with_context(|| format!("after {change}"))? {
                    Verdict::Accepted => tried.accepted += 1,
                    Verdict::Rejected => tried.rejected += 1,
                }
            }
            Step::Replace(kind, name, spec) => {
                cluster.delete_claims();
                let outcome = cluster.change(kind, name, |object| object["spec"] = spec.clone())?;
                ensure!(matches!(outcome, Verdict::Accepted), "the first spec is rejected");
            }
            Step::Until(..) => cluster.rest()?,
            Step::Patch(..) | Step::Delete(..) => bail!("walks have no such step"),
        }
    }
    cluster.rest()?;
    let after = cluster.seen();
    let changes = json_patch::diff(&json!(before), &json!(Some(&after)));
    ensure!(
        changes.0.is_empty(),
        "another state with the first spec: {} instead of {}",
        json!(changes),
        json!(json_patch::diff(&json!(Some(&after)), &json!(before)))
    );
    Ok(tried)
}

enum Verdict {
    Accepted,
    Rejected,
}

/// Objects as an API server would hold them.
struct Cluster {
    /// The user's.
    objects: Vec<Value>,
    /// Those of controllers.
    children: Vec<Value>,
    now: Timestamp,
}

impl Cluster {
    fn new() -> Result<Self> {
        Ok(Self {
            objects: Vec::new(),
            children: Vec::new(),
            now: "2026-03-01T10:00:00Z".parse()?,
        })
    }

    fn create(&mut self, kind: Kind, mut object: Value) {
        object["metadata"]["namespace"] = json!(NAMESPACE);
        self.objects.push(stored(object, kind.kind, self.now));
    }

    /// Deletes the claims: one that a change has enlarged does not shrink with the first spec, by design.
    fn delete_claims(&mut self) {
        self.children.retain(|child| child["kind"] != state::CLAIM.kind);
    }

    /// Changes an object of the product, unless its schema or admission reject that, until nothing more is planned.
    fn change(&mut self, kind: Kind, name: &str, change: impl FnOnce(&mut Value)) -> Result<Verdict> {
        self.now += SignedDuration::from_secs(1);
        let is_it = |object: &Value| object["kind"] == kind.kind && object["metadata"]["name"] == name;
        let at = self.objects.iter().position(is_it).context("there is none")?;
        let object = &mut self.objects[at];
        let before = object.clone();
        change(object);
        if object["spec"] == before["spec"] {
            return Ok(Verdict::Accepted);
        }
        object["metadata"]["generation"] = json!(before["metadata"]["generation"].as_i64().unwrap_or(1) + 1);
        let Some(status) = self.rendered(Show::Status)? else {
            self.objects[at] = before;
            return Ok(Verdict::Rejected);
        };
        self.settle(status)?;
        let object = serde_json::from_value(self.objects[at].clone())?;
        Until::Handled.check(Some(&object))?;
        Ok(Verdict::Accepted)
    }

    /// Progress is reported after an object has been unchanged for some seconds.
    fn rest(&mut self) -> Result<()> {
        self.settle(self.planned(Show::Status)?)?;
        self.now += SignedDuration::from_mins(1);
        self.settle(self.planned(Show::Status)?)
    }

    /// Carries out what is planned, until nothing more is. `status`: the first status that is planned.
    fn settle(&mut self, mut status: Vec<Value>) -> Result<()> {
        for _ in 0..PLANS {
            let children = self.planned(Show::Objects)?;
            let is_ours = |object: &Value, other: &Value| {
                object["kind"] == other["kind"] && object["metadata"]["name"] == other["metadata"]["name"]
            };
            let mut is_settled = true;
            for object in &mut self.objects {
                if let Some(new) = status.iter().find(|new| is_ours(object, new)) {
                    is_settled &= object == new;
                    object.clone_from(new);
                }
            }
            let children: Vec<Value> = children
                .into_iter()
                .map(|child| {
                    let kind = child["kind"].as_str().unwrap_or_default().to_owned();
                    stored(child, &kind, self.now)
                })
                .collect();
            is_settled &= children == self.children;
            self.children = children;
            if is_settled {
                return Ok(());
            }
            status = self.planned(Show::Status)?;
        }
        bail!("{PLANS} plans in a row change something: {}", json!(self.objects))
    }

    fn planned(&self, show: Show) -> Result<Vec<Value>> {
        self.rendered(show)?.context("the object is rejected")
    }

    /// Nothing, if the objects are rejected.
    fn rendered(&self, show: Show) -> Result<Option<Vec<Value>>> {
        let mut documents = Documents::default();
        let all: Vec<&Value> = self.objects.iter().chain(&self.children).collect();
        let list = json!({ "apiVersion": "v1", "kind": "List", "items": all });
        documents.take_in_text("walk.yaml", &list.to_string());
        ensure!(documents.errors.is_empty(), "{:?}", documents.errors);
        let rendered = render::render(documents, &Options { show, now: self.now });
        let mut errors = rendered.diagnostics.iter().filter(|d| d.level == Level::Error);
        Ok(errors
            .next()
            .is_none()
            .then(|| rendered.documents.iter().map(|d| json!(d)).collect()))
    }

    /// The objects without times and what else differs from one run to the next.
    fn seen(&self) -> State {
        let all = self.objects.iter().chain(&self.children).cloned();
        let seen = all.map(|mut object| {
            object["metadata"]["generation"] = Value::Null;
            state::plain(&mut object, NAMESPACE);
            let text = |field: &Value| field.as_str().unwrap_or_default().to_owned();
            let id = format!("{}/{}", text(&object["kind"]), text(&object["metadata"]["name"]));
            (id, object)
        });
        state::however_reached(seen.collect())
    }
}

/// An object as the API server keeps it.
fn stored(mut object: Value, kind: &str, now: Timestamp) -> Value {
    let uid = format!("uid-of-the-{}", kind.to_lowercase());
    let created = json!({ "metadata": { "uid": uid, "creationTimestamp": now.to_string(), "generation": 1 } });
    json_patch::merge(&mut object, &created);
    object
}
