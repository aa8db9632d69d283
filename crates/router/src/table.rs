//! The routing table: which models a name in a request may mean. Pure.

use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;

use runway_api::Name;
use serde::Serialize;

use crate::model::{Model, State};

/// Most names in a message.
const NAMES_SHOWN: usize = 10;
/// Served names without a model whose last holder is remembered.
const GONE: usize = 4096;

/// Namespace and name of a ModelDeployment.
pub type Key = (String, String);

/// All models, by their names.
#[derive(Debug, Default)]
pub struct Table {
    models: BTreeMap<Key, Arc<Model>>,
    by_served_name: BTreeMap<String, Served>,
    by_gateway_name: BTreeMap<String, BTreeSet<Key>>,
    /// Canaries by the model that they are of.
    canaries: BTreeMap<Key, BTreeSet<Key>>,
    /// Served names that lost their last model, the oldest first.
    gone: VecDeque<String>,
}

/// The models of a served name.
#[derive(Debug)]
struct Served {
    /// The model that had the name first, or the one of its namespace that took its place; also after it is gone.
    holder: Arc<Model>,
    keys: BTreeSet<Key>,
}

/// The models that a name in a request may mean.
#[derive(Debug, Default)]
pub struct Named {
    /// By namespace and name.
    pub models: Vec<Arc<Model>>,
    /// The model that the name belongs to. It may be gone.
    pub holder: Option<Arc<Model>>,
}

impl Named {
    /// The holder of the name, if it is gone.
    pub fn gone(&self) -> Option<&Arc<Model>> {
        let holder = self.holder.as_ref()?;
        let is_there = self.models.iter().any(|model| key(model) == key(holder));
        (!is_there).then_some(holder)
    }
}

/// Reason why a name does not lead to one model.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub enum NotOne {
    /// No such model, as far as the caller may know.
    #[error(
        "model '{0}' not found: it does not exist, or you may not get its ModelDeployment; list your models with GET /v1/models"
    )]
    None(String),
    /// The name belonged to a model that is gone: another team's model does not take its place silently.
    #[error("model '{0}' is ambiguous: it was '{1}', which does not exist any more; use one of the full names {2}")]
    Gone(String, String, String),
}

impl Table {
    /// Adds a model, or replaces the one of the same name. A served name belongs to the model that had it first: by age for those
    /// of the first list (`by_age`), and by arrival after it.
    pub fn insert(&mut self, model: Arc<Model>, by_age: bool) {
        let key = key(&model);
        self.leave_gateway(&key);
        if let Some(before) = self.models.get(&key)
            && (before.served != model.served || before.canary != model.canary || model.is_behind_another())
        {
            self.remove(&key);
        }
        if !model.is_behind_another() {
            self.serve(&key, &model, by_age);
        }
        if let Some(canary) = &model.canary {
            self.canaries
                .entry(beside(&model, &canary.of))
                .or_default()
                .insert(key.clone());
        }
        if let Some(name) = &model.at_gateway {
            let keys = self.by_gateway_name.entry(name.clone()).or_default();
            keys.insert(key.clone());
        }
        self.models.insert(key, model);
    }

    /// Removes the name at the Gateway that a model has had.
    fn leave_gateway(&mut self, key: &Key) {
        let name = self.models.get(key).and_then(|model| model.at_gateway.clone());
        if let Some(Entry::Occupied(mut keys)) = name.map(|name| self.by_gateway_name.entry(name)) {
            keys.get_mut().remove(key);
            if keys.get().is_empty() {
                keys.remove();
            }
        }
    }

    fn serve(&mut self, key: &Key, model: &Arc<Model>, by_age: bool) {
        let served = self
            .by_served_name
            .entry(model.served.clone())
            .or_insert_with(|| Served {
                holder: Arc::clone(model),
                keys: BTreeSet::new(),
            });
        let holder = self::key(&served.holder);
        let is_gone = !served.keys.contains(&holder);
        let takes_over = if is_gone {
            holder.0 == key.0
        } else {
            holder == *key || by_age && age(model) < age(&served.holder)
        };
        if takes_over {
            served.holder = Arc::clone(model);
        }
        served.keys.insert(key.clone());
    }

