//! Wires to the outside over sockets of this machine: two testbeds in real time, each with its own threads, joined only
//! by a socket.
#![cfg(target_os = "linux")]

use bytes::Bytes;
use core::net::Ipv4Addr;
use core::task::Waker;
use nic_sim::frame::Frame;
use nic_sim::wire::{Impairments, LinkConfig, Port, Share};
use nic_sim::{Delays, NicConfig};
use offload_base::{Instant, Seed};
use offload_host_stack::{TcpConfig, TcpStream};
use offload_testbed::attach::{AttachCounters, DgramPort, StreamPort};
use offload_testbed::bed::ClockKind;
use offload_testbed::{BedHost, Testbed};
use std::io::{self, Read, Write};
use std::net::Shutdown;
use std::os::unix::net::{UnixDatagram, UnixListener, UnixStream};
use std::path::PathBuf;
use std::sync::{Arc, Mutex};
use tokio::io::{AsyncReadExt, AsyncWriteExt};

const SERVER: Ipv4Addr = Ipv4Addr::new(10, 0, 0, 1);
const CLIENT: Ipv4Addr = Ipv4Addr::new(10, 0, 0, 2);
const MAC: [u8; 6] = [0x02, 0, 0, 0, 0, 1];

/// Builds a testbed of one host, on a wire to `port`. All hosts share one Ethernet address, because each is alone on
/// its side of the wire.
fn bed(name: &str, address: Ipv4Addr, neighbour: Ipv4Addr, port: impl Port + 'static, link: LinkConfig) -> Testbed {
    let nic = NicConfig { delays: Delays::NONE, line_rate: None, receive_ring: 8192, ..NicConfig::default() };
    Testbed::builder(Seed(1))
        .clock(ClockKind::Real)
        .host(name, nic, TcpConfig::default())
        .address(address)
        .neighbour(neighbour, MAC)
        .attach(0, "outside", port, link)
        .build()
        .expect("threads")
}

/// Sends bytes both ways at once between a host behind `left` and one behind `right`.
fn both_ways(left: impl Port + 'static, right: impl Port + 'static, loss: f64, bytes: usize) {
    let impairments = Impairments { loss: Share::new(loss).expect("a share"), ..Impairments::default() };
    let lossy = LinkConfig { impairments, ..LinkConfig::default() };
    let mut left = bed("server", SERVER, CLIENT, left, lossy);
    let right = bed("client", CLIENT, SERVER, right, LinkConfig::default());
    let (server, client) = (left.host(0).clone(), right.host(0).clone());
    let mut listener = server.stack().listen(7, 1).expect("nobody else listens");
    let serving = server.clone().spawn("application", async move {
        let stream = listener.accept().await?;
        exchange(&server, stream, 1, 2, bytes).await
    });
    let fetching = client.clone().spawn("application", async move {
        let stream = client.stack().connect(None, (SERVER, 7).into()).await?;
        exchange(&client, stream, 2, 1, bytes).await
    });
    // In real time both testbeds run on their own threads; this thread only waits for the results.
    left.run(async {
        serving.await.expect("the server got everything");
        fetching.await.expect("the client got everything");
    });
    assert!(loss == 0.0 || left.counters().value("wire_lost") > 0, "the wire lost nothing");
}

/// Sends seeded bytes and checks that the peer's seeded bytes arrive whole and in order.
async fn exchange(host: &BedHost, stream: TcpStream, ours: u64, theirs: u64, bytes: usize) -> io::Result<()> {
    let (mut reading, mut writing) = tokio::io::split(stream);
    let sent = seeded(ours, bytes);
    let sending = host.spawn("sender", async move {
        writing.write_all(&sent).await?;
        writing.shutdown().await
    });
    let mut received = Vec::new();
    reading.read_to_end(&mut received).await?;
    sending.await?;
    assert!(received == seeded(theirs, bytes), "{} bytes arrived, and not those that were sent", received.len());
    Ok(())
}

fn seeded(seed: u64, bytes: usize) -> Bytes {
    let mut data = vec![0; bytes];
    Seed(seed).stream("data").fill(&mut data);
    data.into()
}

fn path(name: &str) -> PathBuf {
    std::env::temp_dir().join(format!("nic-offload-{}-{name}", std::process::id()))
}

/// Spins, without a clock, until `done` returns true.
fn until(mut done: impl FnMut() -> bool) {
    while !done() {
        std::thread::yield_now();
    }
}

fn frame(fill: u8) -> Frame {
    Frame::from(vec![fill; 60])
}

