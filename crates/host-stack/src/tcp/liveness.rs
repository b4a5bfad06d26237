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

#[derive(Clone, Copy, Debug)]
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
    pub(super) fn new(config: &TcpConfig) -> Liveness {
        Liveness {
            keep_alive: config.keep_alive,
            user_timeout: config.user_timeout,
            heard: Instant::ZERO,
            waiting: None,
            probes: 0,
            probed: Instant::ZERO,
            probe_owed: false,
            deadline: None,
        }
    }

    /// The peer has acknowledged something.
    pub(super) fn hear(&mut self, now: Instant) {
        self.heard = now;
        self.probes = 0;
        self.probe_owed = false;
    }

    /// When the next probe is due, or the peer's time is up.
    fn probe_due(&self) -> Option<Instant> {
        let keep_alive = self.keep_alive?;
        Some(if self.probes == 0 { self.heard + keep_alive.idle } else { self.probed + keep_alive.interval })
    }

    fn user_timeout_due(&self) -> Option<Instant> {
        let (since, _) = self.waiting?;
        Some(since + self.user_timeout?)
    }
}

impl Connection {
    /// Whether the peer is probed when nothing has been heard of it for long.
    pub(crate) fn set_keep_alive(&mut self, keep_alive: Option<KeepAlive>) {
        self.liveness.keep_alive = keep_alive;
        self.liveness.probes = 0;
        self.liveness.deadline = None;
    }

    /// How long bytes may wait for their acknowledgment before the connection is given up.
    pub(crate) fn set_user_timeout(&mut self, timeout: Option<Duration>) {
        self.liveness.user_timeout = timeout;
        self.liveness.deadline = None;
    }

    /// Looks whether bytes wait, and sees to it that somebody looks at the clock in time.
    pub(super) fn watch_peer(&mut self, now: Instant) {
        let unwatched = self.liveness.keep_alive.is_none() && self.liveness.user_timeout.is_none();
        if unwatched || self.state == State::Closed {
            return;
        }
        let una = self.una;
        if !self.waits_for_peer() {
            self.liveness.waiting = None;
        } else if self.liveness.waiting.is_none_or(|(_, first)| first != una) {
            self.liveness.waiting = Some((now, una));
        }
        self.liveness.deadline = earliest(self.liveness.deadline, self.liveness_due());
    }

    /// The deadline has come.
    pub(super) fn on_liveness_timeout(&mut self, env: &mut Env<'_>) {
        let now = env.now;
        self.watch_peer(now);
        if self.liveness.user_timeout_due().is_some_and(|at| at <= now) {
            self.give_up(env);
            return;
        }
        if self.is_probed()
            && let Some(keep_alive) = self.liveness.keep_alive
            && self.liveness.probe_due().is_some_and(|at| at <= now)
        {
            // A user timeout is the last word on silence too, as in Linux.
            let silent = now - self.liveness.heard;
            let over = match self.liveness.user_timeout {
                Some(timeout) => self.liveness.probes > 0 && silent >= timeout,
                None => self.liveness.probes >= keep_alive.probes,
            };
            if over {
                self.give_up(env);
                // The peer may only have forgotten the connection, and somebody else may know of it.
                self.reset_owed = true;
                return;
            }
            env.counters.keep_alives += 1;
            self.liveness.probes += 1;
            self.liveness.probed = now;
            self.liveness.probe_owed = true;
        }
        self.liveness.deadline = self.liveness_due();
    }

    fn liveness_due(&self) -> Option<Instant> {
        let probe = if self.is_probed() { self.liveness.probe_due() } else { None };
        earliest(self.liveness.user_timeout_due(), probe)
    }

    /// How often something is repeated without an answer; a user timeout says it by the clock.
    pub(super) fn retries(&self, config: &TcpConfig) -> u32 {
        match self.state {
            State::SynSent => config.syn_retries,
            State::SynReceived => config.syn_ack_retries,
            _ if self.detached => config.orphan_retries,
            _ if self.liveness.user_timeout.is_some() => u32::MAX,
            _ => config.retries,
        }
    }

    /// Whether bytes of this side, SYN and FIN included, are not acknowledged, and not for want of the rest of a unit.
    fn waits_for_peer(&self) -> bool {
        let queued = self.una < self.send.end() + u64::from(self.finishing);
        self.una < self.next || (queued && !self.blocked_on_unit)
    }

    /// Whether silence is looked into: where bytes wait, they are sent again anyway.
    fn is_probed(&self) -> bool {
        let open = !self.state.is_opening() && !matches!(self.state, State::TimeWait | State::Closed);
        open && !self.waits_for_peer()
    }
}
