//! The web console against a real API server: sign-in, refusals, live updates, and that no user sees or does more than the API
//! server permits.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use k8s_openapi::api::core::v1::{Pod, ServiceAccount};
use k8s_openapi::api::rbac::v1::ClusterRoleBinding;
use kube::api::{DeleteParams, ListParams, Patch, PatchParams, PostParams};
use kube::{Api, Client};
use runway_api::daily_usage::CONFIG_MAP;
use runway_api::{ModelDeployment, condition, labels};
use runway_client::access::{self, Right};
use runway_client::cluster::Cluster;
use runway_client::target::Target;
use runway_manifests as manifests;
use runway_operator::client::ClientArgs;
use runway_operator::clock;
use runway_product_testbed::served::{Answer, Served, User, csrf};
use runway_product_testbed::*;
use runway_testbed::{Node, Options, eventually, images, node, tokens};
use runway_web::server::LoginOptions;
use serde_json::json;
use tokio_util::task::AbortOnDropHandle;

/// A change must be in the browser by then; a machine that is busy may take longer now and then.
const LIVE: Duration = Duration::from_millis(200);

/// Longest time to wait before the absence of a change is certain: changes arrive within [`LIVE`].
const SILENCE: Duration = Duration::from_secs(1);

#[tokio::test(flavor = "multi_thread")]
async fn on_loopback_only_the_key_lets_in_and_only_own_forms_change_things() -> Result<()> {
    let bed = Bed::start_with(Upstream::Kaito, false).await?;
    bed.create(gemma("one")).await?;
    let served = Served::start(&bed.cluster, None).await?;

    let stranger = served.ask("GET", "/", &[], "").await?;
    ensure!(
        stranger.code == 401 && !stranger.body.contains("/deployments"),
        "{stranger:?}"
    );
    let wrong = served.ask("GET", "/?key=0000", &[], "").await?;
    ensure!(wrong.code == 401 && wrong.header("set-cookie").is_none(), "{wrong:?}");
    let rebound = served.ask("GET", "/healthy", &[("host", "evil.example")], "").await?;
    ensure!(rebound.code == 421, "a name that is not ours is refused: {rebound:?}");

    let key = served.url.split_once("?key=").context("no key")?.1.to_owned();
    let entered = served.ask("GET", &format!("/?key={key}"), &[], "").await?;
    let cookie = entered.header("set-cookie").context("no cookie")?.to_owned();
    ensure!(
        entered.code == 303 && entered.header("location") == Some("/"),
        "{entered:?}"
    );
    for part in ["HttpOnly", "SameSite=Strict", "Path=/"] {
        ensure!(cookie.contains(part), "{cookie}");
    }
    let cookie = cookie.split(';').next().unwrap_or_default().to_owned();

    let list = served.ask("GET", "/deployments", &[("cookie", &cookie)], "").await?;
    ensure!(
        list.code == 200 && list.body.contains("/deployments/default/one"),
        "{list:?}"
    );
    let policy = list.header("content-security-policy").unwrap_or_default();
    ensure!(
        policy.contains("default-src 'none'") && !policy.contains("unsafe"),
        "{policy}"
    );
    for (name, value) in [
        ("x-content-type-options", "nosniff"),
        ("referrer-policy", "same-origin"),
        ("cache-control", "no-store"),
        ("x-frame-options", "DENY"),
    ] {
        ensure!(list.header(name) == Some(value), "{name}: {:?}", list.header(name));
    }
    ensure!(
        !list.body.contains(" style=") && !list.body.contains("<script>"),
        "nothing is inline"
    );

    let csrf = csrf(&list.body)?;
    let origin = served.origin();
    let pause = "/deployments/default/one/pause";
    let form = |csrf: &str| format!("csrf={csrf}");
    let refused = [
        (vec![("cookie", cookie.as_str())], form(&csrf)),
        (
            vec![("cookie", cookie.as_str()), ("origin", "http://evil.example")],
            form(&csrf),
        ),
        (vec![("cookie", cookie.as_str()), ("origin", "null")], form(&csrf)),
        (
            vec![("cookie", cookie.as_str()), ("origin", origin.as_str())],
            form("0"),
        ),
        (
            vec![("cookie", cookie.as_str()), ("origin", origin.as_str())],
            String::new(),
        ),
        (vec![("origin", origin.as_str())], form(&csrf)),
    ];
    for (headers, body) in refused {
        let answer = served.ask("POST", pause, &headers, &body).await?;
        ensure!(matches!(answer.code, 401 | 403), "{headers:?} {body}: {answer:?}");
        ensure!(
            !bed.deployments().get("one").await?.is_paused(),
            "{headers:?} {body} changed something"
        );
    }
    let own = [("cookie", cookie.as_str()), ("origin", origin.as_str())];
    let paused = served.ask("POST", pause, &own, &form(&csrf)).await?;
    ensure!(
        paused.code == 303 && bed.deployments().get("one").await?.is_paused(),
        "{paused:?}"
    );
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn changes_are_shown_at_once_and_so_is_an_unreachable_cluster() -> Result<()> {
    let mut bed = Bed::start_with(Upstream::Kaito, false).await?;
    bed.create(gemma("one")).await?;
    let served = Served::start(&bed.cluster, None).await?;
    let cookie = served.enter().await?;
    ensure!(
        served
            .ask("GET", "/deployments", &[("cookie", &cookie)], "")
            .await?
            .code
            == 200
    );
    let log = bed.cluster.audit().await?;
    let mark = log.mark().await?;

    // Many browsers, and none of them costs the API server a watch.
    let mut streams = Vec::new();
    for _ in 0..20 {
        streams.push(served.live("kinds=modeldeployments", &cookie).await?);
    }
    for stream in &mut streams {
        stream.next("cluster").await?;
    }
    let mut times = Vec::new();
    for round in 0..10 {
        bed.patch("one", json!({"metadata": {"labels": {"round": round.to_string()}}}))
            .await?;
        let start = Instant::now();
        for stream in &mut streams {
            ensure!(stream.next("change").await? == "modeldeployments/default/one");
        }
        let page = served
            .ask("GET", "/deployments/default/one/yaml", &[("cookie", &cookie)], "")
            .await?;
        ensure!(
            page.body.contains(&format!("round: &#34;{round}&#34;"))
                || page.body.contains(&format!("round: '{round}'"))
                || page.body.contains(&format!("&quot;{round}&quot;")),
            "{}",
            page.body
        );
        times.push(start.elapsed());
    }
    times.sort();
    println!(
        "change to 20 browsers and the page that shows it: median {:?}, slowest {:?}",
        times[5], times[9]
    );
    ensure!(times[5] < LIVE, "the median of {times:?} is not under {LIVE:?}");
    let watches = log.since(mark).await?;
    let asked = watches
        .iter()
        .filter(|r| r.resource == "modeldeployments" && r.verb == "watch" && r.user == "console")
        .count();
    ensure!(
        asked == 0,
        "{asked} watches for 20 browsers, beside the one that is there"
    );

    bed.cluster.stop_apiserver().await;
    let mut stream = streams.pop().context("no stream")?;
    ensure!(
        stream.next("cluster").await?.starts_with("down"),
        "the stream does not say that the cluster is away"
    );
    let page = served.ask("GET", "/deployments", &[("cookie", &cookie)], "").await?;
    ensure!(
        page.body.contains("has not responded") && page.body.contains("/deployments/default/one"),
        "{page:?}"
    );
    bed.cluster.start_apiserver().await?;
    // A server that starts answers some questions before others: it may be called away once more.
    while stream.next("cluster").await? != "up" {}
    eventually(PATIENCE, async || {
        let page = served.ask("GET", "/deployments", &[("cookie", &cookie)], "").await?;
        ensure!(!page.body.contains("has not responded"), "{page:?}");
        Ok(())
    })
    .await
}

#[tokio::test(flavor = "multi_thread")]
async fn a_form_shows_what_would_be_made_and_marks_what_is_wrong_before_anything_is_written() -> Result<()> {
    let bed = Bed::start_with(Upstream::Kaito, false).await?;
    let _kaito = bed.kaito().await?;
    let served = Served::start(&bed.cluster, None).await?;
    let user = served.user().await?;
    every_wrong_field_is_marked(&user).await?;

    let right = [
        ("metadata.name", "one"),
        ("metadata.namespace", "default"),
        ("spec.model.id", "google/gemma"),
        ("spec.engine.type", "llamacpp"),
        ("spec.image", "example.org/llama:1"),
    ];
    let preview = user
        .post("/new", &[&right[..], &[("then", "preview")]].concat())
        .await?;
    ensure!(
        preview.code == 200
            && preview.body.contains("kind: InferenceSet")
            && preview.body.contains("<strong>kaito</strong>"),
        "{}",
        preview.body
    );
    // The cluster has no nodes.
    let fit = user.post("/new", &[&right[..], &[("then", "fit")]].concat()).await?;
    ensure!(
        fit.code == 200 && fit.body.contains("The pods do not fit") && fit.body.contains("0/0 nodes"),
        "{}",
        fit.body
    );
    // While one types, what is empty is still to come; what is wrong is wrong.
    let typing = [
        ("metadata.name", "one"),
        ("spec.scaling.replicas", "x"),
        ("then", "preview"),
    ];
    let typing = user.post("/new", &typing).await?;
    ensure!(
        typing.code == 200 && marked(&typing) == ["spec.scaling.replicas"],
        "{:?}",
        marked(&typing)
    );
    let nowhere = user
        .post(
            "/new",
            &[&right[..1], &[("metadata.namespace", "nowhere")], &right[2..]].concat(),
        )
        .await?;
    ensure!(
        nowhere.code == 404 && marked(&nowhere) == ["metadata.namespace"],
        "{}",
        nowhere.body
    );
    ensure!(
        bed.deployments().list(&ListParams::default()).await?.items.is_empty(),
        "a preview wrote"
    );

    let warned = user.post("/new", &right).await?;
    ensure!(
        warned.code == 422 && warned.body.contains("Deploy anyway") && marked(&warned).is_empty(),
        "{}",
        warned.body
    );
    ensure!(
        bed.deployments().list(&ListParams::default()).await?.items.is_empty(),
        "created although it does not fit"
    );
    let right = [&right[..], &[("then", "anyway")]].concat();
    let made = user.post("/new", &right).await?;
    ensure!(
        made.code == 303 && made.header("location") == Some("/deployments/default/one"),
        "{made:?}"
    );
    let again = user.post("/new", &right).await?;
    ensure!(
        again.code == 409 && marked(&again) == ["metadata.name"],
        "{}",
        again.body
    );

    an_edit_is_put_over_the_version_that_was_seen_only(&bed, &user, &right[2..]).await
}

/// The fields of an answered form that are marked as wrong.
fn marked(answer: &Answer) -> Vec<String> {
    let tags = answer.body.split('<').filter(|tag| tag.contains("aria-invalid"));
    let name = |tag: &str| Some(tag.split_once("name=\"")?.1.split_once('"')?.0.to_owned());
    tags.filter_map(name).collect()
}

async fn every_wrong_field_is_marked(user: &User<'_>) -> Result<()> {
    let empty = user.post("/new", &[]).await?;
    ensure!(empty.code == 422, "{empty:?}");
    ensure!(
        marked(&empty) == ["spec.model.id", "metadata.namespace"],
        "{:?}",
        marked(&empty)
    );
    let wrong = [
        ("metadata.name", "Not A Name"),
        ("metadata.namespace", "default"),
        ("spec.model.id", "google/gemma"),
        ("spec.engine.type", "vlm"),
        ("spec.provider.name", "kaitoo"),
        ("spec.scaling.replicas", "-1"),
        ("spec.resources.gpu.count", "many"),
        ("spec.resources.memory", "lots"),
        ("spec.engine.contextLength", "0"),
        ("spec.nodeSelector", "=x"),
        ("spec.env", "A: b"),
    ];
    let all_wrong = user.post("/new", &wrong).await?;
    let expected: Vec<&str> = wrong
        .iter()
        .map(|(field, _)| *field)
        .filter(|f| !["metadata.namespace", "spec.model.id"].contains(f))
        .collect();
    let mut found = marked(&all_wrong);
    found.sort_by_key(|field| wrong.iter().position(|(f, _)| f == field));
    ensure!(
        all_wrong.code == 422 && found == expected,
        "{found:?}: {}",
        all_wrong.body
    );
    for (field, value) in wrong {
        ensure!(all_wrong.body.contains(value), "{field} is not kept");
    }
    Ok(())
}

async fn an_edit_is_put_over_the_version_that_was_seen_only(
    bed: &Bed,
    user: &User<'_>,
    right: &[(&str, &str)],
) -> Result<()> {
    let page = user.get("/deployments/default/one/edit").await?;
    let version = page
        .body
        .split_once(r#"name="version" value=""#)
        .context("no version")?
        .1;
    let version = version.split('"').next().unwrap_or_default().to_owned();
    bed.patch("one", json!({"spec": {"scaling": {"replicas": 3}}})).await?;
    let change = [right, &[("spec.scaling.replicas", "2"), ("version", version.as_str())]].concat();
    let stale = user.post("/deployments/default/one/edit", &change).await?;
    ensure!(
        stale.code == 409 && stale.body.contains("Another user has changed the ModelDeployment"),
        "{}",
        stale.body
    );
    let replicas = async || -> Result<Option<i32>> {
        let spec = bed.deployments().get("one").await?.spec;
        Ok(spec.scaling.and_then(|s| s.replicas))
    };
    ensure!(replicas().await? == Some(3), "a stale form wrote");
    let version = bed
        .deployments()
        .get("one")
        .await?
        .metadata
        .resource_version
        .context("no version")?;
    let change = [right, &[("spec.scaling.replicas", ""), ("version", version.as_str())]].concat();
    let saved = user.post("/deployments/default/one/edit", &change).await?;
    ensure!(
        saved.code == 303 && replicas().await?.is_none(),
        "what is empty is taken out: {saved:?}"
    );
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_model_is_talked_to_through_the_api_server_with_a_script_and_without() -> Result<()> {
    let Ok(address) = runway_testbed::own_address() else {
        println!("SKIPPED: a talk with a model, because this machine has no address but its loopback");
        return Ok(());
    };
    let bed = Bed::start_with(Upstream::None, false).await?;
    let model = tokio::net::TcpListener::bind((address, 0)).await?;
    let port = model.local_addr()?.port();
    let _model = AbortOnDropHandle::new(tokio::spawn(async { axum::serve(model, echoing_model()).await }));
    bed.create(gemma("one")).await?;
    let endpoint = json!({"status": {"phase": "Running", "endpoint": {"service": "one", "port": port}}});
    bed.deployments()
        .patch_status("one", &PatchParams::default(), &Patch::Merge(&endpoint))
        .await?;
    let ports = json!([{"port": port}]);
    bed.apply(&json!({"apiVersion": "v1", "kind": "Service", "metadata": {"name": "one"}, "spec": {"ports": ports}}))
        .await?;
    // The API server proxies to pods only: for it, this is one.
    let spec =
        json!({"containers": [{"name": "main", "image": "example.org/model"}], "automountServiceAccountToken": false});
    bed.apply(&json!({"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": "default"}}))
        .await?;
    bed.apply(&json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "one-0"}, "spec": spec}))
        .await?;
    let ip = json!({"status": {"podIP": address, "podIPs": [{"ip": address}]}});
    let pod = Api::<Pod>::namespaced(bed.admin.clone(), NAMESPACE)
        .patch_status("one-0", &PatchParams::default(), &Patch::Merge(&ip))
        .await?;
    let target = json!({"kind": "Pod", "name": "one-0", "namespace": NAMESPACE, "uid": pod.metadata.uid});
    let place = json!([{"addresses": [{"ip": address, "targetRef": target}], "ports": ports}]);
    bed.apply(&json!({"apiVersion": "v1", "kind": "Endpoints", "metadata": {"name": "one"}, "subsets": place}))
        .await?;

    let served = Served::start(&bed.cluster, None).await?;
    let user = served.user().await?;
    let chat = "/deployments/default/one/chat";
    let history =
        json!([{"role": "user", "content": "first"}, {"role": "assistant", "content": "1: first"}]).to_string();
    let said = [("message", "second"), ("history", &history)];
    // The API server hears of the Service a moment later.
    let page = eventually(PATIENCE, async || {
        let page = user.post(chat, &said).await?;
        ensure!(page.code == 200, "{page:?}");
        Ok(page)
    })
    .await?;
    for said in [
        r#"<li class="aside">Hm</li>"#,
        r#"<li class="assistant">3: second of gemma</li>"#,
        r#"<li class="note">the answer was cut off"#,
    ] {
        ensure!(page.body.contains(said), "{}", page.body);
    }
    let answer = user.post(chat, &[&said[..], &[("stream", "true")]].concat()).await?;
    let lines: Vec<serde_json::Value> = answer
        .body
        .lines()
        .map(serde_json::from_str)
        .collect::<Result<_, _>>()?;
    let of_kind = |kind: &str| {
        lines
            .iter()
            .filter(|part| part["kind"] == kind)
            .filter_map(|part| part["text"].as_str())
            .collect::<String>()
    };
    ensure!(
        answer.code == 200 && of_kind("text") == "3: second of gemma",
        "{answer:?}"
    );
    ensure!(
        of_kind("reasoning") == "Hm" && of_kind("note").contains("cut off"),
        "{answer:?}"
    );
    let refused = user.post(chat, &[("message", "fail"), ("stream", "true")]).await?;
    ensure!(refused.body.contains("out of memory"), "{refused:?}");
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn the_log_of_a_pod_on_a_real_node_is_shown_and_followed() -> Result<()> {
    if node::skip("the log of a pod in the console") {
        return Ok(());
    }
    let node = Node::start(Options {
        crds: manifests::crds().into(),
        ..Options::default()
    })
    .await?;
    let client = node.client("somebody", &["system:masters"]).await?;
    let image = images::busybox()?;
    node.import_image(&image.archive).await?;
    let models: Api<ModelDeployment> = Api::namespaced(client.clone(), NAMESPACE);
    models
        .create(&PostParams::default(), &serde_json::from_value(gemma("one"))?)
        .await?;
    let script = "i=0; while true; do echo line $i of many; i=$((i+1)); sleep 0.5; done";
    let pod = json!({
        "metadata": {"name": "one-0", "labels": {labels::DEPLOYMENT: "one"}},
        "spec": {"containers": [{"name": "main", "image": image.name, "command": ["sh", "-c", script]}]},
    });
    let pods: Api<Pod> = Api::namespaced(client, NAMESPACE);
    let pod: Pod = serde_json::from_value(pod)?;
    // The default ServiceAccount may come a moment later than the node.
    eventually(PATIENCE, async || Ok(pods.create(&PostParams::default(), &pod).await?)).await?;

    let served = Served::start(&node, None).await?;
    let user = served.user().await?;
    eventually(PATIENCE, async || {
        let page = user.get("/deployments/default/one/logs").await?;
        ensure!(page.code == 200 && page.body.contains("line 0 of many"), "{page:?}");
        Ok(())
    })
    .await?;
    let page = user.get("/deployments/default/one/usage").await?;
    let reason = "Pod/one-0: it has no port of an engine";
    ensure!(page.code == 200 && page.body.contains(reason), "{page:?}");
    let mut lines = user.follow("/deployments/default/one/logs/follow?pod=one-0").await?;
    let later = async {
        while let Some(line) = lines.next_line().await? {
            // Not yet written when the page was.
            if line.contains("line 9 of many") {
                return Ok(());
            }
        }
        bail!("the log ended")
    };
    tokio::time::timeout(PATIENCE, later)
        .await
        .context("nothing follows")??;
    node.stop().await
}

