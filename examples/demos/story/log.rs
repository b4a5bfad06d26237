//! What all that look on write down, and the story that it makes.

use crate::story::{Event, Rebuilt, Span, Story, What};
use offload_base::{Instant, Seq};
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// What is written down, for all that look on.
///
/// Invariant: before [`begin`](Log::begin) and after [`end`](Log::end) nothing is.
#[derive(Clone, Debug, Default)]
pub(super) struct Log(Arc<Mutex<Pages>>);

#[derive(Debug, Default)]
struct Pages {
    is_open: bool,
    /// When the first packet was posted, and the sequence number of its first byte.
    first: Option<(Instant, Seq)>,
    events: Vec<Event>,
    packets: Vec<Span>,
    records: BTreeMap<u64, Span>,
    /// What a question was announced about, until it comes.
    announced: Option<Span>,
    /// Where the records noted for it begin.
    noted: Vec<u32>,
    /// How many records were given out.
    opened: u64,
}

impl Pages {
    /// TLS knows where the record `number` begins: it notes that, if it is to.
    fn note_record(&mut self, at: Instant, number: u64) {
        let (Some(announced), Some(record)) = (self.announced, self.records.get(&number)) else { return };
        let header = record.from;
        if (announced.from..=announced.to).contains(&header) {
            self.noted.push(header);
            self.events.push(Event { at, what: What::Noted { header, number } });
        }
    }
}

impl Log {
    /// The server's next packet is the first of the story.
    pub(super) fn begin(&self) {
        self.pages().is_open = true;
    }

    /// The rest does not belong to it.
    pub(super) fn end(&self) {
        self.pages().is_open = false;
    }

    /// What was written.
    pub(super) fn story(&self) -> Story {
        let pages = self.pages();
        let mut events = pages.events.clone();
        // What the wire does is written down early, with the time of an arrival.
        events.sort_by_key(|event| event.at);
        Story { events, packets: pages.packets.clone(), records: pages.records.values().copied().collect() }
    }

    pub(super) fn note(&self, at: Instant, what: What) {
        let mut pages = self.pages();
        let (true, Some((first, _))) = (pages.is_open, pages.first) else { return };
        let at = Instant::ZERO + (at - first);
        if let What::Opened { number, .. } = what {
            pages.note_record(at, number);
            pages.opened = number + 1;
        }
        pages.events.push(Event { at, what });
        if let What::Announced(bytes) = what {
            (pages.announced, pages.noted) = (Some(bytes), Vec::new());
            // Those that were read before the news.
            (0..pages.opened).for_each(|number| pages.note_record(at, number));
        }
    }

    /// TLS has answered a question, from what it noted or not.
    pub(super) fn note_answer(&self, at: Instant, header: u32, number: Option<u64>) {
        let noted = {
            let mut pages = self.pages();
            pages.announced = None;
            core::mem::take(&mut pages.noted).contains(&header)
        };
        self.note(at, What::Answered { header, number, noted });
    }

    /// Where the story's stream has the byte at `seq`; `None` before its first one was sent.
    pub(super) fn place(&self, seq: Seq) -> Option<u32> {
        let (_, first) = self.pages().first?;
        seq.at_or_after(first).then(|| seq.distance_from(first))
    }

    pub(super) fn span(&self, seq: Seq, bytes: u32) -> Option<Span> {
        let from = self.place(seq)?;
        (bytes > 0).then_some(Span { from, to: from + bytes })
    }

    /// The server's driver has posted bytes of records.
    pub(super) fn note_posted(
        &self,
        now: Instant,
        seq: Seq,
        records: &[(u64, Seq, Seq)],
        bytes: u32,
        rebuilt: Option<Rebuilt>,
    ) {
        if !self.pages().is_open {
            return;
        }
        self.pages().first.get_or_insert((now, seq));
        let Some(posted) = self.span(seq, bytes) else { return };
        for (number, start, end) in records {
            if let Some(record) = self.span(*start, end.distance_from(*start)) {
                self.pages().records.insert(*number, record);
            }
        }
        self.note(now, What::Posted { bytes: posted, rebuilt });
    }

    /// The number of a packet that passes for the first time; those of a stream pass in order at first.
    pub(super) fn number_if_new(&self, bytes: Span) -> Option<usize> {
        let mut pages = self.pages();
        let is_new = pages.is_open && pages.packets.last().is_none_or(|last| last.to <= bytes.from);
        is_new.then(|| {
            pages.packets.push(bytes);
            pages.packets.len()
        })
    }

    fn pages(&self) -> MutexGuard<'_, Pages> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
