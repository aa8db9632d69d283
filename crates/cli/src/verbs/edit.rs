//! `edit`: an object in the user's editor, as kubectl does.

use std::fs;
use std::io::Write as _;
use std::path::Path;
use std::process::Command;

use clap::Args;
use kube::api::Patch;
use runway_api::Namespace;
use runway_client::cluster::Cluster;
use runway_client::diff::MANAGER;
use runway_client::target::Target;
use runway_client::text::{self, Format};
use runway_operator::telemetry::chain;
use serde_json::{Value, json};

use super::Error;
use crate::answer::Answer;
use crate::terminal::Terminal;

/// Arguments of `edit`.
#[derive(Debug, Args)]
pub struct EditArgs {
    /// Name of the ModelDeployment, or KIND/NAME
    #[arg(value_name = "NAME")]
    pub target: Target,
    /// Namespace; the namespace of the kubeconfig's current context if omitted
    #[arg(short, long)]
    pub namespace: Option<Namespace>,
    /// Editor, with its arguments; that of EDITOR if omitted, or vi
    #[arg(long, value_name = "COMMAND", env = "KUBE_EDITOR", hide_env_values = true)]
    pub editor: Option<String>,
    /// Editor for all programs.
    #[arg(long, hide = true, env = "EDITOR", hide_env_values = true)]
    pub usual_editor: Option<String>,
}

impl EditArgs {
    fn editor(&self) -> &str {
        let set = [&self.editor, &self.usual_editor].into_iter().flatten();
        set.map(|text| text.trim())
            .find(|text| !text.is_empty())
            .unwrap_or("vi")
    }
}

const INTRODUCTION: &str = "# Edit the object, save the file and close the editor. Without changes, nothing is sent.\n";

/// Opens an object in an editor, and sends the changed fields.
///
/// # Errors
/// The object does not exist, the editor fails, or the cluster rejects the change.
pub async fn edit(args: &EditArgs, cluster: &Cluster, terminal: &mut Terminal<'_>) -> Result<Answer, Error> {
    let (target, namespace) = (&args.target, args.namespace.as_ref().unwrap_or(&cluster.namespace));
    let failed = |reason: String| Error::Edit {
        target: target.clone(),
        reason,
    };
    let mut before = json!(cluster.get(target, namespace).await?);
    let version = before["metadata"]["resourceVersion"].clone();
    for (path, field) in [("", "status"), ("/metadata", "managedFields")] {
        if let Some(object) = before.pointer_mut(path).and_then(Value::as_object_mut) {
            object.remove(field);
        }
    }
    let shown = text::documents(&[&before], Format::Yaml).map_err(|e| failed(chain(&e)))?;
    let file = tempfile::Builder::new()
        .prefix("kubeairunway-edit-")
        .suffix(".yaml")
        .tempfile();
    let mut file = file.map_err(|e| failed(format!("cannot create a file: {e}")))?;
    let written = file.write_all(format!("{INTRODUCTION}{shown}").as_bytes());
    written.map_err(|e| failed(format!("cannot write a file: {e}")))?;
    open(args.editor(), file.path()).map_err(failed)?;
    let edited = fs::read_to_string(file.path()).map_err(|e| failed(format!("cannot read the edited file: {e}")))?;
    let kept = |reason: String, file: tempfile::NamedTempFile| {
        let kept = file
            .keep()
            .map(|(_, path)| format!("; the changes are in {}", path.display()));
        failed(format!("{reason}{}", kept.unwrap_or_default()))
    };
    let after: Value = match serde_saphyr::from_str(&edited) {
        Ok(after) => after,
        Err(error) => return Err(kept(format!("the edited file is not YAML: {error}"), file)),
    };
    let changes = json_patch::diff(&before, &after);
    if changes.0.is_empty() {
        terminal.say(&format!("{target}: unchanged"));
        return Ok(Answer::default());
    }
    // Another change in the meantime is not overwritten.
    let changes = guarded(changes, ("/metadata/resourceVersion", version));
    match cluster.change(target, namespace, &Patch::Json(changes), MANAGER).await {
        Ok(()) => terminal.say(&format!("{target}: edited")),
        Err(error) => return Err(kept(chain(&error), file)),
    }
    Ok(Answer::default())
}

/// The changes, which have no effect unless the field at a path has this value.
pub(super) fn guarded(mut changes: json_patch::Patch, (path, value): (&str, Value)) -> json_patch::Patch {
    let guard = json!([{ "op": "test", "path": path, "value": value }]);
    if let Ok(json_patch::Patch(guard)) = serde_json::from_value(guard) {
        changes.0.splice(0..0, guard);
    }
    changes
}

/// Runs an editor, given with its arguments.
fn open(editor: &str, file: &Path) -> Result<(), String> {
    let mut words = editor.split_whitespace();
    let program = words.next().unwrap_or("vi");
    match Command::new(program).args(words).arg(file).status() {
        Ok(status) if status.success() => Ok(()),
        Ok(status) => Err(format!("the editor '{editor}' ended with {status}")),
        Err(error) => Err(format!(
            "cannot run the editor '{editor}': {error}; set KUBE_EDITOR to another one"
        )),
    }
}
