//! Logs of a ModelDeployment's pods: the last lines, and a stream with a script.

use askama::Template;
use axum::body::Body;
use axum::extract::Query;
use axum::http::StatusCode;
use axum::http::header::CONTENT_TYPE;
use axum::response::{IntoResponse, Response};
use futures::{AsyncBufReadExt, StreamExt};
use k8s_openapi::api::core::v1::Pod;
use kube::api::LogParams;
use kube::{Api, ResourceExt};
use runway_api::{Name, Namespace};
use runway_client::cluster::Error;
use runway_client::pods;
use runway_client::target::{Kind, Target};
use runway_operator::clock;
use runway_operator::telemetry::chain;
use serde::Deserialize;

use super::deployment::{Head, find};
use crate::guard::{Asker, Of};
use crate::page::Shell;
use crate::refusal;
use crate::sessions::Session;

/// Lines that are shown at first.
const LINES: i64 = 500;

/// Selected log.
#[derive(Clone, Debug, Default, Deserialize)]
pub struct Selected {
    /// The pod; empty: the first.
    #[serde(default)]
    pod: String,
    /// The container; empty: the one that has something to say.
    #[serde(default)]
    container: String,
    /// Log of the previous instance.
    #[serde(default)]
    previous: bool,
}

/// A container whose log is read.
struct Voice {
    pod: String,
    container: String,
    trouble: Option<String>,
    containers: Vec<String>,
}

#[derive(Template)]
#[template(path = "logs.html")]
struct Page {
    shell: Shell,
    head: Head,
    selected: Selected,
    pods: Vec<String>,
    voice: Option<Voice>,
    text: String,
    /// URL of the stream.
    follow: String,
    /// Error.
    trouble: String,
}

/// The page.
pub async fn show(Asker(session): Asker, Of { namespace, name }: Of, Query(selected): Query<Selected>) -> Response {
    let md = match find(&session, &namespace, &name).await {
        Ok(md) => md,
        Err(response) => return response,
    };
    let mut page = Page {
        shell: Shell::new(&session, "deployments", format!("{name}, logs")),
        head: Head::new(&md, "logs", clock::now()),
        pods: Vec::new(),
        voice: None,
        text: String::new(),
        follow: String::new(),
        trouble: String::new(),
        selected,
    };
    match pods(&session, &namespace, name.clone()).await {
        Ok(pods) => {
            page.pods = pods.iter().map(ResourceExt::name_any).collect();
            page.voice = voice(&pods, &page.selected);
        }
        Err(error) => page.trouble = chain(&error),
    }
    if let Some(voice) = &page.voice {
        let params = LogParams {
            container: Some(voice.container.clone()),
            tail_lines: Some(LINES),
            previous: page.selected.previous,
            ..LogParams::default()
        };
        match api(&session, &namespace).logs(&voice.pod, &params).await {
            Ok(text) => page.text = text,
            Err(kube::Error::Api(status)) => page.trouble.clone_from(&status.message),
            Err(error) => page.trouble = chain(&error),
        }
        if page.trouble.is_empty() && !page.selected.previous {
            let mut query = form_urlencoded::Serializer::new(String::new());
            query
                .append_pair("pod", &voice.pod)
                .append_pair("container", &voice.container);
            page.follow = format!("{}/logs/follow?{}", page.head.href, query.finish());
        }
    }
    refusal::html(&page)
}

/// The end of a log and what follows, as it is written.
pub async fn follow(Asker(session): Asker, Of { namespace, name }: Of, Query(selected): Query<Selected>) -> Response {
    let voice = match pods(&session, &namespace, name.clone()).await {
        Ok(pods) => voice(&pods, &selected),
        Err(error) => return (super::actions::status(&error), chain(&error)).into_response(),
    };
    let Some(voice) = voice else {
        return (StatusCode::NOT_FOUND, "pod not found").into_response();
    };
    let params = LogParams {
        container: Some(voice.container),
        tail_lines: Some(LINES),
        follow: true,
        ..LogParams::default()
    };
    match api(&session, &namespace).log_stream(&voice.pod, &params).await {
        Ok(stream) => {
            let lines = stream.lines().map(|line| line.map(|line| line + "\n"));
            let lines = lines.take_until(session.over());
            ([(CONTENT_TYPE, "text/plain; charset=utf-8")], Body::from_stream(lines)).into_response()
        }
        Err(error) => (StatusCode::BAD_GATEWAY, chain(&error)).into_response(),
    }
}

fn api(session: &Session, namespace: &Namespace) -> Api<Pod> {
    Api::namespaced(session.view.client(), namespace)
}

async fn pods(session: &Session, namespace: &Namespace, name: Name) -> Result<Vec<Pod>, Error> {
    let view = &session.view;
    let cluster = view.cluster();
    let target = Target {
        kind: Kind::ModelDeployment,
        name,
    };
    cluster.pods_of(&target, namespace).await
}

/// The selected pod and container, or the first.
fn voice(pods: &[Pod], selected: &Selected) -> Option<Voice> {
    let pod = pods
        .iter()
        .find(|pod| pod.name_any() == selected.pod)
        .or_else(|| pods.first())?;
    let known = pods::containers(pod, None, true).unwrap_or_default();
    let given = Some(selected.container.as_str()).filter(|given| known.iter().any(|name| name == given));
    Some(Voice {
        pod: pod.name_any(),
        container: pods::containers(pod, given, false).ok()?.into_iter().next()?,
        trouble: pods::trouble(pod).map(|trouble| trouble.to_string()),
        containers: known,
    })
}
