//! The path from the send ring to the port.
//!
//! Descriptors are processed in order, one frame at a time. The next descriptor is fetched only when the port has room,
//! so a slow line fills the ring and not the device. A paced packet goes to its flow's lane in the shaper; while the
//! lane is not empty, all later descriptors of the flow follow it there, and other flows pass. Ring and shaper
//! alternate frame by frame, because a rate is a limit and not a reservation.

use crate::context::ContextStore;
use crate::queue_pair::pacing::{Shaper, gap};
use crate::queue_pair::segmentation::Segmenter;
use crate::queue_pair::{QueuePair, ResourceUse};
use bytes::{Bytes, BytesMut};
use core::time::Duration;
use nic_engine::OutOfStep;
use nic_engine::hosted::{AnyStream, BoxedEncapsulation};
use nic_rings::dma::{self, DmaBytes};
use nic_rings::packet::{SendCompletion, SendDescriptor, SendEntry};
use offload_api::{FlowKey, Handle, LAYERS, TxAsk, TxPacket};
use offload_base::time::earliest;
use offload_base::{Instant, Seq};
use offload_formats::Headers;
use offload_wire::frame::Frame;
use std::collections::HashMap;

/// The state of the transmit side.
#[derive(Debug, Default)]
pub(super) struct TransmitSide {
    activity: Activity,
    /// The packet of the ring that is being sent.
    current: Option<Box<OutgoingPacket>>,
    /// Delayed items.
    shaper: Shaper<DelayedItem>,
    /// Whether the shaper goes first if both the ring and the shaper have a frame.
    shaper_is_next: bool,
    /// Time at which the port has sent all frames so far.
    port_free_at: Instant,
    /// Time at which bus and engines finish the work begun so far.
    busy_until: Instant,
    /// The next frame, with the time at which bus and engines finish it. `None` without costs, or if no frame is ready.
    made: Option<(Instant, Frame)>,
    /// Payload bytes copied into frames.
    pub(super) framed: u64,
    /// Slots of completed and unreported descriptors.
    done: Vec<u32>,
    /// The failed ones among them.
    failed: Vec<u32>,
    /// For each context: the bytes after its next packet in the stream.
    pub(super) ahead: HashMap<Handle, Bytes>,
    /// Output of DUMPs, which is discarded.
    nowhere: BytesMut,
    /// Buffers between two engines.
    scratch: [BytesMut; 2],
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Activity {
    /// The ring was empty at the last look.
    #[default]
    Idle,
    /// A doorbell rang; descriptors can be processed from `until`.
    Fetching { until: Instant },
    /// Processing the ring.
    Sending,
}

/// A packet that is being sent, with its descriptor. Boxed, because a move per segment would be expensive.
#[derive(Debug)]
struct OutgoingPacket {
    slot: u32,
    segmenter: Segmenter,
    /// Position of the next bytes in each context's stream. The first layer's position comes with each segment.
    places: StreamPositions,
    /// The context that wraps the segments, and its engine's state for that.
    wrapping: Option<(Handle, BoxedEncapsulation)>,
}

/// An item that waits in the shaper.
#[derive(Debug)]
enum DelayedItem {
    Descriptor(Box<SendEntry>),
    /// The unsent rest of a packet.
    Rest(Box<OutgoingPacket>),
}

impl TransmitSide {
    pub(super) fn is_idle(&self) -> bool {
        self.activity == Activity::Idle
    }
}

/// The contexts that work on a packet's payload, by layer; the highest layer works first, on the bytes of its stream.
/// Contexts are named by handle, because the state of one may be evicted while another works.
type LayerContexts = [Option<Handle>; LAYERS];

/// The work of each engine, in its own unit.
type WorkCounts = [u64; LAYERS];

/// Returns the contexts that work on a packet.
fn stream_contexts(ask: &TxAsk) -> LayerContexts {
    ask.streams.map(|ask| Some(ask?.context))
}

/// Stream positions of bytes, by layer. The first layer uses TCP sequence numbers; higher layers use the low bits of
/// offsets.
type StreamPositions = [Seq; LAYERS];

/// Returns the positions at which the contexts' bytes of a packet begin.
fn stream_positions(ask: &TxAsk) -> StreamPositions {
    let mut places = ask.streams.map(|ask| ask.map_or(Seq(0), |ask| Seq(ask.offset as u32)));
    places[0] = ask.seq;
    places
}

/// Tests whether the contexts expect bytes at these positions; `None` if a context does not exist.
fn expect_positions(
    stages: &LayerContexts,
    contexts: &mut ContextStore,
    dma: &mut DmaBytes,
    places: StreamPositions,
) -> Option<bool> {
    let mut expected = true;
    for (handle, place) in stages.iter().zip(places).rev() {
        let Some(handle) = *handle else { continue };
        expected &= contexts.stream(handle, dma)?.expects(handle, place)?;
    }
    Some(expected)
}

/// Converts `bytes` at `places` to their wire form and appends the result to `destination`. `scratch` holds
/// intermediate results. `ahead` are the bytes after them in the stream of the highest context, for a DUMP that
/// replays its output to a context below.
fn run_engines(
    stages: &LayerContexts,
    contexts: &mut ContextStore,
    dma: &mut DmaBytes,
    (places, bytes, mut ahead): (StreamPositions, &[u8], Option<&[u8]>),
    [from, to]: &mut [BytesMut; 2],
    destination: &mut BytesMut,
) -> Result<WorkCounts, PacketDrop> {
    let mut worked = WorkCounts::default();
    let mut made = false;
    for layer in (1..LAYERS).rev() {
        let Some(handle) = stages[layer] else { continue };
        to.clear();
        let source = if made { &from[..] } else { bytes };
        // Only the highest context sees the bytes of the queue, so the following bytes are meant for it alone.
        let ahead = ahead.take();
        worked[layer] = with_buffers(contexts, dma, handle, source, |engine| match ahead {
            Some(ahead) if engine.works_on_whole_packets(handle) => {
                engine.transmit_whole(handle, places[layer], source, ahead, to, false).map(|()| 0)
            }
            _ => engine.transmit(handle, places[layer], source, to),
        })?;
        check_length(source.len(), to.len())?;
        // The output of a layer is the input of the layer below.
        core::mem::swap(from, to);
        made = true;
    }
    let bytes = if made { from } else { bytes };
    match stages[0] {
        Some(handle) => {
            // The lowest context appends to the frame directly, which saves a copy of the payload.
            let before = destination.len();
            let transmit = |engine: &mut dyn AnyStream| engine.transmit(handle, places[0], bytes, destination);
            worked[0] = with_buffers(contexts, dma, handle, bytes, transmit)?;
            check_length(bytes.len(), destination.len() - before)?;
        }
        None => destination.extend_from_slice(bytes),
    }
    Ok(worked)
}

/// Tests that an engine made as many bytes as it got. Other lengths would corrupt the stream, so the packet is given
/// up.
fn check_length(given: usize, made: usize) -> Result<(), PacketDrop> {
    if given == made { Ok(()) } else { Err(PacketDrop::OutOfSync) }
}

/// Lets a context work on `bytes`, with the keys that its stages need.
fn with_buffers<R>(
    contexts: &mut ContextStore,
    dma: &mut DmaBytes,
    context: Handle,
    bytes: &[u8],
    transmit: impl FnOnce(&mut dyn AnyStream) -> Result<R, OutOfStep>,
) -> Result<R, PacketDrop> {
    contexts.note_work(bytes.len());
    let keys = contexts.keys_to_transmit(context, bytes, dma);
    let (done, refused) = contexts.with_stream(context, dma, keys, transmit).ok_or(PacketDrop::UnknownContext)?;
    done.map_err(|OutOfStep| refused.map_or(PacketDrop::OutOfSync, |key| PacketDrop::NoKey { context, key }))
}

/// The reason why a packet was given up.
enum PacketDrop {
    UnknownContext,
    OutOfSync,
    /// A context lacks a key and can never process these bytes.
    NoKey {
        context: Handle,
        key: Handle,
    },
    /// The wrapping engine refused and counted the reason.
    NotWrapped,
}

impl QueuePair {
    /// Returns the next frame that leaves at `now`, if the port is free, and accounts its line time.
    pub(crate) fn poll_frame(&mut self, now: Instant) -> Option<Frame> {
        self.begin_sending_when_due(now);
        if self.transmit.port_free_at > now {
            return None;
        }
        let frame = if self.config.costs.is_none() { self.make_frame(now) } else { self.take_made(now) };
        match &frame {
            Some(frame) => {
                let line_time = line_time(frame, self.config.line_rate);
                self.transmit.port_free_at = self.transmit.port_free_at.max(now) + line_time;
            }
            // Work without a frame, such as a DUMP, still occupies bus and engines.
            None if self.transmit.made.is_none() => {
                let used = self.used();
                self.show_sent(now);
                self.occupy(now, used);
            }
            None => {}
        }
        self.report_lost(now);
        frame
    }

