//! The stack: connections, listeners, and the order in which connections send.
//!
//! Packets enter by [`Stack::receive`] and leave by [`Stack::transmit`], in this file. [`opening`] opens connections
//! and [`cookies`] answers SYN floods. [`calls`] holds the application's calls on connections. [`datagrams`] holds UDP,
//! and [`socket_contexts`] the device contexts lent to its sockets. [`strays`] handles packets without a connection,
//! and [`shards`] packets for other shards of the host.
//!
//! Invariants:
//! - A connection with something to send is on one dirty list, once.
//! - A connection with news for the application is on the ready list.
//! - The timer entry of a connection is never later than its deadline.
//! - No call looks at all connections.

mod calls;
mod cookies;
mod datagrams;
pub(crate) mod notes;
mod opening;
pub(crate) mod shards;
mod socket_contexts;
mod strays;

pub use opening::SocketOpenError;

use crate::config::Config;
use crate::counters::HostCounters;
use crate::flow_table::{FlowId, FlowTable};
use crate::hash::SipKey;
use crate::limit::RateLimit;
use crate::memory::Memory;
use crate::network::{NetworkLayer, ParsedSegment, ReceivedContent};
use crate::tcp::connection::{Connection, ConnectionEnv};
use crate::tcp::output::TransmitOutcome;
use crate::tcp::segment::SegmentPayload;
use crate::tcp::state::TcpState;
use crate::tcp::{ConnectionError, Readiness};
use crate::timers::TimerQueue;
use crate::udp::UdpSockets;
use bytes::Buf;
use core::net::{IpAddr, SocketAddr};
use offload_api::{FlowKey, Handle, NetDevice, NoRecords, Prefix, Protocol, RxPacket};
use offload_base::{Instant, RandomSource, Rng, time::earliest};
use opening::{CookieCheck, ListenQueue};
use shards::ShardPosition;
use std::collections::{BTreeMap, BTreeSet, VecDeque};

/// The TCP/IP stack of a host. [`receive`](Self::receive) takes packets, [`transmit`](Self::transmit) sends them, and
/// each call gets the time as `now`. [`poll`](Self::poll) does both with a device.
///
/// A [`FlowId`] is valid from the call that returned it until [`detach`](Self::detach).
///
/// ```
/// use offload_host_stack::{Config, Stack, TcpState};
/// use offload_base::{Instant, Seed};
///
/// let config = Config::new([10, 0, 0, 1].into(), [2, 0, 0, 0, 0, 1], Seed(1));
/// let mut stack = Stack::new(config.with_neighbour([10, 0, 0, 2].into(), [2, 0, 0, 0, 0, 2]));
/// stack.listen(443, 16).unwrap();
/// let id = stack.connect(Instant::ZERO, None, "10.0.0.2:80".parse().unwrap()).unwrap();
/// assert_eq!(stack.state(id), TcpState::SynSent);
/// assert!(stack.has_work(), "a SYN is waiting to be sent");
/// ```
#[derive(Debug)]
pub struct Stack {
    config: Config,
    network: NetworkLayer,
    key: SipKey,
    ports: Rng,
    counters: HostCounters,
    flows: FlowTable,
    listeners: BTreeMap<u16, ListenQueue>,
    listeners_opened: u32,
    dirty: VecDeque<FlowId>,
    /// Dirty connections that ask the device for a rate. The device has room for each paced flow separately and for all
    /// other flows together, so paced connections need a list of their own.
    dirty_paced: VecDeque<FlowId>,
    /// Contexts to be removed from the device.
    left: Vec<Handle>,
    noted: VecDeque<FlowId>,
    /// Ports of listeners with new connections.
    acceptable: VecDeque<u16>,
    timers: TimerQueue,
    sockets: UdpSockets,
    /// Connections subscribed to the device's events.
    controlled: BTreeSet<FlowId>,
    challenges: RateLimit,
    resets: RateLimit,
    memory: Memory,
    /// Position among the host's shards. `None` if the host has one shard only.
    place: Option<ShardPosition>,
}

