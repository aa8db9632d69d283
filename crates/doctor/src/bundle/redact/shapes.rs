//! Names that promise a secret, and texts of the shape of one.

use std::sync::LazyLock;

use regex::{Captures, Regex};

use super::REDACTED;

/// Parts of names behind which secrets are kept.
const SECRETIVE: &str = r"pass(?:w(?:or)?d|phrase|code)|pass\b|pass_|_pass|pwd|secret|token|\w[-_.]?key\b|access[-_.]?key|private[-_.]?key|client[-_.]?key|key[-_.]?data|certificate[-_.]?data|credential|authorization|bearer|cookie|session\b|session[-_.]?(?:id|key)|signature|connection[-_.]?string|kubeconfig|\bdsn\b|_dsn\b|\bauth\b|\bsalt\b";

/// Counts and the like, not secrets: `max-num-batched-tokens`, `tokenizer`.
const HARMLESS: &str = r"(?i)(?:max|min|num|total|prompt|completion)[\w.-]*tokens?|tokeni[sz]\w*|pod-?identity";

/// Fields of Kubernetes and ours that sound like secrets and only name one, or say nothing of it.
const NAMES_ONLY: [&str; 15] = [
    "secretName",
    "secretKeyRef",
    "secretRef",
    "imagePullSecrets",
    "imagePullSecret",
    "automountServiceAccountToken",
    "serviceAccountToken",
    "expirationSeconds",
    "modelAccessSecret",
    "authenticationRef",
    "nodePublishSecretRef",
    "secretTargetRef",
    "topologyKey",
    "sessionAffinity",
    "sessionAffinityConfig",
];
/// Fields that refer to the source of the value of an environment variable.
const REFERENCES: [&str; 6] = [
    "valueFrom",
    "configMapKeyRef",
    "configMapRef",
    "fieldRef",
    "resourceFieldRef",
    "envFrom",
];

static NAME: LazyLock<Option<Regex>> = LazyLock::new(|| regex(&format!("(?i){SECRETIVE}")));
static HARMLESS_NAME: LazyLock<Option<Regex>> = LazyLock::new(|| regex(HARMLESS));
static ENVIRONMENT: LazyLock<Option<Regex>> =
    LazyLock::new(|| regex(r"(?i)(?:^|[_.-]|[a-z])env(?:s|ironment)?(?:[-_]?var(?:iable)?s)?(?:[-_]?ya?ml)?$"));
static FLAG: LazyLock<Option<Regex>> = LazyLock::new(|| regex(r"^--?[\w.-]+$"));

/// A form of secrets, and its pattern.
struct Shape {
    pattern: Regex,
    /// Whether each match is a secret.
    certain: bool,
}

