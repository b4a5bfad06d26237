//! Arbitrary packets from the wire, in any order and at any time: no panic, no endless work, bounded memory.
//!
//! Input: records of one control byte, two bytes of length and time, and a body. The control byte selects the meaning
//! of the body: a frame, the part after the Ethernet header, or a TCP segment of an open connection.

use bytes::BytesMut;
use core::time::Duration;
use offload_api::rx::Checksums;
use offload_api::{RxMeta, RxPacket};
use offload_base::{Instant, Seed};
use offload_host_stack::{Config, Stack};

const ETHERNET: [u8; 14] = [2, 0, 0, 0, 0, 1, 2, 0, 0, 0, 0, 2, 8, 0];

/// Returns a TCP/IPv4 packet from 10.0.0.2 with sequence numbers near the expected ones.
fn segment(ports: [u8; 4], near: u32, body: &[u8]) -> Vec<u8> {
    let mut tcp = vec![0; 20];
    tcp[..4].copy_from_slice(&ports);
    let (head, rest) = body.split_at(body.len().min(8));
    let at = |index: usize| u32::from(head.get(index).copied().unwrap_or(0));
    tcp[4..8].copy_from_slice(&(5000 + (at(0) << 8 | at(1))).to_be_bytes());
    tcp[8..12].copy_from_slice(&near.wrapping_add(at(2) << 8 | at(3)).to_be_bytes());
    tcp[12] = ((5 + (at(4) % 11)) << 4) as u8;
    tcp[13] = at(5) as u8;
    tcp[14..16].copy_from_slice(&[at(6) as u8, at(7) as u8]);
    tcp.extend_from_slice(rest);
    let mut packet = ETHERNET.to_vec();
    packet.extend_from_slice(&[0x45, 0]);
    packet.extend_from_slice(&((20 + tcp.len()) as u16).to_be_bytes());
    packet.extend_from_slice(&[0, 0, 0, 0, 64, 6, 0, 0, 10, 0, 0, 2, 10, 0, 0, 1]);
    packet.extend_from_slice(&tcp);
    packet
}

/// Runs one input.
pub fn run(input: &[u8]) {
    let mut config = Config::new([10, 0, 0, 1].into(), [2, 0, 0, 0, 0, 1], Seed(1))
        .with_neighbour([10, 0, 0, 2].into(), [2, 0, 0, 0, 0, 2]);
    config.tcp.initial_sequence = Some(1000);
    // A low limit, so that the bound is reached.
    config.max_connections = 64;
    let (mut stack, mut device, mut now) = (Stack::new(config), crate::device(usize::MAX), Instant::ZERO);
    stack.listen(443, 8).unwrap();
    let id = stack.connect(now, Some(5000), "10.0.0.2:80".parse().unwrap()).unwrap();
    stack.send_copy(id, &[1; 20_000]);
    let (mut rest, mut attached) = (input, true);
    while let [control, length, wait, body @ ..] = rest {
        let (body, after) = body.split_at(body.len().min(usize::from(*length)));
        rest = after;
        let frame = match control % 8 {
            0 => body.to_vec(),
            1 => [&ETHERNET[..], body].concat(),
            2 => segment([1, 1, 1, 187], 1000, body),
            3 if attached => {
                stack.detach(now, id);
                attached = false;
                continue;
            }
            4 if attached => {
                while let Some(segment) = stack.take(id) {
                    stack.consume(id, segment.data.len());
                }
                continue;
            }
            _ => segment([0, 80, 19, 136], 1000, body),
        };
        // The checksums count as good, so that arbitrary packets get past the first check.
        let meta = RxMeta { checksums: Checksums::Good, ..RxMeta::default() };
        stack.receive(now, RxPacket::new(BytesMut::from(&frame[..]), meta), &mut device);
        let mut rounds = 0;
        while stack.poll(now, &mut device) {
            rounds += 1;
            assert!(rounds < 1000, "the stack does not come to rest");
        }
        now += Duration::from_millis(u64::from(*wait) * u64::from(*control >> 4));
        device.take_sent();
        assert!(stack.connections() <= 64);
    }
}
