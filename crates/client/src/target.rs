//! What a command is about: `NAME`, a ModelDeployment, or `KIND/NAME`, as kubectl writes it.

use std::fmt;
use std::str::FromStr;

use kube::core::ApiResource;
use runway_api::name::Invalid;
use runway_api::{AsyncActor, InferenceProviderConfig, LlamaStackDistribution, ModelDeployment, Name, labels};

/// The kinds of this product that people work with.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Kind {
    /// `md`
    #[default]
    ModelDeployment,
    /// `asya`
    AsyncActor,
    /// `llsd`
    LlamaStackDistribution,
    /// `ipc`
    InferenceProviderConfig,
}

/// All kinds, with every name by which they are known.
const KINDS: [(Kind, &[&str]); 4] = [
    (Kind::ModelDeployment, &["md", "modeldeployment", "modeldeployments"]),
    (Kind::AsyncActor, &["asya", "asyas", "asyncactor", "asyncactors"]),
    (
        Kind::LlamaStackDistribution,
        &["llsd", "llamastackdistribution", "llamastackdistributions"],
    ),
    (
        Kind::InferenceProviderConfig,
        &["ipc", "inferenceproviderconfig", "inferenceproviderconfigs"],
    ),
];

impl Kind {
    /// The kind of this name, in any case: `asya`, `AsyncActor`, `asyncactors`.
    pub fn known_as(word: &str) -> Option<Self> {
        let word = word.to_lowercase();
        let found = KINDS.iter().find(|(_, names)| names.contains(&word.as_str()));
        found.map(|(kind, _)| *kind)
    }

    /// As in a manifest.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::ModelDeployment => "ModelDeployment",
            Self::AsyncActor => "AsyncActor",
            Self::LlamaStackDistribution => "LlamaStackDistribution",
            Self::InferenceProviderConfig => "InferenceProviderConfig",
        }
    }

    /// Where it lives in the API.
    pub fn resource(self) -> ApiResource {
        match self {
            Self::ModelDeployment => ApiResource::erase::<ModelDeployment>(&()),
            Self::AsyncActor => ApiResource::erase::<AsyncActor>(&()),
            Self::LlamaStackDistribution => ApiResource::erase::<LlamaStackDistribution>(&()),
            Self::InferenceProviderConfig => ApiResource::erase::<InferenceProviderConfig>(&()),
        }
    }

    /// The annotation that stops the controllers from changing what runs; what only registers has none.
    pub fn paused_by(self) -> Option<&'static str> {
        match self {
            Self::ModelDeployment => Some(labels::PAUSED),
            Self::AsyncActor => Some(labels::ASYA_PAUSED),
            Self::LlamaStackDistribution => Some(labels::llama_stack::PAUSED),
            Self::InferenceProviderConfig => None,
        }
    }

    /// Whether its objects are in namespaces.
    pub fn is_namespaced(self) -> bool {
        self != Self::InferenceProviderConfig
    }
}

/// One object.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Target {
    /// Its kind.
    pub kind: Kind,
    /// Its name.
    pub name: Name,
}

/// A text that names no object.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// No kind is called so.
    #[error("unknown kind '{word}'{}: use NAME for a ModelDeployment, or md/NAME, asya/NAME, llsd/NAME, ipc/NAME", did_you_mean(.closest.as_deref()))]
    Kind {
        /// As given.
        word: String,
        /// The kind that looks most like it.
        closest: Option<String>,
    },
    /// Nothing stands after the slash.
    #[error("missing name after '{0}/'")]
    Missing(String),
    /// No object can be called so.
    #[error(transparent)]
    Name(#[from] Invalid),
}

impl Error {
    /// No kind is called so.
    pub fn kind(word: &str) -> Self {
        let names = KINDS.iter().flat_map(|(_, names)| names.iter().copied());
        Self::Kind {
            word: word.to_owned(),
            closest: closest(word, names),
        }
    }
}

impl FromStr for Target {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self, Error> {
        let Some((word, name)) = text.split_once('/') else {
            return Ok(Self {
                kind: Kind::ModelDeployment,
                name: text.parse()?,
            });
        };
        let kind = Kind::known_as(word).ok_or_else(|| Error::kind(word))?;
        if name.is_empty() {
            return Err(Error::Missing(word.to_owned()));
        }
        Ok(Self {
            kind,
            name: name.parse()?,
        })
    }
}

impl fmt::Display for Target {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.kind.as_str(), self.name)
    }
}

/// A kind, or one object: `KIND`, `NAME` or `KIND/NAME`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Subject {
    /// All objects of a kind.
    Kind(Kind),
    /// One object.
    Object(Target),
}

impl FromStr for Subject {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self, Error> {
        Kind::known_as(text).map_or_else(|| text.parse().map(Self::Object), |kind| Ok(Self::Kind(kind)))
    }
}

/// Less alike than this is no mistyping.
const ALIKE: f64 = 0.75;

/// The known name that looks most like the one given.
pub fn closest<'a>(given: &str, known: impl IntoIterator<Item = &'a str>) -> Option<String> {
    let alike = known.into_iter().map(|name| (strsim::jaro_winkler(given, name), name));
    let best = alike
        .filter(|(alike, _)| *alike >= ALIKE)
        .max_by(|a, b| a.0.total_cmp(&b.0))?;
    Some(best.1.to_owned())
}

/// A question in parentheses, if there is something to ask.
pub fn did_you_mean(closest: Option<&str>) -> String {
    closest.map_or_else(String::new, |name| format!(" (did you mean '{name}'?)"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_kind_goes_before_a_slash() {
        for (text, kind, name) in [
            ("gemma", Kind::ModelDeployment, "gemma"),
            ("md/gemma", Kind::ModelDeployment, "gemma"),
            ("asya/resize", Kind::AsyncActor, "resize"),
            ("LlamaStackDistribution/stack", Kind::LlamaStackDistribution, "stack"),
            // A name may be the name of a kind.
            ("asya", Kind::ModelDeployment, "asya"),
        ] {
            let target: Target = text.parse().unwrap();
            assert_eq!((target.kind, target.name.as_str()), (kind, name), "{text}");
        }
    }

    #[test]
    fn what_is_no_target_says_what_would_be() {
        let said = "aysa/resize".parse::<Target>().unwrap_err().to_string();
        assert!(
            said.starts_with("unknown kind 'aysa' (did you mean 'asya'?): use NAME"),
            "{said}"
        );
        let said = "pod/x".parse::<Target>().unwrap_err().to_string();
        assert!(said.starts_with("unknown kind 'pod': "), "{said}");
        assert_eq!(
            "md/".parse::<Target>().unwrap_err().to_string(),
            "missing name after 'md/'"
        );
        for text in [
            "", "?", "#", "..", "md//", "md/?", "asya/a/b", "llsd/%2F", "Gemma", "a\n", "md/\0",
        ] {
            let said = text.parse::<Target>().unwrap_err().to_string();
            assert!(said.starts_with("invalid name `"), "{text:?}: {said}");
        }
    }

    #[test]
    fn the_closest_name_is_offered_and_no_other() {
        let known = ["gemma-cpu", "llama-8b", "mistral"];
        assert_eq!(closest("gema-cpu", known).as_deref(), Some("gemma-cpu"));
        assert_eq!(closest("lama-8b", known).as_deref(), Some("llama-8b"));
        assert_eq!(closest("phi", known), None);
    }
}
