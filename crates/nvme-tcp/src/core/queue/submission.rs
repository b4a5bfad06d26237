//! Commands on their way into a queue and out of it, and what else callers of one deal with.

use super::Buffer;
use crate::namespace::Pieces;
use crate::volume::KeyedVolume;
use crate::wire::{self, CIPHER_BLOCK, Command, Completion, FatalError, Sealing, Termination};
use core::ops::Range;
use core::time::Duration;
use offload_api::Piece;

/// How a connection is opened and used.
///
/// See [`Queue`](super::Queue) for an example.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct QueueConfig {
    /// Commands at a time, 1 to 4095.
    pub depth: u16,
    /// Asks for header digests. A controller that does not agree is not insisted with.
    pub header_digest: bool,
    /// Asks for data digests.
    pub data_digest: bool,
    /// HPDA: the controller begins data at a multiple of `(alignment + 1) * 4` bytes.
    pub alignment: u8,
    /// Requests to transfer (R2T) that a command may have outstanding, at least one.
    pub requests: u32,
    /// Most data that go along in a command's capsule.
    pub in_capsule: u32,
    /// In which a command has to be answered. A connection on which one is not is given up.
    pub command_timeout: Duration,
}

/// The data of a command, or the memory for them.
#[derive(Debug, Default)]
pub enum Payload {
    /// No data.
    #[default]
    None,
    /// Data for the controller.
    Write(Pieces),
    /// The same, to be encrypted: blocks of a volume, from the command's first on.
    Encrypt(Pieces, KeyedVolume),
    /// Where data from the controller go.
    Read(Buffer),
}

/// A command for a [`Queue`](super::Queue).
#[derive(Debug)]
pub struct Submission {
    /// The command; identifier and SGL are filled in.
    pub command: Command,
    /// Its data, or the room for them.
    pub payload: Payload,
}

impl Payload {
    /// Whether it is of a volume that was erased.
    pub fn is_erased(&self) -> bool {
        match self {
            Payload::None | Payload::Write(_) => false,
            Payload::Encrypt(_, volume) => volume.is_erased(),
            Payload::Read(buffer) => buffer.volume().is_some_and(KeyedVolume::is_erased),
        }
    }
}

impl Submission {
    /// Its data, if they are to be encrypted and are no blocks of their volume: how many bytes.
    pub(super) fn not_blocks(&self) -> Option<u64> {
        let Payload::Encrypt(pieces, volume) = &self.payload else { return None };
        let bytes = pieces.iter().map(|piece| piece.len() as u64).sum();
        // Nothing is encrypted here; what is asked is whether the blocks have numbers.
        volume.encrypt(self.command.first_block(), bytes, &mut []).err().map(|_| bytes)
    }

    /// Some of the data for the controller, and what is to be done to them first.
    pub(super) fn part(&self, range: Range<u32>) -> (Pieces, Option<Sealing>) {
        let of = |pieces: &Pieces| wire::slice(pieces, range.start as usize, (range.end - range.start) as usize);
        match &self.payload {
            Payload::None | Payload::Read(_) => (Pieces::new(), None),
            Payload::Write(pieces) => (of(pieces), None),
            Payload::Encrypt(pieces, volume) => {
                let first = self.command.first_block();
                if (range.start | range.end).is_multiple_of(CIPHER_BLOCK) {
                    (of(pieces), Some(Sealing { volume: volume.clone(), first, at: range.start }))
                } else {
                    // What cuts blocks has to be made of more than there is in it.
                    (Pieces::from_iter([Sealing::part(volume, first, pieces, range)]), None)
                }
            }
        }
    }
}

/// Why a command was not taken. It comes back.
///
/// ```
/// use nvme_tcp::core::queue::{Payload, Queue, QueueConfig, Submission, SubmitError};
/// use nvme_tcp::wire::commands;
/// use offload_base::Instant;
///
/// let mut queue = Queue::new(Instant::ZERO, QueueConfig::default());
/// let submission = Submission { command: commands::keep_alive(), payload: Payload::None };
/// let refused: SubmitError = queue.submit(Instant::ZERO, submission).unwrap_err();
/// assert_eq!(refused.to_string(), "the connection takes no command now: wait until there is room");
/// ```
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SubmitError {
    /// As many are under way as the connection allows, or it is not open.
    #[error("the connection takes no command now: wait until there is room")]
    NoRoom(Submission),
    /// Its data are to be encrypted, and are no blocks of their volume: the caller's fault.
    #[error("{1} bytes from block {first} on cannot be encrypted: give whole blocks that the volume has", first = .0.command.first_block())]
    NotBlocks(Submission, u64),
    /// It is about a volume that was erased.
    #[error("the volume was erased: it has no key any more")]
    Erased(Submission),
}

impl SubmitError {
    /// The command.
    pub fn into_submission(self) -> Submission {
        match self {
            SubmitError::NoRoom(submission)
            | SubmitError::NotBlocks(submission, _)
            | SubmitError::Erased(submission) => submission,
        }
    }
}

/// A command that has come to its end.
#[derive(Debug)]
pub struct Finished {
    /// The identifier it had.
    pub id: u16,
    /// The answer of the controller.
    pub completion: Completion,
    /// The command, as it was submitted.
    pub submission: Submission,
}

/// An order for a device, to be carried out before the next PDU is sent.
#[derive(Debug)]
pub enum Order {
    /// Take the buffer of a command.
    Place {
        /// The command.
        command: u16,
        /// Its buffer.
        buffer: Vec<Piece>,
        /// The volume that its data are of, and the first of its blocks.
        volume: Option<(KeyedVolume, u64)>,
    },
    /// Send home what is left of it.
    Release {
        /// The command.
        command: u16,
    },
}

/// The state of a command that was given up.
#[derive(Debug)]
pub enum Abandoned {
    /// Here is its payload; it will not finish.
    Now(Payload),
    /// A device has its buffer: it will finish, with [`Status::ABORTED_BY_HOST`](crate::Status::ABORTED_BY_HOST).
    Later,
    /// It fills no buffer, and may be carried out yet: it will finish, with what the controller answers. Until then a
    /// command about the same blocks may be overtaken by it.
    Unanswered,
    /// It has finished.
    Finished,
}

/// Why a connection is over.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum QueueError {
    /// The controller's fault, and it was told so.
    #[error(transparent)]
    Misbehaved(#[from] FatalError),
    /// The controller says that the fault is the host's.
    #[error("the controller ended the connection with error status {}", .0.status)]
    Terminated(Termination),
    /// The controller closed the connection.
    #[error("the controller closed the connection")]
    Closed,
    /// No answer in time.
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
