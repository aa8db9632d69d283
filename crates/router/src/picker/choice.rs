//! The replica for a request, and its load until the response ends.

use std::sync::Arc;

use runway_callers::places::Place;
use tokio::time::Instant;

use super::exchange::{Asked, Chosen};
use crate::metrics::CountedForModel;
use crate::model::Model;
use crate::paths::Endpoint;
use crate::prompt::Prompt;
use crate::refused::Refused;
use crate::requested::Requested;
use crate::routes::kinds::HEADER;
use crate::server::Api;
use crate::serving::Picked;
use crate::table::{self, Named};

/// Longest name of a model in a header, in bytes: refusals repeat it.
const LONGEST: usize = 1024;

/// A request at a replica, until it is dropped.
pub struct InFlight {
    picked: Picked,
    requested: Arc<Model>,
    begun: Instant,
    _counted: (Place<table::Key>, CountedForModel),
}

impl InFlight {
    /// The replica has answered, or Envoy for it.
    pub fn responded(&self, api: &Api, status: u16) {
        let Self { picked, requested, .. } = self;
        let has_failed = status >= 500;
        if has_failed {
            picked.chosen.failed(Instant::now());
        } else {
            picked.chosen.succeeded();
        }
        if status == 404 {
            api.serving.names.forget(&picked.model.uid);
        }
        api.serving
            .compare(requested, &picked.model, has_failed, self.begun.elapsed());
    }
}

/// Chooses the replica for a request.
///
/// # Errors
/// The path is not one of inference, the name does not lead to one model, or that does not serve.
pub async fn choose(api: &Api, asked: &Asked) -> Result<(Chosen, InFlight), Refused> {
    let endpoint = Endpoint::at(&asked.path).filter(|_| asked.method == "POST");
    let endpoint = endpoint.ok_or_else(Refused::not_picked)?;
    let read = asked
        .has_body
        .then(|| Requested::read(endpoint, &asked.headers, &asked.body));
    let read = read.transpose()?;
    let name = name(asked.model.as_deref(), read.as_ref())?;
    api.models_are_known()?;
    let models = &api.serving.models;
    let requested = one(name, models.at_gateway(name), &models.named(name))?;
    let counted = (api.place_at(&requested)?, api.metrics.request(&requested));
    let prompt = read.as_ref().map_or_else(Prompt::default, |read| read.prompt.clone());
    let may_be_chosen = |address| asked.may_be(address);
    let picked = api.serving.pick(&requested, &prompt, may_be_chosen).await?;
    api.metrics
        .chose(picked.model.counted_as(&requested), &picked.chosen.decision);
    let body = read
        .filter(|read| read.model != picked.name)
        .map(|read| read.renamed(&asked.body, &picked.name, false));
    let chosen = Chosen {
        address: picked.chosen.address,
        path: (endpoint.at_engine != endpoint.path).then_some(endpoint.at_engine),
        body,
    };
    let in_flight = InFlight {
        picked,
        requested,
        begun: Instant::now(),
        _counted: counted,
    };
    Ok((chosen, in_flight))
}

/// The name of the model: that of the header, by which the Gateway has chosen the route, or else that of the body.
fn name<'a>(header: Option<&'a str>, read: Option<&'a Requested>) -> Result<&'a str, Refused> {
    let name = header.or_else(|| read.map(|read| read.model.as_str()));
    let name = name.ok_or_else(|| {
        let text = format!(
            "the request names no model: set {HEADER}, or request_body_mode of ext_proc to a mode with the body"
        );
        Refused::invalid(text)
    })?;
    if name.len() > LONGEST {
        let length = name.len();
        return Err(Refused::invalid(format!(
            "{HEADER} has {length} bytes, and no model has a name of more than {LONGEST}: set it to the name of a model"
        )));
    }
    Ok(name)
}

/// The one model of a name. Without the identity of the caller, a name of several models is not decided by rights.
fn one(name: &str, at_gateway: Vec<Arc<Model>>, named: &Named) -> Result<Arc<Model>, Refused> {
    let is_of_gateway = !at_gateway.is_empty();
    let mut models = if is_of_gateway {
        at_gateway
    } else {
        named.models.clone()
    };
    match (models.pop(), models.is_empty()) {
        (Some(model), true) if is_of_gateway || named.gone().is_none() => Ok(model),
        (Some(_), _) => Err(Refused::ambiguous(format!(
            "model '{name}' is ambiguous: several models have or had this name; use the full name NAMESPACE/NAME of its ModelDeployment"
        ))),
        (None, _) => Err(Refused::no_model(format!(
            "model '{name}' not found: no ModelDeployment has this name; list the models with: kubectl get modeldeployments -A"
        ))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn model(full_name: &str) -> Arc<Model> {
        Arc::new(Model::asleep(full_name, "llama"))
    }

    fn found(at_gateway: &[&str], named: &[&str], holder: Option<&str>) -> Result<String, String> {
        let models = |names: &[&str]| names.iter().map(|name| model(name)).collect();
        let named = Named {
            models: models(named),
            holder: holder.map(model),
        };
        let found = one("llama", models(at_gateway), &named);
        found
            .map(|model| model.full_name())
            .map_err(|refused| refused.status.as_str().to_owned())
    }

    #[test]
    fn name_leads_to_one_model_or_is_refused() {
        let ok = |name: &str| Ok(name.to_owned());
        let refused = |status: &str| Err(status.to_owned());
        assert_eq!(found(&[], &["a/one"], Some("a/one")), ok("a/one"));
        assert_eq!(found(&[], &["a/one"], None), ok("a/one"), "a full name");
        assert_eq!(found(&["b/two"], &["a/one", "c/three"], Some("a/one")), ok("b/two"));
        assert_eq!(found(&["b/two"], &[], Some("a/gone")), ok("b/two"));
        assert_eq!(found(&[], &["a/one", "b/two"], Some("a/one")), refused("400"));
        assert_eq!(found(&["a/one", "b/two"], &[], None), refused("400"));
        assert_eq!(
            found(&[], &["b/two"], Some("a/gone")),
            refused("400"),
            "another team's model"
        );
        assert_eq!(found(&[], &[], None), refused("404"));
    }

    #[test]
    fn header_names_the_model_before_the_body() {
        let endpoint = Endpoint::at("/v1/completions").unwrap();
        let read = Requested::read(endpoint, &axum::http::HeaderMap::new(), br#"{"model":"body"}"#).unwrap();
        assert_eq!(name(Some("header"), Some(&read)).unwrap(), "header");
        assert_eq!(name(None, Some(&read)).unwrap(), "body");
        assert!(name(None, None).unwrap_err().to_string().contains("request_body_mode"));
        assert!(name(Some(&"a".repeat(LONGEST + 1)), None).is_err());
    }
}
