//! The routes, and the socket.

use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::extract::{DefaultBodyLimit, Path, State};
use axum::http::header::{CACHE_CONTROL, CONTENT_TYPE, SET_COOKIE};
use axum::http::{HeaderValue, StatusCode};
use axum::middleware::from_fn_with_state;
use axum::response::{IntoResponse, Redirect, Response};
use axum::routing::{get, post};
use kube::config::AuthInfo;
use kube::{Client, Config};
use parking_lot::Mutex;
use runway_http::{Limits, Tls};
use runway_operator::admin::{self, AdminArgs};
use runway_operator::audit::{self, Audit, AuditArgs};
use runway_operator::client::{self, ClientArgs};
use runway_operator::health::Health;
use runway_operator::lease::Leadership;
use runway_operator::metrics::Metrics;
use runway_operator::telemetry::chain;
use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;
use tokio_util::task::AbortOnDropHandle;

use crate::app::App;
use crate::caches::Users;
use crate::credentials::{Credential, Who, whoami};
use crate::guard;
use crate::oidc::{self, CALLBACK, Impersonation, Issuer};
use crate::session_view::SessionView;
use crate::sessions::{self, Door, Login, Refused, Sessions};
use crate::site::{Site, Sites};
use crate::{crypto, live, operations, pages, refusal};

/// Timeout of a connection to the cluster.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);
/// Interval of requests to a cluster that has not responded.
const PROBE: Duration = Duration::from_secs(1);
/// Largest form of a sign-in: a token, percent-encoded. It is read before the user is known.
const MAX_LOGIN: usize = 64 * 1024;
/// Interval at which certificate files are reloaded.
const RENEWAL: Duration = Duration::from_mins(1);

/// Options of the console.
#[derive(Clone, Debug)]
pub struct Options {
    /// Address to listen on; port 0 selects a free port.
    pub address: SocketAddr,
    /// Users sign in, and the server has no rights of its own.
    pub login: Option<LoginOptions>,
    /// Audit log.
    pub audit: AuditArgs,
}

/// Options of a console with sign-in.
#[derive(Clone, Debug, Default)]
pub struct LoginOptions {
    /// The addresses by which browsers reach it, at least one.
    pub sites: Vec<Site>,
    /// Files with a certificate and its key; without them something before the console ends TLS.
    pub tls: Option<(PathBuf, PathBuf)>,
    /// OpenID Connect issuer, in addition to tokens.
    pub oidc: Option<oidc::Settings>,
    /// Impersonation of users by the console's own credentials.
    pub impersonate: Option<Impersonation>,
    /// Longest lifetime of a session; 12 hours if absent.
    pub session_lifetime: Option<Duration>,
}

