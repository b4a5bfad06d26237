//! Explicit congestion notification (RFC 3168): a network that marks packets instead of losing them.
//!
//! Both sides agree on it with their SYNs. Then new data go as ECN-capable; a receiver of a marked packet says so with
//! ECE in everything it sends, until it sees CWR; a sender that hears ECE cuts its window, once a round trip, and says
//! so with CWR on the next new data.

use super::segment::{Flags, Segment};
use crate::config;

/// Where the two sides stand with it.
///
/// Invariant: where the two did not agree, nothing is ever marked, echoed or told.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Ecn {
    /// Both agreed.
    agreed: bool,
    /// Something marked came, and the peer has not said that it sends less since.
    echo: bool,
    /// This side sends less, and the peer is to be told.
    cut: bool,
}

impl Ecn {
    /// What a SYN of this side asks for (RFC 3168 6.1.1); `first`: it is not the answer to the peer's. `again`: a SYN
    /// without an answer is repeated without, for somebody on the way may drop what asks for it (6.1.1.1).
    pub(super) fn syn_flags(self, config: config::Ecn, first: bool, again: bool) -> Flags {
        let asks = first && config == config::Ecn::Request && !again;
        let agrees = !first && self.agreed;
        Flags { syn: true, ece: asks || agrees, cwr: asks, ..Flags::default() }
    }

    /// What the peer's SYN says.
    pub(super) fn learn(&mut self, config: config::Ecn, segment: &Segment) {
        let Flags { ece, cwr, .. } = segment.flags;
        self.agreed = match segment.ack {
            None => config != config::Ecn::Off && ece && cwr,
            Some(_) => config == config::Ecn::Request && ece && !cwr,
        };
    }

    /// A segment with `bytes` bytes arrived, as data of this connection should. Whether it was marked, and if so whether
    /// the peer is to hear at once: a sender with a small window is not to wait for it.
    pub(super) fn note_arrival(&mut self, segment: &Segment, bytes: usize) -> Option<bool> {
        if !self.agreed || segment.flags.syn || bytes == 0 {
            return None;
        }
        self.echo &= !segment.flags.cwr;
        segment.marked.then(|| !core::mem::replace(&mut self.echo, true))
    }

    /// The flags of what else leaves; `fresh`: data that leave for the first time.
    pub(super) fn flags(self, fresh: bool) -> Flags {
        Flags { ece: self.agreed && self.echo, cwr: fresh && self.cut, ..Flags::default() }
    }

    /// Whether new data leave as ECN-capable.
    pub(super) fn is_capable(self) -> bool {
        self.agreed
    }

    /// The peer was told by CWR.
    pub(super) fn note_cut_told(&mut self) {
        self.cut = false;
    }

    /// The window was cut, for whatever reason (RFC 3168 6.1.2).
    pub(super) fn owe_cut_notice(&mut self) {
        self.cut = self.agreed;
    }

    /// Whether an acknowledgment says that the network is congested.
    pub(super) fn is_echo(self, segment: &Segment) -> bool {
        self.agreed && segment.flags.ece
    }
}
