//! The path from the port to the receive ring.
//!
//! The device never holds a packet back, never reorders packets of a flow, and drops a packet for its contents only if
//! an engine says so (ESP replay, dummy). A wrong checksum or tag is reported with the packet, and the packet is
//! delivered as received.
//!
//! With large receive offload (LRO), consecutive segments of one flow are written into one buffer and reported as one
//! packet. A session stays open only until the interrupt raised for its first segment; without an interrupt, only
//! for segments of the same instant. No packet reaches the host later than without LRO. The option `lro_wait` changes
//! this: the interrupt then starts when the wait ends.

mod opened;

use crate::queue_pair::coalesce::{JoinedPacket, OuterParts};
use crate::queue_pair::{QueuePair, ResourceUse};
use bytes::BytesMut;
use nic_engine::InnerPosition;
use nic_engine::ReceivedPayload;
use nic_rings::dma;
use nic_rings::packet::ReceiveCompletion;
use offload_api::rx::Checksums;
use offload_api::{PacketMark, Placements, RxMeta};
use offload_base::Instant;
use offload_base::time::earliest;
use offload_formats::frame::ETHERNET_BYTES;
use offload_formats::{Headers, TransportHeader};
pub(crate) use opened::OpenResult;
use std::collections::VecDeque;

/// The state of the receive side.
#[derive(Debug, Default)]
pub(super) struct ReceiveSide {
    /// Buffers with room for at least a frame, most recently used last.
    buffers: Vec<BytesMut>,
    /// Segments that others may still join, oldest first; at most one session per flow.
    open: Vec<LroSession>,
    /// Packets on their way to host memory, by time of arrival.
    under_way: VecDeque<(Instant, ReceiveCompletion)>,
    /// Time at which bus and engines have processed all frames so far.
    busy_until: Instant,
    /// Time at which engines have opened all frames so far that came by the uplink of a switch.
    pub(super) opening_until: Instant,
    /// Number of packets started for the host.
    pub(super) begun: u64,
}

/// Start of work on a received frame: the time, and the resources used until then.
#[derive(Clone, Copy, Debug)]
pub(super) struct Start {
    at: Instant,
    used: Option<ResourceUse>,
}

/// A packet that is being joined.
#[derive(Debug)]
struct LroSession {
    joint: JoinedPacket,
    meta: RxMeta,
    /// The packet so far, followed by the rest of its buffer.
    buffer: BytesMut,
    /// Outer headers and trailers that an engine left in the frame.
    wrapping: Option<OuterParts>,
    /// Parts of the payload so far that are in buffers of commands.
    placed: Placements,
    /// Arrival of the first and of the last segment in host memory.
    first_due: Instant,
    last_due: Instant,
    /// Time at which the host looks, or the wait ends.
    closes_at: Instant,
    /// Whether `closes_at` is final: the first segment has arrived, or the time does not depend on the host.
    is_announced: bool,
}

/// A processed frame.
struct ProcessedFrame {
    buffer: BytesMut,
    meta: RxMeta,
    placed: Placements,
    /// Position of the plain packet in the buffer, if an engine left outer headers and trailers around it.
    within: Option<InnerPosition>,
}

impl LroSession {
    /// Returns the headers of the first segment, without outer headers.
    fn first(&self) -> &[u8] {
        self.wrapping.as_ref().map_or(&self.buffer, OuterParts::plain)
    }

    /// Adds the placed parts of a segment; its payload starts at `start` of the packet.
    fn add_placed(&mut self, start: usize, placed: Placements) {
        let payload_start = start - self.joint.headers();
        for (offset, piece) in placed {
            let at = payload_start + offset;
            let next = match self.placed.last_mut() {
                // The bytes between the two pieces are the lead as received, which belongs to the joined piece.
                Some((last_at, last)) if *last_at + last.len() + piece.lead() == at => last.join(piece).err(),
                _ => Some(piece),
            };
            self.placed.extend(next.map(|piece| (at, piece)));
        }
    }

