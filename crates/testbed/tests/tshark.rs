//! tshark reads a capture in one pass and decrypts it, with nothing but the capture.

use core::time::Duration;
use nic_sim::frame::Frame;
use nic_sim::wire::{Direction, Tap};
use offload_base::{Instant, Seed, Seq};
use rustls::{ClientConnection, Connection, ServerConnection};
use smoltcp::phy::ChecksumCapabilities;
use smoltcp::wire::{
    EthernetAddress, EthernetFrame, EthernetProtocol, EthernetRepr, IpProtocol, Ipv4Address, Ipv4Packet, Ipv4Repr,
    TcpControl, TcpPacket, TcpRepr, TcpSeqNumber, TcpTimestampRepr,
};
use std::fs::File;
use std::io::{BufWriter, ErrorKind, Read, Write};
use std::path::Path;
use std::process::Command;
use std::sync::Arc;
use testbed::Capture;
use testbed::identity::{Randomness, client_config, server_config, server_name};

#[test]
fn tshark_decrypts_a_capture_with_its_own_secrets() {
    let path = std::env::temp_dir().join(format!("testbed-tshark-{}.pcapng", std::process::id()));
    write_capture(&path);
    let output =
        Command::new("tshark").arg("-r").arg(&path).args(["-q", "-z", "follow,tls,ascii,0", "-z", "expert"]).output();
    let output = match output {
        Err(error) if error.kind() == ErrorKind::NotFound => {
            eprintln!("skipped: tshark is not installed, so nobody but this crate has read the capture");
            std::fs::remove_file(&path).expect("the capture goes");
            return;
        }
        output => output.expect("tshark starts"),
    };
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{}\n{}", output.status, String::from_utf8_lossy(&output.stderr));
    assert!(text.contains(QUESTION) && text.contains(ANSWER), "not decrypted:\n{text}");
    for fault in ["Malformed", "checksum", "Checksum", "out-of-order", "retransmission"] {
        assert!(!text.contains(fault), "tshark sees {fault:?}:\n{text}");
    }
    std::fs::remove_file(&path).expect("the capture goes");
}

/// A TLS connection over TCP segments that both sides' taps see, its secrets told by the server.
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

/// Makes TCP segments of what TLS sends, and shows them to a tap.
struct Segments<'a> {
    tap: &'a mut dyn Tap,
    now: Instant,
    /// Next sequence number of each side.
    next: [Seq; 2],
}

impl Segments<'_> {
    /// What one end sends until it has nothing more to send; the other takes it.
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

        self.next[side] += tcp.segment_len() as u32;
        let direction = if side == CLIENT { Direction::Outbound } else { Direction::Inbound };
        self.tap.frame(self.now, direction, &Frame::from(data));
    }
}

const CLIENT: usize = 0;
const SERVER: usize = 1;
const PORTS: [u16; 2] = [50_000, 443];
const ADDRESSES: [Ipv4Address; 2] = [Ipv4Address::new(10, 0, 0, 1), Ipv4Address::new(10, 0, 0, 2)];
const QUESTION: &str = "what crosses the wire?";
const ANSWER: &str = "frames, and nothing but frames. ";
