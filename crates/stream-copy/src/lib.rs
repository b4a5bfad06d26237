//! Copies for another core to read, past this core's caches.
//!
//! To write to memory that another core has read last, a core has to own its cache lines, one by one: some 30 ns each
//! between cores that share no cache, more than anything else that is done to a frame. A streaming store takes no
//! ownership and reads nothing: it costs 3 ns a line, and whoever reads the line next prefetches it as it would any other.
//!
//! Streaming stores are not ordered with other stores until there was a fence, and the first instruction that waits for
//! memory waits for all of them: longer than it takes to copy a frame. So [`append_each`] copies many before it ends with one.
#![deny(unsafe_code)]

use bytes::BytesMut;

/// Appends to each buffer the bytes that go with it. What has no room for them gets some.
///
/// Best where buffers are there before, begin at cache lines, and share none; and where what makes the pairs does
/// nothing that waits for memory, such as counting references.
///
/// ```
/// use bytes::BytesMut;
///
/// let mut copies = [BytesMut::with_capacity(2048), BytesMut::with_capacity(2048)];
/// stream_copy::append_each(copies.iter_mut().zip([&b"a frame"[..], b"another"]));
/// assert_eq!(copies, [&b"a frame"[..], b"another"]);
/// ```
pub fn append_each<'a>(pairs: impl IntoIterator<Item = (&'a mut BytesMut, &'a [u8])>) {
    // Nobody else has a buffer before this is dropped, should the iterator panic as well.
    let _fence = write::Fence;
    for (buffer, bytes) in pairs {
        buffer.reserve(bytes.len());
        write::append(buffer, bytes);
    }
}

/// Streaming stores of x86-64; elsewhere ordinary ones.
///
/// # Safety of this module
///
/// SSE2, which has the instructions, is part of x86-64. Stores go to the spare capacity of a buffer that is lent
/// exclusively, within its bounds, which are checked, and from a slice that lives through the call. Streaming stores may come late for
/// other cores, and out of order, until a [`Fence`] is dropped: until then callers keep the buffer to themselves, as
/// [`append_each`](super::append_each) does, which was lent them for longer. For this core they are ordinary stores.
#[cfg(target_arch = "x86_64")]
#[allow(unsafe_code)]
mod write {
    use bytes::BytesMut;
    use core::arch::x86_64::{__m128i, _mm_loadu_si128, _mm_sfence, _mm_stream_si128};
    use core::mem::MaybeUninit;

    /// Appends `bytes`, for which there is room.
    pub(super) fn append(buffer: &mut BytesMut, bytes: &[u8]) {
        // What is before the first line goes the ordinary way.
        let head = buffer.spare_capacity_mut().as_ptr().align_offset(LINE).min(bytes.len());
        let (head, rest) = bytes.split_at(head);
        buffer.extend_from_slice(head);
        let (lines, tail) = rest.as_chunks::<LINE>();
        let start = buffer.len();
        let (room, behind) = buffer.spare_capacity_mut().split_at_mut(LINE * lines.len());
        let to = room.as_mut_ptr();
        for (index, line) in lines.iter().enumerate() {
            // SAFETY: `room` has 64 bytes for each line, so that this is within it; it begins at a line if there is one at
            // all, for `head` ended there.
            unsafe { stream(line, to.add(LINE * index)) };
        }
        if tail.is_empty() || behind.len() < LINE {
            // SAFETY: as many bytes behind `start` were written above, and are within the capacity, as `room` was.
            unsafe { buffer.set_len(start + LINE * lines.len()) };
            buffer.extend_from_slice(tail);
            return;
        }
        // A line of which a part was streamed would be worse than one of which none was.
        let mut line = [0; LINE];
        line[..tail.len()].copy_from_slice(tail);
        // SAFETY: `behind` has the 64 bytes of a line, and begins at one: `room`, whose lines are whole, ends there.
        unsafe { stream(&line, behind.as_mut_ptr()) };
        // SAFETY: as above, and `tail` is part of the line that was written behind `room`.
        unsafe { buffer.set_len(start + rest.len()) };
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
    }

    /// Dropped, it puts what was written in order with what is written from then on.
    pub(super) struct Fence;

    impl Drop for Fence {
        fn drop(&mut self) {
            // SAFETY: SSE is part of x86-64; a fence has no other effect.
            unsafe { _mm_sfence() };
        }
    }

    /// Bytes of a cache line.
    const LINE: usize = 64;
}

/// Ordinary stores.
#[cfg(not(target_arch = "x86_64"))]
mod write {
    use bytes::BytesMut;

    pub(super) fn append(buffer: &mut BytesMut, bytes: &[u8]) {
        buffer.extend_from_slice(bytes);
    }

    pub(super) struct Fence;
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        /// Whatever the alignments, and with or without room.
        #[test]
        fn copies_are_what_was_copied(
            bytes in prop::collection::vec(any::<u8>(), 0..3000),
            from in 0usize..70,
            offsets in prop::collection::vec((0usize..70, 0usize..3200), 1..5),
        ) {
            let bytes = &bytes[from.min(bytes.len())..];
            let (mut copies, mut kept) = (Vec::new(), Vec::new());
            for (offset, capacity) in &offsets {
                let mut slab = BytesMut::from(&vec![0xee; offset + capacity][..]);
                let mut buffer = slab.split_off(*offset);
                buffer.truncate(buffer.len() / 2);
                kept.push(slab);
                copies.push(buffer);
            }
            let before = copies.clone();
            append_each(copies.iter_mut().map(|copy| (copy, bytes)));
            for (copy, before) in copies.iter().zip(before) {
                prop_assert_eq!(&copy[..], [&before, bytes].concat());
            }
            prop_assert!(kept.iter().flatten().all(|byte| *byte == 0xee), "neighbours are as they were");
        }
    }

    #[test]
    fn another_thread_sees_all_of_it() {
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
            let mut buffer = from_reader.try_recv().unwrap_or_else(|_| BytesMut::with_capacity(1536));
            buffer.clear();
            append_each([(&mut buffer, &[round as u8; 1514][..])]);
            to_reader.send(buffer).expect("the reader has not failed");
        }
        drop(to_reader);
        reader.join().expect("every byte was as it was written");
    }
}
