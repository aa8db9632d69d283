//! `get`, `status` and `events` of every kind. ModelDeployments have screens of their own; of the other kinds the server
//! itself makes the table, by the columns of their CRDs.

use clap::builder::{EnumValueParser, PossibleValue, TypedValueParser};
use clap::error::ErrorKind;
use clap::{Arg, Args, Command, ValueEnum};
use jiff::SignedDuration;
use runway_client::source::Place;
use std::ffi::OsStr;
use std::io::Read;

use jiff::Timestamp;
use k8s_openapi::api::core::v1::Event;
use kube::ResourceExt;
use kube::core::DynamicObject;
use runway_api::{AsyncActor, Name, Namespace};
use runway_client::cluster::{Cluster, RowObject, labelled};
use runway_client::diagnostic::{Diagnostic, Level};
use runway_client::documents::typed;
use runway_client::jsonpath::Template;
use runway_client::source::{Admission, Source};
use runway_client::state::DEFAULT_NAMESPACE;
use runway_client::target::{self, Kind, Subject, Target};
use runway_client::text::{self, Format, Look};
use runway_client::{components, events, get, queue, status};
use runway_operator::client::ClientArgs;
use serde::{Deserialize as _, Serialize};
use serde_json::json;

use super::{Error, wait};
use crate::answer::{self, Answer, screens};
use crate::terminal::Terminal;

/// Arguments of `get`.
#[derive(Debug, Args)]
pub struct GetArgs {
    /// Name of a ModelDeployment, a kind, or KIND/NAME
    #[arg(value_name = "NAME|KIND|KIND/NAME")]
    pub what: Option<Subject>,
    /// Name of an object of the given kind
    pub name: Option<Name>,
    /// Source of the objects.
    #[command(flatten)]
    pub place: Place,
    /// Select all namespaces
    #[arg(short = 'A', long, conflicts_with_all = ["namespace", "name"])]
    pub all_namespaces: bool,
    /// Label selector, such as team=a
    #[arg(short = 'l', long, value_name = "LABELS", conflicts_with_all = ["files", "name"])]
    pub selector: Option<String>,
    /// After the list, print each object that changes, until interrupted
    #[arg(short, long, conflicts_with = "files")]
    pub watch: bool,
    /// Output format; also jsonpath=TEMPLATE, such as jsonpath={.status.phase}
    #[arg(short, long, value_parser = Outputs)]
    pub output: Option<Output>,
}

/// Output format of `get`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Output {
    /// A list.
    List(ListFormat),
    /// Text by a template of kubectl.
    JsonPath(Template),
}

/// Parser of [`Output`].
#[derive(Clone)]
struct Outputs;

impl TypedValueParser for Outputs {
    type Value = Output;

    fn parse_ref(&self, cmd: &Command, arg: Option<&Arg>, value: &OsStr) -> Result<Output, clap::Error> {
        match value.to_str().and_then(|text| text.strip_prefix("jsonpath=")) {
            Some(template) => {
                let parsed = template.parse().map(Output::JsonPath);
                parsed.map_err(|error| {
                    let text = format!("invalid template '{template}': {error}\n");
                    clap::Error::raw(ErrorKind::ValueValidation, text).with_cmd(cmd)
                })
            }
            None => EnumValueParser::<ListFormat>::new()
                .parse_ref(cmd, arg, value)
                .map(Output::List),
        }
    }

    fn possible_values(&self) -> Option<Box<dyn Iterator<Item = PossibleValue> + '_>> {
        let known = ListFormat::value_variants()
            .iter()
            .filter_map(ValueEnum::to_possible_value);
        Some(Box::new(known))
    }
}

