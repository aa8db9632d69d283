//! Flags of an engine's command line, by name, as in `engine.args`. The value of a flag without one is empty.

use std::collections::BTreeMap;

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

/// Arguments of a command: `--key value`, or `--key` alone.
pub fn arguments(flags: &BTreeMap<String, String>) -> impl Iterator<Item = String> {
    flags.iter().flat_map(|(key, value)| {
        let value = Some(value).filter(|value| !value.is_empty()).cloned();
        std::iter::once(format!("--{key}")).chain(value)
    })
}
