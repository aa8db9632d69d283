//! Writes OCI archives: <https://github.com/opencontainers/image-spec/blob/v1.1.1/image-layout.md>, in a tar file.

use std::{
    fs::{self, File},
    io::{self, Read, Seek as _, Write},
    path::Path,
};

use anyhow::{Context, Result};
use serde_json::{Value, json};
use sha2::{Digest as _, Sha256};

use super::Rootfs;

/// No image has a clock.
const EPOCH: &str = "1970-01-01T00:00:00Z";

/// Start configuration of a container.
#[derive(Clone, Debug)]
pub struct Config {
    /// The program with its first arguments.
    pub entrypoint: Vec<String>,
    /// Arguments that a pod's `args` replace.
    pub args: Vec<String>,
    /// `NAME=value`.
    pub env: Vec<String>,
    /// `UID:GID`. Default: 65532, a user without a name, as numbers so that `runAsNonRoot` can be checked.
    pub user: String,
    /// Default: `/`.
    pub working_dir: String,
    /// Annotations of the image, such as `org.opencontainers.image.source`.
    pub labels: Vec<(String, String)>,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            entrypoint: Vec::new(),
            args: Vec::new(),
            env: Vec::new(),
            user: "65532:65532".to_owned(),
            working_dir: "/".to_owned(),
            labels: Vec::new(),
        }
    }
}

impl Config {
    /// Writes the image `name` (with its tag) to the file `archive`, and returns the digest of its manifest.
    /// The file is whole or not there.
    pub fn write(&self, name: &str, rootfs: &Rootfs, archive: &Path) -> Result<String> {
        let image = Layered {
            name: name.to_owned(),
            config: self.clone(),
            layers: vec![rootfs],
        };
        image.write(archive)
    }

    fn json(&self, layers: &[&Blob]) -> Value {
        let labels: serde_json::Map<String, Value> = self
            .labels
            .iter()
            .map(|(name, value)| (name.clone(), value.as_str().into()))
            .collect();
        json!({
            "created": EPOCH,
            "architecture": architecture(),
            "os": "linux",
            "config": {
                "Entrypoint": self.entrypoint,
                "Cmd": self.args,
                "Env": self.env,
                "User": self.user,
                "WorkingDir": self.working_dir,
                "Labels": labels,
            },
            "rootfs": {"type": "layers", "diff_ids": layers.iter().map(|layer| &layer.digest).collect::<Vec<_>>()},
            "history": vec![json!({"created": EPOCH}); layers.len()],
        })
    }
}

/// An image of several layers, the lowest first.
pub struct Layered<'a> {
    /// Its name, with the tag.
    pub name: String,
    /// Start configuration of its containers.
    pub config: Config,
    /// Its files. What a layer has replaces what those below it have.
    pub layers: Vec<&'a Rootfs>,
}

impl Layered<'_> {
    /// Writes this image alone to the file `archive`, and returns the digest of its manifest. The file is whole or not there.
    pub fn write(self, archive: &Path) -> Result<String> {
        let digests = write_all(&[self], archive)?;
        digests.into_iter().next().context("an image has a digest")
    }
}

/// Writes images into one archive, and returns the digests of their manifests. A layer that several of them name is in it once.
/// The file is whole or not there.
pub fn write_all(images: &[Layered], archive: &Path) -> Result<Vec<String>> {
    let folder = archive.parent().filter(|folder| !folder.as_os_str().is_empty());
    let folder = folder.unwrap_or_else(|| Path::new("."));
    fs::create_dir_all(folder).with_context(|| format!("cannot create {}", folder.display()))?;
    let unfinished = tempfile::NamedTempFile::new_in(folder)?;
    let digests = write_to(images, folder, unfinished.as_file())
        .with_context(|| format!("cannot write the images of {}", archive.display()))?;
    let file = unfinished
        .persist(archive)
        .with_context(|| format!("cannot write {}", archive.display()))?;
    world_readable(&file)?;
    Ok(digests)
}

