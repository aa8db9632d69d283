//! `kubeairunway ui`: serves the web console until Ctrl-C.

use clap::Args;
use runway_operator::telemetry::LogArgs;
use runway_web::site::Site;
use std::fs::{OpenOptions, Permissions};
use std::io::{self, Write};
use std::net::SocketAddr;
use std::os::unix::fs::{OpenOptionsExt as _, PermissionsExt as _};
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::time::Duration;

use runway_operator::admin::AdminArgs;
use runway_operator::audit::AuditArgs;
use runway_operator::client::ClientArgs;
use runway_operator::{shutdown, telemetry};
use runway_web::oidc::{ClaimNames, Impersonation, Settings};
use runway_web::server::{Console, Error, LoginOptions, Options};

use tempfile::TempDir;
use tokio_util::task::AbortOnDropHandle;

use crate::answer::Answer;

/// Arguments of `ui`.
#[derive(Debug, Args)]
pub struct UiArgs {
    /// Address to listen on; port 0 selects a free port
    #[arg(long, value_name = "ADDRESS:PORT", default_value = "127.0.0.1:0")]
    pub address: SocketAddr,
    /// Open the console in the browser
    #[arg(long)]
    pub open: bool,
    /// Require users to sign in with their own credentials; only the cluster's address is taken from the kubeconfig
    #[arg(long, requires = "sites")]
    pub login: bool,
    /// URL at which browsers reach a console with --login, such as https://console.example.com; repeatable
    #[arg(long = "public-url", value_name = "URL", requires = "login")]
    pub sites: Vec<Site>,
    /// TLS certificate file, if the console itself terminates TLS; reloaded when it changes
    #[arg(long, value_name = "FILE", requires_all = ["login", "tls_key"])]
    pub tls_cert: Option<PathBuf>,
    /// TLS key file
    #[arg(long, value_name = "FILE", requires = "tls_cert")]
    pub tls_key: Option<PathBuf>,
    /// Lifetime of a session in hours; users then sign in again
    #[arg(long, value_name = "HOURS", default_value_t = 12, value_parser = clap::value_parser!(u16).range(1..=720), requires = "login")]
    pub session_lifetime: u16,
    /// Address of /healthz, /readyz and /metrics; not served if omitted
    #[arg(long, value_name = "ADDRESS:PORT")]
    pub admin_address: Option<SocketAddr>,
    /// Sign-in at an OpenID Connect issuer.
    #[command(flatten)]
    pub oidc: OidcArgs,
    /// Audit log.
    #[command(flatten)]
    pub audit: AuditArgs,
    /// Log settings, used with --login.
    #[command(flatten)]
    pub log: LogArgs,
}

/// Sign-in at an OpenID Connect issuer; the flags are named like those of kube-apiserver.
#[derive(Debug, Args)]
pub struct OidcArgs {
    /// OpenID Connect issuer at which users sign in; tokens are accepted as well
    #[arg(long = "oidc-issuer", value_name = "URL", requires_all = ["login", "client_id"])]
    pub issuer: Option<String>,
    /// Client ID of the console at the issuer
    #[arg(long = "oidc-client-id", value_name = "ID", requires = "issuer")]
    pub client_id: Option<String>,
    /// Client secret file; a public client if omitted
    #[arg(long = "oidc-client-secret-file", value_name = "FILE", requires = "issuer")]
    pub client_secret_file: Option<PathBuf>,
    /// Scopes to request in addition to openid; offline_access for sessions that outlive an ID token
    #[arg(
        long = "oidc-scopes",
        value_name = "SCOPE",
        value_delimiter = ',',
        default_value = "profile,email,groups,offline_access"
    )]
    pub scopes: Vec<String>,
    /// CA certificate file for the issuer; the public CAs if omitted
    #[arg(long = "oidc-ca-file", value_name = "FILE", requires = "issuer")]
    pub ca_file: Option<PathBuf>,
    /// Impersonate users with the console's own credentials, for clusters that do not trust the issuer
    #[arg(long, requires = "issuer")]
    pub impersonate: bool,
    /// With --impersonate, the claim that contains the user name
    #[arg(long = "oidc-username-claim", value_name = "CLAIM", default_value = "sub")]
    pub username_claim: String,
    /// Prefix of user names; the issuer URL and # if omitted, none for the claim email or for -
    #[arg(long = "oidc-username-prefix", value_name = "PREFIX", allow_hyphen_values = true)]
    pub username_prefix: Option<String>,
    /// With --impersonate, the claim that contains the user's groups; no groups if omitted
    #[arg(long = "oidc-groups-claim", value_name = "CLAIM")]
    pub groups_claim: Option<String>,
    /// Prefix of group names
    #[arg(long = "oidc-groups-prefix", value_name = "PREFIX", default_value = "")]
    pub groups_prefix: String,
    /// Impersonate only these users
    #[arg(long, value_name = "USER", value_delimiter = ',', requires = "impersonate")]
    pub impersonate_users: Vec<String>,
    /// Impersonate only users in these groups, and pass only these groups on
    #[arg(long, value_name = "GROUP", value_delimiter = ',', requires = "impersonate")]
    pub impersonate_groups: Vec<String>,
}

