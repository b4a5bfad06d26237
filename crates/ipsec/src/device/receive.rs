//! From the device to the stack.
//!
//! Fragments are put together first, whatever they are of: policies look at ports, which most fragments do not show,
//! and ESP is opened whole (RFC 4303 3.4.1).

use super::{By, SecureDevice};
use crate::sad::{Sa, Sequence};
use bytes::BytesMut;
use esp::inner::{NotEsp, ip_packet, shares_port};
use esp::{ETHERNET, EspAt, IpView, OpenError, Trailer, UnwrapError, unwrap};
use ip_packets::Taken;
use offload_api::rx::Checksums;
use offload_api::{Action, Direction, EspMode, EspVerdict, Handle, RxMeta, RxPacket, SaId};
use offload_base::Instant;
use offload_base::cost::{self, Work};

impl SecureDevice {
    /// What the stack is to see of a received packet.
    pub(super) fn take_in(&mut self, now: Instant, packet: RxPacket) -> Option<RxPacket> {
        let RxPacket { frame, meta, joined, placed } = packet;
        // The verdict is for here; further up, packets of one stream are not to differ by it.
        let plain = RxMeta { esp: EspVerdict::None, ..meta };
        match meta.esp {
            EspVerdict::Unwrapped { sa, number } => self.take_unwrapped(sa, number, frame, plain),
            EspVerdict::Decrypted { sa, number } => self.take_decrypted(sa, number, frame, plain),
            EspVerdict::None | EspVerdict::Failed | EspVerdict::Fragment => {
                self.take_raw(now, RxPacket { frame, meta, joined, placed })
            }
        }
    }