    /// Removes a model. A served name stays with its namespace: another model of that namespace takes its place.
    pub fn remove(&mut self, key: &Key) {
        self.leave_gateway(key);
        let Some(gone) = self.models.remove(key) else { return };
        if let Some(canary) = &gone.canary
            && let Entry::Occupied(mut canaries) = self.canaries.entry(beside(&gone, &canary.of))
        {
            canaries.get_mut().remove(key);
            if canaries.get().is_empty() {
                canaries.remove();
            }
        }
        let Some(served) = self.by_served_name.get_mut(&gone.served) else {
            return;
        };
        if !served.keys.remove(key) {
            return;
        }
        if self::key(&served.holder) == *key {
            let of_namespace = served.keys.iter().filter(|other| other.0 == key.0);
            let of_namespace = of_namespace.filter_map(|other| self.models.get(other));
            if let Some(next) = of_namespace.min_by_key(|model| age(model)) {
                served.holder = Arc::clone(next);
            }
        }
        if served.keys.is_empty() {
            self.gone.push_back(gone.served.clone());
        }
        if self.gone.len() > GONE
            && let Some(name) = self.gone.pop_front()
            && self
                .by_served_name
                .get(&name)
                .is_some_and(|served| served.keys.is_empty())
        {
            self.by_served_name.remove(&name);
        }
    }

    /// The model of this namespace and name.
    pub fn get(&self, key: &Key) -> Option<Arc<Model>> {
        self.models.get(key).cloned()
    }

    /// All models but stand-ins and canaries, by namespace and name.
    pub fn all(&self) -> Vec<Arc<Model>> {
        let models = self.models.values().filter(|model| !model.is_behind_another());
        models.cloned().collect()
    }

    /// The model that stands in for one, if each of them names the other.
    pub fn stand_in(&self, model: &Model) -> Option<Arc<Model>> {
        let stand_in = self.get(&beside(model, model.stand_in.as_ref()?))?;
        (stand_in.stands_in_for.as_ref() == Some(&model.name)).then_some(stand_in)
    }

    /// The canaries of a model, by name. A canary has none.
    pub fn canaries(&self, model: &Model) -> Vec<Arc<Model>> {
        let canaries = self.canaries.get(&key(model)).filter(|_| model.canary.is_none());
        canaries.into_iter().flatten().filter_map(|key| self.get(key)).collect()
    }

    /// The models that a name in a request may mean. A full name means its own model only, whatever the served names of others are.
    pub fn named(&self, asked: &str) -> Named {
        if let Some(model) = self.by_full_name(asked) {
            return Named {
                models: vec![model],
                holder: None,
            };
        }
        let Some(served) = self.by_served_name.get(asked) else {
            return Named::default();
        };
        Named {
            models: served.keys.iter().filter_map(|key| self.get(key)).collect(),
            holder: Some(Arc::clone(&served.holder)),
        }
    }

    /// The models that have a name at the Gateway of the cluster. Usually there is one at most.
    pub fn at_gateway(&self, name: &str) -> Vec<Arc<Model>> {
        let keys = self.by_gateway_name.get(name);
        keys.into_iter().flatten().filter_map(|key| self.get(key)).collect()
    }

    /// The list of models for a caller who may get these: by their served name if it belongs to them, or else by their full name.
    pub fn listing(&self, visible: &[Arc<Model>]) -> Vec<Listed> {
        let mut served: BTreeMap<&str, Vec<Arc<Model>>> = BTreeMap::new();
        for model in visible {
            served.entry(&model.served).or_default().push(Arc::clone(model));
        }
        let full: BTreeSet<String> = visible.iter().map(|model| model.full_name()).collect();
        served.retain(|name, _| !full.contains(*name));
        let meant = served.iter().filter_map(|(name, models)| {
            let named = self.named(name);
            let meant = choose(name, models, &named, named.gone().is_some()).ok()?;
            Some((*name, key(&meant)))
        });
        let meant: BTreeMap<&str, Key> = meant.collect();
        let has_name = |model: &Model| meant.get(model.served.as_str()) == Some(&key(model));
        let listed = visible.iter().map(|model| {
            let id = if has_name(model) {
                model.served.clone()
            } else {
                model.full_name()
            };
            Listed::new(id, model)
        });
        listed.collect()
    }

