//! Test of a stream beyond 2 and 4 GiB, where 32-bit positions wrap, with losses at both boundaries.

use crate::pair::{ADDRESS, PORT, config};
use bytes::{Bytes, BytesMut};
use core::num::NonZeroU16;
use core::time::Duration;
use offload_api::mock::MockDevice;
use offload_api::rx::Checksums;
use offload_api::{PathCaps, RxMeta, RxPacket, TxPacket, TxTag};
use offload_base::{Instant, Rng, Seed};
use offload_host_stack::{Stack, TcpConfig, TcpState};

/// Returns a device that takes long packets.
fn device() -> MockDevice {
    MockDevice::plain(PathCaps {
        epoch: 0,
        mtu: 1500,
        checksum: true,
        tso_max_bytes: 512 << 10,
        udp_segmentation: false,
        pacing: false,
    })
}

/// Returns the packet as the peer receives it: as if one device had cut it and another had joined it again.
fn joined(packet: &TxPacket) -> RxPacket {
    let mut frame = BytesMut::with_capacity(packet.header.len() + packet.payload_len());
    frame.extend_from_slice(&packet.header);
    packet.fragments.iter().for_each(|fragment| frame.extend_from_slice(fragment));
    let meta = RxMeta { checksums: Checksums::Good, ..RxMeta::default() };
    let joined = packet.ask.mss.and_then(NonZeroU16::new);
    RxPacket { joined, ..RxPacket::new(frame, meta) }
}

/// Carries packets. Near a boundary, packets are lost and reordered. Returns whether any packet was sent.
fn carry_packets(from: &MockDevice, to: &MockDevice, near_edge: bool, rng: &mut Rng) -> bool {
    let sent = from.take_sent();
    let mut arriving: Vec<RxPacket> = Vec::new();
    for packet in sent.iter().map(joined) {
        if near_edge && rng.chance(0.1) {
            continue;
        }
        match arriving.pop() {
            Some(before) if near_edge && rng.chance(0.2) => arriving.extend([packet, before]),
            before => arriving.extend(before.into_iter().chain([packet])),
        }
    }
    arriving.into_iter().for_each(|packet| to.receives(packet));
    !sent.is_empty()
}

#[test]
fn stream_continues_beyond_2_and_4_gib() {
    const BYTES: u64 = (4 << 30) + (32 << 20);
    const NEAR: u64 = 12 << 20;
    // A prime length, so that misplaced bytes differ.
    let mut pattern = vec![0; 1_000_003];
    Seed(5).stream("data").fill(&mut pattern);
    let pattern = Bytes::from(pattern);
    // The sequence numbers wrap at other places than the positions.
    let tcp = TcpConfig {
        initial_sequence: Some(0x9000_0000),
        initial_receive_buffer: 16 << 20,
        receive_buffer: 16 << 20,
        ..TcpConfig::default()
    };
    let mut stacks = [0, 1].map(|side| Stack::new(config(side, Seed(1), tcp.clone())));
    let mut devices = [device(), device()];
    let (mut rng, mut now) = (Seed(7).stream("wire"), Instant::ZERO);
    stacks[1].listen(PORT, 1).unwrap();
    let client = stacks[0].connect(now, None, (ADDRESS[1], PORT).into()).unwrap();
    let (mut server, mut sent, mut received) = (None, 0, 0);
    while received < BYTES {
        let near_edge = [1 << 31, 1 << 32].iter().any(|edge: &u64| received.abs_diff(*edge) < NEAR);
        while stacks[0].state(client) == TcpState::Established && sent < BYTES && stacks[0].room(client) > 0 {
            let at = (sent % pattern.len() as u64) as usize;
            let bytes = (pattern.len() - at).min(300_000).min((BYTES - sent) as usize);
            stacks[0].send(client, pattern.slice(at..at + bytes), TxTag::PLAIN);
            sent += bytes as u64;
        }
        let mut busy = false;
        for (stack, device) in stacks.iter_mut().zip(&mut devices) {
            busy |= stack.poll(now, device);
        }
        let [left, right] = &devices;
        busy |= carry_packets(left, right, near_edge, &mut rng) | carry_packets(right, left, near_edge, &mut rng);
        server = server.or_else(|| stacks[1].accept(PORT));
        while let Some(segment) = server.and_then(|id| stacks[1].take(id)) {
            let mut data = &segment.data[..];
            assert_eq!(segment.seq - stacks[0].first_seq(client), received as u32 as i32, "at {received}");
            stacks[1].consume(server.unwrap(), data.len());
            while !data.is_empty() {
                let at = (received % pattern.len() as u64) as usize;
                let bytes = data.len().min(pattern.len() - at);
                assert!(data[..bytes] == pattern[at..at + bytes], "wrong byte after {received}");
                data = &data[bytes..];
                received += bytes as u64;
            }
        }
        assert!(
            [(0, Some(client)), (1, server)]
                .iter()
                .all(|(side, id)| id.is_none_or(|id| stacks[*side].error(id).is_none()))
        );
        now += Duration::from_micros(10);
        // Nothing is in flight, so the clock may jump to the next timer.
        if !busy {
            let next = stacks.iter().filter_map(Stack::next_event).min();
            now = next.map_or(now, |next| now.max(next));
        }
    }
    assert_eq!(stacks[1].stats(server.unwrap()).bytes_received, BYTES);
    let counters = stacks[0].counters();
    assert!(
        counters.retransmitted_segments > 1000 && counters.sack_recoveries > 1,
        "the boundaries must be crossed with losses"
    );
    // The sender learns that all data are acknowledged.
    stacks[0].finish(client);
    for _ in 0..10 {
        for (stack, device) in stacks.iter_mut().zip(&mut devices) {
            stack.poll(now, device);
        }
        let [left, right] = &devices;
        carry_packets(left, right, false, &mut rng);
        carry_packets(right, left, false, &mut rng);
        now += Duration::from_millis(50);
    }
    assert_eq!((stacks[0].state(client), stacks[0].stats(client).bytes_acknowledged), (TcpState::FinWait2, BYTES));
    assert!(stacks[1].at_end(server.unwrap()));
}
