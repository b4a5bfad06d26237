//! A bounded queue of frames between two tasks.
//!
//! Invariant: a waiting task has checked again after arming its waker, so no frame and no free slot is missed. A task
//! that does not wait is not woken.
//!
//! Between threads, frames are copied with non-temporal stores. Their memory then stays with the sender's core, which
//! would otherwise have to take back every cache line from the receiver's core before writing the next frame there. For
//! the same reason many frames travel together, in one buffer and one slot of the queue.

use bytes::{Bytes, BytesMut};
use core::task::Waker;
use nic_sim::frame::Frame;
use nic_sim::signal::Signal;
use offload_base::BufferPool;
use smallvec::SmallVec;
use stream_copy::{LINE, append_lines};

/// Creates a queue of at most `frames` frames.
///
/// ```
/// use core::task::Waker;
/// use offload_testbed::fabric::frame_queue;
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

/// Creates a queue between two threads. A received frame is a copy and may arrive only after the
/// [`notify`](FrameSender::notify) that follows its [`push`](FrameSender::push).
///
/// Frames travel in loads of at most 32, and the queue has one slot for every started 32 of `frames`. A load that is
/// notified before it is full also takes a slot. One more load can be under construction in front of the queue, and one
/// can be half consumed behind it.
///
/// ```
/// use offload_testbed::fabric::frame_queue_between_threads;
///
/// let (mut sender, mut receiver) = frame_queue_between_threads(64);
/// assert!(sender.push(vec![1, 2, 3].into()).is_ok() && sender.push(vec![4].into()).is_ok());
/// assert!(receiver.pop().is_none());
/// sender.notify();
/// assert_eq!([receiver.pop(), receiver.pop()], [Some(vec![1, 2, 3].into()), Some(vec![4].into())]);
/// ```
///
/// # Panics
/// If `frames` is zero.
pub fn frame_queue_between_threads(frames: usize) -> (FrameSender, FrameReceiver) {
    // A load must fit in the queue's own limit.
    let most_frames = frames.min(FRAMES_PER_LOAD);
    let loader = Loader {
        most_frames,
        buffers: BufferPool::new(LOAD_BYTES, LOADS_PER_SLAB),
        rest: BytesMut::new(),
        frames: Vec::with_capacity(most_frames),
        bytes: 0,
    };
    queue(frames.div_ceil(FRAMES_PER_LOAD), Some(loader))
}

fn queue(places: usize, loader: Option<Loader>) -> (FrameSender, FrameReceiver) {
    assert!(places > 0, "a queue without a place passes nothing on");
    let (arrived, room) = (Signal::new(), Signal::new());
    let (sending, receiving) = match loader {
        None => {
            let (producer, consumer) = rtrb::RingBuffer::new(places);
            (SenderRing::Frames(producer), ReceiverRing::Frames(consumer))
        }
        Some(loader) => {
            let (producer, consumer) = rtrb::RingBuffer::new(places);
            (SenderRing::Loads { producer, loader }, ReceiverRing::Loads { consumer, current: Unloader::default() })
        }
    };
    let sender = FrameSender { sending, untold: false, arrived: arrived.clone(), room: room.clone() };
    (sender, FrameReceiver { receiving, untold: false, arrived, room })
}

/// The sending end of a frame queue. See [`frame_queue`].
///
/// See [`frame_queue`] for an example.
#[derive(Debug)]
pub struct FrameSender {
    sending: SenderRing,
    /// Whether frames were pushed since the last notify.
    untold: bool,
    arrived: Signal,
    room: Signal,
}

/// The ring in front of a sender: single frames, or loads.
#[derive(Debug)]
enum SenderRing {
    Frames(rtrb::Producer<Frame>),
    /// Loads of frames, between threads.
    Loads {
        producer: rtrb::Producer<FrameLoad>,
        loader: Loader,
    },
}

/// Frames that cross to another thread together. A slot for each frame would cost a cache line owned by the other core,
/// and so would each frame's reference count.
#[derive(Debug)]
struct FrameLoad {
    /// The frames' bytes; each frame begins on a cache line.
    bytes: BytesMut,
    lengths: SmallVec<[u32; FRAMES_PER_LOAD]>,
}

/// A builder of loads.
#[derive(Debug)]
struct Loader {
    most_frames: usize,
    buffers: BufferPool,
    /// The unused rest of a buffer, for further loads.
    rest: BytesMut,
    /// Frames that are not copied yet.
    frames: Vec<Frame>,
    /// Bytes that the copies of `frames` will take.
    bytes: usize,
}

impl Loader {
    fn is_full(&self) -> bool {
        self.frames.len() == self.most_frames
    }

