//! Limits on the silence of a peer: keep-alive probes (RFC 9293 3.8.4) and the user timeout (RFC 9293 3.9.1; RFC 5482
//! as a local option, not announced to the peer).
//!
//! Invariant: the deadline is never later than the first necessary action. It may be earlier: events that defer the
//! action (a segment, an acknowledgment) are only recorded.

use super::connection::{Connection, ConnectionEnv};
use super::state::TcpState;
use crate::config::{KeepAlive, TcpConfig};
use core::time::Duration;
use offload_base::{Instant, time::earliest};

/// The state of liveness checks, absent on most connections.
#[derive(Debug)]
pub(super) struct Liveness {
    keep_alive: Option<KeepAlive>,
    user_timeout: Option<Duration>,
    /// Time of the peer's last acknowledgment, of new data or not.
    heard: Instant,
    /// Time since which the first unacknowledged byte waits, and its position.
    waiting: Option<(Instant, u64)>,
    /// Number of probes since the peer's last acknowledgment.
    probes: u32,
    /// Time at which the last probe was due.
    probed: Instant,
    /// Whether a probe is to be sent.
    pub(super) probe_owed: bool,
    pub(super) deadline: Option<Instant>,
}

impl Liveness {
    /// Returns the checks that the configuration requests. `None` without requested checks.
    pub(super) fn new(config: &TcpConfig) -> Option<Box<Liveness>> {
        Liveness::when_enabled(config.keep_alive, config.user_timeout, Instant::ZERO)
    }

    fn when_enabled(
        keep_alive: Option<KeepAlive>,
        user_timeout: Option<Duration>,
        heard: Instant,
    ) -> Option<Box<Liveness>> {
        (keep_alive.is_some() || user_timeout.is_some()).then(|| {
            Box::new(Liveness {
                keep_alive,
                user_timeout,
                heard,
                waiting: None,
                probes: 0,
                probed: Instant::ZERO,
                probe_owed: false,
                deadline: None,
            })
        })
    }

    /// Returns the time of the next probe, or of the abort after the last one.
    fn probe_due(&self) -> Option<Instant> {
        let keep_alive = self.keep_alive?;
        Some(if self.probes == 0 { self.heard + keep_alive.idle } else { self.probed + keep_alive.interval })
    }

    /// Returns the earliest due time. `probed` includes the probes.
    fn due(&self, probed: bool) -> Option<Instant> {
        earliest(self.user_timeout_due(), if probed { self.probe_due() } else { None })
    }

    fn user_timeout_due(&self) -> Option<Instant> {
        let (since, _) = self.waiting?;
        Some(since + self.user_timeout?)
    }
}

impl Connection {
    /// Sets the probing of a silent peer. `None` disables probing.
    pub(crate) fn set_keep_alive(&mut self, now: Instant, keep_alive: Option<KeepAlive>) {
        let user_timeout = self.liveness.as_ref().and_then(|liveness| liveness.user_timeout);
        self.liveness = Liveness::when_enabled(keep_alive, user_timeout, now);
    }

    /// Sets the maximum time that sent bytes may stay unacknowledged. `None` disables the limit.
    pub(crate) fn set_user_timeout(&mut self, now: Instant, timeout: Option<Duration>) {
        let keep_alive = self.liveness.as_ref().and_then(|liveness| liveness.keep_alive);
        self.liveness = Liveness::when_enabled(keep_alive, timeout, now);
    }

    /// Records an acknowledgment from the peer.
    pub(super) fn note_answer(&mut self, now: Instant) {
        if let Some(liveness) = &mut self.liveness {
            liveness.heard = now;
            liveness.probes = 0;
            liveness.probe_owed = false;
        }
    }

    /// Records whether bytes wait, and sets the deadline accordingly.
    pub(super) fn watch_peer(&mut self, now: Instant) {
        let (una, waits, probed, over) =
            (self.una, self.waits_for_peer(), self.is_probed(), self.state == TcpState::Closed);
        let Some(liveness) = self.liveness.as_mut().filter(|_| !over) else { return };
        if !waits {
            liveness.waiting = None;
        } else if liveness.waiting.is_none_or(|(_, first)| first != una) {
            liveness.waiting = Some((now, una));
        }
        liveness.deadline = earliest(liveness.deadline, liveness.due(probed));
    }

    /// Handles the deadline.
    pub(super) fn on_liveness_timeout(&mut self, env: &mut ConnectionEnv<'_>) {
        let now = env.now;
        self.watch_peer(now);
        let probed = self.is_probed();
        let Some(liveness) = &mut self.liveness else { return };
        // The deadline may be early, so each limit is compared with the clock again.
        let come = |at: Option<Instant>| at.is_some_and(|at| at <= now);
        if come(liveness.user_timeout_due()) {
            self.time_out(env);
            return;
        }
        if probed
            && let Some(keep_alive) = liveness.keep_alive
            && come(liveness.probe_due())
        {
            // As in Linux, a user timeout also limits the silence of an idle peer.
            let over = match liveness.user_timeout {
                Some(timeout) => liveness.probes > 0 && now - liveness.heard >= timeout,
                None => liveness.probes >= keep_alive.probes,
            };
            if over {
                self.time_out(env);
                // The peer's host may have lost the connection while a middlebox still knows the flow.
                self.reset_owed = true;
                return;
            }
            env.counters.keep_alives += 1;
            liveness.probes += 1;
            liveness.probed = now;
            liveness.probe_owed = true;
        }
        liveness.deadline = liveness.due(probed);
    }

    /// Returns the maximum number of unanswered retransmissions. A user timeout replaces it by a time limit.
    pub(super) fn retries(&self, config: &TcpConfig) -> u32 {
        match self.state {
            TcpState::SynSent => config.syn_retries,
            TcpState::SynReceived => config.syn_ack_retries,
            _ if self.holder.is_gone() => config.orphan_retries,
            _ if self.liveness.as_ref().is_some_and(|liveness| liveness.user_timeout.is_some()) => u32::MAX,
            _ => config.retries,
        }
    }

    /// Returns whether bytes of this side, including SYN and FIN, wait for the peer, rather than for the rest of their
    /// unit.
    fn waits_for_peer(&self) -> bool {
        let queued = self.una < self.outbox.end(self.send.end());
        self.una < self.next || (queued && !self.outbox.is_blocked())
    }

    /// Returns whether keep-alive probes are sent. While bytes wait, their retransmissions serve the same purpose.
    fn is_probed(&self) -> bool {
        let open = !self.state.is_opening() && !matches!(self.state, TcpState::TimeWait | TcpState::Closed);
        open && !self.waits_for_peer()
    }
}
