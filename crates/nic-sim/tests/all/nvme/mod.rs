//! Driver and device together. Data digests of the NIC equal those of software for any order of packets; placed and
//! verified data of PDUs in TLS records are correct for any losses.

mod stacked;

use bytes::{Bytes, BytesMut};
use core::cell::Cell;
use nic_sim::frame::Frame;
use nic_sim::stats::NvmeTcpCounters;
use nic_sim::wire::Port;
use nic_sim::{Delays, Device, Driver, EngineConfigs, NicConfig, NvmeTcpEngineConfig, TransmitResync, nic};
use offload_api::rx::{NvmeVerdict, TlsVerdict};
use offload_api::{
    DeviceEvent, Direction, FlowKey, Handle, Layer, Lookup, NetDevice, NoRecords, NvmeTcpConfig, NvmeTcpStages, Piece,
    PieceHome, QueuedBytes, RecordSource, StageSpec, StreamAsk, TlsKey, TlsSuite, TlsVersion, TransmitResult, TxAsk,
    TxPacket, TxTag, TypedContexts, Unit, XTS_STAGE, engines,
};
use offload_base::{Instant, Seq};
use offload_jobs::WrappingKey;
use offload_transforms::{SecretBytes, Tweak};
use proptest::prelude::*;
use resumable_aead::{DataUnits, Volume, XtsKey};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::Wake;

const HEADERS: usize = 54;
const MSS: usize = 1446;

/// A stream of PDUs, as queued for the device and as on the wire.
struct PduStream {
    start: Seq,
    units: Vec<Unit>,
    queued: Vec<u8>,
    wire: Vec<u8>,
    /// Whether software computed each PDU's digest in the queue.
    sealed: Vec<bool>,
}

impl PduStream {
    /// Makes PDUs with data of these lengths; without data a PDU has no digest.
    fn new(start: Seq, lengths: &[usize]) -> PduStream {
        let (mut queued, mut wire, mut units) = (Vec::new(), Vec::new(), Vec::new());
        for (number, length) in lengths.iter().enumerate() {
            let from = start + wire.len() as u32;
            let data: Vec<u8> = (0..*length).map(|at| (at * 31 + number * 7) as u8).collect();
            let (flags, offset) = if data.is_empty() { (0, 0) } else { (0b10, 28) };
            let plen = if data.is_empty() { 24 } else { 28 + length + 4 };
            let mut header = vec![7, flags, 24, offset];
            header.extend((plen as u32).to_le_bytes());
            header.resize(if data.is_empty() { 24 } else { 28 }, number as u8);
            for bytes in [&mut queued, &mut wire] {
                bytes.extend(&header);
                bytes.extend(&data);
            }
            if !data.is_empty() {
                queued.extend([0; 4]);
                wire.extend(crc32c::crc32c(&data).to_le_bytes());
            }
            let (offset, len) = (u64::from(from.distance_from(start)), plen as u32);
            let touched_from = if data.is_empty() { len } else { len - 4 };
            units.push(Unit { layer: Layer::FIRST, number: number as u64, offset, start: from, len, touched_from });
        }
        PduStream { start, sealed: vec![false; units.len()], units, queued, wire }
    }

    /// Makes a packet of up to `bytes` bytes, of either context PDUs or other PDUs.
    fn packet(&self, at: usize, bytes: usize, context: Handle) -> TxPacket {
        let seq = self.start + at as u32;
        let first = self.units.iter().position(|unit| unit.contains(at as u64)).unwrap();
        let sealed = self.sealed[first];
        let alike = (first..self.units.len()).take_while(|unit| self.sealed[*unit] == sealed).last().unwrap();
        let end = (at + bytes).min(self.units[alike].end() as usize);
        TxPacket {
            header: headers(seq).into(),
            fragments: [Bytes::copy_from_slice(&self.queued[at..end])].into_iter().collect(),
            ask: TxAsk {
                seq,
                streams: [(!sealed).then(|| StreamAsk::whole(context, at as u64, (end - at) as u32)), None],
                checksum: true,
                mss: Some(MSS as u16),
                ..TxAsk::default()
            },
        }
    }

    /// Computes a digest as a transport does after `NeedsSoftware`.
    fn seal(&mut self, unit: Unit) {
        let number = self.units.iter().position(|other| *other == unit).unwrap();
        assert!(!core::mem::replace(&mut self.sealed[number], true), "sealed twice");
        let range = unit.offset as usize..unit.end() as usize;
        self.queued[range.clone()].copy_from_slice(&self.wire[range]);
    }
}

impl RecordSource for PduStream {
    fn unit_at(&self, layer: Layer, offset: u64) -> Lookup {
        assert_eq!(layer, Layer::FIRST);
        let unit = self.units.iter().find(|unit| unit.contains(offset));
        unit.map_or(Lookup::Released, |unit| Lookup::In(*unit))
    }

