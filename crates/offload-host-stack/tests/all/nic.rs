//! A test NIC with segmentation, checksums, and contexts that "encrypt".
//!
//! The cipher masks each byte with a value made of the unit's number and the byte's position in the unit. A byte sent
//! in plaintext, or with the state of another unit, is therefore detected.

use bytes::{Bytes, BytesMut};
use offload_api::mock::MockDevice;
use offload_api::rx::Checksums;
use offload_api::{
    Contexts, DeviceEvent, DropReason, FlowKey, Handle, IpsecDevice, Layer, Lookup, NetDevice, PathCaps, RecordSource,
    RssDevice, RxMeta, RxPacket, SealError, Sealer, TransmitResult, TxPacket, Unit,
};
use offload_base::counters::CounterSet;
use offload_base::{Instant, Seq};
use smoltcp::wire::{IpAddress, IpProtocol, Ipv4Packet, Ipv6Packet, TcpPacket, UdpPacket};
use std::any::Any;
use std::collections::{BTreeSet, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard};
use std::task::Waker;

/// The stack's handle of the NIC. Clones share one NIC.
#[derive(Clone)]
pub(crate) struct MaskingNic(Arc<Mutex<NicPort>>, Option<MockDevice>);

pub(crate) struct NicPort {
    pub(crate) caps: PathCaps,
    /// Checksum verdict for received packets.
    pub(crate) verdict: Checksums,
    /// Capacity of the send ring. Each flush empties it.
    pub(crate) ring: usize,
    used: usize,
    pub(crate) sent: VecDeque<Vec<u8>>,
    pub(crate) received: VecDeque<RxPacket>,
    contexts: BTreeSet<Handle>,
    next_context: u32,
    generation: u32,
    events: VecDeque<DeviceEvent>,
    waker: Option<Waker>,
    /// Number of packets sent.
    pub(crate) packets: u64,
    /// Longest payload of a packet.
    pub(crate) longest: usize,
    /// Packets longer than the IP length field can express, as (sequence number, payload length).
    pub(crate) long: Vec<(Seq, u32)>,
    /// Rates that packets asked for, in bytes per second.
    pub(crate) rates: Vec<u64>,
    /// Number of packets processed by a context.
    pub(crate) encrypted: u64,
    /// Number of packets that software had to seal.
    pub(crate) refused: u64,
}

impl MaskingNic {
    pub(crate) fn new(mtu: u16, tso_max_bytes: u32, checksum: bool) -> MaskingNic {
        let caps =
            PathCaps { epoch: 0, mtu, checksum, tso_max_bytes, udp_segmentation: tso_max_bytes > 0, pacing: false };
        let port = Arc::new(Mutex::new(NicPort {
            caps,
            verdict: if checksum { Checksums::Good } else { Checksums::Unchecked },
            ring: usize::MAX,
            used: 0,
            sent: VecDeque::new(),
            received: VecDeque::new(),
            contexts: BTreeSet::new(),
            next_context: 0,
            generation: 0,
            events: VecDeque::new(),
            waker: None,
            packets: 0,
            longest: 0,
            long: Vec::new(),
            rates: Vec::new(),
            encrypted: 0,
            refused: 0,
        }));
        MaskingNic(port, None)
    }

    pub(crate) fn port(&self) -> MutexGuard<'_, NicPort> {
        self.0.lock().unwrap()
    }
}

impl NicPort {
    pub(crate) fn add_context(&mut self) -> Handle {
        let handle = Handle { index: self.next_context, generation: self.generation };
        self.next_context += 1;
        self.contexts.insert(handle);
        handle
    }

    /// Removes all contexts.
    pub(crate) fn reset(&mut self) {
        self.contexts.clear();
        self.generation += 1;
        self.events.push_back(DeviceEvent::Reset);
        self.interrupt();
    }

    /// Delivers a frame from the wire, in a buffer of a device's size.
    pub(crate) fn deliver(&mut self, frame: &[u8]) {
        let mut buffer = BytesMut::with_capacity(2048.max(frame.len()));
        buffer.extend_from_slice(frame);
        let meta = RxMeta { checksums: self.checked(frame), ..RxMeta::default() };
        self.received.push_back(RxPacket::new(buffer, meta));
        self.interrupt();
    }

