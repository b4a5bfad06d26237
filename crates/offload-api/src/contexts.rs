//! Contexts of any engine that a device has, whoever wrote it.
//!
//! TLS, NVMe/TCP and IPsec have faces of their own ([`TlsDevice`](crate::TlsDevice) and the others). A protocol whose engine was
//! added to a device from outside finds it here by its name, and speaks to it in the engine's own types.

use crate::device::NetDevice;
use crate::key::Key;
use crate::mark::ContextEvent;
use crate::tls::{Direction, Refused};
use crate::unit::{Handle, engines};
use core::any::Any;
use offload_base::Seq;
use offload_formats::FlowKey;
use std::borrow::Cow;

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
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EngineInfo {
    /// As handles name it ([`Handle::engine`]).
    pub number: u8,
    /// What it is called.
    pub name: &'static str,
    /// How many contexts it can have.
    pub contexts: u32,
    /// Whether a transmit context is to be told the number of a unit that it begins at and that is not the next.
    pub counts_units: bool,
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
pub trait Contexts {
    /// The engine of this name.
    fn engine(&mut self, name: &str) -> Option<EngineInfo>;

    /// Has an engine make a context. One for transmission may be used at once.
    ///
    /// # Errors
    /// If the device has no room, or no such engine, or one with a face of its own. The spec comes back.
    fn create(&mut self, new: NewContext) -> Result<Handle, (Refused, Spec)>;

    /// Tells a context something. Of one that is gone, nothing comes.
    ///
    /// # Errors
    /// If there is no room for it now. It comes back.
    fn command(&mut self, context: Handle, command: Spec) -> Result<(), (Refused, Spec)>;

    /// Changes what an engine knows that is of no context.
    ///
    /// # Errors
    /// If there is no room for it now, or no such engine. It comes back.
    fn change(&mut self, engine: u8, change: Spec) -> Result<(), (Refused, Spec)>;

    /// Answers [`ResyncRequested`](crate::DeviceEvent::ResyncRequested): the number of the unit that starts at `header`; `None`:
    /// none does.
    fn answer(&mut self, context: Handle, header: Seq, number: Option<u64>);

    /// Gives a context up, after everything posted with it is done.
    fn remove(&mut self, context: Handle);

    /// What happened next to a context that follows no flow.
    fn poll_news(&mut self) -> Option<ContextNews>;
}

/// Gives a context of a stream up, whatever engine it is of.
pub fn remove(device: &mut dyn NetDevice, context: Handle) {
    match context.engine() {
        engines::TLS => device.tls().into_iter().for_each(|device| device.remove(context)),
        engines::NVME_TCP => device.nvme().into_iter().for_each(|device| device.remove(context)),
        _ => device.contexts().into_iter().for_each(|device| device.remove(context)),
    }
}
