//! The plan for a ModelDeployment that the provider serves.

use std::time::Duration;

use kube::ResourceExt;
use kube::core::DynamicObject;
use runway_api::ProviderReason;
use runway_api::overrides::{self, Finding};
use runway_operator::object;
use runway_operator::plan::{Apply, Delete, Finalizer, Note, Plan};

use super::Decision;
use super::objects;
use super::status::{self, Blocked};
use crate::contract::{Kind, Object, Provider, Refusal, Translation};
use crate::observe::Observed;
use crate::request::Request;
use crate::upstream::State;

/// Interval of checks while an old object is being deleted, in case the watch misses its end.
pub(super) const LOOK_AGAIN: Duration = Duration::from_mins(1);

pub(super) fn decide(provider: &dyn Provider, seen: &Observed) -> Decision {
    let prepared = match prepare(provider, seen) {
        Ok(prepared) => prepared,
        Err(failure) => return status::failed(provider, seen, &failure).into(),
    };
    if seen.md.is_dry_run() {
        return status::dry_run(provider, seen, &prepared).into();
    }
    if let Some(failure) = foreign(seen, &prepared) {
        return status::failed(provider, seen, &failure).into();
    }
    let outgoing = outgoing(provider, seen, &prepared.translation);
    let mut decision = if outgoing.blocks {
        status::recreating(provider, seen, &prepared, &outgoing.reasons).into()
    } else {
        create(provider, seen, &prepared)
    };
    if !seen.md.has_finalizer() {
        decision.plan.finalizer = Finalizer::Add;
    }
    decision.plan.delete = outgoing.delete;
    decision
}

/// A valid request with its translation.
pub(super) struct Prepared {
    pub(super) request: Request,
    pub(super) translation: Translation,
    pub(super) unknown_overrides: Vec<String>,
}

impl Prepared {
    /// The object whose status is read.
    pub(super) fn main(&self) -> Option<&Object> {
        self.translation.objects.last()
    }
}

/// Every check that can refuse the ModelDeployment.
fn prepare(provider: &dyn Provider, seen: &Observed) -> Result<Prepared, Blocked> {
    upstream_is_usable(provider, seen)?;
    let request = Request::try_from(seen.md.as_ref())
        .map_err(|invalid| Blocked::refused(&Refusal::incompatible(invalid.to_string())))?;
    let findings = overrides::check(&request.overrides, &provider.registration().overrides);
    let (wrong, unknown): (Vec<_>, Vec<_>) = findings.into_iter().partition(Finding::is_error);
    if !wrong.is_empty() {
        return Err(Blocked::refused(&Refusal {
            reason: ProviderReason::InvalidOverrides.into(),
            message: joined(&wrong),
        }));
    }
    let translation = provider
        .translate(&request, &seen.installed)
        .map_err(|refusal| Blocked::refused(&refusal))?;
    Ok(Prepared {
        request,
        translation,
        unknown_overrides: unknown.iter().map(ToString::to_string).collect(),
    })
}

fn joined(findings: &[Finding]) -> String {
    findings.iter().map(ToString::to_string).collect::<Vec<_>>().join("; ")
}

fn upstream_is_usable(provider: &dyn Provider, seen: &Observed) -> Result<(), Blocked> {
    let Some(main) = provider.upstreams().first().map(|u| u.kind) else {
        return Ok(());
    };
    match seen.installed.state(main) {
        State::Known { .. } => Ok(()),
        State::Missing => Err(Blocked::missing(format!(
            "Provider '{}' CRD not installed in cluster",
            provider.name()
        ))),
        State::Unknown { served, problems } => Err(Blocked::refused(&Refusal {
            reason: ProviderReason::UnknownUpstreamSchema.into(),
            message: format!(
                "The installed {} (served: {}) has a schema that {} does not know: {}. Update the provider controller, or install a release it knows",
                main.crd_name(),
                served.join(", "),
                provider.version(),
                if problems.is_empty() {
                    "no known version is served".to_owned()
                } else {
                    problems.join("; ")
                },
            ),
        })),
    }
}

