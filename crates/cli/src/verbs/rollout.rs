//! `rollout`: another version of a model gets a part of the requests of the model router, and then replaces the model or goes.
//!
//! The canary is a second ModelDeployment with the annotations `canary-for` and `canary-weight`. Everything that this command knows
//! is in the cluster, so that an interrupted one can be run again, also by another user.

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use clap::{Args, Subcommand};
use jiff::{SignedDuration, Timestamp};
use json_patch::PatchOperation;
use kube::ResourceExt as _;
use kube::api::Patch;
use runway_api::model_deployment::ModelDeploymentSpec;
use runway_api::{EventReason, ModelDeployment, Name, Namespace, Phase, labels};
use runway_client::cluster::Cluster;
use runway_client::diff::MANAGER;
use runway_client::events;
use runway_client::target::{Kind, Target, name_of};
use runway_client::text::{self, Format};
use runway_operator::clock;
use serde::Serialize;
use serde_json::{Value, json};
use tokio::time::sleep;

use super::Error;
use super::arrival::arrival;
use super::beside::{self, beside};
use super::edit::guarded;
use crate::answer::{self, Answer};
use crate::terminal::Terminal;

/// Ending of the names of canaries.
const SUFFIX: &str = "-canary";
/// Interval at which a canary that gets requests is looked at.
const LOOK: Duration = Duration::from_secs(5);

/// Subcommands of `rollout`.
#[derive(Debug, Subcommand)]
pub enum RolloutCommand {
    /// Start a canary of a model, or change the weight of one
    ///
    /// The canary is a copy of the ModelDeployment with the fields of --set, named NAME-canary. While it serves, it gets a part of
    /// the requests for the model, for example: kubeairunway rollout start gemma --set image=registry.example/vllm:2 --weight 5.
    /// Callers use the name of the model. Requires the model router.
    ///
    /// With several weights, the command stays, and takes one after the other. If the router stops the canary, because it fails more
    /// often or answers later than the model, its weight is set to 0 and the command fails.
    Start(StartArgs),
    /// Show a model and its canary, and why the router has stopped the canary
    Status(StatusArgs),
    /// Replace the spec of a model by that of its canary, wait until it serves, and delete the canary
    ///
    /// scaling and gateway stay as they are. While no pod of the model serves, the canary gets all requests.
    Promote(EndArgs),
    /// Give all requests to the model again, and delete its canary
    Revert(EndArgs),
}

/// A model, and its namespace.
#[derive(Debug, Args)]
pub struct ModelArgs {
    /// Name of the ModelDeployment
    #[arg(value_parser = name_of::<ModelDeployment>)]
    pub name: Name,
    /// Namespace; the namespace of the kubeconfig's current context if omitted
    #[arg(short, long)]
    pub namespace: Option<Namespace>,
}

/// Arguments of `rollout start`.
#[derive(Debug, Args)]
pub struct StartArgs {
    /// The model.
    #[command(flatten)]
    pub model: ModelArgs,
    /// Field of the canary's spec and its value, such as image=IMAGE or engine.args.max-num-seqs=64; repeatable. A value is JSON, or
    /// else text
    #[arg(long = "set", value_name = "FIELD=VALUE")]
    pub fields: Vec<Field>,
    /// Number of replicas of the canary
    #[arg(long, value_name = "NUMBER", default_value_t = 1, value_parser = clap::value_parser!(i32).range(1..))]
    pub replicas: i32,
    /// Part of the requests in percent; several, separated by commas, are taken one after the other
    #[arg(long, value_name = "PERCENT", value_delimiter = ',', default_value = "10", value_parser = clap::value_parser!(u8).range(0..=100))]
    pub weight: Vec<u8>,
    /// With several weights: time for each, such as 10m
    #[arg(long, value_name = "TIME", default_value = "10m")]
    pub interval: SignedDuration,
    /// With several weights: time until the canary must serve, such as 20m
    #[arg(long, value_name = "TIME", default_value = "20m")]
    pub timeout: SignedDuration,
    /// Do not ask for confirmation
    #[arg(short, long)]
    pub yes: bool,
}

