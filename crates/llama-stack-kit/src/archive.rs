//! OCI archives: reads that of a base image, and writes it again with one more layer. The format is
//! <https://github.com/opencontainers/image-spec/blob/v1.1.1/image-layout.md> in a tar file, as `skopeo copy`, `podman save` and
//! `docker save` write it.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{self, BufRead, Read, Seek as _, SeekFrom, Write};
use std::os::unix::fs::PermissionsExt;
use std::path::{Component, Path, PathBuf};

use flate2::{Compression, GzBuilder};
use serde_json::{Value, json};
use sha2::{Digest as _, Sha256};

/// Largest JSON document of an image, in bytes.
const LARGEST_DOCUMENT: u64 = 4 << 20;
/// Most files in an archive.
const MOST_FILES: usize = 10_000;
/// Largest size of all files that are read of layers, in bytes.
const LARGEST_CONTENT: u64 = 1 << 30;
/// Images have no clock.
const EPOCH: &str = "1970-01-01T00:00:00Z";
const LAYOUT: &str = r#"{"imageLayoutVersion":"1.0.0"}"#;
const INDEX: &str = "application/vnd.oci.image.index.v1+json";
const MANIFEST: &str = "application/vnd.oci.image.manifest.v1+json";
const CONFIG: &str = "application/vnd.oci.image.config.v1+json";
const LAYER: &str = "application/vnd.oci.image.layer.v1.tar+gzip";
const DOCKER_LAYER: &str = "application/vnd.docker.image.rootfs.diff.tar.gzip";

/// Failure to read or write an archive.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The file cannot be read or written.
    #[error("cannot use {}: {source}; choose another path, or correct its permissions", path.display())]
    File {
        /// Path of the file.
        path: PathBuf,
        /// Cause.
        source: io::Error,
    },
    /// The base is not an OCI archive.
    #[error(
        "{} is not an OCI archive: {why}; write one with `skopeo copy docker://IMAGE oci-archive:FILE`",
        path.display()
    )]
    NotAnImage {
        /// Path of the file.
        path: PathBuf,
        /// Cause.
        why: String,
    },
    /// A layer cannot be read.
    #[error("cannot read the layers of {}: {why}", path.display())]
    Layer {
        /// Path of the file.
        path: PathBuf,
        /// Cause, with the remedy.
        why: String,
    },
    /// The base has no image for this architecture.
    #[error("{} has no image for linux/{architecture}, only for {found}", path.display())]
    Platform {
        /// Path of the file.
        path: PathBuf,
        /// Architecture of this machine, as images name it.
        architecture: &'static str,
        /// Platforms of the archive.
        found: String,
    },
}

/// The image of an archive that containers on this machine run.
pub(super) struct Base {
    archive: Archive,
    manifest: Value,
    config: Value,
}

impl Base {
    /// Reads the archive at `path`.
    ///
    /// # Errors
    /// It cannot be read, is not an OCI archive, or has no image for this architecture.
    pub(super) fn open(path: &Path) -> Result<Self, Error> {
        let mut archive = Archive::open(path)?;
        let entry = archive.entry()?;
        let manifest = archive.blob(&entry)?;
        let config = archive.blob(&manifest["config"])?;
        if !manifest["layers"].is_array() || !config["rootfs"]["diff_ids"].is_array() {
            return Err(archive.invalid("its manifest has no layers"));
        }
        Ok(Self {
            archive,
            manifest,
            config,
        })
    }

