//! An engine with its contexts, whatever engine it is.

use super::Subject;
use super::job::AnyJob;
use super::slab::Slab;
use crate::engine::{
    Claim, Context, Engine, JobEngine, Lent, Opened, OutOfStep, PacketEngine, Payload, Shown, StageKeys, StageMakers,
    StreamEngine,
};
use crate::stats::DeviceCounters;
use bytes::BytesMut;
use core::any::Any;
use core::fmt;
use core::ops::Range;
use offload_api::{ContextEvent, Direction, EngineInfo, Handle, PacketAsk, PacketMark, Piece, TxPacket, Verdict};
use offload_api::{KeyBytes, Spec};
use offload_base::Seq;
use offload_formats::{Headers, IpHeaders};

/// An engine, by what it can do.
#[derive(Debug)]
pub(crate) enum Installed {
    /// It follows the bytes of flows.
    Stream(Box<dyn AnyStream>),
    /// It works on whole packets.
    Packet(Box<dyn AnyPacket>),
    /// It works from memory to memory.
    Job(Box<dyn AnyJob>),
}

impl Installed {
    /// An engine that follows flows, with so many contexts at most.
    pub(crate) fn stream<E: StreamEngine>(engine: E, places: u32) -> Installed {
        Installed::Stream(Box::new(Hosted::new(engine, places, E::COUNTS_UNITS)))
    }

    /// One that works on whole packets, with so many contexts at most.
    pub(crate) fn packet<E: PacketEngine>(engine: E, places: u32) -> Installed {
        Installed::Packet(Box::new(Opener { hosted: Hosted::new(engine, places, false), seen: None }))
    }

    /// One that works from memory to memory, with so many contexts at most.
    pub(crate) fn job<E: JobEngine>(engine: E, places: u32) -> Installed {
        Installed::Job(Box::new(Hosted::new(engine, places, false)))
    }

    /// What a driver is told of it; `number`: as handles name it.
    pub(crate) fn info(&self, number: u8) -> EngineInfo {
        self.any().info(number)
    }

    /// [`AnyEngine::is_there`].
    pub(super) fn is_there(&self, handle: Handle) -> Option<bool> {
        match self {
            Installed::Stream(engine) => engine.is_there(handle),
            Installed::Packet(engine) => engine.hosted().is_there(handle),
            Installed::Job(engine) => engine.is_there(handle),
        }
    }

    pub(super) fn any(&self) -> &dyn AnyEngine {
        match self {
            Installed::Stream(engine) => &**engine,
            Installed::Packet(engine) => engine.hosted(),
            Installed::Job(engine) => &**engine,
        }
    }

    pub(crate) fn any_mut(&mut self) -> &mut dyn AnyEngine {
        match self {
            Installed::Stream(engine) => &mut **engine,
            Installed::Packet(engine) => engine.hosted_mut(),
            Installed::Job(engine) => &mut **engine,
        }
    }
}

/// An engine and its contexts.
#[derive(Debug)]
pub(super) struct Hosted<E: Engine> {
    pub(super) engine: E,
    pub(super) slab: Slab<E>,
    places: u32,
    counts_units: bool,
    /// A context that was made and has no place yet.
    made: Option<(E::State, E::Held)>,
}

impl<E: Engine> Hosted<E> {
    fn new(engine: E, places: u32, counts_units: bool) -> Hosted<E> {
        Hosted { engine, slab: Slab::default(), places, counts_units, made: None }
    }
}

/// What the store needs to know of any engine, and what any can be told.
pub(crate) trait AnyEngine: fmt::Debug + Send {
    /// What a driver is told of it.
    fn info(&self, number: u8) -> EngineInfo;

    /// [`Engine::take_stages`].
    fn take_stages(&mut self, stages: &StageMakers);

    /// Makes a context, to be [put](Self::put) in its place. False: there is no such place, or the engine cannot.
    fn make(&mut self, queue: usize, handle: Handle, direction: Direction, spec: Spec) -> bool;

