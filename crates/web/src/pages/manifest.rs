//! Creates and edits AsyncActors and LlamaStackDistributions as YAML, with the checks of `kubeairunway validate` and a dry run of the
//! API server before anything changes.

use askama::Template;
use axum::extract::Path;
use axum::http::StatusCode;
use axum::response::{IntoResponse, Redirect, Response};
use kube::ResourceExt;
use kube::api::PostParams;
use kube::core::DynamicObject;
use runway_api::{Name, Namespace};
use runway_client::diagnostic::Level;
use runway_client::documents::{Document, Documents};
use runway_client::target::Kind;
use runway_client::validate::validate;
use runway_operator::telemetry::chain;
use runway_operator::{audit, clock};

use super::actions::{MANAGER, PARTS, Place, refused};
use crate::form::Pairs;
use crate::guard::{Asker, Sent};
use crate::page::{self, Shell};
use crate::refusal;
use crate::sessions::Session;

/// Name of the text in messages.
const TEXT: &str = "manifest";

/// Manifest of a new AsyncActor.
const NEW_ACTOR: &str = "\
apiVersion: asya.sh/v1alpha1
kind: AsyncActor
metadata:
  name: my-actor
  namespace: NAMESPACE
spec:
  transport: rabbitmq
  # The workload that processes the messages. It keeps its owner.
  workloadRef:
    apiVersion: apps/v1
    kind: Deployment
    name: my-workload
  scaling:
    enabled: true
    minReplicas: 0
    maxReplicas: 10
";

/// Manifest of a new LlamaStackDistribution.
const NEW_STACK: &str = "\
apiVersion: llamastack.io/v1alpha1
kind: LlamaStackDistribution
metadata:
  name: my-stack
  namespace: NAMESPACE
spec:
  server:
    distribution:
      name: starter
    storage:
      size: 10Gi
";

/// A manifest that is being written.
struct Draft<'a> {
    session: &'a Session,
    part: &'static str,
    title: &'static str,
    kind: Kind,
    /// The object that is edited; `None` for a new one.
    live: Option<(Namespace, Name)>,
    /// Resource version that the text is based on; empty for a new object.
    version: String,
    text: String,
    faults: Vec<String>,
    warnings: Vec<String>,
    accepted: bool,
}

/// The form of a new object.
pub async fn new(Asker(session): Asker, Path(part): Path<String>) -> Response {
    match Draft::new(&session, &part) {
        Some(draft) => draft.page(StatusCode::OK),
        None => refusal::nowhere().await,
    }
}

/// Creates an object, or shows the form with what is wrong.
pub async fn create(Asker(session): Asker, Path(part): Path<String>, Sent(sent): Sent) -> Response {
    match Draft::new(&session, &part) {
        Some(draft) => draft.answer(&sent).await,
        None => refusal::nowhere().await,
    }
}

/// The form of an object.
pub async fn edit(Asker(session): Asker, place: Place) -> Response {
    match Draft::of(&session, &place).await {
        Ok(draft) => draft.page(StatusCode::OK),
        Err(response) => response,
    }
}

/// Changes the version of an object that was shown.
pub async fn change(Asker(session): Asker, place: Place, Sent(sent): Sent) -> Response {
    match Draft::of(&session, &place).await {
        Ok(draft) => draft.answer(&sent).await,
        Err(response) => response,
    }
}

impl<'a> Draft<'a> {
    /// `None` for a part whose objects are not written as YAML.
    fn new(session: &'a Session, part: &str) -> Option<Self> {
        let (part, title, kind) = PARTS.into_iter().find(|(known, ..)| *known == part)?;
        let text = match kind {
            Kind::AsyncActor => NEW_ACTOR,
            Kind::LlamaStackDistribution => NEW_STACK,
            Kind::ModelDeployment | Kind::InferenceProviderConfig => return None,
        };
        Some(Self {
            session,
            part,
            title,
            kind,
            live: None,
            version: String::new(),
            text: text.replace("NAMESPACE", session.view.home.as_str()),
            faults: Vec::new(),
            warnings: Vec::new(),
            accepted: false,
        })
    }

    async fn of(session: &'a Session, place: &Place) -> Result<Self, Response> {
        let Some(draft) = Self::new(session, place.part) else {
            return Err(refusal::nowhere().await);
        };
        let cluster = session.view.cluster();
        let found = cluster.get(&place.target, &place.namespace).await;
        let mut object = found.map_err(|error| refused(&error))?;
        let version = object.resource_version().unwrap_or_default();
        if let Some(rest) = object.data.as_object_mut() {
            rest.remove("status");
        }
        let meta = &mut object.metadata;
        (meta.managed_fields, meta.resource_version, meta.uid) = (None, None, None);
        (meta.creation_timestamp, meta.generation) = (None, None);
        Ok(Self {
            live: Some((place.namespace.clone(), place.target.name.clone())),
            version,
            text: page::yaml(&object),
            ..draft
        })
    }

