//! The time that a server waits for the client of one connection, by step.
//!
//! Invariant: there is a deadline exactly while the server waits for its client, not while the server works. For a step
//! whose length the client decides, such as a body or a large answer, each span requires a minimum of bytes and is then
//! renewed.

use super::limits::{MIN_OF_A_BODY, WebLimits};
use core::fmt;
use core::task::{Context, Poll};
use core::time::Duration;
use offload_base::slots::ConnectionSlot;
use offload_base::{Alarm, Instant};
use offload_testbed::Runtime;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// The state of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ConnectionStep {
    /// The TLS handshake.
    Handshake,
    /// No byte of the next request has arrived.
    Idle,
    /// A part of a request's header has arrived.
    Header,
    /// The header is complete, and the body arrives.
    Body,
    /// The server prepares the answer.
    Work,
    /// The answer is being sent.
    Answer,
    /// The last bytes of the answer are queued.
    AnswerEnd,
}

/// The error of a client that took too long, with the step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct StepTimeout(pub(super) ConnectionStep);

/// The error of a connection that lost its slot to another connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct SlotRevoked;

impl fmt::Display for SlotRevoked {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("the client had no request under way while other clients waited")
    }
}

impl core::error::Error for SlotRevoked {}

impl fmt::Display for StepTimeout {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self.0 {
            ConnectionStep::Handshake => "the client took too long for its handshake",
            ConnectionStep::Idle => "the client asked for nothing for too long",
            ConnectionStep::Header => "the client took too long for a header",
            ConnectionStep::Body => "the client took too long for a body",
            ConnectionStep::Work => "the server took too long",
            ConnectionStep::Answer | ConnectionStep::AnswerEnd => "the client took too little of an answer in its time",
        })
    }
}

impl core::error::Error for StepTimeout {}

/// Tracks the step of a connection. Clones track the same connection.
#[derive(Clone)]
pub(super) struct Patience {
    course: Arc<Mutex<StepProgress>>,
    slot: Arc<ConnectionSlot>,
    limits: WebLimits,
    runtime: Arc<dyn Runtime>,
}

struct StepProgress {
    step: ConnectionStep,
    since: Instant,
    /// Bytes moved since then.
    moved: u64,
    /// Whether the slot is marked as busy.
    is_busy: bool,
}

impl Patience {
    /// Creates the tracker of a new connection.
    pub(super) fn new(limits: WebLimits, slot: Arc<ConnectionSlot>, runtime: Arc<dyn Runtime>) -> Patience {
        let course = StepProgress { step: ConnectionStep::Idle, since: runtime.now(), moved: 0, is_busy: false };
        Patience { course: Arc::new(Mutex::new(course)), slot, limits, runtime }
    }

    /// Records received bytes.
    pub(super) fn received(&self, bytes: usize) {
        let mut course = self.lock();
        course.moved += bytes as u64;
        // Later bytes of a header must not renew its deadline.
        if course.step == ConnectionStep::Idle {
            self.go(&mut course, ConnectionStep::Header);
        }
    }

    /// Records bytes of an answer handed to the transport.
    pub(super) fn sent(&self, bytes: usize) {
        self.lock().moved += bytes as u64;
    }

    /// Records that a request's header is complete.
    pub(super) fn asked(&self, has_body: bool) {
        let mut course = self.lock();
        course.is_busy = true;
        self.slot.set_busy();
        self.go(&mut course, if has_body { ConnectionStep::Body } else { ConnectionStep::Work });
    }

    /// Records that the answer begins.
    pub(super) fn answers(&self) {
        self.go(&mut self.lock(), ConnectionStep::Answer);
    }

    /// Records that the last bytes of the answer were taken from the body.
    pub(super) fn answered(&self) {
        // A client that pipelines requests gets its answers one after the other, so this may be the end of an earlier
        // answer.
        let mut course = self.lock();
        if course.step == ConnectionStep::Answer {
            course.step = ConnectionStep::AnswerEnd;
        }
    }

    /// Records that all bytes were handed to the transport.
    pub(super) fn flushed(&self) {
        let mut course = self.lock();
        if course.step == ConnectionStep::AnswerEnd {
            self.go(&mut course, ConnectionStep::Idle);
        }
    }

    /// Completes when the client has exceeded its time.
    pub(super) fn poll_late(&self, alarm: &mut dyn Alarm, cx: &mut Context<'_>) -> Poll<StepTimeout> {
        let mut course = self.lock();
        loop {
            let (span, least) = self.allowed(course.step);
            let deadline = span.map(|span| course.since + span);
            if alarm.poll(cx, deadline).is_pending() {
                return Poll::Pending;
            }
            if least.is_none_or(|least| course.moved < least) {
                return Poll::Ready(StepTimeout(course.step));
            }
            // A step with enough bytes gets another span.
            let step = course.step;
            self.go(&mut course, step);
        }
    }

    /// Records that the client has acknowledged the answer. Without a request, the slot may now be given to another
    /// connection.
    pub(super) fn delivered(&self) {
        let mut course = self.lock();
        if course.is_busy && course.step == ConnectionStep::Idle {
            course.is_busy = false;
            self.slot.set_idle();
        }
    }

    /// Completes when the connection's slot was given to another connection.
    pub(super) fn poll_revoked(&self, cx: &mut Context<'_>) -> Poll<SlotRevoked> {
        self.slot.poll_revoked(cx).map(|()| SlotRevoked)
    }

    /// Returns the time limit of a step, and the bytes that renew the limit.
    fn allowed(&self, step: ConnectionStep) -> (Option<Duration>, Option<u64>) {
        match step {
            ConnectionStep::Handshake => (Some(self.limits.handshake), None),
            ConnectionStep::Idle => (Some(self.limits.idle), None),
            ConnectionStep::Header => (Some(self.limits.header), None),
            ConnectionStep::Body => (Some(self.limits.body), Some(MIN_OF_A_BODY)),
            ConnectionStep::Work => (None, None),
            // The transport accepts the next piece only when the client has acknowledged enough, so one byte is proof
            // of progress.
            ConnectionStep::Answer | ConnectionStep::AnswerEnd => (Some(self.limits.stall), Some(1)),
        }
    }

    fn go(&self, course: &mut StepProgress, step: ConnectionStep) {
        *course = StepProgress { step, since: self.runtime.now(), moved: 0, ..*course };
    }

    fn lock(&self) -> MutexGuard<'_, StepProgress> {
        self.course.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
