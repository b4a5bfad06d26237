//! Stages: what an engine that follows flows has done to the data in its units, beside its own work.
//!
//! A protocol names stages in the spec of a context ([`StageSpec`]); the engine has them made when it makes the context
//! ([`StageMakers`], which it was given with [`Engine::take_stages`](super::Engine::take_stages)), keeps them with what its state refers to
//! ([`Stages`]), and what they have to remember in the state itself ([`StageStates`]). So a stage works in any engine that has some, and
//! an engine knows none of them.
//!
//! A stage may need a key that is a context of its own ([`Stage::key`]): the engine keeps a list of those ([`StageKeys`]) and says which ones
//! the bytes of a packet need; the device brings these to the NIC and lends them for as long as it calls the engine ([`KeyPlace`]): no
//! stage keeps one.
//!
//! Bytes pass the stages in the order in which they were named on their way out, and in the opposite order on their way in.
//!
//! ```
//! use nic_sim::engine::{Run, NamedStage, Stage, StageMakers, StageState, StageStates, Stages};
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
//!     fn pass(&self, run: Run, _: &mut StageState, bytes: &mut [u8]) -> bool {
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
//! assert!(stages.pass(Run { direction: Direction::Transmit, unit: 0, at: 0 }, &mut states, &mut bytes));
//! assert_ne!(&bytes, b"data");
//! assert!(stages.pass(Run { direction: Direction::Receive, unit: 0, at: 0 }, &mut states, &mut bytes));
//! assert_eq!(&bytes, b"data");
//! assert!(makers.make(vec![StageSpec::new("compress", ())]).is_none());
//! ```

use crate::{ImageReader, ImageWriter};
use core::any::Any;
use core::fmt;
use offload_api::{Direction, Handle, Spec, StageSpec};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// A stage that contexts name.
pub trait NamedStage: Stage + Sized + 'static {
    /// What it is called.
    const NAME: &'static str;
    /// What one is made from.
    type Spec: Any;

    /// A stage for one context; `None`: it cannot work by this.
    fn new(spec: Self::Spec) -> Option<Self>;
}

/// One thing that is done to the data in units.
pub trait Stage: fmt::Debug + Send {
    /// The context that it needs on the NIC to work.
    fn key(&self) -> Option<Handle> {
        None
    }

    /// Where that is found then.
    fn bind(&mut self, _: KeyPlace) {}

    /// Works on the next data of a unit, in place. False: they are not what they should be, and nothing of the unit is.
    fn pass(&self, run: Run, state: &mut StageState, bytes: &mut [u8]) -> bool;
}

/// Which data a stage works on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Run {
    /// On their way out, or in.
    pub direction: Direction,
    /// The number of their unit.
    pub unit: u64,
    /// Where in the data of the unit they begin.
    pub at: u64,
}

/// What a stage remembers from one run of a unit to the next: zeros at its first.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct StageState(pub [u8; StageState::BYTES]);

impl StageState {
    /// Bytes that a stage can remember.
    pub const BYTES: usize = 32;
}

/// What all stages of a context remember: a part of the state of its engine.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct StageStates([StageState; STAGES_MAX]);

impl StageStates {
    /// Writes them out.
    pub fn put(&self, image: &mut ImageWriter<'_>) {
        self.0.iter().for_each(|state| image.put(&state.0));
    }

    /// Reads back what [`put`](Self::put) wrote.
    pub fn take(image: &mut ImageReader<'_>) -> Option<StageStates> {
        let mut states = StageStates::default();
        for state in &mut states.0 {
            state.0 = image.take()?;
        }
        Some(states)
    }
}

/// What a context lends to stages of others: what it is, these agree upon.
pub type Lent = Arc<dyn Any + Send + Sync>;

/// Where a stage finds the key that it needs. Clones are the same place.
///
/// ```
/// use nic_engine::KeyPlace;
///
/// assert!(KeyPlace::default().get::<u32>().is_none(), "nobody lends it one");
/// ```
#[derive(Clone, Default)]
pub struct KeyPlace(Arc<Mutex<Place>>);

#[derive(Default)]
struct Place {
    lent: Option<Lent>,
    /// A stage could not work by what was lent, or there was nothing.
    is_refused: bool,
}

impl KeyPlace {
    /// The key, while there is one and the engine is called.
    pub fn get<T: Any + Send + Sync>(&self) -> Option<Arc<T>> {
        self.place().lent.as_ref()?.clone().downcast().ok()
    }

    /// It is not the key that the stage needs: what is to leave never will.
    pub fn refuse(&self) {
        self.place().is_refused = true;
    }

    fn place(&self) -> MutexGuard<'_, Place> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl fmt::Debug for KeyPlace {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("KeyPlace(redacted)")
    }
}

/// The keys that the stages of a context need, each once.
///
/// ```
/// use nic_engine::StageKeys;
///
/// assert!(StageKeys::default().is_empty());
/// ```
#[derive(Debug, Default)]
pub struct StageKeys(Vec<(Handle, KeyPlace)>);

impl StageKeys {
    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Lends a key, or takes it back. True: a stage has [refused](KeyPlace::refuse) it meanwhile.
    pub fn lend(&mut self, key: Handle, lent: Option<Lent>) -> bool {
        let Some((_, place)) = self.0.iter().find(|(known, _)| *known == key) else { return false };
        let before = core::mem::replace(&mut *place.place(), Place { lent, is_refused: false });
        before.is_refused
    }

