//! The commands that look, against a real API server: what they show, and what they say when they cannot.

use std::collections::BTreeMap;
use std::path::Path;
use std::process::{Output, Stdio};
use tokio::io::{AsyncBufReadExt, BufReader, Lines};
use tokio::process::{Child, ChildStdout};

use anyhow::{Context, Result, ensure};
use k8s_openapi::api::core::v1::{Event, ObjectReference};
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::api::{DeleteParams, Patch, PatchParams, PostParams};
use kube::core::{DynamicObject, ObjectMeta};
use kube::{Api, Client, Resource, ResourceExt};
use runway_api::{AsyncActor, InferenceProviderConfig, LlamaStackDistribution, ModelDeployment};
use runway_client::documents::Documents;
use runway_client::render::{Options, Show, render};
use runway_provider_kaito::INFERENCE_SET;
use runway_testbed::audit::{self, Count};
use runway_testbed::{ControlPlane, PATIENCE, crds, eventually};
use serde_json::json;

#[tokio::test]
async fn objects_of_a_cluster_are_shown() -> Result<()> {
    let upstream = crds::upstream_crds(&[crds::KAITO_WORKSPACES, crds::KAITO_INFERENCE_SETS])?;
    let cluster = ControlPlane::start(runway_testbed::Options {
        crds: upstream,
        ..Default::default()
    })
    .await?;
    let (admin, client) = (cluster.admin()?, cluster.admin_client().await?);

    let missing = run(&admin, &["get"]).await?;
    expect(
        &missing,
        1,
        "does not serve ModelDeployment (is the control plane installed?)",
    )?;
    let missing = run(&admin, &["status", "gemma"]).await?;
    expect(
        &missing,
        1,
        "does not serve ModelDeployment (is the control plane installed?)",
    )?;

    let api: Api<CustomResourceDefinition> = Api::all(client.clone());
    for crd in runway_manifests::all_crds() {
        api.create(&PostParams::default(), &crd).await?;
    }
    eventually(PATIENCE, async || {
        let output = run(&admin, &["get"]).await?;
        expect(
            &output,
            0,
            "note: no ModelDeployments found in namespace 'default' (use -A for all namespaces)",
        )
    })
    .await?;

    let stranger = cluster.kubeconfig("stranger", &[])?;
    expect(
        &run(&stranger, &["get", "-A"]).await?,
        1,
        "error: not allowed to list ModelDeployments in all namespaces",
    )?;
    let unknown = run(&admin, &["status", "absent", "-n", "team-a"]).await?;
    expect(
        &unknown,
        1,
        "error: ModelDeployment 'absent' not found in namespace 'team-a': use -n for another namespace",
    )?;

    create_gemma(&client).await?;
    expect(
        &run(&admin, &["get"]).await?,
        0,
        "gemma-cpu  Deploying  kaito     llamacpp  0/1",
    )?;
    let screen = run(&admin, &["status", "gemma-cpu"]).await?;
    expect(&screen, 0, "default/gemma-cpu: Deploying")?;
    expect(&screen, 0, "Upstream   InferenceSet/gemma-cpu, reports Deploying")?;
    expect(&screen, 0, "ProviderSelected  Selected provider 'kaito'")?;
    expect(
        &run(&admin, &["why", "gemma-cpu"]).await?,
        0,
        "default/gemma-cpu: kaito is kept",
    )?;

    controllers_are_missing(&admin, &client).await?;
    completed(&admin, &cluster.dir).await?;
    let versions = run(&admin, &["version"]).await?;
    expect(&versions, 0, "modeldeployments.kubeairunway.ai")?;
    let versions = run(&admin, &["version", "-o", "json"]).await?;
    let versions: serde_json::Value = serde_json::from_slice(&versions.stdout)?;
    ensure!(versions["client"] == env!("CARGO_PKG_VERSION"), "{versions}");
    ensure!(versions["crds"][0]["stored"] == "v1alpha1", "{versions}");

    paused_and_resumed(&admin, &client).await?;
    deployed(&admin, &client, &cluster.dir).await?;
    let outside = run(&admin, &["controller", "status"]).await?;
    expect(&outside, 1, "but controllers outside of it")?;
    used_like_kubectl(&admin, &client, &cluster.dir).await?;
    actors_watched(&cluster, &client).await?;

    // What a cluster gives is what the commands take as a file.
    let saved = cluster.dir.join("saved.yaml");
    std::fs::write(&saved, run(&admin, &["get", "-A", "-o", "json"]).await?.stdout)?;
    let saved = saved.to_string_lossy().into_owned();
    expect(
        &run(&admin, &["get", "-f", &saved]).await?,
        0,
        "default    gemma-cpu  Deploying",
    )?;
    Ok(())
}

