//! tshark decrypts a capture in one pass, with no input but the capture.

use crate::rig;

use core::time::Duration;
use nic_sim::frame::Frame;
use nic_sim::wire::impairment::{Impairments, Reorder, Share};
use nic_sim::wire::{LinkConfig, Tap, TapDirection};
use offload_base::{Instant, Seed, Seq};
use offload_host_stack::TcpConfig;
use offload_testbed::Capture;
use offload_testbed::identity::{Randomness, client_config, server_config, server_name};
use rig::{CryptoPlace, Host, Transfer, TransferOutcome, marked};
use rustls::{ClientConnection, Connection, ServerConnection};
use smoltcp::phy::ChecksumCapabilities;
use smoltcp::wire::{
    EthernetAddress, EthernetFrame, EthernetProtocol, EthernetRepr, IpProtocol, Ipv4Address, Ipv4Packet, Ipv4Repr,
    TcpControl, TcpPacket, TcpRepr, TcpSeqNumber, TcpTimestampRepr,
};
use std::fs::File;
use std::io::{BufWriter, ErrorKind, Read, Write};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;

#[test]
fn tshark_decrypts_a_capture_with_its_own_secrets() {
    if !have_tshark() {
        return;
    }
    let file = TemporaryFile::new("rustls");
    write_capture(&file.0);
    let text = tshark(&file, &["-q", "-z", "follow,tls,ascii,0", "-z", "expert"]);
    assert!(text.contains(QUESTION) && text.contains(ANSWER), "not decrypted:\n{text}");
    for fault in ["Malformed", "checksum", "Checksum", "out-of-order", "retransmission"] {
        assert!(!text.contains(fault), "tshark sees {fault:?}:\n{text}");
    }
}

#[test]
fn tshark_decrypts_every_record_of_the_nics() {
    if !have_tshark() {
        return;
    }
    let us = Duration::from_micros;
    let writes: Vec<_> = [100_000, 1, 16_384, 70_000, 333].into_iter().map(marked).collect();
    let clean = Transfer::new(CryptoPlace::Nic, 1, writes.iter().cycle().take(40).cloned().collect());
    // The sequence numbers wrap early in the transfer, which tshark must follow too.
    let tcp = TcpConfig { initial_sequence: Some(0xffff_0000), ..clean.tcp.clone() };
    let rough = Transfer { link: rough(), tcp, ..clean.clone() };
    let reset = Transfer { resets: vec![us(50), us(900)], client_resets: vec![us(400)], ..rough.clone() };
    let small = Transfer { record_size: 1400, ..rough.clone() };
    for (transfer, host, name) in [
        (clean, Host::Server, "a clean wire"),
        (rough.clone(), Host::Server, "what the server sends over a rough wire"),
        (rough, Host::Client, "what arrives over a rough wire"),
        (reset, Host::Client, "what arrives from a NIC that is reset"),
        (small, Host::Client, "small records over a rough wire"),
    ] {
        let file = TemporaryFile::new("nics");
        let (outcome, _) = captured(transfer.clone(), host, &file);
        assert!(outcome.received == transfer.sent(), "{name}");
        assert!(outcome.counters.value("tx_tls_encrypted_bytes") > 0, "{name}: the NIC encrypts");
        let reading = CaptureReading::read(&file);
        assert_eq!(reading.faults, [""; 0], "{name}");
        // Each write ends its last record, so the expected records are known.
        let records = transfer.writes.iter().flat_map(|write| write.chunks(transfer.record_size));
        assert!(reading.from_server.iter().eq(records), "{name}: {} records", reading.from_server.len());
        assert_eq!(reading.from_client, [b"!"], "{name}");
        assert_eq!(reading.encrypted, reading.from_server.len() + 1 + OTHER_ENCRYPTED, "{name}");
        // tshark knows the type of an encrypted record only after it has verified the tag.
        assert_eq!(reading.typed, reading.encrypted + PLAIN, "{name}: what is encrypted is decrypted");
        assert_eq!(reading.close_notifies, 2, "{name}");
    }
}

