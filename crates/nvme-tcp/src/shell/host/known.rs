//! Namespaces that somebody has looked at: what they were, so that they are known again behind a new connection.
//!
//! Invariant: what is sent, or sent again, about such a namespace is about the one that was looked at. A namespace that
//! is another, or none, behind a new connection is gone for good, whatever its number is given to later.

use super::error::{CommandError, HostError};
use super::link::Link;
use crate::host::{Buffer, Payload, commands};
use crate::nvme::identify::{self, NamespaceData, NamespaceIds};
use core::sync::atomic::{AtomicBool, Ordering};
use std::sync::Arc;

/// A namespace that was looked at.
#[derive(Debug)]
pub(super) struct Known {
    pub(super) id: u32,
    pub(super) data: NamespaceData,
    pub(super) ids: NamespaceIds,
    /// Shared with what the same namespace was before it grew.
    gone: Arc<AtomicBool>,
}

impl Known {
    /// The namespace with that number, as it is now.
    pub(super) fn new(id: u32, data: NamespaceData, ids: NamespaceIds) -> Known {
        Known { id, data, ids, gone: Arc::default() }
    }

    /// The same namespace, with more blocks.
    pub(super) fn grown(&self, data: NamespaceData) -> Known {
        Known { id: self.id, data, ids: self.ids, gone: self.gone.clone() }
    }

    /// Whether it is not there any more.
    pub(super) fn is_gone(&self) -> bool {
        self.gone.load(Ordering::Acquire)
    }

    /// It is not there any more.
    pub(super) fn take_away(&self) {
        self.gone.store(true, Ordering::Release);
    }

    /// What its commands end with when it is gone.
    pub(super) fn error(&self) -> CommandError {
        CommandError::NamespaceChanged { namespace: self.id }
    }

    /// Whether a namespace with its number is the same. One that has an identifier may have grown.
    pub(super) fn is(&self, data: &NamespaceData, ids: &NamespaceIds) -> bool {
        let same_size =
            if self.ids.is_some() { data.blocks >= self.data.blocks } else { data.blocks == self.data.blocks };
        self.ids == *ids && self.data.block_shift == data.block_shift && same_size
    }

    /// Whether it is still there, by a controller of `version` that was just connected to.
    ///
    /// # Errors
    /// Its controller does not tell now.
    pub(super) async fn is_behind(&self, link: &mut Link, version: u32) -> Result<bool, HostError> {
        let mut pages = [Vec::new(), Vec::new()];
        for (page, cns) in pages.iter_mut().zip([NAMESPACE, NAMESPACE_DESCRIPTORS]) {
            if cns == NAMESPACE_DESCRIPTORS && !has_descriptors(version) {
                continue;
            }
            let buffer = Payload::Read(Buffer::zeroed(identify::LEN));
            match link.execute("Identify of a namespace", commands::identify(cns, self.id), buffer).await {
                Ok(finished) => {
                    if let Payload::Read(buffer) = finished.submission.payload {
                        *page = buffer.to_vec();
                    }
                }
                Err(HostError::Refused { status, .. }) if status.do_not_retry() => {}
                Err(error) => return Err(error),
            }
        }
        let [namespace, descriptors] = pages;
        let data = NamespaceData::parse(&namespace);
        Ok(data.is_some_and(|data| self.is(&data, &NamespaceIds::parse(&namespace, &descriptors))))
    }
}

/// Whether a controller of that version knows namespace identification descriptors: since 1.3.
pub(super) fn has_descriptors(version: u32) -> bool {
    version >= 0x0001_0300
}

/// CNS: a namespace's data, and its identifiers.
pub(super) const NAMESPACE: u8 = 0x00;
pub(super) const NAMESPACE_DESCRIPTORS: u8 = 0x03;

#[cfg(test)]
mod tests {
    use super::*;

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
