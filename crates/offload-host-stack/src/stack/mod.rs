//! The stack: connections, listeners, and whose turn it is.
//!
//! Packets come in by [`Stack::receive`] and leave by [`Stack::transmit`], here. [`opening`] has how connections begin,
//! [`cookies`] how they do in a flood of SYNs, [`calls`] what applications do with them, [`datagrams`] UDP and [`socket_contexts`] the contexts lent to its sockets, [`strays`]
//! what belongs to no connection, [`shards`] what belongs to another shard of the host.
//!
//! Invariants: a connection with something to send is on the dirty list, once; one with news for the application
//! is on the list of those; its timer entry is never later than its deadline. No call looks at all connections.

mod calls;
mod cookies;
mod datagrams;
pub(crate) mod notes;
mod opening;
pub(crate) mod shards;
mod socket_contexts;
mod strays;

pub use opening::OpenError;

use crate::config::Config;
use crate::counters::HostCounters;
use crate::flow_table::{ConnectionId, FlowTable};
use crate::hash::SipKey;
use crate::limit::RateLimit;
use crate::memory::Memory;
use crate::network::{Arrival, Network, Parsed};
use crate::tcp::connection::{Connection, Env};
use crate::tcp::output::Turn;
use crate::tcp::segment::Payload;
use crate::tcp::state::State;
use crate::tcp::{ConnectionError, Readiness};
use crate::timers::TimerQueue;
use crate::udp::Sockets;
use bytes::Buf;
use core::net::{IpAddr, SocketAddr};
use offload_api::{FlowKey, Handle, NetDevice, NoRecords, Prefix, Protocol, RxPacket};
use offload_base::{Instant, RandomSource, Rng, time::earliest};
use opening::{Cookie, Listener};
use shards::Place;
use std::collections::{BTreeMap, BTreeSet, VecDeque};

/// A host's TCP/IP: packets in by [`receive`](Self::receive), out by [`transmit`](Self::transmit), time by
/// `now`. [`poll`](Self::poll) does all of it with a device.
///
/// A [`ConnectionId`] is good from the call that returned it until [`detach`](Self::detach).
///
/// ```
/// use offload_host_stack::{Config, Stack, State};
/// use offload_base::{Instant, Seed};
///
/// let config = Config::new([10, 0, 0, 1].into(), [2, 0, 0, 0, 0, 1], Seed(1));
/// let mut stack = Stack::new(config.with_neighbour([10, 0, 0, 2].into(), [2, 0, 0, 0, 0, 2]));
/// stack.listen(443, 16).unwrap();
/// let id = stack.connect(Instant::ZERO, None, "10.0.0.2:80".parse().unwrap()).unwrap();
/// assert_eq!(stack.state(id), State::SynSent);
/// assert!(stack.has_work(), "a SYN is waiting to be sent");
/// ```
#[derive(Debug)]
pub struct Stack {
    config: Config,
    network: Network,
    key: SipKey,
    ports: Rng,
    counters: HostCounters,
    flows: FlowTable,
    listeners: BTreeMap<u16, Listener>,
    listeners_opened: u32,
    dirty: VecDeque<ConnectionId>,
    /// Those of them that ask the device for a rate. It has room for each of them on its own, and for all others together:
    /// so they wait apart.
    dirty_paced: VecDeque<ConnectionId>,
    /// Contexts to be given back to the device.
    left: Vec<Handle>,
    noted: VecDeque<ConnectionId>,
    /// Ports of listeners with news.
    acceptable: VecDeque<u16>,
    timers: TimerQueue,
    sockets: Sockets,
    /// Connections that may have contexts in the device.
    controlled: BTreeSet<ConnectionId>,
    challenges: RateLimit,
    resets: RateLimit,
    memory: Memory,
    /// If there are other shards of this host.
    place: Option<Place>,
}

impl Stack {
    /// A stack without connections.
    pub fn new(config: Config) -> Stack {
        let secrets = config.random.clone();
        Stack::with_secrets(config, &secrets)
    }

