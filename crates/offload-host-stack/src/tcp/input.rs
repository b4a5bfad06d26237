//! Processing of received segments (RFC 9293 3.10.7), with the checks of RFC 5961 and RFC 7323.
//!
//! Invariant: a segment that fails a check changes nothing of the connection, except that an acknowledgment may be
//! owed.

use super::connection::{Connection, ConnectionEnv};
use super::report::ConnectionError;
use super::segment::{Flags, Segment, SegmentPayload};
use super::send_queue::FIRST_BYTE;
use super::state::TcpState;
use crate::memory::{MIN_QUEUE_BYTES, MemoryLevel};
use core::time::Duration;
use offload_base::{Instant, Seq};

impl Connection {
    /// Processes a segment. Returns a reset to be sent in answer, if one is due.
    pub(crate) fn on_segment(
        &mut self,
        env: &mut ConnectionEnv<'_>,
        segment: &Segment,
        payload: SegmentPayload,
    ) -> Option<Segment> {
        self.receive.set_memory(env.memory);
        match self.state {
            TcpState::Closed => reset_for(segment, payload.data.len()),
            TcpState::SynSent => self.on_segment_in_syn_sent(env, segment, payload),
            _ => self.on_segment_synchronized(env, segment, payload),
        }
    }

    /// Processes the peer's SYN for a new connection.
    pub(crate) fn on_first_syn(&mut self, env: &mut ConnectionEnv<'_>, segment: &Segment) {
        self.apply_syn(env, segment);
        self.receive.begin_with(env.memory);
    }

    /// Restores the state after a SYN and a SYN-ACK for a connection whose cookie the peer has acknowledged.
    pub(crate) fn on_syn_of_cookie(&mut self, env: &mut ConnectionEnv<'_>, segment: &Segment) {
        self.apply_syn(env, segment);
        self.receive.begin_with(env.memory);
        self.next = FIRST_BYTE;
        self.receive.advertise(self.receive.window(self.mss).min(u64::from(u16::MAX)));
        self.acks.note_acknowledged_until(self.receive.next());
    }

    /// Processes a segment in SYN-SENT (RFC 9293 3.10.7.3).
    fn on_segment_in_syn_sent(
        &mut self,
        env: &mut ConnectionEnv<'_>,
        segment: &Segment,
        payload: SegmentPayload,
    ) -> Option<Segment> {
        let acknowledges = match segment.ack {
            None => false,
            Some(ack) if self.next > 0 && ack == self.first_seq() => true,
            Some(_) => return reset_for(segment, payload.data.len()),
        };
        if segment.flags.rst {
            if acknowledges {
                env.counters.attempt_fails += 1;
                self.fail(ConnectionError::Refused);
            }
            return None;
        }
        if !segment.flags.syn {
            return None;
        }
        self.apply_syn(env, segment);
        if !acknowledges {
            // Simultaneous open: the SYN is repeated as a SYN-ACK.
            self.state = TcpState::SynReceived;
            self.flight.lose_all();
            return None;
        }
        self.note_answer(env.now);
        self.acknowledge_syn(env);
        self.establish();
        self.acks.owe();
        // Data in a SYN-ACK (apart from RFC 7413) are unusual, but legal.
        if !payload.data.is_empty() || segment.flags.fin {
            self.take_data(env, 1, segment, payload);
        }
        None
    }

