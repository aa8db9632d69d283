//! Brings the product into a cluster, to another version, and out again: `kubeairunway controller`, `provider` and
//! `console`.
//!
//! Installing is: read, check, show, ask, apply, wait. Everything that can be known before the first write is known before it:
//! the server's version, each missing right, whose the objects of our names are, and (by a server-side dry run) what would
//! change in every field.
//!
//! | module | content |
//! |---|---|
//! | [`survey`] | the reader: version, rights, what is there, the dry run |
//! | [`change`] | what differs, field by field, and how that is shown; pure |
//! | [`remove`] | uninstalling |
//! | [`wait`] | until Deployments are ready, and why they are not |
//! | [`report`] | what is installed: tables |
//! | [`kinds`] | names and scope of the kinds of our objects |
//! | [`console`] | progress and questions |

pub mod console;
pub mod kinds;
pub mod remove;
pub mod report;
pub mod survey;
pub mod wait;

use std::collections::BTreeSet;

use k8s_openapi::api::apps::v1::Deployment;
use kube::api::{Patch, PatchParams, ValidationDirective};
use kube::core::DynamicObject;
use kube::{Api, ResourceExt};
use runway_api::labels;
use runway_api::name::{Invalid, Namespace, Segment};

use crate::args::{ChangeArgs, ConsoleInstallArgs, InstallArgs, ProviderInstallArgs};
use crate::commands::Answer;
use console::Console;
use runway_client::change::{self, Change, Deed};
use runway_client::cluster::{self, Cluster};
use runway_client::manifests::{self, Component, Release};
use survey::Survey;

pub use runway_client::diff::MANAGER;

/// The same for manifests of others.
pub const MANAGER_OF_OTHERS: &str = "kubeairunway-file";

/// Why nothing was installed, changed or removed, or not all of it.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The cluster cannot be read.
    #[error(transparent)]
    Cluster(#[from] cluster::Error),
    /// The cluster is too old.
    #[error(
        "the cluster runs Kubernetes {found}, but {what} 1.{oldest} or newer: upgrade the cluster. Nothing was changed"
    )]
    TooOld {
        /// The server's version.
        found: String,
        /// What asks for more.
        what: &'static str,
        /// The oldest minor version that will do.
        oldest: u32,
    },
    /// Rights are missing.
    #[error("you are not allowed to {}: ask a cluster administrator for these permissions. Nothing was changed", .0.join(", "))]
    Rights(Vec<String>),
    /// Objects of these names belong to somebody else.
    #[error("{}. Nothing was changed", .0.join("; "))]
    Refused(Vec<String>),
    /// The server would not take it.
    #[error("the API server rejects {what}: {message}. Nothing was changed")]
    DryRun {
        /// The object.
        what: String,
        /// What it said.
        message: String,
    },
    /// The server did not take it although it said that it would.
    #[error("cannot {doing}: run the command again to continue")]
    Write {
        /// What was tried.
        doing: String,
        /// What it said.
        source: Box<kube::Error>,
    },
    /// The user did not say yes.
    #[error("not confirmed: nothing was changed (--yes skips the confirmation)")]
    NotConfirmed,
    /// Another version is there.
    #[error("version {installed} is installed, not {wanted}: to change it, run: kubeairunway controller upgrade")]
    OtherVersion {
        /// The version that is there.
        installed: String,
        /// The version asked for.
        wanted: String,
    },
    /// There is nothing to upgrade, or nothing to add a provider to.
    #[error("the control plane is not installed in this cluster: to install it, run: kubeairunway controller install")]
    NotInstalled,
    /// No provider of that name comes with the product.
    #[error("unknown built-in provider '{name}': use one of {}, or set a manifest with -f FILE", .known.join(", "))]
    UnknownProvider {
        /// What was asked for.
        name: String,
        /// What there is.
        known: Vec<&'static str>,
    },
    /// The settings of a console are none.
    #[error("invalid arguments for `kubeairunway ui --login`: {0}")]
    Settings(String),
    /// A manifest cannot be read.
    #[error("{0}")]
    File(String),
    /// Pods do not become ready.
    #[error("timed out after {after} waiting for pods to become ready: {}", .reasons.join("; "))]
    NotReady {
        /// How long was waited.
        after: String,
        /// What keeps each Deployment.
        reasons: Vec<String>,
    },
    /// Something does not go away.
    #[error("timed out after {after} waiting for deletion: {}", .what.join(", "))]
    StillThere {
        /// How long was waited.
        after: String,
        /// What is there.
        what: Vec<String>,
    },
}