    fn next_event(&self) -> Instant {
        if self.is_announced { self.closes_at } else { self.first_due }
    }
}

impl ReceiveSide {
    pub(super) fn next_due(&self) -> Option<Instant> {
        let open = self.open.iter().map(LroSession::next_event).min();
        earliest(open, self.next_under_way())
    }

    fn next_under_way(&self) -> Option<Instant> {
        self.under_way.front().map(|(at, _)| *at)
    }

    /// Queues a packet by its time, after earlier packets of the same time.
    fn put_under_way(&mut self, due: Instant, completion: ReceiveCompletion) {
        let before = self.under_way.iter().rev().take_while(|(at, _)| *at > due).count();
        self.under_way.insert(self.under_way.len() - before, (due, completion));
    }
}

impl QueuePair {
    /// Receives a frame from the wire. The host sees the frame when `process` is called at the time it is due.
    pub(crate) fn take_frame(&mut self, now: Instant, data: &[u8], headers: &Headers) {
        if !is_for(data, self.config.mac) {
            self.counters.rx_drop_address += 1;
            return;
        }
        if data.len() > usize::from(self.config.mtu) + ETHERNET_BYTES {
            self.counters.rx_oversize_pkts_phy += 1;
            return;
        }
        let start = self.start(now);
        // Without room, engines must not see the frame: they would count it, and its retransmission would look like a
        // replay.
        let arrived = if self.can_take() { self.open(data, headers) } else { OpenResult::AsItWas };
        self.take_arrived(start, data, headers, arrived);
        self.finish(start);
    }

    /// Returns when work on a frame can start: when bus and engines are free.
    pub(super) fn start(&self, now: Instant) -> Start {
        Start { at: now.max(self.receive.busy_until), used: self.used() }
    }

    /// Records the end of work on a frame. Returns when bus and engines are free again.
    pub(super) fn finish(&mut self, start: Start) -> Instant {
        self.receive.busy_until = start.at + self.cost_since(start.used);
        self.receive.busy_until
    }

    /// Returns the time at which a frame is in host memory, from the resources that it used so far.
    pub(super) fn due(&self, start: Start) -> Instant {
        start.at + self.cost_since(start.used) + self.config.delays.dma + self.config.delays.engine
    }

    /// Receives a frame after the engines have processed it.
    pub(super) fn take_arrived(&mut self, start: Start, data: &[u8], headers: &Headers, arrived: OpenResult) {
        let (mark, may_join) = match arrived {
            OpenResult::AsItWas => (PacketMark::None, true),
            // A packet that an engine handles but left unopened is not joined, because a joined packet could not be
            // opened later.
            OpenResult::Unopened(mark) => (mark, false),
            OpenResult::Opened(opened) => return self.take_opened(data, opened, start),
            OpenResult::Dropped => return self.note_received(data),
        };
        let (checksums, transport) = self.look_at(data, headers);
        if let Some(transport) = &transport
            && let Some(place) = self.session_of(data, transport)
        {
            if may_join && self.joins(place, data, transport, self.due(start)) {
                self.join(place, data, transport, start);
                return;
            }
            // A packet that does not fit ends the session, because the flow's order must be kept.
            self.close(place);
        }
        let Some(mut buffer) = self.take_buffer() else {
            self.counters.rx_out_of_buffer += 1;
            return;
        };
        self.note_received(data);
        self.dma.rx_payload += data.len() as u64;
        let mut meta = RxMeta { checksums, ..RxMeta::default() };
        meta.marks.set_packet(mark);
        let mut placed = Placements::new();
        // Only payload passes through the engines. Padding after the IP packet is kept, because the host gets the frame
        // as on the wire.
        match &transport {
            Some(transport) => {
                buffer.extend_from_slice(&data[..transport.payload]);
                self.append_payload(data, transport, &mut buffer, &mut meta, &mut placed);
                buffer.extend_from_slice(&data[transport.end..]);
            }
            None => buffer.extend_from_slice(data),
        }
        let transport = transport.as_ref().filter(|_| may_join);
        self.begin(data, transport, ProcessedFrame { buffer, meta, placed, within: None }, start);
    }