impl Stack {
    /// Returns a stack without connections.
    pub fn new(config: Config) -> Stack {
        let secrets = config.random.clone();
        Stack::with_secrets(config, &secrets)
    }

    /// Like [`new`](Self::new), but takes secrets from a second source.
    fn with_secrets(config: Config, secrets: &RandomSource) -> Stack {
        // Each shard has its own limits, so that an observer of one learns nothing about the others.
        let limits = config.random.clone();
        let mut secrets = secrets.stream("offload-host-stack secrets");
        let key = SipKey(secrets.next_u64(), secrets.next_u64());
        Stack {
            network: NetworkLayer::new(&config),
            key,
            ports: config.random.stream("offload-host-stack ports"),
            counters: HostCounters::default(),
            flows: FlowTable::new(key),
            listeners: BTreeMap::new(),
            listeners_opened: 0,
            dirty: VecDeque::new(),
            dirty_paced: VecDeque::new(),
            left: Vec::new(),
            noted: VecDeque::new(),
            acceptable: VecDeque::new(),
            timers: TimerQueue::default(),
            sockets: UdpSockets::default(),
            controlled: BTreeSet::new(),
            challenges: RateLimit::new(MEAN_ANSWERS_PER_SECOND)
                .drawn_from(limits.stream("offload-host-stack challenges")),
            resets: RateLimit::new(MEAN_ANSWERS_PER_SECOND).drawn_from(limits.stream("offload-host-stack resets")),
            memory: Memory::new(config.tcp.memory_bounds()),
            place: None,
            config,
        }
    }

    /// Returns the configuration.
    pub fn config(&self) -> &Config {
        &self.config
    }

    /// Returns the current addresses of the interface: IPv4, then IPv6 link-local, configured, and autoconfigured.
    pub fn addresses(&self) -> Vec<IpAddr> {
        self.network.all_addresses().collect()
    }

    /// Replaces all routes.
    pub fn set_routes(&mut self, routes: Vec<(Prefix, Option<IpAddr>)>) {
        self.network.set_routes(routes);
    }

    /// Returns the Ethernet address of the next hop to `destination`: a neighbour or a gateway. Returns `None` without
    /// a route, and while address resolution, which this call starts, is under way.
    pub fn next_hop(&mut self, now: Instant, destination: IpAddr) -> Option<[u8; 6]> {
        self.network.resolve(now, destination).map(|mac| mac.0)
    }

    /// Returns the counters.
    pub fn counters(&self) -> &HostCounters {
        &self.counters
    }

    /// Returns the number of connections, in any state.
    pub fn connections(&self) -> usize {
        self.flows.len()
    }

    /// Returns the memory of all connections' queues in bytes, at true buffer size
    /// ([`TcpConfig::memory`](crate::TcpConfig::memory)).
    pub fn tcp_memory(&self) -> usize {
        self.memory.used()
    }

    /// Processes a packet from `device`. The next [`transmit`](Self::transmit) sends the answers; duplicate
    /// acknowledgments and resets go to a device with room at once.
    pub fn receive(&mut self, now: Instant, mut packet: RxPacket, device: &mut dyn NetDevice) {
        // The network layer consumes ARP, discovery and echo itself; only content for the upper layers comes back.
        match self.network.receive(now, &mut packet, &mut self.counters) {
            Some(ReceivedContent::Tcp(parsed)) => self.on_segment(now, parsed, packet, None, device),
            Some(ReceivedContent::Datagram(parsed)) => self.on_datagram(now, parsed, packet, None),
            Some(ReceivedContent::Undelivered(undelivered)) => {
                self.share_with_shards(&packet);
                self.on_undelivered(now, &undelivered);
            }
            None => self.share_with_shards(&packet),
        }
    }

