//! Copies for another core to read, past this core's caches.
//!
//! Before a core writes to memory that another core has read last, the core must acquire each cache line, which takes
//! some 30 ns between cores without a shared cache: more than any other step in processing a frame. A streaming store
//! acquires no ownership and reads nothing. The store takes 3 ns per line, and the core that reads the line next
//! prefetches like from any other.
//!
//! Streaming stores are not ordered with other stores before a fence, and the first instruction that waits for memory
//! waits for all of them, which takes longer than copying a frame. [`append_lines`] therefore makes many copies, and
//! ends with one fence.
#![deny(unsafe_code)]

use bytes::BytesMut;

/// Appends each piece, followed by zeros up to the end of its last [line](LINE). If the capacity is too small, the
/// buffer is enlarged.
///
/// Works best if the buffer has the capacity, and its length ends at a line: then each piece begins at a line, and no
/// line is shared. The iterator should not wait for memory, for example by counting references.
///
/// ```
/// use bytes::BytesMut;
/// use stream_copy::{LINE, append_lines};
///
/// let mut copies = BytesMut::with_capacity(2048);
/// append_lines(&mut copies, [&b"a frame"[..], b"another"]);
/// assert_eq!(copies.len(), 2 * LINE);
/// assert!(copies.starts_with(b"a frame\0") && copies[LINE..].starts_with(b"another\0"));
/// ```
pub fn append_lines<'a>(buffer: &mut BytesMut, pieces: impl IntoIterator<Item = &'a [u8]>) {
    // Dropped before anyone else gets the buffer, even if the iterator panics.
    let fence = write::Fence;
    for piece in pieces {
        let whole = piece.len().next_multiple_of(LINE);
        if buffer.capacity() - buffer.len() < whole {
            // `reserve` moves the streamed bytes, so these must have arrived.
            fence.wait();
            buffer.reserve(whole);
        }
        write::append(buffer, piece);
    }
}

/// Size of a cache line in bytes.
pub const LINE: usize = 64;

/// Streaming stores of x86-64. Ordinary stores on other processors.
///
/// # Safety of this module
///
/// SSE2, which contains the instructions, is part of x86-64. All stores go to the spare capacity of an exclusively
/// borrowed buffer, within bounds that are checked, and come from a slice that outlives the call. Streamed bytes may
/// arrive late and out of order until a [`Fence`] has waited, at the latest in its `drop`. Before that, neither another
/// core nor (by the contract of the intrinsics) this core may read or write these bytes again.
/// [`append_lines`](super::append_lines) ensures this: the function borrows the buffer beyond the fence, writes each
/// line once, and waits before moving streamed bytes.
#[cfg(target_arch = "x86_64")]
#[allow(unsafe_code)]
mod write {
    use super::LINE;
    use bytes::BytesMut;
    use core::arch::x86_64::{__m128i, _mm_loadu_si128, _mm_sfence, _mm_stream_si128};
    use core::mem::MaybeUninit;

    /// Appends `bytes` in whole lines, for which there is room.
    pub(super) fn append(buffer: &mut BytesMut, bytes: &[u8]) {
        let start = buffer.len();
        let (lines, tail) = bytes.as_chunks::<LINE>();
        let whole = bytes.len().next_multiple_of(LINE);
        let room = &mut buffer.spare_capacity_mut()[..whole];
        if room.as_ptr().align_offset(LINE) != 0 {
            // Streaming would write neighbouring lines in part, which is slow: use ordinary stores.
            buffer.extend_from_slice(bytes);
            buffer.resize(start + whole, 0);
            return;
        }
        let to = room.as_mut_ptr();
        for (index, line) in lines.iter().enumerate() {
            // SAFETY: `room` has 64 bytes for each line and is aligned to a line, so the target is a line of `room`.
            unsafe { stream(line, to.add(LINE * index)) };
        }
        if !tail.is_empty() {
            // The tail is padded to a whole line, because streaming a part of a line is slow.
            let mut line = [0; LINE];
            line[..tail.len()].copy_from_slice(tail);
            // SAFETY: with a tail, `whole` is 64 bytes more than the lines above, and `room` has `whole` bytes.
            unsafe { stream(&line, to.add(LINE * lines.len())) };
        }
        // SAFETY: each of the `whole` bytes after `start` was written, and `room` is within the capacity.
        unsafe { buffer.set_len(start + whole) };
    }

    /// Streams a line to memory.
    ///
    /// # Safety
    /// `to` must point to 64 writable bytes that form a cache line.
    unsafe fn stream(line: &[u8; LINE], to: *mut MaybeUninit<u8>) {
        for at in (0..LINE).step_by(size_of::<__m128i>()) {
            // SAFETY: `at` and the 16 bytes after it are within the line, and the caller vouches for `to`. The load
            // needs no alignment, the store has that of the line and of `at`.
            unsafe { _mm_stream_si128(to.add(at).cast(), _mm_loadu_si128(line.as_ptr().add(at).cast())) };
        }
        #[cfg(test)]
        super::tests::note(super::tests::StoreStep::Streamed(to.addr()));
    }

    /// A guard that orders all earlier stores before all later ones, when asked to, and on drop.
    pub(super) struct Fence;

    impl Fence {
        pub(super) fn wait(&self) {
            // SAFETY: SSE is part of x86-64, and a fence has no other effect.
            unsafe { _mm_sfence() };
            #[cfg(test)]
            super::tests::note(super::tests::StoreStep::Fenced);
        }
    }

