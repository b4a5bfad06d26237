//! Tests of data transfer over clean and faulty wires.

use crate::pair::{HostPair, PairConfig, TCP};
use crate::wire::WireConfig;
use bytes::BytesMut;
use core::num::NonZeroU16;
use core::time::Duration;
use offload_api::rx::Checksums;
use offload_api::{RxMeta, RxPacket};
use offload_base::{Instant, Seed, Seq};
use offload_host_stack::{CongestionAlgorithm, Ecn, FlowId, TcpConfig, TcpState};
use proptest::prelude::*;
use std::sync::{Arc, Mutex};

/// Returns `bytes` pseudorandom bytes.
pub(crate) fn pattern(seed: Seed, bytes: usize) -> Vec<u8> {
    let mut data = vec![0; bytes];
    seed.stream("data").fill(&mut data);
    data
}

/// Sends `data` from each side in writes of `write` bytes, closes, and checks the received data.
pub(crate) fn exchange(pair: &mut HostPair, ids: [FlowId; 2], data: [&[u8]; 2], write: [usize; 2]) -> Instant {
    let mut sent = [0, 0];
    let mut received = [Vec::new(), Vec::new()];
    let mut finished = [false, false];
    pair.run_until(|pair| {
        for side in 0..2 {
            let (id, stack) = (ids[side], &mut pair.stacks[side]);
            while sent[side] < data[side].len() && stack.room(id) > 0 {
                let bytes = write[side].min(data[side].len() - sent[side]).min(stack.room(id));
                stack.send_copy(id, &data[side][sent[side]..sent[side] + bytes]);
                sent[side] += bytes;
            }
            if sent[side] == data[side].len() && !core::mem::replace(&mut finished[side], true) {
                stack.finish(id);
            }
            let mut got = core::mem::take(&mut received[side]);
            pair.read(side, id, &mut got);
            received[side] = got;
            assert_eq!(pair.stacks[side].error(id), None, "seed {:?}", pair.seed);
        }
        (0..2).all(|side| pair.stacks[side].at_end(ids[side]))
    });
    assert!(received[0] == data[1] && received[1] == data[0], "wrong data arrived (seed {:?})", pair.seed);
    pair.now
}

#[test]
fn streams_in_both_directions_arrive_and_close() {
    let (mut pair, ids) = HostPair::connected(&PairConfig::default());
    // The device does not pace, so the rate has no effect.
    pair.stacks[0].set_pacing_rate(ids[0], core::num::NonZeroU64::new(1));
    let data = [pattern(Seed(1), 300_000), pattern(Seed(2), 200_000)];
    exchange(&mut pair, ids, [&data[0], &data[1]], [10_000, 100]);
    pair.run_for(Duration::from_secs(1));
    for (stack, id) in pair.stacks.iter_mut().zip(ids) {
        assert_eq!(stack.counters().retransmitted_segments, 0);
        assert!(matches!(stack.state(id), TcpState::TimeWait | TcpState::Closed));
        stack.detach(pair.now, id);
    }
    pair.run_for(Duration::from_secs(61));
    assert_eq!(pair.stacks.each_ref().map(|stack| stack.connections()), [0, 0]);
}

/// A device with a large segmentation limit gets longer packets, and the frames on the wire are equal.
#[test]
fn packets_may_exceed_the_ip_length_field() {
    let frames = |tso: u32| {
        let setup = PairConfig {
            tso,
            wire: WireConfig { delay: Duration::from_millis(1), ..WireConfig::default() },
            ..PairConfig::default()
        };
        let (mut pair, ids) = HostPair::connected(&setup);
        let log = Arc::new(Mutex::new(Vec::new()));
        let seen = log.clone();
        pair.wire.filter = Some(Box::new(move |from, frame| {
            seen.lock().unwrap().push((from, frame.to_vec()));
            false
        }));
        let data = pattern(Seed(1), 4 << 20);
        exchange(&mut pair, ids, [&data, &[]], [1 << 20, 1]);
        let longest = pair.nics[0].port().longest;
        // Only the last segment of a packet has PSH, and the packets differ here.
        let plain = |mut frame: Vec<u8>| {
            frame[TCP + 13] &= !0x08;
            frame[TCP + 16..TCP + 18].fill(0);
            frame
        };
        let sent = core::mem::take(&mut *log.lock().unwrap()).into_iter().filter(|(from, _)| *from == 0);
        (sent.map(|(_, frame)| plain(frame)).collect::<Vec<_>>(), longest)
    };
    let ((usual, of_usual), (larger, of_larger)) = (frames(65_536), frames(256 << 10));
    assert!((60_000..65_536).contains(&of_usual) && (250_000..=256 << 10).contains(&of_larger));
    assert!(usual == larger);
}