    /// Writes this image with one more layer, a tar, to `archive` under the name `image`, and returns the digest of its
    /// manifest. The file is complete or does not exist.
    ///
    /// # Errors
    /// A file cannot be read or written, or a layer is missing in the base.
    pub(super) fn extended(&mut self, layer: &[u8], image: &str, archive: &Path) -> Result<String, Error> {
        let failed = |source| Error::File {
            path: archive.to_owned(),
            source,
        };
        let layers = self.manifest["layers"].as_array().cloned().unwrap_or_default();
        let compressed = gzip(layer).map_err(failed)?;
        let (manifest, config) = self.documents(layer, &compressed);
        let manifest_digest = digest(&manifest);
        let index = self.index(&manifest, image);

        let folder = archive.parent().filter(|folder| !folder.as_os_str().is_empty());
        let unfinished = tempfile::Builder::new()
            .permissions(PermissionsExt::from_mode(0o644))
            .tempfile_in(folder.unwrap_or_else(|| Path::new(".")))
            .map_err(failed)?;
        let mut tar = tar::Builder::new(io::BufWriter::new(unfinished.as_file()));
        let mut paths: Vec<String> = layers.iter().map(blob_path).collect();
        paths.sort_unstable();
        paths.dedup();
        for path in paths {
            let (size, content) = self.archive.content(&path)?;
            append(&mut tar, &path, size, content).map_err(failed)?;
        }
        for bytes in [&compressed, &config, &manifest] {
            append(&mut tar, &path_of(&digest(bytes)), bytes.len() as u64, bytes.as_slice()).map_err(failed)?;
        }
        for (path, bytes) in [("oci-layout", LAYOUT.as_bytes()), ("index.json", index.as_bytes())] {
            append(&mut tar, path, bytes.len() as u64, bytes).map_err(failed)?;
        }
        tar.into_inner().and_then(|mut writer| writer.flush()).map_err(failed)?;
        unfinished.persist(archive).map_err(|error| failed(error.error))?;
        Ok(manifest_digest)
    }

    /// Files that containers of this image see, by path without the first slash, if `wanted` accepts the path.
    ///
    /// # Errors
    /// A layer cannot be read, a wanted file is a link, or the files have more than 1 GiB.
    pub(super) fn files(&mut self, wanted: impl Fn(&str) -> bool) -> Result<BTreeMap<String, Vec<u8>>, Error> {
        let mut files = BTreeMap::new();
        let path = self.archive.path.clone();
        for layer in self.manifest["layers"].as_array().into_iter().flatten() {
            let (_, content) = self.archive.content(&blob_path(layer))?;
            read_layer(io::BufReader::new(content), &wanted, &mut files).map_err(|error| Error::Layer {
                path: path.clone(),
                why: error.to_string(),
            })?;
        }
        Ok(files)
    }

    /// The manifest and the configuration with one more layer.
    fn documents(&self, layer: &[u8], compressed: &[u8]) -> (Vec<u8>, Vec<u8>) {
        let mut config = self.config.clone();
        if let Some(layers) = config["rootfs"]["diff_ids"].as_array_mut() {
            layers.push(digest(layer).into());
        }
        if let Some(history) = config["history"].as_array_mut() {
            history.push(json!({"created": EPOCH, "created_by": "kubeairunway llama-stack provider build"}));
        }
        let config = config.to_string().into_bytes();
        let mut manifest = self.manifest.clone();
        manifest["config"] = descriptor(self.manifest["config"]["mediaType"].as_str().unwrap_or(CONFIG), &config);
        let docker = manifest["mediaType"]
            .as_str()
            .is_some_and(|kind| kind.contains("docker"));
        let layer_type = if docker { DOCKER_LAYER } else { LAYER };
        if let Some(layers) = manifest["layers"].as_array_mut() {
            layers.push(descriptor(layer_type, compressed));
        }
        (manifest.to_string().into_bytes(), config)
    }

    fn index(&self, manifest: &[u8], image: &str) -> String {
        let mut entry = descriptor(self.manifest["mediaType"].as_str().unwrap_or(MANIFEST), manifest);
        entry["annotations"] = json!({
            "io.containerd.image.name": image,
            "org.opencontainers.image.ref.name": image.rsplit_once(':').map_or("latest", |(_, tag)| tag),
        });
        entry["platform"] = json!({"os": "linux", "architecture": self.config["architecture"]});
        json!({"schemaVersion": 2, "mediaType": INDEX, "manifests": [entry]}).to_string()
    }
}

/// The files of an archive.
struct Archive {
    path: PathBuf,
    file: File,
    /// Offset and size by path.
    files: BTreeMap<String, (u64, u64)>,
}

impl Archive {
    fn open(path: &Path) -> Result<Self, Error> {
        let file = File::open(path).map_err(|source| Error::File {
            path: path.to_owned(),
            source,
        })?;
        let mut archive = Self {
            path: path.to_owned(),
            file,
            files: BTreeMap::new(),
        };
        archive.files = files(&archive.file).map_err(|error| archive.invalid(&error.to_string()))?;
        Ok(archive)
    }

