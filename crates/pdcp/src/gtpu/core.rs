//! Bearers, and the datagrams that they become.

use super::batches::Batches;
use super::contexts::Contexts;
use super::{Tunnel, contexts};
use crate::config::cost as cost_of;
use crate::{ClearPdu, Config, Entity, Incoming, Sdu, Security};
use ::core::num::NonZeroU16;
use ::core::task::{Context, Poll, Waker};
use bytes::{Bytes, BytesMut};
use offload_api::{Datagram, DatagramSocket, Handle, PacketAsk, PacketMark, SendRefused, TxDatagram};
use offload_base::Instant;
use offload_base::cost::{self, Work};
use offload_formats::{Gtpu, GtpuMessage};
use smallvec::SmallVec;
use std::collections::{BTreeMap, BTreeSet, VecDeque};

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
    /// Those that may have something to send, and from which on they have their turns.
    ready: BTreeSet<u32>,
    turn: u32,
    /// Those with a timer that runs.
    deadlines: BTreeSet<(Instant, u32)>,
    /// Those that lack a context.
    pub(super) asking: BTreeSet<u32>,
    /// Of closed bearers, and of those with other keys now: the TEID, and which keys they had.
    pub(super) closed: Vec<(u32, u64)>,
    /// How many keys there were so far.
    epochs: u64,
    /// An accelerator is to protect.
    has_jobs: bool,
    /// A NIC is to protect.
    pub(super) is_device: bool,
    /// Contexts whose bearers are gone.
    pub(super) given_up: Vec<Handle>,
    pub(super) counters: GtpuCounters,
    pub(super) driver: Option<Waker>,
    /// There is no driver any more.
    pub(super) ended: bool,
    /// What is to be sent, and of what a NIC is asked to protect: the PDUs in clear.
    outgoing: VecDeque<TxDatagram>,
    clear: VecDeque<Option<Clear>>,
}

/// PDUs that a NIC is asked to protect, of the bearer with this TEID.
struct Clear {
    tunnel: u32,
    pdus: Vec<ClearPdu>,
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
    /// Batches of PDUs that an accelerator opens.
    pub(super) opening: usize,
    pub(super) sender: Option<Waker>,
    pub(super) receiver: Option<Waker>,
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
        self.peer_ended && self.opening == 0 && self.entity.receiver().next_event().is_none()
    }

    pub(super) fn wake_sender(&mut self) {
        self.sender.take().into_iter().for_each(Waker::wake);
    }

    /// Takes PDUs in, and what they make ready.
    pub(super) fn receive(&mut self, now: Instant, pdus: Vec<Incoming>, unread: &mut u64) {
        self.entity.receive(now, pdus);
        self.take_ready(unread);
    }

    fn take_ready(&mut self, unread: &mut u64) {
        while let Some(sdu) = self.entity.poll_sdu() {
            if self.unread > 0 && self.unread + cost_of(sdu.data.len()) > self.config.buffer {
                *unread += 1;
                continue;
            }
            self.unread += cost_of(sdu.data.len());
            self.sdus.push_back(sdu);
        }
        if !self.sdus.is_empty() || self.has_ended() {
            self.receiver.take().into_iter().for_each(Waker::wake);
        }
        // A status report may have confirmed some.
        self.wake_sender();
    }

    /// The program is told when it sends next.
    fn note_exhausted(&mut self) -> bool {
        self.exhausted = true;
        self.wake_sender();
        false
    }
}

impl Core {
    pub(super) fn new(is_device: bool, has_jobs: bool) -> Core {
        Core {
            bearers: BTreeMap::new(),
            ready: BTreeSet::new(),
            turn: 0,
            deadlines: BTreeSet::new(),
            asking: BTreeSet::new(),
            closed: Vec::new(),
            epochs: 0,
            has_jobs,
            is_device,
            given_up: Vec::new(),
            counters: GtpuCounters::default(),
            driver: None,
            ended: false,
            outgoing: VecDeque::new(),
            clear: VecDeque::new(),
        }
    }

    pub(super) fn open(&mut self, tunnel: Tunnel, config: Config, keys: [Security; 2], entity: Entity) -> Option<()> {
        if self.bearers.contains_key(&tunnel.local) {
            return None;
        }
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
            opening: 0,
            sender: None,
            receiver: None,
            sdus: VecDeque::new(),
            unread: 0,
        };
        self.epochs += 1;
        self.bearers.insert(tunnel.local, state);
        self.asking.insert(tunnel.local);
        self.wake_driver();
        Some(())
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

