//! `kubeairunway ui`: serves the web console until Ctrl-C.

use std::io::{self, Write};
use std::process::{Command, Stdio};
use std::time::Duration;

use runway_operator::admin::AdminArgs;
use runway_operator::client::ClientArgs;
use runway_operator::{shutdown, telemetry};
use runway_web::oidc::{ClaimNames, Impersonation, Settings};
use runway_web::server::{Console, Error, LoginOptions, Options};

use crate::args::{OidcArgs, UiArgs};
use crate::commands::Answer;

/// Serves, and says where.
pub async fn run(args: &UiArgs, client: &ClientArgs) -> Result<Answer, Error> {
    let options = Options {
        address: args.address,
        login: args.login.then(|| login(args)),
    };
    if args.login {
        telemetry::init(&args.log);
    }
    let shutdown = shutdown::on_signal();
    let console = Console::bind(&options, client, shutdown.clone()).await?;
    if let Some(admin_address) = args.admin_address {
        console.tell_of_itself(&AdminArgs { admin_address }, shutdown).await?;
    }
    // Data at once, for it is what the user waits for; a reader that went away does not end the server.
    let _ = writeln!(io::stdout(), "{}", console.url).and_then(|()| io::stdout().flush());
    let _ = writeln!(
        io::stderr(),
        "Serving the console. Open the address above; press Ctrl-C to stop."
    );
    if args.open && !open(&console.url) {
        let _ = writeln!(io::stderr(), "warning: cannot start a browser");
    }
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

/// What stands between commas; a list without any is empty.
fn listed(words: &[String]) -> Vec<String> {
    words.iter().filter(|word| !word.is_empty()).cloned().collect()
}

/// Opens an address with what the desktop has for it.
fn open(url: &str) -> bool {
    let program = if cfg!(target_os = "macos") { "open" } else { "xdg-open" };
    let mut browser = Command::new(program);
    browser
        .arg(url)
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null());
    browser.spawn().is_ok()
}
