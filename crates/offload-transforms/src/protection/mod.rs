//! Protection information: a few bytes after each block that authenticate its contents and location against accidents.
//!
//! The formats are T10-DIF of types 1 to 3, and NVMe's with guards of 16, 32 and 64 bits (NVM Command Set 1.0, 5.2). A
//! [`BlockProtection`] has two sides, memory and wire, each with an optional [`Format`].
//! [`TransformDirection::Apply`](crate::TransformDirection) leads from memory to the wire,
//! [`TransformDirection::Undo`](crate::TransformDirection) back. The two formats select one of hardware's four
//! operations:
//!
//! | from | to | operation |
//! |---|---|---|
//! | no format | a format | add |
//! | a format | no format | verify and strip |
//! | a format | the same | verify and pass |
//! | a format | another | verify and transform |
//!
//! The IV holds the location. Its first eight bytes are the LBA of the first block, little-endian. For types 2 and 3,
//! which have a separate reference tag, the last eight bytes are the reference tag of the first block.

mod in_place;

pub use in_place::{InPlaceProtection, RunFault, TransferProgress};

use crate::pieces::{self, OutputBuffer, PieceReader};
use crate::{Fault, Parameters, SpecError};
use bytes::Bytes;
use core::fmt;
use crc_fast::{CrcAlgorithm, Digest};
use offload_formats::InternetSum;
use thiserror::Error;

/// The algorithm of the guard, which also determines the size of the protection information.
///
/// ```
/// use offload_transforms::protection::Guard;
///
/// assert_eq!((Guard::Crc16.bytes(), Guard::Crc64.bytes()), (8, 16));
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Guard {
    /// CRC-16/T10-DIF, in 8 bytes of protection information: NVMe's 16-bit guard.
    #[default]
    Crc16,
    /// The Internet checksum (RFC 1071), in 8 bytes: the alternative of SCSI hosts to the CRC.
    InternetChecksum,
    /// CRC-32C, in 16 bytes: NVMe's 32-bit guard.
    Crc32,
    /// CRC-64/NVME, in 16 bytes: NVMe's 64-bit guard.
    Crc64,
}

impl Guard {
    /// Returns the size of the protection information in bytes.
    pub const fn bytes(self) -> usize {
        match self {
            Guard::Crc16 | Guard::InternetChecksum => 8,
            Guard::Crc32 | Guard::Crc64 => 16,
        }
    }

    /// Returns the size of the guard in bytes.
    const fn guard_bytes(self) -> usize {
        match self {
            Guard::Crc16 | Guard::InternetChecksum => 2,
            Guard::Crc32 => 4,
            Guard::Crc64 => 8,
        }
    }

    /// Returns the CRC algorithm, or `None` for the Internet checksum.
    const fn algorithm(self) -> Option<CrcAlgorithm> {
        match self {
            Guard::Crc16 => Some(CrcAlgorithm::Crc16T10Dif),
            Guard::Crc32 => Some(CrcAlgorithm::Crc32Iscsi),
            Guard::Crc64 => Some(CrcAlgorithm::Crc64Nvme),
            Guard::InternetChecksum => None,
        }
    }

    /// Returns the total size of storage tag and reference tag in bits.
    const fn reference_bits(self) -> u8 {
        match self {
            Guard::Crc16 | Guard::InternetChecksum => 32,
            Guard::Crc32 => 80,
            Guard::Crc64 => 48,
        }
    }
}

/// The meaning of the tags.
///
/// ```
/// use offload_transforms::protection::ProtectionType;
///
/// assert_eq!(ProtectionType::default(), ProtectionType::Type1);
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum ProtectionType {
    /// The reference tag holds the low bits of the LBA.
    #[default]
    Type1,
    /// The command sets the reference tag of the first block, and the tag counts up.
    Type2,
    /// The reference tag belongs to the application: equal in all blocks, and not verified.
    Type3,
}

/// The format of protection information on one side.
///
/// ```
/// use offload_transforms::protection::{Format, Guard};
///
/// let format = Format { guard: Guard::Crc64, interval: 4096, ..Format::default() };
/// assert_eq!(format.block(), 4112);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Format {
    /// Meaning of the tags.
    pub kind: ProtectionType,
    /// Algorithm of the guard.
    pub guard: Guard,
    /// Bytes covered by one guard: a block, with the metadata in front of the protection information, if any.
    pub interval: u32,
    /// Application tag. In types 1 and 2 it must not be 0xffff, which turns off the checks of a block (by T10 and NVMe;
    /// in type 3 this needs a reference tag of all ones as well).
    pub application: u16,
    /// Number of high bits of the reference tag that form the storage tag. 0 for no storage tag.
    pub storage_bits: u8,
    /// Storage tag.
    pub storage: u64,
}