    /// Processes a segment. `left` is the number of shards that may still be asked, if another shard passed the segment
    /// on.
    fn on_segment(
        &mut self,
        now: Instant,
        mut parsed: ParsedSegment,
        packet: RxPacket,
        left: Option<u16>,
        device: &mut dyn NetDevice,
    ) {
        // A SYN may replace a connection in TIME-WAIT, so this check precedes the lookup of the flow.
        if !self.yield_time_wait(&mut parsed) {
            return;
        }
        let Some(id) = self.flows.find(&parsed.flow) else {
            return self.on_unknown_flow(now, parsed, packet, left, device);
        };
        // Only the ACK is dropped, not the connection: a repeated SYN-ACK or the client's data bring another ACK.
        if self.accept_queue_is_full(id, &parsed.segment) {
            self.counters.listen_overflows += 1;
            return;
        }
        self.on_known_segment(now, id, &parsed, packet, device);
    }

    /// Processes a segment without a connection in this stack. The segment opens a connection, goes to another shard,
    /// or gets a reset.
    fn on_unknown_flow(
        &mut self,
        now: Instant,
        parsed: ParsedSegment,
        packet: RxPacket,
        left: Option<u16>,
        device: &mut dyn NetDevice,
    ) {
        let ParsedSegment { flow, segment, payload, .. } = &parsed;
        let is_listened_at = self.listeners.contains_key(&flow.local.port());
        let opens = segment.flags.syn && segment.ack.is_none() && !segment.flags.rst && !segment.flags.fin;
        // RFC 9293 3.10.7.2: a listener drops a segment that carries no SYN, ACK or RST. No open connection on another
        // shard would accept the segment either. A segment with both SYN and FIN is invalid.
        if is_listened_at && !opens && segment.ack.is_none() && !segment.flags.rst {
            self.counters.in_errors += 1;
            return;
        }
        // The ACK of a cookie opens a connection, too. A cookie is valid for two minutes; meanwhile the flow may have
        // been opened on another shard, so the ACK has to ask the other shards first, like a SYN.
        let may_open = opens || (segment.ack.is_some() && !segment.flags.syn && !segment.flags.rst);
        let left = left.unwrap_or_else(|| self.shards_to_ask(may_open, device.serves(flow)));
        if !may_open || self.is_last_round(left) {
            if opens && is_listened_at {
                self.on_syn(now, &parsed, device);
                return;
            }
            match self.open_by_cookie(now, *flow, segment) {
                CookieCheck::Opens(id) => return self.on_known_segment(now, id, &parsed, packet, device),
                CookieCheck::NotNow => return,
                CookieCheck::None => {}
            }
        }
        if left > 0 {
            return self.pass_segment_on(parsed, packet, left);
        }
        self.answer_unknown_flow(now, flow, segment, payload.len(), device);
    }

    /// Processes a segment of a connection.
    fn on_known_segment(
        &mut self,
        now: Instant,
        id: FlowId,
        ParsedSegment { flow, segment, payload, .. }: &ParsedSegment,
        packet: RxPacket,
        device: &mut dyn NetDevice,
    ) {
        let RxPacket { frame: mut data, meta, joined, placed } = packet;
        data.truncate(payload.end);
        data.advance(payload.start);
        let segment_bytes = joined.map_or(data.len(), |bytes| usize::from(bytes.get()).min(data.len()));
        // A joined packet counts as all the segments in the packet.
        self.counters.in_segments += (data.len().div_ceil(segment_bytes.max(1)) as u64).saturating_sub(1);
        let payload = SegmentPayload { data, meta, placed, segment_bytes };
        let reset = self.with(now, id, |connection, env| {
            let reset = connection.on_segment(env, segment, payload);
            connection.acknowledge_at_once(env, device);
            reset
        });
        if let Some(reset) = reset {
            self.send_stray(now, flow, &reset, device);
        }
        self.mark_dirty(id);
        self.release_if_done(id);
    }

