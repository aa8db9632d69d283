//! Messages of every verb about empty, wrong and missing input, without a cluster and at a cluster that refuses everything: each names
//! what is wrong and what to do, and none has the Debug form of a value, an empty list, or a word twice.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a test that cannot run should fail")]

use std::fs;
use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::{TcpListener, TcpStream};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::Mutex;
use std::thread;
use std::time::{Duration, Instant};

use clap::{Arg, ArgAction, CommandFactory as _};
use regex::Regex;
use runway_cli::args::CommandLine;
use serde_json::json;

/// Time after which a verb that waits is stopped; what it has said until then counts.
const LIMIT: Duration = Duration::from_secs(20);
/// Values of each argument: empty, no name of anything, and a name.
const VALUES: [&str; 3] = ["", "No Name!", "x"];
/// Runs at the same time.
const AT_ONCE: usize = 4;

/// A verb with its arguments.
fn verbs() -> Vec<Vec<String>> {
    let mut all = Vec::new();
    let mut open = vec![(Vec::new(), CommandLine::command())];
    while let Some((path, command)) = open.pop() {
        for verb in command.get_subcommands().filter(|verb| verb.get_name() != "help") {
            let path = [&path[..], &[verb.get_name().to_owned()]].concat();
            open.push((path, verb.clone()));
        }
        if command.has_subcommands() {
            all.push(path);
            continue;
        }
        all.push(path.clone());
        let given: Vec<&Arg> = command
            .get_arguments()
            .filter(|arg| arg.is_positional() || arg.is_required_set())
            .collect();
        for value in VALUES.iter().filter(|_| !given.is_empty()) {
            let words = given.iter().flat_map(|arg| words(arg, value));
            all.push(path.iter().cloned().chain(words).collect());
        }
    }
    all
}

/// An argument with a value.
fn words(arg: &Arg, value: &str) -> Vec<String> {
    let option = arg
        .get_long()
        .filter(|_| !arg.is_positional())
        .map(|name| format!("--{name}"));
    let takes_value = matches!(arg.get_action(), ArgAction::Set | ArgAction::Append);
    option
        .into_iter()
        .chain(takes_value.then(|| value.to_owned()))
        .collect()
}

/// A cluster that refuses everything.
fn refusing() -> String {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            thread::spawn(|| refuse(stream));
        }
    });
    format!("http://{address}")
}

fn refuse(mut stream: TcpStream) -> Option<()> {
    let mut request = BufReader::new(stream.try_clone().ok()?);
    let mut length = 0;
    loop {
        let mut line = String::new();
        request.read_line(&mut line).ok()?;
        let line = line.trim().to_ascii_lowercase();
        if let Some(value) = line.strip_prefix("content-length:") {
            length = value.trim().parse().ok()?;
        }
        if line.is_empty() {
            break;
        }
    }
    request.take(length).read_to_end(&mut Vec::new()).ok()?;
    let status = json!({ "kind": "Status", "apiVersion": "v1", "status": "Failure", "reason": "Forbidden", "code": 403,
        "message": "User \"ada\" cannot do this at the cluster scope" });
    let body = status.to_string();
    let head = format!(
        "HTTP/1.1 403 Forbidden\r\ncontent-type: application/json\r\ncontent-length: {}\r\nconnection: close\r\n\r\n",
        body.len()
    );
    stream.write_all((head + &body).as_bytes()).ok()
}

fn kubeconfig(folder: &Path, name: &str, server: &str) -> String {
    let path = folder.join(name);
    let config = json!({ "apiVersion": "v1", "kind": "Config", "current-context": "test",
        "clusters": [{ "name": "test", "cluster": { "server": server } }],
        "users": [{ "name": "test", "user": { "token": "none" } }],
        "contexts": [{ "name": "test", "context": { "cluster": "test", "user": "test" } }] });
    fs::write(&path, config.to_string()).unwrap();
    path.to_str().unwrap().to_owned()
}

/// Exit code, if it ended by itself, stdout and stderr.
fn run(verb: &[String], kubeconfig: &str, folder: &Path) -> (Option<i32>, String, String) {
    let child = Command::new(env!("CARGO_BIN_EXE_kubeairunway"))
        .args(verb)
        .args(["--kubeconfig", kubeconfig])
        .current_dir(folder)
        .env_remove("KUBECONFIG")
        .env("HOME", folder)
        .env("EDITOR", "true")
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    ended(child)
}

