//! The Kubernetes programs themselves: found where the user says, or built from source once and kept.

use std::{
    fs::{self, File},
    path::{Path, PathBuf},
    process::{Command, Stdio},
    time::{Duration, Instant},
};

use anyhow::{Context, Result, bail};
use indicatif::{ProgressBar, ProgressStyle};
use runway_dev_support::OlderKubernetes;
use sha2::{Digest, Sha256};

use crate::{
    cache::{cache_folder, environment, hold},
    packages, say,
};

/// Without the version stamp an apiserver says "v0.0.0" and refuses to start.
const KUBERNETES: Module = Module {
    name: "kubernetes",
    go_mod: include_str!("../kubernetes/go.mod"),
    go_sum: include_str!("../kubernetes/go.sum"),
    ldflags: "-s -w \
        -X k8s.io/component-base/version.gitVersion=v1.36.3 \
        -X k8s.io/component-base/version.gitMajor=1 \
        -X k8s.io/component-base/version.gitMinor=36",
    tags: "",
    cgo: false,
};
const KUBERNETES_1_33: Module = Module {
    name: "kubernetes-1.33",
    go_mod: include_str!("../kubernetes-1.33/go.mod"),
    go_sum: include_str!("../kubernetes-1.33/go.sum"),
    ldflags: "-s -w \
        -X k8s.io/component-base/version.gitVersion=v1.33.13 \
        -X k8s.io/component-base/version.gitMajor=1 \
        -X k8s.io/component-base/version.gitMinor=33",
    tags: "",
    cgo: false,
};
const KUBERNETES_1_30: Module = Module {
    name: "kubernetes-1.30",
    go_mod: include_str!("../kubernetes-1.30/go.mod"),
    go_sum: include_str!("../kubernetes-1.30/go.sum"),
    ldflags: "-s -w \
        -X k8s.io/component-base/version.gitVersion=v1.30.14 \
        -X k8s.io/component-base/version.gitMajor=1 \
        -X k8s.io/component-base/version.gitMinor=30",
    tags: "",
    cgo: false,
};
const ETCD: Module = Module {
    name: "etcd",
    go_mod: include_str!("../etcd/go.mod"),
    go_sum: include_str!("../etcd/go.sum"),
    ldflags: "-s -w",
    tags: "",
    cgo: false,
};
const CONTAINERD: Module = Module {
    name: "containerd",
    go_mod: include_str!("../containerd/go.mod"),
    go_sum: include_str!("../containerd/go.sum"),
    ldflags: "-s -w -X github.com/containerd/containerd/v2/version.Version=v2.4.2",
    tags: "no_btrfs,no_devmapper,no_zfs",
    cgo: false,
};
/// Needs a C compiler and libseccomp's headers.
const RUNC: Module = Module {
    name: "runc",
    go_mod: include_str!("../runc/go.mod"),
    go_sum: include_str!("../runc/go.sum"),
    ldflags: "-s -w",
    tags: "seccomp",
    cgo: true,
};
const COREDNS: Module = Module {
    name: "coredns",
    go_mod: include_str!("../coredns/go.mod"),
    go_sum: include_str!("../coredns/go.sum"),
    ldflags: "-s -w",
    tags: "",
    cgo: false,
};
/// For tests of the chart.
const HELM: Module = Module {
    name: "helm",
    go_mod: include_str!("../helm/go.mod"),
    go_sum: include_str!("../helm/go.sum"),
    ldflags: "-s -w",
    tags: "",
    cgo: false,
};
/// The older major version of Helm, which many installations use.
const HELM_3: Module = Module {
    name: "helm3",
    go_mod: include_str!("../helm3/go.mod"),
    go_sum: include_str!("../helm3/go.sum"),
    // Without these, it renders for Kubernetes 1.20.
    ldflags: "-s -w \
        -X helm.sh/helm/v3/pkg/chartutil.k8sVersionMajor=1 \
        -X helm.sh/helm/v3/pkg/chartutil.k8sVersionMinor=36",
    ..HELM
};

/// For tests of signing in.
const DEX: Module = Module {
    name: "dex",
    go_mod: include_str!("../dex/go.mod"),
    go_sum: include_str!("../dex/go.sum"),
    ldflags: "-s -w",
    tags: "",
    cgo: false,
};