/// Arguments of `rollout status`.
#[derive(Debug, Args)]
pub struct StatusArgs {
    /// The model.
    #[command(flatten)]
    pub model: ModelArgs,
    /// Output format; a table if omitted
    #[arg(short, long, value_enum)]
    pub output: Option<Format>,
}

/// Arguments of `rollout promote` and `rollout revert`.
#[derive(Debug, Args)]
pub struct EndArgs {
    /// The model.
    #[command(flatten)]
    pub model: ModelArgs,
    /// Time for the canary's requests in progress before it is deleted, such as 30s
    #[arg(long, default_value = "30s", value_name = "TIME")]
    pub drain: SignedDuration,
    /// With promote: time until the model must serve, such as 20m
    #[arg(long, value_name = "TIME", default_value = "20m")]
    pub timeout: SignedDuration,
    /// Do not ask for confirmation
    #[arg(short, long)]
    pub yes: bool,
}

/// Failure of a rollout.
#[derive(Debug, thiserror::Error)]
pub enum RolloutError {
    /// The model is a canary.
    #[error("'{name}' is a canary of '{of}': name the model, as in: kubeairunway rollout status {of} -n {namespace}")]
    IsCanary {
        /// Name as given.
        name: Name,
        /// The model.
        of: String,
        /// Namespace.
        namespace: Namespace,
    },
    /// The model has no canary.
    #[error(
        "'{name}' has no canary: start one, as in: kubeairunway rollout start {name} -n {namespace} --set FIELD=VALUE"
    )]
    NoCanary {
        /// The model.
        name: Name,
        /// Namespace.
        namespace: Namespace,
    },
    /// A canary with another spec exists.
    #[error(
        "canary '{canary}' exists, and --set would change it: end it first, with: kubeairunway rollout revert {name} -n {namespace}"
    )]
    Exists {
        /// The canary.
        canary: String,
        /// The model.
        name: Name,
        /// Namespace.
        namespace: Namespace,
    },
    /// A ModelDeployment has the name of the canary.
    #[error("ModelDeployment '{canary}' exists and is not a canary of '{name}': delete it first")]
    NameTaken {
        /// The name.
        canary: String,
        /// The model.
        name: Name,
    },
    /// The router has stopped the canary.
    #[error(
        "the router has stopped canary '{canary}': {reason}. Its weight is 0 now; delete it with: kubeairunway rollout revert {name} -n {namespace}"
    )]
    Stopped {
        /// The canary.
        canary: String,
        /// Note of the router.
        reason: String,
        /// The model.
        name: Name,
        /// Namespace.
        namespace: Namespace,
    },
    /// It does not serve.
    #[error("'{which}' does not serve: {reason}; see: kubeairunway why {which} -n {namespace}")]
    NotServing {
        /// The canary, or the model after its promotion.
        which: String,
        /// Message of the status, or the timeout.
        reason: String,
        /// Namespace.
        namespace: Namespace,
    },
    /// A field cannot be set.
    #[error("invalid --set {field}: {reason}")]
    Field {
        /// Path of the field.
        field: String,
        /// Reason.
        reason: String,
    },
}

/// Runs a subcommand.
///
/// # Errors
/// The model or its canary does not exist or does not serve, or the router stops the canary.
pub async fn rollout(
    command: &RolloutCommand,
    cluster: &Cluster,
    terminal: &mut Terminal<'_>,
) -> Result<Answer, answer::Error> {
    let args = match command {
        RolloutCommand::Start(args) => &args.model,
        RolloutCommand::Status(args) => &args.model,
        RolloutCommand::Promote(args) | RolloutCommand::Revert(args) => &args.model,
    };
    let rollout = Rollout::read(args, cluster).await?;
    match command {
        RolloutCommand::Start(args) => rollout.start(args, terminal).await?,
        RolloutCommand::Status(args) => return rollout.show(args.output).await,
        RolloutCommand::Promote(args) => rollout.promote(args, terminal).await?,
        RolloutCommand::Revert(args) => rollout.revert(args, terminal).await?,
    }
    Ok(Answer::default())
}

