//! A command's buffer while a device has it: where its pieces come back to.
//!
//! Invariant: every piece comes home once, filled or not; only then the buffer is whole again, and what did not come
//! by way of the device is copied into it.

use super::Buffer;
use bytes::BytesMut;
use core::sync::atomic::{AtomicBool, Ordering};
use core::task::Waker;
use offload_api::{Piece, PieceHome, RxBuf};
use offload_base::cost::{self, Work};
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// A buffer that a device has.
#[derive(Debug)]
pub(super) struct Landing {
    home: Arc<Home>,
    /// Of the parts the buffer had.
    lengths: Vec<usize>,
    /// Data that the device did not place.
    late: Vec<(u32, RxBuf)>,
}

/// Rings when a buffer is whole again.
#[derive(Debug, Default)]
pub(super) struct Bell {
    rung: AtomicBool,
    waker: Mutex<Option<Waker>>,
}

#[derive(Debug)]
struct Home {
    total: usize,
    bell: Arc<Bell>,
    parts: Mutex<Parts>,
}

#[derive(Debug, Default)]
struct Parts {
    by_offset: BTreeMap<u64, BytesMut>,
    bytes: usize,
}

impl Landing {
    /// Takes a buffer apart for a device.
    pub(super) fn lend(buffer: Buffer, bell: &Arc<Bell>) -> (Landing, Vec<Piece>) {
        let home = Arc::new(Home { total: buffer.len(), bell: bell.clone(), parts: Mutex::default() });
        let (mut offset, mut lengths, mut pieces) = (0, Vec::new(), Vec::new());
        for part in buffer.into_parts() {
            lengths.push(part.len());
            let length = part.len() as u64;
            pieces.push(Piece::new(offset, part, home.clone()));
            offset += length;
        }
        (Landing { home, lengths, late: Vec::new() }, pieces)
    }

    /// Takes data that belong at `offset`: placed, they are there already.
    pub(super) fn take(&mut self, offset: u32, data: RxBuf) {
        match data {
            RxBuf::Placed(piece) if piece.is_from(&self.home) && piece.offset() == u64::from(offset) => drop(piece),
            // A piece that is kept would be missing at home.
            RxBuf::Placed(_) => self.late.push((offset, BytesMut::from(&data[..]).into())),
            RxBuf::Pool(_) => self.late.push((offset, data)),
        }
    }

    /// Whether all pieces are back.
    pub(super) fn is_home(&self) -> bool {
        self.home.parts().bytes == self.home.total
    }

    /// The buffer, put together.
    pub(super) fn finish(self) -> Buffer {
        let mut pieces = core::mem::take(&mut self.home.parts().by_offset).into_values();
        let parts: Vec<BytesMut> = self
            .lengths
            .iter()
            .map(|length| {
                let mut part = pieces.next().unwrap_or_default();
                while part.len() < *length {
                    // Pieces of one part lie side by side: nothing is copied.
                    part.unsplit(pieces.next().unwrap_or_else(|| BytesMut::zeroed(length - part.len())));
                }
                part
            })
            .collect();
        let mut buffer = Buffer::from_parts(parts);
        for (offset, data) in self.late {
            buffer.put(offset as usize, &data);
        }
        buffer
    }
}

impl Bell {
    /// Whether it rang since the last time; `waker` is woken when it does.
    pub(super) fn listen(&self, waker: &Waker) -> bool {
        *lock(&self.waker) = Some(waker.clone());
        self.rung.swap(false, Ordering::AcqRel)
    }

    fn ring(&self) {
        self.rung.store(true, Ordering::Release);
        let waker = lock(&self.waker).take();
        if let Some(waker) = waker {
            waker.wake();
        }
    }
}

impl Home {
    fn parts(&self) -> MutexGuard<'_, Parts> {
        lock(&self.parts)
    }
}

impl PieceHome for Home {
    fn take_back(&self, offset: u64, bytes: BytesMut) {
        let _scope = cost::work(Work::Framing);
        let whole = {
            let mut parts = self.parts();
            parts.bytes += bytes.len();
            // Mostly in order: what lies side by side is one piece again.
            match parts.by_offset.range_mut(..offset).next_back() {
                Some((start, before))
                    if start + before.len() as u64 == offset && before.as_ptr_range().end == bytes.as_ptr() =>
                {
                    before.unsplit(bytes);
                }
                _ => {
                    parts.by_offset.insert(offset, bytes);
                }
            }
            parts.bytes == self.total
        };
        if whole {
            self.bell.ring();
        }
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn pieces_may_come_home_in_any_order(
            cuts in prop::collection::vec(1usize..100, 1..5),
            splits in prop::collection::vec((0usize..100, any::<prop::sample::Index>()), 0..20),
            late in prop::option::of(0u32..50),
        ) {
            let buffer = Buffer::from_parts(cuts.iter().map(|cut| BytesMut::zeroed(*cut)));
            let total = buffer.len();
            let parts: Vec<(*const u8, usize)> = buffer.parts().iter().map(|part| (part.as_ptr(), part.len())).collect();
            let (mut landing, mut pieces) = Landing::lend(buffer, &Arc::default());
            for (at, which) in splits {
                let index = which.index(pieces.len());
                let at = at.min(pieces[index].len());
                let taken = pieces[index].split_to(at);
                if !taken.is_empty() {
                    pieces.push(taken);
                }
            }
            pieces.retain(|piece| !piece.is_empty());
            let mut expected = vec![0; total];
            for (number, mut piece) in pieces.into_iter().enumerate() {
                prop_assert!(!landing.is_home());
                piece.bytes_mut().fill(number as u8 + 1);
                let (from, length) = (piece.offset() as usize, piece.len());
                expected[from..from + length].fill(number as u8 + 1);
                landing.take(from as u32, RxBuf::Placed(piece));
            }
            if let Some(offset) = late.filter(|offset| (*offset as usize) < total) {
                landing.take(offset, BytesMut::from(&[0xee][..]).into());
                expected[offset as usize] = 0xee;
            }
            prop_assert!(landing.is_home());
            let buffer = landing.finish();
            prop_assert_eq!(buffer.to_vec(), expected);
            let after: Vec<(*const u8, usize)> = buffer.parts().iter().map(|part| (part.as_ptr(), part.len())).collect();
            prop_assert_eq!(after, parts, "the memory is what it was");
        }
    }
}