/// The lost segments come from the far ends of packets longer than the IP length field can express. A second stream
/// runs over a faulty wire.
#[test]
fn segments_of_long_packets_are_retransmitted() {
    for seed in 0..8 {
        let delay = Duration::from_millis(1);
        let bad =
            WireConfig { loss: 0.01, reorder: 0.02, duplicate: 0.01, corrupt: 0.01, delay, ..WireConfig::default() };
        for wire in [WireConfig { delay, ..WireConfig::default() }, bad] {
            let is_bad = wire.loss > 0.0;
            let setup = PairConfig { seed: Seed(seed), wire, tso: 512 << 10, ..PairConfig::default() };
            let (mut pair, ids) = HostPair::connected(&setup);
            let lost = Arc::new(Mutex::new(0));
            let (nic, losing) = (pair.nics[0].clone(), lost.clone());
            let mut segments = 0;
            pair.wire.filter = Some(Box::new(move |from, frame| {
                let seq = Seq(u32::from_be_bytes(frame[TCP + 4..TCP + 8].try_into().unwrap()));
                // Segments beyond 64 KiB into a packet have sequence numbers that its IP length field could not cover.
                let is_far_in = |(start, bytes): &(Seq, u32)| (65_536..*bytes).contains(&seq.distance_from(*start));
                let is_counted = from == 0 && nic.port().long.iter().any(is_far_in);
                segments += u64::from(is_counted);
                let loses = !is_bad && is_counted && segments % 101 == seed + 1;
                *losing.lock().unwrap() += u64::from(loses);
                loses
            }));
            let data = [pattern(Seed(1), 3 << 20), pattern(Seed(2), 1 << 20)];
            exchange(&mut pair, ids, [&data[0], &data[1]], [1 << 20, 1 << 19]);
            if !is_bad {
                let (lost, again) = (*lost.lock().unwrap(), pair.stacks[0].counters().retransmitted_segments);
                assert!(lost >= 1 && again >= lost, "seed {seed}: {lost} lost, {again} sent again");
            }
        }
    }
}

/// A joined packet may exceed its header's length field. A frame from the wire may not.
#[test]
fn joined_packet_may_exceed_the_ip_length_field() {
    let data = pattern(Seed(1), 100_000);
    for joined in [NonZeroU16::new(1448), None] {
        let (mut pair, ids) = HostPair::connected(&PairConfig::default());
        let log = Arc::new(Mutex::new(Vec::new()));
        let seen = log.clone();
        // The wire carries nothing; the test delivers the packet itself.
        pair.wire.filter = Some(Box::new(move |_, frame| {
            seen.lock().unwrap().push(frame.to_vec());
            true
        }));
        pair.stacks[0].send_copy(ids[0], &data[..1000]);
        pair.run_now();
        let first = log.lock().unwrap().pop().unwrap();
        let mut frame = BytesMut::from(&first[..first.len() - 1000]);
        frame.extend_from_slice(&data);
        frame[if crate::OVER_SIX { 18 } else { 16 }..][..2].fill(0);
        let meta = RxMeta { checksums: Checksums::Good, ..RxMeta::default() };
        let packet = RxPacket { joined, ..RxPacket::new(frame, meta) };
        pair.nics[1].port().received.push_back(packet);
        pair.run_now();
        let mut received = Vec::new();
        pair.read(1, ids[1], &mut received);
        let counters = pair.stacks[1].counters();
        // In IPv6, the frame is an empty packet, without a TCP header.
        let errors = if crate::OVER_SIX { counters.in_errors } else { counters.ip_in_header_errors };
        // As much as the window had room for.
        assert_eq!((received.len() > 60_000, errors), (joined.is_some(), u64::from(joined.is_none())));
        assert!(data.starts_with(&received));
    }
}

