//! The form for a ModelDeployment, new or existing. A new one starts with the model, and the rest is derived. It shows what would be
//! made of it before anything is sent, and marks each fault at its field: first those that admission finds, then what the server
//! says to a dry run.

use std::sync::Arc;

use askama::Template;
use axum::http::StatusCode;
use axum::response::{IntoResponse, Redirect, Response};
use kube::ResourceExt;
use kube::api::{Patch, PatchParams, PostParams};
use kube::core::DynamicObject;
use runway_api::condition::{self, Conditions};
use runway_api::name::Invalid;
use runway_api::{ModelDeployment, Name, Namespace, Phase};
use runway_client::deploy::{self, Wish};
use runway_client::documents::typed;
use runway_client::fitting;
use runway_client::render::plans;
use runway_client::state::State;
use runway_client::target::Kind;
use runway_client::text::{self, Format};
use runway_client::why::{self, Why};
use runway_core::admission::{apply_defaults, id_on_hub, validate};
use runway_core::providers::Providers;
use runway_fit::{self as fit, Report, Verdict};
use runway_operator::telemetry::chain;
use runway_operator::{audit, clock};
use serde_json::{Value, json};

use super::actions::MANAGER;
use super::deployment::find;
use crate::form::{self, Faults, Field, Group, Holds, Pairs};
use crate::guard::{Asker, Of, Sent};
use crate::page::Shell;
use crate::refusal;
use crate::sessions::Session;

/// Path of the model.
const MODEL: &str = "spec.model.id";
/// Path of the name.
const NAME: &str = "metadata.name";
/// Path of the engine.
const ENGINE: &str = "spec.engine.type";
/// Beginning of the message about an engine that does not follow from the model.
const NOT_DERIVED: &str = "it cannot be derived";
/// Path of the number of GPUs.
const GPUS: &str = "spec.resources.gpu.count";

/// The form of a new one.
pub async fn new(Asker(session): Asker) -> Response {
    let draft = Draft::new(&session, None).await;
    draft.page(StatusCode::OK).await
}

/// The form of one that is there.
pub async fn edit(Asker(session): Asker, Of { namespace, name }: Of) -> Response {
    match find(&session, &namespace, &name).await {
        Ok(md) => Draft::new(&session, Some(md)).await.page(StatusCode::OK).await,
        Err(response) => response,
    }
}

/// Creates the ModelDeployment, or shows the form with errors.
pub async fn create(Asker(session): Asker, Sent(sent): Sent) -> Response {
    Draft::new(&session, None).await.answer(sent).await
}

/// Changes it: only what differs is sent, and only to the version that was shown.
pub async fn change(Asker(session): Asker, Of { namespace, name }: Of, Sent(sent): Sent) -> Response {
    match find(&session, &namespace, &name).await {
        Ok(md) => Draft::new(&session, Some(md)).await.answer(sent).await,
        Err(response) => response,
    }
}

/// A ModelDeployment that is being written.
struct Draft<'a> {
    session: &'a Session,
    providers: Arc<Providers>,
    /// The live object; `None` for a new one.
    live: Option<Arc<ModelDeployment>>,
    /// The object with the values of the form.
    object: Value,
    /// Submitted values.
    sent: Option<Pairs>,
    faults: Faults,
    /// Resource version that the form is based on.
    version: String,
    /// Settings that the form leaves open, and what follows from the model.
    derived: Vec<Derived>,
    /// Whether the pods fit, or why that cannot be checked.
    fit: Option<Fit>,
}

/// A setting that follows from the model.
struct Derived {
    label: &'static str,
    value: String,
    because: String,
}

/// Result of checking whether the pods fit on the nodes.
struct Fit {
    /// The report, or why there is none.
    report: Result<Report, String>,
    /// Class of the notice.
    class: &'static str,
    /// The result in a sentence.
    text: &'static str,
}

impl Fit {
    fn new(report: Result<Report, String>) -> Self {
        let (class, text) = match report.as_ref().map(|report| report.verdict) {
            Ok(Verdict::Yes) => ("good", "The pods fit on the present nodes."),
            Ok(Verdict::Unknown) => ("open", "It is not known whether the pods fit on the present nodes."),
            Ok(Verdict::No) => ("bad", "The pods do not fit on the present nodes."),
            Err(_) => ("open", "The present nodes were not checked."),
        };
        Self { report, class, text }
    }

    fn is_bad(&self) -> bool {
        self.report.as_ref().is_ok_and(|report| report.verdict == Verdict::No)
    }
}

