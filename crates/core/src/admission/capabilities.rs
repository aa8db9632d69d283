//! Whether the provider of a ModelDeployment supports it, by its registration. Pure.
//!
//! Only admission checks this. At reconcile the provider's controller decides, and reports in the condition `ProviderCompatible`,
//! since a registration may be older than the controller, and objects may bypass admission.

use runway_api::ModelDeployment;

use super::validate::{Findings, check_rules, quote};
use crate::providers::{Providers, Registered};
use crate::selection;

/// Violations if the provider is named or selected, since it stays the same unless the user changes it; a warning if one would
/// still be selected, and no registered provider is suitable.
pub fn capabilities(deployment: &ModelDeployment, providers: &Providers) -> Findings {
    let mut findings = Findings::default();
    let (named, selected) = (deployment.spec.provider_name(), deployment.selected_provider());
    match (named, selected) {
        (Some(name), _) => {
            // The rules of a named provider are part of the validation.
            if let Some(provider) = providers.get(name) {
                check_capabilities(deployment, name, provider, providers, &mut findings);
            }
        }
        (None, Some(name)) => {
            if let Some(provider) = providers.get(name) {
                check_capabilities(deployment, name, provider, providers, &mut findings);
                check_rules(deployment, name, provider, &mut findings);
            }
        }
        (None, None) => check_candidates(deployment, providers, &mut findings),
    }
    findings
}

/// A provider without engines has not registered yet: an administrator has only written its settings.
fn check_capabilities(
    deployment: &ModelDeployment,
    name: &str,
    provider: &Registered,
    providers: &Providers,
    findings: &mut Findings,
) {
    let capabilities = &provider.config.spec.capabilities;
    // A missing engine is reported by the validation.
    if deployment.spec.engine_type().is_none() || capabilities.engine_names().is_empty() {
        return;
    }
    if let Some(gap) = selection::gap(capabilities, &deployment.spec) {
        let others = match selection::suitable(deployment, providers).as_slice() {
            [] => "no registered provider does".to_owned(),
            names => format!(
                "or set spec.provider.name to a provider that does: {}",
                names.join(", ")
            ),
        };
        findings.refuse(
            gap.field,
            format!(
                "provider '{}' {}: change {}, {others}",
                quote(name),
                quote(&gap.reason),
                gap.field
            ),
        );
    }
}

fn check_candidates(deployment: &ModelDeployment, providers: &Providers, findings: &mut Findings) {
    let engine = deployment.spec.engine_type();
    // An engine that no provider supports is a violation already.
    let is_supported = engine.is_some_and(|engine| providers.engines().contains(engine));
    if let Some(reason) = selection::unsuitable_for_all(deployment, providers).filter(|_| is_supported) {
        findings.warn(reason);
    }
}
