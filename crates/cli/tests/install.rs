//! Installing into a real API server, and out of it again. There is no node: pods get the status that a test gives them.

mod common;

use std::collections::BTreeSet;
use std::path::Path;
use std::sync::{Arc, Mutex};

use anyhow::{Context, Result, ensure};
use common::{PATIENCE, expect, inventory, nothing_stays, run, run_with, text};
use k8s_openapi::api::apps::v1::Deployment;
use k8s_openapi::api::core::v1::{Namespace, Pod, Secret, Service, ServiceAccount};
use k8s_openapi::api::rbac::v1::{ClusterRole, ClusterRoleBinding, Role, RoleBinding};
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::api::{DeleteParams, ListParams, Patch, PatchParams, PostParams};
use kube::core::{ApiResource, DynamicObject};
use kube::{Api, Client, ResourceExt};
use runway_api::{InferenceProviderConfig, ModelDeployment};
use runway_manifests::{self as manifests, NAMESPACE, Release};
use runway_testbed::apply::api_of;
use runway_testbed::{ControlPlane, Options, eventually};
use serde_json::{Value, json};
use tokio_util::task::AbortOnDropHandle;

#[tokio::test]
async fn installed_twice_mended_upgraded_and_gone_without_a_trace() -> Result<()> {
    let cluster = ControlPlane::start(Options::default()).await?;
    let (admin, client) = (cluster.admin()?, cluster.admin_client().await?);
    let before = inventory(&client).await?;

    expect(
        &run(&admin, &["controller", "status"]).await?,
        1,
        "the control plane is not installed",
    )?;
    expect(
        &run(&admin, &["provider", "install", "kaito"]).await?,
        1,
        "to install it, run: kubeairunway controller install",
    )?;
    expect(
        &run(&admin, &["controller", "upgrade"]).await?,
        1,
        "the control plane is not installed",
    )?;

    // Without confirmation, the command prints the changes and applies none.
    let asked = run(&admin, &["controller", "install"]).await?;
    expect(
        &asked,
        1,
        "create  Deployment/kubeairunway-controller in kubeairunway-system",
    )?;
    expect(&asked, 1, "not confirmed: nothing was changed")?;
    let shown = run(&admin, &["controller", "install", "--dry-run"]).await?;
    expect(
        &shown,
        0,
        "create  CustomResourceDefinition/modeldeployments.kubeairunway.ai",
    )?;
    ensure!(inventory(&client).await? == before);

    // Without nodes pods stay as they are made, and the end says so.
    let waited = run(&admin, &["controller", "install", "--yes", "--timeout", "3s"]).await?;
    expect(
        &waited,
        1,
        "timed out after 3s waiting for pods to become ready: Deployment/kubeairunway-controller: pod kubeairunway-controller-",
    )?;
    expect(&waited, 1, "Pending, not scheduled yet")?;
    let pods: Api<Pod> = Api::namespaced(client.clone(), NAMESPACE);
    eventually(PATIENCE, async || {
        let found = pods.list(&ListParams::default()).await?.items.len();
        ensure!(found == 2, "{found} pods: Pod Security took them?");
        Ok(())
    })
    .await?;
    // A node without room, in the words of kube-scheduler.
    unschedulable(&pods, "0/1 nodes are available: 1 Insufficient memory.").await?;
    let full = run(&admin, &["controller", "install", "--yes", "--timeout", "1s"]).await?;
    expect(
        &full,
        1,
        "Unschedulable: 0/1 nodes are available: 1 Insufficient memory.",
    )?;
    expect(&full, 1, "unchanged: all objects are up to date")?;

    all_ready(&client).await?;
    let again = run(&admin, &["controller", "install", "--yes"]).await?;
    expect(&again, 0, "unchanged: all objects are up to date")?;
    expect(&again, 0, "Deployment/kubeairunway-controller: ready, 2 of 2 pods")?;
    expect(
        &run(&admin, &["controller", "status"]).await?,
        0,
        "kubeairunway-controller  v",
    )?;

    mended(&admin, &client).await?;
    upgraded_and_back(&admin, &client).await?;
    operators_come_and_go(&admin).await?;
    gone(&admin, &client, &before).await
}

