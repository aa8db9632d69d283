//! Namespaces that a process watches.

use std::collections::BTreeSet;
use std::fmt;
use std::str::FromStr;
use std::sync::Arc;

use k8s_openapi::NamespaceResourceScope;
use kube::core::{DynamicResourceScope, Resource};
use kube::{Api, Client};
use runway_api::Namespace;
use runway_api::name::Invalid;

/// The flag that limits a process to namespaces.
pub const FLAG: &str = "--watch-namespaces";

/// Arguments of every process that watches objects of users.
#[derive(Clone, Debug, Default, clap::Args)]
pub struct ScopeArgs {
    /// Namespaces to watch, such as team-a,team-b; all if omitted. Objects in other namespaces are neither read nor changed, and
    /// Roles in these namespaces are sufficient
    #[arg(long, value_name = "NAMESPACES", default_value = "", hide_default_value = true)]
    pub watch_namespaces: Namespaces,
}

/// Namespaces that are watched: all, or those of a list. Cheap to clone.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Namespaces(Arc<[Namespace]>);

/// Reason why a list of namespaces is rejected.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BadList {
    /// An entry is not the name of a namespace.
    #[error(transparent)]
    Name(#[from] Invalid),
    /// A namespace is listed more than once.
    #[error("namespace `{0}` is listed twice: remove one of them")]
    Twice(Namespace),
}

impl FromStr for Namespaces {
    type Err = BadList;

    /// Reads names that are separated by commas. An empty text is all namespaces.
    fn from_str(text: &str) -> Result<Self, BadList> {
        if text.is_empty() {
            return Ok(Self::default());
        }
        let names: Vec<Namespace> = text.split(',').map(str::parse).collect::<Result<_, _>>()?;
        let mut known = BTreeSet::new();
        match names.iter().find(|name| !known.insert(*name)) {
            Some(twice) => Err(BadList::Twice(twice.clone())),
            None => Ok(Self(names.into())),
        }
    }
}

impl fmt::Display for Namespaces {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let names: Vec<&str> = self.names().iter().map(Namespace::as_str).collect();
        f.write_str(&names.join(","))
    }
}

impl Namespaces {
    /// The namespaces that a process with these arguments watches.
    pub fn in_arguments(args: &[String]) -> Self {
        let value = |arg: &String| arg.strip_prefix(FLAG)?.strip_prefix('=')?.parse().ok();
        args.iter().find_map(value).unwrap_or_default()
    }

    /// The argument with these namespaces; none if all are watched.
    pub fn argument(&self) -> Option<String> {
        (!self.are_all()).then(|| format!("{FLAG}={self}"))
    }

    /// The namespaces of the list; none if all are watched.
    pub fn names(&self) -> &[Namespace] {
        &self.0
    }

    /// Whether all namespaces are watched.
    pub fn are_all(&self) -> bool {
        self.0.is_empty()
    }

    /// Whether a namespace is watched.
    pub fn contain(&self, namespace: &str) -> bool {
        self.are_all() || self.0.iter().any(|own| own.as_str() == namespace)
    }

    /// The objects of a kind in these namespaces.
    pub fn apis<K>(&self, client: &Client) -> Apis<K>
    where
        K: Resource<Scope = NamespaceResourceScope>,
        K::DynamicType: Default,
    {
        let within = |namespace: &str| Api::namespaced(client.clone(), namespace);
        self.each(|| Api::all(client.clone()), within)
    }

    /// The objects of a kind in these namespaces, if the kind is known at run time only.
    pub fn apis_of<K>(&self, client: &Client, kind: &K::DynamicType) -> Apis<K>
    where
        K: Resource<Scope = DynamicResourceScope>,
    {
        let within = |namespace: &str| Api::namespaced_with(client.clone(), namespace, kind);
        self.each(|| Api::all_with(client.clone(), kind), within)
    }

    fn each<K>(&self, all: impl FnOnce() -> Api<K>, within: impl Fn(&str) -> Api<K>) -> Apis<K> {
        if self.are_all() {
            return Apis::one(all());
        }
        let parts = self.0.iter().map(|namespace| {
            let namespace = namespace.as_str();
            (Part::Of(namespace.into()), within(namespace))
        });
        Apis(parts.collect())
    }
}

/// Objects that a list covers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Part {
    /// All that are watched.
    All,
    /// Those of one namespace.
    Of(Arc<str>),
}

impl Part {
    /// Whether it covers the objects of a namespace.
    pub fn covers(&self, namespace: &str) -> bool {
        match self {
            Self::All => true,
            Self::Of(own) => **own == *namespace,
        }
    }
}

/// The APIs of the watches of a kind, and what each covers.
pub struct Apis<K>(Vec<(Part, Api<K>)>);

impl<K> Apis<K> {
    /// A single watch.
    pub fn one(api: Api<K>) -> Self {
        Self(vec![(Part::All, api)])
    }

    pub(crate) fn into_parts(self) -> Vec<(Part, Api<K>)> {
        self.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(text: &str) -> Result<Namespaces, String> {
        text.parse().map_err(|error: BadList| error.to_string())
    }

    #[test]
    fn empty_list_is_all_namespaces() {
        let all = parsed("").unwrap();
        assert!(all.are_all() && all.contain("team-a"));
        assert_eq!(all, Namespaces::default());
        let two = parsed("team-a,team-b").unwrap();
        assert!(two.contain("team-a") && two.contain("team-b") && !two.contain("team-c") && !two.contain(""));
        assert_eq!(two.argument().as_deref(), Some("--watch-namespaces=team-a,team-b"));
        assert_eq!(
            Namespaces::in_arguments(&["run".to_owned(), format!("{FLAG}={two}")]),
            two
        );
        assert_eq!(all.argument(), None);
    }

    #[test]
    fn invalid_and_repeated_namespaces_are_rejected() {
        assert_eq!(
            parsed("a,b,a").unwrap_err(),
            "namespace `a` is listed twice: remove one of them"
        );
        for bad in ["team-a,", ",", "team-a, team-b", "Team", "a/b", "a.b"] {
            assert!(
                parsed(bad).unwrap_err().contains("namespace"),
                "{bad}: {:?}",
                parsed(bad)
            );
        }
    }
}
