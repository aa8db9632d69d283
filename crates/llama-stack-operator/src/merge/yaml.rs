//! A YAML document as a tree of nodes that know where in the text they stand.
//!
//! Nothing is interpreted: a scalar stays the text it was written as, for YAML 1.1 (PyYAML, the server) and 1.2 read
//! `yes`, `012` and `12:30:45` differently, and none of that is ours. What is asked here is structure, and where to cut.

use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet};

use granit_parser::{Event, Parser, ScalarStyle, Span, StructureStyle, options};

/// More nodes than any run.yaml has, few enough to stay within a small container's memory.
const MAX_NODES: usize = 100_000;

/// One document. Nodes lie in an arena: an alias is the index of the node that it means.
#[derive(Debug)]
pub(super) struct Document<'a> {
    pub(super) text: &'a str,
    nodes: Vec<Node<'a>>,
    root: Option<NodeId>,
    aliased: BTreeSet<NodeId>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct NodeId(usize);

#[derive(Debug)]
pub(super) struct Node<'a> {
    pub(super) kind: Kind<'a>,
    /// Items of a sequence; keys and values of a mapping, by turns.
    children: Vec<NodeId>,
    /// Byte of the first character, tag and anchor included.
    pub(super) start: usize,
    /// Byte of the first character, without tag and anchor.
    pub(super) content: usize,
    /// Byte after the last character that is content: comments and blank lines behind a block are not.
    pub(super) end: usize,
    /// Line of [`Node::content`], from 1.
    pub(super) line: usize,
    /// Column of [`Node::content`], from 0.
    pub(super) column: usize,
    tag: Option<&'a str>,
    anchored: bool,
}

#[derive(Debug)]
pub(super) enum Kind<'a> {
    /// The value after escapes, and how it was written. An absent value is an empty plain scalar.
    Scalar(Cow<'a, str>, ScalarStyle),
    Sequence(StructureStyle),
    Mapping(StructureStyle),
    Alias(NodeId),
}

/// Reason why a text is not a usable document.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Unreadable {
    pub(super) line: usize,
    pub(super) column: usize,
    pub(super) reason: String,
}

impl<'a> Document<'a> {
    pub(super) fn parse(text: &'a str) -> Result<Self, Unreadable> {
        let mut builder = Builder::new(text);
        let options = options! { emit_anchor_events: true, emit_comments: false };
        for next in Parser::new_from_str_with_options(text, options) {
            let (event, span) = next.map_err(|error| Unreadable {
                line: error.marker().line(),
                column: error.marker().col() + 1,
                reason: error.info(),
            })?;
            builder.take(event, span)?;
        }
        Ok(builder.document)
    }

    /// The node at the top; none if there is nothing but comments.
    pub(super) fn root(&self) -> Option<NodeId> {
        self.root
    }