/// Arguments of `status`.
#[derive(Debug, Args)]
pub struct StatusArgs {
    /// Name of the ModelDeployment, or KIND/NAME
    #[arg(value_name = "NAME")]
    pub target: Target,
    /// Source of the objects.
    #[command(flatten)]
    pub place: Place,
    /// Output format of the object; text for people if omitted
    #[arg(short, long, value_enum)]
    pub output: Option<Format>,
    /// Wait until the object is ready, and report progress
    #[arg(long)]
    pub wait: bool,
    /// Time to wait, such as 90s or 20m
    #[arg(long, default_value = "20m", value_name = "TIME")]
    pub timeout: SignedDuration,
}

/// Arguments of `events`.
#[derive(Debug, Args)]
pub struct EventsArgs {
    /// Name of the ModelDeployment, or KIND/NAME
    #[arg(value_name = "NAME")]
    pub target: Target,
    /// Source of the objects.
    #[command(flatten)]
    pub place: Place,
    /// Output format
    #[arg(short, long, value_enum)]
    pub output: Option<ListFormat>,
}

/// Output formats of lists.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum ListFormat {
    /// Objects as YAML
    Yaml,
    /// Objects as JSON
    Json,
    /// Table with additional columns
    Wide,
    /// Kind and name only, such as asyncactor.asya.sh/resize
    Name,
}

impl ListFormat {
    /// Document format, for the formats that write whole objects.
    pub fn document(self) -> Option<Format> {
        match self {
            Self::Yaml => Some(Format::Yaml),
            Self::Json => Some(Format::Json),
            Self::Wide | Self::Name => None,
        }
    }
}

/// Arguments of `get`: a kind, and a name for one object.
#[derive(Debug, PartialEq, Eq)]
pub struct Requested {
    /// The kind.
    pub kind: Kind,
    /// The name.
    pub name: Option<Name>,
}

/// Parses `get`, `get NAME`, `get KIND`, `get KIND NAME` and `get KIND/NAME`.
///
/// # Errors
/// The first argument is not a kind.
pub fn requested(what: Option<&Subject>, name: Option<&Name>) -> Result<Requested, Error> {
    let (kind, name) = match (what, name) {
        (None, _) => (Kind::ModelDeployment, None),
        (Some(Subject::Kind(kind)), name) => (*kind, name),
        (Some(Subject::Object(target)), None) => (target.kind, Some(&target.name)),
        (Some(Subject::Object(target)), Some(_)) => return Err(target::Error::kind(&target.name).into()),
    };
    let name = name.cloned();
    Ok(Requested { kind, name })
}

/// `get`.
///
/// # Errors
/// The arguments contradict each other, or the objects cannot be read.
pub async fn get(args: &GetArgs, client: &ClientArgs, stdin: &mut dyn Read) -> Result<Answer, answer::Error> {
    let requested = requested(args.what.as_ref(), args.name.as_ref())?;
    if requested.name.is_some() && args.all_namespaces {
        let text = "a name cannot be combined with --all-namespaces: use -n NAMESPACE";
        return Err(Error::Usage(text.to_owned()).into());
    }
    if requested.kind == Kind::ModelDeployment {
        return deployments(args, requested.name.as_ref(), client, stdin).await;
    }
    if !args.place.files.is_empty() {
        let text = "-f supports only ModelDeployments: omit -f or the kind";
        return Err(Error::Usage(text.to_owned()).into());
    }
    let cluster = Cluster::connect(client).await.map_err(Error::from)?;
    let namespace = match &args.place.namespace {
        _ if args.all_namespaces || !requested.kind.is_namespaced() => None,
        Some(namespace) => Some(namespace),
        None => Some(&cluster.namespace),
    };
    let (wide, labels) = (args.is_wide(), args.selector.as_deref());
    if !wide && let Some(output) = &args.output {
        let found = objects(&cluster, &requested, namespace, labels).await?;
        return Ok(Answer::new(
            output.written(requested.kind, &found, requested.name.is_some())?,
            Vec::new(),
        ));
    }
    let everywhere = namespace.is_none() && requested.kind.is_namespaced();
    let table = cluster
        .table(
            requested.kind,
            namespace,
            requested.name.as_ref(),
            &labelled(labels),
            RowObject::Whole,
        )
        .await
        .map_err(Error::from)?;
    let data = get::server_table(&table, wide, everywhere);
    let said = if data.is_empty() {
        Some(none(requested.kind, namespace))
    } else {
        let rows = table["rows"].as_array().into_iter().flatten();
        let found: Vec<DynamicObject> = rows
            .filter_map(|row| DynamicObject::deserialize(&row["object"]).ok())
            .collect();
        components::absent(&cluster, requested.kind, &found).await
    };
    Ok(Answer::new(data, said.into_iter().collect()))
}