    /// Processes a submitted text: checks it, or applies it.
    async fn answer(mut self, sent: &Pairs) -> Response {
        let only_check = sent.get("then") == Some("check");
        if only_check {
            audit::only_reads();
        }
        sent.get("manifest").unwrap_or_default().clone_into(&mut self.text);
        if let Some(version) = sent.get("version").filter(|_| self.live.is_some()) {
            version.clone_into(&mut self.version);
        }
        let Some(object) = self.read() else {
            return self.page(StatusCode::UNPROCESSABLE_ENTITY);
        };
        // The dry run comes first; the change is sent only if it succeeds.
        for dry_run in [true, false] {
            if !dry_run && only_check {
                self.accepted = true;
                return self.page(StatusCode::OK);
            }
            if let Err(code) = self.send(&object, dry_run).await {
                return self.page(code);
            }
        }
        Redirect::to(&self.href(&object)).into_response()
    }

    /// The object of the text; `None`, with the faults, if it would be rejected.
    fn read(&mut self) -> Option<DynamicObject> {
        let mut documents = Documents::default();
        documents.take_in_text(TEXT, &self.text);
        if documents.errors.is_empty() {
            self.faults.extend(self.mismatch(&documents.found));
        }
        let value = documents.found.first().map(|document| document.value.clone());
        if self.faults.is_empty() {
            for line in validate(documents, clock::now()).lines() {
                match line.level {
                    Level::Error => self.faults.push(line.body()),
                    Level::Warning | Level::Note => self.warnings.push(line.body()),
                }
            }
        }
        let mut object: DynamicObject = match serde_json::from_value(value?) {
            Ok(object) => object,
            Err(error) => {
                self.faults.push(error.to_string());
                return None;
            }
        };
        let home = &self.session.view.home;
        object.metadata.namespace.get_or_insert_with(|| home.to_string());
        object.metadata.resource_version = Some(self.version.clone()).filter(|version| !version.is_empty());
        self.faults.is_empty().then_some(object)
    }

    /// Reason why a text is not about the object of the page.
    fn mismatch(&self, found: &[Document]) -> Option<String> {
        let [document] = found else {
            return Some(format!("the manifest has {} objects: write one", found.len()));
        };
        let expected = self.kind.resource();
        if (document.group(), document.kind()) != (&expected.group, &expected.kind) {
            return Some(format!(
                "kind: this page is about {} of {}",
                expected.kind, expected.api_version
            ));
        }
        let (home, name) = self.live.as_ref()?;
        let is_same =
            document.name() == name.as_str() && document.namespace().unwrap_or(home.as_str()) == home.as_str();
        (!is_same).then(|| format!("metadata: name and namespace cannot change; they are '{name}' in '{home}'"))
    }

    async fn send(&mut self, object: &DynamicObject, dry_run: bool) -> Result<(), StatusCode> {
        let (namespace, name) = (object.namespace().unwrap_or_default(), object.name_any());
        audit::object(self.kind.as_str(), &namespace, &name);
        let place: (Result<Namespace, _>, Result<Name, _>) = (namespace.parse(), name.parse());
        let (Ok(at), Ok(segment)) = place else {
            self.faults.push(format!(
                "metadata: '{namespace}/{name}' is not a valid namespace and name"
            ));
            return Err(StatusCode::UNPROCESSABLE_ENTITY);
        };
        let cluster = self.session.view.cluster();
        let api = cluster.api(self.kind, Some(&at));
        let params = PostParams {
            dry_run,
            field_manager: Some(MANAGER.to_owned()),
        };
        let sent = match &self.live {
            None => api.create(&params, object).await,
            Some(_) => api.replace(&segment, &params, object).await,
        };
        let Err(error) = sent else { return Ok(()) };
        let code = match &error {
            kube::Error::Api(status) => StatusCode::from_u16(status.code).unwrap_or(StatusCode::BAD_GATEWAY),
            _ => StatusCode::BAD_GATEWAY,
        };
        let is_edit = self.live.is_some();
        self.faults.push(if is_edit && code == StatusCode::CONFLICT {
            "Another user or controller has changed the object since you opened it. Open it again to edit the new version.".to_owned()
        } else {
            let verb = if is_edit { "change" } else { "create" };
            let doing = format!("{verb} {} '{name}' in namespace '{namespace}'", self.kind.as_str());
            chain(&cluster.explain(error, doing, self.kind.as_str()))
        });
        Err(code)
    }

    fn href(&self, object: &DynamicObject) -> String {
        format!(
            "/{}/{}/{}",
            self.part,
            object.namespace().unwrap_or_default(),
            object.name_any()
        )
    }

    fn page(self, code: StatusCode) -> Response {
        let list = format!("/{}", self.part);
        let (heading, action, back, button) = match &self.live {
            None => {
                let heading = format!("New {}", self.kind.as_str());
                (heading, format!("/new/{}", self.part), list, "Create")
            }
            Some((namespace, name)) => {
                let href = format!("{list}/{namespace}/{name}");
                (format!("Edit {name}"), format!("{href}/edit"), href, "Save")
            }
        };
        let form = Form {
            shell: Shell::new(self.session, self.part, heading.clone()),
            title: self.title,
            heading,
            action,
            back,
            button,
            version: self.version,
            text: self.text,
            faults: self.faults,
            warnings: self.warnings,
            accepted: self.accepted,
        };
        refusal::status_html(code, &form)
    }
}

#[derive(Template)]
#[template(path = "manifest.html")]
struct Form {
    shell: Shell,
    title: &'static str,
    heading: String,
    action: String,
    back: String,
    button: &'static str,
    version: String,
    text: String,
    faults: Vec<String>,
    warnings: Vec<String>,
    /// Whether the API server would accept it.
    accepted: bool,
}