fn write_to(images: &[Layered], folder: &Path, file: &File) -> Result<Vec<String>> {
    let mut tar = tar::Builder::new(io::BufWriter::new(file));
    let mut layers: Vec<(&Rootfs, Blob)> = Vec::new();
    for rootfs in images.iter().flat_map(|image| &image.layers) {
        if layers.iter().any(|(known, _)| std::ptr::eq(*known, *rootfs)) {
            continue;
        }
        let mut layer = tempfile::tempfile_in(folder)?;
        let mut writer = Hashing::new(io::BufWriter::new(&layer));
        rootfs.write(&mut writer)?;
        let blob = writer.end("application/vnd.oci.image.layer.v1.tar")?;
        layer.rewind()?;
        append_blob(&mut tar, &blob, &mut layer)?;
        layers.push((rootfs, blob));
    }
    let mut manifests = Vec::new();
    let mut digests = Vec::new();
    for image in images {
        let own: Vec<&Blob> = image
            .layers
            .iter()
            .filter_map(|rootfs| layers.iter().find(|(known, _)| std::ptr::eq(*known, *rootfs)))
            .map(|(_, blob)| blob)
            .collect();
        let (config, config_blob) = blob("application/vnd.oci.image.config.v1+json", &image.config.json(&own))?;
        let (manifest, manifest_blob) = blob(
            "application/vnd.oci.image.manifest.v1+json",
            &json!({
                "schemaVersion": 2,
                "mediaType": "application/vnd.oci.image.manifest.v1+json",
                "config": config_blob.descriptor(),
                "layers": own.iter().map(|layer| layer.descriptor()).collect::<Vec<_>>(),
            }),
        )?;
        append_blob(&mut tar, &config_blob, config.as_slice())?;
        append_blob(&mut tar, &manifest_blob, manifest.as_slice())?;
        let mut entry = manifest_blob.descriptor();
        entry["annotations"] = json!({
            "io.containerd.image.name": image.name,
            "org.opencontainers.image.ref.name": image.name.rsplit_once(':').map_or("latest", |(_, tag)| tag),
        });
        entry["platform"] = json!({"os": "linux", "architecture": architecture()});
        manifests.push(entry);
        digests.push(manifest_blob.digest);
    }
    let index = json!({
        "schemaVersion": 2,
        "mediaType": "application/vnd.oci.image.index.v1+json",
        "manifests": manifests,
    });
    append(
        &mut tar,
        "oci-layout",
        json!({"imageLayoutVersion": "1.0.0"}).to_string().as_bytes(),
    )?;
    append(&mut tar, "index.json", index.to_string().as_bytes())?;
    tar.into_inner()?.flush()?;
    Ok(digests)
}

/// A part of an image, found by its digest.
struct Blob {
    media_type: &'static str,
    digest: String,
    size: u64,
}

impl Blob {
    fn descriptor(&self) -> Value {
        json!({"mediaType": self.media_type, "digest": self.digest, "size": self.size})
    }

    fn path(&self) -> String {
        format!("blobs/{}", self.digest.replace(':', "/"))
    }
}

fn blob(media_type: &'static str, value: &Value) -> Result<(Vec<u8>, Blob)> {
    let bytes = serde_json::to_vec(value)?;
    let mut writer = Hashing::new(io::sink());
    writer.write_all(&bytes)?;
    Ok((bytes, writer.end(media_type)?))
}

/// Passes on what is written, and knows its digest at the end.
struct Hashing<W> {
    inner: W,
    hash: Sha256,
    size: u64,
}

impl<W: Write> Hashing<W> {
    fn new(inner: W) -> Self {
        Self {
            inner,
            hash: Sha256::new(),
            size: 0,
        }
    }

    fn end(mut self, media_type: &'static str) -> Result<Blob> {
        self.inner.flush()?;
        Ok(Blob {
            media_type,
            digest: format!("sha256:{}", hex::encode(self.hash.finalize())),
            size: self.size,
        })
    }
}

impl<W: Write> Write for Hashing<W> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let written = self.inner.write(bytes)?;
        self.hash.update(&bytes[..written]);
        self.size += written as u64;
        Ok(written)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.inner.flush()
    }
}

fn append<W: Write>(tar: &mut tar::Builder<W>, path: &str, bytes: &[u8]) -> Result<()> {
    append_reader(tar, path, bytes.len() as u64, bytes)
}

fn append_blob<W: Write>(tar: &mut tar::Builder<W>, blob: &Blob, content: impl Read) -> Result<()> {
    append_reader(tar, &blob.path(), blob.size, content)
}

fn append_reader<W: Write>(tar: &mut tar::Builder<W>, path: &str, size: u64, content: impl Read) -> Result<()> {
    let mut header = plain_header(tar::EntryType::Regular, 0o644);
    header.set_size(size);
    Ok(tar.append_data(&mut header, path, content)?)
}

/// Nothing of the machine: no owner, no time.
pub(super) fn plain_header(kind: tar::EntryType, mode: u32) -> tar::Header {
    let mut header = tar::Header::new_gnu();
    header.set_entry_type(kind);
    header.set_mode(mode);
    header.set_uid(0);
    header.set_gid(0);
    header.set_mtime(0);
    header.set_size(0);
    header
}

/// As images call it.
fn architecture() -> &'static str {
    match std::env::consts::ARCH {
        "x86_64" => "amd64",
        "aarch64" => "arm64",
        other => other,
    }
}

/// A temporary file is readable by its owner only; an archive is readable by all.
fn world_readable(file: &File) -> Result<()> {
    use std::os::unix::fs::PermissionsExt as _;
    Ok(file.set_permissions(fs::Permissions::from_mode(0o644))?)
}
