//! Installs and upgrades: reads, checks, shows the changes, asks, applies, waits.

use std::collections::BTreeSet;

use k8s_openapi::api::apps::v1::Deployment;
use kube::api::{Patch, PatchParams, ValidationDirective};
use kube::core::DynamicObject;
use kube::{Api, ResourceExt};
use runway_api::labels;
use runway_client::change::{self, Change, Deed};
use runway_client::cluster::Cluster;
use runway_client::diff::MANAGER;
use runway_client::manifests::{self, Release};

use super::args::{ChangeArgs, ConsoleInstallArgs, InstallArgs, ProviderInstallArgs};
use super::manifest::{built_in, built_in_provider, names, read_manifest};
use super::survey::{MANAGER_OF_OTHERS, Survey};
use super::{Error, kinds, settings, wait};
use crate::answer::Answer;
use crate::terminal::Terminal;

/// `controller install`.
///
/// # Errors
/// The cluster cannot be read, a permission or the confirmation is missing, or a write fails.
pub async fn install(args: &InstallArgs, cluster: &Cluster, terminal: &mut Terminal<'_>) -> Result<Answer, Error> {
    let release = release(args);
    let survey = Survey::of(cluster, terminal).await?;
    survey.suits(&release)?;
    if let Some(installed) = survey.version_of(labels::CORE_MANAGER).await?
        && installed != release.tag
    {
        let wanted = release.tag;
        return Err(Error::OtherVersion { installed, wanted });
    }
    let wanted = manifests::core().objects(&release);
    bring(&survey, wanted, Vec::new(), MANAGER, &args.change, terminal).await
}

/// `controller upgrade`: the core and the built-in providers that are there, to this version.
///
/// # Errors
/// The cluster cannot be read, a permission or the confirmation is missing, or a write fails.
pub async fn upgrade(args: &InstallArgs, cluster: &Cluster, terminal: &mut Terminal<'_>) -> Result<Answer, Error> {
    let mut release = release(args);
    let survey = Survey::of(cluster, terminal).await?;
    let mut installed = Vec::new();
    for component in manifests::all_components() {
        if survey.version_of(&component.name).await?.is_some() {
            installed.push(component);
        }
    }
    // The settings of the console and the arguments of other optional components stay as well.
    for component in &mut installed {
        *component = match component.name.as_str() {
            name @ manifests::console::NAME => {
                manifests::console::console(&manifests::console::settings(&arguments(&survey, name).await?))
            }
            name @ (manifests::gateway::NAME | manifests::router::NAME | manifests::routes::NAME) => {
                let installed = arguments(&survey, name).await?;
                component.clone().with_arguments_of(&installed)
            }
            _ => continue,
        };
    }
    if installed.first().is_none_or(|first| first.name != labels::CORE_MANAGER) {
        return Err(Error::NotInstalled);
    }
    let there = survey.labelled(&names(&installed)).await?;
    // Options of the installation are kept.
    let has = |kind: &str| there.iter().any(|o| kinds::kind(o) == kind);
    let of_providers: BTreeSet<String> = installed.iter().flat_map(|c| &c.policy).map(kinds::id).collect();
    release.policy |= there.iter().any(|o| of_providers.contains(&kinds::id(o)));
    release.monitoring |= has("ServiceMonitor");
    release.engine_monitoring |= has("PodMonitor");
    survey.suits(&release)?;
    let wanted: Vec<DynamicObject> = installed.iter().flat_map(|c| c.objects(&release)).collect();
    let ids: BTreeSet<String> = wanted.iter().map(kinds::id).collect();
    let obsolete = there
        .into_iter()
        .filter(|o| !ids.contains(&kinds::id(o)) && !kinds::KEPT.contains(&kinds::kind(o)))
        .collect();
    bring(&survey, wanted, obsolete, MANAGER, &args.change, terminal).await
}

/// `provider install`.
///
/// # Errors
/// The cluster cannot be read, a permission or the confirmation is missing, or a write fails.
pub async fn install_provider(
    args: &ProviderInstallArgs,
    cluster: &Cluster,
    terminal: &mut Terminal<'_>,
) -> Result<Answer, Error> {
    let survey = Survey::of(cluster, terminal).await?;
    let release = beside_core(&args.install, &survey).await?;
    if !args.which.files.is_empty() {
        let wanted = read_manifest(&args.which.files, terminal)?;
        return bring(
            &survey,
            wanted,
            Vec::new(),
            MANAGER_OF_OTHERS,
            &args.install.change,
            terminal,
        )
        .await;
    }
    let count = args.which.names.len();
    if count > 1 && !args.settings.is_empty() {
        return Err(Error::SeveralProviders(count));
    }
    let mut wanted = Vec::new();
    for name in &args.which.names {
        // First, so that the provider starts with its settings.
        wanted.extend(settings::registration(&args.settings, built_in_provider(name)?, &survey).await?);
        wanted.extend(built_in(name)?.objects(&release));
    }
    bring(&survey, wanted, Vec::new(), MANAGER, &args.install.change, terminal).await
}

