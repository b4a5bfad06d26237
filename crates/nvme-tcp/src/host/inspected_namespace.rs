//! Inspected namespaces, kept so that they can be recognised.
//!
//! Invariant: a command for an inspected namespace is sent, or sent again, only to that namespace. After a reconnect,
//! or when the controller reports changed namespaces, the namespace is in doubt: no command for this namespace is sent
//! before a new inspection. A replaced or removed namespace is gone permanently, even if another one gets its number.

use super::error::CommandError;
use crate::wire::{NamespaceData, NamespaceIds};
use core::sync::atomic::{AtomicU8, Ordering};
use std::sync::Arc;

/// An inspected namespace.
#[derive(Debug)]
pub(super) struct InspectedNamespace {
    pub(super) id: u32,
    pub(super) data: NamespaceData,
    pub(super) ids: NamespaceIds,
    /// State, one of the constants below. Shared with the same namespace before it grew.
    standing: Arc<AtomicU8>,
}

impl InspectedNamespace {
    /// Creates an entry for a namespace just inspected.
    pub(super) fn new(id: u32, data: NamespaceData, ids: NamespaceIds) -> InspectedNamespace {
        InspectedNamespace { id, data, ids, standing: Arc::new(AtomicU8::new(SURE)) }
    }

    /// Returns the same namespace with its new size.
    pub(super) fn with_size(&self, data: NamespaceData) -> InspectedNamespace {
        InspectedNamespace { id: self.id, data, ids: self.ids, standing: self.standing.clone() }
    }

    /// Returns whether the namespace is gone.
    pub(super) fn is_gone(&self) -> bool {
        self.standing.load(Ordering::Acquire) == GONE
    }

    /// Returns whether the namespace has to be inspected again.
    pub(super) fn is_in_doubt(&self) -> bool {
        self.standing.load(Ordering::Acquire) == IN_DOUBT
    }

    /// Marks the namespace as gone.
    pub(super) fn mark_gone(&self) {
        self.standing.store(GONE, Ordering::Release);
    }

    /// Puts the namespace in doubt.
    pub(super) fn doubt(&self) {
        self.change(SURE, IN_DOUBT);
    }

    /// Ends the doubt: the namespace is the same.
    pub(super) fn confirm(&self) {
        self.change(IN_DOUBT, SURE);
    }

    /// Returns whether both entries are the same namespace, which may have grown.
    pub(super) fn is_same_namespace(&self, other: &InspectedNamespace) -> bool {
        Arc::ptr_eq(&self.standing, &other.standing)
    }

    fn change(&self, from: u8, to: u8) {
        // If the state is not `from`, nothing changes: a namespace that is gone stays gone.
        let _ = self.standing.compare_exchange(from, to, Ordering::AcqRel, Ordering::Acquire);
    }

    /// Returns the error of commands for a namespace that is gone.
    pub(super) fn error(&self) -> CommandError {
        CommandError::NamespaceChanged { namespace: self.id }
    }

    /// Returns whether `data` and `ids` describe this namespace. A namespace with an identifier may have grown.
    pub(super) fn is(&self, data: &NamespaceData, ids: &NamespaceIds) -> bool {
        let same_size =
            if self.ids.is_some() { data.blocks >= self.data.blocks } else { data.blocks == self.data.blocks };
        self.ids == *ids && self.data.block_shift == data.block_shift && same_size
    }
}

/// Returns whether a controller of this version supports namespace identification descriptors (1.3 and later).
pub(super) fn has_descriptors(version: u32) -> bool {
    version >= 0x0001_0300
}

/// CNS values of the namespace's data and of its descriptors.
pub(super) const NAMESPACE: u8 = 0x00;
pub(super) const NAMESPACE_DESCRIPTORS: u8 = 0x03;
/// States of a namespace: confirmed, in doubt, gone.
const SURE: u8 = 0;
const IN_DOUBT: u8 = 1;
const GONE: u8 = 2;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn gone_namespace_does_not_come_back() {
        let known = InspectedNamespace::new(1, NamespaceData::default(), NamespaceIds::default());
        let grown = known.with_size(NamespaceData { blocks: 7, ..NamespaceData::default() });
        grown.doubt();
        assert!(known.is_in_doubt() && known.is_same_namespace(&grown));
        known.confirm();
        assert!(!grown.is_in_doubt() && !grown.is_gone());
        known.mark_gone();
        grown.doubt();
        grown.confirm();
        assert!(grown.is_gone() && !known.is_in_doubt());
    }

    #[test]
    fn namespace_is_recognised_by_ids_and_size() {
        let data = |blocks, block_shift| NamespaceData { blocks, block_shift, nguid: [0; 16] };
        let none = NamespaceIds::default();
        let uuid = NamespaceIds { uuid: [1; 16], ..none };
        let rows = [
            // Identifiers before; size, block shift and identifiers now; whether they are the same namespace.
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
            let known = InspectedNamespace::new(1, data(100, 9), was);
            assert_eq!(known.is(&data(blocks, shift), &is), same, "{was:?} and {is:?}, {blocks} of 2^{shift}");
        }
    }
}
