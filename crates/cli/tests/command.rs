//! The command as a process: what no golden file can show.

#![allow(clippy::unwrap_used, reason = "a test that cannot run should fail")]

use std::fmt::Write as _;
use std::fs;
use std::io::{BufRead as _, BufReader, Read, Write as _};
use std::net::TcpListener;
use std::path::PathBuf;
use std::process::{Child, Command, Output, Stdio};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

const COMMAND: &str = env!("CARGO_BIN_EXE_kubeairunway");

fn start(args: &[&str]) -> Child {
    let pipes = || Stdio::piped();
    Command::new(COMMAND)
        .args(args)
        .stdin(pipes())
        .stdout(pipes())
        .stderr(pipes())
        .spawn()
        .unwrap()
}

fn render(args: &[&str], input: &str) -> Output {
    let mut child = start(&[&["render", "-f", "-", "--now", "2026-11-21T10:00:00Z"], args].concat());
    let mut stdin = child.stdin.take().unwrap();
    let input = input.to_owned();
    let writer = std::thread::spawn(move || drop(stdin.write_all(input.as_bytes())));
    let output = child.wait_with_output().unwrap();
    writer.join().unwrap();
    output
}

fn deployments(count: usize, filler: &str) -> String {
    (0..count).fold(String::new(), |mut text, index| {
        write!(
            text,
            "---\napiVersion: kubeairunway.ai/v1alpha1\nkind: ModelDeployment\nmetadata:\n  name: md-{index}\n\
             spec:\n  model: {{id: org/a}}\n  engine: {{type: llamacpp}}\n  image: runner:1\n  env: [{{name: A, value: '{filler}'}}]\n"
        )
        .unwrap();
        text
    })
}

#[test]
fn large_manifests_take_little_time() {
    let started = Instant::now();
    let output = render(&[], &deployments(1, &"x".repeat(3 << 20)));
    assert!(!output.status.success());
    let refusal = String::from_utf8(output.stderr).unwrap();
    assert!(
        refusal.contains("ModelDeployment/md-0: the values of env are 3072 KiB") && refusal.len() < 4096,
        "{refusal:.4096}"
    );

    let output = render(&[], &deployments(300, &"y".repeat(10 << 10)));
    assert!(output.status.success());
    assert_eq!(
        String::from_utf8(output.stdout)
            .unwrap()
            .matches("\nkind: InferenceSet\n")
            .count(),
        300
    );
    assert!(started.elapsed() < Duration::from_mins(1));
}

#[test]
fn the_same_input_gives_the_same_bytes() {
    for args in [&["--show", "objects"], &["--show", "status"], &["-o", "json"]] {
        let first = render(args, &deployments(20, "z"));
        let second = render(args, &deployments(20, "z"));
        assert_eq!((first.stdout, first.stderr), (second.stdout, second.stderr));
    }
}

#[test]
fn printed_manifests_can_be_rendered_again() {
    let first = render(&["--show", "status"], &deployments(2, "z"));
    let second = render(&["--show", "status"], &String::from_utf8(first.stdout.clone()).unwrap());
    assert_eq!(
        String::from_utf8(first.stdout).unwrap(),
        String::from_utf8(second.stdout).unwrap()
    );
}

#[test]
fn every_cut_of_a_manifest_is_answered() {
    let whole = deployments(2, "value");
    for end in (0..whole.len()).step_by(7) {
        let output = render(&[], &whole[..end]);
        assert!(matches!(output.status.code(), Some(0 | 1)), "cut at {end}: {output:?}");
    }
}

#[test]
fn a_closed_stdout_is_not_an_error() {
    let mut child = start(&["render", "-f", "-"]);
    let mut stdin = child.stdin.take().unwrap();
    let writer = std::thread::spawn(move || drop(stdin.write_all(deployments(200, &"x".repeat(5000)).as_bytes())));
    let mut stdout = child.stdout.take().unwrap();
    let mut first = [0; 10];
    stdout.read_exact(&mut first).unwrap();
    drop(stdout);
    drop(child.stderr.take());
    writer.join().unwrap();
    assert_eq!(child.wait().unwrap().code(), Some(0));
}

