//! The files of an image.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs::{self, File},
    io::{Read as _, Write},
    os::unix::fs::PermissionsExt as _,
    path::{Path, PathBuf},
    process::Command,
};

use anyhow::{Context, Result, bail};

use super::archive::plain_header;

/// The files of an image, by their path in it. All belong to root, so that a container's user cannot change them.
#[derive(Clone, Debug, Default)]
pub struct Rootfs {
    // Sorted, so that the same files give the same archive.
    entries: BTreeMap<PathBuf, Entry>,
    /// Folders that were copied: libraries in them are there already.
    copied: Vec<PathBuf>,
}

#[derive(Clone, Debug)]
enum Entry {
    Folder { mode: u32 },
    File { source: PathBuf, mode: u32 },
    Text { content: String, mode: u32 },
    Link { target: PathBuf },
}

impl Rootfs {
    /// No files at all.
    pub fn empty() -> Self {
        Self::default()
    }

    /// A `/tmp` and names for the users root and nonroot (65532).
    pub fn minimal() -> Self {
        let mut rootfs = Self::empty();
        rootfs
            .folder("/tmp", 0o1777)
            .text(
                "/etc/passwd",
                "root:x:0:0:root:/:/nologin\nnonroot:x:65532:65532:nonroot:/tmp:/nologin\n",
            )
            .text("/etc/group", "root:x:0:\nnonroot:x:65532:\n");
        rootfs
    }

    /// A folder. Parents need not be named: they come with mode 755.
    pub fn folder(&mut self, path: impl Into<PathBuf>, mode: u32) -> &mut Self {
        self.add(path.into(), Entry::Folder { mode })
    }

    /// A file with the content of `source`, as it is when the image is written.
    pub fn file(&mut self, path: impl Into<PathBuf>, source: impl Into<PathBuf>, mode: u32) -> Result<&mut Self> {
        let source = source.into();
        if !source.is_file() {
            bail!("there is no file {}", source.display());
        }
        Ok(self.add(path.into(), Entry::File { source, mode }))
    }

    /// A file with this content, mode 644.
    pub fn text(&mut self, path: impl Into<PathBuf>, content: impl Into<String>) -> &mut Self {
        let content = content.into();
        self.add(path.into(), Entry::Text { content, mode: 0o644 })
    }

    /// A program with this content, mode 755: a script.
    pub fn script(&mut self, path: impl Into<PathBuf>, content: impl Into<String>) -> &mut Self {
        let content = content.into();
        self.add(path.into(), Entry::Text { content, mode: 0o755 })
    }

    /// A symbolic link.
    pub fn link(&mut self, path: impl Into<PathBuf>, target: impl Into<PathBuf>) -> &mut Self {
        let target = target.into();
        self.add(path.into(), Entry::Link { target })
    }

    /// Everything in the folder `source`, at `path`; without what `leave_out` says, which sees paths relative to `source`.
    /// Links stay links. Readable for everybody, whatever it was.
    pub fn tree(
        &mut self,
        path: impl AsRef<Path>,
        source: impl AsRef<Path>,
        leave_out: &dyn Fn(&Path) -> bool,
    ) -> Result<&mut Self> {
        let (path, source) = (path.as_ref(), source.as_ref());
        self.subtree(path, source, Path::new(""), leave_out)?;
        self.copied.push(source.canonicalize()?);
        Ok(self)
    }

    fn subtree(&mut self, path: &Path, source: &Path, below: &Path, leave_out: &dyn Fn(&Path) -> bool) -> Result<()> {
        let folder = source.join(below);
        let entries = fs::read_dir(&folder).with_context(|| format!("cannot read {}", folder.display()))?;
        for entry in entries {
            let entry = entry?;
            let below = below.join(entry.file_name());
            if leave_out(&below) {
                continue;
            }
            let kind = entry.file_type()?;
            if kind.is_dir() {
                self.folder(path.join(&below), 0o755);
                self.subtree(path, source, &below, leave_out)?;
            } else if kind.is_symlink() {
                self.link(path.join(&below), fs::read_link(entry.path())?);
            } else if kind.is_file() {
                let is_program = entry.metadata()?.permissions().mode() & 0o111 != 0;
                self.file(path.join(&below), entry.path(), if is_program { 0o755 } else { 0o644 })?;
            }
        }
        Ok(())
    }

