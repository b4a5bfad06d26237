//! Identify data structures: the fields that hosts use.
//!
//! NVM Express Base Specification 2.0, 5.17, and NVM Command Set Specification 1.0, 4.1.5: each structure has 4096
//! bytes.

use super::{put, u16_at, u32_at, u64_at};

/// The Identify Controller structure (CNS 01h).
///
/// ```
/// use nvme_tcp::wire::{ControllerData, ControllerKind};
///
/// let (model, kind) = ("Emulated".into(), ControllerKind::Io);
/// let data = ControllerData { controller: 7, model, kind, namespaces: 4, ..ControllerData::default() };
/// assert_eq!(ControllerData::parse(&data.to_bytes()), Some(data));
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ControllerData {
    /// Serial number, at most 20 characters.
    pub serial: String,
    /// Model, at most 40 characters.
    pub model: String,
    /// Firmware revision, at most 8 characters.
    pub firmware: String,
    /// MDTS: a command moves at most `4096 << max_transfer` bytes; 0: no limit.
    pub max_transfer: u8,
    /// CNTLID.
    pub controller: u16,
    /// VER: the version of the specification, as the VS property has it.
    pub version: u32,
    /// OAES: changes that the controller can report.
    pub notices: Notices,
    /// CNTRLTYPE.
    pub kind: ControllerKind,
    /// AERL: Asynchronous Event Requests at a time, less one.
    pub event_requests: u8,
    /// LPA: log page attributes.
    pub log_attributes: u8,
    /// ELPE: entries of the error log, less one.
    pub error_entries: u8,
    /// KAS: keep-alive granularity in units of 100 ms; 0: no keep alive.
    pub keep_alive: u16,
    /// MAXCMD: commands at a time in a queue.
    pub max_commands: u16,
    /// NN: the greatest namespace identifier.
    pub namespaces: u32,
    /// ONCS: optional I/O commands.
    pub optional_commands: u16,
    /// VWC bit 0: the controller has a volatile write cache.
    pub volatile_cache: bool,
    /// SGLS.
    pub sgl_support: u32,
    /// SUBNQN.
    pub subsystem: String,
    /// IOCCSZ: bytes of an I/O queue's command capsule, in units of 16.
    pub command_capsule: u32,
    /// ICDOFF: where data in a capsule begin, in units of 16 bytes after the command.
    pub in_capsule_offset: u16,
    /// IORCSZ: bytes of a response capsule, in units of 16.
    pub response_capsule: u32,
    /// OFCS bit 0: Disconnect is supported.
    pub disconnect: bool,
}

/// CNTRLTYPE: kind of controller.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ControllerKind {
    /// Not reported, as by controllers before version 1.4.
    #[default]
    Untold,
    /// I/O controller: serves namespaces.
    Io,
    /// Discovery controller: serves the discovery log.
    Discovery,
    /// Administrative controller.
    Administrative,
    /// A reserved value.
    Other(u8),
}

impl ControllerKind {
    fn from_u8(value: u8) -> ControllerKind {
        match value {
            0 => ControllerKind::Untold,
            1 => ControllerKind::Io,
            2 => ControllerKind::Discovery,
            3 => ControllerKind::Administrative,
            other => ControllerKind::Other(other),
        }
    }

    fn to_u8(self) -> u8 {
        match self {
            ControllerKind::Untold => 0,
            ControllerKind::Io => 1,
            ControllerKind::Discovery => 2,
            ControllerKind::Administrative => 3,
            ControllerKind::Other(value) => value,
        }
    }
}

/// Changes that a controller can report: bits of OAES, and of the feature Asynchronous Event Configuration, which
/// enables the reports.
///
/// ```
/// use nvme_tcp::wire::Notices;
///
/// let told = Notices::NAMESPACES.and(Notices(0x0000_0900));
/// assert!(told.has(Notices::NAMESPACES) && !told.has(Notices::DISCOVERY) && !told.is_empty());
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Notices(pub u32);

impl Notices {
    /// Attributes of a namespace changed.
    pub const NAMESPACES: Notices = Notices(1 << 8);
    /// The discovery log changed.
    pub const DISCOVERY: Notices = Notices(1 << 31);

    /// Returns the notices in both sets.
    pub const fn and(self, other: Notices) -> Notices {
        Notices(self.0 & other.0)
    }

    /// Returns whether all notices of `other` are in the set.
    pub const fn has(self, other: Notices) -> bool {
        self.0 & other.0 == other.0
    }

    /// Returns whether the set is empty.
    pub const fn is_empty(self) -> bool {
        self.0 == 0
    }
}

