//! `kubeairunway llama-stack provider`: a new provider is packed, built, checked, and checked with the real llama-stack.
#![allow(clippy::unwrap_used, clippy::panic, reason = "helpers of tests are tests")]

use std::collections::BTreeMap;
use std::fs;
use std::io::Read;
use std::path::Path;
use std::process::{Command, Output};

use anyhow::{Context, Result, ensure};
use runway_testbed::images::Rootfs;
use runway_testbed::llama_stack::{self, NEWEST, environment};
use runway_testbed::python;
use serde_json::{Value, json};

fn kit(folder: &Path, args: &[&str]) -> Result<Output> {
    Ok(Command::new(env!("CARGO_BIN_EXE_kubeairunway"))
        .args(["llama-stack", "provider"])
        .args(args)
        .current_dir(folder)
        .output()?)
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// Packs the sources of `new` as the Containerfile does: a wheel beside the metadata.
const PACK: &str = "
import glob, os, shutil, sys
sys.path.insert(0, sys.argv[1])
import images
name, out, requires = sys.argv[2], sys.argv[3], sys.argv[4:]
package = name.replace('-', '_')
files = {f'{package}/{os.path.basename(path)}': open(path).read() for path in glob.glob(f'{name}/{package}/*.py')}
images.wheel(os.path.join(out, 'packages'), name, '1.0.0', files, requires)
for version in {r.split('==')[1] for r in requires}:
    images.wheel(os.path.join(out, 'packages'), 'lls-dep', version, {'lls_dep.py': ''})
shutil.copy(f'{name}/lls-provider-spec.yaml', out)
";

/// Python with pip. Prints the reason and returns `None` if there is none.
#[allow(clippy::print_stderr, reason = "a skipped test says so")]
fn python_or_skip() -> Option<String> {
    let python = python::find("3.12");
    if python.is_none() {
        eprintln!("SKIPPED: there is no Python 3.12 with pip here");
    }
    Some(python?.display().to_string())
}

#[test]
fn a_new_provider_is_checked_as_a_pod_does_it() -> Result<()> {
    let Some(python) = python_or_skip() else {
        return Ok(());
    };
    let folder = tempfile::tempdir()?;
    let pack = |name: &str, out: &str, requires: &[&str]| packed(folder.path(), &python, name, out, requires);
    for name in ["my-vllm", "other"] {
        let output = kit(folder.path(), &["new", name])?;
        assert!(output.status.success(), "{}", text(&output.stderr));
        assert!(text(&output.stdout).contains(&format!("{name}/lls-provider-spec.yaml\n")));
    }
    let spec = fs::read_to_string(folder.path().join("my-vllm/lls-provider-spec.yaml"))?;
    assert!(
        spec.contains("packageName: my_vllm\n") && spec.contains("inline::my-vllm"),
        "{spec}"
    );
    let again = kit(folder.path(), &["new", "my-vllm"])?;
    assert_eq!(again.status.code(), Some(1));
    assert!(
        text(&again.stderr).contains("my-vllm/Containerfile"),
        "{}",
        text(&again.stderr)
    );
    let wrong = kit(folder.path(), &["new", "../x"])?;
    assert!(
        text(&wrong.stderr).contains("invalid provider name '../x'"),
        "{}",
        text(&wrong.stderr)
    );

    pack("my-vllm", "one", &["lls-dep==1.0.0"])?;
    pack("other", "two", &["lls-dep==1.0.0"])?;
    pack("other", "conflict", &["lls-dep==2.0.0"])?;
    let check = |args: &[&str]| kit(folder.path(), &[&["check", "--python", &python], args].concat());
    let output = check(&["one", "two"])?;
    let said = text(&output.stdout);
    assert!(output.status.success(), "{said}{}", text(&output.stderr));
    for wanted in [
        "install one: ok\n",
        "install two: ok\n",
        "Merged 2 external provider(s)",
        "preflight: skipped",
    ] {
        assert!(said.contains(wanted), "no {wanted:?} in:\n{said}");
    }
    fs::create_dir(folder.path().join("again"))?;
    pack("other", "again/one", &["lls-dep==1.0.0"])?;
    let output = check(&["one", "again/one"])?;
    let said = text(&output.stdout);
    assert!(said.contains("Merged 2 external provider(s)"), "{said}");
    let output = check(&["one", "conflict"])?;
    let said = text(&output.stdout);
    assert_eq!(output.status.code(), Some(1), "{said}");
    assert!(
        said.contains("ERROR: Cannot install provider 'conflict' due to dependency conflict")
            && said.contains("lls-dep==2.0.0"),
        "{said}"
    );
    let output = check(&["nothing"])?;
    assert!(
        text(&output.stdout).contains("Missing /lls-provider/lls-provider-spec.yaml in image nothing"),
        "{}",
        text(&output.stdout)
    );
    let missing = kit(folder.path(), &["check", "--python", "/no/python", "one"])?;
    assert!(
        text(&missing.stderr).contains("set another with --python"),
        "{}",
        text(&missing.stderr)
    );

    let server = environment(NEWEST).context("llama-stack cannot be installed")?;
    let server = server.display().to_string();
    let output = check(&["one", "two", "--distribution-python", &server])?;
    let said = text(&output.stdout);
    assert!(
        output.status.success() && said.contains("preflight: ok\n"),
        "{said}{}",
        text(&output.stderr)
    );
    // What only an import shows.
    fs::write(folder.path().join("other/other/config.py"), "import lls_not_there\n")?;
    pack("other", "lost", &["lls-dep==1.0.0"])?;
    let output = check(&["one", "lost", "--distribution-python", &server])?;
    let said = text(&output.stdout);
    assert_eq!(output.status.code(), Some(1), "{said}");
    assert!(
        said.contains("Provider: lost\n") && said.contains("No module named 'lls_not_there'"),
        "{said}"
    );
    Ok(())
}

/// Files of the layer that `build` adds, by path.
fn last_layer(archive: &Path) -> Result<BTreeMap<String, Vec<u8>>> {
    let files = files(fs::File::open(archive)?)?;
    let blob = |descriptor: &Value| {
        let digest = descriptor["digest"].as_str().unwrap_or_default();
        files
            .get(&format!("blobs/{}", digest.replace(':', "/")))
            .context("a blob is missing")
    };
    let index: Value = serde_json::from_slice(&files["index.json"])?;
    let manifest: Value = serde_json::from_slice(blob(&index["manifests"][0])?)?;
    let config: Value = serde_json::from_slice(blob(&manifest["config"])?)?;
    let layers = manifest["layers"].as_array().context("no layers")?;
    let counted = config["rootfs"]["diff_ids"].as_array().map(Vec::len);
    ensure!(
        counted == Some(layers.len()) && layers.len() == 2,
        "{manifest} {config}"
    );
    for layer in layers {
        blob(layer)?;
    }
    files_of_gzip(blob(&layers[1])?)
}

fn files_of_gzip(bytes: &[u8]) -> Result<BTreeMap<String, Vec<u8>>> {
    files(flate2::read::GzDecoder::new(bytes))
}

fn files(tar: impl Read) -> Result<BTreeMap<String, Vec<u8>>> {
    let mut files = BTreeMap::new();
    for entry in tar::Archive::new(tar).entries()? {
        let mut entry = entry?;
        let mut content = Vec::new();
        entry.read_to_end(&mut content)?;
        files.insert(entry.path()?.to_string_lossy().into_owned(), content);
    }
    Ok(files)
}

#[test]
fn an_image_is_built_without_a_container_engine() -> Result<()> {
    let Some(python) = python_or_skip() else {
        return Ok(());
    };
    let folder = tempfile::tempdir()?;
    let inside = |path: &str| folder.path().join(path);
    let base = llama_stack::provider_base()?;
    llama_stack::provider_config().write("testbed.local/base:1", &base, &inside("base.tar"))?;
    kit(folder.path(), &["new", "my-vllm"])?;
    let build = |output: &str, more: &[&str]| {
        let fixed = [
            "build",
            "my-vllm",
            "--tag",
            "registry.example.com/my-vllm:v1",
            "--python",
            &python,
        ];
        kit(folder.path(), &[fixed.as_slice(), &["--output", output], more].concat())
    };

    let first = build("first.tar", &["--base", "base.tar"])?;
    assert!(first.status.success(), "{}", text(&first.stderr));
    let said = text(&first.stdout);
    assert!(
        said.starts_with("first.tar: registry.example.com/my-vllm:v1@sha256:")
            && said.ends_with("  my_vllm-1.0.0-py3-none-any.whl\n"),
        "{said}"
    );
    let layer = last_layer(&inside("first.tar"))?;
    assert!(!inside("my-vllm/build").exists(), "sources are left as they are");
    // What earlier builds left does not get into the wheel.
    fs::create_dir_all(inside("my-vllm/build/lib/my_vllm"))?;
    fs::write(inside("my-vllm/build/lib/my_vllm/stale.py"), "")?;
    let second = build("second.tar", &["--base", "base.tar"])?;
    assert!(second.status.success(), "{}", text(&second.stderr));
    assert!(
        fs::read(inside("first.tar"))? == fs::read(inside("second.tar"))?,
        "byte by byte"
    );

    // A pod installs what the image contains.
    for (path, content) in layer.iter().filter(|(path, _)| !path.ends_with('/')) {
        let target = inside("unpacked").join(path);
        fs::create_dir_all(target.parent().context("a file is in a folder")?)?;
        fs::write(target, content)?;
    }
    let checked = kit(folder.path(), &["check", "unpacked/lls-provider", "--python", &python])?;
    assert!(
        checked.status.success(),
        "{}{}",
        text(&checked.stdout),
        text(&checked.stderr)
    );

    let fails = |more: &[&str], wanted: &str| -> Result<()> {
        let output = build("failed.tar", more)?;
        let error = text(&output.stderr);
        ensure!(
            output.status.code() == Some(1) && error.contains(wanted),
            "no {wanted:?} in:\n{error}"
        );
        ensure!(!inside("failed.tar").exists(), "a file is left after: {error}");
        Ok(())
    };
    fails(&["--base", "nowhere.tar"], "cannot use nowhere.tar")?;
    fails(
        &["--base", "my-vllm/pyproject.toml"],
        "my-vllm/pyproject.toml is not an OCI archive",
    )?;
    let metadata = fs::read_to_string(inside("my-vllm/lls-provider-spec.yaml"))?;
    fs::write(
        inside("my-vllm/lls-provider-spec.yaml"),
        metadata.replace("1.0.0-py3", "2.0.0-py3"),
    )?;
    fails(
        &["--base", "base.tar"],
        "spec.wheelPath is /lls-provider/packages/my_vllm-2.0.0-py3-none-any.whl, but the image has \
         /lls-provider/packages/my_vllm-1.0.0-py3-none-any.whl",
    )?;
    fs::write(inside("my-vllm/pyproject.toml"), "[build-system")?;
    fails(&["--base", "base.tar"], "cannot build wheels of my-vllm")
}

/// The blocks of commands of a section of the page: command and the output that the page shows.
fn commands(section: &str) -> Result<Vec<(String, String)>> {
    let page = include_str!("../../../docs/how-to/llama-stack-providers.md");
    let (_, text) = page
        .split_once(&format!("## {section}\n"))
        .context("the section is missing")?;
    let text = text.split("\n## ").next().unwrap_or_default();
    let blocks = text
        .split("```console\n")
        .skip(1)
        .filter_map(|block| block.split("```").next());
    let mut commands: Vec<(String, String)> = Vec::new();
    for line in blocks.flat_map(str::lines) {
        match (line.strip_prefix("$ "), commands.last_mut()) {
            (Some(command), _) => commands.push((command.to_owned(), String::new())),
            (None, Some((_, output))) => output.extend([line, "\n"]),
            (None, None) => {}
        }
    }
    Ok(commands)
}

/// Whether `shown` is `text`, where `…` stands for anything.
fn shows(shown: &str, text: &str) -> bool {
    let mut rest = text;
    for (n, part) in shown.split('…').enumerate() {
        match rest.find(part) {
            Some(at) if n > 0 || at == 0 => rest = &rest[at + part.len()..],
            _ => return false,
        }
    }
    rest.is_empty()
}

#[test]
#[allow(
    clippy::disallowed_methods,
    reason = "the shell of the page finds the command on the PATH"
)]
fn four_commands_of_the_page_lead_from_nothing_to_an_answer() -> Result<()> {
    if python_or_skip().is_none() {
        return Ok(());
    }
    // What the page gets from PyPI and a registry.
    let server = environment(NEWEST).context("llama-stack cannot be installed")?;
    let folder = tempfile::tempdir()?;
    let environment = server.ancestors().nth(2).context("no environment")?;
    std::os::unix::fs::symlink(environment, folder.path().join(".venv"))?;
    let base = llama_stack::provider_base()?;
    llama_stack::provider_config().write("testbed.local/base:1", &base, &folder.path().join("python.tar"))?;
    let program = Path::new(env!("CARGO_BIN_EXE_kubeairunway"));
    let program = program.parent().context("no folder")?.display();
    let path = format!("{program}:{}", std::env::var("PATH")?);
    let commands = commands("Quick start")?;
    let (preparation, own): (Vec<_>, Vec<_>) = commands.iter().partition(|(c, _)| !c.starts_with("kubeairunway "));
    ensure!(own.len() == 4, "{own:?}");
    ensure!(
        preparation
            .iter()
            .any(|(c, _)| c.contains(&format!("llama-stack=={}", NEWEST.version))),
        "another release"
    );
    for (command, shown) in own {
        let output = Command::new("/bin/sh")
            .args(["-c", command])
            .env("PATH", &path)
            .current_dir(folder.path())
            .output()?;
        let said = text(&output.stdout);
        ensure!(output.status.success(), "$ {command}\n{said}{}", text(&output.stderr));
        ensure!(shows(shown, &said), "$ {command}\n{said}\nthe page shows:\n{shown}");
    }
    Ok(())
}