/// Only the CRDs are installed: objects without a status say so, and `check` names the command.
async fn controllers_are_missing(kubeconfig: &Path, client: &Client) -> Result<()> {
    let stack = json!({ "apiVersion": "llamastack.io/v1alpha1", "kind": "LlamaStackDistribution",
        "metadata": { "name": "early" }, "spec": { "server": { "distribution": { "name": "starter" } } } });
    let stacks: Api<LlamaStackDistribution> = Api::default_namespaced(client.clone());
    let stack = serde_json::from_value(stack)?;
    eventually(PATIENCE, async || {
        Ok(stacks.create(&PostParams::default(), &stack).await?)
    })
    .await?;
    let reported = "warning: no controller for LlamaStackDistributions is installed, so nothing happens to these objects: to install it, run: kubeairunway llama-stack install";
    expect(&run(kubeconfig, &["get", "llsd"]).await?, 0, reported)?;
    expect(&run(kubeconfig, &["status", "llsd/early"]).await?, 0, reported)?;
    let installed = run(kubeconfig, &["llama-stack", "install", "--dry-run"]).await?;
    expect(&installed, 1, "the control plane is not installed in this cluster")?;
    let refused = run(kubeconfig, &["llama-stack", "uninstall", "--yes"]).await?;
    expect(
        &refused,
        1,
        "1 of kind LlamaStackDistribution still exist: default/early. Delete them first",
    )?;
    stacks.delete("early", &DeleteParams::default()).await?;
    Ok(())
}

/// Every kind whose controller creates objects can be paused.
async fn paused_and_resumed(kubeconfig: &Path, client: &Client) -> Result<()> {
    let actor = json!({ "metadata": { "name": "embed" }, "spec": { "transport": "rabbitmq",
        "workloadRef": { "apiVersion": "apps/v1", "kind": "Deployment", "name": "vllm" },
        "runtime": { "image": "adapter:1", "handler": "adapters.openai.forward" } } });
    let stack =
        json!({ "metadata": { "name": "stack" }, "spec": { "server": { "distribution": { "name": "starter" } } } });
    let actors: Api<AsyncActor> = Api::default_namespaced(client.clone());
    let stacks: Api<LlamaStackDistribution> = Api::default_namespaced(client.clone());
    let models: Api<ModelDeployment> = Api::default_namespaced(client.clone());
    let (actor, stack) = (serde_json::from_value(actor)?, serde_json::from_value(stack)?);
    // Their definitions may be younger than what the API server serves.
    eventually(PATIENCE, async || {
        Ok(actors.create(&PostParams::default(), &actor).await?)
    })
    .await?;
    eventually(PATIENCE, async || {
        Ok(stacks.create(&PostParams::default(), &stack).await?)
    })
    .await?;
    let are = async || {
        let actor = actors.get("embed").await?.is_paused();
        let stack = stacks.get("stack").await?.is_paused();
        Ok::<_, anyhow::Error>([models.get("gemma-cpu").await?.is_paused(), actor, stack])
    };
    let all = |verb| [verb, "gemma-cpu", "asya/embed", "llsd/stack"];
    let said = run(kubeconfig, &all("pause")).await?;
    expect(&said, 0, "To resume, run: kubeairunway resume gemma-cpu -n default\n")?;
    expect(&said, 0, "To resume, run: kubeairunway resume asya/embed -n default\n")?;
    ensure!(are().await? == [true; 3], "{:?}", are().await?);
    expect(&run(kubeconfig, &all("pause")).await?, 0, "AsyncActor/embed: unchanged")?;
    expect(
        &run(kubeconfig, &["resume", "AsyncActor/embed"]).await?,
        0,
        "AsyncActor/embed: resumed",
    )?;
    ensure!(are().await? == [true, false, true], "{:?}", are().await?);
    expect(
        &run(kubeconfig, &all("resume")).await?,
        0,
        "LlamaStackDistribution/stack: resumed",
    )?;
    ensure!(are().await? == [false; 3], "{:?}", are().await?);
    expect(
        &run(kubeconfig, &["pause", "ipc/kaito"]).await?,
        1,
        "cannot pause InferenceProviderConfig/kaito: only ModelDeployments, AsyncActors and LlamaStackDistributions can be paused",
    )
}

