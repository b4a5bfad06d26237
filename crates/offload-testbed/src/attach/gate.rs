//! What a daemon's Linux says waits until what its kernel was told before is known outside.
//!
//! A daemon changes its kernel's SAs, then tells its peer, which acts on it at once: it deletes the SA that it received by, for example. The
//! emulated host has to know of the change first. So a front asks at the gate for a ticket for each message of the daemon, and the message
//! leaves when the ticket has passed: a mirror passes it when the agent has told of everything that the kernel had told until then.

use core::task::{Context, Poll, Waker};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// A gate between a front and a mirror. Cloned, it is the same one.
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
pub struct Gate(Arc<Mutex<State>>);

#[derive(Debug, Default)]
struct State {
    attended: bool,
    /// The last ticket that was given, the last that the mirror has seen, and the last that has passed.
    given: u32,
    seen: u32,
    passed: u32,
    mirror: Option<Waker>,
    front: Option<Waker>,
}

impl Gate {
    /// For the front: a ticket, unless nobody is there to pass it.
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

    /// For the front: whether a ticket has passed.
    pub fn has_passed(&self, ticket: u32) -> bool {
        self.state().passed >= ticket
    }

    /// For who waits without a thread: ready when a ticket has passed.
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

    /// For the front: has `waker` woken when tickets pass.
    pub fn register(&self, waker: &Waker) {
        self.state().front = Some(waker.clone());
    }

    /// For the mirror: whether an agent is there. All tickets have passed when it goes.
    pub fn attend(&self, attended: bool) {
        let mut state = self.state();
        state.attended = attended;
        if !attended {
            (state.seen, state.passed) = (state.given, state.given);
            state.front.take().into_iter().for_each(Waker::wake);
        }
    }

    /// For the mirror: the newest ticket, if it was not asked for before. Those before it pass with it.
    pub fn asked(&self) -> Option<u32> {
        let mut state = self.state();
        (state.given > state.seen).then(|| {
            state.seen = state.given;
            state.seen
        })
    }

    /// [`asked`](Self::asked), when there is one.
    pub async fn wait(&self) -> u32 {
        core::future::poll_fn(|context: &mut Context<'_>| match self.asked() {
            Some(ticket) => Poll::Ready(ticket),
            None => {
                self.state().mirror = Some(context.waker().clone());
                // One may have been given in between.
                self.asked().map_or(Poll::Pending, Poll::Ready)
            }
        })
        .await
    }

    /// For the mirror: this ticket has passed, and those before it.
    pub fn pass(&self, ticket: u32) {
        let mut state = self.state();
        state.passed = state.passed.max(ticket.min(state.given));
        state.front.take().into_iter().for_each(Waker::wake);
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