impl Format {
    /// Returns the size of a block with its protection information, in bytes.
    pub const fn block(&self) -> usize {
        self.interval as usize + self.guard.bytes()
    }

    /// Returns the reference tag of block `index`, with the storage tag.
    fn reference(&self, place: BlockLocation, index: u64) -> u128 {
        let bits = self.guard.reference_bits() - self.storage_bits;
        let reference = match self.kind {
            ProtectionType::Type1 => place.lba.wrapping_add(index),
            ProtectionType::Type2 => place.reference.wrapping_add(index),
            ProtectionType::Type3 => place.reference,
        };
        u128::from(self.storage) << bits | u128::from(reference) & ones(bits)
    }

    fn check(&self) -> Result<(), SpecError> {
        let room = self.guard.reference_bits().min(64);
        if self.storage_bits > room {
            return Err(SpecError::StorageTag { found: self.storage_bits, room });
        }
        if u128::from(self.storage) > ones(self.storage_bits) {
            return Err(SpecError::StorageTag {
                found: (64 - self.storage.leading_zeros()) as u8,
                room: self.storage_bits,
            });
        }
        if self.application == u16::MAX && self.kind != ProtectionType::Type3 {
            return Err(SpecError::ApplicationTag);
        }
        if !(1..=MAX_INTERVAL_BYTES).contains(&self.interval) {
            return Err(SpecError::Unit {
                name: "protection information",
                found: self.interval,
                takes: "1 to 1,048,576",
            });
        }
        Ok(())
    }
}

/// Type 1 with a 16-bit CRC over 512 bytes, application tag 0, and no storage tag.
impl Default for Format {
    fn default() -> Format {
        Format {
            kind: ProtectionType::default(),
            guard: Guard::default(),
            interval: 512,
            application: 0,
            storage_bits: 0,
            storage: 0,
        }
    }
}

/// The selection of tags to verify.
///
/// ```
/// use offload_transforms::protection::Check;
///
/// assert!(Check::ALL.guard && !Check { guard: false, ..Check::ALL }.guard);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Check {
    /// Whether to verify the guard.
    pub guard: bool,
    /// Mask of the application tag's verified bits.
    pub application: u16,
    /// Whether to verify the reference tag. Never verified in type 3.
    pub reference: bool,
    /// Whether to verify the storage tag.
    pub storage: bool,
}

impl Check {
    /// Verifies all tags.
    pub const ALL: Check = Check { guard: true, application: u16::MAX, reference: true, storage: true };
}

/// The two sides of a transfer, used in a [`Transform`](crate::Transform).
///
/// ```
/// use bytes::{Bytes, BytesMut};
/// use offload_transforms::protection::{Check, Format, Mismatch, BlockProtection, ProtectionTag};
/// use offload_transforms::{Fault, Parameters, Session, Transform, TransformDirection};
///
/// let protection = BlockProtection { memory: None, wire: Some(Format::default()), check: Check::ALL };
/// let session = Session::new(&Transform::Protection(protection))?;
/// let at_lba_7 = Parameters { iv: 7u128.to_le_bytes(), aad: &[] };
/// let mut wire = BytesMut::with_capacity(2 * 520);
/// session.run(TransformDirection::Apply, at_lba_7, &[Bytes::from(vec![1; 1024])], &mut wire)?;
/// wire[600] ^= 1; // a bit of the second block
/// let fault = session.run(TransformDirection::Undo, at_lba_7, &[wire.freeze()], &mut BytesMut::with_capacity(1024));
/// assert!(matches!(fault, Err(Fault::Integrity(Mismatch { tag: ProtectionTag::Guard, lba: 8, .. }))));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BlockProtection {
    /// Format in memory. `None` for data without protection information.
    pub memory: Option<Format>,
    /// Format on the wire, or on the drive. `None` for data without protection information.
    pub wire: Option<Format>,
    /// Selection of the tags to verify in incoming protection information.
    pub check: Check,
}

/// A tag of protection information.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum ProtectionTag {
    /// The guard.
    Guard,
    /// The application tag.
    Application,
    /// The storage tag.
    Storage,
    /// The reference tag.
    Reference,
}

impl fmt::Display for ProtectionTag {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            ProtectionTag::Guard => "guard",
            ProtectionTag::Application => "application tag",
            ProtectionTag::Storage => "storage tag",
            ProtectionTag::Reference => "reference tag",
        })
    }
}

/// The first tag with a wrong value. See [`BlockProtection`] for an example.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[error("the {tag} of LBA {lba} is {actual:#x}, not {expected:#x}")]
pub struct Mismatch {
    /// Wrong tag.
    pub tag: ProtectionTag,
    /// LBA of the block.
    pub lba: u64,
    /// Offset of the block in the source, in bytes.
    pub offset: u64,
    /// Expected value; for the guard, computed from the data.
    pub expected: u128,
    /// Value found.
    pub actual: u128,
}

