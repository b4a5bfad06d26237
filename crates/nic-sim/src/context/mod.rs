//! Contexts: what the device keeps for each flow it works on, found by handle.
//!
//! The engines' state of as many flows as the NIC's memory holds is on the NIC; that of the others lies in host
//! memory as an image of constant size, and is fetched when a packet of the flow comes, in place of one that was
//! not used for a while. Keys are referred to, not part of the state.
//!
//! Invariants: a handle finds its context only while that very context lives, an older generation finds nothing;
//! there are never more contexts on the NIC than fit.

mod image;

use crate::dma::DmaBytes;
use crate::engine::tls_rx::TlsReceive;
use crate::engine::tls_tx::TlsTransmit;
pub(crate) use image::{ContextImage, ImageReader, ImageWriter};
use offload_api::{FlowKey, Handle};
use resumable_aead::Key;

/// One TLS context, while it is on the NIC.
#[derive(Debug)]
pub(crate) struct TlsContext<'a> {
    pub(crate) key: &'a Key,
    pub(crate) engine: &'a mut TlsEngine,
}

/// The engine state of a context, by direction.
#[derive(Debug)]
pub(crate) enum TlsEngine {
    Transmit(TlsTransmit),
    Receive(TlsReceive),
}

/// All contexts of a device.
#[derive(Debug)]
pub(crate) struct ContextTable {
    places: Vec<Option<Entry>>,
    /// Places whose state is on the NIC, in a circle.
    on_nic: Vec<u32>,
    /// Where the circle is looked at next for one to evict.
    hand: usize,
    fits: usize,
    contexts: usize,
    counters: CacheCounters,
}

#[derive(Debug)]
struct Entry {
    generation: u32,
    flow: FlowKey,
    key: Key,
    state: Stored,
    /// Used since the hand last came by.
    used: bool,
}

#[expect(
    clippy::large_enum_variant,
    reason = "the NIC's memory is made for states that lie in it, not behind a pointer"
)]
#[derive(Debug)]
enum Stored {
    /// With its place in the circle.
    OnNic(TlsEngine, usize),
    InHost(Box<ContextImage>),
}

/// What the table counted.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct CacheCounters {
    /// Contexts fetched from host memory.
    pub(crate) fetched: u64,
    /// Contexts written there to make room.
    pub(crate) evicted: u64,
}

impl ContextTable {
    /// A table for a NIC with `cache_bytes` bytes for contexts; one fits always.
    pub(crate) fn new(cache_bytes: usize) -> ContextTable {
        ContextTable {
            places: Vec::new(),
            on_nic: Vec::new(),
            hand: 0,
            contexts: 0,
            fits: (cache_bytes / ContextImage::BYTES).max(1),
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

    /// Puts a context in its handle's place; what was there is gone.
    pub(crate) fn insert(&mut self, handle: Handle, flow: FlowKey, key: Key, engine: TlsEngine, dma: &mut DmaBytes) {
        let index = handle.index as usize;
        if index >= self.places.len() {
            self.places.resize_with(index + 1, || None);
        }
        self.forget(handle.index);
        let state = self.enter_circle(handle.index, engine, dma);
        self.places[index] = Some(Entry { generation: handle.generation, flow, key, state, used: true });
        self.contexts += 1;
    }

    /// The context, on the NIC.
    pub(crate) fn get_mut(&mut self, handle: Handle, dma: &mut DmaBytes) -> Option<TlsContext<'_>> {
        let place = self.places.get(handle.index as usize)?.as_ref();
        let entry = place.filter(|entry| entry.generation == handle.generation)?;
        if matches!(entry.state, Stored::InHost(_)) {
            self.fetch(handle.index, dma);
        }
        let entry = self.places[handle.index as usize].as_mut()?;
        entry.used = true;
        match &mut entry.state {
            Stored::OnNic(engine, _) => Some(TlsContext { key: &entry.key, engine }),
            Stored::InHost(_) => None,
        }
    }

    /// The flow of a context.
    pub(crate) fn flow_of(&self, handle: Handle) -> Option<FlowKey> {
        let place = self.places.get(handle.index as usize)?.as_ref();
        Some(place.filter(|entry| entry.generation == handle.generation)?.flow)
    }

    /// Gives up a context, and tells its flow.
    pub(crate) fn remove(&mut self, handle: Handle) -> Option<FlowKey> {
        let flow = self.flow_of(handle)?;
        self.forget(handle.index);
        Some(flow)
    }

    pub(crate) fn clear(&mut self) {
        self.places.clear();
        self.on_nic.clear();
        self.contexts = 0;
    }

    fn forget(&mut self, index: u32) {
        let Some(entry) = self.places[index as usize].take() else { return };
        self.contexts -= 1;
        if let Stored::OnNic(_, at) = entry.state {
            self.leave_circle(at);
        }
    }

    /// Brings a context from host memory.
    fn fetch(&mut self, index: u32, dma: &mut DmaBytes) {
        let Some(Entry { state: Stored::InHost(image), .. }) = &self.places[index as usize] else { return };
        let Some(engine) = image.read() else { return };
        let state = self.enter_circle(index, engine, dma);
        if let Some(entry) = &mut self.places[index as usize] {
            entry.state = state;
        }
        self.counters.fetched += 1;
        dma.context += ContextImage::BYTES as u64;
    }

    /// Puts a context on the NIC, where it takes another's place if there is no room for one more.
    fn enter_circle(&mut self, index: u32, engine: TlsEngine, dma: &mut DmaBytes) -> Stored {
        while self.on_nic.len() >= self.fits {
            self.evict_or_pass(dma);
        }
        self.on_nic.push(index);
        Stored::OnNic(engine, self.on_nic.len() - 1)
    }

    /// Moves the hand on, and writes the context there to host memory unless it was used since the hand last came by.
    fn evict_or_pass(&mut self, dma: &mut DmaBytes) {
        self.hand = (self.hand + 1) % self.on_nic.len();
        let Some(entry) = &mut self.places[self.on_nic[self.hand] as usize] else { return };
        if core::mem::take(&mut entry.used) {
            return;
        }
        if let Stored::OnNic(engine, at) = &entry.state {
            let at = *at;
            entry.state = Stored::InHost(Box::new(ContextImage::of(engine)));
            self.leave_circle(at);
            self.counters.evicted += 1;
            dma.context += ContextImage::BYTES as u64;
        }
    }

    /// Takes a place out of the circle; the last one moves there.
    fn leave_circle(&mut self, at: usize) {
        self.on_nic.swap_remove(at);
        if let Some(moved) = self.on_nic.get(at)
            && let Some(Entry { state: Stored::OnNic(_, place), .. }) = &mut self.places[*moved as usize]
        {
            *place = at;
        }
    }
}
