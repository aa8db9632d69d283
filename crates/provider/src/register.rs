//! Registration: the provider's InferenceProviderConfig and its heartbeat.

use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use futures::StreamExt;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, Time};
use kube::api::{Patch, PatchParams, ValidationDirective};
use kube::{Api, Resource};
use runway_api::condition::{self, Draft, no, yes};
use runway_api::{
    InferenceProviderConfig, InferenceProviderConfigSpec, InferenceProviderConfigStatus, RegistrationReason, labels,
};
use runway_operator::clock;
use runway_operator::process::Process;
use serde_json::{Map, Value, json};
use tokio_util::sync::CancellationToken;

use crate::caches::Caches;
use crate::configured::Configured;
use crate::contract::Provider;
use crate::settings::InvalidSettings;
use crate::upstream::{Installed, State};

/// Interval of heartbeats: three of them fit into the timeout.
const HEARTBEAT: Duration = Duration::from_mins(1);
/// Delay before a retry if the API server does not respond.
const RETRY: Duration = Duration::from_secs(2);

/// Registers the provider and sends its heartbeat while this replica is the leader. When it shuts down without another replica,
/// it reports that it is not ready.
pub(crate) async fn keep_registered(process: Process, provider: Arc<dyn Provider>, caches: Arc<Caches>) {
    let registration = Registration {
        api: Api::all(process.client),
        manager: labels::provider_manager(provider.name()),
        provider,
    };
    let leadership = process.leadership;
    let mut begins_to_lead = pin!(leadership.begins());
    while let Some(Some(())) = process.shutdown.run_until_cancelled(begins_to_lead.next()).await {
        let conditions = leadership
            .while_leading(keep_heartbeat(&registration, &caches, &process.shutdown))
            .await;
        // With leader election another replica takes over in a moment; a provider that is briefly not ready would cause false
        // alarms.
        if let Some(conditions) = conditions
            && !leadership.is_elected()
            && let Err(error) = registration.resign(&conditions).await
        {
            tracing::warn!(%error, "cannot report the shutdown in the InferenceProviderConfig");
        }
    }
}

/// Returns the last conditions at `shutdown`.
async fn keep_heartbeat(registration: &Registration, caches: &Caches, shutdown: &CancellationToken) -> Vec<Condition> {
    let mut upstream = caches.installed_changes();
    let mut operator = caches.operator_changes();
    let mut settings = caches.settings_changes();
    let mut conditions = Vec::new();
    let mut registered = false;
    loop {
        let mut wait = HEARTBEAT;
        let outage = caches.evaluate_operator(clock::now());
        match registration
            .beat(
                &mut registered,
                &caches.installed(),
                &caches.configured(),
                outage.as_deref(),
                &mut conditions,
            )
            .await
        {
            Ok(()) => {}
            Err(error) => {
                tracing::warn!(%error, "cannot write the InferenceProviderConfig");
                wait = RETRY;
            }
        }
        tokio::select! {
            () = tokio::time::sleep(wait) => {}
            seen = upstream.changed() => if seen.is_err() { return conditions },
            seen = operator.changed() => if seen.is_err() { return conditions },
            seen = settings.changed() => match seen {
                Ok(()) => registered = false,
                Err(_) => return conditions,
            },
            () = shutdown.cancelled() => return conditions,
        }
    }
}

struct Registration {
    api: Api<InferenceProviderConfig>,
    manager: String,
    provider: Arc<dyn Provider>,
}

impl Registration {
    /// Applies the spec once and the status every time; the spec again if the object was deleted.
    async fn beat(
        &self,
        registered: &mut bool,
        installed: &Installed,
        configured: &Configured,
        outage: Option<&str>,
        conditions: &mut Vec<Condition>,
    ) -> Result<(), kube::Error> {
        if !*registered {
            let registration = configured.provider.registration();
            *conditions = self.apply_spec(&registration).await?;
            *registered = true;
        }
        let status = status(
            self.provider.as_ref(),
            installed,
            configured.invalid.as_ref(),
            outage,
            conditions,
        );
        conditions.clone_from(&status.conditions);
        match self.apply_status(&status).await {
            Err(kube::Error::Api(answer)) if answer.is_not_found() => {
                *registered = false;
                self.apply_spec(&configured.provider.registration()).await?;
                *registered = true;
                self.apply_status(&status).await
            }
            other => other,
        }
    }

    /// Applied without force: changes by an administrator are kept, and so are the settings, which this never contains. Returns
    /// the conditions of the previous process.
    async fn apply_spec(&self, registration: &InferenceProviderConfigSpec) -> Result<Vec<Condition>, kube::Error> {
        let Value::Object(mut spec) = serde_json::to_value(registration).unwrap_or_default() else {
            return Ok(Vec::new());
        };
        spec.remove("settings");
        loop {
            match self
                .api
                .patch(
                    self.provider.name(),
                    &self.params(),
                    &Patch::Apply(self.document("spec", &spec)),
                )
                .await
            {
                Ok(config) => return Ok(config.status.unwrap_or_default().conditions),
                Err(kube::Error::Api(answer)) if answer.is_conflict() => {
                    if !leave_out_conflicts(&mut spec, &answer) {
                        return Err(kube::Error::Api(answer));
                    }
                }
                Err(error) => return Err(error),
            }
        }
    }

