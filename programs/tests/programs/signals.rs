//! Programs that run until a signal ends them. Their wire leads to this test or to another program.

use crate::timeline::tracks;
use crate::{ProgramFolder, program, run};
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::os::unix::net::UnixDatagram;
use std::process::{Child, ChildStderr, Command, Stdio};

/// A serving program, killed on drop.
pub(crate) struct ServingProgram {
    name: &'static str,
    program: Child,
    said: BufReader<std::process::ChildStdout>,
}

impl ServingProgram {
    /// Starts the program and waits until it prints how to end it, which means that it listens.
    pub(crate) fn start(folder: &ProgramFolder, name: &'static str, arguments: &[&str]) -> ServingProgram {
        ServingProgram::until(folder, name, arguments, "Ctrl-C ends it").0
    }

    /// Starts the program and waits for a line that begins with `first`. Returns the rest of the line too.
    pub(crate) fn until(
        folder: &ProgramFolder,
        name: &'static str,
        arguments: &[&str],
        first: &str,
    ) -> (ServingProgram, String) {
        let mut command = program(folder, name);
        command.args(arguments).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut program = command.spawn().unwrap();
        let said = BufReader::new(program.stdout.take().unwrap());
        let mut served = ServingProgram { name, program, said };
        let mut line = String::new();
        while !line.starts_with(first) {
            line.clear();
            let more = served.said.read_line(&mut line).unwrap();
            assert_ne!(more, 0, "{name} ended: {}", rest(served.program.stderr.take()));
        }
        (served, line[first.len()..].trim().to_owned())
    }

    /// Waits until the program prints how to end it.
    pub(crate) fn listens(&mut self) {
        let mut line = String::new();
        while !line.starts_with("Ctrl-C ends it") {
            line.clear();
            assert_ne!(self.said.read_line(&mut line).unwrap(), 0, "{} ended", self.name);
        }
    }

    /// Returns the program's standard error.
    pub(crate) fn errors(&mut self) -> BufReader<ChildStderr> {
        BufReader::new(self.program.stderr.take().unwrap())
    }

    pub(crate) fn signal(&self, signal: &str) {
        send(&self.program, signal);
    }

    /// Ends the program with `signal` and returns its standard output and standard error.
    pub(crate) fn end(&mut self, signal: &str) -> (String, String) {
        send(&self.program, signal);
        let (mut counted, told) = (String::new(), rest(self.program.stderr.take()));
        self.said.read_to_string(&mut counted).unwrap();
        let status = self.program.wait().unwrap();
        assert_eq!(status.code(), Some(0), "{}: {told}", self.name);
        (counted, told)
    }
}

impl Drop for ServingProgram {
    fn drop(&mut self) {
        let _ = self.program.kill();
        let _ = self.program.wait();
    }
}

#[test]
fn servers_write_their_timeline_when_a_signal_ends_them() {
    let folder = ProgramFolder::new("signals");
    folder.write("site/page", "a page");
    let cases: [(&str, &[&str], &str); 5] = [
        ("udp_echo", &[], "INT"),
        ("tap_server", &["site"], "TERM"),
        ("https_server", &["site", "--pcap", "wire.pcapng"], "TERM"),
        ("h3_server", &["site"], "INT"),
        ("nvme_target", &["--memory", "1MiB"], "TERM"),
    ];
    for (name, arguments, signal) in cases {
        let guest = UnixDatagram::bind(folder.path(&format!("{name}.guest"))).unwrap();
        let (ours, theirs, trace) = (format!("{name}.host"), format!("{name}.guest"), format!("{name}.pftrace"));
        let wire = ["--dgram", &ours, &theirs, "--trace", &trace, "--trace-limit", "1MiB"];
        let mut served = ServingProgram::start(&folder, name, &[arguments, &wire].concat());
        guest.send_to(&WHO_HAS, folder.path(&ours)).unwrap();
        let mut answer = [0; 2048];
        // The host also joins multicast groups, so other frames may come first.
        while { guest.recv(&mut answer).unwrap() } < 42 || answer[12..14] != WHO_HAS[12..14] || answer[21] != 2 {}
        let (counted, told) = served.end(signal);
        assert!(counted.contains("rx_packets"), "{name}: {counted}");
        assert!(told.contains(&format!("{name}: {trace}: ")) && told.contains(" events, "), "{name}: {told}");
        if arguments.contains(&"--pcap") {
            let capture = std::fs::read(folder.path("wire.pcapng")).unwrap();
            assert!(capture.windows(42).any(|bytes| bytes == &answer[..42]), "{name}: the answer is in the capture");
        }
        let tracks = tracks(&folder.path(&trace));
        assert!(tracks.get("NIC").is_some_and(|events| *events > 0), "{name}: {tracks:?}");
    }
}

