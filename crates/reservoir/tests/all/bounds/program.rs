//! The `reservoir` program and its limit of open files.

use std::io::{BufRead, BufReader, Read};
use std::process::{Child, Command, Stdio};

/// Starts `reservoir serve` with the limits of open files of `ulimit`. Returns the process and its first line.
fn serve(ulimit: &str) -> (Child, String, tempfile::TempDir) {
    let there = tempfile::tempdir().unwrap();
    let rcgen::CertifiedKey { cert, signing_key } = rcgen::generate_simple_self_signed(["localhost".into()]).unwrap();
    let [certificate, key] = ["cert.pem", "key.pem"].map(|name| there.path().join(name));
    std::fs::write(&certificate, cert.pem()).unwrap();
    std::fs::write(&key, signing_key.serialize_pem()).unwrap();
    let script = format!("{ulimit} && exec \"$0\" \"$@\"");
    let mut command = Command::new("sh");
    command.args(["-c", &script, env!("CARGO_BIN_EXE_reservoir"), "serve", "--open-to-all", "--listen", "127.0.0.1:0"]);
    command.arg("--root").arg(there.path()).arg("--cert").arg(&certificate).arg("--key").arg(&key);
    let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let mut first = String::new();
    BufReader::new(child.stdout.as_mut().unwrap()).read_line(&mut first).unwrap();
    (child, first, there)
}

/// Ends the program. Returns its standard error.
fn end(mut child: Child) -> String {
    child.kill().unwrap();
    let mut said = String::new();
    child.stderr.take().unwrap().read_to_string(&mut said).unwrap();
    child.wait().unwrap();
    said
}

#[test]
fn serve_raises_the_soft_limit_of_open_files() {
    let (child, first, _there) = serve("ulimit -Sn 100 && ulimit -Hn 4000");
    assert!(first.contains("https://127.0.0.1:"), "{first}");
    let limits = std::fs::read_to_string(format!("/proc/{}/limits", child.id())).unwrap();
    let line = limits.lines().find(|line| line.starts_with("Max open files")).unwrap();
    assert_eq!(line.split_whitespace().nth(3), Some("4000"));
    assert_eq!(end(child), "");
}

#[test]
fn serve_reports_too_few_open_files() {
    let (child, first, _there) = serve("ulimit -n 600");
    assert!(first.contains("https://127.0.0.1:"), "{first}");
    let said = end(child);
    assert!(said.contains("600 open files is enough for 136 connections, and not for 1024"), "{said}");
    assert!(said.contains("LimitNOFILE"), "{said}");
}
