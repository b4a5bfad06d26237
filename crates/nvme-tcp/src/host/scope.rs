//! Effects of commands: whether a command may be sent twice, and which commands must not overtake it.
//!
//! NVM Express Base Specification 2.0, 5 and 7; NVM Command Set Specification 1.0, 3. A command unknown here may have
//! any effect.

use crate::core::queue::CommandData;
use crate::wire::{AdminOpcode, Command, FabricsType, IoOpcode, u32_at, u64_at};
use bytes::Bytes;

/// The effect of a command and the objects it concerns.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct CommandScope {
    pub(super) effect: Effect,
    pub(super) reach: Reach,
}

/// Kind of effect.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Effect {
    /// No effect visible to other commands.
    None,
    /// A change that has the same result when repeated.
    Repeatable,
    /// A change that must not be repeated, or may not be.
    Once,
}

/// Objects that a command concerns.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Reach {
    /// No object of other commands.
    Nothing,
    /// Blocks of a namespace; `end` is exclusive.
    Blocks {
        /// Namespace identifier; FFFFFFFFh for all.
        namespace: u32,
        first: u64,
        end: u64,
    },
    /// Properties, features and logs of the controller.
    Settings,
    /// Everything.
    Everything,
}

impl CommandScope {
    /// The scope of a command that is never sent.
    pub(super) const NOTHING: CommandScope = CommandScope { effect: Effect::None, reach: Reach::Nothing };

    /// Returns the scope of an I/O command.
    pub(super) fn for_io(command: &Command, payload: &CommandData) -> CommandScope {
        let namespace = command.namespace();
        let first = command.u64(10);
        // NLB is a 0's based number.
        let blocks = u64::from(command.u32(12) & 0xffff) + 1;
        let range = Reach::Blocks { namespace, first, end: first.saturating_add(blocks) };
        let all = Reach::Blocks { namespace, first: 0, end: u64::MAX };
        let (effect, reach) = match IoOpcode::from_u8(command.opcode()) {
            // Fused: one half of a Compare and Write.
            _ if command.flags() & FUSED != 0 => (Effect::Once, all),
            Some(IoOpcode::Flush) => (Effect::None, Reach::Nothing),
            Some(IoOpcode::Read | IoOpcode::Compare | IoOpcode::Verify) => (Effect::None, range),
            Some(IoOpcode::Write | IoOpcode::WriteZeroes | IoOpcode::WriteUncorrectable) => (Effect::Repeatable, range),
            // The ranges are in the data. If they are incomplete, the command may concern any block.
            Some(IoOpcode::DatasetManagement) => {
                let (first, end) = enclosing_range(command, payload).unwrap_or((0, u64::MAX));
                (Effect::Repeatable, Reach::Blocks { namespace, first, end })
            }
            None if command.opcode() == RESERVATION_REPORT => (Effect::None, all),
            // Copy names blocks of other namespaces, and vendor commands may concern anything.
            None => (Effect::Once, Reach::Everything),
        };
        CommandScope { effect, reach }
    }

    /// Returns the scope of an admin command.
    pub(super) fn for_admin(command: &Command) -> CommandScope {
        let (effect, reach) = match AdminOpcode::from_u8(command.opcode()) {
            Some(AdminOpcode::GetLogPage | AdminOpcode::Identify | AdminOpcode::GetFeatures) => {
                (Effect::None, Reach::Settings)
            }
            Some(AdminOpcode::KeepAlive | AdminOpcode::AsyncEventRequest) => (Effect::None, Reach::Nothing),
            Some(AdminOpcode::Fabrics) if command.fabrics_type() == FabricsType::PropertyGet as u8 => {
                (Effect::None, Reach::Settings)
            }
            Some(AdminOpcode::SetFeatures) => (Effect::Repeatable, Reach::Everything),
            // Abort names a command of its own connection, and must not wait for it.
            Some(AdminOpcode::Abort) => (Effect::Once, Reach::Nothing),
            Some(AdminOpcode::Fabrics) | None => (Effect::Once, Reach::Everything),
        };
        CommandScope { effect, reach }
    }

    /// Returns whether the command may change anything.
    pub(super) fn changes(self) -> bool {
        self.effect != Effect::None
    }

    /// Returns whether the command concerns a namespace.
    pub(super) fn is_about_blocks(self) -> bool {
        matches!(self.reach, Reach::Blocks { .. })
    }
}

impl Reach {
    /// Returns whether two commands may concern the same object.
    pub(super) fn overlaps(self, other: Reach) -> bool {
        match (self, other) {
            (Reach::Nothing, _) | (_, Reach::Nothing) => false,
            (Reach::Everything, _) | (_, Reach::Everything) => true,
            (Reach::Settings, other) | (other, Reach::Settings) => other == Reach::Settings,
            (
                Reach::Blocks { namespace, first, end },
                Reach::Blocks { namespace: other, first: other_first, end: other_end },
            ) => {
                let same = namespace == other || namespace == u32::MAX || other == u32::MAX;
                same && first < other_end && other_first < end
            }
        }
    }
}