async fn mended(admin: &Path, client: &Client) -> Result<()> {
    let deployments: Api<Deployment> = Api::namespaced(client.clone(), NAMESPACE);
    // Deleted objects are created again, and no other object changes.
    let before = deployments.get("kubeairunway-controller").await?;
    let services: Api<Service> = Api::namespaced(client.clone(), NAMESPACE);
    services
        .delete("kubeairunway-webhook", &DeleteParams::default())
        .await?;
    let roles: Api<ClusterRole> = Api::all(client.clone());
    roles
        .delete("kubeairunway-controller", &DeleteParams::default())
        .await?;
    let out = run(admin, &["controller", "install", "--yes"]).await?;
    expect(&out, 0, "create  Service/kubeairunway-webhook in kubeairunway-system")?;
    expect(&out, 0, "create  ClusterRole/kubeairunway-controller")?;
    let after = deployments.get("kubeairunway-controller").await?;
    ensure!(before.metadata.generation == after.metadata.generation);

    // A field of another manager is kept until the installation forces it.
    let scale = json!({ "spec": { "replicas": 3 } });
    let hand = PatchParams {
        field_manager: Some("by-hand".to_owned()),
        ..PatchParams::default()
    };
    deployments
        .patch("kubeairunway-controller", &hand, &Patch::Merge(scale))
        .await?;
    let out = run(admin, &["controller", "install", "--yes", "--wait=false"]).await?;
    expect(&out, 1, "was changed by another field manager")?;
    expect(&out, 1, ".spec.replicas")?;
    expect(&out, 1, "Nothing was changed")?;
    let out = run(
        admin,
        &["controller", "install", "--yes", "--wait=false", "--force-conflicts"],
    )
    .await?;
    expect(&out, 0, "spec.replicas: 3 → 2")?;
    all_ready(client).await
}

/// No provider runs here: the settings are there before it registers.
async fn settings_are_set_and_kept(admin: &Path, client: &Client) -> Result<()> {
    let install = ["provider", "install", "kaito", "--yes", "--wait=false"];
    let with = async |more: &[&str]| run(admin, &[&install[..], more].concat()).await;
    let configs: Api<InferenceProviderConfig> = Api::all(client.clone());
    let settings = async || -> Result<Value> { Ok(json!(configs.get("kaito").await?.spec.settings)) };

    let first = [
        "--set",
        "nodeProvisioning=Auto",
        "--set",
        r"instanceTypes.gpu.nvidia\.com/gpu=A100",
    ];
    expect(&with(&first).await?, 0, "created InferenceProviderConfig/kaito")?;
    let wrong = with(&["--set", "nodeProvisioning=Sometimes"]).await?;
    expect(
        &wrong,
        1,
        "invalid settings of provider 'kaito': spec.settings.nodeProvisioning: unknown variant `Sometimes`, expected `Auto` or `BYO`. Nothing was changed",
    )?;
    expect(&with(&["--set", "instanceTypes.cpu=D8"]).await?, 0, "instanceTypes")?;
    let all =
        json!({ "nodeProvisioning": "Auto", "instanceTypes": { "gpu": { "nvidia.com/gpu": "A100" }, "cpu": "D8" } });
    ensure!(settings().await? == all, "{}", settings().await?);
    expect(&with(&[]).await?, 0, "unchanged")?;
    ensure!(
        settings().await? == all,
        "an installation without settings changed them"
    );

    let folder = tempfile::tempdir()?;
    let file = folder.path().join("kaito.yaml");
    std::fs::write(&file, "imagePullSecrets: [team-registry]\n")?;
    let file = file.display().to_string();
    expect(&with(&["--settings", &file]).await?, 0, "InferenceProviderConfig/kaito")?;
    ensure!(settings().await? == json!({ "imagePullSecrets": ["team-registry"] }));
    let two = ["provider", "install", "kaito", "kuberay", "--settings", &file];
    expect(
        &run(admin, &two).await?,
        1,
        "--set and --settings apply to a single provider",
    )
}