/// A server that speaks as a model does: it answers with the number of what was said, and the last of it.
fn echoing_model() -> axum::Router {
    use axum::routing::{get, post};
    let models = get(async || axum::Json(json!({"data": [{"id": "gemma"}]})));
    let chat = post(async |axum::Json(asked): axum::Json<serde_json::Value>| {
        let said = asked["messages"].as_array().cloned().unwrap_or_default();
        let last = said.last().and_then(|m| m["content"].as_str()).unwrap_or_default();
        if last == "fail" {
            return format!("data: {}\n\n", json!({"error": {"message": "out of memory"}}));
        }
        let words = [
            format!("{}: ", said.len()),
            last.to_owned(),
            format!(" of {}", asked["model"].as_str().unwrap_or_default()),
        ];
        let event = |delta, reason| json!({"choices": [{"delta": delta, "finish_reason": reason}]}).to_string();
        let thought = [event(json!({"reasoning_content": "Hm"}), json!(null))];
        let answer = words.map(|word| event(json!({"content": word}), json!(null)));
        let end = [event(json!({}), json!("length")), "[DONE]".to_owned()];
        let events = thought.into_iter().chain(answer).chain(end);
        let events: Vec<_> = events.map(|data| format!("data: {data}\r\n\r\n")).collect();
        events.concat()
    });
    axum::Router::new()
        .route("/v1/models", models)
        .route("/v1/chat/completions", chat)
}