#[test]
fn a_disk_behind_two_programs_has_a_timeline_at_each_end() {
    let folder = ProgramFolder::new("two-timelines");
    let target = ["--memory", "1MiB", "--dgram", "target", "host", "--trace", "target.pftrace"];
    let mut target = ServingProgram::start(&folder, "nvme_target", &target);
    // The two programs share only a pair of sockets, so each timeline shows one host.
    let wire = ["--dgram", "host", "target", "--address", "10.77.0.2", "--connect", "10.77.0.1:4420"];
    let verify = ["verify", "--size", "1MiB", "--span", "256KiB"];
    let host = run(&folder, "nvme_host", &[&wire[..], &["--ddgst", "--trace", "host.pftrace"], &verify].concat());
    let told = String::from_utf8(host.stderr).unwrap();
    assert_eq!(host.status.code(), Some(0), "{told}");
    assert!(told.contains("nvme_host: host.pftrace: "), "{told}");
    target.end("TERM");
    for name in ["host", "target"] {
        let tracks = tracks(&folder.path(&format!("{name}.pftrace")));
        for track in ["TCP", "driver", "rings", "NIC"] {
            assert!(tracks.contains_key(track), "{name}: {track} is not among {tracks:?}");
        }
    }
}

#[test]
fn a_target_that_is_ended_closes_its_connections() {
    let folder = ProgramFolder::new("closing-target");
    let arguments = ["--listen", "127.0.0.1:0", "--memory", "1MiB"];
    let (mut target, address) = ServingProgram::until(&folder, "nvme_target", &arguments, "ready ");
    let mut stream = TcpStream::connect(address).unwrap();
    // NVMe/TCP 3.6.2.2: ICReq, 128 bytes of header; the other fields have usual values.
    let mut request = [0; 128];
    (request[2], request[4]) = (128, 128);
    stream.write_all(&request).unwrap();
    let mut response = [0; 128];
    stream.read_exact(&mut response).unwrap();
    assert_eq!((response[0], response[2]), (1, 128), "ICResp");
    send(&target.program, "TERM");
    // A closed stream proves that the target ended in order: a killed target would reset the connection.
    assert_eq!(stream.read(&mut response).unwrap(), 0, "the stream is finished, not reset");
    drop(stream);
    assert_eq!(target.program.wait().unwrap().code(), Some(0));
}

#[test]
fn signal_ends_a_waiting_client_with_a_complete_timeline() {
    let folder = ProgramFolder::new("interrupted");
    let clients: [(&str, &[&str]); 2] = [
        ("nvme_host", &["--connect", "10.77.0.2:4420", "write"]),
        ("https_client", &["--pcap", "wire.pcapng", "http://10.77.0.2/"]),
    ];
    for (name, arguments) in clients {
        let guest = UnixDatagram::bind(folder.path(&format!("{name}.guest"))).unwrap();
        let (ours, theirs, trace) = (format!("{name}.host"), format!("{name}.guest"), format!("{name}.pftrace"));
        let mut command = program(&folder, name);
        command.args(["--dgram", &ours, &theirs, "--trace", &trace]).args(arguments);
        let mut client = command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        // The client installs its signal handlers before it sends the first ARP request.
        let mut asked = [0; 2048];
        while { guest.recv(&mut asked).unwrap() } < 42 || asked[12..14] != WHO_HAS[12..14] {}
        send(&client, "TERM");
        let told = rest(client.stderr.take());
        assert_eq!(client.wait().unwrap().code(), Some(1), "{name}: {told}");
        assert!(told.contains("interrupted") && told.contains(&format!("{trace}: ")), "{name}: {told}");
        assert!(!tracks(&folder.path(&trace)).is_empty(), "{name}");
    }
}

/// Sends a signal, given by name, to a process.
pub(crate) fn send(to: &Child, signal: &str) {
    let sent = Command::new("sh").args(["-c", &format!("kill -{signal} {}", to.id())]).status().unwrap();
    assert!(sent.success());
}

fn rest(output: Option<impl Read>) -> String {
    let mut text = String::new();
    output.map(|mut output| output.read_to_string(&mut text).unwrap());
    text
}

/// An ARP request (RFC 826) of 10.77.0.2 for 10.77.0.1.
#[rustfmt::skip]
pub(crate) const WHO_HAS: [u8; 42] = [
    0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 2, 0, 0, 0, 0, 9, 8, 6,
    0, 1, 8, 0, 6, 4, 0, 1, 2, 0, 0, 0, 0, 9, 10, 77, 0, 2, 0, 0, 0, 0, 0, 0, 10, 77, 0, 1,
];
