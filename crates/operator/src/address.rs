//! URLs that a program calls because a user asks for it: none may lead to the credentials of the node or the cloud.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// Reason for rejecting a URL.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Address {
    /// It is not an HTTP URL.
    NoUrl,
    /// It points to a link-local address, at which clouds serve credentials.
    Hidden,
}

/// Checks that a program may call a URL for a user. Host names are not resolved; network policies restrict their addresses.
///
/// # Errors
/// The reason for rejecting the URL.
pub fn check_url(url: &str) -> Result<(), Address> {
    let rest = url
        .strip_prefix("http://")
        .or_else(|| url.strip_prefix("https://"))
        .ok_or(Address::NoUrl)?;
    if url.chars().any(|c| c.is_whitespace() || c.is_control()) {
        return Err(Address::NoUrl);
    }
    let authority = rest.split(['/', '?', '#']).next().unwrap_or_default();
    if let Some(inner) = authority.strip_prefix('[') {
        let (address, port) = inner.split_once(']').ok_or(Address::NoUrl)?;
        let address: Ipv6Addr = address.parse().map_err(|_| Address::NoUrl)?;
        check_port(port.strip_prefix(':').or_else(|| Some(port).filter(|p| p.is_empty())))?;
        return check_v6(address);
    }
    let (host, port) = authority.split_once(':').map_or((authority, ""), |(h, p)| (h, p));
    check_port(Some(port))?;
    let host = host.to_ascii_lowercase();
    let host = host.trim_end_matches('.');
    let plain = |c: char| c.is_ascii_alphanumeric() || "-_.".contains(c);
    if host.is_empty() || !host.chars().all(plain) || host.starts_with(['-', '.']) {
        return Err(Address::NoUrl);
    }
    if [
        "metadata",
        "metadata.google.internal",
        "instance-data",
        "instance-data.ec2.internal",
    ]
    .contains(&host)
    {
        return Err(Address::Hidden);
    }
    // Libraries accept many notations of IPv4 addresses. Only the usual one is allowed.
    let numeric = host.split('.').next_back().is_some_and(|last| {
        last.chars().all(|c| c.is_ascii_digit())
            || last
                .strip_prefix("0x")
                .is_some_and(|hex| hex.chars().all(|c| c.is_ascii_hexdigit()))
    });
    if numeric {
        let address: Ipv4Addr = host.parse().map_err(|_| Address::Hidden)?;
        return check_v4(address);
    }
    Ok(())
}

/// Whether a URL leads to the pod of its caller.
pub fn is_loopback(url: &str) -> bool {
    let rest = url.split_once("://").map_or(url, |(_, rest)| rest);
    let authority = rest.split(['/', '?', '#']).next().unwrap_or_default();
    if let Some((address, _)) = authority.strip_prefix('[').and_then(|inner| inner.split_once(']')) {
        let is_local = |address: Ipv6Addr| {
            address.is_loopback() || address.to_ipv4_mapped().is_some_and(|mapped| mapped.is_loopback())
        };
        return address.parse().is_ok_and(is_local);
    }
    let host = authority.split(':').next().unwrap_or_default().to_ascii_lowercase();
    let host = host.trim_end_matches('.');
    host == "localhost" || host.ends_with(".localhost") || host.parse().is_ok_and(|ip: Ipv4Addr| ip.is_loopback())
}

fn check_port(port: Option<&str>) -> Result<(), Address> {
    match port {
        Some("") => Ok(()),
        Some(port) => port.parse::<u16>().map(drop).map_err(|_| Address::NoUrl),
        None => Err(Address::NoUrl),
    }
}

