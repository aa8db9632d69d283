//! `kubeairunway llama-stack provider`: a new provider is packed, built, checked, and checked with the real llama-stack.
#![allow(clippy::unwrap_used, clippy::panic, reason = "helpers of tests are tests")]

use std::collections::BTreeMap;
use std::fs;
use std::io::Read;
use std::path::Path;
use std::process::{Command, Output};

use anyhow::{Context, Result, ensure};
use runway_testbed::llama_stack::{self, NEWEST, environment, python};
use serde_json::Value;

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

#[test]
fn a_new_provider_is_checked_as_a_pod_does_it() -> Result<()> {
    let Some(python) = python("3.12") else {
        eprintln!("SKIPPED: there is no Python 3.12 with pip here");
        return Ok(());
    };
    let python = python.display().to_string();
    let folder = tempfile::tempdir()?;
    let pack = |name: &str, out: &str, requires: &[&str]| -> Result<()> {
        let output = Command::new(&python)
            .args(["-c", PACK])
            .arg(Path::new(env!("CARGO_MANIFEST_DIR")).join("../llama-stack-operator/tests"))
            .args([name, out])
            .args(requires)
            .current_dir(folder.path())
            .output()?;
        assert!(output.status.success(), "{}", text(&output.stderr));
        Ok(())
    };
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
    let Some(python) = python("3.12") else {
        eprintln!("SKIPPED: there is no Python 3.12 with pip here");
        return Ok(());
    };
    let python = python.display().to_string();
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