fn ended(mut child: Child) -> (Option<i32>, String, String) {
    let (mut stdout, mut stderr) = (child.stdout.take().unwrap(), child.stderr.take().unwrap());
    let out = thread::spawn(move || {
        let mut text = String::new();
        stdout.read_to_string(&mut text).map(|_| text)
    });
    let err = thread::spawn(move || {
        let mut text = String::new();
        stderr.read_to_string(&mut text).map(|_| text)
    });
    let start = Instant::now();
    let code = loop {
        match child.try_wait().unwrap() {
            Some(status) => break status.code(),
            None if start.elapsed() > LIMIT => {
                child.kill().unwrap();
                child.wait().unwrap();
                break None;
            }
            None => thread::sleep(Duration::from_millis(10)),
        }
    };
    (code, out.join().unwrap().unwrap(), err.join().unwrap().unwrap())
}

/// Everything that is wrong with what a verb has written.
fn faults(code: Option<i32>, stdout: &str, stderr: &str) -> Vec<String> {
    let debug =
        r#"\b(Some|Ok|Err|Error|ApiError)\(|\b[A-Z]\w+ \{ \w+: |\bNone\b|\\"|ErrorResponse|thread '.*' panicked"#;
    let empty = r"\[\]|\(\)| [.,;:](\s|$)|: ;|, ,|:\s*$";
    let mut found = Vec::new();
    for (what, pattern) in [("Debug form", debug), ("empty list", empty)] {
        let pattern = Regex::new(pattern).unwrap();
        let lines = stderr
            .lines()
            .filter(|line| !line.starts_with("Usage:") && !line.ends_with("not provided:"));
        found.extend(
            lines
                .filter(|line| pattern.is_match(line))
                .map(|line| format!("{what}: {line}")),
        );
    }
    for line in stderr.lines() {
        let words: Vec<&str> = line.split(' ').filter(|word| !word.is_empty()).collect();
        let twice = words
            .windows(2)
            .find(|pair| pair[0] == pair[1] && pair[0].chars().all(char::is_alphabetic));
        found.extend(twice.map(|pair| format!("'{}' twice: {line}", pair[0])));
        let causes: Vec<&str> = line.split(": ").collect();
        let again = causes.windows(2).find(|pair| pair[0] == pair[1]);
        found.extend(again.map(|_| format!("said twice: {line}")));
    }
    if code.is_some_and(|code| code != 0) && stderr.trim().is_empty() && stdout.trim().is_empty() {
        found.push("it fails without a word".to_owned());
    }
    if code == Some(1) {
        let step = Regex::new(r"No such file|; |: run |run: |: use |--[a-z]|kubeairunway |requires |ask |Resolution: ")
            .unwrap();
        if !step.is_match(stderr) && !step.is_match(stdout) {
            found.push(format!("no next step: {stderr}{stdout}"));
        }
    }
    found
}

#[test]
fn every_verb_says_what_is_wrong_and_what_to_do() {
    let folder = tempfile::tempdir().unwrap();
    let nothing = folder.path().join("nothing").to_str().unwrap().to_owned();
    let broken = folder.path().join("broken").to_str().unwrap().to_owned();
    fs::write(&broken, "clusters: {").unwrap();
    let worlds = [
        ("no kubeconfig", nothing),
        ("broken kubeconfig", broken),
        ("no server", kubeconfig(folder.path(), "away", "http://127.0.0.1:1")),
        ("no permission", kubeconfig(folder.path(), "refusing", &refusing())),
    ];
    let verbs = verbs();
    assert!(verbs.len() > 100, "{} runs", verbs.len());
    let open = Mutex::new(
        worlds
            .iter()
            .flat_map(|world| verbs.iter().map(move |verb| (world, verb)))
            .collect::<Vec<_>>(),
    );
    let found = Mutex::new(Vec::new());
    thread::scope(|scope| {
        for _ in 0..AT_ONCE {
            scope.spawn(|| {
                loop {
                    let Some(((world, kubeconfig), verb)) = open.lock().unwrap().pop() else {
                        break;
                    };
                    let (code, stdout, stderr) = run(verb, kubeconfig, folder.path());
                    let faults = faults(code, &stdout, &stderr);
                    let mut found = found.lock().unwrap();
                    found.extend(faults.into_iter().map(|fault| format!("{world}: {verb:?}: {fault}")));
                }
            });
        }
    });
    let mut found = found.into_inner().unwrap();
    found.sort();
    assert!(found.is_empty(), "{}:\n{}", found.len(), found.join("\n"));
}
