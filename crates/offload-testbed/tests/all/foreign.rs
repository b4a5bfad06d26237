//! An engine from outside the NIC crates, and a protocol that uses it: through two NICs, under loss and reordering.
//!
//! "Veil" has units of a magic byte, the body's length, a check byte, the body masked under a key, and a two-byte tag.
//! Veil is no cipher, but has all that an offload must handle: state in mid-unit, a tag over the whole unit, headers
//! that must be found again, and units that software finishes. Before masking, a body passes a stage that Veil knows by
//! name only: "Chain".

use bytes::{Bytes, BytesMut};
use core::convert::Infallible;
use core::future::poll_fn;
use core::task::{Context as Task, Poll};
use core::time::Duration;
use ktls_offload::{KtlsStream, Offload};
use nic_sim::NicConfig;
use nic_sim::engine::{
    Context, Engine, ImageReader, ImageWriter, NamedStage, NoCounters, OutOfStep, ReceivedPayload, Stage, StageMakers,
    StageRun, StageState, StageStates, Stages, StreamEngine,
};
use nic_sim::wire::LinkConfig;
use nic_sim::wire::impairment::{Impairments, Reorder, Share};
use offload_api::{
    DeviceEvent, Direction, Handle, Key, Layer, NewContext, RxSegment, SealError, Sealer, SegmentStream, StageSpec,
    TxTag, Unit, UnitTag, Verdict,
};
use offload_base::counters::CounterSet;
use offload_base::{Seed, Seq};
use offload_host_stack::TcpConfig;
use offload_host_stack::TcpStream;
use offload_testbed::identity::{Randomness, client_config, server_config, server_name};
use offload_testbed::{BedHost, Testbed};
use std::collections::VecDeque;
use std::io;
use std::sync::Arc;

const MAGIC: u8 = 0xa7;
const HEADER: usize = 4;
const TAG: usize = 2;

/// A position in the stream of units, with the state of the current unit. Used by the engine and by software.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct VeilCursor {
    number: u64,
    at: u32,
    header: [u8; HEADER],
    sum: u16,
    states: StageStates,
}

/// The key and stages of a Veil stream.
#[derive(Debug)]
struct Veiling {
    key: u64,
    stages: Stages,
}

impl VeilCursor {
    fn at_unit(number: u64) -> VeilCursor {
        VeilCursor { number, ..VeilCursor::default() }
    }

    fn body(&self) -> u32 {
        u32::from(u16::from_be_bytes([self.header[1], self.header[2]]))
    }

    fn mask(&self, key: u64) -> u8 {
        let word = (key ^ self.number << 20 ^ u64::from(self.at)).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        (word >> 56) as u8
    }

    /// Passes `bytes` and appends the result to `out`: masks plain bytes and makes the tag if `seals`, otherwise
    /// removes the mask. The mask is already off if the bytes were `opened`.
    fn pass(
        &mut self,
        Veiling { key, stages }: &Veiling,
        bytes: &[u8],
        seals: bool,
        opened: bool,
        out: &mut BytesMut,
    ) -> Result<(), Broken> {
        for byte in bytes {
            let at = self.at as usize;
            let end = HEADER as u32 + self.body();
            let becomes = if at < HEADER {
                self.header[at] = *byte;
                // The check byte tells that the stream's position was lost, before any length is trusted.
                if at + 1 == HEADER && !is_header(self.header) {
                    return Err(Broken);
                }
                *byte
            } else if self.at < end {
                let mask = self.mask(*key);
                // Opened bytes pass the stages once more, to update the stages' states.
                let closes = seals || opened;
                let direction = if closes { Direction::Transmit } else { Direction::Receive };
                let run = StageRun { direction, unit: self.number, at: u64::from(self.at) - HEADER as u64 };
                let mut data = [if closes { *byte } else { *byte ^ mask }];
                if !stages.pass(run, &mut self.states, &mut data) {
                    return Err(Broken);
                }
                let plain = if closes { *byte } else { data[0] };
                self.sum = self.sum.wrapping_mul(31).wrapping_add(plain.into());
                if seals { data[0] ^ mask } else { plain }
            } else {
                let tag = (self.sum ^ *key as u16).to_be_bytes()[(self.at - end) as usize];
                // A sealing cursor writes the tag; an opening one compares it.
                if !seals && tag != *byte {
                    return Err(Broken);
                }
                tag
            };
            out.extend_from_slice(&[becomes]);
            self.at += 1;
            // The end of a unit is known only after its header, because the body's length is in the header.
            if at >= HEADER && self.at == end + TAG as u32 {
                *self = VeilCursor::at_unit(self.number + 1);
            }
        }
        Ok(())
    }
}

