//! The phases of a pod in their order, with the real llama-stack: install, merge, preflight, server; then a request that
//! the external provider answers. The server comes from PyPI once, and stays in the cache of the test bed.

mod pod;

use std::fs;
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use pod::{Pod, images, llama_stack, text};
use runway_llama_stack_operator::merge::Transport;
use runway_llama_stack_operator::pod::{FIND_PYTHON, START_SERVER};
use runway_llama_stack_operator::requests::Requests;
use runway_testbed::llama_stack::{NEWEST, OGX, OLDER, Release, request};
use serde_json::{Value, json};

/// A server that is stopped when the test ends.
struct Server {
    process: Child,
    port: u16,
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

impl Server {
    /// Starts a server, and waits until it answers over HTTP.
    fn start(pod: &Pod, python: &Path) -> Result<Self> {
        let is_healthy = |port: u16| {
            request(&format!("127.0.0.1:{port}"), "GET", "/v1/health", None).is_ok_and(|(status, _)| status == 200)
        };
        Self::start_until(pod, python, is_healthy)
    }

    fn start_until(pod: &Pod, python: &Path, is_healthy: impl Fn(u16) -> bool) -> Result<Self> {
        let port = TcpListener::bind("127.0.0.1:0")?.local_addr()?.port();
        let log = fs::File::create(pod.path("server.log"))?;
        let commands = python.parent().context("no folder")?.display();
        // As in the pod.
        let process = Command::new("/bin/sh")
            .args(["-c", &format!("{FIND_PYTHON}{START_SERVER}")])
            .env("PATH", format!("{commands}:/usr/bin:/bin"))
            .env("LLAMA_STACK_CONFIG", pod.path("config/run.yaml"))
            .env("LLS_PORT", port.to_string())
            .env("PYTHONPATH", pod.volume().join("python-packages"))
            .env("HOME", pod.path("home"))
            .env("HF_HUB_OFFLINE", "1")
            .env("ECHO_PREFIX", "from the environment: ")
            .current_dir(pod.path("home"))
            .stdout(log.try_clone()?)
            .stderr(log)
            .stdin(Stdio::null())
            .spawn()?;
        let mut server = Self { process, port };
        // Healthy after three seconds where there is nothing else to do.
        let end = Instant::now() + Duration::from_mins(5);
        while !is_healthy(port) {
            if let Some(status) = server.process.try_wait()? {
                bail!("the server ended with {status}:\n{}", pod.read("server.log")?);
            }
            ensure!(
                Instant::now() < end,
                "the server does not start:\n{}",
                pod.read("server.log")?
            );
            std::thread::sleep(Duration::from_millis(200));
        }
        Ok(server)
    }

