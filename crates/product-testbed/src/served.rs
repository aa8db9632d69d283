//! A console that is served, and what asks it as a browser would.

use std::collections::BTreeMap;
use std::net::SocketAddr;

use anyhow::{Context, Result, bail};
use runway_operator::audit::AuditArgs;
use runway_operator::client::ClientArgs;
use runway_testbed::ControlPlane;
use runway_web::server::{Console, LoginOptions, Options};
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader, Lines};
use tokio::net::TcpStream;
use tokio_util::sync::CancellationToken;
use tokio_util::task::AbortOnDropHandle;

use crate::PATIENCE;

/// A console that is served.
pub struct Served {
    at: SocketAddr,
    /// As printed, with the key.
    pub url: String,
    site: String,
    end: CancellationToken,
    _task: AbortOnDropHandle<Result<(), runway_web::server::Error>>,
}

impl Served {
    /// A console whose own credentials are those of an administrator.
    pub async fn start(cluster: &ControlPlane, login: Option<LoginOptions>) -> Result<Self> {
        Self::start_as(cluster, login, "console", &["system:masters"]).await
    }

    /// The console's own credentials are those of `user`.
    pub async fn start_as(
        cluster: &ControlPlane,
        login: Option<LoginOptions>,
        user: &str,
        groups: &[&str],
    ) -> Result<Self> {
        let site = login
            .as_ref()
            .and_then(|login| login.sites.first())
            .map(ToString::to_string);
        let options = Options {
            address: "127.0.0.1:0".parse()?,
            login,
            audit: AuditArgs::default(),
        };
        let kubeconfig = Some(cluster.kubeconfig(user, groups)?);
        let client = ClientArgs {
            kubeconfig,
            context: None,
        };
        let end = CancellationToken::new();
        let console = Console::bind(&options, &client, end.clone()).await?;
        let (at, url) = (console.address()?, console.url.clone());
        let task = tokio::spawn(console.serve());
        Ok(Self {
            at,
            url,
            site: site.unwrap_or_else(|| format!("http://{at}")),
            end,
            _task: AbortOnDropHandle::new(task),
        })
    }

    /// Origin of its pages.
    pub fn origin(&self) -> String {
        self.site.clone()
    }

    fn host(&self) -> &str {
        self.site.split_once("://").map_or("", |(_, host)| host)
    }

    /// Opens the printed URL. Returns the cookie of the session.
    pub async fn enter(&self) -> Result<String> {
        let key = self.url.split_once('?').context("no key")?.1;
        let entered = self.ask("GET", &format!("/?{key}"), &[], "").await?;
        let cookie = entered.header("set-cookie").context("no cookie")?;
        Ok(cookie.split(';').next().unwrap_or_default().to_owned())
    }

    /// Client with this cookie.
    pub async fn with_cookie(&self, cookie: &str) -> Result<User<'_>> {
        let page = self.ask("GET", "/", &[("cookie", cookie)], "").await?;
        Ok(User {
            served: self,
            cookie: cookie.to_owned(),
            csrf: csrf(&page.body)?,
        })
    }

    /// A signed-in user, with the token of their forms.
    pub async fn user(&self) -> Result<User<'_>> {
        self.with_cookie(&self.enter().await?).await
    }

    /// Sends a request. The response is read from the socket.
    pub async fn send(&self, method: &str, path: &str, headers: &[(&str, &str)], body: &str) -> Result<TcpStream> {
        let mut socket = TcpStream::connect(self.at).await?;
        let mut all = vec![format!("{method} {path} HTTP/1.1"), "connection: close".to_owned()];
        if !headers.iter().any(|(name, _)| *name == "host") {
            all.push(format!("host: {}", self.host()));
        }
        all.extend(headers.iter().map(|(name, value)| format!("{name}: {value}")));
        if method == "POST" {
            all.push("content-type: application/x-www-form-urlencoded".to_owned());
            all.push(format!("content-length: {}", body.len()));
        }
        let all = all.join("\r\n");
        socket.write_all(format!("{all}\r\n\r\n{body}").as_bytes()).await?;
        Ok(socket)
    }

    /// Sends a request, and reads the whole response.
    pub async fn ask(&self, method: &str, path: &str, headers: &[(&str, &str)], body: &str) -> Result<Answer> {
        let mut text = String::new();
        self.send(method, path, headers, body)
            .await?
            .read_to_string(&mut text)
            .await?;
        let (head, body) = text
            .split_once("\r\n\r\n")
            .with_context(|| format!("no answer: {text}"))?;
        let mut lines = head.lines();
        let code = lines
            .next()
            .and_then(|l| l.split(' ').nth(1))
            .context("no status")?
            .parse()?;
        let mut headers = BTreeMap::<String, String>::new();
        for (name, value) in lines.filter_map(|l| l.split_once(": ")) {
            headers
                .entry(name.to_lowercase())
                .and_modify(|all| *all = format!("{all}\n{value}"))
                .or_insert_with(|| value.to_owned());
        }
        let chunked = headers
            .get("transfer-encoding")
            .is_some_and(|encoding| encoding == "chunked");
        Ok(Answer {
            code,
            headers,
            body: if chunked { whole(body) } else { body.to_owned() },
        })
    }

    /// Opens a stream of events.
    pub async fn live(&self, query: &str, cookie: &str) -> Result<Live> {
        let socket = self
            .send("GET", &format!("/live?{query}"), &[("cookie", cookie)], "")
            .await?;
        Ok(Live(BufReader::new(socket).lines()))
    }
}

