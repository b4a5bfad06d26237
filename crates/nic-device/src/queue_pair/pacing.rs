//! Packet pacing: limits each flow to its rate by delaying frames.
//!
//! Each paced flow has a FIFO lane. The shaper serves lanes by due time; lanes with equal due times take turns. A lane
//! that was delayed by a busy port may catch up by at most one inter-frame gap, and an idle lane saves no credit. Over
//! any interval a flow therefore sends at most its rate plus one frame, and at most two frames back to back.
//!
//! Invariants:
//! - Items of one flow leave in the order they were queued.
//! - The shaper remembers a flow until its next frame is due, even while its lane is empty. Otherwise a flow could
//!   exceed its rate by queueing one frame at a time.

use core::time::Duration;
use offload_api::FlowKey;
use offload_base::Instant;
use std::collections::{BTreeSet, HashMap, VecDeque};

/// A pacing scheduler. `T` is the queued item: a frame, or a packet that will be cut into frames.
#[derive(Debug)]
pub(crate) struct Shaper<T> {
    lanes: Vec<FlowLane<T>>,
    unused: Vec<usize>,
    /// Lane index of each remembered flow. Only looked up, never iterated, so the hash order cannot affect a run.
    by_flow: HashMap<FlowKey, usize>,
    /// Non-empty lanes, as (due time, ticket, lane index).
    waiting: BTreeSet<(Instant, u64, usize)>,
    /// Empty lanes, as (time after which the flow can be forgotten, lane index).
    idle: BTreeSet<(Instant, usize)>,
    turns: u64,
}

#[derive(Debug)]
struct FlowLane<T> {
    flow: FlowKey,
    items: VecDeque<T>,
    /// Earliest time at which the next frame may leave.
    free_at: Instant,
}

/// Permission to send from one lane. Return it with [`Shaper::finish`].
#[derive(Debug)]
pub(crate) struct LanePermit(usize);

impl<T> Shaper<T> {
    /// Tests whether all lanes are empty.
    pub(crate) fn is_empty(&self) -> bool {
        self.waiting.is_empty()
    }

    /// Tests whether items of `flow` are queued. A new item of `flow` must then be queued too, to keep the order.
    pub(crate) fn has_queued(&self, flow: &FlowKey) -> bool {
        !self.is_empty() && self.by_flow.get(flow).is_some_and(|lane| !self.lanes[*lane].items.is_empty())
    }

    /// Queues `item` after the other items of `flow`.
    pub(crate) fn push(&mut self, now: Instant, flow: FlowKey, item: T) {
        self.forget_idle(now);
        let index = self.lane_index(now, flow);
        let lane = &mut self.lanes[index];
        if lane.items.is_empty() {
            self.idle.remove(&(lane.free_at, index));
            // An idle flow saves no credit: its due time is never in the past.
            lane.free_at = lane.free_at.max(now);
            self.waiting.insert((lane.free_at, self.turns, index));
            self.turns += 1;
        }
        lane.items.push_back(item);
    }

    /// Returns the earliest due time, or `None` if all lanes are empty.
    pub(crate) fn next_due(&self) -> Option<Instant> {
        self.waiting.first().map(|(at, _, _)| *at)
    }

    /// Takes the next item that is due at `now`. The caller sends one frame of it and calls [`Shaper::finish`].
    pub(crate) fn pop_due(&mut self, now: Instant) -> Option<(LanePermit, T)> {
        if self.next_due()? > now {
            return None;
        }
        let (_, _, index) = self.waiting.pop_first()?;
        let item = self.lanes[index].items.pop_front()?;
        Some((LanePermit(index), item))
    }

