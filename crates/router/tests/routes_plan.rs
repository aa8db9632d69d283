//! Plans of the routes controller: a table of everything that it may find, and what it does and reports. After each plan, the
//! following ones must become silent.
#![allow(clippy::unwrap_used, clippy::panic, reason = "helpers of tests are tests")]

use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use kube::core::DynamicObject;
use kube::{Resource as _, ResourceExt as _};
use runway_api::condition::{Conditions as _, GATEWAY_READY};
use runway_api::{ModelDeployment, ModelDeploymentStatus, labels};
use runway_operator::apply;
use runway_operator::plan::Plan;
use runway_router::routes::claims::{Claim, Claimant, Standing};
use runway_router::routes::kinds::{HTTP_ROUTE, INFERENCE_POOL};
use runway_router::routes::observe::Observed;
use runway_router::routes::plan::{after_failure, plan};
use runway_router::routes::pods::{Front, Pods, behind};
use runway_router::routes::settings::{OWN_PICKER, Picker, Settings};
use serde_json::{Value, json};

const NOW: &str = "2026-11-25T12:00:00Z";

fn object(value: Value) -> Arc<DynamicObject> {
    Arc::new(serde_json::from_value(value).unwrap())
}

/// A model that serves behind Service `gemma`, with this spec of the gateway.
fn model(gateway: &Value) -> ModelDeployment {
    serde_json::from_value(json!({
        "apiVersion": "kubeairunway.ai/v1alpha1", "kind": "ModelDeployment",
        "metadata": {
            "name": "gemma", "namespace": "team", "uid": "of-gemma", "generation": 2,
            "creationTimestamp": "2026-11-25T11:00:00Z",
        },
        "spec": { "model": { "id": "org/Gemma-2b" }, "gateway": gateway },
        "status": {
            "endpoint": { "service": "gemma", "port": 8000 }, "replicas": { "ready": 1 }, "selector": "app=gemma",
        },
    }))
    .unwrap()
}

#[expect(clippy::unnecessary_wraps, reason = "the type of the field")]
fn gateway(status: &Value) -> Option<Arc<DynamicObject>> {
    Some(object(json!({
        "apiVersion": "gateway.networking.k8s.io/v1", "kind": "Gateway",
        "metadata": { "name": "models", "namespace": "infra" }, "status": status,
    })))
}

/// A cluster with a Gateway that has an address.
fn seen(of_gateway: &Value) -> Observed {
    Observed {
        md: Arc::new(model(of_gateway)),
        settings: Arc::new(Settings {
            gateways: vec!["infra/models".parse().unwrap()],
            delete: false,
            pools: false,
            picker: None,
            timeout: Duration::from_mins(5),
        }),
        has_routes: true,
        has_pools: false,
        gateway: gateway(&json!({ "addresses": [{ "value": "192.0.2.7" }] })),
        route: None,
        referenced: None,
        pool: None,
        pods: None,
        rivals: Vec::new(),
        now: NOW.parse().unwrap(),
    }
}

fn with(mut seen: Observed, change: impl FnOnce(&mut Observed)) -> Observed {
    change(&mut seen);
    seen
}

fn edit(seen: &mut Observed, change: impl FnOnce(&mut ModelDeployment)) {
    change(Arc::make_mut(&mut seen.md));
}

/// An object as the server returns what was applied.
fn stored(applied: &DynamicObject, before: Option<&DynamicObject>) -> DynamicObject {
    let mut stored = applied.clone();
    stored.metadata.uid = Some(format!("of-{}", stored.name_any()));
    stored.metadata.generation = Some(before.map_or(1, |b| b.metadata.generation.unwrap_or(1) + 1));
    stored.metadata.creation_timestamp = serde_json::from_value(json!("2026-11-25T11:30:00Z")).unwrap();
    if let Some(before) = before {
        stored.data["status"] = before.data["status"].clone();
    }
    stored
}

