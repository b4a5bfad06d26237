//! The stack: connections, listeners, and whose turn it is.
//!
//! Invariants: a connection with something to send is on the dirty list, once; one with news for the application
//! is on the list of those; its timer entry is never later than its deadline. No call looks at all connections.

use crate::config::Config;
use crate::counters::HostCounters;
use crate::flow_table::{ConnectionId, FlowTable};
use crate::hash::SipKey;
use crate::limit::RateLimit;
use crate::network::{Arrival, Network, Outgoing, Parsed, Undelivered, Why};
use crate::tcp::connection::{Connection, ConnectionError, Env, Readiness, TcpStats};
use crate::tcp::input::reset_for;
use crate::tcp::output::Turn;
use crate::tcp::segment::Segment;
use crate::tcp::state::State;
use crate::timers::TimerQueue;
use crate::udp::{Datagram, SendError, Sockets};
use bytes::{Buf, Bytes, BytesMut};
use core::hash::{BuildHasher, Hasher};
use core::net::{SocketAddr, SocketAddrV4};
use core::ops::Range;
use offload_api::{
    DeviceEvent, FlowKey, Handle, Layer, NetDevice, NoRecords, Protocol, RxPacket, RxSegment, Sealer, SentBytes, TxTag,
};
use offload_base::{Instant, Rng, Seq, time::earliest};
use smallvec::SmallVec;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::io;

/// A host's TCP/IP: packets in by [`receive`](Self::receive), out by [`transmit`](Self::transmit), time by
/// `now`. [`poll`](Self::poll) does all of it with a device.
///
/// A [`ConnectionId`] is good from the call that returned it until [`detach`](Self::detach).
///
/// ```
/// use host_stack::{Config, Stack, State};
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
    dirty: VecDeque<ConnectionId>,
    /// Contexts to be given back to the device.
    left: Vec<(Layer, Handle)>,
    noted: VecDeque<ConnectionId>,
    /// Ports of listeners with news.
    acceptable: VecDeque<u16>,
    timers: TimerQueue,
    sockets: Sockets,
    /// Connections that may have contexts in the device.
    controlled: BTreeSet<ConnectionId>,
    challenges: RateLimit,
    resets: RateLimit,
}

#[derive(Debug)]
struct Listener {
    backlog: usize,
    half_open: usize,
    accepted: VecDeque<ConnectionId>,
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
    /// A stack without connections.
    pub fn new(config: Config) -> Stack {
        let mut secrets = config.seed.stream("host-stack secrets");
        let key = SipKey(secrets.next_u64(), secrets.next_u64());
        Stack {
            network: Network::new(&config),
            key,
            ports: config.seed.stream("host-stack ports"),
            counters: HostCounters::default(),
            flows: FlowTable::new(key),
            listeners: BTreeMap::new(),
            dirty: VecDeque::new(),
            left: Vec::new(),
            noted: VecDeque::new(),
            acceptable: VecDeque::new(),
            timers: TimerQueue::default(),
            sockets: Sockets::default(),
            controlled: BTreeSet::new(),
            challenges: RateLimit::new(ANSWERS_A_SECOND),
            resets: RateLimit::new(ANSWERS_A_SECOND),
            config,
        }
    }

    /// The configuration.
    pub fn config(&self) -> &Config {
        &self.config
    }

    /// What was counted so far.
    pub fn counters(&self) -> &HostCounters {
        &self.counters
    }