/// The location of the first block.
#[derive(Clone, Copy)]
struct BlockLocation {
    lba: u64,
    reference: u64,
}

impl BlockProtection {
    pub(crate) fn check(&self) -> Result<(), SpecError> {
        for format in [self.memory, self.wire].into_iter().flatten() {
            format.check()?;
        }
        match (self.memory, self.wire) {
            (None, None) => Err(SpecError::Domains),
            (Some(memory), Some(wire)) if memory.interval != wire.interval => Err(SpecError::Domains),
            _ => Ok(()),
        }
    }

    /// Verifies and rewrites whole blocks. The guard is computed while a piece is copied, and is still in the
    /// first-level cache.
    pub(crate) fn run(
        &self,
        from: Option<&Format>,
        to: Option<&Format>,
        with: Parameters<'_>,
        source: &[Bytes],
        room: &mut OutputBuffer<'_>,
    ) -> Result<(), Fault> {
        // `check` has ensured that both sides have the same interval.
        let Some(&Format { guard: first, interval, .. }) = from.or(to) else { return Ok(()) };
        let interval = interval as usize;
        let (block_in, block_out) = (from.map_or(interval, Format::block), to.map_or(interval, Format::block));
        let found = pieces::len(source);
        if !found.is_multiple_of(block_in) {
            return Err(Fault::SourceLength { name: "protection information", found, takes: "whole blocks" });
        }
        let blocks = found / block_in;
        // Checked as a whole before the first block, so that a short target fails early.
        room.needs(blocks.checked_mul(block_out).ok_or(room.full())?)?;
        let half = u128::from_le_bytes(with.iv);
        let place = BlockLocation { lba: half as u64, reference: (half >> 64) as u64 };
        let mut reader = PieceReader::new(source);
        // The wire may use another algorithm than memory, so two guards may be needed.
        let second = from.and(to).map(|format| format.guard).filter(|guard| *guard != first);
        for index in 0..blocks as u64 {
            let (guard, second) = guards(&mut reader, room, interval, first, second)?;
            let mut arrived = None;
            if let Some(from) = from {
                let mut bytes = [0; 16];
                let bytes = &mut bytes[..from.guard.bytes()];
                reader.fill(bytes);
                let tags = BlockTags::read(from.guard, bytes);
                let block = BlockIdentity { lba: place.lba.wrapping_add(index), offset: index * block_in as u64 };
                self.verify(from, &tags, guard, from.reference(place, index), block)?;
                arrived = Some((from, tags));
            }
            if let Some(to) = to {
                let tags = match arrived {
                    // Equal formats pass the tags unchanged, with the ones that are not verified.
                    Some((from, tags)) if from == to => tags,
                    // A block that escaped the checks must keep its escape, or it would look verified.
                    Some((from, tags)) if tags.escaped(from) => BlockTags {
                        guard: second.unwrap_or(guard),
                        application: u16::MAX,
                        reference: ones(to.guard.reference_bits()),
                    },
                    _ => BlockTags {
                        guard: second.unwrap_or(guard),
                        application: to.application,
                        reference: to.reference(place, index),
                    },
                };
                let mut bytes = [0; 16];
                room.append(tags.write(to.guard, &mut bytes))?;
            }
        }
        Ok(())
    }

    /// Verifies guard, application tag, storage tag and reference tag, in the order of NVMe.
    fn verify(
        &self,
        format: &Format,
        tags: &BlockTags,
        guard: u64,
        reference: u128,
        block: BlockIdentity,
    ) -> Result<(), Mismatch> {
        // An escaped block has no protection, for example because it was never written.
        if tags.escaped(format) {
            return Ok(());
        }
        let differ = |tag, expected: u128, actual: u128| {
            let BlockIdentity { lba, offset } = block;
            if expected == actual { Ok(()) } else { Err(Mismatch { tag, lba, offset, expected, actual }) }
        };
        if self.check.guard {
            differ(ProtectionTag::Guard, guard.into(), tags.guard.into())?;
        }
        let mask = self.check.application;
        differ(ProtectionTag::Application, (format.application & mask).into(), (tags.application & mask).into())?;
        let bits = format.guard.reference_bits() - format.storage_bits;
        if self.check.storage && format.storage_bits > 0 {
            differ(ProtectionTag::Storage, reference >> bits, tags.reference >> bits)?;
        }
        // In type 3 the reference tag belongs to the application.
        if self.check.reference && format.kind != ProtectionType::Type3 {
            differ(ProtectionTag::Reference, reference & ones(bits), tags.reference & ones(bits))?;
        }
        Ok(())
    }
}

/// The identity of a block in an error.
#[derive(Clone, Copy)]
struct BlockIdentity {
    lba: u64,
    offset: u64,
}

