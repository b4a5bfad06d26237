//! TLS contexts that are created, removed and evicted in both directions, on a device with room for one or two: records
//! cut anywhere, tags included; bytes flipped and lost in transit; resets that the driver has not noticed, so that it
//! uses handles whose places other contexts have taken.
//!
//! A packet that ends a record with a flipped byte is never decrypted; decrypted bytes of other records equal the
//! plaintext; if nothing was flipped or lost, everything is decrypted. Transmitted bytes equal those of software.

use crate::input::Input;
use crate::tcp_frame::tcp_frame;
use bytes::Bytes;
use nic_sim::frame::Frame;
use nic_sim::wire::Port;
use nic_sim::{Delays, Device, Driver, NicConfig, TlsEngineConfig, nic};
use offload_api::rx::TlsVerdict;
use offload_api::{
    DeviceEvent, Direction, FlowKey, Handle, Layer, Lookup, NetDevice, QueuedBytes, RecordSource, StreamAsk, TlsKey,
    TlsSuite, TlsVersion, TransmitResult, TxAsk, TxPacket, TxTag, TypedContexts, Unit,
};
use offload_base::{Instant, Seq};
use resumable_aead::{Algorithm, Key};

/// Runs one input.
pub fn run(input: &[u8]) {
    let mut input = Input(input);
    let config = NicConfig {
        context_cache_bytes: 208 * (1 + usize::from(input.byte() % 2)),
        engines: TlsEngineConfig {
            context_pool: usize::from(input.byte() % 3),
            contexts: 4,
            ..TlsEngineConfig::default()
        }
        .into(),
        control_ring: 8,
        delays: Delays::NONE,
        line_rate: None,
        lro: false,
        ..NicConfig::default()
    };
    let (device, driver) = nic(config);
    let mut bed = ContextBed { device, driver, receiving: Vec::new(), sending: Vec::new(), made: 0, unheard: false };
    while !input.0.is_empty() {
        let what = input.byte();
        let which = usize::from(input.byte());
        match what % 16 {
            0 => bed.add(Direction::Receive, &mut input),
            1 => bed.add(Direction::Transmit, &mut input),
            2 => bed.remove(which),
            3 => bed.reset(),
            4 => bed.hear(),
            5 | 6 => bed.run(),
            7..=10 => bed.send(which, &mut input),
            _ => bed.receive(which, &mut input),
        }
    }
    bed.run();
    bed.hear();
}

struct ContextBed {
    device: Device,
    driver: Driver,
    receiving: Vec<Stream>,
    sending: Vec<Stream>,
    /// Number of contexts so far. Each has its own key and port.
    made: u16,
    /// Whether the driver has not noticed the last reset.
    unheard: bool,
}

impl ContextBed {
    fn add(&mut self, direction: Direction, input: &mut Input<'_>) {
        let stream = Stream::new(PORTS + self.made, input);
        let key = TlsKey::new(TlsVersion::Tls13, TlsSuite::Aes128Gcm, &stream.key_bytes(), IV).unwrap();
        let streams = match direction {
            Direction::Transmit => &mut self.sending,
            Direction::Receive => &mut self.receiving,
        };
        // A refused context is no fault: the device may be full.
        let Ok(handle) = self.driver.tls().unwrap().add(&stream.flow(), direction, stream.start, stream.first, &key)
        else {
            return;
        };
        streams.push(Stream { handle, is_certain: !self.unheard, ..stream });
        self.made += 1;
    }

    /// Removes a context. Its stream goes on and still uses the handle.
    fn remove(&mut self, which: usize) {
        let all = self.sending.len() + self.receiving.len();
        if let Some(stream) = self.sending.iter_mut().chain(&mut self.receiving).nth(which % all.max(1)) {
            self.driver.tls().unwrap().remove(stream.handle);
            stream.is_certain = false;
        }
    }

    fn reset(&mut self) {
        self.device.reset(Instant::ZERO);
        self.unheard = true;
        self.receiving.iter_mut().for_each(|stream| stream.is_certain = false);
    }

    /// Handles the device's events and answers its questions.
    fn hear(&mut self) {
        while let Some(event) = self.driver.poll_event() {
            self.unheard &= event != DeviceEvent::Reset;
            if let DeviceEvent::ResyncRequested { handle, header, .. } = event {
                let stream = self.receiving.iter().find(|stream| stream.handle == handle);
                let unit = stream.and_then(|stream| stream.units.iter().find(|unit| unit.start == header));
                self.driver.tls().unwrap().answer_resync(handle, header, unit.map(|unit| unit.number));
            }
        }
    }

