//! A runtime for tests and benchmarks: it implements the protocol (`docs/reference/asya-protocol.md`) and echoes payloads, or does what the
//! payload requests. `echo_runtime [--protocol 1]`.
//!
//! | payload | what it does |
//! |---|---|
//! | `{"do": "nothing"}` | responds without items |
//! | `{"do": "fan", "times": 3}` | three items |
//! | `{"do": "error"}` | reports an error of the handler |
//! | `{"do": "die"}` | ends the process during the call |
//! | `{"do": "sleep", "ms": 5}` | responds after this time |
//! | `{"do": "wait", "file": "/tmp/go"}` | responds once this file exists |
//! | `{"do": "grow", "bytes": 5}` | a payload of this size |
//! | `{"do": "garbage"}` | responds with invalid JSON |
//! | anything else | echo |
//!
//! While the file of `ASYA_ECHO_DOWN` exists, it reports that its target is down.

use std::fs;
use std::io::{self, Read, Write};
use std::os::linux::net::SocketAddrExt as _;
use std::os::unix::net::{SocketAddr, UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::thread;
use std::time::Duration;

use clap::Parser;
use serde_json::{Value, json};

/// Response of a handler whose target is down.
const UNAVAILABLE: &[u8] = br#"[{"error": "unavailable", "details": {"message": "the target is down"}}]"#;

#[derive(Parser)]
struct Args {
    /// 1 closes the connection after each response, as the public v0.1 runtime does.
    #[arg(long, default_value_t = 2)]
    protocol: u8,
    #[arg(long, env = "ASYA_SOCKET_DIR", default_value = "/var/run/asya")]
    socket_dir: PathBuf,
    #[arg(long, env = "ASYA_SOCKET")]
    socket: Option<String>,
    /// File that exists while the target of the handler is down.
    #[arg(long, env = "ASYA_ECHO_DOWN")]
    down: Option<PathBuf>,
}

fn main() -> io::Result<()> {
    let args = Args::parse();
    let listener = listen(&args)?;
    for stream in listener.incoming() {
        let stream = stream?;
        if args.protocol == 1 {
            // Single-threaded: a second connection waits.
            let _ = serve(stream, 1, args.down.as_deref());
        } else {
            let down = args.down.clone();
            thread::spawn(move || serve(stream, usize::MAX, down.as_deref()));
        }
    }
    Ok(())
}

fn listen(args: &Args) -> io::Result<UnixListener> {
    if let Some(name) = args.socket.as_deref().and_then(|socket| socket.strip_prefix('@')) {
        return UnixListener::bind_addr(&SocketAddr::from_abstract_name(name)?);
    }
    let socket = args.socket_dir.join("asya-runtime.sock");
    let ready = args.socket_dir.join("runtime-ready");
    // Both files remain after a kill.
    let _ = fs::remove_file(&ready);
    let _ = fs::remove_file(&socket);
    let listener = UnixListener::bind(socket)?;
    let text = if args.protocol == 1 {
        "ready"
    } else {
        "ready\nprotocol 2\n"
    };
    // Renamed, so that the sidecar never reads a partial file.
    let unfinished = ready.with_extension("new");
    fs::write(&unfinished, text)?;
    fs::rename(unfinished, ready)?;
    Ok(listener)
}

fn serve(mut stream: UnixStream, calls: usize, down: Option<&Path>) -> io::Result<()> {
    for _ in 0..calls {
        let mut length = [0; 4];
        stream.read_exact(&mut length)?;
        let length = usize::try_from(u32::from_be_bytes(length)).unwrap_or_default();
        let answer = if length == 0 {
            Vec::new()
        } else {
            let mut request = vec![0; length];
            stream.read_exact(&mut request)?;
            if down.is_some_and(Path::exists) {
                UNAVAILABLE.to_vec()
            } else {
                answer(&request)
            }
        };
        let mut frame = Vec::with_capacity(answer.len() + 4);
        frame.extend(u32::try_from(answer.len()).unwrap_or_default().to_be_bytes());
        frame.extend(answer);
        stream.write_all(&frame)?;
    }
    Ok(())
}

fn answer(request: &[u8]) -> Vec<u8> {
    let Ok(mut envelope) = serde_json::from_slice::<Value>(request) else {
        let details = json!({"message": "not JSON", "type": "JSONDecodeError"});
        return json!([{"error": "msg_parsing_error", "details": details}])
            .to_string()
            .into_bytes();
    };
    let payload = envelope["payload"].take();
    let mut route = envelope["route"].take();
    if let Some(current) = route["current"].as_u64() {
        route["current"] = (current + 1).into();
    }
    let item = json!({"payload": payload, "route": route});
    let answer = match item["payload"]["do"].as_str() {
        Some("nothing") => json!([]),
        Some("error") => {
            let details = json!({"message": "requested by the payload", "type": "ValueError", "traceback": "line 1"});
            json!([{"error": "processing_error", "details": details}])
        }
        Some("fan") => {
            let times = usize::try_from(item["payload"]["times"].as_u64().unwrap_or(2)).unwrap_or_default();
            Value::Array(vec![item; times])
        }
        Some("die") => std::process::exit(137),
        Some("garbage") => return b"[{".to_vec(),
        Some("grow") => {
            let bytes = usize::try_from(item["payload"]["bytes"].as_u64().unwrap_or(0)).unwrap_or_default();
            json!([{"payload": "x".repeat(bytes), "route": item["route"]}])
        }
        Some("sleep") => {
            thread::sleep(Duration::from_millis(item["payload"]["ms"].as_u64().unwrap_or(0)));
            json!([item])
        }
        Some("wait") => {
            let file = item["payload"]["file"].as_str().unwrap_or_default();
            while !Path::new(file).exists() {
                thread::sleep(Duration::from_millis(5));
            }
            json!([item])
        }
        _ => json!([item]),
    };
    answer.to_string().into_bytes()
}
