//! From the stack to the device.
//!
//! A fragment that does not show what policies look at, or that an SA cannot carry, waits for the rest of its packet: what
//! becomes of the whole is decided then, and it leaves in fragments again where it must (RFC 4301 7).

use super::fragments::Origin;
use super::segment::{Segment, Segments};
use super::{By, Decision, FRAME_BYTES, SecureDevice};
use crate::sad::{Sa, Sequence};
use bytes::{Buf, BytesMut};
use core::net::SocketAddr;
use esp::inner::ip_packet;
use esp::{ETHERNET, IpView, Outer, PROTOCOL_TCP, Reached, WrapError, checksum};
use ip_packets::{IpHeaders, Taken};
use offload_api::ipsec::Packet;
use offload_api::{
    Action, Direction, DropReason, EspAsk, EspMode, FlowKey, Layer, Limit, Lookup, OffloadKind, PathCaps, Protocol,
    RecordSource, SaEvent, SaId, Sent, Template, TxAsk, TxPacket,
};
use offload_base::Instant;
use offload_base::cost::{self, Work};

impl SecureDevice {
    /// What a flow can have whose packets are protected.
    pub(super) fn protected_path(&self, flow: &FlowKey, sa: Option<SaId>, caps: PathCaps) -> PathCaps {
        let ipv6 = flow.local.is_ipv6();
        let sa = sa.and_then(|id| self.sad.find(id));
        // Until there is an SA, nothing is sent; the stack hears by the epoch when there is.
        let Some(sa) = sa else { return caps };
        let mtu = sa.plain_mtu(ipv6, sa.outer_mtu(caps.mtu));
        match sa.by() {
            By::Software => PathCaps {
                mtu,
                checksum: true,
                tso_max_bytes: SOFTWARE_TSO_BYTES,
                udp_segmentation: true,
                pacing: false,
                ..caps
            },
            By::Device(..) => PathCaps { mtu, pacing: false, ..caps },
        }
    }

    /// Whether the device makes of one packet all that is to leave.
    pub(super) fn is_cut_by_device(&self, sa: Option<SaId>) -> bool {
        let sa = sa.and_then(|id| self.sad.find(id));
        sa.is_some_and(|sa| sa.by() != By::Software)
    }

    /// Does with a packet what its policy says.
    pub(super) fn send(&mut self, now: Instant, mut packet: TxPacket, source: &dyn RecordSource) -> Sent {
        let ether_type = packet.header.get(12..14).map(|bytes| [bytes[0], bytes[1]]);
        if ether_type == Some(ARP) {
            return self.inner.transmit(now, packet, source);
        }
        show_headers(&mut packet);
        let Some(view) = ip_packet(&packet.header).and_then(IpView::parse_headers) else {
            self.counters.out_error += 1;
            return Sent::Dropped(DropReason::Policy);
        };
        if view.is_neighbour_discovery(&packet.header[ETHERNET..]) {
            return self.inner.transmit(now, packet, source);
        }
        let selectors = view.selectors(&packet.header[ETHERNET..]);
        if view.fragment && self.must_be_whole(Direction::Transmit, &view, &selectors) {
            return self.gather(now, &packet);
        }
        let Decision { action, sa, .. } = self.decide(&selectors);
        match action {
            Some(Action::Bypass) => self.inner.transmit(now, packet, source),
            Some(Action::Protect(template)) => {
                if packet.ask.context.is_some() {
                    return self.send_back(&packet, source);
                }
                // RFC 4301 7.1: transport mode is for whole packets.
                if view.fragment && template.mode == EspMode::Transport {
                    return self.gather(now, &packet);
                }
                self.protect(now, packet, view, (&template, sa), &selectors)
            }
            Some(Action::Discard) | None => {
                self.counters.out_policy_block += 1;
                Sent::Dropped(DropReason::Policy)
            }
        }
    }

    /// A packet that a TLS context was to work on, and whose flow is under ESP by now: it has to be sealed in software.
    fn send_back(&mut self, packet: &TxPacket, source: &dyn RecordSource) -> Sent {
        match source.unit_at(Layer::Tls, packet.ask.seq) {
            Lookup::In(unit) => Sent::NeedsSoftware(unit),
            Lookup::BeforeStart | Lookup::Released => {
                self.counters.out_policy_block += 1;
                Sent::Dropped(DropReason::Policy)
            }
        }
    }