    fn checked(&self, frame: &[u8]) -> Checksums {
        if self.verdict != Checksums::Good {
            return self.verdict;
        }
        match FrameTransport::parse(frame) {
            Some(transport) if transport.header_is_right(frame) && transport.is_right(frame) => Checksums::Good,
            Some(_) => Checksums::Bad,
            None => Checksums::Unchecked, // the device knows only complete TCP and UDP packets
        }
    }

    fn interrupt(&mut self) {
        if let Some(waker) = self.waker.take() {
            waker.wake();
        }
    }

    /// Cuts a packet into segments with complete headers.
    fn segment(&mut self, packet: &TxPacket, payload: &[u8]) {
        let Some(transport) = FrameTransport::parse_headers(&packet.header) else {
            assert!(!packet.ask.checksum && packet.ask.mss.is_none(), "the device knows TCP and UDP only");
            self.sent.push_back([&packet.header[..], payload].concat());
            return;
        };
        let mss = packet.ask.mss.map_or(usize::MAX, usize::from);
        let most = usize::from(self.caps.mtu) + 14 - packet.header.len();
        assert!(mss.min(payload.len()) <= most, "a segment larger than the MTU: {} of {most}", payload.len());
        let pieces: Vec<&[u8]> = if payload.is_empty() { vec![payload] } else { payload.chunks(mss).collect() };
        let count = pieces.len();
        let mut at = 0;
        for (index, piece) in pieces.into_iter().enumerate() {
            let mut frame = packet.header.to_vec();
            frame.extend_from_slice(piece);
            if packet.ask.checksum {
                transport.set_length(&mut frame, index as u16);
                transport.finish(&mut frame, at, index == 0, index + 1 == count);
            } else {
                assert!(count == 1 && transport.header_is_right(&frame) && transport.is_right(&frame));
            }
            at += piece.len();
            self.sent.push_back(frame);
        }
    }
}

/// The transport header of a frame, if the device knows the protocol.
#[derive(Clone, Copy)]
struct FrameTransport {
    six: bool,
    udp: bool,
    ends: [IpAddress; 2],
    at: usize,
}

impl FrameTransport {
    fn parse(frame: &[u8]) -> Option<FrameTransport> {
        let transport = FrameTransport::parse_headers(frame)?;
        let ip = &frame[14..];
        let whole = match transport.six {
            true => Ipv6Packet::new_checked(ip).ok()?.total_len(),
            false => usize::from(Ipv4Packet::new_checked(ip).ok()?.total_len()),
        };
        let bytes = &ip[..whole][transport.at - 14..];
        let valid = match transport.udp {
            // RFC 768: without a checksum there is nothing to verify.
            true => UdpPacket::new_checked(bytes).is_ok_and(|udp| udp.checksum() != 0),
            false => TcpPacket::new_checked(bytes).is_ok(),
        };
        valid.then_some(transport)
    }

    fn parse_headers(frame: &[u8]) -> Option<FrameTransport> {
        let ip = frame.get(14..)?;
        let (six, ends, next, bytes) = match (frame[12], frame[13]) {
            (0x08, 0x00) if ip.len() >= 20 && ip[0] == 0x45 => {
                let ip = Ipv4Packet::new_unchecked(ip);
                let whole = !ip.more_frags() && ip.frag_offset() == 0;
                (
                    false,
                    [ip.src_addr().into(), ip.dst_addr().into()],
                    ip.next_header(),
                    if whole { 20 } else { return None },
                )
            }
            (0x86, 0xdd) if ip.len() >= 40 && ip[0] >> 4 == 6 => {
                let ip = Ipv6Packet::new_unchecked(ip);
                (true, [ip.src_addr().into(), ip.dst_addr().into()], ip.next_header(), 40)
            }
            _ => return None,
        };
        let udp = next == IpProtocol::Udp;
        (udp || next == IpProtocol::Tcp).then_some(FrameTransport { six, udp, ends, at: 14 + bytes })
    }

