//! A bounded queue of frames between two tasks.
//!
//! Invariant: whoever waits has looked again after asking to be woken, so no frame and no free place is missed;
//! whoever does not wait is not woken.
//!
//! Between threads, frames are copied on their way, past the caches: their memory then stays with the sender's core,
//! which would otherwise have to take every line of it back from the receiver's before it writes the next frame there.

use bytes::BytesMut;
use core::task::Waker;
use nic_sim::frame::Frame;
use nic_sim::signal::Signal;
use offload_base::BufferPool;
use stream_copy::append_each;

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
    queue(frames, None)
}

/// The same between threads: a frame comes out as a copy, and perhaps only after the
/// [`notify`](FrameSender::notify) that follows its [`push`](FrameSender::push).
///
/// ```
/// use testbed::fabric::frame_queue_between_threads;
///
/// let (mut sender, mut receiver) = frame_queue_between_threads(1);
/// assert!(sender.push(vec![1, 2, 3].into()).is_ok());
/// assert!(receiver.pop().is_none() && !sender.has_room());
/// sender.notify();
/// assert_eq!(receiver.pop(), Some(vec![1, 2, 3].into()));
/// ```
///
/// # Panics
/// If `frames` is zero.
pub fn frame_queue_between_threads(frames: usize) -> (FrameSender, FrameReceiver) {
    let buffers = BufferPool::new(BUFFER_BYTES, BUFFERS_PER_SLAB);
    queue(frames, Some(Copier { buffers, frames: Vec::new(), copies: Vec::new() }))
}

fn queue(frames: usize, copier: Option<Copier>) -> (FrameSender, FrameReceiver) {
    assert!(frames > 0, "a queue without a place passes nothing on");
    let (producer, consumer) = rtrb::RingBuffer::new(frames);
    let (arrived, room) = (Signal::new(), Signal::new());
    let sender = FrameSender { producer, copier, untold: false, arrived: arrived.clone(), room: room.clone() };
    (sender, FrameReceiver { consumer, untold: false, arrived, room })
}

/// Where frames go in. See [`frame_queue`].
#[derive(Debug)]
pub struct FrameSender {
    producer: rtrb::Producer<Frame>,
    copier: Option<Copier>,
    /// Something was pushed since the last notify.
    untold: bool,
    arrived: Signal,
    room: Signal,
}

/// Makes the copies that cross to another thread.
#[derive(Debug)]
struct Copier {
    buffers: BufferPool,
    /// Not copied yet: many are copied at a time.
    frames: Vec<Frame>,
    /// Used while they are; empty otherwise.
    copies: Vec<BytesMut>,
}

impl Copier {
    /// Copies, for the queue, what was not copied yet.
    fn copy(&mut self) -> impl Iterator<Item = Frame> + '_ {
        let pooled = |frame: &Frame| frame.len() <= BUFFER_BYTES;
        let buffers = self.frames.iter().map(|frame| if pooled(frame) { self.buffers.take() } else { BytesMut::new() });
        self.copies.extend(buffers);
        append_each(self.copies.iter_mut().zip(self.frames.iter().map(|frame| &frame.data[..])));
        self.frames.clear();
        self.copies.drain(..).map(Frame::from)
    }
}

impl FrameSender {
    /// Whether the queue takes a frame.
    pub fn has_room(&self) -> bool {
        let waiting = self.copier.as_ref().map_or(0, |copier| copier.frames.len());
        self.producer.slots() > waiting
    }

    /// Queues a frame. The receiver hears of it at the next [`notify`](Self::notify).
    ///
    /// # Errors
    /// The frame, if the queue is full.
    pub fn push(&mut self, frame: Frame) -> Result<(), Frame> {
        match &mut self.copier {
            None => self.producer.push(frame).map_err(|rtrb::PushError::Full(frame)| frame)?,
            Some(copier) if copier.frames.len() < self.producer.slots() => copier.frames.push(frame),
            Some(_) => return Err(frame),
        }
        self.untold = true;
        if self.copier.as_ref().is_some_and(|copier| copier.frames.len() == COPIED_AT_ONCE) {
            self.notify();
        }
        Ok(())
    }

    /// Wakes the receiver if it waits for frames and some were pushed since the last call.
    pub fn notify(&mut self) {
        if core::mem::take(&mut self.untold) {
            if let Some(copier) = &mut self.copier {
                for copy in copier.copy() {
                    // There were as many places, and nobody else fills them.
                    let _place = self.producer.push(copy);
                }
            }
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
    /// How many frames there are, at least.
    pub fn len(&self) -> usize {
        self.consumer.slots()
    }

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

/// A buffer for a frame of the usual MTU; a larger one gets memory of its own.
const BUFFER_BYTES: usize = 1536;
const BUFFERS_PER_SLAB: usize = 64;
/// So many frames are still in the nearest caches, and enough that what ends a copy does not count.
const COPIED_AT_ONCE: usize = 32;