/// The tags of one block.
#[derive(Clone, Copy)]
struct BlockTags {
    guard: u64,
    application: u16,
    /// Reference tag with the storage tag in its high bits.
    reference: u128,
}

impl BlockTags {
    /// Parses the tags, which are adjacent big-endian numbers.
    fn read(guard: Guard, bytes: &[u8]) -> BlockTags {
        let number = |bytes: &[u8]| bytes.iter().fold(0, |number, byte| number << 8 | u128::from(*byte));
        let (guard, rest) = bytes.split_at(guard.guard_bytes());
        let (application, reference) = rest.split_at(2);
        BlockTags { guard: number(guard) as u64, application: number(application) as u16, reference: number(reference) }
    }

    fn write(self, guard: Guard, bytes: &mut [u8; 16]) -> &[u8] {
        let len = guard.guard_bytes();
        bytes[..len].copy_from_slice(&self.guard.to_be_bytes()[8 - len..]);
        bytes[len..len + 2].copy_from_slice(&self.application.to_be_bytes());
        let (at, end) = (len + 2, guard.bytes());
        bytes[at..end].copy_from_slice(&self.reference.to_be_bytes()[16 - (end - at)..]);
        &bytes[..end]
    }

    /// Tests whether the block escapes the checks: its application tag is all ones, and in type 3 its reference tag as
    /// well.
    fn escaped(&self, format: &Format) -> bool {
        self.application == u16::MAX
            && (format.kind != ProtectionType::Type3 || self.reference == ones(format.guard.reference_bits()))
    }
}

/// Copies the bytes of one block. Returns its guard, and the guard by a second algorithm if there is one.
fn guards(
    reader: &mut PieceReader<'_>,
    room: &mut OutputBuffer<'_>,
    interval: usize,
    first: Guard,
    second: Option<Guard>,
) -> Result<(u64, Option<u64>), Fault> {
    let Some(part) = reader.next(interval) else { return Err(Fault::Corrupt) };
    room.append(part)?;
    // The common case: the whole block lies in one piece, and needs no running digest.
    if part.len() == interval {
        return Ok((RunningGuard::compute(first, part), second.map(|guard| RunningGuard::compute(guard, part))));
    }
    let (mut sum, mut second) = (RunningGuard::new(first), second.map(RunningGuard::new));
    let (mut part, mut left) = (part, interval);
    loop {
        sum.update(part);
        second.iter_mut().for_each(|sum| sum.update(part));
        left -= part.len();
        if left == 0 {
            return Ok((sum.finish(), second.map(RunningGuard::finish)));
        }
        part = reader.next(left).ok_or(Fault::Corrupt)?;
        room.append(part)?;
    }
}

/// The running guard of a block that arrives in pieces.
enum RunningGuard {
    Crc(Box<Digest>),
    Internet(InternetSum),
}

impl RunningGuard {
    /// Computes the guard of a block in one piece.
    fn compute(guard: Guard, block: &[u8]) -> u64 {
        match guard.algorithm() {
            Some(algorithm) => crc_fast::checksum(algorithm, block),
            None => {
                let mut sum = InternetSum::default();
                sum.add(block);
                sum.finish().into()
            }
        }
    }

    fn new(guard: Guard) -> RunningGuard {
        match guard.algorithm() {
            Some(algorithm) => RunningGuard::Crc(Box::new(Digest::new(algorithm))),
            None => RunningGuard::Internet(InternetSum::default()),
        }
    }

    /// Resumes from a saved [`state`](Self::state).
    fn again(guard: Guard, state: u64) -> RunningGuard {
        match guard.algorithm() {
            Some(algorithm) => RunningGuard::Crc(Box::new(Digest::new_with_init_state(algorithm, state))),
            None => {
                let mut sum = InternetSum::default();
                // The state is a folded sum, and one more word with that value continues it.
                sum.add(&(state as u16).to_be_bytes());
                RunningGuard::Internet(sum)
            }
        }
    }

    /// Returns the state so far, for a multiple of whole words.
    fn state(self) -> u64 {
        match self {
            RunningGuard::Crc(digest) => digest.get_state(),
            RunningGuard::Internet(sum) => (!sum.finish()).into(),
        }
    }

    fn update(&mut self, bytes: &[u8]) {
        match self {
            RunningGuard::Crc(digest) => digest.update(bytes),
            RunningGuard::Internet(sum) => sum.add(bytes),
        }
    }

    fn finish(self) -> u64 {
        match self {
            RunningGuard::Crc(digest) => digest.finalize(),
            RunningGuard::Internet(sum) => sum.finish().into(),
        }
    }
}

const fn ones(bits: u8) -> u128 {
    (1 << bits) - 1
}

/// Maximum size of an interval in bytes.
const MAX_INTERVAL_BYTES: u32 = 1 << 20;
