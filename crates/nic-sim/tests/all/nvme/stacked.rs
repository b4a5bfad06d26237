//! Data encrypted by AES-XTS, digests computed, and records sealed in one pass of the NIC. The result equals software's
//! for any packets and retransmissions.

use super::{HEADERS, MSS, NvmeTestCipher, ciphers, config, events, flow, headers, key, leaves, pair, play};
use bytes::Bytes;
use core::cell::RefCell;
use nic_sim::stats::NvmeTcpCounters;
use nic_sim::wire::Port;
use nic_sim::{Device, Driver, EngineConfigs, NicConfig, TransmitResync};
use offload_api::{
    DeviceEvent, Direction, Handle, Layer, Lookup, MarkedData, NetDevice, NvmeTcpStages, QueuedBytes, RecordSource,
    StageSpec, StreamAsk, TlsSuite, TlsVersion, TransmitResult, TxAsk, TxPacket, TxTag, TypedContexts, Unit, UnitTag,
    XTS_STAGE, engines,
};
use offload_base::{Instant, Seq};
use offload_jobs::WrappingKey;
use offload_transforms::{SecretBytes, Tweak};
use proptest::prelude::*;
use resumable_aead::{DataUnits, Volume, XtsKey};

/// PDUs as the content of records, as a transport keeps them.
struct PduQueue {
    start: Seq,
    chunks: Vec<PduChunk>,
    /// The stream as on the wire.
    wire: Vec<u8>,
    /// Content of all records, with digests.
    content: Vec<u8>,
    handles: LayerHandles,
}

#[derive(Clone)]
struct PduChunk {
    at: usize,
    data: Bytes,
    record: UnitTag,
    pdu: Option<UnitTag>,
    /// Position in the content.
    content_at: usize,
    needs_digest: bool,
    needs_seal: bool,
}

#[derive(Clone, Copy, Debug)]
struct LayerHandles {
    tls: Handle,
    nvme: Handle,
}

impl PduChunk {
    fn end(&self) -> usize {
        self.at + self.data.len()
    }

    fn unit(&self, layer: Layer) -> Option<UnitTag> {
        if layer == Layer::FIRST { Some(self.record) } else { self.pdu }
    }

    /// Returns the position in a layer's stream.
    fn offset(&self, layer: Layer) -> u64 {
        if layer == Layer::FIRST { self.at as u64 } else { self.content_at as u64 }
    }
}

/// A PDU as queued and as on the wire, and the first byte that the NIC changes.
struct BuiltPdu {
    queued: Vec<u8>,
    wire: Vec<u8>,
    touched_from: u32,
}

/// Makes PDUs with data of these lengths and digests by the NIC. Without data a PDU has no digest.
fn with_digests(lengths: &[usize]) -> Vec<BuiltPdu> {
    let made = |(number, length): (usize, &usize)| {
        let data: Vec<u8> = (0..*length).map(|at| (at * 31 + number * 7) as u8).collect();
        let (flags, offset) = if data.is_empty() { (0, 0) } else { (0b10, 28) };
        let plen = if data.is_empty() { 24 } else { 28 + length + 4 };
        let mut header = vec![7, flags, 24, offset];
        header.extend((plen as u32).to_le_bytes());
        header.resize(if data.is_empty() { 24 } else { 28 }, number as u8);
        let (mut queued, mut wire) = ([&header[..], &data].concat(), [&header[..], &data].concat());
        if !data.is_empty() {
            queued.extend([0; 4]);
            wire.extend(crc32c::crc32c(&data).to_le_bytes());
        }
        let touched_from = if plen > 24 { plen as u32 - 4 } else { 24 };
        BuiltPdu { queued, wire, touched_from }
    };
    lengths.iter().enumerate().map(made).collect()
}

