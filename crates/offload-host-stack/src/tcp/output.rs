//! Transmission: chooses the next segment and hands packets to the device.
//!
//! Order: a SYN, lost data, new data followed by the FIN, and an acknowledgment if no earlier packet carried it. No
//! packet spans two contexts, because [`TcpSendQueue::cut`](super::send_queue::TcpSendQueue::cut) ends a packet at the
//! boundary.

use super::connection::{Connection, ConnectionEnv};
use super::report::ConnectionError;
use super::segment::{Flags, HEADER_BYTES, Options, Segment, Timestamps};
use super::send_queue::{FIRST_BYTE, PacketPayload, SealFailure};
use super::state::TcpState;
use crate::network::OutgoingSegment;
use core::ops::Range;
use offload_api::{DropReason, NetDevice, PathCaps, TransmitResult};
use smallvec::SmallVec;

/// Result of a connection's turn to send.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum TransmitOutcome {
    /// No data can be sent now.
    Done,
    /// The device has no room and took no packet in this turn.
    NoRoom,
    /// More to send; other connections come first, even if only to find that the device is full.
    More,
}

/// The next packet to send.
#[derive(Debug)]
enum NextPacket {
    Syn,
    Again(Range<u64>),
    New(Range<u64>),
    /// A window probe or a keep-alive probe.
    Probe,
    /// A tail loss probe. `again` is true if the probe repeats sent data.
    TailProbe {
        range: Range<u64>,
        again: bool,
    },
}

/// Result of one packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum SendResult {
    Sent,
    NoRoom,
    /// The rest of the packet's unit is not queued yet.
    Incomplete,
    /// The connection has ended.
    Over,
}

impl Connection {
    /// Sends as much as possible, at most one turn's worth.
    pub(crate) fn transmit(&mut self, env: &mut ConnectionEnv<'_>, device: &mut dyn NetDevice) -> TransmitOutcome {
        let caps = self.caps(env, device);
        // The header below advertises a window, which depends on the current memory level.
        self.receive.set_memory(env.memory);
        self.watch_peer(env.now);
        if self.state == TcpState::Closed {
            return self.transmit_reset(env, device, &caps);
        }
        if !self.state.is_opening() {
            self.fit_mss(&caps);
        }
        let (mut room, mut turns) = (0, MAX_PACKETS_PER_TURN);
        let without_room =
            |turns| if turns < MAX_PACKETS_PER_TURN { TransmitOutcome::More } else { TransmitOutcome::NoRoom };
        self.outbox.set_blocked(false);
        while let Some(plan) = self.plan(env, &caps) {
            // The room is checked before the turn limit, so that only a connection without room is reported as such:
            // the device wakes the host only after it has refused room.
            if !self.has_room(&mut room, device, &caps) {
                return without_room(turns);
            }
            if turns == 0 {
                return TransmitOutcome::More;
            }
            match self.send_planned(plan, env, device, &caps) {
                SendResult::Sent => {}
                SendResult::NoRoom => return without_room(turns),
                SendResult::Incomplete => {
                    self.outbox.set_blocked(true);
                    break;
                }
                SendResult::Over => return self.transmit_reset(env, device, &caps),
            }
            room -= 1;
            turns -= 1;
        }
        if self.acks.is_owed()
            && !self.state.is_opening()
            && !(self.has_room(&mut room, device, &caps) && self.send_ack(env, device, &caps))
        {
            return without_room(turns);
        }
        self.arm_persist(env);
        TransmitOutcome::Done
    }

