//! Stages: processing of the data in units, in addition to the work of the engine that follows the flow.
//!
//! A protocol names stages in the specification of a context ([`StageSpec`]). The engine creates the stages with the
//! context, from the [`StageMakers`] passed to [`Engine::take_stages`](super::Engine::take_stages). The engine keeps
//! the stages with the objects of the context ([`Stages`]), and their memory in the context's state ([`StageStates`]).
//! A stage therefore works in any engine that supports stages, and an engine depends on no particular stage.
//!
//! A stage may need a key that is a context of its own ([`Stage::key`]). The engine keeps a list of these keys
//! ([`StageKeys`]), and tells which of them the bytes of a packet need. The device moves these contexts to the NIC, and
//! lends these for the duration of a call to the engine ([`KeyPlace`]). No stage keeps a key.
//!
//! Outgoing bytes pass the stages in the order of the specification, incoming bytes in the reverse order.
//!
//! ```
//! use nic_sim::engine::{StageRun, NamedStage, Stage, StageMakers, StageState, StageStates, Stages};
//! use offload_api::{Direction, StageSpec};
//!
//! /// Adds a number to each byte.
//! #[derive(Debug)]
//! struct Add(u8);
//!
//! impl NamedStage for Add {
//!     const NAME: &'static str = "add";
//!     type Spec = u8;
//!
//!     fn new(number: u8) -> Option<Add> {
//!         Some(Add(number))
//!     }
//! }
//!
//! impl Stage for Add {
//!     fn pass(&self, run: StageRun, _: &mut StageState, bytes: &mut [u8]) -> bool {
//!         for byte in bytes {
//!             *byte = match run.direction {
//!                 Direction::Transmit => byte.wrapping_add(self.0),
//!                 Direction::Receive => byte.wrapping_sub(self.0),
//!             };
//!         }
//!         true
//!     }
//! }
//!
//! let makers = StageMakers::default().with::<Add>();
//! let stages: Stages = makers.make(vec![StageSpec::new("add", 7u8)]).expect("there is one of this name");
//! let (mut states, mut bytes) = (StageStates::default(), *b"data");
//! assert!(stages.pass(StageRun { direction: Direction::Transmit, unit: 0, at: 0 }, &mut states, &mut bytes));
//! assert_ne!(&bytes, b"data");
//! assert!(stages.pass(StageRun { direction: Direction::Receive, unit: 0, at: 0 }, &mut states, &mut bytes));
//! assert_eq!(&bytes, b"data");
//! assert!(makers.make(vec![StageSpec::new("compress", ())]).is_none());
//! ```

use crate::{ImageReader, ImageWriter};
use core::any::Any;
use core::fmt;
use offload_api::{Direction, Handle, Spec, StageSpec};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// A stage that a context can name.
pub trait NamedStage: Stage + Sized + 'static {
    /// Name of the stage.
    const NAME: &'static str;
    /// Specification of the stage.
    type Spec: Any;

    /// Creates a stage for one context. Returns `None` if the stage cannot work by the specification.
    fn new(spec: Self::Spec) -> Option<Self>;
}

/// One step of processing for the data in units.
pub trait Stage: fmt::Debug + Send {
    /// Returns the context that must be on the NIC while the stage works.
    fn key(&self) -> Option<Handle> {
        None
    }

    /// Sets the place in which the key is lent.
    fn bind(&mut self, _: KeyPlace) {}

    /// Processes the next data of a unit in place. Returns false if the data are invalid; the whole unit is then
    /// invalid.
    fn pass(&self, run: StageRun, state: &mut StageState, bytes: &mut [u8]) -> bool;
}

/// The data of one call of a stage.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StageRun {
    /// Direction of the data.
    pub direction: Direction,
    /// Number of the unit.
    pub unit: u64,
    /// Offset of the data in the unit's data.
    pub at: u64,
}

/// The memory of a stage within one unit. All zeros at the unit's start.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct StageState(pub [u8; StageState::BYTES]);

impl StageState {
    /// Size of the memory in bytes.
    pub const BYTES: usize = 32;
}

/// The memory of all stages of a context: a part of its engine's state.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct StageStates([StageState; MAX_STAGES]);

impl StageStates {
    /// Writes the memory to an image.
    pub fn put(&self, image: &mut ImageWriter<'_>) {
        self.0.iter().for_each(|state| image.put(&state.0));
    }

    /// Reads the memory written by [`put`](Self::put).
    pub fn take(image: &mut ImageReader<'_>) -> Option<StageStates> {
        let mut states = StageStates::default();
        for state in &mut states.0 {
            state.0 = image.take()?;
        }
        Some(states)
    }
}

/// An object that a context lends to stages of others. Lender and borrower agree on its type.
pub type LentObject = Arc<dyn Any + Send + Sync>;

