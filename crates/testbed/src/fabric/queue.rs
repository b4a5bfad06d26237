//! A bounded queue of frames between two tasks.
//!
//! Invariant: whoever waits has looked again after asking to be woken, so no frame and no free place is missed;
//! whoever does not wait is not woken.

use core::task::Waker;
use nic_sim::frame::Frame;
use nic_sim::signal::Signal;

/// A queue of at most `frames` frames.
///
/// ```
/// use core::task::Waker;
/// use testbed::fabric::frame_queue;
///
/// let (mut sender, mut receiver) = frame_queue(1);
/// assert!(receiver.wait(Waker::noop()), "nothing there: woken at the next notify");
/// assert!(sender.push(vec![1, 2, 3].into()).is_ok());
/// sender.notify();
/// assert!(!sender.has_room() && sender.push(vec![4].into()).is_err());
/// assert_eq!(receiver.pop().unwrap().len(), 3);
/// assert!(sender.has_room());
/// ```
///
/// # Panics
/// If `frames` is zero.
pub fn frame_queue(frames: usize) -> (FrameSender, FrameReceiver) {
    assert!(frames > 0, "a queue without a place passes nothing on");
    let (producer, consumer) = rtrb::RingBuffer::new(frames);
    let (arrived, room) = (Signal::new(), Signal::new());
    let sender = FrameSender { producer, untold: false, arrived: arrived.clone(), room: room.clone() };
    (sender, FrameReceiver { consumer, untold: false, arrived, room })
}

/// Where frames go in. See [`frame_queue`].
#[derive(Debug)]
pub struct FrameSender {
    producer: rtrb::Producer<Frame>,
    /// Something was pushed since the last notify.
    untold: bool,
    arrived: Signal,
    room: Signal,
}

impl FrameSender {
    /// Whether the queue takes a frame.
    pub fn has_room(&self) -> bool {
        self.producer.slots() > 0
    }

    /// Queues a frame. The receiver hears of it at the next [`notify`](Self::notify).
    ///
    /// # Errors
    /// The frame, if the queue is full.
    pub fn push(&mut self, frame: Frame) -> Result<(), Frame> {
        self.producer.push(frame).map_err(|rtrb::PushError::Full(frame)| frame)?;
        self.untold = true;
        Ok(())
    }

    /// Wakes the receiver if it waits for frames and some were pushed since the last call.
    pub fn notify(&mut self) {
        if core::mem::take(&mut self.untold) {
            self.arrived.raise();
        }
    }

    /// Has `waker` woken once there is room. False: there is already.
    pub fn wait(&self, waker: &Waker) -> bool {
        self.room.arm(waker);
        let wait = !self.has_room();
        if !wait {
            self.room.disarm();
        }
        wait
    }
}

/// Where frames come out. See [`frame_queue`].
#[derive(Debug)]
pub struct FrameReceiver {
    consumer: rtrb::Consumer<Frame>,
    /// Something was popped since the last notify.
    untold: bool,
    arrived: Signal,
    room: Signal,
}

impl FrameReceiver {
    /// Whether there is no frame.
    pub fn is_empty(&self) -> bool {
        self.consumer.is_empty()
    }

    /// The next frame. The sender hears of the room at the next [`notify`](Self::notify).
    pub fn pop(&mut self) -> Option<Frame> {
        let frame = self.consumer.pop().ok()?;
        self.untold = true;
        Some(frame)
    }

    /// Wakes the sender if it waits for room and some were popped since the last call.
    pub fn notify(&mut self) {
        if core::mem::take(&mut self.untold) {
            self.room.raise();
        }
    }

    /// Has `waker` woken once there is a frame. False: there is one already.
    pub fn wait(&self, waker: &Waker) -> bool {
        self.arrived.arm(waker);
        let wait = self.is_empty();
        if !wait {
            self.arrived.disarm();
        }
        wait
    }
}