/// The state after a plan has been carried out.
fn carried_out(mut seen: Observed, plan: &Plan) -> Observed {
    for delete in &plan.delete {
        let place = if delete.resource.kind == HTTP_ROUTE.kind {
            &mut seen.route
        } else {
            &mut seen.pool
        };
        assert_eq!(
            place.take().and_then(|live| live.uid()).as_deref(),
            Some(delete.uid.as_str())
        );
    }
    for apply in plan.apply.iter().filter(|apply| !apply.unchanged) {
        let place = if apply.resource.kind == HTTP_ROUTE.kind {
            &mut seen.route
        } else {
            &mut seen.pool
        };
        assert_eq!(
            place.as_ref().and_then(|live| live.uid()),
            apply.live,
            "the guard of the write"
        );
        *place = Some(Arc::new(stored(&apply.object, place.as_deref())));
    }
    if let Some(status) = &plan.status {
        let written: ModelDeploymentStatus = serde_json::from_value(status.clone()).unwrap();
        edit(&mut seen, |md| {
            let status = md.status.get_or_insert_default();
            status.gateway = written.gateway;
            status.conditions.retain(|condition| condition.type_ != GATEWAY_READY);
            status.conditions.extend(written.conditions);
        });
    }
    seen
}

/// The state after all plans have been carried out.
fn settled(mut seen: Observed) -> Observed {
    for _ in 0..4 {
        let plan = plan(&seen);
        if plan.is_silent() {
            return seen;
        }
        seen = carried_out(seen, &plan);
    }
    panic!("plans do not become silent: {:#?}", plan(&seen));
}

/// Simulated: the Gateway answers to the route, or the pool, with these conditions.
#[expect(clippy::unnecessary_wraps, reason = "the type of the field")]
fn answered(live: Option<Arc<DynamicObject>>, conditions: &Value) -> Option<Arc<DynamicObject>> {
    let mut live = Arc::unwrap_or_clone(live.unwrap());
    live.data["status"] = json!({ "parents": [{
        "parentRef": { "name": "models", "namespace": "infra" }, "conditions": conditions,
    }] });
    Some(Arc::new(live))
}

fn said(type_: &str, status: &str, reason: &str, message: &str) -> Value {
    json!({ "type": type_, "status": status, "reason": reason, "message": message })
}

fn accepted() -> Value {
    json!([said("Accepted", "True", "Accepted", "")])
}

/// A model with a route that the Gateway has accepted.
fn served() -> Observed {
    with(settled(seen(&Value::Null)), |seen| {
        seen.route = answered(seen.route.take(), &accepted());
    })
}

fn foreign_route() -> Arc<DynamicObject> {
    object(json!({
        "apiVersion": "gateway.networking.k8s.io/v1", "kind": "HTTPRoute",
        "metadata": { "name": "gemma", "namespace": "team", "uid": "foreign",
            "ownerReferences": [{ "apiVersion": "v1", "kind": "ConfigMap", "name": "x", "uid": "y", "controller": true }] },
        "spec": { "parentRefs": [{ "name": "models", "namespace": "infra" }] },
    }))
}

/// A route of the user's with this backend and these conditions of its Gateway.
fn users_route(parent: &str, backend: &Value, conditions: &Value) -> Arc<DynamicObject> {
    let parent = json!({ "name": parent, "namespace": "infra" });
    object(json!({
        "apiVersion": "gateway.networking.k8s.io/v1", "kind": "HTTPRoute",
        "metadata": { "name": "mine", "namespace": "team", "uid": "mine" },
        "spec": { "parentRefs": [parent], "rules": [{ "backendRefs": [backend] }] },
        "status": { "parents": [{ "parentRef": parent, "conditions": conditions }] },
    }))
}

fn refers() -> Observed {
    seen(&json!({ "httpRouteRef": "mine" }))
}

fn rival(namespace: &str, standing: Standing, wants: bool) -> Claimant {
    Claimant {
        key: (namespace.to_owned(), "other".to_owned()),
        claim: Claim {
            uid: "of-other".to_owned(),
            created: "2026-11-25T10:00:00Z".parse().ok(),
            model: Some("Gemma-2b".to_owned()),
            wants,
            route: None,
        },
        standing,
    }
}

