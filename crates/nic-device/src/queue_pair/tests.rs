//! A device alone, with the host's ends of the rings held by the test: requests that the project's driver never makes.

use super::*;
use bytes::{Bytes, BytesMut};
use core::convert::Infallible;
use nic_engine::{Context, Engine, ImageReader, ImageWriter, NoCounters, OutOfStep, ReceivedPayload, StreamEngine};
use nic_engines::{EngineConfigs, EspCounters};
use nic_rings::DriverRings;
use nic_rings::packet::{ControlCommand, ControlCompletion, ControlEntry, SendCompletion, SendDescriptor, SendEntry};
use nic_rings::{Delays, NicConfig};
use nic_rings::{dma, rings};
use offload_api::Key;
use offload_api::{
    Direction, EspAsk, EspKey, EspSuite, Handle, Layer, NvmeTcpContext, OffloadKind, SaParams, StreamAsk, TlsContext,
    TlsKey, TlsSuite, TlsVersion, TxAsk, TxPacket, Verdict, engines,
};
use offload_base::Seq;
use offload_wire::frame::Frame;

/// Returns the engines of every NIC.
fn engines() -> Engines {
    EngineConfigs::default().engines()
}

struct QueuePairRig {
    device: QueuePair,
    host: DriverRings,
}

impl QueuePairRig {
    fn new() -> QueuePairRig {
        QueuePairRig::with(|_| ())
    }

    fn with_config(config: NicConfig) -> QueuePairRig {
        let (device, host) = rings(&config);
        QueuePairRig { device: QueuePair::new(config, device, engines()), host }
    }

    /// Makes a rig with additional engines.
    fn with(add: impl FnOnce(&mut Engines)) -> QueuePairRig {
        let config = NicConfig { delays: Delays::NONE, line_rate: None, ..NicConfig::default() };
        let (device, host) = rings(&config);
        let mut engines = engines();
        add(&mut engines);
        QueuePairRig { device: QueuePair::new(config, device, engines), host }
    }

    fn next_event(&self) -> Option<Instant> {
        earliest(self.device.next_transmit(), self.device.next_other())
    }

    fn command(&mut self, command: ControlCommand) -> Option<ControlCompletion> {
        self.host.control.push(ControlEntry { epoch: 0, report: false, command }).unwrap();
        self.device.process(Instant::ZERO);
        assert!(self.device.poll_frame(Instant::ZERO).is_none());
        self.host.control_completions.pop()
    }

    /// Returns the frames that a descriptor produces.
    fn send(&mut self, descriptor: SendDescriptor) -> Vec<Frame> {
        self.host.send.push(SendEntry { slot: 0, descriptor }).unwrap();
        self.device.process(Instant::ZERO);
        let frames = std::iter::from_fn(|| self.device.poll_frame(Instant::ZERO)).collect();
        assert!(self.host.send_completions.pop().is_some(), "the descriptor is completed");
        frames
    }

    fn create(&mut self, handle: Handle, direction: Direction) {
        let key = TlsKey::new(TlsVersion::Tls13, TlsSuite::Aes128Gcm, &[7; 16], [9; 12]).unwrap();
        let spec = Box::new(TlsContext { start: Seq(0), number: 0, key });
        let keys = if direction == Direction::Receive { vec![Key::Flow(flow(), Layer::FIRST)] } else { Vec::new() };
        let created = self.command(ControlCommand::Create { handle, flow: Some(flow()), direction, keys, spec });
        assert_eq!(created, Some(ControlCompletion::Created(handle)));
    }
}

fn flow() -> FlowKey {
    FlowKey::tcp("10.0.0.1:443".parse().unwrap(), "10.0.0.2:5000".parse().unwrap())
}

/// Returns the first bytes of a record that a context encrypts.
fn packet(context: Handle) -> SendDescriptor {
    let mut header = vec![0xff; 6];
    header.extend_from_slice(&[2, 0, 0, 0, 0, 9, 8, 0, 0x45, 0, 0, 40, 0, 0, 0x40, 0, 64, 6, 0, 0]);
    header.extend_from_slice(&[10, 0, 0, 1, 10, 0, 0, 2, 1, 0xbb, 0x13, 0x88, 0, 0, 0, 0, 0, 0, 0, 0, 0x50, 0x10]);
    header.resize(54, 0);
    SendDescriptor::Packet(TxPacket {
        header: header.into(),
        fragments: [Bytes::from_static(RECORD)].into_iter().collect(),
        ask: TxAsk { streams: [Some(StreamAsk::whole(context, 0, 4)), None], checksum: true, ..TxAsk::default() },
    })
}