    fn pieces(&self, _: Layer, from: u64, to: u64, sink: &mut dyn FnMut(QueuedBytes)) {
        let middle = from + (to - from) / 3;
        for range in [from..middle, middle..to] {
            let bytes = Bytes::copy_from_slice(&self.queued[range.start as usize..range.end as usize]);
            sink(QueuedBytes { bytes, tag: TxTag::PLAIN, offsets: [range.start, 0] });
        }
    }
}

fn flow() -> FlowKey {
    FlowKey::tcp("10.0.0.1:4420".parse().unwrap(), "10.0.0.2:5000".parse().unwrap())
}

/// Returns Ethernet, IPv4 and TCP headers; the device fills in lengths and checksums.
fn headers(seq: Seq) -> Vec<u8> {
    let mut bytes = vec![0xff; 6];
    bytes.extend([2, 0, 0, 0, 0, 9, 8, 0]);
    bytes.extend([0x45, 0, 0, 40, 0, 0, 0x40, 0, 64, 6, 0, 0, 10, 0, 0, 1, 10, 0, 0, 2]);
    bytes.extend([0x11, 0x44, 0x13, 0x88]);
    bytes.extend(seq.0.to_be_bytes());
    bytes.extend([0, 0, 0, 0, 0x50, 0x10, 0xff, 0xff, 0, 0, 0, 0]);
    bytes
}

fn pair(config: NicConfig) -> (Device, Driver) {
    nic(NicConfig { delays: Delays::NONE, line_rate: None, ..config })
}

fn context(driver: &mut Driver) -> Handle {
    driver.nvme().unwrap().add_transmit(&flow()).unwrap()
}

/// Sends up to `bytes` bytes from `at` on, with the help of software if necessary, and checks them. Returns the end
/// position.
fn send(
    device: &mut Device,
    driver: &mut Driver,
    stream: &mut PduStream,
    at: usize,
    bytes: usize,
    handle: Handle,
) -> usize {
    let length = loop {
        let packet = stream.packet(at, bytes, handle);
        let length = packet.payload_len();
        match driver.transmit(Instant::ZERO, packet, &*stream) {
            TransmitResult::Posted => break length,
            TransmitResult::NeedsSoftware(unit) => stream.seal(unit),
            TransmitResult::Dropped(reason) => panic!("{reason:?}"),
        }
    };
    leaves(device, driver, &stream.wire[at..at + length], at);
    at + length
}

/// Checks that the posted packets leave as `expected`, which starts `at` bytes into the stream.
fn leaves(device: &mut Device, driver: &mut Driver, expected: &[u8], at: usize) {
    driver.flush(Instant::ZERO);
    device.process(Instant::ZERO);
    let mut seen = 0;
    while let Some(frame) = device.poll_frame(Instant::ZERO) {
        let payload = &frame.data[HEADERS..];
        let is_right = expected.get(seen..seen + payload.len()).is_some_and(|expected| expected == payload);
        assert!(is_right, "{} bytes from {} on", payload.len(), at + seen);
        seen += payload.len();
    }
    assert_eq!(seen, expected.len(), "all of it left");
}

/// Random steps: a position, a number of bytes, and the kind of the step.
type RandomSteps = Vec<(prop::sample::Index, usize, u8)>;

fn events() -> impl Strategy<Value = RandomSteps> {
    prop::collection::vec((any::<prop::sample::Index>(), 1usize..30_000, 0u8..24), 1..40)
}

/// Returns a NIC configuration with one of the two recovery methods and space for `cached` contexts.
fn config(next_record: bool, cached: usize) -> NicConfig {
    let transmit_resync = if next_record { TransmitResync::NextRecord } else { TransmitResync::Dump };
    NicConfig {
        engines: EngineConfigs::default().with_transmit_resync(transmit_resync),
        context_cache_bytes: cached * 208,
        ..NicConfig::default()
    }
}

/// Plays random steps on a stream of `len` bytes: sends the next bytes or earlier ones by `send`, which returns the end
/// position, or resets the device. After a reset `come_back` may create contexts again.
fn play(
    events: RandomSteps,
    len: usize,
    (device, driver): (&mut Device, &mut Driver),
    mut send: impl FnMut(&mut Device, &mut Driver, usize, usize) -> usize,
    mut come_back: impl FnMut(&mut Device, &mut Driver, usize, usize),
) {
    let mut reached = 0;
    for (index, bytes, which) in events {
        match which {
            0 => {
                device.reset(Instant::ZERO);
                // Packets sent before the driver learns of the reset are lost; the protocol may learn of it later.
                while driver.poll_event().is_some() {}
                come_back(device, driver, bytes, reached);
            }
            1..10 if reached < len => reached = send(device, driver, reached, bytes),
            _ if reached > 0 => reached = reached.max(send(device, driver, index.index(reached), bytes)),
            _ => {}
        }
    }
}