    fn by_full_name(&self, asked: &str) -> Option<Arc<Model>> {
        let (namespace, name) = asked.split_once('/')?;
        self.get(&(namespace.to_owned(), name.to_owned()))
    }
}

/// Namespace and name of a model.
pub fn key(model: &Model) -> Key {
    (model.namespace.to_string(), model.name.to_string())
}

/// Namespace and name of another model of the same namespace.
pub fn beside(model: &Model, other: &Name) -> Key {
    (model.namespace.to_string(), other.to_string())
}

/// Order of models of the same served name.
fn age(model: &Model) -> (i64, &str) {
    (model.created, &model.uid)
}

/// The one model that a name means for a caller who may get `visible` of the models of that name: the holder of the name, or else
/// the oldest. `knew_gone`: the caller may get the holder, which is gone.
///
/// # Errors
/// No model remains, or the name belonged to another one.
pub fn choose(asked: &str, visible: &[Arc<Model>], named: &Named, knew_gone: bool) -> Result<Arc<Model>, NotOne> {
    let holder = named.holder.as_deref();
    let Some(oldest) = visible.iter().min_by_key(|model| age(model)) else {
        return Err(NotOne::None(asked.to_owned()));
    };
    if let Some(holder) = holder.filter(|_| knew_gone) {
        let all = visible.iter().map(|model| format!("'{}'", model.full_name()));
        let mut shown: Vec<String> = all.take(NAMES_SHOWN).collect();
        if visible.len() > NAMES_SHOWN {
            shown.push(format!("{} more", visible.len() - NAMES_SHOWN));
        }
        return Err(NotOne::Gone(asked.to_owned(), holder.full_name(), shown.join(", ")));
    }
    let held = visible
        .iter()
        .find(|model| holder.is_some_and(|holder| key(holder) == key(model)));
    Ok(Arc::clone(held.unwrap_or(oldest)))
}

/// A model in the list of models, in the form of OpenAI's API.
#[derive(Debug, PartialEq, Eq, Serialize)]
pub struct Listed {
    /// Name for requests.
    pub id: String,
    object: &'static str,
    created: i64,
    /// The namespace.
    owned_by: String,
    /// `serving`, `asleep`, `starting` or `failed`.
    state: &'static str,
}

