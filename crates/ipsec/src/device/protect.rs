//! A packet to be sent by an SA: its number, the device that works on it or software, and the part that goes to the device.
//!
//! Invariant: a number is taken when the packet it is for is on its way, and not before; no other sender takes
//! the same one.

use super::segment::{Segment, Segments};
use super::transmit::flow_of;
use super::{By, Decision, FRAME_BYTES, SecureDevice};
use crate::keying::{SaEvent, SaId};
use crate::sad::{Sa, Sequence};
use bytes::{Buf, BytesMut};
use offload_api::fragmentation::fragment;
use offload_api::ipsec::Packet;
use offload_api::{Action, DropReason, EspAsk, FlowKey, Handle, Limit, OffloadKind, Sent, TxAsk, TxPacket};
use offload_base::Instant;
use offload_base::cost::{self, Work};
use offload_esp::{ETHERNET, Outer, Reached, WrapError, checksum};
use offload_formats::IpView;

/// How one packet is going to be protected.
struct Plan {
    sa: SaId,
    /// By which it leaves.
    queue: usize,
    by: By,
    outer: Outer,
    /// Of the first packet it will be.
    number: u64,
    packets: u32,
    /// As lifetimes count them.
    bytes: u64,
    /// The longest packet for the wire.
    mtu: u16,
    /// It has to leave in fragments.
    too_large: bool,
    flow: FlowKey,
}

impl SecureDevice {
    /// Sends a packet by the SA that its policy asks for, if there is one.
    pub(super) fn protect(
        &mut self,
        now: Instant,
        packet: TxPacket,
        view: IpView,
        decision: &Decision,
        selectors: &Packet,
    ) -> Sent {
        let Some(id) = decision.sa else {
            self.counters.out_no_states += 1;
            if let Some(Action::Protect(template)) = decision.action {
                self.tell(SaEvent::Acquire { template, packet: *selectors });
            }
            return Sent::Dropped(DropReason::Policy);
        };
        let plan = match self.plan(now, id, &packet, &view, flow_of(selectors)) {
            Ok(plan) => plan,
            Err(dropped) => return dropped,
        };
        let ethernet = packet.header.first_chunk().copied();
        let (packets, bytes) = (plan.packets, plan.bytes);
        let sent = match plan.by {
            By::Software => self.protect_in_software(now, packet, view, &plan),
            By::Device(handle, OffloadKind::Packet) if plan.too_large => {
                self.protect_in_its_place(now, handle, packet, view, &plan)
            }
            By::Device(_, OffloadKind::Packet) => self.hand_over_plain(now, id, packet, decision, packets),
            By::Device(handle, _) => self.have_it_finished(now, handle, packet, view, &plan),
        };
        if sent == Sent::Posted {
            self.spend(id, packets.into(), bytes);
            self.note_sent(now, id, ethernet);
        }
        sent
    }

    /// Whether a packet may leave by an SA, and how. What is refused is counted.
    fn plan(&mut self, now: Instant, id: SaId, packet: &TxPacket, view: &IpView, flow: FlowKey) -> Result<Plan, Sent> {
        let Some(sa) = self.sad.find_mut(id) else { return Err(Sent::Dropped(DropReason::Policy)) };
        let queue = sa.queue;
        let mtu = sa.outer_mtu(self.queues[queue].inner.path(&flow).mtu);
        let outer = match Outer::for_packet(&sa.params, &packet.header[ETHERNET..]) {
            Ok(outer) => outer,
            Err(WrapError::Fragment) => return Err(self.refuse(|counters| &mut counters.out_state_mode_error)),
            Err(_) => return Err(self.refuse(|counters| &mut counters.out_error)),
        };
        let packets = Segments::count(packet);
        let in_front = packet.header.len() - ETHERNET;
        let largest = in_front + packet.ask.mss.map_or(packet.payload_len(), usize::from);
        if in_front < outer.taken() || largest > usize::from(u16::MAX) {
            return Err(self.refuse(|counters| &mut counters.out_error));
        }
        let too_large = outer.wrapped_len(largest) > usize::from(mtu);
        // RFC 4301 8.2: what must not be fragmented and does not fit is not sent. The stack knows by its path.
        if too_large && (view.dont_fragment || packet.ask.mss.is_some()) {
            return Err(self.refuse(|counters| &mut counters.out_state_mode_error));
        }
        if !sa.meter.allows(u64::from(packets)) {
            self.note_too_many(id);
            return Err(self.refuse(|counters| &mut counters.out_state_expired));
        }
        let Sequence::Send(numbers) = &sa.sequence else { return Err(Sent::Dropped(DropReason::Policy)) };
        let Some(number) = numbers.peek(packets) else {
            self.sad.retire(id);
            self.epoch += 1;
            self.tell(SaEvent::SequenceExhausted { sa: id });
            return Err(self.refuse(|counters| &mut counters.out_state_seq_error));
        };
        let by = sa.by();
        let bytes = (in_front - outer.taken()) as u64 * u64::from(packets) + packet.payload_len() as u64;
        let last = number + u64::from(packets) - 1;
        if !sa.marks.cover(last) && !self.may_use(now, id, last) {
            return Err(self.refuse(|counters| &mut counters.out_numbers_unwritten));
        }
        Ok(Plan { sa: id, queue, by, outer, number, packets, bytes, mtu, too_large, flow })
    }

