//! Receive buffers carved from recycled slabs.
//!
//! Invariant: a slab is reused only after every buffer carved from it was dropped. A live buffer is therefore never
//! shared, no matter how long it is kept.
//!
//! Slabs begin at a cache line, and so do buffers if their size is a multiple of a line. Two cores that write to
//! neighbouring buffers then never share a line.

use bytes::BytesMut;
use std::collections::VecDeque;

/// A pool of equal-sized buffers, carved from slabs. A slab returns to the pool when all its buffers are dropped.
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
    /// Creates a pool of buffers of `buffer_bytes` bytes, which allocates `buffers_per_slab` buffers at a time.
    ///
    /// # Panics
    /// If an argument is zero.
    pub fn new(buffer_bytes: usize, buffers_per_slab: usize) -> BufferPool {
        assert!(
            buffer_bytes > 0 && buffers_per_slab > 0,
            "a pool needs buffers of at least one byte, and slabs of at least one buffer"
        );
        // The slab needs space to align its start, and one byte more than the buffers occupy: through this rest the
        // pool keeps a handle, with which it reclaims the slab.
        let slab_bytes = CACHE_LINE - 1 + buffer_bytes * buffers_per_slab + 1;
        BufferPool { buffer_bytes, slab_bytes, current: BytesMut::new(), spent: VecDeque::new() }
    }

    /// Takes an empty buffer with the pool's capacity.
    pub fn take(&mut self) -> BytesMut {
        // `<=`, because the last byte of a slab is the pool's own handle and is never given out.
        if self.current.capacity() <= self.buffer_bytes {
            self.next_slab();
        }
        let rest = self.current.split_off(self.buffer_bytes);
        core::mem::replace(&mut self.current, rest)
    }

    /// Returns the capacity of each buffer in bytes.
    pub fn buffer_bytes(&self) -> usize {
        self.buffer_bytes
    }

    /// Retires the used-up slab. Takes the oldest retired slab that has no live buffers, or allocates one.
    fn next_slab(&mut self) {
        let used_up = core::mem::take(&mut self.current);
        if used_up.capacity() > 0 {
            self.spent.push_back(used_up);
        }
        // Buffers are dropped roughly in the order of their creation, so a few of the oldest slabs are worth a look.
        for _ in 0..self.spent.len().min(SLABS_TRIED) {
            let Some(mut oldest) = self.spent.pop_front() else { break };
            if oldest.try_reclaim(self.slab_bytes) {
                self.current = aligned(oldest);
                return;
            }
            self.spent.push_back(oldest);
        }
        // A user that keeps every buffer would otherwise make the queue, and its cost, grow without bound.
        if self.spent.len() > SLABS_KEPT {
            // The buffers stay valid, but their slabs will be freed instead of reused.
            self.spent.clear();
        }
        self.current = aligned(BytesMut::with_capacity(self.slab_bytes));
    }
}

/// Cuts off the bytes in front of the slab's first cache line.
fn aligned(mut slab: BytesMut) -> BytesMut {
    let skipped = slab.as_ptr().align_offset(CACHE_LINE);
    // `align_offset` may give up and return `usize::MAX`. The slab then stays unaligned, which is only slower.
    if skipped < CACHE_LINE { slab.split_off(skipped) } else { slab }
}

/// Size of a cache line in bytes.
const CACHE_LINE: usize = 64;

/// Retired slabs tried before a new slab is allocated.
const SLABS_TRIED: usize = 4;
/// Maximum number of retired slabs. More are given up.
const SLABS_KEPT: usize = 256;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slab_is_reused_after_its_last_buffer() {
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
    fn buffers_always_begin_at_cache_lines() {
        let mut pool = BufferPool::new(128, 3);
        for _ in 0..20 {
            let buffer = pool.take();
            assert_eq!((buffer.as_ptr() as usize % CACHE_LINE, buffer.capacity()), (0, 128));
        }
    }

    #[test]
    fn live_buffer_is_never_reused() {
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