#[derive(Debug)]
struct Broken;

fn is_header(header: [u8; HEADER]) -> bool {
    header[0] == MAGIC && header[3] == header[1] ^ header[2] ^ 0x5a
}

fn header(body: usize) -> [u8; HEADER] {
    let [high, low] = (body as u16).to_be_bytes();
    [MAGIC, high, low, high ^ low ^ 0x5a]
}

/// Parses the header at `at`. Returns the offset of the next header.
fn header_at(bytes: &[u8], at: usize) -> Option<usize> {
    let header = bytes.get(at..at + HEADER)?.try_into().ok()?;
    is_header(header).then(|| at + HEADER + usize::from(u16::from_be_bytes([header[1], header[2]])) + TAG)
}

// ---- the engine

/// A stage that masks each byte by all earlier bytes of the unit.
#[derive(Debug)]
struct Chain(u8);

impl NamedStage for Chain {
    const NAME: &'static str = "chain";
    type Spec = u8;

    fn new(first: u8) -> Option<Chain> {
        Some(Chain(first))
    }
}

impl Stage for Chain {
    fn pass(&self, run: StageRun, StageState(state): &mut StageState, bytes: &mut [u8]) -> bool {
        for byte in bytes {
            let became = *byte ^ state[0] ^ self.0;
            let plain = if run.direction == Direction::Transmit { *byte } else { became };
            state[0] = state[0].wrapping_mul(5).wrapping_add(plain);
            *byte = became;
        }
        true
    }
}

#[derive(Debug, Default)]
struct Veil {
    stages: StageMakers,
}

struct VeilSpec {
    key: u64,
    stages: Vec<StageSpec>,
    /// The start of the first unit, for a receiving context.
    start: Option<Seq>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum VeilPlace {
    /// A transmitting context that waits for parameters.
    Nowhere,
    Known {
        next: Seq,
        cursor: VeilCursor,
    },
    /// Behind a gap that may have hidden a header. The next byte is at `end`.
    Searching {
        end: Seq,
    },
    /// After a possible header at `asked`, `passed` headers followed; the next header is at `next`.
    Tracking {
        asked: Seq,
        next: Seq,
        passed: u64,
        end: Seq,
    },
    /// Software confirmed the header: unit `number` starts at `next`.
    Told {
        next: Seq,
        number: u64,
        end: Seq,
    },
}

#[derive(Debug)]
struct VeilState {
    /// Unit number from static parameters.
    number: u64,
    place: VeilPlace,
}

impl VeilState {
    /// Searches for a header in the bytes at `seq`, after a gap.
    fn search(&mut self, seq: Seq, bytes: &[u8]) -> Verdict {
        let end = seq + bytes.len() as u32;
        self.place = VeilPlace::Searching { end };
        for at in 0..bytes.len() {
            if let Some(next) = header_at(bytes, at) {
                let (asked, next) = (seq + at as u32, seq + next as u32);
                self.place = VeilPlace::Tracking { asked, next, passed: 1, end };
                self.track(seq, bytes);
                if matches!(self.place, VeilPlace::Tracking { .. }) {
                    return Verdict::Asks;
                }
            }
        }
        Verdict::Untouched
    }