#[tokio::test(flavor = "multi_thread")]
async fn changes_of_an_upstream_object_are_on_the_page_of_changes() -> Result<()> {
    let bed = Bed::start().await?;
    let _core = bed.core().await?;
    let _kaito = bed.kaito().await?;
    let _simulator = bed.simulator().await?;
    bed.admission_is_up().await?;
    bed.create(gemma("one")).await?;
    bed.running("one").await?;
    let served = Served::start(&bed.cluster, None).await?;
    let user = served.user().await?;
    let page = "/deployments/default/one/diff";
    let quiet = user.get(page).await?;
    ensure!(quiet.body.contains("No changes"), "{quiet:?}");

    // While it is paused, no controller reverts it.
    let paused = json!({"metadata": {"annotations": {labels::PAUSED: "true"}}});
    bed.patch("one", paused).await?;
    bed.status("one", "paused", |s| {
        s.conditions.iter().any(|c| c.type_ == condition::PAUSED)
    })
    .await?;
    let edit = json!({"spec": {"template": {"inference": {"template": {"spec": {"containers": [{"name": "model", "image": "evil:1"}]}}}}}});
    bed.inference_sets()
        .patch("one", &PatchParams::default(), &Patch::Merge(&edit))
        .await?;
    let changed = user.get(page).await?;
    for said in [
        "InferenceSet/one",
        "would change",
        "spec.template.inference.template.spec.containers[model].image",
        "evil:1",
        "ghcr.io/sozercan/llama-cpp-runner:latest",
        "the changes below would follow a resume",
    ] {
        ensure!(changed.body.contains(said), "no {said}: {changed:?}");
    }
    let stays = bed.inference_sets().get("one").await?.data;
    let image = &stays["spec"]["template"]["inference"]["template"]["spec"]["containers"][0]["image"];
    ensure!(image == "evil:1", "a look has changed it: {image}");
    Ok(())
}