    /// Sends an owed acknowledgment at once, if the device has room, in the two cases where one acknowledgment for a
    /// whole batch of packets would not do:
    /// - Duplicate ACKs must not be merged, because the sender counts them (RFC 5681 4.2) and each reports another
    ///   block.
    /// - In the round trip after a gap, the sender may have nothing else in flight. If a single merged ACK were lost,
    ///   the sender would have to wait for its timeout.
    pub(crate) fn acknowledge_at_once(&mut self, env: &mut ConnectionEnv<'_>, device: &mut dyn NetDevice) {
        let must = self.acks.is_one_by_one(self.receive.has_holes());
        if must
            && self.acks.is_owed()
            && !self.state.is_opening()
            && self.state != TcpState::Closed
            && device.room(&self.flow) > 0
        {
            let caps = self.caps(env, device);
            self.send_ack(env, device, &caps);
        }
    }

    /// Returns whether the device has room. `room` caches the last answer. At zero the device is asked again, because a
    /// device wakes only hosts that it has told that it is full.
    fn has_room(&self, room: &mut usize, device: &dyn NetDevice, caps: &PathCaps) -> bool {
        if *room == 0 {
            *room = match self.pace().filter(|_| caps.pacing) {
                Some(_) => device.room_paced(&self.flow),
                None => device.room(&self.flow),
            };
        }
        *room > 0
    }

    /// Returns the capabilities of the device and the path to the peer.
    fn caps(&self, env: &ConnectionEnv<'_>, device: &dyn NetDevice) -> PathCaps {
        let caps = device.path(&self.flow);
        PathCaps { mtu: env.network.path_mtu(env.now, self.flow.remote.ip(), caps.mtu), ..caps }
    }

    /// Returns the next packet to send. The result stays the same until the packet has been sent.
    fn plan(&mut self, env: &ConnectionEnv<'_>, caps: &PathCaps) -> Option<NextPacket> {
        if self.next == 0 {
            return Some(NextPacket::Syn);
        }
        if self.state.is_opening() {
            return self.flight.first_lost().map(|_| NextPacket::Syn);
            // A peer in TIME-WAIT gets acknowledgments only, and a closed connection at most a reset.
        }
        if matches!(self.state, TcpState::TimeWait | TcpState::Closed) {
            return None;
        }
        let window_probe = self.closed_window.owes_probe(self.peer.window == 0);
        if window_probe || self.liveness.as_ref().is_some_and(|liveness| liveness.probe_owed) {
            return Some(NextPacket::Probe);
        }
        if self.repair.owes_tail_probe() {
            if let Some(probe) = self.plan_tail_probe() {
                return Some(probe);
            }
            self.repair.owe_tail_probe(false);
        }
        let allowance = self.congestion_allowance();
        let mss = self.mss as u64;
        if let Some(lost) = self.flight.first_lost() {
            // The window holds lost data back and therefore limits this flow.
            self.window_limited = true;
            if allowance == 0 {
                return None;
            }
            let most = (allowance - allowance % mss).clamp(mss, self.packet_limit(caps));
            return Some(NextPacket::Again(lost.start..lost.end.min(lost.start + most)));
        }
        self.plan_new(env, caps, allowance)
    }

    fn plan_new(&mut self, env: &ConnectionEnv<'_>, caps: &PathCaps, allowance: u64) -> Option<NextPacket> {
        let mss = self.mss as u64;
        let data_end = self.send.end();
        let fin = self.fin_position().is_some_and(|fin| self.next <= fin);
        let window = (self.una + self.peer.window).saturating_sub(self.next);
        let waiting = data_end.saturating_sub(self.next);
        let usable = waiting.min(window);
        if usable == 0 {
            let fin_alone = fin && waiting == 0 && window > 0;
            return fin_alone.then_some(NextPacket::New(self.next..self.next + 1));
        }
        // RFC 5681 4.1: after an idle time of a whole timeout, the window is reduced, because the ACK clock has
        // stopped.
        if self.flight.is_empty() {
            self.congestion.on_idle(self.tally.idle_time(env.now) > self.timeout(env.config));
        }
        if allowance < usable.min(mss) {
            self.window_limited = true;
            return None;
        }
        self.window_limited = allowance < usable;
        let mut length = usable.min(allowance).min(self.packet_limit(caps));
        let last = length == waiting;
        let short = length % mss;
        if short > 0 {
            // RFC 9293 3.7.4 (Nagle) and 3.8.6.2.1 (silly windows).
            let hurried = fin || self.outbox.is_hurried(self.next + length - short) || self.flight.is_empty();
            let big_for_peer = length * 2 >= self.peer.max_window;
            if !(last && hurried || length < mss && (big_for_peer || self.closed_window.uses_small())) {
                length -= short;
            }
            if length == 0 {
                return None;
            }
        }
        let with_fin = fin && length == waiting && window > length;
        Some(NextPacket::New(self.next..self.next + length + u64::from(with_fin)))
    }