fn pods(port: &Value) -> Option<Pods> {
    let service = json!({
        "metadata": { "name": "gemma", "labels": { labels::DEPLOYMENT: "gemma" } },
        "spec": { "selector": { "app": "gemma" }, "ports": [{ "port": 8000, "targetPort": port }] },
    });
    behind(&Front::of(serde_json::from_value(service).unwrap())?, &[], 8000)
}

/// A model in a cluster with pools.
fn pooled() -> Observed {
    with(seen(&Value::Null), |seen| {
        let settings = Arc::make_mut(&mut seen.settings);
        settings.pools = true;
        settings.picker = Some(Picker {
            name: "{name}-epp".parse().unwrap(),
            port: 9002,
        });
        seen.has_pools = true;
        seen.pods = pods(&json!(5000));
    })
}

/// The same, with an engine, and labels of its pods.
fn of_engine(engine: &str, pod_labels: &Value) -> Observed {
    with(pooled(), |seen| {
        edit(seen, |md| {
            let engine = json!({ "type": engine });
            md.spec.engine = serde_json::from_value(engine).unwrap();
            md.spec.pod_template = serde_json::from_value(json!({ "metadata": { "labels": pod_labels } })).unwrap();
        });
    })
}

struct Case {
    name: &'static str,
    seen: Observed,
    /// Reason of the condition, empty without a condition, and words of its message.
    reason: &'static str,
    words: &'static [&'static str],
    /// Kinds of the objects that exist afterwards and belong to the model.
    objects: &'static [&'static str],
}

fn case(
    name: &'static str,
    seen: Observed,
    reason: &'static str,
    words: &'static [&'static str],
    objects: &'static [&'static str],
) -> Case {
    Case {
        name,
        seen,
        reason,
        words,
        objects,
    }
}

const ROUTE: &[&str] = &["HTTPRoute"];
const BOTH: &[&str] = &["HTTPRoute", "InferencePool"];
const POOL: &[&str] = &["InferencePool"];

