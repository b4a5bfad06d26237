//! The ESP transmit engine: plain segments in, ESP packets out (RFC 4303 3.3).
//!
//! In crypto offload the host has put the ESP header into the packet and counts numbers; in packet offload the device does
//! all of it. Either way a packet is cut first, as if it were to leave plain, and each segment wrapped then, under a number
//! of its own. So TSO and checksums are the same as without ESP.

use super::{Esp, EspCounters, Numbers, SaState};
use bytes::BytesMut;
use nic_engine::Context;
use offload_api::ipsec::Packet;
use offload_api::{Direction, EspAsk, EspMode, OffloadKind, PacketAsk, SaParams, TxPacket};
use offload_esp::{ESP_AND_IV, ETHERNET, OuterHeaders};
use offload_formats::IpView;
use offload_formats::frame::ip_packet;

/// What turns the segments of one packet into ESP.
#[derive(Debug)]
pub(crate) struct Wrapper {
    outer: OuterHeaders,
    /// The next one's number, if the host says.
    number: Option<u64>,
}

/// Why a packet cannot be protected; nothing of it leaves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum EspDrop {
    /// There is no SA for it.
    NoState,
    /// The SA's lifetime is over.
    Expired,
    /// The SA has no more numbers.
    Exhausted,
    /// Its headers make no sense.
    NotIp,
    /// It would be too long.
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

impl Wrapper {
    /// Looks up what `ask` means for `packet`, and takes the ESP header out of it if there is one.
    pub(super) fn new(
        engine: &Esp,
        params: &SaParams,
        ask: PacketAsk,
        packet: &mut TxPacket,
    ) -> Result<Wrapper, EspDrop> {
        match ask.into() {
            EspAsk::Finish { at, number, next_header, .. } => {
                let at = usize::from(at);
                let outer =
                    OuterHeaders::parse_headers(&packet.header, at, params, next_header).ok_or(EspDrop::NotIp)?;
                take_out(packet, at, &outer, params.mode).ok_or(EspDrop::NotIp)?;
                Ok(Wrapper { outer, number: Some(number) })
            }
            EspAsk::Protect { sa } => {
                let ip = ip_packet(&packet.header).ok_or(EspDrop::NotIp)?;
                let view = IpView::parse_headers(ip).ok_or(EspDrop::NotIp)?;
                // The host counts the numbers of the SA that it names: those of another would be used twice.
                let is_meant = view.may_hide_ports() || engine.find_policy(&Packet::from_view(&view, ip)) == Some(sa);
                if !is_meant || params.offload != OffloadKind::Packet {
                    return Err(EspDrop::NoState);
                }
                let outer = OuterHeaders::for_packet(params, ip).map_err(|_| EspDrop::NotIp)?;
                Ok(Wrapper { outer, number: None })
            }
        }
    }

    /// The same for a whole frame that is known to be of this SA.
    pub(super) fn of_frame(params: &SaParams, frame: &[u8]) -> Result<Wrapper, EspDrop> {
        let ip = ip_packet(frame).ok_or(EspDrop::NotIp)?;
        let carries = params.direction == Direction::Transmit && params.offload == OffloadKind::Packet;
        // In transport mode the outer header stays: it is to be the SA's, or the far end finds another SA, or none.
        let view = IpView::parse_headers(ip).ok_or(EspDrop::NotIp)?;
        let is_between =
            params.mode == EspMode::Tunnel || (view.source, view.destination) == (params.source, params.destination);
        if !carries || !is_between {
            return Err(EspDrop::NoState);
        }
        let outer = OuterHeaders::for_packet(params, ip).map_err(|_| EspDrop::NotIp)?;
        Ok(Wrapper { outer, number: None })
    }

    /// Wraps the next segment into a frame of at most `longest` bytes. A number is used only if that comes about.
    pub(super) fn wrap(
        &mut self,
        engine: &mut Esp,
        mut sa: Context<'_, Esp>,
        plain: &[u8],
        longest: usize,
    ) -> Result<BytesMut, EspDrop> {
        let total = IpView::parse(&plain[ETHERNET..]).ok_or(EspDrop::NotIp)?.total;
        let wrapped = ETHERNET + self.outer.wrapped_len(total);
        if wrapped > longest {
            return Err(EspDrop::Trailer);
        }
        let mut frame = BytesMut::with_capacity(wrapped);
        if let Some(number) = self.number {
            self.outer.wrap(&sa.held.cipher, plain, number, &mut frame);
            self.number = number.checked_add(1);
            return Ok(frame);
        }
        let SaState { numbers: Numbers::Send(numbers), meter, .. } = &mut *sa.state else {
            return Err(EspDrop::NoState);
        };
        if !meter.allows(1) {
            return Err(EspDrop::Expired);
        }
        let Some(number) = numbers.peek(1) else {
            engine.note_exhausted(&mut sa);
            return Err(EspDrop::Exhausted);
        };
        numbers.take(1);
        self.outer.wrap(&sa.held.cipher, plain, number, &mut frame);
        engine.spend(&mut sa, number - 1, number, (total - self.outer.taken()) as u64);
        Ok(frame)
    }
}

/// Makes of headers with ESP in them, whose header starts at `at`, those of the packet that it protects.
fn take_out(packet: &mut TxPacket, at: usize, outer: &OuterHeaders, mode: EspMode) -> Option<()> {
    let inner = packet.header.get(at + ESP_AND_IV..)?;
    let mut plain = offload_api::Header::new();
    match mode {
        EspMode::Transport => {
            plain.extend_from_slice(&packet.header[..ETHERNET + outer.taken()]);
            plain[ETHERNET + outer.protocol_at()] = outer.next_header();
        }
        EspMode::Tunnel => {
            plain.extend_from_slice(&packet.header[..ETHERNET - 2]);
            plain.extend_from_slice(if inner.first()? >> 4 == 6 { &[0x86, 0xdd] } else { &[0x08, 0x00] });
        }
    }
    plain.extend_from_slice(inner);
    packet.header = plain;
    Some(())
}
