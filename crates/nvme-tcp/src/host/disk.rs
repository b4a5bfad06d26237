//! Block access to one namespace.

use super::error::CommandError;
use super::inspected_namespace::InspectedNamespace;
use super::lane::{CommandFuture, PendingCommand, ReadFuture};
use super::{Host, write_payload};
use crate::core::queue::{Buffer, CommandData};
use crate::volume::KeyedVolume;
use crate::wire::{Command, IoOpcode, NamespaceData, NamespaceIds, commands};
use bytes::Bytes;
use std::sync::Arc;

/// A namespace of a controller. A command is sent whether or not its future is polled.
///
/// Concurrent commands may be executed in any order. A command whose future was [cancelled](CommandFuture::cancel) or
/// dropped may still be executed, but never after a later command for some of the same blocks, because the later
/// command waits. The exception is a host without a [keep-alive](super::HostConfig::keep_alive) that loses a silent
/// controller: it cannot know when to stop waiting. The command then ends with [`CommandError::Uncertain`], and may
/// still be executed afterwards.
///
/// A disk is bound to the namespace that was inspected, not to its number. If another namespace has the number after a
/// reconnect, or if the controller reports a change, call [`Host::disk`] again.
///
/// ```
/// use bytes::Bytes;
/// use nvme_tcp::host::{CommandError, Disk};
///
/// async fn replace(disk: &Disk, old: Bytes, new: Bytes) -> Result<(), CommandError> {
///     // Dropped at once: it may be carried out, or not.
///     drop(disk.write(0, [old]));
///     // Whichever it was, this comes after it.
///     disk.write(0, [new]).await?;
///     Ok(())
/// }
/// ```
///
/// See [`Host`] for an example that opens a disk.
#[derive(Clone, Debug)]
pub struct Disk {
    host: Host,
    known: Arc<InspectedNamespace>,
    max_transfer: u32,
    volume: Option<KeyedVolume>,
}

impl Disk {
    pub(super) fn new(host: Host, known: Arc<InspectedNamespace>, max_transfer: u32) -> Disk {
        Disk { host, known, max_transfer, volume: None }
    }

    /// Encrypts written data and decrypts read data, so that the disk holds only ciphertext. The device below does the
    /// encryption if it [has the volume's key](KeyedVolume::set_device_key). [`write_zeroes`](Self::write_zeroes) is
    /// refused on such a disk.
    ///
    /// ```
    /// use nvme_tcp::host::{CommandError, Disk};
    /// use resumable_aead::{DataUnits, Volume, XtsKey};
    ///
    /// fn opened(disk: Disk, key: XtsKey) -> Result<Disk, CommandError> {
    ///     let units = DataUnits::new(disk.block_size() as usize).map_err(|_| CommandError::Invalid("no such blocks"))?;
    ///     disk.with_volume(Volume::new(key, units)) // or a `KeyedVolume`
    /// }
    /// ```
    ///
    /// # Errors
    /// [`CommandError::Invalid`] if the volume's units are not the disk's blocks.
    pub fn with_volume(self, volume: impl Into<KeyedVolume>) -> Result<Disk, CommandError> {
        let volume = volume.into();
        if volume.volume().units().len() != self.block_size() as usize {
            return Err(CommandError::Invalid("the volume's units must be as long as the disk's blocks"));
        }
        Ok(Disk { volume: Some(volume), ..self })
    }

    /// Returns whether the disk has a [volume](Self::with_volume).
    #[cfg(feature = "measure")]
    pub(crate) fn has_volume(&self) -> bool {
        self.volume.is_some()
    }

    /// Returns the namespace's identifier.
    pub fn id(&self) -> u32 {
        self.known.id
    }

    /// Returns the number of blocks.
    pub fn blocks(&self) -> u64 {
        self.known.data.blocks
    }

    /// Returns the block size in bytes.
    pub fn block_size(&self) -> u32 {
        1 << self.known.data.block_shift
    }

    /// Returns the Identify Namespace data of the controller.
    pub fn data(&self) -> &NamespaceData {
        &self.known.data
    }

    /// Returns the globally unique identifiers of the namespace.
    pub fn ids(&self) -> &NamespaceIds {
        &self.known.ids
    }

    /// Returns the maximum number of bytes of a command.
    pub fn max_transfer(&self) -> u32 {
        self.max_transfer.min(self.block_size() << 16)
    }

    /// Allocates a buffer for `blocks` blocks.
    pub fn buffer(&self, blocks: u32) -> Buffer {
        Buffer::zeroed(blocks as usize * self.block_size() as usize)
    }

    /// Reads blocks from `first` on into `buffer`, whose size is a multiple of the block size.
    pub fn read(&self, first: u64, buffer: Buffer) -> ReadFuture {
        match self.blocks_of(buffer.len()) {
            Ok(blocks) => {
                let command = commands::range(IoOpcode::Read, self.id(), first, blocks);
                ReadFuture(self.submit(command, CommandData::Read(buffer.for_volume(self.volume.clone()))))
            }
            Err(error) => ReadFuture(PendingCommand::refused(error, CommandData::Read(buffer))),
        }
    }

