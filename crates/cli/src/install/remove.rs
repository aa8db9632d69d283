//! Uninstalling. It leaves nothing behind, and never a ModelDeployment without the controller that must clean up after it.
//!
//! Models serve users: while there are ModelDeployments, nothing is uninstalled, unless `--delete-models` says that they go
//! too. They go first, while the controllers are still there to delete what they made. The CRDs stay without `--crds`.

use std::time::Duration;

use k8s_openapi::api::core::v1::Pod;
use kube::api::ListParams;
use kube::core::DynamicObject;
use kube::{Api, ResourceExt};
use runway_api::{InferenceProviderConfig, ModelDeployment};
use serde_json::json;

use super::args::{ProviderUninstallArgs, RemoveArgs, Step, UninstallArgs};
use super::manifest::{built_in, names, read_manifest};
use super::survey::Survey;
use super::{Error, kinds};
use crate::answer::Answer;
use crate::patience::Patience;
use crate::terminal::Terminal;
use runway_client::change;
use runway_client::cluster::{self, Cluster, only};
use runway_client::target::Kind;
use runway_client::text;
use runway_manifests::{self as manifests, Component, NAMESPACE, WEBHOOK_SECRET};

/// Names tell people more than numbers, up to a point.
const MOST_NAMES: usize = 5;

/// `controller uninstall`: the core and the built-in providers.
///
/// # Errors
/// ModelDeployments still exist, a permission or the confirmation is missing, or a deletion fails.
pub async fn controller(args: &UninstallArgs, cluster: &Cluster, terminal: &mut Terminal<'_>) -> Result<Answer, Error> {
    let survey = Survey::of(cluster, terminal).await?;
    let components = manifests::all_components();
    let providers: Vec<&str> = manifests::built_in_providers().iter().map(|p| p.name()).collect();
    let registered = configs(&survey).await?;
    let others: Vec<String> = registered
        .iter()
        .map(ResourceExt::name_any)
        .filter(|name| !providers.contains(&name.as_str()))
        .collect();
    if !others.is_empty() {
        return Err(Error::Refused(vec![format!(
            "{} still registered: {}. To remove it, run: kubeairunway provider uninstall -f FILE, or delete the InferenceProviderConfig if its controller is gone",
            if others.len() == 1 {
                "a third-party provider is"
            } else {
                "third-party providers are"
            },
            others.join(", ")
        )]));
    }
    let models = models(&survey, |_| true).await?;
    may_go(&models, args)?;
    let mut objects = survey.labelled(&names(&components), Step::All).await?;
    objects.extend(left_by_controllers(&survey).await?);
    objects.extend(registered.iter().map(as_object));
    let mut kept = Vec::new();
    if !args.crds {
        objects.retain(|o| kinds::kind(o) != "CustomResourceDefinition");
        kept.push("CRDs (use --crds to delete them)".to_owned());
    }
    let strangers = strangers(&survey).await?;
    if !strangers.is_empty() {
        objects.retain(|o| kinds::kind(o) != "Namespace");
        kept.push(format!(
            "Namespace/{NAMESPACE}, which also contains {}",
            few(&strangers)
        ));
    }
    take_away(&survey, objects, models, &kept, &args.remove, terminal).await
}

/// `console uninstall`.
///
/// # Errors
/// ModelDeployments still exist, a permission or the confirmation is missing, or a deletion fails.
pub async fn web_console(args: &RemoveArgs, cluster: &Cluster, terminal: &mut Terminal<'_>) -> Result<Answer, Error> {
    let survey = Survey::of(cluster, terminal).await?;
    let objects = survey
        .labelled(&[manifests::console::NAME.to_owned()], Step::All)
        .await?;
    take_away(&survey, objects, Vec::new(), &[], args, terminal).await
}

