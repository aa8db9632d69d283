//! Files of `deploy`.

pub(crate) mod argocd;
pub(crate) mod chart;
mod engines;
pub(crate) mod kustomize;
pub(crate) mod monitoring;
