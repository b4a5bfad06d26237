//! One direction of a wire: a queue, a line with a rate, impairments and a delay.
//!
//! ```text
//!  send --> queue (limited) --> line (rate) --> impairments --> delay --> poll
//! ```
//!
//! Invariants: frames leave the line in the order they were sent, back to back while the queue is not empty.
//! [`Link::poll`] returns frames in the order of their arrival; frames that arrive at the same instant keep the order
//! of the line.
//!
//! The queue itself holds no frames. The line is first come, first served, so the time at which a frame leaves the line
//! is known when the frame is sent. The frame therefore joins the frames in flight at once, and the queue is merely the
//! line's reserved time.

use super::impairment::{Crossing, Impairment, ImpairmentChain, Impairments};
use crate::frame::Frame;
use core::cmp::{Ordering, Reverse};
use core::time::Duration;
use offload_base::counters::CounterSet;
use offload_base::{Instant, Seed};
use std::collections::{BinaryHeap, VecDeque};

/// The configuration of a [`Link`]. Start from the default, as in the example, because later versions may add fields.
///
/// ```
/// use core::time::Duration;
/// use offload_wire::{LinkConfig, Overflow};
///
/// // A bottleneck of one gigabit per second, behind a switch with a queue of 64 KiB.
/// let bottleneck = LinkConfig {
///     rate: Some(1_000_000_000),
///     queue_limit: 64 * 1024,
///     overflow: Overflow::Drop,
///     ..LinkConfig::default()
/// };
/// assert_eq!(bottleneck.delay, Duration::from_micros(5));
/// ```
#[derive(Clone, Debug)]
pub struct LinkConfig {
    /// Bits per second, not zero. `None`: frames take no time on the line, and never queue.
    pub rate: Option<u64>,
    /// Delay after the line, equal for all frames: propagation, for example.
    pub delay: Duration,
    /// Maximum number of bytes in the queue, measured on the line with gaps. The frame that reaches the limit is still
    /// accepted, so an idle line accepts any frame.
    pub queue_limit: usize,
    /// Treatment of a sender that exceeds the rate.
    pub overflow: Overflow,
    /// Impairments of the frames on their way.
    pub impairments: Impairments,
}

impl Default for LinkConfig {
    fn default() -> LinkConfig {
        LinkConfig {
            rate: Some(100_000_000_000),
            delay: Duration::from_micros(5),
            queue_limit: 256 * 1024,
            overflow: Overflow::HoldBack,
            impairments: Impairments::default(),
        }
    }
}

/// The treatment of a sender that exceeds the rate.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Overflow {
    /// The sender is held back until [`Link::ready_at`], as a NIC is by its own line. A frame sent earlier is dropped.
    #[default]
    HoldBack,
    /// Frames that do not fit into the queue are dropped silently, as in a switch.
    Drop,
}

offload_base::counters! {
    /// Counters of a link, without its impairments.
    pub struct LinkCounters {
        /// Frames that left the line.
        pub sent_frames: "wire_tx_packets",
        /// Bytes of these frames.
        pub sent_bytes: "wire_tx_bytes",
        /// Frames that did not fit the queue.
        pub queue_drops: "wire_queue_drops",
        /// Frames that arrived.
        pub arrived_frames: "wire_rx_packets",
        /// Bytes of these frames.
        pub arrived_bytes: "wire_rx_bytes",
    }
}

/// One direction of a wire.
///
/// ```
/// use core::time::Duration;
/// use offload_wire::frame::Frame;
/// use offload_wire::{Link, LinkConfig};
/// use offload_base::{Instant, Seed};
///
/// let config = LinkConfig { rate: Some(1_000_000_000), delay: Duration::from_micros(5), ..LinkConfig::default() };
/// let mut link = Link::new(&config, Seed(1));
/// link.send(Instant::ZERO, Frame::from(vec![0; 1514]));
///
/// // 1538 byte times at 1 Gb/s are 12.304 us, and the delay is added.
/// let arrival = link.next_event().unwrap();
/// assert_eq!(arrival, Instant::from_nanos(12_304 + 5_000));
/// assert!(link.poll(Instant::from_nanos(17_303)).is_none());
/// assert!(link.poll(arrival).is_some());
/// ```
#[derive(Debug)]
pub struct Link {
    line: Option<LineSchedule>,
    delay: Duration,
    queue_limit: usize,
    overflow: Overflow,
    impairments: ImpairmentChain,
    in_flight: FramesInFlight,
    counters: LinkCounters,
}

