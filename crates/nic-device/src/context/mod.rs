//! The context store: the device's data for each flow or security association, found by handle.
//!
//! A context has a state of constant size and a held part, such as keys and buffers. The NIC's memory caches the states
//! of recently used contexts of all engines. All other states are images in host memory; the store fetches an image
//! when a packet needs it, and evicts a state that was not used for a while.
//!
//! Invariants: a handle finds its context only while that context lives, and an older generation finds nothing; the
//! cache never exceeds its size; nothing is steered to a removed context.

use crate::steering::Steering;
use core::ops::Range;
use nic_engine::hosted::{AnyEngine, AnyPacket, AnyStream, InstalledEngine, Subject};
use nic_engine::{ContextImage, FrameLookup, LentObject, ReceivedPayload, StageKeys};
use nic_rings::dma::DmaBytes;
use offload_api::Key;
use offload_api::Spec;
use offload_api::{ContextEvent, Direction, FlowKey, Handle, Job, JobOutcome, Piece};
use offload_base::Seq;
use offload_formats::Headers;
use smallvec::SmallVec;

/// The keys that a packet needs, without duplicates. Usually empty, or one key.
pub(crate) type NeededKeys = SmallVec<[Handle; 4]>;

fn note_key(keys: &mut NeededKeys, key: Handle) {
    if !keys.contains(&key) {
        keys.push(key);
    }
}

/// All contexts of a device.
#[derive(Debug)]
pub(crate) struct ContextStore {
    /// Engines by number.
    engines: Vec<InstalledEngine>,
    /// Contexts with their state on the NIC, as the ring of the clock algorithm.
    on_nic: Vec<Handle>,
    /// Position in the ring at which the search for an eviction continues.
    hand: usize,
    fits: usize,
    contexts: usize,
    /// Range that includes all engines called since their events were last drained.
    called: Range<usize>,
    /// Queue of the commands being executed. Several queues may share the store.
    queue: usize,
    counters: CacheCounters,
}

/// The result of showing a received frame to the packet engines.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum FrameMatch {
    /// The frame is of no engine's kind.
    Nothing,
    /// A packet of this context.
    Opener(Handle),
    /// A packet of an engine's kind without a context.
    Unknown,
    /// A fragment of a packet of an engine's kind.
    Fragment { engine: u8 },
    /// A fragment that may belong to a packet of an engine's kind.
    PerhapsFragment,
}

/// Counters of the store.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct CacheCounters {
    /// Contexts fetched from host memory.
    pub(crate) fetched: u64,
    /// Contexts written to host memory to make room.
    pub(crate) evicted: u64,
    /// Bytes processed by engines.
    pub(crate) worked_bytes: u64,
}

impl ContextStore {
    /// Makes a store with these engines and `cache_bytes` bytes for states. At least one state fits.
    pub(crate) fn new(engines: Vec<InstalledEngine>, cache_bytes: usize) -> ContextStore {
        ContextStore {
            engines,
            on_nic: Vec::new(),
            hand: 0,
            fits: (cache_bytes / ContextImage::BYTES).max(1),
            contexts: 0,
            called: 0..0,
            queue: 0,
            counters: CacheCounters::default(),
        }
    }

    pub(crate) fn counters(&self) -> CacheCounters {
        self.counters
    }

    /// Counts bytes that an engine processes.
    pub(crate) fn note_work(&mut self, bytes: usize) {
        self.counters.worked_bytes += bytes as u64;
    }

    /// Returns all engines by number.
    pub(crate) fn engines(&self) -> impl Iterator<Item = &dyn AnyEngine> {
        self.engines.iter().map(InstalledEngine::any)
    }

    /// Returns the number of contexts.
    pub(crate) fn len(&self) -> usize {
        self.contexts
    }

    /// Sets the queue of the following commands.
    pub(crate) fn serve(&mut self, queue: usize) {
        self.queue = queue;
    }

    /// Removes all state of a queue: its contexts, which are at `places` of each engine, and its changes of engines.
    pub(crate) fn forget_queue(&mut self, queue: usize, places: &[Range<u32>], steering: &mut Steering) {
        for (engine, places) in places.iter().enumerate() {
            let Some(engine) = self.engines.get_mut(engine).map(InstalledEngine::any_mut) else { continue };
            engine.forget_queue(queue);
            let contexts = engine.slab().in_places(places.clone());
            contexts.into_iter().for_each(|handle| self.remove(handle, steering));
        }
    }

