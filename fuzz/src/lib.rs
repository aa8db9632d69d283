//! Properties that hold for any input, one function per fuzz target. [libFuzzer](https://llvm.org/docs/LibFuzzer.html) calls them by
//! the programs in `targets/`, the tests of this crate with every file of `corpus/`.
//!
//! A function panics when its property does not hold. An input that a target cannot use, such as one that is not text, passes.
#![allow(
    clippy::expect_used,
    clippy::missing_panics_doc,
    clippy::panic,
    clippy::unwrap_used,
    clippy::duplicate_mod,
    missing_docs,
    reason = "a panic is how a finding is reported; each target says at its top what it checks"
)]

pub mod addresses;
pub mod admission_review;
pub mod amqp_session;
pub mod asya_message;
pub mod cel_rule;
pub mod console_form;
pub mod crd_objects;
pub mod documents;
pub mod engine_answers;
pub mod engine_metrics;
pub mod gateway_messages;
pub mod gateway_submission;
pub mod kubeconfig;
pub mod management_answers;
pub mod merge;
pub mod names_and_paths;
pub mod oidc_token;
pub mod overrides;
pub mod provider_files;
pub mod redaction;
pub mod router_body;
pub mod router_keys;
pub mod router_limits;
pub mod router_models;
pub mod router_response;
pub mod runtime_frame;
pub mod sqs_answers;

use std::sync::LazyLock;

use jiff::Timestamp;
use tokio::runtime::{Builder, Runtime};

/// The time at which everything is looked at.
const NOW: Timestamp = Timestamp::UNIX_EPOCH;

/// The parts of an input: a NUL ends each. What is missing is empty; the last one has the rest.
fn parts<const N: usize>(data: &[u8]) -> [&[u8]; N] {
    let mut all = data.splitn(N, |byte| *byte == 0);
    std::array::from_fn(|_| all.next().unwrap_or_default())
}

fn text(data: &[u8]) -> Option<&str> {
    std::str::from_utf8(data).ok()
}

/// Runs something that waits for nothing but its own data.
fn wait<T>(future: impl Future<Output = T>) -> T {
    static RUNTIME: LazyLock<Runtime> = LazyLock::new(|| Builder::new_current_thread().enable_time().build().unwrap());
    RUNTIME.block_on(future)
}

#[cfg(test)]
mod tests {
    use std::path::{Path, PathBuf};
    use std::{fs, panic};

    use super::parts;

    macro_rules! replay {
        ($($target:ident)*) => {
            /// The targets whose corpus is replayed.
            const REPLAYED: &[&str] = &[$(stringify!($target)),*];
            $(
                #[test]
                fn $target() {
                    replay(stringify!($target), crate::$target::run);
                }
            )*
        };
    }

    replay! {
        addresses admission_review amqp_session asya_message cel_rule console_form crd_objects documents
        engine_answers engine_metrics gateway_messages gateway_submission kubeconfig management_answers merge
        names_and_paths oidc_token overrides provider_files redaction router_body router_keys
        router_limits router_models router_response runtime_frame sqs_answers
    }

    /// Every file of the corpus passes.
    fn replay(target: &str, run: fn(&[u8])) {
        let corpus = files(&format!("corpus/{target}"));
        assert!(!corpus.is_empty(), "{target} has no corpus");
        let fails = |file: &&PathBuf| panic::catch_unwind(|| run(&fs::read(file).unwrap())).is_err();
        let failed: Vec<&PathBuf> = corpus.iter().filter(fails).collect();
        assert!(failed.is_empty(), "{failed:#?}");
    }

    fn files(folder: &str) -> Vec<PathBuf> {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join(folder);
        let entries = fs::read_dir(&folder).unwrap_or_else(|error| panic!("{}: {error}", folder.display()));
        let mut files: Vec<PathBuf> = entries.map(|entry| entry.unwrap().path()).collect();
        files.sort();
        files
    }

    #[test]
    fn every_program_is_in_the_manifest_and_its_corpus_is_replayed() {
        let programs = files("targets");
        let names: Vec<_> = programs
            .iter()
            .map(|file| file.file_stem().unwrap().to_string_lossy())
            .collect();
        assert_eq!(names, REPLAYED);
        let manifest = fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join("Cargo.toml")).unwrap();
        for name in names {
            assert!(manifest.contains(&format!("path = \"targets/{name}.rs\"")), "{name}");
        }
    }

    #[test]
    fn an_input_has_as_many_parts_as_are_wanted() {
        assert_eq!(parts(b"a\0b\0c"), [&b"a"[..], b"b\0c"]);
        assert_eq!(parts(b"a"), [&b"a"[..], b"", b""]);
    }
}