proptest! {
    /// Transmission in any order, in any packets, with resets: the digests are correct each time.
    #[test]
    fn the_sent_stream_equals_softwares_stream(
        lengths in prop::collection::vec(prop_oneof![3 => 1usize..6000, 1 => Just(0), 1 => 40_000usize..120_000], 1..8),
        start: u32,
        next_record: bool,
        cached in 1usize..4,
        events in events(),
    ) {
        let mut stream = PduStream::new(Seq(start), &lengths);
        let (mut device, mut driver) = pair(config(next_record, cached));
        let handle = Cell::new(context(&mut driver));
        play(
            events,
            stream.wire.len(),
            (&mut device, &mut driver),
            |device, driver, at, bytes| send(device, driver, &mut stream, at, bytes, handle.get()),
            |_, driver, number, _| {
                if number % 2 == 0 {
                    handle.set(context(driver));
                }
            },
        );
        prop_assert_eq!(device.counters().tx_drop_out_of_sync, 0);
    }
}

#[test]
fn only_retransmitted_digests_are_followed_by_a_dump() {
    let (mut device, mut driver) = pair(NicConfig::default());
    let handle = context(&mut driver);
    let mut stream = PduStream::new(Seq(7), &[8000, 8000]);
    let all = stream.wire.len();
    let mut at = 0;
    while at < all {
        at = send(&mut device, &mut driver, &mut stream, at, MSS, handle);
    }
    assert_eq!(device.engine_counters::<NvmeTcpCounters>().tx_nvmeotcp_digests, 2);
    assert_eq!(driver.context_counters(engines::NVME_TCP).ooo, 0);
    // A middle piece without a digest; then the end of the first PDU, which continues into the second.
    send(&mut device, &mut driver, &mut stream, 3000, MSS, handle);
    assert_eq!(
        (driver.context_counters(engines::NVME_TCP).bypass, driver.context_counters(engines::NVME_TCP).dump_packets),
        (1, 0)
    );
    send(&mut device, &mut driver, &mut stream, 7300, MSS, handle);
    let counters = driver.context_counters(engines::NVME_TCP);
    assert_eq!((counters.bypass, counters.ooo), (1, 1));
    assert_eq!((counters.dump_bytes, counters.needs_software), (7300, 0));
    assert_eq!(device.engine_counters::<NvmeTcpCounters>().tx_nvmeotcp_digests, 3);
    // Too far into a PDU for DUMPs.
    let mut long = PduStream::new(Seq(7 + all as u32), &[100_000]);
    let length = long.wire.len();
    send(&mut device, &mut driver, &mut long, 0, 50_000, handle);
    send(&mut device, &mut driver, &mut long, 50_000, length, handle);
    send(&mut device, &mut driver, &mut long, length - 3, 3, handle);
    assert_eq!(driver.context_counters(engines::NVME_TCP).needs_software, 1);
    assert_eq!(long.sealed, [true]);
}

#[test]
fn a_context_goes_after_its_last_packet() {
    let (mut device, mut driver) = pair(NicConfig {
        engines: NvmeTcpEngineConfig { contexts: 1, ..NvmeTcpEngineConfig::default() }.into(),
        ..NicConfig::default()
    });
    let handle = context(&mut driver);
    let stream = PduStream::new(Seq(7), &[100]);
    assert_eq!(driver.transmit(Instant::ZERO, stream.packet(0, 132, handle), &stream), TransmitResult::Posted);
    driver.nvme().unwrap().remove(handle);
    assert!(driver.nvme().unwrap().add_transmit(&flow()).is_err(), "there is room for one");
    driver.flush(Instant::ZERO);
    device.process(Instant::ZERO);
    let frame = device.poll_frame(Instant::ZERO).unwrap();
    assert_eq!(frame.data[HEADERS..], stream.wire);
    while device.poll_frame(Instant::ZERO).is_some() {}
    let events = |driver: &mut Driver| std::iter::from_fn(|| driver.poll_event()).collect::<Vec<_>>();
    events(&mut driver);
    device.process(Instant::ZERO);
    while device.poll_frame(Instant::ZERO).is_some() {}
    assert_eq!(events(&mut driver), [DeviceEvent::Removed { flow: flow(), handle }]);
    let next = context(&mut driver);
    assert_eq!((next.index, next.generation), (handle.index, handle.generation + 1));
    assert_eq!(driver.context_counters(engines::NVME_TCP).transmit.removed, 1);
}

