//! Flags of an engine's command line, by name, as in `engine.args`. The value of a flag without one is empty.

use std::collections::BTreeMap;

use runway_api::engine_args;

use crate::engine::{Dialect, parallel};
use crate::request::{Gpu, Request};
use crate::{Refusal, refuse};

/// A flag in the spelling of `args`: dashes and underscores are equivalent.
///
/// ```
/// use std::collections::BTreeMap;
///
/// let args = BTreeMap::from([("max_model_len".to_owned(), "4096".to_owned())]);
/// assert_eq!(runway_provider::flags::find(&args, "max-model-len"), Some(("max_model_len", "4096")));
/// ```
pub fn find<'a>(args: &'a BTreeMap<String, String>, flag: &str) -> Option<(&'a str, &'a str)> {
    let wanted = flag.replace('_', "-");
    args.iter()
        .find(|(key, _)| key.replace('_', "-") == wanted)
        .map(|(key, value)| (key.as_str(), value.as_str()))
}

/// Values of a flag: the items of a JSON list, or the text itself. A list that admission rejects is a text.
pub fn values(flag: &str, text: &str) -> Vec<String> {
    engine_args::values(flag, text).unwrap_or_else(|_| vec![text.to_owned()])
}

/// The first value of a flag, such as the served name that clients send; empty for a flag without a value.
///
/// ```
/// use std::collections::BTreeMap;
///
/// let args = BTreeMap::from([("served-model-name".to_owned(), r#"["llama", "llama-3"]"#.to_owned())]);
/// assert_eq!(runway_provider::flags::first(&args, "served_model_name").as_deref(), Some("llama"));
/// ```
pub fn first(args: &BTreeMap<String, String>, flag: &str) -> Option<String> {
    let (key, text) = find(args, flag)?;
    Some(values(key, text).into_iter().next().unwrap_or_default())
}

/// Refuses flags that name a model next to `model.id`.
///
/// # Errors
/// One of the flags is in `args`.
pub fn without_model(args: &BTreeMap<String, String>, model_flags: &[&str]) -> Result<(), Refusal> {
    match model_flags.iter().find_map(|flag| find(args, flag)) {
        Some((key, _)) => refuse(format!(
            "engine.args.{key} would replace the model: name the model in model.id and remove the flag"
        )),
        None => Ok(()),
    }
}

/// Message about a field of the spec that a flag in `engine.args` overrules.
pub fn overruled(field: &str, key: &str) -> String {
    format!("{field} is ignored: engine.args.{key} sets the same and takes precedence")
}

/// Flags of a command by name, with an empty value for a flag without one, and messages about fields that have no effect.
#[derive(Clone, Debug, Default)]
pub struct Flags {
    /// Values by flag.
    pub values: BTreeMap<String, String>,
    /// Messages about fields of the spec.
    pub ignored: Vec<String>,
}

impl Flags {
    /// Flags of `engine.args`, which take precedence over those that are added.
    pub fn given(args: &BTreeMap<String, String>) -> Self {
        Self {
            values: args.clone(),
            ignored: Vec::new(),
        }
    }

    /// Adds a flag, unless it is set.
    pub fn derive(&mut self, flag: &str, value: &str) {
        if find(&self.values, flag).is_none() {
            self.values.insert(flag.to_owned(), value.to_owned());
        }
    }

    /// Adds the flag for a field of the spec, or reports why the field has no effect: it is set, or the engine has no such flag.
    pub fn field(&mut self, field: &str, flag_or_why: Result<&str, &str>, value: &str) {
        match flag_or_why.map(|flag| (flag, find(&self.values, flag))) {
            Ok((flag, None)) => {
                self.values.insert(flag.to_owned(), value.to_owned());
            }
            Ok((_, Some((key, _)))) => self.ignored.push(overruled(field, key)),
            Err(why) => self.ignored.push(format!("{field} is ignored: {why}")),
        }
    }

    /// Adds the context length, by the engine's flag for it.
    pub fn context_length(&mut self, request: &Request, flag: Result<&str, &str>) {
        if let Some(tokens) = request.context_length {
            self.field("engine.contextLength", flag, &tokens.to_string());
        }
    }

    /// Adds trust in code that comes with the model.
    pub fn trust(&mut self, request: &Request, engine: &Dialect) {
        if request.trust_remote_code {
            self.field("engine.trustRemoteCode", engine.trust_remote_code, "");
        }
    }

    /// Adds the name in client requests: that of the spec, or `otherwise`.
    pub fn name(&mut self, request: &Request, flag: Result<&str, &str>, otherwise: Option<&str>) {
        let name = request.served_name.as_deref();
        if request.served_name_given {
            self.field("model.servedName", flag, name.unwrap_or_default());
        } else if let (Ok(flag), Some(name)) = (flag, name.or(otherwise)) {
            self.derive(flag, name);
        }
    }

    /// Adds the tensor-parallel size: all GPUs of a pod serve one model, unless the user sets a parallel size.
    pub fn parallel(&mut self, engine: &Dialect, gpu: Option<&Gpu>) {
        let is_given = parallel::flags().any(|flag| find(&self.values, flag).is_some());
        let gpus = gpu.map_or(0, |gpu| gpu.count);
        if let Some(flag) = engine.tensor_parallel.filter(|_| gpus > 1 && !is_given) {
            self.derive(flag, &gpus.to_string());
        }
    }

    /// Name under which `/v1/models` lists the model, if a flag sets it.
    pub fn served_name(&self, engine: &Dialect) -> Option<String> {
        let name = first(&self.values, engine.served_name.ok()?)?;
        Some((engine.listed_name)(&name).to_owned())
    }

    /// Arguments of a command.
    pub fn arguments(&self) -> impl Iterator<Item = String> {
        arguments(&self.values)
    }
}

/// Arguments of a command: `--key value`, `--key value value` for several values, or `--key` alone.
pub fn arguments(flags: &BTreeMap<String, String>) -> impl Iterator<Item = String> {
    flags
        .iter()
        .flat_map(|(key, text)| std::iter::once(format!("--{key}")).chain(values(key, text)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::{LLAMACPP, SGLANG, VLLM};

    #[test]
    fn served_name_is_the_one_that_the_engine_lists() {
        for (engine, flag, text, name) in [
            (&LLAMACPP, "alias", "two, one, ", "one"),
            (&LLAMACPP, "alias", "one", "one"),
            (&VLLM, "served_model_name", r#"["one", "two"]"#, "one"),
            (&VLLM, "served-model-name", "one, two", "one, two"),
            (&SGLANG, "served-model-name", "one,two", "one,two"),
        ] {
            let flags = Flags::given(&BTreeMap::from([(flag.to_owned(), text.to_owned())]));
            assert_eq!(flags.served_name(engine).as_deref(), Some(name), "{text}");
        }
    }
}