    /// The same, with secrets of another source than everything else that is random.
    fn with_secrets(config: Config, secrets: &RandomSource) -> Stack {
        // Of each shard its own, or who meets one limit knows them all.
        let limits = config.random.clone();
        let mut secrets = secrets.stream("offload-host-stack secrets");
        let key = SipKey(secrets.next_u64(), secrets.next_u64());
        Stack {
            network: Network::new(&config),
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
            sockets: Sockets::default(),
            controlled: BTreeSet::new(),
            challenges: RateLimit::new(ANSWERS_A_SECOND).drawn_from(limits.stream("offload-host-stack challenges")),
            resets: RateLimit::new(ANSWERS_A_SECOND).drawn_from(limits.stream("offload-host-stack resets")),
            memory: Memory::new(config.tcp.memory_bounds()),
            place: None,
            config,
        }
    }

    /// The configuration.
    pub fn config(&self) -> &Config {
        &self.config
    }

    /// The addresses that the interface has now: IPv4's; then, of IPv6, the link-local one, that which was set up, and those
    /// made of routers' prefixes.
    pub fn addresses(&self) -> Vec<IpAddr> {
        self.network.all_addresses().collect()
    }

    /// Puts these in the place of all routes that there are.
    pub fn set_routes(&mut self, routes: Vec<(Prefix, Option<IpAddr>)>) {
        self.network.set_routes(routes);
    }

    /// The Ethernet address to which packets for `destination` go: a neighbour's or a gateway's. `None`: there is no way, or it is
    /// not known yet, and is asked for from now on.
    pub fn next_hop(&mut self, now: Instant, destination: IpAddr) -> Option<[u8; 6]> {
        self.network.resolve(now, destination).map(|mac| mac.0)
    }

    /// What was counted so far.
    pub fn counters(&self) -> &HostCounters {
        &self.counters
    }

    /// How many connections there are, in whatever state.
    pub fn connections(&self) -> usize {
        self.flows.len()
    }

    /// Bytes that the queues of all connections take now, buffers at their true size
    /// ([`TcpConfig::memory`](crate::TcpConfig::memory)).
    pub fn tcp_memory(&self) -> usize {
        self.memory.used()
    }

    /// Takes in a packet from `device`. What follows from it is sent by the next [`transmit`](Self::transmit);
    /// duplicate acknowledgments and resets go to the device at once, if it has room.
    pub fn receive(&mut self, now: Instant, mut packet: RxPacket, device: &mut dyn NetDevice) {
        match self.network.receive(now, &mut packet, &mut self.counters) {
            Some(Arrival::Tcp(parsed)) => self.on_segment(now, parsed, packet, None, device),
            Some(Arrival::Datagram(parsed)) => self.on_datagram(now, parsed, packet, None),
            Some(Arrival::Undelivered(undelivered)) => {
                self.share(&packet);
                self.on_undelivered(now, &undelivered);
            }
            None => self.share(&packet),
        }
    }

    /// Takes in a segment that has `left` shards to ask yet, if it was handed on by another.
    fn on_segment(
        &mut self,
        now: Instant,
        mut parsed: Parsed,
        packet: RxPacket,
        left: Option<u16>,
        device: &mut dyn NetDevice,
    ) {
        if !self.give_way(&mut parsed) {
            return;
        }
        let Some(id) = self.flows.find(&parsed.flow) else {
            return self.on_stranger(now, parsed, packet, left, device);
        };
        if self.accept_queue_is_full(id, &parsed.segment) {
            self.counters.listen_overflows += 1;
            return;
        }
        self.take_in(now, id, &parsed, packet, device);
    }

