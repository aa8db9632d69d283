//! Requests of plans, against a server that answers as a test needs.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use k8s_openapi::api::core::v1::ConfigMap;
use kube::client::Body;
use kube::core::{ApiResource, DynamicObject};
use kube::{Client, ResourceExt as _};
use runway_api::EventReason;
use serde_json::{Value, json};

use super::write::find;
use super::*;
use crate::events::Events;
use crate::plan::{Apply, Delete, Edit, Rehearsal};

fn refused(code: u16, causes: &Value) -> (u16, Value) {
    let reason = match code {
        409 => "Conflict",
        422 => "Invalid",
        _ => "InternalError",
    };
    let status = json!({"kind": "Status", "apiVersion": "v1", "status": "Failure", "message": "refused",
        "reason": reason, "code": code, "details": {"causes": causes}});
    (code, status)
}

fn toys(controller: &str) -> Value {
    json!([{"metadata": {"name": "toys", "namespace": "ns", "uid": "7", "resourceVersion": "5", "ownerReferences": [
        {"apiVersion": "v1", "kind": "ConfigMap", "name": "box", "uid": controller, "controller": true}]}}])
}

#[test]
fn one_event_names_several_objects() {
    let mut news = Vec::new();
    for note in [
        Note::new(EventReason::ResourceCreated, "Created Service 'a'"),
        Note::new(EventReason::DriftDetected, "Changed directly, putting it back"),
        Note::new(EventReason::ResourceCreated, "Created Deployment 'a'"),
        Note::new(EventReason::DriftDetected, "Changed directly, putting it back"),
    ] {
        add(&mut news, Some(&note));
    }
    add(&mut news, None);
    let reported: Vec<&str> = news.iter().map(|note| note.message.as_str()).collect();
    assert_eq!(
        reported,
        [
            "Created Service 'a'; Created Deployment 'a'",
            "Changed directly, putting it back"
        ]
    );
}

/// The requests for a plan with two new objects, of which the server rejects the second.
async fn requests(admission: Admission, rehearsal: Rehearsal) -> Vec<String> {
    let log = Arc::new(std::sync::Mutex::new(Vec::new()));
    let seen = Arc::clone(&log);
    let service = tower::service_fn(move |request: http::Request<Body>| {
        let name = request.uri().path().rsplit('/').next().unwrap_or_default().to_owned();
        let dry = request.uri().query().is_some_and(|query| query.contains("dryRun=All"));
        let (code, body) = match name.as_str() {
            "second" => refused(422, &json!([])),
            _ => (201, toys("1")[0].clone()),
        };
        seen.lock()
            .unwrap()
            .push(format!("{name}{}", if dry { " dry" } else { "" }));
        let mut response = http::Response::new(Body::from(body.to_string().into_bytes()));
        *response.status_mut() = http::StatusCode::from_u16(code).unwrap();
        std::future::ready(Ok::<_, kube::Error>(response))
    });
    let client = Client::new(service, "ns");
    let executor = Executor::<ConfigMap>::new(client.clone(), "toys", "toys/finalizer", Events::start(client, "toys"));
    let resource = ApiResource::erase::<ConfigMap>(&());
    let apply = |name| Apply {
        resource: resource.clone(),
        object: DynamicObject::new(name, &resource).within("ns"),
        live: None,
        force: false,
        admission,
        unchanged: false,
        note: None,
    };
    let plan = Plan {
        apply: ["first", "second"].map(apply).into(),
        rehearsal,
        ..Plan::default()
    };
    let error = executor.execute(&ConfigMap::default(), &plan).await.unwrap_err();
    assert!(error.is_refusal(), "{error:?}");
    let log = log.lock().unwrap();
    log.clone()
}

#[tokio::test]
async fn rejected_object_leaves_no_other_behind() {
    assert_eq!(
        requests(Admission::Together, Rehearsal::AllButFirst).await,
        ["second dry"]
    );
    assert_eq!(requests(Admission::Apart, Rehearsal::AllButFirst).await, ["second dry"]);
    assert_eq!(
        requests(Admission::Together, Rehearsal::All).await,
        ["first dry", "second dry"]
    );
    assert_eq!(
        requests(Admission::Together, Rehearsal::None).await,
        ["first", "second"]
    );
}

