//! Objects of a component.

use kube::ResourceExt as _;
use kube::core::DynamicObject;
use runway_operator::scope::{FLAG, Namespaces};
use serde_json::{Value, json};

use super::component::{Component, Release};
use super::metadata::{AGGREGATE, PERMISSION_POLICY, object};
use super::pods;
use super::roles::{self, Identity};

impl Component {
    /// All objects, in apply order.
    pub fn objects(&self, release: &Release) -> Vec<DynamicObject> {
        let mut all = self.first.clone();
        all.extend(self.crds.iter().map(object));
        all.push(roles::service_account(&self.name));
        all.extend(self.roles(Identity::ServiceAccount, &release.namespaces));
        all.extend(pods::around(self));
        if release.monitoring {
            all.push(pods::service_monitor(self));
        }
        if release.engine_monitoring {
            all.extend(self.pod_monitors.clone());
        }
        if let Some(claim) = &self.claim {
            all.push(pods::claim(self, claim));
        }
        all.push(pods::deployment(self, release));
        all.extend(self.extra.iter().map(|object| chosen(object, release)));
        if release.permissions {
            all.extend(self.permissions.clone());
        }
        if release.policy {
            all.extend(self.policy.clone());
        }
        all
    }

    /// Adds the arguments of an installed component that an administrator has set, such as `--gateway=infra/models`: those that this
    /// version does not set itself.
    #[must_use]
    pub fn with_arguments_of(mut self, installed: &[String]) -> Self {
        let own = pods::arguments(&self, &Namespaces::default());
        let is_added = |arg: &&String| !own.contains(arg) && !arg.starts_with(FLAG);
        let added = installed.iter().filter(is_added).cloned();
        self.args.extend(added);
        self
    }

    /// Roles and role bindings, for all namespaces or for some.
    pub fn roles(&self, identity: Identity, namespaces: &Namespaces) -> Vec<DynamicObject> {
        let mut everywhere = self.access.clone();
        if matches!(identity, Identity::User) {
            everywhere.extend(self.access_from_outside.clone());
        }
        let namespaces = if self.watches {
            namespaces
        } else {
            &Namespaces::default()
        };
        roles::of_controller(&self.name, &everywhere, &self.access_in_namespace, identity, namespaces)
    }
}

/// An object with the choices of an installation: whether a role is aggregated, whether fields require permissions, and the
/// namespaces of a webhook.
fn chosen(object: &DynamicObject, release: &Release) -> DynamicObject {
    let mut object = object.clone();
    let labels = object.labels_mut().iter_mut();
    for (_, value) in labels.filter(|(key, _)| key.starts_with(AGGREGATE)) {
        *value = release.aggregation.to_string();
    }
    // A later upgrade keeps it.
    if let Some(value) = object
        .metadata
        .annotations
        .as_mut()
        .and_then(|all| all.get_mut(PERMISSION_POLICY))
    {
        *value = release.permissions.to_string();
    }
    if !release.namespaces.are_all() {
        for webhook in webhooks(&mut object) {
            webhook["namespaceSelector"] = namespace_selector(&release.namespaces);
        }
    }
    object
}

/// The webhooks of a configuration.
fn webhooks(object: &mut DynamicObject) -> impl Iterator<Item = &mut Value> {
    let webhooks = object.data.get_mut("webhooks").and_then(Value::as_array_mut);
    webhooks.into_iter().flatten()
}

/// Selector of namespaces by their names.
fn namespace_selector(namespaces: &Namespaces) -> Value {
    let named = json!({ "key": "kubernetes.io/metadata.name", "operator": "In", "values": namespaces.names() });
    json!({ "matchExpressions": [named] })
}