/// `controller install`.
pub async fn install(args: &InstallArgs, cluster: &Cluster, console: &mut Console<'_>) -> Result<Answer, Error> {
    let release = release(args);
    let survey = Survey::of(cluster, console).await?;
    survey.suits(&release)?;
    if let Some(installed) = survey.version_of(labels::CORE_MANAGER).await?
        && installed != release.tag
    {
        let wanted = release.tag;
        return Err(Error::OtherVersion { installed, wanted });
    }
    let wanted = manifests::core().objects(&release);
    bring(&survey, wanted, Vec::new(), MANAGER, &args.change, console).await
}

/// `controller upgrade`: the core and the built-in providers that are there, to this version.
pub async fn upgrade(args: &InstallArgs, cluster: &Cluster, console: &mut Console<'_>) -> Result<Answer, Error> {
    let mut release = release(args);
    let survey = Survey::of(cluster, console).await?;
    let mut installed = Vec::new();
    for component in manifests::all_components() {
        if survey.version_of(&component.name).await?.is_some() {
            installed.push(component);
        }
    }
    // What the console was told stays too.
    if let Some(web) = installed.iter_mut().find(|c| c.name == manifests::console::NAME) {
        *web = manifests::console::console(&told(&survey).await?);
    }
    if installed.first().is_none_or(|first| first.name != labels::CORE_MANAGER) {
        return Err(Error::NotInstalled);
    }
    let there = survey.labelled(&names(&installed)).await?;
    // What was asked for at the installation stays.
    let has = |kind: &str| there.iter().any(|o| kinds::kind(o) == kind);
    release.policy |= has("ValidatingAdmissionPolicy");
    release.monitoring |= has("ServiceMonitor");
    survey.suits(&release)?;
    let wanted: Vec<DynamicObject> = installed.iter().flat_map(|c| c.objects(&release)).collect();
    let ids: BTreeSet<String> = wanted.iter().map(kinds::id).collect();
    let obsolete = there
        .into_iter()
        .filter(|o| !ids.contains(&kinds::id(o)) && !kinds::KEPT.contains(&kinds::kind(o)))
        .collect();
    bring(&survey, wanted, obsolete, MANAGER, &args.change, console).await
}

/// `provider install`.
pub async fn install_provider(
    args: &ProviderInstallArgs,
    cluster: &Cluster,
    console: &mut Console<'_>,
) -> Result<Answer, Error> {
    let survey = Survey::of(cluster, console).await?;
    let release = beside_core(&args.install, &survey).await?;
    if !args.which.files.is_empty() {
        let wanted = read_manifest(&args.which.files, console)?;
        return bring(
            &survey,
            wanted,
            Vec::new(),
            MANAGER_OF_OTHERS,
            &args.install.change,
            console,
        )
        .await;
    }
    let mut wanted = Vec::new();
    for name in &args.which.names {
        wanted.extend(built_in(name)?.objects(&release));
    }
    bring(&survey, wanted, Vec::new(), MANAGER, &args.install.change, console).await
}

/// `console install`.
pub async fn install_console(
    args: &ConsoleInstallArgs,
    cluster: &Cluster,
    console: &mut Console<'_>,
) -> Result<Answer, Error> {
    let survey = Survey::of(cluster, console).await?;
    let release = beside_core(&args.install, &survey).await?;
    let wanted = manifests::console::console(&args.settings()?).objects(&release);
    let ids: BTreeSet<String> = wanted.iter().map(kinds::id).collect();
    // The right to impersonate goes with the wish to.
    let there = survey.labelled(&[manifests::console::NAME.to_owned()]).await?;
    let obsolete = there.into_iter().filter(|o| !ids.contains(&kinds::id(o))).collect();
    bring(&survey, wanted, obsolete, MANAGER, &args.install.change, console).await
}

/// How something is installed beside the core: in its version, unless the user says otherwise.
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

