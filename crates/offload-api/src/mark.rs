//! What a device's engines said about a packet: a mark each.
//!
//! An engine says one of four things, whatever it is for; what that means to a protocol, the protocol's own verdict says
//! ([`TlsVerdict`](crate::rx::TlsVerdict), [`NvmeVerdict`](crate::rx::NvmeVerdict)). A mark names the context that spoke, so
//! that nobody takes another's word.
//!
//! Invariant: there is one mark of an engine at most.

use crate::unit::{Handle, LAYERS};
use core::fmt;

/// What an engine did with a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Verdict {
    /// Nothing: its bytes are as they were.
    Untouched,
    /// All of its work, and whatever there was to check is right.
    Done,
    /// Nothing: something in it is wrong.
    Failed,
    /// Nothing, and it asks for help to find its place again.
    Asks,
}

/// What one context said.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Mark {
    /// The context.
    pub context: Handle,
    /// What it did.
    pub verdict: Verdict,
}

/// What the contexts of a flow said of a packet, the lowest first.
///
/// ```
/// use offload_api::mark::{Marks, Verdict};
/// use offload_api::{Handle, engines};
///
/// let context = Handle { index: Handle::indices(engines::NVME_TCP, 1).start, generation: 0 };
/// let mut marks = Marks::default();
/// marks.set(context, Verdict::Done);
/// assert_eq!(marks.of(engines::NVME_TCP).unwrap().context, context);
/// assert_eq!(marks.of(engines::TLS), None);
/// marks.keep(engines::TLS);
/// assert_eq!(marks, Marks::default());
/// ```
#[derive(Clone, Copy, Default, PartialEq, Eq, Hash)]
pub struct Marks([Option<Mark>; LAYERS]);

impl Marks {
    /// What the engine of this number said.
    pub fn of(&self, engine: u8) -> Option<&Mark> {
        self.iter().find(|mark| mark.context.engine() == engine)
    }

    /// All of them.
    pub fn iter(&self) -> impl Iterator<Item = &Mark> {
        self.0.iter().flatten()
    }

    /// What `context` says, in place of what its engine said before. More than there are layers say nothing.
    pub fn set(&mut self, context: Handle, verdict: Verdict) {
        let is_its_own = |mark: &Option<Mark>| mark.is_none_or(|mark| mark.context.engine() == context.engine());
        if let Some(place) = self.0.iter_mut().find(|mark| is_its_own(mark)) {
            *place = Some(Mark { context, verdict });
        }
    }

    /// Of what was said only the word of the engine of this number still holds.
    pub fn keep(&mut self, engine: u8) {
        let mut kept = Marks::default();
        if let Some(mark) = self.of(engine) {
            kept.set(mark.context, mark.verdict);
        }
        *self = kept;
    }

    /// Whether packets of which this was said may be handed on as one: what asks for something, or is wrong, is seen by
    /// itself.
    pub fn may_join(&self) -> bool {
        self.iter().all(|mark| matches!(mark.verdict, Verdict::Untouched | Verdict::Done))
    }
}

impl fmt::Debug for Marks {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.iter()).finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::unit::engines;

    #[test]
    fn an_engine_says_one_thing_and_the_order_is_that_of_the_layers() {
        let handle = |engine, generation| Handle { index: Handle::indices(engine, 1).start, generation };
        let (tls, newer, nvme) = (handle(engines::TLS, 0), handle(engines::TLS, 1), handle(engines::NVME_TCP, 0));
        let mut marks = Marks::default();
        marks.set(tls, Verdict::Done);
        marks.set(nvme, Verdict::Done);
        assert!(marks.may_join());
        // There is no place for a third.
        marks.set(handle(engines::ESP, 0), Verdict::Failed);
        assert_eq!(marks.of(engines::ESP), None);
        marks.set(newer, Verdict::Asks);
        assert!(!marks.may_join());
        let said: Vec<_> = marks.iter().map(|mark| (mark.context, mark.verdict)).collect();
        assert_eq!(said, [(newer, Verdict::Asks), (nvme, Verdict::Done)]);
        marks.keep(engines::NVME_TCP);
        let said: Vec<_> = marks.iter().map(|mark| mark.context).collect();
        assert_eq!(said, [nvme], "nobody below it any more");
    }
}
