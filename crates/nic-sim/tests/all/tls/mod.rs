//! Driver and device together, compared with ring: for any order of packets, encrypted data equal those of software,
//! and data reported as decrypted are the plaintext.

mod contexts;
mod giving_up;
mod resync;
mod rings;
mod tags;

use bytes::Bytes;
use core::task::Waker;
use nic_sim::frame::Frame;
use nic_sim::stats::TlsEngineCounters;
use nic_sim::wire::Port;
use nic_sim::{Delays, Device, Driver, EngineConfigs, NicConfig, TlsEngineConfig, TransmitResync, nic};
use offload_api::rx::{Checksums, TlsVerdict};
use offload_api::{
    ContextRefusal, DeviceEvent, Direction, DropReason, FlowKey, Handle, Layer, Lookup, NetDevice, QueuedBytes,
    RecordSource, ResyncMode, StreamAsk, TlsKey, TlsSuite, TlsVersion, TransmitResult, TxAsk, TxPacket, TxTag,
    TypedContexts, Unit, engines,
};
use offload_base::{Instant, Seq};
use proptest::prelude::*;

const KEY: [u8; 32] = *b"sixteen key bytes, sixteen more.";
const IV: [u8; 12] = [0x5a; 12];
const HEADERS: usize = 54;

type TlsTestCipher = (TlsVersion, TlsSuite);

const AES_128: TlsTestCipher = (TlsVersion::Tls13, TlsSuite::Aes128Gcm);

fn key() -> TlsKey {
    key_for(AES_128)
}

fn key_for((version, suite): TlsTestCipher) -> TlsKey {
    TlsKey::new(version, suite, &KEY[..suite.key_len()], IV).unwrap()
}

fn ciphers() -> impl Strategy<Value = TlsTestCipher> {
    let version = prop_oneof![Just(TlsVersion::Tls12), Just(TlsVersion::Tls13)];
    (version, prop_oneof![Just(TlsSuite::Aes128Gcm), Just(TlsSuite::Aes256Gcm), Just(TlsSuite::ChaCha20Poly1305)])
}

fn sender() -> FlowKey {
    flow(5000)
}

fn flow(remote_port: u16) -> FlowKey {
    FlowKey::tcp("10.0.0.1:443".parse().unwrap(), ([10, 0, 0, 2], remote_port).into())
}

/// A stream of records, as queued for the device and as on the wire.
struct RecordStream {
    start: Seq,
    units: Vec<Unit>,
    queued: Bytes,
    wire: Vec<u8>,
    /// Whether software sealed each unit in the queue.
    sealed: Vec<bool>,
}

impl RecordStream {
    fn new(start: Seq, first_number: u64, lengths: &[usize]) -> RecordStream {
        RecordStream::sealed_with(AES_128, start, first_number, lengths)
    }

    fn sealed_with((version, suite): TlsTestCipher, start: Seq, first_number: u64, lengths: &[usize]) -> RecordStream {
        let algorithm = match suite {
            TlsSuite::Aes128Gcm => &ring::aead::AES_128_GCM,
            TlsSuite::Aes256Gcm => &ring::aead::AES_256_GCM,
            _ => &ring::aead::CHACHA20_POLY1305,
        };
        let key = ring::aead::UnboundKey::new(algorithm, &KEY[..suite.key_len()]).unwrap();
        let sealing = ring::aead::LessSafeKey::new(key);
        let (mut queued, mut wire, mut units) = (Vec::new(), Vec::new(), Vec::new());
        for (number, length) in (first_number..).zip(lengths) {
            let unit_start = start + wire.len() as u32;
            let is_12 = version == TlsVersion::Tls12;
            // The nonce is built here from the RFCs, independently of the code under test.
            let mut nonce = IV;
            nonce.iter_mut().skip(4).zip(number.to_be_bytes()).for_each(|(byte, part)| *byte ^= part);
            let explicit = if is_12 && suite != TlsSuite::ChaCha20Poly1305 { nonce[4..].to_vec() } else { Vec::new() };
            let after = length + explicit.len() + 16;
            let header = [23, 3, 3, (after >> 8) as u8, after as u8];
            let mut body: Vec<u8> = b"MARKER".iter().copied().cycle().take(*length).collect();
            // The queued form has plaintext and an empty tag.
            queued.extend_from_slice(&[&header[..], &explicit, &body, &[0; 16]].concat());
            // TLS 1.2 authenticates number, type, version and content length; TLS 1.3 authenticates the header.
            let long = [&number.to_be_bytes()[..], &header[..3], &(*length as u16).to_be_bytes()].concat();
            let aad = if is_12 { &long[..] } else { &header };
            let nonce = ring::aead::Nonce::assume_unique_for_key(nonce);
            sealing.seal_in_place_append_tag(nonce, ring::aead::Aad::from(aad), &mut body).unwrap();
            wire.extend_from_slice(&[&header[..], &explicit, &body].concat());
            let offset = u64::from(unit_start.distance_from(start));
            let len = (wire.len() as u64 - offset) as u32;
            units.push(Unit { layer: Layer::FIRST, number, offset, start: unit_start, len, touched_from: 0 });
        }
        RecordStream { start, sealed: vec![false; units.len()], units, queued: queued.into(), wire }
    }

