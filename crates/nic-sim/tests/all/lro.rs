//! Large receive offload: joinable segments are joined, others are not, and no packet is delayed.

use core::time::Duration;
use nic_sim::dma;
use nic_sim::frame::Frame;
use nic_sim::wire::Port;
use nic_sim::{Delays, Device, Driver, NicConfig, nic};
use offload_api::rx::{Checksums, TlsVerdict};
use offload_api::{Direction, FlowKey, NetDevice, RxMeta, RxPacket, TlsKey, TlsSuite, TlsVersion, TypedContexts};
use offload_base::{Instant, Seq};
use proptest::prelude::*;

/// The relevant fields of a segment.
#[derive(Clone, Debug, PartialEq)]
struct SegmentFields {
    port: u16,
    seq: u32,
    ack: u32,
    flags: u8,
    window: u16,
    ecn: u8,
    hops: u8,
    stamp: Option<u32>,
    payload: Vec<u8>,
}

impl SegmentFields {
    fn data(seq: u32, payload: &[u8]) -> SegmentFields {
        SegmentFields {
            port: 1,
            seq,
            ack: 7,
            flags: ACK,
            window: 100,
            ecn: 0,
            hops: 64,
            stamp: None,
            payload: payload.into(),
        }
    }

    fn frame(&self, six: bool) -> Frame {
        let mut tcp = [self.port.to_be_bytes(), 443u16.to_be_bytes()].concat();
        tcp.extend_from_slice(&self.seq.to_be_bytes());
        tcp.extend_from_slice(&self.ack.to_be_bytes());
        let words = if self.stamp.is_some() { 8 } else { 5 };
        tcp.extend_from_slice(&[words << 4, self.flags]);
        tcp.extend_from_slice(&self.window.to_be_bytes());
        // Checksum and urgent pointer; the checksum is computed at the end.
        tcp.extend_from_slice(&[0; 4]);
        if let Some(stamp) = self.stamp {
            // Two NOPs align the timestamp option, as in Linux.
            tcp.extend_from_slice(&[1, 1, 8, 10]);
            tcp.extend_from_slice(&stamp.to_be_bytes());
            tcp.extend_from_slice(&[0; 4]);
        }
        tcp.extend_from_slice(&self.payload);
        let mut frame = vec![0xff; 6];
        frame.extend_from_slice(&[2, 0, 0, 0, 0, 9]);
        let addresses = if six {
            let [mut source, mut destination] = [[0u8; 16]; 2];
            (source[0], source[15], destination[0], destination[15]) = (0xfd, 2, 0xfd, 1);
            frame.extend_from_slice(&[0x86, 0xdd, 0x60, self.ecn << 4, 0, 0]);
            frame.extend_from_slice(&(tcp.len() as u16).to_be_bytes());
            frame.extend_from_slice(&[6, self.hops]);
            [source, destination].concat()
        } else {
            let mut ip = vec![0x45, self.ecn];
            ip.extend_from_slice(&(20 + tcp.len() as u16).to_be_bytes());
            // The identification differs per segment, and must not prevent joining.
            ip.extend_from_slice(&[self.seq as u8, 0, 0x40, 0, self.hops, 6, 0, 0, 10, 0, 0, 2, 10, 0, 0, 1]);
            let checksum = !sum(&ip, 0);
            ip[10..12].copy_from_slice(&checksum.to_be_bytes());
            frame.extend_from_slice(&[8, 0]);
            frame.extend_from_slice(&ip);
            ip[12..].to_vec()
        };
        if six {
            frame.extend_from_slice(&addresses);
        }
        // The pseudo header has the addresses, the protocol number 6 and the TCP length.
        let pseudo = u32::from(sum(&addresses, 0)) + 6 + tcp.len() as u32;
        let checksum = !sum(&tcp, pseudo);
        tcp[16..18].copy_from_slice(&checksum.to_be_bytes());
        frame.extend_from_slice(&tcp);
        Frame::from(frame)
    }

