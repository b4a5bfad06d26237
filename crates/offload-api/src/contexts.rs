//! Contexts of all engines of a device, built-in and external.
//!
//! All engines except ESP share one interface: a protocol finds its engine by name and passes values of the engine's
//! own types. [`TlsContexts`](crate::TlsContexts) and [`NvmeTcpContexts`](crate::NvmeTcpContexts) are typed wrappers;
//! [`TypedContexts`](crate::TypedContexts) creates the wrappers. SAs belong to an IPsec layer and not to a flow, and
//! have their own interface, [`IpsecDevice`](crate::IpsecDevice).

use crate::direction::Direction;
use crate::key::Key;
use crate::mark::ContextEvent;
use crate::refused::ContextRefusal;
use crate::rx::Piece;
use crate::unit::Handle;
use core::any::Any;
use core::fmt;
use offload_base::Seq;
use offload_formats::FlowKey;
use std::borrow::Cow;
use std::sync::Arc;

/// A value of an engine's own type: the parameters of a context, or a command.
pub type Spec = Box<dyn Any + Send>;

/// A processing stage inside an engine: extra work on the data of units, as part of an engine's spec.
///
/// ```
/// use offload_api::StageSpec;
///
/// let spec = StageSpec::new("add", 7u8);
/// assert_eq!((&*spec.name, spec.spec.downcast_ref()), ("add", Some(&7u8)));
/// ```
#[derive(Debug)]
pub struct StageSpec {
    /// Name of the stage.
    pub name: Cow<'static, str>,
    /// Parameters of the stage, of the stage's own type.
    pub spec: Spec,
}

impl StageSpec {
    /// Makes the spec of the stage `name` with the parameters `spec`.
    pub fn new(name: impl Into<Cow<'static, str>>, spec: impl Any + Send) -> StageSpec {
        StageSpec { name: name.into(), spec: Box::new(spec) }
    }
}

/// An engine of a device.
#[derive(Clone, Debug)]
pub struct EngineInfo {
    /// Number of the engine in handles ([`Handle::engine`]).
    pub number: u8,
    /// Name of the engine.
    pub name: &'static str,
    /// Maximum number of contexts.
    pub contexts: u32,
    /// Whether a transmit context must be told the number of a unit that does not follow the previous one.
    pub counts_units: bool,
    /// Number of bytes of the unit after the end of a packet that a transmit context may need. It needs the bytes if
    /// bytes before the end change, or when a context of the layer below replays content.
    pub looks_ahead: usize,
    /// Resync method of the engine's receive contexts.
    pub resync: ResyncMode,
    /// Ring on which a driver posts commands that create and destroy contexts.
    pub ring: CommandRing,
    /// Maximum number of unused transmit contexts that a driver keeps for reuse; a reused context needs only a new
    /// cipher key.
    /// 0 disables reuse.
    pub pool: usize,
    /// Engine-specific capabilities.
    pub capabilities: Capabilities,
}

impl EngineInfo {
    /// Makes the description of an engine with the defaults: no unit numbers, no pool, commands on the control
    /// ring.
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

/// The driver's ring for commands that create and destroy an engine's contexts.
///
/// ```
/// use nic_sim::{NicConfig, NvmeTcpEngineConfig, nic};
/// use offload_api::{CommandRing, NetDevice, engines};
///
/// let (_device, mut driver) = nic(NicConfig::default());
/// let tls = driver.contexts().unwrap().engine("tls").unwrap();
/// assert_eq!(tls.ring, CommandRing::Control);
/// // SAs are on the send ring: they have their own interface, `IpsecDevice`.
/// assert!(driver.contexts().unwrap().engine("esp").is_none());
/// assert!(driver.ipsec().is_some());
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum CommandRing {
    /// The control ring, separate from packets.
    #[default]
    Control,
    /// The send ring, in order with the packets: packets after the command that creates the context may use it, and
    /// packets before the command that destroys the context still use it. Drivers have a separate interface for such an
    /// engine.
    Send,
}

/// The capabilities of an engine, as a value of the engine's own type.
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
    /// Wraps an engine's capabilities.
    pub fn new(capabilities: impl Any + Send + Sync) -> Capabilities {
        Capabilities(Some(Arc::new(capabilities)))
    }

    /// Returns the capabilities if they have type `T`.
    pub fn get<T: Any>(&self) -> Option<&T> {
        self.0.as_ref()?.downcast_ref()
    }
}

impl fmt::Debug for Capabilities {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(if self.0.is_some() { "Capabilities(..)" } else { "Capabilities(none)" })
    }
}

/// The method by which a receive context that lost its position finds unit boundaries again. These are the three
/// methods of Linux's tls-offload.
///
/// ```
/// use offload_api::ResyncMode;
///
/// assert_eq!(ResyncMode::default(), ResyncMode::DriverRequest);
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum ResyncMode {
    /// The device searches for headers and asks about each candidate
    /// ([`ResyncRequested`](crate::DeviceEvent::ResyncRequested)).
    #[default]
    DriverRequest,
    /// The device waits. Software sees that packets arrive without offload, and tells the device the position of the
    /// next unit.
    CoreHint,
    /// The device searches and asks in two steps. Software [records](crate::DeviceEvent::ResyncStarted) candidate
    /// headers at once; the question about one of them may follow much later.
    Asynchronous,
}

