//! Protection information in place: data that already have room for it after each block are completed or verified in
//! runs, as they pass.
//!
//! Invariant: the result for a block does not depend on how the block was cut into runs.

use super::{BlockIdentity, BlockLocation, BlockProtection, BlockTags, Check, Format, Mismatch, RunningGuard};
use crate::{SpecError, TransformDirection};
use thiserror::Error;

/// A processor of protection information in place. [`TransformDirection::Apply`] writes the information,
/// [`TransformDirection::Undo`] verifies it and leaves it unchanged.
///
/// ```
/// use offload_transforms::TransformDirection;
/// use offload_transforms::protection::{Check, Format, InPlaceProtection, TransferProgress, RunFault};
///
/// let protection = InPlaceProtection::new(Format::default(), Check::ALL, 0)?;
/// let mut blocks = [7; 2 * 520];
/// protection.run(TransformDirection::Apply, 100, 0, &mut TransferProgress::default(), &mut blocks)?; // LBAs 100 and 101
/// // Arrives in two packets.
/// let (head, tail) = blocks.split_at_mut(320);
/// let mut progress = TransferProgress::default();
/// protection.run(TransformDirection::Undo, 100, 0, &mut progress, head)?;
/// protection.run(TransformDirection::Undo, 100, 320, &mut progress, tail)?;
/// // Without the first packet, the block in which the second packet begins cannot be verified.
/// let alone = protection.run(TransformDirection::Undo, 100, 320, &mut TransferProgress::default(), tail);
/// assert_eq!(alone, Err(RunFault::BeginningUnseen));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct InPlaceProtection {
    format: Format,
    check: Check,
    reference: u64,
}

/// The progress of a transfer's runs: the position, and the guard so far. See [`InPlaceProtection`] for an example.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TransferProgress {
    /// Position in the transfer, and the LBA of its first block.
    to: (u64, u64),
    /// State of the guard over the block so far.
    sum: u64,
}

/// The reason that a run failed. See [`InPlaceProtection`] for an example.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum RunFault {
    /// The data, or their location, do not match the protection information.
    #[error(transparent)]
    Mismatch(#[from] Mismatch),
    /// The run begins within a block, but not where the last run ended.
    #[error("the run begins within a block, and not where the last one ended")]
    BeginningUnseen,
    /// The run ends within protection information. Runs must be cut elsewhere.
    #[error("the run ends within protection information")]
    TagsCut,
}

impl TransferProgress {
    /// Size of a saved progress in bytes.
    pub const BYTES: usize = 24;

    /// Saves the progress as bytes.
    pub fn to_bytes(self) -> [u8; TransferProgress::BYTES] {
        let mut bytes = [0; TransferProgress::BYTES];
        let values = [self.to.0, self.to.1, self.sum];
        bytes.chunks_exact_mut(8).zip(values).for_each(|(bytes, value)| bytes.copy_from_slice(&value.to_le_bytes()));
        bytes
    }

    /// Restores the progress from the bytes of [`to_bytes`](Self::to_bytes).
    ///
    /// ```
    /// use offload_transforms::protection::TransferProgress;
    ///
    /// let progress = TransferProgress::default();
    /// assert_eq!(TransferProgress::from_bytes(&progress.to_bytes()), progress);
    /// ```
    pub fn from_bytes(bytes: &[u8; TransferProgress::BYTES]) -> TransferProgress {
        let value = |at: usize| bytes[at..at + 8].iter().rfold(0, |value, byte| value << 8 | u64::from(*byte));
        TransferProgress { to: (value(0), value(8)), sum: value(16) }
    }
}

impl InPlaceProtection {
    /// Creates a processor for blocks of this format. For types 2 and 3, `reference` is the reference tag of LBA 0, or
    /// of all blocks.
    ///
    /// # Errors
    /// If the format is invalid, or if its protection information would not lie at multiples of its size.
    pub fn new(format: Format, check: Check, reference: u64) -> Result<InPlaceProtection, SpecError> {
        format.check()?;
        // Runs are cut at multiples of the tags' size, and must never cut through tags.
        if !(format.interval as usize).is_multiple_of(format.guard.bytes()) {
            return Err(SpecError::Unit {
                name: "protection information in place",
                found: format.interval,
                takes: "a multiple of its own length",
            });
        }
        Ok(InPlaceProtection { format, check, reference })
    }

    /// Returns the format of the blocks.
    pub fn format(&self) -> &Format {
        &self.format
    }

