//! CRD types, conditions, label and name types. No I/O, no tokio, no client.
//!
//! | module | what |
//! |---|---|
//! | [`async_actor`] | `AsyncActor`, a queue in front of a workload |
//! | [`model_deployment`] | `ModelDeployment`, what a user writes |
//! | [`llama_stack_distribution`] | `LlamaStackDistribution`, a Llama Stack server |
//! | [`provider_config`] | `InferenceProviderConfig`, what a provider registers |
//! | [`condition`] | how conditions are made and kept |
//! | [`labels`] | every label, annotation, finalizer and field manager name |
//! | [`name`] | names that may stand in a path of the API server |
//! | [`reason`] | reasons of the conditions of a ModelDeployment |
//! | [`tone`] | how well something is, by the word of its status |
//! | [`overrides`] | checks `spec.provider.overrides` against the documented keys |

#![allow(
    unreachable_pub,
    reason = "the KubeSchema derive looks at copies of the types inside functions"
)]

pub mod async_actor;
pub mod condition;
pub mod labels;
pub mod llama_stack_distribution;
mod managed;
pub mod model_deployment;
pub mod name;
pub mod overrides;
pub mod provider_config;
pub mod reason;
mod schema;
pub mod tone;

pub use async_actor::{AsyncActor, AsyncActorSpec, AsyncActorStatus};
pub use condition::Conditions;
pub use llama_stack_distribution::{LlamaStackDistribution, LlamaStackDistributionSpec, LlamaStackDistributionStatus};
pub use model_deployment::{ModelDeployment, ModelDeploymentSpec, ModelDeploymentStatus, Phase};
pub use name::{Name, Namespace};
pub use provider_config::{InferenceProviderConfig, InferenceProviderConfigSpec, InferenceProviderConfigStatus};
pub use reason::{CoreReason, ProviderReason};
pub use tone::Tone;