/// A model and its canaries.
struct Rollout<'a> {
    cluster: &'a Cluster,
    namespace: Namespace,
    name: Name,
    model: ModelDeployment,
    canaries: Vec<ModelDeployment>,
}

/// A version of a model, and its part of the requests.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct Version {
    name: String,
    role: &'static str,
    weight: u32,
    phase: &'static str,
    ready: String,
    /// The router gives it no requests, for this reason.
    #[serde(skip_serializing_if = "Option::is_none")]
    stopped: Option<String>,
}

impl<'a> Rollout<'a> {
    async fn read(args: &ModelArgs, cluster: &'a Cluster) -> Result<Self, Error> {
        let namespace = args.namespace.as_ref().unwrap_or(&cluster.namespace).clone();
        let name = args.name.clone();
        let model = cluster.deployment(&namespace, &name).await?;
        if let Some(of) = labels::canary_for(&model.metadata) {
            return Err(RolloutError::IsCanary {
                of: of.to_owned(),
                name,
                namespace,
            }
            .into());
        }
        let mut canaries = cluster.deployments(Some(&namespace)).await?;
        canaries.retain(|md| labels::canary_for(&md.metadata) == Some(name.as_str()));
        Ok(Self {
            cluster,
            namespace,
            name,
            model,
            canaries,
        })
    }

    async fn start(&self, args: &StartArgs, terminal: &mut Terminal<'_>) -> Result<(), Error> {
        let [first, rest @ ..] = args.weight.as_slice() else {
            return Ok(());
        };
        let canary = match self.canaries.as_slice() {
            [canary] if args.fields.is_empty() => {
                self.weigh(canary, *first).await?;
                canary.clone()
            }
            [canary, ..] => {
                return Err(RolloutError::Exists {
                    canary: canary.name_any(),
                    name: self.name.clone(),
                    namespace: self.namespace.clone(),
                }
                .into());
            }
            [] => self.create(args, *first, terminal).await?,
        };
        let name = canary.name_any();
        let of = format!("of the requests for {}", self.name);
        if rest.is_empty() {
            terminal.say(&format!(
                "{name} gets {first} % {of} while it serves; see: kubeairunway rollout status {} -n {}",
                self.name, self.namespace
            ));
            return Ok(());
        }
        self.arrives(&canary, args.timeout, terminal).await?;
        for (place, weight) in args.weight.iter().enumerate() {
            if place > 0 {
                self.weigh(&canary, *weight).await?;
            }
            let interval = args.interval.unsigned_abs();
            terminal.say(&format!("{name} gets {weight} % {of} for {}", text::age(interval)));
            self.endures(&canary, interval).await?;
        }
        terminal.say(&format!(
            "{name} was not stopped; to replace {0} by it, run: kubeairunway rollout promote {0} -n {1}",
            self.name, self.namespace
        ));
        Ok(())
    }

    /// Creates the canary, after a confirmation.
    async fn create(
        &self,
        args: &StartArgs,
        weight: u8,
        terminal: &mut Terminal<'_>,
    ) -> Result<ModelDeployment, Error> {
        if args.fields.is_empty() {
            return Err(Error::Usage(
                "missing --set: set a field in which the canary differs, such as --set image=IMAGE".to_owned(),
            ));
        }
        let canary = canary(&self.model, &args.fields, args.replicas, weight)?;
        let name = canary.name_any();
        let fields = args.fields.iter().map(|field| format!("\n          spec.{field}"));
        terminal.say(&format!(
            "create  ModelDeployment/{name} in {}, which gets {weight} % of the requests for {}{}",
            self.namespace,
            self.name,
            fields.collect::<String>()
        ));
        if !args.yes && !terminal.ask("Continue?") {
            return Err(Error::NotConfirmed);
        }
        match beside::create(&canary, self.cluster).await {
            Ok(created) => Ok(created),
            Err(kube::Error::Api(status)) if status.is_already_exists() => Err(RolloutError::NameTaken {
                canary: name,
                name: self.name.clone(),
            }
            .into()),
            Err(error) => {
                let doing = format!("create ModelDeployment '{name}'");
                Err(self
                    .cluster
                    .explain(error, doing, Kind::ModelDeployment.as_str())
                    .into())
            }
        }
    }