    fn protect_in_software(&mut self, now: Instant, packet: TxPacket, view: IpView, plan: &Plan) -> Sent {
        self.counters.out_software += u64::from(plan.packets);
        self.counters.out_software_bytes += plan.bytes;
        self.take_numbers(plan.sa, plan.packets);
        self.wrap(now, packet, view, plan);
        Sent::Posted
    }

    /// Crypto offload: the device finishes what stands behind the host's headers.
    fn have_it_finished(&mut self, now: Instant, handle: Handle, packet: TxPacket, view: IpView, plan: &Plan) -> Sent {
        let Plan { outer, number, .. } = plan;
        let next_header = outer.next_header();
        let spi = self.sad.find(plan.sa).map_or(0, |sa| sa.params.spi);
        // What the device may refuse is asked before the number is used: it must not be used up by that.
        let whole = if plan.too_large { None } else { Some(with_esp_header(&packet, outer, *number, spi)) };
        let ask = EspAsk::Finish { sa: handle, at: (ETHERNET + outer.len()) as u16, number: *number, next_header };
        let fits = whole.filter(|whole| whole.header.len() <= LONGEST_HEADERS);
        let sent = fits.map(|whole| {
            let ask = TxAsk { packet: Some(ask.into()), ..whole.ask };
            self.queues[plan.queue].post(now, TxPacket { ask, ..whole })
        });
        if sent == Some(Sent::Posted) {
            self.counters.out_crypto += u64::from(plan.packets);
            self.take_numbers(plan.sa, plan.packets);
            return Sent::Posted;
        }
        self.counters.out_fallback += u64::from(plan.packets);
        self.protect_in_software(now, packet, view, plan)
    }

    /// Packet offload, and a packet that the device cannot carry: it has to leave in fragments. The device goes on behind its
    /// number.
    fn protect_in_its_place(
        &mut self,
        now: Instant,
        handle: Handle,
        packet: TxPacket,
        view: IpView,
        plan: &Plan,
    ) -> Sent {
        let last = plan.number + u64::from(plan.packets) - 1;
        let device = self.queues[plan.queue].inner.ipsec();
        let leaves_them_to_us = device.is_some_and(|device| device.advance_sa(handle, last).is_ok());
        if !leaves_them_to_us {
            return self.refuse(|counters| &mut counters.out_state_invalid);
        }
        self.counters.out_fallback += u64::from(plan.packets);
        self.protect_in_software(now, packet, view, plan)
    }

    /// Wraps a packet, cut if it is to be, and queues the results.
    fn wrap(&mut self, now: Instant, packet: TxPacket, view: IpView, plan: &Plan) {
        let framing = cost::work(Work::Framing);
        let Plan { outer, mtu, flow, queue, .. } = plan;
        let backlog = &mut self.queues[*queue].backlog;
        let Some(sa) = self.sad.find(plan.sa) else { return };
        for (segment, number) in Segments::new(&packet, &view).zip(plan.number..) {
            let bytes = segment.header.len() + segment.pieces.iter().map(|piece| piece.len()).sum::<usize>();
            let wrapped = ETHERNET + outer.wrapped_len(bytes - ETHERNET);
            let mut frame = if wrapped <= FRAME_BYTES { self.frames.take() } else { BytesMut::with_capacity(wrapped) };
            outer.write_headers(&segment.header, &mut frame);
            put_protected(&segment, &view, outer, packet.ask.checksum, &mut frame);
            outer.finish(&sa.cipher, number, &mut frame);
            let headers = (ETHERNET + outer.len() + offload_esp::ESP_AND_IV).min(frame.len());
            let header = frame[..headers].into();
            frame.advance(headers);
            let wrapped_packet =
                TxPacket { header, fragments: [frame.freeze()].into_iter().collect(), ask: TxAsk::default() };
            if wrapped - ETHERNET <= usize::from(*mtu) {
                backlog.push_back((*flow, wrapped_packet));
            } else {
                // RFC 4303 3.3.4: fragmented after ESP. Its number would not do: other SAs of these ends have it, too.
                self.identification = self.identification.wrapping_add(1);
                let fragments = fragment(wrapped_packet, ETHERNET, *mtu, self.identification);
                let Ok(fragments) = fragments else {
                    self.counters.out_state_mode_error += 1;
                    continue;
                };
                backlog.extend(fragments.into_iter().map(|fragment| (*flow, fragment)));
            }
        }
        drop(framing);
        self.drain_backlog(now, *queue);
    }

