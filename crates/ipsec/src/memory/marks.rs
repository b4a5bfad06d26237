//! The marks: how far an SA's numbers are written to the store, and how far ahead the next mark is.
//!
//! The marks of sent numbers are multiples of 2^20, and a new process continues after its mark. The marks of received
//! numbers are ahead by about one second of packets, at most to such a multiple. After a crash, packets between the
//! last received number and the mark are refused as replays. This affects only about a second of packets. A peer that
//! also restarts loses no packet, because it continues after the same multiple.

use core::time::Duration;
use offload_base::Instant;

/// The marks of an SA.
#[derive(Clone, Copy, Debug)]
pub(crate) struct SaMarks {
    /// The last written mark. `u64::MAX` if the SA has no store.
    up_to: u64,
    /// The distance of the next mark of received numbers.
    ahead: u64,
    /// Time of the last mark.
    written: Option<Instant>,
    /// Time of the next attempt, after a failed write.
    retry: Option<Instant>,
    /// The highest number of removed SAs that received by the same key and SPI.
    floor: u64,
}

impl SaMarks {
    /// The marks of an SA without a store.
    pub(crate) const NONE: SaMarks = SaMarks { up_to: u64::MAX, ahead: 0, written: None, retry: None, floor: 0 };

    /// Returns the marks of an SA with the last mark `number`.
    pub(crate) fn at(number: u64) -> SaMarks {
        SaMarks { up_to: number, ahead: 1, ..SaMarks::NONE }
    }

    /// Tests whether the SA has a store.
    pub(crate) fn are_kept(&self) -> bool {
        self.up_to != u64::MAX
    }

    /// Tests whether the last mark is beyond `number`.
    pub(crate) fn are_beyond(&self, number: u64) -> bool {
        self.are_kept() && self.up_to > number
    }

    /// Tests whether `number` may be used without another write.
    pub(crate) fn cover(&self, number: u64) -> bool {
        number <= self.up_to
    }

    /// Returns the mark to write before `number` is sent. `limit` is the SA's last number.
    pub(crate) fn for_sent(number: u64, limit: u64) -> u64 {
        number.checked_next_multiple_of(STEP).unwrap_or(limit).min(limit)
    }

    /// Returns the mark to write before `number` is accepted.
    pub(crate) fn for_received(&self, now: Instant, number: u64, limit: u64) -> u64 {
        number.saturating_add(self.next_ahead(now) - 1).min(SaMarks::for_sent(number, limit))
    }

    /// Tests whether a write may be attempted, after an earlier failure.
    pub(crate) fn may_try(&self, now: Instant) -> bool {
        self.retry.is_none_or(|retry| retry <= now)
    }

    /// Records a written mark.
    pub(crate) fn note(&mut self, now: Instant, number: u64) {
        *self =
            SaMarks { up_to: number, ahead: self.next_ahead(now), written: Some(now), retry: None, floor: self.floor };
    }

    /// Records a failed write.
    pub(crate) fn note_failure(&mut self, now: Instant) {
        self.retry = Some(now + BETWEEN_TRIES);
    }

    /// Returns the lowest mark that the store must keep, if the SA has used numbers up to `number`.
    pub(crate) fn at_least(&self, number: u64) -> u64 {
        number.max(self.floor)
    }

    /// Records that a removed SA with the same key and SPI had received numbers up to `number`.
    pub(crate) fn remember(&mut self, number: u64) {
        self.floor = self.floor.max(number);
    }

    /// Records that the exact number is written.
    pub(crate) fn set_exact(&mut self, number: u64) {
        (self.up_to, self.ahead) = (number, 1);
    }

    /// Doubles the distance if the last mark lasted less than a second, and halves it for every four seconds that the
    /// mark lasted.
    fn next_ahead(&self, now: Instant) -> u64 {
        let Some(written) = self.written else { return self.ahead };
        let lasted = now.saturating_since(written);
        if lasted < MIN_MARK_TIME {
            return (self.ahead * 2).min(STEP);
        }
        // The shift is limited to 63, because a larger one would overflow after a long pause.
        let halvings = (lasted.as_nanos() / MAX_MARK_TIME.as_nanos()).min(63) as u32;
        (self.ahead >> halvings).max(1)
    }
}