/// Checks the address that a host name was resolved to, for a caller that must not reach itself.
///
/// # Errors
/// The address is link-local, loopback, multicast or unspecified.
pub fn check_resolved(address: IpAddr) -> Result<(), Address> {
    let mapped = match address {
        IpAddr::V6(v6) => v6.to_ipv4_mapped().map_or(address, IpAddr::V4),
        IpAddr::V4(_) => address,
    };
    if mapped.is_loopback() || mapped.is_multicast() {
        return Err(Address::Hidden);
    }
    match mapped {
        IpAddr::V4(v4) => check_v4(v4),
        IpAddr::V6(v6) => check_v6(v6),
    }
}

fn check_v4(address: Ipv4Addr) -> Result<(), Address> {
    if address.is_link_local() || address.is_unspecified() || address.is_broadcast() {
        return Err(Address::Hidden);
    }
    Ok(())
}

fn check_v6(address: Ipv6Addr) -> Result<(), Address> {
    if let Some(mapped) = address.to_ipv4_mapped() {
        return check_v4(mapped);
    }
    let first = address.segments()[0];
    // fe80::/10, and the address of the AWS metadata service.
    if first & 0xffc0 == 0xfe80
        || address == Ipv6Addr::new(0xfd00, 0xec2, 0, 0, 0, 0, 0, 0x254)
        || address.is_unspecified()
    {
        return Err(Address::Hidden);
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn loopback_urls_are_recognized_in_every_notation() {
        for local in [
            "http://127.0.0.1:8000/v1",
            "http://127.9.9.9",
            "https://LOCALHOST",
            "http://localhost.:80",
            "http://model.localhost/x",
            "http://[::1]:8000",
            "http://[::ffff:127.0.0.1]",
        ] {
            assert!(is_loopback(local), "{local}");
        }
        for other in [
            "http://vllm:8000",
            "http://127.example:80",
            "http://[fd00::1]",
            "http://10.0.0.1",
            "http://localhost.team",
        ] {
            assert!(!is_loopback(other), "{other}");
        }
    }

    #[test]
    fn urls_that_lead_to_credentials_are_refused() {
        for hidden in [
            "http://169.254.169.254/latest/meta-data",
            "http://169.254.169.254:80",
            "http://METADATA.google.internal/",
            "http://2852039166/",
            "http://0xA9FEA9FE/",
            "http://0251.0376.0251.0376/",
            "http://169.16689662/",
            "http://[fe80::1]/",
            "http://[::ffff:169.254.169.254]/",
            "http://[fd00:ec2::254]/",
            "http://0.0.0.0:80/",
        ] {
            assert_eq!(check_url(hidden), Err(Address::Hidden), "{hidden}");
        }
    }

    #[test]
    fn other_urls_than_http_are_rejected() {
        for bad in [
            "ftp://x/",
            "file:///etc/passwd",
            "http://",
            "http://user:pw@host/",
            "phi-3:8080",
            "http://a b/",
            "http://x:99999",
        ] {
            assert_eq!(check_url(bad), Err(Address::NoUrl), "{bad}");
        }
    }

    #[test]
    fn ordinary_urls_are_accepted() {
        for good in [
            "http://phi-3-inference:8080",
            "https://llm.models.svc.cluster.local/v1/chat/completions?x=1",
            "http://127.0.0.1:5000/",
            "http://10.0.0.1",
            "http://[::1]:8000/v1",
            "http://metadata.team.svc:80/",
        ] {
            assert_eq!(check_url(good), Ok(()), "{good}");
        }
    }

    #[test]
    fn resolved_addresses_of_the_caller_itself_are_refused() {
        for hidden in [
            "127.0.0.1",
            "::1",
            "::ffff:127.0.0.1",
            "169.254.169.254",
            "fe80::1",
            "224.0.0.1",
            "0.0.0.0",
            "::",
        ] {
            assert_eq!(
                check_resolved(hidden.parse().unwrap()),
                Err(Address::Hidden),
                "{hidden}"
            );
        }
        for good in ["10.0.0.1", "192.0.2.7", "2001:db8::1"] {
            assert_eq!(check_resolved(good.parse().unwrap()), Ok(()), "{good}");
        }
    }
}
