//! The buffers of commands, by command identifier.
//!
//! Invariant: a byte of a buffer is here, or has left with a packet, or has gone home; pieces are in order and do not
//! overlap. Dropping a piece sends it home, so there is nothing to be forgotten.

use super::open_block::OpenBlock;
use nic_engine::{StageKeys, StageMakers, StageRun, Stages};
use offload_api::{Direction, Handle, NvmeTcpStages, Piece};
use smallvec::SmallVec;
use std::collections::BTreeMap;

/// What commands of one flow have given the device.
#[derive(Debug, Default)]
pub(crate) struct Placement {
    commands: BTreeMap<u16, Taken>,
    makers: StageMakers,
    /// Of a transmit context, by what PDUs name them.
    seals: Seals,
    /// What all of these stages need.
    keys: StageKeys,
}

/// Stages for data that leave, by number.
pub(crate) type Seals = BTreeMap<u16, Stages>;

/// What is left of a command's buffer.
#[derive(Debug)]
struct Taken {
    pieces: Vec<Piece>,
    passing: Option<Passing>,
}

/// Stages, and which unit they are told.
#[derive(Debug)]
struct Passing {
    unit: u64,
    stages: Stages,
}

impl Placement {
    /// One whose commands' data may pass stages of these makers.
    pub(crate) fn with(makers: StageMakers) -> Placement {
        Placement { makers, ..Placement::default() }
    }

    /// Data that leave may name these stages. If the device does not have them, what names them does not leave.
    pub(crate) fn seal_with(&mut self, NvmeTcpStages { command, stages, .. }: NvmeTcpStages) {
        match self.makers.make(stages) {
            Some(stages) => self.seals.insert(command, stages.bound_to(&mut self.keys)),
            None => self.seals.remove(&command),
        };
    }

    /// Where the keys that stages need are lent.
    pub(crate) fn keys(&mut self) -> &mut StageKeys {
        &mut self.keys
    }

    /// The keys that the data of a command need.
    pub(crate) fn keys_of(&self, command: u16) -> impl Iterator<Item = Handle> {
        let passing = self.commands.get(&command).and_then(|taken| taken.passing.as_ref());
        passing.into_iter().flat_map(|passing| passing.stages.keys())
    }

    /// What data that leave may name.
    pub(crate) fn seals(&self) -> &Seals {
        &self.seals
    }

    /// Takes the buffer of `command`, and the stages that its data pass, if any. The rest of an earlier buffer under the same identifier goes
    /// home.
    pub(crate) fn insert(&mut self, command: u16, pieces: Vec<Piece>, stages: Option<NvmeTcpStages>) {
        self.remove(command);
        let mut passing = None;
        if let Some(NvmeTcpStages { unit, stages, .. }) = stages {
            // Software has to have what the device cannot do: so it gets all of it.
            let Some(stages) = self.makers.make(stages) else { return };
            passing = Some(Passing { unit, stages: stages.bound_to(&mut self.keys) });
        }
        self.commands.insert(command, Taken { pieces, passing });
    }

    /// Sends home what is left of the buffer of `command`.
    pub(crate) fn remove(&mut self, command: u16) {
        self.commands.remove(&command);
    }

    /// Writes the first of `bytes`, which belong at `offset` in the buffer of `command`, where they belong: as many as
    /// one piece takes. If they may, they pass the stages, which takes whole blocks: what came of the last one waits in `open` for
    /// the rest of it, and comes into the buffer with that. `None`: that part of the buffer is not here, or `open` has all of them.
    pub(crate) fn place(
        &mut self,
        command: u16,
        offset: u32,
        bytes: &[u8],
        pass: bool,
        open: &mut OpenBlock,
    ) -> Option<Piece> {
        let held = open.take(command, offset);
        let Taken { pieces, passing } = self.commands.get_mut(&command)?;
        let passing = passing.as_ref().filter(|_| pass);
        let find = |start: u64| {
            let at = pieces.iter().position(|piece| start < end_of(piece))?;
            Some((at, usize::try_from(start.checked_sub(pieces[at].offset())?).ok()?))
        };
        let mut lead = if passing.is_some() { &held[..] } else { &[] };
        // Identifiers come again: what is open may be of a command before, whose buffer had other pieces.
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
                // The block began in a packet before, or in this one.
                let all = SmallVec::<[u8; 16]>::from_iter(lead.iter().chain(bytes).copied());
                open.keep(command, offset + bytes.len() as u32, &all);
                return None;
            }
        }
        let before = pieces[at].split_to(skipped);
        let mut placed = pieces[at].split_to(length);
        let (of_before, of_these) = placed.bytes_mut().split_at_mut(lead.len());
        of_before.copy_from_slice(lead);
        of_these.copy_from_slice(&bytes[..of_these.len()]);
        if let Some(Passing { unit, stages }) = passing {
            placed.open(|at, blocks| {
                let run = StageRun { direction: Direction::Receive, unit: *unit, at };
                // Placed in any order: what stages remember is of use if these follow.
                let mut states = open.states(command, at);
                let passed = stages.pass(run, &mut states, blocks);
                open.note_states(command, at + blocks.len() as u64, states);
                if !passed {
                    // One of several may have worked on them.
                    let as_they_came = lead.iter().chain(bytes).skip((at - start) as usize);
                    blocks.iter_mut().zip(as_they_came).for_each(|(byte, came)| *byte = *came);
                }
                passed
            });
        }
        placed.set_lead(lead.len());
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