/// Makes host PDUs with data of these lengths, in blocks of 16 bytes of a volume, some with a digest.
fn encrypted(volume: &Volume, lengths: &[usize]) -> Vec<BuiltPdu> {
    let made = |(number, blocks): (usize, &usize)| {
        let data: Vec<u8> = (0..blocks * 16).map(|at| (at * 31 + number * 7) as u8).collect();
        let digested = number % 3 < 2;
        let plen = 24 + data.len() + if digested { 4 } else { 0 };
        let (first, offset) = (1000 * number as u64, 48 * number as u32);
        let mut header = vec![6, if digested { 0b10 } else { 0 }, 24, 24];
        header.extend((plen as u32).to_le_bytes());
        header.extend([7, 0, 1, 0]);
        header.extend(offset.to_le_bytes());
        header.extend((data.len() as u64).to_le_bytes());
        let mut marked = header.clone();
        MarkedData::new(VOLUME, first).unwrap().write(marked.first_chunk_mut().unwrap());
        let mut ciphertext = data.clone();
        volume.encrypt(first, offset.into(), &mut ciphertext).unwrap();
        let (mut queued, mut wire) = ([marked, data].concat(), [&header[..], &ciphertext].concat());
        if digested {
            queued.extend([0; 4]);
            wire.extend(crc32c::crc32c(&ciphertext).to_le_bytes());
        }
        BuiltPdu { queued, wire, touched_from: MarkedData::AT as u32 }
    };
    lengths.iter().enumerate().map(made).collect()
}

/// Number by which PDUs name the volume's stages.
const VOLUME: u16 = 3;

impl PduQueue {
    /// Puts PDUs into records with content of these lengths.
    fn new(
        (version, suite): NvmeTestCipher,
        start: Seq,
        made: &[BuiltPdu],
        cuts: &[usize],
        handles: LayerHandles,
    ) -> PduQueue {
        let (mut queued, mut content, mut pdus) = (Vec::new(), Vec::new(), Vec::new());
        for pdu in made {
            pdus.push((content.len(), pdu.wire.len(), pdu.touched_from));
            queued.extend(&pdu.queued);
            content.extend(&pdu.wire);
        }
        let explicit = if version == TlsVersion::Tls12 && suite != TlsSuite::ChaCha20Poly1305 { 8 } else { 0 };
        let inner = if version == TlsVersion::Tls13 { &[23][..] } else { &[] };
        let (mut chunks, mut at, mut done) = (Vec::new(), 0, 0);
        let mut cuts = cuts.iter().cycle();
        while done < content.len() {
            let number = chunks.last().map_or(0, |chunk: &PduChunk| chunk.record.number + 1);
            let end = content.len().min(done + cuts.next().unwrap());
            let after = (explicit + end - done + inner.len() + 16) as u16;
            let mut prefix = vec![23, 3, 3, (after >> 8) as u8, after as u8];
            prefix.extend(vec![number as u8; explicit]);
            let record_start = at;
            let len = prefix.len() as u32 + u32::from(after) - explicit as u32;
            // A chunk is the unit of tagging: all of its bytes have the same record and PDU.
            let mut push = |data: Vec<u8>, pdu: Option<UnitTag>, content_at: usize| {
                let record = UnitTag { number, at: (at - record_start) as u32, len, touched_from: 0 };
                let data = Bytes::from(data);
                let chunk =
                    PduChunk { at, data, record, pdu, content_at, needs_digest: pdu.is_some(), needs_seal: true };
                at = chunk.end();
                chunks.push(chunk);
            };
            // Framing of records belongs to no PDU.
            push(prefix, None, done);
            while done < end {
                let pdu = pdus.partition_point(|(start, ..)| *start <= done) - 1;
                let (from, plen, touched_from) = pdus[pdu];
                let to = end.min(from + plen);
                let (at, len) = ((done - from) as u32, plen as u32);
                let tag = UnitTag { number: pdu as u64, at, len, touched_from };
                push(queued[done..to].to_vec(), Some(tag), done);
                done = to;
            }
            push([inner, &[0; 16]].concat(), None, done);
        }
        let mut queue = PduQueue { start, chunks, wire: Vec::new(), content, handles };
        // The expected bytes come from a NIC that sees the finished content, without the digest engine.
        queue.wire = queue.sealed((version, suite));
        queue
    }

