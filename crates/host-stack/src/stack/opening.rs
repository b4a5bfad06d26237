//! Connections begin: opened from here, or taken by a listener.

use super::Stack;
use crate::flow_table::ConnectionId;
use crate::tcp::connection::Connection;
use crate::tcp::segment::Segment;
use crate::tcp::state::State;
use core::hash::{BuildHasher, Hasher};
use core::net::{IpAddr, SocketAddr};
use offload_api::FlowKey;
use offload_base::{Instant, Rng, Seq};
use std::collections::VecDeque;
use std::io;

#[derive(Debug)]
pub(super) struct Listener {
    pub(super) backlog: usize,
    pub(super) half_open: usize,
    pub(super) accepted: VecDeque<ConnectionId>,
}

/// Why a connection or a listener could not be opened.
///
/// ```
/// use host_stack::OpenError;
///
/// let error = std::io::Error::from(OpenError::InUse);
/// assert_eq!(error.kind(), std::io::ErrorKind::AddrInUse);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum OpenError {
    /// The port, or the flow, is being used.
    #[error("the address is in use")]
    InUse,
    /// No local port is free.
    #[error("no local port is free")]
    NoPort,
    /// The host has as many connections as it may have.
    #[error("too many connections")]
    TooMany,
    /// The address is not one that this stack can reach.
    #[error("the address cannot be reached from here")]
    Unreachable,
}

impl From<OpenError> for io::Error {
    fn from(error: OpenError) -> io::Error {
        let kind = match error {
            OpenError::InUse => io::ErrorKind::AddrInUse,
            OpenError::NoPort => io::ErrorKind::AddrNotAvailable,
            OpenError::TooMany => io::ErrorKind::QuotaExceeded,
            OpenError::Unreachable => io::ErrorKind::HostUnreachable,
        };
        io::Error::new(kind, error)
    }
}

impl Stack {
    /// Opens a connection from `local_port`, or from any port that is free.
    ///
    /// # Errors
    /// If there is no free port, too many connections, or no way to this address.
    pub fn connect(
        &mut self,
        now: Instant,
        local_port: Option<u16>,
        remote: SocketAddr,
    ) -> Result<ConnectionId, OpenError> {
        // There is one interface: which one, and what a flow label says, is no part of a flow's name.
        let remote = SocketAddr::new(remote.ip(), remote.port());
        let local = self.network.source_for(remote.ip());
        let local = local.filter(|_| self.network.reaches(remote.ip()) && remote.port() != 0);
        let local = local.ok_or(OpenError::Unreachable)?;
        if self.flows.len() >= self.config.max_connections {
            return Err(OpenError::TooMany);
        }
        let flow = match local_port {
            Some(port) => {
                let flow = FlowKey::tcp(SocketAddr::new(local, port), remote);
                self.flows.find(&flow).is_none().then_some(flow)
            }
            None => self.free_flow(local, remote),
        };
        let flow = flow.ok_or(if local_port.is_some() { OpenError::InUse } else { OpenError::NoPort })?;
        let connection = self.new_connection(now, flow, State::SynSent);
        self.counters.active_opens += 1;
        let id = self.flows.insert(connection);
        self.mark_dirty(id);
        Ok(id)
    }

    /// Takes connections to `port`: up to `backlog` (at least one) that nobody has accepted yet, and as many
    /// half-open ones.
    ///
    /// # Errors
    /// If somebody listens there.
    pub fn listen(&mut self, port: u16, backlog: usize) -> Result<(), OpenError> {
        if port == 0 {
            return Err(OpenError::NoPort);
        }
        if self.listeners.contains_key(&port) {
            return Err(OpenError::InUse);
        }
        let listener = Listener { backlog: backlog.max(1), half_open: 0, accepted: VecDeque::new() };
        self.listeners.insert(port, listener);
        Ok(())
    }

    /// The next connection to `port` that is open.
    pub fn accept(&mut self, port: u16) -> Option<ConnectionId> {
        self.listeners.get_mut(&port)?.accepted.pop_front()
    }