#[test]
fn an_old_generation_names_no_transmit_context() {
    let mut rig = QueuePairRig::new();
    rig.create(NEW, Direction::Transmit);
    // Parameters with another generation must not reach the context in the same slot.
    for handle in OTHERS {
        assert!(rig.send(SendDescriptor::StaticParameters { handle, number: 5 }).is_empty());
        assert!(rig.send(SendDescriptor::ProgressParameters { handle, start: Seq(0) }).is_empty());
    }
    assert!(rig.send(packet(NEW)).is_empty(), "the context has no parameters: these were for another one");
    assert_eq!((rig.device.counters.tx_stale_parameters, rig.device.counters.tx_drop_out_of_sync), (4, 1));
    rig.send(SendDescriptor::ProgressParameters { handle: NEW, start: Seq(0) });
    // Nor may packets, DUMPs and removals with another generation.
    for handle in OTHERS {
        assert!(rig.send(packet(handle)).is_empty());
        let bytes = Bytes::from_static(RECORD);
        assert!(
            rig.send(SendDescriptor::Dump {
                contexts: [Some(handle), None],
                places: [Seq(0); 2],
                bytes,
                ahead: Bytes::new()
            })
            .is_empty()
        );
        assert_eq!(rig.command(ControlCommand::Park { handle }), None);
        let destroyed = rig.command(ControlCommand::Destroy { handle });
        assert_eq!(
            destroyed,
            Some(ControlCompletion::Destroyed(handle)),
            "destroying a missing context is answered too"
        );
    }
    assert_eq!((rig.device.counters.tx_stale_parameters, rig.device.counters.tx_drop_unknown_context), (6, 2));
    assert_eq!(rig.device.contexts(), 1);
    let [frame] = &rig.send(packet(NEW))[..] else { panic!("the living context kept its position") };
    assert!(frame.data[54..].starts_with(&RECORD[..5]) && !frame.data.ends_with(&RECORD[5..]));
}

#[test]
fn an_old_generation_names_no_receive_context() {
    let mut rig = QueuePairRig::new();
    rig.create(NEW, Direction::Receive);
    // Behind a gap that hides a header, the context searches and finds a candidate.
    let engine = rig.device.contexts.stream(NEW, &mut DmaBytes::default()).expect("the context exists");
    let (mut buffer, mut placed) = Default::default();
    engine.receive(NEW, &mut ReceivedPayload::new(Seq(100), RECORD, &mut buffer, &mut placed, false));
    for handle in OTHERS {
        let nothing = ControlCompletion::Resync { handle, header: None };
        assert_eq!(rig.command(ControlCommand::Query { handle }), Some(nothing));
        let no = ControlCommand::Answer { handle, header: Seq(100), number: None };
        assert_eq!(rig.command(no), Some(ControlCompletion::Answered(handle)));
        rig.command(ControlCommand::Destroy { handle });
    }
    let asked = ControlCompletion::Resync { handle: NEW, header: Some(Seq(100)) };
    assert_eq!(rig.command(ControlCommand::Query { handle: NEW }), Some(asked));
    assert_eq!((rig.device.contexts(), rig.device.steering.followers(&flow())), (1, [Some(NEW), None]));
    rig.command(ControlCommand::Destroy { handle: NEW });
    assert_eq!((rig.device.contexts(), rig.device.steering.followers(&flow())), (0, [None, None]));
}

/// The project's driver only names slots that the engine has.
#[test]
fn a_place_behind_an_engines_last_is_refused() {
    let mut rig = QueuePairRig::new();
    let tls = &engines().infos()[0];
    let last = Handle { index: Handle::indices(tls.number, tls.contexts).end - 1, generation: 0 };
    rig.create(last, Direction::Transmit);
    let key = TlsKey::new(TlsVersion::Tls13, TlsSuite::Aes128Gcm, &[7; 16], [9; 12]).unwrap();
    let spec = Box::new(TlsContext { start: Seq(0), number: 0, key });
    let handle = Handle { index: last.index + 1, generation: 0 };
    let asked = ControlCommand::Create { handle, flow: None, direction: Direction::Transmit, keys: Vec::new(), spec };
    assert_eq!(rig.command(asked), Some(ControlCompletion::Refused(handle)));
    assert_eq!(rig.device.contexts(), 1);
}

