//! Flags of an engine's command line, by name, as in `engine.args`. The value of a flag without one is empty.

use std::collections::BTreeMap;

use runway_api::engine_args;

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

/// Message about a field of the spec that a flag in `engine.args` overrules.
pub fn overruled(field: &str, key: &str) -> String {
    format!("{field} is ignored: engine.args.{key} sets the same and takes precedence")
}

/// Arguments of a command: `--key value`, `--key value value` for several values, or `--key` alone.
pub fn arguments(flags: &BTreeMap<String, String>) -> impl Iterator<Item = String> {
    flags
        .iter()
        .flat_map(|(key, text)| std::iter::once(format!("--{key}")).chain(values(key, text)))
}
