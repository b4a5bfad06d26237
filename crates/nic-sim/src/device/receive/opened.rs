//! LRO of packets that the device opened: they are joined by what they are without ESP.
//!
//! Joined are packets of one SA and one kind of offload whose sequence numbers follow each other. The host learns the
//! first number and how many there are, so that it loses nothing it knew: its replay window and lifetimes see each.
//!
//! Invariant: packets of an SA reach the host in the order they came, whatever flow they are of: one that overtook those
//! that wait to be joined would move the host's replay window past them.

use super::Contents;
use crate::device::Device;
use crate::device::esp::Opened;
use crate::engine::coalesce::Wrapping;
use offload_api::{Handle, PacketMark, Placements, RxMeta};
use offload_base::Instant;
use offload_formats::Transport;
use offload_formats::frame::ETHERNET_BYTES;

impl Device {
    /// Takes what was made of an ESP packet, which was `data` on the wire.
    pub(super) fn take_opened(&mut self, data: &[u8], opened: Opened, due: Instant) {
        if let Some(transport) = &opened.transport
            && let Some(place) = self.session_of(opened.plain(), transport)
        {
            if self.joins_opened(place, &opened, transport, due) {
                self.note_received(data);
                self.join_opened(place, &opened, transport, due);
                return;
            }
            self.close(place);
        }
        self.close_session_of_sa(&opened.meta);
        let Some(mut buffer) = self.take_buffer() else {
            self.counters.rx_out_of_buffer += 1;
            return;
        };
        self.note_received(data);
        self.dma.rx_payload += opened.frame.len() as u64;
        buffer.extend_from_slice(&opened.frame);
        let within = opened.inner.as_ref().map(|(_, within)| *within);
        let contents = Contents { buffer, meta: opened.meta, placed: Placements::new(), within };
        self.begin(opened.plain(), opened.transport.as_ref(), contents, due);
    }

    /// Ends what waits for more packets under ESP: a fragment is none that the device can tell the SA of.
    pub(super) fn close_opened(&mut self) {
        while let Some(place) = self.receive.open.iter().position(|session| sa_of(&session.meta).is_some()) {
            self.close(place);
        }
    }

    /// Ends what waits for more packets of the SA that one came by. There is one such session at most.
    fn close_session_of_sa(&mut self, meta: &RxMeta) {
        if let Some(place) = self.receive.open.iter().position(|session| sa_of(&session.meta) == sa_of(meta)) {
            self.close(place);
        }
    }

    /// Whether a packet may be the next segment of a session.
    fn joins_opened(&self, place: usize, opened: &Opened, transport: &Transport, due: Instant) -> bool {
        let session = &self.receive.open[place];
        let (bytes, wrapped_alike) = match (&opened.inner, &session.wrapping) {
            (None, None) => (transport.payload_len(), true),
            (Some((_, within)), Some(wrapping)) => {
                let (payload, tail) = Wrapping::parts(*within, &opened.frame, transport);
                (payload.len() + tail.len(), wrapping.takes(&session.buffer, &opened.frame, *within))
            }
            _ => return false,
        };
        let whole = session.buffer.len() + bytes;
        // ESP's layers read lengths.
        let most = self.config.lro_max_bytes.min(u16::MAX.into()) as usize;
        due <= session.closes_at
            && wrapped_alike
            && whole <= session.buffer.capacity()
            && whole - ETHERNET_BYTES <= most
            && follows(&session.meta, &opened.meta)
            && session.joint.takes(most, session.first(), opened.plain(), transport)
    }

    /// Writes the payload of the next segment behind the others of its session.
    fn join_opened(&mut self, place: usize, opened: &Opened, transport: &Transport, due: Instant) {
        let session = &mut self.receive.open[place];
        let payload = match (&opened.inner, &mut session.wrapping) {
            (Some((_, within)), Some(wrapping)) => {
                let (payload, tail) = Wrapping::parts(*within, &opened.frame, transport);
                wrapping.set_tail(tail);
                payload
            }
            _ => &opened.frame[transport.payload..transport.end],
        };
        session.buffer.extend_from_slice(payload);
        session.joint.add(opened.plain(), transport);
        session.last_due = due;
        session.meta.marks.count_on();
        self.dma.rx_payload += payload.len() as u64;
        if self.receive.open[place].joint.is_complete() {
            self.close(place);
        }
    }
}

/// The SA that a packet was opened by.
fn sa_of(meta: &RxMeta) -> Option<Handle> {
    match meta.marks.packet() {
        PacketMark::Opened { context, .. } => Some(context),
        PacketMark::None | PacketMark::Failed { .. } | PacketMark::Fragment { .. } => None,
    }
}

/// Whether a packet may be joined to others, by what was found out about them.
fn follows(so_far: &RxMeta, next: &RxMeta) -> bool {
    let mut expected = *so_far;
    if let PacketMark::Opened { context, number, packets, code } = so_far.marks.packet()
        && let Some(number) = number.checked_add(packets.into())
    {
        expected.marks.set_packet(PacketMark::Opened { context, number, packets: 1, code });
        return expected == *next;
    }
    false
}
