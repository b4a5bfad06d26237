//! Packet identifications and timestamps of a connection. Each starts from an offset of its own.

use super::connection::timestamp;
use offload_base::Instant;

#[derive(Clone, Copy, Debug)]
pub(super) struct PacketLabels {
    ident: u16,
    timestamp_offset: u32,
}

impl PacketLabels {
    /// Derives the offsets from `fingerprint`, a keyed hash of the flow.
    pub(super) fn new(fingerprint: u64) -> PacketLabels {
        PacketLabels { ident: (fingerprint >> 16) as u16, timestamp_offset: (fingerprint >> 32) as u32 }
    }

    /// Returns the identification of the next packet.
    pub(super) fn ident(self) -> u16 {
        self.ident
    }

    /// Advances the identification by `packets` sent packets.
    pub(super) fn note_sent(&mut self, packets: usize) {
        self.ident = self.ident.wrapping_add(packets as u16);
    }

    /// Returns the timestamp at `now`.
    pub(super) fn timestamp(self, now: Instant) -> u32 {
        timestamp(self.timestamp_offset, now)
    }

    /// Moves the timestamp clock back by `millis`.
    pub(super) fn set_back(&mut self, millis: u32) {
        self.timestamp_offset = self.timestamp_offset.wrapping_sub(millis);
    }
}
