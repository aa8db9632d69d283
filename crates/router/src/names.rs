//! The name by which an engine knows its model.
//!
//! Most engines take the served name. Some images decide it themselves, so the router requests each engine's list once for each
//! generation of the spec.

use std::collections::HashMap;
use std::sync::Arc;

use parking_lot::Mutex;
use runway_operator::services::ServicePort;
use tokio::sync::OnceCell;

use crate::engine::{Engines, Error};
use crate::model::Model;

/// Names by engines, by the uid of the ModelDeployment.
#[derive(Default)]
pub struct Names(Mutex<HashMap<String, Known>>);

#[derive(Clone)]
struct Known {
    generation: i64,
    name: Arc<OnceCell<String>>,
}

impl Names {
    /// The name for requests to the engine of a model. Of several requests at once, one asks the engine.
    ///
    /// # Errors
    /// The engine is asked and does not answer.
    pub async fn of(&self, model: &Model, at: &ServicePort, engines: &Engines) -> Result<String, Error> {
        let known = self.known(model);
        let name = known.get_or_try_init(async || {
            let listed = engines.models(at).await?.unwrap_or_default();
            Ok(choose(&model.served, listed))
        });
        name.await.cloned()
    }

    fn known(&self, model: &Model) -> Arc<OnceCell<String>> {
        let mut all = self.0.lock();
        let known = all.entry(model.uid.clone()).or_insert_with(|| Known::of(model));
        if known.generation != model.generation {
            *known = Known::of(model);
        }
        Arc::clone(&known.name)
    }

    /// Forgets the name of a model that is gone, or whose engine does not know the name.
    pub fn forget(&self, uid: &str) {
        self.0.lock().remove(uid);
    }
}

impl Known {
    fn of(model: &Model) -> Self {
        Self {
            generation: model.generation,
            name: Arc::default(),
        }
    }
}

/// The expected name if the engine lists it, or else the first that it lists.
fn choose(expected: &str, listed: Vec<String>) -> String {
    if listed.iter().any(|name| name == expected) {
        return expected.to_owned();
    }
    listed.into_iter().next().unwrap_or_else(|| expected.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn expected_name_wins_over_the_first() {
        let listed = || vec!["file.gguf".to_owned(), "gemma".to_owned()];
        assert_eq!(choose("gemma", listed()), "gemma");
        assert_eq!(choose("llama", listed()), "file.gguf");
        assert_eq!(choose("llama", Vec::new()), "llama");
    }
}
