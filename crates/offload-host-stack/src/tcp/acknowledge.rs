//! Processing of acknowledgments: delivered bytes, round-trip times and the peer's window.

use super::congestion::AckedBytes;
use super::connection::{Connection, ConnectionEnv};
use super::flight::{FlightRangeState, SentRange};
use super::recovery::AckDelivery;
use super::segment::Segment;
use super::send_queue::FIRST_BYTE;
use super::state::TcpState;
use offload_base::Seq;

impl Connection {
    /// Processes the acknowledgment of this side's SYN. It gives the first RTT sample, unless the SYN was repeated.
    pub(super) fn acknowledge_syn(&mut self, env: &mut ConnectionEnv<'_>) {
        let (now, rtt) = (env.now, &mut self.rtt);
        self.flight.acknowledge(FIRST_BYTE, |sent| {
            if !sent.retransmitted {
                rtt.sample(now, now - sent.sent_at);
            }
        });
        self.una = FIRST_BYTE;
        self.repair.open();
        self.peer.window_ack = FIRST_BYTE;
    }

    /// Returns the position of `ack`, if acceptable. RFC 5961 5.2: a segment is dropped as a whole if it acknowledges
    /// data that were not sent, or data that were acknowledged more than a window ago.
    pub(super) fn acceptable_ack(&self, ack: Seq) -> Option<u64> {
        let oldest = self.una.saturating_sub(self.peer.max_window);
        self.send.position(ack).filter(|position| (oldest..=self.next).contains(position))
    }

    /// Processes the ACK of an acceptable segment; `position` is its position in the stream.
    pub(super) fn on_ack(&mut self, env: &mut ConnectionEnv<'_>, segment: &Segment, position: u64) {
        // An old ACK carries no new information about the window or the data.
        if position < self.una {
            return;
        }
        self.backoff.note_answer();
        let window_before = self.peer.window;
        self.set_peer_window(segment, position);
        let payload_free = segment.sequence_len(0) == 0;
        let plain_duplicate = position == self.una && payload_free && self.peer.window == window_before;

        // The scoreboard is updated first, because recovery below decides on the new state.
        let mut delivery = self.note_delivery(env, segment, position);
        delivery.repeated = plain_duplicate && segment.options.sack.is_empty();
        delivery.plain_duplicate = plain_duplicate && !self.flight.is_empty();
        let acked = position - self.una;
        if acked > 0 {
            self.advance(env, position);
        }
        self.recover(env, segment, &delivery, acked);
        // A congestion mark counts after loss recovery, so that one event reduces the window once.
        self.on_echo(env, segment, acked);
        if acked > 0 && self.repair.grows_window() {
            self.congestion.on_ack(&AckedBytes {
                now: env.now,
                bytes: acked,
                una: self.una,
                next: self.next,
                rtt: delivery.rtt,
                smoothed_rtt: self.rtt.smoothed(),
                limited: self.window_limited,
            });
        }
        if self.flight.is_empty() {
            self.deadlines.retransmit = None;
            self.deadlines.probe = None;
            self.deadlines.reorder = None;
            if self.outbox.end(self.send.end()) <= self.next {
                // An idle connection need not remember its loss recovery. If more data are queued, the connection is
                // not idle: a batch of ACKs has arrived before its turn to send.
                self.repair.forget();
                self.congestion.on_quiet();
            }
        } else if acked > 0 || window_before == 0 && self.peer.window > 0 {
            // The path and the peer accept data again, so timeouts start from the base value.
            self.backoff.reset();
            self.arm_after_progress(env);
        }
        if self.peer.window > 0 {
            self.closed_window.note_open();
        }
    }

    /// Updates the peer's window from the latest segment by sequence and acknowledgment (RFC 9293 3.10.7.4). As in
    /// Linux, a segment that acknowledges more is later in any case, because it may be a retransmission. The window
    /// counts from the segment's own acknowledgment; with an older one it would promise bytes that the peer never
    /// offered.
    pub(super) fn set_peer_window(&mut self, segment: &Segment, ack: u64) {
        let newer = ack > self.peer.window_ack
            || segment.seq.after(self.peer.window_seq)
            || (segment.seq == self.peer.window_seq && ack == self.peer.window_ack);
        if newer {
            let shift = if segment.flags.syn { 0 } else { self.peer.window_shift };
            self.peer.window = u64::from(segment.window) << shift;
            self.peer.max_window = self.peer.max_window.max(self.peer.window);
            self.peer.window_seq = segment.seq;
            self.peer.window_ack = ack;
            if self.peer.window > 0 {
                self.deadlines.persist = None;
            }
        }
    }

