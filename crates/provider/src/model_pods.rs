//! Pods of a model, as the watch shows them: the least from which a plan decides whether the model serves.

use std::collections::hash_map::DefaultHasher;
use std::hash::{Hash, Hasher};

use k8s_openapi::api::core::v1::{EnvVar, Pod};
use kube::ResourceExt;
use runway_operator::kubelet::{self, Unready};
use serde_json::Value;

/// A pod of a model that is neither being deleted nor completed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ModelPod {
    /// Name of the pod.
    pub name: Box<str>,
    /// The object that controls the pod.
    pub controller: Option<Controller>,
    /// Reason why the pod is not ready; `None` if it is ready.
    pub unready: Option<Box<Unready>>,
    /// Hashes of the labels that distinguish components and rollouts.
    pub(crate) labels: Box<[u32]>,
    pub(crate) containers: Box<[Running]>,
}

/// Kind and name of the object that controls a pod.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Controller {
    /// Kind, such as `ReplicaSet`.
    pub kind: Box<str>,
    /// Name, in the pod's namespace.
    pub name: Box<str>,
}

/// A container of a pod. Commands, arguments and variables are kept as hashes, since they may be long.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Running {
    name: &'static str,
    image: Box<str>,
    command: Box<[u32]>,
    args: Box<[u32]>,
    variables: Box<[u32]>,
}

/// Desired container of a component's pods.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Container {
    /// Name of the container.
    pub name: &'static str,
    /// Image of the container.
    pub image: String,
    /// Command; `None` if the upstream sets it.
    pub command: Option<Vec<String>>,
    /// Arguments; `None` if the upstream sets them.
    pub args: Option<Vec<String>>,
    /// Whether the upstream adds arguments of its own.
    pub args_grow: bool,
    /// Variables. The upstream may add others.
    pub env: Vec<EnvVar>,
}

/// The first difference between a pod and its desired container.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Difference {
    /// It has no container of that name.
    Container(&'static str),
    /// It runs another image.
    Image {
        /// The image of the pod.
        runs: String,
        /// The desired image.
        wanted: String,
    },
    /// It runs another command.
    Command,
    /// It runs with other arguments.
    Args,
    /// A variable is missing or has another value.
    Variable(String),
}

impl Container {
    /// The container with this name from a pod template in which the provider sets everything that it runs; `None` if it has no image.
    pub fn of(name: &'static str, container: &Value) -> Option<Self> {
        let strings = |field: &str| {
            let values = container[field].as_array().into_iter().flatten();
            Some(values.filter_map(|value| value.as_str().map(str::to_owned)).collect())
        };
        Some(Self {
            name,
            image: container["image"].as_str()?.to_owned(),
            command: strings("command"),
            args: strings("args"),
            args_grow: false,
            env: serde_json::from_value(container["env"].clone()).unwrap_or_default(),
        })
    }
}

