//! The block of a cipher that a packet cut: the bytes of it that came, until the next packet completes it; and what stages
//! remember of the data before it.
//!
//! Invariant: the bytes are those of the last data that arrived, fewer than a block, and begin one. Any other data that come
//! first make it forget them: software has them too.

use nic_engine::StageStates;
use nic_engine::{ImageReader, ImageWriter};
use offload_api::Piece;
use smallvec::SmallVec;

/// What came of a block, or nothing.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct OpenBlock {
    command: u16,
    /// Where in the command's buffer the bytes end.
    end: u32,
    length: u8,
    bytes: [u8; OpenBlock::MOST],
    passed: Passed,
}

/// The last data that passed stages.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Passed {
    command: u16,
    /// Where in the command's buffer they end.
    end: u32,
    states: StageStates,
}

impl OpenBlock {
    /// Bytes that it can have.
    const MOST: usize = Piece::BLOCK as usize - 1;

    /// These, which end at `end` in the buffer of `command`, are open.
    ///
    /// # Panics
    /// If they are a block, or more.
    pub(super) fn keep(&mut self, command: u16, end: u32, bytes: &[u8]) {
        *self = OpenBlock { command, end, length: bytes.len() as u8, bytes: [0; OpenBlock::MOST], passed: self.passed };
        self.bytes[..bytes.len()].copy_from_slice(bytes);
    }

    /// What stages remember right before `at` in the buffer of `command`.
    pub(super) fn states(&self, command: u16, at: u64) -> StageStates {
        let Passed { command: of, end, states } = self.passed;
        if of == command && u64::from(end) == at { states } else { StageStates::default() }
    }

    /// This is what they remember at `end`.
    pub(super) fn note_states(&mut self, command: u16, end: u64, states: StageStates) {
        self.passed = Passed { command, end: end as u32, states };
    }

    /// Nothing is open, and nothing remembered.
    pub(super) fn forget(&mut self) {
        *self = OpenBlock::default();
    }

    /// What is open right before `offset` in the buffer of `command`. Nothing is any more then.
    pub(super) fn take(&mut self, command: u16, offset: u32) -> SmallVec<[u8; OpenBlock::MOST]> {
        let OpenBlock { length, bytes, command: of, end, passed } = *self;
        *self = OpenBlock { passed, ..OpenBlock::default() };
        let fits = of == command && end == offset;
        SmallVec::from_slice(&bytes[..if fits { length.into() } else { 0 }])
    }

    /// Writes it out.
    pub(super) fn write(&self, image: &mut ImageWriter<'_>) {
        image.put_u16(self.command);
        image.put_u32(self.end);
        image.put_u8(self.length);
        image.put(&self.bytes);
        image.put_u16(self.passed.command);
        image.put_u32(self.passed.end);
        self.passed.states.put(image);
    }

    /// Reads back what [`write`](Self::write) wrote.
    pub(super) fn read(image: &mut ImageReader<'_>) -> Option<OpenBlock> {
        let (command, end, length, bytes) = (image.take_u16()?, image.take_u32()?, image.take_u8()?, image.take()?);
        let passed = Passed { command: image.take_u16()?, end: image.take_u32()?, states: StageStates::take(image)? };
        (usize::from(length) <= Self::MOST).then_some(OpenBlock { command, end, length, bytes, passed })
    }
}
