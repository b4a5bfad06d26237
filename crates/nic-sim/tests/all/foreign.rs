//! An external packet engine: packets that it wraps on one NIC are opened on another.
//!
//! The engine "Shim" inserts ten bytes after the Ethernet addresses, including an identifier and a number, masks the
//! rest under a key, and appends a tag of two bytes.

use bytes::BytesMut;
use core::convert::Infallible;
use nic_sim::engine::{
    Context, Engine, FrameLookup, Headers, ImageReader, ImageWriter, NoCounters, OpenedFrame, OutOfStep, PacketEngine,
    ReceivedPayload, StreamEngine,
};
use nic_sim::wire::Port;
use nic_sim::{Delays, Device, Driver, NicConfig, multi_queue_nic_with, nic_with};
use offload_api::rx::Checksums;
use offload_api::{
    ContextEvent, ContextNews, ContextRefusal, Direction, DropReason, EngineInfo, FlowKey, Handle, Key, KeyBytes,
    Layer, NetDevice, NewContext, NoRecords, PacketAsk, PacketMark, TransmitResult, TxAsk, TxPacket, Verdict, engines,
};
use offload_base::{Instant, Seq};

const ADDRESSES: usize = 12;
const SHIM: usize = 10;
const TAG: usize = 2;
const TYPE: [u8; 2] = [0x88, 0xb5];

#[derive(Debug, Default)]
struct Shim {
    told: Vec<ContextEvent>,
}

#[derive(Clone, Copy)]
struct ShimSpec {
    id: u32,
    key: u64,
}

/// The highest number so far, in either direction.
type Highest = u32;

fn masked(key: u64, number: u32, bytes: &mut [u8]) {
    for (byte, at) in bytes.iter_mut().zip(0u64..) {
        *byte ^= ((key ^ u64::from(number) << 20 ^ at).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 56) as u8;
    }
}

fn tag(key: u64, plain: &[u8]) -> [u8; TAG] {
    let sum = plain.iter().fold(key as u16, |sum, byte| sum.wrapping_mul(31).wrapping_add((*byte).into()));
    sum.to_be_bytes()
}

impl Engine for Shim {
    const NAME: &'static str = "shim";
    type Spec = ShimSpec;
    /// Continues after this number.
    type Command = u32;
    type Change = Infallible;
    type State = Highest;
    type Objects = (u32, u64);
    type Counters = NoCounters;

    fn create(&mut self, _: Direction, spec: ShimSpec) -> Option<(Highest, (u32, u64))> {
        (spec.key != 0).then_some((0, (spec.id, spec.key)))
    }

    fn save(state: &Highest, image: &mut ImageWriter<'_>) {
        image.put_u32(*state);
    }

    fn load(image: &mut ImageReader<'_>) -> Option<Highest> {
        image.take_u32()
    }

    fn command(context: Context<'_, Shim>, last: u32) {
        *context.state = last;
    }

    fn pop_event(&mut self) -> Option<ContextEvent> {
        self.told.pop()
    }

    fn forget(&mut self) {
        self.told.clear();
    }
}

impl PacketEngine for Shim {
    type Facts = ();
    type Encapsulation = ();

    fn look(&self, frame: &[u8], _: &Headers) -> FrameLookup<()> {
        match frame.get(ADDRESSES..ADDRESSES + SHIM) {
            Some([0x88, 0xb5, id @ .., _, _, _, _]) => FrameLookup::Key(KeyBytes::from_parts(&[id]), ()),
            _ => FrameLookup::Nothing,
        }
    }

    fn open(&mut self, context: Context<'_, Shim>, frame: &[u8], (): &(), _: &mut NoCounters) -> OpenedFrame {
        let (_, key) = *context.held;
        let number = u32::from_be_bytes(frame[ADDRESSES + 6..ADDRESSES + SHIM].try_into().unwrap());
        let Some(end) = frame.len().checked_sub(TAG).filter(|end| *end >= ADDRESSES + SHIM) else {
            return OpenedFrame::Untouched(PacketMark::Failed { context: context.handle });
        };
        let mut inner = BytesMut::from(&frame[..ADDRESSES]);
        inner.extend_from_slice(&frame[ADDRESSES + SHIM..end]);
        masked(key, number, &mut inner[ADDRESSES..]);
        if tag(key, &inner[ADDRESSES..]) != frame[end..] {
            return OpenedFrame::Untouched(PacketMark::Failed { context: context.handle });
        }
        if number.is_multiple_of(8) {
            self.told.push(ContextEvent { context: context.handle, code: 7, value: number.into() });
        }
        *context.state = number.max(*context.state);
        let mark = PacketMark::Opened { context: context.handle, number: number.into(), packets: 1, code: 0 };
        OpenedFrame::Another { inner, mark, vouched: false }
    }

