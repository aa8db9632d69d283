//! Properties of every plan, for any spec and any status of the pods.
#![allow(clippy::unwrap_used, clippy::panic, reason = "helpers of tests are tests")]

use proptest::prelude::*;
use runway_golden::reported;
use runway_llama_stack_operator::plan::plan;
use runway_operator::plan::Plan;
use runway_worlds::distribution::{Given, World};
use serde_json::{Value, json};

/// Sections of externalProviders, in the order of the fields.
const SECTIONS: [&str; 9] = [
    "inference",
    "safety",
    "agents",
    "vectorIo",
    "datasetIo",
    "scoring",
    "eval",
    "toolRuntime",
    "postTraining",
];

/// A server with up to five providers, and anything else it may have.
fn llsds() -> impl Strategy<Value = Value> {
    let providers = prop::collection::vec((0..SECTIONS.len(), any::<bool>()), 0..5);
    let user_config = prop::option::of(Just("config"));
    let storage = prop::option::of(prop_oneof!["1Gi", "2048Mi"]);
    (
        providers,
        user_config,
        storage,
        0..4_i32,
        any::<bool>(),
        prop::option::of(1_i32..5),
    )
        .prop_map(|(providers, user_config, storage, replicas, exposed, workers)| {
            let mut server = json!({ "distribution": { "image": "registry.example/distribution:1" } });
            for (index, (section, with_config)) in providers.into_iter().enumerate() {
                let mut provider =
                    json!({ "providerId": format!("p{index}"), "image": format!("registry.example/p{index}:1") });
                if with_config {
                    provider["config"] = json!({ "text": "$$ $(HOME)", "list": [1, null, { "a": true }] });
                }
                let list = &mut server["externalProviders"][SECTIONS[section]];
                if list.is_null() {
                    *list = json!([]);
                }
                list.as_array_mut().unwrap().push(provider);
            }
            if let Some(name) = user_config {
                server["userConfig"] = json!({ "configMapName": name });
            }
            if let Some(size) = storage {
                server["storage"] = json!({ "size": size });
            }
            if let Some(workers) = workers {
                server["workers"] = json!(workers);
            }
            json!({
                "apiVersion": "llamastack.io/v1alpha1", "kind": "LlamaStackDistribution",
                "metadata": { "name": "stack" },
                "spec": { "replicas": replicas, "server": server, "network": { "exposeRoute": exposed } },
            })
        })
}

/// Container states that a kubelet may report.
fn states() -> impl Strategy<Value = Value> {
    let ended = |code: i32, message: &'static str| json!({ "state": { "terminated": { "exitCode": code, "message": message } } });
    prop_oneof![
        Just(json!({ "state": { "waiting": { "reason": "PodInitializing" } } })),
        Just(json!({ "state": { "running": {} } })),
        Just(ended(0, "")),
        Just(ended(1, "")),
        Just(ended(
            1,
            "ERROR: Missing /lls-provider/lls-provider-spec.yaml in image x\n\nResolution: Add the file."
        )),
        Just(ended(
            1,
            "ERROR: Provider validation failed\n\nProvider: p0\nReason: none\n\nResolution: Build it anew."
        )),
        Just(json!({ "state": { "waiting": { "reason": "ImagePullBackOff", "message": "no" } } })),
        Just(
            json!({ "state": { "waiting": { "reason": "CrashLoopBackOff" } }, "lastState": { "terminated": { "exitCode": 3 } } })
        ),
        Just(json!({ "state": { "terminated": { "exitCode": 137, "reason": "OOMKilled" } } })),
        Just(json!({})),
    ]
}

/// Pods whose containers are each anywhere, also where a kubelet would never leave them.
fn pods() -> impl Strategy<Value = Vec<Value>> {
    let pod = (prop::collection::vec(states(), 8), any::<bool>(), any::<bool>()).prop_map(|(states, ready, old)| {
        let status = |(name, mut state): (String, Value)| {
            for (key, value) in [
                ("name", json!(name)),
                ("image", json!("x")),
                ("imageID", json!("")),
                ("ready", json!(ready)),
                ("restartCount", json!(0)),
            ] {
                state[key] = value;
            }
            state
        };
        let own = ["extract-distribution-config", "merge-config"].map(str::to_owned);
        let names = (0..5).map(|n| format!("external-provider-p{n}")).chain(own);
        let inits: Vec<Value> = names.zip(states.iter().cloned()).map(status).collect();
        let server = status(("llama-stack".to_owned(), states[7].clone()));
        json!({
            "template": if old { "old" } else { "" },
            "conditions": [{ "type": "Ready", "status": if ready { "True" } else { "False" } }],
            "initContainerStatuses": inits,
            "containerStatuses": [server],
        })
    });
    prop::collection::vec(pod, 0..3)
}