    impl Drop for Fence {
        fn drop(&mut self) {
            self.wait();
        }
    }
}

/// Ordinary stores.
#[cfg(not(target_arch = "x86_64"))]
mod write {
    use super::LINE;
    use bytes::BytesMut;

    pub(super) fn append(buffer: &mut BytesMut, bytes: &[u8]) {
        let end = buffer.len() + bytes.len().next_multiple_of(LINE);
        buffer.extend_from_slice(bytes);
        buffer.resize(end, 0);
    }

    pub(super) struct Fence;

    impl Fence {
        pub(super) fn wait(&self) {}
    }
}

/// The README's example runs with the others.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;

#[cfg(test)]
mod tests {
    use super::*;
    use core::cell::RefCell;
    use proptest::prelude::*;

    /// A step of `write`. The steps are recorded, because another thread's reads would not reveal a missing fence:
    /// handing over the buffer waits for memory, too.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub(super) enum StoreStep {
        /// A line was streamed to this address.
        Streamed(usize),
        Fenced,
    }

    thread_local! {
        static STEPS: RefCell<Vec<StoreStep>> = const { RefCell::new(Vec::new()) };
    }

    pub(super) fn note(step: StoreStep) {
        STEPS.with_borrow_mut(|steps| steps.push(step));
    }

    /// A buffer of `capacity` bytes that begins at a line.
    fn at_line(capacity: usize) -> BytesMut {
        let mut slab = BytesMut::with_capacity(capacity + LINE);
        let before = slab.as_ptr().align_offset(LINE);
        slab.resize(before, 0);
        slab.split_off(before)
    }

    #[test]
    #[cfg(target_arch = "x86_64")]
    fn streamed_bytes_are_fenced_before_a_move_and_at_the_end() {
        let mut copies = at_line(4 * LINE);
        let place = copies.as_ptr().addr();
        STEPS.take();
        let piece = [7; 2 * LINE];
        let room = copies.capacity() / piece.len();
        append_lines(&mut copies, std::iter::repeat_n(&piece[..], room + 1));
        let steps = STEPS.take();
        let streamed: Vec<StoreStep> = (0..2 * room).map(|line| StoreStep::Streamed(place + LINE * line)).collect();
        assert!(steps.starts_with(&streamed), "to the buffer as it was: {steps:?}");
        assert_eq!(steps[streamed.len()], StoreStep::Fenced, "then what is there moves");
        assert_eq!(steps.last(), Some(&StoreStep::Fenced));
        assert_eq!(copies, vec![7; (room + 1) * piece.len()]);
    }

    #[test]
    #[cfg(target_arch = "x86_64")]
    fn panicking_iterator_leaves_nothing_unfenced() {
        let mut copies = at_line(4 * LINE);
        STEPS.take();
        let pieces = [&[7; LINE][..]].into_iter().chain(std::iter::once_with(|| panic!("no more of them")));
        let panicked = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| append_lines(&mut copies, pieces)));
        assert!(panicked.is_err());
        assert_eq!(STEPS.take()[1..], [StoreStep::Fenced]);
    }

    proptest! {
        /// Any alignment, with and without room.
        #[test]
        fn copies_equal_their_source(
            pieces in prop::collection::vec(prop::collection::vec(any::<u8>(), 0..1600), 0..5),
            from in 0usize..70,
            offset in 0usize..70,
            at_line: bool,
            capacity in 0usize..8000,
        ) {
            let pieces: Vec<&[u8]> = pieces.iter().map(|piece| &piece[from.min(piece.len())..]).collect();
            let mut slab = BytesMut::from(&vec![0xee; offset + LINE + capacity][..]);
            let to_line = if at_line { slab[offset..].as_ptr().align_offset(LINE) } else { 0 };
            let mut copies = slab.split_off(offset + to_line);
            copies.truncate(copies.len() / 2 / LINE * LINE);
            let mut expected = copies.to_vec();
            for piece in &pieces {
                expected.extend_from_slice(piece);
                expected.resize(expected.len() + piece.len().next_multiple_of(LINE) - piece.len(), 0);
            }
            append_lines(&mut copies, pieces);
            prop_assert_eq!(&copies[..], &expected[..]);
            prop_assert!(slab.iter().all(|byte| *byte == 0xee), "what is in front is as it was");
        }
    }

    #[test]
    fn another_thread_sees_all_streamed_bytes() {
        const BYTES: usize = LINE * 24;
        let (to_reader, from_writer) = std::sync::mpsc::sync_channel::<BytesMut>(4);
        let (to_writer, from_reader) = std::sync::mpsc::channel();
        let reader = std::thread::spawn(move || {
            for (round, copy) in from_writer.into_iter().enumerate() {
                assert!(copy.iter().all(|byte| *byte == round as u8), "round {round}");
                let _writer_is_done = to_writer.send(copy);
            }
        });
        for round in 0..10_000 {
            // The same memory again and again.
            let mut buffer = from_reader.try_recv().unwrap_or_else(|_| {
                let mut slab = BytesMut::with_capacity(BYTES + LINE);
                slab.split_off(slab.as_ptr().align_offset(LINE))
            });
            buffer.clear();
            assert!(
                buffer.as_ptr().align_offset(LINE) == 0 && buffer.capacity() >= BYTES,
                "elsewhere nothing is streamed"
            );
            append_lines(&mut buffer, [&[round as u8; BYTES][..]]);
            to_reader.send(buffer).expect("the reader has not failed");
        }
        drop(to_reader);
        reader.join().expect("every byte was as it was written");
    }
}
