//! The ESP receive engine (RFC 4303 3.4).
//!
//! A packet with any failed check is passed to the host unchanged. The engine drops packets only for violations of an
//! SA's own rules in packet offload: a replay, a used-up SA, or a packet of a kind that the SA does not carry.

use super::{EspCounters, EspEngine, SaState, SequenceNumbers};
use bytes::BytesMut;
use nic_engine::InnerPosition;
use nic_engine::{Context, FrameLookup, OpenedFrame};
use offload_api::KeyBytes;
use offload_api::{EspMode, EspVerdict, PacketMark};
use offload_esp::{ESP_AND_IV, ETHERNET, EspAt, UDP_ENCAPSULATION_PORT, UnwrapError, unwrap};
use offload_formats::checksum::is_ipv4_header_right;
use offload_formats::protocol;
use offload_formats::{HeaderKind, Headers, IpHeaders};

/// The reason for a drop.
enum ReceiveDrop {
    /// The number was seen before, or is too old.
    Replay,
    /// The SA is used up.
    Expired,
    /// The packet is authentic, but not of the kind that the SA carries.
    Mode,
    /// A dummy packet.
    Dummy,
}

impl ReceiveDrop {
    fn dropped(self, counters: &mut EspCounters) -> OpenedFrame {
        counters.ipsec_rx_drop_pkts += 1;
        *match self {
            ReceiveDrop::Replay => &mut counters.xfrm_in_state_seq_error,
            ReceiveDrop::Expired => &mut counters.xfrm_in_state_expired,
            ReceiveDrop::Mode => &mut counters.xfrm_in_state_mode_error,
            ReceiveDrop::Dummy => &mut counters.ipsec_rx_dummy,
        } += 1;
        OpenedFrame::Dropped
    }
}

/// Finds the steering key of the SA in a frame.
pub(super) fn look(frame: &[u8], headers: &Headers) -> FrameLookup<EspAt> {
    // The common case first: neither ESP nor a fragment.
    if headers.find(HeaderKind::Esp).is_none() && !headers.is_fragment() {
        return FrameLookup::Nothing;
    }
    if let Some(at) = EspAt::from_headers(headers, frame) {
        return FrameLookup::Key(KeyBytes::from_addresses(at.spi, at.ip.source, at.ip.destination), at);
    }
    let is_untagged = headers.network().is_some_and(|(_, at)| at == ETHERNET);
    match headers.upper().filter(|_| headers.is_fragment() && is_untagged).map(|(protocol, _)| protocol) {
        Some(protocol::ESP) => FrameLookup::Fragment,
        // The UDP datagram may contain ESP.
        Some(protocol::UDP) => FrameLookup::PerhapsFragment,
        _ => FrameLookup::Nothing,
    }
}

/// Returns the steering key of the first fragment of an ESP packet, with or without UDP.
pub(super) fn key_of_first(packet: &[u8], headers: &IpHeaders) -> Option<KeyBytes> {
    let upper = packet.get(headers.upper..)?;
    let esp = match headers.protocol {
        protocol::ESP => upper,
        protocol::UDP if upper.get(2..4)? == UDP_ENCAPSULATION_PORT.to_be_bytes() => upper.get(UDP_BYTES..)?,
        _ => return None,
    };
    let spi = esp.first_chunk().copied().map(u32::from_be_bytes)?;
    Some(KeyBytes::from_addresses(spi, headers.source(packet), headers.destination(packet)))
}

/// Processes a frame of an SA.
pub(super) fn open(
    engine: &mut EspEngine,
    mut sa: Context<'_, EspEngine>,
    data: &[u8],
    at: &EspAt,
    counters: &mut EspCounters,
) -> OpenedFrame {
    let Context { handle, state, held } = &mut sa;
    let (context, whole) = (*handle, held.is_whole());
    let SaState { numbers, meter, .. } = &mut **state;
    let window = match numbers {
        SequenceNumbers::Receive(window) => Some(window),
        SequenceNumbers::ReceiveWide => held.wide.as_mut(),
        SequenceNumbers::Send(_) => None,
    };
    let Some(window) = window else { return OpenedFrame::Untouched(PacketMark::None) };
    // RFC 3948: an SA with UDP encapsulation accepts no bare ESP, and the reverse.
    if held.params.encapsulation.is_some() != at.udp {
        return OpenedFrame::Untouched(PacketMark::None);
    }
    let number = if whole { window.check(at.low) } else { window.whole(at.low) };
    let number = match number {
        Ok(number) if !whole || meter.allows(1) => number,
        Ok(_) => return ReceiveDrop::Expired.dropped(counters),
        Err(_) if whole => return ReceiveDrop::Replay.dropped(counters),
        Err(_) => return OpenedFrame::Untouched(PacketMark::None),
    };
    // RFC 1122 3.2.1.2. Unwrapping would replace the wrong checksum by a correct one.
    if !at.ip.is_ipv6() && !is_ipv4_header_right(&data[ETHERNET..]) {
        return OpenedFrame::Untouched(PacketMark::None);
    }
    let mut frame = BytesMut::from(data);
    // Decryption works on a copy, so that a packet with a wrong ICV stays unchanged.
    let Ok(trailer) = held.cipher.open(&mut frame, at, number) else {
        counters.ipsec_rx_auth_fail += 1;
        return OpenedFrame::Untouched(PacketMark::Failed { context });
    };
    // The window moves only now: an unauthenticated packet must not shift it.
    let before = window.top();
    let new = window.accept(number);
    let mode = held.params.mode;
    let opened = if whole {
        let unwrapped = unwrap(frame, at, &trailer, &held.params);
        // Counted before the checks of the inner packet, because its number is used either way.
        engine.spend(&mut sa, before, number, trailer.payload as u64);
        let inner = match unwrapped {
            Ok(inner) => inner,
            Err(UnwrapError::Dummy) => return ReceiveDrop::Dummy.dropped(counters),
            Err(_) => return ReceiveDrop::Mode.dropped(counters),
        };
        let mark = PacketMark::Opened { context, number, packets: 1, code: EspVerdict::UNWRAPPED };
        // Behind a NAT the inner checksum covers the original addresses; ESP's authentication replaces it (RFC 3948
        // 3.1.2).
        OpenedFrame::Another { inner, mark, vouched: at.udp && mode == EspMode::Transport }
    } else {
        let in_front = match mode {
            EspMode::Transport => ETHERNET + at.ip.header,
            EspMode::Tunnel => ETHERNET,
        };
        let within = InnerPosition { headers: at.esp, opened: at.esp + ESP_AND_IV, in_front };
        let inner = unwrap(frame.clone(), at, &trailer, &held.params).ok().map(|inner| (inner, within));
        let mark = PacketMark::Opened { context, number, packets: 1, code: 0 };
        OpenedFrame::InPlace { frame, inner, mark, new }
    };
    counters.ipsec_rx_pkts += 1;
    counters.ipsec_rx_bytes += data.len() as u64;
    opened
}

const UDP_BYTES: usize = 8;
