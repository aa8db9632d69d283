//! Events of a watch, some of them with a fault.

use std::time::Duration;

use anyhow::{Result, bail};
use axum::body::{Body, Bytes};
use futures::stream::BoxStream;
use futures::{StreamExt, TryStreamExt, stream};

use super::plan::Bend;

/// Time for which an event is held back. Long enough for a controller to act on the state before it.
const HOLD: Duration = Duration::from_millis(700);

/// The event after which a client lists again.
const EXPIRED: &[u8] = concat!(
    r#"{"type":"ERROR","object":{"kind":"Status","apiVersion":"v1","metadata":{},"status":"Failure","#,
    r#""message":"too old resource version","reason":"Expired","code":410}}"#,
    "\n"
)
.as_bytes();

struct Watch<F> {
    source: BoxStream<'static, Result<Bytes>>,
    /// Begin of the next line.
    rest: Vec<u8>,
    has_expired: bool,
    bend: F,
}

/// The body of a watch, whose events get the faults that `bend` returns for them.
pub(super) fn bent(body: Body, bend: impl FnMut() -> Option<Bend> + Send + 'static) -> Body {
    let watch = Watch {
        source: body.into_data_stream().map_err(anyhow::Error::from).boxed(),
        rest: Vec::new(),
        has_expired: false,
        bend,
    };
    Body::from_stream(stream::try_unfold(watch, next))
}

async fn next<F: FnMut() -> Option<Bend>>(mut watch: Watch<F>) -> Result<Option<(Bytes, Watch<F>)>> {
    if watch.has_expired {
        return Ok(None);
    }
    let Some(event) = watch.line().await? else {
        return Ok(None);
    };
    match (watch.bend)() {
        None => {}
        Some(Bend::Hold) => tokio::time::sleep(HOLD).await,
        Some(Bend::Drop) => bail!("the watch is cut"),
        Some(Bend::Expire) => {
            watch.has_expired = true;
            return Ok(Some((Bytes::from_static(EXPIRED), watch)));
        }
    }
    Ok(Some((event, watch)))
}

impl<F> Watch<F> {
    /// The next event: one line.
    async fn line(&mut self) -> Result<Option<Bytes>> {
        loop {
            if let Some(end) = self.rest.iter().position(|byte| *byte == b'\n') {
                return Ok(Some(self.rest.drain(..=end).collect::<Vec<u8>>().into()));
            }
            match self.source.try_next().await? {
                Some(bytes) => self.rest.extend_from_slice(&bytes),
                None => return Ok(None),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    async fn seen<const N: usize>(bends: [Option<Bend>; N]) -> (Vec<String>, bool) {
        let parts = ["a\nb", "b\n", "c\n"].map(|part| Ok::<_, std::io::Error>(Bytes::from(part)));
        let mut bends = bends.into_iter();
        let body = bent(Body::from_stream(stream::iter(parts)), move || bends.next().flatten());
        let events: Vec<_> = body.into_data_stream().collect().await;
        let is_cut = events.iter().any(Result::is_err);
        let texts = events
            .into_iter()
            .flatten()
            .map(|e| String::from_utf8_lossy(&e).trim().to_owned());
        (texts.collect(), is_cut)
    }

    #[tokio::test]
    async fn events_keep_their_order_and_end_where_the_watch_is_cut() {
        assert_eq!(seen([]).await, (["a", "bb", "c"].map(str::to_owned).into(), false));
        assert_eq!(seen([None, Some(Bend::Hold)]).await.0, ["a", "bb", "c"]);
        assert_eq!(seen([None, Some(Bend::Drop)]).await, (vec!["a".to_owned()], true));
        let (events, is_cut) = seen([None, Some(Bend::Expire)]).await;
        assert!(events.len() == 2 && events[1].contains("410") && !is_cut, "{events:?}");
    }
}
