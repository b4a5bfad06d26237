//! Contexts: what the device keeps for each flow or security association that it works on, found by handle.
//!
//! An engine's contexts have a state of constant size and what that refers to, such as keys and buffers. The state of as
//! many contexts as the NIC's memory holds is on the NIC, whichever engines they are of; that of the others lies in host
//! memory as an image, and is fetched when a packet needs it, in place of one that was not used for a while.
//!
//! Invariants: a handle finds its context only while that very context lives, an older generation finds nothing;
//! there are never more contexts on the NIC than fit; nothing is steered to a context that is gone.

use crate::steering::Steering;
use core::ops::Range;
use nic_engine::hosted::{AnyEngine, AnyPacket, AnyStream, InstalledEngine, Subject};
use nic_engine::{ContextImage, FrameLookup, LentObject, ReceivedPayload, StageKeys};
use nic_rings::dma::DmaBytes;
use offload_api::Key;
use offload_api::Spec;
use offload_api::{ContextEvent, Direction, FlowKey, Handle, Job, Outcome, Piece};
use offload_base::Seq;
use offload_formats::Headers;
use smallvec::SmallVec;

/// Keys that a packet needs, each once: mostly none, or one.
pub(crate) type Keys = SmallVec<[Handle; 4]>;

fn note_key(keys: &mut Keys, key: Handle) {
    if !keys.contains(&key) {
        keys.push(key);
    }
}

/// All contexts of a device.
#[derive(Debug)]
pub(crate) struct ContextStore {
    /// By the numbers that handles name them by.
    engines: Vec<InstalledEngine>,
    /// Those whose state is on the NIC, in a circle.
    on_nic: Vec<Handle>,
    /// Where the circle is looked at next for one to evict.
    hand: usize,
    fits: usize,
    contexts: usize,
    /// Engines that were called since they were asked what is to be told are in this range.
    called: Range<usize>,
    /// The queue whose commands are carried out. Several queues share this store.
    queue: usize,
    counters: CacheCounters,
}

/// What a received frame is to the engines that work on whole packets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Found {
    /// None of theirs.
    Nothing,
    /// A packet of this context.
    Opener(Handle),
    /// A packet of an engine, and of no context.
    Unknown,
    /// A fragment of a packet of an engine's.
    Fragment { engine: u8 },
    /// A fragment, of a packet of an engine's or another.
    PerhapsFragment,
}

/// What the store counted.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct CacheCounters {
    /// Contexts fetched from host memory.
    pub(crate) fetched: u64,
    /// Contexts written there to make room.
    pub(crate) evicted: u64,
    /// Bytes that engines worked on.
    pub(crate) worked_bytes: u64,
}

impl ContextStore {
    /// A store for a NIC with these engines and `cache_bytes` bytes for contexts; one fits always.
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

    /// Notes that an engine works on so many bytes.
    pub(crate) fn note_work(&mut self, bytes: usize) {
        self.counters.worked_bytes += bytes as u64;
    }

    /// All engines, by number.
    pub(crate) fn engines(&self) -> impl Iterator<Item = &dyn AnyEngine> {
        self.engines.iter().map(InstalledEngine::any)
    }

    /// How many contexts there are.
    pub(crate) fn len(&self) -> usize {
        self.contexts
    }

    /// Sets the queue whose commands follow. Several queues share this store.
    pub(crate) fn serve(&mut self, queue: usize) {
        self.queue = queue;
    }

    /// Removes all state of a queue: its contexts, which each engine has in these places, and its changes of engines.
    pub(crate) fn forget_queue(&mut self, queue: usize, places: &[Range<u32>], steering: &mut Steering) {
        for (engine, places) in places.iter().enumerate() {
            let Some(engine) = self.engines.get_mut(engine).map(InstalledEngine::any_mut) else { continue };
            engine.forget_queue(queue);
            let contexts = engine.slab().in_places(places.clone());
            contexts.into_iter().for_each(|handle| self.remove(handle, steering));
        }
    }

