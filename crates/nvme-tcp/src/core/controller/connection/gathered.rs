//! Received data of a command.
//!
//! Invariant: the data occupy no more memory than was charged. Large pieces stay in their receive buffers if the whole
//! buffer can be charged. Smaller pieces are copied into buffers that are filled completely before the next one is
//! allocated. A host therefore cannot increase the memory by cutting its data, or by sending other PDUs in between.

use crate::namespace::DataPieces;
use bytes::{Bytes, BytesMut};
use offload_api::RxBuf;
use offload_base::cost::{self, WorkKind};

/// The data in pieces with their offsets.
#[derive(Debug, Default)]
pub(super) struct GatheredData {
    pieces: Vec<DataPiece>,
}

#[derive(Debug)]
struct DataPiece {
    offset: u32,
    data: PieceBytes,
}

#[derive(Debug)]
enum PieceBytes {
    /// A received buffer, not copied.
    Kept(Bytes),
    /// A copy, and the capacity of its buffer.
    Copied(BytesMut, usize),
}

impl GatheredData {
    /// Adds `data` at `offset`. The data arrived in a buffer of up to `buffer` bytes, which a piece may keep alive as a
    /// whole. Consecutive data will follow up to `end`. `keep` charges additional bytes and returns whether the charge
    /// succeeded.
    pub(super) fn take(
        &mut self,
        mut offset: u32,
        end: u32,
        mut data: RxBuf,
        buffer: usize,
        mut keep: impl FnMut(usize) -> bool,
    ) {
        // Copies into a partly filled buffer first, even if the piece is large: otherwise small pieces between large
        // ones would leave many buffers half empty.
        while !data.is_empty() {
            if let Some((copied, room)) = self.pieces.iter_mut().rev().find_map(|piece| piece.room_at(offset)) {
                let taken = room.min(data.len());
                {
                    let _scope = cost::work(WorkKind::Copy);
                    copied.extend_from_slice(&data[..taken]);
                }
                data.skip(taken);
                offset += taken as u32;
            } else if data.len() >= KEPT && keep(buffer.saturating_sub(data.len())) {
                self.pieces.push(DataPiece { offset, data: PieceBytes::Kept(data.freeze()) });
                return;
            } else {
                let most = (end.saturating_sub(offset) as usize).clamp(1, COPIED);
                self.pieces.push(DataPiece { offset, data: PieceBytes::Copied(BytesMut::with_capacity(most), most) });
            }
        }
    }

    /// Drops all data.
    pub(super) fn clear(&mut self) {
        self.pieces.clear();
    }

    /// Returns all data in order.
    pub(super) fn finish(&mut self) -> DataPieces {
        let mut pieces = core::mem::take(&mut self.pieces);
        pieces.sort_by_key(|piece| piece.offset);
        let bytes = |piece: DataPiece| match piece.data {
            PieceBytes::Kept(bytes) => bytes,
            PieceBytes::Copied(bytes, _) => bytes.freeze(),
        };
        pieces.into_iter().map(bytes).collect()
    }
}

impl DataPiece {
    /// Returns the buffer that continues at `offset`, and its free bytes.
    fn room_at(&mut self, offset: u32) -> Option<(&mut BytesMut, usize)> {
        match &mut self.data {
            PieceBytes::Copied(bytes, most) if self.offset + bytes.len() as u32 == offset && bytes.len() < *most => {
                let room = *most - bytes.len();
                Some((bytes, room))
            }
            _ => None,
        }
    }
}

/// Minimum size of a piece that is worth keeping its buffer: the content of a TLS record.
const KEPT: usize = 16 << 10;
/// Bytes of a buffer for copies.
const COPIED: usize = 64 << 10;

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const BUFFER: usize = 128 << 10;

    proptest! {
        /// Two requests answered alternately, in pieces of random size.
        #[test]
        fn data_cut_anywhere_are_complete(
            cuts in prop::collection::vec((any::<bool>(), prop_oneof![1usize..9, 1usize..70_000]), 1..200),
            may_keep: bool,
        ) {
            let ends = [100_000usize, 250_000];
            let whole: Vec<u8> = (0..ends[1]).map(|at| (at * 31 % 251) as u8).collect();
            let (mut gathered, mut at) = (GatheredData::default(), [0, ends[0]]);
            let mut charged = 0;
            let mut take = |of: usize, bytes: usize| {
                let bytes = bytes.min(ends[of] - at[of]);
                let data = BytesMut::from(&whole[at[of]..at[of] + bytes]);
                gathered.take(at[of] as u32, ends[of] as u32, data.into(), BUFFER, |more| {
                    charged += if may_keep { more } else { 0 };
                    may_keep
                });
                at[of] += bytes;
            };
            cuts.into_iter().for_each(|(of, bytes)| take(usize::from(of), bytes));
            take(0, usize::MAX);
            take(1, usize::MAX);
            let held: usize = gathered.pieces.iter().map(|piece| match &piece.data {
                PieceBytes::Kept(bytes) => bytes.len().max(BUFFER),
                PieceBytes::Copied(bytes, most) => bytes.capacity().max(*most),
            }).sum();
            prop_assert!(held <= ends[1] + charged, "{} held, {} charged", held, ends[1] + charged);
            prop_assert_eq!(gathered.finish().concat(), whole);
        }
    }

    #[test]
    fn large_pieces_are_not_copied() {
        let mut gathered = GatheredData::default();
        let data = BytesMut::zeroed(KEPT);
        let place = data.as_ptr();
        gathered.take(0, 1 << 20, data.into(), BUFFER, |more| more == BUFFER - KEPT);
        assert_eq!(gathered.finish()[0].as_ptr(), place);
    }
}
