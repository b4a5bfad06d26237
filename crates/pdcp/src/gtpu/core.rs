//! The bearers of a queue, and the datagrams that come for them.

use super::batches::Batches;
use super::contexts::Contexts;
use super::opening::OpeningBatches;
use super::queues::Place;
use super::sending::Outgoing;
use super::used_keys::UsedKeys;
use super::{BearerError, OpenError, Tunnel, contexts};
use crate::config::cost as cost_of;
use crate::{Config, Entity, Incoming, Sdu, Security};
use ::core::task::Waker;
use bytes::Bytes;
use offload_api::{Datagram, DatagramSocket, Handle, PacketMark, TxDatagram};
use offload_base::cost::{self, WorkKind};
use offload_base::{HasWakeList, Instant, WaitList, WakeList};
use offload_formats::{Gtpu, GtpuMessage};
use std::collections::{BTreeMap, BTreeSet, HashMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

offload_base::counters! {
    /// What a node counts.
    ///
    /// ```
    /// use pdcp::gtpu::GtpuCounters;
    ///
    /// assert_eq!(GtpuCounters::default().opened_by_device, 0);
    /// ```
    #[non_exhaustive]
    pub struct GtpuCounters {
        /// PDUs that were handed to a NIC to be protected.
        pub protected_by_device: "PdcpProtectedDevice",
        /// PDUs that the CPU protected.
        pub protected_by_software: "PdcpProtectedSw",
        /// PDUs that jobs protected.
        pub protected_by_jobs: "PdcpProtectedJobs",
        /// PDUs that a NIC, or a job, opened, with the COUNT that the receiver finds too.
        pub opened_by_device: "PdcpOpenedDevice",
        /// PDUs that came as they were sent, and that the CPU, or a job, opened.
        pub opened_here: "PdcpOpenedHere",
        /// PDUs that a device had opened with another COUNT, and the CPU did again.
        pub redone: "PdcpRedone",
        /// PDUs dropped: MAC-I did not fit.
        pub integrity: "PdcpIntegrity",
        /// PDUs dropped: they were there before, or came too late.
        pub duplicates: "PdcpDuplicates",
        /// PDUs dropped: too short, outside the window, or more wait than there is room for.
        pub dropped: "PdcpDropped",
        /// COUNTs that were given up, since what they are of did not come in time.
        pub given_up: "PdcpGivenUp",
        /// SDUs dropped: their bearer has as many unread as there is room for.
        pub unread: "PdcpUnread",
        /// Batches that were lost with an accelerator's engine, and that the CPU did.
        pub batches_lost: "PdcpBatchesLost",
        /// Datagrams that came to another queue than their bearer's, and were handed to that.
        pub handed_on: "GtpuHandedOn",
        /// Of these, those that found no room there.
        pub handed_drops: "GtpuHandedDrops",
        /// Datagrams with a TEID that no bearer has.
        pub no_tunnel: "GtpuNoTunnel",
        /// Datagrams that are no GTP-U, or of messages that are not known here.
        pub malformed: "GtpuMalformed",
        /// Echo requests that were answered.
        pub echoes: "GtpuEchoes",
        /// Contexts that a NIC gave.
        pub contexts: "PdcpContexts",
        /// PDUs that a NIC had opened for keys that are no longer used.
        pub stale: "PdcpStale",
        /// PDUs that were lost on their way into a NIC.
        pub lost_in_device: "PdcpLostDevice",
        /// Datagrams that the socket refused.
        pub refused: "GtpuRefused",
    }
}

pub(super) struct Core {
    pub(super) bearers: BTreeMap<u32, State>,
    /// Which queue of the node this is.
    pub(super) place: Place,
    /// Those that may have something to send.
    pub(super) ready: BTreeSet<u32>,
    /// Those with a timer that runs.
    deadlines: BTreeSet<(Instant, u32)>,
    /// Bearers for which the device is to be asked for contexts now.
    pub(super) asking: BTreeSet<u32>,
    /// The bearer of each context.
    pub(super) owners: HashMap<Handle, u32>,
    /// Of closed bearers, and of those with other keys now: the TEID, and which keys they had.
    pub(super) closed: Vec<(u32, u64)>,
    /// How many keys there were so far.
    epochs: u64,
    /// Keys that the node sent under, at all of its queues.
    used_keys: Arc<Mutex<UsedKeys>>,
    /// An accelerator is to protect.
    has_jobs: bool,
    /// A NIC is to protect.
    pub(super) is_device: bool,
    /// Contexts whose bearers are gone.
    pub(super) given_up: Vec<Handle>,
    pub(super) counters: GtpuCounters,
    pub(super) driver: Option<Waker>,
    /// Tasks to be woken once the core is unlocked.
    pub(super) woken: WakeList,
    /// There is no driver any more.
    pub(super) ended: bool,
    pub(super) outgoing: Outgoing,
}

pub(super) struct State {
    pub(super) tunnel: Tunnel,
    pub(super) config: Config,
    /// Of what is sent, and of what is received.
    pub(super) keys: [Security; 2],
    pub(super) entity: Entity,
    pub(super) contexts: Contexts,
    /// Names its keys: no others at this node ever have this number.
    pub(super) epoch: u64,
    /// The keys have no COUNT left.
    pub(super) exhausted: bool,
    deadline: Option<Instant>,
    pub(super) end_marker: bool,
    /// The peer's end marker has come.
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

impl State {
    pub(super) fn take_sdu(&mut self) -> Option<Sdu> {
        let sdu = self.sdus.pop_front()?;
        self.unread -= cost_of(sdu.data.len());
        Some(sdu)
    }

    /// The end marker has come, and nothing is under way or held up any more that was sent before it.
    pub(super) fn has_ended(&self) -> bool {
        self.peer_ended && self.opening.is_empty() && self.entity.receiver().next_event().is_none()
    }

    pub(super) fn wake_sender(&mut self, woken: &mut WakeList) {
        self.senders.wake(woken);
    }

    /// Gives the receiver the PDUs that jobs opened, as far as no earlier ones are under way.
    pub(super) fn take_opened(&mut self, now: Instant, unread: &mut u64, woken: &mut WakeList) {
        while let Some(pdus) = self.opening.pop() {
            self.receive(now, pdus, unread, woken);
        }
    }

    /// Takes PDUs in, and what they make ready.
    pub(super) fn receive(&mut self, now: Instant, pdus: Vec<Incoming>, unread: &mut u64, woken: &mut WakeList) {
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
            // The receive buffer of a short SDU is longer than the SDU, and several joined PDUs share one of 64 KiB. If the reader lags behind,
            // a copy makes the charge true.
            let is_small = sdu.data.len() < SMALL || self.unread > LAG;
            let data = if is_small { Bytes::copy_from_slice(&sdu.data) } else { sdu.data };
            self.sdus.push_back(Sdu { data, ..sdu });
        }
        if !self.sdus.is_empty() || self.has_ended() {
            self.receivers.wake(woken);
        }
        // A status report may have confirmed some.
        self.wake_sender(woken);
    }

    /// The program is told when it sends next.
    pub(super) fn note_exhausted(&mut self, woken: &mut WakeList) -> bool {
        self.exhausted = true;
        self.wake_sender(woken);
        false
    }
}

impl HasWakeList for Core {
    fn wake_list(&mut self) -> &mut WakeList {
        &mut self.woken
    }
}

impl Core {
    pub(super) fn new(place: Place, is_device: bool, has_jobs: bool, used_keys: Arc<Mutex<UsedKeys>>) -> Core {
        Core {
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
            outgoing: Outgoing::default(),
        }
    }

    pub(super) fn open(
        &mut self,
        tunnel: Tunnel,
        config: Config,
        keys: [Security; 2],
        entity: Entity,
    ) -> Result<(), OpenError> {
        if self.bearers.contains_key(&tunnel.local) {
            return Err(OpenError::InUse(tunnel.local));
        }
        self.used_keys().insert(&keys[0])?;
        let state = State {
            tunnel,
            config,
            keys,
            entity,
            contexts: Contexts::new(self.is_device),
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

    /// A bearer, as long as there is a driver.
    pub(super) fn get(&mut self, tunnel: u32) -> Option<&mut State> {
        if self.ended { None } else { self.bearers.get_mut(&tunnel) }
    }

    /// A bearer may have something to send.
    pub(super) fn note_ready(&mut self, tunnel: u32) {
        self.ready.insert(tunnel);
        self.wake_driver();
    }

    /// A bearer may have room for an SDU, and something to send.
    pub(super) fn note_confirmed(&mut self, tunnel: u32) {
        if let Some(state) = self.bearers.get_mut(&tunnel) {
            state.wake_sender(&mut self.woken);
        }
        self.note_ready(tunnel);
    }

    pub(super) fn reestablish(&mut self, tunnel: u32, sent: Security, received: Security) -> Result<(), BearerError> {
        self.get(tunnel).ok_or(BearerError::Ended)?;
        self.used_keys().insert(&sent)?;
        let state = self.bearers.get_mut(&tunnel).ok_or(BearerError::Ended)?;
        state.entity.reestablish(sent.clone(), received.clone())?;
        state.keys = [sent, received];
        let old = ::core::mem::replace(&mut state.epoch, self.epochs);
        self.epochs += 1;
        state.opening = OpeningBatches::default();
        state.exhausted = false;
        state.take_ready(&mut self.counters.unread, &mut self.woken);
        self.given_up.extend(state.contexts.begin_again());
        self.outgoing.drop_clear(tunnel);
        self.note_unused(tunnel, old);
        self.asking.insert(tunnel);
        self.schedule(tunnel);
        self.note_ready(tunnel);
        Ok(())
    }

    fn used_keys(&self) -> MutexGuard<'_, UsedKeys> {
        self.used_keys.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn close(&mut self, tunnel: u32) {
        let Some(mut state) = self.bearers.remove(&tunnel) else { return };
        self.counters.add_bearer(&state);
        if state.entity.transmitter().is_unused() {
            self.used_keys().remove(&state.keys[0]);
        }
        self.given_up.extend(state.contexts.begin_again());
        if let Some(deadline) = state.deadline {
            self.deadlines.remove(&(deadline, tunnel));
        }
        self.ready.remove(&tunnel);
        self.asking.remove(&tunnel);
        self.outgoing.drop_clear(tunnel);
        self.note_unused(tunnel, state.epoch);
        self.wake_driver();
    }

    /// An accelerator is to forget these keys.
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

    /// Takes datagrams in: opened by a NIC, or to be opened by jobs or here.
    pub(super) fn receive(
        &mut self,
        now: Instant,
        datagrams: impl Iterator<Item = Datagram>,
        mut jobs: Option<&mut Batches>,
    ) {
        let mut by_bearer: BTreeMap<u32, Vec<Incoming>> = BTreeMap::new();
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

    /// Takes note of when a bearer's timers end, and that it may have to answer.
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
        by_bearer: &mut BTreeMap<u32, Vec<Incoming>>,
    ) {
        let Some(header) = Gtpu::parse(&datagram.data) else {
            self.counters.malformed += 1;
            return;
        };
        match header.message {
            GtpuMessage::EchoRequest => return self.answer_echo(datagram.from, header.number),
            GtpuMessage::Data | GtpuMessage::EndMarker if !self.place.has(header.tunnel) => {
                return self.lead_astray(header.tunnel, datagram);
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
        let mut data = datagram.data;
        data.truncate(payload.end);
        let pdu = data.split_off(payload.start);
        let incoming = match mark {
            PacketMark::Opened { context, number, .. } if state.contexts.is_ours(context) => {
                Incoming::Opened { count: (number as u32).wrapping_add(place), pdu }
            }
            // By keys that are no longer used: it is in clear, and was authentic then.
            PacketMark::Opened { .. } => {
                self.counters.stale += 1;
                return;
            }
            _ => Incoming::Pdu(pdu),
        };
        by_bearer.entry(header.tunnel).or_default().push(incoming);
    }

    /// TS 29.281 7.2.2: with the same sequence number and the restart counter, which is zero.
    fn answer_echo(&mut self, from: ::core::net::SocketAddr, number: Option<u16>) {
        if from.port() == 0 || !self.outgoing.has_room() {
            return;
        }
        self.counters.echoes += 1;
        let [high, low] = number.unwrap_or(0).to_be_bytes();
        let answer = [0x32, 2, 0, 6, 0, 0, 0, 0, high, low, 0, 0, RECOVERY, 0];
        self.outgoing.push(TxDatagram::new(from, Bytes::copy_from_slice(&answer)));
    }

    /// Runs timers.
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

    /// What the NIC is to be told, as [`contexts`] says.
    pub(super) fn tell_device(&mut self, socket: &mut dyn DatagramSocket) {
        if self.is_device {
            contexts::tell(self, socket);
        }
    }
}

impl GtpuCounters {
    fn add_bearer(&mut self, state: &State) {
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

/// Bytes below which an SDU is copied out of its receive buffer.
const SMALL: usize = 1024;
/// Cost of unread SDUs above which each further SDU is copied out of its receive buffer.
const LAG: usize = 256 << 10;
/// The type of the information element that every echo response has (TS 29.281 8.2).
const RECOVERY: u8 = 14;