    /// Processes a run of a transfer. The run begins `at` bytes after the transfer's first block, which has the LBA
    /// `first`.
    ///
    /// # Errors
    /// Returns the first [`RunFault`]. The caller may continue with the next run, because another block may begin in
    /// this run. [`TransformDirection::Undo`] leaves `bytes` unchanged.
    pub fn run(
        &self,
        way: TransformDirection,
        first: u64,
        at: u64,
        progress: &mut TransferProgress,
        bytes: &mut [u8],
    ) -> Result<(), RunFault> {
        let (block, interval) = (self.format.block() as u64, u64::from(self.format.interval));
        let before = core::mem::take(progress);
        let (mut at, mut rest) = (at, bytes);
        // The guard of a block is known only if the block was seen from its beginning. A run that does not continue the
        // last one cannot know the beginning of its block.
        let mut sum = (before.to == (at, first)).then(|| RunningGuard::again(self.format.guard, before.sum));
        let mut fault = None;
        while !rest.is_empty() {
            let within = at % block;
            if within == 0 {
                sum = Some(RunningGuard::new(self.format.guard));
            } else if sum.is_none() {
                // The first fault is kept: later ones may only follow from it.
                fault.get_or_insert(RunFault::BeginningUnseen);
            }
            let taken = if within < interval {
                let taken = rest.len().min((interval - within) as usize);
                sum.iter_mut().for_each(|sum| sum.update(&rest[..taken]));
                taken
            } else {
                // The tags of a block cannot be buffered across runs, because the progress has no room for these bytes.
                let tags = rest.get_mut(..self.format.guard.bytes()).ok_or(RunFault::TagsCut)?;
                if let Some(guard) = sum.take().map(RunningGuard::finish)
                    && let Err(mismatch) = self.tag(way, (first, at / block, block), guard, tags)
                {
                    fault.get_or_insert(mismatch.into());
                }
                tags.len()
            };
            rest = rest.split_at_mut(taken).1;
            at += taken as u64;
        }
        if let Some(sum) = sum {
            *progress = TransferProgress { to: (at, first), sum: sum.state() };
        }
        fault.map_or(Ok(()), Err)
    }