/// Removes an operator that is not a provider: `asya uninstall`, `llama-stack uninstall`. Its objects go first, while it still runs.
///
/// # Errors
/// Objects of its kind still exist, a permission or the confirmation is missing, or a deletion fails.
pub async fn operator(
    component: &Component,
    kind: Kind,
    args: &RemoveArgs,
    cluster: &Cluster,
    terminal: &mut Terminal<'_>,
) -> Result<Answer, Error> {
    let survey = Survey::of(cluster, terminal).await?;
    let found = match cluster.all(kind, None).await {
        Ok(found) => found,
        Err(cluster::Error::NotInstalled { .. }) => Vec::new(),
        Err(error) => return Err(error.into()),
    };
    if !found.is_empty() {
        let all: Vec<String> = found
            .iter()
            .map(|object| format!("{}/{}", object.namespace().unwrap_or_default(), object.name_any()))
            .collect();
        return Err(Error::Refused(vec![format!(
            "{} of kind {} still exist: {}. Delete them first, in each namespace: kubeairunway delete {} --all -n NAMESPACE",
            all.len(),
            kind.as_str(),
            few(&all),
            kind.as_str().to_lowercase()
        )]));
    }
    let mut objects = survey
        .labelled(std::slice::from_ref(&component.name), Step::All)
        .await?;
    let before = objects.len();
    objects.retain(|o| kinds::kind(o) != "CustomResourceDefinition");
    let kept = (objects.len() < before).then(|| "CRDs (controller uninstall --crds deletes them)".to_owned());
    take_away(&survey, objects, Vec::new(), kept.as_slice(), args, terminal).await
}

/// `provider uninstall`.
///
/// # Errors
/// ModelDeployments still exist, a permission or the confirmation is missing, or a deletion fails.
pub async fn provider(
    args: &ProviderUninstallArgs,
    cluster: &Cluster,
    terminal: &mut Terminal<'_>,
) -> Result<Answer, Error> {
    let survey = Survey::of(cluster, terminal).await?;
    let mut objects = Vec::new();
    let mut served: Vec<String> = args.which.names.clone();
    for name in &args.which.names {
        objects.extend(survey.labelled(&[built_in(name)?.name], Step::All).await?);
    }
    let mut kept = Vec::new();
    if !args.which.files.is_empty() {
        for mut object in read_manifest(&args.which.files, terminal)? {
            let kind = kinds::kind(&object);
            if kind == "Namespace" || (kind == "CustomResourceDefinition" && !args.uninstall.crds) {
                kept.push(format!("{} (other objects may depend on it)", kinds::id(&object)));
                continue;
            }
            if kind == "InferenceProviderConfig" {
                served.push(object.name_any());
            }
            let live = survey.api(&object).await?.get_opt(&object.name_any()).await;
            if let Some(live) = live.map_err(|e| survey.failed(e, format!("read {}", kinds::id(&object))))? {
                object.metadata = live.metadata;
                objects.push(object);
            }
        }
    }
    let registered = configs(&survey).await?;
    objects.retain(|o| kinds::kind(o) != "InferenceProviderConfig");
    objects.extend(
        registered
            .iter()
            .filter(|c| served.contains(&c.name_any()))
            .map(as_object),
    );
    let models = models(&survey, |md| uses(md, &served)).await?;
    may_go(&models, &args.uninstall)?;
    take_away(&survey, objects, models, &kept, &args.uninstall.remove, terminal).await
}

/// Refuses the removal if there are ModelDeployments, unless `--delete-models` is set.
fn may_go(models: &[ModelDeployment], args: &UninstallArgs) -> Result<(), Error> {
    if models.is_empty() || args.delete_models {
        return Ok(());
    }
    let all: Vec<String> = models.iter().map(called).collect();
    Err(Error::Refused(vec![format!(
        "{} {}: {}. Delete them first, or use --delete-models",
        models.len(),
        if models.len() == 1 {
            "ModelDeployment exists"
        } else {
            "ModelDeployments exist"
        },
        few(&all)
    )]))
}

/// Shows, asks, and deletes: ModelDeployments first, then what came last at the installation.
async fn take_away(
    survey: &Survey<'_>,
    mut objects: Vec<DynamicObject>,
    models: Vec<ModelDeployment>,
    kept: &[String],
    args: &RemoveArgs,
    terminal: &mut Terminal<'_>,
) -> Result<Answer, Error> {
    objects.sort_by_key(|o| std::cmp::Reverse(kinds::rank(kinds::kind(o))));
    if objects.is_empty() && models.is_empty() {
        terminal.say("unchanged: nothing is installed in this cluster");
        return Ok(Answer::default());
    }
    survey.rights_to_delete(&objects).await?;
    let deleted = models
        .iter()
        .map(|md| format!("delete  ModelDeployment/{}", called(md)));
    let mut shown = text::lines(deleted);
    shown.push_str(&change::show(&[], &objects));
    shown.extend(kept.iter().map(|what| format!("keep    {what}\n")));
    if args.dry_run {
        return Ok(Answer {
            data: shown,
            ..Answer::default()
        });
    }
    terminal.say(shown.trim_end());
    if !args.yes && !terminal.ask("Delete these objects?") {
        return Err(Error::NotConfirmed);
    }
    delete_models(survey, &models, args.timeout(), terminal).await?;
    for object in &objects {
        survey.delete(object).await?;
        terminal.say(&format!("deleted {}", kinds::id(object)));
        if kinds::kind(object) == "Deployment" {
            // A controller that still runs would register itself again.
            until_no_pods(survey, object, args.timeout()).await?;
        }
    }
    if args.wait {
        until_gone(survey, &objects, args.timeout(), terminal).await?;
    }
    Ok(Answer::default())
}

