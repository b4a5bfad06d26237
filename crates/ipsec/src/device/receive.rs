//! From the device to the stack.
//!
//! Fragments from the wire are put together first, whatever they are of: policies look at ports, which most fragments do
//! not show, and ESP is opened whole (RFC 4303 3.4.1). Fragments out of a tunnel are put together where a policy that
//! names ports might be about their packet, and else handed up as they are.
//!
//! Before anything is made of a packet that the device did not open, its IPv4 header is checked: what a transport mode SA
//! leaves of it has a new checksum, which would be right whatever happened to the header on its way.
//!
//! What the device opened it may have joined of several packets (LRO). Their numbers and bytes count each; if only one of
//! the numbers is not new, none of them passes, for there is no telling them apart any more.

use super::fragments::Origin;
use super::path_mtu::find_too_big;
use super::{By, SecureDevice};
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
    /// What the stack is to see of a received packet.
    pub(super) fn take_in(&mut self, now: Instant, queue: usize, packet: RxPacket) -> Option<RxPacket> {
        let RxPacket { frame, meta, joined, placed } = packet;
        // The verdict is for here; further up, packets of one stream are not to differ by it.
        let mut plain = meta;
        plain.marks.set_packet(PacketMark::None);
        let packets = |number, count: u16| Packets { number, count: count.into(), joined };
        match meta.esp() {
            EspVerdict::Unwrapped { sa, number, packets: count } => {
                self.take_unwrapped(now, queue, sa, Opened { frame, meta: plain, packets: packets(number, count) })
            }
            EspVerdict::Decrypted { sa, number, packets: count } => {
                self.take_decrypted(now, queue, sa, Opened { frame, meta: plain, packets: packets(number, count) })
            }
            EspVerdict::None | EspVerdict::Failed | EspVerdict::Fragment => {
                self.take_raw(now, queue, RxPacket { frame, meta, joined, placed })
            }
        }
    }

    /// A packet as it was on the wire.
    fn take_raw(&mut self, now: Instant, queue: usize, packet: RxPacket) -> Option<RxPacket> {
        if packet.frame.get(12..14) == Some(&ARP) {
            return Some(packet);
        }
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
        // Who has an address of ours as well, neighbour discovery is to hear of (RFC 4862 5.4).
        if self.sas.sad().is_own(view.source) && !view.is_neighbour_discovery(&packet.frame[ETHERNET..]) {
            self.counters.in_own_source += 1;
            return None;
        }
        if view.fragment {
            let (whole, view) = self.put_together(now, Origin::Wire, &packet.frame)?;
            // RFC 6980 5: nobody needs to, but who wants to slip past those that look at the first fragment.
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
        self.counters.in_fallback += u64::from(sa.by() != By::Software);
        let number = match may_come(sa, at, 1) {
            Ok(number) => number,
            Err(refusal) => return self.drop_received(refusal),
        };
        let packets = Packets { number, count: 1, joined: None };
        let trailer = match sa.cipher.open(&mut frame, at, number) {
            Ok(trailer) => trailer,
            Err(EspOpenError::Icv) => return self.drop_received(Refusal::Forged),
            Err(_) => {
                let _dropped_in_any_case = self.sas.accept(now, id, packets.numbers());
                return self.drop_received(Refusal::Mode);
            }
        };
        // RFC 3948 3.1.2: a translator may have changed addresses under the checksum, which ESP makes up for.
        let translated = at.udp && sa.params.mode == EspMode::Transport;
        if let Err(refusal) = self.sas.accept(now, id, packets.numbers()) {
            return self.drop_received(refusal);
        }
        self.counters.in_software += 1;
        self.counters.in_software_bytes += trailer.payload as u64;
        let checksums = if translated { Checksums::Good } else { Checksums::Unchecked };
        drop(framing);
        let opened = Opened { frame, meta: RxMeta { checksums, ..RxMeta::default() }, packets };
        self.deliver(now, queue, id, opened, at, &trailer)
    }

    /// A packet that the device decrypted: headers, window and lifetimes are the host's.
    fn take_decrypted(&mut self, now: Instant, queue: usize, handle: Handle, opened: Opened) -> Option<RxPacket> {
        let Packets { count, .. } = opened.packets;
        let id = self.offload.find(queue, handle).or_else(|| {
            self.counters.in_no_states += count;
            None
        })?;
        let (Some(at), Some(sa)) = (EspAt::find(&opened.frame), self.sas.find(id)) else {
            self.counters.in_header_error += count;
            return None;
        };
        if let Err(refusal) = may_come(sa, &at, count) {
            if refusal == Refusal::Expired {
                self.sas.note_too_many(id);
            }
            return self.drop_all_received(refusal, count);
        }
        let Ok(trailer) = EspTrailer::read(&opened.frame, &at) else {
            return self.drop_all_received(Refusal::Mode, count);
        };
        if let Err(refusal) = self.sas.accept(now, id, opened.packets.numbers()) {
            return self.drop_all_received(refusal, count);
        }
        self.counters.in_crypto += count;
        self.deliver(now, queue, id, opened, &at, &trailer)
    }

    /// A packet that the device opened altogether. Its number goes through the host's window as well, for the host
    /// opens those packets of the SA that came in fragments: one that came both ways would pass each of two windows.
    fn take_unwrapped(&mut self, now: Instant, queue: usize, handle: Handle, opened: Opened) -> Option<RxPacket> {
        let Packets { count, .. } = opened.packets;
        let id = self.offload.find(queue, handle).or_else(|| {
            self.counters.in_no_states += count;
            None
        })?;
        let sa = self.sas.find(id)?;
        // The device has not counted what came in fragments.
        if !sa.meter.allows(count) {
            self.sas.note_too_many(id);
            return self.drop_all_received(Refusal::Expired, count);
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
        self.sas.spend(id, count, (protected + opened.bytes_left_out(&view, mode)) as u64);
        self.admit(now, queue, id, opened, &view)
    }

    /// Takes the outer headers off a packet that is authentic.
    fn deliver(
        &mut self,
        now: Instant,
        queue: usize,
        id: SaId,
        opened: Opened,
        at: &EspAt,
        trailer: &EspTrailer,
    ) -> Option<RxPacket> {
        let Opened { frame, meta, packets } = opened;
        let sa = self.sas.find(id)?;
        let mode = sa.params.mode;
        let unwrapped = {
            let _framing = cost::work(WorkKind::Framing);
            unwrap(frame, at, trailer, &sa.params)
        };
        let frame = match unwrapped {
            Ok(frame) => frame,
            Err(error) => {
                self.sas.spend(id, packets.count, trailer.payload as u64);
                let refusal = if error == UnwrapError::Dummy { Refusal::Dummy } else { Refusal::Mode };
                return self.drop_all_received(refusal, packets.count);
            }
        };
        let opened = Opened { frame, meta, packets };
        let Some(view) = ip_packet(&opened.frame).and_then(IpView::parse) else {
            self.sas.spend(id, opened.packets.count, trailer.payload as u64);
            return self.drop_all_received(Refusal::Mode, opened.packets.count);
        };
        self.sas.spend(id, opened.packets.count, (trailer.payload + opened.bytes_left_out(&view, mode)) as u64);
        self.admit(now, queue, id, opened, &view)
    }

    /// RFC 4301 5.2: lets a packet in if its policy asks for no other protection than it had.
    fn admit(&mut self, now: Instant, queue: usize, id: SaId, opened: Opened, view: &IpView) -> Option<RxPacket> {
        let Opened { mut frame, mut meta, packets: Packets { count, joined, .. } } = opened;
        let (mut selectors, mut fragment) = (Packet::from_view(view, &frame[ETHERNET..]), view.fragment);
        if view.fragment && self.policies.must_be_whole(Direction::Receive, view, &selectors) {
            let (whole, view) = self.put_together(now, Origin::Sa(id), &frame)?;
            (frame, meta, fragment) = (whole, RxMeta::default(), view.fragment);
            selectors = Packet::from_view(&view, &frame[ETHERNET..]);
        }
        let sa = self.sas.find(id)?;
        // RFC 4861 3.1: its hop limit is to show that it comes from a neighbour. Whoever fills a tunnel chooses it.
        if sa.params.mode == EspMode::Tunnel && view.is_neighbour_discovery(&frame[ETHERNET..]) {
            self.counters.in_tunnelled_discovery += count;
            return None;
        }
        // What is answered to it is not to leave in clear.
        meta.protection = meta.protection.max(sa.params.key.suite().protection());
        let counter = match self.policies.action(Direction::Receive, &selectors) {
            Some(Action::Protect(template)) if sa.fits(&template) => None,
            // More protection than asked for is no harm in transport mode; in a tunnel, anybody's packets could come.
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

    /// The packet that a fragment was the last to come of.
    fn put_together(&mut self, now: Instant, from: Origin, frame: &[u8]) -> Option<(BytesMut, IpView)> {
        match self.fragments.insert(now, from, frame, ETHERNET) {
            FragmentOutcome::Whole(whole) => match ip_packet(&whole).and_then(IpView::parse) {
                Some(view) if !view.fragment => Some((whole, view)),
                // Nobody makes fragments of fragments with headers of their own.
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

    fn drop_received(&mut self, refusal: Refusal) -> Option<RxPacket> {
        self.drop_all_received(refusal, 1)
    }

    fn drop_all_received(&mut self, refusal: Refusal, packets: u64) -> Option<RxPacket> {
        let counters = &mut self.counters;
        let counter = match refusal {
            Refusal::Expired => &mut counters.in_state_expired,
            Refusal::Encapsulation => &mut counters.in_state_mismatch,
            Refusal::Replay => &mut counters.in_state_seq_error,
            Refusal::Forged => &mut counters.in_state_proto_error,
            Refusal::Mode => &mut counters.in_state_mode_error,
            Refusal::Dummy => &mut counters.in_dummy,
            Refusal::Unwritten => &mut counters.in_numbers_unwritten,
        };
        *counter += packets;
        None
    }
}

/// A packet that is authentic.
struct Opened {
    frame: BytesMut,
    meta: RxMeta,
    packets: Packets,
}

/// Of how many packets it was joined, under which numbers.
struct Packets {
    number: u64,
    count: u64,
    joined: Option<NonZeroU16>,
}

impl Packets {
    fn numbers(&self) -> RangeInclusive<u64> {
        self.number..=self.number.saturating_add(self.count.saturating_sub(1))
    }
}

impl Opened {
    /// Protected bytes of the packets it was joined of that are not in it: the headers of all but the first. Its plain
    /// frame has `view`.
    fn bytes_left_out(&self, view: &IpView, mode: EspMode) -> usize {
        let again = self.packets.count.saturating_sub(1) as usize;
        let transport = ETHERNET + view.header;
        let header = match view.protocol {
            protocol::UDP => UDP_BYTES,
            _ => self.frame.get(transport + 12).map_or(0, |offset| usize::from(offset >> 4) * 4),
        };
        again * (header + if mode == EspMode::Tunnel { view.header } else { 0 })
    }
}

/// Why a packet of an SA is dropped.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Refusal {
    Expired,
    Encapsulation,
    Replay,
    Forged,
    Mode,
    Dummy,
    Unwritten,
}

/// What can be said before a packet is authenticated; its whole number.
fn may_come(sa: &Sa, at: &EspAt, packets: u64) -> Result<u64, Refusal> {
    let Sequence::Receive(window) = &sa.sequence else { return Err(Refusal::Mode) };
    if sa.params.encapsulation.is_some() != at.udp {
        return Err(Refusal::Encapsulation);
    }
    // Of one that is lent, or was until the device lost it, the device knows which numbers came: here each would be new.
    if sa.lent || sa.retired || !sa.meter.allows(packets) {
        return Err(Refusal::Expired);
    }
    window.check(at.low).map_err(|_| Refusal::Replay)
}

const ARP: [u8; 2] = [0x08, 0x06];
/// A UDP header.
const UDP_BYTES: usize = 8;
