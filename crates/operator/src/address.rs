//! URLs that a program calls because a user asks for it: none may lead to the credentials of the node or the cloud.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// Addresses at which clouds serve credentials or settings of a machine. Link-local addresses are refused without a list.
const OF_CLOUDS: [IpAddr; 6] = [
    // Azure: https://learn.microsoft.com/en-us/azure/virtual-network/what-is-ip-address-168-63-129-16
    IpAddr::V4(Ipv4Addr::new(168, 63, 129, 16)),
    // Alibaba Cloud: https://www.alibabacloud.com/help/en/ecs/user-guide/view-instance-metadata
    IpAddr::V4(Ipv4Addr::new(100, 100, 100, 200)),
    // Oracle Cloud: https://docs.oracle.com/en/cloud/iaas/compute-iaas-cloud/stcsg/retrieving-instance-metadata.html
    IpAddr::V4(Ipv4Addr::new(192, 0, 0, 192)),
    // AWS, instances: https://docs.aws.amazon.com/AWSEC2/latest/UserGuide/instancedata-data-retrieval.html
    IpAddr::V6(Ipv6Addr::new(0xfd00, 0xec2, 0, 0, 0, 0, 0, 0x254)),
    // AWS, pods: https://docs.aws.amazon.com/eks/latest/userguide/pod-id-agent-config-ipv6.html
    IpAddr::V6(Ipv6Addr::new(0xfd00, 0xec2, 0, 0, 0, 0, 0, 0x23)),
    // Google Cloud: https://cloud.google.com/compute/docs/metadata/querying-metadata
    IpAddr::V6(Ipv6Addr::new(0xfd20, 0xce, 0, 0, 0, 0, 0, 0x254)),
];

/// Reason for rejecting a URL.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Address {
    /// It is not an HTTP URL.
    NoUrl,
    /// It points to an address at which clouds serve credentials, such as a link-local one.
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
        return check(address.into());
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
        return check(address.into());
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
    let meant = meant(address);
    if meant.is_loopback() || meant.is_multicast() {
        return Err(Address::Hidden);
    }
    check(meant)
}

fn check(address: IpAddr) -> Result<(), Address> {
    let meant = meant(address);
    let is_local = match meant {
        IpAddr::V4(v4) => v4.is_link_local() || v4.is_unspecified() || v4.is_broadcast(),
        IpAddr::V6(v6) => v6.is_unicast_link_local() || v6.is_unspecified(),
    };
    if is_local || OF_CLOUDS.contains(&meant) {
        return Err(Address::Hidden);
    }
    Ok(())
}

/// The address that is reached: translators and tunnels take an IPv4 address from an IPv6 address.
fn meant(address: IpAddr) -> IpAddr {
    let IpAddr::V6(v6) = address else { return address };
    let [.., a, b] = v6.segments();
    let of = |high: u16, low: u16| {
        let ([a, b], [c, d]) = (high.to_be_bytes(), low.to_be_bytes());
        IpAddr::V4(Ipv4Addr::new(a, b, c, d))
    };
    match v6.segments() {
        _ if v6.is_loopback() || v6.is_unspecified() => address,
        // IPv4-mapped and IPv4-compatible: RFC 4291, 2.5.5.
        [0, 0, 0, 0, 0, 0 | 0xffff, ..]
        // NAT64: RFC 6052, 2.1, and RFC 8215 for the prefixes of a network.
        | [0x64, 0xff9b, 0, 0, 0, 0, ..]
        | [0x64, 0xff9b, 1, ..] => of(a, b),
        // 6to4: RFC 3056, 2.
        [0x2002, high, low, ..] => of(high, low),
        _ => address,
    }
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
            "http://[fd00:ec2::23]/v1/credentials",
            "http://[fd20:ce::254]/",
            "http://168.63.129.16/machine?comp=goalstate",
            "http://100.100.100.200/latest/meta-data",
            "http://192.0.0.192/latest",
            "http://[::ffff:168.63.129.16]/",
            "http://[::169.254.169.254]/",
            "http://[64:ff9b::169.254.169.254]/",
            "http://[64:ff9b::6464:64c8]/",
            "http://[64:ff9b:1::a9fe:a9fe]/",
            "http://[2002:a9fe:a9fe::1]/",
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
            "http://[64:ff9b::8.8.8.8]/",
            "http://[2002:808:808::1]/",
            "http://168.63.129.17/",
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
            "64:ff9b::127.0.0.1",
            "2002:7f00:1::",
            "168.63.129.16",
            "fd00:ec2::23",
            "224.0.0.1",
            "ff02::1",
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
