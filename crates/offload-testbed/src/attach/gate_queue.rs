//! The queue of a keying daemon's messages that wait at a [`Gate`].
//!
//! Invariants: a message leaves when its ticket has passed or its time is over, and never before an earlier message. At
//! most [`MAX_MESSAGES`](GateQueue::MAX_MESSAGES) messages wait, because IKE retransmits a dropped message.

use super::Gate;
use core::task::Waker;
use core::time::Duration;
use offload_base::Instant;
use std::collections::VecDeque;

/// A FIFO queue of messages that wait at a gate, for 200 ms at most.
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
    /// Waiting messages with their tickets and deadlines.
    waiting: VecDeque<(T, u32, Instant)>,
    counts: GateCounters,
}

offload_base::counters! {
    /// Counters of a gate queue.
    ///
    /// See [`GateQueue`] for an example.
    pub struct GateCounters {
        /// Messages that waited until the emulated host had the kernel changes made before them.
        pub waited: "gate_waited",
        /// Messages that left at their deadline, before their tickets passed.
        pub impatient: "gate_impatient",
        /// Messages dropped because the queue was full.
        pub full: "gate_full",
    }
}

impl<T> GateQueue<T> {
    /// Maximum number of waiting messages.
    pub const MAX_MESSAGES: usize = 256;

    /// Creates an empty queue at `gate`.
    pub fn new(gate: Gate) -> GateQueue<T> {
        GateQueue { gate, waiting: VecDeque::new(), counts: GateCounters::default() }
    }

    /// Returns the gate.
    pub fn gate(&self) -> Gate {
        self.gate.clone()
    }

    /// Queues a message after earlier messages. The message takes a ticket if an agent is present to pass tickets.
    pub fn push(&mut self, now: Instant, message: T) {
        if self.waiting.len() == Self::MAX_MESSAGES {
            self.counts.full += 1;
            return;
        }
        let ticket = self.gate.ticket();
        self.counts.waited += u64::from(ticket.is_some());
        self.waiting.push_back((message, ticket.unwrap_or(0), now + PATIENCE));
    }

    /// Returns the next message if the message may leave now.
    pub fn pop(&mut self, now: Instant) -> Option<T> {
        let (_, ticket, until) = self.waiting.front()?;
        let passed = self.gate.has_passed(*ticket);
        if !passed && *until > now {
            return None;
        }
        self.counts.impatient += u64::from(!passed);
        self.waiting.pop_front().map(|(message, ..)| message)
    }

    /// Returns the deadline of the next message.
    pub fn next_event(&self) -> Option<Instant> {
        self.waiting.front().map(|(.., until)| *until)
    }

    /// Waits until the ticket of the next message has passed. For callers without a doorbell.
    pub async fn passed(&self) {
        match self.waiting.front() {
            Some((_, ticket, _)) => self.gate.passed(*ticket).await,
            None => core::future::pending().await,
        }
    }

    /// Wakes `waker` when tickets pass.
    pub fn register(&self, waker: &Waker) {
        self.gate.register(waker);
    }

    /// Returns the counters.
    pub fn counters(&self) -> GateCounters {
        self.counts
    }
}

/// Maximum wait of a message. IKE retransmits a message only after seconds.
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
    fn full_queue_drops_new_messages() {
        let gate = Gate::default();
        gate.attend(true);
        let mut queue = GateQueue::new(gate.clone());
        (0..300).for_each(|message| queue.push(Instant::ZERO, message));
        assert_eq!(queue.pop(Instant::ZERO), None);
        gate.pass(gate.asked().expect("a ticket"));
        let left: Vec<i32> = core::iter::from_fn(|| queue.pop(Instant::ZERO)).collect();
        assert!(left.into_iter().eq(0..GateQueue::<i32>::MAX_MESSAGES as i32));
        assert_eq!(queue.counters(), GateCounters { waited: 256, impatient: 0, full: 44 });
    }
}
