//! The buffers of commands, by command identifier.
//!
//! Invariant: each byte of a buffer is here, has left with a packet, or has returned to its owner. Pieces are in order
//! and do not overlap. Dropping a piece returns it home.

use super::open_block::OpenBlock;
use nic_engine::{StageKeys, StageMakers, StageRun, Stages};
use offload_api::{Direction, Handle, NvmeTcpStages, Piece};
use smallvec::SmallVec;
use std::collections::BTreeMap;

/// The buffers and stages of one flow.
#[derive(Debug, Default)]
pub(crate) struct Placement {
    commands: BTreeMap<u16, CommandBuffer>,
    makers: StageMakers,
    /// Stages of a transmit context, by the number in the PDUs.
    seals: Seals,
    /// Keys of all these stages.
    keys: StageKeys,
}

/// Stages for sent data, by number.
pub(crate) type Seals = BTreeMap<u16, Stages>;

/// The unplaced rest of a command's buffer.
#[derive(Debug)]
struct CommandBuffer {
    pieces: Vec<Piece>,
    passing: Option<CommandStages>,
}

/// The stages of a command, and its first unit.
#[derive(Debug)]
struct CommandStages {
    unit: u64,
    stages: Stages,
}

impl Placement {
    /// Makes an empty table; commands may use the stages of `makers`.
    pub(crate) fn with(makers: StageMakers) -> Placement {
        Placement { makers, ..Placement::default() }
    }

    /// Adds stages for sent data. If the device lacks a stage, PDUs with this number are not sent.
    pub(crate) fn seal_with(&mut self, NvmeTcpStages { command, stages, .. }: NvmeTcpStages) {
        match self.makers.make(stages) {
            Some(stages) => self.seals.insert(command, stages.bound_to(&mut self.keys)),
            None => self.seals.remove(&command),
        };
    }

    /// Returns the borrowed keys of all stages.
    pub(crate) fn keys(&mut self) -> &mut StageKeys {
        &mut self.keys
    }

    /// Returns the keys that the data of a command need.
    pub(crate) fn keys_of(&self, command: u16) -> impl Iterator<Item = Handle> {
        let passing = self.commands.get(&command).and_then(|taken| taken.passing.as_ref());
        passing.into_iter().flat_map(|passing| passing.stages.keys())
    }

    /// Returns the stages for sent data.
    pub(crate) fn seals(&self) -> &Seals {
        &self.seals
    }

    /// Adds the buffer of `command` and its stages. The rest of an earlier buffer with this identifier returns to its
    /// owner.
    pub(crate) fn insert(&mut self, command: u16, pieces: Vec<Piece>, stages: Option<NvmeTcpStages>) {
        self.remove(command);
        let mut passing = None;
        if let Some(NvmeTcpStages { unit, stages, .. }) = stages {
            // Without a stage, software must process all data itself, so the buffer is not used.
            let Some(stages) = self.makers.make(stages) else { return };
            passing = Some(CommandStages { unit, stages: stages.bound_to(&mut self.keys) });
        }
        self.commands.insert(command, CommandBuffer { pieces, passing });
    }

    /// Returns the rest of the buffer of `command` home.
    pub(crate) fn remove(&mut self, command: u16) {
        self.commands.remove(&command);
    }

