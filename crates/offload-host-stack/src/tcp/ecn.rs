//! Explicit congestion notification (RFC 3168): a network that marks packets instead of losing them.
//!
//! Both sides agree on it with their SYNs. Then new data go as ECN-capable; a receiver of a marked packet says so with
//! ECE in everything it sends, until it sees CWR; a sender that hears ECE cuts its window, once a round trip, and says
//! so with CWR on the next new data.

use super::congestion::Signal;
use super::connection::{Connection, Env};
use super::segment::{Flags, Segment};
use crate::config::Ecn;

/// Where the two sides stand with it.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct EcnState {
    /// Both agreed.
    agreed: bool,
    /// Something marked came, and the peer has not said that it sends less since.
    echo: bool,
    /// This side sends less, and the peer is to be told.
    cut: bool,
}

impl Connection {
    /// What a SYN of this side asks for (RFC 3168 6.1.1). `again`: a SYN without an answer is repeated without, for
    /// somebody on the way may drop what asks for it (6.1.1.1).
    pub(super) fn ecn_syn_flags(&self, env: &Env<'_>, first: bool, again: bool) -> Flags {
        let asks = first && env.config.ecn == Ecn::Request && !again;
        let agrees = !first && self.ecn.agreed;
        Flags { syn: true, ece: asks || agrees, cwr: asks, ..Flags::default() }
    }

    /// What the peer's SYN says.
    pub(super) fn learn_ecn(&mut self, env: &Env<'_>, segment: &Segment) {
        let Flags { ece, cwr, .. } = segment.flags;
        self.ecn.agreed = match segment.ack {
            None => env.config.ecn != Ecn::Off && ece && cwr,
            Some(_) => env.config.ecn == Ecn::Request && ece && !cwr,
        };
    }

    /// A segment arrived, as data of this connection should.
    pub(super) fn note_mark(&mut self, env: &mut Env<'_>, segment: &Segment, bytes: usize) {
        if !self.ecn.agreed || segment.flags.syn || bytes == 0 {
            return;
        }
        self.ecn.echo &= !segment.flags.cwr;
        if segment.marked {
            env.counters.in_marked += 1;
            // A sender with a small window is not to wait for it.
            self.ack.now |= !self.ecn.echo;
            self.ecn.echo = true;
        }
    }

    /// The flags of what else leaves; `fresh`: data that leave for the first time.
    pub(super) fn ecn_flags(&self, fresh: bool) -> Flags {
        Flags { ece: self.ecn.agreed && self.ecn.echo, cwr: fresh && self.ecn.cut, ..Flags::default() }
    }

    /// Whether new data leave as ECN-capable.
    pub(super) fn ecn_capable(&self) -> bool {
        self.ecn.agreed
    }

    /// The peer was told by CWR.
    pub(super) fn note_cut_told(&mut self) {
        self.ecn.cut = false;
    }

    /// The window was cut, for whatever reason (RFC 3168 6.1.2).
    pub(super) fn owe_cut_notice(&mut self) {
        self.ecn.cut = self.ecn.agreed;
    }

    /// An acknowledgment that moved by `acked` bytes may say that the network is congested.
    pub(super) fn on_echo(&mut self, env: &mut Env<'_>, segment: &Segment, acked: u64) {
        // What was under way when the window was cut is of the same window of data, its last byte included.
        let later = self.una > self.cut_until;
        if self.ecn.agreed && segment.flags.ece && acked > 0 && later && self.recovery.is_open() {
            env.counters.window_cuts_for_marks += u64::from(self.cut_window(Signal::Mark, self.carried));
        }
    }
}