    /// Follows headers by their lengths through the bytes at `seq`.
    fn track(&mut self, seq: Seq, bytes: &[u8]) {
        let packet_end = seq + bytes.len() as u32;
        let VeilPlace::Tracking { next, passed, end, .. } = &mut self.place else { return };
        *end = packet_end;
        while next.before(packet_end) {
            let Some(after) = header_at(bytes, next.distance_from(seq) as usize) else {
                self.place = VeilPlace::Searching { end: packet_end };
                return;
            };
            *next = seq + after as u32;
            *passed += 1;
        }
    }
}

impl Engine for Veil {
    const NAME: &'static str = "veil";
    type Spec = VeilSpec;
    type Command = Infallible;
    type Change = Infallible;
    type State = VeilState;
    type Objects = Veiling;
    type Counters = NoCounters;

    fn take_stages(&mut self, stages: &StageMakers) {
        self.stages = stages.clone();
    }

    fn create(&mut self, _: Direction, spec: VeilSpec) -> Option<(VeilState, Veiling)> {
        let stages = self.stages.make(spec.stages)?;
        let place =
            spec.start.map_or(VeilPlace::Nowhere, |next| VeilPlace::Known { next, cursor: VeilCursor::at_unit(0) });
        Some((VeilState { number: 0, place }, Veiling { key: spec.key, stages }))
    }

    fn save(state: &VeilState, image: &mut ImageWriter<'_>) {
        image.put_u64(state.number);
        match &state.place {
            VeilPlace::Nowhere => image.put_u8(0),
            VeilPlace::Known { next, cursor } => {
                image.put_u8(1);
                image.put_seq(*next);
                image.put_u64(cursor.number);
                image.put_u32(cursor.at);
                image.put(&cursor.header);
                image.put_u16(cursor.sum);
                cursor.states.put(image);
            }
            VeilPlace::Searching { end } => {
                image.put_u8(2);
                image.put_seq(*end);
            }
            VeilPlace::Tracking { asked, next, passed, end } => {
                image.put_u8(3);
                [asked, next, end].into_iter().for_each(|seq| image.put_seq(*seq));
                image.put_u64(*passed);
            }
            VeilPlace::Told { next, number, end } => {
                image.put_u8(4);
                [next, end].into_iter().for_each(|seq| image.put_seq(*seq));
                image.put_u64(*number);
            }
        }
    }

    fn load(image: &mut ImageReader<'_>) -> Option<VeilState> {
        let number = image.take_u64()?;
        let place = match image.take_u8()? {
            0 => VeilPlace::Nowhere,
            1 => {
                let (next, number, at) = (image.take_seq()?, image.take_u64()?, image.take_u32()?);
                let (header, sum, states) = (image.take()?, image.take_u16()?, StageStates::take(image)?);
                VeilPlace::Known { next, cursor: VeilCursor { number, at, header, sum, states } }
            }
            2 => VeilPlace::Searching { end: image.take_seq()? },
            3 => {
                let (asked, next, end) = (image.take_seq()?, image.take_seq()?, image.take_seq()?);
                VeilPlace::Tracking { asked, next, end, passed: image.take_u64()? }
            }
            4 => VeilPlace::Told { next: image.take_seq()?, end: image.take_seq()?, number: image.take_u64()? },
            _ => return None,
        };
        Some(VeilState { number, place })
    }

    fn question(state: &VeilState) -> Option<Seq> {
        if let VeilPlace::Tracking { asked, .. } = state.place { Some(asked) } else { None }
    }

