//! From the stack to the device.
//!
//! Two kinds of fragments wait for the rest of their packet: fragments without the fields that policies match, and
//! fragments for a transport-mode SA. The policy then decides about the whole packet, which is fragmented again if
//! necessary (RFC 4301 7).

use super::fragments::FragmentOrigin;
use super::{PolicyDecision, SaWorker, SecureDevice};
use crate::keying::SaId;
use crate::sad::Sa;
use bytes::BytesMut;
use core::net::SocketAddr;
use offload_api::fragmentation::fragment_own;
use offload_api::ipsec::Packet;
use offload_api::{
    Action, Direction, DontFragment, DropReason, EspMode, FlowKey, Layer, Lookup, PathCaps, Protection, Protocol,
    RecordSource, SaParams, TransmitResult, TxAsk, TxPacket,
};
use offload_base::Instant;
use offload_esp::{ETHERNET, checksum};
use offload_formats::IpHeaders;
use offload_formats::IpView;
use offload_formats::frame::ip_packet;
use offload_formats::protocol;
use offload_formats::reassembly::FragmentOutcome;

impl SecureDevice {
    /// Returns the path of a flow that a policy protects.
    pub(super) fn protected_path(&self, flow: &FlowKey, sa: Option<SaId>, caps: PathCaps) -> PathCaps {
        let ipv6 = flow.local.is_ipv6();
        let sa = sa.and_then(|id| self.sas.find(id));
        // Without an SA, nothing is sent. When an SA is added, the epoch advances and the stack asks again.
        let Some(sa) = sa else { return caps };
        let mtu = sa.plain_mtu(ipv6, sa.outer_mtu(caps.mtu));
        match sa.by() {
            SaWorker::Software => PathCaps {
                mtu,
                checksum: true,
                tso_max_bytes: SOFTWARE_TSO_BYTES,
                udp_segmentation: true,
                pacing: false,
                ..caps
            },
            // The ESP wrapper writes a 16-bit length, so the device cannot cut a larger packet.
            SaWorker::Device(..) => {
                PathCaps { mtu, pacing: false, tso_max_bytes: caps.tso_max_bytes.min(DEVICE_TSO_BYTES), ..caps }
            }
        }
    }

    /// Tests whether the device itself segments and protects a large packet.
    pub(super) fn is_cut_by_device(&self, sa: Option<SaId>) -> bool {
        let sa = sa.and_then(|id| self.sas.find(id));
        sa.is_some_and(|sa| sa.by() != SaWorker::Software)
    }

    /// Applies its policy to a packet.
    pub(super) fn send(
        &mut self,
        now: Instant,
        queue: usize,
        mut packet: TxPacket,
        source: &dyn RecordSource,
    ) -> TransmitResult {
        let shows = core::mem::take(&mut packet.ask.shows);
        let ether_type = packet.header.get(12..14).map(|bytes| [bytes[0], bytes[1]]);
        if ether_type == Some(ARP) {
            return self.queues[queue].inner.transmit(now, packet, source);
        }
        // Above this layer, no component may have a context that works on whole packets. If ESP were added first, by
        // software or by an SA's context, the other work would be skipped.
        if packet.ask.packet.is_some() {
            self.counters.out_asks += 1;
            return TransmitResult::Dropped(DropReason::Unsupported);
        }
        show_headers(&mut packet);
        let Some(view) = ip_packet(&packet.header).and_then(IpView::parse_headers) else {
            return self.refuse(|counters| &mut counters.out_error);
        };
        if view.is_neighbour_discovery(&packet.header[ETHERNET..]) {
            return self.queues[queue].inner.transmit(now, packet, source);
        }
        let selectors = Packet::from_view(&view, &packet.header[ETHERNET..]);
        // The fragment may lack the ports that a policy needs, so the decision waits for the whole packet.
        if view.fragment && self.policies.needs_whole_packet(Direction::Transmit, &view, &selectors) {
            return self.gather(now, queue, &packet, shows);
        }
        let decision = self.decide(&selectors);
        // The packet may quote a packet that arrived protected, which must not leave with less protection.
        if !self.protects_enough(&decision, shows) {
            return self.refuse(|counters| &mut counters.out_shown);
        }
        match decision.action {
            Some(Action::Bypass) => self.queues[queue].inner.transmit(now, packet, source),
            Some(Action::Protect(template)) => {
                if packet.ask.has_context() {
                    return self.send_back(&packet, source);
                }
                // RFC 4301 7.1: transport mode applies to whole packets only.
                if view.fragment && template.mode == EspMode::Transport {
                    return self.gather(now, queue, &packet, shows);
                }
                self.protect_whole(now, packet, view, (&decision, &selectors), None)
            }
            Some(Action::Discard) | None => self.refuse(|counters| &mut counters.out_policy_block),
        }
    }

