//! Sends a packet by an SA: assigns its number and divides the work between software and device.
//!
//! Invariant: a sequence number is taken only when its packet is on its way, and no other sender takes the same number.

use super::segment::PlainSegments;
use super::transmit::flow_of;
use super::{PolicyDecision, SaWorker, SecureDevice};
use crate::keying::{SaEvent, SaId};
use crate::sad::{Sa, Sequence};
use bytes::BytesMut;
use offload_api::ipsec::Packet;
use offload_api::{Action, DropReason, EspAsk, FlowKey, Handle, OffloadKind, TransmitResult, TxAsk, TxPacket};
use offload_base::Instant;
use offload_base::cost::{self, WorkKind};
use offload_esp::{ETHERNET, OuterHeaders, WrapError};
use offload_formats::IpView;

/// The plan for protecting one packet.
pub(super) struct ProtectionPlan {
    sa: SaId,
    /// The queue by which the packet leaves.
    queue: usize,
    by: SaWorker,
    pub(super) outer: OuterHeaders,
    /// The number of the first resulting packet.
    pub(super) number: u64,
    packets: u32,
    /// Protected bytes, as lifetimes count them.
    bytes: u64,
    /// The largest packet for the wire.
    pub(super) mtu: u16,
    /// Whether the packet must be fragmented after ESP.
    too_large: bool,
    pub(super) flow: FlowKey,
}

impl SecureDevice {
    /// Sends a packet by its policy's SA. Without an SA, the packet is dropped and the keying daemon gets an acquire
    /// event.
    pub(super) fn protect(
        &mut self,
        now: Instant,
        packet: TxPacket,
        view: IpView,
        decision: &PolicyDecision,
        selectors: &Packet,
    ) -> TransmitResult {
        let Some(id) = decision.sa else {
            self.counters.out_no_states += 1;
            if let Some(Action::Protect(template)) = decision.action {
                self.sas.report(SaEvent::Acquire { template, packet: *selectors });
            }
            return TransmitResult::Dropped(DropReason::Policy);
        };
        let plan = match self.plan(now, id, &packet, &view, flow_of(selectors)) {
            Ok(plan) => plan,
            Err(dropped) => return dropped,
        };
        // Saved for keep-alives, because the packet is consumed below.
        let ethernet = packet.header.first_chunk().copied();
        let (packets, bytes) = (plan.packets, plan.bytes);
        let sent = match plan.by {
            SaWorker::Software => self.protect_in_software(now, packet, view, &plan),
            SaWorker::Device(handle, OffloadKind::Packet) if plan.too_large => {
                self.protect_for_device(now, handle, packet, view, &plan)
            }
            SaWorker::Device(_, OffloadKind::Packet) => self.transmit_plain(now, packet, decision, &plan),
            SaWorker::Device(handle, _) => self.protect_by_device(now, handle, packet, view, &plan),
        };
        if sent == TransmitResult::Posted {
            self.sas.spend(id, packets.into(), bytes);
            self.sas.note_sent(now, id, ethernet);
        }
        sent
    }

    /// Plans how a packet leaves by an SA. Refused packets are counted.
    fn plan(
        &mut self,
        now: Instant,
        id: SaId,
        packet: &TxPacket,
        view: &IpView,
        flow: FlowKey,
    ) -> Result<ProtectionPlan, TransmitResult> {
        let Some(sa) = self.sas.find(id) else { return Err(TransmitResult::Dropped(DropReason::Policy)) };
        let queue = sa.queue;
        let mtu = sa.outer_mtu(self.queues[queue].inner.path(&flow).mtu);
        let outer = match OuterHeaders::for_packet(&sa.params, &packet.header[ETHERNET..]) {
            Ok(outer) => outer,
            Err(WrapError::Fragment) => return Err(self.refuse(|counters| &mut counters.out_state_mode_error)),
            Err(_) => return Err(self.refuse(|counters| &mut counters.out_error)),
        };
        let packets = PlainSegments::count(packet);
        let in_front = packet.header.len() - ETHERNET;
        let largest = in_front + packet.ask.mss.map_or(packet.payload_len(), usize::from);
        // The protected part must begin inside the header, and IP lengths have 16 bits.
        if in_front < outer.taken() || largest > usize::from(u16::MAX) {
            return Err(self.refuse(|counters| &mut counters.out_error));
        }
        let too_large = outer.wrapped_len(largest) > usize::from(mtu);
        // RFC 4301 8.2: a packet that does not fit and must not be fragmented is dropped. The stack learns the limit
        // from its path.
        if too_large && (view.dont_fragment || packet.ask.mss.is_some()) {
            return Err(self.refuse(|counters| &mut counters.out_state_mode_error));
        }
        if !sa.meter.allows(u64::from(packets)) {
            self.sas.note_too_many(id);
            return Err(self.refuse(|counters| &mut counters.out_state_expired));
        }
        let Sequence::Send(numbers) = &sa.sequence else { return Err(TransmitResult::Dropped(DropReason::Policy)) };
        let Some(number) = numbers.peek(packets) else {
            self.sas.retire(id, SaEvent::SequenceExhausted { sa: id });
            return Err(self.refuse(|counters| &mut counters.out_state_seq_error));
        };
        let by = sa.by();
        let bytes = (in_front - outer.taken()) as u64 * u64::from(packets) + packet.payload_len() as u64;
        let last = number + u64::from(packets) - 1;
        // Written before use: after a crash, the next process must not send these numbers again.
        if !self.sas.may_use(now, id, last) {
            return Err(self.refuse(|counters| &mut counters.out_numbers_unwritten));
        }
        Ok(ProtectionPlan { sa: id, queue, by, outer, number, packets, bytes, mtu, too_large, flow })
    }