    /// Keeps a fragment until the packet is whole.
    fn gather(&mut self, now: Instant, packet: &TxPacket) -> Sent {
        let mut frame = BytesMut::with_capacity(packet.header.len() + packet.payload_len());
        frame.extend_from_slice(&packet.header);
        packet.fragments.iter().for_each(|piece| frame.extend_from_slice(piece));
        let fragment = IpHeaders::walk(&frame[ETHERNET..]).ok().and_then(|headers| headers.fragment);
        let identification = fragment.map_or(0, |fragment| fragment.identification);
        match self.fragments.insert(now, Origin::Stack, &frame, ETHERNET) {
            Taken::Whole(whole) => self.send_gathered(now, whole, identification),
            Taken::Kept | Taken::Duplicate => Sent::Posted,
            Taken::Refused(_) => {
                self.counters.out_error += 1;
                Sent::Dropped(DropReason::Policy)
            }
        }
    }

    /// Does with a packet that came in fragments what its policy says.
    fn send_gathered(&mut self, now: Instant, mut whole: BytesMut, identification: u32) -> Sent {
        let Some(view) = ip_packet(&whole).and_then(IpView::parse).filter(|view| !view.fragment) else {
            return self.refuse(|counters| &mut counters.out_error);
        };
        let selectors = view.selectors(&whole[ETHERNET..]);
        let shown = HEADERS_SHOWN.max(ETHERNET + view.header + PORTS).min(whole.len());
        let header = whole.split_to(shown)[..].into();
        let fragments = [whole.freeze()].into_iter().collect();
        let packet = TxPacket { header, fragments, ask: TxAsk::default() };
        let flow = flow_of(&selectors);
        let mtu = self.inner.path(&flow).mtu;
        let Decision { action, sa, .. } = self.decide(&selectors);
        match action {
            Some(Action::Bypass) => {
                let Some(pieces) = self.cut_again(packet, mtu, identification) else {
                    return Sent::Dropped(DropReason::Policy);
                };
                self.backlog.extend(pieces.into_iter().map(|piece| (flow, piece)));
                self.drain_backlog(now);
                Sent::Posted
            }
            Some(Action::Protect(template)) if template.mode == EspMode::Tunnel => {
                let sa_of = sa.and_then(|id| self.sad.find(id));
                let most = sa_of.map_or(u16::MAX, |sa| sa.plain_mtu(view.is_ipv6(), sa.outer_mtu(mtu)));
                let Some(pieces) = self.cut_again(packet, most, identification) else {
                    return Sent::Dropped(DropReason::Policy);
                };
                let mut sent = Sent::Posted;
                for piece in pieces {
                    let Some(view) = IpView::parse_headers(&piece.header[ETHERNET..]) else { continue };
                    // Under the SA of the whole, which the piece does not show.
                    match self.protect(now, piece, view, (&template, sa), &selectors) {
                        Sent::Posted => {}
                        dropped => sent = dropped,
                    }
                }
                sent
            }
            Some(Action::Protect(template)) => {
                // An IPv6 packet that its source had cut, it may cut again.
                let view = IpView { dont_fragment: view.dont_fragment && !view.is_ipv6(), ..view };
                self.protect(now, packet, view, (&template, sa), &selectors)
            }
            Some(Action::Discard) | None => self.refuse(|counters| &mut counters.out_policy_block),
        }
    }

    /// A packet that was put together, as a path of `mtu` bytes takes it.
    fn cut_again(&mut self, packet: TxPacket, mtu: u16, identification: u32) -> Option<Vec<TxPacket>> {
        if packet.header.len() + packet.payload_len() - ETHERNET <= usize::from(mtu) {
            return Some(vec![packet]);
        }
        let pieces = ip_packets::fragment(packet, ETHERNET, mtu, identification).ok();
        self.counters.out_error += u64::from(pieces.is_none());
        pieces
    }

