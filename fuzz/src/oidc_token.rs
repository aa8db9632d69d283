//! Any text as an ID token, and any as the keys of the issuer: it is refused with a message of bounded length, or it is for this
//! console, and identifies no user of Kubernetes itself.
//!
//! The input is two parts with a NUL between: the token, and the keys as a JSON Web Key Set.

use runway_web::oidc::{ClaimNames, Impersonation, Settings, claims};
use serde_json::Value;

const ISSUER: &str = "https://id.example.com";
const CLIENT: &str = "console";
const MAX_MESSAGE: usize = 1024;

pub fn run(data: &[u8]) {
    let [token, keys] = crate::parts(data);
    let Some(token) = crate::text(token) else { return };
    let settings = Settings {
        issuer: ISSUER.to_owned(),
        client_id: CLIENT.to_owned(),
        client_secret: None,
        scopes: Vec::new(),
        authorities: None,
        claims: ClaimNames {
            username: "sub".to_owned(),
            username_prefix: Some("-".to_owned()),
            groups: Some("groups".to_owned()),
            groups_prefix: String::new(),
        },
    };
    let claims = match claims(&settings, token, keys) {
        Ok(claims) => claims,
        Err(error) => {
            assert!(error.to_string().len() <= MAX_MESSAGE, "{error}");
            return;
        }
    };
    let is = |name: &str, wanted: &str| match &claims[name] {
        Value::String(text) => text == wanted,
        Value::Array(list) => list.iter().any(|item| item == wanted),
        _ => false,
    };
    assert!(is("iss", ISSUER) && is("aud", CLIENT) && claims.contains_key("exp"));
    if let Ok(identity) = settings.claims.read(ISSUER, &claims, &Impersonation::default()) {
        assert!(!identity.user.is_empty() && !identity.user.starts_with("system:"));
        assert!(!identity.groups.iter().any(|group| group.starts_with("system:")));
    }
}