    fn answer(&mut self, context: Option<Context<'_, Veil>>, (header, number): (Seq, Option<u64>), _: &mut NoCounters) {
        let Some(Context { state, .. }) = context else { return };
        if let VeilPlace::Tracking { asked, next, passed, end } = state.place
            && asked == header
        {
            state.place = match number {
                Some(number) => VeilPlace::Told { next, number: number + passed, end },
                None => VeilPlace::Searching { end },
            };
        }
    }
}

impl StreamEngine for Veil {
    fn receive(
        Context { state, held, .. }: Context<'_, Veil>,
        payload: &mut ReceivedPayload<'_>,
        _: &mut NoCounters,
    ) -> Option<Verdict> {
        if payload.content().is_some() {
            // Inside other units' content, the engine only transmits.
            return None;
        }
        let (seq, end) = (payload.seq(), payload.end());
        let expected = match &state.place {
            VeilPlace::Nowhere => return None,
            VeilPlace::Known { next, .. } => *next,
            VeilPlace::Searching { end } | VeilPlace::Tracking { end, .. } | VeilPlace::Told { end, .. } => *end,
        };
        // A retransmission of bytes that the engine has passed must not move its state.
        if seq.before(expected) {
            return Some(Verdict::Untouched);
        }
        if let VeilPlace::Told { next, number, .. } = state.place
            && !seq.after(next)
            && next.before(end)
        {
            let mut cursor = VeilCursor::at_unit(number);
            if seq == next {
                state.place = VeilPlace::Known { next, cursor };
            } else {
                // The host gets this packet unopened; the engine resumes after it.
                let behind = &payload.wire()[next.distance_from(seq) as usize..];
                state.place = match cursor.pass(held, behind, false, false, &mut BytesMut::new()) {
                    Ok(()) => VeilPlace::Known { next: end, cursor },
                    Err(Broken) => VeilPlace::Searching { end },
                };
                return Some(Verdict::Untouched);
            }
        }
        match &mut state.place {
            VeilPlace::Known { next, cursor } if *next == seq => {
                // The cursor moves only if the whole packet is opened, so that a failed packet leaves it unchanged.
                let mut after = cursor.clone();
                let passed = payload.open(|wire, buffer| {
                    let passed = after.pass(held, wire, false, false, buffer);
                    (passed.is_ok(), passed)
                });
                if passed.is_some_and(|passed| passed.is_ok()) {
                    (*next, *cursor) = (end, after);
                    return Some(Verdict::Done);
                }
                state.place = VeilPlace::Searching { end };
                Some(Verdict::Failed)
            }
            // A gap in a body is harmless: the next header is still ahead.
            VeilPlace::Tracking { next, .. } if seq == expected || !seq.after(*next) => {
                state.track(seq, payload.wire());
                Some(Verdict::Untouched)
            }
            VeilPlace::Told { next, end: behind, .. } if !seq.after(*next) => {
                *behind = end;
                Some(Verdict::Untouched)
            }
            _ => {
                let wire = payload.wire().to_vec();
                Some(state.search(seq, &wire))
            }
        }
    }

    fn count_from(Context { state, .. }: Context<'_, Veil>, number: u64) -> bool {
        state.number = number;
        true
    }

    fn begin(Context { state, .. }: Context<'_, Veil>, start: Seq) -> bool {
        state.place = VeilPlace::Known { next: start, cursor: VeilCursor::at_unit(state.number) };
        true
    }

    fn expects(state: &VeilState, seq: Seq) -> Option<bool> {
        Some(matches!(state.place, VeilPlace::Known { next, .. } if next == seq))
    }

    fn transmit(
        Context { state, held, .. }: Context<'_, Veil>,
        at: Seq,
        bytes: &[u8],
        out: &mut BytesMut,
    ) -> Result<u64, OutOfStep> {
        let VeilPlace::Known { next, cursor } = &mut state.place else { return Err(OutOfStep) };
        if at != *next {
            return Err(OutOfStep);
        }
        cursor.pass(held, bytes, true, false, out).map_err(|Broken| OutOfStep)?;
        *next += bytes.len() as u32;
        Ok(bytes.len() as u64)
    }