#[expect(clippy::too_many_lines, reason = "a table")]
fn of_own_routes() -> Vec<Case> {
    let refused = |conditions: &Value| with(served(), |seen| seen.route = answered(seen.route.take(), conditions));
    let twice = with(seen(&Value::Null), |seen| {
        Arc::make_mut(&mut seen.settings)
            .gateways
            .push("infra/other".parse().unwrap());
    });
    let without_gateway = with(seen(&Value::Null), |seen| {
        Arc::make_mut(&mut seen.settings).gateways.clear();
    });
    let with_gateway = |status: &Value| with(served(), |seen| seen.gateway = gateway(status));
    let old =
        json!([{ "type": "Accepted", "status": "False", "reason": "Old", "message": "", "observedGeneration": 0 }]);
    vec![
        case(
            "new",
            seen(&Value::Null),
            "RoutePending",
            &["Gateway 'infra/models'", "HTTPRoute 'gemma'"],
            ROUTE,
        ),
        case(
            "accepted",
            served(),
            "RouteAccepted",
            &["accepted HTTPRoute 'gemma'"],
            ROUTE,
        ),
        case(
            "not allowed",
            refused(&json!([said(
                "Accepted",
                "False",
                "NotAllowedByListeners",
                "no listener"
            )])),
            "RouteNotAccepted",
            &[
                "no listener (NotAllowedByListeners)",
                "namespace 'team'",
                "allowedRoutes",
            ],
            ROUTE,
        ),
        case(
            "unknown reason",
            refused(&json!([said("Accepted", "False", "Strange", "")])),
            "RouteNotAccepted",
            &["is not accepted by Gateway 'infra/models': Strange"],
            ROUTE,
        ),
        case(
            "backend not found",
            refused(&json!([
                accepted()[0],
                said("ResolvedRefs", "False", "BackendNotFound", "gone")
            ])),
            "RouteNotResolved",
            &["gone (BackendNotFound)", "condition Ready"],
            ROUTE,
        ),
        case(
            "answer about an earlier generation",
            refused(&old),
            "RoutePending",
            &["Waiting"],
            ROUTE,
        ),
        case(
            "no Gateway API",
            with(seen(&Value::Null), |seen| seen.has_routes = false),
            "GatewayAPINotInstalled",
            &["httproutes.gateway.networking.k8s.io", "--gateway"],
            &[],
        ),
        case(
            "no Gateway",
            with(seen(&Value::Null), |seen| seen.gateway = None),
            "GatewayNotFound",
            &["'infra/models'", "--gateway"],
            &[],
        ),
        case(
            "Gateway is deleted",
            with(served(), |seen| seen.gateway = None),
            "GatewayNotFound",
            &["does not exist"],
            ROUTE,
        ),
        case(
            "Gateway has no address",
            with_gateway(&json!({})),
            "GatewayNotReady",
            &["no address yet"],
            ROUTE,
        ),
        case(
            "Gateway is not programmed",
            with_gateway(&json!({ "conditions": [said("Programmed", "False", "AddressNotUsable", "in use")] })),
            "GatewayNotReady",
            &["in use (AddressNotUsable)"],
            ROUTE,
        ),
        case(
            "two Gateways",
            twice,
            "GatewayAmbiguous",
            &["'infra/models', 'infra/other'"],
            &[],
        ),
        case(
            "name taken",
            with(seen(&Value::Null), |seen| seen.route = Some(foreign_route())),
            "NameTaken",
            &["HTTPRoute 'gemma'", "controlled by ConfigMap 'x'", "httpRouteRef"],
            &[],
        ),
        case(
            "changed directly",
            with(served(), |seen| {
                Arc::make_mut(seen.route.as_mut().unwrap()).data["spec"]["rules"] = json!([]);
            }),
            "RouteAccepted",
            &[],
            ROUTE,
        ),
        case(
            "disabled",
            with(served(), |seen| {
                edit(seen, |md| md.spec.gateway.get_or_insert_default().enabled = Some(false));
            }),
            "",
            &[],
            &[],
        ),
        case(
            "disabled, name taken",
            with(seen(&json!({ "enabled": false })), |seen| {
                seen.route = Some(foreign_route());
            }),
            "",
            &[],
            &[],
        ),
        case(
            "routes are deleted",
            with(served(), |seen| Arc::make_mut(&mut seen.settings).delete = true),
            "",
            &[],
            &[],
        ),
        case(
            "no Gateway is named any more",
            with(settled(served()), |seen| {
                Arc::make_mut(&mut seen.settings).gateways.clear();
            }),
            "RouteAccepted",
            &[],
            ROUTE,
        ),
        case("no Gateway is named", without_gateway, "", &[], &[]),
    ]
}