    /// Returns the whole stream with digests by software, sealed by a NIC.
    fn sealed(&self, cipher: NvmeTestCipher) -> Vec<u8> {
        let (mut device, mut driver) = pair(NicConfig::default());
        let tls = driver.tls().unwrap().add(&flow(), Direction::Transmit, self.start, 0, &key(cipher)).unwrap();
        let mut plain = Vec::new();
        for chunk in &self.chunks {
            match chunk.pdu {
                Some(_) => plain.extend(&self.content[chunk.content_at..chunk.content_at + chunk.data.len()]),
                None => plain.extend(&chunk.data),
            }
        }
        let mut wire = Vec::new();
        for at in (0..plain.len()).step_by(MSS) {
            let seq = self.start + at as u32;
            let data = Bytes::copy_from_slice(&plain[at..plain.len().min(at + MSS)]);
            let streams = [Some(StreamAsk::whole(tls, at as u64, data.len() as u32)), None];
            let ask = TxAsk { seq, streams, checksum: true, ..TxAsk::default() };
            let packet = TxPacket { header: headers(seq).into(), fragments: [data].into_iter().collect(), ask };
            assert_eq!(driver.transmit(Instant::ZERO, packet, self), TransmitResult::Posted);
            driver.flush(Instant::ZERO);
            device.process(Instant::ZERO);
            while let Some(frame) = device.poll_frame(Instant::ZERO) {
                wire.extend(&frame.data[HEADERS..]);
            }
        }
        wire
    }

    fn tag(&self, chunk: &PduChunk, from: usize) -> TxTag {
        let content = match chunk.pdu {
            Some(pdu) if chunk.needs_digest => TxTag::device(self.handles.nvme, pdu),
            Some(pdu) => TxTag::done(pdu),
            None => TxTag::PLAIN,
        };
        let tag = content.within(chunk.needs_seal.then_some(self.handles.tls), chunk.record);
        tag.unwrap().advanced(from as u32)
    }

    fn chunk_at(&self, at: usize) -> &PduChunk {
        self.chunks.iter().find(|chunk| (chunk.at..chunk.end()).contains(&at)).unwrap()
    }

    /// Makes a packet of up to `bytes` bytes for one set of contexts, in at most 64 pieces.
    fn packet(&self, at: usize, bytes: usize) -> TxPacket {
        let first = self.chunk_at(at);
        let (mut fragments, mut digests, mut needs): (Vec<Bytes>, Option<StreamAsk>, _) = (Vec::new(), None, None);
        let mut here = at;
        for chunk in self.chunks.iter().filter(|chunk| chunk.end() > at) {
            let end = chunk.end().min(at + bytes);
            let other = needs.is_some_and(|needs| needs != chunk.needs_digest) && chunk.pdu.is_some();
            if here >= at + bytes || chunk.needs_seal != first.needs_seal || other || fragments.len() == 64 {
                break;
            }
            let from = here - chunk.at;
            if chunk.pdu.is_some() {
                needs = Some(chunk.needs_digest);
                if chunk.needs_digest {
                    let (context, offset) = (self.handles.nvme, (chunk.content_at + from) as u64);
                    let ask = digests.get_or_insert(StreamAsk { context, offset, bytes: 0, fragments: 0 });
                    ask.fragments |= 1 << fragments.len();
                    ask.bytes += (end - here) as u32;
                }
            }
            fragments.push(chunk.data.slice(from..end - chunk.at));
            here = end;
        }
        let seq = self.start + at as u32;
        let of_packet = || StreamAsk::whole(self.handles.tls, at as u64, (here - at) as u32);
        let streams = [first.needs_seal.then(of_packet), digests];
        let ask = TxAsk { seq, streams, checksum: true, mss: Some(MSS as u16), ..TxAsk::default() };
        TxPacket { header: headers(seq).into(), fragments: fragments.into_iter().collect(), ask }
    }

    /// Restores one context, both or none after a reset, chosen by `number`. Returns the NVMe/TCP context if it was
    /// restored.
    fn come_back(
        &mut self,
        driver: &mut Driver,
        cipher: NvmeTestCipher,
        number: usize,
        reached: usize,
    ) -> Option<Handle> {
        if number.is_multiple_of(2) {
            let start = self.start + reached as u32;
            self.handles.tls = driver.tls().unwrap().add(&flow(), Direction::Transmit, start, 0, &key(cipher)).unwrap();
        }
        number.is_multiple_of(3).then(|| {
            self.handles.nvme = driver.nvme().unwrap().add_transmit(&flow()).unwrap();
            self.handles.nvme
        })
    }