    /// Sends a packet by the SA that its policy asks for, if there is one.
    fn protect(
        &mut self,
        now: Instant,
        packet: TxPacket,
        view: IpView,
        (template, sa): (&Template, Option<SaId>),
        selectors: &Packet,
    ) -> Sent {
        let Some(id) = sa else {
            self.counters.out_no_states += 1;
            self.tell(SaEvent::Acquire { template: *template, packet: *selectors });
            return Sent::Dropped(DropReason::Policy);
        };
        let mtu = self.inner.path(&flow_of(selectors)).mtu;
        let Some(sa) = self.sad.find_mut(id) else { return Sent::Dropped(DropReason::Policy) };
        let mtu = sa.outer_mtu(mtu);
        let outer = match Outer::for_packet(&sa.params, &packet.header[ETHERNET..]) {
            Ok(outer) => outer,
            Err(WrapError::Fragment) => return self.refuse(|counters| &mut counters.out_state_mode_error),
            Err(_) => return self.refuse(|counters| &mut counters.out_error),
        };
        let packets = Segments::count(&packet);
        let in_front = packet.header.len() - ETHERNET;
        let largest = in_front + packet.ask.mss.map_or(packet.payload_len(), usize::from);
        if in_front < outer.taken() || largest > usize::from(u16::MAX) {
            return self.refuse(|counters| &mut counters.out_error);
        }
        let too_large = outer.wrapped_len(largest) > usize::from(mtu);
        // RFC 4301 8.2: what must not be fragmented and does not fit is not sent. The stack knows by its path.
        if too_large && (view.dont_fragment || packet.ask.mss.is_some()) {
            return self.refuse(|counters| &mut counters.out_state_mode_error);
        }
        if !sa.meter.allows(u64::from(packets)) {
            self.note_too_many(id);
            return self.refuse(|counters| &mut counters.out_state_expired);
        }
        let Sequence::Send(numbers) = &mut sa.sequence else { return Sent::Dropped(DropReason::Policy) };
        let Some(number) = numbers.peek(packets) else {
            self.sad.retire(id);
            self.epoch += 1;
            self.tell(SaEvent::SequenceExhausted { sa: id });
            return self.refuse(|counters| &mut counters.out_state_seq_error);
        };
        let bytes = (in_front - outer.taken()) as u64 * u64::from(packets) + packet.payload_len() as u64;
        let flow = flow_of(selectors);
        let sent = match sa.by() {
            By::Software => {
                self.count_software(packets, bytes);
                self.take_numbers(id, packets);
                self.wrap(now, id, packet, view, &outer, (number, mtu, flow));
                Sent::Posted
            }
            By::Device(_, OffloadKind::Packet) => {
                if too_large {
                    return self.refuse(|counters| &mut counters.out_state_mode_error);
                }
                self.hand_over_plain(now, id, packet, selectors, packets)
            }
            By::Device(handle, _) => {
                let next_header = outer.next_header();
                // What the device may refuse is asked before the number is used: it must not be used up by that.
                let whole = if too_large { None } else { Some(with_esp_header(&packet, &outer, number, sa)) };
                let ask = EspAsk::Finish { sa: handle, at: (ETHERNET + outer.len()) as u16, number, next_header };
                let fits = whole.filter(|whole| whole.header.len() <= LONGEST_HEADERS);
                let sent = fits.map(|whole| {
                    let ask = TxAsk { esp: Some(ask), ..whole.ask };
                    self.inner.transmit(now, TxPacket { ask, ..whole }, &offload_api::NoRecords)
                });
                if sent == Some(Sent::Posted) {
                    self.counters.out_crypto += u64::from(packets);
                    self.take_numbers(id, packets);
                } else {
                    self.counters.out_fallback += u64::from(packets);
                    self.count_software(packets, bytes);
                    self.take_numbers(id, packets);
                    self.wrap(now, id, packet, view, &outer, (number, mtu, flow));
                }
                Sent::Posted
            }
        };
        if sent == Sent::Posted {
            self.spend(id, u64::from(packets), bytes);
        }
        sent
    }

    /// Wraps a packet, cut if it is to be, and queues the results.
    fn wrap(
        &mut self,
        now: Instant,
        id: SaId,
        packet: TxPacket,
        view: IpView,
        outer: &Outer,
        (number, mtu, flow): (u64, u16, FlowKey),
    ) {
        let framing = cost::work(Work::Framing);
        let Some(sa) = self.sad.find(id) else { return };
        for (segment, number) in Segments::new(&packet, view).zip(number..) {
            let bytes = segment.header.len() + segment.pieces.iter().map(|piece| piece.len()).sum::<usize>();
            let wrapped = ETHERNET + outer.wrapped_len(bytes - ETHERNET);
            let mut frame = if wrapped <= FRAME_BYTES { self.frames.take() } else { BytesMut::with_capacity(wrapped) };
            outer.write_headers(&segment.header, &mut frame);
            put_protected(&segment, &view, outer, packet.ask.checksum, &mut frame);
            outer.finish(&sa.cipher, number, &mut frame);
            let headers = (ETHERNET + outer.len() + esp::ESP_AND_IV).min(frame.len());
            let header = frame[..headers].into();
            frame.advance(headers);
            let wrapped_packet =
                TxPacket { header, fragments: [frame.freeze()].into_iter().collect(), ask: TxAsk::default() };
            if wrapped - ETHERNET <= usize::from(mtu) {
                self.backlog.push_back((flow, wrapped_packet));
            } else {
                // RFC 4303 3.3.4: fragmented after ESP.
                let fragments = ip_packets::fragment(wrapped_packet, ETHERNET, mtu, number as u32);
                let Ok(fragments) = fragments else {
                    self.counters.out_state_mode_error += 1;
                    continue;
                };
                self.backlog.extend(fragments.into_iter().map(|fragment| (flow, fragment)));
            }
        }
        drop(framing);
        self.drain_backlog(now);
    }

