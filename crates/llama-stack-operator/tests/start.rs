//! The command that starts a server, as a plan writes it, in a shell: what an image has decides how it is started.
#![allow(clippy::unwrap_used, clippy::panic, reason = "helpers of tests are tests")]

mod pod;

use std::fs;
use std::net::TcpListener;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use pod::{llama_stack, pythons, text};
use runway_llama_stack_operator::plan::plan;
use runway_testbed::llama_stack::{NEWEST, OGX, request};
use runway_worlds::distribution::World;
use serde_json::json;

/// The script of the server's container, with `providers` or without.
fn script(providers: bool) -> String {
    let mut server = json!({ "distribution": { "name": "starter" }, "workers": 2 });
    if providers {
        server["externalProviders"] =
            json!({ "inference": [{ "providerId": "echo", "image": "registry.example/echo:1" }] });
    } else {
        server["userConfig"] = json!({ "configMapName": "mine" });
    }
    let llsd = json!({ "metadata": { "name": "stack" }, "spec": { "server": server } });
    let given = json!({ "configMaps": { "mine": { "run.yaml": "version: 2\n" } } });
    let world = World::new(
        serde_json::from_value(llsd).unwrap(),
        serde_json::from_value(given).unwrap(),
    );
    let plan = plan(&world.observed());
    let deployment = plan.apply.iter().find(|a| a.resource.kind == "Deployment").unwrap();
    let command = &deployment.object.data["spec"]["template"]["spec"]["containers"][0]["command"];
    assert_eq!((&command[0], &command[1]), (&json!("/bin/sh"), &json!("-c")));
    command[2].as_str().unwrap().to_owned()
}

/// An image as far as the script sees it: a Python with modules, which print what they are started with, and commands.
struct Image(tempfile::TempDir);

impl Image {
    fn new(files: &[(&str, &str)], commands: &[&str]) -> Result<Self> {
        let image = Self(tempfile::tempdir()?);
        for (name, content) in files {
            let path = image.path("python").join(name);
            fs::create_dir_all(path.parent().context("no folder")?)?;
            fs::write(path, content)?;
        }
        fs::create_dir(image.path("bin"))?;
        symlink(&pythons().last().context("no Python")?.1, image.path("bin/python3"))?;
        for name in commands {
            let path = image.path("bin").join(name);
            fs::write(&path, format!("#!/bin/sh\necho {name} \"$@\" OGX_CONFIG=$OGX_CONFIG\n"))?;
            assert!(Command::new("chmod").arg("+x").arg(&path).status()?.success());
        }
        Ok(image)
    }

    fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    fn start(&self, script: &str, workers: bool) -> Result<(Option<i32>, String)> {
        let mut command = Command::new("/bin/sh");
        command.args(["-c", script]);
        command.env("PATH", self.path("bin"));
        command.env("PYTHONPATH", self.path("python"));
        command.envs([("LLS_PORT", "8321"), ("LLAMA_STACK_CONFIG", "/run.yaml")]);
        command.envs(workers.then_some(("LLS_WORKERS", "2")));
        let output = command.output()?;
        Ok((
            output.status.code(),
            format!("{}{}", text(&output.stdout), text(&output.stderr)),
        ))
    }
}

const UVICORN: (&str, &str) = (
    "uvicorn/__main__.py",
    "import os, sys\nprint('uvicorn', *sys.argv[1:], 'OGX_CONFIG=' + os.environ['OGX_CONFIG'])\n",
);
const FACTORY: &str = "def create_app():\n    pass\n";

#[test]
fn workers_run_the_application_of_the_package_that_the_image_has() -> Result<()> {
    let script = script(false);
    for package in ["llama_stack", "ogx"] {
        let module = format!("{package}/core/server/server.py");
        let image = Image::new(&[UVICORN, (&module, FACTORY)], &["llama"])?;
        let expected = format!(
            "uvicorn {package}.core.server.server:create_app --host 0.0.0.0 --port 8321 --workers 2 --factory OGX_CONFIG=/run.yaml\n"
        );
        assert_eq!(image.start(&script, true)?, (Some(0), expected));
    }
    // Before 0.3 there was no factory.
    let image = Image::new(
        &[UVICORN, ("llama_stack/core/server/server.py", "def main(): pass\n")],
        &["llama"],
    )?;
    let (code, said) = image.start(&script, true)?;
    assert_eq!(code, Some(1), "{said}");
    assert!(
        said.starts_with("ERROR: The distribution cannot run several workers\n")
            && said.contains("Leave out spec.server.workers"),
        "{said}"
    );
    Ok(())
}

#[test]
fn a_server_starts_with_the_command_that_the_image_has() -> Result<()> {
    let script = script(false);
    for name in ["llama", "ogx"] {
        let image = Image::new(&[], &[name])?;
        let expected = format!("{name} stack run /run.yaml --port 8321 OGX_CONFIG=/run.yaml\n");
        assert_eq!(image.start(&script, false)?, (Some(0), expected));
    }
    let (code, said) = Image::new(&[], &[])?.start(&script, false)?;
    assert_eq!(code, Some(1), "{said}");
    assert!(said.contains("neither llama nor ogx is on the PATH"), "{said}");
    Ok(())
}

