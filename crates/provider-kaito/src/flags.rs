//! Engine flags: `spec.engine` as the engine's own flags.

use runway_api::model_deployment::ModelSource;
use runway_provider::Request;
use runway_provider::engine::{Flags, llamacpp};

use crate::compatible::{Accepted, Workload};
use crate::engine::Engine;
use crate::family::Family;

/// Flags of a request. `engine.args` takes precedence.
pub(crate) fn of(request: &Request, accepted: &Accepted) -> Flags {
    let engine = accepted.engine;
    let mut flags = Flags::given(&request.args);
    // KAITO names its presets, and distributes them over GPUs.
    if let Workload::Container { .. } = accepted.workload {
        name(&mut flags, request, engine);
        flags.parallel(engine.dialect(), accepted.worker.gpu.as_ref());
    }
    if let (Engine::LlamaCpp(family), ModelSource::Huggingface) = (engine, request.source)
        && let Some((key, _)) = llamacpp::file_in(&request.args)
    {
        // The file is a part of the arguments for the model.
        flags.values.remove(key);
        if family == Family::AikitRunner && request.token_secret.is_some() {
            flags.ignored.push(format!(
                "secrets.huggingFaceToken has no effect with engine.args.{key}: AIKit's runner downloads a file without it"
            ));
        }
    }
    flags.context_length(request, engine.dialect().context_length);
    flags.trust(request, engine.dialect());
    flags
}

/// Name in client requests. LocalAI names a model after its file, and has no flag for another name.
fn name(flags: &mut Flags, request: &Request, engine: Engine) {
    match (request.source, engine) {
        (ModelSource::Custom, _) => {
            if request.served_name_given {
                flags.ignored.push(
                    "model.servedName is ignored for custom source: the image decides the model's name".to_owned(),
                );
            }
            if let Some(id) = &request.model_id {
                flags.ignored.push(format!(
                    "model.id: {id} is ignored for custom source: the image decides what is served"
                ));
            }
        }
        (ModelSource::Huggingface, Engine::LlamaCpp(family)) if !family.is_llama_server() => {
            if let Some(name) = request.served_name.as_ref().filter(|_| request.served_name_given) {
                flags.ignored.push(format!(
                    "model.servedName: {name} is ignored: the llama.cpp image decides the model's name; if its server supports a flag for it, set it in engine.args"
                ));
            }
        }
        (ModelSource::Huggingface, _) => flags.name(request, engine.dialect().served_name, None),
    }
}
