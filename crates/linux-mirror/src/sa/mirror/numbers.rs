//! Last sequence numbers of deleted receive SAs.
//!
//! The kernel's own SAs receive no packets, so the kernel reports sequence number 0 for an SA that is added again. This
//! happens when an SA changes but keeps its key, or when an interrupted dump left it out. The replay window must not
//! start again, or old packets could be replayed. The table holds hashes instead of keys, made with a secret random
//! hash key.
//!
//! Invariant: the numbers of the last [`MAX_NUMBERS`] deleted SAs are known, so that no packet under their keys passes
//! twice.

use core::hash::BuildHasher;
use offload_api::SaParams;
use std::collections::hash_map::RandomState;
use std::collections::{HashMap, VecDeque};

#[derive(Debug, Default)]
pub(super) struct LastNumbers {
    hasher: RandomState,
    /// Number by hash. Only looked up, never iterated.
    numbers: HashMap<u64, u64>,
    /// Order of the hashes, oldest first.
    order: VecDeque<u64>,
}

impl LastNumbers {
    /// Records the last sequence number of a deleted SA.
    pub(super) fn note(&mut self, sa: &SaParams, number: u64) {
        // An SA that received nothing has nothing to protect from replays.
        if number == 0 {
            return;
        }
        let hash = self.hash(sa);
        let known = self.numbers.entry(hash).or_insert_with(|| {
            self.order.push_back(hash);
            0
        });
        *known = number.max(*known);
        if self.order.len() > MAX_NUMBERS
            && let Some(oldest) = self.order.pop_front()
        {
            self.numbers.remove(&oldest);
        }
    }

    /// Returns the last sequence number of an earlier SA with the same key, or 0.
    pub(super) fn last_number(&self, sa: &SaParams) -> u64 {
        self.numbers.get(&self.hash(sa)).copied().unwrap_or(0)
    }

    /// Hashes all inputs of packet authentication.
    fn hash(&self, sa: &SaParams) -> u64 {
        self.hasher.hash_one((sa.key.key(), sa.key.salt(), sa.spi))
    }
}

/// Maximum number of remembered SAs.
const MAX_NUMBERS: usize = 1 << 16;

#[cfg(test)]
mod tests {
    use super::*;
    use offload_api::{Direction, EspKey, EspSuite};

    fn sa(key: u32) -> SaParams {
        let mut material = [1; 20];
        material[..4].copy_from_slice(&key.to_be_bytes());
        let key = EspKey::new(EspSuite::Aes128Gcm, &material).unwrap();
        SaParams::new(Direction::Receive, 0x1001, [10, 0, 0, 2].into(), [10, 0, 0, 1].into(), key)
    }

    #[test]
    fn numbers_of_recently_deleted_sas_are_known() {
        let mut numbers = LastNumbers::default();
        for key in 0..=MAX_NUMBERS as u32 {
            numbers.note(&sa(key), 7);
        }
        numbers.note(&sa(1), 5);
        assert_eq!([0, 1, MAX_NUMBERS as u32].map(|key| numbers.last_number(&sa(key))), [0, 7, 7]);
        assert_eq!((numbers.numbers.len(), numbers.order.len()), (MAX_NUMBERS, MAX_NUMBERS));
        assert_eq!(numbers.last_number(&SaParams { spi: 0x1002, ..sa(1) }), 0, "another SPI means another SA");
    }
}
