//! Pending sign-ins. The browser keeps them in an encrypted cookie, so unauthenticated users cannot fill the server's memory.

use std::collections::VecDeque;
use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use parking_lot::Mutex;
use ring::aead::{Aad, CHACHA20_POLY1305, LessSafeKey, NONCE_LEN, Nonce, UnboundKey};
use runway_operator::clock;
use serde::{Deserialize, Serialize};

use super::error::Error;
use crate::crypto::random;

/// Longest time from the start of a sign-in to its callback.
pub const FLOW_TIME: Duration = Duration::from_mins(10);
/// Ends of sign-ins that are remembered, so that none is tried twice; the issuer takes a code only once anyway.
const REMEMBERED: usize = 4096;

/// A sign-in under way.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Flow {
    /// State that the issuer returns.
    pub(super) state: String,
    /// Nonce that the ID token must contain.
    pub(super) nonce: String,
    /// PKCE verifier.
    pub(super) verifier: String,
    /// Redirect URI.
    pub(super) redirect: String,
}

/// A sign-in and its end, in seconds since 1970.
#[derive(Serialize, Deserialize)]
struct Sealed {
    flow: Flow,
    until: i64,
}

/// Seals sign-ins with a key of this process.
pub(super) struct Flows {
    key: LessSafeKey,
    /// The states of those that were ended, the oldest first.
    ended: Mutex<VecDeque<String>>,
}

impl Flows {
    /// A new key.
    pub(super) fn new() -> Result<Self, Error> {
        let key = UnboundKey::new(&CHACHA20_POLY1305, &random::<32>()?);
        let key = key.map_err(|_| Error::Setup("cannot create a key for sign-ins".to_owned()))?;
        Ok(Self {
            key: LessSafeKey::new(key),
            ended: Mutex::default(),
        })
    }

    /// For the cookie of the browser.
    pub(super) fn seal(&self, flow: Flow) -> Result<String, Error> {
        let unsealed = |_| Error::Setup("cannot encrypt the state of a sign-in".to_owned());
        let sealed = Sealed {
            flow,
            until: clock::now().as_second() + FLOW_TIME.as_secs().cast_signed(),
        };
        let mut bytes = serde_json::to_vec(&sealed).map_err(|error| Error::Setup(error.to_string()))?;
        let nonce = random::<NONCE_LEN>()?;
        let unique = Nonce::assume_unique_for_key(nonce);
        self.key
            .seal_in_place_append_tag(unique, Aad::empty(), &mut bytes)
            .map_err(unsealed)?;
        Ok(URL_SAFE_NO_PAD.encode([&nonce[..], &bytes].concat()))
    }

    /// The sign-in of a cookie, if it was sealed here and is not too old.
    pub(super) fn open(&self, cookie: &str) -> Option<Flow> {
        let mut bytes = URL_SAFE_NO_PAD.decode(cookie).ok()?;
        let (nonce, text) = bytes.split_at_mut_checked(NONCE_LEN)?;
        let nonce = Nonce::try_assume_unique_for_key(nonce).ok()?;
        let text = self.key.open_in_place(nonce, Aad::empty(), text).ok()?;
        let sealed: Sealed = serde_json::from_slice(text).ok()?;
        (clock::now().as_second() < sealed.until).then_some(sealed.flow)
    }

    /// Ends a sign-in. `false` if it was ended before.
    pub(super) fn end(&self, flow: &Flow) -> bool {
        let mut ended = self.ended.lock();
        if ended.contains(&flow.state) {
            return false;
        }
        if ended.len() == REMEMBERED {
            ended.pop_front();
        }
        ended.push_back(flow.state.clone());
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn flow(state: &str) -> Flow {
        Flow {
            state: state.to_owned(),
            nonce: "nonce".to_owned(),
            verifier: "verifier".to_owned(),
            redirect: "https://console.test/login/callback".to_owned(),
        }
    }

    #[test]
    fn a_sign_in_is_opened_by_the_process_that_sealed_it_and_by_no_other() {
        let (flows, others) = (Flows::new().unwrap(), Flows::new().unwrap());
        let cookie = flows.seal(flow("a")).unwrap();
        assert!(cookie.len() < 1024);
        assert_eq!(flows.open(&cookie), Some(flow("a")));
        assert_eq!(others.open(&cookie), None);
        let mut bent = cookie.clone().into_bytes();
        bent[30] ^= 1;
        for bad in ["", "0", "\u{e9}", &cookie[1..], &String::from_utf8(bent).unwrap()] {
            assert_eq!(flows.open(bad), None, "{bad}");
        }
        assert_ne!(cookie, flows.seal(flow("a")).unwrap());
    }

    #[test]
    fn sign_ins_of_strangers_end_no_sign_in_under_way() {
        let flows = Flows::new().unwrap();
        let cookie = flows.seal(flow("mine")).unwrap();
        for stranger in 0..10_000 {
            flows.seal(flow(&stranger.to_string())).unwrap();
        }
        assert_eq!(flows.open(&cookie), Some(flow("mine")));
        assert!(flows.ended.lock().is_empty());
    }

    #[test]
    fn a_sign_in_is_ended_once_and_few_ends_are_remembered() {
        let flows = Flows::new().unwrap();
        assert!(flows.end(&flow("mine")));
        assert!(!flows.end(&flow("mine")));
        for stranger in 0..10_000 {
            assert!(flows.end(&flow(&stranger.to_string())));
        }
        assert_eq!(flows.ended.lock().len(), REMEMBERED);
    }
}