impl Listed {
    /// A model by this name.
    pub fn new(id: String, model: &Model) -> Self {
        Self {
            id,
            object: "model",
            created: model.created,
            owned_by: model.namespace.to_string(),
            state: match model.state {
                State::Serving(_) => "serving",
                State::Asleep => "asleep",
                State::Starting(_) => "starting",
                State::Failed(_) => "failed",
            },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::Canary;

    fn model(full_name: &str, served: &str) -> Arc<Model> {
        Arc::new(Model::asleep(full_name, served))
    }

    /// A table with these models, the oldest first.
    fn table(models: &[(&str, &str)]) -> Table {
        let mut table = Table::default();
        for (age, (full_name, served)) in models.iter().enumerate().rev() {
            let created = age.try_into().unwrap();
            let model = Model::asleep(full_name, served);
            table.insert(Arc::new(Model { created, ..model }), true);
        }
        table
    }

    fn found(table: &Table, asked: &str) -> Vec<String> {
        let named = table.named(asked);
        named.models.iter().map(|model| model.full_name()).collect()
    }

    /// The model that a name means for a caller who may get models of these namespaces.
    fn meant(table: &Table, namespaces: &[&str], asked: &str) -> Result<String, String> {
        let may_get = |model: &&Arc<Model>| namespaces.contains(&model.namespace.as_str());
        let named = table.named(asked);
        let visible: Vec<_> = named.models.iter().filter(may_get).cloned().collect();
        let chosen = choose(asked, &visible, &named, named.gone().is_some_and(|gone| may_get(&gone)));
        chosen.map(|model| model.full_name()).map_err(|error| error.to_string())
    }

    fn key_of(full_name: &str) -> Key {
        let (namespace, name) = full_name.split_once('/').unwrap();
        (namespace.to_owned(), name.to_owned())
    }

    fn ids(table: &Table) -> Vec<String> {
        table
            .listing(&table.all())
            .into_iter()
            .map(|listed| listed.id)
            .collect()
    }

    #[test]
    fn names_lead_to_models() {
        let table = table(&[("a/one", "llama"), ("b/one", "llama"), ("b/two", "gemma")]);
        assert_eq!(found(&table, "gemma"), ["b/two"]);
        assert_eq!(found(&table, "b/two"), ["b/two"]);
        assert_eq!(found(&table, "llama"), ["a/one", "b/one"]);
        assert_eq!(
            found(&table, "two"),
            [""; 0],
            "the name alone is not a name for requests"
        );
        for none in ["", "/", "a/", "/one", "c/one", "a/one/"] {
            assert_eq!(found(&table, none), [""; 0], "{none}");
        }
    }

    #[test]
    fn served_name_does_not_take_the_full_name_of_another_model() {
        let table = table(&[("a/one", "llama"), ("evil/two", "a/one")]);
        assert_eq!(found(&table, "a/one"), ["a/one"]);
        assert_eq!(found(&table, "evil/two"), ["evil/two"]);
        assert_eq!(ids(&table), ["llama", "evil/two"]);
    }

    #[test]
    fn served_name_belongs_to_the_model_that_had_it_first() {
        let mut table = table(&[("team/one", "llama"), ("evil/one", "llama")]);
        assert_eq!(meant(&table, &["evil", "team"], "llama").unwrap(), "team/one");
        assert_eq!(meant(&table, &["evil"], "llama").unwrap(), "evil/one");
        // An old model that is renamed comes late all the same, and an update of the holder changes nothing.
        let old = Model {
            created: -1,
            ..Model::asleep("evil/two", "llama")
        };
        table.insert(Arc::new(old), false);
        table.insert(model("team/one", "llama"), false);
        assert_eq!(meant(&table, &["evil", "team"], "llama").unwrap(), "team/one");
        assert_eq!(ids(&table), ["evil/one", "evil/two", "llama"]);
    }

    #[test]
    fn served_name_of_a_deleted_model_does_not_pass_to_another_team_silently() {
        let mut table = table(&[("team/one", "llama"), ("evil/one", "llama")]);
        let refused = "model 'llama' is ambiguous: it was 'team/one', which does not exist any more; use one of the full names 'evil/one'";
        table.remove(&key_of("team/one"));
        assert_eq!(meant(&table, &["evil", "team"], "llama").unwrap_err(), refused);
        assert_eq!(meant(&table, &["evil"], "llama").unwrap(), "evil/one");
        assert_eq!(ids(&table), ["evil/one"]);
        // The order of deletion and creation does not matter.
        table.remove(&key_of("evil/one"));
        table.insert(model("evil/one", "llama"), false);
        assert_eq!(meant(&table, &["evil", "team"], "llama").unwrap_err(), refused);
        // The name belongs to the team.
        table.insert(model("team/two", "llama"), false);
        assert_eq!(meant(&table, &["evil", "team"], "llama").unwrap(), "team/two");
        table.insert(model("team/three", "llama"), false);
        table.remove(&key_of("team/two"));
        assert_eq!(meant(&table, &["evil", "team"], "llama").unwrap(), "team/three");
    }

    #[test]
    fn changed_and_removed_models_are_not_found_by_their_old_names() {
        let mut table = table(&[("a/one", "old")]);
        table.insert(model("a/one", "new"), false);
        assert_eq!((found(&table, "old").len(), found(&table, "new").len()), (0, 1));
        table.remove(&key_of("a/one"));
        table.remove(&key_of("a/one"));
        assert!(table.models.is_empty() && found(&table, "new").is_empty());
    }

    #[test]
    fn name_at_the_gateway_is_that_of_the_status() {
        let mut table = table(&[("a/one", "llama")]);
        let mut found = |name: Option<&str>| {
            let at_gateway = name.map(str::to_owned);
            let model = Model::asleep("a/one", "llama");
            table.insert(Arc::new(Model { at_gateway, ..model }), false);
            ["llama", "chat", "other"].map(|name| table.at_gateway(name).len())
        };
        assert_eq!(found(None), [0, 0, 0]);
        assert_eq!(found(Some("chat")), [0, 1, 0]);
        assert_eq!(found(Some("other")), [0, 0, 1]);
        table.remove(&key_of("a/one"));
        assert!(table.by_gateway_name.is_empty());
    }

    #[test]
    fn names_of_the_past_are_bounded() {
        let mut table = Table::default();
        for n in 0..GONE + 10 {
            table.insert(model("a/one", &n.to_string()), false);
        }
        assert_eq!((table.by_served_name.len(), table.gone.len()), (GONE + 1, GONE));
    }

    #[test]
    fn stand_in_has_its_full_name_only_and_both_models_agree_to_it() {
        let mut table = table(&[]);
        let mut insert = |name: &str, stand_in: Option<&str>, stands_in_for: Option<&str>| {
            let name_of = |name: Option<&str>| name.map(|name| name.parse().unwrap());
            let model = Model {
                stand_in: name_of(stand_in),
                stands_in_for: name_of(stands_in_for),
                ..Model::asleep(&format!("a/{name}"), "llama")
            };
            table.insert(Arc::new(model), false);
            let one = table.get(&key_of("a/one")).unwrap();
            let stand_in = table.stand_in(&one).map(|model| model.name.to_string());
            let named = ["llama", "a/two"].map(|name| found(&table, name).len());
            (stand_in, [named[0], named[1], table.all().len()])
        };
        assert_eq!(insert("one", Some("two"), None), (None, [1, 0, 1]));
        assert_eq!(insert("two", None, None), (None, [2, 1, 2]));
        assert_eq!(insert("two", None, Some("three")), (None, [1, 1, 1]));
        assert_eq!(insert("two", None, Some("one")), (Some("two".to_owned()), [1, 1, 1]));
        assert_eq!(insert("one", None, None), (None, [1, 1, 1]));
    }

    #[test]
    fn canary_has_its_full_name_only_and_no_canary_of_its_own() {
        let mut table = table(&[("a/one", "llama")]);
        let mut insert = |name: &str, of: Option<&str>| {
            let canary = of.map(|of| Canary {
                of: of.parse().unwrap(),
                weight: 10,
            });
            let model = Model {
                canary,
                ..Model::asleep(&format!("a/{name}"), "llama")
            };
            table.insert(Arc::new(model), false);
            let of = |name: &str| -> Vec<String> {
                let model = table.get(&key_of(&format!("a/{name}")));
                let canaries = model.map(|model| table.canaries(&model)).unwrap_or_default();
                canaries.iter().map(|model| model.name.to_string()).collect()
            };
            (of("one"), of("two"), found(&table, "llama").len())
        };
        let names = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect::<Vec<_>>();
        assert_eq!(insert("two", Some("one")), (names(&["two"]), names(&[]), 1));
        assert_eq!(
            insert("three", Some("two")),
            (names(&["two"]), names(&[]), 1),
            "a canary of a canary"
        );
        assert_eq!(insert("three", Some("one")), (names(&["three", "two"]), names(&[]), 1));
        assert_eq!(insert("two", None), (names(&["three"]), names(&[]), 2), "promoted");
        table.remove(&key_of("a/three"));
        assert!(table.canaries.is_empty());
    }

    #[test]
    fn message_about_many_models_is_short() {
        let mut models = vec![("gone/one".to_owned(), "llama")];
        models.extend((0..12).map(|n| (format!("a/m{n:02}"), "llama")));
        let models: Vec<_> = models.iter().map(|(name, served)| (name.as_str(), *served)).collect();
        let mut table = table(&models);
        table.remove(&key_of("gone/one"));
        let error = meant(&table, &["a", "gone"], "llama").unwrap_err();
        assert!(error.ends_with("'a/m09', 2 more"), "{error}");
    }

    #[test]
    fn ids_of_a_list_lead_back_to_their_models() {
        let table = table(&[("a/one", "llama"), ("b/one", "llama"), ("b/two", "gemma")]);
        assert_eq!(ids(&table), ["llama", "b/one", "gemma"]);
        for (id, model) in ids(&table).iter().zip(table.all()) {
            assert_eq!(meant(&table, &["a", "b"], id).unwrap(), model.full_name());
        }
    }
}
