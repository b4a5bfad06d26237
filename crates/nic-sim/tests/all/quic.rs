//! QUIC packets on a NIC compared with software: the same datagrams in both directions.

use bytes::Bytes;
use nic_sim::stats::QuicCounters;
use nic_sim::wire::Port;
use nic_sim::{Delays, Device, Driver, NicConfig, multi_queue_nic, nic};
use offload_api::quic::QuicContext;
use offload_api::rx::Checksums;
use offload_api::{
    ContextNews, Direction, DropReason, Handle, NetDevice, NoRecords, QuicAsk, QuicCipher, QuicContexts, QuicVerdict,
    RxPacket, TransmitResult, TxAsk, TxPacket,
};
use offload_base::Instant;
use offload_formats::Headers;
use offload_quic::{TrafficSecret, seal};
use proptest::prelude::*;

const NOW: Instant = Instant::ZERO;
const PORT: u16 = 4433;
const TAG: usize = 16;

fn config() -> NicConfig {
    NicConfig { delays: Delays::NONE, line_rate: None, lro_datagrams: true, ..NicConfig::default() }
}

struct QuicNic {
    device: Device,
    driver: Driver,
}

impl QuicNic {
    fn new(context_cache_bytes: usize) -> QuicNic {
        let (device, driver) = nic(NicConfig { context_cache_bytes, ..config() });
        QuicNic { device, driver }
    }

    /// Calls `f` with the QUIC interface, and runs the device.
    fn quic<R>(&mut self, f: impl FnOnce(&mut QuicContexts<'_>) -> R) -> R {
        let result = f(&mut QuicContexts::from_contexts(self.driver.contexts().unwrap()).unwrap());
        self.device.process(NOW);
        result
    }

    fn create(&mut self, direction: Direction, keys: &GenerationKeys) -> Handle {
        self.quic(|quic| quic.create(direction, keys.context(0))).unwrap()
    }

    /// Returns the frames of a send.
    fn send(&mut self, datagrams: &[Vec<u8>], six: bool, ask: QuicAsk) -> Result<Vec<Vec<u8>>, TransmitResult> {
        let mss = (datagrams.len() > 1).then(|| datagrams[0].len() as u16);
        let fragments = datagrams.iter().map(|datagram| Bytes::from(datagram.clone())).collect();
        let ask = TxAsk { checksum: true, mss, packet: Some(ask.into()), ..TxAsk::default() };
        let header = header(six, 0, datagrams.iter().map(Vec::len).sum());
        let sent = self.driver.transmit(NOW, TxPacket { header: header.into(), fragments, ask }, &NoRecords);
        if sent != TransmitResult::Posted {
            return Err(sent);
        }
        self.driver.flush(NOW);
        self.device.process(NOW);
        Ok(core::iter::from_fn(|| self.device.poll_frame(NOW)).map(|frame| frame.data.to_vec()).collect())
    }

    fn receive(&mut self, frames: &[Vec<u8>]) -> Vec<RxPacket> {
        frames.iter().for_each(|frame| self.device.receive_frame(NOW, frame.clone().into()));
        self.device.process(NOW);
        core::iter::from_fn(|| self.driver.receive(NOW)).collect()
    }
}

/// The keys of a connection in one direction, by generation.
struct GenerationKeys(Vec<TrafficSecret>);

impl GenerationKeys {
    fn new(cipher: QuicCipher) -> GenerationKeys {
        let first =
            TrafficSecret::new(cipher, &[7; 48][..if cipher == QuicCipher::Aes256Gcm { 48 } else { 32 }]).unwrap();
        GenerationKeys(core::iter::successors(Some(first), |secret| Some(secret.next())).take(6).collect())
    }

    fn context(&self, generation: u64) -> QuicContext {
        QuicContext { header: self.0[0].header(), generation, key: self.0[generation as usize].key() }
    }

    fn set(&self, nic: &mut QuicNic, context: Handle, generation: u64) {
        nic.quic(|quic| quic.set_key(context, generation, self.0[generation as usize].key())).unwrap();
    }

