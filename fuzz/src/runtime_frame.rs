//! Any bytes as what the handler runtime sends on its socket: reading ends without a panic, the same however the bytes are cut; an
//! answer is exactly one frame within the limit; and the message that was sent is never lost.
//!
//! The first byte says how many bytes come at a time.

use std::pin::Pin;
use std::task::{Context, Poll};

use runway_asya_sidecar::plan::Outcome;
use runway_asya_sidecar::runtime::read_answer;
use tokio::io::{AsyncRead, ReadBuf};

const MAX_BYTES: usize = 4096;
const MESSAGE: &[u8] = br#"{"id": "1", "route": {"actors": ["a", "b"], "current": 0}, "payload": {"n": 1.0}}"#;

/// Bytes that come in pieces.
struct Pieces<'a> {
    left: &'a [u8],
    size: usize,
}

impl AsyncRead for Pieces<'_> {
    fn poll_read(mut self: Pin<&mut Self>, _: &mut Context<'_>, room: &mut ReadBuf<'_>) -> Poll<std::io::Result<()>> {
        let size = self.size.min(room.remaining()).min(self.left.len());
        let (piece, left) = self.left.split_at(size);
        room.put_slice(piece);
        self.left = left;
        Poll::Ready(Ok(()))
    }
}

pub fn run(data: &[u8]) {
    let Some((first, bytes)) = data.split_first() else {
        return;
    };
    let read = |size| crate::wait(async { read_answer(&mut Pieces { left: bytes, size }, MAX_BYTES).await });
    let outcome = read(usize::from(*first).max(1));
    if let Outcome::Answer(answer) = &outcome {
        assert!(answer.len() <= MAX_BYTES);
        let whole = [&u32::try_from(answer.len()).unwrap().to_be_bytes(), answer.as_slice()].concat();
        assert!(bytes.starts_with(&whole));
    }
    let byte_by_byte = read(1);
    // What follows the frame may come too late to be seen.
    if !matches!(byte_by_byte, Outcome::Answer(_)) {
        assert_eq!(format!("{outcome:?}"), format!("{byte_by_byte:?}"));
    }
    crate::asya_message::check(false, MESSAGE, &outcome);
}