    async fn show(&self, output: Option<Format>) -> Result<Answer, answer::Error> {
        let mut versions = Vec::new();
        let mut of_canaries = 0;
        for canary in &self.canaries {
            let weight = labels::canary_weight(&canary.metadata);
            of_canaries += u32::from(weight);
            let stopped = self.stopped(canary).await?;
            versions.push(Version {
                stopped: stopped.map(|(at, note)| format!("{} ago: {note}", text::since(at, clock::now()))),
                ..Version::of(canary, "canary", weight.into())
            });
        }
        versions.insert(
            0,
            Version::of(&self.model, "stable", 100_u32.saturating_sub(of_canaries)),
        );
        let data = match output {
            Some(format) => text::list(&versions, format)?,
            None => table(&versions),
        };
        Ok(Answer::new(data, Vec::new()))
    }

    async fn promote(&self, args: &EndArgs, terminal: &mut Terminal<'_>) -> Result<(), Error> {
        let canary = self.canary()?;
        let spec = promoted(&self.model, canary);
        let changes = json_patch::diff(&json!({ "spec": self.model.spec }), &json!({ "spec": spec }));
        let path = |change: &PatchOperation| change.path().to_string().trim_start_matches('/').replace('/', ".");
        let lines = changes.0.iter().map(|change| format!("\n          {}", path(change)));
        terminal.say(&format!(
            "change  ModelDeployment/{} in {}{}\ndelete  ModelDeployment/{}",
            self.name,
            self.namespace,
            lines.collect::<String>(),
            canary.name_any()
        ));
        if let Some((_, note)) = self.stopped(canary).await? {
            terminal.say(&format!("warning: the router has stopped the canary: {note}"));
        }
        if !args.yes && !terminal.ask("Continue?") {
            return Err(Error::NotConfirmed);
        }
        if !changes.0.is_empty() {
            // Another change of the spec in the meantime is not overwritten.
            let guard = ("/metadata/generation", json!(self.model.metadata.generation));
            let guarded_changes = Patch::Json(guarded(changes, guard));
            self.cluster
                .change(&target(&self.model)?, &self.namespace, &guarded_changes, MANAGER)
                .await?;
        }
        let to = canary
            .selected_provider()
            .or_else(|| self.model.selected_provider())
            .unwrap_or_default();
        self.arrives_on(&self.model, to, args.timeout, terminal).await?;
        self.delete(canary, args.drain, terminal).await
    }

    async fn revert(&self, args: &EndArgs, terminal: &mut Terminal<'_>) -> Result<(), Error> {
        let canary = self.canary()?;
        terminal.say(&format!(
            "delete  ModelDeployment/{} in {}",
            canary.name_any(),
            self.namespace
        ));
        if !args.yes && !terminal.ask("Continue?") {
            return Err(Error::NotConfirmed);
        }
        self.delete(canary, args.drain, terminal).await
    }

    /// The canary to end.
    fn canary(&self) -> Result<&ModelDeployment, Error> {
        let none = || RolloutError::NoCanary {
            name: self.name.clone(),
            namespace: self.namespace.clone(),
        };
        Ok(self.canaries.first().ok_or_else(none)?)
    }

    async fn weigh(&self, canary: &ModelDeployment, weight: u8) -> Result<(), Error> {
        let weight = weight.to_string();
        let annotation = (labels::CANARY_WEIGHT, Some(weight.as_str()));
        let target = target(canary)?;
        Ok(self
            .cluster
            .annotate(&target, &self.namespace, annotation, MANAGER)
            .await?)
    }

