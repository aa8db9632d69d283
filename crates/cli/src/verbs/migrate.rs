//! `kubeairunway migrate`: moves a ModelDeployment to another provider. Shows what will happen, asks, asks the controllers
//! for it by `spec.provider.name`, and waits until the model serves again.

use clap::Args;
use jiff::SignedDuration;
use jiff::Timestamp;
use kube::api::{Patch, PatchParams};
use kube::core::DynamicObject;
use kube::{Api, ResourceExt};
use runway_api::condition::{self, Conditions};
use runway_api::name::Name;
use runway_api::{ModelDeployment, ModelDeploymentStatus, Namespace};
use runway_client::target::name_of;
use runway_client::text::Format;
use runway_core::admission::validate;
use runway_core::providers::Providers;
use runway_operator::clock;
use runway_operator::plan::Plan;
use runway_provider::upstream::{Installed, crd_name, detect};
use runway_provider::{Configured, Provider, observe};
use serde_json::json;
use std::fmt::Write as _;
use std::sync::Arc;
use std::time::Duration;

use super::Error;
use super::arrival::{Arrival, arrival};
use super::surge::{Surge, SurgeArgs};
use crate::answer::Answer;
use crate::terminal::Terminal;
use runway_client::cluster::{self, Cluster};
use runway_client::diff::MANAGER;
use runway_client::{text, why};
use runway_manifests as manifests;

/// Arguments of `migrate`.
#[derive(Debug, Args)]
pub struct MigrateArgs {
    /// Name of the ModelDeployment
    #[arg(value_parser = name_of::<ModelDeployment>)]
    pub name: Name,
    /// Provider to migrate to
    #[arg(long, value_name = "PROVIDER")]
    pub to: String,
    /// Namespace; the namespace of the kubeconfig's current context if omitted
    #[arg(short, long)]
    pub namespace: Option<Namespace>,
    /// Do not ask for confirmation
    #[arg(short, long)]
    pub yes: bool,
    /// Only show the plan, and write the new provider's objects to stdout
    #[arg(long)]
    pub dry_run: bool,
    /// Output format
    #[arg(short, long, value_enum, default_value_t)]
    pub output: Format,
    /// Stand-in
    #[command(flatten)]
    pub surge: SurgeArgs,
    /// Wait until the model runs
    #[arg(long, default_value_t = true, num_args = 0..=1, require_equals = true, default_missing_value = "true", action = clap::ArgAction::Set)]
    pub wait: bool,
    /// Time to wait, such as 90s or 20m
    #[arg(long, default_value = "20m", value_name = "TIME")]
    pub timeout: SignedDuration,
}

impl MigrateArgs {
    /// Longest time to wait.
    pub fn timeout(&self) -> Duration {
        self.timeout.unsigned_abs()
    }
}

/// Moves it: read, show, ask, patch, wait.
///
/// # Errors
/// The provider would reject the ModelDeployment, the confirmation is missing, or the timeout expires.
pub async fn migrate(args: &MigrateArgs, cluster: &Cluster, terminal: &mut Terminal<'_>) -> Result<Answer, Error> {
    let namespace = args.namespace.as_ref().unwrap_or(&cluster.namespace);
    let md = cluster.deployment(namespace, &args.name).await?;
    let configs = cluster.configs().await?.into_iter().map(Arc::new);
    let providers = Providers::compile(configs, &Providers::default());
    let from = md.selected_provider().unwrap_or("(none)").to_owned();
    let surge = Surge::of(&args.surge, &md, &args.to, args.timeout(), cluster);
    if md.spec.provider_name() == Some(&args.to) && from == args.to {
        terminal.say(&format!("unchanged: already served by {}", args.to));
        if let Some(surge) = &surge {
            wait(args, cluster, namespace, &from, terminal).await?;
            surge.end(terminal).await?;
        }
        return Ok(Answer::default());
    }

    let provider = manifests::built_in_providers()
        .into_iter()
        .find(|p| p.name() == args.to);
    let installed = match &provider {
        Some(provider) => {
            let registered = providers.get(provider.name());
            let installed = installed(cluster, provider.as_ref()).await?;
            installed.registered(registered.map(|registered| registered.config.as_ref()))
        }
        None => Installed::default(),
    };
    let mut outlook = outlook(&md, &args.to, &providers, provider, &installed, clock::now())?;
    outlook.text.push_str(&Surge::outlook(surge.as_ref()));
    if args.dry_run {
        let data = text::documents(&outlook.objects, args.output).unwrap_or_default();
        terminal.say(outlook.text.trim_end());
        return Ok(Answer {
            data,
            ..Answer::default()
        });
    }
    terminal.say(outlook.text.trim_end());
    if !args.yes && !terminal.ask("Continue?") {
        return Err(Error::NotConfirmed);
    }
    let mut version = md.resource_version();
    if let Some(surge) = &surge {
        surge.begin(terminal).await?;
        let now = cluster.deployment(namespace, &args.name).await?;
        // The spec is that of the plan; annotations and status are not.
        if now.metadata.generation == md.metadata.generation {
            version = now.resource_version();
        }
    }
    ask_for(cluster, namespace, args, version).await?;
    if args.wait {
        let arrived = wait(args, cluster, namespace, &from, terminal).await;
        match &surge {
            Some(surge) if arrived.is_ok() => surge.end(terminal).await?,
            Some(surge) => surge.stays(terminal),
            None => {}
        }
        arrived?;
    }
    Ok(Answer::default())
}