    /// The entry of the index, or of an index in it, for this architecture.
    fn entry(&mut self) -> Result<Value, Error> {
        let index = self.document("index.json")?;
        let mut entries = index["manifests"].as_array().cloned().unwrap_or_default();
        if let [only] = entries.as_slice()
            && only["mediaType"]
                .as_str()
                .is_some_and(|kind| kind.contains("index") || kind.contains("manifest.list"))
        {
            let inner = self.blob(only)?;
            entries = inner["manifests"].as_array().cloned().unwrap_or_default();
        }
        let architecture = architecture();
        let fits = |entry: &&Value| {
            let platform = &entry["platform"];
            platform.is_null() || platform["os"] == "linux" && platform["architecture"] == architecture
        };
        if let Some(entry) = entries.iter().find(fits) {
            return Ok(entry.clone());
        }
        if entries.is_empty() {
            return Err(self.invalid("index.json lists no manifest"));
        }
        let platform = |entry: &Value| {
            let text = |field: &str| entry["platform"][field].as_str().unwrap_or("?").to_owned();
            format!("{}/{}", text("os"), text("architecture"))
        };
        Err(Error::Platform {
            path: self.path.clone(),
            architecture,
            found: entries.iter().map(platform).collect::<Vec<_>>().join(", "),
        })
    }

    fn blob(&mut self, descriptor: &Value) -> Result<Value, Error> {
        self.document(&blob_path(descriptor))
    }

    fn document(&mut self, name: &str) -> Result<Value, Error> {
        let (size, content) = self.content(name)?;
        if size > LARGEST_DOCUMENT {
            return Err(self.invalid(&format!("{name} has {size} bytes")));
        }
        let read = serde_json::from_reader(io::BufReader::new(content));
        read.map_err(|error| self.invalid(&format!("{name} is invalid: {error}")))
    }

    /// Size and content of a file.
    fn content(&mut self, name: &str) -> Result<(u64, io::Take<&File>), Error> {
        let Some((offset, size)) = self.files.get(name).copied() else {
            return Err(self.invalid(&format!("it has no {name}")));
        };
        self.file.seek(SeekFrom::Start(offset)).map_err(|source| Error::File {
            path: self.path.clone(),
            source,
        })?;
        Ok((size, (&self.file).take(size)))
    }

    fn invalid(&self, why: &str) -> Error {
        Error::NotAnImage {
            path: self.path.clone(),
            why: why.to_owned(),
        }
    }
}

/// A tar of files, with their folders, that belong to root and have no time.
///
/// # Errors
/// A path is too long.
pub(super) fn layer(files: &BTreeMap<String, Vec<u8>>) -> io::Result<Vec<u8>> {
    let mut tar = tar::Builder::new(Vec::new());
    let mut folders: Vec<&str> = files
        .keys()
        .flat_map(|path| path.match_indices('/').map(|(end, _)| &path[..=end]))
        .collect();
    folders.sort_unstable();
    folders.dedup();
    for folder in folders {
        let mut header = header(tar::EntryType::Directory, 0o755, 0);
        tar.append_data(&mut header, folder, io::empty())?;
    }
    for (path, content) in files {
        append(&mut tar, path, content.len() as u64, content.as_slice())?;
    }
    tar.into_inner()
}

/// Reads a layer over the files of those below it. Files named `.wh.NAME` remove what is below
/// (<https://github.com/opencontainers/image-spec/blob/v1.1.1/layer.md#whiteouts>).
fn read_layer(
    mut layer: impl BufRead,
    wanted: &impl Fn(&str) -> bool,
    files: &mut BTreeMap<String, Vec<u8>>,
) -> io::Result<()> {
    let tar: Box<dyn Read> = match layer.fill_buf()? {
        [0x1f, 0x8b, ..] => Box::new(flate2::bufread::MultiGzDecoder::new(layer)),
        [0x28, 0xb5, 0x2f, 0xfd, ..] => {
            return Err(io::Error::other(
                "they are compressed with zstd; copy the image with `skopeo copy --dest-compress-format gzip --dest-force-compress-format`",
            ));
        }
        _ => Box::new(layer),
    };
    let mut own = BTreeMap::new();
    let mut size: u64 = files.values().map(|content| content.len() as u64).sum();
    for entry in tar::Archive::new(tar).entries()? {
        let mut entry = entry?;
        let path = entry.path()?.to_string_lossy().trim_start_matches("./").to_owned();
        let (folder, name) = path.rsplit_once('/').unwrap_or(("", &path));
        let kind = entry.header().entry_type();
        match name.strip_prefix(".wh.") {
            Some(".wh..opq") => remove(files, &format!("{folder}/")),
            Some(name) => {
                let removed = if folder.is_empty() {
                    name.to_owned()
                } else {
                    format!("{folder}/{name}")
                };
                files.remove(&removed);
                remove(files, &format!("{removed}/"));
            }
            None if kind.is_dir() => {}
            None => {
                remove(files, &format!("{path}/"));
                files.remove(&path);
                if !wanted(&path) || !is_plain(&path) {
                    continue;
                }
                if !kind.is_file() {
                    return Err(io::Error::other(format!(
                        "/{path} is not a regular file; copy the file itself"
                    )));
                }
                size += entry.size();
                if size > LARGEST_CONTENT {
                    return Err(io::Error::other("the files have more than 1 GiB"));
                }
                let mut content = Vec::new();
                entry.read_to_end(&mut content)?;
                own.insert(path, content);
            }
        }
    }
    files.append(&mut own);
    Ok(())
}

