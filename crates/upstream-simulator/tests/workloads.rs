//! The upstream simulator as KAITO on a real node: pods run, and the status follows them, as unhelpfully as KAITO's does.

use anyhow::{Context, Result, ensure};
use k8s_openapi::api::{
    apps::v1::{Deployment, StatefulSet},
    core::v1::{Node as KubernetesNode, Pod, Service},
};
use kube::{
    Api, Client, ResourceExt,
    api::{ApiResource, DeleteParams, DynamicObject, GroupVersionKind, ListParams, Patch, PatchParams, PostParams},
};
use runway_testbed::{Node, Options, PATIENCE, crds, eventually, images, node};
use runway_upstream_simulator::{
    self as simulator, Simulator,
    kaito::{CREATED_BY, WORKSPACE},
};
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

const REVISION: &str = "workspace.kaito.io/revision";

/// One node for everything, because starting it takes longer than each of these checks.
#[tokio::test(flavor = "multi_thread")]
async fn kaito_makes_real_workloads_and_rolls_no_template_out() -> Result<()> {
    if node::skip("KAITO's workloads on a real node") {
        return Ok(());
    }
    let node = Node::start(Options {
        crds: crds::upstream_crds(&[crds::KAITO_WORKSPACES, crds::KAITO_INFERENCE_SETS])?,
        ..Options::default()
    })
    .await?;
    let image = images::busybox()?;
    node.import_image(&image.archive).await?;
    let config = simulator::Config {
        workloads: true,
        ..simulator::Config::default()
    };
    let _simulator = Simulator::start(node.client("kaito", &["system:masters"]).await?, config);
    let bed = Bed {
        client: node.client("test", &["system:masters"]).await?,
        image: image.name,
    };

    bed.a_template_becomes_a_stateful_set().await?;
    bed.a_changed_template_is_not_rolled_out().await?;
    bed.crash_loop_is_reported_at_the_next_event().await?;
    bed.a_preset_waits_for_gpus().await?;
    bed.an_inference_set_is_scaled().await?;
    bed.a_deployment_of_the_same_name_goes().await?;
    bed.deletion_takes_everything().await?;
    node.stop().await
}

struct Bed {
    client: Client,
    image: String,
}

impl Bed {
    async fn a_template_becomes_a_stateful_set(&self) -> Result<()> {
        self.create(workspace("web", &self.server("one"))).await?;
        self.state("web", "Ready").await?;

        let workspace = self.kaito("Workspace").get("web").await?;
        assert_eq!(workspace.annotations().get(REVISION).map(String::as_str), Some("1"));
        assert_eq!(workspace.data["status"]["targetNodeCount"], 1);
        let workload = self.api::<StatefulSet>().get("web").await?;
        let owner = workload.owner_references().first().context("an owner")?;
        assert_eq!(
            (owner.kind.as_str(), &owner.uid),
            ("Workspace", &workspace.uid().unwrap_or_default())
        );
        assert_eq!(owner.block_owner_deletion, Some(true));
        assert!(
            workload.annotations().is_empty(),
            "no revision: {:?}",
            workload.annotations()
        );
        let spec = serde_json::to_value(workload.spec)?;
        assert_eq!(spec["selector"], json!({"matchLabels": {WORKSPACE: "web"}}));
        assert_eq!(
            spec["template"]["metadata"]["labels"],
            json!({"app": "model", WORKSPACE: "web"})
        );
        assert_eq!(
            spec["template"]["spec"]["containers"][0]["ports"],
            json!([{"containerPort": 5000, "protocol": "TCP"}])
        );
        assert!(spec["serviceName"].as_str().unwrap_or_default().is_empty(), "{spec}");
        assert_eq!(spec["template"]["spec"]["tolerations"][0]["key"], "nvidia.com/gpu");

        let service = self.api::<Service>().get("web").await?.spec.context("a spec")?;
        let pod_name = "statefulset.kubernetes.io/pod-name".to_owned();
        assert_eq!(
            service
                .selector
                .as_ref()
                .and_then(|s| s.get(&pod_name))
                .map(String::as_str),
            Some("web-0")
        );
        assert_eq!(service.publish_not_ready_addresses, Some(true));
        let address = service.cluster_ip.context("a ClusterIP")?;
        let headless = self
            .api::<Service>()
            .get("web-headless")
            .await?
            .spec
            .context("a spec")?;
        assert_eq!(headless.cluster_ip.as_deref(), Some("None"));
        eventually(PATIENCE, async || {
            let page = get(&address).await?;
            ensure!(page.ends_with("one\n"), "the endpoint answers {page}");
            Ok(())
        })
        .await
    }