    /// Parses a packet from the device.
    fn parse(frame: &[u8]) -> SegmentFields {
        let six = frame[12..14] == [0x86, 0xdd];
        let tcp = &frame[if six { 54 } else { 34 }..];
        let ip_bytes = u16::from_be_bytes([frame[if six { 18 } else { 16 }], frame[if six { 19 } else { 17 }]]);
        let all = frame.len() - if six { 54 } else { 14 };
        assert_eq!(
            ip_bytes,
            u16::try_from(all).unwrap_or(0),
            "the IP length covers all segments, or is zero if too long"
        );
        let number = |at: usize| u32::from_be_bytes(tcp[at..at + 4].try_into().unwrap());
        let header = usize::from(tcp[12] >> 4) * 4;
        SegmentFields {
            port: u16::from_be_bytes([tcp[0], tcp[1]]),
            seq: number(4),
            ack: number(8),
            flags: tcp[13],
            window: u16::from_be_bytes([tcp[14], tcp[15]]),
            ecn: if six { frame[15] >> 4 } else { frame[15] },
            hops: if six { frame[21] } else { frame[22] },
            stamp: (header > 20).then(|| number(24)),
            payload: tcp[header..].to_vec(),
        }
    }
}

fn sum(bytes: &[u8], start: u32) -> u16 {
    let words = bytes.chunks(2).map(|pair| u32::from(pair[0]) << 8 | u32::from(*pair.get(1).unwrap_or(&0)));
    let mut sum = start + words.sum::<u32>();
    while sum > 0xffff {
        sum = (sum >> 16) + (sum & 0xffff);
    }
    sum as u16
}

fn at_once(config: NicConfig) -> (Device, Driver) {
    nic(NicConfig { delays: Delays::NONE, line_rate: None, ..config })
}

/// Receives frames that arrive together, and returns the packets.
fn receive(device: &mut Device, driver: &mut Driver, frames: impl IntoIterator<Item = Frame>) -> Vec<RxPacket> {
    for frame in frames {
        device.receive_frame(Instant::ZERO, frame);
    }
    device.process(Instant::ZERO);
    core::iter::from_fn(|| driver.receive(Instant::ZERO)).collect()
}

/// Returns the payload length of each packet made from segments that arrive together.
fn payloads(segments: &[SegmentFields]) -> Vec<usize> {
    let (mut device, mut driver) = at_once(NicConfig::default());
    let packets = receive(&mut device, &mut driver, segments.iter().map(|segment| segment.frame(false)));
    packets.iter().map(|packet| SegmentFields::parse(&packet.frame).payload.len()).collect()
}

#[test]
fn segments_with_equal_headers_become_one_packet() {
    for six in [false, true] {
        let (mut device, mut driver) = at_once(NicConfig::default());
        let stream: Vec<u8> = (0..4344u32).map(|at| (at * 7) as u8).collect();
        let mut segments: Vec<SegmentFields> = stream
            .chunks(1000)
            .zip((5000..).step_by(1000))
            .map(|(chunk, seq)| SegmentFields::data(seq, chunk))
            .collect();
        segments[4].flags = ACK | PSH;
        let packets = receive(&mut device, &mut driver, segments.iter().map(|segment| segment.frame(six)));
        let [packet] = &packets[..] else { panic!("{} packets", packets.len()) };
        assert_eq!(
            SegmentFields::parse(&packet.frame),
            SegmentFields { flags: ACK | PSH, payload: stream, ..segments[0].clone() }
        );
        assert_eq!(packet.joined.map(|bytes| bytes.get()), Some(1000));
        assert_eq!((packet.meta.checksums, packet.meta.tls()), (Checksums::Good, TlsVerdict::NotDecrypted));
        let counted = device.counters();
        assert_eq!((counted.rx_packets, counted.rx_lro_packets), (5, 1));
        assert_eq!(counted.rx_lro_bytes, packet.frame.len() as u64);
    }
}

#[test]
fn any_differing_header_field_keeps_segments_apart() {
    let (first, same) = (SegmentFields::data(0, &[1; 100]), SegmentFields::data(100, &[2; 100]));
    assert_eq!(payloads(&[first.clone(), same.clone()]), [200]);
    let others = [
        // Each segment differs from `same` in one property.
        SegmentFields { seq: 101, ..same.clone() },
        SegmentFields { seq: 0, ..same.clone() },
        SegmentFields { ack: 8, ..same.clone() },
        SegmentFields { window: 99, ..same.clone() },
        SegmentFields { ecn: 3, ..same.clone() },
        SegmentFields { hops: 63, ..same.clone() },
        SegmentFields { stamp: Some(1), ..same.clone() },
        SegmentFields { flags: ACK | 0x40, ..same.clone() },
        SegmentFields { flags: ACK | 0x80, ..same.clone() },
        SegmentFields { flags: ACK | 0x20, ..same.clone() },
        SegmentFields { flags: ACK | 0x04, ..same.clone() },
        SegmentFields { flags: 0x08, ..same.clone() },
        SegmentFields { payload: vec![2; 101], ..same.clone() },
    ];
    for other in others {
        assert_eq!(payloads(&[first.clone(), other.clone()]), [100, other.payload.len()], "{other:?}");
    }
    // Equal timestamps are joined, so the option itself is not the reason for a separate packet.
    let stamped = |segment: &SegmentFields, stamp| SegmentFields { stamp: Some(stamp), ..segment.clone() };
    assert_eq!(payloads(&[stamped(&first, 1), stamped(&same, 1)]), [200]);
    assert_eq!(payloads(&[stamped(&first, 1), stamped(&same, 2)]), [100, 100]);
    // No segment follows PSH or a short segment; a pure acknowledgment separates the packets around it.
    let last = SegmentFields { flags: ACK | PSH, ..first.clone() };
    assert_eq!(payloads(&[last, same.clone()]), [100, 100]);
    assert_eq!(
        payloads(&[first.clone(), SegmentFields::data(100, &[2; 99]), SegmentFields::data(199, &[3; 99])]),
        [199, 99]
    );
    assert_eq!(payloads(&[first, SegmentFields::data(100, &[]), same]), [100, 0, 100]);
}

