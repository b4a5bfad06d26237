//! Memory that a peer can consume by sending single bytes out of order. A test program of its own, because it measures
//! the memory of the process.

#![allow(clippy::print_stdout, clippy::print_stderr, reason = "tests report skips and measurements")]

#[path = "../all/nic.rs"]
#[expect(dead_code, reason = "other tests use the rest")]
mod nic;
#[path = "../all/packets.rs"]
#[expect(dead_code, reason = "other tests use the rest")]
mod packets;
#[path = "../all/pair.rs"]
#[expect(dead_code, reason = "other tests use the rest")]
mod pair;
#[path = "../all/wire.rs"]
mod wire;

use offload_host_stack::TcpConfig;
use packets::{across, answers};
use pair::{ADDRESS, HostPair, PORT, PairConfig, TCP};
use smoltcp::wire::{IpProtocol, TcpPacket, TcpSeqNumber};

const OVER_SIX: bool = false;
const BUFFER: usize = 16 << 20;
/// Many more than the buffer can hold.
const CRUMBS: u32 = 150_000;

/// Returns the resident memory of the process in bytes.
fn resident_bytes() -> usize {
    let status = std::fs::read_to_string("/proc/self/statm").expect("Linux must provide /proc/self/statm");
    let pages: usize =
        status.split(' ').nth(1).and_then(|pages| pages.parse().ok()).expect("statm must have a second field");
    pages * 4096
}

#[test]
fn out_of_order_bytes_stay_within_the_buffer() {
    let tcp =
        TcpConfig { timestamps: false, receive_buffer: BUFFER, initial_receive_buffer: BUFFER, ..TcpConfig::default() };
    let (mut pair, ids) = HostPair::connected(&PairConfig { tcp: [tcp.clone(), tcp], ..PairConfig::default() });
    let mut frame = across(IpProtocol::Tcp, &[0; 21]);
    let first = pair.stacks[0].first_seq(ids[0]);
    let ack = pair.stacks[1].first_seq(ids[1]);
    let port = pair.stacks[0].flow(ids[0]).local.port();
    let mut send = |pair: &mut HostPair, offset: u32| {
        let mut tcp = TcpPacket::new_unchecked(&mut frame[TCP..]);
        tcp.set_header_len(20);
        tcp.set_src_port(port);
        tcp.set_dst_port(PORT);
        tcp.set_seq_number(TcpSeqNumber((first + offset).0 as i32));
        tcp.set_ack_number(TcpSeqNumber(ack.0 as i32));
        tcp.set_ack(true);
        tcp.set_window_len(1000);
        tcp.fill_checksum(&ADDRESS[0].into(), &ADDRESS[1].into());
        answers(pair, &frame);
    };
    send(&mut pair, 1);
    let empty = resident_bytes();
    // Every second byte, so that no byte joins another, and the next in-order byte is missing.
    (1..CRUMBS).for_each(|number| send(&mut pair, 1 + 2 * number));
    let counters = pair.stacks[1].counters();
    assert!(counters.out_of_order_queued > 10_000 && counters.out_of_order_drops > 10_000, "the buffer must be full");
    let grown = resident_bytes() - empty;
    println!("{} bytes a crumb", grown / counters.out_of_order_queued as usize);
    assert!(grown < BUFFER + BUFFER / 8, "{grown} bytes");
}
