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
        /// Requested URL.
        place: String,
        /// Cause.
        why: String,
    },
    /// Unexpected response.
    #[error("unexpected response from the issuer at {place}: {why}. Check --oidc-issuer")]
    Malformed {
        /// Requested URL.
        place: String,
        /// Problem.
        why: String,
    },
    /// The issuer rejected the user or this console.
    #[error("the issuer rejects the request: {0}")]
    Refused(String),
    /// The session at the issuer has ended.
    #[error("the issuer rejects the request: {0}")]
    Ended(String),
    /// The way back does not belong to a way there.
    #[error(
        "this sign-in was not started in this browser, is older than 10 minutes, or was already used: sign in again"
    )]
    NoFlow,
    /// Invalid ID token.
    #[error("the ID token of the issuer is invalid: {0}")]
    Token(String),
    /// The operating system provides no random bytes.
    #[error("cannot generate random bytes for a sign-in: {0}")]
    Random(#[from] getrandom::Error),
}