impl ModelPod {
    /// The kept form of a pod, with those of `labels` and of the containers with these names that it has; `None` if it is being
    /// deleted or completed, so that no request reaches it.
    pub fn of(labels: &[&'static str], containers: &[&'static str], pod: &Pod) -> Option<Self> {
        let phase = pod.status.as_ref().and_then(|status| status.phase.as_deref());
        if pod.metadata.deletion_timestamp.is_some() || phase == Some("Succeeded") {
            return None;
        }
        let controller = pod
            .owner_references()
            .iter()
            .find(|owner| owner.controller == Some(true));
        let running = |name: &&'static str| {
            let container = pod
                .spec
                .iter()
                .flat_map(|spec| &spec.containers)
                .find(|c| c.name == *name)?;
            Some(Running {
                name,
                image: container.image.as_deref().unwrap_or_default().into(),
                command: container.command.iter().flatten().map(hash).collect(),
                args: container.args.iter().flatten().map(hash).collect(),
                variables: container.env.iter().flatten().map(variable).collect(),
            })
        };
        Some(Self {
            name: pod.name_any().into(),
            controller: controller.map(|owner| Controller {
                kind: owner.kind.as_str().into(),
                name: owner.name.as_str().into(),
            }),
            labels: labels
                .iter()
                .filter_map(|key| Some(label(key, pod.labels().get(*key)?)))
                .collect(),
            unready: kubelet::unready(pod).map(Box::new),
            containers: containers.iter().filter_map(running).collect(),
        })
    }

    /// Whether the pod is ready.
    pub fn is_ready(&self) -> bool {
        self.unready.is_none()
    }

    /// Whether the pod has failed as a whole. Its workload replaces it, but the object remains.
    pub fn has_ended(&self) -> bool {
        self.unready.as_ref().is_some_and(|unready| unready.ended.is_some())
    }

    /// Whether the pod has all of these labels, of those that are kept.
    pub fn has(&self, labels: &[(&'static str, String)]) -> bool {
        labels
            .iter()
            .all(|(key, value)| self.labels.contains(&label(key, value)))
    }

    /// The first difference from the pod's desired container.
    ///
    /// Registries of images are not compared: clusters have mirrors, which admission webhooks write into pods.
    pub fn difference(&self, wanted: &Container) -> Option<Difference> {
        let Some(running) = self.containers.iter().find(|c| c.name == wanted.name) else {
            return Some(Difference::Container(wanted.name));
        };
        if last_part(&running.image) != last_part(&wanted.image) {
            return Some(Difference::Image {
                runs: running.image.to_string(),
                wanted: wanted.image.clone(),
            });
        }
        if let Some(command) = &wanted.command
            && !command.iter().map(hash).eq(running.command.iter().copied())
        {
            return Some(Difference::Command);
        }
        if let Some(args) = &wanted.args {
            let mut running = running.args.iter().copied();
            let are_there = args.iter().map(hash).all(|arg| {
                if wanted.args_grow {
                    running.any(|found| found == arg)
                } else {
                    running.next() == Some(arg)
                }
            });
            if !are_there || !wanted.args_grow && running.next().is_some() {
                return Some(Difference::Args);
            }
        }
        let mut asked = wanted.env.iter();
        let missing = asked.find(|asked| !running.variables.contains(&variable(asked)))?;
        Some(Difference::Variable(missing.name.clone()))
    }
}

/// Name and tag of an image, without registry and path.
fn last_part(image: &str) -> &str {
    image.rsplit_once('/').map_or(image, |(_, last)| last)
}

/// Hash of a label.
fn label(key: &str, value: &str) -> u32 {
    hash(&(key, value))
}

/// Hash of a variable. Of a reference only the object and the key count: the API server adds defaults to others.
fn variable(variable: &EnvVar) -> u32 {
    let from = variable.value_from.as_ref();
    let secret = from.and_then(|from| from.secret_key_ref.as_ref());
    let config_map = from.and_then(|from| from.config_map_key_ref.as_ref());
    hash(&(
        &variable.name,
        variable.value.as_deref().unwrap_or_default(),
        secret.map(|reference| (&reference.name, &reference.key)),
        config_map.map(|reference| (&reference.name, &reference.key)),
    ))
}

/// The lower half of a hash: a pod is kept for each running one, and a difference by chance of none is rare enough.
fn hash<T: Hash + ?Sized>(value: &T) -> u32 {
    let mut hasher = DefaultHasher::new();
    value.hash(&mut hasher);
    (hasher.finish() & u64::from(u32::MAX)).try_into().unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    /// Bytes of a kept pod, with its key in the store and its share of the map's nodes, which are two thirds full.
    fn bytes(kept: &ModelPod, key: &str) -> usize {
        let strings = [&*kept.name, key]
            .into_iter()
            .chain(
                kept.controller
                    .iter()
                    .flat_map(|controller| [&*controller.kind, &*controller.name]),
            )
            .chain(kept.containers.iter().map(|container| &*container.image));
        let hashes = kept
            .containers
            .iter()
            .map(|container| container.command.len() + container.args.len() + container.variables.len());
        (size_of::<ModelPod>() + size_of::<Box<str>>()) * 3 / 2
            + strings.map(str::len).sum::<usize>()
            + kept.containers.len() * size_of::<Running>()
            + (kept.labels.len() + hashes.sum::<usize>()) * size_of::<u32>()
    }

    #[test]
    fn running_pod_takes_little_memory() {
        const LABELS: [&str; 3] = ["ray.io/cluster", "ray.io/group", "ray.io/node-type"];
        let args: Vec<_> = (0..12).map(|number| format!("--argument-{number}=value")).collect();
        let env: Vec<_> = (0..12)
            .map(|number| json!({"name": format!("V{number}"), "value": "x".repeat(40)}))
            .collect();
        let pod = json!({
            "metadata": {
                "name": "llama-3-1-8b-instruct-raycluster-x7k2p-gpu-group-worker-z8v5q",
                "namespace": "team-language-models",
                "labels": LABELS.map(|label| (label, "llama-3-1-8b-instruct-raycluster-x7k2p")).into_iter()
                    .collect::<std::collections::BTreeMap<_, _>>(),
                "ownerReferences": [{
                    "apiVersion": "ray.io/v1", "kind": "RayCluster", "controller": true, "uid": "1",
                    "name": "llama-3-1-8b-instruct-raycluster-x7k2p",
                }],
            },
            "spec": { "containers": [{
                "name": "ray-worker", "image": "registry.example.com/team/vllm/vllm-openai:v0.11.0", "args": args, "env": env,
            }] },
            "status": { "phase": "Running", "conditions": [{ "type": "Ready", "status": "True" }] },
        });
        let pod: Pod = serde_json::from_value(pod).expect("a pod");
        let kept = ModelPod::of(&LABELS, &["ray-worker"], &pod).expect("a running pod");
        assert!(kept.is_ready());
        let key =
            "team-language-models/llama-3-1-8b-instruct/llama-3-1-8b-instruct-raycluster-x7k2p-gpu-group-worker-z8v5q";
        let bytes = bytes(&kept, key);
        assert!(bytes <= 614, "{bytes} bytes");
    }
}
