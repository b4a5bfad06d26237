//! Commands on their way into and out of a queue, the queue's configuration and its errors.

use super::Buffer;
use crate::namespace::DataPieces;
use crate::volume::KeyedVolume;
use crate::wire::{self, CIPHER_BLOCK, Command, Completion, DataEncryption, FatalError, Termination};
use core::ops::Range;
use core::time::Duration;
use offload_api::Piece;

/// Parameters of a connection.
///
/// See [`Queue`](super::Queue) for an example.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct QueueConfig {
    /// Maximum number of commands at a time, 1 to 4095.
    pub depth: u16,
    /// Requests header digests. A controller may decline.
    pub header_digest: bool,
    /// Requests data digests. A controller may decline.
    pub data_digest: bool,
    /// HPDA: the controller begins data at a multiple of `(alignment + 1) * 4` bytes.
    pub alignment: u8,
    /// Maximum number of outstanding requests to transfer (R2T) of a command, at least 1.
    pub requests: u32,
    /// Maximum number of data bytes in a command capsule.
    pub in_capsule: u32,
    /// Time within which a command must be answered. If one is not, the connection is closed.
    pub command_timeout: Duration,
}

/// The data of a command, or the buffer for them.
#[derive(Debug, Default)]
pub enum CommandData {
    /// No data.
    #[default]
    None,
    /// Data for the controller.
    Write(DataPieces),
    /// Data to be encrypted for the controller: blocks of a volume, beginning with the command's first block.
    Encrypt(DataPieces, KeyedVolume),
    /// Buffer for data from the controller.
    Read(Buffer),
}

/// A command for a [`Queue`](super::Queue).
#[derive(Debug)]
pub struct Submission {
    /// The command. The queue fills in identifier and SGL.
    pub command: Command,
    /// The data or the buffer.
    pub payload: CommandData,
}

impl CommandData {
    /// Returns whether the payload belongs to an erased volume.
    pub fn is_erased(&self) -> bool {
        match self {
            CommandData::None | CommandData::Write(_) => false,
            CommandData::Encrypt(_, volume) => volume.is_erased(),
            CommandData::Read(buffer) => buffer.volume().is_some_and(KeyedVolume::is_erased),
        }
    }
}

impl Submission {
    /// Checks data to be encrypted. Returns their size if they are not whole blocks of the volume.
    pub(super) fn not_blocks(&self) -> Option<u64> {
        let CommandData::Encrypt(pieces, volume) = &self.payload else { return None };
        let bytes = pieces.iter().map(|piece| piece.len() as u64).sum();
        // Encrypts no bytes; the call only checks the block numbers.
        volume.encrypt(self.command.first_block(), bytes, &mut []).err().map(|_| bytes)
    }

    /// Returns a part of the data for the controller, and the encryption still to be applied.
    pub(super) fn part(&self, range: Range<u32>) -> (DataPieces, Option<DataEncryption>) {
        let of = |pieces: &DataPieces| wire::slice(pieces, range.start as usize, (range.end - range.start) as usize);
        match &self.payload {
            CommandData::None | CommandData::Read(_) => (DataPieces::new(), None),
            CommandData::Write(pieces) => (of(pieces), None),
            CommandData::Encrypt(pieces, volume) => {
                let first = self.command.first_block();
                if (range.start | range.end).is_multiple_of(CIPHER_BLOCK) {
                    (of(pieces), Some(DataEncryption { volume: volume.clone(), first, at: range.start }))
                } else {
                    // A range that cuts cipher blocks cannot be encrypted by a device, because the neighbouring bytes
                    // are needed.
                    (DataPieces::from_iter([DataEncryption::part(volume, first, pieces, range)]), None)
                }
            }
        }
    }
}

/// Reason why a command was not accepted. Contains the command.
///
/// ```
/// use nvme_tcp::core::queue::{CommandData, Queue, QueueConfig, Submission, SubmitError};
/// use nvme_tcp::wire::commands;
/// use offload_base::Instant;
///
/// let mut queue = Queue::new(Instant::ZERO, QueueConfig::default());
/// let submission = Submission { command: commands::keep_alive(), payload: CommandData::None };
/// let refused: SubmitError = queue.submit(Instant::ZERO, submission).unwrap_err();
/// assert_eq!(refused.to_string(), "the connection takes no command now: wait until there is room");
/// ```
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SubmitError {
    /// The connection is not open, or has as many commands as it allows.
    #[error("the connection takes no command now: wait until there is room")]
    NoRoom(Submission),
    /// The data are to be encrypted and are not whole blocks of the volume. A fault of the caller.
    #[error("{1} bytes from block {first} on cannot be encrypted: give whole blocks that the volume has", first = .0.command.first_block())]
    NotBlocks(Submission, u64),
    /// The command's volume was erased.
    #[error("the volume was erased: its key no longer exists")]
    Erased(Submission),
}

impl SubmitError {
    /// Returns the command.
    pub fn into_submission(self) -> Submission {
        match self {
            SubmitError::NoRoom(submission)
            | SubmitError::NotBlocks(submission, _)
            | SubmitError::Erased(submission) => submission,
        }
    }
}

/// A finished command.
#[derive(Debug)]
pub struct FinishedCommand {
    /// The command's identifier.
    pub id: u16,
    /// The controller's completion.
    pub completion: Completion,
    /// The command as submitted.
    pub submission: Submission,
}

/// An order for a device. Execute it before sending the next PDU.
#[derive(Debug)]
pub enum DeviceOrder {
    /// Take the buffer of a command.
    Place {
        /// The command.
        command: u16,
        /// The buffer in pieces.
        buffer: Vec<Piece>,
        /// The volume of the data, and the first block. `None` if the data are not encrypted.
        volume: Option<(KeyedVolume, u64)>,
    },
    /// Return the rest of a command's buffer.
    Release {
        /// The command.
        command: u16,
    },
}

/// Result of giving up a command.
#[derive(Debug)]
pub enum AbandonResult {
    /// The payload is here; the command will not finish.
    Now(CommandData),
    /// A device has the buffer: the command will finish with
    /// [`Status::ABORTED_BY_HOST`](crate::Status::ABORTED_BY_HOST).
    Later,
    /// The command is not a read and may still be executed. The controller's answer finishes the command. Until then,
    /// the command may overtake a later one for the same blocks.
    Unanswered,
    /// The command has finished already.
    Complete,
}

/// Reason why a connection is over.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum QueueError {
    /// The controller violated the protocol, and was told so.
    #[error(transparent)]
    Misbehaved(#[from] FatalError),
    /// The controller reports a protocol violation by the host.
    #[error("the controller ended the connection with error status {}", .0.status)]
    Terminated(Termination),
    /// The controller closed the connection.
    #[error("the controller closed the connection")]
    Closed,
    /// A command or ICReq was not answered in time.
    #[error("the controller does not answer")]
    TimedOut,
}

impl Default for QueueConfig {
    fn default() -> QueueConfig {
        QueueConfig {
            depth: 128,
            header_digest: false,
            data_digest: false,
            alignment: 0,
            requests: 1,
            in_capsule: 8192,
            command_timeout: Duration::from_secs(30),
        }
    }
}
