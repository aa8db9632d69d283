//! Container images without a container engine: a folder of files and a few settings become an OCI archive of one layer.
//!
//! `ctr images import`, `podman load` and `skopeo` read the archive; [`crate::Node::import_image`] gives it to a node.
//! The same files give the same bytes, so the digest says whether two images are the same.
//!
//! An image of one's own, for a test:
//!
//! ```no_run
//! use runway_testbed::images::{Config, Rootfs};
//!
//! # fn example() -> anyhow::Result<()> {
//! let mut rootfs = Rootfs::minimal();
//! rootfs.file("/server", "target/debug/server", 0o755)?.text("/etc/hello", "world\n");
//! rootfs.add_libraries()?;
//! let config = Config { entrypoint: vec!["/server".to_owned()], ..Config::default() };
//! let digest = config.write("testbed.local/server:1", &rootfs, "server.tar".as_ref())?;
//! # Ok(())
//! # }
//! ```
//!
//! One of a program, as releases have it, is [`of_program`]. Small ready ones are [`pause`], [`busybox`] and [`python`]; they are made once for the machine.

mod archive;
mod program;
mod ready;
mod rootfs;

pub use archive::{Config, Layered, write_all};
pub use program::of_program;
pub(crate) use ready::made_once;
pub use ready::{Image, asya_runtime, busybox, busybox_files, pause, python, python_files};
pub use rootfs::Rootfs;