    /// Takes in a segment of no connection of this stack: it opens one, or is for another shard, or is nobody's.
    fn on_stranger(
        &mut self,
        now: Instant,
        parsed: Parsed,
        packet: RxPacket,
        left: Option<u16>,
        device: &mut dyn NetDevice,
    ) {
        let Parsed { flow, segment, payload, .. } = &parsed;
        let is_listened_at = self.listeners.contains_key(&flow.local.port());
        let opens = segment.flags.syn && segment.ack.is_none() && !segment.flags.rst && !segment.flags.fin;
        // RFC 9293 3.10.7.2: of what neither opens nor acknowledges nor resets, a listener says nothing; and no open
        // connection elsewhere takes it. SYN and FIN at once say nothing that makes sense.
        if is_listened_at && !opens && segment.ack.is_none() && !segment.flags.rst {
            self.counters.in_errors += 1;
            return;
        }
        // The acknowledgment of a cookie opens a connection, too; and is good for two minutes, by which time the flow may
        // be alive at another shard.
        let may_open = opens || (segment.ack.is_some() && !segment.flags.syn && !segment.flags.rst);
        let left = left.unwrap_or_else(|| self.shards_to_ask(may_open, device.serves(flow)));
        if !may_open || self.is_last_round(left) {
            if opens && is_listened_at {
                self.on_syn(now, &parsed, device);
                return;
            }
            match self.open_by_cookie(now, *flow, segment) {
                Cookie::Opens(id) => return self.take_in(now, id, &parsed, packet, device),
                Cookie::NotNow => return,
                Cookie::None => {}
            }
        }
        if left > 0 {
            return self.pass_segment_on(parsed, packet, left);
        }
        self.answer_stranger(now, flow, segment, payload.len(), device);
    }

    /// Takes in a segment of a connection.
    fn take_in(
        &mut self,
        now: Instant,
        id: ConnectionId,
        Parsed { flow, segment, payload, .. }: &Parsed,
        packet: RxPacket,
        device: &mut dyn NetDevice,
    ) {
        let RxPacket { frame: mut data, meta, joined, placed } = packet;
        data.truncate(payload.end);
        data.advance(payload.start);
        let segment_bytes = joined.map_or(data.len(), |bytes| usize::from(bytes.get()).min(data.len()));
        // What the device joined counts as what it was joined of.
        self.counters.in_segments += (data.len().div_ceil(segment_bytes.max(1)) as u64).saturating_sub(1);
        let payload = Payload { data, meta, placed, segment_bytes };
        let reset = self.with(now, id, |connection, env| {
            let reset = connection.on_segment(env, segment, payload);
            connection.acknowledge_at_once(env, device);
            reset
        });
        if let Some(reset) = reset {
            self.send_stray(now, flow, &reset, device);
        }
        self.mark_dirty(id);
        self.settle(id);
    }

    /// Does everything that can be done at `now`: device events, received packets, timers, and what there is to
    /// send. True if there is more, and others were only to have their turn first.
    pub fn poll(&mut self, now: Instant, device: &mut dyn NetDevice) -> bool {
        if device.next_event().is_some_and(|at| at <= now) {
            device.handle_timeout(now);
        }
        // Before events: what is told of a context that a reset has taken, its socket is to hear before that.
        while let Some(news) = device.contexts().and_then(|contexts| contexts.poll_news()) {
            self.sockets.on_news(news);
        }
        while let Some(event) = device.poll_event() {
            self.on_device_event(event);
        }
        let mut drained = false;
        for _ in 0..PACKETS_A_POLL {
            let Some(packet) = device.receive(now) else {
                drained = true;
                break;
            };
            self.receive(now, packet, device);
        }
        self.handle_timeouts(now);
        !self.transmit(now, device) || !drained
    }

    /// Does what is due at `now`.
    pub fn handle_timeouts(&mut self, now: Instant) {
        for flow in self.network.handle_timeouts(now, &mut self.counters) {
            if let Some(id) = self.flows.find(&flow) {
                self.with(now, id, |connection, env| connection.on_undeliverable(env, ConnectionError::Unreachable));
                self.settle(id);
            }
        }
        while let Some(id) = self.timers.pop_due(now) {
            let Some(connection) = self.flows.get_mut(id) else { continue };
            connection.notes.timer.fired();
            if connection.next_deadline().is_some_and(|at| at <= now) {
                self.with(now, id, |connection, env| connection.handle_timeout(env));
                self.mark_dirty(id);
            }
            self.settle(id);
        }
    }