    fn place(&mut self, key: Handle) -> KeyPlace {
        if let Some((_, place)) = self.0.iter().find(|(known, _)| *known == key) {
            return place.clone();
        }
        // Those of stages that are gone.
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
    /// Has all stages work on the next data of a unit, in place. False: one found that they are not what they should be.
    pub fn pass(&self, run: Run, states: &mut StageStates, bytes: &mut [u8]) -> bool {
        let mut stages = self.0.iter().zip(&mut states.0);
        match run.direction {
            Direction::Transmit => stages.all(|(stage, state)| stage.pass(run, state, bytes)),
            Direction::Receive => stages.rev().all(|(stage, state)| stage.pass(run, state, bytes)),
        }
    }

    /// Enters the keys that they need, and tells them where these are found.
    #[must_use]
    pub fn bound_to(mut self, keys: &mut StageKeys) -> Stages {
        for stage in &mut self.0 {
            if let Some(key) = stage.key() {
                stage.bind(keys.place(key));
            }
        }
        self
    }

    /// The keys that they need.
    pub fn keys(&self) -> impl Iterator<Item = Handle> {
        self.0.iter().filter_map(|stage| stage.key())
    }

    /// Whether nothing is done to data.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

/// What makes stages, by name. Clones share it.
#[derive(Clone, Debug, Default)]
pub struct StageMakers(Arc<Vec<Maker>>);

#[derive(Clone, Copy, Debug)]
struct Maker {
    name: &'static str,
    make: fn(Spec) -> Option<Box<dyn Stage>>,
}

impl StageMakers {
    /// The same, and one more.
    #[must_use]
    pub fn with<S: NamedStage>(self) -> StageMakers {
        let mut makers = self.0.to_vec();
        makers.push(Maker { name: S::NAME, make: |spec| Some(Box::new(S::new(*spec.downcast::<S::Spec>().ok()?)?)) });
        StageMakers(Arc::new(makers))
    }

    /// Stages for a context. `None`: a name is unknown, a stage cannot work by its spec, or they are more than two.
    pub fn make(&self, specs: Vec<StageSpec>) -> Option<Stages> {
        if specs.len() > STAGES_MAX {
            return None;
        }
        let stages = specs.into_iter().map(|StageSpec { name, spec }| {
            let maker = self.0.iter().find(|maker| maker.name == name)?;
            (maker.make)(spec)
        });
        stages.collect::<Option<_>>().map(Stages)
    }
}

/// Stages that a context can have: of the 208 bytes of its state two thirds are its engine's.
const STAGES_MAX: usize = 2;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ContextImage;

    /// Replaces each byte by its difference to the one before it, and finds a zero at the beginning wrong.
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
        fn pass(&self, run: Run, state: &mut StageState, bytes: &mut [u8]) -> bool {
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

    /// Xors each byte with its place: what comes before the differences matters.
    #[derive(Debug)]
    struct Place(u8);

    impl NamedStage for Place {
        const NAME: &'static str = "place";
        type Spec = u8;

        fn new(key: u8) -> Option<Place> {
            (key != 0).then_some(Place(key))
        }
    }

    impl Stage for Place {
        fn pass(&self, run: Run, _: &mut StageState, bytes: &mut [u8]) -> bool {
            bytes.iter_mut().zip(run.at..).for_each(|(byte, at)| *byte ^= self.0.wrapping_add(at as u8));
            true
        }
    }

    fn makers() -> StageMakers {
        StageMakers::default().with::<Difference>().with::<Place>()
    }

    fn pass(stages: &Stages, direction: Direction, runs: &mut [&mut [u8]]) -> bool {
        let (mut states, mut at) = (StageStates::default(), 0);
        runs.iter_mut().all(|run| {
            let here = Run { direction, unit: 3, at };
            at += run.len() as u64;
            let image = ContextImage::of(|image| states.put(image));
            assert_eq!(image.read(StageStates::take), Some(states));
            stages.pass(here, &mut states, run)
        })
    }

    #[test]
    fn stages_work_in_the_opposite_order_on_the_way_in_however_data_are_cut() {
        let stages = makers().make(vec![StageSpec::new("place", 9u8), StageSpec::new("difference", ())]).unwrap();
        let plain: Vec<u8> = (1..=200).collect();
        let mut whole = plain.clone();
        assert!(pass(&stages, Direction::Transmit, &mut [&mut whole]));
        // In the other order the wire would show something else.
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
    fn what_a_stage_finds_wrong_is_wrong() {
        let stages = makers().make(vec![StageSpec::new("difference", ())]).unwrap();
        assert!(!pass(&stages, Direction::Receive, &mut [&mut [0, 1]]));
        assert!(pass(&stages, Direction::Receive, &mut [&mut [1, 0]]));
    }

    #[test]
    fn a_context_has_only_stages_that_exist_and_can_work() {
        assert!(makers().make(Vec::new()).unwrap().is_empty());
        assert!(makers().make(vec![StageSpec::new("xts", ())]).is_none(), "no such name");
        assert!(makers().make(vec![StageSpec::new("place", 0u8)]).is_none(), "it refuses");
        assert!(makers().make(vec![StageSpec::new("place", 0u16)]).is_none(), "of another type");
        let three = (1..4u8).map(|key| StageSpec::new("place", key)).collect();
        assert!(makers().make(three).is_none(), "too many");
    }
}
