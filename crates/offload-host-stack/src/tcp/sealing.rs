//! The sealers a stream was given, each answering for a stretch of it; and the contexts it is about to leave.
//!
//! Invariants: of each layer, the sealers are in the order of where they begin; one is dropped once the next one
//! begins before everything that is still kept. (The last has none behind it: a layer whose key nothing follows installs
//! one without a key.) A context is left once everything queued with it is acknowledged.

use core::fmt;
use offload_api::{Handle, Layer, Sealer};

#[derive(Default)]
pub(crate) struct Sealers {
    installed: Vec<Installed>,
    leaving: Vec<Leaving>,
}

/// A context for which nothing more will be queued.
struct Leaving {
    context: Handle,
    /// The end of what was queued with it.
    until: u64,
}

struct Installed {
    layer: Layer,
    from: u64,
    sealer: Box<dyn Sealer>,
}

impl Sealers {
    /// Has `sealer` answer for the units of `layer` that begin at `from` or later.
    pub(crate) fn install(&mut self, layer: Layer, from: u64, sealer: Box<dyn Sealer>) {
        self.installed.push(Installed { layer, from, sealer });
    }

    /// The sealer of the unit of `layer` that begins at `start`.
    pub(crate) fn of(&mut self, layer: Layer, start: u64) -> Option<&mut dyn Sealer> {
        let found = self.installed.iter_mut().rev().find(|one| one.layer == layer && one.from <= start)?;
        Some(&mut *found.sealer)
    }

    /// Nothing that begins at `until` or later is for `context`.
    pub(crate) fn leave(&mut self, context: Handle, until: u64) {
        self.leaving.push(Leaving { context, until });
    }

    /// Moves to `left` the contexts that nothing behind `acked` needs.
    pub(crate) fn take_left(&mut self, acked: u64, left: &mut Vec<Handle>) {
        self.leaving.retain(|one| {
            let needed = one.until > acked;
            if !needed {
                left.push(one.context);
            }
            needed
        });
    }

    /// Drops all who seal: nothing will be sent any more.
    pub(crate) fn clear(&mut self) {
        self.installed.clear();
    }

    /// Drops those who answer for nothing from `kept_from` on.
    pub(crate) fn release(&mut self, kept_from: u64) {
        let mut index = 0;
        while index < self.installed.len() {
            let layer = self.installed[index].layer;
            let next = self.installed[index + 1..].iter().find(|later| later.layer == layer);
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