    /// Updates the scoreboard from the acknowledgment and its SACK blocks, and takes an RTT sample.
    fn note_delivery(&mut self, env: &mut ConnectionEnv<'_>, segment: &Segment, position: u64) -> AckDelivery {
        let mut delivery = AckDelivery::default();
        let forward = self.repair.rack().forward();
        let now = env.now;
        let mut sample = None;
        // RFC 8985 6.2 step 2: an echo from before the retransmission acknowledges the original. SACK blocks have no
        // echo of their own.
        let echo = segment.options.timestamps.map(|timestamps| Seq(timestamps.echo));
        let labels = self.labels;
        let older = |sent_at| echo.is_some_and(|echo| echo.before(Seq(labels.timestamp(sent_at))));
        {
            let (rack, rtt, mss) = (self.repair.rack(), &self.rtt, self.mss as u64);
            let mut deliver = |sent: &SentRange, original: bool| {
                delivery.bytes += sent.end - sent.start;
                delivery.late |= rack.on_delivered(now, sent, forward, original, rtt);
                if !sent.retransmitted {
                    // Karn's rule: a retransmitted range gives no RTT sample.
                    sample = sample.max(Some(sent.sent_at));
                    delivery.given_up |= sent.state == FlightRangeState::Lost;
                }
            };
            self.flight.acknowledge(position, |sent| deliver(sent, older(sent.sent_at)));
            if self.peer.sack {
                for (index, (from, to)) in segment.options.sack.iter().enumerate() {
                    let (Some(from), Some(to)) = (self.send.position(*from), self.send.position(*to)) else {
                        continue;
                    };
                    if from >= to || to > self.next {
                        continue;
                    }
                    // RFC 2883 4: the first block reports a duplicate if it lies before the acknowledgment or within
                    // the second block.
                    let within_second = || {
                        segment.options.sack.get(1).is_some_and(|(start, end)| {
                            self.send.position(*start).is_some_and(|start| start <= from)
                                && self.send.position(*end).is_some_and(|end| to <= end)
                        })
                    };
                    if index == 0 && (to <= position || within_second()) {
                        delivery.duplicate = Some(from..to);
                        continue;
                    }
                    if to > position {
                        self.flight.sack(from.max(position)..to, mss, |sent| deliver(sent, false));
                    }
                }
            }
        }
        if let Some(sent_at) = sample {
            let rtt = now - sent_at;
            self.rtt.sample(now, rtt);
            delivery.rtt = Some(rtt);
        }
        if delivery.late {
            env.counters.sack_reorders += 1;
        }
        delivery
    }

    /// Moves the first unacknowledged position to `position`.
    fn advance(&mut self, env: &mut ConnectionEnv<'_>, position: u64) {
        let had_room = self.room(env.config, env.memory) > 0;
        self.una = position;
        self.backoff.reset();
        self.send.acknowledge(position.clamp(FIRST_BYTE, self.send.end()));
        // A waiting writer is woken when a third of the buffer is free, instead of for each segment.
        let free = self.room(env.config, env.memory);
        if free > 0 && (!had_room || free >= env.config.send_buffer / 3) {
            self.readiness.writable = true;
        }
        self.readiness.acknowledged |= self.holder.note_acknowledged(position);
        if self.fin_position().is_some_and(|fin| position > fin) {
            self.on_fin_acknowledged(env);
        }
    }

    fn on_fin_acknowledged(&mut self, env: &mut ConnectionEnv<'_>) {
        match self.state {
            TcpState::FinWait1 => {
                self.state = TcpState::FinWait2;
                if self.holder.is_gone() {
                    self.deadlines.state = Some(env.now + env.config.fin_timeout);
                }
            }
            TcpState::Closing => self.enter_time_wait(env),
            TcpState::LastAck => self.close(),
            _ => {}
        }
    }
}