    /// Reports packets that have reached host memory by `now`.
    pub(super) fn show_received(&mut self, now: Instant) {
        self.announce_sessions(now);
        while self.receive.next_under_way().is_some_and(|due| due <= now) {
            let Some((_, completion)) = self.receive.under_way.pop_front() else { break };
            // Every packet reserved its completion when it was received.
            let _ = self.rings.receive_completions.stage(completion);
            self.dma.completions += dma::COMPLETION;
        }
        if self.rings.receive_completions.staged() > 0 {
            self.rings.receive_completions.publish();
            self.interrupt(now);
        }
    }

    /// Starts the interrupts for which sessions wait, and closes sessions with expired time.
    fn announce_sessions(&mut self, now: Instant) {
        let mut place = 0;
        while place < self.receive.open.len() {
            let session = &self.receive.open[place];
            if !session.is_announced && session.first_due <= now {
                self.interrupt(now);
                // If no interrupt is pending, a polling host may look now.
                let looks_at = self.interrupt.due.unwrap_or(now);
                let session = &mut self.receive.open[place];
                session.is_announced = true;
                session.closes_at = session.closes_at.min(looks_at);
            }
            if self.receive.open[place].is_announced && self.receive.open[place].closes_at <= now {
                self.close(place);
            } else {
                place += 1;
            }
        }
    }

    /// Checks checksums, and returns the transport headers of a packet with correct checksums.
    pub(super) fn look_at(&mut self, data: &[u8], headers: &Headers) -> (Checksums, Option<TransportHeader>) {
        let transport = if self.config.checksum_offload { headers.transport() } else { None };
        let checksums = match transport.and_then(|transport| transport.are_checksums_right(data)) {
            None => Checksums::Unchecked,
            Some(true) => Checksums::Good,
            Some(false) => Checksums::Bad,
        };
        match checksums {
            Checksums::Good => self.counters.rx_csum_unnecessary += 1,
            Checksums::Bad => self.counters.rx_csum_bad += 1,
            Checksums::Unchecked => self.counters.rx_csum_none += 1,
        }
        (checksums, transport.filter(|_| checksums == Checksums::Good))
    }

    /// Returns the session of the frame's flow.
    fn session_of(&self, data: &[u8], transport: &TransportHeader) -> Option<usize> {
        self.receive.open.iter().position(|session| session.joint.is_of_flow(session.first(), data, transport))
    }

    /// Tests whether a frame may be the next segment of a session, as far as is known before the engines work on it.
    fn joins(&self, place: usize, data: &[u8], transport: &TransportHeader, due: Instant) -> bool {
        let session = &self.receive.open[place];
        due <= session.closes_at
            && session.meta.marks.packet() == PacketMark::None
            && self.has_place_for_packet()
            // Room for headers too, because the segment needs its own if the verdicts differ.
            && session.buffer.len() + transport.end <= session.buffer.capacity()
            && session.joint.takes(self.config.lro_max_bytes as usize, &session.buffer, data, transport)
    }

