//! Jobs that Helm runs: before the release is uninstalled, before an upgrade that switches controllers off, and after an installation or
//! upgrade.
//!
//! Their programs are tasks of the core's program (`runway_core::task`), whose image each installation has.

use anyhow::{Context, Result};
use k8s_openapi::api::rbac::v1::PolicyRule;
use kube::core::DynamicObject;
use runway_cli::install::kinds;
use runway_core::task;
use runway_manifests::{Component, Release, built_in_providers, core};
use runway_operator::access::named;
use serde_json::{Value, json};

use super::marks::mark;
use super::template::{beginning, behind, in_watched_namespaces, of_object, scope};

/// ServiceAccount that may list what only controllers delete.
const GUARD: &str = "kubeairunway-uninstall-guard";

/// A Job, and what it may do.
struct Hook {
    name: &'static str,
    /// Its ServiceAccount. If it is that of another Job, it exists before the upgrade.
    account: &'static str,
    /// Events of Helm.
    events: &'static str,
    /// Conditions of its objects.
    condition: String,
    access: Vec<PolicyRule>,
    /// Whether it acts on objects in namespaces.
    watches: bool,
    /// Arguments, as an expression.
    arguments: String,
    /// Number of retries.
    retries: u32,
}

fn hooks() -> [Hook; 3] {
    let providers = built_in_providers();
    let providers: Vec<&str> = providers.iter().map(|provider| provider.name()).collect();
    let settings = "(include \"kubeairunway.settings\" $ | fromJsonArray)";
    let switched_off = "(include \"kubeairunway.switchedOff\" $ | fromJsonArray)";
    let kind = |kind: &str, controller: &str| format!("(ternary (list {kind:?}) list $.Values.{controller}.enabled)");
    let check = |kinds: &str| {
        let (scope, task) = (scope(), task::CHECK_UNINSTALL);
        format!("toJson (concat {scope} (list {task:?}) {kinds})")
    };
    let kinds = [kind(task::MODELS, "controller"), kind(task::ACTORS, "asyaOperator")];
    [
        Hook {
            name: GUARD,
            account: GUARD,
            events: "pre-delete",
            condition: "$.Values.uninstallGuard.enabled".to_owned(),
            access: task::access_to_check_uninstall(),
            watches: true,
            arguments: check(&kinds.join(" ")),
            retries: 0,
        },
        Hook {
            name: "kubeairunway-upgrade-guard",
            account: GUARD,
            events: "pre-upgrade",
            condition: switched_off.to_owned(),
            access: Vec::new(),
            watches: true,
            arguments: check(switched_off),
            retries: 0,
        },
        Hook {
            name: "kubeairunway-settings",
            account: "kubeairunway-settings",
            events: "post-install,post-upgrade",
            condition: settings.to_owned(),
            access: vec![named(task::access_to_apply_settings(), &providers)],
            watches: false,
            arguments: format!("toJson (concat (list {:?}) {settings})", task::APPLY_SETTINGS),
            retries: 6,
        },
    ]
}

/// The template of all hooks.
pub(super) fn template() -> Result<String> {
    let mut text = beginning(Some(&core()));
    for hook in hooks() {
        let component = Component {
            program: core().program,
            is_controller: false,
            watches: hook.watches,
            access: hook.access.clone(),
            ..Component::new(hook.name)
        };
        let conditions = [hook.condition.clone()];
        let has_account = hook.account == hook.name;
        for object in component.objects(&Release::default()) {
            let object = match kinds::kind(&object) {
                "ServiceAccount" | "ClusterRole" | "ClusterRoleBinding" if has_account => object,
                "Deployment" => job(&hook, &object)?,
                _ => continue,
            };
            text.push_str(&behind(&conditions, &object, &of_object(&component, &object)?));
        }
        if has_account {
            text.push_str(&in_watched_namespaces(&component, &conditions)?);
        }
    }
    Ok(text)
}

/// A Job with the pod of a Deployment.
fn job(hook: &Hook, deployment: &DynamicObject) -> Result<DynamicObject> {
    let mut template = deployment.data["spec"]["template"].clone();
    let pod = &mut template["spec"];
    pod["restartPolicy"] = json!("Never");
    pod["serviceAccountName"] = json!(hook.account);
    let container = pod["containers"][0].as_object_mut().context("no container")?;
    for of_server in ["ports", "startupProbe", "livenessProbe", "readinessProbe"] {
        container.remove(of_server);
    }
    container.insert("args".to_owned(), Value::String(mark(&hook.arguments)));
    let mut metadata = serde_json::to_value(&deployment.metadata)?;
    metadata["annotations"] = json!({
        "helm.sh/hook": hook.events,
        "helm.sh/hook-delete-policy": "before-hook-creation,hook-succeeded",
        // Helm shows the message of a task that fails.
        "helm.sh/hook-output-log-policy": "hook-failed",
    });
    Ok(serde_json::from_value(json!({
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": metadata,
        "spec": { "backoffLimit": hook.retries, "activeDeadlineSeconds": 300, "template": template },
    }))?)
}