    /// Returns the length field of the IP header, and its correct value for a packet with `payload` bytes.
    fn told(header: &[u8], payload: usize) -> (u16, Option<usize>) {
        let (at, before) = match (header[12], header[13]) {
            (0x08, 0x00) => (16, 14),
            (0x86, 0xdd) => (18, 54),
            _ => return (0, None),
        };
        (u16::from_be_bytes([header[at], header[at + 1]]), Some(header.len() - before + payload))
    }

    fn header_is_right(&self, frame: &[u8]) -> bool {
        let bytes = frame.len() - 14;
        match self.six {
            true => Ipv6Packet::new_unchecked(&frame[14..]).total_len() <= bytes,
            false => {
                let ip = Ipv4Packet::new_unchecked(&frame[14..]);
                ip.verify_checksum() && usize::from(ip.total_len()) <= bytes
            }
        }
    }

    fn is_right(&self, frame: &[u8]) -> bool {
        let whole = match self.six {
            true => Ipv6Packet::new_unchecked(&frame[14..]).total_len(),
            false => usize::from(Ipv4Packet::new_unchecked(&frame[14..]).total_len()),
        };
        let ([from, to], bytes) = (self.ends, &frame[self.at..14 + whole]);
        match self.udp {
            true => UdpPacket::new_unchecked(bytes).verify_checksum(&from, &to),
            false => TcpPacket::new_unchecked(bytes).verify_checksum(&from, &to),
        }
    }

    /// Sets the length and the IPv4 checksum of the `index`th frame of a packet.
    fn set_length(&self, frame: &mut [u8], index: u16) {
        let bytes = frame.len() - 14;
        if self.six {
            Ipv6Packet::new_unchecked(&mut frame[14..]).set_payload_len((bytes - 40) as u16);
            return;
        }
        let mut ip = Ipv4Packet::new_unchecked(&mut frame[14..]);
        ip.set_total_len(bytes as u16);
        ip.set_ident(ip.ident().wrapping_add(index));
        ip.fill_checksum();
    }

    /// Completes the header of the segment with the data from `at` on.
    fn finish(&self, frame: &mut [u8], at: usize, first: bool, last: bool) {
        let ([from, to], bytes) = (self.ends, &mut frame[self.at..]);
        if self.udp {
            let length = bytes.len() as u16;
            let mut udp = UdpPacket::new_unchecked(bytes);
            udp.set_len(length);
            udp.fill_checksum(&from, &to);
            return;
        }
        let mut tcp = TcpPacket::new_unchecked(bytes);
        tcp.set_seq_number(tcp.seq_number() + at);
        tcp.set_fin(tcp.fin() && last);
        tcp.set_psh(tcp.psh() && last);
        tcp.set_cwr(tcp.cwr() && first);
        tcp.fill_checksum(&from, &to);
    }
}

impl NetDevice for MaskingNic {
    fn path(&self, _: &FlowKey) -> PathCaps {
        self.port().caps
    }

    fn room(&self, _: &FlowKey) -> usize {
        let port = self.port();
        port.ring - port.used
    }

