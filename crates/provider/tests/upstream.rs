//! Detection of upstream schemas in live CRDs.
#![allow(
    clippy::unwrap_used,
    clippy::panic,
    clippy::print_stderr,
    clippy::needless_pass_by_value,
    reason = "helpers of tests are tests; json! values are written where they are used"
)]

use std::path::Path;

use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use runway_golden::{ssa, yaml};
use runway_provider::conformance::acme::Acme;
use runway_provider::upstream::{crd_name, detect};
use runway_provider::{CONFIG_MAP, Installed, Kind, Provider, Schema, State, Upstream};
use serde_json::{Value, json};

/// Acme's server: `v2` first, then `v1`.
fn server() -> Upstream {
    Acme("acme").upstreams().remove(0)
}

fn v2() -> Value {
    json!({"type": "object", "properties": {
        "spec": {"type": "object", "properties": {
            "model": {"type": "object", "properties": {"id": {"type": "string"}}},
            "zone": {"type": "string"},
            "flagsFrom": {"type": "string"},
            "env": {"type": "array", "items": {"type": "object", "properties": {"name": {"type": "string"}}}},
        }},
        "status": {"type": "object", "properties": {"state": {"type": "string"}}},
    }})
}

fn v1() -> Value {
    json!({"type": "object", "properties": {
        "spec": {"type": "object", "properties": {"modelId": {"type": "string"}}},
        "status": {"type": "object", "properties": {"state": {"type": "string"}}},
    }})
}

fn version(name: &str, schema: &Value) -> Value {
    json!({"name": name, "served": true, "storage": false, "schema": {"openAPIV3Schema": schema}})
}

fn stored(name: &str, schema: &Value) -> Value {
    let mut version = version(name, schema);
    version["storage"] = true.into();
    version
}

fn crd(versions: Value) -> CustomResourceDefinition {
    serde_json::from_value(json!({
        "metadata": {"name": "modelservers.acme.example"},
        "spec": {
            "group": "acme.example", "scope": "Namespaced", "versions": versions,
            "names": {"kind": "ModelServer", "plural": "modelservers"},
        },
    }))
    .unwrap()
}

fn with_webhook(versions: Value) -> CustomResourceDefinition {
    let mut crd = serde_json::to_value(crd(versions)).unwrap();
    crd["spec"]["conversion"] = json!({"strategy": "Webhook"});
    serde_json::from_value(crd).unwrap()
}

fn found(versions: Value) -> State {
    detect(&server(), Some(&crd(versions)))
}

/// The version in use and its hash.
fn known(state: State) -> (String, String) {
    match state {
        State::Known { version, hash } => (version, hash),
        other => panic!("{other:?}"),
    }
}

/// Differences from the known schema.
fn unknown(state: State) -> (Vec<String>, Vec<String>) {
    match state {
        State::Unknown { served, problems } => (served, problems),
        other => panic!("{other:?}"),
    }
}

fn with(change: &Value) -> Value {
    let mut schema = v2();
    ssa::patch(&mut schema, change);
    schema
}

#[test]
fn the_newest_known_version_is_used_where_both_are_only_served() {
    assert_eq!(
        known(found(json!([version("v1", &v1()), version("v2", &v2())]))).0,
        "v2"
    );
}

#[test]
fn storage_version_goes_before_a_newer_one_without_a_conversion_webhook() {
    assert_eq!(known(found(json!([stored("v1", &v1()), version("v2", &v2())]))).0, "v1");
    assert_eq!(known(found(json!([version("v1", &v1()), stored("v2", &v2())]))).0, "v2");
}

#[test]
fn newest_known_version_is_used_with_a_conversion_webhook() {
    let found = |versions| known(detect(&server(), Some(&with_webhook(versions)))).0;
    assert_eq!(found(json!([stored("v1", &v1()), version("v2", &v2())])), "v2");
    assert_eq!(found(json!([version("v1", &v1()), stored("v2", &v2())])), "v2");
    let changed = with(&json!({"properties": {"spec": {"properties": {"zone": {"type": "integer"}}}}}));
    assert_eq!(found(json!([version("v2", &changed), stored("v1", &v1())])), "v1");
    assert_eq!(found(json!([version("v3", &v2()), stored("v1", &v1())])), "v1");
}