/// Whether a path stays below the folder it is joined to.
fn is_plain(path: &str) -> bool {
    Path::new(path)
        .components()
        .all(|part| matches!(part, Component::Normal(_)))
}

fn remove(files: &mut BTreeMap<String, Vec<u8>>, prefix: &str) {
    files.retain(|path, _| !path.starts_with(prefix));
}

fn files(file: &File) -> io::Result<BTreeMap<String, (u64, u64)>> {
    let mut files = BTreeMap::new();
    for entry in tar::Archive::new(file).entries_with_seek()? {
        let entry = entry?;
        if files.len() == MOST_FILES {
            return Err(io::Error::other(format!("it has more than {MOST_FILES} files")));
        }
        let path = entry.path()?.to_string_lossy().trim_start_matches("./").to_owned();
        files.insert(path, (entry.raw_file_position(), entry.size()));
    }
    Ok(files)
}

fn blob_path(descriptor: &Value) -> String {
    path_of(descriptor["digest"].as_str().unwrap_or_default())
}

fn path_of(digest: &str) -> String {
    format!("blobs/{}", digest.replace(':', "/"))
}

fn digest(bytes: &[u8]) -> String {
    format!("sha256:{}", hex::encode(Sha256::digest(bytes)))
}

fn descriptor(media_type: &str, bytes: &[u8]) -> Value {
    json!({"mediaType": media_type, "digest": digest(bytes), "size": bytes.len()})
}

fn gzip(bytes: &[u8]) -> io::Result<Vec<u8>> {
    let mut writer = GzBuilder::new().mtime(0).write(Vec::new(), Compression::default());
    writer.write_all(bytes)?;
    writer.finish()
}

fn append<W: Write>(tar: &mut tar::Builder<W>, path: &str, size: u64, content: impl Read) -> io::Result<()> {
    tar.append_data(&mut header(tar::EntryType::Regular, 0o644, size), path, content)
}

fn header(kind: tar::EntryType, mode: u32, size: u64) -> tar::Header {
    let mut header = tar::Header::new_gnu();
    header.set_entry_type(kind);
    header.set_mode(mode);
    header.set_size(size);
    header.set_mtime(0);
    header.set_uid(0);
    header.set_gid(0);
    header
}