    /// Tests whether a packet leaves with at least the protection of the packet that it quotes. Without an SA the
    /// packet does not leave at all.
    fn protects_enough(&self, decision: &PolicyDecision, shows: Protection) -> bool {
        shows == Protection::None
            || match (decision.action, decision.sa.and_then(|id| self.sas.find(id))) {
                (Some(Action::Bypass), _) => false,
                (Some(Action::Protect(_)), Some(sa)) => sa.params.key.suite().protection() >= shows,
                (Some(Action::Protect(_) | Action::Discard) | None, _) => true,
            }
    }

    /// Protects a packet that its stack has not fragmented, and fragments it if necessary. `identification` is the IP
    /// identification of a packet reassembled from the stack's fragments.
    fn protect_whole(
        &mut self,
        now: Instant,
        packet: TxPacket,
        view: IpView,
        (decision, selectors): (&PolicyDecision, &Packet),
        identification: Option<u32>,
    ) -> TransmitResult {
        // IPv6 packets may be fragmented here too, because this host is their source. TCP segments are excluded,
        // because TCP adapts their size itself.
        let may_cut = match view.is_ipv6() {
            true => view.protocol != protocol::TCP || view.fragment || identification.is_some(),
            false => !view.dont_fragment,
        };
        let view = IpView { dont_fragment: !may_cut, ..view };
        let cut_before = |sa: &&Sa| is_cut_before(&sa.params, &view, identification.is_some());
        let sa = decision.sa.filter(|_| may_cut && packet.ask.mss.is_none()).and_then(|id| self.sas.find(id));
        let Some(sa) = sa.filter(cut_before) else {
            return self.protect(now, packet, view, decision, selectors);
        };
        // The inner packet is fragmented only if it does not fit after wrapping.
        let mtu = self.queues[sa.queue].inner.path(&flow_of(selectors)).mtu;
        let most = sa.plain_mtu(view.is_ipv6(), sa.outer_mtu(mtu));
        if packet.header.len() + packet.payload_len() - ETHERNET <= usize::from(most) {
            return self.protect(now, packet, view, decision, selectors);
        }
        let identification = identification.unwrap_or_else(|| self.wrapper.next_identification());
        let Some(pieces) = self.cut_again(completed(packet, &view), most, identification) else {
            return TransmitResult::Dropped(DropReason::Policy);
        };
        let mut sent = TransmitResult::Posted;
        for piece in pieces {
            let Some(view) = IpView::parse_headers(&piece.header[ETHERNET..]) else { continue };
            // Every fragment uses the whole packet's SA, because a fragment alone may not show the selectors.
            match self.protect(now, piece, view, decision, selectors) {
                TransmitResult::Posted => {}
                dropped => sent = dropped,
            }
        }
        sent
    }

    /// Rejects a packet prepared for stream contexts, because its flow is under ESP now. The upper layer must seal the
    /// content in software.
    fn send_back(&mut self, packet: &TxPacket, source: &dyn RecordSource) -> TransmitResult {
        // The lowest layer's unit is returned: sealing that unit in software also seals the inner layers.
        let mut lowest = Layer::ALL.into_iter().zip(packet.ask.streams);
        let lowest = lowest.find_map(|(layer, ask)| Some((layer, ask?.offset)));
        match lowest.map(|(layer, offset)| source.unit_at(layer, offset)) {
            Some(Lookup::In(unit)) => TransmitResult::NeedsSoftware(unit),
            _ => self.refuse(|counters| &mut counters.out_policy_block),
        }
    }

    /// Keeps a fragment until its packet is whole.
    fn gather(&mut self, now: Instant, queue: usize, packet: &TxPacket, shows: Protection) -> TransmitResult {
        let mut frame = BytesMut::with_capacity(packet.header.len() + packet.payload_len());
        frame.extend_from_slice(&packet.header);
        packet.fragments.iter().for_each(|piece| frame.extend_from_slice(piece));
        let fragment = IpHeaders::walk(&frame[ETHERNET..]).ok().and_then(|headers| headers.fragment);
        let identification = fragment.map_or(0, |fragment| fragment.identification);
        match self.fragments.insert(now, FragmentOrigin::Stack(queue, shows), &frame, ETHERNET) {
            FragmentOutcome::Whole(whole) => self.send_gathered(now, queue, whole, identification, shows),
            FragmentOutcome::Kept | FragmentOutcome::Duplicate => TransmitResult::Posted,
            FragmentOutcome::Refused(_) => self.refuse(|counters| &mut counters.out_error),
        }
    }

