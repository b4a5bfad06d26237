//! One namespace, by block.

use super::error::CommandError;
use super::lane::{Done, Pending, Read};
use super::{Host, write_payload};
use crate::host::{Buffer, Payload, commands};
use crate::nvme::IoOpcode;
use crate::nvme::identify::NamespaceData;
use bytes::Bytes;

/// A namespace of a controller. Commands are under way from the call on, whether or not the future is polled.
///
/// See [`Host`] for an example.
#[derive(Clone, Debug)]
pub struct Disk {
    host: Host,
    id: u32,
    data: NamespaceData,
    max_transfer: u32,
}

impl Disk {
    pub(super) fn new(host: Host, id: u32, data: NamespaceData, max_transfer: u32) -> Disk {
        Disk { host, id, data, max_transfer }
    }

    /// The namespace's number.
    pub fn id(&self) -> u32 {
        self.id
    }

    /// How many blocks there are.
    pub fn blocks(&self) -> u64 {
        self.data.blocks
    }

    /// Bytes of a block.
    pub fn block_size(&self) -> u32 {
        1 << self.data.block_shift
    }

    /// What the controller said.
    pub fn data(&self) -> &NamespaceData {
        &self.data
    }

    /// Most bytes that a command moves.
    pub fn max_transfer(&self) -> u32 {
        self.max_transfer.min(self.block_size() << 16)
    }

    /// A new buffer for `blocks` blocks.
    pub fn buffer(&self, blocks: u32) -> Buffer {
        Buffer::zeroed(blocks as usize * self.block_size() as usize)
    }

    /// Fills `buffer`, in whole blocks, with those from `first` on.
    pub fn read(&self, first: u64, buffer: Buffer) -> Read {
        match self.blocks_of(buffer.len()) {
            Ok(blocks) => self.host.io_read(commands::range(IoOpcode::Read, self.id, first, blocks), buffer),
            Err(error) => Read(Pending::refused(error, Payload::Read(buffer))),
        }
    }

    /// Writes `data`, whole blocks, from block `first` on. The bytes are let go of when the command has ended.
    pub fn write(&self, first: u64, data: impl IntoIterator<Item = Bytes>) -> Done {
        self.with_data(IoOpcode::Write, first, data)
    }

    /// Compares `data`, whole blocks, with those from `first` on. A difference is
    /// [`Status::COMPARE_FAILURE`](crate::Status::COMPARE_FAILURE).
    pub fn compare(&self, first: u64, data: impl IntoIterator<Item = Bytes>) -> Done {
        self.with_data(IoOpcode::Compare, first, data)
    }

    /// Makes durable what was written.
    pub fn flush(&self) -> Done {
        self.host.io(commands::flush(self.id), [])
    }

    /// Sets `blocks` blocks, 1 to 65536, to zero.
    pub fn write_zeroes(&self, first: u64, blocks: u32) -> Done {
        self.without_data(IoOpcode::WriteZeroes, first, blocks)
    }

    /// Makes `blocks` blocks, 1 to 65536, unreadable.
    pub fn write_uncorrectable(&self, first: u64, blocks: u32) -> Done {
        self.without_data(IoOpcode::WriteUncorrectable, first, blocks)
    }

    /// Has the controller read `blocks` blocks, 1 to 65536, and keep the data.
    pub fn verify(&self, first: u64, blocks: u32) -> Done {
        self.without_data(IoOpcode::Verify, first, blocks)
    }

    /// Says of `ranges` (first block, blocks), 1 to 256 of them, that their data are not needed any more.
    pub fn deallocate(&self, ranges: &[(u64, u32)]) -> Done {
        if !(1..=256).contains(&ranges.len()) {
            return Done(Pending::refused(CommandError::Invalid("1 to 256 ranges"), Payload::None));
        }
        let (command, data) = commands::deallocate(self.id, ranges);
        self.host.io(command, [Bytes::from(data)])
    }

    fn with_data(&self, opcode: IoOpcode, first: u64, data: impl IntoIterator<Item = Bytes>) -> Done {
        let payload = write_payload(data);
        let len = match &payload {
            Payload::Write(pieces) => pieces.iter().map(Bytes::len).sum(),
            Payload::None | Payload::Read(_) => 0,
        };
        match (self.blocks_of(len), payload) {
            (Ok(blocks), Payload::Write(pieces)) => {
                self.host.io(commands::range(opcode, self.id, first, blocks), pieces)
            }
            (Ok(_), payload) => Done(Pending::refused(NO_BLOCKS, payload)),
            (Err(error), payload) => Done(Pending::refused(error, payload)),
        }
    }

    fn without_data(&self, opcode: IoOpcode, first: u64, blocks: u32) -> Done {
        if !(1..=1 << 16).contains(&blocks) {
            return Done(Pending::refused(NO_BLOCKS, Payload::None));
        }
        self.host.io(commands::range(opcode, self.id, first, blocks), [])
    }

    fn blocks_of(&self, bytes: usize) -> Result<u32, CommandError> {
        let block = self.block_size() as usize;
        if bytes == 0 || !bytes.is_multiple_of(block) {
            return Err(NO_BLOCKS);
        }
        if bytes > self.max_transfer() as usize {
            return Err(CommandError::Invalid("more than a command moves"));
        }
        Ok((bytes / block) as u32)
    }
}

const NO_BLOCKS: CommandError = CommandError::Invalid("1 to 65536 whole blocks");