impl Link {
    /// Creates an idle link as described by `config`. Its impairments draw from `seed`.
    ///
    /// # Panics
    /// If the rate is zero.
    pub fn new(config: &LinkConfig, seed: Seed) -> Link {
        Link {
            line: config.rate.map(LineSchedule::new),
            delay: config.delay,
            queue_limit: config.queue_limit,
            overflow: config.overflow,
            impairments: config.impairments.chain(seed),
            in_flight: FramesInFlight::default(),
            counters: LinkCounters::default(),
        }
    }

    /// Adds an impairment after the existing ones.
    pub fn impair(&mut self, impairment: Box<dyn Impairment>) {
        self.impairments.push(impairment);
    }

    /// Sends a frame at `now`, which must not be before the time of an earlier call.
    pub fn send(&mut self, now: Instant, frame: Frame) {
        let left_line = match &mut self.line {
            None => now,
            Some(line) => {
                // At least one byte, so that an idle line accepts a frame even with a limit of zero.
                if line.backlog(now) >= self.queue_limit.max(1) {
                    self.counters.queue_drops += 1;
                    return;
                }
                line.occupy(now, frame.wire_len())
            }
        };
        self.counters.sent_frames += 1;
        self.counters.sent_bytes += frame.len() as u64;
        let in_flight = &mut self.in_flight;
        self.impairments.pass(Crossing { frame, arrives: left_line + self.delay }, &mut |crossing| {
            in_flight.add(crossing);
        });
    }

    /// Returns the next frame that has arrived by `now`.
    pub fn poll(&mut self, now: Instant) -> Option<Frame> {
        let frame = self.in_flight.take(now)?;
        self.counters.arrived_frames += 1;
        self.counters.arrived_bytes += frame.len() as u64;
        Some(frame)
    }

    /// Returns the arrival time of the next frame, or `None` if no frame is in flight.
    pub fn next_event(&self) -> Option<Instant> {
        self.in_flight.next_arrival()
    }

    /// Returns the number of bytes, measured on the line, that have not left the line by `now`.
    pub fn backlog(&self, now: Instant) -> usize {
        self.line.as_ref().map_or(0, |line| line.backlog(now))
    }

    /// Returns the time from which the sender may send its next frame. Zero unless the sender is [held
    /// back](Overflow::HoldBack).
    pub fn ready_at(&self) -> Instant {
        match (&self.line, self.overflow) {
            (Some(line), Overflow::HoldBack) => line.backlog_under_at(self.queue_limit.max(1)),
            _ => Instant::ZERO,
        }
    }

    /// Returns the counters of the link, without its impairments.
    pub fn counters(&self) -> &LinkCounters {
        &self.counters
    }

    /// Adds the counters of the link and of its impairments to `set`.
    pub fn count(&self, set: &mut CounterSet) {
        set.add(&self.counters);
        self.impairments.count(set);
    }
}

/// The time of a line with a constant rate, reserved frame by frame.
#[derive(Debug)]
struct LineSchedule {
    bits_per_second: u64,
    /// Time at which the last frame leaves the line.
    free_at: Instant,
    /// Fraction of a nanosecond that `free_at` omits, in units of 1 / `bits_per_second` nanoseconds. With the fraction,
    /// a busy line is exact over any number of frames.
    remainder: u64,
}

impl LineSchedule {
    fn new(bits_per_second: u64) -> LineSchedule {
        assert!(bits_per_second > 0, "a line needs a rate above zero");
        LineSchedule { bits_per_second, free_at: Instant::ZERO, remainder: 0 }
    }

    /// Reserves the time of `bytes` bytes, and returns the time at which the last byte leaves the line.
    fn occupy(&mut self, now: Instant, bytes: usize) -> Instant {
        if self.free_at < now {
            (self.free_at, self.remainder) = (now, 0);
        }
        // 128 bits, so that no frame length can overflow the product.
        let work = bytes as u128 * BIT_NANOS_PER_BYTE + u128::from(self.remainder);
        let rate = u128::from(self.bits_per_second);
        self.free_at += Duration::from_nanos(u64::try_from(work / rate).unwrap_or(u64::MAX));
        self.remainder = (work % rate) as u64;
        self.free_at
    }

    fn backlog(&self, now: Instant) -> usize {
        let nanos = u128::from(self.free_at.as_nanos().saturating_sub(now.as_nanos()));
        // Rounded up: a byte counts until its last bit has left.
        (nanos * u128::from(self.bits_per_second)).div_ceil(BIT_NANOS_PER_BYTE) as usize
    }

    /// Returns the first instant at which fewer than `bytes` bytes are queued.
    fn backlog_under_at(&self, bytes: usize) -> Instant {
        // Rounded down, so that the sender never starts while the queue is still full.
        let allowed = (bytes - 1) as u128 * BIT_NANOS_PER_BYTE / u128::from(self.bits_per_second);
        Instant::from_nanos(self.free_at.as_nanos().saturating_sub(u64::try_from(allowed).unwrap_or(u64::MAX)))
    }
}

