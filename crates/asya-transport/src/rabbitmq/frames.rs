//! Bytes to write. Large bodies are not copied, because a message can be as large as half of the memory limit.

use std::collections::VecDeque;

use bytes::{Buf as _, Bytes};

/// Smallest piece that is kept as it is. Smaller ones are copied, so that one write sends several.
const LARGE: usize = 64 * 1024;
/// Largest empty buffer that is kept.
const KEPT_BUFFER: usize = 256 * 1024;

/// Bytes to write, in order.
#[derive(Debug, Default)]
pub(super) struct Frames {
    /// Written before the tail.
    pieces: VecDeque<Bytes>,
    tail: Vec<u8>,
    /// Number of bytes of the tail that are written.
    written: usize,
}

impl Frames {
    /// Buffer to append to.
    pub(super) fn tail(&mut self) -> &mut Vec<u8> {
        &mut self.tail
    }

    /// Appends a piece.
    pub(super) fn push(&mut self, piece: Bytes) {
        if piece.len() < LARGE {
            self.tail.extend_from_slice(&piece);
            return;
        }
        let mut before = Bytes::from(std::mem::take(&mut self.tail));
        before.advance(std::mem::take(&mut self.written));
        self.pieces
            .extend([before, piece].into_iter().filter(|piece| !piece.is_empty()));
    }

    /// Number of bytes of the tail, to return to with [`Frames::truncate`].
    pub(super) fn mark(&self) -> usize {
        self.tail.len()
    }

    /// Removes what was appended to the tail since the mark.
    pub(super) fn truncate(&mut self, mark: usize) {
        self.tail.truncate(mark);
    }

    /// The next bytes to write. Empty if all are written.
    pub(super) fn front(&self) -> &[u8] {
        self.pieces.front().map_or(&self.tail[self.written..], |piece| piece)
    }

    /// Marks this number of bytes of [`Frames::front`] as written.
    pub(super) fn advance(&mut self, count: usize) {
        let Some(piece) = self.pieces.front_mut() else {
            self.written += count;
            return;
        };
        piece.advance(count);
        if piece.is_empty() {
            self.pieces.pop_front();
        }
    }

    /// Whether all bytes are written.
    pub(super) fn is_empty(&self) -> bool {
        self.front().is_empty()
    }

    /// Removes all bytes and keeps a buffer of a limited size.
    pub(super) fn clear(&mut self) {
        self.pieces.clear();
        self.tail.clear();
        self.tail.shrink_to(KEPT_BUFFER);
        self.written = 0;
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn bytes_are_written_in_order_however_they_are_cut(
            pieces in proptest::collection::vec((any::<bool>(), 0_usize..200_000), 0..8),
            cut in 1_usize..100_000,
        ) {
            let (mut frames, mut expected) = (Frames::default(), Vec::new());
            let mut written = Vec::new();
            for (number, (is_piece, size)) in pieces.iter().enumerate() {
                let bytes = vec![u8::try_from(number).unwrap_or_default(); *size];
                expected.extend_from_slice(&bytes);
                if *is_piece {
                    frames.push(bytes.into());
                } else {
                    frames.tail().extend_from_slice(&bytes);
                }
                // Frames are appended while others are written.
                let count = cut.min(frames.front().len());
                written.extend_from_slice(&frames.front()[..count]);
                frames.advance(count);
            }
            while !frames.is_empty() {
                let count = cut.min(frames.front().len());
                written.extend_from_slice(&frames.front()[..count]);
                frames.advance(count);
            }
            prop_assert_eq!(written, expected);
        }
    }
}