impl<'a> Draft<'a> {
    async fn new(session: &'a Session, live: Option<Arc<ModelDeployment>>) -> Self {
        let configs = session.view.providers().await.items;
        let object = match &live {
            Some(md) => json!(md.as_ref()),
            None => json!({
                "apiVersion": "kubeairunway.ai/v1alpha1",
                "kind": "ModelDeployment",
                "metadata": {"namespace": session.view.home},
                "spec": {},
            }),
        };
        Self {
            session,
            providers: Arc::new(Providers::compile(configs, &Providers::default())),
            version: live.as_ref().and_then(|md| md.resource_version()).unwrap_or_default(),
            live,
            object,
            sent: None,
            faults: Faults::new(),
            derived: Vec::new(),
            fit: None,
        }
    }

    /// Processes submitted values: shows a preview, or applies them.
    async fn answer(mut self, sent: Pairs) -> Response {
        let then = sent.get("then").unwrap_or_default().to_owned();
        let preview = ["fit", "preview"].contains(&then.as_str());
        // A new model that does not fit is created only if the user insists.
        let check_fit = then == "fit" || (then.is_empty() && self.live.is_none());
        if preview {
            audit::only_reads();
        }
        self.fill(sent);
        // The dry run comes first; the change is sent only if it succeeds.
        if let Err(code) = self.try_send(true).await {
            return self.page(if preview { StatusCode::OK } else { code }).await;
        }
        if check_fit {
            self.fit = Some(Box::pin(self.check_fit()).await);
        }
        if preview {
            return self.page(StatusCode::OK).await;
        }
        if self.fit.as_ref().is_some_and(Fit::is_bad) {
            return self.page(StatusCode::UNPROCESSABLE_ENTITY).await;
        }
        match self.try_send(false).await {
            Ok(()) => Redirect::to(&self.href()).into_response(),
            Err(code) => self.page(code).await,
        }
    }

    /// Sends the object if it has no faults.
    async fn try_send(&mut self, dry_run: bool) -> Result<(), StatusCode> {
        if !self.faults.is_empty() {
            return Err(StatusCode::UNPROCESSABLE_ENTITY);
        }
        self.send(dry_run).await
    }

    /// Fills the object from the form, and validates it locally like admission.
    fn fill(&mut self, mut sent: Pairs) {
        let new = self.live.is_none();
        if let Some(id) = sent.get(MODEL).and_then(|model| id_on_hub(model.trim())) {
            sent.set(MODEL, id);
        }
        let fields = form::IDENTITY.iter().filter(|_| new).chain(form::fields());
        self.faults = form::fill(&mut self.object, &sent, fields);
        // These fields always exist; missing values are reported by name.
        for part in ["/metadata", "/spec", "/spec/model"] {
            form::keep(&mut self.object, part);
        }
        if new {
            self.derive();
        }
        for field in form::IDENTITY.iter().filter(|_| new) {
            let name = &self.text(&form::pointer(field.path));
            if name.is_empty() {
                form::mark(&mut self.faults, field.path, &format!("{} is required", field.path));
            } else if let Err(invalid) = form::check_name(field.path, name) {
                form::mark(&mut self.faults, field.path, &invalid.to_string());
            }
        }
        if let Some(version) = sent.get("version").filter(|v| !v.is_empty()) {
            version.clone_into(&mut self.version);
        }
        self.sent = Some(sent);
        let mut readable = self.object.clone();
        // Fields that cannot be parsed are removed, so that the others are still validated.
        while let Err((path, text)) = read(&readable) {
            let home = form::mark(&mut self.faults, &path, &text);
            if home.is_empty() || readable.pointer(&form::pointer(home)).is_none() {
                return;
            }
            form::put(&mut readable, home, None);
        }
        if let Ok(md) = read(&readable) {
            for (path, text) in form::placed(&validate(&md, &self.providers).errors) {
                self.faults.entry(path).or_insert(text);
            }
        }
        if self.faults.contains_key(MODEL) && self.text("/spec/model/id").is_empty() {
            // These follow from the model.
            for path in [NAME, ENGINE].into_iter().filter(|_| new) {
                if self.text(&form::pointer(path)).is_empty() {
                    self.faults.remove(path);
                }
            }
        }
    }

