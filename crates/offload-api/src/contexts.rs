//! Contexts of any engine that a device has, built in or from outside.
//!
//! There is one face for all engines: a protocol finds its engine by name, and speaks to it in the engine's own types.
//! [`TlsContexts`](crate::TlsContexts) and [`NvmeTcpContexts`](crate::NvmeTcpContexts) are that face in the words of those two;
//! [`TypedContexts`](crate::TypedContexts) gives them. (SAs, which
//! belong to an IPsec layer and not to flows, have [`IpsecDevice`](crate::IpsecDevice).)

use crate::direction::Direction;
use crate::key::Key;
use crate::mark::ContextEvent;
use crate::refused::Refused;
use crate::rx::Piece;
use crate::unit::Handle;
use core::any::Any;
use core::fmt;
use offload_base::Seq;
use offload_formats::FlowKey;
use std::borrow::Cow;
use std::sync::Arc;

/// What an engine makes a context from, or is told: of a type that the engine says.
pub type Spec = Box<dyn Any + Send>;

/// Something that an engine is to do to the data in units, beside its own work, if it lets others do so: a part of its spec.
///
/// ```
/// use offload_api::StageSpec;
///
/// let spec = StageSpec::new("add", 7u8);
/// assert_eq!((&*spec.name, spec.spec.downcast_ref()), ("add", Some(&7u8)));
/// ```
#[derive(Debug)]
pub struct StageSpec {
    /// What the stage is called.
    pub name: Cow<'static, str>,
    /// What it is made from: of a type that the stage says.
    pub spec: Spec,
}

impl StageSpec {
    /// The stage `name`, made from `spec`.
    pub fn new(name: impl Into<Cow<'static, str>>, spec: impl Any + Send) -> StageSpec {
        StageSpec { name: name.into(), spec: Box::new(spec) }
    }
}

/// An engine of a device.
#[derive(Clone, Debug)]
pub struct EngineInfo {
    /// As handles name it ([`Handle::engine`]).
    pub number: u8,
    /// What it is called.
    pub name: &'static str,
    /// How many contexts it can have.
    pub contexts: u32,
    /// Whether a transmit context is to be told the number of a unit that it begins at and that is not the next.
    pub counts_units: bool,
    /// Bytes of a unit behind the end of a packet that a transmit context may need, if what is before the end is changed; and behind
    /// content that a context of the layer below is brought again.
    pub looks_ahead: usize,
    /// How its receive contexts find their places again.
    pub resync: ResyncMode,
    /// Where a driver gives the commands that make its contexts and end them.
    pub ring: CommandRing,
    /// Transmit contexts given up that a driver keeps for others, at most: the next one there needs a new key only. 0: each is
    /// created and destroyed.
    pub pool: usize,
    /// What else it has to say of itself, to those who know it.
    pub capabilities: Capabilities,
}

impl EngineInfo {
    /// An engine that can have so many contexts, and is usual in all else: it counts no units, keeps no pool, and takes its
    /// commands on the control ring.
    pub fn new(number: u8, name: &'static str, contexts: u32) -> EngineInfo {
        EngineInfo {
            number,
            name,
            contexts,
            counts_units: false,
            looks_ahead: 0,
            resync: ResyncMode::default(),
            ring: CommandRing::default(),
            pool: 0,
            capabilities: Capabilities::default(),
        }
    }
}

/// The ring of a driver that takes the commands for an engine's contexts.
///
/// ```
/// use nic_sim::{NicConfig, NvmeTcpEngineConfig, nic};
/// use offload_api::{CommandRing, NetDevice, engines};
///
/// let (_device, mut driver) = nic(NicConfig::default());
/// let tls = driver.contexts().unwrap().engine("tls").unwrap();
/// assert_eq!(tls.ring, CommandRing::Control);
/// // SAs are on the send ring: they have a face of their own, which is not this one.
/// assert!(driver.contexts().unwrap().engine("esp").is_none());
/// assert!(driver.ipsec().is_some());
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum CommandRing {
    /// One of its own, beside the packets.
    #[default]
    Control,
    /// The one that the packets take, in order with them: packets posted behind the command that makes a context may use it,
    /// and those posted before the command that ends it still do. Its driver has a face of its own for it.
    Send,
}

/// What an engine says of itself, of a type of its own.
///
/// ```
/// use offload_api::Capabilities;
///
/// #[derive(Debug, PartialEq)]
/// struct Widest(u32);
///
/// let capabilities = Capabilities::new(Widest(64));
/// assert_eq!(capabilities.get(), Some(&Widest(64)));
/// assert_eq!(Capabilities::default().get::<Widest>(), None);
/// ```
#[derive(Clone, Default)]
pub struct Capabilities(Option<Arc<dyn Any + Send + Sync>>);

impl Capabilities {
    /// These.
    pub fn new(capabilities: impl Any + Send + Sync) -> Capabilities {
        Capabilities(Some(Arc::new(capabilities)))
    }

    /// They, if they are of this type.
    pub fn get<T: Any>(&self) -> Option<&T> {
        self.0.as_ref()?.downcast_ref()
    }
}

impl fmt::Debug for Capabilities {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(if self.0.is_some() { "Capabilities(..)" } else { "Capabilities(none)" })
    }
}

