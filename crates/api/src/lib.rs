//! CRD types, conditions, label and name types. No I/O, no tokio, no client.
//!
//! | module | what |
//! |---|---|
//! | [`async_actor`] | `AsyncActor`, a queue in front of a workload |
//! | [`model_deployment`] | `ModelDeployment`, a model to serve |
//! | [`autoscaling`] | `spec.scaling.autoscaling` of a ModelDeployment |
//! | [`llama_stack_distribution`] | `LlamaStackDistribution`, a Llama Stack server |
//! | [`provider_config`] | `InferenceProviderConfig`, the registration of a provider |
//! | [`condition`] | condition types, and how conditions are built |
//! | [`choice`] | the choice of a replica, as the model router explains it |
//! | [`daily_usage`] | use of models by day, in a ConfigMap of the model router |
//! | [`engine_args`] | values of the flags in `spec.engine.args` |
//! | [`labels`] | every label, annotation, finalizer and field manager name |
//! | [`name`] | names that are safe in a path of the API server |
//! | [`reason`] | reasons of conditions and Events |
//! | [`tone`] | how well an object is, by its phase or state |
//! | [`overrides`] | checks `spec.provider.overrides` against the documented keys |

#![allow(
    unreachable_pub,
    reason = "the KubeSchema derive looks at copies of the types inside functions"
)]

pub mod async_actor;
pub mod autoscaling;
pub mod choice;
pub mod condition;
pub mod daily_usage;
pub mod engine_args;
pub mod labels;
pub mod llama_stack_distribution;
mod managed;
pub mod model_deployment;
pub mod name;
pub mod overrides;
mod pod_template;
pub mod provider_config;
pub mod reason;
mod reserved;
mod schema;
mod storage;
pub mod syntax;
pub mod tone;

pub use async_actor::{AsyncActor, AsyncActorSpec, AsyncActorStatus};
pub use condition::Conditions;
pub use llama_stack_distribution::{LlamaStackDistribution, LlamaStackDistributionSpec, LlamaStackDistributionStatus};
pub use model_deployment::{ModelDeployment, ModelDeploymentSpec, ModelDeploymentStatus, Phase, ServingState};
pub use name::{Name, Namespace};
pub use provider_config::{InferenceProviderConfig, InferenceProviderConfigSpec, InferenceProviderConfigStatus};
pub use reason::{
    ActorReason, CoreReason, DistributionReason, EventReason, GatewayReason, ProviderReason, RegistrationReason,
    UpstreamReason,
};
pub use tone::Tone;
