//! Objects of a component.

use kube::core::DynamicObject;

use super::component::{Component, Release};
use super::metadata::object;
use super::pods;
use super::roles::{self, Identity};

impl Component {
    /// All objects, in apply order.
    pub fn objects(&self, release: &Release) -> Vec<DynamicObject> {
        let mut all = self.first.clone();
        all.extend(self.crds.iter().map(object));
        all.push(roles::service_account(&self.name));
        all.extend(self.roles(Identity::ServiceAccount));
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
        all.extend(self.extra.clone());
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
        let own = pods::arguments(&self);
        let added = installed.iter().filter(|arg| !own.contains(arg)).cloned();
        self.args.extend(added);
        self
    }

    /// Roles and role bindings.
    pub fn roles(&self, identity: Identity) -> Vec<DynamicObject> {
        let mut everywhere = self.access.clone();
        if matches!(identity, Identity::User) {
            everywhere.extend(self.access_from_outside.clone());
        }
        roles::of_controller(&self.name, &everywhere, &self.access_in_namespace, identity)
    }
}
