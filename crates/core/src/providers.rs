//! Registered providers with compiled rules: a snapshot that admission and selection read.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use jiff::Timestamp;
use kube::ResourceExt;
use runway_api::condition::{self, no, yes};
use runway_api::provider_config::Health;
use runway_api::{InferenceProviderConfig, InferenceProviderConfigStatus, RegistrationReason};
use serde_json::Value;

use crate::rules::{Budget, Rule};

/// Registered providers, by name.
#[derive(Clone, Debug, Default)]
pub struct Providers(BTreeMap<String, Arc<Registered>>);

/// A registered provider.
#[derive(Clone, Debug)]
pub struct Registered {
    /// InferenceProviderConfig of the provider.
    pub config: Arc<InferenceProviderConfig>,
    /// Selection rules that compile.
    pub selection: Vec<Selection>,
    /// Validation rules that compile.
    pub validation: Vec<Validation>,
    /// Problems of the other rules.
    pub problems: Vec<String>,
}

/// A compiled selection rule.
#[derive(Clone, Debug)]
pub struct Selection {
    /// Condition of the rule.
    pub rule: Rule,
    /// Priority if the condition is true.
    pub priority: i32,
}

/// A compiled validation rule.
#[derive(Clone, Debug)]
pub struct Validation {
    /// Rule that must be true.
    pub rule: Rule,
    /// Message for the user if it is not.
    pub message: String,
}

impl Providers {
    /// Compiles the rules of `configs`. A provider whose spec is the same as in `previous` keeps its compiled rules.
    pub fn compile(configs: impl IntoIterator<Item = Arc<InferenceProviderConfig>>, previous: &Self) -> Self {
        Self(
            configs
                .into_iter()
                .map(|config| {
                    let name = config.name_any();
                    let compiled = match previous.get(&name) {
                        Some(known) if known.config.spec == config.spec => Registered {
                            config,
                            ..known.clone()
                        },
                        _ => Registered::compile(config),
                    };
                    (name, Arc::new(compiled))
                })
                .collect(),
        )
    }

    /// The provider of this name.
    pub fn get(&self, name: &str) -> Option<&Registered> {
        self.0.get(name).map(Arc::as_ref)
    }

    /// All providers with their names.
    pub fn iter(&self) -> impl Iterator<Item = (&str, &Registered)> {
        self.0
            .iter()
            .map(|(name, registered)| (name.as_str(), registered.as_ref()))
    }

    /// Whether no provider is registered.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Every engine that at least one provider supports.
    pub fn engines(&self) -> BTreeSet<&str> {
        self.iter()
            .flat_map(|(_, provider)| provider.config.spec.capabilities.engine_names())
            .collect()
    }

    /// The parts that can change a selection: specs and health, not heartbeats.
    pub fn meaning(&self, now: Timestamp) -> Vec<(String, String)> {
        self.iter()
            .map(|(name, provider)| {
                let spec = runway_operator::json::hash(&provider.config.spec);
                (name.to_owned(), format!("{spec} {:?}", provider.config.health(now)))
            })
            .collect()
    }
}

impl Registered {
    fn compile(config: Arc<InferenceProviderConfig>) -> Self {
        let spec = config.spec.clone();
        let mut budget = Budget::default();
        let mut compiled = Self {
            config,
            selection: Vec::new(),
            validation: Vec::new(),
            problems: Vec::new(),
        };
        for (index, asked) in spec.selection_rules.iter().enumerate() {
            match budget.compile(&asked.condition) {
                Ok(rule) => compiled.selection.push(Selection {
                    rule,
                    priority: asked.priority,
                }),
                Err(error) => compiled
                    .problems
                    .push(format!("spec.selectionRules[{index}].condition: {error}")),
            }
        }
        for (index, asked) in spec.validation_rules.iter().enumerate() {
            match budget.compile(&asked.rule) {
                Ok(rule) => compiled.validation.push(Validation {
                    rule,
                    message: asked.message.clone(),
                }),
                Err(error) => compiled
                    .problems
                    .push(format!("spec.validationRules[{index}].rule: {error}")),
            }
        }
        compiled
    }

    /// Health of the provider at this time.
    pub fn health(&self, now: Timestamp) -> Health {
        self.config.health(now)
    }

    /// The core's part of its status, if it has to be written.
    pub fn status_to_write(&self, now: Timestamp) -> Option<Value> {
        let draft = if self.problems.is_empty() {
            yes(
                condition::RULES_VALID,
                RegistrationReason::RulesCompiled,
                "Every rule compiles",
            )
        } else {
            no(
                condition::RULES_VALID,
                RegistrationReason::RulesRejected,
                format!("Skipped, the others still apply: {}", self.problems.join("; ")),
            )
        };
        let previous = self.config.status.as_ref().map_or(&[][..], |s| s.conditions.as_slice());
        let conditions = condition::settle(vec![draft], previous, self.config.metadata.generation, now);
        let there = conditions.iter().all(|c| previous.contains(c));
        let status = InferenceProviderConfigStatus {
            conditions,
            ..InferenceProviderConfigStatus::default()
        };
        if there { None } else { serde_json::to_value(status).ok() }
    }
}