    fn begin(&mut self, _: Context<'_, Shim>, _: PacketAsk, _: &mut TxPacket, _: &mut NoCounters) -> Option<()> {
        Some(())
    }

    fn wrap(
        &mut self,
        context: Context<'_, Shim>,
        (): &mut (),
        plain: &[u8],
        longest: usize,
        _: &mut NoCounters,
    ) -> Option<BytesMut> {
        let (id, key) = *context.held;
        if plain.len() + SHIM + TAG > longest {
            return None;
        }
        *context.state += 1;
        let mut frame = BytesMut::from(&plain[..ADDRESSES]);
        frame.extend_from_slice(&TYPE);
        frame.extend_from_slice(&id.to_be_bytes());
        frame.extend_from_slice(&context.state.to_be_bytes());
        frame.extend_from_slice(&plain[ADDRESSES..]);
        masked(key, *context.state, &mut frame[ADDRESSES + SHIM..]);
        frame.extend_from_slice(&tag(key, &plain[ADDRESSES..]));
        Some(frame)
    }
}

// ---- two NICs

struct ShimNic {
    device: Device,
    driver: Driver,
}

impl ShimNic {
    fn new(cache: usize) -> ShimNic {
        let config =
            NicConfig { delays: Delays::NONE, line_rate: None, context_cache_bytes: cache, ..NicConfig::default() };
        let (device, driver) = nic_with(config, |engines| engines.add_packet(Shim::default(), 4));
        ShimNic { device, driver }
    }

    fn engine(&mut self) -> EngineInfo {
        let contexts = self.driver.contexts().unwrap();
        assert!(contexts.engine("another").is_none());
        assert!(contexts.engine("esp").is_none(), "ESP has a separate interface");
        contexts.engine(Shim::NAME).unwrap()
    }

    fn create(&mut self, direction: Direction, spec: ShimSpec) -> Result<Handle, ContextRefusal> {
        let engine = self.engine().number;
        let keys = match direction {
            Direction::Transmit => Vec::new(),
            Direction::Receive => vec![Key::Engine(engine, KeyBytes::from_parts(&[&spec.id.to_be_bytes()]))],
        };
        let new = NewContext { engine, direction, flow: None, keys, spec: Box::new(spec) };
        let made = self.driver.contexts().unwrap().create(new);
        self.device.process(Instant::ZERO);
        made.map_err(|(refused, spec)| {
            assert!(spec.is::<ShimSpec>(), "the spec is returned");
            refused
        })
    }

    fn news(&mut self) -> Vec<ContextNews> {
        self.device.process(Instant::ZERO);
        core::iter::from_fn(|| self.driver.contexts().unwrap().poll_news()).collect()
    }

    /// Returns the frames of a packet that a context wraps.
    fn send(&mut self, packet: &TxPacket, context: Handle) -> Result<Vec<Vec<u8>>, TransmitResult> {
        let ask = TxAsk { packet: Some(PacketAsk { context, number: 0, args: 0 }), ..packet.ask };
        let sent = self.driver.transmit(Instant::ZERO, TxPacket { ask, ..packet.clone() }, &NoRecords);
        if sent != TransmitResult::Posted {
            return Err(sent);
        }
        self.driver.flush(Instant::ZERO);
        self.device.process(Instant::ZERO);
        Ok(core::iter::from_fn(|| self.device.poll_frame(Instant::ZERO)).map(|frame| frame.data.to_vec()).collect())
    }

    /// Returns the packets of frames that arrive together.
    fn receive(&mut self, frames: &[Vec<u8>]) -> Vec<offload_api::RxPacket> {
        for frame in frames {
            self.device.receive_frame(Instant::ZERO, frame.clone().into());
        }
        self.device.process(Instant::ZERO);
        core::iter::from_fn(|| self.driver.receive(Instant::ZERO)).collect()
    }
}

