//! Files of administrators, which Kubernetes mounts.

use std::fs::File;
use std::io::{self, Read as _};
use std::path::Path;

/// The text of a file of at most this many bytes; `None` if it is larger.
///
/// # Errors
/// The file cannot be read, or is not text.
pub fn text(path: &Path, largest: u64) -> io::Result<Option<String>> {
    let mut text = String::new();
    File::open(path)?.take(largest + 1).read_to_string(&mut text)?;
    Ok((text.len() as u64 <= largest).then_some(text))
}
