//! State shared by all request handlers.

use tokio_util::sync::CancellationToken;

use crate::sessions::Sessions;
use crate::site::Sites;

/// State shared by all request handlers.
pub struct App {
    /// Open sessions.
    pub sessions: Sessions,
    /// Addresses of the console.
    pub sites: Sites,
    /// Name of the session cookie.
    pub cookie: String,
    /// Cancelled when the server stops.
    pub end: CancellationToken,
}
