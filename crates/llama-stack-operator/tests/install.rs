//! The installation of providers, as processes with real Pythons and pips: what fits is installed, what does not is
//! refused before anything changes, and says why.

mod pod;

use std::fs;
use std::os::unix::fs::{PermissionsExt, chown};
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result};
use pod::{Pod, contents, images, pythons, skipped, text};
use runway_llama_stack_operator::pod::{CrdConfig, INSTALL_PROVIDER};
use runway_testbed::python;
use serde_json::json;

#[test]
fn every_python_installs_the_same() -> Result<()> {
    let mut outcomes = Vec::new();
    for (version, python) in pythons() {
        let pod = Pod::with(python)?;
        pod.installed("a", "a")?;
        pod.installed("b", "b-bundles-1.5")?;
        let manifest = pod.read("external-providers/installed-packages.txt")?;
        assert_eq!(
            manifest,
            format!(
                "# provider a, image registry.example.com/a:v1, Python {version}\nlls-a==1.0.0\nlls-dep==1.0.0\n\
                 # provider b, image registry.example.com/b-bundles-1.5:v1, Python {version}\nlls-b==1.0.0\n\
                 lls-dep==1.0.0  # installed before\n"
            )
        );
        let crd: serde_json::Value = serde_json::from_str(&pod.read("external-providers/metadata/b/crd-config.yaml")?)?;
        assert_eq!(crd["initContainerName"], "install-provider-b");
        assert_eq!(crd["order"], 1);
        outcomes.push(contents(&pod.volume().join("python-packages"))?);
    }
    assert!(!outcomes.is_empty());
    let names =
        |outcome: &Vec<(std::path::PathBuf, Vec<u8>)>| outcome.iter().map(|(name, _)| name.clone()).collect::<Vec<_>>();
    for outcome in &outcomes {
        assert_eq!(names(outcome), names(&outcomes[0]));
    }
    Ok(())
}

#[test]
fn the_same_input_gives_the_same_bytes_and_a_second_try_changes_nothing() -> Result<()> {
    let (one, two) = (Pod::new()?, Pod::new()?);
    for pod in [&one, &two] {
        pod.installed("a", "a")?;
    }
    let first = contents(&one.volume())?;
    assert_eq!(first, contents(&two.volume())?);
    // What a killed container leaves is cleared away.
    fs::create_dir_all(two.volume().join(".install-killed/stage"))?;
    fs::remove_dir_all(two.volume().join("python-packages/lls_dep-1.0.0.dist-info"))?;
    let again = two.install("a", "a")?;
    assert!(again.status.success(), "{}", text(&again.stderr));
    let volume = |pod: &Pod| -> Result<Vec<_>> {
        let all = contents(&pod.volume())?.into_iter();
        Ok(all.filter(|(name, _)| !name.ends_with("crd-config.yaml")).collect())
    };
    assert_eq!(volume(&one)?, volume(&two)?);
    Ok(())
}

#[test]
fn a_conflict_is_found_before_anything_changes_and_names_both_versions() -> Result<()> {
    let pod = Pod::after_a()?;
    let said = pod.refused("b", "b-wants-2")?;
    assert!(
        said.starts_with("ERROR: Cannot install provider 'b' due to dependency conflict\n\nProvider: b\n"),
        "{said}"
    );
    for wanted in [
        "lls-b 1.0.0 depends on lls-dep==2.0.0",
        "The user requested (constraint) lls-dep==1.0.0",
        "Pip installation failed with:\n",
        "Previously installed packages can be found in: /opt/llama-stack/external-providers/installed-packages.txt",
        "Resolution: Update provider images to use compatible dependency versions, or reorder providers in the CRD",
    ] {
        assert!(said.contains(wanted), "no {wanted:?} in:\n{said}");
    }
    // The other order works, as the resolution says.
    let pod = Pod::new()?;
    pod.installed("b", "b-wants-2")?;
    pod.installed("a", "a")?;
    assert!(
        pod.read("external-providers/python-packages/lls_dep/__init__.py")?
            .contains("2.0.0")
    );
    Ok(())
}

