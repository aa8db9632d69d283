//! Errors of a merge, with a remedy that needs no knowledge of this operator.

use std::{fmt, slice};

/// The init container that merges, as it appears in a pod.
pub const INIT_CONTAINER: &str = "merge-config";

/// The provider that an error is about.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Who {
    /// `providerId` of the custom resource.
    pub provider_id: String,
    /// The provider's image; none if crd-config.yaml does not say.
    pub image: Option<String>,
}

/// One error in a file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fault {
    /// Line and column, from 1; none if it is the file as a whole.
    pub at: Option<(usize, usize)>,
    /// Description of the error.
    pub reason: String,
}

/// Reason why a merge fails.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// A provider's file is missing, cannot be read, is not YAML, or has the wrong content.
    #[error("{}", Block { title: "Invalid provider metadata", who: Some(who), path, faults, resolution })]
    Provider {
        /// Provider of the file.
        who: Who,
        /// The file, as this container sees it.
        path: String,
        /// All errors in the file.
        faults: Vec<Fault>,
        /// The way out.
        resolution: String,
    },
    /// The same, for the configuration of the distribution or of the user.
    #[error("{}", Block { title: "Invalid base configuration", who: None, path, faults: slice::from_ref(fault), resolution })]
    Base {
        /// The file, as this container sees it.
        path: String,
        /// The first error in the file.
        fault: Fault,
        /// The way out.
        resolution: String,
    },
    /// FR-023, in the specification's words.
    #[error(
        "ERROR: Provider API type mismatch\n\nProvider '{}' (image: {})\ndeclares api={declared} in \
         lls-provider-spec.yaml\nbut is placed under externalProviders.{placed}\n\nInit Container: {INIT_CONTAINER}\n\n\
         Resolution: Move the provider to externalProviders.{section} section in the LLSD spec.",
        who.provider_id, image(who)
    )]
    Placement {
        /// The provider.
        who: Who,
        /// `spec.api` of the metadata.
        declared: String,
        /// The field of `externalProviders` it stands in.
        placed: String,
        /// The field of `externalProviders` it belongs in.
        section: String,
    },
    /// FR-020: two external providers with one id.
    #[error(
        "ERROR: Duplicate provider ID '{}'\n\nThese external providers declare the same providerId:\n{}\n\n\
         Init Container: {INIT_CONTAINER}\n\nResolution: Give each provider under spec.server.externalProviders a \
         providerId of its own.",
        provider_id,
        List(places)
    )]
    Duplicate {
        /// The id.
        provider_id: String,
        /// Image and section of each.
        places: Vec<String>,
    },
}

/// Everything that is wrong, not only the first.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{}", .0.iter().map(ToString::to_string).collect::<Vec<_>>().join("\n\n"))]
pub struct Errors(pub Vec<Error>);

struct Block<'a> {
    title: &'a str,
    who: Option<&'a Who>,
    path: &'a str,
    faults: &'a [Fault],
    resolution: &'a str,
}

impl fmt::Display for Block<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "ERROR: {}", self.title)?;
        if let Some(who) = self.who {
            write!(f, " of '{}'", who.provider_id)?;
        }
        f.write_str("\n\n")?;
        if let Some(who) = self.who {
            writeln!(f, "Provider: {}\nImage: {}", who.provider_id, image(who))?;
        }
        write!(f, "Init Container: {INIT_CONTAINER}\nFile: {}", self.path)?;
        let place = |fault: &Fault| fault.at.map(|(line, column)| format!("line {line}, column {column}"));
        match self.faults {
            [fault] => {
                if let Some(place) = place(fault) {
                    write!(f, ", {place}")?;
                }
                write!(f, "\nReason: {}", fault.reason)?;
            }
            faults => {
                f.write_str("\nReasons:")?;
                for fault in faults {
                    write!(f, "\n  - {}: {}", place(fault).unwrap_or_default(), fault.reason)?;
                }
            }
        }
        write!(f, "\n\nResolution: {}", self.resolution)
    }
}

struct List<'a>(&'a [String]);

impl fmt::Display for List<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let lines: Vec<String> = self.0.iter().map(|item| format!("  - {item}")).collect();
        f.write_str(&lines.join("\n"))
    }
}

fn image(who: &Who) -> &str {
    who.image.as_deref().unwrap_or("(not in crd-config.yaml)")
}