    /// Creates a context by its engine, and steers its keys to it. A context with the same slot is removed. Returns
    /// false, without any change, if the engine refuses.
    pub(crate) fn create(
        &mut self,
        handle: Handle,
        direction: Direction,
        spec: Spec,
        subject: Subject,
        steering: &mut Steering,
        dma: &mut DmaBytes,
    ) -> bool {
        let queue = self.queue;
        let made = self.engine_mut(handle).is_some_and(|engine| engine.make(queue, handle, direction, spec));
        if made {
            self.put(handle, subject, steering, dma);
        }
        made
    }

    /// Returns the engine of a stream context for a call; the context's state is on the NIC.
    pub(crate) fn stream(&mut self, handle: Handle, dma: &mut DmaBytes) -> Option<&mut dyn AnyStream> {
        self.bring(handle, dma)?;
        match self.engines.get_mut(usize::from(handle.engine()))? {
            InstalledEngine::Stream(engine) => Some(&mut **engine),
            InstalledEngine::Packet(_) | InstalledEngine::Job(_) => None,
        }
    }

    /// The keys that stages of a context need for a received packet.
    pub(crate) fn keys_to_receive(
        &mut self,
        handle: Handle,
        payload: &ReceivedPayload<'_>,
        dma: &mut DmaBytes,
    ) -> NeededKeys {
        let mut keys = NeededKeys::new();
        if let Some(engine) = self.stream(handle, dma) {
            engine.keys_to_receive(handle, payload, &mut |key| note_key(&mut keys, key));
        }
        keys
    }

    /// Returns the keys that the context's stages need for bytes to send.
    pub(crate) fn keys_to_transmit(&mut self, handle: Handle, bytes: &[u8], dma: &mut DmaBytes) -> NeededKeys {
        let mut keys = NeededKeys::new();
        if let Some(engine) = self.stream(handle, dma) {
            engine.keys_to_transmit(handle, bytes, &mut |key| note_key(&mut keys, key));
        }
        keys
    }

    /// Calls `work` on the engine of a stream context, with `keys` lent to its stages meanwhile. Returns the result,
    /// and the key that a stage refused because of another key than expected.
    pub(crate) fn with_stream<R>(
        &mut self,
        handle: Handle,
        dma: &mut DmaBytes,
        keys: NeededKeys,
        work: impl FnOnce(&mut dyn AnyStream) -> R,
    ) -> Option<(R, Option<Handle>)> {
        // A key may be evicted by the next key or by the context itself, so the loan is a counted reference.
        for key in &keys {
            let lent = self.bring(*key, dma).and_then(|()| self.engine_mut(*key)?.lend(*key));
            self.lend(handle, *key, lent);
        }
        let done = self.stream(handle, dma).map(work);
        let mut refused = None;
        for key in keys {
            if self.lend(handle, key, None) {
                refused = Some(key);
            }
        }
        Some((done?, refused))
    }

    fn lend(&mut self, handle: Handle, key: Handle, lent: Option<LentObject>) -> bool {
        self.stage_keys(handle).is_some_and(|keys| keys.lend(key, lent))
    }

    fn stage_keys(&mut self, handle: Handle) -> Option<&mut StageKeys> {
        match self.engines.get_mut(usize::from(handle.engine()))? {
            InstalledEngine::Stream(engine) => engine.stage_keys(handle),
            InstalledEngine::Packet(_) | InstalledEngine::Job(_) => None,
        }
    }

    /// Reports that a frame leaves on which the context's engine did `worked` units of work.
    pub(crate) fn note_sent(&mut self, handle: Handle, worked: u64) {
        if let Some(InstalledEngine::Stream(engine)) = self.engines.get_mut(usize::from(handle.engine())) {
            engine.note_sent(worked);
        }
    }

    /// Returns the packet engine of a context for a call; the context's state is on the NIC.
    pub(crate) fn packet(&mut self, handle: Handle, dma: &mut DmaBytes) -> Option<&mut dyn AnyPacket> {
        self.bring(handle, dma)?;
        self.packet_engine(handle.engine())
    }

