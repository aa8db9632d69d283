//! `kubeairunway llama-stack provider`: a new provider is packed, checked, and checked with the real llama-stack.
#![allow(clippy::unwrap_used, clippy::panic, reason = "helpers of tests are tests")]

use std::fs;
use std::path::Path;
use std::process::{Command, Output};

use anyhow::{Context, Result};
use runway_testbed::llama_stack::{NEWEST, environment, python};

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
