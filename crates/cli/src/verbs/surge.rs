//! `kubeairunway migrate --surge`: a second ModelDeployment on the new provider, the stand-in, serves while the model moves.
//!
//! Annotations of both make the model router send the requests for the model to the stand-in. So that is ready before the old pods go,
//! and stays until the new ones are ready; before pods are deleted, requests in progress get time to end.

use std::time::Duration;

use clap::Args;
use jiff::SignedDuration;
use kube::api::{DeleteParams, Patch, PatchParams};
use kube::{Api, ResourceExt as _};
use runway_api::{ModelDeployment, labels};
use runway_client::cluster::Cluster;
use runway_client::diff::MANAGER;
use runway_client::text;
use serde_json::json;
use tokio::time::sleep;

use super::Error;
use super::arrival::arrival;
use super::beside::{self, beside};
use crate::terminal::Terminal;

/// Arguments of a stand-in.
#[derive(Debug, Args)]
pub struct SurgeArgs {
    /// Start a stand-in on the new provider first, which gets the requests of the model router until the model runs there. Needs
    /// room for both. Run the command again to continue one that was interrupted
    #[arg(long, conflicts_with = "wait")]
    pub surge: bool,
    /// With --surge: time for requests in progress before their pods are deleted, such as 30s
    #[arg(long, default_value = "30s", value_name = "TIME", requires = "surge")]
    pub drain: SignedDuration,
}

/// The stand-in of a model that is migrated.
pub struct Surge<'a> {
    cluster: &'a Cluster,
    api: Api<ModelDeployment>,
    stand_in: ModelDeployment,
    name: String,
    to: &'a str,
    timeout: Duration,
    drain: Duration,
}

impl<'a> Surge<'a> {
    /// The stand-in on provider `to` that the arguments ask for, which has to serve within `timeout`; `None` without `--surge`, and for
    /// a model without replicas, which serves nothing.
    pub fn of(
        args: &SurgeArgs,
        md: &ModelDeployment,
        to: &'a str,
        timeout: Duration,
        cluster: &'a Cluster,
    ) -> Option<Self> {
        let is_asleep = md.spec.scaling.as_ref().and_then(|scaling| scaling.replicas) == Some(0);
        (args.surge && !is_asleep).then(|| Self {
            api: Api::namespaced(cluster.client(), &md.namespace().unwrap_or_default()),
            stand_in: stand_in(md, to),
            name: md.name_any(),
            to,
            timeout,
            drain: args.drain.unsigned_abs(),
            cluster,
        })
    }

    /// Last lines of the plan of a migration.
    pub fn outlook(surge: Option<&Self>) -> String {
        let Some(surge) = surge else {
            return "The model is unavailable from the deletion until the new object is running.\n".to_owned();
        };
        format!(
            "create  ModelDeployment/{}, a stand-in on {}, first; delete it at the end\n\
            The stand-in serves the requests of the model router. Clients of the Service are interrupted from the deletion until the new \
            object is running.\n",
            surge.stand_in.name_any(),
            surge.to
        )
    }

    /// Creates the stand-in, unless an interrupted migration has, waits until it serves, and lets requests in progress end.
    ///
    /// # Errors
    /// Another ModelDeployment has its name, or it does not serve: then it is deleted, and nothing else has changed.
    pub async fn begin(&self, terminal: &mut Terminal<'_>) -> Result<(), Error> {
        let name = self.stand_in.name_any();
        if self.exists().await? {
            terminal.say(&format!("continuing with the stand-in {name}"));
        } else {
            self.create().await?;
        }
        if let Some(reason) = self.obstacle(terminal).await? {
            self.delete().await?;
            return Err(Error::NoStandIn {
                stand_in: name,
                provider: self.to.to_owned(),
                reason,
                name: self.name.clone(),
            });
        }
        self.annotate(Some(&name)).await?;
        self.drains(terminal, &format!("{name} gets the requests")).await;
        Ok(())
    }

    /// Gives the requests back to the model, lets those in progress end, and deletes the stand-in.
    ///
    /// # Errors
    /// A request fails.
    pub async fn end(&self, terminal: &mut Terminal<'_>) -> Result<(), Error> {
        if !self.exists().await? {
            return Ok(());
        }
        self.annotate(None).await?;
        self.drains(terminal, &format!("{} gets the requests", self.name)).await;
        self.delete().await
    }

    /// Says that the stand-in continues to serve.
    pub fn stays(&self, terminal: &mut Terminal<'_>) {
        terminal.say(&format!(
            "the stand-in ModelDeployment/{} continues to serve the requests of the model router; run the command again to continue",
            self.stand_in.name_any()
        ));
    }