/// Frames in flight, in the order of their arrival. Most frames arrive in the order they were sent, and are merely
/// appended to a queue. The others are sorted in a heap.
#[derive(Debug, Default)]
struct FramesInFlight {
    in_order: VecDeque<FrameArrival>,
    out_of_order: BinaryHeap<Reverse<FrameArrival>>,
    next_number: u64,
}

impl FramesInFlight {
    fn add(&mut self, crossing: Crossing) {
        let arrival = FrameArrival { at: crossing.arrives, number: self.next_number, frame: crossing.frame };
        self.next_number += 1;
        match self.in_order.back() {
            // Only a frame that overtakes pays for the heap. A held frame waits in the queue and is overtaken through
            // the heap.
            Some(last) if arrival.at < last.at => self.out_of_order.push(Reverse(arrival)),
            _ => self.in_order.push_back(arrival),
        }
    }

    fn take(&mut self, now: Instant) -> Option<Frame> {
        // Both containers are sorted, so the earliest frame is at the front of one of them.
        let arrival = match (self.in_order.front(), self.out_of_order.peek()) {
            (None, None) => return None,
            (Some(first), Some(Reverse(other))) if other < first => {
                if other.at > now {
                    return None;
                }
                self.out_of_order.pop().map(|Reverse(arrival)| arrival)
            }
            (Some(first), _) => {
                if first.at > now {
                    return None;
                }
                self.in_order.pop_front()
            }
            (None, Some(Reverse(other))) => {
                if other.at > now {
                    return None;
                }
                self.out_of_order.pop().map(|Reverse(arrival)| arrival)
            }
        };
        arrival.map(|arrival| arrival.frame)
    }

    fn next_arrival(&self) -> Option<Instant> {
        let in_order = self.in_order.front().map(|arrival| arrival.at);
        let out_of_order = self.out_of_order.peek().map(|Reverse(arrival)| arrival.at);
        offload_base::time::earliest(in_order, out_of_order)
    }
}

/// A frame in flight. Ordered by arrival time, then by the order in which the frames left the line.
#[derive(Debug)]
struct FrameArrival {
    at: Instant,
    number: u64,
    frame: Frame,
}

impl Ord for FrameArrival {
    fn cmp(&self, other: &FrameArrival) -> Ordering {
        (self.at, self.number).cmp(&(other.at, other.number))
    }
}

impl PartialOrd for FrameArrival {
    fn partial_cmp(&self, other: &FrameArrival) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl PartialEq for FrameArrival {
    fn eq(&self, other: &FrameArrival) -> bool {
        self.cmp(other) == Ordering::Equal
    }
}

impl Eq for FrameArrival {}

/// Nanoseconds per byte, multiplied by the rate: bits per byte times nanoseconds per second.
const BIT_NANOS_PER_BYTE: u128 = 8 * 1_000_000_000;

#[cfg(test)]
mod tests {
    use super::super::impairment::{Reorder, Share};
    use super::*;
    use proptest::prelude::*;

    fn numbered(number: u32) -> Frame {
        let mut data = vec![0; 1514];
        data[..4].copy_from_slice(&number.to_be_bytes());
        Frame::from(data)
    }

    fn number(frame: &Frame) -> u32 {
        u32::from_be_bytes(frame.data[..4].try_into().expect("four bytes"))
    }

    /// Polls the link until it is empty, and returns the arrivals with their times.
    fn drain(link: &mut Link) -> Vec<(Instant, u32)> {
        let mut arrived = Vec::new();
        while let Some(at) = link.next_event() {
            assert!(link.poll(Instant::from_nanos(at.as_nanos().saturating_sub(1))).is_none(), "nothing is early");
            let frame = link.poll(at).expect("the announced frame");
            arrived.push((at, number(&frame)));
        }
        arrived
    }

    #[test]
    fn busy_line_is_exact_over_any_number_of_frames() {
        // 84 byte times at 100 Gb/s are 6.72 ns. Rounding each frame would be off by a tenth.
        let config = LinkConfig { delay: Duration::ZERO, queue_limit: usize::MAX, ..LinkConfig::default() };
        let mut link = Link::new(&config, Seed(0));
        for _ in 0..100_000 {
            link.send(Instant::ZERO, Frame::from(vec![0; 60]));
        }
        let mut last = Instant::ZERO;
        while let Some(at) = link.next_event() {
            link.poll(at).expect("the announced frame");
            last = at;
        }
        assert_eq!(last, Instant::from_nanos(672_000));
    }

