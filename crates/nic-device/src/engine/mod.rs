//! Engines: what works on packets in the device, each with a state of constant size for every flow or association.
//!
//! An engine is a type that says how its contexts are made, written to host memory and read back ([`Engine`]), and what it
//! does with the bytes of a flow ([`StreamEngine`]), with whole packets ([`PacketEngine`]), or with jobs from memory to memory
//! ([`JobEngine`]). The device knows engines by
//! number, and calls them by handle: it names none of them but where it installs them. `nic_sim::nic_with` takes
//! others beside its own, and [`Contexts`](offload_api::Contexts) gives a protocol access to them.
//!
//! Stream engines see the payload of one flow as it arrives; those of a flow work one above the other, each on the content of
//! the units of the one below.
//!
//! The smallest one there is takes a mask off all that a flow receives; it has no units, so it never loses its place:
//!
//! ```
//! use core::convert::Infallible;
//! use nic_sim::engine::{Context, Engine, Engines, ImageReader, ImageWriter, OutOfStep, Payload, StreamEngine};
//! use nic_sim::stats::DeviceCounters;
//! use nic_sim::wire::Port;
//! use nic_sim::{Delays, NicConfig, nic_with};
//! use offload_api::{Direction, FlowKey, Key, Layer, NetDevice, NewContext, Verdict};
//! # use bytes::{Bytes, BytesMut};
//! # use offload_api::{NoRecords, TxAsk, TxPacket};
//! # use offload_base::{Instant, Seq};
//!
//! #[derive(Debug)]
//! struct Unmask;
//!
//! impl Engine for Unmask {
//!     const NAME: &'static str = "unmask";
//!     type Spec = u8;
//!     type Command = Infallible;
//!     type Change = Infallible;
//!     type State = u8;
//!     type Held = ();
//!
//!     fn create(&mut self, _: Direction, mask: u8) -> Option<(u8, ())> {
//!         Some((mask, ()))
//!     }
//!
//!     fn save(mask: &u8, image: &mut ImageWriter<'_>) {
//!         image.put_u8(*mask);
//!     }
//!
//!     fn load(image: &mut ImageReader<'_>) -> Option<u8> {
//!         image.take_u8()
//!     }
//! }
//!
//! impl StreamEngine for Unmask {
//!     fn receive(at: Context<'_, Unmask>, payload: &mut Payload<'_>, _: &mut DeviceCounters) -> Option<Verdict> {
//!         let opened = payload.open(|wire, buffer| {
//!             buffer.extend(wire.iter().map(|byte| byte ^ *at.state));
//!             (true, ())
//!         });
//!         opened.map(|()| Verdict::Done)
//!     }
//! #   fn count_from(_: Context<'_, Unmask>, _: u64) -> bool { false }
//! #   fn begin(_: Context<'_, Unmask>, _: Seq) -> bool { false }
//! #   fn expects(_: &u8, _: Seq) -> Option<bool> { None }
//! #   fn transmit(
//! #       _: Context<'_, Unmask>, _: Seq, _: &[u8], _: &mut BytesMut,
//! #   ) -> Result<u64, OutOfStep> { Err(OutOfStep) }
//! #   fn note_sent(_: u64, _: &mut DeviceCounters) {}
//!     // It only receives: what it would have to say about sending is left out here.
//! }
//!
//! let config = NicConfig { delays: Delays::NONE, ..NicConfig::default() };
//! let (mut device, mut driver) = nic_with(config, |engines: &mut Engines| engines.add_stream(Unmask, 100));
//! // A protocol finds it by name, and has it follow a flow.
//! let flow = FlowKey::tcp("10.0.0.2:5000".parse()?, "10.0.0.1:443".parse()?);
//! let contexts = driver.contexts().expect("there is one from outside");
//! let engine = contexts.engine("unmask").expect("this one").number;
//! let (direction, keys, spec) = (Direction::Receive, vec![Key::Flow(flow, Layer::FIRST)], Box::new(0x20u8));
//! let new = NewContext { engine, direction, flow: Some(flow), keys, spec };
//! let context = contexts.create(new).map_err(|(refused, _)| refused)?;
//! # let now = Instant::ZERO;
//! device.process(now);
//! # let header = [
//! #     255, 255, 255, 255, 255, 255, 2, 0, 0, 0, 0, 1, 8, 0, 69, 0, 0, 46, 0, 0, 64, 0, 64, 6, 0, 0, 10, 0, 0, 1, 10, 0, 0, 2,
//! #     1, 187, 19, 136, 0, 0, 0, 0, 0, 0, 0, 0, 80, 16, 1, 0, 0, 0, 0, 0,
//! # ];
//! # let ask = TxAsk { checksum: true, ..TxAsk::default() };
//! # let packet = TxPacket { header: header[..].into(), fragments: [b"hEADER"[..].into()].into_iter().collect(), ask };
//! # let (mut far, mut sender) = nic_sim::nic(NicConfig { delays: Delays::NONE, ..NicConfig::default() });
//! # let _sent = sender.transmit(now, packet, &NoRecords);
//! # sender.flush(now);
//! # far.process(now);
//! # let frame = far.poll_frame(now).expect("it leaves");
//! // A segment arrives with "hEADER" in it.
//! device.receive_frame(now, frame);
//! device.process(now);
//! let packet = driver.receive(now).expect("it came");
//! assert!(packet.frame.ends_with(b"Header"));
//! assert_eq!(packet.meta.marks.of(engine).map(|mark| (mark.context, mark.verdict)), Some((context, Verdict::Done)));
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! Two tests have larger ones, with everything that an offload has to handle: `crates/offload-testbed/tests/all/foreign.rs` (units that the
//! NIC follows, loses and finds again, both ways, and the protocol above), `crates/nic-sim/tests/all/foreign.rs` (whole packets).

mod data_keys;
pub(crate) mod esp;
mod job;
pub(crate) mod nvme;
mod payload;
mod protection;
pub(crate) mod quic;
mod stage;
pub(crate) mod tls;
mod transform;
mod xts;

use crate::context::Installed;
pub use crate::context::{ImageReader, ImageWriter};
use crate::stats::DeviceCounters;
use bytes::BytesMut;
use core::any::Any;
use core::fmt;
pub use data_keys::DataKeys;
pub use job::JobEngine;
use nic_rings::config::NicConfig;
use offload_api::{
    ContextEvent, Direction, EngineInfo, Handle, KeyBytes, PacketAsk, PacketMark, Piece, TxPacket, Verdict,
};
use offload_base::Seq;
pub use offload_formats::Headers;
use offload_formats::IpHeaders;
pub use payload::{Content, Parts, Payload};
pub use stage::{KeyPlace, Lent, Run, Stage, StageKeys, StageMakers, StageState, StageStates, Stages};
pub use transform::Transforms;

/// An engine, with what it keeps for all of its contexts together.
pub trait Engine: fmt::Debug + Send + Sized + 'static {
    /// What it is called.
    const NAME: &'static str;
    /// What a context is made from.
    type Spec: Any;
    /// What a context can be told.
    type Command: Any;
    /// How what the engine knows that is of no context can be changed.
    type Change: Any;
    /// What is written to host memory: 208 bytes at most.
    type State: fmt::Debug + Send;
    /// What a state refers to, such as keys and buffers. It stays where it is.
    type Held: fmt::Debug + Send;

    /// A context; `None`: the engine cannot work by this.
    fn create(&mut self, direction: Direction, spec: Self::Spec) -> Option<(Self::State, Self::Held)>;

    /// Writes a state out.
    fn save(state: &Self::State, image: &mut ImageWriter<'_>);

    /// Reads back what [`save`](Self::save) wrote; `None`: `save` cannot have written it.
    fn load(image: &mut ImageReader<'_>) -> Option<Self::State>;

    /// Adds to what a driver is told of it: beside name, number and room, how its contexts find their places again, say.
    fn describe(&self, _: &mut EngineInfo) {}

    /// The stages that the NIC has, once, before any context is made.
    fn take_stages(&mut self, _: &StageMakers) {}

    /// Where keys are lent to the stages of a context.
    fn stage_keys(_: &mut Self::Held) -> Option<&mut StageKeys> {
        None
    }

    /// What stages of other contexts, which name this one as their key, are lent of it while they work.
    fn lend(_: Context<'_, Self>) -> Option<Lent> {
        None
    }

    /// Where software is to say whether a unit starts, if the context waits for that.
    fn question(_: &Self::State) -> Option<Seq> {
        None
    }

    /// What software says about the header at `header`: the number of the unit that starts there, or that none does. Without
    /// a context it comes too late.
    fn answer(&mut self, _: Option<Context<'_, Self>>, _: (Seq, Option<u64>), _: &mut DeviceCounters) {}

    /// Takes a buffer, and the stages that its data pass. Pieces that are dropped go home.
    fn place(_: &mut Self::Held, _: u64, _: Vec<Piece>, _: Option<Self::Command>) {}

    /// Sends home what is left of a buffer.
    fn unplace(_: &mut Self::Held, _: u64) {}

    /// Does what a context is told.
    fn command(_: Context<'_, Self>, _: Self::Command) {}

    /// Changes what is of no context.
    fn change(&mut self, _: Self::Change) {}

    /// Does [`create`](Self::create) for one of the queues that share the engine, such as the queues of an accelerator.
    fn create_for(
        &mut self,
        _queue: usize,
        direction: Direction,
        spec: Self::Spec,
    ) -> Option<(Self::State, Self::Held)> {
        self.create(direction, spec)
    }

    /// Does [`change`](Self::change) for one of the queues that share the engine. An engine keeps a setting by queue if it must not reach the
    /// contexts of other queues.
    fn change_for(&mut self, _queue: usize, change: Self::Change) {
        self.change(change);
    }

    /// Forgets the changes of a queue, which has lost its driver and its contexts.
    fn forget_queue(&mut self, _queue: usize) {}

    /// What is to be told next. There is room for it. It is asked for after calls that have the engine itself or change its
    /// contexts, not after those that pass a flow's bytes: what a stream engine finds there, its verdicts say.
    fn pop_event(&mut self) -> Option<ContextEvent> {
        None
    }

    /// All contexts are gone, and so is whatever else was told.
    fn forget(&mut self) {}
}

/// A context, while it is on the NIC.
#[derive(Debug)]
pub struct Context<'a, E: Engine> {
    /// Its name.
    pub handle: Handle,
    /// Where it stands.
    pub state: &'a mut E::State,
    /// What that refers to.
    pub held: &'a mut E::Held,
}

/// An engine that follows the bytes of flows.
pub trait StreamEngine: Engine {
    /// Whether it counts units: then a transmit context is told the number of each that it is to begin at and that is not the
    /// next ([`count_from`](Self::count_from)).
    const COUNTS_UNITS: bool = true;

    /// Works on the payload of a received packet. `None`: it has nothing to say about it.
    fn receive(context: Context<'_, Self>, payload: &mut Payload<'_>, counters: &mut DeviceCounters)
    -> Option<Verdict>;

    /// The next unit that a transmit context is told of has this number. False: it is no transmit context.
    fn count_from(context: Context<'_, Self>, number: u64) -> bool;

    /// A unit starts at `start`, and is the next to come. False: it is no transmit context. Places here and below are TCP sequence
    /// numbers of units that lie in none of another engine; in those of others, they count the bytes of the engine's own stream, up to
    /// 2^32 likewise.
    fn begin(context: Context<'_, Self>, start: Seq) -> bool;

    /// Whether the byte at `at` is the next of a transmit context; `None`: the context does not transmit.
    fn expects(state: &Self::State, at: Seq) -> Option<bool>;

    /// Makes of `bytes`, which are at `at`, what belongs on the wire, and appends it to `out`, as many as they are. Says how much it
    /// did, in the engine's own measure.
    fn transmit(context: Context<'_, Self>, at: Seq, bytes: &[u8], out: &mut BytesMut) -> Result<u64, OutOfStep>;

    /// The keys that stages of a context need for the payload of a received packet.
    fn keys_to_receive(_: Context<'_, Self>, _: &Payload<'_>, _key: &mut dyn FnMut(Handle)) {}

    /// And for bytes that are the next of a transmit context.
    fn keys_to_transmit(_: Context<'_, Self>, _bytes: &[u8], _key: &mut dyn FnMut(Handle)) {}

    /// Whether a transmit context works on a packet before that is cut into segments, by
    /// [`transmit_whole`](Self::transmit_whole): because it has to know what follows.
    fn works_on_whole_packets(_: &Context<'_, Self>) -> bool {
        false
    }

    /// The same as [`transmit`](Self::transmit) for all bytes of a packet, and then counts what it did; or for those that a resync
    /// brings an engine below, which is not counted. `ahead` is what follows in the unit, up to
    /// [`EngineInfo::looks_ahead`] bytes.
    fn transmit_whole(
        _: Context<'_, Self>,
        _at: Seq,
        _bytes: &[u8],
        _ahead: &[u8],
        _out: &mut BytesMut,
        _: Option<&mut DeviceCounters>,
    ) -> Result<(), OutOfStep> {
        Err(OutOfStep)
    }

    /// A frame leaves on which so much was done.
    fn note_sent(worked: u64, counters: &mut DeviceCounters);
}

/// An engine that makes packets of others, and opens those.
///
/// ```
/// use core::convert::Infallible;
/// use nic_sim::engine::{Context, Engine, Headers, ImageReader, ImageWriter, Opened, PacketEngine, Shown};
/// use nic_sim::stats::DeviceCounters;
/// use nic_sim::wire::Port;
/// use nic_sim::{Delays, NicConfig, nic_with};
/// use offload_api::{Direction, Key, KeyBytes, NetDevice, NewContext};
/// # use bytes::BytesMut;
/// # use offload_api::{PacketAsk, TxPacket};
/// # use offload_base::Instant;
///
/// /// Drops what comes from Ethernet addresses that it was told.
/// #[derive(Debug)]
/// struct Ban;
///
/// impl Engine for Ban {
///     const NAME: &'static str = "ban";
///     type Spec = ();
/// #   type Command = Infallible;
/// #   type Change = Infallible;
/// #   type State = ();
/// #   type Held = ();
///     // A context has no state here.
/// #   fn create(&mut self, _: Direction, (): ()) -> Option<((), ())> { Some(((), ())) }
/// #   fn save((): &(), _: &mut ImageWriter<'_>) {}
/// #   fn load(_: &mut ImageReader<'_>) -> Option<()> { Some(()) }
/// }
///
/// impl PacketEngine for Ban {
///     type Seen = ();
///     type Wrapping = ();
///
///     fn look(&self, frame: &[u8], _: &Headers) -> Shown<()> {
///         frame.get(6..12).map_or(Shown::Nothing, |address| Shown::Key(KeyBytes::of(&[address]), ()))
///     }
///
///     fn open(&mut self, _: Context<'_, Ban>, _: &[u8], (): &(), _: &mut DeviceCounters) -> Opened {
///         Opened::Dropped
///     }
///     // It wraps nothing.
/// #   fn begin(&mut self, _: Context<'_, Ban>, _: PacketAsk, _: &mut TxPacket, _: &mut DeviceCounters) -> Option<()> { None }
/// #   fn wrap(
/// #       &mut self, _: Context<'_, Ban>, (): &mut (), _: &[u8], _: usize, _: &mut DeviceCounters,
/// #   ) -> Option<BytesMut> { None }
/// #   fn note_missing(_: &mut DeviceCounters) {}
/// }
///
/// let config = NicConfig { delays: Delays::NONE, ..NicConfig::default() };
/// let (mut device, mut driver) = nic_with(config, |engines| engines.add_packet(Ban, 100));
/// let contexts = driver.contexts().expect("there is an engine from outside");
/// let engine = contexts.engine("ban").expect("this one").number;
/// let keys = vec![Key::Engine(engine, KeyBytes::of(&[&[2, 0, 0, 0, 0, 9]]))];
/// let new = NewContext { engine, direction: Direction::Receive, flow: None, keys, spec: Box::new(()) };
/// contexts.create(new).map_err(|(refused, _)| refused)?;
/// # let now = Instant::ZERO;
/// device.process(now);
///
/// for from in [8, 9] {
///     let mut frame = vec![0xff; 60];
///     frame[6..12].copy_from_slice(&[2, 0, 0, 0, 0, from]);
///     device.receive_frame(now, frame.into());
/// }
/// device.process(now);
/// let packet = driver.receive(now).expect("the one from 8");
/// assert_eq!((packet.frame[11], driver.receive(now).is_none()), (8, true));
/// # Ok::<(), offload_api::Refused>(())
/// ```
pub trait PacketEngine: Engine {
    /// What it found out about a received packet before it has the context.
    type Seen: fmt::Debug + Send;
    /// What is the same for all segments of a packet that it wraps.
    type Wrapping: fmt::Debug + Send;

    /// What a received frame, whose headers are `headers`, shows of a context.
    fn look(&self, frame: &[u8], headers: &Headers) -> Shown<Self::Seen>;

    /// By what the first fragment of a packet leads to a context: `headers` are those of `packet`.
    fn key_of_first(_packet: &[u8], _headers: &IpHeaders) -> Option<KeyBytes> {
        None
    }

    /// Works on a received frame that showed the key of a context.
    fn open(
        &mut self,
        context: Context<'_, Self>,
        frame: &[u8],
        seen: &Self::Seen,
        counters: &mut DeviceCounters,
    ) -> Opened;

    /// Takes note of fragments that no context is to be told of.
    fn note_fragment(_: &mut DeviceCounters) {}

    /// Whether a packet, which no driver has asked anything for, must not leave without one of the contexts. On a NIC with a
    /// switch, that is asked of all that leaves by the uplink.
    fn claim(&self, _frame: &[u8], _headers: &Headers) -> Claim {
        Claim::Nobody
    }

    /// Begins with a packet, whose headers it makes those that segments have before they are wrapped. `None`: it cannot, which
    /// is counted.
    fn begin(
        &mut self,
        context: Context<'_, Self>,
        ask: PacketAsk,
        packet: &mut TxPacket,
        counters: &mut DeviceCounters,
    ) -> Option<Self::Wrapping>;

    /// Begins with a whole frame that the device has found to be the context's: by a [claim](Self::claim), or as one of a network of
    /// its switch. `None`: it cannot, which is counted.
    fn begin_claimed(
        &mut self,
        _context: Context<'_, Self>,
        _frame: &[u8],
        _counters: &mut DeviceCounters,
    ) -> Option<Self::Wrapping> {
        None
    }

    /// Wraps the next segment into a frame of at most `longest` bytes. `None`: it cannot, which is counted.
    fn wrap(
        &mut self,
        context: Context<'_, Self>,
        wrapping: &mut Self::Wrapping,
        plain: &[u8],
        longest: usize,
        counters: &mut DeviceCounters,
    ) -> Option<BytesMut>;

    /// A packet is dropped, for there is no context that it asks for.
    fn note_missing(counters: &mut DeviceCounters);
}

/// What a received frame shows of a context.
///
/// See [`PacketEngine`] for an example.
#[derive(Debug)]
pub enum Shown<S> {
    /// Nothing: the frame is not the engine's.
    Nothing,
    /// The key that leads there.
    Key(KeyBytes, S),
    /// It is a fragment of a packet of the engine's.
    Fragment,
    /// It is a fragment, of a packet of the engine's or another.
    PerhapsFragment,
}

/// What an engine has to say before a packet leaves a NIC with a switch.
///
/// See [`PacketEngine`] for an example of an engine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Claim {
    /// It may leave as it is.
    Nobody,
    /// It must not leave but wrapped by this context.
    Context(Handle),
    /// It does not show whether it may: a fragment without ports, for example. It must not leave.
    Unclear,
}

/// What became of a received frame.
///
/// See [`PacketEngine`] for an example.
#[derive(Debug)]
pub enum Opened {
    /// Nothing: it is as it was.
    Untouched(PacketMark),
    /// Its payload is plain, all around it is there still. And the packet in it, as it would be without.
    /// `new`: as far as the device can tell; the host, whose window it is, refuses what is not.
    InPlace {
        /// The frame.
        frame: BytesMut,
        /// The packet in it as it would be by itself, and where it is in the frame.
        inner: Option<(BytesMut, Within)>,
        /// What the engine says.
        mark: PacketMark,
        /// It was not there before.
        new: bool,
    },
    /// The packet that was in it. `vouched`: its checksums are of no use, for the engine knows that it is as it was sent.
    Another {
        /// That packet, as a frame.
        inner: BytesMut,
        /// What the engine says.
        mark: PacketMark,
        /// Nobody is to look at its checksums.
        vouched: bool,
    },
    /// It goes no further.
    Dropped,
}

/// Where an engine that opened a packet leaves it in the frame that it came in.
///
/// ```
/// use nic_device::engine::Within;
///
/// // ESP in transport mode: Ethernet's and IPv4's headers, then 16 bytes of SPI, number and IV in front of what was opened.
/// let within = Within { headers: 34, opened: 50, in_front: 34 };
/// assert_eq!(within.opened - within.headers, 16);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Within {
    /// Where the headers around it end that packets have in common, but for what IP's say of one packet.
    pub headers: usize,
    /// Where it goes on behind what is its own alone.
    pub opened: usize,
    /// Bytes of the plain packet that are in front of that.
    pub in_front: usize,
}

/// The bytes are not the next of an engine's stream, or not framed as it should be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OutOfStep;

/// The engines of a NIC, in the order of their numbers: first those that every NIC has.
#[derive(Debug)]
pub struct Engines {
    installed: Vec<Installed>,
    stages: StageMakers,
}

impl Engines {
    /// None at all.
    pub fn none() -> Engines {
        Engines { installed: Vec::new(), stages: StageMakers::default() }
    }

    /// Those that every NIC has.
    pub fn of(config: &NicConfig) -> Engines {
        let mut engines = Engines::none();
        // In the order of `offload_api::engines`.
        engines.add_stream(tls::Tls::new(config), config.tls_contexts);
        engines.add_packet(esp::Esp::default(), Handle::PLACES);
        engines.add_stream(nvme::NvmeTcp::new(config), config.nvme_contexts);
        engines.add_packet(quic::Quic::default(), config.quic_contexts);
        engines.add_job(DataKeys::default(), Handle::PLACES);
        engines.add_stage::<xts::Xts>();
        engines.add_stage::<protection::ProtectedBlocks>();
        engines
    }

    /// Adds an engine that follows the bytes of flows, with so many contexts at most. To come back to the middle of a unit, a
    /// driver runs the unit through the context from its first byte on.
    pub fn add_stream<E: StreamEngine>(&mut self, engine: E, contexts: u32) {
        self.installed.push(Installed::stream(engine, contexts));
    }

    /// Adds an engine that works on whole packets, with so many contexts at most.
    pub fn add_packet<E: PacketEngine>(&mut self, engine: E, contexts: u32) {
        self.installed.push(Installed::packet(engine, contexts));
    }

    /// Adds an engine that works from memory to memory, with so many contexts at most. Only a
    /// [`Lookaside`](crate::lookaside::Lookaside) has job queues that lead to it.
    pub fn add_job<E: JobEngine>(&mut self, engine: E, contexts: u32) {
        self.installed.push(Installed::job(engine, contexts));
    }

    /// What a driver is told of them.
    pub fn infos(&self) -> Vec<EngineInfo> {
        self.installed.iter().zip(0..).map(|(engine, number)| engine.info(number)).collect()
    }

    /// Adds a stage, for any engine that has some.
    pub fn add_stage<S: Stage>(&mut self) {
        self.stages = core::mem::take(&mut self.stages).with::<S>();
    }

    pub(crate) fn into_installed(mut self) -> Vec<Installed> {
        for engine in &mut self.installed {
            engine.any_mut().take_stages(&self.stages);
        }
        self.installed
    }
}