    /// Returns the engine with this number if it is a packet engine.
    pub(crate) fn packet_engine(&mut self, engine: u8) -> Option<&mut dyn AnyPacket> {
        self.note_called(engine);
        match self.engines.get_mut(usize::from(engine))? {
            InstalledEngine::Packet(engine) => Some(&mut **engine),
            InstalledEngine::Stream(_) | InstalledEngine::Job(_) => None,
        }
    }

    /// Returns all packet engines with their numbers.
    pub(crate) fn packet_engines(&self) -> impl Iterator<Item = (u8, &dyn AnyPacket)> {
        self.engines.iter().zip(0..).filter_map(|(engine, number)| match engine {
            InstalledEngine::Packet(engine) => Some((number, &**engine)),
            InstalledEngine::Stream(_) | InstalledEngine::Job(_) => None,
        })
    }

    /// Finds the packet engine for a received frame. If several engines recognize the frame, the first with a steered
    /// key gets it.
    pub(crate) fn look(&mut self, frame: &[u8], headers: &Headers, steering: &Steering) -> FrameMatch {
        let mut found = FrameMatch::Nothing;
        for (engine, number) in self.engines.iter_mut().zip(0..) {
            let InstalledEngine::Packet(engine) = engine else { continue };
            match engine.look(frame, headers) {
                FrameLookup::Nothing => {}
                FrameLookup::Key(key, ()) => match steering.opener(number, key) {
                    Some(opener) => return FrameMatch::Opener(opener),
                    None => found = FrameMatch::Unknown,
                },
                FrameLookup::Fragment => return FrameMatch::Fragment { engine: number },
                FrameLookup::PerhapsFragment => return FrameMatch::PerhapsFragment,
            }
        }
        found
    }

    /// Adds `key` to a context, or removes the key.
    pub(crate) fn steer(&mut self, handle: Handle, key: Key, to_it: bool, steering: &mut Steering) {
        let Some(subject) = self.engine_mut(handle).and_then(|engine| engine.slab_mut().subject_mut(handle)) else {
            return;
        };
        // A key may be steered twice, and must be listed once for its removal with the context.
        subject.keys.retain(|known| *known != key);
        if to_it {
            subject.keys.push(key);
            steering.insert(key, handle);
        } else {
            steering.remove(key, handle);
        }
    }

    /// Sends a command to a context.
    pub(crate) fn command(&mut self, handle: Handle, command: Spec, dma: &mut DmaBytes) {
        self.bring(handle, dma);
        if let Some(engine) = self.engine_mut(handle) {
            engine.command(handle, command);
        }
    }

    /// Changes engine state that belongs to no context.
    pub(crate) fn change(&mut self, engine: u8, change: Spec) {
        self.note_called(engine);
        if let Some(engine) = self.engines.get_mut(usize::from(engine)) {
            engine.any_mut().change(self.queue, change);
        }
    }

    /// Runs a job on the engine of its session; `None` if the session does not exist.
    pub(crate) fn run(&mut self, job: &mut Job, dma: &mut DmaBytes) -> Option<JobOutcome> {
        self.bring(job.session, dma)?;
        self.note_called(job.session.engine());
        match self.engines.get_mut(usize::from(job.session.engine()))? {
            InstalledEngine::Job(engine) => engine.run(job),
            InstalledEngine::Stream(_) | InstalledEngine::Packet(_) => None,
        }
    }

    /// Tests whether events may be pending.
    pub(crate) fn may_have_events(&self) -> bool {
        !self.called.is_empty()
    }

    /// Returns the next event of any context.
    pub(crate) fn pop_event(&mut self) -> Option<ContextEvent> {
        let event =
            self.engines.get_mut(self.called.clone())?.iter_mut().find_map(|engine| engine.any_mut().pop_event());
        if event.is_none() {
            self.called = 0..0;
        }
        event
    }

    /// Returns the header about which a context waits for an answer.
    pub(crate) fn question(&mut self, handle: Handle, dma: &mut DmaBytes) -> Option<Seq> {
        self.bring(handle, dma)?;
        self.engine_mut(handle)?.question(handle)
    }

    /// Passes the answer of software about a header to a context.
    pub(crate) fn answer(&mut self, handle: Handle, answer: (Seq, Option<u64>), dma: &mut DmaBytes) {
        self.bring(handle, dma);
        if let Some(engine) = self.engine_mut(handle) {
            engine.answer(handle, answer);
        }
    }

