//! Makes the changes in the text itself, and looks afterwards whether exactly they were made.

use std::ops::Range;

use granit_parser::StructureStyle;

use super::change::{Changes, Entry, Section};
use super::write;
use super::yaml::{Document, Kind, NodeId};

/// The text with the changes made; none if the layout is not one that can be edited here.
pub(super) fn apply(document: &Document<'_>, changes: &Changes<'_, '_>) -> Option<String> {
    let mut edits = Edits {
        document,
        edits: Vec::new(),
    };
    // Where lists and the mapping around them end on one line, the items come first, then the keys.
    if let Some(apis) = changes.apis {
        let items: Vec<Item> = changes.missing_apis.iter().map(|api| Item::scalar(api)).collect();
        edits.list(apis, &[], &items)?;
    }
    edits.providers(changes)?;
    let text = edits.text()?;
    is_as_planned(document, changes, &text).then_some(text)
}

/// `providers:` in block style, at an indent.
pub(super) fn block_providers(indent: &str, sections: &[(&str, Vec<&Entry<'_>>)], line_break: &str) -> String {
    let mut text = format!("{indent}providers:{line_break}");
    for (api, entries) in sections {
        text.push_str(&block_section(&format!("{indent}  "), api, entries, line_break));
    }
    text
}

fn block_section(indent: &str, api: &str, entries: &[&Entry<'_>], line_break: &str) -> String {
    let items: String = entries
        .iter()
        .map(|entry| Item::entry(entry).block(&format!("{indent}  "), line_break))
        .collect();
    format!("{indent}{api}:{line_break}{items}")
}

/// An item of a list, as the lines of a block and between brackets.
struct Item {
    lines: Vec<String>,
    flow: String,
}

impl Item {
    fn scalar(text: &str) -> Self {
        Self {
            lines: vec![text.to_owned()],
            flow: write::quoted(text),
        }
    }

    fn entry(entry: &Entry<'_>) -> Self {
        let pairs = |quote: &str| -> Vec<String> {
            let pair = |(key, value): &(&str, String)| format!("{quote}{key}{quote}: {value}");
            entry.fields.iter().map(pair).collect()
        };
        Self {
            lines: pairs(""),
            flow: format!("{{{}}}", pairs("\"").join(", ")),
        }
    }

    fn block(&self, indent: &str, line_break: &str) -> String {
        let line = |(index, text): (usize, &String)| {
            let dash = if index == 0 { "- " } else { "  " };
            format!("{indent}{dash}{text}{line_break}")
        };
        self.lines.iter().enumerate().map(line).collect()
    }
}

struct Edit {
    at: Range<usize>,
    text: String,
    /// Whether the text consists of whole lines.
    lines: bool,
}

struct Edits<'d, 'a> {
    document: &'d Document<'a>,
    edits: Vec<Edit>,
}

impl Edits<'_, '_> {
    fn providers(&mut self, changes: &Changes<'_, '_>) -> Option<()> {
        let document = self.document;
        let sections: Vec<(&str, Vec<&Entry<'_>>)> = changes
            .sections
            .iter()
            .map(|section| (section.api, section.added.clone()))
            .collect();
        if sections.is_empty() {
            return Some(());
        }
        let block = |indent: &str| block_providers(indent, &sections, document.line_break());
        let flow = || format!("\"providers\": {}", flow_sections(&sections));
        match (document.root(), changes.providers) {
            (None, _) => self.lines(document.text.len(), block("")),
            (Some(root), _) if document.is_null(root) => self.replace(root, format!("{{{}}}", flow())),
            (Some(root), None) => self.entry(root, block, &flow())?,
            (Some(root), Some(providers)) if document.is_null(providers) => {
                let below = |indent: &str| {
                    let section = |(api, entries): &(&str, Vec<&Entry<'_>>)| {
                        block_section(indent, api, entries, document.line_break())
                    };
                    sections.iter().map(section).collect()
                };
                self.null(root, providers, below, flow_sections(&sections))?;
            }
            (Some(_), Some(providers)) => {
                let (there, new): (Vec<_>, Vec<_>) =
                    changes.sections.iter().partition(|section| section.node.is_some());
                for section in there.into_iter().chain(new) {
                    self.section(providers, section)?;
                }
            }
        }
        Some(())
    }

    fn section(&mut self, providers: NodeId, section: &Section<'_, '_>) -> Option<()> {
        let document = self.document;
        let items: Vec<Item> = section.added.iter().map(|entry| Item::entry(entry)).collect();
        let flow = flow_items(&items);
        match section.node {
            None => {
                let block = |indent: &str| block_section(indent, section.api, &section.added, document.line_break());
                self.entry(providers, block, &format!("\"{}\": {flow}", section.api))
            }
            Some(node) if document.is_null(node) => {
                let below = |indent: &str| {
                    items
                        .iter()
                        .map(|item| item.block(indent, document.line_break()))
                        .collect()
                };
                self.null(providers, node, below, flow)
            }
            Some(node) => self.list(node, &section.removed, &items),
        }
    }

    /// A new key at the end of a mapping.
    fn entry(&mut self, mapping: NodeId, block: impl Fn(&str) -> String, flow: &str) -> Option<()> {
        let node = self.document.node(mapping);
        match node.kind {
            Kind::Mapping(StructureStyle::Block) => {
                let text = block(&" ".repeat(node.column));
                self.lines(self.document.line_end(node.end), text);
            }
            Kind::Mapping(StructureStyle::Flow) => {
                let last = self.document.entries(mapping).last().map(|(_, value)| value);
                self.between_brackets(mapping, last, flow);
            }
            _ => return None,
        }
        Some(())
    }

    /// A value where nothing, or a null, was.
    fn null(&mut self, parent: NodeId, node: NodeId, below: impl Fn(&str) -> String, flow: String) -> Option<()> {
        let document = self.document;
        if document.written(node).start < document.written(node).end {
            self.replace(node, flow);
            return Some(());
        }
        let (key, _) = document.entries(parent).find(|(_, value)| *value == node)?;
        let key = document.written(key);
        let text = below(&" ".repeat(key.column + 2));
        self.lines(document.line_end(key.end), text);
        Some(())
    }

    /// A list loses and gains items.
    fn list(&mut self, list: NodeId, removed: &[NodeId], added: &[Item]) -> Option<()> {
        if removed.is_empty() && added.is_empty() {
            return Some(());
        }
        match self.document.node(list).kind {
            Kind::Sequence(StructureStyle::Block) => self.block_list(list, removed, added),
            Kind::Sequence(StructureStyle::Flow) => {
                self.flow_list(list, removed, added);
                Some(())
            }
            _ => None,
        }
    }

    fn block_list(&mut self, list: NodeId, removed: &[NodeId], added: &[Item]) -> Option<()> {
        let document = self.document;
        for item in removed {
            let (line, _) = self.dash(*item)?;
            let mut end = document.line_end(document.written(*item).end);
            // Blank lines go too: below a block scalar they would become its own. New items follow the last one.
            if document.items(list).last() != Some(item) {
                end += blank_lines(document.text.get(end..)?);
            }
            self.edits.push(Edit {
                at: line..end,
                text: String::new(),
                lines: true,
            });
        }
        let (_, indent) = self.dash(*document.items(list).first()?)?;
        let text = added
            .iter()
            .map(|item| item.block(&indent, document.line_break()))
            .collect();
        self.lines(document.line_end(document.node(list).end), text);
        Some(())
    }

    /// Start of the line with an item's dash, and the spaces before the dash; `None` if the line has other text before the dash.
    fn dash(&self, item: NodeId) -> Option<(usize, String)> {
        let before = self.document.text.get(..self.document.written(item).start)?;
        let before = before.trim_end_matches(' ').strip_suffix('-')?;
        let line = before.rfind('\n').map_or(0, |at| at + 1);
        let indent = before.get(line..)?;
        indent.chars().all(|c| c == ' ').then(|| (line, indent.to_owned()))
    }

    fn flow_list(&mut self, list: NodeId, removed: &[NodeId], added: &[Item]) {
        let document = self.document;
        let items = document.items(list);
        if removed.is_empty() {
            let added: Vec<&str> = added.iter().map(|item| item.flow.as_str()).collect();
            self.between_brackets(list, items.last().copied(), &added.join(", "));
            return;
        }
        let kept = items
            .iter()
            .filter(|item| !removed.contains(item))
            .map(|item| document.source(*item));
        let all: Vec<&str> = kept.chain(added.iter().map(|item| item.flow.as_str())).collect();
        let ends =
            |item: Option<&NodeId>| item.map(|item| (document.written(*item).start, document.written(*item).end));
        if let (Some((start, _)), Some((_, end))) = (ends(items.first()), ends(items.last())) {
            self.edits.push(Edit {
                at: start..end,
                text: all.join(", "),
                lines: false,
            });
        }
    }

    /// Behind the last of what stands between two brackets.
    fn between_brackets(&mut self, collection: NodeId, last: Option<NodeId>, text: &str) {
        let (at, text) = match last {
            Some(last) => (self.document.written(last).end, format!(", {text}")),
            None => (self.document.node(collection).content + 1, text.to_owned()),
        };
        self.edits.push(Edit {
            at: at..at,
            text,
            lines: false,
        });
    }

    fn replace(&mut self, node: NodeId, text: String) {
        let node = self.document.written(node);
        self.edits.push(Edit {
            at: node.start..node.end,
            text,
            lines: false,
        });
    }

    fn lines(&mut self, at: usize, text: String) {
        self.edits.push(Edit {
            at: at..at,
            text,
            lines: true,
        });
    }

    fn text(mut self) -> Option<String> {
        // Stable: edits at one place stay in the order they were made in.
        self.edits.sort_by_key(|edit| (edit.at.start, edit.at.end));
        let source = self.document.text;
        let mut out = String::with_capacity(source.len() + 4096);
        let mut done = 0;
        for edit in &self.edits {
            out.push_str(source.get(done..edit.at.start)?);
            if edit.lines && !edit.text.is_empty() && !out.is_empty() && !out.ends_with('\n') {
                out.push_str(self.document.line_break());
            }
            out.push_str(&edit.text);
            done = edit.at.end;
        }
        out.push_str(source.get(done..)?);
        Some(out)
    }
}

/// Length of the blank lines that a text begins with.
fn blank_lines(text: &str) -> usize {
    let blank = text.split_inclusive('\n').take_while(|line| line.trim().is_empty());
    blank.map(str::len).sum()
}

fn flow_items(items: &[Item]) -> String {
    let items: Vec<&str> = items.iter().map(|item| item.flow.as_str()).collect();
    format!("[{}]", items.join(", "))
}

fn flow_sections(sections: &[(&str, Vec<&Entry<'_>>)]) -> String {
    let section = |(api, entries): &(&str, Vec<&Entry<'_>>)| {
        let items: Vec<Item> = entries.iter().map(|entry| Item::entry(entry)).collect();
        format!("\"{api}\": {}", flow_items(&items))
    };
    format!("{{{}}}", sections.iter().map(section).collect::<Vec<_>>().join(", "))
}

/// Whether the text is what it was, letter by letter, but for the changes.
fn is_as_planned(before: &Document<'_>, changes: &Changes<'_, '_>, text: &str) -> bool {
    let Ok(after) = Document::parse(text) else { return false };
    let own = |document: &Document<'_>, mapping: Option<NodeId>, key: &str| {
        mapping.and_then(|mapping| document.get(mapping, key))
    };
    let apis: Vec<&str> = changes.sections.iter().map(|section| section.api).collect();
    let providers = own(&after, after.root(), "providers");
    let kept = |document: &Document<'_>, mapping: Option<NodeId>, but: &[&str]| -> Vec<String> {
        let entries = mapping
            .map(|mapping| document.entries(mapping).collect::<Vec<_>>())
            .unwrap_or_default();
        entries
            .into_iter()
            .filter(|(key, _)| !document.scalar(*key).is_some_and(|key| but.contains(&key)))
            .flat_map(|(key, value)| [document.source(key).to_owned(), document.source(value).to_owned()])
            .collect()
    };
    let changed_lists = if changes.missing_apis.is_empty() {
        vec!["providers"]
    } else {
        vec!["providers", "apis"]
    };
    let list = |document: &Document<'_>, list: Option<NodeId>, removed: &[NodeId]| -> Vec<String> {
        let items = list.map(|list| document.items(list)).unwrap_or_default().iter();
        let items = items.filter(|item| !removed.contains(item));
        items.map(|item| document.source(*item).to_owned()).collect()
    };
    kept(before, before.root(), &changed_lists) == kept(&after, after.root(), &changed_lists)
        && kept(before, changes.providers, &apis) == kept(&after, providers, &apis)
        && changes.apis.is_none_or(|apis| {
            let expected = before.items(apis).iter().map(|item| before.scalar(*item));
            let found = own(&after, after.root(), "apis")
                .map(|apis| after.items(apis))
                .unwrap_or_default();
            expected
                .chain(changes.missing_apis.iter().map(|api| Some(*api)))
                .eq(found.iter().map(|item| after.scalar(*item)))
        })
        && changes.sections.iter().all(|section| {
            let items = own(&after, providers, section.api)
                .map(|node| after.items(node))
                .unwrap_or_default();
            let kept = list(before, section.node, &section.removed);
            let (old, new) = items.split_at(kept.len().min(items.len()));
            old.iter()
                .map(|item| after.source(*item))
                .eq(kept.iter().map(String::as_str))
                && new.len() == section.added.len()
                && new
                    .iter()
                    .zip(&section.added)
                    .all(|(item, entry)| is_entry(&after, *item, entry))
        })
}

fn is_entry(document: &Document<'_>, item: NodeId, entry: &Entry<'_>) -> bool {
    let found = document
        .entries(item)
        .map(|(key, value)| (document.scalar(key), write::flow(document, value).ok()));
    let wanted = entry
        .fields
        .iter()
        .map(|(key, value)| (Some(*key), Some(value.clone())));
    found.eq(wanted)
}