/// How a receive context that lost its place finds it again: the three ways of Linux' tls-offload.
///
/// ```
/// use offload_api::ResyncMode;
///
/// assert_eq!(ResyncMode::default(), ResyncMode::DriverRequest);
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum ResyncMode {
    /// The device searches, and asks about what may be a header
    /// ([`ResyncRequested`](crate::DeviceEvent::ResyncRequested)).
    #[default]
    DriverRequest,
    /// The device waits. Software sees that it gets nothing but what the device did not work on, and tells where the next unit
    /// begins.
    CoreHint,
    /// The device searches, and asks in two steps: what may be headers is
    /// [noted](crate::DeviceEvent::ResyncStarted) at once, and the question about one of them may come long after.
    Asynchronous,
}

/// A context to be made.
#[derive(Debug)]
pub struct NewContext {
    /// The engine, by number.
    pub engine: u8,
    /// Which packets it works on.
    pub direction: Direction,
    /// The flow whose bytes it follows, as the host sees it.
    pub flow: Option<FlowKey>,
    /// What received packets find it by.
    pub keys: Vec<Key>,
    /// What the engine makes it from.
    pub spec: Spec,
}

/// Something that happened to a context that follows no flow. (Of others, [`DeviceEvent`](crate::DeviceEvent)s tell.)
///
/// ```
/// use offload_api::{ContextEvent, ContextNews, Handle};
///
/// /// What a protocol notes of what happened to its one context.
/// fn note(news: ContextNews) -> String {
///     match news {
///         ContextNews::Ready(_) => "it works".into(),
///         ContextNews::Removed(_) => "it is gone".into(),
///         ContextNews::Event(ContextEvent { code, value, .. }) => format!("event {code}: {value}"),
///     }
/// }
///
/// let context = Handle { index: 3, generation: 0 };
/// assert_eq!(note(ContextNews::Event(ContextEvent { context, code: 1, value: 70 })), "event 1: 70");
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ContextNews {
    /// It now works on what arrives.
    Ready(Handle),
    /// It is gone; nothing posted with it is under way any more.
    Removed(Handle),
    /// What its engine has to tell.
    Event(ContextEvent),
}

/// What may be asked of any engine. Nothing here blocks.
///
/// What engines of jobs and the like have no use for is provided: it is refused, or nothing comes of it. A device around a device hands all of it on.
///
/// ```
/// use nic_sim::{NicConfig, nic};
/// use offload_api::{Direction, EngineInfo, NetDevice, NewContext, Refused, engines};
///
/// let (_device, mut driver) = nic(NicConfig::default());
/// let contexts = driver.contexts().unwrap();
/// // An engine makes contexts of specs of its own type only; a spec comes back when it is refused.
/// let new = NewContext {
///     engine: 200,
///     direction: Direction::Receive,
///     flow: None,
///     keys: Vec::new(),
///     spec: Box::new("a spec of another engine"),
/// };
/// let (refused, spec): (Refused, _) = contexts.create(new).unwrap_err();
/// assert_eq!(refused, Refused::Unsupported);
/// assert!(spec.is::<&str>());
/// let unknown: Option<EngineInfo> = contexts.engine("an engine that no NIC has");
/// assert!(unknown.is_none());
/// ```
pub trait Contexts {
    /// The engine of this name.
    fn engine(&mut self, name: &str) -> Option<EngineInfo>;

    /// Has an engine make a context. One for transmission may be used at once.
    ///
    /// # Errors
    /// If the device has no room, or no such engine, or one with a face of its own, or a key is another engine's; the flow then
    /// stays in software. The spec comes back.
    fn create(&mut self, new: NewContext) -> Result<Handle, (Refused, Spec)>;

    /// Has received packets with `key`, one more or one less, go to a receive context that there is; the key may be another
    /// context's of the same engine until then. Of one that is gone, nothing comes.
    ///
    /// # Errors
    /// If there is no room for it now, or the key is another engine's.
    fn steer(&mut self, _context: Handle, _key: Key, _to_it: bool) -> Result<(), Refused> {
        Err(Refused::Unsupported)
    }

    /// Tells a context something. Of one that is gone, nothing comes.
    ///
    /// # Errors
    /// If there is no room for it now. It comes back.
    fn command(&mut self, _context: Handle, command: Spec) -> Result<(), (Refused, Spec)> {
        Err((Refused::Unsupported, command))
    }

    /// Changes what an engine knows that is of no context.
    ///
    /// # Errors
    /// If there is no room for it now, or no such engine. It comes back.
    fn change(&mut self, _engine: u8, change: Spec) -> Result<(), (Refused, Spec)> {
        Err((Refused::Unsupported, change))
    }

    /// Gives a receive context a buffer, the pieces in order, before the peer is told that it may fill it. Data that the device
    /// places come as [`Placed`](crate::RxBuf::Placed) pieces of it; the rest comes home when the device is done with it. The stages that the
    /// data pass, if any, go with the buffer: the device gets both or neither. If the device refuses, all pieces come home at once.
    fn place(&mut self, context: Handle, buffer: u64, pieces: Vec<Piece>, stages: Option<Spec>);

    /// Has the device send home what it has of a buffer.
    fn release(&mut self, _context: Handle, _buffer: u64) {}

    /// Answers [`ResyncRequested`](crate::DeviceEvent::ResyncRequested): the number of the unit that starts at `header`, any
    /// number where units have none; `None`: none does. With [`ResyncMode::CoreHint`] nobody asked: it tells where the next unit
    /// begins.
    fn answer(&mut self, _context: Handle, _header: Seq, _number: Option<u64>) {}

    /// Gives a context up, after everything posted with it is done, and sends its buffers home.
    fn remove(&mut self, context: Handle);

    /// What happened next to a context that follows no flow.
    fn poll_news(&mut self) -> Option<ContextNews>;
}