/// For tests of the workflows in .github.
const ACTIONLINT: Module = Module {
    name: "actionlint",
    go_mod: include_str!("../actionlint/go.mod"),
    go_sum: include_str!("../actionlint/go.sum"),
    ldflags: "-s -w",
    tags: "",
    cgo: false,
};

/// For tests of health scripts: the Lua interpreter that Argo CD uses.
const GLUA: Module = Module {
    name: "glua",
    go_mod: include_str!("../glua/go.mod"),
    go_sum: include_str!("../glua/go.sum"),
    ldflags: "-s -w",
    tags: "",
    cgo: false,
};

/// For tests of scaling. It has every scaler of KEDA's in it, so it takes its time: 8 minutes.
const KEDA: Module = Module {
    name: "keda",
    go_mod: include_str!("../keda/go.mod"),
    go_sum: include_str!("../keda/go.sum"),
    ldflags: "-s -w",
    tags: "",
    cgo: false,
};

/// For `cargo xtask test --lane ray`: the operator of RayServices, with its CRDs.
const KUBERAY: Module = Module {
    name: "kuberay",
    go_mod: include_str!("../kuberay/go.mod"),
    go_sum: include_str!("../kuberay/go.sum"),
    ldflags: "-s -w",
    tags: "",
    cgo: false,
};

/// For benchmarks: the endpoint picker of the inference extension of the Gateway API. Its build takes 8 minutes.
const ENDPOINT_PICKER: Module = Module {
    name: "endpoint-picker",
    go_mod: include_str!("../endpoint-picker/go.mod"),
    go_sum: include_str!("../endpoint-picker/go.sum"),
    ldflags: "-s -w",
    tags: "",
    cgo: false,
};

/// CRDs of the Gateway API and of its inference extension: only files, nothing is built.
const GATEWAY_API: Module = Module {
    name: "gateway-api",
    go_mod: include_str!("../gateway-api/go.mod"),
    go_sum: include_str!("../gateway-api/go.sum"),
    ldflags: "",
    tags: "",
    cgo: false,
};

const ETCD_SERVER: Program = Program {
    name: "etcd",
    package: "go.etcd.io/etcd/server/v3",
    module: &ETCD,
};
const KUBE_APISERVER: Program = kube_apiserver(&KUBERNETES);
const KUBE_CONTROLLER_MANAGER: Program = kube_controller_manager(&KUBERNETES);
const KUBECTL: Program = kubectl(&KUBERNETES);
const KUBE_SCHEDULER: Program = kubernetes("kube-scheduler", "k8s.io/kubernetes/cmd/kube-scheduler", &KUBERNETES);
const KUBE_PROXY: Program = kubernetes("kube-proxy", "k8s.io/kubernetes/cmd/kube-proxy", &KUBERNETES);
const KUBELET: Program = kubernetes("kubelet", "k8s.io/kubernetes/cmd/kubelet", &KUBERNETES);
const RUNC_COMMAND: Program = Program {
    name: "runc",
    package: "github.com/opencontainers/runc",
    module: &RUNC,
};
const CONTAINERD_SERVER: Program = containerd("containerd", "github.com/containerd/containerd/v2/cmd/containerd");
const CONTAINERD_SHIM: Program = containerd(
    "containerd-shim-runc-v2",
    "github.com/containerd/containerd/v2/cmd/containerd-shim-runc-v2",
);
const CTR: Program = containerd("ctr", "github.com/containerd/containerd/v2/cmd/ctr");
const COREDNS_SERVER: Program = Program {
    name: "coredns",
    package: "github.com/coredns/coredns",
    module: &COREDNS,
};
const HELM_COMMAND: Program = Program {
    name: "helm",
    package: "helm.sh/helm/v4/cmd/helm",
    module: &HELM,
};
const HELM_3_COMMAND: Program = Program {
    name: "helm",
    package: "helm.sh/helm/v3/cmd/helm",
    module: &HELM_3,
};
const DEX_SERVER: Program = Program {
    name: "dex",
    package: "github.com/dexidp/dex/cmd/dex",
    module: &DEX,
};
const ACTIONLINT_COMMAND: Program = Program {
    name: "actionlint",
    package: "github.com/rhysd/actionlint/cmd/actionlint",
    module: &ACTIONLINT,
};
const GLUA_COMMAND: Program = Program {
    name: "glua",
    package: "github.com/yuin/gopher-lua/cmd/glua",
    module: &GLUA,
};
const KEDA_OPERATOR: Program = Program {
    name: "keda",
    package: "github.com/kedacore/keda/v2/cmd/operator",
    module: &KEDA,
};
const KEDA_ADAPTER: Program = Program {
    name: "keda-adapter",
    package: "github.com/kedacore/keda/v2/cmd/adapter",
    module: &KEDA,
};
const KUBERAY_OPERATOR: Program = Program {
    name: "kuberay-operator",
    package: KUBERAY_MODULE,
    module: &KUBERAY,
};
const ENDPOINT_PICKER_SERVER: Program = Program {
    name: "epp",
    package: "sigs.k8s.io/gateway-api-inference-extension/cmd/epp",
    module: &ENDPOINT_PICKER,
};

