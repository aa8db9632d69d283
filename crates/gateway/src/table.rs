//! The routing table: which models a name in a request may mean. Pure.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use runway_api::Name;
use serde::Serialize;

use crate::model::{Model, State};

/// Most names in a message.
const NAMES_SHOWN: usize = 10;

/// Namespace and name of a ModelDeployment.
pub type Key = (String, String);

/// All models, by their names.
#[derive(Debug, Default)]
pub struct Table {
    models: BTreeMap<Key, Arc<Model>>,
    by_served_name: BTreeMap<String, BTreeSet<Key>>,
}

/// Reason why a name does not lead to one model.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub enum NotOne {
    /// No such model, as far as the caller may know.
    #[error(
        "model '{0}' not found: it does not exist, or you may not get its ModelDeployment; list your models with GET /v1/models"
    )]
    None(String),
    /// Several models.
    #[error("model '{0}' is ambiguous: use one of the full names {1}")]
    Several(String, String),
}

impl Table {
    /// Adds a model, or replaces the one of the same name.
    pub fn insert(&mut self, model: Arc<Model>) {
        let key = key(&model);
        self.remove(&key);
        if model.stands_in_for.is_none() {
            let served = self.by_served_name.entry(model.served.clone()).or_default();
            served.insert(key.clone());
        }
        self.models.insert(key, model);
    }

    /// Removes a model.
    pub fn remove(&mut self, key: &Key) {
        let Some(gone) = self.models.remove(key) else { return };
        if let Some(served) = self.by_served_name.get_mut(&gone.served) {
            served.remove(key);
            if served.is_empty() {
                self.by_served_name.remove(&gone.served);
            }
        }
    }

    /// The model of this namespace and name.
    pub fn get(&self, key: &Key) -> Option<Arc<Model>> {
        self.models.get(key).cloned()
    }

    /// All models but stand-ins, by namespace and name.
    pub fn all(&self) -> Vec<Arc<Model>> {
        let models = self.models.values().filter(|model| model.stands_in_for.is_none());
        models.cloned().collect()
    }

    /// The model that stands in for one, if each of them names the other.
    pub fn stand_in(&self, model: &Model) -> Option<Arc<Model>> {
        let stand_in = self.get(&beside(model, model.stand_in.as_ref()?))?;
        (stand_in.stands_in_for.as_ref() == Some(&model.name)).then_some(stand_in)
    }