    /// Makes the next frame when bus and engines are free, if work has costs. The frame may leave when they finish it;
    /// meanwhile the previous frame is on the line.
    pub(super) fn make_ahead(&mut self, now: Instant) {
        if self.config.costs.is_none() || self.transmit.made.is_some() || self.transmit.busy_until > now {
            return;
        }
        self.begin_sending_when_due(now);
        let used = self.used();
        let frame = self.make_frame(now);
        let ready = self.occupy(now, used);
        self.transmit.made = frame.map(|frame| (ready, frame));
    }

    /// Returns the time at which the next frame can be made. `None` without costs, or if a frame is made already.
    pub(super) fn next_making(&self) -> Option<Instant> {
        let TransmitSide { activity, shaper, busy_until, made, .. } = &self.transmit;
        if self.config.costs.is_none() || made.is_some() {
            return None;
        }
        let from_ring = match activity {
            Activity::Idle => None,
            Activity::Fetching { until } => Some(*until),
            Activity::Sending => Some(*busy_until),
        };
        earliest(from_ring, shaper.next_due()).map(|at| at.max(*busy_until))
    }

    /// Occupies bus and engines for the work done since `before`. Returns the time at which they finish.
    pub(super) fn occupy(&mut self, now: Instant, before: Option<ResourceUse>) -> Instant {
        let cost = self.cost_since(before);
        if before.is_some() {
            self.transmit.busy_until = self.transmit.busy_until.max(now) + cost;
        }
        now.max(self.transmit.busy_until)
    }