async fn delete_models(
    survey: &Survey<'_>,
    models: &[ModelDeployment],
    timeout: Duration,
    terminal: &mut Terminal<'_>,
) -> Result<(), Error> {
    for md in models {
        let api: Api<ModelDeployment> = Api::namespaced(survey.client(), &md.namespace().unwrap_or_default());
        match api.delete(&md.name_any(), &only(&md.uid().unwrap_or_default())).await {
            Ok(_) => {}
            // Gone already, or another one of the same name is there now.
            Err(kube::Error::Api(status)) if status.is_not_found() || status.is_conflict() => {}
            Err(error) => return Err(survey.failed(error, format!("delete ModelDeployment/{}", called(md)))),
        }
    }
    let patience = Patience::of(timeout);
    let mut before = models.len();
    loop {
        let left: Vec<String> = self::models(survey, |md| models.iter().any(|m| m.uid() == md.uid()))
            .await?
            .iter()
            .map(called)
            .collect();
        if left.len() < before {
            terminal.say(&format!(
                "deleted {} of {} ModelDeployments",
                models.len() - left.len(),
                models.len()
            ));
        }
        before = left.len();
        if left.is_empty() {
            return Ok(());
        }
        if !patience.lasts().await {
            return Err(Error::StillThere {
                after: text::age(timeout),
                what: vec![format!(
                    "ModelDeployments {}: their controllers clean up first, at most 5 minutes each (are the controllers running?); nothing else was deleted",
                    few(&left)
                )],
            });
        }
    }
}

async fn until_no_pods(survey: &Survey<'_>, deployment: &DynamicObject, timeout: Duration) -> Result<(), Error> {
    let labels = deployment
        .data
        .pointer("/spec/selector/matchLabels")
        .and_then(|l| l.as_object());
    let Some(labels) = labels else { return Ok(()) };
    let selector: Vec<String> = labels
        .iter()
        .filter_map(|(key, value)| Some(format!("{key}={}", value.as_str()?)))
        .collect();
    let namespace = deployment.namespace().unwrap_or_default();
    let pods: Api<Pod> = Api::namespaced(survey.client(), &namespace);
    let patience = Patience::of(timeout);
    loop {
        let found = pods.list(&ListParams::default().labels(&selector.join(","))).await;
        let left = found.map_err(|e| survey.failed(e, "list pods"))?.items;
        if left.is_empty() {
            return Ok(());
        }
        if !patience.lasts().await {
            return Err(Error::StillThere {
                after: text::age(timeout),
                what: left.iter().map(|pod| format!("Pod/{}", pod.name_any())).collect(),
            });
        }
    }
}

async fn until_gone(
    survey: &Survey<'_>,
    objects: &[DynamicObject],
    timeout: Duration,
    terminal: &mut Terminal<'_>,
) -> Result<(), Error> {
    let patience = Patience::of(timeout);
    loop {
        let mut left = Vec::new();
        for object in objects {
            // The kind may have gone with its CRD.
            let Some(api) = survey.api_if_installed(object).await? else {
                continue;
            };
            match api.get_metadata(&object.name_any()).await {
                Ok(live) if live.uid() == object.uid() => left.push(kinds::id(object)),
                Ok(_) => {}
                Err(error) if is_unknown(&error) => {}
                Err(error) => return Err(survey.failed(error, format!("read {}", kinds::id(object)))),
            }
        }
        if left.is_empty() {
            terminal.say("all objects deleted");
            return Ok(());
        }
        if !patience.lasts().await {
            return Err(Error::StillThere {
                after: text::age(timeout),
                what: left,
            });
        }
    }
}