    /// A node as it stands in the text: possibly an alias.
    pub(super) fn written(&self, id: NodeId) -> &Node<'a> {
        &self.nodes[id.0]
    }

    /// The node that is meant: an alias is followed. An alias never means another alias.
    pub(super) fn node(&self, id: NodeId) -> &Node<'a> {
        self.written(self.target(id))
    }

    pub(super) fn target(&self, id: NodeId) -> NodeId {
        match self.written(id).kind {
            Kind::Alias(target) => target,
            _ => id,
        }
    }

    /// Whether some alias means this node.
    pub(super) fn is_aliased(&self, id: NodeId) -> bool {
        self.aliased.contains(&id)
    }

    /// Whether this node or one within it carries an anchor.
    pub(super) fn has_anchors(&self, id: NodeId) -> bool {
        let node = self.written(id);
        node.anchored || node.children.iter().any(|child| self.has_anchors(*child))
    }

    pub(super) fn tag(&self, id: NodeId) -> Option<&'a str> {
        self.node(id).tag
    }

    /// The items of a sequence; none of anything else.
    pub(super) fn items(&self, id: NodeId) -> &[NodeId] {
        match self.node(id).kind {
            Kind::Sequence(_) => &self.node(id).children,
            _ => &[],
        }
    }

    /// Keys and values of a mapping as written, merge keys included; none of anything else.
    pub(super) fn entries(&self, id: NodeId) -> impl Iterator<Item = (NodeId, NodeId)> {
        let node = self.node(id);
        let children: &[NodeId] = if matches!(node.kind, Kind::Mapping(_)) {
            &node.children
        } else {
            &[]
        };
        children
            .chunks_exact(2)
            .filter_map(|pair| Some((*pair.first()?, *pair.get(1)?)))
    }

    /// Every value that a key has, in order of the text; a merge key counts only if the key is not there.
    pub(super) fn all(&self, mapping: NodeId, key: &str) -> Vec<NodeId> {
        let own: Vec<NodeId> = self
            .entries(mapping)
            .filter(|(name, _)| self.scalar(*name) == Some(key))
            .map(|(_, value)| value)
            .collect();
        if own.is_empty() {
            self.merged(mapping)
                .into_iter()
                .find_map(|source| self.own(source, key))
                .into_iter()
                .collect()
        } else {
            own
        }
    }

    /// The value of a key; the last one if it is there twice, as for PyYAML.
    pub(super) fn get(&self, mapping: NodeId, key: &str) -> Option<NodeId> {
        self.all(mapping, key).pop()
    }

    fn own(&self, mapping: NodeId, key: &str) -> Option<NodeId> {
        self.entries(mapping)
            .filter(|(name, _)| self.scalar(*name) == Some(key))
            .map(|(_, value)| value)
            .last()
    }

    /// Mappings that `<<` brings in, and those that they bring in themselves; the strongest first.
    pub(super) fn merged(&self, mapping: NodeId) -> Vec<NodeId> {
        let mut sources = Vec::new();
        self.collect_merged(mapping, 0, &mut sources);
        sources
    }

    fn collect_merged(&self, mapping: NodeId, depth: usize, sources: &mut Vec<NodeId>) {
        for (_, value) in self.entries(mapping).filter(|(key, _)| self.is_merge_key(*key)) {
            let found = match self.node(value).kind {
                Kind::Sequence(_) => self.items(value),
                _ => &[value],
            };
            for source in found.iter().map(|source| self.target(*source)) {
                // A mapping that is there already has nothing to add; a ring ends here too.
                if depth < 32 && !sources.contains(&source) {
                    sources.push(source);
                    self.collect_merged(source, depth + 1, sources);
                }
            }
        }
    }

    pub(super) fn is_merge_key(&self, key: NodeId) -> bool {
        matches!(&self.node(key).kind, Kind::Scalar(text, ScalarStyle::Plain) if text == "<<")
    }

    /// The text of a scalar, null included as "".
    pub(super) fn scalar(&self, id: NodeId) -> Option<&str> {
        match &self.node(id).kind {
            Kind::Scalar(text, _) => Some(text),
            _ => None,
        }
    }

    /// Whether the server reads null here.
    pub(super) fn is_null(&self, id: NodeId) -> bool {
        let node = self.node(id);
        let plain = matches!(&node.kind, Kind::Scalar(text, ScalarStyle::Plain)
            if matches!(text.as_ref(), "" | "~" | "null" | "Null" | "NULL"));
        plain && node.tag.is_none()
    }

    /// Type of a node, for messages.
    pub(super) fn describe(&self, id: NodeId) -> &'static str {
        match self.node(id).kind {
            _ if self.is_null(id) => "empty",
            Kind::Scalar(..) => "a scalar",
            Kind::Sequence(_) => "a list",
            Kind::Mapping(_) | Kind::Alias(_) => "a mapping",
        }
    }

    /// The text of a node as written.
    pub(super) fn source(&self, id: NodeId) -> &'a str {
        let node = self.written(id);
        self.text.get(node.start..node.end).unwrap_or_default()
    }

    /// End of the line that contains a byte: the byte after its line break.
    pub(super) fn line_end(&self, byte: usize) -> usize {
        let (before, after) = (self.text.get(..byte), self.text.get(byte..));
        // A block scalar's last byte is its line break.
        if before.is_some_and(|text| text.ends_with('\n')) {
            return byte;
        }
        after
            .and_then(|text| text.find('\n'))
            .map_or(self.text.len(), |offset| byte + offset + 1)
    }

    pub(super) fn line_break(&self) -> &'static str {
        if self.text.contains("\r\n") { "\r\n" } else { "\n" }
    }
}

struct Builder<'a> {
    document: Document<'a>,
    open: Vec<NodeId>,
    anchors: BTreeMap<usize, NodeId>,
    documents: usize,
}