    /// Seals a unit as a transport does after `NeedsSoftware`.
    fn seal(&mut self, unit: Unit) {
        let numbers: Vec<u64> = match unit.layer {
            Layer::SECOND => vec![unit.number],
            _ => {
                let held = self.chunks.iter().filter(|chunk| chunk.record.number == unit.number && chunk.needs_digest);
                held.filter_map(|chunk| Some(chunk.pdu?.number)).collect()
            }
        };
        let mut any = unit.layer == Layer::FIRST;
        for chunk in &mut self.chunks {
            if chunk.needs_digest && chunk.pdu.is_some_and(|pdu| numbers.contains(&pdu.number)) {
                assert!(chunk.needs_seal, "no part of the record may be sealed already");
                let data = &self.content[chunk.content_at..chunk.content_at + chunk.data.len()];
                (chunk.data, chunk.needs_digest, any) = (Bytes::copy_from_slice(data), false, true);
            }
            if unit.layer == Layer::FIRST && chunk.record.number == unit.number {
                assert!(core::mem::take(&mut chunk.needs_seal), "sealed twice");
                chunk.data = Bytes::copy_from_slice(&self.wire[chunk.at..chunk.at + chunk.data.len()]);
            }
        }
        assert!(any, "there was nothing to seal");
    }
}

impl RecordSource for PduQueue {
    fn unit_at(&self, layer: Layer, offset: u64) -> Lookup {
        let chunk = self.chunks.iter().find(|chunk| {
            let from = chunk.offset(layer);
            chunk.unit(layer).is_some() && (from..from + chunk.data.len() as u64).contains(&offset)
        });
        let Some((chunk, tag)) = chunk.and_then(|chunk| Some((chunk, chunk.unit(layer)?))) else {
            return Lookup::Released;
        };
        let UnitTag { number, len, touched_from, .. } = tag;
        let is_first = |chunk: &&PduChunk| chunk.unit(layer).is_some_and(|tag| tag.number == number && tag.at == 0);
        let start = self.start + self.chunks.iter().find(is_first).unwrap().at as u32;
        Lookup::In(Unit { layer, number, offset: chunk.offset(layer) - u64::from(tag.at), start, len, touched_from })
    }

    fn pieces(&self, layer: Layer, from: u64, to: u64, sink: &mut dyn FnMut(QueuedBytes)) {
        for chunk in self.chunks.iter().filter(|chunk| chunk.unit(layer).is_some()) {
            let (at, bytes) = (chunk.offset(layer), chunk.data.len() as u64);
            if at < to && at + bytes > from {
                let start = from.saturating_sub(at);
                let offsets = Layer::ALL.map(|layer| chunk.offset(layer) + start);
                let bytes = chunk.data.slice(start as usize..bytes.min(to - at) as usize);
                sink(QueuedBytes { bytes, tag: self.tag(chunk, start as usize), offsets });
            }
        }
    }
}

fn contexts(driver: &mut Driver, cipher: NvmeTestCipher, start: Seq) -> LayerHandles {
    let tls = driver.tls().unwrap().add(&flow(), Direction::Transmit, start, 0, &key(cipher)).unwrap();
    LayerHandles { tls, nvme: driver.nvme().unwrap().add_transmit(&flow()).unwrap() }
}

/// Sends up to `bytes` bytes from `at` on, with the help of software if necessary, and checks them. Returns the end
/// position.
fn send(device: &mut Device, driver: &mut Driver, queue: &mut PduQueue, at: usize, bytes: usize) -> usize {
    let length = loop {
        let packet = queue.packet(at, bytes);
        let length = packet.payload_len();
        match driver.transmit(Instant::ZERO, packet, &*queue) {
            TransmitResult::Posted => break length,
            TransmitResult::NeedsSoftware(unit) => queue.seal(unit),
            TransmitResult::Dropped(reason) => panic!("{reason:?}"),
        }
    };
    leaves(device, driver, &queue.wire[at..at + length], at);
    at + length
}

proptest! {
    /// Transmission in any order, in any packets, with resets: digests and records are correct each time.
    #[test]
    fn sent_records_equal_softwares_records(
        cipher in ciphers(),
        lengths in prop::collection::vec(prop_oneof![3 => 1usize..3000, 1 => Just(0), 1 => 20_000usize..60_000], 1..8),
        cuts in prop::collection::vec(prop_oneof![1usize..60, 100usize..3_000, Just(16_384)], 1..6),
        start: u32,
        next_record: bool,
        cached in 1usize..4,
        events in events(),
    ) {
        // Limits the number of records, and therefore the duration of a case.
        let least = lengths.iter().sum::<usize>() / 400;
        let cuts: Vec<usize> = cuts.into_iter().map(|cut| cut.max(least)).collect();
        let (mut device, mut driver) = pair(config(next_record, cached));
        let handles = contexts(&mut driver, cipher, Seq(start));
        let queue = RefCell::new(PduQueue::new(cipher, Seq(start), &with_digests(&lengths), &cuts, handles));
        let len = queue.borrow().wire.len();
        play(
            events,
            len,
            (&mut device, &mut driver),
            |device, driver, at, bytes| send(device, driver, &mut queue.borrow_mut(), at, bytes),
            |_, driver, number, reached| {
                queue.borrow_mut().come_back(driver, cipher, number, reached);
            },
        );
        prop_assert_eq!(device.counters().tx_drop_out_of_sync, 0);
        prop_assert_eq!(device.counters().tx_stale_parameters, 0);
    }
}