    /// Puts the context that was made in its handle's place, with its place in the circle of those on the NIC.
    fn put(&mut self, handle: Handle, subject: Subject, at: usize);

    /// The context in a place.
    fn in_place(&self, place: u32) -> Option<Handle>;

    /// Returns the contexts in these places.
    fn in_places(&self, places: Range<u32>) -> Vec<Handle>;

    /// Whether the state of a context is on the NIC; `None`: there is no such context.
    fn is_there(&self, handle: Handle) -> Option<bool>;

    /// Reads a state back from its image. False: there is none.
    fn read_back(&mut self, handle: Handle, at: usize) -> bool;

    /// Writes a state out, unless it was used since this was last asked. True: it is in host memory now.
    fn write_out_if_unused(&mut self, handle: Handle) -> bool;

    /// Its place in the circle is another.
    fn moved(&mut self, handle: Handle, at: usize);

    /// Gives up a context: what it was about, and its place in the circle.
    fn remove(&mut self, handle: Handle) -> Option<(Subject, Option<usize>)>;

    /// Gives up all.
    fn clear(&mut self);

    /// What a context is about.
    fn subject(&self, handle: Handle) -> Option<&Subject>;

    /// The same, to be changed.
    fn subject_mut(&mut self, handle: Handle) -> Option<&mut Subject>;

    /// [`Engine::stage_keys`].
    fn stage_keys(&mut self, handle: Handle) -> Option<&mut StageKeys>;

    /// [`Engine::lend`], of a context that is on the NIC.
    fn lend(&mut self, handle: Handle) -> Option<Lent>;

    /// Where a context that is on the NIC thinks a unit starts, if it waits to be told.
    fn question(&mut self, handle: Handle) -> Option<Seq>;

    /// What software says about a header.
    fn answer(&mut self, handle: Handle, answer: (Seq, Option<u64>), counters: &mut DeviceCounters);

    /// Gives a context a buffer.
    fn place(&mut self, handle: Handle, buffer: u64, pieces: Vec<Piece>, stages: Option<Spec>);

    /// Takes a buffer away.
    fn unplace(&mut self, handle: Handle, buffer: u64);

    /// [`Engine::command`], of a context that is on the NIC.
    fn command(&mut self, handle: Handle, command: Spec);

    /// Calls [`Engine::change_for`].
    fn change(&mut self, queue: usize, change: Spec);

    /// Calls [`Engine::forget_queue`].
    fn forget_queue(&mut self, queue: usize);

    /// [`Engine::pop_event`].
    fn pop_event(&mut self) -> Option<ContextEvent>;

    #[cfg(test)]
    fn as_any(&mut self) -> &mut dyn Any;
}

impl<E: Engine> AnyEngine for Hosted<E> {
    fn info(&self, number: u8) -> EngineInfo {
        let mut info = EngineInfo::new(number, E::NAME, self.places);
        info.counts_units = self.counts_units;
        self.engine.describe(&mut info);
        info
    }

    fn take_stages(&mut self, stages: &StageMakers) {
        self.engine.take_stages(stages);
    }

    fn make(&mut self, queue: usize, handle: Handle, direction: Direction, spec: Spec) -> bool {
        let spec = if handle.place() < self.places { spec.downcast::<E::Spec>().ok() } else { None };
        self.made = spec.and_then(|spec| self.engine.create_for(queue, direction, *spec));
        self.made.is_some()
    }

    fn put(&mut self, handle: Handle, subject: Subject, at: usize) {
        if let Some((state, held)) = self.made.take() {
            self.slab.insert(handle, subject, state, held, at);
        }
    }

    fn in_place(&self, place: u32) -> Option<Handle> {
        self.slab.in_place(place)
    }

    fn in_places(&self, places: Range<u32>) -> Vec<Handle> {
        let used = places.start..places.end.min(self.slab.places());
        used.filter_map(|place| self.slab.in_place(place)).collect()
    }

    fn is_there(&self, handle: Handle) -> Option<bool> {
        self.slab.is_there(handle)
    }

    fn read_back(&mut self, handle: Handle, at: usize) -> bool {
        self.slab.read_back(handle, at)
    }

