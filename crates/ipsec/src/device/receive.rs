//! From the device to the stack.
//!
//! Received fragments are reassembled first: policies need ports, which most fragments lack, and ESP is opened
//! whole (RFC 4303 3.4.1). The fragments out of a tunnel are reassembled only if a policy that names ports might match
//! their packet; otherwise they are passed up unchanged.
//!
//! If the device did not open a packet, its IPv4 header checksum is verified before anything else. Transport mode
//! recomputes this checksum, which would hide a corrupted header.
//!
//! The device may have joined several opened packets (LRO). Each packet counts with its number and bytes. If one of the
//! numbers is a replay, the joined packet is dropped whole, because its parts can no longer be separated.

use super::fragments::FragmentOrigin;
use super::path_mtu::find_too_big;
use super::{SaWorker, SecureDevice};
use crate::keying::SaId;
use crate::sad::{Sa, Sequence};
use bytes::BytesMut;
use core::num::NonZeroU16;
use core::ops::RangeInclusive;
use offload_api::ipsec::Packet;
use offload_api::rx::Checksums;
use offload_api::{Action, Direction, EspMode, EspVerdict, Handle, PacketMark, RxMeta, RxPacket};
use offload_base::Instant;
use offload_base::cost::{self, WorkKind};
use offload_esp::inner::{NotEsp, shares_port};
use offload_esp::{ETHERNET, EspAt, EspOpenError, EspTrailer, UnwrapError, unwrap};
use offload_formats::IpView;
use offload_formats::checksum::is_ipv4_header_right;
use offload_formats::frame::ip_packet;
use offload_formats::protocol;
use offload_formats::reassembly::FragmentOutcome;

impl SecureDevice {
    /// Processes a packet from the device. Returns the packet for the stack, if any.
    pub(super) fn process_received(&mut self, now: Instant, queue: usize, packet: RxPacket) -> Option<RxPacket> {
        let RxPacket { frame, meta, joined, placed } = packet;
        // The ESP verdict is consumed here. Left in place, it would keep upper layers from joining packets of one
        // stream.
        let mut plain = meta;
        plain.marks.set_packet(PacketMark::None);
        let packets = |number, count: u16| PacketRange { number, count: count.into(), joined };
        match meta.esp() {
            EspVerdict::Unwrapped { sa, number, packets: count } => self.take_unwrapped(
                now,
                queue,
                sa,
                InboundPacket { frame, meta: plain, packets: packets(number, count) },
            ),
            EspVerdict::Decrypted { sa, number, packets: count } => self.take_decrypted(
                now,
                queue,
                sa,
                InboundPacket { frame, meta: plain, packets: packets(number, count) },
            ),
            EspVerdict::None | EspVerdict::Failed | EspVerdict::Fragment => {
                self.take_raw(now, queue, RxPacket { frame, meta, joined, placed })
            }
        }
    }

    /// Processes a packet in its form on the wire.
    fn take_raw(&mut self, now: Instant, queue: usize, packet: RxPacket) -> Option<RxPacket> {
        if packet.frame.get(12..14) == Some(&ARP) {
            return Some(packet);
        }
        // The length field of a joined packet may be zero, because 16 bits cannot hold its length.
        let parse = if packet.joined.is_some() { IpView::parse_joined } else { IpView::parse };
        let Some(view) = ip_packet(&packet.frame).and_then(parse) else {
            self.counters.in_header_error += 1;
            return None;
        };
        let checked = view.is_ipv6() || packet.meta.checksums == Checksums::Good;
        if !checked && !is_ipv4_header_right(&packet.frame[ETHERNET..]) {
            self.counters.in_checksum_error += 1;
            return None;
        }
        // Neighbour discovery must see packets from a duplicate of our address (RFC 4862 5.4).
        if self.sas.sad().is_own(view.source) && !view.is_neighbour_discovery(&packet.frame[ETHERNET..]) {
            self.counters.in_own_source += 1;
            return None;
        }
        if view.fragment {
            let (whole, view) = self.reassemble(now, FragmentOrigin::Wire, &packet.frame)?;
            // RFC 6980 5: neighbour discovery never needs fragments, and attackers use fragments to evade filters that
            // read only the first one.
            if view.is_neighbour_discovery(&whole[ETHERNET..]) {
                self.counters.in_fragmented_discovery += 1;
                return None;
            }
            return self.take_whole(now, queue, RxPacket::new(whole, RxMeta::default()), view);
        }
        self.take_whole(now, queue, packet, view)
    }