    /// Hands wrapped packets to the device as long as it has room.
    pub(super) fn drain_backlog(&mut self, now: Instant) {
        while let Some((flow, _)) = self.backlog.front() {
            if self.inner.room(flow) == 0 {
                return;
            }
            let Some((_, packet)) = self.backlog.pop_front() else { return };
            // A packet the device does not take is a packet lost on its way; it has counted it.
            let _lost_if_dropped = self.inner.transmit(now, packet, &offload_api::NoRecords);
        }
    }

    pub(super) fn take_numbers(&mut self, id: SaId, packets: u32) {
        if let Some(Sa { sequence: Sequence::Send(numbers), .. }) = self.sad.find_mut(id) {
            numbers.take(packets);
        }
    }

    fn count_software(&mut self, packets: u32, bytes: u64) {
        self.counters.out_software += u64::from(packets);
        self.counters.out_software_bytes += bytes;
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

    fn refuse(&mut self, counter: impl FnOnce(&mut crate::IpsecCounters) -> &mut u64) -> Sent {
        *counter(&mut self.counters) += 1;
        Sent::Dropped(DropReason::Policy)
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
        checksum::fill_ipv4_header(&mut frame[protected_at..]);
    }
    checksum::fill_transport(&mut frame[transport..], view.protocol, view.source, view.destination);
}

/// The packet with outer headers, ESP header and IV in front of what is to be encrypted: what crypto offload takes.
fn with_esp_header(packet: &TxPacket, outer: &Outer, number: u64, sa: &Sa) -> TxPacket {
    let _framing = cost::work(Work::Framing);
    let mut front = BytesMut::with_capacity(ETHERNET + outer.len() + esp::ESP_AND_IV);
    outer.write_headers(&packet.header, &mut front);
    let esp = ETHERNET + outer.len();
    front[esp..esp + 4].copy_from_slice(&sa.params.spi.to_be_bytes());
    front[esp + 4..esp + 8].copy_from_slice(&(number as u32).to_be_bytes());
    front[esp + 8..esp + 16].copy_from_slice(&number.to_be_bytes());
    let mut header: offload_api::Header = front[..].into();
    header.extend_from_slice(&packet.header[ETHERNET + outer.taken()..]);
    TxPacket { header, fragments: packet.fragments.clone(), ask: packet.ask }
}

/// Moves as much of the payload of a packet of one piece into its header as policies look at.
fn show_headers(packet: &mut TxPacket) {
    while packet.ask.mss.is_none() && packet.header.len() < HEADERS_SHOWN && !packet.fragments.is_empty() {
        let wanted = HEADERS_SHOWN - packet.header.len();
        let first = &mut packet.fragments[0];
        let taken = first.split_to(wanted.min(first.len()));
        if first.is_empty() {
            packet.fragments.remove(0);
        }
        packet.header.extend_from_slice(&taken);
    }
}

/// What a device is asked about for packets of these addresses.
pub(super) fn flow_of(packet: &Packet) -> FlowKey {
    let (from, to) = packet.ports.unwrap_or_default();
    FlowKey {
        protocol: match packet.protocol {
            PROTOCOL_TCP => Protocol::Tcp,
            _ => Protocol::Udp,
        },
        local: SocketAddr::new(packet.source, from),
        remote: SocketAddr::new(packet.destination, to),
    }
}

const ARP: [u8; 2] = [0x08, 0x06];
/// As much of a packet as policies may look at: Ethernet, IPv6 with some extensions, ports.
const HEADERS_SHOWN: usize = ETHERNET + 40 + 24 + 8;
/// Bytes of what every transport's header has of ports.
const PORTS: usize = 4;
/// More headers than this are not given to a device.
const LONGEST_HEADERS: usize = 512;
/// The most payload that is cut here, where the device does not see what it would have to cut.
const SOFTWARE_TSO_BYTES: u32 = 64 * 1024 - 1;
