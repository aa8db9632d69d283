//! The programs of a node and how they are set up. Settings that look odd are explained where they stand.

use std::{
    fs,
    path::{Path, PathBuf},
};

use anyhow::Result;
use serde_json::{Value, json};

use super::{NODE_NAME, Network};
use crate::{binaries::NodeBinaries, control_plane::Cluster};

/// Socket of containerd, as seen from inside.
pub(crate) const SOCKET: &str = "/run/containerd/containerd.sock";
/// Name of the file with the kubelet's settings, which are JSON.
pub(crate) const KUBELET_SETTINGS: &str = "kubelet.yaml";
/// Memory of the machine that pods cannot have.
pub(crate) const FREE_MEMORY: &str = "50Mi";
const PLUGINS: &str = "/usr/lib/cni";
const SEARCH_PATH: &str = "PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";

/// Environment of the daemons.
pub(crate) struct Setup<'a> {
    pub(crate) cluster: &'a Cluster,
    pub(crate) binaries: &'a NodeBinaries,
    pub(crate) network: &'a Network,
    /// The node's own folder.
    pub(crate) folder: &'a Path,
    pub(crate) cgroup: &'a str,
    pub(crate) pause_image: &'a str,
}

impl Setup<'_> {
    /// Writes containerd's settings; returns its command line.
    pub(crate) fn containerd(&self) -> Result<Vec<String>> {
        let cni = self.folder.join("cni");
        fs::create_dir_all(&cni)?;
        fs::write(
            cni.join("10-testbed.conflist"),
            json!({
                "cniVersion": "1.0.0",
                "name": "testbed",
                "plugins": [
                    {
                        "type": "ptp",
                        "ipam": {
                            "type": "host-local",
                            "ranges": [[{"subnet": self.network.pods()}]],
                            "routes": [{"dst": "0.0.0.0/0"}],
                            "dataDir": "/run/cni",
                        },
                    },
                    {"type": "portmap", "capabilities": {"portMappings": true}},
                ],
            })
            .to_string(),
        )?;
        let config = self.write(
            "containerd.toml",
            &format!(
                r#"version = 3
root = "{root}"
state = "/run/containerd"
disabled_plugins = ["io.containerd.nri.v1.nri"]

[grpc]
address = "{SOCKET}"

[plugins.'io.containerd.cri.v1.images']
snapshotter = "overlayfs"

[plugins.'io.containerd.cri.v1.images'.pinned_images]
sandbox = "{pause}"

[plugins.'io.containerd.cri.v1.runtime']
# Machines without CAP_SYS_RESOURCE cannot lower it, and every pod would die of that.
restrict_oom_score_adj = true

[plugins.'io.containerd.cri.v1.runtime'.containerd.runtimes.runc]
runtime_type = "io.containerd.runc.v2"

[plugins.'io.containerd.cri.v1.runtime'.containerd.runtimes.runc.options]
BinaryName = "{runc}"
SystemdCgroup = false

[plugins.'io.containerd.cri.v1.runtime'.cni]
bin_dirs = ["{PLUGINS}"]
conf_dir = "{cni}"
"#,
                root = self.folder.join("containerd").display(),
                pause = self.pause_image,
                runc = self.binaries.runc.display(),
                cni = cni.display(),
            ),
        )?;
        Ok(command(
            &self.binaries.containerd,
            &[format!("--config={}", config.display())],
        ))
    }

    /// Writes the kubelet's settings; returns its command line.
    pub(crate) fn kubelet(&self) -> Result<Vec<String>> {
        let kubeconfig = self
            .cluster
            .kubeconfig(&format!("system:node:{NODE_NAME}"), &["system:nodes"])?;
        // Names come from CoreDNS alone: no test depends on what the machine can resolve.
        let resolver = self.write("resolv.conf", "")?;
        let config = self.write_json(
            KUBELET_SETTINGS,
            &json!({
                "apiVersion": "kubelet.config.k8s.io/v1beta1",
                "kind": "KubeletConfiguration",
                "authentication": {
                    "anonymous": {"enabled": false},
                    "webhook": {"enabled": true},
                    "x509": {"clientCAFile": self.cluster.pki().join("ca.crt")},
                },
                "authorization": {"mode": "Webhook"},
                "containerRuntimeEndpoint": format!("unix://{SOCKET}"),
                "cgroupDriver": "cgroupfs",
                "cgroupRoot": self.cgroup,
                "enforceNodeAllocatable": [],
                // The machine may have cgroup version 1 still, and swap.
                "failCgroupV1": false,
                "failSwapOn": false,
                "oomScoreAdj": 0,
                "clusterDomain": "cluster.local",
                "clusterDNS": [self.network.node()],
                "resolvConf": resolver,
                "podLogsDir": self.folder.join("pod-logs"),
                "volumePluginDir": "/run/kubelet/plugins-of-volumes",
                // A full disk is the machine's matter, not a test's.
                "evictionHard": {"memory.available": FREE_MEMORY, "nodefs.available": "1%", "imagefs.available": "1%"},
                "imageGCHighThresholdPercent": 100,
                "imageGCLowThresholdPercent": 99,
                "localStorageCapacityIsolation": false,
                "maxPods": 200,
                "nodeStatusUpdateFrequency": "2s",
                "registryPullQPS": 0,
            }),
        )?;
        Ok(command(
            &self.binaries.kubelet,
            &[
                format!("--config={}", config.display()),
                format!("--kubeconfig={}", kubeconfig.display()),
                format!("--hostname-override={NODE_NAME}"),
                format!("--node-ip={}", self.network.node()),
                // Short, because sockets in it may not have longer names than about 100 characters.
                "--root-dir=/run/kubelet".to_owned(),
                "--cert-dir=/run/kubelet/pki".to_owned(),
                "--v=2".to_owned(),
            ],
        ))
    }

    /// Writes kube-proxy's settings; returns its command line.
    pub(crate) fn kube_proxy(&self) -> Result<Vec<String>> {
        let kubeconfig = self.cluster.kubeconfig("system:kube-proxy", &[])?;
        let config = self.write_json(
            "kube-proxy.yaml",
            &json!({
                "apiVersion": "kubeproxy.config.k8s.io/v1alpha1",
                "kind": "KubeProxyConfiguration",
                "mode": "iptables",
                "hostnameOverride": NODE_NAME,
                "clusterCIDR": self.network.pods(),
                "clientConnection": {"kubeconfig": kubeconfig},
                "oomScoreAdj": 0,
                // These are the machine's, and cannot be set from inside.
                "conntrack": {
                    "maxPerCore": 0,
                    "tcpEstablishedTimeout": "0s",
                    "tcpCloseWaitTimeout": "0s",
                },
                "iptables": {"minSyncPeriod": "100ms"},
            }),
        )?;
        Ok(command(
            &self.binaries.kube_proxy,
            &[format!("--config={}", config.display())],
        ))
    }

    /// Writes CoreDNS's settings; returns its command line.
    pub(crate) fn coredns(&self) -> Result<Vec<String>> {
        let kubeconfig = self.cluster.kubeconfig("coredns", &["system:masters"])?;
        let config = self.write(
            "Corefile",
            &format!(
                "cluster.local in-addr.arpa ip6.arpa {{
    bind {address}
    errors
    kubernetes {{
        kubeconfig {kubeconfig} testbed
        pods insecure
        ttl 1
    }}
}}
. {{
    bind {address}
    errors
    template ANY ANY . {{
        rcode NXDOMAIN
    }}
}}
",
                address = self.network.node(),
                kubeconfig = kubeconfig.display(),
            ),
        )?;
        Ok(command(
            &self.binaries.coredns,
            &["-conf".to_owned(), config.display().to_string()],
        ))
    }

    /// The scheduler's command line. It needs no node, so it runs on the host.
    pub(crate) fn kube_scheduler(&self) -> Result<Vec<String>> {
        let kubeconfig = self.cluster.kubeconfig("system:kube-scheduler", &["system:masters"])?;
        Ok(vec![
            format!("--kubeconfig={}", kubeconfig.display()),
            "--leader-elect=false".to_owned(),
            "--secure-port=0".to_owned(),
        ])
    }

    fn write_json(&self, name: &str, value: &Value) -> Result<PathBuf> {
        // JSON is YAML.
        self.write(name, &serde_json::to_string_pretty(value)?)
    }

    fn write(&self, name: &str, text: &str) -> Result<PathBuf> {
        let path = self.folder.join(name);
        fs::write(&path, text)?;
        Ok(path)
    }
}

/// Search path with the programs of root, regardless of the caller's.
fn command(program: &Path, args: &[String]) -> Vec<String> {
    let mut command = vec!["env".to_owned(), SEARCH_PATH.to_owned(), program.display().to_string()];
    command.extend_from_slice(args);
    command
}