    /// Returns whether `frame` fits in the current load.
    fn takes(&self, frame: &Frame) -> bool {
        self.frames.is_empty() || (!self.is_full() && self.bytes + in_lines(frame.len()) <= LOAD_BYTES)
    }

    fn add(&mut self, frame: Frame) {
        self.bytes += in_lines(frame.len());
        self.frames.push(frame);
    }

    /// Copies the collected frames into a load.
    fn load(&mut self) -> FrameLoad {
        // Small loads share one buffer; a load that does not fit takes a new one.
        if self.rest.capacity() < self.bytes {
            let pooled = self.bytes <= LOAD_BYTES;
            self.rest = if pooled { self.buffers.take() } else { BytesMut::with_capacity(self.bytes) };
        }
        append_lines(&mut self.rest, self.frames.iter().map(|frame| &frame.data[..]));
        let bytes = self.rest.split();
        let lengths = self.frames.iter().map(|frame| frame.len() as u32).collect();
        self.frames.clear();
        self.bytes = 0;
        FrameLoad { bytes, lengths }
    }
}

impl FrameSender {
    /// Returns whether the queue accepts a frame. Between threads, the next [`notify`](Self::notify) may make room
    /// again.
    pub fn has_room(&self) -> bool {
        match &self.sending {
            SenderRing::Frames(producer) => producer.slots() > 0,
            // The frame may join the current load, or may need a second slot beside that load.
            SenderRing::Loads { producer, loader } => producer.slots() > usize::from(!loader.frames.is_empty()),
        }
    }

    /// Queues a frame. The receiver is woken at the next [`notify`](Self::notify).
    ///
    /// # Errors
    /// Returns the frame if the queue is full.
    pub fn push(&mut self, frame: Frame) -> Result<(), Frame> {
        if !self.has_room() {
            return Err(frame);
        }
        match &mut self.sending {
            SenderRing::Frames(producer) => producer.push(frame).map_err(|rtrb::PushError::Full(frame)| frame)?,
            SenderRing::Loads { loader, .. } if loader.takes(&frame) => loader.add(frame),
            SenderRing::Loads { .. } => {
                self.notify();
                return self.push(frame);
            }
        }
        self.untold = true;
        if matches!(&self.sending, SenderRing::Loads { loader, .. } if loader.is_full()) {
            self.notify();
        }
        Ok(())
    }

    /// Wakes a waiting receiver if frames were pushed since the last call.
    pub fn notify(&mut self) {
        if core::mem::take(&mut self.untold) {
            if let SenderRing::Loads { producer, loader } = &mut self.sending {
                // A slot was free when the load's first frame came, and no other task fills slots.
                let _place = producer.push(loader.load());
            }
            self.arrived.raise();
        }
    }

    /// Wakes `waker` when there is room. Returns false if there is room already.
    pub fn wait(&self, waker: &Waker) -> bool {
        // Arming comes before the check: room made in between rings the signal.
        self.room.arm(waker);
        let wait = !self.has_room();
        if !wait {
            self.room.disarm();
        }
        wait
    }
}

/// The receiving end of a frame queue. See [`frame_queue`].
///
/// See [`frame_queue`] for an example.
#[derive(Debug)]
pub struct FrameReceiver {
    receiving: ReceiverRing,
    /// Whether frames were popped since the last notify.
    untold: bool,
    arrived: Signal,
    room: Signal,
}

#[derive(Debug)]
enum ReceiverRing {
    Frames(rtrb::Consumer<Frame>),
    Loads { consumer: rtrb::Consumer<FrameLoad>, current: Unloader },
}

/// The unread frames of a load.
#[derive(Debug, Default)]
struct Unloader {
    bytes: Bytes,
    lengths: SmallVec<[u32; FRAMES_PER_LOAD]>,
    /// Number of frames already taken.
    out: usize,
}

impl Unloader {
    fn front(&self) -> Option<&[u8]> {
        let length = *self.lengths.get(self.out)? as usize;
        Some(&self.bytes[..length])
    }
}

impl Iterator for Unloader {
    type Item = Frame;

    fn next(&mut self) -> Option<Frame> {
        let length = *self.lengths.get(self.out)? as usize;
        self.out += 1;
        // The last frame takes over the load's own reference.
        let is_last = self.out == self.lengths.len();
        let mut frame = if is_last { core::mem::take(&mut self.bytes) } else { self.bytes.split_to(in_lines(length)) };
        frame.truncate(length);
        Some(Frame::new(frame))
    }
}

impl From<FrameLoad> for Unloader {
    fn from(load: FrameLoad) -> Unloader {
        Unloader { bytes: load.bytes.freeze(), lengths: load.lengths, out: 0 }
    }
}

impl FrameReceiver {
    /// Returns a lower bound of the number of queued frames.
    pub fn len(&self) -> usize {
        match &self.receiving {
            ReceiverRing::Frames(consumer) => consumer.slots(),
            ReceiverRing::Loads { consumer, current } => current.lengths.len() - current.out + consumer.slots(),
        }
    }