    /// Hands what there is to send to `device`, in turns, and rings the doorbell. False if connections are left
    /// that did not have enough of a turn; those for which the device had no room wait until it has.
    pub fn transmit(&mut self, now: Instant, device: &mut dyn NetDevice) -> bool {
        let done = self.transmit_unpaced(now, device) & self.transmit_paced(now, device);
        self.post_mail(now, device);
        for context in self.left.drain(..) {
            if let Some(contexts) = device.contexts() {
                contexts.remove(context);
            }
        }
        device.flush(now);
        done
    }

    /// One for whom there is no room stays first, and nobody behind it is looked at: there is none for them either, and
    /// each look is at a connection that is in no cache.
    fn transmit_unpaced(&mut self, now: Instant, device: &mut dyn NetDevice) -> bool {
        for _ in 0..TURNS_A_TRANSMIT {
            let Some(id) = self.dirty.pop_front() else { return true };
            let turn = self.take_turn(now, id, device);
            let blocked = turn == Some(Turn::NoRoom) && self.stay_first(id);
            if !blocked && matches!(turn, Some(Turn::More | Turn::NoRoom)) {
                self.mark_dirty(id);
            }
            self.settle(id);
            if blocked {
                return true;
            }
        }
        self.dirty.is_empty()
    }

    fn transmit_paced(&mut self, now: Instant, device: &mut dyn NetDevice) -> bool {
        let mut without_room = 0;
        for _ in 0..TURNS_A_TRANSMIT {
            let Some(id) = self.dirty_paced.pop_front() else { return true };
            let turn = self.take_turn(now, id, device);
            if let Some(Turn::More | Turn::NoRoom) = turn {
                self.mark_dirty(id);
            }
            self.settle(id);
            without_room += usize::from(turn == Some(Turn::NoRoom));
            if without_room >= self.dirty_paced.len().clamp(1, FLOWS_WITHOUT_ROOM) {
                return true;
            }
        }
        self.dirty_paced.is_empty()
    }

    /// Has a connection, which was on one of the lists, send what it may.
    fn take_turn(&mut self, now: Instant, id: ConnectionId, device: &mut dyn NetDevice) -> Option<Turn> {
        let connection = self.flows.get_mut(id)?;
        core::mem::take(&mut connection.notes.dirty)
            .then(|| self.with(now, id, |connection, env| connection.transmit(env, device)))
    }

    /// Whether something waits to be handed to the device.
    pub fn has_work(&self) -> bool {
        !self.dirty.is_empty() || !self.dirty_paced.is_empty() || self.network.has_mail()
    }

    /// When [`poll`](Self::poll) wants to be called, if nothing arrives before.
    pub fn next_event(&self) -> Option<Instant> {
        earliest(self.timers.next(), self.network.next_event())
    }

    /// The next connection with news, and what has become possible on it.
    pub fn next_ready(&mut self) -> Option<(ConnectionId, Readiness)> {
        while let Some(id) = self.noted.pop_front() {
            if let Some(connection) = self.flows.get_mut(id)
                && core::mem::take(&mut connection.notes.noted)
            {
                return Some((id, core::mem::take(&mut connection.readiness)));
            }
        }
        None
    }

    /// The next port at which a connection may be accepted now.
    pub fn next_acceptable(&mut self) -> Option<u16> {
        self.acceptable.pop_front()
    }

