//! Roles of components.

/// Role of a component.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Role {
    Frontend,
    Worker,
    Prefill,
    Decode,
}
