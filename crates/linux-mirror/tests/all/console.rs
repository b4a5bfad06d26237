//! The agent without a writable standard error.

use std::fs::File;
use std::os::unix::net::UnixListener;
use std::process::{Command, Stdio};

/// Returns an output on which each write fails, as on a full disk.
fn full() -> Stdio {
    File::options().write(true).open("/dev/full").unwrap().into()
}

fn agent() -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_linux-mirror"));
    command.stdout(full()).stderr(full());
    command
}

#[test]
fn agent_goes_on_without_standard_error() {
    for command in ["sa", "tc"] {
        let folder = tempfile::tempdir().unwrap();
        let socket = folder.path().join("mirror");
        let listener = UnixListener::bind(&socket).unwrap();
        listener.set_nonblocking(true).unwrap();
        let mut running = agent().arg(command).arg(&socket).spawn().unwrap();
        // The agent writes the reason of each failed connection.
        for round in 0..3 {
            let ended = loop {
                match (listener.accept(), running.try_wait().unwrap()) {
                    (Ok(_), _) => break None,
                    (Err(_), Some(status)) => break Some(status),
                    (Err(_), None) => std::thread::yield_now(),
                }
            };
            assert_eq!(ended, None, "{command}, round {round}");
        }
        running.kill().unwrap();
        running.wait().unwrap();
    }
}

#[test]
fn agent_without_output_ends_with_its_own_status() {
    let folder = tempfile::tempdir().unwrap();
    let status = |arguments: &[&str]| agent().current_dir(folder.path()).args(arguments).status().unwrap().code();
    for command in ["sa", "tc"] {
        assert_eq!(status(&[command, "--once", "none"]), Some(1));
        assert_eq!(status(&[command]), Some(2));
        assert_eq!(status(&[command, "--counters"]), Some(2));
    }
    assert_eq!(status(&["sa", "--counters", "file", "none"]), Some(2), "the command sa has no option --counters");
    assert_eq!(status(&[]), Some(2));
    assert_eq!(status(&["none"]), Some(2));
    assert_eq!(status(&["--help"]), Some(1), "the help could not be written");
    assert_eq!(status(&["--version"]), Some(1));
}

#[test]
fn help_and_version_are_options_of_each_command() {
    for command in [&[][..], &["sa"], &["tc", "path"]] {
        let printed = |option: &str| {
            let program = Command::new(env!("CARGO_BIN_EXE_linux-mirror")).args(command).arg(option).output().unwrap();
            assert!(program.status.success(), "{command:?} {option}: {program:?}");
            String::from_utf8(program.stdout).unwrap()
        };
        for option in ["--version", "-V"] {
            assert_eq!(printed(option), concat!("linux-mirror ", env!("CARGO_PKG_VERSION"), "\n"));
        }
        assert!(printed("--help").contains("Usage: linux-mirror sa"), "{command:?}");
    }
}
