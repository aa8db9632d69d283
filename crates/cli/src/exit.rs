//! Exit codes other than 0 and 1; `docs/how-to/command.md` lists them.

/// Exit code of `diff --exit-code` if anything would change.
pub const DIFFERS: u8 = 3;

/// Exit code of `deploy --check-fit` if the pods do not fit.
pub const DOES_NOT_FIT: u8 = 3;

/// Exit code of `deploy --check-fit` if it is not known whether the pods fit.
pub const FIT_UNKNOWN: u8 = 5;

/// Exit code after a timeout.
pub const NOT_IN_TIME: u8 = 4;

/// Exit code of a wrong command line, the same as clap's.
pub const WRONG_USAGE: u8 = 2;