    /// Takes the requests from the canary, lets those in progress end, and deletes it.
    async fn delete(
        &self,
        canary: &ModelDeployment,
        drain: SignedDuration,
        terminal: &mut Terminal<'_>,
    ) -> Result<(), Error> {
        self.weigh(canary, 0).await?;
        let drain = drain.unsigned_abs();
        terminal.say(&format!(
            "{} gets all requests; waiting {} for those of {} in progress",
            self.name,
            text::age(drain),
            canary.name_any()
        ));
        sleep(drain).await;
        let uid = canary.uid().unwrap_or_default();
        self.cluster
            .delete(&target(canary)?, &self.namespace, &uid, false)
            .await?;
        terminal.say(&format!("{} deleted", target(canary)?));
        Ok(())
    }

    async fn arrives(
        &self,
        md: &ModelDeployment,
        timeout: SignedDuration,
        terminal: &mut Terminal<'_>,
    ) -> Result<(), Error> {
        let selected = self.model.selected_provider().unwrap_or_default();
        let to = md.spec.provider_name().unwrap_or(selected);
        self.arrives_on(md, to, timeout, terminal).await
    }

    /// Waits until a version serves with its current spec.
    async fn arrives_on(
        &self,
        md: &ModelDeployment,
        to: &str,
        timeout: SignedDuration,
        terminal: &mut Terminal<'_>,
    ) -> Result<(), Error> {
        let which = md.name_any();
        let name: Name = target(md)?.name;
        let timeout = timeout.unsigned_abs();
        let read = async || Ok(self.cluster.deployment(&self.namespace, &name).await?);
        let arrival = arrival(read, to, timeout, |_| which.clone(), terminal).await?;
        let Some(reason) = arrival.obstacle(timeout) else {
            return Ok(());
        };
        Err(RolloutError::NotServing {
            which,
            reason,
            namespace: self.namespace.clone(),
        }
        .into())
    }

    /// Waits for this time. An error if the router stops the canary meanwhile, which gets no requests then.
    async fn endures(&self, canary: &ModelDeployment, interval: Duration) -> Result<(), Error> {
        let end = tokio::time::Instant::now() + interval;
        let name: Name = target(canary)?.name;
        loop {
            let left = end.saturating_duration_since(tokio::time::Instant::now());
            sleep(LOOK.min(left)).await;
            let now = self.cluster.deployment(&self.namespace, &name).await?;
            if let Some((_, reason)) = self.stopped(&now).await? {
                self.weigh(canary, 0).await?;
                return Err(RolloutError::Stopped {
                    canary: canary.name_any(),
                    reason,
                    name: self.name.clone(),
                    namespace: self.namespace.clone(),
                }
                .into());
            }
            if left.is_zero() {
                return Ok(());
            }
        }
    }

    /// Time and note of the router that has stopped a canary since its weight was set.
    async fn stopped(&self, canary: &ModelDeployment) -> Result<Option<(Timestamp, String)>, Error> {
        let name: Name = target(canary)?.name;
        let all = self
            .cluster
            .events(Kind::ModelDeployment.as_str(), &self.namespace, &name)
            .await?;
        let since = weighed_at(canary).unwrap_or(Timestamp::MIN);
        let stopped = all.into_iter().filter_map(|event| {
            let is_of_it = events::is_about(&event, canary)
                && event.reason.as_deref() == Some(EventReason::CanaryStopped.as_str());
            let at = events::last_seen(&event).filter(|at| is_of_it && *at >= since)?;
            Some((at, event.message.unwrap_or_default()))
        });
        Ok(stopped.max_by_key(|(at, _)| *at))
    }
}

impl Version {
    fn of(md: &ModelDeployment, role: &'static str, weight: u32) -> Self {
        let status = md.status.clone().unwrap_or_default();
        let replicas = status.replicas.unwrap_or_default();
        Self {
            name: md.name_any(),
            role,
            weight,
            phase: status.phase.map_or("-", Phase::as_str),
            ready: format!(
                "{}/{}",
                replicas.ready.unwrap_or_default(),
                replicas.desired.unwrap_or_default()
            ),
            stopped: None,
        }
    }
}

