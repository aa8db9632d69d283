//! `kubeairunway ui --open`, with a program in place of the browser.
#![allow(clippy::unwrap_used, reason = "a test that cannot run should fail")]

use std::fs;
use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// Time in which the console starts.
const PATIENCE: Duration = Duration::from_mins(1);

/// The console with a browser that only records its arguments.
struct Console(Child);

impl Drop for Console {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn start(folder: &Path) -> Console {
    let kubeconfig = folder.join("kubeconfig");
    // The console also starts while the cluster does not answer.
    fs::write(
        &kubeconfig,
        "apiVersion: v1\nkind: Config\ncurrent-context: a\nclusters: [{name: a, cluster: {server: 'http://127.0.0.1:1'}}]\n\
         contexts: [{name: a, context: {cluster: a, user: a}}]\nusers: [{name: a, user: {}}]\n",
    )
    .unwrap();
    let temporary = folder.join("tmp");
    fs::create_dir(&temporary).unwrap();
    for name in ["xdg-open", "open"] {
        let program = folder.join(name);
        let script = format!(
            "#!/bin/sh\nprintf '%s ' \"$@\" > {0}/part; mv {0}/part {0}/arguments\n",
            folder.display()
        );
        fs::write(&program, script).unwrap();
        fs::set_permissions(&program, fs::Permissions::from_mode(0o755)).unwrap();
    }
    let path = std::env::join_paths(
        std::iter::once(folder.to_owned()).chain(std::env::split_paths(&std::env::var_os("PATH").unwrap())),
    )
    .unwrap();
    let program = Command::new(env!("CARGO_BIN_EXE_kubeairunway"))
        .arg("--kubeconfig")
        .arg(kubeconfig)
        .args(["ui", "--open"])
        .env("PATH", path)
        .env("TMPDIR", temporary)
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    Console(program)
}

/// Repeats until there is a value.
fn eventually<T>(what: &str, mut look: impl FnMut() -> Option<T>) -> T {
    let begun = Instant::now();
    loop {
        if let Some(found) = look() {
            return found;
        }
        assert!(begun.elapsed() < PATIENCE, "{what}");
        std::thread::sleep(Duration::from_millis(20));
    }
}

fn get(url: &str) -> String {
    let (host, path) = url.strip_prefix("http://").unwrap().split_once('/').unwrap();
    let mut socket = TcpStream::connect(host).unwrap();
    write!(
        socket,
        "GET /{path} HTTP/1.1\r\nhost: {host}\r\nconnection: close\r\n\r\n"
    )
    .unwrap();
    let mut answer = String::new();
    socket.read_to_string(&mut answer).unwrap();
    answer
}

fn mode(path: &Path) -> u32 {
    fs::metadata(path).unwrap().permissions().mode() & 0o777
}

#[test]
fn browser_gets_a_private_page_with_a_key_that_works_once() {
    let folder = tempfile::tempdir().unwrap();
    let console = start(folder.path());
    let arguments = eventually("the browser was not started", || {
        fs::read_to_string(folder.path().join("arguments")).ok()
    });
    let page = arguments.trim().strip_prefix("file://").expect(&arguments);
    let page = Path::new(page);
    assert_eq!((mode(page), mode(page.parent().unwrap())), (0o600, 0o700));
    let text = fs::read_to_string(page).unwrap();
    let url = text.split_once("url=").unwrap().1.split('"').next().unwrap();
    let key = url.split_once('=').unwrap().1;
    assert!(key.len() == 64 && !arguments.contains(key), "{arguments}");

    let entered = get(url);
    assert!(
        entered.starts_with("HTTP/1.1 200") && entered.contains("set-cookie: "),
        "{entered}"
    );
    let again = get(url);
    assert!(
        again.starts_with("HTTP/1.1 401") && !again.contains("set-cookie"),
        "{again}"
    );
    eventually("the page stays after its use", || (!page.exists()).then_some(()));
    drop(console);
}