    /// Lets the device work, and checks the frames that it sends.
    fn run(&mut self) {
        self.driver.flush(Instant::ZERO);
        self.device.process(Instant::ZERO);
        while let Some(frame) = self.device.poll_frame(Instant::ZERO) {
            let port = u16::from_be_bytes([frame.data[36], frame.data[37]]);
            let seq = Seq(u32::from_be_bytes([frame.data[38], frame.data[39], frame.data[40], frame.data[41]]));
            let stream = self.sending.iter().find(|stream| stream.port == port).expect("nobody else sends");
            let at = seq.distance_from(stream.start) as usize;
            let payload = &frame.data[HEADERS..];
            assert!(stream.wire[at..].starts_with(payload), "software would have sent other bytes");
        }
    }

    /// Posts a packet of a stream, whether the stream's context exists or not.
    fn send(&mut self, which: usize, input: &mut Input<'_>) {
        let at = usize::from(input.word());
        let (bytes, mss) = (1 + usize::from(input.word() % 3000), 100 + u16::from(input.byte()));
        if self.sending.is_empty() {
            return;
        }
        let which = which % self.sending.len();
        let stream = &self.sending[which];
        let at = at % stream.wire.len();
        let seq = stream.start + at as u32;
        let bytes = stream.queued.slice(at..stream.wire.len().min(at + bytes));
        let streams = [Some(StreamAsk::whole(stream.handle, at as u64, bytes.len() as u32)), None];
        let packet = TxPacket {
            header: stream.headers(seq).into(),
            fragments: [bytes].into_iter().collect(),
            ask: TxAsk { seq, streams, checksum: true, mss: Some(mss), ..TxAsk::default() },
        };
        if self.driver.room(&stream.flow()) > 0 {
            let sent = self.driver.transmit(Instant::ZERO, packet, stream);
            assert!(matches!(sent, TransmitResult::Posted | TransmitResult::NeedsSoftware(_)), "{sent:?}");
        } else {
            self.run();
            self.hear();
        }
    }

    /// Delivers the next bytes of a stream, drops them, or flips a bit.
    fn receive(&mut self, which: usize, input: &mut Input<'_>) {
        let (bytes, fate) = (1 + usize::from(input.byte()), input.byte());
        let flip = usize::from(input.byte());
        if self.receiving.is_empty() {
            return;
        }
        // Posted work comes first, because contexts must exist before the bytes that they decrypt arrive.
        self.run();
        let which = which % self.receiving.len();
        let stream = &mut self.receiving[which];
        let (at, end) = (stream.at, stream.wire.len().min(stream.at + bytes));
        stream.at = end;
        let mut payload = stream.wire[at..end].to_vec();
        if payload.is_empty() {
            return;
        }
        if fate < 8 {
            stream.is_whole = false;
            return;
        }
        if fate < 64 {
            let flipped = flip % payload.len();
            let offset = (at + flipped) as u64;
            let record = stream.units.iter().position(|unit| unit.contains(offset)).expect("records lie close");
            // A wrong length would move all later record boundaries, so header bytes are not flipped.
            if offset - stream.units[record].offset >= RECORD_HEADER {
                payload[flipped] ^= 1 << (fate % 8);
                stream.spoilt[record] = true;
                stream.is_whole = false;
            }
        }
        let frame = tcp_frame(stream.port, LOCAL, (stream.start + at as u32).0, &payload);
        self.device.receive_frame(Instant::ZERO, Frame::from(frame));
        self.device.process(Instant::ZERO);
        let packet = self.driver.receive(Instant::ZERO).expect("there are buffers");
        let stream = &self.receiving[which];
        if packet.meta.tls() == TlsVerdict::Decrypted {
            assert_eq!(packet.meta.tls_context(), Some(stream.handle), "another's context");
            stream.check(at, &payload, &packet.frame[HEADERS..]);
        } else {
            assert!(packet.frame[HEADERS..] == payload, "bytes that are not decrypted must be unchanged");
            assert!(!(stream.is_whole && stream.is_certain), "all of it came, and in order");
        }
    }
}

/// Records of one key, as queued for a device and as expected on the wire.
struct Stream {
    handle: Handle,
    port: u16,
    start: Seq,
    first: u64,
    units: Vec<Unit>,
    queued: Bytes,
    wire: Vec<u8>,
    /// Number of bytes that have arrived.
    at: usize,
    /// Whether each record has a byte flipped in transit.
    spoilt: Vec<bool>,
    /// Whether nothing was flipped or lost.
    is_whole: bool,
    /// Whether the context certainly exists: it was not removed, and no reset happened.
    is_certain: bool,
}

