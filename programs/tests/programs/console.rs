//! Programs that serve without a writable standard output or standard error.

use crate::signals::{ServingProgram, WHO_HAS, send};
use crate::{ProgramFolder, program};
use std::fs::File;
use std::io::{BufRead, BufReader, ErrorKind, Read, Write};
use std::net::TcpStream;
use std::os::unix::net::{UnixDatagram, UnixStream};
use std::process::Stdio;
use std::time::Duration;

/// Returns an output on which each write fails, as on a full disk.
fn full() -> Stdio {
    File::options().write(true).open("/dev/full").unwrap().into()
}

#[test]
fn servers_keep_serving_without_writable_outputs() {
    let folder = ProgramFolder::new("console");
    folder.write("site/page", "a page");
    let mirror = ["--mirror", "agent"];
    let cases: [(&str, &[&str]); 6] = [
        ("udp_echo", &mirror),
        ("tap_server", &["site", "--mirror", "agent"]),
        ("https_server", &["site", "--mirror", "agent"]),
        ("h3_server", &["site", "--mirror", "agent"]),
        ("nvme_target", &["--memory", "1MiB", "--mirror", "agent"]),
        ("eswitch", &["--vf", "0=vm", "--filters", "agent"]),
    ];
    for (name, arguments) in cases {
        let far = UnixDatagram::bind(folder.path(&format!("{name}.far"))).unwrap();
        // A missing answer is a failure after this time.
        far.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
        let (near, end) = (format!("{name}.near"), format!("{name}.far"));
        let uplink = format!("dgram:{near},{end}");
        let wire = if name == "eswitch" { vec!["--uplink", &uplink] } else { vec!["--dgram", &near, &end] };
        let mut server = program(&folder, name);
        let mut server = server.args(arguments).args(wire).stdout(full()).stderr(full()).spawn().unwrap();
        while UnixStream::connect(folder.path("agent")).is_err() {
            assert_eq!(server.try_wait().unwrap(), None, "{name}");
            std::thread::yield_now();
        }
        // The program writes a line when an agent connects, and one when the agent leaves.
        (0..3).for_each(|_| visit(&folder));
        // A switch without rules does not forward the frame.
        if name != "eswitch" {
            far.send_to(&WHO_HAS, folder.path(&near)).unwrap();
            let mut frame = [0; 2048];
            while { far.recv(&mut frame).unwrap() } < 42 || frame[12..14] != WHO_HAS[12..14] || frame[21] != 2 {}
        }
        send(&server, "TERM");
        // The program could not write its counters at the end.
        assert_eq!(server.wait().unwrap().code(), Some(1), "{name}");
    }
}

#[test]
fn target_keeps_serving_without_writable_errors() {
    let folder = ProgramFolder::new("console-target");
    let mut target = program(&folder, "nvme_target");
    target.args(["--listen", "127.0.0.1:0", "--memory", "1MiB"]).stdout(Stdio::piped()).stderr(full());
    let mut target = target.spawn().unwrap();
    let mut line = String::new();
    BufReader::new(target.stdout.take().unwrap()).read_line(&mut line).unwrap();
    let address = line.trim_end().strip_prefix("ready ").unwrap();
    // The target must survive a protocol error that it cannot report, and serve the next host.
    for round in 0..3 {
        let mut stream = TcpStream::connect(address).unwrap();
        stream.write_all(&[0x47; 200]).unwrap();
        // The target closes the connection or resets it.
        let _ended = stream.read_to_end(&mut Vec::new());
        let mut stream = TcpStream::connect(address).unwrap();
        // NVMe/TCP 3.6.2.2: ICReq, 128 bytes of header; the other fields have usual values.
        let mut request = [0; 128];
        (request[2], request[4]) = (128, 128);
        stream.write_all(&request).unwrap();
        let mut response = [0; 128];
        stream.read_exact(&mut response).unwrap();
        assert_eq!(response[0], 1, "round {round}");
    }
    send(&target, "TERM");
    assert_eq!(target.wait().unwrap().code(), Some(0));
}

#[test]
fn pipe_that_nobody_reads_does_not_stop_a_server() {
    let folder = ProgramFolder::new("console-pipe");
    let agent = ["--dgram", "near", "far", "--mirror", "agent"];
    let _far = UnixDatagram::bind(folder.path("far")).unwrap();
    // The pipe of standard error has no reader and soon fills up: each agent causes two lines of at least 30 bytes.
    let mut echo = ServingProgram::start(&folder, "udp_echo", &agent);
    (0..2500).for_each(|_| visit(&folder));
    assert!(echo.end("TERM").1.len() < 70_000, "some lines were lost");
}

/// Connects as an agent, reads the greeting, and leaves.
fn visit(folder: &ProgramFolder) {
    // The program refuses an agent until it has noticed that the previous one is gone.
    loop {
        let mut agent = UnixStream::connect(folder.path("agent")).unwrap();
        agent.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
        // Under load a signal can interrupt the read.
        let read = loop {
            match agent.read(&mut [0; 64]) {
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                read => break read.unwrap(),
            }
        };
        if read > 0 {
            return;
        }
    }
}
