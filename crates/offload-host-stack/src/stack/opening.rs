//! Opening of connections: active, and passive through a listener.

use super::{Stack, cookies};
use crate::flow_table::FlowId;
use crate::memory::MemoryLevel;
use crate::network::ParsedSegment;
use crate::tcp::connection::{Connection, ListenerId};
use crate::tcp::segment::Segment;
use crate::tcp::state::TcpState;
use core::hash::{BuildHasher, Hasher};
use core::net::{IpAddr, SocketAddr};
use offload_api::{FlowKey, NetDevice};
use offload_base::{Instant, Rng, Seq};
use std::collections::VecDeque;
use std::io;

#[derive(Debug)]
pub(super) struct ListenQueue {
    pub(super) name: ListenerId,
    pub(super) backlog: usize,
    pub(super) half_open: usize,
    pub(super) accepted: VecDeque<FlowId>,
    /// Times of the first and the latest SYN in the current series of refused SYNs.
    pub(super) refused: Option<(Instant, Instant)>,
    /// Deadline until which ACKs are checked for cookies.
    pub(super) cookies_until: Option<Instant>,
}

impl ListenQueue {
    /// Returns whether the accept queue is full.
    fn is_full(&self) -> bool {
        self.accepted.len() >= self.backlog
    }
}

/// Result of a check for a SYN cookie.
pub(super) enum CookieCheck {
    /// The ACK carries a valid cookie, and this connection was opened.
    Opens(FlowId),
    /// The ACK carries a valid cookie, but there is no room for the connection. The client will repeat its data.
    NotNow,
    /// The ACK carries no valid cookie.
    None,
}

/// Reason for which a connection or a listener could not be opened.
///
/// ```
/// use offload_host_stack::SocketOpenError;
///
/// let error = std::io::Error::from(SocketOpenError::InUse);
/// assert_eq!(error.kind(), std::io::ErrorKind::AddrInUse);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum SocketOpenError {
    /// The port or the flow is in use.
    #[error("the address is in use: listen at another port")]
    InUse,
    /// No local port is free.
    #[error("no local port is free: close connections, or connect from another address")]
    NoPort,
    /// The host has reached its connection limit.
    #[error("too many connections: close some, or raise Config::max_connections")]
    TooMany,
    /// The connections' queues have reached the memory limit ([`TcpMemory::most`](crate::TcpMemory::most)).
    #[error("no memory for another connection: close some, or allow more in TcpConfig::memory")]
    NoMemory,
    /// The stack has no route to the address.
    #[error("the address cannot be reached from here")]
    Unreachable,
}

impl From<SocketOpenError> for io::Error {
    fn from(error: SocketOpenError) -> io::Error {
        let kind = match error {
            SocketOpenError::InUse => io::ErrorKind::AddrInUse,
            SocketOpenError::NoPort => io::ErrorKind::AddrNotAvailable,
            SocketOpenError::TooMany => io::ErrorKind::QuotaExceeded,
            SocketOpenError::NoMemory => io::ErrorKind::OutOfMemory,
            SocketOpenError::Unreachable => io::ErrorKind::HostUnreachable,
        };
        io::Error::new(kind, error)
    }
}

impl Stack {
    /// Opens a connection from `local_port`, or from a free port if `local_port` is `None`. The new connection may
    /// replace one of the same flow that the application has dropped, that had timestamps and that has been in
    /// TIME-WAIT for at least a second (RFC 6191).
    ///
    /// # Errors
    /// Fails if there is no free port, the connection or memory limit is reached, or the address has no route.
    pub fn connect(
        &mut self,
        now: Instant,
        local_port: Option<u16>,
        remote: SocketAddr,
    ) -> Result<FlowId, SocketOpenError> {
        self.connect_where(now, local_port, remote, &|_| true)
    }

