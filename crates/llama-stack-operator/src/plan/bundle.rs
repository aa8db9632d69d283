//! The CA bundle: only the certificates of a ConfigMap.

use k8s_openapi::api::core::v1::ConfigMap;
use runway_operator::json;
use x509_parser::pem::Pem;

/// Key when none is given (public operator).
const DEFAULT_KEY: &str = "ca-bundle.crt";
/// Most certificates in a bundle.
const MAX_CERTIFICATES: usize = 1000;
/// Longest bundle: it goes into a ConfigMap.
const MAX_BYTES: usize = 900 * 1024;

/// Certificates in PEM form.
pub(super) struct Bundle {
    pub(super) pem: String,
    pub(super) hash: String,
}

/// A failure to build the bundle.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub(super) enum Error {
    /// A key does not exist.
    #[error("it has no key '{0}': name the keys with configMapKeys")]
    NoKey(String),
    /// No certificate was found.
    #[error("no X.509 certificate in {0}: give certificates in PEM form")]
    NoCertificate(String),
    /// The bundle exceeds its limits.
    #[error(
        "more than {MAX_CERTIFICATES} certificates, or more than {MAX_BYTES} bytes: a bundle must fit into a ConfigMap"
    )]
    TooLarge,
}

/// The certificates of these keys, in order. Everything else is skipped: a private key must not be copied.
pub(super) fn collect(config_map: &ConfigMap, keys: &[String]) -> Result<Bundle, Error> {
    let default = [DEFAULT_KEY.to_owned()];
    let keys = if keys.is_empty() { &default } else { keys };
    let data = config_map.data.clone().unwrap_or_default();
    let mut certificates = Vec::new();
    for key in keys {
        let text = data.get(key).ok_or_else(|| Error::NoKey(key.clone()))?;
        certificates.extend(certificates_of(text));
    }
    if certificates.is_empty() {
        return Err(Error::NoCertificate(keys.join(", ")));
    }
    let pem = certificates.concat();
    if certificates.len() > MAX_CERTIFICATES || pem.len() > MAX_BYTES {
        return Err(Error::TooLarge);
    }
    Ok(Bundle {
        hash: json::hash(&pem),
        pem,
    })
}

/// Each certificate, unchanged.
fn certificates_of(text: &str) -> Vec<String> {
    const BEGIN: &str = "-----BEGIN CERTIFICATE-----";
    const END: &str = "-----END CERTIFICATE-----";
    text.split(BEGIN)
        .skip(1)
        .filter_map(|rest| rest.split_once(END))
        .map(|(body, _)| format!("{BEGIN}{body}{END}\n"))
        .filter(|pem| is_certificate(pem))
        .collect()
}

fn is_certificate(pem: &str) -> bool {
    Pem::read(std::io::Cursor::new(pem.as_bytes())).is_ok_and(|(pem, _)| pem.parse_x509().is_ok())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn holding(key: &str, text: &str) -> ConfigMap {
        ConfigMap {
            data: Some([(key.to_owned(), text.to_owned())].into()),
            ..ConfigMap::default()
        }
    }

    #[test]
    fn invalid_certificate_is_reported() {
        let none = collect(&holding("ca-bundle.crt", "hello"), &[]);
        assert_eq!(none.err(), Some(Error::NoCertificate("ca-bundle.crt".to_owned())));
        let broken = "-----BEGIN CERTIFICATE-----\naGVsbG8=\n-----END CERTIFICATE-----\n";
        assert!(collect(&holding("ca-bundle.crt", broken), &[]).is_err());
        let key = collect(&holding("other", "x"), &[]);
        assert_eq!(key.err(), Some(Error::NoKey("ca-bundle.crt".to_owned())));
    }

    #[test]
    fn certificates_stay_and_private_keys_do_not() {
        let key = rcgen::KeyPair::generate().unwrap();
        let certificate = rcgen::CertificateParams::new(vec!["a.example".to_owned()])
            .unwrap()
            .self_signed(&key)
            .unwrap();
        let both = format!("# a comment\n{}\n{}", key.serialize_pem(), certificate.pem());
        let bundle = collect(&holding("ca-bundle.crt", &both), &[]).unwrap();
        assert!(bundle.pem.starts_with("-----BEGIN CERTIFICATE-----"));
        assert!(!bundle.pem.contains("PRIVATE"));
    }
}
