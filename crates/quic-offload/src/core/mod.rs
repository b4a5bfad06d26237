//! An endpoint without sockets, clocks and tasks: datagrams and the time in, datagrams and the next deadline out.
//!
//! ```text
//!  receive --> noq's Endpoint --> Connection --> events --> wakers of those who wait
//!  transmit <-- sealed, or an ask <-- plain packets <-- Connection     (transmit)
//!  device <-- contexts, keys, connection IDs <-- what was opened       (offload)
//! ```
//!
//! Invariant: a connection that may have work is on the `ready` list, so that no call scans all connections.

mod connection;
mod frames;
mod offload;
mod pieces;
mod sift;
mod silence;
mod transmit;
mod unordered_reader;
mod waiters;

use crate::config::{ClientTls, Config, ServerTls};
use crate::crypto::ack_delay::{AckDelayState, WatchedControllerFactory};
use crate::crypto::keyring::{DeviceOpened, Keyring};
use crate::crypto::session::{ClientHandshake, ServerHandshake};
use crate::crypto::tokens::{ResetKey, TokenClock, TokenKey};
use crate::error::{Closed, ConnectError};
pub(crate) use connection::{Conn, ConnectionRecord, ConnectionStage};
use core::net::SocketAddr;
use core::task::Waker;
use noq_proto::{
    ConnectionEvent, ConnectionHandle, ConnectionId, ConnectionIdGenerator, DatagramEvent, EndpointConfig, FourTuple,
    Incoming, Transmit, TransportConfig, VarInt,
};
use offload_api::{Datagram, Handle, QuicVerdict};
use offload_base::{HasWakeList, Instant, RandomSource, Rng, WaitList, WakeList};
pub(crate) use silence::{MAX_ACK_DELAY, probe_timeout};
use slab::Slab;
use std::collections::{BTreeSet, HashMap, VecDeque};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Mutex, PoisonError};
#[cfg(test)]
use transmit::MAX_WAITING;
use transmit::OutgoingDatagrams;
pub(crate) use unordered_reader::{MAX_UNORDERED, ReadResult};
pub(crate) use waiters::{WaitFor, Waiter, WakeReason};

/// The state of an endpoint.
pub(crate) struct EndpointCore {
    config: Config,
    noq: noq_proto::Endpoint,
    transport: Arc<TransportConfig>,
    server: Option<(ServerTls, noq_proto::ServerConfig)>,
    client_cids: Arc<Mutex<Rng>>,
    clock: Arc<TokenClock>,
    /// The state machine's time of `Instant::ZERO`. The state machine uses only differences of times.
    epoch: std::time::Instant,
    /// Indexed by the state machine's connection handles.
    connections: Slab<Conn>,
    deadlines: BTreeSet<(Instant, usize)>,
    ready: VecDeque<usize>,
    outgoing: OutgoingDatagrams,
    offload: offload::NicQuicPort,
    /// Contexts of ended connections, to be given back.
    offload_leaving: Vec<Handle>,
    /// Connections by their current and former contexts.
    by_context: HashMap<Handle, usize>,
    /// Established connections that the application has not accepted yet.
    pub(crate) arrived: VecDeque<usize>,
    /// Clients that wait for the application's decision. The state machine limits their number.
    pub(crate) undecided: VecDeque<Incoming>,
    pub(crate) waiting: EndpointTasks,
    /// Tasks to wake when the core is unlocked.
    woken: WakeList,
    /// Number of connections with a finished handshake.
    established: usize,
    pub(crate) counters: Counters,
    pub(crate) closing: bool,
    /// Whether the driver is gone, so that no connection makes progress.
    pub(crate) dead: bool,
    /// The reason, if the socket failed.
    pub(crate) failure: Option<Closed>,
}

/// A decision about a client: [`EndpointCore::accept`], [`EndpointCore::refuse`] or [`EndpointCore::retry`].
pub(crate) type ClientDecision = fn(&mut EndpointCore, Instant, Incoming);

/// Tasks that wait for an endpoint's events.
#[derive(Debug, Default)]
pub(crate) struct EndpointTasks {
    pub(crate) driver: Option<Waker>,
    pub(crate) accept: WaitList,
    pub(crate) incoming: WaitList,
    pub(crate) drained: WaitList,
}