/// What the console that is installed was told.
async fn told(survey: &Survey<'_>) -> Result<Vec<String>, Error> {
    let api: Api<Deployment> = Api::namespaced(survey.client(), manifests::NAMESPACE);
    let name = manifests::console::NAME;
    let found = api.get(name).await;
    let found = found.map_err(|e| survey.failed(e, format!("read Deployment/{name}")))?;
    let pod = found.spec.and_then(|spec| spec.template.spec).unwrap_or_default();
    let args = pod.containers.into_iter().next().and_then(|container| container.args);
    Ok(manifests::console::settings(&args.unwrap_or_default()))
}

/// Makes the cluster as wanted: checks, shows, asks, applies, waits.
async fn bring(
    survey: &Survey<'_>,
    mut wanted: Vec<DynamicObject>,
    obsolete: Vec<DynamicObject>,
    manager: &str,
    args: &ChangeArgs,
    console: &mut Console<'_>,
) -> Result<Answer, Error> {
    manifests::fit(&mut wanted, survey.minor());
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
        console.say("unchanged: all objects are up to date");
    } else {
        console.say(shown.trim_end());
        if !args.yes && !console.ask("Continue?") {
            return Err(Error::NotConfirmed);
        }
        apply(survey, &changes, manager, args, console).await?;
        for object in &obsolete {
            survey.delete(object).await?;
            console.say(&format!("deleted {}", kinds::id(object)));
        }
    }
    if args.wait {
        let deployments = changes.iter().filter(|c| kinds::kind(&c.object) == "Deployment");
        let deployments: Vec<(String, String)> = deployments
            .map(|c| (c.object.namespace().unwrap_or_default(), c.object.name_any()))
            .collect();
        wait::until_ready(survey, &deployments, args.timeout(), console).await?;
    }
    Ok(Answer::default())
}

async fn apply(
    survey: &Survey<'_>,
    changes: &[Change],
    manager: &str,
    args: &ChangeArgs,
    console: &mut Console<'_>,
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
        console.say(&format!("{} {id}", change.deed.done()));
    }
    Ok(())
}

fn release(args: &InstallArgs) -> Release {
    let standard = Release::default();
    Release {
        registry: args.image_registry.clone(),
        tag: args.image_tag.clone().unwrap_or(standard.tag),
        monitoring: args.monitoring,
        policy: args.provider_policy,
    }
}

fn built_in(name: &str) -> Result<Component, Error> {
    let providers = manifests::built_in_providers();
    let found = providers.iter().find(|p| p.name() == name);
    found
        .map(|provider| manifests::provider(provider.as_ref()))
        .ok_or_else(|| Error::UnknownProvider {
            name: name.to_owned(),
            known: providers.iter().map(|p| p.name()).collect(),
        })
}

/// The objects of a manifest of somebody else, those first that others need.
fn read_manifest(files: &[std::path::PathBuf], console: &mut Console<'_>) -> Result<Vec<DynamicObject>, Error> {
    let documents = runway_client::documents::Documents::read(files, console.stdin);
    if let Some(error) = documents.errors.first() {
        return Err(Error::File(runway_operator::telemetry::chain(error)));
    }
    let mut objects = Vec::new();
    for document in &documents.found {
        let mut object: DynamicObject = document
            .parse()
            .map_err(|error| Error::File(runway_operator::telemetry::chain(&error)))?;
        if object.namespace().is_none() && kinds::is_namespaced(&object) == Some(true) {
            object.metadata.namespace = Some(manifests::NAMESPACE.to_owned());
        }
        named(&object).map_err(|invalid| Error::File(format!("{}: {invalid}", document.subject())))?;
        objects.push(object);
    }
    objects.sort_by_key(|o| kinds::rank(kinds::kind(o)));
    Ok(objects)
}

/// Whether an object can be where it says. Not every kind's names are subdomains: `system:node` is a role.
fn named(object: &DynamicObject) -> Result<(), Invalid> {
    object.name_any().parse::<Segment>()?;
    object
        .namespace()
        .map_or(Ok(()), |namespace| namespace.parse::<Namespace>().map(drop))?;
    let mut group_and_version = object.types.iter().flat_map(|types| types.api_version.split('/'));
    group_and_version.try_for_each(|part| part.parse::<Segment>().map(drop))
}

fn names(components: &[Component]) -> Vec<String> {
    components.iter().map(|c| c.name.clone()).collect()
}
