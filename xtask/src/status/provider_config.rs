//! Status of an InferenceProviderConfig.

use runway_api::condition;

use super::Is::{False, True};
use super::{Condition, Kind, Present, Reason};

pub(super) fn kind() -> Kind {
    Kind {
        name: "InferenceProviderConfig",
        field: "ready",
        words: Vec::new(),
        conditions: CONDITIONS,
        notes: &[],
        plans: None,
    }
}

const CONDITIONS: &[Condition] = &[
    Condition {
        kind: condition::UPSTREAM_READY,
        present: Present::Always,
        meaning: "The CRD of the upstream operator is installed, the provider knows its schema, and the operator runs, if its Deployment is found by its usual name. `status.ready` follows it. Written by the provider.",
        reasons: &[
            Reason(
                True,
                "SchemaKnown",
                "The CRD is installed in a version that the provider supports",
                "Nothing",
            ),
            Reason(True, "NoUpstream", "The provider needs no upstream operator", "Nothing"),
            Reason(
                False,
                "CRDNotInstalled",
                "The CRD is not installed",
                "Install the upstream operator",
            ),
            Reason(
                False,
                "UnknownUpstreamSchema",
                "The CRD has a schema that the provider does not know",
                "Install a supported version of the upstream operator, or upgrade the provider",
            ),
            Reason(
                False,
                "OperatorUnavailable",
                "The Deployment of the upstream operator, which the message names, has had no available replica for a minute",
                "Check its pods; `kubeairunway check` shows the cause",
            ),
            Reason(
                False,
                "ShutDown",
                "The provider's controller was shut down",
                "Start it again, or delete the InferenceProviderConfig",
            ),
        ],
    },
    Condition {
        kind: condition::SETTINGS_VALID,
        present: Present::Always,
        meaning: "The provider accepts `spec.settings`. `status.ready` follows it. Written by the provider.",
        reasons: &[
            Reason(True, "SettingsAccepted", "The settings are used", "Nothing"),
            Reason(
                False,
                "SettingsRejected",
                "A setting is unknown or has a wrong value. Existing models continue unchanged; new models and changes wait",
                "Correct the setting that the message names: [settings of an installation](install.md#settings-of-an-installation)",
            ),
        ],
    },
    Condition {
        kind: condition::RULES_VALID,
        present: Present::Always,
        meaning: "Every selection and validation rule compiles within its limits. Written by the core.",
        reasons: &[
            Reason(True, "RulesCompiled", "All rules are used", "Nothing"),
            Reason(
                False,
                "RulesRejected",
                "The rules that the message lists are skipped; the others are used",
                "Correct the rules: [provider contract](provider-contract.md)",
            ),
        ],
    },
];