offload_base::counters! {
    /// Counters of an endpoint.
    ///
    /// ```
    /// use quic_offload::Counters;
    ///
    /// assert_eq!(Counters::default().sealed_by_device, 0);
    /// ```
    #[non_exhaustive]
    pub struct Counters {
        /// 1-RTT packets handed to a device for sealing.
        pub sealed_by_device: "QuicSealedDevice",
        /// 1-RTT packets sealed by software.
        pub sealed_by_software: "QuicSealedSw",
        /// 1-RTT packets opened by a device.
        pub opened_by_device: "QuicOpenedDevice",
        /// 1-RTT packets opened by software.
        pub opened_by_software: "QuicOpenedSw",
        /// Packets that a device refused to seal and software sealed instead.
        pub refused_by_device: "QuicRefusedDevice",
        /// Packets lost on the way into a device.
        pub lost_in_device: "QuicLostDevice",
        /// Packets dropped here because the packet could not be sealed, the socket refused it, or the state machine
        /// panicked over a datagram of no connection.
        pub dropped: "QuicDropped",
        /// Contexts granted by a device.
        pub contexts: "QuicContexts",
        /// Contexts refused by a device.
        pub contexts_refused: "QuicContextsRefused",
        /// Connection IDs installed in a device.
        pub cids: "QuicCidsDevice",
        /// Connection IDs removed from a device because of the limit.
        pub cids_evicted: "QuicCidsEvicted",
        /// Keys installed in a device after the first.
        pub keys: "QuicKeysDevice",
        /// Resets of the device.
        pub resets: "QuicDeviceResets",
        /// Connections that ended because a key had sealed its maximum of packets and could not be updated.
        pub keys_used_up: "QuicKeysUsedUp",
        /// Paths abandoned as silent.
        pub silent_paths: "QuicPathsSilent",
        /// Paths opened by a client after the peer abandoned its last one.
        pub reopened_paths: "QuicPathsReopened",
        /// Connections that ended because the state machine panicked.
        pub failed: "QuicFailed",
        /// Connections established.
        pub connections: "QuicConnections",
        /// Clients asked to prove their address.
        pub retries: "QuicRetries",
        /// Clients refused.
        pub refused: "QuicRefused",
        /// Client connections that missed the deadline of their handshake.
        pub handshakes_timed_out: "QuicHandshakesTimedOut",
    }
}

impl HasWakeList for EndpointCore {
    fn wake_list(&mut self) -> &mut WakeList {
        &mut self.woken
    }
}

impl EndpointCore {
    pub(crate) fn new(config: Config, server: Option<ServerTls>, random: &RandomSource, port: u16) -> EndpointCore {
        // RFC 9000 17.2: a connection ID has at most 20 bytes. A device needs at least one to find the connection.
        let config = Config { cid_bytes: config.cid_bytes.clamp(1, 20), ..config };
        // Without a configured key, resets work only within this process.
        let reset_key = config.reset_key.clone().unwrap_or_else(|| ResetKey::random(random));
        let mut endpoint = EndpointConfig::new(Arc::new(reset_key.into_key()));
        let mut seed = [0; 32];
        random.stream("state machine").fill(&mut seed);
        let bytes = usize::from(config.cid_bytes);
        let cids = Arc::new(Mutex::new(random.stream("connection IDs")));
        let generator = cids.clone();
        endpoint
            .cid_generator(Arc::new(move || Box::new(RandomCids { random: generator.clone(), bytes })))
            .grease_quic_bit(config.grease)
            // The state machine's default list includes drafts, for which no keys exist here.
            .supported_versions(vec![VERSION])
            .rng_seed(Some(seed));
        // RFC 9000 18.2: 1200 to 65527.
        let _ = endpoint.max_udp_payload_size(config.udp_payload.max(1472));
        let clock = Arc::new(TokenClock::default());
        // The only reading of a real clock. Later times are derived from this reading and the driver's clock.
        let epoch = std::time::Instant::now();
        #[allow(unused_mut, reason = "without the feature qlog")]
        let mut transport = config.transport();
        #[cfg(feature = "qlog")]
        if let Some(qlog) = &config.qlog {
            qlog.apply(epoch, &mut transport);
        }
        let transport = Arc::new(transport);
        let server = server.map(|tls| {
            let keyring = Arc::new(Keyring::new(bytes, false, config.limits));
            let crypto = Arc::new(ServerHandshake { tls: tls.tls.clone(), initial: tls.initial, keyring });
            let mut noq = noq_proto::ServerConfig::new(crypto, Arc::new(TokenKey::new(random)));
            noq.transport_config(transport.clone()).time_source(clock.clone());
            noq.max_incoming(config.max_handshakes);
            (tls, noq)
        });
        let noq_server = server.as_ref().map(|(_, noq)| Arc::new(noq.clone()));
        EndpointCore {
            noq: noq_proto::Endpoint::new(Arc::new(endpoint), noq_server, true),
            transport,
            server,
            client_cids: cids,
            clock,
            epoch,
            connections: Slab::new(),
            deadlines: BTreeSet::new(),
            ready: VecDeque::new(),
            outgoing: OutgoingDatagrams::default(),
            offload: offload::NicQuicPort::new(port, config.cid_bytes),
            offload_leaving: Vec::new(),
            by_context: HashMap::new(),
            arrived: VecDeque::new(),
            undecided: VecDeque::new(),
            waiting: EndpointTasks::default(),
            woken: WakeList::default(),
            established: 0,
            counters: Counters::default(),
            closing: false,
            dead: false,
            failure: None,
            config,
        }
    }