    /// Does all work that is possible at `now`: device events, received packets, timers, and sending. Returns true if
    /// work is left; the caller should then run other tasks and call again.
    pub fn poll(&mut self, now: Instant, device: &mut dyn NetDevice) -> bool {
        // The device's timers come first, because their results are among the events and packets below.
        if device.next_event().is_some_and(|at| at <= now) {
            device.handle_timeout(now);
        }
        // News come before events: the socket must hear of a context before it hears that a reset destroyed the
        // context.
        while let Some(news) = device.contexts().and_then(|contexts| contexts.poll_news()) {
            self.sockets.on_news(news);
        }
        while let Some(event) = device.poll_event() {
            self.on_device_event(event);
        }
        let mut drained = false;
        for _ in 0..MAX_PACKETS_PER_POLL {
            let Some(packet) = device.receive(now) else {
                drained = true;
                break;
            };
            self.receive(now, packet, device);
        }
        self.handle_timeouts(now);
        !self.transmit(now, device) || !drained
    }

    /// Handles all timers that are due at `now`.
    pub fn handle_timeouts(&mut self, now: Instant) {
        // Failed address resolution ends an opening connection; an established one waits for its own timeout.
        for flow in self.network.handle_timeouts(now, &mut self.counters) {
            if let Some(id) = self.flows.find(&flow) {
                self.with(now, id, |connection, env| connection.on_undeliverable(env, ConnectionError::Unreachable));
                self.release_if_done(id);
            }
        }
        while let Some(id) = self.timers.pop_due(now) {
            let Some(connection) = self.flows.get_mut(id) else { continue };
            connection.notes.timer.fired();
            // The entry may be earlier than the deadline, because a moved deadline leaves its entry in place.
            if connection.next_deadline().is_some_and(|at| at <= now) {
                self.with(now, id, |connection, env| connection.handle_timeout(env));
                self.mark_dirty(id);
            }
            self.release_if_done(id);
        }
    }

    /// Sends queued data and packets to `device`, connection by connection, and rings the doorbell. Returns false if
    /// connections still have data and the device has room. Connections that found no room wait until the device has
    /// room again.
    pub fn transmit(&mut self, now: Instant, device: &mut dyn NetDevice) -> bool {
        // The operator `&` does not short-circuit: paced flows must send even if unpaced ones have more.
        let done = self.transmit_unpaced(now, device) & self.transmit_paced(now, device);
        self.send_unconnected(now, device);
        for context in self.left.drain(..) {
            if let Some(contexts) = device.contexts() {
                contexts.remove(context);
            }
        }
        // One doorbell covers all packets of this call.
        device.flush(now);
        done
    }

    /// Sends from connections that ask for no rate. If the device has no room for one, all others would find none
    /// either, and each attempt costs cache misses. The connection therefore goes back to the head of the list, and the
    /// loop ends.
    fn transmit_unpaced(&mut self, now: Instant, device: &mut dyn NetDevice) -> bool {
        for _ in 0..MAX_TURNS_PER_TRANSMIT {
            let Some(id) = self.dirty.pop_front() else { return true };
            let turn = self.take_turn(now, id, device);
            let blocked = turn == Some(TransmitOutcome::NoRoom) && self.requeue_first(id);
            if !blocked && matches!(turn, Some(TransmitOutcome::More | TransmitOutcome::NoRoom)) {
                self.mark_dirty(id);
            }
            self.release_if_done(id);
            if blocked {
                return true;
            }
        }
        self.dirty.is_empty()
    }

    fn transmit_paced(&mut self, now: Instant, device: &mut dyn NetDevice) -> bool {
        // Each paced flow has its own room, so the loop goes on after a refusal. It ends after a few refusals in a row
        // because most of the remaining flows would probably be refused, too.
        let mut without_room = 0;
        for _ in 0..MAX_TURNS_PER_TRANSMIT {
            let Some(id) = self.dirty_paced.pop_front() else { return true };
            let turn = self.take_turn(now, id, device);
            if let Some(TransmitOutcome::More | TransmitOutcome::NoRoom) = turn {
                self.mark_dirty(id);
            }
            self.release_if_done(id);
            without_room += usize::from(turn == Some(TransmitOutcome::NoRoom));
            if without_room >= self.dirty_paced.len().clamp(1, MAX_FLOWS_WITHOUT_ROOM) {
                return true;
            }
        }
        self.dirty_paced.is_empty()
    }