    /// Like [`connect`](Self::connect), with a port chosen so that `serves` accepts the flow, if no port is given.
    pub(crate) fn connect_where(
        &mut self,
        now: Instant,
        local_port: Option<u16>,
        remote: SocketAddr,
        serves: &dyn Fn(&FlowKey) -> bool,
    ) -> Result<FlowId, SocketOpenError> {
        // The scope id and the flow label of an address are not part of a flow key, because the host has one interface.
        let remote = SocketAddr::new(remote.ip(), remote.port());
        let local = self.network.source_for(remote.ip());
        let local = local.filter(|_| self.network.reaches(remote.ip()) && remote.port() != 0);
        let local = local.ok_or(SocketOpenError::Unreachable)?;
        let flow = match local_port {
            Some(port) => {
                let flow = FlowKey::tcp(SocketAddr::new(local, port), remote);
                let free = self.flows.find(&flow).is_none() || self.may_be_reopened(now, &flow).is_some();
                free.then_some(flow)
            }
            None => self.free_flow(now, local, remote, serves),
        };
        if self.refuses_for_memory() {
            return Err(SocketOpenError::NoMemory);
        }
        let flow = flow.ok_or(if local_port.is_some() { SocketOpenError::InUse } else { SocketOpenError::NoPort })?;
        let mut connection = self.new_connection(now, flow, TcpState::SynSent);
        // The new sequence numbers must lie above the old connection's, so that late segments of the old connection are
        // outside the window.
        if let Some((id, least)) = self.may_be_reopened(now, &flow) {
            connection.raise_initial_seq(least);
            self.connection_mut(id).end_wait();
            self.release_if_done(id);
        }
        if !self.make_room() {
            return Err(SocketOpenError::TooMany);
        }
        self.counters.active_opens += 1;
        let id = self.flows.insert(connection);
        self.mark_dirty(id);
        Ok(id)
    }

    /// Listens at `port`. At most `backlog` (at least one) connections wait to be accepted, and as many may be half
    /// open. If more SYNs keep arriving, they are answered with cookies, which take no memory: a SYN flood delays a
    /// client by at most one SYN retransmission. Existing connections from that port do not prevent listening.
    ///
    /// # Errors
    /// Fails if the port has a listener already, or is 0.
    pub fn listen(&mut self, port: u16, backlog: usize) -> Result<(), SocketOpenError> {
        if port == 0 {
            return Err(SocketOpenError::NoPort);
        }
        if self.listeners.contains_key(&port) {
            return Err(SocketOpenError::InUse);
        }
        self.listeners_opened = self.listeners_opened.wrapping_add(1);
        let listener = ListenQueue {
            name: ListenerId { port, number: self.listeners_opened },
            backlog: backlog.max(1),
            half_open: 0,
            accepted: VecDeque::new(),
            refused: None,
            cookies_until: None,
        };
        self.listeners.insert(port, listener);
        Ok(())
    }

    /// Takes the next established connection of the listener at `port`.
    pub fn accept(&mut self, port: u16) -> Option<FlowId> {
        self.listeners.get_mut(&port)?.accepted.pop_front()
    }

    /// Closes the listener at `port` and resets its connections that were not accepted.
    pub fn close_listener(&mut self, now: Instant, port: u16) {
        let Some(listener) = self.listeners.remove(&port) else { return };
        // Nobody can accept these connections any more. Half-open ones are reset when their handshake completes.
        for id in listener.accepted {
            self.abort(id);
            self.detach(now, id);
        }
    }

    /// Removes a connection in TIME-WAIT that the application has dropped if a new SYN may replace it, and records the
    /// lowest initial sequence number of the new connection. Returns false if the SYN must be dropped because no
    /// listener could take the new connection now: without the old connection, its sequence numbers would be forgotten.
    pub(super) fn yield_time_wait(&mut self, parsed: &mut ParsedSegment) -> bool {
        if !parsed.segment.flags.syn {
            return true;
        }
        let Some(id) = self.flows.find(&parsed.flow) else { return true };
        let Some(unused_from) = self.connection(id).may_be_replaced_by(&parsed.segment) else { return true };
        let is_full = self.listeners.get(&parsed.flow.local.port()).is_some_and(ListenQueue::is_full);
        if is_full || self.refuses_for_memory() {
            self.counters.listen_overflows += u64::from(is_full);
            self.counters.listen_drops += 1;
            return false;
        }
        parsed.unused_from = Some(unused_from);
        self.connection_mut(id).end_wait();
        self.release_if_done(id);
        true
    }

