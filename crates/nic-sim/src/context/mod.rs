//! Contexts: what the device keeps for each flow or security association that it works on, found by handle.
//!
//! An engine's contexts have a state of constant size and what that refers to, such as keys and buffers. The state of as
//! many contexts as the NIC's memory holds is on the NIC, whichever engines they are of; that of the others lies in host
//! memory as an image, and is fetched when a packet needs it, in place of one that was not used for a while.
//!
//! Invariants: a handle finds its context only while that very context lives, an older generation finds nothing;
//! there are never more contexts on the NIC than fit; nothing is steered to a context that is gone.

mod image;
mod slab;

use crate::dma::DmaBytes;
use crate::engine::esp::Esp;
use crate::engine::nvme::NvmeTcp;
use crate::engine::tls::Tls;
use crate::steering::{Key, Steering};
use core::fmt;
pub(crate) use image::{ContextImage, ImageReader, ImageWriter};
use offload_api::{FlowKey, Handle};
use slab::Circled;
pub(crate) use slab::Slab;

/// A kind of context.
pub(crate) trait Engine: Sized + fmt::Debug + 'static {
    /// As handles name it.
    const ID: u8;
    /// What is written to host memory: 208 bytes at most.
    type State: fmt::Debug;
    /// What a state refers to, such as keys and buffers. It stays where it is.
    type Held: fmt::Debug;

    /// Writes a state out.
    fn save(state: &Self::State, image: &mut ImageWriter<'_>);

    /// Reads back what [`save`](Self::save) wrote; `None`: it is none of that.
    fn load(image: &mut ImageReader<'_>) -> Option<Self::State>;

    /// Its contexts.
    fn slab(slabs: &mut Slabs) -> &mut Slab<Self>;
}

/// A context, while it is on the NIC.
#[derive(Debug)]
pub(crate) struct Context<'a, E: Engine> {
    pub(crate) state: &'a mut E::State,
    pub(crate) held: &'a mut E::Held,
}

/// What a context is about.
#[derive(Debug, Default)]
pub(crate) struct Subject {
    /// The flow, of one that follows a flow's bytes.
    pub(crate) flow: Option<FlowKey>,
    /// By what received packets find it.
    pub(crate) keys: Vec<Key>,
}

/// All contexts of a device.
#[derive(Debug)]
pub(crate) struct ContextStore {
    slabs: Slabs,
    /// Those whose state is on the NIC, in a circle.
    on_nic: Vec<Handle>,
    /// Where the circle is looked at next for one to evict.
    hand: usize,
    fits: usize,
    contexts: usize,
    counters: CacheCounters,
}

/// Contexts by engine.
#[derive(Debug, Default)]
pub(crate) struct Slabs {
    pub(crate) tls: Slab<Tls>,
    pub(crate) esp: Slab<Esp>,
    pub(crate) nvme: Slab<NvmeTcp>,
}

/// What the store counted.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct CacheCounters {
    /// Contexts fetched from host memory.
    pub(crate) fetched: u64,
    /// Contexts written there to make room.
    pub(crate) evicted: u64,
}

impl Slabs {
    fn of(&mut self, handle: Handle) -> Option<&mut dyn Circled> {
        match handle.engine() {
            Tls::ID => Some(&mut self.tls),
            Esp::ID => Some(&mut self.esp),
            NvmeTcp::ID => Some(&mut self.nvme),
            _ => None,
        }
    }
}

impl ContextStore {
    /// A store for a NIC with `cache_bytes` bytes for contexts; one fits always.
    pub(crate) fn new(cache_bytes: usize) -> ContextStore {
        ContextStore {
            slabs: Slabs::default(),
            on_nic: Vec::new(),
            hand: 0,
            fits: (cache_bytes / ContextImage::BYTES).max(1),
            contexts: 0,
            counters: CacheCounters::default(),
        }
    }

    pub(crate) fn counters(&self) -> CacheCounters {
        self.counters
    }

    /// How many contexts there are.
    pub(crate) fn len(&self) -> usize {
        self.contexts
    }

    /// Puts a context in its handle's place, and steers to it what it is about. What was there is gone.
    pub(crate) fn insert<E: Engine>(
        &mut self,
        handle: Handle,
        subject: Subject,
        (state, held): (E::State, E::Held),
        steering: &mut Steering,
        dma: &mut DmaBytes,
    ) {
        debug_assert_eq!(handle.engine(), E::ID);
        if let Some(before) = E::slab(&mut self.slabs).in_place(handle.place()) {
            self.remove(before, steering);
        }
        subject.keys.iter().for_each(|key| steering.insert(*key, handle));
        self.make_room(dma);
        E::slab(&mut self.slabs).insert(handle, subject, state, held, self.on_nic.len());
        self.on_nic.push(handle);
        self.contexts += 1;
    }

    /// The context, on the NIC.
    pub(crate) fn get<E: Engine>(&mut self, handle: Handle, dma: &mut DmaBytes) -> Option<Context<'_, E>> {
        if handle.engine() != E::ID || !E::slab(&mut self.slabs).is_there(handle)? && !self.fetch::<E>(handle, dma) {
            return None;
        }
        E::slab(&mut self.slabs).get(handle)
    }

    /// What the state of a context refers to, wherever that is.
    pub(crate) fn held<E: Engine>(&mut self, handle: Handle) -> Option<&mut E::Held> {
        if handle.engine() == E::ID { E::slab(&mut self.slabs).held(handle) } else { None }
    }

    /// The flow of a context.
    pub(crate) fn flow_of(&self, handle: Handle) -> Option<FlowKey> {
        let subject = match handle.engine() {
            Tls::ID => self.slabs.tls.subject(handle),
            NvmeTcp::ID => self.slabs.nvme.subject(handle),
            _ => None,
        };
        subject?.flow
    }

    /// Gives up a context, if it is there: nothing is steered to it any more.
    pub(crate) fn remove(&mut self, handle: Handle, steering: &mut Steering) {
        let Some((subject, at)) = self.slabs.of(handle).and_then(|slab| slab.remove(handle)) else { return };
        self.contexts -= 1;
        if let Some(at) = at {
            self.leave_circle(at);
        }
        subject.keys.into_iter().for_each(|key| steering.remove(key, handle));
    }

    pub(crate) fn clear(&mut self) {
        self.slabs = Slabs::default();
        self.on_nic.clear();
        self.contexts = 0;
    }

    /// Brings a context from host memory.
    fn fetch<E: Engine>(&mut self, handle: Handle, dma: &mut DmaBytes) -> bool {
        self.make_room(dma);
        if !E::slab(&mut self.slabs).read_back(handle, self.on_nic.len()) {
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
            if self.slabs.of(handle).is_some_and(|slab| slab.write_out_if_unused(handle)) {
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
            && let Some(slab) = self.slabs.of(moved)
        {
            slab.moved(moved, at);
        }
    }
}