/// OGX 1.5.0 does not start without a certificate unless it is asked to.
#[test]
fn ogx_serves_http_where_the_configuration_has_no_certificate() -> Result<()> {
    let files = |run: &'static str| {
        [
            ("ogx/__init__.py", ""),
            ("ogx/cli/__init__.py", ""),
            ("ogx/cli/run.py", ""),
            ("ogx/cli/stack/run.py", run),
            ("yaml.py", "import json\nsafe_load = json.load\n"),
        ]
    };
    let script = script(false);
    let new = Image::new(&files("parser.add_argument('--insecure')\n"), &["ogx"])?;
    let config = new.path("run.yaml");
    let script = script.replace("\"$LLAMA_STACK_CONFIG\"", &config.display().to_string());
    let line = |words: &str| format!("ogx {words} {} --port 8321", config.display());
    for (text, words) in [
        ("{}", "run --insecure"),
        (r#"{"server": null}"#, "run --insecure"),
        (r#"{"server": {"tls_certfile": "/tls/tls.crt"}}"#, "run"),
    ] {
        fs::write(&config, text)?;
        let (code, said) = new.start(&script, false)?;
        assert!(code == Some(0) && said.starts_with(&line(words)), "{text}: {said}");
    }
    let old = Image::new(&files("")[..2], &["ogx"])?;
    let (code, said) = old.start(&script, false)?;
    assert!(code == Some(0) && said.starts_with(&line("stack run")), "{said}");
    Ok(())
}

#[test]
fn the_providers_packages_come_before_the_images_own_path() -> Result<()> {
    let image = Image::new(&[], &["llama"])?;
    let preflight = image.path("preflight.py");
    fs::write(
        &preflight,
        "import os\nprint('PYTHONPATH=' + os.environ['PYTHONPATH'])\n",
    )?;
    let script = script(true).replace("/opt/llama-stack/config/preflight.py", &preflight.display().to_string());
    let (code, said) = image.start(&script, false)?;
    let path = format!(
        "PYTHONPATH=/opt/llama-stack/external-providers/python-packages:{}\n",
        image.path("python").display()
    );
    assert!(code == Some(0) && said.contains(&path), "no {path:?} in:\n{said}");
    Ok(())
}

#[test]
fn several_workers_of_the_real_server_answer() -> Result<()> {
    for release in [NEWEST, OGX] {
        if let Some(python) = llama_stack(release) {
            several_workers_answer(&python).with_context(|| release.package)?;
        }
    }
    Ok(())
}

fn several_workers_answer(python: &Path) -> Result<()> {
    let home = tempfile::tempdir()?;
    let config = home.path().join("run.yaml");
    let data = home.path().display().to_string();
    fs::write(
        &config,
        format!(
            "version: 2\nimage_name: demo\napis: [inference]\nproviders: {{inference: []}}\nstorage:\n  backends:\n    \
             kv_default: {{type: kv_sqlite, db_path: {data}/kv.db}}\n    sql_default: {{type: sql_sqlite, db_path: {data}/sql.db}}\n  \
             stores:\n    metadata: {{backend: kv_default, namespace: registry}}\n    inference: {{backend: sql_default, table_name: inference}}\n    \
             conversations: {{backend: sql_default, table_name: conversations}}\n    prompts: {{backend: kv_default, namespace: prompts}}\n"
        ),
    )?;
    let port = TcpListener::bind("127.0.0.1:0")?.local_addr()?.port();
    let bin = python.parent().context("no folder")?.display().to_string();
    let log = home.path().join("log");
    let file = fs::File::create(&log)?;
    let mut server = Command::new("/bin/sh")
        .args(["-c", &script(false)])
        .env("PATH", format!("{bin}:/usr/bin:/bin"))
        .env("HOME", home.path())
        .env("HF_HUB_OFFLINE", "1")
        .envs([("LLS_PORT", port.to_string()), ("LLS_WORKERS", "2".to_owned())])
        .env("LLAMA_STACK_CONFIG", &config)
        .stdin(Stdio::null())
        .stdout(file.try_clone()?)
        .stderr(file)
        .spawn()?;
    let end = Instant::now() + Duration::from_mins(5);
    let answered = loop {
        let health = request(&format!("127.0.0.1:{port}"), "GET", "/v1/health", None);
        if health.is_ok_and(|(status, _)| status == 200) {
            break true;
        }
        if server.try_wait()?.is_some() || Instant::now() > end {
            break false;
        }
        std::thread::sleep(Duration::from_millis(200));
    };
    // uvicorn ends its workers when it is asked to end.
    Command::new("kill").arg(server.id().to_string()).status()?;
    server.wait()?;
    ensure!(answered, "{}", fs::read_to_string(log)?);
    Ok(())
}
