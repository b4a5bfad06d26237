//! Copies for another core to read, past this core's caches.
//!
//! To write to memory that another core has read last, a core has to own its cache lines, one by one: some 30 ns each
//! between cores that share no cache, more than anything else that is done to a frame. A streaming store takes no
//! ownership and reads nothing: it costs 3 ns a line, and the core that reads the line next prefetches it as it would any other.
//!
//! Streaming stores are not ordered with other stores until there was a fence, and the first instruction that waits for
//! memory waits for all of them: longer than it takes to copy a frame. So [`append_lines`] copies many before it ends with
//! one.
#![deny(unsafe_code)]

use bytes::BytesMut;

/// Appends each piece, and behind it zeros up to the end of its last [line](LINE). What has no room for all of them gets
/// some.
///
/// Best where the buffer is there before, and ends at a line so far: then each piece begins at one, and none is shared. What
/// makes the pieces should do nothing that waits for memory, such as counting references.
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
    // Nobody else has the buffer before this is dropped, should the iterator panic as well.
    let fence = write::Fence;
    for piece in pieces {
        let whole = piece.len().next_multiple_of(LINE);
        if buffer.capacity() - buffer.len() < whole {
            // What is there is read and written elsewhere.
            fence.wait();
            buffer.reserve(whole);
        }
        write::append(buffer, piece);
    }
}

/// Bytes of a cache line.
pub const LINE: usize = 64;

/// Streaming stores of x86-64; elsewhere ordinary ones.
///
/// # Safety of this module
///
/// SSE2, which has the instructions, is part of x86-64. Stores go to the spare capacity of a buffer that is lent
/// exclusively, within its bounds, which are checked, and from a slice that lives through the call. What was streamed may come
/// late, and out of order, until a [`Fence`] has waited, which it does at the latest when it is dropped: until then nobody
/// reads it or writes it again, neither another core nor, as the intrinsics' contract has it, this one.
/// [`append_lines`](super::append_lines) sees to that: it was lent the buffer for longer, writes each line once, and waits
/// before it has what is there moved.
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
            // Of lines that begin elsewhere, others would be written in part: the ordinary way.
            buffer.extend_from_slice(bytes);
            buffer.resize(start + whole, 0);
            return;
        }
        let to = room.as_mut_ptr();
        for (index, line) in lines.iter().enumerate() {
            // SAFETY: `room` has 64 bytes for each line, and begins at a line, so that this is one within it.
            unsafe { stream(line, to.add(LINE * index)) };
        }
        if !tail.is_empty() {
            // A line of which a part was streamed would be worse than one of which none was.
            let mut line = [0; LINE];
            line[..tail.len()].copy_from_slice(tail);
            // SAFETY: `whole` has 64 bytes more than the lines above if there is a tail, and so has `room`.
            unsafe { stream(&line, to.add(LINE * lines.len())) };
        }
        // SAFETY: each of the `whole` bytes behind `start` was written, and they are within the capacity, as `room` was.
        unsafe { buffer.set_len(start + whole) };
    }

    /// Writes a line.
    ///
    /// # Safety
    /// `to` points to 64 bytes that may be written, and that are a line.
    unsafe fn stream(line: &[u8; LINE], to: *mut MaybeUninit<u8>) {
        for at in (0..LINE).step_by(size_of::<__m128i>()) {
            // SAFETY: `at` and the 16 bytes behind it are within the line, which the caller vouches for at `to`. The load
            // needs no alignment, the store has that of the line and of `at`.
            unsafe { _mm_stream_si128(to.add(at).cast(), _mm_loadu_si128(line.as_ptr().add(at).cast())) };
        }
        #[cfg(test)]
        super::tests::note(super::tests::Step::Streamed(to.addr()));
    }

    /// Puts what was written in order with what is written from then on: when asked to, and when dropped.
    pub(super) struct Fence;

    impl Fence {
        pub(super) fn wait(&self) {
            // SAFETY: SSE is part of x86-64; a fence has no other effect.
            unsafe { _mm_sfence() };
            #[cfg(test)]
            super::tests::note(super::tests::Step::Fenced);
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

    /// What `write` did. A fence that is missing cannot be seen in what another thread reads: whatever hands the buffer over
    /// waits for memory itself.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub(super) enum Step {
        /// A line was streamed to this address.
        Streamed(usize),
        Fenced,
    }

    thread_local! {
        static STEPS: RefCell<Vec<Step>> = const { RefCell::new(Vec::new()) };
    }

    pub(super) fn note(step: Step) {
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
    fn what_was_streamed_is_fenced_before_it_moves_and_in_the_end() {
        let mut copies = at_line(4 * LINE);
        let place = copies.as_ptr().addr();
        STEPS.take();
        let piece = [7; 2 * LINE];
        let room = copies.capacity() / piece.len();
        append_lines(&mut copies, std::iter::repeat_n(&piece[..], room + 1));
        let steps = STEPS.take();
        let streamed: Vec<Step> = (0..2 * room).map(|line| Step::Streamed(place + LINE * line)).collect();
        assert!(steps.starts_with(&streamed), "to the buffer as it was: {steps:?}");
        assert_eq!(steps[streamed.len()], Step::Fenced, "then what is there moves");
        assert_eq!(steps.last(), Some(&Step::Fenced));
        assert_eq!(copies, vec![7; (room + 1) * piece.len()]);
    }

    #[test]
    #[cfg(target_arch = "x86_64")]
    fn a_panic_of_what_makes_the_pieces_leaves_nothing_unfenced() {
        let mut copies = at_line(4 * LINE);
        STEPS.take();
        let pieces = [&[7; LINE][..]].into_iter().chain(std::iter::once_with(|| panic!("no more of them")));
        let panicked = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| append_lines(&mut copies, pieces)));
        assert!(panicked.is_err());
        assert_eq!(STEPS.take()[1..], [Step::Fenced]);
    }

    proptest! {
        /// Whatever the alignment, and with or without room.
        #[test]
        fn copies_are_what_was_copied(
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
    fn another_thread_sees_all_of_it() {
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
