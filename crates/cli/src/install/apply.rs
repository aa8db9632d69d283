//! Installs and upgrades: reads, checks, shows the changes, asks, applies, waits.

use std::collections::BTreeSet;

use kube::ResourceExt;
use kube::api::{Patch, PatchParams, ValidationDirective};
use kube::core::DynamicObject;
use runway_api::labels;
use runway_client::change::{self, Action, Change};
use runway_client::cluster::Cluster;
use runway_client::diff::MANAGER;
use runway_manifests::{self as manifests, Component, Identity, Release};
use runway_operator::scope::Namespaces;

use super::args::{ChangeArgs, ConsoleInstallArgs, InstallArgs, ProviderInstallArgs, Step};
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
    let survey = Survey::of(cluster, terminal).await?;
    let release = release(args, &survey).await?;
    survey.suits(&release)?;
    if let Some(installed) = survey.version_of(labels::CORE_MANAGER).await?
        && installed != release.tag
    {
        let wanted = release.tag;
        return Err(Error::OtherVersion { installed, wanted });
    }
    survey.not_elsewhere().await?;
    let core = [manifests::core()];
    let obsolete = obsolete_roles(&survey, &core, &release, args.step).await?;
    let wanted = wanted(&core, &release, args.step);
    bring(&survey, wanted, obsolete, MANAGER, &args.change, terminal).await
}

/// `controller upgrade`: the core and the built-in providers that are there, to this version.
///
/// # Errors
/// The cluster cannot be read, a permission or the confirmation is missing, or a write fails.
pub async fn upgrade(args: &InstallArgs, cluster: &Cluster, terminal: &mut Terminal<'_>) -> Result<Answer, Error> {
    let survey = Survey::of(cluster, terminal).await?;
    let mut release = release(args, &survey).await?;
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
        survey.not_elsewhere().await?;
        return Err(Error::NotInstalled);
    }
    let there = survey.labelled(&names(&installed), args.step).await?;
    // Options of the installation are kept.
    let has = |kind: &str| there.iter().any(|o| kinds::kind(o) == kind);
    let of_providers: BTreeSet<String> = installed.iter().flat_map(|c| &c.policy).map(kinds::id).collect();
    release.policy |= there.iter().any(|o| of_providers.contains(&kinds::id(o)));
    release.monitoring |= has("ServiceMonitor");
    release.engine_monitoring |= has("PodMonitor");
    survey.suits(&release)?;
    let wanted = wanted(&installed, &release, args.step);
    let places: BTreeSet<String> = wanted.iter().map(change::place).collect();
    let mut obsolete: Vec<DynamicObject> = there
        .into_iter()
        .filter(|o| !places.contains(&change::place(o)) && !kinds::KEPT.contains(&kinds::kind(o)))
        .collect();
    let found: BTreeSet<String> = obsolete.iter().map(change::place).collect();
    let roles = obsolete_roles(&survey, &installed, &release, args.step).await?;
    obsolete.extend(roles.into_iter().filter(|role| !found.contains(&change::place(role))));
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
    let step = args.install.step;
    let (mut wanted, mut obsolete) = (Vec::new(), Vec::new());
    for name in &args.which.names {
        // First, so that the provider starts with its settings.
        wanted.extend(settings::registration(&args.settings, built_in_provider(name)?, &survey).await?);
        let component = [built_in(name)?];
        obsolete.extend(obsolete_roles(&survey, &component, &release, step).await?);
        wanted.extend(self::wanted(&component, &release, step));
    }
    bring(&survey, wanted, obsolete, MANAGER, &args.install.change, terminal).await
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
    let there = survey
        .labelled(&[manifests::console::NAME.to_owned()], Step::All)
        .await?;
    let obsolete = there.into_iter().filter(|o| !ids.contains(&kinds::id(o))).collect();
    bring(&survey, wanted, obsolete, MANAGER, &args.install.change, terminal).await
}

