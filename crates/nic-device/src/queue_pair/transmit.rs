//! From the send ring to the port.
//!
//! Descriptors are worked on in order, a frame at a time: the next one is fetched when the port can take more, so a
//! slow line backs up into the ring, not into the device. A packet that asks for a rate goes to its flow's lane in the
//! shaper instead, and so does everything of that flow for as long as something waits there; others pass it. Ring and
//! shaper share the port frame by frame: a rate is a ceiling, not a claim.

use crate::context::ContextStore;
use crate::queue_pair::pacing::{Shaper, gap};
use crate::queue_pair::segmentation::Segmenter;
use crate::queue_pair::{QueuePair, Used};
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

/// The transmit side's state.
#[derive(Debug, Default)]
pub(super) struct TransmitSide {
    activity: Activity,
    /// The packet from the ring that is being sent.
    current: Option<Box<Job>>,
    /// What has to wait for its time.
    shaper: Shaper<Held>,
    /// Whose turn it is when both the ring and the shaper have something.
    shaper_is_next: bool,
    /// When the port has sent what it was given.
    port_free_at: Instant,
    /// When bus and engines are done with what was begun.
    busy_until: Instant,
    /// The next frame, and when bus and engines are done with it, if they take time.
    made: Option<(Instant, Frame)>,
    /// Payload bytes put into frames.
    pub(super) framed: u64,
    /// Descriptors done and not yet reported.
    done: Vec<u32>,
    /// Which of these failed.
    failed: Vec<u32>,
    /// What follows the next packet of a context's stream.
    pub(super) ahead: HashMap<Handle, Bytes>,
    /// Where DUMPs go: through the engine and nowhere.
    nowhere: BytesMut,
    /// For what goes through one engine before another.
    scratch: [BytesMut; 2],
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Activity {
    /// The ring was empty when last looked at.
    #[default]
    Idle,
    /// A doorbell rang; its descriptors can be acted on from then.
    Fetching { until: Instant },
    /// Working through the ring.
    Sending,
}

/// A packet being sent, and the descriptor that asked for it. Boxed: too large to be moved about for each segment.
#[derive(Debug)]
struct Job {
    slot: u32,
    segmenter: Segmenter,
    /// Where the next of its bytes are on which contexts work, but for the first layer, whose place each segment has.
    places: Places,
    /// The context that wraps its segments, and what its engine keeps for that.
    wrapping: Option<(Handle, BoxedEncapsulation)>,
}

/// What waits in the shaper.
#[derive(Debug)]
enum Held {
    Descriptor(Box<SendEntry>),
    /// The rest of a packet.
    Rest(Box<Job>),
}

impl TransmitSide {
    pub(super) fn is_idle(&self) -> bool {
        self.activity == Activity::Idle
    }
}

/// What works on a packet's payload as it leaves, by layer: the context of the highest one first, on those bytes that are of
/// its stream. They are called by handle: while one works, the others' contexts may lie in host memory.
type Stages = [Option<Handle>; LAYERS];

/// How much each engine did, in its own measure.
type Worked = [u64; LAYERS];

/// What is to work on a packet.
fn stages(ask: &TxAsk) -> Stages {
    ask.streams.map(|ask| Some(ask?.context))
}

/// Where bytes are in the stream of each layer, as contexts know places: by TCP sequence numbers in that of the first, by the low bits
/// of offsets in those above.
type Places = [Seq; LAYERS];

/// Where the bytes of a packet begin on which contexts are to work.
fn places(ask: &TxAsk) -> Places {
    let mut places = ask.streams.map(|ask| ask.map_or(Seq(0), |ask| Seq(ask.offset as u32)));
    places[0] = ask.seq;
    places
}

/// Whether the contexts expect the bytes at these places; `None`: one of them does not exist.
fn expect(stages: &Stages, contexts: &mut ContextStore, dma: &mut DmaBytes, places: Places) -> Option<bool> {
    let mut expected = true;
    for (handle, place) in stages.iter().zip(places).rev() {
        let Some(handle) = *handle else { continue };
        expected &= contexts.stream(handle, dma)?.expects(handle, place)?;
    }
    Some(expected)
}

/// Makes of `bytes` at `places` what belongs on the wire, and appends it to `destination`. `scratch` may be used. `ahead` is what follows
/// them in the stream of the highest context, for a DUMP that brings one below what that makes.
fn work(
    stages: &Stages,
    contexts: &mut ContextStore,
    dma: &mut DmaBytes,
    (places, bytes, mut ahead): (Places, &[u8], Option<&[u8]>),
    [from, to]: &mut [BytesMut; 2],
    destination: &mut BytesMut,
) -> Result<Worked, GivenUp> {
    let mut worked = Worked::default();
    let mut made = false;
    for layer in (1..LAYERS).rev() {
        let Some(handle) = stages[layer] else { continue };
        to.clear();
        let source = if made { &from[..] } else { bytes };
        let ahead = ahead.take();
        worked[layer] = through(contexts, dma, handle, source, |engine| match ahead {
            Some(ahead) if engine.works_on_whole_packets(handle) => {
                engine.transmit_whole(handle, places[layer], source, ahead, to, false).map(|()| 0)
            }
            _ => engine.transmit(handle, places[layer], source, to),
        })?;
        as_many(source.len(), to.len())?;
        core::mem::swap(from, to);
        made = true;
    }
    let bytes = if made { from } else { bytes };
    match stages[0] {
        Some(handle) => {
            let before = destination.len();
            let transmit = |engine: &mut dyn AnyStream| engine.transmit(handle, places[0], bytes, destination);
            worked[0] = through(contexts, dma, handle, bytes, transmit)?;
            as_many(bytes.len(), destination.len() - before)?;
        }
        None => destination.extend_from_slice(bytes),
    }
    Ok(worked)
}

/// An engine makes as many bytes as it gets: what else it made belongs nowhere on the wire.
fn as_many(given: usize, made: usize) -> Result<(), GivenUp> {
    if given == made { Ok(()) } else { Err(GivenUp::OutOfSync) }
}

/// Has a context work on `bytes`, its stages with the keys that these need.
fn through<R>(
    contexts: &mut ContextStore,
    dma: &mut DmaBytes,
    context: Handle,
    bytes: &[u8],
    transmit: impl FnOnce(&mut dyn AnyStream) -> Result<R, OutOfStep>,
) -> Result<R, GivenUp> {
    contexts.note_work(bytes.len());
    let keys = contexts.keys_to_transmit(context, bytes, dma);
    let (done, refused) = contexts.with_stream(context, dma, keys, transmit).ok_or(GivenUp::UnknownContext)?;
    done.map_err(|OutOfStep| refused.map_or(GivenUp::OutOfSync, |key| GivenUp::NoKey { context, key }))
}

/// Why a packet was given up before its last byte.
enum GivenUp {
    UnknownContext,
    OutOfSync,
    /// A context lacks a key: it will make nothing of these bytes, however often they come.
    NoKey {
        context: Handle,
        key: Handle,
    },
    /// The engine that was to wrap it counted why.
    NotWrapped,
}

impl QueuePair {
    /// The next frame to leave at `now`, if the port is free and there is one. Its line time is taken up.
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