/// A place in which a stage finds its key. Clones share the place.
///
/// ```
/// use nic_engine::KeyPlace;
///
/// assert!(KeyPlace::default().get::<u32>().is_none(), "no key is lent");
/// ```
#[derive(Clone, Default)]
pub struct KeyPlace(Arc<Mutex<LentKey>>);

#[derive(Default)]
struct LentKey {
    lent: Option<LentObject>,
    /// Whether a stage could not work with the lent object, or found no object.
    is_refused: bool,
}

impl KeyPlace {
    /// Returns the key, if one is lent at the moment.
    pub fn get<T: Any + Send + Sync>(&self) -> Option<Arc<T>> {
        self.place().lent.as_ref()?.clone().downcast().ok()
    }

    /// Refuses the lent object, because it is not the expected key. The packet can then never be sent.
    pub fn refuse(&self) {
        self.place().is_refused = true;
    }

    fn place(&self) -> MutexGuard<'_, LentKey> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl fmt::Debug for KeyPlace {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("KeyPlace(redacted)")
    }
}

/// The keys that the stages of a context need, each listed once.
///
/// ```
/// use nic_engine::StageKeys;
///
/// assert!(StageKeys::default().is_empty());
/// ```
#[derive(Debug, Default)]
pub struct StageKeys(Vec<(Handle, KeyPlace)>);

impl StageKeys {
    /// Tests whether no stage needs a key.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Lends a key, or takes the key back with `None`. Returns whether a stage has [refused](KeyPlace::refuse) the key
    /// meanwhile.
    pub fn lend(&mut self, key: Handle, lent: Option<LentObject>) -> bool {
        let Some((_, place)) = self.0.iter().find(|(known, _)| *known == key) else { return false };
        // The refusal is reset with every change, because a refusal concerns only the object that was lent last.
        let before = core::mem::replace(&mut *place.place(), LentKey { lent, is_refused: false });
        before.is_refused
    }

    fn place(&mut self, key: Handle) -> KeyPlace {
        if let Some((_, place)) = self.0.iter().find(|(known, _)| *known == key) {
            return place.clone();
        }
        // Stages hold clones of their places. A place with a single owner belongs to stages that are gone, and would
        // never be used again.
        self.0.retain(|(_, place)| Arc::strong_count(&place.0) > 1);
        let place = KeyPlace::default();
        self.0.push((key, place.clone()));
        place
    }
}

/// The stages of a context.
#[derive(Debug, Default)]
pub struct Stages(Vec<Box<dyn Stage>>);

impl Stages {
    /// Passes the next data of a unit through all stages, in place. Returns false if a stage found the data invalid.
    pub fn pass(&self, run: StageRun, states: &mut StageStates, bytes: &mut [u8]) -> bool {
        // The first stage that finds an error ends the run: later ones would work on wrong data.
        let mut stages = self.0.iter().zip(&mut states.0);
        match run.direction {
            Direction::Transmit => stages.all(|(stage, state)| stage.pass(run, state, bytes)),
            Direction::Receive => stages.rev().all(|(stage, state)| stage.pass(run, state, bytes)),
        }
    }

    /// Enters the stages' keys into the list, and binds the stages to their places.
    #[must_use]
    pub fn bound_to(mut self, keys: &mut StageKeys) -> Stages {
        for stage in &mut self.0 {
            if let Some(key) = stage.key() {
                stage.bind(keys.place(key));
            }
        }
        self
    }

    /// Returns the keys that the stages need.
    pub fn keys(&self) -> impl Iterator<Item = Handle> {
        self.0.iter().filter_map(|stage| stage.key())
    }

    /// Tests whether there are no stages.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

/// The constructors of stages, by name. Clones share the list.
#[derive(Clone, Debug, Default)]
pub struct StageMakers(Arc<Vec<StageMaker>>);

#[derive(Clone, Copy, Debug)]
struct StageMaker {
    name: &'static str,
    make: fn(Spec) -> Option<Box<dyn Stage>>,
}

impl StageMakers {
    /// Adds a stage.
    #[must_use]
    pub fn with<S: NamedStage>(self) -> StageMakers {
        let mut makers = self.0.to_vec();
        makers.push(StageMaker {
            name: S::NAME,
            make: |spec| Some(Box::new(S::new(*spec.downcast::<S::Spec>().ok()?)?)),
        });
        StageMakers(Arc::new(makers))
    }

