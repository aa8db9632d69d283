//! Claims of tokens before the API server has verified them. Pure.
//!
//! A JSON Web Token says itself when it expires and for which audience it is. It is read without verifying its signature, so that
//! a token is only ever refused by it, or asked about in another way.

use base64::Engine as _;
use base64::alphabet::URL_SAFE;
use base64::engine::{DecodePaddingMode, GeneralPurpose, GeneralPurposeConfig};
use serde::Deserialize;
use serde::de::{DeserializeOwned, IgnoredAny};

/// Difference of clocks, in seconds. The API server itself allows a minute.
const LEEWAY: f64 = 300.0;

/// Lenient as the decoders of others: what they read must not be refused here.
const BASE64: GeneralPurpose = GeneralPurpose::new(
    &URL_SAFE,
    GeneralPurposeConfig::new()
        .with_decode_allow_trailing_bits(true)
        .with_decode_padding_mode(DecodePaddingMode::Indifferent),
);

#[derive(Deserialize)]
struct Header {
    #[serde(rename = "alg")]
    _algorithm: IgnoredAny,
}

#[derive(Deserialize)]
struct Claims {
    #[serde(default)]
    exp: Option<f64>,
}

#[derive(Deserialize)]
struct Audience {
    #[serde(default)]
    aud: Vec<String>,
}

/// Whether a token is a JSON Web Token that is not well-formed or has expired. `now` is in seconds since 1970. Tokens of another
/// form, which a webhook of the cluster may know, are not.
pub fn is_hopeless(token: &str, now: i64) -> bool {
    let parts: Vec<&str> = token.split('.').collect();
    if parts.len() < 2 || read::<Header>(parts[0]).is_none() {
        return false;
    }
    match parts.as_slice() {
        [_, claims, signature] => {
            let is_signed = BASE64.decode(signature).is_ok_and(|signature| !signature.is_empty());
            let claims = read::<Claims>(claims).filter(|_| is_signed);
            #[allow(clippy::cast_precision_loss, reason = "seconds")]
            claims.is_none_or(|claims| claims.exp.is_some_and(|exp| exp + LEEWAY < now as f64))
        }
        // Encrypted.
        [_, _, _, _, _] => false,
        _ => true,
    }
}

/// Whether a JSON Web Token claims one of these audiences. Those of ServiceAccounts have a list of them.
pub fn has_audience(token: &str, audiences: &[String]) -> bool {
    let claims = token.split('.').nth(1).and_then(read::<Audience>);
    claims.is_some_and(|claims| claims.aud.iter().any(|audience| audiences.contains(audience)))
}

/// A part of a token. An array is not one, although serde reads it as the fields of a struct.
fn read<T: DeserializeOwned>(part: &str) -> Option<T> {
    let json = BASE64.decode(part).ok()?;
    let is_object = json.trim_ascii_start().first() == Some(&b'{');
    is_object.then(|| serde_json::from_slice(&json).ok())?
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: i64 = 1_800_000_000;

    fn jwt(claims: &str) -> String {
        let header = BASE64.encode(r#"{"alg":"RS256","kid":"1"}"#);
        format!("{header}.{}.{}", BASE64.encode(claims), BASE64.encode("signature"))
    }

    #[test]
    fn expired_tokens_are_hopeless_after_the_leeway() {
        for (exp, hopeless) in [
            ("1799999699", true),
            ("1799999701", false),
            ("1.9e9", false),
            ("-1", true),
        ] {
            assert_eq!(
                is_hopeless(&jwt(&format!(r#"{{"exp":{exp}}}"#)), NOW),
                hopeless,
                "{exp}"
            );
        }
        assert!(!is_hopeless(&jwt("{}"), NOW), "it does not expire");
        assert!(is_hopeless(&jwt(r#"{"exp":"tomorrow"}"#), NOW));
    }

    #[test]
    fn audiences_of_a_token_are_a_list() {
        let ours = ["ours".to_owned()];
        assert!(has_audience(&jwt(r#"{"aud":["theirs","ours"]}"#), &ours));
        for other in [
            jwt(r#"{"aud":["theirs"]}"#),
            jwt("{}"),
            jwt("text"),
            "opaque".to_owned(),
        ] {
            assert!(!has_audience(&other, &ours), "{other}");
        }
    }

    #[test]
    fn malformed_tokens_are_hopeless() {
        let good = jwt("{}");
        let (unsigned, _) = good.rsplit_once('.').unwrap();
        let (header, _) = unsigned.split_once('.').unwrap();
        for bad in [
            unsigned.to_owned(),
            format!("{unsigned}."),
            format!("{unsigned}.!"),
            format!("{good}.x"),
            format!("{header}.e30x=y.c2ln"),
            jwt("[1]"),
            jwt("text"),
        ] {
            assert!(is_hopeless(&bad, NOW), "{bad}");
        }
    }

    #[test]
    fn tokens_of_another_form_are_asked_about() {
        let array = BASE64.encode("[1]");
        for other in [
            "opaque",
            "abcdef.0123456789abcdef",
            "a.b.c",
            "eyJ.b.c",
            &format!("{array}.b.c"),
            "",
        ] {
            assert!(!is_hopeless(other, NOW), "{other}");
        }
        let encrypted = jwt("{}") + ".a.b";
        assert!(!is_hopeless(&encrypted, NOW));
    }
}