/// Path of KubeRay's Go module, which is also the package of its program.
const KUBERAY_MODULE: &str = "github.com/ray-project/kuberay/ray-operator";

/// Each in build order: the quick one first, so that a broken toolchain shows at once.
const CONTROL_PLANE: [&Program; 4] = [&ETCD_SERVER, &KUBE_APISERVER, &KUBE_CONTROLLER_MANAGER, &KUBECTL];
const NODE: [&Program; 8] = [
    &RUNC_COMMAND,
    &CONTAINERD_SERVER,
    &CONTAINERD_SHIM,
    &CTR,
    &KUBE_SCHEDULER,
    &KUBE_PROXY,
    &KUBELET,
    &COREDNS_SERVER,
];

/// Programs that one pinned `go.mod` gives, and how they are built.
struct Module {
    name: &'static str,
    go_mod: &'static str,
    go_sum: &'static str,
    ldflags: &'static str,
    /// Go build tags, separated by commas.
    tags: &'static str,
    cgo: bool,
}

struct Program {
    name: &'static str,
    package: &'static str,
    module: &'static Module,
}

const fn kube_apiserver(module: &'static Module) -> Program {
    kubernetes("kube-apiserver", "k8s.io/kubernetes/cmd/kube-apiserver", module)
}

const fn kube_controller_manager(module: &'static Module) -> Program {
    let package = "k8s.io/kubernetes/cmd/kube-controller-manager";
    kubernetes("kube-controller-manager", package, module)
}

const fn kubectl(module: &'static Module) -> Program {
    kubernetes("kubectl", "k8s.io/kubernetes/cmd/kubectl", module)
}

const fn kubernetes(name: &'static str, package: &'static str, module: &'static Module) -> Program {
    Program { name, package, module }
}

const fn containerd(name: &'static str, package: &'static str) -> Program {
    Program {
        name,
        package,
        module: &CONTAINERD,
    }
}

/// Paths of the programs of a control plane.
#[derive(Clone, Debug)]
pub struct Binaries {
    /// The etcd server.
    pub etcd: PathBuf,
    /// The API server.
    pub kube_apiserver: PathBuf,
    /// Garbage collection, default service accounts, namespaces, Deployments.
    pub kube_controller_manager: PathBuf,
    /// The command line client.
    pub kubectl: PathBuf,
}

impl Binaries {
    /// Finds the programs, building the missing ones. Blocking, and minutes long the first time: progress goes to stderr.
    ///
    /// `KUBEBUILDER_ASSETS` names a folder to take them from. What is not there (it has no controller manager)
    /// comes from the cache: a folder for each module, named after the hash of everything that decides the outcome.
    pub fn ensure() -> Result<Self> {
        let assets = environment("KUBEBUILDER_ASSETS").map(PathBuf::from);
        let found = |program: &Program| {
            assets
                .as_ref()
                .map(|folder| folder.join(program.name))
                .filter(|path| path.is_file())
        };

        let cache = cache_folder()?;
        let missing: Vec<_> = CONTROL_PLANE.into_iter().filter(|p| found(p).is_none()).collect();
        build_missing(&cache, &missing)?;

        let path = |program: &Program| found(program).unwrap_or_else(|| program.path(&cache));
        Ok(Self {
            etcd: path(&ETCD_SERVER),
            kube_apiserver: path(&KUBE_APISERVER),
            kube_controller_manager: path(&KUBE_CONTROLLER_MANAGER),
            kubectl: path(&KUBECTL),
        })
    }
}

