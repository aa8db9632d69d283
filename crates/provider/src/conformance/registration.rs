//! R1 to R7: name, registration and upstream schemas.

use std::collections::{BTreeMap, BTreeSet};

use k8s_openapi::api::rbac::v1::PolicyRule;
use runway_api::condition;
use runway_api::model_deployment::Phase;
use serde_json::{Value, json};

use super::trial::{Trial, condition_of, message, phase, said};
use super::{RuleResult, ensure};
use crate::contract::{Kind, Provider};
use crate::upstream::{Installed, Schema, State};

/// The name is used in object names, label values and the field manager.
pub(super) fn r1_the_name_fits_where_it_is_written(trial: &Trial) -> RuleResult {
    let name = trial.provider.name();
    ensure!(
        runway_api::name::is_label(name),
        "'{name}' is not a DNS label: use at most 63 lowercase letters, digits and '-'"
    );
    let version = trial.provider.version();
    let prefix = format!("{name}-provider:");
    ensure!(
        version.starts_with(&prefix) && version.len() > prefix.len(),
        "version() is '{version}', not '{prefix}VERSION'"
    );
    Ok(())
}

/// The core selects a provider only for what it registers.
pub(super) fn r2_the_registration_covers_what_is_served(trial: &Trial) -> RuleResult {
    let spec = trial.provider.registration();
    ensure!(
        spec == trial.provider.registration(),
        "registration() differs from call to call"
    );
    let served = trial.md(&json!({}))?.spec;
    let engine = served.engine_type().unwrap_or_default();
    let Some(support) = spec.capabilities.for_engine(engine) else {
        return Err(format!(
            "the served sample has engine '{engine}', which is not registered"
        ));
    };
    ensure!(
        support.serving_modes.contains(&served.mode()),
        "the served sample has mode {}, which is not registered for {engine}",
        served.mode().as_str()
    );
    let (covered, needs) = if served.wants_gpu() {
        (support.gpu, "gpuSupport")
    } else {
        (support.cpu, "cpuSupport")
    };
    ensure!(
        covered,
        "the served sample needs {needs} for {engine}, which is not registered"
    );
    let mut paths = BTreeMap::new();
    let Some(documented) = &spec.overrides else {
        return Err("overrides is not set: an empty list says that there are none".to_owned());
    };
    for key in documented {
        ensure!(
            paths.insert(key.path.clone(), key.kind).is_none(),
            "the override {} is registered twice",
            key.path
        );
    }
    for path in paths.keys() {
        let within = paths.keys().find(|other| other.starts_with(&format!("{path}.")));
        ensure!(
            within.is_none(),
            "the override {path} is a value and holds another: {within:?}"
        );
    }
    Ok(())
}

/// A missing CRD is waited for, an unknown schema is a failure; both resolve when a known schema is installed.
pub(super) fn r6_missing_or_unknown_upstream_is_reported(trial: &Trial) -> RuleResult {
    let upstreams = trial.provider.upstreams();
    let Some(main) = upstreams.first().map(|u| u.kind) else {
        return Err("upstreams() is empty: name the main kind, built in or not".to_owned());
    };
    ensure!(
        upstreams.iter().all(|u| u.kind.is_built_in() || !u.schemas.is_empty()),
        "an upstream kind with a CRD has no schema: no version of it could ever be used"
    );
    for upstream in &upstreams {
        ensure!(
            upstream
                .schemas
                .first()
                .is_none_or(|s| s.version == upstream.kind.version),
            "the version of {} is {}, and its newest schema has another one",
            upstream.kind.kind,
            upstream.kind.version
        );
    }
    if !main.is_built_in() {
        for (state, wanted, reason) in [
            (State::Missing, Phase::Pending, "False CRDNotInstalled"),
            (unknown(), Phase::Failed, "False UnknownUpstreamSchema"),
        ] {
            let mut cluster = trial.fresh(&json!({}))?;
            cluster.installed = with(&trial.installed(), trial.provider, main, state);
            cluster.settle()?;
            ensure!(
                cluster.objects.is_empty(),
                "something was made without the upstream: {reason}"
            );
            ensure!(
                phase(&cluster) == Some(wanted),
                "expected phase {wanted:?} for {reason}, found {}",
                said(&cluster)
            );
            let compatible = condition_of(&cluster, condition::PROVIDER_COMPATIBLE);
            ensure!(
                compatible == reason,
                "expected ProviderCompatible {reason}, found {compatible}: {}",
                message(&cluster)
            );
            cluster.installed = trial.installed();
            cluster.settle()?;
            ensure!(
                !cluster.objects.is_empty(),
                "the upstream appeared, and nothing was made: {}",
                said(&cluster)
            );
        }
    }
    for kind in upstreams
        .iter()
        .map(|u| u.kind)
        .filter(|k| *k != main && !k.is_built_in())
    {
        for state in [State::Missing, unknown()] {
            let installed = with(&trial.installed(), trial.provider, kind, state);
            for patch in trial.variants() {
                if let Ok(translation) = trial.provider.translate(&trial.request(&patch)?, &installed) {
                    let made = translation.objects.iter().any(|o| o.kind == kind);
                    ensure!(
                        !made,
                        "{patch} makes a {} where that kind is missing or unknown",
                        kind.kind
                    );
                }
            }
        }
    }
    Ok(())
}

