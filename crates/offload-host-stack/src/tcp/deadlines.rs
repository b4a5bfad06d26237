//! Timers of a connection: retransmission timeout, tail loss probe, window probe, delayed acknowledgment, time limits
//! on silent peers, FIN-WAIT-2 and TIME-WAIT.

use super::connection::{Connection, ConnectionEnv};
use super::recovery::AckDelivery;
use super::report::ConnectionError;
use super::state::TcpState;
use crate::memory::MemoryLevel;
use core::time::Duration;
use offload_base::Instant;

impl Connection {
    /// Handles all timers that are due at `env.now`. The next transmission sends the resulting packets.
    pub(crate) fn handle_timeout(&mut self, env: &mut ConnectionEnv<'_>) {
        let now = env.now;
        // The end of TIME-WAIT or FIN-WAIT-2 makes all other timers irrelevant.
        if take_due(&mut self.deadlines.state, now) {
            self.close();
            return;
        }
        if self.liveness.as_mut().is_some_and(|liveness| take_due(&mut liveness.deadline, now)) {
            self.on_liveness_timeout(env);
            if self.state == TcpState::Closed {
                return;
            }
        }
        if take_due(&mut self.deadlines.ack, now) {
            env.counters.delayed_acks += 1;
            self.acks.owe();
        }
        if take_due(&mut self.deadlines.reorder, now) {
            self.on_reorder_timeout(env);
        }
        if take_due(&mut self.deadlines.probe, now) {
            self.repair.owe_tail_probe(true);
            self.deadlines.retransmit = Some(now + self.timeout(env.config));
        }
        if take_due(&mut self.deadlines.persist, now) {
            self.on_persist_timeout(env);
        }
        if take_due(&mut self.deadlines.retransmit, now) {
            self.on_retransmission_timeout(env);
        }
    }

    fn on_reorder_timeout(&mut self, env: &mut ConnectionEnv<'_>) {
        // No ACK arrived, so the loss is found by time alone.
        if self.detect_losses(env, &AckDelivery::default(), 0) {
            self.on_late_loss(env);
        }
    }

    /// Handles the retransmission timeout (RFC 6298 5.4 to 5.7).
    fn on_retransmission_timeout(&mut self, env: &mut ConnectionEnv<'_>) {
        if self.flight.is_empty() || self.reset_if_window_stays_closed(env) {
            return;
        }
        // RFC 9293 3.8.6.1: a peer that answers but keeps its window closed is not given up. The retransmission serves
        // as a probe.
        let waits = self.peer.window == 0 && !self.holder.is_gone() && !self.state.is_opening();
        let most = self.retries(env.config);
        let attempts = if waits { self.backoff.unanswered() } else { self.backoff.exponent() };
        if attempts >= most {
            self.time_out(env);
            return;
        }
        env.counters.timeouts += 1;
        self.begin_timeout_recovery(env);
        self.backoff.note_timeout(if waits { most.max(1) - 1 } else { u32::MAX });
        self.deadlines.retransmit = Some(env.now + self.timeout(env.config));
    }

    /// Returns the earlier of `at` and the time at which the peer's window will have been closed for too long.
    pub(super) fn min_with_patience_end(&self, env: &ConnectionEnv<'_>, at: Instant) -> Instant {
        let end = self.closed_window.patience_ends(env.config.zero_window_timeout);
        end.filter(|end| *end > env.now).map_or(at, |end| at.min(end))
    }

    /// Handles the persist timeout (RFC 9293 3.8.6.1): uses a small window, or probes a closed one.
    fn on_persist_timeout(&mut self, env: &mut ConnectionEnv<'_>) {
        if self.reset_if_window_stays_closed(env) {
            return;
        }
        // A peer that answers may keep its window closed, but not for an application that has dropped its handle.
        let attempts = if self.holder.is_gone() { self.closed_window.probes() } else { self.backoff.unanswered() };
        if attempts >= self.retries(env.config) {
            self.time_out(env);
            return;
        }
        let small = self.peer.window > 0;
        env.counters.window_probes += u64::from(!small);
        self.closed_window.end_closed_wait(small);
        self.backoff.note_probe();
    }

    /// Resets the connection if its peer has kept the window closed for too long. Under memory exhaustion (RFC 6429)
    /// the limit is shorter, and a connection without a handle is reset at once.
    fn reset_if_window_stays_closed(&mut self, env: &mut ConnectionEnv<'_>) -> bool {
        let closed_for = self.closed_window.closed_time(env.now);
        let exceeds = |most: Duration| closed_for.is_some_and(|closed| closed >= most);
        if env.memory == MemoryLevel::Full && (self.holder.is_gone() || exceeds(MAX_CLOSED_TIME_WHEN_FULL)) {
            env.counters.aborts_on_memory += 1;
        } else if env.config.zero_window_timeout.is_some_and(exceeds) {
            env.counters.aborts_on_timeout += 1;
        } else {
            return false;
        }
        self.fail(ConnectionError::TimedOut);
        self.reset_owed = true;
        true
    }

    pub(super) fn time_out(&mut self, env: &mut ConnectionEnv<'_>) {
        if self.state.is_opening() {
            env.counters.attempt_fails += 1;
        } else {
            env.counters.aborts_on_timeout += 1;
        }
        self.fail(ConnectionError::TimedOut);
    }
}

/// Maximum time of a closed window while the stack's memory is exhausted.
const MAX_CLOSED_TIME_WHEN_FULL: Duration = Duration::from_secs(30);

/// Returns whether the deadline is due, and clears it if so.
fn take_due(deadline: &mut Option<Instant>, now: Instant) -> bool {
    let due = deadline.is_some_and(|at| at <= now);
    if due {
        *deadline = None;
    }
    due
}