#[derive(Default)]
struct NvmeWaker(AtomicBool);

impl Wake for NvmeWaker {
    fn wake(self: Arc<Self>) {
        self.0.store(true, Ordering::SeqCst);
    }
}

/// The application removes a context while its last packet is in the device and the host's service sleeps.
#[test]
fn a_context_is_removed_on_an_idle_device() {
    let (mut device, mut driver) = pair(NicConfig::default());
    let woken = Arc::new(NvmeWaker::default());
    let handle = context(&mut driver);
    let stream = PduStream::new(Seq(7), &[100]);
    let mut events = Vec::new();
    let mut falls_asleep = |driver: &mut Driver| {
        while !driver.arm(&woken.clone().into()) {
            events.extend(std::iter::from_fn(|| driver.poll_event()));
        }
        core::mem::take(&mut events)
    };
    // The creation is finished first, so that every later wakeup is due to the removal.
    driver.flush(Instant::ZERO);
    device.process(Instant::ZERO);
    while device.poll_frame(Instant::ZERO).is_some() {}
    let ready = falls_asleep(&mut driver);
    assert_eq!(ready, [], "the context can be used at once");
    woken.0.store(false, Ordering::SeqCst);
    assert_eq!(driver.transmit(Instant::ZERO, stream.packet(0, 132, handle), &stream), TransmitResult::Posted);
    driver.flush(Instant::ZERO);
    driver.nvme().unwrap().remove(handle);
    // Packet, completion, removal and its answer each may need a round.
    for _ in 0..4 {
        device.process(Instant::ZERO);
        while device.poll_frame(Instant::ZERO).is_some() {}
        assert!(woken.0.swap(false, Ordering::SeqCst), "the service is woken");
        let mut seen: Vec<_> = std::iter::from_fn(|| driver.poll_event()).collect();
        seen.extend(falls_asleep(&mut driver));
        if seen == [DeviceEvent::Removed { flow: flow(), handle }] {
            return;
        }
        assert_eq!(seen, []);
    }
    panic!("the context is never removed");
}

type NvmeTestCipher = (TlsVersion, TlsSuite);

fn key((version, suite): NvmeTestCipher) -> TlsKey {
    TlsKey::new(version, suite, &[7; 32][..suite.key_len()], [9; 12]).unwrap()
}

/// PDUs of a controller as the content of TLS records.
struct Records {
    start: Seq,
    units: Vec<Unit>,
    queued: Vec<u8>,
    /// Content of the records, and the position of each content byte on the wire.
    content: Vec<u8>,
    places: Vec<usize>,
    /// Position of each command's data in the content.
    data: Vec<(usize, usize)>,
    /// Start of each PDU in the content.
    pdus: Vec<usize>,
}

impl Records {
    fn new(
        (version, suite): NvmeTestCipher,
        start: Seq,
        lengths: &[usize],
        cuts: &[usize],
        spoilt: Option<usize>,
    ) -> Records {
        let (mut content, mut data, mut pdus) = (Vec::new(), Vec::new(), Vec::new());
        for (command, length) in lengths.iter().enumerate() {
            pdus.push(content.len());
            // C2HData with a digest, as in the specification's figure: common header, command, offset, length.
            content.extend([7, 0b10, 24, 24]);
            content.extend((28 + *length as u32).to_le_bytes());
            content.extend((command as u16).to_le_bytes());
            content.extend([0; 6]);
            content.extend((*length as u32).to_le_bytes());
            content.extend([0; 4]);
            data.push((content.len(), *length));
            let bytes: Vec<u8> = (0..*length).map(|at| (at * 31 + command * 7) as u8).collect();
            content.extend(&bytes);
            content.extend((crc32c::crc32c(&bytes) ^ u32::from(spoilt == Some(command))).to_le_bytes());
        }
        let (mut queued, mut units, mut places) = (Vec::new(), Vec::new(), Vec::new());
        let explicit = if version == TlsVersion::Tls12 && suite != TlsSuite::ChaCha20Poly1305 { 8 } else { 0 };
        let inner = if version == TlsVersion::Tls13 { &[23][..] } else { &[] };
        let (mut done, mut cuts) = (0, cuts.iter().cycle());
        // Records end at any byte, also inside PDU headers.
        while done < content.len() {
            let from = start + queued.len() as u32;
            let part = &content[done..content.len().min(done + cuts.next().unwrap())];
            let after = (explicit + part.len() + inner.len() + 16) as u16;
            queued.extend([23, 3, 3, (after >> 8) as u8, after as u8]);
            queued.extend(vec![units.len() as u8; explicit]);
            // Only content is searched later: framing of records has no position in the PDU stream.
            places.extend(queued.len()..queued.len() + part.len());
            queued.extend(part);
            queued.extend(inner);
            queued.extend([0; 16]);
            done += part.len();
            let offset = u64::from(from.distance_from(start));
            let (number, len) = (units.len() as u64, (queued.len() as u64 - offset) as u32);
            units.push(Unit { layer: Layer::FIRST, number, offset, start: from, len, touched_from: 0 });
        }
        Records { start, units, queued, content, places, data, pdus }
    }

