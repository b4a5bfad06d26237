//! Looking on: who sees the frames that pass a port, when, and which way they go.

use crate::frame::Frame;
use offload_base::Instant;
use std::sync::{Arc, Mutex, MutexGuard};

/// Which way a frame passes, seen from the port.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Direction {
    /// It arrived from the wire.
    Inbound,
    /// It leaves for the wire.
    Outbound,
}

/// Sees every frame that passes a port: what leaves it before the wire does anything to it, what arrives after.
///
/// See [`Recorder`] for an example.
pub trait Tap: Send {
    /// A frame passes at `at`.
    fn frame(&mut self, at: Instant, direction: Direction, frame: &Frame);
}

/// A tap that keeps everything, for tests. Clones share what was seen.
///
/// ```
/// use offload_wire::frame::Frame;
/// use offload_wire::{Direction, Recorder, Tap};
/// use offload_base::Instant;
///
/// let recorder = Recorder::default();
/// let mut tap = recorder.clone();
/// tap.frame(Instant::ZERO, Direction::Outbound, &Frame::from(vec![1, 2, 3]));
/// assert!(recorder.contains(&[2, 3]) && !recorder.contains(&[3, 2]));
/// ```
#[derive(Clone, Debug, Default)]
pub struct Recorder {
    seen: Arc<Mutex<Vec<Seen>>>,
}

/// A frame that a [`Recorder`] saw.
///
/// ```
/// use offload_base::Instant;
/// use offload_wire::frame::Frame;
/// use offload_wire::tap::Seen;
/// use offload_wire::{Direction, Recorder, Tap};
///
/// let recorder = Recorder::default();
/// let (at, direction, frame) = (Instant::from_nanos(5), Direction::Inbound, Frame::from(vec![0; 60]));
/// recorder.clone().frame(at, direction, &frame);
/// assert_eq!(recorder.seen(), [Seen { at, direction, frame }]);
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Seen {
    /// When.
    pub at: Instant,
    /// Which way it went.
    pub direction: Direction,
    /// The frame.
    pub frame: Frame,
}

impl Recorder {
    /// What was seen so far, in order.
    pub fn seen(&self) -> Vec<Seen> {
        self.lock().clone()
    }

    /// What was seen since the last call, in order.
    pub fn take(&self) -> Vec<Seen> {
        core::mem::take(&mut *self.lock())
    }

    /// Whether a frame held these bytes, whole.
    pub fn contains(&self, bytes: &[u8]) -> bool {
        self.lock()
            .iter()
            .any(|seen| bytes.is_empty() || seen.frame.data.windows(bytes.len()).any(|window| window == bytes))
    }

    fn lock(&self) -> MutexGuard<'_, Vec<Seen>> {
        self.seen.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }
}

impl Tap for Recorder {
    fn frame(&mut self, at: Instant, direction: Direction, frame: &Frame) {
        self.lock().push(Seen { at, direction, frame: frame.clone() });
    }
}