    /// Processes a SYN of an unknown flow.
    pub(super) fn on_syn(&mut self, now: Instant, parsed: &ParsedSegment, device: &mut dyn NetDevice) {
        let ParsedSegment { flow, segment, unused_from, .. } = parsed;
        let flow = *flow;
        let port = flow.local.port();
        let Some(listener) = self.listeners.get(&port) else { return };
        if listener.is_full() {
            self.counters.listen_overflows += 1;
            self.counters.listen_drops += 1;
            return;
        }
        if self.refuses_for_memory() {
            self.counters.listen_drops += 1;
            return;
        }
        let Some(listener) = self.listeners.get(&port) else { return };
        // Room is made only for a SYN that will be accepted. A SYN that replaced a TIME-WAIT connection comes from a
        // real peer, and a cookie cannot respect its lower bound of sequence numbers; so it may exceed the backlog.
        let crowded = listener.half_open >= listener.backlog && unused_from.is_none();
        let full = if crowded { !self.has_room() } else { !self.make_room() };
        let Some(listener) = self.listeners.get_mut(&port) else { return };
        if full || crowded {
            // One SYN that finds room does not end a series, because a flooding client can also free its own entries.
            let series = listener.refused.filter(|(_, last)| now <= *last + cookies::LULL);
            let (since, _) = series.unwrap_or((now, now));
            listener.refused = Some((since, now));
            let flooded =
                listener.cookies_until.is_some_and(|until| now <= until) || now >= since + cookies::COOKIE_GRACE;
            if flooded && !full {
                listener.cookies_until = Some(now + cookies::ACCEPT_TIME);
            }
            if full || !flooded || !self.answer_with_cookie(now, flow, segment, device) {
                self.counters.request_queue_drops += 1;
                self.counters.listen_drops += 1;
            }
            return;
        }
        // The connection leaves the SYN queue again in `release_if_done`, when its state changes.
        listener.half_open += 1;
        let name = listener.name;
        let mut connection = self.new_connection(now, flow, TcpState::SynReceived);
        if let Some(unused_from) = unused_from {
            connection.raise_initial_seq(*unused_from);
        }
        connection.listener = Some(name);
        let id = self.flows.insert(connection);
        self.with(now, id, |connection, env| connection.on_first_syn(env, segment));
        self.mark_dirty(id);
        self.release_if_done(id);
    }

    /// Checks whether a segment without a connection acknowledges a cookie, and opens the connection if so.
    pub(super) fn open_by_cookie(&mut self, now: Instant, flow: FlowKey, segment: &Segment) -> CookieCheck {
        let port = flow.local.port();
        let Some(listener) = self.listeners.get_mut(&port) else { return CookieCheck::None };
        if listener.cookies_until.is_none_or(|until| until < now) {
            listener.cookies_until = None;
            return CookieCheck::None;
        }
        // The cookie must be verified before a full queue is reported, so the values are copied here.
        let (no_room, name) = (listener.is_full(), listener.name);
        // The cookie is checked before the room, so that forged ACKs do not count as overflows.
        let Some(mut connection) = self.on_cookie(now, flow, segment) else { return CookieCheck::None };
        if no_room || self.refuses_for_memory() || !self.make_room() {
            self.counters.listen_overflows += 1;
            return CookieCheck::NotNow;
        }
        connection.listener = Some(name);
        if let Some(listener) = self.listeners.get_mut(&port) {
            listener.half_open += 1;
        }
        CookieCheck::Opens(self.flows.insert(connection))
    }

    /// Returns whether the memory limit forbids a new connection, and counts the refusal if so.
    fn refuses_for_memory(&mut self) -> bool {
        let refused = self.memory.level() == MemoryLevel::Full;
        self.counters.memory_refusals += u64::from(refused);
        refused
    }

    /// Returns whether one more connection has room, possibly after the removal of a waiting one.
    fn has_room(&mut self) -> bool {
        self.flows.len() < self.config.max_connections || self.find_waiting().is_some()
    }

    /// Makes room for one more connection, if possible. If the table is full, a dropped connection that only waits (in
    /// TIME-WAIT, or for the peer's FIN) is removed. Otherwise a host that closes first could open no connection for a
    /// minute, or for ever if its peers never close.
    fn make_room(&mut self) -> bool {
        if self.flows.len() < self.config.max_connections {
            return true;
        }
        let Some(id) = self.find_waiting() else { return false };
        match self.connection(id).state() {
            TcpState::TimeWait => self.counters.time_wait_overflows += 1,
            _ => self.counters.aborts_on_memory += 1,
        }
        self.connection_mut(id).end_wait();
        // Only now the table has room: `release_if_done` releases the connection with its memory and timers.
        self.release_if_done(id);
        true
    }

