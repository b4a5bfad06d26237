//! The interface between a wire and a device.

use crate::frame::Frame;
use core::task::Waker;
use offload_base::Instant;
use std::sync::{Arc, Mutex};

/// A device's connection to a wire, such as a NIC's network port, or a bridge to another network. Sans-IO.
///
/// The runner of a port repeats these steps: call [`register_doorbell`](Self::register_doorbell); pass every arrived
/// frame to [`receive_frame`](Self::receive_frame); call [`process`](Self::process); call
/// [`poll_frame`](Self::poll_frame) while the wire accepts frames and the port returns some. The runner then sleeps
/// until a frame arrives, the doorbell rings, the wire accepts frames again, or the time of
/// [`next_event`](Self::next_event).
///
/// ```
/// use core::task::Waker;
/// use offload_wire::frame::Frame;
/// use offload_wire::Port;
/// use offload_base::Instant;
/// use std::collections::VecDeque;
///
/// /// Sends back every frame.
/// #[derive(Default)]
/// struct Echo(VecDeque<Frame>);
///
/// impl Port for Echo {
///     fn receive_frame(&mut self, _: Instant, frame: Frame) {
///         self.0.push_back(frame);
///     }
///     fn poll_frame(&mut self, _: Instant) -> Option<Frame> {
///         self.0.pop_front()
///     }
///     fn process(&mut self, _: Instant) {}
///     fn next_event(&self) -> Option<Instant> {
///         None
///     }
///     fn register_doorbell(&mut self, _: &Waker) {}
/// }
///
/// let mut echo = Echo::default();
/// echo.receive_frame(Instant::ZERO, Frame::from(vec![1, 2, 3]));
/// assert_eq!(echo.poll_frame(Instant::ZERO).unwrap().len(), 3);
/// ```
pub trait Port: Send {
    /// Takes a frame that has arrived. A port never refuses a frame: without room, it drops and counts the frame.
    fn receive_frame(&mut self, now: Instant, frame: Frame);

    /// Takes several frames in order, and leaves `frames` empty. Equivalent to single calls, but cheaper.
    fn receive_frames(&mut self, now: Instant, frames: &mut Vec<Frame>) {
        // Ports that take locks or look up state per frame override this.
        frames.drain(..).for_each(|frame| self.receive_frame(now, frame));
    }

    /// Returns the next frame to leave, if it leaves at `now` or earlier.
    fn poll_frame(&mut self, now: Instant) -> Option<Frame>;

    /// Performs the work that is due at `now`.
    fn process(&mut self, now: Instant);

    /// Returns the time of the next work for [`process`](Self::process), or of the next frame for
    /// [`poll_frame`](Self::poll_frame). The time may be past only if the wire did not take a frame, because `process`
    /// performs all other due work.
    fn next_event(&self) -> Option<Instant>;

    /// Registers `waker` for new work from the other side (a driver). Work that arrived before this call is found by
    /// the next [`process`](Self::process).
    fn register_doorbell(&mut self, waker: &Waker);
}

/// A shared port, whose owner can read its counters, for example.
impl<P: Port + ?Sized> Port for Arc<Mutex<P>> {
    fn receive_frame(&mut self, now: Instant, frame: Frame) {
        // A poisoned lock is used anyway: a panic of an observer must not stop the port.
        self.lock().unwrap_or_else(|poisoned| poisoned.into_inner()).receive_frame(now, frame);
    }

    fn receive_frames(&mut self, now: Instant, frames: &mut Vec<Frame>) {
        self.lock().unwrap_or_else(|poisoned| poisoned.into_inner()).receive_frames(now, frames);
    }

    fn poll_frame(&mut self, now: Instant) -> Option<Frame> {
        self.lock().unwrap_or_else(|poisoned| poisoned.into_inner()).poll_frame(now)
    }

    fn process(&mut self, now: Instant) {
        self.lock().unwrap_or_else(|poisoned| poisoned.into_inner()).process(now);
    }

    fn next_event(&self) -> Option<Instant> {
        self.lock().unwrap_or_else(|poisoned| poisoned.into_inner()).next_event()
    }

    fn register_doorbell(&mut self, waker: &Waker) {
        self.lock().unwrap_or_else(|poisoned| poisoned.into_inner()).register_doorbell(waker);
    }
}

impl<P: Port + ?Sized> Port for Box<P> {
    fn receive_frame(&mut self, now: Instant, frame: Frame) {
        (**self).receive_frame(now, frame);
    }

    fn receive_frames(&mut self, now: Instant, frames: &mut Vec<Frame>) {
        (**self).receive_frames(now, frames);
    }

    fn poll_frame(&mut self, now: Instant) -> Option<Frame> {
        (**self).poll_frame(now)
    }

    fn process(&mut self, now: Instant) {
        (**self).process(now);
    }

    fn next_event(&self) -> Option<Instant> {
        (**self).next_event()
    }

    fn register_doorbell(&mut self, waker: &Waker) {
        (**self).register_doorbell(waker);
    }
}
