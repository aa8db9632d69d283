//! Any names of models: each name that the list shows leads to one model, and that of a model in full to this model only. The list of
//! an engine is read, or refused.
//!
//! The input is two parts with a NUL between: lines of `NAMESPACE/NAME SERVED`, and the list of an engine.

use std::collections::BTreeSet;
use std::sync::Arc;

use runway_router::engine;
use runway_router::model::{Model, State};
use runway_router::table::{Table, choose, key};
use serde_json::Value;

pub fn run(data: &[u8]) {
    let [models, list] = crate::parts(data);
    if let Ok(names) = engine::names(list) {
        let list: Value = serde_json::from_slice(list).expect("it was read");
        assert!(list.to_string().len() >= names.iter().map(String::len).sum());
    }
    let Some(models) = crate::text(models) else { return };
    let mut table = Table::default();
    for model in models.lines().filter_map(model) {
        table.insert(Arc::new(model), true);
    }
    let all = table.all();
    let listed: Vec<Value> = table
        .listing(&all)
        .iter()
        .map(|listed| serde_json::to_value(listed).unwrap())
        .collect();
    let ids: BTreeSet<&str> = listed.iter().filter_map(|listed| listed["id"].as_str()).collect();
    assert_eq!(ids.len(), all.len(), "each model has its own name");
    let find = |name: &str| {
        let named = table.named(name);
        choose(name, &named.models, &named, false)
    };
    for (model, listed) in all.iter().zip(&listed) {
        let full = model.full_name();
        for name in [listed["id"].as_str().unwrap(), &full] {
            assert_eq!(find(name).expect("it is listed"), *model);
        }
        if let Err(error) = find(&model.served) {
            assert!(error.to_string().len() <= 4096 + model.served.len(), "{error}");
        }
    }
    for model in all {
        table.remove(&key(&model));
    }
    assert!(table.all().is_empty());
}

fn model(line: &str) -> Option<Model> {
    let (full, served) = line.split_once(' ')?;
    let (namespace, name) = full.split_once('/')?;
    Some(Model {
        namespace: namespace.parse().ok()?,
        name: name.parse().ok()?,
        uid: full.to_owned(),
        generation: 1,
        created: 0,
        served: served.to_owned(),
        state: State::Asleep,
        reports_usage: true,
        stand_in: None,
        stands_in_for: None,
        canary: None,
        at_gateway: None,
    })
}