    /// Starts a connection.
    pub(crate) fn connect(
        &mut self,
        now: Instant,
        tls: ClientTls,
        to: SocketAddr,
        name: &str,
    ) -> Result<usize, ConnectError> {
        if let Some(failure) = &self.failure {
            return Err(ConnectError::Refused(failure.to_string()));
        }
        if self.closing || self.dead {
            return Err(ConnectError::Endpoint);
        }
        if self.connections.len() >= self.config.max_connections {
            return Err(ConnectError::TooMany(self.connections.len()));
        }
        let keyring = self.keyring();
        let ClientTls { tls, initial } = tls;
        let mut client =
            noq_proto::ClientConfig::new(Arc::new(ClientHandshake { tls, initial, keyring: keyring.clone() }));
        let random = self.client_cids.clone();
        let (transport, asked) = self.transport();
        client
            .transport_config(transport)
            // RFC 9000 7.2: unpredictable, and at least 8 bytes.
            .initial_dst_cid_provider(Arc::new(move || {
                RandomCids { random: random.clone(), bytes: 20 }.generate_cid()
            }));
        let (handle, noq) = self
            .noq
            .connect(self.noq_time(now), client, to, name)
            .map_err(|error| ConnectError::Refused(error.to_string()))?;
        Ok(self.take_in(handle, noq, keyring, asked, None))
    }

    /// Processes a datagram, or several joined by the device.
    pub(crate) fn receive(&mut self, now: Instant, datagram: Datagram) {
        self.clock.set(now);
        let opener = match QuicVerdict::from_marks(&datagram.meta.marks) {
            QuicVerdict::Opened { context, first, generation, .. } => {
                self.by_context.get(&context).map(|at| (*at, first, generation))
            }
            QuicVerdict::NotOpened | QuicVerdict::Failed { .. } => None,
        };
        // Joined packets usually have the same connection ID, so its path is looked up once.
        let mut last = None;
        for (datagram, place) in datagram.split().zip(0..) {
            let opened = opener.and_then(|(at, first, generation)| {
                let path = self.path_of(at, &datagram.data, &mut last)?;
                Some((at, DeviceOpened { path, number: first + place, generation }))
            });
            self.receive_one(now, datagram, opened);
        }
    }

    /// Returns the path of a packet that a device opened. `last` caches the latest lookup.
    fn path_of(&self, at: usize, data: &[u8], last: &mut Option<([u8; 20], u32)>) -> Option<u32> {
        let cid = data.get(1..1 + usize::from(self.config.cid_bytes))?;
        if let Some((known, path)) = last
            && known[..cid.len()] == *cid
        {
            return Some(*path);
        }
        let path = self.connections.get(at)?.offload.path_of(cid)?;
        let (known, _) = last.insert(([0; 20], path));
        known[..cid.len()].copy_from_slice(cid);
        Some(path)
    }

