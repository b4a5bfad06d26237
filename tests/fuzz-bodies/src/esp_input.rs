//! ESP and similar packets into a host with a NIC that does a share of the work: nothing panics, the stack receives only data
//! that was sent, and each byte once.
//!
//! Input: a byte of choices (place of ESP, mode, IPv4 or IPv6, extended sequence numbers), then steps of three bytes:
//! an operation and two arguments. Valid packets are sent, stored for later, spoilt at one position, fragmented, or
//! repeated; other packets have bytes from the input after headers that lead to the SA.

use bytes::Bytes;
use core::net::IpAddr;
use ipsec::{KeyedDevice, SecureDevice};
use nic_sim::frame::Frame;
use nic_sim::wire::Port;
use nic_sim::{Delays, Device, NicConfig, nic};
use offload_api::fragmentation::fragment;
use offload_api::{
    Action, Direction, DontFragment, EspKey, EspMode, EspSuite, NetDevice, NoRecords, OffloadKind, Policy, SaParams,
    Selector, Template, TxAsk, TxPacket,
};
use offload_base::{Instant, Seq};
use smoltcp::wire::Ipv4Packet;
use std::collections::HashSet;

/// Runs one input.
pub fn run(data: &[u8]) {
    let Some((choices, mut steps)) = data.split_first() else { return };
    let offload = [OffloadKind::None, OffloadKind::Crypto, OffloadKind::Packet][usize::from(choices & 3) % 3];
    let mode = if choices & 4 == 0 { EspMode::Transport } else { EspMode::Tunnel };
    let (ipv6, esn) = (choices & 8 != 0, choices & 16 != 0);
    let sa = |direction, offload| {
        let key = EspKey::new(EspSuite::Aes128Gcm, &[7; 20]).expect("as long as it has to be");
        let (source, destination) = (address(ipv6, 1), address(ipv6, 2));
        let dont_fragment = DontFragment::Clear;
        SaParams { mode, offload, esn, dont_fragment, ..SaParams::new(direction, SPI, source, destination, key) }
    };
    let mut from = Host::new(1, sa(Direction::Transmit, OffloadKind::None));
    let mut to = Host::new(2, sa(Direction::Receive, offload));
    let mut stack = SlotStack::default();
    let (mut sent, mut offset) = (Vec::new(), 0);
    while let [step, first, second, rest @ ..] = steps {
        steps = rest;
        let at = usize::from(*first) << 8 | usize::from(*second);
        let old = |sent: &[Frame]| (!sent.is_empty()).then(|| sent[at % sent.len()].clone());
        match step % 8 {
            // The next bytes of the stream, cut in segments; the packets arrive now or later.
            step @ 0..=2 => {
                let bytes = (at % 4000).max(1);
                let frames = from.send(segments(ipv6, offset, bytes));
                offset += bytes;
                if step < 2 {
                    frames.iter().for_each(|frame| to.arrive(frame.clone()));
                }
                sent.extend(frames);
            }
            3 => old(&sent).into_iter().for_each(|frame| to.arrive(frame)),
            4 => {
                if let Some(frame) = old(&sent) {
                    let mut bytes = frame.data.to_vec();
                    let place = usize::from(*second) * 7 % bytes.len();
                    // `| 1` makes sure that the byte changes.
                    bytes[place] ^= first | 1;
                    to.arrive(bytes.into());
                }
            }
            5 => old(&sent).iter().flat_map(fragments).for_each(|frame| to.arrive(frame)),
            6 => {
                let (bytes, rest) = steps.split_at(steps.len().min(usize::from(*first)));
                steps = rest;
                to.arrive(pretended(ipv6, *second, bytes));
            }
            _ => to.look(&mut stack, ipv6),
        }
        // Stored packets are bounded, so that one input stays fast.
        if sent.len() > 512 {
            break;
        }
    }
    to.look(&mut stack, ipv6);
}

/// A host's NIC with IPsec above.
struct Host {
    device: Device,
    secure: SecureDevice,
}

impl Host {
    fn new(number: u8, sa: SaParams) -> Host {
        let mac = [2, 0, 0, 0, 0, number];
        let config = NicConfig { mac, delays: Delays::NONE, line_rate: None, receive_ring: 64, ..NicConfig::default() };
        let (device, driver) = nic(config);
        let mut secure = SecureDevice::new(Box::new(driver));
        let template = match sa.mode {
            EspMode::Transport => Template::transport(0),
            EspMode::Tunnel => Template::tunnel(sa.source, sa.destination, 0),
        };
        let (selector, action) = (Selector::ANY, Action::Protect(template));
        let keying = secure.keying().expect("an IPsec layer");
        keying.add_policy(Policy { direction: sa.direction, selector, priority: 0, action }).expect("the first");
        keying.add_sa(Instant::ZERO, sa).expect("a good one");
        let mut host = Host { device, secure };
        // The SA is installed in several exchanges over the control ring.
        (0..4).for_each(|_| host.process_all());
        host
    }

    fn process_all(&mut self) {
        self.secure.flush(Instant::ZERO);
        self.device.process(Instant::ZERO);
        while self.secure.poll_event().is_some() {}
    }

    fn send(&mut self, packet: TxPacket) -> Vec<Frame> {
        let _posted = self.secure.transmit(Instant::ZERO, packet, &NoRecords);
        let mut frames = Vec::new();
        loop {
            self.process_all();
            let before = frames.len();
            frames.extend(core::iter::from_fn(|| self.device.poll_frame(Instant::ZERO)));
            if frames.len() == before {
                return frames;
            }
        }
    }