impl GetArgs {
    /// Whether a table with additional columns is requested.
    pub(super) fn is_wide(&self) -> bool {
        self.output == Some(Output::List(ListFormat::Wide))
    }
}

impl Output {
    /// Objects in this format; empty for tables. `single`: one object was requested by its name.
    pub(super) fn written<T: Serialize + ResourceExt>(
        &self,
        kind: Kind,
        objects: &[T],
        single: bool,
    ) -> Result<String, text::Error> {
        Ok(match self {
            Self::List(ListFormat::Name) => names(kind, objects),
            Self::List(list) => match list.document() {
                Some(format) if single => text::documents(objects, format)?,
                Some(format) => text::list(objects, format)?,
                None => String::new(),
            },
            Self::JsonPath(template) => match objects {
                [one] if single => template.fill(&json!(one)),
                all => template.fill(&json!({ "apiVersion": "v1", "kind": "List", "items": all })),
            },
        })
    }
}

async fn objects(
    cluster: &Cluster,
    requested: &Requested,
    namespace: Option<&Namespace>,
    labels: Option<&str>,
) -> Result<Vec<DynamicObject>, Error> {
    Ok(match &requested.name {
        Some(name) => {
            let target = Target {
                kind: requested.kind,
                name: name.clone(),
            };
            vec![cluster.get(&target, namespace.unwrap_or(&cluster.namespace)).await?]
        }
        None => cluster.selected(requested.kind, namespace, labels).await?,
    })
}

/// Names as kubectl writes them: `asyncactor.asya.sh/resize`.
fn names<T: ResourceExt>(kind: Kind, objects: &[T]) -> String {
    let resource = kind.resource();
    let kind = resource.kind.to_lowercase();
    text::lines(
        objects
            .iter()
            .map(|object| format!("{kind}.{}/{}", resource.group, object.name_any())),
    )
}

pub(super) fn none(kind: Kind, namespace: Option<&Namespace>) -> Diagnostic {
    let place = match namespace {
        Some(namespace) => format!(" found in namespace '{namespace}' (use -A for all namespaces)"),
        None if kind.is_namespaced() => " found in any namespace".to_owned(),
        None => " found".to_owned(),
    };
    Diagnostic {
        level: Level::Note,
        subject: None,
        text: format!("no {}s{place}", kind.as_str()),
    }
}

async fn deployments(
    args: &GetArgs,
    name: Option<&Name>,
    client: &ClientArgs,
    stdin: &mut dyn Read,
) -> Result<Answer, answer::Error> {
    let mut source = Source::open(&args.place, client, stdin, Admission::Past).await?;
    let namespace = source.namespace(&args.place, args.all_namespaces);
    let found = match (source.cluster(), &args.selector) {
        (Some(cluster), Some(labels)) => {
            let found = cluster
                .selected(Kind::ModelDeployment, namespace.as_ref(), Some(labels))
                .await;
            let found = found.map_err(Error::from)?;
            found.iter().filter_map(|object| typed(&json!(object)).ok()).collect()
        }
        _ => source.deployments(namespace.as_ref(), name).await?,
    };
    let data = match &args.output {
        Some(output) if !args.is_wide() => output.written(Kind::ModelDeployment, &found, name.is_some())?,
        _ if found.is_empty() => String::new(),
        _ => get::table(
            &found,
            args.place.now(),
            get::Options {
                wide: args.is_wide(),
                namespaces: namespace.is_none(),
            },
        ),
    };
    if found.is_empty() {
        source.said.push(none(Kind::ModelDeployment, namespace.as_ref()));
    } else if let (Some(cluster), None | Some(Output::List(ListFormat::Wide))) = (source.cluster(), &args.output) {
        let unseen = found.iter().filter(|md| md.status.is_none());
        let unseen: Vec<DynamicObject> = unseen.filter_map(|md| typed(&json!(md)).ok()).collect();
        source
            .said
            .extend(components::absent(cluster, Kind::ModelDeployment, &unseen).await);
    }
    Ok(Answer::new(data, source.said))
}