    fn take_whole(&mut self, now: Instant, queue: usize, packet: RxPacket, view: IpView) -> Option<RxPacket> {
        if let Some(at) = EspAt::find(&packet.frame) {
            return self.open(now, queue, packet.frame, &at);
        }
        let ip = &packet.frame[ETHERNET..];
        // Keep-alives and IKE share port 4500 with ESP. IKE passes on to the policies like any datagram.
        match shares_port(ip, &view) {
            Some(NotEsp::KeepAlive) => {
                self.counters.in_keep_alive += 1;
                return None;
            }
            Some(NotEsp::Ike) | None => {}
        }
        if view.is_neighbour_discovery(ip) {
            return Some(packet);
        }
        // Consumed here, because the stack has no connection with the quoted ESP packet.
        if let Some(too_big) = find_too_big(self.sas.sad(), &packet.frame, &view) {
            self.sas.note_too_big(now, too_big);
            return None;
        }
        match self.policies.action(Direction::Receive, &Packet::from_view(&view, &packet.frame[ETHERNET..])) {
            Some(Action::Bypass) => return Some(packet),
            Some(Action::Protect(_)) => self.counters.in_template_mismatch += 1,
            Some(Action::Discard) => self.counters.in_policy_block += 1,
            None => self.counters.in_no_policies += 1,
        }
        None
    }

    /// Opens an ESP packet in software.
    pub(super) fn open(&mut self, now: Instant, queue: usize, mut frame: BytesMut, at: &EspAt) -> Option<RxPacket> {
        let framing = cost::work(WorkKind::Framing);
        let Some(id) = self.sas.sad().find_received(at.spi, at.ip.source, at.ip.destination) else {
            if self.sas.sad().receives_between(at.ip.source, at.ip.destination) {
                self.held.hold(now, queue, &frame, at, &mut self.counters);
            } else {
                self.counters.in_no_states += 1;
            }
            return None;
        };
        let sa = self.sas.find(id)?;
        // The device has the SA and still left the packet to software, for example a fragment.
        self.counters.in_fallback += u64::from(sa.by() != SaWorker::Software);
        let number = match check_received(sa, at, 1) {
            Ok(number) => number,
            Err(refusal) => return self.drop_received(refusal),
        };
        let packets = PacketRange { number, count: 1, joined: None };
        let trailer = match sa.cipher.open(&mut frame, at, number) {
            Ok(trailer) => trailer,
            Err(EspOpenError::Icv) => return self.drop_received(ReceiveRefusal::Forged),
            // The packet is authentic, so its number must not be accepted again, even though the packet is dropped.
            Err(_) => {
                let _ = self.sas.accept(now, id, packets.numbers());
                return self.drop_received(ReceiveRefusal::Mode);
            }
        };
        // RFC 3948 3.1.2: a translator may have changed addresses, so the transport checksum cannot be verified. The
        // ICV has verified the payload.
        let translated = at.udp && sa.params.mode == EspMode::Transport;
        if let Err(refusal) = self.sas.accept(now, id, packets.numbers()) {
            return self.drop_received(refusal);
        }
        self.counters.in_software += 1;
        self.counters.in_software_bytes += trailer.payload as u64;
        let checksums = if translated { Checksums::Good } else { Checksums::Unchecked };
        drop(framing);
        let opened = InboundPacket { frame, meta: RxMeta { checksums, ..RxMeta::default() }, packets };
        self.deliver(now, queue, id, opened, at, &trailer)
    }

    /// Completes a packet that the device only decrypted: headers, replay window and lifetime are the host's work.
    fn take_decrypted(
        &mut self,
        now: Instant,
        queue: usize,
        handle: Handle,
        opened: InboundPacket,
    ) -> Option<RxPacket> {
        let PacketRange { count, .. } = opened.packets;
        let id = self.offload.find(queue, handle).or_else(|| {
            self.counters.in_no_states += count;
            None
        })?;
        let (Some(at), Some(sa)) = (EspAt::find(&opened.frame), self.sas.find(id)) else {
            self.counters.in_header_error += count;
            return None;
        };
        // Joined packets can exceed the rest of a packet lifetime. The SA is then reported as used up, or its stream
        // would stall silently.
        if let Err(refusal) = check_received(sa, &at, count) {
            if refusal == ReceiveRefusal::Expired {
                self.sas.note_too_many(id);
            }
            return self.drop_all_received(refusal, count);
        }
        let Ok(trailer) = EspTrailer::read(&opened.frame, &at) else {
            return self.drop_all_received(ReceiveRefusal::Mode, count);
        };
        if let Err(refusal) = self.sas.accept(now, id, opened.packets.numbers()) {
            return self.drop_all_received(refusal, count);
        }
        self.counters.in_crypto += count;
        self.deliver(now, queue, id, opened, &at, &trailer)
    }