    /// Plans a tail loss probe (RFC 8985 7.3): new data if the peer's window admits them, otherwise the last segment.
    /// Returns `None` if the tail has been acknowledged or declared lost meanwhile.
    fn plan_tail_probe(&self) -> Option<NextPacket> {
        if self.flight.is_empty() || !self.repair.is_open() {
            return None;
        }
        let mss = self.mss as u64;
        let window = (self.una + self.peer.window).saturating_sub(self.next);
        let fresh = self.send.end().saturating_sub(self.next).min(window).min(mss);
        if fresh > 0 {
            return Some(NextPacket::TailProbe { range: self.next..self.next + fresh, again: false });
        }
        let last = self.flight.last()?;
        Some(NextPacket::TailProbe { range: last.start.max(last.end.saturating_sub(mss))..last.end, again: true })
    }

    /// Returns the maximum payload of one packet for the device: a multiple of the segment size.
    fn packet_limit(&self, caps: &PathCaps) -> u64 {
        let mss = self.mss as u64;
        if caps.tso_max_bytes == 0 || !caps.checksum {
            return mss;
        }
        let most = match u64::from(caps.tso_max_bytes) {
            // Such a device does not take the packet length from the IP header.
            more if more > MAX_HEADER_LENGTH => more,
            bytes => bytes.min(MAX_PACKET_PAYLOAD),
        };
        (most - most % mss).max(mss)
    }

    fn send_planned(
        &mut self,
        plan: NextPacket,
        env: &mut ConnectionEnv<'_>,
        device: &mut dyn NetDevice,
        caps: &PathCaps,
    ) -> SendResult {
        match plan {
            NextPacket::Syn => self.send_syn(env, device, caps),
            NextPacket::Again(range) => self.send_range(range, true, env, device, caps),
            NextPacket::New(range) => self.send_range(range, false, env, device, caps),
            NextPacket::Probe => {
                // As in Linux: an already acknowledged position without data makes the peer answer, and belongs to no
                // unit.
                let probe = self.header(env, self.una - 1, self.ecn.flags(false));
                if !self.send_bare(probe, env, device, caps) {
                    return SendResult::NoRoom;
                }
                self.closed_window.note_probed();
                if let Some(liveness) = &mut self.liveness {
                    liveness.probe_owed = false;
                }
                SendResult::Sent
            }
            NextPacket::TailProbe { range, again } => {
                let outcome = self.send_range(range, again, env, device, caps);
                self.repair.owe_tail_probe(outcome == SendResult::NoRoom);
                if outcome == SendResult::Sent {
                    env.counters.loss_probes += 1;
                    self.begin_tail_probe(env, again);
                }
                outcome
            }
        }
    }

