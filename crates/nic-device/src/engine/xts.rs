//! The stage "xts": AES-XTS, for engines that have stages. The number of the unit in a run is that of the first unit of the
//! volume, and where the run begins is counted from there.
//!
//! Invariant: blocks are worked on one by one, wherever they are: nothing is remembered.

use super::{Run, Stage, StageState};
use offload_api::{Direction, XTS_STAGE};
use resumable_aead::Volume;

/// A volume that engines of units keep encrypted.
#[derive(Debug)]
pub(super) struct Xts(Volume);

impl Stage for Xts {
    const NAME: &'static str = XTS_STAGE;
    type Spec = Volume;

    fn new(volume: Volume) -> Option<Xts> {
        Some(Xts(volume))
    }

    fn pass(&self, run: Run, _: &mut StageState, bytes: &mut [u8]) -> bool {
        match run.direction {
            Direction::Transmit => self.0.encrypt(run.unit, run.at, bytes).is_ok(),
            Direction::Receive => self.0.decrypt(run.unit, run.at, bytes).is_ok(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::{StageMakers, StageStates};
    use offload_api::StageSpec;
    use resumable_aead::{DataUnits, XtsKey};

    #[test]
    fn blocks_pass_wherever_they_are_and_parts_of_them_do_not() {
        let key: Vec<u8> = (0..64).collect();
        let volume = Volume::new(XtsKey::new(&key).unwrap(), DataUnits::new(512).unwrap());
        let makers = StageMakers::default().with::<Xts>();
        let stages = makers.make(vec![StageSpec::new(XTS_STAGE, volume.clone())]).unwrap();
        let mut states = StageStates::default();
        let mut pass =
            |direction, at, bytes: &mut [u8]| stages.pass(Run { direction, unit: 7, at }, &mut states, bytes);
        let (mut made, mut expected) = ([5; 1024], [5; 1024]);
        volume.encrypt(7, 0, &mut expected).unwrap();
        assert!(pass(Direction::Transmit, 0, &mut made));
        assert_eq!(made, expected);
        assert!(pass(Direction::Receive, 496, &mut made[496..544]));
        assert_eq!(made[496..544], [5; 48]);
        assert!(!pass(Direction::Receive, 8, &mut made[8..24]));
        assert!(makers.make(vec![StageSpec::new(XTS_STAGE, ())]).is_none(), "it takes a volume");
    }
}
