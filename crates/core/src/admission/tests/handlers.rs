//! The webhooks through the router, as the API server calls them.

use std::sync::Arc;

use axum::body::{Body, to_bytes};
use axum::http::{Request, StatusCode};
use proptest::prelude::*;
use runway_operator::trace::Traces;
use serde_json::{Value, json};
use tower::ServiceExt as _;

use super::providers;
use crate::admission::handlers::{MUTATE_PATH, VALIDATE_PATH, router};

async fn post(path: &str, body: impl Into<Body>) -> (StatusCode, Vec<u8>) {
    let registered = Arc::new(providers(json!({})));
    let request = Request::post(path)
        .header("content-type", "application/json")
        .body(body.into())
        .unwrap();
    // The namespace of `review`.
    let namespaces = "n".parse().unwrap();
    let response = router(move || registered.clone(), namespaces, Traces::default())
        .oneshot(request)
        .await
        .unwrap();
    let status = response.status();
    (
        status,
        to_bytes(response.into_body(), usize::MAX).await.unwrap().to_vec(),
    )
}

/// A request of the API server with a merge patch.
fn review(change: Value) -> Value {
    let mut request = json!({
        "uid": "u-1",
        "kind": {"group": "kubeairunway.ai", "version": "v1alpha1", "kind": "ModelDeployment"},
        "resource": {"group": "kubeairunway.ai", "version": "v1alpha1", "resource": "modeldeployments"},
        "name": "m",
        "namespace": "n",
        "operation": "CREATE",
        "userInfo": {"username": "somebody"},
        "object": object(json!({"model": {"id": "org/model"}, "engine": {"type": "vllm"}, "resources": {"gpu": {"count": 1}}})),
        "oldObject": null,
        "dryRun": false,
    });
    json_patch::merge(&mut request, &change);
    json!({"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "request": request})
}

fn object(spec: Value) -> Value {
    json!({"apiVersion": "kubeairunway.ai/v1alpha1", "kind": "ModelDeployment", "metadata": {"name": "m", "namespace": "n"}, "spec": spec})
}

async fn answer(path: &str, review: &Value) -> Value {
    let (status, body) = post(path, review.to_string()).await;
    assert_eq!(status, StatusCode::OK, "{}", String::from_utf8_lossy(&body));
    let answer: Value = serde_json::from_slice(&body).unwrap();
    assert_eq!(
        (&answer["apiVersion"], &answer["kind"]),
        (&json!("admission.k8s.io/v1"), &json!("AdmissionReview"))
    );
    assert_eq!(answer["response"]["uid"], review["request"]["uid"]);
    answer["response"].clone()
}

#[tokio::test]
async fn objects_in_namespaces_that_are_not_watched_are_admitted_unchanged() {
    let invalid = json!({"object": object(json!({"engine": null}))});
    for path in [MUTATE_PATH, VALIDATE_PATH] {
        let mut review = review(invalid.clone());
        let here = answer(path, &review).await;
        assert!(!here["patch"].is_null() || here["allowed"] == false, "{here}");
        review["request"]["namespace"] = json!("elsewhere");
        let elsewhere = answer(path, &review).await;
        assert!(
            elsewhere["patch"].is_null() && elsewhere["allowed"] == true,
            "{elsewhere}"
        );
    }
}

/// A manifest without the number of replicas, sent as a whole, must not undo what an autoscaler wrote.
#[tokio::test]
async fn replicas_of_an_autoscaled_model_survive_an_update() {
    let spec = |replicas: Value, image: &str, autoscaling: Value| {
        let scaling = json!({"replicas": replicas, "autoscaling": autoscaling});
        object(json!({"model": {"id": "org/model"}, "image": image, "scaling": scaling}))
    };
    let autoscaling = json!({"minReplicas": 2, "maxReplicas": 9, "queuedRequests": 3});
    for (autoscaling, expected) in [(autoscaling, 7), (Value::Null, 1)] {
        let (before, sent) = (
            spec(json!(7), "a", autoscaling.clone()),
            spec(Value::Null, "b", autoscaling),
        );
        let (after, _) = mutated(&review(
            json!({"operation": "UPDATE", "oldObject": before, "object": sent}),
        ))
        .await;
        assert_eq!(after["spec"]["scaling"]["replicas"], expected);
    }
}

/// The object after the mutating webhook, and whether there was a patch.
async fn mutated(review: &Value) -> (Value, bool) {
    let response = answer(MUTATE_PATH, review).await;
    assert_eq!(response["allowed"], true);
    let mut object = review["request"]["object"].clone();
    let Some(patch) = response.get("patch") else {
        return (object, false);
    };
    assert_eq!(response["patchType"], "JSONPatch");
    let patch: Vec<u8> = serde_json::from_value(patch.clone()).unwrap();
    json_patch::patch(
        &mut object,
        &serde_json::from_slice::<json_patch::Patch>(&patch).unwrap(),
    )
    .unwrap();
    (object, true)
}

#[tokio::test]
async fn a_new_object_gets_defaults_and_the_finalizer() {
    let (object, _) = mutated(&review(json!({}))).await;
    assert_eq!(
        object["metadata"]["finalizers"],
        json!(["kubeairunway.ai/provider-cleanup"])
    );
    assert_eq!(
        object["spec"],
        json!({
            "model": {"id": "org/model", "source": "huggingface"},
            "engine": {"type": "vllm"},
            "resources": {"gpu": {"count": 1, "type": "nvidia.com/gpu"}},
            "serving": {"mode": "aggregated"},
            "scaling": {"replicas": 1},
        })
    );
    let again = review(json!({ "object": object }));
    assert_eq!(mutated(&again).await, (object, false));
}

#[tokio::test]
async fn the_finalizer_joins_others_and_only_at_creation() {
    let with = |finalizers: Value| json!({"object": {"metadata": {"finalizers": finalizers}}});
    let finalizers = async |change: Value| mutated(&review(change)).await.0["metadata"]["finalizers"].clone();
    assert_eq!(
        finalizers(with(json!(["a/b"]))).await,
        json!(["a/b", "kubeairunway.ai/provider-cleanup"])
    );
    assert_eq!(
        finalizers(with(json!([]))).await,
        json!(["kubeairunway.ai/provider-cleanup"])
    );
    assert_eq!(
        finalizers(with(json!(["kubeairunway.ai/provider-cleanup"]))).await,
        json!(["kubeairunway.ai/provider-cleanup"])
    );
    let update = json!({"operation": "UPDATE", "oldObject": object(json!({"model": {"id": "org/other"}}))});
    assert_eq!(finalizers(update).await, json!(null));
}

#[tokio::test]
async fn fields_of_the_user_survive_to_the_byte() {
    let spec = json!({
        "model": {"id": "org/model", "servedName": null, "unknown": {"deep": [1, null, {}]}},
        "engine": {"type": "vllm", "args": {}, "trustRemoteCode": null},
        "serving": null,
        "scaling": {"replicas": 0, "prefill": null},
        "resources": {"gpu": {"count": 0, "type": ""}, "memory": "032Gi", "cpu": "+4"},
        "image": "",
        "env": [],
        "nodeSelector": {},
        "podTemplate": {},
        "secrets": null,
        "typo": 1.50,
    });
    let mut given = object(spec);
    given["metadata"]["labels"] = json!({});
    given["metadata"]["creationTimestamp"] = json!(null);
    given["status"] = json!({"anything": []});

    let mut expected = given.clone();
    expected["metadata"]["finalizers"] = json!(["kubeairunway.ai/provider-cleanup"]);
    expected["spec"]["model"]["source"] = json!("huggingface");
    expected["spec"]["serving"] = json!({"mode": "aggregated"});

    let mut review = review(json!({}));
    review["request"]["object"] = given;
    assert_eq!(mutated(&review).await.0.to_string(), expected.to_string());
}

#[tokio::test]
async fn deletion_and_our_own_writes_are_admitted_unread() {
    let bad = json!({"model": {}});
    let bad_update = |change: Value| {
        let mut whole = review(json!({"operation": "UPDATE"}));
        whole["request"]["object"] = object(bad.clone());
        whole["request"]["oldObject"] = object(json!({"model": {"id": "before"}}));
        json_patch::merge(&mut whole["request"], &change);
        whole
    };
    assert_eq!(answer(VALIDATE_PATH, &bad_update(json!({}))).await["allowed"], false);
    for change in [
        json!({"object": {"metadata": {"deletionTimestamp": "2026-01-01T00:00:00Z", "finalizers": []}}}),
        json!({"oldObject": object(bad.clone()), "object": {"metadata": {"finalizers": ["x/y"]}, "status": {"phase": "Failed"}}}),
        json!({"operation": "DELETE", "object": null}),
        json!({"subResource": "status"}),
        json!({"kind": {"kind": "Other"}}),
    ] {
        let mut review = bad_update(change.clone());
        if change["oldObject"].is_object() {
            review["request"]["oldObject"] = change["oldObject"].clone();
        }
        assert_eq!(answer(VALIDATE_PATH, &review).await["allowed"], true, "{change}");
        let response = answer(MUTATE_PATH, &review).await;
        assert_eq!(
            (&response["allowed"], response.get("patch")),
            (&json!(true), None),
            "{change}"
        );
    }
}

#[tokio::test]
async fn a_refusal_names_every_field() {
    let change = json!({"object": {"spec": {"model": {"id": null}, "engine": null}}, "dryRun": true});
    let response = answer(VALIDATE_PATH, &review(change)).await;
    assert_eq!(response["allowed"], false);
    assert_eq!(
        response["status"],
        json!({
            "status": "Failure",
            "reason": "Invalid",
            "code": 422,
            "message": "model.id is required when source is huggingface; engine.type is required",
            "details": {
                "name": "m",
                "group": "kubeairunway.ai",
                "kind": "ModelDeployment",
                "causes": [
                    {"reason": "FieldValueInvalid", "field": "spec.model.id", "message": "model.id is required when source is huggingface"},
                    {"reason": "FieldValueInvalid", "field": "spec.engine.type", "message": "engine.type is required"},
                ],
            },
        })
    );
}

#[tokio::test]
async fn a_warning_refuses_nothing() {
    let response = answer(
        VALIDATE_PATH,
        &review(json!({"object": {"spec": {"model": {"source": "custom", "servedName": "x"}}}})),
    )
    .await;
    assert_eq!(
        (&response["allowed"], &response["warnings"]),
        (&json!(true), &json!(["servedName is ignored for custom source"]))
    );
}

#[tokio::test]
async fn an_object_we_cannot_read_is_refused_with_the_path_and_never_patched() {
    for (change, message) in [
        (
            json!({"spec": {"scaling": {"replicas": "two"}}}),
            "spec.scaling.replicas: invalid type: string \"two\", expected i32",
        ),
        (
            json!({"spec": {"env": [{"name": 1}]}}),
            "spec.env[0].name: invalid type: integer `1`, expected a string",
        ),
        (
            json!({"spec": {"serving": {"mode": "sideways"}}}),
            "spec.serving.mode: unknown variant `sideways`, expected `aggregated` or `disaggregated`",
        ),
        (json!({"spec": {"model": null}}), "spec: missing field `model`"),
        (
            json!({"spec": "x"}),
            "spec: invalid type: string \"x\", expected struct ModelDeploymentSpec",
        ),
        (json!({"spec": null}), "spec is required: it says which model to serve"),
        (
            json!({"metadata": {"labels": {"a": 1}}}),
            "metadata.labels.a: invalid type: integer `1`, expected a string",
        ),
        (json!({"metadata": null}), "metadata is required: it names the object"),
    ] {
        let review = review(json!({ "object": change }));
        let response = answer(VALIDATE_PATH, &review).await;
        assert_eq!(
            (&response["allowed"], response["status"]["message"].as_str().unwrap()),
            (&json!(false), message)
        );
        let response = answer(MUTATE_PATH, &review).await;
        assert_eq!(
            (&response["allowed"], response.get("patch")),
            (&json!(true), None),
            "{message}"
        );
    }
}

#[tokio::test]
async fn a_body_that_is_not_a_review_is_rejected() {
    let deep = "[".repeat(100_000);
    let huge = format!("\"{}\"", "x".repeat(8 * 1024 * 1024));
    for path in [MUTATE_PATH, VALIDATE_PATH] {
        for body in [
            "",
            "{",
            "null",
            "[]",
            "{}",
            "\u{0}",
            r#"{"request": {}}"#,
            r#"{"request": {"uid": 1}}"#,
            r#"{"apiVersion": "admission.k8s.io/v1", "kind": "Review", "request": {"uid": "u"}}"#,
            r#"{"apiVersion": "admission.k8s.io/v2", "kind": "AdmissionReview", "request": {"uid": "u"}}"#,
            &deep,
        ] {
            assert_eq!(
                post(path, body.to_owned()).await.0,
                StatusCode::BAD_REQUEST,
                "{body:.20}"
            );
        }
        assert_eq!(post(path, vec![0xff_u8, 0xfe]).await.0, StatusCode::BAD_REQUEST);
        let mut skipped = br#"{"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "request": {"uid": "u"}, "skipped": "?"}"#.to_vec();
        let at = skipped.iter().position(|byte| *byte == b'?').unwrap();
        skipped[at] = 0xff;
        assert_eq!(post(path, skipped).await.0, StatusCode::BAD_REQUEST);
        assert_eq!(post(path, huge.clone()).await.0, StatusCode::PAYLOAD_TOO_LARGE);
        assert_eq!(post("/", String::new()).await.0, StatusCode::NOT_FOUND);
    }
}

#[tokio::test]
async fn a_spec_that_is_too_large_is_refused_with_its_size_and_never_patched() {
    let mut large = review(json!({}));
    large["request"]["object"]["spec"]["provider"] = json!({"overrides": {"a": vec![0; 1_500_000]}});
    let response = answer(VALIDATE_PATH, &large).await;
    assert_eq!(
        (&response["allowed"], &response["status"]["message"]),
        (
            &json!(false),
            &json!(
                "spec is 2.8 MiB of JSON, and at most 256 KiB are accepted: shorten spec.provider.overrides, spec.env or spec.engine.args"
            )
        )
    );
    let response = answer(MUTATE_PATH, &large).await;
    assert_eq!((&response["allowed"], response.get("patch")), (&json!(true), None));
}

#[tokio::test]
async fn metadata_that_are_too_large_are_refused_with_their_size() {
    let mut large = review(json!({}));
    large["request"]["object"]["metadata"]["annotations"] = json!({"a": "x".repeat(600 * 1024)});
    let response = answer(VALIDATE_PATH, &large).await;
    assert_eq!(
        response["status"]["message"],
        "metadata is 600 KiB of JSON, and at most 512 KiB are accepted: shorten its annotations"
    );
}

#[tokio::test]
async fn an_object_that_was_too_large_before_can_be_deleted_and_given_other_labels() {
    let mut large = review(json!({"operation": "UPDATE"}));
    large["request"]["object"]["spec"]["image"] = json!("x".repeat(300 * 1024));
    large["request"]["oldObject"] = large["request"]["object"].clone();
    large["request"]["object"]["metadata"]["labels"] = json!({"a": "b"});
    assert_eq!(answer(VALIDATE_PATH, &large).await["allowed"], true);
    large["request"]["object"]["spec"]["image"] = json!("y".repeat(300 * 1024));
    assert_eq!(answer(VALIDATE_PATH, &large).await["allowed"], false);
    large["request"]["object"]["metadata"]["deletionTimestamp"] = json!("2026-01-01T00:00:00Z");
    assert_eq!(answer(VALIDATE_PATH, &large).await["allowed"], true);
}

/// Any JSON, often similar to ours.
fn any_json() -> impl Strategy<Value = Value> {
    let leaf = prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        any::<i64>().prop_map(Value::from),
        ".{0,8}".prop_map(Value::from),
        Just(json!("vllm")),
        Just(json!("disaggregated")),
    ];
    let key = prop_oneof![
        Just("model"),
        Just("id"),
        Just("engine"),
        Just("type"),
        Just("serving"),
        Just("mode"),
        Just("scaling"),
        Just("replicas"),
        Just("prefill"),
        Just("gpu"),
        Just("count"),
        Just("resources"),
        Just("memory"),
        Just("env"),
        Just("name"),
        Just("provider"),
    ];
    leaf.prop_recursive(4, 32, 6, move |inner| {
        prop_oneof![
            proptest::collection::vec(inner.clone(), 0..3).prop_map(Value::from),
            proptest::collection::btree_map(key.clone().prop_map(str::to_owned), inner, 0..6)
                .prop_map(|map| Value::Object(map.into_iter().collect())),
        ]
    })
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    /// The mutating webhook only adds fields.
    #[test]
    fn any_spec_gets_a_response_and_keeps_its_fields(spec in any_json()) {
        let mut review = review(json!({}));
        review["request"]["object"]["spec"] = spec.clone();
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
        let (object, _) = runtime.block_on(mutated(&review));
        prop_assert!(keeps(&object["spec"], &spec), "{spec} became {}", object["spec"]);
        runtime.block_on(answer(VALIDATE_PATH, &review));
    }
}

/// Whether everything except nulls is unchanged.
fn keeps(after: &Value, before: &Value) -> bool {
    match (after, before) {
        (_, Value::Null) => true,
        (Value::Object(after), Value::Object(before)) => before
            .iter()
            .all(|(key, value)| after.get(key).is_some_and(|found| keeps(found, value))),
        (after, before) => after == before,
    }
}