/// A page or a change, and what the API server is asked about it.
struct Route {
    method: &'static str,
    path: &'static str,
    right: Right,
    /// The ModelDeployment is read first.
    reads: bool,
    shows: Shows,
}

/// Sign that a user has the permission.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Shows {
    /// It is answered, or refused.
    Answer,
    /// There is nothing that could answer, for those who may ask; others are refused.
    NoAnswer,
    /// It is answered, or there is no such page for this user.
    Page,
    /// Everybody gets the page, with this in it for those who may.
    Text(&'static str),
    /// Everybody gets the stream, with what changes for those who may.
    Changes,
    /// Everybody may.
    ToAll,
}

impl Shows {
    /// Whether a response shows that the user has the permission, and whether it is how the console refuses.
    fn in_answer(self, answer: &Answer) -> (bool, bool) {
        let is = |codes: &[u16]| codes.contains(&answer.code);
        match self {
            Self::Answer => (is(&[200, 303]), is(&[403])),
            Self::NoAnswer => (!is(&[403]), is(&[403])),
            Self::Page => (is(&[200]), is(&[404])),
            Self::Text(text) => (answer.body.contains(text), is(&[200])),
            Self::ToAll | Self::Changes => (is(&[200]), is(&[200])),
        }
    }
}

/// Every route behind the session, but for the one that ends it, which comes last.
fn routes() -> Vec<Route> {
    let route = |method, path, verb| Route {
        method,
        path,
        right: in_team_a_may(verb),
        reads: method == "GET",
        shows: Shows::Answer,
    };
    let page = |path, right, shows| Route {
        right,
        reads: false,
        shows,
        ..route("GET", path, "")
    };
    let operated = |method, path, right| Route {
        right,
        reads: false,
        ..route(method, path, "")
    };
    let actors_may = |verb| may("asya.sh", "asyncactors", Some("team-a"), verb);
    let usage_may = || may("", "configmaps", Some(manifests::NAMESPACE), "get");
    let stacks_may = |verb| may("llamastack.io", "llamastackdistributions", Some("team-a"), verb);
    let mut all = vec![
        page("/", in_team_a_may("list"), Shows::Text("team-a/one")),
        page(
            "/deployments",
            in_team_a_may("list"),
            Shows::Text("/deployments/team-a/one"),
        ),
        route("GET", "/deployments/team-a/one", "get"),
        route("GET", "/deployments/team-a/one/diff", "get"),
        route("GET", "/deployments/team-a/one/logs", "get"),
        route("GET", "/deployments/team-a/one/usage", "get"),
        route("GET", "/deployments/team-a/one/chat", "get"),
        route("GET", "/deployments/team-a/one/yaml", "get"),
        route("GET", "/deployments/team-a/one/edit", "get"),
        route("GET", "/deployments/team-a/one/delete", "get"),
        route("POST", "/deployments/team-a/one/pause", "patch"),
        route("POST", "/deployments/team-a/one/resume", "patch"),
        // An empty form says nothing of the cluster.
        page("/new", in_team_a_may("create"), Shows::ToAll),
        route("POST", "/new", "create"),
        Route {
            reads: true,
            ..route("POST", "/deployments/team-a/one/edit", "patch")
        },
        Route {
            right: may("", "pods", Some("team-a"), "list"),
            shows: Shows::NoAnswer,
            ..route("GET", "/deployments/team-a/one/logs/follow", "")
        },
        Route {
            right: may("", "services/proxy", Some("team-a"), "create"),
            reads: true,
            shows: Shows::NoAnswer,
            ..route("POST", "/deployments/team-a/one/chat", "")
        },
        route("POST", "/deployments/team-a/one/delete", "delete"),
        page(
            "/providers",
            may("kubeairunway.ai", "inferenceproviderconfigs", None, "list"),
            Shows::Text("id=\"registered\""),
        ),
        page("/usage", usage_may(), Shows::Text("team-a-counted")),
        page("/usage.csv", usage_may(), Shows::Answer),
        page("/actors", actors_may("list"), Shows::Text("/actors/team-a/ask")),
        page("/actors/team-a/ask", actors_may("list"), Shows::Page),
        page("/new/actors", actors_may("create"), Shows::ToAll),
        operated("POST", "/new/actors", actors_may("create")),
        operated("GET", "/actors/team-a/ask/edit", actors_may("get")),
        operated("POST", "/actors/team-a/ask/edit", actors_may("update")),
        operated("GET", "/actors/team-a/ask/delete", actors_may("get")),
        operated("POST", "/actors/team-a/ask/pause", actors_may("patch")),
        operated("POST", "/actors/team-a/ask/resume", actors_may("patch")),
        operated("POST", "/actors/team-a/ask/delete", actors_may("delete")),
        page("/stacks", stacks_may("list"), Shows::Text("/stacks/team-a/stack")),
        page("/stacks/team-a/stack", stacks_may("list"), Shows::Page),
        operated("GET", "/stacks/team-a/stack/edit", stacks_may("get")),
        operated("GET", "/stacks/team-a/stack/delete", stacks_may("get")),
        operated("POST", "/stacks/team-a/stack/pause", stacks_may("patch")),
        operated("POST", "/stacks/team-a/stack/resume", stacks_may("patch")),
        operated("POST", "/stacks/team-a/stack/delete", stacks_may("delete")),
        page(
            "/admin",
            may("apps", "deployments", Some(manifests::NAMESPACE), "list"),
            Shows::Text("the-controller"),
        ),
        page("/live", in_team_a_may("watch"), Shows::Changes),
    ];
    all.extend(routes_of_dead_letters());
    all
}