    /// Ends a turn. `rest` is the unsent part of the item; `gap` is the time that the sent frame occupies at the flow's
    /// rate.
    pub(crate) fn finish(&mut self, now: Instant, turn: LanePermit, rest: Option<T>, gap: Duration) {
        let LanePermit(index) = turn;
        let lane = &mut self.lanes[index];
        if let Some(rest) = rest {
            lane.items.push_front(rest);
        }
        if !gap.is_zero() {
            // The lane may have been served late because the port was busy. It catches up by one gap at most, so that a
            // long stall does not end in a burst.
            let late_at_most = Instant::from_nanos(now.as_nanos().saturating_sub(gap.as_nanos() as u64));
            lane.free_at = lane.free_at.max(late_at_most) + gap;
        }
        if lane.items.is_empty() {
            self.idle.insert((lane.free_at, index));
        } else {
            self.waiting.insert((lane.free_at, self.turns, index));
            self.turns += 1;
        }
    }

    /// Removes all items, in no particular order, and forgets all flows.
    pub(crate) fn clear(&mut self) -> impl Iterator<Item = T> + use<T> {
        core::mem::take(self).lanes.into_iter().flat_map(|lane| lane.items)
    }

    fn lane_index(&mut self, now: Instant, flow: FlowKey) -> usize {
        if let Some(index) = self.by_flow.get(&flow) {
            return *index;
        }
        let lane = FlowLane { flow, items: VecDeque::new(), free_at: now };
        let index = match self.unused.pop() {
            Some(index) => {
                self.lanes[index] = lane;
                index
            }
            None => {
                self.lanes.push(lane);
                self.lanes.len() - 1
            }
        };
        self.by_flow.insert(flow, index);
        index
    }

    /// Forgets flows that could send at once by now.
    fn forget_idle(&mut self, now: Instant) {
        while let Some((at, index)) = self.idle.first().copied()
            && at <= now
        {
            self.idle.pop_first();
            self.by_flow.remove(&self.lanes[index].flow);
            self.unused.push(index);
        }
    }
}

impl<T> Default for Shaper<T> {
    fn default() -> Shaper<T> {
        Shaper {
            lanes: Vec::new(),
            unused: Vec::new(),
            by_flow: HashMap::new(),
            waiting: BTreeSet::new(),
            idle: BTreeSet::new(),
            turns: 0,
        }
    }
}

/// Returns the time that `bytes` bytes take at `rate` bytes per second, at most a second, as in Linux's fq, because a
/// lower rate may be a mistake.
pub(crate) fn gap(bytes: usize, rate: core::num::NonZeroU64) -> Duration {
    let nanos = (bytes as u128 * 1_000_000_000).div_ceil(u128::from(rate.get()));
    Duration::from_nanos(nanos.min(1_000_000_000) as u64)
}

#[cfg(test)]
mod tests {
    use super::*;
    use core::num::NonZeroU64;
    use proptest::prelude::*;

    fn flow(number: u16) -> FlowKey {
        FlowKey::tcp("10.0.0.1:443".parse().unwrap(), ([10, 0, 0, 2], number).into())
    }