    /// Completes a packet that the device opened completely. Its number passes the host's replay window too: the host
    /// opens fragmented packets of the same SA, and with two separate windows a packet could be accepted once by each.
    fn take_unwrapped(
        &mut self,
        now: Instant,
        queue: usize,
        handle: Handle,
        opened: InboundPacket,
    ) -> Option<RxPacket> {
        let PacketRange { count, .. } = opened.packets;
        let id = self.offload.find(queue, handle).or_else(|| {
            self.counters.in_no_states += count;
            None
        })?;
        let sa = self.sas.find(id)?;
        // The device's count lacks the fragmented packets, which the host opened.
        if !sa.meter.allows(count) {
            self.sas.note_too_many(id);
            return self.drop_all_received(ReceiveRefusal::Expired, count);
        }
        let mode = sa.params.mode;
        if let Err(refusal) = self.sas.accept(now, id, opened.packets.numbers()) {
            return self.drop_all_received(refusal, count);
        }
        self.counters.in_packet += count;
        let Some(view) = ip_packet(&opened.frame).and_then(IpView::parse) else {
            self.counters.in_header_error += count;
            return None;
        };
        let protected = match mode {
            EspMode::Transport => view.total - view.header,
            EspMode::Tunnel => view.total,
        };
        // The lifetime counts the protected bytes of every joined packet, although the joined packet has one header.
        self.sas.spend(id, count, (protected + opened.removed_header_bytes(&view, mode)) as u64);
        self.admit(now, queue, id, opened, &view)
    }

    /// Removes the outer headers from an authentic packet.
    fn deliver(
        &mut self,
        now: Instant,
        queue: usize,
        id: SaId,
        opened: InboundPacket,
        at: &EspAt,
        trailer: &EspTrailer,
    ) -> Option<RxPacket> {
        let InboundPacket { frame, meta, packets } = opened;
        let sa = self.sas.find(id)?;
        let mode = sa.params.mode;
        let unwrapped = {
            let _framing = cost::work(WorkKind::Framing);
            unwrap(frame, at, trailer, &sa.params)
        };
        let frame = match unwrapped {
            Ok(frame) => frame,
            Err(error) => {
                // The bytes of an authentic packet count against the lifetime even if the packet is dropped.
                self.sas.spend(id, packets.count, trailer.payload as u64);
                let refusal = if error == UnwrapError::Dummy { ReceiveRefusal::Dummy } else { ReceiveRefusal::Mode };
                return self.drop_all_received(refusal, packets.count);
            }
        };
        let opened = InboundPacket { frame, meta, packets };
        // A tunnel's inner packet is chosen by the far end and may be malformed.
        let Some(view) = ip_packet(&opened.frame).and_then(IpView::parse) else {
            self.sas.spend(id, opened.packets.count, trailer.payload as u64);
            return self.drop_all_received(ReceiveRefusal::Mode, opened.packets.count);
        };
        self.sas.spend(id, opened.packets.count, (trailer.payload + opened.removed_header_bytes(&view, mode)) as u64);
        self.admit(now, queue, id, opened, &view)
    }

    /// Admits an opened packet if its policy requires the protection that it had (RFC 4301 5.2).
    fn admit(
        &mut self,
        now: Instant,
        queue: usize,
        id: SaId,
        opened: InboundPacket,
        view: &IpView,
    ) -> Option<RxPacket> {
        let InboundPacket { mut frame, mut meta, packets: PacketRange { count, joined, .. } } = opened;
        let (mut selectors, mut fragment) = (Packet::from_view(view, &frame[ETHERNET..]), view.fragment);
        // Ports decide about the packet, and a fragment may have no ports.
        if view.fragment && self.policies.needs_whole_packet(Direction::Receive, view, &selectors) {
            let (whole, view) = self.reassemble(now, FragmentOrigin::Sa(id), &frame)?;
            (frame, meta, fragment) = (whole, RxMeta::default(), view.fragment);
            selectors = Packet::from_view(&view, &frame[ETHERNET..]);
        }
        let sa = self.sas.find(id)?;
        // RFC 4861 3.1: the hop limit proves that the sender is a neighbour, but the far end of a tunnel can choose any
        // value.
        if sa.params.mode == EspMode::Tunnel && view.is_neighbour_discovery(&frame[ETHERNET..]) {
            self.counters.in_tunnelled_discovery += count;
            return None;
        }
        // Replies that quote this packet must not leave with less protection.
        meta.protection = meta.protection.max(sa.params.key.suite().protection());
        let counter = match self.policies.action(Direction::Receive, &selectors) {
            Some(Action::Protect(template)) if sa.fits(&template) => None,
            // In transport mode, more protection than required is harmless. A tunnel could carry packets from any
            // source, so its packets need a matching policy.
            Some(Action::Bypass) if sa.params.mode == EspMode::Transport => None,
            Some(Action::Protect(_) | Action::Bypass) => Some(&mut self.counters.in_template_mismatch),
            Some(Action::Discard) => Some(&mut self.counters.in_policy_block),
            None => Some(&mut self.counters.in_no_policies),
        };
        if let Some(counter) = counter {
            *counter += count;
            return None;
        }
        self.hand_over(queue, id, RxPacket { joined, ..RxPacket::new(frame, meta) }, &selectors, fragment)
    }