    #[test]
    fn unlimited_link_only_delays() {
        let config = LinkConfig { rate: None, delay: Duration::from_nanos(7), ..LinkConfig::default() };
        let mut link = Link::new(&config, Seed(0));
        for number in 0..3 {
            link.send(Instant::from_nanos(1), numbered(number));
        }
        assert_eq!((link.backlog(Instant::ZERO), link.ready_at()), (0, Instant::ZERO));
        let at = Instant::from_nanos(8);
        assert_eq!(drain(&mut link), [(at, 0), (at, 1), (at, 2)]);
    }

    #[test]
    fn full_queue_drops_and_counts_frames() {
        let config = LinkConfig {
            rate: Some(1_000_000_000),
            // A frame of 1514 bytes occupies 1538 byte times.
            queue_limit: 3 * 1538,
            overflow: Overflow::Drop,
            ..LinkConfig::default()
        };
        let mut link = Link::new(&config, Seed(0));
        for number in 0..5 {
            link.send(Instant::ZERO, numbered(number));
        }
        assert_eq!(link.counters().queue_drops, 2);
        assert_eq!(link.backlog(Instant::ZERO), 3 * 1538);
        assert_eq!(link.backlog(Instant::from_nanos(12_304)), 2 * 1538);
        // One frame has left the line by now, so there is room for one more.
        link.send(Instant::from_nanos(12_304), numbered(5));
        let order: Vec<u32> = drain(&mut link).into_iter().map(|(_, number)| number).collect();
        assert_eq!(order, [0, 1, 2, 5]);
        assert_eq!(link.ready_at(), Instant::ZERO, "nobody is held back");
    }

    #[test]
    fn waiting_sender_keeps_the_line_busy_without_loss() {
        let config =
            LinkConfig { rate: Some(3_333_333_333), queue_limit: 4000, delay: Duration::ZERO, ..LinkConfig::default() };
        let mut link = Link::new(&config, Seed(0));
        let mut now = Instant::ZERO;
        for number in 0..1000 {
            now = now.max(link.ready_at());
            assert!(link.backlog(now) < 4000);
            link.send(now, numbered(number));
        }
        let arrived = drain(&mut link);
        assert_eq!((arrived.len(), link.counters().queue_drops), (1000, 0));
        // The rate does not divide a frame's bits evenly, so rounding errors would accumulate over the frames.
        let full = 1000u128 * 1538 * BIT_NANOS_PER_BYTE / 3_333_333_333;
        assert_eq!(u128::from(arrived[999].0.as_nanos()), full);
    }

    #[test]
    fn held_frame_is_overtaken() {
        let impairments = Impairments {
            reorder: Some(Reorder { share: Share::ALWAYS, hold: Duration::from_micros(30) }),
            ..Impairments::default()
        };
        let config = LinkConfig { delay: Duration::ZERO, rate: None, ..LinkConfig::default() };
        let mut link = Link::new(&LinkConfig { impairments, ..config }, Seed(0));
        link.send(Instant::ZERO, numbered(0));
        // Only the first frame is held back.
        link.impairments = ImpairmentChain::default();
        link.send(Instant::from_nanos(10), numbered(1));
        link.send(Instant::from_nanos(40_000), numbered(2));
        let order: Vec<u32> = drain(&mut link).into_iter().map(|(_, number)| number).collect();
        assert_eq!(order, [1, 0, 2]);
    }

    proptest! {
        #[test]
        fn arrivals_are_ordered_by_time_then_number(arrivals in prop::collection::vec(0u64..20, 0..60)) {
            let mut in_flight = FramesInFlight::default();
            let mut expected = Vec::new();
            for (index, at) in arrivals.iter().enumerate() {
                in_flight.add(Crossing { frame: numbered(index as u32), arrives: Instant::from_nanos(*at) });
                expected.push((*at, index as u32));
            }
            expected.sort_unstable();
            let mut seen = Vec::new();
            while let Some(at) = in_flight.next_arrival() {
                let frame = in_flight.take(at).expect("the announced frame");
                seen.push((at.as_nanos(), number(&frame)));
            }
            prop_assert_eq!(seen, expected);
        }

        #[test]
        fn queue_never_exceeds_its_limit_by_more_than_a_frame(
            gaps in prop::collection::vec(0u64..3000, 1..200),
            limit in 0usize..20_000,
        ) {
            let config = LinkConfig { rate: Some(10_000_000_000), queue_limit: limit, overflow: Overflow::Drop, ..LinkConfig::default() };
            let mut link = Link::new(&config, Seed(0));
            let mut now = Instant::ZERO;
            for gap in &gaps {
                now += Duration::from_nanos(*gap);
                link.send(now, numbered(0));
                prop_assert!(link.backlog(now) <= limit.max(1) + 1538);
            }
            let counters = *link.counters();
            prop_assert_eq!(counters.sent_frames + counters.queue_drops, gaps.len() as u64);
            prop_assert_eq!(drain(&mut link).len() as u64, counters.sent_frames);
        }
    }
}