/// Returns a TCP packet with `payload` bytes, to be cut into segments.
fn packet(payload: usize) -> TxPacket {
    let mut header = vec![0xff; 6];
    header.extend_from_slice(&[2, 0, 0, 0, 0, 9, 8, 0, 0x45, 0, 0, 40, 0, 0, 0x40, 0, 64, 6, 0, 0]);
    header.extend_from_slice(&[10, 0, 0, 1, 10, 0, 0, 2, 1, 0xbb, 0x13, 0x88, 0, 0, 0, 1, 0, 0, 0, 1, 0x50, 0x10]);
    header.extend_from_slice(&[1, 0, 0, 0, 0, 0]);
    header[16..18].copy_from_slice(&(40 + payload as u16).to_be_bytes());
    let bytes: Vec<u8> = (0..payload).map(|at| at as u8).collect();
    let ask = TxAsk { checksum: true, mss: (payload > 1000).then_some(1000), ..TxAsk::default() };
    TxPacket { header: header.into(), fragments: [bytes.into()].into_iter().collect(), ask }
}

const SPEC: ShimSpec = ShimSpec { id: 0x0102_0304, key: 0x1234_5678_9abc_def1 };

#[test]
fn packets_are_wrapped_on_one_nic_and_opened_on_another() {
    // With a cache of one context, each context is in host memory while the other works.
    for cache in [4 << 20, 208] {
        let (mut near, mut far) = (ShimNic::new(cache), ShimNic::new(cache));
        let sender = near.create(Direction::Transmit, SPEC).unwrap();
        let other = near.create(Direction::Transmit, ShimSpec { id: 5, key: 9 }).unwrap();
        let receiver = far.create(Direction::Receive, SPEC).unwrap();
        let another = far.create(Direction::Receive, ShimSpec { id: 5, key: 9 }).unwrap();
        assert_eq!(far.news(), [ContextNews::Ready(receiver), ContextNews::Ready(another)]);
        let mut next = 1;
        for payload in [10, 3500, 20_000] {
            let frames = near.send(&packet(payload), sender).unwrap();
            assert_eq!(near.send(&packet(1), other).unwrap().len(), 1);
            assert_eq!(frames.len(), payload.div_ceil(1000));
            assert!(frames.iter().all(|frame| frame[ADDRESSES..].starts_with(&TYPE)));
            // All together, so that they are joined; and one by one.
            for packets in [
                far.receive(&frames),
                frames.iter().flat_map(|frame| far.receive(core::slice::from_ref(frame))).collect(),
            ] {
                let (mut number, mut data) = (next, Vec::new());
                for packet in packets {
                    let PacketMark::Opened { context, number: first, packets, code: 0 } = packet.meta.marks.packet()
                    else {
                        panic!("{:?}", packet.meta)
                    };
                    assert_eq!((context, first, packet.meta.checksums), (receiver, number, Checksums::Good));
                    number += u64::from(packets);
                    data.extend_from_slice(&packet.frame[54..]);
                }
                assert_eq!(data, packet(payload).fragments[0]);
                assert_eq!(number, next + frames.len() as u64);
            }
            next += frames.len() as u64;
        }
        // Numbers 8, 16 and 24 arrived twice.
        let told = far.news().len();
        assert_eq!(told, 6);
    }
}

/// An engine that claims Shim's packets.
#[derive(Debug)]
struct ClaimingEngine;

impl Engine for ClaimingEngine {
    const NAME: &'static str = "greedy";
    type Spec = ();
    type Command = Infallible;
    type Change = Infallible;
    type State = ();
    type Objects = ();
    type Counters = NoCounters;

    fn create(&mut self, _: Direction, (): ()) -> Option<((), ())> {
        Some(((), ()))
    }

    fn save((): &(), _: &mut ImageWriter<'_>) {}

    fn load(_: &mut ImageReader<'_>) -> Option<()> {
        Some(())
    }
}

impl PacketEngine for ClaimingEngine {
    type Facts = ();
    type Encapsulation = ();

    fn look(&self, frame: &[u8], headers: &Headers) -> FrameLookup<()> {
        Shim::default().look(frame, headers)
    }