    /// Issue 2124 of KAITO: the status of the new generation is that of the old pod.
    async fn a_changed_template_is_not_rolled_out(&self) -> Result<()> {
        let pod = self.api::<Pod>().get("web-0").await?;
        let changed = json!({"inference": {"template": self.server("two")}});
        self.patch("Workspace", "web", &changed).await?;
        eventually(PATIENCE, async || {
            let workspace = self.kaito("Workspace").get("web").await?;
            let conditions = workspace.data["status"]["conditions"]
                .as_array()
                .context("conditions")?;
            ensure!(
                conditions
                    .iter()
                    .all(|condition| condition["observedGeneration"] == 2 && condition["status"] == "True"),
                "{conditions:?}"
            );
            ensure!(workspace.data["status"]["state"] == "Ready");
            ensure!(
                workspace
                    .annotations()
                    .get(REVISION)
                    .is_some_and(|revision| revision == "2")
            );
            Ok(())
        })
        .await?;
        let workload = self.api::<StatefulSet>().get("web").await?;
        assert_eq!(workload.metadata.generation, Some(1), "the workload is untouched");
        let after = self.api::<Pod>().get("web-0").await?;
        assert_eq!((after.uid(), after.spec), (pod.uid(), pod.spec));
        Ok(())
    }

    async fn crash_loop_is_reported_at_the_next_event(&self) -> Result<()> {
        let script = "echo unrecognized arguments >/dev/termination-log; exit 1";
        let mut template = self.template(script);
        template["spec"]["containers"][0]["readinessProbe"] = probe();
        self.create(workspace("crash", &template)).await?;
        eventually(PATIENCE, async || {
            self.poke("crash").await?;
            let status = self.kaito("Workspace").get("crash").await?.data["status"].clone();
            let ready = condition(&status, "InferenceReady");
            ensure!(ready["reason"] == "ContainerCrashLoopBackOff", "{status}");
            ensure!(
                ready["message"]
                    .as_str()
                    .is_some_and(|m| m.contains("unrecognized arguments")),
                "{status}"
            );
            ensure!(status["state"] == "Pending", "{status}");
            ensure!(
                condition(&status, "WorkspaceSucceeded")["reason"] == "workspacePending",
                "{status}"
            );
            Ok(())
        })
        .await
    }

    async fn a_preset_waits_for_gpus(&self) -> Result<()> {
        self.create(json!({
            "apiVersion": "kaito.sh/v1beta1",
            "kind": "Workspace",
            "metadata": {"name": "preset"},
            "resource": {"labelSelector": {"matchLabels": {"kubernetes.io/os": "linux"}}},
            "inference": {"preset": {"name": "phi-4-mini-instruct"}, "config": "first"},
        }))
        .await?;
        let status = self
            .condition("preset", "InferenceReady", "missing required nvidia.com labels")
            .await?;
        assert_eq!(status["state"], "Pending", "{status}");
        ensure!(
            self.api::<StatefulSet>().get_opt("preset").await?.is_none(),
            "nothing is made"
        );

        let nodes: Api<KubernetesNode> = Api::all(self.client.clone());
        let name = nodes.list(&ListParams::default()).await?.items[0].name_any();
        let labels =
            json!({"nvidia.com/gpu.product": "A100", "nvidia.com/gpu.count": "1", "nvidia.com/gpu.memory": "81920"});
        let labels = Patch::Merge(json!({"metadata": {"labels": labels}}));
        nodes.patch(&name, &PatchParams::default(), &labels).await?;
        eventually(PATIENCE, async || {
            self.poke("preset").await?;
            let status = self.kaito("Workspace").get("preset").await?.data["status"].clone();
            let ready = condition(&status, "InferenceReady");
            ensure!(ready["reason"] == "Unschedulable", "{status}");
            ensure!(
                ready["message"]
                    .as_str()
                    .is_some_and(|m| m.contains("Insufficient nvidia.com/gpu")),
                "{status}"
            );
            Ok(())
        })
        .await?;

        let change = json!({"inference": {"config": "second"}});
        self.patch("Workspace", "preset", &change).await?;
        eventually(PATIENCE, async || {
            let workload = self.api::<StatefulSet>().get("preset").await?;
            ensure!(
                workload
                    .annotations()
                    .get(REVISION)
                    .is_some_and(|revision| revision == "2")
            );
            let spec = serde_json::to_value(workload.spec)?;
            let volumes = spec["template"]["spec"]["volumes"].as_array().context("volumes")?;
            ensure!(
                volumes.iter().any(|volume| volume["configMap"]["name"] == "second"),
                "{volumes:?}"
            );
            Ok(())
        })
        .await?;
        self.delete("Workspace", "preset").await
    }

