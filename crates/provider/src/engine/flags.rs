//! Flags of an engine's command line, derived from a request.

use std::collections::BTreeMap;

use super::{Dialect, parallel};
use crate::flags::{arguments, find, first, overruled};
use crate::request::{Gpu, Request};

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

#[cfg(test)]
mod tests {
    use super::super::{LLAMACPP, SGLANG, VLLM};
    use super::*;

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
