//! Engines that work on whole packets.

use crate::{Context, Engine};
use bytes::BytesMut;
use core::fmt;
use offload_api::{Handle, KeyBytes, PacketAsk, PacketMark, TxPacket};
use offload_formats::{Headers, IpHeaders};

/// An engine that makes packets of others, and opens those.
///
/// ```
/// use core::convert::Infallible;
/// use nic_sim::engine::{Context, Engine, Headers, ImageReader, ImageWriter, NoCounters, Opened, PacketEngine, Shown};
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
/// #   type Counters = NoCounters;
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
///         frame.get(6..12).map_or(Shown::Nothing, |address| Shown::Key(KeyBytes::from_parts(&[address]), ()))
///     }
///
///     fn open(&mut self, _: Context<'_, Ban>, _: &[u8], (): &(), _: &mut NoCounters) -> Opened {
///         Opened::Dropped
///     }
///     // It wraps nothing.
/// #   fn begin(&mut self, _: Context<'_, Ban>, _: PacketAsk, _: &mut TxPacket, _: &mut NoCounters) -> Option<()> { None }
/// #   fn wrap(
/// #       &mut self, _: Context<'_, Ban>, (): &mut (), _: &[u8], _: usize, _: &mut NoCounters,
/// #   ) -> Option<BytesMut> { None }
/// }
///
/// let config = NicConfig { delays: Delays::NONE, ..NicConfig::default() };
/// let (mut device, mut driver) = nic_with(config, |engines| engines.add_packet(Ban, 100));
/// let contexts = driver.contexts().expect("there is an engine from outside");
/// let engine = contexts.engine("ban").expect("this one").number;
/// let keys = vec![Key::Engine(engine, KeyBytes::from_parts(&[&[2, 0, 0, 0, 0, 9]]))];
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
/// # Ok::<(), offload_api::ContextRefusal>(())
/// ```
pub trait PacketEngine: Engine {
    /// What it found out about a received packet before it has the context.
    type Seen: fmt::Debug + Send;
    /// What is the same for all segments of a packet that it wraps.
    type Wrapping: fmt::Debug + Send;

    /// Finds the context that a received frame with these headers names.
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
        counters: &mut Self::Counters,
    ) -> Opened;

    /// Takes note of fragments that no context is to be told of.
    fn note_fragment(_: &mut Self::Counters) {}

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
        counters: &mut Self::Counters,
    ) -> Option<Self::Wrapping>;

    /// Begins with a whole frame that the device has found to be the context's: by a [claim](Self::claim), or as one of a network of
    /// its switch. `None`: it cannot, which is counted.
    fn begin_claimed(
        &mut self,
        _context: Context<'_, Self>,
        _frame: &[u8],
        _counters: &mut Self::Counters,
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
        counters: &mut Self::Counters,
    ) -> Option<BytesMut>;

    /// Counts a packet that is dropped because the context that it asks for does not exist. False: the device counts it, as it does for
    /// other engines.
    fn note_missing(_: &mut Self::Counters) -> bool {
        false
    }
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
    /// The packet is unchanged.
    Untouched(PacketMark),
    /// Its payload is plain, all around it is there still. And the packet in it, as it would be without.
    /// `new`: as far as the device can tell; the host, whose window it is, refuses what is not.
    InPlace {
        /// The frame.
        frame: BytesMut,
        /// The packet in it as it would be by itself, and where it is in the frame.
        inner: Option<(BytesMut, Within)>,
        /// The engine's verdict.
        mark: PacketMark,
        /// It was not there before.
        new: bool,
    },
    /// The packet that was in it. `vouched`: its checksums are of no use, for the engine knows that it is as it was sent.
    Another {
        /// That packet, as a frame.
        inner: BytesMut,
        /// The engine's verdict.
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
/// use nic_engine::Within;
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