    /// Adds the shared libraries, with the loader, of every program and library that is in so far. Last, because
    /// it looks at all of them. Statically linked ones need none.
    pub fn add_libraries(&mut self) -> Result<&mut Self> {
        let mut sources = Vec::new();
        for entry in self.entries.values() {
            if let Entry::File { source, .. } = entry
                && is_elf(source)?
            {
                sources.push(source.clone());
            }
        }
        for library in libraries(&sources)? {
            let is_copied = library
                .canonicalize()
                .is_ok_and(|real| self.copied.iter().any(|folder| real.starts_with(folder)));
            if !is_copied && !self.entries.contains_key(&library) {
                self.file(library.clone(), library, 0o755)?;
            }
        }
        Ok(self)
    }

    /// The files that are copied from this machine: the path inside, and where the content comes from. Sorted by path.
    pub fn files(&self) -> impl Iterator<Item = (&Path, &Path)> {
        self.entries.iter().filter_map(|(path, entry)| match entry {
            Entry::File { source, .. } => Some((path.as_path(), source.as_path())),
            _ => None,
        })
    }

    fn add(&mut self, path: PathBuf, entry: Entry) -> &mut Self {
        self.entries.insert(path, entry);
        self
    }

    /// The layer, uncompressed.
    pub(super) fn write(&self, out: impl Write) -> Result<()> {
        let mut tar = tar::Builder::new(out);
        for folder in self.unnamed_folders() {
            write_entry(&mut tar, &folder, &Entry::Folder { mode: 0o755 })?;
        }
        for (path, entry) in &self.entries {
            write_entry(&mut tar, path, entry).with_context(|| format!("cannot pack {}", path.display()))?;
        }
        tar.into_inner()?.flush()?;
        Ok(())
    }

    fn unnamed_folders(&self) -> BTreeSet<PathBuf> {
        let parents = self.entries.keys().flat_map(|path| path.ancestors().skip(1));
        parents
            .filter(|parent| parent.parent().is_some() && !self.entries.contains_key(*parent))
            .map(Path::to_owned)
            .collect()
    }
}

fn write_entry<W: Write>(tar: &mut tar::Builder<W>, path: &Path, entry: &Entry) -> Result<()> {
    let name = path.strip_prefix("/").unwrap_or(path);
    match entry {
        Entry::Folder { mode } => {
            let mut header = plain_header(tar::EntryType::Directory, *mode);
            tar.append_data(&mut header, format!("{}/", name.display()), std::io::empty())?;
        }
        Entry::File { source, mode } => {
            let file = File::open(source).with_context(|| format!("cannot read {}", source.display()))?;
            let mut header = plain_header(tar::EntryType::Regular, *mode);
            header.set_size(file.metadata()?.len());
            tar.append_data(&mut header, name, file)?;
        }
        Entry::Text { content, mode } => {
            let mut header = plain_header(tar::EntryType::Regular, *mode);
            header.set_size(content.len() as u64);
            tar.append_data(&mut header, name, content.as_bytes())?;
        }
        Entry::Link { target } => {
            let mut header = plain_header(tar::EntryType::Symlink, 0o777);
            tar.append_link(&mut header, name, target)?;
        }
    }
    Ok(())
}

fn is_elf(path: &Path) -> Result<bool> {
    let mut magic = [0; 4];
    let mut file = File::open(path).with_context(|| format!("cannot read {}", path.display()))?;
    Ok(file.read_exact(&mut magic).is_ok() && magic == *b"\x7fELF")
}

/// As the loader finds them on this machine.
fn libraries(programs: &[PathBuf]) -> Result<BTreeSet<PathBuf>> {
    let mut found = BTreeSet::new();
    for programs in programs.chunks(100) {
        // It fails for a statically linked one, and says what it knows of the others.
        let output = Command::new("ldd")
            .args(programs)
            .output()
            .context("cannot run `ldd`")?;
        let text = String::from_utf8_lossy(&output.stdout);
        // "libc.so.6 => /lib/x86_64-linux-gnu/libc.so.6 (0x…)", "/lib64/ld-linux-x86-64.so.2 (0x…)"
        let paths = text.lines().filter_map(|line| {
            let path = line.rsplit_once("=>").map_or(line, |(_, path)| path).trim();
            path.strip_suffix(')')?.rsplit_once(" (").map(|(path, _)| path)
        });
        found.extend(paths.filter(|path| path.starts_with('/')).map(PathBuf::from));
        if let Some(line) = text.lines().find(|line| line.ends_with("=> not found")) {
            bail!("a library is missing on this machine: {}", line.trim());
        }
    }
    Ok(found)
}