    /// The models that a name in a request may mean, by namespace and name. A full name means its own model only, whatever the
    /// served names of others are.
    pub fn candidates(&self, asked: &str) -> Vec<Arc<Model>> {
        if let Some(model) = self.by_full_name(asked) {
            return vec![model];
        }
        let keys = self.by_served_name.get(asked).into_iter().flatten();
        keys.filter_map(|key| self.get(key)).collect()
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

/// The one model that a name means for a caller who may get these candidates.
///
/// # Errors
/// No candidate remains, or more than one.
pub fn choose(asked: &str, visible: &[Arc<Model>]) -> Result<Arc<Model>, NotOne> {
    match visible {
        [] => Err(NotOne::None(asked.to_owned())),
        [one] => Ok(Arc::clone(one)),
        several => {
            let names = several.iter().map(|model| format!("'{}'", model.full_name()));
            let mut names: Vec<String> = names.take(NAMES_SHOWN).collect();
            if several.len() > NAMES_SHOWN {
                names.push(format!("{} more", several.len() - NAMES_SHOWN));
            }
            Err(NotOne::Several(asked.to_owned(), names.join(", ")))
        }
    }
}

/// A model in the list of models, in the form of OpenAI's API.
#[derive(Debug, PartialEq, Eq, Serialize)]
pub struct Listed {
    /// Name for requests: the served name if that is unique in the list, or else the full name.
    pub id: String,
    object: &'static str,
    created: i64,
    /// The namespace.
    owned_by: String,
    /// `serving`, `asleep`, `starting` or `failed`.
    state: &'static str,
}

/// The list of models for a caller who may get these.
pub fn listing(visible: &[Arc<Model>]) -> Vec<Listed> {
    let mut served: BTreeMap<&str, usize> = BTreeMap::new();
    for model in visible {
        *served.entry(&model.served).or_default() += 1;
    }
    let full: BTreeSet<String> = visible.iter().map(|model| model.full_name()).collect();
    let is_unique = |name: &str| served.get(name) == Some(&1) && !full.contains(name);
    visible
        .iter()
        .map(|model| listed(model, is_unique(&model.served)))
        .collect()
}

fn listed(model: &Model, has_unique_name: bool) -> Listed {
    Listed {
        id: if has_unique_name {
            model.served.clone()
        } else {
            model.full_name()
        },
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

#[cfg(test)]
mod tests {
    use super::*;

    fn model(full_name: &str, served: &str) -> Arc<Model> {
        Arc::new(Model::asleep(full_name, served))
    }

    fn table(models: &[(&str, &str)]) -> Table {
        let mut table = Table::default();
        for (full_name, served) in models {
            table.insert(model(full_name, served));
        }
        table
    }

    fn found(table: &Table, asked: &str) -> Vec<String> {
        table.candidates(asked).iter().map(|model| model.full_name()).collect()
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
        let ids: Vec<String> = listing(&table.all()).into_iter().map(|listed| listed.id).collect();
        assert_eq!(ids, ["llama", "evil/two"]);
    }

    #[test]
    fn changed_and_removed_models_leave_no_name_behind() {
        let mut table = table(&[("a/one", "old")]);
        table.insert(model("a/one", "new"));
        assert_eq!((found(&table, "old").len(), found(&table, "new").len()), (0, 1));
        table.remove(&("a".to_owned(), "one".to_owned()));
        table.remove(&("a".to_owned(), "one".to_owned()));
        assert!(table.models.is_empty() && table.by_served_name.is_empty());
    }

    #[test]
    fn stand_in_has_its_full_name_only_and_both_models_agree_to_it() {
        let mut table = table(&[]);
        let mut insert = |name: &str, stand_in: Option<&str>, stands_in_for: Option<&str>| {
            let name_of = |name: Option<&str>| name.map(|name| name.parse().unwrap());
            table.insert(Arc::new(Model {
                stand_in: name_of(stand_in),
                stands_in_for: name_of(stands_in_for),
                ..Model::asleep(&format!("a/{name}"), "llama")
            }));
            let one = table.get(&("a".to_owned(), "one".to_owned())).unwrap();
            let stand_in = table.stand_in(&one).map(|model| model.name.to_string());
            let counts = [table.candidates("llama"), table.candidates("a/two"), table.all()].map(|models| models.len());
            (stand_in, counts)
        };
        assert_eq!(insert("one", Some("two"), None), (None, [1, 0, 1]));
        assert_eq!(insert("two", None, None), (None, [2, 1, 2]));
        assert_eq!(insert("two", None, Some("three")), (None, [1, 1, 1]));
        assert_eq!(insert("two", None, Some("one")), (Some("two".to_owned()), [1, 1, 1]));
        assert_eq!(insert("one", None, None), (None, [1, 1, 1]));
    }

    #[test]
    fn ambiguous_name_is_refused_with_the_full_names() {
        let table = table(&[("a/one", "llama"), ("b/one", "llama")]);
        let all = table.candidates("llama");
        let error = choose("llama", &all).unwrap_err();
        assert_eq!(
            error.to_string(),
            "model 'llama' is ambiguous: use one of the full names 'a/one', 'b/one'"
        );
        // A caller who may get one of them means that one.
        assert_eq!(choose("llama", &all[1..]).unwrap().full_name(), "b/one");
        assert_eq!(choose("llama", &[]), Err(NotOne::None("llama".to_owned())));
    }

    #[test]
    fn message_about_many_models_is_short() {
        let models: Vec<_> = (0..12).map(|n| model(&format!("a/m{n}"), "llama")).collect();
        let error = choose("llama", &models).unwrap_err().to_string();
        assert!(error.ends_with("'a/m9', 2 more"), "{error}");
    }

    #[test]
    fn list_has_full_names_where_served_names_repeat() {
        let table = table(&[("a/one", "llama"), ("b/one", "llama"), ("b/two", "gemma")]);
        let ids: Vec<String> = listing(&table.all()).into_iter().map(|listed| listed.id).collect();
        assert_eq!(ids, ["a/one", "b/one", "gemma"]);
        // Each id in a list leads back to its model.
        for (id, model) in ids.iter().zip(table.all()) {
            assert_eq!(found(&table, id), [model.full_name()]);
        }
    }
}
