//! An engine and its contexts.

use crate::{EngineDescription, ImageReader, ImageWriter, LentObject, StageKeys, StageMakers};
use core::any::Any;
use core::fmt;
use core::ops::AddAssign;
use offload_api::{ContextEvent, Direction, Handle, Piece};
use offload_base::Seq;
use offload_base::counters::Counters;

/// An engine, with the state that all of its contexts share.
pub trait Engine: fmt::Debug + Send + Sized + 'static {
    /// Name by which protocols find the engine.
    const NAME: &'static str;
    /// Specification of a new context.
    type Spec: Any;
    /// Command to a context.
    type Command: Any;
    /// Change of state that belongs to no context.
    type Change: Any;
    /// State of a context that can move to host memory: 208 bytes at most.
    type State: fmt::Debug + Send;
    /// Objects to which a state refers, such as keys and buffers, which never move to host memory.
    type Objects: fmt::Debug + Send;
    /// Counters of the engine. The device publishes the counters by name, and keeps the values over a reset. A
    /// lookaside accelerator publishes no counters.
    type Counters: EngineCounters;

    /// Creates a context. Returns `None` if the engine cannot work by the specification.
    fn create(&mut self, direction: Direction, spec: Self::Spec) -> Option<(Self::State, Self::Objects)>;

    /// Writes a state to an image.
    fn save(state: &Self::State, image: &mut ImageWriter<'_>);

    /// Reads a state written by [`save`](Self::save). Returns `None` if `save` cannot have written the image.
    fn load(image: &mut ImageReader<'_>) -> Option<Self::State>;

    /// Completes the engine's description for drivers, which already has name, number and capacity. For example, sets
    /// the method of resynchronization.
    fn describe(&self, _: &mut EngineDescription) {}

    /// Takes the stages that the NIC offers. Called once, before any context is created.
    fn take_stages(&mut self, _: &StageMakers) {}

    /// Returns the list in which the device lends keys to the context's stages.
    fn stage_keys(_: &mut Self::Objects) -> Option<&mut StageKeys> {
        None
    }

    /// Lends an object to stages of other contexts that name this context as their key.
    fn lend(_: Context<'_, Self>) -> Option<LentObject> {
        None
    }

    /// Returns the position for which the context waits, until software tells whether a unit starts there.
    fn question(_: &Self::State) -> Option<Seq> {
        None
    }

    /// Takes software's answer about the header at a position: the number of the unit that starts there, or `None` if
    /// no unit does. The context is `None` if the answer comes too late.
    fn answer(&mut self, _: Option<Context<'_, Self>>, _: (Seq, Option<u64>), _: &mut Self::Counters) {}

    /// Takes a buffer, and the stages for its data. Dropped pieces return to their owner.
    fn place(_: &mut Self::Objects, _: u64, _: Vec<Piece>, _: Option<Self::Command>) {}

    /// Returns the rest of a buffer to its owner.
    fn unplace(_: &mut Self::Objects, _: u64) {}

    /// Carries out a command to a context.
    fn command(_: Context<'_, Self>, _: Self::Command) {}

    /// Changes state that belongs to no context.
    fn change(&mut self, _: Self::Change) {}

    /// Does [`create`](Self::create) for one of the queues that share the engine, such as the queues of an accelerator.
    fn create_for(
        &mut self,
        _queue: usize,
        direction: Direction,
        spec: Self::Spec,
    ) -> Option<(Self::State, Self::Objects)> {
        self.create(direction, spec)
    }

    /// Does [`change`](Self::change) for one of the queues that share the engine. An engine keeps a setting per queue
    /// if it must not reach the contexts of other queues.
    fn change_for(&mut self, _queue: usize, change: Self::Change) {
        self.change(change);
    }

    /// Discards the changes of a queue that has lost its driver and its contexts.
    fn forget_queue(&mut self, _queue: usize) {}

    /// Returns the next event for the driver. The device has room for it. Called after methods with `self` and after
    /// changes of contexts, but not after methods that pass a flow's bytes: a stream engine reports those in its
    /// verdicts.
    fn pop_event(&mut self) -> Option<ContextEvent> {
        None
    }

    /// Discards pending events, because all contexts are gone.
    fn forget(&mut self) {}
}

/// Counters of an engine: a struct declared by [`counters!`](offload_base::counters!), or [`NoCounters`].
///
/// ```
/// use nic_engine::{EngineCounters, NoCounters};
///
/// offload_base::counters! {
///     /// Counters of a filter.
///     pub struct FilterCounters {
///         /// Frames dropped.
///         pub dropped: "filter_dropped",
///     }
/// }
///
/// fn names<C: EngineCounters>() -> Vec<&'static str> {
///     let mut names = Vec::new();
///     C::default().visit(&mut |name, _| names.push(name));
///     names
/// }
/// assert_eq!(names::<FilterCounters>(), ["filter_dropped"]);
/// assert!(names::<NoCounters>().is_empty());
/// ```
pub trait EngineCounters: Counters + AddAssign + Copy + Default + fmt::Debug + Send + 'static {}

impl<C: Counters + AddAssign + Copy + Default + fmt::Debug + Send + 'static> EngineCounters for C {}

/// Counters of an engine without counters.
#[derive(Clone, Copy, Debug, Default)]
pub struct NoCounters;

impl AddAssign for NoCounters {
    fn add_assign(&mut self, _: NoCounters) {}
}

impl Counters for NoCounters {
    fn visit(&self, _: &mut dyn FnMut(&'static str, u64)) {}
}

/// A context that is on the NIC.
#[derive(Debug)]
pub struct Context<'a, E: Engine> {
    /// Handle of the context.
    pub handle: Handle,
    /// State of the context.
    pub state: &'a mut E::State,
    /// Objects to which the state refers.
    pub held: &'a mut E::Objects,
}