    fn write_out_if_unused(&mut self, handle: Handle) -> bool {
        self.slab.write_out_if_unused(handle)
    }

    fn moved(&mut self, handle: Handle, at: usize) {
        self.slab.moved(handle, at);
    }

    fn remove(&mut self, handle: Handle) -> Option<(Subject, Option<usize>)> {
        self.slab.remove(handle)
    }

    fn clear(&mut self) {
        self.slab = Slab::default();
        self.engine.forget();
    }

    fn subject(&self, handle: Handle) -> Option<&Subject> {
        self.slab.subject(handle)
    }

    fn subject_mut(&mut self, handle: Handle) -> Option<&mut Subject> {
        self.slab.subject_mut(handle)
    }

    fn stage_keys(&mut self, handle: Handle) -> Option<&mut StageKeys> {
        E::stage_keys(self.slab.held(handle)?)
    }

    fn lend(&mut self, handle: Handle) -> Option<Lent> {
        E::lend(self.slab.get(handle)?)
    }

    fn question(&mut self, handle: Handle) -> Option<Seq> {
        E::question(self.slab.get(handle)?.state)
    }

    fn answer(&mut self, handle: Handle, answer: (Seq, Option<u64>), counters: &mut DeviceCounters) {
        self.engine.answer(self.slab.get(handle), answer, counters);
    }

    fn place(&mut self, handle: Handle, buffer: u64, pieces: Vec<Piece>, stages: Option<Spec>) {
        // Pieces without a context, or with stages of another engine, are dropped and so go home.
        if let Some(held) = self.slab.held(handle)
            && let Ok(stages) = stages.map(|stages| stages.downcast()).transpose()
        {
            E::place(held, buffer, pieces, stages.map(|stages| *stages));
        }
    }

    fn unplace(&mut self, handle: Handle, buffer: u64) {
        if let Some(held) = self.slab.held(handle) {
            E::unplace(held, buffer);
        }
    }

    fn command(&mut self, handle: Handle, command: Spec) {
        if let (Some(context), Ok(command)) = (self.slab.get(handle), command.downcast()) {
            E::command(context, *command);
        }
    }

    fn change(&mut self, queue: usize, change: Spec) {
        if let Ok(change) = change.downcast() {
            self.engine.change_for(queue, *change);
        }
    }

    fn forget_queue(&mut self, queue: usize) {
        self.engine.forget_queue(queue);
    }

    fn pop_event(&mut self) -> Option<ContextEvent> {
        self.engine.pop_event()
    }

    #[cfg(test)]
    fn as_any(&mut self) -> &mut dyn Any {
        self
    }
}

