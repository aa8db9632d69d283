//! URLs in the place of an ID on the hub.

/// Hosts of the hub.
const HUB: [&str; 4] = ["huggingface.co", "www.huggingface.co", "hf.co", "www.hf.co"];

/// The ID of a model, from its URL on the hub; `None` if the text is not such a URL.
pub fn id_on_hub(text: &str) -> Option<String> {
    let (scheme, rest) = split(text);
    on_hub(scheme.as_deref(), rest).and_then(id)
}

/// Scheme of a URL in lower case, and the rest.
fn split(text: &str) -> (Option<String>, &str) {
    match text.split_once("://") {
        Some((scheme, rest)) => (Some(scheme.to_ascii_lowercase()), rest),
        None => (None, text),
    }
}

/// The path of a URL on the hub.
fn on_hub<'a>(scheme: Option<&str>, rest: &'a str) -> Option<&'a str> {
    match scheme {
        None | Some("http" | "https") => path_on_hub(rest),
        Some("hf" | "huggingface") => Some(rest),
        Some(_) => None,
    }
}

/// Remedy for a URL in the place of an ID; `None` if the text is not a URL.
pub(super) fn instead_of_url(text: &str) -> Option<String> {
    let (scheme, rest) = split(text);
    let on_hub = on_hub(scheme.as_deref(), rest);
    if let Some(id) = on_hub.and_then(id) {
        return Some(format!("use the ID on the hub, {id}"));
    }
    if scheme.is_none() && on_hub.is_none() {
        return None;
    }
    Some(match scheme.as_deref().unwrap_or_default() {
        "s3" | "s3a" | "gs" | "gcs" | "az" | "abfs" | "abfss" | "wasb" | "wasbs" => custom(
            "for a model in object storage,",
            "an image of an engine that can read it",
            "the URL",
        ),
        "file" | "pvc" | "nfs" | "hdfs" => custom(
            "for a model in files, mount them with model.storage.volumes, and",
            "an image of the engine",
            "the path",
        ),
        "oci" | "docker" | "docker-archive" => custom(
            "for a model in an OCI image, mount it as an image in model.storage.volumes, and",
            "an image of the engine",
            "the path",
        ),
        "ollama" => {
            "models of the Ollama library cannot be loaded; use the ID of the model on the hub, such as org/model"
                .to_owned()
        }
        _ => "use the ID on the hub, such as org/model".to_owned(),
    })
}

fn custom(which: &str, image: &str, place: &str) -> String {
    format!("{which} set model.source to custom, spec.image to {image}, and engine.args.model to {place}")
}

/// The path of a URL without its scheme; `None` if it is not on the hub.
fn path_on_hub(url: &str) -> Option<&str> {
    let (host, path) = url.split_once('/').unwrap_or((url, ""));
    HUB.iter().any(|hub| host.eq_ignore_ascii_case(hub)).then_some(path)
}

/// The ID of the model in a path of the hub, such as `org/model/tree/main?x#y`.
fn id(path: &str) -> Option<String> {
    let path = path.split(['?', '#']).next()?;
    let mut parts = path.split('/').filter(|part| !part.is_empty());
    match (parts.next()?, parts.next()?) {
        ("datasets" | "spaces" | "collections" | "papers" | "docs" | "api", _) => None,
        (org, model) => Some(format!("{org}/{model}")),
    }
}
