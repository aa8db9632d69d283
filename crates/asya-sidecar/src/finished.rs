//! Results whose connection was lost before they were sent. The broker delivers their messages again, and this pod then sends the results
//! without a call.

use std::collections::VecDeque;
use std::ops::Range;

use parking_lot::Mutex;

use crate::crashes::{Key, key};

/// A response, and the places of its items.
#[derive(Debug)]
pub struct Response {
    /// The response.
    pub answer: Vec<u8>,
    /// Places of the items.
    pub items: Vec<Range<usize>>,
}

impl Response {
    /// Size in memory, in bytes.
    fn size(&self) -> usize {
        size_of::<(Key, Self)>() + self.answer.len() + size_of_val(&*self.items)
    }
}

/// Responses by message. The oldest are forgotten first.
#[derive(Debug)]
pub struct Finished {
    most: usize,
    kept: Mutex<VecDeque<(Key, Response)>>,
}

impl Finished {
    /// Keeps responses of at most this many bytes.
    pub fn new(most: usize) -> Self {
        Self {
            most,
            kept: Mutex::default(),
        }
    }

    /// Remembers the response for a message, unless it is too large.
    pub fn keep(&self, body: &[u8], response: Response) {
        let mut kept = self.kept.lock();
        kept.push_back((key(body), response));
        let mut size: usize = kept.iter().map(|(_, response)| response.size()).sum();
        while size > self.most
            && let Some((_, oldest)) = kept.pop_front()
        {
            size -= oldest.size();
        }
    }

    /// The response for a message, which is forgotten.
    pub fn take(&self, body: &[u8]) -> Option<Response> {
        let mut kept = self.kept.lock();
        // Almost always empty, so the digest is not computed.
        if kept.is_empty() {
            return None;
        }
        let key = key(body);
        let place = kept.iter().position(|(other, _)| *other == key)?;
        kept.remove(place).map(|(_, response)| response)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn answer(length: usize) -> Response {
        Response {
            answer: vec![b'x'; length],
            items: Vec::new(),
        }
    }

    #[test]
    fn response_is_returned_once() {
        let finished = Finished::new(1000);
        assert!(finished.take(b"a").is_none());
        finished.keep(b"a", answer(1));
        assert!(finished.take(b"b").is_none());
        assert!(finished.take(b"a").is_some());
        assert!(finished.take(b"a").is_none());
    }

    #[test]
    fn responses_are_bounded_by_their_size() {
        let finished = Finished::new(1000);
        finished.keep(b"a", answer(500));
        finished.keep(b"b", answer(500));
        assert!(finished.take(b"a").is_none() && finished.take(b"b").is_some());
        finished.keep(b"c", answer(1001));
        assert!(finished.take(b"c").is_none());
        assert!(finished.kept.lock().is_empty());
    }
}
