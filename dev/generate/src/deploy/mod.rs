//! Files of `deploy`.

pub(crate) mod argocd;
pub(crate) mod chart;
pub(crate) mod kustomize;
pub(crate) mod rules;
