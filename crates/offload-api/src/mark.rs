//! Marks: the verdicts of a device's engines on a packet.
//!
//! Every engine uses the same four verdicts. The protocol's own verdict ([`TlsVerdict`](crate::rx::TlsVerdict),
//! [`NvmeVerdict`](crate::rx::NvmeVerdict)) gives the meaning for the protocol. A mark names its context, so that a
//! protocol can ignore marks of contexts that are not its own.
//!
//! Invariant: each engine has at most one mark.

use crate::unit::{Handle, LAYERS};
use core::fmt;

/// The work of an engine on a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Verdict {
    /// The engine left the packet unchanged.
    Untouched,
    /// The engine did all of its work, and every check succeeded.
    Done,
    /// The engine left the packet unchanged because a check failed.
    Failed,
    /// The engine left the packet unchanged because it lost its position in the stream, and asks for a resync.
    Asks,
}

/// The verdict of one context.
///
/// ```
/// use offload_api::{Handle, Mark, RxMeta, Verdict, engines};
///
/// let context = Handle { index: Handle::indices(engines::TLS, 1).start, generation: 0 };
/// let meta = RxMeta::default().marked(context, Verdict::Done);
/// assert_eq!(meta.marks.for_engine(engines::TLS), Some(Mark { context, verdict: Verdict::Done }));
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Mark {
    /// The context.
    pub context: Handle,
    /// Its verdict.
    pub verdict: Verdict,
}

/// The mark of an engine that opens whole packets, such as ESP or QUIC.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum PacketMark {
    /// No mark: the packet is of no such engine's kind, or no context matched.
    #[default]
    None,
    /// The engine opened the packet.
    Opened {
        /// The context.
        context: Handle,
        /// Packet number; the first one if several packets were joined.
        number: u64,
        /// Number of packets joined into this packet; their numbers are consecutive. 1 if the packet was not joined.
        packets: u16,
        /// Engine-specific code.
        code: u8,
    },
    /// The packet is unchanged because its authentication failed or it is malformed.
    Failed {
        /// The context.
        context: Handle,
    },
    /// A fragment of a packet of this engine's kind. The engine cannot work on fragments.
    Fragment {
        /// The engine's number.
        engine: u8,
    },
}

/// An event of a context that concerns no packet. Code and value are engine-specific.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ContextEvent {
    /// The context.
    pub context: Handle,
    /// The kind of event.
    pub code: u16,
    /// Argument of the event.
    pub value: u64,
}

/// All marks of a packet: the verdicts of the flow's contexts, lowest layer first, and the mark of the engine that
/// opened the packet.
///
/// ```
/// use offload_api::mark::{Marks, PacketMark, Verdict};
/// use offload_api::{Handle, engines};
///
/// let context = |engine| Handle { index: Handle::indices(engine, 1).start, generation: 0 };
/// let mut marks = Marks::default();
/// marks.set(context(engines::NVME_TCP), Verdict::Done);
/// assert_eq!(marks.for_engine(engines::NVME_TCP).unwrap().context, context(engines::NVME_TCP));
/// assert_eq!(marks.for_engine(engines::TLS), None);
/// marks.keep(engines::TLS);
/// assert_eq!(marks, Marks::default());
///
/// let opened = PacketMark::Opened { context: context(engines::ESP), number: 1 << 40, packets: 3, code: 1 };
/// marks.set_packet(opened);
/// assert_eq!(marks.packet(), opened);
/// ```
// Every received range carries its marks and queues hold many ranges. Fields are therefore split and ordered to avoid
// padding.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Marks {
    contexts: [Handle; LAYERS],
    verdicts: [Option<Verdict>; LAYERS],
    opener: Handle,
    /// Packet number: lower half, upper half.
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
    /// Returns the verdict of the engine with this number.
    pub fn for_engine(&self, engine: u8) -> Option<Mark> {
        self.iter().find(|mark| mark.context.engine() == engine)
    }

    /// Returns the verdicts of the contexts that follow the flow.
    pub fn iter(&self) -> impl Iterator<Item = Mark> {
        let said = self.contexts.into_iter().zip(self.verdicts);
        said.filter_map(|(context, verdict)| verdict.map(|verdict| Mark { context, verdict }))
    }

    /// Sets the verdict of `context` and replaces an older verdict of the same engine. If there is an entry for every
    /// layer already, the verdict is dropped.
    pub fn set(&mut self, context: Handle, verdict: Verdict) {
        // Engines work from the lowest layer up, so the next free entry is the next layer's.
        for (place, said) in self.contexts.iter_mut().zip(&mut self.verdicts) {
            if said.is_none() || place.engine() == context.engine() {
                (*place, *said) = (context, Some(verdict));
                return;
            }
        }
    }

    /// Removes all verdicts except that of the given engine. The mark of the opening engine stays.
    pub fn keep(&mut self, engine: u8) {
        // The mark of the opening engine is copied too, because it belongs to the whole packet.
        let mut kept = Marks::default();
        if let Some(mark) = self.for_engine(engine) {
            kept.set(mark.context, mark.verdict);
        }
        kept.set_packet(self.packet());
        *self = kept;
    }

    /// Returns the mark of the engine that opened the packet.
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

    /// Replaces the mark of the engine that opened the packet.
    pub const fn set_packet(&mut self, mark: PacketMark) {
        // Fields that the new mark does not use must be zero, because marks are compared as a whole.
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

    /// Counts one more packet that was joined to an opened one.
    pub const fn count_on(&mut self) {
        self.packets += matches!(self.kind, PacketKind::Opened) as u16;
    }

    /// Tests whether packets with these marks may be joined. Packets with a failure or a resync request stay separate,
    /// so that the host sees each of them.
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
        // All layers have their verdict, so a third engine is ignored.
        marks.set(handle(engines::ESP, 0), Verdict::Failed);
        assert_eq!(marks.for_engine(engines::ESP), None);
        marks.set(newer, Verdict::Asks);
        assert!(!marks.may_join());
        let said: Vec<_> = marks.iter().map(|mark| (mark.context, mark.verdict)).collect();
        assert_eq!(said, [(newer, Verdict::Asks), (nvme, Verdict::Done)]);
        marks.keep(engines::NVME_TCP);
        let said: Vec<_> = marks.iter().map(|mark| mark.context).collect();
        assert_eq!(said, [nvme], "the lower mark is removed");
    }

    #[test]
    fn the_marks_of_an_opener_read_back_unchanged() {
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
            assert_eq!(marks.packet(), said, "the opener has no mark in the flow");
            assert_eq!(marks == Marks::default(), said == PacketMark::None);
        }
        // With sequence number and buffer, a range takes no more than if this were four bytes smaller.
        assert_eq!(size_of::<crate::RxMeta>(), 44);
    }
}
