//! Any text as manifests: reading, `render` and `validate` end without a panic, and `render` gives the same twice.

use runway_client::documents::Documents;
use runway_client::render::{self, Show, render};
use runway_client::validate::validate;

pub fn run(data: &[u8]) {
    let Some(text) = crate::text(data) else { return };
    let rendered = |show| {
        let options = render::Options { show, now: crate::NOW };
        format!("{:?}", render(documents(text), &options))
    };
    rendered(Show::Objects);
    assert_eq!(rendered(Show::Status), rendered(Show::Status));
    let validated = validate(documents(text), crate::NOW);
    assert_eq!(validated.failed(), validate(documents(text), crate::NOW).failed());
    assert!(!validated.lines().iter().any(|line| line.text.is_empty()));
}

fn documents(text: &str) -> Documents {
    let mut documents = Documents::default();
    documents.take_in_text("file", text);
    documents
}
