//! Engines with their contexts, independent of the engine's types: the device calls by handle, the author writes for
//! contexts of one type.
//!
//! A hosted interface is a trait without the author's types, so that a device can keep all engines in one list. `face!`
//! declares each interface together with its only implementation.

pub use crate::slab::AnySlab;
use crate::slab::Slab;
use crate::{
    Context, EgressClaim, Engine, EngineDescription, FrameLookup, JobEngine, LentObject, OpenedFrame, OutOfStep,
    PacketEngine, ReceivedPayload, StageKeys, StageMakers, StreamEngine, TransmitResync,
};
use bytes::BytesMut;
use core::any::Any;
use core::fmt;
use offload_api::{
    ContextEvent, Direction, EngineInfo, FlowKey, Handle, Job, JobOutcome, Key, KeyBytes, PacketAsk, PacketMark, Piece,
    Spec, TxPacket, Verdict,
};
use offload_base::Seq;
use offload_base::counters::Counters;
use offload_formats::{Headers, IpHeaders};

/// Declares a trait and implements it for a generic type, so that each method is written once.
macro_rules! face {
    (
        $(#[$meta:meta])*
        $visibility:vis trait $face:ident $(: $above:ident)? for [$($generics:tt)*] $of:ty {
            $($(#[$doc:meta])* fn $name:ident $arguments:tt $(-> $result:ty)? $body:block)*
        }
    ) => {
        $(#[$meta])*
        $visibility trait $face: $($above +)? core::fmt::Debug + Send {
            $($(#[$doc])* fn $name $arguments $(-> $result)?;)*
        }

        impl<$($generics)*> $face for $of {
            $(fn $name $arguments $(-> $result)? $body)*
        }
    };
}
pub(crate) use face;

/// The flow and the keys of a context.
///
/// ```
/// use nic_engine::hosted::Subject;
///
/// assert!(Subject::default().flow.is_none(), "sessions of jobs follow no flow");
/// ```
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Subject {
    /// Flow that the context follows, if its engine follows flows.
    pub flow: Option<FlowKey>,
    /// Keys by which received packets select the context.
    pub keys: Vec<Key>,
}

/// An engine, by its kind.
///
/// See [`Engines`](crate::Engines) for an example.
#[derive(Debug)]
pub enum InstalledEngine {
    /// An engine that follows the bytes of flows.
    Stream(Box<dyn AnyStream>),
    /// An engine that processes whole packets.
    Packet(Box<dyn AnyPacket>),
    /// An engine that works from memory to memory.
    Job(Box<dyn AnyJob>),
}

impl InstalledEngine {
    /// Hosts an engine that follows flows, with at most `places` contexts.
    pub fn stream<E: StreamEngine>(engine: E, places: u32) -> InstalledEngine {
        InstalledEngine::Stream(Box::new(HostedEngine::<E>::new(engine, places, Some(E::COUNTS_UNITS))))
    }

    /// Hosts an engine that processes whole packets, with at most `places` contexts.
    pub fn packet<E: PacketEngine>(engine: E, places: u32) -> InstalledEngine {
        InstalledEngine::Packet(Box::new(HostedEngine::<E, E::Facts>::new(engine, places, None)))
    }

    /// Hosts an engine that works from memory to memory, with at most `places` contexts.
    pub fn job<E: JobEngine>(engine: E, places: u32) -> InstalledEngine {
        InstalledEngine::Job(Box::new(HostedEngine::<E>::new(engine, places, None)))
    }

    /// Returns the interface that all kinds share.
    pub fn any(&self) -> &dyn AnyEngine {
        match self {
            InstalledEngine::Stream(engine) => &**engine,
            InstalledEngine::Packet(engine) => &**engine,
            InstalledEngine::Job(engine) => &**engine,
        }
    }

    /// Returns the interface that all kinds share.
    pub fn any_mut(&mut self) -> &mut dyn AnyEngine {
        match self {
            InstalledEngine::Stream(engine) => &mut **engine,
            InstalledEngine::Packet(engine) => &mut **engine,
            InstalledEngine::Job(engine) => &mut **engine,
        }
    }
}

/// An engine with its contexts and counters.
#[derive(Debug)]
struct HostedEngine<E: Engine, S = ()> {
    engine: E,
    slab: Slab<E>,
    counters: E::Counters,
    places: u32,
    /// Whether the engine counts units. `None` if the engine follows no flow.
    counts_units: Option<bool>,
    /// A context that was created, but not yet stored.
    made: Option<(E::State, E::Objects)>,
    /// Result of a packet engine's last look at a frame.
    seen: Option<S>,
}

impl<E: Engine, S> HostedEngine<E, S> {
    fn new(engine: E, places: u32, counts_units: Option<bool>) -> HostedEngine<E, S> {
        let counters = E::Counters::default();
        HostedEngine { engine, slab: Slab::default(), counters, places, counts_units, made: None, seen: None }
    }
}

face! {
    /// The interface of any engine.
    pub trait AnyEngine for [E: Engine, S: fmt::Debug + Send] HostedEngine<E, S> {
        /// Describes the engine to a driver. Handles contain the engine's `number`.
        fn description(&self, number: u8) -> EngineDescription {
            let info = EngineInfo::new(number, E::NAME, self.places);
            let info = EngineInfo { counts_units: self.counts_units == Some(true), ..info };
            // Only engines that follow flows count units or not, so `counts_units` tells the kinds apart.
            let transmit_resync = self.counts_units.map(|_| TransmitResync::default());
            let mut description = EngineDescription { transmit_resync, ..EngineDescription::new(info) };
            self.engine.describe(&mut description);
            description
        }

        /// Tests whether the state of a context is on the NIC. Returns `None` if there is no such context.
        fn is_there(&self, handle: Handle) -> Option<bool> {
            self.slab.is_there(handle)
        }

        /// Returns the contexts.
        fn slab(&self) -> &dyn AnySlab {
            &self.slab
        }

        /// Returns the contexts.
        fn slab_mut(&mut self) -> &mut dyn AnySlab {
            &mut self.slab
        }

        /// Returns the counters.
        fn counters(&self) -> &dyn Counters {
            &self.counters
        }

        /// Adds the counters to `sum`, if `sum` is a struct of the same type.
        fn add_counters(&self, sum: &mut dyn Any) {
            if let Some(sum) = sum.downcast_mut::<E::Counters>() {
                // A sum of another type belongs to another engine.
                *sum += self.counters;
            }
        }

        /// Calls [`Engine::take_stages`].
        fn take_stages(&mut self, stages: &StageMakers) {
            self.engine.take_stages(stages);
        }

        /// Creates a context, to be stored by [`put`](Self::put). Returns false if the handle is beyond the capacity,
        /// or the engine refuses.
        fn make(&mut self, queue: usize, handle: Handle, direction: Direction, spec: Spec) -> bool {
            // A handle comes from the driver, so its place is checked against the capacity before anything is
            // allocated.
            let spec = if handle.place() < self.places { spec.downcast::<E::Spec>().ok() } else { None };
            self.made = spec.and_then(|spec| self.engine.create_for(queue, direction, *spec));
            self.made.is_some()
        }

        /// Stores the created context in its handle's place. `at` is its position in the clock of contexts on the NIC.
        fn put(&mut self, handle: Handle, subject: Subject, at: usize) {
            if let Some((state, held)) = self.made.take() {
                self.slab.insert(handle, subject, state, held, at);
            }
        }

        /// Removes all contexts.
        fn clear(&mut self) {
            self.slab = Slab::default();
            self.engine.forget();
        }

        /// Calls [`Engine::stage_keys`].
        fn stage_keys(&mut self, handle: Handle) -> Option<&mut StageKeys> {
            E::stage_keys(self.slab.held(handle)?)
        }

        /// Calls [`Engine::lend`] for a context that is on the NIC.
        fn lend(&mut self, handle: Handle) -> Option<LentObject> {
            E::lend(self.slab.get(handle)?)
        }

        /// Calls [`Engine::question`] for a context that is on the NIC.
        fn question(&mut self, handle: Handle) -> Option<Seq> {
            E::question(self.slab.get(handle)?.state)
        }

        /// Calls [`Engine::answer`].
        fn answer(&mut self, handle: Handle, answer: (Seq, Option<u64>)) {
            self.engine.answer(self.slab.get(handle), answer, &mut self.counters);
        }

        /// Calls [`Engine::place`].
        fn place(&mut self, handle: Handle, buffer: u64, pieces: Vec<Piece>, stages: Option<Spec>) {
            // Without a context, or with stages of another engine, the pieces are dropped, and thereby return to their
            // owner.
            if let Some(held) = self.slab.held(handle)
                && let Ok(stages) = stages.map(|stages| stages.downcast()).transpose()
            {
                E::place(held, buffer, pieces, stages.map(|stages| *stages));
            }
        }

        /// Calls [`Engine::unplace`].
        fn unplace(&mut self, handle: Handle, buffer: u64) {
            if let Some(held) = self.slab.held(handle) {
                E::unplace(held, buffer);
            }
        }

        /// Calls [`Engine::command`] for a context that is on the NIC.
        fn command(&mut self, handle: Handle, command: Spec) {
            // A command of another engine's type is ignored: a driver must not be able to stop the device.
            if let (Some(context), Ok(command)) = (self.slab.get(handle), command.downcast()) {
                E::command(context, *command);
            }
        }

        /// Calls [`Engine::change_for`].
        fn change(&mut self, queue: usize, change: Spec) {
            // Like a command, a change of another engine's type is ignored.
            if let Ok(change) = change.downcast() {
                self.engine.change_for(queue, *change);
            }
        }

        /// Calls [`Engine::forget_queue`].
        fn forget_queue(&mut self, queue: usize) {
            self.engine.forget_queue(queue);
        }

        /// Calls [`Engine::pop_event`].
        fn pop_event(&mut self) -> Option<ContextEvent> {
            self.engine.pop_event()
        }
    }
}

face! {
    /// The interface of an engine that follows flows. All methods need a context that is on the NIC.
    pub trait AnyStream: AnyEngine for [E: StreamEngine] HostedEngine<E> {
        /// Calls [`StreamEngine::receive`]. Returns `None` without a context.
        fn receive(&mut self, handle: Handle, payload: &mut ReceivedPayload<'_>) -> Option<Verdict> {
            E::receive(self.slab.get(handle)?, payload, &mut self.counters)
        }

        /// Calls [`StreamEngine::count_from`].
        fn count_from(&mut self, handle: Handle, number: u64) -> bool {
            self.slab.get(handle).is_some_and(|context| E::count_from(context, number))
        }

        /// Calls [`StreamEngine::begin`].
        fn begin(&mut self, handle: Handle, start: Seq) -> bool {
            self.slab.get(handle).is_some_and(|context| E::begin(context, start))
        }

        /// Calls [`StreamEngine::expects`].
        fn expects(&mut self, handle: Handle, seq: Seq) -> Option<bool> {
            E::expects(self.slab.get(handle)?.state, seq)
        }

        /// Calls [`StreamEngine::transmit`].
        fn transmit(&mut self, handle: Handle, at: Seq, bytes: &[u8], out: &mut BytesMut) -> Result<u64, OutOfStep> {
            E::transmit(self.slab.get(handle).ok_or(OutOfStep)?, at, bytes, out)
        }

        /// Calls [`StreamEngine::works_on_whole_packets`]. Returns false without a context.
        fn works_on_whole_packets(&mut self, handle: Handle) -> bool {
            self.slab.get(handle).is_some_and(|context| E::works_on_whole_packets(&context))
        }

        /// Calls [`StreamEngine::transmit_whole`]. A packet that leaves is counted.
        fn transmit_whole(
            &mut self,
            handle: Handle,
            at: Seq,
            bytes: &[u8],
            ahead: &[u8],
            out: &mut BytesMut,
            leaves: bool,
        ) -> Result<(), OutOfStep> {
            let context: Context<'_, E> = self.slab.get(handle).ok_or(OutOfStep)?;
            E::transmit_whole(context, at, bytes, ahead, out, leaves.then_some(&mut self.counters))
        }

        /// Calls [`StreamEngine::keys_to_receive`].
        fn keys_to_receive(&mut self, handle: Handle, payload: &ReceivedPayload<'_>, key: &mut dyn FnMut(Handle)) {
            if let Some(context) = self.slab.get(handle) {
                E::keys_to_receive(context, payload, key);
            }
        }

        /// Calls [`StreamEngine::keys_to_transmit`].
        fn keys_to_transmit(&mut self, handle: Handle, bytes: &[u8], key: &mut dyn FnMut(Handle)) {
            if let Some(context) = self.slab.get(handle) {
                E::keys_to_transmit(context, bytes, key);
            }
        }

        /// Calls [`StreamEngine::note_sent`].
        fn note_sent(&mut self, worked: u64) {
            E::note_sent(worked, &mut self.counters);
        }
    }
}

/// The state of a packet engine for one packet in encapsulation.
pub type BoxedEncapsulation = Box<dyn Any + Send>;

face! {
    /// The interface of an engine that processes whole packets. All methods need a context that is on the NIC.
    pub trait AnyPacket: AnyEngine for [E: PacketEngine] HostedEngine<E, E::Facts> {
        /// Calls [`PacketEngine::look`], and keeps the result for [`open`](Self::open).
        fn look(&mut self, frame: &[u8], headers: &Headers) -> FrameLookup<()> {
            // The result is kept here, because the device calls `open` only after it has fetched the context.
            match self.engine.look(frame, headers) {
                FrameLookup::Nothing => FrameLookup::Nothing,
                FrameLookup::Key(key, seen) => {
                    self.seen = Some(seen);
                    FrameLookup::Key(key, ())
                }
                FrameLookup::Fragment => {
                    E::note_fragment(&mut self.counters);
                    FrameLookup::Fragment
                }
                FrameLookup::PerhapsFragment => FrameLookup::PerhapsFragment,
            }
        }

        /// Returns the key that a frame shows.
        fn key(&self, frame: &[u8], headers: &Headers) -> Option<KeyBytes> {
            match self.engine.look(frame, headers) {
                FrameLookup::Key(key, _) => Some(key),
                FrameLookup::Nothing | FrameLookup::Fragment | FrameLookup::PerhapsFragment => None,
            }
        }

        /// Calls [`PacketEngine::key_of_first`].
        fn key_of_first(&self, packet: &[u8], headers: &IpHeaders) -> Option<KeyBytes> {
            E::key_of_first(packet, headers)
        }

        /// Calls [`PacketEngine::open`] for the last frame that was looked at.
        fn open(&mut self, handle: Handle, frame: &[u8]) -> OpenedFrame {
            // Taken, so that the result of one frame can never be used for another.
            let (Some(context), Some(seen)) = (self.slab.get(handle), self.seen.take()) else {
                return OpenedFrame::Untouched(PacketMark::None);
            };
            self.engine.open(context, frame, &seen, &mut self.counters)
        }

        /// Calls [`PacketEngine::claim`].
        fn claim(&self, frame: &[u8], headers: &Headers) -> EgressClaim {
            self.engine.claim(frame, headers)
        }

        /// Calls [`PacketEngine::begin_claimed`].
        fn begin_claimed(&mut self, handle: Handle, frame: &[u8]) -> Option<BoxedEncapsulation> {
            let wrapping = self.engine.begin_claimed(self.slab.get(handle)?, frame, &mut self.counters)?;
            Some(Box::new(wrapping))
        }

        /// Calls [`PacketEngine::begin`].
        fn begin(&mut self, ask: PacketAsk, packet: &mut TxPacket) -> Option<BoxedEncapsulation> {
            // Boxed, so that the device can keep the state without knowing its type.
            let wrapping = self.engine.begin(self.slab.get(ask.context)?, ask, packet, &mut self.counters)?;
            Some(Box::new(wrapping))
        }

        /// Calls [`PacketEngine::wrap`].
        fn wrap(&mut self, handle: Handle, wrapping: &mut BoxedEncapsulation, plain: &[u8], longest: usize) -> Option<BytesMut> {
            let context = self.slab.get(handle)?;
            self.engine.wrap(context, wrapping.downcast_mut()?, plain, longest, &mut self.counters)
        }

        /// Calls [`PacketEngine::note_missing`].
        fn note_missing(&mut self) -> bool {
            E::note_missing(&mut self.counters)
        }
    }
}

face! {
    /// The interface of an engine that works from memory to memory. All methods need a context that is on the NIC.
    pub trait AnyJob: AnyEngine for [E: JobEngine] HostedEngine<E> {
        /// Calls [`JobEngine::run`]. Returns `None` without a context.
        fn run(&mut self, job: &mut Job) -> Option<JobOutcome> {
            Some(self.engine.run(self.slab.get(job.session)?, job, &mut self.counters))
        }
    }
}