#[test]
fn kubectl_finds_it_as_a_plugin() {
    let folder = tempfile::tempdir().unwrap();
    let plugin = folder.path().join("kubectl-kubeairunway");
    // A copy may be open for writing in a process that another test forks: "Text file busy".
    std::os::unix::fs::symlink(COMMAND, &plugin).unwrap();
    let output = Command::new(&plugin).arg("render").output().unwrap();
    assert_eq!(output.status.code(), Some(2));
    assert!(
        String::from_utf8(output.stderr)
            .unwrap()
            .contains("Usage: kubectl kubeairunway render")
    );
}

/// A server that answers nothing but 404, and remembers what it was asked.
struct Cluster {
    asked: Arc<Mutex<Vec<String>>>,
    folder: tempfile::TempDir,
    url: String,
}

impl Cluster {
    fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        let asked = Arc::<Mutex<Vec<String>>>::default();
        let seen = asked.clone();
        std::thread::spawn(move || {
            for mut stream in listener.incoming().flatten() {
                let mut line = String::new();
                BufReader::new(stream.try_clone().unwrap())
                    .read_line(&mut line)
                    .unwrap();
                seen.lock().unwrap().push(line.trim_end().to_owned());
                let answer = "HTTP/1.1 404 Not Found\r\ncontent-length: 0\r\nconnection: close\r\n\r\n";
                // The client may close the connection early.
                let _ = stream.write_all(answer.as_bytes());
            }
        });
        let folder = tempfile::tempdir().unwrap();
        Self { asked, folder, url }
    }

    /// A kubeconfig whose context is in this namespace.
    fn kubeconfig(&self, namespace: &str) -> PathBuf {
        let text = format!(
            "{{apiVersion: v1, kind: Config, current-context: c, clusters: [{{name: c, cluster: {{server: '{}'}}}}],\n\
             users: [{{name: u, user: {{}}}}], contexts: [{{name: c, context: {{cluster: c, user: u, namespace: {namespace:?}}}}}]}}",
            self.url
        );
        let file = self.folder.path().join("kubeconfig");
        fs::write(&file, text).unwrap();
        file
    }

    fn run(&self, namespace: &str, args: &[&str]) -> Output {
        let config = self.kubeconfig(namespace);
        let mut child = start(&[&["--kubeconfig", config.to_str().unwrap()], args].concat());
        drop(child.stdin.take());
        child.wait_with_output().unwrap()
    }

    fn asked(&self) -> Vec<String> {
        self.asked.lock().unwrap().clone()
    }
}

/// Texts that would lead to other objects, or to all of them, if they were put into a path.
fn hostile() -> Vec<String> {
    let texts = [
        "", "?", "#", "/", "..", ".", "%2F", "%252F", "a/b", "a?b", "Gemma", "a\nb", "gemmä", "🦙",
    ];
    let long = "a".repeat(254);
    texts.map(str::to_owned).into_iter().chain([long]).collect()
}