impl ControllerData {
    /// Encodes the structure.
    pub fn to_bytes(&self) -> Vec<u8> {
        let mut bytes = vec![0; LEN];
        put_text(&mut bytes[4..24], &self.serial, b' ');
        put_text(&mut bytes[24..64], &self.model, b' ');
        put_text(&mut bytes[64..72], &self.firmware, b' ');
        if self.kind == ControllerKind::Io {
            bytes[76] = SEVERAL_CONTROLLERS;
        }
        bytes[77] = self.max_transfer;
        put(&mut bytes, 78, &self.controller.to_le_bytes());
        put(&mut bytes, 80, &self.version.to_le_bytes());
        put(&mut bytes, 92, &self.notices.0.to_le_bytes());
        bytes[111] = self.kind.to_u8();
        bytes[258] = ABORT_LIMIT;
        bytes[259] = self.event_requests;
        bytes[260] = FIRMWARE_UPDATES;
        bytes[261] = self.log_attributes;
        bytes[262] = self.error_entries;
        put(&mut bytes, 266, &WARNING_TEMPERATURE.to_le_bytes());
        put(&mut bytes, 268, &CRITICAL_TEMPERATURE.to_le_bytes());
        put(&mut bytes, 320, &self.keep_alive.to_le_bytes());
        if self.kind == ControllerKind::Io {
            // SQES and CQES: entries have exactly 64 and 16 bytes.
            (bytes[512], bytes[513]) = (0x66, 0x44);
        }
        put(&mut bytes, 514, &self.max_commands.to_le_bytes());
        put(&mut bytes, 516, &self.namespaces.to_le_bytes());
        put(&mut bytes, 520, &self.optional_commands.to_le_bytes());
        // VWC bits 2:1, 11b: Flush with namespace FFFFFFFFh flushes all.
        bytes[525] = if self.volatile_cache { 0b111 } else { 0 };
        put(&mut bytes, 536, &self.sgl_support.to_le_bytes());
        // MNAN: any identifier up to NN may be in use.
        put(&mut bytes, 540, &self.namespaces.to_le_bytes());
        put_text(&mut bytes[768..1024], &self.subsystem, 0);
        put(&mut bytes, 1792, &self.command_capsule.to_le_bytes());
        put(&mut bytes, 1796, &self.response_capsule.to_le_bytes());
        put(&mut bytes, 1800, &self.in_capsule_offset.to_le_bytes());
        bytes[1803] = 1; // MSDBD: one SGL descriptor
        bytes[1804] = u8::from(self.disconnect);
        bytes
    }

    /// Parses the structure; `None` if there are fewer than 4096 bytes.
    pub fn parse(bytes: &[u8]) -> Option<ControllerData> {
        let bytes = bytes.get(..LEN)?;
        Some(ControllerData {
            serial: text(&bytes[4..24]),
            model: text(&bytes[24..64]),
            firmware: text(&bytes[64..72]),
            max_transfer: bytes[77],
            controller: u16_at(bytes, 78),
            version: u32_at(bytes, 80),
            notices: Notices(u32_at(bytes, 92)),
            kind: ControllerKind::from_u8(bytes[111]),
            event_requests: bytes[259],
            log_attributes: bytes[261],
            error_entries: bytes[262],
            keep_alive: u16_at(bytes, 320),
            max_commands: u16_at(bytes, 514),
            namespaces: u32_at(bytes, 516),
            optional_commands: u16_at(bytes, 520),
            volatile_cache: bytes[525] & 1 != 0,
            sgl_support: u32_at(bytes, 536),
            subsystem: text(&bytes[768..1024]),
            command_capsule: u32_at(bytes, 1792),
            response_capsule: u32_at(bytes, 1796),
            in_capsule_offset: u16_at(bytes, 1800),
            disconnect: bytes[1804] & 1 != 0,
        })
    }
}

/// The Identify Namespace structure (CNS 00h).
///
/// ```
/// use nvme_tcp::wire::NamespaceData;
///
/// let data = NamespaceData { blocks: 2048, block_shift: 12, nguid: [7; 16] };
/// assert_eq!(NamespaceData::parse(&data.to_bytes()), Some(data));
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NamespaceData {
    /// NSZE: size in blocks.
    pub blocks: u64,
    /// LBADS of the current format: a block has `1 << block_shift` bytes.
    pub block_shift: u8,
    /// NGUID.
    pub nguid: [u8; 16],
}

impl NamespaceData {
    /// Encodes the structure.
    pub fn to_bytes(&self) -> Vec<u8> {
        let mut bytes = vec![0; LEN];
        for at in [0, 8, 16] {
            put(&mut bytes, at, &self.blocks.to_le_bytes()); // NSZE, NCAP, NUSE
        }
        bytes[30] = 1; // NMIC: several controllers may use it
        bytes[33] = 0b1001; // DLFEAT: deallocated blocks read zeros; Write Zeroes may deallocate
        put(&mut bytes, 104, &self.nguid);
        bytes[130] = self.block_shift;
        bytes
    }

