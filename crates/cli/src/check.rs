//! `kubeairunway check`: reads, asks the judges, writes; with `--wait` until nothing is wrong.

use clap::Args;
use jiff::SignedDuration;
use runway_client::cluster::Cluster;
use runway_client::diagnostic::{Diagnostic, Level as Weight};
use runway_client::documents::Documents;
use runway_client::source::Place;
use runway_client::text::Look;
use runway_doctor::check::observe::{Scope, observe};
use runway_doctor::check::{self, Judgement, Level, Observed, report};
use runway_operator::client::ClientArgs;
use tokio::time::Duration;

use crate::answer::{Answer, Error};
use crate::patience::Patience;
use crate::terminal::Terminal;

/// Arguments of `check`.
#[derive(Debug, Args)]
pub struct CheckArgs {
    /// Check whether the control plane can be installed, before an installation
    #[arg(long)]
    pub pre: bool,
    /// Repeat the check until there are no errors, for at most this time, such as 90s or 5m
    #[arg(long, value_name = "TIME", num_args = 0..=1, require_equals = true, default_missing_value = "5m", conflicts_with = "files")]
    pub wait: Option<SignedDuration>,
    /// Objects to check; all namespaces if none is given.
    #[command(flatten)]
    pub place: Place,
    /// Check all namespaces; this is the default
    #[arg(short = 'A', long, conflicts_with = "namespace")]
    pub all_namespaces: bool,
    /// Output format
    #[arg(short, long, value_enum, default_value_t)]
    pub output: runway_doctor::check::report::Format,
}

/// Interval between two checks; each sends about 50 requests.
const PACE: Duration = Duration::from_secs(2);

/// `check`.
///
/// # Errors
/// No kubeconfig is usable, or the report cannot be written.
pub async fn check(
    args: &CheckArgs,
    client: &ClientArgs,
    terminal: &mut Terminal<'_>,
    look: Look,
) -> Result<Answer, Error> {
    let (judged, talk) = if args.place.files.is_empty() {
        let cluster = Cluster::connect(client)
            .await
            .map_err(runway_client::source::Error::from)?;
        (patiently(args, &cluster, terminal).await, Vec::new())
    } else {
        let (mut observed, talk) = Observed::from_documents(Documents::read(&args.place.files, terminal.stdin));
        observed.facts.now = args.place.now.or(observed.facts.now);
        (check::judge(&observed, args.pre), talk)
    };
    let unusable = talk.iter().any(|said: &Diagnostic| said.level == Weight::Error);
    Ok(Answer {
        data: report::write(&judged, args.output, look).map_err(runway_client::text::Error::from)?,
        failed: unusable || check::failed(&judged),
        talk,
        ..Answer::default()
    })
}

/// Looks until nothing is wrong or the time is over.
async fn patiently(args: &CheckArgs, cluster: &Cluster, terminal: &mut Terminal<'_>) -> Vec<Judgement> {
    let scope = Scope {
        namespace: args.place.namespace.clone(),
        before: args.pre,
        authority: true,
    };
    let mut patience = Patience::of(args.wait.map_or(Duration::ZERO, SignedDuration::unsigned_abs)).every(PACE);
    loop {
        let mut observed = observe(cluster, &scope).await;
        observed.facts.now = args.place.now.or(observed.facts.now);
        let judged = check::judge(&observed, args.pre);
        if !check::failed(&judged) {
            return judged;
        }
        let open: Vec<&str> = judged
            .iter()
            .flat_map(|group| &group.checks)
            .filter(|outcome| outcome.level == Level::Error)
            .map(|outcome| outcome.title)
            .collect();
        if args.wait.is_some() {
            patience.say(&format!("waiting for: {}", open.join("; ")), terminal);
        }
        if !patience.lasts().await {
            return judged;
        }
    }
}
