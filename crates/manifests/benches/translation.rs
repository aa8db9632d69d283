//! Benchmark of each provider's translation of its largest example: `cargo bench -p runway-manifests --bench translation`.
//!
//! Target: under 100 µs each. A translation runs in every reconcile, even if the plan is silent.
#![allow(missing_docs, clippy::expect_used, reason = "a bench that cannot run should fail")]

use std::hint::black_box;

use criterion::{Criterion, criterion_group, criterion_main};
use runway_api::ModelDeployment;
use runway_manifests as manifests;
use runway_provider::{Installed, Request};

/// The input of each provider that says most: every field, where the provider takes it.
const LARGEST: [(&str, &str); 3] = [
    (
        "kaito",
        include_str!("../../provider-kaito/tests/cases/vllm-image/input.yaml"),
    ),
    (
        "dynamo",
        include_str!("../../provider-dynamo/tests/cases/vllm-disaggregated-everything/input.yaml"),
    ),
    (
        "kuberay",
        include_str!("../../provider-kuberay/tests/cases/everything/input.yaml"),
    ),
];

fn translation(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("translation");
    for provider in manifests::built_in_providers() {
        let (_, input) = LARGEST
            .iter()
            .find(|(name, _)| *name == provider.name())
            .expect("every provider has its largest example");
        let md: ModelDeployment = serde_saphyr::from_str(input).expect("the example is a ModelDeployment");
        let installed = Installed::newest(&provider.upstreams());
        group.bench_function(provider.name(), |bencher| {
            bencher.iter(|| {
                let request = Request::try_from(black_box(&md)).expect("the example is valid");
                provider
                    .translate(&request, &installed)
                    .expect("the example translates")
            });
        });
    }
    group.finish();
}

criterion_group!(benches, translation);
criterion_main!(benches);
