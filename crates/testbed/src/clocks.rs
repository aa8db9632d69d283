//! Wrong clocks, by Debian's libfaketime: the time of day of a process is shifted, its monotonic clock is not.

use anyhow::Result;

use crate::packages;

/// Whether clocks can be shifted: installs libfaketime if it is missing. If that is not possible, `what` is skipped and
/// reported. Blocking.
pub fn can_shift(what: &str) -> Result<bool> {
    packages::ensure_or_skip(&packages::FAKETIME, what)
}

/// Variables for a process whose clock is ahead by this many hours, or behind.
pub fn shifted(hours: i8) -> [(&'static str, String); 3] {
    [
        ("LD_PRELOAD", packages::FAKETIME_LIBRARY.to_owned()),
        ("FAKETIME", format!("{hours:+}h")),
        ("FAKETIME_DONT_FAKE_MONOTONIC", "1".to_owned()),
    ]
}