    async fn an_inference_set_is_scaled(&self) -> Result<()> {
        let set = |replicas: u32, page: &str| {
            json!({
                "apiVersion": "kaito.sh/v1beta1",
                "kind": "InferenceSet",
                "metadata": {"name": "set"},
                "spec": {
                    "replicas": replicas,
                    "labelSelector": {"matchLabels": {"kubernetes.io/os": "linux"}},
                    "template": {"inference": {"template": self.server(page)}},
                },
            })
        };
        self.create(set(2, "one")).await?;
        let first = self.replicas(2).await?;
        ensure!(
            first
                .iter()
                .all(|workspace| workspace.name_any().len() == "set-12345".len())
        );
        ensure!(
            self.api::<Service>().get_opt("set").await?.is_none(),
            "the set has no Service"
        );

        // A changed template is that of new replicas alone.
        let change = set(3, "two")["spec"].take();
        self.patch("InferenceSet", "set", &json!({"spec": change})).await?;
        let all = self.replicas(3).await?;
        for workspace in &all {
            let is_old = first.iter().any(|old| old.uid() == workspace.uid());
            let expected = self.server(if is_old { "one" } else { "two" });
            assert_eq!(workspace.data["inference"]["template"]["spec"], expected["spec"]);
        }

        self.patch("InferenceSet", "set", &json!({"spec": {"replicas": 1}}))
            .await?;
        let last = self.replicas(1).await?;
        ensure!(
            all.iter().any(|workspace| workspace.uid() == last[0].uid()),
            "one that was there stays"
        );
        self.patch("InferenceSet", "set", &json!({"spec": {"replicas": 0}}))
            .await?;
        self.replicas(0).await?;
        self.delete("InferenceSet", "set").await
    }

    async fn a_deployment_of_the_same_name_goes(&self) -> Result<()> {
        self.create_any(json!({
            "apiVersion": "apps/v1",
            "kind": "Deployment",
            "metadata": {"name": "web"},
            "spec": {"selector": {"matchLabels": {"mine": "yes"}}, "template": {
                "metadata": {"labels": {"mine": "yes"}},
                "spec": {"containers": [{"name": "c", "image": self.image, "command": ["sleep", "1000"]}]},
            }},
        }))
        .await?;
        self.poke("web").await?;
        eventually(PATIENCE, async || {
            ensure!(
                self.api::<Deployment>().get_opt("web").await?.is_none(),
                "it is still there"
            );
            Ok(())
        })
        .await
    }

    async fn deletion_takes_everything(&self) -> Result<()> {
        self.delete("Workspace", "web").await?;
        eventually(PATIENCE, async || {
            ensure!(
                self.kaito("Workspace").get_opt("web").await?.is_none(),
                "the Workspace is there"
            );
            ensure!(
                self.api::<StatefulSet>().get_opt("web").await?.is_none(),
                "the StatefulSet is there"
            );
            ensure!(self.api::<Pod>().get_opt("web-0").await?.is_none(), "the pod is there");
            for service in ["web", "web-headless"] {
                ensure!(
                    self.api::<Service>().get_opt(service).await?.is_none(),
                    "{service} is there"
                );
            }
            Ok(())
        })
        .await
    }

    /// The Workspaces of the set, once so many are there and ready.
    async fn replicas(&self, wanted: usize) -> Result<Vec<DynamicObject>> {
        eventually(PATIENCE, async || {
            let of_set = ListParams::default().labels(&format!("{CREATED_BY}=set"));
            let workspaces = self.kaito("Workspace").list(&of_set).await?.items;
            let status = self.kaito("InferenceSet").get("set").await?.data["status"].clone();
            ensure!(
                workspaces.len() == wanted && status["readyReplicas"] == wanted && status["replicas"] == wanted,
                "{} Workspaces, {status}",
                workspaces.len()
            );
            Ok(workspaces)
        })
        .await
    }

