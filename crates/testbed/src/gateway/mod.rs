//! A Gateway of the Gateway API whose data path is a real Envoy. Its controller is a **simulator**: the smallest translator of
//! HTTPRoutes and InferencePools, and not an implementation of the Gateway API.
//!
//! Five times a second, it reads one Gateway and what belongs to it, translates that into resources of Envoy, and writes the status of
//! Gateways, HTTPRoutes and InferencePools as an implementation does. Envoy reads the resources from files and follows their changes
//! without a restart. It sends each request of a pool to the endpoint that the pool's endpoint picker chooses, over TLS that is not
//! verified, and finds the picker by the DNS of the cluster.
//!
//! | part | support |
//! |---|---|
//! | Gateway | one, with one listener for HTTP; `allowedRoutes` by `Same`, `All` or a selector of labels |
//! | HTTPRoute | prefixes of paths, exact headers, several backends, `timeouts.request`; everything else is refused (`UnsupportedValue`) |
//! | backends | Services and InferencePools of the route's namespace, by the addresses of ready pods |
//! | InferencePool | one port, `endpointPickerRef` to a Service, both failure modes |
//!
//! No request is repeated, and each has a connection of its own: see `xds.rs`.

mod status;
mod translate;
mod xds;

use std::net::{Ipv4Addr, SocketAddr, SocketAddrV4};
use std::time::Duration;

use anyhow::{Context as _, Result};
use k8s_openapi::api::core::v1::{Namespace, Pod, Service};
use k8s_openapi::api::discovery::v1::EndpointSlice;
use kube::api::{ListParams, Patch, PatchParams};
use kube::core::{ApiResource, DynamicObject, GroupVersionKind};
use kube::{Api, Client};
use serde_json::json;
use tokio_util::task::AbortOnDropHandle;

use crate::Node;
use crate::control_plane::free_port;
use crate::envoy::Envoy;
use crate::{crds, say};
use status::Status;
use translate::{Seen, translate};
use xds::Files;

/// Class of the Gateway.
pub const CLASS: &str = "runway-testbed-simulator";
/// Response header with the address of the pod that has answered.
pub const UPSTREAM: &str = "x-testbed-upstream";
/// User of the simulator.
const USER: &str = "gateway-simulator";
/// Pause between two translations.
const PERIOD: Duration = Duration::from_millis(200);
/// Group of Gateways and HTTPRoutes.
const GATEWAY_API: &str = "gateway.networking.k8s.io";
/// Group of InferencePools.
const INFERENCE: &str = "inference.networking.k8s.io";

/// A Gateway and its Envoy. Dropping it ends both; the statuses stay.
pub struct Gateway {
    /// Address for clients, which is in the status of the Gateway.
    pub address: SocketAddr,
    _envoy: Envoy,
    _simulator: AbortOnDropHandle<()>,
}

impl Gateway {
    /// Installs the CRDs of the Gateway API and of its inference extension, in place of the administrator.
    ///
    /// # Errors
    /// They cannot be downloaded, or the API server refuses them.
    pub async fn install_crds(client: &Client) -> Result<()> {
        for crd in crds::gateway_api().await? {
            crds::install_crd(client, crd).await?;
        }
        Ok(())
    }

    /// Starts the data path of an existing Gateway at the address of the host for pods of this node.
    ///
    /// # Errors
    /// The Gateway does not exist or has other than one listener, or Envoy does not start.
    pub async fn start(node: &Node, namespace: &str, name: &str) -> Result<Self> {
        let client = node.client(USER, &["system:masters"]).await?;
        let place = Place {
            namespace: namespace.to_owned(),
            name: name.to_owned(),
            host: node.network().host(),
            dns: SocketAddrV4::new(node.network().node(), 53),
        };
        let admin = SocketAddr::from((Ipv4Addr::LOCALHOST, free_port()?));
        let folder = tempfile::Builder::new().prefix("runway-testbed-gateway-").tempdir()?;
        let mut simulator = Simulator {
            files: Files::new(folder.path(), admin),
            client,
            place,
        };
        let wanted = translate(&simulator.observe().await?)?;
        let address = SocketAddr::from((simulator.place.host, wanted.port));
        simulator.files.begin(&wanted, &simulator.place)?;
        let envoy = Envoy::run(&simulator.files.bootstrap(), folder, address).await?;
        Ok(Self {
            address,
            _envoy: envoy,
            _simulator: AbortOnDropHandle::new(tokio::spawn(simulator.run())),
        })
    }
}

