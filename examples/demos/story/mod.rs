//! One TLS connection between two emulated hosts, told packet by packet: what the NICs, the drivers and the TLS layer
//! made of a packet that was lost and of one that was overtaken.
//!
//! - [`course`]: the two hosts, and what happens on them;
//! - `watch`: who looks on: a driver around a driver, a port around a device, and a wire that loses what it is told to;
//!   `log`: what they write down;
//! - [`reading`]: what a NIC made of a packet, from what it counted;
//! - [`table`]: the story in words; [`picture`]: as a sequence picture, in SVG.
//!
//! Nothing here changes what it looks at: drivers, devices and TLS are those that every other example runs on. Only
//! questions of the NIC may be held up on their way, as a slow device holds them up.

pub mod course;
mod log;
pub mod picture;
pub mod reading;
pub mod table;
mod watch;

use offload_base::Instant;
use reading::Made;

/// What happened on one connection from the server's first record on.
///
/// ```
/// use offload_demos::story::course::Course;
/// use offload_demos::story::{Opened, What};
///
/// let story = Course { lose: None, hold_back: None, ..Course::default() }.run()?;
/// assert_eq!(story.records.len(), 9);
/// let all_by_nic = story.events.iter().all(|event| match event.what {
///     What::Opened { by, .. } => by == Opened::ByNic,
///     _ => true,
/// });
/// assert!(all_by_nic, "nothing happened to any packet");
/// # Ok::<(), std::io::Error>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Story {
    /// In the order they happened.
    pub events: Vec<Event>,
    /// The packets with data, numbered from 1 in the order of the stream.
    pub packets: Vec<Span>,
    /// The records, numbered from 0 as TLS does.
    pub records: Vec<Span>,
}

/// Something that happened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Event {
    /// When, from the server's first packet on.
    pub at: Instant,
    /// What, and thereby where.
    pub what: What,
}

/// What can happen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum What {
    /// The server's driver posted bytes to its NIC.
    Posted {
        /// Which; the NIC cuts packets from them.
        bytes: Span,
        /// They are not what the NIC expects next, so the driver had to rebuild its state.
        rebuilt: Option<Rebuilt>,
    },
    /// The wire lost a packet.
    Lost(Span),
    /// The wire held a packet back, so that another overtook it.
    HeldBack(Span),
    /// A packet came to the client's NIC.
    Arrived {
        /// Its bytes.
        bytes: Span,
        /// What the NIC made of it.
        made: Made,
    },
    /// The client's driver told its TLS layer that a question about these bytes will come, so that it notes what records
    /// begin there.
    Announced(Span),
    /// The client's TLS layer noted where a record begins, for a question that was announced.
    Noted {
        /// Where.
        header: u32,
        /// The record's number.
        number: u64,
    },
    /// The client's driver asked its TLS layer whether a record begins here.
    Asked {
        /// Where.
        header: u32,
    },
    /// The client's TLS layer told the NIC.
    Answered {
        /// About which place.
        header: u32,
        /// The number of the record that begins there; `None`: none does.
        number: Option<u64>,
        /// It was noted before it was asked for.
        noted: bool,
    },
    /// The client's TLS layer gave out a record.
    Opened {
        /// Its number.
        number: u64,
        /// Who had decrypted it.
        by: Opened,
    },
}

/// Bytes of the server's stream, counted from its first record on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Span {
    /// The first.
    pub from: u32,
    /// One past the last.
    pub to: u32,
}

impl Span {
    /// How many bytes.
    pub fn len(self) -> u32 {
        self.to - self.from
    }

    /// Whether there are none.
    pub fn is_empty(self) -> bool {
        self.to == self.from
    }

    /// Whether any byte is in both.
    pub fn meets(self, other: Span) -> bool {
        self.from < other.to && other.from < self.to
    }
}

/// What it took to have a NIC send bytes that it does not expect.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rebuilt {
    /// DUMPs of the record's earlier bytes.
    pub dumps: u64,
    /// Bytes in them: read over PCIe, encrypted, not sent.
    pub dumped_bytes: u64,
}

/// Who decrypted a record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Opened {
    /// The NIC, all of it.
    ByNic,
    /// The NIC some of it, and software the rest.
    InPart,
    /// Software, all of it.
    InSoftware,
}

impl Story {
    /// What packets with these bytes are called: `P3`, or `P3-P5`.
    pub fn name(&self, bytes: Span) -> String {
        let holds = |packet: &Span| packet.meets(bytes);
        let (first, last) = (self.packets.iter().position(holds), self.packets.iter().rposition(holds));
        match (first, last) {
            (Some(first), Some(last)) if first == last => format!("P{}", first + 1),
            (Some(first), Some(last)) => format!("P{}-P{}", first + 1, last + 1),
            _ => format!("bytes {} to {}", bytes.from, bytes.to),
        }
    }

    /// The records that these bytes belong to: `record 2`, or `records 2 and 3`.
    pub fn records_of(&self, bytes: Span) -> String {
        let met = (0_u32..).zip(&self.records).filter(|(_, record)| record.meets(bytes));
        let numbers: Vec<String> = met.map(|(number, _)| number.to_string()).collect();
        format!("record{} {}", if numbers.len() > 1 { "s" } else { "" }, numbers.join(" and "))
    }

    /// Whether these bytes were posted before, by the event at `index`.
    pub fn is_again(&self, index: usize, bytes: Span) -> bool {
        let posted = |event: &Event| matches!(event.what, What::Posted { bytes: earlier, .. } if earlier.meets(bytes));
        self.events[..index].iter().any(posted)
    }
}