    /// Whether the stand-in exists. An error if another object has its name.
    async fn exists(&self) -> Result<bool, Error> {
        let name = self.stand_in.name_any();
        let found = self.explained(self.api.get_opt(&name).await, "read")?;
        let Some(found) = found.filter(|found| found.metadata.deletion_timestamp.is_none()) else {
            return Ok(false);
        };
        let other = found.annotations().get(labels::STAND_IN_FOR);
        if other.is_some_and(|other| *other == self.name) && found.spec.provider_name() == Some(self.to) {
            return Ok(true);
        }
        Err(Error::OtherStandIn {
            stand_in: name,
            name: self.name.clone(),
            provider: self.to.to_owned(),
        })
    }

    async fn create(&self) -> Result<(), Error> {
        self.explained(beside::create(&self.stand_in, self.cluster).await, "create")?;
        Ok(())
    }

    /// Waits until it serves. The reason, if it does not.
    async fn obstacle(&self, terminal: &mut Terminal<'_>) -> Result<Option<String>, Error> {
        let name = self.stand_in.name_any();
        let read = async || self.explained(self.api.get(&name).await, "read");
        let arrival = arrival(read, self.to, self.timeout, |_| name.clone(), terminal).await?;
        Ok(arrival.obstacle(self.timeout))
    }

    /// Sets the stand-in of the model, or removes it.
    async fn annotate(&self, stand_in: Option<&str>) -> Result<(), Error> {
        let params = PatchParams {
            field_manager: Some(MANAGER.to_owned()),
            ..PatchParams::default()
        };
        let patch = json!({ "metadata": { "annotations": { labels::STAND_IN: stand_in } } });
        let patched = self.api.patch(&self.name, &params, &Patch::Merge(patch)).await;
        let doing = || format!("change ModelDeployment '{}'", self.name);
        patched.map_err(|error| self.cluster.explain(error, doing(), "ModelDeployment"))?;
        Ok(())
    }

    async fn drains(&self, terminal: &mut Terminal<'_>, now: &str) {
        terminal.say(&format!(
            "{now}; waiting {} for those in progress",
            text::age(self.drain)
        ));
        sleep(self.drain).await;
    }

    async fn delete(&self) -> Result<(), Error> {
        let deleted = self
            .api
            .delete(&self.stand_in.name_any(), &DeleteParams::background())
            .await;
        self.explained(deleted, "delete")?;
        Ok(())
    }

    fn explained<T>(&self, result: kube::Result<T>, verb: &str) -> Result<T, Error> {
        let doing = || format!("{verb} ModelDeployment '{}'", self.stand_in.name_any());
        result.map_err(|error| self.cluster.explain(error, doing(), "ModelDeployment").into())
    }
}

/// ModelDeployment with the same spec on another provider.
fn stand_in(md: &ModelDeployment, to: &str) -> ModelDeployment {
    let mut stand_in = beside(md, "-surge", [(labels::STAND_IN_FOR, md.name_any())]);
    stand_in.spec.provider.get_or_insert_default().name = Some(to.to_owned());
    stand_in
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stand_in_is_the_model_on_another_provider_without_autoscaler_and_route() {
        let md: ModelDeployment = serde_json::from_value(json!({
            "apiVersion": "kubeairunway.ai/v1alpha1", "kind": "ModelDeployment",
            "metadata": { "name": "llama", "namespace": "team", "uid": "1", "generation": 7, "resourceVersion": "9",
                "labels": { "kueue.x-k8s.io/queue-name": "gpus" }, "annotations": { "theirs": "1" }, "finalizers": ["f"] },
            "spec": { "model": { "id": "org/llama" }, "provider": { "name": "direct" },
                "scaling": { "replicas": 2, "autoscaling": { "minReplicas": 1, "maxReplicas": 4, "requestsInFlight": 8 } } },
        }))
        .unwrap();
        let made = serde_json::to_value(stand_in(&md, "kaito")).unwrap();
        assert_eq!(
            made,
            json!({
                "apiVersion": "kubeairunway.ai/v1alpha1", "kind": "ModelDeployment",
                "metadata": { "name": "llama-surge", "namespace": "team", "labels": { "kueue.x-k8s.io/queue-name": "gpus" },
                    "annotations": { "kubeairunway.ai/stand-in-for": "llama" },
                    "ownerReferences": [{ "apiVersion": "kubeairunway.ai/v1alpha1", "kind": "ModelDeployment", "name": "llama", "uid": "1" }] },
                "spec": { "model": { "id": "org/llama" }, "provider": { "name": "kaito" }, "scaling": { "replicas": 2 },
                    "gateway": { "enabled": false } },
            })
        );
    }
}