    /// Parses the structure; `None` if there are fewer than 4096 bytes, or if the block size is outside the limits.
    pub fn parse(bytes: &[u8]) -> Option<NamespaceData> {
        let bytes = bytes.get(..LEN)?;
        // FLBAS: bits 3:0, and 6:5 above them.
        let format = usize::from(bytes[26] & 0xf) | usize::from(bytes[26] >> 5 & 3) << 4;
        let block_shift = bytes[128 + format * 4 + 2];
        let nguid = bytes[104..120].try_into().ok()?;
        // The structure of an unallocated namespace is all zeros.
        (block_shift == 0 || (9..=16).contains(&block_shift)).then(|| NamespaceData {
            blocks: u64_at(bytes, 0),
            block_shift,
            nguid,
        })
    }
}

/// Globally unique identifiers of a namespace. An identifier of zeros is absent.
///
/// NVM Express Base Specification 2.0, 4.5.1.
///
/// ```
/// use nvme_tcp::wire::{NamespaceData, NamespaceIds};
///
/// let data = NamespaceData { blocks: 2048, block_shift: 12, nguid: [7; 16] };
/// // NIDT 3: a UUID of 16 bytes.
/// let descriptors = [&[3, 16, 0, 0][..], &[5; 16]].concat();
/// let ids = NamespaceIds::parse(&data.to_bytes(), &descriptors);
/// assert_eq!(ids, NamespaceIds { eui64: [0; 8], nguid: [7; 16], uuid: [5; 16] });
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct NamespaceIds {
    /// EUI64.
    pub eui64: [u8; 8],
    /// NGUID.
    pub nguid: [u8; 16],
    /// UUID.
    pub uuid: [u8; 16],
}

impl NamespaceIds {
    /// Combines the Identify Namespace structure (CNS 00h) with the descriptor list (CNS 03h). Both may be empty.
    /// Descriptors take precedence.
    pub fn parse(namespace: &[u8], descriptors: &[u8]) -> NamespaceIds {
        let mut ids = NamespaceIds::default();
        if let Some(fields) = namespace.get(104..128) {
            ids.nguid.copy_from_slice(&fields[..16]);
            ids.eui64.copy_from_slice(&fields[16..]);
        }
        let mut rest = descriptors;
        while let Some(([kind, length, _, _], value)) = rest.split_first_chunk() {
            // A length of zero ends the list (5.17.2.3). A descriptor with a wrong length is skipped.
            let Some((value, others)) = value.split_at_checked(usize::from(*length)).filter(|_| *length > 0) else {
                break;
            };
            match (kind, value.len()) {
                (1, 8) => ids.eui64.copy_from_slice(value),
                (2, 16) => ids.nguid.copy_from_slice(value),
                (3, 16) => ids.uuid.copy_from_slice(value),
                _ => {}
            }
            rest = others;
        }
        ids
    }

    /// Returns whether at least one identifier is present.
    pub fn is_some(&self) -> bool {
        *self != NamespaceIds::default()
    }
}

/// Builds CNS 02h or 10h: identifiers above `after`, in ascending order.
pub(crate) fn namespace_list(namespaces: impl Iterator<Item = u32>, after: u32) -> Vec<u8> {
    let mut bytes = vec![0; LEN];
    for (entry, id) in bytes.chunks_exact_mut(4).zip(namespaces.filter(|id| *id > after)) {
        entry.copy_from_slice(&id.to_le_bytes());
    }
    bytes
}

/// Parses a namespace list.
pub fn parse_namespace_list(bytes: &[u8]) -> Vec<u32> {
    bytes.chunks_exact(4).take(LEN / 4).map(|entry| u32_at(entry, 0)).take_while(|id| *id != 0).collect()
}

/// Builds CNS 12h or 13h: controller identifiers from `from` on, in ascending order.
pub(crate) fn controller_list(controllers: impl Iterator<Item = u16>, from: u16) -> Vec<u8> {
    let mut bytes = vec![0; LEN];
    let mut count = 0u16;
    for (entry, id) in bytes[2..].chunks_exact_mut(2).zip(controllers.filter(|id| *id >= from)) {
        entry.copy_from_slice(&id.to_le_bytes());
        count += 1;
    }
    put(&mut bytes, 0, &count.to_le_bytes());
    bytes
}