    /// Makes a packet of up to `bytes` bytes. Sealed and unsealed units are never in one packet.
    fn packet(&self, at: usize, bytes: usize, mss: u16, context: Handle) -> TxPacket {
        let seq = self.start + at as u32;
        let first = self.unit_of(at);
        let sealed = self.sealed[first];
        let alike = (first..self.units.len()).take_while(|unit| self.sealed[*unit] == sealed).last().unwrap();
        let end = (at + bytes).min(self.units[alike].end() as usize);
        let queued = if sealed { Bytes::copy_from_slice(&self.wire[at..end]) } else { self.queued.slice(at..end) };
        let streams = [(!sealed).then(|| StreamAsk::whole(context, at as u64, (end - at) as u32)), None];
        TxPacket {
            header: headers(sender(), seq).into(),
            fragments: [queued].into_iter().collect(),
            ask: TxAsk { seq, streams, checksum: true, mss: Some(mss), ..TxAsk::default() },
        }
    }

    fn unit_of(&self, at: usize) -> usize {
        self.units.iter().position(|unit| unit.contains(at as u64)).unwrap()
    }

    /// Seals a unit as a transport does after `NeedsSoftware`.
    fn seal(&mut self, unit: Unit) {
        let number = self.units.iter().position(|other| *other == unit).unwrap();
        assert!(!core::mem::replace(&mut self.sealed[number], true), "sealed twice");
    }
}

impl RecordSource for RecordStream {
    fn unit_at(&self, _: Layer, offset: u64) -> Lookup {
        let unit = self.units.iter().find(|unit| unit.contains(offset));
        unit.map_or(Lookup::Released, |unit| Lookup::In(*unit))
    }

    fn pieces(&self, _: Layer, from: u64, to: u64, sink: &mut dyn FnMut(QueuedBytes)) {
        // In two pieces, like the header and payload of a record.
        let middle = from + (to - from) / 3;
        for range in [from..middle, middle..to] {
            let bytes = self.queued.slice(range.start as usize..range.end as usize);
            sink(QueuedBytes { bytes, tag: TxTag::PLAIN, offsets: [range.start, 0] });
        }
    }
}

/// Returns Ethernet, IPv4 and TCP headers; the device fills in lengths and checksums.
fn headers(flow: FlowKey, seq: Seq) -> Vec<u8> {
    let (std::net::IpAddr::V4(source), std::net::IpAddr::V4(destination)) = (flow.local.ip(), flow.remote.ip()) else {
        panic!("IPv4 here")
    };
    let mut bytes = vec![0xff; 6];
    bytes.extend_from_slice(&[2, 0, 0, 0, 0, 9, 8, 0]);
    bytes.extend_from_slice(&[0x45, 0, 0, 40, 0, 0, 0x40, 0, 64, 6, 0, 0]);
    bytes.extend_from_slice(&source.octets());
    bytes.extend_from_slice(&destination.octets());
    bytes.extend_from_slice(&flow.local.port().to_be_bytes());
    bytes.extend_from_slice(&flow.remote.port().to_be_bytes());
    bytes.extend_from_slice(&seq.0.to_be_bytes());
    bytes.extend_from_slice(&[0, 0, 0, 0, 0x50, 0x10, 0xff, 0xff, 0, 0, 0, 0]);
    bytes
}

