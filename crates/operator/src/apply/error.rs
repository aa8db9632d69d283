//! Failed writes: what they say to users, and whether a retry may help.

use kube::core::response::StatusCause;

use crate::plan::Counts;
use crate::telemetry::chain;

/// Start of the server's message if an applied object does not match its schema, such as an unknown field, or cannot be read as
/// its kind, such as an invalid quantity. The code is then 500.
const UNFIT: [&str; 2] = ["failed to create typed patch object", "failed to convert new object"];

/// Failed write.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The server rejected an object, or failed.
    #[error("cannot apply {kind} '{name}'")]
    Apply {
        /// Kind of the object, such as `Deployment`.
        kind: String,
        /// Name of the object, without the namespace.
        name: String,
        /// Whether this has failed for a minute.
        lasting: bool,
        /// Error of the request.
        source: Box<kube::Error>,
    },
    /// An object of this name has another owner. It was not changed.
    #[error("cannot apply {kind} '{name}': an object of this name exists and is not ours ({manager})")]
    NameTaken {
        /// Kind of the object, such as `Deployment`.
        kind: String,
        /// Name of the object, without the namespace.
        name: String,
        /// Owner of the existing object, such as `controlled by Deployment 'web'`.
        manager: String,
        /// Error of the request.
        source: Box<kube::Error>,
    },
    /// An object was created, changed or deleted after it was observed. Observing and planning again helps.
    #[error("cannot apply {kind} '{name}': it is not as observed any more")]
    Outdated {
        /// Kind of the object, such as `Deployment`.
        kind: String,
        /// Name of the object, without the namespace.
        name: String,
        /// Error of the request.
        source: Box<kube::Error>,
    },
    /// An object of this name exists, and a lookup of its owner failed.
    #[error("cannot look up {kind} '{name}'")]
    Lookup {
        /// Kind of the object, such as `Deployment`.
        kind: String,
        /// Name of the object, without the namespace.
        name: String,
        /// Error of the request.
        source: Box<kube::Error>,
    },
    /// An object could not be deleted.
    #[error("cannot delete {kind} '{name}'")]
    Delete {
        /// Kind of the object, such as `Deployment`.
        kind: String,
        /// Name of the object, without the namespace.
        name: String,
        /// Whether this has failed for a minute.
        lasting: bool,
        /// Error of the request.
        source: Box<kube::Error>,
    },
    /// The server rejected the status.
    #[error("cannot write the status of {name}")]
    Status {
        /// The object's name.
        name: String,
        /// Error of the request.
        source: Box<kube::Error>,
    },
    /// The finalizer could not be added or removed.
    #[error("cannot change the finalizer of {name}")]
    Finalizer {
        /// The object's name.
        name: String,
        /// Error of the request.
        source: Box<kube::Error>,
    },
}

impl Error {
    /// Error of the request.
    pub fn cause(&self) -> &kube::Error {
        match self {
            Self::Apply { source, .. }
            | Self::NameTaken { source, .. }
            | Self::Outdated { source, .. }
            | Self::Lookup { source, .. }
            | Self::Delete { source, .. }
            | Self::Status { source, .. }
            | Self::Finalizer { source, .. } => source,
        }
    }

    /// Whether the status reports it: the server rejected the write, or has failed to carry it out for a minute.
    pub fn is_refusal(&self) -> bool {
        let is_lasting = matches!(
            self,
            Self::Apply { lasting: true, .. } | Self::Delete { lasting: true, .. }
        );
        is_lasting
            || matches!(self.cause(), kube::Error::Api(status)
                if matches!(status.code, 400 | 403 | 422) || UNFIT.iter().any(|unfit| status.message.starts_with(unfit)))
    }

    /// A refusal as a message for the user, such as `Service 'm' was refused: WHY`. `None` for errors after which a retry may
    /// succeed, and for those of the status and the finalizer.
    pub fn refusal(&self) -> Option<String> {
        match self {
            Self::Apply { kind, name, .. } if self.is_refusal() => {
                Some(format!("{kind} '{name}' was refused: {}", self.message()))
            }
            Self::Delete { kind, name, .. } if self.is_refusal() => {
                Some(format!("{kind} '{name}' cannot be deleted: {}", self.message()))
            }
            _ => None,
        }
    }

    /// It was a webhook that refused. One that looks for other objects may change its mind when they are there.
    fn is_denial(&self) -> bool {
        matches!(self.cause(), kube::Error::Api(status) if status.message.contains("admission webhook"))
    }

    /// The answer to a rehearsal may be another one when the other objects of the plan are there.
    pub(super) fn may_be_for_want_of_another(&self) -> bool {
        !matches!(self, Self::NameTaken { .. }) && (self.is_denial() || !self.is_refusal())
    }

