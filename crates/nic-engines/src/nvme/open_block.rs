//! A cipher block that is split over packets: its bytes so far, until the next packet completes it. Also the stages'
//! state for the data before the block.
//!
//! Invariant: the bytes are the end of the last received data, start a block, and are fewer than a block. Other data
//! discard them, which is safe because software has these bytes too.

use nic_engine::StageStates;
use nic_engine::{ImageReader, ImageWriter};
use offload_api::Piece;
use smallvec::SmallVec;

/// An incomplete block, or nothing.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct OpenBlock {
    command: u16,
    /// End of the bytes in the command's buffer.
    end: u32,
    length: u8,
    bytes: [u8; OpenBlock::MAX],
    passed: PassedData,
}

/// The end of the last data that passed stages.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct PassedData {
    command: u16,
    /// End of the data in the command's buffer.
    end: u32,
    states: StageStates,
}

impl OpenBlock {
    /// Maximum number of bytes.
    const MAX: usize = Piece::BLOCK as usize - 1;

    /// Stores the start of a block; `bytes` end at `end` of the command's buffer.
    ///
    /// # Panics
    /// If there is a whole block or more.
    pub(super) fn keep(&mut self, command: u16, end: u32, bytes: &[u8]) {
        *self = OpenBlock { command, end, length: bytes.len() as u8, bytes: [0; OpenBlock::MAX], passed: self.passed };
        self.bytes[..bytes.len()].copy_from_slice(bytes);
    }

    /// Returns the stages' state right before `at` of the command's buffer.
    pub(super) fn states(&self, command: u16, at: u64) -> StageStates {
        let PassedData { command: of, end, states } = self.passed;
        if of == command && u64::from(end) == at { states } else { StageStates::default() }
    }

    /// Records the stages' state at `end`.
    pub(super) fn note_states(&mut self, command: u16, end: u64, states: StageStates) {
        self.passed = PassedData { command, end: end as u32, states };
    }

    /// Discards the block and the stages' state.
    pub(super) fn forget(&mut self) {
        *self = OpenBlock::default();
    }

    /// Takes the bytes that end at `offset` of the command's buffer. Bytes at another position are discarded.
    pub(super) fn take(&mut self, command: u16, offset: u32) -> SmallVec<[u8; OpenBlock::MAX]> {
        let OpenBlock { length, bytes, command: of, end, passed } = *self;
        *self = OpenBlock { passed, ..OpenBlock::default() };
        // After other data the rest of the block will never follow directly.
        let fits = of == command && end == offset;
        SmallVec::from_slice(&bytes[..if fits { length.into() } else { 0 }])
    }

    /// Writes the block to an image.
    pub(super) fn write(&self, image: &mut ImageWriter<'_>) {
        image.put_u16(self.command);
        image.put_u32(self.end);
        image.put_u8(self.length);
        image.put(&self.bytes);
        image.put_u16(self.passed.command);
        image.put_u32(self.passed.end);
        self.passed.states.put(image);
    }

    /// Reads the block from an image.
    pub(super) fn read(image: &mut ImageReader<'_>) -> Option<OpenBlock> {
        let (command, end, length, bytes) = (image.take_u16()?, image.take_u32()?, image.take_u8()?, image.take()?);
        let passed =
            PassedData { command: image.take_u16()?, end: image.take_u32()?, states: StageStates::take(image)? };
        // A length above the array's would make `take` panic.
        (usize::from(length) <= Self::MAX).then_some(OpenBlock { command, end, length, bytes, passed })
    }
}