    /// Returns the whole stream in frames sealed by a NIC.
    fn frames(&self, cipher: NvmeTestCipher, mss: usize) -> Vec<Frame> {
        let (mut device, mut driver) = pair(NicConfig::default());
        let context = driver.tls().unwrap().add(&flow(), Direction::Transmit, self.start, 0, &key(cipher)).unwrap();
        let mut all = Vec::new();
        for at in (0..self.queued.len()).step_by(mss) {
            let seq = self.start + at as u32;
            let bytes = &self.queued[at..self.queued.len().min(at + mss)];
            let streams = [Some(StreamAsk::whole(context, at as u64, bytes.len() as u32)), None];
            let packet = TxPacket {
                header: headers(seq).into(),
                fragments: [Bytes::copy_from_slice(bytes)].into_iter().collect(),
                ask: TxAsk { seq, streams, checksum: true, mss: Some(mss as u16), ..TxAsk::default() },
            };
            assert_eq!(driver.transmit(Instant::ZERO, packet, self), TransmitResult::Posted);
            driver.flush(Instant::ZERO);
            device.process(Instant::ZERO);
            all.extend(std::iter::from_fn(|| device.poll_frame(Instant::ZERO)));
        }
        all
    }

    /// Returns the content position of the byte at `place` on the wire.
    fn content_at(&self, place: usize) -> usize {
        self.places.binary_search(&place).expect("only content is placed")
    }
}

impl RecordSource for Records {
    fn unit_at(&self, _: Layer, offset: u64) -> Lookup {
        let unit = self.units.iter().find(|unit| unit.contains(offset));
        unit.map_or(Lookup::Released, |unit| Lookup::In(*unit))
    }

    fn pieces(&self, _: Layer, from: u64, to: u64, _: &mut dyn FnMut(QueuedBytes)) {
        assert_eq!(from, to, "the stream is sent in order");
    }
}

struct DiscardingBuffer;

impl PieceHome for DiscardingBuffer {
    fn take_back(&self, _: u64, _: BytesMut) {}
}

/// Makes a receiving NIC with a context for each layer, and the buffers of all commands.
fn receiver(cipher: NvmeTestCipher, records: &Records, lengths: &[usize]) -> (Device, Driver, Handle, Handle) {
    let (mut device, mut driver) = pair(NicConfig {
        lro: false,
        mac: [0xff; 6],
        engines: NvmeTcpEngineConfig { io_threshold: 0, ..NvmeTcpEngineConfig::default() }.into(),
        ..NicConfig::default()
    });
    let here = flow().reversed();
    let tls = driver.tls().unwrap().add(&here, Direction::Receive, records.start, 0, &key(cipher)).unwrap();
    let config = NvmeTcpConfig { data_digest: true, check: true, ..NvmeTcpConfig::default() };
    let first = records.start + records.places[0] as u32;
    let nvme = driver.nvme().unwrap().at(Layer::SECOND).add(&here, first, &config).unwrap();
    for (command, length) in lengths.iter().enumerate() {
        driver.nvme().unwrap().place(
            nvme,
            command as u16,
            vec![Piece::new(0, BytesMut::zeroed(*length), Arc::new(DiscardingBuffer))],
        );
    }
    run(&mut device);
    while driver.poll_event().is_some() {}
    (device, driver, tls, nvme)
}

fn run(device: &mut Device) {
    device.process(Instant::ZERO);
    while device.poll_frame(Instant::ZERO).is_some() {}
    device.process(Instant::ZERO);
}