fn fast(config: NicConfig) -> NicConfig {
    NicConfig { delays: Delays::NONE, line_rate: None, ..config }
}

fn frames(device: &mut Device) -> Vec<Frame> {
    device.process(Instant::ZERO);
    std::iter::from_fn(|| device.poll_frame(Instant::ZERO)).collect()
}

fn seq_of(frame: &Frame) -> Seq {
    Seq(u32::from_be_bytes(frame.data[38..42].try_into().unwrap()))
}

/// Returns frames with a whole wire stream in segments, for the receiver.
fn segments(stream: &RecordStream, mss: usize) -> Vec<Frame> {
    let cuts: Vec<usize> = (mss..stream.wire.len()).step_by(mss).collect();
    segments_cut_at(stream, sender(), &cuts)
}

/// Returns frames of `flow` with the stream cut at these positions.
fn segments_cut_at(stream: &RecordStream, flow: FlowKey, cuts: &[usize]) -> Vec<Frame> {
    let (mut device, mut driver) = nic(fast(NicConfig::default()));
    let wire = Bytes::from(stream.wire.clone());
    let (mut all, mut at) = (Vec::new(), 0);
    for end in cuts.iter().copied().chain([wire.len()]) {
        let seq = stream.start + at as u32;
        let packet = TxPacket {
            header: headers(flow, seq).into(),
            fragments: [wire.slice(at..end)].into_iter().collect(),
            ask: TxAsk { seq, checksum: true, mss: Some((end - at) as u16), ..TxAsk::default() },
        };
        assert_eq!(driver.transmit(Instant::ZERO, packet, stream), TransmitResult::Posted);
        driver.flush(Instant::ZERO);
        all.extend(frames(&mut device));
        at = end;
    }
    all
}

fn lengths() -> impl Strategy<Value = Vec<usize>> {
    prop::collection::vec(1usize..6000, 1..8)
}

