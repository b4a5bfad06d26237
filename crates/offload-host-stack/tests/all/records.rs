//! Tests of streams with units that the device encrypts. Through loss, device resets and closed applications, the peer
//! gets exactly the encrypted bytes.

use crate::nic::{MaskSealer, mask};
use crate::pair::{HostPair, PairConfig};
use crate::transfer::pattern;
use crate::wire::WireConfig;
use bytes::Bytes;
use core::time::Duration;
use offload_api::{DeviceEvent, Handle, Layer, SealError, Sealer, TxTag, Unit, UnitTag};
use offload_base::{Rng, Seed};
use offload_host_stack::{ConnectionError, FlowId, TcpState};
use proptest::prelude::*;

/// Queues units on a connection, and records the bytes that the peer should get.
struct UnitQueue {
    rng: Rng,
    context: Option<Handle>,
    number: u64,
    expected: Vec<u8>,
}

impl UnitQueue {
    fn new(seed: Seed) -> UnitQueue {
        UnitQueue { rng: seed.stream("records"), context: None, number: 0, expected: Vec::new() }
    }

    /// Queues bytes without a unit, like a handshake's.
    fn queue_plain(&mut self, pair: &mut HostPair, id: FlowId, bytes: usize) {
        let data = pattern(Seed(self.rng.next_u64()), bytes);
        self.expected.extend_from_slice(&data);
        pair.stacks[0].send(id, data.into(), TxTag::PLAIN);
    }

    /// Queues a unit of `bytes` bytes in a few chunks, for the device if there is a context.
    fn queue_unit(&mut self, pair: &mut HostPair, id: FlowId, bytes: usize) {
        let plain = Bytes::from(pattern(Seed(self.rng.next_u64()), bytes));
        let (number, len) = (self.number, bytes as u32);
        let mut unit = Unit { layer: Layer::FIRST, number, offset: 0, start: Default::default(), len, touched_from: 0 };
        self.number += 1;
        let mut at = 0;
        while at < bytes {
            let length = 1 + self.rng.below((bytes - at) as u64) as usize;
            let tag = UnitTag { number, at: at as u32, len, touched_from: 0 };
            let tag = self.context.map_or(TxTag::done(tag), |context| TxTag::device(context, tag));
            let mut data = plain.slice(at..at + length);
            if self.context.is_none() && at > 0 {
                // The application queues a unit that it has sealed itself.
                data = masked(&data, &unit, at);
            } else if self.context.is_none() {
                data = masked(&data, &unit, 0);
            }
            let seq = pair.stacks[0].send(id, data, tag);
            if at == 0 {
                unit.start = seq;
            }
            at += length;
        }
        self.expected.extend_from_slice(&masked(&plain, &unit, 0));
    }
}

fn masked(data: &[u8], unit: &Unit, at: usize) -> Bytes {
    data.iter().zip(at as u32..).map(|(byte, place)| byte ^ mask(*unit, unit.start + place)).collect()
}

/// Reads on side 1 until the end, and checks the bytes.
fn receive_all(pair: &mut HostPair, id: FlowId, expected: &[u8]) {
    let mut received = Vec::new();
    pair.run_until(|pair| {
        pair.read(1, id, &mut received);
        assert_eq!(pair.stacks[1].error(id), None, "after {} bytes (seed {:?})", received.len(), pair.seed);
        pair.stacks[1].at_end(id)
    });
    let wrong = received.iter().zip(expected).position(|(got, wanted)| got != wanted);
    assert_eq!((received.len(), wrong), (expected.len(), None), "seed {:?}", pair.seed);
}

#[test]
fn device_encrypts_all_units_without_software() {
    let (mut pair, ids) = HostPair::connected(&PairConfig::default());
    let mut records = UnitQueue::new(Seed(1));
    records.queue_plain(&mut pair, ids[0], 1000);
    records.context = Some(pair.nics[0].port().add_context());
    pair.stacks[0].install(ids[0], Layer::FIRST, Box::new(MaskSealer));
    for _ in 0..50 {
        records.queue_unit(&mut pair, ids[0], 16_406);
    }
    pair.stacks[0].finish(ids[0]);
    receive_all(&mut pair, ids[1], &records.expected);
    assert_eq!(pair.stacks[0].counters().sealed_units, 0);
    assert!(pair.nics[0].port().encrypted > 0);
}

#[test]
fn software_seals_after_a_device_reset() {
    let wire = WireConfig { loss: 0.02, ..WireConfig::default() };
    let (mut pair, ids) = HostPair::connected(&PairConfig { wire, ..PairConfig::default() });
    let mut records = UnitQueue::new(Seed(2));
    records.context = Some(pair.nics[0].port().add_context());
    pair.stacks[0].mark_controlled(ids[0]);
    pair.stacks[0].install(ids[0], Layer::FIRST, Box::new(MaskSealer));
    for _ in 0..100 {
        records.queue_unit(&mut pair, ids[0], 16_406);
    }
    pair.stacks[0].finish(ids[0]);
    pair.run_for(Duration::from_millis(2));
    pair.nics[0].port().reset();
    pair.run_for(Duration::from_micros(1));
    assert_eq!(pair.stacks[0].device_event(ids[0]), Some(DeviceEvent::Reset));
    assert_eq!(pair.stacks[0].device_event(ids[0]), None);
    receive_all(&mut pair, ids[1], &records.expected);
    assert!(pair.stacks[0].counters().sealed_units > 0);
}