impl Drop for Served {
    fn drop(&mut self) {
        self.end.cancel();
    }
}

/// A user in a session.
pub struct User<'a> {
    served: &'a Served,
    cookie: String,
    csrf: String,
}

impl User<'_> {
    /// A response that continues, line by line.
    pub async fn follow(&self, path: &str) -> Result<Lines<BufReader<TcpStream>>> {
        let socket = self.served.send("GET", path, &[("cookie", &self.cookie)], "").await?;
        Ok(BufReader::new(socket).lines())
    }

    /// Reads a page.
    pub async fn get(&self, path: &str) -> Result<Answer> {
        self.served.ask("GET", path, &[("cookie", &self.cookie)], "").await
    }

    /// Sends a form of the console.
    pub async fn post(&self, path: &str, fields: &[(&str, &str)]) -> Result<Answer> {
        self.post_from(&self.served.origin(), path, fields).await
    }

    /// A form of that site.
    pub async fn post_from(&self, origin: &str, path: &str, fields: &[(&str, &str)]) -> Result<Answer> {
        let mut body = form_urlencoded::Serializer::new(String::new());
        body.append_pair("csrf", &self.csrf).extend_pairs(fields);
        let headers = [("cookie", self.cookie.as_str()), ("origin", origin)];
        self.served.ask("POST", path, &headers, &body.finish()).await
    }
}

/// A response.
#[derive(Debug)]
pub struct Answer {
    /// Status code.
    pub code: u16,
    /// By name in lower case; a line for each time that it is given.
    pub headers: BTreeMap<String, String>,
    /// Body, of chunks too.
    pub body: String,
}

impl Answer {
    /// Value of a header.
    pub fn header(&self, name: &str) -> Option<&str> {
        self.headers.get(name).map(String::as_str)
    }
}

/// A stream of events.
pub struct Live(Lines<BufReader<TcpStream>>);

impl Live {
    /// The data of the next event of a kind.
    pub async fn next(&mut self, kind: &str) -> Result<String> {
        let read = async {
            let mut event = String::new();
            while let Some(line) = self.0.next_line().await? {
                if let Some(name) = line.strip_prefix("event: ") {
                    name.clone_into(&mut event);
                } else if let Some(data) = line.strip_prefix("data: ")
                    && event == kind
                {
                    return Ok(data.to_owned());
                }
            }
            bail!("the stream ended before an event {kind}")
        };
        tokio::time::timeout(PATIENCE, read)
            .await
            .with_context(|| format!("no event {kind}"))?
    }
}

/// A body that came in chunks, each after its size.
fn whole(mut chunks: &str) -> String {
    let mut body = String::new();
    while let Some((size, rest)) = chunks.split_once("\r\n") {
        let size = usize::from_str_radix(size, 16).unwrap_or_default();
        let Some(chunk) = rest.get(..size).filter(|_| size > 0) else {
            break;
        };
        body.push_str(chunk);
        chunks = rest[size..].trim_start_matches("\r\n");
    }
    body
}

/// The token of a page's forms.
pub fn csrf(body: &str) -> Result<String> {
    let after = body
        .split_once(r#"name="csrf" content=""#)
        .context("no token in the page")?
        .1;
    Ok(after.split('"').next().unwrap_or_default().to_owned())
}