/// Receives a frame with its payload at `at` on the wire, and checks the result. Returns the number of placed bytes,
/// and whether the device verified the packet.
fn take(
    device: &mut Device,
    driver: &mut Driver,
    records: &Records,
    spoilt: Option<usize>,
    frame: &Frame,
    at: usize,
) -> (usize, bool) {
    device.receive_frame(Instant::ZERO, frame.clone());
    run(device);
    let packet = driver.receive(Instant::ZERO).unwrap();
    let length = frame.data.len() - HEADERS;
    // Undecrypted payload is unknown to the NVMe/TCP engine, so nothing is placed.
    if packet.meta.tls() != TlsVerdict::Decrypted {
        assert!(packet.placed.is_empty() && packet.meta.nvme() == NvmeVerdict::NotChecked);
        assert_eq!(packet.frame[HEADERS..], frame.data[HEADERS..], "as it was on the wire");
        return (0, false);
    }
    let mut bytes = 0;
    for (offset, mut piece) in packet.placed {
        let from = records.content_at(at + offset);
        let part = records.data.iter().find(|(start, length)| (*start..start + length).contains(&from));
        let (start, _) = part.expect("only data are placed");
        assert_eq!(piece.offset() as usize, from - start);
        let expected = &records.content[from..from + piece.len()];
        assert_eq!(piece.bytes_mut(), expected);
        bytes += piece.len();
    }
    let good = packet.meta.nvme() == NvmeVerdict::Good;
    // A packet with the end of a wrong digest must not be reported as verified.
    if let Some((start, data)) = spoilt.and_then(|spoilt| records.data.get(spoilt)).filter(|_| good) {
        let end = records.places[start + data + 3];
        assert!(!(at..at + length).contains(&end), "a wrong digest");
    }
    (bytes, good)
}

/// Answers the device's resync requests. Returns whether there was one.
fn answer(device: &mut Device, driver: &mut Driver, records: &Records, (tls, nvme): (Handle, Handle)) {
    for _ in 0..2 {
        while let Some(event) = driver.poll_event() {
            let DeviceEvent::ResyncRequested { handle, header, .. } = event else { continue };
            if handle == tls {
                let unit = records.units.iter().find(|unit| unit.start == header);
                driver.tls().unwrap().answer_resync(handle, header, unit.map(|unit| unit.number));
            } else {
                assert_eq!(handle, nvme);
                let at = header.distance_from(records.start) as usize;
                let is_header = records.pdus.iter().any(|pdu| records.places[*pdu] == at);
                driver.nvme().unwrap().answer_resync(handle, header, is_header);
            }
        }
        run(device);
    }
}

fn ciphers() -> impl Strategy<Value = NvmeTestCipher> {
    let version = prop_oneof![Just(TlsVersion::Tls12), Just(TlsVersion::Tls13)];
    (version, prop_oneof![Just(TlsSuite::Aes128Gcm), Just(TlsSuite::ChaCha20Poly1305)])
}

proptest! {
    /// Records and PDUs overlap at any position; packets are lost, late and duplicated.
    #[test]
    fn over_tls_placed_and_verified_data_are_right(
        cipher in ciphers(),
        lengths in prop::collection::vec(prop_oneof![1usize..900, 2_000usize..20_000], 1..12),
        cuts in prop::collection::vec(prop_oneof![1usize..50, 100usize..2_000, 16_384usize..16_385], 1..6),
        spoilt in prop::option::of(0usize..12),
        mss in 200usize..1_446,
        fates in prop::collection::vec(0u8..20, 64),
        start: u32,
    ) {
        let records = Records::new(cipher, Seq(start), &lengths, &cuts, spoilt);
        let (mut device, mut driver, tls, nvme) = receiver(cipher, &records, &lengths);
        let (mut held, mut gaps, mut placed) = (None, false, 0);
        for (number, frame) in records.frames(cipher, mss).into_iter().enumerate() {
            let at = number * mss;
            let mut arrivals = vec![(at, frame.clone())];
            // Lost, late, duplicated, and delivered after a late one.
            match fates[number % fates.len()] {
                0 => {
                    gaps = true;
                    continue;
                }
                1 if held.is_none() => {
                    (held, gaps) = (Some((at, frame)), true);
                    continue;
                }
                2 => arrivals.push((at, frame)),
                3 => arrivals.extend(held.take()),
                _ => {}
            }
            for (at, frame) in arrivals {
                placed += take(&mut device, &mut driver, &records, spoilt, &frame, at).0;
                // Software answers at once, as a protocol does.
                answer(&mut device, &mut driver, &records, (tls, nvme));
            }
        }
        // Without gaps every data byte is placed.
        if !gaps {
            prop_assert_eq!(placed, lengths.iter().sum::<usize>());
            prop_assert_eq!(device.engine_counters::<NvmeTcpCounters>().rx_nvmeotcp_drop, 0);
        }
    }
}

#[test]
fn over_tls_a_gap_in_a_record_keeps_the_pdu_position() {
    let cipher = (TlsVersion::Tls13, TlsSuite::Aes128Gcm);
    let lengths = [60_000, 10_000];
    let records = Records::new(cipher, Seq(u32::MAX - 5_000), &lengths, &[4_000], None);
    let (mut device, mut driver, ..) = receiver(cipher, &records, &lengths);
    let (mut placed, mut vouched) = (0, 0);
    for (number, frame) in records.frames(cipher, 1_000).into_iter().enumerate() {
        if number == 9 {
            continue; // lost
        }
        let (bytes, good) = take(&mut device, &mut driver, &records, None, &frame, number * 1_000);
        placed += bytes;
        vouched += usize::from(good);
    }
    // Lost are the rest of the record with the gap, and the packet with the next header.
    assert!(placed > 70_000 - 5_000, "{placed}");
    assert!((9..30).contains(&vouched), "the first packets, and those of the second PDU: {vouched}");
    assert_eq!(
        (
            device.engine_counters::<NvmeTcpCounters>().rx_nvmeotcp_drop,
            device.engine_counters::<NvmeTcpCounters>().rx_nvmeotcp_resync
        ),
        (0, 0)
    );
}