/// The project's driver removes a context before it reuses the slot.
#[test]
fn a_reused_slot_gets_no_packets_of_its_old_context() {
    let mut rig = QueuePairRig::new();
    rig.create(NEW, Direction::Receive);
    let [_, next] = OTHERS;
    rig.create(next, Direction::Receive);
    assert_eq!((rig.device.contexts(), rig.device.steering.followers(&flow())), (1, [Some(next), None]));
    rig.create(NEW, Direction::Transmit);
    assert_eq!((rig.device.contexts(), rig.device.steering.followers(&flow())), (1, [None, None]));
    assert!(rig.device.follows_nothing());
}

/// A byte on the bus takes a nanosecond here. Everything on the way out is in one row, from the command that made the context.
#[test]
fn packet_leaves_later_by_its_cost_and_that_of_its_dump() {
    let mut rig = QueuePairRig::with_config(costly());
    rig.create(NEW, Direction::Transmit);
    let (contexts, places, bytes) = ([Some(NEW), None], [Seq(0), Seq(0)], Bytes::from_static(&RECORD[..6]));
    let descriptors = [
        SendDescriptor::StaticParameters { handle: NEW, number: 0 },
        SendDescriptor::ProgressParameters { handle: NEW, start: Seq(0) },
        SendDescriptor::Dump { contexts, places, bytes, ahead: Bytes::new() },
        SendDescriptor::Fence,
    ];
    for descriptor in descriptors {
        rig.host.send.push(SendEntry { slot: 0, descriptor }).unwrap();
    }
    let SendDescriptor::Packet(mut rest) = packet(NEW) else { panic!("it is one") };
    rest.ask.seq = Seq(6);
    rest.fragments = [Bytes::from_static(&RECORD[6..])].into_iter().collect();
    for slot in [1, 2] {
        rest.ask.streams = if slot == 1 { rest.ask.streams } else { [None; 2] };
        rig.host.send.push(SendEntry { slot, descriptor: SendDescriptor::Packet(rest.clone()) }).unwrap();
    }
    let moved = |rig: &QueuePairRig| {
        let dma = rig.device.dma();
        assert_eq!(dma.completions, dma::COMPLETION, "that of the command");
        dma.tx_descriptors + dma.tx_parameters + dma.tx_resync + dma.tx_payload + dma.control + dma.completions
    };
    let mut now = Instant::ZERO;
    for _ in 0..2 {
        let (at, expected) = loop {
            rig.device.process(now);
            let expected = moved(&rig);
            if rig.device.poll_frame(now).is_some() {
                break (now, expected);
            }
            now = rig.next_event().expect("it is on its way");
        };
        assert_eq!(at.as_nanos(), expected);
    }
    assert_eq!((rig.device.dma().tx_resync, rig.device.counters.tx_packets), (dma::DUMP_DESCRIPTOR + 6, 2));
}

#[test]
fn received_packet_is_shown_later_by_its_cost() {
    let mut rig = QueuePairRig::with_config(costly());
    rig.host.receive.push(BytesMut::with_capacity(128 << 10)).unwrap();
    let frame = [0xff; 60];
    for _ in 0..2 {
        rig.device.take_frame(Instant::ZERO, &frame, &offload_formats::Headers::parse(&frame));
    }
    let shown = core::iter::from_fn(|| {
        let at = rig.next_event()?;
        rig.device.process(at);
        Some((at.as_nanos(), std::iter::from_fn(|| rig.host.receive_completions.pop()).count()))
    });
    // The second takes the rest of the buffer.
    let first = dma::RECEIVE_DESCRIPTOR + 60 + dma::COMPLETION;
    assert_eq!(shown.collect::<Vec<_>>(), [(first, 1), (first + 60 + dma::COMPLETION, 1)]);
}

