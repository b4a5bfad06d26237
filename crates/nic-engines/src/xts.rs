//! The stage "xts": AES-XTS under a key of the data-encryption key engine. The unit of a run is the first unit in the
//! volume, and the run's offset counts from there.
//!
//! Invariants: each block is processed on its own, so the stage keeps no state. The stage processes bytes only under
//! the key of its own tenant and volume.

use super::data_keys::InlineKey;
use nic_engine::{KeyPlace, NamedStage, Stage, StageRun, StageState};
use offload_api::{Direction, Handle, XTS_STAGE, XtsStage};

/// A volume encrypted inline.
#[derive(Debug)]
pub(super) struct XtsEngine {
    spec: XtsStage,
    key: KeyPlace,
}

impl NamedStage for XtsEngine {
    const NAME: &'static str = XTS_STAGE;
    type Spec = XtsStage;

    fn new(spec: XtsStage) -> Option<XtsEngine> {
        Some(XtsEngine { spec, key: KeyPlace::default() })
    }
}

impl Stage for XtsEngine {
    fn key(&self) -> Option<Handle> {
        Some(self.spec.key)
    }

    fn bind(&mut self, place: KeyPlace) {
        self.key = place;
    }

    fn pass(&self, run: StageRun, _: &mut StageState, bytes: &mut [u8]) -> bool {
        let XtsStage { tenant, volume, .. } = self.spec;
        // A slot may have been reused for a key of another tenant, so the check happens at each use.
        let Some(key) = self.key.get::<InlineKey>().filter(|key| key.is_of(tenant, volume)) else {
            self.key.refuse();
            return false;
        };
        match run.direction {
            Direction::Transmit => key.volume().encrypt(run.unit, run.at, bytes).is_ok(),
            Direction::Receive => key.volume().decrypt(run.unit, run.at, bytes).is_ok(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::data_keys::DataKeys;
    use nic_engine::{Context, Engine, LentObject, StageKeys, StageMakers, StageStates, Stages};
    use offload_api::StageSpec;
    use offload_jobs::WrappingKey;
    use offload_transforms::{SecretBytes, Tweak};
    use resumable_aead::{DataUnits, Volume, XtsKey};

    const KEY: Handle = Handle { index: 9, generation: 2 };

    fn key_bytes() -> Vec<u8> {
        (0..64).collect()
    }

    /// Returns a key of tenant 7 and volume 1 in the form of the key engine.
    fn context() -> <DataKeys as Engine>::State {
        let tenant = WrappingKey { tenant: 7, key: SecretBytes::new(vec![3; 32]) };
        let spec = tenant.wrap(1, &SecretBytes::new(key_bytes()), 512, Tweak::Unit).unwrap();
        let mut engine = DataKeys::default();
        engine.change(tenant);
        engine.create(Direction::Transmit, spec).unwrap().0
    }

    fn stages(tenant: u32, volume: u64, keys: &mut StageKeys) -> Stages {
        let spec = StageSpec::new(XTS_STAGE, XtsStage { key: KEY, tenant, volume });
        StageMakers::default().with::<XtsEngine>().make(vec![spec]).unwrap().bound_to(keys)
    }

    fn lent(state: &mut <DataKeys as Engine>::State) -> Option<LentObject> {
        DataKeys::lend(Context { handle: KEY, state, held: &mut () })
    }

    #[test]
    fn whole_blocks_pass_at_any_address_and_partial_blocks_fail() {
        let volume = Volume::new(XtsKey::new(&key_bytes()).unwrap(), DataUnits::new(512).unwrap());
        let (mut keys, mut state) = (StageKeys::default(), context());
        let stages = stages(7, 1, &mut keys);
        assert!(stages.keys().eq([KEY]) && !keys.is_empty());
        keys.lend(KEY, lent(&mut state));
        let mut states = StageStates::default();
        let mut pass =
            |direction, at, bytes: &mut [u8]| stages.pass(StageRun { direction, unit: 7, at }, &mut states, bytes);
        let (mut made, mut expected) = ([5; 1024], [5; 1024]);
        volume.encrypt(7, 0, &mut expected).unwrap();
        assert!(pass(Direction::Transmit, 0, &mut made));
        assert_eq!(made, expected);
        assert!(pass(Direction::Receive, 496, &mut made[496..544]));
        assert_eq!(made[496..544], [5; 48]);
        assert!(!pass(Direction::Receive, 8, &mut made[8..24]));
        assert!(StageMakers::default().with::<XtsEngine>().make(vec![StageSpec::new(XTS_STAGE, ())]).is_none());
    }

    #[test]
    fn data_fail_without_their_own_key() {
        let (mut keys, mut state) = (StageKeys::default(), context());
        let of = [(7, 1, true), (8, 1, false), (7, 2, false)];
        let all = of.map(|(tenant, volume, works)| (stages(tenant, volume, &mut keys), works));
        let pass = |stages: &Stages| {
            let mut bytes = [5; 32];
            let run = StageRun { direction: Direction::Transmit, unit: 7, at: 0 };
            let passed = stages.pass(run, &mut StageStates::default(), &mut bytes);
            assert_eq!(passed, bytes != [5; 32]);
            passed
        };
        assert!(all.iter().all(|(stages, _)| !pass(stages)), "the key is not lent");
        assert!(keys.lend(KEY, lent(&mut state)), "the stages reported the refusal");
        assert!(pass(&all[0].0));
        assert!(!keys.lend(KEY, lent(&mut state)), "it works");
        assert!(
            all.iter().all(|(stages, works)| pass(stages) == *works),
            "only the stages of the key's tenant and volume work"
        );
        assert!(keys.lend(KEY, None));
        assert!(all.iter().all(|(stages, _)| !pass(stages)), "the loan has ended");
    }
}