    fn send_syn(&mut self, env: &mut ConnectionEnv<'_>, device: &mut dyn NetDevice, caps: &PathCaps) -> SendResult {
        // RFC 3168 6.1.1.1: a repeated SYN does not ask for ECN, because a middlebox may have dropped the first one for
        // it.
        let again = self.next > 0;
        let first = self.state == TcpState::SynSent;
        let mut segment = self.header(env, 0, self.ecn.syn_flags(env.config.ecn, first, again));
        segment.window = self.receive.window(self.mss).min(u64::from(u16::MAX)) as u16;
        segment.options = Options {
            // RFC 6691: the MTU minus the headers without options.
            mss: Some(caps.mtu.saturating_sub((self.ip_bytes() + HEADER_BYTES) as u16)),
            window_scale: (if first { env.config.window_scaling } else { self.peer.scales })
                .then_some(self.window_scale),
            sack_permitted: if first { env.config.sack } else { self.peer.sack },
            timestamps: segment.options.timestamps,
            sack: SmallVec::new(),
        };
        self.receive.advertise(u64::from(segment.window));
        if !self.send_bare(segment, env, device, caps) {
            return SendResult::NoRoom;
        }
        if again {
            env.counters.retransmitted_segments += 1;
            self.tally.note_again(1);
            self.flight.resent(0..1, env.now);
        } else {
            env.counters.out_segments += 1;
            self.flight.push(0..1, env.now);
            self.next = FIRST_BYTE;
        }
        if self.deadlines.retransmit.is_none() {
            self.deadlines.retransmit = Some(env.now + self.timeout(env.config));
        }
        SendResult::Sent
    }

    /// Sends `range`, or its start if one packet cannot hold the whole range.
    fn send_range(
        &mut self,
        range: Range<u64>,
        again: bool,
        env: &mut ConnectionEnv<'_>,
        device: &mut dyn NetDevice,
        caps: &PathCaps,
    ) -> SendResult {
        loop {
            let data_end = range.end.min(self.send.end());
            let cut =
                if range.start < data_end { self.send.cut(range.start..data_end) } else { PacketPayload::default() };
            let cut_end = range.start + cut.len as u64;
            let at_end = cut_end == self.send.end();
            let fin = at_end && range.end > cut_end;
            let end = cut_end + u64::from(fin);
            if end == range.start {
                // The unit at this position is not queued completely, and a device or sealer needs the whole unit.
                return SendResult::Incomplete;
            }
            let fresh = !again && cut.len > 0;
            let flags = Flags { fin, psh: cut.len > 0 && at_end, ..self.ecn.flags(fresh) };
            let segment = self.header(env, range.start, flags);
            let segments = cut.len.div_ceil(self.mss).max(1);
            let outgoing = OutgoingSegment {
                flow: &self.flow,
                segment: &segment,
                fragments: cut.fragments,
                streams: cut.streams,
                ident: self.labels.ident(),
                mss: self.mss,
                // RFC 3168 6.1.5: retransmissions are not ECN-capable, because their marks would not be reliable.
                ecn_capable: fresh && self.ecn.is_capable(),
                rate: self.pace(),
            };
            // Without a known next hop, the packet waits in the network layer or is lost; TCP counts the packet as
            // sent.
            if let Some(packet) = env.network.packet(env.now, outgoing, caps, env.counters) {
                match device.transmit(env.now, packet, &self.send) {
                    TransmitResult::Posted => {}
                    TransmitResult::NeedsSoftware(unit) => match self.send.seal(unit) {
                        // A sealed unit goes out as plain payload: cut the range again, now without the context.
                        Ok(()) => {
                            env.counters.sealed_units += 1;
                            continue;
                        }
                        Err(SealFailure::Incomplete) if !self.outbox.is_finishing() => return SendResult::Incomplete,
                        Err(_) => return self.give_up_unsealed(env),
                    },
                    TransmitResult::Dropped(DropReason::RingFull) => return SendResult::NoRoom,
                    TransmitResult::Dropped(DropReason::DeviceGone) => return self.give_up_unsealed(env),
                    // Equivalent to a loss on the path, which a retransmission repairs.
                    TransmitResult::Dropped(_) => env.counters.device_drops += 1,
                }
            }
            self.labels.note_sent(segments);
            self.note_header_sent(env, &segment);
            if segment.flags.cwr {
                self.ecn.note_cwr_sent();
            }
            self.note_range_sent(range.start..end, again, segments as u64, segment.options.timestamps, env);
            if !again {
                self.arm_tail_probe(env);
            }
            return SendResult::Sent;
        }
    }

