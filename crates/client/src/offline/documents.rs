//! Files become documents: YAML or JSON, many in one file, lists unpacked. One that cannot be read does not stop the others.
//!
//! Input is bounded: files by size, documents by the depth and the number of what they hold.

use std::cell::Cell;
use std::fmt;
use std::fs;
use std::io::{self, Read};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use serde::de::{
    DeserializeOwned, DeserializeSeed, Deserializer, Error as _, IgnoredAny, MapAccess, SeqAccess, Visitor,
};
use serde_json::Value;

/// Largest file that is read. Kubernetes takes objects of about 1.5 MiB, and a file may hold all that a cluster has.
const MAX_FILE: u64 = 32 * 1024 * 1024;
/// Most values in a document: a list of all that a cluster has is one document.
const MAX_VALUES: usize = 2_000_000;
/// Deepest nesting of a document. The deepest CRDs are at about 60.
const MAX_DEPTH: usize = 100;
/// File name extensions that are read in a directory.
const EXTENSIONS: [&str; 3] = ["yaml", "yml", "json"];

/// A document: an object of Kubernetes that has a kind and a name, not yet understood.
#[derive(Clone, Debug)]
pub struct Document {
    /// Position of the document.
    pub origin: Origin,
    /// Content.
    pub value: Value,
    /// The YAML it was read from, to find the line of a field.
    text: Option<Arc<str>>,
}

/// Position of a document.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Origin {
    /// The file, `stdin` for standard input.
    pub file: Arc<str>,
    /// Number of the document in the file, from 1, without empty documents.
    pub number: usize,
    /// Number of the item, from 1, if the document is a List.
    pub item: Option<usize>,
    /// The line of the file where the document begins, from 1.
    first_line: usize,
}

impl fmt::Display for Origin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}, document {}", self.file, self.number)?;
        self.item.map_or(Ok(()), |item| write!(f, ", item {item}"))
    }
}

/// Failure to read the input.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A file or folder cannot be opened or read.
    #[error("cannot read {file}")]
    Read {
        /// The file.
        file: String,
        /// Cause.
        source: io::Error,
    },
    /// A file is larger than anything that makes sense.
    #[error("{file} is larger than {} MiB: split it into smaller files", MAX_FILE / 1024 / 1024)]
    TooLarge {
        /// The file.
        file: String,
    },
    /// A file is not UTF-8.
    #[error("{file} is not a text file: byte {at} is not UTF-8")]
    NotText {
        /// The file.
        file: String,
        /// The offset of the first byte that is wrong.
        at: usize,
    },
    /// A file contains no documents.
    #[error("{file} contains no documents")]
    Empty {
        /// The file.
        file: String,
    },
    /// A directory contains no manifests.
    #[error("{folder} contains no .yaml, .yml or .json files (subdirectories are not searched)")]
    EmptyFolder {
        /// The folder.
        folder: String,
    },
    /// A document is neither YAML nor JSON.
    #[error("{origin}{}: {message}", line_suffix(*line))]
    Syntax {
        /// The document.
        origin: Origin,
        /// The line, if known.
        line: Option<usize>,
        /// Message of the parser.
        message: String,
    },
    /// A document is not a Kubernetes object.
    #[error("{origin}: {message}")]
    NoObject {
        /// The document.
        origin: Origin,
        /// Description of the problem.
        message: String,
    },
    /// A field does not hold what it must.
    #[error("{message} ({origin}{})", line_suffix(*line))]
    Field {
        /// The document.
        origin: Origin,
        /// The line, if known.
        line: Option<usize>,
        /// The path of the field, and what is wrong with it.
        message: String,
    },
}

fn line_suffix(line: Option<usize>) -> String {
    line.map_or_else(String::new, |line| format!(", line {line}"))
}

/// Everything that was read, in order, and everything that could not be.
#[derive(Debug, Default)]
pub struct Documents {
    /// Documents.
    pub found: Vec<Document>,
    /// Failure of a request.
    pub errors: Vec<Error>,
}

impl Documents {
    /// Reads files, folders, and standard input where `-` is given.
    pub fn read(paths: &[PathBuf], stdin: &mut dyn Read) -> Self {
        let mut documents = Self::default();
        for path in paths {
            if let Err(error) = documents.take_in(path, stdin) {
                documents.errors.push(error);
            }
        }
        documents
    }

