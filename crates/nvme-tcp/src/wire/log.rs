//! Log pages.
//!
//! NVM Express Base Specification 2.0, 5.16.1.

use super::identify::{put_text, text};
use super::{AdminOpcode, IoOpcode, Status, put, u16_at, u64_at};

/// Identifiers of log pages.
pub mod page {
    /// Supported log pages.
    pub const SUPPORTED: u8 = 0x00;
    /// Errors of commands.
    pub const ERROR: u8 = 0x01;
    /// Health.
    pub const SMART: u8 = 0x02;
    /// Firmware slots.
    pub const FIRMWARE: u8 = 0x03;
    /// Changed namespaces.
    pub const CHANGED_NAMESPACES: u8 = 0x04;
    /// Commands supported and their effects.
    pub const EFFECTS: u8 = 0x05;
    /// Discovery log.
    pub const DISCOVERY: u8 = 0x70;
}

/// An entry of the error log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ErrorEntry {
    /// Number of this error since the controller started.
    pub(crate) count: u64,
    pub(crate) queue: u16,
    pub(crate) command: u16,
    pub(crate) status: Status,
    pub(crate) block: u64,
    pub(crate) namespace: u32,
}

impl ErrorEntry {
    pub(crate) const LEN: usize = 64;

    pub(crate) fn to_bytes(self) -> [u8; ErrorEntry::LEN] {
        let mut bytes = [0; ErrorEntry::LEN];
        put(&mut bytes, 0, &self.count.to_le_bytes());
        put(&mut bytes, 8, &self.queue.to_le_bytes());
        put(&mut bytes, 10, &self.command.to_le_bytes());
        put(&mut bytes, 12, &(self.status.bits() << 1).to_le_bytes());
        put(&mut bytes, 14, &[0xff, 0xff]); // 0xffff: no particular byte of the command
        put(&mut bytes, 16, &self.block.to_le_bytes());
        put(&mut bytes, 24, &self.namespace.to_le_bytes());
        bytes
    }
}

/// Counters of the SMART log.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Smart {
    pub(crate) read_bytes: u64,
    pub(crate) written_bytes: u64,
    pub(crate) read_commands: u64,
    pub(crate) write_commands: u64,
    pub(crate) hours: u64,
    pub(crate) media_errors: u64,
    pub(crate) error_entries: u64,
}

impl Smart {
    pub(crate) fn to_bytes(self) -> Vec<u8> {
        let mut bytes = vec![0; 512];
        put(&mut bytes, 1, &TEMPERATURE.to_le_bytes());
        (bytes[3], bytes[4]) = (100, 10); // available spare in percent, and its threshold
        // Data units are thousands of 512 bytes, rounded up.
        put(&mut bytes, 32, &self.read_bytes.div_ceil(512_000).to_le_bytes());
        put(&mut bytes, 48, &self.written_bytes.div_ceil(512_000).to_le_bytes());
        put(&mut bytes, 64, &self.read_commands.to_le_bytes());
        put(&mut bytes, 80, &self.write_commands.to_le_bytes());
        put(&mut bytes, 128, &self.hours.to_le_bytes());
        put(&mut bytes, 160, &self.media_errors.to_le_bytes());
        put(&mut bytes, 176, &self.error_entries.to_le_bytes());
        bytes
    }
}

/// Builds the firmware log: slot 1 is active and holds `revision`.
pub(crate) fn firmware_slots(revision: &str) -> Vec<u8> {
    let mut bytes = vec![0; 512];
    bytes[0] = 1;
    put_text(&mut bytes[8..16], revision, b' ');
    bytes
}

/// Builds the list of changed namespaces.
pub(crate) fn changed_namespaces(changed: impl Iterator<Item = u32>) -> Vec<u8> {
    let mut bytes = vec![0; 4096];
    for (place, id) in changed.enumerate() {
        // More than 1024 identifiers are reported as a single entry of all ones.
        if place == 1024 {
            bytes.fill(0);
            put(&mut bytes, 0, &u32::MAX.to_le_bytes());
            break;
        }
        put(&mut bytes, place * 4, &id.to_le_bytes());
    }
    bytes
}

/// Builds the effects log: CSUPP for every supported command, LBCC for commands that change blocks.
pub(crate) fn effects() -> Vec<u8> {
    let mut bytes = vec![0; 4096];
    for opcode in AdminOpcode::ALL {
        bytes[*opcode as usize * 4] = 1;
    }
    for opcode in IoOpcode::ALL {
        // LBCC tells hosts that cached copies of the blocks become invalid.
        let changes = matches!(
            opcode,
            IoOpcode::Write | IoOpcode::WriteZeroes | IoOpcode::DatasetManagement | IoOpcode::WriteUncorrectable
        );
        bytes[1024 + *opcode as usize * 4] = if changes { 0b11 } else { 1 };
    }
    bytes
}

/// Builds the list of supported log pages.
pub(crate) fn supported(pages: &[u8]) -> Vec<u8> {
    let mut bytes = vec![0; 1024];
    for page in pages {
        bytes[usize::from(*page) * 4] = 1;
    }
    bytes
}