async fn upgraded_and_back(admin: &Path, client: &Client) -> Result<()> {
    let out = run(
        admin,
        &["provider", "install", "kaito", "kuberay", "--yes", "--wait=false"],
    )
    .await?;
    expect(&out, 0, "created Deployment/kaito-provider")?;
    all_ready(client).await?;
    expect(
        &run(admin, &["provider", "install", "kaito", "--yes"]).await?,
        0,
        "unchanged",
    )?;
    expect(
        &run(admin, &["provider", "install", "acme"]).await?,
        1,
        "unknown built-in provider 'acme'",
    )?;
    settings_are_set_and_kept(admin, client).await?;
    let list = run(admin, &["provider", "list"]).await?;
    expect(&list, 0, "dynamo    no")?;
    expect(&list, 0, &format!("kaito     {}", Release::default().tag))?;

    let other = ["--image-tag", "v9.9.9", "--yes", "--wait=false"];
    let refused = run(admin, &[&["controller", "install"][..], &other].concat()).await?;
    expect(&refused, 1, "to change it, run: kubeairunway controller upgrade")?;
    policies_are_chosen(admin).await?;
    let with_policy = [&["controller", "upgrade", "--provider-policy"][..], &other].concat();
    let out = run(admin, &with_policy).await?;
    expect(
        &out,
        0,
        "spec.template.spec.containers[kaito-provider].image: ghcr.io/kubeairunway/kaito-provider:v0.1.0 → ghcr.io/kubeairunway/kaito-provider:v9.9.9",
    )?;
    expect(&out, 0, "create  ValidatingAdmissionPolicy/kubeairunway-kaito-provider")?;
    all_ready(client).await?;
    expect(
        &run(admin, &["controller", "status"]).await?,
        0,
        "kuberay-provider         v9.9.9   all         ready",
    )?;

    // What a later version has brought and this one does not know goes with the way back; the policies asked for stay.
    let later = json!({ "apiVersion": "v1", "kind": "ServiceAccount", "metadata": { "name": "later", "namespace": NAMESPACE,
        "labels": { "kubeairunway.ai/managed-by": "kubeairunway", manifests::COMPONENT_LABEL: "kaito-provider" } } });
    let accounts: Api<DynamicObject> =
        Api::namespaced_with(client.clone(), NAMESPACE, &ApiResource::erase::<ServiceAccount>(&()));
    accounts
        .create(&PostParams::default(), &serde_json::from_value(later)?)
        .await?;
    let out = run(admin, &["controller", "upgrade", "--yes", "--wait=false"]).await?;
    expect(&out, 0, "delete  ServiceAccount/later in kubeairunway-system")?;
    expect(&out, 0, "v9.9.9 → ")?;
    let said = text(&out);
    ensure!(!said.contains("ValidatingAdmissionPolicy"), "{said}");
    all_ready(client).await?;
    arguments_are_kept(admin, client).await
}

/// Policies for permissions of users are there without being asked for, which does not ask for those of providers.
async fn policies_are_chosen(admin: &Path) -> Result<()> {
    let dry = ["controller", "upgrade", "--dry-run"];
    let out = run(admin, &dry).await?;
    ensure!(!text(&out).contains("ValidatingAdmissionPolicy"), "{}", text(&out));
    let without = run(admin, &[&dry[..], &["--permission-policy=false"]].concat()).await?;
    expect(
        &without,
        0,
        "delete  ValidatingAdmissionPolicy/kubeairunway-modeldeployments",
    )?;
    expect(
        &without,
        0,
        "delete  ValidatingAdmissionPolicyBinding/kubeairunway-modeldeployments",
    )
}

/// Arguments of an optional component that `kubectl apply` has installed, such as the Gateway of the routes controller.
async fn arguments_are_kept(admin: &Path, client: &Client) -> Result<()> {
    let gateway = "--gateway=infra/models".to_owned();
    let routes = manifests::routes::routes().with_arguments_of(std::slice::from_ref(&gateway));
    let older = Release {
        tag: "v0.0.9".to_owned(),
        ..Release::default()
    };
    let objects = routes.objects(&older);
    for object in &objects {
        let api = api_of(client, object).await?;
        let kubectl = PatchParams::apply("kubectl");
        api.patch(&object.name_any(), &kubectl, &Patch::Apply(object)).await?;
    }
    let upgrade = ["controller", "upgrade", "--yes", "--wait=false", "--force-conflicts"];
    expect(
        &run(admin, &upgrade).await?,
        0,
        "changed Deployment/kubeairunway-gateway-routes",
    )?;
    let deployments: Api<Deployment> = Api::namespaced(client.clone(), NAMESPACE);
    let upgraded = deployments.get(manifests::routes::NAME).await?;
    let pod = upgraded.spec.and_then(|spec| spec.template.spec).unwrap_or_default();
    let container = pod.containers.into_iter().next().context("no container")?;
    ensure!(
        container.args == Some(vec![gateway, "--leader-elect".to_owned()]),
        "{:?}",
        container.args
    );
    ensure!(
        container
            .image
            .is_some_and(|image| image.ends_with(&Release::default().tag)),
        "not upgraded"
    );
    for object in &objects {
        let api = api_of(client, object).await?;
        api.delete(&object.name_any(), &DeleteParams::default()).await?;
    }
    Ok(())
}

async fn operators_come_and_go(admin: &Path) -> Result<()> {
    for (system, deployment) in [("asya", "asya-operator"), ("llama-stack", "llama-stack-operator")] {
        let install = [system, "install", "--yes", "--wait=false"];
        let out = run(admin, &install).await?;
        expect(&out, 0, &format!("create  Deployment/{deployment} in {NAMESPACE}"))?;
        expect(&run(admin, &install).await?, 0, "unchanged: all objects are up to date")?;
    }
    expect(
        &run(admin, &["controller", "status"]).await?,
        1,
        "llama-stack-operator ",
    )?;
    let out = run(admin, &["asya", "uninstall", "--yes"]).await?;
    expect(&out, 0, "keep    CRDs (controller uninstall --crds deletes them)")?;
    expect(&out, 0, "deleted Deployment/asya-operator")
}