impl<'a> Builder<'a> {
    fn new(text: &'a str) -> Self {
        Self {
            document: Document {
                text,
                nodes: Vec::new(),
                root: None,
                aliased: BTreeSet::new(),
            },
            open: Vec::new(),
            anchors: BTreeMap::new(),
            documents: 0,
        }
    }

    fn take(&mut self, event: Event<'a>, span: Span) -> Result<(), Unreadable> {
        let range = span.byte_range().unwrap_or_default();
        match event {
            Event::DocumentStart(..) => {
                self.documents += 1;
                if self.documents > 1 {
                    return Err(unreadable(span, "a second document begins; only one is read"));
                }
            }
            Event::Scalar(text, style, anchor, _) => {
                let absent = range.is_empty() && style == ScalarStyle::Plain;
                let text = if absent { Cow::Borrowed("") } else { text };
                let source = self.document.text.get(..range.end).unwrap_or_default();
                // The span of a block scalar includes the indent of the next node.
                let end = match style {
                    ScalarStyle::Literal | ScalarStyle::Folded => source.trim_end_matches(' ').len(),
                    _ => range.end,
                };
                self.add(Kind::Scalar(text, style), span, anchor, end)?;
            }
            Event::SequenceStart(style, anchor, _) => {
                let id = self.add(Kind::Sequence(style), span, anchor, range.start)?;
                self.open.push(id);
            }
            Event::MappingStart(style, anchor, _) => {
                let id = self.add(Kind::Mapping(style), span, anchor, range.start)?;
                self.open.push(id);
            }
            Event::SequenceEnd | Event::MappingEnd => self.close(range.end),
            Event::Alias(anchor) => {
                let Some(target) = self.anchors.get(&anchor).copied() else {
                    return Err(unreadable(span, "an alias without an anchor"));
                };
                self.document.aliased.insert(target);
                self.add(Kind::Alias(target), span, 0, range.end)?;
            }
            Event::Anchor(anchor, _) => {
                if let Some(node) = self
                    .anchors
                    .get(&anchor)
                    .and_then(|id| self.document.nodes.get_mut(id.0))
                {
                    node.start = node.start.min(range.start);
                    node.end = node.end.max(range.end);
                }
            }
            _ => {}
        }
        Ok(())
    }

    fn add(&mut self, kind: Kind<'a>, span: Span, anchor: usize, end: usize) -> Result<NodeId, Unreadable> {
        let id = NodeId(self.document.nodes.len());
        if id.0 >= MAX_NODES {
            return Err(unreadable(span, &format!("more than {MAX_NODES} values")));
        }
        let content = span.byte_range().unwrap_or_default().start;
        let tag = span
            .tag_span()
            .and_then(|tag| Some((tag.byte_range()?, tag.slice(self.document.text)?)));
        self.document.nodes.push(Node {
            kind,
            children: Vec::new(),
            start: tag.as_ref().map_or(content, |(range, _)| range.start.min(content)),
            content,
            end: tag.as_ref().map_or(end, |(range, _)| range.end.max(end)),
            line: span.start.line(),
            column: span.start.col(),
            tag: tag.map(|(_, text)| text),
            anchored: anchor != 0,
        });
        if anchor != 0 {
            self.anchors.insert(anchor, id);
        }
        match self
            .open
            .last()
            .and_then(|parent| self.document.nodes.get_mut(parent.0))
        {
            Some(parent) => parent.children.push(id),
            None => self.document.root = Some(id),
        }
        Ok(id)
    }

    /// A flow collection ends with its bracket; a block with its last content.
    fn close(&mut self, bracket: usize) {
        let Some(id) = self.open.pop() else { return };
        let node = self.document.written(id);
        let flow = matches!(
            node.kind,
            Kind::Sequence(StructureStyle::Flow) | Kind::Mapping(StructureStyle::Flow)
        );
        let last = node
            .children
            .iter()
            .map(|child| self.document.written(*child).end)
            .max();
        let end = if flow { bracket } else { last.unwrap_or_default() };
        if let Some(node) = self.document.nodes.get_mut(id.0) {
            node.end = node.end.max(end);
        }
    }
}

fn unreadable(span: Span, reason: &str) -> Unreadable {
    Unreadable {
        line: span.start.line(),
        column: span.start.col() + 1,
        reason: reason.to_owned(),
    }
}