    /// Adds a fragment. Returns its packet if that is complete.
    fn reassemble(&mut self, now: Instant, from: FragmentOrigin, frame: &[u8]) -> Option<(BytesMut, IpView)> {
        match self.fragments.insert(now, from, frame, ETHERNET) {
            FragmentOutcome::Whole(whole) => match ip_packet(&whole).and_then(IpView::parse) {
                Some(view) if !view.fragment => Some((whole, view)),
                // A reassembled packet that is a fragment again is malformed.
                _ => {
                    self.counters.in_header_error += 1;
                    None
                }
            },
            FragmentOutcome::Kept | FragmentOutcome::Duplicate => None,
            FragmentOutcome::Refused(_) => {
                self.counters.in_reassembly_failed += 1;
                None
            }
        }
    }

    fn drop_received(&mut self, refusal: ReceiveRefusal) -> Option<RxPacket> {
        self.drop_all_received(refusal, 1)
    }

    fn drop_all_received(&mut self, refusal: ReceiveRefusal, packets: u64) -> Option<RxPacket> {
        let counters = &mut self.counters;
        let counter = match refusal {
            ReceiveRefusal::Expired => &mut counters.in_state_expired,
            ReceiveRefusal::Encapsulation => &mut counters.in_state_mismatch,
            ReceiveRefusal::Replay => &mut counters.in_state_seq_error,
            ReceiveRefusal::Forged => &mut counters.in_state_proto_error,
            ReceiveRefusal::Mode => &mut counters.in_state_mode_error,
            ReceiveRefusal::Dummy => &mut counters.in_dummy,
            ReceiveRefusal::Unwritten => &mut counters.in_numbers_unwritten,
        };
        *counter += packets;
        None
    }
}

/// An authentic packet.
struct InboundPacket {
    frame: BytesMut,
    meta: RxMeta,
    packets: PacketRange,
}

/// The number of packets joined into one, and their sequence numbers.
struct PacketRange {
    number: u64,
    count: u64,
    joined: Option<NonZeroU16>,
}

impl PacketRange {
    fn numbers(&self) -> RangeInclusive<u64> {
        self.number..=self.number.saturating_add(self.count.saturating_sub(1))
    }
}

impl InboundPacket {
    /// Returns the protected bytes that joining removed: the headers of all packets but the first. `view` describes the
    /// plain frame.
    fn removed_header_bytes(&self, view: &IpView, mode: EspMode) -> usize {
        let again = self.packets.count.saturating_sub(1) as usize;
        let transport = ETHERNET + view.header;
        let header = match view.protocol {
            protocol::UDP => UDP_BYTES,
            _ => self.frame.get(transport + 12).map_or(0, |offset| usize::from(offset >> 4) * 4),
        };
        again * (header + if mode == EspMode::Tunnel { view.header } else { 0 })
    }
}

/// The reason for dropping a packet of an SA.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum ReceiveRefusal {
    Expired,
    Encapsulation,
    Replay,
    Forged,
    Mode,
    Dummy,
    Unwritten,
}

/// Runs the checks before authentication. Returns the full sequence number.
fn check_received(sa: &Sa, at: &EspAt, packets: u64) -> Result<u64, ReceiveRefusal> {
    let Sequence::Receive(window) = &sa.sequence else { return Err(ReceiveRefusal::Mode) };
    if sa.params.encapsulation.is_some() != at.udp {
        return Err(ReceiveRefusal::Encapsulation);
    }
    // The device alone knows the received numbers of a lent SA, also after it lost the SA. The host's window would
    // accept replays.
    if sa.lent || sa.retired || !sa.meter.allows(packets) {
        return Err(ReceiveRefusal::Expired);
    }
    window.check(at.low).map_err(|_| ReceiveRefusal::Replay)
}

const ARP: [u8; 2] = [0x08, 0x06];
/// Length of a UDP header in bytes.
const UDP_BYTES: usize = 8;
