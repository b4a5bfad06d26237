//! Engines that process whole packets.

use crate::{Context, Engine};
use bytes::BytesMut;
use core::fmt;
use offload_api::{Handle, KeyBytes, PacketAsk, PacketMark, TxPacket};
use offload_formats::{Headers, IpHeaders};

/// An engine that encapsulates packets, and opens encapsulated packets.
///
/// ```
/// use core::convert::Infallible;
/// use nic_sim::engine::{Context, Engine, Headers, ImageReader, ImageWriter, NoCounters, OpenedFrame, PacketEngine, FrameLookup};
/// use nic_sim::wire::Port;
/// use nic_sim::{Delays, NicConfig, nic_with};
/// use offload_api::{Direction, Key, KeyBytes, NetDevice, NewContext};
/// # use bytes::BytesMut;
/// # use offload_api::{PacketAsk, TxPacket};
/// # use offload_base::Instant;
///
/// /// Drops frames from the banned Ethernet addresses.
/// #[derive(Debug)]
/// struct Ban;
///
/// impl Engine for Ban {
///     const NAME: &'static str = "ban";
///     type Spec = ();
/// #   type Command = Infallible;
/// #   type Change = Infallible;
/// #   type State = ();
/// #   type Objects = ();
/// #   type Counters = NoCounters;
/// // A context has no state here.
/// #   fn create(&mut self, _: Direction, (): ()) -> Option<((), ())> { Some(((), ())) }
/// #   fn save((): &(), _: &mut ImageWriter<'_>) {}
/// #   fn load(_: &mut ImageReader<'_>) -> Option<()> { Some(()) }
/// }
///
/// impl PacketEngine for Ban {
///     type Facts = ();
///     type Encapsulation = ();
///
///     fn look(&self, frame: &[u8], _: &Headers) -> FrameLookup<()> {
///         frame.get(6..12).map_or(FrameLookup::Nothing, |address| FrameLookup::Key(KeyBytes::from_parts(&[address]), ()))
///     }
///
///     fn open(&mut self, _: Context<'_, Ban>, _: &[u8], (): &(), _: &mut NoCounters) -> OpenedFrame {
///         OpenedFrame::Dropped
///     }
/// // Encapsulates nothing.
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
    /// Facts about a received packet, found before its context is known.
    type Facts: fmt::Debug + Send;
    /// State that all segments of an encapsulated packet share.
    type Encapsulation: fmt::Debug + Send;

    /// Finds the context that a received frame with these headers selects.
    fn look(&self, frame: &[u8], headers: &Headers) -> FrameLookup<Self::Facts>;

    /// Returns the key of a packet from its first fragment. `headers` are the headers of `packet`.
    fn key_of_first(_packet: &[u8], _headers: &IpHeaders) -> Option<KeyBytes> {
        None
    }

    /// Opens a received frame that showed the key of a context.
    fn open(
        &mut self,
        context: Context<'_, Self>,
        frame: &[u8],
        seen: &Self::Facts,
        counters: &mut Self::Counters,
    ) -> OpenedFrame;

    /// Counts fragments that are passed to no context.
    fn note_fragment(_: &mut Self::Counters) {}

    /// Decides whether a packet for which no driver requested encapsulation may leave in plain. On a NIC with a
    /// switch, called for all packets that leave through the uplink.
    fn claim(&self, _frame: &[u8], _headers: &Headers) -> EgressClaim {
        EgressClaim::Nobody
    }

    /// Begins a packet, and rewrites its headers to those of the segments before encapsulation. Returns `None` on
    /// failure, which the engine counts.
    fn begin(
        &mut self,
        context: Context<'_, Self>,
        ask: PacketAsk,
        packet: &mut TxPacket,
        counters: &mut Self::Counters,
    ) -> Option<Self::Encapsulation>;

    /// Begins a whole frame that the device has assigned to the context: by a [claim](Self::claim), or because it
    /// belongs to a network of the device's switch. Returns `None` on failure, which the engine counts.
    fn begin_claimed(
        &mut self,
        _context: Context<'_, Self>,
        _frame: &[u8],
        _counters: &mut Self::Counters,
    ) -> Option<Self::Encapsulation> {
        None
    }

    /// Encapsulates the next segment in a frame of at most `longest` bytes. Returns `None` on failure, which the engine
    /// counts.
    fn wrap(
        &mut self,
        context: Context<'_, Self>,
        wrapping: &mut Self::Encapsulation,
        plain: &[u8],
        longest: usize,
        counters: &mut Self::Counters,
    ) -> Option<BytesMut>;

    /// Counts a packet that is dropped because its context does not exist. Returns false to let the device count the
    /// packet, as for other engines.
    fn note_missing(_: &mut Self::Counters) -> bool {
        false
    }
}

/// The result of looking at a received frame.
///
/// See [`PacketEngine`] for an example.
#[derive(Debug)]
pub enum FrameLookup<S> {
    /// The frame does not concern the engine.
    Nothing,
    /// The frame shows the key of a context.
    Key(KeyBytes, S),
    /// The frame is a fragment of a packet for the engine.
    Fragment,
    /// The frame is a fragment, possibly of a packet for the engine.
    PerhapsFragment,
}

/// An engine's decision about a packet that leaves a NIC with a switch.
///
/// See [`PacketEngine`] for an example of an engine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EgressClaim {
    /// The packet may leave unchanged.
    Nobody,
    /// The packet may leave only encapsulated by this context.
    Context(Handle),
    /// The packet does not show enough to decide, such as a fragment without ports. The packet must not leave.
    Unclear,
}

/// The result of opening a received frame.
///
/// See [`PacketEngine`] for an example.
#[derive(Debug)]
pub enum OpenedFrame {
    /// The packet is unchanged.
    Untouched(PacketMark),
    /// The payload was decrypted in place, with all headers and trailers kept around the payload.
    InPlace {
        /// Frame with the decrypted payload.
        frame: BytesMut,
        /// Inner packet as it would be without encapsulation, and its position in the frame.
        inner: Option<(BytesMut, InnerPosition)>,
        /// Verdict of the engine.
        mark: PacketMark,
        /// Whether the packet is no replay, as far as the device can tell. The host owns the window, and refuses
        /// replays.
        new: bool,
    },
    /// The inner packet replaces the frame. `vouched`: the engine has authenticated the packet, so its checksums need
    /// no check.
    Another {
        /// Inner packet as a frame.
        inner: BytesMut,
        /// Verdict of the engine.
        mark: PacketMark,
        /// Whether the checksums need no check.
        vouched: bool,
    },
    /// The frame is dropped.
    Dropped,
}

/// The position of an opened packet in the surrounding frame.
///
/// ```
/// use nic_engine::InnerPosition;
///
/// // ESP in transport mode: Ethernet's and IPv4's headers, 16 bytes of SPI, number and IV, then the opened bytes.
/// let within = InnerPosition { headers: 34, opened: 50, in_front: 34 };
/// assert_eq!(within.opened - within.headers, 16);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct InnerPosition {
    /// End of the outer headers that packets of a flow share, apart from IP fields that vary per packet.
    pub headers: usize,
    /// Offset of the opened bytes, after the encapsulation's own header.
    pub opened: usize,
    /// Bytes of the plain packet in front of `opened`.
    pub in_front: usize,
}