/// Shows that the previous test can fail: tshark does not get past a record that does not verify, and reports nothing
/// else.
#[test]
fn tshark_stops_at_an_unverifiable_record() {
    if !have_tshark() {
        return;
    }
    let file = TemporaryFile::new("spoilt");
    let transfer = Transfer::new(CryptoPlace::Nic, 1, vec![marked(200_000)]);
    let (_, mut bytes) = captured(transfer, Host::Server, &file);
    // Two 16-bit words in the middle of a segment change places, which leaves the checksum unchanged.
    let at = bytes.len() / 2;
    let header = [0x45, 0, 5, 220]; // IPv4, a full packet
    let packet = at + bytes[at..].windows(4).position(|window| window == header).expect("a full packet");
    let payload = packet + 20 + 32;
    bytes[payload + 100..payload + 104].rotate_left(2);
    std::fs::write(&file.0, &bytes).expect("it is written");
    let reading = CaptureReading::read(&file);
    assert_eq!(reading.faults, [""; 0], "checksums do not tell");
    assert!(reading.typed < reading.encrypted + PLAIN, "{} of {}", reading.typed, reading.encrypted);
    assert!(!reading.from_server.is_empty() && reading.from_server.concat().len() < 200_000);

    bytes[payload + 200] ^= 1;
    std::fs::write(&file.0, bytes).expect("it is written");
    assert!(
        CaptureReading::read(&file).faults.iter().any(|fault| fault.contains("Bad checksum")),
        "a bit that flips does"
    );
}

/// Runs `transfer` with a capture at `host`'s NIC. Returns the result and the capture's bytes.
fn captured(transfer: Transfer, host: Host, file: &TemporaryFile) -> (TransferOutcome, Vec<u8>) {
    let output = BufWriter::new(File::create(&file.0).expect("a file"));
    let capture = Capture::new(output).expect("a capture");
    let outcome = Transfer { capture: Some((capture.clone(), host)), ..transfer }.run();
    capture.finish().expect("all was written");
    (outcome, std::fs::read(&file.0).expect("it is there"))
}

fn rough() -> LinkConfig {
    let share = |share| Share::new(share).unwrap();
    let reorder = Reorder { share: share(0.03), hold: Duration::from_micros(30) };
    let impairments =
        Impairments { loss: share(0.02), duplicate: share(0.01), reorder: Some(reorder), ..Impairments::default() };
    LinkConfig { impairments, ..LinkConfig::default() }
}

/// tshark's view of a capture with one TLS connection to a server at port 443.
struct CaptureReading {
    /// Decrypted data records.
    from_server: Vec<Vec<u8>>,
    from_client: Vec<Vec<u8>>,
    /// Records with a hidden type (RFC 8446 section 5.2), as all encrypted records have.
    encrypted: usize,
    /// Records with a known type: plain records and decrypted records.
    typed: usize,
    close_notifies: usize,
    /// tshark's complaints, except TCP's recovery on a rough wire.
    faults: Vec<String>,
}

impl CaptureReading {
    fn read(file: &TemporaryFile) -> CaptureReading {
        let mut reading = CaptureReading {
            from_server: Vec::new(),
            from_client: Vec::new(),
            encrypted: 0,
            typed: 0,
            close_notifies: 0,
            faults: Vec::new(),
        };
        reading.add_data(&tshark(file, &["-q", "-z", "follow,tls,raw,0"]));
        let fields = ["tls.record.opaque_type", "tls.record.content_type", "tls.alert_message.desc"];
        let [opaque, content, alert] = fields;
        reading.add_types(&tshark(file, &["-T", "fields", "-e", opaque, "-e", content, "-e", alert]));
        reading.add_faults(&tshark(file, &["-q", "-z", "expert"]));
        reading
    }

    /// Parses a line of hexadecimal digits for each record; lines of node 1 begin with a tab.
    fn add_data(&mut self, text: &str) {
        let server_first = text.lines().any(|line| line.starts_with("Node 0:") && line.ends_with(":443"));
        for line in text.lines() {
            let digits = line.trim_start();
            if digits.is_empty() || !digits.bytes().all(|digit| digit.is_ascii_hexdigit()) {
                continue;
            }
            let from_server = (digits.len() == line.len()) == server_first;
            let records = if from_server { &mut self.from_server } else { &mut self.from_client };
            let byte = |at| u8::from_str_radix(&digits[at..at + 2], 16).expect("two digits");
            records.push((0..digits.len()).step_by(2).map(byte).collect());
        }
    }