    fn transmit(&mut self, _: Instant, packet: TxPacket, source: &dyn RecordSource) -> TransmitResult {
        let mut port = self.port();
        if port.used >= port.ring {
            return TransmitResult::Dropped(DropReason::RingFull);
        }
        let length = packet.payload_len();
        // A device relies on the length field, except for packets too long for the field.
        let (told, bytes) = FrameTransport::told(&packet.header, length);
        assert!(bytes.is_none_or(|bytes| told == u16::try_from(bytes).unwrap_or(0)), "{told} for {bytes:?}");
        port.longest = port.longest.max(length);
        if length > 65_535 {
            port.long.push((packet.ask.seq, length as u32));
        }
        assert!(packet.ask.rate.is_none() || port.caps.pacing, "a rate needs a device with pacing");
        port.rates.extend(packet.ask.rate.map(core::num::NonZeroU64::get));
        assert!(packet.fragments.len() <= 64);
        assert!(packet.ask.mss.is_none() || length > usize::from(packet.ask.mss.unwrap()));
        assert!(length <= (port.caps.tso_max_bytes as usize).max(usize::from(port.caps.mtu)));
        let mut payload: Vec<u8> = packet.fragments.iter().flat_map(|fragment| fragment.iter().copied()).collect();
        if let Some(ask) = packet.ask.streams[Layer::FIRST.index()] {
            assert_eq!(ask.bytes as usize, length);
            let mut at = ask.offset;
            while at < ask.end() {
                let Lookup::In(unit) = source.unit_at(Layer::FIRST, at) else {
                    panic!("bytes with a context at {at:?} belong to no unit");
                };
                if !port.contexts.contains(&ask.context) {
                    port.refused += 1;
                    return TransmitResult::NeedsSoftware(unit);
                }
                assert_eq!(unit.start + (at - unit.offset) as u32, packet.ask.seq + (at - ask.offset) as u32);
                // A driver would feed this prefix to the engine to rebuild its state, so the whole prefix must be
                // available.
                let mut prefix = 0;
                source.pieces(Layer::FIRST, unit.offset, at, &mut |piece| prefix += piece.bytes.len() as u64);
                assert_eq!(prefix, at - unit.offset, "the unit's prefix is not there");
                let stop = unit.end().min(ask.end());
                while at < stop {
                    payload[(at - ask.offset) as usize] ^= mask(unit, unit.start + (at - unit.offset) as u32);
                    at += 1;
                }
            }
            port.encrypted += 1;
        }
        port.used += 1;
        port.packets += 1;
        port.segment(&packet, &payload);
        TransmitResult::Posted
    }

    fn flush(&mut self, _: Instant) {}

    fn receive(&mut self, _: Instant) -> Option<RxPacket> {
        self.port().received.pop_front()
    }

    fn poll_event(&mut self) -> Option<DeviceEvent> {
        self.port().events.pop_front()
    }

    fn arm(&mut self, waker: &Waker) -> bool {
        let mut port = self.port();
        if !port.received.is_empty() || !port.events.is_empty() {
            return false;
        }
        port.waker = Some(waker.clone());
        true
    }

    fn next_event(&self) -> Option<Instant> {
        None
    }

    fn handle_timeout(&mut self, _: Instant) {}

    fn room_paced(&self, flow: &FlowKey) -> usize {
        self.room(flow)
    }

    fn serves(&self, _: &FlowKey) -> bool {
        true
    }

    fn count(&self, _: &mut CounterSet) {}

    fn ipsec(&mut self) -> Option<&mut dyn IpsecDevice> {
        None
    }

    fn rss(&mut self) -> Option<&mut dyn RssDevice> {
        None
    }

    fn contexts(&mut self) -> Option<&mut dyn Contexts> {
        // Created on demand, because a test measures the memory of the process.
        let caps = self.port().caps;
        Some(self.1.get_or_insert_with(|| MockDevice::plain(caps)))
    }

    fn as_any(&mut self) -> &mut dyn Any {
        self
    }
}

impl NicPort {
    /// Empties the ring, and returns the sent frames.
    pub(crate) fn drain(&mut self) -> VecDeque<Vec<u8>> {
        if core::mem::take(&mut self.used) >= self.ring {
            self.interrupt();
        }
        core::mem::take(&mut self.sent)
    }
}

/// Returns the mask, never zero, of the byte at `at` of a unit.
pub(crate) fn mask(unit: Unit, at: Seq) -> u8 {
    let place = at.distance_from(unit.start);
    ((unit.number as u32).wrapping_mul(31).wrapping_add(place.wrapping_mul(7)) % 255) as u8 + 1
}

/// A sealer that does a context's work in software.
pub(crate) struct MaskSealer;

impl Sealer for MaskSealer {
    fn seal(&mut self, unit: Unit, plain: &[Bytes]) -> Result<Bytes, SealError> {
        let mut sealed = BytesMut::new();
        plain.iter().for_each(|piece| sealed.extend_from_slice(piece));
        for (place, byte) in sealed.iter_mut().enumerate() {
            *byte ^= mask(unit, unit.start + place as u32);
        }
        Ok(sealed.freeze())
    }
}