#[test]
fn a_served_version_is_used_if_the_storage_version_does_not_fit() {
    let changed = with(&json!({"properties": {"spec": {"properties": {"zone": {"type": "integer"}}}}}));
    assert_eq!(
        known(found(json!([version("v1", &v1()), stored("v2", &changed)]))).0,
        "v1"
    );
}

#[test]
fn a_version_that_is_not_served_does_not_count() {
    let mut off = stored("v2", &v2());
    off["served"] = false.into();
    assert_eq!(known(found(json!([version("v1", &v1()), off.clone()]))).0, "v1");
    assert_eq!(unknown(found(json!([off]))), (vec![], vec![]));
}

#[test]
fn a_newer_version_alone_is_unknown() {
    assert_eq!(
        unknown(found(json!([stored("v3", &v2())]))),
        (vec!["v3".to_owned()], vec![])
    );
}

#[test]
fn nothing_installed_is_missing() {
    assert_eq!(detect(&server(), None), State::Missing);
}

#[test]
fn a_needed_field_that_is_gone_or_of_another_type_is_named() {
    for (change, problem) in [
        (
            json!({"properties": {"spec": {"properties": {"zone": null}}}}),
            "spec.zone does not exist",
        ),
        (
            json!({"properties": {"spec": {"properties": {"zone": {"type": "integer"}}}}}),
            "spec.zone is of type integer, expected string",
        ),
        (
            json!({"properties": {"spec": {"properties": {"model": {"properties": {"id": null}}}}}}),
            "spec.model.id does not exist",
        ),
        (
            json!({"properties": {"spec": {"properties": {"env": {"items": {"properties": {"name": {"type": "object"}}}}}}}}),
            "spec.env[].name is of type object, expected string",
        ),
        (json!({"properties": {"status": null}}), "status.state does not exist"),
    ] {
        let (served, problems) = unknown(found(json!([stored("v2", &with(&change))])));
        assert_eq!((served, problems), (vec!["v2".to_owned()], vec![problem.to_owned()]));
    }
}

#[test]
fn problems_are_those_of_the_version_that_is_tried_first() {
    let (_, problems) = unknown(found(json!([
        version("v2", &json!({"type": "object"})),
        stored("v1", &json!({"type": "object"}))
    ])));
    assert_eq!(problems, ["spec.modelId does not exist", "status.state does not exist"]);
}

#[test]
fn fields_that_are_not_used_do_not_change_the_hash() {
    let (_, plain) = known(found(json!([stored("v2", &v2())])));
    for change in [
        json!({"properties": {"spec": {"properties": {"added": {"type": "string"}}}}}),
        json!({"properties": {"spec": {"description": "other words", "properties": {"zone": {"maxLength": 3}}}}}),
        json!({"properties": {"spec": {"required": ["model"]}}}),
    ] {
        assert_eq!(known(found(json!([stored("v2", &with(&change))]))).1, plain, "{change}");
    }
    assert_eq!(
        known(found(json!([version("v1", &v1()), stored("v2", &v2())]))).1,
        plain
    );
}

#[test]
fn newest_schema_is_the_one_in_its_crd() {
    let newest = Installed::newest(&[server()]).state(server().kind);
    assert_eq!(newest, found(json!([stored("v2", &v2())])));
}

#[test]
fn release_of_the_operator_is_read_from_the_registration() {
    let registered = |status: Value| {
        let config = json!({"metadata": {"name": "acme"}, "spec": {}, "status": status});
        let config = serde_json::from_value(config).unwrap();
        let installed = Installed::newest(&[server()]).registered(Some(&config));
        assert_eq!(installed.version(server().kind).as_deref(), Some("v2"));
        installed.release().map(ToString::to_string)
    };
    assert_eq!(
        registered(json!({"upstreamRelease": "1.6.1"})).as_deref(),
        Some("1.6.1")
    );
    assert_eq!(registered(json!({"upstreamRelease": "latest"})), None);
    assert_eq!(registered(json!({})), None);
}