    fn arrive(&mut self, frame: Frame) {
        self.device.receive_frame(Instant::ZERO, frame);
    }

    /// Passes received packets to the stack.
    fn look(&mut self, stack: &mut SlotStack, ipv6: bool) {
        self.device.process(Instant::ZERO);
        while let Some(packet) = self.secure.receive(Instant::ZERO) {
            let size = packet.joined.map_or(usize::MAX, |bytes| usize::from(bytes.get()));
            stack.take(&packet.frame, size, ipv6);
        }
        self.process_all();
    }
}

/// Segments of the stream that the stack received.
#[derive(Default)]
struct SlotStack(HashSet<usize>);

impl SlotStack {
    fn take(&mut self, frame: &[u8], size: usize, ipv6: bool) {
        let tcp = if ipv6 { 54 } else { 34 };
        let offset = u32::from_be_bytes(frame[tcp + 4..tcp + 8].try_into().expect("a TCP header")) as usize;
        let payload = &frame[tcp + 20..];
        for (number, segment) in payload.chunks(size.min(payload.len())).enumerate() {
            let start = offset + number * size.min(payload.len());
            assert!(
                segment.iter().zip(start..).all(|(byte, at)| *byte == byte_at(at)),
                "the stack received data that was never sent"
            );
            assert!(self.0.insert(start), "it was delivered before");
        }
    }
}

fn byte_at(offset: usize) -> u8 {
    ((offset * 31) >> 4) as u8
}

fn address(ipv6: bool, number: u8) -> IpAddr {
    if ipv6 { [0xfd00, 0, 0, 0, 0, 0, 0, number.into()].into() } else { [10, 0, 0, number].into() }
}

/// Returns the Ethernet and IP headers of a packet from the first host to the second.
fn headers(ipv6: bool, protocol: u8, bytes: usize) -> Vec<u8> {
    let mut header = vec![2, 0, 0, 0, 0, 2, 2, 0, 0, 0, 0, 1];
    if ipv6 {
        header.extend_from_slice(&[0x86, 0xdd, 0x60, 0, 0, 0]);
        header.extend_from_slice(&(bytes as u16).to_be_bytes());
        header.extend_from_slice(&[protocol, 64]);
    } else {
        header.extend_from_slice(&[8, 0, 0x45, 0]);
        header.extend_from_slice(&(20 + bytes as u16).to_be_bytes());
        header.extend_from_slice(&[0x12, 0x34, 0, 0, 64, protocol, 0, 0]);
    }
    for number in [1, 2] {
        match address(ipv6, number) {
            IpAddr::V4(address) => header.extend_from_slice(&address.octets()),
            IpAddr::V6(address) => header.extend_from_slice(&address.octets()),
        }
    }
    header
}

/// Returns a packet with the next bytes of the stream.
fn segments(ipv6: bool, offset: usize, bytes: usize) -> TxPacket {
    let mut header = headers(ipv6, 6, 20 + bytes);
    header.extend_from_slice(&[0x13, 0x88, 0, 80]);
    header.extend_from_slice(&(offset as u32).to_be_bytes());
    header.extend_from_slice(&[0, 0, 0, 9, 0x50, 0x10, 1, 0, 0, 0, 0, 0]);
    let payload: Vec<u8> = (offset..offset + bytes).map(byte_at).collect();
    TxPacket {
        header: header.into(),
        fragments: [Bytes::from(payload)].into_iter().collect(),
        ask: TxAsk { seq: Seq(offset as u32), checksum: true, mss: Some(MSS), ..TxAsk::default() },
    }
}

/// Fragments a frame like a router before a wire with a smaller MTU.
fn fragments(frame: &Frame) -> Vec<Frame> {
    let header_bytes = if frame.data[12] == 8 { 34 } else { 54 };
    let packet = TxPacket {
        header: frame.data[..header_bytes].into(),
        fragments: [frame.data.slice(header_bytes..)].into_iter().collect(),
        ask: TxAsk::default(),
    };
    let cut = fragment(packet, 14, 600, 1).unwrap_or_default();
    cut.into_iter().map(|piece| [&piece.header[..], &piece.fragments.concat()].concat().into()).collect()
}

/// Returns the bytes after headers that may lead to the SA.
fn pretended(ipv6: bool, kind: u8, bytes: &[u8]) -> Frame {
    let (protocol, mut content) = match kind % 4 {
        0 => (50, SPI.to_be_bytes().to_vec()),
        1 => (
            17,
            [&[0x11, 0x94, 0x11, 0x94, 0, (12 + bytes.len().min(200)) as u8, 0, 0][..], &SPI.to_be_bytes()].concat(),
        ),
        2 => (if ipv6 { 58 } else { 1 }, if ipv6 { vec![2, 0] } else { vec![3, 4] }),
        _ => (kind, Vec::new()),
    };
    content.extend_from_slice(bytes);
    let mut frame = headers(ipv6, protocol, content.len());
    if !ipv6 && kind & 0x80 != 0 {
        // A first fragment.
        frame[20] = 0x20;
    }
    if !ipv6 {
        Ipv4Packet::new_unchecked(&mut frame[14..]).fill_checksum();
    }
    frame.extend_from_slice(&content);
    frame.into()
}

const SPI: u32 = 0x1001;
const MSS: u16 = 1000;