    /// Lets a connection from a dirty list send. Returns `None` for a connection that is no longer dirty.
    fn take_turn(&mut self, now: Instant, id: FlowId, device: &mut dyn NetDevice) -> Option<TransmitOutcome> {
        let connection = self.flows.get_mut(id)?;
        core::mem::take(&mut connection.notes.dirty)
            .then(|| self.with(now, id, |connection, env| connection.transmit(env, device)))
    }

    /// Returns whether packets wait to be sent.
    pub fn has_work(&self) -> bool {
        !self.dirty.is_empty() || !self.dirty_paced.is_empty() || self.network.has_packets()
    }

    /// Returns the time of the next timer, at which [`poll`](Self::poll) must be called.
    pub fn next_event(&self) -> Option<Instant> {
        earliest(self.timers.next(), self.network.next_event())
    }

    /// Returns the next connection with news, and its news.
    pub fn next_ready(&mut self) -> Option<(FlowId, Readiness)> {
        while let Some(id) = self.noted.pop_front() {
            if let Some(connection) = self.flows.get_mut(id)
                // A released connection leaves a stale entry in the list, and a new one may have its index.
                && core::mem::take(&mut connection.notes.noted)
            {
                return Some((id, core::mem::take(&mut connection.readiness)));
            }
        }
        None
    }

    /// Returns the next port at which a connection can be accepted.
    pub fn next_acceptable(&mut self) -> Option<u16> {
        self.acceptable.pop_front()
    }

    /// Sends packets without a connection, and packets that waited for an address, as far as `device` has room. The
    /// device wakes the shell when it has room again.
    fn send_unconnected(&mut self, now: Instant, device: &mut dyn NetDevice) {
        // Packets of this call may need addresses that are not resolved yet. Their first ARP or NDP request is due now.
        if self.network.next_event().is_some_and(|at| at <= now) {
            self.handle_timeouts(now);
        }
        // The MTU is looked up only if there is a packet, because most calls find the outbox empty.
        let mtu = if self.network.has_packets() { device.path(&self.placeholder_flow()).mtu } else { 0 };
        while self.network.has_packets() {
            if device.room(&self.placeholder_flow()) == 0 {
                break;
            }
            let Some(packet) = self.network.next_packet(now, mtu, &mut self.counters) else { break };
            let ask = packet.ask.packet;
            if device.transmit(now, packet, &NoRecords) != offload_api::TransmitResult::Posted {
                self.counters.device_drops += 1;
                // A protocol must learn that its datagram was lost, or it would wait for the peer's answer in vain.
                ask.into_iter().for_each(|ask| self.sockets.on_dropped(ask));
            }
        }
        if self.network.takes_datagrams() {
            self.sockets.unblock();
        }
    }

    /// Returns the placeholder flow of packets that belong to no flow.
    fn placeholder_flow(&self) -> FlowKey {
        let nobody = SocketAddr::new(self.network.address().into(), 0);
        FlowKey { protocol: Protocol::Udp, local: nobody, remote: nobody }
    }

    /// Calls `f` with a connection and its environment.
    fn with<R>(&mut self, now: Instant, id: FlowId, f: impl FnOnce(&mut Connection, &mut ConnectionEnv<'_>) -> R) -> R {
        let mut env = ConnectionEnv {
            now,
            config: &self.config.tcp,
            counters: &mut self.counters,
            network: &mut self.network,
            challenges: &mut self.challenges,
            memory: self.memory.level(),
        };
        let connection = self.flows.get_mut(id).expect("the caller must have found the connection");
        f(connection, &mut env)
    }

    /// Returns the environment for a connection that is not in the table.
    fn env(&mut self, now: Instant) -> ConnectionEnv<'_> {
        ConnectionEnv {
            now,
            config: &self.config.tcp,
            counters: &mut self.counters,
            network: &mut self.network,
            challenges: &mut self.challenges,
            memory: self.memory.level(),
        }
    }