    /// A packet as it was on the wire.
    fn take_raw(&mut self, now: Instant, packet: RxPacket) -> Option<RxPacket> {
        if packet.frame.get(12..14) == Some(&ARP) {
            return Some(packet);
        }
        let Some(view) = ip_packet(&packet.frame).and_then(IpView::parse) else {
            self.counters.in_header_error += 1;
            return None;
        };
        if view.fragment {
            let whole = self.put_together(now, &packet.frame, view.is_ipv6())?;
            return self.take_raw(now, RxPacket::new(whole, RxMeta::default()));
        }
        if let Some(at) = EspAt::find(&packet.frame) {
            return self.open(packet.frame, &at);
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
        if self.is_about_size(&packet.frame, &view) {
            return None;
        }
        match self.action(Direction::Receive, &view.selectors(&packet.frame[ETHERNET..])) {
            Some(Action::Bypass) => return Some(packet),
            Some(Action::Protect(_)) => self.counters.in_template_mismatch += 1,
            Some(Action::Discard) => self.counters.in_policy_block += 1,
            None => self.counters.in_no_policies += 1,
        }
        None
    }

    /// Opens an ESP packet in software.
    fn open(&mut self, mut frame: BytesMut, at: &EspAt) -> Option<RxPacket> {
        let framing = cost::work(Work::Framing);
        let Some(id) = self.sad.find_received(at.spi, at.ip.source, at.ip.destination) else {
            self.counters.in_no_states += 1;
            return None;
        };
        let sa = self.sad.find_mut(id)?;
        self.counters.in_fallback += u64::from(sa.by() != By::Software);
        let number = match may_come(sa, at) {
            Ok(number) => number,
            Err(refusal) => return self.drop_received(refusal),
        };
        let trailer = match sa.cipher.open(&mut frame, at, number) {
            Ok(trailer) => trailer,
            Err(OpenError::Icv) => return self.drop_received(Refusal::Forged),
            Err(_) => {
                accept(sa, number);
                return self.drop_received(Refusal::Mode);
            }
        };
        accept(sa, number);
        self.counters.in_software += 1;
        self.counters.in_software_bytes += trailer.payload as u64;
        // RFC 3948 3.1.2: a translator may have changed addresses under the checksum, which ESP makes up for.
        let translated = at.udp && sa.params.mode == EspMode::Transport;
        let checksums = if translated { Checksums::Good } else { Checksums::Unchecked };
        drop(framing);
        self.deliver(id, frame, at, &trailer, RxMeta { checksums, ..RxMeta::default() })
    }

    /// A packet that the device decrypted: headers, window and lifetimes are the host's.
    fn take_decrypted(&mut self, handle: Handle, number: u64, frame: BytesMut, meta: RxMeta) -> Option<RxPacket> {
        let id = *self.in_device.get(&handle).or_else(|| {
            self.counters.in_no_states += 1;
            None
        })?;
        let (Some(at), Some(sa)) = (EspAt::find(&frame), self.sad.find_mut(id)) else {
            self.counters.in_header_error += 1;
            return None;
        };
        if let Err(refusal) = may_come(sa, &at) {
            return self.drop_received(refusal);
        }
        let Ok(trailer) = Trailer::read(&frame, &at) else { return self.drop_received(Refusal::Mode) };
        if !accept(sa, number) {
            return self.drop_received(Refusal::Replay);
        }
        self.counters.in_crypto += 1;
        self.deliver(id, frame, &at, &trailer, meta)
    }

    /// A packet that the device opened altogether. Its number goes through the host's window as well, for the host
    /// opens those packets of the SA that came in fragments: one that came both ways would pass each of two windows.
    fn take_unwrapped(&mut self, handle: Handle, number: u64, frame: BytesMut, meta: RxMeta) -> Option<RxPacket> {
        let id = *self.in_device.get(&handle).or_else(|| {
            self.counters.in_no_states += 1;
            None
        })?;
        let sa = self.sad.find_mut(id)?;
        if !accept(sa, number) {
            return self.drop_received(Refusal::Replay);
        }
        self.counters.in_packet += 1;
        let Some(view) = ip_packet(&frame).and_then(IpView::parse) else {
            self.counters.in_header_error += 1;
            return None;
        };
        let protected = match sa.params.mode {
            EspMode::Transport => view.total - view.header,
            EspMode::Tunnel => view.total,
        };
        self.spend(id, 1, protected as u64);
        self.admit(id, frame, &view, meta)
    }

    /// Takes the outer headers off a packet that is authentic.
    fn deliver(&mut self, id: SaId, frame: BytesMut, at: &EspAt, trailer: &Trailer, meta: RxMeta) -> Option<RxPacket> {
        self.spend(id, 1, trailer.payload as u64);
        let sa = self.sad.find(id)?;
        let unwrapped = {
            let _framing = cost::work(Work::Framing);
            unwrap(frame, at, trailer, &sa.params)
        };
        let frame = match unwrapped {
            Ok(frame) => frame,
            Err(UnwrapError::Dummy) => return self.drop_received(Refusal::Dummy),
            Err(_) => return self.drop_received(Refusal::Mode),
        };
        let Some(view) = ip_packet(&frame).and_then(IpView::parse) else {
            return self.drop_received(Refusal::Mode);
        };
        self.admit(id, frame, &view, meta)
    }

    /// RFC 4301 5.2: lets a packet in if its policy asks for no other protection than it had.
    fn admit(&mut self, id: SaId, frame: BytesMut, view: &IpView, meta: RxMeta) -> Option<RxPacket> {
        let selectors = view.selectors(&frame[ETHERNET..]);
        let sa = self.sad.find(id)?;
        match self.action(Direction::Receive, &selectors) {
            Some(Action::Protect(template)) if sa.fits(&template) => {}
            // More protection than asked for is no harm in transport mode; in a tunnel, anybody's packets could come.
            Some(Action::Bypass) if sa.params.mode == EspMode::Transport => {}
            Some(Action::Protect(_) | Action::Bypass) => {
                self.counters.in_template_mismatch += 1;
                return None;
            }
            Some(Action::Discard) => {
                self.counters.in_policy_block += 1;
                return None;
            }
            None => {
                self.counters.in_no_policies += 1;
                return None;
            }
        }
        Some(RxPacket::new(frame, meta))
    }

    fn put_together(&mut self, now: Instant, frame: &[u8], ipv6: bool) -> Option<BytesMut> {
        match self.reassembly[usize::from(ipv6)].insert(now, frame, ETHERNET) {
            Taken::Whole(whole) => Some(whole),
            Taken::Kept | Taken::Duplicate => None,
            Taken::Refused(_) => {
                self.counters.in_reassembly_failed += 1;
                None
            }
        }
    }

    /// Gives up fragments whose time is over.
    pub(super) fn expire_fragments(&mut self, now: Instant) {
        for reassembly in &mut self.reassembly {
            while reassembly.expire(now).is_some() {
                self.counters.in_reassembly_failed += 1;
            }
            self.counters.in_reassembly_failed += reassembly.take_evicted();
        }
    }

    fn drop_received(&mut self, refusal: Refusal) -> Option<RxPacket> {
        let counters = &mut self.counters;
        let counter = match refusal {
            Refusal::Expired => &mut counters.in_state_expired,
            Refusal::Encapsulation => &mut counters.in_state_mismatch,
            Refusal::Replay => &mut counters.in_state_seq_error,
            Refusal::Forged => &mut counters.in_state_proto_error,
            Refusal::Mode => &mut counters.in_state_mode_error,
            Refusal::Dummy => &mut counters.in_dummy,
        };
        *counter += 1;
        None
    }
}

/// Why a packet of an SA is dropped.
enum Refusal {
    Expired,
    Encapsulation,
    Replay,
    Forged,
    Mode,
    Dummy,
}

/// What can be said before a packet is authenticated; its whole number.
fn may_come(sa: &Sa, at: &EspAt) -> Result<u64, Refusal> {
    let Sequence::Receive(window) = &sa.sequence else { return Err(Refusal::Mode) };
    if sa.params.encapsulation.is_some() != at.udp {
        return Err(Refusal::Encapsulation);
    }
    if !sa.meter.allows(1) {
        return Err(Refusal::Expired);
    }
    window.check(at.low).map_err(|_| Refusal::Replay)
}

fn accept(sa: &mut Sa, number: u64) -> bool {
    match &mut sa.sequence {
        Sequence::Receive(window) => window.accept(number),
        Sequence::Send(_) => false,
    }
}

const ARP: [u8; 2] = [0x08, 0x06];
