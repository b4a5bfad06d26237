//! Helping a receive context that lost its place: the parts of it that keep a state of their own.
//!
//! - [`Hints`]: with [`ResyncMode::CoreHint`](offload_api::ResyncMode::CoreHint), when to tell the device where the next
//!   record begins;
//! - [`HeaderLog`]: with [`ResyncMode::Asynchronous`](offload_api::ResyncMode::Asynchronous), the headers that it may ask
//!   about later.
//!
//! Limits and counts are those of Linux' `net/tls/tls_device.c`.

use crate::record::receive::{Opened, Record};
use offload_api::{Handle, ResyncMode};
use offload_base::Seq;
use smallvec::SmallVec;

/// What is kept about one receive context.
#[derive(Debug, Default)]
pub(super) struct Resync {
    mode: ResyncMode,
    /// Where the context begins, until a record that begins there or later was given out; what comes before is no failure
    /// of its. Sequence numbers come round, so they are not compared with it for longer.
    start: Option<Seq>,
    pub(super) hints: Hints,
    pub(super) log: HeaderLog,
    /// Where the context thinks a record begins, and waits to be told.
    pub(super) question: Option<(Handle, Seq)>,
}

impl Resync {
    /// For a context that begins at `start`.
    pub(super) fn new(mode: ResyncMode, start: Seq) -> Resync {
        Resync { mode, start: Some(start), ..Resync::default() }
    }

    /// A record was given out. False: a question that was announced long ago will not come any more.
    pub(super) fn note(&mut self, record: &Record) -> bool {
        if self.start.is_some_and(|start| record.start.before(start)) {
            return true;
        }
        self.start = None;
        match (self.mode, record.opened) {
            (ResyncMode::CoreHint, Opened::InSoftware) => self.hints.note_encrypted(),
            (ResyncMode::CoreHint, Opened::ByDevice | Opened::InPart) => self.hints.note_decrypted(),
            (ResyncMode::Asynchronous, _) => return self.log.note(record.start, record.number),
            _ => {}
        }
        true
    }
}

/// Counts records of nothing but ciphertext, and says when a hint is due: at the third in a row, the fifth, the ninth,
/// and so on, for one hint may come too late for the device, and each costs it something.
///
/// Invariant: after a record of which the device decrypted anything, it begins anew.
#[derive(Debug)]
pub(super) struct Hints {
    /// The device did something since the last record of nothing but ciphertext, or is new.
    fresh: bool,
    failed: u32,
    target: u32,
    /// A hint is due, as soon as the socket has drained: before, the device is past whatever it could be told.
    due: bool,
}

impl Default for Hints {
    fn default() -> Hints {
        Hints { fresh: true, failed: 0, target: 0, due: false }
    }
}

impl Hints {
    /// A record came of which the device decrypted something.
    pub(super) fn note_decrypted(&mut self) {
        self.fresh = true;
    }

    /// A record came of nothing but ciphertext.
    pub(super) fn note_encrypted(&mut self) {
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

    /// Whether to give a hint.
    pub(super) fn is_due(&self) -> bool {
        self.due
    }

    /// It was given.
    pub(super) fn note_given(&mut self) {
        self.due = false;
    }
}

/// The headers in the packet with which a device lost its place, noted until it says which of them it means.
///
/// Invariant: no header is noted that does not begin a record, at most [`LOGGED`] are, and none for longer than
/// [`RECORDS_TO_WAIT`] records.
#[derive(Debug, Default)]
pub(super) struct HeaderLog {
    range: Option<(Seq, Seq)>,
    headers: SmallVec<[(Seq, u64); 2]>,
    records: u32,
}

impl HeaderLog {
    /// The device lost its place with the packet from `from` to `to`.
    pub(super) fn start(&mut self, from: Seq, to: Seq) {
        *self = HeaderLog { range: Some((from, to)), ..HeaderLog::default() };
    }

    /// The device will not ask.
    pub(super) fn cancel(&mut self) {
        *self = HeaderLog::default();
    }

    /// Record `number` begins at `header`. False: too many have, and nobody asked.
    pub(super) fn note(&mut self, header: Seq, number: u64) -> bool {
        let Some((from, to)) = self.range else { return true };
        if header.before(from) {
            return true;
        }
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

    /// The device asks about `header`: the number of the record that begins there, if it was noted. Then the log is done.
    pub(super) fn resolve(&mut self, header: Seq) -> Option<u64> {
        let found = self.headers.iter().find(|(at, _)| *at == header).map(|(_, number)| *number);
        self.cancel();
        found
    }
}

/// Records of nothing but ciphertext that are waited out at first.
const FIRST_INTERVAL: u32 = 2;
/// And at most.
const LAST_INTERVAL: u32 = 128;
/// Headers noted at most.
const LOGGED: usize = 13;
/// Records that may begin before the device asks.
const RECORDS_TO_WAIT: u32 = 65_535;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::record::ContentType;

    /// Which of `records` records of nothing but ciphertext have a hint follow, counted from 1.
    fn fired(hints: &mut Hints, records: u32) -> Vec<u32> {
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
        let (content_type, opened) = (ContentType::ApplicationData, Opened::InSoftware);
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
            // A record every 512 MiB: 8 GiB.
            for number in 1..=16u32 {
                let at = start + (number << 29);
                resync.hints = Hints::default();
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
        let mut hints = Hints::default();
        assert_eq!(fired(&mut hints, 600), expected);
        hints.note_decrypted();
        assert_eq!(fired(&mut hints, 600), expected, "anew, once the device did something");
    }

    #[test]
    fn a_hint_stays_due_until_it_is_given() {
        let mut hints = Hints::default();
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
