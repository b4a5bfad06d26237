//! An engine with its contexts, whatever engine it is: what the author wrote for contexts of one type is called by handle.
//!
//! A face is a trait without the author's types, so that a device keeps engines of all types in one list. `face!` declares
//! each face together with its only implementation.

pub use crate::slab::AnySlab;
use crate::slab::Slab;
use crate::{
    Claim, Context, Engine, EngineDescription, JobEngine, Lent, Opened, OutOfStep, PacketEngine, Payload, Shown,
    StageKeys, StageMakers, StreamEngine, TransmitResync,
};
use bytes::BytesMut;
use core::any::Any;
use core::fmt;
use offload_api::{
    ContextEvent, Direction, EngineInfo, FlowKey, Handle, Job, Key, KeyBytes, JobOutcome, PacketAsk, PacketMark, Piece,
    Spec, TxPacket, Verdict,
};
use offload_base::Seq;
use offload_base::counters::Counters;
use offload_formats::{Headers, IpHeaders};

/// Declares a trait and implements it for a generic type. The methods are written once.
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
    /// The flow of a context that follows a flow's bytes.
    pub flow: Option<FlowKey>,
    /// The keys by which received packets find the context.
    pub keys: Vec<Key>,
}

/// An engine, by what it can do.
///
/// See [`Engines`](crate::Engines) for an example.
#[derive(Debug)]
pub enum Installed {
    /// It follows the bytes of flows.
    Stream(Box<dyn AnyStream>),
    /// It works on whole packets.
    Packet(Box<dyn AnyPacket>),
    /// It works from memory to memory.
    Job(Box<dyn AnyJob>),
}

impl Installed {
    /// An engine that follows flows, with so many contexts at most.
    pub fn stream<E: StreamEngine>(engine: E, places: u32) -> Installed {
        Installed::Stream(Box::new(Hosted::<E>::new(engine, places, Some(E::COUNTS_UNITS))))
    }

    /// One that works on whole packets, with so many contexts at most.
    pub fn packet<E: PacketEngine>(engine: E, places: u32) -> Installed {
        Installed::Packet(Box::new(Hosted::<E, E::Seen>::new(engine, places, None)))
    }

    /// One that works from memory to memory, with so many contexts at most.
    pub fn job<E: JobEngine>(engine: E, places: u32) -> Installed {
        Installed::Job(Box::new(Hosted::<E>::new(engine, places, None)))
    }

    /// The engine, as the face that all kinds have.
    pub fn any(&self) -> &dyn AnyEngine {
        match self {
            Installed::Stream(engine) => &**engine,
            Installed::Packet(engine) => &**engine,
            Installed::Job(engine) => &**engine,
        }
    }

    /// The engine, as the face that all kinds have.
    pub fn any_mut(&mut self) -> &mut dyn AnyEngine {
        match self {
            Installed::Stream(engine) => &mut **engine,
            Installed::Packet(engine) => &mut **engine,
            Installed::Job(engine) => &mut **engine,
        }
    }
}

/// An engine, its contexts and its counters.
#[derive(Debug)]
struct Hosted<E: Engine, S = ()> {
    engine: E,
    slab: Slab<E>,
    counters: E::Counters,
    places: u32,
    /// `None`: the engine follows no flow.
    counts_units: Option<bool>,
    /// A context that was made and has no place yet.
    made: Option<(E::State, E::Held)>,
    /// What an engine for whole packets saw in the frame that it looked at last.
    seen: Option<S>,
}

impl<E: Engine, S> Hosted<E, S> {
    fn new(engine: E, places: u32, counts_units: Option<bool>) -> Hosted<E, S> {
        let counters = E::Counters::default();
        Hosted { engine, slab: Slab::default(), counters, places, counts_units, made: None, seen: None }
    }
}

