//! Image archives: the layout that container engines read, and the same bytes for the same files.

use std::{
    collections::BTreeMap,
    fs::{self, File, FileTimes},
    io::Read as _,
    os::unix::fs::PermissionsExt as _,
    path::Path,
    time::{Duration, SystemTime},
};

use anyhow::{Context, Result, bail, ensure};
use runway_testbed::images::{Config, Layered, Rootfs, of_program, write_all};
use serde_json::Value;
use sha2::{Digest as _, Sha256};

const NAME: &str = "testbed.local/example:7";

#[test]
fn the_same_files_give_the_same_archive() -> Result<()> {
    let out = tempfile::tempdir()?;
    let [one, other] = ["one.tar", "other.tar"].map(|name| out.path().join(name));
    // Elsewhere, later, in another order, with other rights.
    let first = folder(&["a", "b/c"], 0o600, SystemTime::UNIX_EPOCH)?;
    let second = folder(
        &["b/c", "a"],
        0o664,
        SystemTime::UNIX_EPOCH + Duration::from_secs(1_000_000_000),
    )?;
    let digest = Config::default().write(NAME, &rootfs(first.path())?, &one)?;
    ensure!(digest == Config::default().write(NAME, &rootfs(second.path())?, &other)?);
    ensure!(fs::read(&one)? == fs::read(&other)?, "byte by byte");

    fs::write(second.path().join("a"), "something else")?;
    ensure!(digest != Config::default().write(NAME, &rootfs(second.path())?, &other)?);
    let with_arguments = Config {
        args: vec!["--verbose".to_owned()],
        ..Config::default()
    };
    ensure!(digest != with_arguments.write(NAME, &rootfs(first.path())?, &other)?);
    Ok(())
}

#[test]
fn the_archive_is_an_image_layout() -> Result<()> {
    let out = tempfile::tempdir()?;
    let archive = out.path().join("image.tar");
    let source = folder(&["a"], 0o600, SystemTime::now())?;
    let digest = Config::default().write(NAME, &rootfs(source.path())?, &archive)?;

    let files = read(File::open(&archive)?)?;
    for (path, content) in &files {
        if let Some(digest) = path.strip_prefix("blobs/sha256/") {
            ensure!(digest == sha256(content), "{path} has the digest {}", sha256(content));
        }
    }
    let layout: Value = serde_json::from_slice(&files["oci-layout"])?;
    ensure!(layout["imageLayoutVersion"] == "1.0.0");
    let index: Value = serde_json::from_slice(&files["index.json"])?;
    let entry = &index["manifests"][0];
    ensure!(entry["digest"] == digest.as_str(), "{index}");
    ensure!(entry["annotations"]["io.containerd.image.name"] == NAME);
    ensure!(entry["annotations"]["org.opencontainers.image.ref.name"] == "7");
    let manifest: Value = serde_json::from_slice(find(&files, entry)?)?;
    let config: Value = serde_json::from_slice(find(&files, &manifest["config"])?)?;
    ensure!(
        config["config"]["User"] == "65532:65532",
        "a user without a name: {config}"
    );
    let layer = find(&files, &manifest["layers"][0])?;
    ensure!(config["rootfs"]["diff_ids"][0] == format!("sha256:{}", sha256(layer)));

    let inside = read(layer)?;
    ensure!(inside["data/a"] == b"content of a");
    ensure!(inside.contains_key("etc/passwd") && inside.contains_key("data/"));
    let mut tar = tar::Archive::new(layer);
    for entry in tar.entries()? {
        let entry = entry?;
        let header = entry.header();
        ensure!((header.uid()?, header.gid()?, header.mtime()?) == (0, 0, 0));
        let expected = match entry.path()?.to_str() {
            Some("tmp/") => 0o1777,
            Some(path) if path.ends_with('/') => 0o755,
            _ => 0o644,
        };
        ensure!(header.mode()? == expected, "{:?}: {:o}", entry.path()?, header.mode()?);
    }
    Ok(())
}

#[test]
fn a_program_takes_its_libraries_along_and_nothing_else() -> Result<()> {
    let own = std::env::current_exe()?;
    let (rootfs, config) = of_program(&own, &["/manager", "/usr/bin/other"])?;
    let out = tempfile::tempdir()?;
    let archive = out.path().join("image.tar");
    config.write(NAME, &rootfs, &archive)?;
    let files = read(File::open(archive)?)?;
    let index: Value = serde_json::from_slice(&files["index.json"])?;
    let manifest: Value = serde_json::from_slice(find(&files, &index["manifests"][0])?)?;
    let config: Value = serde_json::from_slice(find(&files, &manifest["config"])?)?;
    let name = own.file_name().and_then(|name| name.to_str()).context("a name")?;
    ensure!(config["config"]["Entrypoint"] == serde_json::json!([format!("/{name}")]));
    let layer = find(&files, &manifest["layers"][0])?;
    let inside = read(layer)?;
    for wanted in ["/libc.so", "/ld-linux"] {
        ensure!(inside.keys().any(|path| path.contains(wanted)), "no {wanted}");
    }
    let others = inside
        .keys()
        .filter(|path| !path.ends_with('/') && !path.contains("lib"));
    let others: Vec<&str> = others.map(String::as_str).collect();
    let mut expected = [name, "etc/group", "etc/passwd", "manager", "usr/bin/other"];
    expected.sort_unstable();
    ensure!(others == expected, "{others:?}");
    for entry in tar::Archive::new(layer).entries()? {
        let entry = entry?;
        if let Some(target) = entry.link_name()? {
            ensure!(
                target == Path::new("/").join(name),
                "{:?} leads to {target:?}",
                entry.path()?
            );
        }
    }
    Ok(())
}

