//! Any text as manifests: reading, `render` and `validate` end without a panic and give the same twice. The same text as a
//! kubeconfig is read or refused.

use kube::config::Kubeconfig;
use runway_client::documents::Documents;
use runway_client::render::{self, Show, render};
use runway_client::validate::validate;

pub fn run(data: &[u8]) {
    let Some(text) = crate::text(data) else { return };
    let _ = Kubeconfig::from_yaml(text);
    for show in [Show::Objects, Show::Status] {
        let options = render::Options { show, now: crate::NOW };
        let rendered = || format!("{:?}", render(documents(text), &options));
        assert_eq!(rendered(), rendered());
    }
    let validated = || {
        let validated = validate(documents(text), crate::NOW);
        format!(
            "{:?}{:?}{}",
            validated.documents,
            validated.lines(),
            validated.summary()
        )
    };
    assert_eq!(validated(), validated());
}

fn documents(text: &str) -> Documents {
    let mut documents = Documents::default();
    documents.take_in_text("file", text);
    documents
}
