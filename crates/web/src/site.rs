//! Addresses of the console: the hosts at which browsers may reach it.

use std::fmt;
use std::net::{IpAddr, SocketAddr};
use std::str::FromStr;

use axum::http::Uri;

/// An address by which browsers reach the console.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Site {
    https: bool,
    /// Name, and port if it is not the scheme's own.
    host: String,
}

/// Reason why an address is not valid for a console.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NoSite {
    /// The address has another form.
    #[error("use the form https://console.example.com, with an optional port and without a path")]
    Form,
    /// Tokens and cookies would be read on the way.
    #[error("use https://, because tokens and cookies must not be sent unencrypted (localhost is exempt)")]
    Clear,
}

impl FromStr for Site {
    type Err = NoSite;

    fn from_str(text: &str) -> Result<Self, NoSite> {
        let uri: Uri = text.parse().map_err(|_| NoSite::Form)?;
        let name = uri.host().filter(|name| !name.is_empty()).ok_or(NoSite::Form)?;
        let https = match uri.scheme_str() {
            Some("https") => true,
            Some("http") => false,
            _ => return Err(NoSite::Form),
        };
        let bare =
            uri.path() == "/" && uri.query().is_none() && uri.authority().is_some_and(|a| !a.as_str().contains('@'));
        if !bare {
            return Err(NoSite::Form);
        }
        if !https && !is_loopback(name) {
            return Err(NoSite::Clear);
        }
        let port = uri.port_u16().filter(|port| *port != if https { 443 } else { 80 });
        let name = name.to_ascii_lowercase();
        let host = port.map_or_else(|| name.clone(), |port| format!("{name}:{port}"));
        Ok(Self { https, host })
    }
}

impl fmt::Display for Site {
    /// Formats the address as browsers do in Origin.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "http{}://{}", if self.https { "s" } else { "" }, self.host)
    }
}

impl Site {
    /// Whether browsers may be asked to use TLS only for its host. On localhost, other programs have ports, too.
    pub fn is_tls_only(&self) -> bool {
        let name = self.host.rsplit_once(':').map_or(&*self.host, |(name, _)| name);
        self.https && !is_loopback(name)
    }
}

/// Whether a host is the loopback address.
pub(crate) fn is_loopback(host: &str) -> bool {
    let bare = host.trim_matches(['[', ']']);
    bare.eq_ignore_ascii_case("localhost") || bare.parse::<IpAddr>().is_ok_and(|address| address.is_loopback())
}

/// Accepted addresses of the console. Any other Host is rejected, because it may come from DNS rebinding.
#[derive(Clone, Debug)]
pub struct Sites(Vec<Site>);

impl Sites {
    /// Addresses of a console on a loopback address.
    pub fn loopback(address: SocketAddr) -> Self {
        let port = address.port();
        let hosts = ["localhost", "127.0.0.1", "[::1]"].map(|host| format!("{host}:{port}"));
        Self(hosts.map(|host| Site { https: false, host }).into())
    }

    /// The given addresses.
    pub fn given(sites: Vec<Site>) -> Self {
        Self(sites)
    }

    /// Whether cookies are sent over https only.
    pub fn secure(&self) -> bool {
        self.0.iter().any(|site| site.https)
    }

    /// The site of a Host header.
    pub fn find(&self, host: &str) -> Option<&Site> {
        self.0.iter().find(|site| site.host.eq_ignore_ascii_case(host))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_a_loopback_address_are_known_and_no_others() {
        let sites = Sites::loopback("127.0.0.1:8080".parse().unwrap());
        let know = |host: &str| sites.find(host).is_some();
        assert!(know("localhost:8080") && know("127.0.0.1:8080") && know("LOCALHOST:8080"));
        assert!(!know("evil.example:8080") && !know("localhost:81") && !know("localhost"));
    }

    #[test]
    fn an_address_is_read_as_browsers_write_it_and_only_this_machine_goes_without_tls() {
        let read = |text: &str| text.parse::<Site>().map(|site| site.to_string());
        for (text, origin) in [
            ("https://Console.Example.com/", "https://console.example.com"),
            ("https://console.example.com:443", "https://console.example.com"),
            ("https://console.example.com:8443", "https://console.example.com:8443"),
            ("http://localhost:8080", "http://localhost:8080"),
            ("http://[::1]:8080", "http://[::1]:8080"),
        ] {
            assert_eq!(read(text).as_deref(), Ok(origin));
        }
        assert_eq!(read("http://console.example.com"), Err(NoSite::Clear));
        for text in [
            "",
            "console.example.com",
            "ftp://a",
            "https://a/b",
            "https://a?b",
            "https://u@a",
            "https://",
        ] {
            assert_eq!(read(text), Err(NoSite::Form), "{text}");
        }
    }
}