#[expect(clippy::too_many_lines, reason = "a table")]
fn of_models() -> Vec<Case> {
    let starting = |seen: Observed| {
        with(seen, |seen| {
            edit(seen, |md| md.status.get_or_insert_default().replicas = None);
        })
    };
    let annotated = |mut seen: Observed, annotation: &str| {
        edit(&mut seen, |md| {
            md.annotations_mut().insert(annotation.to_owned(), "true".to_owned());
        });
        seen
    };
    let deleted = with(served(), |seen| {
        edit(seen, |md| {
            md.metadata.deletion_timestamp = serde_json::from_value(json!(NOW)).unwrap();
        });
    });
    let asleep = with(served(), |seen| {
        edit(seen, |md| md.spec.scaling.get_or_insert_default().replicas = Some(0));
    });
    let without_endpoint = with(served(), |seen| {
        edit(seen, |md| md.status.get_or_insert_default().endpoint = None);
    });
    let routed = |second: &str| Standing::Routed(second.parse::<Timestamp>().unwrap());
    let earlier = routed("2026-11-25T11:20:00Z");
    let rivals = |seen: Observed, rival: Claimant| with(seen, |seen| seen.rivals = vec![rival]);
    vec![
        case(
            "starting",
            starting(seen(&Value::Null)),
            "ModelNotServing",
            &["condition Ready"],
            &[],
        ),
        case("not ready any more", starting(served()), "RouteAccepted", &[], ROUTE),
        case("asleep", asleep, "RouteAccepted", &[], ROUTE),
        case(
            "without an endpoint any more",
            without_endpoint,
            "ModelNotServing",
            &[],
            ROUTE,
        ),
        case("paused", annotated(seen(&Value::Null), labels::PAUSED), "", &[], &[]),
        case("dry run", annotated(seen(&Value::Null), labels::DRY_RUN), "", &[], &[]),
        case("deleted", deleted, "RoutePending", &[], &[]),
        case(
            "name that is not a header",
            with(seen(&Value::Null), |seen| {
                edit(seen, |md| md.spec.model.served_name = Some("ein Modell".to_owned()));
            }),
            "ModelNameInvalid",
            &["'ein Modell'", "spec.gateway.modelName"],
            &[],
        ),
        case(
            "name of a model in the namespace",
            rivals(seen(&Value::Null), rival("team", earlier, true)),
            "ModelNameTaken",
            &[
                "'Gemma-2b' belongs to ModelDeployment 'other'",
                "modelName",
                "team-gemma",
            ],
            &[],
        ),
        case(
            "name of an older model elsewhere",
            rivals(seen(&Value::Null), rival("b", Standing::None, true)),
            "ModelNameTaken",
            &["belongs to a ModelDeployment of another namespace"],
            &[],
        ),
        case(
            "both have a route",
            rivals(served(), rival("b", earlier, true)),
            "ModelNameTaken",
            &[],
            &[],
        ),
        case(
            "the other route is younger",
            rivals(served(), rival("b", routed("2026-11-25T11:50:00Z"), true)),
            "RouteAccepted",
            &[],
            ROUTE,
        ),
        case(
            "the older model does not serve",
            rivals(seen(&Value::Null), rival("b", Standing::None, false)),
            "RoutePending",
            &[],
            ROUTE,
        ),
        case(
            "the older model is refused",
            rivals(seen(&Value::Null), rival("b", Standing::Refused, true)),
            "RoutePending",
            &[],
            ROUTE,
        ),
    ]
}

fn of_users_routes() -> Vec<Case> {
    let service = json!({ "name": "gemma", "port": 8000 });
    let found = |parent: &str, backend: &Value, conditions: &Value| {
        with(refers(), |seen| {
            seen.referenced = Some(users_route(parent, backend, conditions));
        })
    };
    let refusal = json!([said("Accepted", "False", "NotAllowedByListeners", "no")]);
    let replaced = with(served(), |seen| {
        edit(seen, |md| {
            md.spec.gateway.get_or_insert_default().http_route_ref = Some("mine".to_owned());
        });
        seen.referenced = Some(users_route("models", &service, &accepted()));
    });
    let own = with(served(), |seen| {
        edit(seen, |md| {
            md.spec.gateway.get_or_insert_default().http_route_ref = Some("gemma".to_owned());
        });
        seen.referenced = seen.route.clone();
    });
    vec![
        case(
            "route of the user is missing",
            refers(),
            "RouteNotFound",
            &["HTTPRoute 'mine'", "httpRouteRef"],
            &[],
        ),
        case(
            "route of the user without the model",
            found("models", &json!({ "name": "shop", "port": 80 }), &accepted()),
            "RouteWithoutModel",
            &["backendRef to Service 'gemma'"],
            &[],
        ),
        case(
            "backend in another namespace",
            found(
                "models",
                &json!({ "name": "gemma", "namespace": "b", "port": 8000 }),
                &accepted(),
            ),
            "RouteWithoutModel",
            &[],
            &[],
        ),
        case(
            "route of the user",
            found("models", &service, &accepted()),
            "RouteAccepted",
            &["'mine'"],
            &[],
        ),
        case(
            "route of the user is refused",
            found("models", &service, &refusal),
            "RouteNotAccepted",
            &["allowedRoutes"],
            &[],
        ),
        case(
            "route of the user waits",
            found("models", &service, &json!([])),
            "RoutePending",
            &[],
            &[],
        ),
        case(
            "route of the user at another Gateway",
            found("public", &service, &accepted()),
            "RouteAccepted",
            &["which is not 'infra/models'"],
            &[],
        ),
        case(
            "route of the user at another Gateway is refused",
            found("public", &service, &refusal),
            "RouteNotAccepted",
            &["not accepted by its Gateway"],
            &[],
        ),
        case("own route is replaced", replaced, "RouteAccepted", &["'mine'"], &[]),
        case("own route is not one of the user", own, "RouteNotFound", &[], &[]),
    ]
}

