//! Resynchronization of a receive context that lost its position in the stream.
//!
//! - [`ResyncHints`]: with [`ResyncMode::CoreHint`](offload_api::ResyncMode::CoreHint), the times at which the device
//!   is told the start of the next record;
//! - [`HeaderLog`]: with [`ResyncMode::Asynchronous`](offload_api::ResyncMode::Asynchronous), the headers about which
//!   the device may ask later.
//!
//! Limits and counts equal the values of Linux' `net/tls/tls_device.c`.

use crate::record::receive::{OpenedBy, Record};
use offload_api::{Handle, ResyncMode};
use offload_base::Seq;
use smallvec::SmallVec;

/// Resynchronization state of one receive context.
#[derive(Debug, Default)]
pub(super) struct Resync {
    mode: ResyncMode,
    /// Start of the context, until a record at or after that position has been released. Failures before the start are
    /// not the context's. The comparison is valid only for a while, because sequence numbers wrap.
    start: Option<Seq>,
    pub(super) hints: ResyncHints,
    pub(super) log: HeaderLog,
    /// The context's open question: whether a record begins at this position.
    pub(super) question: Option<(Handle, Seq)>,
}

impl Resync {
    /// Creates the state of a context that begins at `start`.
    pub(super) fn new(mode: ResyncMode, start: Seq) -> Resync {
        Resync { mode, start: Some(start), ..Resync::default() }
    }

    /// Notes a released record. Returns false if an announced question is given up.
    pub(super) fn note(&mut self, record: &Record) -> bool {
        if self.start.is_some_and(|start| record.start.before(start)) {
            return true;
        }
        self.start = None;
        match (self.mode, record.opened) {
            (ResyncMode::CoreHint, OpenedBy::InSoftware) => self.hints.note_encrypted(),
            (ResyncMode::CoreHint, OpenedBy::ByDevice | OpenedBy::InPart) => self.hints.note_decrypted(),
            (ResyncMode::Asynchronous, _) => return self.log.note(record.start, record.number),
            _ => {}
        }
        true
    }
}

/// Counts records without decrypted bytes, and decides when a hint is due: at the third in a row, the fifth, the ninth
/// and so on. A hint may come too late for the device, and each hint costs the device work.
///
/// Invariant: counting restarts after a record of which the device decrypted any byte.
#[derive(Debug)]
pub(super) struct ResyncHints {
    /// Whether the context is new or decrypted something since the last record without decrypted bytes.
    fresh: bool,
    failed: u32,
    target: u32,
    /// Whether a hint is due when the socket is drained. Earlier the device is past any position it could be told.
    due: bool,
}

impl Default for ResyncHints {
    fn default() -> ResyncHints {
        ResyncHints { fresh: true, failed: 0, target: 0, due: false }
    }
}

impl ResyncHints {
    /// Notes a record of which the device decrypted some bytes.
    pub(super) fn note_decrypted(&mut self) {
        self.fresh = true;
    }

    /// Notes a record without decrypted bytes.
    pub(super) fn note_encrypted(&mut self) {
        // Records before the hint is given do not count, because the device cannot have used it yet.
        if self.due {
            return;
        }
        if core::mem::take(&mut self.fresh) {
            self.failed = 1;
            self.target = FIRST_INTERVAL;
            return;
        }
        self.failed += 1;
        if self.failed <= self.target {
            return;
        }
        self.due = true;
        self.target = if self.target < LAST_INTERVAL { self.target * 2 } else { self.target + LAST_INTERVAL };
    }

    /// Returns whether a hint is due.
    pub(super) fn is_due(&self) -> bool {
        self.due
    }

    /// Notes that a hint was given.
    pub(super) fn note_given(&mut self) {
        self.due = false;
    }
}

/// The headers in the packet at which a device lost its position, recorded until the device asks about one of them.
///
/// Invariant: each logged position is the start of a record. The log has at most [`LOGGED`] entries and lasts for at
/// most [`RECORDS_TO_WAIT`] records.
#[derive(Debug, Default)]
pub(super) struct HeaderLog {
    range: Option<(Seq, Seq)>,
    headers: SmallVec<[(Seq, u64); 2]>,
    records: u32,
}

impl HeaderLog {
    /// Notes that the device lost its position at the packet `from..to`.
    pub(super) fn start(&mut self, from: Seq, to: Seq) {
        *self = HeaderLog { range: Some((from, to)), ..HeaderLog::default() };
    }

    /// Discards the log: the device will not ask.
    pub(super) fn cancel(&mut self) {
        *self = HeaderLog::default();
    }

    /// Notes that record `number` begins at `header`. Returns false if the log is given up after too many records.
    pub(super) fn note(&mut self, header: Seq, number: u64) -> bool {
        let Some((from, to)) = self.range else { return true };
        if header.before(from) {
            return true;
        }
        // A device that never asks must not keep the log alive.
        if self.records == RECORDS_TO_WAIT {
            self.cancel();
            return false;
        }
        self.records += 1;
        if header.at_or_before(to) && self.headers.len() < LOGGED {
            self.headers.push((header, number));
        }
        true
    }