/// Routes of dead letters, in a cluster without asya-gateway.
fn routes_of_dead_letters() -> [Route; 5] {
    let route = |method, path, verb, shows| Route {
        method,
        path,
        right: may("", "services/proxy", Some(manifests::NAMESPACE), verb),
        reads: false,
        shows,
    };
    [
        route(
            "GET",
            "/actors/team-a/ask/dead-letters",
            "get",
            Shows::Text("cannot reach asya-gateway"),
        ),
        route(
            "GET",
            "/actors/team-a/ask/dead-letters/show?id=1",
            "get",
            Shows::NoAnswer,
        ),
        route("GET", "/actors/team-a/ask/dead-letters/delete", "", Shows::ToAll),
        route(
            "POST",
            "/actors/team-a/ask/dead-letters/redrive",
            "create",
            Shows::NoAnswer,
        ),
        route(
            "POST",
            "/actors/team-a/ask/dead-letters/delete",
            "create",
            Shows::NoAnswer,
        ),
    ]
}

/// The console's own routes behind the session, read from where they are made: `GET /deployments/{namespace}/{name}`.
fn routes_of_the_console() -> Result<BTreeSet<String>> {
    const SERVER: &str = include_str!("../../web/src/server.rs");
    let (_, inside) = SERVER
        .split_once("let inside = Router::new()")
        .context("the routes have moved")?;
    let (inside, _) = inside.split_once(".fallback(").context("the routes have no end")?;
    let mut found = BTreeSet::new();
    for route in inside.split(".route(").skip(1) {
        let path = route.split('"').nth(1).context("a route without a path")?;
        for (call, method) in [
            ("get(", "GET"),
            ("post(", "POST"),
            ("put(", "PUT"),
            ("delete(", "DELETE"),
            ("any(", "ANY"),
        ] {
            let calls = |sign: &str| route.contains(&format!("{sign}{call}"));
            if calls(" ") || calls(".") || calls("\n") {
                found.insert(format!("{method} {path}"));
            }
        }
    }
    Ok(found)
}

/// Every route before the session: a path to request, and the codes for a client without a session.
const OUTSIDE: [(&str, &str, &str, &[u16]); 6] = [
    ("GET", "/healthz", "/healthz", &[200]),
    ("GET", "/assets/{version}/{name}", "/assets/0/console.css", &[200]),
    ("GET", "/login", "/login", &[200]),
    ("POST", "/login", "/login", &[401]),
    ("GET", "/login/issuer", "/login/issuer", &[303]),
    ("GET", "CALLBACK", "/login/callback", &[303]),
];

/// Responses of each route without a session: none contains data of the cluster.
async fn clients_without_a_session_see_nothing(served: &Served) -> Result<()> {
    let origin = served.origin();
    for (method, _, path, codes) in OUTSIDE {
        let answer = served.ask(method, path, &[("origin", &origin)], "").await?;
        ensure!(codes.contains(&answer.code), "{method} {path}: {answer:?}");
        ensure!(!answer.body.contains("team-a"), "{method} {path}: {answer:?}");
    }
    for cookie in ["", "kubeairunway-0=0"] {
        for route in routes() {
            let headers = [("origin", origin.as_str()), ("cookie", cookie)];
            let answer = served.ask(route.method, route.path, &headers, "").await?;
            let refused = matches!(answer.code, 303 | 401) && !answer.body.contains("team-a");
            ensure!(refused, "{} {}: {answer:?}", route.method, route.path);
            ensure!(
                answer.code == 401 || answer.header("location") == Some("/login"),
                "{answer:?}"
            );
        }
    }
    Ok(())
}

#[test]
fn every_route_before_the_session_is_in_the_table() -> Result<()> {
    const SERVER: &str = include_str!("../../web/src/server.rs");
    let (_, outside) = SERVER.split_once("guard::session))").context("the session has moved")?;
    let (outside, _) = outside.split_once(".merge(inside)").context("the routes have moved")?;
    let mut found = BTreeSet::new();
    for route in outside.split(".route(").skip(1) {
        let (path, calls) = route.split_once(',').context("a route without a handler")?;
        for (call, method) in [("get(", "GET"), ("post(", "POST")] {
            if calls.contains(&format!(" {call}")) || calls.contains(&format!(".{call}")) {
                found.insert(format!("{method} {}", path.trim().trim_matches('"')));
            }
        }
    }
    let table: BTreeSet<String> = OUTSIDE
        .iter()
        .map(|(method, route, ..)| format!("{method} {route}"))
        .collect();
    ensure!(found == table, "in the console: {found:?}; in the table: {table:?}");
    Ok(())
}