    /// Writes or verifies the tags after block `index` of a transfer that begins with the LBA `first`.
    fn tag(
        &self,
        way: TransformDirection,
        (first, index, block): (u64, u64, u64),
        guard: u64,
        bytes: &mut [u8],
    ) -> Result<(), Mismatch> {
        let format = &self.format;
        let reference = match format.kind {
            // Type 2 counts from the reference tag of LBA 0, so the transfer's first block is `first` further on.
            super::ProtectionType::Type2 => self.reference.wrapping_add(first),
            _ => self.reference,
        };
        let reference = format.reference(BlockLocation { lba: first, reference }, index);
        match way {
            TransformDirection::Apply => {
                let tags = BlockTags { guard, application: format.application, reference };
                bytes.copy_from_slice(tags.write(format.guard, &mut [0; 16]));
                Ok(())
            }
            TransformDirection::Undo => {
                let protection = BlockProtection { memory: None, wire: Some(*format), check: self.check };
                let block = BlockIdentity { lba: first.wrapping_add(index), offset: index * block };
                protection.verify(format, &BlockTags::read(format.guard, bytes), guard, reference, block)
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::{Guard, ProtectionTag, ProtectionType};
    use super::*;
    use crate::{Parameters, Session, Transform};
    use bytes::{Bytes, BytesMut};
    use proptest::prelude::*;

    /// Returns the result of a job that starts from blocks without protection information.
    fn by_job(format: Format, lba: u64, reference: u64, plain: &[u8]) -> Vec<u8> {
        let protection = BlockProtection { memory: None, wire: Some(format), check: Check::ALL };
        let session = Session::new(&Transform::Protection(protection)).unwrap();
        let mut made = BytesMut::with_capacity(plain.len() * 2);
        let iv = (u128::from(reference) << 64 | u128::from(lba)).to_le_bytes();
        let source = [Bytes::copy_from_slice(plain)];
        session.run(TransformDirection::Apply, Parameters { iv, aad: &[] }, &source, &mut made).unwrap();
        made.to_vec()
    }

    fn formats() -> impl Strategy<Value = Format> {
        let guards = vec![Guard::Crc16, Guard::InternetChecksum, Guard::Crc32, Guard::Crc64];
        let kinds = vec![ProtectionType::Type1, ProtectionType::Type2, ProtectionType::Type3];
        (prop::sample::select(guards), prop::sample::select(kinds), 1u32..20, any::<u16>()).prop_map(
            |(guard, kind, units, application)| {
                let interval = units * guard.bytes() as u32;
                Format { guard, kind, interval, application: application & 0x7fff, ..Format::default() }
            },
        )
    }

    /// Returns ends of runs at multiples of 16, with the end of the data.
    fn ends(cuts: &[usize], len: usize) -> Vec<usize> {
        let mut ends: Vec<usize> = cuts.iter().map(|cut| cut * 16 % len / 16 * 16).chain([len]).collect();
        ends.sort_unstable();
        ends.dedup();
        ends
    }

    proptest! {
        #[test]
        fn in_place_result_matches_a_job_for_any_cutting(
            format in formats(),
            lba in any::<u32>(),
            blocks in 1usize..6,
            cuts in prop::collection::vec(1usize..1000, 0..8),
            flipped in any::<prop::sample::Index>(),
        ) {
            let (lba, reference) = (u64::from(lba), 77);
            let plain: Vec<u8> = (0..blocks * format.interval as usize).map(|at| (at * 7 / 3) as u8).collect();
            let first_reference = if format.kind == ProtectionType::Type2 { reference + lba } else { reference };
            let expected = by_job(format, lba, first_reference, &plain);
            let protection = InPlaceProtection::new(format, Check::ALL, reference).unwrap();
            let mut bytes = expected.clone();
            let tags = bytes.chunks_exact_mut(format.block());
            tags.for_each(|block| block[format.interval as usize..].fill(0xee));
            let pass = |way, bytes: &mut [u8]| {
                let (mut progress, mut start) = (TransferProgress::default(), 0);
                for end in ends(&cuts, bytes.len()) {
                    protection.run(way, lba, start as u64, &mut progress, &mut bytes[start..end])?;
                    progress = TransferProgress::from_bytes(&progress.to_bytes());
                    start = end;
                }
                Ok::<(), RunFault>(())
            };
            prop_assert_eq!(pass(TransformDirection::Apply, &mut bytes), Ok(()));
            prop_assert_eq!(&bytes, &expected);
            prop_assert_eq!(pass(TransformDirection::Undo, &mut bytes), Ok(()));
            prop_assert_eq!(&bytes, &expected, "verified, they are as they were");
            // One flipped bit is reported with the right LBA and tag.
            let bit = flipped.index(8 * bytes.len());
            bytes[bit / 8] ^= 1 << (bit % 8);
            let (block, within) = (bit / 8 / format.block(), bit / 8 % format.block());
            let tags = within.checked_sub(format.interval as usize);
            let guard_bytes = format.guard.guard_bytes();
            let expected = match tags {
                Some(at) if (guard_bytes..guard_bytes + 2).contains(&at) => Some(ProtectionTag::Application),
                Some(at) if at >= guard_bytes && format.kind == ProtectionType::Type3 => None,
                Some(at) if at >= guard_bytes => Some(ProtectionTag::Reference),
                _ => Some(ProtectionTag::Guard),
            };
            let found = match pass(TransformDirection::Undo, &mut bytes) {
                Err(RunFault::Mismatch(Mismatch { tag, lba, .. })) => Some((tag, lba)),
                other => { prop_assert_eq!(other, Ok(())); None }
            };
            prop_assert_eq!(found, expected.map(|tag| (tag, lba + block as u64)));
        }
    }

    #[test]
    fn run_without_its_predecessor_is_not_verified() {
        let protection = InPlaceProtection::new(Format::default(), Check::ALL, 0).unwrap();
        let mut bytes = by_job(Format::default(), 5, 0, &[3; 1536]);
        let mut progress = TransferProgress::default();
        protection.run(TransformDirection::Undo, 5, 0, &mut progress, &mut bytes[..160]).unwrap();
        let went_on = progress;
        for (first, at) in [(5, 176), (6, 160), (5, 144)] {
            let run = protection.run(TransformDirection::Undo, first, at, &mut { went_on }, &mut bytes[160..520]);
            assert_eq!(run, Err(RunFault::BeginningUnseen), "{first} {at}");
        }
        assert_eq!(
            protection.run(TransformDirection::Undo, 5, 160, &mut progress, &mut bytes[160..516]),
            Err(RunFault::TagsCut)
        );
        // The second block begins in a run that fails because of the first block.
        let mut after = TransferProgress::default();
        let unseen = protection.run(TransformDirection::Undo, 5, 160, &mut after, &mut bytes[160..560]);
        assert_eq!(unseen, Err(RunFault::BeginningUnseen));
        assert_eq!(protection.run(TransformDirection::Undo, 5, 560, &mut after, &mut bytes[560..]), Ok(()));
        assert_eq!(
            protection.run(TransformDirection::Undo, 5, 520, &mut progress, &mut bytes[520..]),
            Ok(()),
            "at a block it may begin"
        );
        let odd = Format { interval: 500, ..Format::default() };
        assert!(InPlaceProtection::new(odd, Check::ALL, 0).is_err());
    }
}