/// Folder with kube-apiserver, kube-controller-manager and kubectl of an older release, as `KUBEBUILDER_ASSETS` names it. Builds the
/// missing ones. Blocking; takes minutes the first time.
///
/// # Errors
///
/// If Go is missing or a build fails.
pub fn of_older_kubernetes(release: OlderKubernetes) -> Result<PathBuf> {
    let module = match release {
        OlderKubernetes::V1_30 => &KUBERNETES_1_30,
        OlderKubernetes::V1_33 => &KUBERNETES_1_33,
    };
    let programs = [kube_apiserver(module), kube_controller_manager(module), kubectl(module)];
    let cache = cache_folder()?;
    build_missing(&cache, &programs.each_ref())?;
    Ok(module.folder(&cache))
}

/// Paths of the programs of a node, and of those that a cluster needs only with nodes.
#[derive(Clone, Debug)]
pub struct NodeBinaries {
    /// Runs containers. Its shim is beside it, where it looks for it.
    pub containerd: PathBuf,
    /// Client of containerd.
    pub ctr: PathBuf,
    /// Makes one container.
    pub runc: PathBuf,
    /// Runs the pods of a node.
    pub kubelet: PathBuf,
    /// Services, as iptables rules.
    pub kube_proxy: PathBuf,
    /// Chooses the node of a pod.
    pub kube_scheduler: PathBuf,
    /// Names of services.
    pub coredns: PathBuf,
}

impl NodeBinaries {
    /// Finds the programs in the cache, building the missing ones. Blocking, and minutes long the first time:
    /// progress goes to stderr. runc is built with C, so `packages` come first.
    pub fn ensure() -> Result<Self> {
        let cache = cache_folder()?;
        build_missing(&cache, &NODE)?;
        Ok(Self {
            containerd: CONTAINERD_SERVER.path(&cache),
            ctr: CTR.path(&cache),
            runc: RUNC_COMMAND.path(&cache),
            kubelet: KUBELET.path(&cache),
            kube_proxy: KUBE_PROXY.path(&cache),
            kube_scheduler: KUBE_SCHEDULER.path(&cache),
            coredns: COREDNS_SERVER.path(&cache),
        })
    }
}

/// Path of kube-scheduler, which is built if it is missing. Blocking; takes minutes the first time.
pub(crate) fn kube_scheduler() -> Result<PathBuf> {
    let cache = cache_folder()?;
    build_missing(&cache, &[&KUBE_SCHEDULER])?;
    Ok(KUBE_SCHEDULER.path(&cache))
}

/// Paths of Helm 3 and Helm 4, which are built if they are missing. Blocking; takes minutes the first time.
///
/// # Errors
///
/// If Go is missing or a build fails.
pub fn helm() -> Result<[PathBuf; 2]> {
    let cache = cache_folder()?;
    build_missing(&cache, &[&HELM_3_COMMAND, &HELM_COMMAND])?;
    Ok([&HELM_3_COMMAND, &HELM_COMMAND].map(|helm| helm.path(&cache)))
}

/// Path of Prometheus' promtool, which is installed if it is missing; `None` if that is not possible: `what` is skipped and reported. Blocking.
pub fn promtool(what: &str) -> Result<Option<PathBuf>> {
    Ok(packages::ensure_or_skip(&packages::PROMETHEUS, what)?.then(|| "promtool".into()))
}

/// Path of Dex, an issuer of OpenID Connect, which is built if it is missing. Blocking; takes minutes the first time.
pub fn dex() -> Result<PathBuf> {
    let cache = cache_folder()?;
    build_missing(&cache, &[&DEX_SERVER])?;
    Ok(DEX_SERVER.path(&cache))
}

/// Path of actionlint, which is built if it is missing. Blocking; takes half a minute the first time.
///
/// # Errors
///
/// If Go is missing or the build fails.
pub fn actionlint() -> Result<PathBuf> {
    let cache = cache_folder()?;
    build_missing(&cache, &[&ACTIONLINT_COMMAND])?;
    Ok(ACTIONLINT_COMMAND.path(&cache))
}