    /// Takes the frame that was made, if it is ready, and makes the next.
    fn take_made(&mut self, now: Instant) -> Option<Frame> {
        self.make_ahead(now);
        let (_, frame) = self.transmit.made.take_if(|(ready, _)| *ready <= now)?;
        self.make_ahead(now);
        Some(frame)
    }

    fn begin_sending_when_due(&mut self, now: Instant) {
        if let Activity::Fetching { until } = self.transmit.activity
            && until <= now
        {
            self.transmit.activity = Activity::Sending;
        }
    }

    /// Makes the next frame from the ring or the shaper, alternately.
    fn make_frame(&mut self, now: Instant) -> Option<Frame> {
        for _ in 0..2 {
            self.transmit.shaper_is_next = !self.transmit.shaper_is_next;
            let shaper_is_next = self.transmit.shaper_is_next;
            let frame = if shaper_is_next { self.frame_from_ring(now) } else { self.frame_from_shaper(now) };
            if frame.is_some() {
                return frame;
            }
        }
        None
    }

    /// Starts fetching if a doorbell rang while the transmit side was idle. A busy transmit side finds later
    /// descriptors by itself. Commands are scheduled separately, because they do not wait for packets.
    pub(super) fn notice_doorbell(&mut self, now: Instant) {
        let has_commands = !self.rings.control.is_empty();
        let packets = self.transmit.is_idle() && (has_commands || !self.rings.send.is_empty());
        let commands = has_commands && self.control_due.is_none();
        // The common case.
        if !commands && !packets {
            return;
        }
        let delays = self.config.delays;
        let until = match self.transmit.activity {
            Activity::Fetching { until } => until,
            Activity::Idle | Activity::Sending => now + delays.doorbell + delays.dma + delays.engine,
        };
        if packets {
            self.transmit.activity = Activity::Fetching { until };
        }
        if commands {
            self.control_due = Some(until);
        }
    }

