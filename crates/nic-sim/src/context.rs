//! Contexts: what the device keeps for each flow it works on, found by handle.
//!
//! Invariant: a handle finds its context only while that very context lives; an older generation finds nothing.

use crate::engine::tls_rx::TlsReceive;
use crate::engine::tls_tx::TlsTransmit;
use offload_api::{FlowKey, Handle};
use resumable_aead::Key;

/// One TLS context.
#[derive(Debug)]
pub(crate) struct TlsContext {
    pub(crate) flow: FlowKey,
    pub(crate) key: Key,
    pub(crate) engine: TlsEngine,
}

/// The engine state of a context, by direction.
#[derive(Debug)]
pub(crate) enum TlsEngine {
    Transmit(TlsTransmit),
    Receive(TlsReceive),
}

/// All contexts of a device.
#[derive(Debug, Default)]
pub(crate) struct ContextTable {
    places: Vec<Option<(u32, TlsContext)>>,
}

impl ContextTable {
    /// Puts a context in its handle's place; what was there is gone.
    pub(crate) fn insert(&mut self, handle: Handle, context: TlsContext) {
        let index = handle.index as usize;
        if index >= self.places.len() {
            self.places.resize_with(index + 1, || None);
        }
        self.places[index] = Some((handle.generation, context));
    }

    pub(crate) fn get_mut(&mut self, handle: Handle) -> Option<&mut TlsContext> {
        match self.places.get_mut(handle.index as usize) {
            Some(Some((generation, context))) if *generation == handle.generation => Some(context),
            _ => None,
        }
    }

    pub(crate) fn remove(&mut self, handle: Handle) -> Option<TlsContext> {
        self.get_mut(handle)?;
        self.places[handle.index as usize].take().map(|(_, context)| context)
    }

    pub(crate) fn clear(&mut self) {
        self.places.clear();
    }
}