async fn gone(admin: &Path, client: &Client, before: &BTreeSet<String>) -> Result<()> {
    let models: Api<ModelDeployment> = Api::namespaced(client.clone(), "default");
    let model: ModelDeployment = serde_json::from_value(json!({
        "apiVersion": "kubeairunway.ai/v1alpha1", "kind": "ModelDeployment", "metadata": { "name": "served" },
        "spec": { "model": { "id": "a/b" }, "engine": { "type": "vllm" }, "provider": { "name": "kaito" } },
    }))?;
    models.create(&PostParams::default(), &model).await?;
    for command in [
        ["controller", "uninstall", "--yes"].as_slice(),
        &["provider", "uninstall", "kaito", "--yes"],
    ] {
        let out = run(admin, command).await?;
        expect(&out, 1, "1 ModelDeployment exists: default/served")?;
        expect(&out, 1, "Nothing was changed")?;
    }
    // Another provider's models are no reason to keep this one.
    let out = run(admin, &["provider", "uninstall", "kuberay", "--yes"]).await?;
    expect(&out, 0, "deleted Deployment/kuberay-provider")?;
    expect(&out, 0, "all objects deleted")?;

    // A namespace that holds what others need stays, and so do the CRDs.
    let secrets: Api<Secret> = Api::namespaced(client.clone(), NAMESPACE);
    let secret = serde_json::from_value(json!({ "metadata": { "name": "precious" } }))?;
    secrets.create(&PostParams::default(), &secret).await?;
    let out = run(admin, &["controller", "uninstall", "--yes", "--delete-models"]).await?;
    expect(&out, 0, "keep    CRDs (use --crds to delete them)")?;
    expect(
        &out,
        0,
        "keep    Namespace/kubeairunway-system, which also contains Secret/precious",
    )?;
    ensure!(
        Api::<Namespace>::all(client.clone())
            .get_opt(NAMESPACE)
            .await?
            .is_some()
    );
    secrets.delete("precious", &DeleteParams::default()).await?;

    let out = run(admin, &["controller", "uninstall", "--yes", "--crds"]).await?;
    expect(
        &out,
        0,
        "deleted CustomResourceDefinition/modeldeployments.kubeairunway.ai",
    )?;
    expect(
        &run(admin, &["controller", "uninstall", "--yes", "--crds"]).await?,
        0,
        "nothing is installed in this cluster",
    )?;
    eventually(PATIENCE, async || {
        let after = inventory(client).await?;
        let left: Vec<_> = after.difference(before).collect();
        ensure!(left.is_empty(), "left behind: {left:?}");
        let lost: Vec<_> = before.difference(&after).collect();
        ensure!(lost.is_empty(), "taken away: {lost:?}");
        Ok(())
    })
    .await
}