#[test]
fn flows_are_joined_each_by_itself_and_no_packet_exceeds_64_kib() {
    let of = |port: u16, number: u32| SegmentFields { port, ..SegmentFields::data(number * 1400, &[port as u8; 1400]) };
    let segments: Vec<SegmentFields> = (0..100).flat_map(|number| [of(1, number), of(2, number)]).collect();
    let both = payloads(&segments);
    assert_eq!(both.iter().sum::<usize>(), 200 * 1400);
    // A packet also ends at the end of its buffer.
    assert!(both.len() <= 8 && both.iter().max() == Some(&(46 * 1400)), "{both:?}");
    // More flows than sessions.
    let segments: Vec<SegmentFields> = (0..3).flat_map(|number| (1..=17).map(move |port| of(port, number))).collect();
    assert_eq!(payloads(&segments), [1400; 51]);
}

#[test]
fn a_packet_may_be_longer_than_its_header_tells() {
    for six in [false, true] {
        let config = NicConfig { lro_max_bytes: 256 << 10, ..NicConfig::default() };
        let (mut device, mut driver) = at_once(config);
        let stream: Vec<u8> = (0..400_000u32).map(|at| ((at * 7) >> 3) as u8).collect();
        let segments =
            stream.chunks(1400).zip((5000..).step_by(1400)).map(|(chunk, seq)| SegmentFields::data(seq, chunk));
        let packets = receive(&mut device, &mut driver, segments.map(|segment| segment.frame(six)));
        let lengths: Vec<usize> = packets.iter().map(|packet| packet.frame.len()).collect();
        assert!(
            lengths[0] > (256 << 10) - 1400 && lengths.iter().all(|bytes| *bytes <= 14 + (256 << 10)),
            "{lengths:?}"
        );
        assert_eq!(packets[0].joined.map(|bytes| bytes.get()), Some(1400));
        assert_eq!(
            packets.iter().flat_map(|packet| SegmentFields::parse(&packet.frame).payload).collect::<Vec<_>>(),
            stream
        );
    }
}

/// A frame with a length of zero on the wire is invalid. It is not joined, and passed on unchanged.
#[test]
fn a_frame_without_a_header_length_stays_unchanged() {
    for six in [false, true] {
        let (mut device, mut driver) = at_once(NicConfig { lro_max_bytes: 256 << 10, ..NicConfig::default() });
        let [first, mut second] = [0, 100].map(|seq| SegmentFields::data(seq, &[1; 100]).frame(six).data.to_vec());
        second[if six { 18 } else { 16 }..][..2].fill(0);
        let mut packets = receive(&mut device, &mut driver, [first.clone().into(), second.clone().into()]);
        // The frame belongs to no flow, so it is not delayed.
        packets.sort_by_key(|packet| packet.meta.checksums != Checksums::Good);
        let seen: Vec<_> = packets.iter().map(|packet| (packet.frame.to_vec(), packet.joined)).collect();
        assert_eq!(seen, [(first, None), (second, None)]);
        assert_eq!(packets[1].meta.checksums, Checksums::Unchecked);
    }
}

