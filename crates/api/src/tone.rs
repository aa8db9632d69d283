//! How well an object is, whatever the word of its status: one classification for pages, screens and checks.

/// How well an object is (compare kstatus).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Tone {
    /// As its spec asks for; asleep or stopped on request, too.
    Current,
    /// Controllers work on it, or wait for what may yet come.
    InProgress,
    /// It is being deleted, or handed over.
    Terminating,
    /// Nothing is changed until it is resumed.
    Paused,
    /// It does not come right without a change.
    Failed,
    /// No status yet, or a word of a newer version.
    Unknown,
}

/// The words of a status: each with its text, as it is written into the status, and its tone.
macro_rules! words {
    ($type:ident { $($variant:ident $text:literal $tone:ident,)* }) => {
        impl $type {
            /// Every value.
            pub const ALL: &[Self] = &[$(Self::$variant,)*];

            /// As written in a status.
            pub const fn as_str(self) -> &'static str {
                match self {
                    $(Self::$variant => $text,)*
                }
            }

            /// How well that is.
            pub const fn tone(self) -> $crate::tone::Tone {
                match self {
                    $(Self::$variant => $crate::tone::Tone::$tone,)*
                }
            }
        }

        impl std::fmt::Display for $type {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.pad(self.as_str())
            }
        }
    };
}
pub(crate) use words;

/// The texts of an enum, as they are written in a manifest or a status.
macro_rules! texts {
    ($type:ident { $($variant:ident $text:literal,)* }) => {
        impl $type {
            /// As written in a manifest or a status.
            pub const fn as_str(self) -> &'static str {
                match self {
                    $(Self::$variant => $text,)*
                }
            }
        }

        impl std::fmt::Display for $type {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.pad(self.as_str())
            }
        }
    };
}
pub(crate) use texts;

#[cfg(test)]
mod tests {
    use crate::async_actor::{ActorState, Mode, ScalingMode, Strategy};
    use crate::llama_stack_distribution::{DistributionPhase, ProviderPhase};
    use crate::model_deployment::Phase;
    use crate::provider_config::OverrideType;

    /// What `as_str` says is what serde writes.
    #[test]
    fn words_are_written_as_they_are_shown() {
        let written = |value: serde_json::Value| value.as_str().unwrap_or_default().to_owned();
        macro_rules! same {
            ($($value:expr),* $(,)?) => {$(
                assert_eq!(written(serde_json::json!($value)), $value.as_str());
                assert_eq!($value.to_string(), $value.as_str());
            )*};
        }
        for phase in Phase::ALL {
            same!(phase);
        }
        for phase in DistributionPhase::ALL {
            same!(phase);
        }
        for phase in ProviderPhase::ALL {
            same!(phase);
        }
        same!(Mode::Standalone, Mode::Binding, ScalingMode::Keda, ScalingMode::Manual);
        same!(Strategy::TemplatePatch, Strategy::ParentSpec, Strategy::Proxy);
        same!(
            OverrideType::String,
            OverrideType::Integer,
            OverrideType::Boolean,
            OverrideType::StringMap
        );
        for state in ActorState::ALL {
            assert_eq!(ActorState::of(state.as_str()), Some(*state));
        }
        assert_eq!(ActorState::of("Levitating"), None);
    }
}
