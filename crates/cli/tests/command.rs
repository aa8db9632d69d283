//! The command as a process: what no golden file can show.

#![allow(clippy::unwrap_used, reason = "a test that cannot run should fail")]

use std::fmt::Write as _;
use std::fs;
use std::io::{Read, Write as _};
use std::process::{Child, Command, Output, Stdio};
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
    let one = deployments(1, &"x".repeat(3 << 20));
    let output = render(&[], &one);
    assert!(output.status.success());
    assert!(output.stdout.len() > 3 << 20);

    let output = render(&[], &deployments(300, &"y".repeat(10 << 10)));
    assert!(output.status.success());
    assert_eq!(
        String::from_utf8(output.stdout)
            .unwrap()
            .matches("\nkind: Workspace\n")
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
fn what_is_printed_can_be_rendered_again() {
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
fn a_reader_that_has_enough_is_no_failure() {
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
