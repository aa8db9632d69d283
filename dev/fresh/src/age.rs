//! Differences between versions.

use std::cmp::Ordering;
use std::fmt;

/// Difference to a newer version.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Age {
    /// The version is as new.
    Current,
    /// Releases with the same major and minor version.
    Patches(u64),
    Minors(u64),
    Majors(u64),
}

impl Age {
    /// Age of a version when another one exists.
    pub(crate) fn of(version: &str, other: &str) -> Self {
        let (old, new) = (numbers(version), numbers(other));
        if new.cmp(&old) != Ordering::Greater {
            return Self::Current;
        }
        let ages = [Self::Majors, Self::Minors, Self::Patches];
        let differences = new.iter().zip(&old).map(|(new, old)| new.saturating_sub(*old));
        let first = differences.zip(ages).find(|(difference, _)| *difference > 0);
        first.map_or(Self::Current, |(difference, age)| age(difference))
    }

    /// Whether it is more than this number of minor releases.
    pub(crate) fn exceeds(self, minors: u64) -> bool {
        match self {
            Self::Current | Self::Patches(_) => false,
            Self::Minors(count) => count > minors,
            Self::Majors(_) => true,
        }
    }
}

impl fmt::Display for Age {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (count, kind) = match self {
            Self::Current => return f.write_str("current"),
            Self::Patches(count) => (count, "patch release"),
            Self::Minors(count) => (count, "minor release"),
            Self::Majors(count) => (count, "major release"),
        };
        write!(f, "{count} {kind}{}", if *count == 1 { "" } else { "s" })
    }
}

/// Major, minor and patch of a version such as `v1.2.3-rc.1`.
fn numbers(version: &str) -> [u64; 3] {
    let mut parts = version.trim_start_matches('v').split(['.', '-', '+']);
    [(); 3].map(|()| parts.next().and_then(|part| part.parse().ok()).unwrap_or_default())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ages_count_the_first_number_that_differs() {
        assert_eq!(Age::of("v1.36.3", "v1.37.2"), Age::Minors(1));
        assert_eq!(Age::of("0.5.18", "0.5.23"), Age::Patches(5));
        assert_eq!(Age::of("1.9.9", "3.0.0"), Age::Majors(2));
        assert_eq!(Age::of("1.5.0", "1.4.9"), Age::Current);
        assert_eq!(Age::of("2.0", "2.0.0"), Age::Current);
        assert_eq!(Age::Minors(1).to_string(), "1 minor release");
    }

    #[test]
    fn patches_never_exceed_a_limit_and_majors_always() {
        assert!(!Age::Patches(100).exceeds(0));
        assert!(Age::Majors(1).exceeds(3));
        assert!(!Age::Minors(3).exceeds(3));
        assert!(Age::Minors(4).exceeds(3));
    }
}