    pub(super) fn take_numbers(&mut self, id: SaId, packets: u32) {
        if let Some(Sa { sequence: Sequence::Send(numbers), .. }) = self.sad.find_mut(id) {
            numbers.take(packets);
        }
    }

    /// Counts what an SA did against its lifetime.
    pub(super) fn spend(&mut self, id: SaId, packets: u64, bytes: u64) {
        let Some(sa) = self.sad.find_mut(id) else { return };
        if let Some(reached) = sa.meter.spend(packets, bytes) {
            self.on_limit(id, reached);
        }
    }

    /// What came or is to leave at once is more than an SA has left, and the next may be as much: it would stand still
    /// without a word.
    pub(super) fn note_too_many(&mut self, id: SaId) {
        let Some(sa) = self.sad.find_mut(id) else { return };
        if let Some(reached) = sa.meter.note(Reached::Hard(Limit::Packets)) {
            self.on_limit(id, reached);
        }
    }

    pub(super) fn on_limit(&mut self, id: SaId, reached: Reached) {
        match reached {
            Reached::Soft(limit) => self.tell(SaEvent::SoftLimit { sa: id, limit }),
            Reached::Hard(limit) => {
                self.sad.retire(id);
                self.epoch += 1;
                self.tell(SaEvent::HardLimit { sa: id, limit });
            }
        }
    }
}

impl Sa {
    /// Who works on it.
    pub(super) fn by(&self) -> By {
        match &self.offload {
            Some(place) => By::Device(place.handle, place.kind),
            None => By::Software,
        }
    }
}

/// Puts what ESP protects of a segment behind the room for ESP header and IV.
fn put_protected(segment: &Segment<'_>, view: &IpView, outer: &Outer, checksum: bool, frame: &mut BytesMut) {
    let protected_at = frame.len();
    frame.extend_from_slice(&segment.header[ETHERNET + outer.taken()..]);
    {
        let _copy = cost::work(Work::Copy);
        segment.pieces.iter().for_each(|piece| frame.extend_from_slice(piece));
    }
    if !checksum {
        return;
    }
    let _stack = cost::work(Work::Stack);
    let transport = protected_at + view.header - outer.taken();
    if outer.taken() == 0 && !view.is_ipv6() {
        offload_formats::checksum::fill_ipv4_header(&mut frame[protected_at..]);
    }
    checksum::fill_transport(&mut frame[transport..], view.protocol, view.source, view.destination);
}

/// The packet with outer headers, ESP header and IV in front of what is to be encrypted: what crypto offload takes.
fn with_esp_header(packet: &TxPacket, outer: &Outer, number: u64, spi: u32) -> TxPacket {
    let _framing = cost::work(Work::Framing);
    let mut front = BytesMut::with_capacity(ETHERNET + outer.len() + offload_esp::ESP_AND_IV);
    outer.write_headers(&packet.header, &mut front);
    let esp = ETHERNET + outer.len();
    front[esp..esp + 4].copy_from_slice(&spi.to_be_bytes());
    front[esp + 4..esp + 8].copy_from_slice(&(number as u32).to_be_bytes());
    front[esp + 8..esp + 16].copy_from_slice(&number.to_be_bytes());
    let mut header: offload_api::Header = front[..].into();
    header.extend_from_slice(&packet.header[ETHERNET + outer.taken()..]);
    TxPacket { header, fragments: packet.fragments.clone(), ask: packet.ask }
}

/// More headers than this are not given to a device.
const LONGEST_HEADERS: usize = 512;