    proptest! {
        /// For any arrivals and delays of the port: order and rate hold, and no lane is leaked.
        #[test]
        fn flows_keep_their_order_and_their_rate(
            arrivals in prop::collection::vec((0u64..3000, 0u16..4, 60usize..1514), 1..120),
            lateness in prop::collection::vec(0u64..900, 1..20),
        ) {
            // At most one frame of 1514 bytes per 1514 ns.
            let rate = NonZeroU64::new(1_000_000_000).unwrap();
            let mut shaper = Shaper::default();
            let mut now = Instant::ZERO;
            let mut left: Vec<Vec<(u64, usize, usize)>> = vec![Vec::new(); 4];
            let mut order = vec![Vec::new(); 4];
            let (mut late, mut arrivals) = (lateness.iter().cycle(), arrivals.into_iter().enumerate().peekable());
            let mut arrives_at = Instant::ZERO;
            loop {
                let next_arrival = arrivals.peek().map(|(_, (after, _, _))| arrives_at + Duration::from_nanos(*after));
                let due = shaper.next_due();
                let Some(at) = offload_base::time::earliest(next_arrival, due) else { break };
                now = now.max(at);
                if next_arrival == Some(at) {
                    let (number, (_, lane, bytes)) = arrivals.next().unwrap();
                    arrives_at = at;
                    shaper.push(now, flow(lane), (lane, number, bytes));
                    order[usize::from(lane)].push(number);
                    continue;
                }
                now += Duration::from_nanos(*late.next().unwrap());
                let (turn, (lane, number, bytes)) = shaper.pop_due(now).unwrap();
                shaper.finish(now, turn, None, gap(bytes, rate));
                left[usize::from(lane)].push((now.as_nanos(), number, bytes));
            }
            prop_assert!(shaper.is_empty());
            for (sent, expected) in left.iter().zip(order) {
                prop_assert_eq!(sent.iter().map(|sent| sent.1).collect::<Vec<_>>(), expected);
                for first in 0..sent.len() {
                    let mut bytes = 0;
                    for last in first + 1..sent.len() {
                        bytes += sent[last - 1].2 as u64;
                        // One byte per nanosecond, and one late frame.
                        prop_assert!(sent[last].0 - sent[first].0 + 1514 >= bytes, "from {first} to {last}: {sent:?}");
                    }
                }
            }
        }
    }

    #[test]
    fn a_flow_is_remembered_only_while_its_gap_lasts() {
        let mut shaper = Shaper::default();
        let at = Instant::from_nanos;
        shaper.push(at(0), flow(1), 'a');
        let (turn, item) = shaper.pop_due(at(0)).unwrap();
        assert_eq!(item, 'a');
        shaper.finish(at(0), turn, None, Duration::from_nanos(100));
        assert!(shaper.is_empty() && shaper.next_due().is_none(), "an empty lane is never due");
        shaper.push(at(10), flow(1), 'b');
        assert!(shaper.has_queued(&flow(1)) && !shaper.has_queued(&flow(2)));
        assert_eq!(shaper.next_due(), Some(at(100)));
        let (turn, item) = shaper.pop_due(at(100)).unwrap();
        shaper.finish(at(100), turn, Some(item), Duration::from_nanos(100));
        assert_eq!(shaper.next_due(), Some(at(200)), "the rest of the item is due later");
        let (turn, _) = shaper.pop_due(at(200)).unwrap();
        shaper.finish(at(200), turn, None, Duration::from_nanos(100));
        shaper.push(at(300), flow(2), 'c');
        assert_eq!((shaper.lanes.len(), shaper.by_flow.len()), (1, 1), "the lane of the first flow is reused");
        assert_eq!(shaper.clear().collect::<Vec<_>>(), ['c']);
    }

    #[test]
    fn flows_due_at_the_same_time_take_turns_in_arrival_order() {
        let (mut shaper, now) = (Shaper::default(), Instant::ZERO);
        let due = |shaper: &mut Shaper<char>| shaper.pop_due(now).unwrap();
        // Both flows are forgotten, and their lanes are reused, last one first.
        for (number, item) in [(1, 'a'), (2, 'b')] {
            shaper.push(now, flow(number), item);
        }
        for expected in ['a', 'b'] {
            let (turn, item) = due(&mut shaper);
            assert_eq!(item, expected);
            shaper.finish(now, turn, None, Duration::ZERO);
        }
        shaper.push(now, flow(3), 'c');
        shaper.push(now, flow(4), 'd');
        shaper.push(now, flow(5), 'e');
        for expected in "cdecdecde".chars() {
            let (turn, item) = due(&mut shaper);
            assert_eq!(item, expected);
            shaper.finish(now, turn, Some(item), Duration::ZERO);
        }
    }

    #[test]
    fn a_very_low_rate_delays_no_packet_for_ever() {
        assert_eq!(gap(1514, NonZeroU64::MIN), Duration::from_secs(1));
        assert_eq!(gap(1514, NonZeroU64::MAX), Duration::from_nanos(1));
    }
}