#[test]
fn stream_survives_a_lossy_wire() {
    for seed in 0..20 {
        let wire = WireConfig { loss: 0.05, reorder: 0.05, duplicate: 0.02, corrupt: 0.01, ..WireConfig::default() };
        let setup = PairConfig { seed: Seed(seed), wire, ..PairConfig::default() };
        let (mut pair, ids) = HostPair::connected(&setup);
        let data = [pattern(Seed(1), 100_000), pattern(Seed(2), 100_000)];
        exchange(&mut pair, ids, [&data[0], &data[1]], [1000, 3000]);
    }
}

#[test]
fn equal_seeds_give_equal_frames() {
    let frames = |seed: u64| {
        let wire = WireConfig { loss: 0.02, reorder: 0.05, duplicate: 0.01, corrupt: 0.01, ..WireConfig::default() };
        let (mut pair, ids) = HostPair::connected(&PairConfig { seed: Seed(seed), wire, ..PairConfig::default() });
        let log = Arc::new(Mutex::new(Vec::new()));
        let seen = log.clone();
        pair.wire.filter = Some(Box::new(move |from, frame| {
            seen.lock().unwrap().push((from, frame.to_vec()));
            false
        }));
        let data = pattern(Seed(1), 200_000);
        exchange(&mut pair, ids, [&data, &data], [1000, 3000]);
        let frames = core::mem::take(&mut *log.lock().unwrap());
        (frames, *pair.stacks[0].counters(), *pair.stacks[1].counters())
    };
    assert!(frames(1) == frames(1));
    assert!(frames(1) != frames(2));
}

prop_compose! {
    pub(crate) fn any_wire()(
        loss in prop_oneof![Just(0.0), 0.0..0.1],
        reorder in prop_oneof![Just(0.0), 0.0..0.3],
        duplicate in prop_oneof![Just(0.0), 0.0..0.1],
        corrupt in prop_oneof![Just(0.0), 0.0..0.05],
        mark in prop_oneof![Just(0.0), 0.0..0.1],
        held in 1u64..2000,
        delay in 0u64..5000,
        rate in prop_oneof![Just(0), Just(10_000_000), Just(1_000_000_000u64)],
    ) -> WireConfig {
        WireConfig {
            loss, reorder, duplicate, corrupt, mark, rate,
            held: Duration::from_micros(held),
            delay: Duration::from_micros(delay),
            queue: Duration::from_millis(20),
        }
    }
}

prop_compose! {
    fn any_tcp()(
        sack: bool, timestamps: bool, reno: bool, ecn in prop_oneof![Just(Ecn::Off), Just(Ecn::Accept), Just(Ecn::Request)], window_scaling: bool, nodelay: bool,
        receive_buffer in prop_oneof![Just(6 << 20), 1000usize..200_000],
        send_buffer in prop_oneof![Just(4 << 20), 1usize..100_000],
        initial_sequence in prop_oneof![Just(None), any::<u32>().prop_map(Some), (u32::MAX - 50_000..=u32::MAX).prop_map(Some)],
    ) -> TcpConfig {
        let congestion = if reno { CongestionAlgorithm::NewReno } else { CongestionAlgorithm::Cubic };
        TcpConfig { sack, timestamps, window_scaling, nodelay, receive_buffer, send_buffer, initial_sequence, congestion, ecn, ..TcpConfig::default() }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 96, ..ProptestConfig::default() })]

    #[test]
    fn writes_of_any_size_arrive_over_any_wire(
        seed: u64,
        wire in any_wire(),
        mtu in prop_oneof![Just(1500u16), 200u16..9000],
        tso in prop_oneof![Just(0u32), Just(65_536), 3000u32..65_536, 65_537u32..512 << 10],
        checksum: bool,
        client in any_tcp(),
        server in any_tcp(),
        sizes in (0usize..60_000, 0usize..60_000),
        writes in (1usize..20_000, 1usize..5_000),
    ) {
        // The worst of these wires may lose six SYN-ACKs in a row. Then the client would wait for ever.
        let server = TcpConfig { syn_ack_retries: 15, ..server };
        let setup = PairConfig { seed: Seed(seed), wire, mtu, tso, checksum, tcp: [client, server], acquainted: true };
        let (mut pair, ids) = HostPair::connected(&setup);
        let data = [pattern(Seed(seed), sizes.0), pattern(Seed(seed + 1), sizes.1)];
        exchange(&mut pair, ids, [&data[0], &data[1]], [writes.0, writes.1]);
    }
}
