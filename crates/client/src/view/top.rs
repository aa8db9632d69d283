//! `kubeairunway top`: the use of models, as their engines report it. Pure.

use comfy_table::Cell;
use runway_engines::Usage;
use serde::Serialize;

use crate::text;

/// Pod of a ModelDeployment, and what was read of it.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct PodUsage {
    /// Name.
    pub pod: String,
    /// Use of its engine; absent if it was not read.
    #[serde(flatten)]
    pub usage: Option<Usage>,
    /// Reason why there is none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// Whether the pod may have no engine, such as the head of a Ray cluster or a pod that has not started.
    #[serde(skip)]
    pub is_optional: bool,
}

/// Use of a ModelDeployment.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Top {
    /// Namespace.
    pub namespace: String,
    /// Name.
    pub name: String,
    /// Use of all engines together; absent if none was read.
    #[serde(flatten)]
    pub usage: Option<Usage>,
    /// The pods.
    pub pods: Vec<PodUsage>,
    /// Reasons why the use of pods is not known.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub problems: Vec<String>,
}

impl Top {
    /// Use of a ModelDeployment with these pods. A pod without an engine is a problem only if no other pod has one.
    pub fn new(namespace: String, name: String, pods: Vec<PodUsage>) -> Self {
        let usage = pods.iter().filter_map(|pod| pod.usage).reduce(Usage::and);
        let problem = |pod: &PodUsage| {
            let reason = pod.reason.as_ref()?;
            (!pod.is_optional || usage.is_none()).then(|| format!("Pod/{}: {reason}", pod.pod))
        };
        let mut problems: Vec<String> = pods.iter().filter_map(problem).collect();
        if pods.is_empty() {
            problems.push("it has no pods".to_owned());
        }
        Self {
            namespace,
            name,
            usage,
            pods,
            problems,
        }
    }

    /// A ModelDeployment whose pods cannot be listed.
    pub fn unknown(namespace: String, name: String, reason: String) -> Self {
        Self {
            namespace,
            name,
            usage: None,
            pods: Vec::new(),
            problems: vec![reason],
        }
    }

    /// Pods whose engine was read, and all pods, such as `1/2`.
    pub fn read(&self) -> String {
        let read = self.pods.iter().filter(|pod| pod.usage.is_some()).count();
        format!("{read}/{}", self.pods.len())
    }
}

/// Columns of the table.
#[derive(Clone, Copy, Debug, Default)]
pub struct Options {
    /// A row for each pod instead of each ModelDeployment.
    pub pods: bool,
    /// Add the namespace.
    pub namespaces: bool,
}

/// The table.
pub fn table(all: &[Top], options: Options) -> String {
    let mut header = vec!["NAME", if options.pods { "POD" } else { "PODS" }];
    header.extend(["ENGINE", "RUNNING", "WAITING", "TOKENS/S", "KV CACHE"]);
    if options.namespaces {
        header.insert(0, "NAMESPACE");
    }
    let mut table = text::table(&header);
    for top in all {
        let mut row = |pods: String, usage: Option<&Usage>| {
            let namespace = options.namespaces.then(|| top.namespace.clone());
            let cells = namespace
                .into_iter()
                .chain([top.name.clone(), pods])
                .chain(cells(usage));
            table.add_row(cells.map(Cell::new));
        };
        if options.pods {
            for pod in &top.pods {
                row(pod.pod.clone(), pod.usage.as_ref());
            }
        } else {
            row(top.read(), top.usage.as_ref());
        }
    }
    text::aligned(&table)
}

/// Engine, running and waiting requests, tokens per second and use of the KV cache. What is absent is `-`.
pub fn cells(usage: Option<&Usage>) -> [String; 5] {
    let value = |of: fn(&Usage) -> Option<f64>| usage.and_then(of);
    let number = |value: Option<f64>| value.map_or_else(absent, |value| format!("{value:.0}"));
    [
        usage.map_or_else(absent, |usage| usage.engine.to_owned()),
        number(value(|usage| usage.running)),
        number(value(|usage| usage.waiting)),
        value(|usage| usage.tokens_per_second).map_or_else(absent, |value| format!("{value:.1}")),
        value(|usage| usage.kv_cache).map_or_else(absent, |share| format!("{:.0}%", share * 100.0)),
    ]
}

fn absent() -> String {
    "-".to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn usage(kv_cache: Option<f64>) -> Usage {
        Usage {
            engine: "vLLM",
            running: Some(3.0),
            waiting: Some(0.0),
            tokens_per_second: Some(41.25),
            kv_cache,
            first_token: [None; 2],
        }
    }

    fn pod(name: &str, found: Result<Usage, &str>, is_optional: bool) -> PodUsage {
        PodUsage {
            pod: name.to_owned(),
            usage: found.ok(),
            reason: found.err().map(str::to_owned),
            is_optional,
        }
    }

    fn top(name: &str, pods: Vec<PodUsage>) -> Top {
        Top::new("default".to_owned(), name.to_owned(), pods)
    }

    #[test]
    fn absent_values_are_dashes() {
        let all = [
            top("asleep", Vec::new()),
            top("gemma", vec![pod("gemma-0", Ok(usage(None)), false)]),
            top(
                "llama",
                vec![
                    pod("llama-0", Ok(usage(Some(0.5))), false),
                    pod("llama-1", Ok(usage(Some(0.914))), false),
                    pod("llama-2", Err("HTTP 503"), false),
                ],
            ),
        ];
        let wanted = concat!(
            "NAME    PODS  ENGINE  RUNNING  WAITING  TOKENS/S  KV CACHE\n",
            "asleep  0/0   -       -        -        -         -\n",
            "gemma   1/1   vLLM    3        0        41.2      -\n",
            "llama   2/3   vLLM    6        0        82.5      91%\n",
        );
        assert_eq!(table(&all, Options::default()), wanted);
        let options = Options {
            pods: true,
            namespaces: true,
        };
        let of_pods = table(&all[2..], options);
        assert!(of_pods.contains("default    llama  llama-2  -       -"), "{of_pods}");
    }

    #[test]
    fn reasons_are_reported_unless_another_pod_has_the_engine() {
        let head = || pod("ray-head", Err("it has no engine metrics"), true);
        assert_eq!(
            top("a", vec![head(), pod("ray-worker", Ok(usage(None)), false)]).problems,
            [""; 0]
        );
        assert_eq!(
            top("a", vec![head()]).problems,
            ["Pod/ray-head: it has no engine metrics"]
        );
        let failed = pod("b", Err("HTTP 503"), false);
        let problems = top("a", vec![pod("a", Ok(usage(None)), false), failed]).problems;
        assert_eq!(problems, ["Pod/b: HTTP 503"]);
        assert_eq!(top("a", Vec::new()).problems, ["it has no pods"]);
    }

    #[test]
    fn absent_values_are_not_in_the_document() {
        let json = serde_json::to_value(top("gemma", vec![pod("gemma-0", Ok(usage(None)), false)])).unwrap();
        let of_engine = serde_json::json!({"engine": "vLLM", "running": 3.0, "waiting": 0.0, "tokensPerSecond": 41.25});
        let mut of_pod = of_engine.clone();
        of_pod["pod"] = "gemma-0".into();
        let mut wanted = of_engine;
        for (key, value) in [
            ("namespace", "default".into()),
            ("name", "gemma".into()),
            ("pods", serde_json::json!([of_pod])),
        ] {
            wanted[key] = value;
        }
        assert_eq!(json, wanted);
    }
}