fn of_pools() -> Vec<Case> {
    let accepted_with = |seen: Observed, pool: Option<&Value>| {
        with(settled(seen), |seen| {
            seen.route = answered(seen.route.take(), &accepted());
            if let Some(conditions) = pool {
                seen.pool = answered(seen.pool.take(), conditions);
            }
        })
    };
    let unresolved = json!([
        accepted()[0],
        said("ResolvedRefs", "False", "InvalidExtensionRef", "missing")
    ]);
    let foreign = object(json!({
        "apiVersion": "inference.networking.k8s.io/v1", "kind": "InferencePool",
        "metadata": { "name": "gemma", "namespace": "team", "uid": "foreign" }, "spec": {},
    }));
    let without = |change: fn(&mut Observed)| accepted_with(with(pooled(), change), None);
    let asleep = with(accepted_with(pooled(), Some(&accepted())), |seen| {
        seen.pods = pods(&json!("http"));
    });
    let off = with(accepted_with(pooled(), Some(&accepted())), |seen| {
        let settings = Arc::make_mut(&mut seen.settings);
        (settings.pools, settings.picker) = (false, None);
    });
    let of_user = with(pooled(), |seen| {
        edit(seen, |md| {
            md.spec.gateway.get_or_insert_default().http_route_ref = Some("mine".to_owned());
        });
        let backend = json!({ "group": INFERENCE_POOL.group, "kind": "InferencePool", "name": "gemma" });
        seen.referenced = Some(users_route("models", &backend, &accepted()));
    });
    vec![
        case(
            "pool",
            accepted_with(pooled(), Some(&accepted())),
            "RouteAccepted",
            &[],
            BOTH,
        ),
        case(
            "pool without an answer",
            accepted_with(pooled(), None),
            "RouteAccepted",
            &[],
            BOTH,
        ),
        case(
            "pool without its picker",
            accepted_with(pooled(), Some(&unresolved)),
            "RouteNotResolved",
            &["missing (InvalidExtensionRef)", "Create Service 'gemma-epp'"],
            BOTH,
        ),
        case(
            "no CRD of pools",
            without(|seen| seen.has_pools = false),
            "RoutedToService",
            &["inferencepools.inference.networking.k8s.io", "--endpoint-picker"],
            ROUTE,
        ),
        case(
            "no pods",
            without(|seen| seen.pods = None),
            "RoutedToService",
            &["does not select"],
            ROUTE,
        ),
        case(
            "workers that do not serve HTTP",
            without(|seen| {
                edit(seen, |md| {
                    md.status.get_or_insert_default().selector = Some("app=worker".to_owned());
                });
            }),
            "RoutedToService",
            &["does not select"],
            ROUTE,
        ),
        case(
            "port is not known",
            without(|seen| seen.pods = pods(&json!("http"))),
            "RoutedToService",
            &["port", "not known yet"],
            ROUTE,
        ),
        case("port is not known any more", asleep, "RouteAccepted", &[], BOTH),
        case(
            "name of the pool is taken",
            with(
                accepted_with(with(pooled(), |seen| seen.pool = Some(foreign.clone())), None),
                |_| (),
            ),
            "RoutedToService",
            &["InferencePool 'gemma' exists", "Rename"],
            ROUTE,
        ),
        case("picker is removed", off, "RouteAccepted", &[], ROUTE),
        case("pool behind a route of the user", of_user, "RouteAccepted", &[], POOL),
    ]
}

