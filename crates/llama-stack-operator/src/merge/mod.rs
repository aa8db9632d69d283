//! `merge-config`: base `run.yaml` + external providers → the `run.yaml` that the server reads.
//!
//! | module | what |
//! |---|---|
//! | `external` | reads and checks the two files of each provider |
//! | `change` | items to remove from the base and to add to it |
//! | `splice` | does it, in the text itself |
//! | `expand` | writes a base without aliases, where an alias shares what must change |
//! | `yaml`, `write` | a document that knows where its nodes stand; values as text |
//! | [`Transport`] | the protocol that a run.yaml configures |
//! | [`Error`](enum@Error) | why it cannot be done |
//!
//! The base is edited as text, between the positions the parser gives: every byte that need not change stays, comments,
//! quotes and number formats included. PyYAML reads YAML 1.1 and current libraries write 1.2, so a value that is parsed and
//! written again may change its meaning. The result is parsed again and compared before it is written.

mod change;
mod error;
mod expand;
mod external;
mod splice;
mod transport;
mod write;
mod yaml;

use std::collections::BTreeMap;

pub use error::{Error, Errors, Fault, INIT_CONTAINER, Who};
pub use external::{APIS, ProviderFiles};
pub use transport::Transport;

use change::{Changes, Entry};
use external::External;
use yaml::Document;

/// A file as it was found.
#[derive(Clone, Debug)]
pub struct File {
    /// Path in the container.
    pub path: String,
    /// Content, or the reason why there is none.
    pub text: Result<String, Unfit>,
}

/// Reason why a file cannot be used.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Unfit {
    /// The file does not exist.
    #[error("The file is missing")]
    Missing,
    /// The file exceeds the size limit.
    #[error("The file has {bytes} bytes; at most {limit} are read")]
    TooLarge {
        /// Size of the file.
        bytes: u64,
        /// Largest size, in bytes.
        limit: u64,
    },
    /// Not UTF-8.
    #[error("The file is not UTF-8 text: byte {offset} does not belong there")]
    NotText {
        /// Position of the first wrong byte, from 0.
        offset: usize,
    },
    /// A folder has neither of the names that a base configuration may have.
    #[error("There is neither run.yaml nor config.yaml; there is: {}", if found.is_empty() { "nothing".to_owned() } else { found.join(", ") })]
    NeitherName {
        /// Names of the files in the folder.
        found: Vec<String>,
    },
    /// The system refuses.
    #[error("The file cannot be read: {0}")]
    Refused(String),
}

/// Result of a merge.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Merged {
    /// The configuration of the server.
    pub run_yaml: String,
    /// The external providers alone, in the schema ExternalProviders.
    pub extra_providers: String,
    /// Id and Python module of each provider, in order.
    pub modules: Vec<(String, String)>,
    /// Overrides and oddities, each of one or more lines.
    pub warnings: Vec<String>,
}

/// Merges the providers into the base. `has_file` returns whether a file exists below `python-packages`.
///
/// # Errors
/// All errors in the files of the providers; if there are none, the error in the base.
pub fn merge(base: &File, providers: &[ProviderFiles], has_file: &dyn Fn(&str) -> bool) -> Result<Merged, Errors> {
    let externals = externals(providers, has_file)?;
    let mut warnings: Vec<String> = externals
        .iter()
        .flat_map(|external| external.warnings.clone())
        .collect();
    let entries: Vec<Entry<'_>> = externals.iter().map(Entry::of).collect();
    let (run_yaml, overrides) = run_yaml(base, &entries).map_err(|error| Errors(vec![error]))?;
    warnings.extend(overrides);
    Ok(Merged {
        run_yaml,
        extra_providers: extra_providers(&entries),
        modules: externals.iter().map(External::id_and_module).collect(),
        warnings,
    })
}