    /// Seals a packet in software.
    fn seal(&self, packet: &PacketStep) -> Vec<u8> {
        let mut bytes = packet.plain();
        let key = self.0[packet.generation as usize].packet_key();
        seal(&key, &self.0[0].header_key(), &mut bytes, 1 + packet.cid.len(), packet.path, packet.number).unwrap();
        bytes
    }
}

#[derive(Clone, Debug)]
struct PacketStep {
    cid: Vec<u8>,
    path: u32,
    number: u64,
    number_bytes: usize,
    generation: u64,
    fixed_bit: bool,
    payload: Vec<u8>,
}

impl PacketStep {
    fn new(number: u64, payload: usize) -> PacketStep {
        let payload = (0..payload).map(|at| (at as u64 * 31 + number) as u8).collect();
        PacketStep { cid: vec![0xc1; 8], path: 0, number, number_bytes: 2, generation: 0, fixed_bit: true, payload }
    }

    /// Returns the packet in plaintext, with space for the tag.
    fn plain(&self) -> Vec<u8> {
        let phase = (self.generation as u8 & 1) << 2;
        let first = u8::from(self.fixed_bit) << 6 | phase | (self.number_bytes - 1) as u8;
        let number = self.number.to_be_bytes();
        [&[first], &self.cid[..], &number[8 - self.number_bytes..], &self.payload, &[0; TAG]].concat()
    }

