//! Controllers that can be killed: each has a runtime of its own, so that nothing of it outlives the kill, as with a process.

use std::fmt;
use std::str::FromStr;
use std::sync::Arc;

use anyhow::{Context, Result};
use kube::{Client, Config};
use parking_lot::Mutex;
use runway_api::labels;
use runway_core::Registry;
use runway_operator::process::Process;
use runway_provider::{Kind, Provider};
use runway_provider_direct::Direct;
use runway_provider_dynamo::Dynamo;
use runway_provider_kaito::Kaito;
use runway_provider_kuberay::KubeRay;
use runway_testbed::ControlPlane;
use runway_testbed::fault::FaultProxy;
use serde_json::{Value, json};
use tokio::runtime::{Builder, Runtime};
use tokio_util::sync::CancellationToken;

use crate::scenario::{ACTOR, MODEL, STACK, Until, actor, distribution};
use runway_product_testbed::{asya_args, gemma, llama_stack_settings, vllm};

/// A controller of the product.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Who {
    Core,
    Kaito,
    Dynamo,
    KubeRay,
    Direct,
    Asya,
    LlamaStack,
}

impl Who {
    pub(crate) const ALL: [Self; 7] = [
        Self::Core,
        Self::Kaito,
        Self::Dynamo,
        Self::KubeRay,
        Self::Direct,
        Self::Asya,
        Self::LlamaStack,
    ];
    pub(crate) const PROVIDERS: [Self; 4] = [Self::Kaito, Self::Dynamo, Self::KubeRay, Self::Direct];

    /// User and field manager.
    fn manager(self) -> String {
        match self {
            Self::Core => labels::CORE_MANAGER.to_owned(),
            Self::Asya => labels::ASYA_MANAGER.to_owned(),
            Self::LlamaStack => labels::llama_stack::MANAGER.to_owned(),
            provider => labels::provider_manager(&provider.to_string()),
        }
    }

    async fn run(self, client: Client) -> Result<()> {
        match self {
            Self::Core => {
                let process = Process::alone(client, CancellationToken::new());
                runway_core::run(process, Arc::new(Registry::default()), true).await;
            }
            Self::Kaito => provide(Kaito::default(), client).await,
            Self::Dynamo => provide(Dynamo::default(), client).await,
            Self::KubeRay => provide(KubeRay::default(), client).await,
            Self::Direct => provide(Direct::default(), client).await,
            Self::Asya => {
                let process = Process::alone(client, CancellationToken::new());
                runway_asya_operator::run(process, asya_args(TRANSPORTS)).await?;
            }
            Self::LlamaStack => {
                let process = Process::alone(client, CancellationToken::new());
                runway_llama_stack_operator::run(process, llama_stack_settings("registry.example/operator:1")).await;
            }
        }
        Ok(())
    }

    /// An object that the controller reports once, without creating anything for it.
    pub(crate) fn sentinel(self) -> (Kind, Value, Until) {
        let name = format!("{SENTINEL}{self}");
        let (kind, mut object, annotation, until) = match self {
            Self::Core => (MODEL, gemma(&name), labels::PAUSED, Until::Is("Paused", "True")),
            Self::Asya => (ACTOR, actor(&name), labels::ASYA_PAUSED, Until::Is("Paused", "True")),
            Self::LlamaStack => (
                STACK,
                distribution(&name),
                labels::llama_stack::PAUSED,
                Until::Is("Paused", "True"),
            ),
            provider => {
                let model = vllm(&name, &provider.to_string());
                (MODEL, model, labels::DRY_RUN, Until::Is("DryRun", "True"))
            }
        };
        object["metadata"]["annotations"] = json!({ annotation: "true" });
        (kind, object, until)
    }
}

/// Begin of the names of sentinels.
pub(crate) const SENTINEL: &str = "sentinel-";

const TRANSPORTS: &str = r#"{"transports": {"rabbitmq": {"type": "rabbitmq", "config": {"host": "rabbitmq", "username": "asya",
    "passwordSecretRef": {"name": "rabbitmq", "key": "password"}}}}}"#;

async fn provide(provider: impl Provider, client: Client) {
    // No pod runs here, so no endpoint could answer.
    runway_provider::run(provider, Process::alone(client, CancellationToken::new()), false).await;
}

impl fmt::Display for Who {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Core => "core",
            Self::Kaito => "kaito",
            Self::Dynamo => "dynamo",
            Self::KubeRay => "kuberay",
            Self::Direct => "direct",
            Self::Asya => "asya",
            Self::LlamaStack => "llama-stack",
        })
    }
}

impl FromStr for Who {
    type Err = anyhow::Error;

    fn from_str(text: &str) -> Result<Self> {
        let found = Self::ALL.into_iter().find(|who| who.to_string() == text);
        found.with_context(|| format!("unknown controller `{text}`"))
    }
}

/// A controller behind its proxy. Dropping it is a kill.
pub(crate) struct Controller {
    pub(crate) who: Who,
    pub(crate) proxy: FaultProxy,
    config: Config,
    runtime: Mutex<Option<Runtime>>,
}

impl Controller {
    pub(crate) async fn start(who: Who, cluster: &ControlPlane, namespace: &str) -> Result<Arc<Self>> {
        let proxy = FaultProxy::start(cluster, &who.manager(), namespace).await?;
        let controller = Arc::new(Self {
            who,
            config: proxy.config()?,
            proxy,
            runtime: Mutex::default(),
        });
        let killed = Arc::downgrade(&controller);
        controller.proxy.on_kill(move || {
            if let Some(controller) = killed.upgrade() {
                controller.restart();
            }
        });
        controller.restart();
        Ok(controller)
    }

    /// Kills it, if it runs, and starts it again.
    pub(crate) fn restart(&self) {
        self.kill();
        let Ok(runtime) = Builder::new_multi_thread().worker_threads(1).enable_all().build() else {
            return;
        };
        let (who, config) = (self.who, self.config.clone());
        // One that ends by itself is missed at the next step of its scenario.
        runtime.spawn(async move { who.run(Client::try_from(config)?).await });
        *self.runtime.lock() = Some(runtime);
    }

    pub(crate) fn kill(&self) {
        let runtime = self.runtime.lock().take();
        if let Some(runtime) = runtime {
            runtime.shutdown_background();
        }
    }
}

impl Drop for Controller {
    fn drop(&mut self) {
        self.kill();
    }
}
