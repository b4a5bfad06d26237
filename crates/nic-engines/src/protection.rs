//! The stage "protection": T10-DIF and NVMe protection information after each block. The unit of a run is the LBA of
//! the first block. The run's offset counts from that block and includes protection information.
//!
//! Invariant: the stage approves bytes only if it saw each block that ends in them in order from its first byte.

use nic_engine::{NamedStage, Stage, StageRun, StageState};
use offload_api::{Direction, PROTECTION_STAGE};
use offload_transforms::TransformDirection;
use offload_transforms::protection::{InPlaceProtection, TransferProgress};

/// Blocks of one protection information format.
#[derive(Debug)]
pub(super) struct ProtectedBlocks(InPlaceProtection);

impl NamedStage for ProtectedBlocks {
    const NAME: &'static str = PROTECTION_STAGE;
    type Spec = InPlaceProtection;

    fn new(blocks: InPlaceProtection) -> Option<ProtectedBlocks> {
        Some(ProtectedBlocks(blocks))
    }
}

impl Stage for ProtectedBlocks {
    fn pass(&self, run: StageRun, state: &mut StageState, bytes: &mut [u8]) -> bool {
        let way = match run.direction {
            Direction::Transmit => TransformDirection::Apply,
            Direction::Receive => TransformDirection::Undo,
        };
        let Some(remembered) = state.0.first_chunk_mut() else { return false };
        let mut progress = TransferProgress::from_bytes(remembered);
        let passed = self.0.run(way, run.unit, run.at, &mut progress, bytes).is_ok();
        *remembered = progress.to_bytes();
        passed
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use nic_engine::{StageMakers, StageStates};
    use offload_api::StageSpec;
    use offload_transforms::protection::{Check, Format, Guard, ProtectionType};

    /// T10's CRC of 32 bytes of ones (SBC-4) and NVMe's CRC of 4096 bytes, at their positions in a block.
    #[test]
    fn published_guards_are_at_the_standard_offsets() {
        let format = |guard, interval| Format { guard, interval, application: 0x1234, ..Format::default() };
        let ff = vec![0xff; 4096];
        let crc_16 = [&[0xff; 32][..], &[0xa2, 0x93, 0x12, 0x34, 0, 0, 0, 7]].concat();
        // NVM Command Set 1.0, 5.2.1.3: 4096 bytes of ones, with a storage and reference tag of 48 bits.
        let crc_64 =
            [&ff[..], &[0xc0, 0xdd, 0xba, 0x73, 0x02, 0xec, 0xa3, 0xac, 0x12, 0x34, 0, 0, 0, 0, 0, 7]].concat();
        for (format, expected) in [(format(Guard::Crc16, 32), crc_16), (format(Guard::Crc64, 4096), crc_64)] {
            let makers = StageMakers::default().with::<ProtectedBlocks>();
            let spec = InPlaceProtection::new(format, Check::ALL, 0).unwrap();
            let stages = makers.make(vec![StageSpec::new(PROTECTION_STAGE, spec)]).unwrap();
            let mut bytes = expected.clone();
            bytes[format.interval as usize..].fill(0);
            let pass = |direction, cut: usize, bytes: &mut [u8]| {
                let (mut states, unit) = (StageStates::default(), 7);
                let (head, tail) = bytes.split_at_mut(cut);
                let cut = cut as u64;
                stages.pass(StageRun { direction, unit, at: 0 }, &mut states, head)
                    && stages.pass(StageRun { direction, unit, at: cut }, &mut states, tail)
            };
            assert!(pass(Direction::Transmit, 16, &mut bytes));
            assert_eq!(bytes, expected);
            assert!(pass(Direction::Receive, 16, &mut bytes));
            let last = bytes.len() - 1;
            bytes[last] ^= 1;
            assert!(!pass(Direction::Receive, 16, &mut bytes), "the reference tag of another LBA");
        }
        let odd = InPlaceProtection::new(
            Format { interval: 500, kind: ProtectionType::Type1, ..Format::default() },
            Check::ALL,
            0,
        );
        assert!(odd.is_err());
    }
}
