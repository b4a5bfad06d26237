//! The result of a packet in a receiving NIC, derived from the NIC's counters.

use crate::story::Span;

/// The result of a packet of the NIC's flow.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PacketResult {
    /// The expected packet: decrypted.
    Decrypted,
    /// A packet from before the expected position: passed on unchanged.
    Late,
    /// A packet after a gap, before the next record header: passed on unchanged.
    Early,
    /// A packet after a gap that contains the next record header: passed on unchanged, but the packet after it can be
    /// decrypted.
    Found,
    /// A packet that begins with a record, as the NIC was told: decrypted.
    FoundAtOnce,
    /// A packet after a lost record header, so the NIC searches for a header: passed on unchanged.
    Lost,
    /// A packet with a possible header: passed on unchanged, and software is asked.
    Asked,
    /// The packet with which the NIC lost its position, and with a possible header: software is asked.
    LostAndAsked,
    /// A packet while the NIC searches or waits for an answer: passed on unchanged.
    Waiting,
    /// A packet with a wrong tag, or without a valid record: passed on unchanged.
    Failed,
}

impl PacketResult {
    /// Returns the description in the story.
    pub const fn in_words(self) -> &'static str {
        match self {
            PacketResult::Decrypted => "decrypted",
            PacketResult::Late => "from the past: left as it is",
            PacketResult::Early => "not the next: left as it is, the next header is still to come",
            PacketResult::Found => "holds the next header: left as it is, in step again behind it",
            PacketResult::FoundAtOnce => "begins where it was told: in step again, decrypted",
            PacketResult::Lost => "a header before it is missing: left as it is, out of step",
            PacketResult::Asked => "may hold a header: left as it is, software is asked",
            PacketResult::LostAndAsked => "out of step; may hold a header: software is asked",
            PacketResult::Waiting => "left as it is",
            PacketResult::Failed => "does not verify: left as it is",
        }
    }

    /// Returns whether the payload is plaintext now.
    pub const fn is_decrypted(self) -> bool {
        matches!(self, PacketResult::Decrypted | PacketResult::FoundAtOnce)
    }
}

/// The NIC's counters that one packet incremented.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct CounterChanges {
    pub(super) decrypted: bool,
    pub(super) asked: bool,
    pub(super) failed: bool,
    pub(super) lost: bool,
    pub(super) found: bool,
}

/// The position of a NIC in a stream.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Reading {
    /// The expected sequence position if the NIC is in sync, else the furthest position seen.
    next: u32,
    is_lost: bool,
}

impl Reading {
    /// Records a packet and returns its result.
    pub(super) fn note(&mut self, bytes: Span, moved: CounterChanges) -> PacketResult {
        // The order of the arms matters: a packet may move several counters, and the first match describes it best.
        let made = match moved {
            CounterChanges { failed: true, .. } => PacketResult::Failed,
            CounterChanges { decrypted: true, found: true, .. } => PacketResult::FoundAtOnce,
            CounterChanges { decrypted: true, .. } => PacketResult::Decrypted,
            CounterChanges { found: true, .. } => PacketResult::Found,
            CounterChanges { asked: true, lost: true, .. } => PacketResult::LostAndAsked,
            CounterChanges { asked: true, .. } => PacketResult::Asked,
            CounterChanges { lost: true, .. } => PacketResult::Lost,
            _ if bytes.from < self.next => PacketResult::Late,
            _ if self.is_lost => PacketResult::Waiting,
            _ => PacketResult::Early,
        };
        if moved.found || moved.decrypted {
            *self = Reading { next: bytes.to, is_lost: false };
        }
        self.is_lost |= moved.lost;
        // A lost NIC only notes how far the stream has come.
        if self.is_lost {
            self.next = self.next.max(bytes.to);
        }
        made
    }
}