/// `status`.
///
/// # Errors
/// The arguments contradict each other, or the objects cannot be read.
pub async fn status(
    args: &StatusArgs,
    client: &ClientArgs,
    terminal: &mut Terminal<'_>,
    look: Look,
) -> Result<Answer, answer::Error> {
    let mut waited = Ok(());
    if args.wait {
        if !args.place.files.is_empty() {
            return Err(Error::Usage("--wait cannot be combined with -f: omit one of them".to_owned()).into());
        }
        let cluster = Cluster::connect_patiently(client).await.map_err(Error::from)?;
        let namespace = args.place.namespace.as_ref().unwrap_or(&cluster.namespace);
        waited = wait::until_ready(&cluster, namespace, &args.target, args.timeout.unsigned_abs(), terminal).await;
        if let Err(error @ Error::Cluster(_)) = waited {
            return Err(error.into());
        }
    }
    let mut shown = stands(args, client, terminal, look).await?;
    if let Err(error) = waited {
        shown.failed = true;
        shown.code = error.code();
        shown.talk.push(Diagnostic::error(&error));
    }
    Ok(shown)
}

async fn stands(
    args: &StatusArgs,
    client: &ClientArgs,
    terminal: &mut Terminal<'_>,
    look: Look,
) -> Result<Answer, answer::Error> {
    let now = args.place.now();
    if args.target.kind != Kind::ModelDeployment {
        if !args.place.files.is_empty() {
            let text = "-f supports only ModelDeployments: omit -f";
            return Err(Error::Usage(text.to_owned()).into());
        }
        let cluster = Cluster::connect(client).await.map_err(Error::from)?;
        let namespace = args.place.namespace.as_ref().unwrap_or(&cluster.namespace);
        let object = cluster.get(&args.target, namespace).await.map_err(Error::from)?;
        if let Some(format) = args.output {
            return Ok(Answer::new(text::documents(&[object], format)?, Vec::new()));
        }
        let (all, mut said) = reported(&cluster, namespace).await;
        said.extend(components::absent(&cluster, args.target.kind, std::slice::from_ref(&object)).await);
        let about = events::about(all, &[args.target.to_string()]);
        let facts = facts(&cluster, &object).await;
        return Ok(Answer::new(
            status::object_screen(&object, &facts, &about, now, look),
            said,
        ));
    }
    let mut source = Source::open(&args.place, client, terminal.stdin, Admission::Past).await?;
    let namespace = source.namespace(&args.place, false);
    let found = source.deployments(namespace.as_ref(), Some(&args.target.name)).await?;
    if let Some(format) = args.output {
        return Ok(Answer::new(text::documents(&found, format)?, source.said));
    }
    if let (Some(cluster), [md]) = (source.cluster(), &found[..]) {
        let object = typed(&json!(md)).ok();
        let absent = components::absent(cluster, Kind::ModelDeployment, object.as_slice()).await;
        source.said.extend(absent);
    }
    let mut all = Vec::new();
    for md in found {
        let view = source.view(md, now).await;
        all.push(status::screen(&view, now, look));
    }
    Ok(Answer::new(screens(all.into_iter()), source.said))
}

/// Additional facts that are not in the status: the queue length of an actor.
async fn facts(cluster: &Cluster, object: &DynamicObject) -> Vec<(&'static str, String)> {
    match typed::<AsyncActor>(&json!(object)) {
        Ok(actor) => {
            let depth = queue::depth(cluster, &actor).await;
            let name = actor.status.and_then(|s| s.queue).unwrap_or_default();
            vec![("Queue", format!("{name}: {depth}"))]
        }
        Err(_) => Vec::new(),
    }
}