    fn take_in(&mut self, path: &Path, stdin: &mut dyn Read) -> Result<(), Error> {
        let file = path.display().to_string();
        let unreadable = |source| Error::Read {
            file: file.clone(),
            source,
        };
        if file == "-" {
            return self.take_in_stream("stdin", stdin);
        }
        if !path.is_dir() {
            return self.take_in_stream(&file, &mut fs::File::open(path).map_err(unreadable)?);
        }
        let entries: Result<Vec<_>, _> = fs::read_dir(path)
            .map_err(unreadable)?
            .map(|entry| entry.map(|e| e.path()))
            .collect();
        let mut files = entries.map_err(unreadable)?;
        files.retain(|f| {
            f.is_file()
                && f.extension()
                    .is_some_and(|e| EXTENSIONS.iter().any(|known| e == *known))
        });
        files.sort();
        if files.is_empty() {
            return Err(Error::EmptyFolder { folder: file });
        }
        for inner in files {
            if let Err(error) = self.take_in(&inner, stdin) {
                self.errors.push(error);
            }
        }
        Ok(())
    }

    fn take_in_stream(&mut self, file: &str, stream: &mut dyn Read) -> Result<(), Error> {
        let mut bytes = Vec::new();
        stream
            .take(MAX_FILE + 1)
            .read_to_end(&mut bytes)
            .map_err(|source| Error::Read {
                file: file.to_owned(),
                source,
            })?;
        if bytes.len() as u64 > MAX_FILE {
            return Err(Error::TooLarge { file: file.to_owned() });
        }
        let text = String::from_utf8(bytes).map_err(|e| Error::NotText {
            file: file.to_owned(),
            at: e.utf8_error().valid_up_to(),
        })?;
        let before = self.found.len() + self.errors.len();
        self.take_in_text(file, &text);
        if self.found.len() + self.errors.len() == before {
            return Err(Error::Empty { file: file.to_owned() });
        }
        Ok(())
    }

    /// Parses the text of a file.
    pub fn take_in_text(&mut self, file: &str, text: &str) {
        let file: Arc<str> = file.into();
        let text = text.trim_start_matches('\u{feff}');
        if looks_like_json(text) && self.take_in_json(&file, text) {
            return;
        }
        let parts = split(text).into_iter().filter(|part| !is_blank(part.text));
        for (index, part) in parts.enumerate() {
            let origin = Origin {
                file: file.clone(),
                number: index + 1,
                item: None,
                first_line: part.first_line,
            };
            match serde_saphyr::from_str_with_options(part.text, yaml_options()) {
                Ok(value) => self.unpack(Document {
                    origin,
                    value,
                    text: Some(part.text.into()),
                }),
                Err(error) => {
                    let line = line_of(&error, &origin);
                    self.errors.push(Error::Syntax {
                        line,
                        message: plain(&error),
                        origin,
                    });
                }
            }
        }
    }

    /// JSON, one value after the other. False, with nothing taken in, if it may be YAML after all.
    fn take_in_json(&mut self, file: &Arc<str>, text: &str) -> bool {
        for (index, value) in serde_json::Deserializer::from_str(text)
            .into_iter::<Value>()
            .enumerate()
        {
            let origin = Origin {
                file: file.clone(),
                number: index + 1,
                item: None,
                first_line: 1,
            };
            match value {
                Ok(value) => self.unpack(Document {
                    origin,
                    value,
                    text: None,
                }),
                Err(_) if index == 0 && serde_saphyr::from_str_with_options::<Value>(text, yaml_options()).is_ok() => {
                    return false;
                }
                Err(error) => {
                    self.errors.push(Error::Syntax {
                        origin,
                        line: Some(error.line()),
                        message: bounded(&error.to_string()),
                    });
                    return true;
                }
            }
        }
        true
    }

    /// A list counts as its items.
    fn unpack(&mut self, mut document: Document) {
        let item_kind = document.kind().strip_suffix("List").map(str::to_owned);
        let items = document
            .value
            .get_mut("items")
            .filter(|items| item_kind.is_some() && items.is_array());
        let (Some(Value::Array(items)), Some(item_kind)) = (items.map(Value::take), item_kind) else {
            return self.keep(document);
        };
        // Items of a typed list need not repeat what they are.
        let api_version = document.value.get("apiVersion").filter(|_| !item_kind.is_empty());
        for (index, mut value) in items.into_iter().enumerate() {
            if let (Value::Object(object), Some(api_version)) = (&mut value, api_version) {
                object.entry("apiVersion").or_insert_with(|| api_version.clone());
                object.entry("kind").or_insert_with(|| item_kind.clone().into());
            }
            self.keep(Document {
                origin: Origin {
                    item: Some(index + 1),
                    ..document.origin.clone()
                },
                value,
                text: None,
            });
        }
    }

