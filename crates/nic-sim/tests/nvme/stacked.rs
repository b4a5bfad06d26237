//! Digests filled in, then records encrypted, in one pass of the NIC: the bytes are those of software that makes the digests
//! and seals the records, whatever is sent, and sent again, in whatever packets.

use super::{Cipher, HEADERS, MSS, ciphers, flow, headers, key, leaves, pair};
use bytes::Bytes;
use nic_sim::wire::Port;
use nic_sim::{Device, Driver, NicConfig, TransmitResync};
use offload_api::{
    Direction, Handle, Layer, Lookup, NetDevice, QueuedBytes, RecordSource, Sent, StreamAsk, TlsSuite, TlsVersion,
    TxAsk, TxPacket, TxTag, TypedContexts, Unit, UnitTag,
};
use offload_base::{Instant, Seq};
use proptest::prelude::*;

/// PDUs as the content of records, as a transport keeps them.
struct Queue {
    start: Seq,
    chunks: Vec<Chunk>,
    /// As it belongs on the wire.
    wire: Vec<u8>,
    /// The content of all records, digests made.
    content: Vec<u8>,
    handles: Handles,
}

#[derive(Clone)]
struct Chunk {
    at: usize,
    data: Bytes,
    record: UnitTag,
    pdu: Option<UnitTag>,
    /// Where it is in the content.
    content_at: usize,
    needs_digest: bool,
    needs_seal: bool,
}

#[derive(Clone, Copy, Debug)]
struct Handles {
    tls: Handle,
    nvme: Handle,
}

impl Chunk {
    fn end(&self) -> usize {
        self.at + self.data.len()
    }

    fn unit(&self, layer: Layer) -> Option<UnitTag> {
        if layer == Layer::FIRST { Some(self.record) } else { self.pdu }
    }

    /// Where in a layer's stream it is.
    fn offset(&self, layer: Layer) -> u64 {
        if layer == Layer::FIRST { self.at as u64 } else { self.content_at as u64 }
    }
}

impl Queue {
    /// PDUs with data of these lengths, in records of these lengths of content. Without data a PDU has no digest.
    fn new((version, suite): Cipher, start: Seq, lengths: &[usize], cuts: &[usize], handles: Handles) -> Queue {
        let (mut queued, mut content, mut pdus) = (Vec::new(), Vec::new(), Vec::new());
        for (number, length) in lengths.iter().enumerate() {
            let data: Vec<u8> = (0..*length).map(|at| (at * 31 + number * 7) as u8).collect();
            let (flags, offset) = if data.is_empty() { (0, 0) } else { (0b10, 28) };
            let plen = if data.is_empty() { 24 } else { 28 + length + 4 };
            let mut header = vec![7, flags, 24, offset];
            header.extend((plen as u32).to_le_bytes());
            header.resize(if data.is_empty() { 24 } else { 28 }, number as u8);
            pdus.push((content.len(), plen));
            for bytes in [&mut queued, &mut content] {
                bytes.extend(&header);
                bytes.extend(&data);
            }
            if !data.is_empty() {
                queued.extend([0; 4]);
                content.extend(crc32c::crc32c(&data).to_le_bytes());
            }
        }
        let explicit = if version == TlsVersion::Tls12 && suite != TlsSuite::ChaCha20Poly1305 { 8 } else { 0 };
        let inner = if version == TlsVersion::Tls13 { &[23][..] } else { &[] };
        let (mut chunks, mut at, mut done) = (Vec::new(), 0, 0);
        let mut cuts = cuts.iter().cycle();
        while done < content.len() {
            let number = chunks.last().map_or(0, |chunk: &Chunk| chunk.record.number + 1);
            let end = content.len().min(done + cuts.next().unwrap());
            let after = (explicit + end - done + inner.len() + 16) as u16;
            let mut prefix = vec![23, 3, 3, (after >> 8) as u8, after as u8];
            prefix.extend(vec![number as u8; explicit]);
            let record_start = at;
            let len = prefix.len() as u32 + u32::from(after) - explicit as u32;
            let mut push = |data: Vec<u8>, pdu: Option<UnitTag>, content_at: usize| {
                let record = UnitTag { number, at: (at - record_start) as u32, len, touched_from: 0 };
                let data = Bytes::from(data);
                let chunk = Chunk { at, data, record, pdu, content_at, needs_digest: pdu.is_some(), needs_seal: true };
                at = chunk.end();
                chunks.push(chunk);
            };
            push(prefix, None, done);
            while done < end {
                let pdu = pdus.partition_point(|(start, _)| *start <= done) - 1;
                let (from, plen) = pdus[pdu];
                let to = end.min(from + plen);
                let (at, len) = ((done - from) as u32, plen as u32);
                let tag = UnitTag { number: pdu as u64, at, len, touched_from: if len > 24 { len - 4 } else { len } };
                push(queued[done..to].to_vec(), Some(tag), done);
                done = to;
            }
            push([inner, &[0; 16]].concat(), None, done);
        }
        let mut queue = Queue { start, chunks, wire: Vec::new(), content, handles };
        queue.wire = queue.sealed((version, suite));
        queue
    }

