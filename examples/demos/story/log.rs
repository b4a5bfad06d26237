//! The log of all observers, and the story made from it.

use crate::story::{Event, Span, StateRebuild, Story, StoryStep};
use offload_base::{Instant, Seq};
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// The log shared by all observers.
///
/// Invariant: events are recorded only between [`begin`](Log::begin) and [`end`](Log::end).
#[derive(Clone, Debug, Default)]
pub(super) struct Log(Arc<Mutex<LogState>>);

#[derive(Debug, Default)]
struct LogState {
    is_open: bool,
    /// Time of the first posted packet, and the sequence number of its first byte.
    first: Option<(Instant, Seq)>,
    events: Vec<Event>,
    packets: Vec<Span>,
    records: BTreeMap<u64, Span>,
    /// The bytes of an announced question that has not come yet.
    announced: Option<Span>,
    /// Positions of record headers noted for that question.
    noted: Vec<u32>,
    /// Number of delivered records.
    opened: u64,
}

impl LogState {
    /// Records that TLS notes the header of record `number`, if the header lies in announced bytes.
    fn note_record(&mut self, at: Instant, number: u64) {
        let (Some(announced), Some(record)) = (self.announced, self.records.get(&number)) else { return };
        let header = record.from;
        if (announced.from..=announced.to).contains(&header) {
            self.noted.push(header);
            self.events.push(Event { at, what: StoryStep::Noted { header, number } });
        }
    }
}

impl Log {
    /// Starts recording. The server's next packet is the first of the story.
    pub(super) fn begin(&self) {
        self.pages().is_open = true;
    }

    /// Stops recording.
    pub(super) fn end(&self) {
        self.pages().is_open = false;
    }

    /// Returns the recorded story.
    pub(super) fn story(&self) -> Story {
        let pages = self.pages();
        let mut events = pages.events.clone();
        // Events of the wire are recorded early, with the time of the packet's arrival.
        events.sort_by_key(|event| event.at);
        Story { events, packets: pages.packets.clone(), records: pages.records.values().copied().collect() }
    }

    pub(super) fn note(&self, at: Instant, what: StoryStep) {
        let mut pages = self.pages();
        // Events before the first packet belong to the handshake.
        let (true, Some((first, _))) = (pages.is_open, pages.first) else { return };
        let at = Instant::ZERO + (at - first);
        if let StoryStep::Opened { number, .. } = what {
            pages.note_record(at, number);
            pages.opened = number + 1;
        }
        pages.events.push(Event { at, what });
        if let StoryStep::Announced(bytes) = what {
            (pages.announced, pages.noted) = (Some(bytes), Vec::new());
            // TLS also remembers records that were read before the announcement.
            (0..pages.opened).for_each(|number| pages.note_record(at, number));
        }
    }

    /// Records the answer to a question, and whether it was noted before.
    pub(super) fn note_answer(&self, at: Instant, header: u32, number: Option<u64>) {
        let noted = {
            let mut pages = self.pages();
            pages.announced = None;
            core::mem::take(&mut pages.noted).contains(&header)
        };
        self.note(at, StoryStep::Answered { header, number, noted });
    }

    /// Returns the stream position of the byte at `seq`, or `None` before the first byte was sent.
    pub(super) fn place(&self, seq: Seq) -> Option<u32> {
        let (_, first) = self.pages().first?;
        seq.at_or_after(first).then(|| seq.distance_from(first))
    }

    pub(super) fn span(&self, seq: Seq, bytes: u32) -> Option<Span> {
        let from = self.place(seq)?;
        (bytes > 0).then_some(Span { from, to: from + bytes })
    }

    /// Records that the server's driver posted bytes of records.
    pub(super) fn note_posted(
        &self,
        now: Instant,
        seq: Seq,
        records: &[(u64, Seq, Seq)],
        bytes: u32,
        rebuilt: Option<StateRebuild>,
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
        self.note(now, StoryStep::Posted { bytes: posted, rebuilt });
    }

    /// Returns the number of a packet that passes for the first time. Packets of a stream first pass in order.
    pub(super) fn number_if_new(&self, bytes: Span) -> Option<usize> {
        let mut pages = self.pages();
        // A retransmission begins before the end of the last new packet.
        let is_new = pages.is_open && pages.packets.last().is_none_or(|last| last.to <= bytes.from);
        is_new.then(|| {
            pages.packets.push(bytes);
            pages.packets.len()
        })
    }

    fn pages(&self) -> MutexGuard<'_, LogState> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