#[test]
fn tcp_crosses_a_pair_of_datagram_sockets() {
    let (left, right) = UnixDatagram::pair().expect("sockets");
    both_ways(DgramPort::paired(left).unwrap(), DgramPort::paired(right).unwrap(), 0.0, 8 << 20);
}

#[test]
fn tcp_crosses_datagram_sockets_at_paths_and_loss() {
    let (left, right) = (path("left"), path("right"));
    let ports = [DgramPort::bind(&left, &right), DgramPort::bind(&right, &left)];
    let [left_port, right_port] = ports.map(|port| port.expect("paths that are free"));
    both_ways(left_port, right_port, 0.01, 2 << 20);
    assert!(!left.exists() && !right.exists(), "what was bound was removed");
}

#[test]
fn tcp_crosses_a_unix_stream() {
    let path = path("stream");
    let listening = StreamPort::listen_unix(&path).expect("a path that is free");
    let connected = StreamPort::on_unix(UnixStream::connect(&path).expect("somebody listens")).unwrap();
    both_ways(listening, connected, 0.0, 8 << 20);
    assert!(!path.exists(), "what was bound was removed");
}

#[test]
fn tcp_crosses_tcp_and_loss() {
    let (listening, address) = StreamPort::listen_tcp("127.0.0.1:0".parse().unwrap()).expect("a free port");
    let connected = StreamPort::on_tcp(std::net::TcpStream::connect(address).expect("somebody listens")).unwrap();
    both_ways(listening, connected, 0.01, 2 << 20);
}

#[test]
fn a_dgram_peer_may_come_late_go_and_come_again() {
    let (ours, theirs) = (path("ours"), path("theirs"));
    let mut port = DgramPort::bind(&ours, &theirs).expect("a path that is free");
    let send = |port: &mut DgramPort, fill: u8| {
        port.receive_frame(Instant::ZERO, frame(fill));
        port.process(Instant::ZERO);
    };
    // A frame for a missing peer is dropped and counted, because waiting could last for ever.
    send(&mut port, 1);
    assert_eq!((port.counters().tx_unreachable, port.counters().tx_frames), (1, 0), "nobody is there yet");

    for fill in [2, 3] {
        let peer = UnixDatagram::bind(&theirs).expect("a path that is free");
        if fill == 3 {
            send(&mut port, 0); // notices that the first peer is gone
        }
        send(&mut port, fill);
        let mut received = [0; 100];
        assert_eq!(peer.recv(&mut received).expect("a datagram"), 60);
        assert_eq!(received[0], fill);
        peer.send_to(&[fill; 60], &ours).expect("the port takes it");
        assert_eq!(port.poll_frame(Instant::ZERO), Some(frame(fill)));
        assert_eq!(port.poll_frame(Instant::ZERO), None);
        drop(peer);
        std::fs::remove_file(&theirs).expect("it was bound");
    }
    assert_eq!(port.counters().tx_frames, 2);

    // The socket of a live program is not replaced; the socket of an ended program is.
    assert_eq!(DgramPort::bind(&ours, &theirs).unwrap_err().kind(), io::ErrorKind::AddrInUse);
    drop(port);
    drop(UnixDatagram::bind(&ours).expect("the path is free again"));
    DgramPort::bind(&ours, &theirs).expect("nobody is behind that socket any more");
}

#[test]
fn a_peer_that_takes_nothing_costs_frames_and_no_memory() {
    let (inside, outside) = UnixDatagram::pair().expect("sockets");
    let mut port = DgramPort::paired(inside).unwrap();
    for number in 0..5000u32 {
        port.receive_frame(Instant::ZERO, Frame::from([&number.to_be_bytes()[..], &[0; 56]].concat()));
    }
    port.process(Instant::ZERO);
    let dropped = port.counters().tx_queue_drops;
    assert!(dropped >= 3000, "{dropped} were dropped");
    // The peer wakes up and takes the kept frames, in order.
    let mut expected = 0u32;
    let kept = 5000 - dropped as u32;
    while expected < kept {
        let mut received = [0; 100];
        assert_eq!(outside.recv(&mut received).expect("a datagram"), 60);
        assert_eq!(received[..4], expected.to_be_bytes());
        expected += 1;
        port.process(Instant::ZERO);
    }
    assert_eq!(port.counters().tx_frames, u64::from(kept));
}

