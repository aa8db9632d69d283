//! Default values of a ModelDeployment.

use runway_api::model_deployment::{Autoscaling, Component, DEFAULT_GPU, Gpu, ModelDeploymentSpec, ServingMode};

/// Sets omitted values. Given values stay, including zeros. A second call changes nothing.
///
/// The served name has no default here: it follows the model's ID, which may change later. Neither has the number of GPUs:
/// omitted means none. With autoscaling, the model starts with the minimum number of replicas.
pub fn apply_defaults(spec: &mut ModelDeploymentSpec) {
    spec.model.source.get_or_insert_default();
    let mode = *spec.serving.get_or_insert_default().mode.get_or_insert_default();
    match mode {
        ServingMode::Aggregated => {
            let scaling = spec.scaling.get_or_insert_default();
            let minimum = scaling.autoscaling.as_ref().map(Autoscaling::min);
            // One outside of the limits is rejected under its own name.
            let first = minimum.filter(|minimum| (0..=1000).contains(minimum)).unwrap_or(1);
            scaling.replicas.get_or_insert(first);
        }
        ServingMode::Disaggregated => {
            for component in components(spec) {
                component.replicas.get_or_insert(1);
            }
        }
    }
    for gpu in gpus(spec) {
        gpu.kind.get_or_insert_with(|| DEFAULT_GPU.to_owned());
    }
}

fn components(spec: &mut ModelDeploymentSpec) -> impl Iterator<Item = &mut Component> {
    spec.scaling
        .iter_mut()
        .flat_map(|scaling| [&mut scaling.prefill, &mut scaling.decode])
        .flatten()
}

fn gpus(spec: &mut ModelDeploymentSpec) -> impl Iterator<Item = &mut Gpu> {
    let ModelDeploymentSpec { resources, scaling, .. } = spec;
    let components = scaling
        .iter_mut()
        .flat_map(|scaling| [&mut scaling.prefill, &mut scaling.decode])
        .flatten();
    let shared = resources.iter_mut().flat_map(|resources| &mut resources.gpu);
    shared.chain(components.flat_map(|component| &mut component.gpu))
}
