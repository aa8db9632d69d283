//! Items to remove from the base and to add to it.

use super::Problem;
use super::external::External;
use super::write::quoted;
use super::yaml::{Document, NodeId};

/// A provider as an item of run.yaml: keys, and values as YAML text.
#[derive(Clone, Debug)]
pub(super) struct Entry<'a> {
    pub(super) api: &'static str,
    id: &'a str,
    provider_type: &'a str,
    pub(super) fields: Vec<(&'static str, String)>,
}

impl<'a> Entry<'a> {
    pub(super) fn of(external: &'a External) -> Self {
        let mut fields = vec![
            ("provider_id", quoted(&external.who.provider_id)),
            ("provider_type", quoted(&external.provider_type)),
            ("module", quoted(&external.module)),
        ];
        fields.extend(external.config.clone().map(|config| ("config", config)));
        Self {
            api: external.api,
            id: &external.who.provider_id,
            provider_type: &external.provider_type,
            fields,
        }
    }
}

/// Entries by API: APIs in the order of the first entry of each, entries in their own.
pub(super) fn by_api<'e, 'a>(entries: &'e [Entry<'a>]) -> Vec<(&'static str, Vec<&'e Entry<'a>>)> {
    let mut sections: Vec<(&'static str, Vec<&Entry<'_>>)> = Vec::new();
    for entry in entries {
        match sections.iter_mut().find(|(api, _)| *api == entry.api) {
            Some((_, section)) => section.push(entry),
            None => sections.push((entry.api, vec![entry])),
        }
    }
    sections
}

/// One list below `providers`.
#[derive(Debug)]
pub(super) struct Section<'e, 'a> {
    pub(super) api: &'static str,
    /// The list, or a null, or nothing.
    pub(super) node: Option<NodeId>,
    /// Items of it that external providers replace.
    pub(super) removed: Vec<NodeId>,
    pub(super) added: Vec<&'e Entry<'a>>,
}

/// All changes of one document.
#[derive(Debug)]
pub(super) struct Changes<'e, 'a> {
    /// The mapping, or a null, or nothing.
    pub(super) providers: Option<NodeId>,
    pub(super) sections: Vec<Section<'e, 'a>>,
    /// A list with items; one that is absent or empty means every API.
    pub(super) apis: Option<NodeId>,
    pub(super) missing_apis: Vec<&'static str>,
    pub(super) warnings: Vec<String>,
}

impl<'e, 'a> Changes<'e, 'a> {
    pub(super) fn plan(document: &Document<'_>, entries: &'e [Entry<'a>]) -> Result<Self, Problem> {
        let mut changes = Self {
            providers: None,
            sections: Vec::new(),
            apis: None,
            missing_apis: Vec::new(),
            warnings: Vec::new(),
        };
        let root = document.root().filter(|root| !document.is_null(*root));
        if let Some(root) = root {
            expect(document, root, "the file", "a mapping")?;
            changes.providers = once(document, root, "providers", "a mapping")?;
            changes.apis = once(document, root, "apis", "a list")?.filter(|apis| !document.items(*apis).is_empty());
        }
        for (api, added) in by_api(entries) {
            let within = changes.providers.filter(|node| !document.is_null(*node));
            let node = match within {
                Some(providers) => once(document, providers, api, "a list")?,
                None => None,
            };
            changes.replace(document, api, node, added);
        }
        changes.note_ids_of_other_apis(document, entries);
        if let Some(apis) = changes.apis {
            let served = |api: &str| {
                document
                    .items(apis)
                    .iter()
                    .any(|item| document.scalar(*item) == Some(api))
            };
            let sections = changes.sections.iter().map(|section| section.api);
            changes.missing_apis = sections.filter(|api| !served(api)).collect();
        }
        Ok(changes)
    }

    fn replace(&mut self, document: &Document<'_>, api: &'static str, node: Option<NodeId>, added: Vec<&'e Entry<'a>>) {
        let mut removed = Vec::new();
        for item in node.map(|node| document.items(node)).unwrap_or_default() {
            let Some(id) = id_of(document, *item) else { continue };
            if let Some(entry) = added.iter().find(|entry| entry.id == id) {
                removed.push(*item);
                let mut warning = format!(
                    "External provider '{id}' overrides base provider in API '{api}'\n  Base type: {}\n  External \
                     type: {}",
                    text_of(document, *item, "provider_type").unwrap_or("(none)"),
                    entry.provider_type
                );
                if let Some(written) = text_of(document, *item, "provider_id").filter(|written| written.contains(":="))
                {
                    warning.extend(["\n  Base id: ", written, ", whose default is the same id"]);
                }
                self.warnings.push(warning);
            }
        }
        self.sections.push(Section {
            api,
            node,
            removed,
            added,
        });
    }

    fn note_ids_of_other_apis(&mut self, document: &Document<'_>, entries: &[Entry<'_>]) {
        let Some(providers) = self.providers else { return };
        for entry in entries {
            for (api, section) in document.entries(providers) {
                let Some(api) = document.scalar(api).filter(|api| *api != entry.api) else {
                    continue;
                };
                let taken = document
                    .items(section)
                    .iter()
                    .any(|item| id_of(document, *item) == Some(entry.id));
                if taken {
                    self.warnings.push(format!(
                        "External provider '{}' in API '{}' has the id of a base provider in API '{api}'; both are kept",
                        entry.id, entry.api
                    ));
                }
            }
        }
    }

