//! The scoreboard: all bytes sent and not yet acknowledged, with their state.
//!
//! Invariants:
//! - The entries are non-empty and contiguous, from the first unacknowledged position to the last sent one. Two
//!   adjacent SACKed entries are merged.
//! - The log holds the transmissions of all data in flight, in send order. Loss detection looks at the oldest ones
//!   only, and so at each transmission about once, however large the window is.

use core::ops::Range;
use offload_base::Instant;
use std::collections::VecDeque;

#[derive(Debug, Default)]
pub(crate) struct FlightScoreboard {
    sent: VecDeque<SentRange>,
    log: VecDeque<Transmission>,
    next_order: u64,
    in_flight: u64,
    lost: u64,
    sacked: u64,
    /// Position before which no lost entry begins.
    lost_hint: u64,
}

/// A range of sent data. Its last transmission was one packet, or a part of one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct SentRange {
    pub(crate) start: u64,
    pub(crate) end: u64,
    /// Number of its last transmission, counted from 0 per connection.
    pub(crate) order: u64,
    pub(crate) sent_at: Instant,
    pub(crate) retransmitted: bool,
    pub(crate) state: FlightRangeState,
}

/// The state of a sent range.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum FlightRangeState {
    /// Presumably on its way.
    InFlight,
    /// Lost, and to be sent again.
    Lost,
    /// Selectively acknowledged.
    Sacked,
}

#[derive(Clone, Copy, Debug)]
struct Transmission {
    order: u64,
    start: u64,
    end: u64,
}

/// Result of loss detection.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct OverdueData {
    /// Bytes newly declared lost.
    pub(crate) lost: u64,
    /// Whether the lost bytes include retransmissions.
    pub(crate) retransmits_lost: bool,
    /// Time at which the next transmission will be overdue. `None` if the log is empty.
    pub(crate) next: Option<Instant>,
}

impl FlightScoreboard {
    pub(crate) fn is_empty(&self) -> bool {
        self.sent.is_empty()
    }

    /// Returns the bytes believed to be in the network: RFC 6675's pipe.
    pub(crate) fn in_flight(&self) -> u64 {
        self.in_flight
    }

    /// Returns the bytes declared lost and not sent again.
    pub(crate) fn lost(&self) -> u64 {
        self.lost
    }

    /// Returns the selectively acknowledged bytes.
    pub(crate) fn sacked(&self) -> u64 {
        self.sacked
    }

    /// Returns the oldest entry.
    pub(crate) fn first(&self) -> Option<&SentRange> {
        self.sent.front()
    }

    /// Records the transmission of `range`, which must follow all sent data.
    pub(crate) fn push(&mut self, range: Range<u64>, now: Instant) {
        debug_assert!(self.sent.back().is_none_or(|last| last.end == range.start) && !range.is_empty());
        let order = self.log(range.clone());
        self.in_flight += range.end - range.start;
        self.sent.push_back(SentRange {
            start: range.start,
            end: range.end,
            order,
            sent_at: now,
            retransmitted: false,
            state: FlightRangeState::InFlight,
        });
    }

    /// Returns the first lost range.
    pub(crate) fn first_lost(&mut self) -> Option<Range<u64>> {
        if self.lost == 0 {
            return None;
        }
        let from = self.index_of(self.lost_hint);
        let found = self.sent.range(from..).find(|sent| sent.state == FlightRangeState::Lost)?;
        let range = found.start..found.end;
        self.lost_hint = range.start;
        Some(range)
    }

    /// Returns the last sent range. `None` if the peer has it.
    pub(crate) fn last(&self) -> Option<Range<u64>> {
        self.sent.back().filter(|last| last.state != FlightRangeState::Sacked).map(|last| last.start..last.end)
    }

    /// Records the retransmission of `range`, which must lie within one entry.
    pub(crate) fn resent(&mut self, range: Range<u64>, now: Instant) {
        let mut index = self.index_of(range.start);
        if self.sent[index].start < range.start {
            self.split(index, range.start);
            index += 1;
        }
        if self.sent[index].end > range.end {
            self.split(index, range.end);
        }
        let order = self.log(range.clone());
        // The retransmission counts as in flight again, although its first copy may still arrive.
        self.set(index, FlightRangeState::InFlight);
        let sent = &mut self.sent[index];
        debug_assert_eq!((sent.start, sent.end), (range.start, range.end));
        (sent.order, sent.sent_at, sent.retransmitted) = (order, now, true);
        self.trim_log();
    }