    /// Appends the next segment to its session, or begins another packet if the verdicts differ. Segments of
    /// several records may be joined if one context decrypted all of them or none, because the stream itself marks
    /// record boundaries.
    fn join(&mut self, place: usize, data: &[u8], transport: &TransportHeader, start: Start) {
        self.note_received(data);
        self.dma.rx_payload += (transport.payload_len()) as u64;
        let mut buffer = core::mem::take(&mut self.receive.open[place].buffer);
        let joined_bytes = buffer.len();
        let mut meta = RxMeta { checksums: Checksums::Good, ..RxMeta::default() };
        let mut placed = Placements::new();
        self.append_payload(data, transport, &mut buffer, &mut meta, &mut placed);
        let due = self.due(start);
        let session = &mut self.receive.open[place];
        if meta == session.meta && meta.marks.may_join() && due <= session.closes_at {
            // Placed data are rare. The check avoids a move, which would stall on the copy just made.
            if !placed.is_empty() {
                session.add_placed(joined_bytes, placed);
            }
            session.joint.add(data, transport);
            session.last_due = due;
            session.buffer = buffer;
            if session.joint.is_complete() {
                self.close(place);
            }
            return;
        }
        // The rest of the buffer goes with the segment, which needs its own headers.
        let mut packet = buffer.split_off(joined_bytes);
        session.buffer = buffer;
        let (header, payload_bytes) = (&data[..transport.payload], packet.len());
        packet.resize(header.len() + payload_bytes, 0);
        packet.copy_within(..payload_bytes, header.len());
        packet[..header.len()].copy_from_slice(header);
        self.dma.rx_payload += header.len() as u64;
        self.close_without_rest(place);
        self.begin(data, Some(transport), ProcessedFrame { buffer: packet, meta, placed, within: None }, start);
    }

    /// Starts a session with the packet in `buffer`, or queues it for the host. `data` is the packet without outer
    /// parts.
    fn begin(&mut self, data: &[u8], transport: Option<&TransportHeader>, contents: ProcessedFrame, start: Start) {
        self.receive.begun += 1;
        let due = self.due(start);
        let ProcessedFrame { mut buffer, meta, placed, within } = contents;
        let joint = transport.filter(|_| self.config.lro && meta.marks.may_join());
        let Some((joint, transport)) = joint
            .and_then(|transport| Some((JoinedPacket::begin(data, transport, self.config.lro_datagrams)?, transport)))
        else {
            let (frame, ends_buffer) = self.cut_off(buffer);
            self.receive.put_under_way(due, ReceiveCompletion { frame, meta, joined: None, placed, ends_buffer });
            return;
        };
        // The oldest session has waited longest and is the most likely to be complete, so it is closed first.
        if self.receive.open.len() == MAX_SESSIONS {
            self.close(0);
        }
        // An interrupt before this segment's arrival does not report it.
        let interrupt = self.interrupt.due.filter(|at| *at >= due);
        // With `lro_wait` the time is known at once; otherwise the host's interrupt ends the wait.
        let waits = !self.config.lro_wait.is_zero();
        let closes_at = match waits {
            true => due + self.config.lro_wait,
            false => interrupt.unwrap_or(due + self.config.delays.interrupt),
        };
        let (first_due, last_due) = (due, due);
        let wrapping = within.map(|within| OuterParts::begin(data, transport, within, &mut buffer));
        self.receive.open.push(LroSession {
            joint,
            meta,
            buffer,
            wrapping,
            placed,
            first_due,
            last_due,
            closes_at,
            is_announced: waits,
        });
    }

    /// Closes a session.
    fn close(&mut self, place: usize) {
        let session = &mut self.receive.open[place];
        let mut buffer = core::mem::take(&mut session.buffer);
        match session.wrapping.take() {
            Some(wrapping) => wrapping.finish(&session.joint, &mut buffer),
            None => session.joint.finish(&mut buffer),
        }
        let (frame, ends_buffer) = self.cut_off(buffer);
        self.receive.open[place].buffer = frame;
        self.end_session(place, ends_buffer);
    }

    /// Closes a session that leaves the rest of its buffer to another packet.
    fn close_without_rest(&mut self, place: usize) {
        let session = &mut self.receive.open[place];
        session.joint.finish(&mut session.buffer);
        self.end_session(place, false);
    }

    fn end_session(&mut self, place: usize, ends_buffer: bool) {
        let LroSession { joint, meta, buffer: frame, placed, last_due, .. } = self.receive.open.remove(place);
        let joined = joint.segment_bytes();
        if joined.is_some() {
            self.counters.rx_lro_packets += 1;
            self.counters.rx_lro_bytes += frame.len() as u64;
        }
        self.receive.put_under_way(last_due, ReceiveCompletion { frame, meta, joined, placed, ends_buffer });
    }