    /// How many connections there are, in whatever state.
    pub fn connections(&self) -> usize {
        self.flows.len()
    }

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
        if !self.network.reaches(remote.ip()) || remote.port() == 0 {
            return Err(OpenError::Unreachable);
        }
        if self.flows.len() >= self.config.max_connections {
            return Err(OpenError::TooMany);
        }
        let flow = match local_port {
            Some(port) => {
                let flow = self.flow_from(port, remote);
                self.flows.find(&flow).is_none().then_some(flow)
            }
            None => self.free_flow(remote),
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

    /// Opens a UDP socket at `port`, or at any port that is free, and returns its port.
    ///
    /// # Errors
    /// If the port is in use, or none is free.
    pub fn bind_udp(&mut self, port: Option<u16>) -> Result<u16, OpenError> {
        let port = match port {
            Some(0) => return Err(OpenError::NoPort),
            Some(port) => port,
            None => {
                let tried = (0..PORTS_TRIED).map(|_| random_port(&mut self.ports));
                let mut free = tried.filter(|port| !self.sockets.is_bound(*port));
                free.next().ok_or(OpenError::NoPort)?
            }
        };
        self.sockets.bind(port)?;
        Ok(port)
    }

    /// Closes the UDP socket at `port`, and drops what was not read.
    pub fn close_udp(&mut self, port: u16) {
        self.sockets.close(port);
    }

    /// Sends `data` from the UDP socket at `port`, at the next [`transmit`](Self::transmit).
    ///
    /// # Errors
    /// If there is no way to `to`, the datagram does not fit one packet, or the device has fallen behind.
    pub fn send_datagram(
        &mut self,
        now: Instant,
        port: u16,
        to: SocketAddr,
        data: Bytes,
        device: &dyn NetDevice,
    ) -> Result<(), SendError> {
        let mtu = device.path(&self.nobodys_flow()).mtu;
        let sent = self.network.send_datagram(now, port, to, data, mtu, &mut self.counters);
        if sent == Err(SendError::Full) {
            self.sockets.block(port);
        }
        sent
    }

    /// The next datagram that arrived at the UDP socket at `port`.
    pub fn take_datagram(&mut self, port: u16) -> Option<Datagram> {
        self.sockets.take(port)
    }

    /// The next UDP socket at which datagrams arrived, or that can send again.
    pub fn next_udp_ready(&mut self) -> Option<u16> {
        self.sockets.next_ready()
    }

    /// Takes in a packet from `device`. What follows from it is sent by the next [`transmit`](Self::transmit);
    /// duplicate acknowledgments and resets go to the device at once, if it has room.
    pub fn receive(&mut self, now: Instant, packet: RxPacket, device: &mut dyn NetDevice) {
        let RxPacket { mut frame, meta } = packet;
        let arrival = self.network.receive(now, &frame, meta.checksums, &mut self.counters);
        let Parsed { flow, segment, payload } = match arrival {
            Some(Arrival::Tcp(parsed)) => parsed,
            Some(Arrival::Undelivered(undelivered)) => return self.on_undelivered(now, &undelivered),
            Some(Arrival::Datagram { port, from, payload }) => {
                return self.on_datagram(now, port, from, payload, frame);
            }
            None => return,
        };
        frame.truncate(payload.end);
        frame.advance(payload.start);
        let Some(id) = self.find_for(now, &flow, &segment) else {
            let opens = segment.flags.syn && segment.ack.is_none() && !segment.flags.rst;
            if opens && self.listeners.contains_key(&flow.local.port()) {
                self.on_syn(now, flow, &segment);
                return;
            }
            self.answer_stranger(now, &flow, &segment, frame.len(), device);
            return;
        };
        if self.accept_queue_is_full(id, &segment) {
            self.counters.listen_overflows += 1;
            return;
        }
        let reset = self.with(now, id, |connection, env| {
            let reset = connection.on_segment(env, &segment, frame, meta);
            connection.acknowledge_at_once(env, device);
            reset
        });
        if let Some(reset) = reset {
            self.send_stray(now, &flow, &reset, device);
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
            connection.timer.fired();
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
        let mut without_room = 0;
        let mut done = self.dirty.is_empty();
        for _ in 0..TURNS_A_TRANSMIT {
            let Some(id) = self.dirty.pop_front() else {
                done = true;
                break;
            };
            let Some(connection) = self.flows.get_mut(id) else { continue };
            if !core::mem::take(&mut connection.dirty) {
                continue;
            }
            let turn = self.with(now, id, |connection, env| connection.transmit(env, device));
            match turn {
                Turn::Done => {}
                Turn::More => self.mark_dirty(id),
                Turn::NoRoom => {
                    self.mark_dirty(id);
                    without_room += 1;
                }
            }
            self.settle(id);
            if without_room >= self.dirty.len().clamp(1, FLOWS_WITHOUT_ROOM) {
                done = true;
                break;
            }
        }
        self.post_mail(now, device);
        for (layer, context) in self.left.drain(..) {
            match layer {
                Layer::Tls => device.tls().into_iter().for_each(|tls| tls.remove(context)),
                Layer::NvmeTcp => {} // no device has a face for it
            }
        }
        device.flush(now);
        done
    }

    /// Whether something waits to be handed to the device.
    pub fn has_work(&self) -> bool {
        !self.dirty.is_empty() || self.network.has_mail()
    }

    /// When [`poll`](Self::poll) wants to be called, if nothing arrives before.
    pub fn next_event(&self) -> Option<Instant> {
        earliest(self.timers.next(), self.network.next_event())
    }

    /// The next connection with news, and what has become possible on it.
    pub fn next_ready(&mut self) -> Option<(ConnectionId, Readiness)> {
        while let Some(id) = self.noted.pop_front() {
            if let Some(connection) = self.flows.get_mut(id)
                && core::mem::take(&mut connection.noted)
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

    /// The flow of a connection.
    ///
    /// # Panics
    /// This and all calls that take a connection panic if there is none by this name.
    pub fn flow(&self, id: ConnectionId) -> FlowKey {
        self.connection(id).flow()
    }

    /// The state of a connection.
    pub fn state(&self, id: ConnectionId) -> State {
        self.connection(id).state()
    }

    /// Why a connection ended, if it did before its time.
    pub fn error(&self, id: ConnectionId) -> Option<ConnectionError> {
        self.connection(id).error()
    }

    /// Figures of a connection.
    pub fn stats(&self, id: ConnectionId) -> TcpStats {
        self.connection(id).stats(&self.config.tcp)
    }

    /// How many bytes left so far, and how many of them again. A FIN counts as a byte.
    pub fn sent_bytes(&self, id: ConnectionId) -> SentBytes {
        self.connection(id).sent_bytes()
    }

    /// The sequence number of the first byte this side sends or sent.
    pub fn first_seq(&self, id: ConnectionId) -> Seq {
        self.connection(id).first_seq()
    }

    /// Queues `data` and returns the sequence number of its first byte. After an error or a close they go nowhere.
    pub fn send(&mut self, id: ConnectionId, data: Bytes, tag: TxTag) -> Seq {
        self.mark_dirty(id);
        self.connection_mut(id).queue(data, tag)
    }

    /// Queues a copy of `data`, to go out as it is.
    pub fn send_copy(&mut self, id: ConnectionId, data: &[u8]) {
        self.mark_dirty(id);
        self.connection_mut(id).queue_copy(data);
    }

    /// What is queued now is to leave, even in short segments.
    pub fn push(&mut self, id: ConnectionId) {
        self.mark_dirty(id);
        self.connection_mut(id).push();
    }

    /// Whether short segments leave at once from now on (TCP_NODELAY).
    pub fn set_nodelay(&mut self, id: ConnectionId, nodelay: bool) {
        self.mark_dirty(id);
        self.connection_mut(id).set_nodelay(nodelay);
    }

    /// How many bytes the send queue wants.
    pub fn room(&self, id: ConnectionId) -> usize {
        self.connection(id).room(&self.config.tcp)
    }

    /// Whether data may still be queued.
    pub fn may_send(&self, id: ConnectionId) -> bool {
        self.connection(id).may_queue()
    }

    /// Whether the first `bytes` bytes this side queued are acknowledged. If not, the connection will be
    /// [ready](Self::next_ready) when they are.
    pub fn poll_acked(&mut self, id: ConnectionId, bytes: u64) -> bool {
        self.connection_mut(id).poll_acked(bytes)
    }

    /// Keeps `sealer` for units of `layer` that are queued from now on.
    pub fn install(&mut self, id: ConnectionId, layer: Layer, sealer: Box<dyn Sealer>) {
        self.connection_mut(id).install(layer, sealer);
    }

    /// Gives `context`, of `layer`, back to the device once everything queued so far is acknowledged or given up.
    pub fn leave(&mut self, id: ConnectionId, layer: Layer, context: Handle) {
        self.connection_mut(id).leave(layer, context);
        self.mark_dirty(id);
    }

    /// Sequence number of the next byte that [`take`](Self::take) will give, arrived or not; `None` while the connection
    /// is being opened.
    pub fn next_taken(&self, id: ConnectionId) -> Option<Seq> {
        self.connection(id).next_taken()
    }

    /// The next received range in order.
    pub fn take(&mut self, id: ConnectionId) -> Option<RxSegment> {
        self.connection_mut(id).take()
    }

    /// Whether the peer has closed its side and everything before was taken.
    pub fn at_end(&self, id: ConnectionId) -> bool {
        self.connection(id).at_end()
    }

    /// `bytes` of what was taken are done with. True if the peer is to be told of the window at once.
    pub fn consume(&mut self, id: ConnectionId, bytes: usize) -> bool {
        let update = self.connection_mut(id).consume(bytes);
        if update {
            self.mark_dirty(id);
        }
        update
    }

    /// Closes this side after everything queued.
    pub fn finish(&mut self, id: ConnectionId) {
        self.connection_mut(id).finish();
        self.mark_dirty(id);
        self.settle(id);
    }

    /// Ends a connection at once, with a reset.
    pub fn abort(&mut self, id: ConnectionId) {
        self.connection_mut(id).abort();
        self.mark_dirty(id);
        self.settle(id);
    }

    /// The application is through with a connection: what it queued is still delivered, and then the name is
    /// no longer good.
    pub fn detach(&mut self, now: Instant, id: ConnectionId) {
        self.with(now, id, |connection, env| connection.detach(env));
        self.mark_dirty(id);
        self.settle(id);
    }

    /// From now on the connection gets the device's events.
    pub fn mark_controlled(&mut self, id: ConnectionId) {
        self.connection_mut(id).controlled = true;
        self.controlled.insert(id);
    }

    /// The next device event for a connection.
    pub fn device_event(&mut self, id: ConnectionId) -> Option<DeviceEvent> {
        self.connection_mut(id).take_device_event()
    }

    fn on_device_event(&mut self, event: DeviceEvent) {
        match event.flow() {
            Some(flow) => {
                if let Some(id) = self.flows.find(flow) {
                    self.note_device_event(id, event);
                }
            }
            None => {
                // Only a reset concerns all; it costs every flow a context anyway.
                let controlled: SmallVec<[ConnectionId; 8]> = self.controlled.iter().copied().collect();
                for id in controlled {
                    self.note_device_event(id, event);
                }
            }
        }
    }

    fn note_device_event(&mut self, id: ConnectionId, event: DeviceEvent) {
        if let Some(connection) = self.flows.get_mut(id) {
            connection.note_device_event(event);
            self.settle(id);
        }
    }

    /// The connection that a segment is for. One in TIME-WAIT that nobody holds gives way to a new SYN.
    fn find_for(&mut self, now: Instant, flow: &FlowKey, segment: &Segment) -> Option<ConnectionId> {
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

    fn on_syn(&mut self, now: Instant, flow: FlowKey, segment: &Segment) {
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
    fn accept_queue_is_full(&self, id: ConnectionId, segment: &Segment) -> bool {
        let connection = self.connection(id);
        connection.state() == State::SynReceived
            && segment.ack.is_some()
            && !segment.flags.rst
            && connection
                .listener
                .and_then(|port| self.listeners.get(&port))
                .is_some_and(|listener| listener.accepted.len() >= listener.backlog)
    }

    fn answer_stranger(
        &mut self,
        now: Instant,
        flow: &FlowKey,
        segment: &Segment,
        payload: usize,
        device: &mut dyn NetDevice,
    ) {
        if let Some(reset) = reset_for(segment, payload)
            && self.resets.allow(now)
        {
            self.send_stray(now, flow, &reset, device);
        }
    }

    fn on_datagram(&mut self, now: Instant, port: u16, from: SocketAddr, payload: Range<usize>, mut frame: BytesMut) {
        if !self.sockets.is_bound(port) {
            self.counters.udp_no_ports += 1;
            frame.truncate(payload.end);
            self.network.refuse_datagram(now, &frame, &mut self.counters);
            return;
        }
        frame.truncate(payload.end);
        frame.advance(payload.start);
        if self.sockets.deliver(port, Datagram { from, data: frame }) {
            self.counters.udp_in_datagrams += 1;
        } else {
            self.counters.udp_receive_drops += 1;
        }
    }

    /// Somebody says that a segment did not get through. Only who has seen it can know its sequence number.
    fn on_undelivered(&mut self, now: Instant, undelivered: &Undelivered) {
        let Undelivered { flow, seq, length, why } = *undelivered;
        let id = self.flows.find(&flow).filter(|id| self.connection(*id).is_under_way(seq));
        let Some(id) = id else {
            self.counters.stray_icmp_errors += 1;
            return;
        };
        match why {
            Why::TooLarge { mtu } => {
                let Some(mtu) = self.network.narrow_path(now, flow.remote.ip(), length, mtu) else {
                    self.counters.stray_icmp_errors += 1;
                    return;
                };
                self.counters.paths_narrowed += 1;
                self.connection_mut(id).on_path_narrowed(mtu);
            }
            Why::Refused => {
                self.with(now, id, |connection, env| connection.on_undeliverable(env, ConnectionError::Refused));
            }
            Why::Unreachable => {
                self.with(now, id, |connection, env| connection.on_undeliverable(env, ConnectionError::Unreachable));
            }
        }
        self.mark_dirty(id);
        self.settle(id);
    }

    /// Hands the packets that belong to no connection, or had to wait for an address, to `device`, as far as it
    /// has room; it wakes the shell when there is room again.
    fn post_mail(&mut self, now: Instant, device: &mut dyn NetDevice) {
        // Asked for now: addresses that packets of this turn need.
        if self.network.next_event().is_some_and(|at| at <= now) {
            self.handle_timeouts(now);
        }
        while self.network.has_mail() {
            if device.room(&self.nobodys_flow()) == 0 {
                break;
            }
            let Some(packet) = self.network.next_mail() else { break };
            if device.transmit(now, packet, &NoRecords) != offload_api::Sent::Posted {
                self.counters.device_drops += 1;
            }
        }
        if self.network.takes_datagrams() {
            self.sockets.unblock();
        }
    }

    /// What packets that belong to no flow are sent under.
    fn nobodys_flow(&self) -> FlowKey {
        let nobody = SocketAddr::V4(SocketAddrV4::new(self.network.address(), 0));
        FlowKey { protocol: Protocol::Udp, local: nobody, remote: nobody }
    }

    /// Sends a reset that belongs to no connection.
    fn send_stray(&mut self, now: Instant, flow: &FlowKey, reset: &Segment, device: &mut dyn NetDevice) {
        if device.room(flow) == 0 {
            return;
        }
        let caps = device.path(flow);
        let outgoing =
            Outgoing { flow, segment: reset, fragments: SmallVec::new(), context: None, ident: 0, mss: usize::MAX };
        if let Some(packet) = self.network.packet(now, outgoing, &caps, &mut self.counters) {
            self.counters.out_resets += 1;
            if device.transmit(now, packet, &NoRecords) != offload_api::Sent::Posted {
                self.counters.device_drops += 1;
            }
        }
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
            if let SocketAddr::V4(end) = end {
                hasher.write(&end.ip().octets());
            }
            hasher.write(&end.port().to_be_bytes());
        }
        hasher.finish()
    }

    fn flow_from(&self, port: u16, remote: SocketAddr) -> FlowKey {
        FlowKey::tcp(SocketAddr::V4(SocketAddrV4::new(self.network.address(), port)), remote)
    }

    /// A flow to `remote` from a random port (RFC 6056).
    fn free_flow(&mut self, remote: SocketAddr) -> Option<FlowKey> {
        for _ in 0..PORTS_TRIED {
            let port = random_port(&mut self.ports);
            let flow = self.flow_from(port, remote);
            if self.flows.find(&flow).is_none() && !self.listeners.contains_key(&port) {
                return Some(flow);
            }
        }
        None
    }

    /// Calls `f` with a connection and what it needs.
    fn with<R>(&mut self, now: Instant, id: ConnectionId, f: impl FnOnce(&mut Connection, &mut Env<'_>) -> R) -> R {
        let mut env = Env {
            now,
            config: &self.config.tcp,
            counters: &mut self.counters,
            network: &mut self.network,
            challenges: &mut self.challenges,
        };
        let connection = self.flows.get_mut(id).expect("the caller found the connection");
        f(connection, &mut env)
    }

    fn mark_dirty(&mut self, id: ConnectionId) {
        if let Some(connection) = self.flows.get_mut(id)
            && !connection.dirty
        {
            connection.dirty = true;
            self.dirty.push_back(id);
        }
    }

    /// Brings timers, listeners and lists up to date with a connection, and removes it if nobody needs it.
    fn settle(&mut self, id: ConnectionId) {
        let Some(connection) = self.flows.get_mut(id) else { return };
        if let Some(port) = connection.listener
            && connection.state() != State::SynReceived
        {
            connection.listener = None;
            let open = connection.state() != State::Closed;
            match self.listeners.get_mut(&port) {
                Some(listener) => {
                    listener.half_open = listener.half_open.saturating_sub(1);
                    if open {
                        self.counters.passive_opens += 1;
                        listener.accepted.push_back(id);
                        self.acceptable.push_back(port);
                    } else {
                        connection.orphan();
                    }
                }
                None => {
                    connection.abort();
                    connection.orphan();
                    if !core::mem::replace(&mut connection.dirty, true) {
                        self.dirty.push_back(id);
                    }
                }
            }
        }
        if connection.readiness.any() && !core::mem::replace(&mut connection.noted, true) {
            self.noted.push_back(id);
        }
        connection.take_left(&mut self.left);
        if connection.is_done() {
            self.timers.clear(id, &mut connection.timer);
            if connection.controlled {
                self.controlled.remove(&id);
            }
            self.flows.remove(id);
        } else {
            let deadline = connection.next_deadline();
            self.timers.set(id, &mut connection.timer, deadline);
        }
    }

    fn connection(&self, id: ConnectionId) -> &Connection {
        self.flows.get(id).expect("a connection's name is good until it is detached")
    }

    fn connection_mut(&mut self, id: ConnectionId) -> &mut Connection {
        self.flows.get_mut(id).expect("a connection's name is good until it is detached")
    }
}

fn random_port(ports: &mut Rng) -> u16 {
    FIRST_LOCAL_PORT + ports.below(u64::from(LAST_LOCAL_PORT - FIRST_LOCAL_PORT) + 1) as u16
}

/// Packets received before the timers and the senders have their turn.
const PACKETS_A_POLL: usize = 256;
/// Turns of connections in one call.
const TURNS_A_TRANSMIT: usize = 128;
/// When so many connections in a row find no room in the device, the rest need not ask.
const FLOWS_WITHOUT_ROOM: usize = 8;
/// Challenge ACKs, and likewise resets to strangers, in a second (RFC 5961 7; Linux's default).
const ANSWERS_A_SECOND: u32 = 1000;
/// Linux's ip_local_port_range.
const FIRST_LOCAL_PORT: u16 = 32_768;
const LAST_LOCAL_PORT: u16 = 60_999;
/// Random ports tried before giving up.
const PORTS_TRIED: usize = 256;