    /// Updates the memory charge of a connection.
    fn account(&mut self, id: FlowId) {
        if let Some(connection) = self.flows.get_mut(id) {
            let taken = connection.memory();
            let before = core::mem::replace(&mut connection.notes.accounted, taken);
            self.memory.change(before, taken, &mut self.counters);
        }
    }

    fn mark_dirty(&mut self, id: FlowId) {
        if let Some(connection) = self.flows.get_mut(id)
            && !connection.notes.dirty
        {
            connection.notes.dirty = true;
            match connection.is_paced() {
                false => self.dirty.push_back(id),
                true => self.dirty_paced.push_back(id),
            }
        }
    }

    /// Puts a connection back to the head of the list. Returns false if the connection now asks for a rate and so
    /// belongs on the other list.
    fn requeue_first(&mut self, id: FlowId) -> bool {
        let connection = self.flows.get_mut(id).filter(|connection| !connection.is_paced());
        let stays = connection.is_some();
        if let Some(connection) = connection {
            connection.notes.dirty = true;
            self.dirty.push_front(id);
        }
        stays
    }

    /// Updates timers, listeners and lists after a change of a connection. Removes a finished connection.
    fn release_if_done(&mut self, id: FlowId) {
        let Some(connection) = self.flows.get_mut(id) else { return };
        if let Some(name) = connection.listener
            && connection.state() != TcpState::SynReceived
        {
            connection.listener = None;
            let open = connection.state() != TcpState::Closed;
            match self.listeners.get_mut(&name.port).filter(|listener| listener.name == name) {
                Some(listener) => {
                    listener.half_open = listener.half_open.saturating_sub(1);
                    if open {
                        self.counters.passive_opens += 1;
                        listener.accepted.push_back(id);
                        self.acceptable.push_back(name.port);
                    } else {
                        connection.orphan();
                    }
                }
                // The listener was closed during the handshake, so no application can accept the connection.
                None => {
                    connection.abort();
                    connection.orphan();
                    if !core::mem::replace(&mut connection.notes.dirty, true) {
                        self.dirty.push_back(id);
                    }
                }
            }
        }
        if connection.readiness.any() && !core::mem::replace(&mut connection.notes.noted, true) {
            self.noted.push_back(id);
        }
        // The contexts are removed at the end of the next transmission, which has access to the device.
        connection.take_left(&mut self.left);
        // A connection that is about to be removed gives its memory back now.
        let taken = if connection.is_done() { 0 } else { connection.memory() };
        let before = core::mem::replace(&mut connection.notes.accounted, taken);
        self.memory.change(before, taken, &mut self.counters);
        if connection.is_done() {
            self.timers.clear(id, &mut connection.notes.timer);
            if connection.notes.controlled {
                self.controlled.remove(&id);
            }
            self.flows.remove(id);
        } else {
            let deadline = connection.next_deadline();
            self.timers.set(id, &mut connection.notes.timer, deadline);
        }
    }

    fn connection(&self, id: FlowId) -> &Connection {
        self.flows.get(id).expect("a connection's id must be valid until it is detached")
    }

    fn connection_mut(&mut self, id: FlowId) -> &mut Connection {
        self.flows.get_mut(id).expect("a connection's id must be valid until it is detached")
    }
}

/// Maximum number of packets received before timers and senders run.
const MAX_PACKETS_PER_POLL: usize = 256;
/// Maximum number of connections that send in one call.
const MAX_TURNS_PER_TRANSMIT: usize = 128;
/// Number of consecutive paced connections without room after which the remaining ones are not tried.
const MAX_FLOWS_WITHOUT_ROOM: usize = 8;
/// Mean limit of challenge ACKs per second, and of resets to unknown flows (RFC 5961 7).
const MEAN_ANSWERS_PER_SECOND: u32 = 1000;