/// The directory of a provider with `requires`, packed from the sources of `new`.
fn packed(folder: &Path, python: &str, name: &str, out: &str, requires: &[&str]) -> Result<()> {
    if !folder.join(name).exists() {
        let output = kit(folder, &["new", name])?;
        ensure!(output.status.success(), "{}", text(&output.stderr));
    }
    let output = Command::new(python)
        .args(["-c", PACK])
        .arg(Path::new(env!("CARGO_MANIFEST_DIR")).join("../llama-stack-operator/tests"))
        .args([name, out])
        .args(requires)
        .current_dir(folder)
        .output()?;
    ensure!(output.status.success(), "{}", text(&output.stderr));
    Ok(())
}

#[test]
fn providers_are_checked_against_the_packages_of_a_distribution_without_it() -> Result<()> {
    let Some(python) = python_or_skip() else {
        return Ok(());
    };
    let folder = tempfile::tempdir()?;
    let inside = |path: &str| folder.path().join(path);
    packed(folder.path(), &python, "one", "a/one", &["lls-dep==1.0.0"])?;
    packed(folder.path(), &python, "two", "a/two", &["llama-stack==9.9"])?;

    let inspect = |requires: &str| {
        let package = |name: &str, requires: &[&str]| json!({ "metadata": { "name": name, "version": "0.7.3", "requires_dist": requires } });
        let installed = [
            package("llama-stack", &[requires, "lls-absent"]),
            package("lls-absent", &[]),
        ];
        json!({ "version": "1", "installed": installed }).to_string()
    };
    fs::write(inside("accepts.json"), inspect("lls-dep<2"))?;
    fs::write(inside("rejects.json"), inspect("lls-dep>=2"))?;
    fs::write(
        inside("freeze.txt"),
        "# a comment\nllama-stack==0.7.3\nlls-dep==2.0.0\nlocal @ file:///src\n",
    )?;
    let mut image = Rootfs::empty();
    let metadata =
        "Metadata-Version: 2.1\nName: llama-stack\nVersion: 0.7.3\nRequires-Dist: lls-dep>=2\n\nVersion: of the text\n";
    image.text(
        "/usr/local/lib/python3.12/site-packages/llama_stack-0.7.3.dist-info/METADATA",
        metadata,
    );
    llama_stack::provider_config().write("testbed.local/distribution:1", &image, &inside("distribution.tar"))?;

    let check = |provider: &str, file: &str| {
        kit(
            folder.path(),
            &["check", "--python", &python, provider, "--distribution", file],
        )
    };
    let accepted = |provider: &str, file: &str, wanted: &str| -> Result<()> {
        let output = check(provider, file)?;
        let said = text(&output.stdout);
        ensure!(
            output.status.success() && said.contains(wanted),
            "{said}{}",
            text(&output.stderr)
        );
        Ok(())
    };
    let rejected = |provider: &str, file: &str, wanted: &str| -> Result<()> {
        let output = check(provider, file)?;
        let said = text(&output.stdout);
        ensure!(output.status.code() == Some(1), "{said}{}", text(&output.stderr));
        let id = format!("Provider: {}\n", provider.trim_start_matches("a/"));
        ensure!(said.contains(wanted) && said.contains(&id), "no {wanted:?} in:\n{said}");
        Ok(())
    };
    accepted("a/one", "accepts.json", "packages of accepts.json: ok\n")?;
    accepted("a/one", "freeze.txt", "NOTE: 'local @ file:///src' is skipped")?;
    accepted(
        "a/one",
        "freeze.txt",
        "NOTE: the list has no requirements of the distribution's packages",
    )?;
    let conflict = "pip check says: llama-stack 0.7.3 has requirement lls-dep>=2, but you have lls-dep 1.0.0.";
    rejected("a/one", "rejects.json", conflict)?;
    rejected("a/one", "distribution.tar", conflict)?;
    let server = "has requirement llama-stack==9.9, but you have llama-stack 0.7.3.";
    for file in ["accepts.json", "freeze.txt", "distribution.tar"] {
        rejected("a/two", file, server)?;
    }
    for (content, wanted) in [
        ("", "it lists no packages"),
        ("{}", "it lists no packages"),
        ("{", "EOF"),
        ("what is this", "'what is this' is not NAME==VERSION"),
        ("../../x==1", "'../../x==1' is not NAME==VERSION"),
    ] {
        fs::write(inside("wrong.txt"), content)?;
        let output = check("a/one", "wrong.txt")?;
        let said = text(&output.stderr);
        ensure!(output.status.code() == Some(1), "{content:?}: {said}");
        ensure!(
            said.contains("wrong.txt is not a list of packages") && said.contains(wanted),
            "{content:?}: {said}"
        );
    }
    Ok(())
}