/// Serves the console, and prints its URL.
///
/// # Errors
/// The console cannot connect to the cluster, or cannot listen.
pub async fn run(args: &UiArgs, client: &ClientArgs) -> Result<Answer, Error> {
    let options = Options {
        address: args.address,
        login: args.login.then(|| login(args)),
        audit: args.audit.clone(),
    };
    if args.login {
        telemetry::init(&args.log);
    }
    let shutdown = shutdown::on_signal();
    let console = Console::bind(&options, client, shutdown.clone()).await?;
    if let Some(admin_address) = args.admin_address {
        console.announce(&AdminArgs { admin_address }, shutdown).await?;
    }
    // Data at once, for it is what the user waits for; a reader that went away does not end the server.
    let _ = writeln!(io::stdout(), "{}", console.url).and_then(|()| io::stdout().flush());
    let _ = writeln!(
        io::stderr(),
        "Serving the console. Open the address above; press Ctrl-C to stop."
    );
    let _page = if args.open { open(&console) } else { None };
    console.serve().await?;
    Ok(Answer::default())
}

fn login(args: &UiArgs) -> LoginOptions {
    LoginOptions {
        sites: args.sites.clone(),
        tls: args.tls_cert.clone().zip(args.tls_key.clone()),
        oidc: settings(&args.oidc),
        impersonate: args.oidc.impersonate.then(|| Impersonation {
            users: listed(&args.oidc.impersonate_users),
            groups: listed(&args.oidc.impersonate_groups),
        }),
        session_lifetime: Some(Duration::from_hours(args.session_lifetime.into())),
    }
}

fn settings(args: &OidcArgs) -> Option<Settings> {
    Some(Settings {
        issuer: args.issuer.clone()?,
        client_id: args.client_id.clone()?,
        client_secret: args.client_secret_file.clone(),
        scopes: listed(&args.scopes),
        authorities: args.ca_file.clone(),
        claims: ClaimNames {
            username: args.username_claim.clone(),
            username_prefix: args.username_prefix.clone(),
            groups: args.groups_claim.clone(),
            groups_prefix: args.groups_prefix.clone(),
        },
    })
}

/// Non-empty items of a comma-separated list.
fn listed(words: &[String]) -> Vec<String> {
    words.iter().filter(|word| !word.is_empty()).cloned().collect()
}

/// Opens the console in the browser. All users of the machine can read the arguments of a program, so that of a browser is a
/// page that only its user can read, with a one-time key. The page exists until the key has been used or has expired.
fn open(console: &Console) -> Option<AbortOnDropHandle<()>> {
    let opened = match console.one_time_url() {
        Ok(None) => start_browser(&console.url).map(|()| None),
        Ok(Some((url, over))) => page(&url).and_then(|(folder, page)| {
            start_browser(&format!("file://{}", page.display()))?;
            Ok(Some(AbortOnDropHandle::new(tokio::spawn(async move {
                over.await;
                drop(folder);
            }))))
        }),
        Err(error) => Err(io::Error::other(error)),
    };
    opened.unwrap_or_else(|error| {
        let _ = writeln!(io::stderr(), "warning: cannot start a browser: {error}");
        None
    })
}

/// A page that leads to an address, in a directory of its own.
fn page(url: &str) -> io::Result<(TempDir, PathBuf)> {
    let folder = tempfile::Builder::new()
        .prefix("kubeairunway-")
        .permissions(Permissions::from_mode(0o700))
        .tempdir()?;
    let path = folder.path().join("console.html");
    let mut file = OpenOptions::new()
        .write(true)
        .create_new(true)
        .mode(0o600)
        .open(&path)?;
    write!(
        file,
        "<!doctype html><meta charset=\"utf-8\"><meta name=\"referrer\" content=\"no-referrer\">\
         <meta http-equiv=\"refresh\" content=\"0; url={url}\"><title>KubeAIRunway</title><a href=\"{url}\">Open the console</a>"
    )?;
    Ok((folder, path))
}

/// Opens an address with what the desktop has for it.
fn start_browser(address: &str) -> io::Result<()> {
    let program = if cfg!(target_os = "macos") { "open" } else { "xdg-open" };
    let mut browser = Command::new(program);
    browser
        .arg(address)
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null());
    browser.spawn().map(drop)
}
