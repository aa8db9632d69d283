//! Any text as the file of the router's limits: it is refused, or each of its rules is in force or skipped, with short messages.

use runway_router::limits::Rules;

const MAX_MESSAGE: usize = 2048;

pub fn run(data: &[u8]) {
    let Some(text) = crate::text(data) else { return };
    match Rules::read(text) {
        Ok(rules) => {
            for (_, invalid) in rules.skipped {
                assert!(invalid.to_string().len() <= MAX_MESSAGE, "{invalid}");
            }
        }
        Err(error) => assert!(error.to_string().len() <= MAX_MESSAGE, "{error}"),
    }
}