#[tokio::test]
async fn an_impossible_installation_fails_before_the_first_write() -> Result<()> {
    let cluster = ControlPlane::start(Options::default()).await?;
    let (admin, client) = (cluster.admin()?, cluster.admin_client().await?);
    let before = inventory(&client).await?;

    missing_rights(&cluster, &client).await?;
    ensure!(
        inventory(&client).await? == before,
        "an installation without permissions created objects"
    );

    // A CRD of the same name with another owner.
    let mut foreign = serde_json::to_value(&manifests::crds()[0])?;
    foreign["metadata"] = json!({ "name": "modeldeployments.kubeairunway.ai",
        "annotations": { "api-approved.kubernetes.io": "unapproved, a test" } });
    foreign["spec"]["versions"][0]["name"] = json!("v1");
    create_as(&client, &foreign, "somebody-else").await?;
    let with_foreign = inventory(&client).await?;
    let out = run(&admin, &["controller", "install", "--yes"]).await?;
    expect(
        &out,
        1,
        "CustomResourceDefinition/modeldeployments.kubeairunway.ai already exists and is not part of KubeAIRunway: its field managers are",
    )?;
    expect(&out, 1, "somebody-else")?;
    ensure!(inventory(&client).await? == with_foreign);

    // The same with our label: it is ours, of a version that this one does not know.
    let crds: Api<DynamicObject> = Api::all_with(client.clone(), &crd_resource());
    let label = json!({ "metadata": { "labels": { "kubeairunway.ai/managed-by": "kubeairunway" } } });
    crds.patch(
        "modeldeployments.kubeairunway.ai",
        &PatchParams::default(),
        &Patch::Merge(label),
    )
    .await?;
    let out = run(&admin, &["controller", "install", "--yes"]).await?;
    expect(&out, 1, "has objects stored as v1, which this version does not serve")?;

    // What Helm manages is left to Helm, until its release is gone.
    let release = json!({ "metadata": { "name": "sh.helm.release.v1.theirs.v1", "labels": { "owner": "helm", "name": "theirs" } } });
    let secrets: Api<Secret> = Api::namespaced(client.clone(), "default");
    let release = secrets
        .create(&PostParams::default(), &serde_json::from_value(release)?)
        .await?;
    let helm = json!({ "metadata": { "annotations": {
        "meta.helm.sh/release-name": "theirs", "meta.helm.sh/release-namespace": "default" } } });
    crds.patch(
        "modeldeployments.kubeairunway.ai",
        &PatchParams::default(),
        &Patch::Merge(helm),
    )
    .await?;
    let out = run(&admin, &["controller", "install", "--yes"]).await?;
    expect(&out, 1, "belongs to the Helm release 'theirs'")?;
    secrets.delete(&release.name_any(), &DeleteParams::default()).await?;
    let out = run(&admin, &["controller", "install", "--yes"]).await?;
    expect(
        &out,
        1,
        "was left by the Helm release 'theirs', which is gone: use --force-conflicts",
    )?;
    let out = run(&admin, &["controller", "install", "--yes", "--force-conflicts"]).await?;
    expect(&out, 1, "has objects stored as v1, which this version does not serve")?;
    crds.delete("modeldeployments.kubeairunway.ai", &DeleteParams::default())
        .await?;

    // Without the Prometheus operator there are no ServiceMonitors.
    let out = run(&admin, &["controller", "install", "--yes", "--monitoring"]).await?;
    expect(&out, 1, "the API server rejects ServiceMonitor/kubeairunway-controller")?;

    // A namespace that is on its way out.
    let namespaces: Api<Namespace> = Api::all(client.clone());
    let leaving = json!({ "metadata": { "name": NAMESPACE, "finalizers": ["example.org/slow"] } });
    namespaces
        .create(&PostParams::default(), &serde_json::from_value(leaving)?)
        .await?;
    namespaces.delete(NAMESPACE, &DeleteParams::default()).await?;
    let out = run(&admin, &["controller", "install", "--yes"]).await?;
    expect(
        &out,
        1,
        "Namespace/kubeairunway-system is being deleted: try again when the deletion is complete",
    )?;
    let release = Patch::Merge(json!({ "metadata": { "finalizers": null } }));
    namespaces.patch(NAMESPACE, &PatchParams::default(), &release).await?;
    eventually(PATIENCE, async || {
        ensure!(inventory(&client).await? == before, "not as before");
        Ok(())
    })
    .await
}