    /// Removes all entries before `position`. Calls `delivered` for each one not acknowledged before.
    pub(crate) fn acknowledge(&mut self, position: u64, mut delivered: impl FnMut(&SentRange)) {
        // Entries are removed from the front only, so an ACK costs as much as it acknowledges.
        while let Some(first) = self.sent.front().copied() {
            if first.start >= position {
                break;
            }
            if first.end > position {
                self.split(0, position);
                continue;
            }
            if first.state != FlightRangeState::Sacked {
                delivered(&first);
            }
            *self.bytes_in(first.state) -= first.end - first.start;
            self.sent.pop_front();
        }
        if self.sent.is_empty() {
            // An idle connection keeps no memory here.
            self.sent = VecDeque::new();
            self.log = VecDeque::new();
        }
        self.trim_log();
    }

    /// Marks `range` as selectively acknowledged. Calls `delivered` for each part not acknowledged before. An entry is
    /// split only between segments of `mss` bytes, because those arrive as a whole: forged reports of tiny ranges would
    /// make the scoreboard grow.
    pub(crate) fn sack(&mut self, range: Range<u64>, mss: u64, mut delivered: impl FnMut(&SentRange)) {
        let range = self.whole_segments(range, mss);
        if range.is_empty() {
            return;
        }
        let mut index = self.index_of(range.start);
        while let Some(sent) = self.sent.get(index).copied().filter(|sent| sent.start < range.end) {
            if sent.state == FlightRangeState::Sacked {
                index += 1;
                continue;
            }
            let (cut_front, cut_back) = (sent.start < range.start, sent.end > range.end);
            if (cut_front || cut_back) && self.sent.len() >= MAX_ENTRIES {
                // The number of entries is bounded, whatever a peer reports.
                index += 1;
                continue;
            }
            if cut_front {
                self.split(index, range.start);
                index += 1;
                continue;
            }
            if cut_back {
                self.split(index, range.end);
            }
            delivered(&self.sent[index]);
            self.set(index, FlightRangeState::Sacked);
            self.merge_with_next(index);
            if index > 0 && self.sent[index - 1].state == FlightRangeState::Sacked {
                index -= 1;
                self.merge_with_next(index);
            }
            index += 1;
        }
        self.trim_log();
    }

    /// Returns the whole segments within `range`. A segment with a FIN is whole without the FIN, because peers report
    /// data.
    fn whole_segments(&self, range: Range<u64>, mss: u64) -> Range<u64> {
        let sent = |position: u64| self.sent.get(self.index_of(position)).filter(|sent| sent.start < position);
        let start = sent(range.start)
            .map_or(range.start, |sent| sent.end.min(sent.start + (range.start - sent.start).next_multiple_of(mss)));
        let end = sent(range.end).map_or(range.end, |sent| {
            if range.end + 1 == sent.end { range.end } else { range.end - (range.end - sent.start) % mss }
        });
        start..end.max(start)
    }

    /// Declares lost all data that were sent before transmission `latest` and are overdue. `latest` is the order and
    /// end of the latest delivered transmission; `due` returns the time at which a transmission becomes overdue.
    pub(crate) fn expire(&mut self, latest: (u64, u64), now: Instant, due: impl Fn(Instant) -> Instant) -> OverdueData {
        let mut overdue = OverdueData::default();
        while let Some(oldest) = self.log.front().copied() {
            if oldest.order > latest.0 {
                // The log is sorted by send order, so the first undecided transmission ends the search.
                break;
            }
            let mut undecided = false;
            let mut index = self.index_of(oldest.start);
            while let Some(sent) = self.sent.get(index).copied().filter(|sent| sent.start < oldest.end) {
                if sent.order == oldest.order && sent.state == FlightRangeState::InFlight {
                    if (sent.order, sent.end) >= latest {
                        undecided = true;
                    } else if due(sent.sent_at) > now {
                        overdue.next = Some(due(sent.sent_at));
                        undecided = true;
                    } else {
                        overdue.lost += sent.end - sent.start;
                        overdue.retransmits_lost |= sent.retransmitted;
                        self.set(index, FlightRangeState::Lost);
                    }
                }
                index += 1;
            }
            if undecided {
                break;
            }
            self.log.pop_front();
        }
        overdue
    }