    fn protect_in_software(
        &mut self,
        now: Instant,
        packet: TxPacket,
        view: IpView,
        plan: &ProtectionPlan,
    ) -> TransmitResult {
        self.counters.out_software += u64::from(plan.packets);
        self.counters.out_software_bytes += plan.bytes;
        self.sas.take_numbers(plan.sa, plan.packets);
        let Some(sa) = self.sas.find(plan.sa) else { return TransmitResult::Posted };
        let failed = self.wrapper.wrap(&mut self.queues[plan.queue], sa, &packet, &view, plan);
        self.counters.out_state_mode_error += failed;
        self.drain_backlog(now, plan.queue);
        TransmitResult::Posted
    }

    /// Hands a plain packet to the device for full protection.
    fn transmit_plain(
        &mut self,
        now: Instant,
        packet: TxPacket,
        decision: &PolicyDecision,
        plan: &ProtectionPlan,
    ) -> TransmitResult {
        let Self { offload, queues, sas, .. } = self;
        let found = decision.policy.and_then(|policy| offload.install_policy(queues, sas, plan.sa, policy));
        let Some((queue, sa)) = found else {
            return self.refuse(|counters| &mut counters.out_state_invalid);
        };
        let ask = TxAsk { packet: Some(EspAsk::Protect { sa }.into()), ..packet.ask };
        let sent = queues[queue].post(now, TxPacket { ask, ..packet });
        if sent == TransmitResult::Posted {
            self.counters.out_packet += u64::from(plan.packets);
            self.sas.take_numbers(plan.sa, plan.packets);
        } else {
            self.counters.out_state_invalid += 1;
        }
        sent
    }

    /// Wraps a packet up to the ESP header and IV; the device encrypts and adds the ICV (crypto offload).
    fn protect_by_device(
        &mut self,
        now: Instant,
        handle: Handle,
        packet: TxPacket,
        view: IpView,
        plan: &ProtectionPlan,
    ) -> TransmitResult {
        let ProtectionPlan { outer, number, .. } = plan;
        let next_header = outer.next_header();
        let spi = self.sas.find(plan.sa).map_or(0, |sa| sa.params.spi);
        // The number is taken only after the device accepted the packet. Otherwise a refused packet would waste it.
        let whole = if plan.too_large { None } else { Some(with_esp_header(&packet, outer, *number, spi)) };
        let ask = EspAsk::Finish { sa: handle, at: (ETHERNET + outer.len()) as u16, number: *number, next_header };
        let fits = whole.filter(|whole| whole.header.len() <= MAX_HEADERS);
        let sent = fits.map(|whole| {
            let ask = TxAsk { packet: Some(ask.into()), ..whole.ask };
            self.queues[plan.queue].post(now, TxPacket { ask, ..whole })
        });
        if sent == Some(TransmitResult::Posted) {
            self.counters.out_crypto += u64::from(plan.packets);
            self.sas.take_numbers(plan.sa, plan.packets);
            return TransmitResult::Posted;
        }
        self.counters.out_fallback += u64::from(plan.packets);
        self.protect_in_software(now, packet, view, plan)
    }

    /// Protects a packet in software although its SA has packet offload, because the device cannot fragment. The device
    /// skips the packet's numbers.
    fn protect_for_device(
        &mut self,
        now: Instant,
        handle: Handle,
        packet: TxPacket,
        view: IpView,
        plan: &ProtectionPlan,
    ) -> TransmitResult {
        let last = plan.number + u64::from(plan.packets) - 1;
        let device = self.queues[plan.queue].inner.ipsec();
        let leaves_them_to_us = device.is_some_and(|device| device.advance_sa(handle, last).is_ok());
        if !leaves_them_to_us {
            return self.refuse(|counters| &mut counters.out_state_invalid);
        }
        self.counters.out_fallback += u64::from(plan.packets);
        self.protect_in_software(now, packet, view, plan)
    }
}

impl Sa {
    /// Returns the worker of this SA's packets.
    pub(super) fn by(&self) -> SaWorker {
        match &self.offload {
            Some(place) => SaWorker::Device(place.handle, place.kind),
            None => SaWorker::Software,
        }
    }
}

/// Builds the packet for crypto offload: outer headers, ESP header and IV, followed by the plain packet.
fn with_esp_header(packet: &TxPacket, outer: &OuterHeaders, number: u64, spi: u32) -> TxPacket {
    let _framing = cost::work(WorkKind::Framing);
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

/// The longest headers that are handed to a device.
const MAX_HEADERS: usize = 512;