/// Distance between marks of sent numbers.
pub(crate) const STEP: u64 = 1 << 20;
const MIN_MARK_TIME: Duration = Duration::from_secs(1);
const MAX_MARK_TIME: Duration = Duration::from_secs(4);
const BETWEEN_TRIES: Duration = Duration::from_secs(1);

#[cfg(test)]
mod tests {
    use super::*;

    fn at(milliseconds: u64) -> Instant {
        Instant::ZERO + Duration::from_millis(milliseconds)
    }

    /// Counts the marks written for packets numbered from 1 on, one every `gap` milliseconds. Also returns how far the
    /// last mark was ahead.
    fn written(packets: u64, gap: u64) -> (u64, u64) {
        let (mut marks, mut written) = (SaMarks::at(0), 0);
        for number in 1..=packets {
            if !marks.cover(number) {
                // As the receive path does: a write only when the number is beyond the last mark.
                let mark = marks.for_received(at(number * gap), number, u64::MAX);
                assert!((number..=number + STEP).contains(&mark));
                marks.note(at(number * gap), mark);
                written += 1;
            }
        }
        (written, marks.up_to - packets)
    }

    #[test]
    fn received_numbers_are_written_about_once_a_second() {
        let (often, ahead) = written(100_000, 1);
        assert!((30..160).contains(&often), "100 seconds: {often}");
        assert!(ahead < 8_000, "{ahead}");
        let (rarely, ahead) = written(100, 10_000);
        assert_eq!((rarely, ahead), (100, 0), "a packet each ten seconds");
    }

    #[test]
    fn distance_stays_if_a_mark_lasts_one_to_four_seconds() {
        let mut marks = SaMarks { ahead: 16, ..SaMarks::at(0) };
        marks.note(at(0), 1);
        let lasted = |milliseconds| marks.next_ahead(at(milliseconds));
        assert_eq!([999, 1000, 3999, 4000, 8000].map(lasted), [32, 16, 16, 8, 4]);
    }

    #[test]
    fn receiver_mark_does_not_exceed_the_senders() {
        for number in [1, STEP - 1, STEP, STEP + 1, 5 * STEP - 3] {
            let mut marks = SaMarks::at(0);
            for _ in 0..40 {
                let mark = marks.for_received(at(0), number, u64::MAX);
                assert!(mark <= SaMarks::for_sent(number, u64::MAX) && mark >= number);
                marks.note(at(0), mark);
            }
        }
    }

    #[test]
    fn marks_of_sent_numbers_stop_at_the_last_number() {
        let limit = u64::from(u32::MAX);
        let marks = [1, STEP, STEP + 1, limit].map(|number| SaMarks::for_sent(number, limit));
        assert_eq!(marks, [STEP, STEP, 2 * STEP, limit]);
        assert_eq!(SaMarks::for_sent(u64::MAX - 1, u64::MAX), u64::MAX);
        // A receiver's mark must not exceed the limit either, because no SA could continue from it.
        let mut marks = SaMarks::at(limit - 50);
        for number in [limit - 49, limit - 40, limit - 20, limit - 1] {
            let mark = marks.for_received(at(0), number, limit);
            assert!((number..=limit).contains(&mark), "{mark}");
            marks.note(at(0), mark);
        }
        assert_eq!(marks.up_to, limit);
    }

    #[test]
    fn failed_write_is_retried_after_a_second() {
        let mut marks = SaMarks::at(0);
        assert!(marks.may_try(at(0)) && !marks.cover(1));
        marks.note_failure(at(0));
        assert!(!marks.may_try(at(999)) && marks.may_try(at(1000)));
        marks.note(at(1000), 5);
        assert!(marks.may_try(at(1000)) && marks.cover(5) && !marks.cover(6));
    }
}
