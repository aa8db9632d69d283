//! Functions that a rule can call: the pure part of CEL's standard functions, and two of our own.

use std::sync::{Arc, LazyLock};

use cel::common::types::{BOOL_TYPE, CelList, CelMap, INT_TYPE, LIST_TYPE, MAP_TYPE, STRING_TYPE, UINT_TYPE};
use cel::common::value::{CowVal, Val};
use cel::{Context, DeclarationError, Env, ExecutionError};

use super::input::Variables;
use super::pattern::Pattern;

/// Function around the range of a comprehension. No rule can use this name.
pub(super) const ORDERED: &str = "@ordered";
/// Function around an index that is not a literal. No rule can use this name.
pub(super) const KEY: &str = "@key";
/// Replacement of `matches`, with the index of the compiled pattern. No rule can use this name.
pub(super) const MATCHES: &str = "@matches";

/// Names of the callable functions, for messages.
pub(super) const SIGNATURES: &str = "has(a.b), size(x), x.startsWith(y), x.endsWith(y), x.contains(y), x.matches('pattern'), \
     int(x), uint(x), double(x), string(x), and x.all(v, …), x.exists(v, …), x.exists_one(v, …), x.map(v, …), x.filter(v, …)";

/// Whether a rule may call `name` with this number of arguments, as a method or a function. The crate's other functions are
/// excluded: they parse times or durations, or have no use in a rule over a spec.
pub(super) fn is_callable(name: &str, method: bool, arguments: usize) -> bool {
    match name {
        "size" => arguments == usize::from(!method),
        "startsWith" | "endsWith" | "contains" => method && arguments == 1,
        "matches" => arguments == if method { 1 } else { 2 },
        "int" | "uint" | "double" | "string" => !method && arguments == 1,
        _ => false,
    }
}

/// Context of one evaluation.
pub(super) fn context<'a>(variables: &'a Variables, patterns: &Arc<[Pattern]>) -> Context<'a, 'a> {
    static ENV: LazyLock<Arc<Env>> = LazyLock::new(|| Arc::new(environment()));
    let mut context = Context::with_env(Arc::clone(&ENV));
    context.set_variable_resolver(variables);
    if !patterns.is_empty() {
        let patterns = Arc::clone(patterns);
        let matches = move |text: Arc<String>, index: u64| {
            let pattern = usize::try_from(index).ok().and_then(|index| patterns.get(index));
            pattern.is_some_and(|pattern| pattern.is_match(&text))
        };
        // No other function can have this name.
        let _: Result<(), DeclarationError> = context.add_function(MATCHES, matches);
    }
    context
}

fn environment() -> Env {
    let mut env = Env::default().with_optional_support(false).with_stdlib();
    // No other function can have these names.
    let _: Result<(), DeclarationError> = env
        .add_overload(ORDERED, "ordered_map", vec![MAP_TYPE], ordered_map)
        .and_then(|()| env.add_overload(ORDERED, "ordered_list", vec![LIST_TYPE], unchanged))
        .and_then(|()| env.add_overload(KEY, "key_int", vec![INT_TYPE], unchanged))
        .and_then(|()| env.add_overload(KEY, "key_uint", vec![UINT_TYPE], unchanged))
        .and_then(|()| env.add_overload(KEY, "key_string", vec![STRING_TYPE], unchanged))
        .and_then(|()| env.add_overload(KEY, "key_bool", vec![BOOL_TYPE], unchanged));
    env
}

fn unchanged<'b, 'v>(arguments: Vec<CowVal<'b, 'v>>) -> Result<CowVal<'b, 'v>, ExecutionError> {
    arguments
        .into_iter()
        .next()
        .ok_or(ExecutionError::MissingArgumentOrTarget)
}

/// Keys of a map in sorted order. CEL does not define the order, and the crate's is random: `map` and `filter` would return
/// different results each time.
#[expect(clippy::needless_pass_by_value, reason = "the signature of the crate's functions")]
fn ordered_map<'b, 'v>(arguments: Vec<CowVal<'b, 'v>>) -> Result<CowVal<'b, 'v>, ExecutionError> {
    let map = arguments.first().ok_or(ExecutionError::MissingArgumentOrTarget)?;
    let map = map
        .downcast_ref::<CelMap>()
        .ok_or(ExecutionError::MissingArgumentOrTarget)?;
    let mut keys: Vec<_> = map.inner().keys().collect();
    keys.sort();
    let keys: Vec<Box<dyn Val + 'v>> = keys.into_iter().map(|key| key.inner().clone_as_boxed()).collect();
    Ok(CowVal::owned(CelList::from(keys)))
}
