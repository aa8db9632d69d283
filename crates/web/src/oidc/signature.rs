//! Signatures of ID tokens, checked by ring: the library that reads the tokens comes with other providers or with none.

use jsonwebtoken::crypto::{CryptoProvider, JwtVerifier, KeyUtils};
use jsonwebtoken::errors::{ErrorKind, Result, new_error};
use jsonwebtoken::signature::{Error, Verifier};
use jsonwebtoken::{Algorithm, DecodingKey, DecodingKeyKind};
use ring::signature::{
    self as checks, RsaParameters, RsaPublicKeyComponents, UnparsedPublicKey, VerificationAlgorithm,
};

static RING: CryptoProvider = CryptoProvider {
    signer_factory: |_, _| Err(new_error(ErrorKind::UnsupportedAlgorithm)),
    verifier_factory: |algorithm, key| {
        checked_by(*algorithm)?;
        let (algorithm, key) = (*algorithm, key.clone());
        Ok(Box::new(Checker { algorithm, key }))
    },
    key_utils: KeyUtils::new_unimplemented(),
};

/// Makes ring the provider of the process, as for TLS.
pub(super) fn install() {
    // Already installed is as good as installed now.
    let _ = RING.install_default();
}

enum By {
    Rsa(&'static RsaParameters),
    Other(&'static dyn VerificationAlgorithm),
}

/// Accepts only algorithms with public keys: with a shared secret, each verifier could create tokens.
fn checked_by(algorithm: Algorithm) -> Result<By> {
    Ok(match algorithm {
        Algorithm::RS256 => By::Rsa(&checks::RSA_PKCS1_2048_8192_SHA256),
        Algorithm::RS384 => By::Rsa(&checks::RSA_PKCS1_2048_8192_SHA384),
        Algorithm::RS512 => By::Rsa(&checks::RSA_PKCS1_2048_8192_SHA512),
        Algorithm::PS256 => By::Rsa(&checks::RSA_PSS_2048_8192_SHA256),
        Algorithm::PS384 => By::Rsa(&checks::RSA_PSS_2048_8192_SHA384),
        Algorithm::PS512 => By::Rsa(&checks::RSA_PSS_2048_8192_SHA512),
        Algorithm::ES256 => By::Other(&checks::ECDSA_P256_SHA256_FIXED),
        Algorithm::ES384 => By::Other(&checks::ECDSA_P384_SHA384_FIXED),
        Algorithm::EdDSA => By::Other(&checks::ED25519),
        _ => return Err(new_error(ErrorKind::UnsupportedAlgorithm)),
    })
}

struct Checker {
    algorithm: Algorithm,
    key: DecodingKey,
}

impl Verifier<Vec<u8>> for Checker {
    fn verify(&self, message: &[u8], signature: &Vec<u8>) -> std::result::Result<(), Error> {
        let by = checked_by(self.algorithm).map_err(Error::from_source)?;
        let outcome = match (by, self.key.kind()) {
            (By::Rsa(by), DecodingKeyKind::RsaModulusExponent { n, e }) => {
                RsaPublicKeyComponents { n, e }.verify(by, message, signature)
            }
            (By::Other(by), DecodingKeyKind::SecretOrDer(key)) => {
                UnparsedPublicKey::new(by, key).verify(message, signature)
            }
            _ => return Err(Error::new()),
        };
        outcome.map_err(|_| Error::new())
    }
}

impl JwtVerifier for Checker {
    fn algorithm(&self) -> Algorithm {
        self.algorithm
    }
}
