//! Descriptor rings: one producer, one consumer, and ownership passes with the entry.
//!
//! The producer stages entries invisibly, and publishes all staged entries at once: the batch that a doorbell
//! announces. Signals are separate (see [`crate::signal`]).
//!
//! Invariant: entries come out in the order of their staging, each exactly once.

use std::collections::VecDeque;

/// Creates a ring with room for `capacity` entries.
///
/// ```
/// use nic_rings::ring::ring;
///
/// let (mut producer, mut consumer) = ring(2);
/// producer.stage("parameters").unwrap();
/// producer.stage("packet").unwrap();
/// assert_eq!(producer.stage("one too many"), Err("one too many"));
/// assert_eq!(consumer.pop(), None, "nothing was published yet");
/// assert_eq!(producer.publish(), 2);
/// assert_eq!(consumer.pop(), Some("parameters"));
/// ```
///
/// # Panics
/// If `capacity` is zero.
pub fn ring<T>(capacity: usize) -> (Producer<T>, Consumer<T>) {
    assert!(capacity > 0, "a ring needs at least one entry");
    let (producer, consumer) = rtrb::RingBuffer::new(capacity);
    (Producer { published: producer, staged: VecDeque::new() }, Consumer { published: consumer })
}

/// The end of a ring at which entries are added. See [`ring`] for an example.
#[derive(Debug)]
pub struct Producer<T> {
    published: rtrb::Producer<T>,
    staged: VecDeque<T>,
}

impl<T> Producer<T> {
    /// Returns the number of entries that can be staged now.
    pub fn room(&self) -> usize {
        // Staged entries have room reserved, so that publishing cannot fail.
        self.published.slots() - self.staged.len()
    }

    /// Adds an entry, which stays invisible until it is published.
    ///
    /// # Errors
    /// Returns the entry if the ring is full.
    pub fn stage(&mut self, entry: T) -> Result<(), T> {
        if self.room() == 0 {
            return Err(entry);
        }
        self.staged.push_back(entry);
        Ok(())
    }

    /// Returns the number of entries that wait to be published.
    pub fn staged(&self) -> usize {
        self.staged.len()
    }

    /// Publishes all staged entries at once, and returns their number.
    pub fn publish(&mut self) -> usize {
        let count = self.staged.len();
        // One chunk makes all entries visible with a single store, as one doorbell announces them.
        if let Ok(chunk) = self.published.write_chunk_uninit(count) {
            chunk.fill_from_iter(self.staged.drain(..));
        }
        debug_assert!(self.staged.is_empty(), "staged entries have reserved room");
        count
    }

    /// Tests whether the consumer is gone, so that published entries stay on the ring.
    pub fn is_abandoned(&self) -> bool {
        self.published.is_abandoned()
    }

    /// Stages and publishes one entry.
    ///
    /// # Errors
    /// Returns the entry if the ring is full.
    pub fn push(&mut self, entry: T) -> Result<(), T> {
        self.stage(entry)?;
        self.publish();
        Ok(())
    }
}

/// The end of a ring at which entries are removed. See [`ring`] for an example.
#[derive(Debug)]
pub struct Consumer<T> {
    published: rtrb::Consumer<T>,
}

impl<T> Consumer<T> {
    /// Takes the oldest published entry.
    pub fn pop(&mut self) -> Option<T> {
        self.published.pop().ok()
    }

    /// Returns the number of published entries.
    pub fn len(&self) -> usize {
        self.published.slots()
    }

    /// Tests whether there is no published entry.
    pub fn is_empty(&self) -> bool {
        self.published.is_empty()
    }

    /// Tests whether the producer is gone. Its published entries remain.
    pub fn is_abandoned(&self) -> bool {
        self.published.is_abandoned()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[derive(Clone, Debug)]
    enum RingStep {
        Stage,
        Publish,
        Pop,
    }

    proptest! {
        /// Compares the ring with a model of two queues.
        #[test]
        fn ring_behaves_like_two_queues(
            capacity in 1usize..9,
            steps in prop::collection::vec(prop_oneof![Just(RingStep::Stage), Just(RingStep::Publish), Just(RingStep::Pop)], 0..200),
        ) {
            let (mut producer, mut consumer) = ring(capacity);
            let (mut staged, mut visible) = (VecDeque::new(), VecDeque::new());
            for (number, step) in steps.into_iter().enumerate() {
                match step {
                    RingStep::Stage => {
                        // Staged entries count, although the consumer cannot see them.
                        let fits = staged.len() + visible.len() < capacity;
                        prop_assert_eq!(producer.stage(number).is_ok(), fits);
                        if fits {
                            staged.push_back(number);
                        }
                    }
                    RingStep::Publish => {
                        prop_assert_eq!(producer.publish(), staged.len());
                        visible.append(&mut staged);
                    }
                    RingStep::Pop => prop_assert_eq!(consumer.pop(), visible.pop_front()),
                }
                prop_assert_eq!(consumer.len(), visible.len());
                prop_assert_eq!(producer.room(), capacity - staged.len() - visible.len());
            }
        }
    }

    #[test]
    fn entries_cross_threads_in_order() {
        let (mut producer, mut consumer) = ring(8);
        let count = 10_000u32;
        let taker = std::thread::spawn(move || {
            let mut expected = 0;
            while expected < count {
                match consumer.pop() {
                    Some(entry) => {
                        assert_eq!(entry, expected);
                        expected += 1;
                    }
                    None => std::thread::yield_now(),
                }
            }
        });
        for mut entry in 0..count {
            // The ring is much smaller than the number of entries, so both ends must wait for each other.
            while let Err(back) = producer.push(entry) {
                entry = back;
                std::thread::yield_now();
            }
        }
        taker.join().unwrap();
    }
}
