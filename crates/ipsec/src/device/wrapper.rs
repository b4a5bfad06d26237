//! ESP wrapping in software.

use super::protect::ProtectionPlan;
use super::queues::DeviceQueue;
use super::segment::{PlainSegment, PlainSegments};
use crate::sad::Sa;
use bytes::{Buf, BytesMut};
use offload_api::fragmentation::fragment;
use offload_api::{TxAsk, TxPacket};
use offload_base::BufferPool;
use offload_base::cost::{self, WorkKind};
use offload_esp::{ETHERNET, OuterHeaders, checksum};
use offload_formats::IpView;

/// The buffers of wrapped packets, and the IP identifications of packets that are fragmented here.
///
/// Invariant: identifications count up, so that fragments of successive packets cannot be mixed.
pub(super) struct PacketWrapper {
    frames: BufferPool,
    /// Identification of the last packet fragmented before or after ESP.
    identification: u32,
}

impl PacketWrapper {
    pub(super) fn new(identification: u32) -> PacketWrapper {
        PacketWrapper { frames: BufferPool::new(FRAME_BYTES, FRAMES_PER_SLAB), identification }
    }

    pub(super) fn next_identification(&mut self) -> u32 {
        self.identification = self.identification.wrapping_add(1);
        self.identification
    }

    /// Splits a packet into segments if requested, wraps the segments and queues them. Returns the number of wrapped packets that
    /// could not be fragmented.
    pub(super) fn wrap(
        &mut self,
        leaves_by: &mut DeviceQueue,
        sa: &Sa,
        packet: &TxPacket,
        view: &IpView,
        plan: &ProtectionPlan,
    ) -> u64 {
        let _framing = cost::work(WorkKind::Framing);
        let ProtectionPlan { outer, mtu, flow, .. } = plan;
        let mut failed = 0;
        for (segment, number) in PlainSegments::new(packet, view).zip(plan.number..) {
            let bytes = segment.header.len() + segment.pieces.iter().map(|piece| piece.len()).sum::<usize>();
            let wrapped = ETHERNET + outer.wrapped_len(bytes - ETHERNET);
            let mut frame = if wrapped <= FRAME_BYTES { self.frames.take() } else { BytesMut::with_capacity(wrapped) };
            outer.write_headers(&segment.header, &mut frame);
            put_protected(&segment, view, outer, packet.ask.checksum, &mut frame);
            outer.finish(&sa.cipher, number, &mut frame);
            let headers = (ETHERNET + outer.len() + offload_esp::ESP_AND_IV).min(frame.len());
            let header = frame[..headers].into();
            frame.advance(headers);
            let wrapped_packet =
                TxPacket { header, fragments: [frame.freeze()].into_iter().collect(), ask: TxAsk::default() };
            if wrapped - ETHERNET <= usize::from(*mtu) {
                leaves_by.push(*flow, wrapped_packet);
                continue;
            }
            // RFC 4303 3.3.4: fragmented after ESP. The ESP number is no substitute for the identification, because
            // other SAs between the same ends use the same numbers.
            match fragment(wrapped_packet, ETHERNET, *mtu, self.next_identification()) {
                Ok(fragments) => fragments.into_iter().for_each(|fragment| leaves_by.push(*flow, fragment)),
                Err(_) => failed += 1,
            }
        }
        failed
    }
}

/// Appends the part of a segment that ESP protects, behind the room for ESP header and IV.
fn put_protected(
    segment: &PlainSegment<'_>,
    view: &IpView,
    outer: &OuterHeaders,
    checksum: bool,
    frame: &mut BytesMut,
) {
    let protected_at = frame.len();
    frame.extend_from_slice(&segment.header[ETHERNET + outer.taken()..]);
    {
        let _copy = cost::work(WorkKind::Copy);
        segment.pieces.iter().for_each(|piece| frame.extend_from_slice(piece));
    }
    if !checksum {
        return;
    }
    let _stack = cost::work(WorkKind::Stack);
    let transport = protected_at + view.header - outer.taken();
    if outer.taken() == 0 && !view.is_ipv6() {
        offload_formats::checksum::fill_ipv4_header(&mut frame[protected_at..]);
    }
    checksum::fill_transport(&mut frame[transport..], view.protocol, view.source, view.destination);
}

/// Capacity of pooled frames. Longer frames get a buffer of their own.
const FRAME_BYTES: usize = 2048;
const FRAMES_PER_SLAB: usize = 64;
