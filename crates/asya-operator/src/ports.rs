//! The port at which the model of a pod answers HTTP, by the names of its ports. Pure.

use serde_json::Value;

/// Containers beside a model whose ports are not its own: proxies of meshes and of authentication, and Seldon 2's agent and rclone
/// (`operator/config/serverconfigs` of seldon-core 2).
const HELPERS: [&str; 10] = [
    "istio-proxy",
    "linkerd-proxy",
    "consul-dataplane",
    "envoy",
    "queue-proxy",
    "kube-rbac-proxy",
    "oauth-proxy",
    "cloud-sql-proxy",
    "rclone",
    "agent",
];

/// Names of a port for HTTP without TLS.
const HTTP: [&str; 4] = ["http", "http1", "openai", "serve"];
/// Words in the name of a port that answers no request for the model over HTTP/1 without TLS.
const OTHER: [&str; 17] = [
    "admin",
    "debug",
    "dashboard",
    "gcs",
    "grpc",
    "h2c",
    "health",
    "healthz",
    "http2",
    "https",
    "metrics",
    "monitoring",
    "pprof",
    "probe",
    "prom",
    "prometheus",
    "tls",
];

/// A TCP port of a container.
struct Port<'a> {
    number: i64,
    name: &'a str,
}

impl<'a> Port<'a> {
    fn read(port: &'a Value) -> Option<Self> {
        Some(Self {
            number: port["containerPort"].as_i64()?,
            name: port["name"].as_str().unwrap_or_default(),
        })
    }

    fn has(&self, words: &[&str]) -> bool {
        self.name.split('-').any(|word| words.contains(&word))
    }

    /// Certainty that it is the port of the model; 0 if it is certainly another one.
    fn rank(&self) -> u8 {
        match self.name {
            _ if self.has(&OTHER) => 0,
            name if HTTP.contains(&name) => 3,
            _ if self.has(&HTTP) => 2,
            _ => 1,
        }
    }
}

/// The port of the model in a pod. None if the pod declares none.
///
/// # Errors
/// The ports of the pod, if none of them is certain.
pub(crate) fn choose(pod: &Value) -> Result<Option<i64>, String> {
    let all: Vec<Port<'_>> = ports(pod);
    let best = all.iter().map(Port::rank).max();
    let mut chosen: Vec<i64> = all
        .iter()
        .filter(|port| Some(port.rank()) == best)
        .map(|port| port.number)
        .collect();
    chosen.dedup();
    match (best, chosen.as_slice()) {
        (None, _) => Ok(None),
        (Some(1..), [port]) => Ok(Some(*port)),
        (Some(rank), _) => {
            let names: Vec<String> = all.iter().map(described).collect();
            let why = if rank == 0 {
                "none of which is for HTTP"
            } else {
                "and it is not certain which one is for HTTP"
            };
            Err(format!("has the ports {}, {why}", names.join(", ")))
        }
    }
}

fn ports(pod: &Value) -> Vec<Port<'_>> {
    let containers = pod["containers"].as_array().into_iter().flatten();
    let models = containers.filter(|container| !HELPERS.iter().any(|helper| container["name"] == *helper));
    let ports = models.flat_map(|container| container["ports"].as_array().into_iter().flatten());
    let tcp = ports.filter(|port| port["protocol"].as_str().is_none_or(|protocol| protocol == "TCP"));
    tcp.filter_map(Port::read).collect()
}

fn described(port: &Port<'_>) -> String {
    match port.name {
        "" => port.number.to_string(),
        name => format!("{} ({name})", port.number),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    /// Names of containers with the numbers and names of their ports.
    type Pod = [(&'static str, &'static [(i64, &'static str)])];

    fn of(containers: &Pod) -> Result<Option<i64>, String> {
        let port = |(number, name): &(i64, &str)| match *name {
            "" => json!({"containerPort": number}),
            "udp" => json!({"containerPort": number, "protocol": "UDP"}),
            name => json!({"containerPort": number, "name": name, "protocol": "TCP"}),
        };
        let container = |(name, ports): &(&str, &[(i64, &str)])| json!({"name": name, "ports": ports.iter().map(port).collect::<Vec<_>>()});
        choose(&json!({"containers": containers.iter().map(container).collect::<Vec<_>>()}))
    }

    #[test]
    fn port_of_the_model_is_chosen_in_pods_of_real_platforms() {
        let cases: [(&str, &Pod, i64); 9] = [
            ("vLLM", &[("vllm", &[(8000, "")])], 8000),
            (
                "Triton, gRPC first",
                &[("triton", &[(8001, "grpc"), (8000, "http"), (8002, "metrics")])],
                8000,
            ),
            (
                "Server of Seldon 2",
                &[
                    ("rclone", &[(5572, "rclone")]),
                    ("agent", &[(9501, "grpc"), (9001, "http"), (9006, "metrics")]),
                    (
                        "triton",
                        &[(9500, "server-grpc"), (9000, "server-http"), (8002, "server-metrics")],
                    ),
                ],
                9000,
            ),
            (
                "Istio's proxy first",
                &[("istio-proxy", &[(15090, "http-envoy-prom")]), ("model", &[(8080, "")])],
                8080,
            ),
            (
                "Ray head",
                &[("head", &[(6379, "gcs"), (8265, "dashboard"), (8000, "serve")])],
                8000,
            ),
            ("beside HTTPS", &[("model", &[(8443, "https"), (8080, "rest")])], 8080),
            ("beside UDP", &[("model", &[(5000, "udp"), (8080, "")])], 8080),
            (
                "beside an exporter",
                &[("model", &[(8000, "")]), ("exporter", &[(9400, "metrics")])],
                8000,
            ),
            ("twice", &[("model", &[(8000, "http"), (8000, "http")])], 8000),
        ];
        for (name, pod, expected) in cases {
            assert_eq!(of(pod), Ok(Some(expected)), "{name}");
        }
        assert_eq!(of(&[("model", &[])]), Ok(None));
        assert_eq!(choose(&json!({})), Ok(None));
    }

    #[test]
    fn uncertain_ports_are_listed() {
        let three: &'static [(i64, &'static str)] = &[(8000, ""), (8001, ""), (8002, "")];
        assert_eq!(
            of(&[("triton", three)]),
            Err("has the ports 8000, 8001, 8002, and it is not certain which one is for HTTP".to_owned())
        );
        assert_eq!(
            of(&[("model", &[(8443, "https"), (9090, "metrics")])]),
            Err("has the ports 8443 (https), 9090 (metrics), none of which is for HTTP".to_owned())
        );
    }
}