/// A volume and its key for the NIC.
struct KeyedVolumeStage {
    volume: Volume,
    key: Vec<u8>,
    unit: u32,
}

impl KeyedVolumeStage {
    fn new(bytes: usize, unit: u32) -> KeyedVolumeStage {
        let key: Vec<u8> = (0..bytes as u8).collect();
        let volume = Volume::new(XtsKey::new(&key).unwrap(), DataUnits::new(unit as usize).unwrap());
        KeyedVolumeStage { volume, key, unit }
    }

    /// Gives the key to the NIC and to the digest context's stages. Returns the key's context.
    fn import(&self, device: &mut Device, driver: &mut Driver, nvme: Handle) -> Handle {
        let tenant = WrappingKey { tenant: 7, key: SecretBytes::new(vec![9; 32]) };
        let contexts = driver.contexts().unwrap();
        let key = tenant.import(contexts, 1, &SecretBytes::new(self.key.clone()), self.unit, Tweak::Unit).unwrap();
        let stages = vec![StageSpec::new(XTS_STAGE, key)];
        assert!(driver.nvme().unwrap().seal_with(nvme, NvmeTcpStages { command: VOLUME, unit: 0, stages }));
        device.process(Instant::ZERO);
        key.key
    }
}

proptest! {
    /// Sent records also equal those of software if the NIC encrypts before the digest. Packets, segments, records and
    /// DUMPs cut blocks at any position.
    #[test]
    fn sent_records_equal_software_encryption_and_sealing(
        cipher in ciphers(),
        key_bytes in prop_oneof![Just(32usize), Just(64)],
        unit in prop_oneof![Just(512u32), Just(4096)],
        lengths in prop::collection::vec(prop_oneof![3 => 1usize..200, 1 => 1000usize..4000], 1..8),
        cuts in prop::collection::vec(prop_oneof![1usize..60, 100usize..3_000, Just(16_384)], 1..6),
        start: u32,
        next_record: bool,
        cached in 1usize..5,
        events in events(),
    ) {
        // The minimum bounds the number of records.
        let least = lengths.iter().sum::<usize>() * 16 / 400;
        let cuts: Vec<usize> = cuts.into_iter().map(|cut| cut.max(least)).collect();
        let (mut device, mut driver) = pair(config(next_record, cached));
        let handles = contexts(&mut driver, cipher, Seq(start));
        let keyed = KeyedVolumeStage::new(key_bytes, unit);
        keyed.import(&mut device, &mut driver, handles.nvme);
        let made = encrypted(&keyed.volume, &lengths);
        let queue = RefCell::new(PduQueue::new(cipher, Seq(start), &made, &cuts, handles));
        let len = queue.borrow().wire.len();
        play(
            events,
            len,
            (&mut device, &mut driver),
            |device, driver, at, bytes| send(device, driver, &mut queue.borrow_mut(), at, bytes),
            |device, driver, number, reached| {
                // The new context has no stages and no key yet.
                if let Some(nvme) = queue.borrow_mut().come_back(driver, cipher, number, reached) {
                    keyed.import(device, driver, nvme);
                }
            },
        );
        // Every packet either left correctly or was prevented before the device.
        let counters = device.counters();
        prop_assert_eq!(counters.tx_drop_out_of_sync + counters.tx_drop_no_key + counters.tx_stale_parameters, 0);
    }
}