    /// Begins the next frame when bus and engines are free, if they take time: it may leave when they are done with it,
    /// and meanwhile the one before is on the line.
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

    /// When the next frame can be begun, if it is begun before it can leave.
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

    /// Has bus and engines busy with what was done since `before`, and returns when they are done with it.
    pub(super) fn occupy(&mut self, now: Instant, before: Option<Used>) -> Instant {
        let cost = self.cost_since(before);
        if before.is_some() {
            self.transmit.busy_until = self.transmit.busy_until.max(now) + cost;
        }
        now.max(self.transmit.busy_until)
    }

    /// Takes the frame that was made, if it is ready, and begins the next.
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

    /// Makes the next frame, of the ring or of the shaper.
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

    /// Starts fetching if a doorbell rang while the transmit side was idle. One that rings later finds it at work, but for
    /// commands, which wait for no packet.
    pub(super) fn notice_doorbell(&mut self, now: Instant) {
        let has_commands = !self.rings.control.is_empty();
        let packets = self.transmit.is_idle() && (has_commands || !self.rings.send.is_empty());
        let commands = has_commands && self.control_due.is_none();
        // Mostly.
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
            // What is done is reported when the port has sent it and there is nothing more.
            Activity::Idle => (!self.transmit.done.is_empty()).then_some(free_at),
            Activity::Fetching { until } => Some(until),
            Activity::Sending => Some(free_at),
        };
        earliest(from_ring, self.transmit.shaper.next_due()).map(|at| at.max(free_at).max(self.transmit.busy_until))
    }