/// With `lro_wait`, segments wait for others regardless of the host, until the time is over or a segment has PSH.
#[test]
fn segments_wait_for_the_configured_time() {
    let wait = Duration::from_micros(16);
    let config = NicConfig { lro_wait: wait, lro_max_bytes: 256 << 10, ..NicConfig::default() };
    let delays = config.delays.dma + config.delays.engine + config.delays.interrupt;
    // One segment every 200 ns, the 150th with PSH. Host and interrupts have no effect in between.
    let last = SegmentFields { flags: ACK | PSH, ..SegmentFields::data(149_000, &[1; 1000]) };
    let segments = (0..200u32)
        .map(|number| if number == 149 { last.clone() } else { SegmentFields::data(number * 1000, &[1; 1000]) });
    let mut arrivals =
        segments.zip((0u64..).step_by(200)).map(|(says, at)| (Instant::from_nanos(at), says.frame(false))).peekable();
    let (mut device, mut driver) = nic(config);
    let woken = std::sync::Arc::new(LroWaker::default());
    assert!(driver.arm(&woken.clone().into()));
    let mut seen = Vec::new();
    while let Some(now) = offload_base::time::earliest(arrivals.peek().map(|(at, _)| *at), device.next_event()) {
        while let Some((_, frame)) = arrivals.next_if(|(at, _)| *at <= now) {
            device.receive_frame(now, frame);
        }
        device.process(now);
        if woken.0.swap(false, std::sync::atomic::Ordering::SeqCst) {
            let packets = core::iter::from_fn(|| driver.receive(now)).map(|packet| SegmentFields::parse(&packet.frame));
            seen.extend(packets.map(|says| (now, says.seq, says.payload.len())));
            assert!(driver.arm(&woken.clone().into()));
        }
    }
    // 16 us and the segment that arrives just then are 81 segments; 81 + 69 with PSH are 150; then the wait ends once
    // more.
    let shown: Vec<(u32, usize)> = seen.iter().map(|(_, seq, bytes)| (*seq, *bytes)).collect();
    assert_eq!(shown, [(0, 81_000), (81_000, 69_000), (150_000, 50_000)]);
    let at = |number: u64| Instant::from_nanos(number * 200) + delays;
    assert_eq!(seen.iter().map(|(now, ..)| *now).collect::<Vec<_>>(), [at(0) + wait, at(149), at(150) + wait]);
}

/// A segment that no other can follow is not delayed: PSH, a shorter segment, a pure acknowledgment.
#[test]
fn a_segment_without_a_successor_does_not_wait() {
    let first = SegmentFields::data(0, &[1; 1000]);
    let pushed = SegmentFields { flags: ACK | PSH, ..SegmentFields::data(1000, &[1; 1000]) };
    let short = SegmentFields::data(1000, &[1; 999]);
    let alone = SegmentFields::data(0, &[]);
    for (segments, shown) in [
        (vec![first.clone()], vec![]),
        (vec![first.clone(), pushed], vec![2000]),
        (vec![first, short], vec![1999]),
        (vec![alone], vec![0]),
    ] {
        let config = NicConfig { lro_wait: Duration::from_micros(16), ..NicConfig::default() };
        let (mut device, mut driver) = at_once(config);
        let packets = receive(&mut device, &mut driver, segments.iter().map(|says| says.frame(false)));
        let bytes: Vec<_> = packets.iter().map(|packet| SegmentFields::parse(&packet.frame).payload.len()).collect();
        assert_eq!(bytes, shown, "{} segments", segments.len());
    }
}

/// Four segments of 1,000 bytes with their headers, exact to the byte.
#[test]
fn a_packet_grows_exactly_to_the_limit() {
    for (most, expected) in [(4040, [4000, 1000]), (4039, [3000, 2000])] {
        let (mut device, mut driver) = at_once(NicConfig { lro_max_bytes: most, ..NicConfig::default() });
        let segments = (0..5).map(|number| SegmentFields::data(number * 1000, &[1; 1000]).frame(false));
        let packets = receive(&mut device, &mut driver, segments);
        let bytes: Vec<_> = packets.iter().map(|packet| SegmentFields::parse(&packet.frame).payload.len()).collect();
        assert_eq!(bytes, expected, "{most}");
    }
}

#[test]
fn without_lro_frames_stay_unchanged() {
    let (mut device, mut driver) = at_once(NicConfig { lro: false, receive_ring: 4, ..NicConfig::default() });
    let segments = (0..6).map(|number| SegmentFields::data(number * 100, &[1; 100]).frame(false));
    let packets = receive(&mut device, &mut driver, segments);
    assert_eq!(packets.len(), 4);
    assert!(packets.iter().all(|packet| packet.joined.is_none()));
    assert_eq!((device.counters().rx_out_of_buffer, device.counters().rx_lro_packets), (2, 0));
}

