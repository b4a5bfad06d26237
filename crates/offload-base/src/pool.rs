//! Receive buffers carved from recycled slabs.
//!
//! Invariant: a slab is handed out again only after every buffer carved from it was dropped, so a buffer is
//! unique for as long as it lives, however long and wherever that is.
//!
//! Slabs begin at a cache line, and so do buffers whose size is a multiple of one: what is written to one does not take
//! a line from a neighbour that another core has.

use bytes::BytesMut;
use std::collections::VecDeque;

/// Gives buffers of one size, in slabs, and takes a slab back by itself once all its buffers are gone.
///
/// ```
/// use offload_base::BufferPool;
///
/// let mut pool = BufferPool::new(2048, 32);
/// let buffer = pool.take();
/// assert!(buffer.is_empty() && buffer.capacity() == 2048);
/// ```
#[derive(Debug)]
pub struct BufferPool {
    buffer_bytes: usize,
    slab_bytes: usize,
    current: BytesMut,
    spent: VecDeque<BytesMut>,
}

impl BufferPool {
    /// A pool of buffers of `buffer_bytes` bytes, allocated `buffers_per_slab` at a time.
    ///
    /// # Panics
    /// If either is zero.
    pub fn new(buffer_bytes: usize, buffers_per_slab: usize) -> BufferPool {
        assert!(buffer_bytes > 0 && buffers_per_slab > 0, "an empty buffer or slab serves nobody");
        // Room to begin at a cache line; and one byte more than the buffers need: the pool's own handle on the slab, by
        // which it gets it back.
        let slab_bytes = CACHE_LINE - 1 + buffer_bytes * buffers_per_slab + 1;
        BufferPool { buffer_bytes, slab_bytes, current: BytesMut::new(), spent: VecDeque::new() }
    }

    /// An empty buffer with room for the pool's buffer size.
    pub fn take(&mut self) -> BytesMut {
        if self.current.capacity() <= self.buffer_bytes {
            self.next_slab();
        }
        let rest = self.current.split_off(self.buffer_bytes);
        core::mem::replace(&mut self.current, rest)
    }

    /// The size of each buffer in bytes.
    pub fn buffer_bytes(&self) -> usize {
        self.buffer_bytes
    }

    /// Puts the used-up slab in the queue and takes the oldest one whose buffers are all gone, or a new one.
    fn next_slab(&mut self) {
        let used_up = core::mem::take(&mut self.current);
        if used_up.capacity() > 0 {
            self.spent.push_back(used_up);
        }
        for _ in 0..self.spent.len().min(SLABS_TRIED) {
            let Some(mut oldest) = self.spent.pop_front() else { break };
            if oldest.try_reclaim(self.slab_bytes) {
                self.current = aligned(oldest);
                return;
            }
            self.spent.push_back(oldest);
        }
        if self.spent.len() > SLABS_KEPT {
            // Their buffers live on with those who hold them; the pool just stops waiting for them.
            self.spent.clear();
        }
        self.current = aligned(BytesMut::with_capacity(self.slab_bytes));
    }
}

/// The slab from its first cache line on.
fn aligned(mut slab: BytesMut) -> BytesMut {
    let skipped = slab.as_ptr().align_offset(CACHE_LINE);
    // The allocator may be one that aligns to nothing: then neither does this.
    if skipped < CACHE_LINE { slab.split_off(skipped) } else { slab }
}

/// Bytes of a cache line.
const CACHE_LINE: usize = 64;

/// How many used-up slabs are looked at before a new one is allocated.
const SLABS_TRIED: usize = 4;
/// How many used-up slabs a pool waits for at most.
const SLABS_KEPT: usize = 256;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_slab_comes_back_when_its_last_buffer_is_dropped() {
        let mut pool = BufferPool::new(64, 4);
        let first: Vec<BytesMut> = (0..4).map(|_| pool.take()).collect();
        let address = first[0].as_ptr();
        let held = pool.take(); // a second slab, while the first is in use
        assert_ne!(held.as_ptr(), address);
        drop(first);
        let second: Vec<BytesMut> = (0..3).map(|_| pool.take()).collect();
        assert!(second.iter().all(|buffer| buffer.capacity() == 64));
        let reused = pool.take();
        assert_eq!(reused.as_ptr(), address);
    }

    #[test]
    fn buffers_begin_at_cache_lines_again_and_again() {
        let mut pool = BufferPool::new(128, 3);
        for _ in 0..20 {
            let buffer = pool.take();
            assert_eq!((buffer.as_ptr() as usize % CACHE_LINE, buffer.capacity()), (0, 128));
        }
    }

    #[test]
    fn a_held_buffer_is_never_given_twice() {
        let mut pool = BufferPool::new(16, 2);
        let mut held = pool.take();
        held.extend_from_slice(b"still mine");
        for _ in 0..100 {
            let mut other = pool.take();
            other.extend_from_slice(&[0xff; 16]);
        }
        assert_eq!(&held[..], b"still mine");
    }
}