    /// Returns whether the queue is empty.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Takes the next frame. The sender is told of the room at the next [`notify`](Self::notify).
    pub fn pop(&mut self) -> Option<Frame> {
        self.fill();
        match &mut self.receiving {
            ReceiverRing::Frames(consumer) => {
                let frame = consumer.pop().ok()?;
                self.untold = true;
                Some(frame)
            }
            ReceiverRing::Loads { current, .. } => current.next(),
        }
    }

    /// Returns the bytes of the frame that [`pop`](Self::pop) takes next.
    pub(super) fn front(&mut self) -> Option<&[u8]> {
        self.fill();
        match &self.receiving {
            ReceiverRing::Frames(consumer) => consumer.peek().ok().map(|frame| &frame.data[..]),
            ReceiverRing::Loads { current, .. } => current.front(),
        }
    }

    /// Takes the next load if the last load is used up.
    fn fill(&mut self) {
        if let ReceiverRing::Loads { consumer, current } = &mut self.receiving
            && current.front().is_none()
            && let Ok(load) = consumer.pop()
        {
            *current = load.into();
            self.untold = true;
        }
    }

    /// Wakes a waiting sender if frames were popped since the last call.
    pub fn notify(&mut self) {
        if core::mem::take(&mut self.untold) {
            self.room.raise();
        }
    }

    /// Wakes `waker` when a frame arrives. Returns false if a frame is queued already.
    pub fn wait(&self, waker: &Waker) -> bool {
        // Arming comes before the check: a frame pushed in between rings the signal.
        self.arrived.arm(waker);
        let wait = self.is_empty();
        if !wait {
            self.arrived.disarm();
        }
        wait
    }
}

/// Returns the space of a frame in a load: whole cache lines.
fn in_lines(bytes: usize) -> usize {
    bytes.next_multiple_of(LINE)
}

/// Frames per load: few enough to stay in the nearest caches, enough to amortize the fixed cost of a copy.
const FRAMES_PER_LOAD: usize = 32;
/// Bytes per load: 32 frames of the usual MTU, each in whole cache lines. A longer frame gets its own buffer.
const LOAD_BYTES: usize = FRAMES_PER_LOAD * 1536;
const LOADS_PER_SLAB: usize = 2;

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::VecDeque;

    #[derive(Clone, Copy, Debug)]
    enum QueueStep {
        Push(usize),
        Notify,
        Pop,
    }

    fn steps() -> impl Strategy<Value = Vec<QueueStep>> {
        let bytes = prop_oneof![1usize..70, Just(1514), 1500usize..1600, 8000usize..9100, Just(LOAD_BYTES + 1)];
        let step =
            prop_oneof![4 => bytes.prop_map(QueueStep::Push), 1 => Just(QueueStep::Notify), 4 => Just(QueueStep::Pop)];
        prop::collection::vec(step, 0..400)
    }

    proptest! {
        /// Notified frames come out complete and in order, and no frame is lost or invented. A queue that reports room
        /// accepts a frame, and an empty queue has room.
        #[test]
        fn frames_come_out_as_they_went_in(steps in steps(), frames in 1usize..100, between_threads: bool) {
            let (mut sender, mut receiver) =
                if between_threads { frame_queue_between_threads(frames) } else { frame_queue(frames) };
            let mut inside = VecDeque::new();
            // Held until the end, because later frames must not overwrite memory that these frames share.
            let mut out = Vec::new();
            for (number, step) in steps.into_iter().chain([QueueStep::Notify]).enumerate() {
                match step {
                    QueueStep::Push(bytes) => {
                        let frame = Frame::from(vec![number as u8; bytes]);
                        let had_room = sender.has_room();
                        prop_assert!(had_room || !inside.is_empty());
                        prop_assert_eq!(sender.push(frame.clone()).is_ok(), had_room);
                        if had_room {
                            inside.push_back(frame);
                        }
                    }
                    QueueStep::Notify => {
                        sender.notify();
                        prop_assert!(receiver.len() <= inside.len() && receiver.is_empty() == inside.is_empty());
                    }
                    QueueStep::Pop => {
                        let expected = if receiver.is_empty() { None } else { inside.pop_front() };
                        let popped = receiver.pop();
                        prop_assert_eq!(&popped, &expected);
                        out.extend(popped.into_iter().zip(expected));
                    }
                }
            }
            let rest: VecDeque<Frame> = core::iter::from_fn(|| receiver.pop()).collect();
            prop_assert_eq!(rest, inside);
            prop_assert!(out.iter().all(|(popped, expected)| popped == expected), "as they were, all the time");
        }
    }
}