    fn note_sent(_: u64, _: &mut NoCounters) {}
}

// ---- the protocol

const KEY: u64 = 0x0123_4567_89ab_cdef;

fn stage_specs() -> Vec<StageSpec> {
    vec![StageSpec::new("chain", 0x35u8)]
}

/// Returns the key and stages for software.
fn veiling() -> Veiling {
    let stages = StageMakers::default().with::<Chain>().make(stage_specs());
    Veiling { key: KEY, stages: stages.unwrap() }
}

struct VeilSealer(Veiling);

impl Sealer for VeilSealer {
    fn seal(&mut self, unit: Unit, plain: &[Bytes]) -> Result<Bytes, SealError> {
        let (mut cursor, mut sealed) = (VeilCursor::at_unit(unit.number), BytesMut::new());
        for piece in plain {
            let passed = cursor.pass(&self.0, piece, true, false, &mut sealed);
            passed.map_err(|Broken| SealError::Malformed { number: unit.number })?;
        }
        Ok(sealed.freeze())
    }
}

/// Creates a context of the engine for a stream, if its device has the engine.
fn ask(stream: &mut impl SegmentStream, direction: Direction, start: Option<Seq>) -> Option<Handle> {
    let mut context = None;
    stream.control(&mut |flow, contexts| {
        let Some(engine) = contexts.engine(Veil::NAME).map(|engine| engine.number) else { return };
        let keys = if direction == Direction::Receive { vec![Key::Flow(flow, Layer::FIRST)] } else { Vec::new() };
        let spec = Box::new(VeilSpec { key: KEY, stages: stage_specs(), start });
        let new = NewContext { engine, direction, flow: Some(flow), keys, spec };
        context = contexts.create(new).ok();
    });
    context
}

async fn send(mut stream: impl SegmentStream, bodies: Vec<Bytes>, has_engine: bool) {
    stream.install(Layer::FIRST, Box::new(VeilSealer(veiling())));
    let context = ask(&mut stream, Direction::Transmit, None);
    assert_eq!(context.is_some(), has_engine);
    let (software, mut sent) = (veiling(), 0);
    for (body, number) in bodies.into_iter().zip(0..) {
        poll_fn(|cx| stream.poll_room(cx)).await.unwrap();
        let length = HEADER + body.len() + TAG;
        // The tag's place is sent as zeros: the engine or software fills it.
        let pieces = [Bytes::copy_from_slice(&header(body.len())), body, Bytes::from_static(&[0; TAG])];
        match context {
            Some(context) => {
                // The engine does not change headers.
                let (len, touched_from) = (length as u32, HEADER as u32);
                let tag = TxTag::device(context, UnitTag { number, at: 0, len, touched_from });
                let mut at = 0;
                stream.send_pieces(&mut pieces.into_iter().map(|piece| {
                    // Each piece carries its own offset, so that any byte range can be retransmitted by the device.
                    let tag = tag.advanced(at);
                    at += piece.len() as u32;
                    (piece, tag)
                }));
            }
            None => {
                let (mut cursor, mut sealed) = (VeilCursor::at_unit(number), BytesMut::new());
                pieces.iter().for_each(|piece| cursor.pass(&software, piece, true, false, &mut sealed).unwrap());
                stream.send(sealed.freeze(), TxTag::PLAIN);
            }
        }
        sent += length as u64;
    }
    stream.flush();
    // The context must live until everything is acknowledged, because any byte may be retransmitted.
    poll_fn(|cx| stream.poll_acked(cx, sent)).await.unwrap();
    if let Some(context) = context {
        stream.release(context);
    }
    stream.finish();
    poll_fn(|cx| stream.poll_segment(cx)).await.unwrap();
}

/// The result of a receiver.
#[derive(Debug, Default)]
struct Received {
    bodies: Vec<Vec<u8>>,
    opened_by_device: u64,
    answers: [u32; 2],
}

/// Starts of units, and the device's question about a start.
#[derive(Default)]
struct Starts {
    /// The latest unit starts with their numbers.
    starts: VecDeque<(Seq, u64)>,
    question: Option<(Handle, Seq)>,
}

async fn receive(mut stream: impl SegmentStream) -> io::Result<Received> {
    let start = stream.next_seq();
    let context = ask(&mut stream, Direction::Receive, start);
    let (mut received, mut cursor, mut starts) = (Received::default(), VeilCursor::at_unit(0), Starts::default());
    let (software, mut body) = (veiling(), BytesMut::new());
    loop {
        let next = poll_fn(|cx| -> Poll<io::Result<Option<RxSegment>>> {
            hear(&mut stream, cx, &mut starts);
            stream.poll_segment(cx)
        });
        let Some(RxSegment { seq, data, meta }) = next.await? else { break };
        let opened = context.is_some_and(|context| {
            meta.marks
                .for_engine(context.engine())
                .is_some_and(|mark| mark.context == context && mark.verdict == Verdict::Done)
        });
        received.opened_by_device += if opened { data.len() as u64 } else { 0 };
        for (byte, at) in data.iter().zip(0..) {
            if cursor.at == 0 {
                starts.starts.push_back((seq + at, cursor.number));
                // The device asks about recent headers only, so few starts suffice.
                if starts.starts.len() > 64 {
                    starts.starts.pop_front();
                }
            }
            let (was, mut plain) = (cursor.clone(), BytesMut::new());
            // Opened bytes still pass through software, because a unit may begin on the device and end in software.
            let passed = cursor.pass(&software, &[*byte], false, opened, &mut plain);
            assert!(passed.is_ok(), "unit {} at {}", was.number, was.at);
            let end = HEADER as u32 + was.body();
            if was.at as usize >= HEADER && was.at < end {
                body.extend_from_slice(&plain);
            }
            if cursor.number != was.number {
                received.bodies.push(body.split().to_vec());
            }
        }
        let (length, reached) = (data.len(), seq + data.len() as u32);
        stream.consume(length);
        if let Some((handle, header)) = starts.question.filter(|(_, header)| header.before(reached)) {
            // `None` tells the device that its guess was no header.
            let number = starts.starts.iter().find(|(start, _)| *start == header).map(|(_, number)| *number);
            received.answers[usize::from(number.is_some())] += 1;
            starts.question = None;
            stream.control(&mut |_, contexts| contexts.answer(handle, header, number));
        }
    }
    if let Some(context) = context {
        stream.release(context);
    }
    stream.finish();
    Ok(received)
}

fn hear(stream: &mut impl SegmentStream, cx: &mut Task<'_>, starts: &mut Starts) {
    while let Poll::Ready(event) = stream.poll_device_event(cx) {
        if let DeviceEvent::ResyncRequested { handle, header, .. } = event {
            starts.question = Some((handle, header));
        }
    }
}

// ---- together

fn bodies(seed: u64) -> Vec<Bytes> {
    let mut random = Seed(seed).stream("bodies");
    let body = |number: u64| {
        let mut body = vec![0; [0, 1, 3, 300, 1500, 4000, 9000][random.below(7) as usize]];
        random.fill(&mut body);
        // Some bodies contain bytes that look like headers.
        if number.is_multiple_of(5) && body.len() > 100 {
            body[50..54].copy_from_slice(&header(700));
        }
        Bytes::from(body)
    };
    (0..400).map(body).collect()
}

/// Sends from host 0 to host 1, each with the engine or without.
fn run(seed: u64, has_engine: [bool; 2], nic: &NicConfig, loss: f64, over_tls: bool) -> (Received, CounterSet) {
    let share = |share| Share::new(share).unwrap();
    let reorder = Reorder { share: share(loss), hold: Duration::from_micros(40) };
    let impairments = Impairments { loss: share(loss), reorder: Some(reorder), ..Impairments::default() };
    // The slow rate spreads packets in time, so that reordering changes their order.
    let link = LinkConfig { rate: Some(2_000_000_000), impairments, ..LinkConfig::default() };
    let mut builder = Testbed::builder(Seed(seed));
    for (name, has_engine) in ["sender", "receiver"].into_iter().zip(has_engine) {
        builder = builder.host(name, nic.clone(), TcpConfig::default());
        if has_engine {
            builder = builder.engines(|engines| {
                // The stage is registered by name: Veil itself does not know its type.
                engines.add_stage::<Chain>();
                engines.add_stream(Veil::default(), 16);
            });
        }
    }
    let mut bed = builder.wire(0, 1, link).build().unwrap();
    let hosts: [BedHost; 2] = [bed.host(0).clone(), bed.host(1).clone()];
    let address = hosts[1].address();
    let [near, far] = hosts;
    let server = far.clone();
    let receiving = far.spawn("receive", async move {
        let mut listener = server.stack().listen(7, 1).unwrap();
        let stream = listener.accept().await.unwrap();
        // Over TLS the Veil units are the content of records, and both engines work on one packet.
        if !over_tls {
            return receive(stream).await.unwrap();
        }
        let config = server_config(Randomness::Seeded(Seed(seed).derive("server")), None);
        receive(offloaded(ktls_offload::accept(stream, Arc::new(config)).await.unwrap()).await).await.unwrap()
    });
    let client = near.clone();
    let sending = near.spawn("send", async move {
        let stream = client.stack().connect(None, (address, 7).into()).await.unwrap();
        if !over_tls {
            return send(stream, bodies(seed), has_engine[0]).await;
        }
        let config = client_config(Randomness::Seeded(Seed(seed).derive("client")), None);
        let stream = ktls_offload::connect(stream, Arc::new(config), server_name()).await.unwrap();
        send(offloaded(stream).await, bodies(seed), has_engine[0]).await;
    });
    let received = bed.run(async move {
        sending.await;
        receiving.await
    });
    (received, bed.counters())
}

/// Offloads TLS both ways, regardless of loss.
async fn offloaded(mut stream: KtlsStream<TcpStream>) -> KtlsStream<TcpStream> {
    stream.set_retransmit_limit(None);
    stream.offload(Offload::BOTH);
    stream.ready().await.unwrap();
    stream
}

/// Units inside TLS records, both sealed by the NIC in one pass. A retransmission needs one context, or both, or
/// software for either.
#[test]
fn outside_engine_works_inside_tls_records() {
    let mut dumps = 0;
    for (seed, loss, context_cache_bytes) in [(1, 0.0, 4 << 20), (2, 0.02, 4 << 20), (3, 0.03, 4 << 20), (4, 0.03, 208)]
    {
        let nic = NicConfig { context_cache_bytes, ..NicConfig::default() };
        let sent: Vec<Vec<u8>> = bodies(seed).iter().map(|body| body.to_vec()).collect();
        for has_engine in [[true, true], [true, false], [false, true]] {
            let (received, counters) = run(seed, has_engine, &nic, loss, true);
            assert!(received.bodies == sent, "seed {seed}, {loss}, {has_engine:?}");
            assert_eq!((counters.value("tx_drop_out_of_sync"), counters.value("tx_stale_parameters")), (0, 0));
            assert!(counters.value("tx_tls_encrypted_bytes") > 0);
            dumps += counters.value("tx_tls_dump_packets");
        }
    }
    assert!(dumps > 0, "nothing had to be rebuilt");
}

#[test]
fn outside_engine_works_under_loss_and_reordering() {
    let (mut answers, mut shares) = ([0; 2], Vec::new());
    for (seed, loss, context_cache_bytes) in [(1, 0.0, 4 << 20), (2, 0.01, 4 << 20), (3, 0.03, 4 << 20), (4, 0.03, 208)]
    {
        // A cache of one context, so that each context is in host memory between its uses.
        let nic = NicConfig { context_cache_bytes, ..NicConfig::default() };
        let sent: Vec<Vec<u8>> = bodies(seed).iter().map(|body| body.to_vec()).collect();
        let all: usize = sent.iter().map(|body| HEADER + body.len() + TAG).sum();
        for has_engine in [[true, true], [true, false], [false, true], [false, false]] {
            let (received, counters) = run(seed, has_engine, &nic, loss, false);
            assert!(received.bodies == sent, "seed {seed}, {loss}, {has_engine:?}");
            let share = received.opened_by_device as f64 / all as f64;
            match (has_engine[1], loss > 0.0) {
                (false, _) => assert_eq!(share, 0.0),
                (true, false) => assert_eq!(share, 1.0, "nothing hid a header"),
                (true, true) => shares.push(share),
            }
            assert_eq!(counters.value("tx_drop_out_of_sync"), 0, "seed {seed}");
            assert_eq!(counters.value("tx_tls_dump_packets"), 0, "nothing of it is TLS");
            answers[0] += received.answers[0];
            answers[1] += received.answers[1];
        }
    }
    assert!(answers.into_iter().all(|count| count > 0), "both answers were given: {answers:?}");
    assert!(shares.iter().all(|share| (0.1..1.0).contains(share)), "it lost its place and found it: {shares:?}");
}