/// An administrator of the cluster makes what has no namespace; a team with all rights in three namespaces does the rest.
#[tokio::test]
async fn installation_for_namespaces_follows_its_list() -> Result<()> {
    let cluster = ControlPlane::start(Options::default()).await?;
    let (admin, client) = (cluster.admin()?, cluster.admin_client().await?);
    for team in ["team-a", "team-b"] {
        create(
            &client,
            &json!({ "apiVersion": "v1", "kind": "Namespace", "metadata": { "name": team } }),
        )
        .await?;
    }
    let before = inventory(&client).await?;
    for closed in ["kube-system", "team-a,kubeairunway-system"] {
        let refused = run(&admin, &["controller", "install", "--namespaces", closed]).await?;
        expect(&refused, 2, "controllers may not write in it")?;
    }
    let install = |more: &[&'static str]| [&["controller", "install", "--yes", "--wait=false"][..], more].concat();
    let both = ["--namespaces", "team-a,team-b"];
    let out = run(
        &admin,
        &install(
            &[
                &both[..],
                &["--step=cluster", "--aggregate-roles=false", "--permission-policy=false"],
            ]
            .concat(),
        ),
    )
    .await?;
    expect(&out, 0, "created ClusterRole/kubeairunway-controller")?;
    ensure!(
        !text(&out).contains("Policy/kubeairunway-modeldeployments"),
        "{}",
        text(&out)
    );
    ensure!(!text(&out).contains("Deployment/"), "{}", text(&out));

    let direct = ["provider", "install", "direct", "--yes", "--wait=false"];
    let of_cluster = [&direct[..], &both, &["--step=cluster"]].concat();
    expect(
        &run(&admin, &of_cluster).await?,
        0,
        "created ClusterRole/direct-provider",
    )?;

    let platform = cluster.kubeconfig("platform", &[])?;
    for namespace in ["team-a", "team-b", NAMESPACE] {
        let binding = json!({ "apiVersion": "rbac.authorization.k8s.io/v1", "kind": "RoleBinding",
            "metadata": { "name": "platform", "namespace": namespace },
            "roleRef": { "apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "cluster-admin" },
            "subjects": [{ "kind": "User", "name": "platform", "apiGroup": "rbac.authorization.k8s.io" }] });
        runway_testbed::apply::apply(&client, &serde_json::from_value(binding)?, "test").await?;
    }
    let namespaced = install(&[&both[..], &["--step=namespaced"]].concat());
    eventually(PATIENCE, async || {
        expect(
            &run(&platform, &namespaced).await?,
            0,
            "created Deployment/kubeairunway-controller",
        )
    })
    .await?;
    let of_team = [&direct[..], &["--step=namespaced"]].concat();
    expect(
        &run(&platform, &of_team).await?,
        0,
        "created Deployment/direct-provider",
    )?;
    expect(&run(&admin, &["controller", "status"]).await?, 1, "team-a,team-b")?;
    roles_are_checked(&admin, &client).await?;
    ensure!(roles_in(&client, "team-a").await? == CONTROLLERS && roles_in(&client, "team-b").await? == CONTROLLERS);
    let cluster_roles: Api<ClusterRole> = Api::all(client.clone());
    let rights = format!("{:?}", cluster_roles.get("direct-provider").await?.rules);
    ensure!(
        !rights.contains("deployments\"") && rights.contains("inferenceproviderconfigs"),
        "{rights}"
    );

    list_changes(&admin, &client).await?;
    expect(
        &run(&admin, &["controller", "uninstall", "--yes", "--crds"]).await?,
        0,
        "all objects deleted",
    )?;
    eventually(PATIENCE, async || {
        let after = inventory(&client).await?;
        let left: Vec<_> = after
            .difference(&before)
            .filter(|id| !id.contains("platform"))
            .collect();
        ensure!(left.is_empty(), "left behind: {left:?}");
        Ok(())
    })
    .await
}

/// Names of the Roles in each namespace of an installation.
const CONTROLLERS: [&str; 2] = ["direct-provider", "kubeairunway-controller"];

async fn roles_in(client: &Client, namespace: &str) -> Result<Vec<String>> {
    let roles: Api<Role> = Api::namespaced(client.clone(), namespace);
    let found = roles.list(&ListParams::default()).await?;
    Ok(found.items.iter().map(ResourceExt::name_any).collect())
}

/// Upgrades with other lists of namespaces: Roles follow, and other choices are kept.
async fn list_changes(admin: &Path, client: &Client) -> Result<()> {
    let cluster_roles: Api<ClusterRole> = Api::all(client.clone());
    // A namespace that is no longer in the list; the other choices stay.
    let upgrade = ["controller", "upgrade", "--yes", "--wait=false"];
    let out = run(admin, &[&upgrade[..], &["--namespaces=team-b"]].concat()).await?;
    expect(&out, 0, "delete  Role/direct-provider in team-a")?;
    expect(&out, 0, "delete  RoleBinding/kubeairunway-controller in team-a")?;
    ensure!(roles_in(client, "team-a").await?.is_empty() && roles_in(client, "team-b").await? == CONTROLLERS);
    expect(&run(admin, &upgrade).await?, 0, "unchanged")?;
    let view = cluster_roles.get("kubeairunway-view").await?;
    ensure!(view.labels()[&format!("{}view", manifests::AGGREGATE)] == "false");
    let again = run(admin, &["controller", "upgrade", "--dry-run", "--permission-policy"]).await?;
    expect(
        &again,
        0,
        "create  ValidatingAdmissionPolicy/kubeairunway-modeldeployments",
    )?;

    // All namespaces again, and back.
    let out = run(admin, &[&upgrade[..], &["--namespaces="]].concat()).await?;
    expect(&out, 0, "delete  Role/direct-provider in team-b")?;
    let rights = format!("{:?}", cluster_roles.get("direct-provider").await?.rules);
    ensure!(rights.contains("deployments\""), "{rights}");
    expect(
        &run(admin, &[&upgrade[..], &["--namespaces", "team-a,team-b"]].concat()).await?,
        0,
        "create  Role/direct-provider in team-a",
    )
}

/// `check` finds the Roles in the namespaces of the installation, and names the one that is not there.
async fn roles_are_checked(admin: &Path, client: &Client) -> Result<()> {
    let finding = "RoleBinding team-b/direct-provider: does not exist";
    let out = run(admin, &["check"]).await?;
    ensure!(!text(&out).contains("[controllers-roles]"), "{}", text(&out));
    let bindings: Api<RoleBinding> = Api::namespaced(client.clone(), "team-b");
    bindings.delete("direct-provider", &DeleteParams::default()).await?;
    let out = run(admin, &["check"]).await?;
    expect(&out, 1, finding)?;
    expect(&out, 1, "→ kubeairunway provider install direct")?;
    let repair = ["provider", "install", "direct", "--yes", "--wait=false"];
    expect(
        &run(admin, &repair).await?,
        0,
        "create  RoleBinding/direct-provider in team-b",
    )
}

/// The error names each missing permission. Rejections that only the server can predict come from its dry run.
async fn missing_rights(cluster: &ControlPlane, client: &Client) -> Result<()> {
    let stranger = cluster.kubeconfig("stranger", &[])?;
    let out = run(&stranger, &["controller", "install", "--yes"]).await?;
    expect(&out, 1, "error: not allowed to read Deployment/kubeairunway-controller")?;

    let half = json!([
        { "apiGroups": ["apps"], "resources": ["deployments"], "verbs": ["*"] },
        { "apiGroups": [""], "resources": ["namespaces", "serviceaccounts", "services"], "verbs": ["*"] },
    ]);
    let role = json!({ "apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRole",
        "metadata": { "name": "half" }, "rules": half });
    let binding = json!({ "apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRoleBinding",
        "metadata": { "name": "half" },
        "roleRef": { "apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "half" },
        "subjects": [{ "kind": "User", "name": "stranger", "apiGroup": "rbac.authorization.k8s.io" }] });
    create(client, &role).await?;
    create(client, &binding).await?;
    eventually(PATIENCE, async || {
        let out = run(&stranger, &["controller", "install", "--yes"]).await?;
        expect(&out, 1, "create clusterroles.rbac.authorization.k8s.io")?;
        expect(&out, 1, "patch customresourcedefinitions.apiextensions.k8s.io")?;
        expect(
            &out,
            1,
            "create poddisruptionbudgets.policy in namespace kubeairunway-system",
        )?;
        ensure!(!text(&out).contains("deployments.apps"), "{}", text(&out));
        Ok(())
    })
    .await?;

    // The user may write all kinds, but cannot grant permissions that the user does not have.
    let groups = [
        "",
        "apps",
        "policy",
        "networking.k8s.io",
        "rbac.authorization.k8s.io",
        "apiextensions.k8s.io",
        "admissionregistration.k8s.io",
    ];
    let more = json!({ "rules": [{ "apiGroups": groups, "resources": ["*"], "verbs": ["get", "create", "patch"] }] });
    let roles: Api<ClusterRole> = Api::all(client.clone());
    roles
        .patch("half", &PatchParams::default(), &Patch::Merge(more))
        .await?;
    eventually(PATIENCE, async || {
        let out = run(&stranger, &["controller", "install", "--yes"]).await?;
        expect(&out, 1, "the API server rejects ClusterRole/kubeairunway-controller")?;
        expect(&out, 1, "is attempting to grant RBAC permissions not currently held")?;
        expect(&out, 1, "Nothing was changed")
    })
    .await?;
    roles.delete("half", &DeleteParams::default()).await?;
    let bindings: Api<ClusterRoleBinding> = Api::all(client.clone());
    bindings.delete("half", &DeleteParams::default()).await?;
    Ok(())
}

/// A server that says it is too old is asked nothing else. Played: an old one cannot be had.
#[tokio::test]
async fn a_cluster_that_is_too_old_is_left_alone() -> Result<()> {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await?;
    let address = listener.local_addr()?;
    let version = json!({ "major": "1", "minor": "25", "gitVersion": "v1.25.16", "gitCommit": "", "gitTreeState": "",
        "buildDate": "", "goVersion": "", "compiler": "", "platform": "" });
    let asked = Arc::new(Mutex::new(Vec::new()));
    let log = asked.clone();
    let server = axum::Router::new().fallback(async move |request: axum::extract::Request| {
        log.lock()
            .unwrap()
            .push(format!("{} {}", request.method(), request.uri().path()));
        axum::Json(version)
    });
    let _server = AbortOnDropHandle::new(tokio::spawn(axum::serve(listener, server).into_future()));
    let folder = tempfile::tempdir()?;
    let kubeconfig = folder.path().join("kubeconfig");
    std::fs::write(
        &kubeconfig,
        json!({ "apiVersion": "v1", "kind": "Config", "current-context": "old",
            "clusters": [{ "name": "old", "cluster": { "server": format!("http://{address}") } }],
            "users": [{ "name": "old", "user": {} }],
            "contexts": [{ "name": "old", "context": { "cluster": "old", "user": "old" } }] })
        .to_string(),
    )?;
    for command in [
        &["controller", "install", "--yes"][..],
        &["provider", "install", "kaito", "--yes"],
    ] {
        expect(
            &run(&kubeconfig, command).await?,
            1,
            "the cluster runs Kubernetes v1.25.16, but KubeAIRunway requires 1.26 or newer: upgrade the cluster. Nothing was changed",
        )?;
    }
    let asked = asked.lock().unwrap().clone();
    ensure!(asked == ["GET /version"; 2], "{asked:?}");
    Ok(())
}

#[tokio::test]
async fn a_third_partys_manifest_comes_and_goes() -> Result<()> {
    let cluster = ControlPlane::start(Options::default()).await?;
    let (admin, client) = (cluster.admin()?, cluster.admin_client().await?);
    let out = run(&admin, &["controller", "install", "--wait=false"]).await?;
    expect(&out, 1, "not confirmed")?;
    let out = run_with(&admin, &["controller", "install", "--wait=false"], "y\n").await?;
    expect(&out, 0, "created Namespace/kubeairunway-system")?;
    let before = inventory(&client).await?;

    let manifest = cluster.dir.join("acme.yaml");
    std::fs::write(
        &manifest,
        "apiVersion: example.org/v1\nkind: Engine\nmetadata: {name: e}\n---\n\
         apiVersion: apiextensions.k8s.io/v1\nkind: CustomResourceDefinition\nmetadata: {name: engines.example.org}\n\
         spec: {group: example.org, scope: Namespaced, names: {kind: Engine, plural: engines}, versions: [{name: v1, served: true, storage: true, \
         schema: {openAPIV3Schema: {type: object}}}]}\n---\n\
         apiVersion: v1\nkind: ConfigMap\nmetadata: {name: acme}\n---\n\
         apiVersion: kubeairunway.ai/v1alpha1\nkind: InferenceProviderConfig\nmetadata: {name: acme}\n\
         spec: {capabilities: {engines: [custom], servingModes: [aggregated], cpuSupport: true, gpuSupport: true}}\n",
    )?;
    let file = manifest.display().to_string();
    let out = run(&admin, &["provider", "install", "-f", &file, "--yes"]).await?;
    expect(&out, 0, "created InferenceProviderConfig/acme")?;
    expect(&run(&admin, &["provider", "list"]).await?, 0, "acme      third party")?;
    expect(
        &run(&admin, &["controller", "uninstall", "--yes"]).await?,
        1,
        "a third-party provider is still registered: acme",
    )?;
    let out = run(&admin, &["provider", "uninstall", "-f", &file, "--yes", "--crds"]).await?;
    expect(&out, 0, "all objects deleted")?;
    nothing_stays(&client, &before).await
}

/// Plays kube-scheduler, which is not here: no pod fits.
async fn unschedulable(pods: &Api<Pod>, message: &str) -> Result<()> {
    for pod in pods.list(&ListParams::default()).await?.items {
        let status = json!({ "status": { "conditions": [{ "type": "PodScheduled", "status": "False",
            "reason": "Unschedulable", "message": message }] } });
        pods.patch_status(&pod.name_any(), &PatchParams::default(), &Patch::Merge(status))
            .await?;
    }
    Ok(())
}

/// Plays the kubelet, which is not here: every pod of ours is ready, until each Deployment says so.
async fn all_ready(client: &Client) -> Result<()> {
    let pods: Api<Pod> = Api::namespaced(client.clone(), NAMESPACE);
    let deployments: Api<Deployment> = Api::namespaced(client.clone(), NAMESPACE);
    eventually(PATIENCE, async || {
        for pod in pods.list(&ListParams::default()).await?.items {
            if pod.metadata.deletion_timestamp.is_some() {
                let now = DeleteParams {
                    grace_period_seconds: Some(0),
                    ..DeleteParams::default()
                };
                let _ = pods.delete(&pod.name_any(), &now).await;
                continue;
            }
            let status = json!({ "status": { "phase": "Running", "conditions": [
                { "type": "PodScheduled", "status": "True" }, { "type": "Ready", "status": "True",
                  "lastTransitionTime": "2026-01-01T00:00:00Z" }] } });
            let _ = pods
                .patch_status(&pod.name_any(), &PatchParams::default(), &Patch::Merge(status))
                .await;
        }
        for deployment in deployments.list(&ListParams::default()).await?.items {
            ensure!(
                runway_cli::install::wait::is_ready(&deployment),
                "{}: {}",
                deployment.name_any(),
                runway_cli::install::wait::progress(&deployment)
            );
        }
        Ok(())
    })
    .await
}

fn crd_resource() -> ApiResource {
    ApiResource::erase::<CustomResourceDefinition>(&())
}

async fn create(client: &Client, object: &Value) -> Result<()> {
    let object: DynamicObject = serde_json::from_value(object.clone())?;
    let (resource, _) = runway_cli::install::kinds::resource(&object).context("unknown kind")?;
    Api::<DynamicObject>::all_with(client.clone(), &resource)
        .create(&PostParams::default(), &object)
        .await?;
    Ok(())
}

async fn create_as(client: &Client, object: &Value, manager: &str) -> Result<()> {
    let object: DynamicObject = serde_json::from_value(object.clone())?;
    let parameters = PostParams {
        field_manager: Some(manager.to_owned()),
        ..PostParams::default()
    };
    Api::<DynamicObject>::all_with(client.clone(), &crd_resource())
        .create(&parameters, &object)
        .await?;
    Ok(())
}
