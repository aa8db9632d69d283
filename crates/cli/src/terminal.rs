//! Progress messages and questions, both on stderr, so that stdout contains only data.

use std::io::{self, Read, Write};

/// Terminal of the user.
pub struct Terminal<'a> {
    /// Source of answers and of manifests named `-`.
    pub stdin: &'a mut dyn Read,
}

impl Terminal<'_> {
    /// Writes a line to stderr.
    pub fn say(&mut self, text: &str) {
        // A closed stderr cannot be reported.
        let _ = writeln!(io::stderr(), "{text}");
    }

    /// Writes text to stderr, without a line break.
    pub fn write(&mut self, text: &str) {
        // A closed stderr cannot be reported.
        let _ = write!(io::stderr(), "{text}");
    }

    /// Asks for confirmation. Everything but `y` and `yes` is a no, including the end of the input.
    pub fn ask(&mut self, question: &str) -> bool {
        let answer = self
            .line(&format!("{question} [y/N] "))
            .unwrap_or_default()
            .to_lowercase();
        answer == "y" || answer == "yes"
    }

    /// Asks for a line; `None` at the end of the input.
    pub fn line(&mut self, question: &str) -> Option<String> {
        self.write(question);
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

/// Writes to stdout immediately; false if stdout is closed.
pub fn print(bytes: &[u8]) -> bool {
    let mut stdout = io::stdout().lock();
    stdout.write_all(bytes).and_then(|()| stdout.flush()).is_ok()
}