    /// Declares lost up to `bytes` at the start of the flight, if they are in flight. Without SACK, this is the
    /// information in duplicate ACKs. Returns the number of bytes.
    pub(crate) fn lose_first(&mut self, bytes: u64) -> u64 {
        let Some(first) = self.sent.front().copied().filter(|first| first.state == FlightRangeState::InFlight) else {
            return 0;
        };
        // Only the first segment is known to be lost; the rest of its packet may have arrived.
        if first.end - first.start > bytes {
            self.split(0, first.start + bytes);
        }
        self.set(0, FlightRangeState::Lost);
        self.sent[0].end - self.sent[0].start
    }

    /// Declares lost all data in flight.
    pub(crate) fn lose_all(&mut self) {
        for index in 0..self.sent.len() {
            if self.sent[index].state == FlightRangeState::InFlight {
                self.set(index, FlightRangeState::Lost);
            }
        }
        self.log.clear();
    }

    /// Declares lost all data, because the peer discarded data that it had selectively acknowledged.
    pub(crate) fn forget_sacks(&mut self) {
        for index in 0..self.sent.len() {
            self.set(index, FlightRangeState::Lost);
        }
        self.log.clear();
    }

    /// Returns all lost data to the state in flight, because the loss was spurious.
    pub(crate) fn undo_losses(&mut self) {
        for index in 0..self.sent.len() {
            if self.sent[index].state == FlightRangeState::Lost {
                self.set(index, FlightRangeState::InFlight);
            }
        }
        // Their log entries may be gone, so the log is rebuilt in send order.
        let mut log: Vec<Transmission> = self
            .sent
            .iter()
            .filter(|sent| sent.state == FlightRangeState::InFlight)
            .map(|sent| Transmission { order: sent.order, start: sent.start, end: sent.end })
            .collect();
        log.sort_by_key(|transmission| (transmission.order, transmission.start));
        self.log = log.into();
    }

    fn log(&mut self, range: Range<u64>) -> u64 {
        let order = self.next_order;
        self.next_order += 1;
        self.log.push_back(Transmission { order, start: range.start, end: range.end });
        order
    }

    /// Removes transmissions with no data in flight from the log, once they are its greater part. Without selective
    /// acknowledgments [`expire`](Self::expire) is never called, so nothing else would shorten the log.
    fn trim_log(&mut self) {
        if self.log.len() <= 2 * self.sent.len() + MAX_LOG_SLACK {
            return;
        }
        let sent = &self.sent;
        self.log.retain(|one| {
            let from = sent.partition_point(|sent| sent.end <= one.start);
            let mut covered = sent.range(from..).take_while(|sent| sent.start < one.end);
            covered.any(|sent| sent.order == one.order && sent.state == FlightRangeState::InFlight)
        });
    }

    /// Returns the index of the first entry that ends after `position`.
    fn index_of(&self, position: u64) -> usize {
        self.sent.partition_point(|sent| sent.end <= position)
    }

    fn split(&mut self, index: usize, at: u64) {
        let mut rest = self.sent[index];
        rest.start = at;
        self.sent[index].end = at;
        self.sent.insert(index + 1, rest);
    }

    /// Merges the SACKed entry at `index` with the next entry, if that is SACKed too.
    fn merge_with_next(&mut self, index: usize) {
        // Merged entries keep the scoreboard short while a peer acknowledges data piece by piece.
        let mergeable = self.sent.get(index + 1).is_some_and(|next| next.state == FlightRangeState::Sacked);
        if mergeable && let Some(next) = self.sent.remove(index + 1) {
            self.sent[index].end = next.end;
        }
    }