#[test]
fn missing_sealer_resets_the_connection() {
    let (mut pair, ids) = HostPair::connected(&PairConfig::default());
    let mut records = UnitQueue::new(Seed(3));
    records.queue_plain(&mut pair, ids[0], 10);
    let plain = records.expected.len();
    records.context = Some(pair.nics[0].port().add_context());
    records.queue_unit(&mut pair, ids[0], 1000);
    pair.nics[0].port().reset();
    let mut received = Vec::new();
    pair.run_until(|pair| {
        pair.read(1, ids[1], &mut received);
        pair.stacks[1].error(ids[1]).is_some()
    });
    assert_eq!(received, records.expected[..plain]);
    assert_eq!(pair.stacks[0].error(ids[0]), Some(ConnectionError::Unsealable));
    assert_eq!(pair.stacks[1].error(ids[1]), Some(ConnectionError::Reset));
}

/// A sealer that returns a wrong length.
struct ShortSealer;

impl Sealer for ShortSealer {
    fn seal(&mut self, _: Unit, _: &[Bytes]) -> Result<Bytes, SealError> {
        Ok(Bytes::from_static(b"short"))
    }
}

#[test]
fn sealer_with_a_wrong_length_ends_the_connection() {
    let (mut pair, ids) = HostPair::connected(&PairConfig::default());
    let mut records = UnitQueue::new(Seed(4));
    pair.stacks[0].install(ids[0], Layer::FIRST, Box::new(ShortSealer));
    records.context = Some(Handle { index: 9, generation: 9 });
    records.queue_unit(&mut pair, ids[0], 1000);
    pair.run_for(Duration::from_millis(1));
    assert_eq!(pair.stacks[0].error(ids[0]), Some(ConnectionError::Unsealable));
    assert_eq!(pair.stacks[0].counters().seal_failures, 1);
}

#[test]
fn software_seals_a_unit_after_its_last_byte() {
    let (mut pair, ids) = HostPair::connected(&PairConfig::default());
    pair.stacks[0].install(ids[0], Layer::FIRST, Box::new(MaskSealer));
    // The device does not know this context and asks for software.
    let stale = Handle { index: 9, generation: 9 };
    let tag = |at: u32| TxTag::device(stale, UnitTag { number: 5, at, len: 300, touched_from: 0 });
    let start = pair.stacks[0].send(ids[0], vec![1; 100].into(), tag(0));
    pair.stacks[0].push(ids[0]);
    pair.run_for(Duration::from_secs(5));
    assert_eq!(pair.stacks[1].take(ids[1]).map(|segment| segment.data.len()), None);
    pair.stacks[0].send(ids[0], vec![1; 200].into(), tag(100));
    pair.stacks[0].finish(ids[0]);
    let unit = Unit { layer: Layer::FIRST, number: 5, offset: 0, start, len: 300, touched_from: 0 };
    receive_all(&mut pair, ids[1], &masked(&[1; 300], &unit, 0));
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 128, ..ProptestConfig::default() })]

    #[test]
    fn peer_gets_sealed_bytes_despite_faults(
        seed: u64,
        loss in prop_oneof![Just(0.0), 0.0..0.08],
        reorder in prop_oneof![Just(0.0), 0.0..0.2],
        duplicate in prop_oneof![Just(0.0), 0.0..0.05],
        tso in prop_oneof![Just(0u32), Just(65_536)],
        ring in prop_oneof![Just(usize::MAX), 1usize..20],
        sizes in proptest::collection::vec(1usize..17_000, 1..40),
        plain in 0usize..2000,
        reset_after in proptest::option::of(0u64..5_000),
        software_from in 0usize..60,
        dropped in any::<bool>(),
    ) {
        let wire = WireConfig { loss, reorder, duplicate, rate: 1_000_000_000, queue: Duration::from_millis(20), ..WireConfig::default() };
        let setup = PairConfig { seed: Seed(seed), wire, tso, ..PairConfig::default() };
        let (mut pair, ids) = HostPair::connected(&setup);
        pair.nics[0].port().ring = ring;
        let mut records = UnitQueue::new(Seed(seed));
        if plain > 0 {
            records.queue_plain(&mut pair, ids[0], plain);
        }
        pair.stacks[0].install(ids[0], Layer::FIRST, Box::new(MaskSealer));
        for (index, bytes) in sizes.iter().enumerate() {
            if index == software_from {
                records.context = None;
            } else if index % 7 == 0 && index < software_from {
                records.context = Some(pair.nics[0].port().add_context());
            }
            records.queue_unit(&mut pair, ids[0], *bytes);
        }
        pair.stacks[0].finish(ids[0]);
        if dropped {
            pair.stacks[0].detach(pair.now, ids[0]);
        }
        if let Some(micros) = reset_after {
            pair.run_for(Duration::from_micros(micros));
            pair.nics[0].port().reset();
        }
        receive_all(&mut pair, ids[1], &records.expected);
        if dropped {
            pair.stacks[1].finish(ids[1]);
            pair.stacks[1].detach(pair.now, ids[1]);
            pair.run_for(Duration::from_secs(200));
            prop_assert_eq!(pair.stacks.each_ref().map(|stack| stack.connections()), [0, 0]);
        } else {
            // The acknowledgment of the FIN may be lost several times.
            pair.run_until(|pair| pair.stacks[0].state(ids[0]) == TcpState::FinWait2);
        }
    }
}