/// A record in three segments: decrypted and undecrypted segments are never joined, and decrypted ones are.
#[test]
fn decrypted_and_undecrypted_segments_are_never_joined() {
    let key = [7; 16];
    let sealing = ring::aead::LessSafeKey::new(ring::aead::UnboundKey::new(&ring::aead::AES_128_GCM, &key).unwrap());
    let mut wire = Vec::new();
    for number in 0..4u64 {
        let header = [23, 3, 3, (2000u16 >> 8) as u8, 2000u16 as u8];
        let mut body = vec![b'P'; 1984];
        let mut nonce = [9u8; 12];
        nonce.iter_mut().skip(4).zip(number.to_be_bytes()).for_each(|(byte, part)| *byte ^= part);
        let nonce = ring::aead::Nonce::assume_unique_for_key(nonce);
        sealing.seal_in_place_append_tag(nonce, ring::aead::Aad::from(header), &mut body).unwrap();
        wire.extend_from_slice(&header);
        wire.extend_from_slice(&body);
    }
    let (mut device, mut driver) = at_once(NicConfig::default());
    let flow = FlowKey::tcp("10.0.0.1:443".parse().unwrap(), "10.0.0.2:1".parse().unwrap());
    let key = TlsKey::new(TlsVersion::Tls13, TlsSuite::Aes128Gcm, &key, [9; 12]).unwrap();
    // The context starts with the third record, so earlier records stay encrypted.
    driver.tls().unwrap().add(&flow, Direction::Receive, Seq(2 * 2005), 2, &key).unwrap();
    device.process(Instant::ZERO);
    assert!(device.poll_frame(Instant::ZERO).is_none());
    let cut = |from: usize, to: usize| SegmentFields::data(from as u32, &wire[from..to]).frame(false);
    // All segments have 401 bytes, five per record.
    let frames: Vec<Frame> = (0..20).map(|number| cut(number * 401, number * 401 + 401)).collect();
    let packets = receive(&mut device, &mut driver, frames);
    let told: Vec<(TlsVerdict, usize)> =
        packets.iter().map(|packet| (packet.meta.tls(), SegmentFields::parse(&packet.frame).payload.len())).collect();
    assert_eq!(told, [(TlsVerdict::NotDecrypted, 4010), (TlsVerdict::Decrypted, 4010)]);
    assert_eq!(SegmentFields::parse(&packets[0].frame).payload, wire[..4010]);
    let plain = SegmentFields::parse(&packets[1].frame);
    assert_eq!(plain.seq, 4010);
    assert!(plain.payload[5..1989].iter().all(|byte| *byte == b'P'));
    // Each packet has headers once; the headers of later segments do not cross the bus.
    assert_eq!(device.dma().rx_payload, 20 * 401 + 2 * 54);
    // Engines give no verdict on a segment without data.
    let packets = receive(&mut device, &mut driver, [SegmentFields::data(20 * 401, &[]).frame(false)]);
    assert_eq!(packets[0].meta, RxMeta { checksums: Checksums::Good, ..RxMeta::default() });
}

/// A buffer is used while the longest frame fits into its rest. A buffer must not grow, because it would be
/// reallocated.
#[test]
fn a_buffer_takes_frames_while_the_longest_still_fits() {
    const BUFFER: usize = 128 << 10;
    for (mtu, rest_is_used) in [(1522, true), (1530, false)] {
        let config = NicConfig { mtu, receive_ring: 400, ..NicConfig::default() };
        assert_eq!(config.receive_buffer_bytes(), BUFFER);
        let (mut device, mut driver) = at_once(config);
        // 1,536 bytes are left after these frames.
        let lengths = core::iter::repeat_n(1536, 84).chain([BUFFER - 85 * 1536]);
        let frames = lengths.map(|bytes| Frame::from(vec![0xff; bytes]));
        assert_eq!(receive(&mut device, &mut driver, frames).len(), 85);
        let buffers = |device: &Device| device.dma().rx_descriptors / dma::RECEIVE_DESCRIPTOR;
        assert_eq!(buffers(&device), 1, "MTU {mtu}");
        receive(&mut device, &mut driver, [vec![0xff; 1536].into()]);
        assert_eq!(buffers(&device), if rest_is_used { 1 } else { 2 }, "MTU {mtu}");
        receive(&mut device, &mut driver, [vec![0xff; 1536].into()]);
        assert_eq!(buffers(&device), 2, "MTU {mtu}");
    }
}