    /// Sets what the form leaves open and follows from the model, as `kubeairunway deploy` does.
    fn derive(&mut self) {
        let given = |path: &str| Some(self.text(&form::pointer(path))).filter(|text| !text.is_empty());
        let number = |path: &str| {
            let number = self.object.pointer(&form::pointer(path)).and_then(Value::as_i64);
            number.and_then(|number| i32::try_from(number).ok())
        };
        let Some(model) = given(MODEL) else { return };
        let wish = Wish {
            model,
            name: given(NAME),
            namespace: given("metadata.namespace").unwrap_or_default(),
            engine: given(ENGINE),
            gpu: number(GPUS),
            gpu_type: given("spec.resources.gpu.type"),
            cpu: given("spec.resources.cpu"),
            memory: given("spec.resources.memory"),
            replicas: number("spec.scaling.replicas"),
            provider: given("spec.provider.name"),
            image: given("spec.image"),
            ..Wish::default()
        };
        let is_split = given("spec.serving.mode").is_some_and(|mode| mode == "disaggregated");
        let choices = match deploy::work_out(&wish, &self.providers, clock::now()) {
            Ok(worked) => worked.choices,
            // Users who may not read the providers can name the engine.
            Err(deploy::Error::NoProviders | deploy::Error::NoEngine { .. }) if wish.engine.is_some() => return,
            Err(error @ deploy::Error::NoProviders) => return self.engine_unknown(&error.to_string()),
            Err(deploy::Error::NoEngine { tried, .. }) => return self.engine_unknown(&tried),
            Err(error @ deploy::Error::ModelId { .. }) => {
                form::mark(&mut self.faults, MODEL, &error.to_string());
                return;
            }
            // The validation finds the field.
            Err(deploy::Error::Name(_) | deploy::Error::Invalid(_) | deploy::Error::Manifest(_)) => return,
        };
        for (setting, value, because) in choices {
            let (path, label) = match setting {
                "name" => (NAME, "Name"),
                "engine" => (ENGINE, "Engine"),
                "gpu" if !is_split && self.object.pointer("/spec/resources/gpu/count").is_none() => {
                    (GPUS, "GPUs per replica")
                }
                _ => continue,
            };
            let number = value.parse::<i64>().ok().filter(|_| path == GPUS);
            form::put(
                &mut self.object,
                path,
                Some(number.map_or_else(|| json!(value), |number| json!(number))),
            );
            // The command's hints name its options.
            let because = because.split("; set --").next().unwrap_or_default().to_owned();
            self.derived.push(Derived { label, value, because });
        }
    }

    fn engine_unknown(&mut self, reason: &str) {
        form::mark(&mut self.faults, ENGINE, &format!("{NOT_DERIVED}: {reason}"));
    }

    /// Applies the object with the user's credentials. A rejection becomes errors of fields.
    async fn send(&mut self, dry_run: bool) -> Result<(), StatusCode> {
        let place = || {
            Ok::<(Namespace, Name), Invalid>((
                self.text("/metadata/namespace").try_into()?,
                self.text("/metadata/name").try_into()?,
            ))
        };
        let (namespace, name) = place().map_err(|invalid| {
            form::mark(&mut self.faults, "", &invalid.to_string());
            StatusCode::UNPROCESSABLE_ENTITY
        })?;
        audit::object("ModelDeployment", &namespace, &name);
        let api = self.session.view.cluster().api(Kind::ModelDeployment, Some(&namespace));
        let field_manager = Some(MANAGER.to_owned());
        let sent = match &self.live {
            None => match serde_json::from_value::<DynamicObject>(self.object.clone()) {
                Ok(object) => {
                    let params = PostParams { dry_run, field_manager };
                    api.create(&params, &object).await
                }
                Err(error) => Err(kube::Error::SerdeError(error)),
            },
            Some(live) => {
                let spec = merge(&json!(live.spec), &self.object["spec"]);
                let patch = json!({"metadata": {"resourceVersion": self.version}, "spec": spec});
                let params = PatchParams {
                    dry_run,
                    field_manager,
                    ..PatchParams::default()
                };
                api.patch(&name, &params, &Patch::Merge(&patch)).await
            }
        };
        sent.map(drop).map_err(|error| self.refused(error, &namespace, &name))
    }

    fn refused(&mut self, error: kube::Error, namespace: &str, name: &str) -> StatusCode {
        let mut code = StatusCode::BAD_GATEWAY;
        if let kube::Error::Api(status) = &error {
            code = StatusCode::from_u16(status.code).unwrap_or(code);
            if self.live.is_some() && code == StatusCode::CONFLICT {
                // The form is from now on about the version that is there.
                self.version = self
                    .live
                    .as_ref()
                    .and_then(|md| md.resource_version())
                    .unwrap_or_default();
                let text = "Another user has changed the ModelDeployment since you opened the form. Your version is below: review it, and save again to overwrite the other change.";
                form::mark(&mut self.faults, "", text);
                return code;
            }
            if form::place_status(status, &mut self.faults) {
                return code;
            }
        }
        let view = &self.session.view;
        let cluster = view.cluster();
        let verb = if self.live.is_some() { "change" } else { "create" };
        let doing = format!("{verb} ModelDeployment '{name}' in namespace '{namespace}'");
        form::mark(
            &mut self.faults,
            "",
            &chain(&cluster.explain(error, doing, "ModelDeployment")),
        );
        code
    }