    /// Processes a segment in a synchronized state (RFC 9293 3.10.7.4).
    fn on_segment_synchronized(
        &mut self,
        env: &mut ConnectionEnv<'_>,
        segment: &Segment,
        payload: SegmentPayload,
    ) -> Option<Segment> {
        let next = self.receive.next();
        // PAWS comes before the sequence check, because an old duplicate may lie within the window (RFC 7323 5.3).
        if self.is_stale(env, segment) {
            env.counters.paws_drops += 1;
            if !segment.flags.rst {
                self.challenge(env);
            }
            return None;
        }
        let length = u64::from(segment.sequence_len(payload.data.len()));
        let edge = self.receive.edge();
        // A segment that ends before the acknowledged data, or begins beyond the window, is not acceptable. A segment
        // at the edge of a closed window is acceptable: only its acknowledgment is used, and it is answered (RFC 9293
        // 3.8.6.1, 3.10.7.4).
        let start = self.receive.position(segment.seq);
        let acceptable = start.is_some_and(|start| start + length >= next.min(self.acks.until()) && start <= edge);
        let Some(start) = start.filter(|_| acceptable) else {
            return self.on_unacceptable(env, segment, start, length);
        };
        if segment.flags.rst {
            // RFC 5961 3.2: only the exact sequence number resets. Another one within the window is answered with a
            // challenge ACK.
            if start == next {
                self.on_reset(env);
            } else {
                self.challenge(env);
            }
            return None;
        }
        let mut start = start;
        if segment.flags.syn {
            // A repetition of the peer's SYN means that our answer was lost. Any other SYN may be forged (RFC 5961
            // 4.2).
            if start != 0 {
                self.challenge(env);
                return None;
            }
            if self.state == TcpState::SynReceived && segment.ack.is_none() {
                self.flight.lose_all();
                return None;
            }
            self.challenge(env);
            start = 1;
        }
        // RFC 9293 3.10.7.4: a segment without ACK is dropped from here on.
        let ack = segment.ack?;
        if self.state == TcpState::SynReceived {
            if ack != self.first_seq() || self.next == 0 {
                return reset_for(segment, payload.data.len());
            }
            self.acknowledge_syn(env);
            self.establish();
            self.set_peer_window(segment, self.una);
        }
        // RFC 5961 5.2: a segment with an unacceptable ACK is dropped as a whole.
        let Some(position) = self.acceptable_ack(ack) else {
            self.challenge(env);
            return None;
        };
        // Only an acceptable ACK proves that the peer is alive; a forged segment must not defer the timeouts.
        self.note_answer(env.now);
        self.remember_timestamp(env, segment, start);
        if let Some(at_once) = self.ecn.note_arrival(segment, payload.data.len()) {
            env.counters.in_marked += 1;
            self.acks.owe_if(at_once);
        }
        self.on_ack(env, segment, position);
        if self.state == TcpState::Closed {
            return None;
        }
        if length > 0 {
            self.take_data(env, start, segment, payload);
        }
        self.reset_after_discard(env);
        None
    }

    /// Handles a segment outside the window: the peer is told the expected sequence number, unless the segment is a
    /// reset.
    fn on_unacceptable(
        &mut self,
        env: &mut ConnectionEnv<'_>,
        segment: &Segment,
        start: Option<u64>,
        length: u64,
    ) -> Option<Segment> {
        if segment.flags.rst {
            return None;
        }
        let next = self.receive.next();
        match start {
            Some(start) if length > 0 && start + length <= next => {
                self.acks.note_duplicate(start.max(1)..(start + length).max(1));
                self.acks.owe();
                self.restart_time_wait(env, segment);
            }
            // The data lie beyond the window.
            _ if length > 0 => self.acks.owe(),
            // The segment is a probe, or belongs to an exchange of ACKs in which each side answers the other without
            // end. A limited rate of answers serves the former and ends the latter.
            _ if !self.acks.answered_within(MIN_ANSWER_INTERVAL, env.now) => self.acks.answer(env.now),
            _ => {}
        }
        None
    }

    fn on_reset(&mut self, env: &mut ConnectionEnv<'_>) {
        match self.state {
            TcpState::SynReceived => env.counters.attempt_fails += 1,
            TcpState::Established | TcpState::CloseWait => env.counters.established_resets += 1,
            _ => {}
        }
        // RFC 9293 3.10.7.4: a reset after both FINs is not an error for the application.
        if matches!(self.state, TcpState::TimeWait | TcpState::Closing | TcpState::LastAck) {
            self.close();
        } else {
            self.fail(ConnectionError::Reset);
        }
    }

    pub(super) fn establish(&mut self) {
        self.state = TcpState::Established;
        self.readiness.opened = true;
        self.readiness.writable = true;
        self.deadlines.retransmit = None;
        self.backoff.reset();
        if self.fin_position().is_some_and(|fin| self.next > fin) {
            self.state = TcpState::FinWait1;
        }
    }

    /// Owes a challenge ACK, within the limits of RFC 5961 7. Each connection has its own limit. The common limit
    /// varies at random, so that an attacker cannot infer challenges of another connection from the answers to his own
    /// (CVE-2016-5696).
    fn challenge(&mut self, env: &mut ConnectionEnv<'_>) {
        if !self.acks.answered_within(MIN_CHALLENGE_INTERVAL, env.now) && env.challenges.allow(env.now) {
            env.counters.challenge_acks += 1;
            self.acks.answer(env.now);
        }
    }

    /// Returns whether PAWS rejects the segment (RFC 7323 5.3). After negotiation, a segment without timestamps is
    /// rejected, too.
    fn is_stale(&self, env: &ConnectionEnv<'_>, segment: &Segment) -> bool {
        let Some((recent, set_at)) = self.peer.timestamp else { return false };
        if segment.flags.rst {
            return false;
        }
        let Some(timestamps) = segment.options.timestamps else { return true };
        // RFC 7323 5.5: after 24 days the peer's clock may have wrapped, so the comparison is meaningless.
        Seq(timestamps.value).before(Seq(recent)) && env.now - set_at < PAWS_IDLE
    }

