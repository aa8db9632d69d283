//! Authorities, leaves, and their rotation. Pure: the time is an argument.
//!
//! The life of an authority, in fractions of it:
//!
//! ```text
//! 0                                   2/3       5/6       1
//! |---- signs ------------------------|-- signs |--trusted|        the old one
//!                                     |-trusted-|-- signs ---...   the new one
//! ```
//!
//! At 2/3 the next authority is created. Until 5/6 it is only in the bundle, so that every API server trusts it before the first
//! leaf needs it; the old one stays in the bundle until it expires. All of this follows from the dates in the certificates:
//! replicas agree without communication, and a rotation is one write.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use jiff::{SignedDuration, Timestamp};
use k8s_openapi::ByteString;
use rcgen::{
    BasicConstraints, CertificateParams, DistinguishedName, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair,
    KeyUsagePurpose,
};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::sign::CertifiedKey;

/// Lifetimes of certificates.
#[derive(Clone, Copy, Debug)]
pub struct Lifetimes {
    /// Lifetime of an authority.
    pub authority: Duration,
    /// Lifetime of a leaf. It is renewed at two thirds, or when another authority begins to sign.
    pub leaf: Duration,
}

impl Default for Lifetimes {
    fn default() -> Self {
        let day = Duration::from_hours(24);
        Self {
            authority: 365 * day,
            leaf: 30 * day,
        }
    }
}

/// Time before the creation from which certificates are valid, for clocks that are behind. The clock of another replica may be
/// ahead by the same amount before its certificates are of no use.
const BACKDATE: SignedDuration = SignedDuration::from_hours(2);

/// Reason why a certificate cannot be created or read.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The Secret lacks an authority.
    #[error("the Secret has no {0}")]
    Missing(&'static str),
    /// The Secret contains an invalid authority.
    #[error("the Secret's {key} cannot be read: {reason}")]
    Unreadable {
        /// Key in the Secret.
        key: &'static str,
        /// Cause.
        reason: String,
    },
    /// A certificate cannot be created.
    #[error("cannot make a certificate: {0}")]
    Make(#[from] rcgen::Error),
    /// The key of a leaf is not supported.
    #[error("cannot use the key of a certificate: {0}")]
    Use(#[from] rustls::Error),
}

/// An authority: certificate, key and dates.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Signer {
    certificate: String,
    key: String,
    created: Timestamp,
    expires: Timestamp,
}

impl Signer {
    fn make(name: &str, now: Timestamp, lifetime: Duration) -> Result<Self, Error> {
        let (created, expires) = (now, later(now, lifetime));
        let key = KeyPair::generate()?;
        let mut params = dated(CertificateParams::default(), created, expires);
        // A unique name, so that two authorities in one bundle are distinguished.
        params.distinguished_name = common_name(&format!("{name} {}", created.as_second()));
        params.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
        params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::DigitalSignature];
        Ok(Self {
            certificate: params.self_signed(&key)?.pem(),
            key: key.serialize_pem(),
            created,
            expires,
        })
    }

    fn read(
        data: &BTreeMap<String, ByteString>,
        certificate_key: &'static str,
        key_key: &'static str,
    ) -> Result<Self, Error> {
        let text = |key: &'static str| {
            let bytes = data.get(key).ok_or(Error::Missing(key))?;
            String::from_utf8(bytes.0.clone()).map_err(|error| Error::Unreadable {
                key,
                reason: error.to_string(),
            })
        };
        let (certificate, key) = (text(certificate_key)?, text(key_key)?);
        let unreadable = |reason: String| Error::Unreadable {
            key: certificate_key,
            reason,
        };

        let der =
            CertificateDer::from_pem_slice(certificate.as_bytes()).map_err(|error| unreadable(error.to_string()))?;
        let (_, parsed) = x509_parser::parse_x509_certificate(&der).map_err(|error| unreadable(error.to_string()))?;
        let time = |asn1: x509_parser::time::ASN1Time| {
            Timestamp::from_second(asn1.timestamp()).map_err(|error| unreadable(error.to_string()))
        };
        let validity = parsed.validity();
        let (created, expires) = (time(validity.not_before)? + BACKDATE, time(validity.not_after)?);

        let pair = KeyPair::from_pem(&key).map_err(|error| Error::Unreadable {
            key: key_key,
            reason: error.to_string(),
        })?;
        if pair.public_key_raw() != parsed.public_key().subject_public_key.data.as_ref() {
            return Err(unreadable(format!("it does not belong to {key_key}")));
        }
        Ok(Self {
            certificate,
            key,
            created,
            expires,
        })
    }
}

