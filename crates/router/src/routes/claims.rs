//! Names of models at the Gateway, and the ModelDeployments that claim them. Pure.

use std::collections::{BTreeMap, BTreeSet};

use jiff::Timestamp;
use kube::ResourceExt as _;
use kube::core::DynamicObject;
use runway_api::ModelDeployment;

use super::kinds::{self, Verdict};
use super::settings::GatewayName;
use crate::model::{Model, State};
use crate::table::Key;

/// Name of the model at the Gateway: `spec.gateway.modelName`, or the name by which the model router serves it.
pub fn model_name(md: &ModelDeployment) -> Option<String> {
    let own = md
        .spec
        .gateway
        .as_ref()
        .and_then(|gateway| gateway.model_name.as_deref());
    match own.filter(|name| !name.is_empty()) {
        Some(name) => Some(name.to_owned()),
        None => Some(Model::of(md)?.served),
    }
}

/// The user's own route for a ModelDeployment.
pub fn own_route(md: &ModelDeployment) -> Option<&str> {
    let gateway = md.spec.gateway.as_ref()?;
    gateway.http_route_ref.as_deref().filter(|name| !name.is_empty())
}

/// Whether a ModelDeployment is reached through the Gateway.
pub fn is_enabled(md: &ModelDeployment) -> bool {
    md.spec.gateway.as_ref().and_then(|gateway| gateway.enabled) != Some(false)
}

/// Fields of a ModelDeployment that others with the same model name need.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Claim {
    /// Unique id.
    pub uid: String,
    /// Time of creation.
    pub created: Option<Timestamp>,
    /// Name of the model at the Gateway, if it needs a route of its own.
    pub model: Option<String>,
    /// Whether its route may be created now: it serves, and nothing stops its reconciliation.
    pub wants: bool,
    /// The user's own route.
    pub route: Option<String>,
}

impl Claim {
    /// The claim of a ModelDeployment; `None` while that is being deleted or is not reached through the Gateway.
    pub fn of(md: &ModelDeployment) -> Option<Self> {
        if md.is_deleting() || !is_enabled(md) {
            return None;
        }
        let route = own_route(md).map(str::to_owned);
        let serves = matches!(Model::of(md).map(|model| model.state), Some(State::Serving(_)));
        Some(Self {
            uid: md.uid().unwrap_or_default(),
            created: md.creation_timestamp().map(|time| time.0),
            model: model_name(md).filter(|_| route.is_none()),
            wants: serves && !md.is_paused() && !md.is_dry_run(),
            route,
        })
    }
}

/// State of the route with a model name that was created for a ModelDeployment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Standing {
    /// It exists since this time, and the Gateway has not refused it.
    Routed(Timestamp),
    /// There is none.
    None,
    /// The Gateway refuses it, so that others may have the name.
    Refused,
}

/// A ModelDeployment that claims a name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Claimant {
    /// Namespace and name of the ModelDeployment.
    pub key: Key,
    /// Fields that decide about the name.
    pub claim: Claim,
    /// State of its route.
    pub standing: Standing,
}

impl Claimant {
    /// Whether it counts: it has a route, or is about to get one.
    pub fn counts(&self) -> bool {
        match self.standing {
            Standing::Routed(_) => true,
            Standing::None => self.claim.wants,
            Standing::Refused => false,
        }
    }

    /// Order of precedence: an existing route first, then age, then the name.
    pub fn rank(&self) -> impl Ord + use<> {
        let (class, since) = match self.standing {
            Standing::Routed(since) => (0, Some(since)),
            Standing::None => (1, self.claim.created),
            Standing::Refused => (2, self.claim.created),
        };
        (class, since, self.key.clone())
    }
}

/// State of a route for this model name; `route` is that of the ModelDeployment.
pub fn standing(route: Option<&DynamicObject>, model: &str, gateway: Option<&GatewayName>) -> Standing {
    let Some(route) = route.filter(|route| kinds::model_name(route) == Some(model)) else {
        return Standing::None;
    };
    match kinds::verdict(route, gateway) {
        Verdict::Refused(_) => Standing::Refused,
        _ => Standing::Routed(route.creation_timestamp().map_or(Timestamp::UNIX_EPOCH, |time| time.0)),
    }
}

/// The claims of all ModelDeployments.
#[derive(Debug, Default)]
pub struct Claims {
    all: BTreeMap<Key, Claim>,
    by_model: BTreeMap<String, BTreeSet<Key>>,
    /// By namespace and name of the user's route.
    by_route: BTreeMap<Key, BTreeSet<Key>>,
}

impl Claims {
    /// Sets or removes the claim of a ModelDeployment. Returns the others that the change concerns.
    pub fn set(&mut self, key: &Key, claim: Option<Claim>) -> BTreeSet<Key> {
        let before = self.all.remove(key);
        if before == claim {
            self.all.extend(claim.map(|claim| (key.clone(), claim)));
            return BTreeSet::new();
        }
        let mut concerned = BTreeSet::new();
        if let Some(before) = &before {
            self.forget(key, before);
        }
        let models = [before.as_ref(), claim.as_ref()].into_iter().flatten();
        for model in models.filter_map(|claim| claim.model.as_ref()) {
            concerned.extend(self.by_model.get(model).into_iter().flatten().cloned());
        }
        if let Some(claim) = claim {
            if let Some(model) = &claim.model {
                self.by_model.entry(model.clone()).or_default().insert(key.clone());
            }
            if let Some(route) = &claim.route {
                let route = (key.0.clone(), route.clone());
                self.by_route.entry(route).or_default().insert(key.clone());
            }
            self.all.insert(key.clone(), claim);
        }
        concerned
    }