    /// Stores the timestamp to echo: the one of the segment that moved the left window edge (RFC 7323 4.3 (2)).
    fn remember_timestamp(&mut self, env: &ConnectionEnv<'_>, segment: &Segment, start: u64) {
        if let (Some((recent, set_at)), Some(timestamps)) = (&mut self.peer.timestamp, segment.options.timestamps)
            && Seq(timestamps.value).at_or_after(Seq(*recent))
            && start <= self.acks.until()
        {
            (*recent, *set_at) = (timestamps.value, env.now);
        }
    }

    /// Takes data and FIN from position `start` on, as far as they lie within the window.
    fn take_data(&mut self, env: &mut ConnectionEnv<'_>, start: u64, segment: &Segment, mut payload: SegmentPayload) {
        if !self.state.may_receive() {
            // The peer's FIN was received, so only repetitions of that FIN and of earlier data are expected.
            let end = start + u64::from(segment.sequence_len(payload.data.len()));
            if end <= self.receive.next() && !segment.flags.syn {
                self.acks.note_duplicate(start..end);
            }
            self.acks.owe();
            self.restart_time_wait(env, segment);
            return;
        }
        let end = start + payload.data.len() as u64;
        let was_holed = self.receive.has_holes();
        let edge = self.receive.edge();
        if end > edge {
            // The peer repeats the rest, and its FIN. A probe of the closed window needs an answer.
            payload.data.truncate(edge.saturating_sub(start) as usize);
            self.acks.owe();
        } else if segment.flags.fin && end >= self.receive.furthest() && self.peer_fin.is_none() {
            // A FIN just beyond the window takes no memory. A FIN in front of received data is invalid.
            self.peer_fin = Some(end);
        }
        if let Some(fin) = self.peer_fin {
            // Data after the FIN are invalid.
            payload.data.truncate(fin.saturating_sub(start) as usize);
        }
        if env.memory == MemoryLevel::Full {
            // A joined packet counts as many segments, but under memory exhaustion a connection may have only one of
            // them, or the guaranteed minimum.
            let most = payload.segment_bytes.max(MIN_QUEUE_BYTES);
            self.acks.owe_if(payload.data.len() > most);
            payload.data.truncate(most);
        }
        if !payload.data.is_empty() {
            // The buffer grows with arriving data, because a sender at rest needs no larger window.
            self.receive.tune(env.now, self.round_trip_of_receiver(env, segment));
            self.receive.note_segment_bytes(payload.segment_bytes);
            let received = self.receive.insert_parts(start, payload.data, payload.placed, payload.meta);
            env.counters.out_of_order_pruned += received.pruned;
            let too_little = received.dropped || received.pruned > 0 || received.collapsed;
            env.counters.prune_called += u64::from(too_little);
            env.counters.receive_collapsed += u64::from(received.collapsed);
            env.counters.out_of_order_queued += u64::from(received.out_of_order > 0);
            if received.dropped {
                let in_order = start <= self.receive.next();
                let counter =
                    if in_order { &mut env.counters.receive_queue_drops } else { &mut env.counters.out_of_order_drops };
                *counter += 1;
            }
            if received.in_order > 0 {
                self.readiness.readable = true;
                if self.holder.is_gone() {
                    self.holder.note_discarded(self.receive.discard());
                }
            }
            // RFC 5681 4.2: a segment that is out of order, fills a gap or was dropped is acknowledged at once.
            let urgent = was_holed
                || received.filled
                || received.dropped
                || received.out_of_order > 0
                || received.duplicate.is_some();
            if let Some(duplicate) = received.duplicate {
                self.acks.note_duplicate(duplicate);
            }
            if urgent {
                self.acks.enter_quick_mode();
            } else {
                self.owe_ack(env);
            }
        }
        if self.peer_fin == Some(self.receive.next()) {
            self.on_fin(env);
        } else if segment.flags.fin {
            self.acks.owe();
        }
    }

    /// Estimates the round-trip time of a receiver. A mere receiver has one RTT sample, from the handshake; but the
    /// peer's echoed timestamps show when the last acknowledgment was sent.
    fn round_trip_of_receiver(&self, env: &ConnectionEnv<'_>, segment: &Segment) -> Duration {
        let echoed = segment.options.timestamps.filter(|timestamps| timestamps.echo != 0).map(|timestamps| {
            let ago = Seq(self.labels.timestamp(env.now)) - Seq(timestamps.echo);
            Duration::from_millis(u64::try_from(ago).unwrap_or(0))
        });
        self.rtt.smoothed().max(echoed).unwrap_or_default()
    }

