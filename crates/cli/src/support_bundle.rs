//! `kubeairunway support-bundle`: an archive of diagnostics for support.

use clap::Args;
use runway_api::name::Namespace;
use std::fs::OpenOptions;
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use runway_client::cluster::Cluster;
use runway_client::source;
use runway_doctor::bundle::{self, Bundle};
use runway_operator::client::ClientArgs;
use runway_operator::clock;

use crate::answer::{Answer, Error};

/// Arguments of `support-bundle`.
#[derive(Debug, Args)]
pub struct SupportBundleArgs {
    /// Archive to write; named after the current time if omitted
    #[arg(short, long, value_name = "FILE.tar.gz")]
    pub output: Option<PathBuf>,
    /// Collect only this namespace and the namespace of the controllers
    #[arg(short, long)]
    pub namespace: Option<Namespace>,
}

/// `support-bundle`.
///
/// # Errors
/// No kubeconfig is usable, or the archive cannot be written.
pub async fn support_bundle(args: &SupportBundleArgs, client: &ClientArgs) -> Result<Answer, Error> {
    let now = clock::now();
    let cluster = Cluster::connect(client).await.map_err(source::Error::from)?;
    let bundle: Bundle = Box::pin(bundle::collect(&cluster, args.namespace.clone(), now)).await?;
    let folder = format!("kubeairunway-support-{}", now.strftime("%Y-%m-%dT%H%M%SZ"));
    let file = args
        .output
        .clone()
        .unwrap_or_else(|| PathBuf::from(format!("{folder}.tar.gz")));
    let written = bundle.archive(&folder, now).and_then(|archive| write(&file, &archive));
    written.map_err(|source| Error::Write {
        file: file.clone(),
        source,
    })?;
    Ok(Answer {
        data: format!(
            "{}\n{}Review the archive before you share it.\n",
            file.display(),
            bundle.summary()
        ),
        ..Answer::default()
    })
}

/// Writes a file that only its owner may read, because it contains names of models and machines.
fn write(file: &Path, content: &[u8]) -> io::Result<()> {
    let mut options = OpenOptions::new();
    options.write(true).create(true).truncate(true);
    #[cfg(unix)]
    std::os::unix::fs::OpenOptionsExt::mode(&mut options, 0o600);
    options.open(file)?.write_all(content)
}
