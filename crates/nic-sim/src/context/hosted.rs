//! An engine with its contexts, whatever engine it is.

use super::Subject;
use super::slab::Slab;
use crate::engine::payload::Payload;
use crate::engine::{Context, Engine, OutOfStep, StreamEngine};
use crate::packet::Spec;
use crate::stats::DeviceCounters;
use bytes::BytesMut;
use core::any::Any;
use core::fmt;
use offload_api::{Direction, Handle, Piece, Verdict};
use offload_base::Seq;

/// An engine, by what it can do.
#[derive(Debug)]
pub(crate) enum Installed {
    /// It follows the bytes of flows.
    Stream(Box<dyn AnyStream>),
    /// It is called by its own name.
    Other(Box<dyn AnyEngine>),
}

impl Installed {
    /// An engine that follows flows, with so many contexts at most.
    pub(crate) fn stream<E: StreamEngine>(engine: E, places: u32) -> Installed {
        Installed::Stream(Box::new(Hosted::new(engine, places)))
    }

    /// Another one.
    pub(crate) fn other<E: Engine>(engine: E, places: u32) -> Installed {
        Installed::Other(Box::new(Hosted::new(engine, places)))
    }

    pub(super) fn any(&self) -> &dyn AnyEngine {
        match self {
            Installed::Stream(engine) => &**engine,
            Installed::Other(engine) => &**engine,
        }
    }

    pub(super) fn any_mut(&mut self) -> &mut dyn AnyEngine {
        match self {
            Installed::Stream(engine) => &mut **engine,
            Installed::Other(engine) => &mut **engine,
        }
    }
}

/// An engine and its contexts.
#[derive(Debug)]
pub(super) struct Hosted<E: Engine> {
    engine: E,
    pub(super) slab: Slab<E>,
    places: u32,
    /// A context that was made and has no place yet.
    made: Option<(E::State, E::Held)>,
}

impl<E: Engine> Hosted<E> {
    fn new(engine: E, places: u32) -> Hosted<E> {
        Hosted { engine, slab: Slab::default(), places, made: None }
    }
}

/// What the store needs to know of any engine, and what any can be told.
pub(crate) trait AnyEngine: fmt::Debug + Send {
    /// Makes a context, to be [put](Self::put) in its place. False: there is no such place, or the engine cannot.
    fn make(&mut self, handle: Handle, direction: Direction, spec: Spec) -> bool;

    /// Puts the context that was made in its handle's place, with its place in the circle of those on the NIC.
    fn put(&mut self, handle: Handle, subject: Subject, at: usize);

    /// The context in a place.
    fn in_place(&self, place: u32) -> Option<Handle>;

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

    /// Where a context that is on the NIC thinks a unit starts, if it waits to be told.
    fn question(&mut self, handle: Handle) -> Option<Seq>;

    /// What software says about a header.
    fn answer(&mut self, handle: Handle, answer: (Seq, Option<u64>), counters: &mut DeviceCounters);

    /// Gives a context a buffer.
    fn place(&mut self, handle: Handle, buffer: u64, pieces: Vec<Piece>);

    /// Takes a buffer away.
    fn unplace(&mut self, handle: Handle, buffer: u64);

    fn as_any(&mut self) -> &mut dyn Any;
}

impl<E: Engine> AnyEngine for Hosted<E> {
    fn make(&mut self, handle: Handle, direction: Direction, spec: Spec) -> bool {
        let spec = if handle.place() < self.places { spec.downcast::<E::Spec>().ok() } else { None };
        self.made = spec.and_then(|spec| self.engine.create(direction, *spec));
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
    }

    fn subject(&self, handle: Handle) -> Option<&Subject> {
        self.slab.subject(handle)
    }

    fn question(&mut self, handle: Handle) -> Option<Seq> {
        E::question(self.slab.get(handle)?.state)
    }

    fn answer(&mut self, handle: Handle, answer: (Seq, Option<u64>), counters: &mut DeviceCounters) {
        self.engine.answer(self.slab.get(handle), answer, counters);
    }

    fn place(&mut self, handle: Handle, buffer: u64, pieces: Vec<Piece>) {
        // Without a context they are dropped, and so go home.
        if let Some(held) = self.slab.held(handle) {
            E::place(held, buffer, pieces);
        }
    }

    fn unplace(&mut self, handle: Handle, buffer: u64) {
        if let Some(held) = self.slab.held(handle) {
            E::unplace(held, buffer);
        }
    }

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
    fn transmit(&mut self, handle: Handle, at: Option<Seq>, bytes: &[u8], out: &mut BytesMut)
    -> Result<u64, OutOfStep>;

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

    fn transmit(
        &mut self,
        handle: Handle,
        at: Option<Seq>,
        bytes: &[u8],
        out: &mut BytesMut,
    ) -> Result<u64, OutOfStep> {
        let context: Context<'_, E> = self.slab.get(handle).ok_or(OutOfStep)?;
        E::transmit(context, at, bytes, out)
    }

    fn note_sent(&self, worked: u64, counters: &mut DeviceCounters) {
        E::note_sent(worked, counters);
    }
}
