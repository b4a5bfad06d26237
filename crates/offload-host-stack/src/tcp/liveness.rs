//! How long a silent peer is waited for: keep-alive probes (RFC 9293 3.8.4) and the user timeout (RFC 9293 3.9.1; RFC
//! 5482 as an option of this side, which is not told to the peer).
//!
//! Invariant: the deadline is never later than the first moment at which something is to be done; it may be earlier,
//! for what moves it away (a segment arrives, bytes are acknowledged) only leaves word.

use super::connection::{Connection, Env};
use super::state::State;
use crate::config::{KeepAlive, TcpConfig};
use core::time::Duration;
use offload_base::{Instant, time::earliest};

/// What is kept of it. Most connections are watched by nobody, and have none of it.
#[derive(Debug)]
pub(super) struct Liveness {
    keep_alive: Option<KeepAlive>,
    user_timeout: Option<Duration>,
    /// When the peer last acknowledged anything, be it nothing new.
    heard: Instant,
    /// Since when the first unacknowledged byte waits, and its position.
    waiting: Option<(Instant, u64)>,
    /// Probes since the peer was last heard of, and when the last one was due.
    probes: u32,
    probed: Instant,
    /// A probe is to be sent.
    pub(super) probe_owed: bool,
    pub(super) deadline: Option<Instant>,
}

impl Liveness {
    /// What the configuration asks for.
    pub(super) fn new(config: &TcpConfig) -> Option<Box<Liveness>> {
        Liveness::asked(config.keep_alive, config.user_timeout, Instant::ZERO)
    }

    fn asked(keep_alive: Option<KeepAlive>, user_timeout: Option<Duration>, heard: Instant) -> Option<Box<Liveness>> {
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

    /// When the next probe is due, or the peer's time is up.
    fn probe_due(&self) -> Option<Instant> {
        let keep_alive = self.keep_alive?;
        Some(if self.probes == 0 { self.heard + keep_alive.idle } else { self.probed + keep_alive.interval })
    }

    /// The first of what is due; `probed`: probes are among it.
    fn due(&self, probed: bool) -> Option<Instant> {
        earliest(self.user_timeout_due(), if probed { self.probe_due() } else { None })
    }

    fn user_timeout_due(&self) -> Option<Instant> {
        let (since, _) = self.waiting?;
        Some(since + self.user_timeout?)
    }
}

impl Connection {
    /// Whether the peer is probed when nothing has been heard of it for long.
    pub(crate) fn set_keep_alive(&mut self, now: Instant, keep_alive: Option<KeepAlive>) {
        let user_timeout = self.liveness.as_ref().and_then(|liveness| liveness.user_timeout);
        self.liveness = Liveness::asked(keep_alive, user_timeout, now);
    }

    /// How long bytes may wait for their acknowledgment before the connection is given up.
    pub(crate) fn set_user_timeout(&mut self, now: Instant, timeout: Option<Duration>) {
        let keep_alive = self.liveness.as_ref().and_then(|liveness| liveness.keep_alive);
        self.liveness = Liveness::asked(keep_alive, timeout, now);
    }

    /// The peer has acknowledged something.
    pub(super) fn hear(&mut self, now: Instant) {
        if let Some(liveness) = &mut self.liveness {
            liveness.heard = now;
            liveness.probes = 0;
            liveness.probe_owed = false;
        }
    }

    /// Looks whether bytes wait, and sees to it that somebody looks at the clock in time.
    pub(super) fn watch_peer(&mut self, now: Instant) {
        let (una, waits, probed, over) =
            (self.una, self.waits_for_peer(), self.is_probed(), self.state == State::Closed);
        let Some(liveness) = self.liveness.as_mut().filter(|_| !over) else { return };
        if !waits {
            liveness.waiting = None;
        } else if liveness.waiting.is_none_or(|(_, first)| first != una) {
            liveness.waiting = Some((now, una));
        }
        liveness.deadline = earliest(liveness.deadline, liveness.due(probed));
    }

    /// The deadline has come.
    pub(super) fn on_liveness_timeout(&mut self, env: &mut Env<'_>) {
        let now = env.now;
        self.watch_peer(now);
        let probed = self.is_probed();
        let Some(liveness) = &mut self.liveness else { return };
        let come = |at: Option<Instant>| at.is_some_and(|at| at <= now);
        if come(liveness.user_timeout_due()) {
            self.give_up(env);
            return;
        }
        if probed
            && let Some(keep_alive) = liveness.keep_alive
            && come(liveness.probe_due())
        {
            // A user timeout is the last word on silence too, as in Linux.
            let over = match liveness.user_timeout {
                Some(timeout) => liveness.probes > 0 && now - liveness.heard >= timeout,
                None => liveness.probes >= keep_alive.probes,
            };
            if over {
                self.give_up(env);
                // The peer may only have forgotten the connection, and somebody else may know of it.
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

    /// How often something is repeated without an answer; a user timeout says it by the clock.
    pub(super) fn retries(&self, config: &TcpConfig) -> u32 {
        match self.state {
            State::SynSent => config.syn_retries,
            State::SynReceived => config.syn_ack_retries,
            _ if self.holder.is_gone() => config.orphan_retries,
            _ if self.liveness.as_ref().is_some_and(|liveness| liveness.user_timeout.is_some()) => u32::MAX,
            _ => config.retries,
        }
    }

    /// Whether bytes of this side, SYN and FIN included, are not acknowledged, and not for want of the rest of a unit.
    fn waits_for_peer(&self) -> bool {
        let queued = self.una < self.outbox.end(self.send.end());
        self.una < self.next || (queued && !self.outbox.is_blocked())
    }

    /// Whether silence is looked into: where bytes wait, they are sent again anyway.
    fn is_probed(&self) -> bool {
        let open = !self.state.is_opening() && !matches!(self.state, State::TimeWait | State::Closed);
        open && !self.waits_for_peer()
    }
}