/// Returns the range from the first to the last block of all ranges of a Dataset Management command.
fn enclosing_range(command: &Command, payload: &CommandData) -> Option<(u64, u64)> {
    let CommandData::Write(pieces) = payload else { return None };
    let ranges = (command.u32(10) & 0xff) as usize + 1;
    let data = match &pieces[..] {
        [piece] => piece.clone(),
        pieces => Bytes::from(pieces.concat()),
    };
    let ranges = data.get(..ranges * RANGE)?.chunks_exact(RANGE);
    let bounds = ranges.map(|range| (u64_at(range, 8), u64_at(range, 8).saturating_add(u32_at(range, 4).into())));
    bounds.reduce(|(first, end), (other, other_end)| (first.min(other), end.max(other_end)))
}

/// FUSE, in byte 1.
const FUSED: u8 = 0b11;
/// Opcode of Reservation Report.
const RESERVATION_REPORT: u8 = 0x0e;
/// Bytes of a Dataset Management range.
const RANGE: usize = 16;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::{commands, property};

    fn blocks(namespace: u32, first: u64, end: u64) -> Reach {
        Reach::Blocks { namespace, first, end }
    }

    #[test]
    fn only_known_idempotent_commands_are_repeatable() {
        let io =
            |opcode: u8| CommandScope::for_io(&Command::new(opcode, 0).with_namespace(1), &CommandData::None).effect;
        for opcode in 0..=u8::MAX {
            let expected = match opcode {
                0x00 | 0x02 | 0x05 | 0x0c | 0x0e => Effect::None,
                0x01 | 0x04 | 0x08 | 0x09 => Effect::Repeatable,
                // Reservations, Copy, Zone Append, and vendor commands.
                _ => Effect::Once,
            };
            assert_eq!(io(opcode), expected, "I/O opcode {opcode:#x}");
        }
        for opcode in 0..=u8::MAX {
            let expected = match opcode {
                0x02 | 0x06 | 0x0a | 0x0c | 0x18 => Effect::None,
                0x09 => Effect::Repeatable,
                // Namespace Management, Format, Firmware, Abort, Property Set ..
                _ => Effect::Once,
            };
            assert_eq!(CommandScope::for_admin(&Command::new(opcode, 0)).effect, expected, "admin opcode {opcode:#x}");
        }
        assert_eq!(CommandScope::for_admin(&commands::property_get(property::CSTS, false)).effect, Effect::None);
        let fused = Command::new(IoOpcode::Write as u8, 0).with_u32(0, 0x01 | 0b10 << 8);
        assert_eq!(CommandScope::for_io(&fused, &CommandData::None).effect, Effect::Once);
    }

    #[test]
    fn commands_reach_the_blocks_they_name() {
        let write = commands::range(IoOpcode::Write, 3, 100, 8);
        assert_eq!(CommandScope::for_io(&write, &CommandData::None).reach, blocks(3, 100, 108));
        let last = commands::range(IoOpcode::Write, 3, u64::MAX, 65_536);
        assert_eq!(CommandScope::for_io(&last, &CommandData::None).reach, blocks(3, u64::MAX, u64::MAX));
        let (deallocate, ranges) = commands::deallocate(3, &[(50, 2), (7, 3), (20, 1)]);
        for cut in [0, 5, 16, 40] {
            let pieces = [Bytes::copy_from_slice(&ranges[..cut]), Bytes::copy_from_slice(&ranges[cut..])];
            let payload = CommandData::Write(pieces.into_iter().collect());
            assert_eq!(CommandScope::for_io(&deallocate, &payload).reach, blocks(3, 7, 52));
        }
        let short = CommandData::Write([Bytes::copy_from_slice(&ranges[1..])].into_iter().collect());
        assert_eq!(
            CommandScope::for_io(&deallocate, &short).reach,
            blocks(3, 0, u64::MAX),
            "incomplete ranges may name any block"
        );
        for opcode in [0x19, 0x80] {
            let unknown = Command::new(opcode, 0).with_namespace(3);
            assert_eq!(CommandScope::for_io(&unknown, &CommandData::None).reach, Reach::Everything);
        }
    }

    #[test]
    fn overlap_is_symmetric() {
        let all = [blocks(1, 0, 8), blocks(1, 7, 9), blocks(1, 8, 9), blocks(2, 0, 8), blocks(u32::MAX, 0, 1)];
        let rows = [
            (all[0], [true, true, false, false, true]),
            (all[1], [true, true, true, false, false]),
            (all[2], [false, true, true, false, false]),
            (all[3], [false, false, false, true, true]),
            (all[4], [true, false, false, true, true]),
            (Reach::Everything, [true; 5]),
            (Reach::Settings, [false; 5]),
            (Reach::Nothing, [false; 5]),
        ];
        for (reach, expected) in rows {
            assert_eq!(all.map(|other| reach.overlaps(other)), expected, "{reach:?}");
            assert_eq!(all.map(|other| other.overlaps(reach)), expected, "{reach:?}");
        }
        assert!(Reach::Settings.overlaps(Reach::Settings) && Reach::Settings.overlaps(Reach::Everything));
        assert!(!Reach::Nothing.overlaps(Reach::Everything));
    }
}