/// Segments are joined only until the interrupt arrives, and each segment is visible no later than without LRO.
#[test]
fn nobody_waits_longer() {
    let arrivals: Vec<(u64, Frame)> = (0..60u32)
        .map(|number| (u64::from(number) * 130, SegmentFields::data(number * 1000, &[1; 1000]).frame(false)))
        .collect();
    let run = |lro: bool| {
        let (mut device, mut driver) = nic(NicConfig { lro, ..NicConfig::default() });
        let woken = std::sync::Arc::new(LroWaker::default());
        assert!(driver.arm(&woken.clone().into()));
        let mut arrivals = arrivals.iter().peekable();
        let (mut seen, mut packets) = (Vec::new(), Vec::new());
        // Time advances to the next arrival or event of the device, whichever is earlier.
        loop {
            let arrival = arrivals.peek().map(|(at, _)| Instant::from_nanos(*at));
            let Some(now) = offload_base::time::earliest(arrival, device.next_event()) else { break };
            while let Some((_, frame)) = arrivals.next_if(|(at, _)| Instant::from_nanos(*at) <= now) {
                device.receive_frame(now, frame.clone());
            }
            device.process(now);
            // The host looks only after an interrupt.
            if woken.0.swap(false, std::sync::atomic::Ordering::SeqCst) {
                while let Some(packet) = driver.receive(now) {
                    let says = SegmentFields::parse(&packet.frame);
                    seen.extend((says.seq..says.seq + says.payload.len() as u32).step_by(1000).map(|seq| (now, seq)));
                    packets.push(says.payload.len());
                }
                assert!(driver.arm(&woken.clone().into()));
            }
        }
        (seen, packets, device.counters().interrupts)
    };
    let ((seen_apart, packets_apart, _), (seen, packets, interrupts)) = (run(false), run(true));
    // With and without LRO, each segment becomes visible at the same time.
    assert_eq!(seen, seen_apart);
    assert_eq!(packets_apart.len(), 60);
    assert_eq!(packets.len() as u64, interrupts, "{packets:?}");
    assert!(packets[0] > 20_000, "3 us of 130 ns each: {packets:?}");
}

#[derive(Default)]
struct LroWaker(std::sync::atomic::AtomicBool);

impl std::task::Wake for LroWaker {
    fn wake(self: std::sync::Arc<LroWaker>) {
        self.0.store(true, std::sync::atomic::Ordering::SeqCst);
    }
}

proptest! {
    /// Any packets, cut at the segment size, are the received segments in the order of each flow. Time advances
    /// arbitrarily, and no buffer is lost or created.
    #[test]
    fn a_joined_packet_cut_again_equals_the_arrivals(
        segments in prop::collection::vec(
            (1u16..4, prop_oneof![8 => Just(300usize), 1 => 0usize..400], any::<prop::sample::Index>(), 0u64..3000),
            1..120,
        ),
        six: bool,
        lazy in 1usize..40,
        receive_ring in 8usize..200,
        wait in prop_oneof![Just(0u64), 1u64..40_000],
    ) {
        let lro_wait = Duration::from_nanos(wait);
        let config = NicConfig { receive_ring, lro_wait, context_cache_bytes: 208, ..NicConfig::default() };
        let (mut device, mut driver) = nic(config);
        let mut next = [0u32; 4];
        let (mut now, mut sent, mut heard) = (Instant::ZERO, vec![Vec::new(); 4], vec![Vec::new(); 4]);
        let mut dropped = 0;
        // Cuts packets back into segments, which must equal the received ones.
        let mut drain = |driver: &mut Driver, now| {
            while let Some(packet) = driver.receive(now) {
                let says = SegmentFields::parse(&packet.frame);
                let size = packet.joined.map_or(usize::MAX, |bytes| usize::from(bytes.get()));
                let mut rest = &says.payload[..];
                let mut seq = says.seq;
                loop {
                    let (here, behind) = rest.split_at(size.min(rest.len()));
                    // PSH of a joined packet belongs to its last segment.
                    let flags = if behind.is_empty() { says.flags } else { says.flags & !PSH };
                    heard[usize::from(says.port)].push(SegmentFields { seq, flags, payload: here.into(), ..says.clone() });
                    seq += here.len() as u32;
                    rest = behind;
                    if rest.is_empty() {
                        break;
                    }
                }
            }
            let _ = driver.arm(core::task::Waker::noop());
        };
        for (turn, (port, bytes, kind, after)) in segments.into_iter().enumerate() {
            let seq = next[usize::from(port)];
            let plain = SegmentFields { port, ..SegmentFields::data(seq, &vec![turn as u8; bytes]) };
            let segment = match kind.index(12) {
                0 => SegmentFields { ack: 8, ..plain },
                1 => SegmentFields { flags: ACK | PSH, ..plain },
                2 => SegmentFields { ecn: 3, ..plain },
                _ => plain,
            };
            next[usize::from(port)] += segment.payload.len() as u32;
            // A packet that finds no buffer is dropped, which only a slow host may cause.
            let before = device.counters().rx_out_of_buffer;
            device.receive_frame(now, segment.frame(six));
            if device.counters().rx_out_of_buffer == before {
                sent[usize::from(port)].push(segment);
            } else {
                dropped += 1;
            }
            device.process(now);
            // A lazy host leaves packets in the ring, so buffers stay occupied.
            if turn % lazy == 0 {
                drain(&mut driver, now);
            }
            now += Duration::from_nanos(after);
            while let Some(at) = device.next_event().filter(|at| *at <= now) {
                device.process(at);
            }
        }
        while let Some(at) = device.next_event() {
            device.process(at);
        }
        drain(&mut driver, now);
        prop_assert_eq!(&heard, &sent);
        prop_assert!(dropped == 0 || receive_ring < 120);
        // All buffers are returned: as many packets fit as at the beginning.
        let (mut fresh, _driver) = nic(NicConfig { receive_ring, ..NicConfig::default() });
        let fit = |device: &mut Device| {
            let before = device.counters().rx_out_of_buffer;
            (0u16..).take_while(|port| {
                device.receive_frame(now, SegmentFields { port: 100 + port, ..SegmentFields::data(0, &[1; 1400]) }.frame(false));
                device.counters().rx_out_of_buffer == before
            }).count()
        };
        let (fits, at_first) = (fit(&mut device), fit(&mut fresh));
        prop_assert!(fits <= at_first && fits + 90 >= at_first, "{fits} of {at_first}");
    }
}

