//! Tasks that act once and end. The chart runs them as Jobs: before a release is uninstalled or switches controllers off, and
//! after it was installed.

use k8s_openapi::api::rbac::v1::PolicyRule;
use kube::api::{ListParams, Patch, PatchParams};
use kube::core::{DynamicObject, Resource};
use kube::{Api, Client, ResourceExt};
use runway_api::{AsyncActor, InferenceProviderConfig, ModelDeployment, labels};
use runway_operator::access::rule;
use runway_operator::scope::Namespaces;
use serde_json::{Value, json};

/// Name of [`Task::CheckUninstall`].
pub const CHECK_UNINSTALL: &str = "check-uninstall";
/// Name of [`Task::ApplySettings`].
pub const APPLY_SETTINGS: &str = "apply-settings";
/// ModelDeployments, as an argument of [`CHECK_UNINSTALL`].
pub const MODELS: &str = "modeldeployments";
/// AsyncActors, as an argument of [`CHECK_UNINSTALL`].
pub const ACTORS: &str = "asyncactors";

/// Field manager of settings: that of Helm.
const MANAGER: &str = "helm";
/// Number of objects that a message names.
const MOST_NAMES: usize = 5;
/// Number of objects in one response.
const PAGE: u32 = 500;

/// A task.
#[derive(Clone, Debug, clap::Subcommand)]
pub enum Task {
    /// Fail if objects exist whose deletion only a controller completes
    #[command(name = CHECK_UNINSTALL)]
    CheckUninstall {
        /// Kinds of the controllers that are uninstalled
        #[arg(value_name = "KIND", value_parser = [MODELS, ACTORS])]
        kinds: Vec<String>,
    },
    /// Apply spec.settings of InferenceProviderConfigs
    #[command(name = APPLY_SETTINGS)]
    ApplySettings {
        /// Name of a provider with its settings, such as direct={"registryMirror":"registry.example.com"}
        #[arg(value_name = "NAME=JSON", value_parser = assignment, required = true)]
        settings: Vec<(String, Value)>,
    },
}

/// Reason why a task fails.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// Objects exist that would never be deleted.
    #[error(
        "uninstalling the controllers now would leave {count} whose deletion never completes, because only the controllers remove \
         the finalizer: {names}; delete them first with `kubectl delete {kinds} --all --all-namespaces`, or keep them by \
         Helm's `--no-hooks`"
    )]
    Remaining {
        /// Number of objects, such as "3 objects".
        count: String,
        /// Some of them.
        names: String,
        /// Their kinds, as arguments of kubectl.
        kinds: String,
    },
    /// Objects cannot be listed.
    #[error("cannot list {kind}")]
    List {
        /// Plural of the kind.
        kind: String,
        /// Response of the API server.
        #[source]
        source: Box<kube::Error>,
    },
    /// Settings cannot be applied.
    #[error("cannot apply spec.settings of InferenceProviderConfig '{name}'")]
    Apply {
        /// Name of the provider.
        name: String,
        /// Response of the API server.
        #[source]
        source: Box<kube::Error>,
    },
}

/// Permissions of [`Task::CheckUninstall`].
pub fn access_to_check_uninstall() -> Vec<PolicyRule> {
    vec![
        rule("kubeairunway.ai", &[MODELS], &["list"]),
        rule("asya.sh", &[ACTORS], &["list"]),
    ]
}

/// Permissions of [`Task::ApplySettings`].
pub fn access_to_apply_settings() -> PolicyRule {
    rule("kubeairunway.ai", &["inferenceproviderconfigs"], &["create", "patch"])
}

impl Task {
    /// Runs the task.
    ///
    /// # Errors
    /// Objects would remain, or a request fails.
    pub async fn run(&self, client: &Client, namespaces: &Namespaces) -> Result<(), Error> {
        match self {
            Self::CheckUninstall { kinds } => check_uninstall(client, namespaces, kinds).await,
            Self::ApplySettings { settings } => apply_settings(client, settings).await,
        }
    }
}

