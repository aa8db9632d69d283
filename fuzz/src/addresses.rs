//! Any text as a URL that a user names: if it is accepted, no library reads an address of credentials in it.

use std::net::IpAddr;

use http::Uri;
use runway_operator::address::{check_url, is_loopback};

pub fn run(data: &[u8]) {
    let Some(url) = crate::text(data) else { return };
    let _ = is_loopback(url);
    if check_url(url).is_err() {
        return;
    }
    assert!(url.starts_with("http://") || url.starts_with("https://"), "{url}");
    let Ok(uri) = url.parse::<Uri>() else { return };
    let host = uri.host().unwrap_or_default();
    let authority = uri.authority().map_or("", |authority| authority.as_str());
    assert!(!authority.contains('@'), "{url} carries credentials");
    let bare = host.trim_matches(['[', ']']);
    match bare.parse() {
        Ok(IpAddr::V4(address)) => {
            assert!(!address.is_link_local() && !address.is_unspecified(), "{url}");
        }
        Ok(IpAddr::V6(address)) => {
            let mapped = address.to_ipv4_mapped();
            assert!(!mapped.is_some_and(|address| address.is_link_local()), "{url}");
            assert!(
                address.segments()[0] & 0xffc0 != 0xfe80 && !address.is_unspecified(),
                "{url}"
            );
        }
        Err(_) => {
            let name = host.trim_end_matches('.').to_ascii_lowercase();
            assert!(name != "metadata" && name != "metadata.google.internal", "{url}");
        }
    }
}
