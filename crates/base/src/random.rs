//! One seed for a run, an independent generator for each component.
//!
//! A component that draws more numbers does not shift another's: every stream is keyed by its own name.

use rand_chacha::ChaCha8Rng;
use rand_core::{Rng as _, SeedableRng};

/// The seed of a run. Print it: with it, a run is repeated to the byte.
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
    /// The generator of the component called `name`.
    pub fn stream(self, name: &str) -> Rng {
        let mut key = [0; 32];
        key[..8].copy_from_slice(&self.0.to_le_bytes());
        key[8..16].copy_from_slice(&fingerprint(name).to_le_bytes());
        Rng(ChaCha8Rng::from_seed(key))
    }

    /// A seed for the part of the run called `name`, to derive further streams from.
    pub fn derive(self, name: &str) -> Seed {
        Seed(self.stream(name).next_u64())
    }
}

/// A seeded generator: portable, the same on every machine. Not for keys of real connections.
///
/// See [`Seed`] for an example.
#[derive(Clone, Debug)]
pub struct Rng(ChaCha8Rng);

impl Rng {
    /// 64 random bits.
    pub fn next_u64(&mut self) -> u64 {
        self.0.next_u64()
    }

    /// 32 random bits.
    pub fn next_u32(&mut self) -> u32 {
        self.0.next_u32()
    }

    /// Fills `bytes` with random ones.
    pub fn fill(&mut self, bytes: &mut [u8]) {
        self.0.fill_bytes(bytes);
    }

    /// True with `probability`: 0 never, 1 always. Draws nothing at either end.
    pub fn chance(&mut self, probability: f64) -> bool {
        if probability <= 0.0 {
            false
        } else if probability >= 1.0 {
            true
        } else {
            self.unit() < probability
        }
    }

    /// A number from `0..bound`.
    ///
    /// # Panics
    /// If `bound` is zero.
    pub fn below(&mut self, bound: u64) -> u64 {
        assert!(bound > 0, "there is no number below zero");
        // Multiply-shift: its bias is under bound / 2^64, far beneath what a simulation could show.
        ((u128::from(self.next_u64()) * u128::from(bound)) >> 64) as u64
    }

    /// A number from `0.0..1.0`, in steps of 2^-53.
    pub fn unit(&mut self) -> f64 {
        (self.next_u64() >> 11) as f64 / (1u64 << 53) as f64
    }
}

/// FNV-1a, 64 bits: names to stream keys.
fn fingerprint(name: &str) -> u64 {
    name.bytes().fold(0xcbf2_9ce4_8422_2325, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn chance_keeps_its_share() {
        let mut rng = Seed(1).stream("chance");
        let hits = (0..100_000).filter(|_| rng.chance(0.05)).count();
        assert!((4_500..5_500).contains(&hits), "{hits} of 100000 at 5 %");
        assert!(!rng.chance(0.0) && rng.chance(1.0));
    }

    #[test]
    fn below_stays_below() {
        let mut rng = Seed(2).stream("below");
        assert!((0..1000).all(|_| rng.below(7) < 7));
    }
}
