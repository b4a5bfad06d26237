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
///
/// ```
/// use offload_api::{Handle, Mark, RxMeta, Verdict, engines};
///
/// let context = Handle { index: Handle::indices(engines::TLS, 1).start, generation: 0 };
/// let meta = RxMeta::default().marked(context, Verdict::Done);
/// assert_eq!(meta.marks.of(engines::TLS), Some(Mark { context, verdict: Verdict::Done }));
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Mark {
    /// The context.
    pub context: Handle,
    /// What it did.
    pub verdict: Verdict,
}

/// What an engine said that opens whole packets.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum PacketMark {
    /// Nothing: no packet of its kind, or no context for it.
    #[default]
    None,
    /// It opened it.
    Opened {
        /// The context.
        context: Handle,
        /// The packet's number; of several that were joined, of the first.
        number: u64,
        /// Packets of consecutive numbers that this one was joined of; 1: it was not.
        packets: u16,
        /// How, in the engine's own words.
        code: u8,
    },
    /// It is as it was on the wire, and something in it is wrong.
    Failed {
        /// The context.
        context: Handle,
    },
    /// A fragment of a packet of the kind of the engine of this number, which nobody can work on before it is whole.
    Fragment {
        /// The engine.
        engine: u8,
    },
}

/// What a context has to tell that is of no packet, in its engine's own words.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ContextEvent {
    /// The context.
    pub context: Handle,
    /// What happened.
    pub code: u16,
    /// More about it.
    pub value: u64,
}

/// What the contexts of a flow said of a packet, the lowest first, and what the one did that opened it.
///
/// ```
/// use offload_api::mark::{Marks, PacketMark, Verdict};
/// use offload_api::{Handle, engines};
///
/// let context = |engine| Handle { index: Handle::indices(engine, 1).start, generation: 0 };
/// let mut marks = Marks::default();
/// marks.set(context(engines::NVME_TCP), Verdict::Done);
/// assert_eq!(marks.of(engines::NVME_TCP).unwrap().context, context(engines::NVME_TCP));
/// assert_eq!(marks.of(engines::TLS), None);
/// marks.keep(engines::TLS);
/// assert_eq!(marks, Marks::default());
///
/// let opened = PacketMark::Opened { context: context(engines::ESP), number: 1 << 40, packets: 3, code: 1 };
/// marks.set_packet(opened);
/// assert_eq!(marks.packet(), opened);
/// ```
// Every received range carries it, and queues hold many of those: hence what belongs together is not side by side.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Marks {
    contexts: [Handle; LAYERS],
    verdicts: [Option<Verdict>; LAYERS],
    opener: Handle,
    /// Lower and upper half.
    number: [u32; 2],
    packets: u16,
    code: u8,
    kind: PacketKind,
}

#[derive(Clone, Copy, PartialEq, Eq, Hash)]
enum PacketKind {
    None,
    Opened,
    Failed,
    Fragment,
}

const NOBODY: Handle = Handle { index: 0, generation: 0 };

impl Default for Marks {
    fn default() -> Marks {
        Marks {
            contexts: [NOBODY; LAYERS],
            verdicts: [None; LAYERS],
            opener: NOBODY,
            number: [0; 2],
            packets: 0,
            code: 0,
            kind: PacketKind::None,
        }
    }
}

impl Marks {
    /// What the engine of this number said.
    pub fn of(&self, engine: u8) -> Option<Mark> {
        self.iter().find(|mark| mark.context.engine() == engine)
    }

    /// All of those that follow the flow.
    pub fn iter(&self) -> impl Iterator<Item = Mark> {
        let said = self.contexts.into_iter().zip(self.verdicts);
        said.filter_map(|(context, verdict)| verdict.map(|verdict| Mark { context, verdict }))
    }

    /// What `context` says, in place of what its engine said before. More than there are layers say nothing.
    pub fn set(&mut self, context: Handle, verdict: Verdict) {
        for (place, said) in self.contexts.iter_mut().zip(&mut self.verdicts) {
            if said.is_none() || place.engine() == context.engine() {
                (*place, *said) = (context, Some(verdict));
                return;
            }
        }
    }

    /// Of what was said only the word of the engine of this number still holds.
    pub fn keep(&mut self, engine: u8) {
        let mut kept = Marks::default();
        if let Some(mark) = self.of(engine) {
            kept.set(mark.context, mark.verdict);
        }
        kept.set_packet(self.packet());
        *self = kept;
    }

    /// What the engine said that opened the packet.
    pub const fn packet(&self) -> PacketMark {
        match self.kind {
            PacketKind::None => PacketMark::None,
            PacketKind::Opened => PacketMark::Opened {
                context: self.opener,
                number: self.number[0] as u64 | (self.number[1] as u64) << 32,
                packets: self.packets,
                code: self.code,
            },
            PacketKind::Failed => PacketMark::Failed { context: self.opener },
            PacketKind::Fragment => PacketMark::Fragment { engine: self.code },
        }
    }

    /// That engine says this, in place of what it said before.
    pub const fn set_packet(&mut self, mark: PacketMark) {
        (self.opener, self.number, self.packets, self.code) = (NOBODY, [0; 2], 0, 0);
        match mark {
            PacketMark::None => self.kind = PacketKind::None,
            PacketMark::Opened { context, number, packets, code } => {
                self.kind = PacketKind::Opened;
                self.number = [number as u32, (number >> 32) as u32];
                (self.opener, self.packets, self.code) = (context, packets, code);
            }
            PacketMark::Failed { context } => (self.kind, self.opener) = (PacketKind::Failed, context),
            PacketMark::Fragment { engine } => (self.kind, self.code) = (PacketKind::Fragment, engine),
        }
    }

    /// One packet more was joined to the one that an engine opened.
    pub const fn count_on(&mut self) {
        self.packets += matches!(self.kind, PacketKind::Opened) as u16;
    }

    /// Whether packets of which this was said may be handed on as one: what asks for something, or is wrong, is seen by
    /// itself.
    pub fn may_join(&self) -> bool {
        self.verdicts.iter().flatten().all(|verdict| matches!(verdict, Verdict::Untouched | Verdict::Done))
    }
}

impl fmt::Debug for Marks {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut list = f.debug_list();
        list.entries(self.iter());
        if self.kind != PacketKind::None {
            list.entry(&self.packet());
        }
        list.finish()
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

    #[test]
    fn what_an_opener_says_comes_back_as_it_was_said() {
        let context = Handle { index: Handle::indices(engines::ESP, 8).end - 1, generation: u32::MAX };
        for said in [
            PacketMark::Opened { context, number: u64::MAX - 1, packets: u16::MAX, code: 7 },
            PacketMark::Opened { context, number: 1, packets: 1, code: 0 },
            PacketMark::Failed { context },
            PacketMark::Fragment { engine: engines::ESP },
            PacketMark::None,
        ] {
            let mut marks = Marks::default();
            marks.set_packet(PacketMark::Opened { context: NOBODY, number: 5, packets: 2, code: 1 });
            marks.set_packet(said);
            assert_eq!(marks.packet(), said);
            marks.keep(engines::TLS);
            assert_eq!(marks.packet(), said, "it is nobody's below");
            assert_eq!(marks == Marks::default(), said == PacketMark::None);
        }
        // With sequence number and buffer, a range takes no more than if this were four bytes smaller.
        assert_eq!(size_of::<crate::RxMeta>(), 44);
    }
}