#[test]
fn every_path_exists_below_a_field_that_preserves_unknown_fields() {
    let open = json!({"type": "object", "x-kubernetes-preserve-unknown-fields": true});
    let schema = json!({"type": "object", "properties": {"spec": open, "status": open}});
    let (_, hash) = known(found(json!([stored("v2", &schema)])));
    // A schema without types is not the one that was checked.
    assert_ne!(hash, known(found(json!([stored("v2", &v2())]))).1);
    let string_or_number =
        json!({"properties": {"spec": {"properties": {"zone": {"type": null, "x-kubernetes-int-or-string": true}}}}});
    known(found(json!([stored("v2", &with(&string_or_number))])));
}

#[test]
fn a_map_is_stepped_into() {
    const MAPPED: &[Schema] = &[Schema {
        version: "v1",
        fields: &[("spec.services{}.replicas", "integer")],
    }];
    let upstream = Upstream {
        kind: server().kind,
        schemas: MAPPED,
    };
    let schema = |value: Value| {
        let spec =
            json!({"type": "object", "properties": {"services": {"type": "object", "additionalProperties": value}}});
        crd(json!([stored(
            "v1",
            &json!({"type": "object", "properties": {"spec": spec}})
        )]))
    };
    let number = json!({"type": "object", "properties": {"replicas": {"type": "integer"}}});
    known(detect(&upstream, Some(&schema(number))));
    let text = json!({"type": "object", "properties": {"replicas": {"type": "string"}}});
    assert_eq!(
        unknown(detect(&upstream, Some(&schema(text)))).1,
        ["spec.services{}.replicas is of type string, expected integer"]
    );
}

#[test]
fn kinds_of_kubernetes_itself_need_no_crd() {
    let deployment = Kind::new("apps", "v1", "Deployment", "deployments");
    for kind in [CONFIG_MAP, deployment] {
        let state = detect(&Upstream { kind, schemas: &[] }, None);
        assert_eq!(known(state).0, "v1");
        assert_eq!(Installed::default().version(kind).as_deref(), Some("v1"));
    }
    assert_eq!(Installed::default().version(server().kind), None);
}

/// KAITO's own CRDs, which are not part of the project. Without them the test reports it and checks nothing.
#[test]
fn real_crds_of_kaito_are_distinguished() {
    const WORKSPACE: &[Schema] = &[Schema {
        version: "v1beta1",
        fields: &[
            ("resource.labelSelector", "object"),
            ("resource.count", "integer"),
            ("inference.preset.name", "string"),
            ("inference.template", "any"),
            ("status.conditions[].type", "string"),
        ],
    }];
    let upstream = Upstream {
        kind: Kind::new("kaito.sh", "v1beta1", "Workspace", "workspaces"),
        schemas: WORKSPACE,
    };
    let Some(crd) = real("kaito.sh_workspaces.yaml") else {
        return;
    };
    assert_eq!(crd["metadata"]["name"], crd_name(upstream.kind));
    let detected = |crd: &Value| detect(&upstream, Some(&serde_json::from_value(crd.clone()).unwrap()));
    let (version, hash) = known(detected(&crd));
    assert_eq!(version, "v1beta1");

    let at = crd["spec"]["versions"]
        .as_array()
        .unwrap()
        .iter()
        .position(|v| v["name"] == "v1beta1")
        .unwrap();
    let changed = |change: Value| {
        let mut changed = crd.clone();
        ssa::patch(
            &mut changed["spec"]["versions"][at]["schema"]["openAPIV3Schema"]["properties"],
            &change,
        );
        detected(&changed)
    };
    assert_eq!(known(changed(json!({"added": {"type": "string"}}))), (version, hash));
    assert_eq!(
        unknown(changed(
            json!({"resource": {"properties": {"count": {"type": "string"}}}})
        ))
        .1,
        ["resource.count is of type string, expected integer"]
    );
    assert_eq!(
        unknown(changed(json!({"inference": {"properties": {"preset": null}}}))).1,
        ["inference.preset.name does not exist"]
    );
}

fn real(file: &str) -> Option<Value> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("../../../shared/crds")
        .join(file);
    if path.exists() {
        return Some(yaml(&path));
    }
    eprintln!("SKIPPED: nothing is checked against {file}, which is not there");
    None
}