proptest! {
    /// Transmission in any order, with any segment size and with resets: only correct ciphertext leaves.
    #[test]
    fn the_sent_stream_equals_softwares_stream(
        cipher in ciphers(),
        next_record in any::<bool>(),
        lengths in lengths(),
        start: u32,
        first_number in 0u64..1 << 40,
        sends in prop::collection::vec((any::<prop::sample::Index>(), 1usize..9000, 100u16..1460, 0u8..20), 1..40),
    ) {
        let mut stream = RecordStream::sealed_with(cipher, Seq(start), first_number, &lengths);
        let transmit_resync = if next_record { TransmitResync::NextRecord } else { TransmitResync::Dump };
        let (mut device, mut driver) = nic(fast(NicConfig { engines: EngineConfigs::default().with_transmit_resync(transmit_resync), ..NicConfig::default() }));
        let mut context = driver.tls().unwrap().add(&sender(), Direction::Transmit, stream.start, first_number, &key_for(cipher)).unwrap();
        let mut seen = 0;
        for (at, bytes, mss, fate) in sends {
            let at = at.index(stream.wire.len());
            prop_assert!(driver.room(&sender()) > 0);
            let mut packet = stream.packet(at, bytes, mss, context);
            let mut sent = driver.transmit(Instant::ZERO, packet.clone(), &stream);
            if let TransmitResult::NeedsSoftware(unit) = sent {
                prop_assert!(next_record, "DUMPs can restore any position");
                stream.seal(unit);
                packet = stream.packet(at, bytes, mss, context);
                sent = driver.transmit(Instant::ZERO, packet.clone(), &stream);
            }
            driver.flush(Instant::ZERO);
            prop_assert_eq!(sent, TransmitResult::Posted);
            let bytes = packet.payload_len();
            if fate == 0 {
                device.reset(Instant::ZERO);
            }
            let mut next = at;
            for frame in frames(&mut device) {
                prop_assert_eq!(seq_of(&frame), stream.start + next as u32);
                let payload = &frame.data[HEADERS..];
                prop_assert_eq!(payload, &stream.wire[next..next + payload.len()]);
                next += payload.len();
                seen += 1;
            }
            let whole = next == at + bytes;
            prop_assert!(whole || fate == 0, "without a reset all bytes leave");
            if fate == 0 {
                // Until the driver learns of the reset, packets are lost; then software seals them; then new contexts
                // start.
                let unit = stream.units[stream.unit_of(at)];
                if packet.ask.has_context() {
                    let unheard = driver.transmit(Instant::ZERO, packet.clone(), &stream);
                    driver.flush(Instant::ZERO);
                    prop_assert!(unheard == TransmitResult::Posted || next_record && unheard == TransmitResult::NeedsSoftware(unit));
                    prop_assert!(frames(&mut device).is_empty());
                }
                prop_assert_eq!(driver.poll_event(), Some(DeviceEvent::Reset));
                let refused = driver.transmit(Instant::ZERO, packet.clone(), &stream);
                let expected = if packet.ask.has_context() { TransmitResult::NeedsSoftware(unit) } else { TransmitResult::Posted };
                prop_assert_eq!(refused, expected);
                driver.flush(Instant::ZERO);
                frames(&mut device);
                context = driver.tls().unwrap().add(&sender(), Direction::Transmit, stream.start, first_number, &key_for(cipher)).unwrap();
            }
        }
        prop_assert!(seen > 0 || device.counters().resets > 0);
        prop_assert!(!next_record || device.dma().tx_resync == 0, "nothing is read twice");
        prop_assert_eq!(driver.poll_event(), None);
        prop_assert!(driver.arm(Waker::noop()), "every descriptor was completed");
    }

    /// Two flows share a NIC, with paced and unpaced packets and resyncs between them. Frames of each flow leave in
    /// order and correctly encrypted, and a removal waits for the last frame.
    #[test]
    fn paced_or_not_a_flow_stays_in_order(
        starts in any::<[u32; 2]>(),
        sends in prop::collection::vec(
            (0usize..2, any::<prop::sample::Index>(), 1usize..9000, 100u16..1460, prop::option::of(1_000_000u64..2_000_000_000), 0u64..20_000),
            1..40,
        ),
    ) {
        let flows = [5000, 5001].map(flow);
        let streams = starts.map(|start| RecordStream::new(Seq(start), 9, &[3000, 16_000, 1, 500]));
        let (mut device, mut driver) = nic(NicConfig { delays: Delays::NONE, ..NicConfig::default() });
        let contexts = [0, 1].map(|number| {
            driver.tls().unwrap().add(&flows[number], Direction::Transmit, streams[number].start, 9, &key()).unwrap()
        });
        let (mut now, mut posted, mut left) = (Instant::ZERO, [Vec::new(), Vec::new()], [Vec::new(), Vec::new()]);
        let mut run = |device: &mut Device, now: &mut Instant, until: Option<Instant>| loop {
            device.process(*now);
            while let Some(frame) = device.poll_frame(*now) {
                // The last byte of the destination port identifies the flow.
                let number = usize::from(frame.data[37] - 5000u16.to_be_bytes()[1]);
                left[number].push((seq_of(&frame), frame.data.slice(HEADERS..)));
            }
            match device.next_event().filter(|at| until.is_none_or(|until| *at <= until)) {
                Some(at) => *now = (*now).max(at),
                None => break *now = (*now).max(until.unwrap_or(*now)),
            }
        };
        for (number, at, bytes, mss, rate, after) in sends {
            let stream = &streams[number];
            let at = at.index(stream.wire.len());
            let bytes = bytes.min(stream.wire.len() - at);
            // A transport waits for room; the device needs time to pass, because paced packets wait.
            while driver.room(&flows[number]).min(driver.room_paced(&flows[number])) == 0 {
                let until = now + core::time::Duration::from_micros(100);
                run(&mut device, &mut now, Some(until));
                driver.poll_event();
            }
            let mut packet = stream.packet(at, bytes, mss, contexts[number]);
            packet.header = headers(flows[number], stream.start + at as u32).into();
            packet.ask.rate = rate.and_then(core::num::NonZeroU64::new);
            prop_assert_eq!(driver.transmit(now, packet, stream), TransmitResult::Posted);
            driver.flush(now);
            posted[number].push((at, bytes));
            let until = now + core::time::Duration::from_nanos(after);
            run(&mut device, &mut now, Some(until));
        }
        // The removal waits for the packets in the shaper.
        contexts.into_iter().for_each(|context| driver.tls().unwrap().remove(context));
        run(&mut device, &mut now, None);
        let mut events: Vec<DeviceEvent> = std::iter::from_fn(|| driver.poll_event()).collect();
        run(&mut device, &mut now, None);
        events.extend(std::iter::from_fn(|| driver.poll_event()));
        prop_assert_eq!(events.iter().filter(|event| matches!(event, DeviceEvent::Removed { .. })).count(), 2);
        prop_assert!(driver.arm(Waker::noop()), "every descriptor was completed");
        // Frames of a flow must follow the order in which its packets were posted.
        for ((stream, posted), left) in streams.iter().zip(posted).zip(left) {
            let mut left = left.into_iter();
            for (at, bytes) in posted {
                let mut sent = 0;
                while sent < bytes {
                    let (seq, payload) = left.next().expect("all bytes leave");
                    prop_assert_eq!(seq, stream.start + (at + sent) as u32);
                    prop_assert_eq!(&payload[..], &stream.wire[at + sent..at + sent + payload.len()]);
                    sent += payload.len();
                }
            }
            prop_assert!(left.next().is_none());
        }
    }

    /// Arrival in any order, with losses and duplicates.
    #[test]
    fn the_verdict_matches_the_delivered_bytes(
        cipher in ciphers(),
        lengths in lengths(),
        start: u32,
        mss in 100usize..1460,
        moves in prop::collection::vec((any::<prop::sample::Index>(), any::<prop::sample::Index>()), 0..4),
        corrupt in prop::option::of((any::<prop::sample::Index>(), HEADERS..200usize)),
    ) {
        let stream = RecordStream::sealed_with(cipher, Seq(start), 3, &lengths);
        let mut frames = segments(&stream, mss);
        let in_order = moves.is_empty();
        // Moving a frame causes a gap and a late arrival.
        for (from, to) in moves {
            let frame = frames.remove(from.index(frames.len()));
            let to = to.index(frames.len() + 1);
            frames.insert(to, frame);
        }
        if let Some((frame, at)) = corrupt {
            let frame = frame.index(frames.len());
            let mut data = frames[frame].data.to_vec();
            let at = at.min(data.len() - 1);
            data[at] ^= 0x10;
            frames[frame] = Frame::from(data);
        }
        let (mut device, mut driver) = nic(fast(NicConfig { receive_ring: 4, ..NicConfig::default() }));
        let flow = sender().reversed();
        let context = driver.tls().unwrap().add(&flow, Direction::Receive, stream.start, 3, &key_for(cipher)).unwrap();
        device.process(Instant::ZERO);
        prop_assert!(device.poll_frame(Instant::ZERO).is_none());
        prop_assert_eq!(driver.poll_event(), Some(DeviceEvent::Ready { flow, handle: context }));
        for frame in frames {
            device.receive_frame(Instant::ZERO, frame.clone());
            device.process(Instant::ZERO);
            let packet = driver.receive(Instant::ZERO).unwrap();
            prop_assert!(driver.receive(Instant::ZERO).is_none());
            prop_assert_eq!(packet.frame.len(), frame.len());
            let at = seq_of(&frame).distance_from(stream.start) as usize;
            let payload = &packet.frame[HEADERS..];
            // A damaged checksum hides everything else; otherwise the verdict must match the bytes.
            match packet.meta.checksums {
                Checksums::Bad => {
                    prop_assert!(corrupt.is_some());
                    prop_assert_eq!(&packet.frame[..], &frame.data[..]);
                }
                Checksums::Good if packet.meta.tls() == TlsVerdict::Decrypted => {
                    prop_assert_eq!(packet.meta.tls_context(), Some(context));
                    prop_assert!(decrypted(&stream, at, payload));
                }
                Checksums::Good => {
                    prop_assert_eq!(&packet.frame[..], &frame.data[..]);
                    prop_assert!(!in_order || corrupt.is_some(), "in order, everything is decrypted");
                }
                Checksums::Unchecked => prop_assert!(false, "this device checks checksums"),
            }
        }
    }

    /// More flows than the NIC's cache holds, in both directions, interleaved at any byte. Contexts are evicted and
    /// reloaded inside records, which changes only the cost.
    #[test]
    fn evicted_contexts_continue_at_their_position(
        flows in prop::collection::vec((ciphers(), lengths(), any::<u32>()), 2..6),
        fits in 1usize..4,
        turns in prop::collection::vec((any::<prop::sample::Index>(), 1usize..3000), 1..80),
    ) {
        // The cache holds fewer contexts than there are flows.
        let config = fast(NicConfig { context_cache_bytes: fits * 208, ..NicConfig::default() });
        let (mut sends, mut sender_driver) = nic(config.clone());
        let (mut receives, mut receiver_driver) = nic(config);
        let mut streams = Vec::new();
        for (number, (cipher, lengths, start)) in flows.iter().enumerate() {
            let stream = RecordStream::sealed_with(*cipher, Seq(*start), 9, lengths);
            let flow = flow(5000 + number as u16);
            let key = key_for(*cipher);
            let context = sender_driver.tls().unwrap().add(&flow, Direction::Transmit, stream.start, 9, &key).unwrap();
            receiver_driver.tls().unwrap().add(&flow.reversed(), Direction::Receive, stream.start, 9, &key).unwrap();
            streams.push((stream, flow, context, 0));
        }
        // The receive contexts are ready after this.
        frames(&mut receives);
        for (turn, bytes) in turns {
            let flow_number = turn.index(streams.len());
            let (stream, flow, context, at) = &mut streams[flow_number];
            let bytes = bytes.min(stream.wire.len() - *at);
            if bytes == 0 {
                continue;
            }
            let packet = TxPacket { header: headers(*flow, stream.start + *at as u32).into(), ..stream.packet(*at, bytes, 700, *context) };
            prop_assert_eq!(sender_driver.transmit(Instant::ZERO, packet, stream), TransmitResult::Posted);
            sender_driver.flush(Instant::ZERO);
            // Each frame is delivered at once, so both NICs evict between packets.
            for frame in frames(&mut sends) {
                let payload = &frame.data[HEADERS..];
                prop_assert_eq!(payload, &stream.wire[*at..*at + payload.len()]);
                receives.receive_frame(Instant::ZERO, frame.clone());
                receives.process(Instant::ZERO);
                let packet = receiver_driver.receive(Instant::ZERO).unwrap();
                prop_assert_eq!(packet.meta.tls(), TlsVerdict::Decrypted);
                prop_assert!(decrypted(stream, *at, &packet.frame[HEADERS..]));
                *at += payload.len();
            }
        }
        let counted = receives.counters();
        prop_assert_eq!(receives.contexts(), streams.len());
        prop_assert_eq!(counted.ctx_evicted > 0, streams.len() > fits);
        // Every eviction and every fetch moves one image of 208 bytes.
        prop_assert_eq!(receives.dma().context, 208 * (counted.ctx_evicted + counted.ctx_fetched));
    }

    /// No frame makes the device panic or lose a buffer.
    #[test]
    fn garbage_is_handed_up_or_dropped(frames in prop::collection::vec(prop::collection::vec(any::<u8>(), 0..1600), 1..20)) {
        let (mut device, mut driver) = nic(fast(NicConfig { receive_ring: 2, ..NicConfig::default() }));
        for mut frame in frames {
            if let Some(first) = frame.first_mut() {
                *first |= 1;
            }
            let fits = (14..=1514).contains(&frame.len());
            device.receive_frame(Instant::ZERO, Frame::from(frame.clone()));
            device.process(Instant::ZERO);
            let packet = driver.receive(Instant::ZERO);
            prop_assert_eq!(packet.is_some(), fits);
            prop_assert!(packet.is_none_or(|packet| packet.frame == frame));
            prop_assert!(driver.receive(Instant::ZERO).is_none());
        }
    }
}

/// Tests whether `payload` is the stream from `at` on, with decrypted bodies and unchanged tags.
fn decrypted(stream: &RecordStream, at: usize, payload: &[u8]) -> bool {
    payload.iter().zip(at..).all(|(byte, at)| {
        let unit = stream.units.iter().find(|unit| unit.contains(at as u64)).unwrap();
        let in_tag = unit.end() - at as u64 <= 16;
        let expected = if in_tag { stream.wire[at] } else { stream.queued[at] };
        *byte == expected
    })
}
