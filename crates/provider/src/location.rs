//! Location of a model: on Hugging Face or in the image. Refusals that several providers share.

use std::collections::BTreeMap;

use runway_api::model_deployment::ModelSource;

use crate::flags::find;
use crate::request::{Invalid, Request};
use crate::{Refusal, refuse};

/// ID of the model on Hugging Face.
///
/// # Errors
/// There is none, as for a model in the image.
pub fn id_on_hub(request: &Request) -> Result<&str, Refusal> {
    let id = request.model_id.as_deref();
    id.ok_or_else(|| Refusal::incompatible(Invalid::Model.to_string()))
}

/// Refuses a model in the image without an image.
///
/// # Errors
/// The source is custom, and `spec.image` is not set.
pub fn check_image(request: &Request) -> Result<(), Refusal> {
    if request.source == ModelSource::Custom && request.image.is_none() {
        return refuse(
            "spec.image is required when model.source is custom: the model is taken from the image. Set spec.image, or use model.source huggingface",
        );
    }
    Ok(())
}

/// Refuses flags that name a model next to `model.id`.
///
/// # Errors
/// One of the flags is in `args`.
pub fn check_flags(args: &BTreeMap<String, String>, model_flags: &[&str]) -> Result<(), Refusal> {
    match model_flags.iter().find_map(|flag| find(args, flag)) {
        Some((key, _)) => refuse(format!(
            "engine.args.{key} would replace the model: name the model in model.id and remove the flag"
        )),
        None => Ok(()),
    }
}
