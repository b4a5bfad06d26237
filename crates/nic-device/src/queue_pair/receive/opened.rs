//! Packets that engines open, and their LRO: they are joined by what they are without what was around them.
//!
//! Joined are packets that one context opened in one way, and whose numbers follow each other. The host learns the first
//! number and how many there are, so that it loses nothing it knew: its replay window and lifetimes see each.
//!
//! Invariant: packets of a context reach the host in the order they came, whatever flow they are of: one that overtook those
//! that wait to be joined would move the host's replay window past them.

use super::{Contents, Start};
use crate::context::Found;
use crate::queue_pair::QueuePair;
use crate::queue_pair::coalesce::Wrapping;
use bytes::{Bytes, BytesMut};
use nic_engine::{InnerPosition, OpenedFrame};
use offload_api::rx::Checksums;
use offload_api::{Handle, Marks, PacketMark, Placements, RxMeta};
use offload_base::Instant;
use offload_formats::frame::ETHERNET_BYTES;
use offload_formats::{Headers, TransportHeader};

/// A frame to be handed up, or none.
#[derive(Debug)]
pub(crate) enum Arrived {
    /// As it was on the wire; it is no engine's.
    AsItWas,
    /// As it was on the wire, with this about it. It is a packet of an engine's, and stays one: several that are joined are
    /// nothing that anybody could open.
    Unopened(PacketMark),
    /// In place of what was on the wire.
    Opened(OpenedPacket),
    /// The host is not to see it.
    Dropped,
}

/// What an engine made of a packet.
#[derive(Debug)]
pub(crate) struct OpenedPacket {
    /// What the host is shown, if nothing joins it.
    frame: BytesMut,
    meta: RxMeta,
    /// The packet in the frame, as it would be without what is around it.
    inner: Option<(BytesMut, InnerPosition)>,
    /// Of the packet by itself, if others may join it: its checksums are right.
    transport: Option<TransportHeader>,
}

impl OpenedPacket {
    /// The packet without what is around it.
    fn plain(&self) -> &[u8] {
        self.inner.as_ref().map_or(&self.frame, |(inner, _)| inner)
    }

    /// Takes out what the host would be shown, if the engine took off all that was around it, with the context that did.
    pub(crate) fn take_whole(&mut self) -> Option<(Bytes, Handle)> {
        let context = opener_of(&self.meta).filter(|_| self.inner.is_none())?;
        Some((core::mem::take(&mut self.frame).freeze(), context))
    }

    /// Puts it back.
    pub(crate) fn put_back(&mut self, frame: Bytes) {
        self.frame = frame.into();
    }
}

impl QueuePair {
    /// Runs a received frame through the engine that it is for, if any is.
    pub(crate) fn open(&mut self, data: &[u8], headers: &Headers) -> Arrived {
        let QueuePair { contexts, steering, dma, .. } = self;
        let opener = match contexts.look(data, headers, steering) {
            Found::Nothing => return Arrived::AsItWas,
            Found::Opener(handle) => handle,
            Found::Unknown => return Arrived::Unopened(PacketMark::None),
            Found::Fragment { engine } => {
                self.close_opened();
                return Arrived::Unopened(PacketMark::Fragment { engine });
            }
            Found::PerhapsFragment => {
                self.close_opened();
                return Arrived::AsItWas;
            }
        };
        contexts.note_work(data.len());
        let opened = contexts.packet(opener, dma).map(|engine| engine.open(opener, data));
        let (frame, inner, mark, (checksums, transport)) = match opened {
            None => return Arrived::Unopened(PacketMark::None),
            Some(OpenedFrame::Untouched(mark)) => return Arrived::Unopened(mark),
            Some(OpenedFrame::Dropped) => return Arrived::Dropped,
            Some(OpenedFrame::InPlace { frame, inner, mark, new }) => {
                let looked = inner.as_ref().map(|(inner, _)| self.look_at(inner, &Headers::parse(inner)));
                let (checksums, transport) = looked.unwrap_or((Checksums::Unchecked, None));
                // Joined, what the host will refuse would take others with it.
                (frame, inner, mark, (checksums, transport.filter(|_| new)))
            }
            Some(OpenedFrame::Another { inner, mark, vouched }) => {
                let looked = match vouched {
                    true => (Checksums::Good, Headers::parse(&inner).transport()),
                    false => self.look_at(&inner, &Headers::parse(&inner)),
                };
                (inner, None, mark, looked)
            }
        };
        let mut marks = Marks::default();
        marks.set_packet(mark);
        let meta = RxMeta { checksums, marks, ..RxMeta::default() };
        Arrived::Opened(OpenedPacket { frame, meta, inner, transport })
    }

    /// Takes what was made of a packet, which was `data` on the wire.
    pub(super) fn take_opened(&mut self, data: &[u8], opened: OpenedPacket, start: Start) {
        if let Some(transport) = &opened.transport
            && let Some(place) = self.session_of(opened.plain(), transport)
        {
            if self.joins_opened(place, &opened, transport, self.due(start)) {
                self.note_received(data);
                self.join_opened(place, &opened, transport, start);
                return;
            }
            self.close(place);
        }
        self.close_session_of_opener(&opened.meta);
        let Some(mut buffer) = self.take_buffer() else {
            self.counters.rx_out_of_buffer += 1;
            return;
        };
        self.note_received(data);
        self.dma.rx_payload += opened.frame.len() as u64;
        buffer.extend_from_slice(&opened.frame);
        let within = opened.inner.as_ref().map(|(_, within)| *within);
        let contents = Contents { buffer, meta: opened.meta, placed: Placements::new(), within };
        self.begin(opened.plain(), opened.transport.as_ref(), contents, start);
    }

    /// Ends what waits for more packets that were opened: nobody can tell a fragment's context.
    fn close_opened(&mut self) {
        while let Some(place) = self.receive.open.iter().position(|session| opener_of(&session.meta).is_some()) {
            self.close(place);
        }
    }

    /// Ends what waits for more packets of the context that opened one. There is one such session at most.
    fn close_session_of_opener(&mut self, meta: &RxMeta) {
        if let Some(place) = self.receive.open.iter().position(|session| opener_of(&session.meta) == opener_of(meta)) {
            self.close(place);
        }
    }

    /// Whether a packet may be the next segment of a session.
    fn joins_opened(&self, place: usize, opened: &OpenedPacket, transport: &TransportHeader, due: Instant) -> bool {
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
        // Who reads what is around it reads lengths.
        let most = self.config.lro_max_bytes.min(u16::MAX.into()) as usize;
        due <= session.closes_at
            && wrapped_alike
            && whole <= session.buffer.capacity()
            && whole - ETHERNET_BYTES <= most
            && follows(&session.meta, &opened.meta)
            && session.joint.takes(most, session.first(), opened.plain(), transport)
    }

    /// Writes the payload of the next segment behind the others of its session.
    fn join_opened(&mut self, place: usize, opened: &OpenedPacket, transport: &TransportHeader, start: Start) {
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
        session.meta.marks.count_on();
        self.dma.rx_payload += payload.len() as u64;
        self.receive.open[place].last_due = self.due(start);
        if self.receive.open[place].joint.is_complete() {
            self.close(place);
        }
    }
}

/// The context that opened a packet.
fn opener_of(meta: &RxMeta) -> Option<Handle> {
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