    /// Creates stages for a context. Returns `None` if a name is unknown, a stage refuses its specification, or there
    /// are more than two.
    pub fn make(&self, specs: Vec<StageSpec>) -> Option<Stages> {
        if specs.len() > MAX_STAGES {
            return None;
        }
        let stages = specs.into_iter().map(|StageSpec { name, spec }| {
            // One unknown stage refuses the whole context. Silently omitting a stage would put other bytes on the
            // wire.
            let maker = self.0.iter().find(|maker| maker.name == name)?;
            (maker.make)(spec)
        });
        stages.collect::<Option<_>>().map(Stages)
    }
}

/// Maximum number of stages in a context. The engine itself needs two thirds of the 208 bytes of state.
const MAX_STAGES: usize = 2;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ContextImage;

    /// Replaces each byte by its difference to the previous byte. A zero at the beginning counts as invalid.
    #[derive(Debug)]
    struct Difference;

    impl NamedStage for Difference {
        const NAME: &'static str = "difference";
        type Spec = ();

        fn new((): ()) -> Option<Difference> {
            Some(Difference)
        }
    }

    impl Stage for Difference {
        fn pass(&self, run: StageRun, state: &mut StageState, bytes: &mut [u8]) -> bool {
            if run.at == 0 && bytes.first() == Some(&0) {
                return false;
            }
            for byte in bytes {
                let last = &mut state.0[0];
                (*byte, *last) = match run.direction {
                    Direction::Transmit => (byte.wrapping_sub(*last), *byte),
                    Direction::Receive => (byte.wrapping_add(*last), byte.wrapping_add(*last)),
                };
            }
            true
        }
    }

    /// Combines each byte with its offset by exclusive or, so that the order with `Difference` matters.
    #[derive(Debug)]
    struct OffsetMask(u8);

    impl NamedStage for OffsetMask {
        const NAME: &'static str = "place";
        type Spec = u8;

        fn new(key: u8) -> Option<OffsetMask> {
            (key != 0).then_some(OffsetMask(key))
        }
    }

    impl Stage for OffsetMask {
        fn pass(&self, run: StageRun, _: &mut StageState, bytes: &mut [u8]) -> bool {
            bytes.iter_mut().zip(run.at..).for_each(|(byte, at)| *byte ^= self.0.wrapping_add(at as u8));
            true
        }
    }

    fn makers() -> StageMakers {
        StageMakers::default().with::<Difference>().with::<OffsetMask>()
    }

    fn pass(stages: &Stages, direction: Direction, runs: &mut [&mut [u8]]) -> bool {
        let (mut states, mut at) = (StageStates::default(), 0);
        runs.iter_mut().all(|run| {
            let here = StageRun { direction, unit: 3, at };
            at += run.len() as u64;
            // The context may move to host memory between any two runs.
            let image = ContextImage::build(|image| states.put(image));
            assert_eq!(image.read(StageStates::take), Some(states));
            stages.pass(here, &mut states, run)
        })
    }

    #[test]
    fn stages_reverse_their_order_on_receive() {
        let stages = makers().make(vec![StageSpec::new("place", 9u8), StageSpec::new("difference", ())]).unwrap();
        let plain: Vec<u8> = (1..=200).collect();
        let mut whole = plain.clone();
        assert!(pass(&stages, Direction::Transmit, &mut [&mut whole]));
        // In the other order, the wire would show other bytes.
        let other = makers().make(vec![StageSpec::new("difference", ()), StageSpec::new("place", 9u8)]).unwrap();
        let mut swapped = plain.clone();
        assert!(pass(&other, Direction::Transmit, &mut [&mut swapped]));
        assert_ne!(whole, swapped);
        for cut in [1, 77, 199] {
            let mut cut_up = plain.clone();
            let (head, tail) = cut_up.split_at_mut(cut);
            assert!(pass(&stages, Direction::Transmit, &mut [head, tail]));
            assert_eq!(cut_up, whole);
            let (head, tail) = cut_up.split_at_mut(200 - cut);
            assert!(pass(&stages, Direction::Receive, &mut [head, tail]));
            assert_eq!(cut_up, plain);
        }
    }

    #[test]
    fn data_refused_by_a_stage_are_invalid() {
        let stages = makers().make(vec![StageSpec::new("difference", ())]).unwrap();
        assert!(!pass(&stages, Direction::Receive, &mut [&mut [0, 1]]));
        assert!(pass(&stages, Direction::Receive, &mut [&mut [1, 0]]));
    }

    #[test]
    fn unknown_or_refusing_stages_are_not_created() {
        assert!(makers().make(Vec::new()).unwrap().is_empty());
        assert!(makers().make(vec![StageSpec::new("xts", ())]).is_none(), "no such name");
        assert!(makers().make(vec![StageSpec::new("place", 0u8)]).is_none(), "it refuses");
        assert!(makers().make(vec![StageSpec::new("place", 0u16)]).is_none(), "of another type");
        let three = (1..4u8).map(|key| StageSpec::new("place", key)).collect();
        assert!(makers().make(three).is_none(), "too many");
    }
}
