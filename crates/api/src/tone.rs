//! Tone of a status: one classification of all phases and states, for pages, screens and checks.

/// Classification of a status (compare kstatus).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Tone {
    /// It matches its spec; includes scaled to zero and stopped on request.
    Current,
    /// Controllers are working on it, or waiting for something.
    InProgress,
    /// It is being deleted or handed over.
    Terminating,
    /// Reconciliation is paused.
    Paused,
    /// It needs a change by the user.
    Failed,
    /// It has no status, or a state of a newer version.
    Unknown,
}

/// An enum of phases or states of a status. Each is declared with its tone and the remedy; its doc comment is the meaning. The text
/// in a status is the name.
macro_rules! words {
    ($(#[doc = $about:literal])+ $(#[derive($($derive:path),+)])? $type:ident {
        $($(#[doc = $meaning:literal])+ $tone:ident $variant:ident: $remedy:literal,)+
    }) => {
        $(#[doc = $about])+
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash $(, $($derive),+)?)]
        pub enum $type {
            $($(#[doc = $meaning])+ $variant,)+
        }

        impl $type {
            /// Every value.
            pub const ALL: &[Self] = &[$(Self::$variant,)+];

            /// Text in a status.
            pub const fn as_str(self) -> &'static str {
                match self {
                    $(Self::$variant => stringify!($variant),)+
                }
            }

            /// Tone of the value.
            pub const fn tone(self) -> $crate::tone::Tone {
                match self {
                    $(Self::$variant => $crate::tone::Tone::$tone,)+
                }
            }

            /// State that the word reports.
            pub const fn meaning(self) -> &'static str {
                match self {
                    $(Self::$variant => concat!($($meaning),+).trim_ascii(),)+
                }
            }

            /// Step that resolves it, or "Nothing".
            pub const fn remedy(self) -> &'static str {
                match self {
                    $(Self::$variant => $remedy,)+
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

/// Texts of an enum in a manifest or status.
macro_rules! texts {
    ($type:ident { $($variant:ident $text:literal,)* }) => {
        impl $type {
            /// Text in a manifest or status.
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

    /// `as_str` returns what serde writes.
    #[test]
    fn as_str_is_what_serde_writes() {
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
