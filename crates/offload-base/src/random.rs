//! Randomness for a run: one source, and an independent generator for each component.
//!
//! Each generator is keyed by the component's name, so a component that draws more numbers does not shift the numbers
//! of another one. The source is a [`Seed`], which makes a run repeatable, or a secret from the system, which nobody
//! can guess.

use core::fmt;
use rand_chacha::{ChaCha8Rng, ChaCha20Rng};
use rand_core::{Rng as _, SeedableRng};
use std::io;

/// The seed of a run. Print the seed, because it repeats the run byte for byte.
///
/// ```
/// use offload_base::Seed;
///
/// let seed = Seed(7);
/// let mut loss = seed.stream("loss");
/// let mut delay = seed.stream("delay");
/// assert_ne!(loss.next_u64(), delay.next_u64());
/// assert_eq!(seed.stream("loss").next_u64(), seed.stream("loss").next_u64());
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Seed(pub u64);

impl Seed {
    /// Returns the generator of the component called `name`.
    pub fn stream(self, name: &str) -> Rng {
        let mut key = [0; 32];
        key[..8].copy_from_slice(&self.0.to_le_bytes());
        // The name is part of the key, so streams of different names are independent for any seed.
        key[8..16].copy_from_slice(&fingerprint(name).to_le_bytes());
        Rng(ChaCha8Rng::from_seed(key))
    }

    /// Derives a seed for the part of the run called `name`.
    pub fn derive(self, name: &str) -> Seed {
        Seed(self.stream(name).next_u64())
    }
}

/// The source of a component's random numbers: a seed, or the system.
///
/// ```
/// use offload_base::{RandomSource, Seed};
///
/// let repeated = RandomSource::from(Seed(7));
/// assert_eq!(repeated.stream("ports").next_u64(), Seed(7).stream("ports").next_u64());
///
/// let secret = RandomSource::from_system()?;
/// assert_ne!(secret.stream("ports").next_u64(), RandomSource::from_system()?.stream("ports").next_u64());
/// assert_eq!(secret.stream("ports").next_u64(), secret.stream("ports").next_u64(), "one source, one stream a name");
/// # Ok::<(), std::io::Error>(())
/// ```
#[derive(Clone, PartialEq, Eq)]
pub struct RandomSource(RandomOrigin);

#[derive(Clone, PartialEq, Eq)]
enum RandomOrigin {
    Seeded(Seed),
    /// A key from the system's generator.
    Secret([u8; 32]),
}

impl RandomSource {
    /// Creates a source that nobody can guess, keyed with 256 bits of the system's generator.
    ///
    /// # Errors
    /// If the system provides no randomness.
    pub fn from_system() -> io::Result<RandomSource> {
        let mut key = [0; 32];
        getrandom::fill(&mut key).map_err(io::Error::from)?;
        Ok(RandomSource(RandomOrigin::Secret(key)))
    }

    /// Returns the generator of the component called `name`.
    pub fn stream(&self, name: &str) -> Rng {
        match &self.0 {
            RandomOrigin::Seeded(seed) => seed.stream(name),
            RandomOrigin::Secret(_) => Rng(ChaCha8Rng::from_seed(self.key(name))),
        }
    }

    /// Derives a source for the part called `name`.
    pub fn derive(&self, name: &str) -> RandomSource {
        RandomSource(match &self.0 {
            RandomOrigin::Seeded(seed) => RandomOrigin::Seeded(seed.derive(name)),
            RandomOrigin::Secret(_) => RandomOrigin::Secret(self.key(name)),
        })
    }

    /// Tests whether the numbers follow from a seed.
    pub fn is_seeded(&self) -> bool {
        matches!(self.0, RandomOrigin::Seeded(_))
    }

    /// Derives a key for `name`. One derived key reveals nothing about the other keys.
    fn key(&self, name: &str) -> [u8; 32] {
        // Both callers have matched `Secret`; the zero key is never used.
        let RandomOrigin::Secret(secret) = &self.0 else { return [0; 32] };
        // ChaCha20 with one stream per name is a pseudorandom function of the name.
        let mut rng = ChaCha20Rng::from_seed(*secret);
        rng.set_stream(fingerprint(name));
        let mut key = [0; 32];
        rng.fill_bytes(&mut key);
        key
    }
}

impl From<Seed> for RandomSource {
    fn from(seed: Seed) -> RandomSource {
        RandomSource(RandomOrigin::Seeded(seed))
    }
}

/// Omits the secret.
impl fmt::Debug for RandomSource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.0 {
            RandomOrigin::Seeded(seed) => seed.fmt(f),
            RandomOrigin::Secret(_) => f.write_str("System(redacted)"),
        }
    }
}

/// A portable random number generator: with a seed, it draws the same numbers on every machine. Generate keys of real
/// connections only from the [system](RandomSource::from_system).
///
/// See [`RandomSource`] for an example.
#[derive(Clone, Debug)]
pub struct Rng(ChaCha8Rng);

impl Rng {
    /// Draws 64 bits.
    pub fn next_u64(&mut self) -> u64 {
        self.0.next_u64()
    }

    /// Draws 32 bits.
    pub fn next_u32(&mut self) -> u32 {
        self.0.next_u32()
    }

    /// Fills `bytes` with random bytes.
    pub fn fill(&mut self, bytes: &mut [u8]) {
        self.0.fill_bytes(bytes);
    }

    /// Returns true with the given probability. Draws nothing if the probability is 0 or 1.
    pub fn chance(&mut self, probability: f64) -> bool {
        if probability <= 0.0 {
            false
        } else if probability >= 1.0 {
            true
        } else {
            self.unit() < probability
        }
    }

    /// Draws a number from `0..bound`.
    ///
    /// # Panics
    /// If `bound` is zero.
    pub fn below(&mut self, bound: u64) -> u64 {
        assert!(bound > 0, "the bound must not be zero");
        // Multiply-shift. Its bias is below bound / 2^64, too small for any simulation to show.
        ((u128::from(self.next_u64()) * u128::from(bound)) >> 64) as u64
    }

    /// Draws a number from `0.0..1.0`, in steps of 2^-53.
    pub fn unit(&mut self) -> f64 {
        (self.next_u64() >> 11) as f64 / (1u64 << 53) as f64
    }
}

/// Hashes a name to a stream key (FNV-1a, 64 bits).
fn fingerprint(name: &str) -> u64 {
    name.bytes().fold(0xcbf2_9ce4_8422_2325, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn chance_keeps_its_probability() {
        let mut rng = Seed(1).stream("chance");
        let hits = (0..100_000).filter(|_| rng.chance(0.05)).count();
        assert!((4_500..5_500).contains(&hits), "{hits} of 100000 at 5 %");
        assert!(!rng.chance(0.0) && rng.chance(1.0));
    }

    #[test]
    fn secret_source_has_named_streams_and_prints_no_key() {
        let source = RandomSource::from_system().unwrap();
        assert_ne!(source.stream("one").next_u64(), source.stream("another").next_u64());
        assert_ne!(source.derive("one").stream("a").next_u64(), source.stream("a").next_u64());
        assert_eq!(source.derive("one").stream("a").next_u64(), source.derive("one").stream("a").next_u64());
        assert_eq!(format!("{source:?}"), "System(redacted)");
        let seeded = RandomSource::from(Seed(3)).derive("part");
        assert_eq!(seeded.stream("a").next_u64(), Seed(3).derive("part").stream("a").next_u64());
    }

    #[test]
    fn numbers_stay_below_the_bound() {
        let mut rng = Seed(2).stream("below");
        assert!((0..1000).all(|_| rng.below(7) < 7));
    }
}
