//! Base64, percent encoding and hexadecimal digits: decoded, judged, and redacted when they hold a secret or cannot be judged.

use std::sync::LazyLock;

use base64::Engine;
use base64::alphabet::STANDARD;
use base64::engine::{DecodePaddingMode, GeneralPurpose, GeneralPurposeConfig};
use regex::{Captures, Regex};

use super::{REDACTED, Redactor};

/// Takes what is cut off at its ends.
static BASE64: LazyLock<GeneralPurpose> = LazyLock::new(|| {
    let lenient = GeneralPurposeConfig::new()
        .with_decode_allow_trailing_bits(true)
        .with_decode_padding_mode(DecodePaddingMode::Indifferent);
    GeneralPurpose::new(&STANDARD, lenient)
});

/// Certificates are public; base64 may be wrapped.
static TOKEN: LazyLock<Option<Regex>> = LazyLock::new(|| {
    super::shapes::regex(
        r"(?P<public>-----BEGIN CERTIFICATE-----[^-]*-----END CERTIFICATE-----)|[A-Za-z0-9+/_-]{48,}(?:\r?\n[ \t]*[A-Za-z0-9+/_-]{48,})+(?:\r?\n[ \t]*[A-Za-z0-9+/_-]+)?={0,2}|[A-Za-z0-9+/_-]{8,}={0,2}",
    )
});
static PERCENT: LazyLock<Option<Regex>> =
    LazyLock::new(|| super::shapes::regex(r#"[^\s"'<>\\%]*(?:%[0-9A-Fa-f]{2}[^\s"'<>\\%]*)+"#));
static HEX: LazyLock<Option<Regex>> = LazyLock::new(|| super::shapes::regex(r"[0-9A-Fa-f]{12,}"));

/// Characters of a token without a separator that make it look random.
const OPAQUE: usize = 20;
/// Characters of the secret keys of AWS.
const AWS: usize = 40;

impl Redactor {
    /// A text without tokens that hold a secret.
    pub(super) fn encoded(&mut self, text: &str) -> String {
        let text = self.tokens(text, PERCENT.as_ref(), |redactor, token| {
            percent_decoded(token).is_some_and(|decoded| {
                redactor.is_sensitive(decoded.as_bytes()) || redactor.is_sensitive(decoded.replace('+', " ").as_bytes())
            })
        });
        let text = self.tokens(&text, HEX.as_ref(), |redactor, token| {
            [token, &token[1..]]
                .iter()
                .any(|token| redactor.is_sensitive(&hex_decoded(token)))
        });
        self.tokens(&text, TOKEN.as_ref(), Self::is_secret_base64)
    }

    fn tokens(&mut self, text: &str, shape: Option<&Regex>, is_secret: impl Fn(&mut Self, &str) -> bool) -> String {
        let Some(shape) = shape else {
            return REDACTED.to_owned();
        };
        let replaced = shape.replace_all(text, |found: &Captures<'_>| {
            if found.name("public").is_none() && is_secret(self, &found[0]) {
                self.removed += 1;
                REDACTED.to_owned()
            } else {
                found[0].to_owned()
            }
        });
        replaced.into_owned()
    }

    /// Text before a token may use the same alphabet, so decoding starts at each of the first four characters.
    fn is_secret_base64(&mut self, token: &str) -> bool {
        let token: String = token
            .chars()
            .filter(|c| !c.is_whitespace() && *c != '=')
            .map(|c| match c {
                '-' => '+',
                '_' => '/',
                c => c,
            })
            .collect();
        let mut is_text = false;
        for start in 0..4.min(token.len()) {
            let rest = &token[start..];
            let whole = rest.len() - usize::from(rest.len() % 4 == 1);
            let Ok(decoded) = BASE64.decode(&rest[..whole]) else {
                continue;
            };
            if self.is_sensitive(&decoded) {
                return true;
            }
            is_text |= as_text(&decoded).is_some();
        }
        !is_text && is_opaque(&token)
    }

    /// Whether decoded text contains a known secret, or text in the form of one.
    fn is_sensitive(&mut self, decoded: &[u8]) -> bool {
        if self.known.is_in(decoded) {
            return true;
        }
        let Some(text) = as_text(decoded) else {
            return false;
        };
        let before = self.removed;
        self.depth += 1;
        self.string(text);
        self.depth -= 1;
        self.removed > before
    }
}

fn as_text(decoded: &[u8]) -> Option<&str> {
    let text = std::str::from_utf8(decoded).ok().filter(|text| text.len() >= 6)?;
    let is_printable = |c: char| !c.is_control() || c.is_ascii_whitespace();
    text.chars().all(is_printable).then_some(text)
}

/// Whether a token looks random. Names are split by hyphens and have lower-case letters only; digests are hexadecimal.
fn is_opaque(token: &str) -> bool {
    let is_mixed = |part: &str| {
        part.contains(|c: char| c.is_ascii_uppercase())
            && part.contains(|c: char| c.is_ascii_lowercase())
            && part.contains(|c: char| c.is_ascii_digit())
    };
    let is_long = |part: &str| part.len() >= OPAQUE && is_mixed(part);
    token.split(['+', '/']).any(is_long) || (token.len() == AWS && is_mixed(token))
}

fn hex_decoded(text: &str) -> Vec<u8> {
    let pairs = (0..text.len() / 2).filter_map(|at| text.get(2 * at..2 * at + 2));
    pairs.filter_map(|pair| u8::from_str_radix(pair, 16).ok()).collect()
}

/// A text without its percent encoding, if it has one.
pub(super) fn percent_decoded(text: &str) -> Option<String> {
    if !text.contains('%') {
        return None;
    }
    let decoded = percent_encoding::percent_decode_str(text)
        .decode_utf8_lossy()
        .into_owned();
    (decoded != text).then_some(decoded)
}