    /// Applies the policy to a packet reassembled from the stack's fragments.
    fn send_gathered(
        &mut self,
        now: Instant,
        queue: usize,
        mut whole: BytesMut,
        identification: u32,
        shows: Protection,
    ) -> TransmitResult {
        let Some(view) = ip_packet(&whole).and_then(IpView::parse).filter(|view| !view.fragment) else {
            return self.refuse(|counters| &mut counters.out_error);
        };
        let selectors = Packet::from_view(&view, &whole[ETHERNET..]);
        let shown = HEADERS_SHOWN.max(ETHERNET + view.header + PORTS).min(whole.len());
        let header = whole.split_to(shown)[..].into();
        let fragments = [whole.freeze()].into_iter().collect();
        let packet = TxPacket { header, fragments, ask: TxAsk::default() };
        // The policy of the whole may be stricter than any fragment showed.
        let flow = flow_of(&selectors);
        let decision = self.decide(&selectors);
        if !self.protects_enough(&decision, shows) {
            return self.refuse(|counters| &mut counters.out_shown);
        }
        let mtu = self.queues[self.home(decision.sa).unwrap_or(queue)].inner.path(&flow).mtu;
        match decision.action {
            // The stack's fragments were sized for this path, but the whole packet may exceed it.
            Some(Action::Bypass) => {
                let Some(pieces) = self.cut_again(packet, mtu, identification) else {
                    return TransmitResult::Dropped(DropReason::Policy);
                };
                pieces.into_iter().for_each(|piece| self.queues[queue].push(flow, piece));
                self.drain_backlog(now, queue);
                TransmitResult::Posted
            }
            Some(Action::Protect(_)) => {
                let way = (&decision, &selectors);
                self.protect_whole(now, packet, view, way, Some(identification))
            }
            Some(Action::Discard) | None => self.refuse(|counters| &mut counters.out_policy_block),
        }
    }

    /// Splits a reassembled packet for a path of `mtu` bytes, if necessary.
    fn cut_again(&mut self, packet: TxPacket, mtu: u16, identification: u32) -> Option<Vec<TxPacket>> {
        if packet.header.len() + packet.payload_len() - ETHERNET <= usize::from(mtu) {
            return Some(vec![packet]);
        }
        let pieces = fragment_own(packet, ETHERNET, mtu, identification).ok();
        self.counters.out_error += u64::from(pieces.is_none());
        pieces
    }

    pub(super) fn refuse(&mut self, counter: impl FnOnce(&mut crate::IpsecCounters) -> &mut u64) -> TransmitResult {
        *counter(&mut self.counters) += 1;
        TransmitResult::Dropped(DropReason::Policy)
    }
}

/// Tests whether a packet that does not fit into its tunnel is fragmented before ESP instead of after it (RFC 4301 8.1,
/// RFC 4303 3.3.4). `again`: the stack had fragmented the packet already.
fn is_cut_before(sa: &SaParams, view: &IpView, again: bool) -> bool {
    let outer_may_be_cut = sa.source.is_ipv6() || sa.dont_fragment != DontFragment::Set;
    sa.mode == EspMode::Tunnel && (again || view.is_ipv6() || !outer_may_be_cut)
}

/// Fills in the packet's checksums and clears its requests to the device.
fn completed(packet: TxPacket, view: &IpView) -> TxPacket {
    if !packet.ask.checksum {
        return TxPacket { ask: TxAsk::default(), ..packet };
    }
    let mut frame = BytesMut::with_capacity(packet.header.len() + packet.payload_len());
    frame.extend_from_slice(&packet.header);
    packet.fragments.iter().for_each(|piece| frame.extend_from_slice(piece));
    let (ip, transport) = frame[ETHERNET..].split_at_mut(view.header);
    if !view.is_ipv6() {
        offload_formats::checksum::fill_ipv4_header(ip);
    }
    checksum::fill_transport(transport, view.protocol, view.source, view.destination);
    let header = frame.split_to(packet.header.len())[..].into();
    TxPacket { header, fragments: [frame.freeze()].into_iter().collect(), ask: TxAsk::default() }
}

/// Moves payload from the first fragment into the header, so that the header contains all fields that policies match.
/// Packets for a context are left unchanged, because their layout is fixed. TCP segments for TSO always have
/// complete headers.
fn show_headers(packet: &mut TxPacket) {
    let is_for_a_context = packet.ask.has_context();
    while packet.ask.mss.is_none()
        && !is_for_a_context
        && packet.header.len() < HEADERS_SHOWN
        && !packet.fragments.is_empty()
    {
        let wanted = HEADERS_SHOWN - packet.header.len();
        let first = &mut packet.fragments[0];
        let taken = first.split_to(wanted.min(first.len()));
        if first.is_empty() {
            packet.fragments.remove(0);
        }
        packet.header.extend_from_slice(&taken);
    }
}

/// Returns the flow key for packets with these addresses and ports.
pub(super) fn flow_of(packet: &Packet) -> FlowKey {
    let (from, to) = packet.ports.unwrap_or_default();
    FlowKey {
        protocol: match packet.protocol {
            protocol::TCP => Protocol::Tcp,
            _ => Protocol::Udp,
        },
        local: SocketAddr::new(packet.source, from),
        remote: SocketAddr::new(packet.destination, to),
    }
}

const ARP: [u8; 2] = [0x08, 0x06];
/// Bytes of a packet that policies may match: Ethernet, IPv6 with some extension headers, ports.
const HEADERS_SHOWN: usize = ETHERNET + 40 + 24 + 8;
/// Bytes of the two port fields, with which every transport header starts.
const PORTS: usize = 4;
/// Largest payload segmented in software, when the device cannot see the plain packet.
const SOFTWARE_TSO_BYTES: u32 = 64 * 1024 - 1;
/// Largest packet that the device both segments and wraps.
const DEVICE_TSO_BYTES: u32 = 64 * 1024;
