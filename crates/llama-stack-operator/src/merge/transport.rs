//! Protocol of a server, by the `server` section of its run.yaml.

use super::yaml::{Document, NodeId};

/// Protocol of a server.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Transport {
    /// HTTP.
    #[default]
    Plain,
    /// HTTPS.
    Tls,
    /// HTTPS, for clients with a certificate only.
    MutualTls,
}

impl Transport {
    /// The protocol that a run.yaml configures; HTTP if the text cannot be read. As llama-stack 0.7.3 (cli/stack/run.py): certificate
    /// and key turn TLS on, and an authority of clients makes it mutual.
    pub fn of(run_yaml: &str) -> Self {
        Document::parse(run_yaml)
            .ok()
            .and_then(|document| read(&document))
            .unwrap_or_default()
    }

    /// Whether clients use HTTPS.
    pub fn is_tls(self) -> bool {
        self != Self::Plain
    }

    /// Scheme of the server's URL.
    pub fn scheme(self) -> &'static str {
        if self.is_tls() { "https" } else { "http" }
    }
}

fn read(document: &Document<'_>) -> Option<Transport> {
    let server = document.get(document.root()?, "server")?;
    let is_set = |key: &str| {
        document
            .get(server, key)
            .is_some_and(|value| has_value(document, value))
    };
    if !(is_set("tls_certfile") && is_set("tls_keyfile")) {
        return None;
    }
    Some(if is_set("tls_cafile") {
        Transport::MutualTls
    } else {
        Transport::Tls
    })
}

/// Whether the server sees a value. A variable without a default must be set, or the server does not start; one with an empty
/// default, or `:+`, is taken to be unset.
fn has_value(document: &Document<'_>, value: NodeId) -> bool {
    let text = document.scalar(value).unwrap_or_default();
    let variable = text.strip_prefix("${env.").and_then(|rest| rest.strip_suffix('}'));
    let is_unset = variable.is_some_and(|variable| variable.ends_with(":=") || variable.contains(":+"));
    !(document.is_null(value) || text.is_empty() || is_unset)
}

#[cfg(test)]
mod tests {
    use super::Transport;

    #[test]
    fn certificate_and_key_turn_tls_on_and_an_authority_makes_it_mutual() {
        let pair = "tls_certfile: /tls/tls.crt, tls_keyfile: /tls/tls.key";
        for (text, expected) in [
            ("", Transport::Plain),
            ("]", Transport::Plain),
            ("version: 2\n", Transport::Plain),
            ("server: {port: 8321}\n", Transport::Plain),
            ("server: {tls_certfile: /tls/tls.crt}\n", Transport::Plain),
            ("server: {tls_certfile: '', tls_keyfile: null}\n", Transport::Plain),
            (
                "server: {tls_certfile: '${env.CERT:=}', tls_keyfile: '${env.KEY:=}'}\n",
                Transport::Plain,
            ),
            (
                "server: {tls_certfile: '${env.CERT}', tls_keyfile: '${env.KEY:=/tls/tls.key}'}\n",
                Transport::Tls,
            ),
            (
                "server:\n  tls_certfile: /tls/tls.crt  # a comment\n  tls_keyfile: \"/tls/tls.key\"\n",
                Transport::Tls,
            ),
            (&format!("server: {{{pair}}}\n"), Transport::Tls),
            (
                &format!("server: {{{pair}, tls_cafile: /tls/ca.crt}}\n"),
                Transport::MutualTls,
            ),
        ] {
            assert_eq!(Transport::of(text), expected, "{text}");
        }
    }
}