/// Architecture of this machine, as images name it.
fn architecture() -> &'static str {
    match std::env::consts::ARCH {
        "x86_64" => "amd64",
        "aarch64" => "arm64",
        other => other,
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a failed setup fails the test")]
mod tests {
    use super::*;

    fn failure(files: &[(&str, &Value)]) -> String {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("base.tar");
        let files = files
            .iter()
            .map(|(path, value)| ((*path).to_owned(), value.to_string().into_bytes()));
        std::fs::write(&path, layer(&files.collect()).unwrap()).unwrap();
        let error = Base::open(&path).err().unwrap().to_string();
        error.replace(&path.display().to_string(), "base.tar")
    }

    /// A layer of entries: path, type and content.
    fn entries(all: &[(&str, tar::EntryType, &str)]) -> Vec<u8> {
        let mut tar = tar::Builder::new(Vec::new());
        for (path, kind, content) in all {
            let mut header = header(*kind, 0o644, content.len() as u64);
            // Unchecked, as a hostile image has it.
            let name = &mut header.as_old_mut().name;
            name[..path.len()].copy_from_slice(path.as_bytes());
            header.set_cksum();
            tar.append(&header, content.as_bytes()).unwrap();
        }
        tar.into_inner().unwrap()
    }

    fn layers(all: &[&[u8]]) -> io::Result<Vec<(String, String)>> {
        let mut files = BTreeMap::new();
        for layer in all {
            read_layer(
                *layer,
                &|path: &str| path.starts_with("a/") || path.contains(".."),
                &mut files,
            )?;
        }
        let text = |content: Vec<u8>| String::from_utf8(content).unwrap();
        Ok(files.into_iter().map(|(path, content)| (path, text(content))).collect())
    }

    #[test]
    fn later_layers_replace_and_remove_files_of_earlier_ones() {
        use tar::EntryType::{Directory, Regular, Symlink};
        let pair = |path: &str, text: &str| (path.to_owned(), text.to_owned());
        let first = entries(&[
            ("a/", Directory, ""),
            ("./a/1", Regular, "one"),
            ("a/2", Regular, "two"),
            ("a/b/3", Regular, "three"),
            ("c/4", Regular, "four"),
            ("d", Symlink, ""),
        ]);
        let whiteout = entries(&[("a/.wh.1", Regular, ""), ("a/2", Regular, "second")]);
        let opaque = entries(&[("a/b/.wh..wh..opq", Regular, ""), ("a/b/5", Regular, "five")]);
        let replaced = entries(&[("a/b", Regular, "a file")]);
        let removed = entries(&[(".wh.a", Regular, "")]);
        let compressed = gzip(&first).unwrap();
        assert_eq!(layers(&[&compressed]).unwrap(), layers(&[&first]).unwrap());
        assert_eq!(
            layers(&[&first, &whiteout, &opaque]).unwrap(),
            [pair("a/2", "second"), pair("a/b/5", "five")]
        );
        assert_eq!(
            layers(&[&first, &replaced]).unwrap(),
            [pair("a/1", "one"), pair("a/2", "two"), pair("a/b", "a file")]
        );
        assert_eq!(layers(&[&first, &removed]).unwrap(), []);
    }

    #[test]
    fn layers_with_links_names_that_lead_out_and_unknown_compression_are_not_unpacked() {
        use tar::EntryType::{Regular, Symlink};
        let link = entries(&[("a/x", Symlink, "")]);
        let error = layers(&[&link]).unwrap_err().to_string();
        assert_eq!(error, "/a/x is not a regular file; copy the file itself");
        let hostile = entries(&[
            ("a/../../x", Regular, "x"),
            ("../y", Regular, "y"),
            ("/a/../z", Regular, "z"),
        ]);
        assert_eq!(layers(&[&hostile]).unwrap(), []);
        let error = layers(&[&[0x28, 0xb5, 0x2f, 0xfd, 0]]).unwrap_err().to_string();
        assert!(error.contains("zstd"), "{error}");
    }

    #[test]
    fn an_archive_that_is_not_a_base_is_rejected_with_its_cause() {
        let other = json!({"manifests": [
            {"digest": "sha256:1", "platform": {"os": "linux", "architecture": "s390x"}},
            {"digest": "sha256:2", "platform": {"os": "windows", "architecture": architecture()}},
        ]});
        let inner = json!({"mediaType": INDEX, "digest": "sha256:3"});
        let missing = json!({"manifests": [{"digest": "sha256:4"}]});
        let manifest = json!({"config": {"digest": "sha256:6"}});
        let own = architecture();
        assert!(
            failure(&[("x", &other)]).contains("base.tar is not an OCI archive: it has no index.json; write one with")
        );
        assert!(failure(&[("index.json", &json!({}))]).contains("index.json lists no manifest"));
        assert!(failure(&[("index.json", &missing)]).contains("it has no blobs/sha256/4"));
        assert_eq!(
            failure(&[("index.json", &other)]),
            format!("base.tar has no image for linux/{own}, only for linux/s390x, windows/{own}")
        );
        let nested = json!({"manifests": [inner]});
        assert!(failure(&[("index.json", &nested), ("blobs/sha256/3", &other)]).contains("only for linux/s390x"));
        let files = [
            ("index.json", &json!({"manifests": [{"digest": "sha256:5"}]})),
            ("blobs/sha256/5", &manifest),
            ("blobs/sha256/6", &json!({})),
        ];
        assert!(failure(&files).contains("its manifest has no layers"));
    }
}
