//! A bounded queue of frames between two tasks.
//!
//! Invariant: a task that waits has looked again after asking to be woken, so no frame and no free place is missed;
//! a task that does not wait is not woken.
//!
//! Between threads, frames are copied on their way, past the caches: their memory then stays with the sender's core,
//! which would otherwise have to take every line of it back from the receiver's before it writes the next frame there.
//! For the same reason they go many at a time, in one piece of memory and one place of the queue.

use bytes::{Bytes, BytesMut};
use core::task::Waker;
use nic_sim::frame::Frame;
use nic_sim::signal::Signal;
use offload_base::BufferPool;
use smallvec::SmallVec;
use stream_copy::{LINE, append_lines};

/// A queue of at most `frames` frames.
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

/// The same between threads: a frame comes out as a copy, and perhaps only after the
/// [`notify`](FrameSender::notify) that follows its [`push`](FrameSender::push).
///
/// Frames go in loads of 32 at most, and there is a place for every 32 of `frames` or a part of them. A load that is told of before
/// it is full takes a place as well; one more is made up in front of the queue, and one taken apart behind it.
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
            (Sending::Frames(producer), Receiving::Frames(consumer))
        }
        Some(loader) => {
            let (producer, consumer) = rtrb::RingBuffer::new(places);
            (Sending::Loads { producer, loader }, Receiving::Loads { consumer, current: Unloader::default() })
        }
    };
    let sender = FrameSender { sending, untold: false, arrived: arrived.clone(), room: room.clone() };
    (sender, FrameReceiver { receiving, untold: false, arrived, room })
}

/// Where frames go in. See [`frame_queue`].
///
/// See [`frame_queue`] for an example.
#[derive(Debug)]
pub struct FrameSender {
    sending: Sending,
    /// Something was pushed since the last notify.
    untold: bool,
    arrived: Signal,
    room: Signal,
}

/// What a queue passes on.
#[derive(Debug)]
enum Sending {
    Frames(rtrb::Producer<Frame>),
    /// Between threads.
    Loads {
        producer: rtrb::Producer<Load>,
        loader: Loader,
    },
}

/// Frames that cross to another thread together. A place in the queue for each would cost a cache line that the other
/// core has, and so would each one's count of references.
#[derive(Debug)]
struct Load {
    /// The frames, each from a cache line on.
    bytes: BytesMut,
    lengths: SmallVec<[u32; FRAMES_PER_LOAD]>,
}

/// Makes loads.
#[derive(Debug)]
struct Loader {
    most_frames: usize,
    buffers: BufferPool,
    /// What is left of a buffer, for loads that take less.
    rest: BytesMut,
    /// Not copied yet.
    frames: Vec<Frame>,
    /// Bytes that their copies will take.
    bytes: usize,
}

impl Loader {
    fn is_full(&self) -> bool {
        self.frames.len() == self.most_frames
    }

    /// Whether a frame goes with those that are there.
    fn takes(&self, frame: &Frame) -> bool {
        self.frames.is_empty() || (!self.is_full() && self.bytes + in_lines(frame.len()) <= LOAD_BYTES)
    }

    fn add(&mut self, frame: Frame) {
        self.bytes += in_lines(frame.len());
        self.frames.push(frame);
    }

    /// Copies what is there.
    fn load(&mut self) -> Load {
        if self.rest.capacity() < self.bytes {
            let pooled = self.bytes <= LOAD_BYTES;
            self.rest = if pooled { self.buffers.take() } else { BytesMut::with_capacity(self.bytes) };
        }
        append_lines(&mut self.rest, self.frames.iter().map(|frame| &frame.data[..]));
        let bytes = self.rest.split();
        let lengths = self.frames.iter().map(|frame| frame.len() as u32).collect();
        self.frames.clear();
        self.bytes = 0;
        Load { bytes, lengths }
    }
}

impl FrameSender {
    /// Whether the queue takes a frame. Between threads there may be room again after the next [`notify`](Self::notify).
    pub fn has_room(&self) -> bool {
        match &self.sending {
            Sending::Frames(producer) => producer.slots() > 0,
            // The frame may go with those that wait, or need a place beside theirs.
            Sending::Loads { producer, loader } => producer.slots() > usize::from(!loader.frames.is_empty()),
        }
    }

    /// Queues a frame. The receiver hears of it at the next [`notify`](Self::notify).
    ///
    /// # Errors
    /// The frame, if the queue is full.
    pub fn push(&mut self, frame: Frame) -> Result<(), Frame> {
        if !self.has_room() {
            return Err(frame);
        }
        match &mut self.sending {
            Sending::Frames(producer) => producer.push(frame).map_err(|rtrb::PushError::Full(frame)| frame)?,
            Sending::Loads { loader, .. } if loader.takes(&frame) => loader.add(frame),
            Sending::Loads { .. } => {
                self.notify();
                return self.push(frame);
            }
        }
        self.untold = true;
        if matches!(&self.sending, Sending::Loads { loader, .. } if loader.is_full()) {
            self.notify();
        }
        Ok(())
    }