/// How many bytes at the end of `start..end` wait for the rest of their block, which goes on in the piece that ends at `piece_end`.
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
    struct Home(Mutex<Vec<(u64, Vec<u8>)>>);

    impl PieceHome for Home {
        fn take_back(&self, offset: u64, bytes: BytesMut) {
            self.0.lock().unwrap().push((offset, bytes.to_vec()));
        }
    }

    /// Adds the unit's number, and where it is.
    #[derive(Debug)]
    struct Add;

    impl NamedStage for Add {
        const NAME: &'static str = "add";
        type Spec = ();

        fn new((): ()) -> Option<Add> {
            Some(Add)
        }
    }

    impl Stage for Add {
        fn pass(&self, run: StageRun, _: &mut StageState, bytes: &mut [u8]) -> bool {
            bytes.iter_mut().for_each(|byte| *byte += (run.unit + run.at) as u8);
            run.unit == 3
        }
    }

    fn buffer(home: &Arc<Home>) -> Vec<Piece> {
        vec![Piece::new(0, BytesMut::zeroed(64), home.clone())]
    }

    #[test]
    fn whole_blocks_of_settled_data_pass_the_stages_of_their_command() {
        let home = Arc::new(Home::default());
        let stages_of =
            |unit, name: &'static str| Some(NvmeTcpStages { command: 7, unit, stages: vec![StageSpec::new(name, ())] });
        let stages = |name| stages_of(3, name);
        let mut placement = Placement::with(StageMakers::default().with::<Add>());
        placement.insert(7, buffer(&home), stages("add"));
        let mut piece = placement.place(7, 10, &[1; 40], true, &mut OpenBlock::default()).unwrap();
        let bytes = piece.bytes_mut().to_vec();
        assert_eq!((piece.opened(), &bytes[5..7], &bytes[37..]), (16..48, &[1, 20][..], &[20][..]), "the rest waits");
        assert!(placement.place(7, 50, &[1; 14], false, &mut OpenBlock::default()).unwrap().opened().is_empty());
        // What a stage finds wrong is left as it came.
        placement.insert(7, buffer(&home), stages_of(4, "add"));
        let mut piece = placement.place(7, 0, &[1; 64], true, &mut OpenBlock::default()).unwrap();
        assert!(piece.opened().is_empty() && piece.bytes_mut() == [1; 64]);
        // The next command with this identifier did not ask for any.
        placement.insert(7, buffer(&home), stages("add"));
        placement.insert(7, buffer(&home), None);
        assert!(placement.place(7, 0, &[1; 64], true, &mut OpenBlock::default()).unwrap().opened().is_empty());
        // A stage that the device does not have places nothing either; the next command is not affected.
        for (stages, is_placed) in [(stages("press"), false), (None, true)] {
            placement.insert(7, buffer(&home), stages);
            assert_eq!(placement.place(7, 0, &[1], true, &mut OpenBlock::default()).is_some(), is_placed);
        }
    }

    /// A block was left open by a command, and another one with its identifier has other pieces.
    #[test]
    fn what_is_open_of_another_command_fits_or_is_left() {
        let home = Arc::new(Home::default());
        let mut placement = passing(&home);
        let mut open = OpenBlock::default();
        assert!(placement.place(7, 16, &[1; 4], true, &mut open).is_none(), "it waits for its block");
        let stages = NvmeTcpStages { command: 7, unit: 3, stages: vec![StageSpec::new("add", ())] };
        let parts = [(0, 18), (18, 46)].map(|(at, bytes)| Piece::new(at, BytesMut::zeroed(bytes), home.clone()));
        placement.insert(7, parts.into(), Some(stages));
        let placed = placement.place(7, 20, &[1; 40], true, &mut open);
        assert!(placed.is_none_or(|piece| piece.offset() >= 18));
    }

    /// A command 7 whose data pass a stage, with a buffer of two parts.
    fn passing(home: &Arc<Home>) -> Placement {
        let mut placement = Placement::with(StageMakers::default().with::<Add>());
        let stages = NvmeTcpStages { command: 7, unit: 3, stages: vec![StageSpec::new("add", ())] };
        let parts = [(0, 88), (88, 40)].map(|(at, bytes)| Piece::new(at, BytesMut::zeroed(bytes), home.clone()));
        placement.insert(7, parts.into(), Some(stages));
        placement
    }

    #[test]
    fn a_block_that_packets_cut_comes_with_the_last_of_them() {
        let home = Arc::new(Home::default());
        let (mut placement, mut open) = (passing(&home), OpenBlock::default());
        let first = placement.place(7, 0, &[1; 20], true, &mut open).unwrap();
        assert_eq!((first.len(), first.opened()), (16, 0..16));
        assert!(placement.place(7, 16, &[1; 4], true, &mut open).is_none());
        assert!(placement.place(7, 20, &[2; 5], true, &mut open).is_none(), "two packets, and not a block yet");
        let mut next = placement.place(7, 25, &[3; 30], true, &mut open).unwrap();
        assert_eq!((next.offset(), next.lead(), next.len(), next.opened()), (25, 9, 23, 16..48));
        assert_eq!(next.bytes_mut(), [22; 23]);
        drop((first, next));
        let mut expected = vec![4; 16];
        expected.extend([[20; 4].as_slice(), &[21; 5], &[22; 23]].concat());
        assert_eq!(home.0.lock().unwrap().pop(), Some((16, expected[16..].to_vec())), "what came before is in it");
        // Where parts of the buffer meet there is no block in one of them.
        assert!(placement.place(7, 48, &[1; 7], true, &mut open).is_none());
        let last = placement.place(7, 55, &[1; 50], true, &mut open).unwrap();
        assert_eq!((last.lead(), last.len(), last.opened()), (7, 33, 48..80));
    }

    #[test]
    fn other_data_than_the_next_leave_the_block_as_it_came() {
        for (command, offset, pass) in [(7, 21, true), (7, 32, true), (8, 20, true), (7, 20, false)] {
            let (home, mut open) = (Arc::new(Home::default()), OpenBlock::default());
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
