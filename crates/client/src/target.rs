//! Targets of commands: `NAME` (a ModelDeployment) or `KIND/NAME`, and the kinds of this product.

use std::fmt;
use std::str::FromStr;

use kube::Resource;
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

/// Facts about a kind of this product. A new kind needs an `impl`, and a line in `of_kind`.
pub trait Ours: Resource<DynamicType = ()> {
    /// The kind.
    const KIND: Kind;
    /// Name in manifests.
    const NAME: &'static str;
    /// Names on the command line, in lower case, the shortest first.
    const WORDS: &'static [&'static str];
    /// Annotation that pauses reconciliation, if there is one.
    const PAUSED_BY: Option<&'static str>;
}

impl Ours for ModelDeployment {
    const KIND: Kind = Kind::ModelDeployment;
    const NAME: &'static str = "ModelDeployment";
    const WORDS: &'static [&'static str] = &["md", "modeldeployment", "modeldeployments"];
    const PAUSED_BY: Option<&'static str> = Some(labels::PAUSED);
}

impl Ours for AsyncActor {
    const KIND: Kind = Kind::AsyncActor;
    const NAME: &'static str = "AsyncActor";
    const WORDS: &'static [&'static str] = &["asya", "asyas", "asyncactor", "asyncactors"];
    const PAUSED_BY: Option<&'static str> = Some(labels::ASYA_PAUSED);
}

impl Ours for LlamaStackDistribution {
    const KIND: Kind = Kind::LlamaStackDistribution;
    const NAME: &'static str = "LlamaStackDistribution";
    const WORDS: &'static [&'static str] = &["llsd", "llamastackdistribution", "llamastackdistributions"];
    const PAUSED_BY: Option<&'static str> = Some(labels::llama_stack::PAUSED);
}

impl Ours for InferenceProviderConfig {
    const KIND: Kind = Kind::InferenceProviderConfig;
    const NAME: &'static str = "InferenceProviderConfig";
    const WORDS: &'static [&'static str] = &["ipc", "inferenceproviderconfig", "inferenceproviderconfigs"];
    const PAUSED_BY: Option<&'static str> = None;
}

/// Evaluates an expression with `$type` as the Rust type of a [`Kind`].
macro_rules! of_kind {
    ($kind:expr, $type:ident => $body:expr) => {
        match $kind {
            Kind::ModelDeployment => of_kind!(@ $type ModelDeployment $body),
            Kind::AsyncActor => of_kind!(@ $type AsyncActor $body),
            Kind::LlamaStackDistribution => of_kind!(@ $type LlamaStackDistribution $body),
            Kind::InferenceProviderConfig => of_kind!(@ $type InferenceProviderConfig $body),
        }
    };
    (@ $type:ident $actual:ident $body:expr) => {{
        type $type = $actual;
        $body
    }};
}

impl Kind {
    /// All kinds.
    pub const ALL: [Self; 4] = [
        Self::ModelDeployment,
        Self::AsyncActor,
        Self::LlamaStackDistribution,
        Self::InferenceProviderConfig,
    ];

    /// The kind with this name, in any case: `asya`, `AsyncActor`, `asyncactors`, `asyncactor.asya.sh`.
    pub fn known_as(word: &str) -> Option<Self> {
        let word = word.to_lowercase();
        let (name, group) = word
            .split_once('.')
            .map_or((&*word, None), |(name, group)| (name, Some(group)));
        let is_it = |kind: &Self| {
            let resource = kind.resource();
            let is_group =
                |group| group == resource.group || group == format!("{}.{}", resource.version, resource.group);
            kind.words().contains(&name) && group.is_none_or(is_group)
        };
        Self::ALL.into_iter().find(is_it)
    }