    /// All of it with digests made by software, as a NIC seals that.
    fn sealed(&self, cipher: Cipher) -> Vec<u8> {
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
            assert_eq!(driver.transmit(Instant::ZERO, packet, self), Sent::Posted);
            driver.flush(Instant::ZERO);
            device.process(Instant::ZERO);
            while let Some(frame) = device.poll_frame(Instant::ZERO) {
                wire.extend(&frame.data[HEADERS..]);
            }
        }
        wire
    }

    fn tag(&self, chunk: &Chunk, from: usize) -> TxTag {
        let content = match chunk.pdu {
            Some(pdu) if chunk.needs_digest => TxTag::device(self.handles.nvme, pdu),
            Some(pdu) => TxTag::done(pdu),
            None => TxTag::PLAIN,
        };
        let tag = content.within(chunk.needs_seal.then_some(self.handles.tls), chunk.record);
        tag.unwrap().advanced(from as u32)
    }

    fn chunk_at(&self, at: usize) -> &Chunk {
        self.chunks.iter().find(|chunk| (chunk.at..chunk.end()).contains(&at)).unwrap()
    }

    /// A packet of up to `bytes` bytes that one context works on, in up to 64 pieces.
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

    /// Does what a transport does when a driver says that a packet needs software.
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
                assert!(chunk.needs_seal, "no part of it may be sealed");
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