    pub(super) fn reestablish(&mut self, tunnel: u32, sent: Security, received: Security) {
        let Some(state) = self.bearers.get_mut(&tunnel) else { return };
        state.keys = [sent.clone(), received.clone()];
        state.entity.reestablish(sent, received);
        let old = ::core::mem::replace(&mut state.epoch, self.epochs);
        self.epochs += 1;
        state.opening = 0;
        state.exhausted = false;
        state.take_ready(&mut self.counters.unread);
        self.given_up.extend(state.contexts.begin_again());
        self.drop_clear(tunnel);
        self.note_unused(tunnel, old);
        self.asking.insert(tunnel);
        self.schedule(tunnel);
        self.note_ready(tunnel);
    }

    pub(super) fn close(&mut self, tunnel: u32) {
        let Some(mut state) = self.bearers.remove(&tunnel) else { return };
        self.counters.add_bearer(&state);
        self.given_up.extend(state.contexts.begin_again());
        self.deadlines.retain(|(_, of)| *of != tunnel);
        self.ready.remove(&tunnel);
        self.asking.remove(&tunnel);
        self.drop_clear(tunnel);
        self.note_unused(tunnel, state.epoch);
        self.wake_driver();
    }

    /// An accelerator is to forget these keys.
    fn note_unused(&mut self, tunnel: u32, epoch: u64) {
        if self.has_jobs {
            self.closed.push((tunnel, epoch));
        }
    }

    /// What a NIC was to protect by keys that are no longer used is not sent: by others, its COUNTs might be used twice.
    fn drop_clear(&mut self, tunnel: u32) {
        let mut kept = self.clear.iter().map(|clear| clear.as_ref().is_none_or(|clear| clear.tunnel != tunnel));
        self.outgoing.retain(|_| kept.next().unwrap_or(true));
        self.clear.retain(|clear| clear.as_ref().is_none_or(|clear| clear.tunnel != tunnel));
    }

    pub(super) fn end(&mut self) {
        self.ended = true;
        for state in self.bearers.values_mut() {
            state.sender.take().into_iter().chain(state.receiver.take()).for_each(Waker::wake);
        }
    }