/// A subsystem in the discovery log.
///
/// ```
/// use nvme_tcp::wire::{DiscoveryEntry, DiscoveryLog};
///
/// let log = DiscoveryLog {
///     generation: 3,
///     entries: vec![DiscoveryEntry::new("nqn.2026-01.example:disk", "192.0.2.1:4420".parse().unwrap())],
/// };
/// assert_eq!(DiscoveryLog::parse(&log.to_bytes()).unwrap(), log);
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DiscoveryEntry {
    /// SUBTYPE: 2 an NVM subsystem, 1 and 3 discovery.
    pub kind: u8,
    /// TRTYPE: 3 is TCP.
    pub transport: u8,
    /// ADRFAM: 1 IPv4, 2 IPv6.
    pub family: u8,
    /// PORTID.
    pub port: u16,
    /// CNTLID: FFFFh for subsystems that create a controller for each connection.
    pub controller: u16,
    /// ASQSZ: maximum number of entries of an admin queue.
    pub admin_queue: u16,
    /// SUBNQN.
    pub subsystem: String,
    /// TRADDR: the address.
    pub address: String,
    /// TRSVCID: the port number.
    pub service: String,
}

impl DiscoveryEntry {
    /// Bytes of an entry.
    pub const LEN: usize = 1024;

    /// Describes an NVM subsystem at TCP `address` that creates controllers as hosts connect.
    pub fn new(subsystem: &str, address: core::net::SocketAddr) -> DiscoveryEntry {
        DiscoveryEntry {
            kind: 2,
            transport: 3,
            family: if address.is_ipv4() { 1 } else { 2 },
            port: 1,
            controller: u16::MAX,
            admin_queue: 32,
            subsystem: subsystem.to_owned(),
            address: address.ip().to_string(),
            service: address.port().to_string(),
        }
    }

    /// Returns the address to connect to; `None` unless the transport is TCP at an IP address.
    pub fn socket_address(&self) -> Option<core::net::SocketAddr> {
        if self.transport != 3 {
            return None;
        }
        Some(core::net::SocketAddr::new(self.address.parse().ok()?, self.service.parse().ok()?))
    }

    fn write(&self, bytes: &mut [u8]) {
        (bytes[0], bytes[1], bytes[2]) = (self.transport, self.family, self.kind);
        bytes[3] = 0b10; // TREQ: no secure channel required
        put(bytes, 4, &self.port.to_le_bytes());
        put(bytes, 6, &self.controller.to_le_bytes());
        put(bytes, 8, &self.admin_queue.to_le_bytes());
        put_text(&mut bytes[32..64], &self.service, b' ');
        put_text(&mut bytes[256..512], &self.subsystem, 0);
        put_text(&mut bytes[512..768], &self.address, b' ');
    }

    fn parse(bytes: &[u8]) -> DiscoveryEntry {
        DiscoveryEntry {
            transport: bytes[0],
            family: bytes[1],
            kind: bytes[2],
            port: u16_at(bytes, 4),
            controller: u16_at(bytes, 6),
            admin_queue: u16_at(bytes, 8),
            service: text(&bytes[32..64]),
            subsystem: text(&bytes[256..512]),
            address: text(&bytes[512..768]),
        }
    }
}

/// The discovery log page.
///
/// See [`DiscoveryEntry`] for an example.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DiscoveryLog {
    /// GENCTR: changes whenever the log changes.
    pub generation: u64,
    /// Subsystems that can be connected to.
    pub entries: Vec<DiscoveryEntry>,
}

impl DiscoveryLog {
    /// Bytes before the first entry.
    pub const HEADER: usize = 1024;

    /// Encodes the page.
    pub fn to_bytes(&self) -> Vec<u8> {
        let mut bytes = vec![0; DiscoveryLog::HEADER + self.entries.len() * DiscoveryEntry::LEN];
        put(&mut bytes, 0, &self.generation.to_le_bytes());
        put(&mut bytes, 8, &(self.entries.len() as u64).to_le_bytes());
        for (entry, place) in
            self.entries.iter().zip(bytes[DiscoveryLog::HEADER..].chunks_exact_mut(DiscoveryEntry::LEN))
        {
            entry.write(place);
        }
        bytes
    }

    /// Parses generation and number of entries from the first 16 bytes.
    pub(crate) fn parse_header(bytes: &[u8]) -> Option<(u64, u64)> {
        let bytes = bytes.get(..16)?;
        Some((u64_at(bytes, 0), u64_at(bytes, 8)))
    }

    /// Parses the page; `None` if entries are missing.
    pub fn parse(bytes: &[u8]) -> Option<DiscoveryLog> {
        let (generation, count) = DiscoveryLog::parse_header(bytes)?;
        let count = usize::try_from(count).ok()?;
        let entries = bytes.get(DiscoveryLog::HEADER..)?.chunks_exact(DiscoveryEntry::LEN);
        // NUMREC counts all entries of the log, although the host may have read fewer.
        if entries.len() < count {
            return None;
        }
        Some(DiscoveryLog { generation, entries: entries.take(count).map(DiscoveryEntry::parse).collect() })
    }
}

/// Reported temperature, in kelvins.
const TEMPERATURE: u16 = 300;
