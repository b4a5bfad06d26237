//! A table of connections, by index and by flow.
//!
//! Invariant: the slab and the map hold the same connections, each once, under its own flow. The map is never iterated,
//! so its order cannot affect a run.

use crate::hash::SipKey;
use crate::tcp::Connection;
use core::hash::{Hash, Hasher};
use core::net::SocketAddr;
use offload_api::FlowKey;
use slab::Slab;
use std::collections::HashMap;

/// Identifier of a connection in a [`Stack`](crate::Stack), valid from opening until release.
///
/// ```
/// use offload_host_stack::{Config, Stack};
/// use offload_base::{Instant, Seed};
///
/// let config = Config::new([10, 0, 0, 1].into(), [2, 0, 0, 0, 0, 1], Seed(1));
/// let mut stack = Stack::new(config.with_neighbour([10, 0, 0, 2].into(), [2, 0, 0, 0, 0, 2]));
/// let id = stack.connect(Instant::ZERO, None, "10.0.0.2:80".parse().unwrap()).unwrap();
/// assert_eq!(stack.flow(id).remote.port(), 80);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct FlowId(pub(crate) u32);

impl FlowId {
    /// Returns a small number, unique among the stack's live connections.
    pub fn index(self) -> usize {
        self.0 as usize
    }
}

#[derive(Debug)]
pub(crate) struct FlowTable {
    connections: Slab<Connection>,
    by_flow: HashMap<Tuple, FlowId, SipKey>,
    /// Result of the last lookup. Consecutive packets often belong to one flow.
    last: Option<(FlowKey, FlowId)>,
    /// Next index that [`next_matching`](Self::next_that) looks at.
    hand: usize,
}

impl FlowTable {
    pub(crate) fn new(key: SipKey) -> FlowTable {
        FlowTable { connections: Slab::new(), by_flow: HashMap::with_hasher(key), last: None, hand: 0 }
    }

    pub(crate) fn len(&self) -> usize {
        self.connections.len()
    }

    pub(crate) fn find(&mut self, flow: &FlowKey) -> Option<FlowId> {
        // Packets of one flow tend to arrive in a row, and the comparison is cheaper than the keyed hash.
        if let Some((last, id)) = &self.last
            && last == flow
        {
            return Some(*id);
        }
        let id = self.by_flow.get(&Tuple(*flow)).copied()?;
        self.last = Some((*flow, id));
        Some(id)
    }

    /// Adds a connection. Its flow must not be in the table.
    pub(crate) fn insert(&mut self, connection: Connection) -> FlowId {
        let flow = connection.flow();
        let id = FlowId(self.connections.insert(connection) as u32);
        let before = self.by_flow.insert(Tuple(flow), id);
        debug_assert!(before.is_none(), "a flow has at most one connection");
        id
    }

    pub(crate) fn remove(&mut self, id: FlowId) {
        let connection = self.connections.remove(id.index());
        self.by_flow.remove(&Tuple(connection.flow()));
        // The cached lookup may be of this connection, whose id can be reused by another flow.
        self.last = None;
    }

    /// Returns a connection that matches `wanted`, from at most `most` entries, in round-robin order. A match stays the
    /// next candidate until it no longer matches.
    pub(crate) fn next_matching(&mut self, most: usize, wanted: impl Fn(&Connection) -> bool) -> Option<FlowId> {
        for _ in 0..most.min(self.connections.capacity()) {
            let index = self.hand % self.connections.capacity();
            if self.connections.get(index).is_some_and(&wanted) {
                return Some(FlowId(index as u32));
            }
            self.hand = index + 1;
        }
        None
    }

    pub(crate) fn get(&self, id: FlowId) -> Option<&Connection> {
        self.connections.get(id.index())
    }

    pub(crate) fn get_mut(&mut self, id: FlowId) -> Option<&mut Connection> {
        self.connections.get_mut(id.index())
    }
}

/// A flow key, hashed in as few words as possible.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Tuple(FlowKey);

impl Hash for Tuple {
    fn hash<H: Hasher>(&self, state: &mut H) {
        match (self.0.local, self.0.remote) {
            (SocketAddr::V4(local), SocketAddr::V4(remote)) => {
                // IPv4 is the common case. Two words hold all of its addresses and ports, so the hash is cheap.
                state.write_u64(u64::from(local.ip().to_bits()) << 32 | u64::from(remote.ip().to_bits()));
                state.write_u64(u64::from(local.port()) << 16 | u64::from(remote.port()));
            }
            (local, remote) => {
                local.hash(state);
                remote.hash(state);
            }
        }
        (self.0.protocol as u8).hash(state);
    }
}
