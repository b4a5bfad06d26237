//! Opening packets (RFC 9001 5.3, 5.4.2, 6.3).
//!
//! All or nothing, so that nothing can be told from how long it took which part was wrong (RFC 9001 9.5): a packet that was
//! not opened goes up as it came. A stateless reset is one of those, and is known by its last bytes.

use super::{Quic, QuicCounters, phase_of};
use bytes::BytesMut;
use nic_engine::{Context, OpenedFrame};
use offload_api::quic::quic_key;
use offload_api::{Direction, KeyBytes, PacketMark, Protocol};
use offload_formats::quic::ShortHeader;
use offload_formats::{Headers, TransportHeader};
use offload_quic::UnmaskedHeader;

/// Where a packet with a short header is in its frame.
#[derive(Debug)]
pub(crate) struct Seen {
    key: KeyBytes,
    transport: TransportHeader,
    /// Where the number starts, in the packet.
    number_at: usize,
}

impl Quic {
    /// A packet with a short header at the start of a datagram to a port with QUIC. Behind one with a long header the host
    /// opens it: that is seen at handshakes only.
    pub(super) fn find(&self, frame: &[u8], headers: &Headers) -> Option<(KeyBytes, Seen)> {
        if self.ports.is_empty() {
            return None;
        }
        let transport = headers.transport().filter(|transport| transport.protocol == Protocol::Udp)?;
        let port = u16::from_be_bytes(*frame.get(transport.header + 2..)?.first_chunk()?);
        let packet = &frame[transport.payload..transport.end];
        // RFC 9287: the fixed bit may be anything.
        let header = ShortHeader::parse_greased(packet, (*self.ports.get(&port)?).into())?;
        let key = quic_key(port, header.destination(packet));
        Some((key, Seen { key, transport, number_at: header.number_at }))
    }
}

/// Works on a packet of a connection.
pub(super) fn open(context: Context<'_, Quic>, frame: &[u8], seen: &Seen, counters: &mut QuicCounters) -> OpenedFrame {
    let Context { handle, state, held } = context;
    let (Direction::Receive, Some(&path)) = (state.direction, held.cids.get(&seen.key)) else {
        return OpenedFrame::Untouched(PacketMark::None);
    };
    // What is made of it has checksums that nobody looks at.
    if seen.transport.are_checksums_right(frame) != Some(true) {
        return OpenedFrame::Untouched(PacketMark::None);
    }
    let at = seen.transport.payload..seen.transport.end;
    let Ok(header) = UnmaskedHeader::read(&held.header, &frame[at.clone()], seen.number_at) else {
        return OpenedFrame::Untouched(PacketMark::None);
    };
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
    state.paths.use_up(path, number);
    counters.quic_rx_pkts += 1;
    counters.quic_rx_bytes += at.len() as u64;
    let mark = PacketMark::Opened { context: handle, number, packets: 1, code: generation.number as u8 };
    OpenedFrame::Another { inner, mark, vouched: true }
}
