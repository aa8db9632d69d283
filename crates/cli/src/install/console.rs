//! Progress and questions: both on stderr, so that stdout holds data only.

use std::io::{self, Read, Write};

/// Who sits there.
pub struct Console<'a> {
    /// Where answers, and manifests named `-`, come from.
    pub stdin: &'a mut dyn Read,
}

impl Console<'_> {
    /// Says something at once.
    pub fn say(&mut self, text: &str) {
        // There is nobody left to tell that stderr is gone.
        let _ = writeln!(io::stderr(), "{text}");
    }

    /// Asks; only a yes is one. The end of the input is a no.
    pub fn ask(&mut self, question: &str) -> bool {
        let answer = self
            .line(&format!("{question} [y/N] "))
            .unwrap_or_default()
            .to_lowercase();
        answer == "y" || answer == "yes"
    }

    /// Asks for a line; `None` at the end of the input.
    pub fn line(&mut self, question: &str) -> Option<String> {
        let _ = write!(io::stderr(), "{question}");
        let mut line = Vec::new();
        let mut byte = [0];
        loop {
            match self.stdin.read(&mut byte) {
                Ok(1) if byte[0] == b'\n' => break,
                Ok(1) => line.push(byte[0]),
                _ if line.is_empty() => return None,
                _ => break,
            }
        }
        Some(String::from_utf8_lossy(&line).trim().to_owned())
    }
}

/// Writes to stdout what cannot wait for the end of the command; false if nobody reads any more.
pub fn print(bytes: &[u8]) -> bool {
    let mut stdout = io::stdout().lock();
    stdout.write_all(bytes).and_then(|()| stdout.flush()).is_ok()
}
