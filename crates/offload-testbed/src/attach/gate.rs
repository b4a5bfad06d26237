//! A gate that delays a daemon's messages until its kernel's earlier changes have been mirrored.
//!
//! A daemon changes its kernel's SAs and then tells its peer. The peer acts at once; for example, the peer deletes the
//! SA that it received with. The emulated host must therefore know the change first. The front takes a ticket for each
//! message of the daemon, and the message leaves when the ticket has passed. A mirror passes a ticket when its agent
//! has reported every kernel change made before the ticket.

use core::task::{Context, Poll, Waker};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// A gate between a front and a mirror. A clone refers to the same gate.
///
/// ```
/// use offload_testbed::attach::Gate;
///
/// let gate = Gate::default();
/// assert!(gate.ticket().is_none(), "nobody is there to pass it");
/// gate.attend(true);
/// let ticket = gate.ticket().unwrap();
/// assert!(!gate.has_passed(ticket));
/// gate.pass(gate.asked().unwrap());
/// assert!(gate.has_passed(ticket) && gate.asked().is_none());
/// ```
#[derive(Clone, Debug, Default)]
pub struct Gate(Arc<Mutex<GateState>>);

#[derive(Debug, Default)]
struct GateState {
    attended: bool,
    /// Last ticket issued, last ticket seen by the mirror, and last ticket passed.
    given: u32,
    seen: u32,
    passed: u32,
    mirror: Option<Waker>,
    front: Option<Waker>,
}

impl Gate {
    /// Issues a ticket to the front, or `None` if no agent is present to pass tickets.
    pub fn ticket(&self) -> Option<u32> {
        let mut state = self.state();
        if !state.attended {
            return None;
        }
        state.given += 1;
        let given = state.given;
        state.mirror.take().into_iter().for_each(Waker::wake);
        Some(given)
    }

    /// Returns whether a ticket has passed. For the front.
    pub fn has_passed(&self, ticket: u32) -> bool {
        self.state().passed >= ticket
    }

    /// Waits until a ticket has passed. For callers without a doorbell.
    pub async fn passed(&self, ticket: u32) {
        core::future::poll_fn(|context: &mut Context<'_>| {
            let mut state = self.state();
            if state.passed >= ticket {
                return Poll::Ready(());
            }
            state.front = Some(context.waker().clone());
            Poll::Pending
        })
        .await;
    }

    /// Wakes `waker` when tickets pass. For the front.
    pub fn register(&self, waker: &Waker) {
        self.state().front = Some(waker.clone());
    }

    /// Records whether an agent is present. All tickets pass when the agent leaves. For the mirror.
    pub fn attend(&self, attended: bool) {
        let mut state = self.state();
        state.attended = attended;
        if !attended {
            // Without an agent nobody would pass the issued tickets, and messages would wait for their deadline.
            (state.seen, state.passed) = (state.given, state.given);
            state.front.take().into_iter().for_each(Waker::wake);
        }
    }

    /// Returns the newest ticket if the mirror has not seen the ticket yet. Passing a ticket passes all earlier tickets
    /// too. For the mirror.
    pub fn asked(&self) -> Option<u32> {
        let mut state = self.state();
        (state.given > state.seen).then(|| {
            state.seen = state.given;
            state.seen
        })
    }

    /// Waits for the next [`asked`](Self::asked) ticket.
    pub async fn wait(&self) -> u32 {
        core::future::poll_fn(|context: &mut Context<'_>| match self.asked() {
            Some(ticket) => Poll::Ready(ticket),
            None => {
                self.state().mirror = Some(context.waker().clone());
                // A ticket may have been issued before the waker was stored.
                self.asked().map_or(Poll::Pending, Poll::Ready)
            }
        })
        .await
    }

    /// Passes this ticket and all earlier tickets. For the mirror.
    pub fn pass(&self, ticket: u32) {
        let mut state = self.state();
        // A late or invented ticket must neither move the mark back nor past the issued tickets.
        state.passed = state.passed.max(ticket.min(state.given));
        state.front.take().into_iter().for_each(Waker::wake);
    }

    fn state(&self) -> MutexGuard<'_, GateState> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