#[test]
fn every_state_is_handled_and_reported() {
    let mut differences = Vec::new();
    let all = [of_own_routes(), of_models(), of_users_routes(), of_pools()].concat_all();
    assert!(all.len() > 45, "{} cases", all.len());
    for case in all {
        let foreign = |live: &Option<Arc<DynamicObject>>| {
            live.as_ref()
                .filter(|live| live.uid().as_deref() == Some("foreign"))
                .cloned()
        };
        let before = (foreign(&case.seen.route), foreign(&case.seen.pool));
        let after = settled(case.seen);
        assert_eq!(
            before,
            (foreign(&after.route), foreign(&after.pool)),
            "{}: foreign objects",
            case.name
        );
        let objects = [(HTTP_ROUTE, &after.route), (INFERENCE_POOL, &after.pool)];
        let objects: Vec<&str> = objects
            .into_iter()
            .filter(|(_, live)| {
                live.as_ref()
                    .is_some_and(|live| live.uid().as_deref() != Some("foreign"))
            })
            .map(|(kind, _)| kind.kind)
            .collect();
        let status = after.md.status.clone().unwrap_or_default();
        let condition = status.conditions.get_condition(GATEWAY_READY);
        let reason = condition.map_or("", |condition| condition.reason.as_str());
        let message = condition.map_or("", |condition| condition.message.as_str());
        let is_ready = ["RouteAccepted", "RoutedToService"].contains(&reason);
        let fits = reason == case.reason
            && objects == case.objects
            && case.words.iter().all(|words| message.contains(words))
            && condition.is_none_or(|condition| (condition.status == "True") == is_ready)
            && status.gateway.is_some() == is_ready;
        if !fits {
            differences.push(format!(
                "{}: {reason} {objects:?}: {message} {:?}",
                case.name, status.gateway
            ));
        }
    }
    assert!(differences.is_empty(), "{}", differences.join("\n"));
}

trait ConcatAll {
    fn concat_all(self) -> Vec<Case>;
}

impl<const N: usize> ConcatAll for [Vec<Case>; N] {
    fn concat_all(self) -> Vec<Case> {
        self.into_iter().flatten().collect()
    }
}

#[test]
fn route_leads_from_the_gateway_to_the_model() {
    let seen = settled(seen(&json!({ "modelName": "team/gemma" })));
    let route = seen.route.as_ref().unwrap();
    assert_eq!(
        route.data["spec"],
        json!({
            "parentRefs": [{
                "group": "gateway.networking.k8s.io", "kind": "Gateway", "namespace": "infra", "name": "models",
            }],
            "rules": [{
                "matches": [{
                    "path": { "type": "PathPrefix", "value": "/v1" },
                    "headers": [{ "type": "Exact", "name": "X-Gateway-Model-Name", "value": "team/gemma" }],
                }],
                "backendRefs": [{ "kind": "Service", "name": "gemma", "port": 8000 }],
                "timeouts": { "request": "5m" },
            }],
        })
    );
    let owner = &route.owner_references()[0];
    assert_eq!(
        (owner.kind.as_str(), owner.uid.as_str()),
        ("ModelDeployment", "of-gemma")
    );
    assert_eq!(owner.api_version, ModelDeployment::api_version(&()));
}

#[test]
fn pool_has_the_pods_of_the_service_and_the_picker_of_the_model() {
    let seen = settled(pooled());
    let pool = seen.pool.as_ref().unwrap();
    assert_eq!(
        pool.data["spec"],
        json!({
            "selector": { "matchLabels": { "app": "gemma" } },
            "targetPorts": [{ "number": 5000 }],
            "endpointPickerRef": {
                "group": "", "kind": "Service", "name": "gemma-epp", "port": { "number": 9002 },
                "failureMode": "FailOpen",
            },
        })
    );
    let backends = &seen.route.as_ref().unwrap().data["spec"]["rules"][0]["backendRefs"];
    let reference = json!({ "group": "inference.networking.k8s.io", "kind": "InferencePool", "name": "gemma" });
    assert_eq!(*backends, json!([reference]));
}

