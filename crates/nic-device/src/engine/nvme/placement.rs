//! The buffers of commands, by command identifier.
//!
//! Invariant: a byte of a buffer is here, or has left with a packet, or has gone home; pieces are in order and do not
//! overlap. Dropping a piece sends it home, so there is nothing to be forgotten.

use offload_api::Piece;
use std::collections::BTreeMap;

/// What commands of one flow have given the device.
#[derive(Debug, Default)]
pub(crate) struct Placement {
    commands: BTreeMap<u16, Vec<Piece>>,
}

impl Placement {
    /// Takes the buffer of `command`; of an earlier one that had its identifier, the rest goes home.
    pub(crate) fn insert(&mut self, command: u16, buffer: Vec<Piece>) {
        self.commands.insert(command, buffer);
    }

    /// Sends home what is left of the buffer of `command`.
    pub(crate) fn remove(&mut self, command: u16) {
        self.commands.remove(&command);
    }

    /// Writes the first of `bytes`, which belong at `offset` in the buffer of `command`, where they belong: as many as
    /// one piece takes. `None`: that part of the buffer is not here.
    pub(crate) fn place(&mut self, command: u16, offset: u64, bytes: &[u8]) -> Option<Piece> {
        let pieces = self.commands.get_mut(&command)?;
        let at = pieces.iter().position(|piece| offset < piece.offset() + piece.len() as u64)?;
        let skipped = usize::try_from(offset.checked_sub(pieces[at].offset())?).ok()?;
        let before = pieces[at].split_to(skipped);
        let length = bytes.len().min(pieces[at].len());
        let mut placed = pieces[at].split_to(length);
        placed.bytes_mut().copy_from_slice(&bytes[..length]);
        match (before.is_empty(), pieces[at].is_empty()) {
            (true, true) => drop(pieces.remove(at)),
            (true, false) => {}
            (false, true) => pieces[at] = before,
            (false, false) => pieces.insert(at, before),
        }
        if pieces.is_empty() {
            self.commands.remove(&command);
        }
        Some(placed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use bytes::BytesMut;
    use offload_api::PieceHome;
    use proptest::prelude::*;
    use std::sync::{Arc, Mutex};

    #[derive(Default)]
    struct Home(Mutex<Vec<(u64, Vec<u8>)>>);

    impl PieceHome for Home {
        fn take_back(&self, offset: u64, bytes: BytesMut) {
            self.0.lock().unwrap().push((offset, bytes.to_vec()));
        }
    }

    proptest! {
        #[test]
        fn every_byte_comes_home_once_with_what_was_placed_first(
            cuts in prop::collection::vec(1usize..200, 1..6),
            places in prop::collection::vec((0u64..700, 1usize..120), 0..40),
        ) {
            let home = Arc::new(Home::default());
            let mut offset = 0;
            let buffer: Vec<Piece> = cuts.iter().map(|cut| {
                let piece = Piece::new(offset, BytesMut::zeroed(*cut), home.clone());
                offset += *cut as u64;
                piece
            }).collect();
            let total = offset as usize;
            let mut expected = vec![0u8; total];
            let mut placement = Placement::default();
            placement.insert(7, buffer);
            prop_assert!(placement.place(8, 0, &[1]).is_none());
            for (number, (offset, length)) in places.into_iter().enumerate() {
                let bytes = vec![number as u8 + 1; length];
                if let Some(piece) = placement.place(7, offset, &bytes) {
                    prop_assert_eq!(piece.offset(), offset);
                    let range = offset as usize..offset as usize + piece.len();
                    prop_assert!(expected[range.clone()].iter().all(|byte| *byte == 0), "a byte is placed once");
                    expected[range].fill(number as u8 + 1);
                }
            }
            placement.remove(7);
            let mut pieces = core::mem::take(&mut *home.0.lock().unwrap());
            pieces.sort();
            let mut at = 0;
            for (offset, _) in &pieces {
                prop_assert_eq!(*offset, at);
                at += pieces.iter().find(|(other, _)| other == offset).unwrap().1.len() as u64;
            }
            prop_assert_eq!(pieces.into_iter().flat_map(|(_, bytes)| bytes).collect::<Vec<u8>>(), expected);
        }
    }
}