/// A NIC whose bus moves a byte in a nanosecond. Nothing else takes time.
fn costly() -> NicConfig {
    let costs = nic_rings::Costs { pcie_rate: Some(8_000_000_000), ..nic_rings::Costs::default() };
    NicConfig { delays: Delays::NONE, line_rate: None, costs, ..NicConfig::default() }
}

/// A frame occupies the line for a tenth of a second; commands for contexts do not wait for it.
#[test]
fn commands_do_not_wait_for_the_line() {
    let delays = Delays { doorbell: Duration::from_micros(1), ..Delays::NONE };
    let config = NicConfig { delays, line_rate: Some(1000), ..NicConfig::default() };
    let (device, host) = rings(&config);
    let mut rig = QueuePairRig { device: QueuePair::new(config.clone(), device, engines()), host };
    let SendDescriptor::Packet(mut packet) = packet(NEW) else { panic!("the descriptor is a packet") };
    packet.ask.streams = [None; 2];
    for slot in 0..2 {
        rig.host.send.push(SendEntry { slot, descriptor: SendDescriptor::Packet(packet.clone()) }).unwrap();
    }
    // Each step advances to the time that the device itself announces.
    let mut now = Instant::ZERO;
    let mut step = |rig: &mut QueuePairRig| {
        rig.device.process(now);
        let frame = rig.device.poll_frame(now);
        now = rig.next_event().unwrap_or(now);
        (now, frame.is_some())
    };
    assert_eq!(step(&mut rig), (Instant::ZERO + delays.doorbell, false));
    let (next, is_sent) = step(&mut rig);
    assert!(is_sent && next > Instant::ZERO + Duration::from_millis(100), "{next:?}");
    // While the port is busy with the first frame, and the second waits.
    let command = ControlCommand::Destroy { handle: NEW };
    rig.host.control.push(ControlEntry { epoch: 0, report: false, command }).unwrap();
    rig.device.process(Instant::ZERO + delays.doorbell * 2);
    assert_eq!(rig.next_event(), Some(Instant::ZERO + delays.doorbell * 3));
    assert_eq!(rig.host.control_completions.pop(), None, "the device takes some time");
    rig.device.process(Instant::ZERO + delays.doorbell * 3);
    assert_eq!(rig.host.control_completions.pop(), Some(ControlCompletion::Destroyed(NEW)));
    assert_eq!(rig.next_event(), Some(next), "only the line is left");
}

#[test]
fn an_old_generation_names_no_sa() {
    let mut rig = QueuePairRig::new();
    let key = EspKey::new(EspSuite::Aes128Gcm, &[7; 20]).unwrap();
    let params = SaParams::new(Direction::Transmit, 0x1001, [10, 0, 0, 1].into(), [10, 0, 0, 2].into(), key);
    let sa = Box::new(SaParams { offload: OffloadKind::Crypto, ..params });
    let control = |command| SendDescriptor::Control { epoch: 0, command: Box::new(command) };
    let direction = Direction::Transmit;
    let keys = Vec::new();
    rig.send(control(ControlCommand::Create { handle: NEW_SA, flow: None, direction, keys, spec: sa }));
    let ask = |sa| {
        let mut header = vec![0u8; 14];
        header[12] = 8;
        header.extend_from_slice(&[0x45, 0, 0, 40, 0, 0, 0, 0, 64, 50, 0, 0, 10, 0, 0, 1, 10, 0, 0, 2]);
        header.resize(70, 0);
        let packet = Some(EspAsk::Finish { sa, at: 34, number: 1, next_header: 6 }.into());
        let ask = TxAsk { packet, ..TxAsk::default() };
        SendDescriptor::Packet(TxPacket { header: header.into(), ask, ..TxPacket::default() })
    };
    for handle in OTHER_SAS {
        assert!(rig.send(ask(handle)).is_empty());
        rig.send(control(ControlCommand::Destroy { handle }));
    }
    let mut counted = EspCounters::default();
    rig.device.add_engine_counters(&mut counted);
    assert_eq!(counted.ipsec_tx_drop_no_state, 2);
    assert_eq!(rig.device.dma().tx_parameters, 3 * dma::COMMAND_DESCRIPTOR, "each command on the send ring");
    assert_eq!(rig.send(ask(NEW_SA)).len(), 1, "the SA still exists");
}