/// A name with `?` or `#` would delete every object of the namespace.
#[tokio::test]
async fn nothing_is_sent_for_a_name_that_leads_elsewhere() {
    let asked = Arc::new(AtomicUsize::new(0));
    let counter = asked.clone();
    let server = tower::service_fn(move |_: http::Request<Body>| {
        counter.fetch_add(1, Ordering::SeqCst);
        std::future::ready(Ok::<_, std::convert::Infallible>(http::Response::new(Body::empty())))
    });
    let client = Client::new(server, "default");
    let events = Events::start(client.clone(), "toy");
    let executor = Executor::<ConfigMap>::new(client.clone(), "toy", "toy", events);
    let resource = ApiResource::erase::<ConfigMap>(&());
    for name in ["", "?", "#", "/", "..", "a/b", "%2F", "a?b", "a\n"] {
        let delete = Delete {
            resource: resource.clone(),
            namespace: "default".to_owned(),
            name: name.to_owned(),
            uid: "1".to_owned(),
            foreground: false,
        };
        let error = executor.delete(&delete).await.unwrap_err();
        assert!(
            error.is_refusal() && error.cause().to_string().contains("invalid name"),
            "{name:?}: {error:?}"
        );
        let elsewhere = Delete {
            namespace: name.to_owned(),
            name: "bear".to_owned(),
            ..delete
        };
        let error = executor.delete(&elsewhere).await.unwrap_err();
        assert!(
            error.cause().to_string().contains("invalid namespace"),
            "{name:?}: {error:?}"
        );
        let edit = Edit {
            resource: resource.clone(),
            namespace: "default".to_owned(),
            name: name.to_owned(),
            patch: json!({}),
            note: None,
        };
        assert!(executor.edit(&ConfigMap::default(), &edit).await.is_err(), "{name:?}");
        let apply = Apply {
            resource: resource.clone(),
            object: DynamicObject::new(name, &resource).within("default"),
            live: None,
            force: false,
            admission: Admission::Together,
            unchanged: false,
            note: None,
        };
        assert!(executor.send(&apply, false).await.is_err(), "{name:?}");
        assert!(find(&client, &resource, "default", name).await.is_err(), "{name:?}");
    }
    assert_eq!(asked.load(Ordering::SeqCst), 0);
}

fn listed(objects: &Value) -> (u16, Value) {
    let list =
        json!({"kind": "ConfigMapList", "apiVersion": "v1", "metadata": {"resourceVersion": "9"}, "items": objects});
    (200, list)
}

/// Sends an apply to a server that gives this answer to it, and this one to a lookup.
async fn sent(live: Option<&str>, answer: (u16, Value), lookup: (u16, Value)) -> (Executor<ConfigMap>, Error) {
    let service = tower::service_fn(move |request: http::Request<Body>| {
        let is_lookup = request.method() == http::Method::GET;
        let (code, body) = if is_lookup { lookup.clone() } else { answer.clone() };
        let mut response = http::Response::new(Body::from(body.to_string().into_bytes()));
        *response.status_mut() = http::StatusCode::from_u16(code).unwrap();
        std::future::ready(Ok::<_, kube::Error>(response))
    });
    let client = Client::new(service, "ns");
    let executor = Executor::new(client.clone(), "toys", "toys/finalizer", Events::start(client, "toys"));
    let mut object: DynamicObject = serde_json::from_value(toys("1")[0].clone()).unwrap();
    object.metadata.uid = None;
    let apply = Apply {
        resource: ApiResource::erase::<ConfigMap>(&()),
        object,
        live: live.map(str::to_owned),
        force: live.is_some(),
        admission: Admission::Together,
        unchanged: false,
        note: None,
    };
    let error = executor.send(&apply, false).await.unwrap_err();
    (executor, error)
}

#[tokio::test]
async fn an_object_in_the_way_that_is_not_ours_takes_the_name() {
    let (executor, error) = sent(None, refused(409, &json!([])), listed(&toys("2"))).await;
    assert!(
        matches!(&error, Error::NameTaken { manager, .. } if manager == "controlled by ConfigMap 'box'"),
        "{error:?}"
    );
    assert!(executor.children.newest("ConfigMap", "ns", "toys", None).is_none());
}

#[tokio::test]
async fn our_own_object_in_the_way_is_seen_by_the_next_plan() {
    let (executor, error) = sent(None, refused(409, &json!([])), listed(&toys("1"))).await;
    assert!(matches!(error, Error::Outdated { .. }), "{error:?}");
    let seen = executor.children.newest("ConfigMap", "ns", "toys", None);
    assert_eq!(seen.and_then(|toys| toys.uid()).as_deref(), Some("7"));
}

#[tokio::test]
async fn failed_lookup_is_an_error() {
    let (_, error) = sent(None, refused(409, &json!([])), refused(500, &json!([]))).await;
    assert!(matches!(error, Error::Lookup { .. }), "{error:?}");
    let (_, error) = sent(None, refused(409, &json!([])), listed(&json!([]))).await;
    assert!(matches!(error, Error::Outdated { .. }), "{error:?}");
}

#[tokio::test]
async fn an_object_that_was_replaced_is_observed_again_and_a_held_field_is_a_conflict() {
    let nothing = listed(&json!([]));
    for answer in [
        refused(409, &json!([])),
        refused(422, &json!([{"reason": "FieldValueInvalid", "field": "metadata.uid"}])),
    ] {
        let (_, error) = sent(Some("7"), answer, nothing.clone()).await;
        assert!(matches!(error, Error::Outdated { .. }), "{error:?}");
    }
    let held = refused(409, &json!([{"reason": "FieldManagerConflict", "field": ".data.a"}]));
    let (_, error) = sent(Some("7"), held, nothing).await;
    assert!(
        matches!(&error, Error::Apply { .. }) && error.is_conflict(),
        "{error:?}"
    );
}