/// Installs an operator that is not a provider: `asya install`, `llama-stack install`.
///
/// # Errors
/// The cluster cannot be read, a permission or the confirmation is missing, or a write fails.
pub async fn install_operator(
    component: Component,
    args: &InstallArgs,
    cluster: &Cluster,
    terminal: &mut Terminal<'_>,
) -> Result<Answer, Error> {
    let survey = Survey::of(cluster, terminal).await?;
    let release = beside_core(args, &survey).await?;
    let component = [component];
    let obsolete = obsolete_roles(&survey, &component, &release, args.step).await?;
    let wanted = wanted(&component, &release, args.step);
    bring(&survey, wanted, obsolete, MANAGER, &args.change, terminal).await
}

/// Release for an additional component: the version of the core, unless the user sets another.
async fn beside_core(args: &InstallArgs, survey: &Survey<'_>) -> Result<Release, Error> {
    let core = survey.version_of(labels::CORE_MANAGER).await?;
    if core.is_none() {
        survey.not_elsewhere().await?;
    }
    // The objects without a namespace may all be created before the first pod.
    if core.is_none() && args.step != Step::Cluster {
        return Err(Error::NotInstalled);
    }
    let mut release = release(args, survey).await?;
    if let Some(core) = core.filter(|_| args.image_tag.is_none()) {
        release.tag = core;
    }
    survey.suits(&release)?;
    Ok(release)
}

/// Arguments of an installed component.
async fn arguments(survey: &Survey<'_>, name: &str) -> Result<Vec<String>, Error> {
    let found = survey.deployment(name).await?.unwrap_or_default();
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
    let open = changes.iter().filter(|c| c.action != Action::Unchanged).count() + obsolete.len();
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
    for change in changes.iter().filter(|c| c.action != Action::Unchanged) {
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
        terminal.say(&format!("{} {id}", change.action.done()));
    }
    Ok(())
}

/// Objects of components that a step applies.
fn wanted(components: &[Component], release: &Release, step: Step) -> Vec<DynamicObject> {
    let all = components.iter().flat_map(|component| component.objects(release));
    all.filter(|object| step.includes(object.namespace().is_some()))
        .collect()
}

/// Roles of components, and their bindings, in namespaces that they watch now and that the release omits.
async fn obsolete_roles(
    survey: &Survey<'_>,
    components: &[Component],
    release: &Release,
    step: Step,
) -> Result<Vec<DynamicObject>, Error> {
    let mut obsolete = Vec::new();
    for component in components.iter().filter(|_| step.includes(true)) {
        let Some(installed) = survey.deployment(&component.name).await? else {
            continue;
        };
        let before = manifests::watched_by(&installed);
        let roles = component
            .roles(Identity::ServiceAccount, &before)
            .into_iter()
            .filter(|role| {
                let namespace = role.namespace().unwrap_or_default();
                let of = |list: &Namespaces| list.names().iter().any(|name| *name.as_str() == *namespace);
                of(&before) && !of(&release.namespaces)
            });
        for role in roles {
            obsolete.extend(survey.ours(&role).await?);
        }
    }
    Ok(obsolete)
}

/// The release with the choices of the user, or else of the installation.
async fn release(args: &InstallArgs, survey: &Survey<'_>) -> Result<Release, Error> {
    let standard = Release::default();
    let core = survey.deployment(labels::CORE_MANAGER).await?;
    let installed = core.as_ref().map(manifests::watched_by).unwrap_or_default();
    // They change objects without a namespace only.
    let (aggregation, permissions) = if args.step.includes(false) {
        survey.choices().await?
    } else {
        (standard.aggregation, standard.permissions)
    };
    Ok(Release {
        aggregation: args.aggregate_roles.unwrap_or(aggregation),
        namespaces: args.namespaces.clone().unwrap_or(installed),
        registry: args.image_registry.clone(),
        tag: args.image_tag.clone().unwrap_or(standard.tag),
        monitoring: args.monitoring,
        engine_monitoring: args.engine_monitoring,
        policy: args.provider_policy,
        permissions: args.permission_policy.unwrap_or(permissions),
    })
}