/// Failure to serve the console.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// No kubeconfig is usable.
    #[error(transparent)]
    Client(#[from] client::Error),
    /// No key can be made.
    #[error(transparent)]
    Key(#[from] Refused),
    /// The address is in use or not permitted.
    #[error("cannot listen on {address}: set another address with --address, or port 0 for any free port")]
    Listen {
        /// The address.
        address: SocketAddr,
        /// Cause.
        source: std::io::Error,
    },
    /// Without login, all users who can reach the address would have the permissions of the kubeconfig.
    #[error(
        "{0} is reachable from other machines, which would get the permissions of the kubeconfig: add --login, or listen on 127.0.0.1"
    )]
    Exposed(IpAddr),
    /// A console with login requires an address.
    #[error(
        "missing --public-url: set the URL at which browsers reach the console, such as https://console.example.com"
    )]
    Nameless,
    /// The issuer's settings are wrong.
    #[error(transparent)]
    Issuer(#[from] oidc::Error),
    /// The certificate cannot be used.
    #[error("cannot use the certificate in {} with the key in {}", certificate.display(), key.display())]
    Tls {
        /// The file with the certificate.
        certificate: PathBuf,
        /// The file with the key.
        key: PathBuf,
        /// Cause.
        source: std::io::Error,
    },
    /// The audit log cannot be opened.
    #[error(transparent)]
    Audit(#[from] audit::Error),
    /// Health cannot be served.
    #[error(transparent)]
    Admin(#[from] admin::Error),
    /// The socket broke.
    #[error("the console has stopped serving")]
    Serve(#[source] std::io::Error),
}

/// A console that listens, and does not yet answer.
pub struct Console {
    listener: TcpListener,
    tls: Option<Certificate>,
    app: Arc<App>,
    /// URL to open in a browser.
    pub url: String,
    cluster: Client,
    audit: Option<Audit>,
    metrics: Metrics,
}

impl Console {
    /// Listens.
    ///
    /// # Errors
    /// The address cannot be used, or the options are incomplete.
    pub async fn bind(options: &Options, client: &ClientArgs, end: CancellationToken) -> Result<Self, Error> {
        if options.login.is_none() && !options.address.ip().is_loopback() {
            return Err(Error::Exposed(options.address.ip()));
        }
        client::install_crypto();
        let mut config = client.config().await?;
        let context = match &client.context {
            Some(context) => Some(context.clone()),
            None => client.kubeconfig().ok().and_then(|file| file.current_context),
        };
        // A user is waiting: an early error is better than a late response.
        config.default_retry = false;
        config.connect_timeout = Some(CONNECT_TIMEOUT);
        let tls = match options.login.as_ref().and_then(|login| login.tls.clone()) {
            Some(files) => Some(Certificate::read(files).await?),
            None => None,
        };
        let metrics = Metrics::new("kubeairunway_console", Leadership::always());
        let audit = Audit::open(&options.audit, "kubeairunway-console", operations::describe, &metrics)?;
        let address = options.address;
        let listen = |source| Error::Listen { address, source };
        let listener = TcpListener::bind(address).await.map_err(listen)?;
        let at = listener.local_addr().map_err(listen)?;
        let lifetime = options.login.as_ref().and_then(|login| login.session_lifetime);
        let (door, sites, url, cluster) = match &options.login {
            Some(login) => with_login(login, config)?,
            None => on_loopback(at, config, context).await?,
        };
        let app = Arc::new(App {
            sessions: Sessions::new(door, lifetime.unwrap_or(sessions::LIFETIME), end.clone()),
            cookie: guard::cookie_name(&sites, at.port()),
            sites,
            end,
        });
        Ok(Self {
            listener,
            tls,
            app,
            url,
            cluster,
            audit,
            metrics,
        })
    }

    /// Address that it listens on.
    ///
    /// # Errors
    /// The socket has no address.
    pub fn address(&self) -> Result<SocketAddr, Error> {
        self.listener.local_addr().map_err(Error::Serve)
    }

    /// URL that opens one session within a minute, and a future that resolves when it no longer does. `None` if users sign in.
    ///
    /// # Errors
    /// The operating system provides no random bytes.
    pub fn one_time_url(&self) -> Result<Option<(String, impl Future<Output = ()> + Send + 'static)>, Error> {
        let key = self.app.sessions.one_time_key()?;
        let base = self.url.split('?').next().unwrap_or_default();
        Ok(key.map(|(key, over)| (format!("{base}?{ONE_TIME_FIELD}={key}"), over)))
    }

    /// Serves health beside the console: it is ready once the cluster has answered, whatever the answer, so that a roll-out
    /// with a wrong address or authority goes no further. Later it stays ready: a page that says that the cluster is away
    /// is better than none.
    ///
    /// # Errors
    /// The admin address cannot be used.
    pub async fn announce(&self, args: &AdminArgs, shutdown: CancellationToken) -> Result<(), Error> {
        let health = Health::default();
        let pending = health.waits_for("an answer of the cluster");
        admin::serve(args, health.clone(), self.metrics.clone(), shutdown.clone()).await?;
        let cluster = self.cluster.clone();
        tokio::spawn(async move {
            while let Err(error) = cluster.apiserver_version().await {
                if matches!(error, kube::Error::Api(_)) {
                    break;
                }
                tracing::warn!(error = chain(&error), "the cluster does not respond");
                tokio::time::sleep(PROBE).await;
            }
            pending.done();
        });
        Ok(())
    }

    /// Answers until the end.
    ///
    /// # Errors
    /// The socket fails.
    pub async fn serve(self) -> Result<(), Error> {
        let end = self.app.end.clone();
        let router = Audit::layer(self.audit, router(self.app));
        let tls = self.tls.as_ref().map(|certificate| certificate.tls.clone());
        let _renewal = self
            .tls
            .map(|certificate| AbortOnDropHandle::new(tokio::spawn(certificate.follow())));
        runway_http::serve(self.listener, tls, router, Limits::CONSOLE, end).await;
        Ok(())
    }
}

/// Sign-in, addresses, start URL, and cluster.
type Entrance = (Door, Sites, String, Client);

fn with_login(login: &LoginOptions, config: Config) -> Result<Entrance, Error> {
    let url = login.sites.first().ok_or(Error::Nameless)?.to_string() + "/";
    let address = config.cluster_url.to_string();
    let mut cluster = config.clone();
    cluster.auth_info = AuthInfo::default();
    let unidentified = connect(cluster)?;
    let door = Login {
        namespace: client::namespace(&config)?,
        users: Users::new(unidentified.default_namespace()),
        cluster: unidentified.clone(),
        url: address,
        issuer: login.oidc.clone().map(Issuer::new).transpose()?.map(Arc::new),
        impersonate: match login.impersonate.clone() {
            Some(may) => Some((connect(as_itself(config))?, may)),
            None => None,
        },
    };
    Ok((
        Door::Login(Box::new(door)),
        Sites::given(login.sites.clone()),
        url,
        unidentified,
    ))
}

/// The console's own credentials, without impersonation, which each request sets.
fn as_itself(mut own: Config) -> Config {
    own.auth_info.impersonate = None;
    own.auth_info.impersonate_groups = None;
    own
}

async fn on_loopback(at: SocketAddr, config: Config, context: Option<String>) -> Result<Entrance, Error> {
    let (address, home) = (config.cluster_url.to_string(), client::namespace(&config)?);
    let client = connect(config.clone())?;
    let user = whoami(&client)
        .await
        .map_or_else(|_| "the kubeconfig's user".to_owned(), |who| who.name);
    let caches = Users::new(client.default_namespace()).caches(&Who::default());
    let credential = Credential::of_connection(client.clone(), config);
    let view = Arc::new(SessionView::new(credential, caches, address, user, home).in_context(context));
    let key = crypto::random_key().map_err(Refused::from)?;
    let url = format!("http://{at}/?key={key}");
    let one_time = Mutex::default();
    Ok((Door::Key { key, view, one_time }, Sites::loopback(at), url, client))
}

fn connect(config: Config) -> Result<Client, Error> {
    Ok(Client::try_from(config).map_err(|e| client::Error::Client(Box::new(e)))?)
}

/// A certificate in files that are renewed externally.
struct Certificate {
    /// The certificate's, and the key's.
    files: (PathBuf, PathBuf),
    tls: Tls,
}

impl Certificate {
    async fn read(files: (PathBuf, PathBuf)) -> Result<Self, Error> {
        match Tls::from_files(&files.0, &files.1).await {
            Ok(tls) => Ok(Self { files, tls }),
            Err(source) => Err(Error::Tls {
                certificate: files.0,
                key: files.1,
                source,
            }),
        }
    }

    async fn follow(self) {
        loop {
            tokio::time::sleep(RENEWAL).await;
            if let Err(error) = self.tls.reload(&self.files.0, &self.files.1).await {
                tracing::warn!(%error, certificate = %self.files.0.display(), "cannot load the renewed certificate");
            }
        }
    }
}

pub(crate) fn router(app: Arc<App>) -> Router {
    let inside = Router::new()
        .route("/", get(pages::overview::show))
        .route("/deployments", get(pages::deployments::show))
        .route("/deployments/{namespace}/{name}", get(pages::deployment::show))
        .route("/deployments/{namespace}/{name}/yaml", get(pages::deployment::yaml))
        .route("/deployments/{namespace}/{name}/diff", get(pages::diff::show))
        .route("/deployments/{namespace}/{name}/logs", get(pages::logs::show))
        .route("/deployments/{namespace}/{name}/logs/follow", get(pages::logs::follow))
        .route("/deployments/{namespace}/{name}/usage", get(pages::usage::show))
        .route(
            "/deployments/{namespace}/{name}/chat",
            get(pages::chat::show).post(pages::chat::ask),
        )
        .route("/{part}/{namespace}/{name}/pause", post(pages::actions::pause))
        .route("/{part}/{namespace}/{name}/resume", post(pages::actions::resume))
        .route(
            "/{part}/{namespace}/{name}/delete",
            get(pages::actions::ask).post(pages::actions::delete),
        )
        .route("/new", get(pages::edit::new).post(pages::edit::create))
        .route("/new/{part}", get(pages::manifest::new).post(pages::manifest::create))
        .route(
            "/{part}/{namespace}/{name}/edit",
            get(pages::manifest::edit).post(pages::manifest::change),
        )
        .route(
            "/deployments/{namespace}/{name}/edit",
            get(pages::edit::edit).post(pages::edit::change),
        )
        .route("/providers", get(pages::providers::show))
        .route("/usage", get(pages::tokens::show))
        .route("/usage.csv", get(pages::tokens::file))
        .route("/actors", get(pages::actors::show))
        .route("/actors/{namespace}/{name}", get(pages::actors::one))
        .route(
            "/actors/{namespace}/{name}/dead-letters",
            get(pages::dead_letters::list),
        )
        .route(
            "/actors/{namespace}/{name}/dead-letters/show",
            get(pages::dead_letters::show),
        )
        .route(
            "/actors/{namespace}/{name}/dead-letters/redrive",
            post(pages::dead_letters::redrive),
        )
        .route(
            "/actors/{namespace}/{name}/dead-letters/delete",
            get(pages::dead_letters::confirm).post(pages::dead_letters::delete),
        )
        .route("/stacks", get(pages::stacks::show))
        .route("/stacks/{namespace}/{name}", get(pages::stacks::one))
        .route("/admin", get(pages::admin::show))
        .route("/live", get(live::events))
        .route("/logout", post(pages::login::leave))
        .fallback(refusal::nowhere)
        .route_layer(from_fn_with_state(app.clone(), guard::session))
        .layer(from_fn_with_state(app.clone(), enter));
    Router::new()
        .route("/healthz", get(async || "ok"))
        .route("/assets/{version}/{name}", get(asset))
        .route(
            "/login",
            get(pages::login::show)
                .post(pages::login::enter)
                .layer(DefaultBodyLimit::max(MAX_LOGIN)),
        )
        .route("/login/issuer", get(pages::login::go_to_issuer))
        .route(CALLBACK, get(pages::login::come_from_issuer))
        .merge(inside)
        .layer(from_fn_with_state(app.clone(), guard::door))
        .with_state(app)
}

/// Field of the address with the printed key.
const KEY_FIELD: &str = "key";
/// Field of the address with a one-time key.
const ONE_TIME_FIELD: &str = "once";

/// Exchanges the key in the address for a cookie.
async fn enter(State(app): State<Arc<App>>, request: axum::extract::Request, next: axum::middleware::Next) -> Response {
    if request.uri().path() != "/" {
        return next.run(request).await;
    }
    let query = request.uri().query().unwrap_or_default();
    let entered = form_urlencoded::parse(query.as_bytes()).find_map(|(name, key)| match &*name {
        KEY_FIELD => Some((app.sessions.enter_with_key(&key), false)),
        ONE_TIME_FIELD => Some((app.sessions.enter_once(&key), true)),
        _ => None,
    });
    if entered.is_some() {
        audit::action("sign-in");
    }
    match entered {
        None => next.run(request).await,
        Some((Ok(id), from_a_file)) => {
            // After a redirect the browser would still be on its way from the file, and keep a Strict cookie back.
            let on = if from_a_file {
                pages::login::onward("Signed in", "/")
            } else {
                Redirect::to("/").into_response()
            };
            ([(SET_COOKIE, guard::set_cookie(&app, &id))], on).into_response()
        }
        Some((Err(refused), _)) => refusal::refuse(StatusCode::UNAUTHORIZED, &refused.to_string()),
    }
}

/// Our own files, compiled in. The version in their address lets browsers keep them.
async fn asset(Path((_, name)): Path<(String, String)>) -> Response {
    let Some((content_type, text)) = refusal::asset(&name) else {
        return StatusCode::NOT_FOUND.into_response();
    };
    let forever = HeaderValue::from_static("public, max-age=31536000, immutable");
    (
        [
            (CONTENT_TYPE, HeaderValue::from_static(content_type)),
            (CACHE_CONTROL, forever),
        ],
        text,
    )
        .into_response()
}
