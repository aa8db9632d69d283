//! Keys of callers that have no token of the cluster, from the files of a mounted Secret.
//!
//! Each file is one caller: its name is the name of the caller, and its content a JSON object with the hashes of its keys and the
//! models, as `{"keys": [{"sha256": "…", "expires": "2027-01-31T00:00:00Z"}], "models": ["team-a/gemma", "team-b/*"]}`. `expires` may
//! be omitted. A key in plain text, as `"key": "…"`, is accepted beside them, or instead.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::sync::Arc;

use jiff::Timestamp;
use serde::Deserialize;
use sha2::{Digest as _, Sha256};

use crate::file;
use crate::model::Model;
use crate::pattern::{self, Pattern};

/// Shortest key, in characters: it must not be guessed.
const SHORTEST: usize = 20;
/// Largest file, in bytes.
const LARGEST_FILE: u64 = 64 * 1024;

/// A caller with a key.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct KeyHolder {
    /// Name of the caller: that of the file.
    pub name: String,
    models: Arc<[Pattern]>,
    /// Hash of the key.
    hash: [u8; 32],
    expires: Option<Timestamp>,
}

/// Callers by the hashes of their keys.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Keys {
    by_hash: BTreeMap<[u8; 32], Arc<KeyHolder>>,
    /// Names of callers whose key is in plain text.
    plain: Vec<String>,
}

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
    #[error(
        "line {0}, column {1}: expected {{\"keys\": [{{\"sha256\": \"HASH\"}}], \"models\": [\"NAMESPACE/NAME\", \"NAMESPACE/*\"]}}"
    )]
    NotAKey(usize, usize),
    /// There is no key.
    #[error("keys: at least one is required")]
    NoKey,
    /// A hash is not one.
    #[error("keys[{0}].sha256: expected 64 hexadecimal digits, the SHA-256 of the key")]
    Hash(usize),
    /// The key is short.
    #[error("the key is too short: use at least {SHORTEST} characters")]
    Short,
    /// A model is not written as one.
    #[error(transparent)]
    Pattern(#[from] pattern::Invalid),
    /// Two files have the same key.
    #[error("the key is that of '{0}', too: give each caller a key of its own")]
    Twice(String),
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct File {
    key: Option<String>,
    #[serde(default)]
    keys: Vec<Hashed>,
    models: Vec<String>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Hashed {
    sha256: String,
    expires: Option<Timestamp>,
}

impl KeyHolder {
    /// A caller without models.
    #[cfg(test)]
    pub(crate) fn named(name: &str) -> Self {
        Self {
            name: name.to_owned(),
            ..Self::default()
        }
    }

    /// Whether this caller may use a model.
    pub fn may_use(&self, model: &Model) -> bool {
        self.models.iter().any(|pattern| pattern.matches(model))
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
            let text = file::text(&folder.join(&name), LARGEST_FILE).map_err(Invalid::from);
            let read = text
                .and_then(|text| text.ok_or(Invalid::TooLarge))
                .and_then(|text| keys.add(&name, &text));
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
        let File { key, keys, models } =
            serde_json::from_str(text).map_err(|error| Invalid::NotAKey(error.line(), error.column()))?;
        let models: Arc<[Pattern]> = models.iter().map(|text| text.parse()).collect::<Result<_, _>>()?;
        let mut hashes = Vec::new();
        for (at, key) in keys.iter().enumerate() {
            let mut hash = [0; 32];
            hex::decode_to_slice(&key.sha256, &mut hash).map_err(|_| Invalid::Hash(at))?;
            hashes.push((hash, key.expires));
        }
        if let Some(key) = &key {
            if key.chars().count() < SHORTEST {
                return Err(Invalid::Short);
            }
            hashes.push((hash(key), None));
        }
        if hashes.is_empty() {
            return Err(Invalid::NoKey);
        }
        if let Some(other) = hashes.iter().find_map(|(hash, _)| self.by_hash.get(hash)) {
            return Err(Invalid::Twice(other.name.clone()));
        }
        self.plain.extend(key.map(|_| name.to_owned()));
        let holders = hashes.into_iter().map(|(hash, expires)| {
            let (name, models) = (name.to_owned(), Arc::clone(&models));
            let holder = KeyHolder {
                name,
                models,
                hash,
                expires,
            };
            (hash, Arc::new(holder))
        });
        self.by_hash.extend(holders);
        Ok(())
    }

    /// The caller with a key that has not expired. Hashes are compared, so that the time says nothing about a key.
    pub fn holder(&self, key: &str, now: Timestamp) -> Option<Arc<KeyHolder>> {
        if self.by_hash.is_empty() {
            return None;
        }
        self.of_hash(&hash(key), now)
    }

    /// The same caller, if its key is still accepted.
    pub fn current(&self, holder: &KeyHolder, now: Timestamp) -> Option<Arc<KeyHolder>> {
        self.of_hash(&holder.hash, now)
    }

    fn of_hash(&self, hash: &[u8; 32], now: Timestamp) -> Option<Arc<KeyHolder>> {
        let holder = self.by_hash.get(hash)?;
        holder.expires.is_none_or(|end| now < end).then(|| Arc::clone(holder))
    }

    /// Names of callers whose key is in plain text, which each reader of the Secret has.
    pub fn plain(&self) -> &[String] {
        &self.plain
    }
}

fn hash(key: &str) -> [u8; 32] {
    Sha256::digest(key).into()
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: Timestamp = Timestamp::UNIX_EPOCH;
    const SHOP: &str = r#"{"key": "a key of the shop's own", "models": ["team-a/gemma", "team-b/*"]}"#;

    #[test]
    fn key_allows_the_models_of_its_file() {
        let folder = tempfile::tempdir().unwrap();
        fs::write(folder.path().join("shop"), SHOP).unwrap();
        fs::write(folder.path().join("..data"), "not a key").unwrap();
        let keys = Keys::read(folder.path());
        let shop = keys.holder("a key of the shop's own", NOW).unwrap();
        assert_eq!(shop.name, "shop");
        let may = |namespace, name| shop.may_use(&Model::asleep(&format!("{namespace}/{name}"), "any"));
        assert!(may("team-a", "gemma") && may("team-b", "any"));
        assert!(!may("team-a", "other") && !may("team-c", "gemma"));
        assert_eq!(keys.holder("a key of the shop's", NOW), None);
        assert_eq!(keys.plain(), ["shop"]);
        assert_eq!(Keys::read(&folder.path().join("none")), Keys::default());
    }

    #[test]
    fn keys_are_hashed_expire_and_are_rotated() {
        let [old, new, other] = [1, 2, 3].map(|n| format!("kr-{}", hex::encode([n; 32])));
        let sha256 = |key: &str| hex::encode(hash(key));
        let text = format!(
            r#"{{"keys": [{{"sha256": "{}", "expires": "1970-01-01T00:01:00Z"}}, {{"sha256": "{}"}}], "models": ["a/one"]}}"#,
            sha256(&old),
            sha256(&new).to_uppercase(),
        );
        let mut keys = Keys::default();
        keys.add("shop", &text).unwrap();
        let late = Timestamp::from_second(60).unwrap();
        let name = |key: &str, now| keys.holder(key, now).map(|holder| holder.name.clone());
        assert_eq!(name(&old, NOW).as_deref(), Some("shop"));
        assert_eq!(name(&old, late), None);
        assert_eq!(name(&new, late).as_deref(), Some("shop"));
        assert_eq!((name(&other, NOW), name(&sha256(&new), NOW)), (None, None));
        let holder = keys.holder(&old, NOW).unwrap();
        assert!(keys.current(&holder, NOW).is_some() && keys.current(&holder, late).is_none());
        assert!(Keys::default().current(&holder, NOW).is_none() && keys.plain().is_empty());
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
            (
                "f-hash",
                r#"{"keys": [{"sha256": "a key of the shop's own"}], "models": ["a/b"]}"#,
            ),
            (
                "f-time",
                r#"{"keys": [{"sha256": "00", "expires": "soon"}], "models": ["a/b"]}"#,
            ),
            ("f-without", r#"{"models": ["a/b"]}"#),
        ];
        for (name, text) in files {
            fs::write(folder.path().join(name), text).unwrap();
        }
        fs::write(folder.path().join("g-large"), " ".repeat(100_000)).unwrap();
        let keys = Keys::read(folder.path());
        assert_eq!(keys.by_hash.len(), 1);
        assert_eq!(keys.holder("a key of the shop's own", NOW).unwrap().name, "a-shop");
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