    fn note_range_sent(
        &mut self,
        range: Range<u64>,
        again: bool,
        segments: u64,
        timestamps: Option<Timestamps>,
        env: &mut ConnectionEnv<'_>,
    ) {
        let bytes = range.end - range.start;
        let first_again = again && range.start == self.una;
        self.tally.note_sent(bytes, again, env.now);
        if again {
            env.counters.retransmitted_segments += segments;
            // Linux counts retransmissions of fast recovery apart from the ones after a timeout.
            if self.repair.is_open() || !self.repair.grows_window() {
                env.counters.fast_retransmits += segments;
            } else {
                env.counters.slow_start_retransmits += segments;
            }
            self.tally.note_again(segments);
            self.flight.resent(range, env.now);
            self.note_resent(bytes, timestamps.map(|timestamps| timestamps.value));
        } else {
            env.counters.out_segments += segments;
            self.next = range.end;
            self.repair.note_carried(self.outstanding());
            self.flight.push(range, env.now);
            // The FIN leaves with the last data, so the state changes here.
            self.note_sent(bytes);
            self.on_fin_sent();
        }
        // Data in flight make window probes unnecessary: their acknowledgment carries the window.
        self.deadlines.persist = None;
        self.closed_window.note_sent();
        if self.deadlines.retransmit.is_none() || first_again {
            self.deadlines.retransmit = Some(env.now + self.timeout(env.config));
        }
    }

    /// Changes the state when the FIN leaves (RFC 9293 3.10.4).
    fn on_fin_sent(&mut self) {
        if self.fin_position().is_some_and(|fin| self.next > fin) {
            self.state = match self.state {
                TcpState::SynReceived | TcpState::Established => TcpState::FinWait1,
                TcpState::CloseWait => TcpState::LastAck,
                state => state,
            };
        }
    }

    fn give_up_unsealed(&mut self, env: &mut ConnectionEnv<'_>) -> SendResult {
        env.counters.seal_failures += 1;
        self.reset_owed = true;
        self.fail(ConnectionError::Unsealable);
        SendResult::Over
    }

    /// Sends an acknowledgment without data, with SACK blocks if negotiated. Returns false if the device has no room
    /// after all.
    fn send_ack(&mut self, env: &mut ConnectionEnv<'_>, device: &mut dyn NetDevice, caps: &PathCaps) -> bool {
        let mut segment = self.header(env, self.next, self.ecn.flags(false));
        if self.peer.sack {
            segment.options.sack = self.receive.sack_blocks(self.acks.duplicate());
        }
        if !self.send_bare(segment, env, device, caps) {
            return false;
        }
        env.counters.dsacks_sent += u64::from(self.peer.sack && self.acks.duplicate().is_some());
        env.counters.out_segments += 1;
        self.acks.note_reported();
        true
    }

    fn transmit_reset(
        &mut self,
        env: &mut ConnectionEnv<'_>,
        device: &mut dyn NetDevice,
        caps: &PathCaps,
    ) -> TransmitOutcome {
        if self.reset_owed {
            let reset = self.header(env, self.next, Flags { rst: true, ..Flags::default() });
            if device.room(&self.flow) == 0 || !self.send_bare(reset, env, device, caps) {
                return TransmitOutcome::NoRoom;
            }
            self.reset_owed = false;
            env.counters.out_resets += 1;
        }
        TransmitOutcome::Done
    }