/// What any engine can do that follows flows. Contexts are on the NIC.
pub(crate) trait AnyStream: AnyEngine {
    /// [`StreamEngine::receive`]; nothing without a context.
    fn receive(&mut self, handle: Handle, payload: &mut Payload<'_>, counters: &mut DeviceCounters) -> Option<Verdict>;

    /// [`StreamEngine::count_from`].
    fn count_from(&mut self, handle: Handle, number: u64) -> bool;

    /// [`StreamEngine::begin`].
    fn begin(&mut self, handle: Handle, start: Seq) -> bool;

    /// [`StreamEngine::expects`].
    fn expects(&mut self, handle: Handle, seq: Seq) -> Option<bool>;

    /// [`StreamEngine::transmit`].
    fn transmit(&mut self, handle: Handle, at: Seq, bytes: &[u8], out: &mut BytesMut) -> Result<u64, OutOfStep>;

    /// [`StreamEngine::works_on_whole_packets`]; false without a context.
    fn works_on_whole_packets(&mut self, handle: Handle) -> bool;

    /// [`StreamEngine::transmit_whole`].
    fn transmit_whole(
        &mut self,
        handle: Handle,
        at: Seq,
        bytes: &[u8],
        ahead: &[u8],
        out: &mut BytesMut,
        counters: Option<&mut DeviceCounters>,
    ) -> Result<(), OutOfStep>;

    /// [`StreamEngine::keys_to_receive`].
    fn keys_to_receive(&mut self, handle: Handle, payload: &Payload<'_>, key: &mut dyn FnMut(Handle));

    /// [`StreamEngine::keys_to_transmit`].
    fn keys_to_transmit(&mut self, handle: Handle, bytes: &[u8], key: &mut dyn FnMut(Handle));

    /// [`StreamEngine::note_sent`].
    fn note_sent(&self, worked: u64, counters: &mut DeviceCounters);
}

impl<E: StreamEngine> AnyStream for Hosted<E> {
    fn receive(&mut self, handle: Handle, payload: &mut Payload<'_>, counters: &mut DeviceCounters) -> Option<Verdict> {
        E::receive(self.slab.get(handle)?, payload, counters)
    }

    fn count_from(&mut self, handle: Handle, number: u64) -> bool {
        self.slab.get(handle).is_some_and(|context| E::count_from(context, number))
    }

    fn begin(&mut self, handle: Handle, start: Seq) -> bool {
        self.slab.get(handle).is_some_and(|context| E::begin(context, start))
    }

    fn expects(&mut self, handle: Handle, seq: Seq) -> Option<bool> {
        E::expects(self.slab.get(handle)?.state, seq)
    }

    fn transmit(&mut self, handle: Handle, at: Seq, bytes: &[u8], out: &mut BytesMut) -> Result<u64, OutOfStep> {
        let context: Context<'_, E> = self.slab.get(handle).ok_or(OutOfStep)?;
        E::transmit(context, at, bytes, out)
    }

    fn works_on_whole_packets(&mut self, handle: Handle) -> bool {
        self.slab.get(handle).is_some_and(|context| E::works_on_whole_packets(&context))
    }

    fn transmit_whole(
        &mut self,
        handle: Handle,
        at: Seq,
        bytes: &[u8],
        ahead: &[u8],
        out: &mut BytesMut,
        counters: Option<&mut DeviceCounters>,
    ) -> Result<(), OutOfStep> {
        let context: Context<'_, E> = self.slab.get(handle).ok_or(OutOfStep)?;
        E::transmit_whole(context, at, bytes, ahead, out, counters)
    }

    fn keys_to_receive(&mut self, handle: Handle, payload: &Payload<'_>, key: &mut dyn FnMut(Handle)) {
        if let Some(context) = self.slab.get(handle) {
            E::keys_to_receive(context, payload, key);
        }
    }

    fn keys_to_transmit(&mut self, handle: Handle, bytes: &[u8], key: &mut dyn FnMut(Handle)) {
        if let Some(context) = self.slab.get(handle) {
            E::keys_to_transmit(context, bytes, key);
        }
    }

    fn note_sent(&self, worked: u64, counters: &mut DeviceCounters) {
        E::note_sent(worked, counters);
    }
}

/// An engine that works on whole packets, with its contexts.
#[derive(Debug)]
struct Opener<E: PacketEngine> {
    hosted: Hosted<E>,
    /// Of the frame that was looked at last.
    seen: Option<E::Seen>,
}

/// What an engine keeps of a packet that it wraps.
pub(crate) type Wrapping = Box<dyn Any + Send>;

/// What any engine can do that works on whole packets. Contexts are on the NIC.
pub(crate) trait AnyPacket: fmt::Debug + Send {
    fn hosted(&self) -> &dyn AnyEngine;

    fn hosted_mut(&mut self) -> &mut dyn AnyEngine;

    /// [`PacketEngine::look`], and keeps what it saw for [`open`](Self::open).
    fn look(&mut self, frame: &[u8], headers: &Headers, counters: &mut DeviceCounters) -> Shown<()>;

    /// The key that a frame shows.
    fn key(&self, frame: &[u8], headers: &Headers) -> Option<KeyBytes>;

    /// [`PacketEngine::key_of_first`].
    fn key_of_first(&self, packet: &[u8], headers: &IpHeaders) -> Option<KeyBytes>;

    /// [`PacketEngine::open`], of the frame that was looked at last.
    fn open(&mut self, handle: Handle, frame: &[u8], counters: &mut DeviceCounters) -> Opened;

    /// [`PacketEngine::claim`].
    fn claim(&self, frame: &[u8], headers: &Headers) -> Claim;

    /// [`PacketEngine::begin_claimed`].
    fn begin_claimed(&mut self, handle: Handle, frame: &[u8], counters: &mut DeviceCounters) -> Option<Wrapping>;

    /// [`PacketEngine::begin`].
    fn begin(&mut self, ask: PacketAsk, packet: &mut TxPacket, counters: &mut DeviceCounters) -> Option<Wrapping>;

    /// [`PacketEngine::wrap`].
    fn wrap(
        &mut self,
        handle: Handle,
        wrapping: &mut Wrapping,
        plain: &[u8],
        longest: usize,
        counters: &mut DeviceCounters,
    ) -> Option<BytesMut>;

    /// [`PacketEngine::note_missing`].
    fn note_missing(&self, counters: &mut DeviceCounters);
}

impl<E: PacketEngine> AnyPacket for Opener<E> {
    fn hosted(&self) -> &dyn AnyEngine {
        &self.hosted
    }

    fn hosted_mut(&mut self) -> &mut dyn AnyEngine {
        &mut self.hosted
    }

    fn look(&mut self, frame: &[u8], headers: &Headers, counters: &mut DeviceCounters) -> Shown<()> {
        match self.hosted.engine.look(frame, headers) {
            Shown::Nothing => Shown::Nothing,
            Shown::Key(key, seen) => {
                self.seen = Some(seen);
                Shown::Key(key, ())
            }
            Shown::Fragment => {
                E::note_fragment(counters);
                Shown::Fragment
            }
            Shown::PerhapsFragment => Shown::PerhapsFragment,
        }
    }

    fn key(&self, frame: &[u8], headers: &Headers) -> Option<KeyBytes> {
        match self.hosted.engine.look(frame, headers) {
            Shown::Key(key, _) => Some(key),
            Shown::Nothing | Shown::Fragment | Shown::PerhapsFragment => None,
        }
    }

    fn key_of_first(&self, packet: &[u8], headers: &IpHeaders) -> Option<KeyBytes> {
        E::key_of_first(packet, headers)
    }

    fn open(&mut self, handle: Handle, frame: &[u8], counters: &mut DeviceCounters) -> Opened {
        let Hosted { engine, slab, .. } = &mut self.hosted;
        let (Some(context), Some(seen)) = (slab.get(handle), self.seen.take()) else {
            return Opened::Untouched(PacketMark::None);
        };
        engine.open(context, frame, &seen, counters)
    }

    fn claim(&self, frame: &[u8], headers: &Headers) -> Claim {
        self.hosted.engine.claim(frame, headers)
    }

    fn begin_claimed(&mut self, handle: Handle, frame: &[u8], counters: &mut DeviceCounters) -> Option<Wrapping> {
        let Hosted { engine, slab, .. } = &mut self.hosted;
        let wrapping = engine.begin_claimed(slab.get(handle)?, frame, counters)?;
        Some(Box::new(wrapping))
    }

    fn begin(&mut self, ask: PacketAsk, packet: &mut TxPacket, counters: &mut DeviceCounters) -> Option<Wrapping> {
        let Hosted { engine, slab, .. } = &mut self.hosted;
        let wrapping = engine.begin(slab.get(ask.context)?, ask, packet, counters)?;
        Some(Box::new(wrapping))
    }

    fn wrap(
        &mut self,
        handle: Handle,
        wrapping: &mut Wrapping,
        plain: &[u8],
        longest: usize,
        counters: &mut DeviceCounters,
    ) -> Option<BytesMut> {
        let Hosted { engine, slab, .. } = &mut self.hosted;
        engine.wrap(slab.get(handle)?, wrapping.downcast_mut()?, plain, longest, counters)
    }

    fn note_missing(&self, counters: &mut DeviceCounters) {
        E::note_missing(counters);
    }
}