static SHAPES: LazyLock<Vec<Shape>> = LazyLock::new(|| {
    let scheme = r"(?i)(?P<keep>\b[a-z][a-z0-9+.-]*://";
    let name = format!(r"(?P<name>[\w.-]*(?:{SECRETIVE})[\w.-]*)");
    let bearer = r"\b(?:bearer|basic)\s+";
    let token = r"[\w.~+/=-]+";
    let patterns = [
        (true, r"(?s)-----BEGIN [A-Z ]*PRIVATE KEY(?: BLOCK)?-----.*?(?:-----END [A-Z ]*PRIVATE KEY(?: BLOCK)?-----|$)".to_owned()),
        // A login is before the last @ of a URL; its password may hold anything but a space or a quote.
        (true, format!(r#"{scheme})(?P<login>[^\s"'<>`]*)(?P<behind>@(?P<digest>sha256:)?)"#)),
        (false, format!(r#"{scheme}[^\s?#"'<>]*[?#])[^\s"'<>]+"#)),
        (false, r#"(?i)(?P<keep>\b(?:(?:proxy-)?authorization|(?:set-)?cookie)\\?["']?\s*[:=]\s*\\?["']?)[^\r\n"'\\]+"#.to_owned()),
        (true, format!(r#"(?i)(?P<keep>{bearer})(?P<token>{token})(?P<behind>\\?["']?\s*[:=])?"#)),
        (false, r#"(?P<keep>\bexport\s+\w+=)(?:"[^"]*"|'[^']*'|[^\s;&]+)"#.to_owned()),
        // In YAML: a block of lines, or the rest of the line.
        (false, format!(r"(?im)(?P<keep>^[ \t-]*{name}:[ \t]*[|>][-+0-9]*[ \t]*\n)(?:[ \t]+[^\n]*(?:\n|$))+")),
        (false, format!(r"(?im)(?P<keep>^[ \t-]*{name}:[ \t]+)[^\n]+$")),
        // NAME=VALUE, "name": "value", --name value.
        (false, format!(r#"(?i)(?P<keep>{name}\\?["']?\s*[=:]\s*)(?:\\?"(?:[^"\\]|\\.)*"|'[^']*')"#)),
        (false, format!(r#"(?i)(?P<keep>{name}\s*=\s*(?:{bearer})?)[^\s"']+"#)),
        (false, format!(r#"(?i)(?P<keep>{name}\\?["']?\s*:\s*(?:{bearer})?)[^\s"',;}}\]]+"#)),
        (false, format!(r"(?i)(?P<keep>--?{name}\s+(?:{bearer})?)[^\s-][^\s]*")),
        // A token that could be the name of a value, once that is redacted.
        (true, format!(r"(?i)(?P<keep>{bearer}){token}")),
        // Tokens that are known by their shape.
        (true, r"\beyJ[\w-]{8,}\.[\w-]+(?:\.[\w-]*)?".to_owned()),
        (true, r"\b(?:hf_|sk-|sk_|rk_|gh[pousr]_|github_pat_|glpat-|xox[abeoprs]-|nvapi-|gsk_|dckr_pat_|AKIA|ASIA|AIza|ya29\.|npm_|pypi-|SG\.)[\w.-]{6,}".to_owned()),
    ];
    let compiled = patterns.into_iter().filter_map(|(certain, pattern)| {
        let pattern = regex(&pattern)?;
        Some(Shape { pattern, certain })
    });
    compiled.collect()
});
/// Number of the shapes: a test sees that each of their patterns is one.
#[cfg(test)]
pub(super) const COUNT: usize = 15;

/// A pattern of ours.
pub(super) fn regex(pattern: &str) -> Option<Regex> {
    Regex::new(pattern).ok()
}

fn finds(pattern: &LazyLock<Option<Regex>>, text: &str) -> bool {
    pattern.as_ref().is_none_or(|pattern| pattern.is_match(text))
}

#[cfg(test)]
pub(super) fn count() -> usize {
    let names = [&NAME, &HARMLESS_NAME, &ENVIRONMENT, &FLAG];
    assert!(names.iter().all(|pattern| pattern.is_some()));
    SHAPES.len()
}

/// Whether a name indicates a secret.
pub(super) fn is_secretive(name: &str) -> bool {
    if NAMES_ONLY.contains(&name) {
        return false;
    }
    let rest = HARMLESS_NAME.as_ref().map(|harmless| harmless.replace_all(name, ""));
    finds(&NAME, rest.as_deref().unwrap_or(name))
}

/// Whether a field refers to a Secret or to the source of a value.
pub(super) fn is_reference(name: &str) -> bool {
    NAMES_ONLY.contains(&name) || REFERENCES.contains(&name)
}

/// Whether a field contains environment variables, such as `env`, `extraEnvVars` or `runtime_env`.
pub(super) fn is_environment(name: &str) -> bool {
    !REFERENCES.contains(&name) && finds(&ENVIRONMENT, name)
}

/// Whether an argument is a flag whose value is the next argument, and a secret.
pub(super) fn is_secret_flag(argument: &str) -> bool {
    finds(&FLAG, argument) && is_secretive(argument.trim_start_matches('-'))
}

/// The user of a URL and the password, as they are written.
pub(super) fn login(text: &str) -> Option<(&str, Option<&str>)> {
    let (_, rest) = text.split_once("://")?;
    let (login, _) = rest.rsplit_once('@')?;
    Some(split_login(login))
}

fn split_login(login: &str) -> (&str, Option<&str>) {
    login
        .split_once(':')
        .map_or((login, None), |(user, password)| (user, Some(password)))
}

/// Replaces what has the shape of a secret; `found` gets each, and whether it can be looked for elsewhere.
pub(super) fn replace(text: &str, mut found: impl FnMut(&str, bool)) -> String {
    SHAPES.iter().fold(text.to_owned(), |text, shape| {
        let replaced = shape
            .pattern
            .replace_all(&text, |at: &Captures<'_>| shape.redacted(at, &mut found));
        replaced.into_owned()
    })
}

impl Shape {
    fn redacted(&self, at: &Captures<'_>, found: &mut impl FnMut(&str, bool)) -> String {
        let part = |name| at.name(name).map_or("", |part| part.as_str());
        let (keep, behind) = (part("keep"), part("behind"));
        let secret = &at[0][keep.len()..at[0].len() - behind.len()];
        let is_harmless =
            at.name("digest").is_some() || at.name("name").is_some_and(|name| !is_secretive(name.as_str()));
        // `bearer token: VALUE`: without the name, the value would stay.
        let is_name = !behind.is_empty() && is_secretive(part("token"));
        if is_harmless || is_name || secret.is_empty() || secret.contains(REDACTED) {
            return at[0].to_owned();
        }
        let value = if at.name("login").is_some() {
            let (user, password) = split_login(secret);
            password.unwrap_or(user)
        } else {
            secret.trim().trim_matches(['"', '\'', '\\'])
        };
        found(value, self.certain || is_random(value));
        let end = if secret.ends_with('\n') { "\n" } else { "" };
        format!("{keep}{REDACTED}{behind}{end}")
    }
}

/// Whether a text looks random, so that other occurrences can be searched for.
fn is_random(text: &str) -> bool {
    text.len() >= 12 && text.contains(|c: char| c.is_ascii_digit()) && text.contains(|c: char| c.is_ascii_alphabetic())
}