/// Content of the Secret: the newest authority, and the previous one while it is needed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Authorities {
    newest: Signer,
    previous: Option<Signer>,
}

const NEWEST: (&str, &str) = ("ca.crt", "ca.key");
const PREVIOUS: (&str, &str) = ("previous.crt", "previous.key");

impl Authorities {
    /// Creates the first authority.
    ///
    /// # Errors
    ///
    /// The certificate cannot be created.
    pub fn first(name: &str, now: Timestamp, lifetimes: Lifetimes) -> Result<Self, Error> {
        Ok(Self {
            newest: Signer::make(name, now, lifetimes.authority)?,
            previous: None,
        })
    }

    /// Whether the signer at `now` is not yet valid: it was created by a clock that was ahead, and clients with the correct time
    /// reject everything that it signs.
    pub fn is_from_the_future(&self, now: Timestamp) -> bool {
        self.signer(now).created - BACKDATE > now
    }

    /// Creates the next authority; the newest until now becomes the previous one.
    ///
    /// # Errors
    ///
    /// The certificate cannot be created.
    pub fn next(self, name: &str, now: Timestamp, lifetimes: Lifetimes) -> Result<Self, Error> {
        let previous = Some(self.newest).filter(|signer| signer.expires > now);
        Ok(Self {
            newest: Signer::make(name, now, lifetimes.authority)?,
            previous,
        })
    }

    /// Reads the data of a Secret. An invalid previous authority is ignored.
    ///
    /// # Errors
    ///
    /// The newest authority is missing or invalid.
    pub fn read(data: &BTreeMap<String, ByteString>) -> Result<Self, Error> {
        let newest = Signer::read(data, NEWEST.0, NEWEST.1)?;
        Ok(Self {
            newest,
            previous: Signer::read(data, PREVIOUS.0, PREVIOUS.1).ok(),
        })
    }

    /// The data of a Secret; `None` for keys to remove.
    pub fn data(&self) -> BTreeMap<&'static str, Option<ByteString>> {
        let bytes = |text: &String| ByteString(text.clone().into_bytes());
        let previous = self.previous.as_ref();
        BTreeMap::from([
            (NEWEST.0, Some(bytes(&self.newest.certificate))),
            (NEWEST.1, Some(bytes(&self.newest.key))),
            (PREVIOUS.0, previous.map(|signer| bytes(&signer.certificate))),
            (PREVIOUS.1, previous.map(|signer| bytes(&signer.key))),
        ])
    }

    /// Time when the next authority is due.
    pub fn rotation(&self) -> Timestamp {
        two_thirds(self.newest.created, self.newest.expires)
    }

    /// The authority that signs at `now`.
    pub fn signer(&self, now: Timestamp) -> &Signer {
        match &self.previous {
            Some(previous) if now < self.handover(previous) => previous,
            _ => &self.newest,
        }
    }

    /// The certificates to trust at `now`, as PEM.
    pub fn bundle(&self, now: Timestamp) -> String {
        let previous = self.previous.iter().filter(|signer| signer.expires > now);
        previous
            .chain([&self.newest])
            .map(|signer| signer.certificate.as_str())
            .collect()
    }

    /// Time of the next change of the signer or bundle, without a write of the Secret.
    pub fn next_change(&self, now: Timestamp) -> Option<Timestamp> {
        let previous = self.previous.as_ref()?;
        [self.handover(previous), previous.expires]
            .into_iter()
            .filter(|change| *change > now)
            .min()
    }

    /// Time when the newest begins to sign: midway between its creation and the end of the previous one.
    fn handover(&self, previous: &Signer) -> Timestamp {
        self.newest.created + previous.expires.duration_since(self.newest.created) / 2
    }
}