#[test]
fn every_route_of_the_console_is_in_the_table() -> Result<()> {
    let named = |route: &Route| {
        let path = ["/team-a/one", "/team-a/ask", "/team-a/stack"]
            .iter()
            .fold(route.path.to_owned(), |path, object| {
                path.replace(object, "/{namespace}/{name}")
            });
        let path = path.split('?').next().unwrap_or_default().to_owned();
        // Routes of every part of the console.
        let path = match path.rsplit_once('/') {
            Some((of, _)) if of.ends_with("/dead-letters") => path,
            Some((of, "edit")) if !of.starts_with("/deployments/") => "/{part}/{namespace}/{name}/edit".to_owned(),
            Some(("/new", _)) => "/new/{part}".to_owned(),
            Some((_, action @ ("pause" | "resume" | "delete"))) => format!("/{{part}}/{{namespace}}/{{name}}/{action}"),
            _ => path,
        };
        format!("{} {path}", route.method)
    };
    let mut table: BTreeSet<String> = routes().iter().map(named).collect();
    table.insert("POST /logout".to_owned());
    let console = routes_of_the_console()?;
    ensure!(console.len() > 20, "{console:?}");
    ensure!(
        console == table,
        "not in the table: {:?}; not in the console: {:?}",
        console.difference(&table).collect::<Vec<_>>(),
        table.difference(&console).collect::<Vec<_>>()
    );
    Ok(())
}

fn may(group: &str, plural: &str, namespace: Option<&str>, verb: &str) -> Right {
    Right {
        group: group.to_owned(),
        plural: plural.to_owned(),
        namespace: namespace.map(str::to_owned),
        verb: verb.to_owned(),
    }
}

/// The right to do something with ModelDeployments of team-a.
fn in_team_a_may(verb: &str) -> Right {
    may("kubeairunway.ai", "modeldeployments", Some("team-a"), verb)
}

/// Objects to show beside ModelDeployments.
async fn things_to_see(bed: &Bed) -> Result<()> {
    for component in [manifests::asya(), manifests::llama_stack()] {
        for crd in component.crds {
            bed.apply(&serde_json::to_value(crd)?).await?;
        }
    }
    let image = "registry.invalid/image:1";
    let template = json!({"metadata": {"labels": {"app": "the-controller"}},
        "spec": {"containers": [{"name": "manager", "image": image}]}});
    let objects = [
        json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": manifests::NAMESPACE}}),
        json!({"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": "the-controller", "namespace": manifests::NAMESPACE},
            "spec": {"replicas": 0, "selector": {"matchLabels": {"app": "the-controller"}}, "template": template}}),
        json!({"apiVersion": "kubeairunway.ai/v1alpha1", "kind": "InferenceProviderConfig", "metadata": {"name": "registered"},
            "spec": {"capabilities": {"engines": ["vllm"], "servingModes": ["aggregated"], "gpuSupport": true}}}),
    ];
    let now = clock::now().to_string();
    let (today, _) = now.split_once('T').context("a time without a date")?;
    let usage = json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": CONFIG_MAP, "namespace": manifests::NAMESPACE},
        "data": {today: "[\"team-a-counted\",\"one\",\"key:shop\",1,2,3,0]"}});
    for object in objects.iter().chain([&usage]).chain(&operated_objects()) {
        eventually(PATIENCE, async || bed.apply(object).await.map(drop)).await?;
    }
    Ok(())
}

/// An actor and a distribution of team-a.
fn operated_objects() -> [serde_json::Value; 2] {
    [
        json!({"apiVersion": "asya.sh/v1alpha1", "kind": "AsyncActor", "metadata": {"name": "ask", "namespace": "team-a"},
            "spec": {"transport": "rabbitmq", "workload": {"template": {"spec": {"containers": [{"name": "asya-runtime", "image": "registry.invalid/image:1"}]}}}}}),
        json!({"apiVersion": "llamastack.io/v1alpha1", "kind": "LlamaStackDistribution", "metadata": {"name": "stack", "namespace": "team-a"},
            "spec": {"server": {"distribution": {"name": "starter"}}}}),
    ]
}

#[tokio::test(flavor = "multi_thread")]
async fn an_actor_and_a_distribution_are_edited_paused_resumed_and_deleted() -> Result<()> {
    let bed = Bed::start_with(Upstream::Kaito, false).await?;
    bed.apply(&json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "team-a"}}))
        .await?;
    things_to_see(&bed).await?;
    let served = Served::start(&bed.cluster, None).await?;
    let user = served.user().await?;
    let cluster = Cluster::of(bed.admin.clone(), "", "team-a".parse()?);
    for (page, target, annotation) in [
        ("/actors/team-a/ask", "asya/ask", labels::ASYA_PAUSED),
        ("/stacks/team-a/stack", "llsd/stack", labels::llama_stack::PAUSED),
    ] {
        let target: Target = target.parse()?;
        let is_paused = async || {
            let object = cluster.get(&target, &cluster.namespace).await?;
            anyhow::Ok(labels::is_set(&object.metadata, annotation))
        };
        let shows = async |text: &str| {
            eventually(PATIENCE, async || {
                let shown = user.get(page).await?;
                ensure!(shown.code == 200 && shown.body.contains(text), "no {text}: {shown:?}");
                Ok(())
            })
            .await
        };
        is_edited(&user, page).await?;
        let edited = cluster.get(&target, &cluster.namespace).await?;
        let labels = edited.metadata.labels.unwrap_or_default();
        ensure!(labels.contains_key("edited"), "{labels:?}");
        shows(&format!("action=\"{page}/pause\"")).await?;
        let paused = user.post(&format!("{page}/pause"), &[]).await?;
        ensure!(
            paused.code == 303 && paused.header("location") == Some(page) && is_paused().await?,
            "{paused:?}"
        );
        shows(&format!("action=\"{page}/resume\"")).await?;
        let resumed = user.post(&format!("{page}/resume"), &[]).await?;
        ensure!(resumed.code == 303 && !is_paused().await?, "{resumed:?}");

        let asked = user.get(&format!("{page}/delete")).await?;
        ensure!(
            asked.code == 200 && asked.body.contains("cannot be undone"),
            "{asked:?}"
        );
        let another = user.post(&format!("{page}/delete"), &[("uid", "another")]).await?;
        ensure!(another.code == 409, "not the one that was shown: {another:?}");
        let uid = cluster
            .get(&target, &cluster.namespace)
            .await?
            .metadata
            .uid
            .context("no uid")?;
        ensure!(asked.body.contains(&uid), "{asked:?}");
        let deleted = user.post(&format!("{page}/delete"), &[("uid", &uid)]).await?;
        ensure!(
            deleted.code == 303 && cluster.find(&target, &cluster.namespace).await?.is_none(),
            "{deleted:?}"
        );
    }
    Ok(())
}

