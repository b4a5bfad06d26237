//! Packets that engines open, and their LRO. Opened packets are compared without their outer headers.
//!
//! Packets are joined if one context opened them in the same way and their numbers are consecutive. The host gets the
//! first number and the count, so its replay window and lifetimes see each packet.
//!
//! Invariant: packets of a context reach the host in the order of arrival, for any flow. Otherwise a packet that
//! overtakes a waiting session would move the host's replay window past the session's packets.

use super::{ProcessedFrame, Start};
use crate::context::FrameMatch;
use crate::queue_pair::QueuePair;
use crate::queue_pair::coalesce::OuterParts;
use bytes::{Bytes, BytesMut};
use nic_engine::{InnerPosition, OpenedFrame};
use offload_api::rx::Checksums;
use offload_api::{Handle, Marks, PacketMark, Placements, RxMeta};
use offload_base::Instant;
use offload_formats::frame::ETHERNET_BYTES;
use offload_formats::{Headers, TransportHeader};

/// A received frame after the packet engines.
#[derive(Debug)]
pub(crate) enum OpenResult {
    /// Unchanged, and of no engine's kind.
    AsItWas,
    /// Unchanged, with this mark. The packet is of an engine's kind and must not be joined, because a joined packet
    /// could not be opened.
    Unopened(PacketMark),
    /// Replaced by the engine's output.
    Opened(OpenedPacket),
    /// Dropped by the engine.
    Dropped,
}

/// The output of an engine for a packet.
#[derive(Debug)]
pub(crate) struct OpenedPacket {
    /// The frame for the host, if nothing joins it.
    frame: BytesMut,
    meta: RxMeta,
    /// The plain packet in the frame, without outer parts.
    inner: Option<(BytesMut, InnerPosition)>,
    /// Headers of the plain packet if others may join it: its checksums are correct.
    transport: Option<TransportHeader>,
}

impl OpenedPacket {
    /// Returns the packet without outer parts.
    fn plain(&self) -> &[u8] {
        self.inner.as_ref().map_or(&self.frame, |(inner, _)| inner)
    }

    /// Takes the frame and its context out if the engine removed all outer parts.
    pub(crate) fn take_whole(&mut self) -> Option<(Bytes, Handle)> {
        let context = opener_of(&self.meta).filter(|_| self.inner.is_none())?;
        Some((core::mem::take(&mut self.frame).freeze(), context))
    }

    /// Puts the frame back.
    pub(crate) fn put_back(&mut self, frame: Bytes) {
        self.frame = frame.into();
    }
}

impl QueuePair {
    /// Passes a received frame to the engine that opens it, if any.
    pub(crate) fn open(&mut self, data: &[u8], headers: &Headers) -> OpenResult {
        let QueuePair { contexts, steering, dma, .. } = self;
        let opener = match contexts.look(data, headers, steering) {
            FrameMatch::Nothing => return OpenResult::AsItWas,
            FrameMatch::Opener(handle) => handle,
            FrameMatch::Unknown => return OpenResult::Unopened(PacketMark::None),
            FrameMatch::Fragment { engine } => {
                // The fragment may be of any context, so no opened packet may wait behind it.
                self.close_opened();
                return OpenResult::Unopened(PacketMark::Fragment { engine });
            }
            FrameMatch::PerhapsFragment => {
                self.close_opened();
                return OpenResult::AsItWas;
            }
        };
        contexts.note_work(data.len());
        let opened = contexts.packet(opener, dma).map(|engine| engine.open(opener, data));
        let (frame, inner, mark, (checksums, transport)) = match opened {
            None => return OpenResult::Unopened(PacketMark::None),
            Some(OpenedFrame::Untouched(mark)) => return OpenResult::Unopened(mark),
            Some(OpenedFrame::Dropped) => return OpenResult::Dropped,
            Some(OpenedFrame::InPlace { frame, inner, mark, new }) => {
                let looked = inner.as_ref().map(|(inner, _)| self.look_at(inner, &Headers::parse(inner)));
                let (checksums, transport) = looked.unwrap_or((Checksums::Unchecked, None));
                // A packet that the host will reject as a replay would take the joined packets with it.
                (frame, inner, mark, (checksums, transport.filter(|_| new)))
            }
            Some(OpenedFrame::Another { inner, mark, vouched }) => {
                // The engine vouches for the checksums if the packet's authentication covers them.
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
        OpenResult::Opened(OpenedPacket { frame, meta, inner, transport })
    }

    /// Receives an opened packet; `data` is the frame on the wire.
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
        // A packet of the same context and another flow must not overtake the session.
        self.close_session_of_opener(&opened.meta);
        let Some(mut buffer) = self.take_buffer() else {
            self.counters.rx_out_of_buffer += 1;
            return;
        };
        self.note_received(data);
        self.dma.rx_payload += opened.frame.len() as u64;
        buffer.extend_from_slice(&opened.frame);
        let within = opened.inner.as_ref().map(|(_, within)| *within);
        let contents = ProcessedFrame { buffer, meta: opened.meta, placed: Placements::new(), within };
        self.begin(opened.plain(), opened.transport.as_ref(), contents, start);
    }

    /// Closes all sessions of opened packets, because a fragment may belong to any context.
    fn close_opened(&mut self) {
        while let Some(place) = self.receive.open.iter().position(|session| opener_of(&session.meta).is_some()) {
            self.close(place);
        }
    }

    /// Closes the session of the context that opened a packet. There is at most one.
    fn close_session_of_opener(&mut self, meta: &RxMeta) {
        if let Some(place) = self.receive.open.iter().position(|session| opener_of(&session.meta) == opener_of(meta)) {
            self.close(place);
        }
    }

    /// Tests whether a packet may be the next segment of a session.
    fn joins_opened(&self, place: usize, opened: &OpenedPacket, transport: &TransportHeader, due: Instant) -> bool {
        let session = &self.receive.open[place];
        let (bytes, wrapped_alike) = match (&opened.inner, &session.wrapping) {
            (None, None) => (transport.payload_len(), true),
            (Some((_, within)), Some(wrapping)) => {
                let (payload, tail) = OuterParts::parts(*within, &opened.frame, transport);
                (payload.len() + tail.len(), wrapping.takes(&session.buffer, &opened.frame, *within))
            }
            _ => return false,
        };
        let whole = session.buffer.len() + bytes;
        // Readers of the outer headers rely on their lengths, so 64 KiB is the limit.
        let most = self.config.lro_max_bytes.min(u16::MAX.into()) as usize;
        due <= session.closes_at
            && wrapped_alike
            && whole <= session.buffer.capacity()
            && whole - ETHERNET_BYTES <= most
            && follows(&session.meta, &opened.meta)
            && session.joint.takes(most, session.first(), opened.plain(), transport)
    }

    /// Appends the payload of the next segment to its session.
    fn join_opened(&mut self, place: usize, opened: &OpenedPacket, transport: &TransportHeader, start: Start) {
        let session = &mut self.receive.open[place];
        let payload = match (&opened.inner, &mut session.wrapping) {
            (Some((_, within)), Some(wrapping)) => {
                let (payload, tail) = OuterParts::parts(*within, &opened.frame, transport);
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

/// Returns the context that opened a packet.
fn opener_of(meta: &RxMeta) -> Option<Handle> {
    match meta.marks.packet() {
        PacketMark::Opened { context, .. } => Some(context),
        PacketMark::None | PacketMark::Failed { .. } | PacketMark::Fragment { .. } => None,
    }
}

/// Tests whether a packet may be joined by its metadata: equal, with the next number.
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