    /// Returns a buffer with room for a frame.
    fn take_buffer(&mut self) -> Option<BytesMut> {
        if !self.has_place_for_packet() {
            return None;
        }
        if self.receive.buffers.is_empty() {
            if let Some(mut buffer) = self.rings.receive.pop() {
                self.dma.rx_descriptors += dma::RECEIVE_DESCRIPTOR;
                buffer.clear();
                return Some(buffer);
            }
            // The oldest session may give back the rest of its buffer.
            if !self.receive.open.is_empty() {
                self.close(0);
            }
        }
        self.receive.buffers.pop()
    }

    /// Tests whether a packet will find a buffer and a completion. A packet lost for lack of room may be sent
    /// again, so engines must not see it twice.
    fn can_take(&self) -> bool {
        let buffers = !self.receive.buffers.is_empty() || !self.rings.receive.is_empty();
        self.has_place_for_packet() && (buffers || !self.receive.open.is_empty())
    }

    /// Tests whether one more packet finds a free completion; all packets so far have reserved one.
    fn has_place_for_packet(&self) -> bool {
        self.receive.under_way.len() + self.receive.open.len() < self.rings.receive_completions.room()
    }

    /// Cuts a packet off its buffer and keeps the rest for other packets. Returns the packet, and whether the rest was
    /// too short to keep.
    fn cut_off(&mut self, mut buffer: BytesMut) -> (BytesMut, bool) {
        let end = buffer.len().next_multiple_of(BUFFER_ALIGNMENT).min(buffer.capacity());
        let ends_buffer = buffer.capacity() - end < usize::from(self.config.mtu) + ETHERNET_BYTES;
        if !ends_buffer {
            self.receive.buffers.push(buffer.split_off(end));
        }
        (buffer, ends_buffer)
    }

    /// Appends the payload to `buffer` as processed by the flow's engines, lowest layer first. Adds their verdicts to
    /// `meta`, and placed parts to `placed`, which must be empty.
    fn append_payload(
        &mut self,
        data: &[u8],
        transport: &TransportHeader,
        buffer: &mut BytesMut,
        meta: &mut RxMeta,
        placed: &mut Placements,
    ) {
        let payload = &data[transport.payload..transport.end];
        if payload.is_empty() || self.steering.follows_nothing() {
            return buffer.extend_from_slice(payload);
        }
        let followers = self.steering.followers(&transport.flow_of_receiver(data));
        let is_looked_at = followers[1..].iter().any(Option::is_some);
        let mut payload = ReceivedPayload::new(transport.seq(data), payload, buffer, placed, is_looked_at);
        for (layer, handle) in followers.into_iter().enumerate() {
            // An engine needs the content that the lower layer's engine produced.
            let Some(handle) = handle.filter(|_| layer == 0 || payload.content().is_some()) else { continue };
            let QueuePair { contexts, dma, .. } = self;
            contexts.note_work(transport.payload_len());
            let keys = contexts.keys_to_receive(handle, &payload, dma);
            let said = contexts.with_stream(handle, dma, keys, |engine| engine.receive(handle, &mut payload));
            if let Some((Some(verdict), _)) = said {
                meta.marks.set(handle, verdict);
            }
        }
        payload.finish();
    }

    pub(super) fn note_received(&mut self, data: &[u8]) {
        self.counters.rx_packets += 1;
        self.counters.rx_bytes += data.len() as u64;
    }
}

/// Tests whether the frame is for this address, or multicast.
pub(super) fn is_for(frame: &[u8], mac: [u8; 6]) -> bool {
    frame.len() >= ETHERNET_BYTES && (frame[..6] == mac || frame[0] & 1 == 1)
}

/// Maximum number of packets that are joined at a time, each of a different flow.
const MAX_SESSIONS: usize = 16;
/// Alignment of packets in a buffer, a cache line. Packets that were split off a session are not aligned.
const BUFFER_ALIGNMENT: usize = 64;
