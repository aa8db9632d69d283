//! Engine flags: `spec.engine` as flags of the engine's command line. `engine.args` takes precedence; the engine
//! rejects unknown flags itself, and its last log lines are reported in the status.

use runway_api::model_deployment::ModelSource;
use runway_provider::Request;
use runway_provider::engine::Flags;
use runway_provider::flags::first;

use crate::compatible::{Accepted, Model};

/// Default address of the server: all IPv4 addresses.
const HOST: &str = "0.0.0.0";

/// Flags of a request, except those that load the model.
pub(crate) fn of(request: &Request, accepted: &Accepted) -> Flags {
    let engine = accepted.engine;
    let mut flags = Flags::given(&request.args);
    if let Model::Path { key, .. } = accepted.model {
        flags.values.remove(key);
    }
    flags.derive("host", HOST);
    flags.derive("port", &accepted.port.to_string());
    flags.context_length(request, engine.context_length);
    flags.trust(request, engine);
    // An image with its own model has its own name for it, unless the engine would list a path.
    let is_ours = accepted.model != Model::Image || engine.command.is_empty();
    flags.name(request, engine.served_name, is_ours.then_some(&request.name));
    if let (ModelSource::Custom, Some(id)) = (request.source, &request.model_id) {
        flags.ignored.push(format!(
            "model.id: '{id}' has no effect for custom source: set engine.args.model to the model's path in the image"
        ));
    }
    flags.parallel(engine, accepted.worker.gpu.as_ref());
    if let Some(flag) = engine.metrics_flag {
        flags.derive(flag, "");
    }
    flags
}

/// Name under which `/v1/models` lists the model; `None` if the image decides it.
pub(crate) fn model_name(accepted: &Accepted, flags: &Flags) -> Option<String> {
    if accepted.engine.served_name.is_ok() {
        return flags.served_name(accepted.engine);
    }
    // The release in the user's image may have a flag that the default release lacks.
    first(&flags.values, "served-model-name").or_else(|| match accepted.model {
        Model::Hub(id) => Some(id.to_owned()),
        Model::Path { path, .. } => Some(last(path)),
        Model::Image => None,
    })
}

fn last(path: &str) -> String {
    let path = path.trim_end_matches('/');
    path.rsplit('/').next().unwrap_or(path).to_owned()
}