    /// Places the first of `bytes`, which belong at `offset` of the buffer of `command`, as many as one piece takes. If
    /// `pass` is true, the data pass the command's stages in whole blocks. An incomplete last block waits in `open` and
    /// is placed with its remaining bytes. Returns `None` if this part of the buffer is not here, or if `open` took all
    /// of the bytes.
    pub(crate) fn place(
        &mut self,
        command: u16,
        offset: u32,
        bytes: &[u8],
        pass: bool,
        open: &mut OpenBlock,
    ) -> Option<Piece> {
        let held = open.take(command, offset);
        let CommandBuffer { pieces, passing } = self.commands.get_mut(&command)?;
        let passing = passing.as_ref().filter(|_| pass);
        let find = |start: u64| {
            let at = pieces.iter().position(|piece| start < end_of(piece))?;
            Some((at, usize::try_from(start.checked_sub(pieces[at].offset())?).ok()?))
        };
        let mut lead = if passing.is_some() { &held[..] } else { &[] };
        // Identifiers are reused: the open bytes may belong to an earlier command with other pieces.
        let fits = |(at, skipped): (usize, usize)| pieces[at].len() - skipped >= lead.len();
        if !find(u64::from(offset) - lead.len() as u64).is_some_and(fits) {
            lead = &[];
        }
        let start = u64::from(offset) - lead.len() as u64;
        let (at, skipped) = find(start)?;
        let mut length = (lead.len() + bytes.len()).min(pieces[at].len() - skipped);
        if passing.is_some() {
            let cut = cut_of(start, start + length as u64, end_of(&pieces[at]));
            length -= cut;
            if length == 0 {
                // The block started in this packet or an earlier one, and still is incomplete.
                let all = SmallVec::<[u8; 16]>::from_iter(lead.iter().chain(bytes).copied());
                open.keep(command, offset + bytes.len() as u32, &all);
                return None;
            }
        }
        // The piece is split into up to three parts: before, placed, and after.
        let before = pieces[at].split_to(skipped);
        let mut placed = pieces[at].split_to(length);
        let (of_before, of_these) = placed.bytes_mut().split_at_mut(lead.len());
        of_before.copy_from_slice(lead);
        of_these.copy_from_slice(&bytes[..of_these.len()]);
        if let Some(CommandStages { unit, stages }) = passing {
            placed.open(|at, blocks| {
                let run = StageRun { direction: Direction::Receive, unit: *unit, at };
                // Data may be placed in any order. The stages' state applies only if these bytes follow the last ones.
                let mut states = open.states(command, at);
                let passed = stages.pass(run, &mut states, blocks);
                open.note_states(command, at + blocks.len() as u64, states);
                if !passed {
                    // A stage before the refusing one may have changed the bytes, so they are restored.
                    let as_they_came = lead.iter().chain(bytes).skip((at - start) as usize);
                    blocks.iter_mut().zip(as_they_came).for_each(|(byte, came)| *byte = *came);
                }
                passed
            });
        }
        placed.set_lead(lead.len());
        // Unplaced parts stay in order at the piece's position.
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

fn end_of(piece: &Piece) -> u64 {
    piece.offset() + piece.len() as u64
}

/// Returns the number of bytes at the end of `start..end` that must wait for the rest of their block, which continues
/// in the piece that ends at `piece_end`.
fn cut_of(start: u64, end: u64, piece_end: u64) -> usize {
    let block = end - end % Piece::BLOCK;
    if start <= block && block + Piece::BLOCK <= piece_end { (end - block) as usize } else { 0 }
}

#[cfg(test)]
mod tests {
    use super::*;
    use bytes::BytesMut;
    use nic_engine::{NamedStage, Stage, StageState};
    use offload_api::{PieceHome, StageSpec};
    use proptest::prelude::*;
    use std::sync::{Arc, Mutex};

    #[derive(Default)]
    struct PieceBuffer(Mutex<Vec<(u64, Vec<u8>)>>);

    impl PieceHome for PieceBuffer {
        fn take_back(&self, offset: u64, bytes: BytesMut) {
            self.0.lock().unwrap().push((offset, bytes.to_vec()));
        }
    }

    /// A stage that adds the unit number and the offset.
    #[derive(Debug)]
    struct AddingStage;

    impl NamedStage for AddingStage {
        const NAME: &'static str = "add";
        type Spec = ();

        fn new((): ()) -> Option<AddingStage> {
            Some(AddingStage)
        }
    }

    impl Stage for AddingStage {
        fn pass(&self, run: StageRun, _: &mut StageState, bytes: &mut [u8]) -> bool {
            bytes.iter_mut().for_each(|byte| *byte += (run.unit + run.at) as u8);
            run.unit == 3
        }
    }

    fn buffer(home: &Arc<PieceBuffer>) -> Vec<Piece> {
        vec![Piece::new(0, BytesMut::zeroed(64), home.clone())]
    }

    #[test]
    fn whole_blocks_of_verified_data_pass_their_commands_stages() {
        let home = Arc::new(PieceBuffer::default());
        let stages_of =
            |unit, name: &'static str| Some(NvmeTcpStages { command: 7, unit, stages: vec![StageSpec::new(name, ())] });
        let stages = |name| stages_of(3, name);
        let mut placement = Placement::with(StageMakers::default().with::<AddingStage>());
        placement.insert(7, buffer(&home), stages("add"));
        let mut piece = placement.place(7, 10, &[1; 40], true, &mut OpenBlock::default()).unwrap();
        let bytes = piece.bytes_mut().to_vec();
        assert_eq!(
            (piece.opened(), &bytes[5..7], &bytes[37..]),
            (16..48, &[1, 20][..], &[20][..]),
            "the rest waits for its block"
        );
        assert!(placement.place(7, 50, &[1; 14], false, &mut OpenBlock::default()).unwrap().opened().is_empty());
        // A refusing stage leaves the bytes as received.
        placement.insert(7, buffer(&home), stages_of(4, "add"));
        let mut piece = placement.place(7, 0, &[1; 64], true, &mut OpenBlock::default()).unwrap();
        assert!(piece.opened().is_empty() && piece.bytes_mut() == [1; 64]);
        // The next command with this identifier has no stages.
        placement.insert(7, buffer(&home), stages("add"));
        placement.insert(7, buffer(&home), None);
        assert!(placement.place(7, 0, &[1; 64], true, &mut OpenBlock::default()).unwrap().opened().is_empty());
        // A missing stage prevents placement; the next command is not affected.
        for (stages, is_placed) in [(stages("press"), false), (None, true)] {
            placement.insert(7, buffer(&home), stages);
            assert_eq!(placement.place(7, 0, &[1], true, &mut OpenBlock::default()).is_some(), is_placed);
        }
    }

    /// An open block of an earlier command, and a new command with the same identifier and other pieces.
    #[test]
    fn an_open_block_of_another_command_fits_or_is_left() {
        let home = Arc::new(PieceBuffer::default());
        let mut placement = passing(&home);
        let mut open = OpenBlock::default();
        assert!(placement.place(7, 16, &[1; 4], true, &mut open).is_none(), "the bytes wait for their block");
        let stages = NvmeTcpStages { command: 7, unit: 3, stages: vec![StageSpec::new("add", ())] };
        let parts = [(0, 18), (18, 46)].map(|(at, bytes)| Piece::new(at, BytesMut::zeroed(bytes), home.clone()));
        placement.insert(7, parts.into(), Some(stages));
        let placed = placement.place(7, 20, &[1; 40], true, &mut open);
        assert!(placed.is_none_or(|piece| piece.offset() >= 18));
    }

    /// Adds command 7 with a stage, and a buffer in two parts.
    fn passing(home: &Arc<PieceBuffer>) -> Placement {
        let mut placement = Placement::with(StageMakers::default().with::<AddingStage>());
        let stages = NvmeTcpStages { command: 7, unit: 3, stages: vec![StageSpec::new("add", ())] };
        let parts = [(0, 88), (88, 40)].map(|(at, bytes)| Piece::new(at, BytesMut::zeroed(bytes), home.clone()));
        placement.insert(7, parts.into(), Some(stages));
        placement
    }

    #[test]
    fn a_block_split_over_packets_is_placed_with_the_last() {
        let home = Arc::new(PieceBuffer::default());
        let (mut placement, mut open) = (passing(&home), OpenBlock::default());
        let first = placement.place(7, 0, &[1; 20], true, &mut open).unwrap();
        assert_eq!((first.len(), first.opened()), (16, 0..16));
        assert!(placement.place(7, 16, &[1; 4], true, &mut open).is_none());
        assert!(placement.place(7, 20, &[2; 5], true, &mut open).is_none(), "two packets are not a block yet");
        let mut next = placement.place(7, 25, &[3; 30], true, &mut open).unwrap();
        assert_eq!((next.offset(), next.lead(), next.len(), next.opened()), (25, 9, 23, 16..48));
        assert_eq!(next.bytes_mut(), [22; 23]);
        drop((first, next));
        let mut expected = vec![4; 16];
        expected.extend([[20; 4].as_slice(), &[21; 5], &[22; 23]].concat());
        assert_eq!(
            home.0.lock().unwrap().pop(),
            Some((16, expected[16..].to_vec())),
            "the piece contains the earlier bytes"
        );
        // At the border of two parts of the buffer, there is no whole block in either part.
        assert!(placement.place(7, 48, &[1; 7], true, &mut open).is_none());
        let last = placement.place(7, 55, &[1; 50], true, &mut open).unwrap();
        assert_eq!((last.lead(), last.len(), last.opened()), (7, 33, 48..80));
    }

    #[test]
    fn data_out_of_order_leave_the_open_block_unchanged() {
        for (command, offset, pass) in [(7, 21, true), (7, 32, true), (8, 20, true), (7, 20, false)] {
            let (home, mut open) = (Arc::new(PieceBuffer::default()), OpenBlock::default());
            let mut placement = passing(&home);
            assert!(placement.place(7, 16, &[1; 4], true, &mut open).is_none());
            let other = placement.place(command, offset, &[1; 4], pass, &mut open);
            assert!(other.is_none_or(|piece| piece.lead() == 0 && piece.opened().is_empty()), "{offset}");
            let next = placement.place(7, 20, &[1; 28], true, &mut open);
            assert!(next.is_none_or(|piece| piece.lead() == 0), "{command} {offset} {pass}");
        }
    }

    proptest! {
        #[test]
        fn every_byte_is_placed_once_and_the_first_placement_stays(
            cuts in prop::collection::vec(1usize..200, 1..6),
            places in prop::collection::vec((0u64..700, 1usize..120), 0..40),
        ) {
            // The pieces follow each other without gaps, as a host registers the buffer of a command.
            let home = Arc::new(PieceBuffer::default());
            let mut offset = 0;
            let buffer: Vec<Piece> = cuts.iter().map(|cut| {
                let piece = Piece::new(offset, BytesMut::zeroed(*cut), home.clone());
                offset += *cut as u64;
                piece
            }).collect();
            let total = offset as usize;
            let mut expected = vec![0u8; total];
            let mut placement = Placement::default();
            placement.insert(7, buffer, None);
            prop_assert!(placement.place(8, 0, &[1], true, &mut OpenBlock::default()).is_none());
            for (number, (offset, length)) in places.into_iter().enumerate() {
                let bytes = vec![number as u8 + 1; length];
                if let Some(piece) = placement.place(7, offset as u32, &bytes, true, &mut OpenBlock::default()) {
                    prop_assert_eq!(piece.offset(), offset);
                    let range = offset as usize..offset as usize + piece.len();
                    prop_assert!(expected[range.clone()].iter().all(|byte| *byte == 0), "a byte is placed once");
                    expected[range].fill(number as u8 + 1);
                }
            }
            // Removal drops the last references, so each piece returns to its home.
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
