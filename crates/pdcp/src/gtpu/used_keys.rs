//! Keys under which a node has sent PDUs.
//!
//! A new bearer and a bearer with new keys start at COUNT 0. If a node did so twice under one key, identity and
//! direction, two SDUs would get the same key stream.

use crate::{RepeatedKeys, Security};
use std::collections::{HashSet, VecDeque};

/// The last [`MAX_KEYS`] keys of a node, by their fingerprints.
#[derive(Default)]
pub(super) struct RecentKeys {
    known: HashSet<Fingerprint>,
    /// The fingerprints in the order of their insertion, oldest first.
    order: VecDeque<Fingerprint>,
}

type Fingerprint = [u8; 18];

impl RecentKeys {
    /// Adds the keys of a direction.
    ///
    /// # Errors
    /// [`RepeatedKeys`] if the node has used one of the keys with this identity and direction. No key is added then.
    pub(super) fn insert(&mut self, security: &Security) -> Result<(), RepeatedKeys> {
        if security.fingerprints().any(|key| self.known.contains(&key)) {
            return Err(RepeatedKeys);
        }
        for key in security.fingerprints() {
            if self.known.insert(key) {
                self.order.push_back(key);
            }
        }
        while self.order.len() > MAX_KEYS {
            if let Some(oldest) = self.order.pop_front() {
                self.known.remove(&oldest);
            }
        }
        Ok(())
    }

    /// Forgets the keys of a direction under which no PDU was sent.
    pub(super) fn remove(&mut self, security: &Security) {
        for key in security.fingerprints().filter(|key| self.known.remove(key)) {
            if let Some(at) = self.order.iter().rposition(|known| *known == key) {
                self.order.remove(at);
            }
        }
    }
}

/// Keys that a node remembers: about 4 MiB.
const MAX_KEYS: usize = 1 << 16;