    /// Parses a line for each packet: the records' types on the wire, their true types, and the alerts.
    fn add_types(&mut self, text: &str) {
        for line in text.lines() {
            let mut fields = line.split('\t').map(|field| field.split(',').filter(|value| !value.is_empty()));
            self.encrypted += fields.next().into_iter().flatten().count();
            self.typed += fields.next().into_iter().flatten().count();
            self.close_notifies += fields.next().into_iter().flatten().filter(|alert| *alert == "0").count();
        }
    }

    /// Parses lines of frequency, group, protocol and summary.
    fn add_faults(&mut self, text: &str) {
        for line in text.lines().map(str::trim) {
            let words: Vec<_> = line.split_whitespace().take(3).collect();
            let [frequency, group, protocol] = words[..] else { continue };
            if frequency.parse::<u64>().is_ok() && (group, protocol) != ("Sequence", "TCP") {
                self.faults.push(line.into());
            }
        }
    }
}

/// Runs tshark over a capture, with all checksums verified.
fn tshark(file: &TemporaryFile, arguments: &[&str]) -> String {
    let mut command = Command::new("tshark");
    command.arg("-r").arg(&file.0).arg("-n");
    for preference in ["ip.check_checksum", "tcp.check_checksum", "tcp.reassemble_out_of_order"] {
        command.arg("-o").arg(format!("{preference}:TRUE"));
    }
    let output = command.args(arguments).output().expect("tshark starts");
    assert!(output.status.success(), "{}: {}", output.status, String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).expect("digits and words")
}

/// Returns whether tshark is installed, and prints a note if it is not.
fn have_tshark() -> bool {
    match Command::new("tshark").arg("--version").output() {
        Err(error) if error.kind() == ErrorKind::NotFound => {
            eprintln!("skipped: tshark is not installed, so nobody but this crate has read the capture");
            false
        }
        output => output.expect("tshark starts").status.success(),
    }
}

/// A file that is removed on drop.
struct TemporaryFile(PathBuf);

impl TemporaryFile {
    fn new(name: &str) -> TemporaryFile {
        TemporaryFile(std::env::temp_dir().join(format!("testbed-tshark-{name}-{}.pcapng", std::process::id())))
    }
}

impl Drop for TemporaryFile {
    fn drop(&mut self) {
        // A failed test may not have written the file.
        let _ = std::fs::remove_file(&self.0);
    }
}

/// Writes a capture of a TLS connection in TCP segments, with the secrets from the server.
fn write_capture(path: &Path) {
    let capture = Capture::new(BufWriter::new(File::create(path).expect("a file"))).expect("a capture");
    let mut tap = capture.tap("client").expect("an interface");
    let seeded = |seed| Randomness::Seeded(Seed(seed));
    let client_side = ClientConnection::new(Arc::new(client_config(seeded(1), None)), server_name()).expect("a client");
    let server_side = Arc::new(server_config(seeded(2), Some(Arc::new(capture.clone()))));
    let server_side = ServerConnection::new(server_side).expect("a server");
    let (mut client, mut server) = (Connection::from(client_side), Connection::from(server_side));

    let mut segments = Segments { tap: &mut tap, now: Instant::ZERO, next: [Seq(1000), Seq(0xffff_f000)] };
    segments.send(CLIENT, TcpControl::Syn, &[]);
    segments.send(SERVER, TcpControl::Syn, &[]);
    segments.send(CLIENT, TcpControl::None, &[]);
    while client.is_handshaking() || server.is_handshaking() {
        segments.flight(CLIENT, &mut client, &mut server);
        segments.flight(SERVER, &mut server, &mut client);
    }
    let long_answer = ANSWER.repeat(1000);
    client.writer().write_all(QUESTION.as_bytes()).expect("a small write");
    segments.flight(CLIENT, &mut client, &mut server);
    let mut heard = [0; QUESTION.len()];
    server.reader().read_exact(&mut heard).expect("the question");
    server.writer().write_all(long_answer.as_bytes()).expect("a small write");
    server.send_close_notify();
    segments.flight(SERVER, &mut server, &mut client);
    segments.send(SERVER, TcpControl::Fin, &[]);
    capture.finish().expect("all was written");
}