    /// Names on the command line.
    fn words(self) -> &'static [&'static str] {
        of_kind!(self, K => K::WORDS)
    }

    /// Name in manifests.
    pub fn as_str(self) -> &'static str {
        of_kind!(self, K => K::NAME)
    }

    /// Group, version and plural in the API.
    pub fn resource(self) -> ApiResource {
        of_kind!(self, K => ApiResource::erase::<K>(&()))
    }

    /// Annotation that pauses reconciliation, if there is one.
    pub fn paused_by(self) -> Option<&'static str> {
        of_kind!(self, K => K::PAUSED_BY)
    }

    /// Name of the controller that reconciles its objects, and the command that installs it; `None` for the kind that controllers
    /// create themselves.
    pub fn controller(self) -> Option<(&'static str, &'static str)> {
        match self {
            Self::ModelDeployment => Some((labels::CORE_MANAGER, "controller install")),
            Self::AsyncActor => Some((labels::ASYA_MANAGER, "asya install")),
            Self::LlamaStackDistribution => Some((labels::llama_stack::MANAGER, "llama-stack install")),
            Self::InferenceProviderConfig => None,
        }
    }

    /// Whether its objects are in namespaces.
    pub fn is_namespaced(self) -> bool {
        self != Self::InferenceProviderConfig
    }
}

/// An object.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Target {
    /// Kind.
    pub kind: Kind,
    /// Name.
    pub name: Name,
}

/// A text that names no object.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// No kind is called so.
    #[error("unknown kind '{word}'{}: use NAME for a ModelDeployment, or md/NAME, asya/NAME, llsd/NAME, ipc/NAME", did_you_mean(.closest.as_deref()))]
    Kind {
        /// Text as given.
        word: String,
        /// The kind that looks most like it.
        closest: Option<String>,
    },
    /// The verb is about another kind.
    #[error("unknown kind for this command: {0} is not a {1}")]
    OtherKind(Target, &'static str),
    /// The name after the slash is missing.
    #[error("missing name after '{0}/'")]
    Missing(String),
    /// No object can be called so.
    #[error(transparent)]
    Name(#[from] Invalid),
}

impl Error {
    /// No kind is called so.
    pub fn kind(word: &str) -> Self {
        let names = Kind::ALL.into_iter().flat_map(|kind| kind.words().iter().copied());
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

impl Target {
    /// The shortest form on the command line: `gemma`, `asya/resize`.
    pub fn short(&self) -> String {
        match (self.kind, self.kind.words()) {
            (Kind::ModelDeployment, _) | (_, []) => self.name.to_string(),
            (_, [word, ..]) => format!("{word}/{}", self.name),
        }
    }
}

/// Parses the name of an object of one kind: `NAME` or `KIND/NAME`.
///
/// # Errors
/// The name is invalid, or the object is of another kind.
pub fn name_of<K: Ours>(text: &str) -> Result<Name, Error> {
    match text.split_once('/') {
        None => Ok(text.parse()?),
        Some(_) => match text.parse::<Target>()? {
            Target { kind, name } if kind == K::KIND => Ok(name),
            other => Err(Error::OtherKind(other, K::NAME)),
        },
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
    /// All objects of the kind.
    Kind(Kind),
    /// An object.
    Object(Target),
}

impl FromStr for Subject {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self, Error> {
        Kind::known_as(text).map_or_else(|| text.parse().map(Self::Object), |kind| Ok(Self::Kind(kind)))
    }
}

/// Lowest similarity of a suggestion.
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
            // As `get -o name` prints it.
            ("modeldeployment.kubeairunway.ai/gemma", Kind::ModelDeployment, "gemma"),
            ("asyncactor.asya.sh/resize", Kind::AsyncActor, "resize"),
            (
                "modeldeployments.v1alpha1.kubeairunway.ai/gemma",
                Kind::ModelDeployment,
                "gemma",
            ),
            // A name may be the name of a kind.
            ("asya", Kind::ModelDeployment, "asya"),
        ] {
            let target: Target = text.parse().unwrap();
            assert_eq!((target.kind, target.name.as_str()), (kind, name), "{text}");
        }
    }

    #[test]
    fn an_unknown_target_names_the_alternatives() {
        let said = "aysa/resize".parse::<Target>().unwrap_err().to_string();
        assert!(
            said.starts_with("unknown kind 'aysa' (did you mean 'asya'?): use NAME"),
            "{said}"
        );
        for text in ["md.example.com/x", "asya.kubeairunway.ai/x"] {
            let said = text.parse::<Target>().unwrap_err().to_string();
            assert!(said.starts_with("unknown kind"), "{said}");
        }
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
