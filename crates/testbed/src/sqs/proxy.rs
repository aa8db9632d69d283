//! A proxy in front of the SQS server, with the faults of a network and of AWS.

use std::{
    net::{Ipv4Addr, SocketAddr},
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use anyhow::{Result, ensure};
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::{TcpListener, TcpStream},
    sync::watch,
    task::JoinHandle,
};

use super::Sqs;

/// Request that stores a message.
const SEND: &[u8] = b"AmazonSQS.SendMessage";

/// Handling of requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Answers {
    /// Pass on requests and responses.
    Pass,
    /// Close connections. The response of a request in progress is lost.
    None,
    /// Delay responses.
    Late(Duration),
    /// Pass on requests twice, and the second response.
    Twice,
    /// Reject requests, as AWS does.
    Refused(Refusal),
}

/// Error with which AWS rejects requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Refusal {
    /// Text of the requests to reject; others are passed on.
    pub to: &'static str,
    /// Code.
    pub code: &'static str,
    /// Message.
    pub message: &'static str,
}

/// A running proxy. Dropping it ends it.
pub struct SqsProxy {
    address: SocketAddr,
    answers: watch::Sender<Answers>,
    sent_twice: Arc<AtomicUsize>,
    accepting: JoinHandle<()>,
}

impl SqsProxy {
    /// Listens on a free local port, and passes on everything.
    pub async fn start(server: &Sqs) -> Result<Self> {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await?;
        let address = listener.local_addr()?;
        let answers = watch::Sender::new(Answers::Pass);
        let sent_twice = Arc::<AtomicUsize>::default();
        let way = Way {
            server: server.address(),
            answers: answers.subscribe(),
            sent_twice: Arc::clone(&sent_twice),
        };
        let accepting = tokio::spawn(async move {
            while let Ok((client, _)) = listener.accept().await {
                tokio::spawn(way.clone().serve(client));
            }
        });
        Ok(Self {
            address,
            answers,
            sent_twice,
            accepting,
        })
    }

    /// Endpoint of the proxy.
    pub fn endpoint(&self) -> String {
        format!("http://{}", self.address)
    }

    /// Changes the handling of requests.
    pub fn set(&self, answers: Answers) {
        self.answers.send_replace(answers);
    }

    /// Number of messages that were sent twice.
    pub fn sent_twice(&self) -> usize {
        self.sent_twice.load(Ordering::Relaxed)
    }
}

impl Drop for SqsProxy {
    fn drop(&mut self) {
        self.accepting.abort();
        self.set(Answers::None);
    }
}

#[derive(Clone)]
struct Way {
    server: SocketAddr,
    answers: watch::Receiver<Answers>,
    sent_twice: Arc<AtomicUsize>,
}

impl Way {
    async fn serve(self, mut client: TcpStream) -> Result<()> {
        let mut answers = self.answers.clone();
        loop {
            let request = http_message(&mut client).await?;
            let how = *answers.borrow();
            let cut = async { drop(answers.wait_for(|answers| *answers == Answers::None).await) };
            let answer = tokio::select! {
                biased;
                () = cut => return Ok(()),
                answer = self.answer(&request, how) => answer?,
            };
            client.write_all(&answer).await?;
        }
    }

    async fn answer(&self, request: &[u8], how: Answers) -> Result<Vec<u8>> {
        match how {
            Answers::Refused(refusal) if contains(request, refusal.to.as_bytes()) => Ok(refusal.answer()),
            Answers::Late(delay) => {
                let answer = self.ask(request).await?;
                tokio::time::sleep(delay).await;
                Ok(answer)
            }
            Answers::Twice => {
                if contains(request, SEND) {
                    self.sent_twice.fetch_add(1, Ordering::Relaxed);
                }
                self.ask(request).await?;
                self.ask(request).await
            }
            Answers::Pass | Answers::None | Answers::Refused(_) => self.ask(request).await,
        }
    }

    async fn ask(&self, request: &[u8]) -> Result<Vec<u8>> {
        let mut server = TcpStream::connect(self.server).await?;
        server.write_all(request).await?;
        http_message(&mut server).await
    }
}

impl Refusal {
    fn answer(self) -> Vec<u8> {
        let Self { code, message, .. } = self;
        let body = format!(r#"{{"__type":"com.amazon.coral.service#{code}","Message":"{message}"}}"#);
        let head = "HTTP/1.1 400 Bad Request\r\nContent-Type: application/x-amz-json-1.0";
        format!("{head}\r\nContent-Length: {}\r\n\r\n{body}", body.len()).into_bytes()
    }
}

fn contains(request: &[u8], text: &[u8]) -> bool {
    let same = |part: &[u8]| part.eq_ignore_ascii_case(text);
    request.windows(text.len()).any(same)
}

/// One HTTP message with a Content-Length.
async fn http_message(stream: &mut TcpStream) -> Result<Vec<u8>> {
    let mut bytes = Vec::new();
    loop {
        ensure!(stream.read_buf(&mut bytes).await? > 0, "the connection ended");
        let text = String::from_utf8_lossy(&bytes);
        let Some((head, body)) = text.split_once("\r\n\r\n") else {
            continue;
        };
        let length = head.lines().find_map(|line| {
            let (name, value) = line.split_once(':')?;
            (name.eq_ignore_ascii_case("content-length")).then(|| value.trim().parse::<usize>().ok())?
        });
        if body.len() >= length.unwrap_or(0) {
            return Ok(bytes);
        }
    }
}