/// Plan of a migration.
#[derive(Debug)]
pub struct Outlook {
    /// Plan as text.
    pub text: String,
    /// Objects that the new provider would create, if it is built in.
    pub objects: Vec<DynamicObject>,
}

/// Plans a migration. Fails if the new provider would reject the ModelDeployment.
///
/// # Errors
/// The provider is not registered, or would reject the ModelDeployment.
pub fn outlook(
    md: &ModelDeployment,
    to: &str,
    providers: &Providers,
    provider: Option<Arc<dyn Provider>>,
    installed: &Installed,
    now: Timestamp,
) -> Result<Outlook, Error> {
    let Some(registered) = providers.get(to) else {
        let known: Vec<&str> = providers.iter().map(|(name, _)| name).collect();
        return Err(Error::UnknownProvider {
            name: to.to_owned(),
            known: if known.is_empty() {
                "none".to_owned()
            } else {
                known.join(", ")
            },
        });
    };
    let refused = |reason: String| Error::Refused {
        provider: to.to_owned(),
        reason,
    };
    let mut moved = md.clone();
    moved.spec.provider.get_or_insert_default().name = Some(to.to_owned());
    moved.status = None;
    let verdict = validate(&moved, providers);
    if !verdict.is_valid() {
        return Err(refused(verdict.message()));
    }

    let mut said = verdict.warnings;
    moved.status = status(&runway_core::plan::plan(&runway_core::observe::Observed {
        md: Arc::new(moved.clone()),
        providers: Arc::new(providers.clone()),
        selector_enabled: true,
        autoscalers: runway_core::autoscalers::Autoscalers::default(),
        now,
    }));
    let by_core = moved.status.as_ref().and_then(|status| status.message.clone());
    let health = registered.health(now);
    if health != runway_api::provider_config::Health::Healthy {
        said.push(format!(
            "provider {to} is {}: the model stays pending until the provider is ready",
            why::health(&health)
        ));
    }
    let mut objects = Vec::new();
    match provider {
        None => said.push(format!(
            "{to} is not a built-in provider: this command cannot show the objects that it would create"
        )),
        Some(provider) => {
            let Configured {
                provider,
                invalid,
                answer_timeout,
            } = Configured::new(provider, registered.config.spec.settings.as_ref());
            let seen = observe::Observed {
                md: Arc::new(moved),
                installed: installed.clone(),
                invalid_settings: invalid,
                children: Vec::new(),
                pods: None,
                outage: None,
                verification: observe::Verification::Assumed,
                answer_timeout,
                now,
            };
            let plan = runway_provider::plan::plan(provider.as_ref(), &seen);
            let status = status(&plan).unwrap_or_default();
            if plan.apply.is_empty() {
                let paused = || "reconciliation is paused: run kubeairunway resume first".to_owned();
                return Err(refused(status.message.or(by_core).unwrap_or_else(paused)));
            }
            for kind in [condition::FIELDS_IGNORED, condition::OVERRIDES_IGNORED] {
                said.extend(status.conditions.get_condition(kind).map(|c| c.message.clone()));
            }
            objects.extend(plan.apply.into_iter().map(|apply| apply.object));
        }
    }
    Ok(Outlook {
        text: describe(md, to, &objects, &said),
        objects,
    })
}