/// Segments are joined, and the placed parts of each segment are reported at their position in the joined packet. A
/// command's data may arrive in several PDUs, so parts that are adjacent in the buffer need not be adjacent in the
/// packet.
#[test]
fn placements_of_joined_segments_are_reported_in_one_packet() {
    joined_segments_are_told_in_one_packet(None);
}

/// Cipher blocks that segments cut are whole again.
#[test]
fn decryption_of_joined_segments_is_reported_in_one_packet() {
    let key: Vec<u8> = (0..64).collect();
    let units = DataUnits::new(512).unwrap();
    joined_segments_are_told_in_one_packet(Some(Volume::new(XtsKey::new(&key).unwrap(), units)));
}

fn joined_segments_are_told_in_one_packet(volume: Option<Volume>) {
    const PARTS: [(u32, usize); 4] = [(0, 1504), (1504, 1008), (2512, 2688), (5200, 800)];
    let plain: Vec<u8> = (0..6000).map(|at| (at * 31) as u8).collect();
    let mut data = plain.clone();
    // The volume's first block has number 3 in this test.
    volume.iter().for_each(|volume| volume.encrypt(3, 0, &mut data).unwrap());
    let (mut content, mut starts) = (Vec::new(), Vec::new());
    for (offset, length) in PARTS {
        content.extend([7, 0, 24, 24]);
        content.extend((24 + length as u32).to_le_bytes());
        content.extend([0; 4]);
        content.extend(offset.to_le_bytes());
        content.extend((length as u32).to_le_bytes());
        content.extend([0; 4]);
        // The data of a PDU are placed at their offset, wherever the PDU lies in the stream.
        starts.push(content.len());
        content.extend(&data[offset as usize..][..length]);
    }
    let (mut far, mut receiver) = pair(NicConfig {
        mac: [0xff; 6],
        engines: NvmeTcpEngineConfig { io_threshold: 0, ..NvmeTcpEngineConfig::default() }.into(),
        ..NicConfig::default()
    });
    let tenant = WrappingKey { tenant: 7, key: SecretBytes::new(vec![9; 32]) };
    let contexts = receiver.contexts().unwrap();
    let key = tenant.import(contexts, 1, &SecretBytes::new((0..64).collect()), 512, Tweak::Unit).unwrap();
    let mut contexts = receiver.nvme().unwrap();
    let context = contexts.add(&flow().reversed(), Seq(7), &NvmeTcpConfig::default()).unwrap();
    // Two buffers, of 2,512 and 3,488 bytes.
    let piece = |offset, bytes| Piece::new(offset, BytesMut::zeroed(bytes), Arc::new(DiscardingBuffer));
    let buffers = vec![piece(0, 2512), piece(2512, 3488)];
    // Without a volume the same data are placed unencrypted, with the same positions.
    match &volume {
        None => contexts.place(context, 0, buffers),
        Some(_) => {
            let stages = NvmeTcpStages { command: 0, unit: 3, stages: vec![StageSpec::new(XTS_STAGE, key)] };
            contexts.place_through(context, stages, buffers);
        }
    }
    run(&mut far);
    deliver(&content, &mut far);
    let mut packet = receiver.receive(Instant::ZERO).unwrap();
    assert_eq!(packet.frame.len(), HEADERS + content.len(), "one packet");
    assert_eq!(packet.joined.map(|bytes| bytes.get()), Some(1000));
    let told: Vec<_> = packet.placed.iter().map(|(at, piece)| (*at, piece.offset() as u32, piece.len())).collect();
    let expected: Vec<_> = starts.iter().zip(PARTS).map(|(at, (offset, length))| (*at, offset, length)).collect();
    assert_eq!(told, expected);
    // Each piece is decrypted completely, although segments cut its blocks.
    for (_, piece) in &mut packet.placed {
        let (start, end) = (piece.offset(), piece.offset() + piece.len() as u64);
        assert_eq!(piece.opened(), if volume.is_some() { start..end } else { 0..0 });
        assert_eq!(plain[start as usize..end as usize], *piece.bytes_mut());
    }
}