/// Builds CNS 03h: NGUID, UUID and command set.
pub(crate) fn namespace_descriptors(uuid: &[u8; 16]) -> Vec<u8> {
    let mut bytes = vec![0; LEN];
    let mut at = 0;
    for (kind, value) in [(2u8, &uuid[..]), (3, &uuid[..]), (4, &[0][..])] {
        put(&mut bytes, at, &[kind, value.len() as u8, 0, 0]);
        put(&mut bytes, at + 4, value);
        at += 4 + value.len();
    }
    bytes
}

/// Builds CNS 05h for the NVM command set: zeros, because there is no protection information.
pub(crate) fn nvm_namespace() -> Vec<u8> {
    vec![0; LEN]
}

/// Builds CNS 06h for the NVM command set: zeros, because no limits are reported for commands without data.
pub(crate) fn nvm_controller() -> Vec<u8> {
    vec![0; LEN]
}

/// Builds CNS 08h: the properties that do not depend on the command set.
pub(crate) fn independent_namespace() -> Vec<u8> {
    let mut bytes = vec![0; LEN];
    bytes[1] = 1; // NMIC, as in CNS 00h
    bytes[14] = 1; // NSTAT: ready
    bytes
}

/// Builds CNS 1Ch: one combination of command sets, which is NVM alone.
pub(crate) fn command_sets() -> Vec<u8> {
    let mut bytes = vec![0; LEN];
    bytes[0] = 1;
    bytes
}

/// Writes ASCII text and fills the rest of the field with `fill`.
pub(crate) fn put_text(field: &mut [u8], value: &str, fill: u8) {
    field.fill(fill);
    for (byte, character) in field.iter_mut().zip(value.bytes()) {
        *byte = character;
    }
}

/// Reads ASCII text up to its padding. Invalid UTF-8 becomes a replacement character.
pub(crate) fn text(field: &[u8]) -> String {
    // Devices pad with blanks or with zeros. Both are removed.
    let end = field.iter().position(|byte| *byte == 0).unwrap_or(field.len());
    String::from_utf8_lossy(&field[..end]).trim_end().to_owned()
}

/// Bytes of every Identify structure.
pub(crate) const LEN: usize = 4096;
/// CMIC bit 1: the subsystem may have several controllers. Linux refuses a second controller unless all report this
/// bit.
const SEVERAL_CONTROLLERS: u8 = 1 << 1;
/// ACL: Abort commands at a time, less one.
const ABORT_LIMIT: u8 = 3;
/// FRMW: one slot, read-only.
const FIRMWARE_UPDATES: u8 = 0b11;
/// WCTEMP and CCTEMP, in kelvins.
const WARNING_TEMPERATURE: u16 = 343;
const CRITICAL_TEMPERATURE: u16 = 353;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn controller_kinds_round_trip() {
        assert!((0..=u8::MAX).all(|value| ControllerKind::from_u8(value).to_u8() == value));
        assert_eq!(
            (1..=3).map(ControllerKind::from_u8).collect::<Vec<_>>(),
            [ControllerKind::Io, ControllerKind::Discovery, ControllerKind::Administrative]
        );
    }

    #[test]
    fn invalid_namespace_descriptors_are_skipped() {
        let mut namespace = vec![0; LEN];
        namespace[104..120].fill(1);
        namespace[120..128].fill(2);
        let ids = NamespaceIds { eui64: [2; 8], nguid: [1; 16], uuid: [0; 16] };
        assert_eq!(NamespaceIds::parse(&namespace, &[]), ids);
        let uuid = [&[3, 16, 0, 0][..], &[7; 16]].concat();
        let with_uuid = NamespaceIds { uuid: [7; 16], ..ids };
        for (before, after) in [(&[][..], &[][..]), (&[9, 3, 0, 0, 5, 5, 5], &[0; 40]), (&[4, 1, 0, 0, 0], &[2, 16, 0])]
        {
            assert_eq!(NamespaceIds::parse(&namespace, &[before, &uuid, after].concat()), with_uuid);
        }
        // A length of zero, a wrong length, and a truncated descriptor.
        assert_eq!(NamespaceIds::parse(&namespace, &[&[2, 0, 0, 0][..], &uuid].concat()), ids);
        assert_eq!(NamespaceIds::parse(&namespace, &[3, 4, 0, 0, 7, 7, 7, 7]), ids);
        assert_eq!(NamespaceIds::parse(&namespace, &uuid[..19]), ids);
        assert!(!NamespaceIds::parse(&[0; 100], &[]).is_some());
        let told = [&[1, 8, 0, 0][..], &[8; 8], &[2, 16, 0, 0], &[9; 16]].concat();
        assert_eq!(NamespaceIds::parse(&namespace, &told), NamespaceIds { eui64: [8; 8], nguid: [9; 16], ..ids });
    }
}