    /// Whether an edit in place would change more than it should, or leave an alias without its anchor.
    pub(super) fn touch_shared_nodes(&self, document: &Document<'_>) -> bool {
        let root = document.root();
        let shared = |parent: Option<NodeId>, node: Option<NodeId>| match (parent, node) {
            (_, None) => parent.is_some_and(|parent| !document.merged(parent).is_empty()),
            (None, Some(node)) => document.is_aliased(node),
            (Some(parent), Some(node)) => {
                let here = document.entries(parent).any(|(_, value)| value == node);
                !here || document.target(node) != node || document.is_aliased(node)
            }
        };
        shared(None, root)
            || shared(root, self.providers)
            || (!self.missing_apis.is_empty() && shared(root, self.apis))
            || self.sections.iter().any(|section| {
                shared(self.providers, section.node) || section.removed.iter().any(|item| document.has_anchors(*item))
            })
    }
}

/// The value of a key that must not be there twice: PyYAML would silently drop all but the last.
fn once(document: &Document<'_>, mapping: NodeId, key: &str, kind: &str) -> Result<Option<NodeId>, Problem> {
    match document.all(mapping, key).as_slice() {
        [] => Ok(None),
        [node] => {
            if !document.is_null(*node) {
                expect(document, *node, &format!("`{key}`"), kind)?;
            }
            Ok(Some(*node))
        }
        [first, second, ..] => {
            let line = document.written(*first).line;
            Err(Problem::at(
                document,
                *second,
                format!("`{key}` is there twice, first near line {line}; the server would use the last one only"),
            ))
        }
    }
}

fn expect(document: &Document<'_>, node: NodeId, what: &str, kind: &str) -> Result<(), Problem> {
    let found = document.describe(node);
    if found == kind {
        return Ok(());
    }
    Err(Problem::at(
        document,
        node,
        format!("{what} must be {kind}, but is {found}"),
    ))
}

fn text_of<'d>(document: &'d Document<'_>, item: NodeId, key: &str) -> Option<&'d str> {
    document.get(item, key).and_then(|value| document.scalar(value))
}

/// The id of an item of the base. `${env.URL:+ollama}` is `ollama` whenever it is there at all, and `${env.NAME:=ollama}` is
/// unless the variable is set to another id.
fn id_of<'d>(document: &'d Document<'_>, item: NodeId) -> Option<&'d str> {
    let id = text_of(document, item, "provider_id")?;
    let variable = id.strip_prefix("${env.").and_then(|rest| rest.strip_suffix('}'));
    let stands_for = variable.and_then(|rest| rest.split_once(":+").or_else(|| rest.split_once(":=")));
    Some(stands_for.map_or(id, |(_, id)| id))
}

#[cfg(test)]
mod tests {
    use super::super::APIS;
    use super::*;

    #[test]
    fn conditional_ids_are_the_ids_they_stand_for() {
        for (written, id) in [
            ("ollama", "ollama"),
            ("'ollama'", "ollama"),
            ("${env.OLLAMA_URL:+ollama}", "ollama"),
            ("${env.NAME:=ollama}", "ollama"),
            ("${env.NAME}", "${env.NAME}"),
        ] {
            let text = format!("provider_id: {written}");
            let document = Document::parse(&text).unwrap();
            assert_eq!(id_of(&document, document.root().unwrap()), Some(id));
        }
    }

    #[test]
    fn every_api_has_a_name_and_a_field() {
        for (name, field) in APIS {
            assert_eq!(name.replace('_', ""), field.to_lowercase());
        }
    }
}