/// The Events of a namespace; without the right to read them, the rest still shows.
async fn reported(cluster: &Cluster, namespace: &Namespace) -> (Vec<Event>, Vec<Diagnostic>) {
    match cluster.all_events(namespace).await {
        Ok(all) => (all, Vec::new()),
        Err(error) => {
            let mut said = Diagnostic::error(&error);
            said.level = Level::Warning;
            (Vec::new(), vec![said])
        }
    }
}

/// `events`.
///
/// # Errors
/// The arguments contradict each other, or the objects cannot be read.
pub async fn events(args: &EventsArgs, client: &ClientArgs, stdin: &mut dyn Read) -> Result<Answer, answer::Error> {
    let now = args.place.now();
    let mut source = Source::open(&args.place, client, stdin, Admission::Past).await?;
    let namespace = source.namespace(&args.place, false);
    let mut found = Vec::new();
    if !args.target.kind.is_namespaced() {
        // The server keeps Events about what is in no namespace in this one.
        let all = source.all_events(DEFAULT_NAMESPACE).await?;
        found.extend(events::about(all, &[args.target.to_string()]));
        return event_list(args, &found, source.said, now);
    }
    for tree in source.trees(&args.target, namespace.as_ref(), now).await? {
        for missing in &tree.missing {
            let text = missing.clone();
            source
                .said
                .push(Diagnostic::about(Level::Warning, args.target.to_string(), text));
        }
        let objects = events::objects(&tree.root);
        found.extend(events::about(source.all_events(&tree.namespace).await?, &objects));
    }
    event_list(args, &found, source.said, now)
}

fn event_list(
    args: &EventsArgs,
    found: &[Event],
    mut said: Vec<Diagnostic>,
    now: Timestamp,
) -> Result<Answer, answer::Error> {
    if found.is_empty() {
        said.push(Diagnostic::about(
            Level::Note,
            args.target.to_string(),
            "no Events found; the API server keeps them for one hour by default",
        ));
    }
    let data = match args.output {
        Some(ListFormat::Json | ListFormat::Yaml) => text::list(
            found,
            args.output.and_then(ListFormat::document).unwrap_or(Format::Yaml),
        )?,
        Some(ListFormat::Name) => text::lines(found.iter().map(|event| format!("event/{}", event.name_any()))),
        _ if found.is_empty() => String::new(),
        output => events::table(found, now, output == Some(ListFormat::Wide)),
    };
    Ok(Answer::new(data, said))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn get_takes_kinds_and_names_like_kubectl() {
        for (what, name, kind, wanted) in [
            (None, None, Kind::ModelDeployment, None),
            (Some("gemma"), None, Kind::ModelDeployment, Some("gemma")),
            (Some("asya"), None, Kind::AsyncActor, None),
            (Some("asya"), Some("resize"), Kind::AsyncActor, Some("resize")),
            (Some("llsd/stack"), None, Kind::LlamaStackDistribution, Some("stack")),
            (Some("md"), Some("asya"), Kind::ModelDeployment, Some("asya")),
        ] {
            let subject = what.map(|what: &str| what.parse::<Subject>().unwrap());
            let named = name.map(|name: &str| name.parse::<Name>().unwrap());
            let requested = requested(subject.as_ref(), named.as_ref()).unwrap();
            assert_eq!(
                (requested.kind, requested.name.as_deref()),
                (kind, wanted),
                "{what:?} {name:?}"
            );
        }
        let (gemma, other) = ("gemma".parse().unwrap(), "other".parse().unwrap());
        let error = requested(Some(&gemma), Some(&other)).unwrap_err();
        assert!(error.to_string().starts_with("unknown kind 'gemma'"), "{error}");
        assert_eq!(error.code(), Some(2));
    }
}
