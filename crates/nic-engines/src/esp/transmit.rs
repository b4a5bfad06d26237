//! The ESP transmit engine: wraps plain segments into ESP packets (RFC 4303 3.3).
//!
//! In crypto offload the host adds the ESP header and assigns numbers; in packet offload the device does all of it. In
//! both cases the packet is first cut as if it left in plaintext, and then each segment is wrapped under its own
//! number. TSO and checksums therefore work as without ESP.

use super::{EspCounters, EspEngine, SaState, SequenceNumbers};
use bytes::BytesMut;
use nic_engine::Context;
use offload_api::ipsec::Packet;
use offload_api::{Direction, EspAsk, EspMode, OffloadKind, PacketAsk, SaParams, TxPacket};
use offload_esp::{ESP_AND_IV, ETHERNET, OuterHeaders};
use offload_formats::IpView;
use offload_formats::frame::ip_packet;

/// The state for wrapping the segments of one packet.
#[derive(Debug)]
pub(crate) struct EspWrapper {
    outer: OuterHeaders,
    /// Number of the next segment, if the host assigns numbers.
    number: Option<u64>,
}

/// The reason why a packet cannot be protected. No part of the packet leaves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum EspDrop {
    /// There is no SA for the packet.
    NoState,
    /// The SA's lifetime is over.
    Expired,
    /// The SA has no more numbers.
    Exhausted,
    /// The headers are malformed.
    NotIp,
    /// The frame would be too long.
    Trailer,
}

impl EspDrop {
    pub(super) fn count(self, counters: &mut EspCounters) {
        counters.ipsec_tx_drop_pkts += 1;
        *match self {
            EspDrop::NoState => &mut counters.xfrm_out_no_states,
            EspDrop::Expired => &mut counters.xfrm_out_state_expired,
            EspDrop::Exhausted => &mut counters.xfrm_out_state_seq_error,
            EspDrop::NotIp => &mut counters.ipsec_tx_drop_not_ip,
            EspDrop::Trailer => &mut counters.ipsec_tx_drop_trailer,
        } += 1;
        let has_no_state = matches!(self, EspDrop::NoState | EspDrop::Expired | EspDrop::Exhausted);
        counters.ipsec_tx_drop_no_state += u64::from(has_no_state);
    }
}

impl EspWrapper {
    /// Prepares the wrapping that `ask` requests, and removes an ESP header from the packet.
    pub(super) fn new(
        engine: &EspEngine,
        params: &SaParams,
        ask: PacketAsk,
        packet: &mut TxPacket,
    ) -> Result<EspWrapper, EspDrop> {
        match ask.into() {
            EspAsk::Finish { at, number, next_header, .. } => {
                let at = usize::from(at);
                let outer =
                    OuterHeaders::parse_headers(&packet.header, at, params, next_header).ok_or(EspDrop::NotIp)?;
                take_out(packet, at, &outer, params.mode).ok_or(EspDrop::NotIp)?;
                Ok(EspWrapper { outer, number: Some(number) })
            }
            EspAsk::Protect { sa } => {
                let ip = ip_packet(&packet.header).ok_or(EspDrop::NotIp)?;
                let view = IpView::parse_headers(ip).ok_or(EspDrop::NotIp)?;
                // The host counts the numbers of the SA that it names. Under another SA numbers could be used twice.
                let is_meant = view.may_hide_ports() || engine.find_policy(&Packet::from_view(&view, ip)) == Some(sa);
                if !is_meant || params.offload != OffloadKind::Packet {
                    return Err(EspDrop::NoState);
                }
                let outer = OuterHeaders::for_packet(params, ip).map_err(|_| EspDrop::NotIp)?;
                Ok(EspWrapper { outer, number: None })
            }
        }
    }

    /// Prepares the wrapping of a whole frame for this SA.
    pub(super) fn for_frame(params: &SaParams, frame: &[u8]) -> Result<EspWrapper, EspDrop> {
        let ip = ip_packet(frame).ok_or(EspDrop::NotIp)?;
        let carries = params.direction == Direction::Transmit && params.offload == OffloadKind::Packet;
        // Transport mode keeps the outer header. It must have the SA's addresses, because the receiver selects its SA
        // by them.
        let view = IpView::parse_headers(ip).ok_or(EspDrop::NotIp)?;
        let is_between =
            params.mode == EspMode::Tunnel || (view.source, view.destination) == (params.source, params.destination);
        if !carries || !is_between {
            return Err(EspDrop::NoState);
        }
        let outer = OuterHeaders::for_packet(params, ip).map_err(|_| EspDrop::NotIp)?;
        Ok(EspWrapper { outer, number: None })
    }

    /// Wraps the next segment into a frame of at most `longest` bytes. A number is used only on success.
    pub(super) fn wrap(
        &mut self,
        engine: &mut EspEngine,
        mut sa: Context<'_, EspEngine>,
        plain: &[u8],
        longest: usize,
    ) -> Result<BytesMut, EspDrop> {
        // Ethernet padding is not part of the packet and is not wrapped.
        let total = IpView::parse(&plain[ETHERNET..]).ok_or(EspDrop::NotIp)?.total;
        let wrapped = ETHERNET + self.outer.wrapped_len(total);
        if wrapped > longest {
            return Err(EspDrop::Trailer);
        }
        let mut frame = BytesMut::with_capacity(wrapped);
        // The host counted this number already, so neither the meter nor the device's counter changes.
        if let Some(number) = self.number {
            self.outer.wrap(&sa.held.cipher, plain, number, &mut frame);
            self.number = number.checked_add(1);
            return Ok(frame);
        }
        let SaState { numbers: SequenceNumbers::Send(numbers), meter, .. } = &mut *sa.state else {
            return Err(EspDrop::NoState);
        };
        if !meter.allows(1) {
            return Err(EspDrop::Expired);
        }
        let Some(number) = numbers.peek(1) else {
            engine.note_exhausted(&mut sa);
            return Err(EspDrop::Exhausted);
        };
        // The number is taken right before its use: a refused segment must not leave a gap or reuse a nonce.
        numbers.take(1);
        self.outer.wrap(&sa.held.cipher, plain, number, &mut frame);
        engine.spend(&mut sa, number - 1, number, (total - self.outer.taken()) as u64);
        Ok(frame)
    }
}

/// Removes the ESP header at `at` from the headers, which leaves those of the inner packet.
fn take_out(packet: &mut TxPacket, at: usize, outer: &OuterHeaders, mode: EspMode) -> Option<()> {
    let inner = packet.header.get(at + ESP_AND_IV..)?;
    let mut plain = offload_api::Header::new();
    match mode {
        EspMode::Transport => {
            plain.extend_from_slice(&packet.header[..ETHERNET + outer.taken()]);
            plain[ETHERNET + outer.protocol_at()] = outer.next_header();
        }
        EspMode::Tunnel => {
            // The EtherType must follow the IP version of the inner packet, which may differ from the tunnel's.
            plain.extend_from_slice(&packet.header[..ETHERNET - 2]);
            plain.extend_from_slice(if inner.first()? >> 4 == 6 { &[0x86, 0xdd] } else { &[0x08, 0x00] });
        }
    }
    plain.extend_from_slice(inner);
    packet.header = plain;
    Some(())
}
