//! Completion queue entries.

use super::{Status, put, u16_at, u64_at};

/// A completion queue entry: 16 bytes.
///
/// ```
/// use nvme_tcp::wire::{Completion, Status};
///
/// let completion = Completion { command: 7, status: Status::INVALID_FIELD, ..Completion::default() };
/// assert_eq!(Completion::from_bytes(&completion.to_bytes()), completion);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Completion {
    /// Double words 0 and 1: the command's result.
    pub result: u64,
    /// Submission queue head, for flow control.
    pub queue_head: u16,
    /// Submission queue identifier; reserved over fabrics.
    pub queue: u16,
    /// Identifier of the completed command.
    pub command: u16,
    /// Status of the command.
    pub status: Status,
}

impl Default for Completion {
    fn default() -> Completion {
        Completion { result: 0, queue_head: 0, queue: 0, command: 0, status: Status::SUCCESS }
    }
}

impl Completion {
    /// Bytes of an entry.
    pub const LEN: usize = 16;

    /// Parses an entry.
    pub fn from_bytes(bytes: &[u8; Completion::LEN]) -> Completion {
        Completion {
            result: u64_at(bytes, 0),
            queue_head: u16_at(bytes, 8),
            queue: u16_at(bytes, 10),
            command: u16_at(bytes, 12),
            status: Status::from_bits(u16_at(bytes, 14) >> 1),
        }
    }

    /// Encodes the entry.
    pub fn to_bytes(&self) -> [u8; Completion::LEN] {
        let mut bytes = [0; Completion::LEN];
        put(&mut bytes, 0, &self.result.to_le_bytes());
        put(&mut bytes, 8, &self.queue_head.to_le_bytes());
        put(&mut bytes, 10, &self.queue.to_le_bytes());
        put(&mut bytes, 12, &self.command.to_le_bytes());
        put(&mut bytes, 14, &(self.status.bits() << 1).to_le_bytes());
        bytes
    }
}