#[test]
fn a_hostile_name_is_wrong_usage_and_nothing_is_asked() {
    let cluster = Cluster::start();
    // NAME stands for the text.
    let lines: &[&[&str]] = &[
        &["get", "NAME"],
        &["get", "asya", "NAME"],
        &["get", "md/NAME"],
        &["status", "NAME"],
        &["status", "asya/NAME"],
        &["events", "NAME"],
        &["logs", "NAME"],
        &["logs", "gemma", "--pod", "NAME"],
        &["logs", "gemma", "--container", "NAME"],
        &["endpoint", "llsd/NAME"],
        &["chat", "NAME", "hello"],
        &["pause", "NAME"],
        &["resume", "gemma", "NAME"],
        &["delete", "NAME"],
        &["delete", "md/NAME"],
        &["delete", "gemma", "asya/NAME"],
        &["delete", "ipc/NAME"],
        &["why", "NAME"],
        &["tree", "NAME"],
        &["diff", "NAME"],
        &["migrate", "NAME", "--to", "direct", "--yes"],
        &["deploy", "org/model", "--name", "NAME", "--yes"],
        &["get", "-n", "NAME"],
        &["status", "gemma", "-n", "NAME"],
        &["events", "gemma", "-n", "NAME"],
        &["logs", "gemma", "-n", "NAME"],
        &["endpoint", "gemma", "-n", "NAME"],
        &["chat", "gemma", "hello", "-n", "NAME"],
        &["pause", "gemma", "-n", "NAME"],
        &["delete", "gemma", "-n", "NAME"],
        &["why", "gemma", "-n", "NAME"],
        &["tree", "gemma", "-n", "NAME"],
        &["diff", "gemma", "-n", "NAME"],
        &["migrate", "gemma", "--to", "direct", "-n", "NAME"],
        &["deploy", "org/model", "-n", "NAME", "--yes"],
        &["check", "-n", "NAME"],
        &["support-bundle", "-n", "NAME"],
    ];
    for line in lines {
        for text in hostile() {
            let args: Vec<String> = line.iter().map(|word| word.replace("NAME", &text)).collect();
            let args: Vec<&str> = args.iter().map(String::as_str).collect();
            let output = cluster.run("default", &args);
            let said = String::from_utf8_lossy(&output.stderr);
            assert_eq!(output.status.code(), Some(2), "{args:?}: {said}");
            let reported = [
                "invalid name",
                "invalid namespace",
                "invalid container name",
                "unknown kind",
                "missing name",
            ];
            assert!(
                reported.iter().any(|reported| said.contains(reported)),
                "{args:?}: {said}"
            );
        }
    }
    assert_eq!(cluster.asked(), [""; 0]);

    let output = cluster.run("default", &["delete", "?"]);
    let said = String::from_utf8_lossy(&output.stderr);
    let wanted = "invalid name `?`: use lowercase letters, digits, `-` and `.`; start and end with a letter or digit";
    assert!(said.contains(wanted), "{said}");

    // A name that may be asked for is: the server does see requests.
    let output = cluster.run("default", &["delete", "gemma"]);
    assert_eq!(output.status.code(), Some(1));
    assert!(
        cluster
            .asked()
            .iter()
            .all(|line| line.contains("/namespaces/default/modeldeployments/gemma"))
    );
    assert!(!cluster.asked().is_empty());
}

#[test]
fn a_hostile_namespace_of_a_context_is_refused_and_nothing_is_asked() {
    let cluster = Cluster::start();
    for namespace in ["?", "#", "..", "a/b", "%2F", "Team"] {
        for args in [
            &["get"][..],
            &["delete", "gemma"],
            &["check"],
            &["controller", "status"],
        ] {
            let output = cluster.run(namespace, args);
            let said = String::from_utf8_lossy(&output.stderr);
            assert_eq!(output.status.code(), Some(1), "{namespace} {args:?}: {said}");
            assert!(said.contains("invalid namespace `"), "{namespace} {args:?}: {said}");
        }
    }
    assert_eq!(cluster.asked(), [""; 0]);
}

#[test]
fn a_hostile_name_in_a_file_is_refused_and_nothing_is_asked() {
    let cluster = Cluster::start();
    let file = cluster.folder.path().join("manifest.yaml");
    for (name, namespace) in [("?", "default"), ("a/b", "default"), ("gemma", ".."), ("gemma", "a?b")] {
        let text = format!(
            "{{apiVersion: kubeairunway.ai/v1alpha1, kind: ModelDeployment, metadata: {{name: {name:?}, namespace: {namespace:?}}},\n\
             spec: {{model: {{id: org/a}}, engine: {{type: vllm}}}}}}\n"
        );
        fs::write(&file, text).unwrap();
        let output = cluster.run("default", &["diff", "-f", file.to_str().unwrap()]);
        let said = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(1), "{name} {namespace}: {said}");
        assert!(said.contains("invalid name"), "{name} {namespace}: {said}");
    }
    assert_eq!(cluster.asked(), [""; 0]);
}