/// Makes a datagram from `port`.
fn datagram(port: u16, ecn: u8, payload: &[u8], six: bool) -> Frame {
    let bytes = (8 + payload.len() as u16).to_be_bytes();
    let mut udp = [port.to_be_bytes(), 443u16.to_be_bytes(), bytes, [0; 2]].concat();
    udp.extend_from_slice(payload);
    let mut frame = vec![0xff; 6];
    frame.extend_from_slice(&[2, 0, 0, 0, 0, 9]);
    let mut addresses = [10, 0, 0, 2, 10, 0, 0, 1].to_vec();
    if six {
        addresses = vec![0; 32];
        (addresses[0], addresses[15], addresses[16], addresses[31]) = (0xfd, 2, 0xfd, 1);
        frame.extend_from_slice(&[0x86, 0xdd, 0x60, ecn << 4, 0, 0, bytes[0], bytes[1], 17, 64]);
    } else {
        let total = (28 + payload.len() as u16).to_be_bytes();
        let mut ip = vec![0x45, ecn, total[0], total[1], payload.len() as u8, 0, 0, 0, 64, 17, 0, 0];
        ip.extend_from_slice(&addresses);
        let checksum = !sum(&ip, 0);
        ip[10..12].copy_from_slice(&checksum.to_be_bytes());
        frame.extend_from_slice(&[8, 0]);
        frame.extend_from_slice(&ip[..12]);
    }
    let checksum = !sum(&udp, u32::from(sum(&addresses, 0)) + 17 + udp.len() as u32);
    udp[6..8].copy_from_slice(&checksum.to_be_bytes());
    frame.extend_from_slice(&addresses);
    frame.extend_from_slice(&udp);
    Frame::from(frame)
}

/// Returns port, ECN bits and payload of each datagram in a packet.
fn datagrams_of(packet: &RxPacket) -> Vec<(u16, u8, Vec<u8>)> {
    let frame = &packet.frame;
    let six = frame[12..14] == [0x86, 0xdd];
    let udp = &frame[if six { 54 } else { 34 }..];
    assert_eq!(usize::from(u16::from_be_bytes([udp[4], udp[5]])), udp.len(), "the UDP length covers all datagrams");
    let ip_bytes = u16::from_be_bytes([frame[if six { 18 } else { 16 }], frame[if six { 19 } else { 17 }]]);
    assert_eq!(usize::from(ip_bytes), frame.len() - if six { 54 } else { 14 });
    assert_eq!(packet.meta.checksums, Checksums::Good);
    let (port, ecn) = (u16::from_be_bytes([udp[0], udp[1]]), if six { frame[15] >> 4 } else { frame[15] });
    let each = packet.joined.map_or(usize::MAX, |bytes| bytes.get().into());
    let payloads: Vec<_> =
        if udp.len() == 8 { vec![vec![]] } else { udp[8..].chunks(each).map(<[u8]>::to_vec).collect() };
    payloads.into_iter().map(|payload| (port, ecn, payload)).collect()
}