/// Contexts in use stay on the NIC and replace unused ones.
#[test]
fn contexts_in_use_take_the_place_of_others() {
    let config = NicConfig { context_cache_bytes: 4 * 208, delays: Delays::NONE, ..NicConfig::default() };
    let (device, host) = rings(&config);
    let mut rig = QueuePairRig { device: QueuePair::new(config.clone(), device, engines()), host };
    let handles: Vec<_> = (0..8).map(|index| Handle { index, generation: 7 }).collect();
    for handle in &handles {
        rig.create(*handle, Direction::Transmit);
    }
    for used in [&handles[..4], &handles[4..]] {
        let mut fetched = Vec::new();
        for _ in 0..4 {
            for handle in used {
                rig.command(ControlCommand::Query { handle: *handle });
            }
            fetched.push(rig.device.counters().ctx_fetched);
        }
        assert_eq!(fetched[2], fetched[3], "{fetched:?}");
    }
}

#[test]
fn packets_are_not_steered_to_contexts_from_before_a_reset() {
    let mut rig = QueuePairRig::new();
    rig.create(NEW, Direction::Receive);
    assert!(rig.device.follows(&flow()) && !rig.device.follows_nothing());
    rig.device.reset(Instant::ZERO);
    assert!(!rig.device.follows(&flow()) && rig.device.follows_nothing());
}

/// For example a jumbo frame of a neighbour.
#[test]
fn a_frame_longer_than_the_mtu_is_not_received() {
    let mut rig = QueuePairRig::new();
    for bytes in [1514, 1515, 9014] {
        let frame = vec![0xff; bytes];
        rig.device.take_frame(Instant::ZERO, &frame, &offload_formats::Headers::parse(&frame));
    }
    let counters = rig.device.counters();
    assert_eq!((counters.rx_oversize_pkts_phy, counters.rx_drop_address), (2, 0));
}

#[test]
fn frames_are_counted_by_their_address_and_checksums() {
    let mut rig = QueuePairRig::new();
    let SendDescriptor::Packet(packet) = packet(NEW) else { panic!("the descriptor is a packet") };
    let ask = TxAsk { streams: [None; 2], mss: Some(1000), ..packet.ask };
    let [right] = &rig.send(SendDescriptor::Packet(TxPacket { ask, ..packet }))[..] else { panic!("one frame") };
    let changed = |at: usize| {
        let mut frame = right.data.to_vec();
        frame[at] ^= 1;
        frame
    };
    rig.host.receive.push(bytes::BytesMut::with_capacity(128 << 10)).unwrap();
    // A payload byte; the EtherType; the address, with the multicast bit as its lowest bit.
    for frame in [right.data.to_vec(), changed(60), changed(60), changed(12), changed(12), changed(0), changed(0)] {
        rig.device.take_frame(Instant::ZERO, &frame, &offload_formats::Headers::parse(&frame));
    }
    let counters = rig.device.counters();
    let checksums = (counters.rx_csum_unnecessary, counters.rx_csum_bad, counters.rx_csum_none);
    assert_eq!((checksums, counters.rx_drop_address), ((1, 2, 2), 2));
    assert_eq!((counters.rx_packets, counters.rx_bytes), (5, 5 * right.data.len() as u64));
}

/// If the context cannot work on a packet, no segment leaves.
#[test]
fn a_packet_leaves_whole_or_is_dropped() {
    let mut rig = QueuePairRig::new();
    rig.create(NEW, Direction::Transmit);
    rig.send(SendDescriptor::ProgressParameters { handle: NEW, start: Seq(0) });
    let mut cut = |context, seq| {
        let SendDescriptor::Packet(packet) = packet(context) else { panic!("the descriptor is a packet") };
        let streams = [Some(StreamAsk { fragments: 0b10, ..StreamAsk::whole(context, 0, RECORD.len() as u32) }), None];
        let ask = TxAsk { seq: Seq(seq), streams, mss: Some(4), ..packet.ask };
        let fragments = [Bytes::from_static(&[1; 12]), Bytes::from_static(RECORD)].into_iter().collect();
        let frames = rig.send(SendDescriptor::Packet(TxPacket { ask, fragments, ..packet }));
        let counters = rig.device.counters();
        (frames.len(), counters.tx_drop_unknown_context, counters.tx_drop_out_of_sync)
    };
    assert_eq!(cut(OTHERS[0], 0), (0, 1, 0), "the context does not exist");
    assert_eq!(cut(NEW, 99), (0, 1, 1), "the context has another position");
}

