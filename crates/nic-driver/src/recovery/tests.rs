//! The driver's descriptors in front of a packet that is not its context's next packet. The ring itself is examined,
//! because a device that works strictly in order would not notice a missing fence.

use super::*;
use nic_engines::EngineConfigs;
use nic_rings::DeviceRings;
use nic_rings::packet::SendDescriptor;
use offload_api::{
    Direction, EngineInfo, FlowKey, NetDevice, TlsKey, TlsSuite, TlsVersion, TxAsk, TypedContexts, UnitTag, engines,
};
use offload_base::counters::CounterSet;
use offload_base::{Instant, Seq};

/// Consecutive units of [`RECORD`] bytes, which the engine changes from this byte on.
struct RecordUnits(u32);

impl RecordSource for RecordUnits {
    fn unit_at(&self, layer: Layer, offset: u64) -> Lookup {
        Lookup::In(unit(layer, offset, RECORD, self.0))
    }

    fn pieces(&self, _: Layer, from: u64, to: u64, sink: &mut dyn FnMut(QueuedBytes)) {
        sink(QueuedBytes { bytes: vec![0; (to - from) as usize].into(), tag: TxTag::PLAIN, offsets: [from, 0] });
    }
}

/// Several records that contain PDUs of [`PDU`] bytes with digests by a context. The records themselves have no
/// context.
struct Stacked(Handle);

impl RecordSource for Stacked {
    fn unit_at(&self, layer: Layer, offset: u64) -> Lookup {
        Lookup::In(match layer {
            Layer::FIRST => unit(layer, offset, RECORD, 0),
            _ => unit(layer, offset, PDU, PDU - 4),
        })
    }

    fn pieces(&self, _: Layer, from: u64, to: u64, sink: &mut dyn FnMut(QueuedBytes)) {
        let tag = |len: u32, touched_from| {
            let at = (from % u64::from(len)) as u32;
            UnitTag { number: from / u64::from(len), at, len: len + (to - from) as u32, touched_from }
        };
        let tag = TxTag::device(self.0, tag(PDU, PDU - 4)).within(None, tag(RECORD, 0)).unwrap();
        sink(QueuedBytes { bytes: vec![0; (to - from) as usize].into(), tag, offsets: [from, from] });
    }
}

fn unit(layer: Layer, offset: u64, len: u32, touched_from: u32) -> Unit {
    let number = offset / u64::from(len);
    let offset = number * u64::from(len);
    Unit { layer, number, offset, start: Seq(offset as u32), len, touched_from }
}

struct RecoveryRig {
    driver: Driver,
    device: DeviceRings,
}

impl RecoveryRig {
    fn new(resync: TransmitResync) -> RecoveryRig {
        let (device, driver) = crate::tests::driver_with(NicConfig::default(), |engines| {
            engines.iter_mut().for_each(|engine| engine.transmit_resync = Some(resync));
        });
        RecoveryRig { driver, device }
    }

    fn tls(&mut self) -> Handle {
        let key = TlsKey::new(TlsVersion::Tls13, TlsSuite::Aes128Gcm, &[7; 16], [9; 12]).unwrap();
        self.driver.tls().unwrap().add(&flow(), Direction::Transmit, Seq(0), 0, &key).unwrap()
    }

    fn post(&mut self, context: Handle, seq: u32) -> String {
        // TLS changes every byte, NVMe/TCP only the digest at the end of its unit.
        let touched_from = if context.engine() == engines::TLS { 0 } else { RECORD - 4 };
        self.post_with(seq, [Some(context), None], &RecordUnits(touched_from))
    }

    /// Returns a letter for each descriptor of a packet: parameters, fence, DUMP, packet.
    fn post_with(&mut self, seq: u32, contexts: [Option<Handle>; LAYERS], source: &dyn RecordSource) -> String {
        let streams = contexts.map(|context| Some(StreamAsk::whole(context?, seq.into(), 1000)));
        let ask = TxAsk { seq: Seq(seq), streams, ..TxAsk::default() };
        let packet = TxPacket {
            header: [0xff; 54].into_iter().collect(),
            fragments: [Bytes::from(vec![0; 1000])].into_iter().collect(),
            ask,
        };
        assert_eq!(self.driver.transmit(Instant::ZERO, packet, source), TransmitResult::Posted);
        self.driver.flush(Instant::ZERO);
        let entries = std::iter::from_fn(|| self.device.send.pop());
        entries
            .map(|entry| match entry.descriptor {
                SendDescriptor::StaticParameters { .. } | SendDescriptor::ProgressParameters { .. } => 'P',
                SendDescriptor::Fence => 'F',
                SendDescriptor::Dump { .. } => 'd',
                SendDescriptor::Ahead { .. } => 'a',
                SendDescriptor::Packet(_) => '.',
                SendDescriptor::Control { .. } => '?',
            })
            .collect()
    }
}