/// A server's certificate.
#[derive(Clone, Debug)]
pub struct Leaf {
    /// Certificate and key for rustls.
    pub certified: Arc<CertifiedKey>,
    /// Time of its renewal.
    pub renewal: Timestamp,
    signer: String,
    /// First and last moment at which clients accept it.
    valid: (Timestamp, Timestamp),
}

impl Leaf {
    /// Creates a leaf for `names`, DNS names and IP addresses.
    ///
    /// # Errors
    ///
    /// A name is not supported, or the certificate cannot be created.
    pub fn make(signer: &Signer, names: &[String], now: Timestamp, lifetimes: Lifetimes) -> Result<Self, Error> {
        let expires = later(now, lifetimes.leaf).min(signer.expires);
        let key = KeyPair::generate()?;
        // Valid from the start of its authority, not from now: our own clock may be ahead.
        let mut params = dated(CertificateParams::new(names)?, signer.created, expires);
        params.distinguished_name = common_name("webhook");
        params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
        params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth];
        params.use_authority_key_identifier_extension = true;
        let issuer = Issuer::from_ca_cert_pem(&signer.certificate, KeyPair::from_pem(&signer.key)?)?;
        let certificate = params.signed_by(&key, &issuer)?;

        let private_key = PrivateKeyDer::Pkcs8(key.serialize_der().into());
        let certified = CertifiedKey::from_der(
            vec![certificate.der().clone()],
            private_key,
            &rustls::crypto::ring::default_provider(),
        )?;
        Ok(Self {
            certified: Arc::new(certified),
            renewal: two_thirds(now, expires),
            signer: signer.certificate.clone(),
            valid: (signer.created - BACKDATE, expires),
        })
    }

    /// Reason why clients reject the certificate at `now`; `None` if they accept it.
    pub fn refused(&self, now: Timestamp) -> Option<String> {
        let (from, until) = self.valid;
        if now < from {
            return Some(format!("it is valid only from {from} on, and now it is {now}"));
        }
        (until < now).then(|| format!("it expired at {until}"))
    }

    /// Whether it can be used: signed by the current signer, and not yet due.
    pub fn is_current(&self, signer: &Signer, now: Timestamp) -> bool {
        self.signer == signer.certificate && now < self.renewal && self.refused(now).is_none()
    }
}

fn dated(mut params: CertificateParams, created: Timestamp, expires: Timestamp) -> CertificateParams {
    // rcgen uses the `time` crate; its epoch and a duration avoid the dependency.
    let epoch = rcgen::date_time_ymd(1970, 1, 1);
    let since_epoch = |time: Timestamp| Duration::from_secs(time.as_second().unsigned_abs());
    params.not_before = epoch + since_epoch(created - BACKDATE);
    params.not_after = epoch + since_epoch(expires);
    params
}

fn two_thirds(from: Timestamp, to: Timestamp) -> Timestamp {
    from + to.duration_since(from) * 2 / 3
}

fn later(now: Timestamp, lifetime: Duration) -> Timestamp {
    now.saturating_add(lifetime).unwrap_or(Timestamp::MAX)
}