    fn keep(&mut self, document: Document) {
        match document.complaint() {
            None => self.found.push(document),
            Some(message) => self.errors.push(Error::NoObject {
                origin: document.origin,
                message,
            }),
        }
    }
}

impl Document {
    /// The API group, empty for the core group.
    pub fn group(&self) -> &str {
        text_at(&self.value, "/apiVersion")
            .and_then(|v| v.split_once('/'))
            .map_or("", |(group, _)| group)
    }

    /// The kind.
    pub fn kind(&self) -> &str {
        text_at(&self.value, "/kind").unwrap_or_default()
    }

    /// The name.
    pub fn name(&self) -> &str {
        text_at(&self.value, "/metadata/name").unwrap_or_default()
    }

    /// The namespace, if one is given.
    pub fn namespace(&self) -> Option<&str> {
        text_at(&self.value, "/metadata/namespace").filter(|n| !n.is_empty())
    }

    /// Kind and name, such as `Workspace/my-llm`.
    pub fn subject(&self) -> String {
        format!("{}/{}", self.kind(), self.name())
    }

    /// The document as a type.
    ///
    /// # Errors
    /// The document does not have the fields of the type.
    pub fn parse<T: DeserializeOwned>(&self) -> Result<T, Error> {
        typed(&self.value).map_err(|unfit| Error::Field {
            line: self.line_of(&unfit.path),
            origin: self.origin.clone(),
            message: unfit.to_string(),
        })
    }

    /// The line of a field given by its path, or of what it would be in, where that is known.
    pub fn line_of(&self, path: &str) -> Option<usize> {
        let text = self.text.as_deref()?;
        let steps = steps(path);
        // The whole document is at no line of its own.
        (1..=steps.len()).rev().find_map(|depth| {
            let found = Cell::new(false);
            let seek = Seek {
                steps: &steps[..depth],
                found: &found,
            };
            let stopped = serde_saphyr::with_deserializer_from_str_with_options(text, yaml_options(), |yaml| {
                seek.deserialize(yaml)
            });
            let error = stopped.err().filter(|_| found.get())?;
            line_of(&error, &self.origin)
        })
    }

    /// Reason why it is not a Kubernetes object.
    fn complaint(&self) -> Option<String> {
        if !self.value.is_object() {
            return Some("not a Kubernetes object: every document needs apiVersion, kind and metadata".to_owned());
        }
        let missing = ["/apiVersion", "/kind", "/metadata/name"]
            .into_iter()
            .find(|at| text_at(&self.value, at).is_none_or(str::is_empty))?;
        let field = missing.trim_start_matches('/').replace('/', ".");
        let wrong = self.value.pointer(missing).filter(|v| !v.is_null() && !v.is_string());
        Some(match wrong {
            Some(value) => format!("{field} must be a string, not {value}: quote it"),
            None => format!("{field} is missing: every document needs apiVersion, kind and metadata.name"),
        })
    }
}

/// A value that is not of a type.
#[derive(Debug, thiserror::Error)]
#[error("{}{said}", if path.is_empty() { String::new() } else { format!("{path}: ") })]
pub struct Unfit {
    /// The field; empty for the whole.
    pub path: String,
    /// Message of the parser.
    pub said: String,
}

/// A value as a type. Everything large is read through this one function: each further way to read a type is another copy of
/// its code.
///
/// # Errors
/// The document does not have the fields of the type.
pub fn typed<T: DeserializeOwned>(value: &Value) -> Result<T, Unfit> {
    serde_path_to_error::deserialize(value).map_err(|error| {
        let path = error.path().to_string();
        Unfit {
            path: if path == "." { String::new() } else { path },
            said: bounded(&error.inner().to_string()),
        }
    })
}

/// A step on the way to a field: a name, or the number of an entry.
fn steps(path: &str) -> Vec<&str> {
    let mut steps = Vec::new();
    let mut rest = path;
    while !rest.is_empty() {
        let (step, after) = match rest.strip_prefix('[') {
            Some(inner) => inner.split_once(']').unwrap_or((inner, "")),
            None => rest.split_at(rest.find(['.', '[']).unwrap_or(rest.len())),
        };
        steps.push(step);
        rest = after.strip_prefix('.').unwrap_or(after);
    }
    steps
}