    async fn apply_status(&self, status: &InferenceProviderConfigStatus) -> Result<(), kube::Error> {
        let Value::Object(status) = serde_json::to_value(status).unwrap_or_default() else {
            return Ok(());
        };
        let patch = Patch::Apply(self.document("status", &status));
        self.api
            .patch_status(self.provider.name(), &self.params(), &patch)
            .await
            .map(|_| ())
    }

    async fn resign(&self, conditions: &[Condition]) -> Result<(), kube::Error> {
        let drafts = vec![no(
            condition::UPSTREAM_READY,
            RegistrationReason::ShutDown,
            "The provider controller was shut down",
        )];
        let settings = conditions.iter().filter(|c| c.type_ == condition::SETTINGS_VALID);
        let mut all = condition::settle(drafts, conditions, None, clock::now());
        all.extend(settings.cloned());
        let status = InferenceProviderConfigStatus {
            ready: Some(false),
            version: Some(self.provider.version()),
            last_heartbeat: Some(Time(clock::now())),
            conditions: all,
            ..InferenceProviderConfigStatus::default()
        };
        self.apply_status(&status).await
    }

    fn document(&self, part: &str, content: &Map<String, Value>) -> Value {
        json!({
            "apiVersion": InferenceProviderConfig::api_version(&()),
            "kind": InferenceProviderConfig::kind(&()),
            "metadata": { "name": self.provider.name() },
            part: content,
        })
    }

    fn params(&self) -> PatchParams {
        PatchParams {
            field_validation: Some(ValidationDirective::Strict),
            ..PatchParams::apply(&self.manager)
        }
    }
}

/// Removes the fields that another field manager owns; false if there are none.
fn leave_out_conflicts(spec: &mut Map<String, Value>, answer: &kube::core::Status) -> bool {
    let causes = answer.details.iter().flat_map(|d| &d.causes);
    let fields: Vec<String> = causes
        .filter_map(|c| {
            c.field
                .strip_prefix(".spec.")?
                .split(['.', '['])
                .next()
                .map(str::to_owned)
        })
        .collect();
    let mut any = false;
    for field in fields {
        if spec.remove(&field).is_some() {
            tracing::info!(
                field,
                "InferenceProviderConfig: another field manager owns spec.{field}; the value is kept"
            );
            any = true;
        }
    }
    any
}

/// Status of the provider. `outage`: why the upstream operator does not act.
fn status(
    provider: &dyn Provider,
    installed: &Installed,
    invalid: Option<&InvalidSettings>,
    outage: Option<&str>,
    previous: &[Condition],
) -> InferenceProviderConfigStatus {
    let main = provider.upstreams().first().map(|u| u.kind);
    let state = main.map(|kind| (kind, installed.state(kind)));
    let (draft, version, hash) = match state {
        Some((kind, State::Known { version, hash })) => (
            match outage {
                None => yes(
                    condition::UPSTREAM_READY,
                    RegistrationReason::SchemaKnown,
                    format!("{} {version} is installed", kind.crd_name()),
                ),
                Some(why) => no(
                    condition::UPSTREAM_READY,
                    RegistrationReason::OperatorUnavailable,
                    format!("{} {version} is installed, but {why}", kind.crd_name()),
                ),
            },
            Some(format!("{}/{version}", kind.group)),
            Some(hash),
        ),
        Some((kind, State::Missing)) => (
            no(
                condition::UPSTREAM_READY,
                RegistrationReason::CRDNotInstalled,
                format!("{} is not installed: install the upstream operator", kind.crd_name()),
            ),
            None,
            None,
        ),
        Some((kind, State::Unknown { served, problems })) => (
            no(
                condition::UPSTREAM_READY,
                RegistrationReason::UnknownUpstreamSchema,
                format!(
                    "{} (served: {}) has a schema this controller does not know: {}",
                    kind.crd_name(),
                    served.join(", "),
                    problems.join("; ")
                ),
            ),
            None,
            None,
        ),
        None => (
            yes(
                condition::UPSTREAM_READY,
                RegistrationReason::NoUpstream,
                "This provider needs no upstream CRD",
            ),
            None,
            None,
        ),
    };
    let now = clock::now();
    let drafts = vec![draft, settings_valid(invalid)];
    let conditions = condition::settle(drafts, previous, None, now);
    InferenceProviderConfigStatus {
        ready: Some(conditions.iter().all(|c| c.status == "True")),
        version: Some(provider.version()),
        last_heartbeat: Some(Time(now)),
        upstream_crd_version: version,
        upstream_schema_hash: hash,
        upstream_release: installed.release().map(ToString::to_string),
        conditions,
    }
}

/// Whether the settings of the installation are used.
fn settings_valid(invalid: Option<&InvalidSettings>) -> Draft {
    match invalid {
        None => yes(
            condition::SETTINGS_VALID,
            RegistrationReason::SettingsAccepted,
            "spec.settings is valid",
        ),
        Some(invalid) => no(
            condition::SETTINGS_VALID,
            RegistrationReason::SettingsRejected,
            invalid.to_string(),
        ),
    }
}