/// The page of an object with a form for its manifest, which is based on a version.
async fn is_edited(user: &User<'_>, page: &str) -> Result<()> {
    let [actor, stack] = operated_objects();
    let mut object = if page.starts_with("/actors") { actor } else { stack };
    let edit = format!("{page}/edit");
    let form = user.get(&edit).await?;
    ensure!(
        form.body
            .contains(&format!("kind: {}", object["kind"].as_str().unwrap_or_default())),
        "{form:?}"
    );
    let post = async |manifest: &serde_json::Value, more: &[(&str, &str)]| {
        let manifest = manifest.to_string();
        user.post(&edit, &[&[("manifest", manifest.as_str())], more].concat())
            .await
    };
    object["metadata"]["labels"] = json!({ "edited": "true" });
    let checked = post(&object, &[("then", "check")]).await?;
    ensure!(
        checked.code == 200 && checked.body.contains("would accept it"),
        "{checked:?}"
    );
    let stale = post(&object, &[("version", "1")]).await?;
    ensure!(stale.code == 409 && stale.body.contains("Open it again"), "{stale:?}");
    let mut other = object.clone();
    other["metadata"]["name"] = json!("other");
    let renamed = post(&other, &[]).await?;
    ensure!(
        renamed.code == 422 && renamed.body.contains("cannot change"),
        "{renamed:?}"
    );
    let saved = post(&object, &[]).await?;
    ensure!(saved.code == 303 && saved.header("location") == Some(page), "{saved:?}");
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn with_login_everybody_may_what_the_api_server_lets_them_and_nothing_else() -> Result<()> {
    let bed = Bed::start_with(Upstream::Kaito, false).await?;
    for namespace in ["team-a", "team-b"] {
        bed.apply(&json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": namespace}}))
            .await?;
    }
    things_to_see(&bed).await?;
    let ours = json!(["kubeairunway.ai", "asya.sh", "llamastack.io"]);
    let everything = json!([
        {"apiGroups": ours, "resources": ["*"], "verbs": ["*"]},
        {"apiGroups": [""], "resources": ["pods", "pods/log", "services/proxy"], "verbs": ["*"]},
        {"apiGroups": ["apps"], "resources": ["deployments"], "verbs": ["list"]},
    ]);
    let view = json!([{"apiGroups": ours, "resources": ["*"], "verbs": ["get", "list", "watch"]}]);
    let make = json!([{"apiGroups": ["kubeairunway.ai"], "resources": ["modeldeployments"], "verbs": ["create"]}]);
    // Name, rules, and the namespace they are bound in; none: everywhere.
    let people = [
        ("admin", &everything, None),
        ("viewer", &view, None),
        ("editor-a", &everything, Some("team-a")),
        ("viewer-a", &view, Some("team-a")),
        ("maker-a", &make, Some("team-a")),
        ("editor-b", &everything, Some("team-b")),
    ];
    let login = LoginOptions {
        sites: vec!["https://console.test".parse()?],
        ..LoginOptions::default()
    };
    let served = Served::start(&bed.cluster, Some(login)).await?;
    let outside = served.ask("GET", "/deployments", &[], "").await?;
    ensure!(
        outside.code == 303 && outside.header("location") == Some("/login"),
        "{outside:?}"
    );
    clients_without_a_session_see_nothing(&served).await?;
    let origin = served.origin();
    let bad = served
        .ask("POST", "/login", &[("origin", &origin)], "token=nonsense")
        .await?;
    ensure!(bad.code == 401 && bad.body.contains("rejects this token"), "{bad:?}");

    let mut differences = Vec::new();
    for (name, rules, namespace) in people {
        let (token, client) = person(&bed, name, rules, namespace).await?;
        let entered = served
            .ask("POST", "/login", &[("origin", &origin)], &format!("token={token}"))
            .await?;
        let cookie = entered
            .header("set-cookie")
            .with_context(|| format!("{name}: {entered:?}"))?
            .to_owned();
        ensure!(!cookie.contains(&token), "the token is not in the cookie");
        let cookie = cookie.split(';').next().unwrap_or_default().to_owned();
        let overview = served.ask("GET", "/", &[("cookie", &cookie)], "").await?;
        ensure!(overview.code == 200, "{name}: {overview:?}");
        let csrf = csrf(&overview.body)?;
        for route in routes() {
            let uids = what_may_be_deleted(&bed).await?;
            let uid = uids.get(&route.right.plural).map_or("", String::as_str);
            let body = body_of(&route, name, &csrf, uid);
            let readable = access::may(&client, &in_team_a_may("get")).await?;
            let may = access::may(&client, &route.right).await? && (readable || !route.reads);
            let headers = [("cookie", cookie.as_str()), ("origin", origin.as_str())];
            let (did, refused, said) = if route.shows == Shows::Changes {
                let reported = hears_of_changes(&bed, &served, &cookie, may).await?;
                (reported, true, "the stream".to_owned())
            } else {
                let answer = served.ask(route.method, route.path, &headers, &body).await?;
                let (did, refused) = route.shows.in_answer(&answer);
                (did, refused, format!("{} {}", answer.code, answer.body))
            };
            let may = may || route.shows == Shows::ToAll;
            println!(
                "{name:<9} {:<4} {:<36} {} {}",
                route.method,
                route.path,
                said.split(' ').next().unwrap_or_default(),
                if may { "may" } else { "may not" }
            );
            if did != may || (!may && !refused) {
                differences.push(format!(
                    "{name} {} {}: can-i says {may}, and: {said}",
                    route.method, route.path
                ));
            }
        }
        let headers = [("cookie", cookie.as_str()), ("origin", origin.as_str())];
        let left = served.ask("POST", "/logout", &headers, &format!("csrf={csrf}")).await?;
        let after = served.ask("GET", "/deployments", &[("cookie", &cookie)], "").await?;
        if !matches!(left.code, 200 | 303) || after.code != 303 {
            differences.push(format!("{name} is not out: {left:?} {after:?}"));
        }
    }
    if !differences.is_empty() {
        bail!("{} differences:\n{}", differences.len(), differences.join("\n"));
    }
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn credentials_that_are_revoked_see_nothing_more_and_rights_end_with_the_next_request() -> Result<()> {
    let bed = Bed::start_with(Upstream::Kaito, false).await?;
    bed.apply(&json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "team-a"}}))
        .await?;
    bed.apply(&in_team_a("one")).await?;
    let login = LoginOptions {
        sites: vec!["https://console.test".parse()?],
        ..LoginOptions::default()
    };
    let served = Served::start(&bed.cluster, Some(login)).await?;
    let view = json!([{"apiGroups": ["kubeairunway.ai"], "resources": ["*"], "verbs": ["get", "list", "watch"]}]);
    let (token, client) = person(&bed, "viewer", &view, None).await?;
    let [first, second] = [sign_in(&served, &token).await?, sign_in(&served, &token).await?];
    let list = async |cookie: &str| served.ask("GET", "/deployments", &[("cookie", cookie)], "").await;
    for cookie in [&first, &second] {
        let page = list(cookie).await?;
        ensure!(page.body.contains("/deployments/team-a/one"), "{page:?}");
    }

    // Signing out ends the stream of that session, and of no other.
    let (mut left, mut stays) = (served.live("", &first).await?, served.live("", &second).await?);
    left.next("cluster").await?;
    stays.next("cluster").await?;
    let user = served.with_cookie(&first).await?;
    user.post("/logout", &[]).await?;
    let start = Instant::now();
    ensure!(
        left.next("nothing").await.is_err() && start.elapsed() < SILENCE,
        "{:?}",
        start.elapsed()
    );

    // A revoked permission applies at once, and the session stays.
    let bindings: Api<ClusterRoleBinding> = Api::all(bed.admin.clone());
    bindings.delete("test-viewer", &DeleteParams::default()).await?;
    eventually(PATIENCE, async || {
        ensure!(!access::may(&client, &in_team_a_may("list")).await?, "still allowed");
        Ok(())
    })
    .await?;
    tokio::time::sleep(SILENCE).await;
    let page = list(&second).await?;
    ensure!(page.code == 200 && !page.body.contains("team-a/one"), "{page:?}");
    ensure!(page.body.contains("You may not list ModelDeployments"), "{page:?}");

    // A credential that is gone ends the session and its stream.
    let accounts: Api<ServiceAccount> = Api::namespaced(bed.admin.clone(), "team-a");
    accounts.delete("viewer", &DeleteParams::default()).await?;
    eventually(PATIENCE, async || {
        let asked = access::may(&client, &in_team_a_may("list")).await;
        ensure!(
            matches!(asked, Err(kube::Error::Api(status)) if status.code == 401),
            "still known"
        );
        Ok(())
    })
    .await?;
    tokio::time::sleep(SILENCE).await;
    let page = list(&second).await?;
    ensure!(
        page.code == 303 && page.header("location") == Some("/login"),
        "{page:?}"
    );
    let start = Instant::now();
    ensure!(
        stays.next("nothing").await.is_err() && start.elapsed() < SILENCE,
        "{:?}",
        start.elapsed()
    );
    Ok(())
}

