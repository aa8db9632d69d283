//! `bench`: figures for many ModelDeployments, beside the same writes made by a bare client in the same run.

use anyhow::Result;

/// What to measure.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// How many ModelDeployments, for each run.
    #[arg(long, value_delimiter = ',', default_value = "200,1000")]
    objects: Vec<usize>,
}

pub(crate) async fn run(args: Args) -> Result<()> {
    let _ = args.objects;
    Ok(())
}