    fn receive_one(&mut self, now: Instant, datagram: Datagram, opened: Option<(usize, DeviceOpened)>) {
        let Datagram { from, to, ecn, data, .. } = datagram;
        let (time, ecn) = (self.noq_time(now), noq_proto::EcnCodepoint::from_bits(ecn.bits()));
        let local = Some(to.ip()).filter(|ip| !ip.is_unspecified());
        let mut of = None;
        // A panic of the state machine must end only the connection of this datagram.
        let done = catch_unwind(AssertUnwindSafe(|| {
            let mut answer = Vec::new();
            match self.noq.handle(time, FourTuple::new(from, local), ecn, data, &mut answer) {
                Some(DatagramEvent::ConnectionEvent(handle, event)) => {
                    of = Some(handle.0);
                    // A verdict is valid only for the connection whose context opened the packet.
                    let opened = opened.filter(|(at, _)| *at == handle.0).map(|(_, opened)| opened);
                    self.hand_over(handle.0, now, event, opened);
                }
                Some(DatagramEvent::NewConnection(incoming)) => self.admit(now, incoming),
                Some(DatagramEvent::Response(transmit)) => self.answer(&transmit, answer),
                None => {}
            }
        }));
        match of {
            _ if done.is_ok() => {}
            Some(at) => self.note_broken(at),
            None => self.note_unadmitted(),
        }
    }

    /// Handles a panic of the state machine over a datagram of no connection.
    fn note_unadmitted(&mut self) {
        self.counters.dropped += 1;
        // The state machine may have allocated a connection before it panicked.
        if self.noq.open_connections() > self.connections.len() {
            self.forget_by_noq(self.connections.vacant_key());
        }
    }

    /// Passes a datagram to a connection.
    fn hand_over(&mut self, at: usize, now: Instant, event: ConnectionEvent, opened: Option<DeviceOpened>) {
        let time = self.noq_time(now);
        let Some(conn) = self.connections.get_mut(at).filter(|conn| !conn.is_broken) else { return };
        // The verdict is for this packet only, so it is removed even if the state machine does not decrypt the packet.
        conn.keyring.lock().verdict = opened;
        conn.noq.handle_event(event);
        conn.keyring.lock().verdict = None;
        let (is_read, shakes_hands) = (conn.is_reading(), conn.handshake_until.is_some());
        // No event reports that the peer has provided connection IDs for a path.
        conn.waiting.wake(WakeReason::Path, &mut self.woken);
        self.note_ready(at);
        // Whether the next client is accepted may depend on the state of this handshake.
        if is_read || shakes_hands {
            self.take_events(at, now);
        }
        if is_read {
            self.read_new_frames(at, time);
        }
    }

    /// Reads the streams with new frames, and closes the connection if the peer caused too many gaps.
    fn read_new_frames(&mut self, at: usize, time: std::time::Instant) {
        let Some(conn) = self.connections.get_mut(at) else { return };
        let Err(why) = conn.read_new_frames() else { return };
        if conn.closed.is_none() {
            conn.end(Closed::Protocol(why.clone()), &mut self.woken);
            conn.noq.close(time, INTERNAL_ERROR.into(), why.into());
        }
    }

    /// Answers a packet without a connection, if there is room. The queue is bounded, because any host can cause
    /// answers.
    fn answer(&mut self, transmit: &Transmit, data: Vec<u8>) {
        match self.outgoing.has_room() {
            true => self.outgoing.put_plain(transmit, data),
            false => self.counters.dropped += 1,
        }
    }

    /// Accepts, validates or refuses a client, or leaves the decision to the application.
    fn admit(&mut self, now: Instant, incoming: Incoming) {
        // The application decides about every client, also those over the limits.
        if self.config.decides && !self.closing {
            self.undecided.push_back(incoming);
            self.waiting.incoming.wake(&mut self.woken);
        } else if !incoming.remote_address_validated() && self.half_open() >= self.config.retry_above && !self.is_full()
        {
            self.retry(now, incoming);
        } else {
            self.accept(now, incoming);
        }
    }

    /// Applies the application's decision about a client.
    pub(crate) fn decide(&mut self, now: Instant, incoming: Incoming, decision: ClientDecision) {
        if catch_unwind(AssertUnwindSafe(|| decision(self, now, incoming))).is_err() {
            self.note_unadmitted();
        }
        self.wake_driver();
    }

    fn half_open(&self) -> usize {
        self.connections.len() - self.established
    }