    fn forget(&mut self, key: &Key, claim: &Claim) {
        if let Some(model) = &claim.model {
            remove(&mut self.by_model, model, key);
        }
        if let Some(route) = &claim.route {
            remove(&mut self.by_route, &(key.0.clone(), route.clone()), key);
        }
    }

    /// The other ModelDeployments that claim a name.
    pub fn others(&self, key: &Key, model: &str) -> Vec<(Key, Claim)> {
        let keys = self.by_model.get(model).into_iter().flatten();
        keys.filter(|other| *other != key)
            .filter_map(|other| Some((other.clone(), self.all.get(other)?.clone())))
            .collect()
    }

    /// The ModelDeployments that a change of a route concerns: that of its name, those that refer to it, and those that claim the
    /// name of the model in it.
    pub fn concerned(&self, route: &Key, model: Option<&str>) -> BTreeSet<Key> {
        let referring = self.by_route.get(route).into_iter().flatten();
        let claiming = model.and_then(|model| self.by_model.get(model)).into_iter().flatten();
        [route].into_iter().chain(referring).chain(claiming).cloned().collect()
    }
}

fn remove<K: Ord>(index: &mut BTreeMap<K, BTreeSet<Key>>, at: &K, key: &Key) {
    if let Some(keys) = index.get_mut(at) {
        keys.remove(key);
        if keys.is_empty() {
            index.remove(at);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(text: &str) -> Key {
        let (namespace, name) = text.split_once('/').unwrap();
        (namespace.to_owned(), name.to_owned())
    }

    #[expect(clippy::unnecessary_wraps, reason = "the type of the argument")]
    fn claim(model: &str) -> Option<Claim> {
        Some(Claim {
            uid: "1".to_owned(),
            created: Some(Timestamp::UNIX_EPOCH),
            model: Some(model.to_owned()),
            wants: true,
            route: None,
        })
    }

    fn names(keys: &BTreeSet<Key>) -> Vec<String> {
        keys.iter()
            .map(|(namespace, name)| format!("{namespace}/{name}"))
            .collect()
    }

    #[test]
    fn change_concerns_those_that_claim_the_old_or_the_new_name() {
        let mut claims = Claims::default();
        assert_eq!(names(&claims.set(&key("a/one"), claim("llama"))), [""; 0]);
        assert_eq!(names(&claims.set(&key("b/two"), claim("gemma"))), [""; 0]);
        assert_eq!(names(&claims.set(&key("b/three"), claim("llama"))), ["a/one"]);
        assert_eq!(
            names(&claims.set(&key("b/three"), claim("llama"))),
            [""; 0],
            "no change"
        );
        assert_eq!(names(&claims.set(&key("b/three"), claim("gemma"))), ["a/one", "b/two"]);
        assert_eq!(names(&claims.set(&key("b/three"), None)), ["b/two"]);
        assert_eq!(claims.others(&key("a/one"), "llama"), []);
    }

    #[test]
    fn change_of_a_route_concerns_its_owner_and_those_that_refer_to_it() {
        let mut claims = Claims::default();
        claims.set(&key("a/one"), claim("llama"));
        let refers = claim("ignored").map(|claim| Claim {
            model: None,
            route: Some("mine".to_owned()),
            ..claim
        });
        claims.set(&key("a/two"), refers.clone());
        claims.set(&key("b/two"), refers);
        assert_eq!(names(&claims.concerned(&key("a/mine"), None)), ["a/mine", "a/two"]);
        assert_eq!(names(&claims.concerned(&key("b/x"), Some("llama"))), ["a/one", "b/x"]);
        claims.set(&key("a/two"), None);
        claims.set(&key("b/two"), None);
        claims.set(&key("a/one"), None);
        assert!(claims.all.is_empty() && claims.by_model.is_empty() && claims.by_route.is_empty());
    }

    #[test]
    fn existing_route_comes_before_age() {
        let at = |second| Timestamp::from_second(second).unwrap();
        let claimant = |name: &str, created, standing| Claimant {
            key: key(name),
            claim: Claim {
                created: Some(at(created)),
                ..claim("llama").unwrap()
            },
            standing,
        };
        let mut all = [
            claimant("a/refused", 0, Standing::Refused),
            claimant("a/old", 1, Standing::None),
            claimant("a/routed", 9, Standing::Routed(at(20))),
            claimant("b/routed", 8, Standing::Routed(at(10))),
            claimant("a/new", 2, Standing::None),
        ];
        all.sort_by_key(Claimant::rank);
        let order: Vec<&str> = all.iter().map(|claimant| claimant.key.1.as_str()).collect();
        assert_eq!(order, ["routed", "routed", "old", "new", "refused"]);
        assert_eq!(all[0].key.0, "b");
        assert!(all[0].counts() && all[2].counts() && !all[4].counts());
    }
}