#[test]
fn malformed_frames_are_counted_and_bad_lengths_end_streams() {
    let (inside, outside) = UnixDatagram::pair().expect("sockets");
    let mut port = DgramPort::paired(inside).unwrap();
    outside.send(&[1; 13]).unwrap();
    outside.send(&[2; 14]).unwrap();
    assert_eq!(port.poll_frame(Instant::ZERO).unwrap().data[..], [2; 14]);
    assert_eq!(port.counters().rx_malformed, 1);
    outside.shutdown(Shutdown::Both).unwrap();
    assert_eq!(port.poll_frame(Instant::ZERO), None);
    port.receive_frame(Instant::ZERO, frame(1));
    port.process(Instant::ZERO);
    assert_eq!(port.counters().tx_unreachable, 1);

    let path = path("rubbish");
    let mut port = StreamPort::listen_unix(&path).expect("a path that is free");
    let mut first = UnixStream::connect(&path).expect("somebody listens");
    first
        // One whole frame, one that is too short, and a length that no frame can have.
        .write_all(&[0, 0, 0, 14, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 0, 0, 0, 3, 9, 9, 9, 0xff, 0, 0, 0])
        .unwrap();
    assert_eq!(port.poll_frame(Instant::ZERO).unwrap().data[..], [1; 14]);
    assert_eq!(port.poll_frame(Instant::ZERO), None);
    assert_eq!(port.counters().rx_malformed, 2, "a frame too short, and a length too great");
    assert!(!port.is_connected());
    assert_eq!(first.read(&mut [0; 10]).unwrap(), 0, "it was sent away");

    // The next peer is accepted.
    let mut second = UnixStream::connect(&path).expect("somebody listens still");
    port.process(Instant::ZERO);
    port.receive_frame(Instant::ZERO, frame(5));
    port.process(Instant::ZERO);
    let mut received = [0; 64];
    second.read_exact(&mut received).unwrap();
    assert_eq!(received[..5], [0, 0, 0, 60, 5]);
    assert_eq!(UnixListener::bind(&path).unwrap_err().kind(), io::ErrorKind::AddrInUse);
}

#[test]
fn empty_datagram_is_malformed_and_no_end() {
    let (inside, outside) = UnixDatagram::pair().expect("sockets");
    let mut port = DgramPort::paired(inside).unwrap();
    for fill in 1..=2 {
        outside.send(&[]).unwrap();
        outside.send(&[fill; 60]).unwrap();
        assert_eq!(port.poll_frame(Instant::ZERO), Some(frame(fill)));
        assert_eq!(port.poll_frame(Instant::ZERO), None);
        assert_eq!(port.counters().rx_malformed, u64::from(fill));
    }
}

#[test]
fn port_is_woken_by_the_first_frame_and_by_room() {
    /// A waker that counts its wakes.
    #[derive(Default)]
    struct AttachWaker(Mutex<u32>);
    impl std::task::Wake for AttachWaker {
        fn wake(self: Arc<AttachWaker>) {
            *self.0.lock().unwrap() += 1;
        }
    }
    let count = Arc::new(AttachWaker::default());
    let waker = Waker::from(count.clone());
    let woken = || *count.0.lock().unwrap();

    let (inside, mut outside) = UnixStream::pair().expect("sockets");
    let mut port = StreamPort::on_unix(inside).unwrap();
    for round in 1..=100 {
        port.register_doorbell(&waker);
        assert_eq!(port.poll_frame(Instant::ZERO), None);
        outside.write_all(&[0, 0, 0, 14]).unwrap();
        outside.write_all(&[7; 14]).unwrap();
        // The doorbell comes from another thread, so the test must wait for it.
        until(|| woken() >= round);
        until(|| port.poll_frame(Instant::ZERO).is_some());
    }
    // The other direction: the socket is full first, and then has room.
    port.register_doorbell(&waker);
    let before = woken();
    for _ in 0..1000 {
        port.receive_frame(Instant::ZERO, Frame::from(vec![1; 9000]));
    }
    port.process(Instant::ZERO);
    assert!(port.counters().tx_frames < 1000, "not all of it fits the socket");
    let mut received = vec![0; 1000 * 9004];
    let mut at = 0;
    // One thread plays both ends, so neither end may block.
    outside.set_nonblocking(true).unwrap();
    until(|| {
        while let Ok(bytes) = outside.read(&mut received[at..]) {
            at += bytes;
            if bytes == 0 {
                break;
            }
        }
        if woken() > before {
            port.register_doorbell(&waker);
            port.process(Instant::ZERO);
        }
        at == received.len()
    });
    assert!(woken() > before);
    let counters: AttachCounters = port.counters();
    assert_eq!((counters.tx_frames, counters.tx_bytes), (1000, 9_000_000));
    assert!(received.chunks(9004).all(|frame| frame[..4] == [0, 0, 0x23, 0x28] && frame[4..] == [1; 9000]));
}
