//! Connections by index and by flow.
//!
//! Invariant: every connection in the slab is in the map under its own flow, once, and the other way round. The
//! map's order is never looked at.

use crate::hash::SipKey;
use crate::tcp::Connection;
use core::hash::{Hash, Hasher};
use core::net::SocketAddr;
use offload_api::FlowKey;
use slab::Slab;
use std::collections::HashMap;

/// Names a connection of a [`Stack`](crate::Stack), from its opening until it is released.
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
pub struct ConnectionId(pub(crate) u32);

impl ConnectionId {
    /// A small number that no other connection of the stack has at the same time.
    pub fn index(self) -> usize {
        self.0 as usize
    }
}

#[derive(Debug)]
pub(crate) struct FlowTable {
    connections: Slab<Connection>,
    by_flow: HashMap<Tuple, ConnectionId, SipKey>,
    /// What was looked up last: packets come in trains.
    last: Option<(FlowKey, ConnectionId)>,
    /// Where the search for [one of a kind](Self::next_that) goes on.
    hand: usize,
}

impl FlowTable {
    pub(crate) fn new(key: SipKey) -> FlowTable {
        FlowTable { connections: Slab::new(), by_flow: HashMap::with_hasher(key), last: None, hand: 0 }
    }

    pub(crate) fn len(&self) -> usize {
        self.connections.len()
    }

    pub(crate) fn find(&mut self, flow: &FlowKey) -> Option<ConnectionId> {
        if let Some((last, id)) = &self.last
            && last == flow
        {
            return Some(*id);
        }
        let id = self.by_flow.get(&Tuple(*flow)).copied()?;
        self.last = Some((*flow, id));
        Some(id)
    }

    /// Adds a connection whose flow is not in the table yet.
    pub(crate) fn insert(&mut self, connection: Connection) -> ConnectionId {
        let flow = connection.flow();
        let id = ConnectionId(self.connections.insert(connection) as u32);
        let before = self.by_flow.insert(Tuple(flow), id);
        debug_assert!(before.is_none(), "one connection a flow");
        id
    }

    pub(crate) fn remove(&mut self, id: ConnectionId) {
        let connection = self.connections.remove(id.index());
        self.by_flow.remove(&Tuple(connection.flow()));
        self.last = None;
    }

    /// A connection that `wanted` says yes to, if there is one among the next `most`, round and round. As long as it does,
    /// it is the next.
    pub(crate) fn next_that(&mut self, most: usize, wanted: impl Fn(&Connection) -> bool) -> Option<ConnectionId> {
        for _ in 0..most.min(self.connections.capacity()) {
            let index = self.hand % self.connections.capacity();
            if self.connections.get(index).is_some_and(&wanted) {
                return Some(ConnectionId(index as u32));
            }
            self.hand = index + 1;
        }
        None
    }

    pub(crate) fn get(&self, id: ConnectionId) -> Option<&Connection> {
        self.connections.get(id.index())
    }

    pub(crate) fn get_mut(&mut self, id: ConnectionId) -> Option<&mut Connection> {
        self.connections.get_mut(id.index())
    }
}

/// A flow, hashed in as few words as it has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Tuple(FlowKey);

impl Hash for Tuple {
    fn hash<H: Hasher>(&self, state: &mut H) {
        match (self.0.local, self.0.remote) {
            (SocketAddr::V4(local), SocketAddr::V4(remote)) => {
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
