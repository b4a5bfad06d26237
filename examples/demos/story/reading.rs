//! What a receiving NIC made of a packet, from what it counted.

use crate::story::Span;

/// What a NIC made of a packet of its flow.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Made {
    /// The next of the stream: decrypted.
    Decrypted,
    /// From the past: passed on as it is.
    Late,
    /// After a gap, and before the next header: passed on as it is.
    Early,
    /// After a gap, with the next header in it: passed on as it is, but the packet after it can be decrypted.
    Found,
    /// Told that a record begins with it: decrypted.
    FoundAtOnce,
    /// The next header is missing, so the NIC searches for one: passed on as it is.
    Lost,
    /// Something that looks like a header is in it: passed on as it is, and software is asked.
    Asked,
    /// The same, and it is the packet with which the NIC lost its place.
    LostAndAsked,
    /// While the NIC searches or waits for an answer: passed on as it is.
    Waiting,
    /// A tag is wrong, or there is no record: passed on as it is.
    Failed,
}

impl Made {
    /// What is said about it.
    pub const fn in_words(self) -> &'static str {
        match self {
            Made::Decrypted => "decrypted",
            Made::Late => "from the past: left as it is",
            Made::Early => "not the next: left as it is, the next header is still to come",
            Made::Found => "holds the next header: left as it is, in step again behind it",
            Made::FoundAtOnce => "begins where it was told: in step again, decrypted",
            Made::Lost => "a header before it is missing: left as it is, out of step",
            Made::Asked => "may hold a header: left as it is, software is asked",
            Made::LostAndAsked => "out of step; may hold a header: software is asked",
            Made::Waiting => "left as it is",
            Made::Failed => "does not verify: left as it is",
        }
    }

    /// Whether the payload is plaintext now.
    pub const fn is_decrypted(self) -> bool {
        matches!(self, Made::Decrypted | Made::FoundAtOnce)
    }
}

/// What the NIC's counters did with one packet.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Moved {
    pub(super) decrypted: bool,
    pub(super) asked: bool,
    pub(super) failed: bool,
    pub(super) lost: bool,
    pub(super) found: bool,
}

/// Follows a NIC through a stream.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Reading {
    /// Where it goes on if it is in step; how far it has seen if not.
    next: u32,
    is_lost: bool,
}

impl Reading {
    /// The NIC has worked on a packet.
    pub(super) fn note(&mut self, bytes: Span, moved: Moved) -> Made {
        let made = match moved {
            Moved { failed: true, .. } => Made::Failed,
            Moved { decrypted: true, found: true, .. } => Made::FoundAtOnce,
            Moved { decrypted: true, .. } => Made::Decrypted,
            Moved { found: true, .. } => Made::Found,
            Moved { asked: true, lost: true, .. } => Made::LostAndAsked,
            Moved { asked: true, .. } => Made::Asked,
            Moved { lost: true, .. } => Made::Lost,
            _ if bytes.from < self.next => Made::Late,
            _ if self.is_lost => Made::Waiting,
            _ => Made::Early,
        };
        if moved.found || moved.decrypted {
            *self = Reading { next: bytes.to, is_lost: false };
        }
        self.is_lost |= moved.lost;
        if self.is_lost {
            self.next = self.next.max(bytes.to);
        }
        made
    }
}