/// Path of the endpoint picker, which is built if it is missing. Blocking; takes minutes the first time.
pub(crate) fn endpoint_picker() -> Result<PathBuf> {
    let cache = cache_folder()?;
    build_missing(&cache, &[&ENDPOINT_PICKER_SERVER])?;
    Ok(ENDPOINT_PICKER_SERVER.path(&cache))
}

/// Path of a Lua interpreter, which is built if it is missing. Blocking; takes some seconds the first time.
///
/// # Errors
///
/// If Go is missing or the build fails.
pub fn lua() -> Result<PathBuf> {
    let cache = cache_folder()?;
    build_missing(&cache, &[&GLUA_COMMAND])?;
    Ok(GLUA_COMMAND.path(&cache))
}

/// Name of the lock for programs that are built from source.
const PROGRAMS: &str = "programs";

/// Paths of KEDA: its programs, and the manifests that come with them.
#[derive(Clone, Debug)]
pub(crate) struct Keda {
    pub(crate) operator: PathBuf,
    pub(crate) adapter: PathBuf,
    /// A folder for kustomize.
    pub(crate) manifests: PathBuf,
}

/// Finds KEDA in the cache, building what is missing. Blocking, and minutes long the first time.
pub(crate) fn keda() -> Result<Keda> {
    let cache = cache_folder()?;
    build_missing(&cache, &[&KEDA_OPERATOR, &KEDA_ADAPTER])?;
    let manifests = manifests(&KEDA, &cache, "github.com/kedacore/keda/v2")?;
    Ok(Keda {
        operator: KEDA_OPERATOR.path(&cache),
        adapter: KEDA_ADAPTER.path(&cache),
        manifests,
    })
}

/// Paths of KubeRay: its operator, and the manifests that come with it.
#[derive(Clone, Debug)]
pub(crate) struct KubeRay {
    pub(crate) operator: PathBuf,
    /// The folder with `crd/bases`.
    pub(crate) manifests: PathBuf,
}

/// Finds KubeRay in the cache, building what is missing. Blocking, and a minute long the first time.
pub(crate) fn kuberay() -> Result<KubeRay> {
    let cache = cache_folder()?;
    build_missing(&cache, &[&KUBERAY_OPERATOR])?;
    Ok(KubeRay {
        operator: KUBERAY_OPERATOR.path(&cache),
        manifests: manifests(&KUBERAY, &cache, KUBERAY_MODULE)?,
    })
}

/// Copy of the folder `config` of a Go module that has been built.
fn manifests(module: &Module, cache: &Path, path: &str) -> Result<PathBuf> {
    let manifests = module.folder(cache).join("config");
    if !manifests.is_dir() {
        let _lock = hold(PROGRAMS)?;
        if !manifests.is_dir() {
            copy_from_module(module, cache, path, &manifests)?;
        }
    }
    Ok(manifests)
}

/// Files of the Gateway API's modules: the module and the path in it.
const GATEWAY_API_CRDS: [(&str, &str); 5] = [
    (
        "sigs.k8s.io/gateway-api",
        "config/crd/standard/gateway.networking.k8s.io_gateways.yaml",
    ),
    (
        "sigs.k8s.io/gateway-api",
        "config/crd/standard/gateway.networking.k8s.io_httproutes.yaml",
    ),
    (
        "sigs.k8s.io/gateway-api-inference-extension",
        "config/crd/bases/inference.networking.k8s.io_inferencepools.yaml",
    ),
    (
        "sigs.k8s.io/gateway-api-inference-extension",
        "config/crd/bases/inference.networking.x-k8s.io_inferenceobjectives.yaml",
    ),
    (
        "sigs.k8s.io/gateway-api-inference-extension",
        "config/crd/bases/inference.networking.x-k8s.io_inferencemodelrewrites.yaml",
    ),
];