#[test]
fn images_of_one_archive_share_their_layers() -> Result<()> {
    let out = tempfile::tempdir()?;
    let archive = out.path().join("images.tar");
    let [mut base, mut one, mut other] = [(); 3].map(|()| Rootfs::empty());
    base.text("/base", "base");
    one.text("/own", "one");
    other.text("/own", "other");
    let image = |name: &str, layers| Layered {
        name: format!("testbed.local/{name}:1"),
        config: Config::default(),
        layers,
    };
    let images = [
        image("base", vec![&base]),
        image("one", vec![&base, &one]),
        image("other", vec![&base, &other]),
    ];
    let digests = write_all(&images, &archive)?;
    // What is in it is the same as when it is alone.
    let alone = Config::default().write("testbed.local/base:1", &base, &out.path().join("base.tar"))?;
    ensure!(digests.first() == Some(&alone), "{digests:?}");

    let files = read(File::open(&archive)?)?;
    let index: Value = serde_json::from_slice(&files["index.json"])?;
    let mut layers = Vec::new();
    for (position, digest) in digests.iter().enumerate() {
        let entry = &index["manifests"][position];
        ensure!(entry["digest"] == digest.as_str(), "{index}");
        let manifest: Value = serde_json::from_slice(find(&files, entry)?)?;
        let config: Value = serde_json::from_slice(find(&files, &manifest["config"])?)?;
        let own = manifest["layers"].as_array().context("no layers")?.clone();
        let unpacked: Vec<String> = own
            .iter()
            .map(|layer| Ok(format!("sha256:{}", sha256(find(&files, layer)?))))
            .collect::<Result<_>>()?;
        ensure!(config["rootfs"]["diff_ids"] == serde_json::json!(unpacked), "{config}");
        layers.push(own);
    }
    ensure!(layers[0][0] == layers[1][0] && layers[1][0] == layers[2][0] && layers[1][1] != layers[2][1]);
    ensure!(read(find(&files, &layers[2][1])?)?["own"] == b"other");
    // Three layers, three configurations, three manifests.
    ensure!(files.keys().filter(|path| path.starts_with("blobs/")).count() == 9);
    Ok(())
}

#[test]
fn a_missing_file_is_named() {
    let error = Rootfs::empty().file("/a", "/not/there", 0o755).map(|_| ());
    assert_eq!(error.unwrap_err().to_string(), "there is no file /not/there");
}

/// A folder with files, so and then written.
fn folder(names: &[&str], mode: u32, time: SystemTime) -> Result<tempfile::TempDir> {
    let folder = tempfile::tempdir()?;
    for name in names {
        let path = folder.path().join(name);
        fs::create_dir_all(path.parent().context("a parent")?)?;
        fs::write(&path, format!("content of {name}"))?;
        fs::set_permissions(&path, fs::Permissions::from_mode(mode))?;
        File::options()
            .write(true)
            .open(&path)?
            .set_times(FileTimes::new().set_modified(time))?;
    }
    Ok(folder)
}

fn rootfs(source: &Path) -> Result<Rootfs> {
    let mut rootfs = Rootfs::minimal();
    rootfs.tree("/data", source, &|_| false)?;
    Ok(rootfs)
}

fn find<'a>(files: &'a BTreeMap<String, Vec<u8>>, descriptor: &Value) -> Result<&'a [u8]> {
    let digest = descriptor["digest"].as_str().context("a digest")?;
    let content = &files[&format!("blobs/{}", digest.replace(':', "/"))];
    if descriptor["size"] != content.len() {
        bail!("{descriptor} has {} bytes", content.len());
    }
    Ok(content)
}

fn read(archive: impl std::io::Read) -> Result<BTreeMap<String, Vec<u8>>> {
    let mut files = BTreeMap::new();
    for entry in tar::Archive::new(archive).entries()? {
        let mut entry = entry?;
        let mut content = Vec::new();
        entry.read_to_end(&mut content)?;
        files.insert(entry.path()?.to_string_lossy().into_owned(), content);
    }
    Ok(files)
}

fn sha256(content: &[u8]) -> String {
    hex::encode(Sha256::digest(content))
}