face! {
    /// The face of any engine.
    pub trait AnyEngine for [E: Engine, S: fmt::Debug + Send] Hosted<E, S> {
        /// Describes the engine to a driver; handles name it by `number`.
        fn description(&self, number: u8) -> EngineDescription {
            let info = EngineInfo::new(number, E::NAME, self.places);
            let info = EngineInfo { counts_units: self.counts_units == Some(true), ..info };
            let transmit_resync = self.counts_units.map(|_| TransmitResync::default());
            let mut description = EngineDescription { transmit_resync, ..EngineDescription::new(info) };
            self.engine.describe(&mut description);
            description
        }

        /// Whether the state of a context is on the NIC; `None`: there is no such context.
        fn is_there(&self, handle: Handle) -> Option<bool> {
            self.slab.is_there(handle)
        }

        /// Its contexts.
        fn slab(&self) -> &dyn AnySlab {
            &self.slab
        }

        /// Its contexts.
        fn slab_mut(&mut self) -> &mut dyn AnySlab {
            &mut self.slab
        }

        /// Its counters.
        fn counters(&self) -> &dyn Counters {
            &self.counters
        }

        /// Adds its counters to `sum`, if that is a struct of their type.
        fn add_counters(&self, sum: &mut dyn Any) {
            if let Some(sum) = sum.downcast_mut::<E::Counters>() {
                *sum += self.counters;
            }
        }

        /// Calls [`Engine::take_stages`].
        fn take_stages(&mut self, stages: &StageMakers) {
            self.engine.take_stages(stages);
        }

        /// Makes a context, to be [put](Self::put) in its place. False: there is no such place, or the engine cannot.
        fn make(&mut self, queue: usize, handle: Handle, direction: Direction, spec: Spec) -> bool {
            let spec = if handle.place() < self.places { spec.downcast::<E::Spec>().ok() } else { None };
            self.made = spec.and_then(|spec| self.engine.create_for(queue, direction, *spec));
            self.made.is_some()
        }

        /// Puts the context that was made in its handle's place, with its place in the circle of those on the NIC.
        fn put(&mut self, handle: Handle, subject: Subject, at: usize) {
            if let Some((state, held)) = self.made.take() {
                self.slab.insert(handle, subject, state, held, at);
            }
        }

        /// Gives up all contexts.
        fn clear(&mut self) {
            self.slab = Slab::default();
            self.engine.forget();
        }

        /// Calls [`Engine::stage_keys`].
        fn stage_keys(&mut self, handle: Handle) -> Option<&mut StageKeys> {
            E::stage_keys(self.slab.held(handle)?)
        }

        /// Calls [`Engine::lend`], of a context that is on the NIC.
        fn lend(&mut self, handle: Handle) -> Option<Lent> {
            E::lend(self.slab.get(handle)?)
        }

        /// Calls [`Engine::question`], of a context that is on the NIC.
        fn question(&mut self, handle: Handle) -> Option<Seq> {
            E::question(self.slab.get(handle)?.state)
        }

        /// Calls [`Engine::answer`].
        fn answer(&mut self, handle: Handle, answer: (Seq, Option<u64>)) {
            self.engine.answer(self.slab.get(handle), answer, &mut self.counters);
        }

        /// Calls [`Engine::place`].
        fn place(&mut self, handle: Handle, buffer: u64, pieces: Vec<Piece>, stages: Option<Spec>) {
            // Pieces without a context, or with stages of another engine, are dropped and so go home.
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

        /// Calls [`Engine::command`], of a context that is on the NIC.
        fn command(&mut self, handle: Handle, command: Spec) {
            if let (Some(context), Ok(command)) = (self.slab.get(handle), command.downcast()) {
                E::command(context, *command);
            }
        }

        /// Calls [`Engine::change_for`].
        fn change(&mut self, queue: usize, change: Spec) {
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
    /// The face of an engine that follows flows. Contexts are on the NIC.
    pub trait AnyStream: AnyEngine for [E: StreamEngine] Hosted<E> {
        /// Calls [`StreamEngine::receive`]; `None` without a context.
        fn receive(&mut self, handle: Handle, payload: &mut Payload<'_>) -> Option<Verdict> {
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

        /// Calls [`StreamEngine::works_on_whole_packets`]; false without a context.
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
        fn keys_to_receive(&mut self, handle: Handle, payload: &Payload<'_>, key: &mut dyn FnMut(Handle)) {
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

/// What an engine keeps of a packet that it wraps.
pub type Wrapping = Box<dyn Any + Send>;

face! {
    /// The face of an engine that works on whole packets. Contexts are on the NIC.
    pub trait AnyPacket: AnyEngine for [E: PacketEngine] Hosted<E, E::Seen> {
        /// Calls [`PacketEngine::look`], and keeps what that saw for [`open`](Self::open).
        fn look(&mut self, frame: &[u8], headers: &Headers) -> Shown<()> {
            match self.engine.look(frame, headers) {
                Shown::Nothing => Shown::Nothing,
                Shown::Key(key, seen) => {
                    self.seen = Some(seen);
                    Shown::Key(key, ())
                }
                Shown::Fragment => {
                    E::note_fragment(&mut self.counters);
                    Shown::Fragment
                }
                Shown::PerhapsFragment => Shown::PerhapsFragment,
            }
        }

        /// The key that a frame shows.
        fn key(&self, frame: &[u8], headers: &Headers) -> Option<KeyBytes> {
            match self.engine.look(frame, headers) {
                Shown::Key(key, _) => Some(key),
                Shown::Nothing | Shown::Fragment | Shown::PerhapsFragment => None,
            }
        }

        /// Calls [`PacketEngine::key_of_first`].
        fn key_of_first(&self, packet: &[u8], headers: &IpHeaders) -> Option<KeyBytes> {
            E::key_of_first(packet, headers)
        }

        /// Calls [`PacketEngine::open`], of the frame that was looked at last.
        fn open(&mut self, handle: Handle, frame: &[u8]) -> Opened {
            let (Some(context), Some(seen)) = (self.slab.get(handle), self.seen.take()) else {
                return Opened::Untouched(PacketMark::None);
            };
            self.engine.open(context, frame, &seen, &mut self.counters)
        }

        /// Calls [`PacketEngine::claim`].
        fn claim(&self, frame: &[u8], headers: &Headers) -> Claim {
            self.engine.claim(frame, headers)
        }

        /// Calls [`PacketEngine::begin_claimed`].
        fn begin_claimed(&mut self, handle: Handle, frame: &[u8]) -> Option<Wrapping> {
            let wrapping = self.engine.begin_claimed(self.slab.get(handle)?, frame, &mut self.counters)?;
            Some(Box::new(wrapping))
        }

        /// Calls [`PacketEngine::begin`].
        fn begin(&mut self, ask: PacketAsk, packet: &mut TxPacket) -> Option<Wrapping> {
            let wrapping = self.engine.begin(self.slab.get(ask.context)?, ask, packet, &mut self.counters)?;
            Some(Box::new(wrapping))
        }

        /// Calls [`PacketEngine::wrap`].
        fn wrap(&mut self, handle: Handle, wrapping: &mut Wrapping, plain: &[u8], longest: usize) -> Option<BytesMut> {
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
    /// The face of an engine that works from memory to memory. Contexts are on the NIC.
    pub trait AnyJob: AnyEngine for [E: JobEngine] Hosted<E> {
        /// Calls [`JobEngine::run`]; `None` without a context.
        fn run(&mut self, job: &mut Job) -> Option<JobOutcome> {
            Some(self.engine.run(self.slab.get(job.session)?, job))
        }
    }
}
