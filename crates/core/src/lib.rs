//! The ModelDeployment core controller: admission, selection, status. Knows no provider.

pub mod rules;