/// A model by its URL, and objects from a file, on a cluster without nodes.
async fn deployed(kubeconfig: &Path, client: &Client, folder: &Path) -> Result<()> {
    let config = json!({ "status": { "ready": true, "lastHeartbeat": runway_operator::clock::now() } });
    let configs: Api<InferenceProviderConfig> = Api::all(client.clone());
    configs
        .patch_status("kaito", &PatchParams::default(), &Patch::Merge(config))
        .await?;
    let refused = run(kubeconfig, &["deploy", "gemma3", "--yes"]).await?;
    expect(
        &refused,
        2,
        "'gemma3' is not the ID of a model on Hugging Face: write OWNER/NAME",
    )?;

    let url = "https://huggingface.co/google/gemma-3-1b-it-qat-q8_0-gguf/tree/main";
    let args = ["deploy", url, "--name", "second", "--image", "runner:1", "--yes"];
    let said = run(kubeconfig, &args).await?;
    expect(
        &said,
        0,
        "model     google/gemma-3-1b-it-qat-q8_0-gguf (the ID of this URL)\n",
    )?;
    expect(&said, 0, "warning: the pods of ")?;
    expect(&said, 0, "do not fit: 0/0 nodes are available")?;
    expect(&said, 0, "applied ModelDeployment/second in default\n")?;
    let next = "To wait until it is ready, run: kubeairunway status second -n default --wait\n";
    expect(&said, 0, next)?;
    let models: Api<ModelDeployment> = Api::default_namespaced(client.clone());
    ensure!(models.get("second").await?.spec.model_id() == Some("google/gemma-3-1b-it-qat-q8_0-gguf"));

    let file = folder.join("objects.yaml");
    std::fs::write(
        &file,
        "{apiVersion: kubeairunway.ai/v1alpha1, kind: ModelDeployment, metadata: {name: third},\n \
         spec: {model: {id: org/gguf}, engine: {type: llamacpp}, image: 'runner:1'}}\n---\n\
         {apiVersion: llamastack.io/v1alpha1, kind: LlamaStackDistribution, metadata: {name: other},\n \
         spec: {server: {distribution: {name: starter}}}}\n---\n\
         {apiVersion: v1, kind: Secret, metadata: {name: token}}\n",
    )?;
    let file = file.to_string_lossy().into_owned();
    let preview = run(kubeconfig, &["deploy", "-f", &file, "--dry-run"]).await?;
    expect(&preview, 0, "create  ModelDeployment/third")?;
    ensure!(models.get_opt("third").await?.is_none());
    let said = run(kubeconfig, &["deploy", "-f", &file, "--yes"]).await?;
    expect(&said, 0, "applied ModelDeployment/third in default\n")?;
    expect(&said, 0, "applied LlamaStackDistribution/other in default\n")?;
    expect(&said, 0, "run: kubeairunway status llsd/other -n default --wait\n")?;
    expect(
        &said,
        0,
        "warning: Secret/token: skipped: deploy applies only ModelDeployments",
    )?;
    let mixed = run(kubeconfig, &["deploy", "-f", &file, "--engine", "vllm"]).await?;
    expect(&mixed, 2, "cannot be used with")
}

