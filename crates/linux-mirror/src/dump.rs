//! Requests of a watcher to the kernel.

use crate::netlink::Message;
use std::collections::VecDeque;

/// The pending requests of a watcher: the queries of a snapshot, one at a time because a kernel allows one dump per
/// socket, and other messages.
#[derive(Debug)]
pub(crate) struct PendingDump<S> {
    /// The query under way. `None` between snapshots.
    pub(crate) step: Option<S>,
    /// Sequence number of the last query, which its answers repeat.
    asked: u32,
    sequence: u32,
    /// Whether another snapshot follows this snapshot.
    pub(crate) again: bool,
    /// Messages to be sent.
    pub(crate) requests: VecDeque<Vec<u8>>,
}

impl<S: Copy> PendingDump<S> {
    /// Returns a dump that begins with a snapshot.
    pub(crate) fn new() -> PendingDump<S> {
        PendingDump { step: None, asked: 0, sequence: 0, again: true, requests: VecDeque::new() }
    }

    /// Returns whether a snapshot begins now, and marks it as begun.
    pub(crate) fn poll_start(&mut self) -> bool {
        self.step.is_none() && core::mem::take(&mut self.again)
    }

    /// Tests whether no snapshot is under way or wanted.
    pub(crate) fn is_complete(&self) -> bool {
        self.step.is_none() && !self.again
    }

    /// Queues a message, built with its own sequence number.
    pub(crate) fn send(&mut self, request: impl FnOnce(u32) -> Vec<u8>) {
        self.sequence = self.sequence.wrapping_add(1);
        self.requests.push_back(request(self.sequence));
    }

    /// Queues the next query.
    pub(crate) fn query(&mut self, step: S, request: impl FnOnce(u32) -> Vec<u8>) {
        self.step = Some(step);
        self.send(request);
        // Messages with other numbers are notices or answers to other requests.
        self.asked = self.sequence;
    }

    /// Returns the query that the message answers. After an interrupted answer, another snapshot follows, because the
    /// answer may contain concurrent changes twice, or not at all.
    pub(crate) fn query_answered_by(&mut self, message: &Message<'_>) -> Option<S> {
        let answered = self.step.filter(|_| message.sequence == self.asked);
        self.again |= answered.is_some() && message.is_interrupted();
        answered
    }
}

/// Error of a kernel that does not list its state.
///
/// ```
/// use linux_mirror::KernelError;
///
/// let refused = KernelError::Sas { errno: 1 };
/// assert_eq!(refused.to_string(), "the kernel does not list its SAs (errno 1): the agent needs CAP_NET_ADMIN, and the kernel XFRM_USER");
/// let refused = KernelError::Filters { errno: 1 };
/// assert!(refused.to_string().starts_with("the kernel does not list its filters: Operation not permitted"));
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum KernelError {
    /// The kernel does not list SAs or policies.
    #[error(
        "the kernel does not list its SAs (errno {errno}): the agent needs CAP_NET_ADMIN, and the kernel XFRM_USER"
    )]
    Sas {
        /// Linux's error number.
        errno: u32,
    },
    /// The kernel does not list devices or filters.
    #[error(
        "the kernel does not list its filters: {}: it needs CONFIG_NET_CLS_ACT and CONFIG_NET_CLS_FLOWER",
        std::io::Error::from_raw_os_error(*errno as i32)
    )]
    Filters {
        /// Linux's error number.
        errno: u32,
    },
}