/// Objects that controllers create for themselves: the webhook's CA, and a Lease each.
async fn left_by_controllers(survey: &Survey<'_>) -> Result<Vec<DynamicObject>, Error> {
    let names = names(&manifests::all_components());
    let mut wanted = vec![json!({ "apiVersion": "v1", "kind": "Secret",
        "metadata": { "name": WEBHOOK_SECRET, "namespace": NAMESPACE } })];
    wanted.extend(names.iter().map(|name| {
        json!({ "apiVersion": "coordination.k8s.io/v1", "kind": "Lease",
            "metadata": { "name": name, "namespace": NAMESPACE } })
    }));
    let mut found = Vec::new();
    for value in wanted {
        let Ok(mut object) = serde_json::from_value::<DynamicObject>(value) else {
            continue;
        };
        let live = survey.api(&object).await?.get_metadata_opt(&object.name_any()).await;
        if let Some(live) = live.map_err(|e| survey.failed(e, format!("read {}", kinds::id(&object))))? {
            object.metadata = live.metadata;
            found.push(object);
        }
    }
    Ok(found)
}

/// Objects of others in the namespace of the controllers.
async fn strangers(survey: &Survey<'_>) -> Result<Vec<String>, Error> {
    let ours = names(&manifests::all_components());
    let mut found = Vec::new();
    for (resource, namespaced) in kinds::all() {
        let counts = ["ConfigMap", "Secret", "Service", "Deployment", "ServiceAccount"];
        if !namespaced || !counts.contains(&resource.kind.as_str()) {
            continue;
        }
        let api: Api<DynamicObject> = Api::namespaced_with(survey.client(), NAMESPACE, &resource);
        let all = api.list_metadata(&ListParams::default()).await;
        for object in all
            .map_err(|e| survey.failed(e, format!("list {}", resource.plural)))?
            .items
        {
            let name = object.name_any();
            let part = object.labels().get(manifests::COMPONENT_LABEL);
            let is_ours = part.is_some_and(|part| ours.contains(part));
            let is_given = ["kube-root-ca.crt", "default", WEBHOOK_SECRET].contains(&name.as_str());
            if !is_ours && !is_given {
                found.push(format!("{}/{name}", resource.kind));
            }
        }
    }
    Ok(found)
}

/// Whether object or kind do not exist; the latter error has a code, but no reason.
fn is_unknown(error: &kube::Error) -> bool {
    matches!(error, kube::Error::Api(status) if status.is_not_found() || status.code == 404)
}

async fn models(survey: &Survey<'_>, wanted: impl Fn(&ModelDeployment) -> bool) -> Result<Vec<ModelDeployment>, Error> {
    let api: Api<ModelDeployment> = Api::all(survey.client());
    match api.list(&ListParams::default()).await {
        Ok(list) => Ok(list.items.into_iter().filter(|md| wanted(md)).collect()),
        Err(error) if is_unknown(&error) => Ok(Vec::new()),
        Err(error) => Err(survey.failed(error, "list ModelDeployments in all namespaces")),
    }
}

async fn configs(survey: &Survey<'_>) -> Result<Vec<InferenceProviderConfig>, Error> {
    let api: Api<InferenceProviderConfig> = Api::all(survey.client());
    match api.list(&ListParams::default()).await {
        Ok(list) => Ok(list.items),
        Err(error) if is_unknown(&error) => Ok(Vec::new()),
        Err(error) => Err(survey.failed(error, "list InferenceProviderConfigs")),
    }
}

fn as_object(config: &InferenceProviderConfig) -> DynamicObject {
    let resource = kube::core::ApiResource::erase::<InferenceProviderConfig>(&());
    let mut object = DynamicObject::new(&config.name_any(), &resource);
    object.metadata = config.metadata.clone();
    object
}

fn uses(md: &ModelDeployment, providers: &[String]) -> bool {
    let asked = md.spec.provider.as_ref().and_then(|p| p.name.as_deref());
    let chosen = md.status.as_ref().and_then(|s| s.provider.as_ref()?.name.as_deref());
    [asked, chosen]
        .into_iter()
        .flatten()
        .any(|name| providers.iter().any(|p| p == name))
}

fn called(md: &ModelDeployment) -> String {
    format!("{}/{}", md.namespace().unwrap_or_default(), md.name_any())
}

fn few(all: &[String]) -> String {
    let shown = all.iter().take(MOST_NAMES).cloned().collect::<Vec<_>>().join(", ");
    match all.len().saturating_sub(MOST_NAMES) {
        0 => shown,
        more => format!("{shown} and {more} more"),
    }
}