/// Texts of the CRDs of the Gateway API and of its inference extension, downloaded once. Blocking.
pub(crate) fn gateway_api() -> Result<Vec<String>> {
    let cache = cache_folder()?;
    let folder = GATEWAY_API.folder(&cache);
    let source = folder.join("src");
    let copy = |path: &str| folder.join(path.rsplit('/').next().unwrap_or(path));
    if GATEWAY_API_CRDS.iter().any(|(_, path)| !copy(path).is_file()) {
        let _lock = hold(GATEWAY_API.name)?;
        check_go()?;
        fs::create_dir_all(&source)?;
        fs::write(source.join("go.mod"), GATEWAY_API.go_mod)?;
        fs::write(source.join("go.sum"), GATEWAY_API.go_sum)?;
        for (module, path) in GATEWAY_API_CRDS {
            let text = fs::read(sources(&GATEWAY_API, &cache, module)?.join(path)).with_context(|| path.to_owned())?;
            let unfinished = copy(path).with_extension("unfinished");
            fs::write(&unfinished, text)?;
            fs::rename(unfinished, copy(path))?;
        }
    }
    let read = |(_, path): (&str, &str)| fs::read_to_string(copy(path)).with_context(|| path.to_owned());
    GATEWAY_API_CRDS.into_iter().map(read).collect()
}

/// The folder that is called like `to` in the sources of a Go module: Go's own cache may be gone when it is wanted.
fn copy_from_module(module: &Module, cache: &Path, path: &str, to: &Path) -> Result<()> {
    let sources = sources(module, cache, path)?;
    let name = to.file_name().context("a folder has a name")?;
    let unfinished = to.with_extension("unfinished");
    let _ = fs::remove_dir_all(&unfinished);
    copy_folder(&sources.join(name), &unfinished)?;
    Ok(fs::rename(&unfinished, to)?)
}

/// Folder with the sources of a Go module, downloaded as pinned.
fn sources(module: &Module, cache: &Path, path: &str) -> Result<PathBuf> {
    let output = Command::new("go")
        .args(["mod", "download", "-json", path])
        .current_dir(module.folder(cache).join("src"))
        .env("GOWORK", "off")
        .env("GOFLAGS", "-mod=readonly")
        .output()
        .context("cannot run `go mod download`")?;
    let downloaded: serde_json::Value = serde_json::from_slice(&output.stdout).with_context(|| {
        format!(
            "`go mod download {path}` failed: {}",
            String::from_utf8_lossy(&output.stderr)
        )
    })?;
    downloaded["Dir"]
        .as_str()
        .map(PathBuf::from)
        .with_context(|| format!("{path}: {downloaded}"))
}

/// Go's module cache is read-only; a copy is not.
pub(crate) fn copy_folder(from: &Path, to: &Path) -> Result<()> {
    fs::create_dir_all(to)?;
    for entry in fs::read_dir(from).with_context(|| format!("cannot read {}", from.display()))? {
        let entry = entry?;
        let target = to.join(entry.file_name());
        if entry.file_type()?.is_dir() {
            copy_folder(&entry.path(), &target)?;
        } else {
            fs::write(target, fs::read(entry.path())?)?;
        }
    }
    Ok(())
}

impl Module {
    /// Named so that any change of pins or flags builds anew.
    fn folder(&self, cache: &Path) -> PathBuf {
        let mut hash = Sha256::new();
        for part in [self.go_mod, self.go_sum, self.tags].into_iter().chain(self.flags()) {
            hash.update(part);
        }
        cache.join(format!("{}-{}", self.name, &hex::encode(hash.finalize())[..12]))
    }

    fn flags(&self) -> [&str; 6] {
        [
            "-trimpath",
            "-buildvcs=false",
            "-tags",
            self.tags,
            "-ldflags",
            self.ldflags,
        ]
    }
}

impl Program {
    fn path(&self, cache: &Path) -> PathBuf {
        self.module.folder(cache).join(self.name)
    }
}

fn build_missing(cache: &Path, wanted: &[&Program]) -> Result<()> {
    let is_missing = |program: &&&Program| !program.path(cache).is_file();
    if !wanted.iter().any(|program| is_missing(&program)) {
        return Ok(());
    }

    let lock = hold(PROGRAMS)?;

    // Asked again under the lock: another process may have built them meanwhile.
    let todo: Vec<_> = wanted.iter().filter(is_missing).collect();
    if todo.is_empty() {
        return Ok(());
    }
    check_go()?;
    say(&format!(
        "Building {} programs from source, once (5 to 7 minutes for a control plane, 4 more for a node, 8 for KEDA or the endpoint picker, \
         on two cores); they are kept in {}",
        todo.len(),
        cache.display()
    ));
    for (index, program) in todo.iter().enumerate() {
        build(
            cache,
            program,
            &format!("[{}/{}] {}", index + 1, todo.len(), program.name),
            &lock,
        )?;
    }
    Ok(())
}