fn flow() -> FlowKey {
    FlowKey::tcp("10.0.0.1:443".parse().unwrap(), "10.0.0.2:5000".parse().unwrap())
}

#[test]
fn fence_separates_parameters_from_dependent_descriptors() {
    let mut rig = RecoveryRig::new(TransmitResync::Dump);
    let context = rig.tls();
    assert_eq!(rig.post(context, 0), "PPF.", "a context's first parameters");
    assert_eq!(rig.post(context, 1000), ".");
    // A retransmission in the same record: the static parameters still hold.
    assert_eq!(rig.post(context, 1000), "PFd.", "the record number is the one it counts from");
    assert_eq!(rig.post(context, 2 * RECORD + 1501), "PPFdd.");

    let mut rig = RecoveryRig::new(TransmitResync::NextRecord);
    let context = rig.tls();
    assert_eq!(rig.post(context, 0), "PPF.");
    assert_eq!(rig.post(context, 3 * RECORD), "PPF.");

    let mut rig = RecoveryRig::new(TransmitResync::Dump);
    let context = rig.driver.nvme().unwrap().add_transmit(&flow()).unwrap();
    assert_eq!(rig.post(context, RECORD - 1000), "PFdd.", "a digest is in it");
}

/// Digests first, then records: each context's parameters take effect before any descriptor that depends on them.
#[test]
fn fence_follows_the_parameters_of_each_of_two_contexts() {
    let mut rig = RecoveryRig::new(TransmitResync::Dump);
    let (tls, nvme) = (rig.tls(), rig.driver.nvme().unwrap().add_transmit(&flow()).unwrap());
    let contexts = [Some(tls), Some(nvme)];
    assert_eq!(rig.post_with(0, contexts, &Stacked(nvme)), "PPPF.", "at the start of both");
    assert_eq!(rig.post_with(1000, contexts, &Stacked(nvme)), ".");
    assert_eq!(
        rig.post_with(RECORD + 1000, contexts, &Stacked(nvme)),
        "PFdddPPFd.",
        "2 of 3 DUMPs are of the PDU only"
    );
}

/// TLS records of 20 bytes, queued byte by byte, at the end of a unit of [`LONG`] bytes of the layer above.
struct Crumbs(Handle);

impl RecordSource for Crumbs {
    fn unit_at(&self, layer: Layer, offset: u64) -> Lookup {
        Lookup::In(match layer {
            Layer::FIRST => unit(layer, offset, 20, 0),
            _ => unit(layer, offset, LONG, 0),
        })
    }

    fn pieces(&self, _: Layer, from: u64, to: u64, sink: &mut dyn FnMut(QueuedBytes)) {
        let units = TxTag::device(self.0, UnitTag { number: 0, at: 0, len: LONG, touched_from: 0 });
        let tag = units.within(None, UnitTag { number: 0, at: 0, len: 20, touched_from: 0 }).unwrap();
        for at in from..to {
            sink(QueuedBytes { bytes: vec![0; 1].into(), tag, offsets: [at, at] });
        }
    }
}

/// A record that contains three units of the layer above, of 10 bytes each. Software has sealed the second one.
struct Gap(Handle);

impl RecordSource for Gap {
    fn unit_at(&self, layer: Layer, offset: u64) -> Lookup {
        Lookup::In(match layer {
            Layer::FIRST => unit(layer, offset, 40, 0),
            _ => unit(layer, offset, 10, 0),
        })
    }