/// All providers in the order of the custom resource.
fn externals(providers: &[ProviderFiles], has_file: &dyn Fn(&str) -> bool) -> Result<Vec<External>, Errors> {
    let mut externals = Vec::new();
    let mut errors = Vec::new();
    for files in providers {
        match external::read(files, has_file) {
            Ok(external) => externals.push((external, &files.directory)),
            Err(error) => errors.push(error),
        }
    }
    externals.sort_by_key(|(external, directory)| (external.order.is_none(), external.order, *directory));
    let externals: Vec<External> = externals.into_iter().map(|(external, _)| external).collect();
    errors.extend(duplicates(&externals));
    if errors.is_empty() {
        Ok(externals)
    } else {
        Err(Errors(errors))
    }
}

fn duplicates(externals: &[External]) -> Vec<Error> {
    let mut by_id: BTreeMap<&str, Vec<String>> = BTreeMap::new();
    for external in externals {
        let image = external.who.image.as_deref().unwrap_or("an unknown image");
        by_id
            .entry(&external.who.provider_id)
            .or_default()
            .push(format!("{image} (externalProviders.{})", external.section));
    }
    by_id
        .into_iter()
        .filter(|(_, places)| places.len() > 1)
        .map(|(provider_id, places)| Error::Duplicate {
            provider_id: provider_id.to_owned(),
            places,
        })
        .collect()
}

/// The merged text, and the warnings about what it replaces.
fn run_yaml(base: &File, entries: &[Entry<'_>]) -> Result<(String, Vec<String>), Error> {
    let text = base
        .text
        .as_ref()
        .map_err(|unfit| base_error(base, None, unfit.to_string(), GIVE_BASE))?;
    let document = parse(base, text)?;
    let changes = Changes::plan(&document, entries).map_err(|problem| problem.of(base))?;
    if !changes.touch_shared_nodes(&document)
        && let Some(merged) = splice::apply(&document, &changes)
    {
        return Ok((merged, changes.warnings));
    }
    let expanded = expand::expand(&document).map_err(|problem| problem.of(base))?;
    let document = parse(base, &expanded)?;
    let changes = Changes::plan(&document, entries).map_err(|problem| problem.of(base))?;
    match splice::apply(&document, &changes) {
        Some(merged) => {
            let note = format!(
                "{}: aliases are written out, and comments are lost, for providers share nodes",
                base.path
            );
            Ok((merged, [vec![note], changes.warnings].concat()))
        }
        None => Err(base_error(
            base,
            None,
            "The layout of this file is not understood".to_owned(),
            PLAIN,
        )),
    }
}

fn parse<'a>(base: &File, text: &'a str) -> Result<Document<'a>, Error> {
    Document::parse(text).map_err(|unreadable| {
        let reason = format!("YAML parse error: {}", unreadable.reason);
        base_error(base, Some((unreadable.line, unreadable.column)), reason, MEND_BASE)
    })
}

const GIVE_BASE: &str = "Name a ConfigMap with the key run.yaml or config.yaml in spec.server.userConfig, or use a \
                         distribution image that has a run.yaml.";
const MEND_BASE: &str = "Correct the file: it is the user's ConfigMap if spec.server.userConfig names one, otherwise \
                         it comes from the distribution image.";
const PLAIN: &str = "Write `providers` and `apis` as plain lists and mappings, without aliases or explicit keys.";

fn base_error(base: &File, at: Option<(usize, usize)>, reason: String, resolution: &str) -> Error {
    Error::Base {
        path: base.path.clone(),
        fault: Fault { at, reason },
        resolution: resolution.to_owned(),
    }
}

/// Something in the base that cannot be worked with, and where.
#[derive(Debug)]
struct Problem(Fault);

impl Problem {
    fn at(document: &Document<'_>, node: yaml::NodeId, reason: String) -> Self {
        let node = document.written(node);
        Self(Fault {
            at: Some((node.line, node.column + 1)),
            reason,
        })
    }

    fn of(self, base: &File) -> Error {
        base_error(base, self.0.at, self.0.reason, MEND_BASE)
    }
}

fn extra_providers(entries: &[Entry<'_>]) -> String {
    let mut text = "apiVersion: llamastack.io/v1alpha1\nkind: ExternalProviders\n\n".to_owned();
    let sections = change::by_api(entries);
    if sections.is_empty() {
        return text + "providers: {}\n";
    }
    text.push_str(&splice::block_providers("", &sections, "\n"));
    text
}