fn world(llsd: &Value, pods: &[Value], deployed: bool) -> World {
    let given: Given = serde_json::from_value(json!({
        "deployed": deployed,
        "pods": pods,
        "deployment": { "replicas": 1, "readyReplicas": pods.len() },
        "configMaps": { "config": { "run.yaml": "version: 2\n" } },
    }))
    .unwrap();
    World::new(serde_json::from_value(llsd.clone()).unwrap(), given)
}

/// The ids of the providers in the order of the specification.
fn ids(llsd: &Value) -> Vec<String> {
    let sections = SECTIONS
        .iter()
        .map(|section| &llsd["spec"]["server"]["externalProviders"][section]);
    let providers = sections.filter_map(Value::as_array).flatten();
    providers
        .map(|p| p["providerId"].as_str().unwrap().to_owned())
        .collect()
}

fn deployment(plan: &Plan) -> Option<&Value> {
    let deployment = plan.apply.iter().find(|a| a.resource.kind == "Deployment")?;
    Some(&deployment.object.data["spec"]["template"]["spec"])
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 200, ..ProptestConfig::default() })]

    /// One init container for each provider, in the order of the resource; then what merges, and nothing without providers.
    #[test]
    fn the_phases_are_in_order(llsd in llsds()) {
        let plan = plan(&world(&llsd, &[], false).observed());
        let pod = deployment(&plan).unwrap();
        let inits = pod["initContainers"].as_array().cloned().unwrap_or_default();
        let names: Vec<&str> = inits.iter().map(|c| c["name"].as_str().unwrap()).collect();
        let mut wanted: Vec<String> = ids(&llsd).iter().map(|id| format!("external-provider-{id}")).collect();
        if !wanted.is_empty() {
            if llsd["spec"]["server"]["userConfig"].is_null() {
                wanted.push("extract-distribution-config".to_owned());
            }
            wanted.push("merge-config".to_owned());
        }
        prop_assert_eq!(names, wanted);
        // Every volume that is mounted is there, and no two have one name.
        let volumes: Vec<&str> = pod["volumes"].as_array().unwrap().iter().map(|v| v["name"].as_str().unwrap()).collect();
        let unique: std::collections::BTreeSet<&str> = volumes.iter().copied().collect();
        prop_assert_eq!(unique.len(), volumes.len());
        for container in inits.iter().chain(pod["containers"].as_array().unwrap()) {
            for mount in container["volumeMounts"].as_array().into_iter().flatten() {
                prop_assert!(unique.contains(mount["name"].as_str().unwrap()), "{}", mount);
            }
        }
    }

    /// The state of pods changes the status, and never an object: a failed pod must not cause another one.
    #[test]
    fn pods_change_nothing_but_the_status(llsd in llsds(), pods in pods()) {
        let plan = plan(&world(&llsd, &pods, true).observed());
        prop_assert!(plan.apply.iter().all(|a| a.unchanged), "{}", reported::plan(&plan));
        prop_assert!(plan.delete.is_empty());
    }

    /// The same world gives the same plan, and a plan that is carried out leaves nothing to do.
    #[test]
    fn a_plan_ends(llsd in llsds(), pods in pods(), deployed in any::<bool>()) {
        let mut world = world(&llsd, &pods, deployed);
        let first = plan(&world.observed());
        prop_assert_eq!(reported::plan(&first), reported::plan(&plan(&world.observed())));
        world.carry_out(&first);
        // That the objects are there is news.
        let second = plan(&world.observed());
        world.carry_out(&second);
        let third = plan(&world.observed());
        prop_assert!(third.is_silent(), "{}", reported::plan(&third));
    }

    /// The status lists every provider once and in order. A failed one has a reason and a remedy. Ready means that all are ready.
    #[test]
    fn the_status_is_complete(llsd in llsds(), pods in pods()) {
        let mut world = world(&llsd, &pods, true);
        let plan = plan(&world.observed());
        world.carry_out(&plan);
        let status = world.llsd.status.unwrap();
        let reported: Vec<&str> = status.external_providers.iter().map(|p| p.provider_id.as_str()).collect();
        prop_assert_eq!(reported, ids(&llsd));
        for provider in &status.external_providers {
            let provider = json!(provider);
            let failed = provider["phase"] == "Failed";
            for key in ["reason", "message", "resolution"] {
                let said = provider[key].as_str().is_some_and(|text| !text.is_empty());
                prop_assert!(said || !failed, "{} has no {}", provider, key);
            }
            prop_assert!(provider["image"].is_string() && provider["initContainerName"].is_string());
        }
        let ready = status.conditions.iter().any(|c| c.type_ == "Ready" && c.status == "True");
        let phase = json!(status.phase);
        prop_assert_eq!(ready, phase == "Ready");
        if ready {
            prop_assert!(status.external_providers.iter().all(|p| json!(p)["phase"] == "Ready"), "{:?}", status.external_providers);
        }
    }
}