/// After a retransmission, the NIC gets the bytes after each DUMP that ends inside a block.
#[test]
fn dumps_of_records_bring_ciphertext() {
    let cipher = (TlsVersion::Tls13, TlsSuite::Aes128Gcm);
    let (mut device, mut driver) = pair(NicConfig::default());
    let handles = contexts(&mut driver, cipher, Seq(7));
    let keyed = KeyedVolumeStage::new(64, 512);
    keyed.import(&mut device, &mut driver, handles.nvme);
    let made = encrypted(&keyed.volume, &[500, 500]);
    let mut queue = PduQueue::new(cipher, Seq(7), &made, &[3001], handles);
    let mut at = 0;
    while at < queue.wire.len() {
        at = send(&mut device, &mut driver, &mut queue, at, MSS + 1);
    }
    assert_eq!(device.engine_counters::<NvmeTcpCounters>().tx_nvmeotcp_sealed_bytes, 16_000);
    for at in (0..queue.wire.len()).step_by(997).collect::<Vec<_>>() {
        send(&mut device, &mut driver, &mut queue, at, 700);
    }
    let [tls, nvme] = [engines::TLS, engines::NVME_TCP].map(|engine| driver.context_counters(engine));
    assert!(tls.ooo > 10 && nvme.ooo > 10);
    assert_eq!(nvme.needs_software + tls.needs_software, 0);
    assert_eq!(device.counters().tx_stale_parameters, 0);
}

/// Removes a key from the NIC, and sends a packet with data or DUMPs that need the key: no frame leaves.
fn miss(device: &mut Device, driver: &mut Driver, queue: &PduQueue, key: Handle, at: usize, bytes: usize) -> usize {
    driver.contexts().unwrap().remove(key);
    let packet = queue.packet(at, bytes);
    let length = packet.payload_len();
    assert_eq!(driver.transmit(Instant::ZERO, packet, queue), TransmitResult::Posted);
    leaves(device, driver, &[], at);
    let told = std::iter::from_fn(|| driver.poll_event());
    let (mut missing, mut removed) = (0, 0);
    for event in told {
        missing += usize::from(matches!(event, DeviceEvent::KeyMissing { handle, .. } if handle == queue.handles.nvme));
        removed += usize::from(matches!(event, DeviceEvent::Removed { handle, .. } if handle == queue.handles.nvme));
    }
    assert_eq!((missing, removed), (1, 1));
    at + length
}

/// A packet without its key does not advance the records' context. Later packets and retransmissions leave, and the NIC
/// continues to seal.
#[test]
fn records_go_on_where_a_key_was_missing() {
    for transmit_resync in [TransmitResync::Dump, TransmitResync::NextRecord] {
        let cipher = (TlsVersion::Tls13, TlsSuite::Aes128Gcm);
        let (mut device, mut driver) = pair(NicConfig {
            engines: EngineConfigs::default().with_transmit_resync(transmit_resync),
            ..NicConfig::default()
        });
        let handles = contexts(&mut driver, cipher, Seq(7));
        let keyed = KeyedVolumeStage::new(64, 512);
        let key = keyed.import(&mut device, &mut driver, handles.nvme);
        let made = encrypted(&keyed.volume, &[500, 500, 500]);
        let mut queue = PduQueue::new(cipher, Seq(7), &made, &[1000], handles);
        let mut lost = 0;
        // With next-record resync, two contexts do not start at one packet, so software processes the first PDU.
        while device.engine_counters::<NvmeTcpCounters>().tx_nvmeotcp_sealed_bytes == 0 {
            lost = send(&mut device, &mut driver, &mut queue, lost, 1500);
        }
        let mut at = miss(&mut device, &mut driver, &queue, key, lost, 1500);
        assert_eq!(device.counters().tx_drop_no_key, 1);
        while at < queue.wire.len() {
            at = send(&mut device, &mut driver, &mut queue, at, 1500);
        }
        send(&mut device, &mut driver, &mut queue, lost, 1500);
        assert_eq!(device.counters().tx_drop_out_of_sync, 0);
        assert!(queue.chunks.last().unwrap().needs_seal, "the NIC sealed the last record");
    }
}

#[test]
fn a_key_may_be_missing_in_a_dump() {
    let cipher = (TlsVersion::Tls13, TlsSuite::Aes128Gcm);
    let (mut device, mut driver) = pair(NicConfig::default());
    let handles = contexts(&mut driver, cipher, Seq(7));
    let keyed = KeyedVolumeStage::new(64, 512);
    let key = keyed.import(&mut device, &mut driver, handles.nvme);
    let made = encrypted(&keyed.volume, &[500]);
    let mut queue = PduQueue::new(cipher, Seq(7), &made, &[3000], handles);
    let mut at = 0;
    while at < queue.wire.len() {
        at = send(&mut device, &mut driver, &mut queue, at, 1500);
    }
    miss(&mut device, &mut driver, &queue, key, 1000, 500);
    let counters = device.counters();
    assert_eq!((counters.tx_drop_no_key, counters.tx_stale_parameters), (0, 1), "the DUMP for the upper context");
    assert_eq!(counters.tx_drop_unknown_context, 1, "the packet behind them");
    // First the following bytes: the driver expects the records' context there.
    for at in [1500, 1000, 4000, 2000] {
        send(&mut device, &mut driver, &mut queue, at, 500);
    }
    assert_eq!(device.counters().tx_drop_out_of_sync, 0);
}

