//! How far the numbers of an SA are written down, and how far ahead they are next.
//!
//! Sent numbers are written ahead to the next multiple of 2^20: a process that starts anew goes on behind it. Received ones
//! are written ahead by as much as comes in about a second, at most to that multiple: after a crash, what is behind the
//! mark is refused as if it had been there. So it is little of a quiet peer, and nothing of one that starts anew itself, for
//! that goes on behind the same multiple.

use core::time::Duration;
use offload_base::Instant;

/// How far numbers are written down.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Marks {
    /// Up to here. All of them where nothing is to be written.
    up_to: u64,
    /// By so much more than is needed the next mark of received numbers is.
    ahead: u64,
    /// When the last one was written.
    written: Option<Instant>,
    /// Before then, nobody tries again what failed.
    retry: Option<Instant>,
    /// Up to here, SAs had numbers that received by the same key and SPI and are gone.
    floor: u64,
}

impl Marks {
    /// Of an SA whose numbers end with the process.
    pub(crate) const NONE: Marks = Marks { up_to: u64::MAX, ahead: 0, written: None, retry: None, floor: 0 };

    /// Of one whose numbers are written down up to `number`.
    pub(crate) fn at(number: u64) -> Marks {
        Marks { up_to: number, ahead: 1, ..Marks::NONE }
    }

    /// Whether there is a place where they are written down.
    pub(crate) fn are_kept(&self) -> bool {
        self.up_to != u64::MAX
    }

    /// Whether they are written down beyond `number`.
    pub(crate) fn are_beyond(&self, number: u64) -> bool {
        self.are_kept() && self.up_to > number
    }

    /// Whether `number` may be used as it is.
    pub(crate) fn cover(&self, number: u64) -> bool {
        number <= self.up_to
    }

    /// Up to where numbers are to be written before `number` is sent, of which there are none behind `limit`.
    pub(crate) fn for_sent(number: u64, limit: u64) -> u64 {
        number.checked_next_multiple_of(STEP).unwrap_or(limit).min(limit)
    }

    /// The same before `number` is accepted.
    pub(crate) fn for_received(&self, now: Instant, number: u64, limit: u64) -> u64 {
        number.saturating_add(self.next_ahead(now) - 1).min(Marks::for_sent(number, limit))
    }

    /// Whether it is time to try again, if it failed before.
    pub(crate) fn may_try(&self, now: Instant) -> bool {
        self.retry.is_none_or(|retry| retry <= now)
    }

    /// They are written down up to `number`.
    pub(crate) fn note(&mut self, now: Instant, number: u64) {
        *self =
            Marks { up_to: number, ahead: self.next_ahead(now), written: Some(now), retry: None, floor: self.floor };
    }

    /// They could not be written down.
    pub(crate) fn note_failure(&mut self, now: Instant) {
        self.retry = Some(now + BETWEEN_TRIES);
    }

    /// What has to stay written down of numbers up to `number`.
    pub(crate) fn at_least(&self, number: u64) -> u64 {
        number.max(self.floor)
    }

    /// Another SA that received by the same key and SPI is gone, and had numbers up to `number`.
    pub(crate) fn remember(&mut self, number: u64) {
        self.floor = self.floor.max(number);
    }

    /// As it stands, they are written down exactly.
    pub(crate) fn settle(&mut self, number: u64) {
        (self.up_to, self.ahead) = (number, 1);
    }

    /// Twice as much if the last mark did not last for long, and half as much for each time that it did too long.
    fn next_ahead(&self, now: Instant) -> u64 {
        let Some(written) = self.written else { return self.ahead };
        let lasted = now.saturating_since(written);
        if lasted < LASTS_AT_LEAST {
            return (self.ahead * 2).min(STEP);
        }
        let halvings = (lasted.as_nanos() / LASTS_AT_MOST.as_nanos()).min(63) as u32;
        (self.ahead >> halvings).max(1)
    }
}

/// Numbers between marks of what is sent.
pub(crate) const STEP: u64 = 1 << 20;
const LASTS_AT_LEAST: Duration = Duration::from_secs(1);
const LASTS_AT_MOST: Duration = Duration::from_secs(4);
const BETWEEN_TRIES: Duration = Duration::from_secs(1);

#[cfg(test)]
mod tests {
    use super::*;

    fn at(milliseconds: u64) -> Instant {
        Instant::ZERO + Duration::from_millis(milliseconds)
    }

    /// Marks written for packets numbered from 1 on, one each `gap` milliseconds; the last numbers that were ahead.
    fn written(packets: u64, gap: u64) -> (u64, u64) {
        let (mut marks, mut written) = (Marks::at(0), 0);
        for number in 1..=packets {
            if !marks.cover(number) {
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
    fn marks_that_last_from_one_second_to_four_are_as_far_ahead_as_the_last() {
        let mut marks = Marks { ahead: 16, ..Marks::at(0) };
        marks.note(at(0), 1);
        let lasted = |milliseconds| marks.next_ahead(at(milliseconds));
        assert_eq!([999, 1000, 3999, 4000, 8000].map(lasted), [32, 16, 16, 8, 4]);
    }

    #[test]
    fn no_mark_of_a_receiver_is_behind_where_a_sender_goes_on() {
        for number in [1, STEP - 1, STEP, STEP + 1, 5 * STEP - 3] {
            let mut marks = Marks::at(0);
            for _ in 0..40 {
                let mark = marks.for_received(at(0), number, u64::MAX);
                assert!(mark <= Marks::for_sent(number, u64::MAX) && mark >= number);
                marks.note(at(0), mark);
            }
        }
    }

    #[test]
    fn marks_of_sent_numbers_end_with_the_numbers() {
        let limit = u64::from(u32::MAX);
        let marks = [1, STEP, STEP + 1, limit].map(|number| Marks::for_sent(number, limit));
        assert_eq!(marks, [STEP, STEP, 2 * STEP, limit]);
        assert_eq!(Marks::for_sent(u64::MAX - 1, u64::MAX), u64::MAX);
        // Nor is a receiver's mark one that no SA could go on from.
        let mut marks = Marks::at(limit - 50);
        for number in [limit - 49, limit - 40, limit - 20, limit - 1] {
            let mark = marks.for_received(at(0), number, limit);
            assert!((number..=limit).contains(&mark), "{mark}");
            marks.note(at(0), mark);
        }
        assert_eq!(marks.up_to, limit);
    }

    #[test]
    fn what_failed_is_tried_again_after_a_second() {
        let mut marks = Marks::at(0);
        assert!(marks.may_try(at(0)) && !marks.cover(1));
        marks.note_failure(at(0));
        assert!(!marks.may_try(at(999)) && marks.may_try(at(1000)));
        marks.note(at(1000), 5);
        assert!(marks.may_try(at(1000)) && marks.cover(5) && !marks.cover(6));
    }
}
