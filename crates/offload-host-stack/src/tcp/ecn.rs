//! Explicit congestion notification (RFC 3168): the network marks packets instead of dropping them.
//!
//! The SYNs negotiate ECN. Then new data are sent as ECN-capable. A receiver of a marked packet sets ECE in all its
//! segments until it sees CWR. A sender that sees ECE reduces its window, at most once per round trip, and sets CWR on
//! its next new data.

use super::segment::{Flags, Segment};
use crate::config;

/// The ECN state of a connection.
///
/// Invariant: without agreement, no packet is ECN-capable and no flag is set.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct EcnState {
    /// Whether both sides agreed on ECN.
    agreed: bool,
    /// Whether a marked packet arrived and the peer has not sent CWR since.
    echo: bool,
    /// Whether the window was reduced and the peer has not been told.
    cut: bool,
}

impl EcnState {
    /// Returns the flags of a SYN from this side (RFC 3168 6.1.1). `first` is true for a SYN that is no answer to the
    /// peer's. `again` is true for a repetition, which does not request ECN because a middlebox may drop such SYNs
    /// (6.1.1.1).
    pub(super) fn syn_flags(self, config: config::Ecn, first: bool, again: bool) -> Flags {
        let asks = first && config == config::Ecn::Request && !again;
        let agrees = !first && self.agreed;
        Flags { syn: true, ece: asks || agrees, cwr: asks, ..Flags::default() }
    }

    /// Applies the flags of the peer's SYN.
    pub(super) fn apply_syn(&mut self, config: config::Ecn, segment: &Segment) {
        let Flags { ece, cwr, .. } = segment.flags;
        self.agreed = match segment.ack {
            None => config != config::Ecn::Off && ece && cwr,
            Some(_) => config == config::Ecn::Request && ece && !cwr,
        };
    }

    /// Records a data segment with `bytes` payload bytes. Returns `None` without a mark; otherwise whether to
    /// acknowledge at once, because a sender with a small window must not wait for the echo.
    pub(super) fn note_arrival(&mut self, segment: &Segment, bytes: usize) -> Option<bool> {
        if !self.agreed || segment.flags.syn || bytes == 0 {
            return None;
        }
        // RFC 3168 6.1.3: CWR ends the echo, and a mark on the same packet starts a new one.
        self.echo &= !segment.flags.cwr;
        segment.marked.then(|| !core::mem::replace(&mut self.echo, true))
    }

    /// Returns the flags of a segment other than a SYN. `fresh` marks data sent for the first time.
    pub(super) fn flags(self, fresh: bool) -> Flags {
        Flags { ece: self.agreed && self.echo, cwr: fresh && self.cut, ..Flags::default() }
    }

    /// Returns whether new data are sent as ECN-capable.
    pub(super) fn is_capable(self) -> bool {
        self.agreed
    }

    /// Records that a segment with CWR was sent.
    pub(super) fn note_cwr_sent(&mut self) {
        self.cut = false;
    }

    /// Schedules a CWR flag, because the window was reduced for any reason (RFC 3168 6.1.2).
    pub(super) fn owe_cwr(&mut self) {
        self.cut = self.agreed;
    }

    /// Returns whether an acknowledgment reports congestion.
    pub(super) fn is_echo(self, segment: &Segment) -> bool {
        self.agreed && segment.flags.ece
    }
}