fn unknown() -> State {
    State::Unknown {
        served: vec!["v9".to_owned()],
        problems: vec!["spec.everything does not exist".to_owned()],
    }
}

fn with(installed: &Installed, provider: &dyn Provider, kind: Kind, state: State) -> Installed {
    let others = provider.upstreams().into_iter().map(|u| u.kind).filter(|k| *k != kind);
    let states: Vec<_> = others.map(|k| (k, installed.state(k))).chain([(kind, state)]).collect();
    Installed::new(states)
}

/// A field that is written but not declared would be pruned silently after an upstream release drops it.
pub(super) fn r7_every_field_written_is_declared(trial: &Trial) -> RuleResult {
    let upstreams = trial.provider.upstreams();
    for (_, translation) in trial.translations()? {
        for object in &translation.objects {
            let Some(upstream) = upstreams
                .iter()
                .find(|u| u.kind == object.kind && !u.kind.is_built_in())
            else {
                continue;
            };
            let Some(schema) = upstream.schemas.iter().find(|s| s.version == object.version) else {
                return Err(format!(
                    "{} is created as {}, which is not a declared schema",
                    object.kind.kind, object.version
                ));
            };
            if let Some(path) = undeclared(schema, "", &object.body) {
                return Err(format!(
                    "{} {path} is written and not declared in Schema::fields",
                    object.kind.kind
                ));
            }
        }
    }
    Ok(())
}

/// The first field of a value without a declared path.
fn undeclared(schema: &Schema, path: &str, value: &Value) -> Option<String> {
    let declared = schema
        .fields
        .iter()
        .any(|(field, _)| *field == path || *field == format!("{path}{{}}"));
    if declared {
        return None;
    }
    let leads_on = path.is_empty()
        || schema
            .fields
            .iter()
            .any(|(f, _)| f.starts_with(path) && f[path.len()..].starts_with(['.', '[', '{']));
    if !leads_on {
        return Some(path.to_owned());
    }
    match value {
        Value::Object(fields) => fields.iter().find_map(|(name, inner)| {
            let through_map = format!("{path}{{}}");
            let is_map = schema.fields.iter().any(|(f, _)| f.starts_with(&through_map));
            let at = match (path, is_map) {
                (_, true) => through_map,
                ("", _) => name.clone(),
                _ => format!("{path}.{name}"),
            };
            undeclared(schema, &at, inner)
        }),
        Value::Array(entries) => entries
            .iter()
            .find_map(|inner| undeclared(schema, &format!("{path}[]"), inner)),
        _ => Some(path.to_owned()),
    }
}

/// Objects that are created, watched and reported, by name and verb.
pub(super) fn r35_the_role_names_what_is_used(trial: &Trial) -> RuleResult {
    let rules = crate::access(trial.provider);
    for rule in &rules {
        let words = rule
            .api_groups
            .iter()
            .flatten()
            .chain(rule.resources.iter().flatten())
            .chain(&rule.verbs);
        ensure!(
            words.clone().all(|word| word != "*"),
            "a rule of the role has a wildcard: {rule:?}"
        );
    }
    for child in trial.provider.children("any") {
        let of_kind = |rule: &&PolicyRule| {
            rule.api_groups.iter().flatten().any(|g| g == child.kind.group)
                && rule.resources.iter().flatten().any(|p| p == child.kind.plural)
        };
        let verbs = rules.iter().filter(of_kind).flat_map(|rule| &rule.verbs);
        let allowed: BTreeSet<&str> = verbs.map(String::as_str).collect();
        for verb in ["list", "watch", "create", "patch", "delete"] {
            ensure!(allowed.contains(verb), "the role may not {verb} {}", child.kind.plural);
        }
    }
    Ok(())
}