    fn open(&mut self, _: Context<'_, ClaimingEngine>, _: &[u8], (): &(), _: &mut NoCounters) -> OpenedFrame {
        OpenedFrame::Dropped
    }

    fn begin(
        &mut self,
        _: Context<'_, ClaimingEngine>,
        _: PacketAsk,
        _: &mut TxPacket,
        _: &mut NoCounters,
    ) -> Option<()> {
        None
    }

    fn wrap(
        &mut self,
        _: Context<'_, ClaimingEngine>,
        (): &mut (),
        _: &[u8],
        _: usize,
        _: &mut NoCounters,
    ) -> Option<BytesMut> {
        None
    }
}

#[test]
fn a_packet_goes_to_the_engine_with_its_steered_key() {
    let (mut near, mut far) = (ShimNic::new(4 << 20), ShimNic::new(4 << 20));
    // Before and after Shim, another engine claims every packet, and has no contexts.
    let config = NicConfig { delays: Delays::NONE, line_rate: None, ..NicConfig::default() };
    let (device, driver) = nic_with(config.clone(), |engines| {
        engines.add_packet(ClaimingEngine, 4);
        engines.add_packet(Shim::default(), 4);
        engines.add_packet(ClaimingEngine, 4);
    });
    (far.device, far.driver) = (device, driver);
    let sender = near.create(Direction::Transmit, SPEC).unwrap();
    let receiver = far.create(Direction::Receive, SPEC).unwrap();
    let frames = near.send(&packet(100), sender).unwrap();
    let [packet] = &far.receive(&frames)[..] else { panic!("one") };
    assert!(matches!(packet.meta.marks.packet(), PacketMark::Opened { context, .. } if context == receiver));
    // The queue of a packet is the one with the context, regardless of other engines' claims.
    let (mut device, drivers) = multi_queue_nic_with(NicConfig { queues: 4, ..config }, |engines| {
        engines.add_packet(ClaimingEngine, 4);
        engines.add_packet(Shim::default(), 4);
    });
    for (queue, mut driver) in drivers.into_iter().enumerate().skip(3) {
        let engine = driver.contexts().unwrap().engine(Shim::NAME).unwrap().number;
        let keys = vec![Key::Engine(engine, KeyBytes::from_parts(&[&SPEC.id.to_be_bytes()]))];
        let new = NewContext { engine, direction: Direction::Receive, flow: None, keys, spec: Box::new(SPEC) };
        driver.contexts().unwrap().create(new).unwrap();
        device.process(Instant::ZERO);
        device.receive_frame(Instant::ZERO, frames[0].clone().into());
        device.process(Instant::ZERO);
        assert!(driver.receive(Instant::ZERO).is_some(), "queue {queue}");
    }
}

/// A key of another engine would steer that engine's packets to the wrong context.
#[test]
fn an_engine_has_no_keys_of_another() {
    let mut nic = ShimNic::new(4 << 20);
    let engine = nic.engine().number;
    for other in [engines::ESP, engine + 1] {
        let keys = vec![Key::Engine(other, KeyBytes::from_parts(&[&[1; 12]]))];
        let spec = Box::new(SPEC);
        let new = NewContext { engine, direction: Direction::Receive, flow: None, keys, spec };
        let Err((refused, spec)) = nic.driver.contexts().unwrap().create(new) else { panic!("engine {other}") };
        assert!(refused == ContextRefusal::Unsupported && spec.is::<ShimSpec>(), "the spec is returned");
    }
}

#[test]
fn bad_packets_pass_unchanged_and_lost_contexts_wrap_nothing() {
    let (mut near, mut far) = (ShimNic::new(4 << 20), ShimNic::new(4 << 20));
    let sender = near.create(Direction::Transmit, SPEC).unwrap();
    let receiver = far.create(Direction::Receive, SPEC).unwrap();
    let frames = near.send(&packet(100), sender).unwrap();
    for bit in [ADDRESSES + SHIM, frames[0].len() - 1] {
        let mut frame = frames[0].clone();
        frame[bit] ^= 1;
        let [packet] = &far.receive(&[frame.clone()])[..] else { panic!("one") };
        assert_eq!(packet.frame, frame);
        assert_eq!(packet.meta.marks.packet(), PacketMark::Failed { context: receiver });
    }
    // No context has this identifier.
    let mut frame = frames[0].clone();
    frame[ADDRESSES + 2] ^= 1;
    assert_eq!(far.receive(&[frame])[0].meta.marks.packet(), PacketMark::None);
    // A command changes the next number.
    near.driver.contexts().unwrap().command(sender, Box::new(99u32)).unwrap();
    let frames = near.send(&packet(100), sender).unwrap();
    assert_eq!(frames[0][ADDRESSES + 6..ADDRESSES + SHIM], 100u32.to_be_bytes());
    // Just above and just below the maximum frame of 1,514 bytes after wrapping.
    assert_eq!(near.send(&packet(1000), sender).unwrap().len(), 1);
    for (payload, frames) in [(1448, 1), (1449, 0)] {
        let ask = TxAsk { mss: None, ..packet(payload).ask };
        assert_eq!(near.send(&TxPacket { ask, ..packet(payload) }, sender).unwrap().len(), frames, "{payload}");
    }
    assert!(
        near.driver.contexts().unwrap().command(receiver, Box::new(1u8)).is_ok(),
        "the far NIC has no such context"
    );

    assert_eq!(near.create(Direction::Transmit, ShimSpec { key: 0, ..SPEC }).map(|_| ()), Ok(()), "who knows");
    assert!(matches!(near.news()[..], [ContextNews::Removed(_)]), "the engine refused");
    let more: Vec<_> = (0..3).map(|_| near.create(Direction::Transmit, SPEC).unwrap()).collect();
    assert_eq!(near.create(Direction::Transmit, SPEC), Err(ContextRefusal::NoSpace));
    near.driver.contexts().unwrap().remove(more[0]);
    assert_eq!(near.news(), [ContextNews::Removed(more[0])]);
    assert_eq!(near.send(&packet(1), more[0]), Err(TransmitResult::Dropped(DropReason::Unsupported)));
    assert!(near.create(Direction::Transmit, SPEC).is_ok());

    near.device.reset(Instant::ZERO);
    assert_eq!(
        near.send(&packet(1), sender).map(|frames| frames.len()),
        Ok(0),
        "the driver does not know of the reset"
    );
    assert_eq!(near.device.counters().tx_drop_unknown_context, 1);
    near.news();
    assert_eq!(near.send(&packet(1), sender), Err(TransmitResult::Dropped(DropReason::Unsupported)));
    assert_eq!(near.driver.counters().tx_drop_unsupported, 2, "once for each refusal");
}

/// An engine that saw a packet may take its retransmission for a replay.
#[test]
fn packets_without_room_stay_unopened_and_may_repeat() {
    let (mut near, mut far) = (ShimNic::new(4 << 20), ShimNic::new(4 << 20));
    // Four buffers, each for 14 of the longest frames, and completions for two more packets.
    let config =
        NicConfig { mtu: 9000, receive_ring: 58, delays: Delays::NONE, line_rate: None, ..NicConfig::default() };
    assert_eq!((config.receive_buffers(), config.receive_buffer_bytes() / 9024), (4, 14));
    (far.device, far.driver) = nic_with(config, |engines| engines.add_packet(Shim::default(), 4));
    let sender = near.create(Direction::Transmit, SPEC).unwrap();
    let receiver = far.create(Direction::Receive, SPEC).unwrap();
    assert_eq!(far.news(), [ContextNews::Ready(receiver)]);
    // The engine reports the eighth packet.
    let frame = near.send(&packet(8000), sender).unwrap().pop().unwrap();
    for _ in 0..56 {
        far.device.receive_frame(Instant::ZERO, vec![0xff; 9014].into());
    }
    far.device.receive_frame(Instant::ZERO, frame.clone().into());
    assert_eq!(far.device.counters().rx_out_of_buffer, 1);
    assert_eq!(far.news(), [], "the engine did not see the frame");
    assert_eq!(far.receive(&[]).len(), 56);
    let [packet] = &far.receive(&[frame])[..] else { panic!("one") };
    assert_eq!(packet.meta.marks.packet(), PacketMark::Opened { context: receiver, number: 8, packets: 1, code: 0 });
    assert_eq!(far.news().len(), 1);
}

/// A removed context exists until all packets posted with it are gone.
#[test]
fn posted_packets_are_wrapped_after_their_context_ends() {
    let mut near = ShimNic::new(4 << 20);
    let sender = near.create(Direction::Transmit, SPEC).unwrap();
    let ask = TxAsk { packet: Some(PacketAsk { context: sender, number: 0, args: 0 }), ..packet(1).ask };
    assert_eq!(near.driver.transmit(Instant::ZERO, TxPacket { ask, ..packet(1) }, &NoRecords), TransmitResult::Posted);
    near.driver.contexts().unwrap().remove(sender);
    near.driver.flush(Instant::ZERO);
    near.device.process(Instant::ZERO);
    let frame = near.device.poll_frame(Instant::ZERO).expect("the packet is wrapped");
    assert!(frame.data[ADDRESSES..].starts_with(&TYPE));
    assert!(near.device.poll_frame(Instant::ZERO).is_none());
    near.driver.poll_event();
    assert!(near.device.poll_frame(Instant::ZERO).is_none());
    assert_eq!(near.news(), [ContextNews::Removed(sender)]);
}

/// A stream engine that requests a resync with each segment, but names no header.
#[derive(Debug)]
struct UnfoundStream;

impl Engine for UnfoundStream {
    const NAME: &'static str = "lost";
    type Spec = ();
    type Command = Infallible;
    type Change = Infallible;
    type State = ();
    type Objects = ();
    type Counters = NoCounters;