/// Removes what Go keeps of builds, which is larger than all programs. A later build compiles it again. Blocking.
pub(crate) fn remove_intermediate() -> Result<()> {
    let folder = intermediate(&cache_folder()?);
    let _lock = hold(PROGRAMS)?;
    if folder.exists() {
        fs::remove_dir_all(&folder).with_context(|| format!("cannot remove {}", folder.display()))?;
    }
    Ok(())
}

/// Go's cache of builds. The user's own is neither read nor filled.
fn intermediate(cache: &Path) -> PathBuf {
    cache.join("go-build")
}

fn check_go() -> Result<()> {
    let go = Command::new("go")
        .arg("version")
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .status();
    match go {
        Ok(status) if status.success() => Ok(()),
        _ => bail!(
            "the command `go` is missing, and without it the test bed cannot build Kubernetes: \
             install Go 1.26 or later, or set KUBEBUILDER_ASSETS to a folder with etcd, kube-apiserver, \
             kube-controller-manager and kubectl"
        ),
    }
}

/// Builds under another name and renames at the end, so that a file in the cache is always a whole one.
fn build(cache: &Path, program: &Program, label: &str, lock: &File) -> Result<()> {
    let folder = program.module.folder(cache);
    let source = folder.join("src");
    fs::create_dir_all(&source)?;
    fs::write(source.join("go.mod"), program.module.go_mod)?;
    fs::write(source.join("go.sum"), program.module.go_sum)?;

    let unfinished = folder.join(format!("{}.unfinished", program.name));
    let log_path = folder.join(format!("{}.build.log", program.name));
    let log = File::create(&log_path)?;
    // Compilers and tests have priority.
    let mut child = Command::new("nice")
        .args(["-n", "10", "go", "build"])
        .args(program.module.flags())
        .arg("-o")
        .args([&unfinished])
        .arg(program.package)
        .current_dir(&source)
        .env("CGO_ENABLED", if program.module.cgo { "1" } else { "0" })
        .env("GOWORK", "off")
        .env("GOFLAGS", "-mod=readonly")
        .env("GOCACHE", intermediate(cache))
        // The lock is held until the last of those who build has ended, also when we end first.
        .stdin(lock.try_clone()?)
        .stdout(log.try_clone()?)
        .stderr(log)
        .spawn()
        .context("cannot run `go build`")?;

    let progress = Progress::start(label);
    let status = loop {
        if let Some(status) = child.try_wait()? {
            break status;
        }
        std::thread::sleep(Duration::from_millis(200));
        progress.tick();
    };
    if !status.success() {
        progress.end("failed");
        bail!(
            "`go build {}` failed ({status}); its last lines, all of them in {}:\n{}",
            program.package,
            log_path.display(),
            crate::last_lines(&log_path, 20)
        );
    }
    fs::rename(&unfinished, program.path(cache))?;
    progress.end("built");
    Ok(())
}

/// A spinner on a terminal; elsewhere a line at the start, at the end, and every half minute between.
struct Progress {
    label: String,
    start: Instant,
    bar: ProgressBar,
    said: std::cell::Cell<u64>,
}

impl Progress {
    fn start(label: &str) -> Self {
        let style = ProgressStyle::with_template("{spinner} {msg} {elapsed}")
            .unwrap_or_else(|_| ProgressStyle::default_spinner());
        let bar = ProgressBar::new_spinner()
            .with_style(style)
            .with_message(format!("building {label}"));
        if bar.is_hidden() {
            say(&format!("building {label}"));
        }
        Self {
            label: label.to_owned(),
            start: Instant::now(),
            bar,
            said: std::cell::Cell::new(0),
        }
    }

    fn tick(&self) {
        self.bar.tick();
        let half_minutes = self.start.elapsed().as_secs() / 30;
        if self.bar.is_hidden() && half_minutes > self.said.replace(half_minutes) {
            say(&format!("building {}, {} s", self.label, half_minutes * 30));
        }
    }

    fn end(&self, outcome: &str) {
        self.bar.finish_and_clear();
        say(&format!(
            "{outcome} {} in {} s",
            self.label,
            self.start.elapsed().as_secs()
        ));
    }
}