/// `console install`.
///
/// # Errors
/// The cluster cannot be read, a permission or the confirmation is missing, or a write fails.
pub async fn install_console(
    args: &ConsoleInstallArgs,
    settings: &[String],
    cluster: &Cluster,
    terminal: &mut Terminal<'_>,
) -> Result<Answer, Error> {
    let survey = Survey::of(cluster, terminal).await?;
    let release = beside_core(&args.install, &survey).await?;
    let wanted = manifests::console::console(settings).objects(&release);
    let ids: BTreeSet<String> = wanted.iter().map(kinds::id).collect();
    // The right to impersonate goes with the wish to.
    let there = survey.labelled(&[manifests::console::NAME.to_owned()]).await?;
    let obsolete = there.into_iter().filter(|o| !ids.contains(&kinds::id(o))).collect();
    bring(&survey, wanted, obsolete, MANAGER, &args.install.change, terminal).await
}

/// Release for an additional component: the version of the core, unless the user sets another.
async fn beside_core(args: &InstallArgs, survey: &Survey<'_>) -> Result<Release, Error> {
    let core = survey.version_of(labels::CORE_MANAGER).await?;
    let core = core.ok_or(Error::NotInstalled)?;
    let mut release = release(args);
    if args.image_tag.is_none() {
        release.tag = core;
    }
    survey.suits(&release)?;
    Ok(release)
}

/// Arguments of an installed component.
async fn arguments(survey: &Survey<'_>, name: &str) -> Result<Vec<String>, Error> {
    let api: Api<Deployment> = Api::namespaced(survey.client(), manifests::NAMESPACE);
    let found = api.get(name).await;
    let found = found.map_err(|e| survey.failed(e, format!("read Deployment/{name}")))?;
    let pod = found.spec.and_then(|spec| spec.template.spec).unwrap_or_default();
    let args = pod.containers.into_iter().next().and_then(|container| container.args);
    Ok(args.unwrap_or_default())
}

/// Makes the cluster as wanted: checks, shows, asks, applies, waits.
async fn bring(
    survey: &Survey<'_>,
    mut wanted: Vec<DynamicObject>,
    obsolete: Vec<DynamicObject>,
    manager: &str,
    args: &ChangeArgs,
    terminal: &mut Terminal<'_>,
) -> Result<Answer, Error> {
    if manifests::fit(&mut wanted, survey.minor()) {
        terminal.say(&format!(
            "note: permissions of users for single fields are not checked: ValidatingAdmissionPolicies require Kubernetes 1.{}",
            manifests::policy::OLDEST_KUBERNETES
        ));
    }
    survey.rights(&wanted, &obsolete).await?;
    let changes = survey.changes(wanted, manager, args.force_conflicts).await?;
    let shown = change::show(&changes, &obsolete);
    if args.dry_run {
        return Ok(Answer {
            data: shown,
            ..Answer::default()
        });
    }
    let open = changes.iter().filter(|c| c.deed != Deed::Unchanged).count() + obsolete.len();
    if open == 0 {
        terminal.say("unchanged: all objects are up to date");
    } else {
        terminal.say(shown.trim_end());
        if !args.yes && !terminal.ask("Continue?") {
            return Err(Error::NotConfirmed);
        }
        apply(survey, &changes, manager, args, terminal).await?;
        for object in &obsolete {
            survey.delete(object).await?;
            terminal.say(&format!("deleted {}", kinds::id(object)));
        }
    }
    if args.wait {
        let deployments = changes.iter().filter(|c| kinds::kind(&c.object) == "Deployment");
        let deployments: Vec<(String, String)> = deployments
            .map(|c| (c.object.namespace().unwrap_or_default(), c.object.name_any()))
            .collect();
        wait::until_ready(survey, &deployments, args.timeout(), terminal).await?;
    }
    Ok(Answer::default())
}

async fn apply(
    survey: &Survey<'_>,
    changes: &[Change],
    manager: &str,
    args: &ChangeArgs,
    terminal: &mut Terminal<'_>,
) -> Result<(), Error> {
    let parameters = PatchParams {
        force: args.force_conflicts,
        field_validation: Some(ValidationDirective::Strict),
        ..PatchParams::apply(manager)
    };
    for change in changes.iter().filter(|c| c.deed != Deed::Unchanged) {
        let object = &change.object;
        let id = kinds::id(object);
        let api = survey.api(object).await?;
        api.patch(&object.name_any(), &parameters, &Patch::Apply(object))
            .await
            .map_err(|source| Error::Write {
                doing: format!("apply {id}"),
                source: Box::new(source),
            })?;
        if kinds::kind(object) == "CustomResourceDefinition" {
            wait::until_established(survey, &object.name_any(), args.timeout()).await?;
        }
        terminal.say(&format!("{} {id}", change.deed.done()));
    }
    Ok(())
}

fn release(args: &InstallArgs) -> Release {
    let standard = Release::default();
    Release {
        registry: args.image_registry.clone(),
        tag: args.image_tag.clone().unwrap_or(standard.tag),
        monitoring: args.monitoring,
        engine_monitoring: args.engine_monitoring,
        policy: args.provider_policy,
        permissions: args.permission_policy,
    }
}
