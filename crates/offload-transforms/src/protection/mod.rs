//! Protection information: a few bytes behind each block that say what it holds and where it belongs.
//!
//! T10-DIF of types 1 to 3, and NVMe's formats with guards of 16, 32 and 64 bits (NVM Command Set 1.0, 5.2). A
//! [`Protection`] has two sides, memory and wire, each with a [`Format`] or without; [`Way::Apply`](crate::Way) leads from
//! memory to the wire, [`Way::Undo`](crate::Way) back. So there are the four verbs of hardware:
//!
//! | from | to | verb |
//! |---|---|---|
//! | none | a format | add |
//! | a format | none | verify and strip |
//! | a format | the same | verify and pass |
//! | a format | another | verify and transform |
//!
//! The IV says the place: its first eight bytes are the LBA of the first block, little-endian. For types 2 and 3, whose reference
//! tag is not the LBA, the last eight are the reference tag of the first block.

mod in_place;

pub use in_place::{InPlace, Progress, RunFault};

use crate::pieces::{self, Reader, Room};
use crate::{Fault, Parameters, SpecError};
use bytes::Bytes;
use core::fmt;
use crc_fast::{CrcAlgorithm, Digest};
use offload_formats::Sum as InternetSum;
use thiserror::Error;

/// What the guard is computed with, which also says how long protection information is.
///
/// ```
/// use offload_transforms::protection::Guard;
///
/// assert_eq!((Guard::Crc16.bytes(), Guard::Crc64.bytes()), (8, 16));
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Guard {
    /// CRC-16/T10-DIF: 8 bytes, NVMe's 16-bit guard.
    #[default]
    Crc16,
    /// The Internet checksum (RFC 1071), as SCSI hosts have it in place of the CRC: 8 bytes.
    InternetChecksum,
    /// CRC-32C: 16 bytes, NVMe's 32-bit guard.
    Crc32,
    /// CRC-64/NVME: 16 bytes, NVMe's 64-bit guard.
    Crc64,
}

impl Guard {
    /// Bytes of protection information.
    pub const fn bytes(self) -> usize {
        match self {
            Guard::Crc16 | Guard::InternetChecksum => 8,
            Guard::Crc32 | Guard::Crc64 => 16,
        }
    }

    /// Bytes of the guard in it.
    const fn guard_bytes(self) -> usize {
        match self {
            Guard::Crc16 | Guard::InternetChecksum => 2,
            Guard::Crc32 => 4,
            Guard::Crc64 => 8,
        }
    }

    /// The CRC, unless it is the Internet checksum.
    const fn algorithm(self) -> Option<CrcAlgorithm> {
        match self {
            Guard::Crc16 => Some(CrcAlgorithm::Crc16T10Dif),
            Guard::Crc32 => Some(CrcAlgorithm::Crc32Iscsi),
            Guard::Crc64 => Some(CrcAlgorithm::Crc64Nvme),
            Guard::InternetChecksum => None,
        }
    }

    /// Bits of storage tag and reference tag together.
    const fn reference_bits(self) -> u8 {
        match self {
            Guard::Crc16 | Guard::InternetChecksum => 32,
            Guard::Crc32 => 80,
            Guard::Crc64 => 48,
        }
    }
}

/// What the tags mean.
///
/// ```
/// use offload_transforms::protection::Kind;
///
/// assert_eq!(Kind::default(), Kind::Type1);
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Kind {
    /// The reference tag is the LBA's low bits.
    #[default]
    Type1,
    /// The reference tag of the first block comes with the command, and counts on.
    Type2,
    /// The reference tag belongs to the application, is not checked, and is the same in all blocks.
    Type3,
}

/// Protection information of one side.
///
/// ```
/// use offload_transforms::protection::{Format, Guard};
///
/// let format = Format { guard: Guard::Crc64, interval: 4096, ..Format::default() };
/// assert_eq!(format.block(), 4112);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Format {
    /// What the tags mean.
    pub kind: Kind,
    /// What the guard is computed with.
    pub guard: Guard,
    /// Bytes that one guard is of: a block, and the metadata in front of the protection information, if there are any.
    pub interval: u32,
    /// The application tag. Types 1 and 2 cannot have 0xffff, which turns the checks of a block off (T10 and NVMe; in type 3, only if the
    /// reference tag is all ones as well).
    pub application: u16,
    /// How many high bits of the reference tag are a storage tag. 0: none.
    pub storage_bits: u8,
    /// The storage tag.
    pub storage: u64,
}

