//! The ESP transmit engine: plain segments in, ESP packets out (RFC 4303 3.3).
//!
//! In crypto offload the host has put the ESP header into the packet and counts numbers; in packet offload the device does
//! all of it. Either way a packet is cut first, as if it were to leave plain, and each segment wrapped then, under a number
//! of its own. So TSO and checksums are the same as without ESP.

use super::{Numbers, SaState, Sas};
use crate::engine::Context;
use bytes::BytesMut;
use esp::{ESP_AND_IV, ETHERNET, IpView, Outer};
use offload_api::{EspAsk, EspMode, Handle, TxPacket};
use offload_formats::frame::ip_packet;

/// What turns the segments of one packet into ESP.
#[derive(Debug)]
pub(crate) struct Wrapper {
    sa: Handle,
    outer: Outer,
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

impl Wrapper {
    /// Looks up what `ask` means for `packet`, and takes the ESP header out of it if there is one.
    pub(crate) fn new(sas: &mut Sas<'_>, ask: EspAsk, packet: &mut TxPacket) -> Result<Wrapper, EspDrop> {
        match ask {
            EspAsk::Finish { sa, at, number, next_header } => {
                let params = &sas.held(sa).ok_or(EspDrop::NoState)?.params;
                let at = usize::from(at);
                let outer = Outer::of_headers(&packet.header, at, params, next_header).ok_or(EspDrop::NotIp)?;
                take_out(packet, at, &outer, params.mode).ok_or(EspDrop::NotIp)?;
                Ok(Wrapper { sa, outer, number: Some(number) })
            }
            EspAsk::Protect { sa } => {
                let ip = ip_packet(&packet.header).ok_or(EspDrop::NotIp)?;
                let view = IpView::parse_headers(ip).ok_or(EspDrop::NotIp)?;
                // The host counts the numbers of the SA that it names: those of another would be used twice.
                if !view.may_hide_ports() && sas.find_policy(&view.selectors(ip)) != Some(sa) {
                    return Err(EspDrop::NoState);
                }
                let params = &sas.held(sa).filter(|sa| sa.is_whole()).ok_or(EspDrop::NoState)?.params;
                let outer = Outer::for_packet(params, ip).map_err(|_| EspDrop::NotIp)?;
                Ok(Wrapper { sa, outer, number: None })
            }
        }
    }

    /// Wraps the next segment into a frame of at most `longest` bytes. A number is used only if that comes about.
    pub(crate) fn wrap(&mut self, sas: &mut Sas<'_>, plain: &[u8], longest: usize) -> Result<BytesMut, EspDrop> {
        let total = IpView::parse(&plain[ETHERNET..]).ok_or(EspDrop::NotIp)?.total;
        let wrapped = ETHERNET + self.outer.wrapped_len(total);
        if wrapped > longest {
            return Err(EspDrop::Trailer);
        }
        let Context { state, held } = sas.get(self.sa).ok_or(EspDrop::NoState)?;
        let mut frame = BytesMut::with_capacity(wrapped);
        if let Some(number) = self.number {
            self.outer.wrap(&held.cipher, plain, number, &mut frame);
            self.number = number.checked_add(1);
            return Ok(frame);
        }
        let SaState { numbers: Numbers::Send(numbers), meter, .. } = state else { return Err(EspDrop::NoState) };
        if !meter.allows(1) {
            return Err(EspDrop::Expired);
        }
        let Some(number) = numbers.peek(1) else {
            sas.note_exhausted(self.sa);
            return Err(EspDrop::Exhausted);
        };
        numbers.take(1);
        self.outer.wrap(&held.cipher, plain, number, &mut frame);
        sas.spend(self.sa, number - 1, number, (total - self.outer.taken()) as u64);
        Ok(frame)
    }
}

/// Makes of headers with ESP in them, whose header starts at `at`, those of the packet that it protects.
fn take_out(packet: &mut TxPacket, at: usize, outer: &Outer, mode: EspMode) -> Option<()> {
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