    fn pieces(&self, _: Layer, from: u64, to: u64, sink: &mut dyn FnMut(QueuedBytes)) {
        let record = UnitTag { number: 0, at: 0, len: 40, touched_from: 0 };
        for at in from..to {
            let number = at / 10;
            let units = UnitTag { number, at: (at % 10) as u32, len: 10, touched_from: 0 };
            let tag = if number == 1 { TxTag::done(units) } else { TxTag::device(self.0, units) };
            sink(QueuedBytes { bytes: vec![0; 1].into(), tag: tag.within(None, record).unwrap(), offsets: [at, at] });
        }
    }
}

impl RecoveryRig {
    /// Creates a rig with a counting engine, and a ring with exactly the space for the most expensive packet.
    fn tight() -> (RecoveryRig, Handle, Handle) {
        let mut config = NicConfig::default();
        // A ring of exactly this size fails if any packet needs more.
        config.send_ring = descriptors_at_most(&config, &EngineConfigs::default().engines().descriptions());
        let (device, driver) = crate::tests::driver_with(config, |engines| {
            let number = engines.len() as u8;
            let tls = engines[usize::from(engines::TLS)].clone();
            let info = EngineInfo { number, name: "counts", contexts: 4, counts_units: true, pool: 0, ..tls.info };
            engines.push(EngineDescription { info, ..tls });
        });
        let mut rig = RecoveryRig { driver, device };
        let number = engines::STANDARD;
        let new = offload_api::NewContext {
            engine: number,
            direction: Direction::Transmit,
            flow: Some(flow()),
            keys: Vec::new(),
            spec: Box::new(()),
        };
        let above = rig.driver.contexts().unwrap().create(new).map_err(|(refused, _)| refused).unwrap();
        let tls = rig.tls();
        (rig, tls, above)
    }

    fn send(
        &mut self,
        seq: u32,
        bytes: u32,
        contexts: [Option<Handle>; LAYERS],
        source: &dyn RecordSource,
    ) -> TransmitResult {
        let streams = contexts.map(|context| Some(StreamAsk::whole(context?, seq.into(), bytes)));
        let packet = TxPacket {
            header: [0xff; 54].into_iter().collect(),
            fragments: [Bytes::from(vec![0; bytes as usize])].into_iter().collect(),
            ask: TxAsk { seq: Seq(seq), streams, ..TxAsk::default() },
        };
        self.driver.transmit(Instant::ZERO, packet, source)
    }
}

/// The descriptors in front of a packet never exceed the requested room.
#[test]
fn restoration_of_two_contexts_fits_into_the_ring() {
    let mut posted = 0;
    for seq in 0..LONG {
        let (mut rig, tls, above) = RecoveryRig::tight();
        match rig.send(seq, 1, [Some(tls), Some(above)], &Crumbs(above)) {
            TransmitResult::Posted => {}
            TransmitResult::NeedsSoftware(unit) => assert_eq!(unit.layer, Layer::SECOND),
            TransmitResult::Dropped(reason) => panic!("{reason:?}"),
        }
        rig.driver.flush(Instant::ZERO);
        let entries: Vec<_> = std::iter::from_fn(|| rig.device.send.pop()).collect();
        posted +=
            usize::from(matches!(entries.last(), Some(last) if matches!(last.descriptor, SendDescriptor::Packet(_))));
    }
    // Most positions must be restored by the device, or the test would only exercise software.
    assert!(posted > 20, "{posted}");
}

/// The DUMPs of a record bring a unit, and then one that software has sealed. The context of a counting engine then has
/// a wrong number for the later bytes.
#[test]
fn context_does_not_pass_a_unit_sealed_by_software() {
    let (mut rig, tls, above) = RecoveryRig::tight();
    let contexts = [Some(tls), Some(above)];
    // The third unit: its context must be positioned after the second.
    let TransmitResult::NeedsSoftware(unit) = rig.send(20, 10, contexts, &Gap(above)) else {
        panic!("the first is DUMPed")
    };
    assert_eq!((unit.layer, unit.number), (Layer::SECOND, 0));
    // The record's DUMPs contain all three units.
    let (mut rig, tls, above) = RecoveryRig::tight();
    let TransmitResult::NeedsSoftware(unit) = rig.send(25, 5, [Some(tls), Some(above)], &Gap(above)) else {
        panic!("the same")
    };
    assert_eq!((unit.layer, unit.number), (Layer::SECOND, 0));
}

