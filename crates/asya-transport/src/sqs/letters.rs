//! Dead letters of SQS. A dead letter is hidden while it is looked at, and becomes visible again at the end of the visit, or when its
//! visibility timeout expires.

use std::time::Duration;

use runway_sqs::{Client, Error, Message};
use tokio::task::JoinSet;

use crate::letters::{self, DeadLetter, Fate, Numbers, PATIENCE, Visit, Visited};

/// Visibility timeout of a dead letter: a visit takes less.
const VISIBILITY: Duration = Duration::from_mins(2);
/// Wait for further dead letters. Without one, SQS asks only some of its servers.
const WAIT: Duration = Duration::from_secs(1);
/// Dead letters that are returned at once.
const RETURNED_AT_ONCE: usize = 16;

/// Numbers of messages of a queue.
pub(crate) async fn numbers(client: &Client, name: &str, dead_letters: &str) -> Result<Numbers, letters::Error> {
    let asked = async {
        let counts = match client.queue_url(name).await? {
            Some(url) => Some(client.counts(&url).await?),
            None => None,
        };
        let dead = match client.queue_url(dead_letters).await? {
            Some(url) => Some(client.count(&url).await?),
            None => None,
        };
        Ok((counts, dead))
    };
    let (counts, dead) = in_time(asked).await.map_err(letters::Error::Unreachable)?;
    let counts = counts.ok_or_else(|| letters::Error::NoQueue(name.to_owned()))?;
    Ok(Numbers {
        waiting: counts.visible.saturating_add(counts.delayed),
        running: Some(counts.hidden),
        consumers: None,
        dead,
    })
}

/// Visits dead letters, as many as SQS shows.
pub(crate) async fn visit(client: &Client, mut visit: Visit) -> Result<Visited, letters::Error> {
    let asked = async {
        let Some(url) = client.queue_url(&visit.dead_letters).await? else {
            return Ok(None);
        };
        let count = client.counts(&url).await?.visible;
        Ok(Some((url, count, client.queue_url(&visit.queue).await?)))
    };
    let found = in_time(asked).await.map_err(letters::Error::Unreachable)?;
    let (url, count, target) = found.ok_or_else(|| letters::Error::NoQueue(visit.dead_letters.clone()))?;
    let mut visited = Visited { count, settled: 0 };
    let mut kept = Vec::new();
    let looked = look(client, &url, target.as_deref(), &mut visit, &mut visited, &mut kept).await;
    visited.count = count.max(visited.settled + kept.len() as u64);
    give_back(client, &url, kept).await;
    let settled = visited.settled;
    looked.map_err(|why| letters::Error::Interrupted { settled, why })?;
    Ok(visited)
}

async fn look(
    client: &Client,
    url: &str,
    target: Option<&str>,
    visit: &mut Visit,
    visited: &mut Visited,
    kept: &mut Vec<String>,
) -> Result<(), String> {
    let mut seen = 0;
    while visit.continues(seen) {
        let most = u8::try_from(visit.most - seen).unwrap_or(u8::MAX);
        let received = in_time(client.receive(url, most, WAIT, VISIBILITY)).await?;
        if received.is_empty() {
            return Ok(());
        }
        seen += received.len();
        for message in received {
            let letter = letter(&message, visit.largest);
            // Those of this answer become visible again by themselves after an error.
            match visit.fate(&letter) {
                Fate::Keep => {
                    kept.push(message.receipt_handle);
                    continue;
                }
                Fate::Redrive => {
                    let target = target.ok_or_else(|| format!("queue {} does not exist", visit.queue))?;
                    in_time(client.send(target, &message.body, &letter.headers)).await?;
                }
                Fate::Drop => {}
            }
            in_time(client.delete(url, &message.receipt_handle)).await?;
            visited.settled += 1;
        }
    }
    Ok(())
}

fn letter(message: &Message, largest: u64) -> DeadLetter {
    let mut headers = message.headers();
    headers.retain(|(name, _)| !name.starts_with("x-"));
    let size = message.body.len() as u64;
    DeadLetter {
        body: (size <= largest).then(|| message.body.clone().into()),
        size,
        headers,
        reason: message.is_from_redrive_policy().then(|| "max_receives".to_owned()),
        since: None,
    }
}

/// Returns dead letters to their queue. Those that cannot be returned become visible again by themselves.
async fn give_back(client: &Client, url: &str, kept: Vec<String>) {
    for some in kept.chunks(RETURNED_AT_ONCE) {
        let returned = some.iter().cloned().map(|handle| {
            let (client, url) = (client.clone(), url.to_owned());
            async move { client.hide(&url, &handle, Duration::ZERO).await }
        });
        for result in returned.collect::<JoinSet<_>>().join_all().await {
            if let Err(error) = result {
                tracing::warn!(%error, "cannot return a dead letter; it becomes visible after its visibility timeout");
            }
        }
    }
}

async fn in_time<T>(work: impl Future<Output = Result<T, Error>>) -> Result<T, String> {
    match tokio::time::timeout(PATIENCE, work).await {
        Ok(done) => done.map_err(|error| error.to_string()),
        Err(_) => Err(format!("SQS does not answer within {PATIENCE:?}")),
    }
}
