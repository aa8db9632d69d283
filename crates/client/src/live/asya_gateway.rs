//! Requests to asya-gateway.

use percent_encoding::{NON_ALPHANUMERIC, utf8_percent_encode};
use runway_api::{Name, Namespace};
use serde_json::{Value, json};

use super::proxied::{Error, Proxied, Question};
use crate::view::messages::{DeadLetters, Numbers, Processed};

/// The gateway of a cluster.
pub struct AsyaGateway<'a>(pub Proxied<'a>);

impl AsyaGateway<'_> {
    /// Numbers of messages of an actor.
    ///
    /// # Errors
    /// The gateway cannot be reached, or rejects the request.
    pub async fn numbers(&self, namespace: &Namespace, actor: &Name) -> Result<Numbers, Error> {
        let doing = format!("read the queue of actor '{actor}'");
        self.0.get(doing, format!("/queues/{namespace}/{actor}")).await
    }

    /// The first dead letters of an actor.
    ///
    /// # Errors
    /// The gateway cannot be reached, or rejects the request.
    pub async fn dead_letters(&self, namespace: &Namespace, actor: &Name, limit: u32) -> Result<DeadLetters, Error> {
        let doing = format!("list dead letters of actor '{actor}'");
        self.0
            .get(doing, format!("/queues/{namespace}/{actor}/dlq?limit={limit}"))
            .await
    }

    /// A whole dead letter.
    ///
    /// # Errors
    /// The gateway cannot be reached, or rejects the request.
    pub async fn dead_letter(&self, namespace: &Namespace, actor: &Name, id: &str) -> Result<Value, Error> {
        let doing = format!("read a dead letter of actor '{actor}'");
        let id = utf8_percent_encode(id, NON_ALPHANUMERIC);
        self.0
            .get(doing, format!("/queues/{namespace}/{actor}/dlq?id={id}"))
            .await
    }

    /// Redrives or deletes dead letters (`verb` is `redrive` or `drop`): those with these ids, or all that are in the queue now.
    ///
    /// # Errors
    /// The gateway cannot be reached, or rejects the request.
    pub async fn process(
        &self,
        verb: &str,
        namespace: &Namespace,
        actor: &Name,
        ids: Option<&[String]>,
    ) -> Result<Processed, Error> {
        let chosen = ids.map_or_else(|| json!({"all": true}), |ids| json!({"ids": ids}));
        let ask = async || {
            let question = Question {
                doing: format!("{verb} dead letters of actor '{actor}'"),
                path: format!("/queues/{namespace}/{actor}/dlq/{verb}"),
                headers: &[],
                body: Some(chosen.to_string().into_bytes()),
            };
            self.0.ask::<Processed>(question).await.map(|(answer, _)| answer)
        };
        let mut all = ask().await?;
        // One request processes a limited number. A redriven message that dies again is not redriven again.
        while ids.is_none() && all.processed < all.count {
            match ask().await?.processed {
                0 => break,
                more => all.processed += more,
            }
        }
        Ok(all)
    }
}