    /// Tests whether a client must be refused. Half-open connections have a limit of their own, so that unfinished
    /// handshakes do not block established clients.
    fn is_full(&self) -> bool {
        let Config { max_connections, max_handshakes, .. } = self.config;
        self.established >= max_connections || self.half_open() >= max_handshakes || self.closing || self.dead
    }

    /// Refuses a client.
    pub(crate) fn refuse(&mut self, _: Instant, incoming: Incoming) {
        self.counters.refused += 1;
        let mut answer = Vec::new();
        let transmit = self.noq.refuse(incoming, &mut answer);
        self.answer(&transmit, answer);
    }

    /// Asks a client to prove its address. A client that presents a token is accepted.
    pub(crate) fn retry(&mut self, now: Instant, incoming: Incoming) {
        if !incoming.may_retry() {
            return self.accept(now, incoming);
        }
        self.counters.retries += 1;
        let mut answer = Vec::new();
        if let Ok(transmit) = self.noq.retry(incoming, &mut answer) {
            self.answer(&transmit, answer);
        }
    }

    /// Starts a client's handshake, if there is room.
    pub(crate) fn accept(&mut self, now: Instant, incoming: Incoming) {
        let full = self.is_full();
        let Some((tls, noq)) = self.server.as_ref().filter(|_| !full) else {
            return self.refuse(now, incoming);
        };
        let mut answer = Vec::new();
        let keyring = self.keyring();
        // Each connection has its own keyring, so the configuration is copied per connection.
        let crypto = Arc::new(ServerHandshake { tls: tls.tls.clone(), initial: tls.initial, keyring: keyring.clone() });
        let mut noq = noq.clone();
        noq.crypto = crypto;
        let (transport, asked) = self.transport();
        noq.transport_config(transport);
        match self.noq.accept(incoming, self.noq_time(now), &mut answer, Some(Arc::new(noq))) {
            Ok((handle, noq)) => {
                self.take_in(handle, noq, keyring, asked, Some(now + self.config.handshake));
            }
            Err(error) => {
                self.counters.refused += 1;
                if let Some(transmit) = error.response {
                    self.answer(&transmit, answer);
                }
            }
        }
    }

    fn take_in(
        &mut self,
        handle: ConnectionHandle,
        noq: noq_proto::Connection,
        keyring: Arc<Keyring>,
        asked: Arc<AckDelayState>,
        handshake_until: Option<Instant>,
    ) -> usize {
        let conn = Conn::new(noq, keyring, asked, handshake_until, &self.config);
        // Both slabs are used in the same way; the state machine allocated its entry first.
        let at = self.connections.insert(conn);
        debug_assert_eq!(at, handle.0, "two slabs that are used alike give the same numbers");
        self.note_ready(at);
        at
    }

    /// Processes connections with expired deadlines.
    pub(crate) fn expire(&mut self, now: Instant) {
        self.clock.set(now);
        while let Some((at, place)) = self.deadlines.first().copied().filter(|(at, _)| *at <= now) {
            self.deadlines.remove(&(at, place));
            let time = self.noq_time(now);
            if let Some(conn) = self.connections.get_mut(place) {
                conn.deadline = None;
                self.note_ready(place);
                self.catch_panic(place, |core| core.connections[place].noq.handle_timeout(time));
            }
        }
    }

    /// Returns the earliest deadline.
    pub(crate) fn next_event(&self) -> Option<Instant> {
        self.deadlines.first().map(|(at, _)| *at)
    }

    /// Processes events and packets of ready connections, while there is room. Returns false if there was no work.
    pub(crate) fn work(&mut self, now: Instant) -> bool {
        let mut any = false;
        for _ in 0..self.ready.len() {
            // Connections that are not reached stay on the list for the next turn.
            if !self.outgoing.has_room() {
                break;
            }
            let Some(at) = self.ready.pop_front() else { break };
            let Some(conn) = self.connections.get_mut(at) else { continue };
            conn.is_ready = false;
            any = true;
            let done = self.catch_panic(at, |core| {
                core.take_events(at, now);
                let more = core.take_packets(at, now);
                core.after_work(at, now, more);
            });
            if done.is_none() {
                self.end_after_panic(at);
            }
        }
        any
    }

    /// Marks a connection as broken after a panic of its state machine.
    fn note_broken(&mut self, at: usize) {
        if let Some(conn) = self.connections.get_mut(at) {
            conn.is_broken = true;
            self.touch(at);
        }
    }

