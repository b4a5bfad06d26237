//! What a wire is plugged into.

use crate::frame::Frame;
use core::task::Waker;
use offload_base::Instant;
use std::sync::{Arc, Mutex};

/// A side of a device that faces a wire: a NIC's network port, a bridge to somewhere else. Sans-IO.
///
/// Its runner repeats: [`register_doorbell`](Self::register_doorbell), every frame that arrived into
/// [`receive_frame`](Self::receive_frame), [`process`](Self::process), then
/// [`poll_frame`](Self::poll_frame) for as long as the wire takes frames and there are some; then it sleeps
/// until a frame arrives, the doorbell rings, the wire takes frames again, or
/// [`next_event`](Self::next_event) has come.
///
/// ```
/// use core::task::Waker;
/// use offload_wire::frame::Frame;
/// use offload_wire::Port;
/// use offload_base::Instant;
/// use std::collections::VecDeque;
///
/// /// Sends back whatever arrives.
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
    /// Takes a frame that has arrived. Never refuses: what there is no room for is dropped and counted.
    fn receive_frame(&mut self, now: Instant, frame: Frame);

    /// Takes several, in order, and leaves `frames` empty: the same as one by one, for less.
    fn receive_frames(&mut self, now: Instant, frames: &mut Vec<Frame>) {
        frames.drain(..).for_each(|frame| self.receive_frame(now, frame));
    }

    /// The next frame, if one leaves at `now` or earlier.
    fn poll_frame(&mut self, now: Instant) -> Option<Frame>;

    /// Does what is due at `now`.
    fn process(&mut self, now: Instant);

    /// When something is due next: work for [`process`](Self::process), or a frame for
    /// [`poll_frame`](Self::poll_frame). A frame that a wire did not take may still be named, with a time gone
    /// by; everything else that is past was done by the last `process`.
    fn next_event(&self) -> Option<Instant>;

    /// Has `waker` woken when the other side (a driver) has new work. What came before is to be looked for
    /// after this call, by [`process`](Self::process).
    fn register_doorbell(&mut self, waker: &Waker);
}

/// A port that somebody else looks at as well, for its counters for example.
impl<P: Port + ?Sized> Port for Arc<Mutex<P>> {
    fn receive_frame(&mut self, now: Instant, frame: Frame) {
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