    /// Listens at `port` no more; connections that nobody has accepted are reset.
    pub fn close_listener(&mut self, now: Instant, port: u16) {
        let Some(listener) = self.listeners.remove(&port) else { return };
        for id in listener.accepted {
            self.abort(id);
            self.detach(now, id);
        }
    }

    /// The connection that a segment is for. One in TIME-WAIT that nobody holds gives way to a new SYN.
    pub(super) fn find_for(&mut self, now: Instant, flow: &FlowKey, segment: &Segment) -> Option<ConnectionId> {
        let id = self.flows.find(flow)?;
        let connection = self.connection_mut(id);
        if connection.gives_way_to(segment) {
            connection.end_wait();
            self.with(now, id, |_, _| ());
            self.settle(id);
            return self.flows.find(flow);
        }
        Some(id)
    }

    pub(super) fn on_syn(&mut self, now: Instant, flow: FlowKey, segment: &Segment) {
        let full = self.flows.len() >= self.config.max_connections;
        let Some(listener) = self.listeners.get_mut(&flow.local.port()) else { return };
        if listener.accepted.len() >= listener.backlog {
            self.counters.listen_overflows += 1;
            self.counters.listen_drops += 1;
            return;
        }
        if full || listener.half_open >= listener.backlog {
            self.counters.request_queue_drops += 1;
            self.counters.listen_drops += 1;
            return;
        }
        listener.half_open += 1;
        let mut connection = self.new_connection(now, flow, State::SynReceived);
        connection.listener = Some(flow.local.port());
        let id = self.flows.insert(connection);
        self.with(now, id, |connection, env| connection.on_first_syn(env, segment));
        self.mark_dirty(id);
        self.settle(id);
    }

    /// Whether a segment would complete a handshake that nobody has room for.
    pub(super) fn accept_queue_is_full(&self, id: ConnectionId, segment: &Segment) -> bool {
        let connection = self.connection(id);
        connection.state() == State::SynReceived
            && segment.ack.is_some()
            && !segment.flags.rst
            && connection
                .listener
                .and_then(|port| self.listeners.get(&port))
                .is_some_and(|listener| listener.accepted.len() >= listener.backlog)
    }

    fn new_connection(&mut self, now: Instant, flow: FlowKey, state: State) -> Connection {
        let fingerprint = self.fingerprint(&flow);
        // RFC 6528: a keyed hash of the flow, and a clock that ticks every four microseconds.
        let initial = match self.config.tcp.initial_sequence {
            Some(initial) => Seq(initial),
            None => Seq(fingerprint as u32) + (now.as_nanos() / 4_000) as u32,
        };
        Connection::new(flow, state, initial, fingerprint, &self.config.tcp)
    }

    fn fingerprint(&self, flow: &FlowKey) -> u64 {
        let mut hasher = self.key.build_hasher();
        hasher.write(b"sequence");
        for end in [flow.local, flow.remote] {
            match end.ip() {
                IpAddr::V4(address) => hasher.write(&address.octets()),
                IpAddr::V6(address) => hasher.write(&address.octets()),
            }
            hasher.write(&end.port().to_be_bytes());
        }
        hasher.finish()
    }

    /// A flow from a random port of `local` to `remote` (RFC 6056).
    fn free_flow(&mut self, local: IpAddr, remote: SocketAddr) -> Option<FlowKey> {
        for _ in 0..PORTS_TRIED {
            let port = random_port(&mut self.ports);
            let flow = FlowKey::tcp(SocketAddr::new(local, port), remote);
            if self.flows.find(&flow).is_none() && !self.listeners.contains_key(&port) {
                return Some(flow);
            }
        }
        None
    }
}

pub(super) fn random_port(ports: &mut Rng) -> u16 {
    FIRST_LOCAL_PORT + ports.below(u64::from(LAST_LOCAL_PORT - FIRST_LOCAL_PORT) + 1) as u16
}

/// Linux's ip_local_port_range.
const FIRST_LOCAL_PORT: u16 = 32_768;
const LAST_LOCAL_PORT: u16 = 60_999;
/// Random ports tried before giving up.
pub(super) const PORTS_TRIED: usize = 256;