    /// Sends a segment without payload. Returns false if the device has no room after all.
    fn send_bare(
        &mut self,
        segment: Segment,
        env: &mut ConnectionEnv<'_>,
        device: &mut dyn NetDevice,
        caps: &PathCaps,
    ) -> bool {
        let outgoing = OutgoingSegment {
            flow: &self.flow,
            segment: &segment,
            fragments: SmallVec::new(),
            streams: Default::default(),
            ident: self.labels.ident(),
            mss: self.mss,
            ecn_capable: false,
            rate: None,
        };
        if let Some(packet) = env.network.packet(env.now, outgoing, caps, env.counters) {
            match device.transmit(env.now, packet, &self.send) {
                TransmitResult::Posted => {}
                TransmitResult::Dropped(DropReason::RingFull) => return false,
                _ => env.counters.device_drops += 1,
            }
        }
        self.labels.note_sent(1);
        self.note_header_sent(env, &segment);
        true
    }

    /// Returns a header with the current acknowledgment number and window.
    fn header(&self, env: &ConnectionEnv<'_>, position: u64, flags: Flags) -> Segment {
        let opening = self.state == TcpState::SynSent;
        let window = if self.state == TcpState::Closed { 0 } else { self.receive.window(self.mss) };
        let window = (window >> self.window_scale).min(u64::from(u16::MAX)) as u16;
        let echo = self.peer.timestamp.map(|(recent, _)| recent);
        let with_timestamps = echo.is_some() || (opening && env.config.timestamps);
        Segment {
            source_port: self.flow.local.port(),
            destination_port: self.flow.remote.port(),
            seq: self.send.seq(position),
            ack: (!opening).then(|| self.receive.seq(self.receive.next())),
            flags,
            window,
            options: Options {
                timestamps: with_timestamps
                    .then(|| Timestamps { value: self.labels.timestamp(env.now), echo: echo.unwrap_or(0) }),
                ..Options::default()
            },
            marked: false,
        }
    }

    /// Records the state that the header tells the peer.
    fn note_header_sent(&mut self, env: &mut ConnectionEnv<'_>, segment: &Segment) {
        // The window of a SYN is unscaled and was recorded by its sender; a reset carries no window.
        if segment.flags.syn || segment.flags.rst {
            self.acks.note_acknowledged_until(self.receive.next());
            return;
        }
        self.receive.advertise(u64::from(segment.window) << self.window_scale);
        let closed = segment.window == 0;
        if self.acks.note_window(closed) {
            env.counters.to_zero_window += u64::from(closed);
            env.counters.from_zero_window += u64::from(!closed);
        }
        self.acks.note_acknowledged_until(self.receive.next());
        self.deadlines.ack = None;
        self.acks.note_carried(self.receive.has_holes());
    }

    /// Arms the persist timer if data wait, nothing is in flight and nothing may leave. Then the peer's window is the
    /// obstacle, and its update may get lost.
    fn arm_persist(&mut self, env: &ConnectionEnv<'_>) {
        let unsent = self.outbox.end(self.send.end()) > self.next;
        let waiting = unsent && self.flight.is_empty() && !self.state.is_opening() && !self.outbox.is_blocked();
        // During the handshake the peer has not offered a window that it could close.
        let closed = self.peer.window == 0 && !self.state.is_opening();
        self.closed_window.watch(closed && (waiting || !self.flight.is_empty()), env.now);
        self.deadlines.retransmit = self.deadlines.retransmit.map(|at| self.min_with_patience_end(env, at));
        if !waiting {
            self.deadlines.persist = None;
        } else if self.deadlines.persist.is_none() {
            let probes = self.closed_window.probes();
            let wait = self.rtt.timeout(env.config.initial_rto, env.config.min_rto, env.config.max_rto, probes);
            self.deadlines.persist = Some(self.min_with_patience_end(env, env.now + wait));
        }
    }
}

/// Maximum number of packets per turn.
const MAX_PACKETS_PER_TURN: usize = 16;
/// Segmentation size above which a device accepts packets longer than their header's length field.
const MAX_HEADER_LENGTH: u64 = 1 << 16;
/// IPv4's total length has 16 bits, its header 20 bytes (IPv6 does not count its header), and a TCP header at most 60.
const MAX_PACKET_PAYLOAD: u64 = u16::MAX as u64 - 20 - 60;
