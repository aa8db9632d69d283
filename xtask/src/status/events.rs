//! Reasons of Events.

use std::fmt::Write;

use anyhow::Result;
use runway_api::EventReason;

const INTRODUCTION: &str = "
## Events

Each Event reports one change, once. `kubeairunway events KIND/NAME` lists those of an object and of the objects created for it. An
Event about a condition that changed has the reason of the condition, and is listed there; the others are:

| reason | type | objects | meaning and what to do |
|---|---|---|---|
";

pub(super) fn write(page: &mut String) -> Result<()> {
    page.push_str(INTRODUCTION);
    for reason in EventReason::ALL {
        let type_ = if reason.is_warning() { "Warning" } else { "Normal" };
        let meaning = reason.meaning().trim_end_matches('.');
        writeln!(page, "| `{reason}` | {type_} | {} | {meaning} |", kinds(*reason))?;
    }
    Ok(())
}

/// Kinds that the Events are about.
fn kinds(reason: EventReason) -> &'static str {
    match reason {
        EventReason::ProviderSelected
        | EventReason::ProviderIncompatible
        | EventReason::ProviderError
        | EventReason::OverridesIgnored
        | EventReason::FieldsIgnored
        | EventReason::StaleStatus => "ModelDeployment",
        EventReason::ResourceCreated => "ModelDeployment, LlamaStackDistribution",
        EventReason::DriftDetected => "ModelDeployment, AsyncActor, LlamaStackDistribution",
        EventReason::FinalizerTimeout => "ModelDeployment, AsyncActor",
        EventReason::Created
        | EventReason::Bound
        | EventReason::Unbound
        | EventReason::QueueLeft
        | EventReason::ScalingStarted => "AsyncActor",
        EventReason::Ready | EventReason::Failed => "LlamaStackDistribution",
    }
}