    fn request(&self, method: &str, path: &str, body: Option<&Value>) -> Result<(u16, Value)> {
        request(&format!("127.0.0.1:{}", self.port), method, path, body)
    }
}

/// A base whose `apis` does not list inference, and with the id of a provider that is not installed. The merge corrects both.
fn base(pod: &Pod) -> String {
    let storage = "storage:
  backends:
    kv_default: {type: kv_sqlite, db_path: DATA/kv.db}
    sql_default: {type: sql_sqlite, db_path: DATA/sql.db}
  stores:
    metadata: {backend: kv_default, namespace: registry}
    inference: {backend: sql_default, table_name: inference}
    conversations: {backend: sql_default, table_name: conversations}
    prompts: {backend: kv_default, namespace: prompts}
";
    let head = "version: '2'   # as the sample of the operator has it
image_name: demo
apis:
- tool_runtime
providers:
  inference:
  - provider_id: ${env.NOBODY_SETS_THIS:+my-echo}
    provider_type: remote::vllm
  tool_runtime: []
";
    format!(
        "{head}{}",
        storage.replace("DATA", &pod.path("home").display().to_string())
    )
}

/// Image → volume → run.yaml → checked → served: everything a pod does, in its order.
fn external_provider_answers(release: Release) -> Result<()> {
    let Some(python) = llama_stack(release) else {
        return Ok(());
    };
    let pod = Pod::with(&python)?;
    let first = json!({"prefix": "${env.ECHO_PREFIX:=unset}", "api_token": "pa$$w0rd $(HOME)"});
    for (id, config) in [("my-echo", first), ("second-echo", json!({"prefix": "second: "}))] {
        let output = pod.installation(id, "echo", Some(config))?.output()?;
        ensure!(output.status.success(), "{}", text(&output.stderr));
    }
    fs::write(pod.path("base-config/run.yaml"), base(&pod))?;
    let merged = text(&pod.merge(&pod.volume())?.stdout);
    ensure!(
        merged.contains("External provider 'my-echo' overrides base provider in API 'inference'"),
        "{merged}"
    );
    let preflight = pod.preflight(&python, &pod.volume())?;
    ensure!(preflight.status.success(), "{}", text(&preflight.stderr));
    ensure!(
        text(&preflight.stdout).ends_with("All providers validated successfully: my-echo, second-echo\n"),
        "{}",
        text(&preflight.stdout)
    );

    let server = Server::start(&pod, &python)?;
    let (_, version) = server.request("GET", "/v1/version", None)?;
    ensure!(version["version"] == release.version, "{version}");
    let (_, providers) = server.request("GET", "/v1/providers", None)?;
    let inference: Vec<&Value> = providers["data"]
        .as_array()
        .context("no list")?
        .iter()
        .filter(|provider| provider["api"] == "inference")
        .collect();
    let ids: Vec<&Value> = inference.iter().map(|provider| &provider["provider_id"]).collect();
    ensure!(ids == ["my-echo", "second-echo"], "{providers}");
    ensure!(inference[0]["provider_type"] == "inline::lls-echo", "{providers}");
    for (model, answer) in [
        ("my-echo/echo-1", "from the environment: is the server ready?"),
        ("second-echo/echo-1", "second: is the server ready?"),
    ] {
        let question = json!({"model": model, "messages": [{"role": "user", "content": "is the server ready?"}]});
        let (status, completion) = server.request("POST", "/v1/chat/completions", Some(&question))?;
        ensure!(status == 200, "{status}: {completion}\n{}", pod.read("server.log")?);
        ensure!(completion["choices"][0]["message"]["content"] == answer, "{completion}");
    }
    Ok(())
}

#[test]
fn an_external_provider_answers_on_the_newest_server() -> Result<()> {
    external_provider_answers(NEWEST)
}

#[test]
fn an_external_provider_answers_on_an_older_server() -> Result<()> {
    external_provider_answers(OLDER)
}

#[test]
fn an_external_provider_answers_on_ogx() -> Result<()> {
    external_provider_answers(OGX)
}

/// A pod whose server has the provider `my-echo`, with more sections in its configuration.
fn pod_with(python: &Path, more: &str) -> Result<Pod> {
    let pod = Pod::with(python)?;
    let output = pod.installation("my-echo", "echo", None)?.output()?;
    ensure!(output.status.success(), "{}", text(&output.stderr));
    let more = more.replace("HOME", &pod.path("home").display().to_string());
    fs::write(pod.path("base-config/run.yaml"), base(&pod) + &more)?;
    pod.merge(&pod.volume())?;
    Ok(pod)
}

/// The operator has no credentials: it reads the version, and does not take the refusal of the list for a failure.
#[tokio::test]
async fn a_server_with_authentication_lists_providers_only_with_a_token() -> Result<()> {
    let Some(python) = llama_stack(NEWEST) else {
        return Ok(());
    };
    // Nothing listens there: no token is valid.
    let auth = "server:\n  auth: {provider_config: {type: custom, endpoint: 'http://127.0.0.1:9/'}}\n";
    let pod = pod_with(&python, auth)?;
    let server = Server::start(&pod, &python)?;
    let requests = Requests::default();
    let url = |path: &str| format!("http://127.0.0.1:{}{path}", server.port);
    let version: Value = requests.get(&url("/v1/version")).await?;
    ensure!(version["version"] == NEWEST.version, "{version}");
    let failure = requests.get::<Value>(&url("/v1/providers")).await;
    let failure = failure.err().context("the server lists its providers")?;
    ensure!(failure.requires_authentication(), "{failure}");
    Ok(())
}

/// Whether a server is healthy over HTTPS. As the kubelet, the client does not verify the server's certificate.
const HTTPS: &str = "
import ssl, sys, urllib.request
context = ssl._create_unverified_context()
if len(sys.argv) > 2:
    context.load_cert_chain(*sys.argv[2:])
urllib.request.urlopen(sys.argv[1], context=context, timeout=10)
";

#[test]
fn tls_of_a_server_is_what_the_operator_reads_in_its_run_yaml() -> Result<()> {
    let Some(python) = llama_stack(NEWEST) else {
        return Ok(());
    };
    for (authority, expected) in [
        ("", Transport::Tls),
        (", tls_cafile: HOME/tls.crt", Transport::MutualTls),
    ] {
        let tls = format!("server: {{tls_certfile: HOME/tls.crt, tls_keyfile: HOME/tls.key{authority}}}\n");
        let pod = pod_with(&python, &tls)?;
        ensure!(Transport::of(&pod.read("config/run.yaml")?) == expected, "{tls}");
        let files = [pod.path("home/tls.crt"), pod.path("home/tls.key")];
        let certified = rcgen::generate_simple_self_signed(["localhost".to_owned()])?;
        fs::write(&files[0], certified.cert.pem())?;
        fs::write(&files[1], certified.signing_key.serialize_pem())?;
        let is_healthy = |port: u16, certificate: &[PathBuf]| {
            let mut client = Command::new(&python);
            client
                .args(["-c", HTTPS])
                .arg(format!("https://127.0.0.1:{port}/v1/health"));
            let output = client.args(certificate).output();
            output.is_ok_and(|output| output.status.success())
        };
        let server = Server::start_until(&pod, &python, |port| is_healthy(port, &files))?;
        ensure!(is_healthy(server.port, &[]) == (expected == Transport::Tls), "{tls}");
    }
    Ok(())
}

struct Preflight {
    code: Option<i32>,
    stdout: String,
    stderr: String,
    reported: String,
}

/// Merges what `images.py` laid out, and runs preflight; none if there is no llama-stack here.
fn preflight(volume: &str) -> Result<Option<Preflight>> {
    preflight_of(volume, None)
}

/// The same, with more packages in the distribution.
fn preflight_of(volume: &str, distribution: Option<&str>) -> Result<Option<Preflight>> {
    let Some(python) = llama_stack(NEWEST) else {
        return Ok(None);
    };
    let pod = Pod::with(&python)?;
    let volume = images().join(volume);
    fs::write(pod.path("base-config/run.yaml"), "image_name: demo\n")?;
    pod.merge(&volume)?;
    let distribution = distribution.map(|name| images().join(name).join("python-packages"));
    let output = pod.preflight_of(&python, &volume, distribution.as_deref())?;
    Ok(Some(Preflight {
        code: output.status.code(),
        stdout: text(&output.stdout),
        stderr: text(&output.stderr),
        reported: pod.termination_message()?,
    }))
}

#[test]
fn preflight_warns_where_metadata_and_code_differ() -> Result<()> {
    let Some(run) = preflight("preflight-good")? else {
        return Ok(());
    };
    let (code, said, wrong) = (run.code, run.stdout, run.stderr);
    assert_eq!(code, Some(0), "{wrong}");
    let warning = "WARNING: Provider metadata mismatch (non-blocking)\n\nProvider: mismatch\nImage: \
                   registry.example.com/mismatch:v1\n\nField: provider_type\n  Metadata (lls-provider-spec.yaml): inline::mismatch\n  \
                   Runtime (get_provider_spec()): remote::else\n  Using: inline::mismatch (run.yaml, as the server does)\n\nField: \
                   api\n  Metadata (lls-provider-spec.yaml): inference\n  Runtime (get_provider_spec()): inference\n  Match ✓\n";
    assert!(said.contains(warning), "{said}");
    assert_eq!(said.matches("WARNING").count(), 1, "{said}");
    assert!(
        said.ends_with("All providers validated successfully: good, mismatch, optional-import, several-pythons\n"),
        "{said}"
    );
    Ok(())
}

#[test]
fn preflight_checks_providers_in_parallel() -> Result<()> {
    if std::thread::available_parallelism()?.get() < 2 {
        pod::skipped("preflight checks as many providers at a time as there are processors, and here is one");
        return Ok(());
    }
    let Some(run) = preflight("preflight-parallel")? else {
        return Ok(());
    };
    assert_eq!(run.code, Some(0), "{}", run.stderr);
    assert!(
        run.stdout
            .ends_with("All providers validated successfully: first, second\n"),
        "{}",
        run.stdout
    );
    Ok(())
}

#[test]
fn preflight_finds_what_a_server_would_die_of() -> Result<()> {
    let Some(run) = preflight("preflight-wrong")? else {
        return Ok(());
    };
    let (code, said, reported) = (run.code, run.stderr, run.reported);
    assert_eq!(code, Some(1), "{said}");
    for (id, reason) in [
        ("no-provider-module", "Module not found"),
        (
            "no-function",
            "Module p_no_function.provider has no get_provider_spec()",
        ),
        ("returns-none", "get_provider_spec() returned invalid data"),
        ("empty-list", "get_provider_spec() returned invalid data"),
        ("raises", "get_provider_spec() raised"),
        ("missing-import", "Import failed: No module named 'lls_not_there'"),
        ("dies", "Import ends the process"),
        ("exits", "Import ends the process"),
        ("says-exit", "Import failed: SystemExit: 0"),
        (
            "no-config-class",
            "config_class p_no_config_class.config.Config does not exist",
        ),
        ("no-impl", "Module p_no_impl has no get_provider_impl()"),
        ("api-is-gone", "API 'post_training' does not exist in this llama-stack"),
        ("renamed-api", "API 'agents' does not exist in this llama-stack"),
        (
            "old-server",
            "Packages of the provider and of the distribution do not fit together",
        ),
        (
            "shadows",
            "Packages of the provider and of the distribution do not fit together",
        ),
    ] {
        let module = id.replace('-', "_");
        let block = format!(
            "ERROR: Provider validation failed\n\nProvider: {id}\nImage: registry.example.com/{id}:v1\nModule: p_{module}\nReason: {reason}\n"
        );
        assert!(said.contains(&block), "no {block}\nin:\n{said}");
    }
    for detail in [
        "died with signal 11",
        "exited with code 7",
        "ZeroDivisionError",
        "This server has the API 'responses' instead",
        "has requirement llama-stack==0.2.14, but you have llama-stack 0.7.3",
        "has requirement python-multipart>=0.0.27, but you have python-multipart 0.0.1",
    ] {
        assert!(said.contains(detail), "no {detail:?} in:\n{said}");
    }
    assert!(!said.contains("Provider: good"), "{said}");
    assert_eq!(said.matches("ERROR: ").count(), said.matches("Resolution: ").count());
    assert!(reported.starts_with("ERROR: Provider validation failed") && reported.len() <= 4096);
    Ok(())
}

#[test]
fn a_conflict_that_the_distribution_has_already_is_not_the_providers_doing() -> Result<()> {
    let Some(run) = preflight_of("preflight-inherited", Some("distribution-with-a-conflict"))? else {
        return Ok(());
    };
    assert_eq!(run.code, Some(0), "{}", run.stderr);
    assert!(!run.stdout.contains("lls-old"), "{}", run.stdout);
    Ok(())
}

#[test]
fn preflight_accepts_what_config_class_accepts_and_warns_of_unknown_fields() -> Result<()> {
    let Some(run) = preflight("preflight-config-good")? else {
        return Ok(());
    };
    assert_eq!(run.code, Some(0), "{}", run.stderr);
    let warning = "WARNING: config of provider 'misspelt' has fields that p_misspelt.config.Config does not have; the server \
                   ignores them: mod. Fields: url (required), mode, api_token, limits, timeout\n";
    assert!(run.stdout.contains(warning), "{}", run.stdout);
    assert_eq!(run.stdout.matches("WARNING").count(), 1, "{}", run.stdout);
    Ok(())
}

#[test]
fn refused_config_is_reported_with_field_value_and_allowed_values() -> Result<()> {
    let Some(run) = preflight("preflight-config-wrong")? else {
        return Ok(());
    };
    let said = run.stderr;
    assert_eq!(run.code, Some(1), "{said}");
    let block = |id: &str, detail: &str, way_out: &str| {
        let module = id.replace('-', "_");
        format!(
            "ERROR: Provider validation failed\n\nProvider: {id}\nImage: registry.example.com/{id}:v1\nModule: p_{module}\n\
             Reason: Invalid config\n\n{detail}\n\nResolution: {way_out}"
        )
    };
    let correct = |id: &str| format!("Correct config of provider '{id}' in spec.server.externalProviders.inference.");
    let fields = |id: &str| format!("Fields of p_{id}.config.Config: url (required), mode, api_token, limits, timeout");
    for wanted in [
        block(
            "several",
            &format!(
                "Field: config.url\nFound: nothing\nExpected: Field required\n\
                 Field: config.mode\nFound: \"slow\"\nExpected: Input should be 'fast' or 'exact'\n\
                 Field: config.limits[1].tokens\nFound: \"many\"\nExpected: Input should be a valid integer, unable to parse string as an integer\n\
                 Field: config.timeout_seconds\nFound: 0\nExpected: Input should be greater than or equal to 1\n{}",
                fields("several")
            ),
            &correct("several"),
        ),
        block(
            "secret",
            &format!(
                "Field: config.api_token\nFound: (hidden, since it may be a secret)\nExpected: Input should be a valid string\n{}",
                fields("secret")
            ),
            &correct("secret"),
        ),
        block(
            "unset",
            "Field: config.url\nExpected: the environment variable NOBODY_SETS_THIS, which is not set or empty",
            "Set NOBODY_SETS_THIS in spec.server.containerSpec.env, or give a default in config: ${env.NOBODY_SETS_THIS:=default}.",
        ),
        block(
            "strict",
            &format!(
                "Field: config.mod\nFound: \"exact\"\nExpected: Extra inputs are not permitted\n{}",
                fields("strict")
            ),
            &correct("strict"),
        ),
        block(
            "raises",
            "p_raises.config.Config does not accept it: ValueError: the port is taken",
            &correct("raises"),
        ),
    ] {
        assert!(said.contains(&wanted), "no {wanted}\nin:\n{said}");
    }
    assert!(!said.contains("Provider: fine") && !said.contains("hunter2"), "{said}");
    Ok(())
}

#[test]
fn preflight_looks_at_native_code_before_it_imports() -> Result<()> {
    let Some(run) = preflight("preflight-foreign")? else {
        return Ok(());
    };
    let (code, said) = (run.code, run.stderr);
    assert_eq!(code, Some(1), "{said}");
    assert!(
        said.contains("Provider: foreign-arch\n") && said.contains("Native extension architecture mismatch"),
        "{said}"
    );
    assert!(
        said.contains("Provider: other-python\n") && said.contains("built for another Python"),
        "{said}"
    );
    assert!(!said.contains("imported before it was looked at"), "{said}");
    Ok(())
}

#[test]
fn preflight_with_wrong_arguments_is_two() -> Result<()> {
    let Some(python) = llama_stack(NEWEST) else {
        return Ok(());
    };
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("pod/preflight.py");
    for arguments in [
        vec![],
        vec!["--run-yaml=/does/not/exist"],
        vec!["--run-yaml=/dev/null", "--unknown"],
    ] {
        let output = Command::new(&python).arg(&script).args(&arguments).output()?;
        assert_eq!(output.status.code(), Some(2), "{arguments:?}: {}", text(&output.stderr));
    }
    Ok(())
}

/// The reader of the server judges: what the merge left alone must mean the same, and what it wrote must be what was
/// asked for.
#[test]
fn the_servers_own_yaml_reads_what_was_meant() -> Result<()> {
    let Some(python) = llama_stack(NEWEST) else {
        return Ok(());
    };
    let cases = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/merge");
    let output = Command::new(&python)
        .arg(Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/compare.py"))
        .arg(&cases)
        .output()?;
    assert!(
        output.status.success(),
        "{}{}",
        text(&output.stdout),
        text(&output.stderr)
    );
    let compared: usize = text(&output.stdout).trim().parse()?;
    assert!(compared > 25, "only {compared} cases");
    Ok(())
}