/// PDUs in records: bytes from another position of the PDU stream could be taken for data of another place, or for
/// other fields.
#[test]
fn an_upper_context_works_only_at_its_own_position() {
    let mut rig = QueuePairRig::new();
    rig.create(NEW, Direction::Transmit);
    let above = Handle { index: Handle::indices(engines::NVME_TCP, 1).start, generation: 0 };
    let (flow, direction, keys) = (Some(flow()), Direction::Transmit, Vec::new());
    let create =
        ControlCommand::Create { handle: above, flow, direction, keys, spec: Box::new(NvmeTcpContext::Transmit) };
    assert_eq!(rig.command(create), Some(ControlCompletion::Created(above)));
    const PDU: &[u8] = &[7, 0, 24, 0, 24, 0, 0, 0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16];
    let contexts = [Some(NEW), Some(above)];
    let mut send = |offset: u64| {
        // Both contexts are set to a known position before each attempt.
        for (handle, start) in [(NEW, 0), (above, 1000)] {
            rig.send(SendDescriptor::ProgressParameters { handle, start: Seq(start) });
        }
        let SendDescriptor::Packet(packet) = packet(NEW) else { panic!("the descriptor is a packet") };
        let of_pdus = StreamAsk { fragments: 0b10, ..StreamAsk::whole(above, offset, PDU.len() as u32) };
        let streams = [Some(StreamAsk::whole(NEW, 0, 46)), Some(of_pdus)];
        let fragments = [&[23, 3, 3, 0, 41], PDU, &[23; 17]].map(Bytes::from_static).into_iter().collect();
        // Cut into segments, each starting at the end of the previous one.
        let ask = TxAsk { streams, mss: Some(10), ..packet.ask };
        let sent = rig.send(SendDescriptor::Packet(TxPacket { ask, fragments, ..packet })).len();
        // The DUMP repeats the check for a replay of the same bytes.
        rig.send(SendDescriptor::ProgressParameters { handle: above, start: Seq(1000) });
        rig.send(SendDescriptor::ProgressParameters { handle: NEW, start: Seq(0) });
        rig.send(SendDescriptor::Dump {
            contexts,
            places: [Seq(0), Seq(offset as u32)],
            bytes: Bytes::from_static(&[23, 3, 3, 0, 41]),
            ahead: Bytes::new(),
        });
        (sent, rig.device.counters.tx_drop_out_of_sync, rig.device.counters.tx_stale_parameters)
    };
    assert_eq!(send(1000), (5, 0, 0));
    assert_eq!(send(1001), (0, 1, 1), "the context is one byte before");
    assert_eq!(send(976), (0, 2, 2), "the context is behind that");
    assert_eq!(send(1000 + (1 << 32)), (5, 2, 2), "a context knows positions modulo 2^32");
}

#[test]
fn following_bytes_are_forgotten_even_if_the_packet_is_dropped() {
    let mut rig = QueuePairRig::new();
    rig.create(NEW, Direction::Transmit);
    for context in [NEW, OTHERS[0]] {
        rig.send(SendDescriptor::Ahead { context, bytes: Bytes::from_static(b"not encrypted") });
        assert!(rig.send(packet(context)).is_empty(), "the context has no parameters, or is unknown");
        assert!(rig.device.transmit.ahead.is_empty());
    }
}

/// An engine that drops one byte of its input.
#[derive(Debug)]
struct ShorteningEngine;

impl Engine for ShorteningEngine {
    const NAME: &'static str = "miser";
    /// Whether the engine works on whole packets.
    type Spec = bool;
    type Command = Infallible;
    type Change = Infallible;
    type State = bool;
    type Objects = ();
    type Counters = NoCounters;

    fn create(&mut self, _: Direction, whole: bool) -> Option<(bool, ())> {
        Some((whole, ()))
    }

    fn save(whole: &bool, image: &mut ImageWriter<'_>) {
        image.put_u8(u8::from(*whole));
    }

