//! Packets through two NICs, compared with the CPU's result for the same PDUs.

use bytes::{Bytes, BytesMut};
use nic_pdcp::{PdcpCounters, PdcpPackets};
use nic_sim::wire::Port;
use nic_sim::{Delays, Device, Driver, NicConfig, nic_with};
use offload_api::{
    Direction, Handle, Key, NetDevice, NewContext, NoRecords, PacketAsk, PacketMark, RxPacket, TransmitResult, TxAsk,
    TxPacket,
};
use offload_base::Instant;
use offload_formats::{Gtpu, GtpuMessage};
use pdcp::crypto::{Algorithm, Key as CipherKey};
use pdcp::device::{PACKETS, PdcpContext, tunnel_key};
use pdcp::{BearerKind, Config, Receiver, Security, SnLen};
use proptest::prelude::*;

const TUNNEL: u32 = 0x1234_5678;

struct PdcpNic {
    device: Device,
    driver: Driver,
}

impl PdcpNic {
    fn new(cache: usize) -> PdcpNic {
        let config = NicConfig {
            delays: Delays::NONE,
            line_rate: None,
            context_cache_bytes: cache,
            lro_datagrams: true,
            ..NicConfig::default()
        };
        let (device, driver) = nic_with(config, |engines| engines.add_packet(PdcpPackets, 8));
        PdcpNic { device, driver }
    }

    fn counters(&self) -> PdcpCounters {
        self.device.engine_counters()
    }

    fn create(&mut self, direction: Direction, context: PdcpContext) -> Handle {
        let contexts = self.driver.contexts().unwrap();
        let engine = contexts.engine(PACKETS).unwrap().number;
        let keys = match direction {
            Direction::Transmit => Vec::new(),
            Direction::Receive => vec![Key::Engine(engine, tunnel_key(TUNNEL))],
        };
        let new = NewContext { engine, direction, flow: None, keys, spec: Box::new(context) };
        let made = contexts.create(new).map_err(|(refused, _)| refused).unwrap();
        self.device.process(Instant::ZERO);
        made
    }

    /// Returns the frames that leave when datagrams of one size are protected by a context.
    fn send(&mut self, datagrams: &[BytesMut], context: Handle, count: u64) -> Vec<Vec<u8>> {
        let payload: Vec<u8> = datagrams.concat();
        let mss = (datagrams.len() > 1).then_some(datagrams[0].len() as u16);
        let packet = Some(PacketAsk { context, number: count, args: 0 });
        let ask = TxAsk { checksum: true, mss, packet, ..TxAsk::default() };
        let fragments = [Bytes::from(payload)].into_iter().collect();
        let header = header(datagrams.iter().map(BytesMut::len).sum()).into();
        if self.driver.transmit(Instant::ZERO, TxPacket { header, fragments, ask }, &NoRecords)
            != TransmitResult::Posted
        {
            return Vec::new();
        }
        // NICs without delays do everything at one time.
        self.driver.flush(Instant::ZERO);
        self.device.process(Instant::ZERO);
        core::iter::from_fn(|| self.device.poll_frame(Instant::ZERO)).map(|frame| frame.data.to_vec()).collect()
    }

    fn receive(&mut self, frames: &[Vec<u8>]) -> Vec<RxPacket> {
        // All frames arrive before the NIC processes any.
        frames.iter().for_each(|frame| self.device.receive_frame(Instant::ZERO, frame.clone().into()));
        self.device.process(Instant::ZERO);
        core::iter::from_fn(|| self.driver.receive(Instant::ZERO)).collect()
    }
}

const HEADERS: usize = 42;

fn header(payload: usize) -> Vec<u8> {
    let mut header = vec![0xff; 6];
    header.extend_from_slice(&[2, 0, 0, 0, 0, 9, 8, 0, 0x45, 0, 0, 0, 0, 0, 0x40, 0, 64, 17, 0, 0]);
    header.extend_from_slice(&[10, 0, 0, 1, 10, 0, 0, 2, 0x08, 0x68, 0x08, 0x68, 0, 0, 0, 0]);
    header[16..18].copy_from_slice(&(28 + payload as u16).to_be_bytes());
    header[38..40].copy_from_slice(&(8 + payload as u16).to_be_bytes());
    header
}

fn gtpu(pdu: &[u8]) -> BytesMut {
    let mut datagram = BytesMut::zeroed(Gtpu::BYTES);
    Gtpu::new(GtpuMessage::Data, TUNNEL, pdu.len()).write(&mut datagram);
    datagram.extend_from_slice(pdu);
    datagram
}

fn security(algorithm: Option<Algorithm>, integrity: bool) -> Security {
    let security = Security::new(5, pdcp::crypto::Direction::Uplink).unwrap();
    let Some(algorithm) = algorithm else { return security };
    let key = |byte: u8| CipherKey::new(algorithm, &vec![byte; algorithm.key_len()]).unwrap();
    let security = security.ciphered(key(1));
    if integrity { security.authenticated(key(2)) } else { security }
}

fn context(config: &Config, security: &Security, next: u64) -> PdcpContext {
    PdcpContext { config: config.clone(), security: security.clone(), next, drops_duplicates: false }
}