    /// Reports the descriptors that are done, and wakes the driver if it waits for that.
    pub(super) fn show_sent(&mut self, now: Instant) {
        if self.transmit.done.is_empty() {
            return;
        }
        for slots in self.transmit.done.chunks(SendCompletion::BATCH) {
            let failed = &self.transmit.failed;
            let bits = slots.iter().enumerate().map(|(place, slot)| u8::from(failed.contains(slot)) << place);
            let failed = if failed.is_empty() { 0 } else { bits.sum() };
            // As many completions fit as descriptors do, and each stands for one at least.
            let _room = self.rings.send_completions.stage(SendCompletion { slots: slots.into(), failed });
            self.dma.completions += dma::COMPLETION;
        }
        self.transmit.done.clear();
        self.transmit.failed.clear();
        self.rings.send_completions.publish();
        self.send_interrupt(now);
    }

    /// Throws away what is on the send ring or waits for its time, as done.
    pub(super) fn flush_send_ring(&mut self) {
        let transmit = &mut self.transmit;
        transmit.done.extend(transmit.current.take().map(|job| job.slot));
        transmit.done.extend(transmit.shaper.clear().map(|held| match held {
            Held::Descriptor(entry) => entry.slot,
            Held::Rest(job) => job.slot,
        }));
        while let Some(entry) = self.rings.send.pop() {
            transmit.done.push(entry.slot);
        }
        transmit.ahead.clear();
        transmit.made = None;
        transmit.activity = Activity::Idle;
    }

    /// The next frame of what the ring asks for.
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