#[test]
fn a_tried_provider_answers_with_its_config_or_its_failure_is_shown() -> Result<()> {
    let Some(python) = python_or_skip() else {
        return Ok(());
    };
    let server = environment(NEWEST).context("llama-stack cannot be installed")?;
    let server = server.display().to_string();
    let folder = tempfile::tempdir()?;
    let inside = |path: &str| folder.path().join(path);
    let try_it = |args: &[&str]| {
        kit(
            folder.path(),
            &[&["try", "--distribution-python", &server], args].concat(),
        )
    };
    packed(folder.path(), &python, "one", "a/one", &[])?;
    fs::write(inside("config.yaml"), "prefix: 'said: '\n")?;
    let output = try_it(&["a/one", "--config", "one=config.yaml", "--message", "hello"])?;
    let said = text(&output.stdout);
    ensure!(output.status.success(), "{said}{}", text(&output.stderr));
    for wanted in [
        "preflight: ok\n",
        "provider one: inference, inline::one\n",
        "question to one/echo-1: hello\n",
        "answer: said: hello\n",
    ] {
        ensure!(said.contains(wanted), "no {wanted:?} in:\n{said}");
    }

    // What the pod finds before its server starts.
    fs::write(inside("wrong.yaml"), "prefix: {a: 1}\n")?;
    let output = try_it(&["a/one", "--config", "one=wrong.yaml"])?;
    let said = text(&output.stdout);
    ensure!(
        output.status.code() == Some(1) && said.contains("Field: config.prefix"),
        "{said}"
    );
    let output = try_it(&["a/one", "--config", "two=config.yaml"])?;
    let said = text(&output.stderr);
    ensure!(
        said.contains("--config names the provider 'two', but there is one"),
        "{said}"
    );

    // A server that dies, and a provider that does not answer.
    let broken = |name: &str, from: &str, to: &str| -> Result<String> {
        packed(folder.path(), &python, name, &format!("unused/{name}"), &[])?;
        let path = inside(name).join(name).join("impl.py");
        let text_before = fs::read_to_string(&path)?;
        ensure!(text_before.contains(from), "{text_before}");
        fs::write(&path, text_before.replace(from, to))?;
        packed(folder.path(), &python, name, &format!("a/{name}"), &[])?;
        let output = try_it(&[&format!("a/{name}")])?;
        ensure!(output.status.code() == Some(1), "{}", text(&output.stdout));
        Ok(text(&output.stdout))
    };
    let said = broken(
        "dies",
        "        self.config = config",
        "        raise RuntimeError('the model is gone')",
    )?;
    for wanted in [
        "ERROR: The server terminated\n",
        "Reason: exit status: ",
        "the model is gone",
    ] {
        ensure!(said.contains(wanted), "no {wanted:?} in:\n{said}");
    }
    let said = broken(
        "silent",
        "        asked = params",
        "        raise RuntimeError('no answer today')\n        asked = params",
    )?;
    for wanted in [
        "ERROR: The provider does not answer\n",
        "answered 500",
        "no answer today",
    ] {
        ensure!(said.contains(wanted), "no {wanted:?} in:\n{said}");
    }
    Ok(())
}
