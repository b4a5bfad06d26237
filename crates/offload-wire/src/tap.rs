//! Taps: observers of the frames that pass a port.

use crate::frame::Frame;
use offload_base::Instant;
use std::sync::{Arc, Mutex, MutexGuard};

/// The direction of a frame, seen from the port.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum TapDirection {
    /// The frame arrived from the wire.
    Inbound,
    /// The frame leaves for the wire.
    Outbound,
}

/// An observer of every frame that passes a port: outgoing frames before the wire impairs them, incoming frames after.
///
/// See [`FrameRecorder`] for an example.
pub trait Tap: Send {
    /// Observes a frame that passes at `at`.
    fn frame(&mut self, at: Instant, direction: TapDirection, frame: &Frame);
}

/// A tap that records all frames, for tests. Clones share the record.
///
/// ```
/// use offload_wire::frame::Frame;
/// use offload_wire::{TapDirection, FrameRecorder, Tap};
/// use offload_base::Instant;
///
/// let recorder = FrameRecorder::default();
/// let mut tap = recorder.clone();
/// tap.frame(Instant::ZERO, TapDirection::Outbound, &Frame::from(vec![1, 2, 3]));
/// assert!(recorder.contains(&[2, 3]) && !recorder.contains(&[3, 2]));
/// ```
#[derive(Clone, Debug, Default)]
pub struct FrameRecorder {
    seen: Arc<Mutex<Vec<RecordedFrame>>>,
}

/// A recorded frame.
///
/// ```
/// use offload_base::Instant;
/// use offload_wire::frame::Frame;
/// use offload_wire::tap::RecordedFrame;
/// use offload_wire::{TapDirection, FrameRecorder, Tap};
///
/// let recorder = FrameRecorder::default();
/// let (at, direction, frame) = (Instant::from_nanos(5), TapDirection::Inbound, Frame::from(vec![0; 60]));
/// recorder.clone().frame(at, direction, &frame);
/// assert_eq!(recorder.seen(), [RecordedFrame { at, direction, frame }]);
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RecordedFrame {
    /// Time of the frame's passage.
    pub at: Instant,
    /// Whether the frame arrived or left.
    pub direction: TapDirection,
    /// The frame.
    pub frame: Frame,
}

impl FrameRecorder {
    /// Returns the frames recorded so far, in order.
    pub fn seen(&self) -> Vec<RecordedFrame> {
        self.lock().clone()
    }

    /// Returns the frames recorded since the last call, in order.
    pub fn take(&self) -> Vec<RecordedFrame> {
        // Long runs take the record piece by piece, so that it does not grow without bound.
        core::mem::take(&mut *self.lock())
    }

    /// Tests whether one frame contains all of these bytes.
    pub fn contains(&self, bytes: &[u8]) -> bool {
        self.lock()
            .iter()
            .any(|seen| bytes.is_empty() || seen.frame.data.windows(bytes.len()).any(|window| window == bytes))
    }

    fn lock(&self) -> MutexGuard<'_, Vec<RecordedFrame>> {
        self.seen.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }
}

impl Tap for FrameRecorder {
    fn frame(&mut self, at: Instant, direction: TapDirection, frame: &Frame) {
        self.lock().push(RecordedFrame { at, direction, frame: frame.clone() });
    }
}