/// Sends these bytes to another NIC in segments of 1,000 bytes.
fn deliver(content: &[u8], far: &mut Device) {
    let (mut near, mut sender) = pair(NicConfig::default());
    let ask = TxAsk { seq: Seq(7), checksum: true, mss: Some(1000), ..TxAsk::default() };
    let fragments = [Bytes::copy_from_slice(content)].into_iter().collect();
    let packet = TxPacket { header: headers(Seq(7)).into(), fragments, ask };
    assert_eq!(sender.transmit(Instant::ZERO, packet, &NoRecords), TransmitResult::Posted);
    sender.flush(Instant::ZERO);
    near.process(Instant::ZERO);
    while let Some(frame) = near.poll_frame(Instant::ZERO) {
        far.receive_frame(Instant::ZERO, frame);
    }
    run(far);
}

/// The way in which a buffer with stages leaves the device before a plain buffer with the same identifier.
#[derive(Clone, Copy, Debug)]
enum BufferExit {
    /// Number of free places on the control ring.
    Room(usize),
    /// Number of pieces of the buffer.
    Pieces(usize),
    Released,
}

/// A command of an encrypted volume is followed by a plain read with the same identifier. Whatever the device received
/// of the first command, the data of the second must pass no stages.
#[test]
fn stages_go_with_their_buffer() {
    let rooms = (0..4).map(BufferExit::Room);
    for before in rooms.chain([1, 31, 32, 33, 100].map(BufferExit::Pieces)).chain([BufferExit::Released]) {
        let config = NicConfig {
            control_ring: 8,
            engines: NvmeTcpEngineConfig { io_threshold: 0, ..NvmeTcpEngineConfig::default() }.into(),
            ..NicConfig::default()
        };
        let (mut far, mut receiver) = pair(NicConfig { mac: [0xff; 6], lro: false, ..config });
        let mut settle = |receiver: &mut Driver| {
            run(&mut far);
            while receiver.poll_event().is_some() {}
            while receiver.contexts().unwrap().poll_news().is_some() {}
        };
        let tenant = WrappingKey { tenant: 7, key: SecretBytes::new(vec![9; 32]) };
        let contexts = receiver.contexts().unwrap();
        let key = tenant.import(contexts, 1, &SecretBytes::new((0..64).collect()), 512, Tweak::Unit).unwrap();
        let context = receiver.nvme().unwrap().add(&flow().reversed(), Seq(7), &NvmeTcpConfig::default()).unwrap();
        settle(&mut receiver);
        // Commands for another engine occupy the ring without side effects.
        let engine = receiver.contexts().unwrap().engine("quic").unwrap().number;
        let fill = |receiver: &mut Driver| {
            let change = offload_api::quic::QuicPort { port: 9, cid_bytes: None };
            receiver.contexts().unwrap().change(engine, Box::new(change)).is_ok()
        };
        let mut pieces = 1;
        match before {
            BufferExit::Room(room) => {
                // The ring is filled up to the given number of free places.
                let places = (0..).take_while(|_| fill(&mut receiver)).count();
                settle(&mut receiver);
                (room..places).for_each(|_| assert!(fill(&mut receiver)));
            }
            BufferExit::Pieces(count) => pieces = count,
            BufferExit::Released => {}
        }
        let buffer = |pieces: usize| {
            (0..pieces as u64)
                .map(|at| Piece::new(512 * at, BytesMut::zeroed(512), Arc::new(DiscardingBuffer)))
                .collect()
        };
        let stages = NvmeTcpStages { command: 0, unit: 3, stages: vec![StageSpec::new(XTS_STAGE, key)] };
        // If the ring lacks room, the driver returns the buffer at once.
        receiver.nvme().unwrap().place_through(context, stages, buffer(pieces));
        settle(&mut receiver);
        if let BufferExit::Released = before {
            receiver.nvme().unwrap().release(context, 0);
            settle(&mut receiver);
        }
        // The second command has the same identifier and no stages.
        receiver.nvme().unwrap().place(context, 0, buffer(1));
        settle(&mut receiver);
        let data: Vec<u8> = (0..512).map(|at| (at * 31) as u8).collect();
        let mut pdu = vec![7, 0, 24, 24];
        pdu.extend((24 + 512u32).to_le_bytes());
        pdu.extend([0; 8]);
        pdu.extend(512u32.to_le_bytes());
        pdu.extend([0; 4]);
        pdu.extend(&data);
        deliver(&pdu, &mut far);
        let mut packet = receiver.receive(Instant::ZERO).unwrap();
        let (_, piece) = packet.placed.first_mut().expect("the data are placed");
        assert!(piece.opened().is_empty(), "{before:?}: these data were never encrypted");
        assert_eq!(piece.bytes_mut()[..], data);
    }
}