/// Returns a PDU in clear, with room for the MAC-I at its end.
fn clear(config: &Config, security: &Security, count: u32, sdu: &[u8]) -> BytesMut {
    let mut pdu = BytesMut::new();
    match config.sn {
        SnLen::Twelve => pdu.extend_from_slice(&(count as u16 & 0xfff | 0x8000).to_be_bytes()),
        SnLen::Eighteen => pdu.extend_from_slice(&(count & 0x3_ffff | 0x80_0000).to_be_bytes()[1..]),
    }
    pdu.extend_from_slice(sdu);
    pdu.resize(pdu.len() + security.mac_len(), 0);
    pdu
}

fn config(long: bool) -> Config {
    Config::data(BearerKind::Unacknowledged, if long { SnLen::Eighteen } else { SnLen::Twelve })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(40))]

    /// Device and CPU make the same datagrams, single or segmented, and each opens the other's.
    #[test]
    fn nic_protects_and_opens_like_the_cpu(
        algorithm in (0..=6u8).prop_map(Algorithm::from_number), integrity: bool, long: bool, sdap: bool,
        first in prop_oneof![Just(0u32), Just(4090), Just(0xfff_fff0), any::<u32>().prop_map(|count| count / 2)],
        sdus in prop::collection::vec(1usize..1400, 1..6), together in 1usize..9, cache in prop_oneof![Just(208usize), Just(4 << 20)],
    ) {
        let mut config = config(long);
        config.clear = sdap.into();
        let security = security(algorithm, integrity);
        let (mut near, mut far) = (PdcpNic::new(cache), PdcpNic::new(cache));
        let sealer = near.create(Direction::Transmit, context(&config, &security, 0));
        let opener = far.create(Direction::Receive, context(&config, &security, first.into()));
        // Each length is one transmission: the PDUs of one length can be segmented.
        let mut count = first;
        for len in sdus {
            let counts: Vec<u32> = (0..together as u32).map(|place| count + place).collect();
            let pdu = |count: u32| clear(&config, &security, count, &vec![count as u8; len]);
            let datagrams: Vec<_> = counts.iter().map(|count| gtpu(&pdu(*count))).collect();
            // Protect: the frames hold the datagrams that the CPU makes.
            let frames = near.send(&datagrams, sealer, count.into());
            let mut by_cpu: Vec<_> = counts.iter().map(|count| (*count, pdu(*count))).collect();
            security.protect(config.clear_bytes(), &mut by_cpu);
            prop_assert_eq!(frames.len(), by_cpu.len());
            for (frame, (_, pdu)) in frames.iter().zip(&by_cpu) {
                prop_assert_eq!(&frame[HEADERS..], &gtpu(pdu)[..]);
            }
            // Open: LRO may have merged several datagrams into one packet.
            let mut opened = Vec::new();
            for packet in far.receive(&frames) {
                let PacketMark::Opened { context, number, packets, .. } = packet.meta.marks.packet() else {
                    panic!("{:?}", packet.meta.marks.packet())
                };
                prop_assert_eq!(context, opener);
                // The mark's number is the first COUNT of the packet.
                let payload = &packet.frame[HEADERS..];
                let each = payload.len() / usize::from(packets);
                for (place, datagram) in payload.chunks(each).enumerate() {
                    opened.push((number as u32 + place as u32, datagram[Gtpu::BYTES..].to_vec()));
                }
            }
            // The CPU opens the same PDUs.
            security.open(config.clear_bytes(), &mut by_cpu);
            let by_cpu: Vec<_> = by_cpu.into_iter().map(|(count, pdu)| (count, pdu.to_vec())).collect();
            prop_assert_eq!(opened, by_cpu);
            count += together as u32;
        }
    }

    /// For any order, loss and duplication of a bearer's PDUs, the NIC uses the host's COUNT whenever the MAC-I proves
    /// it.
    #[test]
    fn nic_derives_the_same_counts_as_the_host(
        moves in prop::collection::vec((0usize..40, any::<bool>()), 1..120), start in prop_oneof![Just(0u32), Just(4000), Just(70_000)],
        drops: bool,
    ) {
        let (config, security) = (config(false), security(Some(Algorithm::Aes128), true));
        let mut nic = PdcpNic::new(4 << 20);
        nic.create(Direction::Receive, PdcpContext { drops_duplicates: drops, ..context(&config, &security, start.into()) });
        // Each move sends one PDU up to 40 COUNTs early, once or twice.
        let mut seen = std::collections::BTreeSet::new();
        for (at, (late, twice)) in moves.iter().enumerate() {
            let count = start + (at + late) as u32;
            let mut pdus = [(count, clear(&config, &security, count, b"an SDU"))];
            security.protect(config.clear_bytes(), &mut pdus);
            let datagram = gtpu(&pdus[0].1);
            let frame = [header(datagram.len()), datagram.to_vec()].concat();
            for _ in 0..=usize::from(*twice) {
                let is_new = seen.insert(count);
                let got = nic.receive(core::slice::from_ref(&frame));
                // Only a context that drops duplicates withholds them.
                if drops && !is_new {
                    prop_assert!(got.is_empty(), "COUNT {count} came twice");
                    continue;
                }
                let mark = got[0].meta.marks.packet();
                prop_assert!(matches!(mark, PacketMark::Opened { number, .. } if number == u64::from(count)), "{mark:?}");
            }
        }
    }
}