    /// Wakes the receiver if it waits for frames and some were pushed since the last call.
    pub fn notify(&mut self) {
        if core::mem::take(&mut self.untold) {
            if let Sending::Loads { producer, loader } = &mut self.sending {
                // There was a place when the first of them came, and nobody else fills it.
                let _place = producer.push(loader.load());
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
///
/// See [`frame_queue`] for an example.
#[derive(Debug)]
pub struct FrameReceiver {
    receiving: Receiving,
    /// Something was popped since the last notify.
    untold: bool,
    arrived: Signal,
    room: Signal,
}

#[derive(Debug)]
enum Receiving {
    Frames(rtrb::Consumer<Frame>),
    Loads { consumer: rtrb::Consumer<Load>, current: Unloader },
}

/// Frames of a load that are still to come out.
#[derive(Debug, Default)]
struct Unloader {
    bytes: Bytes,
    lengths: SmallVec<[u32; FRAMES_PER_LOAD]>,
    /// How many came out.
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
        // The last one takes the load's own reference with it.
        let is_last = self.out == self.lengths.len();
        let mut frame = if is_last { core::mem::take(&mut self.bytes) } else { self.bytes.split_to(in_lines(length)) };
        frame.truncate(length);
        Some(Frame::new(frame))
    }
}

impl From<Load> for Unloader {
    fn from(load: Load) -> Unloader {
        Unloader { bytes: load.bytes.freeze(), lengths: load.lengths, out: 0 }
    }
}

impl FrameReceiver {
    /// How many frames there are, at least.
    pub fn len(&self) -> usize {
        match &self.receiving {
            Receiving::Frames(consumer) => consumer.slots(),
            Receiving::Loads { consumer, current } => current.lengths.len() - current.out + consumer.slots(),
        }
    }

    /// Whether there is no frame.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The next frame. The sender hears of the room at the next [`notify`](Self::notify).
    pub fn pop(&mut self) -> Option<Frame> {
        self.fill();
        match &mut self.receiving {
            Receiving::Frames(consumer) => {
                let frame = consumer.pop().ok()?;
                self.untold = true;
                Some(frame)
            }
            Receiving::Loads { current, .. } => current.next(),
        }
    }

    /// The bytes of the frame that [`pop`](Self::pop) takes next.
    pub(super) fn front(&mut self) -> Option<&[u8]> {
        self.fill();
        match &self.receiving {
            Receiving::Frames(consumer) => consumer.peek().ok().map(|frame| &frame.data[..]),
            Receiving::Loads { current, .. } => current.front(),
        }
    }

    /// Takes the next load, if there is nothing left of the last one.
    fn fill(&mut self) {
        if let Receiving::Loads { consumer, current } = &mut self.receiving
            && current.front().is_none()
            && let Ok(load) = consumer.pop()
        {
            *current = load.into();
            self.untold = true;
        }
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

/// What a frame takes in a load.
fn in_lines(bytes: usize) -> usize {
    bytes.next_multiple_of(LINE)
}

/// So many frames are still in the nearest caches, and enough that what ends a copy does not count.
const FRAMES_PER_LOAD: usize = 32;
/// As many of the usual MTU, each in whole cache lines; a frame that is longer than that has memory of its own.
const LOAD_BYTES: usize = FRAMES_PER_LOAD * 1536;
const LOADS_PER_SLAB: usize = 2;

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::VecDeque;

    #[derive(Clone, Copy, Debug)]
    enum Step {
        Push(usize),
        Notify,
        Pop,
    }

    fn steps() -> impl Strategy<Value = Vec<Step>> {
        let bytes = prop_oneof![1usize..70, Just(1514), 1500usize..1600, 8000usize..9100, Just(LOAD_BYTES + 1)];
        let step = prop_oneof![4 => bytes.prop_map(Step::Push), 1 => Just(Step::Notify), 4 => Just(Step::Pop)];
        prop::collection::vec(step, 0..400)
    }

    proptest! {
        /// What was told of comes out whole, in order, and nothing is lost or made up; a queue that says it has room takes a
        /// frame, and an empty one has room.
        #[test]
        fn frames_come_out_as_they_went_in(steps in steps(), frames in 1usize..100, between_threads: bool) {
            let (mut sender, mut receiver) =
                if between_threads { frame_queue_between_threads(frames) } else { frame_queue(frames) };
            let mut inside = VecDeque::new();
            // Frames keep the memory that they share.
            let mut out = Vec::new();
            for (number, step) in steps.into_iter().chain([Step::Notify]).enumerate() {
                match step {
                    Step::Push(bytes) => {
                        let frame = Frame::from(vec![number as u8; bytes]);
                        let had_room = sender.has_room();
                        prop_assert!(had_room || !inside.is_empty());
                        prop_assert_eq!(sender.push(frame.clone()).is_ok(), had_room);
                        if had_room {
                            inside.push_back(frame);
                        }
                    }
                    Step::Notify => {
                        sender.notify();
                        prop_assert!(receiver.len() <= inside.len() && receiver.is_empty() == inside.is_empty());
                    }
                    Step::Pop => {
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