    /// Has the context's engine make it, and steers to it what it is about; what was in its place is gone. False: the engine
    /// cannot, and nothing has changed.
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

    /// The engine of a context that follows a flow, for a call about that: the context is on the NIC.
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
    ) -> Keys {
        let mut keys = Keys::new();
        if let Some(engine) = self.stream(handle, dma) {
            engine.keys_to_receive(handle, payload, &mut |key| note_key(&mut keys, key));
        }
        keys
    }

    /// And for bytes that a transmit context is to work on.
    pub(crate) fn keys_to_transmit(&mut self, handle: Handle, bytes: &[u8], dma: &mut DmaBytes) -> Keys {
        let mut keys = Keys::new();
        if let Some(engine) = self.stream(handle, dma) {
            engine.keys_to_transmit(handle, bytes, &mut |key| note_key(&mut keys, key));
        }
        keys
    }

    /// [`stream`](Self::stream) for a call that works on bytes: meanwhile the stages of the context have these keys. Says, beside what came of
    /// it, which key is not the one that a stage needs.
    pub(crate) fn with_stream<R>(
        &mut self,
        handle: Handle,
        dma: &mut DmaBytes,
        keys: Keys,
        work: impl FnOnce(&mut dyn AnyStream) -> R,
    ) -> Option<(R, Option<Handle>)> {
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

    /// A frame leaves on which the context's engine did so much.
    pub(crate) fn note_sent(&mut self, handle: Handle, worked: u64) {
        if let Some(InstalledEngine::Stream(engine)) = self.engines.get_mut(usize::from(handle.engine())) {
            engine.note_sent(worked);
        }
    }

    /// The engine of a context that works on whole packets, for a call about that: the context is on the NIC.
    pub(crate) fn packet(&mut self, handle: Handle, dma: &mut DmaBytes) -> Option<&mut dyn AnyPacket> {
        self.bring(handle, dma)?;
        self.packet_engine(handle.engine())
    }

    /// The engine of this number, if it works on whole packets.
    pub(crate) fn packet_engine(&mut self, engine: u8) -> Option<&mut dyn AnyPacket> {
        self.note_called(engine);
        match self.engines.get_mut(usize::from(engine))? {
            InstalledEngine::Packet(engine) => Some(&mut **engine),
            InstalledEngine::Stream(_) | InstalledEngine::Job(_) => None,
        }
    }

    /// All engines that work on whole packets, with their numbers.
    pub(crate) fn packet_engines(&self) -> impl Iterator<Item = (u8, &dyn AnyPacket)> {
        self.engines.iter().zip(0..).filter_map(|(engine, number)| match engine {
            InstalledEngine::Packet(engine) => Some((number, &**engine)),
            InstalledEngine::Stream(_) | InstalledEngine::Job(_) => None,
        })
    }

    /// Which engine that works on whole packets a received frame is for. Several may take it for theirs: the first to which a
    /// key was steered has it.
    pub(crate) fn look(&mut self, frame: &[u8], headers: &Headers, steering: &Steering) -> Found {
        let mut found = Found::Nothing;
        for (engine, number) in self.engines.iter_mut().zip(0..) {
            let InstalledEngine::Packet(engine) = engine else { continue };
            match engine.look(frame, headers) {
                FrameLookup::Nothing => {}
                FrameLookup::Key(key, ()) => match steering.opener(number, key) {
                    Some(opener) => return Found::Opener(opener),
                    None => found = Found::Unknown,
                },
                FrameLookup::Fragment => return Found::Fragment { engine: number },
                FrameLookup::PerhapsFragment => return Found::PerhapsFragment,
            }
        }
        found
    }

    /// Has packets with `key` go to a context, or no longer.
    pub(crate) fn steer(&mut self, handle: Handle, key: Key, to_it: bool, steering: &mut Steering) {
        let Some(subject) = self.engine_mut(handle).and_then(|engine| engine.slab_mut().subject_mut(handle)) else {
            return;
        };
        subject.keys.retain(|known| *known != key);
        if to_it {
            subject.keys.push(key);
            steering.insert(key, handle);
        } else {
            steering.remove(key, handle);
        }
    }

    /// Tells a context something.
    pub(crate) fn command(&mut self, handle: Handle, command: Spec, dma: &mut DmaBytes) {
        self.bring(handle, dma);
        if let Some(engine) = self.engine_mut(handle) {
            engine.command(handle, command);
        }
    }

    /// Changes what an engine knows that is of no context.
    pub(crate) fn change(&mut self, engine: u8, change: Spec) {
        self.note_called(engine);
        if let Some(engine) = self.engines.get_mut(usize::from(engine)) {
            engine.any_mut().change(self.queue, change);
        }
    }

    /// Runs a job by the engine of its session. `None`: there is no such session.
    pub(crate) fn run(&mut self, job: &mut Job, dma: &mut DmaBytes) -> Option<Outcome> {
        self.bring(job.session, dma)?;
        self.note_called(job.session.engine());
        match self.engines.get_mut(usize::from(job.session.engine()))? {
            InstalledEngine::Job(engine) => engine.run(job),
            InstalledEngine::Stream(_) | InstalledEngine::Packet(_) => None,
        }
    }

    /// Whether an engine was called since there last was nothing to be told.
    pub(crate) fn may_have_events(&self) -> bool {
        !self.called.is_empty()
    }

    /// What is to be told next of what happened to contexts.
    pub(crate) fn pop_event(&mut self) -> Option<ContextEvent> {
        let event =
            self.engines.get_mut(self.called.clone())?.iter_mut().find_map(|engine| engine.any_mut().pop_event());
        if event.is_none() {
            self.called = 0..0;
        }
        event
    }

    /// Where a context thinks a unit starts, if it waits to be told.
    pub(crate) fn question(&mut self, handle: Handle, dma: &mut DmaBytes) -> Option<Seq> {
        self.bring(handle, dma)?;
        self.engine_mut(handle)?.question(handle)
    }

    /// Tells a context what software says about a header.
    pub(crate) fn answer(&mut self, handle: Handle, answer: (Seq, Option<u64>), dma: &mut DmaBytes) {
        self.bring(handle, dma);
        if let Some(engine) = self.engine_mut(handle) {
            engine.answer(handle, answer);
        }
    }

    /// Gives a context a buffer.
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

    /// The flow of a context.
    pub(crate) fn flow_of(&self, handle: Handle) -> Option<FlowKey> {
        self.engines.get(usize::from(handle.engine()))?.any().slab().subject(handle)?.flow
    }

    /// Gives up a context, if it is there: nothing is steered to it any more.
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
        // No such engine, none to be asked.
        self.called.end = self.called.end.min(self.engines.len());
    }

    fn engine_mut(&mut self, handle: Handle) -> Option<&mut dyn AnyEngine> {
        self.note_called(handle.engine());
        Some(self.engines.get_mut(usize::from(handle.engine()))?.any_mut())
    }

    /// Puts the context that an engine made in its place.
    fn put(&mut self, handle: Handle, subject: Subject, steering: &mut Steering, dma: &mut DmaBytes) {
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

    /// Sees to it that a context is on the NIC; `None`: there is no such context.
    fn bring(&mut self, handle: Handle, dma: &mut DmaBytes) -> Option<()> {
        let is_there = self.engines.get(usize::from(handle.engine()))?.any().is_there(handle)?;
        (is_there || self.fetch(handle, dma)).then_some(())
    }

    /// Brings a context from host memory.
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

    /// Makes room on the NIC for one context more: writes others to host memory, but those that were used since the hand
    /// last came by.
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

    /// Takes a place out of the circle; the last one moves there.
    fn leave_circle(&mut self, at: usize) {
        self.on_nic.swap_remove(at);
        if let Some(moved) = self.on_nic.get(at).copied()
            && let Some(engine) = self.engine_mut(moved)
        {
            engine.slab_mut().moved(moved, at);
        }
    }
}