impl Stream {
    fn new(port: u16, input: &mut Input<'_>) -> Stream {
        // Near both ends of the sequence space, so that numbers wrap within the stream.
        let start = Seq(if input.byte().is_multiple_of(2) { u32::MAX - 700 } else { (1 << 31) - 700 });
        let first = u64::from(input.byte()) << 28;
        let mut stream = Stream {
            handle: Handle { index: 0, generation: 0 },
            port,
            start,
            first,
            units: Vec::new(),
            queued: Bytes::new(),
            wire: Vec::new(),
            at: 0,
            spoilt: Vec::new(),
            is_whole: true,
            is_certain: true,
        };
        let key = Key::new(Algorithm::Aes128Gcm, &stream.key_bytes()).unwrap();
        let mut queued = Vec::new();
        for number in first..first + RECORDS {
            let length = 1 + usize::from(input.byte());
            let after = (length + TAG) as u16;
            let header = [23, 3, 3, (after >> 8) as u8, after as u8];
            let mut body: Vec<u8> = b"MARKER".iter().copied().cycle().take(length).collect();
            queued.extend_from_slice(&[&header[..], &body, &[0; TAG]].concat());
            let mut nonce = IV;
            nonce[4..].iter_mut().zip(number.to_be_bytes()).for_each(|(byte, part)| *byte ^= part);
            let tag = key.seal_in_place(&nonce, &header, &mut body).unwrap();
            let from = start + stream.wire.len() as u32;
            stream.wire.extend_from_slice(&[&header[..], &body, &tag].concat());
            let offset = u64::from(from.distance_from(start));
            let len = (stream.wire.len() as u64 - offset) as u32;
            stream.units.push(Unit { layer: Layer::FIRST, number, offset, start: from, len, touched_from: 0 });
            stream.spoilt.push(false);
        }
        stream.queued = queued.into();
        stream
    }

    fn key_bytes(&self) -> [u8; 16] {
        let mut bytes = [0x5a; 16];
        bytes[..2].copy_from_slice(&self.port.to_be_bytes());
        bytes
    }

    /// Returns the flow as this host sees it.
    fn flow(&self) -> FlowKey {
        FlowKey::tcp(([10, 0, 0, 1], LOCAL).into(), ([10, 0, 0, 2], self.port).into())
    }

    fn headers(&self, seq: Seq) -> Vec<u8> {
        let mut headers = tcp_frame(LOCAL, self.port, seq.0, &[]);
        let (source, destination) = ([10, 0, 0, 1], [10, 0, 0, 2]);
        headers[26..34].copy_from_slice(&[source, destination].concat());
        // The device fills in the checksums.
        headers[24..26].fill(0);
        headers[50..52].fill(0);
        headers
    }

    /// Checks that `plain` is a possible result of a context for `payload`, the bytes at `at`.
    fn check(&self, at: usize, payload: &[u8], plain: &[u8]) {
        assert_eq!(plain.len(), payload.len());
        for (unit, spoilt) in self.units.iter().zip(&self.spoilt) {
            let (from, end) = (unit.offset as usize, unit.end() as usize);
            let ends_here = (at..at + plain.len()).contains(&(end - 1));
            assert!(!(*spoilt && ends_here), "the tag of record {} is wrong", unit.number);
            if *spoilt {
                continue;
            }
            for place in at.max(from)..end.min(at + plain.len()) {
                // A device leaves the tag unchanged.
                let in_tag = place + TAG >= end;
                let expected = if in_tag { self.wire[place] } else { self.queued[place] };
                assert_eq!(plain[place - at], expected, "byte {place}");
            }
        }
    }
}

impl RecordSource for Stream {
    fn unit_at(&self, _: Layer, offset: u64) -> Lookup {
        let unit = self.units.iter().find(|unit| unit.contains(offset));
        unit.map_or(Lookup::Released, |unit| Lookup::In(*unit))
    }

    fn pieces(&self, _: Layer, from: u64, to: u64, sink: &mut dyn FnMut(QueuedBytes)) {
        let bytes = self.queued.slice(from as usize..to as usize);
        sink(QueuedBytes { bytes, tag: TxTag::PLAIN, offsets: [from, 0] });
    }
}

const IV: [u8; 12] = [9; 12];
const TAG: usize = 16;
const RECORD_HEADER: u64 = 5;
const HEADERS: usize = 54;
const LOCAL: u16 = 443;
const PORTS: u16 = 5000;
const RECORDS: u64 = 6;
