//! Keys of callers that have no token of the cluster, from the files of a mounted Secret.
//!
//! Each file is one caller: its name is the name of the caller, and its content a JSON object with the key and the models, as
//! `{"key": "…", "models": ["team-a/gemma", "team-b/*"]}`.

use std::collections::BTreeMap;
use std::fs;
use std::io::Read as _;
use std::path::Path;
use std::sync::Arc;

use serde::Deserialize;
use sha2::{Digest as _, Sha256};

use crate::model::Model;

/// Shortest key, in characters: it must not be guessed.
const SHORTEST: usize = 20;
/// Largest file, in bytes.
const LARGEST_FILE: u64 = 64 * 1024;

/// A caller with a key.
#[derive(Debug, PartialEq, Eq)]
pub struct KeyHolder {
    /// Name of the caller: that of the file.
    pub name: String,
    models: Vec<Pattern>,
}

/// One model, or all models of a namespace.
#[derive(Debug, PartialEq, Eq)]
struct Pattern {
    namespace: String,
    /// `None`: all.
    name: Option<String>,
}

/// Callers by the hash of their key.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Keys(BTreeMap<[u8; 32], Arc<KeyHolder>>);

/// Reason why a file does not hold a key.
#[derive(Debug, thiserror::Error)]
pub enum Invalid {
    /// The file cannot be read.
    #[error("cannot read the file: {0}")]
    File(#[from] std::io::Error),
    /// The file is too large.
    #[error("the file is larger than {} KiB", LARGEST_FILE / 1024)]
    TooLarge,
    /// It is not what it should be. The parser's own words may contain the key.
    #[error("line {0}, column {1}: expected {{\"key\": \"KEY\", \"models\": [\"NAMESPACE/NAME\", \"NAMESPACE/*\"]}}")]
    NotAKey(usize, usize),
    /// The key is short.
    #[error("the key is too short: use at least {SHORTEST} characters")]
    Short,
    /// A model is not written as one.
    #[error("invalid model '{0}': use NAMESPACE/NAME, or NAMESPACE/* for all models of a namespace")]
    Pattern(String),
    /// Two files have the same key.
    #[error("the key is that of '{0}', too: give each caller a key of its own")]
    Twice(String),
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct File {
    key: String,
    models: Vec<String>,
}

impl KeyHolder {
    /// Whether this caller may use a model.
    pub fn may_use(&self, model: &Model) -> bool {
        self.models.iter().any(|pattern| {
            pattern.namespace == model.namespace.as_str()
                && pattern.name.as_deref().is_none_or(|name| name == model.name.as_str())
        })
    }
}

impl Keys {
    /// Reads a folder. A file that is not valid is skipped and logged by its name; a folder that does not exist has no keys.
    pub fn read(folder: &Path) -> Self {
        let mut keys = Self::default();
        let Ok(entries) = fs::read_dir(folder) else {
            return keys;
        };
        let names = entries
            .flatten()
            .filter_map(|entry| entry.file_name().into_string().ok());
        // A mounted Secret has its versions in hidden folders.
        let mut names: Vec<String> = names.filter(|name| !name.starts_with('.')).collect();
        names.sort();
        for name in names {
            let read = text(&folder.join(&name)).and_then(|text| keys.add(&name, &text));
            if let Err(error) = read {
                tracing::warn!(name, %error, "key skipped");
            }
        }
        keys
    }

    /// Adds the caller of a file.
    ///
    /// # Errors
    /// The text is not valid, or another caller has the same key.
    pub fn add(&mut self, name: &str, text: &str) -> Result<(), Invalid> {
        let File { key, models } =
            serde_json::from_str(text).map_err(|error| Invalid::NotAKey(error.line(), error.column()))?;
        if key.chars().count() < SHORTEST {
            return Err(Invalid::Short);
        }
        let models = models.iter().map(|text| pattern(text)).collect::<Result<_, _>>()?;
        let hash = hash(&key);
        if let Some(other) = self.0.get(&hash) {
            return Err(Invalid::Twice(other.name.clone()));
        }
        let name = name.to_owned();
        self.0.insert(hash, Arc::new(KeyHolder { name, models }));
        Ok(())
    }

    /// The caller with a key. Hashes are compared, so that the time says nothing about a key.
    pub fn holder(&self, key: &str) -> Option<Arc<KeyHolder>> {
        if self.0.is_empty() {
            return None;
        }
        self.0.get(&hash(key)).cloned()
    }
}

fn hash(key: &str) -> [u8; 32] {
    Sha256::digest(key).into()
}

fn pattern(text: &str) -> Result<Pattern, Invalid> {
    let invalid = || Invalid::Pattern(text.to_owned());
    let (namespace, name) = text.split_once('/').ok_or_else(invalid)?;
    let namespace: runway_api::Namespace = namespace.parse().map_err(|_| invalid())?;
    let name: Option<runway_api::Name> = match name {
        "*" => None,
        name => Some(name.parse().map_err(|_| invalid())?),
    };
    Ok(Pattern {
        namespace: namespace.into(),
        name: name.map(Into::into),
    })
}

fn text(path: &Path) -> Result<String, Invalid> {
    let mut text = String::new();
    fs::File::open(path)?.take(LARGEST_FILE + 1).read_to_string(&mut text)?;
    if text.len() as u64 > LARGEST_FILE {
        return Err(Invalid::TooLarge);
    }
    Ok(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    const SHOP: &str = r#"{"key": "a key of the shop's own", "models": ["team-a/gemma", "team-b/*"]}"#;

    #[test]
    fn key_allows_the_models_of_its_file() {
        let folder = tempfile::tempdir().unwrap();
        fs::write(folder.path().join("shop"), SHOP).unwrap();
        fs::write(folder.path().join("..data"), "not a key").unwrap();
        let keys = Keys::read(folder.path());
        let shop = keys.holder("a key of the shop's own").unwrap();
        assert_eq!(shop.name, "shop");
        let may = |namespace, name| shop.may_use(&Model::asleep(&format!("{namespace}/{name}"), "any"));
        assert!(may("team-a", "gemma") && may("team-b", "any"));
        assert!(!may("team-a", "other") && !may("team-c", "gemma"));
        assert_eq!(keys.holder("a key of the shop's"), None);
        assert_eq!(Keys::read(&folder.path().join("none")), Keys::default());
    }

    #[test]
    fn file_that_is_not_valid_does_not_keep_the_others_out() {
        let folder = tempfile::tempdir().unwrap();
        let files = [
            ("a-shop", SHOP),
            ("b-same-key", SHOP),
            ("c-text", "a key of the shop's own"),
            ("d-short", r#"{"key": "short", "models": []}"#),
            ("e-pattern", r#"{"key": "12345678901234567890", "models": ["*"]}"#),
            ("f-field", r#"{"key": "12345678901234567890", "model": ["a/b"]}"#),
        ];
        for (name, text) in files {
            fs::write(folder.path().join(name), text).unwrap();
        }
        fs::write(folder.path().join("g-large"), " ".repeat(100_000)).unwrap();
        let keys = Keys::read(folder.path());
        assert_eq!(keys.0.len(), 1);
        assert_eq!(keys.holder("a key of the shop's own").unwrap().name, "a-shop");
    }

    #[test]
    fn messages_do_not_contain_the_key() {
        let mut keys = Keys::default();
        let secret = "secret-secret-secret-secret";
        for text in [
            format!(r#"{{"key": "{secret}", "models": ["a"]}}"#),
            format!(r#"{{"key": ["a/b"], "models": "{secret}"}}"#),
            secret.to_owned(),
        ] {
            let error = keys.add("name", &text).unwrap_err().to_string();
            assert!(!error.contains(secret), "{error}");
        }
    }
}