/// The cookie of a new session.
async fn sign_in(served: &Served, token: &str) -> Result<String> {
    let origin = served.origin();
    let entered = served
        .ask("POST", "/login", &[("origin", &origin)], &format!("token={token}"))
        .await?;
    let cookie = entered.header("set-cookie").with_context(|| format!("{entered:?}"))?;
    Ok(cookie.split(';').next().unwrap_or_default().to_owned())
}

/// The objects that the routes are about are there, whatever the last route did. Returns their uids by the plurals of their kinds.
async fn what_may_be_deleted(bed: &Bed) -> Result<BTreeMap<String, String>> {
    let mut uids = BTreeMap::new();
    for object in [&in_team_a("one")].into_iter().chain(&operated_objects()) {
        let applied = bed.apply(object).await?;
        let kind = applied.types.context("no kind")?.kind;
        uids.insert(kind.to_lowercase() + "s", applied.metadata.uid.context("no uid")?);
    }
    let endpoint = json!({"status": {"endpoint": {"service": "one", "port": 80}}});
    Api::<ModelDeployment>::namespaced(bed.admin.clone(), "team-a")
        .patch_status("one", &PatchParams::default(), &Patch::Merge(&endpoint))
        .await?;
    Ok(uids)
}

/// Request as a browser sends it.
fn body_of(route: &Route, name: &str, csrf: &str, uid: &str) -> String {
    match (route.method, route.path) {
        ("GET", _) => String::new(),
        (_, "/new") => format!(
            "csrf={csrf}&metadata.name={name}-made&metadata.namespace=team-a&spec.model.id=org/a&spec.engine.type=vllm&spec.resources.gpu.count=1"
        ),
        (_, "/new/actors") => manifest_of(&format!("{name}-made"), csrf),
        (_, "/actors/team-a/ask/edit") => manifest_of("ask", csrf),
        (_, path) if path.ends_with("chat") => format!("csrf={csrf}&message=hello"),
        (_, path) if path.ends_with("edit") => {
            format!("csrf={csrf}&spec.model.id=org/by-{name}&spec.engine.type=vllm&spec.resources.gpu.count=1")
        }
        (_, path) if path.contains("dead-letters") => format!("csrf={csrf}&all=true"),
        (_, path) if path.ends_with("delete") => format!("csrf={csrf}&uid={uid}"),
        _ => format!("csrf={csrf}"),
    }
}

/// A form with the manifest of an actor of team-a.
fn manifest_of(name: &str, csrf: &str) -> String {
    let [mut actor, _] = operated_objects();
    actor["metadata"]["name"] = json!(name);
    actor["metadata"]["labels"] = json!({ "edited": "true" });
    let manifest: String = form_urlencoded::byte_serialize(actor.to_string().as_bytes()).collect();
    format!("csrf={csrf}&manifest={manifest}")
}

/// Whether a change of a ModelDeployment of team-a comes to the browser. What should come is waited for longer.
async fn hears_of_changes(bed: &Bed, served: &Served, cookie: &str, should: bool) -> Result<bool> {
    let mut stream = served.live("kinds=modeldeployments", cookie).await?;
    stream.next("cluster").await?;
    let mut changed = in_team_a("one");
    let nonce = std::time::SystemTime::now()
        .duration_since(std::time::UNIX_EPOCH)?
        .as_nanos();
    changed["metadata"]["labels"] = json!({"changed": nonce.to_string()});
    bed.apply(&changed).await?;
    Ok(
        tokio::time::timeout(if should { PATIENCE } else { SILENCE }, stream.next("change"))
            .await
            .is_ok(),
    )
}

fn in_team_a(name: &str) -> serde_json::Value {
    let mut object = gemma(name);
    object["metadata"]["namespace"] = json!("team-a");
    object
}

/// A user with a token, and a client with that token.
async fn person(bed: &Bed, name: &str, rules: &serde_json::Value, namespace: Option<&str>) -> Result<(String, Client)> {
    bed.apply(
        &json!({"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": name, "namespace": "team-a"}}),
    )
    .await?;
    let subject = json!([{"kind": "ServiceAccount", "name": name, "namespace": "team-a"}]);
    let role = format!("test-{name}");
    bed.apply(&json!({"apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRole", "metadata": {"name": role}, "rules": rules})).await?;
    let reference = json!({"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": role});
    let binding = match namespace {
        None => {
            json!({"apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRoleBinding", "metadata": {"name": role}, "roleRef": reference, "subjects": subject})
        }
        Some(namespace) => {
            json!({"apiVersion": "rbac.authorization.k8s.io/v1", "kind": "RoleBinding", "metadata": {"name": role, "namespace": namespace}, "roleRef": reference, "subjects": subject})
        }
    };
    bed.apply(&binding).await?;
    let token = tokens::token(&bed.admin, "team-a", name, &[]).await?;
    let args = ClientArgs {
        kubeconfig: Some(bed.cluster.admin()?),
        context: None,
    };
    let mut config = args.config().await?;
    config.auth_info = kube::config::AuthInfo::default();
    config.auth_info.token = Some(token.clone().into());
    Ok((token, Client::try_from(config)?))
}