/// The Gateway, and the addresses of the cluster.
struct Place {
    namespace: String,
    name: String,
    /// Address at which Envoy listens.
    host: Ipv4Addr,
    /// DNS server of the cluster.
    dns: SocketAddrV4,
}

/// The simulator of the Gateway's controller.
struct Simulator {
    client: Client,
    place: Place,
    files: Files,
}

impl Simulator {
    async fn run(mut self) {
        let mut last = String::new();
        loop {
            let error = self.round().await.err().map(|error| format!("{error:#}"));
            let error = error.unwrap_or_default();
            if !error.is_empty() && error != last {
                say(&format!("the simulator of the Gateway failed: {error}; it tries again"));
            }
            last = error;
            tokio::time::sleep(PERIOD).await;
        }
    }

    /// Translates once. Envoy has the routes before the status says so.
    async fn round(&mut self) -> Result<()> {
        let wanted = translate(&self.observe().await?)?;
        self.files.update(&wanted, &self.place).await?;
        for status in &wanted.statuses(self.place.host) {
            self.write(status).await?;
        }
        Ok(())
    }

    async fn observe(&self) -> Result<Seen> {
        let gateways = self.objects(GATEWAY_API, "Gateway", Some(&self.place.namespace));
        let all = ListParams::default();
        let gateway = gateways.get(&self.place.name).await?;
        Ok(Seen {
            routes: self.objects(GATEWAY_API, "HTTPRoute", None).list(&all).await?.items,
            pools: self.objects(INFERENCE, "InferencePool", None).list(&all).await?.items,
            namespaces: Api::<Namespace>::all(self.client.clone()).list(&all).await?.items,
            services: Api::<Service>::all(self.client.clone()).list(&all).await?.items,
            slices: Api::<EndpointSlice>::all(self.client.clone()).list(&all).await?.items,
            pods: Api::<Pod>::all(self.client.clone()).list(&all).await?.items,
            gateway,
        })
    }

    /// Writes a status if it differs from that of the object.
    async fn write(&self, status: &Status) -> Result<()> {
        let Some(changed) = status.changed(&now()) else {
            return Ok(());
        };
        let object = &status.object;
        let types = object.types.as_ref().context("an object has a kind")?;
        let group = types.api_version.split('/').next().unwrap_or_default();
        let name = object.metadata.name.as_deref().unwrap_or_default();
        let api = self.objects(group, &types.kind, object.metadata.namespace.as_deref());
        let patch = Patch::Merge(json!({ "status": changed }));
        match api.patch_status(name, &PatchParams::default(), &patch).await {
            // It was deleted meanwhile.
            Err(kube::Error::Api(error)) if error.is_not_found() => Ok(()),
            other => other
                .map(drop)
                .with_context(|| format!("the status of {} '{name}'", types.kind)),
        }
    }

    fn objects(&self, group: &str, kind: &str, namespace: Option<&str>) -> Api<DynamicObject> {
        let resource = ApiResource::from_gvk(&GroupVersionKind::gvk(group, "v1", kind));
        match namespace {
            Some(namespace) => Api::namespaced_with(self.client.clone(), namespace, &resource),
            None => Api::all_with(self.client.clone(), &resource),
        }
    }
}

#[allow(
    clippy::disallowed_methods,
    reason = "the simulator is an edge: it plays a foreign program with a clock of its own"
)]
fn now() -> String {
    jiff::Timestamp::now().to_string()
}