    fn text(&self, pointer: &str) -> String {
        self.object
            .pointer(pointer)
            .and_then(Value::as_str)
            .unwrap_or_default()
            .to_owned()
    }

    /// The address of its page.
    fn href(&self) -> String {
        format!(
            "/deployments/{}/{}",
            self.text("/metadata/namespace"),
            self.text("/metadata/name")
        )
    }

    async fn page(mut self, code: StatusCode) -> Response {
        let preview = self.preview();
        // An empty required field is not an error while the user is still typing.
        let mut open = Vec::new();
        if code.is_success() {
            let empty = |path: &str| {
                self.sent
                    .as_ref()
                    .is_some_and(|s| s.get(path).unwrap_or_default().trim().is_empty())
            };
            let (missing, wrong) = std::mem::take(&mut self.faults)
                .into_iter()
                .partition(|(path, text)| !path.is_empty() && empty(path) && !text.starts_with(NOT_DERIVED));
            self.faults = wrong;
            open = listed(&missing);
        }
        let whole = self.faults.remove("").unwrap_or_default();
        let mut sections: Vec<Section> = form::GROUPS.iter().map(|group| self.section(group)).collect();
        let (heading, action, back, button) = match &self.live {
            None => {
                if let Some(model) = sections.first_mut() {
                    model.inputs.extend(self.inputs(form::IDENTITY));
                }
                (
                    "Deploy a model".to_owned(),
                    "/new".to_owned(),
                    "/deployments".to_owned(),
                    "Deploy",
                )
            }
            Some(md) => {
                let href = self.href();
                (format!("Edit {}", md.name_any()), format!("{href}/edit"), href, "Save")
            }
        };
        let form = Form {
            shell: Shell::new(self.session, "deployments", heading.clone()),
            heading,
            action,
            back,
            version: self.version,
            button,
            sections,
            whole,
            faults: listed(&self.faults),
            tried: !code.is_success(),
            open,
            can_check_fit: self.live.is_none() && preview.is_some() && self.faults.is_empty(),
            preview,
            derived: self.derived,
            fit: self.fit,
            engines: self.providers.engines().into_iter().map(str::to_owned).collect(),
            providers: self.providers.iter().map(|(name, _)| name.to_owned()).collect(),
            namespaces: self.session.view.namespaces().await,
        };
        refusal::status_html(code, &form)
    }

    fn section(&self, group: &'static Group) -> Section {
        let inputs = self.inputs(group.fields);
        let used = inputs.iter().any(|i| !i.value.is_empty() || !i.fault.is_empty());
        Section {
            title: group.title,
            plain: group.open,
            open: used,
            inputs,
        }
    }

    fn inputs(&self, fields: &'static [Field]) -> Vec<Input> {
        let input = |field: &'static Field| Input {
            field,
            value: match &self.sent {
                Some(sent) => sent.get(field.path).unwrap_or_default().to_owned(),
                None => form::shown(&self.object, field),
            },
            fault: self.faults.get(field.path).cloned().unwrap_or_default(),
        };
        fields.iter().map(input).collect()
    }

    /// Checks whether the pods fit on the nodes, with the user's permissions.
    async fn check_fit(&self) -> Fit {
        let cluster = self.session.view.cluster();
        Fit::new(match read(&self.object) {
            Ok(md) => fitting::of(&cluster, md, clock::now()).await.map_err(|e| chain(&e)),
            Err((path, text)) => Err(format!("{path}: {text}")),
        })
    }

    /// Preview by the controllers' plans: provider, reason, upstream object. `None` for an empty form.
    fn preview(&self) -> Option<Preview> {
        if self.live.is_none() && self.sent.is_none() {
            return None;
        }
        let mut md = read(&self.object).ok()?;
        // Without an engine there is nothing to say about providers.
        md.spec.engine_type().filter(|engine| !engine.is_empty())?;
        if md.name_any().is_empty() {
            md.metadata.name = Some("my-model".to_owned());
        }
        let now = clock::now();
        let mut warnings = validate(&md, &self.providers).warnings;
        let why = why::explain(&md, &self.providers, now);
        let planned = plans(md, &State::with_providers(self.providers.clone()), now).ok()?;
        let status = planned.md.status.clone().unwrap_or_default();
        let ignored = [condition::OVERRIDES_IGNORED, condition::FIELDS_IGNORED];
        let ignored = ignored.iter().filter_map(|type_| status.conditions.when_true(type_));
        warnings.extend(ignored.map(|c| c.message.clone()));
        let objects: Vec<_> = planned.apply.iter().map(|apply| &apply.object).collect();
        let nothing = match status.phase {
            _ if !objects.is_empty() => String::new(),
            Some(Phase::Pending | Phase::Failed) => status.message.unwrap_or_default(),
            _ if planned.md.is_paused() => {
                "The ModelDeployment is paused: no objects are created until it is resumed.".to_owned()
            }
            _ => "The provider is not built in: the console cannot show the objects that it would create.".to_owned(),
        };
        Some(Preview {
            why,
            warnings,
            yaml: text::documents(&objects, Format::Yaml).unwrap_or_default(),
            nothing,
        })
    }
}