/// A segmenter: sends TLS bytes as TCP segments to a tap.
struct Segments<'a> {
    tap: &'a mut dyn Tap,
    now: Instant,
    /// Next sequence number of each side.
    next: [Seq; 2],
}

impl Segments<'_> {
    /// Moves all pending bytes from one end to the other, and returns the bytes.
    fn flight(&mut self, side: usize, from: &mut Connection, to: &mut Connection) {
        let mut sent = Vec::new();
        while from.wants_write() {
            from.write_tls(&mut sent).expect("memory takes everything");
        }
        for segment in sent.chunks(1448) {
            self.send(side, TcpControl::Psh, segment);
        }
        let mut unread = &sent[..];
        while !unread.is_empty() {
            to.read_tls(&mut unread).expect("memory gives everything");
            to.process_new_packets().expect("an honest peer");
        }
    }

    fn send(&mut self, side: usize, control: TcpControl, payload: &[u8]) {
        self.now += Duration::from_nanos(1_234_567);
        let other = 1 - side;
        let first = control == TcpControl::Syn && side == CLIENT;
        let tcp = TcpRepr {
            src_port: PORTS[side],
            dst_port: PORTS[other],
            control,
            seq_number: TcpSeqNumber(self.next[side].0 as i32),
            ack_number: (!first).then_some(TcpSeqNumber(self.next[other].0 as i32)),
            window_len: 65_000,
            window_scale: None,
            max_seg_size: (control == TcpControl::Syn).then_some(1460),
            sack_permitted: false,
            sack_ranges: [None; 3],
            // Real stacks send timestamps, so the capture has TCP options as well.
            timestamp: Some(TcpTimestampRepr::new(self.now.as_millis() as u32, 0)),
            payload,
        };
        let ip = Ipv4Repr {
            src_addr: ADDRESSES[side],
            dst_addr: ADDRESSES[other],
            next_header: IpProtocol::Tcp,
            payload_len: tcp.buffer_len(),
            hop_limit: 64,
        };
        let ethernet = EthernetRepr {
            src_addr: EthernetAddress([2, 0, 0, 0, 0, side as u8]),
            dst_addr: EthernetAddress([2, 0, 0, 0, 0, other as u8]),
            ethertype: EthernetProtocol::Ipv4,
        };
        let checksums = ChecksumCapabilities::default();
        let mut data = vec![0; ethernet.buffer_len() + ip.buffer_len() + tcp.buffer_len()];
        let mut frame = EthernetFrame::new_unchecked(&mut data);
        ethernet.emit(&mut frame);
        let mut packet = Ipv4Packet::new_unchecked(frame.payload_mut());
        ip.emit(&mut packet, &checksums);
        let mut segment = TcpPacket::new_unchecked(packet.payload_mut());
        tcp.emit(&mut segment, &ADDRESSES[side].into(), &ADDRESSES[other].into(), &checksums);

        // SYN and FIN count as one sequence number each.
        self.next[side] += tcp.segment_len() as u32;
        let direction = if side == CLIENT { TapDirection::Outbound } else { TapDirection::Inbound };
        self.tap.frame(self.now, direction, &Frame::from(data));
    }
}

const CLIENT: usize = 0;
const SERVER: usize = 1;
const PORTS: [u16; 2] = [50_000, 443];
const ADDRESSES: [Ipv4Address; 2] = [Ipv4Address::new(10, 0, 0, 1), Ipv4Address::new(10, 0, 0, 2)];
const QUESTION: &str = "what crosses the wire?";
const ANSWER: &str = "frames, and nothing but frames. ";
/// Plain records: both hellos, and both ChangeCipherSpec for middleboxes.
const PLAIN: usize = 4;
/// Encrypted records without data: the rest of the handshake, one from each side, the tickets, both close_notify.
const OTHER_ENCRYPTED: usize = 5;
