//! The software sealers of a stream, each for one section, and the device contexts about to be removed.
//!
//! Invariants:
//! - The sealers of a layer are sorted by start.
//! - A sealer is dropped once the next sealer of its layer begins before all data still kept. The last one of a layer
//!   has no successor; a layer that ends its last key therefore installs a sealer without a key.
//! - A context is removed from the device once all data queued with it are acknowledged.

use core::fmt;
use offload_api::{Handle, Layer, Sealer};

#[derive(Default)]
pub(crate) struct Sealers {
    installed: Vec<SealerSection>,
    leaving: Vec<LeavingContext>,
}

/// A context that no later data will use.
struct LeavingContext {
    context: Handle,
    /// Position after the last data queued with the context.
    until: u64,
}

struct SealerSection {
    layer: Layer,
    from: u64,
    sealer: Box<dyn Sealer>,
}

impl Sealers {
    /// Installs `sealer` for the units of `layer` that begin at `from` or later.
    pub(crate) fn install(&mut self, layer: Layer, from: u64, sealer: Box<dyn Sealer>) {
        self.installed.push(SealerSection { layer, from, sealer });
    }

    /// Returns the sealer for the unit of `layer` that begins at `start`.
    pub(crate) fn find(&mut self, layer: Layer, start: u64) -> Option<&mut dyn Sealer> {
        let found = self.installed.iter_mut().rev().find(|one| one.layer == layer && one.from <= start)?;
        Some(&mut *found.sealer)
    }

    /// Schedules the removal of `context`, which no data from `until` on use.
    pub(crate) fn leave(&mut self, context: Handle, until: u64) {
        self.leaving.push(LeavingContext { context, until });
    }

    /// Moves to `left` the contexts that no data after `acked` use.
    pub(crate) fn take_left(&mut self, acked: u64, left: &mut Vec<Handle>) {
        self.leaving.retain(|one| {
            let needed = one.until > acked;
            if !needed {
                left.push(one.context);
            }
            needed
        });
    }

    /// Drops all sealers, because nothing will be sent any more.
    pub(crate) fn clear(&mut self) {
        self.installed.clear();
    }

    /// Drops the sealers whose sections end before `kept_from`.
    pub(crate) fn release(&mut self, kept_from: u64) {
        let mut index = 0;
        while index < self.installed.len() {
            let layer = self.installed[index].layer;
            let next = self.installed[index + 1..].iter().find(|later| later.layer == layer);
            // No byte of this sealer's section is left, so its key can be destroyed.
            if next.is_some_and(|next| next.from <= kept_from) {
                self.installed.remove(index);
            } else {
                index += 1;
            }
        }
    }
}

impl fmt::Debug for Sealers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.installed.iter().map(|one| (one.layer, one.from))).finish()
    }
}
