//! The endpoint of a switch port: a PCI function with queues, or an external port that exchanges raw frames.

use crate::function::Function;
use bytes::Bytes;
use core::fmt;
use core::task::Waker;
use offload_base::Instant;
use offload_wire::Port;
use offload_wire::frame::Frame;

/// The endpoint of a switch port.
pub(super) enum PortEndpoint {
    /// A function with its driver in this process.
    Function(Box<Function>),
    /// A virtual machine with an externally emulated network card: frames without offloads.
    Outside(Box<dyn Port>),
}

impl PortEndpoint {
    pub(super) fn function(&self) -> Option<&Function> {
        match self {
            PortEndpoint::Function(function) => Some(function),
            PortEndpoint::Outside(_) => None,
        }
    }

    pub(super) fn poll_frame(&mut self, now: Instant) -> Option<Frame> {
        match self {
            PortEndpoint::Function(function) => function.poll_frame(now),
            PortEndpoint::Outside(port) => port.poll_frame(now),
        }
    }

    pub(super) fn take_frame(&mut self, now: Instant, frame: Bytes) {
        match self {
            PortEndpoint::Function(function) => function.take_frame(now, &frame),
            PortEndpoint::Outside(port) => {
                port.receive_frame(now, Frame::new(frame));
                // The port may have been processed earlier in this round, before frames of other functions arrived.
                port.process(now);
            }
        }
    }

    pub(super) fn process(&mut self, now: Instant) {
        match self {
            PortEndpoint::Function(function) => function.process(now),
            PortEndpoint::Outside(port) => port.process(now),
        }
    }

    /// Returns the time of the next event. If `frames` is false, the caller cannot take frames and waits for other
    /// events only.
    pub(super) fn next_event(&self, frames: bool) -> Option<Instant> {
        match self {
            PortEndpoint::Function(function) if frames => function.next_event(),
            PortEndpoint::Function(function) => function.next_other(),
            // The port reported its frames as due already. Without taking them, the time would lie in the past for
            // ever.
            PortEndpoint::Outside(port) => port.next_event().filter(|_| frames),
        }
    }

    pub(super) fn register_doorbell(&mut self, waker: &Waker) {
        match self {
            PortEndpoint::Function(function) => function.register_doorbell(waker),
            PortEndpoint::Outside(port) => port.register_doorbell(waker),
        }
    }

    /// Resets the endpoint; false for an external port, which cannot be reset from here.
    pub(super) fn reset(&mut self, now: Instant) -> bool {
        match self {
            PortEndpoint::Function(function) => {
                function.reset(now);
                true
            }
            PortEndpoint::Outside(_) => false,
        }
    }
}

impl fmt::Debug for PortEndpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            PortEndpoint::Function(function) => function.fmt(f),
            PortEndpoint::Outside(_) => f.write_str("Outside"),
        }
    }
}