fn common_name(name: &str) -> DistinguishedName {
    let mut distinguished = DistinguishedName::new();
    distinguished.push(DnType::CommonName, name);
    distinguished
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustls::client::WebPkiServerVerifier;
    use rustls::client::danger::ServerCertVerifier;
    use rustls::pki_types::{ServerName, UnixTime};
    use rustls::{RootCertStore, crypto::ring::default_provider};

    const LIFETIMES: Lifetimes = Lifetimes {
        authority: Duration::from_mins(100),
        leaf: Duration::from_mins(10),
    };

    /// Seconds after some day, later than the backdating of certificates.
    fn at(second: i64) -> Timestamp {
        Timestamp::from_second(1_800_000_000 + second).unwrap()
    }

    fn stored(authorities: &Authorities) -> BTreeMap<String, ByteString> {
        authorities
            .data()
            .into_iter()
            .filter_map(|(key, value)| Some((key.to_owned(), value?)))
            .collect()
    }

    fn leaf(authorities: &Authorities, now: Timestamp) -> Leaf {
        Leaf::make(
            authorities.signer(now),
            &["hook.ns.svc".to_owned(), "127.0.0.1".to_owned()],
            now,
            LIFETIMES,
        )
        .unwrap()
    }

    fn trusts(bundle: &str, leaf: &Leaf, name: &'static str, now: Timestamp) -> bool {
        let mut roots = RootCertStore::empty();
        roots.add_parsable_certificates(CertificateDer::pem_slice_iter(bundle.as_bytes()).map(Result::unwrap));
        let verifier = WebPkiServerVerifier::builder_with_provider(Arc::new(roots), Arc::new(default_provider()))
            .build()
            .unwrap();
        let time = UnixTime::since_unix_epoch(Duration::from_secs(now.as_second().unsigned_abs()));
        let name = ServerName::try_from(name).unwrap();
        verifier
            .verify_server_cert(&leaf.certified.cert[0], &[], &name, &[], time)
            .is_ok()
    }

    #[test]
    fn stored_certificates_are_read_unchanged() {
        let first = Authorities::first("ca", at(0), LIFETIMES).unwrap();
        assert_eq!(Authorities::read(&stored(&first)).unwrap(), first);
        let second = first.next("ca", at(4000), LIFETIMES).unwrap();
        assert_eq!(Authorities::read(&stored(&second)).unwrap(), second);
    }

    #[test]
    fn a_secret_that_makes_no_sense_is_refused_with_the_reason() {
        let reason = |change: fn(&mut BTreeMap<String, ByteString>)| {
            let mut data = stored(&Authorities::first("ca", at(0), LIFETIMES).unwrap());
            change(&mut data);
            Authorities::read(&data).map(|_| ()).unwrap_err().to_string()
        };
        assert_eq!(reason(BTreeMap::clear), "the Secret has no ca.crt");
        assert!(
            reason(|data| drop(data.insert("ca.crt".into(), ByteString(b"x".to_vec()))))
                .starts_with("the Secret's ca.crt cannot be read")
        );
        assert!(
            reason(|data| drop(data.insert("ca.key".into(), ByteString(vec![0xff]))))
                .starts_with("the Secret's ca.key cannot be read")
        );
        let other = |data: &mut BTreeMap<String, ByteString>| {
            data.insert(
                "ca.key".into(),
                stored(&Authorities::first("ca", at(0), LIFETIMES).unwrap())["ca.key"].clone(),
            );
        };
        assert_eq!(
            reason(other),
            "the Secret's ca.crt cannot be read: it does not belong to ca.key"
        );
    }

    #[test]
    fn the_new_authority_is_trusted_before_it_signs_and_the_old_one_after() {
        let first = Authorities::first("ca", at(0), LIFETIMES).unwrap();
        let old = first.newest.clone();
        assert_eq!(first.rotation(), at(4000));
        assert_eq!(first.next_change(at(0)), None);

        let second = first.next("ca", at(4000), LIFETIMES).unwrap();
        assert_eq!(second.signer(at(4999)), &old);
        assert_eq!(second.next_change(at(4000)), Some(at(5000)));
        assert_eq!(second.signer(at(5000)), &second.newest);
        assert_eq!(second.next_change(at(5000)), Some(at(6000)));
        for (now, certificates) in [(4000, 2), (5999, 2), (6000, 1)] {
            assert_eq!(
                second.bundle(at(now)).matches("BEGIN CERTIFICATE").count(),
                certificates,
                "at {now}"
            );
        }
        assert_eq!(second.next_change(at(6000)), None);
    }

    #[test]
    fn an_authority_that_expired_unseen_is_followed_at_once() {
        let second = Authorities::first("ca", at(0), LIFETIMES)
            .unwrap()
            .next("ca", at(7000), LIFETIMES)
            .unwrap();
        assert_eq!(
            (second.previous.as_ref(), second.signer(at(7000))),
            (None, &second.newest)
        );
    }

    #[test]
    fn at_every_moment_a_bundle_long_out_of_date_trusts_the_leaf_of_now() {
        let mut authorities = Authorities::first("ca", at(0), LIFETIMES).unwrap();
        let mut current = leaf(&authorities, at(0));
        let mut bundles = Vec::new();
        for second in (0..20_000).step_by(97) {
            let now = at(second);
            if authorities.rotation() <= now {
                authorities = authorities.next("ca", now, LIFETIMES).unwrap();
            }
            if !current.is_current(authorities.signer(now), now) {
                current = leaf(&authorities, now);
            }
            bundles.push(authorities.bundle(now));
            // Nine steps: slightly less than the time in which a new authority is only in the bundle.
            for bundle in [&bundles[bundles.len().saturating_sub(10)], &bundles[bundles.len() - 1]] {
                assert!(trusts(bundle, &current, "hook.ns.svc", now), "at {second}");
                assert!(trusts(bundle, &current, "127.0.0.1", now), "at {second}");
            }
        }
        assert!(!trusts(&bundles[0], &current, "hook.ns.svc", at(20_000)));
        assert!(!trusts(
            &authorities.bundle(at(20_000)),
            &current,
            "other.ns.svc",
            at(20_000)
        ));
    }

    #[test]
    fn an_authority_from_the_future_is_known_and_a_small_difference_of_clocks_is_not_one() {
        let made = |second| Authorities::first("ca", at(second), LIFETIMES).unwrap();
        assert!(!made(0).is_from_the_future(at(0)));
        assert!(!made(7200).is_from_the_future(at(0)));
        assert!(made(7201).is_from_the_future(at(0)));
        // The next authority has time as long as the previous one signs.
        let rotated = made(0).next("ca", at(4000), LIFETIMES).unwrap();
        assert!(!rotated.is_from_the_future(at(1000)));
    }

    #[test]
    fn a_leaf_of_a_clock_that_is_ahead_is_accepted_by_those_that_are_right() {
        let authorities = Authorities::first("ca", at(0), LIFETIMES).unwrap();
        let leaf = leaf(&authorities, at(1000));
        assert!(trusts(&authorities.bundle(at(0)), &leaf, "hook.ns.svc", at(0)));
        assert_eq!(leaf.refused(at(0)), None);
    }

    #[test]
    fn a_leaf_that_is_refused_says_why() {
        let future = Authorities::first("ca", at(10_000), LIFETIMES).unwrap();
        let leaf = Leaf::make(&future.newest, &["hook.ns.svc".to_owned()], at(10_000), LIFETIMES).unwrap();
        assert!(leaf.refused(at(0)).unwrap().starts_with("it is valid only from 2027-"));
        assert!(!leaf.is_current(&future.newest, at(0)));
        assert_eq!(leaf.refused(at(10_000)), None);
        assert!(leaf.refused(at(11_000)).unwrap().starts_with("it expired at 2027-"));
    }

    #[test]
    fn a_leaf_is_renewed_at_two_thirds_and_never_outlives_its_signer() {
        let authorities = Authorities::first("ca", at(0), LIFETIMES).unwrap();
        assert_eq!(leaf(&authorities, at(0)).renewal, at(400));
        assert_eq!(leaf(&authorities, at(5700)).renewal, at(5900));
    }
}
