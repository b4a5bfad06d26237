//! The ESP receive engine (RFC 4303 3.4).
//!
//! All or nothing: a packet in which anything failed is handed up as it was on the wire. Only what an SA's own rules
//! forbid in packet offload (a replay, a dead SA, something that is not one of its packets) goes no further.

use super::{Numbers, SaState, Sas};
use crate::engine::Context;
use crate::engine::coalesce::Within;
use bytes::BytesMut;
use esp::{ETHERNET, EspAt, IpView, PROTOCOL_ESP, PROTOCOL_UDP, UnwrapError, unwrap};
use offload_api::{EspMode, EspVerdict, PacketMark, engines};
use offload_formats::checksum::is_ipv4_header_right;
use offload_formats::frame::{TCP, ip_packet};

/// What became of a received frame.
#[derive(Debug)]
pub(crate) enum Received {
    /// Nothing: it is as it was.
    Untouched(PacketMark),
    /// Nothing, for it is a part of a packet of UDP, in which ESP may be.
    UdpFragment,
    /// Its payload is plain; all the rest is there still. And the packet in it, as it would be without ESP.
    /// `new`: as far as the device can tell; the host, whose window it is, refuses what is not.
    Decrypted { frame: BytesMut, inner: Option<(BytesMut, Within)>, verdict: PacketMark, new: bool },
    /// The packet that was in it. `translated`: an address translator may have changed addresses under its checksum.
    Unwrapped { inner: BytesMut, verdict: PacketMark, translated: bool },
    /// It goes no further.
    Dropped(Why),
}

/// Why a packet goes no further.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Why {
    /// It was there before, or is too old.
    Replay,
    /// The SA is used up.
    Expired,
    /// It is authentic, and nothing that its SA carries.
    Mode,
    /// It was made to be discarded.
    Dummy,
}

/// Works on a frame, if it is ESP of an SA that the device has.
pub(crate) fn receive(sas: &mut Sas<'_>, data: &[u8]) -> Received {
    if is_plain_tcp(data) {
        return Received::Untouched(PacketMark::None);
    }
    let Some(at) = EspAt::find(data) else {
        let view = ip_packet(data).and_then(IpView::parse).filter(|view| view.fragment);
        return match view.map(|view| view.protocol) {
            Some(PROTOCOL_ESP) => Received::Untouched(PacketMark::Fragment { engine: engines::ESP }),
            Some(PROTOCOL_UDP) => Received::UdpFragment,
            _ => Received::Untouched(PacketMark::None),
        };
    };
    let Some(handle) = sas.find_received(at.spi, at.ip.source, at.ip.destination) else {
        return Received::Untouched(PacketMark::None);
    };
    let Some(Context { state, held }) = sas.get(handle) else { return Received::Untouched(PacketMark::None) };
    let whole = held.is_whole();
    let SaState { numbers: Numbers::Receive(window), meter, .. } = state else {
        return Received::Untouched(PacketMark::None);
    };
    if held.params.encapsulation.is_some() != at.udp {
        return Received::Untouched(PacketMark::None);
    }
    let number = if whole { window.check(at.low) } else { window.whole(at.low) };
    let number = match number {
        Ok(number) if !whole || meter.allows(1) => number,
        Ok(_) => return Received::Dropped(Why::Expired),
        Err(_) if whole => return Received::Dropped(Why::Replay),
        Err(_) => return Received::Untouched(PacketMark::None),
    };
    // RFC 1122 3.2.1.2. What is made of it would have a checksum that is right.
    if !at.ip.is_ipv6() && !is_ipv4_header_right(&data[ETHERNET..]) {
        return Received::Untouched(PacketMark::None);
    }
    let mut frame = BytesMut::from(data);
    let Ok(trailer) = held.cipher.open(&mut frame, &at, number) else {
        return Received::Untouched(PacketMark::Failed { context: handle });
    };
    let before = window.top();
    let new = window.accept(number);
    if !whole {
        let inner = unwrap(frame.clone(), &at, &trailer, &held.params).ok();
        let inner = inner.map(|inner| (inner, Within::of(&at, held.params.mode)));
        let verdict = PacketMark::Opened { context: handle, number, packets: 1, code: 0 };
        return Received::Decrypted { frame, inner, verdict, new };
    }
    let translated = at.udp && held.params.mode == EspMode::Transport;
    let unwrapped = unwrap(frame, &at, &trailer, &held.params);
    sas.spend(handle, before, number, trailer.payload as u64);
    match unwrapped {
        Ok(inner) => {
            let verdict = PacketMark::Opened { context: handle, number, packets: 1, code: EspVerdict::UNWRAPPED };
            Received::Unwrapped { inner, verdict, translated }
        }
        Err(UnwrapError::Dummy) => Received::Dropped(Why::Dummy),
        Err(_) => Received::Dropped(Why::Mode),
    }
}

/// Whether TCP follows IP's header at once, as in most packets: then there is no need to look for ESP.
fn is_plain_tcp(frame: &[u8]) -> bool {
    let protocol = match frame.get(12..14) {
        Some([0x08, 0x00]) => frame.get(ETHERNET + 9),
        Some([0x86, 0xdd]) => frame.get(ETHERNET + 6),
        _ => None,
    };
    protocol == Some(&TCP)
}