    fn create(&mut self, _: Direction, (): ()) -> Option<((), ())> {
        Some(((), ()))
    }

    fn save((): &(), _: &mut ImageWriter<'_>) {}

    fn load(_: &mut ImageReader<'_>) -> Option<()> {
        Some(())
    }
}

impl StreamEngine for UnfoundStream {
    fn receive(_: Context<'_, UnfoundStream>, _: &mut ReceivedPayload<'_>, _: &mut NoCounters) -> Option<Verdict> {
        Some(Verdict::Asks)
    }

    fn count_from(_: Context<'_, UnfoundStream>, _: u64) -> bool {
        false
    }

    fn begin(_: Context<'_, UnfoundStream>, _: Seq) -> bool {
        false
    }

    fn expects((): &(), _: Seq) -> Option<bool> {
        None
    }

    fn transmit(_: Context<'_, UnfoundStream>, _: Seq, _: &[u8], _: &mut BytesMut) -> Result<u64, OutOfStep> {
        Err(OutOfStep)
    }

    fn note_sent(_: u64, _: &mut NoCounters) {}
}

#[test]
fn an_engine_that_names_no_place_has_nobody_asked() {
    let config = NicConfig { delays: Delays::NONE, line_rate: None, ..NicConfig::default() };
    let (device, driver) = nic_with(config, |engines| engines.add_stream(UnfoundStream, 4));
    let mut nic = ShimNic { device, driver };
    let contexts = nic.driver.contexts().unwrap();
    let engine = contexts.engine(UnfoundStream::NAME).unwrap().number;
    let flow = FlowKey::tcp("10.0.0.2:5000".parse().unwrap(), "10.0.0.1:443".parse().unwrap());
    let keys = vec![Key::Flow(flow, Layer::FIRST)];
    let new = NewContext { engine, direction: Direction::Receive, flow: Some(flow), keys, spec: Box::new(()) };
    let context = contexts.create(new).unwrap();
    nic.device.process(Instant::ZERO);
    while nic.driver.poll_event().is_some() {}
    let mut frame = ShimNic::new(4 << 20);
    assert_eq!(frame.driver.transmit(Instant::ZERO, packet(10), &NoRecords), TransmitResult::Posted);
    frame.driver.flush(Instant::ZERO);
    frame.device.process(Instant::ZERO);
    let frame = frame.device.poll_frame(Instant::ZERO).unwrap().data.to_vec();
    let heard = nic.receive(&[frame]);
    assert_eq!(
        heard[0].meta.marks.for_engine(engine).map(|mark| (mark.context, mark.verdict)),
        Some((context, Verdict::Asks))
    );
    nic.device.process(Instant::ZERO);
    assert_eq!(nic.driver.poll_event(), None, "there is no header to ask about");
}
