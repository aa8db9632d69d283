//! Tenants: units of every limit on callers.

use std::fmt;
use std::sync::Arc;

use runway_operator::audit::namespace_of_account;

/// Unit of limits. A team creates as many ServiceAccounts in its namespaces as it likes, so those of one namespace are one
/// tenant. A user with another name, and a key, is a tenant of its own. Cheap to clone.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Tenant(Arc<str>);

impl Tenant {
    /// The tenant of a user, by the name that the API server reports.
    pub fn of_user(name: &str) -> Self {
        match namespace_of_account(name) {
            Some(namespace) => Self(format!("namespace:{namespace}").into()),
            None => Self(format!("user:{name}").into()),
        }
    }

    /// The namespace of ServiceAccounts; `None` for other tenants.
    pub fn namespace(&self) -> Option<&str> {
        self.0.strip_prefix("namespace:")
    }

    /// The holder of a key, by its name.
    pub fn of_key(name: &str) -> Self {
        Self(format!("key:{name}").into())
    }
}

impl fmt::Display for Tenant {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl From<&Tenant> for Arc<str> {
    fn from(tenant: &Tenant) -> Self {
        Self::clone(&tenant.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn service_accounts_of_one_namespace_are_one_tenant() {
        let tenant = |name: &str| Tenant::of_user(&format!("system:serviceaccount:{name}"));
        assert_eq!(tenant("team-a:one"), tenant("team-a:two"));
        assert_eq!(tenant("team-a:one").namespace(), Some("team-a"));
        assert_eq!(Tenant::of_user("namespace:team-a").namespace(), None);
        assert_ne!(tenant("team-a:one"), tenant("team-b:one"));
    }

    #[test]
    fn other_users_and_keys_are_tenants_of_their_own() {
        let all = [
            Tenant::of_user("ada"),
            Tenant::of_user("bob"),
            Tenant::of_user("namespace:team-a"),
            Tenant::of_user("key:ada"),
            Tenant::of_user("system:node:one"),
            Tenant::of_user("system:serviceaccount:team-a:one"),
            Tenant::of_key("ada"),
        ];
        let distinct: std::collections::BTreeSet<&Tenant> = all.iter().collect();
        assert_eq!(distinct.len(), all.len());
    }
}
