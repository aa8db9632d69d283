//! Values that are computed once for each text, such as compiled patterns.

use std::collections::BTreeMap;
use std::sync::Arc;

use parking_lot::RwLock;

/// Values by their text. It keeps each text that it has seen, so use it for texts of our own schemas only.
pub(super) struct Memo<T>(RwLock<BTreeMap<String, Arc<T>>>);

impl<T> Memo<T> {
    /// No values.
    pub(super) const fn new() -> Self {
        Self(RwLock::new(BTreeMap::new()))
    }

    /// The value of this text; `compute` is called for a new text.
    ///
    /// # Errors
    /// Those of `compute`, which are not kept.
    pub(super) fn get<E>(&self, text: &str, compute: impl FnOnce(&str) -> Result<T, E>) -> Result<Arc<T>, E> {
        if let Some(known) = self.0.read().get(text) {
            return Ok(known.clone());
        }
        let new = Arc::new(compute(text)?);
        self.0.write().insert(text.to_owned(), new.clone());
        Ok(new)
    }
}
