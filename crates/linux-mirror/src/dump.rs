//! Questions of a watcher to its kernel.

use crate::netlink::Message;
use std::collections::VecDeque;

/// The requests of a watcher: the questions of a snapshot, one at a time because a kernel has one dump a socket, and other messages.
#[derive(Debug)]
pub(crate) struct Dump<S> {
    /// The question under way; `None` between snapshots.
    pub(crate) step: Option<S>,
    /// The sequence number of the last question, by which its answers are known.
    asked: u32,
    sequence: u32,
    /// Another snapshot is to follow this one.
    pub(crate) again: bool,
    /// Messages to be sent.
    pub(crate) requests: VecDeque<Vec<u8>>,
}

impl<S: Copy> Dump<S> {
    /// Returns a dump that begins with a snapshot.
    pub(crate) fn new() -> Dump<S> {
        Dump { step: None, asked: 0, sequence: 0, again: true, requests: VecDeque::new() }
    }

    /// Tests whether a snapshot is to begin now, and takes note that it has.
    pub(crate) fn begins(&mut self) -> bool {
        self.step.is_none() && core::mem::take(&mut self.again)
    }

    /// Tests whether no snapshot is under way or wanted.
    pub(crate) fn is_complete(&self) -> bool {
        self.step.is_none() && !self.again
    }

    /// Queues a message, made with a sequence number of its own.
    pub(crate) fn send(&mut self, request: impl FnOnce(u32) -> Vec<u8>) {
        self.sequence = self.sequence.wrapping_add(1);
        self.requests.push_back(request(self.sequence));
    }

    /// Queues the next question.
    pub(crate) fn ask(&mut self, step: S, request: impl FnOnce(u32) -> Vec<u8>) {
        self.step = Some(step);
        self.send(request);
        self.asked = self.sequence;
    }

    /// Returns the question that the message answers. After an interrupted answer, another snapshot follows: it may have told of what
    /// changed meanwhile twice, or not at all.
    pub(crate) fn answered_by(&mut self, message: &Message<'_>) -> Option<S> {
        let answered = self.step.filter(|_| message.sequence == self.asked);
        self.again |= answered.is_some() && message.is_interrupted();
        answered
    }
}

/// The error of a kernel that does not list what is to be mirrored.
///
/// ```
/// use linux_mirror::KernelRefused;
///
/// let refused = KernelRefused::Sas { errno: 1 };
/// assert_eq!(refused.to_string(), "the kernel gives no SAs (errno 1): the agent needs CAP_NET_ADMIN, and the kernel XFRM_USER");
/// let refused = KernelRefused::Filters { errno: 1 };
/// assert!(refused.to_string().starts_with("the kernel does not list its filters: Operation not permitted"));
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum KernelRefused {
    /// SAs or policies.
    #[error("the kernel gives no SAs (errno {errno}): the agent needs CAP_NET_ADMIN, and the kernel XFRM_USER")]
    Sas {
        /// Linux's number of the error.
        errno: u32,
    },
    /// Devices or filters.
    #[error(
        "the kernel does not list its filters: {}: it needs CONFIG_NET_CLS_ACT and CONFIG_NET_CLS_FLOWER",
        std::io::Error::from_raw_os_error(*errno as i32)
    )]
    Filters {
        /// Linux's number of the error.
        errno: u32,
    },
}