    /// Whether it is a refusal that counts for a trial.
    pub(super) fn counts(&self, counts: Counts) -> bool {
        let exceeds_quota =
            matches!(self.cause(), kube::Error::Api(status) if status.message.contains("exceeded quota: "));
        match counts {
            Counts::Quota => exceeds_quota,
            Counts::AllButQuota => !exceeds_quota && self.is_refusal() && !self.is_denial(),
        }
    }

    /// Whether another field manager owns a field of the write, or the object has changed.
    pub fn is_conflict(&self) -> bool {
        is_conflict(self.cause())
    }

    /// Cause, as a message for the user: what the server said, without the rest of its response.
    pub fn message(&self) -> String {
        chain(self.cause())
    }

    /// Category of the error, for metrics.
    pub(crate) fn category(&self) -> &'static str {
        match self.cause() {
            kube::Error::Api(status) if status.is_conflict() => "conflict",
            kube::Error::Api(status) if status.is_forbidden() => "forbidden",
            kube::Error::Api(status) if status.is_not_found() => "not_found",
            kube::Error::Api(status) if matches!(status.code, 400 | 422) => "invalid",
            kube::Error::Api(_) => "api",
            _ => "connection",
        }
    }
}

pub(super) fn is_conflict(error: &kube::Error) -> bool {
    matches!(error, kube::Error::Api(status) if status.is_conflict())
}

/// The server could have taken the object, and something that it depends on failed.
pub(super) fn is_internal(error: &kube::Error) -> bool {
    matches!(error, kube::Error::Api(status) if status.code == 500)
}

/// Another object stands under the name than the one with the uid that was sent.
pub(super) fn is_another(error: &kube::Error) -> bool {
    causes(error).any(|cause| cause.field == "metadata.uid")
}

/// A field that we do not force is held by another field manager.
pub(super) fn is_field_conflict(error: &kube::Error) -> bool {
    causes(error).any(|cause| cause.reason == "FieldManagerConflict")
}

fn causes(error: &kube::Error) -> impl Iterator<Item = &StatusCause> {
    let details = match error {
        kube::Error::Api(status) => status.details.as_ref(),
        _ => None,
    };
    details.into_iter().flat_map(|details| &details.causes)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn answer(code: u16, message: &str) -> Error {
        let status = kube::core::Status::failure(message, "").with_code(code);
        Error::Apply {
            kind: "Toy".to_owned(),
            name: "bear".to_owned(),
            lasting: false,
            source: Box::new(kube::Error::Api(Box::new(status))),
        }
    }

    #[test]
    fn an_object_that_does_not_fit_its_schema_is_refused_with_code_500() {
        let unfit =
            "failed to create typed patch object (/p; /v1, Kind=Service): .spec.wheels: field not declared in schema";
        assert!(answer(500, unfit).is_refusal());
        let unreadable = "failed to convert new object (default/a; apps/v1, Kind=Deployment) to proper version: \
            unable to convert unstructured object to apps/v1, Kind=Deployment: quantities must match the regular expression '…'";
        assert!(answer(500, unreadable).is_refusal());
        assert!(answer(422, "Invalid value").is_refusal());
        assert!(!answer(500, "etcdserver: request timed out").is_refusal());
        assert!(!answer(409, "Apply failed with 1 conflict").is_refusal());
    }

    #[test]
    fn exhausted_quota_is_judged_apart_and_webhooks_never_count() {
        let exhausted = r#"pods "a" is forbidden: exceeded quota: gpus, requested: requests.nvidia.com/gpu=1, used: requests.nvidia.com/gpu=4, limited: requests.nvidia.com/gpu=4"#;
        let unset = r#"pods "a" is forbidden: failed quota: cpu: must specify limits.cpu for: model"#;
        let denied = r#"admission webhook "w" denied the request: dry runs are not supported"#;
        for (code, message, all_but_quota, quota) in [
            (403, exhausted, false, true),
            (403, unset, true, false),
            (403, denied, false, false),
            (503, "try again", false, false),
        ] {
            let error = answer(code, message);
            assert_eq!(
                (error.counts(Counts::AllButQuota), error.counts(Counts::Quota)),
                (all_but_quota, quota),
                "{message}"
            );
        }
    }

    #[test]
    fn a_denial_comes_from_a_webhook() {
        assert!(answer(400, "admission webhook \"a.b.c\" denied the request: no ConfigMap").is_denial());
        assert!(!answer(422, "Toy \"bear\" is invalid").is_denial());
    }
}