/// The objects of `deployed`, by the options that kubectl has.
async fn used_like_kubectl(kubeconfig: &Path, client: &Client, folder: &Path) -> Result<()> {
    let models: Api<ModelDeployment> = Api::default_namespaced(client.clone());
    let label = json!({ "metadata": { "labels": { "team": "a" } } });
    for name in ["second", "third"] {
        models
            .patch(name, &PatchParams::default(), &Patch::Merge(&label))
            .await?;
    }
    let stdout = async |args: &[&str]| {
        let output = run(kubeconfig, args).await?;
        expect(&output, 0, "")?;
        Ok::<_, anyhow::Error>(String::from_utf8(output.stdout)?)
    };
    let names = stdout(&["get", "-l", "team=a", "-o", "name"]).await?;
    ensure!(names == "modeldeployment.kubeairunway.ai/second\nmodeldeployment.kubeairunway.ai/third\n");
    let path = stdout(&["get", "-l", "team=a", "-o", "jsonpath={.items[*].metadata.name}"]).await?;
    ensure!(path == "second third", "{path}");
    let stacks = stdout(&[
        "get",
        "llsd",
        "other",
        "-o",
        "jsonpath={.spec.server.distribution.name}",
    ])
    .await?;
    ensure!(stacks == "starter", "{stacks}");

    // Each name that was printed is taken.
    for name in names.lines() {
        for verb in ["status", "tree", "events", "why", "pause"] {
            expect(&run(kubeconfig, &[verb, name]).await?, 0, "")?;
        }
    }
    let paused = stdout(&["get", "md", "-l", "team=a"]).await?;
    ensure!(paused.matches("(paused)").count() == 2, "{paused}");
    expect(
        &run(kubeconfig, &["resume", "md", "-l", "team=a"]).await?,
        0,
        "ModelDeployment/third: resumed",
    )?;

    let scaled = run(kubeconfig, &["scale", "md/third", "--replicas", "3"]).await?;
    expect(
        &scaled,
        0,
        "ModelDeployment/third: replicas changed from the default to 3. To wait",
    )?;
    ensure!(json!(models.get("third").await?)["spec"]["scaling"]["replicas"] == 3);
    expect(
        &run(kubeconfig, &["scale", "llsd", "other", "--replicas", "2"]).await?,
        0,
        "replicas changed from",
    )?;
    expect(
        &run(kubeconfig, &["scale", "asya/embed", "--replicas", "2"]).await?,
        1,
        "cannot scale AsyncActor/embed",
    )?;

    let edited = async |script: &str| {
        let mut command = tokio::process::Command::new(env!("CARGO_BIN_EXE_kubeairunway"));
        command.args(["edit", "third", "--kubeconfig"]).arg(kubeconfig);
        Ok::<_, anyhow::Error>(command.env("KUBE_EDITOR", script).output().await?)
    };
    expect(&edited("true").await?, 0, "ModelDeployment/third: unchanged")?;
    let editor = folder.join("editor");
    std::fs::write(&editor, "sed -i \"s/replicas: 3/replicas: $1/\" \"$2\"\n")?;
    let editor = format!("sh {}", editor.display());
    expect(
        &edited(&format!("{editor} 4")).await?,
        0,
        "ModelDeployment/third: edited",
    )?;
    ensure!(json!(models.get("third").await?)["spec"]["scaling"]["replicas"] == 4);
    std::fs::write(folder.join("editor"), "sed -i \"s/replicas: 4/replicas: $1/\" \"$2\"\n")?;
    expect(&edited(&format!("{editor} many")).await?, 1, "; the changes are in /")?;
    expect(&edited("/nowhere").await?, 1, "cannot run the editor '/nowhere'")?;
    watched_and_deleted(kubeconfig, folder).await
}

/// Output of `get --watch`, line by line.
struct Watch {
    lines: Lines<BufReader<ChildStdout>>,
    // Ends the command.
    _child: Child,
}

impl Watch {
    fn start(kubeconfig: &Path, args: &[&str]) -> Result<Self> {
        let mut child = tokio::process::Command::new(env!("CARGO_BIN_EXE_kubeairunway"))
            .args(["get", "-w", "--kubeconfig"])
            .arg(kubeconfig)
            .args(args)
            .stdout(Stdio::piped())
            .kill_on_drop(true)
            .spawn()?;
        Ok(Self {
            lines: BufReader::new(child.stdout.take().context("no stdout")?).lines(),
            _child: child,
        })
    }

    /// The next line, which starts with `start`.
    async fn line(&mut self, start: &str) -> Result<String> {
        let line = tokio::time::timeout(PATIENCE, self.lines.next_line()).await??;
        let line = line.context("the watch has ended")?;
        ensure!(line.starts_with(start), "{line}");
        Ok(line)
    }
}

/// Each change of an actor is one line, and all lines together are one list and one watch.
async fn actors_watched(cluster: &ControlPlane, client: &Client) -> Result<()> {
    const CHANGES: usize = 3;
    let actors: Api<AsyncActor> = Api::default_namespaced(client.clone());
    let user = "watcher";
    let kubeconfig = cluster.kubeconfig(user, &["system:masters"])?;
    let (log, params) = (cluster.audit().await?, PatchParams::default());
    let mark = log.mark().await?;
    let mut watch = Watch::start(&kubeconfig, &["asya"])?;
    watch.line("NAME").await?;
    watch.line("embed").await?;
    for replicas in 1..=CHANGES {
        let change = json!({ "spec": { "scaling": { "maxReplicas": replicas } } });
        actors.patch("embed", &params, &Patch::Merge(change)).await?;
        watch.line("embed").await?;
    }
    actors.delete("embed", &DeleteParams::default()).await?;
    watch.line("embed").await?;
    let requests = audit::of_user(&log.since(mark).await?, user);
    let counts = audit::by_resource(&requests);
    let once = Count {
        read: 1,
        write: 0,
        watch: 1,
    };
    let wanted = BTreeMap::from([("asyncactors.asya.sh".to_owned(), once)]);
    ensure!(counts == wanted, "{counts:?}");
    Ok(())
}