impl Format {
    /// Bytes of a block with its protection information.
    pub const fn block(&self) -> usize {
        self.interval as usize + self.guard.bytes()
    }

    /// The reference tag of block `index`, storage tag included.
    fn reference(&self, place: Place, index: u64) -> u128 {
        let bits = self.guard.reference_bits() - self.storage_bits;
        let reference = match self.kind {
            Kind::Type1 => place.lba.wrapping_add(index),
            Kind::Type2 => place.reference.wrapping_add(index),
            Kind::Type3 => place.reference,
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
        if self.application == u16::MAX && self.kind != Kind::Type3 {
            return Err(SpecError::ApplicationTag);
        }
        if !(1..=MOST).contains(&self.interval) {
            return Err(SpecError::Unit {
                name: "protection information",
                found: self.interval,
                takes: "1 to 1,048,576",
            });
        }
        Ok(())
    }
}

/// Type 1 with a CRC of 16 bits over 512 bytes; application tag 0, no storage tag.
impl Default for Format {
    fn default() -> Format {
        Format {
            kind: Kind::default(),
            guard: Guard::default(),
            interval: 512,
            application: 0,
            storage_bits: 0,
            storage: 0,
        }
    }
}

/// What is verified.
///
/// ```
/// use offload_transforms::protection::Check;
///
/// assert!(Check::ALL.guard && !Check { guard: false, ..Check::ALL }.guard);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Check {
    /// The guard.
    pub guard: bool,
    /// Bits of the application tag.
    pub application: u16,
    /// The reference tag, but for type 3.
    pub reference: bool,
    /// The storage tag.
    pub storage: bool,
}

impl Check {
    /// Everything.
    pub const ALL: Check = Check { guard: true, application: u16::MAX, reference: true, storage: true };
}

/// The two sides of a transfer. See [`Transform`](crate::Transform) for what to do with it.
///
/// ```
/// use bytes::{Bytes, BytesMut};
/// use offload_transforms::protection::{Check, Format, Mismatch, Protection, Tag};
/// use offload_transforms::{Fault, Parameters, Session, Transform, Way};
///
/// let protection = Protection { memory: None, wire: Some(Format::default()), check: Check::ALL };
/// let session = Session::new(&Transform::Protection(protection))?;
/// let at_lba_7 = Parameters { iv: 7u128.to_le_bytes(), aad: &[] };
/// let mut wire = BytesMut::with_capacity(2 * 520);
/// session.run(Way::Apply, at_lba_7, &[Bytes::from(vec![1; 1024])], &mut wire)?;
/// wire[600] ^= 1; // a bit of the second block
/// let fault = session.run(Way::Undo, at_lba_7, &[wire.freeze()], &mut BytesMut::with_capacity(1024));
/// assert!(matches!(fault, Err(Fault::Integrity(Mismatch { tag: Tag::Guard, lba: 8, .. }))));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Protection {
    /// How data lie in memory.
    pub memory: Option<Format>,
    /// How they lie on the wire, or on the drive.
    pub wire: Option<Format>,
    /// What is verified of protection information that comes in.
    pub check: Check,
}

/// A tag of protection information.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Tag {
    /// The guard.
    Guard,
    /// The application tag.
    Application,
    /// The storage tag.
    Storage,
    /// The reference tag.
    Reference,
}

impl fmt::Display for Tag {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Tag::Guard => "guard",
            Tag::Application => "application tag",
            Tag::Storage => "storage tag",
            Tag::Reference => "reference tag",
        })
    }
}