fn table(versions: &[Version]) -> String {
    let mut table = text::table(&["NAME", "ROLE", "WEIGHT", "PHASE", "READY", "STOPPED"]);
    for version in versions {
        table.add_row([
            version.name.clone(),
            version.role.to_owned(),
            format!("{} %", version.weight),
            version.phase.to_owned(),
            version.ready.clone(),
            version.stopped.clone().unwrap_or_else(|| "-".to_owned()),
        ]);
    }
    text::aligned(&table)
}

/// Time at which the weight was set last.
fn weighed_at(canary: &ModelDeployment) -> Option<Timestamp> {
    let field = format!("f:{}", labels::CANARY_WEIGHT);
    let entries = canary.metadata.managed_fields.iter().flatten();
    let own = entries.filter(|entry| {
        let fields = entry.fields_v1.as_ref();
        fields.is_some_and(|fields| !fields.0["f:metadata"]["f:annotations"][&field].is_null())
    });
    own.filter_map(|entry| entry.time.as_ref().map(|time| time.0)).max()
}

fn target(md: &ModelDeployment) -> Result<Target, Error> {
    Ok(format!("md/{}", md.name_any()).parse()?)
}

/// The canary of a model, with these fields.
fn canary(md: &ModelDeployment, fields: &[Field], replicas: i32, weight: u8) -> Result<ModelDeployment, RolloutError> {
    let annotations = [
        (labels::CANARY_FOR, md.name_any()),
        (labels::CANARY_WEIGHT, weight.to_string()),
    ];
    let mut canary = beside(md, SUFFIX, annotations);
    let scaling = canary.spec.scaling.get_or_insert_default();
    // Workers of disaggregated serving have numbers of their own.
    if scaling.prefill.is_none() && scaling.decode.is_none() {
        scaling.replicas = Some(replicas);
    }
    for field in fields {
        let set = field.set(&canary.spec);
        canary.spec = set.map_err(|reason| RolloutError::Field {
            field: field.to_string(),
            reason,
        })?;
    }
    Ok(canary)
}

/// A field of a spec, and its value.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Field {
    path: Vec<String>,
    value: String,
}

impl fmt::Display for Field {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}={}", self.path.join("."), self.value)
    }
}

/// `FIELD=VALUE`, with or without `spec.` before it.
impl FromStr for Field {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<Self, &'static str> {
        let (path, value) = text.split_once('=').ok_or("use FIELD=VALUE, such as image=IMAGE")?;
        let path = path.strip_prefix("spec.").unwrap_or(path).split('.');
        let path: Vec<String> = path.map(str::to_owned).collect();
        if path.iter().any(String::is_empty) {
            return Err("the name of a field is missing");
        }
        Ok(Self {
            path,
            value: value.to_owned(),
        })
    }
}

impl Field {
    /// The spec with this field: the value is JSON, or else text.
    fn set(&self, spec: &ModelDeploymentSpec) -> Result<ModelDeploymentSpec, String> {
        let text = || Value::String(self.value.clone());
        let as_json = serde_json::from_str(&self.value).map(|value| self.set_to(spec, value));
        match as_json {
            Ok(Ok(spec)) => Ok(spec),
            _ => self.set_to(spec, text()),
        }
    }

    fn set_to(&self, spec: &ModelDeploymentSpec, value: Value) -> Result<ModelDeploymentSpec, String> {
        let is_removed = value.is_null();
        let mut whole = json!(spec);
        let mut at = &mut whole;
        for part in &self.path {
            if at.is_null() {
                *at = json!({});
            }
            let Some(fields) = at.as_object_mut() else {
                return Err(format!("'{part}' is below a field that is not an object"));
            };
            at = fields.entry(part.as_str()).or_insert(Value::Null);
        }
        *at = value;
        let set: ModelDeploymentSpec = serde_json::from_value(whole).map_err(|error| error.to_string())?;
        let is_known = is_removed || json!(set).pointer(&format!("/{}", self.path.join("/"))).is_some();
        if is_known {
            return Ok(set);
        }
        Err("a ModelDeployment has no such field; see: kubectl explain md.spec".to_owned())
    }
}

