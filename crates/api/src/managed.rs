//! Accessors that all kinds of objects by users have.

/// Accessors of a kind: its pause annotation, its finalizer if it has one, deletion and conditions.
macro_rules! managed {
    ($kind:ident, paused: $annotation:expr $(, finalizer: $finalizer:expr)?) => {
        impl $kind {
            /// Whether reconciliation is paused by annotation.
            pub fn is_paused(&self) -> bool {
                $crate::labels::is_set(&self.metadata, $annotation)
            }

            /// Whether it is being deleted.
            pub fn is_deleting(&self) -> bool {
                self.metadata.deletion_timestamp.is_some()
            }

            $(
                /// Whether it has our finalizer.
                pub fn has_finalizer(&self) -> bool {
                    let mut finalizers = self.metadata.finalizers.iter().flatten();
                    finalizers.any(|finalizer| finalizer == $finalizer)
                }
            )?

            /// The conditions of its status; none without a status.
            pub fn conditions(&self) -> &[k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition] {
                self.status.as_ref().map_or(&[], |status| status.conditions.as_slice())
            }
        }
    };
}
pub(crate) use managed;