#[test]
fn label_with_the_engine_is_required_only_if_a_picker_would_read_other_metrics() {
    let remark = |seen: Observed| {
        let seen = with(settled(seen), |seen| {
            seen.route = answered(seen.route.take(), &accepted());
        });
        let status: ModelDeploymentStatus = serde_json::from_value(plan(&seen).status.unwrap()).unwrap();
        let message = status.conditions.get_condition(GATEWAY_READY).unwrap().message.clone();
        let (_, remark) = message.split_once("accepted HTTPRoute 'gemma'").unwrap();
        remark.to_owned()
    };
    assert_eq!(
        remark(of_engine("trtllm", &json!({}))),
        ". Its endpoint picker reads the metrics of the pods as those of vLLM: \
         set spec.podTemplate.metadata.labels to 'inference.networking.k8s.io/engine-type: trtllm-serve'"
    );
    assert_eq!(remark(of_engine("vllm", &json!({}))), "");
    for label in ["llm-d.ai/engine-type", "inference.networking.k8s.io/engine-type"] {
        assert_eq!(remark(of_engine("sglang", &json!({ label: "sglang" }))), "", "{label}");
    }
    let own_picker = with(of_engine("sglang", &json!({})), |seen| {
        let picker = Arc::make_mut(&mut seen.settings).picker.as_mut().unwrap();
        picker.name = OWN_PICKER.parse().unwrap();
    });
    assert_eq!(remark(own_picker), "");
    let without_picker = with(of_engine("sglang", &json!({})), |seen| {
        Arc::make_mut(&mut seen.settings).picker = None;
    });
    assert_eq!(remark(without_picker), "");
}

#[test]
fn pool_without_a_picker_leaves_the_choice_to_the_gateway() {
    let seen = settled(with(pooled(), |seen| Arc::make_mut(&mut seen.settings).picker = None));
    let spec = json!({ "selector": { "matchLabels": { "app": "gemma" } }, "targetPorts": [{ "number": 5000 }] });
    assert_eq!(seen.pool.as_ref().unwrap().data["spec"], spec);
}

#[test]
fn pool_is_deleted_after_the_route_has_left_it() {
    let seen = with(settled(pooled()), |seen| {
        let settings = Arc::make_mut(&mut seen.settings);
        (settings.pools, settings.picker) = (false, None);
    });
    let first = plan(&seen);
    assert!(
        first.delete.is_empty() && first.apply.iter().any(|apply| !apply.unchanged),
        "{first:?}"
    );
    let second = plan(&carried_out(seen, &first));
    assert_eq!(second.delete.len(), 1);
    assert_eq!(second.delete[0].resource.kind, "InferencePool");
}

#[test]
fn rejection_by_the_api_server_is_reported() {
    let seen = seen(&Value::Null);
    let source = || {
        let status = kube::core::Status::failure("spec.rules: Too many", "Invalid").with_code(422);
        Box::new(kube::Error::Api(status.boxed()))
    };
    let reported = |error: &apply::Error| {
        let plan = after_failure(&seen, error);
        let status: ModelDeploymentStatus = serde_json::from_value(plan.status?).ok()?;
        let condition = status.conditions.get_condition(GATEWAY_READY)?.clone();
        Some((condition.reason, condition.message))
    };
    let rejected = |kind: &str| apply::Error::Apply {
        kind: kind.to_owned(),
        name: "gemma".to_owned(),
        lasting: false,
        source: source(),
    };
    let (_, message) = reported(&rejected("InferencePool")).unwrap();
    assert!(message.contains("inference extension 1.6"), "{message}");
    let (reason, message) = reported(&rejected("HTTPRoute")).unwrap();
    assert!(!message.contains("inference extension"), "{message}");
    assert_eq!(reason, "RouteRejected");
    assert!(
        message.contains("HTTPRoute 'gemma' was refused: spec.rules: Too many"),
        "{message}"
    );
    let taken = apply::Error::NameTaken {
        kind: "HTTPRoute".to_owned(),
        name: "gemma".to_owned(),
        manager: "managed by 'kubectl'".to_owned(),
        source: source(),
    };
    let (reason, message) = reported(&taken).unwrap();
    assert_eq!(reason, "NameTaken");
    assert!(message.contains("managed by 'kubectl'"), "{message}");
    let passing = apply::Error::Outdated {
        kind: "HTTPRoute".to_owned(),
        name: "gemma".to_owned(),
        source: source(),
    };
    assert_eq!(reported(&passing), None);
}
