//! What hangs on a port of the switch: a function with queues, or somebody outside, whose frames come as they are.

use crate::function::Function;
use bytes::Bytes;
use core::fmt;
use core::task::Waker;
use offload_base::Instant;
use offload_wire::Port;
use offload_wire::frame::Frame;

/// What hangs on a port.
pub(super) enum Member {
    /// A function, whose driver is in this process.
    Function(Box<Function>),
    /// A virtual machine whose network card is somebody else's emulation: it has frames, and no offloads.
    Outside(Box<dyn Port>),
}

impl Member {
    pub(super) fn function(&self) -> Option<&Function> {
        match self {
            Member::Function(function) => Some(function),
            Member::Outside(_) => None,
        }
    }

    pub(super) fn poll_frame(&mut self, now: Instant) -> Option<Frame> {
        match self {
            Member::Function(function) => function.poll_frame(now),
            Member::Outside(port) => port.poll_frame(now),
        }
    }

    pub(super) fn take_frame(&mut self, now: Instant, frame: Bytes) {
        match self {
            Member::Function(function) => function.take_frame(now, &frame),
            Member::Outside(port) => {
                port.receive_frame(now, Frame::new(frame));
                // Its turn may have been before: frames of other functions come after it.
                port.process(now);
            }
        }
    }

    pub(super) fn process(&mut self, now: Instant) {
        match self {
            Member::Function(function) => function.process(now),
            Member::Outside(port) => port.process(now),
        }
    }

    /// When something is due: a frame, or what else there is; `frames`: whether frames can be taken.
    pub(super) fn next_event(&self, frames: bool) -> Option<Instant> {
        match self {
            Member::Function(function) if frames => function.next_event(),
            Member::Function(function) => function.next_other(),
            // What is not taken has been named, and would be past.
            Member::Outside(port) => port.next_event().filter(|_| frames),
        }
    }

    pub(super) fn register_doorbell(&mut self, waker: &Waker) {
        match self {
            Member::Function(function) => function.register_doorbell(waker),
            Member::Outside(port) => port.register_doorbell(waker),
        }
    }

    /// False: a machine outside cannot be reset from here.
    pub(super) fn reset(&mut self, now: Instant) -> bool {
        match self {
            Member::Function(function) => {
                function.reset(now);
                true
            }
            Member::Outside(_) => false,
        }
    }
}

impl fmt::Debug for Member {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Member::Function(function) => function.fmt(f),
            Member::Outside(_) => f.write_str("Outside"),
        }
    }
}