    /// Calls the state machine of a connection. If it panics, only this connection ends. Returns `None` if it panicked,
    /// now or before.
    fn catch_panic<R>(&mut self, at: usize, f: impl FnOnce(&mut EndpointCore) -> R) -> Option<R> {
        if self.connections.get(at).is_some_and(|conn| conn.is_broken) {
            return None;
        }
        let done = catch_unwind(AssertUnwindSafe(|| f(self))).ok();
        if done.is_none() {
            self.note_broken(at);
        }
        // A nested call may have panicked.
        done.filter(|_| self.connections.get(at).is_none_or(|conn| !conn.is_broken))
    }

    /// Tests whether a connection waits for its turn.
    pub(crate) fn has_ready(&self) -> bool {
        !self.ready.is_empty()
    }

    fn after_work(&mut self, at: usize, now: Instant, more: bool) {
        let Some(conn) = self.connections.get_mut(at) else { return };
        // The state machine waits three PTO after a close before a connection is drained.
        if conn.noq.is_drained() {
            return self.forget(at);
        }
        if conn.handshake_until.is_some_and(|until| until <= now) {
            self.counters.handshakes_timed_out += 1;
            return self.discard(at, Closed::TimedOut);
        }
        let time = self.epoch + (now - Instant::ZERO);
        let mut more = more;
        let ack_delay = conn.ack_delay();
        for path in conn.watches.look(now, &mut conn.noq, &conn.paths, ack_delay) {
            if conn.noq.close_path(time, path, SILENT.into()).is_ok() {
                self.counters.silent_paths += 1;
                more = true;
            }
        }
        let noq = conn.noq.poll_timeout().map(|time| Instant::ZERO + time.saturating_duration_since(self.epoch));
        // The deadlines of this crate's own timers are merged with the state machine's.
        let ours = [conn.offload.next_event(now), conn.watches.next_event(), conn.handshake_until];
        let deadline = ours.into_iter().fold(noq, offload_base::time::earliest);
        // Below one nanosecond, the state machine's pacer asks for a deadline of now, which would repeat for ever. Due
        // work was done above.
        let deadline = deadline.map(|at| if at > now { at } else { now + MIN_WAIT });
        if conn.deadline != deadline {
            if let Some(before) = conn.deadline.take() {
                self.deadlines.remove(&(before, at));
            }
            if let Some(deadline) = deadline {
                self.deadlines.insert((deadline, at));
            }
            conn.deadline = deadline;
        }
        // The flag keeps a connection from being listed twice.
        if conn.offload.is_due(now) && !core::mem::replace(&mut conn.offload.is_listed, true) {
            self.offload.due.push_back(at);
        }
        if more {
            self.note_ready(at);
        }
    }

    /// Puts a connection on the ready list.
    pub(crate) fn note_ready(&mut self, at: usize) {
        if let Some(conn) = self.connections.get_mut(at)
            && !core::mem::replace(&mut conn.is_ready, true)
        {
            self.ready.push_back(at);
        }
    }

    /// Processes a change by the application.
    pub(crate) fn touch(&mut self, at: usize) {
        self.note_ready(at);
        self.wake_driver();
    }

    pub(crate) fn wake_driver(&mut self) {
        self.woken.add(self.waiting.driver.take());
    }

    /// Returns a connection, if it still exists.
    pub(crate) fn get(&mut self, at: usize, id: u64) -> Option<&mut Conn> {
        self.connections.get_mut(at).filter(|conn| conn.id == id)
    }

    /// Returns a connection's number and its record.
    pub(crate) fn number_and_record(&self, at: usize) -> Option<(u64, Arc<ConnectionRecord>)> {
        self.connections.get(at).map(|conn| (conn.id, conn.record.clone()))
    }

    /// Converts a time for the state machine.
    pub(crate) fn noq_time(&self, now: Instant) -> std::time::Instant {
        self.epoch + (now - Instant::ZERO)
    }

    /// Returns the maximum number of paths per connection.
    pub(crate) fn max_paths(&self) -> usize {
        self.config.paths as usize
    }

    pub(crate) fn has_connections(&self) -> bool {
        !self.connections.is_empty()
    }

    /// Closes all connections and refuses new ones.
    pub(crate) fn close_all(&mut self, now: Instant, code: VarInt, reason: &bytes::Bytes) {
        // Collected first, because closing changes the table.
        let all: Vec<_> = self.connections.iter().map(|(at, _)| at).collect();
        for at in all {
            self.close(at, now, code, reason.clone());
        }
        self.refuse_clients(now);
    }