/// Spec of a model that is replaced by its canary.
fn promoted(md: &ModelDeployment, canary: &ModelDeployment) -> ModelDeploymentSpec {
    ModelDeploymentSpec {
        scaling: md.spec.scaling.clone(),
        gateway: md.spec.gateway.clone(),
        ..canary.spec.clone()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn model(spec: &Value) -> ModelDeployment {
        serde_json::from_value(json!({
            "apiVersion": "kubeairunway.ai/v1alpha1", "kind": "ModelDeployment",
            "metadata": { "name": "gemma", "namespace": "team", "uid": "1", "resourceVersion": "9",
                "annotations": { "theirs": "1" } },
            "spec": spec,
        }))
        .unwrap()
    }

    fn fields(texts: &[&str]) -> Vec<Field> {
        texts.iter().map(|text| text.parse().unwrap()).collect()
    }

    #[test]
    fn canary_is_the_model_with_the_changed_fields() {
        let md = model(&json!({
            "model": { "id": "org/gemma" }, "engine": { "type": "vllm", "args": { "seed": "1" } }, "image": "a:1",
            "scaling": { "replicas": 4, "autoscaling": { "minReplicas": 1, "maxReplicas": 4, "requestsInFlight": 8 } },
        }));
        let fields = fields(&["image=a:2", "spec.engine.args.max-num-seqs=64", "model.servedName=2"]);
        let canary = canary(&md, &fields, 1, 5).unwrap();
        assert_eq!(
            serde_json::to_value(&canary).unwrap(),
            json!({
                "apiVersion": "kubeairunway.ai/v1alpha1", "kind": "ModelDeployment",
                "metadata": { "name": "gemma-canary", "namespace": "team",
                    "annotations": { "kubeairunway.ai/canary-for": "gemma", "kubeairunway.ai/canary-weight": "5" },
                    "ownerReferences": [{ "apiVersion": "kubeairunway.ai/v1alpha1", "kind": "ModelDeployment", "name": "gemma", "uid": "1" }] },
                "spec": { "model": { "id": "org/gemma", "servedName": "2" },
                    "engine": { "type": "vllm", "args": { "seed": "1", "max-num-seqs": "64" } }, "image": "a:2",
                    "scaling": { "replicas": 1 }, "gateway": { "enabled": false } },
            })
        );
        let promoted = promoted(&md, &canary);
        assert_eq!(promoted.scaling, md.spec.scaling);
        assert_eq!((promoted.image.as_deref(), promoted.gateway), (Some("a:2"), None));
    }

    #[test]
    fn fields_that_do_not_exist_are_refused() {
        let md = model(&json!({ "model": { "id": "org/gemma" } }));
        let error = |text: &str| canary(&md, &fields(&[text]), 1, 5).unwrap_err().to_string();
        assert_eq!(
            error("imag=a:2"),
            "invalid --set imag=a:2: a ModelDeployment has no such field; see: kubectl explain md.spec"
        );
        assert!(error("model.id.x=1").contains("not an object"));
        assert!(error("resources=7").starts_with("invalid --set resources=7: "));
        for text in ["image", "=1", "a..b=1", ".=1"] {
            assert!(text.parse::<Field>().is_err(), "{text}");
        }
    }

    #[test]
    fn time_of_the_weight_is_that_of_its_last_writer() {
        let mut md = model(&json!({ "model": { "id": "org/gemma" } }));
        let entry = |manager: &str, time: &str, field: &str| {
            json!({ "manager": manager, "operation": "Update", "time": time, "fieldsType": "FieldsV1",
                "fieldsV1": { "f:metadata": { "f:annotations": { field: {} } } } })
        };
        assert_eq!(weighed_at(&md), None);
        let weight = "f:kubeairunway.ai/canary-weight";
        md.metadata.managed_fields = serde_json::from_value(json!([
            entry("a", "2026-11-29T10:00:00Z", weight),
            entry("b", "2026-11-29T11:00:00Z", weight),
            entry("c", "2026-11-29T12:00:00Z", "f:other"),
        ]))
        .unwrap();
        assert_eq!(weighed_at(&md).unwrap().to_string(), "2026-11-29T11:00:00Z");
    }
}