    fn set(&mut self, index: usize, state: FlightRangeState) {
        let sent = &mut self.sent[index];
        let (bytes, before, start) = (sent.end - sent.start, sent.state, sent.start);
        sent.state = state;
        *self.bytes_in(before) -= bytes;
        *self.bytes_in(state) += bytes;
        if state == FlightRangeState::Lost {
            self.lost_hint = self.lost_hint.min(start);
        }
    }

    fn bytes_in(&mut self, state: FlightRangeState) -> &mut u64 {
        match state {
            FlightRangeState::InFlight => &mut self.in_flight,
            FlightRangeState::Lost => &mut self.lost,
            FlightRangeState::Sacked => &mut self.sacked,
        }
    }
}

/// Number of entries beyond which a selective acknowledgment splits no entry.
const MAX_ENTRIES: usize = 1 << 16;
/// Log entries allowed beyond twice the scoreboard entries, so that a short log is not trimmed repeatedly.
const MAX_LOG_SLACK: usize = 32;

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeSet;

    fn check(flight: &FlightScoreboard) {
        let bytes = |state: FlightRangeState| {
            flight.sent.iter().filter(|sent| sent.state == state).map(|sent| sent.end - sent.start).sum::<u64>()
        };
        assert_eq!(
            [flight.in_flight, flight.lost, flight.sacked],
            [FlightRangeState::InFlight, FlightRangeState::Lost, FlightRangeState::Sacked].map(bytes)
        );
        for (one, next) in flight.sent.iter().zip(flight.sent.iter().skip(1)) {
            assert_eq!(one.end, next.start);
            assert!(
                one.state != FlightRangeState::Sacked || next.state != FlightRangeState::Sacked,
                "adjacent SACKed entries must be merged"
            );
        }
        assert!(flight.sent.iter().all(|sent| sent.start < sent.end));
        assert!(flight.log.iter().zip(flight.log.iter().skip(1)).all(|(a, b)| a.order <= b.order));
        let logged = |sent: &SentRange| {
            flight.log.iter().any(|one| one.order == sent.order && one.start <= sent.start && sent.end <= one.end)
        };
        assert!(flight.sent.iter().filter(|sent| sent.state == FlightRangeState::InFlight).all(logged));
        assert!(flight.log.len() <= 2 * flight.sent.len() + MAX_LOG_SLACK, "the log must stay short");
    }

    #[test]
    fn log_stays_short_without_loss_detection() {
        let mut flight = FlightScoreboard::default();
        for number in 0..1000 {
            flight.push(number * 10..number * 10 + 10, Instant::from_nanos(number));
            flight.acknowledge((number * 10).saturating_sub(50), |_| ());
            check(&flight);
        }
        flight.lose_first(10);
        for number in 0..1000 {
            flight.lose_first(10);
            let lost = flight.first_lost().unwrap();
            flight.resent(lost, Instant::from_nanos(1000 + number));
            check(&flight);
        }
    }

    #[test]
    fn earlier_transmissions_are_lost_when_overdue() {
        let at = Instant::from_nanos;
        let mut flight = FlightScoreboard::default();
        for number in 0..4 {
            flight.push(number * 10..number * 10 + 10, at(number));
        }
        flight.sack(20..30, 1, |_| ());
        let due = |sent: Instant| sent + core::time::Duration::from_nanos(5);
        let overdue = flight.expire((2, 30), at(5), due);
        assert_eq!(overdue, OverdueData { lost: 10, retransmits_lost: false, next: Some(at(6)) });
        assert_eq!(flight.first_lost(), Some(0..10));
        flight.resent(0..10, at(6));
        // The retransmission was sent after the delivered data, so nothing is known of it.
        assert_eq!(flight.expire((2, 30), at(100), due).lost, 10, "only the second transmission is lost");
        flight.sack(30..40, 1, |_| ());
        assert_eq!(flight.expire((3, 40), at(100), due).lost, 0);
        flight.resent(10..20, at(101));
        flight.sack(10..20, 1, |_| ());
        let overdue = flight.expire((5, 20), at(200), due);
        assert_eq!((overdue.lost, overdue.retransmits_lost), (10, true));
        check(&flight);
    }

    #[test]
    fn tiny_sack_ranges_split_no_entry() {
        let mut flight = FlightScoreboard::default();
        flight.push(1..9001, Instant::from_nanos(1));
        flight.push(9001..18_101, Instant::from_nanos(2));
        for start in (2..18_000).step_by(2) {
            flight.sack(start..start + 1, 1000, |_| panic!("a part of a segment must not be marked"));
        }
        assert_eq!(flight.sent.len(), 2);
        // Whole segments; the last one is shorter.
        let mut arrived = Vec::new();
        flight.sack(1500..3500, 1000, |sent| arrived.push(sent.start..sent.end));
        flight.sack(18_001..18_101, 1000, |sent| arrived.push(sent.start..sent.end));
        flight.sack(8001..9501, 1000, |sent| arrived.push(sent.start..sent.end));
        assert_eq!(arrived, [2001..3001, 18_001..18_101, 8001..9001]);
        check(&flight);
        // The last byte is a FIN, which peers that store only data do not report.
        let mut flight = FlightScoreboard::default();
        flight.push(1..1950, Instant::from_nanos(1));
        flight.sack(1449..1949, 1448, |sent| arrived.push(sent.start..sent.end));
        assert_eq!(arrived.pop(), Some(1449..1949));
        check(&flight);
    }

    proptest! {
        #[test]
        fn scoreboard_matches_a_set_of_bytes(
            mss in prop_oneof![Just(1u64), 2u64..20],
            steps in proptest::collection::vec((0u8..7, 0u64..200, 1u64..40), 1..80),
        ) {
            let mut flight = FlightScoreboard::default();
            let (mut una, mut next, mut now) = (0u64, 0u64, 0u64);
            let (mut sacked, mut lost) = (BTreeSet::new(), BTreeSet::new());
            let mut delivered = BTreeSet::new();
            // Boundaries of transmissions, and of their parts after splits.
            let mut edges = BTreeSet::from([0u64]);
            for (step, place, length) in steps {
                now += 1;
                let from = una + place.min(next - una);
                let to = (from + length).min(next);
                let mut note = |sent: &SentRange| {
                    (sent.start..sent.end).for_each(|byte| assert!(delivered.insert(byte), "each byte is delivered once"));
                };
                match step {
                    0 | 1 => {
                        flight.push(next..next + length, Instant::from_nanos(now));
                        next += length;
                        edges.insert(next);
                    }
                    2 => {
                        flight.acknowledge(from, &mut note);
                        una = una.max(from);
                        edges.insert(una);
                        sacked.retain(|byte| *byte >= una);
                        lost.retain(|byte| *byte >= una);
                    }
                    3 if from < to => {
                        flight.sack(from..to, mss, &mut note);
                        // A report counts from the start of a segment to the end of one; the last byte may be a FIN.
                        let around = |at: u64| (*edges.range(..=at).next_back().unwrap(), *edges.range(at..).next().unwrap());
                        let ((begin, end), (last_begin, last_end)) = (around(from), around(to));
                        let start = end.min(begin + (from - begin).next_multiple_of(mss));
                        let stop = if to + 1 == last_end { to } else { to - (to - last_begin) % mss };
                        if start < stop {
                            edges.extend([start, stop]);
                            sacked.extend(start..stop);
                            lost.retain(|byte| !(start..stop).contains(byte));
                        }
                    }
                    4 => {
                        flight.lose_all();
                        lost.extend((una..next).filter(|byte| !sacked.contains(byte)));
                    }
                    5 => {
                        if let Some(range) = flight.first_lost() {
                            prop_assert_eq!(Some(&range.start), lost.first());
                            let range = range.start..range.end.min(range.start + length);
                            flight.resent(range.clone(), Instant::from_nanos(now));
                            edges.extend([range.start, range.end]);
                            lost.retain(|byte| !range.contains(byte));
                        } else {
                            prop_assert!(lost.is_empty());
                        }
                    }
                    _ => {
                        flight.undo_losses();
                        lost.clear();
                    }
                }
                check(&flight);
                prop_assert_eq!((flight.lost, flight.sacked), (lost.len() as u64, sacked.len() as u64));
                prop_assert_eq!(flight.in_flight, next - una - flight.lost - flight.sacked);
            }
        }
    }
}
