//! The rules in CEL that a CRD brings (`x-kubernetes-validations`), evaluated as the API server does it. They are ours, so
//! they need no bounds: those of users go through `runway_core::rules`.

use std::collections::HashMap;
use std::sync::{Arc, LazyLock};

use cel::common::ast::IdedExpr;
use cel::parser::PrattParser;
use cel::{Context, Env, Value as Cel};
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::{
    JSONSchemaProps, JSONSchemaPropsOrArray, JSONSchemaPropsOrBool, ValidationRule,
};
use serde_json::Value;

use super::finding::{By, Finding};
use super::memo::Memo;

/// Reserved words of CEL: a field with such a name is read as `__name__`.
/// <https://kubernetes.io/docs/reference/using-api/cel/#escaping>
const RESERVED: [&str; 21] = [
    "true",
    "false",
    "null",
    "in",
    "as",
    "break",
    "const",
    "continue",
    "else",
    "for",
    "function",
    "if",
    "import",
    "let",
    "loop",
    "package",
    "namespace",
    "return",
    "var",
    "void",
    "while",
];

/// Parsed rules, and expressions of messages.
static PARSED: Memo<IdedExpr> = Memo::new();

/// Broken rules of the field at `path`. If the value is not `whole`, that is, it does not match its schema, a rule that cannot
/// be evaluated is skipped, because the schema violation is already reported.
pub(super) fn broken(schema: &JSONSchemaProps, value: &Value, path: &str, whole: bool) -> Vec<Finding> {
    let Some(rules) = &schema.x_kubernetes_validations else {
        return Vec::new();
    };
    let mut context = Context::with_env(ENVIRONMENT.clone());
    context.add_variable_from_value("self", convert(Some(schema), value));
    let broken = rules.iter().filter_map(|rule| answer(rule, &context, whole));
    broken.map(|message| Finding::error(By::Rule, path, message)).collect()
}

static ENVIRONMENT: LazyLock<Arc<Env>> = LazyLock::new(|| {
    let mut environment = Env::stdlib();
    // Nothing of it is there yet, so nothing can be there twice.
    let _: Result<(), cel::DeclarationError> = environment.add_extension(cel::extensions::strings);
    Arc::new(environment)
});

/// Reason why a rule is violated. Transition rules pass, because there is no old object.
fn answer(rule: &ValidationRule, context: &Context<'_, '_>, whole: bool) -> Option<String> {
    if rule.rule.contains("oldSelf") {
        return None;
    }
    match evaluate(&rule.rule, context) {
        Ok(Cel::Bool(true)) => None,
        Ok(_) => {
            let written = rule
                .message_expression
                .as_deref()
                .and_then(|expression| evaluate(expression, context).ok());
            let written = match written {
                Some(Cel::String(text)) => Some(text.to_string()),
                _ => rule.message.clone(),
            };
            Some(written.unwrap_or_else(|| format!("violates the rule: {}", rule.rule)))
        }
        Err(error) => whole.then(|| format!("cannot be checked by {}: {error}", rule.rule)),
    }
}

fn evaluate(expression: &str, context: &Context<'_, '_>) -> Result<Cel, String> {
    let parsed = PARSED
        .get(expression, |text| PrattParser::new().parse(text))
        .map_err(|error| error.to_string())?;
    Cel::resolve(&parsed, context).map_err(|error| error.to_string())
}

/// A value as rules see it. Only fields that the schema names are escaped, not what a user names.
fn convert(schema: Option<&JSONSchemaProps>, value: &Value) -> Cel {
    match value {
        Value::Null => Cel::Null,
        Value::Bool(value) => Cel::Bool(*value),
        Value::Number(number) => match (number.as_i64(), number.as_f64()) {
            (Some(whole), _) => Cel::Int(whole),
            (None, number) => Cel::Float(number.unwrap_or(f64::NAN)),
        },
        Value::String(text) => Cel::String(text.clone().into()),
        Value::Array(entries) => {
            let entry = schema.and_then(|schema| match &schema.items {
                Some(JSONSchemaPropsOrArray::Schema(entry)) => Some(entry.as_ref()),
                _ => None,
            });
            Cel::List(
                entries
                    .iter()
                    .map(|value| convert(entry, value))
                    .collect::<Vec<_>>()
                    .into(),
            )
        }
        Value::Object(fields) => {
            let converted = fields.iter().map(|(name, value)| {
                let named = schema.and_then(|schema| schema.properties.as_ref()?.get(name));
                let any = schema.and_then(|schema| match &schema.additional_properties {
                    Some(JSONSchemaPropsOrBool::Schema(any)) => Some(any.as_ref()),
                    _ => None,
                });
                let escaped = named.is_some() && RESERVED.contains(&name.as_str());
                let name = if escaped { format!("__{name}__") } else { name.clone() };
                (name, convert(named.or(any), value))
            });
            Cel::Map(converted.collect::<HashMap<_, _>>().into())
        }
    }
}

#[cfg(test)]
mod tests {
    use regex::Regex;
    use runway_manifests as manifests;

    use super::*;

    /// Patterns are RE2's at the server, and Rust's here: they may only use what both read alike.
    #[test]
    fn every_rule_of_ours_can_be_read() {
        let crds = serde_json::to_value(manifests::all_crds()).unwrap();
        let (mut rules, mut patterns) = (0, 0);
        let pattern = Regex::new(r"matches\('([^']*)'\)").unwrap();
        each_rule(&crds, &mut |rule| {
            PrattParser::new().parse(rule).unwrap_or_else(|e| panic!("{rule}: {e}"));
            rules += 1;
            for found in pattern.captures_iter(rule) {
                let written = found[1].replace(r"\\", r"\");
                Regex::new(&written).unwrap_or_else(|e| panic!("{rule}: {e}"));
                patterns += 1;
            }
        });
        assert!(rules > 50 && patterns > 30, "{rules} rules, {patterns} patterns");
    }

    fn each_rule(value: &Value, see: &mut impl FnMut(&str)) {
        match value {
            Value::Object(fields) => {
                for (name, value) in fields {
                    match value
                        .as_str()
                        .filter(|_| ["rule", "messageExpression"].contains(&name.as_str()))
                    {
                        Some(rule) => see(rule),
                        None => each_rule(value, see),
                    }
                }
            }
            Value::Array(entries) => entries.iter().for_each(|value| each_rule(value, see)),
            _ => {}
        }
    }
}