    /// Writes `data`, whole blocks, from `first` on. The bytes are released when the command ends.
    pub fn write(&self, first: u64, data: impl IntoIterator<Item = Bytes>) -> CommandFuture {
        self.with_data(IoOpcode::Write, first, data)
    }

    /// Compares `data`, whole blocks, with the blocks from `first` on. A difference is
    /// [`Status::COMPARE_FAILURE`](crate::Status::COMPARE_FAILURE).
    pub fn compare(&self, first: u64, data: impl IntoIterator<Item = Bytes>) -> CommandFuture {
        self.with_data(IoOpcode::Compare, first, data)
    }

    /// Makes written blocks durable.
    pub fn flush(&self) -> CommandFuture {
        CommandFuture(self.submit(commands::flush(self.id()), CommandData::None))
    }

    /// Sets `blocks` blocks, 1 to 65536, to zero.
    pub fn write_zeroes(&self, first: u64, blocks: u32) -> CommandFuture {
        if self.volume.is_some() {
            return CommandFuture(PendingCommand::refused(
                CommandError::Invalid("write_zeroes is not possible on an encrypted volume: write encrypted blocks"),
                CommandData::None,
            ));
        }
        self.without_data(IoOpcode::WriteZeroes, first, blocks)
    }

    /// Makes `blocks` blocks, 1 to 65536, unreadable.
    pub fn write_uncorrectable(&self, first: u64, blocks: u32) -> CommandFuture {
        self.without_data(IoOpcode::WriteUncorrectable, first, blocks)
    }

    /// Lets the controller read `blocks` blocks, 1 to 65536, and discard the data.
    pub fn verify(&self, first: u64, blocks: u32) -> CommandFuture {
        self.without_data(IoOpcode::Verify, first, blocks)
    }

    /// Deallocates 1 to 256 `ranges` (first block, number of blocks), whose data are not needed any more.
    pub fn deallocate(&self, ranges: &[(u64, u32)]) -> CommandFuture {
        if !(1..=256).contains(&ranges.len()) {
            return CommandFuture(PendingCommand::refused(
                CommandError::Invalid("deallocate takes 1 to 256 ranges"),
                CommandData::None,
            ));
        }
        let (command, data) = commands::deallocate(self.id(), ranges);
        CommandFuture(self.submit(command, write_payload([Bytes::from(data)])))
    }

    fn with_data(&self, opcode: IoOpcode, first: u64, data: impl IntoIterator<Item = Bytes>) -> CommandFuture {
        let payload = write_payload(data);
        let len = match &payload {
            CommandData::Write(pieces) => pieces.iter().map(Bytes::len).sum(),
            CommandData::None | CommandData::Read(_) | CommandData::Encrypt(..) => 0,
        };
        let blocks = match self.blocks_of(len) {
            Ok(blocks) => blocks,
            Err(error) => return CommandFuture(PendingCommand::refused(error, payload)),
        };
        // The queue checks this as well. Here the caller gets the error even without a connection.
        let payload = match (payload, &self.volume) {
            // Encrypts no bytes; the call only checks the block numbers.
            (payload, Some(volume)) if !volume.is_erased() && volume.encrypt(first, len as u64, &mut []).is_err() => {
                return CommandFuture(PendingCommand::refused(NO_BLOCKS, payload));
            }
            (CommandData::Write(pieces), Some(volume)) => CommandData::Encrypt(pieces, volume.clone()),
            (payload, _) => payload,
        };
        CommandFuture(self.submit(commands::range(opcode, self.id(), first, blocks), payload))
    }

    fn without_data(&self, opcode: IoOpcode, first: u64, blocks: u32) -> CommandFuture {
        if !(1..=1 << 16).contains(&blocks) {
            return CommandFuture(PendingCommand::refused(NO_BLOCKS, CommandData::None));
        }
        CommandFuture(self.submit(commands::range(opcode, self.id(), first, blocks), CommandData::None))
    }

    fn submit(&self, command: Command, payload: CommandData) -> PendingCommand {
        self.host.submit_io(command, payload, Some(self.known.clone()))
    }

    fn blocks_of(&self, bytes: usize) -> Result<u32, CommandError> {
        let block = self.block_size() as usize;
        if bytes == 0 || !bytes.is_multiple_of(block) {
            return Err(NO_BLOCKS);
        }
        if bytes > self.max_transfer() as usize {
            return Err(CommandError::Invalid("too much data for one command: use at most `Disk::max_transfer`"));
        }
        Ok((bytes / block) as u32)
    }
}

pub(super) const NO_BLOCKS: CommandError = CommandError::Invalid("a command takes 1 to 65536 whole blocks");