async fn watched_and_deleted(kubeconfig: &Path, folder: &Path) -> Result<()> {
    let mut watch = Watch::start(kubeconfig, &["-l", "team=a"])?;
    for start in ["NAME", "second", "third"] {
        watch.line(start).await?;
    }
    expect(&run(kubeconfig, &["pause", "third"]).await?, 0, "paused")?;
    let line = watch.line("third").await?;
    ensure!(line.contains("(paused)"), "{line}");
    drop(watch);

    let file = folder.join("objects.yaml").to_string_lossy().into_owned();
    expect(
        &run(kubeconfig, &["delete", "md"]).await?,
        2,
        "is a kind: add names, --all or -l",
    )?;
    expect(
        &run(kubeconfig, &["delete", "-f", &file, "--dry-run"]).await?,
        0,
        "ModelDeployment/third: would be",
    )?;
    expect(
        &run(kubeconfig, &["delete", "-f", &file]).await?,
        0,
        "LlamaStackDistribution/other: deleted",
    )?;
    let said = run(kubeconfig, &["delete", "md", "--all", "--dry-run"]).await?;
    expect(&said, 0, "ModelDeployment/gemma-cpu: would be deleted")?;
    expect(
        &run(kubeconfig, &["delete", "md", "-l", "team=a"]).await?,
        0,
        "ModelDeployment/second: deleted",
    )?;
    expect(
        &run(kubeconfig, &["delete", "md", "-l", "team=a"]).await?,
        0,
        "note: no objects found",
    )
}

/// Tab, in a real bash and by kubectl's way; live names come, and without a cluster nothing does.
async fn completed(kubeconfig: &Path, folder: &Path) -> Result<()> {
    let offers: [(&[&str], &[&str]); 7] = [
        (&["sta"], &["status"]),
        (&["status", "gem"], &["gemma-cpu"]),
        (&["status", "ipc/"], &["ipc/kaito"]),
        (&["why", "-n", "default", "g"], &["gemma-cpu"]),
        (&["get", "-n", "kube-s"], &["kube-system"]),
        (&["migrate", "gemma-cpu", "--to", "k"], &["kaito", "kuberay"]),
        (&["status", "gem", "-n", "team-a", "g"], &[]),
    ];
    for (words, wanted) in offers {
        // There is one second for an answer, and the machine may be slow.
        eventually(PATIENCE, async || {
            let offered = tab(kubeconfig, words).await?;
            ensure!(offered == wanted, "{words:?}: {offered:?}");
            Ok(())
        })
        .await?;
    }
    let plugin = folder.join("kubectl_complete-kubeairunway");
    std::os::unix::fs::symlink(env!("CARGO_BIN_EXE_kubeairunway"), &plugin)?;
    eventually(PATIENCE, async || {
        let asked = tokio::process::Command::new(&plugin)
            .args(["status", "gem"])
            .env("KUBECONFIG", kubeconfig)
            .output();
        let said = String::from_utf8(asked.await?.stdout)?;
        ensure!(said == "gemma-cpu\n:4\n", "{said}");
        Ok(())
    })
    .await?;

    // A server that never answers: the kernel takes the connection, and that is all.
    let silent = std::net::TcpListener::bind(("127.0.0.1", 0))?;
    let mut config: serde_json::Value = serde_saphyr::from_str(&std::fs::read_to_string(kubeconfig)?)?;
    config["clusters"][0]["cluster"]["server"] = json!(format!("https://{}", silent.local_addr()?));
    let unanswered = folder.join("silent.kubeconfig");
    std::fs::write(&unanswered, config.to_string())?;
    for kubeconfig in [unanswered.as_path(), Path::new("/nowhere")] {
        let offered = tokio::time::timeout(PATIENCE, tab(kubeconfig, &["status", "gem"])).await??;
        ensure!(offered.is_empty(), "{offered:?}");
        let known = tab(kubeconfig, &["migrate", "gemma", "--to", "dy"]).await?;
        ensure!(known == ["dynamo"], "{known:?}");
    }
    Ok(())
}

