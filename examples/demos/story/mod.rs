//! One TLS connection between two emulated hosts, shown packet by packet: how the NICs, the drivers and the TLS layer
//! handled a lost packet and an overtaken one.
//!
//! - [`course`]: the two hosts and their wire;
//! - `watch`: the observers: a driver around a driver, a port around a device, and a wire that loses a packet; `log`:
//!   their log;
//! - [`reading`]: the result of a packet in a NIC, derived from the counters;
//! - [`table`]: the story as text; [`picture`]: as a sequence diagram in SVG.
//!
//! The observers change nothing: drivers, devices and TLS are the same as in every other example. Only questions of the
//! NIC can be delayed, as a slow device would delay them.

pub mod course;
mod log;
pub mod picture;
pub mod reading;
pub mod table;
mod watch;

use offload_base::Instant;
use reading::PacketResult;

/// The events of one connection from the server's first record on.
///
/// ```
/// use offload_demos::story::course::Script;
/// use offload_demos::story::{Opened, StoryStep};
///
/// let story = Script { lose: None, hold_back: None, ..Script::default() }.run()?;
/// assert_eq!(story.records.len(), 9);
/// let all_by_nic = story.events.iter().all(|event| match event.what {
///     StoryStep::Opened { by, .. } => by == Opened::ByNic,
///     _ => true,
/// });
/// assert!(all_by_nic, "nothing happened to any packet");
/// # Ok::<(), std::io::Error>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Story {
    /// The events in chronological order.
    pub events: Vec<Event>,
    /// The packets with data, numbered from 1 in the order of the stream.
    pub packets: Vec<Span>,
    /// The records, numbered from 0 as in TLS.
    pub records: Vec<Span>,
}

/// An event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Event {
    /// Time since the server's first packet.
    pub at: Instant,
    /// The kind of the event, which also determines its place.
    pub what: StoryStep,
}

/// Kinds of events.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StoryStep {
    /// The server's driver posted bytes to its NIC.
    Posted {
        /// The bytes, which the NIC cuts into packets.
        bytes: Span,
        /// The work of rebuilding the NIC's state, if the bytes were not the expected ones.
        rebuilt: Option<StateRebuild>,
    },
    /// The wire lost a packet.
    Lost(Span),
    /// The wire delayed a packet, so that another overtook it.
    HeldBack(Span),
    /// A packet arrived at the client's NIC.
    Arrived {
        /// The packet's bytes.
        bytes: Span,
        /// The result in the NIC.
        made: PacketResult,
    },
    /// The client's driver announced to its TLS layer a question about these bytes, so that the layer notes the records
    /// that begin there.
    Announced(Span),
    /// The client's TLS layer noted the start of a record, for an announced question.
    Noted {
        /// The start of the record.
        header: u32,
        /// The record's number.
        number: u64,
    },
    /// The client's driver asked its TLS layer whether a record begins here.
    Asked {
        /// The position in question.
        header: u32,
    },
    /// The client's TLS layer answered the NIC.
    Answered {
        /// The position in question.
        header: u32,
        /// The number of the record that begins there; `None` if no record does.
        number: Option<u64>,
        /// Whether the record was noted before the question.
        noted: bool,
    },
    /// The client's TLS layer delivered a record.
    Opened {
        /// The record's number.
        number: u64,
        /// The place of decryption.
        by: Opened,
    },
}

/// Bytes of the server's stream, counted from its first record.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Span {
    /// The first byte.
    pub from: u32,
    /// One past the last byte.
    pub to: u32,
}

impl Span {
    /// Returns the number of bytes.
    pub fn len(self) -> u32 {
        self.to - self.from
    }

    /// Returns whether there are no bytes.
    pub fn is_empty(self) -> bool {
        self.to == self.from
    }

    /// Returns whether both spans share a byte.
    pub fn meets(self, other: Span) -> bool {
        self.from < other.to && other.from < self.to
    }
}

/// The work to make a NIC send bytes that it does not expect.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StateRebuild {
    /// DUMPs of the record's earlier bytes.
    pub dumps: u64,
    /// Bytes in the DUMPs: read over PCIe and encrypted, but not sent.
    pub dumped_bytes: u64,
}

/// The place of a record's decryption.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Opened {
    /// The NIC alone.
    ByNic,
    /// The NIC in part, software for the rest.
    InPart,
    /// Software alone.
    InSoftware,
}

impl Story {
    /// Returns the name of the packets with these bytes: `P3`, or `P3-P5`.
    pub fn name(&self, bytes: Span) -> String {
        let holds = |packet: &Span| packet.meets(bytes);
        let (first, last) = (self.packets.iter().position(holds), self.packets.iter().rposition(holds));
        // Bytes without a packet are named by their positions.
        match (first, last) {
            (Some(first), Some(last)) if first == last => format!("P{}", first + 1),
            (Some(first), Some(last)) => format!("P{}-P{}", first + 1, last + 1),
            _ => format!("bytes {} to {}", bytes.from, bytes.to),
        }
    }

    /// Returns the names of the records with these bytes: `record 2`, or `records 2 and 3`.
    pub fn records_of(&self, bytes: Span) -> String {
        let met = (0_u32..).zip(&self.records).filter(|(_, record)| record.meets(bytes));
        let numbers: Vec<String> = met.map(|(number, _)| number.to_string()).collect();
        format!("record{} {}", if numbers.len() > 1 { "s" } else { "" }, numbers.join(" and "))
    }

    /// Returns whether these bytes were posted before the event at `index`.
    pub fn is_again(&self, index: usize, bytes: Span) -> bool {
        let posted =
            |event: &Event| matches!(event.what, StoryStep::Posted { bytes: earlier, .. } if earlier.meets(bytes));
        self.events[..index].iter().any(posted)
    }
}