/// The object as a type of ours, with defaults, or the path of what is wrong, and what is.
fn read(object: &Value) -> Result<ModelDeployment, (String, String)> {
    let mut md: ModelDeployment = typed(object).map_err(|unfit| (unfit.path, unfit.said))?;
    apply_defaults(&mut md.spec);
    Ok(md)
}

/// Faults as a list, each with the field it is at, in the order of the form.
fn listed(faults: &Faults) -> Vec<(&'static Field, String)> {
    let all = form::IDENTITY.iter().chain(form::fields());
    all.filter_map(|field| Some((field, faults.get(field.path)?.clone())))
        .collect()
}

/// Merge patch from `before` to `after` (RFC 7386).
fn merge(before: &Value, after: &Value) -> Value {
    let (Value::Object(before), Value::Object(after)) = (before, after) else {
        return after.clone();
    };
    let gone = before.keys().filter(|key| !after.contains_key(*key));
    let gone = gone.map(|key| (key.clone(), Value::Null));
    let new = after.iter().filter(|(key, value)| before.get(*key) != Some(value));
    let new = new.map(|(key, value)| {
        let value = before
            .get(key)
            .map_or_else(|| value.clone(), |before| merge(before, value));
        (key.clone(), value)
    });
    Value::Object(gone.chain(new).collect())
}

/// A field as it is shown.
struct Input {
    field: &'static Field,
    value: String,
    fault: String,
}

impl Input {
    fn is_wide(&self) -> bool {
        matches!(self.field.holds, Holds::Map | Holds::Yaml) || self.field.path == MODEL
    }

    /// The list that helps to fill it in.
    fn list(&self) -> Option<&'static str> {
        match self.field.path {
            "spec.engine.type" => Some("engines"),
            "spec.provider.name" => Some("providers"),
            "metadata.namespace" => Some("namespaces"),
            _ => None,
        }
    }
}

struct Section {
    title: &'static str,
    /// Always shown whole.
    plain: bool,
    /// Unfolded, if it can be folded.
    open: bool,
    inputs: Vec<Input>,
}

/// Preview of a form.
struct Preview {
    why: Why,
    warnings: Vec<String>,
    yaml: String,
    /// Reason why there is no upstream object.
    nothing: String,
}

#[derive(Template)]
#[template(path = "form.html")]
struct Form {
    shell: Shell,
    heading: String,
    action: String,
    back: String,
    version: String,
    button: &'static str,
    sections: Vec<Section>,
    /// Errors that belong to no field.
    whole: String,
    /// Errors of fields.
    faults: Vec<(&'static Field, String)>,
    /// Whether the form was submitted.
    tried: bool,
    /// Required fields that are empty.
    open: Vec<(&'static Field, String)>,
    preview: Option<Preview>,
    derived: Vec<Derived>,
    fit: Option<Fit>,
    /// Whether a script may ask for the fit.
    can_check_fit: bool,
    engines: Vec<String>,
    providers: Vec<String>,
    namespaces: Vec<String>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_differs_is_sent() {
        let before = json!({"model": {"id": "a", "servedName": "b"}, "scaling": {"replicas": 1}, "image": "x"});
        let after = json!({"model": {"id": "a"}, "scaling": {"replicas": 2}, "image": "x"});
        assert_eq!(
            merge(&before, &after),
            json!({"model": {"servedName": null}, "scaling": {"replicas": 2}})
        );
    }
}