#[test]
fn a_requirement_of_an_earlier_provider_counts() -> Result<()> {
    for (first, second) in [("b-below-2", "b-wants-2"), ("b-wants-2", "b-below-2")] {
        let pod = Pod::new()?;
        pod.installed("one", first)?;
        let said = pod.refused("two", second)?;
        assert!(said.contains("due to dependency conflict"), "{said}");
        assert!(said.contains("lls-dep==") && said.contains("lls-b"), "{said}");
    }
    Ok(())
}

#[test]
fn there_are_no_false_conflicts() -> Result<()> {
    // Each is installed after `a`, by a Python that may be another one.
    for image in [
        "b-bundles-1.5",
        "b-newer-python",
        "server-not-bundled",
        "several-wheels",
        "a",
        "scripts",
        "local-version",
    ] {
        let mut pod = Pod::after_a()?;
        if image != "b-newer-python" {
            pod.python = pythons()[0].1.clone();
        }
        pod.installed("b", image)?;
        // Both packages that share a namespace are whole, and the version that was there stays.
        assert!(pod.volume().join("python-packages/lls_ns/a.py").is_file(), "{image}");
        assert!(
            pod.read("external-providers/python-packages/lls_dep/__init__.py")?
                .contains("1.0.0"),
            "{image}"
        );
        assert!(!pod.volume().join("python-packages/bin").exists(), "{image}");
    }
    let pod = Pod::after_a()?;
    pod.installed("b", "b-bundles-1.5")?;
    assert!(pod.volume().join("python-packages/lls_ns/a.py").is_file());
    assert!(pod.volume().join("python-packages/lls_ns/b.py").is_file());
    Ok(())
}