    pub(crate) fn next_transmit(&self) -> Option<Instant> {
        let free_at = self.transmit.port_free_at;
        if let Some((ready, _)) = &self.transmit.made {
            return Some(free_at.max(*ready));
        }
        let from_ring = match self.transmit.activity {
            // Completions wait until the port has sent the frames and the send ring is empty, so that one interrupt reports them.
            Activity::Idle => (!self.transmit.done.is_empty()).then_some(free_at),
            Activity::Fetching { until } => Some(until),
            Activity::Sending => Some(free_at),
        };
        earliest(from_ring, self.transmit.shaper.next_due()).map(|at| at.max(free_at).max(self.transmit.busy_until))
    }

    /// Reports completed descriptors and wakes a waiting driver.
    pub(super) fn show_sent(&mut self, now: Instant) {
        if self.transmit.done.is_empty() {
            return;
        }
        for slots in self.transmit.done.chunks(SendCompletion::BATCH) {
            let failed = &self.transmit.failed;
            let bits = slots.iter().enumerate().map(|(place, slot)| u8::from(failed.contains(slot)) << place);
            let failed = if failed.is_empty() { 0 } else { bits.sum() };
            // The completion ring has as many entries as the send ring, and each completion stands for at least one
            // descriptor.
            let _ = self.rings.send_completions.stage(SendCompletion { slots: slots.into(), failed });
            self.dma.completions += dma::COMPLETION;
        }
        self.transmit.done.clear();
        self.transmit.failed.clear();
        self.rings.send_completions.publish();
        self.send_interrupt(now);
    }

    /// Completes all descriptors on the send ring and in the shaper without sending.
    pub(super) fn flush_send_ring(&mut self) {
        let transmit = &mut self.transmit;
        transmit.done.extend(transmit.current.take().map(|job| job.slot));
        transmit.done.extend(transmit.shaper.clear().map(|held| match held {
            DelayedItem::Descriptor(entry) => entry.slot,
            DelayedItem::Rest(job) => job.slot,
        }));
        while let Some(entry) = self.rings.send.pop() {
            transmit.done.push(entry.slot);
        }
        transmit.ahead.clear();
        transmit.made = None;
        transmit.activity = Activity::Idle;
    }

    /// Returns the next frame of the send ring.
    fn frame_from_ring(&mut self, now: Instant) -> Option<Frame> {
        while self.transmit.activity == Activity::Sending {
            let Some(job) = self.transmit.current.take() else {
                if self.transmit.done.len() >= SendCompletion::BATCH {
                    self.show_sent(now);
                }
                self.fetch_descriptor(now);
                continue;
            };
            let (frame, rest) = self.send_segment(job);
            self.transmit.current = rest;
            if frame.is_some() {
                return frame;
            }
        }
        None
    }

    /// Returns the next frame of the shaper that is due.
    fn frame_from_shaper(&mut self, now: Instant) -> Option<Frame> {
        loop {
            let (turn, held) = self.transmit.shaper.pop_due(now)?;
            let job = match held {
                DelayedItem::Descriptor(entry) => self.execute(*entry),
                DelayedItem::Rest(job) => Some(job),
            };
            let rate = job.as_ref().and_then(|job| job.segmenter.packet().ask.rate);
            let (frame, rest) = job.map_or((None, None), |job| self.send_segment(job));
            let gap = match (&frame, rate) {
                (Some(frame), Some(rate)) => {
                    self.counters.tx_paced_packets += 1;
                    gap(frame.len(), rate)
                }
                _ => Duration::ZERO,
            };
            self.transmit.shaper.finish(now, turn, rest.map(DelayedItem::Rest), gap);
            if frame.is_some() {
                return frame;
            }
        }
    }

    /// Fetches the next descriptor and processes or delays it.
    fn fetch_descriptor(&mut self, now: Instant) {
        // A command posted before a descriptor was published must run before it. So look at the ring first, then run
        // commands.
        let published = !self.rings.send.is_empty();
        self.run_control(now);
        let Some(entry) = published.then(|| self.rings.send.pop()).flatten() else {
            self.transmit.activity = Activity::Idle;
            return;
        };
        match self.lane_of(&entry.descriptor) {
            Some(flow) => self.transmit.shaper.push(now, flow, DelayedItem::Descriptor(Box::new(entry))),
            None => self.transmit.current = self.execute(entry),
        }
    }

