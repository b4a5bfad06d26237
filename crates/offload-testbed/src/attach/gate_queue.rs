//! What waits at a [`Gate`]: messages of a keying daemon, in their order.
//!
//! Invariants: none leaves before its ticket has passed or its time is over, nor before the one that came before it. No more than
//! [`MOST`](GateQueue::MOST) wait: IKE sends again what was dropped.

use super::Gate;
use core::task::Waker;
use core::time::Duration;
use offload_base::Instant;
use std::collections::VecDeque;

/// Messages that wait at a gate, for 200 ms at most.
///
/// ```
/// use core::time::Duration;
/// use offload_base::Instant;
/// use offload_testbed::attach::{Gate, GateQueue};
///
/// let gate = Gate::default();
/// let mut queue = GateQueue::new(gate.clone());
/// gate.attend(true);
/// queue.push(Instant::ZERO, "of the daemon");
/// assert_eq!(queue.pop(Instant::ZERO), None);
/// gate.pass(gate.asked().unwrap());
/// assert_eq!(queue.pop(Instant::ZERO), Some("of the daemon"));
/// ```
#[derive(Debug)]
pub struct GateQueue<T> {
    gate: Gate,
    /// With their tickets, and when their time is over.
    waiting: VecDeque<(T, u32, Instant)>,
    counts: GateCounters,
}

offload_base::counters! {
    /// What is counted where messages of a daemon wait.
    ///
    /// See [`GateQueue`] for an example of one.
    pub struct GateCounters {
        /// Messages that waited until the emulated host knew what was told its daemon's kernel before.
        pub waited: "gate_waited",
        /// Those that left before, for their time was over.
        pub impatient: "gate_impatient",
        /// Messages that were dropped, for too many waited.
        pub full: "gate_full",
    }
}

impl<T> GateQueue<T> {
    /// So many messages wait at most.
    pub const MOST: usize = 256;

    /// At this gate, where none waits yet.
    pub fn new(gate: Gate) -> GateQueue<T> {
        GateQueue { gate, waiting: VecDeque::new(), counts: GateCounters::default() }
    }

    /// The gate.
    pub fn gate(&self) -> Gate {
        self.gate.clone()
    }

    /// A message comes. It waits for those before it, and, if somebody is there to pass it, for a ticket of its own.
    pub fn push(&mut self, now: Instant, message: T) {
        if self.waiting.len() == Self::MOST {
            self.counts.full += 1;
            return;
        }
        let ticket = self.gate.ticket();
        self.counts.waited += u64::from(ticket.is_some());
        self.waiting.push_back((message, ticket.unwrap_or(0), now + PATIENCE));
    }

    /// The next message, if it may leave.
    pub fn pop(&mut self, now: Instant) -> Option<T> {
        let (_, ticket, until) = self.waiting.front()?;
        let passed = self.gate.has_passed(*ticket);
        if !passed && *until > now {
            return None;
        }
        self.counts.impatient += u64::from(!passed);
        self.waiting.pop_front().map(|(message, ..)| message)
    }

    /// When the time of the next one is over.
    pub fn next_event(&self) -> Option<Instant> {
        self.waiting.front().map(|(.., until)| *until)
    }

    /// For who waits without a thread: ready when the ticket of the next one has passed.
    pub async fn passed(&self) {
        match self.waiting.front() {
            Some((_, ticket, _)) => self.gate.passed(*ticket).await,
            None => core::future::pending().await,
        }
    }

    /// Has `waker` woken when tickets pass.
    pub fn register(&self, waker: &Waker) {
        self.gate.register(waker);
    }

    /// What was counted so far.
    pub fn counters(&self) -> GateCounters {
        self.counts
    }
}

/// How long a message of the daemon waits at most: IKE sends it again after seconds.
const PATIENCE: Duration = Duration::from_millis(200);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_wait_until_the_kernel_is_mirrored_but_not_for_ever() {
        let gate = Gate::default();
        let mut queue = GateQueue::new(gate.clone());
        let at = Instant::from_nanos;
        let left = |queue: &mut GateQueue<u32>, now| core::iter::from_fn(|| queue.pop(now)).collect::<Vec<_>>();
        queue.push(at(0), 1);
        assert_eq!(left(&mut queue, at(0)), [1], "without an agent nothing waits");
        gate.attend(true);
        [2, 3].into_iter().for_each(|message| queue.push(at(0), message));
        let first = gate.asked().expect("a ticket");
        queue.push(at(20), 4);
        assert_eq!(
            (left(&mut queue, at(20)), gate.asked()),
            (vec![], Some(first + 1)),
            "one ticket stands for all before"
        );
        gate.pass(first);
        assert_eq!(left(&mut queue, at(30)), [2, 3]);
        let due = queue.next_event().expect("the last one has a time");
        assert_eq!((left(&mut queue, due), queue.counters().impatient), (vec![4], 1));
        queue.push(at(40), 5);
        gate.attend(false);
        assert_eq!((left(&mut queue, at(50)), queue.counters().waited), (vec![5], 4), "the agent went");
    }

    #[test]
    fn none_leaves_because_too_many_wait() {
        let gate = Gate::default();
        gate.attend(true);
        let mut queue = GateQueue::new(gate.clone());
        (0..300).for_each(|message| queue.push(Instant::ZERO, message));
        assert_eq!(queue.pop(Instant::ZERO), None);
        gate.pass(gate.asked().expect("a ticket"));
        let left: Vec<i32> = core::iter::from_fn(|| queue.pop(Instant::ZERO)).collect();
        assert!(left.into_iter().eq(0..GateQueue::<i32>::MOST as i32));
        assert_eq!(queue.counters(), GateCounters { waited: 256, impatient: 0, full: 44 });
    }
}