    fn ask(&self, context: Handle) -> QuicAsk {
        let (path, number, generation) = (self.path, self.number, self.generation);
        QuicAsk { context, path, number, generation, cid_bytes: self.cid.len() as u8 }
    }
}

/// Returns the headers of a datagram to [`PORT`], without checksums.
fn header(six: bool, from: u8, payload: usize) -> Vec<u8> {
    let mut header = vec![0xff; 6];
    header.extend_from_slice(&[2, 0, 0, 0, 0, 9]);
    let udp = 8 + payload as u16;
    if six {
        header.extend_from_slice(&[0x86, 0xdd, 0x60, 0, 0, 0]);
        header.extend_from_slice(&udp.to_be_bytes());
        header.extend_from_slice(&[17, 64]);
        header.extend_from_slice(&[0xfd, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1]);
        header.extend_from_slice(&[0xfd, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 2]);
    } else {
        header.extend_from_slice(&[8, 0, 0x45, 0]);
        header.extend_from_slice(&(20 + udp).to_be_bytes());
        header.extend_from_slice(&[0, 0, 0x40, 0, 64, 17, 0, 0, 10, 0, 0, 1, 10, 0, 0, 2]);
    }
    header.extend_from_slice(&[0x20, from]);
    header.extend_from_slice(&PORT.to_be_bytes());
    header.extend_from_slice(&udp.to_be_bytes());
    header.extend_from_slice(&[0, 0]);
    header
}

/// Returns a whole frame.
fn frame(six: bool, from: u8, datagram: &[u8]) -> Vec<u8> {
    let mut frame = header(six, from, datagram.len());
    frame.extend_from_slice(datagram);
    Headers::parse(&frame).transport().unwrap().fill_checksums(&mut frame);
    frame
}

fn payload_of(frame: &[u8]) -> &[u8] {
    let transport = Headers::parse(frame).transport().unwrap();
    &frame[transport.payload..transport.end]
}

fn packets() -> impl Strategy<Value = (QuicCipher, Vec<PacketStep>)> {
    let cipher = prop::sample::select(QuicCipher::ALL.to_vec());
    let cid = prop::collection::vec(any::<u8>(), 0..=20);
    let first = prop_oneof![0u64..1000, 0u64..1 << 61];
    let common = (cid, any::<u32>(), first, 1usize..=4, 4usize..1300, 0u64..2);
    // Numbers may be skipped, so that a peer that acknowledges unsent packets is detected.
    let each = prop::collection::vec((1u64..4, any::<bool>()), 1..9);
    (cipher, common, each).prop_map(|(cipher, (cid, path, mut number, number_bytes, bytes, generation), each)| {
        let mut packets = Vec::new();
        for (step, fixed_bit) in each {
            let packet = PacketStep::new(number, bytes);
            packets.push(PacketStep { cid: cid.clone(), path, number_bytes, generation, fixed_bit, ..packet });
            number += step;
        }
        (cipher, packets)
    })
}

proptest! {
    #[test]
    fn the_device_and_software_seal_equally(
        (cipher, packets) in packets(),
        six: bool,
        cache in prop::sample::select(vec![208, 4 << 20]),
    ) {
        let (keys, mut nic) = (GenerationKeys::new(cipher), QuicNic::new(cache));
        let context = nic.create(Direction::Transmit, &keys);
        let _other = nic.create(Direction::Transmit, &keys);
        keys.set(&mut nic, context, 1);
        let plain: Vec<_> = packets.iter().map(PacketStep::plain).collect();
        // All at once, by USO.
        let frames = nic.send(&plain, six, packets[0].ask(context)).unwrap();
        let sealed: Vec<_> = packets.iter().map(|packet| keys.seal(packet)).collect();
        prop_assert_eq!(frames.iter().map(|frame| payload_of(frame)).collect::<Vec<_>>(), sealed);
        for frame in &frames {
            prop_assert_eq!(Headers::parse(frame).transport().unwrap().are_checksums_right(frame), Some(true));
        }
        prop_assert_eq!(nic.device.engine_counters::<QuicCounters>().quic_tx_pkts, packets.len() as u64);
        // The same numbers again: no packet leaves.
        prop_assert_eq!(nic.send(&plain[..1], six, packets[0].ask(context)).unwrap(), Vec::<Vec<u8>>::new());
        prop_assert_eq!(nic.device.engine_counters::<QuicCounters>().quic_tx_drop_number, 1);
    }

    #[test]
    fn the_device_and_software_open_the_same_packets(
        (cipher, packets) in packets(),
        six: bool,
        order in any::<prop::sample::Index>(),
        spoiled in prop::option::of((any::<prop::sample::Index>(), any::<prop::sample::Index>())),
        at_once: bool,
        cache in prop::sample::select(vec![208, 4 << 20]),
    ) {
        let (keys, mut nic) = (GenerationKeys::new(cipher), QuicNic::new(cache));
        let context = nic.create(Direction::Receive, &keys);
        // Another context with the same connection ID at another port must not be used.
        let other = nic.create(Direction::Receive, &keys);
        keys.set(&mut nic, context, 1);
        let PacketStep { cid, path, number, .. } = packets[0].clone();
        nic.quic(|quic| {
            quic.listen(PORT, cid.len() as u8).unwrap();
            quic.learn(other, PORT + 1, &cid, 0, None).unwrap();
            quic.learn(context, PORT, &cid, path, number.checked_sub(1)).unwrap();
        });
        let mut sent: Vec<_> = packets.iter().map(|packet| (packet.clone(), keys.seal(packet))).collect();
        let turn = order.index(sent.len());
        // Rotated, so that numbers arrive out of order once.
        sent.rotate_left(turn);
        let mut spoiled_at = None;
        if let Some((which, bit)) = spoiled {
            let which = which.index(sent.len());
            let bit = bit.index(sent[which].1.len() * 8);
            // A wrong connection ID has no context, and a long header is not a short one.
            if bit / 8 > cid.len() {
                sent[which].1[bit / 8] ^= 1 << (bit % 8);
                spoiled_at = Some(which);
            }
        }
        let frames: Vec<_> = sent.iter().map(|(_, datagram)| frame(six, 1, datagram)).collect();
        let received = match at_once {
            true => nic.receive(&frames),
            false => frames.iter().flat_map(|frame| nic.receive(core::slice::from_ref(frame))).collect(),
        };
        // Joined packets are split, and each part is compared with one sent packet.
        let mut seen = sent.iter().enumerate();
        for packet in received {
            let data = payload_of(&packet.frame);
            let each = packet.joined.map_or(data.len(), |bytes| bytes.get().into());
            let verdict = QuicVerdict::from_marks(&packet.meta.marks);
            // A damaged packet is passed on unchanged, and is never joined.
            for (part, data) in data.chunks(each).enumerate() {
                let (at, (sent, wire)) = seen.next().unwrap();
                if spoiled_at == Some(at) {
                    prop_assert_eq!(data, wire, "the datagram is unchanged");
                    let is_open = matches!(verdict, QuicVerdict::Opened { .. });
                    prop_assert!(!is_open);
                    continue;
                }
                let plain = sent.plain();
                prop_assert_eq!(&data[..data.len() - TAG], &plain[..plain.len() - TAG]);
                let QuicVerdict::Opened { context: by, first, packets, generation } = verdict else {
                    panic!("{verdict:?} of {sent:?}")
                };
                prop_assert_eq!((by, first + part as u64), (context, sent.number));
                prop_assert_eq!((u64::from(generation), packet.meta.checksums), (sent.generation, Checksums::Good));
                prop_assert!(part < usize::from(packets));
            }
        }
        prop_assert!(seen.next().is_none());
    }
}

/// Packets with consecutive numbers are joined; a skipped number starts another packet.
#[test]
fn packets_are_joined_by_their_numbers() {
    let (keys, mut nic) = (GenerationKeys::new(QuicCipher::Aes128Gcm), QuicNic::new(4 << 20));
    let context = nic.create(Direction::Receive, &keys);
    nic.quic(|quic| {
        quic.listen(PORT, 8).unwrap();
        quic.learn(context, PORT, &[0xc1; 8], 0, None).unwrap();
    });
    let frames: Vec<_> =
        [0, 1, 2, 4, 5, 3].map(|number| frame(false, 1, &keys.seal(&PacketStep::new(number, 1000)))).into();
    let shown: Vec<_> = nic.receive(&frames).iter().map(|packet| QuicVerdict::from_marks(&packet.meta.marks)).collect();
    let opened = |first, packets| QuicVerdict::Opened { context, first, packets, generation: 0 };
    assert_eq!(shown, [opened(0, 3), opened(4, 2), opened(3, 1)]);
    assert_eq!(nic.device.engine_counters::<QuicCounters>().quic_rx_pkts, 6);
}

/// RFC 9001 6: the next key opens a packet of the other phase. Without the next key, the packet is passed on unchanged.
#[test]
fn a_key_update_finds_the_next_key_in_place() {
    let (keys, mut nic) = (GenerationKeys::new(QuicCipher::ChaCha20Poly1305), QuicNic::new(4 << 20));
    let context = nic.create(Direction::Receive, &keys);
    nic.quic(|quic| {
        quic.listen(PORT, 8).unwrap();
        quic.learn(context, PORT, &[0xc1; 8], 0, None).unwrap();
    });
    // Returns the generation that opened a packet, or checks that the packet is unchanged.
    let generation_of = |nic: &mut QuicNic, number, generation| {
        let wire = keys.seal(&PacketStep { generation, ..PacketStep::new(number, 40) });
        let packet = nic.receive(&[frame(false, 1, &wire)]).remove(0);
        match QuicVerdict::from_marks(&packet.meta.marks) {
            QuicVerdict::Opened { generation, .. } => Some(generation),
            verdict => {
                assert_eq!(payload_of(&packet.frame), wire);
                assert_eq!(
                    matches!(verdict, QuicVerdict::Failed { .. }),
                    nic.device.engine_counters::<QuicCounters>().quic_rx_auth_fail > 0
                );
                None
            }
        }
    };
    assert_eq!(generation_of(&mut nic, 0, 0), Some(0));
    // Before the next key is set, the packet of the new phase stays sealed.
    assert_eq!((generation_of(&mut nic, 1, 1), nic.device.engine_counters::<QuicCounters>().quic_rx_no_key), (None, 1));
    keys.set(&mut nic, context, 1);
    assert_eq!(generation_of(&mut nic, 2, 1), Some(1));
    assert_eq!(generation_of(&mut nic, 1, 0), Some(0), "late, opened by the old key");
    // Generation 2 has the key phase of generation 0 and replaces its key.
    keys.set(&mut nic, context, 2);
    assert_eq!(generation_of(&mut nic, 4, 2), Some(2));
    assert_eq!(
        (generation_of(&mut nic, 3, 0), nic.device.engine_counters::<QuicCounters>().quic_rx_auth_fail),
        (None, 1)
    );
}

/// A peer that updates keys every 100 packets on three paths, far more often than RFC 9001 6.5 allows. Counts the
/// unopened packets if the host sets keys after it saw a packet of the new phase, and if it sets keys in advance.
#[test]
fn a_key_update_costs_at_most_one_packet_a_path() {
    const PATHS: u32 = 3;
    const UPDATES: u64 = 50;
    let unopened = |cipher: QuicCipher, beforehand: bool| {
        let first = GenerationKeys::new(cipher).0.remove(0);
        let keys = GenerationKeys(core::iter::successors(Some(first), |secret| Some(secret.next())).take(60).collect());
        let mut nic = QuicNic::new(4 << 20);
        let context = nic.create(Direction::Receive, &keys);
        nic.quic(|quic| {
            quic.listen(PORT, 8).unwrap();
            (0..PATHS).for_each(|path| quic.learn(context, PORT, &[path as u8; 8], path, None).unwrap());
        });
        let (mut unopened, mut known) = (0, 0);
        for turn in 0..UPDATES * 100 / u64::from(PATHS) {
            // The generation advances every 100 packets over all paths.
            let generation = turn * u64::from(PATHS) / 100;
            if beforehand && known == generation {
                known += 1;
                keys.set(&mut nic, context, known);
            }
            // One packet on each path, before the host has seen any of them.
            let sent: Vec<_> = (0..PATHS)
                .map(|path| {
                    let packet =
                        PacketStep { cid: vec![path as u8; 8], path, generation, ..PacketStep::new(turn, 1200) };
                    frame(false, 1, &keys.seal(&packet))
                })
                .collect();
            for packet in nic.receive(&sent) {
                match QuicVerdict::from_marks(&packet.meta.marks) {
                    QuicVerdict::Opened { generation: by, .. } => assert_eq!(u64::from(by), generation),
                    _ => unopened += 1,
                }
            }
            // Without advance knowledge the host reacts to the first packet of a phase.
            if generation > known {
                known = generation;
                keys.set(&mut nic, context, known);
            }
        }
        assert_eq!(
            nic.device.engine_counters::<QuicCounters>().quic_rx_pkts + unopened,
            UPDATES * 100 / u64::from(PATHS) * u64::from(PATHS)
        );
        unopened
    };
    for cipher in QuicCipher::ALL {
        assert_eq!(unopened(cipher, true), 0, "{cipher:?}");
        assert_eq!(unopened(cipher, false), (UPDATES - 1) * u64::from(PATHS), "{cipher:?}");
    }
}

/// Only authentic packets determine the next expected number.
#[test]
fn a_forged_packet_moves_no_window() {
    let (keys, mut nic) = (GenerationKeys::new(QuicCipher::Aes128Gcm), QuicNic::new(4 << 20));
    let context = nic.create(Direction::Receive, &keys);
    nic.quic(|quic| {
        quic.listen(PORT, 8).unwrap();
        quic.learn(context, PORT, &[0xc1; 8], 0, Some(10)).unwrap();
    });
    let sealed = |number| keys.seal(&PacketStep { number_bytes: 1, ..PacketStep::new(number, 40) });
    // Far ahead, each as far as a one-byte number can express.
    for number in [130, 250, 300] {
        let mut forged = sealed(number);
        *forged.last_mut().unwrap() ^= 1;
        let packet = nic.receive(&[frame(false, 1, &forged)]).remove(0);
        assert_eq!(QuicVerdict::from_marks(&packet.meta.marks), QuicVerdict::Failed { context });
    }
    let packet = nic.receive(&[frame(false, 1, &sealed(11))]).remove(0);
    let opened = QuicVerdict::Opened { context, first: 11, packets: 1, generation: 0 };
    assert_eq!(QuicVerdict::from_marks(&packet.meta.marks), opened);
}

/// A packet that cannot be sealed as requested never leaves.
#[test]
fn an_ask_that_cannot_be_met_is_dropped() {
    let (keys, mut nic) = (GenerationKeys::new(QuicCipher::Aes256Gcm), QuicNic::new(4 << 20));
    let context = nic.create(Direction::Transmit, &keys);
    let receiver = nic.create(Direction::Receive, &keys);
    let packet = PacketStep::new(10, 50);
    let (plain, ask) = (packet.plain(), packet.ask(context));
    let mut drops = 0;
    // Each case must drop exactly one packet, and must not seal any.
    let mut is_dropped = |nic: &mut QuicNic, plain: Vec<u8>, ask: QuicAsk| {
        drops += 1;
        let sent = nic.send(&[plain], false, ask);
        let counters: QuicCounters = nic.device.engine_counters();
        assert_eq!((sent, counters.quic_tx_drop_pkts, counters.quic_tx_pkts), (Ok(Vec::new()), drops, 0));
        (counters.quic_tx_drop_key, counters.quic_tx_drop_number)
    };
    let other_key = is_dropped(&mut nic, plain.clone(), QuicAsk { generation: 2, ..ask });
    assert_eq!(other_key, (1, 0));
    let no_key = is_dropped(&mut nic, PacketStep { generation: 1, ..packet.clone() }.plain(), ask);
    assert_eq!(no_key, (2, 0));
    let other_number = is_dropped(&mut nic, plain.clone(), QuicAsk { number: 11, ..ask });
    assert_eq!(other_number, (2, 1));
    let long_header = [&[plain[0] | 0x80], &plain[1..]].concat();
    // A long header, a truncated packet, and an oversized connection ID.
    is_dropped(&mut nic, long_header, ask);
    is_dropped(&mut nic, plain[..20].to_vec(), ask);
    is_dropped(&mut nic, plain.clone(), QuicAsk { cid_bytes: 21, ..ask });
    assert_eq!(
        nic.send(core::slice::from_ref(&plain), false, QuicAsk { context: receiver, ..ask }),
        Err(TransmitResult::Dropped(DropReason::Unsupported)),
        "it opens"
    );
    nic.device.reset(NOW);
    assert_eq!(
        nic.send(core::slice::from_ref(&plain), false, ask),
        Ok(Vec::new()),
        "the driver does not know of the reset"
    );
    assert_eq!(nic.device.engine_counters::<QuicCounters>().quic_tx_drop_pkts, 7);
    let told: Vec<_> = core::iter::from_fn(|| nic.driver.poll_event()).collect();
    // After the driver has learned of the reset, it refuses the ask itself.
    assert_eq!(told, [offload_api::DeviceEvent::Reset]);
    assert_eq!(nic.send(&[plain], false, ask), Err(TransmitResult::Dropped(DropReason::Unsupported)));
}

/// Packets of a connection go to the queue of its context, by any flow, while the context exists.
#[test]
fn paths_of_a_connection_come_to_one_queue() {
    let keys = GenerationKeys::new(QuicCipher::Aes128Gcm);
    let (mut device, mut drivers) = multi_queue_nic(NicConfig { queues: 4, ..config() });
    for driver in &mut drivers {
        QuicContexts::from_contexts(driver.contexts().unwrap()).unwrap().listen(PORT, 8).unwrap();
    }
    let mut quic = QuicContexts::from_contexts(drivers[2].contexts().unwrap()).unwrap();
    let context = quic.create(Direction::Receive, keys.context(0)).unwrap();
    // Several connection IDs of one path, and a second path.
    for (cid, path) in [(1, 0), (2, 0), (3, 5)] {
        quic.learn(context, PORT, &[cid; 8], path, None).unwrap();
    }
    device.process(NOW);
    assert_eq!(drivers[2].contexts().unwrap().poll_news(), Some(ContextNews::Ready(context)));
    let mut number = 0;
    let mut queues_of = |device: &mut Device, drivers: &mut Vec<Driver>, cid: u8, path: u32| {
        let mut opened = Vec::new();
        // Sixteen source ports, so that the RSS hash spreads the packets without a context.
        for from in 0..16 {
            number += 1;
            let packet = PacketStep { cid: vec![cid; 8], path, ..PacketStep::new(number, 60) };
            device.receive_frame(NOW, frame(false, from, &keys.seal(&packet)).into());
            device.process(NOW);
            for (queue, driver) in drivers.iter_mut().enumerate() {
                while let Some(packet) = driver.receive(NOW) {
                    let is_open = matches!(QuicVerdict::from_marks(&packet.meta.marks), QuicVerdict::Opened { .. });
                    opened.push((queue, is_open));
                }
            }
        }
        opened.sort_unstable();
        opened.dedup();
        opened
    };
    for (cid, path) in [(1, 0), (2, 0), (3, 5)] {
        assert_eq!(queues_of(&mut device, &mut drivers, cid, path), [(2, true)]);
    }
    assert_eq!(queues_of(&mut device, &mut drivers, 3, 4), [(2, false)], "a connection ID of another path");
    assert_eq!(
        queues_of(&mut device, &mut drivers, 9, 0).len(),
        4,
        "packets of other connections are spread by the hash"
    );
    let mut quic = QuicContexts::from_contexts(drivers[2].contexts().unwrap()).unwrap();
    // Only the forgotten connection ID is affected.
    quic.forget(context, PORT, &[2; 8]).unwrap();
    device.process(NOW);
    let spread = queues_of(&mut device, &mut drivers, 2, 0);
    assert!(spread.len() == 4 && spread.iter().all(|(_, is_open)| !is_open));
    assert_eq!(queues_of(&mut device, &mut drivers, 1, 0), [(2, true)], "the others stay");
    QuicContexts::from_contexts(drivers[2].contexts().unwrap()).unwrap().remove(context);
    device.process(NOW);
    assert_eq!(queues_of(&mut device, &mut drivers, 1, 0).len(), 4);
}

/// The host does not check an opened datagram again, so the NIC must not open one with a wrong checksum.
#[test]
fn a_packet_with_a_wrong_checksum_is_delivered_unchanged() {
    let (keys, mut nic) = (GenerationKeys::new(QuicCipher::Aes128Gcm), QuicNic::new(4 << 20));
    let context = nic.create(Direction::Receive, &keys);
    nic.quic(|quic| {
        quic.listen(PORT, 8).unwrap();
        quic.learn(context, PORT, &[0xc1; 8], 0, None).unwrap();
    });
    let wire = keys.seal(&PacketStep::new(5, 100));
    for six in [false, true] {
        let mut wrong = frame(six, 1, &wire);
        // The UDP checksum, after 14 bytes of Ethernet and the IP header.
        let checksum = if six { 14 + 40 + 6 } else { 14 + 20 + 6 };
        wrong[checksum] ^= 0x55;
        let packet = nic.receive(&[wrong]).remove(0);
        assert_eq!(QuicVerdict::from_marks(&packet.meta.marks), QuicVerdict::NotOpened);
        assert_ne!(packet.meta.checksums, Checksums::Good);
        assert_eq!(payload_of(&packet.frame), wire);
    }
    assert_eq!(nic.device.engine_counters::<QuicCounters>().quic_rx_pkts, 0);
    let packet = nic.receive(&[frame(false, 1, &wire)]).remove(0);
    assert!(matches!(QuicVerdict::from_marks(&packet.meta.marks), QuicVerdict::Opened { first: 5, .. }));
}

/// A packet of one path waits to be joined. Later packets of another path must not overtake it, because the same
/// context's packet window would move past it.
#[test]
fn packets_of_a_context_keep_their_order_across_flows() {
    let (keys, mut nic) = (GenerationKeys::new(QuicCipher::Aes128Gcm), QuicNic::new(4 << 20));
    let context = nic.create(Direction::Receive, &keys);
    nic.quic(|quic| {
        quic.listen(PORT, 8).unwrap();
        quic.learn(context, PORT, &[0xc1; 8], 0, None).unwrap();
    });
    // A shorter datagram ends a run, which is passed on at once.
    let frames = [(2, 0, 1000), (1, 1, 1000), (1, 2, 500)];
    let frames = frames.map(|(from, number, len)| frame(false, from, &keys.seal(&PacketStep::new(number, len))));
    let shown: Vec<_> = nic.receive(&frames).iter().map(|packet| QuicVerdict::from_marks(&packet.meta.marks)).collect();
    let opened = |first, packets| QuicVerdict::Opened { context, first, packets, generation: 0 };
    assert_eq!(shown, [opened(0, 1), opened(1, 2)]);
}