/// Status that a plan would write.
fn status(plan: &Plan) -> Option<ModelDeploymentStatus> {
    serde_json::from_value(plan.status.clone()?).ok()
}

fn describe(md: &ModelDeployment, to: &str, objects: &[DynamicObject], said: &[String]) -> String {
    let old = md.status.as_ref().and_then(|s| s.provider.as_ref());
    let named = md.spec.provider_name().unwrap_or("(none)");
    let mut text = format!(
        "change  ModelDeployment/{} in {}\n          spec.provider.name: {named} → {to}\n",
        md.name_any(),
        md.namespace().unwrap_or_default(),
    );
    // Writing to a String does not fail.
    if let Some((kind, name)) = old.and_then(|p| Some((p.resource_kind.as_ref()?, p.resource_name.as_ref()?))) {
        let _ = writeln!(text, "delete  {kind}/{name}");
    }
    for object in objects {
        let kind = object.types.as_ref().map(|t| t.kind.as_str()).unwrap_or_default();
        let _ = writeln!(text, "create  {kind}/{}", object.name_any());
    }
    for line in said {
        let _ = writeln!(text, "warning: {}", runway_client::diagnostic::one_line(line));
    }
    text
}

/// Installed schemas of a provider; the newest if the user may not read CRDs.
async fn installed(cluster: &Cluster, provider: &dyn Provider) -> Result<Installed, Error> {
    let mut states = Vec::new();
    for upstream in provider.upstreams() {
        match cluster.crd(&crd_name(upstream.kind)).await {
            Ok(crd) => states.push((upstream.kind, detect(&upstream, crd.as_ref()))),
            Err(cluster::Error::Forbidden { .. }) => return Ok(Installed::newest(&provider.upstreams())),
            Err(error) => return Err(error.into()),
        }
    }
    Ok(Installed::new(states))
}

/// Sets the provider, if the object still has this resource version.
async fn ask_for(
    cluster: &Cluster,
    namespace: &Namespace,
    args: &MigrateArgs,
    version: Option<String>,
) -> Result<(), Error> {
    let api: Api<ModelDeployment> = Api::namespaced(cluster.client(), namespace);
    let patch = json!({
        "metadata": { "resourceVersion": version },
        "spec": { "provider": { "name": args.to } },
    });
    let params = PatchParams {
        field_manager: Some(MANAGER.to_owned()),
        ..PatchParams::default()
    };
    let patched = api.patch(&args.name, &params, &Patch::Merge(patch)).await;
    let doing = || format!("change ModelDeployment '{}'", args.name);
    patched.map_err(|e| cluster.explain(e, doing(), "ModelDeployment"))?;
    Ok(())
}

/// Waits until the model runs on the new provider, and reports progress.
async fn wait(
    args: &MigrateArgs,
    cluster: &Cluster,
    namespace: &Namespace,
    from: &str,
    terminal: &mut Terminal<'_>,
) -> Result<(), Error> {
    let read = async || Ok(cluster.deployment(namespace, &args.name).await?);
    let label = |md: &ModelDeployment| md.selected_provider().unwrap_or("no provider").to_owned();
    match arrival(read, &args.to, args.timeout(), label, terminal).await? {
        Arrival::Running => Ok(()),
        Arrival::Failed(message) => Err(Error::MigrationFailed {
            name: args.name.to_string(),
            namespace: namespace.to_string(),
            provider: args.to.clone(),
            message,
            from: from.to_owned(),
        }),
        Arrival::Late(_) => Err(Error::MigrationNotInTime {
            name: args.name.to_string(),
            namespace: namespace.to_string(),
            provider: args.to.clone(),
            after: text::age(args.timeout()),
        }),
    }
}