    /// Refuses all waiting and future clients.
    fn refuse_clients(&mut self, now: Instant) {
        // Set first, so that no further client waits for a decision.
        self.closing = true;
        while let Some(incoming) = self.undecided.pop_front() {
            self.decide(now, incoming, EndpointCore::refuse);
        }
        self.waiting.accept.wake(&mut self.woken);
        self.waiting.incoming.wake(&mut self.woken);
        self.wake_driver();
    }

    /// Closes the connections that no application has accepted, and refuses new ones, because the endpoint's last
    /// handle was dropped. The driver ends with the last connection.
    pub(crate) fn leave(&mut self, now: Instant) {
        if self.dead {
            return;
        }
        let half_open = self.connections.iter().filter(|(_, conn)| conn.is_half_open_client()).map(|(at, _)| at);
        let unaccepted: Vec<_> = self.arrived.drain(..).chain(half_open).collect();
        for at in unaccepted {
            self.close(at, now, VarInt::from_u32(0), bytes::Bytes::new());
        }
        self.refuse_clients(now);
    }

    /// Closes a connection.
    pub(crate) fn close(&mut self, at: usize, now: Instant, code: VarInt, reason: bytes::Bytes) {
        let time = self.noq_time(now);
        let Some(conn) = self.connections.get_mut(at) else { return };
        conn.noq.close(time, code, reason);
        conn.end(Closed::Here, &mut self.woken);
        self.touch(at);
    }

    /// Ends all connections because the socket failed.
    pub(crate) fn fail(&mut self, error: &std::io::Error) {
        self.failure = Some(Closed::Socket(error.to_string()));
        self.die();
    }

    /// Ends all connections without sending anything.
    pub(crate) fn die(&mut self) {
        self.dead = true;
        let why = self.failure.clone().unwrap_or(Closed::Endpoint);
        for (_, conn) in &mut self.connections {
            conn.end(why.clone(), &mut self.woken);
        }
        self.undecided.drain(..).for_each(|incoming| self.noq.ignore(incoming));
        self.waiting.accept.wake(&mut self.woken);
        self.waiting.incoming.wake(&mut self.woken);
        self.waiting.drained.wake(&mut self.woken);
    }

    /// Returns the transport configuration of one connection, and the state of its acknowledgment request.
    fn transport(&self) -> (Arc<TransportConfig>, Arc<AckDelayState>) {
        let watching = WatchedControllerFactory::default();
        let asked = watching.asked.clone();
        let mut transport = TransportConfig::clone(&self.transport);
        transport.congestion_controller_factory(Arc::new(watching));
        (Arc::new(transport), asked)
    }

    fn keyring(&self) -> Arc<Keyring> {
        let Config { cid_bytes, offload, limits, .. } = self.config;
        Arc::new(Keyring::new(cid_bytes.into(), offload.is_unprotected(), limits))
    }
}

/// QUIC version 1 (RFC 9000 15).
const VERSION: u32 = 1;
/// The reason for abandoning a silent path: PATH_UNSTABLE_OR_POOR (draft-ietf-quic-multipath-21 4.4).
pub(crate) const SILENT: u32 = 0x3e76;
/// The transport error of RFC 9000 20.1, sent as an application's code.
const INTERNAL_ERROR: u32 = 0x01;
/// Minimum delay of a deadline, so that a due timer does not repeat at once.
const MIN_WAIT: core::time::Duration = core::time::Duration::from_micros(1);

/// A generator of unpredictable connection IDs.
struct RandomCids {
    random: Arc<Mutex<Rng>>,
    bytes: usize,
}

impl ConnectionIdGenerator for RandomCids {
    fn generate_cid(&mut self) -> ConnectionId {
        let mut bytes = [0; 20];
        self.random.lock().unwrap_or_else(PoisonError::into_inner).fill(&mut bytes[..self.bytes]);
        ConnectionId::new(&bytes[..self.bytes])
    }

    fn cid_len(&self) -> usize {
        self.bytes
    }

    fn cid_lifetime(&self) -> Option<core::time::Duration> {
        None
    }
}

#[cfg(test)]
mod crafted;
#[cfg(test)]
mod tests;
