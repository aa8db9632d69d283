//! Permissions of a user, by SelfSubjectAccessReview.

use std::fmt;

use k8s_openapi::api::authorization::v1::{ResourceAttributes, SelfSubjectAccessReview, SelfSubjectAccessReviewSpec};
use kube::api::PostParams;
use kube::{Api, Client};

/// A permission, in the terms of `kubectl auth can-i`, ordered by resource.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Right {
    /// The API group; empty for the core's.
    pub group: String,
    /// The resource, in the plural.
    pub plural: String,
    /// Namespace; absent for all namespaces and for cluster-scoped kinds.
    pub namespace: Option<String>,
    /// Verb, such as `create`.
    pub verb: String,
}

impl fmt::Display for Right {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.verb, self.plural)?;
        if !self.group.is_empty() {
            write!(f, ".{}", self.group)?;
        }
        match &self.namespace {
            Some(namespace) => write!(f, " in namespace {namespace}"),
            None => Ok(()),
        }
    }
}

/// Whether the user of `client` has a permission, by a SelfSubjectAccessReview.
///
/// # Errors
/// The API server cannot be reached, or rejects the review.
pub async fn may(client: &Client, right: &Right) -> Result<bool, kube::Error> {
    let review = SelfSubjectAccessReview {
        spec: SelfSubjectAccessReviewSpec {
            resource_attributes: Some(ResourceAttributes {
                verb: Some(right.verb.clone()),
                group: Some(right.group.clone()),
                resource: Some(right.plural.clone()),
                namespace: right.namespace.clone(),
                ..ResourceAttributes::default()
            }),
            ..SelfSubjectAccessReviewSpec::default()
        },
        ..SelfSubjectAccessReview::default()
    };
    let answer = Api::all(client.clone()).create(&PostParams::default(), &review).await?;
    Ok(answer.status.is_some_and(|status| status.allowed))
}
