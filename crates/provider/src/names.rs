//! Names of ModelDeployments that a provider supports.
//!
//! The core evaluates the rules of a registration when it selects a provider and when the user names one. A ModelDeployment may
//! also be given to a provider by another selector, or before the provider registered. Therefore the same limits are a check
//! for [`crate::Provider::translate`].

use runway_api::model_deployment::ServingMode;
use runway_api::provider_config::ValidationRule;

use crate::{Refusal, Request};

/// Limits on the names that a provider supports.
///
/// ```
/// use runway_provider::names::{Limit, Names};
///
/// const NAMES: Names = Names {
///     provider: "example",
///     limits: &[Limit::Service("a Service is named after it")],
/// };
/// assert_eq!(NAMES.rules().len(), 1);
/// ```
#[derive(Clone, Copy, Debug)]
pub struct Names {
    /// Name of the provider.
    pub provider: &'static str,
    /// All limits, in the order in which they are checked.
    pub limits: &'static [Limit],
}

/// A limit on names, and its reason: the end of a sentence after "because".
#[derive(Clone, Copy, Debug)]
pub enum Limit {
    /// The name begins with a letter and has no dots, as that of a Service (RFC 1035). Its length is not checked.
    Service(&'static str),
    /// Maximum length of the name.
    Length(usize, &'static str),
    /// Maximum lengths of the name in aggregated and in disaggregated mode.
    LengthByMode {
        /// In aggregated mode.
        aggregated: usize,
        /// In disaggregated mode.
        disaggregated: usize,
        /// Reason.
        because: &'static str,
    },
    /// Maximum length of name and namespace together.
    LengthWithNamespace(usize, &'static str),
}

impl Names {
    /// Rules for the registration.
    pub fn rules(&self) -> Vec<ValidationRule> {
        self.limits
            .iter()
            .map(|limit| ValidationRule {
                rule: limit.rule(),
                message: limit.message(self.provider),
            })
            .collect()
    }

    /// Refuses a name that the rules refuse.
    ///
    /// # Errors
    /// The message of the first rule that does not hold.
    pub fn check(&self, request: &Request) -> Result<(), Refusal> {
        match self.limits.iter().find(|limit| !limit.permits(request)) {
            Some(limit) => Err(Refusal::incompatible(limit.message(self.provider))),
            None => Ok(()),
        }
    }
}

impl Limit {
    fn rule(self) -> String {
        match self {
            Self::Service(_) => "metadata.name.matches('^[a-z]([-a-z0-9]*[a-z0-9])?$')".to_owned(),
            Self::Length(longest, _) => format!("size(metadata.name) <= {longest}"),
            Self::LengthByMode {
                aggregated,
                disaggregated,
                ..
            } => format!(
                "size(metadata.name) <= (spec.serving.mode == 'disaggregated' ? {disaggregated} : {aggregated})"
            ),
            Self::LengthWithNamespace(longest, _) => {
                format!("size(metadata.namespace) + size(metadata.name) <= {longest}")
            }
        }
    }

    fn permits(self, request: &Request) -> bool {
        let (name, length) = (&request.name, request.name.len());
        match self {
            Self::Service(_) => is_service_name(name),
            Self::Length(longest, _) => length <= longest,
            Self::LengthByMode {
                aggregated,
                disaggregated,
                ..
            } => match request.topology.mode() {
                ServingMode::Aggregated => length <= aggregated,
                ServingMode::Disaggregated => length <= disaggregated,
            },
            Self::LengthWithNamespace(longest, _) => request.namespace.len() + length <= longest,
        }
    }

    fn message(self, provider: &str) -> String {
        match self {
            Self::Service(because) => format!(
                "metadata.name must begin with a letter and have no dots on provider {provider}, because {because}: \
                 choose another name, such as llama-3-1-8b"
            ),
            Self::Length(longest, because) => format!(
                "metadata.name must have at most {longest} characters on provider {provider}, because {because}: choose a shorter name"
            ),
            Self::LengthByMode {
                aggregated,
                disaggregated,
                because,
            } => format!(
                "metadata.name must have at most {aggregated} characters on provider {provider}, and {disaggregated} in disaggregated mode, \
                 because {because}: choose a shorter name"
            ),
            Self::LengthWithNamespace(longest, because) => format!(
                "metadata.name and metadata.namespace must have at most {longest} characters together on provider {provider}, \
                 because {because}: choose a shorter name"
            ),
        }
    }
}

/// Whether a name consists of lowercase letters, digits and `-`, with a letter first and no `-` last.
fn is_service_name(name: &str) -> bool {
    let is_alphanumeric = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit();
    name.starts_with(|c: char| c.is_ascii_lowercase())
        && name.ends_with(is_alphanumeric)
        && name.chars().all(|c| is_alphanumeric(c) || c == '-')
}
