//! The connection to the handler runtime: frames over a Unix socket (`docs/reference/asya-protocol.md` section 3).

use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::UnixStream;
use tokio::time::{Instant, sleep, timeout, timeout_at};

use crate::plan::Outcome;

/// Largest request that is copied behind its length, so that one write sends both.
const ONE_WRITE: usize = 64 * 1024;
/// Largest buffer that is kept after a call.
const KEPT_BUFFER: usize = 256 * 1024;
const LOOK_AGAIN: Duration = Duration::from_millis(100);

/// Address of the runtime.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Address {
    /// Socket file, next to the file `runtime-ready`.
    File {
        /// Path of the socket.
        socket: PathBuf,
        /// File that exists once the handler is loaded, with the version of the protocol.
        ready: PathBuf,
    },
    /// Name in the pod's network namespace, which requires no volume.
    Abstract(String),
}

impl Address {
    /// Parses an address: `@NAME` is an abstract socket, any other text a path.
    pub fn parse(text: &str) -> Self {
        match text.strip_prefix('@') {
            Some(name) => Self::Abstract(name.to_owned()),
            None => Self::file(Path::new(text)),
        }
    }

    /// The socket in `ASYA_SOCKET_DIR`.
    pub fn in_folder(folder: &Path) -> Self {
        Self::file(&folder.join("asya-runtime.sock"))
    }

    fn file(socket: &Path) -> Self {
        Self::File {
            socket: socket.to_owned(),
            ready: socket.with_file_name("runtime-ready"),
        }
    }