#[test]
fn dumps_restore_both_layers_and_only_where_needed() {
    let cipher = (TlsVersion::Tls13, TlsSuite::Aes128Gcm);
    let (mut device, mut driver) = pair(NicConfig::default());
    let handles = contexts(&mut driver, cipher, Seq(7));
    // PDUs of 8032 bytes in records of 3000: the first digest ends 2032 bytes into the third record.
    let mut queue = PduQueue::new(cipher, Seq(7), &with_digests(&[8000, 8000]), &[3000], handles);
    let mut at = 0;
    while at < queue.wire.len() {
        at = send(&mut device, &mut driver, &mut queue, at, MSS);
    }
    assert_eq!(device.engine_counters::<NvmeTcpCounters>().tx_nvmeotcp_digests, 2);
    assert_eq!((driver.context_counters(engines::NVME_TCP).ooo, driver.context_counters(engines::TLS).ooo), (0, 0));
    // A piece without a digest, in the second record: the record is dumped, and the digest context is not touched.
    let record = 3022;
    send(&mut device, &mut driver, &mut queue, record + 1000, 500);
    let [tls, nvme] = [engines::TLS, engines::NVME_TCP].map(|engine| driver.context_counters(engine));
    assert_eq!((nvme.bypass, nvme.dump_packets, tls.ooo), (1, 0, 1));
    // Bytes after a digest in its record: the tag needs the digest, which is computed again over the whole PDU.
    send(&mut device, &mut driver, &mut queue, 2 * record + 2500, 300);
    let [tls, nvme] = [engines::TLS, engines::NVME_TCP].map(|engine| driver.context_counters(engine));
    assert_eq!((nvme.ooo, nvme.dump_bytes, tls.ooo), (1, 6000, 2));
    assert_eq!(device.engine_counters::<NvmeTcpCounters>().tx_nvmeotcp_digests, 2, "digests in a DUMP are not sent");
    assert_eq!(nvme.needs_software + tls.needs_software, 0);
    // If software seals a record, it also computes the digests of its PDUs, including PDUs that end in other records.
    let packet = queue.packet(record + 5, 100);
    let offset = packet.ask.streams[0].unwrap().offset;
    let Lookup::In(unit) = queue.unit_at(Layer::FIRST, offset) else { panic!("the offset is in a unit") };
    queue.seal(unit);
    assert!(queue.chunks.iter().all(|chunk| chunk.pdu.is_none_or(|pdu| chunk.needs_digest == (pdu.number == 1))));
    send(&mut device, &mut driver, &mut queue, 2 * record, 1400);
    assert_eq!(driver.context_counters(engines::NVME_TCP).ooo, 1, "a PDU with its digest asks for no context");
}

#[test]
fn the_nic_encrypts_without_a_digest_context() {
    let cipher = (TlsVersion::Tls12, TlsSuite::Aes128Gcm);
    let (mut device, mut driver) = pair(NicConfig::default());
    let handles = contexts(&mut driver, cipher, Seq(7));
    let mut queue = PduQueue::new(cipher, Seq(7), &with_digests(&[4000, 4000]), &[1500], handles);
    driver.nvme().unwrap().remove(handles.nvme);
    let mut at = 0;
    while at < queue.wire.len() {
        at = send(&mut device, &mut driver, &mut queue, at, MSS);
    }
    assert_eq!(
        (
            driver.context_counters(engines::NVME_TCP).needs_software,
            driver.context_counters(engines::TLS).needs_software
        ),
        (2, 0)
    );
    assert!(queue.chunks.iter().all(|chunk| chunk.needs_seal && !chunk.needs_digest || chunk.pdu.is_none()));
    assert_eq!(device.engine_counters::<NvmeTcpCounters>().tx_nvmeotcp_digests, 0);
}