impl RecordSource for Queue {
    fn unit_at(&self, layer: Layer, offset: u64) -> Lookup {
        let chunk = self.chunks.iter().find(|chunk| {
            let from = chunk.offset(layer);
            chunk.unit(layer).is_some() && (from..from + chunk.data.len() as u64).contains(&offset)
        });
        let Some((chunk, tag)) = chunk.and_then(|chunk| Some((chunk, chunk.unit(layer)?))) else {
            return Lookup::Released;
        };
        let UnitTag { number, len, touched_from, .. } = tag;
        let is_first = |chunk: &&Chunk| chunk.unit(layer).is_some_and(|tag| tag.number == number && tag.at == 0);
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

fn contexts(driver: &mut Driver, cipher: Cipher, start: Seq) -> Handles {
    let tls = driver.tls().unwrap().add(&flow(), Direction::Transmit, start, 0, &key(cipher)).unwrap();
    Handles { tls, nvme: driver.nvme().unwrap().add_transmit(&flow()).unwrap() }
}

/// Sends up to `bytes` bytes from `at` on, with software's help if need be; they must be right. Where they ended.
fn send(device: &mut Device, driver: &mut Driver, queue: &mut Queue, at: usize, bytes: usize) -> usize {
    let length = loop {
        let packet = queue.packet(at, bytes);
        let length = packet.payload_len();
        match driver.transmit(Instant::ZERO, packet, &*queue) {
            Sent::Posted => break length,
            Sent::NeedsSoftware(unit) => queue.seal(unit),
            Sent::Dropped(reason) => panic!("{reason:?}"),
        }
    };
    leaves(device, driver, &queue.wire[at..at + length], at);
    at + length
}

proptest! {
    /// Transmission in any order, in any packets, with resets of the device: digests and records are right each time.
    #[test]
    fn whatever_leaves_is_what_software_would_have_sealed(
        cipher in ciphers(),
        lengths in prop::collection::vec(prop_oneof![3 => 1usize..3000, 1 => Just(0), 1 => 20_000usize..60_000], 1..8),
        cuts in prop::collection::vec(prop_oneof![1usize..60, 100usize..3_000, Just(16_384)], 1..6),
        start: u32,
        next_record: bool,
        cached in 1usize..4,
        sends in prop::collection::vec((any::<prop::sample::Index>(), 1usize..30_000, 0u8..24), 1..40),
    ) {
        // Not so many records that a case takes for ever.
        let least = lengths.iter().sum::<usize>() / 400;
        let cuts: Vec<usize> = cuts.into_iter().map(|cut| cut.max(least)).collect();
        let tls_transmit_resync = if next_record { TransmitResync::NextRecord } else { TransmitResync::Dump };
        let context_cache_bytes = cached * 208;
        let config = NicConfig { tls_transmit_resync, context_cache_bytes, ..NicConfig::default() };
        let (mut device, mut driver) = pair(config);
        let handles = contexts(&mut driver, cipher, Seq(start));
        let mut queue = Queue::new(cipher, Seq(start), &lengths, &cuts, handles);
        let mut reached = 0;
        for (index, bytes, fate) in sends {
            match fate {
                0 => {
                    device.reset(Instant::ZERO);
                    while driver.poll_event().is_some() {}
                    // One of the two, both or none come back.
                    if bytes % 2 == 0 {
                        let start = Seq(start) + reached as u32;
                        let key = key(cipher);
                        queue.handles.tls =
                            driver.tls().unwrap().add(&flow(), Direction::Transmit, start, 0, &key).unwrap();
                    }
                    if bytes % 3 == 0 {
                        queue.handles.nvme = driver.nvme().unwrap().add_transmit(&flow()).unwrap();
                    }
                }
                1..10 if reached < queue.wire.len() => {
                    reached = send(&mut device, &mut driver, &mut queue, reached, bytes);
                }
                _ if reached > 0 => {
                    let at = index.index(reached);
                    reached = reached.max(send(&mut device, &mut driver, &mut queue, at, bytes));
                }
                _ => {}
            }
        }
        prop_assert_eq!(device.counters().tx_drop_out_of_sync, 0);
        prop_assert_eq!(device.counters().tx_stale_parameters, 0);
    }
}

#[test]
fn dumps_restore_both_layers_and_only_for_what_needs_them() {
    let cipher = (TlsVersion::Tls13, TlsSuite::Aes128Gcm);
    let (mut device, mut driver) = pair(NicConfig::default());
    let handles = contexts(&mut driver, cipher, Seq(7));
    // PDUs of 8032 bytes in records of 3000: the digest of the first ends 2032 bytes into the third.
    let mut queue = Queue::new(cipher, Seq(7), &[8000, 8000], &[3000], handles);
    let mut at = 0;
    while at < queue.wire.len() {
        at = send(&mut device, &mut driver, &mut queue, at, MSS);
    }
    assert_eq!(device.counters().tx_nvmeotcp_digests, 2);
    assert_eq!((driver.counters().tx_nvmeotcp_ooo, driver.counters().tx_tls_ooo), (0, 0));
    // A piece without a digest, in the second record: its record is dumped, and the digest context is left alone.
    let record = 3022;
    send(&mut device, &mut driver, &mut queue, record + 1000, 500);
    let counters = driver.counters();
    assert_eq!((counters.tx_nvmeotcp_bypass, counters.tx_nvmeotcp_dump_packets, counters.tx_tls_ooo), (1, 0, 1));
    // What follows a digest in its record: for the tag, the digest is made again of the whole PDU.
    send(&mut device, &mut driver, &mut queue, 2 * record + 2500, 300);
    let counters = driver.counters();
    assert_eq!((counters.tx_nvmeotcp_ooo, counters.tx_nvmeotcp_dump_bytes, counters.tx_tls_ooo), (1, 6000, 2));
    assert_eq!(device.counters().tx_nvmeotcp_digests, 2, "in a DUMP it is not sent");
    assert_eq!(counters.tx_nvmeotcp_needs_software + counters.tx_tls_needs_software, 0);
    // A record that software has to seal takes the digests of its PDUs with it, also of those that end in others.
    let packet = queue.packet(record + 5, 100);
    let offset = packet.ask.streams[0].unwrap().offset;
    let Lookup::In(unit) = queue.unit_at(Layer::FIRST, offset) else { panic!("there is one") };
    queue.seal(unit);
    assert!(queue.chunks.iter().all(|chunk| chunk.pdu.is_none_or(|pdu| chunk.needs_digest == (pdu.number == 1))));
    send(&mut device, &mut driver, &mut queue, 2 * record, 1400);
    assert_eq!(driver.counters().tx_nvmeotcp_ooo, 1, "what has its digest asks for none");
}

#[test]
fn without_the_digest_context_software_makes_the_digests_and_the_nic_still_encrypts() {
    let cipher = (TlsVersion::Tls12, TlsSuite::Aes128Gcm);
    let (mut device, mut driver) = pair(NicConfig::default());
    let handles = contexts(&mut driver, cipher, Seq(7));
    let mut queue = Queue::new(cipher, Seq(7), &[4000, 4000], &[1500], handles);
    driver.nvme().unwrap().remove(handles.nvme);
    let mut at = 0;
    while at < queue.wire.len() {
        at = send(&mut device, &mut driver, &mut queue, at, MSS);
    }
    assert_eq!((driver.counters().tx_nvmeotcp_needs_software, driver.counters().tx_tls_needs_software), (2, 0));
    assert!(queue.chunks.iter().all(|chunk| chunk.needs_seal && !chunk.needs_digest || chunk.pdu.is_none()));
    assert_eq!(device.counters().tx_nvmeotcp_digests, 0);
}