/// Completions of bash for the last of these words.
async fn tab(kubeconfig: &Path, words: &[&str]) -> Result<Vec<String>> {
    let script = r#"source <(kubeairunway completion bash)
        COMP_WORDS=(kubeairunway "$@") COMP_CWORD=$# COMP_TYPE=9
        _clap_complete_kubeairunway kubeairunway "${COMP_WORDS[COMP_CWORD]}" "${COMP_WORDS[COMP_CWORD - 1]}"
        printf '%s\n' "${COMPREPLY[@]}""#;
    let programs = Path::new(env!("CARGO_BIN_EXE_kubeairunway"))
        .parent()
        .context("no folder")?;
    let path = std::env::var_os("PATH").unwrap_or_default();
    let path = format!("{}:{}", programs.display(), path.display());
    let bash = tokio::process::Command::new("bash")
        .args(["-c", script, "bash"])
        .args(words)
        .env("PATH", path)
        .env("KUBECONFIG", kubeconfig)
        .output()
        .await?;
    ensure!(bash.stderr.is_empty(), "{}", String::from_utf8_lossy(&bash.stderr));
    let offered = String::from_utf8(bash.stdout)?;
    Ok(offered
        .lines()
        .filter(|line| !line.is_empty())
        .map(str::to_owned)
        .collect())
}

/// A ModelDeployment with all that its controllers would have made.
async fn create_gemma(client: &Client) -> Result<()> {
    let mut documents = Documents::default();
    documents.take_in_text(
        "input.yaml",
        &std::fs::read_to_string("tests/render/gemma-cpu/input.yaml")?,
    );
    let options = |show| Options {
        show,
        now: runway_operator::clock::now(),
    };
    let status = render(clone(&documents), &options(Show::Status)).documents.remove(0);
    let mut objects = render(documents, &options(Show::Objects)).documents;
    let mut set = objects.pop().context("nothing is rendered")?;

    let api: Api<ModelDeployment> = Api::namespaced(client.clone(), "default");
    let md: ModelDeployment = serde_json::from_value(json!(status))?;
    let made = api.create(&PostParams::default(), &md).await?;
    let patch = Patch::Merge(json!({ "status": status.data["status"] }));
    api.patch_status("gemma-cpu", &PatchParams::default(), &patch).await?;

    let config = InferenceProviderConfig::new("kaito", provider().registration());
    Api::all(client.clone()).create(&PostParams::default(), &config).await?;

    set.owner_references_mut().clear();
    let sets: Api<DynamicObject> = Api::namespaced_with(client.clone(), "default", &INFERENCE_SET.resource());
    sets.create(&PostParams::default(), &set).await?;

    let about: ObjectReference = made.object_ref(&());
    let event = Event {
        metadata: ObjectMeta {
            name: Some("gemma-cpu.1".to_owned()),
            ..ObjectMeta::default()
        },
        involved_object: about,
        type_: Some("Normal".to_owned()),
        reason: Some("ProviderSelected".to_owned()),
        message: Some("Selected provider 'kaito'".to_owned()),
        ..Event::default()
    };
    Api::<Event>::namespaced(client.clone(), "default")
        .create(&PostParams::default(), &event)
        .await?;
    Ok(())
}

fn provider() -> std::sync::Arc<dyn runway_provider::Provider> {
    runway_manifests::built_in_providers().remove(0)
}

fn clone(documents: &Documents) -> Documents {
    Documents {
        found: documents.found.clone(),
        errors: Vec::new(),
    }
}

async fn run(kubeconfig: &Path, args: &[&str]) -> Result<Output> {
    let mut command = tokio::process::Command::new(env!("CARGO_BIN_EXE_kubeairunway"));
    Ok(command.args(args).arg("--kubeconfig").arg(kubeconfig).output().await?)
}

fn expect(output: &Output, code: i32, text: &str) -> Result<()> {
    let said = [output.stdout.as_slice(), output.stderr.as_slice()].concat();
    let said = String::from_utf8_lossy(&said);
    ensure!(
        output.status.code() == Some(code),
        "exit code {:?}, not {code}:\n{said}",
        output.status.code()
    );
    ensure!(said.contains(text), "not said: {text}\n{said}");
    Ok(())
}
