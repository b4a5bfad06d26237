//! An engine and its contexts.

use crate::{EngineDescription, ImageReader, ImageWriter, Lent, StageKeys, StageMakers};
use core::any::Any;
use core::fmt;
use core::ops::AddAssign;
use offload_api::{ContextEvent, Direction, Handle, Piece};
use offload_base::Seq;
use offload_base::counters::Counters;

/// An engine, with what it keeps for all of its contexts together.
pub trait Engine: fmt::Debug + Send + Sized + 'static {
    /// The name by which protocols find the engine.
    const NAME: &'static str;
    /// The description from which a context is made.
    type Spec: Any;
    /// A command to a context.
    type Command: Any;
    /// A change of state that the engine keeps outside contexts.
    type Change: Any;
    /// What is written to host memory: 208 bytes at most.
    type State: fmt::Debug + Send;
    /// What a state refers to, such as keys and buffers. It stays where it is.
    type Held: fmt::Debug + Send;
    /// Counters of the engine. The device publishes them under their names, and keeps them over a reset.
    type Counters: EngineCounters;

    /// A context; `None`: the engine cannot work by this.
    fn create(&mut self, direction: Direction, spec: Self::Spec) -> Option<(Self::State, Self::Held)>;

    /// Writes a state out.
    fn save(state: &Self::State, image: &mut ImageWriter<'_>);

    /// Reads back what [`save`](Self::save) wrote; `None`: `save` cannot have written it.
    fn load(image: &mut ImageReader<'_>) -> Option<Self::State>;

    /// Adds to what a driver is told of it: beside name, number and room, how its contexts find their places again, say.
    fn describe(&self, _: &mut EngineDescription) {}

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
    fn answer(&mut self, _: Option<Context<'_, Self>>, _: (Seq, Option<u64>), _: &mut Self::Counters) {}

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

/// Counters of an engine: a struct that [`counters!`](offload_base::counters!) makes, or [`NoCounters`].
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

/// Counters of an engine that counts nothing itself.
#[derive(Clone, Copy, Debug, Default)]
pub struct NoCounters;

impl AddAssign for NoCounters {
    fn add_assign(&mut self, _: NoCounters) {}
}

impl Counters for NoCounters {
    fn visit(&self, _: &mut dyn FnMut(&'static str, u64)) {}
}

/// A context, while it is on the NIC.
#[derive(Debug)]
pub struct Context<'a, E: Engine> {
    /// Its name.
    pub handle: Handle,
    /// Where it stands.
    pub state: &'a mut E::State,
    /// The objects to which the state refers.
    pub held: &'a mut E::Held,
}