    /// Returns the number of the record at `header`, if it was logged, and discards the log.
    pub(super) fn resolve(&mut self, header: Seq) -> Option<u64> {
        let found = self.headers.iter().find(|(at, _)| *at == header).map(|(_, number)| *number);
        self.cancel();
        found
    }
}

/// Records without decrypted bytes before the second hint.
const FIRST_INTERVAL: u32 = 2;
/// Maximum number of records between hints.
const LAST_INTERVAL: u32 = 128;
/// Maximum number of logged headers.
const LOGGED: usize = 13;
/// Maximum number of records that may begin before the device asks.
const RECORDS_TO_WAIT: u32 = 65_535;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::record::ContentType;

    /// Returns the records, counted from 1, after which a hint is due, out of `records` records without decrypted
    /// bytes.
    fn fired(hints: &mut ResyncHints, records: u32) -> Vec<u32> {
        (1..=records)
            .filter(|_| {
                hints.note_encrypted();
                let due = hints.is_due();
                hints.note_given();
                due
            })
            .collect()
    }

    fn record(start: Seq, number: u64) -> Record {
        let (content_type, opened) = (ContentType::ApplicationData, OpenedBy::InSoftware);
        Record { start, number, opened, content_type, content_len: 16_384, wire_len: 16_406 }
    }

    #[test]
    fn a_context_is_helped_however_far_its_stream_has_come() {
        for mode in [ResyncMode::CoreHint, ResyncMode::Asynchronous] {
            let start = Seq(u32::MAX - 5);
            let mut resync = Resync::new(mode, start);
            resync.log.start(start, start + 100);
            assert!(resync.note(&record(start + u32::MAX, 0)), "from before the context");
            assert_eq!((resync.hints.failed, resync.log.records), (0, 0));
            // One record every 512 MiB, 8 GiB in total, so that sequence numbers wrap.
            for number in 1..=16u32 {
                let at = start + (number << 29);
                resync.hints = ResyncHints::default();
                resync.log.start(at, at + 100);
                (0..600).for_each(|later| assert!(resync.note(&record(at + later * 20, number.into()))));
                let helped = match mode {
                    ResyncMode::CoreHint => resync.hints.is_due(),
                    _ => resync.log.resolve(at + 20) == Some(number.into()),
                };
                assert!(helped, "{mode:?}, {} MiB behind the start", number << 9);
            }
        }
    }

    #[test]
    fn hints_back_off_to_one_in_128_records() {
        let expected = [3, 5, 9, 17, 33, 65, 129, 257, 385, 513];
        let mut hints = ResyncHints::default();
        assert_eq!(fired(&mut hints, 600), expected);
        hints.note_decrypted();
        assert_eq!(fired(&mut hints, 600), expected, "anew, once the device did something");
    }

    #[test]
    fn a_hint_stays_due_until_it_is_given() {
        let mut hints = ResyncHints::default();
        (0..20).for_each(|_| hints.note_encrypted());
        assert!(hints.is_due());
        hints.note_given();
        hints.note_encrypted();
        assert!(!hints.is_due(), "records that came while it was due do not count");
        hints.note_encrypted();
        assert!(hints.is_due(), "the fifth that counts");
    }

    #[test]
    fn headers_of_the_packet_are_noted_and_found_long_after() {
        let mut log = HeaderLog::default();
        assert!(log.note(Seq(10), 1), "nobody is interested");
        assert_eq!(log.resolve(Seq(10)), None);
        log.start(Seq(u32::MAX - 10), Seq(30));
        assert!(log.note(Seq(u32::MAX - 11), 2), "before it");
        for (number, at) in (3..).zip([u32::MAX - 10, 5, 30, 31]) {
            assert!(log.note(Seq(at), number));
        }
        (0..60_000).for_each(|later| assert!(log.note(Seq(100 + later), u64::from(later))));
        assert_eq!(log.headers.len(), 3, "one was before the packet, the others after it");
        assert_eq!(log.resolve(Seq(30)), Some(5));
        assert_eq!(log.resolve(Seq(5)), None, "it is done");
    }

    #[test]
    fn no_more_than_thirteen_are_noted() {
        let mut log = HeaderLog::default();
        log.start(Seq(0), Seq(1000));
        (0..20).for_each(|number| assert!(log.note(Seq(number as u32 * 23), number)));
        assert_eq!(log.headers.len(), 13);
        assert_eq!(log.resolve(Seq(13 * 23)), None);
    }

    #[test]
    fn a_question_that_never_comes_is_given_up() {
        let mut log = HeaderLog::default();
        log.start(Seq(0), Seq(1000));
        assert!((0..65_535).all(|number| log.note(Seq(number), number.into())));
        assert!(!log.note(Seq(65_535), 65_535));
        assert_eq!(log.resolve(Seq(0)), None);
        log.start(Seq(0), Seq(1000));
        assert!(log.note(Seq(7), 1));
        log.cancel();
        assert_eq!(log.resolve(Seq(7)), None, "cancelled by the driver");
    }
}