    /// Connects if the runtime is ready.
    async fn connect(&self) -> io::Result<(UnixStream, Protocol)> {
        match self {
            Self::Abstract(name) => {
                let stream = UnixStream::connect(format!("\0{name}")).await?;
                Ok((stream, Protocol::Persistent))
            }
            Self::File { socket, ready } => {
                let said = std::fs::read_to_string(ready)?;
                let persistent = said.lines().nth(1).is_some_and(|line| line.trim() == "protocol 2");
                let protocol = if persistent {
                    Protocol::Persistent
                } else {
                    Protocol::OneShot
                };
                Ok((UnixStream::connect(socket).await?, protocol))
            }
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Protocol {
    /// The public v0.1 runtime, which closes the connection after each response.
    OneShot,
    /// Our runtime, which keeps the connection.
    Persistent,
}

/// Failed call.
#[derive(Debug)]
enum Lost {
    Io(io::Error),
    TooLarge(u64),
}

impl From<io::Error> for Lost {
    fn from(error: io::Error) -> Self {
        Self::Io(error)
    }
}

/// Connection to the runtime, for one call at a time.
#[derive(Debug)]
pub struct Caller {
    address: Address,
    max_bytes: usize,
    connection: Option<(UnixStream, Protocol)>,
    buffer: Vec<u8>,
    /// Whether the runtime may still be busy with a call that timed out.
    may_be_busy: bool,
}

impl Caller {
    /// Creates a caller, without connecting.
    pub fn new(address: Address, max_bytes: usize) -> Self {
        Self {
            address,
            max_bytes,
            connection: None,
            buffer: Vec::new(),
            may_be_busy: false,
        }
    }

    /// Waits until the runtime can accept a call. Messages are received only then.
    pub async fn ready(&mut self) {
        let mut reported = false;
        loop {
            if !self.may_be_busy && self.is_connected() {
                return;
            }
            match self.connect_and_ping().await {
                Ok(()) => return,
                Err(error) if !reported => {
                    tracing::info!(%error, socket = ?self.address, "waiting for the runtime");
                    reported = true;
                }
                Err(_) => {}
            }
            sleep(LOOK_AGAIN).await;
        }
    }

    /// Whether the runtime may still be busy with a call that timed out.
    pub fn may_be_busy(&self) -> bool {
        self.may_be_busy
    }

    /// Waits until the runtime closes the idle connection.
    pub async fn lost(&mut self) {
        while let Some((stream, _)) = &self.connection {
            if stream.readable().await.is_err() || !self.is_connected() {
                self.connection = None;
            }
        }
    }

    /// Sends a request and waits for the response. Call [`Caller::ready`] first.
    pub async fn call(&mut self, request: &[u8], limit: Duration) -> Outcome {
        let Some((mut stream, protocol)) = self.connection.take() else {
            return Outcome::Crashed("cannot connect".to_owned());
        };
        let buffer = &mut self.buffer;
        let exchange = async {
            write_frame(&mut stream, request, buffer).await?;
            read_frame(&mut stream, self.max_bytes, buffer).await
        };
        let outcome = if let Ok(answer) = timeout_at(Instant::now() + limit, exchange).await {
            if protocol == Protocol::Persistent && answer.is_ok() {
                self.connection = Some((stream, protocol));
            }
            outcome(answer)
        } else {
            self.may_be_busy = true;
            Outcome::TimedOut(limit)
        };
        if self.buffer.capacity() > KEPT_BUFFER {
            self.buffer = Vec::new();
        }
        outcome
    }

    /// Whether the runtime closed the connection while idle, without a system call.
    fn is_connected(&self) -> bool {
        let Some((stream, _)) = &self.connection else {
            return false;
        };
        matches!(stream.try_read(&mut [0]), Err(error) if error.kind() == io::ErrorKind::WouldBlock)
    }

    async fn connect_and_ping(&mut self) -> io::Result<()> {
        self.connection = None;
        let (mut stream, protocol) = self.address.connect().await?;
        if self.may_be_busy {
            stream.write_all(&0_u32.to_be_bytes()).await?;
            // Protocol 1 responds to a ping with an error, and closes. The runtime is free in either case.
            match read_frame(&mut stream, self.max_bytes, &mut self.buffer).await {
                Ok(_) => self.may_be_busy = false,
                Err(Lost::Io(error)) => return Err(error),
                Err(Lost::TooLarge(_)) => return Err(io::ErrorKind::InvalidData.into()),
            }
            if protocol == Protocol::OneShot {
                (stream, _) = self.address.connect().await?;
            }
        }
        self.connection = Some((stream, protocol));
        Ok(())
    }
}

/// Waits until the runtime is ready once; `false` after `patience`.
pub async fn wait_until_ready(address: &Address, patience: Duration) -> bool {
    let mut probe = Caller::new(address.clone(), 0);
    timeout(patience, probe.ready()).await.is_ok()
}

async fn write_frame(stream: &mut UnixStream, body: &[u8], buffer: &mut Vec<u8>) -> io::Result<()> {
    let length = u32::try_from(body.len()).map_err(|_| io::ErrorKind::InvalidInput)?;
    if body.len() > ONE_WRITE {
        stream.write_all(&length.to_be_bytes()).await?;
        return stream.write_all(body).await;
    }
    buffer.clear();
    buffer.extend_from_slice(&length.to_be_bytes());
    buffer.extend_from_slice(body);
    stream.write_all(buffer).await
}

fn outcome(answer: Result<Vec<u8>, Lost>) -> Outcome {
    match answer {
        Ok(answer) => Outcome::Answer(answer),
        Err(Lost::Io(error)) => Outcome::Crashed(error.to_string()),
        Err(Lost::TooLarge(length)) => Outcome::TooLarge(length),
    }
}

/// Reads a response, as [`Caller::call`] does. For the fuzz targets.
#[doc(hidden)]
pub async fn read_answer(stream: &mut (impl AsyncRead + Unpin), max_bytes: usize) -> Outcome {
    outcome(read_frame(stream, max_bytes, &mut Vec::new()).await)
}

/// Reads exactly one frame. Further bytes are an error, because they would be taken for the next response.
async fn read_frame(
    stream: &mut (impl AsyncRead + Unpin),
    max_bytes: usize,
    buffer: &mut Vec<u8>,
) -> Result<Vec<u8>, Lost> {
    buffer.clear();
    buffer.reserve(4096);
    loop {
        match frame_length(buffer) {
            Some(length) if length > max_bytes as u64 => return Err(Lost::TooLarge(length)),
            Some(length) => {
                let whole = 4 + usize::try_from(length).map_err(|_| Lost::TooLarge(length))?;
                if buffer.len() > whole {
                    return Err(
                        io::Error::new(io::ErrorKind::InvalidData, "more than one response to one request").into(),
                    );
                }
                if buffer.len() == whole {
                    return Ok(body_of(buffer));
                }
                buffer.reserve_exact(whole - buffer.len());
            }
            None => {}
        }
        if stream.read_buf(buffer).await? == 0 {
            return Err(io::Error::new(io::ErrorKind::UnexpectedEof, "closed without a complete response").into());
        }
    }
}

/// The body of a whole frame. A large one is not copied.
fn body_of(buffer: &mut Vec<u8>) -> Vec<u8> {
    if buffer.len() <= KEPT_BUFFER {
        return buffer[4..].to_vec();
    }
    let mut frame = std::mem::take(buffer);
    frame.drain(..4);
    frame
}

/// Length of a frame, once its header is read.
pub fn frame_length(buffer: &[u8]) -> Option<u64> {
    buffer
        .first_chunk()
        .map(|length| u64::from(u32::from_be_bytes(*length)))
}