    fn find_waiting(&mut self) -> Option<FlowId> {
        self.flows.next_matching(MAX_CONNECTIONS_EXAMINED, Connection::is_waiting_without_handle)
    }

    /// Returns whether a segment would complete a handshake while the accept queue is full.
    pub(super) fn accept_queue_is_full(&self, id: FlowId, segment: &Segment) -> bool {
        let connection = self.connection(id);
        connection.state() == TcpState::SynReceived
            && segment.ack.is_some()
            && !segment.flags.rst
            && connection
                .listener
                .and_then(|name| self.listeners.get(&name.port).filter(|listener| listener.name == name))
                .is_some_and(ListenQueue::is_full)
    }

    fn new_connection(&mut self, now: Instant, flow: FlowKey, state: TcpState) -> Connection {
        let fingerprint = self.fingerprint(&flow);
        // RFC 6528: a keyed hash of the flow plus a clock with a tick of four microseconds.
        let initial = match self.config.tcp.initial_sequence {
            Some(initial) => Seq(initial),
            None => Seq(fingerprint as u32) + (now.as_nanos() / 4_000) as u32,
        };
        Connection::new(flow, state, initial, fingerprint, &self.config.tcp)
    }

    pub(super) fn fingerprint(&self, flow: &FlowKey) -> u64 {
        let mut hasher = self.key.build_hasher();
        hasher.write(b"sequence");
        // The hash covers both ends, so that equal ports to different peers start at unrelated numbers (RFC 6528 3).
        for end in [flow.local, flow.remote] {
            match end.ip() {
                IpAddr::V4(address) => hasher.write(&address.octets()),
                IpAddr::V6(address) => hasher.write(&address.octets()),
            }
            hasher.write(&end.port().to_be_bytes());
        }
        hasher.finish()
    }

    /// Returns a flow from a random free port of `local` to `remote` (RFC 6056).
    fn free_flow(
        &mut self,
        now: Instant,
        local: IpAddr,
        remote: SocketAddr,
        serves: &dyn Fn(&FlowKey) -> bool,
    ) -> Option<FlowKey> {
        let mut second_choice = None;
        for _ in 0..MAX_PORTS_TRIED {
            let port = random_port(&mut self.ports);
            // A connection from a listening port would compete with the listener for its flows.
            if self.listeners.contains_key(&port) {
                continue;
            }
            let flow = FlowKey::tcp(SocketAddr::new(local, port), remote);
            if !serves(&flow) {
                continue;
            }
            if self.flows.find(&flow).is_none() {
                return Some(flow);
            }
            // A TIME-WAIT flow can be reused, but a fresh port is safer.
            if second_choice.is_none() && self.may_be_reopened(now, &flow).is_some() {
                second_choice = Some(flow);
            }
        }
        second_choice
    }

    /// Returns the TIME-WAIT connection that a new connection of this flow may replace, and the lowest initial sequence
    /// number of the new one.
    fn may_be_reopened(&mut self, now: Instant, flow: &FlowKey) -> Option<(FlowId, Seq)> {
        let id = self.flows.find(flow)?;
        let wait = self.config.tcp.time_wait;
        Some((id, self.connection(id).may_be_reopened(now, wait)?))
    }
}

pub(super) fn random_port(ports: &mut Rng) -> u16 {
    FIRST_LOCAL_PORT + ports.below(u64::from(LAST_LOCAL_PORT - FIRST_LOCAL_PORT) + 1) as u16
}

/// Linux's ip_local_port_range.
const FIRST_LOCAL_PORT: u16 = 32_768;
const LAST_LOCAL_PORT: u16 = 60_999;
/// Number of connections examined per search for a waiting one. The bound keeps a search in a full table cheap.
const MAX_CONNECTIONS_EXAMINED: usize = 32;
/// Maximum number of random ports tried.
pub(super) const MAX_PORTS_TRIED: usize = 256;