/// The parameters of a new context.
#[derive(Debug)]
pub struct NewContext {
    /// Number of the engine.
    pub engine: u8,
    /// Direction of the packets.
    pub direction: Direction,
    /// The flow that the context follows, as the host sees it. `None` for a context without a flow.
    pub flow: Option<FlowKey>,
    /// Steering keys of received packets.
    pub keys: Vec<Key>,
    /// Engine-specific parameters.
    pub spec: Spec,
}

/// An event of a context that follows no flow. Events of other contexts are [`DeviceEvent`](crate::DeviceEvent)s.
///
/// ```
/// use offload_api::{ContextEvent, ContextNews, Handle};
///
/// /// Describes an event of a context.
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
    /// The context now processes received packets.
    Ready(Handle),
    /// The context is removed, and no posted packet uses it any more.
    Removed(Handle),
    /// An engine-specific event.
    Event(ContextEvent),
}

/// The context interface of a device. No method blocks.
///
/// `steer`, `command`, `change`, `release` and `answer` have defaults, which refuse or do nothing. A device that wraps
/// another device must forward all of them.
///
/// ```
/// use nic_sim::{NicConfig, nic};
/// use offload_api::{Direction, EngineInfo, NetDevice, NewContext, ContextRefusal, engines};
///
/// let (_device, mut driver) = nic(NicConfig::default());
/// let contexts = driver.contexts().unwrap();
/// // An engine accepts only specs of its own type, and returns a refused spec.
/// let new = NewContext {
///     engine: 200,
///     direction: Direction::Receive,
///     flow: None,
///     keys: Vec::new(),
///     spec: Box::new("a spec of another engine"),
/// };
/// let (refused, spec): (ContextRefusal, _) = contexts.create(new).unwrap_err();
/// assert_eq!(refused, ContextRefusal::Unsupported);
/// assert!(spec.is::<&str>());
/// let unknown: Option<EngineInfo> = contexts.engine("an engine that no NIC has");
/// assert!(unknown.is_none());
/// ```
pub trait Contexts {
    /// Returns the engine with this name.
    fn engine(&mut self, name: &str) -> Option<EngineInfo>;

    /// Creates a context. A transmit context may be used at once.
    ///
    /// # Errors
    /// If the device has no space or no such engine, if the engine has its own interface, or if another engine owns a
    /// steering key. The flow then stays in software. The spec is returned.
    fn create(&mut self, new: NewContext) -> Result<Handle, (ContextRefusal, Spec)>;

    /// Adds the steering key `key` to a receive context (`to_it`), or removes the key. An added key may belong to
    /// another context of the same engine, and is then moved to this context. A stale handle has no effect.
    ///
    /// # Errors
    /// If the control ring is full, or another engine owns the steering key.
    fn steer(&mut self, _context: Handle, _key: Key, _to_it: bool) -> Result<(), ContextRefusal> {
        Err(ContextRefusal::Unsupported)
    }

    /// Sends an engine-specific command to a context. A stale handle has no effect.
    ///
    /// # Errors
    /// If the control ring is full. The command is returned.
    fn command(&mut self, _context: Handle, command: Spec) -> Result<(), (ContextRefusal, Spec)> {
        Err((ContextRefusal::Unsupported, command))
    }

    /// Changes engine state that belongs to no context.
    ///
    /// # Errors
    /// If the control ring is full, or the device has no such engine. The change is returned.
    fn change(&mut self, _engine: u8, change: Spec) -> Result<(), (ContextRefusal, Spec)> {
        Err((ContextRefusal::Unsupported, change))
    }

    /// Gives a receive context the buffer of a command, as an ordered list of pieces. `buffer` is the identifier by
    /// which the engine finds the buffer. Call this before the peer may send the data. Data that the device places
    /// arrive as [`Placed`](crate::RxBuf::Placed) pieces of the buffer; the other pieces return to their owner when the
    /// device releases the buffer. The processing stages are given in the same call, because the device must have both
    /// or neither. If the device refuses, all pieces return to their owner at once.
    fn place(&mut self, context: Handle, buffer: u64, pieces: Vec<Piece>, stages: Option<Spec>);

    /// Makes the device return its pieces of the buffer with this identifier.
    fn release(&mut self, _context: Handle, _buffer: u64) {}

    /// Answers [`ResyncRequested`](crate::DeviceEvent::ResyncRequested) with the number of the unit that starts at
    /// `header` (any number if units are not numbered), or `None` if no unit starts there. With
    /// [`ResyncMode::CoreHint`] software calls this without a request, to tell the position of the next unit.
    fn answer(&mut self, _context: Handle, _header: Seq, _number: Option<u64>) {}

    /// Removes a context after all work posted with it, and returns its buffers to their owners.
    fn remove(&mut self, context: Handle);

    /// Returns the next event of a context that follows no flow.
    fn poll_news(&mut self) -> Option<ContextNews>;
}