    /// Hands the packets that belong to no connection, or had to wait for an address, to `device`, as far as it
    /// has room; it wakes the shell when there is room again.
    fn post_mail(&mut self, now: Instant, device: &mut dyn NetDevice) {
        // Asked for now: addresses that packets of this turn need.
        if self.network.next_event().is_some_and(|at| at <= now) {
            self.handle_timeouts(now);
        }
        let mtu = if self.network.has_mail() { device.path(&self.nobodys_flow()).mtu } else { 0 };
        while self.network.has_mail() {
            if device.room(&self.nobodys_flow()) == 0 {
                break;
            }
            let Some(packet) = self.network.next_mail(now, mtu, &mut self.counters) else { break };
            let ask = packet.ask.packet;
            if device.transmit(now, packet, &NoRecords) != offload_api::TransmitResult::Posted {
                self.counters.device_drops += 1;
                ask.into_iter().for_each(|ask| self.sockets.on_dropped(ask));
            }
        }
        if self.network.takes_datagrams() {
            self.sockets.unblock();
        }
    }

    /// What packets that belong to no flow are sent under.
    fn nobodys_flow(&self) -> FlowKey {
        let nobody = SocketAddr::new(self.network.address().into(), 0);
        FlowKey { protocol: Protocol::Udp, local: nobody, remote: nobody }
    }

    /// Calls `f` with a connection and what it needs.
    fn with<R>(&mut self, now: Instant, id: ConnectionId, f: impl FnOnce(&mut Connection, &mut Env<'_>) -> R) -> R {
        let mut env = Env {
            now,
            config: &self.config.tcp,
            counters: &mut self.counters,
            network: &mut self.network,
            challenges: &mut self.challenges,
            memory: self.memory.level(),
        };
        let connection = self.flows.get_mut(id).expect("the caller found the connection");
        f(connection, &mut env)
    }

    /// What a connection that is not in the table needs.
    fn env(&mut self, now: Instant) -> Env<'_> {
        Env {
            now,
            config: &self.config.tcp,
            counters: &mut self.counters,
            network: &mut self.network,
            challenges: &mut self.challenges,
            memory: self.memory.level(),
        }
    }

    /// Charges a connection for what its queues take now.
    fn account(&mut self, id: ConnectionId) {
        if let Some(connection) = self.flows.get_mut(id) {
            let taken = connection.memory();
            let before = core::mem::replace(&mut connection.notes.accounted, taken);
            self.memory.change(before, taken, &mut self.counters);
        }
    }

    fn mark_dirty(&mut self, id: ConnectionId) {
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

    /// Keeps a connection at the head of the list, unless it asks for a rate by now, and belongs on the other.
    fn stay_first(&mut self, id: ConnectionId) -> bool {
        let connection = self.flows.get_mut(id).filter(|connection| !connection.is_paced());
        let stays = connection.is_some();
        if let Some(connection) = connection {
            connection.notes.dirty = true;
            self.dirty.push_front(id);
        }
        stays
    }

    /// Brings timers, listeners and lists up to date with a connection, and removes it if nobody needs it.
    fn settle(&mut self, id: ConnectionId) {
        let Some(connection) = self.flows.get_mut(id) else { return };
        if let Some(name) = connection.listener
            && connection.state() != State::SynReceived
        {
            connection.listener = None;
            let open = connection.state() != State::Closed;
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
        connection.take_left(&mut self.left);
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

    fn connection(&self, id: ConnectionId) -> &Connection {
        self.flows.get(id).expect("a connection's name is good until it is detached")
    }

    fn connection_mut(&mut self, id: ConnectionId) -> &mut Connection {
        self.flows.get_mut(id).expect("a connection's name is good until it is detached")
    }
}

/// Packets received before the timers and the senders have their turn.
const PACKETS_A_POLL: usize = 256;
/// Turns of connections in one call.
const TURNS_A_TRANSMIT: usize = 128;
/// When so many paced connections in a row find no room in the device, the rest need not ask.
const FLOWS_WITHOUT_ROOM: usize = 8;
/// Challenge ACKs, and likewise resets to strangers, in a second on the average (RFC 5961 7).
const ANSWERS_A_SECOND: u32 = 1000;
