//! Errors of sign-in at an issuer.

/// Failure of a sign-in or of the issuer's settings.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A setting is wrong.
    #[error("{0}")]
    Setup(String),
    /// The issuer does not answer.
    #[error(
        "the issuer does not respond at {place}: {why}. Try again; if the error persists, contact the administrator of this console"
    )]
    Away {
        /// What was asked.
        place: String,
        /// Why not.
        why: String,
    },
    /// It answers what it should not.
    #[error("unexpected response from the issuer at {place}: {why}. Check --oidc-issuer")]
    Malformed {
        /// What was asked.
        place: String,
        /// What is wrong.
        why: String,
    },
    /// It did not let the user in, or not to this console.
    #[error("the issuer rejects the request: {0}")]
    Refused(String),
    /// It no longer vouches for the user: its own session is over, or was ended.
    #[error("the issuer rejects the request: {0}")]
    Ended(String),
    /// The way back does not belong to a way there.
    #[error(
        "this sign-in was not started in this browser, is older than 10 minutes, or was already used: sign in again"
    )]
    NoFlow,
    /// Its token is not to be believed.
    #[error("the ID token of the issuer is invalid: {0}")]
    Token(String),
    /// There is no randomness.
    #[error("cannot generate random bytes for a sign-in: {0}")]
    Random(#[from] getrandom::Error),
}
