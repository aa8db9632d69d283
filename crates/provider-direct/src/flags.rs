//! Engine flags: `spec.engine` as flags of the engine's command line. `engine.args` takes precedence; the engine
//! rejects unknown flags itself, and its last log lines are reported in the status.

use std::collections::BTreeMap;

use runway_api::model_deployment::ModelSource;
use runway_provider::Request;
use runway_provider::engine::{PARALLEL, ServedName};
use runway_provider::flags::{self, find};

use crate::compatible::{Accepted, Model};

/// Default address of the server: all IPv4 addresses.
const HOST: &str = "0.0.0.0";

/// Flags by name, with an empty value for a flag without one, and messages about fields that have no effect.
#[derive(Debug, Default)]
pub(crate) struct Flags {
    pub(crate) values: BTreeMap<String, String>,
    pub(crate) ignored: Vec<String>,
}

/// Flags of a request, except those that load the model.
pub(crate) fn of(request: &Request, accepted: &Accepted) -> Flags {
    let mut flags = Flags {
        values: request.args.clone(),
        ignored: Vec::new(),
    };
    if let Model::Path { key, .. } = accepted.model {
        flags.values.remove(key);
    }
    flags.derive("host", HOST);
    flags.derive("port", &accepted.port.to_string());
    flags.engine(request, accepted);
    flags.name(request, accepted);
    flags.parallel(accepted);
    if let Some(flag) = accepted.engine.metrics_flag {
        flags.derive(flag, "");
    }
    flags
}

/// Name under which `/v1/models` lists the model; `None` if the image decides it.
pub(crate) fn model_name(accepted: &Accepted, flags: &Flags) -> Option<String> {
    let given = |name| flags::first(&flags.values, name).map(|names| first(&names));
    match accepted.engine.served_name {
        ServedName::Flag(name) => given(name),
        // The release in the user's image may have a flag that the default release lacks.
        ServedName::Fixed(_) => given("served-model-name").or_else(|| match accepted.model {
            Model::Hub(id) => Some(id.to_owned()),
            Model::Path { path, .. } => Some(last(path)),
            Model::Image => None,
        }),
    }
}

/// The first of several names: llama.cpp accepts a comma-separated list.
fn first(names: &str) -> String {
    names.split(',').next().unwrap_or(names).trim().to_owned()
}

fn last(path: &str) -> String {
    let path = path.trim_end_matches('/');
    path.rsplit('/').next().unwrap_or(path).to_owned()
}

impl Flags {
    fn engine(&mut self, request: &Request, accepted: &Accepted) {
        if let Some(tokens) = request.context_length {
            let flag = accepted.engine.context_length;
            self.field("engine.contextLength", flag, &tokens.to_string());
        }
        if request.trust_remote_code {
            self.field("engine.trustRemoteCode", accepted.engine.trust_remote_code, "");
        }
    }

    /// Name in client requests: the given one, the last part of the model's ID, or the name of the ModelDeployment.
    fn name(&mut self, request: &Request, accepted: &Accepted) {
        let given = request.served_name.as_deref();
        // An image with its own model has its own name for it, unless the engine would list a path.
        let is_ours = accepted.model != Model::Image || accepted.engine.command.is_empty();
        match accepted.engine.served_name {
            ServedName::Flag(flag) if request.served_name_given => {
                self.field("model.servedName", Ok(flag), given.unwrap_or_default());
            }
            ServedName::Flag(flag) => {
                if let Some(name) = given.or_else(|| is_ours.then_some(request.name.as_str())) {
                    self.derive(flag, name);
                }
            }
            ServedName::Fixed(why) if request.served_name_given => self.field("model.servedName", Err(why), ""),
            ServedName::Fixed(_) => {}
        }
        if let (ModelSource::Custom, Some(id)) = (request.source, &request.model_id) {
            self.ignored.push(format!(
                "model.id: '{id}' has no effect for custom source: set engine.args.model to the model's path in the image"
            ));
        }
    }

    /// All GPUs of a pod serve one model, unless the user sets a parallel size.
    fn parallel(&mut self, accepted: &Accepted) {
        let is_reported = PARALLEL.iter().any(|way| find(&self.values, way).is_some());
        let gpus = accepted.worker.gpu.as_ref().map_or(0, |gpu| gpu.count);
        if let Some(flag) = accepted.engine.tensor_parallel.filter(|_| gpus > 1 && !is_reported) {
            self.derive(flag, &gpus.to_string());
        }
    }

    /// Sets the flag for a field of the spec, or reports why the field has no effect.
    fn field(&mut self, field: &str, flag_or_why: Result<&str, &str>, value: &str) {
        let why = match flag_or_why {
            Err(why) => why.to_owned(),
            Ok(name) => match find(&self.values, name) {
                Some((key, _)) => {
                    format!("engine.args.{key} sets the same and takes precedence")
                }
                None => return self.derive(name, value),
            },
        };
        self.ignored.push(format!("{field} is ignored: {why}"));
    }

    /// Sets a flag, unless `engine.args` has it.
    fn derive(&mut self, name: &str, value: &str) {
        if find(&self.values, name).is_none() {
            self.values.insert(name.to_owned(), value.to_owned());
        }
    }

    /// Arguments of a command.
    pub(crate) fn arguments(&self) -> impl Iterator<Item = String> {
        flags::arguments(&self.values)
    }
}