    /// Returns the flow of the lane that a descriptor must enter.
    fn lane_of(&self, descriptor: &SendDescriptor) -> Option<FlowKey> {
        let shaper = &self.transmit.shaper;
        match descriptor {
            SendDescriptor::Packet(packet) => {
                let paced = packet.ask.rate.is_some();
                if !paced && shaper.is_empty() {
                    return None;
                }
                let flow =
                    Headers::parse_unfinished(&packet.header).transport()?.flow_of_receiver(&packet.header).reversed();
                (paced || shaper.has_queued(&flow)).then_some(flow)
            }
            SendDescriptor::StaticParameters { handle, .. } | SendDescriptor::ProgressParameters { handle, .. } => {
                self.lane_of_context(*handle)
            }
            SendDescriptor::Ahead { context, .. } => self.lane_of_context(*context),
            SendDescriptor::Dump { contexts, .. } => self.lane_of_context(contexts.iter().flatten().copied().next()?),
            // Paced packets are never wrapped by an engine, and only wrapped packets depend on these commands.
            SendDescriptor::Control { .. } => None,
            // Each lane processes its descriptors in order, so a fence adds nothing.
            SendDescriptor::Fence => None,
        }
    }

    fn lane_of_context(&self, handle: Handle) -> Option<FlowKey> {
        let shaper = &self.transmit.shaper;
        let flow = if shaper.is_empty() { None } else { self.contexts.flow_of(handle) };
        flow.filter(|flow| shaper.has_queued(flow))
    }

    /// Processes a descriptor, or starts to.
    fn execute(&mut self, entry: SendEntry) -> Option<Box<OutgoingPacket>> {
        let SendEntry { slot, descriptor } = entry;
        let mut is_done = true;
        match descriptor {
            SendDescriptor::Packet(packet) => return self.start_packet(slot, packet),
            SendDescriptor::StaticParameters { handle, number } => {
                self.dma.tx_parameters += dma::STATIC_PARAMETERS_DESCRIPTOR;
                is_done = self.set_parameters(handle, |engine| engine.count_from(handle, number));
            }
            SendDescriptor::ProgressParameters { handle, start } => {
                self.dma.tx_parameters += dma::PROGRESS_PARAMETERS_DESCRIPTOR;
                is_done = self.set_parameters(handle, |engine| engine.begin(handle, start));
            }
            SendDescriptor::Fence => self.dma.tx_parameters += dma::FENCE_DESCRIPTOR,
            SendDescriptor::Ahead { context, bytes } => {
                self.dma.tx_parameters += dma::AHEAD_DESCRIPTOR;
                self.transmit.ahead.insert(context, bytes);
            }
            SendDescriptor::Dump { contexts, places, bytes, ahead } => {
                is_done = self.run_dump(&contexts, places, &bytes, &ahead);
            }
            SendDescriptor::Control { epoch, command } => self.run_command(epoch, *command),
        }
        self.note_done(slot, is_done);
        None
    }

    fn start_packet(&mut self, slot: u32, mut packet: TxPacket) -> Option<Box<OutgoingPacket>> {
        self.dma.tx_descriptors += dma::packet_descriptor_bytes(packet.header.len(), packet.fragments.len());
        self.dma.tx_payload += packet.payload_len() as u64;
        let ask = packet.ask;
        if ask.mss.is_some() {
            self.counters.tx_tso_packets += 1;
            self.counters.tx_tso_bytes += packet.payload_len() as u64;
        }
        let mut ahead = [const { Bytes::new() }; LAYERS];
        if !self.transmit.ahead.is_empty() {
            // The bytes apply to this packet only, and not to the next packet if this packet is given up.
            ahead = ask.streams.map(|ask| self.transmit.ahead.remove(&ask?.context)).map(Option::unwrap_or_default);
        }
        // Checked before the first segment, so that no part of the packet leaves if a context is out of sync.
        match expect_positions(&stream_contexts(&ask), &mut self.contexts, &mut self.dma, stream_positions(&ask)) {
            None => return self.give_up(slot, PacketDrop::UnknownContext),
            Some(false) => return self.give_up(slot, PacketDrop::OutOfSync),
            Some(true) => {}
        }
        if let Err(why) = self.run_packet_engines(&mut packet, &ahead) {
            return self.give_up(slot, why);
        }
        let ask = packet.ask;
        let mut wrapping = None;
        if let Some(asked) = ask.packet {
            let begun = match self.contexts.packet(asked.context, &mut self.dma) {
                Some(engine) => engine.begin(asked, &mut packet),
                None => {
                    self.note_missing(asked.context);
                    None
                }
            };
            let Some(begun) = begun else { return self.give_up(slot, PacketDrop::NotWrapped) };
            wrapping = Some((asked.context, begun));
        }
        let places = stream_positions(&packet.ask);
        Some(Box::new(OutgoingPacket { slot, segmenter: Segmenter::new(packet), places, wrapping }))
    }

