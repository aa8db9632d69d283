//! A real issuer of OpenID Connect: Dex, with users who are written into its configuration.

use std::{
    collections::BTreeMap,
    fs,
    net::{Ipv4Addr, TcpStream},
    path::PathBuf,
};

use anyhow::{Context, Result, bail, ensure};
use axum::http::{Method, Request, StatusCode, Uri, header};
use kube::client::Body;
use kube::{Client, Config};
use rustls::pki_types::{CertificateDer, pem::PemObject};
use serde_json::json;
use tempfile::TempDir;

use crate::{
    binaries,
    control_plane::{free_ports, wait},
    pki::Authority,
    process::{Component, Process},
};

/// The word `password` as bcrypt has it.
const HASH: &str = "$2a$10$2b2cU8CPhOTaGrs1HRQuAueS7JTT5ZHsHSzYiFPm1leZck7Mc8T4W";
/// More steps than a sign-in takes.
const MAX_STEPS: usize = 10;

/// A running Dex. Dropping it kills it.
pub struct Dex {
    _process: Process,
    folder: TempDir,
    /// As in the `iss` of its tokens.
    pub issuer: String,
}

/// A browser, as far as Dex needs one.
#[derive(Default)]
struct Jar(BTreeMap<String, String>);

impl Dex {
    /// Starts it with one client, which has the secret, and users with their groups, whose password is `password`.
    pub async fn start(client: &str, secret: &str, redirect: &str, users: &[(&str, &[&str])]) -> Result<Self> {
        crate::install_crypto_provider();
        let program = tokio::task::spawn_blocking(binaries::dex).await??;
        let folder = tempfile::Builder::new().prefix("runway-testbed-dex-").tempdir()?;
        let authority = Authority::create(folder.path(), &[Ipv4Addr::LOCALHOST])?;
        let [port] = free_ports()?;
        let issuer = format!("https://127.0.0.1:{port}/dex");
        let passwords: Vec<_> = users
            .iter()
            .map(|(email, groups)| {
                json!({ "email": email, "hash": HASH, "username": email, "userID": email, "groups": groups,
                    "emailVerified": true })
            })
            .collect();
        let config = json!({
            "issuer": issuer,
            "storage": { "type": "memory" },
            "web": {
                "https": format!("127.0.0.1:{port}"),
                "tlsCert": authority.path("apiserver.crt"),
                "tlsKey": authority.path("apiserver.key"),
            },
            "oauth2": { "skipApprovalScreen": true },
            "enablePasswordDB": true,
            "staticClients": [{ "id": client, "name": client, "secret": secret, "redirectURIs": [redirect] }],
            "staticPasswords": passwords,
        });
        let path = folder.path().join("dex.yaml");
        fs::write(&path, serde_json::to_string(&config)?)?;
        let component = Component {
            name: "dex".to_owned(),
            program,
            args: vec!["serve".to_owned(), path.display().to_string()],
            dir: folder.path().to_owned(),
            scratch: None,
        };
        let mut process = component.spawn()?;
        wait(&mut process, &component, async || {
            TcpStream::connect((Ipv4Addr::LOCALHOST, port)).is_ok()
        })
        .await?;
        Ok(Self {
            _process: process,
            folder,
            issuer,
        })
    }

    /// Authority of its certificate.
    pub fn authority(&self) -> PathBuf {
        self.folder.path().join("ca.crt")
    }

    /// Goes through a sign-in that begins at `url`; the answer is the address to which Dex then sends the browser.
    pub async fn sign_in(&self, url: &str, user: &str) -> Result<String> {
        let mut jar = Jar::default();
        let mut ask = (Method::GET, url.to_owned(), String::new());
        for _ in 0..MAX_STEPS {
            let (status, location, page) = self.ask(&mut jar, &ask).await?;
            if let Some(location) = location {
                if location.starts_with("http") && !location.starts_with(&self.issuer) {
                    return Ok(location);
                }
                ask = (Method::GET, location, String::new());
                continue;
            }
            ensure!(ask.0 == Method::GET && status == StatusCode::OK, "{status}: {page}");
            let action = page.split_once("<form method=\"post\" action=\"").context("no form")?.1;
            let action = action.split('"').next().unwrap_or_default().replace("&amp;", "&");
            ask = (Method::POST, action, format!("login={user}&password=password"));
        }
        bail!("Dex goes round in circles")
    }

    /// Asks for a token, as a client would, and returns what Dex says.
    pub async fn token(&self, form: String) -> Result<(StatusCode, String)> {
        let ask = (Method::POST, format!("{}/token", self.issuer), form);
        let (status, _, page) = self.ask(&mut Jar::default(), &ask).await?;
        Ok((status, page))
    }

    async fn ask(&self, jar: &mut Jar, ask: &(Method, String, String)) -> Result<(StatusCode, Option<String>, String)> {
        let (method, place, form) = ask;
        let uri: Uri = place.parse()?;
        let path = uri.path_and_query().map_or("/", |path| path.as_str());
        let cookies: Vec<String> = jar.0.iter().map(|(name, value)| format!("{name}={value}")).collect();
        let request = Request::builder()
            .method(method)
            .uri(path)
            .header(header::COOKIE, cookies.join("; "))
            .header(header::CONTENT_TYPE, "application/x-www-form-urlencoded")
            .body(Body::from(form.clone().into_bytes()))?;
        let answer = self.client()?.send(request).await?;
        for cookie in answer.headers().get_all(header::SET_COOKIE) {
            let (name, rest) = cookie.to_str()?.split_once('=').context("no cookie")?;
            let value = rest.split(';').next().unwrap_or_default();
            jar.0.insert(name.to_owned(), value.to_owned());
        }
        let location = answer
            .headers()
            .get(header::LOCATION)
            .map(|l| l.to_str().map(str::to_owned));
        let (status, location) = (answer.status(), location.transpose()?);
        let page = answer.into_body().collect_bytes().await?;
        Ok((status, location, String::from_utf8_lossy(&page).into_owned()))
    }

    fn client(&self) -> Result<Client> {
        let uri: Uri = self.issuer.parse()?;
        let authority = uri.authority().context("no authority")?;
        let mut config = Config::new(format!("https://{authority}").parse()?);
        let certificate = CertificateDer::from_pem_file(self.authority())?;
        config.root_cert = Some(vec![certificate.to_vec()]);
        Ok(Client::try_from(config)?)
    }
}
