//! The bearers of a queue, and the datagrams received for them.

use super::batches::JobBatches;
use super::contexts::BearerContexts;
use super::opening::OpeningBatches;
use super::queues::QueuePlace;
use super::sending::OutgoingPdus;
use super::used_keys::RecentKeys;
use super::{BearerError, BearerOpenError, GtpTunnel, contexts};
use crate::config::cost as cost_of;
use crate::{Config, Entity, IncomingPdu, Sdu, Security};
use ::core::task::Waker;
use bytes::Bytes;
use offload_api::{Datagram, DatagramSocket, Handle, PacketMark, TxDatagram};
use offload_base::cost::{self, WorkKind};
use offload_base::{HasWakeList, Instant, WaitList, WakeList};
use offload_formats::{Gtpu, GtpuMessage};
use std::collections::{BTreeMap, BTreeSet, HashMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

offload_base::counters! {
    /// Counters of a node.
    ///
    /// ```
    /// use pdcp::gtpu::GtpuCounters;
    ///
    /// assert_eq!(GtpuCounters::default().opened_by_device, 0);
    /// ```
    #[non_exhaustive]
    pub struct GtpuCounters {
        /// PDUs handed to a NIC for protection.
        pub protected_by_device: "PdcpProtectedDevice",
        /// PDUs protected by the CPU.
        pub protected_by_software: "PdcpProtectedSw",
        /// PDUs protected by jobs.
        pub protected_by_jobs: "PdcpProtectedJobs",
        /// PDUs opened by a NIC or a job with the right COUNT.
        pub opened_by_device: "PdcpOpenedDevice",
        /// PDUs received as sent, and opened by the CPU or a job.
        pub opened_here: "PdcpOpenedHere",
        /// PDUs opened by a device with a wrong COUNT, and again by the CPU.
        pub redone: "PdcpRedone",
        /// PDUs dropped because of an invalid MAC-I.
        pub integrity: "PdcpIntegrity",
        /// PDUs dropped as duplicates or too late.
        pub duplicates: "PdcpDuplicates",
        /// PDUs dropped as too short, outside the window, or for lack of buffer space.
        pub dropped: "PdcpDropped",
        /// COUNTs given up because their PDUs did not arrive in time.
        pub given_up: "PdcpGivenUp",
        /// SDUs dropped because unread SDUs filled their bearer's buffer.
        pub unread: "PdcpUnread",
        /// The batches lost with an accelerator's engine, and processed by the CPU.
        pub batches_lost: "PdcpBatchesLost",
        /// Datagrams forwarded to their bearer's queue.
        pub handed_on: "GtpuHandedOn",
        /// Forwarded datagrams dropped for lack of room.
        pub handed_drops: "GtpuHandedDrops",
        /// Datagrams with an unknown TEID.
        pub no_tunnel: "GtpuNoTunnel",
        /// Datagrams that are not GTP-U, or have an unknown message type.
        pub malformed: "GtpuMalformed",
        /// Echo requests answered.
        pub echoes: "GtpuEchoes",
        /// Contexts granted by a NIC.
        pub contexts: "PdcpContexts",
        /// PDUs opened by a NIC under keys that are no longer used.
        pub stale: "PdcpStale",
        /// PDUs lost on the way into a NIC.
        pub lost_in_device: "PdcpLostDevice",
        /// Datagrams refused by the socket.
        pub refused: "GtpuRefused",
    }
}

pub(super) struct NodeCore {
    pub(super) bearers: BTreeMap<u32, BearerState>,
    /// The number of this queue.
    pub(super) place: QueuePlace,
    /// Bearers that may have PDUs to send.
    pub(super) ready: BTreeSet<u32>,
    /// Bearers with a running timer.
    deadlines: BTreeSet<(Instant, u32)>,
    /// Bearers that need contexts from the device now.
    pub(super) asking: BTreeSet<u32>,
    /// The bearer of each context.
    pub(super) owners: HashMap<Handle, u32>,
    /// TEID and epoch of keys that are no longer used.
    pub(super) closed: Vec<(u32, u64)>,
    /// The next epoch.
    epochs: u64,
    /// Keys under which the node has sent, shared by all queues.
    used_keys: Arc<Mutex<RecentKeys>>,
    /// Whether an accelerator protects PDUs.
    has_jobs: bool,
    /// Whether a NIC protects PDUs.
    pub(super) is_device: bool,
    /// Contexts of closed bearers and of old keys.
    pub(super) given_up: Vec<Handle>,
    pub(super) counters: GtpuCounters,
    pub(super) driver: Option<Waker>,
    /// Tasks to wake when the core is unlocked.
    pub(super) woken: WakeList,
    /// Whether the driver is gone.
    pub(super) ended: bool,
    pub(super) outgoing: OutgoingPdus,
}

pub(super) struct BearerState {
    pub(super) tunnel: GtpTunnel,
    pub(super) config: Config,
    /// The keys of the sending and of the receiving direction.
    pub(super) keys: [Security; 2],
    pub(super) entity: Entity,
    pub(super) contexts: BearerContexts,
    /// The number of the keys, unique in this queue.
    pub(super) epoch: u64,
    /// Whether all COUNTs of the keys are used.
    pub(super) exhausted: bool,
    deadline: Option<Instant>,
    pub(super) end_marker: bool,
    /// Whether the peer's end marker has arrived.
    peer_ended: bool,
    /// PDUs that an accelerator opens.
    pub(super) opening: OpeningBatches,
    /// Tasks that wait for room for an SDU.
    pub(super) senders: WaitList,
    /// Tasks that wait for an SDU.
    pub(super) receivers: WaitList,
    sdus: VecDeque<Sdu>,
    unread: usize,
}

impl BearerState {
    pub(super) fn take_sdu(&mut self) -> Option<Sdu> {
        let sdu = self.sdus.pop_front()?;
        self.unread -= cost_of(sdu.data.len());
        Some(sdu)
    }

    /// Tests whether the end marker has arrived and no earlier PDU is under way or held up.
    pub(super) fn has_ended(&self) -> bool {
        self.peer_ended && self.opening.is_empty() && self.entity.receiver().next_event().is_none()
    }

    pub(super) fn wake_sender(&mut self, woken: &mut WakeList) {
        self.senders.wake(woken);
    }

    /// Passes opened PDUs to the receiver, up to the first job that is still under way.
    pub(super) fn take_opened(&mut self, now: Instant, unread: &mut u64, woken: &mut WakeList) {
        while let Some(pdus) = self.opening.pop() {
            self.receive(now, pdus, unread, woken);
        }
    }

    /// Passes PDUs to the receiver, and collects the ready SDUs.
    pub(super) fn receive(&mut self, now: Instant, pdus: Vec<IncomingPdu>, unread: &mut u64, woken: &mut WakeList) {
        self.entity.receive(now, pdus);
        self.take_ready(unread, woken);
    }

    fn take_ready(&mut self, unread: &mut u64, woken: &mut WakeList) {
        while let Some(sdu) = self.entity.poll_sdu() {
            if self.unread > 0 && self.unread + cost_of(sdu.data.len()) > self.config.buffer {
                *unread += 1;
                continue;
            }
            self.unread += cost_of(sdu.data.len());
            // A short SDU's receive buffer is longer than the SDU, and joined PDUs share a buffer of 64 KiB. If the
            // reader lags behind, a copy makes the charged size true.
            let is_small = sdu.data.len() < SMALL || self.unread > LAG;
            let data = if is_small { Bytes::copy_from_slice(&sdu.data) } else { sdu.data };
            self.sdus.push_back(Sdu { data, ..sdu });
        }
        if !self.sdus.is_empty() || self.has_ended() {
            self.receivers.wake(woken);
        }
        // A status report may have confirmed SDUs.
        self.wake_sender(woken);
    }

    /// Marks the keys as exhausted, which the program learns at its next send.
    pub(super) fn note_exhausted(&mut self, woken: &mut WakeList) -> bool {
        self.exhausted = true;
        self.wake_sender(woken);
        false
    }
}

impl HasWakeList for NodeCore {
    fn wake_list(&mut self) -> &mut WakeList {
        &mut self.woken
    }
}

impl NodeCore {
    pub(super) fn new(
        place: QueuePlace,
        is_device: bool,
        has_jobs: bool,
        used_keys: Arc<Mutex<RecentKeys>>,
    ) -> NodeCore {
        NodeCore {
            bearers: BTreeMap::new(),
            place,
            ready: BTreeSet::new(),
            deadlines: BTreeSet::new(),
            asking: BTreeSet::new(),
            owners: HashMap::new(),
            closed: Vec::new(),
            epochs: 0,
            used_keys,
            has_jobs,
            is_device,
            given_up: Vec::new(),
            counters: GtpuCounters::default(),
            driver: None,
            woken: WakeList::default(),
            ended: false,
            outgoing: OutgoingPdus::default(),
        }
    }

    pub(super) fn open(
        &mut self,
        tunnel: GtpTunnel,
        config: Config,
        keys: [Security; 2],
        entity: Entity,
    ) -> Result<(), BearerOpenError> {
        if self.bearers.contains_key(&tunnel.local) {
            return Err(BearerOpenError::InUse(tunnel.local));
        }
        // Only sending keys are checked, because the peer chooses the COUNTs of received PDUs.
        self.used_keys().insert(&keys[0])?;
        let state = BearerState {
            tunnel,
            config,
            keys,
            entity,
            contexts: BearerContexts::new(self.is_device),
            epoch: self.epochs,
            exhausted: false,
            deadline: None,
            end_marker: false,
            peer_ended: false,
            opening: OpeningBatches::default(),
            senders: WaitList::default(),
            receivers: WaitList::default(),
            sdus: VecDeque::new(),
            unread: 0,
        };
        self.epochs += 1;
        self.bearers.insert(tunnel.local, state);
        self.asking.insert(tunnel.local);
        self.wake_driver();
        Ok(())
    }

    /// Returns a bearer, if the driver still exists.
    pub(super) fn get(&mut self, tunnel: u32) -> Option<&mut BearerState> {
        if self.ended { None } else { self.bearers.get_mut(&tunnel) }
    }

    /// Notes that a bearer may have PDUs to send.
    pub(super) fn note_ready(&mut self, tunnel: u32) {
        self.ready.insert(tunnel);
        self.wake_driver();
    }

    /// Notes that a bearer may have room for an SDU, and PDUs to send.
    pub(super) fn note_confirmed(&mut self, tunnel: u32) {
        if let Some(state) = self.bearers.get_mut(&tunnel) {
            state.wake_sender(&mut self.woken);
        }
        self.note_ready(tunnel);
    }

    pub(super) fn reestablish(&mut self, tunnel: u32, sent: Security, received: Security) -> Result<(), BearerError> {
        self.get(tunnel).ok_or(BearerError::Ended)?;
        // Checked before the entity changes, so that a refusal leaves the bearer as it was.
        self.used_keys().insert(&sent)?;
        let state = self.bearers.get_mut(&tunnel).ok_or(BearerError::Ended)?;
        state.entity.reestablish(sent.clone(), received.clone())?;
        state.keys = [sent, received];
        let old = ::core::mem::replace(&mut state.epoch, self.epochs);
        self.epochs += 1;
        // Jobs under way have the old keys, and their epoch no longer matches.
        state.opening = OpeningBatches::default();
        state.exhausted = false;
        state.take_ready(&mut self.counters.unread, &mut self.woken);
        self.given_up.extend(state.contexts.remove_all());
        self.outgoing.drop_clear(tunnel);
        self.note_unused(tunnel, old);
        self.asking.insert(tunnel);
        self.schedule(tunnel);
        self.note_ready(tunnel);
        Ok(())
    }

    fn used_keys(&self) -> MutexGuard<'_, RecentKeys> {
        self.used_keys.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn close(&mut self, tunnel: u32) {
        let Some(mut state) = self.bearers.remove(&tunnel) else { return };
        self.counters.add_bearer(&state);
        // Without a sent PDU the keys may be used again.
        if state.entity.transmitter().is_unused() {
            self.used_keys().remove(&state.keys[0]);
        }
        self.given_up.extend(state.contexts.remove_all());
        if let Some(deadline) = state.deadline {
            self.deadlines.remove(&(deadline, tunnel));
        }
        self.ready.remove(&tunnel);
        self.asking.remove(&tunnel);
        self.outgoing.drop_clear(tunnel);
        self.note_unused(tunnel, state.epoch);
        self.wake_driver();
    }

    /// Tells the accelerator that keys are no longer used.
    fn note_unused(&mut self, tunnel: u32, epoch: u64) {
        if self.has_jobs {
            self.closed.push((tunnel, epoch));
        }
    }

    pub(super) fn end(&mut self) {
        self.ended = true;
        for state in self.bearers.values_mut() {
            state.senders.wake(&mut self.woken);
            state.receivers.wake(&mut self.woken);
        }
    }

    pub(super) fn wake_driver(&mut self) {
        self.woken.add(self.driver.take());
    }

    pub(super) fn counters(&self) -> GtpuCounters {
        let mut all = self.counters;
        self.bearers.values().for_each(|state| all.add_bearer(state));
        all
    }

    /// Processes datagrams: opened by a NIC, or to be opened by jobs or the CPU.
    pub(super) fn receive(
        &mut self,
        now: Instant,
        datagrams: impl Iterator<Item = Datagram>,
        mut jobs: Option<&mut JobBatches>,
    ) {
        // Grouped by bearer, so that each bearer's PDUs are opened as one batch.
        let mut by_bearer: BTreeMap<u32, Vec<IncomingPdu>> = BTreeMap::new();
        {
            let _framing = cost::work(WorkKind::Framing);
            for datagram in datagrams {
                let mark = datagram.meta.marks.packet();
                for (place, part) in (0..).zip(datagram.split()) {
                    self.take_datagram(part, mark, place, &mut by_bearer);
                }
            }
        }
        for (tunnel, pdus) in by_bearer {
            let Some(state) = self.bearers.get_mut(&tunnel) else { continue };
            match &mut jobs {
                Some(jobs) => jobs.open(now, state, pdus, &mut self.counters, &mut self.woken),
                None => state.receive(now, pdus, &mut self.counters.unread, &mut self.woken),
            }
            self.schedule(tunnel);
        }
    }

    /// Updates a bearer's timer, and notes its PDUs to send.
    pub(super) fn schedule(&mut self, tunnel: u32) {
        let Some(state) = self.bearers.get_mut(&tunnel) else { return };
        let deadline = state.entity.next_event();
        if deadline != state.deadline {
            if let Some(before) = state.deadline {
                self.deadlines.remove(&(before, tunnel));
            }
            self.deadlines.extend(deadline.map(|at| (at, tunnel)));
            state.deadline = deadline;
        }
        if state.entity.has_pdus() {
            self.ready.insert(tunnel);
        }
    }

    fn take_datagram(
        &mut self,
        datagram: Datagram,
        mark: PacketMark,
        place: u32,
        by_bearer: &mut BTreeMap<u32, Vec<IncomingPdu>>,
    ) {
        let Some(header) = Gtpu::parse(&datagram.data) else {
            self.counters.malformed += 1;
            return;
        };
        match header.message {
            GtpuMessage::EchoRequest => return self.answer_echo(datagram.from, header.number),
            // The marker takes effect when the PDUs before it are delivered.
            GtpuMessage::Data | GtpuMessage::EndMarker if !self.place.has(header.tunnel) => {
                return self.record_astray(header.tunnel, datagram);
            }
            GtpuMessage::Data => {}
            GtpuMessage::EndMarker => {
                if let Some(state) = self.bearers.get_mut(&header.tunnel) {
                    state.peer_ended = true;
                    state.receivers.wake(&mut self.woken);
                }
                return;
            }
            _ => {
                self.counters.malformed += 1;
                return;
            }
        }
        let Some(state) = self.bearers.get_mut(&header.tunnel) else {
            self.counters.no_tunnel += 1;
            return;
        };
        if state.contexts.note_received() {
            self.asking.insert(header.tunnel);
        }
        let payload = header.payload();
        // The PDU is split off without a copy.
        let mut data = datagram.data;
        data.truncate(payload.end);
        let pdu = data.split_off(payload.start);
        let incoming = match mark {
            PacketMark::Opened { context, number, .. } if state.contexts.has_current_keys(context) => {
                IncomingPdu::Opened { count: (number as u32).wrapping_add(place), pdu }
            }
            // Opened under keys that are no longer used: the PDU is in clear, and its validity is unknown now.
            PacketMark::Opened { .. } => {
                self.counters.stale += 1;
                return;
            }
            _ => IncomingPdu::Pdu(pdu),
        };
        by_bearer.entry(header.tunnel).or_default().push(incoming);
    }

    /// Answers an echo request with its sequence number and a restart counter of zero (TS 29.281 7.2.2).
    fn answer_echo(&mut self, from: ::core::net::SocketAddr, number: Option<u16>) {
        if from.port() == 0 || !self.outgoing.has_room() {
            return;
        }
        self.counters.echoes += 1;
        let [high, low] = number.unwrap_or(0).to_be_bytes();
        let answer = [0x32, 2, 0, 6, 0, 0, 0, 0, high, low, 0, 0, RECOVERY, 0];
        self.outgoing.push(TxDatagram::new(from, Bytes::copy_from_slice(&answer)));
    }

    /// Runs expired timers.
    pub(super) fn expire(&mut self, now: Instant) {
        while let Some((_, tunnel)) = self.deadlines.first().filter(|(at, _)| *at <= now).copied() {
            self.deadlines.pop_first();
            let Some(state) = self.bearers.get_mut(&tunnel) else { continue };
            state.deadline = None;
            state.entity.handle_timeout(now);
            state.take_ready(&mut self.counters.unread, &mut self.woken);
            self.schedule(tunnel);
        }
    }

    pub(super) fn next_event(&self) -> Option<Instant> {
        self.deadlines.first().map(|(at, _)| *at)
    }

    /// Sends the NIC the commands of [`contexts`].
    pub(super) fn update_device(&mut self, socket: &mut dyn DatagramSocket) {
        if self.is_device {
            contexts::update_device(self, socket);
        }
    }
}

impl GtpuCounters {
    fn add_bearer(&mut self, state: &BearerState) {
        let of = state.entity.receiver().counters();
        self.opened_by_device += of.offloaded;
        self.redone += of.redone;
        self.opened_here += of.delivered.saturating_sub(of.offloaded);
        self.integrity += of.integrity;
        self.duplicates += of.duplicate;
        self.dropped += of.malformed + of.outside + of.full;
        self.given_up += of.given_up;
    }
}

/// SDUs below this size are copied out of their receive buffer.
const SMALL: usize = 1024;
/// If unread SDUs cost more than this, further SDUs are copied out of their receive buffer.
const LAG: usize = 256 << 10;
/// The type of the information element in every echo response (TS 29.281 8.2).
const RECOVERY: u8 = 14;