#[test]
fn datagrams_are_joined_if_the_host_wants_that() {
    for six in [false, true] {
        let frames = || [1200, 1200, 700, 1200].map(|bytes| datagram(1, 0, &vec![bytes as u8; bytes], six));
        let (mut device, mut driver) = at_once(NicConfig { lro_datagrams: true, ..NicConfig::default() });
        let joined: Vec<_> = receive(&mut device, &mut driver, frames()).iter().map(datagrams_of).collect();
        assert_eq!(joined.iter().map(Vec::len).collect::<Vec<_>>(), [3, 1], "a shorter datagram is the last");
        let (mut device, mut driver) = at_once(NicConfig::default());
        let single: Vec<_> = receive(&mut device, &mut driver, frames()).iter().map(datagrams_of).collect();
        assert_eq!(single.len(), 4);
        assert_eq!(joined.concat(), single.concat());
        // A datagram with foreign bytes after it (RFC 9868) is not joined. Its checksum stays correct: the removed
        // byte and both lengths are each smaller by one.
        let (mut device, mut driver) = at_once(NicConfig { lro_datagrams: true, ..NicConfig::default() });
        let mut odd = datagram(1, 0, &[1; 100], six).data.to_vec();
        let length = if six { 58 } else { 38 };
        odd[length + 1] -= 1;
        let checksum = u16::from_be_bytes([odd[length + 2], odd[length + 3]]);
        odd[length + 2..length + 4].copy_from_slice(&(checksum + 3).to_be_bytes());
        let packets = receive(&mut device, &mut driver, [datagram(1, 0, &[1; 100], six), odd.clone().into()]);
        assert!(packets.iter().all(|packet| packet.joined.is_none() && packet.meta.checksums == Checksums::Good));
        assert!(packets.iter().any(|packet| packet.frame == odd));
    }
}

/// A packet of an engine's kind without a context: joined packets could not be opened later.
#[test]
fn packets_that_an_engine_may_open_are_not_joined() {
    for six in [false, true] {
        let (mut device, mut driver) = at_once(NicConfig { lro_datagrams: true, ..NicConfig::default() });
        // ESP in UDP starts with a nonzero number; other packets at that port start with zero (RFC 3948 2.2).
        let kinds = [0u8, 0, 7, 7, 7, 0, 0];
        let frames = kinds.map(|first| {
            let mut frame = datagram(4500, 0, &[first; 600], six).data.to_vec();
            // Exchanging the ports does not change the checksum.
            let ports = if six { 54 } else { 34 };
            frame[ports..ports + 4].rotate_left(2);
            Frame::from(frame)
        });
        let packets = receive(&mut device, &mut driver, frames);
        let seen: Vec<_> = packets.iter().flat_map(datagrams_of).map(|(_, _, payload)| payload[0]).collect();
        assert_eq!(seen, kinds);
        let joined: Vec<_> = packets.iter().map(|packet| packet.joined.is_some()).collect();
        assert_eq!(joined, [true, false, false, false, true]);
    }
}

proptest! {
    #[test]
    fn joined_datagrams_stay_unchanged(
        sent in proptest::collection::vec((1u16..4, 0u8..2, prop_oneof![0usize..4, Just(1000), Just(1450)]), 1..150),
        six: bool,
    ) {
        let sent: Vec<_> = sent.into_iter().enumerate().map(|(at, (port, ecn, bytes))| (port, ecn, vec![at as u8; bytes])).collect();
        let (mut device, mut driver) = at_once(NicConfig { lro_datagrams: true, ..NicConfig::default() });
        let frames = sent.iter().map(|(port, ecn, payload)| datagram(*port, *ecn, payload, six));
        let packets = receive(&mut device, &mut driver, frames);
        for port in 1..4 {
            let heard = packets.iter().flat_map(datagrams_of).filter(|(from, ..)| *from == port);
            prop_assert!(heard.eq(sent.iter().filter(|(from, ..)| *from == port).cloned()));
        }
    }
}

const ACK: u8 = 0x10;
const PSH: u8 = 0x08;