/// Walks down a path, and stops at its end with an error: the parser knows the line of it.
struct Seek<'a> {
    steps: &'a [&'a str],
    found: &'a Cell<bool>,
}

impl<'de> DeserializeSeed<'de> for Seek<'_> {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<(), D::Error> {
        self.found.set(self.steps.is_empty());
        deserializer.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for Seek<'_> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("what the path leads to")
    }

    fn visit_map<M: MapAccess<'de>>(self, mut map: M) -> Result<(), M::Error> {
        let Some((step, rest)) = self.steps.split_first() else {
            return Err(M::Error::custom("here"));
        };
        while let Some(key) = map.next_key::<String>()? {
            if key == *step {
                return map.next_value_seed(Seek {
                    steps: rest,
                    found: self.found,
                });
            }
            map.next_value::<IgnoredAny>()?;
        }
        Ok(())
    }

    fn visit_seq<S: SeqAccess<'de>>(self, mut entries: S) -> Result<(), S::Error> {
        let Some((step, rest)) = self.steps.split_first() else {
            return Err(S::Error::custom("here"));
        };
        let mut index: usize = step.parse().unwrap_or(usize::MAX);
        while index > 0 && entries.next_element::<IgnoredAny>()?.is_some() {
            index -= 1;
        }
        let last = Seek {
            steps: rest,
            found: self.found,
        };
        entries.next_element_seed(last).map(drop)
    }
}

fn text_at<'a>(value: &'a Value, pointer: &str) -> Option<&'a str> {
    value.pointer(pointer)?.as_str()
}

fn yaml_options() -> serde_saphyr::Options {
    serde_saphyr::options! {
        // What `kubectl` reads as 511, a file mode for instance.
        legacy_octal_numbers: true,
        with_snippet: false,
        budget: serde_saphyr::budget! { max_depth: MAX_DEPTH, max_nodes: MAX_VALUES, max_events: 3 * MAX_VALUES },
    }
}

fn looks_like_json(text: &str) -> bool {
    text.trim_start()
        .strip_prefix('{')
        .is_some_and(|rest| rest.trim_start().starts_with(['"', '}']))
}

/// A part of a file, with the line where it begins.
struct Part<'a> {
    text: &'a str,
    first_line: usize,
}

/// Splits at the lines that begin (`---`) or end (`...`) a document. No document can hold such a line itself.
fn split(text: &str) -> Vec<Part<'_>> {
    let mut parts = Vec::new();
    let (mut start, mut first_line) = (0, 1);
    let mut at = 0;
    for (index, line) in text.split_inclusive('\n').enumerate() {
        let marker = ["---", "..."].into_iter().find(|m| {
            line.strip_prefix(m)
                .is_some_and(|rest| rest.is_empty() || rest.starts_with([' ', '\t', '\r', '\n']))
        });
        if let Some(marker) = marker {
            parts.push(Part {
                text: &text[start..at],
                first_line,
            });
            // A document may begin on the very line of its marker.
            (start, first_line) = if marker == "---" {
                (at, index + 1)
            } else {
                (at + line.len(), index + 2)
            };
        }
        at += line.len();
    }
    parts.push(Part {
        text: &text[start..],
        first_line,
    });
    parts
}

/// Nothing but blank lines, comments, and directives for what follows.
fn is_blank(text: &str) -> bool {
    text.lines()
        .map(|line| line.strip_prefix("---").unwrap_or(line).trim())
        .all(|line| line.is_empty() || line.starts_with(['#', '%']))
}

fn line_of(error: &serde_saphyr::Error, origin: &Origin) -> Option<usize> {
    let line = usize::try_from(error.location()?.line())
        .ok()
        .filter(|line| *line > 0)?;
    Some(origin.first_line + line - 1)
}

/// The parser's message, without the place, which it counts from the beginning of the document.
fn plain(error: &serde_saphyr::Error) -> String {
    bounded(&error.to_string())
}

fn bounded(text: &str) -> String {
    if ["budget breached", "recursion limit"]
        .iter()
        .any(|limit| text.contains(limit))
    {
        return "this is nested too deeply, or holds too much, to be a Kubernetes object".to_owned();
    }
    let said = text.split_once(" at line ").map_or(text, |(said, _)| said);
    said.split_once(", set DuplicateKeyPolicy")
        .map_or(said, |(said, _)| said)
        .to_owned()
}
