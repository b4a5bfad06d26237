//! Opening packets (RFC 9001 5.3, 5.4.2, 6.3).
//!
//! A packet that cannot be opened is passed to the host unchanged, whatever the reason, so that the time reveals
//! nothing about the wrong part (RFC 9001 9.5). A stateless reset is such a packet; the host recognizes it by its last
//! bytes.

use super::{QuicCounters, QuicEngine, phase_of};
use bytes::BytesMut;
use nic_engine::{Context, OpenedFrame};
use offload_api::quic::quic_key;
use offload_api::{Direction, KeyBytes, PacketMark, Protocol};
use offload_formats::quic::ShortHeader;
use offload_formats::{Headers, TransportHeader};
use offload_quic::UnmaskedHeader;

/// A packet with a short header in a frame.
#[derive(Debug)]
pub(crate) struct Seen {
    key: KeyBytes,
    transport: TransportHeader,
    /// Offset of the packet number in the packet.
    number_at: usize,
}

impl QuicEngine {
    /// Finds a packet with a short header at the start of a datagram to a QUIC port. Short headers after a long one
    /// occur only in handshakes and are left to the host.
    pub(super) fn find(&self, frame: &[u8], headers: &Headers) -> Option<(KeyBytes, Seen)> {
        if self.ports.is_empty() {
            return None;
        }
        let transport = headers.transport().filter(|transport| transport.protocol == Protocol::Udp)?;
        let port = u16::from_be_bytes(*frame.get(transport.header + 2..)?.first_chunk()?);
        let packet = &frame[transport.payload..transport.end];
        // RFC 9287 allows any value of the fixed bit.
        let header = ShortHeader::parse_greased(packet, (*self.ports.get(&port)?).into())?;
        let key = quic_key(port, header.destination(packet));
        Some((key, Seen { key, transport, number_at: header.number_at }))
    }
}

/// Works on a packet of a connection.
pub(super) fn open(
    context: Context<'_, QuicEngine>,
    frame: &[u8],
    seen: &Seen,
    counters: &mut QuicCounters,
) -> OpenedFrame {
    let Context { handle, state, held } = context;
    let (Direction::Receive, Some(&path)) = (state.direction, held.cids.get(&seen.key)) else {
        return OpenedFrame::Untouched(PacketMark::None);
    };
    // The opened packet is not checked again, so wrong checksums must be caught here.
    if seen.transport.are_checksums_right(frame) != Some(true) {
        return OpenedFrame::Untouched(PacketMark::None);
    }
    let at = seen.transport.payload..seen.transport.end;
    let Ok(header) = UnmaskedHeader::read(&held.header, &frame[at.clone()], seen.number_at) else {
        return OpenedFrame::Untouched(PacketMark::None);
    };
    // There is one key per phase: the current generation and its predecessor or successor.
    let Some(generation) = &held.keys[phase_of(header.key_phase().into())] else {
        counters.quic_rx_no_key += 1;
        return OpenedFrame::Untouched(PacketMark::None);
    };
    let largest = state.paths.next(path).and_then(|next| next.checked_sub(1));
    let number = header.number(largest);
    let mut inner = BytesMut::from(frame);
    if header.open(&generation.key, &mut inner[at.clone()], path, number).is_err() {
        counters.quic_rx_auth_fail += 1;
        return OpenedFrame::Untouched(PacketMark::Failed { context: handle });
    }
    // Only a verified number may move the path forward: a forged one would break the expansion of later numbers.
    state.paths.use_up(path, number);
    counters.quic_rx_pkts += 1;
    counters.quic_rx_bytes += at.len() as u64;
    let mark = PacketMark::Opened { context: handle, number, packets: 1, code: generation.number as u8 };
    OpenedFrame::Another { inner, mark, vouched: true }
}