    fn load(image: &mut ImageReader<'_>) -> Option<bool> {
        Some(image.take_u8()? == 1)
    }
}

impl StreamEngine for ShorteningEngine {
    fn receive(_: Context<'_, ShorteningEngine>, _: &mut ReceivedPayload<'_>, _: &mut NoCounters) -> Option<Verdict> {
        None
    }

    fn count_from(_: Context<'_, ShorteningEngine>, _: u64) -> bool {
        true
    }

    fn begin(_: Context<'_, ShorteningEngine>, _: Seq) -> bool {
        true
    }

    fn expects(_: &bool, _: Seq) -> Option<bool> {
        Some(true)
    }

    fn transmit(_: Context<'_, ShorteningEngine>, _: Seq, bytes: &[u8], out: &mut BytesMut) -> Result<u64, OutOfStep> {
        out.extend_from_slice(&bytes[1..]);
        Ok(0)
    }

    fn works_on_whole_packets(context: &Context<'_, ShorteningEngine>) -> bool {
        *context.state
    }

    fn transmit_whole(
        context: Context<'_, ShorteningEngine>,
        at: Seq,
        bytes: &[u8],
        _: &[u8],
        out: &mut BytesMut,
        _: Option<&mut NoCounters>,
    ) -> Result<(), OutOfStep> {
        ShorteningEngine::transmit(context, at, bytes, out).map(|_| ())
    }

    fn note_sent(_: u64, _: &mut NoCounters) {}
}

/// An external engine may violate its contract.
#[test]
fn a_packet_that_an_engine_shortens_does_not_leave() {
    let mut rig = QueuePairRig::with(|engines| engines.add_stream(ShorteningEngine, 2));
    for (at, whole) in [false, true].into_iter().enumerate() {
        let index = Handle::indices(engines::STANDARD, 2).start + at as u32;
        let handle = Handle { index, generation: 0 };
        let (flow, direction) = (Some(flow()), Direction::Transmit);
        let create = ControlCommand::Create { handle, flow, direction, keys: Vec::new(), spec: Box::new(whole) };
        assert_eq!(rig.command(create), Some(ControlCompletion::Created(handle)));
        assert!(rig.send(packet(handle)).is_empty());
        assert_eq!(rig.device.counters.tx_drop_out_of_sync, 1 + 2 * at as u64);
        let SendDescriptor::Packet(packet) = packet(handle) else { panic!("the descriptor is a packet") };
        let ask = TxAsk { streams: [None, packet.ask.streams[0]], ..packet.ask };
        assert!(rig.send(SendDescriptor::Packet(TxPacket { ask, ..packet })).is_empty(), "above another");
    }
    assert_eq!(rig.device.counters.tx_drop_out_of_sync, 4);
}

#[test]
fn sent_bytes_are_counted() {
    let mut rig = QueuePairRig::new();
    let SendDescriptor::Packet(plain) = packet(NEW) else { panic!("the descriptor is a packet") };
    let ask = TxAsk { streams: [None; 2], ..plain.ask };
    let header = plain.header.len();
    let mut send = |ask, header: &[u8]| {
        let frames = rig.send(SendDescriptor::Packet(TxPacket { ask, header: header.into(), ..plain.clone() }));
        frames.iter().map(|frame| frame.data.len() as u64).collect::<Vec<_>>()
    };
    let mut left = send(TxAsk { mss: Some(10), ..ask }, &plain.header);
    assert_eq!(left.len(), 2);
    // A packet without a checksum request, and one without headers.
    left.extend(send(TxAsk { checksum: false, ..ask }, &plain.header));
    left.extend(send(ask, &[0xff; 54]));
    let counters = rig.device.counters();
    assert_eq!((counters.tx_packets, counters.tx_bytes), (4, left.iter().sum()));
    assert_eq!((counters.tx_tso_packets, counters.tx_tso_bytes), (1, RECORD.len() as u64));
    assert_eq!(counters.tx_csum_partial, 2);
    let dma = rig.device.dma();
    assert_eq!(dma.tx_descriptors, 3 * dma::packet_descriptor_bytes(header, 1));
    assert_eq!(dma.tx_payload, 3 * RECORD.len() as u64);
    // No engine has this number; the other engine has no packet contexts.
    for index in [Handle::indices(200, 1).start, NEW.index] {
        let context = Handle { index, generation: 0 };
        let packet = Some(offload_api::PacketAsk { context, number: 0, args: 0 });
        assert!(
            rig.send(SendDescriptor::Packet(TxPacket { ask: TxAsk { packet, ..ask }, ..plain.clone() })).is_empty()
        );
    }
    assert_eq!(rig.device.counters().tx_drop_unknown_context, 2);
}

