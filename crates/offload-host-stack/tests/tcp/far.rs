//! A stream past 2 and 4 GiB, where positions no longer fit what they are told in, with losses at both edges.

use crate::pair::{ADDRESS, PORT, config};
use bytes::{Bytes, BytesMut};
use core::num::NonZeroU16;
use core::task::Waker;
use core::time::Duration;
use offload_api::rx::Checksums;
use offload_api::{
    Contexts, DeviceEvent, FlowKey, IpsecDevice, Keying, NetDevice, PathCaps, RecordSource, RssDevice, RxMeta,
    RxPacket, Sent, TxPacket, TxTag,
};
use offload_base::counters::CounterSet;
use offload_base::{Instant, Rng, Seed};
use offload_host_stack::{Stack, State, TcpConfig};
use std::collections::VecDeque;

/// Hands what it is given to its other end as it is, however long: as a device that cuts and one that joins would.
#[derive(Default)]
struct Short {
    out: VecDeque<RxPacket>,
    received: VecDeque<RxPacket>,
}

impl NetDevice for Short {
    fn path(&self, _: &FlowKey) -> PathCaps {
        PathCaps {
            epoch: 0,
            mtu: 1500,
            checksum: true,
            tso_max_bytes: 512 << 10,
            udp_segmentation: false,
            pacing: false,
        }
    }

    fn room(&self, _: &FlowKey) -> usize {
        64
    }

    fn transmit(&mut self, _: Instant, packet: TxPacket, _: &dyn RecordSource) -> Sent {
        let mut frame = BytesMut::with_capacity(packet.header.len() + packet.payload_len());
        frame.extend_from_slice(&packet.header);
        packet.fragments.iter().for_each(|fragment| frame.extend_from_slice(fragment));
        let meta = RxMeta { checksums: Checksums::Good, ..RxMeta::default() };
        let joined = packet.ask.mss.and_then(NonZeroU16::new);
        self.out.push_back(RxPacket { joined, ..RxPacket::new(frame, meta) });
        Sent::Posted
    }

    fn flush(&mut self, _: Instant) {}

    fn receive(&mut self, _: Instant) -> Option<RxPacket> {
        self.received.pop_front()
    }

    fn poll_event(&mut self) -> Option<DeviceEvent> {
        None
    }

    fn arm(&mut self, _: &Waker) -> bool {
        false
    }

    fn next_event(&self) -> Option<Instant> {
        None
    }

    fn handle_timeout(&mut self, _: Instant) {}

    fn room_paced(&self, flow: &FlowKey) -> usize {
        self.room(flow)
    }

    fn serves(&self, _: &FlowKey) -> bool {
        true
    }

    fn count(&self, _: &mut CounterSet) {}

    fn ipsec(&mut self) -> Option<&mut dyn IpsecDevice> {
        None
    }

    fn rss(&mut self) -> Option<&mut dyn RssDevice> {
        None
    }

    fn keying(&mut self) -> Option<&mut dyn Keying> {
        None
    }

    fn contexts(&mut self) -> Option<&mut dyn Contexts> {
        None
    }
}

/// What goes wrong on the way: near an edge, packets are lost and overtake each other.
fn carry(from: &mut Short, to: &mut Short, near_edge: bool, rng: &mut Rng) -> bool {
    let mut moved = false;
    for packet in from.out.drain(..) {
        moved = true;
        if near_edge && rng.chance(0.1) {
            continue;
        }
        match to.received.pop_back() {
            Some(before) if near_edge && rng.chance(0.2) => to.received.extend([packet, before]),
            before => to.received.extend(before.into_iter().chain([packet])),
        }
    }
    moved
}

#[test]
fn a_stream_goes_on_past_2_and_4_gib() {
    const BYTES: u64 = (4 << 30) + (32 << 20);
    const NEAR: u64 = 12 << 20;
    // Not a divisor of anything: a byte in a wrong place is another byte.
    let mut pattern = vec![0; 1_000_003];
    Seed(5).stream("data").fill(&mut pattern);
    let pattern = Bytes::from(pattern);
    // The sequence numbers wrap elsewhere than the positions do.
    let tcp = TcpConfig {
        initial_sequence: Some(0x9000_0000),
        initial_receive_buffer: 16 << 20,
        receive_buffer: 16 << 20,
        ..TcpConfig::default()
    };
    let mut stacks = [0, 1].map(|side| Stack::new(config(side, Seed(1), tcp.clone())));
    let mut devices = [Short::default(), Short::default()];
    let (mut rng, mut now) = (Seed(7).stream("wire"), Instant::ZERO);
    stacks[1].listen(PORT, 1).unwrap();
    let client = stacks[0].connect(now, None, (ADDRESS[1], PORT).into()).unwrap();
    let (mut server, mut sent, mut received) = (None, 0, 0);
    while received < BYTES {
        let near_edge = [1 << 31, 1 << 32].iter().any(|edge: &u64| received.abs_diff(*edge) < NEAR);
        while stacks[0].state(client) == State::Established && sent < BYTES && stacks[0].room(client) > 0 {
            let at = (sent % pattern.len() as u64) as usize;
            let bytes = (pattern.len() - at).min(300_000).min((BYTES - sent) as usize);
            stacks[0].send(client, pattern.slice(at..at + bytes), TxTag::PLAIN);
            sent += bytes as u64;
        }
        let mut busy = false;
        for (stack, device) in stacks.iter_mut().zip(&mut devices) {
            busy |= stack.poll(now, device);
        }
        let [left, right] = &mut devices;
        busy |= carry(left, right, near_edge, &mut rng) | carry(right, left, near_edge, &mut rng);
        server = server.or_else(|| stacks[1].accept(PORT));
        while let Some(segment) = server.and_then(|id| stacks[1].take(id)) {
            let mut data = &segment.data[..];
            assert_eq!(segment.seq - stacks[0].first_seq(client), received as u32 as i32, "at {received}");
            stacks[1].consume(server.unwrap(), data.len());
            while !data.is_empty() {
                let at = (received % pattern.len() as u64) as usize;
                let bytes = data.len().min(pattern.len() - at);
                assert!(data[..bytes] == pattern[at..at + bytes], "another byte after {received}");
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
        if !busy {
            let next = stacks.iter().filter_map(Stack::next_event).min();
            now = next.map_or(now, |next| now.max(next));
        }
    }
    assert_eq!(stacks[1].stats(server.unwrap()).bytes_received, BYTES);
    let counters = stacks[0].counters();
    assert!(
        counters.retransmitted_segments > 1000 && counters.sack_recoveries > 1,
        "the edges were crossed with losses"
    );
    // All of it is acknowledged, and the sender knows.
    stacks[0].finish(client);
    for _ in 0..10 {
        for (stack, device) in stacks.iter_mut().zip(&mut devices) {
            stack.poll(now, device);
        }
        let [left, right] = &mut devices;
        carry(left, right, false, &mut rng);
        carry(right, left, false, &mut rng);
        now += Duration::from_millis(50);
    }
    assert_eq!((stacks[0].state(client), stacks[0].stats(client).bytes_acknowledged), (State::FinWait2, BYTES));
    assert!(stacks[1].at_end(server.unwrap()));
}