    /// Gives a buffer to a context.
    pub(crate) fn place(&mut self, handle: Handle, buffer: u64, pieces: Vec<Piece>, stages: Option<Spec>) {
        if let Some(engine) = self.engine_mut(handle) {
            engine.place(handle, buffer, pieces, stages);
        }
    }

    /// Takes a buffer from a context.
    pub(crate) fn unplace(&mut self, handle: Handle, buffer: u64) {
        if let Some(engine) = self.engine_mut(handle) {
            engine.unplace(handle, buffer);
        }
    }

    /// Returns the flow of a context.
    pub(crate) fn flow_of(&self, handle: Handle) -> Option<FlowKey> {
        self.engines.get(usize::from(handle.engine()))?.any().slab().subject(handle)?.flow
    }

    /// Removes a context and its steering keys.
    pub(crate) fn remove(&mut self, handle: Handle, steering: &mut Steering) {
        let Some((subject, at)) = self.engine_mut(handle).and_then(|engine| engine.slab_mut().remove(handle)) else {
            return;
        };
        self.contexts -= 1;
        if let Some(at) = at {
            self.leave_circle(at);
        }
        subject.keys.into_iter().for_each(|key| steering.remove(key, handle));
    }

    pub(crate) fn clear(&mut self) {
        self.called = 0..self.engines.len();
        self.engines.iter_mut().for_each(|engine| engine.any_mut().clear());
        self.on_nic.clear();
        self.contexts = 0;
    }

    fn note_called(&mut self, engine: u8) {
        let (first, end) = (usize::from(engine), usize::from(engine) + 1);
        self.called = match self.called.is_empty() {
            true => first..end,
            false => self.called.start.min(first)..self.called.end.max(end),
        };
        // The handle may name an engine that does not exist.
        self.called.end = self.called.end.min(self.engines.len());
    }

    fn engine_mut(&mut self, handle: Handle) -> Option<&mut dyn AnyEngine> {
        self.note_called(handle.engine());
        Some(self.engines.get_mut(usize::from(handle.engine()))?.any_mut())
    }

    /// Puts a new context into its slot.
    fn put(&mut self, handle: Handle, subject: Subject, steering: &mut Steering, dma: &mut DmaBytes) {
        // The slot's old context may still have keys in the steering table.
        if let Some(before) = self.engine_mut(handle).and_then(|engine| engine.slab().in_place(handle.place())) {
            self.remove(before, steering);
        }
        subject.keys.iter().for_each(|key| steering.insert(*key, handle));
        self.make_room(dma);
        let at = self.on_nic.len();
        if let Some(engine) = self.engine_mut(handle) {
            engine.put(handle, subject, at);
            self.on_nic.push(handle);
            self.contexts += 1;
        }
    }

    /// Ensures that a context's state is on the NIC; `None` if the context does not exist.
    fn bring(&mut self, handle: Handle, dma: &mut DmaBytes) -> Option<()> {
        let is_there = self.engines.get(usize::from(handle.engine()))?.any().is_there(handle)?;
        (is_there || self.fetch(handle, dma)).then_some(())
    }

    /// Fetches a state from host memory.
    fn fetch(&mut self, handle: Handle, dma: &mut DmaBytes) -> bool {
        self.make_room(dma);
        let at = self.on_nic.len();
        if !self.engine_mut(handle).is_some_and(|engine| engine.slab_mut().read_back(handle, at)) {
            return false;
        }
        self.on_nic.push(handle);
        self.counters.fetched += 1;
        dma.context += ContextImage::BYTES as u64;
        true
    }

    /// Makes room for one more state (clock algorithm): evicts states that were not used since the hand last passed.
    fn make_room(&mut self, dma: &mut DmaBytes) {
        while self.on_nic.len() >= self.fits {
            self.hand = (self.hand + 1) % self.on_nic.len();
            let handle = self.on_nic[self.hand];
            if self.engine_mut(handle).is_some_and(|engine| engine.slab_mut().write_out_if_unused(handle)) {
                self.leave_circle(self.hand);
                self.counters.evicted += 1;
                dma.context += ContextImage::BYTES as u64;
            }
        }
    }

    /// Removes an entry from the ring; the last entry takes its position.
    fn leave_circle(&mut self, at: usize) {
        self.on_nic.swap_remove(at);
        if let Some(moved) = self.on_nic.get(at).copied()
            && let Some(engine) = self.engine_mut(moved)
        {
            engine.slab_mut().moved(moved, at);
        }
    }
}
