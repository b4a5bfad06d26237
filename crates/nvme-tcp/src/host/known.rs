//! Namespaces that somebody has looked at: what they were, so that they are known again.
//!
//! Invariant: a command for such a namespace, sent or sent again, is for the one that was looked at. Behind a new
//! connection, or when the controller tells that namespaces have changed, it is in doubt until it was looked at again, and
//! nothing is sent about it. A namespace that is another, or none, by then is gone for good, whatever its number is given
//! to later.

use super::error::CommandError;
use crate::wire::{NamespaceData, NamespaceIds};
use core::sync::atomic::{AtomicU8, Ordering};
use std::sync::Arc;

/// A namespace that was looked at.
#[derive(Debug)]
pub(super) struct Known {
    pub(super) id: u32,
    pub(super) data: NamespaceData,
    pub(super) ids: NamespaceIds,
    /// Shared with what the same namespace was before it grew: one of the constants below.
    standing: Arc<AtomicU8>,
}

impl Known {
    /// The namespace with that number, as it is now.
    pub(super) fn new(id: u32, data: NamespaceData, ids: NamespaceIds) -> Known {
        Known { id, data, ids, standing: Arc::new(AtomicU8::new(SURE)) }
    }

    /// The same namespace, with more blocks.
    pub(super) fn grown(&self, data: NamespaceData) -> Known {
        Known { id: self.id, data, ids: self.ids, standing: self.standing.clone() }
    }

    /// Whether it is not there any more.
    pub(super) fn is_gone(&self) -> bool {
        self.standing.load(Ordering::Acquire) == GONE
    }

    /// Whether it may be another by now.
    pub(super) fn is_in_doubt(&self) -> bool {
        self.standing.load(Ordering::Acquire) == IN_DOUBT
    }

    /// It is not there any more.
    pub(super) fn take_away(&self) {
        self.standing.store(GONE, Ordering::Release);
    }

    /// It may be another by now.
    pub(super) fn doubt(&self) {
        self.change(SURE, IN_DOUBT);
    }

    /// It is the same as before.
    pub(super) fn trust(&self) {
        self.change(IN_DOUBT, SURE);
    }

    /// Whether both are one namespace, of which one may have grown.
    pub(super) fn is_one_with(&self, other: &Known) -> bool {
        Arc::ptr_eq(&self.standing, &other.standing)
    }

    fn change(&self, from: u8, to: u8) {
        // A namespace that is gone stays so; and one that stands at `to` already needs no change.
        let _unless = self.standing.compare_exchange(from, to, Ordering::AcqRel, Ordering::Acquire);
    }

    /// The error that its commands end with when it is gone.
    pub(super) fn error(&self) -> CommandError {
        CommandError::NamespaceChanged { namespace: self.id }
    }

    /// Whether a namespace with its number is the same. One that has an identifier may have grown.
    pub(super) fn is(&self, data: &NamespaceData, ids: &NamespaceIds) -> bool {
        let same_size =
            if self.ids.is_some() { data.blocks >= self.data.blocks } else { data.blocks == self.data.blocks };
        self.ids == *ids && self.data.block_shift == data.block_shift && same_size
    }
}

/// Whether a controller of that version knows namespace identification descriptors: since 1.3.
pub(super) fn has_descriptors(version: u32) -> bool {
    version >= 0x0001_0300
}

/// CNS: a namespace's data, and its identifiers.
pub(super) const NAMESPACE: u8 = 0x00;
pub(super) const NAMESPACE_DESCRIPTORS: u8 = 0x03;
/// How a namespace stands: it is the one that was looked at, it may be another, it is not there.
const SURE: u8 = 0;
const IN_DOUBT: u8 = 1;
const GONE: u8 = 2;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_namespace_that_is_gone_does_not_come_back() {
        let known = Known::new(1, NamespaceData::default(), NamespaceIds::default());
        let grown = known.grown(NamespaceData { blocks: 7, ..NamespaceData::default() });
        grown.doubt();
        assert!(known.is_in_doubt() && known.is_one_with(&grown));
        known.trust();
        assert!(!grown.is_in_doubt() && !grown.is_gone());
        known.take_away();
        grown.doubt();
        grown.trust();
        assert!(grown.is_gone() && !known.is_in_doubt());
    }

    #[test]
    fn a_namespace_is_the_same_by_its_identifiers_and_its_geometry() {
        let data = |blocks, block_shift| NamespaceData { blocks, block_shift, nguid: [0; 16] };
        let none = NamespaceIds::default();
        let uuid = NamespaceIds { uuid: [1; 16], ..none };
        let rows = [
            // What it was, what it is.
            (uuid, (100, 9), uuid, true),
            (uuid, (101, 9), uuid, true),
            (uuid, (99, 9), uuid, false),
            (uuid, (100, 12), uuid, false),
            (uuid, (100, 9), NamespaceIds { uuid: [2; 16], ..none }, false),
            (uuid, (100, 9), NamespaceIds { nguid: [1; 16], ..uuid }, false),
            (uuid, (100, 9), NamespaceIds { eui64: [1; 8], ..uuid }, false),
            (uuid, (100, 9), none, false),
            (none, (100, 9), none, true),
            (none, (101, 9), none, false),
        ];
        for (was, (blocks, shift), is, same) in rows {
            let known = Known::new(1, data(100, 9), was);
            assert_eq!(known.is(&data(blocks, shift), &is), same, "{was:?} and {is:?}, {blocks} of 2^{shift}");
        }
    }
}