async fn check_uninstall(client: &Client, namespaces: &Namespaces, kinds: &[String]) -> Result<(), Error> {
    let (mut names, mut found) = (Vec::new(), Vec::new());
    for kind in kinds {
        let objects = if kind == MODELS {
            remaining::<ModelDeployment>(client, namespaces, labels::FINALIZER).await?
        } else {
            remaining::<AsyncActor>(client, namespaces, labels::ASYA_FINALIZER).await?
        };
        if !objects.is_empty() {
            found.push(kind.as_str());
        }
        names.extend(objects);
    }
    if names.is_empty() {
        tracing::info!("no object needs the controllers");
        return Ok(());
    }
    let mut shown = names.iter().take(MOST_NAMES).cloned().collect::<Vec<_>>().join(", ");
    if names.len() > MOST_NAMES {
        shown.push_str(", …");
    }
    Err(Error::Remaining {
        count: match names.len() {
            1 => "1 object".to_owned(),
            many => format!("{many} objects"),
        },
        names: shown,
        kinds: found.join(","),
    })
}

/// Objects of a kind with a finalizer, as `Kind NAMESPACE/NAME`; none if the kind is not installed.
async fn remaining<K>(client: &Client, namespaces: &Namespaces, finalizer: &str) -> Result<Vec<String>, Error>
where
    K: Resource<DynamicType = (), Scope = kube::core::NamespaceResourceScope>
        + Clone
        + std::fmt::Debug
        + serde::de::DeserializeOwned,
{
    let apis: Vec<Api<K>> = if namespaces.are_all() {
        vec![Api::all(client.clone())]
    } else {
        let names = namespaces.names().iter();
        names
            .map(|name| Api::namespaced(client.clone(), name.as_str()))
            .collect()
    };
    let failed = |source| Error::List {
        kind: K::plural(&()).into_owned(),
        source: Box::new(source),
    };
    let mut found = Vec::new();
    for api in apis {
        let mut page = ListParams::default().limit(PAGE);
        loop {
            let list = match api.list_metadata(&page).await {
                Ok(list) => list,
                Err(kube::Error::Api(status)) if status.code == 404 => break,
                Err(error) => return Err(failed(error)),
            };
            let waiting = list
                .items
                .iter()
                .filter(|object| object.finalizers().iter().any(|f| f == finalizer));
            found.extend(waiting.map(|object| {
                let namespace = object.namespace().unwrap_or_default();
                format!("{} {namespace}/{}", K::kind(&()), object.name_any())
            }));
            match list.metadata.continue_.filter(|token| !token.is_empty()) {
                Some(token) => page = page.continue_token(&token),
                None => break,
            }
        }
    }
    Ok(found)
}

async fn apply_settings(client: &Client, settings: &[(String, Value)]) -> Result<(), Error> {
    let api: Api<DynamicObject> = Api::all_with(
        client.clone(),
        &kube::core::ApiResource::erase::<InferenceProviderConfig>(&()),
    );
    for (name, settings) in settings {
        let object = json!({
            "apiVersion": InferenceProviderConfig::api_version(&()),
            "kind": InferenceProviderConfig::kind(&()),
            "metadata": { "name": name },
            "spec": { "settings": settings },
        });
        let applied = api
            .patch(name, &PatchParams::apply(MANAGER), &Patch::Apply(object))
            .await;
        applied.map_err(|source| Error::Apply {
            name: name.clone(),
            source: Box::new(source),
        })?;
        tracing::info!(name, "settings applied");
    }
    Ok(())
}

fn assignment(text: &str) -> Result<(String, Value), String> {
    let (name, settings) = text.split_once('=').ok_or("expected NAME=JSON")?;
    let settings =
        serde_json::from_str(settings).map_err(|error| format!("the settings are not valid JSON: {error}"))?;
    Ok((name.to_owned(), settings))
}