/// PDUs that cannot be protected do not leave. PDUs that cannot be opened are passed on unchanged.
#[test]
fn invalid_pdus_are_dropped_if_sent_and_unchanged_if_received() {
    let (config, security) = (config(true), security(Some(Algorithm::Zuc128), true));
    let mut nic = PdcpNic::new(4 << 20);
    let sealer = nic.create(Direction::Transmit, context(&config, &security, 0));
    let opener = nic.create(Direction::Receive, context(&config, &security, 0));
    let pdu = |count| clear(&config, &security, count, b"an SDU");

    // Datagrams that do not match the context or the requested COUNT.
    let mut other_message = gtpu(&pdu(7));
    other_message[1] = 254;
    let mut longer = gtpu(&pdu(7));
    longer.extend_from_slice(b"behind it");
    let short = gtpu(&pdu(7)[..6]);
    let cases = [
        // The sequence number is not this COUNT's.
        (gtpu(&pdu(7)), 8u64),
        // No COUNT has 33 bits.
        (gtpu(&pdu(7)), 1 << 32 | 7),
        (other_message, 7),
        // The GTP-U length does not cover the datagram.
        (longer, 7),
        // There is no room for the MAC-I.
        (short, 7),
        (BytesMut::from(&b"no GTP-U"[..]), 7),
    ];
    let wrong = cases.len() as u64;
    for (datagram, count) in cases {
        assert!(nic.send(&[datagram], sealer, count).is_empty());
    }
    assert!(nic.send(&[gtpu(&pdu(7))], opener, 7).is_empty(), "a context that opens protects nothing");
    assert_eq!((nic.counters().not_protected, nic.counters().protected), (wrong, 0));

    let sealed = nic.send(&[gtpu(&pdu(7))], sealer, 7).remove(0);
    let changed = |at: usize, by: u8| {
        let mut frame = sealed.clone();
        frame[at] ^= by;
        // A zero checksum field means no checksum.
        frame[40..42].fill(0);
        frame
    };
    let pdu_at = HEADERS + Gtpu::BYTES;
    for (frame, failed) in [
        (changed(pdu_at + 5, 1), true),       // the SDU
        (changed(sealed.len() - 1, 1), true), // MAC-I
        (changed(pdu_at + 2, 1), true),       // the sequence number
        (changed(pdu_at, 0x80), false),       // a control PDU
        (changed(HEADERS + 7, 1), false),     // another tunnel
        (changed(36, 1), false),              // another port
    ] {
        let got = nic.receive(core::slice::from_ref(&frame)).remove(0);
        assert_eq!(got.frame[..], frame[..], "as it came");
        assert_eq!(got.meta.marks.packet() == PacketMark::Failed { context: opener }, failed);
    }
    // With a wrong checksum, the PDU is not opened.
    let mut spoilt = sealed.clone();
    spoilt[pdu_at + 5] ^= 1;
    let got = nic.receive(&[spoilt]).remove(0);
    assert_eq!(got.meta.marks.packet(), PacketMark::None);
    // The PDUs above did not move the COUNT.
    let got = nic.receive(&[sealed]).remove(0);
    assert!(matches!(got.meta.marks.packet(), PacketMark::Opened { number: 7, .. }));
    assert_eq!((nic.counters().opened, nic.counters().failed), (1, 3));
}

/// A receiver on the host gets the same SDUs, whether or not the NIC opened their PDUs.
#[test]
fn host_delivers_sdus_that_the_nic_opened() {
    let (config, security) = (config(true), security(Some(Algorithm::Snow3g), true));
    let (mut near, mut far) = (PdcpNic::new(4 << 20), PdcpNic::new(4 << 20));
    let sealer = near.create(Direction::Transmit, context(&config, &security, 0));
    far.create(Direction::Receive, context(&config, &security, 0));
    let mut receiver = Receiver::new(config.clone(), security.clone()).unwrap();
    // Out of order, so that the receiver has to reorder.
    for count in [1u32, 0, 3, 2] {
        let frames = near.send(&[gtpu(&clear(&config, &security, count, &[count as u8; 50]))], sealer, count.into());
        let got = far.receive(&frames).remove(0);
        let PacketMark::Opened { number, .. } = got.meta.marks.packet() else { panic!() };
        let pdu = BytesMut::from(&got.frame[HEADERS + Gtpu::BYTES..]);
        receiver.receive(Instant::ZERO, [pdcp::IncomingPdu::Opened { count: number as u32, pdu }]);
    }
    let sdus: Vec<_> = core::iter::from_fn(|| receiver.poll_sdu()).map(|sdu| (sdu.count, sdu.data[0])).collect();
    assert_eq!(sdus, [(0, 0), (1, 1), (2, 2), (3, 3)]);
    assert_eq!((receiver.counters().offloaded, receiver.counters().redone), (4, 0));
}