    /// Lets engines process a packet before it is cut, if their stages need the bytes after a segment. The packet's
    /// request is then removed. `ahead` are the bytes after the packet, by layer.
    fn run_packet_engines(&mut self, packet: &mut TxPacket, ahead: &[Bytes; LAYERS]) -> Result<(), PacketDrop> {
        for layer in (0..LAYERS).rev() {
            let Some(ask) = packet.ask.streams[layer] else { continue };
            let QueuePair { contexts, dma, .. } = self;
            let engine = contexts.stream(ask.context, dma).ok_or(PacketDrop::UnknownContext)?;
            if !engine.works_on_whole_packets(ask.context) {
                continue;
            }
            if packet.ask.streams[layer + 1..].iter().any(Option::is_some) {
                // An engine above would change the bytes per segment, after this engine has used them.
                return Err(PacketDrop::OutOfSync);
            }
            // Framing of lower layers may lie between the fragments.
            let of_stream = |(fragment, _): &(usize, &mut Bytes)| ask.is_of(*fragment);
            let mut bytes = BytesMut::with_capacity(ask.bytes as usize);
            let fragments = packet.fragments.iter_mut().enumerate().filter(of_stream);
            fragments.for_each(|(_, fragment)| bytes.extend_from_slice(fragment));
            let mut made = BytesMut::with_capacity(bytes.len());
            let at = stream_positions(&packet.ask)[layer];
            with_buffers(contexts, dma, ask.context, &bytes, |engine| {
                engine.transmit_whole(ask.context, at, &bytes, &ahead[layer], &mut made, true)
            })?;
            check_length(bytes.len(), made.len())?;
            let mut made = made.freeze();
            let fragments = packet.fragments.iter_mut().enumerate().filter(of_stream);
            fragments.for_each(|(_, fragment)| *fragment = made.split_to(fragment.len()));
            packet.ask.streams[layer] = None;
        }
        Ok(())
    }