/// The dependency sets of 20 providers of llama-stack, one after the other into one pod.
#[test]
fn real_providers_conflict_only_where_no_version_fits() -> Result<()> {
    let Some(python) = python::find("3.12") else {
        skipped("there is no Python 3.12 with pip here");
        return Ok(());
    };
    let folder = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR"))?;
    let output = Command::new(&python)
        .arg(Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/provider_sets.py"))
        .arg(folder.path())
        .output()?;
    assert!(output.status.success(), "{}", text(&output.stderr));
    let sets: Vec<(String, bool)> = serde_json::from_slice(&output.stdout)?;
    assert_eq!(sets.len(), 20);
    let pod = Pod::with(&python)?;
    for (id, fits) in &sets {
        let output = pod
            .installation(id, id, None)?
            .env("LLS_PROVIDER_DIR", folder.path().join(id).join("lls-provider"))
            .output()?;
        let said = text(&output.stderr);
        assert_eq!(output.status.success(), *fits, "{id}: {said}");
        assert!(*fits || said.contains("due to dependency conflict"), "{id}: {said}");
    }
    let fitting = sets.iter().filter(|(_, fits)| *fits).count();
    eprintln!("{fitting} of 20 fit together, and none of these is refused");
    assert!((10..20).contains(&fitting), "{sets:?}");
    Ok(())
}

#[test]
fn marker_of_another_python_does_not_conflict() -> Result<()> {
    let newest = &pythons().last().unwrap().1;
    let (oldest, python) = &pythons()[0];
    if *oldest != "3.10" {
        skipped("Python 3.10 is needed to show it");
        return Ok(());
    }
    let mut pod = Pod::with(newest)?;
    pod.installed("b", "b-newer-python")?;
    pod.python.clone_from(python);
    // On Python 3.10 the first provider needs lls-backport, which no image contains.
    pod.installed("a", "a")?;
    Ok(())
}

#[test]
fn the_server_is_never_installed() -> Result<()> {
    let pod = Pod::new()?;
    let output = pod.install("b", "server-bundled")?;
    assert!(output.status.success(), "{}", text(&output.stderr));
    assert!(text(&output.stdout).contains("llama_stack-0.2.14-py3-none-any.whl is not installed"));
    let packages = pod.volume().join("python-packages");
    assert!(packages.join("lls_dep").is_dir() && !packages.join("llama_stack").exists());
    assert!(
        !packages.join("lls_of_server.py").exists(),
        "what only the server needs stays away as well"
    );
    Ok(())
}

#[test]
fn files_of_two_packages_must_not_clash() -> Result<()> {
    let pod = Pod::after_a()?;
    let said = pod.refused("b", "b-same-file")?;
    assert!(
        said.contains("due to file conflict") && said.contains("lls_dep/__init__.py (of lls-dep==1.0.0)"),
        "{said}"
    );
    Ok(())
}

#[test]
fn files_that_no_import_can_reach_do_not_clash() -> Result<()> {
    let pod = Pod::new()?;
    pod.installed("a", "with-tests-1")?;
    let output = pod.install("b", "with-tests-2")?;
    assert!(output.status.success(), "{}", text(&output.stderr));
    for name in [
        "tests/__init__.py",
        "tests/conftest.py",
        "docs/conf.py",
        "share/a.cfg",
        "README.md",
    ] {
        let note = format!("NOTE: {name} is there already (of with-tests-1==1.0.0) and is kept");
        assert!(
            text(&output.stdout).contains(&note),
            "no {note:?} in:\n{}",
            text(&output.stdout)
        );
    }
    assert_eq!(
        pod.read("external-providers/python-packages/tests/conftest.py")?,
        "x = 1\n"
    );
    for package in ["with_tests_1", "with_tests_2", "tests/test_with_tests_2.py"] {
        assert!(pod.volume().join("python-packages").join(package).exists(), "{package}");
    }
    // A module, the data of a package, and a package whose distribution has that name.
    for (name, file) in [
        ("same-module", "lls_ns.py"),
        ("same-data-of-a-package", "lls_ns/data.json"),
        ("tests-of-its-name", "tests/__init__.py"),
    ] {
        let pod = Pod::new()?;
        pod.installed("a", &format!("{name}-1"))?;
        let said = pod.refused("b", &format!("{name}-2"))?;
        assert!(
            said.contains("due to file conflict") && said.contains(file),
            "{name}: {said}"
        );
    }
    Ok(())
}

#[test]
fn images_that_are_none_are_refused_with_a_way_out() -> Result<()> {
    for (image, wanted) in [
        (
            "nothing",
            "Missing /lls-provider/lls-provider-spec.yaml in image registry.example.com/nothing:v1",
        ),
        (
            "no-spec",
            "Missing /lls-provider/lls-provider-spec.yaml in image registry.example.com/no-spec:v1",
        ),
        (
            "no-packages",
            "Missing /lls-provider/packages/ directory in image registry.example.com/no-packages:v1",
        ),
        (
            "empty-packages",
            "No wheels in /lls-provider/packages/ in image registry.example.com/empty-packages:v1",
        ),
        ("no-wheel-path", "spec.wheelPath is missing"),
        (
            "wrong-wheel-path",
            "line 14\nReason: spec.wheelPath '/lls-provider/packages/lls_c-1.0.0-py3-none-any.whl' is not a file",
        ),
        ("large-spec", "at most 65536 are read"),
        ("binary-spec", "not UTF-8 text: byte 0"),
        ("tab", "line 4\nReason: YAML parse error: a tab cannot indent"),
        (
            "indent",
            "line 13\nReason: YAML parse error: this indent fits nothing above",
        ),
        ("colon", "line 6\nReason: YAML parse error: a second ': ' in one line"),
        (
            "unclosed",
            "line 6\nReason: YAML parse error: what begins here is never closed",
        ),
        ("no-key", "line 2\nReason: YAML parse error: expected 'key: value'"),
        (
            "broken-wheel",
            "lls_b-1.0.0-py3-none-any.whl is not a wheel: File is not a zip file",
        ),
        ("metadata-bomb", "its METADATA has more than 4194304 bytes"),
        ("several-metadata", "it has METADATA of several packages"),
        ("path-out-of-the-volume", "trying to install outside"),
        ("absolute-path", "trying to install outside"),
        ("foreign-main", "is not a supported wheel on this platform"),
        ("no-dependency", "No matching distribution found for lls-nowhere>=1"),
        ("name-without-tags", "'lls.whl' is not the name of a wheel"),
        (
            "name-with-newline",
            r"'lls_x-1.0.0\n-py3-none-any.whl' is not the name of a wheel",
        ),
        (
            "name-as-an-option",
            "'--target-1.0.0-py3-none-any.whl' is not the name of a wheel",
        ),
        ("name-with-quotes", "is not the name of a wheel"),
        (
            "name-not-text",
            r"'lls_x\udcff-1.0.0-py3-none-any.whl' is not the name of a wheel",
        ),
        (
            "main-wheel-is-no-wheel",
            "spec.wheelPath '/lls-provider/packages/lls.whl.txt' is not the name of a wheel",
        ),
        ("wheel-is-a-folder", "in /lls-provider/packages/ is not a file"),
        ("wheel-is-a-pipe", "in /lls-provider/packages/ is not a file"),
        ("wheel-is-a-device", "in /lls-provider/packages/ is not a file"),
        ("wheel-is-a-link-to-nowhere", "in /lls-provider/packages/ is not a file"),
        ("wheel-is-a-link-to-itself", "in /lls-provider/packages/ is not a file"),
        ("corrupt-wheel", "lls_b-1.0.0-py3-none-any.whl is not a wheel: Error -3"),
    ] {
        let said = Pod::new()?.refused("b", image)?;
        assert!(said.contains(wanted), "{image}: no {wanted:?} in:\n{said}");
    }
    Ok(())
}

#[test]
fn links_of_an_image_are_followed_and_a_wheel_brings_none() -> Result<()> {
    let pod = Pod::new()?;
    pod.installed("b", "links")?;
    let entry = pod.volume().join("python-packages/lls_b/passwd");
    assert!(fs::symlink_metadata(&entry)?.is_file());
    assert_eq!(fs::read_to_string(entry)?, "/etc/passwd");
    Ok(())
}

#[test]
fn the_main_wheel_is_the_value_of_the_key_and_never_that_of_a_comment_or_another_text() -> Result<()> {
    for form in [
        "comment",
        "description",
        "annotation",
        "quoted-text",
        "quoted",
        "flow",
        "json",
    ] {
        let pod = Pod::new()?;
        pod.installed("b", &format!("path-{form}"))
            .with_context(|| form.to_owned())?;
        let packages = pod.volume().join("python-packages");
        assert!(
            packages.join("lls_b").is_dir() && !packages.join("lls_dep").exists(),
            "{form}"
        );
    }
    for (form, wanted) in [
        ("only-a-comment", "spec.wheelPath is missing: write it as `wheelPath: "),
        (
            "twice",
            "line 15\nReason: spec.wheelPath is there twice, first in line 14",
        ),
        (
            "alias",
            "line 14\nReason: spec.wheelPath is *wheel, which is not read here",
        ),
        ("list", "line 14\nReason: spec.wheelPath is [/lls-provider/"),
        (
            "tagged",
            "line 10\nReason: spec.wheelPath is not found, and from this line on the file is not read here",
        ),
    ] {
        let said = Pod::new()?.refused("b", &format!("path-{form}"))?;
        assert!(said.contains(wanted), "{form}: no {wanted:?} in:\n{said}");
    }
    Ok(())
}

#[test]
fn the_example_is_a_provider_image() -> Result<()> {
    let pod = Pod::new()?;
    pod.installed("echo", "echo")?;
    assert!(pod.volume().join("python-packages/lls_echo/provider.py").is_file());
    Ok(())
}

#[test]
fn image_without_pip_is_reported() -> Result<()> {
    let pod = Pod::new()?;
    let without = pod.path("without-pip");
    let output = Command::new(&pod.python)
        .args(["-m", "venv", "--without-pip", &without.display().to_string()])
        .output()?;
    assert!(output.status.success(), "{}", text(&output.stderr));
    let pod = Pod {
        python: without.join("bin/python3"),
        ..pod
    };
    let said = pod.refused("b", "a")?;
    assert!(
        said.contains("its image has no pip") && said.contains("ensurepip"),
        "{said}"
    );
    Ok(())
}

#[test]
fn config_arrives_as_it_was_written() -> Result<()> {
    let pod = Pod::new()?;
    let config =
        json!({"password": "pa$$w0rd", "home": "$(HOME)", "text": "é \"'\n\\ ${env.X:=y}", "n": 1.5e300, "none": null});
    let output = pod.installation("a", "a", Some(config.clone()))?.output()?;
    assert!(output.status.success(), "{}", text(&output.stderr));
    let crd: serde_json::Value = serde_json::from_str(&pod.read("external-providers/metadata/a/crd-config.yaml")?)?;
    assert_eq!(crd["config"], config);
    Ok(())
}

#[test]
fn a_config_too_large_for_a_variable_is_refused() {
    let config = CrdConfig {
        provider_id: "a".to_owned(),
        api: "inference".to_owned(),
        image: "i".to_owned(),
        init_container_name: "c".to_owned(),
        order: 0,
        config: Some(json!("x".repeat(100_000))),
    };
    let error = config.encoded().unwrap_err().to_string();
    assert!(
        error.contains("config of provider 'a'") && error.contains("ConfigMap"),
        "{error}"
    );
}

/// Runs the installation in a mount namespace of its own, with a tmpfs volume with these options. Prints a note and returns
/// `None` if this machine does not allow it.
fn with_volume(pod: &Pod, image: &str, options: &str) -> Result<Option<(String, Option<i32>)>> {
    let mut command = Command::new("unshare");
    let script = format!(
        "mount -t tmpfs -o {options} tmpfs \"$LLS_EXTERNAL_PROVIDERS\" && echo mounted && exec \"$0\" -c \"$SCRIPT\""
    );
    command
        .args(["--mount", "sh", "-c", &script])
        .arg(&pod.python)
        .env("SCRIPT", INSTALL_PROVIDER);
    pod.environment(&mut command, "b", image, None)?;
    let Ok(output) = command.output() else {
        skipped("no unshare here, so no volume of its own");
        return Ok(None);
    };
    if !text(&output.stdout).starts_with("mounted") {
        skipped(&format!("no volume can be mounted here: {}", text(&output.stderr)));
        return Ok(None);
    }
    Ok(Some((text(&output.stderr), output.status.code())))
}

#[test]
fn full_or_read_only_volume_is_reported() -> Result<()> {
    let pod = Pod::new()?;
    for (image, options, wanted) in [
        ("ten-dependencies", "size=100k", "the volume is full"),
        ("large-content", "size=10m", "the volume is full"),
        ("ten-dependencies", "ro", "the volume is read-only"),
    ] {
        let Some((said, code)) = with_volume(&pod, image, options)? else {
            return Ok(());
        };
        assert_eq!(code, Some(1), "{said}");
        assert!(
            said.contains(wanted) && said.contains("Resolution: "),
            "no {wanted:?} in:\n{said}"
        );
        assert!(pod.termination_message()?.contains(wanted));
    }
    Ok(())
}

#[test]
fn containers_of_several_users_share_the_volume() -> Result<()> {
    let python = Path::new("/usr/bin/python3");
    let reachable = Command::new("setpriv")
        .args(["--reuid", "1000", "--regid", "1001", "--clear-groups"])
        .arg(python)
        .args(["-m", "pip", "--version"])
        .output();
    if !reachable.is_ok_and(|output| output.status.success()) {
        skipped("no right to become another user, or no Python with pip that others may run");
        return Ok(());
    }
    let pod = Pod::with(python)?;
    // Where other users can go: the images, and a volume as fsGroup makes it.
    let shared = tempfile::tempdir()?;
    let volume = shared.path().join("volume");
    for image in ["a", "b-bundles-1.5"] {
        let output = Command::new("cp")
            .arg("-r")
            .arg(images().join(image))
            .arg(shared.path().join(image))
            .status()?;
        assert!(output.success());
    }
    fs::create_dir(&volume)?;
    chown(&volume, None, Some(1001))?;
    fs::set_permissions(&volume, fs::Permissions::from_mode(0o2777))?;
    fs::set_permissions(shared.path(), fs::Permissions::from_mode(0o755))?;
    let as_user = |user: &str, id: &str, image: &str| -> Result<std::process::Output> {
        let mut command = Command::new("setpriv");
        // A strict umask of the image must not matter.
        command.args([
            "--reuid",
            user,
            "--regid",
            "1001",
            "--clear-groups",
            "sh",
            "-c",
            "umask 077; exec \"$0\" -c \"$SCRIPT\"",
        ]);
        command.arg(python).env("SCRIPT", INSTALL_PROVIDER).current_dir("/");
        pod.environment(&mut command, id, image, None)?;
        command.env("LLS_EXTERNAL_PROVIDERS", &volume);
        command.env("LLS_PROVIDER_DIR", shared.path().join(image).join("lls-provider"));
        Ok(command.output()?)
    };
    for (user, id, image) in [("1000", "a", "a"), ("2000", "b", "b-bundles-1.5"), ("3000", "a", "a")] {
        let output = as_user(user, id, image)?;
        assert!(output.status.success(), "user {user}: {}", text(&output.stderr));
    }
    // Without the group they cannot, and the message names the remedy.
    fs::set_permissions(&volume, fs::Permissions::from_mode(0o2755))?;
    let output = as_user("4000", "c", "a")?;
    let said = text(&output.stderr);
    assert!(
        said.contains("not writable for this user") && said.contains("fsGroup"),
        "{said}"
    );
    Ok(())
}

/// Files by path.
type Files = Vec<(PathBuf, Vec<u8>)>;

/// Installs an image with a cache; returns the output and the volume.
fn with_cache(image: &str, cache: &Path) -> Result<(String, Files)> {
    let pod = Pod::new()?;
    let output = pod
        .installation("b", image, None)?
        .env("LLS_PROVIDER_CACHE", cache)
        .output()?;
    assert!(output.status.success(), "{}", text(&output.stderr));
    Ok((text(&output.stdout), contents(&pod.volume())?))
}

#[test]
fn a_cache_gives_later_pods_the_same_packages_without_pip() -> Result<()> {
    const FROM_CACHE: &str = "The packages are taken from the cache\n";
    let pod = Pod::new()?;
    pod.installed("b", "ten-dependencies")?;
    let expected = contents(&pod.volume())?;

    let folder = tempfile::tempdir()?;
    let cache = folder.path();
    let (said, installed) = with_cache("ten-dependencies", cache)?;
    assert!(!said.contains(FROM_CACHE) && installed == expected, "{said}");
    let start = std::time::Instant::now();
    let (said, installed) = with_cache("ten-dependencies", cache)?;
    eprintln!(
        "10 dependencies, 1000 modules, from the cache: {} ms",
        start.elapsed().as_millis()
    );
    assert!(said.contains(FROM_CACHE) && installed == expected, "{said}");

    // Another image, and the same one beside another provider, have entries of their own.
    let (said, _) = with_cache("echo", cache)?;
    assert!(!said.contains(FROM_CACHE), "{said}");
    let after_a = Pod::after_a()?;
    let output = after_a
        .installation("b", "ten-dependencies", None)?
        .env("LLS_PROVIDER_CACHE", cache)
        .output()?;
    assert!(output.status.success() && !text(&output.stdout).contains(FROM_CACHE));

    // A damaged entry is replaced.
    let (damaged, _) = contents(cache)?
        .into_iter()
        .find(|(path, _)| path.ends_with("m1.py"))
        .context("no module in the cache")?;
    fs::write(cache.join(damaged), "raise SystemExit\n")?;
    let (_, installed) = with_cache("ten-dependencies", cache)?;
    assert!(installed == expected);
    let (said, installed) = with_cache("ten-dependencies", cache)?;
    assert!(said.contains(FROM_CACHE) && installed == expected, "{said}");

    // A cache that cannot be written or is not there changes nothing.
    let (said, installed) = with_cache("ten-dependencies", &cache.join("absent"))?;
    assert!(!said.contains(FROM_CACHE) && installed == expected, "{said}");
    Ok(())
}

#[test]
fn ten_dependencies_take_seconds() -> Result<()> {
    let pod = Pod::new()?;
    let start = std::time::Instant::now();
    pod.installed("b", "ten-dependencies")?;
    let taken = start.elapsed();
    eprintln!("10 dependencies, 1000 modules: {} ms", taken.as_millis());
    // The figure is 5 s on a machine that does nothing else; tests run beside each other.
    assert!(taken.as_secs() < 60, "{taken:?}");
    Ok(())
}
