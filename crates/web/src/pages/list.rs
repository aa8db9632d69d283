//! Lists of objects: filtered, sorted and cut into pages on the server, so that thousands cost no more than ten.

use std::cmp::Reverse;
use std::collections::BTreeSet;
use std::sync::Arc;

use kube::ResourceExt;
use serde::Deserialize;

/// Rows of a page.
const ROWS: usize = 100;

/// Filter and order of a list.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub struct Filter {
    /// Part of a name or of another text of a row.
    pub q: String,
    /// Namespace filter.
    pub namespace: String,
    /// Filter of the phase or state.
    pub phase: String,
    /// Order: `name`, `phase` or `age`.
    pub sort: String,
    /// Page number, from 1.
    pub page: usize,
}

/// An object in a list.
pub trait Listed: ResourceExt {
    /// Phase or state.
    fn phase(&self) -> String;

    /// Sort key of the phase: failures first.
    fn urgency(&self) -> usize;

    /// Texts that a search finds, besides name and namespace.
    fn texts(&self) -> Vec<Option<&str>>;
}

/// A page of a list.
pub struct List<K> {
    /// Objects of the page.
    pub items: Vec<Arc<K>>,
    /// Path of the list.
    pub path: &'static str,
    /// Filter and order; its page exists.
    pub filter: Filter,
    /// Number of the first row, from 1.
    pub first: usize,
    /// Number of the last row.
    pub last: usize,
    /// Number of objects that match.
    pub found: usize,
    /// Number of all objects.
    pub all: usize,
    /// Number of pages.
    pub pages: usize,
    /// Namespaces of all objects.
    pub namespaces: BTreeSet<String>,
    /// Phases of the filter.
    pub phases: BTreeSet<String>,
}

impl<K: Listed> List<K> {
    /// The requested page of a list.
    pub fn new(path: &'static str, all: Vec<Arc<K>>, filter: Filter) -> Self {
        let namespaces = all.iter().filter_map(|item| item.namespace()).collect();
        let phases = all.iter().map(|item| item.phase()).collect();
        let count = all.len();
        let found = choose(all, &filter);
        let pages = found.len().div_ceil(ROWS).max(1);
        let page = filter.page.clamp(1, pages);
        let before = (page - 1) * ROWS;
        let number = found.len();
        let items: Vec<Arc<K>> = found.into_iter().skip(before).take(ROWS).collect();
        Self {
            path,
            filter: Filter { page, ..filter },
            first: before + 1,
            last: before + items.len(),
            items,
            found: number,
            all: count,
            pages,
            namespaces,
            phases,
        }
    }

    /// URL of the list with another order or page.
    pub fn link(&self, sort: &str, page: usize) -> String {
        let mut query = form_urlencoded::Serializer::new(String::new());
        let page = page.to_string();
        let fields = [
            ("q", self.filter.q.as_str()),
            ("namespace", &self.filter.namespace),
            ("phase", &self.filter.phase),
            ("sort", sort),
            ("page", &page),
        ];
        for (name, value) in fields.into_iter().filter(|(_, value)| !value.is_empty()) {
            query.append_pair(name, value);
        }
        format!("{}?{}", self.path, query.finish())
    }

    /// Order of a column, as `aria-sort` has it.
    pub fn sorted(&self, by: &str) -> &'static str {
        match (self.filter.sort.as_str(), by) {
            ("phase", "phase") | ("", "name") => "ascending",
            ("age", "age") => "descending",
            (sort, "name") if !["phase", "age"].contains(&sort) => "ascending",
            _ => "none",
        }
    }
}

fn choose<K: Listed>(all: Vec<Arc<K>>, filter: &Filter) -> Vec<Arc<K>> {
    let words: Vec<String> = filter.q.split_whitespace().map(str::to_lowercase).collect();
    let mut found: Vec<Arc<K>> = all
        .into_iter()
        .filter(|item| filter.namespace.is_empty() || item.namespace().is_some_and(|n| n == filter.namespace))
        .filter(|item| filter.phase.is_empty() || item.phase() == filter.phase)
        .filter(|item| words.is_empty() || holds(item.as_ref(), &words))
        .collect();
    match filter.sort.as_str() {
        "phase" => found.sort_by_key(|item| item.urgency()),
        "age" => found.sort_by_key(|item| Reverse(item.creation_timestamp().map(|t| t.0))),
        _ => {}
    }
    found
}

fn holds(item: &impl Listed, words: &[String]) -> bool {
    let own = [item.meta().name.as_deref(), item.meta().namespace.as_deref()];
    let texts: Vec<&str> = own.into_iter().chain(item.texts()).flatten().collect();
    let text = texts.join("\n").to_lowercase();
    words.iter().all(|word| text.contains(word))
}

#[cfg(test)]
mod tests {
    use runway_api::{ModelDeployment, Phase};

    use super::*;

    fn md(name: &str, phase: Phase) -> Arc<ModelDeployment> {
        let value = serde_json::json!({
            "apiVersion": "kubeairunway.ai/v1alpha1", "kind": "ModelDeployment",
            "metadata": { "name": name, "namespace": "default" },
            "spec": { "model": { "id": "org/Llama" }, "engine": { "type": "vllm" } },
            "status": { "phase": phase },
        });
        Arc::new(serde_json::from_value(value).unwrap())
    }

    #[test]
    fn words_filter_and_phases_sort_by_urgency() {
        let all = vec![md("a", Phase::Running), md("b", Phase::Failed), md("c", Phase::Pending)];
        let names =
            |filter: &Filter| -> Vec<String> { choose(all.clone(), filter).iter().map(|m| m.name_any()).collect() };
        let filter = |q: &str, phase: &str, sort: &str| Filter {
            q: q.to_owned(),
            phase: phase.to_owned(),
            sort: sort.to_owned(),
            ..Filter::default()
        };
        assert_eq!(names(&filter("", "", "phase")), ["b", "c", "a"]);
        assert_eq!(names(&filter("LLAMA vllm", "Failed", "")), ["b"]);
        assert_eq!(names(&filter("nothing", "", "")), [""; 0]);
    }

    #[test]
    fn page_behind_the_last_is_the_last() {
        let all: Vec<_> = (0..=ROWS).map(|n| md(&format!("m{n:03}"), Phase::Running)).collect();
        let filter = Filter {
            page: 9,
            q: "m".to_owned(),
            ..Filter::default()
        };
        let list = List::new("/deployments", all, filter);
        assert_eq!(
            (list.filter.page, list.first, list.last, list.found),
            (2, 101, 101, 101)
        );
        assert_eq!(list.link("age", 1), "/deployments?q=m&sort=age&page=1");
    }
}