    /// Makes the next segment. Returns the frame, or `None` if the packet was given up, and the packet if more segments
    /// follow.
    fn send_segment(&mut self, mut job: Box<OutgoingPacket>) -> (Option<Frame>, Option<Box<OutgoingPacket>>) {
        let OutgoingPacket { slot, segmenter, places, wrapping } = &mut *job;
        let slot = *slot;
        let ask = segmenter.packet().ask;
        let stages = stream_contexts(&ask);
        let works = ask.has_context();
        let mut worked = WorkCounts::default();
        let QueuePair { frames, contexts, dma, transmit: TransmitSide { scratch, framed, .. }, .. } = self;
        let made = segmenter.next_frame(frames, |seq, fragment, bytes, frame| {
            *framed += bytes.len() as u64;
            if !works {
                frame.extend_from_slice(bytes);
                return Ok(());
            }
            // A fragment may be framing of a lower layer, which the contexts above never saw.
            let of_fragment = ask.streams.map(|ask| ask.filter(|ask| ask.is_of(fragment)).map(|ask| ask.context));
            places[0] = seq;
            let part = run_engines(&of_fragment, contexts, dma, (*places, bytes, None), scratch, frame)?;
            // Each context's position advances by the bytes of its own stream only.
            let above = places.iter_mut().zip(of_fragment).filter(|(_, context)| context.is_some());
            above.for_each(|(place, _)| *place += bytes.len() as u32);
            worked.iter_mut().zip(part).for_each(|(all, part)| *all += part);
            Ok::<(), PacketDrop>(())
        });
        let mut frame = match made {
            Ok(frame) => frame,
            // A segment that may be partly plaintext must not leave.
            Err(why) => return (None, self.give_up(slot, why)),
        };
        // Wrapping comes last, because the outer packet covers headers and encrypted payload.
        if let Some((handle, wrapping)) = wrapping {
            let longest = self.longest_frame();
            self.contexts.note_work(frame.len());
            let wrapped = match self.contexts.packet(*handle, &mut self.dma) {
                Some(engine) => engine.wrap(*handle, wrapping, &frame, longest),
                None => {
                    self.note_missing(*handle);
                    None
                }
            };
            let Some(wrapped) = wrapped else { return (None, self.give_up(slot, PacketDrop::NotWrapped)) };
            frame = wrapped;
        }
        // Engines count a segment only now, because a refused one does not leave.
        for (handle, worked) in stages.into_iter().zip(worked) {
            if let Some(handle) = handle {
                self.contexts.note_sent(handle, worked);
            }
        }
        if ask.checksum && segmenter.has_transport() {
            self.counters.tx_csum_partial += 1;
        }
        self.counters.tx_packets += 1;
        self.counters.tx_bytes += frame.len() as u64;
        let frame = Some(Frame::new(frame.freeze()));
        if segmenter.is_done() {
            self.transmit.done.push(slot);
            return (frame, None);
        }
        (frame, Some(job))
    }

    /// Counts a packet that is given up.
    fn give_up(&mut self, slot: u32, why: PacketDrop) -> Option<Box<OutgoingPacket>> {
        match why {
            PacketDrop::UnknownContext => self.counters.tx_drop_unknown_context += 1,
            PacketDrop::OutOfSync => self.counters.tx_drop_out_of_sync += 1,
            PacketDrop::NoKey { context, key } => {
                self.counters.tx_drop_no_key += 1;
                self.lose(context, key);
            }
            PacketDrop::NotWrapped => {}
        }
        self.note_done(slot, false);
        None
    }

    fn note_done(&mut self, slot: u32, is_done: bool) {
        self.transmit.done.push(slot);
        if !is_done {
            self.transmit.failed.push(slot);
        }
    }

    /// Counts a packet with a context that does not exist.
    pub(super) fn note_missing(&mut self, handle: Handle) {
        let counted = self.contexts.packet_engine(handle.engine()).is_some_and(|engine| engine.note_missing());
        self.counters.tx_drop_unknown_context += u64::from(!counted);
    }

    fn set_parameters(&mut self, handle: Handle, set: impl FnOnce(&mut dyn AnyStream) -> bool) -> bool {
        let is_set = self.contexts.stream(handle, &mut self.dma).is_some_and(set);
        self.counters.tx_stale_parameters += u64::from(!is_set);
        is_set
    }

    fn run_dump(&mut self, stages: &LayerContexts, places: StreamPositions, bytes: &[u8], ahead: &[u8]) -> bool {
        self.dma.tx_resync += dma::DUMP_DESCRIPTOR + (bytes.len() + ahead.len()) as u64;
        let QueuePair { contexts, dma, transmit: TransmitSide { scratch, nowhere, .. }, .. } = self;
        nowhere.clear();
        // The bytes of an incomplete block matter only to a context below.
        let ahead = stages[0].map(|_| ahead);
        let done = run_engines(stages, contexts, dma, (places, bytes, ahead), scratch, nowhere);
        if done.is_err() {
            self.counters.tx_stale_parameters += 1;
        }
        let is_done = done.is_ok();
        if let Err(PacketDrop::NoKey { context, key }) = done {
            self.lose(context, key);
        }
        is_done
    }
}

/// Returns the time that a frame occupies the port.
pub(crate) fn line_time(frame: &Frame, rate: Option<u64>) -> Duration {
    rate.map_or(Duration::ZERO, |rate| {
        let nanos = frame.wire_len() as u128 * 8 * 1_000_000_000 / u128::from(rate.max(1));
        Duration::from_nanos(u64::try_from(nanos).unwrap_or(u64::MAX))
    })
}