    pub(super) fn wake_driver(&mut self) {
        self.driver.take().into_iter().for_each(Waker::wake);
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
            let _framing = cost::work(Work::Framing);
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
                Some(jobs) => jobs.open(now, state, pdus, &mut self.counters),
                None => state.receive(now, pdus, &mut self.counters.unread),
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
        let Datagram { mut data, from, .. } = datagram;
        let Some(header) = Gtpu::parse(&data) else {
            self.counters.malformed += 1;
            return;
        };
        match header.message {
            GtpuMessage::Data => {}
            GtpuMessage::EchoRequest => return self.answer_echo(from, header.number),
            GtpuMessage::EndMarker => {
                if let Some(state) = self.bearers.get_mut(&header.tunnel) {
                    state.peer_ended = true;
                    state.receiver.take().into_iter().for_each(Waker::wake);
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
        state.contexts.note_received();
        let payload = header.payload();
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
        if from.port() == 0 || !self.has_room() {
            return;
        }
        self.counters.echoes += 1;
        let [high, low] = number.unwrap_or(0).to_be_bytes();
        let answer = [0x32, 2, 0, 6, 0, 0, 0, 0, high, low, 0, 0, RECOVERY, 0];
        self.push(TxDatagram::new(from, Bytes::copy_from_slice(&answer)), None);
    }

    /// Runs timers.
    pub(super) fn expire(&mut self, now: Instant) {
        while let Some((_, tunnel)) = self.deadlines.first().filter(|(at, _)| *at <= now).copied() {
            self.deadlines.pop_first();
            let Some(state) = self.bearers.get_mut(&tunnel) else { continue };
            state.deadline = None;
            state.entity.handle_timeout(now);
            state.take_ready(&mut self.counters.unread);
            self.schedule(tunnel);
        }
    }

    pub(super) fn next_event(&self) -> Option<Instant> {
        self.deadlines.first().map(|(at, _)| *at)
    }

    /// Makes datagrams of PDUs, the bearers by turns, as long as there is room for them. Says whether it made some.
    pub(super) fn make(
        &mut self,
        now: Instant,
        socket: &mut dyn DatagramSocket,
        mut jobs: Option<&mut Batches>,
    ) -> bool {
        let (mut made, mut waiting) = (false, Vec::new());
        while self.has_room() && !jobs.as_ref().is_some_and(|jobs| jobs.is_full()) {
            let next = self.ready.range(self.turn..).chain(&self.ready).next().copied();
            let Some(tunnel) = next else { break };
            self.turn = tunnel.wrapping_add(1);
            let _framing = cost::work(Work::Framing);
            if self.make_of(now, tunnel, socket, jobs.as_deref_mut()) {
                made = true;
                self.schedule(tunnel);
                continue;
            }
            self.ready.remove(&tunnel);
            if self.bearers.get(&tunnel).is_some_and(|state| state.end_marker) {
                waiting.push(tunnel);
            }
        }
        // An end marker waits for PDUs that a job has.
        self.ready.extend(waiting);
        made
    }

    fn make_of(
        &mut self,
        now: Instant,
        tunnel: u32,
        socket: &mut dyn DatagramSocket,
        jobs: Option<&mut Batches>,
    ) -> bool {
        let Some(state) = self.bearers.get_mut(&tunnel) else { return false };
        if let Some(report) = state.entity.take_report() {
            let datagram = datagram_of(&state.tunnel, report);
            self.push(datagram, None);
            return true;
        }
        let sealer = state.contexts.sealer();
        if state.keys[0].is_null() && sealer.is_none() {
            let Ok(pdus) = state.entity.take_clear(A_TURN) else { return state.note_exhausted() };
            if pdus.is_empty() {
                return self.make_end_marker(tunnel);
            }
            state.wake_sender();
            self.counters.protected_by_software += pdus.len() as u64;
            state.contexts.note_sent(pdus.len());
            self.send(tunnel, pdus.into_iter().map(Body::clear).collect(), None, socket);
            return true;
        }
        if sealer.is_none() && jobs.is_none() {
            let Ok(pdus) = state.entity.take(A_TURN) else { return state.note_exhausted() };
            if pdus.is_empty() {
                return self.make_end_marker(tunnel);
            }
            state.wake_sender();
            self.counters.protected_by_software += pdus.len() as u64;
            state.contexts.note_sent(pdus.len());
            self.send(tunnel, pdus.into_iter().map(Body::protected).collect(), None, socket);
            return true;
        }
        let Ok(pdus) = state.entity.take_clear(A_TURN) else { return state.note_exhausted() };
        if pdus.is_empty() {
            if jobs.is_some_and(|jobs| jobs.is_sending(tunnel)) {
                return false;
            }
            return self.make_end_marker(tunnel);
        }
        state.wake_sender();
        match (sealer, jobs) {
            (Some(context), _) => {
                self.counters.protected_by_device += pdus.len() as u64;
                self.send(tunnel, pdus.into_iter().map(Body::clear).collect(), Some(context), socket);
            }
            (None, Some(jobs)) => jobs.protect(now, state, &pdus),
            (None, None) => {}
        }
        true
    }

    fn make_end_marker(&mut self, tunnel: u32) -> bool {
        let Some(state) = self.bearers.get_mut(&tunnel).filter(|state| state.end_marker) else { return false };
        state.end_marker = false;
        let mut marker = BytesMut::zeroed(Gtpu::BYTES);
        Gtpu::new(GtpuMessage::EndMarker, state.tunnel.remote, 0).write(&mut marker);
        let datagram = TxDatagram::new(state.tunnel.peer, marker.freeze());
        self.push(datagram, None);
        true
    }

    /// Sends PDUs, those of one length in a row by one send that the NIC cuts (USO). With a context, the NIC protects them, if their COUNTs
    /// follow each other.
    fn send(&mut self, tunnel: u32, pdus: Vec<Body>, context: Option<Handle>, socket: &mut dyn DatagramSocket) {
        let Some(to) = self.bearers.get(&tunnel).map(|state| state.tunnel) else { return };
        let limits = socket.limits(to.peer);
        let mut run: Vec<Body> = Vec::new();
        for pdu in pdus {
            let most = limits.segments_of((Gtpu::BYTES + pdu.bytes) as u16).clamp(1, MOST_SEGMENTS);
            if run.last().is_some_and(|last| run.len() == most || !last.goes_on_with(&pdu)) {
                self.push_run(&to, context, ::core::mem::take(&mut run));
            }
            run.push(pdu);
        }
        self.push_run(&to, context, run);
    }

    fn push_run(&mut self, to: &Tunnel, context: Option<Handle>, run: Vec<Body>) {
        let Some(first) = run.first() else { return };
        let (bytes, number) = (first.bytes, first.clear.as_ref().map_or(0, ClearPdu::count));
        let segment = if run.len() > 1 { NonZeroU16::new((Gtpu::BYTES + bytes) as u16) } else { None };
        let mut headers = BytesMut::zeroed(run.len() * Gtpu::BYTES);
        let mut pieces = SmallVec::new();
        let mut clear = Vec::new();
        for body in run {
            Gtpu::new(GtpuMessage::Data, to.remote, bytes).write(&mut headers);
            pieces.push(headers.split_to(Gtpu::BYTES).freeze());
            pieces.extend(body.pieces);
            clear.extend(body.clear);
        }
        let ask = context.map(|context| PacketAsk { context, number: number.into(), args: 0 });
        let datagram = TxDatagram { pieces, segment, ask, ..TxDatagram::new(to.peer, Bytes::new()) };
        self.push(datagram, ask.map(|_| Clear { tunnel: to.local, pdus: clear }));
    }

    /// Sends what a job protected.
    pub(super) fn push_protected(
        &mut self,
        tunnel: u32,
        pdus: impl Iterator<Item = Bytes>,
        socket: &mut dyn DatagramSocket,
    ) {
        self.send(tunnel, pdus.map(Body::protected).collect(), None, socket);
    }

    fn push(&mut self, datagram: TxDatagram, clear: Option<Clear>) {
        self.outgoing.push_back(datagram);
        self.clear.push_back(clear);
    }

    /// Sends what the socket takes; says whether that was all of it. What it refuses is that datagram's affair: a socket that is broken says so
    /// when it is to receive.
    pub(super) fn poll_send(&mut self, cx: &mut Context<'_>, socket: &mut dyn DatagramSocket) -> bool {
        while !self.outgoing.is_empty() {
            match socket.poll_send(cx, &mut self.outgoing) {
                Poll::Pending => return false,
                Poll::Ready(Ok(sent)) => drop(self.clear.drain(..sent)),
                Poll::Ready(Err(SendRefused::Ask)) => self.protect_first(),
                // IP may cut it into fragments, when no NIC has to work on it.
                Poll::Ready(Err(SendRefused::TooLong { .. })) if matches!(self.clear.front(), Some(Some(_))) => {
                    self.protect_first();
                }
                Poll::Ready(Err(_)) => {
                    self.counters.refused += 1;
                    self.outgoing.pop_front();
                    self.clear.pop_front();
                }
            }
        }
        true
    }

    /// The NIC will not: the CPU protects what comes first, under the same COUNTs.
    fn protect_first(&mut self) {
        let (Some(_), Some(clear)) = (self.outgoing.pop_front(), self.clear.pop_front()) else { return };
        let Some(Clear { tunnel, pdus }) = clear else { return };
        let Some(state) = self.bearers.get_mut(&tunnel) else { return };
        self.counters.protected_by_device -= pdus.len() as u64;
        self.counters.protected_by_software += pdus.len() as u64;
        let mut bytes: Vec<_> = pdus.iter().map(|pdu| (pdu.count(), pdu.to_bytes())).collect();
        state.keys[0].protect(state.config.clear_bytes(), &mut bytes);
        for (_, pdu) in bytes.into_iter().rev() {
            self.outgoing.push_front(datagram_of(&state.tunnel, pdu.freeze()));
            self.clear.push_front(None);
        }
    }

    pub(super) fn has_room(&self) -> bool {
        self.outgoing.len() < MOST_OUTGOING
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

/// A PDU that is to be sent: in clear, or not.
struct Body {
    pieces: SmallVec<[Bytes; 3]>,
    bytes: usize,
    clear: Option<ClearPdu>,
}

impl Body {
    fn protected(pdu: Bytes) -> Body {
        Body { bytes: pdu.len(), pieces: SmallVec::from_iter([pdu]), clear: None }
    }

    /// In parts, so that the SDU is not copied.
    fn clear(pdu: ClearPdu) -> Body {
        let mut pieces = SmallVec::from_iter([Bytes::copy_from_slice(pdu.header()), pdu.sdu().clone()]);
        if pdu.mac_bytes() > 0 {
            pieces.push(Bytes::from_static(&[0; 4]));
        }
        Body { bytes: pdu.bytes(), pieces, clear: Some(pdu) }
    }

    /// Whether the other may be cut from the same packet.
    fn goes_on_with(&self, next: &Body) -> bool {
        let count = |body: &Body| body.clear.as_ref().map(|pdu| u64::from(pdu.count()));
        self.bytes == next.bytes && count(self).map(|count| count + 1) == count(next)
    }
}

/// A PDU in a datagram of its own, its bytes shared.
fn datagram_of(to: &Tunnel, pdu: Bytes) -> TxDatagram {
    let mut header = BytesMut::zeroed(Gtpu::BYTES);
    Gtpu::new(GtpuMessage::Data, to.remote, pdu.len()).write(&mut header);
    let pieces = SmallVec::from_iter([header.freeze(), pdu]);
    TxDatagram { pieces, ..TxDatagram::new(to.peer, Bytes::new()) }
}

/// Has a waker woken, in place of the one before.
pub(super) fn wait(slot: &mut Option<Waker>, waker: &Waker) {
    if !slot.as_ref().is_some_and(|known| known.will_wake(waker)) {
        *slot = Some(waker.clone());
    }
}

/// PDUs of a bearer in a row.
const A_TURN: usize = 32;
/// Datagrams that wait to be sent.
const MOST_OUTGOING: usize = 256;
/// A packet of so many pieces as a ring's descriptors have room for.
const MOST_SEGMENTS: usize = 16;
/// The type of the information element that every echo response has (TS 29.281 8.2).
const RECOVERY: u8 = 14;