/// Retransmissions are counted for the engine that owns the context.
#[test]
fn recoveries_are_counted_by_engine() {
    let mut rig = RecoveryRig::new(TransmitResync::Dump);
    let (tls, nvme) = (rig.tls(), rig.driver.nvme().unwrap().add_transmit(&flow()).unwrap());
    // Started, restarted at byte 1000, and at byte 1501 of another record.
    for seq in [0, 1000, 1000, 2 * RECORD + 1501] {
        rig.post(tls, seq);
    }
    // Started at the packet with the digest, and restarted there.
    for _ in 0..2 {
        rig.post(nvme, RECORD - 1000);
    }
    for lookup in [Lookup::Released, Lookup::Released, Lookup::BeforeStart] {
        for context in [tls, nvme] {
            assert_eq!(
                rig.send(9, 5, [Some(context), None], &LostUnits(lookup)),
                TransmitResult::Dropped(DropReason::NoSyncData)
            );
        }
    }
    for context in [tls, nvme] {
        assert!(
            matches!(rig.send(RECORD - 5, 5, [Some(context), None], &Torn), TransmitResult::NeedsSoftware(_)),
            "not all is there"
        );
    }
    let [tls, nvme] = [engines::TLS, engines::NVME_TCP].map(|engine| rig.driver.context_counters(engine));
    assert_eq!((tls.ooo, tls.resync_bytes), (2, 2000));
    assert_eq!((tls.dump_packets, tls.dump_bytes), (3, 2501));
    assert_eq!((tls.no_sync_data, tls.no_unit), (2, 1));
    assert_eq!((tls.needs_software, nvme.needs_software), (1, 1));
    assert_eq!((nvme.ooo, nvme.bypass), (1, 0));
    assert_eq!((nvme.dump_packets, nvme.dump_bytes), (4, 6000));
    let mut set = CounterSet::default();
    rig.driver.count(&mut set);
    assert_eq!(set.value("tx_nvmeotcp_drop_no_sync_data"), 3, "for whatever reason");
    assert_eq!((set.value("tx_tls_ooo"), set.value("tx_tls_drop_bypass_req")), (2, 1));

    let mut rig = RecoveryRig::new(TransmitResync::NextRecord);
    let tls = rig.tls();
    for seq in [0, 3 * RECORD, 5 * RECORD] {
        rig.post(tls, seq);
    }
    assert_eq!(rig.driver.context_counters(engines::TLS).next_record, 2);
}

/// Handles come from protocols. A handle of an unknown engine is refused like one of a removed context.
#[test]
fn context_of_unknown_engine_is_gone() {
    let mut rig = RecoveryRig::new(TransmitResync::Dump);
    let none = Handle { index: Handle::indices(200, 1).start, generation: 0 };
    assert!(matches!(rig.send(0, 5, [Some(none), None], &RecordUnits(0)), TransmitResult::NeedsSoftware(_)));
    let lost = rig.send(0, 5, [Some(none), None], &LostUnits(Lookup::Released));
    assert_eq!(lost, TransmitResult::Dropped(DropReason::DeviceGone));
}

/// The maximum is 3 for the context, 12 MTUs of the longest record, 15 pieces, the packet, and the bytes ahead.
#[test]
fn packet_needs_at_most_the_reserved_descriptors() {
    let engines = EngineConfigs::default().engines().descriptions();
    assert_eq!(descriptors_at_most(&NicConfig::default(), &engines), 32);
}

/// A transport that knows no units.
struct LostUnits(Lookup);

impl RecordSource for LostUnits {
    fn unit_at(&self, _: Layer, _: u64) -> Lookup {
        self.0
    }

    fn pieces(&self, _: Layer, _: u64, _: u64, _: &mut dyn FnMut(QueuedBytes)) {}
}

/// A transport that knows units, but has no bytes.
struct Torn;

impl RecordSource for Torn {
    fn unit_at(&self, layer: Layer, offset: u64) -> Lookup {
        RecordUnits(0).unit_at(layer, offset)
    }

    fn pieces(&self, _: Layer, _: u64, _: u64, _: &mut dyn FnMut(QueuedBytes)) {}
}

const RECORD: u32 = 4000;
const PDU: u32 = 9000;
const LONG: u32 = 32;