/// Refuses if an object with a required name has another owner. Such an object is never changed.
fn foreign(seen: &Observed, prepared: &Prepared) -> Option<Blocked> {
    prepared.translation.objects.iter().find_map(|wanted| {
        let live = seen.child(wanted.kind, &wanted.name)?;
        let name = wanted.kind.named(&wanted.name);
        (!object::is_ours(seen.md.as_ref(), live)).then(|| Blocked::name_taken(&name, &object::manager_of(live)))
    })
}

/// Objects to delete before or while others are created.
struct Outgoing {
    delete: Vec<Delete>,
    /// Whether an upstream object is being deleted: nothing is created until it is gone.
    blocks: bool,
    reasons: Vec<String>,
}

fn outgoing(provider: &dyn Provider, seen: &Observed, translation: &Translation) -> Outgoing {
    let mut outgoing = Outgoing {
        delete: Vec::new(),
        blocks: false,
        reasons: Vec::new(),
    };
    for child in &seen.children {
        let live = child.object.as_ref();
        let name = live.name_any();
        let reasons = match translation
            .objects
            .iter()
            .find(|o| o.kind == child.kind && o.name == name)
        {
            _ if !object::is_ours(seen.md.as_ref(), live) => continue,
            Some(wanted) if is_upstream(provider, child.kind) => objects::outgrown(&seen.md, live, wanted),
            Some(_) => Vec::new(),
            None => {
                let successor = translation
                    .objects
                    .last()
                    .map(|main| main.kind.named(&main.name))
                    .unwrap_or_default();
                vec![format!("{} is replaced by {successor}", child.kind.named(&name))]
            }
        };
        let going = live.metadata.deletion_timestamp.is_some();
        if !reasons.is_empty() && !going {
            outgoing.delete.extend(deletion(seen, child.kind, live));
        }
        if is_upstream(provider, child.kind) && (going || !reasons.is_empty()) {
            outgoing.blocks = true;
            if !going {
                outgoing.reasons.extend(reasons);
            }
        }
    }
    outgoing
}

/// Whether the kind has a status. Others, such as ConfigMaps, are created and deleted at any time.
fn is_upstream(provider: &dyn Provider, kind: Kind) -> bool {
    provider.upstreams().iter().any(|u| u.kind == kind)
}

/// Deletion of a live object, in the version that is served.
pub(super) fn deletion(seen: &Observed, kind: Kind, live: &DynamicObject) -> Option<Delete> {
    let resource = match seen.installed.visible_version(kind) {
        Some(version) => kind.resource_in(&version),
        None => kind.resource(),
    };
    object::deletion(resource, live)
}

fn create(provider: &dyn Provider, seen: &Observed, prepared: &Prepared) -> Decision {
    let main = prepared.main();
    // The upstream's admission may check that referenced objects exist.
    let complete = prepared
        .translation
        .objects
        .iter()
        .all(|o| Some(o) == main || seen.child(o.kind, &o.name).is_some());
    let apply: Vec<Apply> = prepared
        .translation
        .objects
        .iter()
        .map(|object| {
            let mut apply = objects::apply(&seen.md, provider.name(), object, seen.child(object.kind, &object.name));
            apply.rehearsed = complete || Some(object) != main;
            if Some(object) != main && apply.note.as_ref().is_some_and(|n| !n.warning) {
                apply.note = None;
            }
            apply
        })
        .collect();
    let applied = apply.iter().all(|apply| apply.unchanged);
    let Decision { plan, inquiry } = status::serving(provider, seen, prepared, applied);
    Decision {
        plan: Plan { apply, ..plan },
        inquiry,
    }
}

/// Event with the reason for a recreation.
pub(super) fn recreation_note(main: Option<&Object>, reasons: &[String]) -> Option<Note> {
    let main = main?;
    (!reasons.is_empty()).then(|| {
        Note::normal(
            ProviderReason::Recreating.into(),
            format!("Recreating {}: {}", main.kind.named(&main.name), reasons.join("; ")),
        )
    })
}