    /// The next frame whose time has come.
    fn frame_from_shaper(&mut self, now: Instant) -> Option<Frame> {
        loop {
            let (turn, held) = self.transmit.shaper.pop_due(now)?;
            let job = match held {
                Held::Descriptor(entry) => self.act_on(*entry),
                Held::Rest(job) => Some(job),
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
            self.transmit.shaper.finish(now, turn, rest.map(Held::Rest), gap);
            if frame.is_some() {
                return frame;
            }
        }
    }

    /// Takes the next descriptor from the ring, and acts on it or puts it where it has to wait.
    fn fetch_descriptor(&mut self, now: Instant) {
        // A command given before a descriptor was published is carried out before it: count, then look.
        let published = !self.rings.send.is_empty();
        self.run_control(now);
        let Some(entry) = published.then(|| self.rings.send.pop()).flatten() else {
            self.transmit.activity = Activity::Idle;
            return;
        };
        match self.lane_of(&entry.descriptor) {
            Some(flow) => self.transmit.shaper.push(now, flow, Held::Descriptor(Box::new(entry))),
            None => self.transmit.current = self.act_on(entry),
        }
    }

    /// The flow behind whose packets in the shaper a descriptor has to wait.
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
                (paced || shaper.holds(&flow)).then_some(flow)
            }
            SendDescriptor::StaticParameters { handle, .. } | SendDescriptor::ProgressParameters { handle, .. } => {
                self.lane_of_context(*handle)
            }
            SendDescriptor::Ahead { context, .. } => self.lane_of_context(*context),
            SendDescriptor::Dump { contexts, .. } => self.lane_of_context(contexts.iter().flatten().copied().next()?),
            // No packet waits for its time that an engine is to wrap, and nothing else depends on these.
            SendDescriptor::Control { .. } => None,
            // Work is in order here, and in each lane; every descriptor takes effect before the next of its flow.
            SendDescriptor::Fence => None,
        }
    }

    fn lane_of_context(&self, handle: Handle) -> Option<FlowKey> {
        let shaper = &self.transmit.shaper;
        let flow = if shaper.is_empty() { None } else { self.contexts.flow_of(handle) };
        flow.filter(|flow| shaper.holds(flow))
    }

    /// Does what a descriptor asks for, or begins with it.
    fn act_on(&mut self, entry: SendEntry) -> Option<Box<Job>> {
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

    fn start_packet(&mut self, slot: u32, mut packet: TxPacket) -> Option<Box<Job>> {
        self.dma.tx_descriptors += dma::packet_descriptor_bytes(packet.header.len(), packet.fragments.len());
        self.dma.tx_payload += packet.payload_len() as u64;
        let ask = packet.ask;
        if ask.mss.is_some() {
            self.counters.tx_tso_packets += 1;
            self.counters.tx_tso_bytes += packet.payload_len() as u64;
        }
        let mut ahead = [const { Bytes::new() }; LAYERS];
        if !self.transmit.ahead.is_empty() {
            // Whatever becomes of the packet.
            ahead = ask.streams.map(|ask| self.transmit.ahead.remove(&ask?.context)).map(Option::unwrap_or_default);
        }
        match expect(&stages(&ask), &mut self.contexts, &mut self.dma, places(&ask)) {
            None => return self.give_up(slot, GivenUp::UnknownContext),
            Some(false) => return self.give_up(slot, GivenUp::OutOfSync),
            Some(true) => {}
        }
        if let Err(why) = self.work_whole(&mut packet, &ahead) {
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
            let Some(begun) = begun else { return self.give_up(slot, GivenUp::NotWrapped) };
            wrapping = Some((asked.context, begun));
        }
        let places = places(&packet.ask);
        Some(Box::new(Job { slot, segmenter: Segmenter::new(packet), places, wrapping }))
    }

    /// Has engines work on a packet before it is cut, if they have to know what follows the bytes of a segment. Then the packet does
    /// not ask for that any more. `ahead` is what follows the packet, by layer.
    fn work_whole(&mut self, packet: &mut TxPacket, ahead: &[Bytes; LAYERS]) -> Result<(), GivenUp> {
        for layer in (0..LAYERS).rev() {
            let Some(ask) = packet.ask.streams[layer] else { continue };
            let QueuePair { contexts, dma, .. } = self;
            let engine = contexts.stream(ask.context, dma).ok_or(GivenUp::UnknownContext)?;
            if !engine.works_on_whole_packets(ask.context) {
                continue;
            }
            if packet.ask.streams[layer + 1..].iter().any(Option::is_some) {
                // What an engine above would make of the segments would come too late.
                return Err(GivenUp::OutOfSync);
            }
            // What frames the units of layers below lies between.
            let of_stream = |(fragment, _): &(usize, &mut Bytes)| ask.is_of(*fragment);
            let mut bytes = BytesMut::with_capacity(ask.bytes as usize);
            let fragments = packet.fragments.iter_mut().enumerate().filter(of_stream);
            fragments.for_each(|(_, fragment)| bytes.extend_from_slice(fragment));
            let mut made = BytesMut::with_capacity(bytes.len());
            let at = places(&packet.ask)[layer];
            through(contexts, dma, ask.context, &bytes, |engine| {
                engine.transmit_whole(ask.context, at, &bytes, &ahead[layer], &mut made, true)
            })?;
            as_many(bytes.len(), made.len())?;
            let mut made = made.freeze();
            let fragments = packet.fragments.iter_mut().enumerate().filter(of_stream);
            fragments.for_each(|(_, fragment)| *fragment = made.split_to(fragment.len()));
            packet.ask.streams[layer] = None;
        }
        Ok(())
    }

    /// Makes the next segment of a packet, and gives the packet back if there is more of it. No segment: it was given
    /// up.
    fn send_segment(&mut self, mut job: Box<Job>) -> (Option<Frame>, Option<Box<Job>>) {
        let Job { slot, segmenter, places, wrapping } = &mut *job;
        let slot = *slot;
        let ask = segmenter.packet().ask;
        let stages = stages(&ask);
        let works = ask.has_context();
        let mut worked = Worked::default();
        let QueuePair { frames, contexts, dma, transmit: TransmitSide { scratch, framed, .. }, .. } = self;
        let made = segmenter.next_frame(frames, |seq, fragment, bytes, frame| {
            *framed += bytes.len() as u64;
            if !works {
                frame.extend_from_slice(bytes);
                return Ok(());
            }
            let of_fragment = ask.streams.map(|ask| ask.filter(|ask| ask.is_of(fragment)).map(|ask| ask.context));
            places[0] = seq;
            let part = work(&of_fragment, contexts, dma, (*places, bytes, None), scratch, frame)?;
            let above = places.iter_mut().zip(of_fragment).filter(|(_, context)| context.is_some());
            above.for_each(|(place, _)| *place += bytes.len() as u32);
            worked.iter_mut().zip(part).for_each(|(all, part)| *all += part);
            Ok::<(), GivenUp>(())
        });
        let mut frame = match made {
            Ok(frame) => frame,
            // What was made of the segment may be plaintext in part: it goes nowhere.
            Err(why) => return (None, self.give_up(slot, why)),
        };
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
            let Some(wrapped) = wrapped else { return (None, self.give_up(slot, GivenUp::NotWrapped)) };
            frame = wrapped;
        }
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

    /// Counts a packet that goes no further; nothing is left of it.
    fn give_up(&mut self, slot: u32, why: GivenUp) -> Option<Box<Job>> {
        match why {
            GivenUp::UnknownContext => self.counters.tx_drop_unknown_context += 1,
            GivenUp::OutOfSync => self.counters.tx_drop_out_of_sync += 1,
            GivenUp::NoKey { context, key } => {
                self.counters.tx_drop_no_key += 1;
                self.lose(context, key);
            }
            GivenUp::NotWrapped => {}
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

    /// A packet asks for a context that there is not.
    pub(super) fn note_missing(&mut self, handle: Handle) {
        let counted = self.contexts.packet_engine(handle.engine()).is_some_and(|engine| engine.note_missing());
        self.counters.tx_drop_unknown_context += u64::from(!counted);
    }

    fn set_parameters(&mut self, handle: Handle, set: impl FnOnce(&mut dyn AnyStream) -> bool) -> bool {
        let is_set = self.contexts.stream(handle, &mut self.dma).is_some_and(set);
        self.counters.tx_stale_parameters += u64::from(!is_set);
        is_set
    }

    fn run_dump(&mut self, stages: &Stages, places: Places, bytes: &[u8], ahead: &[u8]) -> bool {
        self.dma.tx_resync += dma::DUMP_DESCRIPTOR + (bytes.len() + ahead.len()) as u64;
        let QueuePair { contexts, dma, transmit: TransmitSide { scratch, nowhere, .. }, .. } = self;
        nowhere.clear();
        // What a context makes of the end of a block matters to one below it only.
        let ahead = stages[0].map(|_| ahead);
        let done = work(stages, contexts, dma, (places, bytes, ahead), scratch, nowhere);
        if done.is_err() {
            self.counters.tx_stale_parameters += 1;
        }
        let is_done = done.is_ok();
        if let Err(GivenUp::NoKey { context, key }) = done {
            self.lose(context, key);
        }
        is_done
    }
}

/// How long the port is busy with a frame.
pub(crate) fn line_time(frame: &Frame, rate: Option<u64>) -> Duration {
    rate.map_or(Duration::ZERO, |rate| {
        let nanos = frame.wire_len() as u128 * 8 * 1_000_000_000 / u128::from(rate.max(1));
        Duration::from_nanos(u64::try_from(nanos).unwrap_or(u64::MAX))
    })
}
