//! Settings that a ModelDeployment does not contain: how this cluster's KAITO gets its nodes.

use std::collections::BTreeMap;

use clap::Args;

/// Settings of the KAITO provider: arguments of its process. The default is a KAITO that does not provision nodes.
#[derive(Args, Clone, Debug, Default, PartialEq, Eq)]
pub struct KaitoConfig {
    /// KAITO provisions nodes itself (its feature gate disableNodeAutoProvisioning is off). It then requires an instance type on
    /// every Workspace, and rejects one otherwise (KAITO workspace_validation.go, validateCreate). A change of the instance
    /// types recreates the Workspaces
    #[arg(long)]
    pub node_auto_provisioning: bool,

    /// Instance type of nodes for models without GPUs, such as Standard_D8s_v5
    #[arg(long, value_name = "TYPE", requires = "node_auto_provisioning")]
    pub cpu_instance_type: Option<String>,

    /// Instance type of nodes for models with GPUs, such as Standard_NC24ads_A100_v4
    #[arg(long, value_name = "TYPE", requires = "node_auto_provisioning")]
    pub gpu_instance_type: Option<String>,

    /// Label of the GPU nodes, such as nvidia.com/gpu.present=true; repeatable. Selected for models with GPUs. KAITO rejects a
    /// preset if any selected node lacks NVIDIA's labels, which nodes without GPUs do
    #[arg(long = "gpu-node-label", value_name = "KEY=VALUE", value_parser = key_value)]
    pub gpu_node_labels: Vec<(String, String)>,
}

/// Reason why an argument is invalid.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ConfigError(String);

impl std::fmt::Display for ConfigError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for ConfigError {}

impl KaitoConfig {
    /// Labels of the nodes for a model with GPUs or without.
    pub(crate) fn node_labels(&self, gpu: bool) -> BTreeMap<String, String> {
        if gpu {
            self.gpu_node_labels.iter().cloned().collect()
        } else {
            BTreeMap::new()
        }
    }

    /// The argument that names the instance type for a model with GPUs or without, and its value.
    pub(crate) fn instance_type(&self, gpu: bool) -> (&'static str, Option<&str>) {
        if gpu {
            ("--gpu-instance-type", self.gpu_instance_type.as_deref())
        } else {
            ("--cpu-instance-type", self.cpu_instance_type.as_deref())
        }
    }
}

fn key_value(text: &str) -> Result<(String, String), ConfigError> {
    match text.split_once('=') {
        Some((key, value)) if !key.is_empty() => Ok((key.to_owned(), value.to_owned())),
        _ => Err(ConfigError(format!(
            "'{text}' is not KEY=VALUE, such as nvidia.com/gpu.present=true"
        ))),
    }
}
