//! The program `reservoir` without a writable standard output or standard error: the server keeps running, and a copy
//! copies all files.

use std::fs::{self, File};
use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Child, Command, ExitStatus, Stdio};

fn reservoir(folder: &Path) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_reservoir"));
    command.current_dir(folder).env("RESERVOIR_TOKEN", "test");
    command
}

/// Returns an output for which each write fails, as on a full disk.
fn full() -> Stdio {
    File::options().write(true).open("/dev/full").unwrap().into()
}

/// Returns a pipe without a reader.
fn gone() -> Stdio {
    std::io::pipe().unwrap().1.into()
}

/// A token "test", with all rights.
const TOKENS: &str = r#"
    [[token]]
    name = "me"
    sha256 = "9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08"
    rights = ["read", "write"]
"#;

struct ServerProcess(Child);

impl ServerProcess {
    fn signal(&self, signal: &str) {
        let sent = Command::new("sh").args(["-c", &format!("kill -{signal} {}", self.0.id())]).status().unwrap();
        assert!(sent.success());
    }
}

impl Drop for ServerProcess {
    fn drop(&mut self) {
        // The process may have ended already.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[test]
fn server_goes_on_when_its_log_cannot_be_written() {
    for log in [full, gone] {
        let folder = tempfile::tempdir().unwrap();
        let at = |name: &str| folder.path().join(name);
        let signed = rcgen::generate_simple_self_signed(["localhost".to_owned()]).unwrap();
        fs::write(at("cert.pem"), signed.cert.pem()).unwrap();
        fs::write(at("key.pem"), signed.signing_key.serialize_pem()).unwrap();
        fs::write(at("tokens.toml"), TOKENS).unwrap();
        fs::create_dir(at("served")).unwrap();
        fs::write(at("file"), "content").unwrap();
        let options =
            ["--root", "served", "--cert", "cert.pem", "--key", "key.pem", "--tokens", "tokens.toml", "--log"];
        let mut command = reservoir(folder.path());
        command.args(["serve", "--listen", "127.0.0.1:0"]).args(options).stdout(Stdio::piped()).stderr(log());
        let mut serving = ServerProcess(command.spawn().unwrap());
        let mut line = String::new();
        BufReader::new(serving.0.stdout.take().unwrap()).read_line(&mut line).unwrap();
        let port = line.trim_end().trim_end_matches('/').rsplit(':').next().unwrap();
        let url = format!("https://localhost:{port}/");
        let copy = |name: &str| {
            let to = format!("{url}{name}");
            let output = reservoir(folder.path()).args(["copy", "--cacert", "cert.pem", "file", &to]).output().unwrap();
            assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
            assert_eq!(fs::read(at("served").join(name)).unwrap(), b"content");
        };
        copy("first");
        // The server reads its tokens again, and writes a line about it.
        serving.signal("HUP");
        copy("second");
        serving.signal("TERM");
        assert_eq!(serving.0.wait().unwrap().code(), Some(0));
    }
}

#[test]
fn copy_without_output_copies_and_sets_its_status() {
    let folder = tempfile::tempdir().unwrap();
    fs::write(folder.path().join("file"), "content").unwrap();
    let copy = |options: &[&str], to: &str, out: Stdio, errors: Stdio| -> ExitStatus {
        let mut command = reservoir(folder.path());
        command.arg("copy").args(options).args(["file", to]).stdout(out).stderr(errors);
        let status = command.status().unwrap();
        assert_eq!(fs::read(folder.path().join(to)).unwrap(), b"content", "{options:?}");
        status
    };
    for (at, options) in [&["--json"][..], &[]].into_iter().enumerate() {
        let to = |case: &str| format!("{case}-{at}");
        assert_eq!(copy(options, &to("full"), full(), full()).code(), Some(1), "{options:?}");
        assert_eq!(copy(options, &to("gone"), gone(), gone()).code(), Some(0), "the reader had heard enough");
        assert_eq!(copy(options, &to("silent"), Stdio::null(), full()).code(), Some(0), "{options:?}");
    }
    let mut missing = reservoir(folder.path());
    let status = missing.args(["copy", "none", "there"]).stdout(full()).stderr(full()).status().unwrap();
    assert_eq!(status.code(), Some(1));
    for arguments in [&["manual"][..], &["plan", "--parts", "2", "file", "planned"]] {
        let status = reservoir(folder.path()).args(arguments).stdout(full()).stderr(full()).status().unwrap();
        assert_eq!(status.code(), Some(1), "{arguments:?}");
    }
}
