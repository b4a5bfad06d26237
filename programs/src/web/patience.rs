//! How long a server waits for the client of one connection, step by step.
//!
//! Invariant: while the server waits for its client there is a deadline, and none while it works itself. A step whose
//! length the client decides, a body or a large answer, has as many spans as it uses, for so many bytes each.

use super::limits::{LEAST_OF_A_BODY, Limits};
use core::fmt;
use core::task::{Context, Poll};
use core::time::Duration;
use offload_base::slots::ConnectionSlot;
use offload_base::{Alarm, Instant};
use offload_testbed::Runtime;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Where a connection is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Step {
    /// The client shakes hands.
    Handshake,
    /// Nothing of a request has come.
    Idle,
    /// A part of its header has.
    Header,
    /// The header has, and the body comes.
    Body,
    /// The answer is being made.
    Work,
    /// The answer goes out.
    Answer,
    /// The same, and all of it is on its way.
    AnswerEnd,
}

/// The client took too long.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Late(pub(super) Step);

/// The error of a connection whose slot was given to another connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Revoked;

impl fmt::Display for Revoked {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("the client had no request under way while other clients waited")
    }
}

impl core::error::Error for Revoked {}

impl fmt::Display for Late {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self.0 {
            Step::Handshake => "the client took too long for its handshake",
            Step::Idle => "the client asked for nothing for too long",
            Step::Header => "the client took too long for a header",
            Step::Body => "the client took too long for a body",
            Step::Work => "the server took too long",
            Step::Answer | Step::AnswerEnd => "the client took too little of an answer in its time",
        })
    }
}

impl core::error::Error for Late {}

/// Follows a connection from step to step. Cloned, it follows the same one.
#[derive(Clone)]
pub(super) struct Patience {
    course: Arc<Mutex<Course>>,
    slot: Arc<ConnectionSlot>,
    limits: Limits,
    runtime: Arc<dyn Runtime>,
}

struct Course {
    step: Step,
    since: Instant,
    /// Bytes since then.
    moved: u64,
    /// Whether the slot is marked as busy.
    is_busy: bool,
}

impl Patience {
    /// Of a connection that is open now.
    pub(super) fn new(limits: Limits, slot: Arc<ConnectionSlot>, runtime: Arc<dyn Runtime>) -> Patience {
        let course = Course { step: Step::Idle, since: runtime.now(), moved: 0, is_busy: false };
        Patience { course: Arc::new(Mutex::new(course)), slot, limits, runtime }
    }

    /// Bytes have come.
    pub(super) fn received(&self, bytes: usize) {
        let mut course = self.lock();
        course.moved += bytes as u64;
        if course.step == Step::Idle {
            self.go(&mut course, Step::Header);
        }
    }

    /// Bytes of an answer have left for the transport.
    pub(super) fn sent(&self, bytes: usize) {
        self.lock().moved += bytes as u64;
    }

    /// A request's header is whole.
    pub(super) fn asked(&self, has_body: bool) {
        let mut course = self.lock();
        course.is_busy = true;
        self.slot.set_busy();
        self.go(&mut course, if has_body { Step::Body } else { Step::Work });
    }

    /// The answer begins.
    pub(super) fn answers(&self) {
        self.go(&mut self.lock(), Step::Answer);
    }

    /// The last of the answer was taken to be sent.
    pub(super) fn answered(&self) {
        // A client that sends one request behind the other is answered one behind the other: this may be an earlier answer.
        let mut course = self.lock();
        if course.step == Step::Answer {
            course.step = Step::AnswerEnd;
        }
    }

    /// Everything taken has left for the transport.
    pub(super) fn flushed(&self) {
        let mut course = self.lock();
        if course.step == Step::AnswerEnd {
            self.go(&mut course, Step::Idle);
        }
    }

    /// Ready when the client has used up its time.
    pub(super) fn poll_late(&self, alarm: &mut dyn Alarm, cx: &mut Context<'_>) -> Poll<Late> {
        let mut course = self.lock();
        loop {
            let (span, least) = self.allowed(course.step);
            let deadline = span.map(|span| course.since + span);
            if alarm.poll(cx, deadline).is_pending() {
                return Poll::Pending;
            }
            if least.is_none_or(|least| course.moved < least) {
                return Poll::Ready(Late(course.step));
            }
            let step = course.step;
            self.go(&mut course, step);
        }
    }

    /// Notes that the client has acknowledged the answer: without a request, the slot may now be given to another connection.
    pub(super) fn delivered(&self) {
        let mut course = self.lock();
        if course.is_busy && course.step == Step::Idle {
            course.is_busy = false;
            self.slot.set_idle();
        }
    }

    /// Polls until the connection's slot was given to another connection.
    pub(super) fn poll_revoked(&self, cx: &mut Context<'_>) -> Poll<Revoked> {
        self.slot.poll_revoked(cx).map(|()| Revoked)
    }

    /// How long a step may take, or so many bytes of it.
    fn allowed(&self, step: Step) -> (Option<Duration>, Option<u64>) {
        match step {
            Step::Handshake => (Some(self.limits.handshake), None),
            Step::Idle => (Some(self.limits.idle), None),
            Step::Header => (Some(self.limits.header), None),
            Step::Body => (Some(self.limits.body), Some(LEAST_OF_A_BODY)),
            Step::Work => (None, None),
            // The transport takes a piece, or as much as is charged to nobody, when the client has taken as much.
            Step::Answer | Step::AnswerEnd => (Some(self.limits.stall), Some(1)),
        }
    }

    fn go(&self, course: &mut Course, step: Step) {
        *course = Course { step, since: self.runtime.now(), moved: 0, ..*course };
    }

    fn lock(&self) -> MutexGuard<'_, Course> {
        self.course.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