/// The first tag that is not as it should be. See [`Protection`] for an example.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[error("the {tag} of LBA {lba} is {actual:#x}, not {expected:#x}")]
pub struct Mismatch {
    /// Which one.
    pub tag: Tag,
    /// The block's LBA.
    pub lba: u64,
    /// Where the block begins in the source, in bytes.
    pub offset: u64,
    /// What it should be: of the guard, what the data give.
    pub expected: u128,
    /// What it is.
    pub actual: u128,
}

/// Where the first block belongs.
#[derive(Clone, Copy)]
struct Place {
    lba: u64,
    reference: u64,
}

impl Protection {
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

    /// The guard is computed of the bytes while they are copied, piece by piece, and so in the first cache.
    pub(crate) fn run(
        &self,
        from: Option<&Format>,
        to: Option<&Format>,
        with: Parameters<'_>,
        source: &[Bytes],
        room: &mut Room<'_>,
    ) -> Result<(), Fault> {
        // Both sides have the same interval.
        let Some(&Format { guard: first, interval, .. }) = from.or(to) else { return Ok(()) };
        let interval = interval as usize;
        let (block_in, block_out) = (from.map_or(interval, Format::block), to.map_or(interval, Format::block));
        let found = pieces::len(source);
        if !found.is_multiple_of(block_in) {
            return Err(Fault::SourceLength { name: "protection information", found, takes: "whole blocks" });
        }
        let blocks = found / block_in;
        room.needs(blocks.checked_mul(block_out).ok_or(room.full())?)?;
        let half = u128::from_le_bytes(with.iv);
        let place = Place { lba: half as u64, reference: (half >> 64) as u64 };
        let mut reader = Reader::new(source);
        // Of another kind on the other side.
        let second = from.and(to).map(|format| format.guard).filter(|guard| *guard != first);
        for index in 0..blocks as u64 {
            let (guard, second) = guards(&mut reader, room, interval, first, second)?;
            let mut arrived = None;
            if let Some(from) = from {
                let mut bytes = [0; 16];
                let bytes = &mut bytes[..from.guard.bytes()];
                reader.fill(bytes);
                let tags = Tags::read(from.guard, bytes);
                let block = Block { lba: place.lba.wrapping_add(index), offset: index * block_in as u64 };
                self.verify(from, &tags, guard, from.reference(place, index), block)?;
                arrived = Some((from, tags));
            }
            if let Some(to) = to {
                let tags = match arrived {
                    // As it came, with tags that nobody checks.
                    Some((from, tags)) if from == to => tags,
                    // What is not to be checked remains so.
                    Some((from, tags)) if tags.escaped(from) => Tags {
                        guard: second.unwrap_or(guard),
                        application: u16::MAX,
                        reference: ones(to.guard.reference_bits()),
                    },
                    _ => Tags {
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

    /// Guard, application tag, storage tag, reference tag: in the order of NVMe.
    fn verify(&self, format: &Format, tags: &Tags, guard: u64, reference: u128, block: Block) -> Result<(), Mismatch> {
        if tags.escaped(format) {
            return Ok(());
        }
        let differ = |tag, expected: u128, actual: u128| {
            let Block { lba, offset } = block;
            if expected == actual { Ok(()) } else { Err(Mismatch { tag, lba, offset, expected, actual }) }
        };
        if self.check.guard {
            differ(Tag::Guard, guard.into(), tags.guard.into())?;
        }
        let mask = self.check.application;
        differ(Tag::Application, (format.application & mask).into(), (tags.application & mask).into())?;
        let bits = format.guard.reference_bits() - format.storage_bits;
        if self.check.storage && format.storage_bits > 0 {
            differ(Tag::Storage, reference >> bits, tags.reference >> bits)?;
        }
        if self.check.reference && format.kind != Kind::Type3 {
            differ(Tag::Reference, reference & ones(bits), tags.reference & ones(bits))?;
        }
        Ok(())
    }
}

/// A block, for a report.
#[derive(Clone, Copy)]
struct Block {
    lba: u64,
    offset: u64,
}

/// What protection information says.
#[derive(Clone, Copy)]
struct Tags {
    guard: u64,
    application: u16,
    /// With the storage tag.
    reference: u128,
}

impl Tags {
    /// All numbers are big-endian, one behind the other.
    fn read(guard: Guard, bytes: &[u8]) -> Tags {
        let number = |bytes: &[u8]| bytes.iter().fold(0, |number, byte| number << 8 | u128::from(*byte));
        let (guard, rest) = bytes.split_at(guard.guard_bytes());
        let (application, reference) = rest.split_at(2);
        Tags { guard: number(guard) as u64, application: number(application) as u16, reference: number(reference) }
    }

    fn write(self, guard: Guard, bytes: &mut [u8; 16]) -> &[u8] {
        let len = guard.guard_bytes();
        bytes[..len].copy_from_slice(&self.guard.to_be_bytes()[8 - len..]);
        bytes[len..len + 2].copy_from_slice(&self.application.to_be_bytes());
        let (at, end) = (len + 2, guard.bytes());
        bytes[at..end].copy_from_slice(&self.reference.to_be_bytes()[16 - (end - at)..]);
        &bytes[..end]
    }

    /// Whether the block is not to be checked: an application tag of ones, and for type 3 a reference tag of ones as well.
    fn escaped(&self, format: &Format) -> bool {
        self.application == u16::MAX
            && (format.kind != Kind::Type3 || self.reference == ones(format.guard.reference_bits()))
    }
}

/// Copies the bytes of one block, and gives its guard, and a second one of another kind if there is to be one.
fn guards(
    reader: &mut Reader<'_>,
    room: &mut Room<'_>,
    interval: usize,
    first: Guard,
    second: Option<Guard>,
) -> Result<(u64, Option<u64>), Fault> {
    let Some(part) = reader.next(interval) else { return Err(Fault::Corrupt) };
    room.append(part)?;
    if part.len() == interval {
        return Ok((Sum::of(first, part), second.map(|guard| Sum::of(guard, part))));
    }
    let (mut sum, mut second) = (Sum::new(first), second.map(Sum::new));
    let (mut part, mut left) = (part, interval);
    loop {
        sum.update(part);
        second.iter_mut().for_each(|sum| sum.update(part));
        left -= part.len();
        if left == 0 {
            return Ok((sum.finish(), second.map(Sum::finish)));
        }
        part = reader.next(left).ok_or(Fault::Corrupt)?;
        room.append(part)?;
    }
}

/// A guard under way, of a block that comes in pieces.
enum Sum {
    Crc(Box<Digest>),
    Internet(InternetSum),
}

impl Sum {
    /// The guard of a block in one piece.
    fn of(guard: Guard, block: &[u8]) -> u64 {
        match guard.algorithm() {
            Some(algorithm) => crc_fast::checksum(algorithm, block),
            None => {
                let mut sum = InternetSum::default();
                sum.add(block);
                sum.finish().into()
            }
        }
    }

    fn new(guard: Guard) -> Sum {
        match guard.algorithm() {
            Some(algorithm) => Sum::Crc(Box::new(Digest::new(algorithm))),
            None => Sum::Internet(InternetSum::default()),
        }
    }

    /// One that goes on where another [was](Self::state).
    fn again(guard: Guard, state: u64) -> Sum {
        match guard.algorithm() {
            Some(algorithm) => Sum::Crc(Box::new(Digest::new_with_init_state(algorithm, state))),
            None => {
                let mut sum = InternetSum::default();
                sum.add(&(state as u16).to_be_bytes());
                Sum::Internet(sum)
            }
        }
    }

    /// What it comes to so far, of whole words.
    fn state(self) -> u64 {
        match self {
            Sum::Crc(digest) => digest.get_state(),
            Sum::Internet(sum) => (!sum.finish()).into(),
        }
    }

    fn update(&mut self, bytes: &[u8]) {
        match self {
            Sum::Crc(digest) => digest.update(bytes),
            Sum::Internet(sum) => sum.add(bytes),
        }
    }

    fn finish(self) -> u64 {
        match self {
            Sum::Crc(digest) => digest.finalize(),
            Sum::Internet(sum) => sum.finish().into(),
        }
    }
}

const fn ones(bits: u8) -> u128 {
    (1 << bits) - 1
}

/// Bytes of the largest interval.
const MOST: u32 = 1 << 20;