    async fn state(&self, name: &str, state: &str) -> Result<()> {
        eventually(PATIENCE, async || {
            let status = self.kaito("Workspace").get(name).await?.data["status"].clone();
            ensure!(status["state"] == state, "{name} is not {state}: {status}");
            Ok(())
        })
        .await
    }

    /// The status, once a condition says so.
    async fn condition(&self, name: &str, kind: &str, message: &str) -> Result<Value> {
        eventually(PATIENCE, async || {
            let status = self.kaito("Workspace").get(name).await?.data["status"].clone();
            let reported = condition(&status, kind)["message"]
                .as_str()
                .unwrap_or_default()
                .to_owned();
            ensure!(reported.contains(message), "{status}");
            Ok(status)
        })
        .await
    }

    /// A template that serves a page at port 5000.
    fn server(&self, page: &str) -> Value {
        let script = format!("mkdir /tmp/www && echo {page} >/tmp/www/index.html && exec httpd -f -p 5000 -h /tmp/www");
        let mut template = self.template(&script);
        template["spec"]["containers"][0]["readinessProbe"] = probe();
        template
    }

    fn template(&self, script: &str) -> Value {
        json!({
            "metadata": {"labels": {"app": "model"}},
            "spec": {
                "terminationGracePeriodSeconds": 1,
                "containers": [{
                    "name": "model",
                    "image": self.image,
                    "command": ["sh", "-c", script],
                    "ports": [{"containerPort": 5000}],
                    "securityContext": {"runAsUser": 0},
                }],
            },
        })
    }

    async fn create(&self, object: Value) -> Result<()> {
        let object: DynamicObject = serde_json::from_value(object)?;
        let kind = object
            .types
            .as_ref()
            .map(|types| types.kind.clone())
            .unwrap_or_default();
        self.kaito(&kind).create(&PostParams::default(), &object).await?;
        Ok(())
    }

    async fn create_any(&self, object: Value) -> Result<()> {
        let object: Deployment = serde_json::from_value(object)?;
        self.api().create(&PostParams::default(), &object).await?;
        Ok(())
    }

    async fn patch(&self, kind: &str, name: &str, patch: &Value) -> Result<()> {
        let patch = Patch::Merge(patch);
        self.kaito(kind).patch(name, &PatchParams::default(), &patch).await?;
        Ok(())
    }

    /// An event of the Workspace, for which KAITO looks at it again.
    async fn poke(&self, name: &str) -> Result<()> {
        let version = self.kaito("Workspace").get(name).await?.resource_version();
        let note = json!({"metadata": {"annotations": {"poked": version}}});
        self.patch("Workspace", name, &note).await
    }

    async fn delete(&self, kind: &str, name: &str) -> Result<()> {
        self.kaito(kind).delete(name, &DeleteParams::background()).await?;
        Ok(())
    }

    fn kaito(&self, kind: &str) -> Api<DynamicObject> {
        let resource = ApiResource::from_gvk(&GroupVersionKind::gvk("kaito.sh", "v1beta1", kind));
        Api::default_namespaced_with(self.client.clone(), &resource)
    }

    fn api<K>(&self) -> Api<K>
    where
        K: kube::Resource<Scope = k8s_openapi::NamespaceResourceScope, DynamicType = ()>,
    {
        Api::default_namespaced(self.client.clone())
    }
}

/// Without one, a container that crashes at once is ready for a moment, and KAITO says so.
fn probe() -> Value {
    json!({"httpGet": {"path": "/index.html", "port": 5000}, "periodSeconds": 1})
}

fn workspace(name: &str, template: &Value) -> Value {
    json!({
        "apiVersion": "kaito.sh/v1beta1",
        "kind": "Workspace",
        "metadata": {"name": name},
        "resource": {"labelSelector": {"matchLabels": {"kubernetes.io/os": "linux"}}},
        "inference": {"template": template},
    })
}

fn condition<'a>(status: &'a Value, kind: &str) -> &'a Value {
    let mut conditions = status["conditions"].as_array().into_iter().flatten();
    conditions.find(|c| c["type"] == kind).unwrap_or(&Value::Null)
}

async fn get(host: &str) -> Result<String> {
    let mut stream = tokio::net::TcpStream::connect((host, 80)).await?;
    stream
        .write_all(format!("GET / HTTP/1.0\r\nHost: {host}\r\n\r\n").as_bytes())
        .await?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer).await?;
    Ok(answer)
}