#[test]
fn a_doorbell_wakes_its_waiter() {
    #[derive(Default)]
    struct DoorbellWaker(std::sync::atomic::AtomicU32);
    impl std::task::Wake for DoorbellWaker {
        fn wake(self: std::sync::Arc<DoorbellWaker>) {
            self.0.fetch_add(1, std::sync::atomic::Ordering::SeqCst);
        }
    }
    let config = NicConfig { mtu: 9000, ..NicConfig::default() };
    let (device, host) = rings(&config);
    let mut pair = QueuePair::new(config.clone(), device, engines());
    assert_eq!(pair.config().mtu, 9000);
    let woken = std::sync::Arc::new(DoorbellWaker::default());
    pair.register_doorbell(&woken.clone().into());
    host.doorbell.raise();
    assert_eq!(woken.0.load(std::sync::atomic::Ordering::SeqCst), 1);
}

#[test]
fn descriptors_are_reported_together() {
    let mut rig = QueuePairRig::new();
    let SendDescriptor::Packet(mut packet) = packet(NEW) else { panic!("the descriptor is a packet") };
    packet.ask.streams = [None; 2];
    for slot in 0..2 * SendCompletion::BATCH as u32 {
        rig.host.send.push(SendEntry { slot, descriptor: SendDescriptor::Packet(packet.clone()) }).unwrap();
    }
    rig.device.process(Instant::ZERO);
    while rig.device.poll_frame(Instant::ZERO).is_some() {}
    let reported = std::iter::from_fn(|| rig.host.send_completions.pop()).map(|completion| completion.slots.len());
    assert_eq!(reported.collect::<Vec<_>>(), [SendCompletion::BATCH; 2]);
    assert_eq!(rig.device.dma().completions, 2 * dma::COMPLETION);
}

#[test]
fn a_commands_weight_is_the_size_of_its_data() {
    let mut rig = QueuePairRig::new();
    let mut weight = |command| {
        let before = rig.device.dma().control;
        rig.command(command);
        rig.device.dma().control - before
    };
    assert_eq!(weight(ControlCommand::Query { handle: NEW }), dma::CONTROL_QUERY);
    let home = std::sync::Arc::new(DiscardingHome);
    let mut place = |stages: Option<offload_api::Spec>| {
        let pieces = (0..3).map(|at| offload_api::Piece::new(at, bytes::BytesMut::new(), home.clone())).collect();
        weight(ControlCommand::Place { handle: NEW, buffer: 1, pieces, stages })
    };
    assert_eq!(place(None), dma::CONTROL_QUERY + 3 * dma::RECEIVE_DESCRIPTOR);
    assert_eq!(place(Some(Box::new(()))), 2 * dma::CONTROL_QUERY + 3 * dma::RECEIVE_DESCRIPTOR);
    let table = ControlCommand::SetIndirection { table: Box::new([0; INDIRECTION_ENTRIES]) };
    assert_eq!(weight(table), dma::CONTROL_QUERY + 2 * INDIRECTION_ENTRIES as u64);
}

/// A home that discards pieces.
struct DiscardingHome;

impl offload_api::rx::PieceHome for DiscardingHome {
    fn take_back(&self, _: u64, _: bytes::BytesMut) {}
}

/// The current context of a slot.
const NEW_SA: Handle = Handle { index: Handle::PLACES, ..NEW };
const OTHER_SAS: [Handle; 2] =
    [Handle { index: Handle::PLACES, ..OTHERS[0] }, Handle { index: Handle::PLACES, ..OTHERS[1] }];
const NEW: Handle = Handle { index: 0, generation: 7 };
const OTHERS: [Handle; 2] = [Handle { index: 0, generation: 6 }, Handle { index: 0, generation: 8 }];
/// A record header, and the first bytes of its body.
const RECORD: &[u8] = &[23, 3, 3, 0, 64, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12];