    /// Owes an acknowledgment for in-order data: at the latest for every second full segment (RFC 5681 4.2), and within
    /// the delay limit. Any data beyond one full segment suffice, as in Linux: the second segment may be a short one,
    /// after which the sender's congestion window admits no more.
    fn owe_ack(&mut self, env: &mut ConnectionEnv<'_>) {
        let unacknowledged = self.receive.next() - self.acks.until();
        if self.acks.is_in_quick_mode() || unacknowledged > self.receive.largest() as u64 {
            self.acks.owe();
        } else if self.deadlines.ack.is_none() {
            self.deadlines.ack = Some(env.now + env.config.delayed_ack);
        }
    }

    /// Handles the peer's FIN after all its data have arrived.
    fn on_fin(&mut self, env: &mut ConnectionEnv<'_>) {
        self.receive.skip_fin();
        self.acks.owe();
        self.readiness.readable = true;
        match self.state {
            TcpState::SynReceived | TcpState::Established => self.state = TcpState::CloseWait,
            TcpState::FinWait1 => self.state = TcpState::Closing,
            TcpState::FinWait2 => self.enter_time_wait(env),
            _ => {}
        }
    }

    /// Enters TIME-WAIT, because both sides are closed.
    pub(super) fn enter_time_wait(&mut self, env: &mut ConnectionEnv<'_>) {
        self.state = TcpState::TimeWait;
        self.deadlines = Default::default();
        self.deadlines.state = Some(env.now + env.config.time_wait);
        self.readiness.acknowledged = true;
        self.readiness.writable = true;
    }

    /// Restarts TIME-WAIT after a repeated FIN of the peer (RFC 9293 3.10.7.4).
    fn restart_time_wait(&mut self, env: &mut ConnectionEnv<'_>, segment: &Segment) {
        if self.state == TcpState::TimeWait && segment.flags.fin {
            self.deadlines.state = Some(env.now + env.config.time_wait);
        }
    }

    /// Returns whether this side may reopen the flow although this connection is in TIME-WAIT. RFC 6191 has the rule
    /// for the peer's side: once the timestamp clock has advanced, timestamps tell the segments of both connections
    /// apart. The result is the lowest initial sequence number for the new connection.
    pub(crate) fn may_be_reopened(&self, now: Instant, time_wait: Duration) -> Option<Seq> {
        let waits = self.state == TcpState::TimeWait && self.holder.is_gone() && self.peer.timestamp.is_some();
        let since = self.deadlines.state.filter(|_| waits)?;
        (now + time_wait >= since + MIN_TIME_WAIT).then(|| self.send.seq(self.next))
    }

    /// Returns whether a SYN may reopen the flow although this connection is in TIME-WAIT (RFC 6191, RFC 1122
    /// 4.2.2.13). The result is the lowest initial sequence number for the new connection: it must lie beyond all
    /// numbers used by this connection.
    pub(crate) fn may_be_replaced_by(&self, segment: &Segment) -> Option<Seq> {
        let flags = segment.flags;
        if self.state != TcpState::TimeWait || !self.holder.is_gone() {
            return None;
        }
        if !flags.syn || segment.ack.is_some() || flags.rst || flags.fin {
            return None;
        }
        let is_new = match (self.peer.timestamp, segment.options.timestamps) {
            (Some((recent, _)), Some(timestamps)) if timestamps.value != recent => {
                Seq(timestamps.value).after(Seq(recent))
            }
            _ => segment.seq.after(self.receive.seq(self.receive.next())),
        };
        is_new.then(|| self.send.seq(self.next))
    }
}

/// Returns the reset that answers an unexpected segment (RFC 9293 3.10.7.1). `None` for a reset.
pub(crate) fn reset_for(segment: &Segment, payload: usize) -> Option<Segment> {
    if segment.flags.rst {
        return None;
    }
    let (seq, ack) = match segment.ack {
        Some(ack) => (ack, None),
        None => (Seq(0), Some(segment.seq + segment.sequence_len(payload))),
    };
    Some(Segment {
        source_port: segment.destination_port,
        destination_port: segment.source_port,
        seq,
        ack,
        flags: Flags { rst: true, ..Flags::default() },
        ..Segment::default()
    })
}

/// Minimum time between answers to unacceptable segments without payload; shorter than any probe interval.
const MIN_ANSWER_INTERVAL: Duration = Duration::from_millis(10);
/// Minimum time between challenge ACKs: Linux's tcp_invalid_ratelimit, and less than a peer's SYN retransmission
/// timeout.
const MIN_CHALLENGE_INTERVAL: Duration = Duration::from_millis(500);
/// Time in TIME-WAIT after which a flow may be reopened. One second, as in Linux's tcp_tw_reuse: at least two ticks of
/// any timestamp clock (RFC 7323 5.4).
const MIN_TIME_WAIT: Duration = Duration::from_secs(1);
/// Idle time after which PAWS no longer applies (RFC 7323 5.5).
const PAWS_IDLE: Duration = Duration::from_secs(24 * 24 * 3600);
